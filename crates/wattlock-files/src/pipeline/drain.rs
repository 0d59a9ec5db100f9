//! Writing segments: at their position in a file, or in their order into a stream.
//!
//! A worker that finishes a segment of a stream before its turn does not wait. It parks the segment in a spare buffer,
//! and the worker that writes the preceding segment writes it, too. Waiting put a worker to sleep for about one segment
//! in five (two cores, 1 GiB sealed to `/dev/null`).

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::sync::{Condvar, Mutex, MutexGuard};

use rustix::io::pwritev;
use zeroize::Zeroizing;

use super::Segments;
use crate::error::Error;

/// A worker's buffer. All buffers of one run have the same length.
pub(super) type Buffer = Zeroizing<Vec<u8>>;

/// Segments that may lie finished until their turn comes, in all; [`Drain::park_at_most`] allows one for each worker.
/// More than that was tried with two workers and eight: no faster, and slower where the two share one core,
/// presumably because so many buffers do not stay in its cache.
const MOST_PARKED: usize = 8;

/// The output from the first payload byte on.
pub(crate) enum Drain<'a> {
    File { file: &'a File, base: u64 },
    Stream { order: Mutex<Order<'a>>, changed: Condvar },
}

/// A stream's state. A worker always holds the segment called `next`; it is never parked. The writing worker looks for
/// parked successors under the same lock under which it returns the writer.
pub(crate) struct Order<'a> {
    /// `None` while a worker writes.
    writer: Option<&'a mut (dyn Write + Send)>,
    /// The segment whose turn it is.
    next: u64,
    /// Segments from here on are never written: one of them failed.
    failed_from: u64,
    /// Finished before their turn, in no order.
    parked: Vec<(Finished, Buffer)>,
    /// Buffers to park with; the one used last, which a cache may still hold, is used first.
    spare: Vec<Buffer>,
    /// How many spare buffers may still be made.
    may_make: usize,
}

/// Where a finished segment's output lies in its buffer.
#[derive(Clone, Copy)]
pub(super) struct Finished {
    pub(super) index: u64,
    pub(super) shape: Shape,
}

#[derive(Clone, Copy)]
pub(super) enum Shape {
    /// So many bytes, all in one piece.
    Whole(usize),
    /// So many bytes of plaintext, with gaps where the tags were.
    Gapped(usize),
}

impl Finished {
    fn parts(self, segments: Segments, buffer: &[u8]) -> Vec<IoSlice<'_>> {
        match self.shape {
            Shape::Whole(len) => vec![IoSlice::new(&buffer[..len])],
            Shape::Gapped(plain) => segments.gapped(buffer, plain).map(IoSlice::new).collect(),
        }
    }
}

impl<'a> Drain<'a> {
    pub(crate) fn file(file: &'a File, base: u64) -> Drain<'a> {
        Drain::File { file, base }
    }

    pub(crate) fn stream(writer: &'a mut (dyn Write + Send)) -> Drain<'a> {
        let order = Order {
            writer: Some(writer),
            next: 0,
            failed_from: u64::MAX,
            parked: Vec::new(),
            spare: Vec::new(),
            may_make: 0,
        };
        Drain::Stream { order: Mutex::new(order), changed: Condvar::new() }
    }

    /// How many segments may wait for their turn in buffers of their own: none, unless this is called before the first.
    pub(super) fn park_at_most(&self, segments: usize) {
        if let Drain::Stream { order, .. } = self {
            lock(order).may_make = segments.min(MOST_PARKED);
        }
    }

    /// Writes a finished segment, or parks it for the worker that writes the preceding one and replaces `buffer`.
    ///
    /// # Errors
    /// The position and the error of the segment that could not be written, which may be one that was parked.
    pub(super) fn put(
        &self,
        segments: Segments,
        finished: Finished,
        buffer: &mut Buffer,
    ) -> Result<(), (u64, Error)> {
        match self {
            Drain::File { file, base } => {
                let at = base + finished.index * segments.output_len() as u64;
                write_at(file, &mut finished.parts(segments, buffer), at)
                    .map_err(|error| (finished.index, Error::writing(error)))
            }
            Drain::Stream { order, changed } => {
                let Some(writer) = take_turn(order, changed, finished, buffer) else { return Ok(()) };
                write_on(order, changed, segments, writer, finished, buffer)
            }
        }
    }

    /// Records that a segment will not come, so that no worker waits for it.
    pub(super) fn fail(&self, index: u64) {
        if let Drain::Stream { order, changed } = self {
            let mut order = lock(order);
            order.failed_from = order.failed_from.min(index);
            changed.notify_all();
        }
    }
}

impl Order<'_> {
    /// The segment whose turn it is, if it was parked and may be written.
    fn next_parked(&mut self) -> Option<(Finished, Buffer)> {
        if self.next >= self.failed_from {
            return None;
        }
        let at = self.parked.iter().position(|(finished, _)| finished.index == self.next)?;
        Some(self.parked.swap_remove(at))
    }

    /// A spare buffer of `len` bytes, if there may be another.
    fn free(&mut self, len: usize) -> Option<Buffer> {
        if let Some(buffer) = self.spare.pop() {
            return Some(buffer);
        }
        self.may_make = self.may_make.checked_sub(1)?;
        Some(Zeroizing::new(vec![0; len]))
    }
}

/// The writer, once it is this segment's turn. Nothing if the segment was parked instead, or is never to be written.
fn take_turn<'a>(
    order: &Mutex<Order<'a>>,
    changed: &Condvar,
    finished: Finished,
    buffer: &mut Buffer,
) -> Option<&'a mut (dyn Write + Send)> {
    let mut order = lock(order);
    loop {
        if finished.index >= order.failed_from {
            return None;
        }
        if order.next == finished.index {
            return order.writer.take();
        }
        if let Some(free) = order.free(buffer.len()) {
            let full = std::mem::replace(buffer, free);
            order.parked.push((finished, full));
            return None;
        }
        order = changed.wait(order).unwrap_or_else(|poisoned| poisoned.into_inner());
    }
}

/// Writes a segment and all parked successors. Other workers can park more meanwhile.
fn write_on<'a>(
    order: &Mutex<Order<'a>>,
    changed: &Condvar,
    segments: Segments,
    writer: &'a mut (dyn Write + Send),
    mut finished: Finished,
    buffer: &Buffer,
) -> Result<(), (u64, Error)> {
    let mut parked: Option<Buffer> = None;
    loop {
        let bytes = parked.as_ref().unwrap_or(buffer);
        let written = write_all(writer, &mut finished.parts(segments, bytes));
        let mut order = lock(order);
        order.spare.extend(parked.take());
        if let Err(error) = written {
            order.writer = Some(writer);
            return Err((finished.index, Error::writing(error)));
        }
        order.next += 1;
        changed.notify_all();
        let Some((following, full)) = order.next_parked() else {
            order.writer = Some(writer);
            return Ok(());
        };
        (finished, parked) = (following, Some(full));
    }
}

fn lock<'m, 'a>(order: &'m Mutex<Order<'a>>) -> MutexGuard<'m, Order<'a>> {
    order.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn write_at(file: &File, mut parts: &mut [IoSlice<'_>], mut at: u64) -> io::Result<()> {
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match pwritev(file, parts, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(len) => {
                at += len as u64;
                IoSlice::advance_slices(&mut parts, len);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn write_all(writer: &mut dyn Write, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match writer.write_vectored(parts) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(len) => IoSlice::advance_slices(&mut parts, len),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::super::Direction;
    use super::*;

    const SEGMENTS: Segments = Segments { direction: Direction::Open, chunk: 4, stride: 6, chunks: 1 };

    /// A segment of eight bytes that say which one it is.
    fn segment(index: u64) -> (Finished, Buffer) {
        (Finished { index, shape: Shape::Whole(8) }, Zeroizing::new(index.to_be_bytes().to_vec()))
    }

    fn put(drain: &Drain<'_>, index: u64) -> Result<(), (u64, Error)> {
        let (finished, mut buffer) = segment(index);
        drain.put(SEGMENTS, finished, &mut buffer)
    }

    fn in_order(written: &[u8]) -> Vec<u64> {
        written.as_chunks().0.iter().map(|index| u64::from_be_bytes(*index)).collect()
    }

    #[test]
    fn early_segments_are_parked_and_written_in_their_turn() {
        let mut written = Vec::new();
        let drain = Drain::stream(&mut written);
        drain.park_at_most(3);
        for index in [2, 1, 3, 0, 4] {
            put(&drain, index).unwrap();
        }
        drop(drain);
        assert_eq!(in_order(&written), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn parked_plaintext_is_written_without_its_gaps() {
        let mut written = Vec::new();
        let drain = Drain::stream(&mut written);
        drain.park_at_most(1);
        for (index, text) in [(1, b"efgh??ij"), (0, b"abcd????")] {
            let plain = if index == 1 { 6 } else { 4 };
            let finished = Finished { index, shape: Shape::Gapped(plain) };
            drain.put(SEGMENTS, finished, &mut Zeroizing::new(text.to_vec())).unwrap();
        }
        drop(drain);
        assert_eq!(written, b"abcdefghij");
    }

    #[test]
    fn whoever_parks_goes_on_with_a_buffer_of_its_own() {
        let mut written = Vec::new();
        let drain = Drain::stream(&mut written);
        drain.park_at_most(1);
        let (finished, mut buffer) = segment(1);
        drain.put(SEGMENTS, finished, &mut buffer).unwrap();
        assert_eq!(buffer.len(), 8);
        buffer.fill(0xff);
        put(&drain, 0).unwrap();
        drop(drain);
        assert_eq!(in_order(&written), [0, 1]);
    }

    #[test]
    fn nothing_is_written_from_a_failed_segment_on() {
        let mut written = Vec::new();
        let drain = Drain::stream(&mut written);
        drain.park_at_most(3);
        put(&drain, 1).unwrap();
        put(&drain, 3).unwrap();
        drain.fail(2);
        put(&drain, 0).unwrap();
        put(&drain, 4).unwrap();
        drop(drain);
        assert_eq!(in_order(&written), [0, 1]);
    }

    /// Takes one segment and no more.
    struct Full(bool);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if std::mem::replace(&mut self.0, true) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_parked_segment_that_cannot_be_written_is_the_one_reported() {
        let mut full = Full(false);
        let drain = Drain::stream(&mut full);
        drain.park_at_most(2);
        put(&drain, 2).unwrap();
        put(&drain, 1).unwrap();
        assert!(matches!(put(&drain, 0), Err((1, _))));
    }

    #[test]
    fn any_number_of_workers_with_any_number_of_spare_buffers_writes_in_order() {
        const COUNT: u64 = 2000;
        for spare in [0, 1, 2, 20] {
            let mut written = Vec::new();
            let drain = Drain::stream(&mut written);
            drain.park_at_most(spare);
            let next = AtomicU64::new(0);
            std::thread::scope(|scope| {
                for _ in 0..6 {
                    scope.spawn(|| {
                        let mut buffer = segment(0).1;
                        loop {
                            let index = next.fetch_add(1, Ordering::Relaxed);
                            if index >= COUNT {
                                return;
                            }
                            let (finished, content) = segment(index);
                            buffer.copy_from_slice(&content);
                            if index % 7 < 2 {
                                std::thread::yield_now();
                            }
                            drain.put(SEGMENTS, finished, &mut buffer).unwrap();
                        }
                    });
                }
            });
            if let Drain::Stream { order, .. } = &drain {
                let order = lock(order);
                assert!(order.parked.is_empty());
                assert!(order.spare.len() + order.may_make == spare.min(MOST_PARKED), "a buffer was lost");
            }
            drop(drain);
            assert_eq!(in_order(&written), (0..COUNT).collect::<Vec<_>>());
        }
    }
}
