//! Asymmetric ciphers (provider-asym_cipher(7)).
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Arc;

use super::context::{
    Context, dupctx, freectx, get_ctx_params, gettable_ctx_params, newctx, set_ctx_params,
    settable_ctx_params,
};
use super::dispatch;
use crate::arg::{self, Counted, Exclusive, Out, Read};
use crate::error::entry;
use crate::params::{Params, Table};
use crate::sys::{OSSL_DISPATCH, id};

/// An asymmetric cipher.
pub trait AsymCipher: Context {
    /// Its type of key.
    type Key: 'static;

    /// Begins to encrypt or to decrypt.
    fn init(&mut self, encrypt: bool, key: Option<&Arc<Self::Key>>, params: Params<'_>) -> bool;
    /// Encrypts or decrypts, as it was begun, or says how long the output may be. 1 is success.
    fn crypt(&mut self, encrypt: bool, out: &mut Out<'_>, input: &[u8]) -> c_int;
}

/// The functions of an asymmetric cipher.
pub const fn table<C: AsymCipher>() -> Table<OSSL_DISPATCH, 12> {
    dispatch![
        id::ASYM_CIPHER_NEWCTX => newctx::<C>;
        id::ASYM_CIPHER_FREECTX => freectx::<C>;
        id::ASYM_CIPHER_DUPCTX => dupctx::<C>;
        id::ASYM_CIPHER_ENCRYPT_INIT => init::<C, true>;
        id::ASYM_CIPHER_ENCRYPT => crypt::<C, true>;
        id::ASYM_CIPHER_DECRYPT_INIT => init::<C, false>;
        id::ASYM_CIPHER_DECRYPT => crypt::<C, false>;
        id::ASYM_CIPHER_GET_CTX_PARAMS => get_ctx_params::<C>;
        id::ASYM_CIPHER_GETTABLE_CTX_PARAMS => gettable_ctx_params::<C>;
        id::ASYM_CIPHER_SET_CTX_PARAMS => set_ctx_params::<C>;
        id::ASYM_CIPHER_SETTABLE_CTX_PARAMS => settable_ctx_params::<C>;
    ]
}

extern "C" fn init<C: AsymCipher, const ENCRYPT: bool>(
    context: Exclusive<'_, C>,
    key: Counted<'_, C::Key>,
    params: Read<'_>,
) -> c_int {
    entry(|| {
        let key = key.get();
        let begun = context.get().is_some_and(|context| context.init(ENCRYPT, key.as_deref(), params.get()));
        c_int::from(begun)
    })
}

unsafe extern "C" fn crypt<C: AsymCipher, const ENCRYPT: bool>(
    context: Exclusive<'_, C>,
    out: *mut u8,
    len: *mut usize,
    room: usize,
    input: *const u8,
    input_len: usize,
) -> c_int {
    entry(|| {
        // SAFETY: `out` is null or has as much room as it says; `len` is null or writable.
        let (Some(context), Some(mut out)) = (context.get(), unsafe { Out::new(out, room, len) }) else {
            return 0;
        };
        // SAFETY: readable bytes of this length.
        let input = unsafe { arg::apart(input, input_len, &out) };
        context.crypt(ENCRYPT, &mut out, &input)
    })
}
