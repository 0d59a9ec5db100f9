//! A sealed file's way into device memory: threads read pieces into pinned memory, the device copies and opens them.
//!
//! Each chunk is verified on the device before any of its plaintext is written. One chunk of each piece is compared with the
//! CPU's; if one differs, or if the device declines, the CPU opens the piece and its plaintext is copied. After any failure
//! the destination is zero, and the chunk with the lowest number is the one that is named.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use wattlock_core::sync::lock;

use wattlock_cuda::Stream;
use wattlock_cuda::direct::{Area, DirectKey, Stage, Why};
use wattlock_files::Reader;
use zeroize::Zeroizing;

use crate::failure::Failure;
use crate::gpu::{Gpu, cpu, declines};

/// Bytes of content in a piece.
const PIECE: usize = 4 << 20;
/// Pieces of each thread that are under way: one is read while another is opened.
const STAGES: usize = 2;
/// Threads that read; so many saturate a copy engine, and bound the pinned memory to 64 MiB.
const THREADS: usize = 8;

/// Opens all of a file to device memory at `to`, of which `room` bytes may be used.
///
/// # Errors
/// [`Failure`]; the destination is then zero, unless it was refused or the device is lost.
pub fn load(gpu: &Gpu, file: &Reader, to: u64, room: u64, stream: Stream) -> Result<(), Failure> {
    if room < file.len() {
        return Err(Failure::field("room", Why::Short(file.len())));
    }
    let direct = &gpu.direct;
    direct.validate_area("to", to, file.len())?;
    // The memory may still be in use by what the caller enqueued before.
    direct.wait_for(stream)?;
    let done = Load::new(gpu, file, to).and_then(|load| load.run());
    if done.is_err() && !file.is_empty() {
        direct.wipe(to, file.len())?;
    }
    done
}

struct Load<'a> {
    gpu: &'a Gpu,
    file: &'a Reader,
    to: u64,
    /// `None`: the CPU opens everything.
    key: Option<DirectKey>,
    /// Chunks of a piece, and the number of the next piece's first.
    chunks: u64,
    next: AtomicU64,
    /// The lowest chunk known to have failed, and why.
    failed: AtomicU64,
    first: Mutex<Option<(u64, Failure)>>,
}

impl<'a> Load<'a> {
    fn new(gpu: &'a Gpu, file: &'a Reader, to: u64) -> Result<Load<'a>, Failure> {
        let (key, kind) = file.key();
        let key = match gpu.is_proved(kind)?.then(|| gpu.direct.key(key.clone())) {
            Some(Ok(key)) => Some(key),
            Some(Err(trouble)) if !declines(trouble) => return Err(trouble.into()),
            _ => None,
        };
        let (next, failed) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
        let chunks = (PIECE / file.chunk_len()) as u64;
        Ok(Load { gpu, file, to, key, chunks, next, failed, first: Mutex::new(None) })
    }

    fn run(self) -> Result<(), Failure> {
        let pieces = self.file.chunks().div_ceil(self.chunks);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores.min(THREADS) as u64).min(pieces.div_ceil(STAGES as u64)).max(1);
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // Without it there is one fewer.
                _ = std::thread::Builder::new()
                    .name("wattlock-load".into())
                    .spawn_scoped(scope, || self.work());
            }
            self.work();
        });
        match self.first.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some((_, failure)) => Err(failure),
            None => Ok(()),
        }
    }

    fn fail(&self, chunk: u64, failure: Failure) {
        let mut first = lock(&self.first);
        if first.as_ref().is_none_or(|(before, _)| chunk < *before) {
            *first = Some((chunk, failure));
        }
        self.failed.fetch_min(chunk, Relaxed);
    }

    /// The next piece: its first chunk, and how many it has.
    fn claim(&self) -> Option<(u64, usize)> {
        let first = self.next.fetch_add(self.chunks, Relaxed);
        let left = self.file.chunks().saturating_sub(first);
        (left > 0 && self.failed.load(Relaxed) > first).then(|| (first, self.chunks.min(left) as usize))
    }

    /// One thread's pieces.
    fn work(&self) {
        let most = self.chunks.min(self.file.chunks()) as usize;
        let room = self.file.bytes_of(0, most);
        let make = |_| Stage::new(&self.gpu.direct, room, most).map(|stage| (stage, None)).ok();
        // Those that there is memory for.
        let usable = if self.key.is_some() { STAGES } else { 0 };
        let mut stages: Vec<(Stage, Option<(u64, usize)>)> = (0..usable).map_while(make).collect();
        let mut turn = 0;
        while let Some((first, count)) = self.claim() {
            let stage_count = stages.len();
            let done = match (stages.get_mut(turn), &self.key) {
                (Some((stage, busy)), Some(key)) => {
                    turn = (turn + 1) % stage_count;
                    let before = busy.take().map_or(Ok(()), |piece| self.finish(stage, piece));
                    before.and_then(|()| {
                        if self.start(stage, key, first, count)? {
                            *busy = Some((first, count));
                            return Ok(());
                        }
                        self.here(first, count)
                    })
                }
                _ => self.here(first, count),
            };
            if let Err((chunk, failure)) = done {
                self.fail(chunk, failure);
            }
        }
        for (stage, busy) in &mut stages {
            if let Some(piece) = busy.take()
                && let Err((chunk, failure)) = self.finish(stage, piece)
            {
                self.fail(chunk, failure);
            }
        }
    }

    fn at(&self, chunk: u64) -> u64 {
        self.to + chunk * self.file.chunk_len() as u64
    }

    /// Reads a piece and enqueues it. `false`: the device declines.
    fn start(
        &self,
        stage: &mut Stage,
        key: &DirectKey,
        first: u64,
        count: usize,
    ) -> Result<bool, (u64, Failure)> {
        let here = |failure| (first, failure);
        let bytes = self.file.bytes_of(first, count);
        self.file.load(first, &mut stage.data()[..bytes]).map_err(|error| here(error.into()))?;
        let nonces = self.file.nonces(first, count);
        let to = Area { at: self.at(first), bytes: self.file.len() - first * self.file.chunk_len() as u64 };
        match stage.open(key, self.file.key().1, bytes, self.file.stride(), &nonces, to) {
            Ok(()) => Ok(true),
            Err(trouble) if declines(trouble) => Ok(false),
            Err(trouble) => Err(here(trouble.into())),
        }
    }

    /// Waits for a piece, and compares one of its chunks with the CPU's.
    fn finish(&self, stage: &mut Stage, (first, count): (u64, usize)) -> Result<(), (u64, Failure)> {
        let here = |chunk| move |failure| (chunk, failure);
        match stage.finish().map_err(|trouble| here(first)(trouble.into()))? {
            // The CPU says whether it is forged, and if so, how.
            Some(index) => self.explain(first, count, first + index as u64),
            None => match self.is_right(first + first % count as u64).map_err(here(first))? {
                true => Ok(()),
                false => {
                    self.gpu.doubt();
                    self.here(first, count)
                }
            },
        }
    }

    /// A chunk that the device did not verify: altered, unless the CPU finds that the device is wrong.
    fn explain(&self, first: u64, count: usize, chunk: u64) -> Result<(), (u64, Failure)> {
        let opened = self.content(chunk, 1);
        match opened {
            Err(failure) => Err((chunk, failure)),
            Ok(_) => {
                self.gpu.doubt();
                self.here(first, count)
            }
        }
    }

    /// Whether a chunk on the device is what the CPU makes of it.
    fn is_right(&self, chunk: u64) -> Result<bool, Failure> {
        let expected = self.content(chunk, 1)?;
        let mut found = Zeroizing::new(vec![0; expected.len()]);
        self.gpu.direct.read(self.at(chunk), &mut found)?;
        Ok(found == expected)
    }

    /// Chunks opened on the CPU.
    fn content(&self, first: u64, count: usize) -> Result<Zeroizing<Vec<u8>>, Failure> {
        let at = first * self.file.chunk_len() as u64;
        let len = (self.file.len() - at).min((count * self.file.chunk_len()) as u64) as usize;
        let mut content = Zeroizing::new(vec![0; len]);
        cpu()?.local(|crypto| self.file.read_at(at, &mut content, crypto))?;
        Ok(content)
    }

    /// Opens a piece on the CPU and copies its plaintext.
    fn here(&self, first: u64, count: usize) -> Result<(), (u64, Failure)> {
        let done = self
            .content(first, count)
            .and_then(|content| Ok(self.gpu.direct.write(self.at(first), &content)?));
        done.map_err(|failure| {
            let chunk = match &failure {
                Failure::File(wattlock_files::Error::Corrupted { chunk }) => *chunk,
                _ => first,
            };
            (chunk, failure)
        })
    }
}
