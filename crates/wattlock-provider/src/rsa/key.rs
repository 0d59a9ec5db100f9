//! Key management for `RSA` and `RSA-PSS`. A key is the other provider's key, plus what the accelerated operations
//! need of it, taken out when first used.
//!
//! A key is empty until it is imported or generated, and never changes after that: copies share it.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use subtle::ConstantTimeEq;
use wattlock::core::{self as core, Kind, RsaKey};
use zeroize::Zeroizing;

use super::FAST_MAX;
use super::mirror::entry as param;
use super::pad::{HASHES, Hash};
use super::sign::Facts;
use crate::child::{Child, Digest, Pkey, PkeyCtx};
use crate::cipher::dispatch;
use crate::error::{entry, quietly};
use crate::params::{END, Params, Recorded, Table, describe};
use crate::provider::Provider;
use crate::sys::{
    self, EVP_PKEY_CTX, OSSL_CALLBACK, OSSL_DISPATCH, OSSL_PARAM, PARAM_INTEGER, PARAM_UNSIGNED, PARAM_UTF8,
    UNMODIFIED, id,
};

/// Parts of an RSA key that can be selected.
const POSSIBLE: c_int = id::SELECT_KEYPAIR | id::SELECT_OTHER_PARAMETERS;

/// What OpenSSL calls a key.
pub struct Key {
    provider: &'static Provider,
    pss: bool,
    filled: OnceLock<Arc<Filled>>,
}

struct Filled {
    pkey: Pkey,
    size: usize,
    has_n: bool,
    has_e: bool,
    has_d: bool,
    /// The shortest salt that a restricted PSS key allows.
    min_salt: Option<i64>,
    fast: OnceLock<Option<Fast>>,
    digests: [OnceLock<Option<Digest>>; HASHES.len()],
    exponent_hash: OnceLock<Option<Zeroizing<[u8; 32]>>>,
    /// Verifications that are set up and not in use. The lock is held to put one in or take one out only.
    ready: Mutex<Vec<(Facts, PkeyCtx)>>,
}

/// Most verifications that a key keeps ready.
const READY: usize = 4;

/// The private half in the runtime's terms.
pub struct Fast {
    /// The private operation of this size.
    pub kind: Kind,
    /// The key.
    pub key: core::Key,
}

impl Key {
    fn empty(provider: &'static Provider, pss: bool) -> Key {
        Key { provider, pss, filled: OnceLock::new() }
    }

    fn fill(&self, pkey: Pkey) -> bool {
        self.filled.set(Arc::new(Filled::new(pkey))).is_ok()
    }

    /// The other provider's key.
    pub fn elsewhere(&self) -> Option<&Pkey> {
        self.filled.get().map(|filled| &filled.pkey)
    }

    /// Where the other provider works.
    pub fn child(&self) -> &'static Child {
        &self.provider.child
    }

    /// Whether the key is for PSS only.
    pub fn is_pss(&self) -> bool {
        self.pss
    }

    /// Bytes of the modulus; 0 for an empty key.
    pub fn size(&self) -> usize {
        self.filled.get().map_or(0, |filled| filled.size)
    }

    /// Whether it has a private half.
    pub fn is_private(&self) -> bool {
        self.filled.get().is_some_and(|filled| filled.has_d)
    }

    /// The shortest salt that a restricted PSS key allows.
    pub fn min_salt(&self) -> Option<i64> {
        self.filled.get().and_then(|filled| filled.min_salt)
    }

    /// What the runtime needs, if it can do this key's private operation.
    pub fn fast(&self) -> Option<&Fast> {
        let filled = self.filled.get()?;
        filled.fast.get_or_init(|| filled.accelerate()).as_ref()
    }

    /// A hash function, fetched once for this key.
    pub fn digest(&self, place: usize) -> Option<&Digest> {
        let digests = &self.filled.get()?.digests;
        let hash: &Hash = HASHES.get(place)?;
        digests[place].get_or_init(|| self.child().digest(hash.fetch)).as_ref()
    }

    /// SHA-256 of the private exponent as long as the modulus.
    pub fn exponent_hash(&self, sha256: &Digest) -> Option<&[u8; 32]> {
        let filled = self.filled.get()?;
        let make = || {
            let d = filled.number(c"d")?;
            let zeros = [0_u8; 2048];
            let pad = zeros.get(..filled.size.checked_sub(d.len())?)?;
            let mut hash = Zeroizing::new([0; 32]);
            sha256.hash(&[pad, &d], &mut *hash).then_some(hash)
        };
        filled.exponent_hash.get_or_init(make).as_deref()
    }

    /// The private operation on the runtime, `size` bytes to `size` bytes; `false` if it cannot or did not.
    #[must_use]
    pub fn perform(&self, input: &[u8], output: &mut [u8]) -> bool {
        let Some(fast) = self.fast() else { return false };
        let size = self.size();
        output.len() == size
            && self.provider.perform(fast.kind, &fast.key, input, output).is_ok_and(|len| len == size)
    }

    /// A verification with these parameters that was kept: making one costs a tenth of a verification.
    pub fn ready(&self, facts: Facts) -> Option<PkeyCtx> {
        let mut ready = self.filled.get()?.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let place = ready.iter().position(|(kept, _)| *kept == facts)?;
        Some(ready.swap_remove(place).1)
    }

    /// Keeps a verification for the next one with the same parameters.
    pub fn keep(&self, facts: Facts, context: PkeyCtx) {
        let Some(filled) = self.filled.get() else { return };
        let mut ready = filled.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let spare = if ready.len() < READY { None } else { Some(ready.remove(0)) };
        ready.push((facts, context));
        drop(ready);
        drop(spare);
    }

    fn has(&self, selection: c_int) -> bool {
        if selection & POSSIBLE == 0 {
            return true;
        }
        let filled = self.filled.get();
        let misses = |part, have: fn(&Filled) -> bool| {
            selection & part != 0 && !filled.is_some_and(|filled| have(filled))
        };
        !misses(id::SELECT_KEYPAIR, |filled| filled.has_n)
            && !misses(id::SELECT_PUBLIC_KEY, |filled| filled.has_e)
            && !misses(id::SELECT_PRIVATE_KEY, |filled| filled.has_d)
    }

    fn matches(&self, other: &Key, selection: c_int) -> bool {
        let (Some(one), Some(two)) = (self.filled.get(), other.filled.get()) else { return false };
        let same = |name| match (one.number(name), two.number(name)) {
            (Some(one), Some(two)) => Some(bool::from(one.ct_eq(&two))),
            _ => None,
        };
        if one.has_e != two.has_e || same(c"e") == Some(false) {
            return false;
        }
        if selection & id::SELECT_KEYPAIR == 0 {
            return true;
        }
        let public = if selection & id::SELECT_PUBLIC_KEY != 0 { same(c"n") } else { None };
        let private = || if selection & id::SELECT_PRIVATE_KEY != 0 { same(c"d") } else { None };
        public.or_else(private).unwrap_or(false)
    }

    fn validate(&self, selection: c_int, quick: bool) -> bool {
        if selection & POSSIBLE == 0 {
            return true;
        }
        let Some(context) = self.elsewhere().and_then(|pkey| PkeyCtx::by_key(self.child(), pkey)) else {
            return false;
        };
        let context = context.as_ptr();
        // SAFETY: a live context.
        unsafe {
            if selection & id::SELECT_KEYPAIR == id::SELECT_KEYPAIR {
                return sys::EVP_PKEY_pairwise_check(context) == 1;
            }
            let public = || match quick {
                true => sys::EVP_PKEY_public_check_quick(context),
                false => sys::EVP_PKEY_public_check(context),
            };
            (selection & id::SELECT_PRIVATE_KEY == 0 || sys::EVP_PKEY_private_check(context) == 1)
                && (selection & id::SELECT_PUBLIC_KEY == 0 || public() == 1)
        }
    }

    fn duplicate(&self, selection: c_int) -> Option<Key> {
        let filled = self.filled.get()?;
        // Nobody gets an empty key by duplication.
        if selection & id::SELECT_KEYPAIR == 0 {
            return None;
        }
        let copy = Key::empty(self.provider, self.pss);
        let whole = (selection & id::SELECT_PRIVATE_KEY != 0 || !filled.has_d)
            && (selection & id::SELECT_OTHER_PARAMETERS != 0 || !self.pss);
        if whole {
            copy.filled.set(filled.clone()).ok()?;
            return Some(copy);
        }
        let part =
            with_data(&filled.pkey, selection, |params| made(self.child(), self.pss, selection, params));
        copy.fill(part?).then_some(copy)
    }
}

/// A key made from parameters, with its primes in their order.
///
/// OpenSSL 3.5 reverses the primes behind the second when it takes a key from parameters. Such a key still works, because
/// OpenSSL checks each result and falls back to `d`, but slowly, and `EVP_PKEY_check` refuses it. Taken out and in once
/// more it is reversed twice, that is, not at all. To other versions this changes nothing; with three primes there is
/// nothing to reverse.
fn made(child: &Child, pss: bool, selection: c_int, params: Params<'_>) -> Option<Pkey> {
    let pkey = Pkey::from_data(child, name(pss), selection, params)?;
    if has_four_primes(&pkey) { remade(&pkey, child, pss, POSSIBLE) } else { Some(pkey) }
}

/// A key with these parts of another, as OpenSSL makes it from parameters.
fn remade(pkey: &Pkey, child: &Child, pss: bool, selection: c_int) -> Option<Pkey> {
    with_data(pkey, selection, |params| Pkey::from_data(child, name(pss), selection, params))
}

/// Has something done with these parts of a key as parameters.
fn with_data<T>(pkey: &Pkey, selection: c_int, act: impl FnOnce(Params<'_>) -> Option<T>) -> Option<T> {
    let mut list = null_mut();
    // SAFETY: a live key; on success the list is ours, to be freed once.
    unsafe {
        if sys::EVP_PKEY_todata(pkey.as_ptr(), selection, &raw mut list) != 1 {
            return None;
        }
        act(Recorded::adopt(list).params())
    }
}

fn has_four_primes(pkey: &Pkey) -> bool {
    let mut list = [describe(c"rsa-factor4", PARAM_UNSIGNED), END];
    // SAFETY: a live key and a list to fill that is ended.
    let answered = unsafe { sys::EVP_PKEY_get_params(pkey.as_ptr(), list.as_mut_ptr()) == 1 };
    answered && list[0].return_size != UNMODIFIED
}

fn name(pss: bool) -> &'static CStr {
    if pss { c"RSA-PSS" } else { c"RSA" }
}

impl Filled {
    fn new(pkey: Pkey) -> Filled {
        let mut filled = Filled {
            size: pkey.size(),
            pkey,
            has_n: false,
            has_e: false,
            has_d: false,
            min_salt: None,
            fast: OnceLock::new(),
            digests: [const { OnceLock::new() }; HASHES.len()],
            exponent_hash: OnceLock::new(),
            ready: Mutex::default(),
        };
        let mut salt: c_int = 0;
        let mut list = [
            describe(c"n", PARAM_UNSIGNED),
            describe(c"e", PARAM_UNSIGNED),
            describe(c"d", PARAM_UNSIGNED),
            param(c"saltlen", PARAM_INTEGER, (&raw mut salt).cast(), size_of::<c_int>()),
            END,
        ];
        if filled.ask(&mut list) {
            let [n, e, d, min_salt, _] = list.map(|param| param.return_size != UNMODIFIED);
            (filled.has_n, filled.has_e, filled.has_d) = (n, e, d);
            filled.min_salt = min_salt.then_some(i64::from(salt));
        }
        filled
    }

    fn ask(&self, list: &mut [OSSL_PARAM]) -> bool {
        // SAFETY: a live key; callers end their lists.
        unsafe { sys::EVP_PKEY_get_params(self.pkey.as_ptr(), list.as_mut_ptr()) == 1 }
    }

    /// A number of the key's, big-endian; `None` if it has none of that name.
    fn number(&self, key: &CStr) -> Option<Zeroizing<Vec<u8>>> {
        let mut list = [param(key, PARAM_UNSIGNED, null_mut(), 0), END];
        if !self.ask(&mut list) || list[0].return_size == UNMODIFIED {
            return None;
        }
        let mut room = Zeroizing::new(vec![0; list[0].return_size.max(1)]);
        list[0] = param(key, PARAM_UNSIGNED, room.as_mut_ptr().cast(), room.len());
        if !self.ask(&mut list) || list[0].return_size == UNMODIFIED {
            return None;
        }
        while room.last() == Some(&0) {
            room.pop();
        }
        room.reverse();
        Some(room)
    }

    fn accelerate(&self) -> Option<Fast> {
        let kind = match self.pkey.bits() {
            2048 => Kind::Rsa2048Private,
            3072 => Kind::Rsa3072Private,
            4096 => Kind::Rsa4096Private,
            _ => return None,
        };
        if self.size > FAST_MAX || !self.has_d || self.number(c"rsa-factor3").is_some() {
            return None;
        }
        let part = |key| self.number(key).map(|mut number| std::mem::take(&mut *number));
        let key = RsaKey {
            n: part(c"n")?,
            e: part(c"e")?,
            d: part(c"d")?,
            p: part(c"rsa-factor1")?,
            q: part(c"rsa-factor2")?,
            dp: part(c"rsa-exponent1")?,
            dq: part(c"rsa-exponent2")?,
            qinv: part(c"rsa-coefficient1")?,
        };
        Some(Fast { kind, key: core::Key::rsa(key).ok()? })
    }
}

/// The key that OpenSSL names by this pointer.
///
/// # Safety
/// `key` came from one of the functions below and is not freed.
unsafe fn of<'a>(key: *const c_void) -> &'a Key {
    // SAFETY: the caller's.
    unsafe { &*key.cast::<Key>() }
}

/// A reference of one's own to the key that OpenSSL names by this pointer.
///
/// # Safety
/// As [`of`].
pub unsafe fn share(key: *const c_void) -> Arc<Key> {
    // SAFETY: keys are given out as `Arc::into_raw`.
    unsafe {
        Arc::increment_strong_count(key.cast::<Key>());
        Arc::from_raw(key.cast::<Key>())
    }
}

fn give(key: Key) -> *mut c_void {
    Arc::into_raw(Arc::new(key)).cast_mut().cast()
}

unsafe extern "C" fn new_key<const PSS: bool>(context: *mut c_void) -> *mut c_void {
    // SAFETY: a live provctx, which OpenSSL keeps as long as it has keys of ours.
    entry(|| give(Key::empty(unsafe { Provider::of(context) }, PSS)))
}

unsafe extern "C" fn free_key(key: *mut c_void) {
    if !key.is_null() {
        // SAFETY: given out by `give`, freed once.
        entry(|| drop(unsafe { Arc::from_raw(key.cast_const().cast::<Key>()) }));
    }
}

/// Takes over a key object by reference. Only a decoder or a store of ours could offer one.
unsafe extern "C" fn load<const PSS: bool>(reference: *const c_void, len: usize) -> *mut c_void {
    entry(|| {
        if reference.is_null() || len != size_of::<*mut c_void>() {
            return null_mut();
        }
        // SAFETY: a reference of this size holds the address of a key of ours, by the contract of provider-keymgmt(7).
        unsafe {
            let place = reference.cast_mut().cast::<*mut c_void>();
            let key = *place;
            if key.is_null() || of(key).pss != PSS {
                return null_mut();
            }
            *place = null_mut();
            key
        }
    })
}

unsafe extern "C" fn has(key: *const c_void, selection: c_int) -> c_int {
    // SAFETY: null or a live key.
    entry(|| c_int::from(!key.is_null() && unsafe { of(key) }.has(selection)))
}

unsafe extern "C" fn matches(one: *const c_void, two: *const c_void, selection: c_int) -> c_int {
    // SAFETY: two live keys.
    entry(|| c_int::from(unsafe { of(one).matches(of(two), selection) }))
}

unsafe extern "C" fn validate(key: *const c_void, selection: c_int, check: c_int) -> c_int {
    const QUICK: c_int = 1;
    // SAFETY: a live key.
    entry(|| c_int::from(unsafe { of(key) }.validate(selection, check == QUICK)))
}

unsafe extern "C" fn import(key: *mut c_void, selection: c_int, params: *const OSSL_PARAM) -> c_int {
    entry(|| {
        if key.is_null() || selection & POSSIBLE == 0 {
            return 0;
        }
        // SAFETY: a live key and a list.
        let (key, params) = unsafe { (of(key), Params::new(params)) };
        let work = || made(key.child(), key.pss, selection, params).is_some_and(|pkey| key.fill(pkey));
        c_int::from(quietly(work))
    })
}

unsafe extern "C" fn export(
    key: *mut c_void,
    selection: c_int,
    callback: OSSL_CALLBACK,
    argument: *mut c_void,
) -> c_int {
    entry(|| {
        if key.is_null() || selection & POSSIBLE == 0 {
            return 0;
        }
        // SAFETY: a live key.
        let key = unsafe { of(key) };
        let Some(pkey) = key.elsewhere() else { return 0 };
        // Whoever takes it over (an encoder, most often) makes a key of the parameters, and reverses what [`made`] is
        // about. So it gets them reversed.
        let turned = match selection & id::SELECT_PRIVATE_KEY != 0 && has_four_primes(pkey) {
            true => match remade(pkey, key.child(), key.pss, POSSIBLE) {
                None => return 0,
                turned => turned,
            },
            false => None,
        };
        let pkey = turned.as_ref().unwrap_or(pkey);
        // SAFETY: a live key; the caller's callback with its own argument.
        unsafe { sys::EVP_PKEY_export(pkey.as_ptr(), selection, callback, argument) }
    })
}

unsafe extern "C" fn get_params(key: *mut c_void, params: *mut OSSL_PARAM) -> c_int {
    entry(|| {
        // SAFETY: a live key and a list to fill.
        unsafe {
            let pkey = of(key).elsewhere();
            pkey.map_or(0, |pkey| sys::EVP_PKEY_get_params(pkey.as_ptr(), params))
        }
    })
}

unsafe extern "C" fn duplicate(key: *const c_void, selection: c_int) -> *mut c_void {
    // SAFETY: a live key.
    entry(|| unsafe { of(key) }.duplicate(selection).map_or(null_mut(), give))
}

unsafe extern "C" fn operation_name(_: c_int) -> *const std::ffi::c_char {
    c"RSA".as_ptr()
}

/// A key that is being generated.
struct Making {
    provider: &'static Provider,
    pss: bool,
    context: PkeyCtx,
}

impl Making {
    fn set(&self, params: Params<'_>) -> bool {
        // SAFETY: a live context and list.
        params.is_empty()
            || unsafe { sys::EVP_PKEY_CTX_set_params(self.context.as_ptr(), params.as_ptr()) > 0 }
    }
}

unsafe extern "C" fn make_init<const PSS: bool>(
    context: *mut c_void,
    selection: c_int,
    params: *const OSSL_PARAM,
) -> *mut c_void {
    entry(|| {
        if selection & id::SELECT_KEYPAIR == 0 {
            return null_mut();
        }
        // SAFETY: a live provctx, which outlives the operation, and a list.
        let (provider, params): (&'static Provider, _) =
            unsafe { (Provider::of(context), Params::new(params)) };
        let Some(context) = PkeyCtx::by_name(&provider.child, name(PSS)) else { return null_mut() };
        // SAFETY: a live context.
        if unsafe { sys::EVP_PKEY_keygen_init(context.as_ptr()) } != 1 {
            return null_mut();
        }
        let making = Making { provider, pss: PSS, context };
        if !making.set(params) {
            return null_mut();
        }
        Box::into_raw(Box::new(making)).cast()
    })
}

unsafe extern "C" fn make_set_params(making: *mut c_void, params: *const OSSL_PARAM) -> c_int {
    // SAFETY: made by `make_init`; a list.
    entry(|| unsafe { c_int::from((*making.cast::<Making>()).set(Params::new(params))) })
}

/// Whom to tell how generation goes on.
struct Progress {
    callback: OSSL_CALLBACK,
    argument: *mut c_void,
}

unsafe extern "C" fn progress(context: *mut EVP_PKEY_CTX) -> c_int {
    entry(|| {
        // SAFETY: called while `make` waits for the key, with its `Progress` as data; the caller's own callback.
        unsafe {
            let progress = sys::EVP_PKEY_CTX_get_app_data(context).cast::<Progress>();
            let Some((callback, argument)) =
                progress.as_ref().and_then(|progress| Some((progress.callback?, progress.argument)))
            else {
                return 1;
            };
            let mut what = [0, 1].map(|index| sys::EVP_PKEY_CTX_get_keygen_info(context, index));
            let [potential, iteration] = &mut what;
            let size = size_of::<c_int>();
            let list = [
                param(c"potential", PARAM_INTEGER, std::ptr::from_mut(potential).cast(), size),
                param(c"iteration", PARAM_INTEGER, std::ptr::from_mut(iteration).cast(), size),
                END,
            ];
            callback(list.as_ptr(), argument)
        }
    })
}

unsafe extern "C" fn make(
    making: *mut c_void,
    callback: OSSL_CALLBACK,
    argument: *mut c_void,
) -> *mut c_void {
    entry(|| {
        if making.is_null() {
            return null_mut();
        }
        // SAFETY: made by `make_init`, used by one thread; `told` outlives the call that uses it.
        let (making, pkey) = unsafe {
            let making = &*making.cast::<Making>();
            let context = making.context.as_ptr();
            let mut told = Progress { callback, argument };
            sys::EVP_PKEY_CTX_set_app_data(context, (&raw mut told).cast());
            sys::EVP_PKEY_CTX_set_cb(context, Some(progress));
            let mut key = null_mut();
            let made = sys::EVP_PKEY_generate(context, &raw mut key);
            sys::EVP_PKEY_CTX_set_cb(context, None);
            sys::EVP_PKEY_CTX_set_app_data(context, null_mut());
            (making, if made == 1 { Pkey::adopt(key) } else { None })
        };
        let key = Key::empty(making.provider, making.pss);
        if pkey.is_some_and(|pkey| key.fill(pkey)) { give(key) } else { null_mut() }
    })
}

unsafe extern "C" fn make_cleanup(making: *mut c_void) {
    if !making.is_null() {
        // SAFETY: made by `make_init`, freed once.
        entry(|| drop(unsafe { Box::from_raw(making.cast::<Making>()) }));
    }
}

/// The numbers of a key, as many of each as OpenSSL names.
const NUMBERS: [&CStr; 32] = [
    c"n",
    c"e",
    c"d",
    c"rsa-factor1",
    c"rsa-factor2",
    c"rsa-factor3",
    c"rsa-factor4",
    c"rsa-factor5",
    c"rsa-factor6",
    c"rsa-factor7",
    c"rsa-factor8",
    c"rsa-factor9",
    c"rsa-factor10",
    c"rsa-exponent1",
    c"rsa-exponent2",
    c"rsa-exponent3",
    c"rsa-exponent4",
    c"rsa-exponent5",
    c"rsa-exponent6",
    c"rsa-exponent7",
    c"rsa-exponent8",
    c"rsa-exponent9",
    c"rsa-exponent10",
    c"rsa-coefficient1",
    c"rsa-coefficient2",
    c"rsa-coefficient3",
    c"rsa-coefficient4",
    c"rsa-coefficient5",
    c"rsa-coefficient6",
    c"rsa-coefficient7",
    c"rsa-coefficient8",
    c"rsa-coefficient9",
];

/// `first`, then every number, then the end.
const fn with_numbers<const N: usize>(first: &[OSSL_PARAM]) -> Table<OSSL_PARAM, N> {
    let mut list = [END; N];
    let mut at = 0;
    while at < first.len() {
        list[at] = first[at];
        at += 1;
    }
    let mut number = 0;
    while number < NUMBERS.len() {
        list[at + number] = describe(NUMBERS[number], PARAM_UNSIGNED);
        number += 1;
    }
    Table(list)
}

static TYPES: Table<OSSL_PARAM, 33> = with_numbers(&[]);

unsafe extern "C" fn types(selection: c_int) -> *const OSSL_PARAM {
    if selection & id::SELECT_KEYPAIR != 0 { TYPES.as_ptr() } else { null() }
}

static GETTABLE: Table<OSSL_PARAM, 37> = with_numbers(&[
    describe(c"bits", PARAM_INTEGER),
    describe(c"security-bits", PARAM_INTEGER),
    describe(c"max-size", PARAM_INTEGER),
    describe(c"default-digest", PARAM_UTF8),
]);

unsafe extern "C" fn gettable(_: *mut c_void) -> *const OSSL_PARAM {
    GETTABLE.as_ptr()
}

const BITS: OSSL_PARAM = describe(c"bits", PARAM_UNSIGNED);
const PRIMES: OSSL_PARAM = describe(c"primes", PARAM_UNSIGNED);
const EXPONENT: OSSL_PARAM = describe(c"e", PARAM_UNSIGNED);

static SETTABLE: Table<OSSL_PARAM, 4> = Table([BITS, PRIMES, EXPONENT, END]);

static SETTABLE_PSS: Table<OSSL_PARAM, 9> = Table([
    BITS,
    PRIMES,
    EXPONENT,
    describe(c"digest", PARAM_UTF8),
    describe(c"properties", PARAM_UTF8),
    describe(c"mgf", PARAM_UTF8),
    describe(c"mgf1-digest", PARAM_UTF8),
    describe(c"saltlen", PARAM_INTEGER),
    END,
]);

unsafe extern "C" fn make_settable<const PSS: bool>(_: *mut c_void, _: *mut c_void) -> *const OSSL_PARAM {
    if PSS { SETTABLE_PSS.as_ptr() } else { SETTABLE.as_ptr() }
}

const fn table<const IS_PSS: bool>() -> Table<OSSL_DISPATCH, 20> {
    dispatch![
        id::KEYMGMT_NEW => new_key::<IS_PSS>,
        id::KEYMGMT_FREE => free_key,
        id::KEYMGMT_LOAD => load::<IS_PSS>,
        id::KEYMGMT_HAS => has,
        id::KEYMGMT_MATCH => matches,
        id::KEYMGMT_VALIDATE => validate,
        id::KEYMGMT_IMPORT => import,
        id::KEYMGMT_IMPORT_TYPES => types,
        id::KEYMGMT_EXPORT => export,
        id::KEYMGMT_EXPORT_TYPES => types,
        id::KEYMGMT_GET_PARAMS => get_params,
        id::KEYMGMT_GETTABLE_PARAMS => gettable,
        id::KEYMGMT_DUP => duplicate,
        id::KEYMGMT_GEN_INIT => make_init::<IS_PSS>,
        id::KEYMGMT_GEN_SET_PARAMS => make_set_params,
        id::KEYMGMT_GEN_SETTABLE_PARAMS => make_settable::<IS_PSS>,
        id::KEYMGMT_GEN => make,
        id::KEYMGMT_GEN_CLEANUP => make_cleanup,
        id::KEYMGMT_QUERY_OPERATION_NAME => operation_name,
    ]
}

/// Keys for everything.
pub static RSA: Table<OSSL_DISPATCH, 20> = table::<false>();
/// Keys for PSS only.
pub static PSS: Table<OSSL_DISPATCH, 20> = table::<true>();
