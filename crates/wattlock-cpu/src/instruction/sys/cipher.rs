//! AES-GCM in pieces.
//!
//! AWS-LC's only public way to feed GCM piece by piece is its `EVP_CIPHER_CTX`. Under it lie the same kernels as under
//! the one-shot AEAD, and its own layer costs little: no locks, no fetching, no allocation after the key is set.

use std::ffi::{c_int, c_void};
use std::ptr;

use wattlock_core::{Error, Fault};

use super::super::span::Span;
use super::aead::Cipher;
use super::raw;
use super::result::{Failed, Owned, done};

/// Most bytes in one call: lengths are C's `int`. A multiple of the block, so that no call but the last is uneven.
const PIECE: usize = 1 << 30;

const BROKEN: Error = Error::Device(Fault::Reported);

/// A key in one direction, and a message in progress. The caller keeps the order of the calls; another order gives
/// errors or wrong tags, nothing worse.
pub(in super::super) struct GcmState {
    state: Owned<raw::EVP_CIPHER_CTX>,
    /// The nonce length the state expects.
    nonce: usize,
}

// SAFETY: a state is plain memory without ties to a thread; its owner is its only user.
unsafe impl Send for GcmState {}

impl GcmState {
    /// # Errors
    /// [`Error::Invalid`] if the key is not as long as the cipher's, [`Error::Unsupported`] if the cipher is not GCM.
    pub(in super::super) fn new(cipher: Cipher, key: &[u8], seal: bool) -> Result<GcmState, Error> {
        // SAFETY: each returns a pointer to a constant.
        let (kind, len) = unsafe {
            match cipher {
                Cipher::Aes128Gcm => (raw::EVP_aes_128_gcm(), 16),
                Cipher::Aes192Gcm => (raw::EVP_aes_192_gcm(), 24),
                Cipher::Aes256Gcm => (raw::EVP_aes_256_gcm(), 32),
                Cipher::ChaCha20Poly1305 => return Err(Error::Unsupported),
            }
        };
        if key.len() != len {
            return Err(Error::Invalid("key length"));
        }
        // SAFETY: returns an object we own, or null.
        let state = unsafe { Owned::new(raw::EVP_CIPHER_CTX_new()) }.map_err(|_| BROKEN)?;
        // SAFETY: the state is fresh, the cipher a constant, and the key as long as the cipher reads.
        done(unsafe {
            let none = ptr::null_mut();
            raw::EVP_CipherInit_ex(state.get_mut(), kind, none, key.as_ptr(), ptr::null(), c_int::from(seal))
        })
        .map_err(|_| BROKEN)?;
        Ok(GcmState { state, nonce: 12 })
    }

    /// Begins a message; `nonce` must not be empty.
    #[inline]
    pub(in super::super) fn start(&mut self, nonce: &[u8]) -> Result<(), Error> {
        if nonce.len() != self.nonce {
            self.expect(nonce.len())?;
        }
        // SAFETY: no cipher and no key mean those set; the state reads as many bytes of nonce as were just agreed.
        done(unsafe {
            let none = ptr::null_mut();
            raw::EVP_CipherInit_ex(self.state.get_mut(), ptr::null(), none, ptr::null(), nonce.as_ptr(), -1)
        })
        .map_err(|_| BROKEN)
    }

    #[cold]
    fn expect(&mut self, nonce: usize) -> Result<(), Error> {
        let len = c_int::try_from(nonce).map_err(|_| Error::Invalid("nonce length"))?;
        // SAFETY: this command takes no pointer.
        unsafe { self.control(raw::EVP_CTRL_AEAD_SET_IVLEN, len, ptr::null_mut()) }.map_err(|_| BROKEN)?;
        self.nonce = nonce;
        Ok(())
    }

    /// Takes associated data.
    #[inline]
    pub(in super::super) fn aad(&mut self, bytes: &[u8]) -> Result<(), Error> {
        // An empty piece would pass for the end of the message.
        for piece in bytes.chunks(PIECE) {
            // SAFETY: without an output the call only reads `piece`.
            unsafe { self.feed(ptr::null_mut(), piece.as_ptr(), piece.len())? };
        }
        Ok(())
    }

    /// Encrypts or decrypts, and takes the ciphertext into the tag.
    #[inline]
    pub(in super::super) fn update(&mut self, data: Span<'_>) -> Result<(), Error> {
        let mut at = 0;
        while at < data.len() {
            let len = (data.len() - at).min(PIECE);
            // SAFETY: `at + len` is within the span, whose sides are valid for its length and equal or disjoint.
            unsafe { self.feed(data.to().add(at), data.from().add(at), len)? };
            at += len;
        }
        Ok(())
    }

    /// Ends a sealed message with the leftmost bytes of its tag, 1 to 16.
    #[inline]
    pub(in super::super) fn tag(&mut self, tag: &mut [u8]) -> Result<(), Error> {
        let len = c_int::try_from(tag.len()).map_err(|_| Error::Invalid("tag length"))?;
        // SAFETY: no input means the end; nothing is read or written but the state.
        unsafe { self.feed(ptr::null_mut(), ptr::null(), 0)? };
        // SAFETY: the command writes `len` bytes, for which `tag` has room.
        unsafe { self.control(raw::EVP_CTRL_AEAD_GET_TAG, len, tag.as_mut_ptr().cast()) }.map_err(|_| BROKEN)
    }

    /// Ends an opened message: compares the leftmost bytes of its tag, 1 to 16, in constant time.
    ///
    /// # Errors
    /// [`Error::Authentication`] if they differ.
    #[inline]
    pub(in super::super) fn verify(&mut self, tag: &[u8]) -> Result<(), Error> {
        let len = c_int::try_from(tag.len()).map_err(|_| Error::Invalid("tag length"))?;
        // SAFETY: the command only reads `len` bytes, which `tag` has.
        unsafe { self.control(raw::EVP_CTRL_AEAD_SET_TAG, len, tag.as_ptr().cast_mut().cast()) }
            .map_err(|_| BROKEN)?;
        // SAFETY: as in `tag`.
        unsafe { self.feed(ptr::null_mut(), ptr::null(), 0) }.map_err(|_| Error::Authentication)
    }

    /// The same key in the midst of the same message.
    pub(in super::super) fn try_clone(&self) -> Result<GcmState, Error> {
        // SAFETY: returns an object we own, or null.
        let copy = unsafe { Owned::new(raw::EVP_CIPHER_CTX_new()) }.map_err(|_| BROKEN)?;
        // SAFETY: the copy is fresh, and `self` is borrowed, so it does not change meanwhile.
        done(unsafe { raw::EVP_CIPHER_CTX_copy(copy.get_mut(), self.state.get()) }).map_err(|_| BROKEN)?;
        Ok(GcmState { state: copy, nonce: self.nonce })
    }

    /// # Safety
    /// `from` must be null or valid for reads of `len` bytes; `to` must be null or valid for writes of as many, and
    /// equal to `from` or disjoint from it. `len` must fit C's `int`.
    #[inline]
    unsafe fn feed(&mut self, to: *mut u8, from: *const u8, len: usize) -> Result<(), Error> {
        // SAFETY: the caller's pointers; the state was set up by `new`.
        let code = unsafe { raw::EVP_Cipher(self.state.get_mut(), to, from, len) };
        if code >= 0 { Ok(()) } else { Err(failed()) }
    }

    /// # Safety
    /// `at` must be valid for what the command does there.
    #[inline]
    unsafe fn control(&mut self, command: c_int, len: c_int, at: *mut c_void) -> Result<(), Failed> {
        // SAFETY: the caller's pointer; the state was set up by `new`.
        done(unsafe { raw::EVP_CIPHER_CTX_ctrl(self.state.get_mut(), command, len, at) })
    }
}

#[cold]
fn failed() -> Error {
    // SAFETY: touches only this thread's own queue.
    unsafe { raw::ERR_clear_error() };
    BROKEN
}
