//! Poly1305 (RFC 8439 section 2.5) one block after another in words of 64 bits, for work beside vectors: its additions and
//! multiplications are the plain registers', which the rounds of [`stream256`](super::stream256) leave idle. Head and tail of
//! a message are [`Poly1305`]'s.
//!
//! A sum is `h0 + h1 2^64 + h2 2^128` with `h2 <= 4`, the multiplier `r0 + r1 2^64`, clamped: both below `2^60`, `r1` a
//! multiple of 4. Modulo `2^130 - 5`, `2^128 r1` is `5 r1 / 4`, called `s`, below `2^60.4`. A block, the bit above it and
//! their carry make `h2 <= 6`. With the carries from one to the next:
//!
//! ```text
//! d0 = h0 r0 + h1 s                          < 2^125.2
//! d1 = h0 r1 + h1 r0 + h2 s + (d0 >> 64)     < 2^125.1
//! t  = h2 r0 + (d1 >> 64)                    < 6 2^60 + 2^61.1 < 2^63.1
//! ```
//!
//! so nothing passes its word or pair of words. Two bits of `t` stay; the rest weighs `2^130` and comes back to `h0` times 5:
//! `5 (t >> 2) = (t >> 2) + (t & !3) < 2^63.5`. Its carry reaches `h2` at most once: `h2 <= 3 + 1`.
#![allow(unsafe_code, reason = "loads through a raw pointer, of exactly the bytes the caller vouches for")]

use zeroize::{Zeroize, ZeroizeOnDrop};

use super::beside::{BEHIND, Beside};
use super::poly1305::{Limbs, M44, Poly1305, times};

/// Bytes of a block.
pub(super) const BLOCK: usize = 16;

/// A hash over associated data and a message that may still be growing. Wipes itself.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(super) struct Hash {
    plain: Poly1305,
    pub(super) sum: [u64; 3],
    pub(super) beside: Beside,
    /// The multiplier to the power of [`BEHIND`].
    behind: Limbs,
}

impl Hash {
    /// The associated data already in it.
    pub(super) fn new(key: &[u8; 32], aad: &[u8]) -> Hash {
        let mut plain = Poly1305::new(key);
        plain.absorb(aad);
        let [r0, r1, _] = words(&plain.r);
        let sum = words(&plain.sum);
        let square = times(&plain.r, &plain.r);
        const { assert!(BEHIND == 11) };
        let fifth = times(&times(&square, &square), &plain.r);
        let behind = times(&times(&fifth, &fifth), &plain.r);
        Hash { plain, sum, beside: Beside::new([r0, r1, r1 + r1 / 4]), behind }
    }

    /// The sum after [`BEHIND`] blocks more than `first` has taken, which `second` took, from nothing: `first r^11 + second`. Their third
    /// words are at most 4, and that of a product, so the sum's is at most 13: three times 5 come back, and it is at most 4 again.
    pub(super) fn join(&mut self, first: &[u64; 3], second: &[u64; 3]) {
        let [h0, h1, h2] = words(&times(&limbs(first), &self.behind));
        let low = |words: &[u64; 3]| u128::from(words[0]) | u128::from(words[1]) << 64;
        let (sum, over) = low(&[h0, h1, h2]).overflowing_add(low(second));
        let above = h2 + second[2] + u64::from(over);
        let (sum, over) = sum.overflowing_add(u128::from(5 * (above >> 2)));
        self.sum = [sum as u64, (sum >> 64) as u64, (above & 3) + u64::from(over)];
    }

    /// Takes whole blocks.
    ///
    /// # Safety
    /// So many blocks must be readable at `from`.
    pub(super) unsafe fn take(&mut self, from: *const u8, blocks: usize) {
        for block in 0..blocks {
            // SAFETY: one of the caller's blocks.
            let bytes = unsafe { from.add(block * BLOCK).cast::<[u8; BLOCK]>().read_unaligned() };
            self.sum = step(self.sum, &self.beside.factor, u128::from_le_bytes(bytes));
        }
    }

    /// Takes what follows the blocks, of a message of `len` bytes, and the lengths, and gives the tag.
    pub(super) fn finish(&mut self, tail: &[u8], aad_len: usize, len: usize) -> [u8; 16] {
        self.plain.sum = limbs(&self.sum);
        self.plain.absorb(tail);
        self.plain.block(aad_len as u128 | (len as u128) << 64);
        self.plain.finish()
    }
}

/// Words as limbs, the third below 5 * 2^40: as far as [`times`] is concerned near enough (it multiplies limbs below 2^49).
fn limbs([h0, h1, h2]: &[u64; 3]) -> Limbs {
    [h0 & M44, (h0 >> 44 | h1 << 20) & M44, h1 >> 24 | h2 << 40]
}

/// Limbs as words, the third of at most 4.
fn words([l0, l1, l2]: &[u64; 3]) -> [u64; 3] {
    let low = u128::from(*l0) + (u128::from(*l1) << 44);
    let (low, over) = low.overflowing_add(u128::from(*l2) << 88);
    [low as u64, (low >> 64) as u64, (l2 >> 40) + u64::from(over)]
}

/// `(sum + block + 2^128) * r`.
#[inline]
pub(super) fn step([h0, h1, h2]: [u64; 3], [r0, r1, s]: &[u64; 3], block: u128) -> [u64; 3] {
    let wide = |x: u64, y: u64| u128::from(x) * u128::from(y);
    let (low, over) = (u128::from(h0) | u128::from(h1) << 64).overflowing_add(block);
    let (h0, h1, h2) = (low as u64, (low >> 64) as u64, h2 + 1 + u64::from(over));
    let d0 = wide(h0, *r0) + wide(h1, *s);
    let d1 = wide(h0, *r1) + wide(h1, *r0) + u128::from(h2 * s) + (d0 >> 64);
    let t = h2 * r0 + (d1 >> 64) as u64;
    let low = u128::from(d0 as u64) | u128::from(d1 as u64) << 64;
    let (low, over) = low.overflowing_add(u128::from((t >> 2) + (t & !3)));
    [low as u64, (low >> 64) as u64, (t & 3) + u64::from(over)]
}

#[cfg(test)]
mod tests {
    use super::super::poly1305::model::{BLOCKS, MULTIPLIERS, key, model};
    use super::*;

    fn hashed(key: &[u8; 32], aad: &[u8], message: &[u8]) -> [u8; 16] {
        let mut hash = Hash::new(key, aad);
        let blocks = message.len() / BLOCK;
        // SAFETY: as many as there are.
        unsafe { hash.take(message.as_ptr(), blocks) };
        hash.finish(&message[blocks * BLOCK..], aad.len(), message.len())
    }

    #[test]
    fn extreme_words_lose_no_carry() {
        for r in MULTIPLIERS {
            for (block, mask) in BLOCKS.into_iter().flat_map(|block| [(block, 0), (block, u128::MAX)]) {
                let message = block.to_le_bytes().repeat(40);
                for (aad, len) in [(0, 0), (0, 16), (16, 31), (48, 48), (0, 640), (640, 17), (33, 640)] {
                    let (key, aad, message) = (key(r, mask), &message[..aad], &message[..len]);
                    assert_eq!(
                        hashed(&key, aad, message),
                        model(&key, aad, message),
                        "{r:#x} {block:#x} {len}"
                    );
                }
            }
        }
    }

    /// Sums of every size enter a step, with the words that carry most.
    #[test]
    fn a_step_is_the_model_at_every_bound() {
        use num_bigint::BigUint;
        let number =
            |[a, b, c]: [u64; 3]| BigUint::from(a) + (BigUint::from(b) << 64) + (BigUint::from(c) << 128);
        let p = (BigUint::from(1u8) << 130) - 5u8;
        let ends = [0, 1, 1 << 63, u64::MAX - 4, u64::MAX];
        for r in MULTIPLIERS {
            let hash = Hash::new(&key(r, 0), b"");
            let [r0, r1, _] = hash.beside.factor;
            for (h0, h1) in ends.into_iter().flat_map(|h0| ends.map(|h1| (h0, h1))) {
                for (h2, block) in (0..=4).flat_map(|h2| BLOCKS.map(|block| (h2, block))) {
                    let sum = [h0, h1, h2];
                    let out = step(sum, &hash.beside.factor, block);
                    let wanted = (number(sum) + block + (BigUint::from(1u8) << 128)) * number([r0, r1, 0]);
                    assert_eq!(number(out) % &p, wanted % &p, "{sum:x?} {r:#x} {block:#x}");
                    assert!(out[2] <= 4);
                }
            }
        }
    }
}
