//! Entries of the kernels: the generic code compiled with AVX-512 IFMA.

use super::comb::{self, Table};
use super::sound::undisturbed;
use super::{Batch, ladder, reveal, vectors};
use crate::detect::Ifma512;
use crate::lanes::bleach;
use crate::lanes::vector::{Ifma, Vector};

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

#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
#[inline(never)]
fn derive(batch: &mut Batch) {
    let points = vectors(&batch.points);
    let (results, sound) = ladder::multiply::<Ifma>(vectors(&batch.scalars), points, undisturbed::<Ifma>);
    (batch.results, batch.sound) = (reveal(results), Ifma::reveal_mask(sound));
}

#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
#[inline(never)]
fn generate(table: &Table, batch: &mut Batch) {
    let (results, sound) = comb::multiply::<Ifma>(table, vectors(&batch.scalars), undisturbed::<Ifma>);
    (batch.results, batch.sound) = (reveal(results), Ifma::reveal_mask(sound));
}

#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
#[inline(never)]
fn table() -> Table {
    Table::compute::<Ifma>()
}

// SAFETY of all that follow: the witness says that the CPU has the entry's instructions.

impl Entries for Ifma512 {
    fn derive(self, batch: &mut Batch) {
        // SAFETY: as above.
        unsafe { derive(batch) }
    }

    fn generate(self, table: &Table, batch: &mut Batch) {
        // SAFETY: as above.
        unsafe { generate(table, batch) }
    }

    fn table(self) -> Table {
        // SAFETY: as above.
        unsafe { table() }
    }

    /// 6.5 KB are in use.
    fn bleach(self) {
        bleach::<{ 8 << 10 }>();
    }
}
