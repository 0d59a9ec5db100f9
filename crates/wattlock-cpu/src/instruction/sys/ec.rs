//! Keys and points on P-256 and P-384.

use std::ffi::c_void;
use std::ptr;

use wattlock_core::{Curve, EcKey, Error, Fault};

use super::raw;
use super::result::{Failed, Owned, done, write_number};

/// `point_conversion_form_t` for `0x04 || x || y` (X9.62).
const UNCOMPRESSED: raw::point_conversion_form_t =
    raw::point_conversion_form_t::POINT_CONVERSION_UNCOMPRESSED;

/// A key for ECDSA: the scalar in range, the point on the curve and the scalar's. AWS-LC wipes it when it is freed.
pub(in super::super) struct EcSigner {
    key: Owned<raw::EC_KEY>,
    curve: Curve,
}

/// A key for ECDH: the scalar in range. AWS-LC wipes it when it is freed.
///
/// Agreement multiplies the peer's point by the scalar and never looks at our own public point, so a wrong one does no
/// harm, and whether it is the scalar's is not asked: the answer costs a multiplication by the scalar, for a key that
/// TLS generates for one handshake and uses once.
pub(in super::super) struct EcAgreer {
    key: Owned<raw::EC_KEY>,
    curve: Curve,
}

// SAFETY: the header allows concurrent use of one key by operations that do not set its fields; we set none after
// construction.
unsafe impl Send for EcSigner {}
// SAFETY: as above.
unsafe impl Sync for EcSigner {}
// SAFETY: as above.
unsafe impl Send for EcAgreer {}
// SAFETY: as above.
unsafe impl Sync for EcAgreer {}

/// AWS-LC's constant for the curve.
fn group(curve: Curve) -> Result<*const raw::EC_GROUP, Error> {
    match curve {
        // SAFETY: returns a pointer to a constant.
        Curve::P256 => Ok(unsafe { raw::EC_group_p256() }),
        // SAFETY: as above.
        Curve::P384 => Ok(unsafe { raw::EC_group_p384() }),
        Curve::X25519 => Err(Error::Invalid("curve")),
    }
}

/// An uncompressed point, checked to be on the curve (which the identity, having no such encoding, cannot be).
fn point(curve: Curve, bytes: &[u8]) -> Result<Owned<raw::EC_POINT>, Error> {
    if bytes.len() != curve.public_len() || bytes[0] != 4 {
        return Err(Error::Invalid("point"));
    }
    let group = group(curve)?;
    (|| -> Result<_, Failed> {
        // SAFETY: the group is a constant; the point is ours and fresh; reads the slice.
        unsafe {
            let point = Owned::new(raw::EC_POINT_new(group))?;
            done(raw::EC_POINT_oct2point(
                group,
                point.get_mut(),
                bytes.as_ptr(),
                bytes.len(),
                ptr::null_mut(),
            ))?;
            Ok(point)
        }
    })()
    .map_err(|_| Error::Invalid("point"))
}

/// A key object without scalar or point.
fn empty(curve: Curve) -> Result<Owned<raw::EC_KEY>, Error> {
    let group = group(curve)?;
    // SAFETY: the key is ours and fresh; the group is a constant.
    unsafe {
        let key = Owned::new(raw::EC_KEY_new()).map_err(|_| Error::Device(Fault::Reported))?;
        done(raw::EC_KEY_set_group(key.get_mut(), group)).map_err(|_| Error::Device(Fault::Reported))?;
        Ok(key)
    }
}

/// What a key that cannot be used is called, whatever is wrong with it.
const BAD_KEY: Error = Error::Invalid("elliptic-curve key");

/// A key object with the scalar, which must be from 1 to the order less one, and, not in it, the public point, which
/// must be on the curve. Whether the two belong together is not asked.
fn halves(curve: Curve, key: &EcKey) -> Result<(Owned<raw::EC_KEY>, Owned<raw::EC_POINT>), Error> {
    if key.scalar.len() != curve.scalar_len() {
        return Err(BAD_KEY);
    }
    let public = point(curve, &key.public).map_err(|_| BAD_KEY)?;
    let object = empty(curve)?;
    let scalar = Owned::number(&key.scalar).map_err(|_| BAD_KEY)?;
    // SAFETY: the key is ours and not shared yet; the call copies the scalar, which is live, and refuses zero and what
    // is not below the order.
    done(unsafe { raw::EC_KEY_set_private_key(object.get_mut(), scalar.get()) }).map_err(|_| BAD_KEY)?;
    Ok((object, public))
}

/// A fresh key pair: scalar, then uncompressed point.
///
/// # Errors
/// [`Error::Device`] if the library has no randomness.
pub(in super::super) fn generate(curve: Curve, scalar: &mut [u8], public: &mut [u8]) -> Result<(), Error> {
    let (group, key) = (group(curve)?, empty(curve)?);
    (|| -> Result<_, Failed> {
        // SAFETY: the key is ours; scalar and point belong to it and live as long; the point call writes at most
        // `public.len()` bytes.
        unsafe {
            done(raw::EC_KEY_generate_key(key.get_mut()))?;
            write_number(raw::EC_KEY_get0_private_key(key.get()), scalar)?;
            let len = raw::EC_POINT_point2oct(
                group,
                raw::EC_KEY_get0_public_key(key.get()),
                UNCOMPRESSED,
                public.as_mut_ptr(),
                public.len(),
                ptr::null_mut(),
            );
            if len == public.len() { Ok(()) } else { Err(Failed) }
        }
    })()
    .map_err(|_| Error::Device(Fault::Reported))
}

impl EcSigner {
    /// # Errors
    /// [`Error::Invalid`] if the scalar is zero or not below the order, if the point is not on the curve, or if it is
    /// not the scalar's: no signature could be verified.
    pub(in super::super) fn new(curve: Curve, key: &EcKey) -> Result<EcSigner, Error> {
        let (object, public) = halves(curve, key)?;
        // SAFETY: the key is ours and not shared yet; the call copies the point, which is live. The check multiplies
        // the base point by the scalar and compares.
        let checked = unsafe {
            done(raw::EC_KEY_set_public_key(object.get_mut(), public.get()))
                .and_then(|()| done(raw::EC_KEY_check_key(object.get())))
        };
        checked.map_err(|_| BAD_KEY)?;
        Ok(EcSigner { key: object, curve })
    }

    /// ECDSA (FIPS 186-5): `r || s` for a message digest, of which the leftmost bits count.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `out` is not two scalars long; [`Error::Device`] if the library fails.
    pub(in super::super) fn sign(&self, digest: &[u8], out: &mut [u8]) -> Result<(), Error> {
        if out.len() != 2 * self.curve.scalar_len() {
            return Err(Error::Invalid("output length"));
        }
        let (left, right) = out.split_at_mut(self.curve.scalar_len());
        (|| -> Result<_, Failed> {
            let (mut r, mut s) = (ptr::null(), ptr::null());
            // SAFETY: reads the digest; the signature is ours, and r and s live as long as it.
            unsafe {
                let signature =
                    Owned::new(raw::ECDSA_do_sign(digest.as_ptr(), digest.len(), self.key.get()))?;
                raw::ECDSA_SIG_get0(signature.get(), &raw mut r, &raw mut s);
                write_number(r, left)?;
                write_number(s, right)
            }
        })()
        .map_err(|_| Error::Device(Fault::Reported))
    }
}

impl EcAgreer {
    /// # Errors
    /// [`Error::Invalid`] if the scalar is zero or not below the order, or if the point is not on the curve.
    pub(in super::super) fn new(curve: Curve, key: &EcKey) -> Result<EcAgreer, Error> {
        let (object, _) = halves(curve, key)?;
        Ok(EcAgreer { key: object, curve })
    }

    /// ECDH (SP 800-56A 5.7.1.2): the shared x coordinate.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the peer's point is not an uncompressed point on the curve.
    pub(in super::super) fn agree(&self, peer: &[u8], out: &mut [u8]) -> Result<(), Error> {
        if out.len() != self.curve.scalar_len() {
            return Err(Error::Invalid("output length"));
        }
        let peer = point(self.curve, peer)?;
        // SAFETY: point and key are live; without a KDF the call writes the coordinate, at most `out.len()` bytes.
        let len = unsafe {
            raw::ECDH_compute_key(
                out.as_mut_ptr().cast::<c_void>(),
                out.len(),
                peer.get(),
                self.key.get(),
                None,
            )
        };
        let whole = usize::try_from(len) == Ok(out.len());
        done(i32::from(whole)).map_err(|_| Error::Invalid("point"))
    }
}

/// Whether `r || s` is a signature of this digest under this uncompressed point: needs no private key, nor one that
/// belongs to the point.
pub(in super::super) fn verifies(curve: Curve, public: &[u8], digest: &[u8], signature: &[u8]) -> bool {
    if signature.len() != 2 * curve.scalar_len() {
        return false;
    }
    let (Ok(public), Ok(key)) = (point(curve, public), empty(curve)) else { return false };
    let (r, s) = signature.split_at(curve.scalar_len());
    (|| -> Result<_, Failed> {
        let (r, s) = (Owned::number(r)?, Owned::number(s)?);
        // SAFETY: key and signature are ours; the point is live and copied; `set0` succeeds for two live numbers and
        // then owns them, and only then do we let go of them; reads the digest.
        unsafe {
            done(raw::EC_KEY_set_public_key(key.get_mut(), public.get()))?;
            let object = Owned::new(raw::ECDSA_SIG_new())?;
            done(raw::ECDSA_SIG_set0(object.get_mut(), r.get_mut(), s.get_mut()))?;
            let _ = (r.into_raw(), s.into_raw());
            done(raw::ECDSA_do_verify(digest.as_ptr(), digest.len(), object.get(), key.get()))
        }
    })()
    .is_ok()
}
