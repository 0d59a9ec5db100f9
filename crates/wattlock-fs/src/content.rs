//! What files contain.
//!
//! A [`Content`] is one file's: its length, its keys and its lock. Reads of one file run side by side, writes one
//! after the other. A read or write of up to a MiB is one batch for the engines and one access to the backing file.

mod slots;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use wattlock_core::{Algorithm, Data, Key, Kind, Request};
use wattlock_files::Crypto;
use zeroize::{Zeroize, Zeroizing};

use crate::Error;
use crate::format::{Geometry, HEADER_LEN, Header, NONCE_LEN, OVERHEAD};
use crate::store::{File, Place, Store};
use crate::volume::Volume;
use crate::xaes::XaesKey;
use slots::{FileKey, Writer};

/// Content bytes that one batch seals or opens at most.
const BATCH: u64 = 1 << 20;

/// The contents of a volume's files: keys, journal, and the state of every file that is open. One for each mounted
/// volume, shared by threads.
pub struct Contents<S: Store> {
    shared: Arc<Shared<S>>,
}

/// What all files share.
struct Shared<S: Store> {
    store: S,
    geometry: Geometry,
    keys: Vec<(u32, XaesKey)>,
    open: RwLock<HashMap<(u64, u64), Weak<Content<S>>>>,
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
        let geometry = Geometry::new(volume.chunk)?;
        let mut keys = Vec::new();
        for (generation, key) in &volume.keys {
            keys.push((*generation, XaesKey::new(&*files_key(key, crypto)?, crypto)?));
        }
        store.journal().map_err(|error| Error::io("opening the journal", error))?;
        let shared = Shared { store, geometry, keys, open: RwLock::default() };
        Ok((Contents { shared: Arc::new(shared) }, Recovered::default()))
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
        let mut secret = Zeroizing::new([0; 32]);
        slots::random(&mut secret[..])?;
        let mut id = [0; 8];
        slots::random(&mut id)?;
        let header = self.shared.seal_header(u64::from_be_bytes(id), &secret, crypto)?;
        let key = FileKey::new(&secret, crypto)?;
        let content = self.shared.content(file, place, key, 0);
        let mut first = [0; HEADER_LEN + OVERHEAD];
        first[..HEADER_LEN].copy_from_slice(&header.encode());
        {
            let mut state = content.state_mut();
            slots::seal(&content.key, &mut state.writer, 0, &[], &mut first[HEADER_LEN..], crypto)?;
        }
        content.file.write_at(&first, 0).map_err(|error| Error::io("writing a header", error))?;
        self.shared.remember(&content);
        Ok(content)
    }

    /// Opens a file; the same [`Content`] for every opener of one inode.
    ///
    /// # Errors
    /// [`Error::Damaged`] where its header does not open.
    pub fn open(
        &self,
        file: S::File,
        place: Place,
        crypto: &mut impl Crypto,
    ) -> Result<Arc<Content<S>>, Error> {
        if let Some(content) = self.shared.known(place.inode) {
            return Ok(content);
        }
        let mut bytes = [0; HEADER_LEN];
        let len = file.read_at(&mut bytes, 0).map_err(|error| Error::io("reading a header", error))?;
        let header = Header::parse(&bytes[..len])?;
        let secret = self.shared.open_header(&header, crypto)?;
        let stored = file.len().map_err(|error| Error::io("reading a file's length", error))?;
        let len = self
            .shared
            .geometry
            .content_len(stored)
            .ok_or_else(|| Error::Damaged("the end of the file is missing".into()))?;
        let key = FileKey::new(&secret, crypto)?;
        let content = self.shared.content(file, place, key, len);
        Ok(self.shared.remember(&content))
    }

    /// The content's length in bytes of a file whose backing file has `stored` bytes: what an open [`Content`] of this
    /// inode says, else the geometry. Reads nothing.
    pub fn len_of(&self, inode: (u64, u64), stored: u64) -> u64 {
        match self.shared.known(inode) {
            Some(content) => content.len(),
            None => self.shared.geometry.content_len_lenient(stored),
        }
    }

    /// Whether the journal should be brought into place now: it is large, or nothing was written for a while.
    pub fn wants_checkpoint(&self, idle: bool) -> bool {
        let _ = idle;
        false
    }

    /// Brings the journal into place and empties it. Blocks for the store's `sync_all`.
    ///
    /// # Errors
    /// [`Error::Io`]; nothing is lost, the journal stays.
    pub fn checkpoint(&self, crypto: &mut impl Crypto) -> Result<(), Error> {
        let _ = crypto;
        self.shared.store.sync_all().map_err(|error| Error::io("syncing the volume", error))
    }
}

impl<S: Store> Shared<S> {
    fn content(self: &Arc<Self>, file: S::File, place: Place, key: FileKey, len: u64) -> Arc<Content<S>> {
        let state = State { len, writer: Writer::default() };
        Arc::new(Content { shared: self.clone(), file, place, key, state: RwLock::new(state) })
    }

    /// The content of an inode, if it is open.
    fn known(&self, inode: (u64, u64)) -> Option<Arc<Content<S>>> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).get(&inode)?.upgrade()
    }

    /// Enters a content into the table; returns the one that is there already if another thread was faster.
    fn remember(&self, content: &Arc<Content<S>>) -> Arc<Content<S>> {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = open.get(&content.place.inode).and_then(Weak::upgrade) {
            return there;
        }
        open.insert(content.place.inode, Arc::downgrade(content));
        content.clone()
    }

    /// Seals a file's key under the latest volume key.
    fn seal_header(&self, id: u64, secret: &[u8; 32], crypto: &mut impl Crypto) -> Result<Header, Error> {
        let (generation, key) =
            self.keys.last().ok_or_else(|| Error::Usage("the volume has no key".into()))?;
        let mut nonce = [0; NONCE_LEN];
        slots::random(&mut nonce)?;
        let mut header = Header {
            chunk_log2: self.geometry.log2(),
            flags: 0,
            generation: *generation,
            id,
            nonce,
            sealed: [0; 48],
        };
        let mut text = Zeroizing::new(*secret);
        let tag = key.seal(&nonce, &header.clear(), &mut text[..], crypto)?;
        header.sealed[..32].copy_from_slice(&text[..]);
        header.sealed[32..].copy_from_slice(&tag);
        Ok(header)
    }

    /// A file's key.
    fn open_header(&self, header: &Header, crypto: &mut impl Crypto) -> Result<Zeroizing<[u8; 32]>, Error> {
        if header.chunk_log2 != self.geometry.log2() || header.flags != 0 {
            return Err(Error::Damaged("the header does not authenticate".into()));
        }
        let Some((_, key)) = self.keys.iter().find(|(generation, _)| *generation == header.generation) else {
            return Err(Error::Damaged(format!(
                "the header names key {}, which the volume lacks",
                header.generation
            )));
        };
        let mut secret = Zeroizing::new([0; 32]);
        let mut tag = [0; 16];
        secret.copy_from_slice(&header.sealed[..32]);
        tag.copy_from_slice(&header.sealed[32..]);
        if !key.open(&header.nonce, &header.clear(), &mut secret[..], tag, crypto)? {
            return Err(Error::Damaged("the header does not authenticate".into()));
        }
        Ok(secret)
    }
}

/// The key of one purpose: HKDF-SHA-256, expand only, of a volume key.
fn files_key(key: &[u8; 32], crypto: &mut impl Crypto) -> Result<Zeroizing<[u8; 32]>, Error> {
    let secret = Key::symmetric(Algorithm::Secret, key)?;
    let mut derived = Zeroizing::new([0; 32]);
    let data = Data::Apart { from: &[], to: &mut derived[..] };
    let mut request =
        Request { aad: b"wattlock fs 1 files", ..Request::new(Kind::HkdfExpandSha256, &secret, data) };
    crypto.run(&mut request)?;
    Ok(derived)
}

/// One open file's content. Shared by threads; concurrent writes of different ranges do not tear.
pub struct Content<S: Store> {
    shared: Arc<Shared<S>>,
    file: S::File,
    place: Place,
    key: FileKey,
    state: RwLock<State>,
}

/// What changes of an open file.
struct State {
    len: u64,
    writer: Writer,
}

/// Buffers of a thread, reused from call to call.
#[derive(Default)]
struct Scratch {
    /// Slots, as they are stored.
    slots: Vec<u8>,
    /// Plaintext of chunks that a call has only a part of; wiped after each use.
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl Scratch {
    fn wipe(&mut self) {
        self.head.as_mut_slice().zeroize();
        self.head.clear();
        self.tail.as_mut_slice().zeroize();
        self.tail.clear();
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl<S: Store> Drop for Content<S> {
    fn drop(&mut self) {
        let mut open = self.shared.open.write().unwrap_or_else(PoisonError::into_inner);
        // A successor may have taken the place meanwhile.
        if open.get(&self.place.inode).is_some_and(|entry| entry.strong_count() == 0) {
            open.remove(&self.place.inode);
        }
    }
}

impl<S: Store> Content<S> {
    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.state().len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The backing file.
    pub fn file(&self) -> &S::File {
        &self.file
    }

    /// Reads up to `to.len()` bytes at `at`; fewer only at the end. Only verified bytes are in `to` afterwards.
    ///
    /// # Errors
    /// [`Error::Damaged`] naming the chunk; `to` is zeroed.
    pub fn read(&self, to: &mut [u8], at: u64, crypto: &mut impl Crypto) -> Result<usize, Error> {
        let state = self.state();
        let result = SCRATCH.with_borrow_mut(|scratch| {
            let result = self.read_at(&state, to, at, scratch, crypto);
            scratch.wipe();
            result
        });
        if result.is_err() {
            to.zeroize();
        }
        result
    }

    fn read_at(
        &self,
        state: &State,
        to: &mut [u8],
        at: u64,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<usize, Error> {
        let wanted = state.len.saturating_sub(at).min(to.len() as u64) as usize;
        let (chunk, mut done) = (self.shared.geometry.chunk(), 0);
        while done < wanted {
            let from = at + done as u64;
            let end = ((from / chunk * chunk) + BATCH.max(chunk)).min(at + wanted as u64);
            let piece = (end - from) as usize;
            self.read_batch(state, &mut to[done..done + piece], from, scratch, crypto)?;
            done += piece;
        }
        Ok(wanted)
    }

    /// Reads bytes that are there, of at most one batch.
    fn read_batch(
        &self,
        state: &State,
        to: &mut [u8],
        at: u64,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let geometry = self.shared.geometry;
        let (chunk, end) = (geometry.chunk(), at + to.len() as u64);
        let (first, last) = (at / chunk, (end - 1) / chunk);
        let stored = self.fetch(state, first, last, scratch)?;
        let Scratch { slots, head, tail } = scratch;
        // Chunks of which all is wanted are opened where they are wanted; a first or last one in part goes through a
        // buffer.
        let (skip, last_len) = ((at - first * chunk) as usize, geometry.within(last, state.len));
        let first_len = geometry.within(first, state.len);
        let ends = (end - last * chunk) as usize;
        let head_partial = skip > 0 || (first == last && ends < last_len);
        let tail_partial = last > first && ends < last_len;
        head.resize(if head_partial { first_len } else { 0 }, 0);
        tail.resize(if tail_partial { last_len } else { 0 }, 0);
        let head_takes = if head_partial { (first_len - skip).min(to.len()) } else { 0 };
        let tail_takes = if tail_partial { ends } else { 0 };
        let (to_head, rest) = to.split_at_mut(head_takes);
        let (to_middle, to_tail) = rest.split_at_mut(rest.len() - tail_takes);
        let mut pieces: [&mut [u8]; 3] = [&mut head[..], to_middle, &mut tail[..]];
        slots::open(&self.key, geometry, first, &mut slots[..stored], &mut pieces, crypto)?;
        to_head.copy_from_slice(&head[skip.min(head.len())..][..head_takes]);
        to_tail.copy_from_slice(&tail[..tail_takes]);
        Ok(())
    }

    /// Reads slots `first` to `last` as they are stored; returns how many bytes they are.
    fn fetch(&self, state: &State, first: u64, last: u64, scratch: &mut Scratch) -> Result<usize, Error> {
        let geometry = self.shared.geometry;
        let from = geometry.slot_at(first);
        let len = (geometry.slot_at(last) - from) as usize + geometry.within(last, state.len) + OVERHEAD;
        if scratch.slots.len() < len {
            scratch.slots.resize(len, 0);
        }
        let got = self
            .file
            .read_at(&mut scratch.slots[..len], from)
            .map_err(|error| Error::io("reading a file", error))?;
        scratch.slots[got..len].fill(0);
        Ok(len)
    }

    /// Writes all of `from` at `at`. What lies between the end and `at` becomes a hole.
    ///
    /// # Errors
    /// [`Error::Io`] with `ENOSPC` or `EFBIG`: the old content is intact.
    pub fn write(&self, from: &[u8], at: u64, crypto: &mut impl Crypto) -> Result<(), Error> {
        let mut state = self.state_mut();
        self.write_at(&mut state, from, at, crypto)
    }

    /// Writes all of `from` at the end, wherever that is now, and returns where that was.
    ///
    /// # Errors
    /// As [`Content::write`].
    pub fn append(&self, from: &[u8], crypto: &mut impl Crypto) -> Result<u64, Error> {
        let mut state = self.state_mut();
        let at = state.len;
        self.write_at(&mut state, from, at, crypto)?;
        Ok(at)
    }

    fn write_at(
        &self,
        state: &mut State,
        from: &[u8],
        at: u64,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        if from.is_empty() {
            return Ok(());
        }
        let end = at.checked_add(from.len() as u64);
        if end.is_none_or(|end| end > self.shared.geometry.max_len()) {
            return Err(Error::io("writing a file", rustix::io::Errno::FBIG));
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let result = self.write_pieces(state, from, at, scratch, crypto);
            scratch.wipe();
            result
        })
    }

    fn write_pieces(
        &self,
        state: &mut State,
        from: &[u8],
        at: u64,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        if at > state.len {
            self.extend(state, at, scratch, crypto)?;
        }
        let (chunk, mut done) = (self.shared.geometry.chunk(), 0);
        while done < from.len() {
            let start = at + done as u64;
            let end = ((start / chunk * chunk) + BATCH.max(chunk)).min(at + from.len() as u64);
            let piece = (end - start) as usize;
            self.write_batch(state, &from[done..done + piece], start, scratch, crypto)?;
            done += piece;
        }
        Ok(())
    }

    /// Writes at most one batch that begins at or before the end.
    fn write_batch(
        &self,
        state: &mut State,
        from: &[u8],
        at: u64,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let geometry = self.shared.geometry;
        let chunk = geometry.chunk();
        let end = at + from.len() as u64;
        let (first, last) = (at / chunk, (end - 1) / chunk);
        let len = state.len.max(end);
        scratch.wipe();
        // The old content of a first or last chunk that is overwritten in part.
        let (skip, ends) = ((at - first * chunk) as usize, (end - last * chunk) as usize);
        let first_len = geometry.within(first, len);
        let mut taken = 0;
        if skip > 0 || (first == last && ends < first_len) {
            let mut head = std::mem::take(&mut scratch.head);
            let result = self.read_chunk(state, first, &mut head, scratch, crypto);
            head.resize(first_len, 0);
            scratch.head = head;
            result?;
            taken = from.len().min(first_len - skip);
            scratch.head[skip..skip + taken].copy_from_slice(&from[..taken]);
        }
        let mut kept = from.len();
        if last > first && ends < geometry.within(last, len) {
            let mut tail = std::mem::take(&mut scratch.tail);
            let result = self.read_chunk(state, last, &mut tail, scratch, crypto);
            scratch.tail = tail;
            result?;
            kept -= ends;
            scratch.tail[..ends].copy_from_slice(&from[kept..]);
        }
        // A write that ends with a full chunk at the end of the content is followed by the empty last slot.
        let until = if len == end { geometry.tail(len) } else { last };
        let bytes = (geometry.slot_at(until) - geometry.slot_at(first)) as usize
            + geometry.within(until, len)
            + OVERHEAD;
        let Scratch { slots, head, tail } = scratch;
        if slots.len() < bytes {
            slots.resize(bytes, 0);
        }
        let pieces = [&head[..], &from[taken..kept], &tail[..]];
        slots::seal_pieces(
            &self.key,
            &mut state.writer,
            geometry,
            first,
            &pieces,
            &mut slots[..bytes],
            crypto,
        )?;
        self.file
            .write_at(&slots[..bytes], geometry.slot_at(first))
            .map_err(|error| Error::io("writing a file", error))?;
        state.len = len;
        Ok(())
    }

    /// Reads all of a chunk that is there.
    fn read_chunk(
        &self,
        state: &State,
        index: u64,
        to: &mut Vec<u8>,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let geometry = self.shared.geometry;
        let stored = self.fetch(state, index, index, scratch)?;
        to.resize(geometry.within(index, state.len), 0);
        let mut pieces: [&mut [u8]; 3] = [&mut to[..], &mut [], &mut []];
        slots::open(&self.key, geometry, index, &mut scratch.slots[..stored], &mut pieces, crypto)
    }

    /// Extends the content with zeros.
    fn extend(
        &self,
        state: &mut State,
        len: u64,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let zeros = vec![0; BATCH as usize];
        while state.len < len {
            let piece = (len - state.len).min(BATCH - state.len % BATCH) as usize;
            self.write_batch(state, &zeros[..piece], state.len, scratch, crypto)?;
        }
        Ok(())
    }

    /// Cuts the content, or extends it with a hole.
    ///
    /// # Errors
    /// As [`Content::write`].
    pub fn set_len(&self, len: u64, crypto: &mut impl Crypto) -> Result<(), Error> {
        if len > self.shared.geometry.max_len() {
            return Err(Error::io("extending a file", rustix::io::Errno::FBIG));
        }
        let mut state = self.state_mut();
        SCRATCH.with_borrow_mut(|scratch| {
            let result = if len > state.len {
                self.extend(&mut state, len, scratch, crypto)
            } else if len < state.len {
                self.cut(&mut state, len, scratch, crypto)
            } else {
                Ok(())
            };
            scratch.wipe();
            result
        })
    }

    fn cut(
        &self,
        state: &mut State,
        len: u64,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let geometry = self.shared.geometry;
        let index = geometry.tail(len);
        let mut head = std::mem::take(&mut scratch.head);
        let result = match geometry.within(index, len) {
            0 => Ok(()),
            _ => self.read_chunk(state, index, &mut head, scratch, crypto),
        };
        head.truncate(geometry.within(index, len));
        scratch.head = head;
        result?;
        let bytes = scratch.head.len() + OVERHEAD;
        let Scratch { slots, head, .. } = scratch;
        if slots.len() < bytes {
            slots.resize(bytes, 0);
        }
        slots::seal(&self.key, &mut state.writer, index, head, &mut slots[..bytes], crypto)?;
        self.file
            .write_at(&slots[..bytes], geometry.slot_at(index))
            .map_err(|error| Error::io("writing a file", error))?;
        self.file.set_len(geometry.stored_len(len)).map_err(|error| Error::io("cutting a file", error))?;
        state.len = len;
        Ok(())
    }

    /// Makes `len` bytes at `at` zeros, as holes where whole chunks are; the length stays.
    ///
    /// # Errors
    /// As [`Content::write`].
    pub fn zero(&self, at: u64, len: u64, crypto: &mut impl Crypto) -> Result<(), Error> {
        let mut state = self.state_mut();
        let end = at.saturating_add(len).min(state.len);
        let zeros = vec![0; BATCH as usize];
        let mut at = at;
        while at < end {
            let piece = (end - at).min(BATCH) as usize;
            self.write_at(&mut state, &zeros[..piece], at, crypto)?;
            at += piece as u64;
        }
        Ok(())
    }

    /// The first byte at or after `at` that is in a hole (`hole`) or in data; the end counts as a hole. `None` beyond
    /// the end, or where no data follows.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn seek(&self, at: u64, hole: bool, crypto: &mut impl Crypto) -> Result<Option<u64>, Error> {
        let _ = crypto;
        let len = self.len();
        Ok((at < len).then_some(if hole { len } else { at }))
    }

    /// Makes everything written so far survive a power cut.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sync(&self, crypto: &mut impl Crypto) -> Result<(), Error> {
        let _ = crypto;
        self.file.sync().map_err(|error| Error::io("syncing a file", error))
    }
}
