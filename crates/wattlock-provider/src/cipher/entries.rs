//! The C entries that ciphers have in common. What a piece of a message and its end are each cipher says itself.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use super::{Facts, gettable_params};
use crate::arg::{self, Exclusive, Fill, Owned, Read, Shared};
use crate::entries::dispatch;
use crate::error::entry;
use crate::params::{Answers, Params, Table};
use crate::provider::Provider;
use crate::sys::{OSSL_DISPATCH, OSSL_PARAM, id};

/// A context of one or several ciphers. `WHICH` of the entries tells the ciphers of one type apart.
pub(super) trait Cipher: Sized + 'static {
    /// What a context can be asked; ends in [`END`](crate::params::END).
    const GETTABLE: &'static [OSSL_PARAM];
    /// What can be set in it; ends likewise.
    fn settable(which: usize) -> &'static [OSSL_PARAM];

    fn facts(which: usize) -> Facts;

    fn new(provider: &'static Provider, which: usize) -> Self;

    /// A copy with all that a message under way needs; `None` if a stream cannot be copied.
    fn duplicate(&self) -> Option<Self>;

    /// Begins a message with what is given; the rest stays. `false`, with a reason on the error queue, if it is no good.
    fn init(&mut self, encrypt: bool, key: Option<&[u8]>, nonce: Option<&[u8]>, params: Params<'_>) -> bool;

    fn get(&mut self, answers: &mut Answers<'_>) -> bool;

    fn set(&mut self, params: Params<'_>) -> bool;
}

/// `OSSL_FUNC_cipher_update_fn` and `OSSL_FUNC_cipher_cipher_fn`: context, output, its length, its room, input, length.
pub(super) type Update<C> =
    unsafe extern "C" fn(Exclusive<'_, C>, *mut u8, *mut usize, usize, *const u8, usize) -> c_int;
/// `OSSL_FUNC_cipher_final_fn`: context, output, its length, its room.
pub(super) type Finish<C> = unsafe extern "C" fn(Exclusive<'_, C>, *mut u8, *mut usize, usize) -> c_int;

/// The functions of one cipher; `once` is what `EVP_Cipher()` calls.
pub(super) const fn table<C: Cipher, const WHICH: usize>(
    update: Update<C>,
    finish: Finish<C>,
    once: Update<C>,
) -> Table<OSSL_DISPATCH, 15> {
    dispatch![
        id::CIPHER_NEWCTX => new_context::<C, WHICH>;
        id::CIPHER_FREECTX => free_context::<C>;
        id::CIPHER_DUPCTX => dup_context::<C>;
        id::CIPHER_ENCRYPT_INIT => init::<C, true>;
        id::CIPHER_DECRYPT_INIT => init::<C, false>;
        id::CIPHER_UPDATE => update;
        id::CIPHER_FINAL => finish;
        id::CIPHER_CIPHER => once;
        id::CIPHER_GET_PARAMS => get_params::<C, WHICH>;
        id::CIPHER_GETTABLE_PARAMS => gettable_params;
        id::CIPHER_GET_CTX_PARAMS => get_context_params::<C>;
        id::CIPHER_SET_CTX_PARAMS => set_context_params::<C>;
        id::CIPHER_GETTABLE_CTX_PARAMS => gettable_context_params::<C>;
        id::CIPHER_SETTABLE_CTX_PARAMS => settable_context_params::<C, WHICH>;
    ]
}

extern "C" fn new_context<C: Cipher, const WHICH: usize>(provider: Shared<'static, Provider>) -> *mut C {
    entry(|| arg::own(provider.get().map(|provider| C::new(provider, WHICH))))
}

extern "C" fn free_context<C: Cipher>(context: Owned<C>) {
    entry(|| drop(context.take()));
}

extern "C" fn dup_context<C: Cipher>(context: Shared<'_, C>) -> *mut C {
    entry(|| arg::own(context.get().and_then(C::duplicate)))
}

unsafe extern "C" fn init<C: Cipher, const ENCRYPT: bool>(
    context: Exclusive<'_, C>,
    key: *const u8,
    key_len: usize,
    nonce: *const u8,
    nonce_len: usize,
    params: Read<'_>,
) -> c_int {
    entry(|| {
        let Some(context) = context.get() else { return 0 };
        // SAFETY: readable buffers, either of which may be missing.
        let (key, nonce) = unsafe {
            let key = (!key.is_null()).then(|| arg::bytes(key, key_len));
            (key, (!nonce.is_null()).then(|| arg::bytes(nonce, nonce_len)))
        };
        c_int::from(context.init(ENCRYPT, key, nonce, params.get()))
    })
}

extern "C" fn get_params<C: Cipher, const WHICH: usize>(params: Fill<'_>) -> c_int {
    entry(|| c_int::from(C::facts(WHICH).answer(&mut params.get())))
}

extern "C" fn get_context_params<C: Cipher>(context: Exclusive<'_, C>, params: Fill<'_>) -> c_int {
    entry(|| c_int::from(context.get().is_some_and(|context| context.get(&mut params.get()))))
}

extern "C" fn set_context_params<C: Cipher>(context: Exclusive<'_, C>, params: Read<'_>) -> c_int {
    entry(|| c_int::from(context.get().is_some_and(|context| context.set(params.get()))))
}

extern "C" fn gettable_context_params<C: Cipher>(_: *mut c_void, _: *mut c_void) -> *const OSSL_PARAM {
    C::GETTABLE.as_ptr()
}

extern "C" fn settable_context_params<C: Cipher, const WHICH: usize>(
    _: *mut c_void,
    _: *mut c_void,
) -> *const OSSL_PARAM {
    C::settable(WHICH).as_ptr()
}
