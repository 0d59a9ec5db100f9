//! Key exchange with X25519 (RFC 7748). An all-zero secret, which small-order peers lead to, is an error.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use wattlock::core::Kind;
use zeroize::Zeroizing;

use super::LEN;
use super::key::{Held, Parts};
use crate::cipher::dispatch;
use crate::error::{Reason, entry, raise};
use crate::params::Table;
use crate::provider::Provider;
use crate::sys::{OSSL_DISPATCH, OSSL_PARAM, id};

#[derive(Clone)]
struct Context {
    provider: &'static Provider,
    own: Option<Arc<Parts>>,
    peer: Option<Arc<Parts>>,
}

impl Context {
    /// Writes the secret to `out`, or says how long it is.
    fn derive(&self, out: Option<&mut [u8]>) -> Option<usize> {
        let key = self.own.as_ref().and_then(|own| own.key());
        let (Some(key), Some(peer)) = (key, &self.peer) else {
            raise(Reason::MissingKey);
            return None;
        };
        let Some(out) = out else { return Some(LEN) };
        let Some(out) = out.get_mut(..LEN) else {
            raise(Reason::OutputBufferTooSmall);
            return None;
        };
        // Without a public half, a peer is what OpenSSL's own takes it for: zeros, which lead to an error.
        let peer = peer.public().unwrap_or(&[0; LEN]);
        let mut secret = Zeroizing::new([0; LEN]);
        if self.provider.perform(Kind::X25519Derive, key, peer, &mut *secret).is_err() {
            raise(Reason::FailedDuringDerivation);
            return None;
        }
        out.copy_from_slice(&*secret);
        Some(LEN)
    }
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
        Box::into_raw(Box::new(Context { provider, own: None, peer: None })).cast()
    })
}

unsafe extern "C" fn free_context(context: *mut c_void) {
    if !context.is_null() {
        // SAFETY: made by us, freed once.
        entry(|| drop(unsafe { Box::from_raw(context.cast::<Context>()) }));
    }
}

unsafe extern "C" fn dup_context(context: *mut c_void) -> *mut c_void {
    // SAFETY: a live context.
    entry(|| Box::into_raw(Box::new(unsafe { of(context) }.clone())).cast())
}

unsafe extern "C" fn init(context: *mut c_void, key: *mut c_void, _: *const OSSL_PARAM) -> c_int {
    entry(|| {
        // SAFETY: a live context, key data of ours or null.
        let (context, held) = unsafe { (of(context), Held::of(key)) };
        context.own = held.map(Held::parts);
        c_int::from(held.is_some())
    })
}

unsafe extern "C" fn set_peer(context: *mut c_void, key: *mut c_void) -> c_int {
    entry(|| {
        // SAFETY: a live context, key data of ours or null.
        let (context, held) = unsafe { (of(context), Held::of(key)) };
        context.peer = held.map(Held::parts);
        c_int::from(held.is_some())
    })
}

unsafe extern "C" fn derive(context: *mut c_void, out: *mut u8, len: *mut usize, room: usize) -> c_int {
    entry(|| {
        // SAFETY: a live context; `out` is null or has as much room as it says; `len` is writable.
        unsafe {
            let out = (!out.is_null()).then(|| std::slice::from_raw_parts_mut(out, room));
            match of(context).derive(out) {
                Some(done) => {
                    *len = done;
                    1
                }
                None => 0,
            }
        }
    })
}

/// X25519.
pub static FUNCTIONS: Table<OSSL_DISPATCH, 7> = dispatch![
    id::KEYEXCH_NEWCTX => new_context,
    id::KEYEXCH_FREECTX => free_context,
    id::KEYEXCH_DUPCTX => dup_context,
    id::KEYEXCH_INIT => init,
    id::KEYEXCH_SET_PEER => set_peer,
    id::KEYEXCH_DERIVE => derive,
];
