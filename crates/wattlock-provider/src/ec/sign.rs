//! ECDSA. The digest is the host's, signing is the engines', verifying a child's.

use std::ffi::{CStr, CString, c_int};
use std::sync::Arc;

use wattlock::core::Error;
use zeroize::Zeroizing;

use super::key::{Form, Held};
use super::native::Native;
use crate::arg::Out;
use crate::child::{Digest, ELSEWHERE, Hashing, Operation, PkeyCtx, version};
use crate::entries::context;
use crate::entries::signature::{self, Signature};
use crate::error::{Reason, forget_whose_failure, raise, raise_with};
use crate::params::{Answers, END, List, Params, Recorded, Table, describe};
use crate::provider::Provider;
use crate::sys::{OSSL_DISPATCH, OSSL_PARAM, PARAM_OCTETS, PARAM_UNSIGNED, PARAM_UTF8};

/// `EVP_MAX_MD_SIZE`
const DIGEST_MAX: usize = 64;
/// What a failed call leaves behind it where nothing more is known.
const FAILED: c_int = 0;

struct Context {
    provider: &'static Provider,
    /// The host's properties for fetching digests.
    properties: Option<CString>,
    form: Option<Form>,
    doing: Operation,
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
    fn begin(&mut self, form: Option<Form>, doing: Operation, params: Params<'_>) -> bool {
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
        self.take(params)
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
            Some(mut hashing) => hashing.restart(digest, Params::EMPTY).then_some(hashing),
            None => Hashing::begin(digest),
        };
        let set =
            |mut hashing: Hashing| (params.is_empty() || hashing.restart(digest, params)).then_some(hashing);
        self.hashing = hashing.and_then(set);
        self.hashing.is_some()
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
        let good = digest.is_none_or(|name| child.set(List::new().text(c"digest", name).params()))
            && self.extras.iter().all(|set| child.set(set.params()));
        good.then_some(child)
    }

    fn child(&self) -> Option<PkeyCtx> {
        let key = self.form.as_ref()?.child(self.provider)?;
        let child = PkeyCtx::by_key(&self.provider.child, key)?;
        child.begin(self.doing, Params::EMPTY).then_some(child)
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
    fn sign_digest(&self, digest: &[u8], out: &mut [u8]) -> Option<usize> {
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
        let mut len = 0;
        let done = child.sign(&mut Out::within(out, &mut len), digest);
        if done != 1 {
            forget_whose_failure();
        }
        (done == 1).then_some(len)
    }

    fn verify_digest(&mut self, digest: &[u8], signature: &[u8]) -> c_int {
        if self.digest_size != 0 && digest.len() != self.digest_size {
            return FAILED;
        }
        if self.verifier.is_none() {
            self.verifier = self.child();
        }
        let Some(verifier) = &self.verifier else { return FAILED };
        let outcome = verifier.verify(signature, digest);
        if outcome != 1 {
            forget_whose_failure();
        }
        outcome
    }

    fn take(&mut self, params: Params<'_>) -> bool {
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

    fn answer(&self, answers: &mut Answers<'_>) -> bool {
        let own = |key: &CStr| matches!(key.to_bytes(), b"digest" | b"digest-size");
        if answers.iter_mut().any(|answer| !own(answer.key()))
            && self.named_child().is_none_or(|child| child.get(answers) != 1)
        {
            return false;
        }
        let name = self.digest.as_ref().map_or(c"", Digest::name);
        answers.set_size(c"digest-size", self.digest_size)
            && answers.iter_mut().all(|mut answer| !answer.is(c"digest") || answer.set_text(name))
    }

    fn update(&mut self, data: &[u8]) -> bool {
        self.hashing.as_mut().is_some_and(|hashing| hashing.update(data))
    }

    /// Says how long a signature may be, or signs.
    fn give(
        &mut self,
        out: &mut Out<'_>,
        sign: impl FnOnce(&mut Context, &mut [u8]) -> Option<usize>,
    ) -> bool {
        let most = self.signature_max();
        if out.is_question() {
            return out.done(most) && most > 0;
        }
        let signed = out.first(most).filter(|_| most > 0).and_then(|room| sign(self, room));
        signed.is_some_and(|len| out.done(len))
    }

    fn sign_hashed(&mut self, so_far: bool, out: &mut [u8]) -> Option<usize> {
        let mut digest = Zeroizing::new([0; DIGEST_MAX]);
        let len = self.hashed(so_far, &mut digest)?;
        self.sign_digest(&digest[..len], out)
    }

    fn verify_hashed(&mut self, so_far: bool, signature: &[u8]) -> c_int {
        let mut digest = [0; DIGEST_MAX];
        match self.hashed(so_far, &mut digest) {
            Some(len) => self.verify_digest(&digest[..len], signature),
            None => FAILED,
        }
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

impl context::Context for Context {
    fn new(provider: &'static Provider, properties: Option<&CStr>) -> Context {
        Context {
            provider,
            properties: properties.map(CStr::to_owned),
            form: None,
            doing: Operation::Sign,
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

    fn get(&mut self, answers: &mut Answers<'_>) -> bool {
        self.answer(answers)
    }

    fn gettable() -> &'static [OSSL_PARAM] {
        &GETTABLE.0
    }

    fn set(&mut self, params: Params<'_>) -> bool {
        self.take(params)
    }

    fn settable(_: Option<&Context>) -> &'static [OSSL_PARAM] {
        if version() >= (3, 2) { &SETTABLE.0 } else { &SETTABLE_BEFORE_3_2.0 }
    }
}

impl Signature for Context {
    type Key = Held;
    const WHOLE: bool = true;

    fn init(&mut self, operation: Operation, key: Option<&Arc<Held>>, params: Params<'_>) -> bool {
        self.begin(key.map(|key| key.form()), operation, params)
    }

    fn sign(&mut self, out: &mut Out<'_>, hash: &[u8]) -> bool {
        self.give(out, |context, out| context.sign_digest(hash, out))
    }

    fn verify(&mut self, signature: &[u8], hash: &[u8]) -> c_int {
        self.verify_digest(hash, signature)
    }

    fn digest_init(
        &mut self,
        operation: Operation,
        name: Option<&CStr>,
        key: Option<&Arc<Held>>,
        params: Params<'_>,
    ) -> bool {
        self.begin(key.map(|key| key.form()), operation, params)
            && self.begin_message(name.filter(|name| !name.is_empty()), params)
    }

    fn digest_update(&mut self, data: &[u8]) -> bool {
        self.update(data)
    }

    fn digest_sign_final(&mut self, out: &mut Out<'_>) -> bool {
        self.hashing.is_some() && self.give(out, |context, out| context.sign_hashed(false, out))
    }

    fn digest_verify_final(&mut self, signature: &[u8]) -> c_int {
        self.verify_hashed(false, signature)
    }

    /// As with OpenSSL's own, which does this in two calls, the message goes on afterwards.
    fn digest_sign(&mut self, out: &mut Out<'_>, data: &[u8]) -> bool {
        (out.is_question() || self.update(data))
            && self.give(out, |context, out| context.sign_hashed(true, out))
    }

    fn digest_verify(&mut self, signature: &[u8], data: &[u8]) -> c_int {
        if self.update(data) { self.verify_hashed(true, signature) } else { FAILED }
    }

    fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    fn hashing(&self) -> Option<&Hashing> {
        self.hashing.as_ref()
    }
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

/// ECDSA.
pub static FUNCTIONS: Table<OSSL_DISPATCH, 26> = signature::table::<Context>();

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
