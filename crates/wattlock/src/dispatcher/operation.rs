//! Operations of a thread whose pieces a device was given.
//!
//! Pieces that nobody has begun are a run of indices. The device claims them from the front, the thread that would
//! otherwise wait for it from the back, each as many as the policy says ([`Policy::claim`](wattlock_policy::Policy::claim)).
//! What has no room in the device's window waits where it is. What the device cannot do at all, or gives back, the CPU
//! does in its place.

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use wattlock_core::sync::lock;
use wattlock_core::{Completion, Data, Error, Fault, Item, Kind, Nanos, OwnedRequest, Request, Token};
use wattlock_policy::{Ask, Choice, EngineId, Rest, Side};

use super::Dispatcher;
use crate::health::Reason;
use crate::sys::fork;
use crate::telemetry::EngineCounter;

/// What one call gave to devices.
#[derive(Default)]
pub(super) struct Operations {
    operations: Vec<Operation>,
    /// Pieces that devices have: token, operation, place.
    out: Vec<(Token, usize, usize)>,
}

struct Operation {
    device: EngineId,
    /// Of its first pieces.
    kind: Kind,
    pieces: u32,
    /// Nobody has begun these.
    free: Range<usize>,
    out: u32,
    /// The CPU has taken pieces: what the device claims from now on comes back to it.
    shared: bool,
    /// When the device last took or answered something.
    moved: Nanos,
}

/// Why a device does not have a piece.
enum Refusal {
    /// Its window is full.
    Full,
    /// The CPU has done it.
    Done(Result<usize, Error>),
}

impl Operations {
    /// What stands behind the last operation's pieces and goes to the same device is a part of it.
    pub(super) fn begin(&mut self, (device, kind): (EngineId, Kind), range: Range<usize>, now: Nanos) {
        let pieces = range.len() as u32;
        if let Some(last) = self.operations.last_mut()
            && (last.device, last.free.end) == (device, range.start)
        {
            last.free.end = range.end;
            last.pieces += pieces;
            return;
        }
        let begun = Operation { device, kind, pieces, free: range, out: 0, shared: false, moved: now };
        self.operations.push(begun);
    }

    pub(super) fn is_over(&self) -> bool {
        self.out.is_empty() && self.operations.iter().all(|one| one.free.is_empty())
    }
}

impl Operation {
    fn rest(&self, items: &[Item<'_>]) -> Rest {
        let (free, next) = (self.free.len() as u32, items.get(self.free.start));
        let bytes = next.map_or(0, |item| item.request.data.len());
        Rest { device: self.device, kind: self.kind, pieces: self.pieces, free, out: self.out, bytes }
    }
}

impl Dispatcher {
    /// Has devices claim what they may, one doorbell for each.
    pub(super) fn feed(&mut self, all: &mut Operations, items: &mut [Item<'_>]) {
        let Operations { operations, out } = all;
        for (which, operation) in operations.iter_mut().enumerate() {
            if operation.free.is_empty() {
                continue;
            }
            let rest = operation.rest(items);
            let mut most = self.policy.claim(Side::Device, &rest, &self.weather);
            if most > 0 && operation.out == 0 && !self.has_room(operation.device, rest.bytes) {
                self.free_from_hostages(operation.device, self.now);
            }
            while most > 0
                && let Some(index) = operation.free.next()
            {
                // Before a copy is made of it.
                let (device, bytes) = (operation.device, items[index].request.data.len());
                if self.weather.engines[device.index()].never_fits(bytes) {
                    items[index].result = self.fall_back(device, Reason::Full, &mut items[index].request);
                    self.now = self.runtime.clock().now();
                    continue;
                }
                if !self.has_room(device, bytes) {
                    operation.free.start = index;
                    break;
                }
                match self.enqueue_copy(operation.device, &mut items[index].request) {
                    Ok(token) => {
                        out.push((token, which, index));
                        operation.out += 1;
                        operation.moved = self.now;
                        if operation.shared {
                            self.row.add_engine(operation.device, EngineCounter::Returned, 1);
                        }
                    }
                    Err(Refusal::Full) => {
                        operation.free.start = index;
                        break;
                    }
                    Err(Refusal::Done(result)) => {
                        items[index].result = result;
                        self.now = self.runtime.clock().now();
                    }
                }
                most -= 1;
            }
            self.ring(operation.device);
        }
    }

    /// Sees all of these to their end; `generation` is the process in which they were begun.
    pub(super) fn finish_all(
        &mut self,
        all: &mut Operations,
        items: &mut [Item<'_>],
        strangers: &mut VecDeque<Completion>,
        generation: u32,
    ) {
        let mut patience = Patience::default();
        while !all.is_over() {
            if generation != fork::generation() {
                // A handler forked, and this is the child: what devices have is the parent's, and the originals are here.
                strangers.clear();
                return self.do_the_rest(all, items);
            }
            self.feed(all, items);
            // Before answers are looked for: what the device has just filled itself with leaves the rest to this thread.
            let took_part = self.take_part(all, items);
            if self.take_in(all, items, strangers) || took_part {
                patience = Patience::default();
            } else if patience.wait() {
                self.awake();
            }
        }
    }

    /// Does all that devices have or were to have, and asks them nothing more.
    #[cold]
    fn do_the_rest(&mut self, all: &mut Operations, items: &mut [Item<'_>]) {
        for (_, which, index) in mem::take(&mut all.out) {
            let device = all.operations[which].device;
            items[index].result = self.fall_back(device, Reason::Forked, &mut items[index].request);
        }
        for operation in &mut all.operations {
            for index in mem::take(&mut operation.free) {
                items[index].result =
                    self.fall_back(operation.device, Reason::Forked, &mut items[index].request);
            }
        }
    }

    /// Takes in what devices have answered. Whether that was anything.
    pub(super) fn take_in(
        &mut self,
        all: &mut Operations,
        items: &mut [Item<'_>],
        strangers: &mut VecDeque<Completion>,
    ) -> bool {
        let mut arrived = Vec::new();
        self.poll(&mut |completion| arrived.push(completion));
        let any = !arrived.is_empty();
        for completion in arrived {
            let Some(at) = all.out.iter().position(|(token, ..)| *token == completion.token) else {
                strangers.push_back(completion);
                continue;
            };
            let (_, which, index) = all.out.swap_remove(at);
            let operation = &mut all.operations[which];
            operation.out -= 1;
            operation.moved = self.now;
            let item = &mut items[index];
            item.result = match completion.result {
                // Its copy was lost; the original is here.
                Err(Error::Device(_)) => self.fall_back(operation.device, Reason::Lost, &mut item.request),
                _ => deliver(&completion, &mut item.request),
            };
        }
        any
    }

    /// Does some of what waits for a device, if the policy has it so. Whether there was anything.
    fn take_part(&mut self, all: &mut Operations, items: &mut [Item<'_>]) -> bool {
        for operation in all.operations.iter_mut().rev().filter(|one| !one.free.is_empty()) {
            let rest = operation.rest(items);
            let claimed = self.policy.claim(Side::Cpu, &rest, &self.weather);
            let (most, reason) = match claimed {
                0 if rest.out > 0 => continue,
                0 if self.is_away(operation.device) => (1, Reason::Quarantined),
                0 if self.is_stuck(operation) => (1, Reason::Full),
                0 => continue,
                most => (most, Reason::Migrated),
            };
            let size = most.min(rest.free) as usize;
            let (start, end) = (operation.free.end - size, operation.free.end);
            let shape = items[start].request.shape();
            let ask = Ask { count: size as u32, may_wait: false, ..Ask::one(shape) };
            let cpu = self.policy.choose(&ask, &self.weather, self.now).engine;
            operation.free.end = start;
            operation.shared = true;
            (0..size).for_each(|_| self.row.fell_back(operation.device, reason));
            match cpu.index() < self.stations.len() {
                true => _ = self.do_together(cpu, &mut items[start..end]),
                false => items[start..end].iter_mut().for_each(|item| item.result = Err(Error::Unsupported)),
            }
            return true;
        }
        false
    }

    pub(super) fn has_room(&self, device: EngineId, bytes: usize) -> bool {
        self.weather.engines[device.index()].has_room(bytes)
    }

    /// Whether a device has taken nothing for as long as an answer may take.
    fn is_stuck(&self, operation: &Operation) -> bool {
        self.now.saturating_sub(operation.moved) > self.runtime.give_up_after_ns()
    }

    /// Gives a copy of a borrowed request to a device that has room, or does it now.
    fn enqueue_copy(&mut self, device: EngineId, request: &mut Request<'_>) -> Result<Token, Refusal> {
        if let Err(error) = request.validate() {
            return Err(Refusal::Done(Err(error)));
        }
        let copy = OwnedRequest::copy_of(request);
        let shape = request.shape();
        self.enqueue(&Choice::now(device), &shape, copy, self.now).map_err(|(reason, _)| {
            // What an empty window has no room for would wait for ever.
            let waits = reason == Reason::Full && self.weather.engines[device.index()].in_flight > 0;
            if waits { Refusal::Full } else { Refusal::Done(self.fall_back(device, reason, request)) }
        })
    }
}

/// Copies a completion's result into the borrowed request it was made from.
fn deliver(completion: &Completion, request: &mut Request<'_>) -> Result<usize, Error> {
    let len = completion.result?;
    let from = completion.request.output.get(..len).ok_or(Error::Device(Fault::WrongResult))?;
    let output = match &mut request.data {
        Data::InPlace(buffer) => &mut **buffer,
        Data::Apart { to, .. } => &mut **to,
    };
    output.get_mut(..len).ok_or(Error::Device(Fault::WrongResult))?.copy_from_slice(from);
    let tag = completion.request.tag.get(..request.tag.len()).ok_or(Error::Device(Fault::WrongResult))?;
    request.tag.copy_from_slice(tag);
    Ok(len)
}

/// How a blocked caller waits: a few spins for what is nearly there, then ever longer pauses, 55 us at last. Not by
/// `sleep`, in which a thread may be cancelled (pthread_cancel(3)), here in the middle of an operation: what the standard
/// library's condition variables wait by is no such point.
#[derive(Default)]
struct Patience(u32);

impl Patience {
    /// Whether it slept.
    fn wait(&mut self) -> bool {
        self.0 += 1;
        if self.0 < 64 {
            std::hint::spin_loop();
            return false;
        }
        let pause = Duration::from_micros(u64::from(self.0.min(264) - 63) / 4 + 5);
        let (nothing, nobody) = (Mutex::new(()), Condvar::new());
        drop(nobody.wait_timeout(lock(&nothing), pause));
        true
    }
}
