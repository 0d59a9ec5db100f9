//! EECA in virtual time against its tables, and `adaptive` on the same machine.

use std::sync::OnceLock;

use wattlock_lab::papers::eeca::{Options, fit, study};
use wattlock_lab::{Error, Origin, Role, Row, Study, table};

/// What `adaptive` loses at most against the published rule: docs/research/lab.md.
const LEAST: f64 = -0.25;

/// The paper's own platform, run once for all tests.
fn default() -> &'static Study {
    static STUDY: OnceLock<Study> = OnceLock::new();
    STUDY.get_or_init(|| study(&Options::default()).expect("the paper's own platform"))
}

fn of<'a>(study: &'a Study, experiment: &'a str, quantity: &'a str) -> impl Iterator<Item = &'a Row> {
    study.rows.iter().filter(move |row| row.experiment == experiment && row.quantity == quantity)
}

/// Median and worst size of deviations.
fn deviations(off: impl Iterator<Item = f64>) -> (f64, f64) {
    let mut off: Vec<f64> = off.map(f64::abs).collect();
    off.sort_by(f64::total_cmp);
    ((off[(off.len() - 1) / 2] + off[off.len() / 2]) / 2.0, off[off.len() - 1])
}

/// Above T, where the model could miss. It has to be nearer than the naive predictor, in the median of each table.
#[test]
fn what_lies_above_the_threshold_is_predicted_and_nearer_than_naively() {
    let study = default();
    for (experiment, rows) in [("cipher", 3), ("https", 6)] {
        for quantity in ["throughput", "ppw"] {
            let predicted = || of(study, experiment, quantity).filter(|row| row.role == Role::Predicted);
            assert_eq!(predicted().count(), rows, "{experiment}");
            let (median, worst) = deviations(predicted().filter_map(Row::deviation));
            let (naive, _) = deviations(predicted().filter_map(Row::naive_deviation));
            println!("{experiment} {quantity}: median {median:.3}, worst {worst:.3}, naive {naive:.3}");
            assert!(median < 0.10 && worst < 0.15, "{experiment} {quantity}: {median} {worst}");
            assert!(naive > 1.25 * median, "{experiment} {quantity}: {median}, naive {naive}");
        }
        let watts = of(study, experiment, "power_w").filter_map(Row::deviation);
        assert!(deviations(watts).1 < 0.03, "{experiment}");
    }
}

/// At T and below the rule leaves everything to the instruction set: its column comes back and is called echoed.
#[test]
fn at_the_threshold_and_below_the_instruction_column_is_echoed() {
    let study = default();
    for (experiment, name) in [("cipher", "cipher baseline"), ("https", "https instruction")] {
        let echoed: Vec<&Row> =
            of(study, experiment, "throughput").filter(|row| row.role == Role::Echoed).collect();
        assert_eq!(echoed.len(), if experiment == "cipher" { 3 } else { 2 });
        for row in echoed {
            let column = format!("baseline=instruction {}", row.row);
            let baseline = of(study, name, "throughput").find(|one| one.row == column).expect("its baseline");
            assert!((row.simulated / baseline.published.expect("published") - 1.0).abs() < 0.02, "{row:?}");
            assert_eq!(row.naive, None);
        }
    }
}

/// Table 2's software and accelerator columns follow from table 1 and do not come out; they are shown.
#[test]
fn baselines_that_the_model_misses_are_rows() {
    let study = default();
    for (experiment, from, to) in [("https software", 0.15, 0.30), ("https accelerator", 0.35, 0.55)] {
        let rows = || of(study, experiment, "throughput");
        assert_eq!(rows().count(), 8);
        assert!(rows().all(|row| row.role == Role::Predicted && row.naive.is_some()));
        let (median, _) = deviations(rows().filter_map(Row::deviation));
        assert!((from..to).contains(&median), "{experiment}: {median}");
    }
    let given =
        of(study, "https instruction", "throughput").chain(of(study, "cipher baseline", "throughput"));
    assert!(given.filter(|row| row.role == Role::Predicted).all(|row| row.row.contains("accelerator")));
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

/// A thread that waits compares what its own request takes here and there, and sees by its latency alone how many others
/// the accelerator has: the published rule, which asks the driver, is ahead in the rows that the page names.
#[test]
fn adaptive_loses_to_the_rule_where_threads_wait_for_the_accelerator_as_the_page_says() {
    let study = default();
    let own = study.rows.iter().filter(|row| row.own && row.adaptive.is_some());
    let gains: Vec<(f64, &Row)> = own.map(|row| (row.gain().expect("a direction"), row)).collect();
    assert_eq!(gains.len(), 14);
    for (gain, row) in &gains {
        println!("{} {} {}: {gain:+.4}", row.experiment, row.row, row.quantity);
        assert!(*gain >= LEAST, "{} {} {}: {gain}", row.experiment, row.row, row.quantity);
    }
    let worst = gains.iter().map(|one| one.0).fold(0.0, f64::min);
    assert!(worst < LEAST + 0.05, "{worst}: the page and this bound can be better");
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
        assert_eq!(one.origin == Origin::Guess, one.sensitivity.is_some(), "{one:?}");
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
