//! Kernels with 128-bit AES instructions (for GCM no more than single blocks), and the round keys for all kernels.
#![allow(unsafe_code, reason = "intrinsics; every entry demands the witness that its features were detected")]

use std::arch::x86_64::*;

use wattlock_core::Error;

use super::gcm::{self, Message};
use super::generic::{FEW, Vector, WIDTH, held, kernels, load_block_part, mask_of, store_block_part};
use super::ghash::Table;
use crate::detect::AesNi;

kernels!(AesNi, Xmm, "aes,pclmulqdq,ssse3,sse4.1");

/// Encrypts a block, an integer, to an integer.
pub(super) fn encrypted(_: AesNi, keys: &Schedule, block: u128) -> u128 {
    #[target_feature(enable = "aes,pclmulqdq,ssse3,sse4.1")]
    unsafe fn run<const R: usize>(keys: &Schedule, block: u128) -> u128 {
        // SAFETY: this function enables the instructions.
        unsafe { gcm::encrypted::<R>(keys, block) }
    }
    // SAFETY: the witness proves the instructions.
    unsafe {
        match keys.rounds() {
            Rounds::Ten => run::<10>(keys, block),
            Rounds::Twelve => run::<12>(keys, block),
            Rounds::Fourteen => run::<14>(keys, block),
        }
    }
}

/// Fills a block of associated data, or of a nonce, with zeros.
pub(super) fn gcm_pad(_: AesNi, table: &Table, message: &mut Message) {
    #[target_feature(enable = "aes,pclmulqdq,ssse3,sse4.1")]
    unsafe fn run(table: &Table, message: &mut Message) {
        // SAFETY: this function enables the instructions.
        unsafe { gcm::pad(table, message) }
    }
    // SAFETY: the witness proves the instructions.
    unsafe { run(table, message) }
}

/// The hash of a message, whose last block is `last`.
pub(super) fn gcm_ended(_: AesNi, table: &Table, message: &Message, last: u128) -> u128 {
    #[target_feature(enable = "aes,pclmulqdq,ssse3,sse4.1")]
    unsafe fn run(table: &Table, message: &Message, last: u128) -> u128 {
        // SAFETY: this function enables the instructions.
        unsafe { gcm::ended(table, message, last) }
    }
    // SAFETY: the witness proves the instructions.
    unsafe { run(table, message, last) }
}

/// AES-CBC encryption of whole blocks; bytes after the last whole block are left alone. `chain` is the block before the
/// first and becomes the last.
///
/// Every block waits for the one before, so nothing counts but how long that takes. One exclusive or is saved: the last
/// round ends by adding a round key, and adding `last ^ first ^ next plaintext` in its place makes the next block's state
/// at once. The ciphertext itself is made beside it, off the chain.
#[inline(always)]
pub(super) fn cbc_encrypt(_: AesNi, keys: &Schedule, chain: &mut Block, data: Span<'_>) {
    #[target_feature(enable = "aes,pclmulqdq,ssse3,sse4.1")]
    unsafe fn run<const R: usize>(keys: &Schedule, chain: &mut Block, mut at: Cursor) {
        if at.len < 16 {
            return;
        }
        // SAFETY: this function enables the instructions; no block is read or written beyond the span's length. A block
        // is written after the next one was read, and the two sides are equal or disjoint.
        unsafe {
            let k = generic::splat_keys::<Xmm, R>(keys);
            let turn = k[R].xor(k[0]);
            let mut state = Xmm::load(at.from).xor(k[0]).xor(Xmm::load(chain.as_ptr()));
            loop {
                for key in &k[1..R] {
                    state = state.encrypt(*key);
                }
                let block = state.encrypt_last(k[R]);
                if at.len < 32 {
                    block.store(at.to);
                    return block.store(chain.as_mut_ptr());
                }
                state = state.encrypt_last(turn.xor(Xmm::load(at.from.add(16))));
                block.store(at.to);
                at.advance(16);
            }
        }
    }
    let at = Cursor { from: data.from(), to: data.to(), len: data.len() };
    // SAFETY: the witness proves the instructions; `at` comes from a span that lives through this call.
    unsafe {
        match keys.rounds() {
            Rounds::Ten => run::<10>(keys, chain, at),
            Rounds::Twelve => run::<12>(keys, chain, at),
            Rounds::Fourteen => run::<14>(keys, chain, at),
        }
    }
}

/// AES-CTR of at most [`FEW`] bytes; the lower half of the counter must not wrap meanwhile. More is left alone.
#[inline(always)]
pub(super) fn ctr_few(_: AesNi, keys: &Schedule, counter: u128, data: Span<'_>) {
    #[target_feature(enable = "aes,pclmulqdq,ssse3,sse4.1")]
    unsafe fn run<const R: usize>(keys: &Schedule, counter: u128, from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: this function enables the instructions; the span is the caller's.
        unsafe { generic::ctr_few::<R>(keys, counter, Cursor { from, to, len }) }
    }
    let (from, to, len) = (data.from(), data.to(), data.len());
    if len > FEW {
        return;
    }
    // SAFETY: the witness proves the instructions; the pointers come from a span that lives through this call.
    unsafe {
        match keys.rounds() {
            Rounds::Ten => run::<10>(keys, counter, from, to, len),
            Rounds::Twelve => run::<12>(keys, counter, from, to, len),
            Rounds::Fourteen => run::<14>(keys, counter, from, to, len),
        }
    }
}

/// Encrypts a block.
#[inline(always)]
pub(super) fn encrypt_block(_: AesNi, keys: &Schedule, from: &Block, to: &mut Block) {
    #[target_feature(enable = "aes,pclmulqdq,ssse3,sse4.1")]
    unsafe fn run<const R: usize>(keys: &Schedule, from: &Block, to: &mut Block) {
        // SAFETY: this function enables the instructions; a block is 16 bytes.
        unsafe {
            let mut x = [Xmm::load(from.as_ptr())];
            generic::rounds::<Xmm, R, 1, true>(&generic::splat_keys::<Xmm, R>(keys), &mut x);
            x[0].store(to.as_mut_ptr());
        }
    }
    // SAFETY: the witness proves the instructions.
    unsafe {
        match keys.rounds() {
            Rounds::Ten => run::<10>(keys, from, to),
            Rounds::Twelve => run::<12>(keys, from, to),
            Rounds::Fourteen => run::<14>(keys, from, to),
        }
    }
}

/// XTS of one data unit of at most [`FEW`] bytes and at least a block; any other is left alone.
#[inline(always)]
pub(super) fn xts_few(_: AesNi, keys: &Schedule, encrypt: bool, tweak: &Block, data: Span<'_>) {
    #[target_feature(enable = "aes,pclmulqdq,ssse3,sse4.1")]
    unsafe fn run<const R: usize, const ENCRYPT: bool>(
        keys: &Schedule,
        tweak: &Block,
        from: *const u8,
        to: *mut u8,
        len: usize,
    ) {
        // SAFETY: this function enables the instructions; the span is the caller's, and a block is 16 bytes.
        unsafe { generic::xts_few::<R, ENCRYPT>(keys, Xmm::load(tweak.as_ptr()), Cursor { from, to, len }) }
    }
    let (from, to, len) = (data.from(), data.to(), data.len());
    if !(16..=FEW).contains(&len) {
        return;
    }
    // SAFETY: the witness proves the instructions; the pointers come from a span that lives through this call.
    unsafe {
        match (keys.rounds(), encrypt) {
            (Rounds::Ten, true) => run::<10, true>(keys, tweak, from, to, len),
            (Rounds::Ten, false) => run::<10, false>(keys, tweak, from, to, len),
            (Rounds::Twelve, true) => run::<12, true>(keys, tweak, from, to, len),
            (Rounds::Twelve, false) => run::<12, false>(keys, tweak, from, to, len),
            (Rounds::Fourteen, true) => run::<14, true>(keys, tweak, from, to, len),
            (Rounds::Fourteen, false) => run::<14, false>(keys, tweak, from, to, len),
        }
    }
}

/// AES-CBC decryption of at most [`FEW`] bytes, whole blocks; `chain` is as for [`cbc_decrypt`]. More is left alone.
#[inline(always)]
pub(super) fn cbc_decrypt_few(_: AesNi, keys: &Schedule, chain: &mut Block, data: Span<'_>) {
    #[target_feature(enable = "aes,pclmulqdq,ssse3,sse4.1")]
    unsafe fn run<const R: usize>(keys: &Schedule, chain: &mut Block, at: Cursor) {
        // SAFETY: this function enables the instructions; the span is the caller's, and a block is 16 bytes.
        unsafe {
            let before = Xmm::load(chain.as_ptr());
            Xmm(generic::cbc_decrypt_few::<R>(keys, before.0, at)).store(chain.as_mut_ptr());
        }
    }
    let at = Cursor { from: data.from(), to: data.to(), len: data.len() & !15 };
    if at.len > FEW {
        return;
    }
    // SAFETY: the witness proves the instructions; `at` comes from a span that lives through this call, cut to whole
    // blocks.
    unsafe {
        match keys.rounds() {
            Rounds::Ten => run::<10>(keys, chain, at),
            Rounds::Twelve => run::<12>(keys, chain, at),
            Rounds::Fourteen => run::<14>(keys, chain, at),
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Xmm(pub(super) __m128i);

// SAFETY: one block in a 16-byte register; unaligned loads and stores of exactly that.
unsafe impl Vector for Xmm {
    const LANES: usize = 1;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Xmm {
        // SAFETY: pointer and instructions are the caller's.
        Xmm(unsafe { _mm_loadu_si128(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: pointer and instructions are the caller's.
        unsafe { _mm_storeu_si128(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn gather(from: *const *const u8, at: usize) -> Xmm {
        // SAFETY: pointers and instructions are the caller's.
        unsafe { Xmm::load((*from).add(at)) }
    }

    #[inline(always)]
    unsafe fn scatter(self, to: *const *mut u8, at: usize) {
        // SAFETY: pointers and instructions are the caller's.
        unsafe { self.store((*to).add(at)) }
    }

    #[inline(always)]
    unsafe fn splat(block: __m128i) -> Xmm {
        Xmm(block)
    }

    #[inline(always)]
    unsafe fn xor(self, other: Xmm) -> Xmm {
        // SAFETY: instructions are the caller's.
        Xmm(unsafe { _mm_xor_si128(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn encrypt(self, key: Xmm) -> Xmm {
        // SAFETY: instructions are the caller's.
        Xmm(unsafe { _mm_aesenc_si128(self.0, key.0) })
    }

    #[inline(always)]
    unsafe fn encrypt_last(self, key: Xmm) -> Xmm {
        // SAFETY: instructions are the caller's.
        Xmm(unsafe { _mm_aesenclast_si128(self.0, key.0) })
    }

    #[inline(always)]
    unsafe fn decrypt(self, key: Xmm) -> Xmm {
        // SAFETY: instructions are the caller's.
        Xmm(unsafe { _mm_aesdec_si128(self.0, key.0) })
    }

    #[inline(always)]
    unsafe fn decrypt_last(self, key: Xmm) -> Xmm {
        // SAFETY: instructions are the caller's.
        Xmm(unsafe { _mm_aesdeclast_si128(self.0, key.0) })
    }

    #[inline(always)]
    unsafe fn add64(self, other: Xmm) -> Xmm {
        // SAFETY: instructions are the caller's.
        Xmm(unsafe { _mm_add_epi64(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn reversed(self) -> Xmm {
        // SAFETY: instructions are the caller's.
        Xmm(unsafe { _mm_shuffle_epi8(self.0, reverse()) })
    }

    #[inline(always)]
    unsafe fn times_stride(self) -> Xmm {
        // SAFETY: instructions are the caller's. 8 blocks are x^8: one byte moves out and comes back times 0x87.
        unsafe {
            let out = _mm_srli_si128::<15>(self.0);
            let back = _mm_clmulepi64_si128::<0>(out, _mm_set_epi64x(0, 0x87));
            Xmm(_mm_xor_si128(_mm_slli_si128::<1>(self.0), back))
        }
    }

    #[inline(always)]
    unsafe fn times(self, power: usize) -> Xmm {
        // SAFETY: instructions are the caller's. What leaves the lower half comes into the upper one; what leaves that comes
        // back times 0x87.
        unsafe {
            let over = _mm_srl_epi64(self.0, _mm_cvtsi32_si128(64 - power as i32));
            let back = _mm_clmulepi64_si128::<1>(over, _mm_set_epi64x(0, 0x87));
            let shifted = _mm_sll_epi64(self.0, _mm_cvtsi32_si128(power as i32));
            Xmm(_mm_xor_si128(_mm_xor_si128(shifted, _mm_slli_si128::<8>(over)), back))
        }
    }

    #[inline(always)]
    unsafe fn powers(block: __m128i) -> Xmm {
        Xmm(block)
    }

    #[inline(always)]
    unsafe fn lowest(self) -> __m128i {
        self.0
    }

    #[inline(always)]
    unsafe fn preceded_by(self, before: __m128i) -> Xmm {
        Xmm(before)
    }

    #[inline(always)]
    unsafe fn last(self) -> __m128i {
        self.0
    }

    const KARATSUBA: bool = true;

    #[inline(always)]
    unsafe fn zero() -> Xmm {
        // SAFETY: instructions are the caller's.
        Xmm(unsafe { _mm_setzero_si128() })
    }

    #[inline(always)]
    unsafe fn lone(block: __m128i) -> Xmm {
        Xmm(block)
    }

    #[inline(always)]
    unsafe fn load_part(from: *const u8, len: usize) -> Xmm {
        // SAFETY: pointer and instructions are the caller's.
        Xmm(unsafe { from_u128(load_block_part(from, len)) })
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut u8, len: usize) {
        // SAFETY: pointer and instructions are the caller's.
        unsafe { store_block_part(to_u128(self.0), to, len) }
    }

    #[inline(always)]
    unsafe fn cut(self, len: usize) -> Xmm {
        // SAFETY: instructions are the caller's; `len` is less than a block.
        Xmm(unsafe { _mm_and_si128(self.0, _mm_loadu_si128(mask_of(len).cast())) })
    }

    #[inline(always)]
    unsafe fn add32(self, other: Xmm) -> Xmm {
        // SAFETY: instructions are the caller's.
        Xmm(unsafe { _mm_add_epi32(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn multiply<const HALVES: i32>(self, other: Xmm) -> Xmm {
        // SAFETY: instructions are the caller's.
        Xmm(unsafe { _mm_clmulepi64_si128::<HALVES>(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn halves_swapped(self) -> Xmm {
        // SAFETY: instructions are the caller's.
        Xmm(unsafe { _mm_shuffle_epi32::<0x4e>(self.0) })
    }

    #[inline(always)]
    unsafe fn first_column(self, others: Xmm) -> Xmm {
        // SAFETY: instructions are the caller's.
        Xmm(unsafe { _mm_blend_epi16::<0x03>(others.0, self.0) })
    }

    #[inline(always)]
    unsafe fn folded(self) -> __m128i {
        self.0
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    unsafe fn stay(&mut self) {
        // SAFETY: there is no instruction in it.
        unsafe {
            held!(xmm_reg, nomem: self);
        }
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    unsafe fn hold(states: &mut [Xmm; WIDTH]) {
        let [a0, a1, a2, a3, a4, a5, a6, a7] = states;
        // SAFETY: there is no instruction in it.
        unsafe {
            held!(xmm_reg, nomem: a0 a1 a2 a3 a4 a5 a6 a7);
        }
    }
}

/// # Safety
/// None beyond SSE2, which every x86-64 CPU has.
#[inline(always)]
pub(super) unsafe fn from_u128(value: u128) -> __m128i {
    // SAFETY: SSE2.
    unsafe { _mm_set_epi64x(((value >> 64) as u64).cast_signed(), (value as u64).cast_signed()) }
}

/// # Safety
/// None beyond SSE2, which every x86-64 CPU has.
#[inline(always)]
pub(super) unsafe fn to_u128(value: __m128i) -> u128 {
    // SAFETY: SSE2.
    let (low, high) =
        unsafe { (_mm_cvtsi128_si64(value), _mm_cvtsi128_si64(_mm_unpackhi_epi64(value, value))) };
    u128::from(low.cast_unsigned()) | u128::from(high.cast_unsigned()) << 64
}

/// The shuffle that reverses a block's bytes.
///
/// # Safety
/// None beyond SSE2, which every x86-64 CPU has.
#[inline(always)]
pub(super) unsafe fn reverse() -> __m128i {
    // SAFETY: SSE2.
    unsafe { _mm_set_epi64x(0x0001_0203_0405_0607, 0x0809_0a0b_0c0d_0e0f) }
}

/// Round keys for encryption (FIPS 197 section 5.2).
///
/// # Errors
/// [`Error::Invalid`] if the key is not 16, 24 or 32 bytes.
pub(super) fn expand(proof: AesNi, key: &[u8]) -> Result<Schedule, Error> {
    let mut schedule = Schedule::new([0; 15], Rounds::Ten);
    expand_into(proof, key, &mut schedule)?;
    Ok(schedule)
}

/// Round keys for encryption in the place of others.
///
/// # Errors
/// As [`expand`]; nothing has changed.
pub(super) fn expand_into(_: AesNi, key: &[u8], schedule: &mut Schedule) -> Result<(), Error> {
    if !matches!(key.len(), 16 | 24 | 32) {
        return Err(Error::Invalid("key length"));
    }
    let keys = schedule.cleared();
    // SAFETY: the witness proves the instructions, and each key is as long as is read.
    let rounds = unsafe {
        match key.len() {
            16 => {
                expand_four(key.as_ptr(), keys);
                Rounds::Ten
            }
            24 => {
                expand_six(key.as_ptr(), keys);
                Rounds::Twelve
            }
            _ => {
                expand_eight(key.as_ptr(), keys);
                Rounds::Fourteen
            }
        }
    };
    schedule.set_rounds(rounds);
    Ok(())
}

/// RotWord's bytes of the last word, in each word; and the last word itself in each.
const ROTATED: u32 = 0x0c0f_0e0d;
const PLAIN: u32 = 0x0f0e_0d0c;

/// The S-box on the bytes that `from` chooses of the last word, in each word, xor a constant. With the same word in all
/// four columns ShiftRows changes nothing, so the last-round instruction is the S-box, in constant time; and its key is
/// the constant.
#[inline]
#[target_feature(enable = "aes,ssse3")]
fn substituted(words: __m128i, from: u32, constant: u32) -> __m128i {
    let chosen = _mm_shuffle_epi8(words, _mm_set1_epi32(from.cast_signed()));
    _mm_aesenclast_si128(chosen, _mm_set1_epi32(constant.cast_signed()))
}

/// Each word xor all words before it.
#[inline]
#[target_feature(enable = "aes,ssse3")]
fn running(words: __m128i) -> __m128i {
    let words = _mm_xor_si128(words, _mm_slli_si128::<4>(words));
    _mm_xor_si128(words, _mm_slli_si128::<8>(words))
}

/// The round constants: powers of x.
const CONSTANTS: [u32; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 0x1b, 0x36];

/// # Safety
/// 16 bytes must be readable.
#[target_feature(enable = "aes,ssse3")]
unsafe fn expand_four(key: *const u8, keys: &mut [u128; 15]) {
    // SAFETY: the caller's; a u128 is 16 bytes.
    unsafe {
        let mut words = _mm_loadu_si128(key.cast());
        _mm_storeu_si128((&raw mut keys[0]).cast(), words);
        for (key, constant) in keys[1..].iter_mut().zip(CONSTANTS) {
            words = _mm_xor_si128(running(words), substituted(words, ROTATED, constant));
            _mm_storeu_si128((&raw mut *key).cast(), words);
        }
    }
}

/// # Safety
/// 32 bytes must be readable.
#[target_feature(enable = "aes,ssse3")]
unsafe fn expand_eight(key: *const u8, keys: &mut [u128; 15]) {
    // SAFETY: the caller's; a u128 is 16 bytes.
    unsafe {
        let (mut even, mut odd) = (_mm_loadu_si128(key.cast()), _mm_loadu_si128(key.add(16).cast()));
        _mm_storeu_si128((&raw mut keys[0]).cast(), even);
        _mm_storeu_si128((&raw mut keys[1]).cast(), odd);
        for (i, constant) in CONSTANTS[..7].iter().enumerate() {
            even = _mm_xor_si128(running(even), substituted(odd, ROTATED, *constant));
            _mm_storeu_si128((&raw mut keys[2 * i + 2]).cast(), even);
            if i < 6 {
                odd = _mm_xor_si128(running(odd), substituted(even, PLAIN, 0));
                _mm_storeu_si128((&raw mut keys[2 * i + 3]).cast(), odd);
            }
        }
    }
}

/// Six words at a time fit no register: word by word, as the standard has it.
///
/// # Safety
/// 24 bytes must be readable.
#[target_feature(enable = "aes,ssse3")]
unsafe fn expand_six(key: *const u8, keys: &mut [u128; 15]) {
    let mut w = zeroize::Zeroizing::new([0u32; 60]);
    // SAFETY: the caller's.
    unsafe { std::ptr::copy_nonoverlapping(key, w.as_mut_ptr().cast(), 24) };
    for i in 6..52 {
        let mut word = w[i - 1];
        if i.is_multiple_of(6) {
            let words = _mm_set1_epi32(word.cast_signed());
            word = _mm_cvtsi128_si32(substituted(words, ROTATED, CONSTANTS[i / 6 - 1])).cast_unsigned();
        }
        w[i] = w[i - 6] ^ word;
    }
    for (key, words) in keys.iter_mut().zip(w.as_chunks::<4>().0) {
        *key = words.iter().rev().fold(0, |key, word| key << 32 | u128::from(*word));
    }
}

/// Round keys of the equivalent inverse cipher (FIPS 197 section 5.3.5).
pub(super) fn invert(_: AesNi, encrypt: &Schedule) -> Schedule {
    #[target_feature(enable = "aes")]
    unsafe fn mixed(key: u128) -> u128 {
        // SAFETY: a u128 is 16 bytes, read and written whole.
        unsafe {
            let mut out = 0u128;
            let key = _mm_loadu_si128((&raw const key).cast());
            _mm_storeu_si128((&raw mut out).cast(), _mm_aesimc_si128(key));
            out
        }
    }
    let last = encrypt.rounds().count();
    let mut keys = [0u128; 15];
    for (i, key) in keys.iter_mut().enumerate().take(last + 1) {
        *key = encrypt.keys()[last - i];
        if i > 0 && i < last {
            // SAFETY: the witness proves the instructions.
            *key = unsafe { mixed(*key) };
        }
    }
    Schedule::new(keys, encrypt.rounds())
}
