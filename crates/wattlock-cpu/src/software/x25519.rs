//! X25519 (RFC 7748) by the Montgomery ladder of `x25519-dalek`, base point included: the ladder is the library's
//! portable field arithmetic on every machine, while its tables of multiples of the base would choose vectors by the
//! CPU.

use subtle::ConstantTimeEq;
use wattlock_core::{Error, Material};
use x25519_dalek::{X25519_BASEPOINT_BYTES, x25519};
use zeroize::{Zeroize, Zeroizing};

use super::random;

/// Writes the shared secret to `out`.
///
/// # Errors
/// [`Error::Invalid`] if it is all zeros: the peer's point is of small order (RFC 7748 section 6.1).
pub fn derive(material: &Material, peer: &[u8], out: &mut [u8]) -> Result<usize, Error> {
    let Material::Ec(key) = material else { return Err(Error::Invalid("elliptic-curve key")) };
    let scalar = Zeroizing::new(bytes(&key.scalar).ok_or(Error::Invalid("elliptic-curve key"))?);
    let peer = bytes(peer).ok_or(Error::Invalid("peer's public key"))?;
    let mut shared = x25519(*scalar, peer);
    if bool::from(shared.ct_eq(&[0; 32])) {
        return Err(Error::Invalid("peer's public key"));
    }
    out[..32].copy_from_slice(&shared);
    shared.zeroize();
    Ok(32)
}

/// A fresh pair: scalar, then public key.
///
/// # Errors
/// [`Error::Device`] if the system gives no randomness.
pub fn generate(out: &mut [u8]) -> Result<usize, Error> {
    let mut scalar = Zeroizing::new([0; 32]);
    random::fill(&mut *scalar)?;
    out[..32].copy_from_slice(&*scalar);
    out[32..64].copy_from_slice(&x25519(*scalar, X25519_BASEPOINT_BYTES));
    Ok(64)
}

/// Whether `pair` is a scalar and its public key.
pub fn is_pair(pair: &[u8]) -> bool {
    let (Some(scalar), Some(public)) =
        (bytes(pair.get(..32).unwrap_or(&[])), bytes(pair.get(32..).unwrap_or(&[])))
    else {
        return false;
    };
    x25519(*Zeroizing::new(scalar), X25519_BASEPOINT_BYTES) == public
}

fn bytes(slice: &[u8]) -> Option<[u8; 32]> {
    slice.try_into().ok()
}
