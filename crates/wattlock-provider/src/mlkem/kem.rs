//! Encapsulation and decapsulation.

use std::ffi::CStr;
use std::sync::Arc;

use subtle::ConstantTimeEq;
use wattlock::core::{Data, Error, Item, Key, Kind, Request};
use zeroize::{Zeroize, Zeroizing};

use super::key::{Held, Parts};
use super::{CIPHERTEXT, Form, Hybrid, PUBLIC, Plain, SECRET};
use crate::arg::Out;
use crate::entries::context;
use crate::entries::kem::{self, Kem};
use crate::error::{Reason, raise};
use crate::params::{END, Params, Table, describe};
use crate::provider::Provider;
use crate::sys::{OSSL_DISPATCH, OSSL_PARAM, PARAM_OCTETS};
use crate::x25519::LEN as X25519_LEN;
use crate::x25519::key::Parts as X25519;

/// Bytes of an encapsulation's randomness (FIPS 203's `m`), and these. On the heap: each move of an array would leave a copy
/// behind that nobody wipes.
const FRESH: usize = 32;
type Fresh = Zeroizing<Vec<u8>>;

struct Context<F> {
    provider: &'static Provider,
    key: Option<Arc<Held<F>>>,
    encapsulates: bool,
    /// The randomness of the next encapsulation, if the caller says.
    fresh: Option<Fresh>,
}

impl<F: Form> Context<F> {
    fn parts(&self) -> Option<&Parts> {
        self.key.as_ref()?.parts()
    }

    fn take(&mut self, params: Params<'_>) -> bool {
        if !self.encapsulates {
            self.fresh = None;
        }
        let Some(given) = params.get(c"ikme").filter(|_| self.encapsulates && !F::HYBRID) else {
            return true;
        };
        self.fresh = given.octets().filter(|bytes| bytes.len() == FRESH).map(|bytes| bytes.to_vec().into());
        if self.fresh.is_none() {
            raise(Reason::InvalidSeedLength);
        }
        self.fresh.is_some()
    }
}

impl<F: Form> context::Context for Context<F> {
    fn new(provider: &'static Provider, _: Option<&CStr>) -> Context<F> {
        Context { provider, key: None, encapsulates: false, fresh: None }
    }

    fn duplicate(&self) -> Option<Context<F>> {
        Some(Context { key: self.key.clone(), fresh: self.fresh.clone(), ..*self })
    }

    fn set(&mut self, params: Params<'_>) -> bool {
        self.take(params)
    }

    fn settable(_: Option<&Context<F>>) -> &'static [OSSL_PARAM] {
        if F::HYBRID { &NOTHING.0 } else { &SETTABLE.0 }
    }
}

impl<F: Form> Kem for Context<F> {
    type Key = Held<F>;

    const CIPHERTEXT: usize = CIPHERTEXT + F::MORE;
    const SECRET: usize = SECRET + F::MORE;

    fn init(&mut self, encapsulates: bool, key: Option<&Arc<Held<F>>>, params: Params<'_>) -> bool {
        (self.encapsulates, self.key, self.fresh) = (encapsulates, key.cloned(), None);
        let is_there = self.parts().is_some_and(|parts| encapsulates || parts.private().is_some());
        if !is_there {
            raise(Reason::MissingKey);
        }
        is_there && self.take(params)
    }

    fn encapsulate(&mut self, ciphertext: &mut Out<'_>, secret: &mut Out<'_>) -> bool {
        let fresh = self.fresh.take();
        let Some(parts) = self.parts().filter(|_| self.encapsulates) else {
            raise(Reason::MissingKey);
            return false;
        };
        let (Some(to), Some(shared)) = (ciphertext.first(Self::CIPHERTEXT), secret.first(Self::SECRET))
        else {
            raise(Reason::OutputBufferTooSmall);
            return false;
        };
        is_good(encapsulated(self.provider, parts, fresh, (to, &mut *shared)), shared)
            && ciphertext.done(Self::CIPHERTEXT)
            && secret.done(Self::SECRET)
    }

    fn decapsulate(&mut self, secret: &mut Out<'_>, ciphertext: &[u8]) -> bool {
        let Some(parts) = self.parts().filter(|_| !self.encapsulates) else {
            raise(Reason::MissingKey);
            return false;
        };
        if secret.is_question() {
            return secret.done(Self::SECRET);
        }
        if ciphertext.len() != Self::CIPHERTEXT {
            raise(Reason::WrongCiphertextSize);
            return false;
        }
        let Some(shared) = secret.first(Self::SECRET) else {
            raise(Reason::OutputBufferTooSmall);
            return false;
        };
        is_good(decapsulated(self.provider, parts, ciphertext, shared), shared) && secret.done(Self::SECRET)
    }
}

/// Of what failed nothing is left.
fn is_good(result: Result<(), Error>, shared: &mut [u8]) -> bool {
    if let Err(error) = result {
        shared.zeroize();
        raise(if matches!(error, Error::Invalid(_)) {
            Reason::InvalidKey
        } else {
            Reason::FailedDuringDerivation
        });
    }
    result.is_ok()
}

/// Encapsulates to `(ciphertext, secret)`. The half of X25519 is a fresh pair and what it agrees on with the peer's.
fn encapsulated(
    provider: &Provider,
    parts: &Parts,
    fresh: Option<Fresh>,
    (ciphertext, secret): (&mut [u8], &mut [u8]),
) -> Result<(), Error> {
    let fresh = match fresh {
        Some(fresh) => fresh,
        None => {
            let mut fresh = Fresh::new(vec![0; FRESH]);
            provider.child.random(&mut fresh).then_some(fresh).ok_or(Error::Unsupported)?
        }
    };
    let own = parts.x25519().map(|_| X25519::generate(provider)).transpose()?;
    // Not on the stack: that of a job is small.
    let mut made = Zeroizing::new(vec![0; CIPHERTEXT + SECRET]);
    let data = Data::Apart { from: &parts.public()[..PUBLIC], to: &mut made };
    let request = Request::new(Kind::MlKem768Encapsulate, Key::none(), data);
    let pair = own.as_ref().zip(parts.x25519());
    let pair = pair.and_then(|(own, peer)| Some((own.key()?, peer.public()?)));
    both(provider, Request { nonce: &fresh, ..request }, pair, &mut secret[SECRET..])?;
    let (bytes, shared) = made.split_at(CIPHERTEXT);
    ciphertext[..CIPHERTEXT].copy_from_slice(bytes);
    secret[..SECRET].copy_from_slice(shared);
    if let Some(public) = own.as_ref().and_then(X25519::public) {
        ciphertext[CIPHERTEXT..].copy_from_slice(public);
    }
    Ok(())
}

/// What a ciphertext of the right length gives.
fn decapsulated(
    provider: &Provider,
    parts: &Parts,
    ciphertext: &[u8],
    secret: &mut [u8],
) -> Result<(), Error> {
    let (own, peer) = ciphertext.split_at(CIPHERTEXT);
    let key = parts.private().ok_or(Error::Unsupported)?;
    let pair = parts.x25519().and_then(|own| Some((own.key()?, peer.try_into().ok()?)));
    let (shared, agreed) = secret.split_at_mut(SECRET);
    let data = Data::Apart { from: own, to: shared };
    both(provider, Request::new(Kind::MlKem768Decapsulate, key, data), pair, agreed)
}

/// The request of ML-KEM and, with a key and a peer of X25519, what these agree on: one operation.
fn both(
    provider: &Provider,
    request: Request<'_>,
    pair: Option<(&Key, &[u8; X25519_LEN])>,
    agreed: &mut [u8],
) -> Result<(), Error> {
    // Without its half a hybrid would be none.
    if pair.is_some() != (agreed.len() == X25519_LEN) {
        return Err(Error::Unsupported);
    }
    let is_hybrid = pair.is_some();
    let mut items = vec![Item::new(request)];
    if let Some((own, peer)) = pair {
        let data = Data::Apart { from: peer, to: &mut *agreed };
        items.push(Item::new(Request::new(Kind::X25519Derive, own, data)));
    }
    provider.perform_all(&mut items);
    items.iter().try_for_each(|item| item.result.map(drop))?;
    drop(items);
    // Zeros are no secret (RFC 7748 section 6.1), whatever a device says.
    if is_hybrid && bool::from(agreed.ct_eq(&[0; X25519_LEN])) {
        return Err(Error::Invalid("peer"));
    }
    Ok(())
}

static SETTABLE: Table<OSSL_PARAM, 2> = Table([describe(c"ikme", PARAM_OCTETS), END]);

static NOTHING: Table<OSSL_PARAM, 1> = Table([END]);

/// ML-KEM-768.
pub static PLAIN: Table<OSSL_DISPATCH, 10> = kem::table::<Context<Plain>>();

/// X25519MLKEM768.
pub static HYBRID: Table<OSSL_DISPATCH, 10> = kem::table::<Context<Hybrid>>();
