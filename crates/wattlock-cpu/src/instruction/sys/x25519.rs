//! X25519 (RFC 7748).

use wattlock_core::Error;

use super::raw;

/// The shared secret.
///
/// # Errors
/// [`Error::Invalid`] if it is all zero: the peer sent a point of small order.
pub(in super::super) fn agree(
    scalar: &[u8; 32],
    peer: &[u8; 32],
    shared: &mut [u8; 32],
) -> Result<(), Error> {
    // SAFETY: all three are 32 bytes.
    let code = unsafe { raw::X25519(shared.as_mut_ptr(), scalar.as_ptr(), peer.as_ptr()) };
    if code == 1 { Ok(()) } else { Err(Error::Invalid("point of small order")) }
}

/// The public key of a scalar.
pub(in super::super) fn public(scalar: &[u8; 32]) -> [u8; 32] {
    let mut out = [0; 32];
    // SAFETY: both are 32 bytes.
    unsafe { raw::X25519_public_from_private(out.as_mut_ptr(), scalar.as_ptr()) };
    out
}

/// A fresh key pair.
pub(in super::super) fn generate(scalar: &mut [u8; 32], public: &mut [u8; 32]) {
    // SAFETY: both are 32 bytes.
    unsafe { raw::X25519_keypair(public.as_mut_ptr(), scalar.as_mut_ptr()) }
}
