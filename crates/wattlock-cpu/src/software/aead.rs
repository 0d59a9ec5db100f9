//! Sealing and opening, the same for every AEAD that is a keystream and a hash over the ciphertext.
//!
//! Opening hashes first and decrypts only after the tag has been found right, so there is never unverified plaintext
//! to release, in place or apart.

use subtle::ConstantTimeEq;
use wattlock_core::{Data, Error};
use zeroize::{Zeroize, Zeroizing};

/// Bytes of a tag.
pub const TAG: usize = 16;
/// Bytes of a nonce.
pub const NONCE: usize = 12;

/// A keystream and a hash.
pub trait Aead {
    /// What one key and nonce come to: the first stretch of keystream, mask or hash key included. Wipes itself.
    type Start;

    /// Begins.
    fn start(&self, nonce: &[u8; NONCE]) -> Self::Start;
    /// Encrypts or decrypts.
    fn apply(&self, start: &Self::Start, data: &mut [u8]);
    /// The tag of a ciphertext.
    fn tag(&self, start: &Self::Start, aad: &[u8], ciphertext: &[u8]) -> [u8; TAG];
}

/// Encrypts `data`, writes the tag and returns the length.
pub fn seal<A: Aead>(
    aead: &A,
    nonce: &[u8; NONCE],
    aad: &[u8],
    data: &mut Data<'_>,
    tag: &mut [u8; TAG],
) -> usize {
    let start = aead.start(nonce);
    let data = data.gathered();
    aead.apply(&start, data);
    *tag = aead.tag(&start, aad, data);
    data.len()
}

/// Verifies the tag, then decrypts `data` and returns the length.
///
/// # Errors
/// [`Error::Authentication`], the whole output buffer zeroed.
pub fn open<A: Aead>(
    aead: &A,
    nonce: &[u8; NONCE],
    aad: &[u8],
    data: &mut Data<'_>,
    tag: &[u8; TAG],
) -> Result<usize, Error> {
    let start = aead.start(nonce);
    // The right tag for a wrong ciphertext is a forgery ready to use.
    let right = Zeroizing::new(aead.tag(&start, aad, data.input()));
    if !bool::from(right.ct_eq(tag)) {
        data.output().zeroize();
        return Err(Error::Authentication);
    }
    let data = data.gathered();
    aead.apply(&start, data);
    Ok(data.len())
}
