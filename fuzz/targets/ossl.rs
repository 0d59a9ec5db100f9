//! The provider inside the system's libcrypto, as a part of this program, so that it is instrumented.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use wattlock_provider::sys::{OSSL_DISPATCH, OSSL_PARAM, OSSL_PROVIDER};
use wattlock_provider::table::FunctionTable;

type Init = unsafe extern "C" fn(
    *const wattlock_provider::sys::OSSL_CORE_HANDLE,
    *const OSSL_DISPATCH,
    *mut *const OSSL_DISPATCH,
    *mut *mut c_void,
) -> c_int;

// Declarations of OpenSSL 3.0's manual pages.
unsafe extern "C" {
    fn OSSL_PROVIDER_add_builtin(context: *mut c_void, name: *const c_char, init: Init) -> c_int;
    fn OSSL_PROVIDER_load(context: *mut c_void, name: *const c_char) -> *mut OSSL_PROVIDER;
    fn OSSL_PROVIDER_get_params(provider: *const OSSL_PROVIDER, params: *mut OSSL_PARAM) -> c_int;
    fn OSSL_LIB_CTX_load_config(context: *mut c_void, file: *const c_char) -> c_int;
    fn OSSL_LIB_CTX_new() -> *mut c_void;
}

pub struct Loaded {
    /// The library context that the provider is in.
    #[allow(dead_code, reason = "one of two targets")]
    pub context: *mut c_void,
    pub table: &'static FunctionTable,
}

// SAFETY: OpenSSL's contexts and the table may be used from any thread.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

/// Loads it once, with everything that it can offer.
pub fn loaded() -> &'static Loaded {
    static LOADED: OnceLock<Loaded> = OnceLock::new();
    LOADED.get_or_init(|| {
        let conf = wattlock_fuzz::folder("provider").join("openssl.cnf");
        let text = "openssl_conf = i\n[i]\nproviders = p\n[p]\ndefault = d\nwattlock = w\n[d]\nactivate = 1\n[w]\nactivate = 1\n\
                    algorithms = gcm,cbc,cbc-hmac,ctr,xts,rsa,ec,x25519,ml-kem,kdf\ntelemetry = off\n";
        std::fs::write(&conf, text).expect("our folder");
        let conf = CString::new(conf.to_str().expect("a plain path")).expect("a plain path");
        let param = |data_type: c_uint, key: &'static CStr, data: *mut c_void| OSSL_PARAM {
            key: key.as_ptr(), data_type, data, data_size: 0, return_size: usize::MAX,
        };
        let mut table: *const FunctionTable = std::ptr::null();
        // SAFETY: by the manual pages; the list ends with a null key, and its entry has room for a pointer.
        unsafe {
            let context = OSSL_LIB_CTX_new();
            let name = c"wattlock".as_ptr();
            assert_eq!(OSSL_PROVIDER_add_builtin(context, name, wattlock_provider::load::OSSL_provider_init), 1);
            assert_eq!(OSSL_LIB_CTX_load_config(context, conf.as_ptr()), 1, "the configuration");
            let provider = OSSL_PROVIDER_load(context, name);
            assert!(!provider.is_null(), "the provider did not load");
            let mut list = [
                param(7, c"wattlock-table", (&raw mut table).cast()),
                OSSL_PARAM { key: std::ptr::null(), ..param(0, c"", std::ptr::null_mut()) },
            ];
            assert_eq!(OSSL_PROVIDER_get_params(provider, list.as_mut_ptr()), 1);
            Loaded { context, table: table.as_ref().expect("it has a table") }
        }
    })
}
