//! Joules in calibration and in telemetry, by counters that a test drives.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wattlock::calibrate::{Plan, calibrate, calibrate_metered};
use wattlock::meter::{About, Boundary, Gone, Measures, Meter, Places, Quality, Sensor};
use wattlock::profile::{EnergyNote, Point};
use wattlock::{Profile, Runtime};
use wattlock_core::{Data, Engine, Key, Kind, KindSet, Request};
use wattlock_cpu::instruction::Instruction;

/// A package that draws 10 W, and 20 W more while the thread that reads it works.
struct Package {
    about: About,
    start: Instant,
}

impl Package {
    fn with(measures: Measures) -> Box<dyn Sensor> {
        let (source, part) = ("powercap", "package-0".to_owned());
        let about = About { source, boundary: Boundary::Package, part, detail: "a test".into(), measures };
        Box::new(Package { about, start: Instant::now() })
    }
}

impl Sensor for Package {
    fn about(&self) -> &About {
        &self.about
    }

    fn read(&mut self) -> Result<u64, Gone> {
        let text = fs::read_to_string("/proc/thread-self/schedstat")?;
        let busy_ns: u64 = text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0);
        Ok(10 * self.start.elapsed().as_nanos() as u64 + 20 * busy_ns)
    }
}

const NANOJOULES: Measures = Measures::Energy { joules: 1e-9, wraps_after: None };

fn engines() -> Vec<Arc<dyn Engine>> {
    vec![Arc::new(Instruction::new())]
}

fn plan() -> Plan {
    Plan {
        sizes: vec![16 << 10, 64 << 10],
        concurrency: vec![1, 2],
        per_point: Duration::from_millis(2),
        ..Plan::quick([Kind::Sha256].into_iter().collect::<KindSet>())
    }
}

#[test]
fn calibration_with_a_counter_writes_joules_above_idle_and_where_they_come_from() {
    let mut meter = Meter::of(vec![Package::with(NANOJOULES)]);
    let profile = calibrate_metered(&engines(), &plan(), &mut meter, &mut |_| {});
    for point in &profile.points {
        assert_eq!(point.energy_nj.is_some(), point.concurrency == 1, "{point:?}");
        assert!(point.energy_nj.is_none_or(|energy_nj| energy_nj > 0.0));
    }
    let note = profile.energy.as_ref().unwrap();
    assert_eq!(
        (note.quality, note.parts.as_slice()),
        (Quality::Derived, ["package-0".to_owned()].as_slice())
    );
    assert!(note.idle_w > 9.0, "the counter's own 10 W at least: {}", note.idle_w);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profile.json");
    profile.save(&path).unwrap();
    let loaded = Profile::load(&path).unwrap();
    let known = |profile: &Profile| profile.points.iter().filter(|point| point.energy_nj.is_some()).count();
    assert_eq!((known(&loaded), loaded.energy.unwrap().parts), (known(&profile), note.parts.clone()));
}

#[test]
fn no_modelled_and_no_integrated_joules_get_into_a_profile() {
    let nothing = tempfile::tempdir().unwrap();
    let without = [
        Meter::discover(&Places::recorded(nothing.path())),
        Meter::of(vec![Package::with(Measures::Power { watts: 1e-9 })]),
        Meter::of(Vec::new()),
    ];
    for mut meter in without {
        let profile = calibrate_metered(&engines(), &plan(), &mut meter, &mut |_| {});
        assert!(profile.energy.is_none() && profile.points.iter().all(|point| point.energy_nj.is_none()));
        assert!(!profile.points.is_empty());
    }
    assert!(calibrate(&engines(), &plan(), &mut |_| {}).energy.is_none());
}

#[test]
fn telemetry_carries_joules_by_the_profile_and_says_what_they_are_worth() {
    let mut profile = Profile::empty(&engines());
    profile.energy = Some(EnergyNote {
        sources: vec!["powercap".into()],
        boundaries: vec![Boundary::Package],
        parts: vec!["package-0".into()],
        quality: Quality::Derived,
        idle_w: 10.0,
    });
    let (engine, kind) = ("instruction".to_owned(), "sha-256".to_owned());
    profile.points.push(Point {
        engine,
        kind,
        concurrency: 1,
        batch: 1,
        bytes: 3,
        ns: 100.0,
        energy_nj: Some(2000.0),
    });
    let runtime = Runtime::builder().telemetry(false).engines(engines()).profile(profile).build().unwrap();
    let mut dispatcher = runtime.dispatcher();
    let mut out = [0; 32];
    for _ in 0..200 {
        let data = Data::Apart { from: b"abc", to: &mut out };
        dispatcher.run(&mut Request::new(Kind::Sha256, Key::none(), data)).unwrap();
    }
    let snapshot = runtime.snapshot();
    assert_eq!(snapshot.header.energy, ["derived: calibrated with powercap, above idle"]);
    let cell = &snapshot.cells[0];
    assert!(cell.timed > 0 && cell.energy_nj == 2000 * cell.timed, "{cell:?}");
    assert!(snapshot.energy.is_empty());

    let plain =
        Runtime::builder().telemetry(false).engines(engines()).profile(Profile::built_in()).build().unwrap();
    assert_eq!(plain.snapshot().header.energy, [""], "no joules, no claim");
}
