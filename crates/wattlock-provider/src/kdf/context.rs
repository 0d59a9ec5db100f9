//! One derivation's context: a state of ours, or OpenSSL's own context with the same state.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr::null;

use super::derive::derive;
use super::given::{Given, Mode};
use super::state::State;
use super::{Flavour, own};
use crate::child::KdfCtx;
use crate::error::{Reason, raise};
use crate::params::{Answers, Params};
use crate::provider::Provider;
use crate::sys::OSSL_PARAM;

pub struct Context {
    provider: &'static Provider,
    flavour: Flavour,
    /// What is set, unless OpenSSL's context has it.
    state: State,
    elsewhere: Option<KdfCtx>,
}

impl Context {
    pub fn new(provider: &'static Provider, flavour: Flavour) -> Context {
        Context { provider, flavour, state: State::NEW, elsewhere: None }
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.state.clear();
        self.leave();
    }

    /// Comes back from OpenSSL's own, if it is there.
    fn leave(&mut self) {
        if let Some(context) = self.elsewhere.take()
            && let Some(kdf) = own(self.provider, self.flavour)
        {
            kdf.take_back(context);
        }
    }

    /// The same in the same state; `None` if OpenSSL's own, where it has the state, cannot be copied (3.0's cannot).
    pub fn duplicate(&self) -> Option<Box<Context>> {
        let mut copy = Box::new(Context::new(self.provider, self.flavour));
        if let Some(context) = &self.elsewhere {
            copy.elsewhere = Some(context.duplicate()?);
        }
        copy.state.copy(&self.state);
        Some(copy)
    }

    /// Sets parameters. 1 if all is well.
    ///
    /// # Safety
    /// `params` is null or a list that stays valid during the call.
    pub unsafe fn set(&mut self, params: *const OSSL_PARAM) -> c_int {
        // SAFETY: the caller's.
        unsafe {
            if self.take(params) {
                return 1;
            }
            self.elsewhere().map_or(0, |context| context.set(params))
        }
    }

    /// Fills `len` bytes at `out` after setting parameters. 1 if all is well.
    ///
    /// # Safety
    /// As [`Context::set`]; `out` has room for `len` bytes, or is null.
    pub unsafe fn derive(&mut self, out: *mut u8, len: usize, params: *const OSSL_PARAM) -> c_int {
        // SAFETY: the caller's. The bytes of the list are copied before there is a slice of the output.
        unsafe {
            if !self.take(params) {
                return self.elsewhere().map_or(0, |context| context.derive(out, len, params));
            }
            // (Nobody has room for more than half the address space: what to say of that is OpenSSL's own's.)
            if !out.is_null() && len <= isize::MAX as usize {
                let out = std::slice::from_raw_parts_mut(out, len);
                match derive(self.provider, self.flavour, &self.state, out) {
                    Some(Ok(())) => return 1,
                    Some(Err(_)) => {
                        raise(Reason::FailedDuringDerivation);
                        return 0;
                    }
                    None => {}
                }
            }
            self.elsewhere().map_or(0, |context| context.derive(out, len, null()))
        }
    }

    /// Answers questions as OpenSSL's own does: 1, 0, or -2 where it was asked nothing it knows.
    pub fn get(&mut self, mut answers: Answers<'_>) -> c_int {
        if self.elsewhere.is_none() && answers.only(c"size") {
            let one = matches!(self.state.mode, Some(Mode::Extract));
            let size = if one { self.state.digest.map(|hash| hash.len()) } else { Some(usize::MAX) };
            if let Some(size) = size {
                return c_int::from(answers.set_size(c"size", size));
            }
        }
        // SAFETY: a list to fill.
        self.elsewhere().map_or(0, |context| unsafe { context.get(answers.as_mut_ptr()) })
    }

    /// Whether the state has taken a list in. If not, it is as it was.
    ///
    /// # Safety
    /// As [`Context::set`].
    unsafe fn take(&mut self, params: *const OSSL_PARAM) -> bool {
        if self.elsewhere.is_some() {
            return false;
        }
        if params.is_null() {
            return true;
        }
        // SAFETY: the caller's.
        let given = Given::read(self.flavour, unsafe { Params::new(params) });
        given.is_some_and(|given| self.state.take(self.flavour, &given))
    }

    /// OpenSSL's own context, from now on the only one; `None`, with errors on the queue, if there is none.
    fn elsewhere(&mut self) -> Option<&mut KdfCtx> {
        if self.elsewhere.is_none() {
            let provider = self.provider;
            let mut made = own(provider, self.flavour)?.context()?;
            // SAFETY: a list of our own.
            let set = self.state.with_list(self.flavour, |list| unsafe { made.set(list.as_ptr()) });
            if set.is_some_and(|set| set <= 0) {
                return None;
            }
            self.state.clear();
            self.elsewhere = Some(made);
        }
        self.elsewhere.as_mut()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.leave();
    }
}
