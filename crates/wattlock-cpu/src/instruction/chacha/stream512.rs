//! ChaCha20 (RFC 8439 section 2.4) with 512-bit registers.
//!
//! Two shapes. [`sixteen`] keeps one word of sixteen blocks in a register: four quarter rounds run side by side without
//! a shuffle, and the blocks are transposed once at the end. [`rows`] keeps one row of four blocks in a register: it
//! does fewer blocks in less time, for the end of a message, and for short ones.
//!
//! What bounds it: a block takes 960 additions, exclusive ors and rotations, sixteen blocks as many 512-bit ones, and
//! two of those start a cycle: 480 cycles for 1 KiB, and about 50 more to transpose, add and write.
#![allow(
    unsafe_code,
    reason = "loads and stores through raw pointers, of exactly the bytes the callers vouch for"
)]

use std::arch::x86_64::*;

/// Bytes of a block, and of a register.
pub(super) const BLOCK: usize = 64;
/// Bytes that [`sixteen`] makes.
pub(super) const STEP: usize = 16 * BLOCK;

/// RFC 8439 section 2.3: "expand 32-byte k".
const FIXED: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// Words of the block function's input, the counter among them: how far the stream has come. Whoever makes one wipes it.
pub(super) type State = [u32; 16];

/// The word that counts blocks.
const COUNTER: usize = 12;

/// A stream at block 0.
pub(super) fn state(key: &[u32; 8], nonce: &[u8; 12]) -> State {
    let (words, _) = nonce.as_chunks::<4>();
    let mut state = [0; 16];
    state[..4].copy_from_slice(&FIXED);
    state[4..12].copy_from_slice(key);
    for (word, bytes) in state[COUNTER + 1..].iter_mut().zip(words) {
        *word = u32::from_le_bytes(*bytes);
    }
    state
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

/// `sum += other; mixed = (mixed ^ sum) <<< TURN` for several registers, step by step, so that the chains hide each
/// other. A macro, as what is built of it: functions are not always inlined, and would then work on memory.
macro_rules! add_xor_turn {
    ($turn:literal: $([$sum:expr, $other:expr, $mixed:expr])*) => {
        $(
            $sum = _mm512_add_epi32($sum, $other);
            $mixed = _mm512_rol_epi32::<$turn>(_mm512_xor_si512($mixed, $sum));
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

/// Sixteen blocks: their keystream written to `to`, or (with `ADD`) added to the bytes at `from`.
///
/// # Safety
/// [`STEP`] bytes must be writable at `to` and, with `ADD`, readable at `from`; equal or disjoint.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
pub(super) unsafe fn sixteen<const ADD: bool>(state: &mut State, from: *const u8, to: *mut u8) {
    let lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    let mut start = [_mm512_setzero_si512(); 16];
    for (vector, word) in start.iter_mut().zip(&*state) {
        *vector = _mm512_set1_epi32(word.cast_signed());
    }
    start[COUNTER] = _mm512_add_epi32(start[COUNTER], lanes);
    let mut x = start;
    for _ in 0..10 {
        quarter_rounds!(
            [x[0], x[4], x[8], x[12]] [x[1], x[5], x[9], x[13]]
            [x[2], x[6], x[10], x[14]] [x[3], x[7], x[11], x[15]]
        );
        quarter_rounds!(
            [x[0], x[5], x[10], x[15]] [x[1], x[6], x[11], x[12]]
            [x[2], x[7], x[8], x[13]] [x[3], x[4], x[9], x[14]]
        );
    }
    for (vector, start) in x.iter_mut().zip(&start) {
        *vector = _mm512_add_epi32(*vector, *start);
    }
    state[COUNTER] = state[COUNTER].wrapping_add(16);

    // Row i of four becomes, in 128-bit lane k of vector j, words 4i to 4i + 3 of block 4k + j.
    let mut rows = [[_mm512_setzero_si512(); 4]; 4];
    for (i, row) in rows.iter_mut().enumerate() {
        let (a, b, c, d) = (x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
        let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
        let (above_ab, above_cd) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
        *row = [
            _mm512_unpacklo_epi64(ab, cd),
            _mm512_unpackhi_epi64(ab, cd),
            _mm512_unpacklo_epi64(above_ab, above_cd),
            _mm512_unpackhi_epi64(above_ab, above_cd),
        ];
    }
    for j in 0..4 {
        let blocks = lanes_to_blocks([rows[0][j], rows[1][j], rows[2][j], rows[3][j]]);
        for (k, block) in blocks.into_iter().enumerate() {
            let at = BLOCK * (4 * k + j);
            // SAFETY: `at` and the 64 bytes from there lie within STEP.
            unsafe {
                let block = if ADD {
                    _mm512_xor_si512(block, _mm512_loadu_si512(from.add(at).cast()))
                } else {
                    block
                };
                _mm512_storeu_si512(to.add(at).cast(), block);
            }
        }
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
            let to = out.0.as_mut_ptr();
            // SAFETY: the buffer has STEP bytes, and nothing is read.
            unsafe { sixteen::<false>(state, to, to) };
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
    state[COUNTER] = state[COUNTER].wrapping_add(4 * N as u32);
    4 * N * BLOCK
}

/// Four words from `first` on, the same in every block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn splat(state: &State, first: usize) -> __m512i {
    let word = |i: usize| state[first + i].cast_signed();
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
