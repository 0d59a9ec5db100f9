//! Where bytes come from and where they go, in the one form kernels take: two pointers and one length.
//!
//! A [`Span`] can only be made from Rust references, so it is exact: both sides are valid for `len` bytes, and they
//! are either the same bytes or disjoint ones. Kernels rely on that and on nothing else.
#![allow(unsafe_code, reason = "one place turns the pointers back into the slice they came from")]

use std::marker::PhantomData;

use wattlock_core::{Data, Error};

/// `len` readable bytes at `from` and `len` writable bytes at `to`, equal or disjoint, borrowed for `'a`.
pub(super) struct Span<'a> {
    from: *const u8,
    to: *mut u8,
    len: usize,
    borrowed: PhantomData<&'a mut [u8]>,
}

impl<'a> Span<'a> {
    /// The request's input, and as much of its output as the input is long.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the output is shorter than the input.
    #[inline]
    pub(super) fn of(data: &'a mut Data<'_>) -> Result<Span<'a>, Error> {
        match data {
            Data::InPlace(buffer) => Ok(Span::in_place(buffer)),
            Data::Apart { from, to } => {
                let to = to.get_mut(..from.len()).ok_or(Error::Invalid("output length"))?;
                Ok(Span { from: from.as_ptr(), to: to.as_mut_ptr(), len: to.len(), borrowed: PhantomData })
            }
        }
    }

    /// A buffer that is transformed where it is.
    #[inline]
    pub(super) fn in_place(buffer: &'a mut [u8]) -> Span<'a> {
        let to = buffer.as_mut_ptr();
        Span { from: to, to, len: buffer.len(), borrowed: PhantomData }
    }

    /// What is behind the first bytes of both sides.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are fewer.
    pub(super) fn behind(self, bytes: usize) -> Result<Span<'a>, Error> {
        let len = self.len.checked_sub(bytes).ok_or(Error::Invalid("input length"))?;
        // SAFETY: within both sides, or one past them.
        let (from, to) = unsafe { (self.from.add(bytes), self.to.add(bytes)) };
        Ok(Span { from, to, len, borrowed: PhantomData })
    }

    /// Bytes on either side.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The input pointer, valid for reads of [`Span::len`] bytes while the span lives.
    #[inline]
    pub(super) fn from(&self) -> *const u8 {
        self.from
    }

    /// The output pointer, valid for writes of [`Span::len`] bytes while the span lives.
    #[inline]
    pub(super) fn to(&self) -> *mut u8 {
        self.to
    }

    /// Brings the input into the output if it is not there: for code that only works in place.
    pub(super) fn gathered(self) -> &'a mut [u8] {
        // SAFETY: every constructor took both sides from Rust slices of `len` bytes that stay borrowed for `'a`, the
        // output mutably; `copy` allows the two to be the same bytes. Taking `self` keeps the reference unique.
        unsafe {
            std::ptr::copy(self.from, self.to, self.len);
            std::slice::from_raw_parts_mut(self.to, self.len)
        }
    }
}
