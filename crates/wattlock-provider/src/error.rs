//! OpenSSL's error queue, and the boundary that no panic crosses.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_int, c_ulong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::sys::{
    ERR_LIB_EVP, ERR_LIB_PROV, ERR_clear_last_mark, ERR_new, ERR_peek_last_error, ERR_pop_to_mark,
    ERR_set_debug, ERR_set_error, ERR_set_mark,
};

/// Why an entry failed, in the words of `openssl/proverr.h`: programs that look for a reason find the one they know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are OpenSSL's own")]
#[repr(i32)]
pub enum Reason {
    BadDecrypt = 100,
    WrongFinalBlockLength = 107,
    OutputBufferTooSmall = 106,
    InvalidKeyLength = 105,
    InvalidIvLength = 109,
    InvalidTag = 110,
    InvalidTagLength = 118,
    InvalidKey = 158,
    InvalidSeedLength = 154,
    WrongCiphertextSize = 251,
    OperationNotSupportedForThisKeytype = 178,
    InvalidDigest = 122,
    InvalidDigestLength = 166,
    DigestNotAllowed = 174,
    InvalidPaddingMode = 168,
    InvalidSaltLength = 112,
    InvalidSignatureSize = 179,
    NoKeySet = 114,
    NoParametersSet = 177,
    MissingKey = 128,
    NullLengthPointer = 247,
    TagNotSet = 119,
    TagNotNeeded = 120,
    NotSupported = 136,
    FailedToGetParameter = 103,
    FailedToSetParameter = 104,
    FailedToSign = 175,
    FailedToDecrypt = 162,
    FailedDuringDerivation = 164,
    FailedToGenerateKey = 121,
    CipherOperationFailed = 102,
    BadTlsClientVersion = 161,
    InvalidAad = 108,
    NotAPrivateKey = 221,
    InvalidMode = 125,
    MismatchingDomainParameters = 203,
    XtsDuplicatedKeys = 149,
    XtsDataUnitIsTooLarge = 148,
    /// `ERR_R_PASSED_INVALID_ARGUMENT`, a reason of any library.
    PassedInvalidArgument = 262 | 2 << 18,
}

/// Puts an error on the calling thread's queue.
#[track_caller]
pub fn raise(reason: Reason) {
    push(reason as c_int, None);
}

/// Puts an error with words on the calling thread's queue.
#[track_caller]
pub fn raise_with(reason: Reason, words: &str) {
    push(reason as c_int, CString::new(words).ok().as_deref());
}

#[track_caller]
fn push(reason: c_int, words: Option<&CStr>) {
    let line = std::panic::Location::caller().line() as c_int;
    // SAFETY: public error calls with C strings that outlive them; the queue copies the words.
    unsafe {
        ERR_new();
        ERR_set_debug(c"wattlock-provider".as_ptr(), line, c"".as_ptr());
        match words {
            Some(words) => ERR_set_error(ERR_LIB_PROV, reason, c"%s".as_ptr(), words.as_ptr()),
            None => ERR_set_error(ERR_LIB_PROV, reason, std::ptr::null()),
        }
    }
}

/// `EVP_R_PROVIDER_SIGNATURE_FAILURE` of `openssl/evperr.h`.
const SIGNATURE_FAILURE: c_ulong = 234;

/// After another provider's signature operation failed: takes the last error off the queue if all it says is that a
/// provider failed. OpenSSL 3.5 says so of every such call, and will say it of the program's own call, too.
pub fn forget_whose_failure() {
    // SAFETY: public calls without pointers to ours. The function is looked up by name because OpenSSL has it from 3.3
    // on only; earlier versions do not say this either (ERR_set_mark(3)).
    unsafe {
        if ERR_peek_last_error() != ((ERR_LIB_EVP as c_ulong) << 23 | SIGNATURE_FAILURE) {
            return;
        }
        let pop = libc::dlsym(libc::RTLD_DEFAULT, c"ERR_pop".as_ptr());
        if !pop.is_null() {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(pop)();
        }
    }
}

/// Runs what may ask other providers in vain. What they said of that is taken off the queue if it succeeds: libssl looks
/// there before it asks whether a connection only has to wait (`SSL_get_error(3)`). The work must not pause a job: what others
/// put on the thread's queue meanwhile would go, too.
pub fn quietly(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: public calls without pointers.
    unsafe {
        ERR_set_mark();
        let good = work();
        if good {
            ERR_pop_to_mark()
        } else {
            ERR_clear_last_mark()
        };
        good
    }
}

/// Runs what asks whether there is something: what that leaves on the queue is taken off again, whatever comes of it.
pub fn silently<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: public calls without pointers.
    unsafe { ERR_set_mark() };
    let done = work();
    // SAFETY: as above.
    unsafe { ERR_pop_to_mark() };
    done
}

/// Runs an entry. A panic, which would be a defect of ours, becomes a failure of this one call (`R::default()`: 0 or
/// null) instead of ending the host.
#[inline]
pub fn entry<R: Nothing>(work: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(R::NOTHING)
}

/// What an entry returns when it has nothing to return.
pub trait Nothing {
    /// Failure.
    const NOTHING: Self;
}

impl Nothing for c_int {
    const NOTHING: c_int = 0;
}

impl<T> Nothing for *mut T {
    const NOTHING: *mut T = std::ptr::null_mut();
}

impl<T> Nothing for *const T {
    const NOTHING: *const T = std::ptr::null();
}

impl Nothing for () {
    const NOTHING: () = ();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last error; 0 if there is none.
    fn last() -> c_ulong {
        // SAFETY: a public call without arguments.
        unsafe { ERR_peek_last_error() }
    }

    #[test]
    fn what_was_asked_in_vain_leaves_nothing_and_what_was_there_stays() {
        let error = |reason: Reason| (ERR_LIB_PROV as c_ulong) << 23 | reason as c_ulong;
        for before in [None, Some(Reason::NoKeySet)] {
            before.into_iter().for_each(raise);
            let was = last();
            assert_eq!(was, before.map_or(0, error));
            let vain = || raise(Reason::FailedToSetParameter);
            assert!(quietly(|| {
                vain();
                silently(vain);
                vain();
                true
            }));
            assert_eq!(last(), was, "a success");
            silently(|| {
                assert!(!quietly(|| {
                    vain();
                    false
                }));
                assert_eq!(last(), error(Reason::FailedToSetParameter), "a failure says why");
            });
            assert_eq!(last(), was, "whatever came of it");
        }
        silently(|| ());
        assert!(quietly(|| true));
    }
}
