//! AES in counter mode and XTS: no padding, no tag, as many bytes out as in.
//!
//! CTR takes pieces of any length and goes on where it was. XTS takes each call's input as one data unit (IEEE 1619,
//! at most 2^20 blocks) under the tweak last given, as OpenSSL's own does.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint};

use wattlock::core::{Algorithm, Data, Error, Key, Kind, Request};
use zeroize::{Zeroize, Zeroizing};

use super::entries::{Cipher, table};
use super::{
    Common, Facts, GETTABLE_COMMON, SETTABLE_COMMON, Streams, Tally, answered, copies, say, symmetric, taken,
    told, with_buffers,
};
use crate::arg::Exclusive;
use crate::error::{Reason, entry, raise};
use crate::params::{Answers, END, Param, Params, Table, describe};
use crate::provider::Provider;
use crate::seat::is_known;
use crate::sys::{OSSL_DISPATCH, OSSL_PARAM, PARAM_UNSIGNED};

const NONCE: usize = 16;
/// Longest key: two of 32 bytes.
const KEY_MAX: usize = 64;
/// IEEE 1619 section 5.1: a data unit has at most 2^20 blocks.
const XTS_MOST: usize = 16 << 20;

struct Context {
    provider: &'static Provider,
    tally: Tally,
    cipher: usize,
    /// As given; the first `key_len` bytes, none if no key was given. On the heap: each move of an array would leave a copy
    /// behind that nobody wipes.
    bytes: Zeroizing<Vec<u8>>,
    key_len: usize,
    /// Made of it when the first stream is: a random generator's streams only change keys.
    key: Option<Key>,
    /// By direction: decryption, encryption. Counter mode has one direction and uses the second.
    streams: Streams,
    encrypt: bool,
    /// As given.
    given: [u8; NONCE],
    has_nonce: bool,
    /// What the next stream starts from: the nonce, or where counter mode was when it was begun anew without one.
    first: [u8; NONCE],
    begun: bool,
    /// Bytes since the start.
    done: u64,
    common: Common,
    /// Where the last record's MAC is, in the caller's memory.
    mac: *const u8,
}

/// Ciphers of this file, as const arguments of the entries.
const CTR128: usize = 0;
const CTR192: usize = 1;
const CTR256: usize = 2;
const XTS128: usize = 3;
const XTS256: usize = 4;

fn kinds(cipher: usize) -> (Algorithm, [Kind; 2]) {
    match cipher {
        CTR128 => (Algorithm::Aes128Ctr, [Kind::Aes128Ctr; 2]),
        CTR192 => (Algorithm::Aes192Ctr, [Kind::Aes192Ctr; 2]),
        CTR256 => (Algorithm::Aes256Ctr, [Kind::Aes256Ctr; 2]),
        XTS128 => (Algorithm::Aes128Xts, [Kind::Aes128XtsDecrypt, Kind::Aes128XtsEncrypt]),
        _ => (Algorithm::Aes256Xts, [Kind::Aes256XtsDecrypt, Kind::Aes256XtsEncrypt]),
    }
}

impl Cipher for Context {
    const GETTABLE: &'static [OSSL_PARAM] = GETTABLE_COMMON;

    fn settable(cipher: usize) -> &'static [OSSL_PARAM] {
        const XTS: &[OSSL_PARAM] = &[describe(c"keylen", PARAM_UNSIGNED), END];
        if cipher < XTS128 { SETTABLE_COMMON } else { XTS }
    }

    fn facts(cipher: usize) -> Facts {
        const CTR_MODE: c_uint = 5;
        const XTS_MODE: c_uint = 0x1_0001;
        let (mode, key) = match cipher {
            CTR128 => (CTR_MODE, 16),
            CTR192 => (CTR_MODE, 24),
            CTR256 => (CTR_MODE, 32),
            XTS128 => (XTS_MODE, 32),
            _ => (XTS_MODE, 64),
        };
        Facts { mode, key, iv: NONCE, block: 1, aead: false, custom_iv: mode == XTS_MODE, multi: false }
    }

    fn new(provider: &'static Provider, cipher: usize) -> Context {
        Context {
            provider,
            tally: Tally::default(),
            cipher,
            bytes: Zeroizing::new(vec![0; KEY_MAX]),
            key_len: 0,
            key: None,
            streams: [None, None],
            encrypt: false,
            given: [0; NONCE],
            has_nonce: false,
            first: [0; NONCE],
            begun: false,
            done: 0,
            common: Common::NEW,
            mac: std::ptr::null(),
        }
    }

    fn duplicate(&self) -> Option<Context> {
        let mut copy = Context::new(self.provider, self.cipher);
        copy.streams = copies(&self.streams)?;
        (copy.bytes, copy.key_len) = (self.bytes.clone(), self.key_len);
        (copy.key, copy.encrypt) = (self.key.clone(), self.encrypt);
        (copy.given, copy.has_nonce, copy.first) = (self.given, self.has_nonce, self.first);
        (copy.begun, copy.done) = (self.begun, self.done);
        (copy.common, copy.mac) = (self.common, self.mac);
        Some(copy)
    }

    fn init(&mut self, encrypt: bool, key: Option<&[u8]>, nonce: Option<&[u8]>, params: Params<'_>) -> bool {
        self.encrypt = encrypt;
        self.first = if let Some(nonce) = nonce {
            let Ok(nonce) = <[u8; NONCE]>::try_from(nonce) else {
                self.first = self.counter();
                (self.begun, self.done) = (false, 0);
                raise(Reason::InvalidIvLength);
                return false;
            };
            (self.given, self.has_nonce) = (nonce, true);
            nonce
        } else {
            // Counter mode goes on with the next block's, as OpenSSL's own does.
            self.counter()
        };
        (self.begun, self.done) = (false, 0);
        if let Some(key) = key {
            if key.len() != Context::facts(self.cipher).key {
                raise(Reason::InvalidKeyLength);
                return false;
            }
            // Two keys that are one encrypt nothing (SP 800-38E), but decrypt what there is.
            let (one, two) = key.split_at(key.len() / 2);
            if self.is_xts() && encrypt && is_known(Some(one), two) {
                raise(Reason::XtsDuplicatedKeys);
                return false;
            }
            // Many programs set the same key again before each message.
            if !is_known(Some(&self.bytes[..self.key_len]), key) && !self.change_key(key) {
                raise(Reason::InvalidKey);
                return false;
            }
        }
        // The first tweak takes as long as a block: it is made while OpenSSL comes with the data.
        let stream = self.streams[self.way()].as_mut();
        if let (Some(stream), true, true) = (stream, nonce.is_some(), self.cipher >= XTS128) {
            self.begun = stream.start(&self.first).is_ok();
        }
        self.set(params)
    }

    fn get(&mut self, answers: &mut Answers<'_>) -> bool {
        let good = answers.iter_mut().all(|mut answer| {
            if answer.is(c"keylen") {
                answer.set_size(Context::facts(self.cipher).key)
            } else if answer.is(c"ivlen") {
                answer.set_size(NONCE)
            } else if answer.is(c"num") {
                answer.set_uint(if self.is_xts() { 0 } else { (self.done % 16) as c_uint })
            } else if answer.is(c"iv") {
                answer.set_octets(&self.given)
            } else if answer.is(c"updated-iv") {
                answer.set_octets(&self.counter())
            } else if answer.is(c"padding") {
                answer.set_uint(self.common.padded.into())
            } else {
                !answer.is(c"tls-mac") || answer.set_pointer(self.mac.cast(), self.common.mac_len)
            }
        });
        answered(good)
    }

    fn set(&mut self, params: Params<'_>) -> bool {
        params.iter().all(|param| match param.is(c"num") {
            _ if self.is_xts() => !param.is(c"keylen") || self.fits(&param),
            true => taken(param.uint().filter(|num| *num == 0 && self.skip()).map(|_| ())),
            false => self.common.set(&param),
        })
    }
}

impl Context {
    fn is_xts(&self) -> bool {
        self.cipher >= XTS128
    }

    /// Which of the streams serves: counter mode has one for both directions.
    fn way(&self) -> usize {
        usize::from(self.encrypt || !self.is_xts())
    }

    /// Goes over to another key. `false` if it is none.
    fn change_key(&mut self, key: &[u8]) -> bool {
        (self.key, self.key_len) = (None, key.len());
        self.bytes[..key.len()].copy_from_slice(key);
        let stream = self.streams[1].as_mut().filter(|_| self.cipher < XTS128);
        if stream.is_some_and(|stream| stream.rekey(key).is_ok()) {
            return true;
        }
        self.streams = [None, None];
        self.key = symmetric(kinds(self.cipher).0, key);
        if self.key.is_none() {
            self.key_len = 0;
        }
        self.key.is_some()
    }

    /// Whether it is the length that keys of XTS have.
    fn fits(&self, len: &Param<'_>) -> bool {
        let len = len.size();
        taken(len.map(|_| ())) && len == Some(Context::facts(self.cipher).key)
    }

    /// Makes sure that there is a stream.
    #[cold]
    fn open(&mut self) -> Result<(), Error> {
        if self.key.is_none() {
            self.key = symmetric(kinds(self.cipher).0, &self.bytes[..self.key_len]);
        }
        let key = self.key.as_ref().ok_or(Error::Invalid("no key"))?;
        let way = self.way();
        self.streams[way] = Some(self.provider.open_stream(kinds(self.cipher).1[way], key)?);
        Ok(())
    }

    /// A piece of a message. (Into its entry: a small piece takes little more than the calls that lead to the kernel.)
    ///
    /// # Safety
    /// As [`with_buffers`].
    #[inline(always)]
    unsafe fn update(&mut self, out: *mut u8, input: *const u8, len: usize) -> Result<usize, Reason> {
        if self.is_xts() {
            // No more than OpenSSL's own says, whatever is missing.
            if self.key_len == 0 || !self.has_nonce || len < 16 {
                return Err(Reason::CipherOperationFailed);
            }
            if len > XTS_MOST {
                raise(Reason::XtsDataUnitIsTooLarge);
                return Err(Reason::CipherOperationFailed);
            }
        } else if self.key_len == 0 {
            return Err(Reason::NoKeySet);
        } else if len == 0 {
            return Ok(0);
        }
        if out.is_null() {
            return Err(Reason::CipherOperationFailed);
        }
        let way = self.way();
        let failed = |_| Reason::CipherOperationFailed;
        if self.is_xts() && self.provider.may_wait(kinds(self.cipher).1[way]) {
            // SAFETY: the caller's.
            return unsafe { self.unit(out, input, len) }.map_err(failed);
        }
        if self.streams[way].is_none() {
            self.open().map_err(failed)?;
        }
        let stream = self.streams[way].as_mut().ok_or(Reason::CipherOperationFailed)?;
        if !self.begun {
            stream.start(&self.first).map_err(failed)?;
        }
        // SAFETY: the caller's.
        let done = unsafe { with_buffers(out, input, len, |data| stream.update(data)) }.map_err(failed)?;
        if self.tally.counts(len) {
            self.tally.hand_over(self.provider, kinds(self.cipher).1[way]);
        }
        self.begun = true;
        self.done += len as u64;
        Ok(done)
    }

    /// A data unit as one request, for which the call may wait for a device.
    ///
    /// # Safety
    /// As [`with_buffers`].
    #[cold]
    unsafe fn unit(&self, out: *mut u8, input: *const u8, len: usize) -> Result<usize, Error> {
        let key = self.key.as_ref().ok_or(Error::Invalid("no key"))?;
        let kind = kinds(self.cipher).1[self.way()];
        let work = |data: Data<'_>| {
            self.provider.run_or_wait(Request { nonce: &self.first, ..Request::new(kind, key, data) })
        };
        // SAFETY: the caller's.
        unsafe { with_buffers(out, input, len, work) }
    }

    /// The counter as it stands.
    fn counter(&self) -> [u8; NONCE] {
        if self.is_xts() {
            return self.first;
        }
        let blocks = u128::from(self.done.div_ceil(16));
        u128::from_be_bytes(self.first).wrapping_add(blocks).to_be_bytes()
    }

    /// Goes on at the next block and leaves out the rest of this one: what `num = 0` asks for. As OpenSSL from 3.0.20 on,
    /// no other place in a block is taken: its own before gave out key stream twice, or (before any data) text in clear.
    fn skip(&mut self) -> bool {
        let between = (16 - self.done % 16) % 16;
        if between == 0 {
            return true;
        }
        let mut rest = [0; 16];
        let at = rest.as_mut_ptr();
        // SAFETY: a buffer of our own, in place.
        let left_out = unsafe { self.update(at, at, between as usize) }.is_ok();
        rest.zeroize();
        left_out
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.given.zeroize();
        self.first.zeroize();
        self.tally.hand_over(self.provider, kinds(self.cipher).1[self.way()]);
    }
}

unsafe extern "C" fn update(
    context: Exclusive<'_, Context>,
    out: *mut u8,
    out_len: *mut usize,
    room: usize,
    input: *const u8,
    len: usize,
) -> c_int {
    entry(|| {
        let Some(context) = context.get() else { return 0 };
        // SAFETY: by contract buffers of these lengths.
        unsafe {
            if room < len {
                raise(Reason::OutputBufferTooSmall);
                return 0;
            }
            let done = context.update(out, input, len);
            if context.common.mac_len > 0 && context.common.version > 0 && !context.encrypt {
                return without_mac(context, out, out_len, done);
            }
            told(out_len, done)
        }
    })
}

/// A record's MAC stays behind the text. (Nothing uses records of these modes; OpenSSL's own take it off.)
///
/// # Safety
/// As [`update`], which wrote `done` bytes.
#[cold]
unsafe fn without_mac(
    context: &mut Context,
    out: *mut u8,
    at: *mut usize,
    done: Result<usize, Reason>,
) -> c_int {
    if let Ok(len @ 1..) = done {
        let Some(text) = len.checked_sub(context.common.mac_len) else { return 0 };
        // SAFETY: within what was written.
        context.mac = unsafe { out.add(text) };
        // SAFETY: the caller's.
        return unsafe { say(at, text) };
    }
    // SAFETY: the caller's.
    unsafe { told(at, done) }
}

/// What `EVP_Cipher()` calls: XTS says nothing about what it refuses then.
unsafe extern "C" fn once(
    context: Exclusive<'_, Context>,
    out: *mut u8,
    out_len: *mut usize,
    room: usize,
    input: *const u8,
    len: usize,
) -> c_int {
    entry(|| {
        let Some(context) = context.get() else { return 0 };
        // SAFETY: as in `update`.
        unsafe {
            let done = match room < len {
                true => Err(Reason::OutputBufferTooSmall),
                false => context.update(out, input, len),
            };
            match done {
                Err(_) if context.is_xts() => 0,
                done => told(out_len, done),
            }
        }
    })
}

unsafe extern "C" fn finish(
    context: Exclusive<'_, Context>,
    _: *mut u8,
    out_len: *mut usize,
    _: usize,
) -> c_int {
    entry(|| {
        let Some(context) = context.get() else { return 0 };
        if context.key_len == 0 && !context.is_xts() {
            raise(Reason::NoKeySet);
            return 0;
        }
        // SAFETY: OpenSSL's own variable.
        unsafe { say(out_len, 0) }
    })
}

/// AES-128-CTR.
pub static CTR_128: Table<OSSL_DISPATCH, 15> = table::<Context, CTR128>(update, finish, once);
/// AES-192-CTR.
pub static CTR_192: Table<OSSL_DISPATCH, 15> = table::<Context, CTR192>(update, finish, once);
/// AES-256-CTR.
pub static CTR_256: Table<OSSL_DISPATCH, 15> = table::<Context, CTR256>(update, finish, once);
/// XTS-AES-128.
pub static XTS_128: Table<OSSL_DISPATCH, 15> = table::<Context, XTS128>(update, finish, once);
/// XTS-AES-256.
pub static XTS_256: Table<OSSL_DISPATCH, 15> = table::<Context, XTS256>(update, finish, once);

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::seat::UnderRule;

    #[test]
    fn a_data_unit_is_one_request_of_a_card_and_pieces_in_counter_mode_are_none() {
        let made = |policy, cipher, in_place: bool| {
            let with = UnderRule::new(policy, "");
            // SAFETY: the context is gone before the provider is.
            let provider: &'static Provider = unsafe { &*std::ptr::from_ref(with.provider()) };
            let key: Vec<u8> = (0..Context::facts(cipher).key).map(|at| at as u8).collect();
            let mut context = Context::new(provider, cipher);
            // SAFETY: no list of parameters.
            let none = unsafe { Params::new(std::ptr::null()) };
            assert!(context.init(true, Some(&key), Some(&[5; NONCE]), none));
            // Until the card has given its known answers the CPU does it; each call begins at the tweak.
            let units = (0..40).map(|number| {
                let (input, mut out) = ([number; 100], [number; 100]);
                let from = if in_place { out.as_ptr() } else { input.as_ptr() };
                // SAFETY: buffers of these lengths.
                assert_eq!(unsafe { context.update(out.as_mut_ptr(), from, out.len()) }.unwrap(), out.len());
                out
            });
            let units: Vec<[u8; 100]> = units.collect();
            drop(context);
            (units, with.on_card_of(kinds(cipher).1[1]) > 0)
        };
        for in_place in [true, false] {
            for cipher in [XTS128, XTS256, CTR256] {
                let (alone, on_card) = made("instruction", cipher, in_place);
                assert!(!on_card);
                assert_eq!(made("offload", cipher, in_place), (alone, cipher != CTR256));
            }
        }
    }
}
