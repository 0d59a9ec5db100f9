//! The conformance suite on engines that queue, with every byte buffer of the process ending at an unreadable page: an
//! engine that reads or writes beyond a request's input, output, nonce or associated data crashes, as does one that
//! touches them once the request has been dropped.
//!
//! Queued requests own their `Vec`s, so the guard is this program's allocator. It guards what has no alignment, which is
//! bytes and text, the suite's own included; where such a buffer's length is odd, so is its address. Not covered: what an
//! engine keeps in words (expanded keys, batches), and tags, which lie within requests. Buffers from which borrowed
//! requests work are `guarded_conforms`'s, in wattlock-cpu.
#![allow(unsafe_code, reason = "an allocator on memory maps with unreadable pages")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use wattlock_core::Engine;
use wattlock_core::dev::{Harness, conform};
use wattlock_cpu::instruction::Instruction;
use wattlock_emul::{Emulated, Model, Pace};

const PAGE: usize = 4096;
/// Address space for all buffers that there ever are: none is used twice.
const SPACE: usize = 1 << 40;

/// An allocator whose byte buffers end where an inaccessible page begins, and whose freed ones are inaccessible.
struct Guarding;

#[global_allocator]
static ALLOCATOR: Guarding = Guarding;

/// Where the address space begins; 0 before there is one.
static BASE: AtomicUsize = AtomicUsize::new(0);
/// How much of it was given out.
static USED: AtomicUsize = AtomicUsize::new(0);

/// The space, reserved by the first comer.
fn base() -> Option<usize> {
    let known = BASE.load(Ordering::Acquire);
    if known != 0 {
        return Some(known);
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh inaccessible map of our own.
    let map = unsafe { libc::mmap(null_mut(), SPACE, libc::PROT_NONE, flags, -1, 0) };
    if map == libc::MAP_FAILED {
        return None;
    }
    match BASE.compare_exchange(0, map as usize, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(map as usize),
        Err(first) => {
            // SAFETY: the map just made, which no other thread has seen.
            unsafe { libc::munmap(map, SPACE) };
            Some(first)
        }
    }
}

fn is_guarded(layout: Layout) -> bool {
    layout.align() == 1
}

/// Accessible bytes of a buffer; the page behind them stays inaccessible.
fn room(len: usize) -> usize {
    len.next_multiple_of(PAGE)
}

// SAFETY: what is not guarded is the system allocator's. A guarded buffer is `room` bytes of the space that no other
// buffer ever has, made accessible and zero by the kernel, of which the last `size` are given out; an alignment of 1 is
// any address's. `dealloc` finds the same room, because the buffer ends where it does.
unsafe impl GlobalAlloc for Guarding {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !is_guarded(layout) {
            // SAFETY: the caller's promises are those that the system allocator asks for.
            return unsafe { System.alloc(layout) };
        }
        let Some(base) = base() else { return null_mut() };
        let room = room(layout.size());
        let at = USED.fetch_add(room + PAGE, Ordering::Relaxed);
        if at + room + PAGE > SPACE {
            return null_mut();
        }
        let start = (base + at) as *mut libc::c_void;
        // SAFETY: a part of the space that is this buffer's alone.
        if unsafe { libc::mprotect(start, room, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
            return null_mut();
        }
        (base + at + room - layout.size()) as *mut u8
    }

    unsafe fn dealloc(&self, buffer: *mut u8, layout: Layout) {
        if !is_guarded(layout) {
            // SAFETY: it came from there, with this layout.
            return unsafe { System.dealloc(buffer, layout) };
        }
        let room = room(layout.size());
        let start = (buffer as usize + layout.size() - room) as *mut libc::c_void;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: exactly the room that `alloc` made accessible for this buffer, which its owner gives back.
        unsafe { libc::mmap(start, room, libc::PROT_NONE, flags, -1, 0) };
    }
}

fn harness() -> Harness<'static> {
    let seed = std::env::var("WATTLOCK_SOAK_SEED").ok().and_then(|text| text.parse().ok());
    let plain = Harness::default();
    Harness { longest: 70_000, seed: seed.unwrap_or(plain.seed), ..plain }
}

#[test]
fn an_emulated_card_touches_nothing_beyond_its_requests() {
    let card = Emulated::new(Model::qat_dh8970(), Arc::new(Instruction::new()), Pace::Stepped).unwrap();
    assert!(!card.description().queued.is_empty());
    conform(&card, &Instruction::new(), &harness());
}

/// The kernel's word for what lies at an address.
fn access(address: usize) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let there = |line: &&str| {
        let (from, to) = line.split(' ').next().unwrap_or_default().split_once('-').unwrap_or_default();
        let bound = |text| usize::from_str_radix(text, 16).unwrap_or(0);
        (bound(from)..bound(to)).contains(&address)
    };
    let line = maps.lines().find(there)?;
    line.split(' ').nth(1).map(str::to_owned)
}

#[test]
fn the_guard_is_where_a_vector_ends_and_stays_when_it_is_gone() {
    // What these tests rely on.
    let buffer = vec![7u8; 100];
    let (start, behind) = (buffer.as_ptr() as usize, buffer.as_ptr() as usize + buffer.len());
    assert_eq!(behind % PAGE, 0);
    assert_eq!(access(start).as_deref(), Some("rw-p"));
    assert_eq!(access(behind).as_deref(), Some("---p"));
    drop(buffer);
    assert_eq!(access(start).as_deref(), Some("---p"));
}
