//! Points on a curve `y^2 = x^3 - 3 x + b` in eight lanes: doubling, addition, and what scalars are made of.
//!
//! A point is Jacobian: `x = X / Z^2`, `y = Y / Z^3`. Every coordinate is tight. The formulas keep, for 5 limbs,
//!
//! > `X < 2.01 p`, `Y < 2.7 p`, `Z < 3.1 p`,
//!
//! and the bounds beside them show it; a product of numbers below `a p` and `b p` is below `(a b / 16 + 1) p`, and `a`,
//! `b` must stay below 16, which is what 5 limbs hold. For 8 limbs everything is below 2^13 p, every product is below
//! `(2^26 / 2^32 + 1) p`, and 2^32 p fits: there is nothing to show.
//!
//! The formulas are *incomplete*: addition is wrong for two equal points, and where one is infinite. Whoever calls it shows
//! that neither happens, or chooses otherwise where it does ([`super::multiply`]).

use super::super::vector::Vector;
use super::curve::Curve;
use super::field::{Field, Modulus, add, carry, choose, mul, mul_sum, negate_if, shl, splat, square, sub};

/// A Jacobian point.
#[derive(Clone, Copy)]
pub struct Point<V, const N: usize> {
    /// X.
    pub x: [V; N],
    /// Y.
    pub y: [V; N],
    /// Z.
    pub z: [V; N],
}

/// A point that is added often: with the powers of its Z.
#[derive(Clone, Copy)]
pub struct Addend<V, const N: usize> {
    /// The point.
    pub point: Point<V, N>,
    /// Its `Z^2`, below 1.61 p.
    pub zz: [V; N],
    /// Its `Z^3`, below 1.32 p.
    pub zzz: [V; N],
}

impl<V: Vector, const N: usize> Point<V, N> {
    /// The point in all lanes.
    #[inline(always)]
    pub fn choose(mask: V::Mask, yes: Self, no: Self) -> Self {
        Point { x: choose(mask, yes.x, no.x), y: choose(mask, yes.y, no.y), z: choose(mask, yes.z, no.z) }
    }

    /// All zero: stands for nothing yet.
    #[inline(always)]
    pub fn none() -> Self {
        let zero = [V::splat(0); N];
        Point { x: zero, y: zero, z: zero }
    }
}

/// Twice a point, 4 multiplications and 4 squarings: "dbl-2001-b" of the Explicit-Formulas Database, with `Z3 = 2 Y1 Z1`
/// computed as such, because the sum under the other square would have to be carried.
#[inline(always)]
pub fn double<C: Curve<N>, V: Vector, const N: usize>(p: &Point<V, N>) -> Point<V, N> {
    // delta = Z^2 < 1.61; gamma = Y^2 < 1.46
    let delta = square::<C::Field, V, N>(p.z);
    let gamma = carry(square::<C::Field, V, N>(p.y));
    // alpha = 3 (X - delta) (X + delta): below 4.01 and 10.9; alpha < 3.74
    let minus = carry(C::Field::raise::<V, 2>(sub(p.x, delta)));
    let plus = add(p.x, delta);
    let plus = carry(add(plus, shl::<V, 1, N>(plus)));
    let z = carry(shl::<V, 1, N>(mul::<C::Field, V, N>(p.y, p.z))); // < 2 (2.7 * 3.1 / 16 + 1) < 3.05
    let beta = mul::<C::Field, V, N>(p.x, gamma); // < 1.19
    let alpha = carry(mul::<C::Field, V, N>(minus, plus));
    let fourth = square::<C::Field, V, N>(gamma); // < 1.14
    let beta = shl::<V, 2, N>(beta);
    // X3 = alpha^2 - 8 beta, magnitude below 9.6
    let x = C::Field::settle(sub(square::<C::Field, V, N>(alpha), shl::<V, 1, N>(beta)));
    // Y3 = alpha (4 beta - X3) - 8 gamma^2: the difference below 7.8, the product below 2.9
    let rest = carry(C::Field::raise::<V, 3>(sub(beta, x)));
    let y = C::Field::settle(sub(mul::<C::Field, V, N>(alpha, rest), shl::<V, 3, N>(fourth)));
    Point { x, y, z }
}

/// `p + q`, or `p - q` where the mask is set: 11 multiplications and 3 squarings ("add-1998-cmo-2" with the powers of
/// `q`'s Z at hand). Wrong if either is infinite or both are equal; right if they are opposite.
#[inline(always)]
pub fn sum<C: Curve<N>, V: Vector, const N: usize>(
    p: &Point<V, N>,
    q: &Addend<V, N>,
    negative: V::Mask,
) -> Point<V, N> {
    let zz = carry(square::<C::Field, V, N>(p.z)); // < 1.61
    let u1 = carry(mul::<C::Field, V, N>(p.x, q.zz)); // < 1.21
    let s1 = carry(mul::<C::Field, V, N>(p.y, q.zzz)); // < 1.23
    let zs = carry(mul::<C::Field, V, N>(p.z, q.point.z)); // < 1.61
    let zzz = carry(mul::<C::Field, V, N>(p.z, zz)); // < 1.32
    let u2 = mul::<C::Field, V, N>(q.point.x, zz); // < 1.21
    let h = carry(C::Field::raise::<V, 2>(sub(u2, u1))); // < 3.21
    let s2 = negate_if(negative, mul::<C::Field, V, N>(q.point.y, zzz)); // magnitude < 1.23
    let r = carry(C::Field::raise::<V, 3>(sub(s2, s1))); // < 4.23
    let z = carry(mul::<C::Field, V, N>(zs, h)); // < 1.33
    rest::<C, V, N>(h, r, u1, s1, z)
}

/// `p + q`, or `p - q` where the mask is set, for an affine `q` below `p`: 8 multiplications and 3 squarings. Wrong if `p`
/// is infinite or equal to what is added.
#[inline(always)]
pub fn sum_affine<C: Curve<N>, V: Vector, const N: usize>(
    p: &Point<V, N>,
    [x, y]: [[V; N]; 2],
    negative: V::Mask,
) -> Point<V, N> {
    let zz = carry(square::<C::Field, V, N>(p.z)); // < 1.61
    let u2 = mul::<C::Field, V, N>(x, zz); // < 1.11
    let h = carry(C::Field::raise::<V, 3>(sub(u2, p.x))); // < 4.11
    let zzz = carry(mul::<C::Field, V, N>(p.z, zz)); // < 1.32
    let s2 = negate_if(negative, mul::<C::Field, V, N>(y, zzz)); // magnitude < 1.09
    let r = carry(C::Field::raise::<V, 4>(sub(s2, p.y))); // < 5.09
    let z = carry(mul::<C::Field, V, N>(p.z, h)); // < 1.8
    rest::<C, V, N>(h, r, p.x, p.y, z)
}

/// What both additions end with: `X3 = r^2 - h^3 - 2 u h^2`, `Y3 = r (u h^2 - X3) - s h^3`, for `h < 4.11`, `r < 5.09`, and
/// `u < 2.01`, `s < 2.7` with those, or less.
#[inline(always)]
fn rest<C: Curve<N>, V: Vector, const N: usize>(
    h: [V; N],
    r: [V; N],
    u: [V; N],
    s: [V; N],
    z: [V; N],
) -> Point<V, N> {
    let hh = carry(square::<C::Field, V, N>(h)); // < 2.06
    let rr = square::<C::Field, V, N>(r); // < 2.62
    let hhh = mul::<C::Field, V, N>(h, hh); // < 1.53
    let v = mul::<C::Field, V, N>(u, hh); // < 1.26
    let minus = carry(C::Field::raise::<V, 2>(sub([V::splat(0); N], hhh))); // < 2
    let x = C::Field::settle(sub(sub(rr, hhh), shl::<V, 1, N>(v))); // magnitude < 4.1
    let w = carry(C::Field::raise::<V, 3>(sub(v, x))); // < 4.26
    let y = carry(mul_sum::<C::Field, V, N>([r, w], [s, minus])); // < (5.09 * 4.26 + 2.7 * 2) / 16 + 1 < 2.7
    Point { x, y, z }
}

/// With the powers of its Z.
#[inline(always)]
pub fn addend<C: Curve<N>, V: Vector, const N: usize>(point: Point<V, N>) -> Addend<V, N> {
    let zz = carry(square::<C::Field, V, N>(point.z));
    let zzz = carry(mul::<C::Field, V, N>(point.z, zz));
    Addend { point, zz, zzz }
}

/// Where coordinates in Montgomery's form, tight and below 2 p, are a point of the curve.
#[inline(always)]
pub fn on_curve<C: Curve<N>, V: Vector, const N: usize>(x: [V; N], y: [V; N]) -> V::Mask {
    let xx = carry(square::<C::Field, V, N>(x));
    let cube = mul::<C::Field, V, N>(x, xx);
    let three = add(x, shl::<V, 1, N>(x));
    // Magnitude below 1.25 + 6 + 1 + 1.25.
    let right = add(sub(cube, three), splat(&C::B));
    let difference = C::Field::settle(sub(square::<C::Field, V, N>(y), right));
    super::field::is_zero(super::field::canonical::<C::Field, V, N>(difference))
}

/// One in Montgomery's form.
#[inline(always)]
pub fn one<M: Modulus<N>, V: Vector, const N: usize>() -> [V; N] {
    splat(&M::ONE)
}
