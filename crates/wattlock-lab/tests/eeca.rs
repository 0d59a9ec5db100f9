//! EECA in virtual time against its tables, and `adaptive` on the same machine.

use std::sync::OnceLock;

use wattlock_lab::papers::eeca::{Options, fit, study};
use wattlock_lab::{Error, Row, Study, table};

/// The paper's own platform, run once for all tests.
fn default() -> &'static Study {
    static STUDY: OnceLock<Study> = OnceLock::new();
    STUDY.get_or_init(|| study(&Options::default()).expect("the paper's own platform"))
}

fn of<'a>(study: &'a Study, experiment: &'a str, quantity: &'a str) -> impl Iterator<Item = &'a Row> {
    study.rows.iter().filter(move |row| row.experiment == experiment && row.quantity == quantity)
}

/// Median and worst of the deviations from what was published.
fn deviations<'a>(rows: impl Iterator<Item = &'a Row>) -> (f64, f64) {
    let mut off: Vec<f64> = rows.filter_map(Row::deviation).map(f64::abs).collect();
    off.sort_by(f64::total_cmp);
    ((off[(off.len() - 1) / 2] + off[off.len() / 2]) / 2.0, off[off.len() - 1])
}

#[test]
fn both_tables_are_predicted() {
    let study = default();
    for (experiment, rows, median_most) in [("cipher", 6, 0.05), ("https", 8, 0.08)] {
        for quantity in ["throughput", "ppw"] {
            assert_eq!(of(study, experiment, quantity).count(), rows);
            let (median, worst) = deviations(of(study, experiment, quantity));
            println!("{experiment} {quantity}: median {median:.3}, worst {worst:.3}");
            assert!(median <= median_most && worst <= 0.15, "{experiment} {quantity}: {median} {worst}");
        }
        let (_, worst) = deviations(of(study, experiment, "power_w"));
        assert!(worst < 0.03, "{experiment} watts: {worst}");
    }
}

#[test]
fn best_gains_are_near_the_published_ones() {
    let study = default();
    let mut gains = 0;
    for row in study.rows.iter().filter(|row| row.row.starts_with("best")) {
        // As ratios of throughput per watt: a gain of 40 % is a ratio of 1.4.
        let ratio = (100.0 + row.simulated) / (100.0 + row.published.expect("published"));
        assert!((ratio - 1.0).abs() < 0.15, "{} {}: {ratio}", row.experiment, row.quantity);
        gains += 1;
    }
    assert_eq!(gains, 6);
}

#[test]
fn adaptive_is_at_least_as_good_in_every_row() {
    let study = default();
    let mut own = Vec::new();
    for row in &study.rows {
        let gain = row.gain().expect("every row has a direction and an adaptive value");
        println!("{} {} {}: {gain:+.4}", row.experiment, row.row, row.quantity);
        if row.own {
            assert!(gain >= -0.01, "{} {} {}: {gain}", row.experiment, row.row, row.quantity);
            own.push(gain);
        } else if !row.row.starts_with("best") {
            assert!(gain >= -0.02, "{} {} {}: {gain}", row.experiment, row.row, row.quantity);
        }
    }
    assert_eq!(own.len(), 14);
    let mean = own.iter().sum::<f64>() / own.len() as f64;
    assert!(mean > 0.01, "mean gain {mean}");
}

#[test]
fn the_call_is_fitted_on_the_accelerators_own_column() {
    let parameters = fit(&Options::default());
    let value = |name| parameters.iter().find(|one| one.name == name).expect(name).value;
    let kbps = table("eeca-table1").column("accelerator_kBps");
    let by_hand = 8.0 * 1024.0 * 1e3 / kbps[0];
    assert!((14.7..14.8).contains(&by_hand));
    // What is not the call is the machine's own time for 1 KiB.
    let machine_us = 1024.0 * 1e3 / value("accelerator");
    assert!((value("call") + machine_us - by_hand).abs() < 1e-9);
    assert!(value("accelerator") > kbps[3] * 0.98 && value("accelerator") < kbps[5]);
    for one in &parameters {
        assert!(one.determined != one.sensitivity.is_some(), "{one:?}");
    }
}

#[test]
fn same_seed_same_output_and_another_seed_almost_the_same() {
    let with = |seed| {
        let options =
            Options { seed, block_kib: vec![16.0, 64.0], page_kib: vec![32.0], ..Options::default() };
        study(&options).expect("sensible").rows
    };
    assert_eq!(with(5), with(5));
    let (one, other) = (with(5), with(6));
    assert_ne!(one, other);
    for (a, b) in one.iter().zip(&other) {
        assert!((a.simulated / b.simulated - 1.0).abs() < 0.05, "{a:?} {b:?}");
    }
}

#[test]
fn sizes_no_table_has_lie_between_their_neighbours() {
    let options =
        Options { block_kib: vec![16.0, 40.0, 64.0, 1024.0], page_kib: vec![300.0], ..Options::default() };
    let study = &study(&options).expect("sensible");
    let rates: Vec<&Row> = of(study, "cipher", "throughput").collect();
    assert!(rates[0].simulated < rates[1].simulated && rates[1].simulated < rates[2].simulated);
    let published: Vec<bool> = rates.iter().map(|row| row.published.is_some()).collect();
    assert_eq!(published, [true, false, true, false]);
    let page = of(study, "https", "throughput").next().expect("one page");
    assert!(page.published.is_none() && page.simulated > 1984.0 && page.simulated < 7175.0, "{page:?}");
}

#[test]
fn a_changed_platform_changes_the_outcome_and_has_no_published_figures() {
    let rate = |options: &Options| {
        let study = study(options).expect("sensible");
        let row = study.rows[0].clone();
        assert_eq!(row.quantity, "throughput");
        row
    };
    let base = Options { block_kib: vec![64.0], ..Options::default() };
    let published = rate(&base);
    assert!(published.published.is_some());
    let fewer = rate(&Options { cores: 4, ..base.clone() });
    assert!(fewer.published.is_none() && fewer.simulated < published.simulated);
    let never = rate(&Options { threshold_kib: 1024.0, ..base.clone() });
    assert!((never.simulated / 6_049_740.0 - 1.0).abs() < 0.01, "the instruction set alone: {never:?}");
    let dearer = rate(&Options { call_us: Some(60.0), ..base.clone() });
    assert!(dearer.simulated < published.simulated);
    let alone = rate(&Options { cores: 1, blocks_in_hand: 1, full_at: 1, window: 1, ..base });
    assert!(alone.simulated > 0.0 && alone.adaptive.is_some_and(|rate| rate > 0.0));
}

#[test]
fn nonsense_is_refused_by_the_options_name() {
    let base = Options::default();
    for (option, options) in [
        ("--block-kib", Options { block_kib: vec![0.0], ..base.clone() }),
        ("--block-kib", Options { block_kib: vec![f64::NAN], ..base.clone() }),
        ("--page-kib", Options { page_kib: vec![-1.0], ..base.clone() }),
        ("--page-kib", Options { page_kib: vec![1e9], ..base.clone() }),
        ("--cores", Options { cores: 0, ..base.clone() }),
        ("--concurrency", Options { concurrency: 0, ..base.clone() }),
        ("--blocks-in-hand", Options { blocks_in_hand: 0, ..base.clone() }),
        ("--full-at", Options { full_at: 65, ..base.clone() }),
        ("--window", Options { window: 0, ..base.clone() }),
        ("--call-us", Options { call_us: Some(f64::INFINITY), ..base.clone() }),
        ("--cpu-speed", Options { cpu_speed: 0.0, ..base.clone() }),
    ] {
        match study(&options) {
            Err(Error::Option { option: named, bounds }) => {
                assert_eq!(named, option);
                assert!(bounds.contains(" to "), "{bounds}");
            }
            other => panic!("{option}: {:?}", other.map(|study| study.rows.len())),
        }
        assert!(fit(&options).is_empty());
    }
}

#[test]
fn contradictions_come_with_their_arithmetic() {
    let remarks = default().remarks.join("\n");
    for figure in ["1831", "1984", "901 %", "966 %"] {
        assert!(remarks.contains(figure), "{figure} in\n{remarks}");
    }
}

#[test]
fn a_crowd_of_connections_has_watts_and_a_throughput_of_its_own() {
    let rows = |concurrency| {
        let options = Options { page_kib: vec![16.0], concurrency, ..Options::default() };
        study(&options).expect("sensible").rows
    };
    let (few, many) = (rows(64), rows(20_000));
    for (few, many) in few.iter().zip(&many) {
        let ratio = many.adaptive.unwrap() / few.adaptive.unwrap();
        assert!((0.8..1.2).contains(&ratio), "{many:?}");
    }
}
