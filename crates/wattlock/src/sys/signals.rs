//! Threads of a library must not take a program's signals: its handlers expect to interrupt its own threads' waiting.

use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// Does `work` with every signal blocked in this thread; a thread that it starts inherits that and keeps it.
pub(crate) fn blocked<T>(work: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set it is given; pthread_sigmask reads it and fills `before`, both of which
    // are valid places for one set. It changes only this thread's mask.
    let changed = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0
    };
    let result = work();
    if changed {
        // SAFETY: `before` was filled by the call that succeeded.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut()) };
    }
    result
}
