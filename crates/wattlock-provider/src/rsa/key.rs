//! Key management for `RSA` and `RSA-PSS`. A key is the other provider's key, plus what the accelerated operations
//! need of it, taken out when first used.
//!
//! A key is empty until it is imported or generated, and never changes after that: copies share it.

use std::ffi::{CStr, c_char, c_int};
use std::sync::{Arc, Mutex, OnceLock};
use wattlock_core::sync::lock;

use subtle::ConstantTimeEq;
use wattlock::core::{self as core, Kind, RsaKey};
use zeroize::Zeroizing;

use super::FAST_MAX;
use super::pad::{HASHES, Hash};
use super::sign::Facts;
use crate::arg::Callback;
use crate::child::{Check, Child, Digest, Pkey, PkeyCtx};
use crate::entries::keymgmt::{self, KeyType};
use crate::params::{Answers, END, Params, Questions, Table, describe};
use crate::provider::Provider;
use crate::sys::{OSSL_DISPATCH, OSSL_PARAM, PARAM_INTEGER, PARAM_UNSIGNED, PARAM_UTF8, id};

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
    /// 32 bytes. On the heap: each move of an array would leave a copy behind that nobody wipes.
    exponent_hash: OnceLock<Option<Zeroizing<Vec<u8>>>>,
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
    pub fn exponent_hash(&self, sha256: &Digest) -> Option<&[u8]> {
        let filled = self.filled.get()?;
        let make = || {
            let d = filled.number(c"d")?;
            let zeros = [0_u8; 2048];
            let pad = zeros.get(..filled.size.checked_sub(d.len())?)?;
            let mut hash = Zeroizing::new(vec![0; 32]);
            sha256.hash(&[pad, &d], &mut hash).then_some(hash)
        };
        filled.exponent_hash.get_or_init(make).as_ref().map(|hash| &hash[..])
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
        let mut ready = lock(&self.filled.get()?.ready);
        let place = ready.iter().position(|(kept, _)| *kept == facts)?;
        Some(ready.swap_remove(place).1)
    }

    /// Keeps a verification for the next one with the same parameters.
    pub fn keep(&self, facts: Facts, context: PkeyCtx) {
        let Some(filled) = self.filled.get() else { return };
        let mut ready = lock(&filled.ready);
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
        if selection & id::SELECT_KEYPAIR == id::SELECT_KEYPAIR {
            return context.passes(Check::Pair);
        }
        (selection & id::SELECT_PRIVATE_KEY == 0 || context.passes(Check::Private))
            && (selection & id::SELECT_PUBLIC_KEY == 0 || context.passes(Check::Public { quick }))
    }

    fn import(&self, selection: c_int, params: Params<'_>) -> bool {
        if selection & POSSIBLE == 0 {
            return false;
        }
        made(self.child(), self.pss, selection, params).is_some_and(|pkey| self.fill(pkey))
    }

    fn export(&self, selection: c_int, callback: &Callback) -> Option<c_int> {
        let pkey = self.elsewhere().filter(|_| selection & POSSIBLE != 0)?;
        // Whoever takes it over (an encoder, most often) makes a key of the parameters, and reverses what [`made`] is
        // about. So it gets them reversed.
        if selection & id::SELECT_PRIVATE_KEY != 0 && has_four_primes(pkey) {
            return Some(remade(pkey, self.child(), self.pss, POSSIBLE)?.export(selection, callback));
        }
        Some(pkey.export(selection, callback))
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
        let part = filled.pkey.data(selection)?;
        copy.fill(made(self.child(), self.pss, selection, part.params())?).then_some(copy)
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
    Pkey::from_data(child, name(pss), selection, pkey.data(selection)?.params())
}

fn has_four_primes(pkey: &Pkey) -> bool {
    let mut list = Questions::new().len_of(c"rsa-factor4", PARAM_UNSIGNED);
    pkey.get(&mut list.answers()) && list.returned(c"rsa-factor4").is_some()
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
        let mut list = Questions::new()
            .len_of(c"n", PARAM_UNSIGNED)
            .len_of(c"e", PARAM_UNSIGNED)
            .len_of(c"d", PARAM_UNSIGNED)
            .int(c"saltlen", &mut salt);
        if filled.pkey.get(&mut list.answers()) {
            let [n, e, d, min_salt] = [c"n", c"e", c"d", c"saltlen"].map(|key| list.returned(key).is_some());
            (filled.has_n, filled.has_e, filled.has_d) = (n, e, d);
            filled.min_salt = min_salt.then_some(i64::from(salt));
        }
        filled
    }

    /// A number of the key's, big-endian; `None` if it has none of that name.
    fn number(&self, key: &CStr) -> Option<Zeroizing<Vec<u8>>> {
        let mut list = Questions::new().len_of(key, PARAM_UNSIGNED);
        let len = if self.pkey.get(&mut list.answers()) { list.returned(key)? } else { return None };
        let mut room = Zeroizing::new(vec![0; len.max(1)]);
        let mut list = Questions::new().value(key, PARAM_UNSIGNED, &mut room);
        if !self.pkey.get(&mut list.answers()) || list.returned(key).is_none() {
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

/// A key that is being generated.
pub struct Generation {
    provider: &'static Provider,
    context: PkeyCtx,
}

/// Keys for everything, or for PSS only.
struct Rsa<const PSS: bool>;

impl<const PSS: bool> KeyType for Rsa<PSS> {
    type Key = Key;
    type Generation = Generation;

    const LOADS: bool = true;
    const NAMES: bool = true;

    fn new(provider: &'static Provider) -> Key {
        Key::empty(provider, PSS)
    }

    fn is_own(key: &Key) -> bool {
        key.pss == PSS
    }

    fn has(key: &Key, selection: c_int) -> bool {
        key.has(selection)
    }

    fn matches(one: &Key, two: &Key, selection: c_int) -> bool {
        one.matches(two, selection)
    }

    fn validate(key: &Key, selection: c_int, quick: bool) -> bool {
        key.validate(selection, quick)
    }

    fn import(key: &Key, selection: c_int, params: Params<'_>) -> bool {
        key.import(selection, params)
    }

    fn export(key: &Key, selection: c_int, callback: &Callback) -> c_int {
        key.export(selection, callback).unwrap_or(0)
    }

    fn types(selection: c_int) -> Option<&'static [OSSL_PARAM]> {
        (selection & id::SELECT_KEYPAIR != 0).then_some(&TYPES.0)
    }

    fn dup(key: &Key, selection: c_int) -> Option<Key> {
        key.duplicate(selection)
    }

    fn get_params(key: &Key, answers: &mut Answers<'_>) -> bool {
        key.elsewhere().is_some_and(|pkey| pkey.get(answers))
    }

    fn gettable_params() -> &'static [OSSL_PARAM] {
        &GETTABLE.0
    }

    fn gen_init(provider: &'static Provider, selection: c_int) -> Option<Generation> {
        if selection & id::SELECT_KEYPAIR == 0 {
            return None;
        }
        let context = PkeyCtx::by_name(&provider.child, name(PSS))?;
        context.begin_generation(false).then_some(Generation { provider, context })
    }

    fn gen_set_params(generation: &mut Generation, params: Params<'_>) -> bool {
        params.is_empty() || generation.context.set(params)
    }

    fn gen_settable_params() -> &'static [OSSL_PARAM] {
        if PSS { &SETTABLE_PSS.0 } else { &SETTABLE.0 }
    }

    fn generate(generation: &mut Generation, progress: &Callback) -> Option<Key> {
        let pkey = generation.context.generate_telling(progress)?;
        let key = Key::empty(generation.provider, PSS);
        key.fill(pkey).then_some(key)
    }

    fn query_operation_name(_: c_int) -> *const c_char {
        c"RSA".as_ptr()
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

static GETTABLE: Table<OSSL_PARAM, 37> = with_numbers(&[
    describe(c"bits", PARAM_INTEGER),
    describe(c"security-bits", PARAM_INTEGER),
    describe(c"max-size", PARAM_INTEGER),
    describe(c"default-digest", PARAM_UTF8),
]);

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

/// Keys for everything.
pub static RSA: Table<OSSL_DISPATCH, 23> = keymgmt::table::<Rsa<false>>();
/// Keys for PSS only.
pub static PSS: Table<OSSL_DISPATCH, 23> = keymgmt::table::<Rsa<true>>();
