//! Entries of the kernels for AVX-512 IFMA: the generic code compiled with those instructions.

use super::comb::{self, Table};
use super::{Batch, ladder, reveal, vectors};
use crate::detect::Ifma512;
use crate::lanes::vector::Ifma;

/// Products of each lane's scalar and point.
pub(super) fn derive(_: Ifma512, batch: &mut Batch) {
    // SAFETY: the witness says that the CPU has these instructions.
    unsafe { derive_entry(batch) }
}

/// Products of each lane's scalar and the base point.
pub(super) fn generate(_: Ifma512, table: &Table, batch: &mut Batch) {
    // SAFETY: the witness says that the CPU has these instructions.
    unsafe { generate_entry(table, batch) }
}

/// The base point's multiples.
pub(super) fn table(_: Ifma512) -> Table {
    // SAFETY: the witness says that the CPU has these instructions.
    unsafe { table_entry() }
}

#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn derive_entry(batch: &mut Batch) {
    batch.results = reveal(ladder::multiply::<Ifma>(vectors(&batch.scalars), vectors(&batch.points)));
}

#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn generate_entry(table: &Table, batch: &mut Batch) {
    batch.results = reveal(comb::multiply::<Ifma>(table, vectors(&batch.scalars)));
}

#[target_feature(enable = "avx512f,avx512bw,avx512ifma")]
fn table_entry() -> Table {
    Table::compute::<Ifma>()
}
