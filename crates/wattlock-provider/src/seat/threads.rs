//! Which seat is the calling thread's.
//!
//! A seat is made when a thread first comes to a provider, again after a fork or a change of settings, and given back
//! at the thread's end or when the provider is unloaded, whichever is first.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::{Seat, lock};
use crate::error::entry;
use crate::provider::Provider;

thread_local! {
    /// This thread's seats, each with its provider's id and one reference. A plain pointer without a destructor:
    /// OpenSSL's own call at a thread's end frees it. A provider that is unloaded takes the references of all threads
    /// back ([`Provider::close`]); what stays here then has an id that is not asked for again.
    static SEATS: Cell<*mut Vec<(u64, *const Seat)>> = const { Cell::new(null_mut()) };
}

impl Provider {
    /// The calling thread's seat.
    pub(crate) fn seat(&self) -> Arc<Seat> {
        self.known_seat().unwrap_or_else(|| self.new_seat())
    }

    pub(super) fn known_seat(&self) -> Option<Arc<Seat>> {
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
                    seat.set_busy(before.busy.load(Relaxed));
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
    /// Ends the helper and takes everything back from the seats.
    pub(crate) fn close(&self) {
        let life = self.life();
        life.end_helper();
        let seats: Vec<Arc<Seat>> = lock(&life.seats).drain(..).collect();
        for seat in seats {
            seat.lock().close();
            seat.stacks.clear();
            // SAFETY: each of these is named by one thread's entry, which holds a reference and is not looked at again:
            // its id is this provider's.
            unsafe { Arc::decrement_strong_count(Arc::as_ptr(&seat)) };
        }
        forget_entry(self.id);
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
