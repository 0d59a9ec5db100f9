//! Key exchange (provider-keyexch(7)).
#![allow(unsafe_code)]

use std::ffi::c_int;

use super::context::{
    Context, dupctx, freectx, get_ctx_params, gettable_ctx_params, newctx, set_ctx_params,
    settable_ctx_params,
};
use super::dispatch;
use crate::arg::{Exclusive, Out, Read, Shared};
use crate::error::entry;
use crate::params::{Params, Table};
use crate::sys::{OSSL_DISPATCH, id};

/// A key exchange.
pub trait Exchange: Context {
    /// Both sides' type of key.
    type Key: 'static;

    /// Begins with our own key, if there is one.
    fn init(&mut self, key: Option<&Self::Key>, params: Params<'_>) -> bool;
    /// Takes the peer's key, if there is one.
    fn set_peer(&mut self, key: Option<&Self::Key>) -> bool;
    /// Writes the secret, or says how long it is.
    fn derive(&mut self, out: &mut Out<'_>) -> bool;
}

/// The functions of a key exchange.
pub const fn table<E: Exchange>() -> Table<OSSL_DISPATCH, 11> {
    dispatch![
        id::KEYEXCH_NEWCTX => newctx::<E>;
        id::KEYEXCH_FREECTX => freectx::<E>;
        id::KEYEXCH_DUPCTX => dupctx::<E>;
        id::KEYEXCH_INIT => init::<E>;
        id::KEYEXCH_SET_PEER => set_peer::<E>;
        id::KEYEXCH_DERIVE => derive::<E>;
        id::KEYEXCH_SET_CTX_PARAMS => set_ctx_params::<E>, if E::PARAMS;
        id::KEYEXCH_SETTABLE_CTX_PARAMS => settable_ctx_params::<E>, if E::PARAMS;
        id::KEYEXCH_GET_CTX_PARAMS => get_ctx_params::<E>, if E::PARAMS;
        id::KEYEXCH_GETTABLE_CTX_PARAMS => gettable_ctx_params::<E>, if E::PARAMS;
    ]
}

extern "C" fn init<E: Exchange>(
    context: Exclusive<'_, E>,
    key: Shared<'_, E::Key>,
    params: Read<'_>,
) -> c_int {
    entry(|| c_int::from(context.get().is_some_and(|context| context.init(key.get(), params.get()))))
}

extern "C" fn set_peer<E: Exchange>(context: Exclusive<'_, E>, key: Shared<'_, E::Key>) -> c_int {
    entry(|| c_int::from(context.get().is_some_and(|context| context.set_peer(key.get()))))
}

unsafe extern "C" fn derive<E: Exchange>(
    context: Exclusive<'_, E>,
    secret: *mut u8,
    len: *mut usize,
    room: usize,
) -> c_int {
    entry(|| {
        // SAFETY: `secret` is null or has as much room as it says; `len` is null or writable.
        let out = unsafe { Out::new(secret, room, len) };
        let both = context.get().zip(out);
        c_int::from(both.is_some_and(|(context, mut out)| context.derive(&mut out)))
    })
}
