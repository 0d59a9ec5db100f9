//! The conformance suite with every buffer ending at an unreadable page: a byte read or written beyond what a request
//! names crashes, whichever kind and whichever engine does it, foreign code included. Buffers are a request's input,
//! output, nonce, associated data and tag; a key's material lies where the key's owner put it.
//!
//! Lanes take batches: the suite puts each request among neighbours, all of them in such buffers. Requests in a queue own
//! their memory; `guarded_queues` of the runtime's tests guards that.
#![allow(unsafe_code, reason = "memory maps with unreadable pages behind them")]

use std::ops::{Deref, DerefMut};

use wattlock_core::dev::{Arena, Harness, conform};
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::software::Software;

const PAGE: usize = 4096;

/// `len` bytes that end where an inaccessible page begins; another lies before the map's first page.
struct Guarded {
    map: *mut u8,
    /// Accessible bytes between the guards.
    room: usize,
    len: usize,
}

impl Guarded {
    fn new(len: usize) -> Guarded {
        let room = len.next_multiple_of(PAGE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh private map of our own, of which the middle becomes accessible.
        unsafe {
            let map = libc::mmap(std::ptr::null_mut(), room + 2 * PAGE, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(map, libc::MAP_FAILED);
            let map = map.cast::<u8>();
            if room > 0 {
                assert_eq!(libc::mprotect(map.add(PAGE).cast(), room, libc::PROT_READ | libc::PROT_WRITE), 0);
            }
            Guarded { map, room, len }
        }
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: inside the map: `room >= len`, and the guard before adds a page.
        unsafe { self.map.add(PAGE + self.room - self.len) }
    }
}

impl Deref for Guarded {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` accessible bytes of a map that lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }
}

impl DerefMut for Guarded {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed for as long as the slice.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the map that `new` made, no longer in use.
        unsafe { libc::munmap(self.map.cast(), self.room + 2 * PAGE) };
    }
}

struct Pages;

impl Arena for Pages {
    fn buffer(&self, len: usize) -> Box<dyn DerefMut<Target = [u8]>> {
        Box::new(Guarded::new(len))
    }
}

/// The harness of all of these; `make soak` gives each of its rounds another seed.
fn harness() -> Harness<'static> {
    let seed = std::env::var("WATTLOCK_SOAK_SEED").ok().and_then(|text| text.parse().ok());
    let plain = Harness::default();
    Harness { arena: &Pages, longest: 70_000, seed: seed.unwrap_or(plain.seed), ..plain }
}

#[test]
fn no_engine_touches_a_byte_beyond_its_buffers() {
    let (software, instruction) = (Software::new(), Instruction::new());
    let harness = harness();
    conform(&instruction, &software, &harness);
    conform(&software, &instruction, &harness);
}

#[test]
fn the_guard_is_where_the_buffer_ends() {
    // What the suite relies on: the byte behind a buffer is on a page that the kernel says is not accessible.
    let buffer = Guarded::new(100);
    let behind = buffer.as_ptr() as usize + buffer.len();
    assert_eq!(behind % PAGE, 0);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let guard =
        maps.lines().find(|line| line.starts_with(&format!("{behind:x}-"))).expect("a map begins there");
    assert!(guard.contains("---p"), "{guard}");
}

#[cfg(target_arch = "x86_64")]
mod lanes {
    use wattlock_core::dev::conform;
    use wattlock_cpu::instruction::Instruction;
    use wattlock_cpu::lanes::dev::lanes_here;

    use super::harness;

    #[test]
    fn no_lane_touches_a_byte_beyond_its_buffers() {
        for lanes in lanes_here() {
            conform(&lanes, &Instruction::new(), &harness());
        }
    }
}
