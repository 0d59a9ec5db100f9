//! Key exchange with X25519 (RFC 7748). An all-zero secret, which small-order peers lead to, is an error.

use std::ffi::CStr;
use std::sync::Arc;

use wattlock::core::Kind;
use zeroize::Zeroizing;

use super::LEN;
use super::key::{Held, Parts};
use crate::arg::Out;
use crate::entries::context;
use crate::entries::exchange::{self, Exchange};
use crate::error::{Reason, raise};
use crate::params::{Params, Table};
use crate::provider::Provider;
use crate::sys::OSSL_DISPATCH;

#[derive(Clone)]
struct Context {
    provider: &'static Provider,
    own: Option<Arc<Parts>>,
    peer: Option<Arc<Parts>>,
}

impl context::Context for Context {
    const PARAMS: bool = false;

    fn new(provider: &'static Provider, _: Option<&CStr>) -> Context {
        Context { provider, own: None, peer: None }
    }

    fn duplicate(&self) -> Option<Context> {
        Some(self.clone())
    }
}

impl Exchange for Context {
    type Key = Held;

    fn init(&mut self, key: Option<&Held>, _: Params<'_>) -> bool {
        self.own = key.map(Held::parts);
        self.own.is_some()
    }

    fn set_peer(&mut self, key: Option<&Held>) -> bool {
        self.peer = key.map(Held::parts);
        self.peer.is_some()
    }

    fn derive(&mut self, out: &mut Out<'_>) -> bool {
        let key = self.own.as_ref().and_then(|own| own.key());
        let (Some(key), Some(peer)) = (key, &self.peer) else {
            raise(Reason::MissingKey);
            return false;
        };
        if out.is_question() {
            return out.done(LEN);
        }
        let Some(room) = out.first(LEN) else {
            raise(Reason::OutputBufferTooSmall);
            return false;
        };
        // Without a public half, a peer is what OpenSSL's own takes it for: zeros, which lead to an error.
        let peer = peer.public().unwrap_or(&[0; LEN]);
        let mut secret = Zeroizing::new([0; LEN]);
        let derived = self.provider.perform(Kind::X25519Derive, key, peer, &mut *secret);
        // Zeros are no secret (RFC 7748 section 6.1), whatever a device says.
        if derived.is_err() || secret.iter().fold(0, |all, byte| all | byte) == 0 {
            raise(Reason::FailedDuringDerivation);
            return false;
        }
        room.copy_from_slice(&*secret);
        out.done(LEN)
    }
}

/// X25519.
pub static FUNCTIONS: Table<OSSL_DISPATCH, 11> = exchange::table::<Context>();
