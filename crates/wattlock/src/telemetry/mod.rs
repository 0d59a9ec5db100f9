//! What was done where: counters that any process of the same user can read without stopping anybody.
//!
//! Each process keeps one file, by default `/dev/shm/wattlock-<uid>/<pid>-<n>`: a JSON header that names everything
//! (engines, kinds, counters), so that a reader of another version can still read it, then rows of 64-bit counters.
//! Every dispatcher owns a row and is its only writer, so counting costs two plain additions and no locked
//! instruction; readers add the rows up. When rows run out, the last is shared and counted with atomic additions. A row takes
//! room when it first has an owner.
//!
//! At the end of a runtime its counts move into the totals of its user, a file beside the others, and the file goes. What
//! a killed process left is moved by the next process or reader of the same user.
//!
//! Where the file cannot be made (a read-only system, a chroot) the counters are private and no error is reported:
//! telemetry must never be the reason something fails.
//!
//! A library inside a program that may confine itself has its counters *kept*: they are made with the runtime, with room
//! for a few rows, and from then on nothing is asked of the kernel. A child counts in its parent's last row. At the end the
//! file is marked, and the mapping waits for the next runtime of the process.
//!
//! | file | contents |
//! |---|---|
//! | `header.rs`, `snapshot.rs` | what a file begins with; what it says |
//! | `file.rs` | how a process's file is made and ends |
//! | `place.rs`, `folder.rs` | where a user's folder is; the folder, its lock, names |
//! | `read.rs`, `scan.rs`, `budget.rs` | one file; all folders; how much of them |
//! | `totals.rs`, `fold.rs` | the sums; how counts move into them |

mod budget;
mod file;
mod fold;
mod folder;
mod header;
pub mod page;
mod place;
mod read;
mod scan;
mod snapshot;
pub mod text;
mod totals;

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex};

use wattlock_core::Kind;
use wattlock_policy::EngineId;

use crate::health::Reason;
use crate::sys::counters::Counters;
use crate::sys::fork;
use crate::sys::process::effective_uid;

pub use header::Header;
pub(crate) use header::Identity;
pub use read::parse;
pub use scan::{Running, Scan, User, range_of, read_all, read_own, read_running, scan};
pub use snapshot::{Cell, EngineCounts, Snapshot};
pub use totals::{OTHER, Sum, Totals, shortened, sums_of};

/// The calling user: whose counters [`Snapshot::uid`] says.
pub fn own_uid() -> u32 {
    effective_uid()
}

/// The layout that is written, and the only one that is read.
const FORMAT: u32 = 1;

/// What is counted for each engine and kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Requests done.
    Requests,
    /// Their input bytes.
    Bytes,
    /// Requests that failed, and the caller was told.
    Errors,
    /// Requests whose time was taken (all queued ones, a sample of the others).
    Timed,
    /// The sum of those times, in nanoseconds.
    TimedNs,
    /// Time held for batch-mates, summed, in nanoseconds.
    HeldNs,
    /// Size of the batch each queued request was in, summed over requests.
    BatchSum,
    /// Nanojoules of the requests whose time was taken, where known; the header says what they are worth.
    EnergyNj,
    /// Requests to open what does not authenticate: an answer, and no failure of the engine.
    Refused,
    /// What handing queued requests to their engine took the thread that submitted them, summed, in nanoseconds.
    SubmitNs,
}

impl Counter {
    /// What counts a request that ended so.
    pub(crate) const fn of(error: &wattlock_core::Error) -> Counter {
        if error.is_forgery() { Counter::Refused } else { Counter::Errors }
    }
}

const CELL_NAMES: [&str; 10] = [
    "requests",
    "bytes",
    "errors",
    "timed",
    "timed_ns",
    "held_ns",
    "batch_sum",
    "energy_nj",
    "refused",
    "submit_ns",
];

/// What is counted for each engine. The reasons for fallback follow these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum EngineCounter {
    /// Requests in flight now (a gauge).
    InFlight,
    /// Times it was put into quarantine.
    Quarantines,
    /// Results checked on the CPU.
    Verified,
    /// Known-answer tests run.
    Tests,
    /// Pieces of operations that it took after the CPU had begun to take them ([`Reason::Migrated`]).
    Returned,
    /// Requests that followed a step of the same engine, or of the same core ([`wattlock_core::Part`]).
    Chained,
}

const ENGINE_NAMES: [&str; 6] = ["in_flight", "quarantines", "verified", "tests", "returned", "chained"];
const ENGINE_WORDS: usize = ENGINE_NAMES.len() + Reason::ALL.len();
const CELL_WORDS: usize = CELL_NAMES.len();
/// Rows in a file; more dispatchers than this share the last.
const ROWS: usize = 64;

/// One process's counters.
pub(crate) struct Telemetry {
    counters: Counters,
    engines: usize,
    /// Bit r is set while row r has an owner.
    taken: AtomicU64,
    /// Bit r is set once row r has room.
    roomy: AtomicU64,
    file: Option<file::Owned>,
    kept: Option<Kept>,
}

/// Counters that are made once, with room for all that they will need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kept {
    /// Rows that have room beside the last.
    rows: usize,
    /// Which process made them.
    made: u32,
    /// Whether a file was wanted.
    wanted: bool,
    words: usize,
}

/// Counters of runtimes that are gone: as many as one process had runtimes of a library at once.
static SPARE: Mutex<Vec<(Kept, Counters, Option<file::Owned>)>> = Mutex::new(Vec::new());

/// Rows that kept counters have room for: threads beyond share the last.
const KEPT_ROWS: usize = 4;

impl Telemetry {
    /// Counters in a file of this process's own if one can be made, else private ones.
    pub(crate) fn create(identity: &Identity, wanted: bool) -> Telemetry {
        let (counters, file) = Telemetry::make(identity, wanted, 0);
        Telemetry::of(identity.engines.len(), counters, file, None)
    }

    /// Counters that will need no call to the kernel, for so many threads beside those that share.
    pub(crate) fn keep(identity: &Identity, wanted: bool, threads: usize) -> Telemetry {
        let engines = identity.engines.len();
        let words = ROWS * row_words(engines);
        let kept = Kept { rows: threads.clamp(1, KEPT_ROWS), made: fork::generation(), wanted, words };
        let spare = SPARE.lock().ok().and_then(|mut spare| {
            let at = spare.iter().position(|(one, ..)| *one == kept)?;
            Some(spare.swap_remove(at))
        });
        let (counters, file) = match spare {
            Some((_, counters, None)) if !wanted => {
                for row in (0..kept.rows).chain([ROWS - 1]) {
                    counters.words()[row_range(engines, row)].iter().for_each(|word| word.store(0, Relaxed));
                }
                (counters, None)
            }
            // A file is not used again: a reader may be about to take in what it says. It goes now, when calls are allowed.
            _ => Telemetry::make(identity, wanted, kept.rows),
        };
        Telemetry::of(engines, counters, file, Some(kept))
    }

    /// With room for the last row and so many others.
    fn make(identity: &Identity, wanted: bool, rows: usize) -> (Counters, Option<file::Owned>) {
        let engines = identity.engines.len();
        let words = ROWS * row_words(engines);
        let made = if wanted { file::create(&identity.header(), words) } else { None };
        // The last row is shared by the dispatchers that get none.
        let room = |counters: &Counters| {
            counters.provide(row_range(engines, ROWS - 1)).is_ok()
                && (rows == 0 || counters.provide(0..rows * row_words(engines)).is_ok())
        };
        match made.filter(|(counters, _)| room(counters)) {
            Some((counters, file)) => (counters, Some(file)),
            None => (Counters::private(words), None),
        }
    }

    fn of(engines: usize, counters: Counters, file: Option<file::Owned>, kept: Option<Kept>) -> Telemetry {
        let roomy = 1 << (ROWS - 1) | ((1 << kept.map_or(0, |kept| kept.rows)) - 1);
        Telemetry { counters, engines, taken: AtomicU64::new(0), roomy: AtomicU64::new(roomy), file, kept }
    }

    /// The file, if there is one.
    pub(crate) fn path(&self) -> Option<&std::path::Path> {
        self.file.as_ref().map(file::Owned::path)
    }

    /// A row for one dispatcher.
    pub(crate) fn row(self: &Arc<Telemetry>) -> Row {
        let last = ROWS - 1;
        let rows = match self.kept {
            Some(Kept { rows, made, .. }) if made == fork::generation() => rows,
            // A child's bits are its own, the rows are not.
            Some(_) => 0,
            None => last,
        };
        let free = |taken: u64| (0..rows).find(|row| taken >> row & 1 == 0);
        let claim = |taken| free(taken).map(|row| taken | 1 << row);
        let claimed = self.taken.fetch_update(Acquire, Relaxed, claim).ok().and_then(free);
        let provide =
            |row| self.kept.is_some() || self.counters.provide(row_range(self.engines, row)).is_ok();
        let row = match claimed {
            Some(row) if provide(row) => {
                self.roomy.fetch_or(1 << row, Relaxed);
                row
            }
            Some(row) => {
                self.taken.fetch_and(!(1 << row), Release);
                last
            }
            None => last,
        };
        Row { telemetry: self.clone(), base: row * row_words(self.engines), row, exclusive: row != last }
    }

    /// Everything counted so far.
    pub(crate) fn sum(&self, header: &Header) -> Snapshot {
        let roomy = self.roomy.load(Relaxed);
        read::sum(header, self.counters.words(), |row| roomy >> row & 1 == 1)
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        let Some(kept) = self.kept else {
            // If it cannot be taken in now, whoever sees it knows.
            if self.file.as_ref().is_some_and(file::Owned::is_ours) {
                self.counters.mark(file::ENDED[0]);
            }
            return;
        };
        let counters = std::mem::replace(&mut self.counters, Counters::private(0));
        let file = self.file.take();
        if kept.made != fork::generation() {
            // The parent's.
            std::mem::forget((counters, file));
            return;
        }
        counters.mark(file::ENDED[0]);
        if let Ok(mut spare) = SPARE.lock() {
            spare.push((kept, counters, file));
        }
    }
}

fn row_words(engines: usize) -> usize {
    // Rows start on a cache line, so that two dispatchers never share one.
    (engines * (Kind::COUNT * CELL_WORDS + ENGINE_WORDS)).next_multiple_of(8)
}

fn row_range(engines: usize, row: usize) -> std::ops::Range<usize> {
    row * row_words(engines)..(row + 1) * row_words(engines)
}

/// One dispatcher's row. Dropping it frees the row for another; what it counted stays counted, what it had in flight
/// does not.
pub(crate) struct Row {
    telemetry: Arc<Telemetry>,
    base: usize,
    row: usize,
    exclusive: bool,
}

impl Row {
    /// Adds to two neighbouring counters of a cell: one request and its bytes. The inline path's only telemetry.
    #[inline]
    pub(crate) fn done(&self, engine: EngineId, kind: Kind, bytes: usize) {
        self.done_together(engine, kind, 1, bytes as u64);
    }

    /// The same for `count` requests of so many bytes in all.
    #[inline]
    pub(crate) fn done_together(&self, engine: EngineId, kind: Kind, count: u32, bytes: u64) {
        let at = self.cell(engine, kind);
        self.bump(at + Counter::Requests as usize, u64::from(count));
        self.bump(at + Counter::Bytes as usize, bytes);
    }

    /// Requests of a cell that were done so far.
    pub(crate) fn requests(&self, engine: EngineId, kind: Kind) -> u64 {
        let word = self.word(self.cell(engine, kind) + Counter::Requests as usize);
        word.map_or(0, |word| word.load(Relaxed))
    }

    /// Adds to a counter of a cell.
    pub(crate) fn add(&self, engine: EngineId, kind: Kind, counter: Counter, amount: u64) {
        self.bump(self.cell(engine, kind) + counter as usize, amount);
    }

    /// Adds to a counter of an engine.
    pub(crate) fn add_engine(&self, engine: EngineId, counter: EngineCounter, amount: u64) {
        self.bump(self.engine(engine) + counter as usize, amount);
    }

    /// Counts a fallback away from an engine.
    pub(crate) fn fell_back(&self, engine: EngineId, reason: Reason) {
        self.bump(self.engine(engine) + ENGINE_NAMES.len() + reason as usize, 1);
    }

    /// Sets how many requests are in flight on an engine.
    pub(crate) fn in_flight(&self, engine: EngineId, now: u32) {
        if let Some(word) = self.word(self.engine(engine) + EngineCounter::InFlight as usize)
            && self.exclusive
        {
            word.store(u64::from(now), Relaxed);
        }
    }

    #[inline]
    fn cell(&self, engine: EngineId, kind: Kind) -> usize {
        self.base + (engine.index() * Kind::COUNT + kind.index()) * CELL_WORDS
    }

    fn engine(&self, engine: EngineId) -> usize {
        let cells = self.telemetry.engines * Kind::COUNT * CELL_WORDS;
        self.base + cells + engine.index() * ENGINE_WORDS
    }

    #[inline]
    fn word(&self, at: usize) -> Option<&AtomicU64> {
        self.telemetry.counters.words().get(at)
    }

    #[inline]
    fn bump(&self, at: usize, amount: u64) {
        let Some(word) = self.word(at) else { return };
        if self.exclusive {
            word.store(word.load(Relaxed).wrapping_add(amount), Relaxed);
        } else {
            word.fetch_add(amount, Relaxed);
        }
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        if self.exclusive {
            for engine in 0..self.telemetry.engines {
                self.in_flight(EngineId(engine as u8), 0);
            }
            // Whoever claims the row adds plainly to what stands there, so it must see all of it.
            self.telemetry.taken.fetch_and(!(1 << self.row), Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity { engines: vec!["a".into(), "b".into()], ..Identity::default() }
    }

    #[test]
    fn rows_add_up_and_a_freed_row_keeps_its_counts() {
        let telemetry = Arc::new(Telemetry::create(&identity(), false));
        let (first, second) = (telemetry.row(), telemetry.row());
        assert_ne!(first.row, second.row);
        first.done(EngineId(1), Kind::Sha1, 10);
        second.done(EngineId(1), Kind::Sha1, 5);
        drop(first);
        telemetry.row().done(EngineId(0), Kind::Deflate, 1);
        second.fell_back(EngineId(1), Reason::Silent);
        let seen = telemetry.sum(&identity().header());
        let cell = seen.cells.iter().find(|cell| cell.engine == "b").unwrap();
        assert_eq!((cell.kind.as_str(), cell.requests, cell.bytes), ("sha-1", 2, 15));
        assert_eq!(seen.engines[1].fallbacks, [("silent".to_owned(), 1)]);
        assert_eq!(seen.cells.len(), 2);
    }

    #[test]
    fn kept_counters_are_used_again_and_begin_with_nothing() {
        let words = |telemetry: &Telemetry| telemetry.counters.words().as_ptr().addr();
        let first = Arc::new(Telemetry::keep(&identity(), false, 2));
        let rows: Vec<Row> = (0..5).map(|_| first.row()).collect();
        assert_eq!(rows.iter().filter(|row| row.exclusive).count(), 2, "the others share");
        rows.iter().for_each(|row| row.done(EngineId(0), Kind::Sha1, 1));
        assert_eq!(first.sum(&identity().header()).cells[0].requests, 5);
        drop(rows);
        let at = words(&first);
        drop(first);
        let again = Arc::new(Telemetry::keep(&identity(), false, 2));
        assert_eq!(words(&again), at);
        assert!(again.sum(&identity().header()).cells.is_empty());
        assert_ne!(words(&Telemetry::keep(&identity(), false, 2)), at, "one is in use");
    }

    #[test]
    fn a_dispatcher_that_is_gone_has_nothing_in_flight() {
        let telemetry = Arc::new(Telemetry::create(&identity(), false));
        let row = telemetry.row();
        row.in_flight(EngineId(1), 7);
        let in_flight = || telemetry.sum(&identity().header()).engines[1].in_flight;
        assert_eq!(in_flight(), 7);
        drop(row);
        assert_eq!(in_flight(), 0);
    }

    #[test]
    fn more_dispatchers_than_rows_still_count() {
        let telemetry = Arc::new(Telemetry::create(&identity(), false));
        let rows: Vec<Row> = (0..ROWS + 5).map(|_| telemetry.row()).collect();
        rows.iter().for_each(|row| row.done(EngineId(0), Kind::Sha1, 1));
        assert_eq!(telemetry.sum(&identity().header()).cells[0].requests, ROWS as u64 + 5);
    }
}
