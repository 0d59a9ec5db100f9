//! The asymmetric cipher `RSA`: OAEP, PKCS#1 v1.5, the TLS premaster padding, and none.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::sync::Arc;

use zeroize::{Zeroize, Zeroizing};

use super::key::Key;
use super::mirror::Mirror;
use super::pad::{self, PREMASTER, Rejection};
use super::sign::Named;
use crate::arg::{self, Out};
use crate::child::{Operation, PkeyCtx};
use crate::entries::asym_cipher::{self, AsymCipher};
use crate::entries::context;
use crate::params::{Answers, END, List, Params, Table, describe, describe_uint};
use crate::provider::Provider;
use crate::sys::{OSSL_DISPATCH, OSSL_PARAM, PARAM_OCTETS, PARAM_OCTETS_PTR, PARAM_UTF8, UNMODIFIED};

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
        let data = (&raw mut label).cast();
        let mut list = [OSSL_PARAM { data, ..describe(c"oaep-label", PARAM_OCTETS_PTR) }, END];
        // SAFETY: a terminated list with room for a pointer; the answer is a buffer of the other provider's that stays
        // until its next call.
        let label = unsafe {
            let answered =
                mirror.get(&mut Answers::new(list.as_mut_ptr())) && list[0].return_size != UNMODIFIED;
            if answered { arg::bytes(label, list[0].return_size).to_vec() } else { Vec::new() }
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
    fn begin(&mut self, operation: Operation, key: Arc<Key>, params: Params<'_>) -> bool {
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
        self.take(params)
    }

    fn take(&mut self, params: Params<'_>) -> bool {
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
        let done = raw.decrypt(&mut Out::within(output, &mut len), input);
        done == 1 && len == output.len()
    }

    /// Decrypts what is done on our side. `None` leaves it to the other provider.
    fn decrypt(&mut self, out: &mut Out<'_>, input: &[u8]) -> Option<Result<usize, ()>> {
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
        if out.is_question() {
            return Some(Ok(if tls { PREMASTER } else { size }));
        }
        let out = out.up_to(size.max(PREMASTER));
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
    let mode = NONE as c_int;
    context.begin(Operation::Decrypt, List::new().int(c"pad-mode", &mode).params())
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

impl context::Context for Context {
    fn new(provider: &'static Provider, _: Option<&CStr>) -> Context {
        Context { provider, mirror: None, facts: None, implicit: true, raw: None }
    }

    fn duplicate(&self) -> Option<Context> {
        Some(Context {
            provider: self.provider,
            mirror: self.mirror.as_ref().map(Mirror::duplicate),
            facts: self.facts.clone(),
            implicit: self.implicit,
            raw: None,
        })
    }

    fn get(&mut self, answers: &mut Answers<'_>) -> bool {
        let Some(mirror) = self.mirror.as_mut().filter(|_| answers.is_given()) else { return false };
        mirror.get(answers) && answers.set_size(c"implicit-rejection", usize::from(self.implicit))
    }

    fn gettable() -> &'static [OSSL_PARAM] {
        &GETTABLE.0
    }

    fn set(&mut self, params: Params<'_>) -> bool {
        self.take(params)
    }

    fn settable(_: Option<&Context>) -> &'static [OSSL_PARAM] {
        &SETTABLE.0
    }
}

impl AsymCipher for Context {
    type Key = Key;

    fn init(&mut self, encrypt: bool, key: Option<&Arc<Key>>, params: Params<'_>) -> bool {
        let operation = if encrypt { Operation::Encrypt } else { Operation::Decrypt };
        key.is_some_and(|key| self.begin(operation, key.clone(), params))
    }

    /// Programs see -1 for a failure of the other provider's, as from OpenSSL's own.
    fn crypt(&mut self, encrypt: bool, out: &mut Out<'_>, input: &[u8]) -> c_int {
        let done = if encrypt { None } else { self.decrypt(out, input) };
        match done {
            Some(Ok(len)) => c_int::from(out.done(len)),
            Some(Err(())) => 0,
            None => match self.mirror.as_mut().and_then(Mirror::context) {
                Some(context) if encrypt => context.encrypt(out, input),
                Some(context) => context.decrypt(out, input),
                None => 0,
            },
        }
    }
}

/// Functions.
pub static TABLE: Table<OSSL_DISPATCH, 12> = asym_cipher::table::<Context>();
