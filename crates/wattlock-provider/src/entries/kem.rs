//! Key encapsulation (provider-kem(7)).
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Arc;

use super::context::{Context, dupctx, freectx, newctx, set_ctx_params, settable_ctx_params};
use super::dispatch;
use crate::arg::{self, Counted, Exclusive, Out, Read};
use crate::error::{Reason, entry, raise};
use crate::params::{Params, Table};
use crate::sys::{OSSL_DISPATCH, id};

/// A key encapsulation mechanism.
pub trait Kem: Context {
    /// Its type of key.
    type Key: 'static;
    /// Bytes of a ciphertext.
    const CIPHERTEXT: usize;
    /// Bytes of a shared secret.
    const SECRET: usize;

    /// Begins to encapsulate or to decapsulate.
    fn init(&mut self, encapsulates: bool, key: Option<&Arc<Self::Key>>, params: Params<'_>) -> bool;
    /// Writes a ciphertext and its secret.
    fn encapsulate(&mut self, ciphertext: &mut Out<'_>, secret: &mut Out<'_>) -> bool;
    /// Writes a ciphertext's secret, or says how long it is.
    fn decapsulate(&mut self, secret: &mut Out<'_>, ciphertext: &[u8]) -> bool;
}

/// The functions of a key encapsulation mechanism.
pub const fn table<K: Kem>() -> Table<OSSL_DISPATCH, 10> {
    dispatch![
        id::KEM_NEWCTX => newctx::<K>;
        id::KEM_FREECTX => freectx::<K>;
        id::KEM_DUPCTX => dupctx::<K>;
        id::KEM_ENCAPSULATE_INIT => init::<K, true>;
        id::KEM_ENCAPSULATE => encapsulate::<K>;
        id::KEM_DECAPSULATE_INIT => init::<K, false>;
        id::KEM_DECAPSULATE => decapsulate::<K>;
        id::KEM_SET_CTX_PARAMS => set_ctx_params::<K>;
        id::KEM_SETTABLE_CTX_PARAMS => settable_ctx_params::<K>;
    ]
}

extern "C" fn init<K: Kem, const ENCAPSULATES: bool>(
    context: Exclusive<'_, K>,
    key: Counted<'_, K::Key>,
    params: Read<'_>,
) -> c_int {
    entry(|| {
        let (key, params) = (key.get(), params.get());
        c_int::from(context.get().is_some_and(|context| context.init(ENCAPSULATES, key.as_deref(), params)))
    })
}

/// Where a caller wants bytes that says beforehand how many it has room for.
///
/// # Safety
/// `len` is null or holds the room of `at`, which is null or has it; as for [`Out::new`].
unsafe fn with_room<'a>(at: *mut u8, len: *mut usize) -> Option<Out<'a>> {
    // SAFETY: the caller's.
    unsafe { Out::new(at, if len.is_null() { 0 } else { *len }, len) }
}

/// Without a place for the ciphertext it is a question: whatever length has a place is told.
unsafe extern "C" fn encapsulate<K: Kem>(
    context: Exclusive<'_, K>,
    ciphertext: *mut u8,
    ciphertext_len: *mut usize,
    secret: *mut u8,
    secret_len: *mut usize,
) -> c_int {
    entry(|| {
        let Some(context) = context.get() else { return 0 };
        if ciphertext.is_null() {
            let both = [(ciphertext_len, K::CIPHERTEXT), (secret_len, K::SECRET)];
            let places = both.iter().filter(|(place, _)| !place.is_null());
            // SAFETY: places for lengths, the caller's.
            return c_int::from(places.map(|(place, len)| unsafe { **place = *len }).count() > 0);
        }
        // SAFETY: the caller's places, each with the room that it says.
        let both = unsafe { (with_room(ciphertext, ciphertext_len), with_room(secret, secret_len)) };
        let (Some(mut ciphertext), Some(mut secret)) = both else {
            raise(Reason::NullLengthPointer);
            return 0;
        };
        c_int::from(context.encapsulate(&mut ciphertext, &mut secret))
    })
}

/// A caller with a place for the secret need not say how long that is: it is long enough, as OpenSSL's own has it.
unsafe extern "C" fn decapsulate<K: Kem>(
    context: Exclusive<'_, K>,
    secret: *mut u8,
    secret_len: *mut usize,
    ciphertext: *const u8,
    ciphertext_len: usize,
) -> c_int {
    entry(|| {
        let Some(context) = context.get() else { return 0 };
        let mut whole = K::SECRET;
        let is_told = !secret_len.is_null() || secret.is_null();
        // SAFETY: the caller's place, with the room that it says, or that a secret needs.
        let out = unsafe { with_room(secret, if is_told { secret_len } else { &raw mut whole }) };
        let Some(mut out) = out else {
            raise(Reason::NullLengthPointer);
            return 0;
        };
        // SAFETY: readable bytes of this length.
        let ciphertext = unsafe { arg::apart(ciphertext, ciphertext_len, &out) };
        c_int::from(context.decapsulate(&mut out, &ciphertext))
    })
}
