//! Meters of recorded machines: what is found, what is added, and what happens when sources misbehave.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::common;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use common::{Recorded, SECOND, joules};
use wattlock_meter::{Boundary, Events, Meter, Quality, Value};

const INTEL: &str = include_str!("../trees/intel-two-sockets.txt");
const AMD: &str = include_str!("../trees/amd.txt");
const HWMON: &str = include_str!("../trees/hwmon-only.txt");
const NOTHING: &str = include_str!("../trees/nothing.txt");

const PACKAGE_0: &str = "sys/class/powercap/intel-rapl:0/energy_uj";
const PACKAGE_1: &str = "sys/class/powercap/intel-rapl:1/energy_uj";
const DRAM_0: &str = "sys/class/powercap/intel-rapl:0:2/energy_uj";
const DRAM_1: &str = "sys/class/powercap/intel-rapl:1:2/energy_uj";
const PSYS: &str = "sys/class/powercap/intel-rapl:2/energy_uj";

/// Everything in the Intel machine moves for a second: packages 50 and 60 J, memory 5 and 6, the platform 200.
fn move_all(machine: &Recorded) {
    machine.add(PACKAGE_0, 50_000_000);
    machine.add("sys/class/powercap/intel-rapl:0:0/energy_uj", 30_000_000);
    machine.add("sys/class/powercap/intel-rapl:0:1/energy_uj", 1_000_000);
    machine.add(DRAM_0, 5_000_000);
    machine.add(DRAM_1, 6_000_000);
    machine.add(PSYS, 200_000_000);
}

#[test]
fn two_sockets_with_sub_domains_are_found_and_added_once() {
    let machine = Recorded::new(INTEL);
    let mut meter = machine.meter();
    assert_eq!(meter.notices(), [] as [&str; 0]);
    assert_eq!(
        meter.sources().count(),
        7,
        "three zones of socket 0, its memory, socket 1 with memory, the platform"
    );
    meter.start(0);
    move_all(&machine);
    // Package 1 wraps in the middle: 0.32885 J up to its end, the rest after.
    machine.set(PACKAGE_1, "59671150");
    let reading = meter.finish(SECOND);
    assert!((joules(&reading, "package-1") - 60.0).abs() < 1e-6);
    assert!((joules(&reading, "package-0 core") - 30.0).abs() < 1e-6);
    assert!((joules(&reading, "psys") - 200.0).abs() < 1e-6);
    let total = reading.total().unwrap();
    assert!((total.value.joules() - 121.0).abs() < 1e-6, "{total:?}");
    assert_eq!(total.value.quality(), Quality::Measured);
    assert_eq!(total.boundaries, [Boundary::Package, Boundary::Dram]);
    assert_eq!(reading.modelled(), None, "a model has nothing to say where a counter is");
}

#[test]
fn a_socket_that_disappears_leaves_a_lower_bound() {
    let machine = Recorded::new(INTEL);
    let mut meter = machine.meter();
    meter.start(0);
    move_all(&machine);
    machine.set(PACKAGE_1, "59671150");
    meter.poll(SECOND);
    machine.remove("sys/class/powercap/intel-rapl:1");
    machine.add(PACKAGE_0, 50_000_000);
    let reading = meter.finish(2 * SECOND);
    let lost = reading.figures.iter().find(|figure| figure.part == "package-1").unwrap();
    assert_eq!(lost.window.to_ns, SECOND);
    assert!(lost.metered().unwrap().at_least().unwrap().contains("could not be read any more"));
    let total = reading.total().unwrap().value;
    assert!((total.joules() - 171.0).abs() < 1e-6 && total.at_least().is_some());
}

#[test]
fn a_counter_that_stopped_long_ago_has_no_figure_and_no_zero() {
    let machine = Recorded::new(INTEL);
    let mut meter = machine.meter();
    meter.start(0);
    machine.add(PACKAGE_0, 50_000_000);
    let reading = meter.finish(SECOND);
    let dead = reading.figures.iter().find(|figure| figure.part == "package-1").unwrap();
    assert!(matches!(&dead.value, Value::Unknown(why) if why.contains("did not move")));
    assert!(reading.total().unwrap().value.at_least().unwrap().contains("package-1 is missing"));
}

#[test]
fn polling_is_asked_for_often_enough_for_the_smallest_range() {
    let machine = Recorded::new(INTEL);
    // The platform's 262 kJ at 20 kW: 13 s. Memory's 65.7 kJ at 2 kW would last half a minute.
    assert_eq!(machine.meter().longest_gap_ns().unwrap() / SECOND, 13);
    machine.remove("sys/class/powercap/intel-rapl:2");
    assert_eq!(machine.meter().longest_gap_ns().unwrap() / SECOND, 32);
    assert_eq!(Recorded::new(HWMON).meter().longest_gap_ns(), None);
}

#[test]
fn polls_come_at_ten_hertz_at_most() {
    let machine = Recorded::new(INTEL);
    let mut meter = machine.meter();
    meter.start(0);
    machine.add(PACKAGE_0, 1_000_000);
    meter.poll(SECOND / 20); // Too soon: does not see the counter, which goes back meanwhile.
    machine.set(PACKAGE_0, "1002000000");
    let reading = meter.finish(SECOND / 2);
    assert!((joules(&reading, "package-0") - 2.0).abs() < 1e-6);
}

#[test]
fn amd_counts_by_powercap_and_its_own_driver_is_not_added() {
    let machine = Recorded::new(AMD);
    let mut meter = machine.meter();
    let unused: Vec<&str> = meter
        .unused()
        .iter()
        .map(|(about, why)| {
            assert_eq!(why, "powercap counts the same");
            about.source
        })
        .collect();
    assert_eq!(unused, ["hwmon", "hwmon"]);
    meter.start(0);
    machine.add(PACKAGE_0, 8_000_000);
    machine.add("sys/class/hwmon/hwmon3/energy2_input", 8_000_000);
    let total = meter.finish(SECOND).total().unwrap();
    assert_eq!((total.value.joules(), total.parts), (8.0, vec!["package-0".to_owned()]));
}

#[test]
fn hwmon_counts_a_package_where_nothing_else_does() {
    let machine = Recorded::new(AMD);
    machine.remove("sys/class/powercap");
    let mut meter = machine.meter();
    meter.start(0);
    machine.add("sys/class/hwmon/hwmon3/energy2_input", 8_000_000);
    let total = meter.finish(SECOND).total().unwrap();
    assert_eq!((total.value.joules(), total.sources), (8.0, vec!["hwmon"]));
}

#[test]
fn power_sensors_are_integrated_and_only_the_node_is_the_total() {
    let machine = Recorded::new(HWMON);
    let mut meter = machine.meter();
    meter.start(0);
    meter.poll(SECOND);
    machine.set("sys/class/hwmon/hwmon0/power1_average", "160000000");
    let reading = meter.finish(2 * SECOND);
    let node = reading.figures.iter().find(|figure| figure.boundary == Boundary::Node).unwrap();
    assert!(node.note.as_ref().unwrap().contains("3 samples"));
    assert!(
        (joules(&reading, "amdgpu hwmon1 PPT") - 60.0).abs() < 1e-6,
        "the average is taken, not the input"
    );
    assert!((joules(&reading, "ina219 hwmon2 1") - 10.0).abs() < 1e-6);
    let total = reading.total().unwrap();
    assert!((total.value.joules() - 260.0).abs() < 1e-6);
    assert_eq!((total.value.quality(), total.boundaries), (Quality::Derived, vec![Boundary::Node]));
}

#[test]
fn missing_permission_is_told_once_and_is_no_error() {
    let machine = Recorded::new(INTEL);
    let mut places = machine.places();
    places.tree = machine.denying("energy_uj");
    let mut meter = Meter::discover(&places);
    assert_eq!(meter.notices().len(), 1, "{:?}", meter.notices());
    assert!(meter.notices()[0].starts_with("powercap: 7 of its counters cannot be read (permission denied)"));
    meter.start(0);
    machine.set("proc/stat", "cpu  150 0 100 850 0 0 0 0 0 0\ncpu0 1\ncpu1 1\n");
    let reading = meter.finish(SECOND);
    assert_eq!(reading.total(), None);
    let modelled = reading.modelled().unwrap();
    assert!(modelled.to_string().contains("modelled") && modelled.model().contains("Ice Lake"));
}

#[test]
fn a_machine_without_counters_has_modelled_joules_that_follow_its_load() {
    let machine = Recorded::new(NOTHING);
    let mut meter = machine.meter();
    assert_eq!((meter.sources().count(), meter.notices().len()), (0, 0));
    let mut during = |stat: &str| {
        machine.set("proc/stat", "cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1\ncpu1 1\n");
        meter.start(0);
        machine.set("proc/stat", stat);
        let reading = meter.finish(SECOND);
        assert_eq!(reading.total(), None);
        reading.modelled().unwrap().clone()
    };
    let calm = during("cpu  100 0 100 1000 0 0 0 0 0 0\n");
    let busy = during("cpu  200 0 200 800 0 0 0 0 0 0\n");
    let watts = 2.0 * 3.38;
    assert!((calm.range().expected - 0.12 * watts).abs() < 1e-6 && calm.above_idle().expected == 0.0);
    assert!((busy.range().expected - 1.02 * watts).abs() < 1e-6);
    for modelled in [calm, busy] {
        let range = modelled.range();
        assert!(range.low < range.expected && range.expected < range.high && range.low >= 0.0);
    }
}

#[test]
fn a_window_within_a_clock_tick_has_no_modelled_joules() {
    let machine = Recorded::new(NOTHING);
    let mut meter = machine.meter();
    meter.start(0);
    let reading = meter.finish(SECOND / 200);
    assert!(matches!(&reading.figures[0].value, Value::Unknown(why) if why.contains("clock tick")));
}

/// Events that count what a test says, of any type, and note what was opened.
#[derive(Clone, Default)]
struct Fake {
    count: Arc<AtomicU64>,
    opened: Arc<Mutex<Vec<(u32, u64, u32)>>>,
    denied: bool,
}

impl Events for Fake {
    fn open(
        &self,
        kind: u32,
        config: u64,
        cpu: u32,
    ) -> io::Result<Box<dyn FnMut() -> io::Result<u64> + Send>> {
        if self.denied {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.opened.lock().unwrap().push((kind, config, cpu));
        let count = self.count.clone();
        Ok(Box::new(move || Ok(count.load(Ordering::Relaxed))))
    }
}

#[test]
fn perf_counts_where_powercap_may_not_be_read() {
    let machine = Recorded::new(INTEL);
    let fake = Fake::default();
    let mut places = machine.places();
    places.tree = machine.denying("energy_uj");
    places.events = Some(Box::new(fake.clone()));
    let mut meter = Meter::discover(&places);
    let opened = fake.opened.lock().unwrap().clone();
    assert_eq!(opened, [(13, 2, 0), (13, 2, 40), (13, 5, 0), (13, 3, 0), (13, 3, 40)]);
    meter.start(0);
    fake.count.store(1 << 32, Ordering::Relaxed); // A joule is 2^32 counts.
    let total = meter.finish(SECOND).total().unwrap();
    assert_eq!((total.value.joules(), total.sources), (4.0, vec!["perf"]));
    assert_eq!(total.parts, ["package-0", "package-1", "package-0 dram", "package-1 dram"]);
}

#[test]
fn perf_is_not_added_where_powercap_counts() {
    let machine = Recorded::new(INTEL);
    let fake = Fake::default();
    let mut places = machine.places();
    places.events = Some(Box::new(fake.clone()));
    let mut meter = Meter::discover(&places);
    assert_eq!(meter.unused().len(), 5);
    meter.start(0);
    move_all(&machine);
    machine.set(PACKAGE_1, "59671150");
    fake.count.store(1 << 40, Ordering::Relaxed);
    let total = meter.finish(SECOND).total().unwrap();
    assert!((total.value.joules() - 121.0).abs() < 1e-6);
    assert_eq!(total.sources, ["powercap"]);
}

#[test]
fn both_permissions_missing_are_one_line_each() {
    let machine = Recorded::new(INTEL);
    let mut places = machine.places();
    places.tree = machine.denying("energy_uj");
    places.events = Some(Box::new(Fake { denied: true, ..Fake::default() }));
    let meter = Meter::discover(&places);
    let sources: Vec<&str> = meter.notices().iter().filter_map(|line| line.split(':').next()).collect();
    assert_eq!(sources, ["powercap", "perf"]);
    assert_eq!(meter.sources().count(), 0);
}

#[test]
fn a_counter_without_a_range_counts_until_it_falls() {
    for range in [None, Some("0"), Some("nonsense")] {
        let machine = Recorded::new(NOTHING);
        machine.set("sys/class/powercap/intel-rapl:0/name", "package-0");
        machine.set(PACKAGE_0, "1000000");
        if let Some(range) = range {
            machine.set("sys/class/powercap/intel-rapl:0/max_energy_range_uj", range);
        }
        let mut meter = machine.meter();
        assert_eq!(meter.longest_gap_ns(), None);
        meter.start(0);
        machine.set(PACKAGE_0, "6000000");
        let whole = meter.finish(SECOND).total().unwrap().value;
        assert_eq!((whole.joules(), whole.at_least()), (5.0, None));
        machine.set(PACKAGE_0, "1");
        let fallen = meter.finish(2 * SECOND).total().unwrap().value;
        assert_eq!((fallen.joules(), fallen.at_least()), (5.0, Some("it went backwards")));
    }
}

#[test]
fn a_processors_own_graphics_are_not_added_to_it() {
    let machine = Recorded::new(HWMON);
    machine.remove("sys/class/hwmon/hwmon0");
    machine.set("sys/class/hwmon/hwmon1/in1_input", "900");
    let mut alone = machine.meter();
    alone.start(0);
    let total = alone.finish(SECOND).total().unwrap();
    assert_eq!((total.value.joules(), total.boundaries), (30.0, vec![Boundary::Package]));
    machine.set("sys/class/powercap/intel-rapl:0/name", "package-0");
    machine.set(PACKAGE_0, "1000000");
    let mut beside = machine.meter();
    beside.start(0);
    machine.set(PACKAGE_0, "29000000");
    let total = beside.finish(SECOND).total().unwrap();
    assert_eq!((total.value.joules(), total.sources), (28.0, vec!["powercap"]));
}

#[test]
fn a_cards_chip_is_inside_its_card() {
    let machine = Recorded::new(NOTHING);
    machine.set("sys/class/hwmon/hwmon0/name", "xe");
    for (number, label) in [("1", "card"), ("2", "pkg")] {
        machine.set(&format!("sys/class/hwmon/hwmon0/energy{number}_label"), label);
        machine.set(&format!("sys/class/hwmon/hwmon0/energy{number}_input"), "1000000");
    }
    let mut meter = machine.meter();
    meter.start(0);
    machine.add("sys/class/hwmon/hwmon0/energy1_input", 9_000_000);
    machine.add("sys/class/hwmon/hwmon0/energy2_input", 7_000_000);
    let reading = meter.finish(SECOND);
    assert!((joules(&reading, "xe hwmon0 pkg") - 7.0).abs() < 1e-9, "shown");
    assert!((reading.total().unwrap().value.joules() - 9.0).abs() < 1e-9, "and not added");
}

#[test]
fn a_machines_power_is_not_one_of_its_processors() {
    let machine = Recorded::new(NOTHING);
    machine.set("sys/class/hwmon/hwmon0/name", "ibmpowernv");
    for (number, label, power) in [("1", "System", "500000000"), ("10", "Proc 0", "90000000")] {
        machine.set(&format!("sys/class/hwmon/hwmon0/power{number}_label"), label);
        machine.set(&format!("sys/class/hwmon/hwmon0/power{number}_input"), power);
    }
    let mut meter = machine.meter();
    meter.start(0);
    let total = meter.finish(SECOND).total().unwrap();
    assert_eq!((total.value.joules(), total.boundaries), (500.0, vec![Boundary::Node]));
}

#[test]
fn files_full_of_nonsense_are_no_sources() {
    let machine = Recorded::new(NOTHING);
    for (path, content) in [
        ("sys/class/powercap/intel-rapl:0/name", "package-0"),
        ("sys/class/powercap/intel-rapl:0/energy_uj", "-5"),
        ("sys/class/powercap/intel-rapl:0/max_energy_range_uj", "262143328850"),
        ("sys/class/powercap/intel-rapl:1/name", "package-1"),
        ("sys/class/powercap/intel-rapl:1/energy_uj", "0x5"),
        ("sys/class/powercap/intel-rapl:2/name", "package-2"),
        ("sys/bus/event_source/devices/power/events/energy-ram", "event=0x03"),
        ("sys/bus/event_source/devices/power/events/energy-ram.unit", "Joules"),
        ("sys/bus/event_source/devices/power/events/energy-ram.scale", "inf"),
        ("sys/bus/event_source/devices/power/type", "13"),
        ("sys/bus/event_source/devices/power/cpumask", "x"),
        ("sys/bus/event_source/devices/power/events/energy-pkg", "event=zz"),
        ("sys/class/hwmon/hwmon0/power1_input", "999999999999999999999999"),
    ] {
        machine.set(path, content);
    }
    let mut meter = machine.meter();
    assert_eq!(meter.sources().count(), 0);
    meter.start(0);
    assert_eq!(meter.finish(SECOND).total(), None);
}

/// Opens the running kernel's own events, if it has any and lets us. What they say is the machine's business; that a
/// reading comes back without a wrong zero is ours.
#[test]
fn the_running_machine_is_met_as_it_is() {
    let mut meter = Meter::discover(&wattlock_meter::Places::here());
    meter.start(0);
    let from = std::time::Instant::now();
    std::thread::sleep(std::time::Duration::from_millis(120));
    let reading = meter.finish(from.elapsed().as_nanos() as u64);
    for figure in &reading.figures {
        if let Some(metered) = figure.metered() {
            assert!(metered.joules() > 0.0, "{figure:?}");
        }
    }
    assert!(reading.has_processor() || reading.figures.iter().any(|figure| figure.source == "model"));
}
