//! Integers modulo p = 2^255 - 19, eight side by side, for multipliers of 52 bits.
//!
//! This file knows no curve. It refuses to compare or to branch: what is read back goes through
//! [`Vector::reveal`], which its callers do.
//!
//! # Representation
//! A number is written in radix 2^52 with five limbs. It exists in two forms.
//!
//! * [`Operand`]: what a multiplier takes. Limbs 0 to 3 count with their **low 52 bits only**; whatever lies above is
//!   rubbish that the multiplier ignores, so carrying needs no masks. Limb 4 counts whole and is at most 2^47 + 2^9.
//!   The value is below 2^255 + 2^218, hence below 2p.
//! * [`Columns`]: what a multiplication leaves: five whole 64-bit limbs that are not carried. Sums and differences are
//!   taken here, so that a sum of two products is carried once and its addends never.
//!
//! # Bounds
//! Write `lo` and `hi` for the halves of a product of two limbs: each is below 2^52. *Fresh* columns are at most 2^56.
//!
//! *Product.* Column k of a product (k = 0 to 9) collects the `lo` of the pairs with i + j = k and the `hi` of those
//! with i + j = k - 1: at most 9 terms, so less than 9 * 2^52. Columns 5 to 9 have the weights 2^260 * 2^(52 (k - 5)) and
//! 2^260 = 2^5 * 2^255 is 608 (= 32 * 19) modulo p, so column k + 5 is folded onto k, times 608. For that it must fit the
//! multiplier: the bits of 5 to 8 above 52 are carried upwards one after another (at most 10 each), and their own upper
//! bits become rubbish. Column 9 is the top: the `hi` of limb 4 with limb 4, at most (2^47 + 2^9)^2 / 2^52 <
//! 2^42 + 2^6, and a carry of at most 2; 608 times that is less than 2^52, so its `hi` is zero and is not computed. A
//! folded column is less than (9 + 1) * 2^52 + 2^10 < 2^56: fresh.
//!
//! *Square.* The same columns. The products of different limbs are collected once and doubled before the squares of
//! limbs are added.
//!
//! *Product with rows* ([`Rows`]), for a factor that is used often: row i is that factor times 2^(52 i), already reduced
//! and carried. Then the term of limb i needs columns 0 to 5 only, and nothing is folded but column 5, which holds
//! five `hi` with top limbs: less than 5 * (2^47 + 2^9) < 2^50. Its 608-fold spills `lo` to column 0 and `hi` to column 1.
//! Columns have at most 10 terms and those two: fresh.
//!
//! *Sum and difference.* A difference must not fall below zero in any column. So a minuend starts at a multiple of p
//! instead of zero: [`BIAS`] has columns between 2^60 - 2^52 and 2^60, more than the 2^56 that is subtracted; the
//! functions that do this say *biased*. Biased columns are less than 2^60 + 2^56, and a sum or difference of biased ones and
//! at most three fresh ones is less than 2^60 + 2^58 < 2^61. At most one biased term enters a sum.
//!
//! *Carry*, from columns below 2^61. Limb 4 gives its bits above 47, less than 2^14 of them, to limb 0, times 19, for
//! their weight is 2^255. Limb 0 is then less than 2^61 + 2^19 < 2^62. Then each limb passes its bits above 52 to the
//! next, in order, at most 2^10, so that every limb is whole before it is read. Limb 4 ends at most at
//! 2^47 - 1 + 2^9 + 1, since what reaches it is at most (2^61 + 2^10) / 2^52. No bit is dropped except those that were
//! carried.
//!
//! # Cost
//! In vector instructions: product 67 (50 of them multiply), square 54 (30), product with rows 52 (all), carry 11.

use crate::lanes::vector::{MASK52, Vector};

/// Limbs of a number.
pub(super) const LIMBS: usize = 5;

/// The bits of limb 4 below 2^255.
const MASK47: u64 = (1 << 47) - 1;

/// 2^260 modulo p.
const FOLD: u64 = 608;

/// A multiple of p, with every column near 2^60. Five columns of 2^60 are congruent to R = 2^60 * (1 + 2^52 + ... + 2^208)
/// mod p; this is 2^60 in every column less the limbs of R. `bias_is_a_multiple_of_p` shows it.
pub(super) const BIAS: [u64; LIMBS] = bias();

/// Five limbs of 52 bits of 2^60 * (1 + 2^52 + 2^104 + 2^156 + 2^208) modulo p, taken from 2^60.
const fn bias() -> [u64; LIMBS] {
    // 2^60 * 2^(52 k) has 2^8 at limb k + 1; from limb 4 it is 2^60 * 2^208 = 2^13 * 2^255, which is 19 * 2^13 at limb 0.
    let limbs = [19 << 13, 1 << 8, 1 << 8, 1 << 8, 1 << 8];
    let mut columns = [1 << 60; LIMBS];
    let mut k = 0;
    while k < LIMBS {
        columns[k] -= limbs[k];
        k += 1;
    }
    columns
}

/// A carried number: see the header.
#[derive(Clone, Copy)]
pub(super) struct Operand<V>(pub(super) [V; LIMBS]);

/// A number that is not carried: see the header.
#[derive(Clone, Copy)]
pub(super) struct Columns<V>([V; LIMBS]);

/// A factor times 1, 2^52, ..., 2^208.
#[derive(Clone, Copy)]
pub(super) struct Rows<V>([Operand<V>; LIMBS]);

impl<V: Machine> Operand<V> {
    /// The same small number in every lane.
    #[inline(always)]
    pub(super) fn small(number: u64) -> Operand<V> {
        let mut limbs = [V::splat(0); LIMBS];
        limbs[0] = V::splat(number);
        Operand(limbs)
    }

    /// The same number in every lane, from limbs in the form's bounds.
    #[inline(always)]
    pub(super) fn splat(limbs: &[u64; LIMBS]) -> Operand<V> {
        Operand([
            V::splat(limbs[0]),
            V::splat(limbs[1]),
            V::splat(limbs[2]),
            V::splat(limbs[3]),
            V::splat(limbs[4]),
        ])
    }

    /// The low 255 bits of little-endian 256-bit numbers, as four words.
    #[inline(always)]
    pub(super) fn from_words(words: [V; 4]) -> Operand<V> {
        let [a, b, c, d] = words;
        Operand([
            a,
            a.shr::<52>().or(b.shl::<12>()),
            b.shr::<40>().or(c.shl::<24>()),
            c.shr::<28>().or(d.shl::<36>()),
            d.shr::<16>().and(V::splat(MASK47)),
        ])
    }

    /// The one representative below p, as five limbs that are whole.
    #[inline(always)]
    pub(super) fn reduced(self) -> [V; LIMBS] {
        // Below 2p, so p is to be subtracted once or not at all: once exactly if adding 19 reaches 2^255.
        let mask = V::splat(MASK52);
        let [mut a, mut b, mut c, mut d, mut e] = self.0;
        (a, b, c, d) = (a.and(mask), b.and(mask), c.and(mask), d.and(mask));
        let mut top = a.add(V::splat(19)).shr::<52>();
        top = b.add(top).shr::<52>();
        top = c.add(top).shr::<52>();
        top = d.add(top).shr::<52>();
        top = e.add(top).shr::<47>();
        a = a.mul_lo(top, V::splat(19));
        b = b.add(a.shr::<52>());
        c = c.add(b.shr::<52>());
        d = d.add(c.shr::<52>());
        e = e.add(d.shr::<52>());
        [a.and(mask), b.and(mask), c.and(mask), d.and(mask), e.and(V::splat(MASK47))]
    }

    /// The one representative below p, as four little-endian words.
    #[inline(always)]
    pub(super) fn to_words(self) -> [V; 4] {
        let [a, b, c, d, e] = self.reduced();
        [
            a.or(b.shl::<52>()),
            b.shr::<12>().or(c.shl::<40>()),
            c.shr::<24>().or(d.shl::<28>()),
            d.shr::<36>().or(e.shl::<16>()),
        ]
    }

    /// `yes` where the mask is set, else `no`.
    #[inline(always)]
    pub(super) fn choose(mask: V::Mask, yes: Operand<V>, no: Operand<V>) -> Operand<V> {
        let (yes, no) = (yes.0, no.0);
        Operand([
            V::choose(mask, yes[0], no[0]),
            V::choose(mask, yes[1], no[1]),
            V::choose(mask, yes[2], no[2]),
            V::choose(mask, yes[3], no[3]),
            V::choose(mask, yes[4], no[4]),
        ])
    }

    /// Fresh columns of `self * other`.
    #[inline(always)]
    pub(super) fn times(&self, other: &Operand<V>) -> Columns<V> {
        V::product([V::splat(0); LIMBS], self, other)
    }

    /// Biased columns of `self * other`.
    #[inline(always)]
    pub(super) fn times_biased(&self, other: &Operand<V>) -> Columns<V> {
        V::product(biased(), self, other)
    }

    /// Fresh columns of `self * self`.
    #[inline(always)]
    pub(super) fn squared(&self) -> Columns<V> {
        V::square(None, self)
    }

    /// Biased columns of `self * self`.
    #[inline(always)]
    pub(super) fn squared_biased(&self) -> Columns<V> {
        V::square(Some(biased()), self)
    }

    /// Fresh columns of `self * self + 1`. (A fresh column's bound has room for it.)
    #[inline(always)]
    pub(super) fn squared_plus_one(&self) -> Columns<V> {
        V::square(Some(Operand::small(1).0), self)
    }

    /// Where the number is zero modulo p.
    #[inline(always)]
    pub(super) fn is_zero(self) -> V::Mask {
        let [a, b, c, d, e] = self.reduced();
        a.or(b).or(c).or(d).or(e).is_equal(V::splat(0))
    }

    /// Fresh columns of `self` times one limb of 52 bits.
    #[inline(always)]
    pub(super) fn times_limb(&self, limb: V) -> Columns<V> {
        let (zero, a) = (V::splat(0), &self.0);
        // Less than 2^48, with the weight 2^260.
        let top = zero.mul_hi(a[4], limb);
        Columns([
            zero.mul_lo(a[0], limb).mul_lo(top, V::splat(FOLD)),
            zero.mul_lo(a[1], limb).mul_hi(a[0], limb).mul_hi(top, V::splat(FOLD)),
            zero.mul_lo(a[2], limb).mul_hi(a[1], limb),
            zero.mul_lo(a[3], limb).mul_hi(a[2], limb),
            zero.mul_lo(a[4], limb).mul_hi(a[3], limb),
        ])
    }
}

impl<V: Machine> Columns<V> {
    /// Zero, biased.
    #[inline(always)]
    pub(super) fn bias() -> Columns<V> {
        Columns(biased())
    }

    /// The columns themselves, for tests.
    #[cfg(test)]
    pub(super) fn limbs(&self) -> [V; LIMBS] {
        self.0
    }

    /// `yes` where the mask is set, else `no`.
    #[inline(always)]
    pub(super) fn choose(mask: V::Mask, yes: &Columns<V>, no: &Columns<V>) -> Columns<V> {
        Columns(Operand::choose(mask, Operand(yes.0), Operand(no.0)).0)
    }

    /// Column by column; at most one of the two is biased.
    #[inline(always)]
    pub(super) fn plus(&self, other: &Columns<V>) -> Columns<V> {
        let (a, b) = (&self.0, &other.0);
        Columns([a[0].add(b[0]), a[1].add(b[1]), a[2].add(b[2]), a[3].add(b[3]), a[4].add(b[4])])
    }

    /// Column by column; `self` is biased and `other` fresh.
    #[inline(always)]
    pub(super) fn minus(&self, other: &Columns<V>) -> Columns<V> {
        let (a, b) = (&self.0, &other.0);
        Columns([a[0].sub(b[0]), a[1].sub(b[1]), a[2].sub(b[2]), a[3].sub(b[3]), a[4].sub(b[4])])
    }

    /// `self + factor * small` for a number below 2^19. The columns grow by less than 2^52 + 2^25.
    #[inline(always)]
    pub(super) fn plus_small(&self, factor: &Operand<V>, small: u64) -> Columns<V> {
        V::add_small(self, factor, small)
    }

    /// Carried, from columns below 2^61.
    #[inline(always)]
    pub(super) fn carried(&self) -> Operand<V> {
        V::carry(self)
    }
}

impl<V: Machine> Rows<V> {
    /// The rows of a factor.
    #[inline(always)]
    pub(super) fn of(factor: Operand<V>) -> Rows<V> {
        let mut radix = Operand::small(0);
        radix.0[1] = V::splat(1);
        let mut rows = [factor; LIMBS];
        for i in 1..LIMBS {
            rows[i] = rows[i - 1].times(&radix).carried();
        }
        Rows(rows)
    }

    /// Fresh columns of the factor times `other`.
    #[inline(always)]
    pub(super) fn times(&self, other: &Operand<V>) -> Columns<V> {
        V::product_with_rows(self, other)
    }
}

/// The field's larger pieces, for a kind of lanes. All do the same by the generic functions below; they differ in
/// whether that is inlined. Into the instructions' entries it must be. For the model it would make functions that take
/// minutes to compile.
pub(super) trait Machine: Vector {
    /// Columns of `a * b` plus `start`.
    fn product(start: [Self; LIMBS], a: &Operand<Self>, b: &Operand<Self>) -> Columns<Self>;

    /// Columns of `a * a` plus `start`, if any.
    fn square(start: Option<[Self; LIMBS]>, a: &Operand<Self>) -> Columns<Self>;

    /// Fresh columns of a factor times `other`.
    fn product_with_rows(rows: &Rows<Self>, other: &Operand<Self>) -> Columns<Self>;

    /// `columns + factor * small`.
    fn add_small(columns: &Columns<Self>, factor: &Operand<Self>, small: u64) -> Columns<Self>;

    /// Carried.
    fn carry(columns: &Columns<Self>) -> Operand<Self>;
}

macro_rules! machine {
    ($vector:ty, $inline:ident) => {
        impl Machine for $vector {
            #[inline($inline)]
            fn product(start: [Self; LIMBS], a: &Operand<Self>, b: &Operand<Self>) -> Columns<Self> {
                product(start, a, b)
            }

            #[inline($inline)]
            fn square(start: Option<[Self; LIMBS]>, a: &Operand<Self>) -> Columns<Self> {
                square(start, a)
            }

            #[inline($inline)]
            fn product_with_rows(rows: &Rows<Self>, other: &Operand<Self>) -> Columns<Self> {
                product_with_rows(rows, other)
            }

            #[inline($inline)]
            fn add_small(columns: &Columns<Self>, factor: &Operand<Self>, small: u64) -> Columns<Self> {
                add_small(columns, factor, small)
            }

            #[inline($inline)]
            fn carry(columns: &Columns<Self>) -> Operand<Self> {
                carry(columns)
            }
        }
    };
}

machine!(crate::lanes::vector::Ifma, always);
#[cfg(test)]
machine!(crate::lanes::vector::model::Model, never);

#[inline(always)]
fn product<V: Vector>(start: [V; LIMBS], a: &Operand<V>, b: &Operand<V>) -> Columns<V> {
    let mut z = onto(start);
    row(&mut z, 0, a.0[0], &b.0);
    row(&mut z, 1, a.0[1], &b.0);
    row(&mut z, 2, a.0[2], &b.0);
    row(&mut z, 3, a.0[3], &b.0);
    row(&mut z, 4, a.0[4], &b.0);
    fold(z)
}

#[inline(always)]
fn square<V: Vector>(start: Option<[V; LIMBS]>, a: &Operand<V>) -> Columns<V> {
    let [a, b, c, d, e] = a.0;
    let zero = V::splat(0);
    // Different limbs, by columns 1 to 8.
    let (mut z1, mut z2, mut z3, mut z4) = (zero, zero, zero, zero);
    let (mut z5, mut z6, mut z7, mut z8) = (zero, zero, zero, zero);
    z4 = z4.mul_lo(a, e);
    z5 = z5.mul_hi(a, e);
    z1 = z1.mul_lo(a, b);
    z2 = z2.mul_hi(a, b);
    z3 = z3.mul_lo(a, d);
    z6 = z6.mul_lo(c, e);
    z7 = z7.mul_hi(c, e);
    z8 = z8.mul_hi(d, e);
    z4 = z4.mul_hi(a, d);
    z5 = z5.mul_lo(b, e);
    z2 = z2.mul_lo(a, c);
    z3 = z3.mul_hi(a, c);
    z6 = z6.mul_hi(b, e);
    z7 = z7.mul_lo(d, e);
    z4 = z4.mul_lo(b, d);
    z5 = z5.mul_hi(b, d);
    z3 = z3.mul_lo(b, c);
    z6 = z6.mul_hi(c, d);
    z4 = z4.mul_hi(b, c);
    z5 = z5.mul_lo(c, d);
    // Doubled, and each limb with itself.
    (z1, z2, z3, z4) = (z1.add(z1), z2.add(z2), z3.add(z3), z4.add(z4));
    (z5, z6, z7, z8) = (z5.add(z5), z6.add(z6), z7.add(z7), z8.add(z8));
    let mut z0 = zero;
    if let Some(start) = start {
        z0 = start[0];
        z1 = z1.add(start[1]);
        z2 = z2.add(start[2]);
        z3 = z3.add(start[3]);
        z4 = z4.add(start[4]);
    }
    z5 = z5.mul_hi(c, c);
    z6 = z6.mul_lo(d, d);
    z7 = z7.mul_hi(d, d);
    z8 = z8.mul_lo(e, e);
    let z9 = zero.mul_hi(e, e);
    z0 = z0.mul_lo(a, a);
    z1 = z1.mul_hi(a, a);
    z2 = z2.mul_lo(b, b);
    z3 = z3.mul_hi(b, b);
    z4 = z4.mul_lo(c, c);
    fold([z0, z1, z2, z3, z4, z5, z6, z7, z8, z9])
}

#[inline(always)]
fn product_with_rows<V: Vector>(rows: &Rows<V>, other: &Operand<V>) -> Columns<V> {
    let zero = V::splat(0);
    let mut z = [zero; LIMBS];
    let mut top = zero;
    macro_rules! row {
        ($i:literal) => {
            let (a, row) = (other.0[$i], &rows.0[$i].0);
            z[0] = z[0].mul_lo(a, row[0]);
            z[1] = z[1].mul_lo(a, row[1]);
            z[2] = z[2].mul_lo(a, row[2]);
            z[3] = z[3].mul_lo(a, row[3]);
            z[4] = z[4].mul_lo(a, row[4]);
            z[1] = z[1].mul_hi(a, row[0]);
            z[2] = z[2].mul_hi(a, row[1]);
            z[3] = z[3].mul_hi(a, row[2]);
            z[4] = z[4].mul_hi(a, row[3]);
            top = top.mul_hi(a, row[4]);
        };
    }
    row!(0);
    row!(1);
    row!(2);
    row!(3);
    row!(4);
    z[0] = z[0].mul_lo(top, V::splat(FOLD));
    z[1] = z[1].mul_hi(top, V::splat(FOLD));
    Columns(z)
}

#[inline(always)]
fn add_small<V: Vector>(columns: &Columns<V>, factor: &Operand<V>, small: u64) -> Columns<V> {
    let (mut z, f, small) = (columns.0, &factor.0, V::splat(small));
    // Limb 4's `hi` is below 2^15 and has the weight 2^260.
    let top = V::splat(0).mul_hi(f[4], small);
    z[0] = z[0].mul_lo(f[0], small);
    z[1] = z[1].mul_lo(f[1], small);
    z[2] = z[2].mul_lo(f[2], small);
    z[3] = z[3].mul_lo(f[3], small);
    z[4] = z[4].mul_lo(f[4], small);
    z[1] = z[1].mul_hi(f[0], small);
    z[2] = z[2].mul_hi(f[1], small);
    z[3] = z[3].mul_hi(f[2], small);
    z[4] = z[4].mul_hi(f[3], small);
    z[0] = z[0].mul_lo(top, V::splat(FOLD));
    Columns(z)
}

#[inline(always)]
fn carry<V: Vector>(columns: &Columns<V>) -> Operand<V> {
    let [mut a, mut b, mut c, mut d, mut e] = columns.0;
    a = a.mul_lo(e.shr::<47>(), V::splat(19));
    e = e.and(V::splat(MASK47));
    b = b.add(a.shr::<52>());
    c = c.add(b.shr::<52>());
    d = d.add(c.shr::<52>());
    e = e.add(d.shr::<52>());
    Operand([a, b, c, d, e])
}

/// [`BIAS`] in every lane.
#[inline(always)]
fn biased<V: Machine>() -> [V; LIMBS] {
    Operand::splat(&BIAS).0
}

/// Ten columns of which the lower five start somewhere.
#[inline(always)]
fn onto<V: Vector>(start: [V; LIMBS]) -> [V; 2 * LIMBS] {
    let [a, b, c, d, e] = start;
    let zero = V::splat(0);
    [a, b, c, d, e, zero, zero, zero, zero, zero]
}

/// Adds `limb * number * 2^(52 i)`.
#[inline(always)]
fn row<V: Vector>(z: &mut [V; 2 * LIMBS], i: usize, limb: V, number: &[V; LIMBS]) {
    z[i] = z[i].mul_lo(limb, number[0]);
    z[i + 1] = z[i + 1].mul_lo(limb, number[1]);
    z[i + 2] = z[i + 2].mul_lo(limb, number[2]);
    z[i + 3] = z[i + 3].mul_lo(limb, number[3]);
    z[i + 4] = z[i + 4].mul_lo(limb, number[4]);
    z[i + 1] = z[i + 1].mul_hi(limb, number[0]);
    z[i + 2] = z[i + 2].mul_hi(limb, number[1]);
    z[i + 3] = z[i + 3].mul_hi(limb, number[2]);
    z[i + 4] = z[i + 4].mul_hi(limb, number[3]);
    z[i + 5] = z[i + 5].mul_hi(limb, number[4]);
}

/// Columns 5 to 9 onto 0 to 4.
#[inline(always)]
fn fold<V: Vector>(z: [V; 2 * LIMBS]) -> Columns<V> {
    let [mut z0, mut z1, mut z2, mut z3, mut z4, z5, mut z6, mut z7, mut z8, mut z9] = z;
    let fold = V::splat(FOLD);
    z6 = z6.add(z5.shr::<52>());
    z7 = z7.add(z6.shr::<52>());
    z8 = z8.add(z7.shr::<52>());
    z9 = z9.add(z8.shr::<52>());
    z0 = z0.mul_lo(z5, fold);
    z1 = z1.mul_hi(z5, fold);
    z2 = z2.mul_hi(z6, fold);
    z3 = z3.mul_hi(z7, fold);
    z4 = z4.mul_hi(z8, fold);
    z1 = z1.mul_lo(z6, fold);
    z2 = z2.mul_lo(z7, fold);
    z3 = z3.mul_lo(z8, fold);
    z4 = z4.mul_lo(z9, fold);
    Columns([z0, z1, z2, z3, z4])
}
