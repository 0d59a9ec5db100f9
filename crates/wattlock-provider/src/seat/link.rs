//! What a wait context holds of ours.
//!
//! Its cleanup withdraws the request and silences the notification before anything of the connection's is freed.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

use super::waiter::Waiter;
use super::{Seat, lock};
use crate::error::entry;
use crate::sys;

/// What a wait context holds of ours.
pub(super) struct Link {
    pub(super) current: Mutex<Option<Arc<Waiter>>>,
    pub(super) fd: c_int,
}

/// Names our entry in a wait context: its address is what counts.
static KEY: u8 = 0;

fn key() -> *const c_void {
    (&raw const KEY).cast()
}

impl Link {
    /// The link that a wait context has, if any.
    ///
    /// # Safety
    /// `context` is live, and stays so during the call.
    unsafe fn known<'a>(context: *mut sys::ASYNC_WAIT_CTX) -> Option<&'a Link> {
        let (mut fd, mut custom) = (0, null_mut());
        // SAFETY: a live context; what was set under our key is a `Link`.
        unsafe {
            let has = sys::ASYNC_WAIT_CTX_get_fd(context, key(), &raw mut fd, &raw mut custom) == 1;
            if has { custom.cast::<Link>().as_ref() } else { None }
        }
    }

    /// The link of a wait context, made on first use.
    ///
    /// # Safety
    /// As [`Link::known`].
    pub(super) unsafe fn of<'a>(context: *mut sys::ASYNC_WAIT_CTX, with_fd: bool) -> Option<&'a Link> {
        // SAFETY: the caller's; the link made here is the context's, whose cleanup frees it.
        unsafe {
            let known = Link::known(context);
            if known.is_some() {
                return known;
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

/// Takes a link whose descriptor was not handed out out of its wait context again. OpenSSL lists a descriptor as
/// new only until the next job starts, so a program that hears of descriptors when a job is paused would never hear
/// of it. HAProxy believes that it knows each one that is left at a connection's end, and crashes.
///
/// # Safety
/// Called inside the job whose wait context has the link; no thread waits by it.
pub(super) unsafe fn forget_untold(link: &Link) {
    if link.fd < 0 {
        return;
    }
    // SAFETY: public calls inside a live job; OpenSSL leaves cleaning up to the code that clears a descriptor.
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
            // SAFETY: ours; it is no longer signalled on.
            unsafe { libc::close(fd) };
        }
    });
}

impl Seat {
    /// Withdraws what a wait context has in flight.
    ///
    /// # Safety
    /// `context` is live.
    pub(crate) unsafe fn cancel(context: *mut sys::ASYNC_WAIT_CTX) -> bool {
        // SAFETY: the caller's.
        let link = unsafe { Link::known(context) };
        let waiter = link.and_then(|link| lock(&link.current).take());
        waiter.map(|waiter| waiter.seat.withdraw(&waiter)).is_some()
    }
}
