//! What the reproduction of LECPAES claims.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::OnceLock;

use wattlock_lab::papers::k20m;
use wattlock_lab::papers::lecpaes::{Options, fit, study};
use wattlock_lab::{Error, Origin, Role, Row, Study, table};

fn rows(quantity: &str) -> Vec<Row> {
    of("stream", quantity)
}

fn of(experiment: &str, quantity: &str) -> Vec<Row> {
    static STUDY: OnceLock<Study> = OnceLock::new();
    let rows = &STUDY.get_or_init(|| study(&Options::default()).unwrap()).rows;
    rows.iter().filter(|row| row.experiment == experiment && row.quantity == quantity).cloned().collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
fn energy_is_within_15_percent_and_far_nearer_than_the_plain_gpus() {
    let rows = rows("energy_j");
    let (fitted, predicted): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.role == Role::Fitted);
    assert_eq!(fitted.len(), 1, "3000 us fixes the power at the lowest clock");
    assert_eq!(fitted[0].row, "latency_us=3000");
    let sizes = |of: fn(&Row) -> Option<f64>| -> Vec<f64> {
        predicted.iter().map(|row| of(row).unwrap().abs()).collect()
    };
    let (off, naive) = (sizes(Row::deviation), sizes(Row::naive_deviation));
    assert_eq!(off.len(), 4);
    assert!(off.iter().all(|off| *off <= 0.15), "{off:?}");
    assert!(3.0 * median(off.clone()) < median(naive.clone()), "{off:?} {naive:?}");
}

/// No better than copying the plain GPU's column, and said so on the page.
#[test]
fn retransmissions_are_within_a_third_and_no_nearer_than_the_plain_gpus() {
    let known: Vec<Row> =
        rows("retransmission_rate").into_iter().filter(|row| row.deviation().is_some()).collect();
    assert_eq!(known.len(), 3);
    for row in &known {
        assert!(row.deviation().unwrap().abs() < 1.0 / 3.0, "{row:?}");
        assert!(row.naive_deviation().unwrap().abs() < 1.0 / 3.0, "{row:?}");
    }
    let none: Vec<Row> =
        rows("retransmission_rate").into_iter().filter(|row| row.deviation().is_none()).collect();
    assert!(none.iter().all(|row| row.published == Some(0.0) && row.simulated < 0.001), "{none:?}");
}

#[test]
fn throughput_at_both_published_velocities_is_within_5_percent() {
    let known: Vec<Row> = rows("throughput").into_iter().filter(|row| row.published.is_some()).collect();
    assert_eq!(known.len(), 2);
    assert!(known.iter().all(|row| row.deviation().unwrap().abs() < 0.05));
}

/// The programs that LECPAES was compared with, each in a run of its own.
#[test]
fn the_programs_it_was_compared_with_are_rows() {
    let energy = of("comparison", "energy_j");
    assert_eq!(energy.len(), 15, "three programs at five velocities");
    for row in &energy {
        let gpu = row.row.starts_with("by=gpu ");
        let fitted = gpu || row.row.ends_with(" latency_us=100");
        assert_eq!(row.role == Role::Fitted, fitted, "{row:?}");
        assert!(row.deviation().unwrap().abs() < if fitted { 0.03 } else { 0.05 }, "{row:?}");
    }
    // What only one encrypting thread loses is retransmitted; what the parallel program loses is not all explained.
    let again = of("comparison", "retransmission_rate");
    let off = |by: &str| -> Vec<f64> {
        again.iter().filter(|row| row.row.starts_with(by)).filter_map(Row::deviation).collect()
    };
    assert!(off("by=cpu-serial").iter().all(|off| off.abs() < 0.15), "{:?}", off("by=cpu-serial"));
    assert!(off("by=cpu-parallel").iter().any(|off| *off < -0.9), "{:?}", off("by=cpu-parallel"));
}

/// 23.4, 33.7 and 89.5 %: within 5 points, where LECPAES taken for the plain GPU is off by 4 to 23.
#[test]
fn mean_savings_come_out() {
    let savings = of("saving", "mean_saving");
    let published: Vec<_> = savings.iter().filter_map(|row| row.published).collect();
    assert_eq!(published, [23.4, 33.7, 89.5]);
    for row in &savings {
        let (off, naive) = (row.deviation().unwrap().abs(), row.naive_deviation().unwrap().abs());
        assert!(off < 5.0 && 3.0 * off < naive, "{row:?}");
    }
}

#[test]
fn the_windows_size_is_a_guess_with_its_weight() {
    let parameters = fit(&Options::default());
    let window = parameters.iter().find(|one| one.name == "window_kib").unwrap();
    assert_eq!(window.origin, Origin::Guess);
    assert!(window.sensitivity.unwrap().2 > 0.1, "{window:?}");
}

#[test]
fn adaptive_needs_no_more_energy_in_any_row_and_less_on_average() {
    let gains: Vec<f64> = rows("energy_j").iter().map(|row| row.gain().unwrap()).collect();
    assert!(gains.iter().all(|gain| *gain >= -0.01), "{gains:?}");
    assert!(gains.iter().sum::<f64>() / gains.len() as f64 > 0.003, "{gains:?}");
}

#[test]
fn adaptive_is_worse_in_no_other_quantity() {
    for row in rows("retransmission_rate").into_iter().chain(rows("throughput")) {
        assert!(row.gain().unwrap() >= -0.02, "{} {}: {:?}", row.row, row.quantity, row);
    }
}

#[test]
fn same_seed_same_output_and_another_seed_another() {
    let at = |seed| study(&Options { seed, latency_us: vec![500.0], ..Options::default() }).unwrap().rows;
    assert_eq!(at(7), at(7));
    assert_ne!(at(7), at(8));
}

#[test]
fn values_no_table_has_are_simulated_and_compared_with_nothing() {
    let mut options =
        Options { latency_us: vec![800.0], users: 3000, longest_kb: 90.0, ..Options::default() };
    options.platform.window_kib = 200.0;
    let rows = study(&options).unwrap().rows;
    assert_eq!(rows.len(), 3);
    assert!(rows.iter().all(|row| row.published.is_none() && row.simulated.is_finite()));
    assert!(rows[0].simulated > 0.0);
}

#[test]
fn another_machine_has_no_published_figures_and_another_seed_has() {
    let published = |options: Options| study(&options).unwrap().rows[0].published;
    let base = || Options { latency_us: vec![1500.0], runs: 1, ..Options::default() };
    assert_eq!(published(Options { seed: 5, ..base() }), Some(1067.36));
    assert_eq!(published(Options { users: 11_000, ..base() }), None);
    let mut larger = base();
    larger.platform.window_kib = 512.0;
    assert_eq!(published(larger), None);
}

#[test]
fn a_larger_window_retransmits_less_and_a_slower_gpu_more() {
    let rate = |change: fn(&mut Options)| {
        let mut options = Options { latency_us: vec![500.0], ..Options::default() };
        change(&mut options);
        study(&options).unwrap().rows[1].simulated
    };
    let plain = rate(|_| {});
    assert!(rate(|options| options.platform.window_kib *= 4.0) < 0.7 * plain);
    assert!(rate(|options| options.platform.kernel_mb_s = Some(100.0)) > 5.0 * plain);
}

#[test]
fn nonsense_is_refused_by_the_name_of_the_option() {
    let refused = |change: fn(&mut Options)| {
        let mut options = Options::default();
        change(&mut options);
        match study(&options) {
            Err(Error::Option { option, .. }) => option,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(|options| options.latency_us = vec![0.0]), "--latency-us");
    assert_eq!(refused(|options| options.latency_us = vec![f64::NAN]), "--latency-us");
    assert_eq!(refused(|options| options.users = 0), "--users");
    assert_eq!(refused(|options| options.longest_kb = 10.0), "--longest-kb");
    assert_eq!(refused(|options| options.platform.window_kib = 64.0), "--window-kib");
    assert_eq!(refused(|options| options.platform.alpha = -1.0), "--alpha");
    assert_eq!(refused(|options| options.platform.kernel_mb_s = Some(0.0)), "--kernel-mb-s");
    assert_eq!(refused(|options| options.platform.stalls_per_s = 1000.0), "--stalls-per-s");
}

#[test]
fn a_machine_too_slow_for_its_work_is_refused_and_not_simulated_for_hours() {
    let mut options = Options::default();
    options.platform.kernel_mb_s = Some(0.001);
    let error = study(&options).err().unwrap().to_string();
    assert!(error.contains("--kernel-mb-s") && error.contains("tries"), "{error}");
}

#[test]
fn any_options_within_bounds_are_simulated() {
    let mut seed = 1u64;
    let mut pick = |values: &[f64]| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        values[(seed >> 33) as usize % values.len()]
    };
    for _ in 0..60 {
        let longest_kb = pick(&[0.01, 35.0, 150.0, 1000.0]);
        let mut options = Options {
            latency_us: vec![pick(&[1.0, 77.0, 800.0, 100_000.0])],
            users: pick(&[1.0, 2.0, 500.0]) as u32,
            shortest_kb: longest_kb * pick(&[0.1, 1.0]),
            longest_kb,
            runs: 1,
            ..Options::default()
        };
        let platform = &mut options.platform;
        platform.window_kib = (longest_kb * pick(&[1.0, 3.0, 100.0])).max(1.0);
        platform.streams = pick(&[1.0, 2.0, 64.0]) as u32;
        platform.setup_us = pick(&[0.0, 200.0]);
        platform.alpha = pick(&[0.0, 3.0, 10.0]);
        platform.set_clock_us = pick(&[0.0, 50.0]);
        platform.cores = pick(&[1.0, 16.0, 4096.0]) as u32;
        platform.stall_ms = pick(&[0.0, 5.0]);
        let study = study(&options).unwrap();
        assert!(study.rows.iter().all(|row| row.simulated.is_finite() && row.adaptive.unwrap().is_finite()));
        assert!(study.rows[0].simulated > 0.0, "{options:?}");
    }
}

#[test]
fn the_fit_gives_the_parameters_the_study_uses() {
    let fitted = fit(&Options::default());
    let value = |name| fitted.iter().find(|one| one.name == name).unwrap().value;
    let used = k20m::FITTED;
    for (name, used) in [
        ("window_kib", used.window_kib),
        ("setup_us", used.setup_us),
        ("stall_ms", used.stall_ms),
        ("stalls_per_s", used.stalls_per_s),
    ] {
        assert!((value(name) / used - 1.0).abs() < 0.01, "{name}: {} against {used}", value(name));
    }
}

#[test]
fn baselines_are_explained_by_what_is_fitted_on_them() {
    let baseline = k20m::baseline();
    let energy = table("lecpaes-energy");
    let rate = table("lecpaes-retransmission").column("gpu_fixed");
    for ((latency, joules), rate) in
        energy.column("latency_us").into_iter().zip(energy.column("gpu_fixed_J")).zip(rate).skip(1)
    {
        let us = latency + baseline.slack_us + rate * (2.0 * latency + baseline.slack_us);
        let watts = baseline.idle_w + baseline.gpu_w * baseline.alone_us / us;
        assert!((watts * us * k20m::USERS * 1e-6 / joules - 1.0).abs() < 0.01, "{latency}");
    }
}

#[test]
fn contradictions_are_shown_with_their_arithmetic() {
    let remarks = study(&Options { users: 100, ..Options::default() }).unwrap().remarks.join("\n");
    for figure in ["1259.91", "1295.9", "35.99", "0.00233", "0.08675", "29.32", "alpha"] {
        assert!(remarks.contains(figure), "{figure}");
    }
}

#[test]
fn a_gpu_that_gets_no_work_rests() {
    // A message of 1 KB is not worth the GPU's set-up, so the CPU does them all.
    let options = Options {
        shortest_kb: 1.0,
        longest_kb: 1.0,
        latency_us: vec![1500.0],
        runs: 1,
        ..Options::default()
    };
    let row = study(&options).unwrap().rows.remove(0);
    assert!(row.gain().unwrap() > -0.01, "{row:?}");
}
