//! Moves a stream between two descriptors: pipes, sockets or files.
//!
//! Workers take turns as leaders and followers (Schmidt et al., "Leader/Followers", 2000). The leader alone reads. While
//! the input is slow it also seals and writes what it read: one thread, no hand-over. When a whole segment came at
//! once, it wakes a follower, which leads on, and segments are sealed on as many cores as there are workers. Writing is
//! in order. There is one buffer for each worker and one more, whatever the length of the stream.

mod ears;
mod open;
mod seal;
mod socket;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use std::io::IoSlice;
use wattlock_core::Nanos;
use wattlock_core::sync::lock;
use wattlock_door::{Crypto, CryptoSource};

use crate::error::Error;
use crate::format::Epoch;
use crate::framer::Segment;
use crate::framing::Framing;
use ears::Ears;

pub use open::{open, open_joined};
pub use seal::{seal, seal_steered};
pub use socket::deliver;

/// More workers than this wait for one another's writes.
const MOST_WORKERS: usize = 8;
/// Size asked for pipes. Refusal changes nothing.
const PIPE_BYTES: usize = 1 << 20;
/// Frames shorter than this on average are put together before they are written.
const SHORT_FRAME: usize = 1 << 12;
/// Parts of one writing call (`IOV_MAX` of Linux).
const MOST_PARTS: usize = 1024;

/// The two ends of a passage, and what stops it.
pub struct Ends<'a> {
    /// Where bytes come from.
    pub input: OwnedFd,
    /// Where they go.
    pub output: OwnedFd,
    /// Readable when the work is to stop: sealing then ends its stream properly.
    pub stop: Option<BorrowedFd<'a>>,
}

/// How a stream is sealed.
#[derive(Debug, Clone)]
pub struct Sealing {
    /// How records follow one another.
    pub framing: Framing,
    /// Content of a full frame, at most [`crate::format::FRAME_MAX`].
    pub frame_len: usize,
    /// How long a record may wait, sealing and writing included; `None`: until its frame is full.
    pub latency: Option<Duration>,
    /// Whether frames that waiting does not fill leave at once.
    pub learns: bool,
    /// Content after which a new key begins, counted in whole segments.
    pub new_key_bytes: u64,
    /// Threads, at most; 0 for one a core.
    pub workers: usize,
}

impl Default for Sealing {
    fn default() -> Sealing {
        Sealing {
            framing: Framing::Raw,
            frame_len: crate::framer::FRAME_LEN,
            latency: Some(Duration::from_millis(5)),
            learns: true,
            new_key_bytes: NEW_KEY_BYTES,
            workers: 0,
        }
    }
}

/// Content under one key unless the caller says otherwise: 64 GiB, far below what AES-GCM bears.
pub const NEW_KEY_BYTES: u64 = 1 << 36;

/// Is told how full the window is, and may set a clock by it. The window is what the kernel holds for the reader.
pub trait Steering: Send {
    /// A batch leaves; `fill` of `window` bytes wait, the batch's included.
    fn on_batch(&mut self, fill: u64, window: u64, bytes: u64, now: Nanos);

    /// Nothing has come for a while.
    fn on_rest(&mut self, now: Nanos);
}

/// Leaves the clock alone.
impl Steering for () {
    fn on_batch(&mut self, _fill: u64, _window: u64, _bytes: u64, _now: Nanos) {}

    fn on_rest(&mut self, _now: Nanos) {}
}

/// What passed.
#[derive(Debug, Clone, Default)]
pub struct Passed {
    /// Bytes of content.
    pub content: u64,
    /// Frames.
    pub frames: u64,
    /// Calls of an engine, each with several frames.
    pub batches: u64,
    /// How often a worker waited for the input or for a frame's time.
    pub waits: u64,
    /// Keys.
    pub keys: u64,
    /// How often the window was found full: the producer had to wait.
    pub full: u64,
    /// Times from a batch's oldest record to its writing.
    pub latency: Histogram,
}

impl Passed {
    fn add(&mut self, other: &Passed) {
        self.content += other.content;
        self.frames += other.frames;
        self.batches += other.batches;
        self.waits = other.waits;
        self.keys += other.keys;
        self.full += other.full;
        let counts = self.latency.counts.iter_mut().zip(&other.latency.counts);
        counts.for_each(|(count, more)| *count += more);
    }
}

/// Times, in steps of a twentieth, up to hours.
#[derive(Debug, Clone)]
pub struct Histogram {
    counts: Vec<u64>,
}

const STEP: f64 = 1.05;

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: vec![0; 640] }
    }
}

impl Histogram {
    fn add(&mut self, ns: Nanos) {
        let slot = (ns.max(1) as f64).log(STEP) as usize;
        let last = self.counts.len() - 1;
        self.counts[slot.min(last)] += 1;
    }

    /// The time below which that share lies, to a twentieth; `None` if there are none.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let all: u64 = self.counts.iter().sum();
        let mut left = (all as f64 * share).ceil() as u64;
        let slot = self.counts.iter().position(|count| {
            left = left.saturating_sub(*count);
            left == 0
        });
        let slot = slot.filter(|_| all > 0)?;
        Some(Duration::from_nanos(STEP.powi(slot as i32 + 1) as u64))
    }
}

/// Frames on their way from the leader to the output.
struct Batch {
    segment: Segment,
    epoch: Epoch,
    /// Number of the first frame.
    first: u64,
    oldest: Option<Nanos>,
    /// What is to be reported when they are written.
    failed: Option<Error>,
    /// Nothing follows.
    last: bool,
    /// More is there already: another worker should read it.
    more: bool,
}

/// The reading side of a direction.
trait Feed: Send {
    /// The next frames, in `spare` or another buffer of the same origin.
    fn next(&mut self, spare: Option<Segment>, crypto: &mut dyn Crypto) -> Batch;

    /// Seals or opens them: how many may be written, and what is wrong with the next.
    fn work(batch: &mut Batch, crypto: &mut dyn Crypto) -> (usize, Option<Error>);

    /// Writes the first `count` frames.
    fn write(batch: &mut Batch, count: usize, to: BorrowedFd<'_>) -> Result<(), Error>;

    /// A batch was sealed and written in so long.
    fn on_work(&mut self, ns: Nanos);

    /// Waits, keys and full windows so far.
    fn counts(&self) -> (u64, u64, u64);
}

struct State<F> {
    /// The leader has it.
    feed: Option<F>,
    given: u64,
    written: u64,
    finished: bool,
    /// A worker panicked.
    gone: bool,
    failed: Option<Error>,
    passed: Passed,
    work_ns: Option<Nanos>,
}

struct Shared<'a, F> {
    state: Mutex<State<F>>,
    /// The lead is free.
    lead: Condvar,
    /// A batch was written.
    turn: Condvar,
    output: &'a OwnedFd,
    bell: &'a OwnedFd,
    clock: Clock,
    alone: bool,
}

/// Nanoseconds since the passage began.
#[derive(Clone, Copy)]
struct Clock(Instant);

impl Clock {
    fn now(self) -> Nanos {
        self.0.elapsed().as_nanos() as Nanos
    }
}

/// How many workers there are to be.
fn workers(asked: usize) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    if asked == 0 { cores().min(MOST_WORKERS) } else { asked.min(MOST_WORKERS) }
}

/// Runs a passage to its end.
fn run<F: Feed>(
    feed: F,
    workers: usize,
    source: &impl CryptoSource,
    (output, bell, clock): (&OwnedFd, &OwnedFd, Clock),
) -> Result<Passed, Error> {
    run_for(feed, workers, source, (output, bell, clock)).0
}

/// The same, and the reading side as the end left it.
fn run_for<F: Feed>(
    feed: F,
    workers: usize,
    source: &impl CryptoSource,
    (output, bell, clock): (&OwnedFd, &OwnedFd, Clock),
) -> (Result<Passed, Error>, Option<F>) {
    let state = State {
        feed: Some(feed),
        given: 0,
        written: 0,
        finished: false,
        gone: false,
        failed: None,
        passed: Passed::default(),
        work_ns: None,
    };
    let shared = Shared {
        state: Mutex::new(state),
        lead: Condvar::new(),
        turn: Condvar::new(),
        output,
        bell,
        clock,
        alone: workers == 1,
    };
    std::thread::scope(|scope| {
        for _ in 1..workers {
            scope.spawn(|| shared.work(source));
        }
        shared.work(source);
    });
    let state = shared.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    let passed = match state.failed {
        None => Ok(state.passed),
        // A pipe's reader that leaves is what shells are used to; a connection has an other side that should know.
        Some(Error::Files(wattlock_files::Error::Door(wattlock_door::Error::ClosedPipe)))
            if socket::is_socket(output) =>
        {
            Err(Error::ReceiverGone { frames: state.passed.frames })
        }
        Some(error) => Err(error),
    };
    (passed, state.feed)
}

impl<F: Feed> Shared<'_, F> {
    fn lock(&self) -> MutexGuard<'_, State<F>> {
        lock(&self.state)
    }

    /// One worker: leads, works, writes in its turn.
    fn work(&self, source: &impl CryptoSource) {
        let _alarm = Alarm(self);
        let mut spare = None;
        while let Some(feed) = self.take_lead() {
            // Reached for when it is needed: most streams need one worker.
            if source.here(|crypto| self.pass(feed, &mut spare, crypto)) {
                return;
            }
        }
    }

    /// One batch, from reading it to writing it. Whether the passage is over.
    fn pass(&self, mut feed: F, spare: &mut Option<Segment>, crypto: &mut dyn Crypto) -> bool {
        let mut batch = feed.next(spare.take(), crypto);
        let index = self.give_lead(feed, &batch);
        let began = self.clock.now();
        let (count, wrong) = F::work(&mut batch, crypto);
        if !self.wait_turn(index) {
            return true;
        }
        let written = F::write(&mut batch, count, self.output.as_fd());
        let failed = written.err().or(wrong).or(batch.failed.take());
        if self.on_written(&batch, count, began, failed) {
            return true;
        }
        *spare = Some(batch.segment);
        false
    }

    /// Waits for the lead; nothing when there is nothing left to read.
    fn take_lead(&self) -> Option<F> {
        let mut state = self.lock();
        loop {
            if state.finished || state.gone || state.failed.is_some() {
                return None;
            }
            if let Some(mut feed) = state.feed.take() {
                if let Some(ns) = state.work_ns.take() {
                    feed.on_work(ns);
                }
                return Some(feed);
            }
            state = self.lead.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The number of the batch in the order of writing.
    fn give_lead(&self, feed: F, batch: &Batch) -> u64 {
        let mut state = self.lock();
        let counts = feed.counts();
        let passed = &mut state.passed;
        (passed.waits, passed.keys, passed.full) = counts;
        state.feed = Some(feed);
        state.given += 1;
        state.finished |= batch.last;
        let index = state.given - 1;
        drop(state);
        if !self.alone {
            if batch.last {
                self.lead.notify_all();
            } else if batch.more {
                self.lead.notify_one();
            }
        }
        index
    }

    /// False if the passage failed before.
    fn wait_turn(&self, index: u64) -> bool {
        let mut state = self.lock();
        while state.written != index && state.failed.is_none() && !state.gone {
            state = self.turn.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.failed.is_none() && !state.gone
    }

    /// Whether the passage failed with it.
    fn on_written(&self, batch: &Batch, count: usize, began: Nanos, failed: Option<Error>) -> bool {
        let now = self.clock.now();
        let frames = &batch.segment.frames[..count];
        let mut state = self.lock();
        let passed = &mut state.passed;
        passed.frames += count as u64;
        passed.batches += u64::from(count > 0);
        passed.content += frames.iter().map(|frame| frame.head.len as u64).sum::<u64>();
        if let Some(oldest) = batch.oldest {
            passed.latency.add(now.saturating_sub(oldest));
        }
        state.work_ns = Some(now.saturating_sub(began));
        state.written += 1;
        let over = failed.is_some();
        state.failed = failed;
        drop(state);
        if over {
            // The leader may be waiting for input that never comes.
            let _ = rustix::io::write(self.bell, &1u64.to_ne_bytes());
            self.lead.notify_all();
        }
        if !self.alone {
            self.turn.notify_all();
        }
        over
    }
}

/// Tells the others if its worker panics: they wait for the lead, or for a batch that is never written. The panic goes on
/// when all of them have ended.
struct Alarm<'s, 'a, F: Feed>(&'s Shared<'a, F>);

impl<F: Feed> Drop for Alarm<'_, '_, F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().gone = true;
            let _ = rustix::io::write(self.0.bell, &1u64.to_ne_bytes());
            self.0.lead.notify_all();
            self.0.turn.notify_all();
        }
    }
}

/// Writes all parts, whatever the descriptor's mode.
fn write_all(to: BorrowedFd<'_>, mut parts: &mut [IoSlice<'_>]) -> Result<(), Error> {
    use rustix::io::Errno;
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        let some = parts.len().min(MOST_PARTS);
        match rustix::io::writev(to, &parts[..some]) {
            Ok(0) => return Err(writing(std::io::ErrorKind::WriteZero.into())),
            Ok(len) => IoSlice::advance_slices(&mut parts, len),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => Ears::wait_writable(to)?,
            Err(error) => return Err(writing(error.into())),
        }
    }
    Ok(())
}

fn writing(source: std::io::Error) -> Error {
    // A peer that closes with bytes unread resets; to the writer it is as gone as a pipe's reader.
    use std::io::ErrorKind::{
        ConnectionAborted, ConnectionReset, HostUnreachable, NetworkUnreachable, TimedOut,
    };
    let gone = [ConnectionAborted, ConnectionReset, HostUnreachable, NetworkUnreachable, TimedOut];
    if gone.contains(&source.kind()) {
        return Error::Files(wattlock_files::Error::Door(wattlock_door::Error::ClosedPipe));
    }
    Error::Files(wattlock_files::Error::writing(source))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Panics instead of reading.
    struct Broken;

    impl Feed for Broken {
        fn next(&mut self, _spare: Option<Segment>, _crypto: &mut dyn Crypto) -> Batch {
            panic!("as planned");
        }
        fn work(_batch: &mut Batch, _crypto: &mut dyn Crypto) -> (usize, Option<Error>) {
            (0, None)
        }
        fn write(_batch: &mut Batch, _count: usize, _to: BorrowedFd<'_>) -> Result<(), Error> {
            Ok(())
        }
        fn on_work(&mut self, _ns: Nanos) {}
        fn counts(&self) -> (u64, u64, u64) {
            (0, 0, 0)
        }
    }

    #[test]
    fn a_worker_that_panics_leaves_nobody_waiting() {
        let (told, ended) = std::sync::mpsc::channel();
        // In a thread that is left behind if they wait.
        std::thread::spawn(move || {
            let null = || OwnedFd::from(std::fs::File::options().write(true).open("/dev/null").unwrap());
            let source = wattlock::Runtime::builder().telemetry(false).build().unwrap();
            let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                run(Broken, 3, &source, (&null(), &null(), Clock(Instant::now()))).map(drop)
            }));
            told.send(passed.is_err()).unwrap();
        });
        assert_eq!(
            ended.recv_timeout(Duration::from_secs(30)),
            Ok(true),
            "workers wait for one that is gone"
        );
    }

    #[test]
    fn quantiles_are_near() {
        let mut times = Histogram::default();
        assert_eq!(times.quantile(0.5), None);
        (1..=1000).for_each(|us| times.add(us * 1000));
        for (share, us) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let near = times.quantile(share).unwrap().as_nanos() as f64 / 1000.0 / us;
            assert!((0.99..1.06).contains(&near), "{share}: {near}");
        }
    }
}
