//! A large file's payload on the CPU and on a device at once: [`wattlock::SplitJob`] says which side has which chunks.
//!
//! Both ends must be regular files, which are read and written at positions in any order. The device's chunks are read
//! straight into the request that goes to it and written from its result, several MiB at a time. The last chunk, which
//! alone may be short, is the CPU's.
//!
//! Of several failures the one with the lowest position is reported, as without a split: both sides go on with what lies
//! before a failure.

use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use wattlock::{DeviceSide, Dispatcher, Runtime, SplitJob};
use wattlock_core::sync::lock;
use wattlock_core::{Error as CoreError, Item, OwnedRequest, Request};
use zeroize::Zeroizing;

use super::drain::Shape;
use super::feed::Extent;
use super::{Direction, Piece, Progress, Work};
use crate::error::Error;
use crate::format::payload::Failure;
use wattlock_door::{Crypto, CryptoSource};

/// How long a thread waits that has nothing to claim while the device is not done.
const NOTHING_TO_CLAIM: Duration = Duration::from_millis(1);

/// The job, if the policy splits it.
pub(super) fn job(runtime: &Runtime, work: &Work<'_>, extent: &Extent, threads: usize) -> Option<SplitJob> {
    let (chunks, _) = extent.ends(work.segments);
    runtime.split(work.key.kind(work.segments.direction), chunks, work.segments.chunk, threads)
}

/// What both sides report to.
struct Report<'a> {
    progress: Progress<'a>,
    /// The failure with the lowest position so far.
    first: Mutex<Option<(u64, Error)>>,
    /// That position.
    failed: &'a AtomicU64,
}

impl Report<'_> {
    fn failed(&self, at: u64, error: Error) {
        let mut first = lock(&self.first);
        if first.as_ref().is_none_or(|(before, _)| at < *before) {
            *first = Some((at, error));
        }
        self.failed.fetch_min(at, Relaxed);
    }

    fn done(&self, bytes: u64) {
        // One call at a time.
        let _held = lock(&self.first);
        self.progress.done(bytes);
    }
}

/// Seals or opens everything from a file into a file.
pub(super) fn run(
    work: &Work<'_>,
    (extent, (file, base)): (&Extent, (&File, u64)),
    job: &SplitJob,
    (source, runtime, threads): (&impl CryptoSource, &Runtime, usize),
    progress: Progress<'_>,
) -> Result<(), Error> {
    let report = Report { progress, first: Mutex::new(None), failed: &work.failed };
    let (_, last) = extent.ends(work.segments);
    let piece = |crypto: &mut dyn Crypto, segment: super::Segment| {
        let (first, len) = (segment.first, segment.len as u64);
        match work.piece(Piece { segment, read: None }, &mut Inside(crypto)) {
            Some(Ok(_)) => report.done(len),
            Some(Err(error)) => report.failed(first, error),
            None => {}
        }
    };
    // A thread claims when it is ready to work: what is claimed in advance cannot be shared any more.
    let claimed = |crypto: &mut dyn Crypto| {
        let Some(claimed) = job.claim() else { return false };
        piece(crypto, extent.inner(work.segments, &claimed.chunks));
        job.done(&claimed);
        true
    };
    std::thread::scope(|scope| {
        let served = std::thread::Builder::new().name("wattlock-device".into()).spawn_scoped(scope, || {
            let mut dispatcher = runtime.dispatcher();
            let mut side = Device { work, extent, file, base, report: &report, spare: Vec::new() };
            if let Err((at, error)) = job.serve(&mut dispatcher, &mut side) {
                report.failed(at, error);
            }
            while claimed(&mut dispatcher) {}
        });
        if served.is_err() {
            // Without that thread nothing is claimed for the device, nor what a border keeps for it.
            job.without_device();
        }
        let next = || (!job.is_over()).then_some(());
        let work = |crypto: &mut dyn Crypto, ()| {
            if !claimed(crypto) && !job.is_over() {
                // What is left is the device's, or will come back from it, and is then for every thread.
                std::thread::sleep(NOTHING_TO_CLAIM);
            }
        };
        source.in_order(threads, threads, next, work, |()| {});
    });
    source.here(|crypto| piece(crypto, last));
    match report.first.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some((_, error)) => Err(error),
        // Raised after the last piece was begun: the output has not appeared yet, and must not.
        None if work.cancel.load(Relaxed) => Err(Error::Door(wattlock_door::Error::Interrupted)),
        None => Ok(()),
    }
}

/// The CPU's side: its runs stay on the CPU, or a policy would share them out once more.
struct Inside<'a>(&'a mut dyn Crypto);

impl Crypto for Inside<'_> {
    fn run(&mut self, request: &mut Request<'_>) -> Result<usize, CoreError> {
        self.0.run(request)
    }

    fn run_all(&mut self, items: &mut [Item<'_>]) {
        self.0.run_all(items);
    }

    fn run_messages(&mut self, request: &mut Request<'_>) -> Result<usize, CoreError> {
        self.0.run_inside(request)
    }
}

/// The device's side: its pieces are read, and written when it has done them.
struct Device<'a> {
    work: &'a Work<'a>,
    extent: &'a Extent,
    file: &'a File,
    base: u64,
    report: &'a Report<'a>,
    /// Buffers of pieces that are done. They have held plaintext.
    spare: Vec<Zeroizing<Vec<u8>>>,
}

impl Device<'_> {
    /// A buffer that never grows where it is: the memory that it would leave has held plaintext.
    fn buffer(&mut self, len: usize) -> Zeroizing<Vec<u8>> {
        let spare = self.spare.pop().filter(|spare| spare.capacity() >= len);
        let mut buffer = spare.unwrap_or_else(|| Zeroizing::new(Vec::with_capacity(len)));
        buffer.resize(len, 0);
        buffer
    }

    fn keep(&mut self, request: &mut OwnedRequest) {
        self.spare.push(Zeroizing::new(std::mem::take(&mut request.input)));
        self.spare.push(Zeroizing::new(std::mem::take(&mut request.output)));
    }
}

impl DeviceSide for Device<'_> {
    /// With the number of the chunk.
    type Error = (u64, Error);

    fn make(&mut self, chunks: &Range<u64>) -> Result<Option<OwnedRequest>, Self::Error> {
        let here = |error| (chunks.start, error);
        // The device claims from the back: all that it has lies behind the failure, too.
        if self.work.failed.load(Relaxed) < chunks.start {
            return Ok(None);
        }
        if self.work.cancel.load(Relaxed) {
            return Err(here(Error::Door(wattlock_door::Error::Interrupted)));
        }
        let segments = self.work.segments;
        let len = (chunks.end - chunks.start) as usize * segments.stride;
        let (mut input, mut output) = (self.buffer(len), self.buffer(len));
        let segment = self.extent.inner(segments, chunks);
        self.extent.read(segments, &segment, &mut input).map_err(here)?;
        let (input, output) = (std::mem::take(&mut *input), std::mem::take(&mut *output));
        Ok(Some(self.work.key.owned(segments.direction, chunks.start, input, output)))
    }

    fn take(
        &mut self,
        chunks: &Range<u64>,
        request: &mut OwnedRequest,
        result: Result<usize, CoreError>,
        dispatcher: &mut Dispatcher,
    ) -> Result<(), Self::Error> {
        let (segments, key, first) = (self.work.segments, self.work.key, chunks.start);
        let count = chunks.end - chunks.start;
        match result {
            Ok(_) => {
                let shape = match segments.direction {
                    Direction::Seal => Shape::Whole(request.output.len()),
                    Direction::Open => Shape::Gapped(count as usize * segments.chunk),
                };
                let at = self.base + first * segments.output_chunk();
                shape.write_at(segments, &request.output, self.file, at).map_err(|error| (first, error))?;
                self.report.done(count * segments.input_chunk());
            }
            Err(CoreError::ForgedMessage(index)) => {
                let chunk = first + u64::from(index);
                let why = Failure::Chunk(chunk).explain(key, first, &request.input, false, dispatcher);
                self.report.failed(chunk, why);
            }
            Err(error) => self.report.failed(first, Error::Door(wattlock_door::Error::Engine(error))),
        }
        self.keep(request);
        Ok(())
    }

    fn forget(&mut self, request: &mut OwnedRequest) {
        self.keep(request);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::super::{Buffers, Feed};
    use super::*;
    use crate::format::payload::PayloadKey;
    use crate::input::Body;

    #[test]
    fn the_device_gets_nothing_that_lies_behind_a_failure() {
        let runtime = Runtime::builder().telemetry(false).build().unwrap();
        let key = PayloadKey::age(&[1; 16], &[2; 16], &mut runtime.dispatcher()).unwrap();
        let segments = super::super::Segments::new(Direction::Seal, &key);
        let (file, end) = (tempfile::tempfile().unwrap(), segments.chunk as u64 * 20);
        file.set_len(end).unwrap();
        let body = Body::File { file: file.try_clone().unwrap(), at: 0, end };
        let Feed::File(extent) = Feed::new(body) else { panic!("a file is a stream") };
        let cancel = AtomicBool::new(false);
        let work = Work {
            key: &key,
            segments,
            part: Default::default(),
            from: Some(&extent),
            to: Some((&file, 0)),
            buffers: Buffers::new(0, 0),
            copies: Buffers::new(0, 0),
            cancel: &cancel,
            failed: AtomicU64::new(7),
        };
        let report =
            Report { progress: Progress::new(&cancel), first: Mutex::new(None), failed: &work.failed };
        let mut side =
            Device { work: &work, extent: &extent, file: &file, base: 0, report: &report, spare: Vec::new() };
        assert!(side.make(&(8..16)).unwrap().is_none());
        // A part of these lies before it, and may fail earlier.
        assert_eq!(side.make(&(4..12)).unwrap().map(|request| request.messages()), Some(8));
    }
}
