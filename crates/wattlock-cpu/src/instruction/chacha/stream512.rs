//! ChaCha20 (RFC 8439 section 2.4) with 512-bit registers.
//!
//! Two shapes. [`sixteen`] keeps one word of sixteen blocks in a register: four quarter rounds run side by side without
//! a shuffle, and the blocks are transposed once at the end. [`rows`] keeps one row of four blocks in a register: it
//! does fewer blocks in less time, for the end of a message, and for short ones.
//!
//! What bounds it: a block takes 960 additions, exclusive ors and rotations, sixteen blocks as many 512-bit ones, and
//! two of those start a cycle: 480 cycles for 1 KiB, less what [`State`] knows already, and about 50 more to transpose
//! and to add. Byte shuffles for the rotations by 8 and 16 were tried, to relieve the one port that rotates: no gain.
#![allow(
    unsafe_code,
    reason = "loads and stores through raw pointers, of exactly the bytes the callers vouch for"
)]

use std::arch::x86_64::*;

use super::state::{self, BLOCK, COUNTER, State, add_xor_turn, first_rounds, further_rounds, quarter_rounds};

/// Bytes that [`sixteen`] makes.
pub(super) const STEP: usize = 16 * BLOCK;

/// Room for a step.
pub(super) type Buffer = state::Buffer<STEP>;

/// What a round does to registers.
mod op {
    use std::arch::x86_64::*;

    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn add(a: __m512i, b: __m512i) -> __m512i {
        _mm512_add_epi32(a, b)
    }

    /// `(mixed ^ sum) <<< TURN`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn xor_turn<const TURN: i32>(mixed: __m512i, sum: __m512i) -> __m512i {
        _mm512_rol_epi32::<TURN>(_mm512_xor_si512(mixed, sum))
    }
}

/// Sixteen blocks.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn sixteen(state: &mut State, out: &mut Buffer) {
    let lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    let counter = _mm512_add_epi32(everywhere(state.words[COUNTER]), lanes);
    let mut x = [counter; 16];
    for (vector, word) in x.iter_mut().zip(&state.early) {
        *vector = everywhere(*word);
    }
    x[COUNTER] = counter;
    first_rounds!(op, x);
    further_rounds!(op, x);
    for (i, (vector, word)) in x.iter_mut().zip(&state.words).enumerate() {
        let start = if i == COUNTER { counter } else { everywhere(*word) };
        *vector = _mm512_add_epi32(*vector, start);
    }
    state.advance(16);

    // Row i becomes, in 128-bit lane k of vector j, words 4i to 4i + 3 of block 4k + j.
    let to = out.0.as_mut_ptr();
    for i in 0..4 {
        let (a, b, c, d) = (x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
        let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
        let (above_ab, above_cd) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
        // SAFETY: row i of the first four blocks, and of those 4, 8 and 12 blocks on, end within STEP.
        unsafe {
            let row = to.add(16 * i);
            scatter(row, _mm512_unpacklo_epi64(ab, cd));
            scatter(row.add(BLOCK), _mm512_unpackhi_epi64(ab, cd));
            scatter(row.add(2 * BLOCK), _mm512_unpacklo_epi64(above_ab, above_cd));
            scatter(row.add(3 * BLOCK), _mm512_unpackhi_epi64(above_ab, above_cd));
        }
    }
}

/// Writes the four lanes at distances of four blocks. Stores need neither of the vector ports: to shuffle lanes into
/// whole blocks instead, on the one port that can, took a tenth longer.
///
/// # Safety
/// At `to` and 4, 8 and 12 blocks on 16 bytes must be writable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
unsafe fn scatter(to: *mut u8, lanes: __m512i) {
    // SAFETY: the caller's.
    unsafe {
        _mm_storeu_si128(to.cast(), _mm512_castsi512_si128(lanes));
        _mm_storeu_si128(to.add(4 * BLOCK).cast(), _mm512_extracti32x4_epi32::<1>(lanes));
        _mm_storeu_si128(to.add(8 * BLOCK).cast(), _mm512_extracti32x4_epi32::<2>(lanes));
        _mm_storeu_si128(to.add(12 * BLOCK).cast(), _mm512_extracti32x4_epi32::<3>(lanes));
    }
}

/// Four registers of 128-bit lanes, transposed.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn lanes_to_blocks([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (ab, cd) = (_mm512_shuffle_i32x4::<0x44>(a, b), _mm512_shuffle_i32x4::<0x44>(c, d));
    let (above_ab, above_cd) = (_mm512_shuffle_i32x4::<0xee>(a, b), _mm512_shuffle_i32x4::<0xee>(c, d));
    [
        _mm512_shuffle_i32x4::<0x88>(ab, cd),
        _mm512_shuffle_i32x4::<0xdd>(ab, cd),
        _mm512_shuffle_i32x4::<0x88>(above_ab, above_cd),
        _mm512_shuffle_i32x4::<0xdd>(above_ab, above_cd),
    ]
}

/// At least `bytes` of keystream, of at most [`STEP`], at the beginning of `out`; returns how many were made.
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
pub(super) fn fill(state: &mut State, out: &mut Buffer, bytes: usize) -> usize {
    debug_assert!(bytes <= STEP);
    match bytes.div_ceil(4 * BLOCK) {
        0 | 1 => rows::<1>(state, out),
        2 => rows::<2>(state, out),
        3 => rows::<3>(state, out),
        _ => {
            sixteen(state, out);
            STEP
        }
    }
}

/// `4 * N` blocks. Every step waits for the one before, which more than one row set hides.
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn rows<const N: usize>(state: &mut State, out: &mut Buffer) -> usize {
    let (a, b, c) = (splat(state, 0), splat(state, 4), splat(state, 8));
    let lanes = _mm512_set_epi32(0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0);
    let d = _mm512_add_epi32(splat(state, COUNTER), lanes);
    let four = _mm512_set_epi32(0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 4);
    let mut start = [[a, b, c, d]; N];
    for i in 1..N {
        start[i][3] = _mm512_add_epi32(start[i - 1][3], four);
    }
    let mut x = start;
    for _ in 0..10 {
        for [a, b, c, d] in &mut x {
            quarter_rounds!(op: [*a, *b, *c, *d]);
        }
        for [_, b, c, d] in &mut x {
            *b = _mm512_shuffle_epi32::<0b00_11_10_01>(*b);
            *c = _mm512_shuffle_epi32::<0b01_00_11_10>(*c);
            *d = _mm512_shuffle_epi32::<0b10_01_00_11>(*d);
        }
        for [a, b, c, d] in &mut x {
            quarter_rounds!(op: [*a, *b, *c, *d]);
        }
        for [_, b, c, d] in &mut x {
            *b = _mm512_shuffle_epi32::<0b10_01_00_11>(*b);
            *c = _mm512_shuffle_epi32::<0b01_00_11_10>(*c);
            *d = _mm512_shuffle_epi32::<0b00_11_10_01>(*d);
        }
    }
    for (i, (set, start)) in x.iter().zip(&start).enumerate() {
        let mut rows = *set;
        for (row, start) in rows.iter_mut().zip(start) {
            *row = _mm512_add_epi32(*row, *start);
        }
        for (k, block) in lanes_to_blocks(rows).into_iter().enumerate() {
            let place = &mut out.0[BLOCK * (4 * i + k)..][..BLOCK];
            // SAFETY: `place` is BLOCK bytes.
            unsafe { _mm512_storeu_si512(place.as_mut_ptr().cast(), block) };
        }
    }
    state.advance(4 * N as u32);
    4 * N * BLOCK
}

/// A word in every lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn everywhere(word: u32) -> __m512i {
    _mm512_set1_epi32(word.cast_signed())
}

/// Four words from `first` on, the same in every block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn splat(state: &State, first: usize) -> __m512i {
    let word = |i: usize| state.words[first + i].cast_signed();
    _mm512_set4_epi32(word(3), word(2), word(1), word(0))
}

/// Adds keystream to `len` bytes.
///
/// # Safety
/// `len` bytes must be readable at `from` and writable at `to`, equal or disjoint.
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
pub(super) unsafe fn add(keystream: &[u8], from: *const u8, to: *mut u8, len: usize) {
    assert!(len <= keystream.len());
    let whole = len - len % BLOCK;
    // SAFETY: pointers are the caller's; offsets stay below `len`, which the keystream has; a masked access touches the
    // bytes of its mask only.
    unsafe {
        for at in (0..whole).step_by(BLOCK) {
            let stream = _mm512_loadu_si512(keystream.as_ptr().add(at).cast());
            let sum = _mm512_xor_si512(stream, _mm512_loadu_si512(from.add(at).cast()));
            _mm512_storeu_si512(to.add(at).cast(), sum);
        }
        if whole < len {
            let mask = !0 >> (BLOCK - len % BLOCK);
            let stream = _mm512_maskz_loadu_epi8(mask, keystream.as_ptr().add(whole).cast());
            let sum = _mm512_xor_si512(stream, _mm512_maskz_loadu_epi8(mask, from.add(whole).cast()));
            _mm512_mask_storeu_epi8(to.add(whole).cast(), mask, sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::model::{block, stream_at};
    use super::*;
    use crate::detect::Cpu;

    /// Two different kernels, of which one starts from precomputed words: they must not differ at any counter.
    #[test]
    fn sixteen_blocks_at_once_are_the_same_as_a_few_at_a_time() {
        if Cpu::detect().ifma512.is_none() {
            println!("not tested: this CPU has no 52-bit multiply-add");
            return;
        }
        for counter in [0, 1, 15, 16, 255, 0xffff, 0x7fff_fffb, u32::MAX - 15, u32::MAX - 7, u32::MAX] {
            let (mut whole, mut part) = (Buffer::EMPTY, Buffer::EMPTY);
            let mut state = stream_at(counter);
            // SAFETY: the instructions were found above.
            let made = unsafe { fill(&mut state, &mut whole, STEP) };
            assert_eq!((made, state.words[COUNTER]), (STEP, counter.wrapping_add(16)));
            for (i, made) in (0..).zip(whole.0.chunks(BLOCK)) {
                assert_eq!(made, block(&stream_at(counter.wrapping_add(i))), "block {i} at {counter}");
            }
            for sets in 1..=3 {
                let (mut state, mut at) = (stream_at(counter), 0);
                while at < STEP {
                    // SAFETY: as above.
                    let made = unsafe { fill(&mut state, &mut part, sets * 4 * BLOCK) };
                    assert_eq!(made, sets * 4 * BLOCK);
                    let made = made.min(STEP - at);
                    assert!(part.0[..made] == whole.0[at..at + made], "{sets} at {counter} + {at}");
                    at += made;
                }
            }
        }
    }
}
