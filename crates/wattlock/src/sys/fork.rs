//! Notices forks: a number that differs between a process and each of its descendants' histories.
//!
//! A dispatcher remembers the number at its birth and compares it on every call, one relaxed load. The number is
//! raised in the child by a `pthread_atfork` handler, which only touches an atomic (so it is async-signal-safe).
//! glibc drops the handler when the library that registered it is unloaded.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

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
