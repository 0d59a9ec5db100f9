//! What the reproduction of EEP claims.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use wattlock_lab::papers::eep::{FITTED_MB, Options, fit, study};
use wattlock_lab::{Error, Origin, Role, Row};

fn rows(experiment: &str, quantity: &str) -> Vec<Row> {
    let rows = study(&Options::default()).unwrap().rows;
    rows.into_iter().filter(|row| row.experiment == experiment && row.quantity == quantity).collect()
}

/// Table 5 is nearly proportional to size, so multiplying the fitted row does about as well as the model: what these
/// rows say is that the model adds nothing that grows or shrinks with the job.
#[test]
fn one_row_is_fitted_and_the_others_are_as_near_as_proportion() {
    let rows = rows("table5", "time_ms");
    assert_eq!(rows.len(), 4);
    for row in rows {
        let off = row.deviation().unwrap().abs();
        if row.row == format!("plaintext_MB={FITTED_MB}") {
            assert_eq!((row.role, row.naive), (Role::Fitted, None));
            assert!(off < 1e-4, "{off}");
            continue;
        }
        assert_eq!(row.role, Role::Predicted);
        let naive = row.naive_deviation().unwrap().abs();
        assert!(off < naive + 0.005, "{}: {off}, by proportion {naive}", row.row);
    }
}

/// 4.66 MB/J rests on the power of another paper's baselines: it comes within a tenth, the naive predictor does not.
#[test]
fn hybrid_megabytes_per_joule_are_within_a_tenth_and_nearer_than_the_naive_predictor() {
    let row = &rows("efficiency", "mb_per_j")[0];
    assert!(row.deviation().unwrap().abs() < 0.10, "{row:?}");
    assert!(row.naive_deviation().unwrap().abs() > 0.10, "{row:?}");
}

/// The saving over GPU-only holds against the published 3.65 MB/J and not against the model's own GPU-only, by which
/// the hybrid saves nothing: the model does not reproduce that saving. Both are shown; the remarks say why.
#[test]
fn savings_over_gpu_only_are_shown_against_the_models_own_and_the_published_one() {
    let saving = rows("efficiency", "saving_over_gpu");
    let of = |name: &str| saving.iter().find(|row| row.row == name).unwrap();
    let (own, published) = (of("hybrid against=model"), of("hybrid against=published"));
    assert!(published.deviation().unwrap().abs() < 10.0, "{published:?}");
    assert!((-5.0..5.0).contains(&own.simulated), "{own:?}");
    let mb_per_j = rows("efficiency", "mb_per_j");
    let [hybrid, gpu_only] = &mb_per_j[..] else { panic!("{mb_per_j:?}") };
    let by_hand = 100.0 * (1.0 - gpu_only.simulated / hybrid.simulated);
    assert!((own.simulated - by_hand).abs() < 1e-9, "{} {by_hand}", own.simulated);
    assert!(gpu_only.deviation().unwrap() > 0.2, "the published GPU-only is not the model's: {gpu_only:?}");
    let over_cpu = &rows("efficiency", "saving_over_cpu")[0];
    assert!(over_cpu.deviation().unwrap().abs() < 5.0, "{over_cpu:?}");
}

#[test]
fn what_is_given_is_no_prediction() {
    let clocks = rows("clocks", "mb_per_j");
    for name in ["gpu_only step=6", "cpu_only step=1"] {
        let row = clocks.iter().find(|row| row.row == name).unwrap();
        assert_eq!((row.role, row.naive), (Role::Input, None), "{name}");
    }
}

#[test]
fn dynamic_splitting_is_at_least_as_good_in_time_and_joules() {
    for row in rows("table5", "time_ms") {
        assert!(row.gain().unwrap() > 0.01, "{}: {:?}", row.row, row.gain());
    }
    let joules = rows("table5", "mb_per_j").into_iter().chain(rows("efficiency", "mb_per_j"));
    for row in joules.filter(|row| row.adaptive.is_some()) {
        assert!(row.gain().unwrap() >= -0.01, "{}: {:?}", row.row, row.gain());
    }
}

#[test]
fn dynamic_splitting_adjusts_itself_to_a_cpu_the_ratio_does_not_know() {
    // Half the threads' speed: the static share then waits for the CPU.
    let options = Options { thread_mb_s: Some(1.0), megabytes: vec![400.0], ..Options::default() };
    let row = study(&options).unwrap().rows.remove(0);
    assert!(row.gain().unwrap() > 0.2, "{row:?}");
    assert_eq!(row.published, None, "another machine than the published one");
}

#[test]
fn other_clocks_are_within_a_fifth_as_far_as_the_data_determine_them() {
    let known: Vec<Row> =
        rows("clocks", "mb_per_j").into_iter().filter(|row| row.published.is_some()).collect();
    assert_eq!(known.len(), 6);
    for row in known.iter().filter(|row| row.role == Role::Predicted) {
        let (off, naive) = (row.deviation().unwrap().abs(), row.naive_deviation().unwrap().abs());
        assert!(off < 0.20, "{row:?}");
        // The mean over the other clocks is the one row where power held constant does as well.
        assert!(off < naive || row.row == "gpu_only others", "{row:?}");
    }
}

#[test]
fn the_same_options_give_the_same_output() {
    assert_eq!(study(&Options::default()).unwrap().rows, study(&Options::default()).unwrap().rows);
}

#[test]
fn values_no_table_has_are_simulated_and_compared_with_nothing() {
    let options = Options { megabytes: vec![250.0], streams: 4, cores: 8, ..Options::default() };
    let row = study(&options).unwrap().rows.remove(0);
    assert!(row.published.is_none() && row.simulated > 0.0);
    let paper = study(&Options { megabytes: vec![250.0], ..Options::default() }).unwrap().rows.remove(0);
    assert!(row.adaptive.unwrap() > paper.adaptive.unwrap(), "half the cores take longer");
}

#[test]
fn nonsense_is_refused_by_the_name_of_the_option() {
    let refused = |options: Options| match study(&options) {
        Err(Error::Option { option, .. }) => option,
        other => panic!("{other:?}"),
    };
    let sane = Options::default;
    assert_eq!(refused(Options { megabytes: vec![-1.0], ..sane() }), "--megabytes");
    assert_eq!(refused(Options { megabytes: vec![f64::INFINITY], ..sane() }), "--megabytes");
    assert_eq!(refused(Options { clock: 7, ..sane() }), "--clock");
    assert_eq!(refused(Options { clock: 0, ..sane() }), "--clock");
    assert_eq!(refused(Options { streams: 0, ..sane() }), "--streams");
    assert_eq!(refused(Options { ratio: Some(0.0), ..sane() }), "--ratio");
    assert_eq!(refused(Options { chunk_kib: 1.0, megabytes: vec![1e6], ..sane() }), "--chunk-kib");
}

#[test]
fn what_the_data_leave_open_is_named_with_its_weight() {
    let parameters = fit(&Options::default());
    let open: Vec<_> = parameters.iter().filter(|one| one.origin == Origin::Guess).collect();
    assert!(open.iter().any(|one| one.name == "thread_mb_s"));
    assert!(
        open.iter().all(|one| one.sensitivity.is_some_and(|(low, high, moved)| low < high && moved > 0.0))
    );
    let remarks = study(&Options::default()).unwrap().remarks.join("\n");
    assert!(remarks.contains("4.12 MB/J") && remarks.contains("11.4 %"));
}

#[test]
fn a_cpu_too_slow_to_help_is_left_alone_though_the_gpu_is_full() {
    for cores in [1, 2, 3] {
        let options = Options { cores, megabytes: vec![100.0], ..Options::default() };
        let row = study(&options).unwrap().rows.remove(0);
        assert!(row.gain().unwrap() > 0.0, "{cores}: {row:?}");
    }
}
