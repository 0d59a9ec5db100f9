//! What was counted, at one moment: of one process, by engine, and by engine and kind.

use serde::Serialize;
use wattlock_meter::Record;

use super::Header;

/// One engine's counts of one kind; only those with anything in them are listed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// Engine.
    pub engine: String,
    /// Kind.
    pub kind: String,
    /// Requests done.
    pub requests: u64,
    /// Their input bytes.
    pub bytes: u64,
    /// Requests that failed, and the caller was told.
    pub errors: u64,
    /// Requests to open what does not authenticate.
    pub refused: u64,
    /// Requests whose time was taken.
    pub timed: u64,
    /// Their times, summed, in nanoseconds.
    pub timed_ns: u64,
    /// Time held, summed, in nanoseconds.
    pub held_ns: u64,
    /// Batch sizes, summed over queued requests.
    pub batch_sum: u64,
    /// Nanojoules of the requests counted in `timed`; the header's `energy` says what they are worth.
    pub energy_nj: u64,
    /// What handing queued requests to their engine took, summed, in nanoseconds.
    pub submit_ns: u64,
}

/// What a request had on average; `None` where there is none to say it of. Whoever shows it shows the same.
impl Cell {
    /// Nanoseconds from submission to completion, over those whose time was taken.
    pub fn mean_ns(&self) -> Option<f64> {
        mean(self.timed_ns, self.timed)
    }

    /// Nanoseconds held, over all requests done: one that was held counts whether or not its time was taken.
    pub fn mean_held_ns(&self) -> Option<f64> {
        mean(self.held_ns, self.requests)
    }

    /// Requests in a batch, over queued requests.
    pub fn mean_batch(&self) -> Option<f64> {
        mean(self.batch_sum, self.queued())
    }

    /// Requests that `batch_sum` is over: the time of each queued request is taken.
    pub fn queued(&self) -> u64 {
        if self.batch_sum > 0 { self.timed } else { 0 }
    }
}

impl Snapshot {
    /// Whether anything was asked of the runtime yet. A host that has used nothing has nothing to tell.
    pub fn is_used(&self) -> bool {
        !self.cells.is_empty() || self.engines.iter().any(|engine| engine.tests > 0)
    }

    /// Adds another process's counts of the same program. Its header and its joules, which are the machine's, stay out.
    pub fn add(&mut self, other: &Snapshot) {
        for theirs in &other.cells {
            let same = |ours: &&mut Cell| (&ours.engine, &ours.kind) == (&theirs.engine, &theirs.kind);
            match self.cells.iter_mut().find(same) {
                Some(ours) => ours.add(theirs),
                None => self.cells.push(theirs.clone()),
            }
        }
        for theirs in &other.engines {
            match self.engines.iter_mut().find(|ours| ours.engine == theirs.engine) {
                Some(ours) => ours.add(theirs),
                None => self.engines.push(theirs.clone()),
            }
        }
    }
}

impl Cell {
    fn add(&mut self, other: &Cell) {
        let Cell { requests, bytes, errors, refused, timed, timed_ns, held_ns, .. } = self;
        let Cell { batch_sum, energy_nj, submit_ns, .. } = self;
        let theirs = [
            (requests, other.requests),
            (bytes, other.bytes),
            (errors, other.errors),
            (timed, other.timed),
            (timed_ns, other.timed_ns),
            (held_ns, other.held_ns),
            (batch_sum, other.batch_sum),
            (energy_nj, other.energy_nj),
            (refused, other.refused),
            (submit_ns, other.submit_ns),
        ];
        theirs.into_iter().for_each(|(sum, more)| *sum = sum.saturating_add(more));
    }
}

impl EngineCounts {
    fn add(&mut self, other: &EngineCounts) {
        let EngineCounts { in_flight, quarantines, verified, tests, returned, chained, fallbacks, .. } = self;
        let theirs = [
            (in_flight, other.in_flight),
            (quarantines, other.quarantines),
            (verified, other.verified),
            (tests, other.tests),
            (returned, other.returned),
            (chained, other.chained),
        ];
        theirs.into_iter().for_each(|(sum, more)| *sum = sum.saturating_add(more));
        for (reason, count) in &other.fallbacks {
            match fallbacks.iter_mut().find(|(known, _)| known == reason) {
                Some((_, sum)) => *sum = sum.saturating_add(*count),
                None => fallbacks.push((reason.clone(), *count)),
            }
        }
    }
}

fn mean(sum: u64, count: u64) -> Option<f64> {
    (count > 0).then(|| sum as f64 / count as f64)
}

/// One engine's counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct EngineCounts {
    /// Engine.
    pub engine: String,
    /// What it rests on.
    pub detail: String,
    /// Requests in flight now.
    pub in_flight: u64,
    /// Times it was put into quarantine.
    pub quarantines: u64,
    /// Results checked on the CPU.
    pub verified: u64,
    /// Known-answer tests run.
    pub tests: u64,
    /// Pieces of operations that it took after the CPU had begun to take them.
    pub returned: u64,
    /// Requests that followed a step of the same engine, or of the same core: what compressed a chunk sealed it.
    pub chained: u64,
    /// Fallbacks away from it, by reason; only reasons that occurred.
    pub fallbacks: Vec<(String, u64)>,
}

/// All of one process's counts at one moment.
#[derive(Debug, Clone, Serialize)]
pub struct Snapshot {
    /// The user whose counts they are, by the kernel's word for the file; the caller where there is none.
    pub uid: u32,
    /// What the process says of itself.
    pub header: Header,
    /// By engine.
    pub engines: Vec<EngineCounts>,
    /// By engine and kind.
    pub cells: Vec<Cell>,
    /// What the machine used, by a meter of the program that asks for its own counts: the runtime has none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub energy: Vec<Record>,
}
