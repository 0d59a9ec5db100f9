//! XTS (IEEE 1619) block by block on AWS-LC's single-block functions, for CPUs without AES instructions of ours.
//!
//! AWS-LC has an XTS of its own, but for 256-bit keys only and behind a context that cannot be shared.

use wattlock_core::Error;

use super::super::span::Span;
use super::super::sys::aes::{DecryptKey, EncryptKey};
use super::Block;

pub(in super::super) struct Key {
    tweak: EncryptKey,
    encrypt: EncryptKey,
    decrypt: DecryptKey,
}

impl Key {
    pub(super) fn new(data: &[u8], tweak: &[u8]) -> Result<Key, Error> {
        Ok(Key {
            tweak: EncryptKey::new(tweak)?,
            encrypt: EncryptKey::new(data)?,
            decrypt: DecryptKey::new(data)?,
        })
    }

    pub(super) fn begin(&self, nonce: &Block, tweak: &mut Block) {
        *tweak = self.tweak.block(*nonce);
    }

    pub(super) fn apply(&self, tweak: &Block, data: Span<'_>, encrypt: bool) {
        let data = data.gathered();
        let mut tweak = u128::from_le_bytes(*tweak);
        let partial = data.len() % 16;
        let plain_blocks = data.len() / 16 - usize::from(partial > 0);
        let (whole, end) = data.split_at_mut(plain_blocks * 16);
        for block in whole.chunks_exact_mut(16) {
            self.in_place(block, tweak, encrypt);
            tweak = times_alpha(tweak);
        }
        if partial == 0 {
            return;
        }
        // Ciphertext stealing: the last whole block is done twice; decryption takes the two tweaks in reverse.
        let next = times_alpha(tweak);
        let (first, second) = if encrypt { (tweak, next) } else { (next, tweak) };
        let (block, rest) = end.split_at_mut(16);
        self.in_place(block, first, encrypt);
        block[..partial].swap_with_slice(rest);
        self.in_place(block, second, encrypt);
    }

    fn in_place(&self, block: &mut [u8], tweak: u128, encrypt: bool) {
        let mut work: Block = [0; 16];
        work.copy_from_slice(block);
        let masked = (u128::from_le_bytes(work) ^ tweak).to_le_bytes();
        let done = if encrypt { self.encrypt.block(masked) } else { self.decrypt.block(masked) };
        block.copy_from_slice(&(u128::from_le_bytes(done) ^ tweak).to_le_bytes());
    }
}

/// Multiplies by the field's x: IEEE 1619 section 5.2.
fn times_alpha(tweak: u128) -> u128 {
    tweak << 1 ^ (0x87 & (tweak >> 127).wrapping_neg())
}
