//! OpenSSL's parameter lists, read and written without trusting what they say.
//!
//! [`Params`] reads a list that a caller hands in, [`Answers`] fills one that a caller wants filled. Types and sizes
//! are checked against what the entry declares; a pointer is never followed beyond its declared size. Numbers are read,
//! and answers written, by OpenSSL's own functions: what they take, refuse and say of sizes is that of the OpenSSL at
//! hand.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, CString, c_int, c_uint, c_void};

use zeroize::Zeroize;

use crate::sys::{
    OSSL_PARAM, OSSL_PARAM_dup, OSSL_PARAM_free, OSSL_PARAM_get_int64, OSSL_PARAM_get_size_t,
    OSSL_PARAM_get_uint, OSSL_PARAM_set_int, OSSL_PARAM_set_octet_ptr, OSSL_PARAM_set_octet_string,
    OSSL_PARAM_set_size_t, OSSL_PARAM_set_uint, OSSL_PARAM_set_utf8_ptr, OSSL_PARAM_set_utf8_string,
    PARAM_INTEGER, PARAM_OCTETS, PARAM_OCTETS_PTR, PARAM_UNSIGNED, PARAM_UTF8, PARAM_UTF8_PTR, UNMODIFIED,
};

/// A list that a caller hands in.
#[derive(Clone, Copy)]
pub struct Params<'a>(&'a [OSSL_PARAM]);

impl<'a> Params<'a> {
    /// No entries.
    pub const EMPTY: Params<'static> = Params(&[]);

    /// # Safety
    /// `list` is null, or begins a list that a null key ends and whose entries stay valid and unchanged for `'a`.
    pub unsafe fn new(list: *const OSSL_PARAM) -> Params<'a> {
        if list.is_null() {
            return Params(&[]);
        }
        // SAFETY: the caller vouches for a terminated list; every entry up to its end is readable.
        unsafe {
            let mut len = 0;
            while !(*list.add(len)).key.is_null() {
                len += 1;
            }
            Params(std::slice::from_raw_parts(list, len))
        }
    }

    /// The entries in order.
    pub fn iter(&self) -> impl Iterator<Item = Param<'a>> + use<'a> {
        self.0.iter().map(Param)
    }

    /// The first entry of that name.
    pub fn get(&self, key: &CStr) -> Option<Param<'a>> {
        self.iter().find(|param| is_named(param.0, key))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Where the list begins, for handing it on to OpenSSL; null if there is none. The terminator follows the entries.
    pub fn as_ptr(&self) -> *const OSSL_PARAM {
        if self.0.is_empty() { std::ptr::null() } else { self.0.as_ptr() }
    }
}

/// One entry.
#[derive(Clone, Copy)]
pub struct Param<'a>(&'a OSSL_PARAM);

impl<'a> Param<'a> {
    /// Its name.
    pub fn key(&self) -> &'a CStr {
        // SAFETY: keys of entries before the terminator are C strings, by the contract of `Params::new`.
        unsafe { CStr::from_ptr(self.0.key) }
    }

    /// Whether that is its name.
    #[inline]
    pub fn is(&self, key: &CStr) -> bool {
        is_named(self.0, key)
    }

    fn bytes(&self) -> Option<&'a [u8]> {
        if self.0.data_size == 0 {
            return Some(&[]);
        }
        // No object is longer than half the address space; some of OpenSSL's calls use -1 as a sign.
        if self.0.data.is_null() || self.0.data_size > isize::MAX as usize {
            return None;
        }
        // SAFETY: the entry declares `data_size` readable bytes.
        Some(unsafe { std::slice::from_raw_parts(self.0.data.cast::<u8>(), self.0.data_size) })
    }

    /// Bytes of its data.
    pub fn len(&self) -> usize {
        self.0.data_size
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.0.data_size == 0
    }

    /// Whether it is a text in place, not a pointer to one.
    pub fn is_text(&self) -> bool {
        self.0.data_type == PARAM_UTF8
    }

    /// Whether it is a byte string in place, not a pointer to one.
    pub fn is_octets(&self) -> bool {
        self.0.data_type == PARAM_OCTETS
    }

    /// Whether it has the bytes, or the pointer, that it says it has.
    fn is_whole(&self) -> bool {
        match self.0.data_type {
            PARAM_UTF8_PTR | PARAM_OCTETS_PTR => !self.is_null(),
            _ => self.bytes().is_some(),
        }
    }

    /// Whether it points nowhere.
    pub fn is_null(&self) -> bool {
        self.0.data.is_null()
    }

    /// A number in whatever form OpenSSL takes for one.
    pub fn int(&self) -> Option<i64> {
        self.integer(OSSL_PARAM_get_int64)
    }

    /// The same of an `int` only, as where OpenSSL takes a text, too.
    pub fn signed(&self) -> Option<i64> {
        if self.0.data_type == PARAM_INTEGER { self.int() } else { None }
    }

    /// Whether that is its number. Newer versions of OpenSSL say of a wrong type that it is one; this does not.
    pub fn equals(&self, number: i64) -> bool {
        matches!(self.0.data_type, PARAM_INTEGER | PARAM_UNSIGNED) && self.int() == Some(number)
    }

    /// As [`int`](Self::int), an `unsigned int`.
    pub fn uint(&self) -> Option<c_uint> {
        self.integer(OSSL_PARAM_get_uint)
    }

    /// As [`int`](Self::int), a `size_t`.
    pub fn size(&self) -> Option<usize> {
        self.integer(OSSL_PARAM_get_size_t)
    }

    fn integer<T: Default>(
        &self,
        get: unsafe extern "C" fn(*const OSSL_PARAM, *mut T) -> c_int,
    ) -> Option<T> {
        // OpenSSL 3.0 reads through a null pointer, and a number of no bytes from in front of it.
        self.bytes().filter(|bytes| !bytes.is_empty())?;
        let mut value = T::default();
        // SAFETY: an entry with as many readable bytes as it declares, and a place for its value.
        (unsafe { get(self.0, &raw mut value) } == 1).then_some(value)
    }

    /// An unsigned integer of any width, big-endian, without leading zeros. It may be a secret: the caller wipes it.
    pub fn number(&self) -> Option<Vec<u8>> {
        if self.0.data_type != PARAM_UNSIGNED {
            return None;
        }
        let bytes = self.bytes()?;
        let len = bytes.len() - bytes.iter().rev().take_while(|byte| **byte == 0).count();
        Some(bytes[..len].iter().rev().copied().collect())
    }

    /// A byte string.
    pub fn octets(&self) -> Option<&'a [u8]> {
        match self.0.data_type {
            PARAM_OCTETS => self.bytes(),
            PARAM_OCTETS_PTR => {
                let at = self.0.data.cast::<*const u8>();
                if at.is_null() {
                    return None;
                }
                // SAFETY: an entry of this type holds a pointer to `data_size` bytes.
                unsafe {
                    let start = *at;
                    if self.0.data_size == 0 {
                        return Some(&[]);
                    }
                    (!start.is_null()).then(|| std::slice::from_raw_parts(start, self.0.data_size))
                }
            }
            _ => None,
        }
    }

    /// The `len` bytes of an entry whose declared size is -1, by which `EVP_CTRL_GCM_SET_IV_FIXED` says "all of it".
    ///
    /// # Safety
    /// The caller of this entry has `len` readable bytes there.
    pub unsafe fn whole(&self, len: usize) -> Option<&'a [u8]> {
        if self.0.data_type != PARAM_OCTETS || self.0.data_size != usize::MAX || self.0.data.is_null() {
            return None;
        }
        // SAFETY: the caller's.
        Some(unsafe { std::slice::from_raw_parts(self.0.data.cast::<u8>(), len) })
    }

    /// The first `N` bytes of an entry that declares at least as many.
    ///
    /// `EVP_CTRL_TLS1_1_MULTIBLOCK_AAD` declares the length of the text for what are 13 bytes of header: nothing beyond
    /// them may be read, so this makes no slice of them.
    pub fn beginning<const N: usize>(&self) -> Option<[u8; N]> {
        if self.0.data_type != PARAM_OCTETS || self.0.data_size < N || self.0.data.is_null() {
            return None;
        }
        // SAFETY: the entry declares at least `N` readable bytes.
        Some(unsafe { self.0.data.cast::<[u8; N]>().read_unaligned() })
    }

    /// Where a byte string begins that is to be written: what an entry points to that asks for work instead of setting
    /// a value. The declared size says nothing of the room.
    pub fn place(&self) -> Option<*mut u8> {
        (self.0.data_type == PARAM_OCTETS && !self.0.data.is_null()).then(|| self.0.data.cast())
    }

    /// A text in place, without its terminator, if it is UTF-8. (Settings are no pointers to texts, for OpenSSL's own
    /// either.)
    pub fn text(&self) -> Option<&'a str> {
        if !self.is_text() {
            return None;
        }
        let bytes = self.bytes()?;
        // Writers disagree about whether the terminator counts.
        let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        std::str::from_utf8(&bytes[..len]).ok()
    }
}

/// A copy of a caller's list, wiped on drop.
pub struct Recorded {
    list: *mut OSSL_PARAM,
    /// `OSSL_PARAM_dup(3)` copies values only; the caller's names may go before the copy does.
    _names: Vec<CString>,
}

// SAFETY: a list of its own that is not written.
unsafe impl Send for Recorded {}
// SAFETY: as above.
unsafe impl Sync for Recorded {}

impl Recorded {
    /// A copy; `None` if there is nothing, or no memory. What says that it has bytes and has none, which
    /// `OSSL_PARAM_dup(3)` would read all the same, is left out.
    pub fn of(params: Params<'_>) -> Option<Recorded> {
        let mut whole: Vec<OSSL_PARAM> = params.iter().filter(Param::is_whole).map(|one| *one.0).collect();
        if whole.is_empty() {
            return None;
        }
        let names: Vec<CString> = whole.iter().map(|one| Param(one).key().to_owned()).collect();
        whole.push(END);
        // SAFETY: a terminated list whose entries have what they say; the copy is as long, and ours to write.
        unsafe {
            let list = OSSL_PARAM_dup(whole.as_ptr());
            if list.is_null() {
                return None;
            }
            for (at, name) in names.iter().enumerate() {
                (*list.add(at)).key = name.as_ptr();
            }
            Some(Recorded { list, _names: names })
        }
    }

    /// A copy of the entries of some names.
    pub fn some(params: Params<'_>, wanted: impl Fn(&CStr) -> bool) -> Option<Recorded> {
        let mut list: Vec<OSSL_PARAM> =
            params.0.iter().filter(|one| wanted(Param(one).key())).copied().collect();
        list.push(END);
        // SAFETY: a terminated list of the caller's entries.
        Recorded::of(unsafe { Params::new(list.as_ptr()) })
    }

    /// A list that OpenSSL made.
    ///
    /// # Safety
    /// `list` is terminated, is freed by `OSSL_PARAM_free(3)`, and its names stay.
    pub unsafe fn adopt(list: *mut OSSL_PARAM) -> Recorded {
        Recorded { list, _names: Vec::new() }
    }

    /// Another copy.
    pub fn again(&self) -> Option<Recorded> {
        Recorded::of(self.params())
    }

    /// To read.
    pub fn params(&self) -> Params<'_> {
        // SAFETY: a terminated list that stays.
        unsafe { Params::new(self.list) }
    }

    /// For calls that take it.
    pub fn as_ptr(&self) -> *mut OSSL_PARAM {
        self.list
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        // SAFETY: a terminated list that OpenSSL allocated together with its data, freed once.
        unsafe {
            let mut at = self.list;
            while !(*at).key.is_null() {
                let owned = !matches!((*at).data_type, PARAM_UTF8_PTR | PARAM_OCTETS_PTR);
                if owned && !(*at).data.is_null() && (*at).data_size != UNMODIFIED {
                    std::slice::from_raw_parts_mut((*at).data.cast::<u8>(), (*at).data_size).zeroize();
                }
                at = at.add(1);
            }
            OSSL_PARAM_free(self.list);
        }
    }
}

/// A list that a caller wants filled.
pub struct Answers<'a> {
    list: &'a mut [OSSL_PARAM],
    /// Whether there is a list, which may be empty.
    is_given: bool,
}

impl<'a> Answers<'a> {
    /// # Safety
    /// `list` is null, or begins a list that a null key ends, whose entries' data are writable for `'a`, and that
    /// no other code uses meanwhile.
    pub unsafe fn new(list: *mut OSSL_PARAM) -> Answers<'a> {
        if list.is_null() {
            return Answers { list: &mut [], is_given: false };
        }
        // SAFETY: the caller vouches for a terminated list that is ours alone.
        unsafe {
            let mut len = 0;
            while !(*list.add(len)).key.is_null() {
                len += 1;
            }
            Answers { list: std::slice::from_raw_parts_mut(list, len), is_given: true }
        }
    }

    /// Where the list begins, for handing it on to OpenSSL; null if there is none.
    pub fn as_mut_ptr(&mut self) -> *mut OSSL_PARAM {
        if self.is_given { self.list.as_mut_ptr() } else { std::ptr::null_mut() }
    }

    /// Whether there is a list, which may be empty.
    pub fn is_given(&self) -> bool {
        self.is_given
    }

    /// Whether anything is asked.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// What is asked, one after the other.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = Answer<'_>> {
        self.list.iter_mut().map(Answer)
    }

    fn find(&mut self, key: &CStr) -> Option<Answer<'_>> {
        self.list.iter_mut().find(|param| is_named(param, key)).map(Answer)
    }

    /// Whether that is asked.
    pub fn wants(&self, key: &CStr) -> bool {
        self.list.iter().any(|param| is_named(param, key))
    }

    /// Whether that is asked once, and nothing else.
    pub fn only(&self, key: &CStr) -> bool {
        matches!(&*self.list, [param] if is_named(param, key))
    }

    /// How much room an answer has, if it is asked for.
    pub fn room(&self, key: &CStr) -> Option<usize> {
        self.list.iter().find(|param| is_named(param, key)).map(|param| param.data_size)
    }

    /// Answers with a number. `true` also if it was not asked for; so for all of these.
    pub fn set_size(&mut self, key: &CStr, value: usize) -> bool {
        self.find(key).is_none_or(|mut answer| answer.set_size(value))
    }

    /// Answers with an `unsigned int`.
    pub fn set_uint(&mut self, key: &CStr, value: c_uint) -> bool {
        self.find(key).is_none_or(|mut answer| answer.set_uint(value))
    }

    /// Answers with yes or no, which OpenSSL has as an `int`.
    pub fn set_flag(&mut self, key: &CStr, value: bool) -> bool {
        self.find(key).is_none_or(|mut answer| answer.set_int(value.into()))
    }

    /// Answers with bytes.
    pub fn set_octets(&mut self, key: &CStr, value: &[u8]) -> bool {
        self.find(key).is_none_or(|mut answer| answer.set_octets(value))
    }

    /// Answers with a text that lives as long as the provider does, or with where it is.
    pub fn set_text(&mut self, key: &CStr, value: &'static CStr) -> bool {
        self.find(key).is_none_or(|mut answer| match answer.0.data_type {
            PARAM_UTF8_PTR => answer.set_text_ptr(value),
            _ => answer.set_text(value),
        })
    }

    /// Answers with a pointer, for entries of type `octet_ptr`.
    pub fn set_pointer(&mut self, key: &CStr, value: *const c_void, size: usize) -> bool {
        self.find(key).is_none_or(|mut answer| answer.set_pointer(value, size))
    }
}

/// Compares names without first measuring them: lists are searched many times a message.
#[inline]
fn is_named(param: &OSSL_PARAM, key: &CStr) -> bool {
    for (at, byte) in key.to_bytes_with_nul().iter().enumerate() {
        // SAFETY: the entry's name is a C string; nothing behind its terminator is read, since the first difference
        // ends this.
        if unsafe { *param.key.add(at) } as u8 != *byte {
            return false;
        }
    }
    true
}

/// One value that a caller wants.
pub struct Answer<'a>(&'a mut OSSL_PARAM);

impl Answer<'_> {
    /// Its name.
    pub fn key(&self) -> &CStr {
        Param(self.0).key()
    }

    /// Whether that is its name.
    #[inline]
    pub fn is(&self, key: &CStr) -> bool {
        is_named(self.0, key)
    }

    /// Whether bytes are wanted in place, not a pointer to them.
    pub fn is_octets(&self) -> bool {
        self.0.data_type == PARAM_OCTETS
    }

    /// Whether a pointer to bytes is wanted.
    pub fn is_pointer(&self) -> bool {
        self.0.data_type == PARAM_OCTETS_PTR
    }

    /// Where such bytes go; `len` of them if no length is said.
    ///
    /// # Safety
    /// A caller that says no length has room for `len` bytes.
    pub unsafe fn place(&mut self, len: usize) -> Option<&mut [u8]> {
        if !self.is_octets() || self.0.data.is_null() {
            return None;
        }
        let len = if self.0.data_size == 0 { len } else { self.0.data_size };
        // SAFETY: as much room as the entry declares, or the caller's.
        Some(unsafe { std::slice::from_raw_parts_mut(self.0.data.cast(), len) })
    }

    /// Bytes of room.
    pub fn room(&self) -> usize {
        self.0.data_size
    }

    /// Answers with a number.
    pub fn set_size(&mut self, value: usize) -> bool {
        // SAFETY: an entry with as much room as it declares; so in all of these.
        unsafe { OSSL_PARAM_set_size_t(self.0, value) == 1 }
    }

    /// Answers with an `unsigned int`.
    pub fn set_uint(&mut self, value: c_uint) -> bool {
        // SAFETY: as above.
        unsafe { OSSL_PARAM_set_uint(self.0, value) == 1 }
    }

    /// Answers with an `int`.
    pub fn set_int(&mut self, value: c_int) -> bool {
        // SAFETY: as above.
        unsafe { OSSL_PARAM_set_int(self.0, value) == 1 }
    }

    /// Answers with bytes, or with where they are.
    pub fn set_octets(&mut self, value: &[u8]) -> bool {
        // Newer versions say of a wrong type that it is one, which is no business of a call that succeeds.
        if self.is_pointer() {
            return self.set_pointer(value.as_ptr().cast(), value.len());
        }
        self.set_octet_string(value)
    }

    /// Answers with bytes in place only.
    pub fn set_octet_string(&mut self, value: &[u8]) -> bool {
        // SAFETY: as above, and a value of this length.
        unsafe { OSSL_PARAM_set_octet_string(self.0, value.as_ptr().cast(), value.len()) == 1 }
    }

    /// Answers with a text in place only.
    pub fn set_text(&mut self, value: &CStr) -> bool {
        // SAFETY: as above, and a C string.
        unsafe { OSSL_PARAM_set_utf8_string(self.0, value.as_ptr()) == 1 }
    }

    fn set_text_ptr(&mut self, value: &'static CStr) -> bool {
        // SAFETY: as above, and a C string that stays.
        unsafe { OSSL_PARAM_set_utf8_ptr(self.0, value.as_ptr()) == 1 }
    }

    /// Answers with a pointer, for entries of type `octet_ptr`.
    #[allow(clippy::not_unsafe_ptr_arg_deref, reason = "it is only handed on")]
    pub fn set_pointer(&mut self, value: *const c_void, size: usize) -> bool {
        // SAFETY: as above; the value is only handed on.
        unsafe { OSSL_PARAM_set_octet_ptr(self.0, value, size) == 1 }
    }
}

/// An entry that describes what can be asked or set: name and type.
pub const fn describe(key: &'static CStr, data_type: c_uint) -> OSSL_PARAM {
    OSSL_PARAM {
        key: key.as_ptr(),
        data_type,
        data: std::ptr::null_mut(),
        data_size: 0,
        return_size: UNMODIFIED,
    }
}

/// The same of an `unsigned int`. The size is for values that come as text: without one, OpenSSL writes as many bytes as the
/// number has, and 0 has none.
pub const fn describe_uint(key: &'static CStr) -> OSSL_PARAM {
    OSSL_PARAM { data_size: size_of::<c_uint>(), ..describe(key, PARAM_UNSIGNED) }
}

/// Ends a list.
pub const END: OSSL_PARAM = OSSL_PARAM {
    key: std::ptr::null(),
    data_type: 0,
    data: std::ptr::null_mut(),
    data_size: 0,
    return_size: 0,
};

/// A constant table for C: lists of parameters, functions or algorithms. Its pointers are to constants.
#[repr(transparent)]
pub struct Table<T: 'static, const N: usize>(pub [T; N]);

// SAFETY: tables are never written, and what their pointers point to are constants of this library.
unsafe impl<T, const N: usize> Sync for Table<T, N> {}

impl<T, const N: usize> Table<T, N> {
    /// Where it begins.
    pub const fn as_ptr(&self) -> *const T {
        self.0.as_ptr()
    }
}

/// Builds a list on our side, for calls into OpenSSL: values are borrowed, the terminator is kept.
pub struct List<'a> {
    entries: Vec<OSSL_PARAM>,
    borrowed: std::marker::PhantomData<&'a ()>,
}

impl<'a> List<'a> {
    /// An empty list.
    pub fn new() -> List<'a> {
        List { entries: vec![END], borrowed: std::marker::PhantomData }
    }

    fn add(mut self, key: &'a CStr, data_type: c_uint, data: *mut c_void, data_size: usize) -> List<'a> {
        let last = self.entries.len() - 1;
        let entry = OSSL_PARAM { key: key.as_ptr(), data_type, data, data_size, return_size: UNMODIFIED };
        self.entries.insert(last, entry);
        self
    }

    /// With a text.
    #[must_use]
    pub fn text(self, key: &'a CStr, value: &'a CStr) -> List<'a> {
        self.add(key, PARAM_UTF8, value.as_ptr().cast_mut().cast(), value.count_bytes())
    }

    /// With bytes.
    #[must_use]
    pub fn octets(self, key: &'a CStr, value: &'a [u8]) -> List<'a> {
        self.add(key, PARAM_OCTETS, value.as_ptr().cast_mut().cast(), value.len())
    }

    /// With the bytes of a pointer, which the reader of the list may change.
    #[must_use]
    pub fn reference<T>(self, key: &'a CStr, value: &'a Cell<*mut T>) -> List<'a> {
        self.add(key, PARAM_OCTETS, value.as_ptr().cast(), size_of::<*mut T>())
    }

    /// With an unsigned integer in little-endian bytes.
    #[must_use]
    pub fn number(self, key: &'a CStr, little_endian: &'a [u8]) -> List<'a> {
        self.add(key, PARAM_UNSIGNED, little_endian.as_ptr().cast_mut().cast(), little_endian.len())
    }

    /// With an `unsigned int`.
    #[must_use]
    pub fn uint(self, key: &'a CStr, value: &'a c_uint) -> List<'a> {
        let at = std::ptr::from_ref(value).cast_mut().cast();
        self.add(key, PARAM_UNSIGNED, at, size_of_val(value))
    }

    /// With a signed integer.
    #[must_use]
    pub fn int(self, key: &'a CStr, value: &'a c_int) -> List<'a> {
        let at = std::ptr::from_ref(value).cast_mut().cast();
        self.add(key, PARAM_INTEGER, at, size_of_val(value))
    }

    /// To read.
    pub fn params(&self) -> Params<'_> {
        // SAFETY: terminated, over values that are borrowed for longer.
        unsafe { Params::new(self.entries.as_ptr()) }
    }

    /// Where it begins.
    pub fn as_ptr(&self) -> *const OSSL_PARAM {
        self.entries.as_ptr()
    }
}

impl Default for List<'_> {
    fn default() -> Self {
        List::new()
    }
}

/// Builds a list of questions on our side: the rooms for answers are borrowed, the terminator is kept.
#[derive(Default)]
pub struct Questions<'a>(List<'a>);

impl<'a> Questions<'a> {
    /// No questions.
    pub fn new() -> Questions<'a> {
        Questions(List::new())
    }

    /// For an `int`.
    #[must_use]
    pub fn int(self, key: &'a CStr, value: &'a mut c_int) -> Questions<'a> {
        let at = std::ptr::from_mut(value).cast();
        Questions(self.0.add(key, PARAM_INTEGER, at, size_of::<c_int>()))
    }

    /// For bytes, a text or an unsigned integer in little-endian bytes, by the type.
    #[must_use]
    pub fn value(self, key: &'a CStr, data_type: c_uint, room: &'a mut [u8]) -> Questions<'a> {
        Questions(self.0.add(key, data_type, room.as_mut_ptr().cast(), room.len()))
    }

    /// For the length of such a value only.
    #[must_use]
    pub fn len_of(self, key: &'a CStr, data_type: c_uint) -> Questions<'a> {
        Questions(self.0.add(key, data_type, std::ptr::null_mut(), 0))
    }

    /// To fill.
    pub fn answers(&mut self) -> Answers<'_> {
        // SAFETY: terminated, over rooms that are borrowed for longer.
        unsafe { Answers::new(self.0.entries.as_mut_ptr()) }
    }

    /// How many bytes the call said the answer of that name has; `None` if it said nothing.
    pub fn returned(&self, key: &CStr) -> Option<usize> {
        let entry = self.0.entries.iter().find(|entry| !entry.key.is_null() && is_named(entry, key))?;
        (entry.return_size != UNMODIFIED).then_some(entry.return_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &'static CStr, data_type: u32, data: &mut [u8]) -> OSSL_PARAM {
        OSSL_PARAM { data: data.as_mut_ptr().cast(), data_size: data.len(), ..describe(key, data_type) }
    }

    #[test]
    fn integers_of_any_width_are_read_and_too_large_ones_refused() {
        let read = |data_type, bytes: &[u8]| Param(&entry(c"x", data_type, &mut bytes.to_vec())).int();
        assert_eq!(read(PARAM_UNSIGNED, &[5]), Some(5));
        assert_eq!(read(PARAM_INTEGER, &[0xfe]), Some(-2));
        assert_eq!(read(PARAM_UNSIGNED, &[0xfe]), Some(0xfe));
        assert_eq!(read(PARAM_INTEGER, &(-3_i32).to_le_bytes()), Some(-3));
        assert_eq!(read(PARAM_UNSIGNED, &u64::MAX.to_le_bytes()), None);
        assert_eq!(read(PARAM_UNSIGNED, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0]), Some(1));
        assert_eq!(read(PARAM_UNSIGNED, &[0, 0, 0, 0, 0, 0, 0, 0, 1]), None);
        assert_eq!(read(PARAM_UNSIGNED, &[]), None);
        assert_eq!(read(PARAM_OCTETS, &[5]), None);
    }

    #[test]
    fn a_size_of_minus_one_makes_no_slice() {
        let mut bytes = [1, 2, 3];
        let param = OSSL_PARAM { data_size: usize::MAX, ..entry(c"x", PARAM_OCTETS, &mut bytes) };
        assert_eq!(Param(&param).octets(), None);
        // SAFETY: three bytes are there.
        assert_eq!(unsafe { Param(&param).whole(3) }, Some(&[1, 2, 3][..]));
    }

    #[test]
    fn a_copy_of_a_list_outlives_the_names_it_was_made_of() {
        let name = CString::new("digest").unwrap();
        let mut value = *b"SHA256";
        let list = [OSSL_PARAM { key: name.as_ptr(), ..entry(c"x", PARAM_UTF8, &mut value) }, END];
        // SAFETY: a terminated list.
        let copy = Recorded::of(unsafe { Params::new(list.as_ptr()) }).unwrap();
        assert_ne!(copy.params().iter().next().unwrap().key().as_ptr(), name.as_ptr());
        drop(name);
        assert_eq!(copy.params().get(c"digest").unwrap().text(), Some("SHA256"));
    }

    #[test]
    fn a_copy_of_a_list_leaves_out_what_has_not_the_bytes_that_it_says() {
        let mut value = *b"SHA256";
        let none = |data_type, data_size| OSSL_PARAM { data_size, ..describe(c"none", data_type) };
        let octets = OSSL_PARAM { data_size: usize::MAX, ..entry(c"size", PARAM_OCTETS, &mut [0; 4]) };
        let list = [
            none(PARAM_UTF8, 5),
            none(PARAM_OCTETS_PTR, 0),
            none(PARAM_UNSIGNED, 4),
            octets,
            entry(c"digest", PARAM_UTF8, &mut value),
            END,
        ];
        // SAFETY: a terminated list.
        let copy = Recorded::of(unsafe { Params::new(list.as_ptr()) }).unwrap();
        let names: Vec<_> = copy.params().iter().map(|param| param.key()).collect();
        assert_eq!(names, [c"digest"]);
    }

    #[test]
    fn answers_fit_or_are_refused() {
        let mut small = [0xff; 4];
        let mut large = [0xff; 8];
        let mut list = [entry(c"a", PARAM_UNSIGNED, &mut small), entry(c"b", PARAM_INTEGER, &mut large), END];
        // SAFETY: a terminated list over buffers that outlive it.
        let mut answers = unsafe { Answers::new(list.as_mut_ptr()) };
        assert!(!answers.set_size(c"a", 1 << 32));
        assert!(answers.set_size(c"b", 300));
        assert!(answers.set_size(c"c", 1), "what nobody asked is no failure");
        assert_eq!(u64::from_le_bytes(large), 300);
    }

    #[test]
    fn a_question_without_room_learns_the_size() {
        let mut list = [describe(c"a", PARAM_OCTETS), END];
        // SAFETY: as above.
        let mut answers = unsafe { Answers::new(list.as_mut_ptr()) };
        assert!(answers.set_octets(c"a", b"12345"));
        assert_eq!(list[0].return_size, 5);
    }

    #[test]
    fn numbers_turn_round_and_lose_leading_zeros() {
        let mut bytes = [2, 1, 0, 0];
        assert_eq!(Param(&entry(c"n", PARAM_UNSIGNED, &mut bytes)).number(), Some(vec![1, 2]));
    }

    #[test]
    fn texts_stop_at_a_terminator_or_at_their_end() {
        let read = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            let param = entry(c"t", PARAM_UTF8, &mut bytes);
            Param(&param).text().map(str::to_owned)
        };
        assert_eq!(read(b"abc").as_deref(), Some("abc"));
        assert_eq!(read(b"abc\0def").as_deref(), Some("abc"));
        assert_eq!(read(b"\xff"), None);
    }
}
