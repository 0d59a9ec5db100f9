//! SHA-3 and SHAKE (FIPS 202). AWS-LC has them behind its general interface only, which allocates a state for each.

use std::ptr;

use wattlock_core::{Error, Fault, Kind};

use super::raw;
use super::result::{Owned, done};

const BROKEN: Error = Error::Device(Fault::Reported);

/// A hash in the midst of its input. The library wipes it.
pub(in super::super) struct Sha3 {
    state: Owned<raw::EVP_MD_CTX>,
    function: *const raw::EVP_MD,
}

// SAFETY: a state is plain memory without ties to a thread, the function a constant; its owner is its only user.
unsafe impl Send for Sha3 {}

impl Sha3 {
    /// # Errors
    /// [`Error::Unsupported`] for a kind that is none of these.
    pub(in super::super) fn new(kind: Kind) -> Result<Sha3, Error> {
        // SAFETY: each returns a pointer to a constant.
        let function = unsafe {
            match kind {
                Kind::Sha3_256 => raw::EVP_sha3_256(),
                Kind::Sha3_512 => raw::EVP_sha3_512(),
                Kind::Shake128 => raw::EVP_shake128(),
                Kind::Shake256 => raw::EVP_shake256(),
                _ => return Err(Error::Unsupported),
            }
        };
        // SAFETY: returns an object we own, or null.
        let state = unsafe { Owned::new(raw::EVP_MD_CTX_new()) }.map_err(|_| BROKEN)?;
        let mut hash = Sha3 { state, function };
        hash.restart()?;
        Ok(hash)
    }

    /// Begins anew.
    pub(in super::super) fn restart(&mut self) -> Result<(), Error> {
        // SAFETY: the state is ours, the function a constant.
        done(unsafe { raw::EVP_DigestInit_ex(self.state.get_mut(), self.function, ptr::null_mut()) })
            .map_err(|_| BROKEN)
    }

    /// Takes more of the message.
    pub(in super::super) fn update(&mut self, bytes: &[u8]) -> Result<(), Error> {
        // SAFETY: the state was begun; reads the slice.
        done(unsafe { raw::EVP_DigestUpdate(self.state.get_mut(), bytes.as_ptr().cast(), bytes.len()) })
            .map_err(|_| BROKEN)
    }

    /// Writes a digest; `out` must be exactly as long as it.
    pub(in super::super) fn finish(&mut self, out: &mut [u8]) -> Result<(), Error> {
        // SAFETY: the function is a constant.
        if out.len() != unsafe { raw::EVP_MD_size(self.function) } {
            return Err(Error::Invalid("output length"));
        }
        // SAFETY: the state was begun; writes as many bytes as were just compared, and no length where none is asked for.
        done(unsafe { raw::EVP_DigestFinal_ex(self.state.get_mut(), out.as_mut_ptr(), ptr::null_mut()) })
            .map_err(|_| BROKEN)
    }

    /// Writes as much of an extendable output as `out` takes.
    pub(in super::super) fn extend(&mut self, out: &mut [u8]) -> Result<(), Error> {
        // SAFETY: the state was begun; writes `out.len()` bytes, or fails for a function of fixed length.
        done(unsafe { raw::EVP_DigestFinalXOF(self.state.get_mut(), out.as_mut_ptr(), out.len()) })
            .map_err(|_| BROKEN)
    }

    /// Another in the midst of the same input.
    pub(in super::super) fn try_clone(&self) -> Result<Sha3, Error> {
        // SAFETY: returns an object we own, or null.
        let state = unsafe { Owned::new(raw::EVP_MD_CTX_new()) }.map_err(|_| BROKEN)?;
        // SAFETY: both are live; the new one is fresh.
        done(unsafe { raw::EVP_MD_CTX_copy_ex(state.get_mut(), self.state.get()) }).map_err(|_| BROKEN)?;
        Ok(Sha3 { state, function: self.function })
    }
}
