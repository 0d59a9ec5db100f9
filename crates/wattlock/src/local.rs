//! The calling thread's own dispatcher, kept for its next use.
//!
//! A door that is called on threads that it did not start (a library's function, a file system's callback) has no
//! place of its own for a dispatcher. [`Runtime::local`] keeps one for each thread and runtime. It is given back when
//! the thread ends. When the last handle of its runtime goes, the thread that drops the handle gives its dispatcher
//! back at once; any other thread does so when it next uses `local`, or when it ends.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use crate::{Dispatcher, Runtime};

/// What the handles of one runtime share, and its dispatchers do not: gone means that no door can name the runtime.
#[derive(Debug)]
pub(crate) struct Owners;

impl Drop for Owners {
    fn drop(&mut self) {
        drop(take_orphans());
    }
}

struct Kept {
    owners: Weak<Owners>,
    dispatcher: Dispatcher,
}

thread_local! {
    /// At most one for each runtime. Borrowed only to take one out or put one in, never while one is used or dropped.
    static KEPT: RefCell<Vec<Kept>> = const { RefCell::new(Vec::new()) };
}

impl Runtime {
    /// Calls `work` with the calling thread's own dispatcher, which is made at the thread's first call and kept for
    /// later ones. Takes no lock. May be called within itself: the inner call then gets another dispatcher. If `work`
    /// panics, its dispatcher is not used again.
    ///
    /// In a child after a fork the thread goes on with its dispatcher, which has forgotten everything that was opened
    /// before. Do not fork inside `work`.
    pub fn local<T>(&self, work: impl FnOnce(&mut Dispatcher) -> T) -> T {
        let mut dispatcher = take(self.owners()).unwrap_or_else(|| self.dispatcher());
        let result = work(&mut dispatcher);
        put_back(Kept { owners: Arc::downgrade(self.owners()), dispatcher });
        result
    }

    /// Gives the calling thread's dispatcher back, if it has one: nothing waits for what a thread drops at its end.
    pub(crate) fn leave_local(&self) {
        drop(take(self.owners()));
    }
}

/// This thread's dispatcher of a runtime, if it is there. What belongs to runtimes that are gone is dropped.
fn take(owners: &Arc<Owners>) -> Option<Dispatcher> {
    drop(take_orphans());
    let found = |kept: &mut Vec<Kept>| {
        let at = kept.iter().position(|one| std::ptr::eq(one.owners.as_ptr(), Arc::as_ptr(owners)))?;
        Some(kept.swap_remove(at).dispatcher)
    };
    KEPT.try_with(|kept| found(&mut kept.borrow_mut())).ok().flatten()
}

/// Keeps a dispatcher, unless an inner call's is kept already or the thread is at its end.
fn put_back(one: Kept) {
    let spare = KEPT.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        if kept.iter().any(|other| other.owners.ptr_eq(&one.owners)) {
            return Some(one);
        }
        kept.push(one);
        None
    });
    drop(spare);
}

fn take_orphans() -> Vec<Kept> {
    let orphan = |one: &mut Kept| one.owners.strong_count() == 0;
    KEPT.try_with(|kept| kept.borrow_mut().extract_if(.., orphan).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> Runtime {
        Runtime::builder().telemetry(false).build().unwrap()
    }

    fn kept() -> usize {
        KEPT.with(|kept| kept.borrow().len())
    }

    fn submitters(runtime: &Runtime) -> u16 {
        runtime.submitters()
    }

    #[test]
    fn a_thread_keeps_its_dispatcher_and_gives_it_back_at_its_end() {
        let runtime = runtime();
        std::thread::spawn({
            let runtime = runtime.clone();
            move || {
                runtime.local(|_| assert_eq!(submitters(&runtime), 1));
                runtime.local(|_| assert_eq!(submitters(&runtime), 1, "the same one"));
                assert_eq!(submitters(&runtime), 1, "kept");
            }
        })
        .join()
        .unwrap();
        assert_eq!(submitters(&runtime), 0);
    }

    #[test]
    fn a_call_within_a_call_gets_another_and_one_is_kept() {
        let runtime = runtime();
        runtime.local(|_| runtime.local(|_| assert_eq!(submitters(&runtime), 2)));
        assert_eq!((submitters(&runtime), kept()), (1, 1));
    }

    #[test]
    fn a_dispatcher_that_a_panic_went_through_is_not_kept() {
        let runtime = runtime();
        let panics = || runtime.local(|_| panic!("a test's"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        assert_eq!((submitters(&runtime), kept()), (0, 0));
    }

    #[test]
    fn nothing_is_kept_of_a_runtime_that_is_gone() {
        let (one, other) = (runtime(), runtime());
        one.local(|_| {});
        other.local(|_| {});
        let again = one.clone();
        drop(one);
        assert_eq!(kept(), 2, "a handle is left");
        drop(again);
        assert_eq!(kept(), 1);
        other.local(|_| assert_eq!(submitters(&other), 1));
    }

    #[test]
    fn another_thread_gives_back_what_belongs_to_a_runtime_that_is_gone() {
        let (one, other) = (runtime(), runtime());
        let (used, dropped) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            let handle = one.clone();
            let (used, dropped, other) = (&used, &dropped, &other);
            scope.spawn(move || {
                handle.local(|_| {});
                drop(handle);
                used.wait();
                dropped.wait();
                assert_eq!(kept(), 1, "this thread did not ask meanwhile");
                other.local(|_| assert_eq!(kept(), 0));
            });
            used.wait();
            drop(one);
            dropped.wait();
        });
    }
}
