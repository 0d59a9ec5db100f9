//! Hashes of many files side by side.
//!
//! A hash is a chain: one message leaves most of a core idle, several at once do not. Small files are therefore hashed
//! some at a time, which an engine may do in lanes: it asks for a file's next piece when it has hashed the one before. So
//! what is read stays in a core's second-level cache until it is hashed, and no page of a buffer is touched once only. A
//! larger file is one stream: it stays one chain, on one core, however large it is. Batches and streams go to all cores.
//!
//! 1. Results come in the order of the files, whatever was ready first.
//! 2. Memory: one buffer for each thread ([`ROOM`]), and names and digests of the files that wait for their turn (at
//!    most [`PIECES`] batches).
//! 3. A file may change while it is read: what was read until its end is what is hashed. Nothing is mapped.
//! 4. What is not a regular file (a pipe, standard input, a device) is read by the calling thread, one after the other,
//!    so that two readers never share a pipe.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{DirEntry, File};
use std::io::{self, ErrorKind, Read};
use std::num::NonZero;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::fs::{Advice, fadvise};
use wattlock_core::sync::lock;
use wattlock_core::{Data, Family, Feed, Key, Kind};

use crate::error::Error;
use crate::input::Input;
use crate::pipeline::Progress;
use wattlock_door::{Crypto, CryptoSource};

/// Longest file that shares a core with others: with cores enough, larger ones are done sooner by themselves.
const SMALL: u64 = 1 << 20;

/// Files of a batch: enough to fill the widest lanes.
const FILES: usize = 16;

/// A thread's buffer: a piece of a stream, or a piece for each lane. It stays in a core's second-level cache.
const ROOM: usize = FILES * 32 * 1024;

/// Batches and large files that were begun and whose results were not given yet.
const PIECES: usize = 1024;

/// A batch that does not fill up is begun when so many files came after its first.
const PATIENCE: u64 = 256;

const MOST_THREADS: usize = 64;

/// A file's hash.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest {
    bytes: [u8; 64],
    len: usize,
}

impl Digest {
    fn empty(kind: Kind) -> Digest {
        Digest { bytes: [0; 64], len: kind.info().output.unwrap_or_default().min(64) }
    }

    fn of(digest: &[u8]) -> Digest {
        let len = digest.len().min(64);
        let mut bytes = [0; 64];
        bytes[..len].copy_from_slice(&digest[..len]);
        Digest { bytes, len }
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

/// In hexadecimal, lower case.
impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// Hashes files with `kind`. Each comes with a mark of the caller's; one that is an error already keeps its place. `each`
/// gets marks and results in the files' order, as many at a time as are ready, from one thread at a time. Uses all cores;
/// `files` is asked on the calling thread. Blocks until all is done. An error of a file ends nothing.
///
/// # Errors
/// What `each` returned, after which no more files are begun; [`wattlock_door::Error::Interrupted`]; [`wattlock_door::Error::Engine`] for a kind that
/// is no hash.
pub fn sum<T: Send>(
    kind: Kind,
    files: impl Iterator<Item = (T, io::Result<Input>)>,
    source: &impl CryptoSource,
    progress: Progress<'_>,
    mut each: impl FnMut(&mut dyn Iterator<Item = (T, io::Result<Digest>)>) -> Result<(), Error> + Send,
) -> Result<(), Error> {
    if kind.info().family != Family::Digest {
        return Err(wattlock_core::Error::Unsupported.into());
    }
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(MOST_THREADS);
    let work = Work { kind, progress, told: Mutex::new(()), buffers: Mutex::default() };
    let mut pieces = Pieces { files, taken: 0, small: Vec::new(), bytes: 0 };
    let (stop, mut turn, mut failed) = (AtomicBool::new(false), Turn::default(), None);
    source.in_order(
        threads,
        PIECES,
        || {
            let over = stop.load(Relaxed) || progress.cancel().load(Relaxed);
            if over { None } else { pieces.next(&work, source) }
        },
        |crypto, piece| if stop.load(Relaxed) { Vec::new() } else { work.piece(crypto, piece) },
        |answers| {
            turn.arrive(answers);
            if failed.is_none()
                && let Err(error) = each(&mut turn)
            {
                failed = Some(error);
                stop.store(true, Relaxed);
            }
        },
    );
    match failed {
        Some(error) => Err(error),
        None if progress.cancel().load(Relaxed) => Err(Error::Door(wattlock_door::Error::Interrupted)),
        None => Ok(()),
    }
}

/// A file's place, the caller's mark, and where it is.
type Place<T> = (u64, T, PathBuf);
/// A file's place, the caller's mark, and the result.
type Answer<T> = (u64, T, io::Result<Digest>);

/// What one thread does at a time.
enum Piece<T> {
    /// And about how many bytes they have.
    Small(Vec<Place<T>>, u64),
    Large(Place<T>),
    Done(Answer<T>),
}

/// Results in the files' order: what is early waits.
struct Turn<T> {
    next: u64,
    early: BTreeMap<u64, (T, io::Result<Digest>)>,
}

impl<T> Default for Turn<T> {
    fn default() -> Turn<T> {
        Turn { next: 0, early: BTreeMap::new() }
    }
}

impl<T> Turn<T> {
    fn arrive(&mut self, answers: Vec<Answer<T>>) {
        self.early.extend(answers.into_iter().map(|(place, mark, result)| (place, (mark, result))));
    }
}

impl<T> Iterator for Turn<T> {
    type Item = (T, io::Result<Digest>);

    fn next(&mut self) -> Option<(T, io::Result<Digest>)> {
        let ready = self.early.remove(&self.next)?;
        self.next += 1;
        Some(ready)
    }
}

/// Puts files together to pieces.
struct Pieces<T, F: Iterator<Item = (T, io::Result<Input>)>> {
    files: F,
    /// How many were taken: the place of the next.
    taken: u64,
    small: Vec<Place<T>>,
    bytes: u64,
}

impl<T, F: Iterator<Item = (T, io::Result<Input>)>> Pieces<T, F> {
    fn next(&mut self, work: &Work<'_>, source: &impl CryptoSource) -> Option<Piece<T>> {
        loop {
            let waits = self.small.first().is_some_and(|first| self.taken - first.0 >= PATIENCE);
            if self.small.len() >= FILES || waits {
                return Some(self.all_small());
            }
            let Some((mark, input)) = self.files.next() else {
                return (!self.small.is_empty()).then(|| self.all_small());
            };
            let place = self.taken;
            self.taken += 1;
            let path = match input {
                Ok(Input::Path(path)) => path,
                Ok(Input::Stdin) => return Some(work.here(source, place, mark, &mut io::stdin().lock())),
                Ok(Input::File { mut file, .. }) => return Some(work.here(source, place, mark, &mut file)),
                Ok(Input::Stream(mut stream)) => return Some(work.here(source, place, mark, &mut stream)),
                Err(error) => return Some(Piece::Done((place, mark, Err(error)))),
            };
            match std::fs::metadata(&path) {
                Ok(meta) if meta.is_file() && meta.len() > SMALL => {
                    return Some(Piece::Large((place, mark, path)));
                }
                // Opening a directory and reading nothing is harmless, and says what it is.
                Ok(meta) if meta.is_file() || meta.is_dir() => {
                    self.bytes += meta.len().min(SMALL);
                    self.small.push((place, mark, path));
                }
                Ok(_) => {
                    let opened = File::open(&path);
                    return Some(match opened {
                        Ok(mut file) => work.here(source, place, mark, &mut file),
                        Err(error) => Piece::Done((place, mark, Err(error))),
                    });
                }
                Err(error) => return Some(Piece::Done((place, mark, Err(error)))),
            }
        }
    }

    fn all_small(&mut self) -> Piece<T> {
        Piece::Small(std::mem::take(&mut self.small), std::mem::take(&mut self.bytes))
    }
}

/// What all threads share.
struct Work<'p> {
    kind: Kind,
    progress: Progress<'p>,
    /// Progress is told of by one thread at a time.
    told: Mutex<()>,
    buffers: Mutex<Vec<Vec<u8>>>,
}

impl Work<'_> {
    fn piece<T>(&self, crypto: &mut dyn Crypto, piece: Piece<T>) -> Vec<Answer<T>> {
        match piece {
            Piece::Done(answer) => vec![answer],
            Piece::Small(files, bytes) => self.with_buffer(|room| self.together(crypto, files, bytes, room)),
            Piece::Large((place, mark, path)) => {
                let digest = File::open(&path).and_then(|mut file| {
                    let _ = fadvise(&file, 0, None, Advice::Sequential);
                    self.with_buffer(|buffer| self.chain(crypto, buffer, &mut file))
                });
                vec![(place, mark, digest)]
            }
        }
    }

    /// Hashes what the calling thread reads.
    fn here<T>(&self, source: &impl CryptoSource, place: u64, mark: T, from: &mut dyn Read) -> Piece<T> {
        let digest = source.here(|crypto| self.with_buffer(|buffer| self.chain(crypto, buffer, from)));
        Piece::Done((place, mark, digest))
    }

    /// A buffer costs a page fault for each of its pages once, so they are kept.
    fn with_buffer<R>(&self, work: impl FnOnce(&mut [u8]) -> R) -> R {
        let buffers = || lock(&self.buffers);
        let kept = buffers().pop();
        let mut buffer = kept.unwrap_or_else(|| vec![0; ROOM]);
        let result = work(&mut buffer);
        buffers().push(buffer);
        result
    }

    fn done(&self, bytes: usize) {
        let _one = lock(&self.told);
        self.progress.done(bytes as u64);
    }

    /// Hashes files side by side.
    fn together<T>(
        &self,
        crypto: &mut dyn Crypto,
        files: Vec<Place<T>>,
        bytes: u64,
        room: &mut [u8],
    ) -> Vec<Answer<T>> {
        let count = files.len();
        let (marks, paths): (Vec<_>, Vec<_>) =
            files.into_iter().map(|(place, mark, path)| ((place, mark), path)).unzip();
        let results = paths.iter().map(|_| None).collect();
        let mut reading = Reading { work: self, paths: paths.iter().enumerate(), open: Vec::new(), results };
        let hashed = crypto.hash_fed(self.kind, (count, bytes as usize), room, &mut reading);
        let answer = |((place, mark), result): (_, Option<_>)| {
            // An engine that failed says nothing of the files that it had not done.
            let failed = || Err(io::Error::other(hashed.err().unwrap_or(wattlock_core::Error::Unsupported)));
            (place, mark, result.unwrap_or_else(failed))
        };
        marks.into_iter().zip(reading.results).map(answer).collect()
    }

    /// Hashes all that is read.
    fn chain(&self, crypto: &mut dyn Crypto, buffer: &mut [u8], from: &mut dyn Read) -> io::Result<Digest> {
        let mut hash = crypto.open_stream(self.kind, Key::none()).map_err(io::Error::other)?;
        hash.start(&[]).map_err(io::Error::other)?;
        let mut bytes = 0;
        loop {
            let len = fill(from, buffer)?;
            if self.progress.cancel().load(Relaxed) {
                return Err(ErrorKind::Interrupted.into());
            }
            if len == 0 {
                break;
            }
            hash.update(Data::Apart { from: &buffer[..len], to: &mut [] }).map_err(io::Error::other)?;
            self.done(len);
            bytes += len as u64;
        }
        let mut digest = Digest::empty(self.kind);
        hash.finish(digest.room()).map_err(io::Error::other)?;
        crypto.streamed(self.kind, 1, bytes);
        Ok(digest)
    }
}

/// Files of a batch, each read piece by piece as its lane asks for more.
struct Reading<'w, 'p> {
    work: &'w Work<'p>,
    paths: std::iter::Enumerate<std::slice::Iter<'w, PathBuf>>,
    /// By lane.
    open: Vec<Option<(usize, File)>>,
    results: Vec<Option<io::Result<Digest>>>,
}

impl Feed for Reading<'_, '_> {
    fn begin(&mut self, lane: usize) -> bool {
        self.open.resize_with(self.open.len().max(lane + 1), || None);
        for (index, path) in self.paths.by_ref() {
            match File::open(path) {
                Ok(file) => {
                    self.open[lane] = Some((index, file));
                    return true;
                }
                Err(error) => self.results[index] = Some(Err(error)),
            }
        }
        false
    }

    fn fill(&mut self, lane: usize, buffer: &mut [u8]) -> Option<usize> {
        let (index, file) = self.open.get_mut(lane)?.as_mut()?;
        let read = match self.work.progress.cancel().load(Relaxed) {
            true => Err(ErrorKind::Interrupted.into()),
            false => fill(file, buffer),
        };
        match read {
            Ok(read) => {
                self.work.done(read);
                Some(read)
            }
            Err(error) => {
                self.results[*index] = Some(Err(error));
                None
            }
        }
    }

    fn done(&mut self, lane: usize, digest: &[u8]) {
        if let Some((index, _)) = self.open.get_mut(lane).and_then(Option::take) {
            self.results[index] = Some(Ok(Digest::of(digest)));
        }
    }
}

/// Reads until the buffer is full or there is no more. A file in /proc gives less than was asked for before its end.
fn fill(from: &mut (impl Read + ?Sized), buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match from.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

/// The regular files of a folder and of all folders in it, each folder's entries in the order of their names' bytes.
/// Links and everything else that is no regular file are left out. A folder that cannot be read is an error in its place.
#[derive(Debug)]
pub struct Walk {
    /// Entries still to come, the next last: of the folder at hand, and of those around it.
    open: Vec<Vec<DirEntry>>,
    failed: Option<(PathBuf, io::Error)>,
}

impl Walk {
    /// Of this folder.
    pub fn new(folder: &Path) -> Walk {
        let mut walk = Walk { open: Vec::new(), failed: None };
        walk.enter(folder);
        walk
    }

    fn enter(&mut self, folder: &Path) {
        let entries = std::fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<DirEntry>>>);
        match entries {
            Ok(mut entries) => {
                entries.sort_by(|a, b| b.file_name().as_bytes().cmp(a.file_name().as_bytes()));
                self.open.push(entries);
            }
            Err(error) => self.failed = Some((folder.to_owned(), error)),
        }
    }
}

impl Iterator for Walk {
    type Item = (PathBuf, io::Result<()>);

    fn next(&mut self) -> Option<(PathBuf, io::Result<()>)> {
        loop {
            if let Some((path, error)) = self.failed.take() {
                return Some((path, Err(error)));
            }
            let Some(entry) = self.open.last_mut()?.pop() else {
                self.open.pop();
                continue;
            };
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => self.enter(&entry.path()),
                Ok(kind) if kind.is_file() => return Some((entry.path(), Ok(()))),
                Ok(_) => {}
                Err(error) => return Some((entry.path(), Err(error))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use wattlock_core::{Item, Request};

    use super::*;

    struct Nobody;

    impl CryptoSource for Nobody {
        fn here<T>(&self, work: impl FnOnce(&mut dyn Crypto) -> T) -> T {
            work(&mut Nobody)
        }
    }

    impl Crypto for Nobody {
        fn run(&mut self, _: &mut Request<'_>) -> Result<usize, wattlock_core::Error> {
            Err(wattlock_core::Error::Unsupported)
        }

        fn run_all(&mut self, items: &mut [Item<'_>]) {
            items.iter_mut().for_each(|item| item.result = Err(wattlock_core::Error::Unsupported));
        }
    }

    fn stream() -> io::Result<Input> {
        Ok(Input::Stream(Box::new(Cursor::new(Vec::new()))))
    }

    #[test]
    fn a_small_file_among_others_is_not_left_for_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let small = folder.path().join("small");
        std::fs::write(&small, b"x").unwrap();
        static NEVER: AtomicBool = AtomicBool::new(false);
        let progress = Progress::new(&NEVER);
        let work = Work { kind: Kind::Sha256, progress, told: Mutex::new(()), buffers: Mutex::default() };
        let files = std::iter::once(Ok(Input::Path(small))).chain(std::iter::repeat_with(stream));
        let mut pieces = Pieces {
            files: files.zip(0..).map(|(input, mark)| (mark, input)),
            taken: 0,
            small: Vec::new(),
            bytes: 0,
        };
        let mut before = 0;
        let begun = loop {
            match pieces.next(&work, &Nobody) {
                Some(Piece::Small(files, _)) => break files,
                Some(_) => before += 1,
                None => panic!("it has no end"),
            }
        };
        assert_eq!((begun.len(), begun[0].0, before), (1, 0, PATIENCE - 1));
    }

    #[test]
    fn an_engine_that_does_nothing_is_an_error_of_each_file_in_its_place() {
        static NEVER: AtomicBool = AtomicBool::new(false);
        let files =
            (0..5).map(|mark| (mark, if mark == 3 { Err(ErrorKind::NotFound.into()) } else { stream() }));
        let mut seen = Vec::new();
        let done = sum(Kind::Sha256, files, &Nobody, Progress::new(&NEVER), |ready| {
            seen.extend(ready.map(|(mark, result)| (mark, result.map_err(|error| error.kind()))));
            Ok(())
        });
        assert!(done.is_ok());
        let kinds: Vec<_> = seen.iter().map(|(mark, result)| (*mark, result.unwrap_err())).collect();
        let other = ErrorKind::Other;
        assert_eq!(kinds, [(0, other), (1, other), (2, other), (3, ErrorKind::NotFound), (4, other)]);
        let none = std::iter::empty::<((), io::Result<Input>)>();
        let refused = sum(Kind::Aes128Ctr, none, &Nobody, Progress::new(&NEVER), |_| Ok(()));
        assert!(matches!(refused, Err(Error::Door(wattlock_door::Error::Engine(_)))));
    }
}
