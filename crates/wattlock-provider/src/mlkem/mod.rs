//! ML-KEM-768 (FIPS 203) and X25519MLKEM768, the hybrid with X25519 (draft-ietf-tls-ecdhe-mlkem): key management, key
//! encapsulation, TLS groups, under the names and parameters of OpenSSL 3.5. For an OpenSSL before 3.5 keys of ML-KEM-768
//! are written and read here, too; later ones do that themselves by what is exported and imported.
//!
//! Invariants: a key that is there is in order. Its public half is reduced, its private half has the right hash of it and
//! opens what is encapsulated to it, and a seed gives both; all of that is checked where they come in. No key is ever
//! changed. Of the hybrid, the half of ML-KEM comes first, in keys, ciphertexts and secrets. Both halves are one operation: a
//! job pauses once for both.

mod decode;
mod encode;
mod kem;
mod key;

use std::ffi::{CStr, c_int, c_uint};

use crate::arg::Callback;
use crate::offer::{Algorithm, PROPERTIES};
use crate::params::List;
use crate::sys::{OSSL_DISPATCH, id};
use crate::x25519::LEN as X25519_LEN;

/// Bytes of ML-KEM-768: an encapsulation key, a decapsulation key, the seed of both, a ciphertext, and a secret.
const PUBLIC: usize = 1184;
const PRIVATE: usize = 2400;
const SEED: usize = 64;
const CIPHERTEXT: usize = 1088;
const SECRET: usize = 32;

const NAMES: &CStr = c"ML-KEM-768:MLKEM768:id-alg-ml-kem-768:2.16.840.1.101.3.4.4.2";

/// Bits of ML-KEM-768 as OpenSSL counts them, and its strength (FIPS 203 table 1).
const BITS: c_int = 768;
const SECURITY_BITS: c_int = 192;

/// One of the two types of key.
pub trait Form: Send + Sync + 'static {
    /// Its name.
    const NAME: &'static CStr;
    /// Whether there is a half of X25519.
    const HYBRID: bool;
    /// Bytes of what a half of X25519 adds to everything.
    const MORE: usize = if Self::HYBRID { X25519_LEN } else { 0 };
}

/// ML-KEM-768.
pub struct Plain;

/// X25519MLKEM768.
pub struct Hybrid;

impl Form for Plain {
    const NAME: &'static CStr = c"ML-KEM-768";
    const HYBRID: bool = false;
}

impl Form for Hybrid {
    const NAME: &'static CStr = c"X25519MLKEM768";
    const HYBRID: bool = true;
}

/// Everything of both types.
pub static ALGORITHMS: &[Algorithm] = &[
    entry(id::OP_KEYMGMT, NAMES, PROPERTIES, key::PLAIN.as_ptr()),
    entry(id::OP_KEYMGMT, Hybrid::NAME, PROPERTIES, key::HYBRID.as_ptr()),
    entry(id::OP_KEM, NAMES, PROPERTIES, kem::PLAIN.as_ptr()),
    entry(id::OP_KEM, Hybrid::NAME, PROPERTIES, kem::HYBRID.as_ptr()),
    writes(c"provider=wattlock,output=der,structure=PrivateKeyInfo", encode::PRIVATE_DER.as_ptr()),
    writes(c"provider=wattlock,output=pem,structure=PrivateKeyInfo", encode::PRIVATE_PEM.as_ptr()),
    writes(c"provider=wattlock,output=der,structure=SubjectPublicKeyInfo", encode::PUBLIC_DER.as_ptr()),
    writes(c"provider=wattlock,output=pem,structure=SubjectPublicKeyInfo", encode::PUBLIC_PEM.as_ptr()),
    writes(c"provider=wattlock,output=text", encode::TEXT.as_ptr()),
    reads(c"provider=wattlock,input=der,structure=PrivateKeyInfo", decode::PRIVATE.as_ptr()),
    reads(c"provider=wattlock,input=der,structure=SubjectPublicKeyInfo", decode::PUBLIC.as_ptr()),
];

const fn entry(
    operation: c_int,
    names: &'static CStr,
    properties: &'static CStr,
    functions: *const OSSL_DISPATCH,
) -> Algorithm {
    Algorithm { group: "ml-kem", operation, names, properties, functions, description: c"Wattlock" }
}

const fn writes(properties: &'static CStr, functions: *const OSSL_DISPATCH) -> Algorithm {
    entry(id::OP_ENCODER, NAMES, properties, functions)
}

const fn reads(properties: &'static CStr, functions: *const OSSL_DISPATCH) -> Algorithm {
    entry(id::OP_DECODER, NAMES, properties, functions)
}

/// Tells of both TLS groups, as OpenSSL 3.5 does; whether all went well. Both are for TLS 1.3 only.
pub fn groups(callback: &Callback) -> bool {
    /// `TLS1_3_VERSION`; no latest; not in DTLS.
    const FIRST: c_int = 0x0304;
    const LAST: c_int = 0;
    const NEVER: c_int = -1;
    let tell = |name: &CStr, algorithm: &CStr, group: c_uint| {
        let (bits, is_kem) = (SECURITY_BITS as c_uint, 1);
        let list = List::new()
            .text(c"tls-group-name", name)
            .text(c"tls-group-name-internal", algorithm)
            .text(c"tls-group-alg", algorithm)
            .uint(c"tls-group-id", &group)
            .uint(c"tls-group-sec-bits", &bits)
            .int(c"tls-min-tls", &FIRST)
            .int(c"tls-max-tls", &LAST)
            .int(c"tls-min-dtls", &NEVER)
            .int(c"tls-max-dtls", &NEVER)
            .uint(c"tls-group-is-kem", &is_kem);
        callback.tell(&list).is_none_or(|done| done == 1)
    };
    // The code points of IANA's registry "TLS Supported Groups".
    tell(Hybrid::NAME, Hybrid::NAME, 0x11ec) && tell(c"MLKEM768", Plain::NAME, 0x0201)
}
