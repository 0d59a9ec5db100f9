//! Work inside the call, and when a call that cannot pause sleeps until a device has answered.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering::Relaxed;

use wattlock::Runtime;
use wattlock::core::{Error, Family, Fault, Group, Item, Kind, KindSet, Request};
use wattlock::policy::OFFLOADING;

use super::State;
use crate::provider::Provider;
use crate::sys;

/// The kinds for which a call that cannot pause waits for a device that the policy names: the one rule.
///
/// - Only under the published rules that offload: their papers measured callers that wait. `adaptive` has the CPU do what
///   would block its caller.
/// - Only what is one request by itself: operations of keys, derivations, and records and data units of ciphers. Messages
///   in pieces are streams, and the CPU's.
/// - Nothing that a random generator is made of (SP 800-90A: counter mode, MACs, digests): no device sees its state.
pub(crate) fn waits(runtime: &Runtime) -> KindSet {
    if !OFFLOADING.contains(&&*runtime.policy()) {
        return KindSet::EMPTY;
    }
    let devices = runtime.machine().engines.iter().filter(|engine| !engine.class.is_cpu());
    let of_devices = devices.fold(KindSet::EMPTY, |kinds, engine| kinds.union(engine.queued));
    let whole = |kind: &Kind| match kind.info().family {
        Family::Cipher => kind.info().group != Group::Ctr,
        Family::Digest | Family::Mac | Family::Compress => false,
        _ => true,
    };
    of_devices.iter().filter(whole).collect()
}

impl Provider {
    /// Whether a request of this kind may wait for a device in a call that cannot pause.
    #[inline]
    pub(crate) fn may_wait(&self, kind: Kind) -> bool {
        self.waits.load(Relaxed) && self.seat().lock().waits.contains(kind)
    }

    /// Does a request inside the call, also inside an `ASYNC_JOB`, which it never pauses; it may wait for a device.
    ///
    /// # Errors
    /// As [`Dispatcher::run`](wattlock::Dispatcher::run).
    pub(crate) fn run_or_wait(&self, request: Request<'_>) -> Result<usize, Error> {
        let seat = self.seat();
        // SAFETY: a public call without arguments.
        let in_job = unsafe { !sys::ASYNC_get_current_job().is_null() };
        let mut state = seat.lock();
        let done = state.with_room(in_job, |state| state.inside(request));
        done.unwrap_or(Err(Error::Device(Fault::Lost)))
    }
}

impl State {
    /// Does a request before it returns: by the CPU, or by a device for which the call then sleeps. What goes wrong there
    /// is the CPU's, at the latest when the runtime gives the device up; others' answers that come meanwhile are kept for
    /// them.
    #[inline]
    pub(super) fn inside(&mut self, mut request: Request<'_>) -> Result<usize, Error> {
        if !self.waits.contains(request.kind) {
            return self.dispatcher.run(&mut request);
        }
        let mut one = [Item::new(request)];
        self.dispatcher.run_all(&mut one);
        one[0].result
    }

    /// Does `work`; inside a job, whose stack is too small for it, on the seat's own, which takes calls to the kernel.
    pub(super) fn with_room<R>(&mut self, in_job: bool, work: impl FnOnce(&mut State) -> R) -> Option<R> {
        if in_job { self.deep(work) } else { Some(work(self)) }
    }
}
