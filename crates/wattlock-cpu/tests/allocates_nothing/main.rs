//! What allocates nothing: in Rust, and in AWS-LC. A program of its own, for it replaces both allocators of its process.
#![allow(unsafe_code, reason = "an allocator that counts, in Rust and in AWS-LC")]

mod instruction;
mod software;
mod streams;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Once;

thread_local! {
    static RUST: Cell<usize> = const { Cell::new(0) };
    static LIBRARY: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: the system's allocator, with a count.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        RUST.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: from `alloc` above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

unsafe extern "C" fn malloc(size: usize, _: *const c_char, _: c_int) -> *mut c_void {
    LIBRARY.set(LIBRARY.get() + 1);
    // SAFETY: any size will do.
    unsafe { libc::malloc(size) }
}

unsafe extern "C" fn realloc(memory: *mut c_void, size: usize, _: *const c_char, _: c_int) -> *mut c_void {
    LIBRARY.set(LIBRARY.get() + 1);
    // SAFETY: from `malloc` above.
    unsafe { libc::realloc(memory, size) }
}

unsafe extern "C" fn free(memory: *mut c_void, _: *const c_char, _: c_int) {
    // SAFETY: from `malloc` above.
    unsafe { libc::free(memory) }
}

/// Lets AWS-LC allocate through the functions above. Before anything else that a test does.
fn count_in_aws_lc() {
    static ONCE: Once = Once::new();
    // SAFETY: the three belong together, and nothing was allocated inside AWS-LC before.
    let set = || unsafe { aws_lc_sys::CRYPTO_set_mem_functions(Some(malloc), Some(realloc), Some(free)) };
    ONCE.call_once(|| assert_eq!(set(), 1));
}
