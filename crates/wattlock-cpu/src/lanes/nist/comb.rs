//! The generator's multiples: for each window `j` of [`BITS`] bits, `i 2^(BITS j) G` for `i` from 1 to half the window's
//! range, so that a multiple of the generator is one addition a window and no doubling.
//!
//! The table is public; which entry a lane takes is not. A lookup reads a window's entries whole, into registers, and each
//! lane picks its own there.

use super::super::vector::model::Model;
use super::super::vector::{LANES, Vector};
use super::curve::Curve;
use super::field::to_montgomery;
use super::words::{gather, limbs_of};

/// Bits of a window.
pub const BITS: usize = 6;

/// Entries of a window: digits are signed.
pub const ENTRIES: usize = 1 << (BITS - 1);

/// Windows of a scalar of so many bits: a signed digit carries into one more bit.
pub const fn windows(bits: usize) -> usize {
    bits / BITS + 1
}

/// Registers that hold one limb of all a window's entries.
const REGISTERS: usize = ENTRIES / LANES;

/// Aligned to what a register loads.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Register([u64; LANES]);

/// A window's entries, affine and in Montgomery's form, below `p`: limb by limb, x then y.
#[derive(Clone, Copy)]
struct Window<const N: usize>([[[Register; REGISTERS]; N]; 2]);

/// A curve's table.
pub struct Comb<const N: usize>(Vec<Window<N>>);

impl<const N: usize> Comb<N> {
    /// From the multiples in order, windows one after another, as big-endian coordinates.
    pub fn new<C: Curve<N>>(multiples: &[[Vec<u8>; 2]]) -> Comb<N> {
        let window = |entries: &[[Vec<u8>; 2]]| Window([0, 1].map(|axis| column::<C, N>(entries, axis)));
        Comb(multiples.chunks_exact(ENTRIES).map(window).collect())
    }

    /// In each lane the entry for a digit of this magnitude; any entry for zero.
    #[inline(always)]
    pub fn pick<V: Vector>(&self, window: usize, magnitude: V) -> [[V; N]; 2] {
        let window = &self.0[window].0;
        let index = magnitude.sub(V::splat(1));
        let second = V::splat(0).is_less(index.and(V::splat(16)));
        let mut out = [[V::splat(0); N]; 2];
        for axis in 0..2 {
            for limb in 0..N {
                let of = &window[axis][limb];
                let low = index.pick(V::new(&of[0].0), V::new(&of[1].0));
                let high = index.pick(V::new(&of[2].0), V::new(&of[3].0));
                out[axis][limb] = V::choose(second, high, low);
            }
        }
        out
    }
}

/// One coordinate of a window, brought into Montgomery's form eight at a time.
fn column<C: Curve<N>, const N: usize>(affine: &[[Vec<u8>; 2]], axis: usize) -> [[Register; REGISTERS]; N] {
    let mut out = [[Register([0; LANES]); REGISTERS]; N];
    for register in 0..REGISTERS {
        let lanes: [[u64; N]; LANES] =
            std::array::from_fn(|lane| limbs_of(&affine[register * LANES + lane][axis], 0));
        let numbers = gather::<Model, N>(&lanes);
        let montgomery = to_montgomery::<C::Field, Model, N>(numbers);
        for limb in 0..N {
            out[limb][register] = Register(montgomery[limb].reveal());
        }
    }
    out
}
