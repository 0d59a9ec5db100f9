//! What a kernel may ask of a machine: eight lanes of 64 bits, and a multiplier that takes 52 bits of each.
//!
//! A kernel is written once, generic over [`Vector`], with every function down to its entry `#[inline(always)]`, so that
//! it is compiled with the instructions of the entry it is inlined into (an entry is a `#[target_feature]` function
//! that is given a witness). What is too large to inline everywhere becomes an entry of its own.
//!
//! Nothing here turns a lane into a branch or an address. Comparisons give masks, masks choose between vectors, and the
//! one way back to numbers is [`Vector::reveal`].

/// Lanes of a vector.
pub const LANES: usize = 8;

/// The 52 bits that a multiplier takes of each lane.
pub const MASK52: u64 = (1 << 52) - 1;

/// Eight lanes of 64 bits. Arithmetic wraps in each lane.
pub trait Vector: Copy {
    /// A truth value for each lane.
    type Mask: Copy;

    /// Whether large pieces of a kernel should be functions instead of being inlined wherever they are used: said by a
    /// type whose operations are not single instructions.
    const OUTLINED: bool = false;

    /// The same number in every lane.
    fn splat(number: u64) -> Self;

    /// One number for each lane.
    fn new(numbers: &[u64; LANES]) -> Self;

    /// The lanes as numbers: where a value leaves the constant-time world or goes to a caller's buffer.
    fn reveal(self) -> [u64; LANES];

    /// Sum.
    fn add(self, other: Self) -> Self;

    /// Difference.
    fn sub(self, other: Self) -> Self;

    /// Bits in both.
    fn and(self, other: Self) -> Self;

    /// Bits in either.
    fn or(self, other: Self) -> Self;

    /// Bits in one only.
    fn xor(self, other: Self) -> Self;

    /// Bits of `other` that are not in `self`.
    fn andnot(self, other: Self) -> Self;

    /// Towards higher bits.
    fn shl<const BITS: u32>(self) -> Self;

    /// Towards lower bits, zeros from above.
    fn shr<const BITS: u32>(self) -> Self;

    /// Towards lower bits, copies of the highest bit from above.
    fn sar<const BITS: u32>(self) -> Self;

    /// Sum of 32-bit halves, each wrapping.
    fn add32(self, other: Self) -> Self;

    /// 32-bit halves, towards lower bits, zeros from above.
    fn shr32<const BITS: u32>(self) -> Self;

    /// Towards lower bits, around.
    fn ror<const BITS: i32>(self) -> Self;

    /// 32-bit halves, towards lower bits, around.
    fn ror32<const BITS: i32>(self) -> Self;

    /// `self` plus the low 52 bits of the 104-bit product of the low 52 bits of `a` and `b`.
    fn mul_lo(self, a: Self, b: Self) -> Self;

    /// `self` plus the high 52 bits of the 104-bit product of the low 52 bits of `a` and `b`.
    fn mul_hi(self, a: Self, b: Self) -> Self;

    /// Lanes 4 to 7, then lanes 0 to 3.
    fn swap_halves(self) -> Self;

    /// Where lanes are equal.
    fn is_equal(self, other: Self) -> Self::Mask;

    /// Where `self` is less, as unsigned numbers.
    fn is_less(self, other: Self) -> Self::Mask;

    /// `yes` where the mask is set, else `no`.
    fn choose(mask: Self::Mask, yes: Self, no: Self) -> Self;

    /// In each lane, which of sixteen numbers (`low`, then `high`) its own low four bits name. All sixteen are read
    /// whatever the lane says: this is a permutation of registers, not a load.
    fn pick(self, low: Self, high: Self) -> Self;

    /// Where either is set.
    fn either(a: Self::Mask, b: Self::Mask) -> Self::Mask;

    /// Where both are set.
    fn both(a: Self::Mask, b: Self::Mask) -> Self::Mask;

    /// Where it is not set.
    fn not(a: Self::Mask) -> Self::Mask;

    /// The mask as one bit for each lane, lane 0 lowest: like [`Vector::reveal`], a way out.
    fn reveal_mask(mask: Self::Mask) -> u8;
}

#[cfg(target_arch = "x86_64")]
pub use ifma::Ifma;

#[cfg(target_arch = "x86_64")]
pub use fma::Fma;

#[cfg(target_arch = "x86_64")]
pub(in crate::lanes) mod fma;

#[cfg(target_arch = "x86_64")]
pub mod shorts;

#[cfg(target_arch = "x86_64")]
mod ifma {
    use super::{LANES, Vector};
    use core::arch::x86_64::*;

    /// AVX-512 IFMA registers. Its operations may only run where a witness of them was shown: kernels reach this type
    /// through entries that demand one.
    #[derive(Clone, Copy)]
    #[repr(transparent)]
    pub struct Ifma(pub(in crate::lanes) __m512i);

    macro_rules! op {
        ($intrinsic:ident $(::<$constant:literal>)? ( $($argument:expr),* )) => {
            // SAFETY: this type cannot be named outside `lanes`, and there only the kernels' entries, each called with the
            // witness `Ifma512` that `Cpu::detect` made, choose it. The witness proves avx512f and avx512ifma, which
            // is all that these intrinsics ask.
            unsafe { $intrinsic $(::<$constant>)? ($($argument),*) }
        };
    }

    impl Vector for Ifma {
        type Mask = __mmask8;

        #[inline(always)]
        fn splat(number: u64) -> Self {
            Ifma(op!(_mm512_set1_epi64(number as i64)))
        }

        #[inline(always)]
        fn new(numbers: &[u64; LANES]) -> Self {
            Ifma(op!(_mm512_loadu_si512(numbers.as_ptr().cast())))
        }

        #[inline(always)]
        fn reveal(self) -> [u64; LANES] {
            let mut numbers = [0; LANES];
            op!(_mm512_storeu_si512(numbers.as_mut_ptr().cast(), self.0));
            numbers
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            Ifma(op!(_mm512_add_epi64(self.0, other.0)))
        }

        #[inline(always)]
        fn sub(self, other: Self) -> Self {
            Ifma(op!(_mm512_sub_epi64(self.0, other.0)))
        }

        #[inline(always)]
        fn and(self, other: Self) -> Self {
            Ifma(op!(_mm512_and_si512(self.0, other.0)))
        }

        #[inline(always)]
        fn or(self, other: Self) -> Self {
            Ifma(op!(_mm512_or_si512(self.0, other.0)))
        }

        #[inline(always)]
        fn xor(self, other: Self) -> Self {
            Ifma(op!(_mm512_xor_si512(self.0, other.0)))
        }

        #[inline(always)]
        fn andnot(self, other: Self) -> Self {
            Ifma(op!(_mm512_andnot_si512(self.0, other.0)))
        }

        #[inline(always)]
        fn shl<const BITS: u32>(self) -> Self {
            Ifma(op!(_mm512_slli_epi64(self.0, BITS)))
        }

        #[inline(always)]
        fn shr<const BITS: u32>(self) -> Self {
            Ifma(op!(_mm512_srli_epi64(self.0, BITS)))
        }

        #[inline(always)]
        fn sar<const BITS: u32>(self) -> Self {
            Ifma(op!(_mm512_srai_epi64(self.0, BITS)))
        }

        #[inline(always)]
        fn add32(self, other: Self) -> Self {
            Ifma(op!(_mm512_add_epi32(self.0, other.0)))
        }

        #[inline(always)]
        fn shr32<const BITS: u32>(self) -> Self {
            Ifma(op!(_mm512_srli_epi32(self.0, BITS)))
        }

        #[inline(always)]
        fn ror<const BITS: i32>(self) -> Self {
            Ifma(op!(_mm512_ror_epi64(self.0, BITS)))
        }

        #[inline(always)]
        fn ror32<const BITS: i32>(self) -> Self {
            Ifma(op!(_mm512_ror_epi32(self.0, BITS)))
        }

        #[inline(always)]
        fn mul_lo(self, a: Self, b: Self) -> Self {
            Ifma(op!(_mm512_madd52lo_epu64(self.0, a.0, b.0)))
        }

        #[inline(always)]
        fn mul_hi(self, a: Self, b: Self) -> Self {
            Ifma(op!(_mm512_madd52hi_epu64(self.0, a.0, b.0)))
        }

        #[inline(always)]
        fn swap_halves(self) -> Self {
            Ifma(op!(_mm512_shuffle_i64x2::<0b01_00_11_10>(self.0, self.0)))
        }

        #[inline(always)]
        fn is_equal(self, other: Self) -> __mmask8 {
            op!(_mm512_cmpeq_epu64_mask(self.0, other.0))
        }

        #[inline(always)]
        fn is_less(self, other: Self) -> __mmask8 {
            op!(_mm512_cmplt_epu64_mask(self.0, other.0))
        }

        #[inline(always)]
        fn choose(mask: __mmask8, yes: Self, no: Self) -> Self {
            Ifma(op!(_mm512_mask_blend_epi64(mask, no.0, yes.0)))
        }

        #[inline(always)]
        fn pick(self, low: Self, high: Self) -> Self {
            Ifma(op!(_mm512_permutex2var_epi64(low.0, self.0, high.0)))
        }

        #[inline(always)]
        fn either(a: __mmask8, b: __mmask8) -> __mmask8 {
            a | b
        }

        #[inline(always)]
        fn both(a: __mmask8, b: __mmask8) -> __mmask8 {
            a & b
        }

        #[inline(always)]
        fn not(a: __mmask8) -> __mmask8 {
            !a
        }

        #[inline(always)]
        fn reveal_mask(mask: __mmask8) -> u8 {
            mask
        }
    }
}

/// A scalar model: the same operations in plain integers. It runs everywhere, is what kernels are compared with, and
/// carries *poison*: a lane that holds a secret or what was computed from one cannot be revealed.
pub mod model {
    use super::{LANES, MASK52, Vector};

    // Its operations are not inlined: kernels written out for registers would become thousands of loops, and minutes to
    // compile.

    /// Eight plain integers and whether they are secret.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Model {
        pub(in crate::lanes::vector) numbers: [u64; LANES],
        pub(in crate::lanes::vector) poisoned: bool,
    }

    /// Eight truth values and whether they are secret.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ModelMask {
        bits: [bool; LANES],
        poisoned: bool,
    }

    impl Model {
        /// A secret: revealing it, or anything computed from it, panics until it is declassified.
        #[cfg(test)]
        pub fn secret(numbers: &[u64; LANES]) -> Model {
            Model { numbers: *numbers, poisoned: true }
        }

        /// The numbers, secret or not: where a test says that a result is meant to be public.
        #[cfg(test)]
        pub fn declassified(self) -> [u64; LANES] {
            self.numbers
        }

        #[inline(never)]
        fn zip(self, other: Model, f: impl Fn(u64, u64) -> u64) -> Model {
            Model {
                numbers: std::array::from_fn(|lane| f(self.numbers[lane], other.numbers[lane])),
                poisoned: self.poisoned | other.poisoned,
            }
        }

        #[inline(never)]
        fn map(self, f: impl Fn(u64) -> u64) -> Model {
            Model { numbers: self.numbers.map(f), ..self }
        }

        #[inline(never)]
        fn compare(self, other: Model, f: impl Fn(u64, u64) -> bool) -> ModelMask {
            ModelMask {
                bits: std::array::from_fn(|lane| f(self.numbers[lane], other.numbers[lane])),
                poisoned: self.poisoned | other.poisoned,
            }
        }

        fn product(a: Model, b: Model) -> impl Fn(usize) -> u128 {
            move |lane| u128::from(a.numbers[lane] & MASK52) * u128::from(b.numbers[lane] & MASK52)
        }

        #[inline(never)]
        fn accumulate(self, a: Model, b: Model, f: impl Fn(u128) -> u64) -> Model {
            let product = Model::product(a, b);
            Model {
                numbers: std::array::from_fn(|lane| self.numbers[lane].wrapping_add(f(product(lane)))),
                poisoned: self.poisoned | a.poisoned | b.poisoned,
            }
        }
    }

    /// Each 32-bit half for itself, with where it begins.
    fn halves(number: u64, f: impl Fn(u32, u32) -> u32) -> u64 {
        u64::from(f(number as u32, 0)) | u64::from(f((number >> 32) as u32, 32)) << 32
    }

    impl ModelMask {
        fn zip(self, other: ModelMask, f: impl Fn(bool, bool) -> bool) -> ModelMask {
            ModelMask {
                bits: std::array::from_fn(|lane| f(self.bits[lane], other.bits[lane])),
                poisoned: self.poisoned | other.poisoned,
            }
        }
    }

    impl Vector for Model {
        type Mask = ModelMask;
        const OUTLINED: bool = true;

        #[inline(never)]
        fn splat(number: u64) -> Model {
            Model { numbers: [number; LANES], poisoned: false }
        }

        #[inline(never)]
        fn new(numbers: &[u64; LANES]) -> Model {
            Model { numbers: *numbers, poisoned: false }
        }

        #[inline(never)]
        fn reveal(self) -> [u64; LANES] {
            assert!(!self.poisoned, "a secret was revealed");
            self.numbers
        }

        #[inline(never)]
        fn add(self, other: Model) -> Model {
            self.zip(other, u64::wrapping_add)
        }

        #[inline(never)]
        fn sub(self, other: Model) -> Model {
            self.zip(other, u64::wrapping_sub)
        }

        #[inline(never)]
        fn and(self, other: Model) -> Model {
            self.zip(other, |a, b| a & b)
        }

        #[inline(never)]
        fn or(self, other: Model) -> Model {
            self.zip(other, |a, b| a | b)
        }

        #[inline(never)]
        fn xor(self, other: Model) -> Model {
            self.zip(other, |a, b| a ^ b)
        }

        #[inline(never)]
        fn andnot(self, other: Model) -> Model {
            self.zip(other, |a, b| !a & b)
        }

        #[inline(never)]
        fn shl<const BITS: u32>(self) -> Model {
            self.map(|a| a.checked_shl(BITS).unwrap_or(0))
        }

        #[inline(never)]
        fn shr<const BITS: u32>(self) -> Model {
            self.map(|a| a.checked_shr(BITS).unwrap_or(0))
        }

        #[inline(never)]
        fn sar<const BITS: u32>(self) -> Model {
            self.map(|a| ((a as i64) >> BITS.min(63)) as u64)
        }

        #[inline(never)]
        fn add32(self, other: Model) -> Model {
            self.zip(other, |a, b| halves(a, |a, at| a.wrapping_add((b >> at) as u32)))
        }

        #[inline(never)]
        fn shr32<const BITS: u32>(self) -> Model {
            self.map(|a| halves(a, |a, _| a.checked_shr(BITS).unwrap_or(0)))
        }

        #[inline(never)]
        fn ror<const BITS: i32>(self) -> Model {
            self.map(|a| a.rotate_right(BITS as u32))
        }

        #[inline(never)]
        fn ror32<const BITS: i32>(self) -> Model {
            self.map(|a| halves(a, |a, _| a.rotate_right(BITS as u32)))
        }

        #[inline(never)]
        fn mul_lo(self, a: Model, b: Model) -> Model {
            self.accumulate(a, b, |product| product as u64 & MASK52)
        }

        #[inline(never)]
        fn mul_hi(self, a: Model, b: Model) -> Model {
            self.accumulate(a, b, |product| (product >> 52) as u64)
        }

        #[inline(never)]
        fn swap_halves(self) -> Model {
            Model { numbers: std::array::from_fn(|lane| self.numbers[lane ^ 4]), ..self }
        }

        #[inline(never)]
        fn is_equal(self, other: Model) -> ModelMask {
            self.compare(other, |a, b| a == b)
        }

        #[inline(never)]
        fn is_less(self, other: Model) -> ModelMask {
            self.compare(other, |a, b| a < b)
        }

        #[inline(never)]
        fn choose(mask: ModelMask, yes: Model, no: Model) -> Model {
            let choice = |lane: usize| if mask.bits[lane] { yes.numbers[lane] } else { no.numbers[lane] };
            Model {
                numbers: std::array::from_fn(choice),
                poisoned: mask.poisoned | yes.poisoned | no.poisoned,
            }
        }

        #[inline(never)]
        fn pick(self, low: Model, high: Model) -> Model {
            let pick = |number: u64| {
                let at = number as usize & 15;
                if at < LANES { low.numbers[at] } else { high.numbers[at - LANES] }
            };
            Model { numbers: self.numbers.map(pick), poisoned: self.poisoned | low.poisoned | high.poisoned }
        }

        #[inline(never)]
        fn either(a: ModelMask, b: ModelMask) -> ModelMask {
            a.zip(b, |a, b| a | b)
        }

        #[inline(never)]
        fn both(a: ModelMask, b: ModelMask) -> ModelMask {
            a.zip(b, |a, b| a & b)
        }

        #[inline(never)]
        fn not(a: ModelMask) -> ModelMask {
            ModelMask { bits: a.bits.map(|bit| !bit), ..a }
        }

        #[inline(never)]
        fn reveal_mask(mask: ModelMask) -> u8 {
            assert!(!mask.poisoned, "a secret was revealed");
            (0..LANES).fold(0, |bits, lane| bits | u8::from(mask.bits[lane]) << lane)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::model::Model;
    use super::*;

    #[test]
    #[should_panic(expected = "a secret was revealed")]
    fn what_was_computed_from_a_secret_cannot_be_revealed() {
        let secret = Model::secret(&[1; LANES]);
        let public = Model::splat(7).mul_lo(Model::splat(2), Model::splat(3));
        assert_eq!(public.reveal(), [13; LANES]);
        Model::reveal_mask(public.add(secret).is_equal(public));
    }

    /// Every operation on the same awkward numbers; the results run together into one list.
    #[inline(always)]
    fn every_operation<V: Vector>(a: [u64; LANES], b: [u64; LANES]) -> Vec<u64> {
        let (a, b) = (V::new(&a), V::new(&b));
        let (less, equal) = (a.is_less(b), a.is_equal(b));
        let vectors = [
            a.add(b),
            a.sub(b),
            a.and(b),
            a.or(b),
            a.xor(b),
            a.andnot(b),
            a.shl::<13>(),
            a.shr::<52>(),
            a.sar::<12>(),
            a.add32(b),
            a.shr32::<7>(),
            a.ror::<19>(),
            a.ror32::<11>(),
            a.mul_lo(a, b),
            b.mul_hi(a, b),
            V::splat(9),
            a.swap_halves(),
            V::choose(less, a, b),
            a.pick(a, b),
        ];
        let masks = [less, equal, V::either(less, equal), V::both(less, equal), V::not(less)];
        let mut all: Vec<u64> = vectors.into_iter().flat_map(V::reveal).collect();
        all.extend(masks.map(|mask| u64::from(V::reveal_mask(mask))));
        all
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn on_ifma(a: [u64; LANES], b: [u64; LANES]) -> Vec<u64> {
        every_operation::<Ifma>(a, b)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    #[inline(never)]
    fn on_fma(a: [u64; LANES], b: [u64; LANES]) -> Vec<u64> {
        every_operation::<Fma>(a, b)
    }

    #[cfg(target_arch = "x86_64")]
    fn agrees_with_the_model(operations: impl Fn([u64; LANES], [u64; LANES]) -> Vec<u64>) {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            match state >> 61 {
                0 => 0,
                1 => u64::MAX,
                2 => MASK52,
                _ => state ^ (state >> 29),
            }
        };
        for _ in 0..1000 {
            let a: [u64; LANES] = std::array::from_fn(|_| next());
            let b: [u64; LANES] = std::array::from_fn(|lane| if lane == 3 { a[3] } else { next() });
            assert_eq!(operations(a, b), every_operation::<Model>(a, b));
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_model_computes_what_the_instructions_compute() {
        let cpu = crate::detect::Cpu::detect();
        match cpu.ifma512 {
            // SAFETY: the witness says that the instructions are there.
            Some(_) => agrees_with_the_model(|a, b| unsafe { on_ifma(a, b) }),
            None => println!("no AVX-512 IFMA here: not compared"),
        }
        match cpu.fma256 {
            // SAFETY: as above.
            Some(_) => agrees_with_the_model(|a, b| unsafe { on_fma(a, b) }),
            None => println!("no AVX2 and FMA here: not compared"),
        }
    }

    /// Factors at the ends of their range and next to where the rounding of a product turns, by themselves and by each other.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn parts_of_a_product_are_the_product_and_within_their_bounds() {
        #[target_feature(enable = "avx2,fma")]
        fn parts(a: u64, b: u64) -> (i64, i64) {
            let (mut low, mut high) = (fma::splat(fma::bias(1, 0)), fma::splat(fma::bias(0, 1)));
            fma::multiply(&mut low, &mut high, fma::factor(fma::splat(a)), fma::factor(fma::splat(b)));
            let [low, high] = [low, high].map(|half| Fma([half; 2]).reveal()[0].cast_signed());
            (low, high)
        }
        if crate::detect::Cpu::detect().fma256.is_none() {
            println!("no AVX2 and FMA here: not tested");
            return;
        }
        let mut factors = vec![0, MASK52, MASK52 - 1, 3, 5, 0x5_5555_5555_5555, 0xa_aaaa_aaaa_aaaa];
        // Products of powers of two lie at, and beside, the middle between two multiples of 2^52: a tie.
        for bit in 0..52 {
            factors.extend([1 << bit, (1 << bit) - 1, (1 << bit) + 1, MASK52 - (1 << bit)]);
        }
        let mut ties = 0;
        for &a in &factors {
            for &b in &factors {
                // SAFETY: the CPU has been asked.
                let (low, high) = unsafe { parts(a, b) };
                assert_eq!((i128::from(high) << 52) + i128::from(low), i128::from(a) * i128::from(b));
                assert!(low.abs() <= 1 << 51 && (0..1 << 52).contains(&high), "{a} {b}: {low} {high}");
                ties += u32::from(low.abs() == 1 << 51);
            }
        }
        assert!(ties > 50, "products in the middle were among them");
    }
}
