//! After a key's first use an inline request allocates nothing: neither from Rust nor, public keys apart, inside
//! AWS-LC. A test file of its own, for it replaces both allocators of its process.
#![allow(unsafe_code, reason = "an allocator that counts, in Rust and in AWS-LC")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};

use wattlock_core::{Engine, Family, Kind, known_answers};
use wattlock_cpu::instruction::Instruction;

thread_local! {
    static RUST: Cell<usize> = const { Cell::new(0) };
    static LIBRARY: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: the system's allocator, with a count.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        RUST.set(RUST.get() + 1);
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

#[test]
fn inline_requests_allocate_nothing_after_the_first() {
    // SAFETY: the three belong together, and nothing was allocated inside AWS-LC before.
    assert_eq!(unsafe { aws_lc_sys::CRYPTO_set_mem_functions(Some(malloc), Some(realloc), Some(free)) }, 1);
    let engine = Instruction::new();
    for &kind in Kind::ALL {
        for answer in known_answers(kind) {
            let mut request = answer.request;
            let fresh = (RUST.get(), LIBRARY.get());
            if engine.execute(&mut request.view()).is_err() {
                continue;
            }
            let before = (RUST.get(), LIBRARY.get());
            // An X25519 key is used as it is: one that is used once costs nothing but its agreement.
            assert!(kind != Kind::X25519Derive || before == fresh, "{kind:?} expands its key");
            for _ in 0..3 {
                engine.execute(&mut request.view()).unwrap();
            }
            assert_eq!(RUST.get(), before.0, "{kind:?} allocates in Rust");
            let big_numbers = matches!(kind.info().family, Family::Sign | Family::Agree | Family::Generate);
            assert!(big_numbers || LIBRARY.get() == before.1, "{kind:?} allocates in AWS-LC");
        }
    }
    assert!(RUST.get() > 0 && LIBRARY.get() > 0, "the counters count");
}
