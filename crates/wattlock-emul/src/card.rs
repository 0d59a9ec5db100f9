//! The card: the device side of the rings. It receives orders, computes their results in its own memory, and answers
//! when the model says they would be done. It sees neither the door's buffers nor its tokens.
//!
//! A declared fault strikes here, between computing and answering, because that is where a real card fails.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use wattlock_core::{Engine, Error, Family, Nanos, OwnedRequest, execute};
use zeroize::Zeroize;

use crate::device::{Device, Work};
use crate::fault::{self, Fate, Fault};
use crate::model::Model;
use crate::ring::{Receiver, Sender};

/// A request in device memory. Wiped for every kind, since the card's memory may hold secrets.
pub(crate) struct DeviceCopy(pub OwnedRequest);

impl DeviceCopy {
    /// Copies a request's input; the output is a buffer of its own.
    pub(crate) fn of(request: &OwnedRequest) -> DeviceCopy {
        let room = request.output.len();
        let mut copy = OwnedRequest::new(request.kind, request.key.clone(), request.input.clone(), room);
        copy.nonce = request.nonce.clone();
        copy.aad = request.aad.clone();
        copy.tag = request.tag;
        copy.options = request.options;
        copy.run = request.run.clone();
        DeviceCopy(copy)
    }

    /// What the time it takes depends on.
    fn bytes(&self) -> u64 {
        let derives = self.0.kind.info().family == Family::Derive;
        (if derives { self.0.output.len() } else { self.0.input.len() }) as u64
    }

    /// A bit error on the way.
    fn flip_a_bit(&mut self, len: usize) {
        match self.0.output.get_mut(len / 2).filter(|_| len > 0) {
            Some(byte) => *byte ^= 0x04,
            None => self.0.tag[7] ^= 0x04,
        }
    }
}

impl Drop for DeviceCopy {
    fn drop(&mut self) {
        self.0.input.zeroize();
        self.0.output.zeroize();
        self.0.nonce.zeroize();
        self.0.aad.zeroize();
        self.0.tag.zeroize();
    }
}

/// What the request ring carries.
pub(crate) struct Order {
    /// The instance's number for it, used once.
    pub id: u64,
    pub copy: DeviceCopy,
    /// When the doorbell rang.
    pub rung: Nanos,
    /// Whether it is the last of its doorbell.
    pub last: bool,
}

/// What the response ring carries.
pub(crate) struct Answer {
    pub id: u64,
    pub copy: DeviceCopy,
    pub result: Result<usize, Error>,
    pub at: Nanos,
    pub energy_nj: Option<u64>,
}

/// What all instances of one emulated engine share: its declared faults and whether it is there.
pub(crate) struct Machine {
    pub faults: Vec<Fault>,
    pub compute: Arc<dyn Engine>,
    born: OnceLock<Nanos>,
    requests: AtomicU64,
    /// How often a request made it lost. An instance opened before the latest loss is lost.
    losses: AtomicU64,
    /// The age until which it stays lost.
    lost_until: AtomicU64,
    /// When the stepped card that was polled last answers next; `Nanos::MAX` if it has nothing to answer.
    due: AtomicU64,
}

impl Machine {
    pub(crate) fn new(compute: Arc<dyn Engine>, faults: Vec<Fault>) -> Machine {
        Machine {
            faults,
            compute,
            born: OnceLock::new(),
            requests: AtomicU64::new(0),
            losses: AtomicU64::new(0),
            lost_until: AtomicU64::new(0),
            due: AtomicU64::new(Nanos::MAX),
        }
    }

    /// Says when the stepped card that was polled last answers next.
    pub(crate) fn set_due(&self, due: Option<Nanos>) {
        self.due.store(due.unwrap_or(Nanos::MAX), Ordering::Release);
    }

    pub(crate) fn due(&self) -> Option<Nanos> {
        Some(self.due.load(Ordering::Acquire)).filter(|due| *due != Nanos::MAX)
    }

    /// Nanoseconds since the first opening.
    pub(crate) fn age(&self, now: Nanos) -> Nanos {
        now.saturating_sub(*self.born.get_or_init(|| now))
    }

    /// A view of the machine for an instance opened now; `None` if the machine is lost.
    pub(crate) fn join(self: &Arc<Self>, now: Nanos) -> Option<Membership> {
        let age = self.age(now);
        let gone = age < self.lost_until.load(Ordering::Acquire) || fault::gone_at(&self.faults, age);
        (!gone).then(|| Membership {
            machine: self.clone(),
            since: age,
            losses: self.losses.load(Ordering::Acquire),
        })
    }

    /// Counts a request that reached the machine, and says what becomes of it; `None` if the machine is lost by it.
    fn fate(&self, at: Nanos) -> Option<Fate> {
        let count = self.requests.fetch_add(1, Ordering::AcqRel) + 1;
        let age = self.age(at);
        if let Some(until) = fault::lost_by(&self.faults, count, age) {
            self.lost_until.fetch_max(until, Ordering::AcqRel);
            self.losses.fetch_add(1, Ordering::AcqRel);
            return None;
        }
        Some(fault::fate(&self.faults, count, age))
    }
}

/// An opener's view of the machine.
#[derive(Clone)]
pub(crate) struct Membership {
    pub machine: Arc<Machine>,
    since: Nanos,
    losses: u64,
}

impl Membership {
    /// Whether the machine has been lost since it was opened, even if it is back by now.
    pub(crate) fn is_lost(&self, now: Nanos) -> bool {
        self.machine.losses.load(Ordering::Acquire) != self.losses
            || fault::lost_between(&self.machine.faults, self.since, self.machine.age(now))
    }
}

/// How the owner and the card's thread tell each other that it is over.
#[derive(Debug, Default)]
pub(crate) struct Flags {
    /// Set by the owner: answer nothing more.
    pub stopped: AtomicBool,
    /// Set by the card: nothing more will be answered.
    pub dead: AtomicBool,
}

/// The device side of one instance.
pub(crate) struct Card {
    device: Device,
    membership: Membership,
    orders: Receiver<Order>,
    answers: Sender<Answer>,
    /// Computed, and answered when the device says so.
    memory: BTreeMap<u64, (DeviceCopy, Result<usize, Error>)>,
    /// Never answered. They stay in device memory until the card goes.
    swallowed: Vec<DeviceCopy>,
    /// The doorbell being received.
    doorbell: Vec<Work>,
}

impl Card {
    pub(crate) fn new(
        model: Model,
        membership: Membership,
        now: Nanos,
        orders: Receiver<Order>,
        answers: Sender<Answer>,
    ) -> Card {
        Card {
            device: Device::new(model, now),
            membership,
            orders,
            answers,
            memory: BTreeMap::new(),
            swallowed: Vec::new(),
            doorbell: Vec::new(),
        }
    }

    /// Takes what was ordered, answers what is done by now, and says when the next answer is due.
    pub(crate) fn step(&mut self, clock: &dyn Fn() -> Nanos, flags: &Flags) -> Option<Nanos> {
        while let Some(order) = self.orders.receive() {
            if flags.stopped.load(Ordering::Acquire) || flags.dead.load(Ordering::Acquire) {
                return None;
            }
            // The owner's clock may run a little ahead of this thread's.
            let rung = order.rung.min(clock());
            let last = order.last;
            // What ended before this doorbell is answered whatever this doorbell does; what ends after it must wait,
            // because a doorbell that rang before that may still be in the ring.
            self.answer(rung);
            if !self.take(order, rung) {
                flags.dead.store(true, Ordering::Release);
                return None;
            }
            if last {
                let accepted = self.device.accept(rung, &std::mem::take(&mut self.doorbell));
                debug_assert!(accepted.is_ok(), "the instance refuses kinds that the model does not do");
            }
        }
        if self.membership.is_lost(clock()) {
            flags.dead.store(true, Ordering::Release);
            return None;
        }
        self.answer(clock());
        self.device.next_event()
    }

    /// Computes one order. Returns false if the machine is lost by it.
    fn take(&mut self, order: Order, rung: Nanos) -> bool {
        let Order { id, mut copy, .. } = order;
        let Some(fate) = self.membership.machine.fate(rung) else { return false };
        if fate.silent {
            self.swallowed.push(copy);
            return true;
        }
        let mut result = match fate.error {
            true => Err(Error::Device(wattlock_core::Fault::Reported)),
            false => execute(&*self.membership.machine.compute, &mut copy.0.view()),
        };
        match result {
            Ok(len) if fate.wrong => copy.flip_a_bit(len),
            // A machine that errs may also err by accepting.
            Err(error) if fate.wrong && error.is_forgery() => result = Ok(copy.0.input.len()),
            _ => {}
        }
        let bytes = copy.bytes();
        self.doorbell.push(Work { id, kind: copy.0.kind, bytes, stretch_permille: fate.stretch_permille });
        self.memory.insert(id, (copy, result));
        true
    }

    fn answer(&mut self, now: Nanos) {
        let (memory, answers) = (&mut self.memory, &mut self.answers);
        self.device.advance(now, &mut |done| {
            let Some((copy, result)) = memory.remove(&done.id) else { return };
            let answer = Answer { id: done.id, copy, result, at: done.at, energy_nj: done.energy_nj };
            // The window bounds what is in flight, and both rings have room for a window.
            assert!(answers.send(answer).is_ok(), "the response ring has room for everything in flight");
        });
    }
}
