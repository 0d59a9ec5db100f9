//! Joules of a piece of work in this process, for benches: counters where they measure, else the model.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use wattlock_meter::{Meter, Metered, Modelled, Quality, Range, Reading, Total};

use super::{band, now_ns, places, range_json};

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

/// Joules above idle of a piece of work.
pub enum Spent {
    /// By counters.
    Metered(Metered),
    /// By the model.
    Modelled(Modelled),
    /// Nobody can say.
    Unknown,
}

impl Gauge {
    /// Looks for sources and watches the idle machine for half a second.
    pub fn new() -> Gauge {
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
        if self.measures() {
            let total = if self.boards { self.idle.total() } else { self.idle.processors() };
            let parts = total.map(|total| total.parts.join(" + ")).unwrap_or_default();
            return format!("Joules: derived, counters' joules above idle power, {parts}.");
        }
        match self.idle.modelled() {
            Some(modelled) => format!(
                "Joules: modelled from the whole machine's utilisation above idle, with the error band behind each figure (model {}).",
                modelled.model()
            ),
            None => "Joules: no counter here measures windows this short, and no model stands in.".to_owned(),
        }
    }

    /// Whether counters measure the processors here. Power that has to be integrated is too slow for short windows.
    fn measures(&self) -> bool {
        self.idle.has_processor() && (self.boards || is_measured(self.idle.processors().as_ref()))
    }

    /// Does the work and says what it took.
    pub fn around<R>(&mut self, work: impl FnOnce() -> R) -> (R, Spent) {
        self.meter.start(now_ns(self.start));
        let result = work();
        let reading = self.meter.finish(now_ns(self.start));
        let spent = if self.measures() {
            let idle = &self.idle;
            let above = if self.boards { reading.total_above(idle) } else { reading.processors_above(idle) };
            let above = above.map(|above| above.value);
            above.filter(|joules| joules.joules() > 0.0).map_or(Spent::Unknown, Spent::Metered)
        } else {
            reading.modelled().cloned().map_or(Spent::Unknown, Spent::Modelled)
        };
        (result, spent)
    }
}

impl Spent {
    /// Work by each joule: `unit` is `MB/J` or `op/J`, `work` how many MB or operations were done in all.
    pub fn per_joule(&self, work: f64, unit: &str) -> String {
        match self {
            Spent::Metered(joules) => {
                let bound = if joules.at_least().is_some() { "<= " } else { "" };
                format!("{bound}{:.1} {unit}", work / joules.joules())
            }
            Spent::Modelled(modelled) => band(modelled.above_idle().into_per_joule(work), unit, 0),
            Spent::Unknown => "-".to_owned(),
        }
    }

    /// The same for programs; modelled figures stand under another name.
    pub fn json(&self, work: f64) -> Json {
        match self {
            Spent::Metered(joules) => json!({"quality": joules.quality(), "above_idle": true,
                "per_joule": work / joules.joules(), "at_least": joules.at_least()}),
            Spent::Modelled(modelled) => {
                let range: Range = modelled.above_idle().into_per_joule(work);
                json!({"quality": "modelled", "above_idle": true, "modelled_per_joule": range_json(range), "model": modelled.model()})
            }
            Spent::Unknown => Json::Null,
        }
    }
}
