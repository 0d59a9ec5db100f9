//! Public declarations of OpenSSL 3: structures of `openssl/core.h`, function numbers of `openssl/core_dispatch.h`, and
//! the exported functions of libcrypto that this door calls. Raw: nothing here checks anything.
//!
//! Only what OpenSSL 3.0 documents and later versions keep. No private structure is known here.
#![allow(unsafe_code, missing_docs, non_camel_case_types, reason = "names are OpenSSL's own")]

pub mod id;

use std::ffi::{c_char, c_int, c_long, c_uchar, c_uint, c_ulong, c_void};

macro_rules! opaque {
    ($($name:ident),* $(,)?) => { $(
        #[repr(C)]
        pub struct $name { _private: [u8; 0] }
    )* };
}

opaque!(
    OSSL_CORE_HANDLE,
    OSSL_CORE_BIO,
    OSSL_LIB_CTX,
    OSSL_PROVIDER,
    EVP_PKEY,
    EVP_PKEY_CTX,
    EVP_MD,
    EVP_MD_CTX,
    EVP_KDF,
    EVP_KDF_CTX,
    EVP_CIPHER,
    EVP_CIPHER_CTX,
    ASYNC_JOB,
    ASYNC_WAIT_CTX,
    BIGNUM,
);

/// `OSSL_DISPATCH`: a function number and the function; number 0 ends a table.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OSSL_DISPATCH {
    pub function_id: c_int,
    pub function: *const c_void,
}

/// `OSSL_ALGORITHM`: names joined by `:`, properties, functions, and words for people; null names end a table.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OSSL_ALGORITHM {
    pub names: *const c_char,
    pub properties: *const c_char,
    pub implementation: *const OSSL_DISPATCH,
    pub description: *const c_char,
}

/// `OSSL_PARAM`: a named value by reference; a null key ends a table.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OSSL_PARAM {
    pub key: *const c_char,
    pub data_type: c_uint,
    pub data: *mut c_void,
    pub data_size: usize,
    pub return_size: usize,
}

pub const PARAM_INTEGER: c_uint = 1;
pub const PARAM_UNSIGNED: c_uint = 2;
pub const PARAM_UTF8: c_uint = 4;
pub const PARAM_OCTETS: c_uint = 5;
pub const PARAM_UTF8_PTR: c_uint = 6;
pub const PARAM_OCTETS_PTR: c_uint = 7;
/// `OSSL_PARAM_UNMODIFIED`
pub const UNMODIFIED: usize = usize::MAX;

pub type OSSL_CALLBACK = Option<unsafe extern "C" fn(*const OSSL_PARAM, *mut c_void) -> c_int>;
pub type ASYNC_callback = Option<unsafe extern "C" fn(*mut c_void) -> c_int>;
pub type ThreadStop = Option<unsafe extern "C" fn(*mut c_void)>;
/// `OSSL_FUNC_BIO_read_ex` and `OSSL_FUNC_BIO_write_ex`, which differ in what they do to the bytes.
pub type BioReadEx = unsafe extern "C" fn(*mut OSSL_CORE_BIO, *mut c_void, usize, *mut usize) -> c_int;
pub type BioWriteEx = unsafe extern "C" fn(*mut OSSL_CORE_BIO, *const c_void, usize, *mut usize) -> c_int;
pub type WaitCleanup = Option<unsafe extern "C" fn(*mut ASYNC_WAIT_CTX, *const c_void, c_int, *mut c_void)>;

/// `ERR_LIB_PROV`: reasons of `openssl/proverr.h`.
pub const ERR_LIB_PROV: c_int = 57;
/// `ERR_LIB_EVP`
pub const ERR_LIB_EVP: c_int = 6;

unsafe extern "C" {
    pub fn OSSL_LIB_CTX_new_child(
        handle: *const OSSL_CORE_HANDLE,
        table: *const OSSL_DISPATCH,
    ) -> *mut OSSL_LIB_CTX;
    pub fn OSSL_LIB_CTX_free(context: *mut OSSL_LIB_CTX);

    pub fn CRYPTO_free(pointer: *mut c_void, file: *const c_char, line: c_int);

    pub fn OSSL_PARAM_get_int64(param: *const OSSL_PARAM, value: *mut i64) -> c_int;
    pub fn OSSL_PARAM_get_uint(param: *const OSSL_PARAM, value: *mut c_uint) -> c_int;
    pub fn OSSL_PARAM_get_size_t(param: *const OSSL_PARAM, value: *mut usize) -> c_int;
    pub fn OSSL_PARAM_set_int(param: *mut OSSL_PARAM, value: c_int) -> c_int;
    pub fn OSSL_PARAM_set_uint(param: *mut OSSL_PARAM, value: c_uint) -> c_int;
    pub fn OSSL_PARAM_set_size_t(param: *mut OSSL_PARAM, value: usize) -> c_int;
    pub fn OSSL_PARAM_set_octet_string(param: *mut OSSL_PARAM, value: *const c_void, len: usize) -> c_int;
    pub fn OSSL_PARAM_set_octet_ptr(param: *mut OSSL_PARAM, value: *const c_void, len: usize) -> c_int;
    pub fn OSSL_PARAM_set_utf8_string(param: *mut OSSL_PARAM, value: *const c_char) -> c_int;
    pub fn OSSL_PARAM_set_utf8_ptr(param: *mut OSSL_PARAM, value: *const c_char) -> c_int;

    pub fn ERR_new();
    pub fn ERR_set_debug(file: *const c_char, line: c_int, function: *const c_char);
    pub fn ERR_set_error(library: c_int, reason: c_int, format: *const c_char, ...);
    pub fn ERR_peek_last_error() -> c_ulong;
    pub fn ERR_set_mark() -> c_int;
    pub fn ERR_pop_to_mark() -> c_int;
    pub fn ERR_clear_last_mark() -> c_int;

    pub fn ASYNC_get_current_job() -> *mut ASYNC_JOB;
    pub fn ASYNC_get_wait_ctx(job: *mut ASYNC_JOB) -> *mut ASYNC_WAIT_CTX;
    pub fn ASYNC_pause_job() -> c_int;
    pub fn ASYNC_block_pause();
    pub fn ASYNC_unblock_pause();
    pub fn ASYNC_WAIT_CTX_set_wait_fd(
        context: *mut ASYNC_WAIT_CTX,
        key: *const c_void,
        fd: c_int,
        custom: *mut c_void,
        cleanup: WaitCleanup,
    ) -> c_int;
    pub fn ASYNC_WAIT_CTX_get_fd(
        context: *mut ASYNC_WAIT_CTX,
        key: *const c_void,
        fd: *mut c_int,
        custom: *mut *mut c_void,
    ) -> c_int;
    pub fn ASYNC_WAIT_CTX_get_changed_fds(
        context: *mut ASYNC_WAIT_CTX,
        added: *mut c_int,
        added_count: *mut usize,
        removed: *mut c_int,
        removed_count: *mut usize,
    ) -> c_int;
    pub fn ASYNC_WAIT_CTX_clear_fd(context: *mut ASYNC_WAIT_CTX, key: *const c_void) -> c_int;
    pub fn ASYNC_WAIT_CTX_get_callback(
        context: *mut ASYNC_WAIT_CTX,
        callback: *mut ASYNC_callback,
        argument: *mut *mut c_void,
    ) -> c_int;

    pub fn EVP_PKEY_new() -> *mut EVP_PKEY;
    pub fn EVP_PKEY_free(key: *mut EVP_PKEY);
    pub fn EVP_PKEY_up_ref(key: *mut EVP_PKEY) -> c_int;
    pub fn EVP_PKEY_dup(key: *mut EVP_PKEY) -> *mut EVP_PKEY;
    pub fn EVP_PKEY_eq(a: *const EVP_PKEY, b: *const EVP_PKEY) -> c_int;
    pub fn EVP_PKEY_parameters_eq(a: *const EVP_PKEY, b: *const EVP_PKEY) -> c_int;
    pub fn EVP_PKEY_todata(key: *const EVP_PKEY, selection: c_int, params: *mut *mut OSSL_PARAM) -> c_int;
    pub fn EVP_PKEY_export(
        key: *const EVP_PKEY,
        selection: c_int,
        callback: OSSL_CALLBACK,
        argument: *mut c_void,
    ) -> c_int;
    pub fn EVP_PKEY_get_params(key: *const EVP_PKEY, params: *mut OSSL_PARAM) -> c_int;
    pub fn EVP_PKEY_set_params(key: *mut EVP_PKEY, params: *mut OSSL_PARAM) -> c_int;
    pub fn EVP_PKEY_gettable_params(key: *const EVP_PKEY) -> *const OSSL_PARAM;
    pub fn EVP_PKEY_get_bits(key: *const EVP_PKEY) -> c_int;
    pub fn EVP_PKEY_get_size(key: *const EVP_PKEY) -> c_int;
    pub fn EVP_PKEY_get_security_bits(key: *const EVP_PKEY) -> c_int;

    pub fn EVP_PKEY_CTX_new_from_name(
        context: *mut OSSL_LIB_CTX,
        name: *const c_char,
        properties: *const c_char,
    ) -> *mut EVP_PKEY_CTX;
    pub fn EVP_PKEY_CTX_new_from_pkey(
        context: *mut OSSL_LIB_CTX,
        key: *mut EVP_PKEY,
        properties: *const c_char,
    ) -> *mut EVP_PKEY_CTX;
    pub fn EVP_PKEY_CTX_free(context: *mut EVP_PKEY_CTX);
    pub fn EVP_PKEY_CTX_dup(context: *const EVP_PKEY_CTX) -> *mut EVP_PKEY_CTX;
    pub fn EVP_PKEY_CTX_set_params(context: *mut EVP_PKEY_CTX, params: *const OSSL_PARAM) -> c_int;
    pub fn EVP_PKEY_CTX_get_params(context: *mut EVP_PKEY_CTX, params: *mut OSSL_PARAM) -> c_int;
    pub fn EVP_PKEY_fromdata_init(context: *mut EVP_PKEY_CTX) -> c_int;
    pub fn EVP_PKEY_fromdata(
        context: *mut EVP_PKEY_CTX,
        key: *mut *mut EVP_PKEY,
        selection: c_int,
        params: *mut OSSL_PARAM,
    ) -> c_int;
    pub fn EVP_PKEY_paramgen_init(context: *mut EVP_PKEY_CTX) -> c_int;
    pub fn EVP_PKEY_keygen_init(context: *mut EVP_PKEY_CTX) -> c_int;
    pub fn EVP_PKEY_generate(context: *mut EVP_PKEY_CTX, key: *mut *mut EVP_PKEY) -> c_int;
    pub fn EVP_PKEY_CTX_set_cb(
        context: *mut EVP_PKEY_CTX,
        callback: Option<unsafe extern "C" fn(*mut EVP_PKEY_CTX) -> c_int>,
    );
    pub fn EVP_PKEY_CTX_get_keygen_info(context: *mut EVP_PKEY_CTX, index: c_int) -> c_int;
    pub fn EVP_PKEY_CTX_set_app_data(context: *mut EVP_PKEY_CTX, data: *mut c_void);
    pub fn EVP_PKEY_CTX_get_app_data(context: *mut EVP_PKEY_CTX) -> *mut c_void;
    pub fn EVP_PKEY_check(context: *mut EVP_PKEY_CTX) -> c_int;
    pub fn EVP_PKEY_public_check(context: *mut EVP_PKEY_CTX) -> c_int;
    pub fn EVP_PKEY_public_check_quick(context: *mut EVP_PKEY_CTX) -> c_int;
    pub fn EVP_PKEY_param_check(context: *mut EVP_PKEY_CTX) -> c_int;
    pub fn EVP_PKEY_param_check_quick(context: *mut EVP_PKEY_CTX) -> c_int;
    pub fn EVP_PKEY_private_check(context: *mut EVP_PKEY_CTX) -> c_int;
    pub fn EVP_PKEY_pairwise_check(context: *mut EVP_PKEY_CTX) -> c_int;
    pub fn EVP_PKEY_sign_init_ex(context: *mut EVP_PKEY_CTX, params: *const OSSL_PARAM) -> c_int;
    pub fn EVP_PKEY_sign(
        context: *mut EVP_PKEY_CTX,
        signature: *mut c_uchar,
        len: *mut usize,
        input: *const c_uchar,
        input_len: usize,
    ) -> c_int;
    pub fn EVP_PKEY_verify_init_ex(context: *mut EVP_PKEY_CTX, params: *const OSSL_PARAM) -> c_int;
    pub fn EVP_PKEY_verify(
        context: *mut EVP_PKEY_CTX,
        signature: *const c_uchar,
        len: usize,
        input: *const c_uchar,
        input_len: usize,
    ) -> c_int;
    pub fn EVP_PKEY_verify_recover_init_ex(context: *mut EVP_PKEY_CTX, params: *const OSSL_PARAM) -> c_int;
    pub fn EVP_PKEY_verify_recover(
        context: *mut EVP_PKEY_CTX,
        out: *mut c_uchar,
        len: *mut usize,
        signature: *const c_uchar,
        signature_len: usize,
    ) -> c_int;
    pub fn EVP_PKEY_encrypt_init_ex(context: *mut EVP_PKEY_CTX, params: *const OSSL_PARAM) -> c_int;
    pub fn EVP_PKEY_encrypt(
        context: *mut EVP_PKEY_CTX,
        out: *mut c_uchar,
        len: *mut usize,
        input: *const c_uchar,
        input_len: usize,
    ) -> c_int;
    pub fn EVP_PKEY_decrypt_init_ex(context: *mut EVP_PKEY_CTX, params: *const OSSL_PARAM) -> c_int;
    pub fn EVP_PKEY_decrypt(
        context: *mut EVP_PKEY_CTX,
        out: *mut c_uchar,
        len: *mut usize,
        input: *const c_uchar,
        input_len: usize,
    ) -> c_int;
    pub fn EVP_PKEY_derive_init_ex(context: *mut EVP_PKEY_CTX, params: *const OSSL_PARAM) -> c_int;
    pub fn EVP_PKEY_derive_set_peer_ex(
        context: *mut EVP_PKEY_CTX,
        peer: *mut EVP_PKEY,
        validate: c_int,
    ) -> c_int;
    pub fn EVP_PKEY_derive(context: *mut EVP_PKEY_CTX, secret: *mut c_uchar, len: *mut usize) -> c_int;

    pub fn EVP_MD_fetch(
        context: *mut OSSL_LIB_CTX,
        name: *const c_char,
        properties: *const c_char,
    ) -> *mut EVP_MD;
    pub fn EVP_MD_free(digest: *mut EVP_MD);
    pub fn EVP_MD_up_ref(digest: *mut EVP_MD) -> c_int;
    pub fn EVP_MD_get_size(digest: *const EVP_MD) -> c_int;
    pub fn EVP_MD_is_a(digest: *const EVP_MD, name: *const c_char) -> c_int;
    pub fn EVP_MD_get0_name(digest: *const EVP_MD) -> *const c_char;
    pub fn EVP_MD_CTX_new() -> *mut EVP_MD_CTX;
    pub fn EVP_MD_CTX_free(context: *mut EVP_MD_CTX);
    pub fn EVP_MD_CTX_copy_ex(to: *mut EVP_MD_CTX, from: *const EVP_MD_CTX) -> c_int;
    pub fn EVP_MD_CTX_get_params(context: *mut EVP_MD_CTX, params: *mut OSSL_PARAM) -> c_int;
    pub fn EVP_MD_CTX_set_params(context: *mut EVP_MD_CTX, params: *const OSSL_PARAM) -> c_int;
    pub fn EVP_MD_CTX_gettable_params(context: *mut EVP_MD_CTX) -> *const OSSL_PARAM;
    pub fn EVP_MD_CTX_settable_params(context: *mut EVP_MD_CTX) -> *const OSSL_PARAM;
    pub fn EVP_MD_gettable_ctx_params(digest: *const EVP_MD) -> *const OSSL_PARAM;
    pub fn EVP_MD_settable_ctx_params(digest: *const EVP_MD) -> *const OSSL_PARAM;
    pub fn EVP_DigestInit_ex2(
        context: *mut EVP_MD_CTX,
        digest: *const EVP_MD,
        params: *const OSSL_PARAM,
    ) -> c_int;
    pub fn EVP_DigestUpdate(context: *mut EVP_MD_CTX, data: *const c_void, len: usize) -> c_int;
    pub fn EVP_DigestFinal_ex(context: *mut EVP_MD_CTX, out: *mut c_uchar, len: *mut c_uint) -> c_int;
    pub fn EVP_Digest(
        data: *const c_void,
        len: usize,
        out: *mut c_uchar,
        size: *mut c_uint,
        digest: *const EVP_MD,
        engine: *mut c_void,
    ) -> c_int;

    pub fn EVP_KDF_fetch(
        context: *mut OSSL_LIB_CTX,
        name: *const c_char,
        properties: *const c_char,
    ) -> *mut EVP_KDF;
    pub fn EVP_KDF_free(kdf: *mut EVP_KDF);
    pub fn EVP_KDF_CTX_new(kdf: *const EVP_KDF) -> *mut EVP_KDF_CTX;
    pub fn EVP_KDF_CTX_free(context: *mut EVP_KDF_CTX);
    pub fn EVP_KDF_CTX_reset(context: *mut EVP_KDF_CTX);
    pub fn EVP_KDF_get0_provider(kdf: *const EVP_KDF) -> *const OSSL_PROVIDER;
    pub fn OSSL_PROVIDER_get0_name(provider: *const OSSL_PROVIDER) -> *const c_char;
    pub fn EVP_KDF_CTX_dup(context: *const EVP_KDF_CTX) -> *mut EVP_KDF_CTX;
    pub fn EVP_KDF_gettable_ctx_params(kdf: *const EVP_KDF) -> *const OSSL_PARAM;
    pub fn EVP_KDF_settable_ctx_params(kdf: *const EVP_KDF) -> *const OSSL_PARAM;
    pub fn EVP_KDF_CTX_get_params(context: *mut EVP_KDF_CTX, params: *mut OSSL_PARAM) -> c_int;
    pub fn EVP_KDF_CTX_set_params(context: *mut EVP_KDF_CTX, params: *const OSSL_PARAM) -> c_int;
    pub fn EVP_KDF_derive(
        context: *mut EVP_KDF_CTX,
        key: *mut c_uchar,
        len: usize,
        params: *const OSSL_PARAM,
    ) -> c_int;

    pub fn EVP_CIPHER_fetch(
        context: *mut OSSL_LIB_CTX,
        name: *const c_char,
        properties: *const c_char,
    ) -> *mut EVP_CIPHER;
    pub fn EVP_CIPHER_free(cipher: *mut EVP_CIPHER);
    pub fn EVP_CIPHER_CTX_new() -> *mut EVP_CIPHER_CTX;
    pub fn EVP_CIPHER_CTX_free(context: *mut EVP_CIPHER_CTX);
    pub fn EVP_CIPHER_CTX_copy(to: *mut EVP_CIPHER_CTX, from: *const EVP_CIPHER_CTX) -> c_int;
    pub fn EVP_CIPHER_CTX_get_params(context: *mut EVP_CIPHER_CTX, params: *mut OSSL_PARAM) -> c_int;
    pub fn EVP_CIPHER_CTX_set_params(context: *mut EVP_CIPHER_CTX, params: *const OSSL_PARAM) -> c_int;
    pub fn EVP_CipherInit_ex2(
        context: *mut EVP_CIPHER_CTX,
        cipher: *const EVP_CIPHER,
        key: *const c_uchar,
        iv: *const c_uchar,
        encrypt: c_int,
        params: *const OSSL_PARAM,
    ) -> c_int;
    pub fn EVP_CipherUpdate(
        context: *mut EVP_CIPHER_CTX,
        out: *mut c_uchar,
        out_len: *mut c_int,
        input: *const c_uchar,
        len: c_int,
    ) -> c_int;
    pub fn EVP_CipherFinal_ex(context: *mut EVP_CIPHER_CTX, out: *mut c_uchar, out_len: *mut c_int) -> c_int;
    pub fn EVP_Cipher(
        context: *mut EVP_CIPHER_CTX,
        out: *mut c_uchar,
        input: *const c_uchar,
        len: c_uint,
    ) -> c_int;

    pub fn RAND_set_DRBG_type(
        context: *mut OSSL_LIB_CTX,
        drbg: *const c_char,
        properties: *const c_char,
        cipher: *const c_char,
        digest: *const c_char,
    ) -> c_int;
    pub fn RAND_bytes_ex(
        context: *mut OSSL_LIB_CTX,
        out: *mut c_uchar,
        len: usize,
        strength: c_uint,
    ) -> c_int;
    pub fn RAND_priv_bytes_ex(
        context: *mut OSSL_LIB_CTX,
        out: *mut c_uchar,
        len: usize,
        strength: c_uint,
    ) -> c_int;

    pub fn EVP_EncodeBlock(out: *mut c_uchar, input: *const c_uchar, len: c_int) -> c_int;
    pub fn OSSL_PARAM_free(params: *mut OSSL_PARAM);
    pub fn OSSL_PARAM_dup(params: *const OSSL_PARAM) -> *mut OSSL_PARAM;
    pub fn OPENSSL_version_major() -> c_uint;
    pub fn OPENSSL_version_minor() -> c_uint;
    pub fn OPENSSL_thread_stop();
}

/// `long`, for the few control calls.
pub type Long = c_long;
