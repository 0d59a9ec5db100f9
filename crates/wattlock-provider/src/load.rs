//! The provider as OpenSSL loads it: `OSSL_provider_init`, what it reads there, and the entries of the provider itself.
//! Everything that is offered comes together here; what it is made of does not know this file.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null;

use crate::advantage::Version;
use crate::arg::{Callback, Fill, Name, Owned, Shared};
use crate::ec::{self, groups};
use crate::entries::dispatch;
use crate::error::{Reason, entry, raise_with};
use crate::offer::Algorithm;
use crate::params::{END, Table, describe};
use crate::provider::{Provider, ThreadStart};
use crate::settings::{KEYS, Settings};
use crate::sys::{
    OSSL_ALGORITHM, OSSL_CALLBACK, OSSL_CORE_HANDLE, OSSL_DISPATCH, OSSL_PARAM, PARAM_INTEGER,
    PARAM_OCTETS_PTR, PARAM_UTF8_PTR, UNMODIFIED, id,
};
use crate::table::{self, FunctionTable};
use crate::{cipher, kdf, rsa, skey, x25519};

/// Everything there is.
const EVERYTHING: &[&[Algorithm]] = &[
    cipher::ALGORITHMS,
    skey::ALGORITHMS,
    rsa::ALGORITHMS,
    ec::ALGORITHMS,
    x25519::ALGORITHMS,
    kdf::ALGORITHMS,
];

type GetParams = unsafe extern "C" fn(*const OSSL_CORE_HANDLE, *mut OSSL_PARAM) -> c_int;

/// What OpenSSL calls first.
///
/// # Safety
/// Called by OpenSSL by the contract of provider-base(7).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn OSSL_provider_init(
    handle: *const OSSL_CORE_HANDLE,
    functions: *const OSSL_DISPATCH,
    out: *mut *const OSSL_DISPATCH,
    context: *mut *mut c_void,
) -> c_int {
    entry(|| {
        let (mut get_params, mut thread_start) = (None::<GetParams>, None::<ThreadStart>);
        let mut at = functions;
        // SAFETY: OpenSSL's table ends with number 0; functions have the types of their numbers.
        unsafe {
            while (*at).function_id != 0 {
                match (*at).function_id {
                    id::CORE_GET_PARAMS => {
                        get_params = std::mem::transmute::<*const c_void, Option<GetParams>>((*at).function)
                    }
                    id::CORE_THREAD_START => {
                        thread_start =
                            std::mem::transmute::<*const c_void, Option<ThreadStart>>((*at).function);
                    }
                    _ => {}
                }
                at = at.add(1);
            }
        }
        // SAFETY: the handle belongs to the function.
        let said = get_params.map_or(Ok((Settings::default(), Version::FIRST)), |get| unsafe {
            Ok((read_settings(handle, get)?, version(handle, get)))
        });
        let (settings, openssl) = match said {
            Ok(said) => said,
            Err(words) => {
                let words: String = words;
                raise_with(Reason::FailedToSetParameter, &format!("wattlock: {words}"));
                return 0;
            }
        };
        // SAFETY: what this function was given.
        let made = unsafe { Provider::new(handle, functions, EVERYTHING, settings, openssl, thread_start) };
        match made {
            Ok(provider) => {
                // SAFETY: both are writable, by contract.
                unsafe {
                    *context = Box::into_raw(Box::new(provider)).cast();
                    *out = FUNCTIONS.as_ptr();
                }
                1
            }
            Err(words) => {
                raise_with(Reason::NotSupported, &format!("wattlock: {words}"));
                0
            }
        }
    })
}

/// # Safety
/// `get` is OpenSSL's function and `handle` its argument.
unsafe fn read_settings(handle: *const OSSL_CORE_HANDLE, get: GetParams) -> Result<Settings, String> {
    let mut settings = Settings::default();
    for (key, _) in KEYS {
        // SAFETY: the caller's. The text is used at once.
        let Some(value) = (unsafe { told(handle, get, key) }) else { continue };
        let value = value.to_str().map_err(|_| "a setting is not UTF-8".to_owned())?;
        let key = key.to_str().unwrap_or_default();
        settings.set(key, value).map_err(|error| error.to_string())?;
    }
    Ok(settings)
}

/// The version of the libcrypto that loads us: the one whose own ciphers would serve otherwise.
///
/// # Safety
/// As [`read_settings`].
unsafe fn version(handle: *const OSSL_CORE_HANDLE, get: GetParams) -> Version {
    // SAFETY: the caller's. The text is used at once.
    let text = unsafe { told(handle, get, c"openssl-version") };
    text.and_then(|text| Version::parse(text.to_str().ok()?)).unwrap_or(Version::FIRST)
}

/// What OpenSSL answers to a parameter's name: one of its own, or a line of our section.
///
/// # Safety
/// As [`read_settings`]; the text lives as long as the configuration.
unsafe fn told<'a>(handle: *const OSSL_CORE_HANDLE, get: GetParams, key: &CStr) -> Option<&'a CStr> {
    let mut value: *const c_char = null();
    let mut list = [
        OSSL_PARAM {
            key: key.as_ptr(),
            data_type: PARAM_UTF8_PTR,
            data: (&raw mut value).cast(),
            data_size: 0,
            return_size: UNMODIFIED,
        },
        END,
    ];
    // SAFETY: a terminated list whose one entry has room for a pointer, which OpenSSL sets to a C string.
    unsafe { (get(handle, list.as_mut_ptr()) == 1 && !value.is_null()).then(|| CStr::from_ptr(value)) }
}

static FUNCTIONS: Table<OSSL_DISPATCH, 7> = dispatch![
    id::PROVIDER_TEARDOWN => teardown;
    id::PROVIDER_GETTABLE_PARAMS => gettable_params;
    id::PROVIDER_GET_PARAMS => get_params;
    id::PROVIDER_QUERY_OPERATION => query_operation;
    id::PROVIDER_GET_CAPABILITIES => get_capabilities;
    id::PROVIDER_SELF_TEST => self_test;
];

extern "C" fn teardown(provider: Owned<Provider>) {
    // OpenSSL calls this once, when nothing of ours is in use any more.
    entry(|| provider.take().map_or((), |provider| provider.close()));
}

static GETTABLE: Table<OSSL_PARAM, 7> = Table([
    describe(c"name", PARAM_UTF8_PTR),
    describe(c"version", PARAM_UTF8_PTR),
    describe(c"buildinfo", PARAM_UTF8_PTR),
    describe(c"status", PARAM_INTEGER),
    describe(c"wattlock-abi", PARAM_INTEGER),
    describe(c"wattlock-table", PARAM_OCTETS_PTR),
    END,
]);

extern "C" fn gettable_params(_: *mut c_void) -> *const OSSL_PARAM {
    GETTABLE.as_ptr()
}

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"",
};

extern "C" fn get_params(provider: Shared<'static, Provider>, params: Fill<'_>) -> c_int {
    entry(|| {
        let (Some(provider), mut answers) = (provider.get(), params.get()) else { return 0 };
        let table = if answers.wants(c"wattlock-table") {
            std::ptr::from_ref(&**provider.table.get_or_init(|| Box::new(table::make(provider))))
        } else {
            null()
        };
        let good = answers.set_text(c"name", c"Wattlock")
            && answers.set_text(c"version", VERSION)
            && answers.set_text(c"buildinfo", &provider.build)
            && answers.set_size(c"status", 1)
            && answers.set_size(c"wattlock-abi", table::VERSION as usize)
            && answers.set_pointer(c"wattlock-table", table.cast(), size_of::<FunctionTable>());
        c_int::from(good)
    })
}

unsafe extern "C" fn query_operation(
    provider: Shared<'static, Provider>,
    operation: c_int,
    no_cache: *mut c_int,
) -> *const OSSL_ALGORITHM {
    entry(|| {
        if !no_cache.is_null() {
            // SAFETY: OpenSSL's own variable.
            unsafe { *no_cache = 0 };
        }
        provider.get().map_or(null(), |provider| provider.offer.algorithms(operation))
    })
}

unsafe extern "C" fn get_capabilities(
    provider: Shared<'static, Provider>,
    capability: Name<'_>,
    callback: OSSL_CALLBACK,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the caller's callback with its own argument.
    let callback = unsafe { Callback::new(callback, argument) };
    entry(|| {
        let Some(provider) = provider.get().filter(|_| capability.get() == Some(groups::CAPABILITY)) else {
            return 0;
        };
        let types = [("ec", c"EC"), ("x25519", c"X25519")];
        let mut on = types.iter().filter(|(group, _)| provider.offer.has(group));
        c_int::from(on.all(|(_, name)| groups::tls(&provider.child, name, &callback)))
    })
}

/// Known answers are tried per kind when it is first used; asked for a self-test, all that is offered is tried at once.
extern "C" fn self_test(provider: Shared<'static, Provider>) -> c_int {
    entry(|| c_int::from(provider.get().is_some_and(Provider::prove_everything)))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Entry = unsafe extern "C" fn(
        *const c_void,
        *const c_void,
        *const c_void,
        *const c_void,
        *const c_void,
        *const c_void,
    ) -> c_int;

    /// Functions that answer without a key or a context.
    fn needs_nothing(operation: c_int, function: c_int) -> bool {
        match operation {
            id::OP_KEYMGMT => matches!(
                function,
                id::KEYMGMT_FREE
                    | id::KEYMGMT_GEN_CLEANUP
                    | id::KEYMGMT_GETTABLE_PARAMS
                    | id::KEYMGMT_SETTABLE_PARAMS
                    | id::KEYMGMT_GEN_SETTABLE_PARAMS
                    | id::KEYMGMT_QUERY_OPERATION_NAME
            ),
            id::OP_SIGNATURE => matches!(
                function,
                id::SIGNATURE_FREECTX | id::SIGNATURE_GETTABLE_CTX_PARAMS | id::SIGNATURE_SETTABLE_CTX_PARAMS
            ),
            id::OP_KEYEXCH => matches!(
                function,
                id::KEYEXCH_FREECTX | id::KEYEXCH_GETTABLE_CTX_PARAMS | id::KEYEXCH_SETTABLE_CTX_PARAMS
            ),
            id::OP_ASYM_CIPHER => matches!(
                function,
                id::ASYM_CIPHER_FREECTX
                    | id::ASYM_CIPHER_GETTABLE_CTX_PARAMS
                    | id::ASYM_CIPHER_SETTABLE_CTX_PARAMS
            ),
            _ => matches!(function, id::KDF_FREECTX | id::KDF_RESET),
        }
    }

    #[test]
    fn a_missing_key_or_context_fails_the_call() {
        let mut calls = 0;
        for algorithm in EVERYTHING.iter().copied().flatten() {
            if matches!(algorithm.operation, id::OP_CIPHER | id::OP_SKEYMGMT) {
                continue;
            }
            let mut row = algorithm.functions;
            // SAFETY: tables end with number 0. Each function takes at most six arguments, of which those that are not
            // there are not read, and each is null or 0.
            unsafe {
                while (*row).function_id != 0 {
                    let call = std::mem::transmute::<*const c_void, Entry>((*row).function);
                    let outcome = call(null(), null(), null(), null(), null(), null());
                    let (names, number) = (algorithm.names, (*row).function_id);
                    let fine = needs_nothing(algorithm.operation, number) || outcome == 0;
                    assert!(fine, "{names:?}: function {number} returns {outcome}");
                    calls += 1;
                    row = row.add(1);
                }
            }
        }
        assert!(calls > 150, "{calls}");
    }
}
