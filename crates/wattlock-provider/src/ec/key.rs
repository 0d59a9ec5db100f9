//! Management of keys of type "EC".
//!
//! A key is empty until it is imported into, generated, or set. Whoever uses it takes a [`Form`], which never changes.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use wattlock::core::Error;
use zeroize::Zeroizing;

use super::native::{Group, Native, POINT_MAX, Point};
use crate::child::{Pkey, PkeyCtx};
use crate::cipher::dispatch;
use crate::error::{Reason, entry, quietly, raise};
use crate::params::{Answers, END, Params, Recorded, Table, describe};
use crate::provider::Provider;
use crate::sys::{
    self, OSSL_CALLBACK, OSSL_DISPATCH, OSSL_PARAM, PARAM_INTEGER, PARAM_OCTETS, PARAM_UNSIGNED, PARAM_UTF8,
    UNMODIFIED, id,
};

/// `OSSL_KEYMGMT_VALIDATE_QUICK_CHECK`
const QUICK: c_int = 1;
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

fn question(key: &'static std::ffi::CStr, data_type: c_uint, room: &mut [u8]) -> OSSL_PARAM {
    OSSL_PARAM { data: room.as_mut_ptr().cast(), data_size: room.len(), ..describe(key, data_type) }
}

/// More than any private scalar of a curve that OpenSSL takes (661 bits).
const SCALAR_ROOM: usize = 128;

impl Foreign {
    fn new(pkey: Pkey) -> Foreign {
        let mut scalar = Zeroizing::new([0; SCALAR_ROOM]);
        // (By this name a point counts that the key's own form of points cannot write.)
        let mut public = [describe(c"encoded-pub-key", PARAM_OCTETS), END];
        let mut private = [question(c"priv", PARAM_UNSIGNED, &mut *scalar), END];
        // SAFETY: a live key and terminated lists with room for their answers. What a key lacks stays unmodified.
        unsafe {
            sys::EVP_PKEY_get_params(pkey.as_ptr(), public.as_mut_ptr());
            sys::EVP_PKEY_get_params(pkey.as_ptr(), private.as_mut_ptr());
        }
        Foreign {
            pkey,
            public: public[0].return_size != UNMODIFIED,
            private: private[0].return_size != UNMODIFIED,
            native: OnceLock::new(),
        }
    }

    fn make_native(&self) -> Option<Native> {
        let mut name = [0; 64];
        let mut point = [0; POINT_MAX];
        let mut scalar = Zeroizing::new([0; SCALAR_ROOM]);
        let mut list = [question(c"group", PARAM_UTF8, &mut name), END];
        // SAFETY: a live key and a terminated list with room for its answer.
        let asked = unsafe { sys::EVP_PKEY_get_params(self.pkey.as_ptr(), list.as_mut_ptr()) };
        let len = list[0].return_size;
        if asked != 1 || len == UNMODIFIED || !self.public {
            return None;
        }
        let group = Group::by_name(std::str::from_utf8(name.get(..len)?).ok()?)?;
        let mut list = [question(c"encoded-pub-key", PARAM_OCTETS, &mut point), END, END];
        if self.private {
            list[1] = question(c"priv", PARAM_UNSIGNED, &mut *scalar);
        }
        // SAFETY: as above.
        if unsafe { sys::EVP_PKEY_get_params(self.pkey.as_ptr(), list.as_mut_ptr()) } != 1 {
            return None;
        }
        let native = Native::new(group, Some(Point::read(group, point.get(..list[0].return_size)?)?));
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
        // SAFETY: public calls without pointers; what a key lacks is no error of the call that brought it.
        unsafe {
            sys::ERR_set_mark();
            let form = Form::Child(Arc::new(Foreign::new(pkey)));
            sys::ERR_pop_to_mark();
            form
        }
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
        // SAFETY: two live keys.
        unsafe {
            if selection & id::SELECT_KEYPAIR != 0 {
                sys::EVP_PKEY_eq(one.as_ptr(), two.as_ptr()) == 1
            } else {
                sys::EVP_PKEY_parameters_eq(one.as_ptr(), two.as_ptr()) == 1
            }
        }
    }

    /// Whether what is selected is a valid key. A native key's group is named and its point on the curve: only where
    /// a half is missing, or it is not known that the halves belong together, a child has to look.
    fn valid(&self, selection: c_int, check: c_int, provider: &Provider) -> bool {
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
        let quick = check == QUICK;
        let asked = |part: c_int| selection & part != 0;
        // SAFETY: a live context; each call checks what it names.
        unsafe {
            let at = checking.as_ptr();
            (!asked(id::SELECT_DOMAIN_PARAMETERS)
                || if quick { sys::EVP_PKEY_param_check_quick(at) } else { sys::EVP_PKEY_param_check(at) }
                    == 1)
                && (!asked(id::SELECT_PUBLIC_KEY)
                    || if quick {
                        sys::EVP_PKEY_public_check_quick(at)
                    } else {
                        sys::EVP_PKEY_public_check(at)
                    } == 1)
                && (!asked(id::SELECT_PRIVATE_KEY) || sys::EVP_PKEY_private_check(at) == 1)
                && (!pair || sys::EVP_PKEY_pairwise_check(at) == 1)
        }
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
                let mut list = null_mut();
                // SAFETY: a live key; the list is ours, read once and wiped when it is freed.
                unsafe {
                    if sys::EVP_PKEY_todata(foreign.pkey.as_ptr(), selection, &raw mut list) != 1 {
                        return None;
                    }
                    let list = Recorded::adopt(list);
                    Pkey::from_data(&provider.child, c"EC", selection, list.params()).map(Form::foreign)
                }
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
        self.form.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace(&self, form: Form) {
        *self.form.lock().unwrap_or_else(PoisonError::into_inner) = form;
    }

    fn pointer(provider: &'static Provider, form: Form) -> *mut c_void {
        Box::into_raw(Box::new(Held { provider, form: Mutex::new(form) })).cast()
    }

    /// # Safety
    /// `key` is null, or key data of ours that is not freed.
    pub unsafe fn of<'a>(key: *const c_void) -> Option<&'a Held> {
        // SAFETY: the caller's.
        unsafe { key.cast::<Held>().as_ref() }
    }

    fn import(&self, selection: c_int, params: Params<'_>) -> bool {
        if selection & id::SELECT_DOMAIN_PARAMETERS == 0 {
            return false;
        }
        let form = match read(selection, params) {
            Some(native) => Some(Form::Native(Arc::new(native))),
            None => Pkey::from_data(&self.provider.child, c"EC", selection, params).map(Form::foreign),
        };
        form.map(|form| self.replace(form)).is_some()
    }

    fn set(&self, params: Params<'_>) -> bool {
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
        let Some(copy) = form.child(self.provider).and_then(Pkey::duplicate) else { return false };
        // SAFETY: a live key with one owner; the list is only read.
        let done = unsafe { sys::EVP_PKEY_set_params(copy.as_ptr(), params.as_ptr().cast_mut()) } == 1;
        // If it was refused, too: a part of it may be set then.
        self.replace(Form::foreign(copy));
        done
    }

    fn get(&self, answers: &mut Answers<'_>) -> bool {
        let form = self.form();
        let known = match &form {
            Form::Empty => {
                raise(Reason::NoParametersSet);
                return false;
            }
            Form::Native(native) => answer(native, answers),
            Form::Child(_) => None,
        };
        known.unwrap_or_else(|| {
            form.child(self.provider).is_some_and(|key| {
                // SAFETY: a live key and the caller's list.
                unsafe { sys::EVP_PKEY_get_params(key.as_ptr(), answers.as_mut_ptr()) == 1 }
            })
        })
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

/// OpenSSL's version, as it runs.
pub fn version() -> (c_uint, c_uint) {
    // SAFETY: public calls without arguments.
    unsafe { (sys::OPENSSL_version_major(), sys::OPENSSL_version_minor()) }
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
struct Making {
    provider: &'static Provider,
    selection: c_int,
    group: Option<&'static Group>,
    template: Option<Form>,
    /// Everything that was set, for a child.
    set: Vec<Recorded>,
    /// Made when something was set that native keys do not have: it knows whether that is good.
    child: Option<PkeyCtx>,
}

impl Making {
    /// Starts a child with what was set so far.
    fn start_child(&self) -> Option<PkeyCtx> {
        let context = &self.provider.child;
        let making = match &self.template {
            Some(template) => PkeyCtx::by_key(context, template.child(self.provider)?)?,
            None => PkeyCtx::by_name(context, c"EC")?,
        };
        // SAFETY: a live context and lists of our own.
        unsafe {
            let begun = if self.selection & id::SELECT_KEYPAIR == 0 {
                sys::EVP_PKEY_paramgen_init(making.as_ptr())
            } else {
                sys::EVP_PKEY_keygen_init(making.as_ptr())
            };
            let good = begun == 1
                && self.set.iter().all(|set| sys::EVP_PKEY_CTX_set_params(making.as_ptr(), set.as_ptr()) > 0);
            good.then_some(making)
        }
    }

    fn set(&mut self, params: Params<'_>) -> bool {
        let Some(recorded) = Recorded::of(params) else { return params.is_empty() };
        if let Some(child) = &self.child {
            // SAFETY: a live context and a terminated list.
            let good = unsafe { sys::EVP_PKEY_CTX_set_params(child.as_ptr(), recorded.as_ptr()) } > 0;
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
        let child = self.child.as_ref()?;
        let mut key = null_mut();
        // SAFETY: a live context; on success the key is ours.
        unsafe {
            if sys::EVP_PKEY_generate(child.as_ptr(), &raw mut key) != 1 {
                return None;
            }
            Pkey::adopt(key).map(Form::foreign)
        }
    }
}

unsafe extern "C" fn new_key(context: *mut c_void) -> *mut c_void {
    // SAFETY: a live provctx.
    entry(|| Held::pointer(unsafe { Provider::of(context) }, Form::Empty))
}

unsafe extern "C" fn free_key(key: *mut c_void) {
    if !key.is_null() {
        // SAFETY: made by `Held::pointer`, freed once.
        entry(|| drop(unsafe { Box::from_raw(key.cast::<Held>()) }));
    }
}

unsafe extern "C" fn has(key: *const c_void, selection: c_int) -> c_int {
    // SAFETY: key data of ours.
    entry(|| c_int::from(unsafe { Held::of(key) }.is_some_and(|held| held.form().has(selection))))
}

unsafe extern "C" fn matches(one: *const c_void, two: *const c_void, selection: c_int) -> c_int {
    entry(|| {
        // SAFETY: key data of ours.
        let (Some(one), Some(two)) = (unsafe { Held::of(one) }, unsafe { Held::of(two) }) else { return 0 };
        c_int::from(one.form().same(&two.form(), selection, one.provider))
    })
}

unsafe extern "C" fn validate(key: *const c_void, selection: c_int, check: c_int) -> c_int {
    entry(|| {
        // SAFETY: key data of ours.
        let Some(held) = (unsafe { Held::of(key) }) else { return 0 };
        c_int::from(held.form().valid(selection, check, held.provider))
    })
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
        let Some(held) = (unsafe { Held::of(key) }) else { return 0 };
        let form = held.form();
        let Some(child) = form.child(held.provider) else { return 0 };
        // SAFETY: a live key; the callback and its argument belong together.
        unsafe { sys::EVP_PKEY_export(child.as_ptr(), selection, callback, argument) }
    })
}

unsafe extern "C" fn duplicate(key: *const c_void, selection: c_int) -> *mut c_void {
    entry(|| {
        // SAFETY: key data of ours.
        let Some(held) = (unsafe { Held::of(key) }) else { return null_mut() };
        let copy = held.form().selected(selection, held.provider);
        copy.map_or(null_mut(), |form| Held::pointer(held.provider, form))
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
        if selection & POSSIBLE == 0 {
            return null_mut();
        }
        // SAFETY: a live provctx and a list.
        let (provider, params) = unsafe { (Provider::of(context), Params::new(params)) };
        let mut making =
            Making { provider, selection, group: None, template: None, set: Vec::new(), child: None };
        if making.set(params) { Box::into_raw(Box::new(making)).cast() } else { null_mut() }
    })
}

/// # Safety
/// `making` is null, or came from [`begin_making`] and is not freed.
unsafe fn making<'a>(making: *mut c_void) -> Option<&'a mut Making> {
    // SAFETY: the caller's; one thread at a time uses it.
    unsafe { making.cast::<Making>().as_mut() }
}

unsafe extern "C" fn set_template(making_: *mut c_void, template: *mut c_void) -> c_int {
    entry(|| {
        // SAFETY: ours, both.
        let (Some(making), Some(held)) = (unsafe { making(making_) }, unsafe { Held::of(template) }) else {
            return 0;
        };
        let form = held.form();
        if matches!(form, Form::Empty) {
            return 0;
        }
        making.template = Some(form);
        1
    })
}

unsafe extern "C" fn set_making(making_: *mut c_void, params: *const OSSL_PARAM) -> c_int {
    // SAFETY: ours, and a list.
    entry(|| unsafe { c_int::from(making(making_).is_some_and(|making| making.set(Params::new(params)))) })
}

unsafe extern "C" fn make(making_: *mut c_void, _: OSSL_CALLBACK, _: *mut c_void) -> *mut c_void {
    entry(|| {
        // SAFETY: ours.
        let Some(making) = (unsafe { making(making_) }) else { return null_mut() };
        let provider = making.provider;
        making.make().map_or(null_mut(), |form| Held::pointer(provider, form))
    })
}

unsafe extern "C" fn end_making(making: *mut c_void) {
    if !making.is_null() {
        // SAFETY: made by `begin_making`, freed once.
        entry(|| drop(unsafe { Box::from_raw(making.cast::<Making>()) }));
    }
}

unsafe extern "C" fn operation_name(operation: c_int) -> *const std::ffi::c_char {
    match operation {
        id::OP_KEYEXCH => c"ECDH".as_ptr(),
        id::OP_SIGNATURE => c"ECDSA".as_ptr(),
        _ => null(),
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

unsafe extern "C" fn gettable(_: *mut c_void) -> *const OSSL_PARAM {
    GETTABLE.as_ptr()
}

unsafe extern "C" fn settable(_: *mut c_void) -> *const OSSL_PARAM {
    SETTABLE.as_ptr()
}

unsafe extern "C" fn making_settable(_: *mut c_void, _: *mut c_void) -> *const OSSL_PARAM {
    if version() >= (3, 2) { MAKING.as_ptr() } else { MAKING_BEFORE_3_2.as_ptr() }
}

/// One list for every selection: what is not selected is passed over.
unsafe extern "C" fn types(selection: c_int) -> *const OSSL_PARAM {
    if selection & POSSIBLE == 0 { null() } else { IMPORTED.as_ptr() }
}

/// Key management of "EC".
pub static FUNCTIONS: Table<OSSL_DISPATCH, 22> = dispatch![
    id::KEYMGMT_NEW => new_key,
    id::KEYMGMT_FREE => free_key,
    id::KEYMGMT_GEN_INIT => begin_making,
    id::KEYMGMT_GEN_SET_TEMPLATE => set_template,
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
    id::KEYMGMT_QUERY_OPERATION_NAME => operation_name,
];
