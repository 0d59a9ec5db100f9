//! The three operations from numbers to numbers. Everything is secret but the peers' coordinates and what is returned;
//! nothing is read back from the lanes before the end.
//!
//! *Faults.* Each operation also says in which lanes its result is *sound*; what is not sound must not leave. A faulted
//! signature or a point off the curve can give the key away (Biehl, Meyer, Mueller 2000). Sound means:
//!
//! - the point that a scalar multiplication ends with is on the curve. A coordinate that was changed at any time during the
//!   multiplication, before, or during the inversion of Z moves the point off the curve, except with a chance of about
//!   one in p. What stays on the curve is not found: a wrong digit, a skipped addition, another entry of the table. It
//!   costs two squarings and a multiplication, 0.1 % of a pass;
//! - for a signature also `s k = e + r d`, with the right side computed anew: the inverse of `k`, the sum and the last product are
//!   right. What is not found is a nonce, a key or a digest that was wrong from the beginning. It costs three
//!   multiplications. (Verifying with the public key would find that too, and would cost twice the pass.)

use super::super::vector::LANES;
use super::super::vector::model::Model;
use super::comb;
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

/// Where an affine point that was computed is sound.
#[inline(always)]
fn sound<C: Curve<N>, V: Pieces<C, N>, const N: usize>([x, y]: [[V; N]; 2]) -> V::Mask {
    on_curve::<C, V, N>(x, y)
}

/// The x coordinate of `k P`, plain, where `P` is a point of the curve, and where the result is sound. `k`, shifted by
/// [`super::multiply::alignment`], is in `[1, n)`; coordinates are plain and below `p`.
#[inline(always)]
pub fn derive<C: Curve<N>, V: Pieces<C, N>, const N: usize>(
    k: [V; N],
    [x, y]: [[V; N]; 2],
    table: &mut Table<V, N>,
    disturb: impl Fn(usize, &mut Point<V, N>),
) -> ([V; N], [V::Mask; 2]) {
    let good = on_curve::<C, V, N>(to_montgomery::<C::Field, V, N>(x), to_montgomery::<C::Field, V, N>(y));
    let x = to_montgomery::<C::Field, V, N>(choose(good, x, splat(&C::GENERATOR[0])));
    let y = to_montgomery::<C::Field, V, N>(choose(good, y, splat(&C::GENERATOR[1])));
    let shared = variable::<C, V, N>(k, [x, y], table, disturb);
    let [x, y] = affine::<C, V, N>(&shared, field_inverse::<C, V, N>(shared.z));
    (canonical::<C::Field, V, N>(x), [good, sound::<C, V, N>([x, y])])
}

/// `k G`, plain, and where it is sound. `k` is in `[1, n)`.
#[inline(always)]
pub fn generate<C: Curve<N>, V: Pieces<C, N>, const N: usize>(
    k: [V; N],
    disturb: impl Fn(usize, &mut Point<V, N>),
) -> ([[V; N]; 2], V::Mask) {
    let point = fixed::<C, V, N>(carry(shl::<V, 1, N>(k)), disturb);
    let [x, y] = affine::<C, V, N>(&point, field_inverse::<C, V, N>(point.z));
    let sound = sound::<C, V, N>([x, y]);
    ([canonical::<C::Field, V, N>(x), canonical::<C::Field, V, N>(y)], sound)
}

/// `r` and `s` (FIPS 186-5 section 6.4.1), where neither is zero, and where they are sound. `disturb` is as for a
/// multiplication; its last window is that after the comb's, when its point's x is the nonce's inverse. `k` is in `[1, n)`, the key's scalar in Montgomery's form and
/// below `2 n`, the digest below `2^BITS`.
#[inline(always)]
pub fn sign<C: Curve<N>, V: Pieces<C, N>, const N: usize>(
    k: [V; N],
    key: [V; N],
    digest: [V; N],
    disturb: impl Fn(usize, &mut Point<V, N>),
) -> ([[V; N]; 2], [V::Mask; 2]) {
    let point = fixed::<C, V, N>(carry(shl::<V, 1, N>(k)), &disturb);
    let nonce = to_montgomery::<C::Order, V, N>(k);
    let [of_z, inverse] = both_inverses::<C, V, N>(point.z, nonce);
    let mut inverse = Point { x: inverse, ..Point::none() };
    disturb(comb::windows(C::BITS), &mut inverse);
    let [x, y] = affine::<C, V, N>(&point, of_z);
    let on_curve = sound::<C, V, N>([x, y]);
    // Both orders are below their primes, and half the prime is below either.
    let r = below::<C::Order, V, N>(canonical::<C::Field, V, N>(x));
    let mut s = r;
    V::order_times(&mut s, &key);
    // Below 2 n and 2 n; the product with the inverse below (2 * 4 / 16 + 1) n.
    s = carry(add(s, digest));
    V::order_times(&mut s, &inverse.x);
    let s = below::<C::Order, V, N>(s);
    let bad = V::either(is_zero(r), is_zero(s));
    let holds = equation::<C, V, N>([r, s], nonce, key, digest);
    ([r, s], [V::not(bad), V::both(on_curve, holds)])
}

/// Where `s k = e + r d`. `k` and `d` are in Montgomery's form and below `2 n`.
#[inline(always)]
fn equation<C: Curve<N>, V: Pieces<C, N>, const N: usize>(
    [r, mut s]: [[V; N]; 2],
    nonce: [V; N],
    mut key: [V; N],
    digest: [V; N],
) -> V::Mask {
    V::order_times(&mut s, &nonce);
    V::order_times(&mut key, &r);
    // Below 2 n, and below 2 n + 2^BITS, which is less than 4 n.
    let left = below::<C::Order, V, N>(s);
    let mut right = carry(add(key, digest));
    for _ in 0..3 {
        right = below::<C::Order, V, N>(right);
    }
    let mut differ = left;
    for at in 0..N {
        differ[at] = left[at].xor(right[at]);
    }
    is_zero(differ)
}

/// A scalar in Montgomery's form and below `2 n`, one alone, in plain code: for expanding a key.
pub fn scalar_to_montgomery<C: Curve<N>, const N: usize>(plain: &Limbs<N>) -> Limbs<N> {
    scatter(to_montgomery::<C::Order, Model, N>(gather(&[*plain; LANES])))[0]
}
