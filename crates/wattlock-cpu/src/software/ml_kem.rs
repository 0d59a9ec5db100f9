//! ML-KEM-768 (FIPS 203), by `fips203`, from given randomness: portable code that neither branches on a secret nor looks
//! anything up by one, and wipes what it holds. (RustCrypto's `ml-kem` 0.2, which age brings along, looks noise up in a table;
//! 0.3 does not, but cannot be built beside it.)

use fips203::ml_kem_768::{CipherText, DecapsKey, EncapsKey, KG};
use fips203::traits::{Decaps, Encaps, KeyGen, SerDes};
use wattlock_core::{Error, Fault, Key, Material};
use zeroize::Zeroizing;

use crate::kem::{self, BAD_PUBLIC, BAD_SECRET};

/// A decapsulation key that was checked. It wipes itself.
struct SecretKey(DecapsKey);

/// Bytes of a ciphertext, behind which the secret lies in an encapsulation's output.
const CIPHERTEXT: usize = 1088;

const BAD_NONCE: Error = Error::Invalid("nonce length");

/// The decapsulation key of `d || z`.
///
/// # Errors
/// [`Error::Invalid`] for a length.
pub fn generate(seed: &[u8], out: &mut [u8]) -> Result<usize, Error> {
    wiped(|| {
        let (d, z) = seed.split_first_chunk().ok_or(BAD_NONCE)?;
        let (_, secret) = KG::keygen_from_seed(*d, z.try_into().map_err(|_| BAD_NONCE)?);
        put(&*Zeroizing::new(secret.into_bytes()), out)
    })
}

/// Ciphertext and shared secret for a peer's encapsulation key, with the randomness `m`.
///
/// # Errors
/// [`Error::Invalid`] for a key that is not reduced, or a length.
pub fn encapsulate(peer: &[u8], m: &[u8], out: &mut [u8]) -> Result<usize, Error> {
    let peer = peer.try_into().map_err(|_| BAD_PUBLIC)?;
    let peer = EncapsKey::try_from_bytes(peer).map_err(|_| BAD_PUBLIC)?;
    wiped(|| {
        let (secret, ciphertext) = peer.encaps_from_seed(m.try_into().map_err(|_| BAD_NONCE)?);
        let (first, rest) = out.split_at_mut_checked(CIPHERTEXT).ok_or(Error::Invalid("output length"))?;
        Ok(put(&ciphertext.into_bytes(), first)? + put(&*Zeroizing::new(secret.into_bytes()), rest)?)
    })
}

/// The shared secret of a ciphertext.
///
/// # Errors
/// [`Error::Invalid`] for a key whose hash is wrong or whose public half is not reduced, or a length.
pub fn decapsulate(key: &Key, ciphertext: &[u8], out: &mut [u8]) -> Result<usize, Error> {
    wiped(|| {
        let secret = key.expanded(SecretKey::new)?;
        let ciphertext = ciphertext.try_into().map_err(|_| Error::Invalid("input length"))?;
        let ciphertext = CipherText::try_from_bytes(ciphertext).map_err(|_| Error::Invalid("input"))?;
        let shared = secret.0.try_decaps(&ciphertext).map_err(|_| Error::Device(Fault::Reported))?;
        put(&*Zeroizing::new(shared.into_bytes()), out)
    })
}

/// Does it in a frame of its own and overwrites what of the stack that took: the library hands seeds and keys over by value, and
/// each move leaves a copy.
fn wiped<T>(work: impl FnOnce() -> T) -> T {
    #[inline(never)]
    fn below<T>(work: impl FnOnce() -> T) -> T {
        work()
    }
    #[inline(never)]
    fn bleach() {
        std::hint::black_box(&mut [0u8; 96 << 10]);
    }
    let done = below(work);
    bleach();
    done
}

impl SecretKey {
    fn new(material: &Material) -> Result<SecretKey, Error> {
        let Material::MlKem(bytes) = material else { return Err(Error::Invalid("key algorithm")) };
        let mut bytes = Zeroizing::new(<[u8; 2400]>::try_from(&bytes[..]).map_err(|_| BAD_SECRET)?);
        // The library refuses coefficients that the standard takes modulo q.
        kem::reduce(&mut *bytes);
        DecapsKey::try_from_bytes(*bytes).map(SecretKey).map_err(|_| BAD_SECRET)
    }
}

/// Writes bytes to the front of `out`: how many.
fn put(bytes: &[u8], out: &mut [u8]) -> Result<usize, Error> {
    out.get_mut(..bytes.len()).ok_or(Error::Invalid("output length"))?.copy_from_slice(bytes);
    Ok(bytes.len())
}
