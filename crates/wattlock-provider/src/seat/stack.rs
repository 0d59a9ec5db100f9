//! The stack on which operations of jobs are computed.
//!
//! A job runs on a fiber of 32 KiB, less than one big multiplication takes. What is computed inside a job is therefore
//! computed on a stack of the seat's own, with a guard page.
#![allow(unsafe_code)]

use std::ptr::null_mut;

/// Bytes of the stack on which operations of jobs are computed.
const STACK: usize = 1 << 20;

/// A stack of the seat's own, with a guard page below.
pub(super) struct Stack {
    base: *mut u8,
    size: usize,
}

// SAFETY: plain memory.
unsafe impl Send for Stack {}

impl Stack {
    pub(super) fn new() -> Option<Stack> {
        const GUARD: usize = 4096;
        let size = STACK + GUARD;
        // SAFETY: a fresh anonymous mapping; its lowest page is made untouchable.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_NORESERVE;
            let base = libc::mmap(null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            if base == libc::MAP_FAILED {
                return None;
            }
            libc::mprotect(base, GUARD, libc::PROT_NONE);
            Some(Stack { base: base.cast(), size })
        }
    }

    /// Runs `work` on this stack.
    pub(super) fn run<R>(&mut self, work: impl FnOnce() -> R) -> Option<R> {
        // SAFETY: mapped, writable, page-aligned, used by one caller at a time (`&mut`); no panic leaves `work`.
        unsafe {
            psm::on_stack(self.base, self.size, || {
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).ok()
            })
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: ours, unmapped once. Nothing secret is left on it: engines wipe theirs.
        unsafe { libc::munmap(self.base.cast(), self.size) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_on_a_stack_of_its_own_and_a_panic_stays_there() {
        let mut stack = Stack::new().unwrap();
        let here = &raw const stack as usize;
        let there = stack.run(|| {
            let local = 0_u8;
            (&raw const local) as usize
        });
        assert!(there.is_some_and(|there| there.abs_diff(here) > STACK));
        assert!(stack.run(|| panic!("a defect")).map(|never: ()| never).is_none());
        // Half a MiB of it can be used.
        assert_eq!(stack.run(|| std::hint::black_box([7_u8; STACK / 2])[STACK / 2 - 1]), Some(7));
    }
}
