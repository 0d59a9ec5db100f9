//! Keys from keys: the TLS 1.2 PRF (RFC 5246 section 5) and HKDF (RFC 5869).

use wattlock_core::Error;
use zeroize::Zeroize;

use super::hash::{Core, OUT_MAX};
use super::hmac::Hmac;

/// P_hash: `A(i) = HMAC(secret, A(i - 1))`, output `HMAC(secret, A(i) || seed)` one after the other. `seed` is
/// `label || seed`.
pub fn tls12_prf<C: Core>(secret: &[u8], seed: &[u8], out: &mut [u8]) {
    let hmac = Hmac::<C>::new(secret);
    let mut a = [0; OUT_MAX];
    let a = &mut a[..C::OUT];
    hmac.clone().with(seed).finish(a);
    for chunk in out.chunks_mut(C::OUT) {
        hmac.clone().with(a).with(seed).finish(chunk);
        hmac.clone().with(a).finish(a);
    }
    a.zeroize();
}

/// Extract, then expand.
///
/// # Errors
/// As [`hkdf_expand`].
pub fn hkdf<C: Core>(salt: &[u8], secret: &[u8], info: &[u8], out: &mut [u8]) -> Result<(), Error> {
    let mut prk = [0; OUT_MAX];
    Hmac::<C>::new(salt).with(secret).finish(&mut prk[..C::OUT]);
    let result = hkdf_expand::<C>(&prk[..C::OUT], info, out);
    prk.zeroize();
    result
}

/// Expand alone.
///
/// # Errors
/// [`Error::Invalid`] if `out` is longer than 255 hashes; nothing is written then.
pub fn hkdf_expand<C: Core>(prk: &[u8], info: &[u8], out: &mut [u8]) -> Result<(), Error> {
    if out.len() > 255 * C::OUT {
        return Err(Error::Invalid("output length"));
    }
    let hmac = Hmac::<C>::new(prk);
    let mut previous = [0; OUT_MAX];
    let mut len = 0;
    for (chunk, i) in out.chunks_mut(C::OUT).zip(1..=255_u8) {
        hmac.clone().with(&previous[..len]).with(info).with(&[i]).finish(&mut previous[..C::OUT]);
        len = C::OUT;
        chunk.copy_from_slice(&previous[..chunk.len()]);
    }
    previous.zeroize();
    Ok(())
}
