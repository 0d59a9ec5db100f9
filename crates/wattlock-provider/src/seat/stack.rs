//! Stacks of our own, for code that runs inside a job.
//!
//! A job runs on a fiber of 32 KiB of heap, less than one big multiplication takes, with no guard page. What is computed
//! inside a job is therefore computed on a stack of the seat's own. And an event loop that starts jobs itself has a
//! stack as large as its thread's for each ([`Stacks`]), because a handshake calls back into code of others.
#![allow(unsafe_code)]

use std::ptr::null_mut;
use std::sync::Mutex;

use super::lock;

/// Bytes of the stack on which operations of jobs are computed.
const STACK: usize = 1 << 20;

/// Inaccessible bytes below a stack. As many as Linux keeps below a thread's first stack (256 pages): a function with a
/// large frame need not touch the first page.
const GUARD: usize = 1 << 20;

/// A stack with a guard below.
pub(super) struct Stack {
    base: *mut u8,
    /// With the guard.
    size: usize,
}

// SAFETY: plain memory.
unsafe impl Send for Stack {}

impl Stack {
    pub(super) fn new() -> Option<Stack> {
        Stack::of(STACK)
    }

    fn of(room: usize) -> Option<Stack> {
        let size = room.checked_add(GUARD)?;
        // SAFETY: a fresh anonymous mapping, inaccessible; all of it above the guard is then made writable.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_NORESERVE;
            let base = libc::mmap(null_mut(), size, libc::PROT_NONE, flags, -1, 0);
            if base == libc::MAP_FAILED {
                return None;
            }
            let stack = Stack { base: base.cast(), size };
            let begin = stack.base.add(GUARD).cast();
            if libc::mprotect(begin, room, libc::PROT_READ | libc::PROT_WRITE) != 0 {
                return None;
            }
            // A huge page for each would cost 2 MiB where 32 KiB are used. It may not be known here.
            libc::madvise(begin, room, libc::MADV_NOHUGEPAGE);
            Some(stack)
        }
    }

    /// Runs `work` on this stack.
    pub(super) fn run<R>(&mut self, work: impl FnOnce() -> R) -> Option<R> {
        // SAFETY: mapped, writable above the guard, page-aligned, used by one caller at a time (`&mut`); no panic leaves
        // `work`.
        unsafe {
            psm::on_stack(self.base, self.size, || {
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).ok()
            })
        }
    }

    /// Leaves nothing of what was on it: wipes the part that a handshake uses, and gives back the rest.
    fn wipe(&mut self) {
        // From a function on that stack: what lies below a stack's end is nobody's to memcheck.
        let _ = self.run(scrub);
        let rest = self.size - GUARD - USED;
        // SAFETY: ours, writable from the guard on, and nothing runs on it.
        unsafe { libc::madvise(self.base.add(GUARD).cast(), rest, libc::MADV_DONTNEED) };
    }
}

#[inline(never)]
fn scrub() {
    std::hint::black_box(&mut [0_u8; USED]);
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: ours, unmapped once. Nothing secret is left on it: engines wipe theirs, and the kernel the rest.
        unsafe { libc::munmap(self.base.cast(), self.size) };
    }
}

/// What a handshake without code of others uses: it had 32 KiB before it had more.
const USED: usize = 32 << 10;
/// Stacks that wait for their next use: handshakes that pause together.
const KEPT: usize = 64;
/// Stacks in use at once. They are address space, and two entries in the kernel's list of mappings (65,530 by default),
/// which the whole process shares.
const MOST: usize = 1024;

/// A thread's large stacks.
#[derive(Default)]
pub(super) struct Stacks(Mutex<Pool>);

#[derive(Default)]
struct Pool {
    kept: Vec<Stack>,
    in_use: usize,
}

impl Stacks {
    /// Runs `work` on a stack as large as the thread's. Nothing is done, and the answer is `None`, if none is to be had.
    /// Nothing is locked meanwhile: `work` may pause its job, and other jobs run `work` of theirs.
    pub(super) fn run(&self, work: impl FnOnce()) -> Option<()> {
        let mut stack = self.take()?;
        let done = stack.run(work);
        stack.wipe();
        let mut pool = lock(&self.0);
        pool.in_use -= 1;
        if pool.kept.len() < KEPT {
            pool.kept.push(stack);
        }
        done
    }

    fn take(&self) -> Option<Stack> {
        let mut pool = lock(&self.0);
        if pool.in_use == MOST {
            return None;
        }
        let stack = pool.kept.pop().or_else(|| Stack::of(as_large_as_the_threads()))?;
        pool.in_use += 1;
        Some(stack)
    }

    pub(super) fn clear(&self) {
        lock(&self.0).kept.clear();
    }
}

/// What the process's first thread may use: setrlimit(2), in whole units of 64 KiB, the largest page.
fn as_large_as_the_threads() -> usize {
    const UNLIMITED: usize = 8 << 20;
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: room for the answer.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) } == 0;
    if !known || limit.rlim_cur == libc::RLIM_INFINITY {
        return UNLIMITED;
    }
    usize::try_from(limit.rlim_cur).unwrap_or(UNLIMITED).clamp(2 << 20, 64 << 20) & !0xffff
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

    /// Touches `N` bytes of stack and returns where they were.
    fn deep<const N: usize>(value: u8) -> usize {
        let frame = std::hint::black_box([value; N]);
        std::hint::black_box(&frame).as_ptr() as usize
    }

    #[test]
    fn a_large_stack_takes_a_mebibyte_is_used_again_and_keeps_nothing() {
        const DEEP: usize = 1 << 20;
        let stacks = Stacks::default();
        let mut places = Vec::new();
        for _ in 0..2 {
            stacks.run(|| places.push(deep::<DEEP>(7))).unwrap();
        }
        let pool = lock(&stacks.0);
        let [stack] = &pool.kept[..] else { panic!("{} are kept", pool.kept.len()) };
        let whole = stack.base as usize + GUARD..stack.base as usize + stack.size;
        assert!(places.iter().all(|at| whole.contains(at) && whole.contains(&(at + DEEP - 1))));
        // SAFETY: the pool's, readable, and nothing runs on it.
        let bytes = unsafe { std::slice::from_raw_parts(whole.start as *const u8, whole.len()) };
        // What wiped it lies at the very top.
        let (rest, top) = bytes.split_at(bytes.len() - USED - 1024);
        assert!(rest.iter().all(|byte| *byte == 0));
        assert!(!top.windows(64).any(|part| part == [7; 64]));
        assert_eq!(pool.in_use, 0);
    }

    #[test]
    fn stacks_have_a_bound_and_those_beyond_it_do_nothing() {
        let stacks = Stacks::default();
        lock(&stacks.0).in_use = MOST;
        let mut done = false;
        assert_eq!(stacks.run(|| done = true), None);
        assert!(!done);
        let taken: Vec<Stack> = {
            lock(&stacks.0).in_use = 0;
            (0..KEPT + 3).map(|_| stacks.take().unwrap()).collect()
        };
        assert_eq!(lock(&stacks.0).in_use, taken.len());
    }
}
