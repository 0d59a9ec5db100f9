//! ECDH. With keys on the engines' curves and nothing set, the shared coordinate is theirs; with a cofactor mode or a
//! key derivation set, and on other curves, everything is a child's from then on.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use wattlock::core::Error;
use zeroize::Zeroizing;

use super::key::{Form, Held};
use super::native::Native;
use crate::child::PkeyCtx;
use crate::cipher::dispatch;
use crate::error::{Reason, entry, raise};
use crate::params::{Answers, END, Params, Table, describe};
use crate::provider::Provider;
use crate::sys::{
    self, OSSL_DISPATCH, OSSL_PARAM, PARAM_INTEGER, PARAM_OCTETS, PARAM_OCTETS_PTR, PARAM_UNSIGNED,
    PARAM_UTF8, id,
};

struct Context {
    provider: &'static Provider,
    form: Option<Form>,
    peer: Option<Form>,
    /// Made when something is asked that engines do not do; it has everything that was set.
    child: Option<PkeyCtx>,
}

impl Context {
    fn duplicate(&self) -> Option<Context> {
        let child = match &self.child {
            Some(child) => Some(child.duplicate()?),
            None => None,
        };
        Some(Context { provider: self.provider, form: self.form.clone(), peer: self.peer.clone(), child })
    }

    fn begin(&mut self, form: Form, params: Params<'_>) -> bool {
        self.form = Some(form);
        self.child = None;
        self.set(params)
    }

    /// The child, made now if there is none yet.
    fn child(&mut self) -> Option<&PkeyCtx> {
        if self.child.is_none() {
            let key = self.form.as_ref()?.child(self.provider)?;
            let child = PkeyCtx::by_key(&self.provider.child, key)?;
            // SAFETY: a live context.
            if unsafe { sys::EVP_PKEY_derive_init_ex(child.as_ptr(), null()) } != 1 {
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

    fn set_peer(&mut self, peer: Form) -> bool {
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

    /// Writes the secret, or as much of it as there is room for: that is no error of ECDH's.
    fn derive(&mut self, out: Option<&mut [u8]>) -> Option<usize> {
        let Some((own, peer)) = self.natives() else { return self.derive_by_child(out) };
        let group = own.group;
        let Some(out) = out else { return Some(group.len) };
        let mut secret = Zeroizing::new([0; 48]);
        let secret = &mut secret[..group.len];
        let done = match (own.key(), peer.public()) {
            (Some(key), Some(point)) => self.provider.perform(group.derive, key, point.bytes(), secret),
            _ => Err(Error::Unsupported),
        };
        match done {
            Ok(_) => {
                let len = out.len().min(group.len);
                out[..len].copy_from_slice(&secret[..len]);
                Some(len)
            }
            Err(Error::Device(_) | Error::Withdrawn) => {
                raise(Reason::FailedDuringDerivation);
                None
            }
            Err(_) => self.derive_by_child(Some(out)),
        }
    }

    fn derive_by_child(&mut self, out: Option<&mut [u8]>) -> Option<usize> {
        let child = self.child()?;
        let mut len = out.as_ref().map_or(0, |out| out.len());
        let at = out.map_or(null_mut(), <[u8]>::as_mut_ptr);
        // SAFETY: a live context, and room for as many bytes as it is told, or a question for their number.
        let done = unsafe { sys::EVP_PKEY_derive(child.as_ptr(), at, &raw mut len) };
        (done == 1).then_some(len)
    }

    fn set(&mut self, params: Params<'_>) -> bool {
        if params.is_empty() {
            return true;
        }
        // SAFETY: a live context and the caller's list.
        self.child()
            .is_some_and(|child| unsafe { sys::EVP_PKEY_CTX_set_params(child.as_ptr(), params.as_ptr()) } > 0)
    }

    fn get(&mut self, answers: &mut Answers<'_>) -> bool {
        // SAFETY: a live context and the caller's list.
        self.child().is_some_and(
            |child| unsafe { sys::EVP_PKEY_CTX_get_params(child.as_ptr(), answers.as_mut_ptr()) } == 1,
        )
    }
}

/// Sets a child's peer. Whoever set ours has validated it.
fn give_peer(child: &PkeyCtx, peer: &Form, provider: &Provider) -> bool {
    let Some(peer) = peer.child(provider) else { return false };
    // SAFETY: a live context and a live key.
    unsafe { sys::EVP_PKEY_derive_set_peer_ex(child.as_ptr(), peer.as_ptr(), 0) == 1 }
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
        Box::into_raw(Box::new(Context { provider, form: None, peer: None, child: None })).cast()
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

unsafe extern "C" fn init(context: *mut c_void, key: *mut c_void, params: *const OSSL_PARAM) -> c_int {
    entry(|| {
        // SAFETY: a live context, key data of ours or null, a list.
        unsafe {
            let Some(held) = Held::of(key) else { return 0 };
            c_int::from(of(context).begin(held.form(), Params::new(params)))
        }
    })
}

unsafe extern "C" fn set_peer(context: *mut c_void, key: *mut c_void) -> c_int {
    entry(|| {
        // SAFETY: a live context, key data of ours or null.
        let Some(held) = (unsafe { Held::of(key) }) else { return 0 };
        // SAFETY: as above.
        c_int::from(unsafe { of(context) }.set_peer(held.form()))
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

unsafe extern "C" fn set_params(context: *mut c_void, params: *const OSSL_PARAM) -> c_int {
    // SAFETY: a live context and a list.
    entry(|| unsafe { c_int::from(of(context).set(Params::new(params))) })
}

unsafe extern "C" fn get_params(context: *mut c_void, params: *mut OSSL_PARAM) -> c_int {
    // SAFETY: a live context and a list to fill.
    entry(|| unsafe { c_int::from(of(context).get(&mut Answers::new(params))) })
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

unsafe extern "C" fn settable(_: *mut c_void, _: *mut c_void) -> *const OSSL_PARAM {
    SETTABLE.as_ptr()
}

unsafe extern "C" fn gettable(_: *mut c_void, _: *mut c_void) -> *const OSSL_PARAM {
    GETTABLE.as_ptr()
}

/// ECDH.
pub static FUNCTIONS: Table<OSSL_DISPATCH, 11> = dispatch![
    id::KEYEXCH_NEWCTX => new_context,
    id::KEYEXCH_FREECTX => free_context,
    id::KEYEXCH_DUPCTX => dup_context,
    id::KEYEXCH_INIT => init,
    id::KEYEXCH_SET_PEER => set_peer,
    id::KEYEXCH_DERIVE => derive,
    id::KEYEXCH_SET_CTX_PARAMS => set_params,
    id::KEYEXCH_SETTABLE_CTX_PARAMS => settable,
    id::KEYEXCH_GET_CTX_PARAMS => get_params,
    id::KEYEXCH_GETTABLE_CTX_PARAMS => gettable,
];
