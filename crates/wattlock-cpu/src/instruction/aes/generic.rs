//! One algorithm per mode, over a [`Vector`] of 1, 2 or 4 AES blocks.
//!
//! Everything is `inline(always)` into a function of a per-ISA file that enables the instructions; [`kernels!`] writes
//! those functions, and their safe entries that demand the witness. AES instructions take 3 to 5 cycles and start once
//! or twice a cycle: [`WIDTH`] vectors in flight hide the one behind the other.
#![allow(unsafe_code, reason = "intrinsics on raw pointers; every entry takes a witness and a Span")]

use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_storeu_si128};

use super::Block;
use super::aes_ni::{Xmm, from_u128, to_u128};
use super::schedule::Schedule;

/// Vectors in flight.
pub(super) const WIDTH: usize = 8;

/// Up to here narrow registers do it: round keys need not be spread over lanes first, and four of these registers are as
/// quick as one wide one.
pub(super) const FEW: usize = 64;

/// What the lanes of the widest vector add to the first one's counter.
pub(super) static NUMBERS: [u128; 4] = [0, 1, 2, 3];

/// Several AES blocks side by side.
///
/// # Safety
/// Implementors promise that a `Self` is exactly [`Vector::LANES`] blocks of 16 bytes, lowest address first, and that
/// `load` and `store` touch exactly those bytes. Every method may be called only where the instruction set of the
/// implementing file was detected and is enabled in the calling function; `load` and `store` need valid pointers, of
/// any alignment.
pub(crate) unsafe trait Vector: Copy {
    /// Blocks in a vector.
    const LANES: usize;
    /// Reads a vector.
    unsafe fn load(from: *const u8) -> Self;
    /// Writes a vector.
    unsafe fn store(self, to: *mut u8);
    /// A block for each lane, read so many bytes behind each of these places.
    unsafe fn gather(from: *const *const u8, at: usize) -> Self;
    /// Writes each lane's block so many bytes behind its place.
    unsafe fn scatter(self, to: *const *mut u8, at: usize);
    /// The same block in every lane.
    unsafe fn splat(block: __m128i) -> Self;
    /// Bitwise exclusive or.
    unsafe fn xor(self, other: Self) -> Self;
    /// One encryption round with a round key.
    unsafe fn encrypt(self, key: Self) -> Self;
    /// The last encryption round.
    unsafe fn encrypt_last(self, key: Self) -> Self;
    /// One round of the equivalent inverse cipher.
    unsafe fn decrypt(self, key: Self) -> Self;
    /// The last round of the equivalent inverse cipher.
    unsafe fn decrypt_last(self, key: Self) -> Self;
    /// Adds 64-bit halves separately.
    unsafe fn add64(self, other: Self) -> Self;
    /// Reverses the bytes of each block.
    unsafe fn reversed(self) -> Self;
    /// Multiplies each block, a little-endian polynomial, by x^([`WIDTH`] * LANES) modulo XTS's polynomial.
    unsafe fn times_stride(self) -> Self;
    /// Multiplies each block by x^`power`, 1 to 56, modulo the same: where `power` is a constant, by shifts that are.
    unsafe fn times(self, power: usize) -> Self;
    /// A block times x to the number of each lane.
    unsafe fn powers(block: __m128i) -> Self;
    /// The block in the lowest lane.
    unsafe fn lowest(self) -> __m128i;
    /// The block before each block, where `before` is the one before the first.
    unsafe fn preceded_by(self, before: __m128i) -> Self;
    /// The block in the highest lane.
    unsafe fn last(self) -> __m128i;
    /// Whether a batch of carry-less products takes three multiplications each (Karatsuba) or four. It depends on what
    /// else competes for the ports: see the implementors.
    const KARATSUBA: bool;
    /// All zeros.
    unsafe fn zero() -> Self;
    /// A block in the lowest lane, zeros in the others.
    unsafe fn lone(block: __m128i) -> Self;
    /// Reads fewer bytes than a vector has; behind them are zeros.
    unsafe fn load_part(from: *const u8, len: usize) -> Self;
    /// Writes fewer bytes than a vector has.
    unsafe fn store_part(self, to: *mut u8, len: usize);
    /// Zeros behind the first `len` bytes, which are fewer than a vector has.
    unsafe fn cut(self, len: usize) -> Self;
    /// Adds 32-bit quarters separately.
    unsafe fn add32(self, other: Self) -> Self;
    /// Multiplies a half of each block with a half of each of the other's, without carries: bits 0 and 4 of HALVES
    /// choose the upper ones.
    unsafe fn multiply<const HALVES: i32>(self, other: Self) -> Self;
    /// Swaps the halves of each block.
    unsafe fn halves_swapped(self) -> Self;
    /// The first column (four bytes) of each block, and the other three of the other's.
    unsafe fn first_column(self, others: Self) -> Self;
    /// The exclusive or of all lanes.
    unsafe fn folded(self) -> __m128i;
    /// Does nothing, and the compiler keeps all these where they are among each other. (For why, see [`Vector::hold`].)
    unsafe fn stay(&mut self) {}
    /// Does nothing; the compiler moves nothing of these values across it. For want of registers it would otherwise send one
    /// vector through all rounds and then the next, and each round waits for the one before. Where there are registers
    /// enough it does not.
    unsafe fn hold(states: &mut [Self; WIDTH]) {
        let _ = states;
    }
    /// Does nothing, and the compiler moves nothing across it: what makes these values stands before, what uses them
    /// behind. Not needed where no batch is hashed.
    unsafe fn fence(states: &mut [Self; WIDTH], sums: &mut [Self; 3]) {
        let _ = (states, sums);
    }
}

/// No instruction, and the compiler moves nothing of the vectors in these registers across it; nor of memory, unless it is
/// told `nomem`.
macro_rules! held {
    ($class:ident $(, $option:ident)?: $($vector:ident)+) => {
        std::arch::asm!(
            concat!("/*", $(" ", stringify!($vector), " {}",)+ " */"),
            $(inout($class) $vector.0,)+
            options(nostack, preserves_flags $(, $option)?)
        )
    };
}
pub(super) use held;

/// Reads fewer than 16 bytes, two loads that may overlap: through memory, what was stored in pieces would be loaded
/// whole, and such a load waits until the stores have left the core.
///
/// # Safety
/// `len` bytes must be readable.
#[inline(always)]
pub(super) unsafe fn load_block_part(from: *const u8, len: usize) -> u128 {
    debug_assert!(len < 16);
    // SAFETY: every access is within the caller's bytes.
    unsafe {
        match len {
            8.. => {
                let (low, high) =
                    (from.cast::<u64>().read_unaligned(), from.add(len - 8).cast::<u64>().read_unaligned());
                u128::from(low) | u128::from(high) << (8 * (len - 8))
            }
            4.. => {
                let (low, high) =
                    (from.cast::<u32>().read_unaligned(), from.add(len - 4).cast::<u32>().read_unaligned());
                u128::from(u64::from(low) | u64::from(high) << (8 * (len - 4)))
            }
            0 => 0,
            _ => {
                let at = |i: usize| u32::from(*from.add(i)) << (8 * i);
                u128::from(at(0) | at(len / 2) | at(len - 1))
            }
        }
    }
}

/// Writes fewer than 16 bytes of a block.
///
/// # Safety
/// `len` bytes must be writable.
#[inline(always)]
pub(super) unsafe fn store_block_part(block: u128, to: *mut u8, len: usize) {
    debug_assert!(len < 16);
    // SAFETY: as above.
    unsafe {
        match len {
            8.. => {
                to.cast::<u64>().write_unaligned(block as u64);
                to.add(len - 8).cast::<u64>().write_unaligned((block >> (8 * (len - 8))) as u64);
            }
            4.. => {
                to.cast::<u32>().write_unaligned(block as u32);
                to.add(len - 4).cast::<u32>().write_unaligned((block as u64 >> (8 * (len - 4))) as u32);
            }
            0 => {}
            _ => {
                *to = block as u8;
                *to.add(len / 2) = (block as u32 >> (8 * (len / 2))) as u8;
                *to.add(len - 1) = (block as u32 >> (8 * (len - 1))) as u8;
            }
        }
    }
}

/// As many ones as the widest vector without masks has bytes, then as many zeros.
static ONES_ZEROS: [u8; 64] = {
    let mut bytes = [0xff; 64];
    let mut i = 32;
    while i < 64 {
        bytes[i] = 0;
        i += 1;
    }
    bytes
};

/// Where a mask of `len` ones and then zeros begins.
///
/// # Safety
/// `len` must be at most 32.
#[inline(always)]
pub(super) unsafe fn mask_of(len: usize) -> *const u8 {
    debug_assert!(len <= 32);
    // SAFETY: 32 bytes from here are within the array.
    unsafe { ONES_ZEROS.as_ptr().add(32 - len) }
}

/// The pointers of a span, which a kernel moves along.
#[derive(Clone, Copy)]
pub(super) struct Cursor {
    pub(super) from: *const u8,
    pub(super) to: *mut u8,
    pub(super) len: usize,
}

impl Cursor {
    /// # Safety
    /// `bytes` must not exceed `len`.
    #[inline(always)]
    pub(super) unsafe fn advance(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.len);
        // SAFETY: the caller keeps within the span.
        unsafe {
            self.from = self.from.add(bytes);
            self.to = self.to.add(bytes);
        }
        self.len -= bytes;
    }
}

/// Round keys in every lane, entries above R unused.
///
/// # Safety
/// As for the methods of `V`.
#[inline(always)]
pub(super) unsafe fn splat_keys<V: Vector, const R: usize>(keys: &Schedule) -> [V; 15] {
    // SAFETY: a u128 is 16 readable bytes; the instructions are the caller's.
    unsafe {
        // Written out: an iterator here becomes a loop through memory, fifty cycles a request.
        [
            splat_key::<V>(keys, R, 0),
            splat_key::<V>(keys, R, 1),
            splat_key::<V>(keys, R, 2),
            splat_key::<V>(keys, R, 3),
            splat_key::<V>(keys, R, 4),
            splat_key::<V>(keys, R, 5),
            splat_key::<V>(keys, R, 6),
            splat_key::<V>(keys, R, 7),
            splat_key::<V>(keys, R, 8),
            splat_key::<V>(keys, R, 9),
            splat_key::<V>(keys, R, 10),
            splat_key::<V>(keys, R, 11),
            splat_key::<V>(keys, R, 12),
            splat_key::<V>(keys, R, 13),
            splat_key::<V>(keys, R, 14),
        ]
    }
}

/// # Safety
/// As for the methods of `V`.
#[inline(always)]
unsafe fn splat_key<V: Vector>(keys: &Schedule, last: usize, i: usize) -> V {
    // SAFETY: a u128 is 16 readable bytes; the instructions are the caller's.
    unsafe { V::splat(_mm_loadu_si128(std::ptr::from_ref(&keys.keys()[i.min(last)]).cast())) }
}

/// Encrypts or decrypts N vectors.
///
/// # Safety
/// As for the methods of `V`.
#[inline(always)]
pub(super) unsafe fn rounds<V: Vector, const R: usize, const N: usize, const ENCRYPT: bool>(
    k: &[V; 15],
    x: &mut [V; N],
) {
    // SAFETY: the instructions are the caller's.
    unsafe {
        for v in x.iter_mut() {
            *v = v.xor(k[0]);
        }
        middle_rounds::<V, R, N, ENCRYPT>(k, x);
        for v in x.iter_mut() {
            *v = if ENCRYPT { v.encrypt_last(k[R]) } else { v.decrypt_last(k[R]) };
        }
    }
}

/// All rounds but the first addition and the last round.
///
/// # Safety
/// As for the methods of `V`.
#[inline(always)]
pub(super) unsafe fn middle_rounds<V: Vector, const R: usize, const N: usize, const ENCRYPT: bool>(
    k: &[V; 15],
    x: &mut [V; N],
) {
    // SAFETY: the instructions are the caller's.
    unsafe { rounds_from::<V, R, N, 1, ENCRYPT>(k, x) }
}

/// The rounds from FIRST to the last but one.
///
/// # Safety
/// As for the methods of `V`.
#[inline(always)]
pub(super) unsafe fn rounds_from<
    V: Vector,
    const R: usize,
    const N: usize,
    const FIRST: usize,
    const ENCRYPT: bool,
>(
    k: &[V; 15],
    x: &mut [V; N],
) {
    // SAFETY: the instructions are the caller's.
    unsafe {
        for key in &k[FIRST..R] {
            for v in x.iter_mut() {
                *v = if ENCRYPT { v.encrypt(*key) } else { v.decrypt(*key) };
            }
            if let Ok(all) = <&mut [V; WIDTH]>::try_from(&mut x[..]) {
                V::hold(all);
            }
        }
    }
}

/// Encrypts or decrypts what is at hand with N finished states except for the last round. The last round key and the
/// data go in together: one exclusive or less behind the AES units.
///
/// # Safety
/// As for the methods of `V`; `at` must have N vectors.
#[inline(always)]
pub(super) unsafe fn last_round<V: Vector, const R: usize, const N: usize>(
    k: &[V; 15],
    x: [V; N],
    at: Cursor,
) {
    // SAFETY: the instructions are the caller's; loads and stores stay within N vectors.
    unsafe {
        for (i, v) in x.into_iter().enumerate() {
            let offset = i * 16 * V::LANES;
            let key = k[R].xor(V::load(at.from.add(offset)));
            v.encrypt_last(key).store(at.to.add(offset));
        }
    }
}

/// [`middle_rounds`] of vectors that stay side by side. Round keys come from memory as they are needed: to have them
/// all at once there are not registers enough, and the compiler would store and load them again.
///
/// # Safety
/// As for the methods of `V`.
#[inline(always)]
unsafe fn few_rounds<V: Vector, const R: usize, const N: usize, const ENCRYPT: bool>(
    keys: &Schedule,
    x: &mut [V; N],
) {
    // SAFETY: the instructions are the caller's.
    unsafe {
        for i in 1..R {
            let key = splat_key::<V>(keys, R, i);
            for v in x.iter_mut() {
                *v = if ENCRYPT { v.encrypt(key) } else { v.decrypt(key) };
                v.stay();
            }
        }
    }
}

/// AES-CTR with a 128-bit counter.
///
/// # Safety
/// As for the methods of `V`; `at` must come from a [`Span`](super::super::span::Span).
#[inline(always)]
pub(super) unsafe fn ctr<V: Vector, const R: usize>(k: &[V; 15], mut counter: u128, mut at: Cursor) {
    // SAFETY: instructions are the caller's; no part exceeds `at.len`.
    unsafe {
        while at.len > 0 {
            // Lanes add in 64 bits. A part ends where the lower half would wrap, so that none ever does.
            let until_wrap = (1 << 64) - u128::from(counter as u64);
            let blocks = until_wrap.min(at.len.div_ceil(16) as u128);
            let bytes = at.len.min(16 * blocks as usize);
            ctr_part::<V, R>(k, counter, Cursor { len: bytes, ..at });
            counter = counter.wrapping_add(blocks);
            at.advance(bytes);
        }
    }
}

/// AES-CTR of at most [`FEW`] bytes in narrow registers.
///
/// # Safety
/// As [`ctr`], for [`Xmm`]; the lower half of the counter must not wrap.
#[inline(always)]
pub(super) unsafe fn ctr_few<const R: usize>(keys: &Schedule, counter: u128, at: Cursor) {
    debug_assert!(at.len <= FEW && counter as u64 <= u64::MAX - 4);
    // SAFETY: as the caller's.
    unsafe {
        match at.len.div_ceil(16) {
            0 => {}
            1 => ctr_blocks::<R, 1>(keys, counter, at),
            2 => ctr_blocks::<R, 2>(keys, counter, at),
            3 => ctr_blocks::<R, 3>(keys, counter, at),
            _ => ctr_blocks::<R, 4>(keys, counter, at),
        }
    }
}

/// AES-CTR of N blocks, the last of which may be a part of one.
///
/// # Safety
/// As [`ctr_few`]; `at` must have more than N - 1 blocks and at most N.
#[inline(always)]
unsafe fn ctr_blocks<const R: usize, const N: usize>(keys: &Schedule, counter: u128, at: Cursor) {
    // SAFETY: as the caller's; every access is within `at.len`.
    unsafe {
        let last = splat_key::<Xmm>(keys, R, R);
        let mut x = [Xmm(from_u128(counter)); N];
        for (v, number) in x.iter_mut().zip(&NUMBERS) {
            *v = v.add64(Xmm(from_u128(*number))).reversed().xor(splat_key(keys, R, 0));
        }
        few_rounds::<Xmm, R, N, true>(keys, &mut x);
        for (i, v) in x.into_iter().enumerate() {
            let (from, to, left) = (at.from.add(16 * i), at.to.add(16 * i), at.len - 16 * i);
            if i + 1 < N || left == 16 {
                v.encrypt_last(last.xor(Xmm::load(from))).store(to);
            } else {
                v.encrypt_last(last.xor(Xmm::load_part(from, left))).store_part(to, left);
            }
        }
    }
}

/// # Safety
/// As [`ctr`]; the lower half of the counter must not wrap within this part.
#[inline(always)]
unsafe fn ctr_part<V: Vector, const R: usize>(k: &[V; 15], counter: u128, mut at: Cursor) {
    // SAFETY: as the caller's; each step is as long as its loop condition allows.
    unsafe {
        // Not gathered in memory: what is stored in pieces and loaded whole waits until the stores have left the core.
        let mut next = V::splat(from_u128(counter)).add64(V::load(NUMBERS.as_ptr().cast()));
        let increment = V::splat(from_u128(V::LANES as u128));
        let vector = 16 * V::LANES;
        while at.len >= WIDTH * vector {
            ctr_step::<V, R, WIDTH>(k, &mut next, increment, at);
            at.advance(WIDTH * vector);
        }
        if at.len >= 4 * vector {
            ctr_step::<V, R, 4>(k, &mut next, increment, at);
            at.advance(4 * vector);
        }
        if at.len >= 2 * vector {
            ctr_step::<V, R, 2>(k, &mut next, increment, at);
            at.advance(2 * vector);
        }
        if at.len >= vector {
            ctr_step::<V, R, 1>(k, &mut next, increment, at);
            at.advance(vector);
        }
        if at.len > 0 {
            let mut x = [next.reversed().xor(k[0])];
            middle_rounds::<V, R, 1, true>(k, &mut x);
            x[0].encrypt_last(k[R].xor(V::load_part(at.from, at.len))).store_part(at.to, at.len);
        }
    }
}

/// # Safety
/// As [`ctr`]; `at` must have N vectors.
#[inline(always)]
unsafe fn ctr_step<V: Vector, const R: usize, const N: usize>(
    k: &[V; 15],
    next: &mut V,
    increment: V,
    at: Cursor,
) {
    // SAFETY: as the caller's; loads and stores stay within N vectors.
    unsafe {
        let mut x = [*next; N];
        for v in &mut x {
            *v = next.reversed().xor(k[0]);
            *next = next.add64(increment);
        }
        middle_rounds::<V, R, N, true>(k, &mut x);
        last_round::<V, R, N>(k, x, at);
    }
}

/// AES-CBC decryption. `keys` are for decryption; `chain` is the block before the first and becomes the last.
///
/// # Safety
/// As [`ctr`]; the length must be a multiple of 16.
#[inline(always)]
pub(super) unsafe fn cbc_decrypt<V: Vector, const R: usize>(
    keys: &Schedule,
    chain: &mut Block,
    mut at: Cursor,
) {
    // SAFETY: as the caller's; each step is as long as its loop condition allows.
    unsafe {
        let mut before = _mm_loadu_si128(chain.as_ptr().cast());
        let vector = 16 * V::LANES;
        if at.len >= vector {
            let k = splat_keys::<V, R>(keys);
            while at.len >= WIDTH * vector {
                before = cbc_step::<V, R, WIDTH>(&k, before, at);
                at.advance(WIDTH * vector);
            }
            if at.len >= 4 * vector {
                before = cbc_step::<V, R, 4>(&k, before, at);
                at.advance(4 * vector);
            }
            if at.len >= 2 * vector {
                before = cbc_step::<V, R, 2>(&k, before, at);
                at.advance(2 * vector);
            }
            if at.len >= vector {
                before = cbc_step::<V, R, 1>(&k, before, at);
                at.advance(vector);
            }
        }
        // Gathered in memory, less than a vector would be stored in pieces and loaded whole, and such a load waits until
        // the stores have left the core: as long as a block takes.
        before = cbc_decrypt_few::<R>(keys, before, at);
        _mm_storeu_si128(chain.as_mut_ptr().cast(), before);
    }
}

/// AES-CBC decryption of at most [`FEW`] bytes in narrow registers. Returns the last block of ciphertext.
///
/// # Safety
/// As [`cbc_decrypt`], for [`Xmm`].
#[inline(always)]
pub(super) unsafe fn cbc_decrypt_few<const R: usize>(
    keys: &Schedule,
    before: __m128i,
    at: Cursor,
) -> __m128i {
    debug_assert!(at.len <= FEW);
    // SAFETY: as the caller's.
    unsafe {
        match at.len / 16 {
            0 => before,
            1 => cbc_step::<Xmm, R, 1>(&splat_keys::<Xmm, R>(keys), before, at),
            2 => cbc_step::<Xmm, R, 2>(&splat_keys::<Xmm, R>(keys), before, at),
            3 => cbc_step::<Xmm, R, 3>(&splat_keys::<Xmm, R>(keys), before, at),
            _ => cbc_step::<Xmm, R, 4>(&splat_keys::<Xmm, R>(keys), before, at),
        }
    }
}

/// # Safety
/// As [`cbc_decrypt`]; `at` must have N vectors.
#[inline(always)]
unsafe fn cbc_step<V: Vector, const R: usize, const N: usize>(
    k: &[V; 15],
    mut before: __m128i,
    at: Cursor,
) -> __m128i {
    // SAFETY: as the caller's; everything is read before anything is written, for `to` may be `from`.
    unsafe {
        let mut x = [k[0]; N];
        let mut mask = x;
        for i in 0..N {
            x[i] = V::load(at.from.add(i * 16 * V::LANES));
            mask[i] = x[i].preceded_by(before).xor(k[R]);
            before = x[i].last();
        }
        for v in &mut x {
            *v = v.xor(k[0]);
        }
        for key in &k[1..R] {
            for v in &mut x {
                *v = v.decrypt(*key);
            }
        }
        // Last round key and block before go in together, as in counter mode.
        for i in 0..N {
            x[i].decrypt_last(mask[i]).store(at.to.add(i * 16 * V::LANES));
        }
        before
    }
}

/// XTS of one data unit under its first tweak, with ciphertext stealing. `keys` are for the direction asked.
///
/// # Safety
/// As [`ctr`]; the length must be at least 16.
#[inline(always)]
pub(super) unsafe fn xts<V: Vector, const R: usize, const ENCRYPT: bool>(
    keys: &Schedule,
    mut tweak: Xmm,
    mut at: Cursor,
) {
    let stolen = at.len % 16;
    let end = if stolen > 0 { 16 + stolen } else { 0 };
    // SAFETY: as the caller's; `end` is at most `at.len`.
    unsafe {
        if at.len - end > FEW {
            tweak = xts_many::<V, R, ENCRYPT>(keys, tweak, &mut at, end);
        }
        if at.len > 0 {
            xts_few::<R, ENCRYPT>(keys, tweak, at);
        }
    }
}

/// Up to four blocks, and what is stolen behind them, in narrow registers.
///
/// # Safety
/// As [`xts`], for [`Xmm`]; at most [`FEW`] bytes before those that steal.
#[inline(always)]
pub(super) unsafe fn xts_few<const R: usize, const ENCRYPT: bool>(
    keys: &Schedule,
    tweak: Xmm,
    mut at: Cursor,
) {
    let stolen = at.len % 16;
    let blocks = at.len / 16 - usize::from(stolen > 0);
    // SAFETY: as the caller's; each step is as long as its condition says.
    unsafe {
        match blocks {
            0 => {}
            1 => xts_blocks::<R, 1, ENCRYPT>(keys, tweak, at),
            2 => xts_blocks::<R, 2, ENCRYPT>(keys, tweak, at),
            3 => xts_blocks::<R, 3, ENCRYPT>(keys, tweak, at),
            _ => xts_blocks::<R, 4, ENCRYPT>(keys, tweak, at),
        }
        if stolen > 0 {
            at.advance(16 * blocks);
            // Not times x^0: that shifts a half by all its 64 bits, which Bochs takes for none.
            let tweak = if blocks > 0 { tweak.times(blocks) } else { tweak };
            xts_steal::<R, ENCRYPT>(keys, tweak, stolen, at);
        }
    }
}

/// # Safety
/// As [`xts`], for [`Xmm`]; `at` must have N blocks.
#[inline(always)]
unsafe fn xts_blocks<const R: usize, const N: usize, const ENCRYPT: bool>(
    keys: &Schedule,
    tweak: Xmm,
    at: Cursor,
) {
    // SAFETY: as the caller's; everything is read before anything is written.
    unsafe {
        let tweaks = xts_tweaks::<Xmm, N>(tweak);
        let mut x = tweaks;
        for (i, v) in x.iter_mut().enumerate() {
            *v = v.xor(splat_key(keys, R, 0)).xor(Xmm::load(at.from.add(16 * i)));
        }
        few_rounds::<Xmm, R, N, ENCRYPT>(keys, &mut x);
        for (i, v) in x.into_iter().enumerate() {
            xts_last::<Xmm, ENCRYPT>(splat_key(keys, R, R), v, tweaks[i]).store(at.to.add(16 * i));
        }
    }
}

/// What is before the last `end` bytes, except for a rest of at most [`FEW`]. Returns the tweak of the block behind it.
///
/// # Safety
/// As [`xts`]; `end` must not exceed `at.len`, and there must be whole blocks before.
#[inline(always)]
unsafe fn xts_many<V: Vector, const R: usize, const ENCRYPT: bool>(
    keys: &Schedule,
    tweak: Xmm,
    at: &mut Cursor,
    end: usize,
) -> Xmm {
    let most = WIDTH * 16 * V::LANES;
    // SAFETY: as the caller's; each step is as long as its condition allows.
    unsafe {
        let mut next = V::powers(tweak.0);
        if at.len - end >= most {
            let mut t = xts_tweaks::<V, WIDTH>(next);
            loop {
                xts_step::<V, R, WIDTH, ENCRYPT>(keys, &t, Cursor { len: most, ..*at });
                at.advance(most);
                if at.len - end < most {
                    break;
                }
                for t in &mut t {
                    *t = t.times_stride();
                }
            }
            next = t[0].times_stride();
        }
        let rest = Cursor { len: at.len - end, ..*at };
        if rest.len <= FEW {
            return Xmm(next.lowest());
        }
        // One step, however many there are: one after the other, each step's vectors wait for nothing but their own rounds.
        match rest.len.div_ceil(16 * V::LANES) {
            2 => xts_step::<V, R, 2, ENCRYPT>(keys, &xts_tweaks(next), rest),
            3 => xts_step::<V, R, 3, ENCRYPT>(keys, &xts_tweaks(next), rest),
            4 => xts_step::<V, R, 4, ENCRYPT>(keys, &xts_tweaks(next), rest),
            5 => xts_step::<V, R, 5, ENCRYPT>(keys, &xts_tweaks(next), rest),
            6 => xts_step::<V, R, 6, ENCRYPT>(keys, &xts_tweaks(next), rest),
            7 => xts_step::<V, R, 7, ENCRYPT>(keys, &xts_tweaks(next), rest),
            _ => xts_step::<V, R, WIDTH, ENCRYPT>(keys, &xts_tweaks(next), rest),
        }
        at.advance(rest.len);
        Xmm(next.lowest()).times(rest.len / 16)
    }
}

/// The tweaks of the next N vectors, each made of the first, so that none waits for another. They stay in vector registers:
/// a detour through integers took a third of the time of 8 KiB on Zen 3.
///
/// # Safety
/// As for the methods of `V`.
#[inline(always)]
unsafe fn xts_tweaks<V: Vector, const N: usize>(first: V) -> [V; N] {
    let mut tweaks = [first; N];
    for (i, tweak) in tweaks.iter_mut().enumerate().skip(1) {
        // SAFETY: the instructions are the caller's.
        *tweak = unsafe { first.times(i * V::LANES) };
    }
    tweaks
}

/// N vectors, the last of which may be a part of one.
///
/// # Safety
/// As [`xts`]; `at` must have more than N - 1 vectors and at most N.
#[inline(always)]
unsafe fn xts_step<V: Vector, const R: usize, const N: usize, const ENCRYPT: bool>(
    keys: &Schedule,
    tweaks: &[V; N],
    at: Cursor,
) {
    let vector = 16 * V::LANES;
    let left = at.len - (N - 1) * vector;
    // SAFETY: as the caller's; everything is read before anything is written.
    unsafe {
        let first = splat_key::<V>(keys, R, 0);
        let mut x = *tweaks;
        for (i, v) in x.iter_mut().enumerate() {
            let from = at.from.add(i * vector);
            let data = if i + 1 < N || left == vector { V::load(from) } else { V::load_part(from, left) };
            *v = v.xor(first).xor(data);
        }
        few_rounds::<V, R, N, ENCRYPT>(keys, &mut x);
        let last = splat_key::<V>(keys, R, R);
        for (i, v) in x.into_iter().enumerate() {
            let to = at.to.add(i * vector);
            let done = xts_last::<V, ENCRYPT>(last, v, tweaks[i]);
            if i + 1 < N || left == vector { done.store(to) } else { done.store_part(to, left) }
        }
    }
}

/// The last round, whose key and tweak go in together, as in counter mode.
///
/// # Safety
/// As for the methods of `V`.
#[inline(always)]
unsafe fn xts_last<V: Vector, const ENCRYPT: bool>(key: V, state: V, tweak: V) -> V {
    // SAFETY: the instructions are the caller's.
    unsafe {
        let key = key.xor(tweak);
        if ENCRYPT { state.encrypt_last(key) } else { state.decrypt_last(key) }
    }
}

/// The last whole block and the `stolen` bytes behind it (IEEE 1619 sections 5.3.2 and 5.4.2): the whole block is
/// done twice, and decryption takes the two tweaks in reverse.
///
/// # Safety
/// As [`xts`]; `at` must have exactly `16 + stolen` bytes.
#[inline(always)]
unsafe fn xts_steal<const R: usize, const ENCRYPT: bool>(
    keys: &Schedule,
    tweak: Xmm,
    stolen: usize,
    at: Cursor,
) {
    // SAFETY: as the caller's; both parts are read before anything is written.
    unsafe {
        let next = tweak.times(1);
        let (first, second) = if ENCRYPT { (tweak, next) } else { (next, tweak) };
        let rest = load_block_part(at.from.add(16), stolen);
        let once = to_u128(xts_block::<R, ENCRYPT>(keys, Xmm::load(at.from), first).0);
        let kept = once >> (8 * stolen) << (8 * stolen);
        xts_block::<R, ENCRYPT>(keys, Xmm(from_u128(rest | kept)), second).store(at.to);
        store_block_part(once, at.to.add(16), stolen);
    }
}

/// # Safety
/// As for the methods of [`Xmm`].
#[inline(always)]
unsafe fn xts_block<const R: usize, const ENCRYPT: bool>(keys: &Schedule, block: Xmm, tweak: Xmm) -> Xmm {
    // SAFETY: the instructions are the caller's.
    unsafe {
        let mut x = [block.xor(splat_key(keys, R, 0)).xor(tweak)];
        few_rounds::<Xmm, R, 1, ENCRYPT>(keys, &mut x);
        xts_last::<Xmm, ENCRYPT>(splat_key(keys, R, R), x[0], tweak)
    }
}

/// Writes a per-ISA file's safe entries: each demands the witness, so that its features are there.
macro_rules! kernels {
    ($witness:ty, $vector:ty, $features:literal) => {
        use super::super::span::Span;
        use super::Block;
        use super::chains;
        use super::generic::{self, Cursor};
        use super::pages;
        use super::schedule::{Rounds, Schedule};

        /// AES-CTR, 128-bit counter.
        #[inline(always)]
        pub(super) fn ctr(_: $witness, keys: &Schedule, counter: u128, data: Span<'_>) {
            #[target_feature(enable = $features)]
            unsafe fn run<const R: usize>(keys: &Schedule, counter: u128, at: Cursor) {
                // SAFETY: this function enables the instructions; the span is the caller's.
                unsafe { pages::ctr::<$vector, R>(keys, counter, at) }
            }
            let at = Cursor { from: data.from(), to: data.to(), len: data.len() };
            // SAFETY: the witness proves the instructions; `at` comes from a span that lives through this call.
            unsafe {
                match keys.rounds() {
                    Rounds::Ten => run::<10>(keys, counter, at),
                    Rounds::Twelve => run::<12>(keys, counter, at),
                    Rounds::Fourteen => run::<14>(keys, counter, at),
                }
            }
        }

        /// AES-CBC decryption of whole blocks; bytes after the last whole block are left alone. `chain` is the block
        /// before the first and becomes the last.
        #[inline(always)]
        pub(super) fn cbc_decrypt(_: $witness, keys: &Schedule, chain: &mut Block, data: Span<'_>) {
            #[target_feature(enable = $features)]
            unsafe fn run<const R: usize>(keys: &Schedule, chain: &mut Block, at: Cursor) {
                // SAFETY: this function enables the instructions; the span is the caller's.
                unsafe { generic::cbc_decrypt::<$vector, R>(keys, chain, at) }
            }
            let at = Cursor { from: data.from(), to: data.to(), len: data.len() & !15 };
            // SAFETY: the witness proves the instructions; `at` comes from a span that lives through this call, cut
            // to whole blocks.
            unsafe {
                match keys.rounds() {
                    Rounds::Ten => run::<10>(keys, chain, at),
                    Rounds::Twelve => run::<12>(keys, chain, at),
                    Rounds::Fourteen => run::<14>(keys, chain, at),
                }
            }
        }

        /// AES-CBC encryption in 4, 8 or 16 lanes; in no more than eight registers.
        ///
        /// # Safety
        /// As [`chains::encrypt_blocks`]; the keys are for so many rounds.
        pub(super) unsafe fn cbc_chains(
            _: $witness,
            of: &mut chains::Chains,
            lanes: usize,
            rounds: Rounds,
            blocks: usize,
        ) {
            const LANES: usize = <$vector as generic::Vector>::LANES;
            const MOST: usize = if LANES == 1 { 8 } else { chains::CHAINS / LANES };
            #[target_feature(enable = $features)]
            unsafe fn run<const R: usize, const M: usize>(of: &mut chains::Chains, blocks: usize) {
                // SAFETY: this function enables the instructions; the rest is the caller's.
                unsafe { chains::encrypt_blocks::<$vector, R, M>(of, blocks) }
            }
            // SAFETY: the witness proves the instructions; the pointers are the caller's.
            unsafe {
                match (rounds, lanes) {
                    (Rounds::Ten, ..=4) => run::<10, { 4 / LANES }>(of, blocks),
                    (Rounds::Ten, ..=8) => run::<10, { 8 / LANES }>(of, blocks),
                    (Rounds::Ten, _) => run::<10, MOST>(of, blocks),
                    (Rounds::Twelve, ..=4) => run::<12, { 4 / LANES }>(of, blocks),
                    (Rounds::Twelve, ..=8) => run::<12, { 8 / LANES }>(of, blocks),
                    (Rounds::Twelve, _) => run::<12, MOST>(of, blocks),
                    (Rounds::Fourteen, ..=4) => run::<14, { 4 / LANES }>(of, blocks),
                    (Rounds::Fourteen, ..=8) => run::<14, { 8 / LANES }>(of, blocks),
                    (Rounds::Fourteen, _) => run::<14, MOST>(of, blocks),
                }
            }
        }

        /// XTS of one data unit of at least a block; anything shorter is left alone.
        #[inline(always)]
        pub(super) fn xts(_: $witness, keys: &Schedule, encrypt: bool, tweak: &Block, data: Span<'_>) {
            #[target_feature(enable = $features)]
            unsafe fn run<const R: usize>(keys: &Schedule, encrypt: bool, tweak: &Block, at: Cursor) {
                // SAFETY: this function enables the instructions; the span is the caller's, and a block is 16 bytes.
                unsafe {
                    let tweak = generic::Vector::load(tweak.as_ptr());
                    if encrypt {
                        generic::xts::<$vector, R, true>(keys, tweak, at);
                    } else {
                        generic::xts::<$vector, R, false>(keys, tweak, at);
                    }
                }
            }
            if data.len() < 16 {
                return;
            }
            let at = Cursor { from: data.from(), to: data.to(), len: data.len() };
            // SAFETY: the witness proves the instructions; `at` comes from a span that lives through this call and
            // has at least a block.
            unsafe {
                match keys.rounds() {
                    Rounds::Ten => run::<10>(keys, encrypt, tweak, at),
                    Rounds::Twelve => run::<12>(keys, encrypt, tweak, at),
                    Rounds::Fourteen => run::<14>(keys, encrypt, tweak, at),
                }
            }
        }
    };
}
pub(super) use kernels;
