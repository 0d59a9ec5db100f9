//! Keys written and read (provider-encoder(7), provider-decoder(7)). Their context is the provider itself.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;

use zeroize::Zeroizing;

use super::dispatch;
use crate::arg::{self, Callback, Read, Shared};
use crate::error::{Reason, entry, raise};
use crate::params::{END, List, Table, describe};
use crate::provider::Provider;
use crate::sys::{OSSL_CALLBACK, OSSL_CORE_BIO, OSSL_DISPATCH, OSSL_PARAM, PARAM_UTF8, id};

/// `OSSL_OBJECT_PKEY`
const IS_KEY: c_int = 2;

/// The longest object that is read: no key of ours has more bytes.
const MOST: usize = 1 << 14;

/// What a key is written as.
pub trait Encoder: 'static {
    /// The type of key.
    type Key: Send + Sync + 'static;
    /// Which half is written; both if all are selected.
    const SELECTION: c_int;

    /// All bytes; `None` if that half is not there.
    fn encode(key: &Self::Key, selection: c_int) -> Option<Zeroizing<Vec<u8>>>;
}

/// What a key is read from: one value in DER.
pub trait Decoder: 'static {
    /// The type of key.
    type Key: Send + Sync + 'static;
    /// The type's name.
    const NAME: &'static CStr;
    /// Which half is read.
    const SELECTION: c_int;

    /// The key; `None` if these are of another type, or not in order.
    fn decode(provider: &'static Provider, der: &[u8]) -> Option<Self::Key>;
    /// Tells all of a key; the callback's result.
    fn export(key: &Self::Key, callback: &Callback) -> c_int;
}

/// The functions of an encoder.
pub const fn encoder<E: Encoder>() -> Table<OSSL_DISPATCH, 7> {
    dispatch![
        id::ENCODER_NEWCTX => newctx;
        id::ENCODER_FREECTX => freectx;
        id::ENCODER_SET_CTX_PARAMS => set_ctx_params;
        id::ENCODER_SETTABLE_CTX_PARAMS => settable_ctx_params;
        id::ENCODER_DOES_SELECTION => encodes::<E>;
        id::ENCODER_ENCODE => encode::<E>;
    ]
}

/// The functions of a decoder.
pub const fn decoder<D: Decoder>() -> Table<OSSL_DISPATCH, 6> {
    dispatch![
        id::DECODER_NEWCTX => newctx;
        id::DECODER_FREECTX => freectx;
        id::DECODER_DOES_SELECTION => decodes::<D>;
        id::DECODER_DECODE => decode::<D>;
        id::DECODER_EXPORT_OBJECT => export_object::<D>;
    ]
}

extern "C" fn newctx(provider: *mut c_void) -> *mut c_void {
    provider
}

extern "C" fn freectx(_: *mut c_void) {}

/// Nothing is encrypted here. A program that asks for it must not get a key in clear.
extern "C" fn set_ctx_params(context: Shared<'static, Provider>, params: Read<'_>) -> c_int {
    entry(|| {
        let encrypts = params.get().get(c"cipher").is_some_and(|cipher| !cipher.is_null());
        if encrypts {
            raise(Reason::NotSupported);
        }
        c_int::from(context.get().is_some() && !encrypts)
    })
}

static SETTABLE: Table<OSSL_PARAM, 3> =
    Table([describe(c"cipher", PARAM_UTF8), describe(c"properties", PARAM_UTF8), END]);

extern "C" fn settable_ctx_params(_: *mut c_void) -> *const OSSL_PARAM {
    SETTABLE.as_ptr()
}

/// Whether what has a half is right for a selection: of several that are selected the most private one counts.
const fn fits(half: c_int, selection: c_int) -> bool {
    match (selection & id::SELECT_PRIVATE_KEY, selection & id::SELECT_PUBLIC_KEY) {
        (0, 0) => selection == 0,
        (0, _) => half & id::SELECT_PUBLIC_KEY != 0,
        _ => half & id::SELECT_PRIVATE_KEY != 0,
    }
}

extern "C" fn encodes<E: Encoder>(_: *mut c_void, selection: c_int) -> c_int {
    c_int::from(fits(E::SELECTION, selection))
}

extern "C" fn decodes<D: Decoder>(_: *mut c_void, selection: c_int) -> c_int {
    c_int::from(fits(D::SELECTION, selection))
}

/// Writes a key of ours. Another's, told as a list, never comes here: there is no function to import one.
unsafe extern "C" fn encode<E: Encoder>(
    provider: Shared<'static, Provider>,
    bio: *mut OSSL_CORE_BIO,
    key: Shared<'_, E::Key>,
    _: Read<'_>,
    selection: c_int,
    _: *mut c_void,
    _: *mut c_void,
) -> c_int {
    entry(|| {
        let (Some(provider), Some(key)) = (provider.get(), key.get()) else { return 0 };
        let Some(bytes) = E::encode(key, selection) else {
            raise(Reason::MissingKey);
            return 0;
        };
        // SAFETY: the caller's, null or live.
        c_int::from(!bio.is_null() && unsafe { provider.write_bio(bio, &bytes) })
    })
}

/// The next value in DER: what a BIO has behind it stays there. `None` if it is none that a key can be.
///
/// # Safety
/// `bio` is live.
unsafe fn next_value(provider: &Provider, bio: *mut OSSL_CORE_BIO) -> Option<Zeroizing<Vec<u8>>> {
    // SAFETY: the caller's, in all of these.
    let read = |room: &mut [u8]| unsafe { provider.read_bio(bio, room) }.then_some(());
    let mut head = [0; 4];
    read(&mut head[..2])?;
    let (begin, len) = match head {
        [0x30, short @ 0..=0x7f, ..] => (2, usize::from(short)),
        [0x30, 0x81, ..] => {
            read(&mut head[2..3])?;
            (3, usize::from(head[2]))
        }
        [0x30, 0x82, ..] => {
            read(&mut head[2..])?;
            (4, usize::from(u16::from_be_bytes([head[2], head[3]])))
        }
        _ => return None,
    };
    if len > MOST {
        return None;
    }
    let mut value = Zeroizing::new(vec![0; begin + len]);
    value[..begin].copy_from_slice(&head[..begin]);
    read(&mut value[begin..])?;
    Some(value)
}

/// Hands a key over by reference. What is no key of this type is no error: another decoder may know it.
unsafe extern "C" fn decode<D: Decoder>(
    provider: Shared<'static, Provider>,
    bio: *mut OSSL_CORE_BIO,
    _: c_int,
    callback: OSSL_CALLBACK,
    argument: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
) -> c_int {
    entry(|| {
        let Some(provider) = provider.get().filter(|_| !bio.is_null()) else { return 0 };
        // SAFETY: live, as the caller says.
        let Some(value) = (unsafe { next_value(provider, bio) }) else { return 1 };
        let Some(key) = D::decode(provider, &value) else { return 1 };
        // SAFETY: the caller's callback with its own argument.
        let callback = unsafe { Callback::new(callback, argument) };
        hand_over::<D>(key, &callback)
    })
}

fn hand_over<D: Decoder>(key: D::Key, callback: &Callback) -> c_int {
    let reference = Cell::new(arg::give(Some(key)));
    let list = List::new().int(c"type", &IS_KEY).text(c"data-type", D::NAME);
    let done = callback.tell(&list.reference(c"reference", &reference)).unwrap_or(0);
    let left = reference.get();
    if !left.is_null() {
        // SAFETY: `give` made it, and key management has not taken it over: it would have left null.
        drop(unsafe { Arc::from_raw(left.cast_const()) });
    }
    done
}

unsafe extern "C" fn export_object<D: Decoder>(
    _: *mut c_void,
    reference: *const *const D::Key,
    len: usize,
    callback: OSSL_CALLBACK,
    argument: *mut c_void,
) -> c_int {
    entry(|| {
        if reference.is_null() || len != size_of::<*const D::Key>() {
            return 0;
        }
        // SAFETY: a reference of this size is one that `decode` told, to a key that lives during the call; the caller's
        // callback with its own argument.
        let (key, callback) = unsafe { ((*reference).as_ref(), Callback::new(callback, argument)) };
        key.map_or(0, |key| D::export(key, &callback))
    })
}
