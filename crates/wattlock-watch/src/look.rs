//! What was found at one moment, by process, and what one of them did since an earlier moment.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use wattlock::telemetry::{Cell, Header, Snapshot};

/// An engine and a reason.
type Pair = (String, String);
/// An engine, a kind, and what the header says that the joules are worth, which all cells of an engine share.
pub(crate) type Part = (String, String, Arc<str>);

/// All programs' counters at one moment.
#[derive(Debug, Clone, Default)]
pub struct Look {
    /// Since any fixed moment.
    at: Duration,
    /// Seconds since 1970.
    epoch: u64,
    pub(crate) processes: BTreeMap<Id, Process>,
}

/// Tells a process from a later one of the same number, and its counters from those that it began anew. What it says of
/// itself stands beside whose it is, so that no user's process is taken for another's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Id {
    pub(crate) program: String,
    pub(crate) uid: u32,
    pub(crate) pid: u32,
    born: u64,
    started: u64,
}

/// One process's counters.
#[derive(Debug, Clone, Default)]
pub(crate) struct Process {
    pub(crate) cells: BTreeMap<Part, Cell>,
    pub(crate) fallbacks: BTreeMap<Pair, u64>,
    pub(crate) in_flight: u64,
    /// Whether it has asked for anything yet.
    is_used: bool,
}

impl Look {
    /// What was found `at` a moment (since any fixed one), `epoch` seconds after 1970.
    pub fn new(at: Duration, epoch: u64, found: Vec<Snapshot>) -> Look {
        let mut processes: BTreeMap<Id, Process> = BTreeMap::new();
        for snapshot in found {
            let header = &snapshot.header;
            let (program, uid, pid) = (header.program.clone(), snapshot.uid, header.pid);
            let id = Id { program, uid, pid, born: header.born, started: header.started };
            // A process may have several runtimes, each with counters of its own.
            processes.entry(id).or_default().add(snapshot);
        }
        Look { at, epoch, processes }
    }

    /// The same without processes that have asked for nothing yet: they have nothing to tell. A look that is an earlier
    /// one keeps them, since they began at nothing.
    pub fn of_used(&self) -> Look {
        let used = self.processes.iter().filter(|(_, process)| process.is_used);
        Look { processes: used.map(|(id, process)| (id.clone(), process.clone())).collect(), ..*self }
    }

    /// Seconds between two looks; more than none, so that a rate is a number.
    pub fn seconds_since(&self, before: &Look) -> f64 {
        self.at.saturating_sub(before.at).as_secs_f64().max(1e-3)
    }

    /// What a process did after `before`. `None`: nothing is known of that time.
    pub(crate) fn done(&self, id: &Id, before: &Look) -> Option<Process> {
        let now = self.processes.get(id)?;
        match before.processes.get(id) {
            Some(then) => now.less(then),
            // A new one has done all of it since. One that was there, and could not be read, has not.
            None => (id.started.saturating_add(1) >= before.epoch).then(|| now.clone()),
        }
    }
}

impl Process {
    fn add(&mut self, snapshot: Snapshot) {
        self.is_used |= snapshot.is_used();
        for engine in &snapshot.engines {
            self.in_flight = self.in_flight.saturating_add(engine.in_flight);
        }
        let mut worths: HashMap<String, Arc<str>> = HashMap::new();
        for cell in snapshot.cells {
            // Runtimes of one process may have joules of different worth.
            let worth = match worths.get(&cell.engine) {
                Some(worth) => worth.clone(),
                None => {
                    let worth: Arc<str> = worth(&snapshot.header, &cell.engine).into();
                    worths.insert(cell.engine.clone(), worth.clone());
                    worth
                }
            };
            let sum = self.cells.entry((cell.engine.clone(), cell.kind.clone(), worth));
            add(sum.or_insert_with(|| empty(&cell)), &cell);
        }
        for engine in snapshot.engines {
            for (reason, count) in engine.fallbacks {
                let sum = self.fallbacks.entry((engine.engine.clone(), reason)).or_default();
                *sum = sum.saturating_add(count);
            }
        }
    }

    /// `None` if a counter fell: these are other counters.
    fn less(&self, then: &Process) -> Option<Process> {
        let mut left = self.clone();
        for (pair, had) in &then.cells {
            let cell = left.cells.get_mut(pair)?;
            for (count, had) in counts(cell).into_iter().zip(values(had)) {
                *count = count.checked_sub(had)?;
            }
        }
        for (pair, had) in &then.fallbacks {
            let count = left.fallbacks.get_mut(pair)?;
            *count = count.checked_sub(*had)?;
        }
        Some(left)
    }
}

/// What an engine's joules are worth, as the header says; an older process does not say.
pub fn worth<'a>(header: &'a Header, engine: &str) -> &'a str {
    let at = header.engines.iter().position(|known| known == engine);
    let worth = at.and_then(|at| header.energy.get(at)).filter(|worth| !worth.is_empty());
    // Then it is nothing better than a model's.
    worth.map_or("modelled: by an older version, error band unknown", String::as_str)
}

/// A cell of the same name, in which nothing was counted.
pub(crate) fn empty(cell: &Cell) -> Cell {
    Cell { engine: cell.engine.clone(), kind: cell.kind.clone(), ..Cell::default() }
}

/// Adds another cell's counts.
pub(crate) fn add(sum: &mut Cell, more: &Cell) {
    for (sum, more) in counts(sum).into_iter().zip(values(more)) {
        *sum = sum.saturating_add(more);
    }
}

fn counts(cell: &mut Cell) -> [&mut u64; 10] {
    let Cell { engine: _, kind: _, requests, bytes, errors, refused, timed, timed_ns, .. } = cell;
    let Cell { held_ns, batch_sum, energy_nj, submit_ns, .. } = cell;
    [requests, bytes, errors, refused, timed, timed_ns, held_ns, batch_sum, energy_nj, submit_ns]
}

fn values(cell: &Cell) -> [u64; 10] {
    let Cell { requests, bytes, errors, refused, timed, timed_ns, .. } = *cell;
    let Cell { held_ns, batch_sum, energy_nj, submit_ns, .. } = *cell;
    [requests, bytes, errors, refused, timed, timed_ns, held_ns, batch_sum, energy_nj, submit_ns]
}
