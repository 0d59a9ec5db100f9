//! ML-KEM-768 (FIPS 203), from given randomness. AWS-LC checks what FIPS 203 section 7 has it check: an encapsulation key
//! is reduced, a decapsulation key's hash is its own. That the encapsulation key in a decapsulation key is reduced, too, is
//! checked here.

use std::ptr;

use wattlock_core::{Error, Fault};

use super::raw;
use super::result::{Failed, Owned, done};
use crate::kem::{self, BAD_PUBLIC, BAD_SECRET};

const BROKEN: Error = Error::Device(Fault::Reported);

/// Bytes of a ciphertext, and of a shared secret.
const CIPHERTEXT: usize = 1088;
const SECRET: usize = 32;

/// A decapsulation key.
pub(in super::super) struct Decapsulator(Owned<raw::EVP_PKEY>);

// SAFETY: the key is only read after it was made, and its count of users is atomic.
unsafe impl Send for Decapsulator {}
// SAFETY: as above.
unsafe impl Sync for Decapsulator {}

/// The decapsulation key of `d || z`.
///
/// # Errors
/// [`Error::Invalid`] for a length; [`Error::Device`] if the library fails.
pub(in super::super) fn generate(seed: &[u8], out: &mut [u8]) -> Result<(), Error> {
    let seed: &[u8; 64] = seed.try_into().map_err(|_| Error::Invalid("nonce length"))?;
    (|| -> Result<(), Failed> {
        let (mut key, mut len, mut room) = (ptr::null_mut(), seed.len(), out.len());
        // SAFETY: the context is ours; the call reads as many bytes of seed as `len` says and gives us a key; the last one
        // writes at most `room` bytes.
        unsafe {
            let context = Owned::new(raw::EVP_PKEY_CTX_new_id(raw::EVP_PKEY_KEM, ptr::null_mut()))?;
            done(raw::EVP_PKEY_CTX_kem_set_params(context.get_mut(), raw::NID_MLKEM768))?;
            done(raw::EVP_PKEY_keygen_init(context.get_mut()))?;
            done(raw::EVP_PKEY_keygen_deterministic(
                context.get_mut(),
                &raw mut key,
                seed.as_ptr(),
                &raw mut len,
            ))?;
            let key = Owned::new(key)?;
            done(raw::EVP_PKEY_get_raw_private_key(key.get(), out.as_mut_ptr(), &raw mut room))?;
        }
        if room == out.len() { Ok(()) } else { Err(Failed) }
    })()
    .map_err(|_| BROKEN)
}

/// Ciphertext and shared secret for a peer's encapsulation key, with the randomness `m`.
///
/// # Errors
/// [`Error::Invalid`] for a key that is not reduced, or a wrong length.
pub(in super::super) fn encapsulate(peer: &[u8], m: &[u8], out: &mut [u8]) -> Result<(), Error> {
    let m: &[u8; 32] = m.try_into().map_err(|_| Error::Invalid("nonce length"))?;
    let (ciphertext, secret) = out.split_at_mut_checked(CIPHERTEXT).ok_or(Error::Invalid("output length"))?;
    if secret.len() != SECRET {
        return Err(Error::Invalid("output length"));
    }
    // SAFETY: reads the slice and returns a key of ours, or null.
    let key = unsafe {
        Owned::new(raw::EVP_PKEY_kem_new_raw_public_key(raw::NID_MLKEM768, peer.as_ptr(), peer.len()))
    };
    let key = key.map_err(|_| BAD_PUBLIC)?;
    let context = context(&key)?;
    let (mut room, mut secret_room, mut len) = (ciphertext.len(), secret.len(), m.len());
    // SAFETY: the context is ours; writes at most as many bytes as the lengths say, and reads 32 of randomness.
    done(unsafe {
        raw::EVP_PKEY_encapsulate_deterministic(
            context.get_mut(),
            ciphertext.as_mut_ptr(),
            &raw mut room,
            secret.as_mut_ptr(),
            &raw mut secret_room,
            m.as_ptr(),
            &raw mut len,
        )
    })
    .map_err(|_| BAD_PUBLIC)
}

impl Decapsulator {
    /// # Errors
    /// [`Error::Invalid`] for a length, or if the public half is not reduced. The hash is checked with each decapsulation.
    pub(in super::super) fn new(bytes: &[u8]) -> Result<Decapsulator, Error> {
        if !bytes.get(kem::VECTOR..).is_some_and(kem::is_reduced) {
            return Err(BAD_SECRET);
        }
        // SAFETY: reads the slice and returns a key of ours, or null.
        let key = unsafe {
            Owned::new(raw::EVP_PKEY_kem_new_raw_secret_key(raw::NID_MLKEM768, bytes.as_ptr(), bytes.len()))
        };
        key.map(Decapsulator).map_err(|_| BAD_SECRET)
    }

    /// The shared secret of a ciphertext.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a wrong length, or a key whose hash is wrong.
    pub(in super::super) fn decapsulate(&self, ciphertext: &[u8], out: &mut [u8]) -> Result<(), Error> {
        if ciphertext.len() != CIPHERTEXT || out.len() != SECRET {
            return Err(Error::Invalid("input length"));
        }
        let context = context(&self.0)?;
        let mut room = out.len();
        // SAFETY: the context is ours; reads the slice and writes at most `room` bytes.
        done(unsafe {
            raw::EVP_PKEY_decapsulate(
                context.get_mut(),
                out.as_mut_ptr(),
                &raw mut room,
                ciphertext.as_ptr(),
                ciphertext.len(),
            )
        })
        .map_err(|_| BAD_SECRET)
    }
}

fn context(key: &Owned<raw::EVP_PKEY>) -> Result<Owned<raw::EVP_PKEY_CTX>, Error> {
    // SAFETY: the key is live, and the context keeps it so; returns an object of ours, or null.
    unsafe { Owned::new(raw::EVP_PKEY_CTX_new(key.get_mut(), ptr::null_mut())) }.map_err(|_| BROKEN)
}
