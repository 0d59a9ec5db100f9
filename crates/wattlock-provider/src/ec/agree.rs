//! ECDH. With keys on the engines' curves and nothing set, the shared coordinate is theirs; with a cofactor mode or a
//! key derivation set, and on other curves, everything is a child's from then on.

use std::ffi::CStr;
use std::sync::Arc;

use wattlock::core::Error;
use zeroize::Zeroizing;

use super::key::{Form, Held};
use super::native::Native;
use crate::arg::Out;
use crate::child::{Operation, PkeyCtx};
use crate::entries::context;
use crate::entries::exchange::{self, Exchange};
use crate::error::{Reason, raise};
use crate::params::{Answers, END, Params, Table, describe};
use crate::provider::Provider;
use crate::sys::{
    OSSL_DISPATCH, OSSL_PARAM, PARAM_INTEGER, PARAM_OCTETS, PARAM_OCTETS_PTR, PARAM_UNSIGNED, PARAM_UTF8,
};

struct Context {
    provider: &'static Provider,
    form: Option<Form>,
    peer: Option<Form>,
    /// Made when something is asked that engines do not do; it has everything that was set.
    child: Option<PkeyCtx>,
}

impl Context {
    fn begin(&mut self, form: Form, params: Params<'_>) -> bool {
        self.form = Some(form);
        self.child = None;
        self.take(params)
    }

    /// The child, made now if there is none yet.
    fn child(&mut self) -> Option<&PkeyCtx> {
        if self.child.is_none() {
            let key = self.form.as_ref()?.child(self.provider)?;
            let child = PkeyCtx::by_key(&self.provider.child, key)?;
            if !child.begin(Operation::Derive, Params::EMPTY) {
                return None;
            }
            if let Some(peer) = &self.peer
                && !give_peer(&child, peer, self.provider)
            {
                return None;
            }
            self.child = Some(child);
        }
        self.child.as_ref()
    }

    fn take_peer(&mut self, peer: Form) -> bool {
        let (provider, form) = (self.provider, self.form.clone());
        if let (None, Some(own), Some(other)) =
            (&self.child, form.as_ref().and_then(Form::native), peer.native())
        {
            if own.group.curve != other.group.curve {
                raise(Reason::MismatchingDomainParameters);
                return false;
            }
            self.peer = Some(peer);
            return true;
        }
        let good = self.child().is_some_and(|child| give_peer(child, &peer, provider));
        if good {
            self.peer = Some(peer);
        }
        good
    }

    /// Both keys and what to do with them, if engines do it.
    fn natives(&self) -> Option<(&Arc<Native>, &Arc<Native>)> {
        if self.child.is_some() {
            return None;
        }
        let (own, peer) = (self.form.as_ref()?.native()?, self.peer.as_ref()?.native()?);
        (own.scalar().is_some() && own.public().is_some() && peer.public().is_some()).then_some((own, peer))
    }

    fn derive_by_child(&mut self, out: &mut Out<'_>) -> bool {
        self.child().is_some_and(|child| child.derive(out))
    }

    fn take(&mut self, params: Params<'_>) -> bool {
        params.is_empty() || self.child().is_some_and(|child| child.set(params))
    }
}

/// Sets a child's peer. Whoever set ours has validated it.
fn give_peer(child: &PkeyCtx, peer: &Form, provider: &Provider) -> bool {
    peer.child(provider).is_some_and(|peer| child.set_peer(peer))
}

impl context::Context for Context {
    fn new(provider: &'static Provider, _: Option<&CStr>) -> Context {
        Context { provider, form: None, peer: None, child: None }
    }

    fn duplicate(&self) -> Option<Context> {
        let child = match &self.child {
            Some(child) => Some(child.duplicate()?),
            None => None,
        };
        Some(Context { provider: self.provider, form: self.form.clone(), peer: self.peer.clone(), child })
    }

    fn get(&mut self, answers: &mut Answers<'_>) -> bool {
        self.child().is_some_and(|child| child.get(answers) == 1)
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

impl Exchange for Context {
    type Key = Held;

    fn init(&mut self, key: Option<&Held>, params: Params<'_>) -> bool {
        key.is_some_and(|key| self.begin(key.form(), params))
    }

    fn set_peer(&mut self, key: Option<&Held>) -> bool {
        key.is_some_and(|key| self.take_peer(key.form()))
    }

    /// Writes the secret, or as much of it as there is room for: that is no error of ECDH's.
    fn derive(&mut self, out: &mut Out<'_>) -> bool {
        let Some((own, peer)) = self.natives() else { return self.derive_by_child(out) };
        let group = own.group;
        if out.is_question() {
            return out.done(group.len);
        }
        let mut secret = Zeroizing::new([0; 48]);
        let secret = &mut secret[..group.len];
        let done = match (own.key(), peer.public()) {
            (Some(key), Some(point)) => self.provider.perform(group.derive, key, point.bytes(), secret),
            _ => Err(Error::Unsupported),
        };
        match done {
            Ok(_) => {
                let len = out.room().min(group.len);
                let Some(room) = out.first(len) else { return false };
                room.copy_from_slice(&secret[..len]);
                out.done(len)
            }
            Err(Error::Device(_) | Error::Withdrawn) => {
                raise(Reason::FailedDuringDerivation);
                false
            }
            Err(_) => self.derive_by_child(out),
        }
    }
}

static SETTABLE: Table<OSSL_PARAM, 7> = Table([
    describe(c"ecdh-cofactor-mode", PARAM_INTEGER),
    describe(c"kdf-type", PARAM_UTF8),
    describe(c"kdf-digest", PARAM_UTF8),
    describe(c"kdf-digest-props", PARAM_UTF8),
    describe(c"kdf-outlen", PARAM_UNSIGNED),
    describe(c"kdf-ukm", PARAM_OCTETS),
    END,
]);

static GETTABLE: Table<OSSL_PARAM, 6> = Table([
    describe(c"ecdh-cofactor-mode", PARAM_INTEGER),
    describe(c"kdf-type", PARAM_UTF8),
    describe(c"kdf-digest", PARAM_UTF8),
    describe(c"kdf-outlen", PARAM_UNSIGNED),
    describe(c"kdf-ukm", PARAM_OCTETS_PTR),
    END,
]);

/// ECDH.
pub static FUNCTIONS: Table<OSSL_DISPATCH, 11> = exchange::table::<Context>();
