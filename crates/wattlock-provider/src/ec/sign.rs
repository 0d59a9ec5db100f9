//! ECDSA. The digest is the host's, signing is the engines', verifying a child's.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use wattlock::core::Error;
use zeroize::Zeroizing;

use super::key::{Form, Held, version};
use super::native::Native;
use crate::child::{Digest, ELSEWHERE, Hashing, PkeyCtx};
use crate::cipher::dispatch;
use crate::error::{Reason, entry, forget_whose_failure, raise, raise_with};
use crate::params::{Answers, END, List, Params, Recorded, Table, describe};
use crate::provider::Provider;
use crate::sys::{self, OSSL_DISPATCH, OSSL_PARAM, PARAM_OCTETS, PARAM_UNSIGNED, PARAM_UTF8, id};

/// `EVP_MAX_MD_SIZE`
const DIGEST_MAX: usize = 64;
/// What a failed call leaves behind it where nothing more is known.
const FAILED: c_int = 0;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    Signing,
    Verifying,
}

struct Context {
    provider: &'static Provider,
    /// The host's properties for fetching digests.
    properties: Option<CString>,
    form: Option<Form>,
    doing: Doing,
    digest: Option<Digest>,
    /// As the caller called it.
    digest_name: CString,
    digest_size: usize,
    /// A message is under way: its digest stays.
    fixed: bool,
    hashing: Option<Hashing>,
    /// What was set that only a child knows: how nonces are made, tests of known answers.
    extras: Vec<Recorded>,
    /// Kept from one verification to the next.
    verifier: Option<PkeyCtx>,
}

impl Context {
    fn new(provider: &'static Provider, properties: Option<CString>) -> Context {
        Context {
            provider,
            properties,
            form: None,
            doing: Doing::Signing,
            digest: None,
            digest_name: CString::default(),
            digest_size: 0,
            fixed: false,
            hashing: None,
            extras: Vec::new(),
            verifier: None,
        }
    }

    fn duplicate(&self) -> Option<Context> {
        Some(Context {
            provider: self.provider,
            properties: self.properties.clone(),
            form: self.form.clone(),
            doing: self.doing,
            digest: self.digest.clone(),
            digest_name: self.digest_name.clone(),
            digest_size: self.digest_size,
            fixed: self.fixed,
            hashing: match &self.hashing {
                Some(hashing) => Some(hashing.duplicate()?),
                None => None,
            },
            extras: self.extras.iter().map(Recorded::again).collect::<Option<_>>()?,
            verifier: None,
        })
    }

    fn begin(&mut self, form: Option<Form>, doing: Doing, params: Params<'_>) -> bool {
        if form.is_none() && self.form.is_none() {
            raise(Reason::NoKeySet);
            return false;
        }
        if let Some(form) = form {
            self.form = Some(form);
            self.verifier = None;
        }
        self.doing = doing;
        self.fixed = false;
        self.set(params)
    }

    fn begin_message(&mut self, name: Option<&CStr>, params: Params<'_>) -> bool {
        if let Some(name) = name
            && !self.take_digest(name, None)
        {
            return false;
        }
        self.fixed = true;
        let Some(digest) = &self.digest else { return false };
        let hashing = match self.hashing.take() {
            Some(mut hashing) => hashing.restart(digest).then_some(hashing),
            None => Hashing::begin(digest),
        };
        let good = hashing.as_ref().is_some_and(|hashing| {
            let (at, digest) = (hashing.as_ptr(), digest.as_ptr());
            // SAFETY: a live context and digest; the caller's list.
            params.is_empty() || unsafe { sys::EVP_DigestInit_ex2(at, digest, params.as_ptr()) } == 1
        });
        self.hashing = hashing.filter(|_| good);
        good
    }

    /// Fetches a digest and makes it this operation's, unless a message is under way with another.
    fn take_digest(&mut self, name: &CStr, properties: Option<&str>) -> bool {
        // A context that is used again and again keeps what it has.
        if self.digest.is_some() && *name == *self.digest_name && properties.is_none() {
            return true;
        }
        let Some(digest) = self.fetch(name, properties) else {
            raise_with(Reason::InvalidDigest, &format!("{} could not be fetched", name.to_string_lossy()));
            return false;
        };
        if self.fixed {
            if !self.digest_name.is_empty() && !digest.is(&self.digest_name) {
                let words = format!("digest {name:?} != {:?}", self.digest_name);
                raise_with(Reason::DigestNotAllowed, &words);
                return false;
            }
            return true;
        }
        // Whether any other may be signed depends on OpenSSL's version.
        let usual = USUAL.contains(&name) || USUAL.iter().any(|usual| digest.is(usual));
        if !usual && self.child_with(Some(name)).is_none() {
            return false;
        }
        self.digest_size = digest.size();
        self.digest = Some(digest);
        self.digest_name = name.to_owned();
        self.hashing = None;
        true
    }

    fn fetch(&self, name: &CStr, properties: Option<&str>) -> Option<Digest> {
        let own = self.properties.as_ref().and_then(|own| own.to_str().ok());
        match properties.or(own).filter(|text| !text.is_empty()) {
            None => self.provider.child.digest(name),
            Some(text) => {
                let query = CString::new(format!("{text},{}", ELSEWHERE.to_str().ok()?)).ok()?;
                self.provider.child.digest_matching(name, &query)
            }
        }
    }

    /// A child that does what we are doing, with everything that was set.
    fn child_with(&self, digest: Option<&CStr>) -> Option<PkeyCtx> {
        let child = self.child()?;
        let list = digest.map(|name| List::new().text(c"digest", name));
        // SAFETY: a live context and terminated lists.
        unsafe {
            let good = list
                .is_none_or(|list| sys::EVP_PKEY_CTX_set_params(child.as_ptr(), list.as_ptr()) > 0)
                && self
                    .extras
                    .iter()
                    .all(|set| sys::EVP_PKEY_CTX_set_params(child.as_ptr(), set.as_ptr()) > 0);
            good.then_some(child)
        }
    }

    fn child(&self) -> Option<PkeyCtx> {
        let key = self.form.as_ref()?.child(self.provider)?;
        let child = PkeyCtx::by_key(&self.provider.child, key)?;
        // SAFETY: a live context.
        let begun = unsafe {
            match self.doing {
                Doing::Signing => sys::EVP_PKEY_sign_init_ex(child.as_ptr(), null()),
                Doing::Verifying => sys::EVP_PKEY_verify_init_ex(child.as_ptr(), null()),
            }
        };
        (begun == 1).then_some(child)
    }

    fn named_child(&self) -> Option<PkeyCtx> {
        self.child_with(self.digest.as_ref().map(|_| self.digest_name.as_c_str()))
    }

    fn signature_max(&self) -> usize {
        match &self.form {
            Some(Form::Native(native)) => native.group.signature_max(),
            Some(form) => form.child(self.provider).map_or(0, crate::child::Pkey::size),
            None => 0,
        }
    }

    /// Signs a digest into `out`, which has room for the largest signature.
    fn sign(&self, digest: &[u8], out: &mut [u8]) -> Option<usize> {
        if self.digest_size != 0 && digest.len() != self.digest_size {
            return None;
        }
        if let Some(native) = self.form.as_ref()?.native().filter(|_| self.extras.is_empty()) {
            match sign_native(self.provider, native, digest, out) {
                Some(Ok(len)) => return Some(len),
                Some(Err(Error::Device(_) | Error::Withdrawn)) => {
                    raise(Reason::FailedToSign);
                    return None;
                }
                // A key that engines do not take, or half a key: a child says what is wrong, or signs.
                Some(Err(_)) | None => {}
            }
        }
        let child = if self.extras.is_empty() { self.child() } else { self.named_child() }?;
        let mut len = out.len();
        // SAFETY: a live context and buffers of these lengths.
        let done = unsafe {
            let (to, from) = (out.as_mut_ptr(), digest.as_ptr());
            sys::EVP_PKEY_sign(child.as_ptr(), to, &raw mut len, from, digest.len())
        };
        if done != 1 {
            forget_whose_failure();
        }
        (done == 1).then_some(len)
    }

    fn verify(&mut self, digest: &[u8], signature: &[u8]) -> c_int {
        if self.digest_size != 0 && digest.len() != self.digest_size {
            return FAILED;
        }
        if self.verifier.is_none() {
            self.verifier = self.child();
        }
        let Some(verifier) = &self.verifier else { return FAILED };
        // SAFETY: a live context and buffers of these lengths.
        let outcome = unsafe {
            let at = verifier.as_ptr();
            sys::EVP_PKEY_verify(at, signature.as_ptr(), signature.len(), digest.as_ptr(), digest.len())
        };
        if outcome != 1 {
            forget_whose_failure();
        }
        outcome
    }

    fn set(&mut self, params: Params<'_>) -> bool {
        if let Some(name) = params.get(c"digest") {
            let properties = params.get(c"properties");
            let name = name.text().and_then(|name| CString::new(name).ok());
            let (Some(name), true) = (name, properties.is_none_or(|one| one.text().is_some())) else {
                return false;
            };
            if !self.take_digest(&name, properties.and_then(|one| one.text())) {
                return false;
            }
        }
        if let Some(size) = params.get(c"digest-size") {
            match size.size() {
                Some(size) if !self.fixed || size == self.digest_size => self.digest_size = size,
                _ => return false,
            }
        }
        if let Some(recorded) = Recorded::some(params, |name| name == c"nonce-type" || name == c"kat") {
            self.extras.push(recorded);
            if self.form.is_some() && self.named_child().is_none() {
                self.extras.pop();
                return false;
            }
        }
        true
    }

    fn get(&self, answers: &mut Answers<'_>) -> bool {
        let own = |key: &CStr| matches!(key.to_bytes(), b"digest" | b"digest-size");
        if answers.iter_mut().any(|answer| !own(answer.key())) {
            let Some(child) = self.named_child() else { return false };
            // SAFETY: a live context and the caller's list.
            if unsafe { sys::EVP_PKEY_CTX_get_params(child.as_ptr(), answers.as_mut_ptr()) } != 1 {
                return false;
            }
        }
        let name = match &self.digest {
            // SAFETY: a live digest; its name lives as long as its provider, which no answer outlives.
            Some(digest) => unsafe { CStr::from_ptr(sys::EVP_MD_get0_name(digest.as_ptr())) },
            None => c"",
        };
        answers.set_size(c"digest-size", self.digest_size)
            && answers.iter_mut().all(|mut answer| !answer.is(c"digest") || answer.set_text(name))
    }

    fn update(&mut self, data: &[u8]) -> bool {
        self.hashing.as_mut().is_some_and(|hashing| hashing.update(data))
    }

    /// Ends the message, or what it is so far.
    fn hashed(&mut self, so_far: bool, digest: &mut [u8; DIGEST_MAX]) -> Option<usize> {
        let hashing = self.hashing.as_mut()?;
        if so_far {
            return hashing.duplicate()?.finish(digest);
        }
        let len = hashing.finish(digest);
        self.fixed = false;
        len
    }
}

/// Digests that every version signs with any curve.
const USUAL: [&CStr; 9] = [
    c"SHA2-256",
    c"SHA2-384",
    c"SHA2-512",
    c"SHA1",
    c"SHA2-224",
    c"SHA3-224",
    c"SHA3-256",
    c"SHA3-384",
    c"SHA3-512",
];

/// Signs with an engine. `None` if it takes a child: without a private half, or with a digest shorter than engines
/// take.
fn sign_native(
    provider: &Provider,
    native: &Native,
    digest: &[u8],
    out: &mut [u8],
) -> Option<Result<usize, Error>> {
    let group = native.group;
    let key = native.key()?;
    if digest.len() < group.sign.info().least {
        return None;
    }
    let mut pair = [0; 96];
    let pair = &mut pair[..2 * group.len];
    Some(provider.perform(group.sign, key, digest, pair).map(|_| {
        let (r, s) = pair.split_at(group.len);
        encode(r, s, out)
    }))
}

/// `ECDSA-Sig-Value` (RFC 3279 section 2.2.3) in DER: two positive integers without needless zeros. All lengths are
/// below 128. `out` must have room for the largest.
fn encode(r: &[u8], s: &[u8], out: &mut [u8]) -> usize {
    let mut len = 2;
    for number in [r, s] {
        let zeros = number.iter().take_while(|byte| **byte == 0).count().min(number.len() - 1);
        let number = &number[zeros..];
        let pad = usize::from(number[0] & 0x80 != 0);
        out[len..len + 2].copy_from_slice(&[2, (pad + number.len()) as u8]);
        len += 2;
        out[len..len + pad].fill(0);
        len += pad;
        out[len..len + number.len()].copy_from_slice(number);
        len += number.len();
    }
    out[0] = 0x30;
    out[1] = (len - 2) as u8;
    len
}

/// # Safety
/// `context` came from [`new_context`] or [`dup_context`] and is not freed; OpenSSL lets one thread at a time use it.
unsafe fn of<'a>(context: *mut c_void) -> &'a mut Context {
    // SAFETY: the caller's.
    unsafe { &mut *context.cast::<Context>() }
}

/// # Safety
/// `at` has `len` readable bytes, or `len` is 0.
unsafe fn bytes<'a>(at: *const u8, len: usize) -> &'a [u8] {
    // SAFETY: the caller's.
    if at.is_null() || len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(at, len) } }
}

unsafe extern "C" fn new_context(context: *mut c_void, properties: *const c_char) -> *mut c_void {
    entry(|| {
        // SAFETY: a live provctx, which outlives every context made from it; a C string or null.
        let (provider, properties) = unsafe {
            let properties = (!properties.is_null()).then(|| CStr::from_ptr(properties).to_owned());
            (Provider::of(context), properties)
        };
        Box::into_raw(Box::new(Context::new(provider, properties))).cast()
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

const fn doing(sign: bool) -> Doing {
    if sign { Doing::Signing } else { Doing::Verifying }
}

unsafe extern "C" fn init<const SIGN: bool>(
    context: *mut c_void,
    key: *mut c_void,
    params: *const OSSL_PARAM,
) -> c_int {
    entry(|| {
        // SAFETY: a live context, key data of ours or null, a list.
        unsafe {
            let form = Held::of(key).map(Held::form);
            c_int::from(of(context).begin(form, doing(SIGN), Params::new(params)))
        }
    })
}

unsafe extern "C" fn message_init<const SIGN: bool>(
    context: *mut c_void,
    digest: *const c_char,
    key: *mut c_void,
    params: *const OSSL_PARAM,
) -> c_int {
    entry(|| {
        // SAFETY: as above; a C string or null.
        unsafe {
            let (context, params) = (of(context), Params::new(params));
            let name = (!digest.is_null()).then(|| CStr::from_ptr(digest));
            let form = Held::of(key).map(Held::form);
            c_int::from(
                context.begin(form, doing(SIGN), params)
                    && context.begin_message(name.filter(|name| !name.is_empty()), params),
            )
        }
    })
}

/// Says how long a signature may be, or signs.
///
/// # Safety
/// `signature` is null or has `room` writable bytes; `len` is writable.
unsafe fn give(
    context: &mut Context,
    signature: *mut u8,
    len: *mut usize,
    room: usize,
    sign: impl FnOnce(&mut Context, &mut [u8]) -> Option<usize>,
) -> c_int {
    let most = context.signature_max();
    // SAFETY: the caller's.
    unsafe {
        if signature.is_null() {
            *len = most;
            return c_int::from(most > 0);
        }
        if room < most || most == 0 {
            return 0;
        }
        match sign(context, std::slice::from_raw_parts_mut(signature, most)) {
            Some(done) => {
                *len = done;
                1
            }
            None => 0,
        }
    }
}

unsafe extern "C" fn sign(
    context: *mut c_void,
    signature: *mut u8,
    len: *mut usize,
    room: usize,
    digest: *const u8,
    digest_len: usize,
) -> c_int {
    // The digest may lie where the signature goes.
    // SAFETY: a live context and buffers of these lengths.
    entry(|| unsafe {
        let digest = bytes(digest, digest_len).to_vec();
        give(of(context), signature, len, room, |context, out| context.sign(&digest, out))
    })
}

unsafe extern "C" fn verify(
    context: *mut c_void,
    signature: *const u8,
    len: usize,
    digest: *const u8,
    digest_len: usize,
) -> c_int {
    // SAFETY: a live context and buffers of these lengths.
    entry(|| unsafe { of(context).verify(bytes(digest, digest_len), bytes(signature, len)) })
}

unsafe extern "C" fn update(context: *mut c_void, data: *const u8, len: usize) -> c_int {
    // SAFETY: a live context and a readable buffer.
    entry(|| unsafe { c_int::from(of(context).update(bytes(data, len))) })
}

fn sign_hashed(context: &mut Context, so_far: bool, out: &mut [u8]) -> Option<usize> {
    let mut digest = Zeroizing::new([0; DIGEST_MAX]);
    let len = context.hashed(so_far, &mut digest)?;
    context.sign(&digest[..len], out)
}

fn verify_hashed(context: &mut Context, so_far: bool, signature: &[u8]) -> c_int {
    let mut digest = [0; DIGEST_MAX];
    match context.hashed(so_far, &mut digest) {
        Some(len) => context.verify(&digest[..len], signature),
        None => FAILED,
    }
}

unsafe extern "C" fn sign_final(
    context: *mut c_void,
    signature: *mut u8,
    len: *mut usize,
    room: usize,
) -> c_int {
    // SAFETY: a live context and a buffer of this length.
    entry(|| unsafe {
        let context = of(context);
        if context.hashing.is_none() {
            return 0;
        }
        give(context, signature, len, room, |context, out| sign_hashed(context, false, out))
    })
}

unsafe extern "C" fn verify_final(context: *mut c_void, signature: *const u8, len: usize) -> c_int {
    // SAFETY: a live context and a buffer of this length.
    entry(|| unsafe { verify_hashed(of(context), false, bytes(signature, len)) })
}

/// A whole message. As with OpenSSL's own, which does this in two calls, the message goes on afterwards.
unsafe extern "C" fn sign_message(
    context: *mut c_void,
    signature: *mut u8,
    len: *mut usize,
    room: usize,
    data: *const u8,
    data_len: usize,
) -> c_int {
    // SAFETY: a live context and buffers of these lengths.
    entry(|| unsafe {
        let context = of(context);
        if !signature.is_null() && !context.update(bytes(data, data_len)) {
            return 0;
        }
        give(context, signature, len, room, |context, out| sign_hashed(context, true, out))
    })
}

unsafe extern "C" fn verify_message(
    context: *mut c_void,
    signature: *const u8,
    len: usize,
    data: *const u8,
    data_len: usize,
) -> c_int {
    // SAFETY: a live context and buffers of these lengths.
    entry(|| unsafe {
        let context = of(context);
        if !context.update(bytes(data, data_len)) {
            return FAILED;
        }
        verify_hashed(context, true, bytes(signature, len))
    })
}

unsafe extern "C" fn get_params(context: *mut c_void, params: *mut OSSL_PARAM) -> c_int {
    // SAFETY: a live context and a list to fill.
    entry(|| unsafe { c_int::from(of(context).get(&mut Answers::new(params))) })
}

unsafe extern "C" fn set_params(context: *mut c_void, params: *const OSSL_PARAM) -> c_int {
    // SAFETY: a live context and a list.
    entry(|| unsafe { c_int::from(of(context).set(Params::new(params))) })
}

unsafe extern "C" fn get_digest_params(context: *mut c_void, params: *mut OSSL_PARAM) -> c_int {
    // SAFETY: a live context and a list to fill.
    entry(|| unsafe {
        of(context).hashing.as_ref().map_or(0, |one| sys::EVP_MD_CTX_get_params(one.as_ptr(), params))
    })
}

unsafe extern "C" fn set_digest_params(context: *mut c_void, params: *const OSSL_PARAM) -> c_int {
    // SAFETY: a live context and a list.
    entry(|| unsafe {
        of(context).hashing.as_ref().map_or(0, |one| sys::EVP_MD_CTX_set_params(one.as_ptr(), params))
    })
}

unsafe extern "C" fn gettable_digest_params(context: *mut c_void) -> *const OSSL_PARAM {
    // SAFETY: a live context.
    entry(|| unsafe {
        of(context).digest.as_ref().map_or(null(), |one| sys::EVP_MD_gettable_ctx_params(one.as_ptr()))
    })
}

unsafe extern "C" fn settable_digest_params(context: *mut c_void) -> *const OSSL_PARAM {
    // SAFETY: a live context.
    entry(|| unsafe {
        of(context).digest.as_ref().map_or(null(), |one| sys::EVP_MD_settable_ctx_params(one.as_ptr()))
    })
}

static GETTABLE: Table<OSSL_PARAM, 4> = Table([
    describe(c"algorithm-id", PARAM_OCTETS),
    describe(c"digest-size", PARAM_UNSIGNED),
    describe(c"digest", PARAM_UTF8),
    END,
]);

static SETTABLE_BEFORE_3_2: Table<OSSL_PARAM, 5> = Table([
    describe(c"digest", PARAM_UTF8),
    describe(c"digest-size", PARAM_UNSIGNED),
    describe(c"properties", PARAM_UTF8),
    describe(c"kat", PARAM_UNSIGNED),
    END,
]);

static SETTABLE: Table<OSSL_PARAM, 6> = Table([
    describe(c"digest", PARAM_UTF8),
    describe(c"digest-size", PARAM_UNSIGNED),
    describe(c"properties", PARAM_UTF8),
    describe(c"kat", PARAM_UNSIGNED),
    describe(c"nonce-type", PARAM_UNSIGNED),
    END,
]);

unsafe extern "C" fn gettable(_: *mut c_void, _: *mut c_void) -> *const OSSL_PARAM {
    GETTABLE.as_ptr()
}

unsafe extern "C" fn settable(_: *mut c_void, _: *mut c_void) -> *const OSSL_PARAM {
    if version() >= (3, 2) { SETTABLE.as_ptr() } else { SETTABLE_BEFORE_3_2.as_ptr() }
}

/// ECDSA.
pub static FUNCTIONS: Table<OSSL_DISPATCH, 24> = dispatch![
    id::SIGNATURE_NEWCTX => new_context,
    id::SIGNATURE_FREECTX => free_context,
    id::SIGNATURE_DUPCTX => dup_context,
    id::SIGNATURE_SIGN_INIT => init::<true>,
    id::SIGNATURE_SIGN => sign,
    id::SIGNATURE_VERIFY_INIT => init::<false>,
    id::SIGNATURE_VERIFY => verify,
    id::SIGNATURE_DIGEST_SIGN_INIT => message_init::<true>,
    id::SIGNATURE_DIGEST_SIGN_UPDATE => update,
    id::SIGNATURE_DIGEST_SIGN_FINAL => sign_final,
    id::SIGNATURE_DIGEST_SIGN => sign_message,
    id::SIGNATURE_DIGEST_VERIFY_INIT => message_init::<false>,
    id::SIGNATURE_DIGEST_VERIFY_UPDATE => update,
    id::SIGNATURE_DIGEST_VERIFY_FINAL => verify_final,
    id::SIGNATURE_DIGEST_VERIFY => verify_message,
    id::SIGNATURE_GET_CTX_PARAMS => get_params,
    id::SIGNATURE_GETTABLE_CTX_PARAMS => gettable,
    id::SIGNATURE_SET_CTX_PARAMS => set_params,
    id::SIGNATURE_SETTABLE_CTX_PARAMS => settable,
    id::SIGNATURE_GET_CTX_MD_PARAMS => get_digest_params,
    id::SIGNATURE_GETTABLE_CTX_MD_PARAMS => gettable_digest_params,
    id::SIGNATURE_SET_CTX_MD_PARAMS => set_digest_params,
    id::SIGNATURE_SETTABLE_CTX_MD_PARAMS => settable_digest_params,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_minimal_and_positive() {
        let sign = |r: &[u8], s: &[u8]| {
            let mut out = [0xaa; 104];
            let len = encode(r, s, &mut out);
            out[..len].to_vec()
        };
        let mut wide = [0_u8; 32];
        wide[0] = 0x80;
        let mut narrow = [0_u8; 32];
        narrow[31] = 0x7f;
        let mut zeros = [0_u8; 32];
        zeros[30] = 0x80;
        assert_eq!(sign(&narrow, &narrow), [0x30, 6, 2, 1, 0x7f, 2, 1, 0x7f]);
        assert_eq!(sign(&narrow, &zeros), [0x30, 8, 2, 1, 0x7f, 2, 3, 0, 0x80, 0]);
        let long = sign(&wide, &wide);
        assert_eq!((long.len(), &long[..5]), (72, &[0x30, 70, 2, 33, 0][..]));
        assert_eq!(sign(&[0xff; 48], &[0xff; 48]).len(), 104);
    }
}
