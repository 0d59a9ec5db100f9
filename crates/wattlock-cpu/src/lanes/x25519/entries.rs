//! Entries of the kernels for each instruction set: the generic code compiled with those instructions.

use super::comb::{self, Table};
use super::sound::undisturbed;
use super::{Batch, ladder, reveal, vectors};
use crate::detect::{Fma256, Ifma512};
use crate::lanes::bleach;
use crate::lanes::vector::fma::toward_zero;
use crate::lanes::vector::{Fma, Ifma, Vector};

/// What a witness gives entry to.
pub(in crate::lanes) trait Entries: Copy {
    /// Products of each lane's scalar and point.
    fn derive(self, batch: &mut Batch);

    /// Products of each lane's scalar and the base point.
    fn generate(self, table: &Table, batch: &mut Batch);

    /// The base point's multiples.
    fn table(self) -> Table;

    /// [`bleach`] for the largest frames of these entries.
    fn bleach(self);
}

macro_rules! entries {
    ($module:ident, $vector:ty, $features:literal) => {
        mod $module {
            use super::*;

            #[target_feature(enable = $features)]
            #[inline(never)]
            pub fn derive(batch: &mut Batch) {
                let points = vectors(&batch.points);
                let (results, sound) =
                    ladder::multiply::<$vector>(vectors(&batch.scalars), points, undisturbed::<$vector>);
                (batch.results, batch.sound) = (reveal(results), <$vector>::reveal_mask(sound));
            }

            #[target_feature(enable = $features)]
            #[inline(never)]
            pub fn generate(table: &Table, batch: &mut Batch) {
                let (results, sound) =
                    comb::multiply::<$vector>(table, vectors(&batch.scalars), undisturbed::<$vector>);
                (batch.results, batch.sound) = (reveal(results), <$vector>::reveal_mask(sound));
            }

            #[target_feature(enable = $features)]
            #[inline(never)]
            pub fn table() -> Table {
                Table::compute::<$vector>()
            }
        }
    };
}

entries!(ifma, Ifma, "avx512f,avx512bw,avx512ifma");
entries!(fma, Fma, "avx2,fma");

// SAFETY of all that follow: the witness says that the CPU has the entry's instructions.

impl Entries for Ifma512 {
    fn derive(self, batch: &mut Batch) {
        // SAFETY: as above.
        unsafe { ifma::derive(batch) }
    }

    fn generate(self, table: &Table, batch: &mut Batch) {
        // SAFETY: as above.
        unsafe { ifma::generate(table, batch) }
    }

    fn table(self) -> Table {
        // SAFETY: as above.
        unsafe { ifma::table() }
    }

    /// 6.5 KB are in use.
    fn bleach(self) {
        bleach::<{ 8 << 10 }>();
    }
}

impl Entries for Fma256 {
    fn derive(self, batch: &mut Batch) {
        // SAFETY: as above.
        toward_zero(self, || unsafe { fma::derive(batch) });
    }

    fn generate(self, table: &Table, batch: &mut Batch) {
        // SAFETY: as above.
        toward_zero(self, || unsafe { fma::generate(table, batch) });
    }

    fn table(self) -> Table {
        // SAFETY: as above.
        toward_zero(self, || unsafe { fma::table() })
    }

    /// 18 KB are in use: half as many registers of half the width.
    fn bleach(self) {
        bleach::<{ 20 << 10 }>();
    }
}
