//! The large pieces as entries of their own: each is compiled once for a machine and a size, not wherever it is used.

use super::mont::{self, Block, Modulus, Number};
use crate::lanes::vector::{Vector, model::Model};

/// A vector type with the arithmetic of [`mont`] ready to call.
///
/// # Safety
/// The type is plain data: it owns nothing, and zero bytes are a value of it.
#[allow(unsafe_code)]
pub(super) unsafe trait Machine: Vector {
    /// [`mont::product`].
    fn product<const B: usize>(wide: &mut [Block<Self>], a: &Number<Self, B>, b: &Number<Self, B>);

    /// [`mont::square`].
    fn square<const B: usize>(wide: &mut [Block<Self>], a: &Number<Self, B>);

    /// [`mont::reduce`].
    fn reduce<const B: usize>(
        out: &mut Number<Self, B>,
        wide: &mut [Block<Self>],
        modulus: &Modulus<Self, B>,
    );

    /// [`mont::select`].
    fn select<const B: usize>(
        out: &mut Number<Self, B>,
        table: &[Number<Self, B>],
        digit: Self,
        block: usize,
    );
}

#[allow(unsafe_code)]
// SAFETY: integers and a truth value.
unsafe impl Machine for Model {
    #[inline(never)]
    fn product<const B: usize>(wide: &mut [Block<Model>], a: &Number<Model, B>, b: &Number<Model, B>) {
        mont::product(wide, a, b);
    }

    #[inline(never)]
    fn square<const B: usize>(wide: &mut [Block<Model>], a: &Number<Model, B>) {
        mont::square(wide, a);
    }

    #[inline(never)]
    fn reduce<const B: usize>(
        out: &mut Number<Model, B>,
        wide: &mut [Block<Model>],
        modulus: &Modulus<Model, B>,
    ) {
        mont::reduce(out, wide, modulus);
    }

    #[inline(never)]
    fn select<const B: usize>(
        out: &mut Number<Model, B>,
        table: &[Number<Model, B>],
        digit: Model,
        block: usize,
    ) {
        mont::select(out, table, digit, block);
    }
}

#[allow(unsafe_code)]
mod ifma {
    use super::{Block, Machine, Modulus, Number, mont};
    use crate::lanes::vector::Ifma;

    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
    fn product<const B: usize>(wide: &mut [Block<Ifma>], a: &Number<Ifma, B>, b: &Number<Ifma, B>) {
        mont::product(wide, a, b);
    }

    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
    fn square<const B: usize>(wide: &mut [Block<Ifma>], a: &Number<Ifma, B>) {
        mont::square(wide, a);
    }

    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
    fn reduce<const B: usize>(
        out: &mut Number<Ifma, B>,
        wide: &mut [Block<Ifma>],
        modulus: &Modulus<Ifma, B>,
    ) {
        mont::reduce(out, wide, modulus);
    }

    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
    fn select<const B: usize>(
        out: &mut Number<Ifma, B>,
        table: &[Number<Ifma, B>],
        digit: Ifma,
        block: usize,
    ) {
        mont::select(out, table, digit, block);
    }

    // SAFETY: 64 bytes of integers.
    unsafe impl Machine for Ifma {
        #[inline(always)]
        fn product<const B: usize>(wide: &mut [Block<Ifma>], a: &Number<Ifma, B>, b: &Number<Ifma, B>) {
            // SAFETY: values of `Ifma` exist only where a witness proved these instructions.
            unsafe { product(wide, a, b) }
        }

        #[inline(always)]
        fn square<const B: usize>(wide: &mut [Block<Ifma>], a: &Number<Ifma, B>) {
            // SAFETY: as above.
            unsafe { square(wide, a) }
        }

        #[inline(always)]
        fn reduce<const B: usize>(
            out: &mut Number<Ifma, B>,
            wide: &mut [Block<Ifma>],
            modulus: &Modulus<Ifma, B>,
        ) {
            // SAFETY: as above.
            unsafe { reduce(out, wide, modulus) }
        }

        #[inline(always)]
        fn select<const B: usize>(
            out: &mut Number<Ifma, B>,
            table: &[Number<Ifma, B>],
            digit: Ifma,
            block: usize,
        ) {
            // SAFETY: as above.
            unsafe { select(out, table, digit, block) }
        }
    }
}
