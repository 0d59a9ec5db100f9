//! HMAC (FIPS 198-1) and what is made of it: the TLS 1.2 PRF (RFC 5246 section 5) and HKDF (RFC 5869).
//!
//! A key's two pads are hashed once; a request then costs two forks of a hash state and no allocation. Intermediate
//! secrets live in [`Zeroizing`] arrays and in hash states that wipe themselves.

use wattlock_core::Error;
use zeroize::{Zeroize, Zeroizing};

use super::sys::hash::Hash;

/// Longest digest and longest block, in bytes.
const MOST: usize = 64;
const MOST_BLOCK: usize = 128;

/// HMAC with its key already absorbed.
pub(crate) struct Hmac<H> {
    inner: H,
    outer: H,
}

impl<H: Hash> Hmac<H> {
    pub(super) fn new(key: &[u8]) -> Hmac<H> {
        let mut room = [0u8; MOST_BLOCK];
        let pad = &mut room[..H::BLOCK];
        if key.len() > H::BLOCK {
            digest::<H>(key, pad);
        } else {
            pad[..key.len()].copy_from_slice(key);
        }
        let mut hmac = Hmac { inner: H::new(), outer: H::new() };
        pad.iter_mut().for_each(|byte| *byte ^= 0x36);
        hmac.inner.update(pad);
        pad.iter_mut().for_each(|byte| *byte ^= 0x36 ^ 0x5c);
        hmac.outer.update(pad);
        pad.zeroize();
        hmac
    }

    /// The words behind the key's two pads, the inner one first.
    pub(crate) fn words(&self) -> [[H::Word; 8]; 2] {
        [self.inner.words(), self.outer.words()]
    }

    /// The code of the parts, joined, into the first [`Hash::LEN`] bytes of `out`.
    #[inline]
    pub(super) fn mac(&self, parts: &[&[u8]], out: &mut [u8]) {
        let mut inner = self.inner.clone();
        for part in parts {
            inner.update(part);
        }
        self.close(inner, out);
    }

    /// The code of what `inner` has absorbed, into the first [`Hash::LEN`] bytes of `out`.
    #[inline]
    fn close(&self, inner: H, out: &mut [u8]) {
        inner.finish(out);
        let mut outer = self.outer.clone();
        outer.update(&out[..H::LEN]);
        outer.finish(out);
    }
}

/// The digest of `input` into the first [`Hash::LEN`] bytes of `out`.
#[inline]
pub(super) fn digest<H: Hash>(input: &[u8], out: &mut [u8]) {
    let mut hash = H::new();
    hash.update(input);
    hash.finish(out);
}

/// P_hash(secret, seed) of RFC 5246 section 5, `out.len()` bytes of it.
pub(super) fn tls12_prf<H: Hash>(secret: &Hmac<H>, seed: &[u8], out: &mut [u8]) {
    let (mut a, mut block) = (Zeroizing::new([0u8; MOST]), Zeroizing::new([0u8; MOST]));
    secret.mac(&[seed], &mut a[..]);
    for (number, piece) in out.chunks_mut(H::LEN).enumerate() {
        // One block is all that most of TLS asks for: the next A would be a third of the work, for nothing.
        if number > 0 {
            secret.mac(&[&a[..H::LEN]], &mut block[..]);
            a.copy_from_slice(&block[..]);
        }
        secret.mac(&[&a[..H::LEN], seed], &mut block[..]);
        piece.copy_from_slice(&block[..piece.len()]);
    }
}

/// HKDF-Expand.
///
/// # Errors
/// [`Error::Invalid`] if more than 255 digests are asked for.
pub(super) fn hkdf_expand<H: Hash>(key: &Hmac<H>, info: &[u8], out: &mut [u8]) -> Result<(), Error> {
    if out.len() > 255 * H::LEN {
        return Err(Error::Invalid("output length"));
    }
    let mut block = Zeroizing::new([0u8; MOST]);
    let mut before = 0;
    for (number, piece) in (1..=255u8).zip(out.chunks_mut(H::LEN)) {
        let mut inner = key.inner.clone();
        for part in [&block[..before], info, &[number]] {
            inner.update(part);
        }
        key.close(inner, &mut block[..]);
        piece.copy_from_slice(&block[..piece.len()]);
        before = H::LEN;
    }
    Ok(())
}

/// HKDF, extract and expand.
///
/// # Errors
/// As [`hkdf_expand`].
pub(super) fn hkdf<H: Hash>(salt: &[u8], secret: &[u8], info: &[u8], out: &mut [u8]) -> Result<(), Error> {
    let mut key = Zeroizing::new([0u8; MOST]);
    Hmac::<H>::new(salt).mac(&[secret], &mut key[..]);
    hkdf_expand::<H>(&Hmac::new(&key[..H::LEN]), info, out)
}
