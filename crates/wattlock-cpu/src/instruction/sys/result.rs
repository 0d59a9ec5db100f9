//! AWS-LC's conventions as `Result`. A failure says nothing more: what it means depends on the call.

use std::ffi::c_int;
use std::ptr::NonNull;

use super::raw;

/// A call failed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failed;

/// 1 is success.
#[inline]
pub(super) fn done(code: c_int) -> Result<(), Failed> {
    if code == 1 { Ok(()) } else { Err(failed()) }
}

/// Not null is success; the caller owns what it points to.
#[inline]
pub(super) fn made<T>(pointer: *mut T) -> Result<NonNull<T>, Failed> {
    NonNull::new(pointer).ok_or_else(failed)
}

/// Empties this thread's error queue, which otherwise keeps the reason for other code to find.
#[cold]
fn failed() -> Failed {
    // SAFETY: touches only this thread's own queue.
    unsafe { raw::ERR_clear_error() };
    Failed
}

/// A C object with one owner and one function that frees (and wipes) it.
pub(super) struct Owned<T: Free>(NonNull<T>);

/// How a C type is freed.
///
/// # Safety
/// `free` must be the function that the library provides for objects of this type.
pub(super) unsafe trait Free {
    /// # Safety
    /// The pointer must come from the library, be owned by the caller and not be used after.
    unsafe fn free(object: *mut Self);
}

macro_rules! freed_by {
    ($($type:ident: $function:ident;)*) => {$(
        // SAFETY: the header of this type names this function.
        unsafe impl Free for raw::$type {
            unsafe fn free(object: *mut raw::$type) {
                // SAFETY: the caller owns the object.
                unsafe { raw::$function(object) }
            }
        }
    )*};
}

freed_by! {
    BIGNUM: BN_clear_free;
    ECDSA_SIG: ECDSA_SIG_free;
    EC_KEY: EC_KEY_free;
    EC_POINT: EC_POINT_free;
    EVP_AEAD_CTX: EVP_AEAD_CTX_free;
    EVP_CIPHER_CTX: EVP_CIPHER_CTX_free;
    EVP_MD_CTX: EVP_MD_CTX_free;
    EVP_PKEY: EVP_PKEY_free;
    EVP_PKEY_CTX: EVP_PKEY_CTX_free;
    RSA: RSA_free;
}

impl<T: Free> Owned<T> {
    /// Takes what a constructor returned.
    ///
    /// # Safety
    /// `pointer` must be null or own an object that no other code frees.
    pub(super) unsafe fn new(pointer: *mut T) -> Result<Owned<T>, Failed> {
        made(pointer).map(Owned)
    }

    /// For reading calls.
    pub(super) fn get(&self) -> *const T {
        self.0.as_ptr()
    }

    /// For calls that change the object, or whose C signature only forgot `const`.
    pub(super) fn get_mut(&self) -> *mut T {
        self.0.as_ptr()
    }

    /// Gives the object away.
    pub(super) fn into_raw(self) -> *mut T {
        std::mem::ManuallyDrop::new(self).0.as_ptr()
    }
}

impl<T: Free> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: `new` took ownership, and `into_raw` does not come here.
        unsafe { T::free(self.0.as_ptr()) }
    }
}

impl Owned<raw::BIGNUM> {
    /// A number from big-endian bytes.
    pub(super) fn number(bytes: &[u8]) -> Result<Owned<raw::BIGNUM>, Failed> {
        // SAFETY: reads the slice and returns a fresh number, or null.
        unsafe { Owned::new(raw::BN_bin2bn(bytes.as_ptr(), bytes.len(), std::ptr::null_mut())) }
    }
}

/// Writes a number in big-endian over all of `out`.
///
/// # Safety
/// `number` must point to a live number.
pub(super) unsafe fn write_number(number: *const raw::BIGNUM, out: &mut [u8]) -> Result<(), Failed> {
    // SAFETY: writes exactly `out.len()` bytes or fails.
    done(unsafe { raw::BN_bn2bin_padded(out.as_mut_ptr(), out.len(), number) })
}
