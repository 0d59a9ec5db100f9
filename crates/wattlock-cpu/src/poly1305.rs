//! Poly1305 (RFC 8439 section 2.5) one block at a time, in limbs of 44, 44 and 42 bits: powers of the multiplier, the
//! associated data, the last few blocks and the tag. Plain, safe code in constant time: all of the hash for `software`,
//! beginning and end of a message for `instruction`'s own kernel.
//!
//! A number is `l0 + l1 * 2^44 + l2 * 2^88`. *Near* limbs are what a product leaves: `l0 < 2^44`, `l1 < 2^44 + 2^12`,
//! `l2 < 2^42`. Products are modulo 2^130 - 5: limb 3 would stand for 2^132 = 4 * 2^130, hence comes back times 20, and
//! what passes bit 42 of limb 2 comes back times 5.

use zeroize::{Zeroize, ZeroizeOnDrop};

/// A number modulo 2^130 - 5.
pub(crate) type Limbs = [u64; 3];

pub(crate) const M44: u64 = (1 << 44) - 1;
pub(crate) const M42: u64 = (1 << 42) - 1;

/// The bit above a whole block, within limb 2: 2^128 = 2^40 * 2^88.
pub(crate) const ABOVE: u64 = 1 << 40;

/// A running hash. Wipes itself.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(crate) struct Poly1305 {
    pub(crate) r: Limbs,
    pub(crate) sum: Limbs,
    mask: u128,
}

/// 128 bits as limbs.
fn limbs(x: u128) -> Limbs {
    [x as u64 & M44, (x >> 44) as u64 & M44, (x >> 88) as u64]
}

/// The product of `a`, limbs below 2^49, and `b`, near; near itself. Nothing is lost: `20 * b` stays below 2^49, three
/// terms and a carry below 2^100, `d2` (no term of which comes back times 20) below 2^95.5, so that five times what
/// passes its bit 42 fits 64 bits (below 2^56), and limb 1 takes less than 2^12 from it.
#[inline]
pub(crate) fn times(a: &Limbs, b: &Limbs) -> Limbs {
    let wide = |x: u64, y: u64| u128::from(x) * u128::from(y);
    let (back1, back2) = (20 * b[1], 20 * b[2]);
    let d0 = wide(a[0], b[0]) + wide(a[1], back2) + wide(a[2], back1);
    let d1 = wide(a[0], b[1]) + wide(a[1], b[0]) + wide(a[2], back2) + (d0 >> 44);
    let d2 = wide(a[0], b[2]) + wide(a[1], b[1]) + wide(a[2], b[0]) + (d1 >> 44);
    let low = (d0 as u64 & M44) + 5 * (d2 >> 42) as u64;
    [low & M44, (d1 as u64 & M44) + (low >> 44), d2 as u64 & M42]
}

impl Poly1305 {
    /// From a one-time key: the multiplier, clamped, then the mask.
    pub(crate) fn new(key: &[u8; 32]) -> Poly1305 {
        let (words, _) = key.as_chunks::<16>();
        let r = u128::from_le_bytes(words[0]) & 0x0fff_fffc_0fff_fffc_0fff_fffc_0fff_ffff;
        Poly1305 { r: limbs(r), sum: [0; 3], mask: u128::from_le_bytes(words[1]) }
    }

    /// Takes `bytes`, padded with zeros to whole blocks.
    pub(crate) fn absorb(&mut self, bytes: &[u8]) {
        let (blocks, tail) = bytes.as_chunks::<16>();
        for block in blocks {
            self.block(u128::from_le_bytes(*block));
        }
        if !tail.is_empty() {
            let mut block = [0; 16];
            block[..tail.len()].copy_from_slice(tail);
            self.block(u128::from_le_bytes(block));
        }
    }

    /// `sum = (sum + block + 2^128) * r`.
    #[inline]
    pub(crate) fn block(&mut self, block: u128) {
        let add = limbs(block);
        let sum = [self.sum[0] + add[0], self.sum[1] + add[1], self.sum[2] + add[2] + ABOVE];
        self.sum = times(&sum, &self.r);
    }

    /// The tag.
    pub(crate) fn finish(&self) -> [u8; 16] {
        let [mut h0, mut h1, mut h2] = self.sum;
        // Two rounds of carries: after them every limb is in its range and the number is below 2^130.
        for _ in 0..2 {
            h1 += h0 >> 44;
            h0 &= M44;
            h2 += h1 >> 44;
            h1 &= M44;
            h0 += 5 * (h2 >> 42);
            h2 &= M42;
        }
        h1 += h0 >> 44;
        h0 &= M44;
        // The number less 2^130 - 5, chosen by mask if it is not negative.
        let g0 = h0 + 5;
        let g1 = h1 + (g0 >> 44);
        let g2 = h2 + (g1 >> 44);
        let over = (g2 >> 42).wrapping_neg();
        let pick = |h: u64, g: u64, mask: u64| (h & !over) | (g & mask & over);
        let [h0, h1, h2] = [pick(h0, g0, M44), pick(h1, g1, M44), pick(h2, g2, M42)];
        let number = u128::from(h0) | u128::from(h1) << 44 | u128::from(h2) << 88;
        number.wrapping_add(self.mask).to_le_bytes()
    }
}

/// What the hashes are held against.
#[cfg(test)]
pub(crate) mod model {
    use num_bigint::BigUint;

    /// RFC 8439 section 2.5.1 on section 2.8's padded layout, in numbers of any size.
    pub(crate) fn model(key: &[u8; 32], aad: &[u8], message: &[u8]) -> [u8; 16] {
        let p = (BigUint::from(1u8) << 130) - 5u8;
        let clamp = BigUint::from(0x0fff_fffc_0fff_fffc_0fff_fffc_0fff_ffff_u128);
        let r = BigUint::from_bytes_le(&key[..16]) & clamp;
        let mut sum = BigUint::ZERO;
        let mut lengths = [0; 16];
        lengths[..8].copy_from_slice(&(aad.len() as u64).to_le_bytes());
        lengths[8..].copy_from_slice(&(message.len() as u64).to_le_bytes());
        for block in aad.chunks(16).chain(message.chunks(16)).chain([&lengths[..]]) {
            sum = (sum + BigUint::from_bytes_le(block) + (BigUint::from(1u8) << 128)) * &r % &p;
        }
        let tag = sum + BigUint::from_bytes_le(&key[16..]);
        let mut bytes = tag.to_bytes_le();
        bytes.resize(16, 0);
        bytes[..16].try_into().unwrap()
    }

    pub(crate) fn key(r: u128, mask: u128) -> [u8; 32] {
        let mut key = [0; 32];
        key[..16].copy_from_slice(&r.to_le_bytes());
        key[16..].copy_from_slice(&mask.to_le_bytes());
        key
    }

    /// Multipliers at the ends of what clamping leaves, of every limb, and some without a pattern.
    pub(crate) const MULTIPLIERS: [u128; 9] = [
        0,
        1,
        4,
        u128::MAX,
        0x0fff_fffc_0fff_fffc_0fff_fffc_0fff_ffff,
        0x0fff_fffc_0000_0000_0000_0000_0000_0000,
        0x0000_0000_0fff_fffc_0fff_fffc_0000_0000,
        0x0000_0000_0000_0000_0000_0fff_0fff_ffff,
        0x9b1c_55d3_80f7_24ae_13c9_6e02_bd48_7a51,
    ];

    /// Blocks that fill every limb, that lie at the modulus (with the bit above: 2^129 - 5 and its neighbours), that sum
    /// to it, and that are nothing.
    pub(crate) const BLOCKS: [u128; 7] = [
        u128::MAX,
        0,
        u128::MAX - 4,
        u128::MAX - 5,
        0xffff_ffff_ffff_ffff_ffff_ffff_ffff_fff0,
        0x0000_0000_00ff_ffff_ffff_f000_0000_0000,
        0xffff_ffff_ff00_0000_0000_0fff_ffff_ffff,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8439 appendix A.3, vectors 7, 8 and 9 (whole blocks; they sit at the modulus' edges).
    #[test]
    fn edges_of_the_modulus() {
        let cases: [(u128, &[u128], u128); 3] = [
            (2, &[u128::MAX], 3),
            (1, &[u128::MAX, 0xffff_ffff_ffff_ffff_ffff_ffff_ffff_fff0_u128, 0x11], 5),
            (
                1,
                &[
                    u128::MAX,
                    0xfefe_fefe_fefe_fefe_fefe_fefe_fefe_fefb,
                    0x0101_0101_0101_0101_0101_0101_0101_0101,
                ],
                0,
            ),
        ];
        for (r, blocks, wanted) in cases {
            let mut key = [0; 32];
            key[..16].copy_from_slice(&r.to_le_bytes());
            let mut hash = Poly1305::new(&key);
            blocks.iter().for_each(|block| hash.absorb(&block.to_le_bytes()));
            assert_eq!(u128::from_le_bytes(hash.finish()), wanted, "r = {r}");
        }
    }
}
