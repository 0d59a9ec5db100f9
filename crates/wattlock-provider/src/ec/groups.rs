//! Groups for TLS. libssl uses a group only if the provider that names it also manages its keys: so what OpenSSL's own
//! provider says of the groups whose key types are ours is said again, by us.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::arg::Callback;
use crate::child::{Child, ELSEWHERE};
use crate::params::Params;
use crate::sys::{OSSL_CALLBACK, OSSL_LIB_CTX, OSSL_PARAM, OSSL_PROVIDER};

#[allow(non_camel_case_types, reason = "OpenSSL's own name")]
#[repr(C)]
struct EVP_KEYMGMT {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn EVP_KEYMGMT_fetch(
        context: *mut OSSL_LIB_CTX,
        name: *const c_char,
        properties: *const c_char,
    ) -> *mut EVP_KEYMGMT;
    fn EVP_KEYMGMT_free(management: *mut EVP_KEYMGMT);
    fn EVP_KEYMGMT_get0_provider(management: *const EVP_KEYMGMT) -> *const OSSL_PROVIDER;
    fn OSSL_PROVIDER_get_capabilities(
        provider: *const OSSL_PROVIDER,
        capability: *const c_char,
        callback: OSSL_CALLBACK,
        argument: *mut c_void,
    ) -> c_int;
}

/// What libssl asks for.
pub const CAPABILITY: &CStr = c"TLS-GROUP";

/// The asking program, and for which key type.
struct Asked<'a> {
    key_type: &'a str,
    callback: &'a Callback,
}

/// Passes on one group of the key type.
unsafe extern "C" fn pass_on(params: *const OSSL_PARAM, asked: *mut c_void) -> c_int {
    crate::error::entry(|| {
        // SAFETY: a list, and what `tls` handed in.
        let (group, asked) = unsafe { (Params::new(params), &*asked.cast::<Asked<'_>>()) };
        let wanted = group.get(c"tls-group-alg").and_then(|one| one.text()) == Some(asked.key_type);
        if wanted { asked.callback.pass_on(group).unwrap_or(1) } else { 1 }
    })
}

/// Tells `callback` of every TLS group of a key type that OpenSSL's own provider knows. Returns whether all went well.
pub fn tls(child: &Child, key_type: &CStr, callback: &Callback) -> bool {
    let Ok(text) = key_type.to_str() else { return false };
    let mut asked = Asked { key_type: text, callback };
    // SAFETY: a live context, C strings; the provider lives at least as long as its key management is held.
    unsafe {
        let management = EVP_KEYMGMT_fetch(child.as_ptr(), key_type.as_ptr(), ELSEWHERE.as_ptr());
        if management.is_null() {
            return false;
        }
        let owner = EVP_KEYMGMT_get0_provider(management);
        let at = (&raw mut asked).cast();
        let done = OSSL_PROVIDER_get_capabilities(owner, CAPABILITY.as_ptr(), Some(pass_on), at);
        EVP_KEYMGMT_free(management);
        done == 1
    }
}
