//! A thread's way into the runtime, and what happens inside an `ASYNC_JOB`.
//!
//! A [`Seat`] is one thread's dispatcher for one loaded provider. It has a lock because two others may come to it: our
//! helper thread, and whoever frees a wait context. Its own thread finds the lock free but for those.
//!
//! - `threads`: which seat is the calling thread's.
//! - `job`: gathering, pausing, and going on.
//! - `waiter`, `link`: who waits, how it is told, and what a wait context holds of it.
//! - `ahead`: key pairs that are made before anybody wants them.
//! - `recent`: secrets that TLS will derive from again.
//! - `company`: whether gathering helps a thread.
//! - `stack`: where operations of jobs are computed.
//! - `helper`: the thread that looks after what no loop comes back for.
//!
//! *Lifetimes.* A request owns its buffers, so nothing here touches an application's memory after a connection is gone.
//! The wait context holds a `Link`; its cleanup withdraws the request and silences the notification before anything of
//! the connection's is freed.

mod ahead;
mod company;
mod helper;
mod job;
mod link;
mod recent;
mod stack;
#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
mod threads;
mod waiter;

use std::ffi::c_void;
use std::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Acquire, Relaxed},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use wattlock::core::{CompressStream, Completion, Error, Key, Kind, KindSet, Nanos, OwnedRequest, Request, Stream, Token};
use wattlock::{Clock, Dispatcher, Runtime, Submitted};

use crate::provider::Provider;
use ahead::{AHEAD, Ahead};
use company::Company;
pub(crate) use helper::Life;
use recent::Recent;
use stack::Stack;
use waiter::{Notify, Waiter};

/// The longest that something waits for company where the application says when nobody else can join, unless `hold-us`
/// says otherwise: a loop that is never idle may never say so, and a pass of RSA takes 1 to 15 ms.
const PATIENCE: Duration = Duration::from_millis(5);

/// The same where the application says nothing, and a thread of ours waits for it.
const PATIENCE_UNTOLD: Duration = Duration::from_millis(1);

/// The width of a kind that nothing does several of at the cost of one.
const ALONE: u16 = u16::MAX;

/// One thread's way into one provider's runtime.
pub struct Seat {
    forks: u32,
    epoch: u32,
    /// How many requests of a kind make a full batch; [`ALONE`] where they are done one by one.
    widths: [u16; Kind::COUNT],
    /// What one request of a kind takes inside the call by calibration, in nanoseconds; 0 where nobody knows.
    alone_ns: [u64; Kind::COUNT],
    /// Kinds that something besides this CPU does: there even a lone request may be better off.
    devices: KindSet,
    /// Whether operations pause even where company gains nothing.
    pause_always: bool,
    /// The longest that something waits for company, if the settings say.
    hold: Option<Duration>,
    state: Mutex<State>,
    /// Whether something was gathered or in flight when the state was last let go.
    waited_for: Arc<AtomicBool>,
    /// Whether the application said that it polls this thread's requests.
    claimed: AtomicBool,
    /// How many could be waiting at once, if the application says so; 0 if it does not.
    active: AtomicU32,
}

struct State {
    dispatcher: Dispatcher,
    clock: Clock,
    /// Not yet released, oldest first.
    gathered: Vec<Gathered>,
    /// Whoever waits for a request that the dispatcher has, by the request's mark.
    waiting: Vec<Option<(Option<Token>, Arc<Waiter>)>>,
    arrived: Vec<Completion>,
    /// Who is to be told once the lock is free: a callback may call us.
    tell: Vec<Arc<Waiter>>,
    company: Company,
    ahead: Ahead,
    recent: Recent,
    stack: Option<Stack>,
    /// The seat's.
    waited_for: Arc<AtomicBool>,
}

/// One of those that wait for company.
struct Gathered {
    request: OwnedRequest,
    waiter: Arc<Waiter>,
    since: Nanos,
}

impl Gathered {
    fn kind(&self) -> Kind {
        self.request.kind
    }
}

/// Frees the lock, then tells whoever has something to be told.
fn unlock(mut state: MutexGuard<'_, State>) {
    let somebody = !state.gathered.is_empty() || state.waiting.iter().any(Option::is_some);
    state.waited_for.store(somebody, Relaxed);
    let mut tell = std::mem::take(&mut state.tell);
    drop(state);
    tell.drain(..).for_each(|waiter| waiter.wake());
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a request's result for its waiter, who is to be told, unless it is `me`.
fn finished(
    tell: &mut Vec<Arc<Waiter>>,
    waiter: Arc<Waiter>,
    completion: Completion,
    me: Option<&Arc<Waiter>>,
) {
    waiter.finish(completion.result, completion.request);
    if me.is_none_or(|me| !Arc::ptr_eq(me, &waiter)) {
        tell.push(waiter);
    }
}

impl State {
    fn new(runtime: &Runtime, waited_for: Arc<AtomicBool>) -> State {
        State {
            dispatcher: runtime.dispatcher(),
            clock: runtime.clock().clone(),
            gathered: Vec::new(),
            waiting: Vec::new(),
            arrived: Vec::new(),
            tell: Vec::new(),
            company: Company::default(),
            ahead: Ahead::default(),
            recent: Recent::default(),
            stack: None,
            waited_for,
        }
    }

    fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// How long what has gathered first may still wait.
    fn left_ns(&self, patience_ns: Nanos, now: Nanos) -> Option<Nanos> {
        self.gathered.first().map(|one| (one.since + patience_ns).saturating_sub(now))
    }

    /// Hands what has gathered, of one kind or of all, to the policy and does what can be done at once. Returns whether
    /// gathering helped: somebody had company, or an engine with queues has something.
    fn release(&mut self, only: Option<Kind>, me: Option<&Arc<Waiter>>) -> bool {
        let mut helped = false;
        while let Some(kind) = only.or(self.gathered.first().map(Gathered::kind)) {
            let (mut alike, mut held_ns, now) = (Vec::new(), 0, self.clock.now());
            for mut one in self.gathered.extract_if(.., |one| one.kind() == kind) {
                let free = self.waiting.iter().position(Option::is_none);
                let slot = free.unwrap_or(self.waiting.len());
                self.waiting.resize_with(self.waiting.len().max(slot + 1), || None);
                self.waiting[slot] = Some((None, one.waiter));
                one.request.mark = slot as u64;
                alike.push(one.request);
                held_ns += now.saturating_sub(one.since);
            }
            held_ns /= alike.len().max(1) as Nanos;
            let State { dispatcher, waiting, tell, .. } = self;
            dispatcher.submit_together(&mut alike, held_ns, &mut |mark, submitted| {
                let place = &mut waiting[mark as usize];
                match submitted {
                    Submitted::Pending(token) => place.iter_mut().for_each(|(name, _)| *name = Some(token)),
                    Submitted::Done(done) => {
                        helped |= done.cost.batch > 1;
                        if let Some((_, waiter)) = place.take() {
                            finished(tell, waiter, done, me);
                        }
                    }
                }
            });
            helped |= self.collect(me);
            if only.is_some() {
                break;
            }
        }
        helped || self.waiting.iter().any(Option::is_some)
    }

    /// Takes in what is done. Returns whether any of it was done in company.
    fn collect(&mut self, me: Option<&Arc<Waiter>>) -> bool {
        let mut arrived = std::mem::take(&mut self.arrived);
        self.dispatcher.poll(&mut |completion| arrived.push(completion));
        let mut helped = false;
        for completion in arrived.drain(..) {
            if completion.request.mark == AHEAD {
                self.ahead.put(completion, self.clock.now());
                continue;
            }
            helped |= completion.cost.batch > 1;
            let place = self.waiting.get_mut(completion.request.mark as usize);
            let Some((_, waiter)) = place.and_then(Option::take) else { continue };
            finished(&mut self.tell, waiter, completion, me);
        }
        self.arrived = arrived;
        helped
    }

    /// Where somebody waits whose request the dispatcher has.
    fn slot_of(&self, waiter: &Arc<Waiter>) -> Option<usize> {
        let is_it = |(_, one): &(Option<Token>, Arc<Waiter>)| Arc::ptr_eq(one, waiter);
        self.waiting.iter().position(|place| place.as_ref().is_some_and(is_it))
    }

    /// Runs `work` on the seat's own stack.
    fn deep<R>(&mut self, work: impl FnOnce(&mut State) -> R) -> Option<R> {
        let mut stack = self.stack.take().or_else(Stack::new)?;
        let done = stack.run(|| work(self));
        self.stack = Some(stack);
        done
    }

    fn close(&mut self) {
        // Nothing of ours is in use any more when OpenSSL unloads a provider: whoever waited here has gone.
        self.gathered.clear();
        self.waiting.clear();
        self.ahead.clear();
        self.recent.clear();
        self.stack = None;
    }
}

/// Kinds that engines with queues do which are not this CPU.
fn device_kinds(runtime: &Runtime) -> KindSet {
    let devices = runtime.engines().iter().map(|engine| engine.description());
    devices.filter(|one| !one.class.is_cpu()).fold(KindSet::EMPTY, |kinds, one| kinds.union(one.queued))
}

impl Seat {
    fn new(provider: &Provider) -> Seat {
        let epoch = provider.epoch.load(Acquire);
        let current = provider.current();
        let runtime = current.runtime;
        let mut widths = [ALONE; Kind::COUNT];
        for engine in runtime.engines() {
            let description = engine.description();
            for kind in description.inline.iter().filter(|kind| engine.width(*kind) > 1) {
                widths[kind.index()] = engine.width(kind);
            }
        }
        let waited_for = Arc::new(AtomicBool::new(false));
        Seat {
            forks: wattlock::forks(),
            epoch,
            widths,
            alone_ns: std::array::from_fn(|at| runtime.alone_ns(Kind::ALL[at])),
            devices: device_kinds(&runtime),
            pause_always: current.settings.pause_always,
            hold: current.settings.hold,
            state: Mutex::new(State::new(&runtime, waited_for.clone())),
            waited_for,
            claimed: AtomicBool::new(false),
            active: AtomicU32::new(0),
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
        if let Some(slot) = state.slot_of(waiter)
            && let Some((Some(token), _)) = state.waiting[slot].as_ref()
        {
            let token = *token;
            if state.dispatcher.cancel(token).is_some() {
                state.waiting[slot] = None;
            }
        }
    }

    /// The application polls: takes in what is done and returns how much is still in flight.
    pub(crate) fn poll(&self) -> usize {
        let mut state = self.lock();
        let now = state.now();
        let patience_ns = self.hold.unwrap_or(PATIENCE).as_nanos() as Nanos;
        while state.left_ns(patience_ns, now) == Some(0) {
            let late = state.gathered[0].kind();
            state.release(Some(late), None);
        }
        state.collect(None);
        let left = state.gathered.len() + state.dispatcher.in_flight();
        unlock(state);
        left
    }

    /// The application's loop has nothing else to do: releases what has gathered. Returns how much is in flight.
    pub(crate) fn flush(&self) -> usize {
        let mut state = self.lock();
        state.release(None, None);
        let left = state.dispatcher.in_flight();
        unlock(state);
        left
    }

    /// Releases what has gathered of the kind that takes the least time; who waits for that may join the others after
    /// it. Returns how much is in flight, what is still gathered included.
    pub(crate) fn step(&self) -> usize {
        let mut state = self.lock();
        let cheapest =
            state.gathered.iter().map(Gathered::kind).min_by_key(|kind| self.alone_ns[kind.index()]);
        if cheapest.is_some() {
            state.release(cheapest, None);
        }
        let left = state.gathered.len() + state.dispatcher.in_flight();
        unlock(state);
        left
    }

    /// Requests in flight, gathered ones included.
    pub(crate) fn in_flight(&self) -> usize {
        let state = self.lock();
        state.gathered.len() + state.dispatcher.in_flight()
    }

    /// The application polls this thread's requests from now on, or no longer.
    pub(crate) fn claim(&self, yes: bool) {
        self.claimed.store(yes, Relaxed);
    }

    /// How many could be waiting at once; 0 if unknown, or if none are under way: then none of their secrets is kept.
    pub(crate) fn set_active(&self, active: u32) {
        let before = self.active.swap(active, Relaxed);
        if active == 0 && before > 0 {
            self.lock().recent.clear();
        }
    }

    /// Withdraws what this thread has in flight for a callback's argument (for libssl that is the `SSL`).
    pub(crate) fn cancel_for(&self, argument: *const c_void) -> bool {
        let is_it = |waiter: &Arc<Waiter>| matches!(lock(&waiter.inner).notify, Notify::Callback(_, of) if of.cast_const() == argument);
        let found = {
            let state = self.lock();
            let gathered = state.gathered.iter().map(|one| &one.waiter);
            let waiting = state.waiting.iter().flatten().map(|(_, waiter)| waiter);
            gathered.chain(waiting).find(|waiter| is_it(waiter)).cloned()
        };
        found.map(|waiter| self.withdraw(&waiter)).is_some()
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
        let seat = self.seat();
        let width = seat.widths[kind.index()];
        if width != ALONE && !seat.devices.contains(kind) {
            let mut state = seat.lock();
            let now = state.now();
            let mut made = state.ahead.take(kind, now);
            if made.is_none() && state.ahead.is_worth_it(kind, width, now) {
                // The stack of a job is too small for lanes.
                made = state.deep(|state| state.make_ahead(kind, width, pair.len())).flatten();
            }
            unlock(state);
            if let Some(done) = made.filter(|one| one.output.len() == pair.len()) {
                pair.copy_from_slice(&done.output);
                return Ok(pair.len());
            }
        }
        self.perform(kind, Key::none(), &[], pair)
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
    pub(crate) fn open_compress_stream(&self, kind: Kind, level: u8) -> Result<Box<dyn CompressStream>, Error> {
        self.seat().lock().dispatcher.open_compress_stream(kind, level)
    }

    /// Counts what streams did, where the thread still has a seat: contexts may be freed after a thread's end.
    pub(crate) fn streamed(&self, kind: Kind, messages: u64, bytes: u64) {
        if let Some(seat) = self.known_seat() {
            seat.lock().dispatcher.streamed(kind, messages, bytes);
        }
    }
}
