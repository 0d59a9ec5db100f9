//! What work would have cost one request at a time, and what it cost.
//!
//! *Plain way*: the cheapest engine of the CPU that does one request at a time, at the mean size of the requests, by
//! the profile of this machine or else the built-in table (`wattlock engines` says which). An **estimate**: sizes are
//! a mean, and a table may be another machine's.
//!
//! *Spent*: the mean of the requests whose time was taken (**measured**: a clock's time, in which another program may
//! have run). For an engine that does several in one pass it is that time for each pass: each request has the time of its
//! pass, and the batch that is counted for it is the mean size of the passes of its call. How many passes there were is an
//! **estimate**: the most that the mean batch allows, which is passes that were either full or had one request. What was
//! saved is then no less than that, if passes of any size take the same time.
//!
//! *Absent*: work of a device, since the CPU also takes its completions and checks its results, which no counter
//! times; a kind that the table does not have; an engine that none of this machine's is.

use wattlock::Runtime;
use wattlock_core::{EngineClass, Kind};
use wattlock_policy::{EngineView, Machine};

use crate::since::Done;

/// This machine's CPU engines and what each kind costs on them.
#[derive(Debug, Clone, Default)]
pub struct Costs {
    machine: Machine,
    names: Vec<String>,
}

impl Costs {
    /// The costs that a runtime goes by.
    pub fn of(runtime: &Runtime) -> Costs {
        let names = runtime.engines().iter().map(|engine| engine.description().name.to_owned());
        Costs::new(runtime.machine().clone(), names.collect())
    }

    /// Costs of engines with these names, by id.
    pub fn new(machine: Machine, names: Vec<String>) -> Costs {
        Costs { machine, names }
    }

    /// Nanoseconds of the processor that an engine's work of a kind saved, less than none if it cost more than the
    /// plain way; `None` if it is not known.
    pub fn saved_ns(&self, done: &Done) -> Option<f64> {
        let requests = done.cell.requests as f64;
        if done.cell.requests == 0 {
            return Some(0.0);
        }
        let kind = Kind::from_name(&done.cell.kind)?;
        let engine = self.view(&done.cell.engine)?;
        let (plain, plain_ns) = self.plain(kind, (done.cell.bytes / done.cell.requests) as usize)?;
        // Whatever the clock says of it, it is the plain way.
        if plain.id == engine.id {
            return Some(0.0);
        }
        let saved = requests * (plain_ns - self.spent_ns(engine, kind, done)?);
        saved.is_finite().then_some(saved)
    }

    /// Whether an engine does several requests side by side in lanes.
    pub(crate) fn is_lanes(&self, engine: &str) -> bool {
        self.view(engine).is_some_and(|engine| engine.class == EngineClass::Lanes)
    }

    /// Whether lanes of this machine can do a kind.
    pub(crate) fn in_lanes(&self, kind: &str) -> bool {
        let kind = Kind::from_name(kind);
        kind.is_some_and(|kind| self.machine.of_class(EngineClass::Lanes, kind).is_some())
    }

    fn view(&self, name: &str) -> Option<&EngineView> {
        let at = self.names.iter().position(|known| known == name)?;
        self.machine.engines.get(at).filter(|engine| engine.class.is_cpu())
    }

    /// The cheapest CPU engine that does one at a time, and its nanoseconds.
    fn plain(&self, kind: Kind, bytes: usize) -> Option<(&EngineView, f64)> {
        let one_at_a_time =
            |engine: &&EngineView| engine.class.is_cpu() && engine.can(kind) && engine.widths.of(kind) == 1;
        let engines = self.machine.engines.iter().filter(one_at_a_time);
        let costs =
            engines.filter_map(|one| Some((one, self.machine.costs.latency_ns(one.id, kind, bytes)?)));
        costs.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Nanoseconds of the processor for one request.
    fn spent_ns(&self, engine: &EngineView, kind: Kind, done: &Done) -> Option<f64> {
        let sample = done.sample();
        let pass = sample.mean_ns()?;
        let width = f64::from(engine.widths.of(kind));
        // Full passes and single requests have this mean batch with the most passes.
        let batch = sample.mean_batch().unwrap_or(1.0).clamp(1.0, width);
        Some(pass * (width + 1.0 - batch) / width)
    }
}
