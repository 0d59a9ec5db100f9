//! Management of keys of both types.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::sync::OnceLock;

use subtle::ConstantTimeEq;
use wattlock::core::{Data, Error, Item, Key, Kind, ML_KEM_768_PUBLIC, Material, Request};
use wattlock_cpu::kem::is_reduced;
use zeroize::Zeroizing;

use super::{BITS, CIPHERTEXT, Form, Hybrid, PRIVATE, PUBLIC, Plain, SECRET, SECURITY_BITS, SEED};
use crate::arg::Callback;
use crate::entries::keymgmt::{self, KeyType};
use crate::error::{Reason, raise};
use crate::params::{Answers, END, List, Param, Params, Table, describe};
use crate::provider::Provider;
use crate::sys::{OSSL_DISPATCH, OSSL_PARAM, PARAM_INTEGER, PARAM_OCTETS, PARAM_UTF8, id};
use crate::x25519::LEN as X25519_LEN;
use crate::x25519::key::Parts as X25519;

/// [`SEED`] bytes. On the heap: each move of an array would leave a copy behind that nobody wipes.
type Seed = Zeroizing<Vec<u8>>;

/// A key of which at least the public half is there.
#[derive(Clone)]
pub struct Parts {
    /// As it is encoded: ML-KEM's half, then X25519's.
    public: Vec<u8>,
    /// ML-KEM's decapsulation key.
    private: Option<Key>,
    /// What both halves of ML-KEM were made of, where that is known.
    seed: Option<Seed>,
    x25519: Option<std::sync::Arc<X25519>>,
}

impl Parts {
    /// As it is encoded.
    pub fn public(&self) -> &[u8] {
        &self.public
    }

    /// ML-KEM's decapsulation key.
    pub fn private(&self) -> Option<&Key> {
        self.private.as_ref()
    }

    /// X25519's half, of the hybrid.
    pub fn x25519(&self) -> Option<&X25519> {
        self.x25519.as_deref()
    }

    /// The seed.
    pub fn seed(&self) -> Option<&[u8]> {
        self.seed.as_ref().map(|seed| &seed[..])
    }

    /// The private half as it is encoded: ML-KEM's, then X25519's.
    pub fn private_bytes(&self) -> Option<Zeroizing<Vec<u8>>> {
        let Material::MlKem(bytes) = self.private.as_ref()?.material() else { return None };
        let mut all = Zeroizing::new(Vec::with_capacity(PRIVATE + X25519_LEN));
        all.extend_from_slice(bytes);
        if let Some(x25519) = &self.x25519 {
            all.extend_from_slice(x25519.private()?);
        }
        Some(all)
    }

    /// Whether that is its private half.
    pub fn is_private(&self, bytes: &[u8]) -> bool {
        self.private_bytes().is_some_and(|own| own.as_slice().ct_eq(bytes).into())
    }

    /// Of an encoded public half, if it has the right length and is reduced (FIPS 203 section 7.2).
    pub fn of_public<F: Form>(bytes: &[u8]) -> Option<Parts> {
        if bytes.len() != PUBLIC + F::MORE {
            raise(Reason::InvalidKeyLength);
            return None;
        }
        if !is_reduced(&bytes[..PUBLIC]) {
            raise(Reason::InvalidKey);
            return None;
        }
        let x25519 = bytes[PUBLIC..].try_into().ok().map(|half| X25519::with_public(half).into());
        Some(Parts { public: bytes.to_vec(), private: None, seed: None, x25519 })
    }

    /// Of an encoded private half, which has the public one in it, if it is in order (FIPS 203 section 7.3). OpenSSL's own
    /// refuses secret vectors that are not reduced, too.
    pub fn of_private<F: Form>(provider: &Provider, bytes: &[u8]) -> Option<Parts> {
        if bytes.len() != PRIVATE + F::MORE {
            raise(Reason::InvalidKeyLength);
            return None;
        }
        let (own, half) = bytes.split_at(PRIVATE);
        let x25519 = match F::HYBRID {
            true => Some(X25519::of_private(provider, half)?),
            false => None,
        };
        let mut hash = [0; 32];
        let public = &own[ML_KEM_768_PUBLIC];
        let data = Data::Apart { from: public, to: &mut hash };
        let hashed = provider.run(&mut Request::new(Kind::Sha3_256, Key::none(), data));
        let is_own = own[ML_KEM_768_PUBLIC.end..].starts_with(&hash);
        let is_good = hashed.is_ok() && is_own && is_reduced(public) && is_reduced(own);
        let parts = is_good.then(|| Parts::whole(own, None, x25519).ok()).flatten();
        let parts = parts.filter(|parts| parts.is_pair(provider, &hash));
        if parts.is_none() {
            raise(Reason::InvalidKey);
        }
        parts
    }

    /// Whether the private half of ML-KEM opens what is encapsulated to the public one with this randomness: nothing else
    /// shows that its secret vector belongs to it. Never pauses.
    fn is_pair(&self, provider: &Provider, m: &[u8]) -> bool {
        let Some(key) = &self.private else { return false };
        let mut room = Zeroizing::new(vec![0; CIPHERTEXT + 2 * SECRET]);
        let (made, opened) = room.split_at_mut(CIPHERTEXT + SECRET);
        let data = Data::Apart { from: &self.public[..PUBLIC], to: &mut *made };
        let request = Request::new(Kind::MlKem768Encapsulate, Key::none(), data);
        let made_it = provider.run_or_wait(Request { nonce: m, ..request });
        let (ciphertext, secret) = made.split_at(CIPHERTEXT);
        let data = Data::Apart { from: ciphertext, to: &mut *opened };
        let opened_it = provider.run_or_wait(Request::new(Kind::MlKem768Decapsulate, key, data));
        made_it.is_ok() && opened_it.is_ok() && bool::from(secret.ct_eq(opened))
    }

    /// Of a seed. Inside a job it may pause, if the caller says so.
    fn of_seed(provider: &Provider, seed: Seed, pauses: bool) -> Result<Parts, Error> {
        // Not on the stack, here and below: that of a job is small.
        let mut own = Zeroizing::new(vec![0; PRIVATE]);
        let data = Data::Apart { from: &[], to: &mut own };
        let mut one =
            [Item::new(Request { nonce: &seed, ..Request::new(Kind::MlKem768Generate, Key::none(), data) })];
        match pauses {
            true => provider.perform_all(&mut one),
            false => one[0].result = provider.run_or_wait(one[0].request.reborrow()),
        }
        one[0].result?;
        Parts::whole(&own, Some(seed), None)
    }

    /// Fresh. A pair of X25519 is one that was made in advance, or is made together with ML-KEM's.
    fn generate<F: Form>(provider: &Provider) -> Result<Parts, Error> {
        let mut seed = Seed::new(vec![0; SEED]);
        if !provider.child.random(&mut seed) {
            return Err(Error::Unsupported);
        }
        if !F::HYBRID {
            return Parts::of_seed(provider, seed, true);
        }
        let (mut own, mut pair) = (Zeroizing::new(vec![0; PRIVATE]), Zeroizing::new([0; 2 * X25519_LEN]));
        let is_there = provider.take_from_stock(Kind::X25519Generate, &mut *pair);
        let request = |kind, to| Request::new(kind, Key::none(), Data::Apart { from: &[], to });
        let mut items =
            vec![Item::new(Request { nonce: &seed, ..request(Kind::MlKem768Generate, &mut own) })];
        if !is_there {
            items.push(Item::new(request(Kind::X25519Generate, &mut *pair)));
        }
        provider.perform_all(&mut items);
        items.iter().try_for_each(|item| item.result.map(drop))?;
        drop(items);
        Parts::whole(&own, None, Some(X25519::of_pair(&pair)))
    }

    fn whole(own: &[u8], seed: Option<Seed>, x25519: Option<X25519>) -> Result<Parts, Error> {
        let mut public = own[ML_KEM_768_PUBLIC].to_vec();
        public.extend(x25519.as_ref().and_then(X25519::public).into_iter().flatten());
        Ok(Parts { public, private: Some(Key::ml_kem_768(own)?), seed, x25519: x25519.map(Into::into) })
    }

    /// What a list says; a private half that comes with others must belong to them. What has no bytes is as good as absent.
    fn of_list<F: Form>(provider: &Provider, params: Params<'_>, private: bool) -> Option<Parts> {
        let given = |key, counts: bool| match params.get(key).filter(|_| counts) {
            Some(one) => octets(one).map(|bytes| Some(bytes).filter(|bytes| !bytes.is_empty())),
            None => Some(None),
        };
        let (seed, public) = (given(c"seed", private && !F::HYBRID)?, given(c"pub", true)?);
        let private = given(c"priv", private)?;
        let parts = match (seed, private, public) {
            (Some(seed), _, _) => Parts::of_given_seed(provider, seed)?,
            (None, Some(private), _) => Parts::of_private::<F>(provider, private)?,
            (None, None, Some(public)) => return Parts::of_public::<F>(public),
            (None, None, None) => {
                raise(Reason::MissingKey);
                return None;
            }
        };
        let same = private.is_none_or(|private| parts.is_private(private));
        if !same || public.is_some_and(|public| public != parts.public) {
            raise(Reason::InvalidKey);
            return None;
        }
        Some(parts)
    }

    /// Of a seed that a caller brings, if it has the right length. Never pauses: import and decoders look at the thread's
    /// queue of errors before and after it, and other connections would use that meanwhile.
    pub fn of_given_seed(provider: &Provider, seed: &[u8]) -> Option<Parts> {
        if seed.len() != SEED {
            raise(Reason::InvalidSeedLength);
            return None;
        }
        Parts::of_seed(provider, Seed::new(seed.to_vec()), false)
            .inspect_err(|_| raise(Reason::FailedToGenerateKey))
            .ok()
    }
}

/// A parameter that must be bytes.
fn octets(one: Param<'_>) -> Option<&[u8]> {
    let bytes = one.octets();
    if bytes.is_none() {
        raise(Reason::FailedToGetParameter);
    }
    bytes
}

/// What OpenSSL knows as a key of ours. It is empty until something is taken in, once.
pub struct Held<F> {
    provider: &'static Provider,
    parts: OnceLock<Parts>,
    form: PhantomData<F>,
}

impl<F: Form> Held<F> {
    /// The key, if it is not empty.
    pub fn parts(&self) -> Option<&Parts> {
        self.parts.get()
    }

    /// One with something in it.
    pub fn with(provider: &'static Provider, parts: Option<Parts>) -> Held<F> {
        Held { provider, parts: parts.map(OnceLock::from).unwrap_or_default(), form: PhantomData }
    }

    /// Fills it; an error if it is not empty.
    fn fill(&self, parts: Parts) -> bool {
        let filled = self.parts.set(parts).is_ok();
        if !filled {
            raise(Reason::OperationNotSupportedForThisKeytype);
        }
        filled
    }

    fn answer_one(&self, mut one: crate::params::Answer<'_>) -> bool {
        let parts = self.parts();
        match one.key().to_bytes() {
            b"bits" => one.set_int(BITS),
            b"security-bits" => one.set_int(SECURITY_BITS),
            b"max-size" => one.set_int((CIPHERTEXT + F::MORE) as c_int),
            b"pub" if F::HYBRID => true,
            b"pub" | b"encoded-pub-key" => parts.is_none_or(|parts| one.set_octet_string(parts.public())),
            b"priv" => {
                let bytes = parts.and_then(Parts::private_bytes);
                bytes.is_none_or(|bytes| one.set_octet_string(&bytes))
            }
            b"seed" => parts.and_then(Parts::seed).is_none_or(|seed| one.set_octet_string(seed)),
            _ => true,
        }
    }

    /// Tells what is selected; the callback's result.
    pub fn tell(&self, selection: c_int, callback: &Callback) -> c_int {
        if selection & id::SELECT_KEYPAIR == 0 {
            return 0;
        }
        let Some(parts) = self.parts() else {
            raise(Reason::MissingKey);
            return 0;
        };
        let private = selection & id::SELECT_PRIVATE_KEY != 0;
        let bytes = parts.private_bytes().filter(|_| private);
        let mut list = List::new();
        if selection & id::SELECT_PUBLIC_KEY != 0 {
            list = list.octets(c"pub", parts.public());
        }
        if let Some(bytes) = &bytes {
            list = list.octets(c"priv", bytes);
        }
        if let Some(seed) = parts.seed().filter(|_| private) {
            list = list.octets(c"seed", seed);
        }
        callback.tell(&list).unwrap_or(0)
    }
}

/// A key to be generated.
pub struct Generation<F> {
    provider: &'static Provider,
    selection: c_int,
    /// What it is made of, if the caller says.
    seed: Option<Seed>,
    form: PhantomData<F>,
}

impl<F: Form> Generation<F> {
    /// libssl names the group: by the name that the provider gave it first, which is none if that is OpenSSL's own.
    fn is_own(group: Param<'_>) -> bool {
        let is_own = |name: &str| name.as_bytes().eq_ignore_ascii_case(F::NAME.to_bytes());
        group.text().is_some_and(|name| name.is_empty() || is_own(name))
    }

    fn set(&mut self, params: Params<'_>) -> bool {
        if params.get(c"group").is_some_and(|group| !Self::is_own(group)) {
            raise(Reason::PassedInvalidArgument);
            return false;
        }
        let Some(seed) = params.get(c"seed").filter(|_| !F::HYBRID) else { return true };
        self.seed = seed.octets().filter(|seed| seed.len() == SEED).map(|seed| seed.to_vec().into());
        if self.seed.is_none() {
            raise(Reason::InvalidSeedLength);
        }
        self.seed.is_some()
    }

    /// A seed serves once.
    fn make(&mut self) -> Option<Parts> {
        let made = match self.seed.take() {
            Some(seed) => Parts::of_seed(self.provider, seed, true),
            None => Parts::generate::<F>(self.provider),
        };
        made.inspect_err(|_| raise(Reason::FailedToGenerateKey)).ok()
    }
}

impl<F: Form> KeyType for Held<F> {
    type Key = Held<F>;
    type Generation = Generation<F>;

    const LOADS: bool = true;
    const SETS: bool = true;

    fn new(provider: &'static Provider) -> Held<F> {
        Held::with(provider, None)
    }

    fn has(key: &Held<F>, selection: c_int) -> bool {
        match (selection & id::SELECT_PRIVATE_KEY, selection & id::SELECT_PUBLIC_KEY) {
            (0, 0) => true,
            (0, _) => key.parts().is_some(),
            _ => key.parts().is_some_and(|parts| parts.private.is_some()),
        }
    }

    /// Two empty keys are equal; of others the public halves decide, which are made of the private ones.
    fn matches(one: &Held<F>, two: &Held<F>, selection: c_int) -> bool {
        selection & id::SELECT_KEYPAIR == 0
            || one.parts().map(Parts::public) == two.parts().map(Parts::public)
    }

    /// Whatever is there was checked when it came.
    fn validate(key: &Held<F>, selection: c_int, _: bool) -> bool {
        Self::has(key, selection)
    }

    fn import(key: &Held<F>, selection: c_int, params: Params<'_>) -> bool {
        let private = selection & id::SELECT_PRIVATE_KEY != 0;
        selection & id::SELECT_KEYPAIR != 0
            && Parts::of_list::<F>(key.provider, params, private).is_some_and(|parts| key.fill(parts))
    }

    fn export(key: &Held<F>, selection: c_int, callback: &Callback) -> c_int {
        key.tell(selection, callback)
    }

    fn types(selection: c_int) -> Option<&'static [OSSL_PARAM]> {
        (selection & id::SELECT_KEYPAIR != 0).then(|| hybrid_or::<F>(&HYBRID_TYPES.0, &TYPES.0))
    }

    /// A private half alone is not copied: the public one is in it.
    fn dup(key: &Held<F>, selection: c_int) -> Option<Held<F>> {
        let parts = match selection & id::SELECT_KEYPAIR {
            0 => None,
            id::SELECT_PUBLIC_KEY => key.parts().and_then(|parts| Parts::of_public::<F>(parts.public())),
            _ => key.parts().cloned(),
        };
        Some(Held::with(key.provider, parts))
    }

    fn get_params(key: &Held<F>, answers: &mut Answers<'_>) -> bool {
        answers.iter_mut().all(|one| key.answer_one(one))
    }

    fn gettable_params() -> &'static [OSSL_PARAM] {
        hybrid_or::<F>(&HYBRID_GETTABLE.0, &GETTABLE.0)
    }

    fn set_params(key: &Held<F>, params: Params<'_>) -> bool {
        let Some(public) = params.get(c"encoded-pub-key") else { return true };
        let parts = octets(public).and_then(Parts::of_public::<F>);
        parts.is_some_and(|parts| key.fill(parts))
    }

    fn settable_params() -> &'static [OSSL_PARAM] {
        &SETTABLE.0
    }

    fn gen_init(provider: &'static Provider, selection: c_int) -> Option<Generation<F>> {
        Some(Generation { provider, selection, seed: None, form: PhantomData })
    }

    fn gen_set_params(generation: &mut Generation<F>, params: Params<'_>) -> bool {
        generation.set(params)
    }

    fn gen_settable_params() -> &'static [OSSL_PARAM] {
        hybrid_or::<F>(&HYBRID_MAKING.0, &MAKING.0)
    }

    /// Of nothing but parameters, which libssl asks for before it sets a peer's public half, an empty key.
    fn generate(generation: &mut Generation<F>, _: &Callback) -> Option<Held<F>> {
        let parts = match generation.selection & id::SELECT_KEYPAIR {
            0 => None,
            _ => Some(generation.make()?),
        };
        Some(Held::with(generation.provider, parts))
    }
}

fn hybrid_or<F: Form>(hybrid: &'static [OSSL_PARAM], plain: &'static [OSSL_PARAM]) -> &'static [OSSL_PARAM] {
    if F::HYBRID { hybrid } else { plain }
}

static GETTABLE: Table<OSSL_PARAM, 8> = Table([
    describe(c"bits", PARAM_INTEGER),
    describe(c"security-bits", PARAM_INTEGER),
    describe(c"max-size", PARAM_INTEGER),
    describe(c"seed", PARAM_OCTETS),
    describe(c"priv", PARAM_OCTETS),
    describe(c"pub", PARAM_OCTETS),
    describe(c"encoded-pub-key", PARAM_OCTETS),
    END,
]);

static HYBRID_GETTABLE: Table<OSSL_PARAM, 6> = Table([
    describe(c"bits", PARAM_INTEGER),
    describe(c"security-bits", PARAM_INTEGER),
    describe(c"max-size", PARAM_INTEGER),
    describe(c"priv", PARAM_OCTETS),
    describe(c"encoded-pub-key", PARAM_OCTETS),
    END,
]);

static SETTABLE: Table<OSSL_PARAM, 2> = Table([describe(c"encoded-pub-key", PARAM_OCTETS), END]);

static MAKING: Table<OSSL_PARAM, 4> = Table([
    describe(c"seed", PARAM_OCTETS),
    describe(c"group", PARAM_UTF8),
    describe(c"properties", PARAM_UTF8),
    END,
]);

static HYBRID_MAKING: Table<OSSL_PARAM, 3> =
    Table([describe(c"group", PARAM_UTF8), describe(c"properties", PARAM_UTF8), END]);

static TYPES: Table<OSSL_PARAM, 4> = Table([
    describe(c"pub", PARAM_OCTETS),
    describe(c"priv", PARAM_OCTETS),
    describe(c"seed", PARAM_OCTETS),
    END,
]);

static HYBRID_TYPES: Table<OSSL_PARAM, 3> =
    Table([describe(c"pub", PARAM_OCTETS), describe(c"priv", PARAM_OCTETS), END]);

/// ML-KEM-768.
pub static PLAIN: Table<OSSL_DISPATCH, 23> = keymgmt::table::<Held<Plain>>();

/// X25519MLKEM768.
pub static HYBRID: Table<OSSL_DISPATCH, 23> = keymgmt::table::<Held<Hybrid>>();
