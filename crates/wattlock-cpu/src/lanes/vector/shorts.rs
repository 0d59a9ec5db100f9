//! What ML-KEM may ask of a machine: 64 bytes, which are eight words of 64 bits, sixteen of 32, or 32 signed numbers of 16
//! bits; four *pieces* of 16 bytes each.
//!
//! [`Words`] is the arithmetic of Keccak; [`Shorts`] adds that of polynomials. A kernel is generic over it, as over
//! [`Vector`](super::Vector), and names what is public: bytes come in as [`Shorts::public`] or [`Shorts::secret`], and go out
//! through [`Shorts::reveal`], for what is public, or [`Shorts::publish`], where a secret computation's result is given away.
//! The model panics if a secret is revealed, and keeps a list of what was published.

#[cfg(test)]
pub mod model;
pub mod pair;
#[cfg(test)]
mod tests;

use std::arch::x86_64::*;

use crate::detect::{Avx2, Avx512, Cpu};
use crate::lanes::keccak::{self, State};
use crate::lanes::words::{Words, Zmm};

/// The instructions that a kernel over [`Shorts`] is compiled with.
#[derive(Debug, Clone, Copy)]
pub enum Isa {
    /// Registers of 512 bits.
    Wide512(Avx512),
    /// Pairs of registers of 256 bits.
    Wide256(Avx2),
}

impl Isa {
    /// The widest that this CPU has.
    pub fn best(cpu: &Cpu) -> Option<Isa> {
        cpu.avx512.map(Isa::Wide512).or(cpu.avx2.map(Isa::Wide256))
    }

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Wide512(_) => "AVX-512",
            Isa::Wide256(_) => "AVX2",
        }
    }
}

/// Bytes of a vector.
pub const BYTES: usize = 64;

/// Numbers of 16 bits in a vector.
pub const SHORTS: usize = 32;

/// Constants, one for each number.
pub type Row = [i16; SHORTS];

/// A polynomial's 256 coefficients, in order.
pub type Poly<V> = [V; 8];

/// 64 bytes. `16` works on numbers of 16 bits, which wrap, `32` on words of 32.
pub trait Shorts: Words {
    /// Bytes that anybody may know.
    fn public(bytes: &[u8; BYTES]) -> Self;
    /// Bytes that nobody may learn by the time that anything takes.
    fn secret(bytes: &[u8; BYTES]) -> Self;
    /// The bytes: the way out for what is public.
    fn reveal(self) -> [u8; BYTES];
    /// The same, public from now on.
    fn publish(self) -> Self;

    /// Constants.
    fn row(numbers: &Row) -> Self;
    /// A number everywhere.
    fn splat16(number: i16) -> Self;
    /// Sum.
    fn add16(self, other: Self) -> Self;
    /// Difference.
    fn sub16(self, other: Self) -> Self;
    /// Low half of the product.
    fn mul_lo16(self, other: Self) -> Self;
    /// High half of the product.
    fn mul_hi16(self, other: Self) -> Self;
    /// The product divided by 2^15, rounded to the nearest.
    fn mul_round16(self, other: Self) -> Self;
    /// In each word of 32 bits: the sum of both products.
    fn pair_sums(self, other: Self) -> Self;
    /// Towards lower bits, copies of the sign from above.
    fn sar16<const BITS: u32>(self) -> Self;
    /// Towards lower bits, zeros from above.
    fn shr16<const BITS: u32>(self) -> Self;
    /// Towards higher bits.
    fn shl16<const BITS: u32>(self) -> Self;

    /// Moves the bytes of each piece as `order` says; a place of 0x80 or more gets 0.
    fn shuffle(self, order: u128) -> Self;
    /// In each piece: the first eight bytes of both by turns.
    fn low8(self, other: Self) -> Self;
    /// In each piece: the last eight bytes of both by turns.
    fn high8(self, other: Self) -> Self;
    /// Transposes the four by four pieces of four vectors.
    fn pieces(rows: [Self; 4]) -> [Self; 4];
    /// Exchanges blocks of `LEN` numbers: of each two, `a` gets the first of both, `b` the second. Undoes itself.
    fn exchange<const LEN: usize>(a: Self, b: Self) -> (Self, Self);
    /// Transposes the eight by eight words of 64 bits.
    fn transpose(rows: &[Self; 8]) -> [Self; 8];
    /// In each word of 64 bits, that of which `from` has the number.
    fn arrange(self, from: &[usize; 8]) -> Self;
    /// The lowest bit of each of 256 numbers: the first half's bytes; what is in the second is anything.
    fn lowest_bits(poly: &Poly<Self>) -> Self;
    /// Ones everywhere if all bits are 0, else zeros.
    fn is_zero(self) -> Self;

    /// Keccak-f of eight states, at least of the first `count`.
    fn keccak(state: &mut State<Self>, count: usize);
    /// Numbers below 3329 among the 12-bit ones in all but the last eight of `bytes`, which are public, to `out` behind
    /// `count` others, until `out` holds 256 or the bytes are used up: how many it holds. Up to as many as a vector has may
    /// be written beyond them. The bytes without the eight are a multiple of 24.
    fn accept(bytes: &[u8], out: &mut [i16; 256 + SHORTS], count: usize) -> usize;

    /// Four times 16 bytes of `bytes`, `STEP` apart, public.
    #[inline(always)]
    fn public_pieces<const STEP: usize>(bytes: &[u8]) -> Self {
        Self::public(&gathered::<STEP>(bytes))
    }
    /// Four times 16 bytes of `bytes`, `STEP` apart, secret.
    #[inline(always)]
    fn secret_pieces<const STEP: usize>(bytes: &[u8]) -> Self {
        Self::secret(&gathered::<STEP>(bytes))
    }
    /// Writes the four pieces, which are public, to places `STEP` apart, in order; the next write goes over what is too much.
    /// A piece for which there is no room is left out.
    #[inline(always)]
    fn reveal_pieces<const STEP: usize>(self, out: &mut [u8]) {
        let bytes = self.reveal();
        for (piece, from) in bytes.as_chunks::<16>().0.iter().enumerate() {
            let Some(to) = out[STEP * piece..].first_chunk_mut() else { break };
            *to = *from;
        }
    }
}

#[inline(always)]
fn gathered<const STEP: usize>(bytes: &[u8]) -> [u8; BYTES] {
    let mut out = [0; BYTES];
    for (piece, to) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let Some(from) = bytes[STEP * piece..].first_chunk() else { break };
        *to = *from;
    }
    out
}

macro_rules! op {
    ($intrinsic:ident $(::<$constant:literal>)? ( $($argument:expr),* )) => {
        // SAFETY: this type's operations run only in entries that demand the witness `Avx512`, which proves avx512f and
        // avx512bw, all that these intrinsics ask; loads and stores touch exactly the arrays that are given.
        unsafe { $intrinsic $(::<$constant>)? ($($argument),*) }
    };
}

/// Keccak-f with AVX-512, once for all kernels: inlined it would be the larger part of each.
///
/// # Safety
/// The CPU must have the instructions.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline(never)]
unsafe fn keccak_512(state: &mut State<Zmm>) {
    keccak::permute(state);
}

impl Shorts for Zmm {
    #[inline(always)]
    fn public(bytes: &[u8; BYTES]) -> Zmm {
        Zmm(op!(_mm512_loadu_si512(bytes.as_ptr().cast())))
    }

    #[inline(always)]
    fn secret(bytes: &[u8; BYTES]) -> Zmm {
        Zmm::public(bytes)
    }

    #[inline(always)]
    fn reveal(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        op!(_mm512_storeu_si512(bytes.as_mut_ptr().cast(), self.0));
        bytes
    }

    #[inline(always)]
    fn publish(self) -> Zmm {
        self
    }

    #[inline(always)]
    fn row(numbers: &Row) -> Zmm {
        Zmm(op!(_mm512_loadu_si512(numbers.as_ptr().cast())))
    }

    #[inline(always)]
    fn splat16(number: i16) -> Zmm {
        Zmm(op!(_mm512_set1_epi16(number)))
    }

    #[inline(always)]
    fn add16(self, other: Zmm) -> Zmm {
        Zmm(op!(_mm512_add_epi16(self.0, other.0)))
    }

    #[inline(always)]
    fn sub16(self, other: Zmm) -> Zmm {
        Zmm(op!(_mm512_sub_epi16(self.0, other.0)))
    }

    #[inline(always)]
    fn mul_lo16(self, other: Zmm) -> Zmm {
        Zmm(op!(_mm512_mullo_epi16(self.0, other.0)))
    }

    #[inline(always)]
    fn mul_hi16(self, other: Zmm) -> Zmm {
        Zmm(op!(_mm512_mulhi_epi16(self.0, other.0)))
    }

    #[inline(always)]
    fn mul_round16(self, other: Zmm) -> Zmm {
        Zmm(op!(_mm512_mulhrs_epi16(self.0, other.0)))
    }

    #[inline(always)]
    fn pair_sums(self, other: Zmm) -> Zmm {
        Zmm(op!(_mm512_madd_epi16(self.0, other.0)))
    }

    #[inline(always)]
    fn sar16<const BITS: u32>(self) -> Zmm {
        Zmm(op!(_mm512_sra_epi16(self.0, _mm_cvtsi64_si128(i64::from(BITS)))))
    }

    #[inline(always)]
    fn shr16<const BITS: u32>(self) -> Zmm {
        Zmm(op!(_mm512_srl_epi16(self.0, _mm_cvtsi64_si128(i64::from(BITS)))))
    }

    #[inline(always)]
    fn shl16<const BITS: u32>(self) -> Zmm {
        Zmm(op!(_mm512_sll_epi16(self.0, _mm_cvtsi64_si128(i64::from(BITS)))))
    }

    #[inline(always)]
    fn shuffle(self, order: u128) -> Zmm {
        let order = op!(_mm512_broadcast_i32x4(_mm_set_epi64x((order >> 64) as i64, order as i64)));
        Zmm(op!(_mm512_shuffle_epi8(self.0, order)))
    }

    #[inline(always)]
    fn low8(self, other: Zmm) -> Zmm {
        Zmm(op!(_mm512_unpacklo_epi8(self.0, other.0)))
    }

    #[inline(always)]
    fn high8(self, other: Zmm) -> Zmm {
        Zmm(op!(_mm512_unpackhi_epi8(self.0, other.0)))
    }

    #[inline(always)]
    fn pieces(rows: [Zmm; 4]) -> [Zmm; 4] {
        crate::lanes::words::Register::pieces(rows)
    }

    #[inline(always)]
    fn exchange<const LEN: usize>(a: Zmm, b: Zmm) -> (Zmm, Zmm) {
        let (a, b) = (a.0, b.0);
        let (a, b) = match LEN {
            16 => (op!(_mm512_shuffle_i64x2::<0x44>(a, b)), op!(_mm512_shuffle_i64x2::<0xee>(a, b))),
            8 => {
                let first = op!(_mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13));
                let second = op!(_mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15));
                (op!(_mm512_permutex2var_epi64(a, first, b)), op!(_mm512_permutex2var_epi64(a, second, b)))
            }
            4 => (op!(_mm512_unpacklo_epi64(a, b)), op!(_mm512_unpackhi_epi64(a, b))),
            _ => (
                op!(_mm512_mask_shuffle_epi32::<0xa0>(a, 0xaaaa, b)),
                op!(_mm512_mask_shuffle_epi32::<0xf5>(b, 0x5555, a)),
            ),
        };
        (Zmm(a), Zmm(b))
    }

    #[inline(always)]
    fn transpose(r: &[Zmm; 8]) -> [Zmm; 8] {
        let (ab, ab_odd) = Shorts::exchange::<4>(r[0], r[1]);
        let (cd, cd_odd) = Shorts::exchange::<4>(r[2], r[3]);
        let (ef, ef_odd) = Shorts::exchange::<4>(r[4], r[5]);
        let (gh, gh_odd) = Shorts::exchange::<4>(r[6], r[7]);
        let [a, c, e, g] = Shorts::pieces([ab, cd, ef, gh]);
        let [b, d, f, h] = Shorts::pieces([ab_odd, cd_odd, ef_odd, gh_odd]);
        [a, b, c, d, e, f, g, h]
    }

    #[inline(always)]
    fn arrange(self, from: &[usize; 8]) -> Zmm {
        // Positions are 64 bits wide as the lanes are.
        let from = op!(_mm512_loadu_si512(from.as_ptr().cast()));
        Zmm(op!(_mm512_permutexvar_epi64(from, self.0)))
    }

    #[inline(always)]
    fn lowest_bits(poly: &Poly<Zmm>) -> Zmm {
        let mut bytes = [0; BYTES];
        for (bits, numbers) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(poly) {
            *bits = op!(_mm512_movepi16_mask(numbers.shl16::<15>().0)).to_le_bytes();
        }
        Zmm::secret(&bytes)
    }

    #[inline(always)]
    fn is_zero(self) -> Zmm {
        let words = i64::from(op!(_mm512_test_epi64_mask(self.0, self.0)));
        // Below zero only if no word has a bit.
        Words::splat(((words - 1) >> 63) as u64)
    }

    #[inline(always)]
    fn keccak(state: &mut State<Zmm>, _: usize) {
        // SAFETY: as for all operations of this type.
        unsafe { keccak_512(state) }
    }

    #[inline(always)]
    fn accept(bytes: &[u8], out: &mut [i16; 256 + SHORTS], mut count: usize) -> usize {
        // Twelve bits of three bytes each: piece k gets the bytes 6 * k to 6 * k + 5, at its beginning or after two.
        let spread = op!(_mm512_setr_epi32(0, 1, 1, 1, 1, 2, 2, 2, 3, 4, 4, 4, 4, 5, 5, 5));
        let even = op!(_mm_setr_epi8(0, 1, -1, -1, 1, 2, -1, -1, 3, 4, -1, -1, 4, 5, -1, -1));
        let odd = op!(_mm_setr_epi8(2, 3, -1, -1, 3, 4, -1, -1, 5, 6, -1, -1, 6, 7, -1, -1));
        let both = op!(_mm256_inserti128_si256::<1>(_mm256_castsi128_si256(even), odd));
        let order = op!(_mm512_broadcast_i64x4(both));
        let shift = op!(_mm512_set1_epi64(4 << 32));
        let (mask, modulus) = (op!(_mm512_set1_epi32(0xfff)), op!(_mm512_set1_epi32(3329)));
        for at in (0..bytes.len()).step_by(24) {
            if count >= 256 {
                return 256;
            }
            let from: &[u8; 32] = match bytes[at..].first_chunk() {
                Some(from) => from,
                None => break,
            };
            let loaded = op!(_mm512_castsi256_si512(_mm256_loadu_si256(from.as_ptr().cast())));
            let moved = op!(_mm512_shuffle_epi8(_mm512_permutexvar_epi32(spread, loaded), order));
            let numbers = op!(_mm512_and_si512(_mm512_srlv_epi32(moved, shift), mask));
            let fit = op!(_mm512_cmplt_epu32_mask(numbers, modulus));
            let packed = op!(_mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(fit, numbers)));
            let Some(to) = out[count..].first_chunk_mut::<16>() else { break };
            op!(_mm256_storeu_si256(to.as_mut_ptr().cast(), packed));
            count += fit.count_ones() as usize;
        }
        count.min(256)
    }
}
