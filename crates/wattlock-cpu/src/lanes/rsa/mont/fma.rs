//! The parent's product, square and reduction on two registers of four lanes ([`crate::lanes::vector::fma`]), each half for
//! itself.
//!
//! A CPU with AVX2 has sixteen registers. So the unit is not a block of ten limbs but a *tile*: two limbs times two
//! limbs, four products that fall into four columns, two of which the next tile of the same sum shares. A sum of tiles
//! `i + j = k` keeps its columns in registers; then two columns are complete and the window moves up by two.
//!
//! A product falls into a high part and a signed low part there. So columns hold other numbers than the parent's, for the same
//! sum. They are signed, modulo 2^64, and until they leave a window they have a bias for each product, which is taken off
//! ([`Biases`]).
//!
//! *Bounds.* Of a product of numbers of `n` limbs, a column takes at most `n` low parts, each from -2^51 to 2^51, and `n` high
//! parts, each from 0 to 2^52: it lies between `-n 2^51` and `3 n 2^51`, and so does one of a square. The reduction adds as
//! much again and the last quotient's parts. Of a sum of two products a complete column therefore lies between
//! `-(3 n + 1) 2^51` and `(9 n + 3) 2^51`: for `n <= 80` above `-121 2^52` and below `362 2^52`.
//!
//! *Carries* of a reduction are unsigned shifts all the same, because each column has [`LIFT`] more as a multiple of 2^52 and
//! the next column so much less: `128 2^52 - 128` and a carry below 2^9 keep it above zero and below `491 2^52 < 2^61`. The
//! lifts cost nothing, since they are in the constants that take off the biases; the low 52 bits of a column are what they
//! were. The topmost column's carry would be the lift alone, and is dropped.

use super::{Block, MARGIN, Modulus, Number, T};
use crate::lanes::vector::fma::{Factor, Fma, Half, add, bias, factor, multiply, shr, splat};

/// A number's factors, two by two.
type Factors<const B: usize> = [[[Factor; 2]; T / 2]; B];

/// A number for each column.
type Columns<const B: usize> = [[u64; 2 * T]; B];

/// What a column of a reduction has more as a multiple of 2^52, and the column above it less.
const LIFT: u64 = 128;

/// What takes the biases off columns that all their products have come to.
struct Biases<const B: usize>;

impl<const B: usize> Biases<B> {
    /// Of a product.
    const PRODUCT: Columns<B> = Self::of(1, 0);
    /// Of the products of different limbs, each pair once.
    const ONCE: Columns<B> = Self::of(2, 0);
    /// Of quotients times a modulus, one column further up than a product; with the lifts.
    const REDUCTION: Columns<B> = Self::lifted(Self::of(1, 1));

    /// If each column has the low parts of a `part` of its pairs of limbs, and all is `further` up.
    const fn of(part: usize, further: usize) -> Columns<B> {
        let (mut biases, mut column) = ([[0; 2 * T]; B], further);
        while column < 2 * T * B {
            let below = if column == further { 0 } else { pairs(T * B, column - further - 1) };
            biases[column / (2 * T)][column % (2 * T)] =
                bias(pairs(T * B, column - further) / part, below / part);
            column += 1;
        }
        biases
    }

    const fn lifted(mut biases: Columns<B>) -> Columns<B> {
        let mut column = 0;
        while column < 2 * T * B {
            let from_below = if column == 0 { 0 } else { LIFT };
            let to = &mut biases[column / (2 * T)][column % (2 * T)];
            *to = to.wrapping_add(LIFT << 52).wrapping_sub(from_below);
            column += 1;
        }
        biases
    }
}

/// How many products of limbs of two numbers of `n` limbs have their low parts in column `column`.
const fn pairs(n: usize, column: usize) -> usize {
    if column < n { column + 1 } else { (2 * n - 1).saturating_sub(column) }
}

/// The factors of a raw number.
#[inline(always)]
fn factors<const B: usize>(factors: &mut Factors<B>, number: &Number<Fma, B>, half: usize) {
    for (to, block) in factors.iter_mut().zip(number) {
        for pair in 0..T / 2 {
            to[pair] = [factor(block[2 * pair].0[half]), factor(block[2 * pair + 1].0[half])];
        }
    }
}

#[inline(always)]
fn none<const B: usize>() -> Factors<B> {
    [[[factor(splat(0)); 2]; T / 2]; B]
}

/// Four columns. A tile has two limbs times two limbs, those for the second limb given apart.
struct Window([Half; 4]);

impl Window {
    #[inline(always)]
    fn new() -> Window {
        Window([splat(0); 4])
    }

    #[inline(always)]
    fn tile(&mut self, [a, b]: [Factor; 2], by: [Factor; 2], by_second: [Factor; 2]) {
        let [z0, z1, z2, z3] = &mut self.0;
        multiply(z0, z1, a, by[0]);
        multiply(z1, z2, a, by[1]);
        multiply(z1, z2, b, by_second[0]);
        multiply(z2, z3, b, by_second[1]);
    }

    /// Tiles `i` of `a` with those of `b` from the last to the first; as many as both have.
    #[inline(always)]
    fn tiles(&mut self, a: &[[Factor; 2]], b: &[[Factor; 2]]) {
        for (a, b) in a.iter().zip(b.iter().rev()) {
            self.tile(*a, *b, *b);
        }
    }

    /// The two lower columns, complete; the window moves up.
    #[inline(always)]
    fn take(&mut self) -> [Half; 2] {
        let [z0, z1, z2, z3] = self.0;
        self.0 = [z2, z3, splat(0), splat(0)];
        [z0, z1]
    }
}

/// `wide = a b`, as columns.
#[inline(always)]
pub(in super::super) fn product<const B: usize>(
    wide: &mut [Block<Fma>],
    a: &Number<Fma, B>,
    b: &Number<Fma, B>,
) {
    let wide = &mut wide.as_flattened_mut()[..2 * T * B];
    let biases = const { &Biases::<B>::PRODUCT }.as_flattened();
    let (mut of_a, mut of_b) = (none::<B>(), none::<B>());
    for half in 0..2 {
        factors(&mut of_a, a, half);
        factors(&mut of_b, b, half);
        let (a, b) = (of_a.as_flattened(), of_b.as_flattened());
        let (tiles, mut z) = (a.len(), Window::new());
        for (k, (two, excess)) in wide.as_chunks_mut().0.iter_mut().zip(biases.as_chunks::<2>().0).enumerate()
        {
            if k < tiles {
                z.tiles(&a[..k + 1], &b[..k + 1]);
            } else {
                z.tiles(&a[k + 1 - tiles..], &b[k + 1 - tiles..]);
            }
            put(two, half, z.take(), excess);
        }
    }
}

/// Two complete columns without their biases.
#[inline(always)]
fn put(to: &mut [Fma; 2], half: usize, [even, odd]: [Half; 2], excess: &[u64; 2]) {
    to[0].0[half] = add(even, splat(excess[0]));
    to[1].0[half] = add(odd, splat(excess[1]));
}

/// `wide = a a`, as columns.
#[inline(always)]
pub(in super::super) fn square<const B: usize>(wide: &mut [Block<Fma>], a: &Number<Fma, B>) {
    let wide = &mut wide.as_flattened_mut()[..2 * T * B];
    let biases = const { &Biases::<B>::ONCE }.as_flattened();
    let mut of_a = none::<B>();
    for half in 0..2 {
        factors(&mut of_a, a, half);
        let a = of_a.as_flattened();
        let (tiles, mut z) = (a.len(), Window::new());
        for (k, (two, excess)) in wide.as_chunks_mut().0.iter_mut().zip(biases.as_chunks::<2>().0).enumerate()
        {
            let (first, middle) = ((k + 1).saturating_sub(tiles), k.div_ceil(2));
            let limbs = a[k / 2];
            z.tiles(&a[first..middle], &a[k / 2 + 1..k + 1 - first]);
            if k % 2 == 0 {
                let [_, z1, z2, _] = &mut z.0;
                multiply(z1, z2, limbs[0], limbs[1]);
            }
            // Twice what is there, and the square of one limb, whose low part comes to the even column.
            let [even, odd] = z.take();
            let (even, odd) = (add(even, splat(excess[0])), add(odd, splat(excess[1])));
            let (mut even, mut odd) = (add(even, even), add(odd, odd));
            multiply(&mut even, &mut odd, limbs[k % 2], limbs[k % 2]);
            put(two, half, [even, odd], &[bias(1, 0), bias(0, 1)]);
        }
    }
}

/// `out = wide / R` modulo N, raw, below `wide / R + 2 N`, by the parent's steps.
#[inline(always)]
pub(in super::super) fn reduce<const B: usize>(
    out: &mut Number<Fma, B>,
    wide: &[Block<Fma>],
    modulus: &Modulus<Fma, B>,
) {
    // Column 2 k + 1 and the one above it are in pair k of `wide` and of `biases`.
    let wide = &wide[..2 * B + MARGIN].as_flattened()[..2 * T * B];
    let biases = const { &Biases::<B>::REDUCTION }.as_flattened();
    let out = out.as_flattened_mut();
    let (mut of_friendly, mut of_upper, mut quotients) = (none::<B>(), none::<B>(), none::<B>());
    for half in 0..2 {
        factors(&mut of_friendly, &modulus.friendly, half);
        factors(&mut of_upper, &modulus.upper, half);
        let (friendly, upper) = (of_friendly.as_flattened(), of_upper.as_flattened());
        let quotients = quotients.as_flattened_mut();
        let tiles = quotients.len();
        // A quotient of column c times limb j comes to columns c + j + 1 and c + j + 2. So the window begins one column above
        // `lowest`, which is 2 k.
        let (mut lowest, mut z) = (add(wide[0].0[half], splat(biases[0])), Window::new());
        for k in 0..tiles {
            bring(&mut z, &wide[2 * k + 1..2 * k + 3], &biases[2 * k + 1..2 * k + 3], half);
            z.tiles(&quotients[..k], &friendly[1..k + 1]);
            let (first, by) = (factor(lowest), friendly[0]);
            let [z0, z1, z2, z3] = &mut z.0;
            *z0 = add(*z0, shr::<52>(lowest));
            multiply(z0, z1, first, by[0]);
            let second = if k < tiles - 1 {
                let second = factor(*z0);
                *z1 = add(*z1, shr::<52>(*z0));
                multiply(z1, z2, second, by[0]);
                multiply(z1, z2, first, by[1]);
                multiply(z2, z3, second, by[1]);
                second
            } else {
                // The last quotient is an ordinary one.
                multiply(z1, z2, first, by[1]);
                let (mut q, mut unused) = (splat(bias(1, 0)), splat(0));
                multiply(&mut q, &mut unused, factor(*z0), factor(modulus.factor.0[half]));
                let (q, number) = (factor(q), factor(modulus.number[0][0].0[half]));
                let (mut cleared, mut high) = (add(*z0, splat(bias(1, 0))), splat(bias(0, 1)));
                multiply(&mut cleared, &mut high, q, number);
                *z1 = add(add(*z1, high), shr::<52>(cleared));
                multiply(z1, z2, q, upper[0][0]);
                multiply(z2, z3, q, upper[0][1]);
                q
            };
            quotients[k] = [first, second];
            [_, lowest] = z.take();
        }
        for k in tiles..2 * tiles {
            bring(&mut z, &wide[2 * k + 1..], &biases[2 * k + 1..], half);
            let from = k + 1 - tiles;
            if let Some((last, others)) = quotients[from..].split_last() {
                z.tile(*last, friendly[from], upper[from]);
                z.tiles(others, &friendly[from + 1..]);
            }
            let to = 2 * k - 2 * tiles;
            let [above, next] = z.take();
            out[to].0[half] = lowest;
            let above = add(above, shr::<52>(lowest));
            out[to + 1].0[half] = above;
            lowest = add(next, shr::<52>(above));
        }
    }
}

/// Brings the two next columns into a reduction's window, less the biases that all their products will have brought. The
/// second may be absent: above the last column of all nothing is asked for.
#[inline(always)]
fn bring(z: &mut Window, wide: &[Fma], biases: &[u64], half: usize) {
    let [z0, z1, ..] = &mut z.0;
    *z0 = add(*z0, add(wide[0].0[half], splat(biases[0])));
    if let (Some(second), Some(bias)) = (wide.get(1), biases.get(1)) {
        *z1 = add(*z1, add(second.0[half], splat(*bias)));
    }
}
