//! Joules of a piece of work in this process, for benches, where counters measure them.

use std::thread;
use std::time::{Duration, Instant};

use wattlock_meter::{Meter, Metered, Quality, Reading, Total};

use super::{now_ns, places};

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
        let mut meter = Meter::discover(&places());
        let start = Instant::now();
        meter.start(now_ns(start));
        thread::sleep(IDLE);
        let idle = meter.finish(now_ns(start));
        let boards = is_measured(idle.total().as_ref());
        let gauge = Gauge { meter, idle, start, boards };
        gauge.measures().then_some(gauge)
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
