//! ML-KEM-768 (FIPS 203), by RustCrypto's `ml-kem`, from given randomness.
//!
//! The input checks of FIPS 203 section 7 are ours: the library makes none of them. What they decide by is public: an
//! encapsulation key, and whether the hash kept with it is its own.

use ml_kem::array::Array;
use ml_kem::kem::Decapsulate;
use ml_kem::{EncapsulateDeterministic, EncodedSizeUser, KemCore, MlKem768};
use sha3::{Digest, Sha3_256};
use subtle::ConstantTimeEq;
use wattlock_core::{Error, Fault, Key, ML_KEM_768_PUBLIC, Material};
use zeroize::{Zeroize, Zeroizing};

type PublicKey = <MlKem768 as KemCore>::EncapsulationKey;

/// A decapsulation key whose hash was checked. The library wipes it.
struct SecretKey(<MlKem768 as KemCore>::DecapsulationKey);

/// FIPS 203's modulus.
const Q: u16 = 3329;

/// Bytes of a ciphertext, behind which the secret lies in an encapsulation's output.
const CIPHERTEXT: usize = 1088;

/// What becomes of an encapsulation key that is not reduced.
const BAD_PEER: Error = Error::Invalid("encapsulation key");

/// The decapsulation key of `d || z`.
///
/// # Errors
/// [`Error::Invalid`] for a seed of another length than 64 bytes.
pub fn generate(seed: &[u8], out: &mut [u8]) -> Result<usize, Error> {
    let (d, z) = seed.split_at_checked(32).ok_or(Error::Invalid("nonce length"))?;
    let fits = |half| Array::try_from(half).map_err(|_| Error::Invalid("nonce length"));
    let (mut d, mut z) = (fits(d)?, fits(z)?);
    let (secret, _) = MlKem768::generate_deterministic(&d, &z);
    d.zeroize();
    z.zeroize();
    let mut bytes = secret.as_bytes();
    let out = out.get_mut(..bytes.len()).ok_or(Error::Invalid("output length"))?;
    out.copy_from_slice(&bytes);
    bytes.zeroize();
    Ok(out.len())
}

/// Ciphertext and shared secret for a peer's encapsulation key, with the randomness `m`.
///
/// # Errors
/// [`Error::Invalid`] for a key that is not reduced, or a wrong length.
pub fn encapsulate(peer: &[u8], m: &[u8], out: &mut [u8]) -> Result<usize, Error> {
    if !is_reduced(peer) {
        return Err(BAD_PEER);
    }
    let peer = PublicKey::from_bytes(peer.try_into().map_err(|_| BAD_PEER)?);
    let m = Zeroizing::new(<[u8; 32]>::try_from(m).map_err(|_| Error::Invalid("nonce length"))?);
    let m: &Array<u8, _> = (&*m).into();
    let (ciphertext, mut secret) =
        peer.encapsulate_deterministic(m).map_err(|()| Error::Device(Fault::Reported))?;
    out[..CIPHERTEXT].copy_from_slice(&ciphertext);
    out[CIPHERTEXT..][..secret.len()].copy_from_slice(&secret);
    let len = CIPHERTEXT + secret.len();
    secret.zeroize();
    Ok(len)
}

/// The shared secret of a ciphertext.
///
/// # Errors
/// [`Error::Invalid`] for a key whose hash is wrong, or a wrong length.
pub fn decapsulate(key: &Key, ciphertext: &[u8], out: &mut [u8]) -> Result<usize, Error> {
    let secret = key.expanded(SecretKey::new)?;
    let ciphertext = ciphertext.try_into().map_err(|_| Error::Invalid("input length"))?;
    let mut shared = secret.0.decapsulate(ciphertext).map_err(|()| Error::Device(Fault::Reported))?;
    out[..shared.len()].copy_from_slice(&shared);
    let len = shared.len();
    shared.zeroize();
    Ok(len)
}

impl SecretKey {
    fn new(material: &Material) -> Result<SecretKey, Error> {
        let Material::MlKem(bytes) = material else { return Err(Error::Invalid("key algorithm")) };
        let bad = Error::Invalid("decapsulation key");
        let public = bytes.get(ML_KEM_768_PUBLIC).ok_or(bad)?;
        let kept = bytes.get(ML_KEM_768_PUBLIC.end..ML_KEM_768_PUBLIC.end + 32).ok_or(bad)?;
        if !bool::from(Sha3_256::digest(public).ct_eq(kept)) {
            return Err(bad);
        }
        Ok(SecretKey(EncodedSizeUser::from_bytes((&bytes[..]).try_into().map_err(|_| bad)?)))
    }
}

/// Whether each of a public key's coefficients, 12 bits each, is below the modulus (FIPS 203 section 7.2).
fn is_reduced(peer: &[u8]) -> bool {
    let Some((vector, _)) = peer.split_at_checked(1152) else { return false };
    let two = |[a, b, c]: &[u8; 3]| {
        let (a, b, c) = (u16::from(*a), u16::from(*b), u16::from(*c));
        (a | (b & 15) << 8) < Q && (b >> 4 | c << 4) < Q
    };
    vector.as_chunks().0.iter().all(two)
}
