//! 64 bytes in two AVX2 registers: pieces 0 and 1, then 2 and 3.

use std::arch::x86_64::*;

use super::{BYTES, Poly, Row, SHORTS, Shorts};
use crate::lanes::keccak::{self, State};
use crate::lanes::words::{Words, Ymm};

/// Two registers.
#[derive(Clone, Copy)]
pub struct Pair([Ymm; 2]);

macro_rules! op {
    ($intrinsic:ident $(::<$constant:literal>)? ( $($argument:expr),* )) => {
        // SAFETY: this type's operations run only in entries that demand the witness `Avx2`, which proves avx2, all that these
        // intrinsics ask; loads and stores touch exactly the arrays that are given.
        unsafe { $intrinsic $(::<$constant>)? ($($argument),*) }
    };
}

macro_rules! halves {
    ($($binary:ident)*; $($shift:ident $number:ty),*) => {
        impl Words for Pair {
            #[inline(always)]
            fn splat(number: u64) -> Pair {
                Pair([Ymm::splat(number); 2])
            }
            $(#[inline(always)]
            fn $binary(self, other: Pair) -> Pair {
                Pair([self.0[0].$binary(other.0[0]), self.0[1].$binary(other.0[1])])
            })*
            $(#[inline(always)]
            fn $shift<const BITS: $number>(self) -> Pair {
                Pair([self.0[0].$shift::<BITS>(), self.0[1].$shift::<BITS>()])
            })*
        }
    };
}
halves!(add add32 and or xor andnot; shr u32, shr32 u32, ror i32, ror32 i32);

/// Operations of both halves, by one intrinsic.
macro_rules! each {
    ($($name:ident $intrinsic:ident)*) => {$(
        #[inline(always)]
        fn $name(self, other: Pair) -> Pair {
            Pair([
                Ymm(op!($intrinsic(self.0[0].0, other.0[0].0))),
                Ymm(op!($intrinsic(self.0[1].0, other.0[1].0))),
            ])
        }
    )*};
}

macro_rules! shifts {
    ($($name:ident $intrinsic:ident)*) => {$(
        #[inline(always)]
        fn $name<const BITS: u32>(self) -> Pair {
            let bits = op!(_mm_cvtsi64_si128(i64::from(BITS)));
            Pair([
                Ymm(op!($intrinsic(self.0[0].0, bits))),
                Ymm(op!($intrinsic(self.0[1].0, bits))),
            ])
        }
    )*};
}

/// Keccak-f of four states with AVX2, once for all kernels.
///
/// # Safety
/// The CPU must have the instructions.
#[target_feature(enable = "avx2")]
#[inline(never)]
unsafe fn keccak_256(state: &mut State<Pair>, half: usize) {
    let mut four = [state[0].0[half]; 25];
    for (to, from) in four.iter_mut().zip(&*state) {
        *to = from.0[half];
    }
    keccak::permute(&mut four);
    for (from, to) in four.iter().zip(state) {
        to.0[half] = *from;
    }
}

/// Of each byte of bits, which of eight numbers of 16 bits are to move to the front: an order of bytes for each.
static FRONT: [[u8; 16]; 256] = {
    let (mut table, mut bits) = ([[0x80; 16]; 256], 0);
    while bits < 256 {
        let (mut number, mut to) = (0, 0);
        while number < 8 {
            if bits >> number & 1 == 1 {
                table[bits][2 * to] = 2 * number as u8;
                table[bits][2 * to + 1] = 2 * number as u8 + 1;
                to += 1;
            }
            number += 1;
        }
        bits += 1;
    }
    table
};

impl Shorts for Pair {
    each! {
        add16 _mm256_add_epi16 sub16 _mm256_sub_epi16 mul_lo16 _mm256_mullo_epi16 mul_hi16 _mm256_mulhi_epi16
        mul_round16 _mm256_mulhrs_epi16 pair_sums _mm256_madd_epi16 low8 _mm256_unpacklo_epi8
        high8 _mm256_unpackhi_epi8
    }
    shifts!(sar16 _mm256_sra_epi16 shr16 _mm256_srl_epi16 shl16 _mm256_sll_epi16);

    #[inline(always)]
    fn public(bytes: &[u8; BYTES]) -> Pair {
        let [a, b] = bytes.as_chunks::<32>().0 else { return Pair::splat(0) };
        Pair([
            Ymm(op!(_mm256_loadu_si256(a.as_ptr().cast()))),
            Ymm(op!(_mm256_loadu_si256(b.as_ptr().cast()))),
        ])
    }

    #[inline(always)]
    fn secret(bytes: &[u8; BYTES]) -> Pair {
        Pair::public(bytes)
    }

    #[inline(always)]
    fn reveal(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        for (to, from) in bytes.as_chunks_mut::<32>().0.iter_mut().zip(self.0) {
            op!(_mm256_storeu_si256(to.as_mut_ptr().cast(), from.0));
        }
        bytes
    }

    #[inline(always)]
    fn publish(self) -> Pair {
        self
    }

    #[inline(always)]
    fn row(numbers: &Row) -> Pair {
        let [a, b] = numbers.as_chunks::<16>().0 else { return Pair::splat(0) };
        Pair([
            Ymm(op!(_mm256_loadu_si256(a.as_ptr().cast()))),
            Ymm(op!(_mm256_loadu_si256(b.as_ptr().cast()))),
        ])
    }

    #[inline(always)]
    fn splat16(number: i16) -> Pair {
        Pair([Ymm(op!(_mm256_set1_epi16(number))); 2])
    }

    #[inline(always)]
    fn shuffle(self, order: u128) -> Pair {
        let order = op!(_mm256_broadcastsi128_si256(_mm_set_epi64x((order >> 64) as i64, order as i64)));
        Pair([
            Ymm(op!(_mm256_shuffle_epi8(self.0[0].0, order))),
            Ymm(op!(_mm256_shuffle_epi8(self.0[1].0, order))),
        ])
    }

    #[inline(always)]
    fn pieces(rows: [Pair; 4]) -> [Pair; 4] {
        let [Pair(a), Pair(b), Pair(c), Pair(d)] = rows;
        let ((ab, ab_odd), (cd, cd_odd)) = (exchange::<8>(a[0], b[0]), exchange::<8>(c[0], d[0]));
        let ((ab2, ab3), (cd2, cd3)) = (exchange::<8>(a[1], b[1]), exchange::<8>(c[1], d[1]));
        [Pair([ab, cd]), Pair([ab_odd, cd_odd]), Pair([ab2, cd2]), Pair([ab3, cd3])]
    }

    #[inline(always)]
    fn exchange<const LEN: usize>(a: Pair, b: Pair) -> (Pair, Pair) {
        let ([a0, a1], [b0, b1]) = (a.0, b.0);
        if LEN == 16 {
            return (Pair([a0, b0]), Pair([a1, b1]));
        }
        let ((a0, b0), (a1, b1)) = (exchange::<LEN>(a0, b0), exchange::<LEN>(a1, b1));
        (Pair([a0, a1]), Pair([b0, b1]))
    }

    /// Four blocks of four by four words.
    #[inline(always)]
    fn transpose(rows: &[Pair; 8]) -> [Pair; 8] {
        let [Pair(r), Pair(s), Pair(t), Pair(u), Pair(v), Pair(w), Pair(x), Pair(y)] = *rows;
        let a = four_by_four(r[0], s[0], t[0], u[0]);
        let b = four_by_four(v[0], w[0], x[0], y[0]);
        let c = four_by_four(r[1], s[1], t[1], u[1]);
        let d = four_by_four(v[1], w[1], x[1], y[1]);
        [
            Pair([a[0], b[0]]),
            Pair([a[1], b[1]]),
            Pair([a[2], b[2]]),
            Pair([a[3], b[3]]),
            Pair([c[0], d[0]]),
            Pair([c[1], d[1]]),
            Pair([c[2], d[2]]),
            Pair([c[3], d[3]]),
        ]
    }

    #[inline(always)]
    fn arrange(self, from: &[usize; 8]) -> Pair {
        let (words, mut out) = (self.reveal(), [0; BYTES]);
        let words = words.as_chunks::<8>().0;
        for (to, from) in out.as_chunks_mut::<8>().0.iter_mut().zip(from) {
            *to = words[from % 8];
        }
        Pair::secret(&out)
    }

    #[inline(always)]
    fn lowest_bits(poly: &Poly<Pair>) -> Pair {
        let mut bytes = [0; BYTES];
        for (bits, numbers) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(poly) {
            let [low, high] = numbers.shl16::<15>().sar16::<15>().0;
            // Packing goes by pieces of both: the words' order is put right behind it.
            let packed = op!(_mm256_packs_epi16(low.0, high.0));
            let packed = op!(_mm256_permute4x64_epi64::<0xd8>(packed));
            *bits = op!(_mm256_movemask_epi8(packed)).to_le_bytes();
        }
        Pair::secret(&bytes)
    }

    #[inline(always)]
    fn is_zero(self) -> Pair {
        let any = self.0[0].or(self.0[1]);
        let zero = op!(_mm256_cmpeq_epi8(any.0, _mm256_setzero_si256()));
        // All 32 bits only if no byte has one; then one more is none.
        let bytes = i64::from(op!(_mm256_movemask_epi8(zero)) as u32);
        Pair::splat(((0xffff_fffe - bytes) >> 63) as u64)
    }

    #[inline(always)]
    fn keccak(state: &mut State<Pair>, count: usize) {
        // SAFETY: as for all operations of this type.
        unsafe {
            keccak_256(state, 0);
            if count > 4 {
                keccak_256(state, 1);
            }
        }
    }

    #[inline(always)]
    fn accept(bytes: &[u8], out: &mut [i16; 256 + SHORTS], mut count: usize) -> usize {
        let order = op!(_mm_setr_epi8(0, 1, 1, 2, 3, 4, 4, 5, 6, 7, 7, 8, 9, 10, 10, 11));
        let (mask, modulus) = (op!(_mm_set1_epi16(0xfff)), op!(_mm_set1_epi16(3329)));
        for at in (0..bytes.len()).step_by(12) {
            if count >= 256 {
                return 256;
            }
            let from: &[u8; 16] = match bytes[at..].first_chunk() {
                Some(from) => from,
                None => break,
            };
            let moved = op!(_mm_shuffle_epi8(_mm_loadu_si128(from.as_ptr().cast()), order));
            let numbers =
                op!(_mm_blend_epi16::<0xaa>(_mm_and_si128(moved, mask), _mm_srli_epi16::<4>(moved)));
            let fit = op!(_mm_cmplt_epi16(numbers, modulus));
            let fit = op!(_mm_movemask_epi8(_mm_packs_epi16(fit, fit))) as usize & 0xff;
            let front = op!(_mm_loadu_si128(FRONT[fit].as_ptr().cast()));
            let packed = op!(_mm_shuffle_epi8(numbers, front));
            let Some(to) = out[count..].first_chunk_mut::<8>() else { break };
            op!(_mm_storeu_si128(to.as_mut_ptr().cast(), packed));
            count += fit.count_ones() as usize;
        }
        count.min(256)
    }
}

/// [`Shorts::exchange`] in one register, of eight numbers or fewer.
#[inline(always)]
fn exchange<const LEN: usize>(a: Ymm, b: Ymm) -> (Ymm, Ymm) {
    let (a, b) = (a.0, b.0);
    let (a, b) = match LEN {
        8 => (op!(_mm256_permute2x128_si256::<0x20>(a, b)), op!(_mm256_permute2x128_si256::<0x31>(a, b))),
        4 => (op!(_mm256_unpacklo_epi64(a, b)), op!(_mm256_unpackhi_epi64(a, b))),
        _ => (
            op!(_mm256_blend_epi32::<0xaa>(a, _mm256_slli_epi64::<32>(b))),
            op!(_mm256_blend_epi32::<0xaa>(_mm256_srli_epi64::<32>(a), b)),
        ),
    };
    (Ymm(a), Ymm(b))
}

/// Transposes four by four words.
#[inline(always)]
fn four_by_four(a: Ymm, b: Ymm, c: Ymm, d: Ymm) -> [Ymm; 4] {
    let ((ab, ab_odd), (cd, cd_odd)) = (exchange::<4>(a, b), exchange::<4>(c, d));
    let ((first, third), (second, fourth)) = (exchange::<8>(ab, cd), exchange::<8>(ab_odd, cd_odd));
    [first, second, third, fourth]
}
