//! What waits for a paused operation, and how it hears that the job can go on: by the wait context's callback, or by an
//! eventfd. Once its `notify` is "none", neither is touched: both may be gone.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

use wattlock::core::{Error, OwnedRequest};

use super::{Seat, lock};

/// What is told when a request is done.
pub(super) enum Notify {
    Nobody,
    Fd(c_int),
    Callback(unsafe extern "C" fn(*mut c_void) -> c_int, *mut c_void),
}

/// One paused operation: a request, or several that are done together.
pub(super) struct Waiter {
    pub(super) seat: Arc<Seat>,
    pub(super) inner: Mutex<Waiting>,
}

/// What became of a request.
pub(super) type Outcome = (Result<usize, Error>, OwnedRequest);

pub(super) struct Waiting {
    /// Of each request.
    outcomes: Vec<Option<Outcome>>,
    /// Requests of which nothing has come yet.
    left: usize,
    pub(super) notify: Notify,
    /// The wait context has gone.
    pub(super) gone: bool,
    /// Written to the descriptor and not yet read.
    pub(super) signalled: bool,
}

// SAFETY: the callback's argument is handed to the callback and nothing else; OpenSSL's contract lets it be called from
// any thread.
unsafe impl Send for Waiting {}

impl Waiter {
    /// Of so many requests.
    pub(super) fn new(seat: Arc<Seat>, notify: Notify, count: usize) -> Arc<Waiter> {
        let outcomes = std::iter::repeat_with(|| None).take(count).collect();
        let inner = Waiting { outcomes, left: count, notify, gone: false, signalled: false };
        Arc::new(Waiter { seat, inner: Mutex::new(inner) })
    }

    pub(super) fn done(&self) -> bool {
        let inner = lock(&self.inner);
        inner.left == 0 || inner.gone
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
                // would be "none".
                unsafe { callback(argument) };
            }
        }
    }

    pub(super) fn wake(&self) {
        Waiter::signal(&mut lock(&self.inner));
    }

    /// Keeps what became of a request. Whether it was the last.
    pub(super) fn finish(&self, piece: usize, result: Result<usize, Error>, request: OwnedRequest) -> bool {
        let mut inner = lock(&self.inner);
        let Some(place) = inner.outcomes.get_mut(piece).filter(|place| place.is_none()) else { return false };
        *place = Some((result, request));
        inner.left -= 1;
        inner.left == 0
    }

    /// A request is somebody else's after all: nothing of it comes here.
    pub(super) fn leave_out(&self) {
        lock(&self.inner).left -= 1;
    }

    pub(super) fn clear(inner: &mut Waiting) {
        if let (true, Notify::Fd(fd)) = (inner.signalled, &inner.notify) {
            let mut count = 0_u64;
            // SAFETY: as in `signal`; the descriptor does not block.
            unsafe { libc::read(*fd, (&raw mut count).cast(), 8) };
        }
        inner.signalled = false;
    }

    /// The outcome of each request. No waiter is told from here on: a thread that was about to would write to a descriptor
    /// that may be closed.
    pub(super) fn take(&self) -> Vec<Option<Outcome>> {
        let mut inner = lock(&self.inner);
        Waiter::clear(&mut inner);
        inner.notify = Notify::Nobody;
        std::mem::take(&mut inner.outcomes)
    }
}
