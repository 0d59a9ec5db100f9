//! What C hands to an entry, as types. The one place where a pointer of OpenSSL's becomes a reference.
//!
//! An argument that says all of itself by its type ([`Shared`], [`Exclusive`], [`Counted`], [`Owned`], [`Given`],
//! [`Name`], [`Read`], [`Fill`]) is declared so in the entry's signature. Nothing in Rust can make a value of these
//! types: OpenSSL does, by calling an entry, and its contract is what makes their methods safe. A null pointer is
//! `None`, or an empty list. Bytes with their length, and a callback with its argument, are two arguments that belong
//! together, which no type can say: [`bytes`], [`Out::new`], [`apart`] and [`Callback::new`] are unsafe.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::null_mut;
use std::sync::Arc;

use zeroize::Zeroizing;

use crate::params::{Answers, List, Params};
use crate::sys::{OSSL_CALLBACK, OSSL_PARAM};

/// Null, or something of ours that several threads may read.
#[repr(transparent)]
pub struct Shared<'a, T>(*const T, PhantomData<&'a T>);

impl<'a, T> Shared<'a, T> {
    /// To read.
    #[inline]
    pub fn get(self) -> Option<&'a T> {
        // SAFETY: only OpenSSL makes one, of null or of what an entry of the same type gave it and it has not freed.
        unsafe { self.0.as_ref() }
    }
}

/// Null, or something of ours that OpenSSL lets one thread at a time use.
#[repr(transparent)]
pub struct Exclusive<'a, T>(*mut T, PhantomData<&'a mut T>);

impl<'a, T> Exclusive<'a, T> {
    /// To use.
    #[inline]
    pub fn get(self) -> Option<&'a mut T> {
        // SAFETY: only OpenSSL makes one, of null or of what an entry of the same type gave it and it has not freed;
        // no other thread uses it during the call.
        unsafe { self.0.as_mut() }
    }
}

/// Null, or something of ours that OpenSSL gives back for good.
#[repr(transparent)]
pub struct Owned<T>(*mut T);

impl<T> Owned<T> {
    /// Takes it back.
    pub fn take(self) -> Option<Box<T>> {
        // SAFETY: only OpenSSL makes one, of null or of what [`own`] gave it, and only once.
        (!self.0.is_null()).then(|| unsafe { Box::from_raw(self.0) })
    }
}

/// Gives something to OpenSSL, which brings it back as [`Owned`]; null for nothing.
pub fn own<T>(made: Option<impl Into<Box<T>>>) -> *mut T {
    made.map_or(null_mut(), |made| Box::into_raw(made.into()))
}

/// Null, or a key of ours, which OpenSSL keeps during the call.
#[repr(transparent)]
pub struct Counted<'a, T>(*const T, PhantomData<&'a T>);

impl<T> Counted<'_, T> {
    /// To use, or to keep a reference of one's own.
    #[inline]
    pub fn get(&self) -> Option<ManuallyDrop<Arc<T>>> {
        // SAFETY: only OpenSSL makes one, of null or of what [`give`] gave it and it has not given back. Its reference
        // stays its own: what is made of it here is never dropped.
        (!self.0.is_null()).then(|| ManuallyDrop::new(unsafe { Arc::from_raw(self.0) }))
    }
}

/// Null, or a key of ours that OpenSSL gives back for good.
#[repr(transparent)]
pub struct Given<T>(*const T);

impl<T> Given<T> {
    /// Takes it back.
    pub fn take(self) -> Option<Arc<T>> {
        // SAFETY: only OpenSSL makes one, of null or of what [`give`] gave it, and only once.
        (!self.0.is_null()).then(|| unsafe { Arc::from_raw(self.0) })
    }
}

/// Gives a key to OpenSSL, which brings it as [`Counted`] and back as [`Given`]; null for none.
pub fn give<T>(key: Option<T>) -> *mut T {
    key.map_or(null_mut(), |key| Arc::into_raw(Arc::new(key)).cast_mut())
}

/// Null, or where a reference to a key of ours lies that may be taken over (`OSSL_FUNC_keymgmt_load`).
#[repr(transparent)]
pub struct Reference<'a, T>(*mut *mut T, PhantomData<&'a T>);

impl<T> Reference<'_, T> {
    /// Takes the key over, if there is one and it is `wanted`: the reference is null then.
    pub fn take(self, len: usize, wanted: impl FnOnce(&T) -> bool) -> *mut T {
        if self.0.is_null() || len != size_of::<*mut T>() {
            return null_mut();
        }
        // SAFETY: a reference of this size holds null or the address of a key of ours, by the contract of
        // provider-keymgmt(7).
        unsafe {
            let key = *self.0;
            match key.as_ref() {
                Some(found) if wanted(found) => *self.0 = null_mut(),
                _ => return null_mut(),
            }
            key
        }
    }
}

/// Null, or a C string.
#[repr(transparent)]
pub struct Name<'a>(*const c_char, PhantomData<&'a CStr>);

impl<'a> Name<'a> {
    /// The text.
    pub fn get(self) -> Option<&'a CStr> {
        // SAFETY: only OpenSSL makes one, of null or of a C string that stays during the call.
        (!self.0.is_null()).then(|| unsafe { CStr::from_ptr(self.0) })
    }
}

/// A list of parameters to read, or null.
#[repr(transparent)]
pub struct Read<'a>(*const OSSL_PARAM, PhantomData<&'a OSSL_PARAM>);

impl<'a> Read<'a> {
    /// What is in it.
    #[inline]
    pub fn get(self) -> Params<'a> {
        // SAFETY: only OpenSSL makes one, of null or of a terminated list that stays during the call.
        unsafe { Params::new(self.0) }
    }
}

/// A list of parameters to fill, or null.
#[repr(transparent)]
pub struct Fill<'a>(*mut OSSL_PARAM, PhantomData<&'a mut OSSL_PARAM>);

impl<'a> Fill<'a> {
    /// What is asked.
    #[inline]
    pub fn get(self) -> Answers<'a> {
        // SAFETY: only OpenSSL makes one, of null or of a terminated list with room for its answers that stays during
        // the call.
        unsafe { Answers::new(self.0) }
    }
}

/// Bytes to read; none where there is no pointer.
///
/// # Safety
/// `at` is null or has `len` bytes that stay unchanged for `'a`.
#[inline]
pub unsafe fn bytes<'a>(at: *const u8, len: usize) -> &'a [u8] {
    if at.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the caller's.
    unsafe { std::slice::from_raw_parts(at, len) }
}

/// Where a caller wants bytes, and their number.
pub struct Out<'a> {
    at: *mut u8,
    room: usize,
    len: *mut usize,
    borrowed: PhantomData<&'a mut [u8]>,
}

impl<'a> Out<'a> {
    /// `None` if there is no place for the number.
    ///
    /// # Safety
    /// `at` is null or has `room` writable bytes, `len` is null or writable, for `'a`; neither lies in the other.
    pub unsafe fn new(at: *mut u8, room: usize, len: *mut usize) -> Option<Out<'a>> {
        let room = if at.is_null() { 0 } else { room };
        (!len.is_null()).then_some(Out { at, room, len, borrowed: PhantomData })
    }

    /// A place of ours.
    pub fn within(room: &'a mut [u8], len: &'a mut usize) -> Out<'a> {
        Out { at: room.as_mut_ptr(), room: room.len(), len, borrowed: PhantomData }
    }

    /// Whether all that is asked is how many bytes there may be.
    pub fn is_question(&self) -> bool {
        self.at.is_null()
    }

    /// Bytes of room.
    pub fn room(&self) -> usize {
        self.room
    }

    /// The first `len` bytes of the room; `None` if it has fewer.
    pub fn first(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.at.is_null() || len > self.room || len > isize::MAX as usize {
            return None;
        }
        // SAFETY: that much is writable, by the contract of `new`; one slice at a time, by the borrow.
        Some(unsafe { std::slice::from_raw_parts_mut(self.at, len) })
    }

    /// As much of the room as there is, `most` bytes at most: some callers say of theirs that it has no end.
    pub fn up_to(&mut self, most: usize) -> &mut [u8] {
        let len = self.room.min(most);
        self.first(len).unwrap_or_default()
    }

    /// Says how many bytes there are, which is a success.
    pub fn done(&mut self, len: usize) -> bool {
        // SAFETY: writable, by the contract of `new`.
        unsafe { *self.len = len };
        true
    }

    /// For calls that write there.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.at
    }
}

/// Bytes to read that no output lies over.
pub enum Apart<'a> {
    /// The caller's.
    Own(&'a [u8]),
    /// A copy, wiped on drop: the caller's lie where the output goes.
    Copy(Zeroizing<Vec<u8>>),
}

impl Deref for Apart<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Apart::Own(bytes) => bytes,
            Apart::Copy(bytes) => bytes,
        }
    }
}

/// Bytes to read while `out` is written: callers sign and decrypt in place.
///
/// # Safety
/// `at` is null or has `len` bytes that nothing but writing to `out` changes during `'a`.
pub unsafe fn apart<'a>(at: *const u8, len: usize, out: &Out<'_>) -> Apart<'a> {
    // SAFETY: the caller's.
    let bytes = unsafe { bytes(at, len) };
    let (input, output) = (at as usize, out.at as usize);
    if input < output.saturating_add(out.room) && output < input.saturating_add(len) {
        return Apart::Copy(Zeroizing::new(bytes.to_vec()));
    }
    Apart::Own(bytes)
}

/// Somebody to tell a list of parameters.
pub struct Callback {
    call: OSSL_CALLBACK,
    argument: *mut c_void,
}

impl Callback {
    /// # Safety
    /// `call` takes `argument` as long as this lives.
    pub unsafe fn new(call: OSSL_CALLBACK, argument: *mut c_void) -> Callback {
        Callback { call, argument }
    }

    /// Tells a list, and returns what the callback does; `None` if there is none.
    pub fn tell(&self, list: &List<'_>) -> Option<c_int> {
        // SAFETY: the two belong together; the list is terminated and lives until the call is over.
        self.call.map(|call| unsafe { call(list.as_ptr(), self.argument) })
    }

    /// The same of a list that came from OpenSSL.
    pub fn pass_on(&self, list: Params<'_>) -> Option<c_int> {
        // SAFETY: as above.
        self.call.map(|call| unsafe { call(list.as_ptr(), self.argument) })
    }

    /// For calls that take both.
    pub fn parts(&self) -> (OSSL_CALLBACK, *mut c_void) {
        (self.call, self.argument)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What reads all of a room, from a place in it.
    fn is_copied(room: &mut [u8], from: usize, len: usize) -> bool {
        let at = room.as_mut_ptr();
        let mut said = 0;
        // SAFETY: both lie in what is there.
        unsafe {
            let out = Out::new(at.add(4), 4, &raw mut said).unwrap();
            let input = apart(at.add(from), len, &out);
            matches!(input, Apart::Copy(_))
        }
    }

    #[test]
    fn input_is_copied_where_the_output_goes_and_nowhere_else() {
        let mut room = [7; 12];
        assert!(!is_copied(&mut room, 0, 4), "ends where the output begins");
        assert!(is_copied(&mut room, 0, 5));
        assert!(is_copied(&mut room, 4, 4), "the same");
        assert!(is_copied(&mut room, 5, 1), "inside");
        assert!(is_copied(&mut room, 7, 5));
        assert!(!is_copied(&mut room, 8, 4), "begins where the output ends");
        assert!(is_copied(&mut room, 0, 12), "all round");
        let (mut said, input) = (0, [1, 2, 3]);
        // SAFETY: a question has no room, whatever it says.
        let question = unsafe { Out::new(null_mut(), usize::MAX, &raw mut said) }.unwrap();
        // SAFETY: three bytes.
        let apart = unsafe { apart(input.as_ptr(), 3, &question) };
        assert!(matches!(apart, Apart::Own([1, 2, 3])));
    }

    #[test]
    fn a_room_without_end_is_no_longer_than_what_is_written() {
        let (mut room, mut said) = ([0; 8], 0);
        // SAFETY: eight bytes are there, and no more are asked for.
        let mut out = unsafe { Out::new(room.as_mut_ptr(), usize::MAX, &raw mut said) }.unwrap();
        assert_eq!(out.up_to(8).len(), 8);
        assert_eq!(out.first(usize::MAX), None);
        out.first(2).unwrap().fill(9);
        assert!(out.done(2));
        assert_eq!((room, said), ([9, 9, 0, 0, 0, 0, 0, 0], 2));
        let mut said = 0;
        let mut out = Out::within(&mut room[..3], &mut said);
        assert_eq!((out.first(4).is_none(), out.up_to(8).len(), out.is_question()), (true, 3, false));
        // SAFETY: null.
        let (mut question, none) =
            unsafe { (Out::new(null_mut(), 9, &raw mut said), Out::new(null_mut(), 9, null_mut())) };
        assert!(none.is_none(), "nowhere to say how many");
        let question = question.as_mut().unwrap();
        assert_eq!((question.is_question(), question.room(), question.first(0).is_none()), (true, 0, true));
    }

    #[test]
    fn a_key_lives_as_long_as_whoever_has_a_reference_of_it() {
        let key = give(Some(Zeroizing::new(vec![1_u8])));
        let counted = Counted(key, PhantomData);
        let own = Arc::clone(&counted.get().unwrap());
        assert_eq!(Arc::strong_count(&own), 2, "looking counts nothing");
        drop(Given(key.cast_const()).take());
        assert_eq!((Arc::strong_count(&own), own[0]), (1, 1));
        assert!(
            Given::<u8>(std::ptr::null()).take().is_none()
                && Counted::<u8>(std::ptr::null(), PhantomData).get().is_none()
        );
    }

    #[test]
    fn a_key_is_taken_over_by_reference_once_and_only_by_its_own_type() {
        let mut place = give(Some(5_u32));
        let at = &raw mut place;
        let wide = size_of::<*mut u32>();
        let take = |len, wanted: fn(&u32) -> bool| Reference(at, PhantomData).take(len, wanted);
        assert!(take(wide - 1, |_| true).is_null());
        assert!(take(wide, |_| false).is_null());
        let key = take(wide, |key| *key == 5);
        assert!(!key.is_null() && take(wide, |_| true).is_null());
        assert_eq!(Given(key.cast_const()).take().as_deref(), Some(&5));
    }
}
