//! OpenSSL's parameter lists, read and written without trusting what they say.
//!
//! [`Params`] reads a list that a caller hands in, [`Answers`] fills one that a caller wants filled. Types and sizes
//! are checked against what the entry declares; a pointer is never followed beyond its declared size. An answer whose
//! room is too small fails and says in `return_size` what was needed, as OpenSSL's own setters do.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};

use crate::sys::{
    OSSL_PARAM, PARAM_INTEGER, PARAM_OCTETS, PARAM_OCTETS_PTR, PARAM_UNSIGNED, PARAM_UTF8, PARAM_UTF8_PTR,
    UNMODIFIED,
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

    /// Whether it points nowhere.
    pub fn is_null(&self) -> bool {
        self.0.data.is_null()
    }

    /// A signed or unsigned integer of any width that fits.
    pub fn int(&self) -> Option<i64> {
        let bytes = self.bytes().filter(|bytes| !bytes.is_empty())?;
        let negative = match self.0.data_type {
            PARAM_INTEGER => bytes[bytes.len() - 1] & 0x80 != 0,
            PARAM_UNSIGNED => false,
            _ => return None,
        };
        let fill = if negative { 0xff } else { 0 };
        let mut out = [fill; 8];
        if bytes.len() > 8 && bytes[8..].iter().any(|byte| *byte != fill) {
            return None;
        }
        let len = bytes.len().min(8);
        out[..len].copy_from_slice(&bytes[..len]);
        let value = i64::from_le_bytes(out);
        ((value < 0) == negative).then_some(value)
    }

    /// A number that is not negative.
    pub fn size(&self) -> Option<usize> {
        self.int().and_then(|value| usize::try_from(value).ok())
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

    /// A text without its terminator, if it is UTF-8.
    pub fn text(&self) -> Option<&'a str> {
        let bytes = match self.0.data_type {
            PARAM_UTF8 => {
                let bytes = self.bytes()?;
                // Writers disagree about whether the terminator counts.
                &bytes[..bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len())]
            }
            PARAM_UTF8_PTR => {
                let at = self.0.data.cast::<*const std::ffi::c_char>();
                if at.is_null() {
                    return None;
                }
                // SAFETY: an entry of this type holds a pointer to a C string.
                unsafe {
                    let start = *at;
                    if start.is_null() {
                        return None;
                    }
                    CStr::from_ptr(start).to_bytes()
                }
            }
            _ => return None,
        };
        std::str::from_utf8(bytes).ok()
    }
}

/// A list that a caller wants filled.
pub struct Answers<'a>(&'a mut [OSSL_PARAM]);

impl<'a> Answers<'a> {
    /// # Safety
    /// `list` is null, or begins a list that a null key ends, whose entries' data are writable for `'a`, and that
    /// nobody else uses meanwhile.
    pub unsafe fn new(list: *mut OSSL_PARAM) -> Answers<'a> {
        if list.is_null() {
            return Answers(&mut []);
        }
        // SAFETY: the caller vouches for a terminated list that is ours alone.
        unsafe {
            let mut len = 0;
            while !(*list.add(len)).key.is_null() {
                len += 1;
            }
            Answers(std::slice::from_raw_parts_mut(list, len))
        }
    }

    /// Where the list begins, for handing it on to OpenSSL.
    pub fn as_mut_ptr(&mut self) -> *mut OSSL_PARAM {
        if self.0.is_empty() { std::ptr::null_mut() } else { self.0.as_mut_ptr() }
    }

    /// Whether anything is asked.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is asked, one after the other.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = Answer<'_>> {
        self.0.iter_mut().map(Answer)
    }

    fn find(&mut self, key: &CStr) -> Option<Answer<'_>> {
        self.0.iter_mut().find(|param| is_named(param, key)).map(Answer)
    }

    /// Whether that is asked.
    pub fn wants(&self, key: &CStr) -> bool {
        self.0.iter().any(|param| is_named(param, key))
    }

    /// Whether that is asked once, and nothing else.
    pub fn only(&self, key: &CStr) -> bool {
        matches!(&*self.0, [param] if is_named(param, key))
    }

    /// How much room an answer has, if it is asked for.
    pub fn room(&self, key: &CStr) -> Option<usize> {
        self.0.iter().find(|param| is_named(param, key)).map(|param| param.data_size)
    }

    /// Answers with a number. `true` also where nobody asked; so for all of these.
    pub fn set_size(&mut self, key: &CStr, value: usize) -> bool {
        self.find(key).is_none_or(|mut answer| answer.set_size(value))
    }

    /// Answers with an unsigned integer given big-endian.
    pub fn set_number(&mut self, key: &CStr, big_endian: &[u8]) -> bool {
        self.find(key).is_none_or(|mut answer| answer.set_number(big_endian))
    }

    /// Answers with bytes.
    pub fn set_octets(&mut self, key: &CStr, value: &[u8]) -> bool {
        self.find(key).is_none_or(|mut answer| answer.set_octets(value))
    }

    /// Answers with a text that lives as long as the provider does.
    pub fn set_text(&mut self, key: &CStr, value: &'static CStr) -> bool {
        self.find(key).is_none_or(|mut answer| answer.set_text(value))
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

    /// Bytes of room.
    pub fn room(&self) -> usize {
        self.0.data_size
    }

    /// Answers with a number.
    pub fn set_size(&mut self, value: usize) -> bool {
        let signed = match self.0.data_type {
            PARAM_INTEGER => 1,
            PARAM_UNSIGNED => 0,
            _ => return false,
        };
        let bits = usize::BITS as usize - value.leading_zeros() as usize + signed;
        fill_integer(self.0, &value.to_le_bytes(), bits.div_ceil(8).max(1))
    }

    /// Answers with an unsigned integer given big-endian.
    pub fn set_number(&mut self, big_endian: &[u8]) -> bool {
        if self.0.data_type != PARAM_UNSIGNED {
            return false;
        }
        let little: zeroize::Zeroizing<Vec<u8>> =
            zeroize::Zeroizing::new(big_endian.iter().rev().copied().collect());
        let need = little.len() - little.iter().rev().take_while(|byte| **byte == 0).count();
        fill_integer(self.0, &little, need.max(1))
    }

    /// Answers with bytes.
    pub fn set_octets(&mut self, value: &[u8]) -> bool {
        match self.0.data_type {
            PARAM_OCTETS => fill(self.0, value),
            PARAM_OCTETS_PTR => fill_pointer(self.0, value.as_ptr().cast(), value.len()),
            _ => false,
        }
    }

    /// Answers with a text that lives as long as the provider does.
    pub fn set_text(&mut self, value: &'static CStr) -> bool {
        match self.0.data_type {
            PARAM_UTF8 => fill_text(self.0, value),
            PARAM_UTF8_PTR => fill_pointer(self.0, value.as_ptr().cast(), value.count_bytes()),
            _ => false,
        }
    }

    /// Answers with a pointer, for entries of type `octet_ptr`.
    pub fn set_pointer(&mut self, value: *const c_void, size: usize) -> bool {
        self.0.data_type == PARAM_OCTETS_PTR && fill_pointer(self.0, value, size)
    }
}

fn fill_integer(param: &mut OSSL_PARAM, little: &[u8], need: usize) -> bool {
    if param.data.is_null() {
        param.return_size = need;
        return true;
    }
    if param.data_size < need {
        param.return_size = need;
        return false;
    }
    param.return_size = param.data_size;
    // SAFETY: the entry declares `data_size` writable bytes.
    let room = unsafe { std::slice::from_raw_parts_mut(param.data.cast::<u8>(), param.data_size) };
    room.fill(0);
    let len = little.len().min(room.len());
    room[..len].copy_from_slice(&little[..len]);
    true
}

fn fill(param: &mut OSSL_PARAM, value: &[u8]) -> bool {
    param.return_size = value.len();
    if param.data.is_null() {
        return true;
    }
    if param.data_size < value.len() {
        return false;
    }
    // SAFETY: the entry declares `data_size` writable bytes, at least as many as copied; it does not overlap ours.
    unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), param.data.cast::<u8>(), value.len()) };
    true
}

fn fill_text(param: &mut OSSL_PARAM, value: &CStr) -> bool {
    let bytes = value.to_bytes();
    if !fill(param, bytes) {
        return false;
    }
    if !param.data.is_null() && param.data_size > bytes.len() {
        // SAFETY: one byte beyond the text is still inside `data_size`.
        unsafe { *param.data.cast::<u8>().add(bytes.len()) = 0 };
    }
    true
}

fn fill_pointer(param: &mut OSSL_PARAM, value: *const c_void, size: usize) -> bool {
    param.return_size = size;
    if !param.data.is_null() {
        // SAFETY: an entry of a pointer type holds room for one pointer.
        unsafe { *param.data.cast::<*const c_void>() = value };
    }
    true
}

/// An entry that describes what can be asked or set: name and type.
pub const fn describe(key: &'static CStr, data_type: std::ffi::c_uint) -> OSSL_PARAM {
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
    OSSL_PARAM { data_size: size_of::<std::ffi::c_uint>(), ..describe(key, PARAM_UNSIGNED) }
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

    fn add(
        mut self,
        key: &'a CStr,
        data_type: std::ffi::c_uint,
        data: *mut c_void,
        data_size: usize,
    ) -> List<'a> {
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

    /// With an unsigned integer in little-endian bytes.
    #[must_use]
    pub fn number(self, key: &'a CStr, little_endian: &'a [u8]) -> List<'a> {
        self.add(key, PARAM_UNSIGNED, little_endian.as_ptr().cast_mut().cast(), little_endian.len())
    }

    /// With a signed integer.
    #[must_use]
    pub fn int(self, key: &'a CStr, value: &'a std::ffi::c_int) -> List<'a> {
        let at = std::ptr::from_ref(value).cast_mut().cast();
        self.add(key, PARAM_INTEGER, at, size_of_val(value))
    }

    /// With a signed integer to be written (for questions).
    #[must_use]
    pub fn ask_int(self, key: &'a CStr, value: &'a mut std::ffi::c_int) -> List<'a> {
        self.add(key, PARAM_INTEGER, std::ptr::from_mut(value).cast(), size_of::<std::ffi::c_int>())
    }

    /// With bytes to be written (for questions).
    #[must_use]
    pub fn ask_octets(self, key: &'a CStr, room: &'a mut [u8]) -> List<'a> {
        self.add(key, PARAM_OCTETS, room.as_mut_ptr().cast(), room.len())
    }

    /// Where it begins.
    pub fn as_ptr(&self) -> *const OSSL_PARAM {
        self.entries.as_ptr()
    }

    /// Where it begins, for calls that write answers.
    pub fn as_mut_ptr(&mut self) -> *mut OSSL_PARAM {
        self.entries.as_mut_ptr()
    }

    /// How many bytes the call said the answer of that name has.
    pub fn returned(&self, key: &CStr) -> Option<usize> {
        let entry = self.entries.iter().find(|entry| !entry.key.is_null() && is_named(entry, key))?;
        (entry.return_size != UNMODIFIED).then_some(entry.return_size)
    }
}

impl Default for List<'_> {
    fn default() -> Self {
        List::new()
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
    fn answers_fit_or_say_what_they_need() {
        let mut small = [0xff; 1];
        let mut large = [0xff; 8];
        let mut list = [entry(c"a", PARAM_UNSIGNED, &mut small), entry(c"b", PARAM_INTEGER, &mut large), END];
        // SAFETY: a terminated list over buffers that outlive it.
        let mut answers = unsafe { Answers::new(list.as_mut_ptr()) };
        assert!(!answers.set_size(c"a", 256));
        assert!(answers.set_size(c"b", 300));
        assert!(answers.set_size(c"c", 1), "what nobody asked is no failure");
        assert_eq!((list[0].return_size, list[1].return_size), (2, 8));
        assert_eq!(u64::from_le_bytes(large), 300);
    }

    #[test]
    fn a_signed_answer_keeps_its_sign_bit_free() {
        let mut one = [0; 1];
        let mut list = [entry(c"a", PARAM_INTEGER, &mut one), END];
        // SAFETY: as above.
        let mut answers = unsafe { Answers::new(list.as_mut_ptr()) };
        assert!(answers.set_size(c"a", 127));
        assert!(!answers.set_size(c"a", 128));
        assert!(!answers.set_size(c"a", 256) && answers.set_size(c"a", 0));
    }

    #[test]
    fn a_question_without_room_learns_the_size() {
        let mut list = [describe(c"a", PARAM_OCTETS), describe(c"n", PARAM_UNSIGNED), END];
        // SAFETY: as above.
        let mut answers = unsafe { Answers::new(list.as_mut_ptr()) };
        assert!(answers.set_octets(c"a", b"12345"));
        assert!(answers.set_number(c"n", &[0, 1, 2]));
        assert_eq!((list[0].return_size, list[1].return_size), (5, 2));
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
