//! Where a product of a scalar and a point is *sound*: what is not sound must not leave. A faulted result can give a
//! long-term scalar away: a point off the curve is of an order that the attacker who caused the fault may use (Biehl,
//! Meyer, Mueller 2000).
//!
//! Both checks read the result as it will leave, converted to words and back, so that they cover what came before: the
//! inversion, the last product and the reduction too.
//!
//! # The ladder
//! It keeps R0 = nP and R1 = (n + 1)P, whose difference is P. On `B y^2 = x^3 + A x^2 + x`, two points whose
//! difference or sum is a third one have, with x1, x2, x3 for the three x (Semaev 2004, the third summation polynomial),
//!
//! ```text
//! (x1 - x2)^2 x3^2 - 2 ((x1 + x2)(x1 x2 + 1) + 2 A x1 x2) x3 + (x1 x2 - 1)^2 = 0
//! ```
//!
//! B does not occur: it holds on the curve and on its twist. The same polynomial, written as two squares and with
//! x1 = u of P, x2 = r the result, and x3 = X/Z of R1, times Z^2, is
//!
//! ```text
//! (u (r Z + X) - (r X + Z))^2 = 4 r X Z (u^2 + A u + 1)
//! ```
//!
//! Seven products in all, and 15 for the last three steps, which could be doublings since those bits are clear in every scalar: they
//! are whole steps for this check's sake. A number that is changed on the way breaks the difference; the steps that follow
//! take it for granted and do not restore it, and the relation holds in the end by chance, with a probability of a few in p.
//!
//! *No honest result is refused.* Let P be of an order that is not small. Then u is not 0, the formulas of the ladder are
//! right for every pair of points, the infinite one included (Bernstein, "Curve25519", theorem B.1), and
//! the polynomial vanishes. R0 ends as 8k P with k below 2^252, which is infinite only if the prime order (above 2^252 for
//! curve and twist) divides k, and is never (0, 0). R1 may be infinite, Z = 0; then R0 = -P, r = u, and both sides are 0. It is never (0 : 0),
//! for which the relation would hold with any r: that is refused. P of small order has r = 0, whether or not it is
//! sound; that never leaves, and the caller decides whose fault it is.
//!
//! # The comb
//! Its last addition ends with x = E/G and y = H/F of a point on the Edwards curve, of which u = (F + H)/(F - H) only
//! is wanted. With y = (u - 1)/(u + 1) and d = -121665/121666, the equation -x^2 + y^2 = 1 + d x^2 y^2 becomes
//!
//! ```text
//! E^2 (u^2 + A u + 1) + (A + 2) u G^2 = 0
//! ```
//!
//! Five products. All zeros fulfil it with u = 0, which no clamped scalar has: that is refused.
//!
//! # What is not found
//! - What was wrong from the beginning: a scalar, a peer's coordinate.
//! - What leads to another product: a bit of the scalar that changes during the pass, a wrong choice between whole points, a
//!   wrong digit, a step or window left out, another entry of the table.
//! - The ladder begun anew. If a point's sum or difference becomes zero as a whole (five registers at once) before a
//!   step that doubles this point, the formulas go to (0, 0) and P + (0, 0), whose difference is P: the product is then that of the
//!   scalar's remaining bits. (Looking for zeros at every step would cost as much again as all of the above.)
//! - A second fault that hits the check, and one after it: in the copy to the output.
//! - Whether a lane failed is seen by the cause of the fault, whatever that depended on.

use super::field::{Columns, Machine, Operand};

/// A of the Montgomery form.
const A: u64 = 486_662;

/// Where a test may change a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spot {
    /// Before this step of the ladder: the sum and the difference of what was added last, then of what was doubled last.
    Ladder(usize, usize),
    /// Before this window of the comb: Y + X, Y - X and T.
    Comb(usize, usize),
    /// The inverse that the result is made with.
    Inverse,
    /// The result, before it is reduced.
    Result,
}

/// No fault.
#[inline(always)]
pub(super) fn undisturbed<V>(_: Spot, _: &mut Operand<V>) {}

/// Where the result of a ladder and its neighbour R1, x biased and z fresh, differ by a point with this u.
#[inline(always)]
pub(super) fn is_neighbour<V: Machine>(
    u: &Operand<V>,
    result: &Operand<V>,
    neighbour: &[Columns<V>; 2],
) -> V::Mask {
    let [x, z] = neighbour;
    let (whole_x, whole_z) = (x.carried(), z.carried());
    let product = result.times(&whole_x);
    let sum = x.plus(&result.times(&whole_z)).carried();
    // Two fresh ones taken from a biased one, which holds three.
    let left = u.times_biased(&sum).minus(&product).minus(z).carried().squared_biased();
    let one = product.carried().times(&whole_z);
    let two = one.plus(&one);
    // Columns of 4 * 2^56 at most.
    let right = two.plus(&two).carried().times(&of_curve(u));
    let nothing = V::both(whole_x.is_zero(), whole_z.is_zero());
    V::both(left.minus(&right).carried().is_zero(), V::not(nothing))
}

/// Where u, with x = e/g of the Edwards form, is that of a point of the curve, and not zero.
#[inline(always)]
pub(super) fn is_on_curve<V: Machine>(u: &Operand<V>, e: &Operand<V>, g: &Operand<V>) -> V::Mask {
    let left = e.squared().carried().times_biased(&of_curve(u));
    let right = g.squared().carried().times(u).carried();
    let holds = left.plus_small(&right, A + 2).carried().is_zero();
    V::both(holds, V::not(u.is_zero()))
}

/// u^2 + A u + 1.
#[inline(always)]
fn of_curve<V: Machine>(u: &Operand<V>) -> Operand<V> {
    u.squared_plus_one().plus_small(u, A).carried()
}
