//! The asymmetric cipher `RSA`: OAEP, PKCS#1 v1.5, the TLS premaster padding, and none.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use zeroize::{Zeroize, Zeroizing};

use super::key;
use super::mirror::{Mirror, Operation, bytes, entry as param};
use super::pad::{self, PREMASTER, Rejection};
use super::sign::Named;
use crate::child::PkeyCtx;
use crate::cipher::dispatch;
use crate::error::entry;
use crate::params::{Answers, END, Params, Table, describe, describe_uint};
use crate::provider::Provider;
use crate::sys::{
    self, OSSL_DISPATCH, OSSL_PARAM, PARAM_INTEGER, PARAM_OCTETS, PARAM_OCTETS_PTR, PARAM_UTF8, UNMODIFIED,
    id,
};

/// `RSA_..._PADDING`
const PKCS1: i64 = 1;
const NONE: i64 = 3;
const OAEP: i64 = 4;
const TLS: i64 = 7;

/// What the parameters amount to.
#[derive(Clone)]
struct Facts {
    padding: i64,
    hash: Named,
    mask: Named,
    label: Vec<u8>,
    client_version: i64,
    negotiated_version: i64,
}

const PLAIN: Facts = Facts {
    padding: PKCS1,
    hash: Named::Unset,
    mask: Named::Unset,
    label: Vec::new(),
    client_version: 0,
    negotiated_version: 0,
};

impl Facts {
    /// What they are with more parameters, if those are all understood here and certain to be accepted.
    fn with(mut self, params: Params<'_>) -> Option<Facts> {
        for param in params.iter() {
            let number = || param.int().filter(|number| (0..=i64::from(u16::MAX)).contains(number));
            match param.key().to_bytes() {
                b"pad-mode" => {
                    self.padding = match param.text() {
                        Some("pkcs1") => PKCS1,
                        Some(_) => return None,
                        None => param.signed().filter(|mode| [PKCS1, TLS].contains(mode))?,
                    };
                }
                b"tls-client-version" => self.client_version = number()?,
                b"tls-negotiated-version" => self.negotiated_version = number()?,
                _ => return None,
            }
        }
        Some(self)
    }

    fn ask(mirror: &mut Mirror) -> Option<Facts> {
        let mut label: *const u8 = std::ptr::null();
        let mut list = [param(c"oaep-label", PARAM_OCTETS_PTR, (&raw mut label).cast(), 0), END];
        // SAFETY: a terminated list with room for a pointer; the answer is a buffer of the other provider's that stays
        // until its next call.
        let label = unsafe {
            let answered = mirror.get(list.as_mut_ptr()) && list[0].return_size != UNMODIFIED;
            if answered { bytes(label, list[0].return_size).to_vec() } else { Vec::new() }
        };
        Some(Facts {
            padding: mirror.number(c"pad-mode")?,
            hash: Named::from(&mirror.text(c"digest")?),
            mask: Named::from(&mirror.text(c"mgf1-digest")?),
            label,
            client_version: mirror.number(c"tls-client-version")?,
            negotiated_version: mirror.number(c"tls-negotiated-version")?,
        })
    }
}

struct Context {
    provider: &'static Provider,
    mirror: Option<Mirror>,
    /// `None` until asked for, where parameters came that are not understood here.
    facts: Option<Facts>,
    /// Whether a forged ciphertext of PKCS#1 v1.5 yields a message that no caller can tell from a real one.
    implicit: bool,
    /// The private operation without padding, of a key that is not accelerated.
    raw: Option<PkeyCtx>,
}

impl Context {
    fn begin(&mut self, operation: Operation, key: *mut c_void, params: Params<'_>) -> bool {
        if key.is_null() {
            return false;
        }
        // SAFETY: a live key of ours.
        let key = unsafe { key::share(key) };
        let plain = !key.is_pss();
        let mut mirror = Mirror::new(key, operation);
        // The other provider refuses a PSS key, with its own reason.
        if !plain && mirror.context().is_none() {
            return false;
        }
        self.facts = plain.then_some(PLAIN);
        self.mirror = Some(mirror);
        self.implicit = true;
        self.raw = None;
        self.set(params)
    }

    fn set(&mut self, params: Params<'_>) -> bool {
        let Some(mirror) = self.mirror.as_mut() else { return params.is_empty() };
        match self.facts.clone().and_then(|facts| facts.with(params)) {
            Some(facts) => {
                self.facts = Some(facts);
                mirror.note(params)
            }
            None => {
                self.facts = None;
                if !mirror.set(params) {
                    return false;
                }
                // Libraries older than 3.2 do not know it and pass it by.
                if let Some(param) = params.get(c"implicit-rejection") {
                    let Some(value) = param.int() else { return false };
                    self.implicit = value != 0;
                }
                true
            }
        }
    }

    /// # Safety
    /// `params` is a list to fill, or null.
    unsafe fn get(&mut self, params: *mut OSSL_PARAM) -> bool {
        let Some(mirror) = self.mirror.as_mut() else { return false };
        // SAFETY: the caller's; the two uses follow one another.
        unsafe {
            !params.is_null()
                && mirror.get(params)
                && Answers::new(params).set_size(c"implicit-rejection", usize::from(self.implicit))
        }
    }

    /// The private operation of whatever key this is.
    fn private(&mut self, input: &[u8], output: &mut [u8]) -> bool {
        let Some(mirror) = self.mirror.as_ref() else { return false };
        let key = mirror.key();
        if key.perform(input, output) {
            return true;
        }
        if self.raw.is_none() {
            self.raw = key.elsewhere().and_then(|pkey| PkeyCtx::by_key(key.child(), pkey)).filter(unpadded);
        }
        let Some(raw) = &self.raw else { return false };
        let mut len = output.len();
        // SAFETY: a live context and buffers of these lengths.
        let done = unsafe {
            sys::EVP_PKEY_decrypt(
                raw.as_ptr(),
                output.as_mut_ptr(),
                &raw mut len,
                input.as_ptr(),
                input.len(),
            )
        };
        done == 1 && len == output.len()
    }

    /// Decrypts what is done on our side. `None` leaves it to the other provider.
    fn decrypt(&mut self, out: Option<&mut [u8]>, input: &[u8]) -> Option<Result<usize, ()>> {
        if self.facts.is_none() {
            self.facts = Some(Facts::ask(self.mirror.as_mut()?)?);
        }
        let facts = self.facts.as_ref()?;
        let key = self.mirror.as_ref()?.key().clone();
        let size = key.size();
        if !key.is_private() || size == 0 {
            return None;
        }
        let tls = facts.padding == TLS;
        let Some(out) = out else { return Some(Ok(if tls { PREMASTER } else { size })) };
        let fast = key.fast().is_some() && input.len() == size;
        match facts.padding {
            PKCS1 if self.implicit && out.len() >= size && (1..=size).contains(&input.len()) => {
                let mut whole = vec![0; size];
                whole[size - input.len()..].copy_from_slice(input);
                let mut block = Zeroizing::new(vec![0; size]);
                if !self.private(&whole, &mut block) {
                    return Some(Err(()));
                }
                let sha256 = key.digest(0)?;
                let rejection = Rejection::new(sha256, key.exponent_hash(sha256)?, &whole)?;
                Some(rejection.open(&block, out).ok_or(()))
            }
            TLS if fast && out.len() >= PREMASTER => {
                let version = u16::try_from(facts.client_version).ok().filter(|version| *version > 0)?;
                let tolerated = u16::try_from(facts.negotiated_version).ok()?;
                let mut random = Zeroizing::new([0; PREMASTER]);
                let mut block = Zeroizing::new(vec![0; size]);
                if !self.provider.child.random(&mut *random) || !key.perform(input, &mut block) {
                    return None;
                }
                let tolerated = (tolerated > 0).then_some(tolerated);
                let mut secret = pad::premaster(&block, version, tolerated, &random);
                out[..PREMASTER].copy_from_slice(&secret);
                secret.zeroize();
                Some(Ok(PREMASTER))
            }
            OAEP if fast && out.len() >= size => {
                let Named::Known(hash) = facts.hash else { return None };
                let mask = match facts.mask {
                    Named::Known(mask) => mask,
                    Named::Unset => hash,
                    Named::Strange => return None,
                };
                let (hash, mask) = (key.digest(hash)?, key.digest(mask)?);
                let mut block = Zeroizing::new(vec![0; size]);
                if !key.perform(input, &mut block) {
                    return None;
                }
                // A failure goes the other way once more, for its reason: what failed does not show in time.
                pad::oaep(&mut block, hash, mask, &facts.label, out).map(Ok)
            }
            NONE if fast && out.len() >= size => key.perform(input, &mut out[..size]).then_some(Ok(size)),
            _ => None,
        }
    }
}

/// Turns a fresh operation into decryption without padding.
fn unpadded(context: &PkeyCtx) -> bool {
    let mut mode = NONE as c_int;
    let list = [param(c"pad-mode", PARAM_INTEGER, (&raw mut mode).cast(), size_of::<c_int>()), END];
    // SAFETY: a live context; a terminated list over a variable of that size.
    unsafe { sys::EVP_PKEY_decrypt_init_ex(context.as_ptr(), list.as_ptr()) == 1 }
}

/// # Safety
/// `context` came from [`new_context`] or [`dup_context`] and is not freed; OpenSSL lets one thread at a time use it.
unsafe fn of<'a>(context: *mut c_void) -> &'a mut Context {
    // SAFETY: the caller's.
    unsafe { &mut *context.cast::<Context>() }
}

unsafe extern "C" fn new_context(context: *mut c_void) -> *mut c_void {
    entry(|| {
        // SAFETY: a live provctx, which outlives every context made from it.
        let provider = unsafe { Provider::of(context) };
        let context = Context { provider, mirror: None, facts: None, implicit: true, raw: None };
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
        let context = unsafe { of(context) };
        let copy = Context {
            provider: context.provider,
            mirror: context.mirror.as_ref().map(Mirror::duplicate),
            facts: context.facts.clone(),
            implicit: context.implicit,
            raw: None,
        };
        Box::into_raw(Box::new(copy)).cast()
    })
}

unsafe extern "C" fn init<const ENCRYPT: bool>(
    context: *mut c_void,
    key: *mut c_void,
    params: *const OSSL_PARAM,
) -> c_int {
    let operation = if ENCRYPT { Operation::Encrypt } else { Operation::Decrypt };
    // SAFETY: a live context, a live key or none, a list.
    entry(|| unsafe { c_int::from(of(context).begin(operation, key, Params::new(params))) })
}

type Crypt = unsafe extern "C" fn(*mut sys::EVP_PKEY_CTX, *mut u8, *mut usize, *const u8, usize) -> c_int;

/// # Safety
/// `out` is null or has `room` writable bytes; `len` is writable.
unsafe fn elsewhere(
    context: &mut Context,
    call: Crypt,
    out: *mut u8,
    len: *mut usize,
    room: usize,
    input: &[u8],
) -> c_int {
    let Some(context) = context.mirror.as_mut().and_then(Mirror::context) else { return 0 };
    let mut done = room;
    // SAFETY: the caller's; a live context.
    unsafe {
        let outcome = call(context.as_ptr(), out, &raw mut done, input.as_ptr(), input.len());
        if outcome == 1 {
            *len = done;
        }
        // Programs see -1 for a failure here, as from OpenSSL's own.
        outcome
    }
}

unsafe extern "C" fn encrypt(
    context: *mut c_void,
    out: *mut u8,
    len: *mut usize,
    room: usize,
    input: *const u8,
    input_len: usize,
) -> c_int {
    // SAFETY: a live context and buffers of these lengths.
    entry(|| unsafe {
        elsewhere(of(context), sys::EVP_PKEY_encrypt, out, len, room, bytes(input, input_len))
    })
}

unsafe extern "C" fn decrypt(
    context: *mut c_void,
    out: *mut u8,
    len: *mut usize,
    room: usize,
    input: *const u8,
    input_len: usize,
) -> c_int {
    entry(|| {
        // SAFETY: a live context and buffers of these lengths. A caller may decrypt in place: the input is copied.
        unsafe {
            let context = of(context);
            let input = bytes(input, input_len).to_vec();
            let space = (!out.is_null()).then(|| std::slice::from_raw_parts_mut(out, room));
            match context.decrypt(space, &input) {
                Some(Ok(done)) => {
                    *len = done;
                    1
                }
                Some(Err(())) => 0,
                None => elsewhere(context, sys::EVP_PKEY_decrypt, out, len, room, &input),
            }
        }
    })
}

unsafe extern "C" fn get_params(context: *mut c_void, params: *mut OSSL_PARAM) -> c_int {
    // SAFETY: a live context and a list to fill.
    entry(|| unsafe { c_int::from(of(context).get(params)) })
}

unsafe extern "C" fn set_params(context: *mut c_void, params: *const OSSL_PARAM) -> c_int {
    // SAFETY: a live context and a list.
    entry(|| unsafe { c_int::from(of(context).set(Params::new(params))) })
}

const PADDING: OSSL_PARAM = describe(c"pad-mode", PARAM_UTF8);
const DIGEST: OSSL_PARAM = describe(c"digest", PARAM_UTF8);
const MASK: OSSL_PARAM = describe(c"mgf1-digest", PARAM_UTF8);
const CLIENT: OSSL_PARAM = describe_uint(c"tls-client-version");
const NEGOTIATED: OSSL_PARAM = describe_uint(c"tls-negotiated-version");
const IMPLICIT: OSSL_PARAM = describe_uint(c"implicit-rejection");

static GETTABLE: Table<OSSL_PARAM, 8> = Table([
    DIGEST,
    PADDING,
    MASK,
    describe(c"oaep-label", PARAM_OCTETS_PTR),
    CLIENT,
    NEGOTIATED,
    IMPLICIT,
    END,
]);

static SETTABLE: Table<OSSL_PARAM, 10> = Table([
    DIGEST,
    describe(c"digest-props", PARAM_UTF8),
    PADDING,
    MASK,
    describe(c"mgf1-properties", PARAM_UTF8),
    describe(c"oaep-label", PARAM_OCTETS),
    CLIENT,
    NEGOTIATED,
    IMPLICIT,
    END,
]);

unsafe extern "C" fn gettable(_: *mut c_void, _: *mut c_void) -> *const OSSL_PARAM {
    GETTABLE.as_ptr()
}

unsafe extern "C" fn settable(_: *mut c_void, _: *mut c_void) -> *const OSSL_PARAM {
    SETTABLE.as_ptr()
}

/// Functions.
pub static TABLE: Table<OSSL_DISPATCH, 12> = dispatch![
    id::ASYM_CIPHER_NEWCTX => new_context,
    id::ASYM_CIPHER_FREECTX => free_context,
    id::ASYM_CIPHER_DUPCTX => dup_context,
    id::ASYM_CIPHER_ENCRYPT_INIT => init::<true>,
    id::ASYM_CIPHER_ENCRYPT => encrypt,
    id::ASYM_CIPHER_DECRYPT_INIT => init::<false>,
    id::ASYM_CIPHER_DECRYPT => decrypt,
    id::ASYM_CIPHER_GET_CTX_PARAMS => get_params,
    id::ASYM_CIPHER_GETTABLE_CTX_PARAMS => gettable,
    id::ASYM_CIPHER_SET_CTX_PARAMS => set_params,
    id::ASYM_CIPHER_SETTABLE_CTX_PARAMS => settable,
];
