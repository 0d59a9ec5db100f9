//! Key derivation: HKDF (RFC 5869), the TLS 1.3 key schedule's steps (RFC 8446 section 7.1, `TLS13-KDF`) and the PRF of
//! TLS 1.2 and before (RFC 5246 section 5, `TLS1-PRF`).
//!
//! A context either has a `State` that every OpenSSL understands alike, and then derives with the runtime's engines,
//! or it is *OpenSSL's*: whatever is unusual (another digest, a property query, a repeated or oversized parameter,
//! something missing) is done by OpenSSL's own KDF in the child context, which is given the same parameters and so
//! gives the same results and the same errors, as its version has them. A context that went to OpenSSL stays there
//! until it is reset.
//!
//! Derivations are inline. One that the policy gives to a device pauses the `ASYNC_JOB` of a handshake that was announced
//! ([`crate::seat`]); elsewhere the call waits, under the published rules. Secrets are copied on the way in, since an output may lie over its key, and wiped.
#![allow(unsafe_code)]

mod context;
mod derive;
mod given;
mod state;

use std::ffi::{CStr, c_int, c_void};

use wattlock::core::{Error, Key};

use crate::arg::{self, Exclusive, Fill, Owned, Shared};
use crate::child::Kdf;
use crate::entries::dispatch;
use crate::error::entry;
use crate::offer::{Algorithm, PROPERTIES};
use crate::params::Table;
use crate::provider::Provider;
use crate::sys::{OSSL_DISPATCH, OSSL_PARAM, id};
use context::Context;
use given::Hash;

/// Every key derivation there is.
pub static ALGORITHMS: &[Algorithm] = &[
    kdf(Flavour::Hkdf.name(), HKDF.as_ptr()),
    kdf(Flavour::Tls13.name(), TLS13.as_ptr()),
    kdf(Flavour::Prf.name(), PRF.as_ptr()),
];

const fn kdf(names: &'static CStr, functions: *const OSSL_DISPATCH) -> Algorithm {
    Algorithm {
        group: "kdf",
        operation: id::OP_KDF,
        names,
        properties: PROPERTIES,
        functions,
        description: c"Wattlock",
    }
}

const _: () =
    assert!(Hash::ALL.len() == crate::kept::HASHES && Flavour::Prf as usize + 1 == crate::kept::DERIVATIONS);

/// Which derivation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flavour {
    Hkdf,
    Tls13,
    Prf,
}

impl Flavour {
    const fn name(self) -> &'static CStr {
        match self {
            Flavour::Hkdf => c"HKDF",
            Flavour::Tls13 => c"TLS13-KDF",
            Flavour::Prf => c"TLS1-PRF",
        }
    }

    const fn of(number: u8) -> Flavour {
        match number {
            0 => Flavour::Hkdf,
            1 => Flavour::Tls13,
            _ => Flavour::Prf,
        }
    }
}

/// OpenSSL's own, fetched when one is first needed and kept: lists of parameters that we hand on are theirs.
fn own(provider: &Provider, flavour: Flavour) -> Option<&Kdf> {
    let place = &provider.kept.kdfs[flavour as usize];
    place.get_or_init(|| provider.child.kdf(flavour.name())).as_ref()
}

/// A digest's salt of every key schedule without a pre-shared key, as a key with what engines made of it.
fn salt<'a>(provider: &'a Provider, hash: Hash, salt: &[u8]) -> Result<&'a Key, Error> {
    let place = &provider.kept.salts[hash as usize];
    match place.get() {
        Some(key) => Ok(key),
        None => Key::symmetric(wattlock::core::Algorithm::Secret, salt).map(|key| place.get_or_init(|| key)),
    }
}

extern "C" fn new_context<const FLAVOUR: u8>(provider: Shared<'static, Provider>) -> *mut Context {
    entry(|| arg::own(provider.get().map(|provider| Context::new(provider, Flavour::of(FLAVOUR)))))
}

extern "C" fn free_context(context: Owned<Context>) {
    entry(|| drop(context.take()));
}

extern "C" fn dup_context(context: Shared<'_, Context>) -> *mut Context {
    entry(|| arg::own(context.get().and_then(Context::duplicate)))
}

extern "C" fn reset(context: Exclusive<'_, Context>) {
    entry(|| context.get().map_or((), Context::reset));
}

unsafe extern "C" fn derive(
    context: Exclusive<'_, Context>,
    out: *mut u8,
    len: usize,
    params: *const OSSL_PARAM,
) -> c_int {
    // SAFETY: a list of parameters or null, and room for `len` bytes if `out` is not null.
    entry(|| context.get().map_or(0, |context| unsafe { context.derive(out, len, params) }))
}

unsafe extern "C" fn set_context_params(context: Exclusive<'_, Context>, params: *const OSSL_PARAM) -> c_int {
    // SAFETY: a list of parameters or null.
    entry(|| context.get().map_or(0, |context| unsafe { context.set(params) }))
}

extern "C" fn get_context_params(context: Exclusive<'_, Context>, params: Fill<'_>) -> c_int {
    entry(|| context.get().map_or(0, |context| context.get(params.get())))
}

extern "C" fn gettable_context_params<const FLAVOUR: u8>(
    _: *mut c_void,
    provider: Shared<'static, Provider>,
) -> *const OSSL_PARAM {
    entry(|| {
        provider
            .get()
            .and_then(|provider| own(provider, Flavour::of(FLAVOUR)))
            .map_or(std::ptr::null(), Kdf::gettable)
    })
}

extern "C" fn settable_context_params<const FLAVOUR: u8>(
    _: *mut c_void,
    provider: Shared<'static, Provider>,
) -> *const OSSL_PARAM {
    entry(|| {
        provider
            .get()
            .and_then(|provider| own(provider, Flavour::of(FLAVOUR)))
            .map_or(std::ptr::null(), Kdf::settable)
    })
}

const fn table<const FLAVOUR: u8>() -> Table<OSSL_DISPATCH, 10> {
    dispatch![
        id::KDF_NEWCTX => new_context::<FLAVOUR>;
        id::KDF_FREECTX => free_context;
        id::KDF_DUPCTX => dup_context;
        id::KDF_RESET => reset;
        id::KDF_DERIVE => derive;
        id::KDF_SET_CTX_PARAMS => set_context_params;
        id::KDF_GET_CTX_PARAMS => get_context_params;
        id::KDF_GETTABLE_CTX_PARAMS => gettable_context_params::<FLAVOUR>;
        id::KDF_SETTABLE_CTX_PARAMS => settable_context_params::<FLAVOUR>;
    ]
}

static HKDF: Table<OSSL_DISPATCH, 10> = table::<{ Flavour::Hkdf as u8 }>();
static TLS13: Table<OSSL_DISPATCH, 10> = table::<{ Flavour::Tls13 as u8 }>();
static PRF: Table<OSSL_DISPATCH, 10> = table::<{ Flavour::Prf as u8 }>();
