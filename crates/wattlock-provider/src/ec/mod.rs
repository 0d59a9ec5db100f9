//! Keys of type "EC": management, ECDSA and ECDH, for every curve that OpenSSL has.
//!
//! P-256 and P-384 keys are *native*: bytes of a point and a scalar, which the runtime's engines work on. Everything
//! else (other curves, explicit parameters, other encodings than the usual ones, verification, key derivation after
//! ECDH) is a *child's*: a key of OpenSSL's own provider, made at once where the key is not native and when first
//! needed where it is. What a child says is passed on unchanged, error codes included.
//!
//! Rules: a native public point is on its curve and a native scalar in range, checked where they come in. Nothing that
//! may pause is called under a lock.

mod agree;
pub mod groups;
mod key;
mod native;
mod sign;

use std::ffi::CStr;

use crate::offer::{Algorithm, PROPERTIES};
use crate::sys::id;

/// Everything of key type "EC".
pub static ALGORITHMS: &[Algorithm] = &[
    entry(id::OP_KEYMGMT, c"EC:id-ecPublicKey:1.2.840.10045.2.1", key::FUNCTIONS.as_ptr()),
    entry(id::OP_SIGNATURE, c"ECDSA", sign::FUNCTIONS.as_ptr()),
    entry(id::OP_KEYEXCH, c"ECDH", agree::FUNCTIONS.as_ptr()),
];

const fn entry(
    operation: std::ffi::c_int,
    names: &'static CStr,
    functions: *const crate::sys::OSSL_DISPATCH,
) -> Algorithm {
    Algorithm { group: "ec", operation, names, properties: PROPERTIES, functions, description: c"Wattlock" }
}
