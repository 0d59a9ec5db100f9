//! Where joules come from here, and those of a piece of work in this process where counters measure them.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::resource::{UsageWho, getrusage};
use wattlock_meter::{Meter, Metered, Places, Quality, Reading, Total, boards};

/// Where this program looks for sources: the machine, or what `WATTLOCK_METER_ROOT` (a fixture) and
/// `WATTLOCK_NVML` (a library) say.
pub fn places() -> Places {
    let mut places = match std::env::var_os("WATTLOCK_METER_ROOT") {
        Some(root) => Places::recorded(root),
        None => Places { boards: Some(boards), ..Places::here() },
    };
    if let Some(library) = crate::setup::nvml() {
        places.nvml = Some(library);
        places.boards = Some(boards);
    }
    places.model = model_path().filter(|path| path.exists()).or_else(|| Some(SYSTEM_MODEL.into()));
    places
}

/// Where a model is looked for if the user has none: root's calibration keeps it here for all users.
const SYSTEM_MODEL: &str = "/var/lib/wattlock/energy-model.json";

/// Where the model that `energy calibrate` makes is kept: beside the profile.
pub fn model_path() -> Option<PathBuf> {
    wattlock::Profile::path().map(|profile| profile.with_file_name("energy-model.json"))
}

/// Nanoseconds since `start`: the clock that meters are given here.
pub fn now_ns(start: Instant) -> u64 {
    start.elapsed().as_nanos() as u64
}

/// How long idle power is watched.
const IDLE: Duration = Duration::from_millis(500);

/// A meter, and what it said of the machine before the work began.
pub struct Gauge {
    meter: Meter,
    idle: Reading,
    start: Instant,
    /// Whether boards are in it. One that tells its power only would make all of it too slow.
    boards: bool,
}

fn is_measured(total: Option<&Total>) -> bool {
    total.is_some_and(|total| total.value.quality() == Quality::Measured)
}

impl Gauge {
    /// Looks for counters and watches the idle machine for half a second. `None` where no counter measures windows this
    /// short: what is modelled belongs in `wattlock energy`, where there is room to say how wide its band is.
    pub fn counting() -> Option<Gauge> {
        let gauge = Gauge::open();
        gauge.measures().then_some(gauge)
    }

    /// The same for work of which a board does most: its counter is enough, where nothing measures the processors.
    /// [`Gauge::line`] says which parts were.
    pub fn counting_boards() -> Option<Gauge> {
        let gauge = Gauge::open();
        (gauge.boards || gauge.measures()).then_some(gauge)
    }

    fn open() -> Gauge {
        let mut meter = Meter::discover(&places());
        let start = Instant::now();
        meter.start(now_ns(start));
        thread::sleep(IDLE);
        let idle = meter.finish(now_ns(start));
        let boards = is_measured(idle.total().as_ref());
        Gauge { meter, idle, start, boards }
    }

    /// What its figures are, in a line for above a table.
    pub fn line(&self) -> String {
        let total = if self.boards { self.idle.total() } else { self.idle.processors() };
        let parts = total.map(|total| total.parts.join(" + ")).unwrap_or_default();
        format!("Joules: derived, counters' joules above idle power, {parts}.")
    }

    /// Whether counters measure the processors here. Power that has to be integrated is too slow for short windows.
    fn measures(&self) -> bool {
        self.idle.has_processor() && (self.boards || is_measured(self.idle.processors().as_ref()))
    }

    /// Does the work and says what all measured parts took, idle power and all: a board's idle power is another at each
    /// of its clocks, and nothing can be said above it.
    pub fn all_around<R>(&mut self, work: impl FnOnce() -> R) -> (R, Option<Metered>) {
        self.meter.start(now_ns(self.start));
        let result = work();
        let total = self.meter.finish(now_ns(self.start)).total().filter(|total| is_measured(Some(total)));
        (result, total.map(|total| total.value).filter(|joules| joules.at_least().is_none()))
    }

    /// The measured parts.
    pub fn parts(&self) -> String {
        self.idle.total().map(|total| total.parts.join(" + ")).unwrap_or_default()
    }

    /// Does the work and says what it took above idle, if the counters saw all of it.
    pub fn around<R>(&mut self, work: impl FnOnce() -> R) -> (R, Option<Metered>) {
        self.meter.start(now_ns(self.start));
        let result = work();
        let reading = self.meter.finish(now_ns(self.start));
        let idle = &self.idle;
        let above = if self.boards { reading.total_above(idle) } else { reading.processors_above(idle) };
        (
            result,
            above
                .map(|above| above.value)
                .filter(|joules| joules.joules() > 0.0 && joules.at_least().is_none()),
        )
    }
}

/// CPU seconds so far of children that were waited for.
pub fn children_cpu_s() -> Result<f64> {
    cpu_s(UsageWho::RUSAGE_CHILDREN)
}

/// CPU seconds of this process so far.
pub fn own_cpu_s() -> Result<f64> {
    cpu_s(UsageWho::RUSAGE_SELF)
}

/// Peak resident memory in bytes of a process by its number, or of this one by `self` (`VmHWM` in proc(5)).
pub fn peak_memory(process: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

fn cpu_s(who: UsageWho) -> Result<f64> {
    let usage = getrusage(who).context("no CPU time")?;
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}
