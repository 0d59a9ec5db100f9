//! Notices forks: a number that differs between a process and each of its descendants' histories.
//!
//! A dispatcher remembers the number at its birth and compares it on every call, one relaxed load. The number is
//! raised in the child by a `pthread_atfork` handler, which only touches an atomic (so it is async-signal-safe).
//! glibc drops the handler when the library that registered it is unloaded.

use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);
static HOOK: Once = Once::new();

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Installs the hook, once in a process. Takes about a microsecond; never fails visibly (without memory for the
/// handler no fork is noticed, and the process has other worries).
pub(crate) fn watch() {
    HOOK.call_once(|| {
        // SAFETY: `in_child` is an `extern "C"` function that lives as long as this library and only touches an
        // atomic; `None` for the other two handlers is what pthread_atfork documents for "nothing".
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// How many forks lie between this process and the first that built a runtime: whoever keeps something that a fork
/// spoils (a lock another thread may hold, a thread) remembers the number and makes it anew when the number differs.
/// One relaxed load.
#[inline]
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// A value that each process makes for itself when it first asks for it. A child never looks at what it inherited: a
/// thread that the fork did not bring along may hold a lock in it. The inherited value is leaked, in the child only.
/// Asking takes no lock.
pub(crate) struct PerProcess<T> {
    /// Null, or a box of the generation it was made in, and the value.
    place: AtomicPtr<(u32, T)>,
    owned: PhantomData<Box<(u32, T)>>,
}

impl<T: Send + Sync> PerProcess<T> {
    pub(crate) const fn new() -> PerProcess<T> {
        PerProcess { place: AtomicPtr::new(null_mut()), owned: PhantomData }
    }

    /// This process's value. Of two threads that ask first at the same time, one has its `make`'s result dropped.
    pub(crate) fn get(&self, make: impl FnOnce() -> T) -> &T {
        let now = generation();
        let seen = self.place.load(Ordering::Acquire);
        // SAFETY: null or from `Box::into_raw` below. Nothing that was published is freed before `take`, which has
        // `self` to itself; values are only shared, and `T` is `Sync`.
        if let Some((generation, value)) = unsafe { seen.as_ref() }
            && *generation == now
        {
            return value;
        }
        let fresh = Box::into_raw(Box::new((now, make())));
        match self.place.compare_exchange(seen, fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: `fresh` was just made, and is now published as above. `seen` was an ancestor's and is leaked.
            Ok(_) => unsafe { &(*fresh).1 },
            Err(other) => {
                // SAFETY: nobody else has seen `fresh`.
                drop(unsafe { Box::from_raw(fresh) });
                // SAFETY: published by another thread of this process, hence not null, as above.
                unsafe { &(*other).1 }
            }
        }
    }
}

impl<T> PerProcess<T> {
    /// Takes this process's value out. An ancestor's is leaked.
    pub(crate) fn take(&mut self) -> Option<T> {
        let seen = std::mem::replace(self.place.get_mut(), null_mut());
        // SAFETY: as in `get`.
        let (made, _) = unsafe { seen.as_ref() }?;
        if *made != generation() {
            return None;
        }
        // SAFETY: from `Box::into_raw`, no longer in its place, and `self` is borrowed by nobody else.
        Some(unsafe { Box::from_raw(seen) }.1)
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_value_is_made_once_and_dropped_once() {
        let counted = Arc::new(());
        let mut place = PerProcess::new();
        let first: *const Arc<()> = place.get(|| counted.clone());
        assert!(std::ptr::eq(first, place.get(|| unreachable!("it is there already"))));
        assert_eq!(Arc::strong_count(&counted), 2);
        assert!(place.take().is_some());
        assert!(place.take().is_none());
        place.get(|| counted.clone());
        drop(place);
        assert_eq!(Arc::strong_count(&counted), 1);
    }

    #[test]
    fn threads_that_ask_at_once_see_one_value() {
        let (counted, place) = (Arc::new(()), PerProcess::new());
        let seen: Vec<usize> = std::thread::scope(|scope| {
            let ask = || std::ptr::from_ref(place.get(|| counted.clone())).addr();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(seen.iter().all(|one| *one == seen[0]));
        assert_eq!(Arc::strong_count(&counted), 2);
    }
}
