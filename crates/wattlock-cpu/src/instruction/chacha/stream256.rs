//! ChaCha20 (RFC 8439 section 2.4) with 256-bit registers, Poly1305 beside it.
//!
//! [`eight`] keeps one word of eight blocks in a register, as [`stream512`](super::stream512) does of sixteen. There are as many
//! registers as words, so some words wait in memory.
//!
//! What bounds it: eight blocks take 960 additions, exclusive ors and rotations, of which those by 12 and 7 are three
//! instructions each, about 1,240 in all. Four a cycle would be 310 cycles for 512 bytes; on Zen 3 rounds alone take 480, since
//! shifts and shuffles have two of the four ports and come in bursts. With the hash ([`beside`](super::beside)) they take 520.
#![allow(
    unsafe_code,
    reason = "loads and stores through raw pointers, of exactly the bytes the callers vouch for"
)]

use std::arch::x86_64::*;

use super::beside;
use super::poly64::Hash;
use super::state::{self, BLOCK, COUNTER, State, add_xor_turn, first_rounds, further_rounds, quarter_rounds};

/// Bytes that [`eight`] makes.
pub(super) const STEP: usize = 8 * BLOCK;

/// Room for a step.
pub(super) type Buffer = state::Buffer<STEP>;

/// What a round does to registers.
pub(super) mod op {
    use std::arch::asm;
    use std::arch::x86_64::*;

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn add(a: __m256i, b: __m256i) -> __m256i {
        _mm256_add_epi32(a, b)
    }

    /// `(mixed ^ sum) <<< TURN`.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn xor_turn<const TURN: i32>(mixed: __m256i, sum: __m256i) -> __m256i {
        let x = _mm256_xor_si256(mixed, sum);
        match TURN {
            16 => bytes(x, &BY_TWO),
            8 => bytes(x, &BY_ONE),
            12 => _mm256_or_si256(_mm256_slli_epi32::<12>(x), _mm256_srli_epi32::<20>(x)),
            _ => _mm256_or_si256(_mm256_slli_epi32::<7>(x), _mm256_srli_epi32::<25>(x)),
        }
    }

    /// Where in each half of a register each byte comes from.
    #[repr(align(32))]
    pub(in super::super) struct Order([u8; 32]);

    pub(in super::super) static BY_TWO: Order = turned([2, 3, 0, 1]);
    pub(in super::super) static BY_ONE: Order = turned([3, 0, 1, 2]);

    const fn turned(word: [u8; 4]) -> Order {
        let mut order = [0; 32];
        let mut i = 0;
        while i < 32 {
            order[i] = word[i % 4] + (i % 16 / 4 * 4) as u8;
            i += 1;
        }
        Order(order)
    }

    /// One shuffle. The intrinsic would become two: LLVM moves a shuffle it knows through an exclusive or, or has two for it
    /// that need no constant.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn bytes(x: __m256i, order: &'static Order) -> __m256i {
        let out;
        // SAFETY: reads the 32 bytes of the order, and changes nothing but its result.
        unsafe {
            asm!(
                "vpshufb {out}, {x}, ymmword ptr [{order}]",
                out = lateout(ymm_reg) out,
                x = in(ymm_reg) x,
                order = in(reg) order.0.as_ptr(),
                options(pure, readonly, nostack, preserves_flags)
            );
        }
        out
    }
}

/// What no keystream has been added to.
pub(in super::super) static NOTHING: [u8; STEP] = [0; STEP];

/// Eight blocks of keystream added to those at `from`, to `to`; and if HASH before that 32 blocks of `hash`, at `text`.
///
/// # Safety
/// A step must be readable at `from` and writable at `to`, equal or disjoint. If HASH, 32 blocks must be readable at `text`.
#[inline(never)]
#[target_feature(enable = "avx2,bmi2")]
pub(super) unsafe fn eight<const HASH: bool>(
    state: &mut State,
    from: *const u8,
    to: *mut u8,
    hash: &mut Hash,
    text: *const u8,
) {
    let counter =
        _mm256_add_epi32(everywhere(state.words[COUNTER]), _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
    let mut x = [counter; 16];
    for (vector, word) in x.iter_mut().zip(&state.early) {
        *vector = everywhere(*word);
    }
    x[COUNTER] = counter;
    first_rounds!(op, x);
    if HASH {
        // SAFETY: the caller's blocks.
        unsafe { beside::rounds(&mut x, hash, text) };
    } else {
        further_rounds!(op, x);
    }
    for (i, (vector, word)) in x.iter_mut().zip(&state.words).enumerate() {
        let start = if i == COUNTER { counter } else { everywhere(*word) };
        *vector = _mm256_add_epi32(*vector, start);
    }
    state.advance(8);

    // Row i becomes, in 128-bit lane k of vector j, words 4i to 4i + 3 of block 4k + j; two rows make half a block.
    for i in [0, 2] {
        let (upper, lower) = (row(&x, i), row(&x, i + 1));
        for (j, (a, b)) in upper.into_iter().zip(lower).enumerate() {
            let place = BLOCK * j + 16 * i;
            // SAFETY: half i / 2 of blocks j and j + 4, of eight.
            unsafe {
                plus(from.add(place), to.add(place), _mm256_permute2x128_si256::<0x20>(a, b));
                let place = place + 4 * BLOCK;
                plus(from.add(place), to.add(place), _mm256_permute2x128_si256::<0x31>(a, b));
            }
        }
    }
}

/// A register's bytes added to those at `from`, to `to`.
///
/// # Safety
/// So many bytes must be readable at `from` and writable at `to`.
#[inline]
#[target_feature(enable = "avx2,bmi2")]
unsafe fn plus(from: *const u8, to: *mut u8, keystream: __m256i) {
    // SAFETY: the caller's.
    unsafe {
        let sum = _mm256_xor_si256(keystream, _mm256_loadu_si256(from.cast()));
        _mm256_storeu_si256(to.cast(), sum);
    }
}

/// Words 4i to 4i + 3 of blocks j and j + 4, for each j.
#[inline]
#[target_feature(enable = "avx2,bmi2")]
fn row(x: &[__m256i; 16], i: usize) -> [__m256i; 4] {
    let (a, b, c, d) = (x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
    let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
    let (above_ab, above_cd) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(ab, cd),
        _mm256_unpackhi_epi64(ab, cd),
        _mm256_unpacklo_epi64(above_ab, above_cd),
        _mm256_unpackhi_epi64(above_ab, above_cd),
    ]
}

/// A word in every lane.
#[inline]
#[target_feature(enable = "avx2,bmi2")]
fn everywhere(word: u32) -> __m256i {
    _mm256_set1_epi32(word.cast_signed())
}

/// Adds keystream to `len` bytes.
///
/// # Safety
/// `len` bytes must be readable at `from` and writable at `to`, equal or disjoint.
#[target_feature(enable = "avx2,bmi2")]
pub(super) unsafe fn add(keystream: &[u8], from: *const u8, to: *mut u8, len: usize) {
    assert!(len <= keystream.len());
    let whole = len - len % 32;
    // SAFETY: pointers are the caller's; offsets stay below `len`, which the keystream has.
    unsafe {
        for at in (0..whole).step_by(32) {
            let stream = _mm256_loadu_si256(keystream.as_ptr().add(at).cast());
            let sum = _mm256_xor_si256(stream, _mm256_loadu_si256(from.add(at).cast()));
            _mm256_storeu_si256(to.add(at).cast(), sum);
        }
        for (at, stream) in keystream.iter().enumerate().take(len).skip(whole) {
            *to.add(at) = *from.add(at) ^ stream;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::poly1305::model::{BLOCKS, MULTIPLIERS, key, model};
    use super::super::state::model::{block, stream_at};
    use super::*;
    use crate::detect::Cpu;

    #[test]
    fn eight_blocks_are_the_blocks_and_the_hash_beside_them_is_the_hash() {
        if Cpu::detect().avx2.is_none() {
            println!("not tested: this CPU has no 256-bit integers");
            return;
        }
        let message: Vec<u8> = (0..512u32).map(|i| (i * 167 + i / 253) as u8).collect();
        for counter in [0, 1, 7, 8, 0xffff, 0x7fff_fffb, u32::MAX - 7, u32::MAX - 3, u32::MAX] {
            for beside in [false, true] {
                let (mut state, mut out) = (stream_at(counter), Buffer::EMPTY);
                let (mut hash, mut alone) =
                    (Hash::new(&[0x6b; 32], b"head"), Hash::new(&[0x6b; 32], b"head"));
                // SAFETY: the instructions were found above; the message has 32 blocks.
                unsafe {
                    if beside {
                        eight::<true>(
                            &mut state,
                            NOTHING.as_ptr(),
                            out.0.as_mut_ptr(),
                            &mut hash,
                            message.as_ptr(),
                        );
                        alone.take(message.as_ptr(), beside::HASHED);
                    } else {
                        eight::<false>(
                            &mut state,
                            NOTHING.as_ptr(),
                            out.0.as_mut_ptr(),
                            &mut hash,
                            message.as_ptr(),
                        );
                    }
                }
                assert_eq!(state.words[COUNTER], counter.wrapping_add(8));
                assert!(hash.sum[2] <= 4);
                assert_eq!(hash.finish(&[], 4, 512), alone.finish(&[], 4, 512), "{beside} at {counter}");
                for (i, made) in (0..).zip(out.0.chunks(BLOCK)) {
                    assert_eq!(made, block(&stream_at(counter.wrapping_add(i))), "block {i} at {counter}");
                }
            }
        }
    }

    /// The hash beside the rounds with the numbers that carry most, step after step.
    #[test]
    fn the_hash_beside_loses_no_carry() {
        if Cpu::detect().avx2.is_none() {
            println!("not tested: this CPU has no 256-bit integers");
            return;
        }
        for (r, mask) in MULTIPLIERS.into_iter().flat_map(|r| [(r, 0), (r, u128::MAX)]) {
            for (even, odd) in BLOCKS.into_iter().flat_map(|even| BLOCKS.map(|odd| (even, odd))) {
                let blocks = [even.to_le_bytes(), odd.to_le_bytes()];
                let message = blocks.as_flattened().repeat(3 * STEP / 32);
                let (mut state, mut out) = (stream_at(0), Buffer::EMPTY);
                let key = key(r, mask);
                let mut hash = Hash::new(&key, &message[..16]);
                for step in message.chunks(STEP) {
                    // SAFETY: the instructions were found above; a step has 32 blocks.
                    unsafe {
                        let to = out.0.as_mut_ptr();
                        eight::<true>(&mut state, NOTHING.as_ptr(), to, &mut hash, step.as_ptr());
                    }
                    assert!(hash.sum[2] <= 4);
                }
                let tag = hash.finish(&[], 16, message.len());
                assert_eq!(tag, model(&key, &message[..16], &message), "{r:#x} {even:#x} {odd:#x}");
            }
        }
    }
}
