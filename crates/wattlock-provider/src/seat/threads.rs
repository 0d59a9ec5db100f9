//! Which seat is the calling thread's.
//!
//! A seat is made when a thread first comes to a provider, again after a fork or a change of settings, and given back
//! at the thread's end or when the provider is unloaded, whichever is first. Both may happen at the same time, on two
//! threads: a program that waits for its threads' work, and not for their ends, unloads meanwhile. So the provider's
//! [`Life`](super::Life) owns the seats, and a thread's entry is weak.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use super::{Seat, Seats, lock};
use crate::error::entry;
use crate::provider::Provider;

thread_local! {
    /// This thread's seats. A plain pointer without a destructor: OpenSSL's own call at a thread's end frees it.
    static SEATS: Cell<*mut Vec<Entry>> = const { Cell::new(null_mut()) };
}

/// A thread's seat at one provider.
struct Entry {
    /// The provider's, which is not used twice.
    id: u64,
    /// The provider's `provctx`. Compared and never read: at the thread's end it may be freed.
    context: *const c_void,
    seat: Weak<Seat>,
    all: Weak<Seats>,
}

impl Provider {
    /// The calling thread's seat.
    pub(crate) fn seat(&self) -> Arc<Seat> {
        self.known_seat().unwrap_or_else(|| self.new_seat())
    }

    pub(super) fn known_seat(&self) -> Option<Arc<Seat>> {
        let place = SEATS.get();
        // SAFETY: null or this thread's own vector, which only this file touches, on this thread.
        let mut entries = unsafe { place.as_ref() }?.iter();
        let seat = entries.find(|entry| entry.id == self.id)?.seat.upgrade()?;
        let current = seat.forks == wattlock::forks() && seat.epoch == self.epoch.load(Relaxed);
        current.then_some(seat)
    }

    #[cold]
    fn new_seat(&self) -> Arc<Seat> {
        let (seat, life) = (Arc::new(Seat::new(self)), self.life());
        let mut place = SEATS.get();
        if place.is_null() {
            place = Box::into_raw(Box::default());
            SEATS.set(place);
        }
        // SAFETY: as in `known_seat`.
        let entries = unsafe { &mut *place };
        // Those of providers that are unloaded hold nothing but memory.
        entries.retain(|entry| entry.id == self.id || entry.seat.strong_count() > 0);
        let known = entries.iter().position(|entry| entry.id == self.id);
        match known.map(|at| entries.swap_remove(at)) {
            Some(entry) => {
                // One of before a fork stays in the parent's life, which nobody frees: its lock may be held for ever by a
                // thread that did not come along.
                if let Some(before) = entry.seat.upgrade().filter(|before| before.forks == seat.forks) {
                    // Of before a setting changed. Whoever waits in it holds it.
                    seat.claim(before.claimed.load(Relaxed));
                    seat.set_active(before.active.load(Relaxed));
                    seat.set_busy(before.busy.load(Relaxed));
                    forget(&life.seats, &before);
                }
            }
            None => self.at_thread_end(Some(thread_ended)),
        }
        let context = std::ptr::from_ref(self).cast();
        let all = Arc::downgrade(&life.seats);
        entries.push(Entry { id: self.id, context, seat: Arc::downgrade(&seat), all });
        lock(&life.seats).push(seat.clone());
        seat
    }

    /// Ends the helper and takes the seats back.
    pub(crate) fn close(&self) {
        let life = self.life();
        life.end_helper();
        let seats: Vec<Arc<Seat>> = lock(&life.seats).drain(..).collect();
        for seat in seats {
            seat.lock().close();
            seat.stacks.clear();
        }
        forget_entry(std::ptr::from_ref(self).cast());
    }
}

/// OpenSSL's call at a thread's end, or when it stops using libcrypto. libcrypto keeps the code of a provider loaded until
/// this has returned, and not the provider.
unsafe extern "C" fn thread_ended(context: *mut c_void) {
    entry(|| {
        let Some(Entry { seat, all, .. }) = forget_entry(context) else { return };
        // One of before a fork stays where it is, as in `new_seat`.
        let seat = seat.upgrade().filter(|seat| seat.forks == wattlock::forks());
        if let (Some(seat), Some(all)) = (seat, all.upgrade()) {
            forget(&all, &seat);
        }
    });
}

fn forget(all: &Seats, gone: &Arc<Seat>) {
    lock(all).retain(|seat| !Arc::ptr_eq(seat, gone));
}

/// Takes this thread's entry for a provider out.
fn forget_entry(context: *const c_void) -> Option<Entry> {
    let place = SEATS.get();
    // SAFETY: as in `Provider::known_seat`.
    let entries = unsafe { place.as_mut() }?;
    let found = entries.iter().position(|entry| entry.context == context).map(|at| entries.swap_remove(at));
    if entries.is_empty() {
        SEATS.set(null_mut());
        // SAFETY: made by `new_seat`, and out of reach now.
        drop(unsafe { Box::from_raw(place) });
    }
    found
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::super::tests::{Loaded, Made, runtime};
    use super::*;

    /// As in a program that waits for its threads' work, and not for their ends, and unloads the provider meanwhile.
    #[test]
    fn a_thread_that_ends_while_its_provider_closes_gives_its_seat_back_once() {
        let clock = wattlock::Clock::given(|| 1);
        let loaded = Loaded::with(runtime(wattlock::core::KindSet::EMPTY, true, clock, &Made::default()));
        let provider = loaded.provider();
        let life = provider.life();
        thread::scope(|scope| {
            let (give, given) = channel();
            let (end, ends) = channel::<()>();
            let ending = scope.spawn(move || {
                // More references than a defect takes back, so that it shows here and nowhere else.
                give.send([(); 9].map(|()| provider.seat())).unwrap();
                _ = ends.recv();
            });
            let seats = given.recv().unwrap();
            // Whichever comes first, both wait for this lock in the midst of it.
            let held = lock(&life.seats);
            let closing = scope.spawn(|| provider.close());
            thread::sleep(Duration::from_millis(50));
            drop(end);
            thread::sleep(Duration::from_millis(50));
            drop(held);
            ending.join().unwrap();
            closing.join().unwrap();
            assert_eq!(Arc::strong_count(&seats[0]), seats.len());
        });
    }
}
