//! Streams whose velocity changes: what our controller claims against LECPAES's rule.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use wattlock_lab::papers::velocity::{Options, Pattern, series, study};
use wattlock_lab::papers::{k20m, lecpaes};
use wattlock_lab::{Error, Row};

fn rows(options: &Options, quantity: &str) -> Vec<Row> {
    let rows = study(options).unwrap().rows;
    rows.into_iter().filter(|row| row.quantity == quantity).collect()
}

/// The machine without stalls: what happens then is the controller's doing.
fn calm() -> k20m::StreamPlatform {
    k20m::StreamPlatform { stalls_per_s: 0.0, ..k20m::StreamPlatform::default() }
}

#[test]
fn adaptive_needs_less_energy_on_average_and_hardly_more_on_any_pattern() {
    let gains: Vec<f64> =
        rows(&Options::default(), "energy_j").iter().map(|row| row.gain().unwrap()).collect();
    assert_eq!(gains.len(), Pattern::ALL.len());
    assert!(gains.iter().all(|gain| *gain >= -0.015), "{gains:?}");
    assert!(gains.iter().sum::<f64>() / gains.len() as f64 > 0.005, "{gains:?}");
}

#[test]
fn adaptive_retransmits_about_as_often() {
    let rows = rows(&Options::default(), "retransmission_rate");
    let gains: Vec<f64> = rows.iter().map(|row| row.gain().unwrap()).collect();
    assert!(gains.iter().all(|gain| *gain > -0.10), "{gains:?}");
    assert!(gains.iter().sum::<f64>() / gains.len() as f64 > -0.03, "{gains:?}");
}

#[test]
fn no_window_of_many_messages_overflows_at_a_velocity_that_the_highest_clock_sustains() {
    for latency in [230.0, 260.0, 300.0, 350.0, 400.0, 450.0, 500.0, 600.0, 800.0, 1200.0] {
        let platform = k20m::StreamPlatform { window_kib: 2048.0, ..calm() };
        let options = lecpaes::Options { latency_us: vec![latency], platform, ..lecpaes::Options::default() };
        let rate = lecpaes::study(&options).unwrap().rows.remove(1);
        assert_eq!(rate.adaptive, Some(0.0), "{latency}");
    }
}

#[test]
fn in_a_window_of_few_messages_it_overflows_less_than_by_fill_level() {
    for latency in [250.0, 300.0, 350.0, 400.0] {
        let options =
            lecpaes::Options { latency_us: vec![latency], platform: calm(), ..lecpaes::Options::default() };
        let rate = lecpaes::study(&options).unwrap().rows.remove(1);
        assert!(rate.gain().unwrap() > 0.2, "{latency}: {rate:?}");
    }
}

#[test]
fn a_constant_velocity_that_one_clock_sustains_changes_no_clock() {
    let steady = Options {
        pattern: vec![Pattern::Steady],
        platform: calm(),
        mean_mb_s: 40.0,
        runs: 1,
        ..Options::default()
    };
    // Down from the clock it is found at.
    assert_eq!(rows(&steady, "clock_changes")[0].adaptive, Some(1.0));
}

#[test]
fn clocks_that_take_turns_change_less_often_than_the_fill_level_does() {
    for row in rows(&Options::default(), "clock_changes") {
        assert!(row.adaptive.unwrap() <= row.simulated, "{row:?}");
    }
}

#[test]
fn a_series_covers_its_stream() {
    let options = Options { pattern: vec![Pattern::Day], points: 100, ..Options::default() };
    let series = series(&options).unwrap();
    assert_eq!(series.iter().map(|one| one.policy).collect::<Vec<_>>(), ["lecpaes", "adaptive"]);
    for one in series {
        assert!((100..=110).contains(&one.samples.len()));
        assert!(one.samples.iter().all(|at| (0.0..=1.0).contains(&at.fill) && at.watts > 40.0));
        assert!(one.samples.iter().all(|at| (0.0..=6.0).contains(&at.clock)));
        let fastest = one.samples.iter().fold(0.0f64, |most, at| most.max(at.velocity));
        assert!(fastest > 2.0 * options.mean_mb_s);
    }
}

#[test]
fn same_seed_same_output_and_another_seed_another() {
    let at = |seed| study(&Options { seed, seconds: 3.0, ..Options::default() }).unwrap().rows;
    assert_eq!(at(3), at(3));
    assert_ne!(at(3), at(4));
}

#[test]
fn nonsense_is_refused_by_the_name_of_the_option() {
    let refused = |options: Options| match study(&options) {
        Err(Error::Option { option, .. }) => option,
        other => panic!("{other:?}"),
    };
    let sane = Options::default;
    assert_eq!(refused(Options { seconds: 0.0, ..sane() }), "--seconds");
    assert_eq!(refused(Options { seconds: 1e5, mean_mb_s: 1e5, ..sane() }), "--seconds");
    assert_eq!(refused(Options { mean_mb_s: f64::NAN, ..sane() }), "--mean-mb-s");
    assert_eq!(refused(Options { points: 1, ..sane() }), "--points");
    assert_eq!(refused(Options { longest_kb: 1000.0, ..sane() }), "--window-kib");
}
