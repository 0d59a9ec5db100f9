//! An operation as the other provider would do it: the same key, the same parameters in the same order. It is made
//! when it is first needed, because most operations never need it.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr::null;
use std::sync::Arc;

use super::key::Key;
use crate::child::PkeyCtx;
use crate::params::{END, Params, Recorded};
use crate::sys::{self, OSSL_PARAM, PARAM_INTEGER, PARAM_UTF8, UNMODIFIED};

/// What an operation is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Signing.
    Sign,
    /// Verifying a signature.
    Verify,
    /// Recovering what was signed.
    Recover,
    /// Encrypting with a public key.
    Encrypt,
    /// Decrypting with a private key.
    Decrypt,
}

impl Operation {
    fn begin(self, context: &PkeyCtx) -> bool {
        let context = context.as_ptr();
        // SAFETY: a live context, no parameters.
        let begun = unsafe {
            match self {
                Operation::Sign => sys::EVP_PKEY_sign_init_ex(context, null()),
                Operation::Verify => sys::EVP_PKEY_verify_init_ex(context, null()),
                Operation::Recover => sys::EVP_PKEY_verify_recover_init_ex(context, null()),
                Operation::Encrypt => sys::EVP_PKEY_encrypt_init_ex(context, null()),
                Operation::Decrypt => sys::EVP_PKEY_decrypt_init_ex(context, null()),
            }
        };
        begun == 1
    }
}

/// The operation, made or yet to be made.
pub struct Mirror {
    key: Arc<Key>,
    operation: Operation,
    /// Every list of parameters that was accepted.
    accepted: Vec<Arc<Recorded>>,
    made: Option<PkeyCtx>,
}

impl Mirror {
    /// Yet to be made.
    pub fn new(key: Arc<Key>, operation: Operation) -> Mirror {
        Mirror { key, operation, accepted: Vec::new(), made: None }
    }

    /// The key.
    pub fn key(&self) -> &Arc<Key> {
        &self.key
    }

    /// The operation in its present state; `None`, with the other provider's errors on the queue, if it refuses.
    pub fn context(&mut self) -> Option<&PkeyCtx> {
        if self.made.is_none() {
            let context = PkeyCtx::by_key(self.key.child(), self.key.elsewhere()?)?;
            if !self.operation.begin(&context) {
                return None;
            }
            for list in &self.accepted {
                // SAFETY: a live context and list.
                if unsafe { sys::EVP_PKEY_CTX_set_params(context.as_ptr(), list.as_ptr()) } <= 0 {
                    return None;
                }
            }
            self.made = Some(context);
        }
        self.made.as_ref()
    }

    /// Whether it is made.
    pub fn is_made(&self) -> bool {
        self.made.is_some()
    }

    /// Uses an operation that is in the state this one would be made in.
    pub fn adopt(&mut self, context: PkeyCtx) {
        self.made = Some(context);
    }

    /// Gives the operation away. It is made anew if it is needed again.
    pub fn release(&mut self) -> Option<PkeyCtx> {
        self.made.take()
    }

    /// What it is for.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Sets parameters there, as far as the other provider accepts them.
    pub fn set(&mut self, params: Params<'_>) -> bool {
        if params.is_empty() {
            return true;
        }
        let Some(context) = self.context() else { return false };
        // SAFETY: a live context and list.
        let accepted = unsafe { sys::EVP_PKEY_CTX_set_params(context.as_ptr(), params.as_ptr()) > 0 };
        accepted && self.remember(params)
    }

    /// Keeps parameters that are known to be acceptable for when the operation is made.
    pub fn note(&mut self, params: Params<'_>) -> bool {
        if params.is_empty() {
            return true;
        }
        if self.made.is_some() {
            return self.set(params);
        }
        self.remember(params)
    }

    fn remember(&mut self, params: Params<'_>) -> bool {
        let Some(copy) = Recorded::of(params) else { return false };
        self.accepted.push(Arc::new(copy));
        true
    }

    /// Asks the other provider.
    ///
    /// # Safety
    /// `params` is a list to fill.
    pub unsafe fn get(&mut self, params: *mut OSSL_PARAM) -> bool {
        let Some(context) = self.context() else { return false };
        // SAFETY: a live context; the caller's list.
        unsafe { sys::EVP_PKEY_CTX_get_params(context.as_ptr(), params) > 0 }
    }

    /// A number the other provider knows by that name.
    pub fn number(&mut self, key: &std::ffi::CStr) -> Option<i64> {
        let mut value: c_int = 0;
        let mut list = [entry(key, PARAM_INTEGER, (&raw mut value).cast(), size_of::<c_int>()), END];
        // SAFETY: a terminated list over a variable of that size.
        let answered = unsafe { self.get(list.as_mut_ptr()) };
        (answered && list[0].return_size != UNMODIFIED).then_some(i64::from(value))
    }

    /// A text the other provider knows by that name.
    pub fn text(&mut self, key: &std::ffi::CStr) -> Option<String> {
        let mut room = [0_u8; 256];
        let mut list = [entry(key, PARAM_UTF8, room.as_mut_ptr().cast(), room.len()), END];
        // SAFETY: a terminated list over a buffer of that size.
        let answered = unsafe { self.get(list.as_mut_ptr()) };
        if !answered || list[0].return_size == UNMODIFIED {
            return None;
        }
        let len = room.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&room[..len]).ok().map(str::to_owned)
    }

    /// The same in the same state. The copy is made anew when it is needed.
    pub fn duplicate(&self) -> Mirror {
        Mirror {
            key: self.key.clone(),
            operation: self.operation,
            accepted: self.accepted.clone(),
            made: None,
        }
    }
}

/// One entry of a list to fill.
pub fn entry(
    key: &std::ffi::CStr,
    data_type: std::ffi::c_uint,
    data: *mut std::ffi::c_void,
    data_size: usize,
) -> OSSL_PARAM {
    OSSL_PARAM { key: key.as_ptr(), data_type, data, data_size, return_size: UNMODIFIED }
}

/// # Safety
/// `at` has `len` readable bytes, or `len` is 0.
pub unsafe fn bytes<'a>(at: *const u8, len: usize) -> &'a [u8] {
    if at.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the caller's.
    unsafe { std::slice::from_raw_parts(at, len) }
}
