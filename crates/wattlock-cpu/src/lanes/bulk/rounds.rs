//! SHA-1 and SHA-256 by the SHA instructions, up to four messages by turns: a round waits for the one before, and while one
//! message waits another computes. Four of them leave the AES instructions idle, so chains of AES-CBC can go on beside them.

use std::arch::x86_64::*;

use super::hash::State;
use crate::detect::ShaNi;
use crate::instruction::aes::chains::{Batch, Beside, Led, Registers, Xmm, Ymm, Zmm};
use crate::software::sha256;

/// The most messages that are interleaved.
pub const MOST: usize = 4;

/// A hash's rounds, compiled with these instructions.
macro_rules! run {
    ($name:ident, $features:literal, $body:ident) => {
        #[target_feature(enable = $features)]
        unsafe fn $name<'c, const N: usize, const STEPS: usize, B: Beside<'c>>(
            state: &mut State<u32, 16>,
            at: &[*const u8; 16],
            lanes: [usize; N],
            blocks: usize,
            of: B::Of,
        ) {
            // SAFETY: this function enables the instructions; the rest is the caller's.
            unsafe { $body::<N, STEPS, B>(state, at, lanes, blocks, of) }
        }
    };
}

/// The entries of a hash: by itself, and beside chains with each kind of registers.
macro_rules! entries {
    ($alone:ident, $beside:ident: $body:ident) => {
        /// Takes blocks of the messages in these lanes, at most [`MOST`], into their states.
        ///
        /// # Safety
        /// So many blocks behind each lane's pointer must be readable; lanes are below 16.
        pub unsafe fn $alone(
            _: ShaNi,
            state: &mut State<u32, 16>,
            at: &[*const u8; 16],
            lanes: &[usize],
            blocks: usize,
        ) {
            run!(run, "sha,ssse3,sse4.1", $body);
            // SAFETY: the witness proves the instructions; the pointers are the caller's.
            unsafe {
                match *lanes {
                    [a] => run::<1, 0, ()>(state, at, [a], blocks, ()),
                    [a, b] => run::<2, 0, ()>(state, at, [a, b], blocks, ()),
                    [a, b, c] => run::<3, 0, ()>(state, at, [a, b, c], blocks, ()),
                    [a, b, c, d] => run::<4, 0, ()>(state, at, [a, b, c, d], blocks, ()),
                    _ => unreachable!("one to four lanes"),
                }
            }
        }

        /// The same of four messages, while [`MOST`] chains take [`STEPS`] for each block.
        ///
        /// # Safety
        /// As alone; and so many steps must be at hand.
        pub unsafe fn $beside(
            _: ShaNi,
            state: &mut State<u32, 16>,
            at: &[*const u8; 16],
            lanes: [usize; MOST],
            blocks: usize,
            chains: &mut Batch<'_, '_>,
        ) {
            run!(
                run512,
                "sha,ssse3,sse4.1,vaes,vpclmulqdq,avx512f,avx512bw,avx512vl,avx2,aes,pclmulqdq",
                $body
            );
            run!(run256, "sha,ssse3,sse4.1,vaes,vpclmulqdq,avx2,aes,pclmulqdq", $body);
            run!(run128, "sha,ssse3,sse4.1,aes,pclmulqdq", $body);
            let (registers, chains, rounds) = chains.lead();
            let begin = (chains, rounds);
            // SAFETY: the witnesses prove the instructions; pointers and steps are the caller's.
            unsafe {
                match registers {
                    Registers::Vaes512(..) => {
                        run512::<MOST, STEPS, Led<'_, Zmm, 1>>(state, at, lanes, blocks, begin);
                    }
                    Registers::Vaes256(..) => {
                        run256::<MOST, STEPS, Led<'_, Ymm, 2>>(state, at, lanes, blocks, begin);
                    }
                    Registers::AesNi(_) => {
                        run128::<MOST, STEPS, Led<'_, Xmm, 4>>(state, at, lanes, blocks, begin);
                    }
                }
            }
        }
    };
}

/// Steps of [`MOST`] chains for each block of as many messages: as many bytes are encrypted as are hashed. (Eight chains
/// and two steps took longer than the same four by four.)
pub const STEPS: usize = 64 / 16;

entries!(sha1, sha1_beside: sha1_of);
entries!(sha256, sha256_beside: sha256_of);

/// Four words of a lane, the first in the highest place.
#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1")]
fn get(state: &State<u32, 16>, lane: usize, [a, b, c, d]: [usize; 4]) -> __m128i {
    let [a, b, c, d] = [state.0[a][lane], state.0[b][lane], state.0[c][lane], state.0[d][lane]];
    _mm_set_epi32(a.cast_signed(), b.cast_signed(), c.cast_signed(), d.cast_signed())
}

#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1")]
fn put(state: &mut State<u32, 16>, lane: usize, [a, b, c, d]: [usize; 4], from: __m128i) {
    state.0[a][lane] = _mm_extract_epi32::<3>(from).cast_unsigned();
    state.0[b][lane] = _mm_extract_epi32::<2>(from).cast_unsigned();
    state.0[c][lane] = _mm_extract_epi32::<1>(from).cast_unsigned();
    state.0[d][lane] = _mm_extract_epi32::<0>(from).cast_unsigned();
}

/// Sixteen bytes of each message, in the order that the instructions want.
///
/// # Safety
/// Sixteen bytes at `at` behind each pointer must be readable.
#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1")]
unsafe fn words<const N: usize>(from: &[*const u8; N], at: usize, order: __m128i) -> [__m128i; N] {
    let mut words = [order; N];
    for lane in 0..N {
        // SAFETY: the caller's bytes.
        words[lane] = _mm_shuffle_epi8(unsafe { _mm_loadu_si128(from[lane].add(at).cast()) }, order);
    }
    words
}

// Loops over the lanes and no closures: what is given to `map` is not compiled with these instructions, and stays a call.

/// # Safety
/// As the entries, and the CPU must have the instructions.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the same lane of several arrays")]
unsafe fn sha1_of<'c, const N: usize, const STEPS: usize, B: Beside<'c>>(
    state: &mut State<u32, 16>,
    at: &[*const u8; 16],
    lanes: [usize; N],
    blocks: usize,
    of: B::Of,
) {
    // SAFETY: the caller's: instructions, blocks, lanes and steps.
    unsafe {
        let mut beside = B::begin(of);
        let order = _mm_set_epi64x(0x0001020304050607, 0x08090a0b0c0d0e0f);
        let (mut from, mut abcd, mut e) = ([at[lanes[0]]; N], [order; N], [order; N]);
        for lane in 0..N {
            from[lane] = at[lanes[lane]];
            abcd[lane] = get(state, lanes[lane], [0, 1, 2, 3]);
            e[lane] = _mm_set_epi32(state.0[4][lanes[lane]].cast_signed(), 0, 0, 0);
        }
        for block in 0..blocks {
            let (abcd_before, e_before) = (abcd, e);
            let [mut m0, mut m1, mut m2, mut m3] = {
                let at = 64 * block;
                [
                    words(&from, at, order),
                    words(&from, at + 16, order),
                    words(&from, at + 32, order),
                    words(&from, at + 48, order),
                ]
            };
            // What the next four rounds begin with, by turns.
            let mut other = abcd;
            macro_rules! four_rounds {
                ($($turn:literal: $m:ident $next:ident $second:ident $third:ident $now:ident $then:ident,)*) => {$(
                    if $turn * STEPS % 20 < STEPS {
                        beside.step();
                    }
                    for lane in 0..N {
                        let sum = match $turn {
                            0 => _mm_add_epi32($now[lane], $m[lane]),
                            _ => _mm_sha1nexte_epu32($now[lane], $m[lane]),
                        };
                        $then[lane] = abcd[lane];
                        if $turn >= 3 && $turn < 19 {
                            $next[lane] = _mm_sha1msg2_epu32($next[lane], $m[lane]);
                        }
                        abcd[lane] = _mm_sha1rnds4_epu32::<{ $turn / 5 }>(abcd[lane], sum);
                        if $turn >= 1 && $turn < 17 {
                            $third[lane] = _mm_sha1msg1_epu32($third[lane], $m[lane]);
                        }
                        if $turn >= 2 && $turn < 18 {
                            $second[lane] = _mm_xor_si128($second[lane], $m[lane]);
                        }
                    }
                )*};
            }
            four_rounds! {
                0: m0 m1 m2 m3 e other, 1: m1 m2 m3 m0 other e, 2: m2 m3 m0 m1 e other, 3: m3 m0 m1 m2 other e,
                4: m0 m1 m2 m3 e other, 5: m1 m2 m3 m0 other e, 6: m2 m3 m0 m1 e other, 7: m3 m0 m1 m2 other e,
                8: m0 m1 m2 m3 e other, 9: m1 m2 m3 m0 other e, 10: m2 m3 m0 m1 e other, 11: m3 m0 m1 m2 other e,
                12: m0 m1 m2 m3 e other, 13: m1 m2 m3 m0 other e, 14: m2 m3 m0 m1 e other, 15: m3 m0 m1 m2 other e,
                16: m0 m1 m2 m3 e other, 17: m1 m2 m3 m0 other e, 18: m2 m3 m0 m1 e other, 19: m3 m0 m1 m2 other e,
            }
            for lane in 0..N {
                e[lane] = _mm_sha1nexte_epu32(e[lane], e_before[lane]);
                abcd[lane] = _mm_add_epi32(abcd[lane], abcd_before[lane]);
            }
        }
        for lane in 0..N {
            put(state, lanes[lane], [0, 1, 2, 3], abcd[lane]);
            state.0[4][lanes[lane]] = _mm_extract_epi32::<3>(e[lane]).cast_unsigned();
        }
        beside.end();
    }
}

/// # Safety
/// As the entries, and the CPU must have the instructions.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the same lane of several arrays")]
unsafe fn sha256_of<'c, const N: usize, const STEPS: usize, B: Beside<'c>>(
    state: &mut State<u32, 16>,
    at: &[*const u8; 16],
    lanes: [usize; N],
    blocks: usize,
    of: B::Of,
) {
    // SAFETY: the caller's: instructions, blocks, lanes and steps.
    unsafe {
        let mut beside = B::begin(of);
        let order = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
        let (mut from, mut abef, mut cdgh) = ([at[lanes[0]]; N], [order; N], [order; N]);
        for lane in 0..N {
            from[lane] = at[lanes[lane]];
            abef[lane] = get(state, lanes[lane], [0, 1, 4, 5]);
            cdgh[lane] = get(state, lanes[lane], [2, 3, 6, 7]);
        }
        for block in 0..blocks {
            let (abef_before, cdgh_before) = (abef, cdgh);
            let [mut m0, mut m1, mut m2, mut m3] = {
                let at = 64 * block;
                [
                    words(&from, at, order),
                    words(&from, at + 16, order),
                    words(&from, at + 32, order),
                    words(&from, at + 48, order),
                ]
            };
            macro_rules! four_rounds {
                ($($turn:literal: $m:ident $next:ident $third:ident,)*) => {$(
                    let k = _mm_loadu_si128(sha256::K.as_ptr().add(4 * $turn).cast());
                    if $turn * STEPS % 16 < STEPS {
                        beside.step();
                    }
                    for lane in 0..N {
                        let sum = _mm_add_epi32($m[lane], k);
                        cdgh[lane] = _mm_sha256rnds2_epu32(cdgh[lane], abef[lane], sum);
                        if $turn >= 3 && $turn < 15 {
                            let near = _mm_add_epi32($next[lane], _mm_alignr_epi8::<4>($m[lane], $third[lane]));
                            $next[lane] = _mm_sha256msg2_epu32(near, $m[lane]);
                        }
                        abef[lane] = _mm_sha256rnds2_epu32(abef[lane], cdgh[lane], _mm_shuffle_epi32::<0x0e>(sum));
                        if $turn >= 1 && $turn < 13 {
                            $third[lane] = _mm_sha256msg1_epu32($third[lane], $m[lane]);
                        }
                    }
                )*};
            }
            four_rounds! {
                0: m0 m1 m3, 1: m1 m2 m0, 2: m2 m3 m1, 3: m3 m0 m2, 4: m0 m1 m3, 5: m1 m2 m0, 6: m2 m3 m1, 7: m3 m0 m2,
                8: m0 m1 m3, 9: m1 m2 m0, 10: m2 m3 m1, 11: m3 m0 m2, 12: m0 m1 m3, 13: m1 m2 m0, 14: m2 m3 m1, 15: m3 m0 m2,
            }
            for lane in 0..N {
                abef[lane] = _mm_add_epi32(abef[lane], abef_before[lane]);
                cdgh[lane] = _mm_add_epi32(cdgh[lane], cdgh_before[lane]);
            }
        }
        for lane in 0..N {
            put(state, lanes[lane], [0, 1, 4, 5], abef[lane]);
            put(state, lanes[lane], [2, 3, 6, 7], cdgh[lane]);
        }
        beside.end();
    }
}
