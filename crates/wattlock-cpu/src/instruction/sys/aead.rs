//! AEAD keys.

use std::ptr;

use wattlock_core::{Error, Fault};

use super::super::span::Span;
use super::raw;
use super::result::{Owned, done};

/// Which AEAD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Cipher {
    Aes128Gcm,
    Aes192Gcm,
    Aes256Gcm,
    ChaCha20Poly1305,
}

impl Cipher {
    fn raw(self) -> *const raw::EVP_AEAD {
        // SAFETY: each returns a pointer to a constant.
        unsafe {
            match self {
                Cipher::Aes128Gcm => raw::EVP_aead_aes_128_gcm(),
                Cipher::Aes192Gcm => raw::EVP_aead_aes_192_gcm(),
                Cipher::Aes256Gcm => raw::EVP_aead_aes_256_gcm(),
                Cipher::ChaCha20Poly1305 => raw::EVP_aead_chacha20_poly1305(),
            }
        }
    }
}

/// Tag length, the only one we use.
const TAG: usize = 16;

/// An expanded AEAD key: round keys and hash table.
pub(in super::super) struct AeadKey {
    state: Owned<raw::EVP_AEAD_CTX>,
}

// SAFETY: the header promises that one context may seal and open on many threads at once; both calls take it const.
unsafe impl Send for AeadKey {}
// SAFETY: as above.
unsafe impl Sync for AeadKey {}

impl AeadKey {
    /// # Errors
    /// [`Error::Invalid`] if the key is not as long as the cipher's.
    pub(in super::super) fn new(cipher: Cipher, key: &[u8]) -> Result<AeadKey, Error> {
        // SAFETY: reads the slice, checks its length against the cipher's, and returns an object we own, or null.
        let state = unsafe { Owned::new(raw::EVP_AEAD_CTX_new(cipher.raw(), key.as_ptr(), key.len(), TAG)) };
        Ok(AeadKey { state: state.map_err(|_| Error::Invalid("key length"))? })
    }

    /// Encrypts and authenticates.
    ///
    /// # Errors
    /// [`Error::Device`] if the library refuses; the output is then wiped.
    #[inline]
    pub(in super::super) fn seal(
        &self,
        nonce: &[u8; 12],
        aad: &[u8],
        data: Span<'_>,
        tag: &mut [u8; TAG],
    ) -> Result<(), Error> {
        let mut tag_len = 0;
        // SAFETY: the span's sides are valid for its length and equal or disjoint, as the call demands; the tag has
        // room for `TAG` bytes; nonce and associated data are slices; the context lives as long as `self`.
        let sealed = done(unsafe {
            raw::EVP_AEAD_CTX_seal_scatter(
                self.state.get(),
                data.to(),
                tag.as_mut_ptr(),
                &raw mut tag_len,
                TAG,
                nonce.as_ptr(),
                nonce.len(),
                data.from(),
                data.len(),
                ptr::null(),
                0,
                aad.as_ptr(),
                aad.len(),
            )
        });
        if sealed.is_err() || tag_len != TAG {
            wipe(&data);
            return Err(Error::Device(Fault::Reported));
        }
        Ok(())
    }

    /// Verifies and decrypts. The library writes while it verifies, and clears the output if the tag is wrong; we
    /// clear it again rather than depend on that.
    ///
    /// # Errors
    /// [`Error::Authentication`], the output wiped.
    #[inline]
    pub(in super::super) fn open(
        &self,
        nonce: &[u8; 12],
        aad: &[u8],
        data: Span<'_>,
        tag: &[u8; TAG],
    ) -> Result<(), Error> {
        // SAFETY: as in `seal`; the tag is only read.
        let opened = done(unsafe {
            raw::EVP_AEAD_CTX_open_gather(
                self.state.get(),
                data.to(),
                nonce.as_ptr(),
                nonce.len(),
                data.from(),
                data.len(),
                tag.as_ptr(),
                TAG,
                aad.as_ptr(),
                aad.len(),
            )
        });
        opened.map_err(|_| {
            wipe(&data);
            Error::Authentication
        })
    }
}

#[cold]
fn wipe(data: &Span<'_>) {
    // SAFETY: the output side is valid for writes of the span's length.
    unsafe { raw::OPENSSL_cleanse(data.to().cast(), data.len()) }
}
