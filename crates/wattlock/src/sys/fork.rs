//! Notices forks, however a child was made: `fork`, `_Fork`, or a bare `clone`, none of which runs a handler but the first.
//!
//! One mapping of the process is zeroed by the kernel in every child that does not share its parent's memory
//! (`MADV_WIPEONFORK`, Linux 4.14). Its first word is the number of this process among its ancestors; a child that finds
//! zero there gives itself the next. What must not be in a child's memory at all lies in the same mapping ([`Wiped`]). A
//! kernel that refuses is asked for the process's number at each look instead, and the child zeroes the mapping itself.
//!
//! The mapping is made when the first runtime is built, before a program can have confined itself, and never given back.

use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Bytes of a [`Wiped`].
pub const WIPED_BYTES: usize = 4096;
/// How many there are: as many as the bits that say which are taken.
const PLACES: usize = 64;
/// The first page is the mapping's own.
const OWN_BYTES: usize = 4096;

/// What begins the mapping. Zeroes in a child.
#[repr(C)]
struct Region {
    /// How many forks lie between this process and the first, and one. 0: not looked at yet.
    number: AtomicU32,
    /// Which process wrote it, where the kernel wipes nothing; else 0.
    pid: AtomicU32,
    /// Bit n is set while place n is taken.
    taken: AtomicU64,
}

static REGION: AtomicPtr<Region> = AtomicPtr::new(null_mut());
/// The number of this process, or of the ancestor that looked last.
static LAST: AtomicU32 = AtomicU32::new(0);
/// Used where there is no memory for a mapping: no child is noticed then, and nothing is kept in it.
static NONE: Region =
    Region { number: AtomicU32::new(1), pid: AtomicU32::new(0), taken: AtomicU64::new(u64::MAX) };

fn own_pid() -> u32 {
    // SAFETY: a call without arguments that cannot fail.
    unsafe { libc::getpid() }.cast_unsigned()
}

/// Makes the mapping, once in a process.
#[cold]
fn make() -> &'static Region {
    let size = OWN_BYTES + PLACES * WIPED_BYTES;
    // SAFETY: a fresh anonymous private mapping, readable and writable, of which pages that are not touched cost nothing.
    let at = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        libc::mmap(null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    if at == libc::MAP_FAILED {
        return &NONE;
    }
    // SAFETY: exactly the mapping that was just made.
    let wiped = unsafe { libc::madvise(at, size, libc::MADV_WIPEONFORK) } == 0;
    let fresh = at.cast::<Region>();
    // SAFETY: page-aligned, zeroed and large enough; all fields are atomics, of which zeroes are a value.
    let region = unsafe { &*fresh };
    if !wiped {
        region.pid.store(own_pid(), Ordering::Relaxed);
    }
    match REGION.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => region,
        Err(other) => {
            // SAFETY: no other thread has seen our mapping; `other` is another thread's, never given back.
            unsafe {
                libc::munmap(at, size);
                &*other
            }
        }
    }
}

#[inline]
fn region() -> &'static Region {
    // SAFETY: null, or a mapping that `make` published and never gives back.
    unsafe { REGION.load(Ordering::Acquire).as_ref() }.unwrap_or_else(|| make())
}

/// Notices every fork from here on. Two calls to the kernel at the first, none at others.
pub(crate) fn watch() {
    generation();
}

/// A number that differs between a process and each of its ancestors: code that keeps something that a fork spoils (a
/// lock another thread may hold, a thread) remembers the number and makes it anew when the number differs. Two loads.
#[inline]
pub fn generation() -> u32 {
    let region = region();
    let number = region.number.load(Ordering::Relaxed);
    let kept = region.pid.load(Ordering::Relaxed);
    if number == 0 || kept != 0 && kept != own_pid() { renumber(region) } else { number }
}

#[cold]
fn renumber(region: &Region) -> u32 {
    let kept = region.pid.load(Ordering::Relaxed);
    if kept != 0 && kept != own_pid() {
        // The kernel wiped nothing. A child has one thread when it first comes here, or its other threads wait for what it
        // does: what they share was made in this process.
        let start = std::ptr::from_ref(region).cast_mut().cast::<u8>();
        // SAFETY: the places behind the first page of the mapping, which belong to the parent's threads.
        unsafe { std::ptr::write_bytes(start.add(OWN_BYTES), 0, PLACES * WIPED_BYTES) };
        region.taken.store(0, Ordering::Relaxed);
        region.number.store(0, Ordering::Relaxed);
        region.pid.store(own_pid(), Ordering::Relaxed);
    }
    let next = LAST.load(Ordering::Relaxed).wrapping_add(1).max(1);
    match region.number.compare_exchange(0, next, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            LAST.store(next, Ordering::Relaxed);
            next
        }
        Err(other) => other,
    }
}

/// Memory of this process alone: zeroes in every child. Given back with its owner, and wiped then.
pub struct Wiped {
    place: usize,
    generation: u32,
}

impl Wiped {
    /// [`WIPED_BYTES`] zeroes; `None` if all are taken. No call to the kernel.
    pub fn take() -> Option<Wiped> {
        let generation = generation();
        let free = |taken: u64| (taken != u64::MAX).then(|| taken | 1 << (!taken).trailing_zeros());
        let before = region().taken.fetch_update(Ordering::Acquire, Ordering::Relaxed, free).ok()?;
        Some(Wiped { place: (!before).trailing_zeros() as usize, generation })
    }

    /// The bytes; `None` in a child, where they are not ours.
    pub fn bytes(&mut self) -> Option<&mut [u8]> {
        if self.generation != generation() {
            return None;
        }
        let start = std::ptr::from_ref(region()).cast_mut().cast::<u8>();
        // SAFETY: the place lies within the mapping; its bit was free and is ours, in this process, until `drop`.
        Some(unsafe {
            std::slice::from_raw_parts_mut(start.add(OWN_BYTES + self.place * WIPED_BYTES), WIPED_BYTES)
        })
    }
}

impl Drop for Wiped {
    fn drop(&mut self) {
        if let Some(bytes) = self.bytes() {
            for byte in &mut *bytes {
                // SAFETY: one byte of ours; volatile, so that it is written though it is not read.
                unsafe { std::ptr::write_volatile(byte, 0) };
            }
            region().taken.fetch_and(!(1 << self.place), Ordering::Release);
        }
    }
}

/// A value that each process makes for itself when it first asks for it. A child never looks at what it inherited: a
/// thread that the fork did not bring along may hold a lock in it. The inherited value is leaked, in the child only.
/// Asking takes no lock.
pub(crate) struct PerProcess<T> {
    /// Null, or a box of the generation it was made in, and the value.
    place: AtomicPtr<(u32, T)>,
    owned: PhantomData<Box<(u32, T)>>,
}

impl<T: Send + Sync> PerProcess<T> {
    pub(crate) const fn new() -> PerProcess<T> {
        PerProcess { place: AtomicPtr::new(null_mut()), owned: PhantomData }
    }

    /// This process's value. Of two threads that ask first at the same time, one has its `make`'s result dropped.
    pub(crate) fn get(&self, make: impl FnOnce() -> T) -> &T {
        let now = generation();
        let seen = self.place.load(Ordering::Acquire);
        // SAFETY: null or from `Box::into_raw` below. Nothing that was published is freed before `take`, which has
        // `self` to itself; values are only shared, and `T` is `Sync`.
        if let Some((generation, value)) = unsafe { seen.as_ref() }
            && *generation == now
        {
            return value;
        }
        let fresh = Box::into_raw(Box::new((now, make())));
        match self.place.compare_exchange(seen, fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: `fresh` was just made, and is now published as above. `seen` was an ancestor's and is leaked.
            Ok(_) => unsafe { &(*fresh).1 },
            Err(other) => {
                // SAFETY: no other thread has seen `fresh`.
                drop(unsafe { Box::from_raw(fresh) });
                // SAFETY: published by another thread of this process, hence not null, as above.
                unsafe { &(*other).1 }
            }
        }
    }
}

impl<T> PerProcess<T> {
    /// Takes this process's value out. An ancestor's is leaked.
    pub(crate) fn take(&mut self) -> Option<T> {
        let seen = std::mem::replace(self.place.get_mut(), null_mut());
        // SAFETY: as in `get`.
        let (made, _) = unsafe { seen.as_ref() }?;
        if *made != generation() {
            return None;
        }
        // SAFETY: from `Box::into_raw`, no longer in its place, and `self` is not borrowed by other code.
        Some(unsafe { Box::from_raw(seen) }.1)
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn places_are_zeroed_and_nobody_elses() {
        let (mut one, mut other) = (Wiped::take().unwrap(), Wiped::take().unwrap());
        one.bytes().unwrap().fill(1);
        assert!(other.bytes().unwrap().iter().all(|byte| *byte == 0));
        let place = one.place;
        drop(one);
        other.bytes().unwrap().fill(2);
        let mut again: Vec<Wiped> = std::iter::from_fn(Wiped::take).collect();
        assert!(again.len() < PLACES && again.iter().any(|wiped| wiped.place == place));
        assert!(again.iter_mut().all(|wiped| wiped.bytes().unwrap().iter().all(|byte| *byte == 0)));
    }

    #[test]
    fn a_value_is_made_once_and_dropped_once() {
        let counted = Arc::new(());
        let mut place = PerProcess::new();
        let first: *const Arc<()> = place.get(|| counted.clone());
        assert!(std::ptr::eq(first, place.get(|| unreachable!("it is there already"))));
        assert_eq!(Arc::strong_count(&counted), 2);
        assert!(place.take().is_some());
        assert!(place.take().is_none());
        place.get(|| counted.clone());
        drop(place);
        assert_eq!(Arc::strong_count(&counted), 1);
    }

    #[test]
    fn threads_that_ask_at_once_see_one_value() {
        let (counted, place) = (Arc::new(()), PerProcess::new());
        let seen: Vec<usize> = std::thread::scope(|scope| {
            let ask = || std::ptr::from_ref(place.get(|| counted.clone())).addr();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(seen.iter().all(|one| *one == seen[0]));
        assert_eq!(Arc::strong_count(&counted), 2);
    }
}
