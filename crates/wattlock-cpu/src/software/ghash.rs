//! GHASH (SP 800-38D section 6.4) without tables and without carry-less instructions.
//!
//! An integer product is a carry-less product once the carries have somewhere to go. Bits are dealt into five hands,
//! every fifth bit to the same one: a column of the product of two hands then sums at most 13 bits, which need four
//! places, and the next column that matters is five places away. Integer multiplication takes the same time for all
//! operands on every processor we know to run this (some small cores without a full multiplier excepted).

use zeroize::{Zeroize, ZeroizeOnDrop};

/// Every fifth bit.
const HAND: u64 = 0x1084_2108_4210_8421;
const WIDE_HAND: u128 = {
    let (mut mask, mut bit) = (0, 0);
    while bit < 128 {
        mask |= 1 << bit;
        bit += 5;
    }
    mask
};

type Hands = [u64; 5];

#[inline(always)]
fn deal(word: u64) -> Hands {
    std::array::from_fn(|i| word & HAND << i)
}

/// Carry-less product.
#[inline(always)]
fn multiply(x: &Hands, y: &Hands) -> u128 {
    let mut product = 0;
    for k in 0..5 {
        let mut sum = 0;
        for i in 0..5 {
            sum ^= u128::from(x[i]) * u128::from(y[(5 + k - i) % 5]);
        }
        product |= sum & (WIDE_HAND << k);
    }
    product
}

/// The hash key, dealt: its high half, its low half and their sum, for Karatsuba's three products.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct GhashKey {
    high: Hands,
    low: Hands,
    both: Hands,
}

impl GhashKey {
    /// From the block cipher's image of the zero block.
    pub fn new(h: &[u8; 16]) -> GhashKey {
        let h = u128::from_be_bytes(*h);
        let (high, low) = ((h >> 64) as u64, h as u64);
        GhashKey { high: deal(high), low: deal(low), both: deal(high ^ low) }
    }

    /// Times the hash key in GF(2^128). Bit 127 of a word is the coefficient of x^0 (GCM's order).
    #[inline]
    fn times(&self, y: u128) -> u128 {
        let (high, low) = ((y >> 64) as u64, y as u64);
        let top = multiply(&deal(high), &self.high);
        let bottom = multiply(&deal(low), &self.low);
        let middle = multiply(&deal(high ^ low), &self.both) ^ top ^ bottom;
        let high = top ^ middle >> 64;
        let low = bottom ^ middle << 64;
        reduce(high << 1 | low >> 127, low << 1)
    }
}

/// `high` holds x^0 to x^127, `low` x^128 to x^255; x^128 is x^7 + x^2 + x + 1. What the shifts push out of `low` is of
/// x^128 or more again, and is put back first.
#[inline(always)]
fn reduce(high: u128, low: u128) -> u128 {
    let low = low ^ low << 127 ^ low << 126 ^ low << 121;
    high ^ low ^ low >> 1 ^ low >> 2 ^ low >> 7
}

/// A running hash.
pub struct Ghash<'a> {
    key: &'a GhashKey,
    sum: u128,
}

impl Drop for Ghash<'_> {
    fn drop(&mut self) {
        self.sum.zeroize();
    }
}

impl<'a> Ghash<'a> {
    /// Of nothing yet.
    pub fn new(key: &'a GhashKey) -> Ghash<'a> {
        Ghash::resumed(key, 0)
    }

    /// Goes on from what [`Ghash::sum`] gave.
    pub fn resumed(key: &'a GhashKey, sum: u128) -> Ghash<'a> {
        Ghash { key, sum }
    }

    /// The state so far.
    pub fn sum(&self) -> u128 {
        self.sum
    }

    /// Takes `bytes`, padded with zeros to whole blocks.
    pub fn update_padded(&mut self, bytes: &[u8]) {
        let (blocks, tail) = bytes.as_chunks::<16>();
        for block in blocks {
            self.sum = self.key.times(self.sum ^ u128::from_be_bytes(*block));
        }
        if !tail.is_empty() {
            let mut block = [0; 16];
            block[..tail.len()].copy_from_slice(tail);
            self.sum = self.key.times(self.sum ^ u128::from_be_bytes(block));
        }
    }

    /// Takes the block of both bit lengths and returns the hash.
    pub fn finish(mut self, aad_bytes: usize, bytes: usize) -> [u8; 16] {
        let lengths = ((aad_bytes as u128 * 8) << 64) | (bytes as u128 * 8);
        self.sum = self.key.times(self.sum ^ lengths);
        self.sum.to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bitwise(x: u64, y: u64) -> u128 {
        (0..64).filter(|i| y >> i & 1 == 1).fold(0, |sum, i| sum ^ u128::from(x) << i)
    }

    #[test]
    fn dealt_product_is_the_bitwise_product() {
        let mut x = 0x9e37_79b9_7f4a_7c15_u64;
        for y in [0, 1, u64::MAX, 1 << 63, 0x5555_5555_5555_5555, 0xdead_beef_0bad_cafe] {
            for x in [x, u64::MAX, 0, 1] {
                assert_eq!(multiply(&deal(x), &deal(y)), bitwise(x, y), "{x:#x} {y:#x}");
            }
            x = x.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
        }
    }

    /// The block with only its first bit set is the field's one.
    #[test]
    fn one_is_neutral() {
        let h: [u8; 16] = std::array::from_fn(|i| (0x1d * (i + 3)) as u8);
        let key = GhashKey::new(&h);
        assert_eq!(key.times(1 << 127).to_be_bytes(), h);
    }
}
