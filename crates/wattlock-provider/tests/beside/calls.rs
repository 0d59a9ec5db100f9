//! Declarations of OpenSSL's manual pages, as far as [`wattlock_provider::sys`] does not have them.
#![allow(non_camel_case_types, reason = "names are OpenSSL's own")]

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};

pub use wattlock_provider::sys::{
    EVP_CIPHER, EVP_CIPHER_CTX, EVP_CIPHER_CTX_copy, EVP_CIPHER_CTX_free, EVP_CIPHER_CTX_get_params,
    EVP_CIPHER_CTX_new, EVP_CIPHER_CTX_set_params, EVP_CIPHER_fetch, EVP_Cipher, EVP_CipherFinal_ex,
    EVP_CipherInit_ex2, EVP_CipherUpdate, EVP_KDF, EVP_KDF_CTX, EVP_KDF_CTX_dup, EVP_KDF_CTX_free,
    EVP_KDF_CTX_get_params, EVP_KDF_CTX_new, EVP_KDF_CTX_reset, EVP_KDF_CTX_set_params, EVP_KDF_derive,
    EVP_KDF_fetch, EVP_MD_CTX, EVP_MD_CTX_copy_ex, EVP_MD_CTX_free, EVP_MD_CTX_new, EVP_PKEY, EVP_PKEY_CTX,
    EVP_PKEY_CTX_dup, EVP_PKEY_CTX_free, EVP_PKEY_CTX_get_params, EVP_PKEY_CTX_new_from_name,
    EVP_PKEY_CTX_new_from_pkey, EVP_PKEY_CTX_set_params, EVP_PKEY_check, EVP_PKEY_decrypt,
    EVP_PKEY_decrypt_init_ex, EVP_PKEY_derive, EVP_PKEY_derive_init_ex, EVP_PKEY_derive_set_peer_ex,
    EVP_PKEY_dup, EVP_PKEY_encrypt, EVP_PKEY_encrypt_init_ex, EVP_PKEY_eq, EVP_PKEY_export, EVP_PKEY_free,
    EVP_PKEY_fromdata, EVP_PKEY_fromdata_init, EVP_PKEY_generate, EVP_PKEY_get_bits, EVP_PKEY_get_params,
    EVP_PKEY_get_security_bits, EVP_PKEY_get_size, EVP_PKEY_keygen_init, EVP_PKEY_pairwise_check,
    EVP_PKEY_param_check, EVP_PKEY_parameters_eq, EVP_PKEY_private_check, EVP_PKEY_public_check,
    EVP_PKEY_public_check_quick, EVP_PKEY_set_params, EVP_PKEY_sign, EVP_PKEY_sign_init_ex, EVP_PKEY_verify,
    EVP_PKEY_verify_init_ex, EVP_PKEY_verify_recover, EVP_PKEY_verify_recover_init_ex, OPENSSL_version_minor,
    OSSL_DISPATCH, OSSL_PARAM, OSSL_PROVIDER,
};

type Init = unsafe extern "C" fn(
    *const wattlock_provider::sys::OSSL_CORE_HANDLE,
    *const OSSL_DISPATCH,
    *mut *const OSSL_DISPATCH,
    *mut *mut c_void,
) -> c_int;

unsafe extern "C" {
    pub fn OSSL_LIB_CTX_new() -> *mut c_void;
    pub fn OSSL_LIB_CTX_load_config(context: *mut c_void, file: *const c_char) -> c_int;
    pub fn OSSL_PROVIDER_add_builtin(context: *mut c_void, name: *const c_char, init: Init) -> c_int;
    pub fn OSSL_PROVIDER_load(context: *mut c_void, name: *const c_char) -> *mut OSSL_PROVIDER;
    pub fn ERR_get_error() -> c_ulong;
    pub fn EVP_CIPHER_CTX_ctrl(
        context: *mut EVP_CIPHER_CTX,
        what: c_int,
        arg: c_int,
        at: *mut c_void,
    ) -> c_int;
    pub fn EVP_CIPHER_CTX_set_padding(context: *mut EVP_CIPHER_CTX, on: c_int) -> c_int;
    pub fn EVP_CIPHER_CTX_set_num(context: *mut EVP_CIPHER_CTX, num: c_int) -> c_int;
    pub fn EVP_CIPHER_CTX_get_num(context: *const EVP_CIPHER_CTX) -> c_int;
    pub fn EVP_CIPHER_CTX_set_key_length(context: *mut EVP_CIPHER_CTX, len: c_int) -> c_int;
    pub fn EVP_CIPHER_CTX_get_key_length(context: *const EVP_CIPHER_CTX) -> c_int;
    pub fn EVP_CIPHER_CTX_get_iv_length(context: *const EVP_CIPHER_CTX) -> c_int;
    pub fn EVP_CIPHER_CTX_get_tag_length(context: *const EVP_CIPHER_CTX) -> c_int;
    pub fn EVP_CIPHER_CTX_get_updated_iv(context: *mut EVP_CIPHER_CTX, at: *mut c_void, len: usize) -> c_int;
    pub fn EVP_CIPHER_CTX_get_original_iv(context: *mut EVP_CIPHER_CTX, at: *mut c_void, len: usize)
    -> c_int;
    pub fn EVP_CIPHER_get_params(cipher: *mut EVP_CIPHER, params: *mut OSSL_PARAM) -> c_int;
    pub fn EVP_CIPHER_get_flags(cipher: *const EVP_CIPHER) -> c_ulong;
    pub fn EVP_CIPHER_gettable_ctx_params(cipher: *const EVP_CIPHER) -> *const OSSL_PARAM;
    pub fn EVP_CIPHER_settable_ctx_params(cipher: *const EVP_CIPHER) -> *const OSSL_PARAM;
    pub fn EVP_KDF_CTX_get_kdf_size(context: *mut EVP_KDF_CTX) -> usize;
    pub fn EVP_PKEY_get1_encoded_public_key(key: *mut EVP_PKEY, at: *mut *mut u8) -> usize;
    pub fn EVP_PKEY_set1_encoded_public_key(key: *mut EVP_PKEY, at: *const u8, len: usize) -> c_int;
    pub fn EVP_PKEY_CTX_ctrl_str(
        context: *mut EVP_PKEY_CTX,
        name: *const c_char,
        value: *const c_char,
    ) -> c_int;
    pub fn EVP_PKEY_get_default_digest_name(key: *mut EVP_PKEY, name: *mut c_char, len: usize) -> c_int;
    pub fn CRYPTO_free(at: *mut c_void, file: *const c_char, line: c_int);
    pub fn EVP_DigestSignInit_ex(
        context: *mut EVP_MD_CTX,
        pctx: *mut *mut EVP_PKEY_CTX,
        digest: *const c_char,
        library: *mut c_void,
        properties: *const c_char,
        key: *mut EVP_PKEY,
        params: *const OSSL_PARAM,
    ) -> c_int;
    pub fn EVP_DigestVerifyInit_ex(
        context: *mut EVP_MD_CTX,
        pctx: *mut *mut EVP_PKEY_CTX,
        digest: *const c_char,
        library: *mut c_void,
        properties: *const c_char,
        key: *mut EVP_PKEY,
        params: *const OSSL_PARAM,
    ) -> c_int;
    pub fn EVP_DigestSignUpdate(context: *mut EVP_MD_CTX, data: *const c_void, len: usize) -> c_int;
    pub fn EVP_DigestVerifyUpdate(context: *mut EVP_MD_CTX, data: *const c_void, len: usize) -> c_int;
    pub fn EVP_DigestSignFinal(context: *mut EVP_MD_CTX, to: *mut u8, len: *mut usize) -> c_int;
    pub fn EVP_DigestVerifyFinal(context: *mut EVP_MD_CTX, signature: *const u8, len: usize) -> c_int;
    pub fn EVP_DigestSign(
        context: *mut EVP_MD_CTX,
        to: *mut u8,
        len: *mut usize,
        data: *const u8,
        size: usize,
    ) -> c_int;
    pub fn EVP_DigestVerify(
        context: *mut EVP_MD_CTX,
        signature: *const u8,
        len: usize,
        data: *const u8,
        size: usize,
    ) -> c_int;
}

/// Frees what OpenSSL allocated for its caller.
///
/// # Safety
/// `at` is null or from an allocating call of libcrypto's, and is not used again.
pub unsafe fn openssl_free(at: *mut u8) {
    // SAFETY: the caller's.
    unsafe { CRYPTO_free(at.cast(), c"".as_ptr(), 0) }
}

pub type Uint = c_uint;
