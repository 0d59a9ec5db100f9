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

use zeroize::{Zeroize, ZeroizeOnDrop};

/// Bytes of a block, and of a register.
pub(super) const BLOCK: usize = 64;
/// Bytes that [`sixteen`] makes.
pub(super) const STEP: usize = 16 * BLOCK;

/// RFC 8439 section 2.3: "expand 32-byte k".
const FIXED: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// The word that counts blocks.
const COUNTER: usize = 12;

/// How far a stream has come. Wipes itself.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(super) struct State {
    /// The block function's input, the counter among them.
    words: [u32; 16],
    /// The same as far into the first two rounds as words can be brought that do not depend on the counter: columns 1
    /// to 3 through the first round, and of column 0 and of two diagonals what their quarter rounds begin with. It
    /// saves [`sixteen`] 41 of its 960 steps.
    early: [u32; 16],
}

impl State {
    /// A stream at block 0.
    pub(super) fn new(key: &[u32; 8], nonce: &[u8; 12]) -> State {
        let (nonce, _) = nonce.as_chunks::<4>();
        let mut words = [0; 16];
        words[..4].copy_from_slice(&FIXED);
        words[4..12].copy_from_slice(key);
        for (word, bytes) in words[COUNTER + 1..].iter_mut().zip(nonce) {
            *word = u32::from_le_bytes(*bytes);
        }
        let mut early = words;
        early[0] = early[0].wrapping_add(early[4]);
        for column in 1..4 {
            quarter_round(&mut early, column);
        }
        early[1] = early[1].wrapping_add(early[6]);
        early[2] = early[2].wrapping_add(early[7]);
        early[13] = (early[13] ^ early[2]).rotate_left(16);
        State { words, early }
    }

    fn advance(&mut self, blocks: u32) {
        self.words[COUNTER] = self.words[COUNTER].wrapping_add(blocks);
    }
}

/// RFC 8439 section 2.1, on a column.
fn quarter_round(s: &mut [u32; 16], column: usize) {
    let (a, b, c, d) = (column, 4 + column, 8 + column, 12 + column);
    for (sum, other, mixed, turn) in [(a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)] {
        s[sum] = s[sum].wrapping_add(s[other]);
        s[mixed] = (s[mixed] ^ s[sum]).rotate_left(turn);
    }
}

/// Keystream that waits to be used, aligned for whole registers.
#[repr(C, align(64))]
pub(super) struct Buffer(pub(super) [u8; STEP]);

impl Buffer {
    /// Overwrites all of it.
    #[inline]
    pub(super) fn wipe(&mut self) {
        self.0 = [0; STEP];
        // The compiler must believe that somebody reads the zeros.
        std::hint::black_box(&raw const *self);
    }
}

/// `mixed = (mixed ^ sum) <<< TURN`.
macro_rules! xor_turn {
    ($turn:literal: $mixed:expr, $sum:expr) => {
        $mixed = _mm512_rol_epi32::<$turn>(_mm512_xor_si512($mixed, $sum));
    };
}

/// `sum += other; mixed = (mixed ^ sum) <<< TURN` for several registers, step by step, so that the chains hide each
/// other. A macro, as what is built of it: functions are not always inlined, and would then work on memory.
macro_rules! add_xor_turn {
    ($turn:literal: $([$sum:expr, $other:expr, $mixed:expr])*) => {
        $(
            $sum = _mm512_add_epi32($sum, $other);
            xor_turn!($turn: $mixed, $sum);
        )*
    };
}

/// Quarter rounds (RFC 8439 section 2.1) side by side.
macro_rules! quarter_rounds {
    ($([$a:expr, $b:expr, $c:expr, $d:expr])*) => {
        add_xor_turn!(16: $([$a, $b, $d])*);
        add_xor_turn!(12: $([$c, $d, $b])*);
        add_xor_turn!(8: $([$a, $b, $d])*);
        add_xor_turn!(7: $([$c, $d, $b])*);
    };
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
    // Rounds 1 and 2, from where `early` has brought them.
    xor_turn!(16: x[12], x[0]);
    add_xor_turn!(12: [x[8], x[12], x[4]]);
    add_xor_turn!(8: [x[0], x[4], x[12]]);
    add_xor_turn!(7: [x[8], x[12], x[4]]);
    xor_turn!(16: x[12], x[1]);
    add_xor_turn!(16: [x[0], x[5], x[15]] [x[3], x[4], x[14]]);
    add_xor_turn!(12: [x[10], x[15], x[5]] [x[11], x[12], x[6]] [x[8], x[13], x[7]] [x[9], x[14], x[4]]);
    add_xor_turn!(8: [x[0], x[5], x[15]] [x[1], x[6], x[12]] [x[2], x[7], x[13]] [x[3], x[4], x[14]]);
    add_xor_turn!(7: [x[10], x[15], x[5]] [x[11], x[12], x[6]] [x[8], x[13], x[7]] [x[9], x[14], x[4]]);
    for _ in 1..10 {
        quarter_rounds!(
            [x[0], x[4], x[8], x[12]] [x[1], x[5], x[9], x[13]]
            [x[2], x[6], x[10], x[14]] [x[3], x[7], x[11], x[15]]
        );
        quarter_rounds!(
            [x[0], x[5], x[10], x[15]] [x[1], x[6], x[11], x[12]]
            [x[2], x[7], x[8], x[13]] [x[3], x[4], x[9], x[14]]
        );
    }
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
            quarter_rounds!([*a, *b, *c, *d]);
        }
        for [_, b, c, d] in &mut x {
            *b = _mm512_shuffle_epi32::<0b00_11_10_01>(*b);
            *c = _mm512_shuffle_epi32::<0b01_00_11_10>(*c);
            *d = _mm512_shuffle_epi32::<0b10_01_00_11>(*d);
        }
        for [a, b, c, d] in &mut x {
            quarter_rounds!([*a, *b, *c, *d]);
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
    use super::*;
    use crate::detect::Cpu;

    fn stream_at(counter: u32) -> State {
        let key = std::array::from_fn(|i| 0x9e37_79b9_u32.wrapping_mul(i as u32 + 1));
        let mut state = State::new(&key, b"twelve bytes");
        state.words[COUNTER] = counter;
        state
    }

    /// Two different kernels, of which one starts from precomputed words: they must not differ at any counter.
    #[test]
    fn sixteen_blocks_at_once_are_the_same_as_a_few_at_a_time() {
        if Cpu::detect().ifma512.is_none() {
            println!("not tested: this CPU has no 52-bit multiply-add");
            return;
        }
        for counter in [0, 1, 15, 16, 255, 0xffff, 0x7fff_fffb, u32::MAX - 15, u32::MAX - 7, u32::MAX] {
            let (mut whole, mut part) = (Buffer([0; STEP]), Buffer([0; STEP]));
            let mut state = stream_at(counter);
            // SAFETY: the instructions were found above.
            let made = unsafe { fill(&mut state, &mut whole, STEP) };
            assert_eq!((made, state.words[COUNTER]), (STEP, counter.wrapping_add(16)));
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

    /// RFC 8439 section 2.3.2.
    #[test]
    fn block_function_gives_the_published_block() {
        if Cpu::detect().ifma512.is_none() {
            println!("not tested: this CPU has no 52-bit multiply-add");
            return;
        }
        let key: [u32; 8] = std::array::from_fn(|i| 0x0302_0100 + 0x0404_0404 * i as u32);
        let mut state = State::new(&key, &[0, 0, 0, 9, 0, 0, 0, 0x4a, 0, 0, 0, 0]);
        state.words[COUNTER] = 1;
        let mut out = Buffer([0; STEP]);
        // SAFETY: the instructions were found above.
        unsafe { fill(&mut state, &mut out, STEP) };
        let words: [u32; 4] = [0xe4e7_f110, 0x1559_3bd1, 0x1fdd_0f50, 0xc471_20a3];
        assert_eq!(out.0[..16], *words.map(u32::to_le_bytes).as_flattened());
    }
}
