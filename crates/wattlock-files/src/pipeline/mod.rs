//! The pipeline: segments are read, sealed or opened in place, and written, by several threads in constant memory.
//!
//! Threads, their bounded queue and the order of results are the runtime's ([`CryptoSource::in_order`]). A regular
//! file is read and written at positions by the thread that does the segment, so threads meet only in the kernel, and
//! one seals while another writes. A stream is read by the calling thread, which otherwise works like the others, and
//! written in order by whichever thread has the segment whose turn it is; a segment that is early waits in its buffer,
//! and its thread goes on. Memory is one segment for each thread (two when opening from a stream). A stream at either
//! end, or at both, adds one for each thread, at most eight. The file's length does not matter.
//!
//! Of several failures the one with the lowest position is reported: segments begin in order, and those before a failed
//! one are finished. Nothing of a failed segment, or of a later one, goes into a stream.

mod chain;
mod drain;
mod feed;
#[cfg(feature = "runtime")]
mod split;

use std::fs::File;
use std::io::Write;
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use wattlock_core::Part;
use wattlock_core::sync::lock;

use zeroize::Zeroizing;

use crate::error::Error;
use crate::format::payload::{PayloadKey, TAG_LEN};
use wattlock_door::{Crypto, CryptoSource, Within};

pub(crate) use chain::{Chain, Made};
pub(crate) use drain::Drain;
use drain::Shape;
use feed::Extent;
pub(crate) use feed::Feed;

/// Bytes of plaintext in a full segment: sixty-four Cobblestone chunks or sixteen of age's. Large enough that a system
/// call and a lock cost nothing beside it; smaller ones were slower also where this one exceeds a core's second-level
/// cache. With a fuzzer's small chunks eight and two of them.
const SEGMENT_BYTES: usize = if cfg!(fuzzing) { 1 << 9 } else { 1 << 20 };

/// More threads than this wait for one another's writes, and their buffers would count.
const MOST_WORKERS: usize = 16;

/// Segments that may lie in buffers of their own beside a stream, read or finished early: one for each thread, and no
/// more than these. More than that was tried with two workers and eight: no faster, and slower where the two share one
/// core, presumably because so many buffers do not stay in its cache.
const MOST_WAITING: usize = 8;

/// Segments of a file that are handed out before one of them is written to a file: they have no buffers yet.
const MOST_NAMED: usize = 16;

/// Lets the caller watch and stop the work.
#[derive(Clone, Copy)]
pub struct Progress<'a> {
    cancel: &'a AtomicBool,
    on_bytes: Option<&'a (dyn Fn(u64) + Sync)>,
}

impl<'a> Progress<'a> {
    /// The work stops with [`wattlock_door::Error::Interrupted`] soon after `cancel` becomes true.
    pub fn new(cancel: &'a AtomicBool) -> Progress<'a> {
        Progress { cancel, on_bytes: None }
    }

    /// Also calls `on_bytes`, from any thread, one call at a time, with the number of input bytes done since its last
    /// call.
    #[must_use]
    pub fn on_bytes(self, on_bytes: &'a (dyn Fn(u64) + Sync)) -> Progress<'a> {
        Progress { on_bytes: Some(on_bytes), ..self }
    }

    pub(crate) fn cancel(&self) -> &'a AtomicBool {
        self.cancel
    }

    /// Says that so many bytes of input are done.
    pub(crate) fn done(&self, bytes: u64) {
        self.on_bytes.iter().for_each(|on_bytes| on_bytes(bytes));
    }
}

/// Sealing or opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Seal,
    Open,
}

/// How the segments of one payload lie in the input, in a buffer and in the output.
#[derive(Clone, Copy)]
pub(crate) struct Segments {
    pub(crate) direction: Direction,
    /// Plaintext bytes of a chunk, and the same with its tag.
    pub(crate) chunk: usize,
    pub(crate) stride: usize,
    /// Chunks in a full segment.
    chunks: usize,
}

impl Segments {
    fn new(direction: Direction, key: &PayloadKey) -> Segments {
        let layout = key.layout();
        let chunks = SEGMENT_BYTES / layout.chunk_len();
        Segments { direction, chunk: layout.chunk_len(), stride: layout.stride(), chunks }
    }

    /// Bytes that a full segment takes from the input.
    pub(crate) fn input_len(self) -> usize {
        self.chunks * if self.direction == Direction::Seal { self.chunk } else { self.stride }
    }

    /// Bytes that a full chunk takes from the input.
    pub(crate) fn input_chunk(self) -> u64 {
        (if self.direction == Direction::Seal { self.chunk } else { self.stride }) as u64
    }

    /// Bytes that a full chunk gives to the output.
    pub(crate) fn output_chunk(self) -> u64 {
        (if self.direction == Direction::Seal { self.stride } else { self.chunk }) as u64
    }

    /// Bytes of a buffer for the largest segment: the last one may end in an empty chunk of its own.
    fn buffer_len(self) -> usize {
        self.chunks * self.stride + TAG_LEN
    }

    /// The parts of a buffer where `plain` bytes of plaintext lie.
    pub(crate) fn gapped(self, buffer: &[u8], plain: usize) -> impl Iterator<Item = &[u8]> {
        let last = plain % self.chunk;
        let full = plain / self.chunk;
        buffer.chunks(self.stride).enumerate().map_while(move |(i, piece)| match i {
            _ if i < full => Some(&piece[..self.chunk]),
            _ if i == full && last > 0 => Some(&piece[..last]),
            _ => None,
        })
    }
}

/// One segment of the input.
pub(crate) struct Segment {
    /// Number of its first chunk.
    pub(crate) first: u64,
    /// Bytes from the input.
    pub(crate) len: usize,
    /// Whether the input ends with it.
    pub(crate) last: bool,
}

/// A buffer for a segment. All buffers of one run have the same length.
type Buffer = Zeroizing<Vec<u8>>;

/// Buffers for segments: the one used last, which a cache may still hold, is used first.
struct Buffers {
    len: usize,
    free: Mutex<Vec<Buffer>>,
    made: AtomicUsize,
    most: usize,
}

impl Buffers {
    fn new(len: usize, most: usize) -> Buffers {
        Buffers { len, free: Mutex::default(), made: AtomicUsize::new(0), most }
    }

    fn take(&self) -> Buffer {
        let free = lock(&self.free).pop();
        free.unwrap_or_else(|| {
            let made = self.made.fetch_add(1, Relaxed) + 1;
            debug_assert!(made <= self.most, "{made} buffers, {} at most", self.most);
            Zeroizing::new(vec![0; self.len])
        })
    }

    fn give_back(&self, buffer: Buffer) {
        lock(&self.free).push(buffer);
    }
}

/// A segment to do; read already if it comes from a stream.
struct Piece {
    segment: Segment,
    read: Option<Buffer>,
}

/// A segment that was done.
struct Finished {
    /// Bytes from the input.
    len: usize,
    /// What is still to be written.
    left: Option<(Shape, Buffer)>,
}

/// Everything that the threads share.
struct Work<'a> {
    key: &'a PayloadKey,
    segments: Segments,
    /// The whole of the input, where its length is known.
    part: Part,
    /// The input and the output, where they are files.
    from: Option<&'a Extent>,
    to: Option<(&'a File, u64)>,
    buffers: Buffers,
    /// Copies of what is opened from a stream.
    copies: Buffers,
    cancel: &'a AtomicBool,
    /// The lowest segment known to have failed.
    failed: AtomicU64,
}

/// Seals or opens everything from `feed` into `drain`.
///
/// # Errors
/// The failure with the lowest position.
pub(crate) fn run(
    direction: Direction,
    key: &PayloadKey,
    feed: &mut Feed<'_>,
    drain: Drain<'_>,
    source: &impl CryptoSource,
    progress: Progress<'_>,
) -> Result<(), Error> {
    let segments = Segments::new(direction, key);
    let len = feed.longest(segments).min(segments.buffer_len());
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(MOST_WORKERS);
    let (from, mut stream) = match feed {
        Feed::File(extent) => (Some(&*extent), None),
        Feed::Stream(stream) => (None, Some(stream)),
    };
    let (to, mut writer) = match drain {
        Drain::File { file, base } => (Some((file, base)), None),
        Drain::Stream(writer) => (None, Some(writer)),
    };
    let count = from.map(|extent| extent.segment_count(segments));
    let threads = count.map_or(threads, |count| threads.min(count as usize));
    let (pieces, most) = match (from, to) {
        // When the job is split, the device's thread ends as one more of the CPU's.
        (Some(_), Some(_)) => (MOST_NAMED * threads, threads + 1),
        (Some(_), None) => (threads + threads.min(MOST_WAITING), threads + threads.min(MOST_WAITING)),
        // One is read before there is room for it.
        (None, _) => (threads + threads.min(MOST_WAITING) - 1, threads + threads.min(MOST_WAITING)),
    };
    let part = Part::of(from.map_or(0, Extent::len));
    let (buffers, copies) = (Buffers::new(len, most), Buffers::new(0, threads + 1));
    let failed = AtomicU64::new(u64::MAX);
    let work = Work { key, segments, part, from, to, buffers, copies, cancel: progress.cancel, failed };
    #[cfg(feature = "runtime")]
    if let (Some(extent), Some(to), Some(runtime)) = (from, to, source.runtime())
        && let Some(shared) = split::job(runtime, &work, extent, threads)
    {
        return split::run(&work, (extent, to), &shared, (source, runtime, threads), progress);
    }
    let (mut index, mut unread, mut first) = (0, None, None);
    let next = || {
        if work.failed.load(Relaxed) != u64::MAX {
            return None;
        }
        let (segment, read) = match (from, &mut stream) {
            (Some(extent), _) => {
                let there = count.is_some_and(|count| index < count);
                (there.then(|| extent.segment(segments, index))?, None)
            }
            (None, Some(stream)) => {
                let mut buffer = work.buffers.take();
                match stream.read(segments, &mut buffer) {
                    Ok(segment) => (segment?, Some(buffer)),
                    Err(error) => {
                        unread = Some(error);
                        return None;
                    }
                }
            }
            (None, None) => return None,
        };
        index += 1;
        Some(Piece { segment, read })
    };
    let done = |finished: Option<Result<Finished, Error>>| {
        let written = match finished {
            Some(Ok(finished)) if first.is_none() => {
                work.put(finished, writer.as_mut().map(|writer| &mut **writer as _))
            }
            Some(Err(error)) => Err(error),
            _ => return,
        };
        match written {
            Ok(len) => progress.on_bytes.iter().for_each(|on_bytes| on_bytes(len)),
            Err(error) => {
                // Whatever number it had, nothing later is wanted, and nothing earlier is left.
                work.failed.store(0, Relaxed);
                first = first.take().or(Some(error));
            }
        }
    };
    source.in_order(threads, pieces, next, |crypto, piece| work.piece(piece, crypto), done);
    // Everything that was read lies before what could not be.
    match first.or(unread) {
        Some(error) => Err(error),
        // Raised after the last segment was begun: the output has not appeared yet, and must not.
        None if progress.cancel.load(Relaxed) => Err(Error::Door(wattlock_door::Error::Interrupted)),
        None => Ok(()),
    }
}

impl Work<'_> {
    /// Does one segment. `None` if an earlier one has failed.
    fn piece(&self, piece: Piece, crypto: &mut dyn Crypto) -> Option<Result<Finished, Error>> {
        let index = piece.segment.first;
        if self.failed.load(Relaxed) < index {
            return None;
        }
        let finished = self.finish(piece, crypto);
        if finished.is_err() {
            self.failed.fetch_min(index, Relaxed);
        }
        Some(finished)
    }

    fn finish(&self, piece: Piece, crypto: &mut dyn Crypto) -> Result<Finished, Error> {
        if self.cancel.load(Relaxed) {
            return Err(Error::Door(wattlock_door::Error::Interrupted));
        }
        let segment = piece.segment;
        let mut buffer = piece.read.unwrap_or_else(|| self.buffers.take());
        if let Some(extent) = self.from {
            extent.read(self.segments, &segment, &mut buffer)?;
        }
        let shape = match self.segments.direction {
            Direction::Seal => self.seal(&segment, &mut buffer, crypto)?,
            Direction::Open => self.open(&segment, &mut buffer, crypto)?,
        };
        let Some((file, base)) = self.to else {
            return Ok(Finished { len: segment.len, left: Some((shape, buffer)) });
        };
        let at = base + segment.first * self.segments.output_chunk();
        shape.write_at(self.segments, &buffer, file, at)?;
        self.buffers.give_back(buffer);
        Ok(Finished { len: segment.len, left: None })
    }

    /// Writes what is left of a segment whose turn it is, and returns its length in the input.
    fn put(&self, finished: Finished, writer: Option<&mut (dyn Write + Send)>) -> Result<u64, Error> {
        if let (Some((shape, buffer)), Some(writer)) = (finished.left, writer) {
            shape.write(self.segments, &buffer, writer)?;
            self.buffers.give_back(buffer);
        }
        Ok(finished.len as u64)
    }

    fn seal(&self, segment: &Segment, buffer: &mut [u8], crypto: &mut dyn Crypto) -> Result<Shape, Error> {
        let layout = self.key.layout();
        let first = segment.first;
        // Only the last segment can have a chunk more than its length needs. Only an empty content has an empty one.
        let full = segment.len / self.segments.chunk;
        let chunks = if segment.last { layout.chunks(segment.len as u64) as usize } else { full };
        let sealed = segment.len + chunks * TAG_LEN;
        let crypto = &mut Within { crypto, part: self.part };
        self.key.seal(first, &mut buffer[..sealed], segment.last, crypto)?;
        Ok(Shape::Whole(sealed))
    }

    fn open(&self, segment: &Segment, buffer: &mut [u8], crypto: &mut dyn Crypto) -> Result<Shape, Error> {
        let first = segment.first;
        let sealed = &mut buffer[..segment.len];
        // A failed attempt wipes what it worked on. A file can be read again to find out more; a stream cannot.
        let mut copy = self.copies.take();
        if self.from.is_none() {
            copy.clear();
            copy.extend_from_slice(sealed);
        }
        let opened = self.key.open(first, sealed, segment.last, &mut Within { crypto, part: self.part });
        if let Err(failure) = opened {
            if let Some(extent) = self.from {
                copy.resize(segment.len, 0);
                extent.read(self.segments, segment, &mut copy)?;
            }
            return Err(failure.explain(self.key, first, &copy, segment.last, crypto));
        }
        self.copies.give_back(copy);
        let chunks = segment.len.div_ceil(self.segments.stride);
        let plain = segment.len - chunks * TAG_LEN;
        Ok(Shape::Gapped(plain))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gapped_parts_hold_exactly_the_plaintext() {
        let segments = Segments { direction: Direction::Seal, chunk: 4, stride: 6, chunks: 3 };
        let buffer = [0; 18];
        for plain in 0..=12 {
            let lengths: Vec<usize> = segments.gapped(&buffer, plain).map(<[u8]>::len).collect();
            assert_eq!(lengths.iter().sum::<usize>(), plain);
            assert!(lengths.iter().rev().skip(1).all(|len| *len == 4));
        }
    }
}
