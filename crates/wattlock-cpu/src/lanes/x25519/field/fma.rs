//! The field's larger pieces on two registers of four lanes ([`crate::lanes::vector::fma`]): each half is done for itself,
//! its limbs made factors first. Column by column, since a column's two sums and the factors at hand are all that sixteen
//! registers hold.
//!
//! The bounds are the parent's: columns hold the same numbers. While biases are in them they are those numbers modulo 2^64.

use super::{Columns, FOLD, LIMBS, MASK47, Machine, Operand, Rows};
use crate::lanes::vector::fma::{Factor, Fma, Half, add, bias, factor, multiply, shr, splat};

/// One half's limbs.
type Limbs = [Half; LIMBS];

/// Columns of a product.
type Wide = [Half; 2 * LIMBS];

/// Number `half` of the halves.
#[inline(always)]
fn half_of(vectors: &[Fma; LIMBS], half: usize) -> Limbs {
    let [a, b, c, d, e] = vectors;
    [a.0[half], b.0[half], c.0[half], d.0[half], e.0[half]]
}

#[inline(always)]
fn factors([a, b, c, d, e]: Limbs) -> [Factor; LIMBS] {
    [factor(a), factor(b), factor(c), factor(d), factor(e)]
}

/// Both halves together. (No closures here: a closure is compiled without the instructions of the entry that it is for.)
#[inline(always)]
fn whole([a, b, c, d, e]: Limbs, [f, g, h, i, j]: Limbs) -> [Fma; LIMBS] {
    [Fma([a, f]), Fma([b, g]), Fma([c, h]), Fma([d, i]), Fma([e, j])]
}

/// Low halves of products that come to column `k` of a product of all pairs; as many high halves come to column `k + 1`.
const fn pairs(k: usize) -> usize {
    if k < LIMBS { k + 1 } else { 2 * LIMBS - 1 - k }
}

/// Products in column `k` of different limbs, each pair once.
const fn different(k: usize) -> usize {
    pairs(k) / 2
}

/// What takes the biases off each column, if column `k` gets the low halves of `count(k)` products.
macro_rules! biases {
    ($count:ident) => {{
        const BIASES: [u64; 2 * LIMBS] = {
            let mut biases = [0; 2 * LIMBS];
            let mut k = 0;
            while k < 2 * LIMBS {
                let low = if k < 2 * LIMBS - 1 { $count(k) } else { 0 };
                biases[k] = bias(low, if k > 0 { $count(k - 1) } else { 0 });
                k += 1;
            }
            biases
        };
        let mut z: Wide = [splat(0); 2 * LIMBS];
        for k in 0..2 * LIMBS {
            z[k] = splat(BIASES[k]);
        }
        z
    }};
}

/// The products of column `k`: limbs `i` of `a` and `k - i` of `b`.
#[inline(always)]
fn column(z: &mut Wide, k: usize, a: &[Factor; LIMBS], b: &[Factor; LIMBS], different: bool) {
    let (mut low, mut high) = (z[k], z[k + 1]);
    for i in 0..LIMBS {
        if i <= k && k - i < LIMBS && (!different || i < k - i) {
            multiply(&mut low, &mut high, a[i], b[k - i]);
        }
    }
    (z[k], z[k + 1]) = (low, high);
}

/// Columns 5 to 9 onto 0 to 4.
#[inline(always)]
fn fold(mut z: Wide) -> Limbs {
    let by = factor(splat(FOLD));
    for k in 5..9 {
        z[k + 1] = add(z[k + 1], shr::<52>(z[k]));
    }
    for k in 0..LIMBS {
        let (mut low, mut high) = (z[k], splat(0));
        multiply(&mut low, &mut high, factor(z[k + 5]), by);
        z[k] = low;
        if k < 4 {
            z[k + 1] = add(z[k + 1], high);
        }
    }
    let mut folded = [splat(0); LIMBS];
    for k in 0..LIMBS {
        folded[k] = add(z[k], splat(bias(1, usize::from(k > 0))));
    }
    folded
}

#[target_feature(enable = "avx2,fma")]
#[inline(never)]
fn product(start: &[Fma; LIMBS], a: &Operand<Fma>, b: &Operand<Fma>) -> Columns<Fma> {
    Columns(whole(half_product(start, a, b, 0), half_product(start, a, b, 1)))
}

#[inline(always)]
fn half_product(start: &[Fma; LIMBS], a: &Operand<Fma>, b: &Operand<Fma>, half: usize) -> Limbs {
    let (a, b) = (factors(half_of(&a.0, half)), factors(half_of(&b.0, half)));
    let mut z = biases!(pairs);
    for k in 0..2 * LIMBS - 1 {
        column(&mut z, k, &a, &b, false);
    }
    sum(fold(z), half_of(start, half))
}

#[target_feature(enable = "avx2,fma")]
#[inline(never)]
fn square(start: &[Fma; LIMBS], a: &Operand<Fma>) -> Columns<Fma> {
    Columns(whole(half_square(start, a, 0), half_square(start, a, 1)))
}

#[inline(always)]
fn half_square(start: &[Fma; LIMBS], a: &Operand<Fma>, half: usize) -> Limbs {
    let a = factors(half_of(&a.0, half));
    let mut z = biases!(different);
    for k in 1..2 * LIMBS - 2 {
        column(&mut z, k, &a, &a, true);
    }
    for limb in 0..LIMBS {
        let (low, high) = (z[2 * limb], z[2 * limb + 1]);
        let mut low = add(add(low, low), splat(bias(1, 0)));
        let mut high = add(add(high, high), splat(bias(0, 1)));
        multiply(&mut low, &mut high, a[limb], a[limb]);
        (z[2 * limb], z[2 * limb + 1]) = (low, high);
    }
    sum(fold(z), half_of(start, half))
}

#[inline(always)]
fn sum([a, b, c, d, e]: Limbs, [f, g, h, i, j]: Limbs) -> Limbs {
    [add(a, f), add(b, g), add(c, h), add(d, i), add(e, j)]
}

#[target_feature(enable = "avx2,fma")]
#[inline(never)]
fn add_small(columns: &Columns<Fma>, number: &Operand<Fma>, small: u64) -> Columns<Fma> {
    Columns(whole(half_add_small(columns, number, small, 0), half_add_small(columns, number, small, 1)))
}

#[inline(always)]
fn half_add_small(columns: &Columns<Fma>, number: &Operand<Fma>, small: u64, half: usize) -> Limbs {
    let (a, by) = (factors(half_of(&number.0, half)), factor(splat(small)));
    let [mut z0, mut z1, mut z2, mut z3, mut z4] = half_of(&columns.0, half);
    let (first, others) = (splat(bias(1, 0)), splat(bias(1, 1)));
    let mut top = splat(bias(0, 1));
    (z0, z1, z2) = (add(z0, first), add(z1, others), add(z2, others));
    (z3, z4) = (add(z3, others), add(z4, others));
    multiply(&mut z0, &mut z1, a[0], by);
    multiply(&mut z1, &mut z2, a[1], by);
    multiply(&mut z2, &mut z3, a[2], by);
    multiply(&mut z3, &mut z4, a[3], by);
    multiply(&mut z4, &mut top, a[4], by);
    // Below 2^15 times 608: no more than a low half.
    [add(z0, small_product(top, FOLD)), z1, z2, z3, z4]
}

/// The product of numbers below 2^32.
#[inline(always)]
fn small_product(a: Half, by: u64) -> Half {
    // SAFETY: values of `Half` are made where a witness of AVX2 was shown.
    unsafe { core::arch::x86_64::_mm256_mul_epu32(a, splat(by)) }
}

// SAFETY of the calls: values of `Fma` exist only where a witness proved these instructions.
impl Machine for Fma {
    #[inline(always)]
    fn product(start: [Fma; LIMBS], a: &Operand<Fma>, b: &Operand<Fma>) -> Columns<Fma> {
        // SAFETY: as above.
        unsafe { product(&start, a, b) }
    }

    #[inline(always)]
    fn square(start: Option<[Fma; LIMBS]>, a: &Operand<Fma>) -> Columns<Fma> {
        let start = start.unwrap_or(Operand::small(0).0);
        // SAFETY: as above.
        unsafe { square(&start, a) }
    }

    /// Row 0 is the factor itself. The others would save the fold and take more to be made factors.
    #[inline(always)]
    fn product_with_rows(rows: &Rows<Fma>, other: &Operand<Fma>) -> Columns<Fma> {
        Fma::product(Operand::small(0).0, &rows.0[0], other)
    }

    #[inline(always)]
    fn add_small(columns: &Columns<Fma>, factor: &Operand<Fma>, small: u64) -> Columns<Fma> {
        // SAFETY: as above.
        unsafe { add_small(columns, factor, small) }
    }

    #[inline(always)]
    fn carry(columns: &Columns<Fma>) -> Operand<Fma> {
        Operand(whole(half_carried(columns, 0), half_carried(columns, 1)))
    }
}

/// As the parent's; what limb 4 has above 47 bits is below 2^14, and its 19-fold a product of small numbers.
#[inline(always)]
fn half_carried(columns: &Columns<Fma>, half: usize) -> Limbs {
    let [mut a, mut b, mut c, mut d, mut e] = half_of(&columns.0, half);
    a = add(a, small_product(shr::<47>(e), 19));
    // SAFETY: as for `small_product`.
    e = unsafe { core::arch::x86_64::_mm256_and_si256(e, splat(MASK47)) };
    b = add(b, shr::<52>(a));
    c = add(c, shr::<52>(b));
    d = add(d, shr::<52>(c));
    e = add(e, shr::<52>(d));
    [a, b, c, d, e]
}
