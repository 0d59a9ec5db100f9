//! Eight lanes as two registers of four, for CPUs with AVX2 and FMA: 52-bit multiplication by the multiplier for doubles.
//!
//! *Halves of a product, exactly.* A double holds integers of 53 bits, and a fused multiply-add rounds once, to nearest. For
//! integers `a`, `b` below 2^52 and `p = a b`, which is at most `(2^52 - 1)^2 = 2^104 - 2^53 + 1`:
//!
//! ```text
//! u = fma(a, b, 2^104)            2^104 <= 2^104 + p < 2^105, where doubles are the multiples of 2^52: so
//!                                 u = 2^104 + h 2^52, where h is p / 2^52 rounded to nearest, 0 <= h <= 2^52 - 2
//! l = p - h 2^52                  what the rounding left: -2^51 <= l <= 2^51
//! v = fma(5 2^51, N, -u)          N = (2^53 + 3) / 5, an integer below 2^53: 5 2^51 N = 2^104 + 3 2^51, so
//!                                 v = 3 2^51 - h 2^52, a multiple of 2^51 below 2^104 in size: exact
//! w = fma(a, b, v)                = 3 2^51 + l, an integer from 2^52 to 2^53: exact
//! ```
//!
//! `2^104 + 3 2^51` is no double, but the product of two; the third multiply-add has it exactly where a subtraction would
//! need an addition after it. From 2^52 to 2^53 the bits of doubles, as integers, count on by one for each step of one,
//! and so they do from 2^104 on for each step of 2^52. So the bits of `u` and `w` are `h` and `l` above those of 2^104
//! ([`HIGH`]) and of `3 2^51` ([`LOW`]), also where `w` is 2^53 itself. A column of many products adds them as they are and
//! takes off as many biases at the end; all of it is modulo 2^64. So three multiply-adds and two additions do what two
//! multiply-adds of AVX-512 IFMA do, on half as many lanes.
//!
//! *Signs.* `h 2^52 + l` is `p`, but `l` may be negative and `h` one more than the upper half. A column of such parts is
//! another number than a column of unsigned halves, negative perhaps; the number that all columns mean is the same. So
//! columns are signed integers here. [`Vector::mul_lo`] and [`Vector::mul_hi`] give unsigned halves, as everywhere.
//!
//! (Multiplying and subtracting doubles to get a product's halves is T. J. Dekker's, "A floating-point technique for
//! extending the available precision", Numerische Mathematik 18, 1971; with a fused multiply-add and with magic constants
//! see N. Emmart, F. Zheng, C. Weems, "Faster modular exponentiation using double precision floating point arithmetic on
//! the GPU", ARITH 2018, which rounds towards zero.)
//!
//! *Rounding* to nearest is the mode that programs start with, that the x86-64 calling convention asks of every caller, and
//! that Rust takes for granted; nothing here sets or reads it. A thread that runs in another mode all the same gets wrong
//! products, and RSA's check of each result finds them.
//!
//! *Constant time.* Operands are zero or normal numbers, never subnormal: no CPU has a slow path for them.

use core::arch::asm;
use core::arch::x86_64::*;

use super::{LANES, MASK52, Vector};

/// Four lanes of a [`Fma`].
pub(in crate::lanes) type Half = __m256i;

/// Four factors: integers below 2^52 as doubles.
pub(in crate::lanes) type Factor = __m256d;

/// The bits of 2^52.
const ONE: u64 = 0x433 << 52;

/// The bits of 3 2^51: what a low part of a product comes with.
const LOW: u64 = ONE | 1 << 51;

/// The bits of 2^104: what a high part of a product comes with.
const HIGH: u64 = 0x467 << 52;

/// The bits of 5 2^51 and of (2^53 + 3) / 5, whose product is 2^104 + 3 2^51.
const BOTH: [u64; 2] = [(5.0 * (1u64 << 51) as f64).to_bits(), ((((1u64 << 53) + 3) / 5) as f64).to_bits()];

/// What a column with so many low and so many high parts has too much, as what is to be added to it.
pub(in crate::lanes) const fn bias(low: usize, high: usize) -> u64 {
    LOW.wrapping_mul(low as u64).wrapping_add(HIGH.wrapping_mul(high as u64)).wrapping_neg()
}

/// Two registers of AVX2, lanes 0 to 3 and 4 to 7. Its operations may only run where a witness of AVX2 and FMA was
/// shown: kernels reach this type through entries that demand one.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Fma(pub(in crate::lanes) [Half; 2]);

macro_rules! op {
    ($intrinsic:ident $(::<$constant:literal>)? ( $($argument:expr),* )) => {
        // SAFETY: this type cannot be named outside `lanes`, and there only the kernels' entries, each called with the
        // witness `Fma256` that `Cpu::detect` made, choose it. The witness proves avx2 and fma, which is all that
        // these intrinsics ask.
        unsafe { $intrinsic $(::<$constant>)? ($($argument),*) }
    };
}

/// The same number in four lanes.
#[inline(always)]
pub(in crate::lanes) fn splat(number: u64) -> Half {
    op!(_mm256_set1_epi64x(number.cast_signed()))
}

/// Sum.
#[inline(always)]
pub(in crate::lanes) fn add(a: Half, b: Half) -> Half {
    op!(_mm256_add_epi64(a, b))
}

/// Towards lower bits, zeros from above.
#[inline(always)]
pub(in crate::lanes) fn shr<const BITS: u32>(a: Half) -> Half {
    op!(_mm256_srl_epi64(a, _mm_cvtsi64_si128(i64::from(BITS))))
}

/// The low 52 bits of each lane as a factor: set as the fraction of 2^52, which is then taken off.
#[inline(always)]
pub(in crate::lanes) fn factor(limbs: Half) -> Factor {
    let (mask, one) = (splat(MASK52), splat(ONE));
    let fraction = op!(_mm256_and_si256(limbs, mask));
    let set = op!(_mm256_or_si256(fraction, one));
    let (set, one) = (op!(_mm256_castsi256_pd(set)), op!(_mm256_castsi256_pd(one)));
    op!(_mm256_sub_pd(set, one))
}

/// `low` and `high` plus the parts of the products of two factors, each with its bias: see the head of this file.
#[inline(always)]
pub(in crate::lanes) fn multiply(low: &mut Half, high: &mut Half, a: Factor, b: Factor) {
    // SAFETY: as for the intrinsics above.
    (*low, *high) = unsafe { parts(*low, *high, a, b) };
}

/// In assembly, because the compiler takes intrinsics apart and spreads thousands of products over each other: it then
/// spills registers, and takes minutes. (The flags may change: those of inexact results.)
#[inline]
#[target_feature(enable = "avx2,fma")]
fn parts(mut low: Half, mut high: Half, a: Factor, b: Factor) -> (Half, Half) {
    // SAFETY: registers only, and instructions that are enabled here.
    unsafe {
        asm!(
            "vmovapd {u}, {bias}",
            "vfmadd231pd {u}, {a}, {b}",
            "vpaddq {high}, {high}, {u}",
            "vfmsub231pd {u}, {five}, {fifth}",
            "vfmadd231pd {u}, {a}, {b}",
            "vpaddq {low}, {low}, {u}",
            u = out(ymm_reg) _,
            a = in(ymm_reg) a,
            b = in(ymm_reg) b,
            bias = in(ymm_reg) splat(HIGH),
            five = in(ymm_reg) splat(BOTH[0]),
            fifth = in(ymm_reg) splat(BOTH[1]),
            high = inout(ymm_reg) high,
            low = inout(ymm_reg) low,
            options(pure, nomem, nostack),
        );
    }
    (low, high)
}

impl Fma {
    #[inline(always)]
    fn map(self, f: impl Fn(Half) -> Half) -> Fma {
        Fma([f(self.0[0]), f(self.0[1])])
    }

    #[inline(always)]
    fn zip(self, other: Fma, f: impl Fn(Half, Half) -> Half) -> Fma {
        Fma([f(self.0[0], other.0[0]), f(self.0[1], other.0[1])])
    }

    /// Both halves of the products of `a` and `b`, without biases and unsigned.
    #[inline(always)]
    fn product(a: Fma, b: Fma) -> [Fma; 2] {
        let (mut low, mut high) = (Fma::splat(bias(1, 0)), Fma::splat(bias(0, 1)));
        for half in 0..2 {
            multiply(&mut low.0[half], &mut high.0[half], factor(a.0[half]), factor(b.0[half]));
        }
        // A low part of 2^51 or less either way: what it has above 52 bits is 0 or -1.
        [low.and(Fma::splat(MASK52)), high.add(low.sar::<52>())]
    }

    /// What four numbers name among sixteen: two bits choose among a register's four, as pairs of 32-bit halves, the next two
    /// among the registers.
    #[inline(always)]
    fn pick_half(number: Half, low: Fma, high: Fma) -> Half {
        let (twice, six) = (add(number, number), splat(6));
        let twice = op!(_mm256_and_si256(twice, six));
        let odd = add(twice, splat(1));
        let odd = op!(_mm256_slli_epi64::<32>(odd));
        let pairs = op!(_mm256_or_si256(twice, odd));
        let (second, upper) = (op!(_mm256_slli_epi64::<61>(number)), op!(_mm256_slli_epi64::<60>(number)));
        let (a, b) = (low.0[0], low.0[1]);
        let (a, b) = (op!(_mm256_permutevar8x32_epi32(a, pairs)), op!(_mm256_permutevar8x32_epi32(b, pairs)));
        let (c, d) = (high.0[0], high.0[1]);
        let (c, d) = (op!(_mm256_permutevar8x32_epi32(c, pairs)), op!(_mm256_permutevar8x32_epi32(d, pairs)));
        Fma::blend(upper, Fma::blend(second, d, c), Fma::blend(second, b, a))
    }

    /// `yes` where the highest bit of `mask` is set.
    #[inline(always)]
    fn blend(mask: Half, yes: Half, no: Half) -> Half {
        let mask = op!(_mm256_castsi256_pd(mask));
        let (yes, no) = (op!(_mm256_castsi256_pd(yes)), op!(_mm256_castsi256_pd(no)));
        let blended = op!(_mm256_blendv_pd(no, yes, mask));
        op!(_mm256_castpd_si256(blended))
    }
}

impl Vector for Fma {
    /// All ones or all zeros in each lane.
    type Mask = Fma;

    #[inline(always)]
    fn splat(number: u64) -> Self {
        Fma([splat(number); 2])
    }

    #[inline(always)]
    fn new(numbers: &[u64; LANES]) -> Self {
        let (low, high) = numbers.split_at(LANES / 2);
        Fma([op!(_mm256_loadu_si256(low.as_ptr().cast())), op!(_mm256_loadu_si256(high.as_ptr().cast()))])
    }

    #[inline(always)]
    fn reveal(self) -> [u64; LANES] {
        let mut numbers = [0; LANES];
        let (low, high) = numbers.split_at_mut(LANES / 2);
        op!(_mm256_storeu_si256(low.as_mut_ptr().cast(), self.0[0]));
        op!(_mm256_storeu_si256(high.as_mut_ptr().cast(), self.0[1]));
        numbers
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, add)
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| op!(_mm256_sub_epi64(a, b)))
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        self.zip(other, |a, b| op!(_mm256_and_si256(a, b)))
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        self.zip(other, |a, b| op!(_mm256_or_si256(a, b)))
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        self.zip(other, |a, b| op!(_mm256_xor_si256(a, b)))
    }

    #[inline(always)]
    fn andnot(self, other: Self) -> Self {
        self.zip(other, |a, b| op!(_mm256_andnot_si256(a, b)))
    }

    #[inline(always)]
    fn shl<const BITS: u32>(self) -> Self {
        self.map(|a| op!(_mm256_sll_epi64(a, _mm_cvtsi64_si128(i64::from(BITS)))))
    }

    #[inline(always)]
    fn shr<const BITS: u32>(self) -> Self {
        self.map(shr::<BITS>)
    }

    /// There is no such shift of 64 bits: the sign is turned into the highest bit of a number that is not negative, and what
    /// that adds is taken off.
    #[inline(always)]
    fn sar<const BITS: u32>(self) -> Self {
        let sign = Fma::splat(1 << 63);
        self.xor(sign).shr::<BITS>().sub(sign.shr::<BITS>())
    }

    #[inline(always)]
    fn add32(self, other: Self) -> Self {
        self.zip(other, |a, b| op!(_mm256_add_epi32(a, b)))
    }

    #[inline(always)]
    fn shr32<const BITS: u32>(self) -> Self {
        self.map(|a| op!(_mm256_srl_epi32(a, _mm_cvtsi64_si128(i64::from(BITS)))))
    }

    #[inline(always)]
    fn ror<const BITS: i32>(self) -> Self {
        let left = |a| op!(_mm256_sll_epi64(a, _mm_cvtsi64_si128(i64::from(64 - BITS))));
        let right = |a| op!(_mm256_srl_epi64(a, _mm_cvtsi64_si128(i64::from(BITS))));
        self.map(right).or(self.map(left))
    }

    #[inline(always)]
    fn ror32<const BITS: i32>(self) -> Self {
        let left = |a| op!(_mm256_sll_epi32(a, _mm_cvtsi64_si128(i64::from(32 - BITS))));
        let right = |a| op!(_mm256_srl_epi32(a, _mm_cvtsi64_si128(i64::from(BITS))));
        self.map(right).or(self.map(left))
    }

    #[inline(always)]
    fn mul_lo(self, a: Self, b: Self) -> Self {
        self.add(Fma::product(a, b)[0])
    }

    #[inline(always)]
    fn mul_hi(self, a: Self, b: Self) -> Self {
        self.add(Fma::product(a, b)[1])
    }

    #[inline(always)]
    fn swap_halves(self) -> Self {
        Fma([self.0[1], self.0[0]])
    }

    #[inline(always)]
    fn is_equal(self, other: Self) -> Fma {
        self.zip(other, |a, b| op!(_mm256_cmpeq_epi64(a, b)))
    }

    #[inline(always)]
    fn is_less(self, other: Self) -> Fma {
        // The comparison is of signed numbers.
        let sign = Fma::splat(1 << 63);
        self.xor(sign).zip(other.xor(sign), |a, b| op!(_mm256_cmpgt_epi64(b, a)))
    }

    #[inline(always)]
    fn choose(mask: Fma, yes: Self, no: Self) -> Self {
        Fma([Fma::blend(mask.0[0], yes.0[0], no.0[0]), Fma::blend(mask.0[1], yes.0[1], no.0[1])])
    }

    #[inline(always)]
    fn pick(self, low: Self, high: Self) -> Self {
        Fma([Fma::pick_half(self.0[0], low, high), Fma::pick_half(self.0[1], low, high)])
    }

    #[inline(always)]
    fn either(a: Fma, b: Fma) -> Fma {
        a.or(b)
    }

    #[inline(always)]
    fn both(a: Fma, b: Fma) -> Fma {
        a.and(b)
    }

    #[inline(always)]
    fn not(a: Fma) -> Fma {
        a.xor(Fma::splat(u64::MAX))
    }

    #[inline(always)]
    fn reveal_mask(mask: Fma) -> u8 {
        let bits = mask.0.map(|half| {
            let half = op!(_mm256_castsi256_pd(half));
            op!(_mm256_movemask_pd(half))
        });
        (bits[0] | bits[1] << 4) as u8
    }
}
