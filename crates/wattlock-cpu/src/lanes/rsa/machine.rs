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

/// The pieces for one instruction set: functions with its instructions enabled.
macro_rules! machine {
    ($module:ident, $vector:ty, $features:literal, $product:path, $square:path, $reduce:path) => {
        #[allow(unsafe_code)]
        mod $module {
            use super::{Block, Machine, Modulus, Number, mont};
            type V = $vector;

            #[inline(never)]
            #[target_feature(enable = $features)]
            fn product<const B: usize>(wide: &mut [Block<V>], a: &Number<V, B>, b: &Number<V, B>) {
                $product(wide, a, b);
            }

            #[inline(never)]
            #[target_feature(enable = $features)]
            fn square<const B: usize>(wide: &mut [Block<V>], a: &Number<V, B>) {
                $square(wide, a);
            }

            #[inline(never)]
            #[target_feature(enable = $features)]
            fn reduce<const B: usize>(
                out: &mut Number<V, B>,
                wide: &mut [Block<V>],
                modulus: &Modulus<V, B>,
            ) {
                $reduce(out, wide, modulus);
            }

            #[inline(never)]
            #[target_feature(enable = $features)]
            fn select<const B: usize>(
                out: &mut Number<V, B>,
                table: &[Number<V, B>],
                digit: V,
                block: usize,
            ) {
                mont::select(out, table, digit, block);
            }

            // SAFETY: 64 bytes of integers.
            unsafe impl Machine for V {
                #[inline(always)]
                fn product<const B: usize>(wide: &mut [Block<V>], a: &Number<V, B>, b: &Number<V, B>) {
                    // SAFETY: values of this type exist only where a witness proved these instructions.
                    unsafe { product(wide, a, b) }
                }

                #[inline(always)]
                fn square<const B: usize>(wide: &mut [Block<V>], a: &Number<V, B>) {
                    // SAFETY: as above.
                    unsafe { square(wide, a) }
                }

                #[inline(always)]
                fn reduce<const B: usize>(
                    out: &mut Number<V, B>,
                    wide: &mut [Block<V>],
                    modulus: &Modulus<V, B>,
                ) {
                    // SAFETY: as above.
                    unsafe { reduce(out, wide, modulus) }
                }

                #[inline(always)]
                fn select<const B: usize>(
                    out: &mut Number<V, B>,
                    table: &[Number<V, B>],
                    digit: V,
                    block: usize,
                ) {
                    // SAFETY: as above.
                    unsafe { select(out, table, digit, block) }
                }
            }
        }
    };
}

machine!(
    ifma,
    crate::lanes::vector::Ifma,
    "avx512f,avx512bw,avx512ifma",
    mont::product,
    mont::square,
    mont::reduce
);
machine!(
    fma,
    crate::lanes::vector::Fma,
    "avx2,fma",
    mont::fma::product,
    mont::fma::square,
    mont::fma::reduce
);
