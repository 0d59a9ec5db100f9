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
        keeping_errno(|| Stack::mapped(room))
    }

    fn mapped(room: usize) -> Option<Stack> {
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

    /// Leaves nothing of what was on it: wipes the part that a handshake uses, whose pages stay, and gives back the rest.
    ///
    /// Not from a function on that stack, whose own frames would reach into the rest: each wipe then took a page from the
    /// kernel and gave it back. memcheck takes what lies below a stack's end for nobody's (`nginx/tests/valgrind.supp`, which
    /// knows this function by its name).
    #[inline(never)]
    fn wipe(&mut self) {
        let rest = self.size - GUARD - USED;
        // SAFETY: `mapped` made all above the guard writable, `rest` and `USED` end where it ends, and by `&mut self` no `run`
        // is on it.
        let used = unsafe { std::slice::from_raw_parts_mut(self.base.add(GUARD + rest), USED) };
        used.fill(0);
        std::hint::black_box(used);
        keeping_errno(|| {
            // SAFETY: as above.
            let done = unsafe { libc::madvise(self.base.add(GUARD).cast(), rest, libc::MADV_DONTNEED) };
            if done != 0 {
                self.overwrite(rest);
            }
        });
    }

    /// Wipes so many bytes from the guard on by hand. The kernel does not give back pages that are locked (mlockall(2)), and a
    /// filter may refuse. A page that was never touched is read only, which takes no memory.
    fn overwrite(&mut self, bytes: usize) {
        // SAFETY: ours, writable from the guard on, and nothing runs on it.
        let all = unsafe { std::slice::from_raw_parts_mut(self.base.add(GUARD), bytes) };
        for page in all.chunks_mut(PAGE) {
            if page.iter().fold(0, |any, byte| any | byte) != 0 {
                page.fill(0);
            }
        }
        std::hint::black_box(all);
    }
}

/// Makes system calls of which the program whose code goes on must see nothing: nginx reads `errno` when a handshake comes
/// back.
fn keeping_errno<R>(act: impl FnOnce() -> R) -> R {
    // SAFETY: this thread's own.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *at };
    let result = act();
    // SAFETY: as above; `act` runs to its end on this thread.
    unsafe { *at = before };
    result
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: ours, unmapped once. Nothing secret is left on it: engines wipe theirs, and the kernel the rest.
        keeping_errno(|| unsafe { libc::munmap(self.base.cast(), self.size) });
    }
}

/// What a handshake without code of others uses: it had 32 KiB before it had more.
const USED: usize = 32 << 10;
/// The smallest page.
const PAGE: usize = 4096;
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

    fn errno() -> i32 {
        std::io::Error::last_os_error().raw_os_error().unwrap()
    }

    fn set_errno(value: i32) {
        // SAFETY: this thread's own.
        unsafe { *libc::__errno_location() = value };
    }

    /// As in a program that locks its memory.
    #[test]
    fn a_stack_that_the_kernel_does_not_take_back_is_wiped_by_hand_and_errno_stays() {
        const DEEP: usize = 1 << 20;
        let stacks = Stacks::default();
        let mut place = 0;
        stacks.run(|| place = deep::<DEEP>(7)).unwrap();
        let (begin, locked) = (place.next_multiple_of(PAGE), 2 * PAGE);
        // The address sanitizer makes nothing of the C library's mlock.
        // SAFETY: pages of a stack that is kept.
        let is_locked = unsafe { libc::syscall(libc::SYS_mlock, begin, locked) } == 0;
        assert!(is_locked, "two pages: {}", std::io::Error::last_os_error());
        let touch = || {
            deep::<DEEP>(7);
            set_errno(libc::EDOM);
        };
        set_errno(libc::ERANGE);
        stacks.run(touch).unwrap();
        assert_eq!(errno(), libc::EDOM, "what the work left");
        let pool = lock(&stacks.0);
        let [stack] = &pool.kept[..] else { panic!("{} are kept", pool.kept.len()) };
        assert!((stack.base as usize..stack.base as usize + stack.size).contains(&begin));
        // SAFETY: ours, mapped, and nothing runs on it.
        let refused = unsafe { libc::madvise(begin as *mut libc::c_void, locked, libc::MADV_DONTNEED) };
        assert_eq!((refused, errno()), (-1, libc::EINVAL), "otherwise this shows nothing");
        // SAFETY: the pool's, readable, and nothing runs on it.
        let bytes =
            unsafe { std::slice::from_raw_parts(stack.base.add(GUARD), stack.size - GUARD - USED - 1024) };
        assert!(bytes.iter().all(|byte| *byte == 0));
    }

    /// In a process of its own, which is this test once more: the limit is a process's.
    #[test]
    fn where_address_space_ends_nothing_is_done_and_it_goes_on_when_there_is_some_again() {
        const HERE: &str = "WATTLOCK_TEST_ADDRESS_SPACE";
        if std::env::var_os(HERE).is_none() {
            let name = std::thread::current().name().unwrap().to_owned();
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            let output = again.args(["--exact", &name]).env(HERE, "1").output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{}: {text}", output.status);
            return;
        }
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
        if pages > (1 << 40) / 4096 {
            println!("skipped: a sanitizer's shadow takes more than any limit");
            return;
        }
        let each = (as_large_as_the_threads() + GUARD) as u64;
        let limit =
            libc::rlimit { rlim_cur: pages * 4096 + 3 * each + each / 2, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: a limit of this process's.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
        let stacks = Stacks::default();
        set_errno(libc::ERANGE);
        let mut taken: Vec<Stack> = std::iter::from_fn(|| stacks.take()).take(MOST).collect();
        assert_eq!(errno(), libc::ERANGE, "a mapping that failed leaves no trace");
        assert!((1..=3).contains(&taken.len()), "{} were to be had", taken.len());
        let mut done = false;
        assert_eq!(stacks.run(|| done = true), None);
        assert!(!done);
        assert_eq!(lock(&stacks.0).in_use, taken.len(), "what failed does not count");
        taken.pop();
        assert_eq!(stacks.run(|| done = true), Some(()));
        assert!(done);
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
