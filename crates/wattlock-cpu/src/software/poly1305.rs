//! Poly1305 (RFC 8439 section 2.5) in three limbs of 44, 44 and 42 bits.

use zeroize::{Zeroize, ZeroizeOnDrop};

const M44: u64 = (1 << 44) - 1;
const M42: u64 = (1 << 42) - 1;

/// A running hash, on whole blocks only: the AEAD pads everything with zeros. Wipes itself.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct Poly1305 {
    r: [u64; 3],
    sum: [u64; 3],
    mask: u128,
}

/// 128 bits as limbs.
fn limbs(x: u128) -> [u64; 3] {
    [x as u64 & M44, (x >> 44) as u64 & M44, (x >> 88) as u64]
}

impl Poly1305 {
    /// From a one-time key: the multiplier, clamped, then the mask.
    pub fn new(key: &[u8; 32]) -> Poly1305 {
        let half =
            |at: usize| key[at..at + 16].iter().rev().fold(0_u128, |x, byte| x << 8 | u128::from(*byte));
        let r = half(0) & 0x0fff_fffc_0fff_fffc_0fff_fffc_0fff_ffff;
        Poly1305 { r: limbs(r), sum: [0; 3], mask: half(16) }
    }

    /// Takes `bytes`, padded with zeros to whole blocks.
    pub fn update_padded(&mut self, bytes: &[u8]) {
        let (blocks, tail) = bytes.as_chunks::<16>();
        for block in blocks {
            self.block(block);
        }
        if !tail.is_empty() {
            let mut block = [0; 16];
            block[..tail.len()].copy_from_slice(tail);
            self.block(&block);
        }
    }

    /// `sum = (sum + block + 2^128) * r`, modulo 2^130 - 5, partly reduced: limbs stay below 2^44 + 2^9 or so.
    #[inline]
    fn block(&mut self, block: &[u8; 16]) {
        let wide = |x: u64, y: u64| u128::from(x) * u128::from(y);
        let add = limbs(u128::from_le_bytes(*block));
        let [r0, r1, r2] = self.r;
        let h0 = self.sum[0] + add[0];
        let h1 = self.sum[1] + add[1];
        let h2 = self.sum[2] + add[2] + (1 << 40);
        // What passes 2^132 comes back times 5 * 4.
        let (s1, s2) = (20 * r1, 20 * r2);
        let d0 = wide(h0, r0) + wide(h1, s2) + wide(h2, s1);
        let d1 = wide(h0, r1) + wide(h1, r0) + wide(h2, s2) + (d0 >> 44);
        let d2 = wide(h0, r2) + wide(h1, r1) + wide(h2, r0) + (d1 >> 44);
        let low = (d0 as u64 & M44) + 5 * (d2 >> 42) as u64;
        self.sum = [low & M44, (d1 as u64 & M44) + (low >> 44), d2 as u64 & M42];
    }

    /// The tag.
    pub fn finish(self) -> [u8; 16] {
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
            blocks.iter().for_each(|block| hash.update_padded(&block.to_le_bytes()));
            assert_eq!(u128::from_le_bytes(hash.finish()), wanted, "r = {r}");
        }
    }
}
