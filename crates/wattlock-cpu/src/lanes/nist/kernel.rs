//! The three operations from numbers to numbers. Everything is secret but the peers' coordinates and what is returned;
//! nothing is read back from the lanes before the end.

use super::super::vector::LANES;
use super::super::vector::model::Model;
use super::curve::Curve;
use super::field::{Limbs, add, below, canonical, carry, choose, is_zero, shl, splat, to_montgomery};
use super::multiply::{both_inverses, field_inverse, fixed, variable};
use super::pieces::{Pieces, Table};
use super::point::{Point, on_curve};
use super::words::{gather, scatter};

/// A point's coordinates, in Montgomery's form, tight and below 2 p, given its Z's inverse.
#[inline(always)]
fn affine<C: Curve<N>, V: Pieces<C, N>, const N: usize>(point: &Point<V, N>, inverse: [V; N]) -> [[V; N]; 2] {
    let (mut power, mut x, mut y) = (inverse, point.x, point.y);
    V::field_squares(&mut power, 1);
    V::field_times(&mut x, &power);
    V::field_times(&mut power, &inverse);
    V::field_times(&mut y, &power);
    [x, y]
}

/// The x coordinate of `k P`, plain, and where `P` is a point of the curve. `k`, shifted by
/// [`super::multiply::alignment`], is in `[1, n)`; coordinates are plain and below `p`.
#[inline(always)]
pub fn derive<C: Curve<N>, V: Pieces<C, N>, const N: usize>(
    k: [V; N],
    [x, y]: [[V; N]; 2],
    table: &mut Table<V, N>,
) -> ([V; N], V::Mask) {
    let good = on_curve::<C, V, N>(to_montgomery::<C::Field, V, N>(x), to_montgomery::<C::Field, V, N>(y));
    let x = to_montgomery::<C::Field, V, N>(choose(good, x, splat(&C::GENERATOR[0])));
    let y = to_montgomery::<C::Field, V, N>(choose(good, y, splat(&C::GENERATOR[1])));
    let shared = variable::<C, V, N>(k, [x, y], table);
    let [x, _] = affine::<C, V, N>(&shared, field_inverse::<C, V, N>(shared.z));
    (canonical::<C::Field, V, N>(x), good)
}

/// `k G`, plain. `k` is in `[1, n)`.
#[inline(always)]
pub fn generate<C: Curve<N>, V: Pieces<C, N>, const N: usize>(k: [V; N]) -> [[V; N]; 2] {
    let point = fixed::<C, V, N>(carry(shl::<V, 1, N>(k)));
    let [x, y] = affine::<C, V, N>(&point, field_inverse::<C, V, N>(point.z));
    [canonical::<C::Field, V, N>(x), canonical::<C::Field, V, N>(y)]
}

/// `r` and `s` (FIPS 186-5 section 6.4.1), and where neither is zero. `k` is in `[1, n)`, the key's scalar in Montgomery's form and
/// below `2 n`, the digest below `2^BITS`.
#[inline(always)]
pub fn sign<C: Curve<N>, V: Pieces<C, N>, const N: usize>(
    k: [V; N],
    key: [V; N],
    digest: [V; N],
) -> ([[V; N]; 2], V::Mask) {
    let point = fixed::<C, V, N>(carry(shl::<V, 1, N>(k)));
    let [of_z, inverse] = both_inverses::<C, V, N>(point.z, to_montgomery::<C::Order, V, N>(k));
    let [x, _] = affine::<C, V, N>(&point, of_z);
    // Both orders are below their primes, and half the prime is below either.
    let r = below::<C::Order, V, N>(canonical::<C::Field, V, N>(x));
    let mut s = r;
    V::order_times(&mut s, &key);
    // Below 2 n and 2 n; the product with the inverse below (2 * 4 / 16 + 1) n.
    s = carry(add(s, digest));
    V::order_times(&mut s, &inverse);
    let s = below::<C::Order, V, N>(s);
    let bad = V::either(is_zero(r), is_zero(s));
    ([r, s], V::not(bad))
}

/// A scalar in Montgomery's form and below `2 n`, one alone, in plain code: for expanding a key.
pub fn scalar_to_montgomery<C: Curve<N>, const N: usize>(plain: &Limbs<N>) -> Limbs<N> {
    scatter(to_montgomery::<C::Order, Model, N>(gather(&[*plain; LANES])))[0]
}
