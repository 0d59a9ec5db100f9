//! A thread's way into the runtime, and what happens inside an `ASYNC_JOB`.
//!
//! A [`Seat`] is one thread's dispatcher for one loaded provider. It has a lock because two others may come to it: our
//! helper thread, and threads that free a wait context. Its own thread finds the lock free except for those.
//!
//! - `threads`: which seat is the calling thread's.
//! - `inside`: work inside the call, and when that waits for a device.
//! - `job`: submitting, gathering, pausing, and going on.
//! - `waiter`, `link`: what waits, how it is told, and what a wait context holds of it.
//! - `key_stock`: key pairs that are made in advance.
//! - `secret_cache`: secrets that TLS will derive from again.
//! - `stack`: where operations of jobs are computed, and where an event loop's handshakes run.
//! - `helper`: the thread that looks after what no loop comes back for.
//!
//! *Lifetimes.* A request owns its buffers, so nothing here touches an application's memory after a connection is gone.
//! The wait context holds a `Link`; its cleanup withdraws the request and silences the notification before anything of
//! the connection's is freed.

mod helper;
mod inside;
mod job;
mod key_stock;
mod link;
// Not in the package of the same sources that has emulated cards: it is not a test of theirs.
#[cfg(all(test, target_arch = "x86_64", not(feature = "emulate")))]
mod published;
mod secret_cache;
mod stack;
#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) mod tests;
mod threads;
mod waiter;

#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) use inside::tests::UnderRule;
pub(crate) use inside::waits;
pub(crate) use secret_cache::is_known;

use std::ffi::c_void;
use std::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Acquire, Relaxed},
};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use wattlock_core::sync::lock;

use wattlock::core::{
    Completion, CompressStream, Error, Key, Kind, KindSet, Nanos, OwnedRequest, Request, Stream, Token,
};
use wattlock::policy::{Again, Expected, Flight, Gather, Moment, Next};
use wattlock::{Clock, Dispatcher, Runtime, Submitted};

use crate::provider::{Current, Provider};
use crate::settings::Pause;
use crate::spread::Crew;
pub(crate) use helper::Life;
use helper::Seats;
use job::Announced;
use key_stock::KeyStock;
use secret_cache::SecretCache;
use stack::{Stack, Stacks};
use waiter::{Notify, Waiter};

/// One thread's way into one provider's runtime.
pub struct Seat {
    forks: u32,
    epoch: u32,
    state: Mutex<State>,
    /// Whether something was gathered or in flight when the state was last let go.
    waited_for: Arc<AtomicBool>,
    /// Whether the application said that it polls this thread's requests.
    claimed: AtomicBool,
    /// How many could be waiting at once, if the application says so; 0 if it does not.
    active: AtomicU32,
    /// The same of connections that are not idle, whatever they do.
    busy: AtomicU32,
    /// Whether jobs of a program that does not poll may pause, too.
    pauses_unclaimed: bool,
    announced: Mutex<Vec<Announced>>,
    stacks: Stacks,
}

struct State {
    dispatcher: Dispatcher,
    clock: Clock,
    /// Not yet released, oldest first.
    gathered: Vec<Gathered>,
    /// The requests that devices have, by their marks.
    waiting: Vec<Option<Sent>>,
    arrived: Vec<Completion>,
    /// The waiters to be told once the lock is free: a callback may call us.
    tell: Vec<Arc<Waiter>>,
    gather: Gather,
    expected: Expected,
    /// When devices' answers were last looked for.
    looked: Nanos,
    key_stock: KeyStock,
    secret_cache: SecretCache,
    stack: Option<Stack>,
    /// The seat's.
    waited_for: Arc<AtomicBool>,
    /// The kinds for which a call that cannot pause waits for a device.
    waits: KindSet,
}

/// A request that a device has.
struct Sent {
    kind: Kind,
    token: Token,
    waiter: Arc<Waiter>,
    /// Which of the waiter's requests it is.
    piece: usize,
    since: Nanos,
}

/// A request that waits for batch-mates.
struct Gathered {
    request: OwnedRequest,
    waiter: Arc<Waiter>,
    /// Which of the waiter's requests it is.
    piece: usize,
    since: Nanos,
}

impl Gathered {
    fn kind(&self) -> Kind {
        self.request.kind
    }
}

/// Frees the lock, then tells the waiters.
fn unlock(mut state: MutexGuard<'_, State>) {
    let somebody = !state.gathered.is_empty() || state.has_sent();
    state.waited_for.store(somebody, Relaxed);
    let mut tell = std::mem::take(&mut state.tell);
    drop(state);
    tell.drain(..).for_each(|waiter| waiter.wake());
}

/// Keeps a request's result for its waiter, which is to be told when it has all, unless it is `me`.
fn finished(
    tell: &mut Vec<Arc<Waiter>>,
    (waiter, piece): (Arc<Waiter>, usize),
    completion: Completion,
    me: Option<&Arc<Waiter>>,
) {
    let all = waiter.finish(piece, completion.result, completion.request);
    if all && me.is_none_or(|me| !Arc::ptr_eq(me, &waiter)) {
        tell.push(waiter);
    }
}

impl State {
    fn new(runtime: &Runtime, gather: Gather, waited_for: Arc<AtomicBool>) -> State {
        State {
            dispatcher: runtime.dispatcher(),
            clock: runtime.clock().clone(),
            gathered: Vec::new(),
            waiting: Vec::new(),
            arrived: Vec::new(),
            tell: Vec::new(),
            gather,
            expected: Expected::default(),
            looked: 0,
            key_stock: KeyStock::default(),
            secret_cache: SecretCache::default(),
            stack: None,
            waited_for,
            waits: waits(runtime),
        }
    }

    fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Requests in flight, gathered ones included.
    fn in_flight(&self) -> usize {
        self.gathered.len() + self.dispatcher.in_flight()
    }

    fn flight(&self, said: Said) -> Flight {
        // Those of one operation are one connection's, and lie beside each other.
        let gathered = self.gathered.chunk_by(|one, next| Arc::ptr_eq(&one.waiter, &next.waiter)).count();
        let sent = self.waiting.iter().flatten().map(|one| one.kind);
        let kinds = self.gathered.iter().map(Gathered::kind).chain(sent);
        Flight {
            in_flight: (gathered + self.dispatcher.in_flight()) as u32,
            asymmetric: kinds.filter(|kind| kind.is_asymmetric()).count() as u32,
            active: said.active,
            busy: if self.has_sent() { said.busy } else { 0 },
            asked: said.asked,
            due: self.due(),
        }
    }

    /// When the first answer of a device is due to be looked for, if that is known of all.
    fn due(&self) -> Option<Nanos> {
        let due = |one: &Sent| self.expected.due(one.kind, one.since, self.looked);
        let mut sent = self.waiting.iter().flatten().map(due);
        let first = sent.next()??;
        sent.try_fold(first, |first, due| Some(first.min(due?)))
    }

    /// Whether a device has something.
    fn has_sent(&self) -> bool {
        self.waiting.iter().any(Option::is_some)
    }

    /// How long what has gathered first may still wait.
    fn left_ns(&self, said: Said, now: Nanos) -> Option<Nanos> {
        let first = self.gathered.first()?;
        Some(self.gather.left_ns(first.since, &self.flight(said), now))
    }

    /// Gives a request of an operation of `whole` bytes, which is one of a waiter's, to a device if the policy does. Whether it
    /// did.
    fn send(
        &mut self,
        request: &Request<'_>,
        whole: usize,
        (waiter, piece): (&Arc<Waiter>, usize),
        said: Said,
    ) -> bool {
        let free = self.waiting.iter().position(Option::is_none);
        let slot = free.unwrap_or(self.waiting.len());
        // The pieces before this one are of the same connection.
        let active = match said.connections() {
            0 => 0,
            connections => connections + piece as u32,
        };
        let submit =
            |state: &mut State| state.dispatcher.submit_to_device(request, slot as u64, whole, active);
        let Some(token) = self.deep(submit).flatten() else { return false };
        self.waiting.resize_with(self.waiting.len().max(slot + 1), || None);
        self.waiting[slot] =
            Some(Sent { kind: request.kind, token, waiter: waiter.clone(), piece, since: self.now() });
        true
    }

    /// Has the CPU do what has gathered, of one kind or of all. Returns whether gathering helped: a request had
    /// batch-mates.
    fn release(&mut self, only: Option<Kind>, me: Option<&Arc<Waiter>>) -> bool {
        let mut helped = false;
        while let Some(kind) = only.or(self.gathered.first().map(Gathered::kind)) {
            let (mut alike, mut waiters, mut held_ns) = (Vec::new(), Vec::new(), 0);
            let now = self.clock.now();
            for mut one in self.gathered.extract_if(.., |one| one.kind() == kind) {
                one.request.mark = waiters.len() as u64;
                held_ns += now.saturating_sub(one.since);
                alike.push(one.request);
                waiters.push((one.waiter, one.piece));
            }
            held_ns /= alike.len().max(1) as Nanos;
            let State { dispatcher, tell, .. } = self;
            let mut each = |mark: u64, submitted| {
                let Submitted::Done(done) = submitted else { return };
                helped |= done.cost.batch > 1;
                finished(tell, waiters[mark as usize].clone(), done, me);
            };
            match self.gather.has_device(kind) {
                true => dispatcher.do_inside(&mut alike, held_ns, &mut each),
                false => dispatcher.submit_together(&mut alike, held_ns, &mut each),
            }
            if only.is_some() {
                break;
            }
        }
        helped
    }

    /// Looks for devices' answers and takes them in.
    fn collect(&mut self, me: Option<&Arc<Waiter>>) {
        let mut arrived = std::mem::take(&mut self.arrived);
        let (looked, now) = (self.looked, self.now());
        self.looked = now;
        self.dispatcher.poll(&mut |completion| arrived.push(completion));
        for completion in arrived.drain(..) {
            // What a defect left of an earlier request must not pass for the place's next one.
            let (mark, token) = (completion.request.mark as usize, completion.token);
            let place =
                self.waiting.get_mut(mark).filter(|place| matches!(place, Some(one) if one.token == token));
            let Some(one) = place.and_then(Option::take) else { continue };
            self.expected.found(one.kind, one.since, looked, now);
            finished(&mut self.tell, (one.waiter, one.piece), completion, me);
        }
        self.arrived = arrived;
    }

    /// Takes back what devices have of a waiter's and give back: which of its requests, and the request.
    fn take_back(&mut self, waiter: &Arc<Waiter>) -> Vec<(usize, OwnedRequest)> {
        let State { waiting, dispatcher, .. } = self;
        let theirs = waiting.iter_mut().filter_map(|place| {
            let one = place.as_ref().filter(|one| Arc::ptr_eq(&one.waiter, waiter))?;
            let back = (one.piece, dispatcher.cancel(one.token)?);
            *place = None;
            Some(back)
        });
        theirs.collect()
    }

    /// Runs `work` on the seat's own stack.
    fn deep<R>(&mut self, work: impl FnOnce(&mut State) -> R) -> Option<R> {
        let mut stack = self.stack.take().or_else(Stack::new)?;
        let done = stack.run(|| work(self));
        self.stack = Some(stack);
        done
    }

    /// Whether [`State::deep`] will have a stack.
    fn has_stack(&mut self) -> bool {
        self.stack = self.stack.take().or_else(Stack::new);
        self.stack.is_some()
    }

    fn close(&mut self) {
        // Nothing of ours is in use any more when OpenSSL unloads a provider: waiters here have gone.
        self.gathered.clear();
        self.waiting.clear();
        self.key_stock.clear();
        self.secret_cache.clear();
        self.stack = None;
    }
}

/// What the application said of its event loop.
#[derive(Clone, Copy)]
struct Said {
    asked: bool,
    active: u32,
    busy: u32,
}

impl Said {
    /// Connections that may wait for this thread; 0 if the application does not say.
    fn connections(self) -> u32 {
        self.busy.max(self.active)
    }
}

/// What became of a turn of the application's loop.
pub(crate) struct Turned {
    /// Requests still in flight, gathered ones included.
    pub(crate) in_flight: usize,
    /// Whether a batch went.
    pub(crate) went: bool,
    /// Whether devices that have something were looked at.
    pub(crate) looked: bool,
    /// When the loop is to ask again.
    pub(crate) again: Again,
    /// The time.
    pub(crate) now: Nanos,
}

impl Seat {
    fn new(provider: &Provider) -> Seat {
        let epoch = provider.epoch.load(Acquire);
        let current = provider.current();
        let runtime = current.runtime;
        let settings = &current.settings;
        let rule = settings.gather_rule();
        let gather = Gather::new(runtime.machine(), rule, settings.hold, settings.pause == Pause::Always);
        let waited_for = Arc::new(AtomicBool::new(false));
        Seat {
            forks: wattlock::forks(),
            epoch,
            state: Mutex::new(State::new(&runtime, gather, waited_for.clone())),
            waited_for,
            claimed: AtomicBool::new(false),
            active: AtomicU32::new(0),
            busy: AtomicU32::new(0),
            pauses_unclaimed: settings.pause != Pause::Auto,
            announced: Mutex::default(),
            stacks: Stacks::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Takes a request back, wherever it is, and silences its waiter.
    fn withdraw(&self, waiter: &Arc<Waiter>) {
        {
            let mut inner = lock(&waiter.inner);
            inner.notify = Notify::Nobody;
            inner.gone = true;
        }
        if self.forks != wattlock::forks() {
            return; // It belongs to the parent.
        }
        let mut state = self.lock();
        state.gathered.retain(|one| !Arc::ptr_eq(&one.waiter, waiter));
        drop(state.take_back(waiter));
    }

    fn said(&self) -> Said {
        let [active, busy] = [&self.active, &self.busy].map(|count| count.load(Relaxed));
        Said { asked: self.claimed.load(Relaxed), active, busy }
    }

    /// The application polls: takes in what is done, releases what waited too long, and returns how much is in flight.
    pub(crate) fn poll(&self) -> usize {
        let mut state = self.lock();
        let now = state.now();
        while state.left_ns(self.said(), now) == Some(0) {
            let late = state.gathered[0].kind();
            state.release(Some(late), None);
        }
        state.collect(None);
        let left = state.in_flight();
        unlock(state);
        left
    }

    /// A turn of the application's loop: does what [`Gather`] says, and looks for answers only if it says so.
    pub(crate) fn turn(&self, moment: Moment, progress: u32) -> Turned {
        let mut state = self.lock();
        let now = state.now();
        let flight = state.flight(self.said());
        let State { gather, gathered, .. } = &mut *state;
        let waiting = gathered.iter().map(|one| (one.kind(), one.since));
        let next = gather.turn(waiting, &flight, (moment, progress), now);
        let went = matches!(next, Next::Go(_)) && !gathered.is_empty();
        let mut again = Again::Turn;
        match next {
            Next::Go(kind) => _ = state.release(kind, None),
            // The turn is not over: what is gathered or held comes behind it.
            Next::Poll if moment == Moment::Call => again = Again::Behind,
            Next::Poll => {}
            Next::Wait(when) => again = when,
        }
        let looks = !matches!(next, Next::Wait(_));
        let looked = looks && state.has_sent();
        if looks {
            state.collect(None);
        }
        if state.dispatcher.holds() {
            match state.gather.rings(moment) {
                true => state.dispatcher.flush(),
                false => again = Again::Behind,
            }
        }
        let in_flight = state.in_flight();
        unlock(state);
        let again = if in_flight == 0 { Again::Idle } else { again };
        Turned { in_flight, went, looked, again, now }
    }

    /// The application's loop has nothing else to do: releases what has gathered. Returns how much is in flight.
    pub(crate) fn flush(&self) -> usize {
        let mut state = self.lock();
        state.release(None, None);
        state.collect(None);
        let left = state.dispatcher.in_flight();
        unlock(state);
        left
    }

    /// Requests in flight, gathered ones included.
    pub(crate) fn in_flight(&self) -> usize {
        self.lock().in_flight()
    }

    /// The application polls this thread's requests from now on, or no longer.
    pub(crate) fn claim(&self, yes: bool) {
        self.claimed.store(yes, Relaxed);
    }

    /// How many could be waiting at once; 0 if unknown, or if none are under way: then none of their secrets is kept.
    pub(crate) fn set_active(&self, active: u32) {
        let before = self.active.swap(active, Relaxed);
        if active == 0 && before > 0 {
            self.lock().secret_cache.clear();
        }
    }

    /// How many of the thread's connections are not idle; 0 if unknown.
    pub(crate) fn set_busy(&self, busy: u32) {
        self.busy.store(busy, Relaxed);
    }

    /// Withdraws what this thread has in flight for a callback's argument (for libssl that is the `SSL`).
    pub(crate) fn cancel_for(&self, argument: *const c_void) -> bool {
        self.waits_for(argument).map(|waiter| self.withdraw(&waiter)).is_some()
    }

    /// Has the CPU do it now.
    pub(crate) fn hurry_for(self: &Arc<Seat>, argument: *const c_void) -> bool {
        self.waits_for(argument).map(|waiter| self.give_up(&waiter)).is_some()
    }

    /// Who waits for a callback with this argument.
    fn waits_for(&self, argument: *const c_void) -> Option<Arc<Waiter>> {
        let is_it = |waiter: &Arc<Waiter>| matches!(lock(&waiter.inner).notify, Notify::Callback(_, of) if of.cast_const() == argument);
        let state = self.lock();
        let gathered = state.gathered.iter().map(|one| &one.waiter);
        let waiting = state.waiting.iter().flatten().map(|one| &one.waiter);
        gathered.chain(waiting).find(|waiter| is_it(waiter)).cloned()
    }
}

impl Provider {
    /// Does a request inside the call, also inside an `ASYNC_JOB`. Never pauses.
    ///
    /// # Errors
    /// As [`Dispatcher::run`].
    pub fn run(&self, request: &mut Request<'_>) -> Result<usize, Error> {
        self.seat().lock().dispatcher.run(request)
    }

    /// A fresh key pair of a kind that generates them; returns its length. Inside an `ASYNC_JOB` it may pause the job
    /// meanwhile.
    ///
    /// # Errors
    /// As [`Provider::perform`].
    pub fn generate(&self, kind: Kind, pair: &mut [u8]) -> Result<usize, Error> {
        if self.take_from_stock(kind, pair) {
            return Ok(pair.len());
        }
        self.perform(kind, Key::none(), &[], pair)
    }

    /// A key pair made in advance, or together with others now. `false` where that is not worth it: then nothing is written.
    /// Never pauses.
    pub(crate) fn take_from_stock(&self, kind: Kind, pair: &mut [u8]) -> bool {
        let seat = self.seat();
        let mut state = seat.lock();
        let Some(width) = state.gather.lanes_of(kind) else { return false };
        let now = state.now();
        let mut made = state.key_stock.take(kind, now);
        if made.is_none() && state.key_stock.is_worth_it(kind, width, now) {
            made = state.with_room(|state| state.make_stock(kind, width, pair.len())).flatten();
        }
        unlock(state);
        made.filter(|one| one.len() == pair.len()).map(|done| pair.copy_from_slice(&done)).is_some()
    }

    /// A cipher for messages in pieces. Always inline; never pauses.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if no engine here has it; [`Error::Invalid`].
    pub fn open_stream(&self, kind: Kind, key: &Key) -> Result<Box<dyn Stream>, Error> {
        self.seat().lock().dispatcher.open_stream(kind, key)
    }

    /// A compressor for content in pieces. Always inline.
    ///
    /// # Errors
    /// As [`Dispatcher::open_compress_stream`].
    pub(crate) fn open_compress_stream(
        &self,
        kind: Kind,
        level: u8,
    ) -> Result<Box<dyn CompressStream>, Error> {
        self.seat().lock().dispatcher.open_compress_stream(kind, level)
    }

    /// Threads that compress for this process; they start with their first work. `None` if the setting `cores` says 0, or
    /// the process is bound to one core and there is no device.
    pub(crate) fn crew(&self) -> Option<Arc<Crew>> {
        let make = || {
            let Current { settings, runtime } = self.current();
            // Threads inherit the process's cores: `worker_cpu_affinity` may leave it one.
            let own = std::thread::available_parallelism().map_or(1, |cores| cores.get());
            Crew::new(&runtime, settings.cores.unwrap_or(own), own).map(Arc::new)
        };
        self.life().crew.get_or_init(make).clone()
    }

    /// Whether a device here compresses.
    pub(crate) fn compresses_elsewhere(&self) -> bool {
        let runtime = self.current().runtime;
        let mut engines = runtime.machine().engines.iter();
        engines.any(|engine| !engine.class.is_cpu() && engine.can(Kind::Deflate))
    }

    /// Cores that were idle lately, by the weather.
    pub(crate) fn idle_cores(&self) -> usize {
        self.seat().lock().dispatcher.idle_cores()
    }

    /// Counts what streams did, where the thread still has a seat: contexts may be freed after a thread's end.
    pub(crate) fn streamed(&self, kind: Kind, messages: u64, bytes: u64) {
        if let Some(seat) = self.known_seat() {
            seat.lock().dispatcher.streamed(kind, messages, bytes);
        }
    }

    /// Counts the time of one message of a stream.
    #[cold]
    pub(crate) fn streamed_in(&self, kind: Kind, bytes: usize, time: Duration) {
        if let Some(seat) = self.known_seat() {
            seat.lock().dispatcher.streamed_in(kind, bytes, time.as_nanos() as u64);
        }
    }
}
