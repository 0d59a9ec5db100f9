//! Management of keys of type "X25519".

use std::ffi::c_int;
use std::sync::{Arc, Mutex, OnceLock};
use wattlock_core::sync::lock;

use wattlock::core::{Curve, EcKey, Error, Key, Kind};
use zeroize::Zeroizing;

use super::LEN;
use crate::arg::Callback;
use crate::child::{Check, Pkey, PkeyCtx, version};
use crate::entries::keymgmt::{self, KeyType};
use crate::error::{Reason, raise};
use crate::params::{Answers, END, List, Params, Questions, Table, describe};
use crate::provider::Provider;
use crate::sys::{OSSL_DISPATCH, OSSL_PARAM, PARAM_INTEGER, PARAM_OCTETS, PARAM_UTF8, id};

const NAME: &std::ffi::CStr = c"X25519";
/// RFC 7748 section 5: bits of the field less two, and what OpenSSL calls its strength.
const BITS: c_int = 253;
const SECURITY_BITS: c_int = 128;

/// [`LEN`] bytes. On the heap: each move of an array would leave a copy behind that nobody wipes.
type Secret = Zeroizing<Vec<u8>>;

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
            let scalar = self.private()?.to_vec();
            Key::ec(Curve::X25519, EcKey { scalar, public: self.public?.to_vec() }).ok()
        };
        self.key.get_or_init(make).as_ref()
    }

    /// The private half.
    pub(crate) fn private(&self) -> Option<&[u8]> {
        self.private.as_ref().map(|private| &private[..])
    }

    pub(crate) fn with_public(public: [u8; LEN]) -> Parts {
        Parts { public: Some(public), ..Parts::default() }
    }

    /// Both halves of a private one, with a child's help.
    pub(crate) fn of_private(provider: &Provider, private: &[u8]) -> Option<Parts> {
        let list = List::new().octets(c"priv", private);
        Parts::of_child(&Pkey::from_data(&provider.child, NAME, id::SELECT_KEYPAIR, list.params())?)
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
        Pkey::from_data(&provider.child, NAME, id::SELECT_KEYPAIR, self.list(true).params())
    }

    /// The halves of a child's key.
    fn of_child(child: &Pkey) -> Option<Parts> {
        let (mut public, mut private) = ([0; LEN], Secret::new(vec![0; LEN]));
        let mut list = Questions::new().value(c"pub", PARAM_OCTETS, &mut public).value(
            c"priv",
            PARAM_OCTETS,
            &mut private,
        );
        if !child.get(&mut list.answers()) {
            return None;
        }
        let whole = (list.returned(c"pub"), list.returned(c"priv"));
        let private = (whole.1 == Some(LEN)).then_some(private);
        let paired = private.is_some();
        (whole.0 == Some(LEN)).then(|| Parts { public: Some(public), private, paired, key: OnceLock::new() })
    }

    pub(crate) fn generate(provider: &Provider) -> Result<Parts, Error> {
        let mut pair = Zeroizing::new([0; 2 * LEN]);
        provider.generate(Kind::X25519Generate, &mut *pair)?;
        Ok(Parts::of_pair(&pair))
    }

    /// What engines generated.
    pub(crate) fn of_pair(pair: &[u8; 2 * LEN]) -> Parts {
        let (mut public, mut private) = ([0; LEN], Secret::new(pair[..LEN].to_vec()));
        public.copy_from_slice(&pair[LEN..]);
        // As RFC 7748 section 5 decodes it: what others see of the key is what OpenSSL's own would show.
        private[0] &= 248;
        private[LEN - 1] = private[LEN - 1] & 127 | 64;
        Parts { public: Some(public), private: Some(private), paired: true, key: OnceLock::new() }
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
        lock(&self.parts).clone()
    }

    fn replace(&self, parts: Parts) {
        *lock(&self.parts) = Arc::new(parts);
    }

    fn new(provider: &'static Provider, parts: Parts) -> Held {
        Held { provider, parts: Mutex::new(Arc::new(parts)) }
    }

    fn take_in(&self, selection: c_int, params: Params<'_>) -> bool {
        if selection & id::SELECT_KEYPAIR == 0 {
            return false;
        }
        let whole = |key| params.get(key).and_then(|one| one.octets()).filter(|one| one.len() == LEN);
        let public = whole(c"pub").and_then(|public| public.try_into().ok());
        let private = params.get(c"priv").filter(|_| selection & id::SELECT_PRIVATE_KEY != 0);
        let parts = match (public, private) {
            (Some(public), None) => Some(Parts::with_public(public)),
            (Some(public), Some(_)) => whole(c"priv").map(|private| Parts {
                private: Some(Secret::new(private.to_vec())),
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
        checking.is_some_and(|checking| checking.passes(Check::Pair))
    }

    fn change(&self, params: Params<'_>) -> bool {
        if let Some(point) = params.get(c"encoded-pub-key") {
            let Some(public) = point.octets().and_then(|point| point.try_into().ok()) else { return false };
            self.replace(Parts::with_public(public));
        }
        params.get(c"properties").is_none_or(|one| one.text().is_some())
    }

    fn answer(&self, answers: &mut Answers<'_>) -> bool {
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
pub struct Generation {
    provider: &'static Provider,
    selection: c_int,
    /// What the key pair is to be derived from, with a child's help.
    material: Option<Zeroizing<Vec<u8>>>,
}

impl Generation {
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
        let begun = making.begin_generation(false) && making.set(list.params());
        Parts::of_child(&if begun { making.generate()? } else { return None })
    }
}

impl KeyType for Held {
    type Key = Held;
    type Generation = Generation;

    const SETS: bool = true;

    fn new(provider: &'static Provider) -> Held {
        Held::new(provider, Parts::default())
    }

    fn has(key: &Held, selection: c_int) -> bool {
        key.parts().has(selection)
    }

    fn matches(one: &Held, two: &Held, selection: c_int) -> bool {
        one.parts().same(&two.parts(), selection)
    }

    fn validate(key: &Held, selection: c_int, _: bool) -> bool {
        key.valid(selection)
    }

    fn import(key: &Held, selection: c_int, params: Params<'_>) -> bool {
        key.take_in(selection, params)
    }

    fn export(key: &Held, selection: c_int, callback: &Callback) -> c_int {
        if selection & id::SELECT_KEYPAIR == 0 {
            return 0;
        }
        let parts = key.parts();
        callback.tell(&parts.list(selection & id::SELECT_PRIVATE_KEY != 0)).unwrap_or(0)
    }

    fn types(selection: c_int) -> Option<&'static [OSSL_PARAM]> {
        (selection & id::SELECT_KEYPAIR != 0).then_some(&TYPES.0)
    }

    fn dup(key: &Held, selection: c_int) -> Option<Held> {
        Some(Held::new(key.provider, key.parts().selected(selection)))
    }

    fn get_params(key: &Held, answers: &mut Answers<'_>) -> bool {
        key.answer(answers)
    }

    fn gettable_params() -> &'static [OSSL_PARAM] {
        &GETTABLE.0
    }

    fn set_params(key: &Held, params: Params<'_>) -> bool {
        key.change(params)
    }

    fn settable_params() -> &'static [OSSL_PARAM] {
        &SETTABLE.0
    }

    fn gen_init(provider: &'static Provider, selection: c_int) -> Option<Generation> {
        Some(Generation { provider, selection, material: None })
    }

    fn gen_set_params(generation: &mut Generation, params: Params<'_>) -> bool {
        generation.set(params)
    }

    fn gen_settable_params() -> &'static [OSSL_PARAM] {
        if version() >= (3, 2) { &MAKING.0 } else { &MAKING_BEFORE_3_2.0 }
    }

    fn generate(generation: &mut Generation, _: &Callback) -> Option<Held> {
        let parts = generation.make()?;
        Some(Held::new(generation.provider, parts))
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

/// Key management of "X25519".
pub static FUNCTIONS: Table<OSSL_DISPATCH, 23> = keymgmt::table::<Held>();
