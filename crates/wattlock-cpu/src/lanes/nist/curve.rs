//! What is P-256 and what is P-384 (SP 800-186 sections 3.2.1.3 and 3.2.1.4): primes, their reduction, coefficients.

use std::sync::LazyLock;

use p256::elliptic_curve::BatchNormalize;
use p256::elliptic_curve::group::Group;
use p256::elliptic_curve::point::AffineCoordinates;

use super::super::vector::Vector;
use super::comb::{self, Comb};
use super::field::{
    COLUMNS, Field, Limbs, Modulus, add, carry, general_step, limbs, negated_inverse, shifted, splat, times,
};
use super::nonce::{NonceHash, WithSha256, WithSha384};
use crate::software::nist::Nist;

/// The multiples of a curve's generator that a [`Comb`] holds, by the portable arithmetic: a millisecond or two, once in a
/// process.
macro_rules! multiples {
    ($portable:ident, $bits:expr) => {{
        let mut base = $portable::ProjectivePoint::GENERATOR;
        let mut points = Vec::new();
        for _ in 0..comb::windows($bits) {
            let mut multiple = base;
            for _ in 0..comb::ENTRIES {
                points.push(multiple);
                multiple += base;
            }
            base = points[points.len() - 1].double();
        }
        let affine = $portable::ProjectivePoint::batch_normalize(points.as_slice());
        affine.iter().map(|point| [point.x().to_vec(), point.y().to_vec()]).collect::<Vec<_>>()
    }};
}

/// A curve `y^2 = x^3 - 3 x + b` of prime order.
pub trait Curve<const N: usize>: Sized + 'static {
    /// Coordinates.
    type Field: Field<N>;
    /// Scalars.
    type Order: Modulus<N>;
    /// What nonces are made with.
    type Hash: NonceHash;
    /// The same curve in the portable engine.
    type Portable: Nist;

    /// Bits of a coordinate and of a scalar.
    const BITS: usize;
    /// Bytes of either.
    const BYTES: usize = Self::BITS / 8;
    /// `b` in Montgomery's form.
    const B: Limbs<N>;
    /// The generator, plain.
    const GENERATOR: [Limbs<N>; 2];

    /// The generator's multiples.
    fn comb() -> &'static Comb<N>;
}

/// P-256.
pub struct P256;

/// Coordinates of P-256: `p = 2^256 - 2^224 + 2^192 + 2^96 - 1`.
pub struct P256Field;

/// Scalars of P-256.
pub struct P256Order;

/// P-384.
pub struct P384;

/// Coordinates of P-384: `p = 2^384 - 2^128 - 2^96 + 2^32 - 1`.
pub struct P384Field;

/// Scalars of P-384.
pub struct P384Order;

impl Curve<5> for P256 {
    type Field = P256Field;
    type Order = P256Order;
    type Hash = WithSha256;
    type Portable = p256::NistP256;

    const BITS: usize = 256;
    const B: Limbs<5> = shifted(
        limbs("5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B"),
        52 * 5,
        &P256Field::PRIME,
    );
    const GENERATOR: [Limbs<5>; 2] = [
        limbs("6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296"),
        limbs("4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5"),
    ];

    fn comb() -> &'static Comb<5> {
        static COMB: LazyLock<Comb<5>> = LazyLock::new(|| Comb::new::<P256>(&multiples!(p256, P256::BITS)));
        &COMB
    }
}

impl Modulus<5> for P256Field {
    const PRIME: Limbs<5> = limbs("FFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF");

    /// `-1 / p mod 2^52` is 1, so `m` is the column itself, of which the multiplier reads 52 bits. With `p + 1`
    /// instead of `p` (limbs 0, 2^44, 0, 2^36, 2^48 - 2^16) the column is not changed, and subtracting `m` from it
    /// leaves exactly the part that is passed on. Six multiplications.
    #[inline(always)]
    fn step<V: Vector>(columns: &mut [V; COLUMNS], at: usize) {
        let m = columns[at];
        let (low, middle, high) = (V::splat(1 << 44), V::splat(1 << 36), V::splat((1 << 48) - (1 << 16)));
        columns[at + 1] = columns[at + 1].add(m.sar::<52>()).mul_lo(m, low);
        columns[at + 2] = columns[at + 2].mul_hi(m, low);
        columns[at + 3] = columns[at + 3].mul_lo(m, middle);
        columns[at + 4] = columns[at + 4].mul_hi(m, middle).mul_lo(m, high);
        columns[at + 5] = columns[at + 5].mul_hi(m, high);
    }
}

impl Field<5> for P256Field {
    /// `2^256 = 2^224 - 2^192 - 2^96 + 1 mod p`. With `h` the top limb's part above bit 256, of magnitude below 2^13
    /// (the top limb is below 2^61), what remains of the value is in `[0, 2^256)` except for the looseness of the four
    /// lower limbs, below 2^(61 + 156 + 1) together, and folding `h` adds less than 2^(13 + 224): so the sum is above
    /// `-2^238` and below `2^256 + 2^238`, and with `p` added in `(0, 2.01 p)`.
    #[inline(always)]
    fn settle<V: Vector>(mut loose: [V; 5]) -> [V; 5] {
        let high = loose[4].sar::<48>();
        loose[4] = loose[4].and(V::splat((1 << 48) - 1)).add(high.shl::<16>());
        loose[3] = loose[3].sub(high.shl::<36>());
        loose[1] = loose[1].sub(high.shl::<44>());
        loose[0] = loose[0].add(high);
        carry(add(loose, splat(&Self::PRIME)))
    }

    #[inline(always)]
    fn raise<V: Vector, const K: u64>(loose: [V; 5]) -> [V; 5] {
        add(loose, splat(&const { times(&Self::PRIME, K) }))
    }
}

impl Modulus<5> for P256Order {
    const PRIME: Limbs<5> = limbs("FFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551");

    #[inline(always)]
    fn step<V: Vector>(columns: &mut [V; COLUMNS], at: usize) {
        general_step(columns, at, &Self::PRIME, const { negated_inverse(Self::PRIME[0]) });
    }
}

impl Curve<8> for P384 {
    type Field = P384Field;
    type Order = P384Order;
    type Hash = WithSha384;
    type Portable = p384::NistP384;

    const BITS: usize = 384;
    const B: Limbs<8> = shifted(
        limbs(
            "B3312FA7E23EE7E4988E056BE3F82D19181D9C6EFE8141120314088F5013875AC656398D8A2ED19D2A85C8EDD3EC2AEF",
        ),
        52 * 8,
        &P384Field::PRIME,
    );
    const GENERATOR: [Limbs<8>; 2] = [
        limbs(
            "AA87CA22BE8B05378EB1C71EF320AD746E1D3B628BA79B9859F741E082542A385502F25DBF55296C3A545E3872760AB7",
        ),
        limbs(
            "3617DE4A96262C6F5D9E98BF9292DC29F8F41DBD289A147CE9DA3113B5F0B8C00A60B1CE1D7E819D7A431D7C90EA0E5F",
        ),
    ];

    fn comb() -> &'static Comb<8> {
        static COMB: LazyLock<Comb<8>> = LazyLock::new(|| Comb::new::<P384>(&multiples!(p384, P384::BITS)));
        &COMB
    }
}

impl Modulus<8> for P384Field {
    const PRIME: Limbs<8> = limbs(
        "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEFFFFFFFF0000000000000000FFFFFFFF",
    );

    /// `p` is its three lowest limbs `+ 2^384 - 2^156`: the four limbs of ones become one subtraction of `m` and one
    /// multiplication by 2^20 in limb 7. Columns may so become negative, by less than 2^52 a step, which the arithmetic
    /// shift passes on; their low 52 bits are right in two's complement. Nine multiplications.
    #[inline(always)]
    fn step<V: Vector>(columns: &mut [V; COLUMNS], at: usize) {
        const FACTOR: u64 = negated_inverse(P384Field::PRIME[0]);
        let m = V::splat(0).mul_lo(columns[at], V::splat(FACTOR));
        let (p0, p1, p2) = (V::splat(Self::PRIME[0]), V::splat(Self::PRIME[1]), V::splat(Self::PRIME[2]));
        let top = V::splat(1 << 20);
        let lowest = columns[at].mul_lo(m, p0);
        columns[at + 1] = columns[at + 1].mul_hi(m, p0).mul_lo(m, p1).add(lowest.sar::<52>());
        columns[at + 2] = columns[at + 2].mul_hi(m, p1).mul_lo(m, p2);
        columns[at + 3] = columns[at + 3].mul_hi(m, p2).sub(m);
        columns[at + 7] = columns[at + 7].mul_lo(m, top);
        columns[at + 8] = columns[at + 8].mul_hi(m, top);
    }
}

impl Field<8> for P384Field {
    /// There is room for 2^32 times `p`: a multiple that makes the value positive is enough.
    #[inline(always)]
    fn settle<V: Vector>(loose: [V; 8]) -> [V; 8] {
        carry(add(loose, splat(&const { times(&Self::PRIME, 512) })))
    }

    #[inline(always)]
    fn raise<V: Vector, const K: u64>(loose: [V; 8]) -> [V; 8] {
        add(loose, splat(&const { times(&Self::PRIME, 2048) }))
    }
}

impl Modulus<8> for P384Order {
    const PRIME: Limbs<8> = limbs(
        "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFC7634D81F4372DDF581A0DB248B0A77AECEC196ACCC52973",
    );

    #[inline(always)]
    fn step<V: Vector>(columns: &mut [V; COLUMNS], at: usize) {
        general_step(columns, at, &Self::PRIME, const { negated_inverse(Self::PRIME[0]) });
    }
}
