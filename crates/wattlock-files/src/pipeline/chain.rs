//! Sealing what is compressed, piece by piece and in order, by whoever compressed it.
//!
//! A sealed chunk has a number and 16 KiB (age's: 64 KiB) of the content, and where it begins in a compressed piece depends
//! on the lengths of all pieces before. So it is the thread whose piece has its turn that seals, on the dispatcher that it
//! compressed with: every chunk that the piece completes, the first of which begins with the end of the piece before. A
//! piece that was early waits, and is sealed by the thread that ends its wait. What a device compressed is sealed by that
//! device ([`wattlock_core::Part::after`]), whichever thread asks.

use std::thread::{self, ThreadId};

use wattlock_core::{Part, Place};
use wattlock_door::{CryptoSource, Within};
use zeroize::Zeroizing;

use super::drain::{Drain, Shape};
use super::{Direction, Segments};
use crate::error::Error;
use crate::format::payload::{PayloadKey, TAG_LEN};

/// Where a piece was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Made {
    place: Option<Place>,
    thread: ThreadId,
}

impl Made {
    /// By the calling thread, which had it done there.
    pub(crate) fn here(place: Option<Place>) -> Made {
        Made { place, thread: thread::current().id() }
    }

    /// Where its next step is to be: a core is only the calling thread's.
    fn next(self) -> Option<Place> {
        self.place.filter(|place| place.pair.is_some() || self.thread == thread::current().id())
    }
}

/// A payload that is being sealed.
pub(crate) struct Chain<'a, 'd, S> {
    key: &'a PayloadKey,
    segments: Segments,
    source: &'a S,
    to: Drain<'d>,
    part: Part,
    /// Chunks with gaps for their tags. Of one segment's length from the start: what a vector grows out of is not wiped.
    buffer: Zeroizing<Vec<u8>>,
    /// Bytes of content in it, and the number of its first chunk.
    plain: usize,
    first: u64,
}

impl<'a, 'd, S: CryptoSource> Chain<'a, 'd, S> {
    /// Into `to`, for an operation of so many bytes (0: unknown).
    pub(crate) fn new(key: &'a PayloadKey, to: Drain<'d>, source: &'a S, whole: u64) -> Chain<'a, 'd, S> {
        let segments = Segments::new(Direction::Seal, key);
        let buffer = Zeroizing::new(vec![0; segments.buffer_len()]);
        Chain { key, segments, source, to, part: Part::of(whole), buffer, plain: 0, first: 0 }
    }

    /// Takes the next bytes, and seals and writes every chunk behind which there is more.
    ///
    /// # Errors
    /// Those of the engines, of the format's limit and of writing.
    pub(crate) fn put(&mut self, mut bytes: &[u8], made: Option<Made>) -> Result<(), Error> {
        let Segments { chunk, stride, .. } = self.segments;
        while !bytes.is_empty() {
            while self.plain < self.segments.input_len() && !bytes.is_empty() {
                let (number, within) = (self.plain / chunk, self.plain % chunk);
                let (now, later) = bytes.split_at(bytes.len().min(chunk - within));
                self.buffer[number * stride + within..][..now.len()].copy_from_slice(now);
                self.plain += now.len();
                bytes = later;
            }
            // The last chunk may be full, too, and nobody has said yet that this one is not the last.
            let full = (self.plain - 1) / chunk;
            if full == 0 {
                continue;
            }
            self.seal(full * stride, false, made)?;
            let rest = self.plain - full * chunk;
            self.buffer.copy_within(full * stride..full * stride + rest, 0);
            (self.plain, self.first) = (rest, self.first + full as u64);
        }
        Ok(())
    }

    /// Seals and writes what is left: the payload ends with it.
    ///
    /// # Errors
    /// As [`Chain::put`].
    pub(crate) fn end(mut self) -> Result<(), Error> {
        let chunks = self.key.layout().chunks(self.plain as u64) as usize;
        self.seal(self.plain + chunks * TAG_LEN, true, None)
    }

    /// Seals the first so many bytes of the buffer, tags and all, and writes them.
    fn seal(&mut self, len: usize, last: bool, made: Option<Made>) -> Result<(), Error> {
        let Chain { key, segments, source, to, part, buffer, first, .. } = self;
        let part = Part { after: made.and_then(Made::next), ..*part };
        source.here(|crypto| key.seal(*first, &mut buffer[..len], last, &mut Within { crypto, part }))?;
        match to {
            Drain::File { file, base } => {
                let at = *base + *first * segments.output_chunk();
                Shape::Whole(len).write_at(*segments, buffer, file, at)
            }
            Drain::Stream(writer) => Shape::Whole(len).write(*segments, buffer, *writer),
        }
    }
}
