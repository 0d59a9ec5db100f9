//! HMAC (FIPS 198-1) over any of the hashes.
//!
//! The two key blocks are hashed anew for every request, two compressions, instead of being left in the key: a secret
//! serves every hash, and a key has room for few expansions.

use zeroize::Zeroize;

use super::hash::{BLOCK_MAX, Core, Hasher, OUT_MAX, digest};

/// A running HMAC. Wipes itself. Cloning one that has taken nothing yet saves hashing the key again.
#[derive(Clone)]
pub struct Hmac<C: Core> {
    inner: Hasher<C>,
    outer: Hasher<C>,
}

impl<C: Core> Hmac<C> {
    /// With a key of any length.
    pub fn new(key: &[u8]) -> Hmac<C> {
        let mut block = [0; BLOCK_MAX];
        if key.len() > C::BLOCK {
            digest::<C>(key, &mut block[..C::OUT]);
        } else {
            block[..key.len()].copy_from_slice(key);
        }
        let mut hmac = Hmac { inner: Hasher::new(), outer: Hasher::new() };
        block.iter_mut().for_each(|byte| *byte ^= 0x36);
        hmac.inner.update(&block[..C::BLOCK]);
        block.iter_mut().for_each(|byte| *byte ^= 0x36 ^ 0x5c);
        hmac.outer.update(&block[..C::BLOCK]);
        block.zeroize();
        hmac
    }

    /// Takes more of the message.
    pub fn update(&mut self, bytes: &[u8]) {
        self.inner.update(bytes);
    }

    /// The same, for chaining.
    pub fn with(mut self, bytes: &[u8]) -> Hmac<C> {
        self.update(bytes);
        self
    }

    /// Writes the code to `out`, which has at most [`Core::OUT`] bytes; what does not fit is cut off.
    pub fn finish(self, out: &mut [u8]) {
        let Hmac { inner, mut outer } = self;
        let mut hash = [0; OUT_MAX];
        inner.finish(&mut hash[..C::OUT]);
        outer.update(&hash[..C::OUT]);
        outer.finish(out);
        hash.zeroize();
    }
}
