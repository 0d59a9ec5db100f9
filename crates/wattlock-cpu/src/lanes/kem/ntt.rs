//! Polynomials modulo `X^256 + 1` over the integers modulo 3329, and their number-theoretic transform (FIPS 203 section 4.3).
//!
//! A polynomial lies across eight vectors of 32 coefficients. Layers whose partners are 32 or more apart are between
//! vectors; for the others [`Shorts::exchange`] brings partners to the same place of two vectors first, and back after the
//! last. Products are Montgomery's (Montgomery 1985) with `R = 2^16`, signed: results are between -3329 and 3329, exclusive.
//! Transformed polynomials are in the standard's order, so that they can be encoded and sampled as they are.
//!
//! *Bounds.* Written at each function, in units of the modulus `q`; a number of 16 bits holds 9.8 of them.

use crate::lanes::vector::shorts::{Poly, Row, SHORTS, Shorts};

/// The modulus.
pub const Q: i16 = 3329;
/// Its inverse modulo 2^16.
const Q_INVERSE: i16 = 62209u16 as i16;

/// A constant and its product with [`Q_INVERSE`], which Montgomery multiplication needs, for each lane.
struct Factors {
    by: Row,
    low: Row,
}

/// `17^power * 2^16` modulo q, between -q/2 and q/2.
const fn zeta(power: usize) -> i16 {
    let (mut value, mut i) = ((1 << 16) % Q as i64, 0);
    while i < power {
        value = value * 17 % Q as i64;
        i += 1;
    }
    if value > Q as i64 / 2 { (value - Q as i64) as i16 } else { value as i16 }
}

/// `zetas` of FIPS 203 appendix A: powers of 17 in bit-reversed order.
const ZETAS: [i16; 128] = {
    let (mut out, mut k) = ([0; 128], 0usize);
    while k < 128 {
        out[k] = zeta(k.reverse_bits() >> (usize::BITS - 7));
        k += 1;
    }
    out
};

const fn low(by: i16) -> i16 {
    by.wrapping_mul(Q_INVERSE)
}

/// Where coefficients lie in two vectors that hold numbers `64 * pair` to `64 * pair + 63`, after exchanges of blocks of 16
/// down to `len`.
const fn places(pair: usize, len: usize) -> [[usize; SHORTS]; 2] {
    let (mut at, mut i) = ([[0; SHORTS]; 2], 0);
    while i < SHORTS {
        at[0][i] = 64 * pair + i;
        at[1][i] = 64 * pair + SHORTS + i;
        i += 1;
    }
    let mut block = 16;
    while block >= len {
        let (before, mut i) = (at, 0);
        while i < SHORTS {
            let second = i / block % 2 == 1;
            at[0][i] = if second { before[1][i - block] } else { before[0][i] };
            at[1][i] = if second { before[1][i] } else { before[0][i + block] };
            i += 1;
        }
        block /= 2;
    }
    at
}

/// The factors of a layer whose partners are `len` apart, for four pairs of vectors: forward, or of the way back, on which
/// FIPS 203 algorithm 10 takes them from the end.
const fn layer(len: usize, back: bool) -> [Factors; 4] {
    let mut out = [const { Factors { by: [0; SHORTS], low: [0; SHORTS] } }; 4];
    let mut pair = 0;
    while pair < 4 {
        let (at, mut i) = (places(pair, len), 0);
        while i < SHORTS {
            let (blocks, block) = (128 / len, at[0][i] / (2 * len));
            let by = ZETAS[if back { 2 * blocks - 1 - block } else { blocks + block }];
            out[pair].by[i] = by;
            out[pair].low[i] = low(by);
            i += 1;
        }
        pair += 1;
    }
    out
}

static FORWARD: [[Factors; 4]; 4] = [layer(16, false), layer(8, false), layer(4, false), layer(2, false)];
static BACK: [[Factors; 4]; 4] = [layer(16, true), layer(8, true), layer(4, true), layer(2, true)];

/// Of each pair of coefficients, 1 and the root of unity by which the product's upper parts come down (FIPS 203 algorithm
/// 12), the former as what Montgomery multiplication takes for it.
static ROOTS: [Factors; 8] = {
    let mut out = [const { Factors { by: [0; SHORTS], low: [0; SHORTS] } }; 8];
    let mut i = 0;
    while i < 256 {
        // 17^(2 * reversed + 1): with a sign, the zetas of the last layer.
        let pair: usize = i / 2;
        let root = if pair.is_multiple_of(2) { ZETAS[64 + pair / 2] } else { -ZETAS[64 + pair / 2] };
        let by = if i % 2 == 0 { zeta(0) } else { root };
        out[i / SHORTS].by[i % SHORTS] = by;
        out[i / SHORTS].low[i % SHORTS] = low(by);
        i += 1;
    }
    out
};

/// `a * b / 2^16`, below q: `a` any number, `b` below q, `b_low` its product with [`Q_INVERSE`].
#[inline(always)]
fn montgomery<V: Shorts>(a: V, b: V, b_low: V) -> V {
    a.mul_hi16(b).sub16(a.mul_lo16(b_low).mul_hi16(V::splat16(Q)))
}

#[inline(always)]
fn times<V: Shorts>(a: V, by: i16) -> V {
    montgomery(a, V::splat16(by), V::splat16(low(by)))
}

/// The same modulo q, at most 0.7 q: `x - q * round(10 x / 2^15)`, and 2^15 / 10 is 1.6 % less than q (Barrett 1986).
#[inline(always)]
fn barrett<V: Shorts>(x: V) -> V {
    x.sub16(x.mul_round16(V::splat16(10)).mul_lo16(V::splat16(Q)))
}

/// The same modulo q, from 0 to q - 1, of any number: `x - q * floor(20159 x / 2^26)` is from 0 to q.
#[inline(always)]
pub fn canonical<V: Shorts>(x: V) -> V {
    let q = V::splat16(Q);
    let x = x.sub16(x.mul_hi16(V::splat16(20159)).sar16::<10>().mul_lo16(q)).sub16(q);
    x.add16(x.sar16::<15>().and(q))
}

/// Times 2^32 / 128 modulo q, below q.
#[inline(always)]
fn finished<V: Shorts>(x: V) -> V {
    times(x, 1441)
}

/// One butterfly of Cooley and Tukey.
#[inline(always)]
fn forward<V: Shorts>(a: V, b: V, by: V, by_low: V) -> (V, V) {
    let b = montgomery(b, by, by_low);
    (a.add16(b), a.sub16(b))
}

/// One of Gentleman and Sande.
#[inline(always)]
fn back<V: Shorts>(a: V, b: V, by: V, by_low: V) -> (V, V) {
    (a.add16(b), montgomery(b.sub16(a), by, by_low))
}

/// A function of each vector. (What takes closures is not always inlined, and then lacks the entry's instructions.)
macro_rules! each {
    ($poly:expr, $function:expr) => {
        for x in $poly.iter_mut() {
            *x = $function(*x);
        }
    };
}
pub(super) use each;

/// A layer between vectors `apart` vectors from each other.
macro_rules! between {
    ($poly:ident $butterfly:ident, $($a:literal $b:literal by $zeta:literal),*) => {$({
        let by = ZETAS[$zeta];
        ($poly[$a], $poly[$b]) = $butterfly($poly[$a], $poly[$b], V::splat16(by), V::splat16(low(by)));
    })*};
}

#[inline(always)]
fn exchanged<V: Shorts, const LEN: usize>(poly: &mut Poly<V>) {
    (poly[0], poly[1]) = V::exchange::<LEN>(poly[0], poly[1]);
    (poly[2], poly[3]) = V::exchange::<LEN>(poly[2], poly[3]);
    (poly[4], poly[5]) = V::exchange::<LEN>(poly[4], poly[5]);
    (poly[6], poly[7]) = V::exchange::<LEN>(poly[6], poly[7]);
}

/// A layer within vectors, whose partners lie in the same places of two.
macro_rules! within {
    ($poly:ident $butterfly:ident $factors:expr) => {
        within!($poly $butterfly $factors, 0 0 1, 1 2 3, 2 4 5, 3 6 7)
    };
    ($poly:ident $butterfly:ident $factors:expr, $($pair:literal $a:literal $b:literal),*) => {$({
        let Factors { by, low } = &$factors[$pair];
        ($poly[$a], $poly[$b]) = $butterfly($poly[$a], $poly[$b], V::row(by), V::row(low));
    })*};
}

/// The transform (FIPS 203 algorithm 9) of coefficients of at most 2.7 q; the result is at most 0.7 q.
#[inline(always)]
pub fn ntt<V: Shorts>(poly: &mut Poly<V>) {
    let mut p = *poly;
    between!(p forward, 0 4 by 1, 1 5 by 1, 2 6 by 1, 3 7 by 1);
    between!(p forward, 0 2 by 2, 1 3 by 2, 4 6 by 3, 5 7 by 3);
    between!(p forward, 0 1 by 4, 2 3 by 5, 4 5 by 6, 6 7 by 7);
    exchanged::<V, 16>(&mut p);
    within!(p forward FORWARD[0]);
    exchanged::<V, 8>(&mut p);
    within!(p forward FORWARD[1]);
    exchanged::<V, 4>(&mut p);
    within!(p forward FORWARD[2]);
    exchanged::<V, 2>(&mut p);
    within!(p forward FORWARD[3]);
    // Each layer added q at most.
    each!(p, barrett);
    exchanged::<V, 2>(&mut p);
    exchanged::<V, 4>(&mut p);
    exchanged::<V, 8>(&mut p);
    exchanged::<V, 16>(&mut p);
    *poly = p;
}

/// The way back (FIPS 203 algorithm 10) of coefficients below q, which are what [`Sum::reduced`] gives: multiplied by 2^16, so
/// that the product of two transforms comes out right. The result is below q.
#[inline(always)]
pub fn inverse<V: Shorts>(poly: &mut Poly<V>) {
    let mut p = *poly;
    exchanged::<V, 16>(&mut p);
    exchanged::<V, 8>(&mut p);
    exchanged::<V, 4>(&mut p);
    exchanged::<V, 2>(&mut p);
    // Sums double: q, 2 q, 4 q, 8 q; products are below q whatever came.
    within!(p back BACK[3]);
    exchanged::<V, 2>(&mut p);
    within!(p back BACK[2]);
    exchanged::<V, 4>(&mut p);
    within!(p back BACK[1]);
    exchanged::<V, 8>(&mut p);
    each!(p, barrett);
    within!(p back BACK[0]);
    exchanged::<V, 16>(&mut p);
    between!(p back, 0 1 by 7, 2 3 by 6, 4 5 by 5, 6 7 by 4);
    between!(p back, 0 2 by 3, 1 3 by 3, 4 6 by 2, 5 7 by 2);
    each!(p, barrett);
    between!(p back, 0 4 by 1, 1 5 by 1, 2 6 by 1, 3 7 by 1);
    each!(p, finished);
    *poly = p;
}

/// Multiplies by 2^16, which a product of transforms lacks: below q.
#[inline(always)]
pub fn lifted<V: Shorts>(x: V) -> V {
    // 2^32 modulo q.
    times(x, 1353)
}

/// A transform that others are multiplied by: as it is, and with its upper parts times the roots.
#[derive(Clone, Copy)]
pub struct Operand<V> {
    plain: Poly<V>,
    rooted: Poly<V>,
}

impl<V: Shorts> Operand<V> {
    /// Of a transform of at most 0.7 q.
    #[inline(always)]
    pub fn new(poly: &Poly<V>) -> Operand<V> {
        let mut rooted = *poly;
        for (x, Factors { by, low }) in rooted.iter_mut().zip(&ROOTS) {
            *x = montgomery(*x, V::row(by), V::row(low));
        }
        Operand { plain: *poly, rooted }
    }

    /// The transform.
    #[inline(always)]
    pub fn plain(&self) -> &Poly<V> {
        &self.plain
    }

    /// Of nothing.
    #[inline(always)]
    pub fn zero() -> Operand<V> {
        Operand { plain: [V::splat(0); 8], rooted: [V::splat(0); 8] }
    }
}

/// A sum of products of transforms (FIPS 203 algorithms 11 and 12): lower and upper parts, in words of 32 bits.
#[derive(Clone, Copy)]
pub struct Sum<V> {
    lower: Poly<V>,
    upper: Poly<V>,
}

impl<V: Shorts> Sum<V> {
    /// Of nothing.
    #[inline(always)]
    pub fn new() -> Sum<V> {
        Sum { lower: [V::splat(0); 8], upper: [V::splat(0); 8] }
    }

    /// Adds a product. `a` is from 0 to 4095: each adds at most 2 * 4095 * q = 2^24.7.
    #[inline(always)]
    pub fn add(&mut self, at: usize, a: V, b: &Operand<V>) {
        self.lower[at] = self.lower[at].add32(a.pair_sums(b.rooted[at]));
        self.upper[at] = self.upper[at].add32(a.pair_sums(b.plain[at].ror32::<16>()));
    }

    /// The sum divided by 2^16, below q: of at most three products, which are below 2^15 q together.
    #[inline(always)]
    pub fn reduced(&self) -> Poly<V> {
        let mut out = self.lower;
        for (x, upper) in out.iter_mut().zip(&self.upper) {
            *x = divided(*x).shr32::<16>().or(divided(*upper));
        }
        out
    }
}

/// Words of 32 bits divided by 2^16 modulo q: the result is the upper half, the lower one is 0.
#[inline(always)]
fn divided<V: Shorts>(x: V) -> V {
    let (modulus, inverse) = (V::splat(0x1_0000_0001 * (-Q as u16 as u64)), V::splat16(Q_INVERSE));
    x.add32(x.mul_lo16(inverse).pair_sums(modulus))
}
