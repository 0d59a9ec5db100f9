//! AWS-LC behind safe types, and igzip ([`isal`]), which is loaded at run time.
//!
//! Three layers for AWS-LC: [`raw`] names the foreign functions we use and nothing else; [`result`] turns their conventions (1
//! is success, null is failure, a thread-local error queue) into `Result`; the rest are safe types, one owner per C
//! type. No safe type here can be misused into undefined behaviour. Nothing here knows a request or a kind.
#![allow(unsafe_code, reason = "foreign functions; the safe types above them state why each call is sound")]

pub(super) mod aead;
pub(super) mod aes;
pub(super) mod cipher;
pub(super) mod ec;
pub(crate) mod hash;
pub(super) mod isal;
pub(super) mod ml_kem;
mod raw;
mod result;
pub(super) mod rsa;
pub(super) mod sha3;
pub(super) mod x25519;

/// AWS-LC's version, as it calls itself.
pub(super) fn version() -> &'static str {
    let bytes = raw::AWSLC_VERSION_NUMBER_STRING;
    std::str::from_utf8(&bytes[..bytes.len() - 1]).unwrap_or("of unknown version")
}

/// Draws one random byte, and drops it: see [`super::prepare`].
pub(super) fn prepare() {
    let mut byte = 0;
    // SAFETY: room for one byte. A failure is met again, and told, when something is drawn that is used.
    unsafe { raw::RAND_bytes(&raw mut byte, 1) };
}
