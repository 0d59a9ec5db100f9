//! The Montgomery ladder of RFC 7748 section 5, eight lanes with a scalar and a point each.
//!
//! # Formulas
//! The differential addition and doubling of RFC 7748 (EFD: `mladd-1987-m` of Montgomery curves). The four sums and
//! differences that they begin with are what this ladder keeps instead of x and z, since both ends of it are linear:
//! sums are taken of uncarried columns and carried once.
//!
//! ```text
//! sum of a point        A = x + z          differences   B = x - z
//! doubling of (A, B)    x' = A^2 B^2       z' = E (A^2 + 121665 E),  E = A^2 - B^2
//! addition of (A, B) and (C, D), whose difference is (x1 : 1)
//!                       x' = (D A + C B)^2 z' = x1 (D A - C B)^2
//! ```
//!
//! *No swap.* The ladder holds two points, R0 and R1 = R0 + P. A step doubles the one that the scalar's bit names and
//! adds both. Addition is symmetric: exchanging the points negates DA - CB, which is squared. So only the doubling must
//! choose, between what the last step doubled and what it added: the former exactly if the bits are equal. That is a
//! choice of ten limbs instead of an exchange of twenty.
//!
//! *Clamped scalars* (section 5) have bit 254 set and bits 0 to 2 clear. So the ladder starts with R0 = P and
//! R1 = 2P and does a step for each of bits 253 to 0. This is the same for every key. (The last three steps could be doublings;
//! their additions, 0.6 % of a pass, keep R1 for the check: [`super::sound`].)
//!
//! *Exceptions.* P of small order, u = 0 included, leads to z = 0 after the last steps, since the scalar is a
//! multiple of 8 (addition may give (0 : 0) on the way, which stays so). Then x/z comes out as zero, as the RFC's does.

use super::field::{Columns, Machine, Operand, Rows};
use super::inverse::inverse;
use super::sound::{Spot, is_neighbour};

/// Words of a scalar or a coordinate.
pub(super) const WORDS: usize = 4;

/// (486662 - 2) / 4.
const A24: u64 = 121_665;

/// A point by the sum and the difference of its coordinates.
#[derive(Clone, Copy)]
struct Point<V> {
    sum: Operand<V>,
    difference: Operand<V>,
}

/// u of the product of a clamped scalar with a point given by any 256-bit u, as little-endian words, and where it is
/// sound. The product is below p; it is zero for a point of small order, and then says nothing about soundness.
#[inline(always)]
pub(super) fn multiply<V: Machine>(
    scalar: [V; WORDS],
    u: [V; WORDS],
    disturb: impl Fn(Spot, &mut Operand<V>),
) -> ([V; WORDS], V::Mask) {
    let u = Operand::from_words(u);
    let rows = Rows::of(u);
    let mut changes = changes(scalar);
    // Bit 255 is clear and bit 254 set, for which the start below stands.
    changes[3] = changes[3].shl::<2>();
    // R0 = P was last "added", R1 = 2P last doubled.
    let one = Operand::small(1);
    let mut added = Point::of([u.times_biased(&one), one.times(&one)]);
    let mut doubled = Point::of(added.doubled());
    let mut at = 0;
    for (word, steps) in [(3, 62), (2, 64), (1, 64), (0, 63)] {
        for _ in 0..steps {
            disturb(Spot::Ladder(at, 0), &mut added.sum);
            disturb(Spot::Ladder(at, 1), &mut added.difference);
            disturb(Spot::Ladder(at, 2), &mut doubled.sum);
            disturb(Spot::Ladder(at, 3), &mut doubled.difference);
            at += 1;
            let chosen = choose(changes[word], &added, &doubled);
            changes[word] = changes[word].add(changes[word]);
            let [sum, double] = step(&chosen, &added, &doubled, &rows);
            (added, doubled) = (Point::of(sum), Point::of(double));
        }
    }
    // Bits 1 and 0 are both clear: what was doubled is doubled again.
    let [neighbour, [x, z]] = step(&doubled, &added, &doubled, &rows);
    let mut inverse = inverse(&z.carried());
    disturb(Spot::Inverse, &mut inverse);
    let mut result = x.carried().times(&inverse).carried();
    disturb(Spot::Result, &mut result);
    let result = result.to_words();
    (result, is_neighbour(&u, &Operand::from_words(result), &neighbour))
}

impl<V: Machine> Point<V> {
    /// From x, biased, and z, fresh.
    #[inline(always)]
    fn of([x, z]: [Columns<V>; 2]) -> Point<V> {
        Point { sum: x.plus(&z).carried(), difference: x.minus(&z).carried() }
    }

    /// Twice the point: x, biased, and z, fresh.
    #[inline(always)]
    fn doubled(&self) -> [Columns<V>; 2] {
        let sum = self.sum.squared_biased();
        let difference = self.difference.squared();
        let e = sum.minus(&difference).carried();
        let w = sum.plus_small(&e, A24).carried();
        [sum.carried().times_biased(&difference.carried()), e.times(&w)]
    }
}

/// The sum of two points whose difference has the u of the rows, and twice the chosen one: x, biased, and z, fresh, of
/// each.
///
/// The order is chosen for the machine: its scheduler holds about a hundred instructions, so each piece is followed by
/// one that does not wait for it. This alone made a step a quarter shorter than the sum followed by the double.
#[inline(always)]
fn step<V: Machine>(
    chosen: &Point<V>,
    one: &Point<V>,
    other: &Point<V>,
    u: &Rows<V>,
) -> [[Columns<V>; 2]; 2] {
    let sum2 = chosen.sum.squared_biased();
    let difference2 = chosen.difference.squared();
    let da = one.sum.times_biased(&other.difference);
    let e = sum2.minus(&difference2).carried();
    let cb = one.difference.times(&other.sum);
    let w = sum2.plus_small(&e, A24).carried();
    let (sum2, difference2) = (sum2.carried(), difference2.carried());
    let doubled_x = sum2.times_biased(&difference2);
    let difference = da.minus(&cb).carried();
    let sum = da.plus(&cb).carried();
    let difference = difference.squared();
    let added_x = sum.squared_biased();
    let difference = difference.carried();
    let doubled_z = e.times(&w);
    let added_z = u.times(&difference);
    [[added_x, added_z], [doubled_x, doubled_z]]
}

/// Where a bit differs from the next higher one.
#[inline(always)]
fn changes<V: Machine>(scalar: [V; WORDS]) -> [V; WORDS] {
    let [a, b, c, d] = scalar;
    [
        a.xor(a.shr::<1>().or(b.shl::<63>())),
        b.xor(b.shr::<1>().or(c.shl::<63>())),
        c.xor(c.shr::<1>().or(d.shl::<63>())),
        d.xor(d.shr::<1>()),
    ]
}

/// `yes` where the highest bit is set, else `no`.
#[inline(always)]
fn choose<V: Machine>(bits: V, yes: &Point<V>, no: &Point<V>) -> Point<V> {
    let mask = V::splat(u64::MAX >> 1).is_less(bits);
    Point {
        sum: Operand::choose(mask, yes.sum, no.sum),
        difference: Operand::choose(mask, yes.difference, no.difference),
    }
}
