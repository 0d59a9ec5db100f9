//! Management of keys of type "EC".
//!
//! A key is empty until it is imported into, generated, or set. Whoever uses it takes a [`Form`], which never changes.

use std::ffi::{c_char, c_int};
use std::ptr::null;
use std::sync::{Arc, Mutex, OnceLock};
use wattlock_core::sync::lock;

use wattlock::core::Error;
use zeroize::Zeroizing;

use super::native::{Group, Native, POINT_MAX, Point};
use crate::arg::Callback;
use crate::child::{Check, Pkey, PkeyCtx, version};
use crate::entries::keymgmt::{self, KeyType};
use crate::error::{Reason, raise, silently};
use crate::params::{Answers, END, Params, Questions, Recorded, Table, describe};
use crate::provider::Provider;
use crate::sys::{OSSL_DISPATCH, OSSL_PARAM, PARAM_INTEGER, PARAM_OCTETS, PARAM_UNSIGNED, PARAM_UTF8, id};

const POSSIBLE: c_int = id::SELECT_ALL;

/// A key as it is at one moment. Cheap to clone; clones share what is made of it.
#[derive(Clone)]
pub enum Form {
    /// No group yet.
    Empty,
    /// A key that engines take.
    Native(Arc<Native>),
    /// A key that OpenSSL's own provider holds.
    Child(Arc<Foreign>),
}

/// A key that OpenSSL's own provider holds.
pub struct Foreign {
    pkey: Pkey,
    public: bool,
    private: bool,
    /// The same for engines, if it is on one of their curves after all.
    native: OnceLock<Option<Arc<Native>>>,
}

/// More than any private scalar of a curve that OpenSSL takes (661 bits).
const SCALAR_ROOM: usize = 128;

impl Foreign {
    fn new(pkey: Pkey) -> Foreign {
        let mut scalar = Zeroizing::new([0; SCALAR_ROOM]);
        // (By this name a point counts that the key's own form of points cannot write.)
        let mut public = Questions::new().len_of(c"encoded-pub-key", PARAM_OCTETS);
        let mut private = Questions::new().value(c"priv", PARAM_UNSIGNED, &mut *scalar);
        // What a key lacks stays unmodified.
        pkey.get(&mut public.answers());
        pkey.get(&mut private.answers());
        let (public, private) =
            (public.returned(c"encoded-pub-key").is_some(), private.returned(c"priv").is_some());
        Foreign { pkey, public, private, native: OnceLock::new() }
    }

    fn make_native(&self) -> Option<Native> {
        let mut name = [0; 64];
        let mut point = [0; POINT_MAX];
        let mut scalar = Zeroizing::new([0; SCALAR_ROOM]);
        let mut list = Questions::new().value(c"group", PARAM_UTF8, &mut name);
        let asked = self.pkey.get(&mut list.answers());
        let len = list.returned(c"group").filter(|_| asked && self.public)?;
        let group = Group::by_name(std::str::from_utf8(name.get(..len)?).ok()?)?;
        let mut list = Questions::new().value(c"encoded-pub-key", PARAM_OCTETS, &mut point);
        if self.private {
            list = list.value(c"priv", PARAM_UNSIGNED, &mut *scalar);
        }
        let asked = self.pkey.get(&mut list.answers());
        let len = list.returned(c"encoded-pub-key").filter(|_| asked)?;
        let native = Native::new(group, Some(Point::read(group, point.get(..len)?)?));
        if !self.private {
            return Some(native);
        }
        // What was asked is an integer in little-endian bytes.
        let mut big: Zeroizing<Vec<u8>> = Zeroizing::new(scalar[..group.len].to_vec());
        big.reverse();
        native.with_scalar(&big).filter(|_| scalar[group.len..].iter().all(|byte| *byte == 0))
    }
}

impl Form {
    fn foreign(pkey: Pkey) -> Form {
        // What a key lacks is no error of the call that brought it.
        silently(|| Form::Child(Arc::new(Foreign::new(pkey))))
    }

    /// The key in OpenSSL's own provider, made now if it is not yet; `None` if there is no group or it refuses.
    pub fn child(&self, provider: &Provider) -> Option<&Pkey> {
        match self {
            Form::Empty => None,
            Form::Native(native) => native.child(provider),
            Form::Child(foreign) => Some(&foreign.pkey),
        }
    }

    /// The key for engines; `None` if they do not do its curve, or cannot take it.
    pub fn native(&self) -> Option<&Arc<Native>> {
        match self {
            Form::Empty => None,
            Form::Native(native) => Some(native),
            Form::Child(foreign) => {
                foreign.native.get_or_init(|| foreign.make_native().map(Arc::new)).as_ref()
            }
        }
    }

    fn has(&self, selection: c_int) -> bool {
        let (group, public, private) = match self {
            Form::Empty => (false, false, false),
            Form::Native(native) => (true, native.public().is_some(), native.scalar().is_some()),
            Form::Child(foreign) => (true, foreign.public, foreign.private),
        };
        (public || selection & id::SELECT_PUBLIC_KEY == 0)
            && (private || selection & id::SELECT_PRIVATE_KEY == 0)
            && (group || selection & id::SELECT_DOMAIN_PARAMETERS == 0)
    }

    fn same(&self, other: &Form, selection: c_int, provider: &Provider) -> bool {
        if let (Form::Native(one), Form::Native(two)) = (self, other) {
            if selection & id::SELECT_DOMAIN_PARAMETERS != 0 && one.group.curve != two.group.curve {
                return false;
            }
            if selection & id::SELECT_KEYPAIR == 0 {
                return true;
            }
            if selection & id::SELECT_PUBLIC_KEY != 0
                && let (Some(one), Some(two)) = (one.public(), two.public())
            {
                return one.bytes() == two.bytes();
            }
            if selection & id::SELECT_PRIVATE_KEY != 0
                && let (Some(one), Some(two)) = (one.scalar(), two.scalar())
            {
                return subtle::ConstantTimeEq::ct_eq(one, two).into();
            }
            return false;
        }
        let (Some(one), Some(two)) = (self.child(provider), other.child(provider)) else { return false };
        if one.as_ptr() == two.as_ptr() {
            // OpenSSL would not look. Nothing is equal to nothing.
            let has = |half| selection & half != 0 && self.has(half);
            let pair = has(id::SELECT_PUBLIC_KEY) || has(id::SELECT_PRIVATE_KEY);
            return selection & id::SELECT_KEYPAIR == 0 || pair;
        }
        one.is_same(two, selection & id::SELECT_KEYPAIR == 0)
    }

    /// Whether what is selected is a valid key. A native key's group is named and its point on the curve: only where
    /// a half is missing, or it is not known that the halves belong together, a child has to look.
    fn valid(&self, selection: c_int, quick: bool, provider: &Provider) -> bool {
        if selection & POSSIBLE == 0 {
            return true;
        }
        let pair = selection & id::SELECT_KEYPAIR == id::SELECT_KEYPAIR;
        if let Form::Native(native) = self
            && self.has(selection)
            && (native.paired || !pair)
        {
            return true;
        }
        let checking = self.child(provider).and_then(|key| PkeyCtx::by_key(&provider.child, key));
        let Some(checking) = checking else { return false };
        let passes = |part: c_int, check| selection & part == 0 || checking.passes(check);
        passes(id::SELECT_DOMAIN_PARAMETERS, Check::Parameters { quick })
            && passes(id::SELECT_PUBLIC_KEY, Check::Public { quick })
            && passes(id::SELECT_PRIVATE_KEY, Check::Private)
            && (!pair || checking.passes(Check::Pair))
    }

    fn selected(&self, selection: c_int, provider: &Provider) -> Option<Form> {
        match self {
            Form::Empty => Some(Form::Empty),
            _ if selection & POSSIBLE == POSSIBLE => Some(self.clone()),
            Form::Native(native) if selection & id::SELECT_DOMAIN_PARAMETERS != 0 => {
                Some(Form::Native(Arc::new(native.selected(selection))))
            }
            Form::Native(_) => None,
            Form::Child(foreign) => {
                let list = foreign.pkey.data(selection)?;
                Pkey::from_data(&provider.child, c"EC", selection, list.params()).map(Form::foreign)
            }
        }
    }
}

/// What OpenSSL knows as a key of ours.
pub struct Held {
    provider: &'static Provider,
    form: Mutex<Form>,
}

impl Held {
    /// The key as it is now.
    pub fn form(&self) -> Form {
        lock(&self.form).clone()
    }

    fn replace(&self, form: Form) {
        *lock(&self.form) = form;
    }

    fn new(provider: &'static Provider, form: Form) -> Held {
        Held { provider, form: Mutex::new(form) }
    }

    fn take_in(&self, selection: c_int, params: Params<'_>) -> bool {
        if selection & id::SELECT_DOMAIN_PARAMETERS == 0 {
            return false;
        }
        let form = match read(selection, params) {
            Some(native) => Some(Form::Native(Arc::new(native))),
            None => Pkey::from_data(&self.provider.child, c"EC", selection, params).map(Form::foreign),
        };
        form.map(|form| self.replace(form)).is_some()
    }

    fn change(&self, params: Params<'_>) -> bool {
        if params.is_empty() {
            return true;
        }
        let form = self.form();
        if let Form::Native(native) = &form
            && let Some(point) = only_point(params)
            && let Some(point) = Point::read(native.group, point)
        {
            self.replace(Form::Native(Arc::new(native.with_public(point))));
            return true;
        }
        // Forms are shared: what changes is a copy.
        let Some(mut copy) = form.child(self.provider).and_then(Pkey::duplicate) else { return false };
        let done = copy.set(params);
        // If it was refused, too: a part of it may be set then.
        self.replace(Form::foreign(copy));
        done
    }

    fn answer(&self, answers: &mut Answers<'_>) -> bool {
        let form = self.form();
        let known = match &form {
            Form::Empty => {
                raise(Reason::NoParametersSet);
                return false;
            }
            Form::Native(native) => answer(native, answers),
            Form::Child(_) => None,
        };
        known.unwrap_or_else(|| form.child(self.provider).is_some_and(|key| key.get(answers)))
    }
}

/// The encoded point, if that is all that is set.
fn only_point(params: Params<'_>) -> Option<&[u8]> {
    let mut all = params.iter();
    let first = all.next()?;
    if all.next().is_some() || first.key() != c"encoded-pub-key" {
        return None;
    }
    first.octets()
}

/// Answers what is often asked; `None` if it takes a child, which also knows why it refuses an answer.
fn answer(native: &Native, answers: &mut Answers<'_>) -> Option<bool> {
    let group = native.group;
    for mut one in answers.iter_mut() {
        let good = match (one.key().to_bytes(), native.public()) {
            (b"bits", _) => one.set_int(group.bits as c_int),
            (b"security-bits", _) => one.set_int(group.security_bits as c_int),
            (b"max-size", _) => one.set_int(group.signature_max() as c_int),
            (b"group", _) => one.set_text(group.name),
            (b"default-digest", _) => one.set_text(c"SHA256"),
            // No such thing for this key type: unanswered, as by OpenSSL's own.
            (b"mandatory-digest", _) | (b"pub", None) => true,
            // Answered since OpenSSL 3.5: no category of post-quantum strength.
            (b"security-category", _) => !has_categories() || one.set_int(0),
            // OpenSSL's own writes the point over the pointer, and over what follows.
            (b"encoded-pub-key", _) if one.is_pointer() => return Some(false),
            (b"pub" | b"encoded-pub-key", Some(point)) if one.is_octets() => one.set_octets(point.bytes()),
            _ => return None,
        };
        if !good {
            return None;
        }
    }
    Some(true)
}

fn has_categories() -> bool {
    version() >= (3, 5)
}

/// Whether every setting is one that native keys have.
fn usual(params: Params<'_>, group: &Group) -> bool {
    params.iter().all(|param| match param.key().to_bytes() {
        b"encoding" => param.text() == Some("named_curve"),
        b"point-format" => param.text() == Some("uncompressed"),
        b"group-check" => param.text() == Some("default"),
        b"use-cofactor-flag" | b"decoded-from-explicit" => param.equals(0),
        b"include-public" => param.equals(1),
        b"seed" => param.octets() == Some(group.seed),
        _ => true,
    })
}

/// A native key from what is imported, if it is one.
fn read(selection: c_int, params: Params<'_>) -> Option<Native> {
    let group = Group::by_name(params.get(c"group")?.text()?)?;
    if !usual(params, group) {
        return None;
    }
    if selection & id::SELECT_KEYPAIR == 0 {
        return Some(Native::new(group, None));
    }
    let point = Point::read(group, params.get(c"pub")?.octets()?)?;
    let native = Native::new(group, Some(point));
    match params.get(c"priv").filter(|_| selection & id::SELECT_PRIVATE_KEY != 0) {
        Some(scalar) => native.with_scalar(&Zeroizing::new(scalar.number()?)),
        None => Some(native),
    }
}

/// A key to be generated.
pub struct Generation {
    provider: &'static Provider,
    selection: c_int,
    group: Option<&'static Group>,
    template: Option<Form>,
    /// Everything that was set, for a child.
    set: Vec<Recorded>,
    /// Made when something was set that native keys do not have: it knows whether that is good.
    child: Option<PkeyCtx>,
}

impl Generation {
    /// Starts a child with what was set so far.
    fn start_child(&self) -> Option<PkeyCtx> {
        let context = &self.provider.child;
        let making = match &self.template {
            Some(template) => PkeyCtx::by_key(context, template.child(self.provider)?)?,
            None => PkeyCtx::by_name(context, c"EC")?,
        };
        let begun = making.begin_generation(self.selection & id::SELECT_KEYPAIR == 0);
        (begun && self.set.iter().all(|set| making.set(set.params()))).then_some(making)
    }

    fn set(&mut self, params: Params<'_>) -> bool {
        let Some(recorded) = Recorded::of(params) else { return params.is_empty() };
        if let Some(child) = &self.child {
            let good = child.set(recorded.params());
            self.set.push(recorded);
            return good;
        }
        self.set.push(recorded);
        let plain = params.iter().all(|param| match param.key().to_bytes() {
            b"group" => {
                self.group = param.text().and_then(Group::by_name);
                self.group.is_some()
            }
            b"encoding" => param.text() == Some("named_curve"),
            b"point-format" => param.text() == Some("uncompressed"),
            b"group-check" => param.text() == Some("default"),
            b"use-cofactor-flag" => param.equals(0),
            _ => false,
        });
        if plain {
            return true;
        }
        self.child = self.start_child();
        self.child.is_some()
    }

    fn make(&mut self) -> Option<Form> {
        let group = match &self.template {
            Some(Form::Native(native)) => Some(native.group),
            Some(_) => None,
            None => self.group,
        };
        if let (None, Some(group)) = (&self.child, group) {
            if self.selection & id::SELECT_KEYPAIR == 0 {
                return Some(Form::Native(Arc::new(Native::new(group, None))));
            }
            match Native::generate(self.provider, group) {
                Ok(native) => return Some(Form::Native(Arc::new(native))),
                Err(Error::Device(_) | Error::Withdrawn) => {
                    raise(Reason::FailedToGenerateKey);
                    return None;
                }
                Err(_) => {}
            }
        }
        if self.child.is_none() || self.template.is_some() {
            self.child = self.start_child();
        }
        self.child.as_ref()?.generate().map(Form::foreign)
    }
}

impl KeyType for Held {
    type Key = Held;
    type Generation = Generation;

    const SETS: bool = true;
    const TEMPLATES: bool = true;
    const NAMES: bool = true;

    fn new(provider: &'static Provider) -> Held {
        Held::new(provider, Form::Empty)
    }

    fn has(key: &Held, selection: c_int) -> bool {
        key.form().has(selection)
    }

    fn matches(one: &Held, two: &Held, selection: c_int) -> bool {
        one.form().same(&two.form(), selection, one.provider)
    }

    fn validate(key: &Held, selection: c_int, quick: bool) -> bool {
        key.form().valid(selection, quick, key.provider)
    }

    fn import(key: &Held, selection: c_int, params: Params<'_>) -> bool {
        key.take_in(selection, params)
    }

    fn export(key: &Held, selection: c_int, callback: &Callback) -> c_int {
        key.form().child(key.provider).map_or(0, |child| child.export(selection, callback))
    }

    /// One list for every selection: what is not selected is passed over.
    fn types(selection: c_int) -> Option<&'static [OSSL_PARAM]> {
        (selection & POSSIBLE != 0).then_some(&IMPORTED.0)
    }

    fn dup(key: &Held, selection: c_int) -> Option<Held> {
        let form = key.form().selected(selection, key.provider)?;
        Some(Held::new(key.provider, form))
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
        let begun =
            Generation { provider, selection, group: None, template: None, set: Vec::new(), child: None };
        (selection & POSSIBLE != 0).then_some(begun)
    }

    fn gen_set_template(generation: &mut Generation, template: &Held) -> bool {
        let form = template.form();
        if matches!(form, Form::Empty) {
            return false;
        }
        generation.template = Some(form);
        true
    }

    fn gen_set_params(generation: &mut Generation, params: Params<'_>) -> bool {
        generation.set(params)
    }

    fn gen_settable_params() -> &'static [OSSL_PARAM] {
        if version() >= (3, 2) { &MAKING.0 } else { &MAKING_BEFORE_3_2.0 }
    }

    fn generate(generation: &mut Generation, _: &Callback) -> Option<Held> {
        let form = generation.make()?;
        Some(Held::new(generation.provider, form))
    }

    fn query_operation_name(operation: c_int) -> *const c_char {
        match operation {
            id::OP_KEYEXCH => c"ECDH".as_ptr(),
            id::OP_SIGNATURE => c"ECDSA".as_ptr(),
            _ => null(),
        }
    }
}

/// The lists of `provider-keymgmt(7)`, "Elliptic Curve" (EVP_PKEY-EC(7)).
macro_rules! lists {
    ($($name:ident: [$(($key:literal, $kind:ident)),* $(,)?];)*) => { $(
        static $name: &Table<OSSL_PARAM, { [$($key),*].len() + 1 }> = &Table([$(describe($key, $kind),)* END]);
    )* };
}

lists! {
    GETTABLE: [
        (c"bits", PARAM_INTEGER), (c"security-bits", PARAM_INTEGER), (c"max-size", PARAM_INTEGER),
        (c"default-digest", PARAM_UTF8), (c"encoded-pub-key", PARAM_OCTETS),
        (c"decoded-from-explicit", PARAM_INTEGER), (c"group", PARAM_UTF8), (c"encoding", PARAM_UTF8),
        (c"point-format", PARAM_UTF8), (c"field-type", PARAM_UTF8), (c"p", PARAM_UNSIGNED), (c"a", PARAM_UNSIGNED),
        (c"b", PARAM_UNSIGNED), (c"generator", PARAM_OCTETS), (c"order", PARAM_UNSIGNED),
        (c"cofactor", PARAM_UNSIGNED), (c"seed", PARAM_OCTETS), (c"m", PARAM_INTEGER), (c"basis-type", PARAM_UTF8),
        (c"tp", PARAM_INTEGER), (c"k1", PARAM_INTEGER), (c"k2", PARAM_INTEGER), (c"k3", PARAM_INTEGER),
        (c"pub", PARAM_OCTETS), (c"qx", PARAM_UNSIGNED), (c"qy", PARAM_UNSIGNED), (c"priv", PARAM_UNSIGNED),
        (c"use-cofactor-flag", PARAM_INTEGER), (c"include-public", PARAM_INTEGER),
    ];
    SETTABLE: [
        (c"use-cofactor-flag", PARAM_INTEGER), (c"encoded-pub-key", PARAM_OCTETS), (c"encoding", PARAM_UTF8),
        (c"point-format", PARAM_UTF8), (c"seed", PARAM_OCTETS), (c"include-public", PARAM_INTEGER),
        (c"group-check", PARAM_UTF8),
    ];
    MAKING: [
        (c"group", PARAM_UTF8), (c"use-cofactor-flag", PARAM_INTEGER), (c"encoding", PARAM_UTF8),
        (c"point-format", PARAM_UTF8), (c"group-check", PARAM_UTF8), (c"field-type", PARAM_UTF8),
        (c"p", PARAM_UNSIGNED), (c"a", PARAM_UNSIGNED), (c"b", PARAM_UNSIGNED), (c"generator", PARAM_OCTETS),
        (c"order", PARAM_UNSIGNED), (c"cofactor", PARAM_UNSIGNED), (c"seed", PARAM_OCTETS),
        (c"dhkem-ikm", PARAM_OCTETS),
    ];
    MAKING_BEFORE_3_2: [
        (c"group", PARAM_UTF8), (c"use-cofactor-flag", PARAM_INTEGER), (c"encoding", PARAM_UTF8),
        (c"point-format", PARAM_UTF8), (c"group-check", PARAM_UTF8), (c"field-type", PARAM_UTF8),
        (c"p", PARAM_UNSIGNED), (c"a", PARAM_UNSIGNED), (c"b", PARAM_UNSIGNED), (c"generator", PARAM_OCTETS),
        (c"order", PARAM_UNSIGNED), (c"cofactor", PARAM_UNSIGNED), (c"seed", PARAM_OCTETS),
    ];
    IMPORTED: [
        (c"pub", PARAM_OCTETS), (c"priv", PARAM_UNSIGNED), (c"group", PARAM_UTF8), (c"encoding", PARAM_UTF8),
        (c"point-format", PARAM_UTF8), (c"field-type", PARAM_UTF8), (c"p", PARAM_UNSIGNED), (c"a", PARAM_UNSIGNED),
        (c"b", PARAM_UNSIGNED), (c"generator", PARAM_OCTETS), (c"order", PARAM_UNSIGNED),
        (c"cofactor", PARAM_UNSIGNED), (c"seed", PARAM_OCTETS), (c"decoded-from-explicit", PARAM_INTEGER),
        (c"use-cofactor-flag", PARAM_INTEGER), (c"include-public", PARAM_INTEGER),
    ];
}

/// Key management of "EC".
pub static FUNCTIONS: Table<OSSL_DISPATCH, 23> = keymgmt::table::<Held>();
