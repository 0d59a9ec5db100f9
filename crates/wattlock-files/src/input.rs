//! The input: a file that all workers read at positions, or a stream that one worker reads at a time.
//!
//! A file may change while it is read: nothing is mapped, so the worst a shrinking file can do is an error.
//! A file that grew is detected by its length after its former content has been sealed.

use std::fs::File;
use std::io::{self, BufReader, IoSliceMut, Read, Seek};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags, fcntl_setfl, open};

use wattlock_door::{Attributes, PIPE_BYTES, wait};

use crate::error::Error;
use crate::format::armor;

/// The input to seal or open.
pub enum Input {
    /// A regular file, or a pipe with a name. Directories, devices and sockets are refused.
    Path(PathBuf),
    /// A regular file that is open already, from its beginning.
    File {
        /// The file.
        file: File,
        /// Its name, for what is told of it.
        name: PathBuf,
    },
    /// Standard input, from its present position.
    Stdin,
    /// Any other stream. A read that blocks cannot be interrupted.
    Stream(Box<dyn Read + Send>),
}

/// Longest file without blocks that is read as a stream: what the kernel makes up is shorter, and what is longer has holes.
const NO_BLOCKS_MOST: u64 = 1 << 20;

/// An opened input whose beginning can be peeked at.
pub(crate) struct Source<'a> {
    pub(crate) body: Body<'a>,
    /// Bytes already read and not yet consumed.
    ahead: Vec<u8>,
    /// What a regular file's result keeps of it.
    pub(crate) like: Option<Attributes>,
    /// Device and inode of a file, to notice that the output is the same.
    pub(crate) identity: Option<(u64, u64)>,
}

pub(crate) enum Body<'a> {
    /// `at` is the next byte to be looked at or given to workers, `end` one past the last.
    File {
        file: File,
        at: u64,
        end: u64,
    },
    Stream(Box<dyn Read + Send + 'a>),
}

impl<'a> Source<'a> {
    pub(crate) fn open(input: Input, cancel: &'a AtomicBool) -> Result<Source<'a>, Error> {
        match input {
            Input::Path(path) => Source::open_path(&path, cancel),
            Input::File { file, .. } => Source::from_fd(file.into(), cancel),
            Input::Stdin => {
                let duplicate = io::stdin().as_fd().try_clone_to_owned();
                Source::from_fd(duplicate.map_err(|error| Error::io("standard input", error))?, cancel)
            }
            Input::Stream(stream) => Ok(Source::from_stream(stream)),
        }
    }

    fn open_path(path: &Path, cancel: &'a AtomicBool) -> Result<Source<'a>, Error> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => Error::Door(wattlock_door::Error::NotFound(path.to_owned())),
            _ => Error::io("opening the input", error),
        };
        // Looked at before it is opened: opening a device can have effects.
        let refuse = |kind: std::fs::FileType| match () {
            () if kind.is_dir() => Err(Error::Door(wattlock_door::Error::IsFolder(path.to_owned()))),
            () if kind.is_file() || kind.is_fifo() => Ok(()),
            () => Err(Error::Door(wattlock_door::Error::NotRegular(path.to_owned()))),
        };
        refuse(std::fs::metadata(path).map_err(failed)?.file_type())?;
        // Opened at once: waiting for a pipe's writer must not be deaf to the cancel flag, which [`wait`] is
        // not. And what was a file a moment ago may be a pipe now.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(open(path, flags, Mode::empty()).map_err(|error| failed(error.into()))?);
        refuse(file.metadata().map_err(failed)?.file_type())?;
        fcntl_setfl(&file, OFlags::empty()).map_err(|error| failed(error.into()))?;
        Source::from_fd(file.into(), cancel)
    }

    fn from_fd(fd: OwnedFd, cancel: &'a AtomicBool) -> Result<Source<'a>, Error> {
        let mut file = File::from(fd);
        let meta = file.metadata().map_err(|error| Error::io("looking at the input", error))?;
        let like = meta.is_file().then(|| Attributes::of(&file, &meta));
        // Files of no length may still have content (those in /proc do), and the length of those without blocks may be no
        // more than a guess (in /sys it is): they are read as streams.
        if !meta.is_file() || meta.len() == 0 || (meta.blocks() == 0 && meta.len() <= NO_BLOCKS_MOST) {
            if meta.is_dir() {
                return Err(Error::Door(wattlock_door::Error::IsFolder("standard input".into())));
            }
            let _ = rustix::pipe::fcntl_setpipe_size(&file, PIPE_BYTES);
            let identity = meta.is_file().then(|| (meta.dev(), meta.ino()));
            let stream = Source::from_stream(Box::new(FdReader { file, cancel }));
            return Ok(Source { like, identity, ..stream });
        }
        let at = file.stream_position().map_err(|error| Error::io("looking at the input", error))?;
        Ok(Source {
            body: Body::File { file, at, end: meta.len().max(at) },
            ahead: Vec::new(),
            like,
            identity: Some((meta.dev(), meta.ino())),
        })
    }

    fn from_stream(stream: Box<dyn Read + Send + 'a>) -> Source<'a> {
        Source { body: Body::Stream(stream), ahead: Vec::new(), like: None, identity: None }
    }

    /// The next `len` bytes, or as many as there are, without consuming them.
    pub(crate) fn peek(&mut self, len: usize) -> Result<&[u8], Error> {
        while self.ahead.len() < len {
            let have = self.ahead.len();
            self.ahead.resize(len, 0);
            let read = match &mut self.body {
                Body::File { file, at, .. } => file.read_at(&mut self.ahead[have..], *at + have as u64),
                Body::Stream(stream) => stream.read(&mut self.ahead[have..]),
            };
            let read = match read {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    self.ahead.truncate(have);
                    continue;
                }
                Err(error) => return Err(Error::io("reading the input", error)),
            };
            self.ahead.truncate(have + read);
            if read == 0 {
                break;
            }
        }
        Ok(&self.ahead[..len.min(self.ahead.len())])
    }

    /// Moves past `len` bytes that were peeked at.
    pub(crate) fn consume(&mut self, len: usize) {
        self.ahead.drain(..len);
        if let Body::File { at, .. } = &mut self.body {
            *at += len as u64;
        }
    }

    /// Exactly `N` bytes, consumed.
    ///
    /// # Errors
    /// [`Error::Truncated`] if there are not as many.
    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let taken = self.peek(N)?.try_into().map_err(|_| Error::Truncated)?;
        self.consume(N);
        Ok(taken)
    }

    /// The content of armor that starts here, and the label that the armor gives it.
    pub(crate) fn unarmored(self) -> Result<(Source<'a>, armor::Label), Error> {
        let like = self.like.clone();
        let identity = self.identity;
        let reader = armor::Reader::new(BufReader::with_capacity(1 << 16, self.into_stream()))?;
        let label = reader.label();
        Ok((Source { like, identity, ..Source::from_stream(Box::new(reader)) }, label))
    }

    /// The rest of the input, to be read in order.
    pub(crate) fn into_stream(self) -> Box<dyn Read + Send + 'a> {
        match self.body {
            Body::File { file, at, end } => Box::new(FileReader { file, at, end }),
            Body::Stream(stream) => Box::new(io::Cursor::new(self.ahead).chain(stream)),
        }
    }

    /// The rest of the input, for the pipeline: bytes peeked at and not consumed come first.
    pub(crate) fn into_body(self) -> Body<'a> {
        match self.body {
            Body::Stream(_) => Body::Stream(self.into_stream()),
            file => file,
        }
    }
}

/// A file read in order without moving its position.
struct FileReader {
    file: File,
    at: u64,
    end: u64,
}

impl Read for FileReader {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let most = (to.len() as u64).min(self.end - self.at) as usize;
        let len = self.file.read_at(&mut to[..most], self.at)?;
        self.at += len as u64;
        Ok(len)
    }
}

/// A pipe, terminal or other descriptor, read without ever being deaf to the cancel flag.
struct FdReader<'a> {
    file: File,
    cancel: &'a AtomicBool,
}

impl Read for FdReader<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        wait(&self.file, PollFlags::IN, self.cancel)?;
        self.file.read(to)
    }

    fn read_vectored(&mut self, to: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        wait(&self.file, PollFlags::IN, self.cancel)?;
        self.file.read_vectored(to)
    }
}
