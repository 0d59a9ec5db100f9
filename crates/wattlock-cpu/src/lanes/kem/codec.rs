//! Coefficients from bytes and to bytes, rounded or not (FIPS 203 section 4.2.1), and from random bits (algorithm 8).
//!
//! A piece of 16 bytes holds eight coefficients, which its own bits of the encoding fill: 12, 10, 4 or 1 byte. The pieces of
//! a vector are loaded and stored one by one.

use super::ntt::Q;
use crate::lanes::vector::shorts::{Poly, Row, SHORTS, Shorts};

/// Bytes of a polynomial of 12, 10 and 4 bits a coefficient.
pub const BYTES12: usize = 384;
pub const BYTES10: usize = 320;
pub const BYTES4: usize = 128;

/// No byte, in an order.
const NO: u8 = 0x80;

/// Eight numbers, four times.
const fn rows(eight: [i16; 8]) -> Row {
    let (mut out, mut i) = ([0; SHORTS], 0);
    while i < SHORTS {
        out[i] = eight[i % 8];
        i += 1;
    }
    out
}

const EVEN12: Row = rows([0xfff, 0, 0xfff, 0, 0xfff, 0, 0xfff, 0]);
const ODD: Row = rows([0, -1, 0, -1, 0, -1, 0, -1]);
const JOIN12: Row = rows([1, 1 << 12, 1, 1 << 12, 1, 1 << 12, 1, 1 << 12]);
const JOIN10: Row = rows([1, 1 << 10, 1, 1 << 10, 1, 1 << 10, 1, 1 << 10]);
const JOIN4: Row = rows([1, 1 << 4, 1, 1 << 4, 1, 1 << 4, 1, 1 << 4]);
/// What brings ten bits, of which as many lie below as the number before says, to the top.
const TOP10: Row = rows([64, 16, 4, 1, 64, 16, 4, 1]);
const NIBBLES: Row = rows([0x0f, 0xf0, 0x0f, 0xf0, 0x0f, 0xf0, 0x0f, 0xf0]);
/// What brings a nibble to bit 11.
const TOP4: Row = rows([1 << 11, 1 << 7, 1 << 11, 1 << 7, 1 << 11, 1 << 7, 1 << 11, 1 << 7]);
const BITS: Row = rows([1, 2, 4, 8, 16, 32, 64, 128]);
/// What brings that bit to bit 7.
const TOP1: Row = rows([128, 64, 32, 16, 8, 4, 2, 1]);

const ORDER12: u128 = u128::from_le_bytes([0, 1, 1, 2, 3, 4, 4, 5, 6, 7, 7, 8, 9, 10, 10, 11]);
const PACKED12: u128 = u128::from_le_bytes([0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, NO, NO, NO, NO]);
const ORDER10: u128 = u128::from_le_bytes([0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 6, 7, 7, 8, 8, 9]);
const PACKED10: u128 = u128::from_le_bytes([0, 1, 2, 3, 4, 8, 9, 10, 11, 12, NO, NO, NO, NO, NO, NO]);
const ORDER4: u128 = u128::from_le_bytes([0, NO, 0, NO, 1, NO, 1, NO, 2, NO, 2, NO, 3, NO, 3, NO]);
const PACKED4: u128 = u128::from_le_bytes([0, 4, 8, 12, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO]);
const ORDER1: u128 = u128::from_le_bytes([0, NO, 0, NO, 0, NO, 0, NO, 0, NO, 0, NO, 0, NO, 0, NO]);

/// Whose the bytes are that are decoded.
pub trait Source {
    /// Four times 16 bytes.
    fn pieces<V: Shorts, const STEP: usize>(bytes: &[u8]) -> V;
}

/// Everybody's.
pub struct Public;

/// Nobody else's.
pub struct Secret;

impl Source for Public {
    #[inline(always)]
    fn pieces<V: Shorts, const STEP: usize>(bytes: &[u8]) -> V {
        V::public_pieces::<STEP>(bytes)
    }
}

impl Source for Secret {
    #[inline(always)]
    fn pieces<V: Shorts, const STEP: usize>(bytes: &[u8]) -> V {
        V::secret_pieces::<STEP>(bytes)
    }
}

/// Coefficients `32 * at` to `32 * at + 31` of 12 bits each, as they come, below 4096. Of what follows the polynomial four
/// bytes are read.
#[inline(always)]
pub fn decode12<V: Shorts, S: Source>(bytes: &[u8], at: usize) -> V {
    let moved: V = S::pieces::<V, 12>(&bytes[48 * at..]).shuffle(ORDER12);
    moved.and(V::row(&EVEN12)).or(moved.shr16::<4>().and(V::row(&ODD)))
}

/// Ten bits of each coefficient, at bit 5 of 15. Six bytes more are read.
#[inline(always)]
pub fn decode10<V: Shorts>(bytes: &[u8], at: usize) -> V {
    let top = V::public_pieces::<10>(&bytes[40 * at..]).shuffle(ORDER10).mul_lo16(V::row(&TOP10));
    top.shr16::<6>().shl16::<5>()
}

/// Four bits of each, at bit 11 of 15. Twelve bytes more are read.
#[inline(always)]
pub fn decode4<V: Shorts>(bytes: &[u8], at: usize) -> V {
    V::public_pieces::<4>(&bytes[16 * at..]).shuffle(ORDER4).and(V::row(&NIBBLES)).mul_lo16(V::row(&TOP4))
}

/// A bit of each, 0 or 1. Fifteen bytes more are read.
#[inline(always)]
pub fn decode1<V: Shorts>(bytes: &[u8], at: usize) -> V {
    let bits = V::secret_pieces::<1>(&bytes[4 * at..]).shuffle(ORDER1).and(V::row(&BITS));
    bits.mul_lo16(V::row(&TOP1)).shr16::<7>()
}

/// What bits at the top of 15 stand for (FIPS 203 section 4.2.1, Decompress): times q, rounded.
#[inline(always)]
pub fn decompress<V: Shorts>(top: V) -> V {
    top.mul_round16(V::splat16(Q))
}

/// `round(x * 2^BITS / q)` modulo `2^BITS` (FIPS 203 section 4.2.1, Compress) of `x` from 0 to q - 1.
///
/// `floor(2^(15 + BITS) / q)` gives a quotient that is right or one too small; the remainder, which is small and so right
/// modulo 2^16, says which.
#[inline(always)]
pub fn compress<V: Shorts, const BITS: u32>(x: V) -> V {
    let by = ((1i64 << (15 + BITS)) / Q as i64) as i16;
    let quotient = x.mul_round16(V::splat16(by));
    let rest = x.shl16::<BITS>().sub16(quotient.mul_lo16(V::splat16(Q)));
    let more = V::splat16(Q / 2).sub16(rest).sar16::<15>();
    quotient.sub16(more).and(V::splat16((1 << BITS) - 1))
}

/// Vector `at` of a polynomial below 4096, 12 bits each, and zeros over the four bytes behind it.
#[inline(always)]
pub fn encode12<V: Shorts>(x: V, bytes: &mut [u8], at: usize) {
    x.pair_sums(V::row(&JOIN12)).shuffle(PACKED12).reveal_pieces::<12>(&mut bytes[48 * at..]);
}

/// The same of ten bits each; zeros over six bytes.
#[inline(always)]
pub fn encode10<V: Shorts>(x: V, bytes: &mut [u8], at: usize) {
    let twenty = x.pair_sums(V::row(&JOIN10));
    let forty = twenty.and(V::splat(0xf_ffff)).or(twenty.shr::<12>().and(V::splat(0xff_fff0_0000)));
    forty.shuffle(PACKED10).reveal_pieces::<10>(&mut bytes[40 * at..]);
}

/// The same of four bits each; zeros over twelve bytes.
#[inline(always)]
pub fn encode4<V: Shorts>(x: V, bytes: &mut [u8], at: usize) {
    x.pair_sums(V::row(&JOIN4)).shuffle(PACKED4).reveal_pieces::<4>(&mut bytes[16 * at..]);
}

/// Small coefficients from 128 bytes of random bits: of each four, the sum of two less the sum of the others.
#[inline(always)]
pub fn binomial<V: Shorts>(random: &[V; 2]) -> Poly<V> {
    let [a, b, c, d] = half(random[0]);
    let [e, f, g, h] = half(random[1]);
    [a, b, c, d, e, f, g, h]
}

#[inline(always)]
fn half<V: Shorts>(bits: V) -> [V; 4] {
    let (ones, twos) = (V::splat(0x5555_5555_5555_5555), V::splat(0x3333_3333_3333_3333));
    let sums = bits.and(ones).add(bits.shr::<1>().and(ones));
    // Three more than it is: the second sum is turned into three less it.
    let nibbles = sums.and(twos).add(sums.shr::<2>().and(twos).xor(twos));
    let low = V::splat(0x0f0f_0f0f_0f0f_0f0f);
    let (even, odd) = (nibbles.and(low), nibbles.shr::<4>().and(low));
    let (zero, three) = (V::splat(0), V::splat16(3));
    let (front, rear) = (even.low8(odd), even.high8(odd));
    let [a, b, c, d] = V::pieces([front.low8(zero), front.high8(zero), rear.low8(zero), rear.high8(zero)]);
    [a.sub16(three), b.sub16(three), c.sub16(three), d.sub16(three)]
}

/// The highest bit of each number, where a public polynomial of 12 bits each has a coefficient that is the modulus or more.
#[inline(always)]
pub fn above<V: Shorts>(bytes: &[u8]) -> V {
    let mut above = V::splat(0);
    for at in 0..8 {
        above = above.or(V::splat16(Q - 1).sub16(decode12::<V, Public>(bytes, at)));
    }
    above.and(V::splat16(i16::MIN))
}
