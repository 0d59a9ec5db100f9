//! RSA: key management for `RSA` and `RSA-PSS`, the signature `RSA` and the asymmetric cipher `RSA`.
//!
//! What is accelerated is one thing, the private operation of keys of two primes with 2048, 3072 or 4096 bits and CRT
//! parts: padding goes on before it (`pad`), and comes off after it, on our side. Everything else is done by a key
//! of another provider's in the child context, with the parameters the caller gave (`mirror`): other sizes,
//! verification, public encryption, generation, validation, and every error, so that results and reasons are the ones
//! programs know. Nothing here knows a rule of RSA parameters that the other provider does not apply too.
//!
//! One thing differs on purpose where the host's OpenSSL is older than 3.2: decryption with PKCS#1 v1.5 padding
//! rejects implicitly (a forged ciphertext yields a message that only depends on it and the key), as later versions
//! do, and with the same bytes.

mod cipher;
mod key;
mod mirror;
mod pad;
mod sign;

use crate::offer::{Algorithm, PROPERTIES};
use crate::sys::id;

/// Everything RSA. Names are those of OpenSSL's own provider, so that its decoders and encoders find us.
pub static ALGORITHMS: &[Algorithm] = &[
    Algorithm {
        group: "rsa",
        operation: id::OP_KEYMGMT,
        names: c"RSA:rsaEncryption:1.2.840.113549.1.1.1",
        properties: PROPERTIES,
        functions: key::RSA.as_ptr(),
        description: c"Wattlock",
    },
    Algorithm {
        group: "rsa",
        operation: id::OP_KEYMGMT,
        names: c"RSA-PSS:RSASSA-PSS:1.2.840.113549.1.1.10",
        properties: PROPERTIES,
        functions: key::PSS.as_ptr(),
        description: c"Wattlock",
    },
    Algorithm {
        group: "rsa",
        operation: id::OP_SIGNATURE,
        names: c"RSA:rsaEncryption:1.2.840.113549.1.1.1",
        properties: PROPERTIES,
        functions: sign::TABLE.as_ptr(),
        description: c"Wattlock",
    },
    Algorithm {
        group: "rsa",
        operation: id::OP_ASYM_CIPHER,
        names: c"RSA:rsaEncryption:1.2.840.113549.1.1.1",
        properties: PROPERTIES,
        functions: cipher::TABLE.as_ptr(),
        description: c"Wattlock",
    },
];

/// Bytes of the largest modulus that is accelerated.
const FAST_MAX: usize = 512;
