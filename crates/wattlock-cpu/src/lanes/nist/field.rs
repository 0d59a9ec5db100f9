//! Arithmetic modulo a prime of 256 or 384 bits in eight lanes: 5 or 8 limbs of 52 bits, Montgomery's reduction.
//!
//! *Forms.* A number is `N` vectors, lowest limb first. It is *tight* if every limb is in `[0, 2^52)`: only such limbs may
//! be multiplied, because the multiplier reads 52 bits. It is *loose* if limbs are signed 64-bit numbers of magnitude
//! below 2^61, as sums, differences and small multiples of products are. [`carry`] makes a loose number whose *value*
//! is in `[0, 2^(52 N))` tight: an arithmetic shift takes each limb's excess, of either sign, to the next, and the
//! top limb, left with the value's top bits, is in range because the value is. Values are any representative of their
//! residue; how far above the modulus is written as a multiple `c` of it, "below c p", at each formula.
//!
//! *Columns.* A product of tight numbers has `2 N` columns. Column `k` takes at most `N` low halves and `N` high halves,
//! each below 2^52, so at most `2 N 2^52 <= 2^56`. Two products may be summed before reduction: below 2^57. Squares
//! double the columns of their unequal pairs once: the same bound.
//!
//! *Reduction* (Montgomery 1985, one limb at a time). Step `i` adds `m p 2^(52 i)` with `m` such that column `i` becomes
//! a multiple of 2^52, and passes what is above on: after `N` steps the upper columns are `T / R mod p`, `R = 2^(52 N)`.
//! A step adds to a column at most five numbers below 2^52 (or, for a general modulus, two), so that over `N` steps a
//! column grows by less than `6 N 2^52 < 2^58`, and what is passed on is below 2^7: no column reaches 2^59. The
//! value is below `T / R + p`. With `A < a p`, `B < b p` and `p < 2^256` it is below `(a b / 16 + 1) p` for 5 limbs, and,
//! with `p < 2^384`, below `(a b / 2^32 + 1) p` for 8.

use super::super::vector::{MASK52, Vector};

/// Columns of the longest product.
pub const COLUMNS: usize = 16;

/// Limbs of a number that is the same in every lane.
pub type Limbs<const N: usize> = [u64; N];

/// A prime and its reduction step.
pub trait Modulus<const N: usize>: 'static {
    /// The prime.
    const PRIME: Limbs<N>;

    /// Reduction step `at`: see the head of this file.
    fn step<V: Vector>(columns: &mut [V; COLUMNS], at: usize);

    /// `R mod p`: one, as Montgomery writes it.
    const ONE: Limbs<N> = shifted(one(), 52 * N, &Self::PRIME);
    /// `R^2 mod p`: multiplying by it brings a plain number into Montgomery's form.
    const SQUARE: Limbs<N> = shifted(one(), 104 * N, &Self::PRIME);
    /// One, plain: multiplying by it brings a number out of Montgomery's form.
    const PLAIN: Limbs<N> = one();
    /// `p - 2`, the exponent of inversion (Fermat).
    const INVERSION: Limbs<N> = minus_two(&Self::PRIME);
}

/// The prime of a curve's coordinates: formulas subtract.
pub trait Field<const N: usize>: Modulus<N> {
    /// From any loose value of magnitude below 2^5 p (and limbs below 2^61) to a tight one of the same residue, *settled*:
    /// below 2.01 p for 5 limbs, below 1024 p for 8, where there is no need of less.
    fn settle<V: Vector>(loose: [V; N]) -> [V; N];

    /// Adds a multiple of `p` that keeps a difference from becoming negative: `K p` for 5 limbs. For 8 limbs, where
    /// settled values reach further and there is room, `2048 p` whatever `K` is.
    fn raise<V: Vector, const K: u64>(loose: [V; N]) -> [V; N];
}

/// Hexadecimal digits, highest first, as limbs.
pub const fn limbs<const N: usize>(hex: &str) -> Limbs<N> {
    let (digits, mut out, mut at) = (hex.as_bytes(), [0; N], 0);
    while at < digits.len() {
        let digit = digits[digits.len() - 1 - at];
        let value = if digit <= b'9' { digit - b'0' } else { digit - b'A' + 10 };
        out[at / 13] |= (value as u64) << (4 * (at % 13));
        at += 1;
    }
    out
}

const fn one<const N: usize>() -> Limbs<N> {
    let mut out = [0; N];
    out[0] = 1;
    out
}

/// `a - b` and whether it borrowed.
pub const fn minus<const N: usize>(a: &Limbs<N>, b: &Limbs<N>) -> (Limbs<N>, bool) {
    let (mut out, mut borrow, mut at) = ([0; N], 0, 0);
    while at < N {
        let difference = a[at].wrapping_sub(b[at]).wrapping_sub(borrow);
        (out[at], borrow) = (difference & MASK52, difference >> 63);
        at += 1;
    }
    (out, borrow == 1)
}

const fn minus_two<const N: usize>(prime: &Limbs<N>) -> Limbs<N> {
    let mut two = [0; N];
    two[0] = 2;
    minus(prime, &two).0
}

/// `value * 2^bits mod prime`, for constants: variable time.
pub const fn shifted<const N: usize>(value: Limbs<N>, bits: usize, prime: &Limbs<N>) -> Limbs<N> {
    let (mut value, mut done) = (value, 0);
    while done < bits {
        value = times(&value, 2);
        let (less, borrowed) = minus(&value, prime);
        if !borrowed {
            value = less;
        }
        done += 1;
    }
    value
}

/// `value * factor`, which must fit.
pub const fn times<const N: usize>(value: &Limbs<N>, factor: u64) -> Limbs<N> {
    let (mut out, mut carry, mut at) = ([0; N], 0u128, 0);
    while at < N {
        carry += value[at] as u128 * factor as u128;
        out[at] = carry as u64 & MASK52;
        carry >>= 52;
        at += 1;
    }
    out
}

/// `-1 / prime mod 2^52` (Newton: each round doubles the bits that are right).
pub const fn negated_inverse(lowest: u64) -> u64 {
    let (mut inverse, mut round) = (1u64, 0);
    while round < 6 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(lowest.wrapping_mul(inverse)));
        round += 1;
    }
    inverse.wrapping_neg() & MASK52
}

/// The same number in every lane.
#[inline(always)]
pub fn splat<V: Vector, const N: usize>(number: &Limbs<N>) -> [V; N] {
    let mut out = [V::splat(0); N];
    for at in 0..N {
        out[at] = V::splat(number[at]);
    }
    out
}

/// Loose sum.
#[inline(always)]
pub fn add<V: Vector, const N: usize>(a: [V; N], b: [V; N]) -> [V; N] {
    let mut out = a;
    for at in 0..N {
        out[at] = a[at].add(b[at]);
    }
    out
}

/// Loose difference.
#[inline(always)]
pub fn sub<V: Vector, const N: usize>(a: [V; N], b: [V; N]) -> [V; N] {
    let mut out = a;
    for at in 0..N {
        out[at] = a[at].sub(b[at]);
    }
    out
}

/// Loose multiple by a power of two.
#[inline(always)]
pub fn shl<V: Vector, const BITS: u32, const N: usize>(a: [V; N]) -> [V; N] {
    let mut out = a;
    for at in 0..N {
        out[at] = a[at].shl::<BITS>();
    }
    out
}

/// `yes` where the mask is set, else `no`.
#[inline(always)]
pub fn choose<V: Vector, const N: usize>(mask: V::Mask, yes: [V; N], no: [V; N]) -> [V; N] {
    let mut out = no;
    for at in 0..N {
        out[at] = V::choose(mask, yes[at], no[at]);
    }
    out
}

/// The loose negative where the mask is set.
#[inline(always)]
pub fn negate_if<V: Vector, const N: usize>(mask: V::Mask, a: [V; N]) -> [V; N] {
    let mut out = a;
    for at in 0..N {
        out[at] = V::choose(mask, V::splat(0).sub(a[at]), a[at]);
    }
    out
}

/// From a loose number whose value is in `[0, 2^(52 N))` to the tight one.
#[inline(always)]
pub fn carry<V: Vector, const N: usize>(loose: [V; N]) -> [V; N] {
    let mut out = loose;
    for at in 0..N - 1 {
        out[at + 1] = out[at + 1].add(out[at].sar::<52>());
        out[at] = out[at].and(V::splat(MASK52));
    }
    out
}

/// For each limb: a loop that is written out, because the compiler keeps large ones.
macro_rules! each_limb {
    ($i:ident => $body:block) => {
        each_limb!(@ $i $body 0 1 2 3 4 5 6 7)
    };
    (@ $i:ident $body:block $($at:literal)*) => {$(
        if $at < N {
            let $i: usize = $at;
            $body
        }
    )*};
}

/// The loose product of tight numbers, reduced.
#[inline(always)]
pub fn mul<M: Modulus<N>, V: Vector, const N: usize>(a: [V; N], b: [V; N]) -> [V; N] {
    if V::OUTLINED { outlined::mul::<M, V, N>(a, b) } else { inlined::mul::<M, V, N>(a, b) }
}

/// `a b + c d` of tight numbers, loose, reduced once.
#[inline(always)]
pub fn mul_sum<M: Modulus<N>, V: Vector, const N: usize>(ab: [[V; N]; 2], cd: [[V; N]; 2]) -> [V; N] {
    if V::OUTLINED { outlined::mul_sum::<M, V, N>(ab, cd) } else { inlined::mul_sum::<M, V, N>(ab, cd) }
}

/// The bodies of the three.
mod inlined {
    use super::*;

    #[inline(always)]
    pub fn mul<M: Modulus<N>, V: Vector, const N: usize>(a: [V; N], b: [V; N]) -> [V; N] {
        let mut columns = [V::splat(0); COLUMNS];
        each_limb!(i => {
            row(&mut columns, i, a[i], &b);
            M::step(&mut columns, i);
        });
        upper(&columns)
    }

    #[inline(always)]
    pub fn mul_sum<M: Modulus<N>, V: Vector, const N: usize>(
        [a, b]: [[V; N]; 2],
        [c, d]: [[V; N]; 2],
    ) -> [V; N] {
        let mut columns = [V::splat(0); COLUMNS];
        each_limb!(i => {
            row(&mut columns, i, a[i], &b);
            row(&mut columns, i, c[i], &d);
            M::step(&mut columns, i);
        });
        upper(&columns)
    }

    #[inline(always)]
    pub fn square<M: Modulus<N>, V: Vector, const N: usize>(a: [V; N]) -> [V; N] {
        let mut columns = [V::splat(0); COLUMNS];
        each_limb!(i => {
            for j in i + 1..N {
                columns[i + j] = columns[i + j].mul_lo(a[i], a[j]);
            }
            for j in i + 1..N {
                columns[i + j + 1] = columns[i + j + 1].mul_hi(a[i], a[j]);
            }
        });
        for column in columns.iter_mut().take(2 * N - 1).skip(1) {
            *column = column.add(*column);
        }
        each_limb!(i => {
            columns[2 * i] = columns[2 * i].mul_lo(a[i], a[i]);
            columns[2 * i + 1] = columns[2 * i + 1].mul_hi(a[i], a[i]);
        });
        each_limb!(i => {
            M::step(&mut columns, i);
        });
        upper(&columns)
    }
}

/// The same as functions.
mod outlined {
    use super::{Modulus, Vector, inlined};

    #[inline(never)]
    pub fn mul<M: Modulus<N>, V: Vector, const N: usize>(a: [V; N], b: [V; N]) -> [V; N] {
        inlined::mul::<M, V, N>(a, b)
    }

    #[inline(never)]
    pub fn mul_sum<M: Modulus<N>, V: Vector, const N: usize>(ab: [[V; N]; 2], cd: [[V; N]; 2]) -> [V; N] {
        inlined::mul_sum::<M, V, N>(ab, cd)
    }

    #[inline(never)]
    pub fn square<M: Modulus<N>, V: Vector, const N: usize>(a: [V; N]) -> [V; N] {
        inlined::square::<M, V, N>(a)
    }
}

#[inline(always)]
fn row<V: Vector, const N: usize>(columns: &mut [V; COLUMNS], i: usize, a: V, b: &[V; N]) {
    for j in 0..N {
        columns[i + j] = columns[i + j].mul_lo(a, b[j]);
    }
    for j in 0..N {
        columns[i + j + 1] = columns[i + j + 1].mul_hi(a, b[j]);
    }
}

/// The loose square of a tight number, reduced.
#[inline(always)]
pub fn square<M: Modulus<N>, V: Vector, const N: usize>(a: [V; N]) -> [V; N] {
    if V::OUTLINED { outlined::square::<M, V, N>(a) } else { inlined::square::<M, V, N>(a) }
}

#[inline(always)]
#[allow(clippy::manual_memcpy, reason = "registers, not memory")]
fn upper<V: Vector, const N: usize>(columns: &[V; COLUMNS]) -> [V; N] {
    let mut out = [V::splat(0); N];
    for at in 0..N {
        out[at] = columns[N + at];
    }
    out
}

/// A reduction step for any modulus: `factor` is `-1 / p mod 2^52`.
#[inline(always)]
pub fn general_step<V: Vector, const N: usize>(
    columns: &mut [V; COLUMNS],
    at: usize,
    prime: &Limbs<N>,
    factor: u64,
) {
    let m = V::splat(0).mul_lo(columns[at], V::splat(factor));
    row(columns, at, m, &splat(prime));
    columns[at + 1] = columns[at + 1].add(columns[at].sar::<52>());
}

/// The tight representative below `p` of a tight number in Montgomery's form, plain. The multiplication by one leaves a
/// value of at most `p`, so one subtraction does.
#[inline(always)]
pub fn canonical<M: Modulus<N>, V: Vector, const N: usize>(a: [V; N]) -> [V; N] {
    below::<M, V, N>(carry(mul::<M, V, N>(a, splat(&M::PLAIN))))
}

/// The tight representative below `p` of a tight number below `2 p`.
#[inline(always)]
pub fn below<M: Modulus<N>, V: Vector, const N: usize>(a: [V; N]) -> [V; N] {
    let mut less = sub(a, splat(&M::PRIME));
    for at in 0..N - 1 {
        less[at + 1] = less[at + 1].add(less[at].sar::<52>());
        less[at] = less[at].and(V::splat(MASK52));
    }
    // The top limb kept its sign: where it is negative, `a` was below the prime already.
    let borrowed = V::splat(0).is_less(less[N - 1].shr::<63>());
    choose(borrowed, a, less)
}

/// A tight number in Montgomery's form, tight and below 2 p.
#[inline(always)]
pub fn to_montgomery<M: Modulus<N>, V: Vector, const N: usize>(a: [V; N]) -> [V; N] {
    carry(mul::<M, V, N>(a, splat(&M::SQUARE)))
}

/// Where a canonical number is zero.
#[inline(always)]
pub fn is_zero<V: Vector, const N: usize>(a: [V; N]) -> V::Mask {
    let mut any = a[0];
    for limb in a.iter().skip(1) {
        any = any.or(*limb);
    }
    any.is_equal(V::splat(0))
}
