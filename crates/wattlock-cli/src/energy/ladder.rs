//! `wattlock energy calibrate`: a ladder of loads, a counter beside it, a model fitted to both.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;
use wattlock_core::{Engine, Kind};
use wattlock_cpu::instruction::Instruction;
use wattlock_meter::{Boundary, Meter, Model, Rung, Ticks, Total, Tree};
use wattlock_shell::joules::{model_path, now_ns, places};

use super::NOTHING_TO_CALIBRATE;

/// Fit the model of this machine's power to a counter, so that it serves where the counter may not be read
#[derive(Debug, Args)]
pub struct Settings {
    /// Milliseconds on each rung of load
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(200..=60_000))]
    rung_ms: u64,
    /// Where to keep the model (default: beside the profile, where every command looks for it, and then in /var/lib/wattlock)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// One JSON object: the model and the rungs
    #[arg(long)]
    json: bool,
}

/// Shares of the time that every CPU works; up and down, so that a drift (heat, a neighbour) widens the band instead
/// of tilting the slope.
const LOADS: [f64; 9] = [0.0, 0.25, 0.5, 0.75, 1.0, 0.75, 0.5, 0.25, 0.0];
/// A worker works and rests within this time.
const PERIOD: Duration = Duration::from_millis(10);
/// Time for clocks and sensors to follow a change of load.
const SETTLE: f64 = 0.2;

/// Runs the ladder.
pub fn run(settings: &Settings) -> Result<()> {
    let places = places();
    let tree = places.tree.clone();
    let mut meter = Meter::discover(&places);
    let path = settings.out.clone().or_else(model_path);
    let path = path.context("no place for the model: neither HOME nor XDG_CACHE_HOME is set; use --out")?;
    let start = Instant::now();
    let rung = Duration::from_millis(settings.rung_ms);
    let mut rungs = Vec::new();
    let mut against: Option<Total> = None;
    for load in LOADS {
        let Some((seen, total)) = climb(&mut meter, &*tree, load, rung, start) else {
            return nothing(&meter);
        };
        let first = against.get_or_insert_with(|| total.clone());
        anyhow::ensure!(
            (&first.parts, &first.sources) == (&total.parts, &total.sources),
            "counters came or went on the way: {} first, then {}",
            named(first),
            named(&total)
        );
        let counter = named(first);
        if !settings.json {
            say!("{:>3.0} % busy  {:8.2} W  {counter}", seen.utilisation * 100.0, seen.watts);
        }
        rungs.push(seen);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let against = against.context("no rung")?;
    let model = Model::fit(&*tree, &rungs, &named(&against), boundary(&against), now)?;
    model.save(&path)?;
    if settings.json {
        let steps: Vec<_> =
            rungs.iter().map(|r| json!({"utilisation": r.utilisation, "watts": r.watts})).collect();
        say!("{}", json!({"model": model, "rungs": steps, "path": path}));
        return Ok(());
    }
    say!(
        "Model: {:.2} W idle, {:.2} W more at full load, error band {:.0} %, version \"{}\"",
        model.idle_w,
        model.above_idle_w(1.0),
        model.band * 100.0,
        model.version
    );
    say!("Kept in {}", path.display());
    Ok(())
}

fn named(total: &Total) -> String {
    format!("{} ({})", total.sources.join(", "), total.parts.join(" + "))
}

/// What the model's figures will contain: what the counter's did.
fn boundary(total: &Total) -> Boundary {
    if total.boundaries.contains(&Boundary::Node) { Boundary::Node } else { Boundary::Package }
}

fn nothing(meter: &Meter) -> Result<()> {
    for notice in meter.notices() {
        eprintln!("wattlock: {notice}");
    }
    let version = meter.model().map(|model| model.version.clone()).unwrap_or_default();
    eprintln!(
        "wattlock: nothing to calibrate against: no energy counter or power sensor of the processors gives whole figures here; the model stays \"{version}\""
    );
    Err(wattlock_door::Code(NOTHING_TO_CALIBRATE).into())
}

/// One rung: all CPUs busy for a share of the time, and what the counter says. `None` if it says nothing whole.
fn climb(
    meter: &mut Meter,
    tree: &dyn Tree,
    load: f64,
    rung: Duration,
    start: Instant,
) -> Option<(Rung, Total)> {
    let stop = AtomicBool::new(false);
    let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    thread::scope(|scope| {
        if load > 0.0 {
            (0..cores).for_each(|_| drop(scope.spawn(|| work(load, &stop))));
        }
        thread::sleep(rung.mul_f64(SETTLE));
        let before = Ticks::read(tree);
        meter.start(now_ns(start));
        let until = Instant::now() + rung;
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            thread::sleep(left.min(Duration::from_millis(100)));
            meter.poll(now_ns(start));
        }
        let reading = meter.finish(now_ns(start));
        let after = Ticks::read(tree);
        stop.store(true, Ordering::Relaxed);
        let total = reading.processors().filter(|total| total.value.at_least().is_none())?;
        let utilisation = after?.since(before?)?;
        Some((Rung { utilisation, watts: total.value.joules() / reading.window.seconds() }, total))
    })
}

/// Encrypts for a share of each period and sleeps for the rest.
fn work(load: f64, stop: &AtomicBool) {
    let engine = Instruction::new();
    let Some(mut request) = wattlock::calibrate::sample(&engine, Kind::Aes256GcmSeal, Some(16 << 10)) else {
        return;
    };
    while !stop.load(Ordering::Relaxed) {
        let period = Instant::now();
        while period.elapsed() < PERIOD.mul_f64(load) {
            std::hint::black_box(engine.execute(&mut request.view()).is_ok());
        }
        thread::sleep(PERIOD.saturating_sub(period.elapsed()));
    }
}
