//! Handing out segments of the input, each to one worker, in order.

use std::fs::File;
use std::io::{self, IoSliceMut, Read};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::preadv;

use super::{Direction, Segment, Segments};
use crate::error::Error;
use crate::input::Body;

/// The input from the first payload byte on.
pub(crate) enum Feed<'a> {
    File { file: File, base: u64, len: u64, next: AtomicU64 },
    Stream(Mutex<Stream<'a>>),
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
                Feed::File { file, base: at, len: end.saturating_sub(at), next: AtomicU64::new(0) }
            }
            Body::Stream(reader) => {
                Feed::Stream(Mutex::new(Stream { reader, ahead: None, next: 0, ended: false }))
            }
        }
    }

    /// How many bytes there are, if that is known in advance.
    pub(crate) fn len(&self) -> Option<u64> {
        match self {
            Feed::File { len, .. } => Some(*len),
            Feed::Stream(_) => None,
        }
    }

    /// How many segments there are, at least one.
    pub(super) fn segment_count(&self, segments: Segments) -> Option<u64> {
        self.len().map(|len| len.div_ceil(segments.input_len() as u64).max(1))
    }

    /// Upper bound of what a worker's buffer must hold, so that small files do not cost large buffers.
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
    /// [`Error::InputChanged`].
    pub(crate) fn refuse_grown(&self) -> Result<(), Error> {
        let Feed::File { file, base, len, .. } = self else { return Ok(()) };
        let now = file.metadata().map_err(|error| Error::io("looking at the input", error))?.len();
        if now > base + len { Err(Error::InputChanged) } else { Ok(()) }
    }

    /// Whether a segment can be read a second time.
    pub(super) fn can_repeat(&self) -> bool {
        matches!(self, Feed::File { .. })
    }

    /// Reads the next segment into `buffer`: plaintext with gaps for the tags, sealed chunks without. `None` if there
    /// is none left.
    pub(super) fn claim(
        &self,
        segments: Segments,
        buffer: &mut [u8],
    ) -> Result<Option<Segment>, (u64, Error)> {
        match self {
            Feed::File { next, len, .. } => {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let count = self.segment_count(segments).unwrap_or(0);
                if index >= count {
                    return Ok(None);
                }
                let last = index + 1 == count;
                let most = segments.input_len();
                let taken = if last { (len - index * most as u64) as usize } else { most };
                let segment = Segment { index, len: taken, last };
                self.read_at(segments, &segment, buffer).map_err(|error| (index, error))?;
                Ok(Some(segment))
            }
            Feed::Stream(stream) => {
                stream.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).claim(segments, buffer)
            }
        }
    }

    /// Reads a segment again, as it was, without gaps of any kind.
    pub(super) fn repeat(
        &self,
        segments: Segments,
        segment: &Segment,
        buffer: &mut [u8],
    ) -> Result<(), Error> {
        self.read_at(segments, segment, buffer)
    }

    fn read_at(&self, segments: Segments, segment: &Segment, buffer: &mut [u8]) -> Result<(), Error> {
        let Feed::File { file, base, .. } = self else { return Ok(()) };
        let mut at = base + segment.index * segments.input_len() as u64;
        let mut parts = parts(segments, buffer, segment.len);
        let mut parts = &mut parts[..];
        while !parts.is_empty() {
            match preadv(file, parts, at) {
                Ok(0) => return Err(Error::InputChanged),
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
    fn claim(&mut self, segments: Segments, buffer: &mut [u8]) -> Result<Option<Segment>, (u64, Error)> {
        if self.ended {
            return Ok(None);
        }
        let index = self.next;
        match self.fill(segments, buffer) {
            Ok((len, last)) => {
                self.next += 1;
                self.ended = last;
                Ok(Some(Segment { index, len, last }))
            }
            Err(error) => {
                self.ended = true;
                Err((index, Error::io("reading the input", error)))
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
