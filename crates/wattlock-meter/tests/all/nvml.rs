//! NVIDIA boards, by a library that is not NVIDIA's: built here with the C compiler, loaded by its path.
#![cfg(feature = "nvml")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::common;
use crate::fake;

use std::fs;

use common::{Recorded, SECOND, joules};
use fake::Fake;
use wattlock_meter::{Boundary, Meter, Quality, Value};

const NOT_SUPPORTED: i64 = -3;
const LOST: i64 = -15;

trait Board {
    fn meter(&self, machine: &Recorded) -> Meter;
}

impl Board for Fake {
    fn meter(&self, machine: &Recorded) -> Meter {
        let mut places = machine.places();
        places.boards = Some(wattlock_meter::boards);
        places.nvml = Some(self.library().into());
        Meter::discover(&places)
    }
}

fn nothing() -> Recorded {
    Recorded::new(include_str!("../trees/nothing.txt"))
}

#[test]
fn a_board_with_a_counter_is_measured_and_one_without_is_derived_from_its_power() {
    let fake = Fake::new(&[(5_000_000, 300_000), (NOT_SUPPORTED, 80_000)]);
    let mut meter = fake.meter(&nothing());
    assert_eq!(meter.notices(), [] as [&str; 0]);
    meter.start(0);
    fake.set(&[(5_300_000, 300_000), (NOT_SUPPORTED, 120_000)]);
    let reading = meter.finish(SECOND);
    let qualities: Vec<Quality> =
        reading.figures.iter().filter_map(|figure| Some(figure.metered()?.quality())).collect();
    assert_eq!(qualities, [Quality::Measured, Quality::Derived]);
    assert_eq!((joules(&reading, "gpu-0 Fake H000"), joules(&reading, "gpu-1 Fake H000")), (300.0, 100.0));
    let total = reading.total().unwrap();
    assert_eq!((total.value.joules(), total.value.quality()), (400.0, Quality::Derived));
    assert_eq!(total.boundaries, [Boundary::Board]);
}

#[test]
fn a_board_beside_a_modelled_processor_is_not_added_to_it() {
    let fake = Fake::new(&[(0, 0)]);
    let machine = nothing();
    let mut meter = fake.meter(&machine);
    meter.start(0);
    fake.set(&[(70_000, 0)]);
    machine.set("proc/stat", "cpu  200 0 200 800 0 0 0 0 0 0\n");
    let reading = meter.finish(SECOND);
    assert_eq!(reading.total().unwrap().value.joules(), 70.0);
    assert!(reading.modelled().is_some());
}

#[test]
fn a_board_that_is_lost_in_the_middle_leaves_a_lower_bound() {
    let fake = Fake::new(&[(1_000, 1)]);
    let mut meter = fake.meter(&nothing());
    meter.start(0);
    fake.set(&[(51_000, 1)]);
    meter.poll(SECOND);
    fake.set(&[(LOST, LOST)]);
    let reading = meter.finish(2 * SECOND);
    let figure = &reading.figures[0];
    assert_eq!((figure.window.to_ns, figure.metered().unwrap().joules()), (SECOND, 50.0));
    assert!(figure.metered().unwrap().at_least().is_some());
}

#[test]
fn a_driver_that_is_reloaded_sets_its_counter_back_and_is_seen_to() {
    let fake = Fake::new(&[(900_000, 1)]);
    let mut meter = fake.meter(&nothing());
    meter.start(0);
    fake.set(&[(10, 1)]);
    meter.poll(SECOND);
    fake.set(&[(20_010, 1)]);
    let reading = meter.finish(2 * SECOND);
    let figure = reading.figures[0].metered().unwrap().clone();
    assert_eq!((figure.joules(), figure.at_least()), (20.0, Some("it went backwards")));
}

#[test]
fn a_board_that_tells_neither_is_no_source() {
    let fake = Fake::new(&[(NOT_SUPPORTED, NOT_SUPPORTED), (7, 7)]);
    let meter = fake.meter(&nothing());
    let parts: Vec<&str> = meter.sources().map(|about| about.part.as_str()).collect();
    assert_eq!(parts, ["gpu-1 Fake H000"]);
}

#[test]
fn a_library_without_a_driver_is_told_once_and_a_missing_default_is_not_told() {
    let fake = Fake::new(&[]);
    fs::remove_file(fake.path("boards")).unwrap();
    let meter = fake.meter(&nothing());
    assert_eq!(meter.notices().len(), 1);
    assert!(meter.notices()[0].starts_with("nvml: "));
    let mut places = nothing().places();
    places.boards = Some(wattlock_meter::boards);
    places.nvml = Some("/nonexistent/libnvidia-ml.so.1".into());
    assert_eq!(Meter::discover(&places).notices().len(), 1, "who names a library wants to know");
    let mut reading = Meter::of(Vec::new());
    reading.start(0);
    assert!(!reading.finish(1).figures.iter().any(|figure| matches!(figure.value, Value::Metered(_))));
}
