//! Signatures of hashes and of messages (provider-signature(7)).
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::ptr::null;
use std::sync::Arc;

use super::context::{
    Context, dupctx, freectx, get_ctx_params, gettable_ctx_params, newctx_matching, set_ctx_params,
    settable_ctx_params,
};
use super::dispatch;
use crate::arg::{self, Counted, Exclusive, Fill, Name, Out, Read, Shared};
use crate::child::{Digest, Hashing, Operation};
use crate::error::entry;
use crate::params::{Params, Table};
use crate::sys::{OSSL_DISPATCH, OSSL_PARAM, id};

/// A signature scheme.
pub trait Signature: Context {
    /// Its type of key.
    type Key: 'static;
    /// Whether a signature gives back what was signed.
    const RECOVERS: bool = false;
    /// Whether whole messages are signed and verified in one call.
    const WHOLE: bool = false;

    /// Begins with a key, or again with the key of before.
    fn init(&mut self, operation: Operation, key: Option<&Arc<Self::Key>>, params: Params<'_>) -> bool;
    /// Signs a hash, or says how long a signature may be.
    fn sign(&mut self, out: &mut Out<'_>, hash: &[u8]) -> bool;
    /// Verifies a signature of a hash: 1 if it is good.
    fn verify(&mut self, signature: &[u8], hash: &[u8]) -> c_int;
    /// Gives back what was signed, or says how long it may be.
    fn recover(&mut self, _: &mut Out<'_>, _: &[u8]) -> bool {
        false
    }

    /// Begins a message, hashed by the named digest.
    fn digest_init(
        &mut self,
        operation: Operation,
        name: Option<&CStr>,
        key: Option<&Arc<Self::Key>>,
        params: Params<'_>,
    ) -> bool;
    /// Takes a piece of the message.
    fn digest_update(&mut self, data: &[u8]) -> bool;
    /// Signs the message, or says how long a signature may be.
    fn digest_sign_final(&mut self, out: &mut Out<'_>) -> bool;
    /// Verifies a signature of the message: 1 if it is good.
    fn digest_verify_final(&mut self, signature: &[u8]) -> c_int;
    /// Signs a whole message, or says how long a signature may be.
    fn digest_sign(&mut self, _: &mut Out<'_>, _: &[u8]) -> bool {
        false
    }
    /// Verifies a signature of a whole message: 1 if it is good.
    fn digest_verify(&mut self, _: &[u8], _: &[u8]) -> c_int {
        0
    }

    /// The digest of messages.
    fn digest(&self) -> Option<&Digest>;
    /// The message under way.
    fn hashing(&self) -> Option<&Hashing>;
}

const SIGN: u8 = 0;
const VERIFY: u8 = 1;
const RECOVER: u8 = 2;

const fn operation(number: u8) -> Operation {
    match number {
        SIGN => Operation::Sign,
        VERIFY => Operation::Verify,
        _ => Operation::Recover,
    }
}

/// The functions of a signature scheme.
pub const fn table<S: Signature>() -> Table<OSSL_DISPATCH, 26> {
    dispatch![
        id::SIGNATURE_NEWCTX => newctx_matching::<S>;
        id::SIGNATURE_FREECTX => freectx::<S>;
        id::SIGNATURE_DUPCTX => dupctx::<S>;
        id::SIGNATURE_SIGN_INIT => init::<S, SIGN>;
        id::SIGNATURE_SIGN => sign::<S>;
        id::SIGNATURE_VERIFY_INIT => init::<S, VERIFY>;
        id::SIGNATURE_VERIFY => verify::<S>;
        id::SIGNATURE_VERIFY_RECOVER_INIT => init::<S, RECOVER>, if S::RECOVERS;
        id::SIGNATURE_VERIFY_RECOVER => verify_recover::<S>, if S::RECOVERS;
        id::SIGNATURE_DIGEST_SIGN_INIT => digest_init::<S, SIGN>;
        id::SIGNATURE_DIGEST_SIGN_UPDATE => digest_update::<S>;
        id::SIGNATURE_DIGEST_SIGN_FINAL => digest_sign_final::<S>;
        id::SIGNATURE_DIGEST_SIGN => digest_sign::<S>, if S::WHOLE;
        id::SIGNATURE_DIGEST_VERIFY_INIT => digest_init::<S, VERIFY>;
        id::SIGNATURE_DIGEST_VERIFY_UPDATE => digest_update::<S>;
        id::SIGNATURE_DIGEST_VERIFY_FINAL => digest_verify_final::<S>;
        id::SIGNATURE_DIGEST_VERIFY => digest_verify::<S>, if S::WHOLE;
        id::SIGNATURE_GET_CTX_PARAMS => get_ctx_params::<S>;
        id::SIGNATURE_GETTABLE_CTX_PARAMS => gettable_ctx_params::<S>;
        id::SIGNATURE_SET_CTX_PARAMS => set_ctx_params::<S>;
        id::SIGNATURE_SETTABLE_CTX_PARAMS => settable_ctx_params::<S>;
        id::SIGNATURE_GET_CTX_MD_PARAMS => get_ctx_md_params::<S>;
        id::SIGNATURE_GETTABLE_CTX_MD_PARAMS => gettable_ctx_md_params::<S>;
        id::SIGNATURE_SET_CTX_MD_PARAMS => set_ctx_md_params::<S>;
        id::SIGNATURE_SETTABLE_CTX_MD_PARAMS => settable_ctx_md_params::<S>;
    ]
}

extern "C" fn init<S: Signature, const OPERATION: u8>(
    context: Exclusive<'_, S>,
    key: Counted<'_, S::Key>,
    params: Read<'_>,
) -> c_int {
    entry(|| {
        let (key, operation) = (key.get(), operation(OPERATION));
        let begun =
            context.get().is_some_and(|context| context.init(operation, key.as_deref(), params.get()));
        c_int::from(begun)
    })
}

unsafe extern "C" fn sign<S: Signature>(
    context: Exclusive<'_, S>,
    signature: *mut u8,
    len: *mut usize,
    room: usize,
    hash: *const u8,
    hash_len: usize,
) -> c_int {
    // SAFETY: a place and bytes of these lengths.
    unsafe { writes(context, signature, len, room, hash, hash_len, S::sign) }
}

unsafe extern "C" fn verify<S: Signature>(
    context: Exclusive<'_, S>,
    signature: *const u8,
    len: usize,
    hash: *const u8,
    hash_len: usize,
) -> c_int {
    // SAFETY: readable bytes of these lengths.
    let (signature, hash) = unsafe { (arg::bytes(signature, len), arg::bytes(hash, hash_len)) };
    entry(|| context.get().map_or(0, |context| context.verify(signature, hash)))
}

unsafe extern "C" fn verify_recover<S: Signature>(
    context: Exclusive<'_, S>,
    out: *mut u8,
    len: *mut usize,
    room: usize,
    signature: *const u8,
    signature_len: usize,
) -> c_int {
    // SAFETY: a place and bytes of these lengths.
    unsafe { writes(context, out, len, room, signature, signature_len, S::recover) }
}

extern "C" fn digest_init<S: Signature, const OPERATION: u8>(
    context: Exclusive<'_, S>,
    name: Name<'_>,
    key: Counted<'_, S::Key>,
    params: Read<'_>,
) -> c_int {
    entry(|| {
        let (key, operation) = (key.get(), operation(OPERATION));
        let Some(context) = context.get() else { return 0 };
        c_int::from(context.digest_init(operation, name.get(), key.as_deref(), params.get()))
    })
}

unsafe extern "C" fn digest_update<S: Signature>(
    context: Exclusive<'_, S>,
    data: *const u8,
    len: usize,
) -> c_int {
    // SAFETY: readable bytes of this length.
    let data = unsafe { arg::bytes(data, len) };
    entry(|| c_int::from(context.get().is_some_and(|context| context.digest_update(data))))
}

unsafe extern "C" fn digest_sign_final<S: Signature>(
    context: Exclusive<'_, S>,
    signature: *mut u8,
    len: *mut usize,
    room: usize,
) -> c_int {
    let sign = |context: &mut S, out: &mut Out<'_>, _: &[u8]| context.digest_sign_final(out);
    // SAFETY: a place of this length, and no bytes.
    unsafe { writes(context, signature, len, room, null(), 0, sign) }
}

unsafe extern "C" fn digest_verify_final<S: Signature>(
    context: Exclusive<'_, S>,
    signature: *const u8,
    len: usize,
) -> c_int {
    // SAFETY: readable bytes of this length.
    let signature = unsafe { arg::bytes(signature, len) };
    entry(|| context.get().map_or(0, |context| context.digest_verify_final(signature)))
}

unsafe extern "C" fn digest_sign<S: Signature>(
    context: Exclusive<'_, S>,
    signature: *mut u8,
    len: *mut usize,
    room: usize,
    data: *const u8,
    data_len: usize,
) -> c_int {
    // SAFETY: a place and bytes of these lengths.
    unsafe { writes(context, signature, len, room, data, data_len, S::digest_sign) }
}

unsafe extern "C" fn digest_verify<S: Signature>(
    context: Exclusive<'_, S>,
    signature: *const u8,
    len: usize,
    data: *const u8,
    data_len: usize,
) -> c_int {
    // SAFETY: readable bytes of these lengths.
    let (signature, data) = unsafe { (arg::bytes(signature, len), arg::bytes(data, data_len)) };
    entry(|| context.get().map_or(0, |context| context.digest_verify(signature, data)))
}

/// An entry that reads bytes and writes others.
///
/// # Safety
/// `to` is null or has `room` writable bytes, `len` is null or writable, `from` is null or has `from_len` bytes.
unsafe fn writes<S: Signature>(
    context: Exclusive<'_, S>,
    to: *mut u8,
    len: *mut usize,
    room: usize,
    from: *const u8,
    from_len: usize,
    work: impl FnOnce(&mut S, &mut Out<'_>, &[u8]) -> bool,
) -> c_int {
    entry(|| {
        // SAFETY: the caller's.
        let (Some(context), Some(mut out)) = (context.get(), unsafe { Out::new(to, room, len) }) else {
            return 0;
        };
        // SAFETY: the caller's.
        let input = unsafe { arg::apart(from, from_len, &out) };
        c_int::from(work(context, &mut out, &input))
    })
}

extern "C" fn get_ctx_md_params<S: Signature>(context: Exclusive<'_, S>, params: Fill<'_>) -> c_int {
    entry(|| {
        let hashing = context.get().and_then(|context| context.hashing());
        hashing.map_or(0, |hashing| hashing.get(&mut params.get()))
    })
}

extern "C" fn set_ctx_md_params<S: Signature>(context: Exclusive<'_, S>, params: Read<'_>) -> c_int {
    entry(|| {
        let hashing = context.get().and_then(|context| context.hashing());
        hashing.map_or(0, |hashing| hashing.set(params.get()))
    })
}

extern "C" fn gettable_ctx_md_params<S: Signature>(context: Shared<'_, S>) -> *const OSSL_PARAM {
    entry(|| context.get().and_then(S::digest).map_or(null(), Digest::gettable))
}

extern "C" fn settable_ctx_md_params<S: Signature>(context: Shared<'_, S>) -> *const OSSL_PARAM {
    entry(|| context.get().and_then(S::digest).map_or(null(), Digest::settable))
}
