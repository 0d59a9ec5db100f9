//! One large job on CPU threads and a device at once. The policy says whether, and where the sides meet
//! ([`wattlock_policy::Split`]); this shares that decision between threads, and keeps the device busy.
//!
//! The door's CPU threads [`claim`](SplitJob::claim) chunks and report them done. One more thread of the door
//! [`serve`](SplitJob::serve)s the device. What the device does not do (it is not there, not proved, quarantined, or
//! too late) the CPU does, as with any request; a door sees it as time only.
//!
//! A lock is taken once for each piece of 64 KiB or more, never for a request.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use wattlock_core::sync::lock;
use wattlock_core::{Completion, Error, Kind, Nanos, OwnedRequest, Token};
use wattlock_policy::{EngineId, Job, Side, Split};

use crate::clock::Clock;
use crate::dispatcher::{Dispatcher, Submitted};
use crate::runtime::Runtime;

/// How long a device may take to open and to give its known answers before the CPU does its part, if the border is
/// fixed: the longest that a GPU's context was reported to take, times five.
const OPENS_WITHIN: Nanos = 10_000_000_000;
/// Smaller jobs are over before a device is open.
const LEAST_BYTES: u64 = 4 << 20;
/// Between two looks at a device that has nothing to say.
const LOOK_EVERY: Duration = Duration::from_micros(20);

/// A job that is split.
pub struct SplitJob {
    split: Mutex<Split>,
    kind: Kind,
    device: EngineId,
    clock: Clock,
}

/// A piece that a CPU thread has claimed.
#[derive(Debug)]
pub struct Claimed {
    /// Its chunks.
    pub chunks: Range<u64>,
    at: Nanos,
}

/// What a door does for the device's side of its job.
pub trait DeviceSide {
    /// Why the job ends early.
    type Error;

    /// A request, which is a run, for these chunks. `None`: the door wants nothing more of the device.
    ///
    /// # Errors
    /// The job's.
    fn make(&mut self, chunks: &Range<u64>) -> Result<Option<OwnedRequest>, Self::Error>;

    /// What became of it.
    ///
    /// # Errors
    /// The job's.
    fn take(
        &mut self,
        chunks: &Range<u64>,
        request: &mut OwnedRequest,
        result: Result<usize, Error>,
        dispatcher: &mut Dispatcher,
    ) -> Result<(), Self::Error>;

    /// The device will not do these after all. What `request` still has of its buffers is as it was made, except for
    /// the output.
    fn forget(&mut self, request: &mut OwnedRequest);
}

impl Runtime {
    /// Whether a job of so many chunks, done by so many threads, is to be split, and how. `None`: it is not.
    pub fn split(&self, kind: Kind, chunks: u64, chunk_bytes: usize, threads: usize) -> Option<SplitJob> {
        let takes = |engine: &&wattlock_policy::EngineView| {
            !engine.class.is_cpu() && self.engines()[engine.id.index()].takes_runs(kind, chunk_bytes)
        };
        let devices: Vec<EngineId> =
            self.machine().engines.iter().filter(takes).map(|engine| engine.id).collect();
        if devices.is_empty() || chunks.saturating_mul(chunk_bytes as u64) < LEAST_BYTES {
            return None;
        }
        let threads = threads as u32;
        let split = self.fresh_policy().split(&Job { kind, chunks, chunk_bytes, devices, threads })?;
        Some(SplitJob { device: split.device(), split: Mutex::new(split), kind, clock: self.clock().clone() })
    }
}

impl SplitJob {
    fn locked(&self) -> MutexGuard<'_, Split> {
        lock(&self.split)
    }

    /// The next chunks for a CPU thread; `None` if there are none now ([`SplitJob::is_over`]).
    pub fn claim(&self) -> Option<Claimed> {
        let at = self.clock.now();
        let chunks = self.locked().claim(Side::Cpu, at)?;
        Some(Claimed { chunks, at })
    }

    /// A CPU thread has done what it had claimed.
    pub fn done(&self, claimed: &Claimed) {
        let now = self.clock.now();
        self.locked().done(Side::Cpu, &claimed.chunks, claimed.at, now);
    }

    /// The CPU may claim everything that is left, whatever the border.
    pub fn without_device(&self) {
        self.locked().device_gone();
    }

    /// Chunks that each side has claimed so far: the CPU's, the device's.
    pub fn shares(&self) -> (u64, u64) {
        self.locked().shares()
    }

    /// Keeps the device busy until it has no more to claim and has answered, or the door wants no more of it. What is then
    /// left is the CPU's: the caller goes on as a CPU thread.
    ///
    /// # Errors
    /// The door's. The device then claims nothing more, and what it still had is the CPU's, too: a door whose job has
    /// failed at one chunk may have to finish those before it.
    pub fn serve<D: DeviceSide>(&self, dispatcher: &mut Dispatcher, door: &mut D) -> Result<(), D::Error> {
        let _ended = Ended(self);
        let mut flying: Vec<(Token, Range<u64>, Nanos)> = Vec::new();
        let outcome = self.serve_all(dispatcher, door, &mut flying);
        for (token, ..) in flying {
            if let Some(mut request) = dispatcher.cancel(token) {
                door.forget(&mut request);
            }
        }
        outcome
    }

    fn serve_all<D: DeviceSide>(
        &self,
        dispatcher: &mut Dispatcher,
        door: &mut D,
        flying: &mut Vec<(Token, Range<u64>, Nanos)>,
    ) -> Result<(), D::Error> {
        let since = self.clock.now();
        while !dispatcher.is_ready(self.device, self.kind) {
            let over = self.clock.now().saturating_sub(since) > OPENS_WITHIN;
            if over || dispatcher.is_away(self.device) || self.is_empty() {
                return Ok(());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        loop {
            while !dispatcher.is_away(self.device) {
                let at = self.clock.now();
                let Some(chunks) = self.locked().claim(Side::Device, at) else { break };
                let Some(request) = door.make(&chunks)? else { return Ok(()) };
                match dispatcher.submit_to(self.device, request) {
                    Submitted::Pending(token) => flying.push((token, chunks, at)),
                    Submitted::Done(completion) => {
                        self.settle(completion, &chunks, at, dispatcher, door)?;
                    }
                }
            }
            if flying.is_empty() {
                return Ok(());
            }
            let mut arrived = Vec::new();
            if dispatcher.poll(&mut |completion| arrived.push(completion)) == 0 {
                if !self.take_back(dispatcher, door, flying) {
                    std::thread::sleep(LOOK_EVERY);
                }
                continue;
            }
            for completion in arrived {
                let Some(at) = flying.iter().position(|(token, ..)| *token == completion.token) else {
                    continue;
                };
                let (_, chunks, at) = flying.remove(at);
                self.settle(completion, &chunks, at, dispatcher, door)?;
            }
        }
    }

    fn settle<D: DeviceSide>(
        &self,
        mut completion: Completion,
        chunks: &Range<u64>,
        at: Nanos,
        dispatcher: &mut Dispatcher,
        door: &mut D,
    ) -> Result<(), D::Error> {
        if let Err(Error::Device(_)) = completion.result {
            // The CPU did not do it in the device's place, since the request went with the device. It is to be made anew.
            door.forget(&mut completion.request);
            self.locked().give_back(chunks.clone());
            return Ok(());
        }
        let now = self.clock.now();
        self.locked().done(Side::Device, chunks, at, now);
        door.take(chunks, &mut completion.request, completion.result, dispatcher)
    }

    /// Takes a piece back that the CPU would do sooner.
    fn take_back<D: DeviceSide>(
        &self,
        dispatcher: &mut Dispatcher,
        door: &mut D,
        flying: &mut Vec<(Token, Range<u64>, Nanos)>,
    ) -> bool {
        let now = self.clock.now();
        let Some(late) = self.locked().overdue(now) else { return false };
        let Some(at) = flying.iter().position(|(_, chunks, _)| *chunks == late) else { return false };
        let Some(mut request) = dispatcher.cancel(flying[at].0) else { return false };
        flying.remove(at);
        door.forget(&mut request);
        self.locked().give_back(late);
        true
    }

    /// Whether nothing can be claimed now. What the device has may still come back.
    fn is_empty(&self) -> bool {
        self.locked().is_empty()
    }

    /// Whether there will never be anything to claim any more. A CPU thread that gets nothing to claim waits for this.
    pub fn is_over(&self) -> bool {
        self.locked().is_over()
    }
}

/// However a device's side ends, by a panic too: what it had is the CPU's, or the CPU's threads would wait for ever.
struct Ended<'a>(&'a SplitJob);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let mut split = self.0.locked();
        split.give_back_all();
        split.device_gone();
    }
}
