//! Threads that work for a door: bounded, each with a dispatcher of its own.
//!
//! An event loop, a file system or a filter hands work to a [`Pool`] and goes on. A unit of work is a closure that
//! gets a dispatcher; its result is kept until the door takes it, with a descriptor that wakes the door's loop, or is
//! given to a closure of the door. The pool refuses to know what the work is, and to hold more of it than its bounds
//! say: a unit counts from its submission until its result was taken or given.
//!
//! 1. Every unit that was submitted has exactly one result: its own, or the panic that ended it. Units that have not
//!    begun when the pool is dropped have none, and are never begun.
//! 2. Results in order: a later unit's result waits for those of all earlier ones.
//! 3. A closure is given one result at a time, by whichever thread has it. No thread waits for another to do so.
//! 4. No thread crosses a fork. A child that inherited a pool begins with an empty one and starts threads at its first
//!    submission. It never touches the parent's state, in which a thread it does not have may hold a lock.
//! 5. A pool without threads (it was asked for none, or none could be started) works on the submitting thread, with the
//!    dispatcher of [`Runtime::local`].
//!
//! | a field of `State` | changed by |
//! |---|---|
//! | `queue`, `next`, `units`, `bytes` | the submitter; the queue also the thread that does a unit |
//! | `early`, `ready`, `due` | the thread that did a unit; `ready` also the door or the giving thread |
//! | `giving` | the thread that gives results to the closure |
//! | `closing` | the thread that drops the pool |

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Scope, ThreadId};
use wattlock_core::sync::lock;

use crate::sys::fork::PerProcess;
use crate::sys::signals;
use crate::{Dispatcher, Runtime};

/// How much a pool may hold at once, and how it works. Plain data; every combination is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Threads of its own. 0: everything is done on the thread that submits it.
    pub threads: usize,
    /// Units, from submission until their results were taken or given. At least one is always possible.
    pub units: usize,
    /// The sum of these units' bytes, as their submitters state them. A larger unit waits until it is alone.
    pub bytes: usize,
    /// Whether results come in the order of submission, else as they are ready.
    pub in_order: bool,
    /// Whether callers that wait (for room, a result, the end) do queued work meanwhile.
    pub helping: bool,
}

impl Bounds {
    /// So many threads, with four units for each; no bound on bytes, no order, no helping.
    pub fn threads(threads: usize) -> Bounds {
        let units = 4 * threads.max(1);
        Bounds { threads, units, bytes: usize::MAX, in_order: false, helping: false }
    }
}

/// A unit's result.
#[derive(Debug)]
pub struct Done<R> {
    /// What [`Pool::submit`] returned for it.
    pub ticket: u64,
    /// What the work returned; `Err` is what it panicked with.
    pub outcome: thread::Result<R>,
}

/// There is no room; the work comes back untouched.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Full<W>(pub W);

impl<W> fmt::Debug for Full<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Full")
    }
}

type Work<'env, R> = Box<dyn FnOnce(&mut Dispatcher) -> R + Send + 'env>;
type Give<'env, R> = Arc<dyn Fn(Done<R>) + Send + Sync + 'env>;
type Body<'env> = Box<dyn FnOnce() + Send + 'env>;
/// A thread, and how to wait for its end.
type Joiner<'env> = (ThreadId, Body<'env>);
type Spawn<'env> = Box<dyn Fn(Body<'env>) -> io::Result<Joiner<'env>> + Send + Sync + 'env>;

/// Threads that work for a door. Safe to use from any thread; shared by reference, or in an `Arc`.
///
/// Dropping it ends it: units that have begun are finished (and their results given, if there is a closure), the others
/// are dropped, and the threads are joined. A unit of work may hold the pool's last reference. In a child after a fork
/// only the child's own threads are joined.
pub struct Pool<'env, R> {
    runtime: Runtime,
    bounds: Bounds,
    give: Option<Give<'env, R>>,
    spawn: Spawn<'env>,
    crew: PerProcess<Crew<'env, R>>,
}

impl<R: Send + 'static> Pool<'static, R> {
    /// A pool whose results wait to be taken. Starts nothing before the first submission.
    pub fn new(runtime: &Runtime, bounds: Bounds) -> Pool<'static, R> {
        Pool::with(runtime, bounds, None, Box::new(spawn))
    }

    /// A pool whose results are given to a closure, one at a time, on the thread that has the next one: a thread of
    /// the pool, or a caller that works (see [`Bounds::helping`]). It should be quick, and must not submit to this
    /// pool except by [`Pool::try_submit`]. A panic in it is logged and ends nothing. A child inherits it: what it
    /// wakes must be the child's own.
    pub fn giving(
        runtime: &Runtime,
        bounds: Bounds,
        give: impl Fn(Done<R>) + Send + Sync + 'static,
    ) -> Pool<'static, R> {
        Pool::with(runtime, bounds, Some(Arc::new(give)), Box::new(spawn))
    }
}

impl<'scope, R: Send + 'scope> Pool<'scope, R> {
    /// As [`Pool::giving`], for work and a closure that borrow what outlives `scope`. A child that forks off inside the
    /// scope must not leave it.
    pub fn scoped<'env>(
        runtime: &Runtime,
        bounds: Bounds,
        scope: &'scope Scope<'scope, 'env>,
        give: impl Fn(Done<R>) + Send + Sync + 'scope,
    ) -> Pool<'scope, R> {
        let spawn = move |body: Body<'scope>| {
            let thread = signals::blocked(|| named().spawn_scoped(scope, body))?;
            Ok((thread.thread().id(), Box::new(move || drop(thread.join())) as Body<'scope>))
        };
        Pool::with(runtime, bounds, Some(Arc::new(give)), Box::new(spawn))
    }
}

impl<'env, R: Send + 'env> Pool<'env, R> {
    fn with(
        runtime: &Runtime,
        bounds: Bounds,
        give: Option<Give<'env, R>>,
        spawn: Spawn<'env>,
    ) -> Pool<'env, R> {
        Pool { runtime: runtime.clone(), bounds, give, spawn, crew: PerProcess::new() }
    }

    /// Hands over a unit of work, and returns its ticket: tickets ascend by one in each process. Blocks until there is
    /// room. In a pool without threads the work is done when it returns. A thread that also takes the results uses
    /// [`Pool::try_submit`], or waits for ever in a full pool; so does a unit of work that submits another.
    pub fn submit(&self, bytes: usize, work: impl FnOnce(&mut Dispatcher) -> R + Send + 'env) -> u64 {
        let crew = self.crew();
        let threads = self.started(crew).count;
        let mut state = crew.state();
        while !state.has_room(&self.bounds, bytes) {
            state = self.wait_or_help(crew, state);
        }
        self.enqueue(crew, threads, state, bytes, Box::new(work))
    }

    /// As [`Pool::submit`], and never blocks for room.
    ///
    /// # Errors
    /// [`Full`] with the work, if there is no room.
    pub fn try_submit<W>(&self, bytes: usize, work: W) -> Result<u64, Full<W>>
    where
        W: FnOnce(&mut Dispatcher) -> R + Send + 'env,
    {
        let crew = self.crew();
        let threads = self.started(crew).count;
        let state = crew.state();
        if !state.has_room(&self.bounds, bytes) {
            return Err(Full(work));
        }
        Ok(self.enqueue(crew, threads, state, bytes, Box::new(work)))
    }

    /// The next result, if there is one. Never blocks. Always `None` where results are given to a closure.
    pub fn take(&self) -> Option<Done<R>> {
        let crew = self.crew();
        let mut state = crew.state();
        let (bytes, done) = if self.give.is_none() { state.ready.pop_front() } else { None }?;
        state.leave(bytes);
        crew.shared.changed.notify_all();
        Some(done)
    }

    /// The next result. Blocks until there is one; `None` if nothing is outstanding. Where results are given to a
    /// closure it blocks until nothing is, and returns `None`.
    pub fn wait(&self) -> Option<Done<R>> {
        let crew = self.crew();
        loop {
            if let Some(done) = self.take() {
                return Some(done);
            }
            let state = crew.state();
            if state.units == 0 {
                return None;
            }
            if self.give.is_some() || state.ready.is_empty() {
                drop(self.wait_or_help(crew, state));
            }
        }
    }

    /// Units that were submitted and whose results were not taken or given yet.
    pub fn outstanding(&self) -> usize {
        self.crew().state().units
    }

    /// Names a descriptor that is written to (eight bytes, the number 1, as an eventfd wants) when a result can be
    /// taken and none could before: a woken thread takes until there is none left. The pool writes to a duplicate;
    /// the caller keeps its own. Use one that does not block, for a thread of the pool would. A child names its own,
    /// for an inherited one wakes the parent: until then nothing is written in the child.
    ///
    /// # Errors
    /// No further descriptor can be had.
    pub fn wake(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let file = Arc::new(File::from(descriptor.try_clone_to_owned()?));
        let crew = self.crew();
        let mut state = crew.state();
        if !state.ready.is_empty() {
            ring(&file);
        }
        state.wake = Some(file);
        Ok(())
    }

    /// Starts the threads now rather than at the first submission. How many there are.
    ///
    /// # Errors
    /// Not all could be started. The pool works with those that could, or without any; it does not try again.
    pub fn start(&self) -> io::Result<usize> {
        let started = self.started(self.crew());
        match started.failed {
            Some(error) => Err(error.into()),
            None => Ok(started.count),
        }
    }

    fn crew(&self) -> &Crew<'env, R> {
        let make = || {
            let (state, came, changed) = (Mutex::default(), Condvar::new(), Condvar::new());
            let shared =
                Shared { state, came, changed, in_order: self.bounds.in_order, give: self.give.clone() };
            Crew { shared: Arc::new(shared), started: OnceLock::new() }
        };
        self.crew.get(make)
    }

    fn started<'c>(&self, crew: &'c Crew<'env, R>) -> &'c Started<'env> {
        crew.started.get_or_init(|| {
            let (mut joiners, mut failed) = (Vec::new(), None);
            for _ in 0..self.bounds.threads {
                let (shared, runtime) = (crew.shared.clone(), self.runtime.clone());
                match (self.spawn)(Box::new(move || shared.serve(&runtime))) {
                    Ok(joiner) => joiners.push(joiner),
                    Err(error) => {
                        tracing::warn!(%error, have = joiners.len(), "a thread of a pool could not be started");
                        failed = Some(error.kind());
                        break;
                    }
                }
            }
            Started { count: joiners.len(), failed, joiners: Mutex::new(joiners) }
        })
    }

    fn enqueue(
        &self,
        crew: &Crew<'env, R>,
        threads: usize,
        mut state: MutexGuard<'_, State<'env, R>>,
        bytes: usize,
        work: Work<'env, R>,
    ) -> u64 {
        let ticket = state.next;
        state.next += 1;
        state.units += 1;
        state.bytes = state.bytes.saturating_add(bytes);
        let unit = Unit { ticket, bytes, work };
        if threads == 0 {
            drop(state);
            self.do_here(crew, unit);
        } else {
            state.queue.push_back(unit);
            drop(state);
            crew.shared.came.notify_one();
        }
        ticket
    }

    /// Does a queued unit if this pool's callers help and there is one, else waits for any change.
    fn wait_or_help<'c>(
        &self,
        crew: &'c Crew<'env, R>,
        mut state: MutexGuard<'c, State<'env, R>>,
    ) -> MutexGuard<'c, State<'env, R>> {
        if self.bounds.helping
            && let Some(unit) = state.queue.pop_front()
        {
            drop(state);
            self.do_here(crew, unit);
            return crew.state();
        }
        crew.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Does a unit on the calling thread.
    fn do_here(&self, crew: &Crew<'env, R>, unit: Unit<'env, R>) {
        let Unit { ticket, bytes, work } = unit;
        let outcome = catch_unwind(AssertUnwindSafe(|| self.runtime.local(work)));
        crew.shared.settle(bytes, Done { ticket, outcome });
    }
}

impl<R> Drop for Pool<'_, R> {
    fn drop(&mut self) {
        if let Some(crew) = self.crew.take() {
            crew.close();
        }
    }
}

impl<R> fmt::Debug for Pool<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("bounds", &self.bounds).finish_non_exhaustive()
    }
}

fn named() -> thread::Builder {
    thread::Builder::new().name("wattlock-pool".into())
}

fn spawn(body: Body<'static>) -> io::Result<Joiner<'static>> {
    let thread = signals::blocked(|| named().spawn(body))?;
    Ok((thread.thread().id(), Box::new(move || drop(thread.join()))))
}

/// Wakes the thread that sleeps on a descriptor. One that is full, or closed at its other end, wakes no thread and is
/// no fault here.
fn ring(mut file: &File) {
    let _ = file.write(&1_u64.to_ne_bytes());
}

struct Unit<'env, R> {
    ticket: u64,
    bytes: usize,
    work: Work<'env, R>,
}

/// One process's threads, and what they share.
struct Crew<'env, R> {
    shared: Arc<Shared<'env, R>>,
    started: OnceLock<Started<'env>>,
}

struct Started<'env> {
    count: usize,
    failed: Option<io::ErrorKind>,
    joiners: Mutex<Vec<Joiner<'env>>>,
}

impl<'env, R> Crew<'env, R> {
    fn state(&self) -> MutexGuard<'_, State<'env, R>> {
        self.shared.lock()
    }

    fn close(self) {
        let mut state = self.state();
        state.closing = true;
        let queued = std::mem::take(&mut state.queue);
        drop(state);
        self.shared.came.notify_all();
        drop(queued);
        let joiners = self.started.into_inner().map(|started| started.joiners.into_inner());
        for (thread, join) in
            joiners.map(|them| them.unwrap_or_else(PoisonError::into_inner)).into_iter().flatten()
        {
            // A unit of work that held the last reference ends the thread it runs on by returning.
            if thread != thread::current().id() {
                join();
            }
        }
    }
}

struct Shared<'env, R> {
    state: Mutex<State<'env, R>>,
    /// A unit was queued, or the pool closes.
    came: Condvar,
    /// A result is ready, was taken or given.
    changed: Condvar,
    in_order: bool,
    give: Option<Give<'env, R>>,
}

struct State<'env, R> {
    queue: VecDeque<Unit<'env, R>>,
    /// The next ticket.
    next: u64,
    /// Outstanding, and their bytes.
    units: usize,
    bytes: usize,
    /// Done before their turn.
    early: BTreeMap<u64, (usize, Done<R>)>,
    /// The ticket whose turn it is.
    due: u64,
    /// Results whose turn has come, each with its unit's bytes.
    ready: VecDeque<(usize, Done<R>)>,
    /// Whether a thread gives results to the closure, and will see what is ready when it has done so.
    giving: bool,
    wake: Option<Arc<File>>,
    closing: bool,
}

impl<R> Default for State<'_, R> {
    fn default() -> Self {
        let (queue, early, ready) = (VecDeque::new(), BTreeMap::new(), VecDeque::new());
        let (next, units, bytes, due, giving, wake, closing) = (0, 0, 0, 0, false, None, false);
        State { queue, next, units, bytes, early, due, ready, giving, wake, closing }
    }
}

impl<R> State<'_, R> {
    fn has_room(&self, bounds: &Bounds, bytes: usize) -> bool {
        let fits = self.bytes.checked_add(bytes).is_some_and(|sum| sum <= bounds.bytes);
        self.units == 0 || (self.units < bounds.units && fits)
    }

    /// A result left the pool.
    fn leave(&mut self, bytes: usize) {
        self.units -= 1;
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    fn arrive(&mut self, in_order: bool, bytes: usize, done: Done<R>) {
        if !in_order {
            return self.ready.push_back((bytes, done));
        }
        self.early.insert(done.ticket, (bytes, done));
        while let Some(next) = self.early.remove(&self.due) {
            self.ready.push_back(next);
            self.due += 1;
        }
    }
}

impl<'env, R> Shared<'env, R> {
    /// Nothing that can panic runs under this lock.
    fn lock(&self) -> MutexGuard<'_, State<'env, R>> {
        lock(&self.state)
    }

    /// A thread's life.
    fn serve(&self, runtime: &Runtime) {
        while let Some(Unit { ticket, bytes, work }) = self.next() {
            // What takes the result may go on with the same dispatcher.
            let outcome = catch_unwind(AssertUnwindSafe(|| runtime.local(work)));
            self.settle(bytes, Done { ticket, outcome });
        }
        runtime.leave_local();
    }

    fn next(&self) -> Option<Unit<'env, R>> {
        let mut state = self.lock();
        loop {
            if state.closing {
                return None;
            }
            match state.queue.pop_front() {
                Some(unit) => return Some(unit),
                None => state = self.came.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// A unit is done: keeps its result, or gives it.
    fn settle(&self, bytes: usize, done: Done<R>) {
        let mut state = self.lock();
        let had = !state.ready.is_empty();
        state.arrive(self.in_order, bytes, done);
        let Some(give) = &self.give else {
            let wake = state.wake.clone().filter(|_| !had && !state.ready.is_empty());
            drop(state);
            self.changed.notify_all();
            return wake.iter().for_each(|file| ring(file));
        };
        if state.giving {
            return;
        }
        state.giving = true;
        while let Some((bytes, done)) = state.ready.pop_front() {
            drop(state);
            let ticket = done.ticket;
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| give(done))) {
                tracing::error!(ticket, panic = said(&*panic), "a door's closure panicked");
            }
            state = self.lock();
            state.leave(bytes);
            self.changed.notify_all();
        }
        state.giving = false;
    }
}

/// What a panic said, if it said it in words.
fn said(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("not in words")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    /// A pool of three whose spawning fails after so many.
    fn starved(have: usize, helping: bool) -> Pool<'static, ThreadId> {
        let runtime = Runtime::builder().telemetry(false).build().unwrap();
        let asked = AtomicUsize::new(0);
        let spawn = move |body| {
            let more = asked.fetch_add(1, Relaxed) < have;
            if more { super::spawn(body) } else { Err(io::ErrorKind::WouldBlock.into()) }
        };
        Pool::with(&runtime, Bounds { helping, ..Bounds::threads(3) }, None, Box::new(spawn))
    }

    #[test]
    fn threads_that_cannot_be_started_are_told_and_done_without() {
        for (have, on_caller) in [(0, true), (2, false)] {
            let pool = starved(have, false);
            assert_eq!(pool.start().unwrap_err().kind(), io::ErrorKind::WouldBlock);
            for ticket in 0..4 {
                assert_eq!(pool.submit(0, |_| thread::current().id()), ticket);
                let done = pool.wait().unwrap();
                assert_eq!(done.ticket, ticket);
                assert_eq!(done.outcome.unwrap() == thread::current().id(), on_caller);
            }
        }
    }

    #[test]
    fn threads_are_started_by_the_first_submission_and_signals_are_not_theirs() {
        let runtime = Runtime::builder().telemetry(false).build().unwrap();
        let pool = Pool::new(&runtime, Bounds::threads(1));
        assert!(pool.crew().started.get().is_none());
        pool.submit(0, |_| {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        });
        let blocked = pool.wait().unwrap().outcome.unwrap();
        let signal = |number: i32| blocked >> (number - 1) & 1 == 1;
        assert!(signal(libc::SIGTERM) && signal(libc::SIGCHLD) && signal(libc::SIGALRM), "{blocked:x}");
    }

    #[test]
    fn what_cannot_be_counted_in_bytes_is_still_bounded() {
        let bounds = Bounds { units: 10, bytes: usize::MAX, ..Bounds::threads(1) };
        let mut state = State::<()>::default();
        assert!(state.has_room(&bounds, usize::MAX));
        (state.units, state.bytes) = (1, usize::MAX);
        assert!(!state.has_room(&bounds, 1));
        assert!(state.has_room(&bounds, 0));
    }
}
