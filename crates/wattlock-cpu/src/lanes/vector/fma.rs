//! Eight lanes as two registers of four, for CPUs with AVX2 and FMA: 52-bit multiplication by the multiplier for doubles.
//!
//! *Halves of a product, exactly.* A double holds integers of 53 bits, and a fused multiply-add rounds once. With every
//! rounding towards zero, and `a`, `b` integers below 2^52 with the product `p = h 2^52 + l`, `l < 2^52`:
//!
//! ```text
//! u = fma(a, b, 2^104)          p < 2^104, so 2^104 <= 2^104 + p < 2^105, where doubles are the multiples of 2^52:
//!                               u = 2^104 + h 2^52, and its 52 bits of fraction are h
//! v = (2^104 + 2^52) - u        = 2^52 - h 2^52: a multiple of 2^52 below 2^104 in size, so exact
//! w = fma(a, b, v)              = p + 2^52 - h 2^52 = 2^52 + l < 2^53: exact, and its 52 bits of fraction are l
//! ```
//!
//! As integers, `u` and `w` are h and l above the bits of 2^104 ([`HIGH`]) and of 2^52 ([`LOW`]). A column of many
//! products adds them as they are and takes off as many biases at the end; all of it is modulo 2^64. So three
//! floating-point instructions and two additions do what two multiply-adds of AVX-512 IFMA do, on half as many lanes,
//! with the same result bit by bit: the kernels' bounds hold as they stand. (Multiplying and subtracting doubles to get a
//! product's halves is Dekker's, 1971; with fused multiply-add see Emmart, Zheng and Weems, "Faster modular exponentiation
//! using double precision floating point arithmetic on the GPU", ARITH 2018.)
//!
//! *Rounding* is a mode of the CPU. [`toward_zero`] sets it around an entry. Rust takes the mode for what it is at a
//! program's start; so every floating-point instruction here is written in assembly, which the compiler neither moves
//! out of an entry nor computes itself, and entries hold no floating-point arithmetic of Rust's. Rounding to nearest
//! would give h one too large for half of all products.
//!
//! *Constant time.* Operands are zero or normal numbers, never subnormal: no CPU has a slow path for them.

use core::arch::asm;
use core::arch::x86_64::*;

use super::{LANES, MASK52, Vector};
use crate::detect::Fma256;

/// Four lanes of a [`Fma`].
pub(in crate::lanes) type Half = __m256i;

/// Four factors: integers below 2^52 as doubles.
pub(in crate::lanes) type Factor = __m256d;

/// The bits of 2^52: what a low half of a product comes with.
pub(in crate::lanes) const LOW: u64 = 0x433 << 52;

/// The bits of 2^104: what a high half of a product comes with.
pub(in crate::lanes) const HIGH: u64 = 0x467 << 52;

/// The bits of 2^104 + 2^52.
const BOTH: u64 = HIGH + 1;

/// What a column with so many low and so many high halves has too much, as what is to be added to it.
pub(in crate::lanes) const fn bias(low: usize, high: usize) -> u64 {
    LOW.wrapping_mul(low as u64).wrapping_add(HIGH.wrapping_mul(high as u64)).wrapping_neg()
}

/// Rounding towards zero, all exceptions masked, subnormal numbers as they are.
const TOWARD_ZERO: u32 = 0x7f80;

/// Runs `entry` with rounding towards zero, and restores the caller's mode and flags, also when it panics.
///
/// `entry` must be a call of a function that is not inlined here and has no floating-point arithmetic of its own but this
/// file's.
pub(in crate::lanes) fn toward_zero<R>(_: Fma256, entry: impl FnOnce() -> R) -> R {
    struct Restored(u32);
    impl Drop for Restored {
        fn drop(&mut self) {
            set_mode(self.0);
        }
    }
    let mut mode = 0u32;
    // SAFETY: writes the four bytes that it is given.
    unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut mode, options(nostack, preserves_flags)) };
    let _restored = Restored(mode);
    set_mode(TOWARD_ZERO);
    entry()
}

/// Whether rounding towards zero has its effect here. An emulator may ignore the mode (valgrind does), and every product would
/// be wrong.
pub(in crate::lanes) fn rounds(isa: Fma256) -> bool {
    #[target_feature(enable = "avx2,fma")]
    #[inline(never)]
    fn entry() -> bool {
        // To nearest, the high half would be 2.
        let [low, high] = Fma::product(Fma::splat(3), Fma::splat((1 << 51) + 1));
        low.reveal() == [(1 << 51) + 3; LANES] && high.reveal() == [1; LANES]
    }
    // SAFETY: the witness says that the CPU has the instructions.
    toward_zero(isa, || unsafe { entry() })
}

fn set_mode(mode: u32) {
    // SAFETY: reads four bytes; both values in use are a mode that this thread had, and one whose reserved bits are zero.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const mode, options(nostack)) };
}

/// Two registers of AVX2, lanes 0 to 3 and 4 to 7. Its operations may only run where a witness of AVX2 and FMA was
/// shown, and multiplications inside [`toward_zero`]: kernels reach this type through entries that see to both.
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
    // SAFETY: as for the intrinsics above.
    unsafe { in_assembly::factor(limbs) }
}

/// `low` and `high` plus the halves of the products of two factors, each with its bias: see the head of this file.
#[inline(always)]
pub(in crate::lanes) fn multiply(low: &mut Half, high: &mut Half, a: Factor, b: Factor) {
    // SAFETY: as for the intrinsics above.
    (*low, *high) = unsafe { in_assembly::multiply(*low, *high, a, b) };
}

/// All floating-point arithmetic there is.
mod in_assembly {
    use super::*;

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub fn factor(limbs: Half) -> Factor {
        let factors;
        // SAFETY: registers only, and instructions that are enabled here.
        unsafe {
            asm!(
                "vpand {f}, {limbs}, {mask}",
                "vpor {f}, {f}, {low}",
                "vsubpd {f}, {f}, {low}",
                f = out(ymm_reg) factors,
                limbs = in(ymm_reg) limbs,
                mask = in(ymm_reg) splat(MASK52),
                low = in(ymm_reg) splat(LOW),
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        factors
    }

    /// The flag for inexact results may change: [`toward_zero`] restores it.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub fn multiply(mut low: Half, mut high: Half, a: Factor, b: Factor) -> (Half, Half) {
        // SAFETY: as above.
        unsafe {
            asm!(
                "vmovapd {u}, {high_bias}",
                "vfmadd231pd {u}, {a}, {b}",
                "vsubpd {w}, {both}, {u}",
                "vfmadd231pd {w}, {a}, {b}",
                "vpaddq {high}, {high}, {u}",
                "vpaddq {low}, {low}, {w}",
                u = out(ymm_reg) _,
                w = out(ymm_reg) _,
                a = in(ymm_reg) a,
                b = in(ymm_reg) b,
                high_bias = in(ymm_reg) splat(HIGH),
                both = in(ymm_reg) splat(BOTH),
                high = inout(ymm_reg) high,
                low = inout(ymm_reg) low,
                options(pure, nomem, nostack),
            );
        }
        (low, high)
    }
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

    /// Both halves of the products of `a` and `b`, without biases.
    #[inline(always)]
    fn product(a: Fma, b: Fma) -> [Fma; 2] {
        let (mut low, mut high) = (Fma::splat(bias(1, 0)), Fma::splat(bias(0, 1)));
        for half in 0..2 {
            multiply(&mut low.0[half], &mut high.0[half], factor(a.0[half]), factor(b.0[half]));
        }
        [low, high]
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
