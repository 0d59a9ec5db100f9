//! Once a stream is made, its messages allocate nothing, neither from Rust nor inside AWS-LC. A test file of its own,
//! for it replaces both allocators of its process.
#![allow(unsafe_code, reason = "an allocator that counts, in Rust and in AWS-LC")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};

use wattlock_core::{Data, Engine, Key, Kind};
use wattlock_cpu::instruction::Instruction;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: the system's allocator, with a count.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
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
    COUNT.set(COUNT.get() + 1);
    // SAFETY: any size will do.
    unsafe { libc::malloc(size) }
}

unsafe extern "C" fn realloc(memory: *mut c_void, size: usize, _: *const c_char, _: c_int) -> *mut c_void {
    COUNT.set(COUNT.get() + 1);
    // SAFETY: from `malloc` above.
    unsafe { libc::realloc(memory, size) }
}

unsafe extern "C" fn free(memory: *mut c_void, _: *const c_char, _: c_int) {
    // SAFETY: from `malloc` above.
    unsafe { libc::free(memory) }
}

#[test]
fn messages_in_pieces_allocate_nothing() {
    // SAFETY: the three belong together, and nothing was allocated inside AWS-LC before.
    assert_eq!(unsafe { aws_lc_sys::CRYPTO_set_mem_functions(Some(malloc), Some(realloc), Some(free)) }, 1);
    let engine = Instruction::new();
    let mut data = vec![0u8; 20_000];
    for &kind in Kind::ALL {
        let info = kind.info();
        let bytes: Vec<u8> = (0..info.algorithm.key_len().unwrap_or(0) as u8).collect();
        let Ok(key) = Key::symmetric(info.algorithm, &bytes) else { continue };
        let before = COUNT.get();
        let Ok(mut stream) = engine.stream(kind, &key) else { continue };
        assert!(COUNT.get() > before, "the counter counts");
        let nonce: &[u8] = if info.tag > 0 { &[1; 12] } else { &[1; 16] };
        let before = COUNT.get();
        for _ in 0..3 {
            stream.start(nonce).unwrap();
            if info.tag > 0 {
                stream.aad(&[2; 13]).unwrap();
            }
            for piece in data.chunks_mut(if info.multiple > 1 { 16_000 } else { 6_001 }) {
                stream.update(Data::InPlace(piece)).unwrap();
            }
            let mut tag = [0; 16];
            // A wrong tag is refused without allocating too.
            stream.finish(&mut tag[..info.tag]).ok();
        }
        assert_eq!(COUNT.get(), before, "{kind:?} allocates");
    }
}
