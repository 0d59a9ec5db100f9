//! Symmetric keys as objects (`EVP_SKEY`, OpenSSL 3.5 and later): a key manager for AES keys, and no more than bytes.
//!
//! libcrypto never carries such a key over to another provider by itself: a key of the default provider's and a cipher of
//! ours is an error before we are asked. A program that names no provider gets key manager and cipher by the same
//! preference, so for our ciphers to work the key must be ours. They are given its bytes by libcrypto, since none of them
//! has a function for keys as objects (`EVP_CipherInit_SKEY`, `crypto/evp/evp_enc.c`).
//!
//! The price: under such a key the AES modes that stay with OpenSSL (ECB, CCM, key wrapping) need `EVP_SKEY_to_provider`
//! or another property query. Offering those modes, too, as entries that pass everything on, was considered and is not
//! done: every program's random generator (CTR-DRBG encrypts with AES-ECB) and header protection of QUIC would take that
//! detour. Keys of type `GENERIC-SECRET` stay with OpenSSL, whose MACs and other ciphers use them.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null;

use zeroize::Zeroizing;

use crate::arg::{self, Callback, Owned, Read, Shared};
use crate::error::entry;
use crate::offer::{Algorithm, PROPERTIES, SKEY};
use crate::params::{END, List, Table, describe};
use crate::sys::{OSSL_CALLBACK, OSSL_DISPATCH, OSSL_PARAM, PARAM_OCTETS, id};

/// The key manager. OpenSSL before 3.5 never asks for the operation.
pub static ALGORITHMS: &[Algorithm] = &[Algorithm {
    group: SKEY,
    operation: id::OP_SKEYMGMT,
    names: c"AES:2.16.840.1.101.3.4.1",
    properties: PROPERTIES,
    functions: FUNCTIONS.as_ptr(),
    description: c"Wattlock",
}];

/// `OSSL_SKEY_PARAM_RAW_BYTES`
const RAW: &CStr = c"raw-bytes";

/// A key's bytes. They stay where they are until it is freed: `EVP_SKEY_get0_raw_key` hands out a pointer to them.
type Held = Zeroizing<Vec<u8>>;

static FUNCTIONS: Table<OSSL_DISPATCH, 5> = Table([
    OSSL_DISPATCH { function_id: id::SKEYMGMT_FREE, function: free as *const c_void },
    OSSL_DISPATCH { function_id: id::SKEYMGMT_IMPORT, function: import as *const c_void },
    OSSL_DISPATCH { function_id: id::SKEYMGMT_EXPORT, function: export as *const c_void },
    OSSL_DISPATCH { function_id: id::SKEYMGMT_IMP_SETTABLE_PARAMS, function: importable as *const c_void },
    OSSL_DISPATCH { function_id: 0, function: null() },
]);

static IMPORTABLE: Table<OSSL_PARAM, 2> = Table([describe(RAW, PARAM_OCTETS), END]);

/// What `openssl enc -skeyopt` goes by.
extern "C" fn importable(_: *mut c_void) -> *const OSSL_PARAM {
    IMPORTABLE.as_ptr()
}

extern "C" fn free(key: Owned<Held>) {
    entry(|| drop(key.take()));
}

/// As OpenSSL's own: bytes of one of AES's three lengths, or null.
extern "C" fn import(_: *mut c_void, selection: c_int, params: Read<'_>) -> *mut Held {
    entry(|| {
        let raw = params.get().get(RAW).filter(|_| selection & id::SKEYMGMT_SELECT_SECRET_KEY != 0);
        let bytes = raw.and_then(|raw| raw.octets()).filter(|bytes| matches!(bytes.len(), 16 | 24 | 32));
        arg::own(bytes.map(|bytes| Held::new(bytes.to_vec())))
    })
}

unsafe extern "C" fn export(
    key: Shared<'_, Held>,
    selection: c_int,
    callback: OSSL_CALLBACK,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the caller's callback with its own argument.
    let callback = unsafe { Callback::new(callback, argument) };
    entry(|| {
        let held = key.get().filter(|_| selection & id::SKEYMGMT_SELECT_SECRET_KEY != 0);
        held.and_then(|held| callback.tell(&List::new().octets(RAW, held))).unwrap_or(0)
    })
}
