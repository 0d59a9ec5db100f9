//! AES-GCM (SP 800-38D) with 96-bit nonces.

use wattlock_core::Error;
use zeroize::{Zeroize, ZeroizeOnDrop};

use super::aead::{Aead, NONCE, TAG};
use super::aes::{Aes, BLOCK, WIDE, WIDE_BYTES};
use super::ctr;
use super::ghash::{Ghash, GhashKey};

/// An expanded key. Wipes itself.
pub struct Gcm {
    aes: Aes,
    hash: GhashKey,
}

impl Gcm {
    /// Expands a key.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is no AES key.
    pub fn new(key: &[u8]) -> Result<Gcm, Error> {
        let aes = Aes::new(key)?;
        let mut h = [0; BLOCK];
        aes.encrypt_block(&mut h);
        let hash = GhashKey::new(&h);
        h.zeroize();
        Ok(Gcm { aes, hash })
    }

    /// The block cipher, for messages in pieces.
    pub fn aes(&self) -> &Aes {
        &self.aes
    }

    /// The hash that was `sum`, after `bytes`, padded with zeros to whole blocks.
    pub fn hashed(&self, sum: u128, bytes: &[u8]) -> u128 {
        let mut hash = Ghash::resumed(&self.hash, sum);
        hash.update_padded(bytes);
        hash.sum()
    }
}

/// Counters 1 and up, encrypted side by side: the tag's mask comes free with the first data blocks.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct Start {
    counter: u128,
    stream: [u8; WIDE_BYTES],
}

impl Aead for Gcm {
    type Start = Start;

    fn start(&self, nonce: &[u8; NONCE]) -> Start {
        let mut block = [0; BLOCK];
        block[..NONCE].copy_from_slice(nonce);
        block[BLOCK - 1] = 1;
        let mut start = Start { counter: u128::from_be_bytes(block), stream: [0; WIDE_BYTES] };
        ctr::keystream(&self.aes, start.counter, &mut start.stream);
        start
    }

    fn apply(&self, start: &Start, data: &mut [u8]) {
        let (first, rest) = data.split_at_mut(data.len().min(WIDE_BYTES - BLOCK));
        ctr::add(first, &start.stream[BLOCK..]);
        ctr::apply(&self.aes, start.counter.wrapping_add(WIDE as u128), rest);
    }

    fn tag(&self, start: &Start, aad: &[u8], ciphertext: &[u8]) -> [u8; TAG] {
        let mut hash = Ghash::new(&self.hash);
        hash.update_padded(aad);
        hash.update_padded(ciphertext);
        let mut tag = hash.finish(aad.len(), ciphertext.len());
        ctr::add(&mut tag, &start.stream[..TAG]);
        tag
    }
}
