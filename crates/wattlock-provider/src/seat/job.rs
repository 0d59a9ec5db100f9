//! Operations inside an `ASYNC_JOB`.
//!
//! An operation inside a job pauses it. If the policy gives it to a device, it is submitted at once, and the job pauses
//! until the loop has looked for the answer. If lanes do its kind, it is *gathered* with others of its thread until their
//! batch goes. [`Gather`](wattlock::policy::Gather) decides both; this file carries it out. A full batch is done at once, by
//! the job that fills it. A job that `Gather` calls the first of an application that says nothing of its loop
//! wakes itself at once, and when the loop resumes it, it releases what has gathered meanwhile. Unless the setting `pause`
//! says otherwise, jobs pause only on threads that poll ([`Seat::claim`]).
//!
//! Operations of keys belong to handshakes. Derivations and records may be of anything: they pause a job only inside a
//! handshake or a write that the application announced ([`Seat::on_large_stack`]). Its callbacks may use other connections, which
//! somebody else may free before a paused call on them has returned: inside such calls ([`Seat::nested`]) nothing pauses.
//! What cannot pause is done inside the call (`inside`).
#![allow(unsafe_code)]

use std::ptr::null_mut;
use std::sync::Arc;

use wattlock::core::{Data, Error, Fault, Item, Key, Kind, Nanos, OwnedRequest, Request, Shape};
use wattlock::policy::Arrived;

use super::link::{Link, forget_untold};
use super::waiter::{Notify, Outcome, Waiter};
use super::{Gathered, Said, Seat, State, lock, unlock};
use crate::provider::Provider;
use crate::sys;

/// A pause that returns sooner than this did not pause.
const BLOCKED_NS: Nanos = 400;

impl Provider {
    /// Does an operation and returns the output's length. Inside an `ASYNC_JOB` it may pause the job meanwhile.
    ///
    /// # Errors
    /// As [`Dispatcher::run`](wattlock::Dispatcher::run); [`Error::Device`] if the wait context was freed meanwhile.
    pub fn perform(&self, kind: Kind, key: &Key, input: &[u8], output: &mut [u8]) -> Result<usize, Error> {
        let request = Request::new(kind, key, Data::Apart { from: input, to: output });
        let mut one = [Item::new(request)];
        self.perform_all(&mut one);
        one[0].result
    }

    /// The same for several requests of any kinds that are one operation: a job pauses once for all of them.
    pub(crate) fn perform_all(&self, items: &mut [Item<'_>]) {
        // SAFETY: public call without arguments.
        let job = unsafe { sys::ASYNC_get_current_job() };
        let seat = self.seat();
        if !job.is_null() {
            return seat.perform_in_job(self, job, items, true);
        }
        let mut state = seat.lock();
        items.iter_mut().for_each(|item| item.result = state.inside(item.request.reborrow()));
    }

    /// Does a request inside the call. If the policy gives it to a device, it pauses the `ASYNC_JOB` that it is in, or may
    /// wait: never for others of its kind.
    ///
    /// # Errors
    /// As [`Provider::perform`].
    pub(crate) fn run_or_pause(&self, request: Request<'_>) -> Result<usize, Error> {
        let seat = self.seat();
        let mut state = seat.lock();
        if state.gather.has_device(request.kind) {
            // SAFETY: public call without arguments.
            let job = unsafe { sys::ASYNC_get_current_job() };
            if !job.is_null() {
                drop(state);
                let mut one = [Item::new(request)];
                seat.perform_in_job(self, job, &mut one, false);
                return one[0].result;
            }
        }
        state.inside(request)
    }

    /// Whether a request of this kind, which is no operation of keys, may pause the job that this is in.
    pub(crate) fn may_pause(&self, kind: Kind) -> bool {
        // SAFETY: public call without arguments.
        let job = unsafe { sys::ASYNC_get_current_job() };
        if job.is_null() {
            return false;
        }
        let seat = self.seat();
        seat.may_pause(job, false) && seat.lock().gather.has_device(kind)
    }

    /// Whether the policy would give so many requests like this one, which are one operation, to a device now.
    pub(crate) fn goes_to_device(&self, shape: &Shape, count: usize) -> bool {
        let seat = self.seat();
        let active = seat.said().connections();
        let mut state = seat.lock();
        state.gather.has_device(shape.kind)
            && state.deep(|state| state.dispatcher.goes_to_device(shape, count, active)).unwrap_or(false)
    }

    /// Has the CPU do requests together inside the call, also inside an `ASYNC_JOB`, on whose small stack lanes have no
    /// room. Never pauses. Whether all went well.
    pub(crate) fn do_all(&self, items: &mut [Item<'_>]) -> bool {
        let seat = self.seat();
        seat.lock().with_room(|state| state.dispatcher.do_all(items));
        items.iter().all(|item| item.result.is_ok())
    }

    /// Does requests of one kind, which are one operation that the policy gives to a device: it may pause the `ASYNC_JOB`
    /// that it is in until all are done, or wait where that cannot pause. Whether all went well.
    pub(crate) fn run_all_or_pause(&self, items: &mut [Item<'_>]) -> bool {
        // SAFETY: public call without arguments.
        let job = unsafe { sys::ASYNC_get_current_job() };
        let seat = self.seat();
        if job.is_null() || !seat.may_pause(job, false) {
            let mut state = seat.lock();
            state.with_room(|state| state.dispatcher.run_all(items));
            unlock(state);
        } else if seat.all_in_job(self, job, items).is_none() {
            // A full device would be waited for here, and everything else with it.
            return self.do_all(items);
        }
        items.iter().all(|item| item.result.is_ok())
    }
}

/// A handshake or a write that the application announced.
pub(super) struct Announced {
    /// The address of its job.
    job: usize,
    /// Calls inside it that must not pause it.
    nested: u32,
}

impl State {
    /// Has a request wait for others of its kind; a batch that is full is done.
    fn gather(
        &mut self,
        request: OwnedRequest,
        (waiter, piece): (&Arc<Waiter>, usize),
        said: Said,
        now: Nanos,
    ) {
        let kind = request.kind;
        self.gathered.push(Gathered { request, waiter: waiter.clone(), piece, since: now });
        let flight = self.flight(said);
        let State { gather, gathered, tell, .. } = self;
        match gather.arrived(kind, &flight, gathered.iter().map(Gathered::kind), now) {
            Arrived::Full => {
                let helped = self.deep(|state| state.release(Some(kind), Some(waiter))).unwrap_or(false);
                self.gather.learned(helped, now);
            }
            Arrived::First => tell.push(waiter.clone()),
            Arrived::Waits => {}
        }
    }
}

impl Seat {
    /// Runs `work` on a stack as large as the thread's; `None`, and nothing is done, if there is none. Inside a job it is
    /// announced.
    pub(crate) fn on_large_stack(&self, work: impl FnOnce()) -> Option<()> {
        // SAFETY: public call without arguments.
        let job = unsafe { sys::ASYNC_get_current_job() }.addr();
        lock(&self.announced).push(Announced { job, nested: 0 });
        let done = self.stacks.run(work);
        let mut all = lock(&self.announced);
        if let Some(at) = all.iter().rposition(|one| one.job == job) {
            all.swap_remove(at);
        }
        done
    }

    /// A call begins, or has ended, inside a handshake that must not pause in it.
    pub(crate) fn nested(&self, begins: bool) {
        // SAFETY: public call without arguments.
        let job = unsafe { sys::ASYNC_get_current_job() }.addr();
        if let Some(one) = lock(&self.announced).iter_mut().find(|one| one.job == job) {
            one.nested = if begins { one.nested + 1 } else { one.nested.saturating_sub(1) };
        }
    }

    /// Whether an operation may pause the job that it is in; `of_keys` is whether it belongs to a handshake in any case. A
    /// program that drops connections without ending their jobs would lose each job that pauses.
    fn may_pause(&self, job: *mut sys::ASYNC_JOB, of_keys: bool) -> bool {
        let all = lock(&self.announced);
        let announced = all.iter().find(|one| one.job == job.addr());
        announced.map_or(of_keys, |one| one.nested == 0) && (self.said().asked || self.pauses_unclaimed)
    }

    /// Whether a request inside a job is gathered, or offered to a device.
    fn may_wait_in_job(&self, state: &State, kind: Kind, of_keys: bool, now: Nanos) -> (bool, bool) {
        let flight = state.flight(self.said());
        let gathers = of_keys && state.gather.waits(kind, &flight, state.gathered.len(), now);
        (gathers, state.gather.has_device(kind))
    }

    /// An operation inside a job, of one request or several. Whether it is one of keys, which may wait for others of their
    /// kinds.
    fn perform_in_job(
        self: &Arc<Seat>,
        provider: &Provider,
        job: *mut sys::ASYNC_JOB,
        items: &mut [Item<'_>],
        of_keys: bool,
    ) {
        let broken = Err(Error::Device(Fault::Lost));
        let said = self.said();
        let mut state = self.lock();
        let now = state.now();
        let waits = |kind| self.may_wait_in_job(&state, kind, of_keys, now);
        let could = self.may_pause(job, of_keys)
            && items.iter().any(|item| waits(item.request.kind) != (false, false));
        // SAFETY: called inside a live job.
        let link = if could { unsafe { self.link(job) } } else { None };
        let Some((link, notify)) = link else {
            for item in items {
                let done = state.deep(|state| state.inside(item.request.reborrow()));
                item.result = done.unwrap_or(broken);
            }
            return;
        };
        let waiter = Waiter::new(self.clone(), notify, items.len());
        *lock(&link.current) = Some(waiter.clone());
        let mut waiting = vec![true; items.len()];
        for (piece, item) in items.iter_mut().enumerate() {
            let (gathers, asks) = self.may_wait_in_job(&state, item.request.kind, of_keys, now);
            let bytes = item.request.shape().bytes;
            if asks && state.send(&item.request, bytes, (&waiter, piece), said) {
                let flight = state.flight(said);
                state.gather.submitted(&flight, now);
            } else if gathers {
                state.gather(OwnedRequest::copy_of(&item.request), (&waiter, piece), said, now);
            } else {
                item.result = state.deep(|state| state.dispatcher.run(&mut item.request)).unwrap_or(broken);
                waiter.leave_out();
                waiting[piece] = false;
            }
        }
        if !waiting.contains(&true) {
            *lock(&link.current) = None;
            // SAFETY: inside the job, which has not paused. The link is not used from here on.
            unsafe { forget_untold(link) };
            return;
        }
        unlock(state);
        hand_out(self.outcomes(provider, &waiter, link), items, &waiting);
    }

    /// Requests that are one operation, in a job that may pause: a device gets what the policy gives it at once, the CPU
    /// does what has no room there meanwhile, and the job pauses until all is done. `None` if a device got nothing: then
    /// nothing was done.
    fn all_in_job(
        self: &Arc<Seat>,
        provider: &Provider,
        job: *mut sys::ASYNC_JOB,
        items: &mut [Item<'_>],
    ) -> Option<()> {
        let mut state = self.lock();
        let now = state.now();
        // SAFETY: called inside a live job.
        let (link, notify) = unsafe { self.link(job) }?;
        let waiter = Waiter::new(self.clone(), notify, items.len());
        *lock(&link.current) = Some(waiter.clone());
        let whole = items.iter().map(|item| item.request.data.len()).sum();
        let said = self.said();
        let mut send =
            |(piece, item): (usize, &Item<'_>)| state.send(&item.request, whole, (&waiter, piece), said);
        let sent: Vec<bool> = items.iter().enumerate().map(&mut send).collect();
        if !sent.contains(&true) {
            *lock(&link.current) = None;
            // SAFETY: inside the job, which has not paused. The link is not used from here on.
            unsafe { forget_untold(link) };
            return None;
        }
        state.deep(|state| state.dispatcher.flush());
        let flight = state.flight(said);
        state.gather.submitted(&flight, now);
        let broken = Err(Error::Device(Fault::Lost));
        for (item, _) in items.iter_mut().zip(&sent).filter(|(_, sent)| !**sent) {
            let result = state.deep(|state| state.dispatcher.run(&mut item.request));
            item.result = result.unwrap_or(broken);
            waiter.leave_out();
        }
        unlock(state);
        hand_out(self.outcomes(provider, &waiter, link), items, &sent);
        Some(())
    }

    /// Pauses until a waiter has all its outcomes. Fewer come if the wait context was freed meanwhile.
    fn outcomes(
        self: &Arc<Seat>,
        provider: &Provider,
        waiter: &Arc<Waiter>,
        link: &Link,
    ) -> Vec<Option<Outcome>> {
        if !self.said().asked {
            provider.watch();
        }
        self.wait(waiter);
        let taken = waiter.take();
        // From here the wait context may be gone; the waiter is ours.
        if !lock(&waiter.inner).gone {
            *lock(&link.current) = None;
            // SAFETY: inside the job; its only operation waits no longer. The link is not used from here on.
            unsafe { forget_untold(link) };
        }
        taken
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
            if !state.gather.resumed(&state.flight(self.said()), early > 0) {
                // The batch goes when the application's loop asks.
            } else if mine {
                let released = |state: &mut State| {
                    let helped = state.release(None, Some(waiter));
                    state.collect(Some(waiter));
                    helped
                };
                let helped = state.deep(released).unwrap_or(false);
                state.gather.learned(helped, now);
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
    pub(super) fn give_up(self: &Arc<Seat>, waiter: &Arc<Waiter>) {
        let mut state = self.lock();
        let mut back = state.take_back(waiter);
        let theirs = state.gathered.extract_if(.., |one| Arc::ptr_eq(&one.waiter, waiter));
        back.extend(theirs.map(|one| (one.piece, one.request)));
        for (piece, mut request) in back {
            let broken = Error::Device(Fault::Lost);
            let result = state.deep(|state| state.dispatcher.run(&mut request.view())).unwrap_or(Err(broken));
            waiter.finish(piece, result, request);
        }
        unlock(state);
    }
}

/// Outcomes, of those items that waited for one.
fn hand_out(taken: Vec<Option<Outcome>>, items: &mut [Item<'_>], waited: &[bool]) {
    let mut taken = taken.into_iter();
    for (item, waited) in items.iter_mut().zip(waited) {
        let outcome = taken.next().flatten();
        if *waited {
            item.result = copied(outcome, &mut item.request);
        }
    }
}

/// An outcome, copied to where a request's belongs.
fn copied(outcome: Option<Outcome>, request: &mut Request<'_>) -> Result<usize, Error> {
    let broken = Error::Device(Fault::Lost);
    let (result, answer) = outcome.ok_or(broken)?;
    let len = result?;
    let done = answer.output.get(..len).ok_or(broken)?;
    request.data.output().get_mut(..len).ok_or(broken)?.copy_from_slice(done);
    request.tag.copy_from_slice(answer.tag.get(..request.tag.len()).ok_or(broken)?);
    Ok(len)
}
