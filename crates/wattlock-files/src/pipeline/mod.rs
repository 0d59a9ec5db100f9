//! The pipeline: some threads, each with one buffer and its own access to the engines. Each thread reads a segment,
//! seals or opens it in place, writes it, and takes the next.
//!
//! There is no queue and no dedicated reader or writer. A regular file is read and written at positions, so threads
//! meet only in the kernel, and one seals while another writes. Segments of a stream are read by the next free thread
//! and written in order; a thread that is early parks its segment and goes on. Memory is one segment for each thread
//! (two when opening from a stream). Writing a stream adds one for each thread, at most eight. The file's length does
//! not matter.
//!
//! Of several failures the one with the lowest position is reported. Segments are claimed in order, and a claimed
//! segment is always finished.

mod drain;
mod feed;

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use zeroize::Zeroizing;

use crate::crypto::{Crypto, CryptoSource};
use crate::error::Error;
use crate::format::payload::{PayloadKey, TAG_LEN};

pub(crate) use drain::Drain;
use drain::{Buffer, Finished, Shape};
pub(crate) use feed::Feed;

/// Bytes of plaintext in a full segment: sixty-four Cobblestone chunks or sixteen of age's. Large enough that a system
/// call and a lock cost nothing beside it; smaller ones were slower also where this one exceeds a core's second-level
/// cache. With a fuzzer's small chunks eight and two of them.
const SEGMENT_BYTES: usize = if cfg!(fuzzing) { 1 << 9 } else { 1 << 20 };

/// More threads than this wait for one another's writes, and their buffers would count.
const MOST_WORKERS: usize = 16;

/// Lets the caller watch and stop the work.
#[derive(Clone, Copy)]
pub struct Progress<'a> {
    cancel: &'a AtomicBool,
    on_bytes: Option<&'a (dyn Fn(u64) + Sync)>,
}

impl<'a> Progress<'a> {
    /// The work stops with [`Error::Interrupted`] soon after `cancel` becomes true.
    pub fn new(cancel: &'a AtomicBool) -> Progress<'a> {
        Progress { cancel, on_bytes: None }
    }

    /// Also calls `on_bytes`, from any thread, with the number of input bytes done since its last call.
    #[must_use]
    pub fn on_bytes(self, on_bytes: &'a (dyn Fn(u64) + Sync)) -> Progress<'a> {
        Progress { on_bytes: Some(on_bytes), ..self }
    }

    pub(crate) fn cancel(&self) -> &'a AtomicBool {
        self.cancel
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

    /// Bytes that a full segment gives to the output.
    pub(crate) fn output_len(self) -> usize {
        self.chunks * if self.direction == Direction::Seal { self.stride } else { self.chunk }
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

/// A segment in a worker's buffer.
pub(crate) struct Segment {
    pub(crate) index: u64,
    /// Bytes from the input.
    pub(crate) len: usize,
    /// Whether the input ends with it.
    pub(crate) last: bool,
}

/// Everything that the workers share.
struct Work<'a, 'f, 'd> {
    key: &'a PayloadKey,
    segments: Segments,
    feed: &'a Feed<'f>,
    drain: &'a Drain<'d>,
    progress: Progress<'a>,
    stop: AtomicBool,
    failed: Mutex<Option<(u64, Error)>>,
}

/// Seals or opens everything from `feed` into `drain`.
///
/// # Errors
/// The failure with the lowest position.
pub(crate) fn run(
    direction: Direction,
    key: &PayloadKey,
    feed: &Feed<'_>,
    drain: &Drain<'_>,
    source: &impl CryptoSource,
    progress: Progress<'_>,
) -> Result<(), Error> {
    let segments = Segments::new(direction, key);
    let work =
        Work { key, segments, feed, drain, progress, stop: AtomicBool::new(false), failed: Mutex::new(None) };
    let workers = std::thread::available_parallelism().map_or(1, NonZero::get).min(MOST_WORKERS);
    let workers = feed.segment_count(segments).map_or(workers, |count| workers.min(count as usize));
    drain.park_at_most(workers);
    std::thread::scope(|scope| {
        // A thread that cannot be had is done without: this one does all the work if it must.
        for _ in 1..workers {
            let _ = std::thread::Builder::new()
                .name("wattlock-files".into())
                .spawn_scoped(scope, || work.work(&mut source.crypto()));
        }
        work.work(&mut source.crypto());
    });
    match work.failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
        None => Ok(()),
        Some((_, error)) => Err(error),
    }
}

impl Work<'_, '_, '_> {
    /// One worker, from its first segment to its last.
    fn work(&self, crypto: &mut impl Crypto) {
        let _alarm = Alarm(self.drain, &self.stop);
        let len = self.feed.longest(self.segments).min(self.segments.buffer_len());
        let mut buffer: Buffer = Zeroizing::new(vec![0; len]);
        let mut copy = Zeroizing::new(Vec::new());
        while !self.stop.load(Ordering::Relaxed) {
            let segment = match self.feed.claim(self.segments, &mut buffer) {
                Ok(Some(segment)) => segment,
                Ok(None) => return,
                Err((index, error)) => return self.fail(index, error),
            };
            if self.progress.cancel.load(Ordering::Relaxed) {
                return self.fail(segment.index, Error::Interrupted);
            }
            let finished = match self.finish(&segment, &mut buffer, &mut copy, crypto) {
                Ok(shape) => Finished { index: segment.index, shape },
                Err(error) => return self.fail(segment.index, error),
            };
            if let Err((index, error)) = self.drain.put(self.segments, finished, &mut buffer) {
                return self.fail(index, error);
            }
            if let Some(on_bytes) = self.progress.on_bytes {
                on_bytes(segment.len as u64);
            }
        }
    }

    fn finish(
        &self,
        segment: &Segment,
        buffer: &mut [u8],
        copy: &mut Vec<u8>,
        crypto: &mut impl Crypto,
    ) -> Result<Shape, Error> {
        match self.segments.direction {
            Direction::Seal => self.seal(segment, buffer, crypto),
            Direction::Open => self.open(segment, buffer, copy, crypto),
        }
    }

    fn seal(&self, segment: &Segment, buffer: &mut [u8], crypto: &mut impl Crypto) -> Result<Shape, Error> {
        let layout = self.key.layout();
        let first = segment.index * self.segments.chunks as u64;
        // Only the last segment can have a chunk more than its length needs. Only an empty content has an empty one.
        let chunks =
            if segment.last { layout.chunks(segment.len as u64) as usize } else { self.segments.chunks };
        let sealed = segment.len + chunks * TAG_LEN;
        self.key.seal(first, &mut buffer[..sealed], segment.last, crypto)?;
        Ok(Shape::Whole(sealed))
    }

    fn open(
        &self,
        segment: &Segment,
        buffer: &mut [u8],
        copy: &mut Vec<u8>,
        crypto: &mut impl Crypto,
    ) -> Result<Shape, Error> {
        let first = segment.index * self.segments.chunks as u64;
        let sealed = &mut buffer[..segment.len];
        // A failed attempt wipes what it worked on. A file can be read again to find out more; a stream cannot.
        if !self.feed.can_repeat() {
            copy.clear();
            copy.extend_from_slice(sealed);
        }
        if let Err(failure) = self.key.open(first, sealed, segment.last, crypto) {
            if self.feed.can_repeat() {
                copy.resize(segment.len, 0);
                self.feed.repeat(self.segments, segment, copy)?;
            }
            return Err(failure.explain(self.key, first, copy, segment.last, crypto));
        }
        let chunks = segment.len.div_ceil(self.segments.stride);
        let plain = segment.len - chunks * TAG_LEN;
        Ok(Shape::Gapped(plain))
    }

    /// Records a failure, unless one with a lower position is known, and lets all workers finish.
    fn fail(&self, index: u64, error: Error) {
        self.stop.store(true, Ordering::Relaxed);
        self.drain.fail(index);
        let mut failed = self.failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if failed.as_ref().is_none_or(|(known, _)| index < *known) {
            *failed = Some((index, error));
        }
    }
}

/// If a worker panics, no other worker waits for its segment: the panic reaches the caller instead.
struct Alarm<'a, 'd>(&'a Drain<'d>, &'a AtomicBool);

impl Drop for Alarm<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.1.store(true, Ordering::Relaxed);
            self.0.fail(0);
        }
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
