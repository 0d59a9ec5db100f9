//! A thread's way into the runtime, and what happens inside an `ASYNC_JOB`.
//!
//! *Seats.* A [`Seat`] is one thread's dispatcher for one loaded provider. It has a lock because two others may come
//! to it: our helper thread, and whoever frees a wait context. Its own thread finds the lock free but for those.
//!
//! *Jobs.* A private-key, derive or generate operation inside a job is *gathered* with others of its thread and the
//! job paused. A batch that is full is done at once, by whoever filled it. Otherwise everyone who could join has come
//! when the event loop has been round once: so the first of a gathering (its *leader*) wakes itself at once, and when
//! the loop resumes it, it releases all that has gathered meanwhile to the policy, which then knows how many there
//! are. No timer is waited for and no other thread is needed. Where the application polls (see [`crate::table`])
//! nobody wakes itself, and the application's flush releases.
//!
//! *Company.* A program may run jobs one at a time. Where gathering brought nobody whose company helped, the
//! operations of that thread are done inside the call, and gathering is tried again after a millisecond, then two,
//! up to 16: a trial costs one turn of the loop.
//!
//! *The helper thread* is started when something first pauses and nobody has said that it polls. While anything is
//! in flight it looks every millisecond (every 50 us where an engine with queues works), releases what a loop has
//! not come back for, and else sleeps.
//!
//! *Stacks.* A job runs on a fiber of 32 KiB, less than one big multiplication takes. What is computed inside a job is
//! therefore computed on a stack of the seat's own, with a guard page.
//!
//! *Lifetimes.* A request owns its buffers, so nothing here touches an application's memory after a connection is
//! gone. The wait context holds a `Link`; its cleanup withdraws the request and silences the notification before
//! anything of the connection's is freed.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Acquire, Relaxed, SeqCst},
};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use wattlock::core::{
    Completion, Data, Error, Fault, Key, Kind, KindSet, Nanos, OwnedRequest, Request, Stream, Token,
};
use wattlock::{Clock, Dispatcher, Runtime, Submitted};

use crate::error::entry;
use crate::provider::Provider;
use crate::sys;

/// How often the helper looks while requests wait for a loop to come round.
const TICK: Duration = Duration::from_millis(1);
/// The longest that something waits for company where the application says when nobody else can join: a loop that is
/// never idle may never say so, and a pass of RSA takes 1 to 15 ms.
const PATIENCE: Duration = Duration::from_millis(5);
/// How often it looks while an engine with queues has something.
const QUEUE_TICK: Duration = Duration::from_micros(50);
/// First and last pause between trials of gathering where nobody comes.
const TRIAL_NS: (Nanos, Nanos) = (1_000_000, 16_000_000);
/// Gatherings in vain before a thread is taken to be alone.
const IN_VAIN: u32 = 2;
/// A pause that returns sooner than this did not pause.
const BLOCKED_NS: Nanos = 400;
/// Bytes of the stack on which operations of jobs are computed.
const STACK: usize = 1 << 20;

thread_local! {
    /// This thread's seats, each with its provider's id and one reference. A plain pointer without a destructor:
    /// OpenSSL's own call at a thread's end frees it. A provider that is unloaded takes the references of all threads
    /// back ([`Provider::close`]); what stays here then has an id that nobody asks for again.
    static SEATS: Cell<*mut Vec<(u64, *const Seat)>> = const { Cell::new(null_mut()) };
}

/// One thread's way into one provider's runtime.
pub struct Seat {
    forks: u32,
    epoch: u32,
    /// How many requests of a kind make a full batch.
    widths: [u16; Kind::COUNT],
    /// What one request of a kind takes inside the call by calibration, in nanoseconds; 0 where nobody knows.
    alone_ns: [u64; Kind::COUNT],
    /// Kinds that something besides this CPU does: there even a lone request may be better off.
    devices: KindSet,
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

/// Whether gathering helps this thread.
#[derive(Debug)]
struct Company {
    in_vain: u32,
    next_trial: Nanos,
    pause: Nanos,
}

impl Default for Company {
    fn default() -> Company {
        Company { in_vain: 0, next_trial: 0, pause: TRIAL_NS.0 }
    }
}

impl Company {
    fn expected(&self, now: Nanos) -> bool {
        self.in_vain < IN_VAIN || now >= self.next_trial
    }

    fn learned(&mut self, helped: bool, now: Nanos) {
        if helped {
            *self = Company::default();
            return;
        }
        self.in_vain = self.in_vain.saturating_add(1);
        if self.in_vain >= IN_VAIN {
            self.next_trial = now.saturating_add(self.pause);
            self.pause = (self.pause * 2).min(TRIAL_NS.1);
        }
    }
}

/// Who is told when a request is done.
enum Notify {
    Nobody,
    Fd(c_int),
    Callback(unsafe extern "C" fn(*mut c_void) -> c_int, *mut c_void),
}

/// One paused operation.
struct Waiter {
    seat: Arc<Seat>,
    inner: Mutex<Waiting>,
}

struct Waiting {
    outcome: Option<(Result<usize, Error>, OwnedRequest)>,
    notify: Notify,
    /// The wait context has gone.
    gone: bool,
    /// Written to the descriptor and not yet read.
    signalled: bool,
}

// SAFETY: the callback's argument is handed to the callback and nothing else; OpenSSL's contract lets it be called from
// any thread.
unsafe impl Send for Waiting {}

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

impl Waiter {
    fn done(&self) -> bool {
        let inner = lock(&self.inner);
        inner.outcome.is_some() || inner.gone
    }

    /// Tells the application that the job can go on.
    fn signal(inner: &mut Waiting) {
        match inner.notify {
            Notify::Nobody => {}
            Notify::Fd(fd) => {
                if !inner.signalled {
                    let one = 1_u64;
                    // SAFETY: an eventfd that stays open while `notify` names it; 8 bytes as it wants.
                    unsafe { libc::write(fd, (&raw const one).cast(), 8) };
                    inner.signalled = true;
                }
            }
            Notify::Callback(callback, argument) => {
                // SAFETY: the application's callback with its own argument; the wait context is alive, or `notify`
                // would say nobody.
                unsafe { callback(argument) };
            }
        }
    }

    fn wake(&self) {
        Waiter::signal(&mut lock(&self.inner));
    }

    fn finish(&self, result: Result<usize, Error>, request: OwnedRequest) {
        lock(&self.inner).outcome = Some((result, request));
    }

    fn clear(inner: &mut Waiting) {
        if let (true, Notify::Fd(fd)) = (inner.signalled, &inner.notify) {
            let mut count = 0_u64;
            // SAFETY: as in `signal`; the descriptor does not block.
            unsafe { libc::read(*fd, (&raw mut count).cast(), 8) };
        }
        inner.signalled = false;
    }

    /// The outcome. Nobody is told from here on: whoever was about to would write to a descriptor that may be closed.
    fn take(&self) -> Option<(Result<usize, Error>, OwnedRequest)> {
        let mut inner = lock(&self.inner);
        Waiter::clear(&mut inner);
        inner.notify = Notify::Nobody;
        inner.outcome.take()
    }
}

/// What a wait context holds of ours.
struct Link {
    current: Mutex<Option<Arc<Waiter>>>,
    fd: c_int,
}

/// Names our entry in a wait context: its address is what counts.
static KEY: u8 = 0;

fn key() -> *const c_void {
    (&raw const KEY).cast()
}

impl Link {
    /// The link of a wait context, made on first use.
    ///
    /// # Safety
    /// `context` is live, and stays so during the call.
    unsafe fn of<'a>(context: *mut sys::ASYNC_WAIT_CTX, with_fd: bool) -> Option<&'a Link> {
        let (mut fd, mut custom) = (0, null_mut());
        // SAFETY: a live context; what was set under our key is a `Link`.
        unsafe {
            if sys::ASYNC_WAIT_CTX_get_fd(context, key(), &raw mut fd, &raw mut custom) == 1 {
                return custom.cast::<Link>().as_ref();
            }
            let fd = if with_fd { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) } else { -1 };
            if with_fd && fd < 0 {
                return None;
            }
            let link = Box::into_raw(Box::new(Link { current: Mutex::default(), fd }));
            if sys::ASYNC_WAIT_CTX_set_wait_fd(context, key(), fd, link.cast(), Some(unlink)) != 1 {
                unlink(context, key(), fd, link.cast());
                return None;
            }
            link.as_ref()
        }
    }
}

/// Whether a descriptor came since the job was last started.
///
/// # Safety
/// `context` is live.
unsafe fn is_new(context: *mut sys::ASYNC_WAIT_CTX, fd: c_int) -> bool {
    let (mut added, mut removed) = (0, 0);
    // SAFETY: the caller's; the second call writes as many descriptors as the first one counted.
    unsafe {
        let count = |fds: *mut c_int, added: &mut usize, removed: &mut usize| {
            sys::ASYNC_WAIT_CTX_get_changed_fds(context, fds, added, null_mut(), removed) == 1
        };
        if !count(null_mut(), &mut added, &mut removed) || added == 0 {
            return false;
        }
        let mut fds = vec![-1; added];
        count(fds.as_mut_ptr(), &mut added, &mut removed) && fds.contains(&fd)
    }
}

/// Takes a link whose descriptor nobody has been told of out of its wait context again. OpenSSL lists a descriptor as
/// new only until the next job starts, so a program that hears of descriptors when a job is paused would never hear
/// of it. HAProxy believes that it knows each one that is left at a connection's end, and crashes.
///
/// # Safety
/// Called inside the job whose wait context has the link; nobody waits by it.
unsafe fn forget_untold(link: &Link) {
    if link.fd < 0 {
        return;
    }
    // SAFETY: public calls inside a live job; OpenSSL leaves cleaning up to whoever clears a descriptor.
    unsafe {
        let context = sys::ASYNC_get_wait_ctx(sys::ASYNC_get_current_job());
        if context.is_null() || !is_new(context, link.fd) {
            return;
        }
        let (fd, custom) = (link.fd, std::ptr::from_ref(link).cast_mut().cast());
        if sys::ASYNC_WAIT_CTX_clear_fd(context, key()) == 1 {
            unlink(context, key(), fd, custom);
        }
    }
}

/// Cleanup of a wait context: withdraws what is in flight, then lets the link go.
unsafe extern "C" fn unlink(_: *mut sys::ASYNC_WAIT_CTX, _: *const c_void, fd: c_int, custom: *mut c_void) {
    entry(|| {
        // SAFETY: made by `Link::of`; OpenSSL calls this once for it.
        let link = unsafe { Box::from_raw(custom.cast::<Link>()) };
        if let Some(waiter) = lock(&link.current).take() {
            waiter.seat.withdraw(&waiter);
        }
        if fd >= 0 {
            // SAFETY: ours; nobody signals on it any more.
            unsafe { libc::close(fd) };
        }
    });
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

/// A stack of the seat's own, with a guard page below.
struct Stack {
    base: *mut u8,
    size: usize,
}

// SAFETY: plain memory.
unsafe impl Send for Stack {}

impl Stack {
    fn new() -> Option<Stack> {
        const GUARD: usize = 4096;
        let size = STACK + GUARD;
        // SAFETY: a fresh anonymous mapping; its lowest page is made untouchable.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_NORESERVE;
            let base = libc::mmap(null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            if base == libc::MAP_FAILED {
                return None;
            }
            libc::mprotect(base, GUARD, libc::PROT_NONE);
            Some(Stack { base: base.cast(), size })
        }
    }

    /// Runs `work` on this stack.
    fn run<R>(&mut self, work: impl FnOnce() -> R) -> Option<R> {
        // SAFETY: mapped, writable, page-aligned, used by one caller at a time (`&mut`); no panic leaves `work`.
        unsafe {
            psm::on_stack(self.base, self.size, || {
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).ok()
            })
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: ours, unmapped once. Nothing secret is left on it: engines wipe theirs.
        unsafe { libc::munmap(self.base.cast(), self.size) };
    }
}

impl State {
    fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Hands what has gathered, of one kind or of all, to the policy and does what can be done at once. Returns whether
    /// gathering helped: somebody had company, or an engine with queues has something.
    fn release(&mut self, only: Option<Kind>, me: Option<&Arc<Waiter>>) -> bool {
        let mut helped = false;
        while let Some(kind) = only.or(self.gathered.first().map(Gathered::kind)) {
            let mut alike = Vec::new();
            for mut one in self.gathered.extract_if(.., |one| one.kind() == kind) {
                let free = self.waiting.iter().position(Option::is_none);
                let slot = free.unwrap_or(self.waiting.len());
                self.waiting.resize_with(self.waiting.len().max(slot + 1), || None);
                self.waiting[slot] = Some((None, one.waiter));
                one.request.mark = slot as u64;
                alike.push(one.request);
            }
            let State { dispatcher, waiting, tell, .. } = self;
            dispatcher.submit_together(&mut alike, &mut |mark, submitted| {
                let place = &mut waiting[mark as usize];
                match submitted {
                    Submitted::Pending(token) => place.iter_mut().for_each(|(name, _)| *name = Some(token)),
                    Submitted::Done(done) => {
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
            helped |= completion.cost.batch > 1;
            let place = self.waiting.get_mut(completion.request.mark as usize);
            let Some((_, waiter)) = place.and_then(Option::take) else { continue };
            finished(&mut self.tell, waiter, completion, me);
        }
        self.arrived = arrived;
        helped
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
        let runtime = provider.current().runtime;
        let mut widths = [u16::MAX; Kind::COUNT];
        for description in runtime.engines().iter().map(|engine| engine.description()) {
            for kind in description.queued.iter().filter(|_| description.class.is_cpu()) {
                widths[kind.index()] = description.width;
            }
        }
        let waited_for = Arc::new(AtomicBool::new(false));
        Seat {
            forks: wattlock::forks(),
            epoch,
            widths,
            alone_ns: std::array::from_fn(|at| runtime.alone_ns(Kind::ALL[at])),
            devices: device_kinds(&runtime),
            state: Mutex::new(State {
                dispatcher: runtime.dispatcher(),
                clock: runtime.clock().clone(),
                gathered: Vec::new(),
                waiting: Vec::new(),
                arrived: Vec::new(),
                tell: Vec::new(),
                company: Company::default(),
                stack: None,
                waited_for: waited_for.clone(),
            }),
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
        let mine = |place: &Option<(Option<Token>, Arc<Waiter>)>| {
            place.as_ref().is_some_and(|(_, one)| Arc::ptr_eq(one, waiter))
        };
        if let Some(slot) = state.waiting.iter().position(mine)
            && let Some((Some(token), _)) = state.waiting[slot].as_ref()
        {
            let token = *token;
            if state.dispatcher.cancel(token).is_some() {
                state.waiting[slot] = None;
            }
        }
    }

    /// An operation inside a job.
    fn perform_in_job(
        self: &Arc<Seat>,
        provider: &Provider,
        job: *mut sys::ASYNC_JOB,
        kind: Kind,
        key: &Key,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<usize, Error> {
        let broken = Error::Device(Fault::Lost);
        let claimed = self.claimed.load(Relaxed);
        let mut state = self.lock();
        let now = state.now();
        let alone = if self.devices.contains(kind) {
            false
        } else if claimed {
            self.active.load(Relaxed) == 1 && state.gathered.is_empty()
        } else {
            state.gathered.is_empty() && !state.company.expected(now)
        };
        // SAFETY: called inside a live job.
        let link = if alone { None } else { unsafe { self.link(job) } };
        let Some((link, notify)) = link else {
            let request = Request::new(kind, key, Data::Apart { from: input, to: output });
            let mut request = Some(request);
            let run = |state: &mut State| {
                request.as_mut().map_or(Err(broken), |request| state.dispatcher.run(request))
            };
            return state.deep(run).unwrap_or(Err(broken));
        };
        let inner = Waiting { outcome: None, notify, gone: false, signalled: false };
        let waiter = Arc::new(Waiter { seat: self.clone(), inner: Mutex::new(inner) });
        *lock(&link.current) = Some(waiter.clone());
        let request = OwnedRequest::new(kind, Arc::new(key.clone()), input.to_vec(), output.len());
        state.gathered.push(Gathered { request, waiter: waiter.clone(), since: now });
        let alike = state.gathered.iter().filter(|one| one.kind() == kind).count();
        if alike >= usize::from(self.widths[kind.index()]) {
            let helped = state.deep(|state| state.release(Some(kind), Some(&waiter))).unwrap_or(false);
            state.company.learned(helped, now);
        } else if state.gathered.len() == 1 && !claimed {
            let leader = waiter.clone();
            state.tell.push(leader);
        }
        unlock(state);
        if !claimed {
            provider.watch();
        }
        self.wait(&waiter);
        let taken = waiter.take();
        // From here the wait context may be gone; the waiter is ours.
        if !lock(&waiter.inner).gone {
            *lock(&link.current) = None;
            // SAFETY: inside the job; its only operation waits no longer. The link is not used from here on.
            unsafe { forget_untold(link) };
        }
        let (result, request) = taken.ok_or(broken)?;
        let len = result?;
        let done = request.output.get(..len).ok_or(broken)?;
        output.get_mut(..len).ok_or(broken)?.copy_from_slice(done);
        Ok(len)
    }

    /// # Safety
    /// Called inside `job`.
    unsafe fn link<'a>(&self, job: *mut sys::ASYNC_JOB) -> Option<(&'a Link, Notify)> {
        // SAFETY: a live job has a live wait context.
        unsafe {
            let context = sys::ASYNC_get_wait_ctx(job);
            if context.is_null() {
                return None;
            }
            let (mut callback, mut argument) = (None, null_mut());
            let has = sys::ASYNC_WAIT_CTX_get_callback(context, &raw mut callback, &raw mut argument) == 1;
            let callback = callback.filter(|_| has);
            let link = Link::of(context, callback.is_none())?;
            let notify = match callback {
                Some(callback) => Notify::Callback(callback, argument),
                None if link.fd >= 0 => Notify::Fd(link.fd),
                None => return None,
            };
            Some((link, notify))
        }
    }

    /// Pauses until a request is done. A job resumed too early looks whether it is its turn to release what has
    /// gathered, and pauses again. Where pausing is blocked the request is released at once and, if an engine with
    /// queues still has it then, taken back and done here.
    fn wait(self: &Arc<Seat>, waiter: &Arc<Waiter>) {
        let mut early = 0;
        while !waiter.done() {
            let before = self.lock().now();
            // SAFETY: inside a job; where it is not, or pausing is blocked, this returns at once.
            if unsafe { sys::ASYNC_pause_job() } != 1 {
                self.give_up(waiter);
                return;
            }
            let mut state = self.lock();
            let now = state.now();
            if waiter.done() {
                return;
            }
            Waiter::clear(&mut lock(&waiter.inner));
            let mine = state.gathered.iter().any(|one| Arc::ptr_eq(&one.waiter, waiter));
            if self.claimed.load(Relaxed) && early == 0 {
                // Something else woke this connection; the application releases when its loop has been round.
            } else if mine {
                let helped = state.deep(|state| state.release(None, Some(waiter))).unwrap_or(false);
                state.company.learned(helped, now);
            } else {
                state.deep(|state| {
                    state.dispatcher.flush();
                    state.collect(Some(waiter))
                });
            }
            unlock(state);
            early = if now.saturating_sub(before) < BLOCKED_NS { early + 1 } else { 0 };
            if early >= 2 && !waiter.done() {
                self.give_up(waiter);
                return;
            }
        }
    }

    /// Takes the request back and does it here.
    fn give_up(self: &Arc<Seat>, waiter: &Arc<Waiter>) {
        let mut state = self.lock();
        let mut request = None;
        if let Some(at) = state.gathered.iter().position(|one| Arc::ptr_eq(&one.waiter, waiter)) {
            request = Some(state.gathered.remove(at).request);
        }
        let mine = |place: &Option<(Option<Token>, Arc<Waiter>)>| {
            place.as_ref().is_some_and(|(_, one)| Arc::ptr_eq(one, waiter))
        };
        if let Some(slot) = state.waiting.iter().position(mine)
            && let Some((Some(token), _)) = state.waiting[slot].take()
        {
            request = state.dispatcher.cancel(token).or(request);
        }
        let Some(mut request) = request else { return };
        let broken = Error::Device(Fault::Lost);
        let result = state.deep(|state| state.dispatcher.run(&mut request.view())).unwrap_or(Err(broken));
        unlock(state);
        waiter.finish(result, request);
    }

    /// The helper's look: releases what a loop has not come back for, and takes in what is done. Returns whether
    /// anything is still in flight, and whether an engine with queues has it.
    fn look_after(&self, overdue_ns: Nanos) -> (bool, bool) {
        // Its thread is at work, which may take long and may have nothing to do with who waits.
        let Ok(mut state) = self.state.try_lock() else { return (self.waited_for.load(Relaxed), false) };
        if self.claimed.load(Relaxed) {
            return (false, false);
        }
        let now = state.now();
        if state.gathered.first().is_some_and(|one| now.saturating_sub(one.since) >= overdue_ns) {
            state.release(None, None);
        } else if state.dispatcher.in_flight() > 0 {
            state.collect(None);
        }
        let queued = state.waiting.iter().any(Option::is_some);
        let busy = queued || !state.gathered.is_empty();
        unlock(state);
        (busy, queued)
    }

    /// The application polls: takes in what is done and returns how much is still in flight.
    pub(crate) fn poll(&self) -> usize {
        let mut state = self.lock();
        let now = state.now();
        let is_late = |one: &Gathered| now.saturating_sub(one.since) >= PATIENCE.as_nanos() as u64;
        while let Some(late) = state.gathered.first().filter(|one| is_late(one)).map(Gathered::kind) {
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

    /// How many could be waiting at once; 0 if unknown.
    pub(crate) fn set_active(&self, active: u32) {
        self.active.store(active, Relaxed);
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

    /// Withdraws what a wait context has in flight.
    ///
    /// # Safety
    /// `context` is live.
    pub(crate) unsafe fn cancel(context: *mut sys::ASYNC_WAIT_CTX) -> bool {
        let (mut fd, mut custom) = (0, null_mut());
        // SAFETY: a live context; what was set under our key is a `Link`.
        let link = unsafe {
            if sys::ASYNC_WAIT_CTX_get_fd(context, key(), &raw mut fd, &raw mut custom) != 1 {
                return false;
            }
            custom.cast::<Link>().as_ref()
        };
        let waiter = link.and_then(|link| lock(&link.current).take());
        waiter.map(|waiter| waiter.seat.withdraw(&waiter)).is_some()
    }
}

impl Provider {
    /// The calling thread's seat.
    pub(crate) fn seat(&self) -> Arc<Seat> {
        self.known_seat().unwrap_or_else(|| self.new_seat())
    }

    fn known_seat(&self) -> Option<Arc<Seat>> {
        let place = SEATS.get();
        // SAFETY: null or this thread's own vector, which only this file touches, on this thread.
        let (_, seat) = unsafe { place.as_ref() }?.iter().find(|(id, _)| *id == self.id)?;
        // SAFETY: entries of a provider that is loaded hold a reference; another is made for the caller.
        let seat = unsafe {
            Arc::increment_strong_count(*seat);
            Arc::from_raw(*seat)
        };
        let current = seat.forks == wattlock::forks() && seat.epoch == self.epoch.load(Relaxed);
        current.then_some(seat)
    }

    #[cold]
    fn new_seat(&self) -> Arc<Seat> {
        let seat = Arc::new(Seat::new(self));
        let mut place = SEATS.get();
        if place.is_null() {
            place = Box::into_raw(Box::default());
            SEATS.set(place);
        }
        // SAFETY: as in `seat`.
        let seats = unsafe { &mut *place };
        let known = seats.iter().position(|(id, _)| *id == self.id);
        match known {
            Some(at) => {
                let before = std::mem::replace(&mut seats[at].1, Arc::into_raw(seat.clone()));
                // SAFETY: the reference that the entry held.
                let before = unsafe { Arc::from_raw(before) };
                if before.forks != seat.forks {
                    // Of before a fork: its lock may be held for ever by a thread that did not come along.
                    std::mem::forget(before);
                } else {
                    // Of before a setting changed. Whoever waits in it holds it.
                    seat.claim(before.claimed.load(Relaxed));
                    seat.set_active(before.active.load(Relaxed));
                    self.life().forget(&before);
                }
            }
            None => {
                seats.push((self.id, Arc::into_raw(seat.clone())));
                self.at_thread_end(Some(thread_ended));
            }
        }
        let life = self.life();
        lock(&life.seats).push(seat.clone());
        seat
    }

    /// Does an operation and returns the output's length. Inside an `ASYNC_JOB` it may pause the job meanwhile.
    ///
    /// # Errors
    /// As [`Dispatcher::run`]; [`Error::Device`] if the wait context was freed meanwhile.
    pub fn perform(&self, kind: Kind, key: &Key, input: &[u8], output: &mut [u8]) -> Result<usize, Error> {
        // SAFETY: public call without arguments.
        let job = unsafe { sys::ASYNC_get_current_job() };
        let seat = self.seat();
        if job.is_null() {
            let mut request = Request::new(kind, key, Data::Apart { from: input, to: output });
            return seat.lock().dispatcher.run(&mut request);
        }
        seat.perform_in_job(self, job, kind, key, input, output)
    }

    /// Does a request inside the call, also inside an `ASYNC_JOB`. Never pauses.
    ///
    /// # Errors
    /// As [`Dispatcher::run`].
    pub fn run(&self, request: &mut Request<'_>) -> Result<usize, Error> {
        self.seat().lock().dispatcher.run(request)
    }

    /// A cipher for messages in pieces. Always inline; never pauses.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if no engine here has it; [`Error::Invalid`].
    pub fn open_stream(&self, kind: Kind, key: &Key) -> Result<Box<dyn Stream>, Error> {
        self.seat().lock().dispatcher.open_stream(kind, key)
    }

    /// Counts what streams did, where the thread still has a seat: contexts may be freed after a thread's end.
    pub(crate) fn streamed(&self, kind: Kind, messages: u64, bytes: u64) {
        if let Some(seat) = self.known_seat() {
            seat.lock().dispatcher.streamed(kind, messages, bytes);
        }
    }

    /// Sees to it that somebody looks after what is paused.
    fn watch(&self) {
        let life = self.life();
        if life.awake.swap(true, SeqCst) {
            return;
        }
        let mut helper = lock(&life.helper);
        match &*helper {
            Some(_) => life.bell.notify_one(),
            None => *helper = Helper::start(life.clone(), self.current().settings.hold),
        }
    }

    /// Ends the helper and takes everything back from the seats.
    pub(crate) fn close(&self) {
        let life = self.life();
        life.stop.store(true, Relaxed);
        let helper = lock(&life.helper).take();
        life.bell.notify_all();
        if let Some(helper) = helper {
            let _ = helper.0.join();
        }
        let seats: Vec<Arc<Seat>> = lock(&life.seats).drain(..).collect();
        for seat in seats {
            seat.lock().close();
            // SAFETY: each of these is named by one thread's entry, which holds a reference and is not looked at again:
            // its id is this provider's.
            unsafe { Arc::decrement_strong_count(Arc::as_ptr(&seat)) };
        }
        forget_entry(self.id);
    }
}

/// What a process has of one provider that does not survive a fork.
pub(crate) struct Life {
    pub(crate) forks: u32,
    seats: Mutex<Vec<Arc<Seat>>>,
    helper: Mutex<Option<Helper>>,
    bell: Condvar,
    awake: AtomicBool,
    stop: AtomicBool,
}

impl Life {
    pub(crate) fn new() -> Life {
        Life {
            forks: wattlock::forks(),
            seats: Mutex::default(),
            helper: Mutex::default(),
            bell: Condvar::new(),
            awake: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        }
    }

    fn forget(&self, gone: &Arc<Seat>) {
        lock(&self.seats).retain(|seat| !Arc::ptr_eq(seat, gone));
    }
}

/// The helper thread.
pub(crate) struct Helper(std::thread::JoinHandle<()>);

impl Helper {
    fn start(life: Arc<Life>, hold: Duration) -> Option<Helper> {
        let work = move || Helper::run(&life, hold.max(TICK));
        std::thread::Builder::new().name("wattlock".to_owned()).spawn(work).map(Helper).ok()
    }

    fn run(life: &Life, overdue: Duration) {
        let mut tick = TICK;
        while !life.stop.load(Relaxed) {
            std::thread::sleep(tick);
            let seats: Vec<Arc<Seat>> = lock(&life.seats).clone();
            let (mut busy, mut queued) = (false, false);
            for seat in seats {
                let (one_busy, one_queued) = seat.look_after(overdue.as_nanos() as u64);
                busy |= one_busy;
                queued |= one_queued;
            }
            tick = if queued { QUEUE_TICK } else { TICK };
            if busy || life.awake.swap(false, SeqCst) && Helper::anything(life) {
                life.awake.store(true, SeqCst);
                continue;
            }
            let mut helper = lock(&life.helper);
            while !life.awake.load(SeqCst) && !life.stop.load(Relaxed) {
                helper = life.bell.wait(helper).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Whether somebody paused while the helper made up its mind to sleep.
    fn anything(life: &Life) -> bool {
        let seats: Vec<Arc<Seat>> = lock(&life.seats).clone();
        seats.iter().any(|seat| !seat.claimed.load(Relaxed) && seat.in_flight() > 0)
    }
}

/// OpenSSL's call at a thread's end, or when it stops using libcrypto.
unsafe extern "C" fn thread_ended(context: *mut c_void) {
    entry(|| {
        // SAFETY: registered with our own provctx.
        let provider = unsafe { Provider::of(context) };
        if let Some(seat) = forget_entry(provider.id) {
            // SAFETY: the reference that the entry held; this thread's seat is dropped with it.
            let seat = unsafe { Arc::from_raw(seat) };
            provider.life().forget(&seat);
        }
    });
}

/// Takes this thread's entry for a provider out, and returns what it named.
fn forget_entry(id: u64) -> Option<*const Seat> {
    let place = SEATS.get();
    // SAFETY: as in `Provider::known_seat`.
    let seats = unsafe { place.as_mut() }?;
    let found = seats.iter().position(|(one, _)| *one == id).map(|at| seats.swap_remove(at).1);
    if seats.is_empty() {
        SEATS.set(null_mut());
        // SAFETY: made by `new_seat`, and out of reach now.
        drop(unsafe { Box::from_raw(place) });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_finds_no_company_tries_again_ever_more_rarely() {
        let mut company = Company::default();
        assert!(company.expected(0));
        company.learned(false, 10);
        assert!(company.expected(10), "once is no rule");
        company.learned(false, 20);
        assert!(!company.expected(20 + TRIAL_NS.0 - 1) && company.expected(20 + TRIAL_NS.0));
        for _ in 0..20 {
            company.learned(false, 1000);
        }
        assert_eq!(company.next_trial, 1000 + TRIAL_NS.1);
        company.learned(true, 2000);
        assert!(company.expected(2000));
    }

    #[test]
    fn work_is_done_on_a_stack_of_its_own_and_a_panic_stays_there() {
        let mut stack = Stack::new().unwrap();
        let here = &raw const stack as usize;
        let there = stack.run(|| {
            let local = 0_u8;
            (&raw const local) as usize
        });
        assert!(there.is_some_and(|there| there.abs_diff(here) > STACK));
        assert!(stack.run(|| panic!("a defect")).map(|never: ()| never).is_none());
        // Half a MiB of it can be used.
        assert_eq!(stack.run(|| std::hint::black_box([7_u8; STACK / 2])[STACK / 2 - 1]), Some(7));
    }
}
