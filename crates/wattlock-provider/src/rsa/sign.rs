//! The signature `RSA`: PKCS#1 v1.5, PSS, X9.31 and none; of hashes and of messages.
//!
//! Of a caller's parameters only the common ones are understood here, and only to know what the accelerated operation
//! must do; whatever else comes makes the other provider's operation ([`super::mirror`]), which then says what is
//! accepted and what it amounts to.

use std::ffi::{CStr, CString, c_int};
use std::sync::Arc;

use super::FAST_MAX;
use super::key::Key;
use super::mirror::Mirror;
use super::pad::{self, HASHES};
use crate::arg::Out;
use crate::child::{Digest, Hashing, Operation};
use crate::entries::context;
use crate::entries::signature::{self, Signature};
use crate::error::{Reason, forget_whose_failure, raise, raise_with};
use crate::params::{Answers, END, List, Params, Table, describe};
use crate::provider::Provider;
use crate::sys::{OSSL_DISPATCH, OSSL_PARAM, PARAM_OCTETS, PARAM_UTF8};

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
    fn begin(&mut self, operation: Operation, key: Option<&Arc<Key>>, params: Params<'_>) -> bool {
        let Some(key) = key.or(self.mirror.as_ref().map(Mirror::key)).cloned() else {
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
        self.take(params)
    }

    fn take(&mut self, params: Params<'_>) -> bool {
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
    fn sign_fast(&mut self, out: &mut Out<'_>, input: &[u8]) -> Option<usize> {
        self.mirror.as_ref()?.key().fast()?;
        let facts = self.facts()?;
        let key = self.mirror.as_ref()?.key();
        let size = key.size();
        if out.room() < size {
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
        self.mirror.as_ref()?.key().perform(block, out.first(size)?).then_some(size)
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

    fn check(&mut self, signature: &[u8], input: &[u8]) -> c_int {
        if let (Some(facts), Some(mirror)) = (self.facts, self.mirror.as_mut())
            && mirror.operation() == Operation::Verify
            && !mirror.is_made()
            && let Some(context) = mirror.key().ready(facts)
        {
            mirror.adopt(context);
        }
        let Some(context) = self.mirror.as_mut().and_then(Mirror::context) else { return 0 };
        let outcome = context.verify(signature, input);
        if outcome != 1 {
            forget_whose_failure();
        }
        c_int::from(outcome == 1)
    }

    fn begin_message(
        &mut self,
        operation: Operation,
        name: Option<&CStr>,
        key: Option<&Arc<Key>>,
        params: Params<'_>,
    ) -> bool {
        // Begun again without a name, it is the hash of before.
        let before = self.message.take().map(|message| message.name);
        if !self.begin(operation, key, params) {
            return false;
        }
        let named = match name.map(CStr::to_owned).or(before) {
            Some(name) => {
                if !self.take(List::new().text(c"digest", &name).params()) {
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
        let mut hashing = Hashing::begin(&digest)?;
        if !params.is_empty() && !hashing.restart(&digest, params) {
            return None;
        }
        Some(Message { name, digest, hashing })
    }

    /// The message's hash. From here the hash function may be changed.
    fn finish(&mut self, hash: &mut [u8; 64]) -> Option<usize> {
        self.locked = false;
        self.message.as_mut()?.hashing.finish(hash)
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

impl context::Context for Context {
    fn new(provider: &'static Provider, _: Option<&CStr>) -> Context {
        Context { provider, mirror: None, facts: None, message: None, locked: false }
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

    fn get(&mut self, answers: &mut Answers<'_>) -> bool {
        answers.is_given() && self.mirror.as_mut().is_some_and(|mirror| mirror.get(answers))
    }

    fn gettable() -> &'static [OSSL_PARAM] {
        &GETTABLE.0
    }

    fn set(&mut self, params: Params<'_>) -> bool {
        self.take(params)
    }

    fn settable(context: Option<&Context>) -> &'static [OSSL_PARAM] {
        if context.is_some_and(|context| context.locked) { &SETTABLE_LOCKED.0 } else { &SETTABLE.0 }
    }
}

impl Signature for Context {
    type Key = Key;
    const RECOVERS: bool = true;

    fn init(&mut self, operation: Operation, key: Option<&Arc<Key>>, params: Params<'_>) -> bool {
        self.message = None;
        self.begin(operation, key, params)
    }

    fn sign(&mut self, out: &mut Out<'_>, hash: &[u8]) -> bool {
        let Some(mirror) = self.mirror.as_ref() else { return false };
        if out.is_question() {
            return out.done(mirror.key().size());
        }
        if let Some(len) = self.sign_fast(out, hash) {
            return out.done(len);
        }
        let Some(context) = self.mirror.as_mut().and_then(Mirror::context) else { return false };
        let signed = context.sign(out, hash) == 1;
        if !signed {
            forget_whose_failure();
        }
        signed
    }

    fn verify(&mut self, signature: &[u8], hash: &[u8]) -> c_int {
        self.check(signature, hash)
    }

    fn recover(&mut self, out: &mut Out<'_>, signature: &[u8]) -> bool {
        let Some(context) = self.mirror.as_mut().and_then(Mirror::context) else { return false };
        let recovered = context.recover(out, signature) == 1;
        if !recovered {
            forget_whose_failure();
        }
        recovered
    }

    fn digest_init(
        &mut self,
        operation: Operation,
        name: Option<&CStr>,
        key: Option<&Arc<Key>>,
        params: Params<'_>,
    ) -> bool {
        self.begin_message(operation, name, key, params)
    }

    fn digest_update(&mut self, data: &[u8]) -> bool {
        self.message.as_mut().is_some_and(|message| message.hashing.update(data))
    }

    fn digest_sign_final(&mut self, out: &mut Out<'_>) -> bool {
        let mut hash = [0; 64];
        let len = if out.is_question() { Some(0) } else { self.finish(&mut hash) };
        self.locked = false;
        let hash = len.and_then(|len| hash.get(..len));
        hash.is_some_and(|hash| self.sign(out, hash))
    }

    fn digest_verify_final(&mut self, signature: &[u8]) -> c_int {
        let mut hash = [0; 64];
        let len = self.finish(&mut hash);
        let hash = len.and_then(|len| hash.get(..len));
        hash.map_or(0, |hash| self.check(signature, hash))
    }

    fn digest(&self) -> Option<&Digest> {
        self.message.as_ref().map(|message| &message.digest)
    }

    fn hashing(&self) -> Option<&Hashing> {
        self.message.as_ref().map(|message| &message.hashing)
    }
}

/// Functions.
pub static TABLE: Table<OSSL_DISPATCH, 26> = signature::table::<Context>();
