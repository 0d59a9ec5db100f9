//! A sealed file whose content is read at any position, each byte verified before it is given out.
//!
//! The last chunk is verified when the file is unlocked. Every chunk's nonce is its number, and the length of the file
//! says how many there are: a file that was cut or extended is refused at once, and an altered chunk when it is read. A
//! file that changes while it is read fails like an altered one.
//!
//! [`Reader::load`] and what stands beside it are for a caller that opens chunks by itself, on a GPU.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;

use wattlock_core::sync::lock;
use wattlock_core::{Key, Kind};
use zeroize::{Zeroize, Zeroizing};

use crate::error::Error;
use crate::format::payload::{Failure, PayloadKey, TAG_LEN};
use wattlock_door::{Crypto, CryptoSource};

/// Bytes of content in a piece that one thread opens at a time.
const PIECE: usize = 1 << 20;
/// More threads than this wait for memory.
const THREADS: usize = 16;

/// An unlocked file.
pub struct Reader {
    key: PayloadKey,
    file: File,
    base: u64,
    /// Bytes of chunks and tags.
    sealed: u64,
    plain: u64,
}

impl Reader {
    /// Verifies the last chunk.
    pub(crate) fn new(
        key: PayloadKey,
        file: File,
        base: u64,
        sealed: u64,
        crypto: &mut dyn Crypto,
    ) -> Result<Reader, Error> {
        let plain = key.layout().plain_len(sealed)?;
        let reader = Reader { key, file, base, sealed, plain };
        let last = reader.chunks() - 1;
        let mut buffer = Zeroizing::new(vec![0; reader.bytes_of(last, 1)]);
        reader.load(last, &mut buffer)?;
        reader.open_here(last, &mut buffer, crypto)?;
        Ok(reader)
    }

    /// Bytes of content.
    pub fn len(&self) -> u64 {
        self.plain
    }

    /// Whether there is no content.
    pub fn is_empty(&self) -> bool {
        self.plain == 0
    }

    /// How many chunks there are, at least one; the last may have no content.
    pub fn chunks(&self) -> u64 {
        self.key.layout().chunks(self.plain)
    }

    /// Bytes of content in every chunk but the last.
    pub fn chunk_len(&self) -> usize {
        self.key.layout().chunk_len()
    }

    /// The same with its tag.
    pub fn stride(&self) -> usize {
        self.key.layout().stride()
    }

    /// Bytes in the file of `count` chunks from number `first` on, or of as many as there are.
    pub fn bytes_of(&self, first: u64, count: usize) -> usize {
        let stride = self.stride() as u64;
        let start = (first * stride).min(self.sealed);
        ((first + count as u64) * stride).min(self.sealed).saturating_sub(start) as usize
    }

    /// Reads sealed chunks from number `first` on, as many as fill `to`.
    ///
    /// # Errors
    /// [`wattlock_door::Error::InputChanged`] if they are not there any more, [`wattlock_door::Error::Io`].
    pub fn load(&self, first: u64, to: &mut [u8]) -> Result<(), Error> {
        let at = self.base + first * self.stride() as u64;
        self.file.read_exact_at(to, at).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => Error::Door(wattlock_door::Error::InputChanged),
            _ => Error::io("reading the input", error),
        })
    }

    /// The key, the kind of request that opens a chunk under it.
    pub fn key(&self) -> (&Key, Kind) {
        (self.key.chunk_key(), self.key.opens_by())
    }

    /// The nonces of `count` chunks from number `first` on, concatenated.
    pub fn nonces(&self, first: u64, count: usize) -> Vec<u8> {
        self.key.nonces(first, count, first + count as u64 == self.chunks())
    }

    /// Opens sealed chunks in place, which begin with number `first`; content then lies where it was sealed, with gaps.
    ///
    /// # Errors
    /// The file's: the chunk is named; nothing in the buffer may then be used.
    pub fn open_here(&self, first: u64, sealed: &mut [u8], crypto: &mut dyn Crypto) -> Result<(), Error> {
        let last = first * self.stride() as u64 + sealed.len() as u64 == self.sealed;
        self.key
            .open(first, sealed, last, crypto)
            .map_err(|failure| self.explain(first, sealed.len(), failure, crypto))
    }

    /// The error for chunk number `chunk`, which did not authenticate.
    pub fn altered(&self, chunk: u64, crypto: &mut dyn Crypto) -> Error {
        self.explain(chunk, self.bytes_of(chunk, 1), Failure::Chunk(chunk), crypto)
    }

    fn explain(&self, first: u64, bytes: usize, failure: Failure, crypto: &mut dyn Crypto) -> Error {
        let last = first * self.stride() as u64 + bytes as u64 == self.sealed;
        let mut sealed = vec![0; bytes];
        match self.load(first, &mut sealed) {
            Ok(()) => failure.explain(&self.key, first, &sealed, last, crypto),
            Err(error) => error,
        }
    }

    /// Reads content from position `at` on, as much as fills `to`.
    ///
    /// # Errors
    /// [`wattlock_door::Error::Usage`] if there is not as much; the file's. `to` is then zero.
    pub fn read_at(&self, at: u64, to: &mut [u8], crypto: &mut dyn Crypto) -> Result<(), Error> {
        if at.checked_add(to.len() as u64).is_none_or(|end| end > self.plain) {
            to.zeroize();
            return Err(Error::Door(wattlock_door::Error::Usage(
                "position beyond the end of the content".into(),
            )));
        }
        let read = self.pieces(at, to, |at, part| self.read_piece(at, part, crypto));
        if read.is_err() {
            to.zeroize();
        }
        read
    }

    /// The same for all of the content, on as many threads as there are cores.
    ///
    /// # Errors
    /// As [`Reader::read_at`]; of several altered chunks the first is named.
    pub fn read_into(&self, to: &mut [u8], source: &impl CryptoSource) -> Result<(), Error> {
        if to.len() as u64 != self.plain {
            to.zeroize();
            return Err(Error::Door(wattlock_door::Error::Usage(
                "a buffer of another length than the content".into(),
            )));
        }
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
        let first = Mutex::new(None);
        let mut parts = to.chunks_mut(PIECE).enumerate();
        let next = || {
            let failed = lock(&first).is_some();
            if failed { None } else { parts.next() }
        };
        let work = |crypto: &mut dyn Crypto, (index, part): (usize, &mut [u8])| {
            self.read_piece((index * PIECE) as u64, part, crypto)
        };
        // Results come in order: the first failure is the one with the lowest position.
        let sink = |read: Result<(), Error>| {
            if let Err(error) = read {
                lock(&first).get_or_insert(error);
            }
        };
        source.in_order(threads, 2 * threads, next, work, sink);
        match first.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
            None => Ok(()),
            Some(error) => {
                to.zeroize();
                Err(error)
            }
        }
    }

    /// Calls `read` for parts of `to` that end where pieces end.
    fn pieces(
        &self,
        mut at: u64,
        mut to: &mut [u8],
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        while !to.is_empty() {
            let len = (PIECE - (at % PIECE as u64) as usize).min(to.len());
            let (part, rest) = to.split_at_mut(len);
            read(at, part)?;
            (at, to) = (at + len as u64, rest);
        }
        Ok(())
    }

    /// Content within the chunks that it touches.
    fn read_piece(&self, at: u64, to: &mut [u8], crypto: &mut dyn Crypto) -> Result<(), Error> {
        let (chunk, stride) = (self.chunk_len() as u64, self.stride());
        let first = at / chunk;
        let count = ((at + to.len() as u64).div_ceil(chunk) - first) as usize;
        let mut buffer = Zeroizing::new(vec![0; self.bytes_of(first, count)]);
        self.load(first, &mut buffer)?;
        self.open_here(first, &mut buffer, crypto)?;
        let (mut skip, mut done) = ((at % chunk) as usize, 0);
        for piece in buffer.chunks(stride) {
            let content = &piece[..piece.len() - TAG_LEN][skip..];
            let len = content.len().min(to.len() - done);
            to[done..done + len].copy_from_slice(&content[..len]);
            (done, skip) = (done + len, 0);
        }
        Ok(())
    }
}
