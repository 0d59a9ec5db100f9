//! What the reproduction of EEP claims.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use wattlock_lab::papers::eep::{FITTED_MB, Options, fit, study};
use wattlock_lab::{Error, Row};

fn rows(experiment: &str, quantity: &str) -> Vec<Row> {
    let rows = study(&Options::default()).unwrap().rows;
    rows.into_iter().filter(|row| row.experiment == experiment && row.quantity == quantity).collect()
}

#[test]
fn one_row_is_fitted_and_the_others_are_within_10_percent() {
    let rows = rows("table5", "time_ms");
    assert_eq!(rows.len(), 4);
    for row in rows {
        let off = row.deviation().unwrap().abs();
        let fitted = row.row == format!("plaintext_MB={FITTED_MB}");
        assert!(off < if fitted { 1e-4 } else { 0.10 }, "{}: {off}", row.row);
    }
}

#[test]
fn hybrid_megabytes_per_joule_are_within_15_percent() {
    assert!(rows("efficiency", "mb_per_j")[0].deviation().unwrap().abs() < 0.15);
}

#[test]
fn savings_are_within_5_points() {
    for quantity in ["saving_over_cpu", "saving_over_gpu"] {
        let row = &rows("efficiency", quantity)[0];
        assert!((row.simulated - row.published.unwrap()).abs() < 5.0, "{quantity}: {}", row.simulated);
    }
}

#[test]
fn dynamic_splitting_is_at_least_as_good_in_time_and_joules() {
    for row in rows("table5", "time_ms") {
        assert!(row.gain().unwrap() > 0.01, "{}: {:?}", row.row, row.gain());
    }
    for row in rows("table5", "mb_per_j").into_iter().chain(rows("efficiency", "mb_per_j")) {
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
    assert_eq!(known.len(), 5);
    assert!(known.iter().all(|row| row.deviation().unwrap().abs() < 0.20));
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
    let open: Vec<_> = parameters.iter().filter(|one| !one.determined).collect();
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
