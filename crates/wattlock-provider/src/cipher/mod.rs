//! Symmetric ciphers as OpenSSL's EVP interface wants them: a context gets a key once and then message after message
//! in pieces. Each is a thin layer over the runtime's streams.
#![allow(unsafe_code)]

mod cbc;
mod combined;
mod entries;
mod gcm;
mod plain;
mod record;
mod secret;

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};
use std::time::Instant;

use wattlock::core::{Algorithm as KeyAlgorithm, Data, Key, Kind, Stream};

use crate::error::{Reason, raise};
use crate::offer::{Algorithm, PROPERTIES};
use crate::params::{Answers, END, Param, Table, describe};
use crate::provider::Provider;
use crate::sys::{
    OSSL_DISPATCH, OSSL_PARAM, PARAM_INTEGER, PARAM_OCTETS, PARAM_OCTETS_PTR, PARAM_UNSIGNED, id,
};

/// Every cipher there is.
pub static ALGORITHMS: &[Algorithm] = &[
    cipher("gcm", c"AES-256-GCM:id-aes256-GCM:2.16.840.1.101.3.4.1.46", gcm::AES_256.as_ptr()),
    cipher("gcm", c"AES-192-GCM:id-aes192-GCM:2.16.840.1.101.3.4.1.26", gcm::AES_192.as_ptr()),
    cipher("gcm", c"AES-128-GCM:id-aes128-GCM:2.16.840.1.101.3.4.1.6", gcm::AES_128.as_ptr()),
    cipher("cbc", c"AES-256-CBC:AES256:2.16.840.1.101.3.4.1.42", cbc::AES_256.as_ptr()),
    cipher("cbc", c"AES-192-CBC:AES192:2.16.840.1.101.3.4.1.22", cbc::AES_192.as_ptr()),
    cipher("cbc", c"AES-128-CBC:AES128:2.16.840.1.101.3.4.1.2", cbc::AES_128.as_ptr()),
    cipher("cbc-hmac", c"AES-128-CBC-HMAC-SHA1", combined::AES_128_SHA1.as_ptr()),
    cipher("cbc-hmac", c"AES-256-CBC-HMAC-SHA1", combined::AES_256_SHA1.as_ptr()),
    cipher("cbc-hmac", c"AES-128-CBC-HMAC-SHA256", combined::AES_128_SHA256.as_ptr()),
    cipher("cbc-hmac", c"AES-256-CBC-HMAC-SHA256", combined::AES_256_SHA256.as_ptr()),
    cipher("ctr", c"AES-256-CTR", plain::CTR_256.as_ptr()),
    cipher("ctr", c"AES-192-CTR", plain::CTR_192.as_ptr()),
    cipher("ctr", c"AES-128-CTR", plain::CTR_128.as_ptr()),
    cipher("xts", c"AES-256-XTS:1.3.111.2.1619.0.1.2", plain::XTS_256.as_ptr()),
    cipher("xts", c"AES-128-XTS:1.3.111.2.1619.0.1.1", plain::XTS_128.as_ptr()),
];

const fn cipher(
    group: &'static str,
    names: &'static std::ffi::CStr,
    functions: *const OSSL_DISPATCH,
) -> Algorithm {
    Algorithm {
        group,
        operation: id::OP_CIPHER,
        names,
        properties: PROPERTIES,
        functions,
        description: c"Wattlock",
    }
}

/// What never changes about a cipher.
struct Facts {
    /// `EVP_CIPH_..._MODE`
    mode: c_uint,
    key: usize,
    iv: usize,
    block: usize,
    aead: bool,
    custom_iv: bool,
    /// Whether libssl may hand over several TLS records at once.
    multi: bool,
}

static GETTABLE: Table<OSSL_PARAM, 10> = Table([
    describe(c"mode", PARAM_UNSIGNED),
    describe(c"keylen", PARAM_UNSIGNED),
    describe(c"ivlen", PARAM_UNSIGNED),
    describe(c"blocksize", PARAM_UNSIGNED),
    describe(c"aead", PARAM_INTEGER),
    describe(c"custom-iv", PARAM_INTEGER),
    describe(c"cts", PARAM_INTEGER),
    describe(c"tls-multi", PARAM_INTEGER),
    describe(c"has-randkey", PARAM_INTEGER),
    END,
]);

unsafe extern "C" fn gettable_params(_: *mut c_void) -> *const OSSL_PARAM {
    GETTABLE.as_ptr()
}

impl Facts {
    fn answer(&self, answers: &mut Answers<'_>) -> bool {
        let good = answers.set_uint(c"mode", self.mode)
            && answers.set_size(c"keylen", self.key)
            && answers.set_size(c"ivlen", self.iv)
            && answers.set_size(c"blocksize", self.block)
            && answers.set_flag(c"aead", self.aead)
            && answers.set_flag(c"custom-iv", self.custom_iv)
            && answers.set_flag(c"cts", false)
            && answers.set_flag(c"tls-multi", self.multi)
            && answers.set_flag(c"has-randkey", false);
        answered(good)
    }
}

/// Ends a question: says so on the error queue if an answer did not fit.
fn answered(good: bool) -> bool {
    if !good {
        raise(Reason::FailedToSetParameter);
    }
    good
}

/// What a context of OpenSSL's can be asked if its mode has nothing of its own.
const GETTABLE_COMMON: &[OSSL_PARAM] = &[
    describe(c"keylen", PARAM_UNSIGNED),
    describe(c"ivlen", PARAM_UNSIGNED),
    describe(c"padding", PARAM_UNSIGNED),
    describe(c"num", PARAM_UNSIGNED),
    describe(c"iv", PARAM_OCTETS),
    describe(c"updated-iv", PARAM_OCTETS),
    describe(c"tls-mac", PARAM_OCTETS_PTR),
    END,
];
const SETTABLE_COMMON: &[OSSL_PARAM] = &[
    describe(c"padding", PARAM_UNSIGNED),
    describe(c"num", PARAM_UNSIGNED),
    describe(c"use-bits", PARAM_UNSIGNED),
    describe(c"tls-version", PARAM_UNSIGNED),
    describe(c"tls-mac-size", PARAM_UNSIGNED),
    END,
];

/// What is set in a context of any of these modes alike, though only some have a use for it.
#[derive(Clone, Copy)]
struct Common {
    padded: bool,
    /// 0 outside TLS.
    version: c_uint,
    mac_len: usize,
}

impl Common {
    const NEW: Common = Common { padded: true, version: 0, mac_len: 0 };

    /// Takes a parameter, all but `num`.
    fn set(&mut self, param: &Param<'_>) -> bool {
        taken(match param.key().to_bytes() {
            b"padding" => param.uint().map(|on| self.padded = on != 0),
            b"use-bits" => param.uint().map(|_| ()),
            b"tls-version" => param.uint().map(|version| self.version = version),
            b"tls-mac-size" => param.size().map(|len| self.mac_len = len),
            _ => Some(()),
        })
    }
}

/// Whether a parameter was what it must be; says so on the error queue if not.
fn taken(value: Option<()>) -> bool {
    if value.is_none() {
        raise(Reason::FailedToGetParameter);
    }
    value.is_some()
}

/// The buffers of one call: one slice where they are the same, else two.
///
/// Buffers that overlap without being the same would make two overlapping slices: such a call gets its input copied.
///
/// # Safety
/// `input` has `len` readable bytes and `out` as many writable ones; no other code uses them meanwhile.
#[inline]
unsafe fn with_buffers<R>(out: *mut u8, input: *const u8, len: usize, work: impl FnOnce(Data<'_>) -> R) -> R {
    // SAFETY: the caller's; the ranges of the two slices do not overlap where two are made.
    unsafe {
        if out.cast_const() == input {
            return work(Data::InPlace(std::slice::from_raw_parts_mut(out, len)));
        }
        if (out as usize).abs_diff(input as usize) < len {
            return with_copy(out, input, len, work);
        }
        let to = std::slice::from_raw_parts_mut(out, len);
        work(Data::Apart { from: std::slice::from_raw_parts(input, len), to })
    }
}

/// # Safety
/// As [`with_buffers`].
#[cold]
#[inline(never)]
unsafe fn with_copy<R>(out: *mut u8, input: *const u8, len: usize, work: impl FnOnce(Data<'_>) -> R) -> R {
    // SAFETY: the caller's; the two are never borrowed at once.
    unsafe {
        let copy = zeroize::Zeroizing::new(std::slice::from_raw_parts(input, len).to_vec());
        work(Data::Apart { from: &copy, to: std::slice::from_raw_parts_mut(out, len) })
    }
}

/// A context's streams by direction.
type Streams = [Option<Box<dyn Stream>>; 2];

/// Copies of both; `None` if one cannot be copied.
fn copies(streams: &Streams) -> Option<Streams> {
    let copy = |stream: &Option<Box<dyn Stream>>| match stream {
        Some(stream) => stream.try_clone().ok().map(Some),
        None => Some(None),
    };
    Some([copy(&streams[0])?, copy(&streams[1])?])
}

fn symmetric(algorithm: KeyAlgorithm, key: &[u8]) -> Option<Key> {
    Key::symmetric(algorithm, key).ok()
}

/// Counts a context's messages and hands them to the thread's counters now and then.
struct Tally {
    messages: u64,
    bytes: u64,
    /// Records until one is timed.
    until_timed: u32,
}

impl Default for Tally {
    fn default() -> Tally {
        Tally { messages: 0, bytes: 0, until_timed: drawn() % Tally::TIMED_ONE_IN }
    }
}

/// The next of this thread's numbers: connections are short, and the first record of each says nothing of the others.
fn drawn() -> u32 {
    thread_local!(static LAST: Cell<u32> = const { Cell::new(1) });
    LAST.with(|last| {
        // Numerical Recipes, section 7.1; the high bits are the good ones.
        let next = last.get().wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        last.set(next);
        next >> 16
    })
}

impl Tally {
    /// Counting takes as long as some blocks: never for fewer pieces, nor for so few bytes.
    const OFTEN: u64 = 64;
    const BYTES: u64 = 16 * 1024;
    const TIMED_ONE_IN: u32 = 64;

    #[inline]
    fn add(&mut self, provider: &Provider, kind: Kind, bytes: usize) {
        if self.counts(bytes) {
            self.hand_over(provider, kind);
        }
    }

    /// Counts a message; whether it is time to hand over.
    #[inline]
    fn counts(&mut self, bytes: usize) -> bool {
        self.messages += 1;
        self.bytes += bytes as u64;
        self.messages >= Tally::OFTEN && self.bytes >= Tally::BYTES
    }

    #[cold]
    fn hand_over(&mut self, provider: &Provider, kind: Kind) {
        if self.messages > 0 {
            provider.streamed(kind, self.messages, self.bytes);
            (self.messages, self.bytes) = (0, 0);
        }
    }

    /// A record begins: of one in [`Tally::TIMED_ONE_IN`] the time is taken. Pieces are not timed: with small ones every
    /// instruction shows.
    #[inline]
    fn begins(&mut self) -> Option<Instant> {
        match self.until_timed.checked_sub(1) {
            Some(left) => {
                self.until_timed = left;
                None
            }
            None => {
                self.until_timed = Tally::TIMED_ONE_IN - 1;
                Some(Instant::now())
            }
        }
    }
}

/// Writes how many bytes came out.
///
/// # Safety
/// `at` is null or writable.
unsafe fn say(at: *mut usize, len: usize) -> c_int {
    if !at.is_null() {
        // SAFETY: the caller's.
        unsafe { *at = len };
    }
    1
}

/// Ends an entry: how much came out, or why nothing did.
///
/// # Safety
/// `at` is null or writable.
#[inline]
unsafe fn told(at: *mut usize, outcome: Result<usize, Reason>) -> c_int {
    match outcome {
        // SAFETY: the caller's.
        Ok(done) => unsafe { say(at, done) },
        Err(reason) => {
            raise(reason);
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn of_short_connections_any_record_may_be_the_one_that_is_timed() {
        const RECORDS: u32 = 16;
        let (mut timed, mut places) = (0, BTreeSet::new());
        for _ in 0..1000 {
            let mut tally = Tally::default();
            for place in 0..RECORDS {
                if tally.begins().is_some() {
                    timed += 1;
                    places.insert(place);
                }
            }
        }
        // 250 of 16,000 on average.
        assert!((200..300).contains(&timed), "{timed}");
        assert_eq!(places.len(), RECORDS as usize, "{places:?}");
        let mut long = Tally::default();
        let timed = (0..6400).filter(|_| long.begins().is_some()).count();
        assert_eq!(timed, 100);
    }
}
