//! ChaCha20-Poly1305 (RFC 8439): our own kernels where the CPU has 512-bit multiply-add on 52-bit integers, AWS-LC where it
//! has not.
//!
//! [`stream512`] makes the keystream, [`poly512`] the hash, [`wide`] joins them into sealing and opening. [`state`] is the
//! cipher's state and rounds; the beginning and the end of a message are hashed by the plain [`Poly1305`](crate::poly1305).
//! Nothing here knows a request.
//!
//! Constant time: no branch and no address depends on key, data or tag, only on lengths.

#[cfg(target_arch = "x86_64")]
mod poly512;
#[cfg(target_arch = "x86_64")]
mod state;
#[cfg(target_arch = "x86_64")]
mod stream512;
#[cfg(target_arch = "x86_64")]
#[path = "wide.rs"]
mod wide;
#[cfg(not(target_arch = "x86_64"))]
#[path = "wide_absent.rs"]
mod wide;

use wattlock_core::Error;

use super::span::Span;
use super::sys::aead::{AeadKey, Cipher};
use crate::detect::Cpu;

/// Bytes of a nonce.
const NONCE: usize = 12;
/// Bytes of a tag.
const TAG: usize = 16;
/// The longest message: the block counter has 32 bits and block 0 is the hash's (RFC 8439 section 2.8).
const MOST: u64 = (1 << 36) - 64;

/// What the kernels of this CPU are called, for people.
pub(super) fn kernel_name(cpu: &Cpu) -> &'static str {
    if wide::Key::available(cpu) { "AVX-512 (avx512f, avx512bw, avx512ifma)" } else { "AWS-LC" }
}

/// Messages shorter than this go to AWS-LC, which starts faster: at 64 bytes by a sixth, at 320 by an eighth. At 448
/// sealing is faster with ours and opening not yet; from here on both are (Emerald Rapids: by a third at 768 bytes,
/// twofold from 16 KiB on).
const SHORT: usize = 512;

/// An expanded ChaCha20-Poly1305 key.
pub(super) struct ChaChaKey {
    own: Option<wide::Key>,
    library: AeadKey,
}

impl ChaChaKey {
    pub(super) fn new(cpu: &Cpu, key: &[u8]) -> Result<ChaChaKey, Error> {
        let bytes = key.try_into().map_err(|_| Error::Invalid("key length"))?;
        let library = AeadKey::new(Cipher::ChaCha20Poly1305, key)?;
        Ok(ChaChaKey { own: wide::Key::new(cpu, bytes), library })
    }

    /// Our kernels, if there are any and the message is long enough for them.
    #[inline]
    fn own_for(&self, data: &Span<'_>) -> Option<&wide::Key> {
        self.own.as_ref().filter(|_| data.len() >= SHORT)
    }

    /// Encrypts and authenticates.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the message is longer than one nonce serves.
    #[inline]
    pub(super) fn seal(
        &self,
        nonce: &[u8; NONCE],
        aad: &[u8],
        data: Span<'_>,
        tag: &mut [u8; TAG],
    ) -> Result<(), Error> {
        within_counter(&data)?;
        match self.own_for(&data) {
            Some(key) => *tag = key.seal(nonce, aad, data),
            None => self.library.seal(nonce, aad, data, tag)?,
        }
        Ok(())
    }

    /// Verifies and decrypts. Our own kernels write nothing before the tag has been found right; AWS-LC decrypts as it hashes.
    ///
    /// # Errors
    /// [`Error::Authentication`], the output wiped; [`Error::Invalid`] as in [`ChaChaKey::seal`].
    #[inline]
    pub(super) fn open(
        &self,
        nonce: &[u8; NONCE],
        aad: &[u8],
        data: Span<'_>,
        tag: &[u8; TAG],
    ) -> Result<(), Error> {
        within_counter(&data)?;
        match self.own_for(&data) {
            Some(key) => key.open(nonce, aad, data, tag),
            None => self.library.open(nonce, aad, data, tag),
        }
    }
}

fn within_counter(data: &Span<'_>) -> Result<(), Error> {
    if data.len() as u64 <= MOST { Ok(()) } else { Err(Error::Invalid("input length")) }
}
