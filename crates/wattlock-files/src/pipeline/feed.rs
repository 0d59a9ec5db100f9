//! The input: a file that any thread reads at positions, or a stream that one thread reads in order.

use std::fs::File;
use std::io::{self, IoSliceMut, Read};

use rustix::io::preadv;

use super::{Direction, Segment, Segments};
use crate::error::Error;
use crate::input::Body;

/// The input from the first payload byte on.
pub(crate) enum Feed<'a> {
    File(Extent),
    Stream(Stream<'a>),
}

/// A part of a file.
pub(crate) struct Extent {
    file: File,
    base: u64,
    len: u64,
}

pub(crate) struct Stream<'a> {
    reader: Box<dyn Read + Send + 'a>,
    /// A byte that was read to learn whether there is one.
    ahead: Option<u8>,
    next: u64,
    ended: bool,
}

impl<'a> Feed<'a> {
    pub(crate) fn new(body: Body<'a>) -> Feed<'a> {
        match body {
            Body::File { file, at, end } => {
                Feed::File(Extent { file, base: at, len: end.saturating_sub(at) })
            }
            Body::Stream(reader) => Feed::Stream(Stream { reader, ahead: None, next: 0, ended: false }),
        }
    }

    /// How many bytes there are, if that is known in advance.
    pub(crate) fn len(&self) -> Option<u64> {
        match self {
            Feed::File(extent) => Some(extent.len),
            Feed::Stream(_) => None,
        }
    }

    /// Upper bound of what a buffer must hold, so that small files do not cost large buffers.
    pub(super) fn longest(&self, segments: Segments) -> usize {
        match self.len() {
            // Room for every tag that sealing this much adds, and for the one of an empty last chunk.
            Some(len) if len < segments.input_len() as u64 => {
                let len = len as usize;
                len + (len / segments.chunk + 1) * (segments.stride - segments.chunk)
            }
            _ => usize::MAX,
        }
    }

    /// Checks a file's length again: a longer file has an end that was not read. Bytes appended later are not noticed.
    /// A stream is read to its end and needs no check.
    ///
    /// # Errors
    /// [`wattlock_door::Error::InputChanged`].
    pub(crate) fn refuse_grown(&self) -> Result<(), Error> {
        let Feed::File(Extent { file, base, len }) = self else { return Ok(()) };
        let now = file.metadata().map_err(|error| Error::io("looking at the input", error))?.len();
        if now > base + len { Err(Error::Door(wattlock_door::Error::InputChanged)) } else { Ok(()) }
    }
}

impl Extent {
    /// Bytes of all of it.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// How many segments there are, at least one.
    pub(super) fn segment_count(&self, segments: Segments) -> u64 {
        self.len.div_ceil(segments.input_len() as u64).max(1)
    }

    /// The segment of this number, which exists.
    pub(super) fn segment(&self, segments: Segments, index: u64) -> Segment {
        let (last, most) = (index + 1 == self.segment_count(segments), segments.input_len() as u64);
        let len = if last { self.len - index * most } else { most };
        Segment { first: index * segments.chunks as u64, len: len as usize, last }
    }

    /// The segment of these chunks, none of which is the last.
    #[cfg(feature = "runtime")]
    pub(super) fn inner(&self, segments: Segments, chunks: &std::ops::Range<u64>) -> Segment {
        let len = (chunks.end - chunks.start) * segments.input_chunk();
        Segment { first: chunks.start, len: len as usize, last: false }
    }

    /// How many chunks there are before the last one, and the segment that is the last one alone.
    #[cfg(feature = "runtime")]
    pub(super) fn ends(&self, segments: Segments) -> (u64, Segment) {
        // A last chunk may be full where the layout allows it, so it is never among those before.
        let first = self.len.saturating_sub(1) / segments.input_chunk();
        let len = (self.len - first * segments.input_chunk()) as usize;
        (first, Segment { first, len, last: true })
    }

    /// Reads a segment into `buffer`: plaintext with gaps for the tags, sealed chunks without.
    ///
    /// # Errors
    /// [`wattlock_door::Error::InputChanged`] if it is not there any more, [`wattlock_door::Error::Io`].
    pub(super) fn read(&self, segments: Segments, segment: &Segment, buffer: &mut [u8]) -> Result<(), Error> {
        let mut at = self.base + segment.first * segments.input_chunk();
        let mut parts = parts(segments, buffer, segment.len);
        let mut parts = &mut parts[..];
        while !parts.is_empty() {
            match preadv(&self.file, parts, at) {
                Ok(0) => return Err(Error::Door(wattlock_door::Error::InputChanged)),
                Ok(len) => {
                    at += len as u64;
                    IoSliceMut::advance_slices(&mut parts, len);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Error::io("reading the input", error.into())),
            }
        }
        Ok(())
    }
}

/// The places in `buffer` for `len` bytes of input.
fn parts(segments: Segments, buffer: &mut [u8], len: usize) -> Vec<IoSliceMut<'_>> {
    if segments.direction == Direction::Open {
        return if len == 0 { Vec::new() } else { vec![IoSliceMut::new(&mut buffer[..len])] };
    }
    let mut left = len;
    let mut parts = Vec::with_capacity(len / segments.chunk + 1);
    for piece in buffer.chunks_mut(segments.stride) {
        let part = left.min(segments.chunk);
        if part == 0 {
            break;
        }
        parts.push(IoSliceMut::new(&mut piece[..part]));
        left -= part;
    }
    parts
}

impl Stream<'_> {
    /// Reads the next segment into `buffer`, as [`Extent::read`]. `None` after the last.
    ///
    /// # Errors
    /// What the reader says. It is then not asked again.
    pub(super) fn read(&mut self, segments: Segments, buffer: &mut [u8]) -> Result<Option<Segment>, Error> {
        if self.ended {
            return Ok(None);
        }
        let index = self.next;
        self.next += 1;
        match self.fill(segments, buffer) {
            Ok((len, last)) => {
                self.ended = last;
                Ok(Some(Segment { first: index * segments.chunks as u64, len, last }))
            }
            Err(error) => {
                self.ended = true;
                Err(Error::io("reading the input", error))
            }
        }
    }

    /// Fills one segment and reads one byte more: only the end of the input marks the last chunk.
    fn fill(&mut self, segments: Segments, buffer: &mut [u8]) -> io::Result<(usize, bool)> {
        let most = segments.input_len();
        let mut parts = parts(segments, buffer, most);
        let mut parts = &mut parts[..];
        let mut len = 0;
        if let (Some(byte), Some(part)) = (self.ahead.take(), parts.first_mut()) {
            part[0] = byte;
            IoSliceMut::advance_slices(&mut parts, 1);
            len = 1;
        }
        while !parts.is_empty() {
            match self.reader.read_vectored(parts) {
                Ok(0) => return Ok((len, true)),
                Ok(read) => {
                    len += read;
                    IoSliceMut::advance_slices(&mut parts, read);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let mut byte = [0];
        loop {
            match self.reader.read(&mut byte) {
                Ok(0) => return Ok((len, true)),
                Ok(_) => {
                    self.ahead = Some(byte[0]);
                    return Ok((len, false));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
