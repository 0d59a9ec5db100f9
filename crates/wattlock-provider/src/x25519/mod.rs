//! X25519: key management and key exchange. A key is 32 bytes or 64; there is nothing that engines cannot take, and a
//! child is asked only what is rare: a public key from a private one, whether two halves belong together, and
//! derivation of a key pair from given material.
//!
//! Nothing that may pause is called under a lock.

mod agree;
pub(crate) mod key;

use std::ffi::CStr;

use crate::offer::{Algorithm, PROPERTIES};
use crate::sys::id;

/// Bytes of a public key, of a private key and of a secret.
pub(crate) const LEN: usize = 32;
const NAMES: &CStr = c"X25519:1.3.101.110";

/// Everything of key type "X25519".
pub static ALGORITHMS: &[Algorithm] =
    &[entry(id::OP_KEYMGMT, key::FUNCTIONS.as_ptr()), entry(id::OP_KEYEXCH, agree::FUNCTIONS.as_ptr())];

const fn entry(operation: std::ffi::c_int, functions: *const crate::sys::OSSL_DISPATCH) -> Algorithm {
    Algorithm {
        group: "x25519",
        operation,
        names: NAMES,
        properties: PROPERTIES,
        functions,
        description: c"Wattlock",
    }
}
