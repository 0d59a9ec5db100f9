//! A key: which algorithm it is for, its raw material, and what engines made of it.
//!
//! Expanding a key (a round-key schedule, a GHASH table, Montgomery constants) costs more than a small request. Each
//! engine therefore expands a key once and leaves the result inside it. Slots are filled at most once and never
//! emptied before the key is dropped, so readers need no lock.

use std::any::{Any, TypeId};
use std::fmt;
use std::sync::{Arc, LazyLock, OnceLock};

use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::error::Error;
use crate::kind::Kind;

/// What a key is for. Kinds that can share a key share an algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names are the standards' own")]
pub enum Algorithm {
    /// The kind takes no key; see [`Key::none`].
    None,
    Aes128Ctr,
    Aes192Ctr,
    Aes256Ctr,
    Aes128Cbc,
    Aes192Cbc,
    Aes256Cbc,
    /// Two keys, data key first (IEEE 1619): 32 bytes. A key whose halves are equal decrypts only ([`Key::fits`]).
    Aes128Xts,
    /// 64 bytes.
    Aes256Xts,
    Aes128Gcm,
    Aes192Gcm,
    Aes256Gcm,
    ChaCha20Poly1305,
    /// Two keys, that of S2V first (RFC 5297 section 2.6): 64 bytes.
    Aes256Siv,
    /// Any secret up to [`Algorithm::SECRET_MAX`] bytes: HMAC, PRF, HKDF.
    Secret,
    Rsa2048,
    Rsa3072,
    Rsa4096,
    P256,
    P384,
    X25519,
    MlKem768,
}

/// Where in an ML-KEM-768 decapsulation key the encapsulation key lies: behind the secret vector, before its own hash and
/// the secret of implicit rejection (FIPS 203 algorithm 16).
pub const ML_KEM_768_PUBLIC: std::ops::Range<usize> = 1152..2336;

impl Algorithm {
    /// Longest [`Algorithm::Secret`], in bytes: far above any protocol's, low enough to bound work.
    pub const SECRET_MAX: usize = 65_536;

    /// Bytes of a symmetric key of this algorithm; `None` where it is not one fixed length.
    pub const fn key_len(self) -> Option<usize> {
        use Algorithm::*;
        match self {
            Aes128Ctr | Aes128Cbc | Aes128Gcm => Some(16),
            Aes192Ctr | Aes192Cbc | Aes192Gcm => Some(24),
            Aes256Ctr | Aes256Cbc | Aes256Gcm | ChaCha20Poly1305 | Aes128Xts => Some(32),
            Aes256Xts | Aes256Siv => Some(64),
            _ => Option::None,
        }
    }

    /// Bytes of the modulus, for the RSA algorithms.
    pub const fn modulus_len(self) -> Option<usize> {
        match self {
            Algorithm::Rsa2048 => Some(256),
            Algorithm::Rsa3072 => Some(384),
            Algorithm::Rsa4096 => Some(512),
            _ => None,
        }
    }

    /// The curve, for the elliptic-curve algorithms.
    pub const fn curve(self) -> Option<Curve> {
        match self {
            Algorithm::P256 => Some(Curve::P256),
            Algorithm::P384 => Some(Curve::P384),
            Algorithm::X25519 => Some(Curve::X25519),
            _ => None,
        }
    }
}

/// The curves we do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the standards' own")]
pub enum Curve {
    P256,
    P384,
    X25519,
}

impl Curve {
    /// Bytes of a private scalar and of a shared secret.
    pub const fn scalar_len(self) -> usize {
        match self {
            Curve::P256 | Curve::X25519 => 32,
            Curve::P384 => 48,
        }
    }

    /// Bytes of a public key: an uncompressed point (`0x04 || x || y`), or 32 for X25519.
    pub const fn public_len(self) -> usize {
        match self {
            Curve::P256 => 65,
            Curve::P384 => 97,
            Curve::X25519 => 32,
        }
    }
}

/// An RSA private key with its CRT parts (RFC 8017 section 3.2), each a big-endian integer without leading zeros.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
#[allow(missing_docs, reason = "the names are RFC 8017's own")]
pub struct RsaKey {
    pub n: Vec<u8>,
    pub e: Vec<u8>,
    pub d: Vec<u8>,
    pub p: Vec<u8>,
    pub q: Vec<u8>,
    pub dp: Vec<u8>,
    pub dq: Vec<u8>,
    pub qinv: Vec<u8>,
}

/// An elliptic-curve private key.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct EcKey {
    /// Big-endian scalar (little-endian for X25519, as RFC 7748 writes it), [`Curve::scalar_len`] bytes.
    pub scalar: Vec<u8>,
    /// Public key, [`Curve::public_len`] bytes.
    pub public: Vec<u8>,
}

/// Raw key material. Wiped on drop.
#[non_exhaustive]
pub enum Material {
    /// No key.
    None,
    /// A symmetric key or a secret.
    Bytes(Zeroizing<Vec<u8>>),
    /// An RSA private key.
    Rsa(Box<RsaKey>),
    /// An elliptic-curve private key.
    Ec(EcKey),
    /// An ML-KEM decapsulation key, as FIPS 203 encodes it.
    MlKem(Zeroizing<Vec<u8>>),
}

/// Engines (and forms of one engine's expansion) that can leave something in one key.
const SLOTS: usize = 6;

type Slot = OnceLock<(TypeId, Box<dyn Any + Send + Sync>)>;

/// A key and everything engines have made of it. Clones share both; the material is wiped with the last of them.
/// Safe to use from any thread.
#[derive(Clone)]
pub struct Key(Arc<Shared>);

struct Shared {
    algorithm: Algorithm,
    /// An XTS key whose halves are equal.
    decrypts_only: bool,
    material: Material,
    slots: [Slot; SLOTS],
}

static NONE: LazyLock<Key> = LazyLock::new(Key::none_owned);

impl Key {
    /// The key of kinds that take none (digests, key generation, compression).
    pub fn none() -> &'static Key {
        &NONE
    }

    /// A key without material that can be owned, for [`crate::OwnedRequest`]s of kinds that take none.
    pub fn none_owned() -> Key {
        Key::with(Algorithm::None, Material::None)
    }

    /// A symmetric key, or a secret for HMAC, PRF and HKDF.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the length is not the algorithm's, or if the algorithm is not symmetric.
    pub fn symmetric(algorithm: Algorithm, bytes: &[u8]) -> Result<Key, Error> {
        match (algorithm, algorithm.key_len()) {
            (Algorithm::Secret, _) if bytes.len() <= Algorithm::SECRET_MAX => {}
            (_, Some(len)) if bytes.len() == len => {}
            _ => return Err(Error::Invalid("key length")),
        }
        let decrypts_only = matches!(algorithm, Algorithm::Aes128Xts | Algorithm::Aes256Xts) && {
            let (data, tweak) = bytes.split_at(bytes.len() / 2);
            bool::from(subtle::ConstantTimeEq::ct_eq(data, tweak))
        };
        let material = Material::Bytes(Zeroizing::new(bytes.to_vec()));
        Ok(Key::made(algorithm, decrypts_only, material))
    }

    /// An RSA private key. Only shape is checked here (lengths, odd modulus of exactly the algorithm's size, public
    /// exponent odd and of at most 8 bytes); engines verify every result with the public exponent, so a key whose
    /// parts do not belong together yields an error, never a wrong result.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the field.
    pub fn rsa(key: RsaKey) -> Result<Key, Error> {
        let algorithm = match key.n.len() {
            256 => Algorithm::Rsa2048,
            384 => Algorithm::Rsa3072,
            512 => Algorithm::Rsa4096,
            _ => return Err(Error::Invalid("modulus length")),
        };
        let half = key.n.len() / 2;
        if key.n[0] < 0x80 || key.n[key.n.len() - 1] & 1 == 0 {
            return Err(Error::Invalid("modulus"));
        }
        if key.e.is_empty() || key.e.len() > 8 || key.e[key.e.len() - 1] & 1 == 0 || key.e[..] == [1] {
            return Err(Error::Invalid("public exponent"));
        }
        let odd = |part: &[u8]| part.len() == half && part[half - 1] & 1 == 1;
        if !odd(&key.p) || !odd(&key.q) {
            return Err(Error::Invalid("prime"));
        }
        let fits = |part: &[u8]| !part.is_empty() && part.len() <= half;
        if !fits(&key.dp)
            || !fits(&key.dq)
            || !fits(&key.qinv)
            || key.d.is_empty()
            || key.d.len() > key.n.len()
        {
            return Err(Error::Invalid("private exponent"));
        }
        Ok(Key::with(algorithm, Material::Rsa(Box::new(key))))
    }

    /// An elliptic-curve private key. Lengths are checked here; that the scalar is in range and the point on the
    /// curve is the engines' to check when they expand it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a length is not the curve's.
    pub fn ec(curve: Curve, key: EcKey) -> Result<Key, Error> {
        if key.scalar.len() != curve.scalar_len() || key.public.len() != curve.public_len() {
            return Err(Error::Invalid("elliptic-curve key length"));
        }
        let algorithm = match curve {
            Curve::P256 => Algorithm::P256,
            Curve::P384 => Algorithm::P384,
            Curve::X25519 => Algorithm::X25519,
        };
        Ok(Key::with(algorithm, Material::Ec(key)))
    }

    /// An ML-KEM-768 decapsulation key, 2,400 bytes (FIPS 203 algorithm 16). The length is checked here; that the hash in it
    /// is that of its encapsulation key, and that this is reduced, is the engines' to check.
    ///
    /// # Errors
    /// [`Error::Invalid`] for any other length.
    pub fn ml_kem_768(bytes: &[u8]) -> Result<Key, Error> {
        if bytes.len() != 2400 {
            return Err(Error::Invalid("decapsulation key length"));
        }
        Ok(Key::with(Algorithm::MlKem768, Material::MlKem(Zeroizing::new(bytes.to_vec()))))
    }

    fn with(algorithm: Algorithm, material: Material) -> Key {
        Key::made(algorithm, false, material)
    }

    fn made(algorithm: Algorithm, decrypts_only: bool, material: Material) -> Key {
        let slots = [const { OnceLock::new() }; SLOTS];
        Key(Arc::new(Shared { algorithm, decrypts_only, material, slots }))
    }

    /// What the key is for.
    #[inline]
    pub fn algorithm(&self) -> Algorithm {
        self.0.algorithm
    }

    /// Whether requests of a kind may use the key. An XTS key whose halves are equal encrypts nothing (FIPS 140's guidance on
    /// SP 800-38E), but it decrypts what was encrypted with it before anyone looked; OpenSSL has it so, too.
    ///
    /// # Errors
    /// [`Error::Invalid`], saying why not.
    #[inline]
    pub fn fits(&self, kind: Kind) -> Result<(), Error> {
        if self.0.algorithm != kind.info().algorithm {
            return Err(Error::Invalid("key algorithm"));
        }
        if self.0.decrypts_only && matches!(kind, Kind::Aes128XtsEncrypt | Kind::Aes256XtsEncrypt) {
            return Err(Error::Invalid("XTS key halves are equal"));
        }
        Ok(())
    }

    /// The raw material, for engines.
    pub fn material(&self) -> &Material {
        &self.0.material
    }

    /// The bytes of a symmetric key or secret; empty for any other.
    pub fn bytes(&self) -> &[u8] {
        match &self.0.material {
            Material::Bytes(bytes) => bytes,
            _ => &[],
        }
    }

    /// What an engine made of this key, made now by `expand` if it was not before. `T` is the engine's own type and
    /// must wipe itself on drop. Does not block unless two threads expand the same key for the first time at once,
    /// when one may do the work in vain.
    ///
    /// # Errors
    /// Whatever `expand` returns; [`Error::Unsupported`] if more than six types were left in one key.
    #[inline]
    pub fn expanded<T: Send + Sync + 'static>(
        &self,
        expand: impl FnOnce(&Material) -> Result<T, Error>,
    ) -> Result<&T, Error> {
        for slot in &self.0.slots {
            match slot.get() {
                Some((id, value)) if *id == TypeId::of::<T>() => {
                    return value.downcast_ref().ok_or(Error::Unsupported);
                }
                Some(_) => {}
                None => return self.expand_into_free_slot(expand),
            }
        }
        Err(Error::Unsupported)
    }

    #[cold]
    fn expand_into_free_slot<T: Send + Sync + 'static>(
        &self,
        expand: impl FnOnce(&Material) -> Result<T, Error>,
    ) -> Result<&T, Error> {
        let mut entry: (TypeId, Box<dyn Any + Send + Sync>) =
            (TypeId::of::<T>(), Box::new(expand(&self.0.material)?));
        for slot in &self.0.slots {
            let refused = slot.set(entry);
            // Whoever filled this slot, we or a rival thread, it may now hold a `T`.
            if let Some(value) = slot.get().and_then(|(_, value)| value.downcast_ref()) {
                return Ok(value);
            }
            match refused {
                Err(back) => entry = back,
                Ok(()) => break,
            }
        }
        Err(Error::Unsupported)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("algorithm", &self.0.algorithm).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_length_is_rejected() {
        assert!(Key::symmetric(Algorithm::Aes128Gcm, &[0; 15]).is_err());
        assert!(Key::symmetric(Algorithm::Rsa2048, &[0; 16]).is_err());
        assert!(Key::symmetric(Algorithm::Secret, &vec![0; Algorithm::SECRET_MAX + 1]).is_err());
        assert!(Key::ml_kem_768(&[0; 2399]).is_err() && Key::ml_kem_768(&[0; 2401]).is_err());
        assert!(Key::symmetric(Algorithm::MlKem768, &[0; 2400]).is_err());
    }

    #[test]
    fn xts_key_with_equal_halves_decrypts_only() {
        let (equal, mut bytes) = (Key::symmetric(Algorithm::Aes128Xts, &[7; 32]).unwrap(), [7; 32]);
        assert_eq!(equal.fits(Kind::Aes128XtsEncrypt), Err(Error::Invalid("XTS key halves are equal")));
        assert_eq!(equal.fits(Kind::Aes128XtsDecrypt), Ok(()));
        bytes[31] ^= 1;
        let key = Key::symmetric(Algorithm::Aes128Xts, &bytes).unwrap();
        assert_eq!((key.fits(Kind::Aes128XtsEncrypt), key.fits(Kind::Aes128XtsDecrypt)), (Ok(()), Ok(())));
        let long = Key::symmetric(Algorithm::Aes256Xts, &[7; 64]).unwrap();
        assert!(long.fits(Kind::Aes256XtsEncrypt).is_err() && long.fits(Kind::Aes256XtsDecrypt).is_ok());
        assert!(long.fits(Kind::Aes128XtsDecrypt).is_err() && equal.fits(Kind::Aes256XtsDecrypt).is_err());
    }

    #[test]
    fn expansion_happens_once_for_each_type() {
        let key = Key::symmetric(Algorithm::Aes128Ctr, &[1; 16]).unwrap();
        let mut runs = 0;
        for _ in 0..3 {
            let value: &u32 = key
                .expanded(|_| {
                    runs += 1;
                    Ok(7)
                })
                .unwrap();
            assert_eq!(*value, 7);
            let value: &u64 = key.expanded(|_| Ok(9)).unwrap();
            assert_eq!(*value, 9);
        }
        assert_eq!(runs, 1);
    }

    #[test]
    fn failed_expansion_leaves_the_slot_free() {
        let key = Key::symmetric(Algorithm::Aes128Ctr, &[1; 16]).unwrap();
        assert!(key.expanded::<u32>(|_| Err(Error::Unsupported)).is_err());
        assert_eq!(*key.expanded::<u32>(|_| Ok(3)).unwrap(), 3);
    }

    #[test]
    fn debug_shows_no_material() {
        let key = Key::symmetric(Algorithm::Secret, b"hunter2").unwrap();
        assert!(!format!("{key:?}").contains("hunter2") && !format!("{key:?}").contains("104"));
    }
}
