//! Counter mode with the first two rounds done once for 256 counters (after Bernstein and Schwabe, "New AES software speed
//! records", section 4: counter-mode caching; theirs saves table lookups, ours whole rounds).
//!
//! Within a page of 256 counters only byte 15 of the block changes. It alone moves the first column of the state after
//! round 1, together with bytes 0, 5 and 10, which are the same for 2^40 counters; the other columns stay the same through
//! the page. MixColumns is linear: the state after round 2 is what the first column adds ([`Cache`], made once a request)
//! xor what the other columns and the round key add ([`rest`], made once a page). Of AES-128's ten rounds eight
//! remain, and the AES units are what a wide kernel waits for.
#![allow(unsafe_code, reason = "intrinsics on raw pointers; every caller has enabled the instructions")]

use std::mem::MaybeUninit;

use super::aes_ni::from_u128;
use super::generic::{self, Cursor, NUMBERS, Vector, WIDTH, last_round, rounds_from, splat_keys};
use super::schedule::Schedule;

/// Counters in one page: those that differ in their lowest byte only.
pub(super) const PAGE: usize = 256;

/// The part of the state after two rounds that depends on the counter's lowest byte, for all of its values, and the
/// first few again: a vector may begin with the last.
#[repr(C, align(64))]
pub(super) struct Cache([MaybeUninit<u128>; PAGE + 4]);

/// Bytes 0, 5 and 10 of the counter block: on these the cache depends, besides the key.
const CACHED_FOR: u128 = 0xff00_0000_00ff_0000_0000_ff00_0000_0000;

/// The byte that the S-box maps to zero: in its place a byte adds nothing to what MixColumns makes of the others.
const NOTHING: u128 = 0x5252_5252_5252_5252_5252_5252_5252_5252;

impl Cache {
    pub(super) const EMPTY: Cache = Cache([const { MaybeUninit::uninit() }; PAGE + 4]);

    /// For the pages of the counter `first`, whose lowest byte is zero, as long as bytes 0, 5 and 10 stay.
    ///
    /// # Safety
    /// As for the methods of `V`.
    #[inline(always)]
    pub(super) unsafe fn fill<V: Vector>(&mut self, k: &[V; 15], first: u128) {
        // SAFETY: the instructions are the caller's; the cache holds PAGE blocks and as many more as the widest vector.
        unsafe {
            // Blocks as they lie in memory: there the counter's lowest byte is the highest of the last four, and adding
            // to it carries into nothing.
            let nothing = V::splat(from_u128(NOTHING));
            let increment = V::splat(from_u128((V::LANES as u128) << 120));
            let lanes = V::load(NUMBERS.as_ptr().cast()).reversed();
            let mut next = V::splat(from_u128(first)).reversed().xor(lanes);
            for i in (0..PAGE + V::LANES).step_by(V::LANES) {
                let column = next.xor(k[0]).encrypt(k[1]).first_column(nothing);
                column.encrypt(V::zero()).store(self.0.as_mut_ptr().add(i).cast());
                next = next.add32(increment);
            }
        }
    }

    /// The entry of counter `i` of a page: from any up to the last a vector may be read.
    ///
    /// # Safety
    /// `i` must be less than [`PAGE`].
    #[inline(always)]
    pub(super) unsafe fn at(&self, i: usize) -> *const u8 {
        debug_assert!(i < PAGE);
        // SAFETY: the entry exists.
        unsafe { self.0.as_ptr().add(i).cast() }
    }

    /// Wipes what depends on the key, by wide stores: `Zeroize` would take narrow ones, a tenth of a long message.
    ///
    /// # Safety
    /// As for the methods of `V`.
    #[inline(always)]
    pub(super) unsafe fn wipe<V: Vector>(&mut self) {
        for i in (0..PAGE + V::LANES).step_by(V::LANES) {
            // SAFETY: the instructions are the caller's; the cache holds PAGE blocks and a vector.
            unsafe { V::zero().store(self.0.as_mut_ptr().add(i).cast()) };
        }
        // The compiler must believe that the zeros are read.
        std::hint::black_box(&raw const *self);
    }
}

/// What a page's counters have in common after two rounds; the lowest byte of `first` must be zero.
///
/// # Safety
/// As for the methods of `V`.
#[inline(always)]
pub(super) unsafe fn rest<V: Vector>(k: &[V; 15], first: u128) -> V {
    // SAFETY: the instructions are the caller's.
    unsafe {
        let x = V::splat(from_u128(first)).reversed().xor(k[0]).encrypt(k[1]);
        V::splat(from_u128(NOTHING)).first_column(x).encrypt(k[2])
    }
}

/// From this many bytes on a [`Cache`] is worth making for AES-CTR.
const LONG: usize = 8 * 1024;

/// AES-CTR with a 128-bit counter, long requests by pages. No step crosses the end of a page: the plain way takes what is
/// before the first step and behind the last.
///
/// # Safety
/// As [`generic::ctr`].
#[inline(always)]
pub(super) unsafe fn ctr<V: Vector, const R: usize>(keys: &Schedule, mut counter: u128, mut at: Cursor) {
    let step = WIDTH * V::LANES;
    // SAFETY: instructions are the caller's; each part is no longer than what is left.
    unsafe {
        let k = splat_keys::<V, R>(keys);
        let mut plain = if at.len < LONG { at.len } else { 16 * ((counter as usize).wrapping_neg() % step) };
        loop {
            generic::ctr::<V, R>(&k, counter, Cursor { len: plain, ..at });
            counter = counter.wrapping_add((plain / 16) as u128);
            at.advance(plain);
            if at.len == 0 {
                return;
            }
            if at.len >= 16 * step {
                by_pages::<V, R>(&k, &mut counter, &mut at);
            }
            plain = at.len;
        }
    }
}

/// As many steps as there are.
///
/// # Safety
/// As [`generic::ctr`]; the counter must be a multiple of a step's.
#[inline(always)]
unsafe fn by_pages<V: Vector, const R: usize>(k: &[V; 15], counter: &mut u128, at: &mut Cursor) {
    let step = WIDTH * V::LANES;
    let mut cache = Cache::EMPTY;
    let mut made_for = !*counter;
    // SAFETY: instructions are the caller's; no step is longer than what is left, and none leaves its page.
    unsafe {
        while at.len >= 16 * step {
            let used = *counter as usize % PAGE;
            let first = *counter - used as u128;
            if (made_for ^ first) & CACHED_FOR != 0 {
                cache.fill(k, first);
                made_for = first;
            }
            let page = rest(k, first);
            let steps = ((PAGE - used) / step).min(at.len / (16 * step));
            for n in 0..steps {
                let cached = cache.at(used + n * step);
                let mut x = [page; WIDTH];
                for (i, v) in x.iter_mut().enumerate() {
                    *v = page.xor(V::load(cached.add(i * 16 * V::LANES)));
                }
                rounds_from::<V, R, WIDTH, 3, true>(k, &mut x);
                last_round::<V, R, WIDTH>(k, x, *at);
                at.advance(16 * step);
            }
            *counter = counter.wrapping_add((steps * step) as u128);
        }
        cache.wipe::<V>();
    }
}
