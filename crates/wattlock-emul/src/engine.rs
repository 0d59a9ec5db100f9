//! The emulated accelerator behind the [`Engine`] trait: the owner's side of the rings.
//!
//! An instance keeps the door's request and sends a copy to its [`Card`], which is "device memory". So a request can be
//! withdrawn at any time, while the copy stays hostage until the card answers or the instance is stopped.
//!
//! | entry's request | entry's copy       | state                                     | counts against the window |
//! |-----------------|--------------------|-------------------------------------------|---------------------------|
//! | here            | in `held`          | held: no doorbell yet                     | yes                       |
//! | here            | in a ring or card  | in flight                                 | yes                       |
//! | gone            | in a ring or card  | hostage: withdrawn, not answered          | yes                       |
//! | here            | gone               | stopped or lost, given back by next `poll` | yes                       |
//!
//! Rules: an entry is made by `submit` alone and removed once, by `poll` (with a completion if its request is here), by
//! `withdraw` while held, or by `stop` if it is a hostage. Both rings have room for a window, so sending never fails.
//!
//! Every instance is a whole card: two instances do not share servers.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wattlock_core::{
    Completion, Cost, Description, Engine, EngineClass, Error, Family, Fault as CoreFault, GpuAttributes,
    Instance, Kind, KindSet, Nanos, OwnedRequest, Refused, Token, Window,
};

use crate::card::{Answer, Card, DeviceCopy, Flags, Machine, Membership, Order};
use crate::fault::Fault;
use crate::model::{Model, ModelError};
use crate::ring::{Receiver, Sender, ring};

/// The source of the card's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// The wall clock: each instance has a thread, parked while nothing is due.
    RealTime,
    /// The owner, by the `now` of its calls; computation happens in `poll`. No thread, and the same calls always give
    /// the same completions.
    Stepped,
}

/// An accelerator that does not exist.
pub struct Emulated {
    description: Description,
    model: Model,
    machine: Arc<Machine>,
    pace: Pace,
}

impl Emulated {
    /// An emulated accelerator that behaves like `model` and lets `compute` do the work. It does the kinds that both
    /// can do.
    ///
    /// # Errors
    /// What is wrong with the model.
    pub fn new(model: Model, compute: Arc<dyn Engine>, pace: Pace) -> Result<Emulated, ModelError> {
        model.validate()?;
        let by = compute.description();
        let queued = model.kinds().intersection(by.inline);
        let (name, servers) = (&model.name, model.servers());
        let (class, what) = match &model.gpu {
            Some(gpu) => (EngineClass::Gpu, format!("GPU with {} streams", gpu.streams)),
            None => (EngineClass::Accelerator, format!("{servers} servers")),
        };
        let detail = format!("emulated, not hardware: model {name}, {what}, results computed by {}", by.name);
        let description = Description { name: "emulated", class, inline: KindSet::EMPTY, queued, detail };
        let machine = Arc::new(Machine::new(compute, model.faults.clone()));
        Ok(Emulated { description, model, machine, pace })
    }

    /// The same accelerator with faults to come. Counting starts afresh; instances opened before keep the old ones.
    #[must_use]
    pub fn with_faults(self, faults: Vec<Fault>) -> Emulated {
        let machine = Arc::new(Machine::new(self.machine.compute.clone(), faults));
        Emulated { machine, ..self }
    }

    /// What it is like.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// When the next answer is due: with [`Pace::Stepped`], nothing happens before that time. It is the instance polled
    /// last that counts, as it was after that poll; `None` if it had nothing to answer. Requests given back by a loss
    /// come earlier. In real time this is always `None`.
    pub fn next_due(&self) -> Option<Nanos> {
        self.machine.due()
    }
}

impl Engine for Emulated {
    fn description(&self) -> &Description {
        &self.description
    }

    fn width(&self, kind: Kind) -> u16 {
        if self.description.queued.contains(kind) { self.model.width } else { 1 }
    }

    fn at_once(&self, kind: Kind) -> Option<u32> {
        // A GPU's copies and kernels overlap instead.
        let cards = self.model.gpu.is_none().then_some(&self.model)?;
        let pool = cards.pool_of(kind).filter(|_| self.description.queued.contains(kind))?;
        Some(cards.pools[pool].servers.saturating_mul(u32::from(cards.width)))
    }

    fn window(&self) -> Window {
        self.model.window
    }

    fn gpu(&self) -> Option<GpuAttributes> {
        self.model.gpu.as_ref()?.attributes()
    }

    fn takes_runs(&self, kind: Kind, _longest: usize) -> bool {
        self.model.gpu.is_some() && self.description.queued.contains(kind)
    }

    fn open(&self, now: Nanos) -> Result<Box<dyn Instance>, Error> {
        let lost = Error::Device(CoreFault::Lost);
        let membership = self.machine.join(now).ok_or(lost)?;
        let room = self.model.window.requests as usize;
        let (orders, ordered) = ring(room);
        let (answering, answers) = ring(room);
        let flags = Arc::new(Flags::default());
        let card = Card::new(self.model.clone(), membership.clone(), now, ordered, answering);
        let side = match self.pace {
            Pace::Stepped => Side::Stepped(Box::new(card)),
            Pace::RealTime => Side::Thread(spawn(card, flags.clone(), now).map_err(|_| lost)?),
        };
        Ok(Box::new(Queue {
            kinds: self.description.queued,
            runs: self.model.gpu.is_some(),
            window: self.model.window,
            width: usize::from(self.model.width),
            membership,
            flags,
            side,
            orders,
            answers,
            entries: BTreeMap::new(),
            ids: HashMap::new(),
            held: VecDeque::new(),
            bytes: 0,
            next_id: 0,
            over: false,
        }))
    }
}

/// Where the card is.
enum Side {
    Stepped(Box<Card>),
    Thread(JoinHandle<()>),
    /// Stopped or lost.
    Gone,
}

/// Runs a card on a thread of its own, on the wall clock, which reads `now` at this moment.
fn spawn(mut card: Card, flags: Arc<Flags>, now: Nanos) -> std::io::Result<JoinHandle<()>> {
    let start = Instant::now();
    let clock = move || now + start.elapsed().as_nanos() as Nanos;
    std::thread::Builder::new().name("emulated-card".into()).spawn(move || {
        let _last_will = LastWill(flags.clone());
        while !flags.stopped.load(Ordering::Acquire) {
            let due = card.step(&clock, &flags);
            if flags.dead.load(Ordering::Acquire) {
                return;
            }
            // An order or a stop that came meanwhile has left a token, and parking returns at once.
            match due {
                Some(at) => std::thread::park_timeout(Duration::from_nanos(at.saturating_sub(clock()))),
                None => std::thread::park(),
            }
        }
    })
}

/// However the thread ends, its owner must not wait for it.
struct LastWill(Arc<Flags>);

impl Drop for LastWill {
    fn drop(&mut self) {
        self.0.dead.store(true, Ordering::Release);
    }
}

/// A request that was accepted.
struct Entry {
    token: Token,
    /// `None`: withdrawn, its copy is hostage.
    request: Option<OwnedRequest>,
    bytes: u64,
    submitted: Nanos,
    rung: Nanos,
    batch: u16,
}

/// One opened queue pair.
struct Queue {
    kinds: KindSet,
    /// Whether it takes runs.
    runs: bool,
    window: Window,
    width: usize,
    membership: Membership,
    flags: Arc<Flags>,
    side: Side,
    orders: Sender<Order>,
    answers: Receiver<Answer>,
    entries: BTreeMap<u64, Entry>,
    /// Tokens whose request is here.
    ids: HashMap<Token, u64>,
    held: VecDeque<(u64, DeviceCopy)>,
    bytes: u64,
    next_id: u64,
    over: bool,
}

impl Queue {
    fn refusal(&mut self, token: Token, request: &mut OwnedRequest, now: Nanos) -> Option<Error> {
        if self.over || self.flags.dead.load(Ordering::Acquire) || self.membership.is_lost(now) {
            return Some(Error::Device(CoreFault::Lost));
        }
        if !self.kinds.contains(request.kind) || (request.run.is_some() && !self.runs) {
            return Some(Error::Unsupported);
        }
        if let Err(error) = request.view().validate() {
            return Some(error);
        }
        if self.ids.contains_key(&token) {
            return Some(Error::Invalid("token"));
        }
        let bytes = self.bytes.saturating_add(request.input.len() as u64);
        (self.in_flight() >= self.window.requests || bytes > self.window.bytes).then_some(Error::Full)
    }

    /// An answer to a request that is still here becomes a completion; any other is dropped.
    fn settle(&mut self, answer: Answer, done: &mut dyn FnMut(Completion)) -> usize {
        let Some(entry) = self.remove(answer.id) else { return 0 };
        let Some(mut request) = entry.request else { return 0 };
        let result = deliver(&answer, &mut request);
        let cost = Cost {
            latency_ns: answer.at.saturating_sub(entry.submitted),
            held_ns: entry.rung.saturating_sub(entry.submitted),
            batch: entry.batch,
            energy_nj: answer.energy_nj,
        };
        done(Completion { token: entry.token, request, result, cost });
        1
    }

    fn remove(&mut self, id: u64) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        self.bytes -= entry.bytes;
        if entry.request.is_some() {
            self.ids.remove(&entry.token);
        }
        Some(entry)
    }

    /// Ends the card. The thread is told, not waited for.
    fn end(&mut self) {
        self.over = true;
        self.flags.stopped.store(true, Ordering::Release);
        self.held.clear();
        match &self.side {
            Side::Thread(thread) => thread.thread().unpark(),
            _ => {
                self.side = Side::Gone;
                self.membership.machine.set_due(None);
            }
        }
        let hostages: Vec<u64> =
            self.entries.iter().filter(|(_, entry)| entry.request.is_none()).map(|(id, _)| *id).collect();
        for id in hostages {
            self.remove(id);
        }
    }

    /// Gives everything back.
    fn give_back(&mut self, now: Nanos, done: &mut dyn FnMut(Completion)) -> usize {
        self.bytes = 0;
        self.ids.clear();
        let mut count = 0;
        for entry in std::mem::take(&mut self.entries).into_values() {
            let Some(request) = entry.request else { continue };
            let latency_ns = now.saturating_sub(entry.submitted);
            let cost = Cost { latency_ns, held_ns: 0, batch: entry.batch, energy_nj: None };
            let result = Err(Error::Device(CoreFault::Lost));
            done(Completion { token: entry.token, request, result, cost });
            count += 1;
        }
        count
    }
}

/// Copies a result out of device memory.
fn deliver(answer: &Answer, request: &mut OwnedRequest) -> Result<usize, Error> {
    let len = answer.result?;
    let from = answer.copy.0.output.get(..len);
    let (Some(from), Some(to)) = (from, request.output.get_mut(..len)) else {
        return Err(Error::Device(CoreFault::WrongResult));
    };
    to.copy_from_slice(from);
    // The tag of what is opened is input: a card that spoils its copy must not spoil what the CPU is asked next.
    if request.kind.info().family != Family::Open {
        request.tag = answer.copy.0.tag;
    }
    Ok(len)
}

impl Instance for Queue {
    fn window(&self) -> Window {
        self.window
    }

    fn in_flight(&self) -> u32 {
        self.entries.len() as u32
    }

    fn held(&self) -> u32 {
        self.held.len() as u32
    }

    fn submit(&mut self, token: Token, mut request: OwnedRequest, now: Nanos) -> Result<(), Refused> {
        if let Some(error) = self.refusal(token, &mut request, now) {
            return Err(Refused { error, request });
        }
        let (id, bytes) = (self.next_id, request.input.len() as u64);
        self.next_id += 1;
        self.bytes += bytes;
        self.held.push_back((id, DeviceCopy::of(&request)));
        self.ids.insert(token, id);
        let entry = Entry { token, request: Some(request), bytes, submitted: now, rung: now, batch: 1 };
        self.entries.insert(id, entry);
        // Where one request makes a batch, holding is up to the owner alone.
        if self.width > 1 && self.held.len() >= self.width {
            self.flush(now);
        }
        Ok(())
    }

    fn flush(&mut self, now: Nanos) {
        let batch = self.held.len();
        if batch == 0 {
            return;
        }
        for (index, (id, copy)) in std::mem::take(&mut self.held).into_iter().enumerate() {
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.rung = now;
                entry.batch = u16::try_from(batch).unwrap_or(u16::MAX);
            }
            let order = Order { id, copy, rung: now, last: index + 1 == batch };
            let sent = self.orders.send(order).is_ok();
            debug_assert!(sent, "the request ring has room for everything in flight");
        }
        if let Side::Thread(thread) = &self.side {
            thread.thread().unpark();
        }
    }

    fn poll(&mut self, now: Nanos, done: &mut dyn FnMut(Completion)) -> usize {
        if self.over {
            return self.give_back(now, done);
        }
        if let Side::Stepped(card) = &mut self.side {
            let due = card.step(&|| now, &self.flags);
            self.membership.machine.set_due(due);
        }
        // Read before the ring: what the card answered before it died is in the ring by then.
        let dead = self.flags.dead.load(Ordering::Acquire) || self.membership.is_lost(now);
        let mut count = 0;
        while let Some(answer) = self.answers.receive() {
            count += self.settle(answer, done);
        }
        if dead {
            self.end();
            count += self.give_back(now, done);
        }
        count
    }

    fn withdraw(&mut self, token: Token, _now: Nanos) -> Option<OwnedRequest> {
        let id = self.ids.get(&token).copied()?;
        let here = self.held.iter().position(|(held, _)| *held == id);
        if here.is_none() && !self.over {
            self.ids.remove(&token);
            return self.entries.get_mut(&id)?.request.take();
        }
        if let Some(at) = here {
            self.held.remove(at);
        }
        self.remove(id)?.request
    }

    fn stop(&mut self, _now: Nanos) {
        self.end();
    }
}

impl Drop for Queue {
    /// Waits for the thread, which at most finishes the request it is computing. In a forked child that thread does not
    /// exist: there, an instance is to be forgotten ([`std::mem::forget`]), not dropped.
    fn drop(&mut self) {
        self.end();
        if let Side::Thread(thread) = std::mem::replace(&mut self.side, Side::Gone) {
            // A card that panicked has said so by its last will.
            let _ = thread.join();
        }
    }
}
