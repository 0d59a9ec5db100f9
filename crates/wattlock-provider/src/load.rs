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
use crate::provider::{Core, Provider, ThreadStart};
use crate::settings::{KEYS, Settings};
use crate::sys::{
    BioReadEx, BioWriteEx, OSSL_ALGORITHM, OSSL_CALLBACK, OSSL_CORE_HANDLE, OSSL_DISPATCH, OSSL_PARAM,
    PARAM_INTEGER, PARAM_OCTETS_PTR, PARAM_UTF8_PTR, UNMODIFIED, id,
};
use crate::table::{self, FunctionTable};
use crate::{cipher, kdf, mlkem, rsa, skey, x25519};

/// Everything there is.
const EVERYTHING: &[&[Algorithm]] = &[
    cipher::ALGORITHMS,
    skey::ALGORITHMS,
    rsa::ALGORITHMS,
    ec::ALGORITHMS,
    x25519::ALGORITHMS,
    mlkem::ALGORITHMS,
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
        let (mut get_params, mut core) = (None::<GetParams>, Core::default());
        let mut at = functions;
        // SAFETY: OpenSSL's table ends with number 0; functions have the types of their numbers.
        unsafe {
            while (*at).function_id != 0 {
                match (*at).function_id {
                    id::CORE_GET_PARAMS => {
                        get_params = std::mem::transmute::<*const c_void, Option<GetParams>>((*at).function)
                    }
                    id::CORE_THREAD_START => {
                        core.thread_start =
                            std::mem::transmute::<*const c_void, Option<ThreadStart>>((*at).function);
                    }
                    id::CORE_BIO_READ_EX => {
                        core.bio_read =
                            std::mem::transmute::<*const c_void, Option<BioReadEx>>((*at).function);
                    }
                    id::CORE_BIO_WRITE_EX => {
                        core.bio_write =
                            std::mem::transmute::<*const c_void, Option<BioWriteEx>>((*at).function);
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
        let made = unsafe { Provider::new(handle, functions, EVERYTHING, settings, openssl, core) };
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
        let known = on.all(|(_, name)| groups::tls(&provider.child, name, &callback));
        let own = !provider.offer.has("ml-kem") || mlkem::groups(&callback);
        c_int::from(known && own)
    })
}

/// Known answers are tried per kind when it is first used; asked for a self-test, all that is offered is tried at once.
extern "C" fn self_test(provider: Shared<'static, Provider>) -> c_int {
    entry(|| c_int::from(provider.get().is_some_and(Provider::prove_everything)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{OSSL_LIB_CTX, OSSL_PROVIDER};

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
            id::OP_CIPHER => matches!(
                function,
                id::CIPHER_FREECTX
                    | id::CIPHER_GET_PARAMS
                    | id::CIPHER_GETTABLE_PARAMS
                    | id::CIPHER_GETTABLE_CTX_PARAMS
                    | id::CIPHER_SETTABLE_CTX_PARAMS
            ),
            id::OP_SKEYMGMT => matches!(function, id::SKEYMGMT_FREE | id::SKEYMGMT_IMP_SETTABLE_PARAMS),
            id::OP_KDF => matches!(function, id::KDF_FREECTX | id::KDF_RESET),
            id::OP_KEM => matches!(function, id::KEM_FREECTX | id::KEM_SETTABLE_CTX_PARAMS),
            id::OP_ENCODER => matches!(
                function,
                id::ENCODER_FREECTX | id::ENCODER_SETTABLE_CTX_PARAMS | id::ENCODER_DOES_SELECTION
            ),
            id::OP_DECODER => matches!(function, id::DECODER_FREECTX | id::DECODER_DOES_SELECTION),
            _ => matches!(function, id::PROVIDER_TEARDOWN | id::PROVIDER_GETTABLE_PARAMS),
        }
    }

    unsafe extern "C" {
        fn OSSL_LIB_CTX_new() -> *mut OSSL_LIB_CTX;
        fn OSSL_LIB_CTX_free(context: *mut OSSL_LIB_CTX);
        fn OSSL_PROVIDER_add_builtin(
            context: *mut OSSL_LIB_CTX,
            name: *const c_char,
            init: unsafe extern "C" fn(
                *const OSSL_CORE_HANDLE,
                *const OSSL_DISPATCH,
                *mut *const OSSL_DISPATCH,
                *mut *mut c_void,
            ) -> c_int,
        ) -> c_int;
        fn OSSL_PROVIDER_load(context: *mut OSSL_LIB_CTX, name: *const c_char) -> *mut OSSL_PROVIDER;
        fn OSSL_PROVIDER_unload(provider: *mut OSSL_PROVIDER) -> c_int;
        fn OSSL_PROVIDER_get0_provider_ctx(provider: *const OSSL_PROVIDER) -> *mut c_void;
    }

    /// Rows of a table: numbers and functions.
    fn rows(table: *const OSSL_DISPATCH) -> Vec<(c_int, *const c_void)> {
        let mut rows = Vec::new();
        let mut at = table;
        // SAFETY: tables end with number 0.
        unsafe {
            while (*at).function_id != 0 {
                rows.push(((*at).function_id, (*at).function));
                at = at.add(1);
            }
        }
        rows
    }

    /// A function of a table, called with up to six arguments; those that it does not take are not read.
    ///
    /// # Safety
    /// The arguments are what it takes.
    unsafe fn call(function: *const c_void, arguments: &[*const c_void]) -> *mut c_void {
        type Entry = unsafe extern "C" fn(
            *const c_void,
            *const c_void,
            *const c_void,
            *const c_void,
            *const c_void,
            *const c_void,
        ) -> *mut c_void;
        let at = |index: usize| arguments.get(index).copied().unwrap_or(null());
        // SAFETY: the caller's.
        unsafe {
            let entry = std::mem::transmute::<*const c_void, Entry>(function);
            entry(at(0), at(1), at(2), at(3), at(4), at(5))
        }
    }

    /// An algorithm's functions.
    struct Functions(Vec<(c_int, *const c_void)>);

    impl Functions {
        fn of(algorithm: &Algorithm) -> Functions {
            Functions(rows(algorithm.functions))
        }

        /// # Safety
        /// As [`call`].
        unsafe fn call(&self, number: c_int, arguments: &[*const c_void]) -> *mut c_void {
            let row = self.0.iter().find(|(one, _)| *one == number);
            // SAFETY: the caller's.
            row.map_or(std::ptr::null_mut(), |(_, function)| unsafe { call(*function, arguments) })
        }
    }

    /// Whether what came back as a whole register is the number 0.
    fn fails(outcome: *mut c_void) -> bool {
        outcome.addr() as c_int == 0
    }

    fn number(value: c_int) -> *const c_void {
        std::ptr::without_provenance(value as u32 as usize)
    }

    /// All that can be done with a key and nothing else.
    ///
    /// # Safety
    /// A live key of theirs.
    unsafe fn use_key(functions: &Functions, key: *const c_void) {
        let all = number(id::SELECT_ALL);
        // SAFETY: the caller's; the rest is missing.
        unsafe {
            for selection in [number(0), all, number(id::SELECT_PRIVATE_KEY), number(id::SELECT_PUBLIC_KEY)] {
                functions.call(id::KEYMGMT_HAS, &[key, selection]);
                functions.call(id::KEYMGMT_VALIDATE, &[key, selection]);
                functions.call(id::KEYMGMT_MATCH, &[key, key, selection]);
                assert!(fails(functions.call(id::KEYMGMT_MATCH, &[key, null(), selection])));
                assert!(fails(functions.call(id::KEYMGMT_MATCH, &[null(), key, selection])));
                assert!(fails(functions.call(id::KEYMGMT_EXPORT, &[key, selection])));
                assert!(fails(functions.call(id::KEYMGMT_IMPORT, &[key, selection])));
                let copy = functions.call(id::KEYMGMT_DUP, &[key, selection]);
                functions.call(id::KEYMGMT_FREE, &[copy]);
            }
            functions.call(id::KEYMGMT_GET_PARAMS, &[key]);
            functions.call(id::KEYMGMT_SET_PARAMS, &[key]);
        }
    }

    /// Makes a key with parameters, without a callback for its progress.
    ///
    /// # Safety
    /// A live provctx.
    unsafe fn generated(
        functions: &Functions,
        provider: *const c_void,
        params: &[OSSL_PARAM],
    ) -> *mut c_void {
        // SAFETY: the caller's; a terminated list.
        unsafe {
            let first = [provider, number(id::SELECT_KEYPAIR), params.as_ptr().cast()];
            let begun = functions.call(id::KEYMGMT_GEN_INIT, &first);
            assert!(!begun.is_null());
            functions.call(id::KEYMGMT_GEN_SET_PARAMS, &[begun]);
            assert!(fails(functions.call(id::KEYMGMT_GEN_SET_TEMPLATE, &[begun])));
            let key = functions.call(id::KEYMGMT_GEN, &[begun]);
            functions.call(id::KEYMGMT_GEN_CLEANUP, &[begun]);
            key
        }
    }

    /// Of an operation with contexts: those functions that make, copy and free one, and those that begin it with a key.
    fn contexts(operation: c_int) -> Option<(c_int, c_int, c_int, &'static [c_int])> {
        Some(match operation {
            id::OP_CIPHER => (id::CIPHER_NEWCTX, id::CIPHER_DUPCTX, id::CIPHER_FREECTX, &[]),
            id::OP_KDF => (id::KDF_NEWCTX, id::KDF_DUPCTX, id::KDF_FREECTX, &[]),
            id::OP_KEYEXCH => {
                (id::KEYEXCH_NEWCTX, id::KEYEXCH_DUPCTX, id::KEYEXCH_FREECTX, &[id::KEYEXCH_INIT])
            }
            id::OP_KEM => (
                id::KEM_NEWCTX,
                id::KEM_DUPCTX,
                id::KEM_FREECTX,
                &[id::KEM_ENCAPSULATE_INIT, id::KEM_DECAPSULATE_INIT],
            ),
            id::OP_SIGNATURE => (
                id::SIGNATURE_NEWCTX,
                id::SIGNATURE_DUPCTX,
                id::SIGNATURE_FREECTX,
                &[id::SIGNATURE_SIGN_INIT, id::SIGNATURE_VERIFY_INIT, id::SIGNATURE_VERIFY_RECOVER_INIT],
            ),
            id::OP_ASYM_CIPHER => (
                id::ASYM_CIPHER_NEWCTX,
                id::ASYM_CIPHER_DUPCTX,
                id::ASYM_CIPHER_FREECTX,
                &[id::ASYM_CIPHER_ENCRYPT_INIT, id::ASYM_CIPHER_DECRYPT_INIT],
            ),
            _ => return None,
        })
    }

    /// All that can be done with a context and nothing else.
    ///
    /// # Safety
    /// A live context of theirs.
    unsafe fn use_context(operation: c_int, functions: &Functions, context: *const c_void) {
        let Some((new, dup, free, _)) = contexts(operation) else { return };
        for (number, function) in &functions.0 {
            let other = [new, dup, free].contains(number)
                || operation == id::OP_CIPHER && *number == id::CIPHER_GET_PARAMS;
            if !other {
                // SAFETY: the caller's; the rest is missing.
                unsafe { call(*function, &[context]) };
            }
        }
        // SAFETY: the caller's; a copy is freed once.
        unsafe {
            let copy = functions.call(dup, &[context]);
            functions.call(free, &[copy]);
        }
    }

    #[test]
    fn a_key_or_a_context_alone_never_ends_the_program() {
        // SAFETY: public calls with what they ask for; every key and context is freed once, before the provider goes.
        unsafe {
            let libctx = OSSL_LIB_CTX_new();
            let name = c"wattlock-alone".as_ptr();
            assert_eq!(OSSL_PROVIDER_add_builtin(libctx, name, OSSL_provider_init), 1);
            // (Other providers do what is not done here.)
            let others = OSSL_PROVIDER_load(libctx, c"default".as_ptr());
            let loaded = OSSL_PROVIDER_load(libctx, name);
            assert!(!others.is_null() && !loaded.is_null());
            let provider: *const c_void = OSSL_PROVIDER_get0_provider_ctx(loaded);
            let mut group = *b"P-256";
            let group = [
                OSSL_PARAM {
                    data: group.as_mut_ptr().cast(),
                    data_size: group.len(),
                    ..describe(c"group", crate::sys::PARAM_UTF8)
                },
                END,
            ];
            let all = || EVERYTHING.iter().copied().flatten();
            let mut keys = Vec::new();
            for algorithm in all().filter(|algorithm| algorithm.operation == id::OP_KEYMGMT) {
                let functions = Functions::of(algorithm);
                let empty = functions.call(id::KEYMGMT_NEW, &[provider]);
                use_key(&functions, empty);
                let params = if algorithm.group == "ec" { &group[..] } else { &group[1..] };
                let full = generated(&functions, provider, params);
                assert!(!full.is_null(), "{:?}", algorithm.names);
                use_key(&functions, full);
                keys.push((algorithm.group, functions, [empty, full]));
            }
            for algorithm in all() {
                let Some((new, _, free, begin)) = contexts(algorithm.operation) else { continue };
                let functions = Functions::of(algorithm);
                let context = functions.call(new, &[provider]);
                assert!(!context.is_null(), "{:?}", algorithm.names);
                use_context(algorithm.operation, &functions, context);
                if algorithm.operation == id::OP_KDF {
                    // A room that has no end, and nothing to derive from.
                    let (mut byte, endless) = (0_u8, std::ptr::without_provenance(usize::MAX));
                    let room = std::ptr::from_mut(&mut byte).cast_const().cast();
                    assert!(fails(functions.call(id::KDF_DERIVE, &[context, room, endless])));
                }
                for (_, _, both) in keys.iter().filter(|(group, _, _)| *group == algorithm.group) {
                    for key in both {
                        for begin in begin {
                            functions.call(*begin, &[context, *key]);
                            use_context(algorithm.operation, &functions, context);
                        }
                    }
                }
                functions.call(free, &[context]);
            }
            for (_, functions, both) in keys {
                for key in both {
                    functions.call(id::KEYMGMT_FREE, &[key]);
                }
            }
            assert_eq!((OSSL_PROVIDER_unload(loaded), OSSL_PROVIDER_unload(others)), (1, 1));
            OSSL_LIB_CTX_free(libctx);
        }
    }

    #[test]
    fn a_missing_key_or_context_fails_the_call() {
        let all = EVERYTHING.iter().copied().flatten();
        let all = all.map(|algorithm| (algorithm.names, algorithm.operation, algorithm.functions));
        let mut calls = 0;
        for (names, operation, table) in all.chain([(c"Wattlock", 0, FUNCTIONS.as_ptr())]) {
            for (number, function) in rows(table) {
                // SAFETY: every argument is null or 0.
                let outcome = unsafe { call(function, &[]) };
                let fine = needs_nothing(operation, number) || fails(outcome);
                assert!(fine, "{names:?}: function {number} returns {outcome:?}");
                calls += 1;
            }
        }
        assert!(calls > 440, "{calls}");
    }
}
