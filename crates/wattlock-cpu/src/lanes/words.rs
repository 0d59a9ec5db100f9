//! What a hash may ask of a machine: registers of 32-bit or 64-bit words, a message to each.
//!
//! [`Words`] is the arithmetic; every [`Vector`] has it, so that the vector that panics when a secret is revealed hashes,
//! too. A [`Register`] also brings blocks of messages into columns: a row of words from each message becomes a vector of
//! every message's first word, one of every second, and so on.
//!
//! Constant time by construction: no operation here compares, and none reads memory by what a lane holds.

use std::arch::x86_64::*;

use super::vector::Vector;

/// Words that are computed with side by side. A method without a number works on words of 64 bits, `32` on both halves
/// of each. Arithmetic wraps.
pub trait Words: Copy {
    /// The same 64 bits everywhere.
    fn splat(number: u64) -> Self;
    /// Sum.
    fn add(self, other: Self) -> Self;
    /// Sum.
    fn add32(self, other: Self) -> Self;
    /// Bits in both.
    fn and(self, other: Self) -> Self;
    /// Bits in either.
    fn or(self, other: Self) -> Self;
    /// Bits in one only.
    fn xor(self, other: Self) -> Self;
    /// Bits of `other` that are not in `self`.
    fn andnot(self, other: Self) -> Self;
    /// Towards lower bits, zeros from above.
    fn shr<const BITS: u32>(self) -> Self;
    /// Towards lower bits, zeros from above.
    fn shr32<const BITS: u32>(self) -> Self;
    /// Towards lower bits, around.
    fn ror<const BITS: i32>(self) -> Self;
    /// Towards lower bits, around.
    fn ror32<const BITS: i32>(self) -> Self;
}

macro_rules! of_vector {
    ($($binary:ident)*) => {
        impl<V: Vector> Words for V {
            #[inline(always)]
            fn splat(number: u64) -> V {
                <V as Vector>::splat(number)
            }
            $(#[inline(always)]
            fn $binary(self, other: V) -> V {
                Vector::$binary(self, other)
            })*
            #[inline(always)]
            fn shr<const BITS: u32>(self) -> V {
                Vector::shr::<BITS>(self)
            }
            #[inline(always)]
            fn shr32<const BITS: u32>(self) -> V {
                Vector::shr32::<BITS>(self)
            }
            #[inline(always)]
            fn ror<const BITS: i32>(self) -> V {
                Vector::ror::<BITS>(self)
            }
            #[inline(always)]
            fn ror32<const BITS: i32>(self) -> V {
                Vector::ror32::<BITS>(self)
            }
        }
    };
}
of_vector!(add add32 and or xor andnot);

/// Words in one register.
///
/// # Safety
/// `load` and `store` touch exactly [`Register::BYTES`] bytes, of any alignment.
pub unsafe trait Register: Words {
    /// Bytes of the register.
    const BYTES: usize;
    /// # Safety
    /// The bytes must be readable.
    unsafe fn load(from: *const u8) -> Self;
    /// # Safety
    /// The bytes must be writable.
    unsafe fn store(self, to: *mut u8);
    /// Swaps the bytes of each word as `order`, sixteen places in each 128 bits, says.
    fn shuffle(self, order: u128) -> Self;
    /// In each 128 bits: first words of both halves by turns.
    fn low32(self, other: Self) -> Self;
    /// In each 128 bits: last words of both halves by turns.
    fn high32(self, other: Self) -> Self;
    /// In each 128 bits: the first word of each.
    fn low64(self, other: Self) -> Self;
    /// In each 128 bits: the second word of each.
    fn high64(self, other: Self) -> Self;
    /// Transposes a matrix of 128-bit pieces that has a register to each row: one of four by four, or two of two by two.
    fn pieces(rows: [Self; 4]) -> [Self; 4];
}

/// Big-endian words of 32 bits, of 64 bits.
const ORDER32: u128 = 0x0c0d0e0f_08090a0b_04050607_00010203;
const ORDER64: u128 = 0x08090a0b0c0d0e0f_0001020304050607;

/// Sixteen words of 32 bits from each message.
///
/// # Safety
/// 64 bytes behind each of the pointers, as many as the register has words, and `offset` must be readable.
#[inline(always)]
pub unsafe fn block32<V: Register>(at: &[*const u8], offset: usize) -> [V; 16] {
    // SAFETY: the caller's pointers; row i is bytes of the message i % lanes.
    let rows = unsafe { rows::<V>(at, V::BYTES / 4, offset, ORDER32) };
    let mut out = [V::splat(0); 16];
    let mut fours = [[V::splat(0); 4]; 4];
    for (four, of) in fours.iter_mut().zip(rows.as_chunks::<4>().0) {
        let [a, b, c, d] = *of;
        let (ab, cd, above, below) = (a.low32(b), c.low32(d), a.high32(b), c.high32(d));
        *four = [ab.low64(cd), ab.high64(cd), above.low64(below), above.high64(below)];
    }
    for word in 0..4 {
        let moved = V::pieces([fours[0][word], fours[1][word], fours[2][word], fours[3][word]]);
        (0..4).for_each(|piece| out[4 * piece + word] = moved[piece]);
    }
    out
}

/// Sixteen words of 64 bits from each message.
///
/// # Safety
/// 128 bytes behind each of the pointers, as many as the register has words, and `offset` must be readable.
#[inline(always)]
pub unsafe fn block64<V: Register>(at: &[*const u8], offset: usize) -> [V; 16] {
    // SAFETY: as above.
    let rows = unsafe { rows::<V>(at, V::BYTES / 8, offset, ORDER64) };
    let mut out = [V::splat(0); 16];
    for half in 0..2 {
        let pair = |of: usize| (rows[8 * half + 2 * of], rows[8 * half + 2 * of + 1]);
        for word in 0..2 {
            let each = |of: usize| {
                let (a, b) = pair(of);
                if word == 0 { a.low64(b) } else { a.high64(b) }
            };
            let moved = V::pieces([each(0), each(1), each(2), each(3)]);
            (0..4).for_each(|piece| out[2 * (4 * half + piece) + word] = moved[piece]);
        }
    }
    out
}

/// A register's bytes from each message, then the next from each, and so on: sixteen registers.
///
/// # Safety
/// As [`block32`] and [`block64`].
#[inline(always)]
unsafe fn rows<V: Register>(at: &[*const u8], lanes: usize, offset: usize, order: u128) -> [V; 16] {
    let mut rows = [V::splat(0); 16];
    for (row, place) in rows.iter_mut().enumerate() {
        // SAFETY: the caller's pointers; sixteen words of each are 16 / lanes registers.
        *place = unsafe { V::load(at[row % lanes].add(offset + row / lanes * V::BYTES)) }.shuffle(order);
    }
    rows
}

macro_rules! op {
    ($intrinsic:ident $(::<$constant:tt>)? ( $($argument:expr),* )) => {
        // SAFETY: the registers of this file are named by entries in `lanes::bulk` alone, each called with the witness
        // that their instructions were detected (AVX-512 F and BW, or AVX2).
        unsafe { $intrinsic $(::<$constant>)? ($($argument),*) }
    };
}

macro_rules! register {
    ($(#[$doc:meta])* $name:ident($raw:ty) $load:ident $store:ident $splat:ident $order:ident $shuffle:ident;
     $($word:ident $word_op:ident)*; $($move:ident $move_op:ident)*; $shr:ident $shr32:ident;
     { $($own:item)* } { $($pieces:item)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        #[repr(transparent)]
        pub struct $name(pub(in crate::lanes) $raw);

        impl Words for $name {
            #[inline(always)]
            fn splat(number: u64) -> $name {
                $name(op!($splat(number as i64)))
            }
            $(#[inline(always)]
            fn $word(self, other: $name) -> $name {
                $name(op!($word_op(self.0, other.0)))
            })*
            #[inline(always)]
            fn shr<const BITS: u32>(self) -> $name {
                $name(op!($shr(self.0, _mm_cvtsi64_si128(i64::from(BITS)))))
            }
            #[inline(always)]
            fn shr32<const BITS: u32>(self) -> $name {
                $name(op!($shr32(self.0, _mm_cvtsi64_si128(i64::from(BITS)))))
            }
            $($own)*
        }

        // SAFETY: unaligned loads and stores of exactly this register.
        unsafe impl Register for $name {
            const BYTES: usize = size_of::<$raw>();
            #[inline(always)]
            unsafe fn load(from: *const u8) -> $name {
                $name(op!($load(from.cast())))
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut u8) {
                op!($store(to.cast(), self.0))
            }
            #[inline(always)]
            fn shuffle(self, order: u128) -> $name {
                let order = op!($order(_mm_set_epi64x((order >> 64) as i64, order as i64)));
                $name(op!($shuffle(self.0, order)))
            }
            $(#[inline(always)]
            fn $move(self, other: $name) -> $name {
                $name(op!($move_op(self.0, other.0)))
            })*
            $($pieces)*
        }
    };
}

register! {
    /// Sixteen words of 32 bits or eight of 64: AVX-512.
    Zmm(__m512i) _mm512_loadu_si512 _mm512_storeu_si512 _mm512_set1_epi64 _mm512_broadcast_i32x4 _mm512_shuffle_epi8;
    add _mm512_add_epi64 add32 _mm512_add_epi32 and _mm512_and_si512 or _mm512_or_si512 xor _mm512_xor_si512
    andnot _mm512_andnot_si512;
    low32 _mm512_unpacklo_epi32 high32 _mm512_unpackhi_epi32 low64 _mm512_unpacklo_epi64 high64 _mm512_unpackhi_epi64;
    _mm512_srl_epi64 _mm512_srl_epi32;
    { #[inline(always)]
    fn ror<const BITS: i32>(self) -> Zmm {
        Zmm(op!(_mm512_ror_epi64::<BITS>(self.0)))
    }
    #[inline(always)]
    fn ror32<const BITS: i32>(self) -> Zmm {
        Zmm(op!(_mm512_ror_epi32::<BITS>(self.0)))
    } } { #[inline(always)]
    fn pieces([a, b, c, d]: [Zmm; 4]) -> [Zmm; 4] {
        let even = |a: Zmm, b: Zmm| Zmm(op!(_mm512_shuffle_i32x4::<0x88>(a.0, b.0)));
        let odd = |a: Zmm, b: Zmm| Zmm(op!(_mm512_shuffle_i32x4::<0xdd>(a.0, b.0)));
        let (ab, cd, above, below) = (even(a, b), even(c, d), odd(a, b), odd(c, d));
        [even(ab, cd), even(above, below), odd(ab, cd), odd(above, below)]
    } }
}

register! {
    /// Eight words of 32 bits or four of 64: AVX2.
    Ymm(__m256i) _mm256_loadu_si256 _mm256_storeu_si256 _mm256_set1_epi64x _mm256_broadcastsi128_si256 _mm256_shuffle_epi8;
    add _mm256_add_epi64 add32 _mm256_add_epi32 and _mm256_and_si256 or _mm256_or_si256 xor _mm256_xor_si256
    andnot _mm256_andnot_si256;
    low32 _mm256_unpacklo_epi32 high32 _mm256_unpackhi_epi32 low64 _mm256_unpacklo_epi64 high64 _mm256_unpackhi_epi64;
    _mm256_srl_epi64 _mm256_srl_epi32;
    { #[inline(always)]
    fn ror<const BITS: i32>(self) -> Ymm {
        let left = Ymm(op!(_mm256_sll_epi64(self.0, _mm_cvtsi64_si128(i64::from(64 - BITS)))));
        Ymm(op!(_mm256_srl_epi64(self.0, _mm_cvtsi64_si128(i64::from(BITS))))).xor(left)
    }
    #[inline(always)]
    fn ror32<const BITS: i32>(self) -> Ymm {
        let left = Ymm(op!(_mm256_sll_epi32(self.0, _mm_cvtsi64_si128(i64::from(32 - BITS)))));
        Ymm(op!(_mm256_srl_epi32(self.0, _mm_cvtsi64_si128(i64::from(BITS))))).xor(left)
    } } { #[inline(always)]
    fn pieces([a, b, c, d]: [Ymm; 4]) -> [Ymm; 4] {
        let low = |a: Ymm, b: Ymm| Ymm(op!(_mm256_permute2x128_si256::<0x20>(a.0, b.0)));
        let high = |a: Ymm, b: Ymm| Ymm(op!(_mm256_permute2x128_si256::<0x31>(a.0, b.0)));
        [low(a, b), high(a, b), low(c, d), high(c, d)]
    } }
}
