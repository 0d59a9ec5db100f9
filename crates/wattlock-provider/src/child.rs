//! A child library context and public EVP calls in it: what Wattlock does not accelerate is done there, by the other
//! providers that the host has loaded.
//!
//! The child mirrors the providers and properties of the context that loaded us. Every fetch says
//! `provider!=wattlock`, so nothing comes back to us. Wrappers here own what they hold and are otherwise thin: the
//! calls' own results decide.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_int, c_uint};
use std::ptr::{NonNull, null, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{PoisonError, RwLock};

use crate::arg::{Callback, Out};
use crate::error::entry;
use crate::params::{Answers, List, Params, Recorded};
use crate::sys::{self, OSSL_PARAM};

/// The property query of every fetch in a child context.
pub const ELSEWHERE: &CStr = c"provider!=wattlock";

/// Digests remembered by name.
const REMEMBERED: usize = 8;

/// The child library context of one loaded provider.
pub struct Child {
    context: NonNull<sys::OSSL_LIB_CTX>,
    /// Digests fetched without properties, by the name that was asked for. A fetch searches tables under locks, and two
    /// of them come with each signature of a handshake. Never waited for: a fork may leave the lock taken for ever.
    digests: RwLock<Vec<(CString, Digest)>>,
}

// SAFETY: a library context may be used from any thread (OSSL_LIB_CTX(3)).
unsafe impl Send for Child {}
// SAFETY: as above.
unsafe impl Sync for Child {}

impl Child {
    /// # Safety
    /// `handle` and `table` are what the provider's init function was given.
    pub unsafe fn new(
        handle: *const sys::OSSL_CORE_HANDLE,
        table: *const sys::OSSL_DISPATCH,
    ) -> Option<Child> {
        // SAFETY: the caller's.
        let context = NonNull::new(unsafe { sys::OSSL_LIB_CTX_new_child(handle, table) })?;
        let child = Child { context, digests: RwLock::default() };
        // Its random generator fetches for itself, and its cipher may be one of ours. The generator is not made yet, which
        // is when this can be said.
        // SAFETY: live context, C strings or none.
        let told = unsafe {
            sys::RAND_set_DRBG_type(child.as_ptr(), null(), ELSEWHERE.as_ptr(), null(), null()) == 1
        };
        told.then_some(child)
    }

    /// For calls that take it.
    pub fn as_ptr(&self) -> *mut sys::OSSL_LIB_CTX {
        self.context.as_ptr()
    }

    /// A digest by name, from anybody but us. The first few names are remembered with what they led to.
    pub fn digest(&self, name: &CStr) -> Option<Digest> {
        if let Ok(known) = self.digests.try_read()
            && let Some((_, digest)) = known.iter().find(|(one, _)| **one == *name)
        {
            return Some(digest.clone());
        }
        let digest = self.digest_matching(name, ELSEWHERE)?;
        if let Ok(mut known) = self.digests.try_write()
            && known.len() < REMEMBERED
            && known.iter().all(|(one, _)| **one != *name)
        {
            known.push((name.to_owned(), digest.clone()));
        }
        Some(digest)
    }

    /// A digest by name that has these properties too (a whole query; it must say [`ELSEWHERE`] itself).
    pub fn digest_matching(&self, name: &CStr, query: &CStr) -> Option<Digest> {
        // SAFETY: live context, C strings.
        unsafe {
            // OpenSSL reports a query that it cannot read, and fetches all the same.
            sys::ERR_set_mark();
            let digest = NonNull::new(sys::EVP_MD_fetch(self.as_ptr(), name.as_ptr(), query.as_ptr()));
            if digest.is_some() {
                sys::ERR_pop_to_mark()
            } else {
                sys::ERR_clear_last_mark()
            };
            digest.map(Digest)
        }
    }

    /// A key derivation by name, from anybody but us.
    pub fn kdf(&self, name: &CStr) -> Option<Kdf> {
        // SAFETY: live context, C strings.
        let fetched = unsafe { sys::EVP_KDF_fetch(self.as_ptr(), name.as_ptr(), ELSEWHERE.as_ptr()) };
        NonNull::new(fetched).map(Kdf::new)
    }

    /// A cipher by name, from anybody but us, in which nothing is set.
    pub fn cipher(&self, name: &CStr) -> Option<CipherCtx> {
        // SAFETY: live context, C strings; the context made here is ours.
        unsafe {
            let fetched = sys::EVP_CIPHER_fetch(self.as_ptr(), name.as_ptr(), ELSEWHERE.as_ptr());
            let method = NonNull::new(fetched)?;
            let context = NonNull::new(sys::EVP_CIPHER_CTX_new()).map(CipherCtx);
            let set = |context: &CipherCtx| {
                let at = context.0.as_ptr();
                sys::EVP_CipherInit_ex2(at, method.as_ptr(), null(), null(), -1, null()) == 1
            };
            let context = context.filter(set);
            // The context has a reference of its own.
            sys::EVP_CIPHER_free(method.as_ptr());
            context
        }
    }

    /// Fills `out` with random bytes that others will see, from the host's generator for such.
    #[must_use]
    pub fn public_random(&self, out: &mut [u8]) -> bool {
        // SAFETY: live context, writable bytes.
        unsafe { sys::RAND_bytes_ex(self.as_ptr(), out.as_mut_ptr(), out.len(), 0) == 1 }
    }

    /// Fills `out` with random bytes from the host's generator for secrets.
    #[must_use]
    pub fn random(&self, out: &mut [u8]) -> bool {
        // SAFETY: live context, writable bytes.
        unsafe { sys::RAND_priv_bytes_ex(self.as_ptr(), out.as_mut_ptr(), out.len(), 0) == 1 }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.digests.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        // SAFETY: ours, freed once; what was fetched from it is gone.
        unsafe { sys::OSSL_LIB_CTX_free(self.as_ptr()) }
    }
}

/// A fetched digest.
pub struct Digest(NonNull<sys::EVP_MD>);

// SAFETY: fetched methods are reference-counted and immutable (EVP_MD_fetch(3)).
unsafe impl Send for Digest {}
// SAFETY: as above.
unsafe impl Sync for Digest {}

impl Digest {
    /// For calls that take it.
    pub fn as_ptr(&self) -> *mut sys::EVP_MD {
        self.0.as_ptr()
    }

    /// Output bytes; 0 if it has no fixed length.
    pub fn size(&self) -> usize {
        // SAFETY: a live digest.
        usize::try_from(unsafe { sys::EVP_MD_get_size(self.as_ptr()) }).unwrap_or(0)
    }

    /// Whether it goes by that name or is the same under another.
    pub fn is(&self, name: &CStr) -> bool {
        // SAFETY: a live digest, a C string.
        unsafe { sys::EVP_MD_is_a(self.as_ptr(), name.as_ptr()) == 1 }
    }

    /// What it calls itself.
    pub fn name(&self) -> &CStr {
        // SAFETY: a live digest; its name lives as long.
        unsafe { CStr::from_ptr(sys::EVP_MD_get0_name(self.as_ptr())) }
    }

    /// What contexts answer. The list lives as long as this does.
    pub fn gettable(&self) -> *const OSSL_PARAM {
        // SAFETY: a live digest.
        unsafe { sys::EVP_MD_gettable_ctx_params(self.as_ptr()) }
    }

    /// What contexts take. The list lives as long as this does.
    pub fn settable(&self) -> *const OSSL_PARAM {
        // SAFETY: a live digest.
        unsafe { sys::EVP_MD_settable_ctx_params(self.as_ptr()) }
    }

    /// Hashes the pieces one after the other into `out`, which must have room for [`Digest::size`] bytes.
    #[must_use]
    pub fn hash(&self, pieces: &[&[u8]], out: &mut [u8]) -> bool {
        if out.len() < self.size() {
            return false;
        }
        Hashing::begin(self).is_some_and(|mut hashing| {
            pieces.iter().all(|piece| hashing.update(piece)) && hashing.finish(out).is_some()
        })
    }
}

impl Clone for Digest {
    fn clone(&self) -> Digest {
        // SAFETY: a live digest gains a reference, which the clone owns.
        unsafe { sys::EVP_MD_up_ref(self.as_ptr()) };
        Digest(self.0)
    }
}

impl Drop for Digest {
    fn drop(&mut self) {
        // SAFETY: one reference is ours.
        unsafe { sys::EVP_MD_free(self.as_ptr()) }
    }
}

/// A digest under way.
pub struct Hashing(NonNull<sys::EVP_MD_CTX>);

// SAFETY: used by one thread at a time, as every operation context.
unsafe impl Send for Hashing {}

impl Hashing {
    /// Begins.
    pub fn begin(digest: &Digest) -> Option<Hashing> {
        // SAFETY: public call without arguments.
        let hashing = Hashing(NonNull::new(unsafe { sys::EVP_MD_CTX_new() })?);
        // SAFETY: live context and digest; no parameters.
        let began = unsafe { sys::EVP_DigestInit_ex2(hashing.as_ptr(), digest.as_ptr(), null()) };
        (began == 1).then_some(hashing)
    }

    /// Begins again with the same context.
    pub fn restart(&mut self, digest: &Digest, params: Params<'_>) -> bool {
        // SAFETY: live context, digest and list.
        unsafe { sys::EVP_DigestInit_ex2(self.as_ptr(), digest.as_ptr(), params.as_ptr()) == 1 }
    }

    fn as_ptr(&self) -> *mut sys::EVP_MD_CTX {
        self.0.as_ptr()
    }

    /// Answers questions; the call's own result.
    pub fn get(&self, answers: &mut Answers<'_>) -> c_int {
        // SAFETY: a live context and a list to fill.
        unsafe { sys::EVP_MD_CTX_get_params(self.as_ptr(), answers.as_mut_ptr()) }
    }

    /// Sets parameters; the call's own result.
    pub fn set(&self, params: Params<'_>) -> c_int {
        // SAFETY: a live context and list.
        unsafe { sys::EVP_MD_CTX_set_params(self.as_ptr(), params.as_ptr()) }
    }

    /// Takes in more.
    pub fn update(&mut self, data: &[u8]) -> bool {
        // SAFETY: live context, readable bytes.
        unsafe { sys::EVP_DigestUpdate(self.as_ptr(), data.as_ptr().cast(), data.len()) == 1 }
    }

    /// Writes the hash and returns its length. `out` must have room for the digest's size.
    pub fn finish(&mut self, out: &mut [u8]) -> Option<usize> {
        let mut room = [0_u8; 64];
        let mut len = 0;
        // SAFETY: live context; no digest is longer than EVP_MAX_MD_SIZE, 64 bytes.
        let done = unsafe { sys::EVP_DigestFinal_ex(self.as_ptr(), room.as_mut_ptr(), &raw mut len) };
        let len = len as usize;
        if done != 1 || len > room.len() || len > out.len() {
            return None;
        }
        out[..len].copy_from_slice(&room[..len]);
        zeroize::Zeroize::zeroize(&mut room);
        Some(len)
    }

    /// The same state once more.
    pub fn duplicate(&self) -> Option<Hashing> {
        // SAFETY: public call without arguments.
        let copy = Hashing(NonNull::new(unsafe { sys::EVP_MD_CTX_new() })?);
        // SAFETY: two live contexts.
        (unsafe { sys::EVP_MD_CTX_copy_ex(copy.as_ptr(), self.as_ptr()) } == 1).then_some(copy)
    }
}

impl Drop for Hashing {
    fn drop(&mut self) {
        // SAFETY: ours, freed once.
        unsafe { sys::EVP_MD_CTX_free(self.as_ptr()) }
    }
}

/// A fetched key derivation.
pub struct Kdf {
    method: NonNull<sys::EVP_KDF>,
    /// Whether a reset leaves nothing behind. A provider need not have one (provider-kdf(7)); of OpenSSL's own it is known.
    resets: bool,
    /// A context that is reset and unused, or null: one of OpenSSL's has some kilobytes, and to allocate, clear and
    /// free them takes a twentieth of a derivation.
    spare: AtomicPtr<sys::EVP_KDF_CTX>,
}

// SAFETY: fetched methods are reference-counted and immutable (EVP_KDF(3)).
unsafe impl Send for Kdf {}
// SAFETY: as above.
unsafe impl Sync for Kdf {}

impl Kdf {
    fn new(method: NonNull<sys::EVP_KDF>) -> Kdf {
        // SAFETY: a live method, its provider, and that one's name, which lives as long.
        let resets = unsafe {
            let provider = sys::EVP_KDF_get0_provider(method.as_ptr());
            !provider.is_null() && CStr::from_ptr(sys::OSSL_PROVIDER_get0_name(provider)) == c"default"
        };
        Kdf { method, resets, spare: AtomicPtr::new(null_mut()) }
    }

    /// A derivation in which nothing is set.
    pub fn context(&self) -> Option<KdfCtx> {
        let spare = self.spare.swap(null_mut(), Ordering::AcqRel);
        // SAFETY: a live method.
        let made = || NonNull::new(unsafe { sys::EVP_KDF_CTX_new(self.method.as_ptr()) });
        NonNull::new(spare).or_else(made).map(KdfCtx)
    }

    /// Takes back a context of its own that is no longer needed.
    pub fn take_back(&self, context: KdfCtx) {
        if !self.resets {
            return;
        }
        let context = std::mem::ManuallyDrop::new(context).0.as_ptr();
        // SAFETY: a live context with one owner.
        unsafe { sys::EVP_KDF_CTX_reset(context) };
        self.keep(context);
    }

    fn keep(&self, context: *mut sys::EVP_KDF_CTX) {
        drop(NonNull::new(self.spare.swap(context, Ordering::AcqRel)).map(KdfCtx));
    }

    /// What contexts answer. The list lives as long as this does.
    pub fn gettable(&self) -> *const OSSL_PARAM {
        // SAFETY: a live method.
        unsafe { sys::EVP_KDF_gettable_ctx_params(self.method.as_ptr()) }
    }

    /// What contexts take. The list lives as long as this does.
    pub fn settable(&self) -> *const OSSL_PARAM {
        // SAFETY: a live method.
        unsafe { sys::EVP_KDF_settable_ctx_params(self.method.as_ptr()) }
    }
}

impl Drop for Kdf {
    fn drop(&mut self) {
        self.keep(null_mut());
        // SAFETY: one reference is ours.
        unsafe { sys::EVP_KDF_free(self.method.as_ptr()) }
    }
}

/// A derivation under way.
pub struct KdfCtx(NonNull<sys::EVP_KDF_CTX>);

// SAFETY: used by one thread at a time, as every operation context.
unsafe impl Send for KdfCtx {}

impl KdfCtx {
    /// Sets parameters; the call's own result.
    ///
    /// # Safety
    /// `params` is null or a live list.
    pub unsafe fn set(&mut self, params: *const OSSL_PARAM) -> c_int {
        // SAFETY: a live context; the caller's list.
        unsafe { sys::EVP_KDF_CTX_set_params(self.0.as_ptr(), params) }
    }

    /// Answers questions; the call's own result.
    ///
    /// # Safety
    /// `params` is null or a list to fill.
    pub unsafe fn get(&mut self, params: *mut OSSL_PARAM) -> c_int {
        // SAFETY: a live context; the caller's list.
        unsafe { sys::EVP_KDF_CTX_get_params(self.0.as_ptr(), params) }
    }

    /// Derives; the call's own result.
    ///
    /// # Safety
    /// `out` is null or has room for `len` bytes; `params` is null or a live list.
    pub unsafe fn derive(&mut self, out: *mut u8, len: usize, params: *const OSSL_PARAM) -> c_int {
        // SAFETY: a live context; the caller's room and list.
        unsafe { sys::EVP_KDF_derive(self.0.as_ptr(), out, len, params) }
    }

    /// The same in the same state, if its provider can.
    pub fn duplicate(&self) -> Option<KdfCtx> {
        // SAFETY: a live context; the copy is ours.
        NonNull::new(unsafe { sys::EVP_KDF_CTX_dup(self.0.as_ptr()) }).map(KdfCtx)
    }
}

impl Drop for KdfCtx {
    fn drop(&mut self) {
        // SAFETY: ours, freed once.
        unsafe { sys::EVP_KDF_CTX_free(self.0.as_ptr()) }
    }
}

/// A cipher of another provider's under way. Its calls' own results are handed on.
pub struct CipherCtx(NonNull<sys::EVP_CIPHER_CTX>);

// SAFETY: used by one thread at a time, as every operation context.
unsafe impl Send for CipherCtx {}

impl CipherCtx {
    /// Begins a message.
    ///
    /// # Safety
    /// `key` and `iv` are each null or as long as the cipher's; `params` is null or a live list.
    pub unsafe fn init(
        &mut self,
        encrypt: bool,
        key: *const u8,
        iv: *const u8,
        params: *const OSSL_PARAM,
    ) -> bool {
        // SAFETY: a live context with its cipher; the caller's buffers and list.
        unsafe {
            sys::EVP_CipherInit_ex2(self.0.as_ptr(), null(), key, iv, c_int::from(encrypt), params) == 1
        }
    }

    /// Sets parameters.
    ///
    /// # Safety
    /// `params` is null or a live list.
    pub unsafe fn set(&mut self, params: *const OSSL_PARAM) -> bool {
        // SAFETY: a live context; the caller's list.
        unsafe { sys::EVP_CIPHER_CTX_set_params(self.0.as_ptr(), params) == 1 }
    }

    /// Answers questions.
    ///
    /// # Safety
    /// `params` is null or a list to fill.
    pub unsafe fn get(&mut self, params: *mut OSSL_PARAM) -> bool {
        // SAFETY: a live context; the caller's list.
        unsafe { sys::EVP_CIPHER_CTX_get_params(self.0.as_ptr(), params) == 1 }
    }

    /// A piece of a message, or a TLS record; how much came out.
    ///
    /// # Safety
    /// `input` has `len` readable bytes, and `out` room for as many and a block.
    pub unsafe fn update(&mut self, out: *mut u8, input: *const u8, len: usize) -> Option<usize> {
        let (len, mut done) = (c_int::try_from(len).ok()?, 0);
        // SAFETY: a live context; the caller's buffers.
        let good = unsafe { sys::EVP_CipherUpdate(self.0.as_ptr(), out, &raw mut done, input, len) == 1 };
        if good { usize::try_from(done).ok() } else { None }
    }

    /// Whole blocks, or a TLS record, as `EVP_Cipher()` has them; how much came out.
    ///
    /// # Safety
    /// As [`CipherCtx::update`].
    pub unsafe fn once(&mut self, out: *mut u8, input: *const u8, len: usize) -> Option<usize> {
        let len = c_uint::try_from(len).ok()?;
        // SAFETY: a live context; the caller's buffers. A negative number is a failure.
        usize::try_from(unsafe { sys::EVP_Cipher(self.0.as_ptr(), out, input, len) }).ok()
    }

    /// The end of a message; how much came out.
    ///
    /// # Safety
    /// `out` has room for a block.
    pub unsafe fn finish(&mut self, out: *mut u8) -> Option<usize> {
        let mut done = 0;
        // SAFETY: a live context; the caller's buffer.
        let good = unsafe { sys::EVP_CipherFinal_ex(self.0.as_ptr(), out, &raw mut done) == 1 };
        if good { usize::try_from(done).ok() } else { None }
    }

    /// The same in the same state, if its provider can.
    pub fn duplicate(&self) -> Option<CipherCtx> {
        // SAFETY: public calls on a context of ours and a live one.
        unsafe {
            let copy = CipherCtx(NonNull::new(sys::EVP_CIPHER_CTX_new())?);
            (sys::EVP_CIPHER_CTX_copy(copy.0.as_ptr(), self.0.as_ptr()) == 1).then_some(copy)
        }
    }
}

impl Drop for CipherCtx {
    fn drop(&mut self) {
        // SAFETY: ours, freed once.
        unsafe { sys::EVP_CIPHER_CTX_free(self.0.as_ptr()) }
    }
}

/// A key that another provider holds.
pub struct Pkey(NonNull<sys::EVP_PKEY>);

// SAFETY: EVP_PKEY is reference-counted with atomic counts; operations on it go through contexts of their own.
unsafe impl Send for Pkey {}
// SAFETY: as above; what is written through `EVP_PKEY_set_params` is done by the owner of the only reference.
unsafe impl Sync for Pkey {}

impl Pkey {
    /// Takes over a reference.
    ///
    /// # Safety
    /// `key` is null or a live key with one reference that now becomes ours.
    pub unsafe fn adopt(key: *mut sys::EVP_PKEY) -> Option<Pkey> {
        NonNull::new(key).map(Pkey)
    }

    /// Makes a key of that type from parameters (`EVP_PKEY_fromdata`).
    pub fn from_data(child: &Child, name: &CStr, selection: c_int, params: Params<'_>) -> Option<Pkey> {
        let making = PkeyCtx::by_name(child, name)?;
        let mut key = null_mut();
        // SAFETY: live context; the list is only read, whatever its type says.
        let made = unsafe {
            sys::EVP_PKEY_fromdata_init(making.as_ptr()) == 1
                && sys::EVP_PKEY_fromdata(
                    making.as_ptr(),
                    &raw mut key,
                    selection,
                    params.as_ptr().cast_mut(),
                ) == 1
        };
        // SAFETY: on success the key is ours.
        if made { unsafe { Pkey::adopt(key) } } else { None }
    }

    /// For calls that take it.
    pub fn as_ptr(&self) -> *mut sys::EVP_PKEY {
        self.0.as_ptr()
    }

    /// A copy that shares nothing.
    pub fn duplicate(&self) -> Option<Pkey> {
        // SAFETY: a live key; the copy is ours.
        unsafe { Pkey::adopt(sys::EVP_PKEY_dup(self.as_ptr())) }
    }

    /// Answers questions.
    pub fn get(&self, answers: &mut Answers<'_>) -> bool {
        // SAFETY: a live key and a list to fill.
        unsafe { sys::EVP_PKEY_get_params(self.as_ptr(), answers.as_mut_ptr()) == 1 }
    }

    /// Sets parameters of a key with one owner.
    pub fn set(&mut self, params: Params<'_>) -> bool {
        // SAFETY: a live key; the list is only read, whatever its type says.
        unsafe { sys::EVP_PKEY_set_params(self.as_ptr(), params.as_ptr().cast_mut()) == 1 }
    }

    /// What is selected of it, as parameters.
    pub fn data(&self, selection: c_int) -> Option<Recorded> {
        let mut list = null_mut();
        // SAFETY: a live key; on success the list is ours, to be freed once, with names that are OpenSSL's constants.
        unsafe {
            let done = sys::EVP_PKEY_todata(self.as_ptr(), selection, &raw mut list) == 1;
            done.then(|| Recorded::adopt(list))
        }
    }

    /// Tells what is selected of it as parameters; the callback's result.
    pub fn export(&self, selection: c_int, callback: &Callback) -> c_int {
        let (call, argument) = callback.parts();
        // SAFETY: a live key; callback and argument belong together.
        unsafe { sys::EVP_PKEY_export(self.as_ptr(), selection, call, argument) }
    }

    /// Whether both are equal, or their domain parameters only.
    pub fn is_same(&self, other: &Pkey, parameters_only: bool) -> bool {
        let call = if parameters_only { sys::EVP_PKEY_parameters_eq } else { sys::EVP_PKEY_eq };
        // SAFETY: two live keys.
        unsafe { call(self.as_ptr(), other.as_ptr()) == 1 }
    }

    /// Modulus or field size in bits.
    pub fn bits(&self) -> usize {
        // SAFETY: a live key.
        usize::try_from(unsafe { sys::EVP_PKEY_get_bits(self.as_ptr()) }).unwrap_or(0)
    }

    /// Bytes of the largest output.
    pub fn size(&self) -> usize {
        // SAFETY: a live key.
        usize::try_from(unsafe { sys::EVP_PKEY_get_size(self.as_ptr()) }).unwrap_or(0)
    }
}

impl Clone for Pkey {
    fn clone(&self) -> Pkey {
        // SAFETY: a live key gains a reference, which the clone owns.
        unsafe { sys::EVP_PKEY_up_ref(self.as_ptr()) };
        Pkey(self.0)
    }
}

impl Drop for Pkey {
    fn drop(&mut self) {
        // SAFETY: one reference is ours.
        unsafe { sys::EVP_PKEY_free(self.as_ptr()) }
    }
}

/// What an operation on a key is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Signing.
    Sign,
    /// Verifying a signature.
    Verify,
    /// Recovering what was signed.
    Recover,
    /// Encrypting with a public key.
    Encrypt,
    /// Decrypting with a private key.
    Decrypt,
    /// Agreeing on a secret.
    Derive,
}

/// What of a key is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// Domain parameters, quickly or not.
    Parameters {
        /// Whether what takes long is left out.
        quick: bool,
    },
    /// The public half, quickly or not.
    Public {
        /// Whether what takes long is left out.
        quick: bool,
    },
    /// The private half.
    Private,
    /// That both halves belong together.
    Pair,
}

type Produce = unsafe extern "C" fn(*mut sys::EVP_PKEY_CTX, *mut u8, *mut usize, *const u8, usize) -> c_int;

/// An operation on a key of another provider's.
pub struct PkeyCtx(NonNull<sys::EVP_PKEY_CTX>);

// SAFETY: used by one thread at a time, as every operation context.
unsafe impl Send for PkeyCtx {}

impl PkeyCtx {
    /// For making keys of a type.
    pub fn by_name(child: &Child, name: &CStr) -> Option<PkeyCtx> {
        // SAFETY: live context, C strings.
        let made =
            unsafe { sys::EVP_PKEY_CTX_new_from_name(child.as_ptr(), name.as_ptr(), ELSEWHERE.as_ptr()) };
        NonNull::new(made).map(PkeyCtx)
    }

    /// For using a key.
    pub fn by_key(child: &Child, key: &Pkey) -> Option<PkeyCtx> {
        // SAFETY: live context and key, a C string.
        let made =
            unsafe { sys::EVP_PKEY_CTX_new_from_pkey(child.as_ptr(), key.as_ptr(), ELSEWHERE.as_ptr()) };
        NonNull::new(made).map(PkeyCtx)
    }

    fn as_ptr(&self) -> *mut sys::EVP_PKEY_CTX {
        self.0.as_ptr()
    }

    /// Begins an operation.
    pub fn begin(&self, operation: Operation, params: Params<'_>) -> bool {
        let call = match operation {
            Operation::Sign => sys::EVP_PKEY_sign_init_ex,
            Operation::Verify => sys::EVP_PKEY_verify_init_ex,
            Operation::Recover => sys::EVP_PKEY_verify_recover_init_ex,
            Operation::Encrypt => sys::EVP_PKEY_encrypt_init_ex,
            Operation::Decrypt => sys::EVP_PKEY_decrypt_init_ex,
            Operation::Derive => sys::EVP_PKEY_derive_init_ex,
        };
        // SAFETY: a live context and list.
        unsafe { call(self.as_ptr(), params.as_ptr()) == 1 }
    }

    /// Begins the generation of a key, or of domain parameters only.
    pub fn begin_generation(&self, parameters_only: bool) -> bool {
        let call = if parameters_only { sys::EVP_PKEY_paramgen_init } else { sys::EVP_PKEY_keygen_init };
        // SAFETY: a live context.
        unsafe { call(self.as_ptr()) == 1 }
    }

    /// Sets parameters.
    pub fn set(&self, params: Params<'_>) -> bool {
        // SAFETY: a live context and list.
        unsafe { sys::EVP_PKEY_CTX_set_params(self.as_ptr(), params.as_ptr()) > 0 }
    }

    /// Answers questions; the call's own result.
    pub fn get(&self, answers: &mut Answers<'_>) -> c_int {
        // SAFETY: a live context and a list to fill.
        unsafe { sys::EVP_PKEY_CTX_get_params(self.as_ptr(), answers.as_mut_ptr()) }
    }

    /// Whether the key passes a check.
    pub fn passes(&self, check: Check) -> bool {
        let call = match check {
            Check::Parameters { quick: true } => sys::EVP_PKEY_param_check_quick,
            Check::Parameters { quick: false } => sys::EVP_PKEY_param_check,
            Check::Public { quick: true } => sys::EVP_PKEY_public_check_quick,
            Check::Public { quick: false } => sys::EVP_PKEY_public_check,
            Check::Private => sys::EVP_PKEY_private_check,
            Check::Pair => sys::EVP_PKEY_pairwise_check,
        };
        // SAFETY: a live context.
        unsafe { call(self.as_ptr()) == 1 }
    }

    /// Generates a key.
    pub fn generate(&self) -> Option<Pkey> {
        let mut key = null_mut();
        // SAFETY: a live context; on success the key is ours.
        unsafe {
            let made = sys::EVP_PKEY_generate(self.as_ptr(), &raw mut key) == 1;
            Pkey::adopt(key).filter(|_| made)
        }
    }

    /// Generates a key and tells how it goes on.
    pub fn generate_telling(&self, callback: &Callback) -> Option<Pkey> {
        let at = self.as_ptr();
        // SAFETY: a live context, which forgets the callback before that goes.
        unsafe {
            sys::EVP_PKEY_CTX_set_app_data(at, std::ptr::from_ref(callback).cast_mut().cast());
            sys::EVP_PKEY_CTX_set_cb(at, Some(progress));
            let made = self.generate();
            sys::EVP_PKEY_CTX_set_cb(at, None);
            sys::EVP_PKEY_CTX_set_app_data(at, null_mut());
            made
        }
    }

    /// Signs; the call's own result, as of all of these.
    pub fn sign(&self, out: &mut Out<'_>, input: &[u8]) -> c_int {
        self.produce(sys::EVP_PKEY_sign, out, input)
    }

    /// Gives back what was signed.
    pub fn recover(&self, out: &mut Out<'_>, signature: &[u8]) -> c_int {
        self.produce(sys::EVP_PKEY_verify_recover, out, signature)
    }

    /// Encrypts.
    pub fn encrypt(&self, out: &mut Out<'_>, input: &[u8]) -> c_int {
        self.produce(sys::EVP_PKEY_encrypt, out, input)
    }

    /// Decrypts.
    pub fn decrypt(&self, out: &mut Out<'_>, input: &[u8]) -> c_int {
        self.produce(sys::EVP_PKEY_decrypt, out, input)
    }

    fn produce(&self, call: Produce, out: &mut Out<'_>, input: &[u8]) -> c_int {
        let (at, mut len) = (out.as_mut_ptr(), out.room());
        // SAFETY: a live context, readable bytes, and room for as many as it is told, or a question for their number.
        let outcome = unsafe { call(self.as_ptr(), at, &raw mut len, input.as_ptr(), input.len()) };
        if outcome == 1 {
            out.done(len);
        }
        outcome
    }

    /// Verifies a signature.
    pub fn verify(&self, signature: &[u8], input: &[u8]) -> c_int {
        let (at, len) = (signature.as_ptr(), signature.len());
        // SAFETY: a live context and readable bytes.
        unsafe { sys::EVP_PKEY_verify(self.as_ptr(), at, len, input.as_ptr(), input.len()) }
    }

    /// Sets the peer of an agreement, whose key is known to be valid.
    pub fn set_peer(&self, peer: &Pkey) -> bool {
        // SAFETY: a live context and a live key.
        unsafe { sys::EVP_PKEY_derive_set_peer_ex(self.as_ptr(), peer.as_ptr(), 0) == 1 }
    }

    /// Writes the secret of an agreement.
    pub fn derive(&self, out: &mut Out<'_>) -> bool {
        let (at, mut len) = (out.as_mut_ptr(), out.room());
        // SAFETY: a live context, and room for as many bytes as it is told, or a question for their number.
        let done = unsafe { sys::EVP_PKEY_derive(self.as_ptr(), at, &raw mut len) };
        done == 1 && out.done(len)
    }

    /// The same operation, in the same state, once more.
    pub fn duplicate(&self) -> Option<PkeyCtx> {
        // SAFETY: a live context; the copy is ours.
        NonNull::new(unsafe { sys::EVP_PKEY_CTX_dup(self.as_ptr()) }).map(PkeyCtx)
    }
}

impl Drop for PkeyCtx {
    fn drop(&mut self) {
        // SAFETY: ours, freed once.
        unsafe { sys::EVP_PKEY_CTX_free(self.as_ptr()) }
    }
}

/// Passes on how a generation goes on.
unsafe extern "C" fn progress(context: *mut sys::EVP_PKEY_CTX) -> c_int {
    entry(|| {
        // SAFETY: called by `EVP_PKEY_generate` inside `generate_telling`, with its callback as data.
        let (callback, [potential, iteration]) = unsafe {
            let callback = sys::EVP_PKEY_CTX_get_app_data(context).cast::<Callback>().as_ref();
            (callback, [0, 1].map(|index| sys::EVP_PKEY_CTX_get_keygen_info(context, index)))
        };
        let list = List::new().int(c"potential", &potential).int(c"iteration", &iteration);
        callback.and_then(|callback| callback.tell(&list)).unwrap_or(1)
    })
}

/// Bytes in base64, of which a line has at most 48.
pub fn base64(line: &[u8]) -> zeroize::Zeroizing<Vec<u8>> {
    let mut out = zeroize::Zeroizing::new(vec![0; line.len().div_ceil(3) * 4 + 1]);
    // SAFETY: readable bytes, and room for four characters for each three of them and a terminator.
    let len = unsafe { sys::EVP_EncodeBlock(out.as_mut_ptr(), line.as_ptr(), line.len() as c_int) };
    out.truncate(usize::try_from(len).unwrap_or(0));
    out
}

/// OpenSSL's version, as it runs.
pub fn version() -> (c_uint, c_uint) {
    // SAFETY: public calls without arguments.
    unsafe { (sys::OPENSSL_version_major(), sys::OPENSSL_version_minor()) }
}
