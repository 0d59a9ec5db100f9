//! Multiples of points by secret scalars, and inverses, in eight lanes.
//!
//! *Digits.* A window of `w` bits and the bit below it is a signed digit in `[-2^(w-1), 2^(w-1)]` (Booth): the window's
//! bits and the bit below count positive, the window's top bit counts `-2^w` in all, which the next window's bit below
//! makes good. Digits are a sum to the scalar and each can be read without the others.
//!
//! *No exceptional addition, variable base* (`w = 5`, from the top). Let the point so far be `q P`, with `q` the sum of the
//! digits read so far: the scalar's upper bits, rounded, so never negative. A digit zero is not added, and while
//! `q = 0` the first digit (which is so positive) replaces the point: let `q >= 1` and `d != 0`. After five doublings
//! there is `32 q >= 32`, and `|d| <= 16`: neither `32 q + d` nor `32 q - d` is zero. Before the last digit both are far
//! below the order `n`, so the points differ in either sign. With the last digit `32 q + d = k`, between 0 and `n`, so
//! the sum is not infinite. Equal they are only if `32 q - d`, above 0 and below `2 n`, is `n`: then `d = -n mod 32`,
//! and as the orders are 17 and 19 modulo 32, `d` is 15 or 13, positive, so `k = n + 2 d > n`: never.
//!
//! *No exceptional addition, fixed base* (`w = 6`, from the bottom). Before window `j` the point is `q G` with
//! `|q| <= 2^(6 j - 1)`, and with a digit `d != 0` there is `|d 2^(6 j)| >= 2^(6 j)`: neither sum nor difference is zero.
//! Below the top window both are below `n` in magnitude, so the points differ in either sign. In the top window
//! the sum is `k`, between 0 and `n`, and `d > 0`. The difference `d 2^(6 j) - q = k - 2 q`, above 0, would have to be `n`:
//! then `q` is negative (else `k >= n`), at least `-2^(6 j - 1)`, so that what `n` has below the top window is `-q`, at most
//! half of `2^(6 j)`. But both orders begin with 32 ones: in P-256's 252 bits below the top window it is more than half.
//! P-384's top window begins at bit 384: `d = 1`, `k >= 2^383`, and `2^384 - q = 2^385 - k` is above `n` and below `2 n`.

use super::super::vector::{MASK52, Vector};
use super::comb;
use super::curve::Curve;
use super::field::{Limbs, Modulus, choose, splat};
use super::pieces::{Pieces, Table};
use super::point::{Addend, Point, one};

/// Bits of a window of the variable base.
const WINDOW: usize = 5;

/// Multiples in its table.
const ENTRIES: usize = 1 << (WINDOW - 1);

/// Windows of a scalar of so many bits.
const fn windows(bits: usize) -> usize {
    bits / WINDOW + 1
}

/// How far to the left a scalar for [`variable`] is shifted, that its top window ends where its limbs do.
pub const fn alignment<const N: usize>(bits: usize) -> usize {
    52 * N - WINDOW * windows(bits)
}

/// A digit's magnitude and where it is negative, from a window of `w` bits and the bit below.
#[inline(always)]
fn digit<V: Vector>(window: V, half: u64) -> (V, V::Mask) {
    let positive = window.add(V::splat(1)).shr::<1>();
    let negative = V::not(window.is_less(V::splat(2 * half)));
    let magnitude = V::choose(negative, V::splat(2 * half).sub(positive), positive);
    (magnitude, negative)
}

/// `k P` for an affine point in Montgomery's form, on the curve, tight and below 2 p, and `0 < k < n` shifted by
/// [`alignment`]. `disturb` may change the point after a window: a test's fault.
#[inline(always)]
pub fn variable<C: Curve<N>, V: Pieces<C, N>, const N: usize>(
    mut k: [V; N],
    [x, y]: [[V; N]; 2],
    table: &mut Table<V, N>,
    disturb: impl Fn(usize, &mut Point<V, N>),
) -> Point<V, N> {
    multiples::<C, V, N>([x, y], table);
    let mut point = Point::none();
    let mut empty = V::splat(0).is_equal(V::splat(0));
    for window in 0..windows(C::BITS) {
        if window > 0 {
            V::double_times(&mut point, WINDOW);
        }
        let (magnitude, negative) = digit(k[N - 1].shr::<46>(), 1 << (WINDOW - 1));
        shift_up(&mut k);
        V::add_picked(&mut point, table, magnitude, negative, &mut empty);
        disturb(window, &mut point);
    }
    point
}

/// `P` to `16 P`.
#[inline(always)]
fn multiples<C: Curve<N>, V: Pieces<C, N>, const N: usize>([x, y]: [[V; N]; 2], table: &mut Table<V, N>) {
    let one = one::<C::Field, V, N>();
    table[0] = Addend { point: Point { x, y, z: one }, zz: one, zzz: one };
    let positive = V::splat(1).is_equal(V::splat(0));
    for at in 1..ENTRIES {
        let multiple = at + 1;
        let mut point = if multiple % 2 == 0 { table[multiple / 2 - 1] } else { table[at - 1] }.point;
        if multiple % 2 == 0 {
            V::double_times(&mut point, 1);
        } else {
            V::add_affine(&mut point, &[x, y], positive);
        }
        V::addend_into(&point, &mut table[at]);
    }
}

/// What the table has for each lane, by looking at all of it.
#[inline(always)]
pub fn scan<V: Vector, const N: usize>(table: &Table<V, N>, magnitude: V) -> Addend<V, N> {
    let mut out = table[0];
    for (at, entry) in table.iter().enumerate().skip(1) {
        let here = magnitude.is_equal(V::splat(at as u64 + 1));
        out.point = Point::choose(here, entry.point, out.point);
        out.zz = choose(here, entry.zz, out.zz);
        out.zzz = choose(here, entry.zzz, out.zzz);
    }
    out
}

#[inline(always)]
fn shift_up<V: Vector, const N: usize>(k: &mut [V; N]) {
    for at in (1..N).rev() {
        k[at] = k[at].shl::<5>().or(k[at - 1].shr::<47>()).and(V::splat(MASK52));
    }
    k[0] = k[0].shl::<5>().and(V::splat(MASK52));
}

#[inline(always)]
fn shift_down<V: Vector, const N: usize>(k: &mut [V; N]) {
    for at in 0..N - 1 {
        k[at] = k[at].shr::<6>().or(k[at + 1].shl::<46>()).and(V::splat(MASK52));
    }
    k[N - 1] = k[N - 1].shr::<6>();
}

/// `k G` for `0 < k < n`, doubled: the lowest window has a bit below it. `disturb` may change the point after a window: a
/// test's fault.
#[inline(always)]
pub fn fixed<C: Curve<N>, V: Pieces<C, N>, const N: usize>(
    mut k: [V; N],
    disturb: impl Fn(usize, &mut Point<V, N>),
) -> Point<V, N> {
    let mut point = Point::none();
    let mut empty = V::splat(0).is_equal(V::splat(0));
    for window in 0..comb::windows(C::BITS) {
        let bits = k[0].and(V::splat((1 << (comb::BITS + 1)) - 1));
        let (magnitude, negative) = digit(bits, comb::ENTRIES as u64);
        shift_down(&mut k);
        V::add_from_comb(&mut point, window, magnitude, negative, &mut empty);
        disturb(window, &mut point);
    }
    point
}

/// The inverse of a coordinate in Montgomery's form, tight and below 2 p; zero of zero (Fermat: `a^(p - 2)`).
#[inline(always)]
pub fn field_inverse<C: Curve<N>, V: Pieces<C, N>, const N: usize>(a: [V; N]) -> [V; N] {
    let powers = odd_powers::<V, N>(a, V::field_times, V::field_squares);
    let mut power = splat(&<C::Field as Modulus<N>>::ONE);
    let mut top = C::BITS;
    while let Some(next) = window(&<C::Field as Modulus<N>>::INVERSION, top) {
        V::field_squares(&mut power, top - next.low);
        V::field_times(&mut power, &powers[next.half]);
        top = next.low;
    }
    V::field_squares(&mut power, top);
    power
}

/// The inverses of a coordinate and of a scalar: their chains of squarings, each too serial to fill the machine, run
/// side by side.
#[inline(always)]
pub fn both_inverses<C: Curve<N>, V: Pieces<C, N>, const N: usize>(a: [V; N], b: [V; N]) -> [[V; N]; 2] {
    let field = odd_powers::<V, N>(a, V::field_times, V::field_squares);
    let order = odd_powers::<V, N>(b, V::order_times, V::order_squares);
    let (mut a, mut b) = (splat(&<C::Field as Modulus<N>>::ONE), splat(&<C::Order as Modulus<N>>::ONE));
    let mut next_a = window(&<C::Field as Modulus<N>>::INVERSION, C::BITS);
    let mut next_b = window(&<C::Order as Modulus<N>>::INVERSION, C::BITS);
    let mut top = C::BITS;
    while next_a.is_some() || next_b.is_some() {
        let low = next_a.map_or(0, |next| next.low).max(next_b.map_or(0, |next| next.low));
        V::both_squares(&mut a, &mut b, top - low);
        top = low;
        if let Some(next) = next_a.filter(|next| next.low == low) {
            V::field_times(&mut a, &field[next.half]);
            next_a = window(&<C::Field as Modulus<N>>::INVERSION, low);
        }
        if let Some(next) = next_b.filter(|next| next.low == low) {
            V::order_times(&mut b, &order[next.half]);
            next_b = window(&<C::Order as Modulus<N>>::INVERSION, low);
        }
    }
    V::both_squares(&mut a, &mut b, top);
    [a, b]
}

/// `a`, `a^3`, to `a^31`.
#[inline(always)]
fn odd_powers<V: Vector, const N: usize>(
    a: [V; N],
    times: fn(&mut [V; N], &[V; N]),
    squares: fn(&mut [V; N], usize),
) -> [[V; N]; 16] {
    let mut powers = [a; 16];
    let mut twice = a;
    squares(&mut twice, 1);
    for at in 1..16 {
        let mut power = powers[at - 1];
        times(&mut power, &twice);
        powers[at] = power;
    }
    powers
}

/// Up to five bits of an exponent, of which the lowest is set.
#[derive(Clone, Copy)]
struct Window {
    /// Where the lowest is.
    low: usize,
    /// The bits above it.
    half: usize,
}

/// The highest window below bit `top`. Exponents are public: primes less two.
fn window<const N: usize>(exponent: &Limbs<N>, top: usize) -> Option<Window> {
    let bit = |at: usize| (exponent[at / 52] >> (at % 52) & 1) as usize;
    let highest = (0..top).rev().find(|at| bit(*at) == 1)?;
    let low = (highest.saturating_sub(4)..=highest).find(|at| bit(*at) == 1)?;
    let half = (low + 1..=highest).rev().fold(0, |half, at| half << 1 | bit(at));
    Some(Window { low, half })
}

/// A table that holds nothing yet.
#[inline(always)]
pub fn empty_table<V: Vector, const N: usize>() -> Table<V, N> {
    let zero = [V::splat(0); N];
    [Addend { point: Point::none(), zz: zero, zzz: zero }; ENTRIES]
}
