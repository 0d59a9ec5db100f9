//! What this engine makes of a key, once: one type per sort of key, left in the key's own slots.

use wattlock_core::{Algorithm, Curve, EcKey, Error, Key, Material};

use super::aes::{CbcKey, CtrKey, GcmKey, XtsKey};
use super::chacha::ChaChaKey;
use super::mac::Hmac;
use super::siv::SivKey;
use super::sys::ec::{EcAgreer, EcSigner};
use super::sys::hash::Hash;
use super::sys::ml_kem::Decapsulator;
use super::sys::rsa::RsaPrivate;
use crate::detect::Cpu;

/// The bytes of a symmetric key.
fn bytes(material: &Material) -> Result<&[u8], Error> {
    match material {
        Material::Bytes(bytes) => Ok(bytes),
        _ => Err(Error::Invalid("key algorithm")),
    }
}

#[inline]
pub(super) fn ctr<'k>(cpu: &Cpu, key: &'k Key) -> Result<&'k CtrKey, Error> {
    key.expanded(|material| CtrKey::new(cpu, bytes(material)?))
}

#[inline]
pub(super) fn cbc<'k>(cpu: &Cpu, key: &'k Key) -> Result<&'k CbcKey, Error> {
    key.expanded(|material| CbcKey::new(cpu, bytes(material)?))
}

#[inline]
pub(super) fn xts<'k>(cpu: &Cpu, key: &'k Key) -> Result<&'k XtsKey, Error> {
    key.expanded(|material| XtsKey::new(cpu, bytes(material)?))
}

#[inline]
pub(super) fn gcm<'k>(cpu: &Cpu, key: &'k Key) -> Result<&'k GcmKey, Error> {
    key.expanded(|material| GcmKey::new(cpu, bytes(material)?))
}

#[inline]
pub(super) fn chacha<'k>(cpu: &Cpu, key: &'k Key) -> Result<&'k ChaChaKey, Error> {
    key.expanded(|material| ChaChaKey::new(cpu, bytes(material)?))
}

#[inline]
pub(super) fn siv<'k>(cpu: &Cpu, key: &'k Key) -> Result<&'k SivKey, Error> {
    key.expanded(|material| SivKey::new(cpu, bytes(material)?))
}

/// One expansion for each hash that a secret is used with: of six places in a key, this engine fills four at most.
#[inline]
pub(crate) fn hmac<H: Hash + Send + Sync + 'static>(key: &Key) -> Result<&Hmac<H>, Error> {
    key.expanded(|material| bytes(material).map(Hmac::new))
}

pub(super) fn rsa(key: &Key) -> Result<&RsaPrivate, Error> {
    key.expanded(|material| match material {
        Material::Rsa(parts) => RsaPrivate::new(parts),
        _ => Err(Error::Invalid("key algorithm")),
    })
}

/// The pair of an elliptic-curve key, and its curve.
fn pair(material: &Material, algorithm: Algorithm) -> Result<(Curve, &EcKey), Error> {
    match (algorithm.curve(), material) {
        (Some(curve), Material::Ec(pair)) => Ok((curve, pair)),
        _ => Err(Error::Invalid("key algorithm")),
    }
}

pub(super) fn signer(key: &Key) -> Result<&EcSigner, Error> {
    let algorithm = key.algorithm();
    key.expanded(|material| pair(material, algorithm).and_then(|(curve, pair)| EcSigner::new(curve, pair)))
}

pub(super) fn agreer(key: &Key) -> Result<&EcAgreer, Error> {
    let algorithm = key.algorithm();
    key.expanded(|material| pair(material, algorithm).and_then(|(curve, pair)| EcAgreer::new(curve, pair)))
}

pub(super) fn decapsulator(key: &Key) -> Result<&Decapsulator, Error> {
    key.expanded(|material| match material {
        Material::MlKem(bytes) => Decapsulator::new(bytes),
        _ => Err(Error::Invalid("key algorithm")),
    })
}

/// An X25519 scalar. Every 32 bytes are one (RFC 7748 section 5), and agreement does not use the public key: there is
/// nothing to expand or to check, so this is the key's own material and no slot is filled.
pub(super) fn x25519(key: &Key) -> Result<&[u8; 32], Error> {
    let (curve, pair) = pair(key.material(), key.algorithm())?;
    if curve != Curve::X25519 {
        return Err(Error::Invalid("key algorithm"));
    }
    pair.scalar[..].try_into().map_err(|_| Error::Invalid("scalar"))
}
