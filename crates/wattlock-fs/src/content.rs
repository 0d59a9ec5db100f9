//! What files contain.

use std::sync::Arc;

use wattlock_files::Crypto;

use crate::Error;
use crate::store::{Place, Store};
use crate::volume::Volume;

/// The contents of a volume's files: keys, journal, and the state of every file that is open. One for each mounted
/// volume, shared by threads.
pub struct Contents<S: Store> {
    store: S,
}

/// What starting found of an earlier run that did not end well.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Lines for the log, one for each file that was mended or cut.
    pub lines: Vec<String>,
}

impl<S: Store> Contents<S> {
    /// Opens the journal and repeats what an earlier run did not finish.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a journal that is neither whole nor torn at its end.
    pub fn start(
        store: S,
        volume: &Volume,
        crypto: &mut impl Crypto,
    ) -> Result<(Contents<S>, Recovered), Error> {
        let _ = (&store, volume, crypto);
        todo!()
    }

    /// Makes an empty file of a new, empty backing file.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn create(
        &self,
        file: S::File,
        place: Place,
        crypto: &mut impl Crypto,
    ) -> Result<Arc<Content<S>>, Error> {
        let _ = (file, place, crypto, &self.store);
        todo!()
    }

    /// Opens a file; the same [`Content`] for every opener of one inode. `write` says whether it will be written.
    ///
    /// # Errors
    /// [`Error::Damaged`] where its header does not open.
    pub fn open(
        &self,
        file: S::File,
        place: Place,
        crypto: &mut impl Crypto,
    ) -> Result<Arc<Content<S>>, Error> {
        let _ = (file, place, crypto);
        todo!()
    }

    /// The content's length in bytes of a file whose backing file has `stored` bytes: what an open [`Content`] of this
    /// inode says, else the geometry. Reads nothing.
    pub fn len_of(&self, inode: (u64, u64), stored: u64) -> u64 {
        let _ = (inode, stored);
        todo!()
    }

    /// Whether the journal should be brought into place now: it is large, or nothing was written for a while.
    pub fn wants_checkpoint(&self, idle: bool) -> bool {
        let _ = idle;
        todo!()
    }

    /// Brings the journal into place and empties it. Blocks for the store's `sync_all`.
    ///
    /// # Errors
    /// [`Error::Io`]; nothing is lost, the journal stays.
    pub fn checkpoint(&self, crypto: &mut impl Crypto) -> Result<(), Error> {
        let _ = crypto;
        todo!()
    }
}

/// One open file's content. Shared by threads; concurrent writes of different ranges do not tear.
pub struct Content<S: Store> {
    contents: Arc<()>,
    store: std::marker::PhantomData<S>,
}

impl<S: Store> Content<S> {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        let _ = &self.contents;
        todo!()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads up to `to.len()` bytes at `at`; fewer only at the end. Only verified bytes are in `to` afterwards.
    ///
    /// # Errors
    /// [`Error::Damaged`] naming the chunk; `to` is zeroed.
    pub fn read(&self, to: &mut [u8], at: u64, crypto: &mut impl Crypto) -> Result<usize, Error> {
        let _ = (to, at, crypto);
        todo!()
    }

    /// Writes all of `from` at `at`. What lies between the end and `at` becomes a hole.
    ///
    /// # Errors
    /// [`Error::Io`] with `ENOSPC` or `EFBIG`: the old content is intact.
    pub fn write(&self, from: &[u8], at: u64, crypto: &mut impl Crypto) -> Result<(), Error> {
        let _ = (from, at, crypto);
        todo!()
    }

    /// Writes all of `from` at the end, wherever that is now, and returns where that was.
    ///
    /// # Errors
    /// As [`Content::write`].
    pub fn append(&self, from: &[u8], crypto: &mut impl Crypto) -> Result<u64, Error> {
        let _ = (from, crypto);
        todo!()
    }

    /// Cuts the content, or extends it with a hole.
    ///
    /// # Errors
    /// As [`Content::write`].
    pub fn set_len(&self, len: u64, crypto: &mut impl Crypto) -> Result<(), Error> {
        let _ = (len, crypto);
        todo!()
    }

    /// Makes `len` bytes at `at` zeros, as holes where whole chunks are; the length stays.
    ///
    /// # Errors
    /// As [`Content::write`].
    pub fn zero(&self, at: u64, len: u64, crypto: &mut impl Crypto) -> Result<(), Error> {
        let _ = (at, len, crypto);
        todo!()
    }

    /// The first byte at or after `at` that is in a hole (`hole`) or in data; the end counts as a hole. `None` beyond
    /// the end, or where no data follows.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn seek(&self, at: u64, hole: bool, crypto: &mut impl Crypto) -> Result<Option<u64>, Error> {
        let _ = (at, hole, crypto);
        todo!()
    }

    /// Makes everything written so far survive a power cut.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sync(&self, crypto: &mut impl Crypto) -> Result<(), Error> {
        let _ = crypto;
        todo!()
    }
}
