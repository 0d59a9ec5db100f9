//! Contexts of operations: what signature, exchange and asymmetric cipher have in common.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};

use crate::arg::{self, Exclusive, Fill, Name, Owned, Read, Shared};
use crate::error::entry;
use crate::params::{Answers, Params};
use crate::provider::Provider;
use crate::sys::OSSL_PARAM;

/// A context of an operation. Lists end in [`END`](crate::params::END).
pub trait Context: Sized + Send + 'static {
    /// Whether there is anything to set or to ask.
    const PARAMS: bool = true;

    /// One without a key. `properties` are the host's for fetching, of operations that fetch.
    fn new(provider: &'static Provider, properties: Option<&CStr>) -> Self;
    /// The same in the same state; `None` if that cannot be copied.
    fn duplicate(&self) -> Option<Self>;
    /// Answers questions.
    fn get(&mut self, _: &mut Answers<'_>) -> bool {
        false
    }
    /// What can be asked.
    fn gettable() -> &'static [OSSL_PARAM] {
        &[]
    }
    /// Sets parameters.
    fn set(&mut self, _: Params<'_>) -> bool {
        false
    }
    /// What can be set, in a context or in any.
    fn settable(_: Option<&Self>) -> &'static [OSSL_PARAM] {
        &[]
    }
}

pub(super) extern "C" fn newctx<C: Context>(provider: Shared<'static, Provider>) -> *mut C {
    entry(|| arg::own(provider.get().map(|provider| C::new(provider, None))))
}

pub(super) extern "C" fn newctx_matching<C: Context>(
    provider: Shared<'static, Provider>,
    properties: Name<'_>,
) -> *mut C {
    entry(|| arg::own(provider.get().map(|provider| C::new(provider, properties.get()))))
}

pub(super) extern "C" fn freectx<C: Context>(context: Owned<C>) {
    entry(|| drop(context.take()));
}

pub(super) extern "C" fn dupctx<C: Context>(context: Shared<'_, C>) -> *mut C {
    entry(|| arg::own(context.get().and_then(C::duplicate)))
}

pub(super) extern "C" fn get_ctx_params<C: Context>(context: Exclusive<'_, C>, params: Fill<'_>) -> c_int {
    entry(|| c_int::from(context.get().is_some_and(|context| context.get(&mut params.get()))))
}

pub(super) extern "C" fn set_ctx_params<C: Context>(context: Exclusive<'_, C>, params: Read<'_>) -> c_int {
    entry(|| c_int::from(context.get().is_some_and(|context| context.set(params.get()))))
}

pub(super) extern "C" fn gettable_ctx_params<C: Context>(
    _: *mut c_void,
    _: *mut c_void,
) -> *const OSSL_PARAM {
    C::gettable().as_ptr()
}

pub(super) extern "C" fn settable_ctx_params<C: Context>(
    context: Shared<'_, C>,
    _: *mut c_void,
) -> *const OSSL_PARAM {
    C::settable(context.get()).as_ptr()
}
