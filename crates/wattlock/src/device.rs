//! One device as a process has it, shared by the threads of a runtime.
//!
//! A dispatcher opens a [`Handle`]. Behind all handles of a device are its queue pairs, one or several, which take
//! submissions in turn: utilisation, window and what waits are the device's, and not a thread's. A thread that looks for
//! answers takes them for all, and leaves those of other threads in their inboxes.
//!
//! 1. A device that failed one thread has failed all: [`Handle::stop`] ends its queue pairs, and what other threads have
//!    there comes back to them as lost. Their handles are over; the next handle that is opened begins anew.
//! 2. A handle that goes withdraws its own requests. The last one that goes closes the pairs.
//! 3. Nothing of a parent's is touched in a child: its first handle begins anew.
//! 4. Pairs are dropped without the lock being held: a pair may wait for its thread.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use wattlock_core::sync::lock;
use wattlock_core::{
    Completion, Engine, Error, Family, Fault, Instance, Nanos, OwnedRequest, Refused, Token, Window,
};

use crate::sys::fork::PerProcess;

/// A device of a runtime.
pub(crate) struct Device {
    engine: Arc<dyn Engine>,
    pairs: usize,
    hub: PerProcess<Mutex<Arc<Hub>>>,
}

impl Device {
    /// With so many queue pairs, at least one, of which none is opened yet.
    pub(crate) fn new(engine: Arc<dyn Engine>, pairs: usize) -> Device {
        Device { engine, pairs: pairs.max(1), hub: PerProcess::new() }
    }

    /// A way to it for one thread. Opens its pairs if that was not done.
    ///
    /// # Errors
    /// The engine's, if it opens none.
    pub(crate) fn open(&self, now: Nanos) -> Result<Handle, Error> {
        let hub = {
            let mut last = lock(self.hub.get(Mutex::default));
            if last.over.load(Relaxed) {
                *last = Arc::default();
            }
            last.clone()
        };
        let mut state = lock(&hub.state);
        if hub.over.load(Relaxed) {
            // It was given up in between.
            drop(state);
            return self.open(now);
        }
        let now = state.at(now);
        while state.pairs.len() < self.pairs {
            match self.engine.open(now) {
                Ok(instance) => state.pairs.push(Pair::new(instance)),
                Err(error) if state.pairs.is_empty() => return Err(error),
                Err(error) => {
                    tracing::warn!(engine = self.engine.description().name, %error, "fewer queue pairs");
                    break;
                }
            }
        }
        let (id, inbox) = (state.next_owner, Inbox::default());
        state.next_owner += 1;
        state.owners.insert(id, Arc::clone(&inbox));
        hub.count(&mut state);
        drop(state);
        Ok(Handle { hub, id, inbox, mine: HashMap::new() })
    }
}

/// What all handles share.
#[derive(Default)]
struct Hub {
    state: Mutex<State>,
    /// Whether it was given up.
    over: AtomicBool,
    /// Requests of all handles that count against the window, of these the held ones, and the window: of all pairs.
    in_flight: AtomicU32,
    held: AtomicU32,
    window: AtomicU32,
    /// The widest pair's window of bytes, and of it what the pair with the most room has no room for: a request must fit one.
    window_bytes: AtomicU64,
    bytes: AtomicU64,
}

type Inbox = Arc<Mutex<Vec<Completion>>>;

#[derive(Default)]
struct State {
    pairs: Vec<Pair>,
    /// The pair that takes the next submission.
    turn: usize,
    next_owner: u32,
    owners: HashMap<u32, Inbox>,
    /// Requests in flight by the number that their pair knows them by.
    flying: HashMap<u64, Flying>,
    number: u64,
    /// When a thread last came: the clocks of several are read out of turn.
    now: Nanos,
}

/// A queue pair.
struct Pair {
    instance: Box<dyn Instance>,
    /// Of those in flight, here: number and bytes.
    flying: (u32, u64),
    /// Requests that were withdrawn and that the machine may still have: when they were submitted, and their bytes.
    hostages: VecDeque<(Nanos, u64)>,
}

struct Flying {
    owner: u32,
    token: Token,
    /// Its pair's place among the pairs.
    pair: usize,
    bytes: u64,
    since: Nanos,
}

impl Pair {
    fn new(instance: Box<dyn Instance>) -> Pair {
        Pair { instance, flying: (0, 0), hostages: VecDeque::new() }
    }

    fn left(&mut self, bytes: u64) {
        self.flying = (self.flying.0 - 1, self.flying.1 - bytes);
    }

    /// Forgets the oldest hostages that the machine has let go: it says only how many requests it has.
    fn forget_freed(&mut self) {
        let kept = self.instance.in_flight().saturating_sub(self.flying.0) as usize;
        let freed = self.hostages.len().saturating_sub(kept);
        self.hostages.drain(..freed);
    }
}

impl State {
    fn at(&mut self, now: Nanos) -> Nanos {
        self.now = self.now.max(now);
        self.now
    }

    /// Takes what pairs have finished into the inboxes of its owners. No thread waits for an answer without one.
    fn collect(&mut self, now: Nanos) {
        let now = self.at(now);
        let mut arrived = Vec::new();
        for pair in &mut self.pairs {
            pair.instance.poll(now, &mut |completion| arrived.push(completion));
        }
        for completion in arrived {
            self.deliver(completion);
        }
    }

    fn deliver(&mut self, completion: Completion) {
        let Some(Flying { owner, token, pair, bytes, .. }) = self.flying.remove(&completion.token.0) else {
            tracing::error!("a device answered twice; the second answer is dropped");
            return;
        };
        if let Some(pair) = self.pairs.get_mut(pair) {
            pair.left(bytes);
        }
        if let Some(inbox) = self.owners.get(&owner) {
            lock(inbox).push(Completion { token, ..completion });
        }
    }

    /// Takes a request out of flight and back from its pair. `None` if the pair does not give it back: it may answer yet.
    fn withdraw(&mut self, number: u64, now: Nanos) -> Option<OwnedRequest> {
        let now = self.at(now);
        let &Flying { pair, bytes, since, .. } = self.flying.get(&number)?;
        let pair = self.pairs.get_mut(pair)?;
        let before = pair.instance.in_flight();
        let request = pair.instance.withdraw(Token(number), now)?;
        if pair.instance.in_flight() == before {
            pair.hostages.push_back((since, bytes));
        }
        pair.left(bytes);
        self.flying.remove(&number);
        Some(request)
    }
}

impl Hub {
    fn count(&self, state: &mut State) {
        let (mut requests, mut held, mut window, mut widest, mut room) = (0, 0, 0_u32, 0, 0);
        for pair in &mut state.pairs {
            pair.forget_freed();
            requests += pair.instance.in_flight();
            held += pair.instance.held();
            let own = pair.instance.window();
            let bytes = pair.flying.1 + pair.hostages.iter().map(|(_, bytes)| bytes).sum::<u64>();
            window = window.saturating_add(own.requests);
            widest = own.bytes.max(widest);
            room = own.bytes.saturating_sub(bytes).max(room);
        }
        self.in_flight.store(requests, Relaxed);
        self.held.store(held, Relaxed);
        self.window.store(window, Relaxed);
        self.window_bytes.store(widest, Relaxed);
        self.bytes.store(widest - room, Relaxed);
    }
}

/// One thread's way to a device. No call blocks for longer than another thread's call.
pub(crate) struct Handle {
    hub: Arc<Hub>,
    id: u32,
    inbox: Inbox,
    /// The numbers of this handle's requests.
    mine: HashMap<Token, u64>,
}

impl Handle {
    /// How much may be in flight: requests of all threads and pairs, and bytes of one pair. Of a GPU it is nothing until its
    /// context is up.
    pub(crate) fn window(&self) -> Window {
        if self.hub.window.load(Relaxed) == 0 {
            self.hub.count(&mut lock(&self.hub.state));
        }
        Window { requests: self.hub.window.load(Relaxed), bytes: self.hub.window_bytes.load(Relaxed) }
    }

    /// Requests of all threads that count against the window, hostages among them.
    pub(crate) fn in_flight(&self) -> u32 {
        self.hub.in_flight.load(Relaxed)
    }

    /// Bytes in flight where there is the most room for more.
    pub(crate) fn in_flight_bytes(&self) -> u64 {
        self.hub.bytes.load(Relaxed)
    }

    /// Of them, those that the machine was not told of yet.
    pub(crate) fn held(&self) -> u32 {
        self.hub.held.load(Relaxed)
    }

    /// This thread's requests.
    pub(crate) fn own(&self) -> u32 {
        self.mine.len() as u32
    }

    /// Whether the device was given up, and nothing of this thread's is to come from there.
    pub(crate) fn is_over_and_empty(&self) -> bool {
        self.hub.over.load(Relaxed) && self.mine.is_empty()
    }

    /// Requests that threads withdrew, that the machine still has, and that it has had since that time or longer.
    pub(crate) fn hostages(&self, before: Nanos) -> u32 {
        let state = lock(&self.hub.state);
        let old = |pair: &Pair| pair.hostages.iter().filter(|(since, _)| *since <= before).count();
        state.pairs.iter().map(old).sum::<usize>() as u32
    }

    /// Gives a request to the next pair in turn that has room for it, from `first` on if one is named, and says to which.
    pub(crate) fn submit(
        &mut self,
        token: Token,
        mut request: OwnedRequest,
        first: Option<usize>,
        now: Nanos,
    ) -> Result<u8, Refused> {
        let mut state = lock(&self.hub.state);
        if self.hub.over.load(Relaxed) {
            return Err(Refused { error: Error::Device(Fault::Lost), request });
        }
        // Answers that wait for a thread count against nothing, so its own requests are bounded, too.
        if self.mine.len() as u64 >= u64::from(self.hub.window.load(Relaxed)) {
            self.hub.count(&mut state);
            if self.mine.len() as u64 >= u64::from(self.hub.window.load(Relaxed).max(1)) {
                return Err(Refused { error: Error::Full, request });
            }
        }
        let (now, number, count) = (state.at(now), state.number, state.pairs.len());
        state.number += 1;
        let bytes = request.input.len() as u64;
        for step in 0..count {
            let at = first.map_or(state.turn, |first| first + step) % count;
            if first.is_none() {
                state.turn = at + 1;
            }
            match state.pairs[at].instance.submit(Token(number), request, now) {
                Ok(()) => {
                    let flying = &mut state.pairs[at].flying;
                    *flying = (flying.0 + 1, flying.1 + bytes);
                    state
                        .flying
                        .insert(number, Flying { owner: self.id, token, pair: at, bytes, since: now });
                    self.mine.insert(token, number);
                    self.hub.count(&mut state);
                    return Ok(at as u8);
                }
                Err(Refused { error: Error::Full, request: back }) => request = back,
                Err(refused) => return Err(refused),
            }
        }
        Err(Refused { error: Error::Full, request })
    }

    /// Rings every pair's doorbell.
    pub(crate) fn flush(&mut self, now: Nanos) {
        let mut state = lock(&self.hub.state);
        let now = state.at(now);
        for pair in state.pairs.iter_mut().filter(|pair| pair.instance.held() > 0) {
            pair.instance.flush(now);
        }
        self.hub.count(&mut state);
    }

    /// Hands this thread's answers to `done`. If another thread is looking just now, it looks for all.
    pub(crate) fn poll(&mut self, now: Nanos, done: &mut dyn FnMut(Completion)) {
        match self.hub.state.try_lock() {
            Ok(state) => self.look(state, now),
            Err(TryLockError::Poisoned(state)) => self.look(state.into_inner(), now),
            Err(TryLockError::WouldBlock) => {}
        }
        self.hand_out(done);
    }

    /// The same, but it waits until another thread is done: whatever was answered by now is handed out.
    pub(crate) fn poll_patiently(&mut self, now: Nanos, done: &mut dyn FnMut(Completion)) {
        self.look(lock(&self.hub.state), now);
        self.hand_out(done);
    }

    fn look(&self, mut state: MutexGuard<'_, State>, now: Nanos) {
        state.collect(now);
        self.hub.count(&mut state);
    }

    fn hand_out(&mut self, done: &mut dyn FnMut(Completion)) {
        let arrived = mem::take(&mut *lock(&self.inbox));
        for completion in arrived {
            self.mine.remove(&completion.token);
            done(completion);
        }
    }

    /// Takes a request of this thread's back, as it was submitted. `None` if the device keeps it: its answer may come.
    pub(crate) fn withdraw(&mut self, token: Token, now: Nanos) -> Option<OwnedRequest> {
        let number = *self.mine.get(&token)?;
        let mut state = lock(&self.hub.state);
        if state.flying.contains_key(&number) {
            let request = state.withdraw(number, now);
            self.hub.count(&mut state);
            if request.is_some() {
                self.mine.remove(&token);
            }
            return request;
        }
        drop(state);
        // It was answered meanwhile. Nobody has looked at the answer, so nothing of it leaves.
        let mut inbox = lock(&self.inbox);
        let at = inbox.iter().position(|completion| completion.token == token)?;
        let mut request = inbox.swap_remove(at).request;
        self.mine.remove(&token);
        request.output.fill(0);
        if request.kind.info().family == Family::Seal {
            request.tag.fill(0);
        }
        Some(request)
    }

    /// Gives the device up, for all threads. What this one has there comes with the next [`Handle::poll`].
    pub(crate) fn stop(&mut self, now: Nanos) {
        let mut state = lock(&self.hub.state);
        self.hub.over.store(true, Relaxed);
        let now = state.at(now);
        let mut pairs = mem::take(&mut state.pairs);
        // In one go: a thread that came in between would find its request nowhere.
        let mut given_back = Vec::new();
        for pair in &mut pairs {
            pair.instance.stop(now);
            pair.instance.poll(now, &mut |completion| given_back.push(completion));
        }
        for completion in given_back {
            state.deliver(completion);
        }
        // What a pair kept against its promise is lost with it.
        state.flying.clear();
        self.hub.count(&mut state);
        drop(state);
        drop(pairs);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut state = lock(&self.hub.state);
        state.owners.remove(&self.id);
        let now = state.now;
        for number in self.mine.values() {
            drop(state.withdraw(*number, now));
        }
        let mut closed = if state.owners.is_empty() { mem::take(&mut state.pairs) } else { Vec::new() };
        self.hub.count(&mut state);
        drop(state);
        for pair in &mut closed {
            pair.instance.stop(now);
            pair.instance.poll(now, &mut |_| {});
        }
    }
}
