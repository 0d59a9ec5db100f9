//! The signature `RSA`: PKCS#1 v1.5, PSS, X9.31 and none; of hashes and of messages.
//!
//! Of a caller's parameters only the common ones are understood here, and only to know what the accelerated operation
//! must do; whatever else comes makes the other provider's operation ([`super::mirror`]), which then says what is
//! accepted and what it amounts to.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::{null, null_mut};

use super::FAST_MAX;
use super::key::{self, Key};
use super::mirror::{Mirror, Operation, bytes};
use super::pad::{self, HASHES};
use crate::child::{Digest, Hashing};
use crate::cipher::dispatch;
use crate::error::{Reason, entry, forget_whose_failure, raise, raise_with};
use crate::params::{END, List, Params, Table, describe};
use crate::provider::Provider;
use crate::sys::{self, OSSL_DISPATCH, OSSL_PARAM, PARAM_OCTETS, PARAM_UTF8, id};

/// `RSA_..._PADDING`
const PKCS1: i64 = 1;
const NONE: i64 = 3;
const PSS: i64 = 6;
/// `RSA_PSS_SALTLEN_...`
const SALT_DIGEST: i64 = -1;
const SALT_AUTO: i64 = -2;
const SALT_MAX: i64 = -3;
const SALT_AUTO_DIGEST_MAX: i64 = -4;

/// A hash function that a parameter names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    /// None is named.
    Unset,
    /// A place in [`HASHES`].
    Known(usize),
    /// Not one of ours.
    Strange,
}

impl Named {
    /// What a name means.
    pub fn from(name: &str) -> Named {
        match name {
            "" => Named::Unset,
            name => pad::named(name).map_or(Named::Strange, Named::Known),
        }
    }
}

/// What the parameters amount to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    padding: i64,
    hash: Named,
    /// The mask's; the other one if it is not named.
    mask: Named,
    /// A length, or how to choose it. `None` if the library's default, which depends on its version.
    salt: Option<i64>,
}

const PLAIN: Facts = Facts { padding: PKCS1, hash: Named::Unset, mask: Named::Unset, salt: None };

impl Facts {
    /// What they are with more parameters, if those are all understood here and certain to be accepted.
    fn with(mut self, params: Params<'_>, key: &Key) -> Option<Facts> {
        let known = |text: Option<&str>| {
            let place = pad::named(text?)?;
            key.digest(place).map(|_| Named::Known(place))
        };
        let (mut salt, mut mask) = (false, false);
        for param in params.iter() {
            match param.key().to_bytes() {
                b"digest" => self.hash = known(param.text())?,
                b"pad-mode" => {
                    self.padding = match param.text() {
                        Some("pkcs1") => PKCS1,
                        Some("pss") => PSS,
                        Some(_) => return None,
                        None => param.signed().filter(|mode| [PKCS1, PSS].contains(mode))?,
                    };
                }
                b"saltlen" => {
                    // libcrypto writes what a program gives as a number in words.
                    let len = match param.text() {
                        Some("digest") => SALT_DIGEST,
                        Some("auto") => SALT_AUTO,
                        Some("max") => SALT_MAX,
                        Some(digits) => digits.parse().ok().filter(|len| *len >= 0)?,
                        None => param.signed()?,
                    };
                    self.salt = Some(len).filter(|len| (SALT_MAX..=FAST_MAX as i64).contains(len));
                    self.salt?;
                    salt = true;
                }
                b"mgf1-digest" => {
                    self.mask = known(param.text())?;
                    mask = true;
                }
                _ => return None,
            }
        }
        let sound = match self.padding {
            PSS => self.hash != Named::Unset,
            _ => !salt && !mask,
        };
        sound.then_some(self)
    }

    fn ask(mirror: &mut Mirror) -> Option<Facts> {
        Some(Facts {
            padding: mirror.number(c"pad-mode")?,
            hash: Named::from(&mirror.text(c"digest")?),
            mask: Named::from(&mirror.text(c"mgf1-digest")?),
            salt: Some(mirror.number(c"saltlen")?),
        })
    }
}

struct Context {
    provider: &'static Provider,
    mirror: Option<Mirror>,
    /// `None` until asked for, where parameters came that are not understood here.
    facts: Option<Facts>,
    /// Of an operation on messages.
    message: Option<Message>,
    /// Whether the hash may not be changed now.
    locked: bool,
}

/// A message being hashed.
struct Message {
    name: CString,
    digest: Digest,
    hashing: Hashing,
}

impl Context {
    fn begin(&mut self, operation: Operation, key: *mut c_void, params: Params<'_>) -> bool {
        let key = if key.is_null() {
            self.mirror.as_ref().map(|mirror| mirror.key().clone())
        } else {
            // SAFETY: a live key of ours.
            Some(unsafe { key::share(key) })
        };
        let Some(key) = key else {
            raise(Reason::NoKeySet);
            return false;
        };
        let plain = !key.is_pss() && operation != Operation::Recover;
        let mut mirror = Mirror::new(key, operation);
        // Whether a PSS key's restrictions make sense is the other provider's to say.
        if !plain && mirror.context().is_none() {
            return false;
        }
        self.facts = plain.then_some(PLAIN);
        self.mirror = Some(mirror);
        self.locked = false;
        self.set(params)
    }

    fn set(&mut self, params: Params<'_>) -> bool {
        let Some(mirror) = self.mirror.as_mut() else { return params.is_empty() };
        if let (true, Some(message), Some(param)) = (self.locked, &self.message, params.get(c"digest")) {
            let Some(name) = param.text() else { return false };
            let same = CString::new(name).is_ok_and(|name| message.digest.is(&name));
            if !same {
                raise_with(
                    Reason::DigestNotAllowed,
                    &format!("digest {name} != {}", message.name.to_string_lossy()),
                );
                return false;
            }
        }
        match self.facts.and_then(|facts| facts.with(params, mirror.key())) {
            Some(facts) => {
                self.facts = Some(facts);
                mirror.note(params)
            }
            None => {
                self.facts = None;
                mirror.set(params)
            }
        }
    }

    fn facts(&mut self) -> Option<Facts> {
        if self.facts.is_none() {
            self.facts = Facts::ask(self.mirror.as_mut()?);
        }
        self.facts
    }

    /// Signs on the runtime what it can.
    ///
    /// # Safety
    /// `signature` has `room` writable bytes.
    unsafe fn sign_fast(&mut self, signature: *mut u8, room: usize, input: &[u8]) -> Option<usize> {
        self.mirror.as_ref()?.key().fast()?;
        let facts = self.facts()?;
        let key = self.mirror.as_ref()?.key();
        let size = key.size();
        if room < size {
            return None;
        }
        let mut block = [0; FAST_MAX];
        let block = block.get_mut(..size)?;
        let filled = match (facts.padding, facts.hash) {
            (PKCS1, Named::Unset) => !input.is_empty() && pad::type_1(block, &[], input),
            (PKCS1, Named::Known(place)) => {
                let hash = &HASHES[place];
                input.len() == hash.size && pad::type_1(block, hash.prefix, input)
            }
            (NONE, Named::Unset) if input.len() == size => {
                block.copy_from_slice(input);
                true
            }
            (PSS, Named::Known(place)) if input.len() == HASHES[place].size => {
                let mask = match facts.mask {
                    Named::Known(mask) => mask,
                    Named::Unset => place,
                    Named::Strange => return None,
                };
                let salt = match facts.salt {
                    Some(salt) => salt,
                    None => {
                        let salt = self.mirror.as_mut()?.number(c"saltlen")?;
                        self.facts = Some(Facts { salt: Some(salt), ..facts });
                        salt
                    }
                };
                self.pss(block, place, mask, salt, input)?
            }
            _ => false,
        };
        if !filled {
            return None;
        }
        // SAFETY: the caller's; the input is not used any more.
        let output = unsafe { std::slice::from_raw_parts_mut(signature, size) };
        self.mirror.as_ref()?.key().perform(block, output).then_some(size)
    }

    fn pss(&self, block: &mut [u8], hash: usize, mask: usize, salt: i64, input: &[u8]) -> Option<bool> {
        let key = self.mirror.as_ref()?.key();
        let hash_len = HASHES[hash].size;
        let longest = block.len().checked_sub(hash_len + 2)?;
        let len = match salt {
            SALT_DIGEST => hash_len,
            SALT_AUTO | SALT_MAX => longest,
            SALT_AUTO_DIGEST_MAX => longest.min(hash_len),
            salt => usize::try_from(salt).ok()?,
        };
        if len > longest || key.min_salt().is_some_and(|least| (len as i64) < least) {
            return None;
        }
        let mut salt = [0; FAST_MAX];
        let salt = salt.get_mut(..len)?;
        if !self.provider.child.random(salt) {
            return None;
        }
        Some(pad::pss(block, key.digest(hash)?, key.digest(mask)?, input, salt))
    }

    /// # Safety
    /// `signature` is null or has `room` writable bytes; `len` is writable.
    unsafe fn sign(&mut self, signature: *mut u8, len: *mut usize, room: usize, input: &[u8]) -> c_int {
        let Some(mirror) = self.mirror.as_ref() else { return 0 };
        // SAFETY: the caller's.
        unsafe {
            if signature.is_null() {
                *len = mirror.key().size();
                return 1;
            }
            if let Some(done) = self.sign_fast(signature, room, input) {
                *len = done;
                return 1;
            }
            let Some(context) = self.mirror.as_mut().and_then(Mirror::context) else { return 0 };
            let mut done = room;
            let outcome =
                sys::EVP_PKEY_sign(context.as_ptr(), signature, &raw mut done, input.as_ptr(), input.len());
            if outcome == 1 {
                *len = done;
            } else {
                forget_whose_failure();
            }
            c_int::from(outcome == 1)
        }
    }

    fn verify(&mut self, signature: &[u8], input: &[u8]) -> c_int {
        if let (Some(facts), Some(mirror)) = (self.facts, self.mirror.as_mut())
            && mirror.operation() == Operation::Verify
            && !mirror.is_made()
            && let Some(context) = mirror.key().ready(facts)
        {
            mirror.adopt(context);
        }
        let Some(context) = self.mirror.as_mut().and_then(Mirror::context) else { return 0 };
        // SAFETY: a live context and readable bytes.
        let outcome = unsafe {
            sys::EVP_PKEY_verify(
                context.as_ptr(),
                signature.as_ptr(),
                signature.len(),
                input.as_ptr(),
                input.len(),
            )
        };
        if outcome != 1 {
            forget_whose_failure();
        }
        c_int::from(outcome == 1)
    }

    fn begin_message(
        &mut self,
        operation: Operation,
        name: Option<&CStr>,
        key: *mut c_void,
        params: Params<'_>,
    ) -> bool {
        // Begun again without a name, it is the hash of before.
        let before = self.message.take().map(|message| message.name);
        if !self.begin(operation, key, params) {
            return false;
        }
        let named = match name.map(CStr::to_owned).or(before) {
            Some(name) => {
                if !self.set(list_params(&List::new().text(c"digest", &name))) {
                    return false;
                }
                Some(name)
            }
            None => {
                let name = self.mirror.as_mut().and_then(|mirror| mirror.text(c"digest"));
                name.filter(|name| !name.is_empty()).and_then(|name| CString::new(name).ok())
            }
        };
        let Some(name) = named else {
            raise(Reason::InvalidDigest);
            return false;
        };
        self.message = self.message(name, params);
        self.locked = self.message.is_some();
        self.locked
    }

    fn message(&self, name: CString, params: Params<'_>) -> Option<Message> {
        let key = self.mirror.as_ref()?.key();
        let known = name.to_str().ok().and_then(pad::named).and_then(|place| key.digest(place)).cloned();
        let digest = known.or_else(|| self.provider.child.digest(&name))?;
        let hashing = Hashing::begin(&digest)?;
        if !params.is_empty() {
            // SAFETY: a live context, digest and list.
            let begun =
                unsafe { sys::EVP_DigestInit_ex2(hashing.as_ptr(), digest.as_ptr(), params.as_ptr()) };
            if begun != 1 {
                return None;
            }
        }
        Some(Message { name, digest, hashing })
    }

    fn update(&mut self, data: &[u8]) -> bool {
        self.message.as_mut().is_some_and(|message| message.hashing.update(data))
    }

    /// The message's hash. From here the hash function may be changed.
    fn finish(&mut self, hash: &mut [u8; 64]) -> Option<usize> {
        self.locked = false;
        self.message.as_mut()?.hashing.finish(hash)
    }

    fn duplicate(&self) -> Option<Context> {
        let message = match &self.message {
            Some(message) => Some(Message {
                name: message.name.clone(),
                digest: message.digest.clone(),
                hashing: message.hashing.duplicate()?,
            }),
            None => None,
        };
        Some(Context {
            provider: self.provider,
            mirror: self.mirror.as_ref().map(Mirror::duplicate),
            facts: self.facts,
            message,
            locked: self.locked,
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // A verification's facts are known only where every parameter was understood: they are all its state.
        if let (Some(facts), Some(mirror)) = (self.facts, self.mirror.as_mut())
            && mirror.operation() == Operation::Verify
            && let Some(context) = mirror.release()
        {
            mirror.key().keep(facts, context);
        }
    }
}

/// A list of ours as one to read.
fn list_params<'a>(list: &'a List<'_>) -> Params<'a> {
    // SAFETY: our lists are terminated and outlive what borrows them.
    unsafe { Params::new(list.as_ptr()) }
}

/// # Safety
/// `context` came from [`new_context`] or [`dup_context`] and is not freed; OpenSSL lets one thread at a time use it.
unsafe fn of<'a>(context: *mut c_void) -> &'a mut Context {
    // SAFETY: the caller's.
    unsafe { &mut *context.cast::<Context>() }
}

unsafe extern "C" fn new_context(context: *mut c_void, _: *const std::ffi::c_char) -> *mut c_void {
    entry(|| {
        // SAFETY: a live provctx, which outlives every context made from it.
        let provider = unsafe { Provider::of(context) };
        let context = Context { provider, mirror: None, facts: None, message: None, locked: false };
        Box::into_raw(Box::new(context)).cast()
    })
}

unsafe extern "C" fn free_context(context: *mut c_void) {
    if !context.is_null() {
        // SAFETY: made by us, freed once.
        entry(|| drop(unsafe { Box::from_raw(context.cast::<Context>()) }));
    }
}

unsafe extern "C" fn dup_context(context: *mut c_void) -> *mut c_void {
    entry(|| {
        // SAFETY: a live context.
        let copy = unsafe { of(context) }.duplicate();
        copy.map_or(null_mut(), |copy| Box::into_raw(Box::new(copy)).cast())
    })
}

const SIGN: u8 = 0;
const VERIFY: u8 = 1;
const RECOVER: u8 = 2;

const fn operation(number: u8) -> Operation {
    match number {
        SIGN => Operation::Sign,
        VERIFY => Operation::Verify,
        _ => Operation::Recover,
    }
}

unsafe extern "C" fn init<const OPERATION: u8>(
    context: *mut c_void,
    key: *mut c_void,
    params: *const OSSL_PARAM,
) -> c_int {
    entry(|| {
        // SAFETY: a live context, a live key or none, a list.
        unsafe {
            let context = of(context);
            context.message = None;
            c_int::from(context.begin(operation(OPERATION), key, Params::new(params)))
        }
    })
}

unsafe extern "C" fn sign(
    context: *mut c_void,
    signature: *mut u8,
    len: *mut usize,
    room: usize,
    input: *const u8,
    input_len: usize,
) -> c_int {
    // SAFETY: a live context and buffers of these lengths.
    entry(|| unsafe { of(context).sign(signature, len, room, bytes(input, input_len)) })
}

unsafe extern "C" fn verify(
    context: *mut c_void,
    signature: *const u8,
    len: usize,
    input: *const u8,
    input_len: usize,
) -> c_int {
    // SAFETY: a live context and readable buffers of these lengths.
    entry(|| unsafe { of(context).verify(bytes(signature, len), bytes(input, input_len)) })
}

unsafe extern "C" fn recover(
    context: *mut c_void,
    out: *mut u8,
    len: *mut usize,
    room: usize,
    signature: *const u8,
    signature_len: usize,
) -> c_int {
    entry(|| {
        // SAFETY: a live context and buffers of these lengths; a missing `out` asks for the length.
        unsafe {
            let Some(context) = of(context).mirror.as_mut().and_then(Mirror::context) else { return 0 };
            let mut done = room;
            let outcome =
                sys::EVP_PKEY_verify_recover(context.as_ptr(), out, &raw mut done, signature, signature_len);
            if outcome == 1 {
                *len = done;
            } else {
                forget_whose_failure();
            }
            c_int::from(outcome == 1)
        }
    })
}

unsafe extern "C" fn message_init<const OPERATION: u8>(
    context: *mut c_void,
    name: *const std::ffi::c_char,
    key: *mut c_void,
    params: *const OSSL_PARAM,
) -> c_int {
    entry(|| {
        // SAFETY: a live context, a C string or none, a live key or none, a list.
        unsafe {
            let name = (!name.is_null()).then(|| CStr::from_ptr(name));
            let context = of(context);
            c_int::from(context.begin_message(operation(OPERATION), name, key, Params::new(params)))
        }
    })
}

unsafe extern "C" fn message_update(context: *mut c_void, data: *const u8, len: usize) -> c_int {
    // SAFETY: a live context and readable bytes.
    entry(|| unsafe { c_int::from(of(context).update(bytes(data, len))) })
}

unsafe extern "C" fn message_sign(
    context: *mut c_void,
    signature: *mut u8,
    len: *mut usize,
    room: usize,
) -> c_int {
    entry(|| {
        // SAFETY: a live context and buffers of these lengths; a missing `signature` asks for the length.
        unsafe {
            let context = of(context);
            let mut hash = [0; 64];
            let hash_len = match signature.is_null() {
                true => Some(0),
                false => context.finish(&mut hash),
            };
            let hash = hash_len.and_then(|hash_len| hash.get(..hash_len));
            context.locked = false;
            hash.map_or(0, |hash| context.sign(signature, len, room, hash))
        }
    })
}

unsafe extern "C" fn message_verify(context: *mut c_void, signature: *const u8, len: usize) -> c_int {
    entry(|| {
        // SAFETY: a live context and readable bytes.
        unsafe {
            let context = of(context);
            let mut hash = [0; 64];
            let hash_len = context.finish(&mut hash);
            let hash = hash_len.and_then(|hash_len| hash.get(..hash_len));
            hash.map_or(0, |hash| context.verify(bytes(signature, len), hash))
        }
    })
}

unsafe extern "C" fn get_params(context: *mut c_void, params: *mut OSSL_PARAM) -> c_int {
    entry(|| {
        // SAFETY: a live context and a list to fill.
        unsafe {
            let mirror = of(context).mirror.as_mut();
            c_int::from(!params.is_null() && mirror.is_some_and(|mirror| mirror.get(params)))
        }
    })
}

unsafe extern "C" fn set_params(context: *mut c_void, params: *const OSSL_PARAM) -> c_int {
    // SAFETY: a live context and a list.
    entry(|| unsafe { c_int::from(of(context).set(Params::new(params))) })
}

const PADDING: OSSL_PARAM = describe(c"pad-mode", PARAM_UTF8);
const DIGEST: OSSL_PARAM = describe(c"digest", PARAM_UTF8);
const PROPERTIES: OSSL_PARAM = describe(c"properties", PARAM_UTF8);
const MASK: OSSL_PARAM = describe(c"mgf1-digest", PARAM_UTF8);
const MASK_PROPERTIES: OSSL_PARAM = describe(c"mgf1-properties", PARAM_UTF8);
const SALT: OSSL_PARAM = describe(c"saltlen", PARAM_UTF8);

static GETTABLE: Table<OSSL_PARAM, 6> =
    Table([describe(c"algorithm-id", PARAM_OCTETS), PADDING, DIGEST, MASK, SALT, END]);
static SETTABLE: Table<OSSL_PARAM, 7> =
    Table([DIGEST, PROPERTIES, PADDING, MASK, MASK_PROPERTIES, SALT, END]);
static SETTABLE_LOCKED: Table<OSSL_PARAM, 5> = Table([PADDING, MASK, MASK_PROPERTIES, SALT, END]);

unsafe extern "C" fn gettable(_: *mut c_void, _: *mut c_void) -> *const OSSL_PARAM {
    GETTABLE.as_ptr()
}

unsafe extern "C" fn settable(context: *mut c_void, _: *mut c_void) -> *const OSSL_PARAM {
    // SAFETY: a live context, or none.
    let locked = !context.is_null() && unsafe { of(context) }.locked;
    if locked { SETTABLE_LOCKED.as_ptr() } else { SETTABLE.as_ptr() }
}

unsafe extern "C" fn get_md_params(context: *mut c_void, params: *mut OSSL_PARAM) -> c_int {
    entry(|| {
        // SAFETY: a live context and a list to fill.
        unsafe {
            let message = of(context).message.as_ref();
            message.map_or(0, |message| sys::EVP_MD_CTX_get_params(message.hashing.as_ptr(), params))
        }
    })
}

unsafe extern "C" fn set_md_params(context: *mut c_void, params: *const OSSL_PARAM) -> c_int {
    entry(|| {
        // SAFETY: a live context and a list.
        unsafe {
            let message = of(context).message.as_ref();
            message.map_or(0, |message| sys::EVP_MD_CTX_set_params(message.hashing.as_ptr(), params))
        }
    })
}

unsafe extern "C" fn gettable_md(context: *mut c_void) -> *const OSSL_PARAM {
    entry(|| {
        // SAFETY: a live context and digest.
        unsafe {
            let message = of(context).message.as_ref();
            message.map_or(null(), |message| sys::EVP_MD_gettable_ctx_params(message.digest.as_ptr()))
        }
    })
}

unsafe extern "C" fn settable_md(context: *mut c_void) -> *const OSSL_PARAM {
    entry(|| {
        // SAFETY: a live context and digest.
        unsafe {
            let message = of(context).message.as_ref();
            message.map_or(null(), |message| sys::EVP_MD_settable_ctx_params(message.digest.as_ptr()))
        }
    })
}

/// Functions.
pub static TABLE: Table<OSSL_DISPATCH, 24> = dispatch![
    id::SIGNATURE_NEWCTX => new_context,
    id::SIGNATURE_FREECTX => free_context,
    id::SIGNATURE_DUPCTX => dup_context,
    id::SIGNATURE_SIGN_INIT => init::<SIGN>,
    id::SIGNATURE_SIGN => sign,
    id::SIGNATURE_VERIFY_INIT => init::<VERIFY>,
    id::SIGNATURE_VERIFY => verify,
    id::SIGNATURE_VERIFY_RECOVER_INIT => init::<RECOVER>,
    id::SIGNATURE_VERIFY_RECOVER => recover,
    id::SIGNATURE_DIGEST_SIGN_INIT => message_init::<SIGN>,
    id::SIGNATURE_DIGEST_SIGN_UPDATE => message_update,
    id::SIGNATURE_DIGEST_SIGN_FINAL => message_sign,
    id::SIGNATURE_DIGEST_VERIFY_INIT => message_init::<VERIFY>,
    id::SIGNATURE_DIGEST_VERIFY_UPDATE => message_update,
    id::SIGNATURE_DIGEST_VERIFY_FINAL => message_verify,
    id::SIGNATURE_GET_CTX_PARAMS => get_params,
    id::SIGNATURE_GETTABLE_CTX_PARAMS => gettable,
    id::SIGNATURE_SET_CTX_PARAMS => set_params,
    id::SIGNATURE_SETTABLE_CTX_PARAMS => settable,
    id::SIGNATURE_GET_CTX_MD_PARAMS => get_md_params,
    id::SIGNATURE_GETTABLE_CTX_MD_PARAMS => gettable_md,
    id::SIGNATURE_SET_CTX_MD_PARAMS => set_md_params,
    id::SIGNATURE_SETTABLE_CTX_MD_PARAMS => settable_md,
];
