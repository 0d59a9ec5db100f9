//! Management of keys of type "X25519".
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use wattlock::core::{Curve, EcKey, Error, Key, Kind};
use zeroize::Zeroizing;

use super::LEN;
use crate::child::{Pkey, PkeyCtx};
use crate::cipher::dispatch;
use crate::ec::version;
use crate::error::{Reason, entry, quietly, raise};
use crate::params::{Answers, END, List, Params, Table, describe};
use crate::provider::Provider;
use crate::sys::{
    self, OSSL_CALLBACK, OSSL_DISPATCH, OSSL_PARAM, PARAM_INTEGER, PARAM_OCTETS, PARAM_UTF8, id,
};

const NAME: &std::ffi::CStr = c"X25519";
/// RFC 7748 section 5: bits of the field less two, and what OpenSSL calls its strength.
const BITS: c_int = 253;
const SECURITY_BITS: c_int = 128;

type Secret = Zeroizing<[u8; LEN]>;

/// A key as it is at one moment.
#[derive(Default)]
pub struct Parts {
    public: Option<[u8; LEN]>,
    private: Option<Secret>,
    /// Whether the halves are known to belong together.
    paired: bool,
    key: OnceLock<Option<Key>>,
}

impl Parts {
    /// The public half.
    pub fn public(&self) -> Option<&[u8; LEN]> {
        self.public.as_ref()
    }

    /// What engines want; `None` without a private half.
    pub fn key(&self) -> Option<&Key> {
        let make = || {
            let scalar = self.private.as_ref()?.to_vec();
            Key::ec(Curve::X25519, EcKey { scalar, public: self.public?.to_vec() }).ok()
        };
        self.key.get_or_init(make).as_ref()
    }

    fn with_public(public: [u8; LEN]) -> Parts {
        Parts { public: Some(public), ..Parts::default() }
    }

    fn selected(&self, selection: c_int) -> Parts {
        let wants = |part: c_int| selection & part != 0;
        let public = self.public.filter(|_| wants(id::SELECT_PUBLIC_KEY));
        let private = self.private.clone().filter(|_| wants(id::SELECT_PRIVATE_KEY));
        let paired = self.paired && public.is_some() && private.is_some();
        Parts { public, private, paired, key: OnceLock::new() }
    }

    fn has(&self, selection: c_int) -> bool {
        (self.public.is_some() || selection & id::SELECT_PUBLIC_KEY == 0)
            && (self.private.is_some() || selection & id::SELECT_PRIVATE_KEY == 0)
    }

    fn same(&self, other: &Parts, selection: c_int) -> bool {
        if selection & id::SELECT_KEYPAIR == 0 {
            return true;
        }
        if let (Some(one), Some(two)) = (self.public, other.public)
            && selection & id::SELECT_PUBLIC_KEY != 0
        {
            return one == two;
        }
        if let (Some(one), Some(two)) = (&self.private, &other.private)
            && selection & id::SELECT_PRIVATE_KEY != 0
        {
            return subtle::ConstantTimeEq::ct_eq(&one[..], &two[..]).into();
        }
        false
    }

    fn list(&self, private: bool) -> List<'_> {
        let mut list = List::new();
        if let Some(public) = &self.public {
            list = list.octets(c"pub", public);
        }
        if let Some(scalar) = self.private.as_ref().filter(|_| private) {
            list = list.octets(c"priv", &scalar[..]);
        }
        list
    }

    fn child(&self, provider: &Provider) -> Option<Pkey> {
        let list = self.list(true);
        // SAFETY: the list is terminated and lives until the call is over.
        Pkey::from_data(&provider.child, NAME, id::SELECT_KEYPAIR, unsafe { Params::new(list.as_ptr()) })
    }

    /// The halves of a child's key.
    fn of_child(child: &Pkey) -> Option<Parts> {
        let (mut public, mut private) = ([0; LEN], Secret::default());
        let mut list = List::new().ask_octets(c"pub", &mut public).ask_octets(c"priv", &mut *private);
        // SAFETY: a live key and a terminated list with room for its answers.
        if unsafe { sys::EVP_PKEY_get_params(child.as_ptr(), list.as_mut_ptr()) } != 1 {
            return None;
        }
        let whole = (list.returned(c"pub"), list.returned(c"priv"));
        let private = (whole.1 == Some(LEN)).then_some(private);
        let paired = private.is_some();
        (whole.0 == Some(LEN)).then(|| Parts { public: Some(public), private, paired, key: OnceLock::new() })
    }

    fn generate(provider: &Provider) -> Result<Parts, Error> {
        let mut pair = Zeroizing::new([0; 2 * LEN]);
        provider.generate(Kind::X25519Generate, &mut *pair)?;
        let (mut public, mut private) = ([0; LEN], Secret::default());
        private.copy_from_slice(&pair[..LEN]);
        public.copy_from_slice(&pair[LEN..]);
        // As RFC 7748 section 5 decodes it: what others see of the key is what OpenSSL's own would show.
        private[0] &= 248;
        private[LEN - 1] = private[LEN - 1] & 127 | 64;
        Ok(Parts { public: Some(public), private: Some(private), paired: true, key: OnceLock::new() })
    }
}

/// What OpenSSL knows as a key of ours.
pub struct Held {
    provider: &'static Provider,
    parts: Mutex<Arc<Parts>>,
}

impl Held {
    /// The key as it is now.
    pub fn parts(&self) -> Arc<Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace(&self, parts: Parts) {
        *self.parts.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(parts);
    }

    fn pointer(provider: &'static Provider, parts: Parts) -> *mut c_void {
        Box::into_raw(Box::new(Held { provider, parts: Mutex::new(Arc::new(parts)) })).cast()
    }

    /// # Safety
    /// `key` is null, or key data of ours that is not freed.
    pub unsafe fn of<'a>(key: *const c_void) -> Option<&'a Held> {
        // SAFETY: the caller's.
        unsafe { key.cast::<Held>().as_ref() }
    }

    fn import(&self, selection: c_int, params: Params<'_>) -> bool {
        if selection & id::SELECT_KEYPAIR == 0 {
            return false;
        }
        let whole = |key| params.get(key).and_then(|one| one.octets()).and_then(|one| one.try_into().ok());
        let private = params.get(c"priv").filter(|_| selection & id::SELECT_PRIVATE_KEY != 0);
        let parts = match (whole(c"pub"), private) {
            (Some(public), None) => Some(Parts::with_public(public)),
            (Some(public), Some(_)) => whole(c"priv").map(|private| Parts {
                private: Some(Zeroizing::new(private)),
                ..Parts::with_public(public)
            }),
            _ => None,
        };
        // Half a key, or none, or of a wrong length: a child completes it or says what is wrong.
        let parts = parts.or_else(|| {
            let child = Pkey::from_data(&self.provider.child, NAME, selection, params)?;
            Parts::of_child(&child)
        });
        parts.map(|parts| self.replace(parts)).is_some()
    }

    /// The halves that are asked for belong together; that there are any has been seen.
    fn valid(&self, selection: c_int) -> bool {
        if selection & id::SELECT_KEYPAIR == 0 {
            return true;
        }
        let parts = self.parts();
        let pair = selection & id::SELECT_KEYPAIR == id::SELECT_KEYPAIR;
        if !parts.has(selection) || !pair || parts.paired {
            return parts.has(selection);
        }
        let Some(child) = parts.child(self.provider) else { return false };
        let checking = PkeyCtx::by_key(&self.provider.child, &child);
        // SAFETY: a live context.
        checking.is_some_and(|checking| unsafe { sys::EVP_PKEY_pairwise_check(checking.as_ptr()) == 1 })
    }

    fn set(&self, params: Params<'_>) -> bool {
        if let Some(point) = params.get(c"encoded-pub-key") {
            let Some(public) = point.octets().and_then(|point| point.try_into().ok()) else { return false };
            self.replace(Parts::with_public(public));
        }
        params.get(c"properties").is_none_or(|one| one.text().is_some())
    }

    fn get(&self, answers: &mut Answers<'_>) -> bool {
        let parts = self.parts();
        let nothing = [0; LEN];
        let public = parts.public.as_ref().unwrap_or(&nothing);
        answers.iter_mut().all(|mut one| match (one.key().to_bytes(), &parts.private) {
            (b"bits", _) => one.set_int(BITS),
            (b"security-bits", _) => one.set_int(SECURITY_BITS),
            (b"max-size", _) => one.set_int(LEN as c_int),
            (b"pub" | b"encoded-pub-key", _) => one.set_octet_string(public),
            (b"priv", Some(private)) => one.set_octet_string(&private[..]),
            _ => true,
        })
    }
}

/// A key to be generated.
struct Making {
    provider: &'static Provider,
    selection: c_int,
    /// What the key pair is to be derived from, with a child's help.
    material: Option<Zeroizing<Vec<u8>>>,
}

impl Making {
    fn set(&mut self, params: Params<'_>) -> bool {
        if let Some(group) = params.get(c"group")
            && !group.text().is_some_and(|name| name.eq_ignore_ascii_case("x25519"))
        {
            raise(Reason::PassedInvalidArgument);
            return false;
        }
        // A name that OpenSSL knows since 3.2.
        if let Some(material) = params.get(c"dhkem-ikm").filter(|_| version() >= (3, 2)) {
            let Some(bytes) = material.octets() else { return false };
            self.material = Some(Zeroizing::new(bytes.to_vec()));
        }
        true
    }

    fn make(&self) -> Option<Parts> {
        if self.selection & id::SELECT_KEYPAIR == 0 {
            return Some(Parts::default());
        }
        if let Some(material) = self.material.as_ref().filter(|material| !material.is_empty()) {
            return self.make_from(material);
        }
        let made = Parts::generate(self.provider);
        if made.is_err() {
            raise(Reason::FailedToGenerateKey);
        }
        made.ok()
    }

    fn make_from(&self, material: &[u8]) -> Option<Parts> {
        let making = PkeyCtx::by_name(&self.provider.child, NAME)?;
        let list = List::new().octets(c"dhkem-ikm", material);
        let mut key = null_mut();
        // SAFETY: a live context and a terminated list; on success the key is ours.
        unsafe {
            let at = making.as_ptr();
            let made = sys::EVP_PKEY_keygen_init(at) == 1
                && sys::EVP_PKEY_CTX_set_params(at, list.as_ptr()) > 0
                && sys::EVP_PKEY_generate(at, &raw mut key) == 1;
            Parts::of_child(&Pkey::adopt(key).filter(|_| made)?)
        }
    }
}

unsafe extern "C" fn new_key(context: *mut c_void) -> *mut c_void {
    // SAFETY: a live provctx.
    entry(|| Held::pointer(unsafe { Provider::of(context) }, Parts::default()))
}

unsafe extern "C" fn free_key(key: *mut c_void) {
    if !key.is_null() {
        // SAFETY: made by `Held::pointer`, freed once.
        entry(|| drop(unsafe { Box::from_raw(key.cast::<Held>()) }));
    }
}

unsafe extern "C" fn has(key: *const c_void, selection: c_int) -> c_int {
    // SAFETY: key data of ours.
    entry(|| c_int::from(unsafe { Held::of(key) }.is_some_and(|held| held.parts().has(selection))))
}

unsafe extern "C" fn matches(one: *const c_void, two: *const c_void, selection: c_int) -> c_int {
    entry(|| {
        // SAFETY: key data of ours.
        let (Some(one), Some(two)) = (unsafe { Held::of(one) }, unsafe { Held::of(two) }) else { return 0 };
        c_int::from(one.parts().same(&two.parts(), selection))
    })
}

unsafe extern "C" fn validate(key: *const c_void, selection: c_int, _: c_int) -> c_int {
    // SAFETY: key data of ours.
    entry(|| c_int::from(unsafe { Held::of(key) }.is_some_and(|held| held.valid(selection))))
}

unsafe extern "C" fn import(key: *mut c_void, selection: c_int, params: *const OSSL_PARAM) -> c_int {
    entry(|| {
        // SAFETY: key data of ours and a list.
        let (held, params) = unsafe { (Held::of(key), Params::new(params)) };
        c_int::from(held.is_some_and(|held| quietly(|| held.import(selection, params))))
    })
}

unsafe extern "C" fn export(
    key: *mut c_void,
    selection: c_int,
    callback: OSSL_CALLBACK,
    argument: *mut c_void,
) -> c_int {
    entry(|| {
        // SAFETY: key data of ours.
        let (Some(held), Some(callback)) = (unsafe { Held::of(key) }, callback) else { return 0 };
        if selection & id::SELECT_KEYPAIR == 0 {
            return 0;
        }
        let parts = held.parts();
        let list = parts.list(selection & id::SELECT_PRIVATE_KEY != 0);
        // SAFETY: the callback with its own argument; the list lives until it returns.
        unsafe { callback(list.as_ptr(), argument) }
    })
}

unsafe extern "C" fn duplicate(key: *const c_void, selection: c_int) -> *mut c_void {
    entry(|| {
        // SAFETY: key data of ours.
        let Some(held) = (unsafe { Held::of(key) }) else { return null_mut() };
        Held::pointer(held.provider, held.parts().selected(selection))
    })
}

unsafe extern "C" fn get_params(key: *mut c_void, params: *mut OSSL_PARAM) -> c_int {
    // SAFETY: key data of ours and a list to fill.
    entry(|| unsafe { c_int::from(Held::of(key).is_some_and(|held| held.get(&mut Answers::new(params)))) })
}

unsafe extern "C" fn set_params(key: *mut c_void, params: *const OSSL_PARAM) -> c_int {
    // SAFETY: key data of ours and a list.
    entry(|| unsafe { c_int::from(Held::of(key).is_some_and(|held| held.set(Params::new(params)))) })
}

unsafe extern "C" fn begin_making(
    context: *mut c_void,
    selection: c_int,
    params: *const OSSL_PARAM,
) -> *mut c_void {
    entry(|| {
        // SAFETY: a live provctx and a list.
        let (provider, params) = unsafe { (Provider::of(context), Params::new(params)) };
        let mut making = Making { provider, selection, material: None };
        if making.set(params) { Box::into_raw(Box::new(making)).cast() } else { null_mut() }
    })
}

unsafe extern "C" fn set_making(making: *mut c_void, params: *const OSSL_PARAM) -> c_int {
    entry(|| {
        // SAFETY: made by `begin_making`, used by one thread at a time; a list.
        unsafe {
            c_int::from(making.cast::<Making>().as_mut().is_some_and(|one| one.set(Params::new(params))))
        }
    })
}

unsafe extern "C" fn make(making: *mut c_void, _: OSSL_CALLBACK, _: *mut c_void) -> *mut c_void {
    entry(|| {
        // SAFETY: as above.
        let Some(making) = (unsafe { making.cast::<Making>().as_ref() }) else { return null_mut() };
        making.make().map_or(null_mut(), |parts| Held::pointer(making.provider, parts))
    })
}

unsafe extern "C" fn end_making(making: *mut c_void) {
    if !making.is_null() {
        // SAFETY: made by `begin_making`, freed once.
        entry(|| drop(unsafe { Box::from_raw(making.cast::<Making>()) }));
    }
}

static GETTABLE: Table<OSSL_PARAM, 8> = Table([
    describe(c"bits", PARAM_INTEGER),
    describe(c"security-bits", PARAM_INTEGER),
    describe(c"max-size", PARAM_INTEGER),
    describe(c"mandatory-digest", PARAM_UTF8),
    describe(c"encoded-pub-key", PARAM_OCTETS),
    describe(c"pub", PARAM_OCTETS),
    describe(c"priv", PARAM_OCTETS),
    END,
]);

static SETTABLE: Table<OSSL_PARAM, 3> =
    Table([describe(c"encoded-pub-key", PARAM_OCTETS), describe(c"properties", PARAM_UTF8), END]);

static MAKING: Table<OSSL_PARAM, 4> = Table([
    describe(c"group", PARAM_UTF8),
    describe(c"properties", PARAM_UTF8),
    describe(c"dhkem-ikm", PARAM_OCTETS),
    END,
]);

static MAKING_BEFORE_3_2: Table<OSSL_PARAM, 3> =
    Table([describe(c"group", PARAM_UTF8), describe(c"properties", PARAM_UTF8), END]);

static TYPES: Table<OSSL_PARAM, 3> =
    Table([describe(c"pub", PARAM_OCTETS), describe(c"priv", PARAM_OCTETS), END]);

unsafe extern "C" fn gettable(_: *mut c_void) -> *const OSSL_PARAM {
    GETTABLE.as_ptr()
}

unsafe extern "C" fn settable(_: *mut c_void) -> *const OSSL_PARAM {
    SETTABLE.as_ptr()
}

unsafe extern "C" fn making_settable(_: *mut c_void, _: *mut c_void) -> *const OSSL_PARAM {
    if version() >= (3, 2) { MAKING.as_ptr() } else { MAKING_BEFORE_3_2.as_ptr() }
}

unsafe extern "C" fn types(selection: c_int) -> *const OSSL_PARAM {
    if selection & id::SELECT_KEYPAIR == 0 { null() } else { TYPES.as_ptr() }
}

/// Key management of "X25519".
pub static FUNCTIONS: Table<OSSL_DISPATCH, 20> = dispatch![
    id::KEYMGMT_NEW => new_key,
    id::KEYMGMT_FREE => free_key,
    id::KEYMGMT_GEN_INIT => begin_making,
    id::KEYMGMT_GEN_SET_PARAMS => set_making,
    id::KEYMGMT_GEN_SETTABLE_PARAMS => making_settable,
    id::KEYMGMT_GEN => make,
    id::KEYMGMT_GEN_CLEANUP => end_making,
    id::KEYMGMT_GET_PARAMS => get_params,
    id::KEYMGMT_GETTABLE_PARAMS => gettable,
    id::KEYMGMT_SET_PARAMS => set_params,
    id::KEYMGMT_SETTABLE_PARAMS => settable,
    id::KEYMGMT_HAS => has,
    id::KEYMGMT_MATCH => matches,
    id::KEYMGMT_VALIDATE => validate,
    id::KEYMGMT_IMPORT => import,
    id::KEYMGMT_IMPORT_TYPES => types,
    id::KEYMGMT_EXPORT => export,
    id::KEYMGMT_EXPORT_TYPES => types,
    id::KEYMGMT_DUP => duplicate,
];
