//! What files contain.
//!
//! A [`Content`] is one file's: its length, its keys and its lock. Reads of one file run side by side, writes one
//! after the other. A read or write of up to a MiB is one batch for the engines and one access to the backing file.
//!
//! Rules that keep what was acknowledged through SIGKILL and power cuts:
//! - J1: a slot with committed bytes is never overwritten before its replacement is durable in the journal.
//! - J2: slots behind the committed end are written in place. Before the first of them the journal durably knows where
//!   that end is, unless the file is new: then its id, from a range that the journal knows, says that nothing is
//!   committed. Slots that were cut are durably gone by then, if a sync has acknowledged something else: they would open.
//! - J3: a sync makes the file durable if anything was written in place, and the journal.
//! - J4: a checkpoint copies replacements into place, syncs everything, and empties the journal.
//! - J5: recovery repeats that, and cuts what was never synced where its slots stop being whole. It may crash and be
//!   repeated at any point.
//!
//! Locks, in this order: files being made, the epoch (shared by everything that writes, exclusive for a checkpoint), a
//! file's state, the table of files, the journal.

mod overlay;
mod recovery;
pub(crate) mod slots;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use wattlock_core::sync::{lock, read, write};
use wattlock_core::{Algorithm, Data, Key, Kind, Request};
use wattlock_door::Crypto;
use zeroize::{Zeroize, Zeroizing};

use crate::Error;
use crate::format::{Geometry, HEADER_LEN, HOLE_LEN, Header, NONCE_LEN, OVERHEAD, SPARSE, SlotKind};
use crate::journal::{Journal, Op, Ops, RANGES, RECORD_HEAD};
use crate::store::{File, JOURNAL, Place, Store};
use crate::volume::Volume;
use crate::xaes::XaesKey;
use overlay::{Overlay, Piece, ancestors, runs};
use slots::{FileKey, Writer};

/// Content bytes that one batch seals or opens at most, and one chunk: a MiB at any place is one batch.
const BATCH: u64 = 1 << 20;
/// File ids in a range that new files of one epoch take theirs from.
const RANGE: u64 = 1 << 20;
/// Growth of a file that goes through the journal, in bytes between two syncs: one sync of the journal then makes an
/// appended line durable. More is written in place, once.
const SMALL_GROWTH: u64 = 1 << 16;
/// The disk's own failure.
const EIO: i32 = 5;
/// Gaps shorter than this are filled with zeros.
const LEAST_HOLE: u64 = 1 << 16;
/// Bytes of journal above which a checkpoint is wanted.
const JOURNAL_WANTED: u64 = 1 << 28;
/// Files that the journal replaces slots of, above which a checkpoint is wanted: each keeps a descriptor.
const PINNED_WANTED: usize = 256;
/// Inodes that are remembered as looked at after an unclean end.
const SOUND_MAX: usize = 1 << 16;
/// Where a writer does not wait for the caller's checkpoint any longer.
const JOURNAL_MOST: u64 = 1 << 30;
const PINNED_MOST: usize = 768;
/// Files that the journal names, above which a checkpoint is wanted.
const FILES_WANTED: usize = 1 << 16;

/// The contents of a volume's files: keys, journal, and the state of every file that is open. One for each mounted
/// volume, shared by threads.
pub struct Contents<S: Store> {
    shared: Arc<Shared<S>>,
}

/// Open files by device and inode number.
type Open<S> = HashMap<(u64, u64), Weak<Content<S>>>;

/// A content, and its first and last chunk that are lost.
type Lost<S> = (Arc<Content<S>>, (u64, u64));

/// What all files share.
struct Shared<S: Store> {
    store: S,
    geometry: Geometry,
    keys: Vec<(u32, XaesKey)>,
    journal: Journal<S::File>,
    /// Shared by the maker of a file, from before its backing file is there; exclusive for a checkpoint.
    creating: RwLock<()>,
    /// Shared by everything that writes; exclusive for a checkpoint.
    epoch: RwLock<()>,
    open: RwLock<Open<S>>,
    /// Contents that the journal replaces slots of: they stay until the next checkpoint.
    pinned: Mutex<Vec<Arc<Content<S>>>>,
    /// Contents with chunks that are lost: they stay until they are whole again or removed.
    lost: Mutex<Vec<Arc<Content<S>>>>,
    files: Mutex<Files>,
    /// First ids of ranges of epochs that did not end well: files with such an id are looked through when opened.
    unclean: RwLock<Vec<u64>>,
    /// Held while a file may be mended, so that it is mended once.
    mending: Mutex<()>,
    /// Inodes that were looked at since then: what their length says is true.
    sound: Mutex<HashSet<(u64, u64)>>,
    /// Inodes of files that were being mended when a disk refused: what memory has of them the disk may not have.
    half_mended: Mutex<HashSet<(u64, u64)>>,
    /// `unclean` became shorter, and the journal does not say so yet.
    forgot: AtomicBool,
    /// Renames going on that may hide a torn file from a thread that looks for it, and how many there were.
    moving: AtomicU64,
    moved: AtomicU64,
    lines: Mutex<Vec<String>>,
}

/// What the journal knows of files in this epoch.
#[derive(Default)]
struct Files {
    /// By file id: number in the journal, and committed length.
    known: HashMap<u64, (u32, u64)>,
    numbers: u32,
    /// Ranges for new files, and how many ids of the last were given away.
    ranges: Vec<u64>,
    given: u64,
}

/// As long as this lives no epoch ends: see [`Contents::before_create`].
pub struct Creating<'a> {
    _no_checkpoint: RwLockReadGuard<'a, ()>,
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
    /// [`Error::Damaged`] for a journal that is neither whole nor torn at its end; nothing was changed then.
    pub fn start(
        store: S,
        volume: &Volume,
        crypto: &mut impl Crypto,
    ) -> Result<(Contents<S>, Recovered), Error> {
        Contents::start_until(store, volume, &|| false, crypto)
    }

    /// As [`Contents::start`], until `stop` says so: the journal stays then as it is, and the next start begins again.
    ///
    /// # Errors
    /// As [`Contents::start`]; [`wattlock_door::Error::Interrupted`].
    pub fn start_until(
        store: S,
        volume: &Volume,
        stop: &dyn Fn() -> bool,
        crypto: &mut impl Crypto,
    ) -> Result<(Contents<S>, Recovered), Error> {
        let geometry = Geometry::new(volume.chunk)?;
        let (mut keys, mut secrets) = (Vec::new(), Vec::new());
        for (generation, key) in &volume.keys {
            keys.push((*generation, XaesKey::new(&*purpose(key, b"files", crypto)?, crypto)?));
            let secret = purpose(key, b"journal", crypto)?;
            secrets.push((*generation, Key::symmetric(Algorithm::Secret, &secret[..])?));
        }
        let file = store.journal().map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => Error::InUse,
            std::io::ErrorKind::InvalidData => Error::Damaged(format!("{JOURNAL} is {error}")),
            _ => journal_refused(error),
        })?;
        let (journal, found) = Journal::open(file, secrets, stop, crypto)?;
        let shared = Arc::new(Shared {
            store,
            geometry,
            keys,
            journal,
            creating: RwLock::default(),
            epoch: RwLock::default(),
            open: RwLock::default(),
            pinned: Mutex::default(),
            lost: Mutex::default(),
            files: Mutex::default(),
            unclean: RwLock::default(),
            mending: Mutex::default(),
            sound: Mutex::default(),
            half_mended: Mutex::default(),
            forgot: AtomicBool::new(false),
            moving: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            lines: Mutex::default(),
        });
        let lines = shared.recover(found, stop, crypto)?;
        Ok((Contents { shared }, Recovered { lines }))
    }

    /// To be called before a new file's backing file is made, and kept until [`Contents::create`] has returned. The
    /// journal then durably knows of new files in this epoch, so that a backing file whose name survives a power cut
    /// and whose header does not is taken for a file that was empty, not for one that is damaged. Waits for a
    /// checkpoint; the caller must not call for one meanwhile.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn before_create(&self, crypto: &mut impl Crypto) -> Result<Creating<'_>, Error> {
        let shared = &self.shared;
        shared.relieve(crypto)?;
        let creating = Creating { _no_checkpoint: read(&shared.creating) };
        let _epoch = read(&shared.epoch);
        shared.range(&mut lock(&shared.files), crypto)?;
        Ok(creating)
    }

    /// Makes an empty file of a new, empty backing file. What a power cut leaves of that file if
    /// [`Contents::before_create`] was not called is an error when it is opened.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn create(
        &self,
        file: S::File,
        place: Place,
        crypto: &mut impl Crypto,
    ) -> Result<Arc<Content<S>>, Error> {
        let shared = &self.shared;
        let _epoch = read(&shared.epoch);
        let (id, reserved) = match shared.reserved_id(crypto)? {
            Some(id) => (id, true),
            None => (shared.outside_ranges()?, false),
        };
        let (key, first) = shared.empty_file(id, crypto)?;
        file.write_at(&first, 0).map_err(|error| Error::io("writing a header", error))?;
        if !reserved {
            // Like a file of an earlier epoch: it is whole, and the journal knows it before it grows.
            file.sync().map_err(|error| Error::io("writing a header", error))?;
        }
        let state = State { reserved, wrote: reserved, physical: first.len() as u64, ..State::new(file, id) };
        shared.remember(place.inode, || Ok(shared.content(place, key, state)))
    }

    /// Opens a file; the same [`Content`] for every opener of one inode. Where an earlier opener's backing file is not
    /// writable and this one is, this one is used from now on.
    ///
    /// # Errors
    /// [`Error::Damaged`] where its header does not open.
    pub fn open(
        &self,
        file: S::File,
        place: Place,
        crypto: &mut impl Crypto,
    ) -> Result<Arc<Content<S>>, Error> {
        let _epoch = read(&self.shared.epoch);
        self.shared.open(file, place, crypto)
    }

    /// The content's length in bytes of a file whose backing file has `stored` bytes: what an open [`Content`] of this
    /// inode says, else the geometry. Reads nothing.
    pub fn len_of(&self, inode: (u64, u64), stored: u64) -> u64 {
        match self.shared.known(inode) {
            Some(content) => content.len(),
            None => self.shared.geometry.content_len_lenient(stored),
        }
    }

    /// Whether [`Contents::len_of`] tells the content's length of an inode that is not open. After an unclean end it
    /// does so of files that were opened since; opening any other mends it, if it is torn.
    pub fn is_sound(&self, inode: (u64, u64)) -> bool {
        read(&self.shared.unclean).is_empty() || lock(&self.shared.sound).contains(&inode)
    }

    /// Whether files may be torn that were not opened since an unclean end.
    pub fn may_be_torn(&self) -> bool {
        !read(&self.shared.unclean).is_empty()
    }

    /// Opens every file once and so mends what is torn, after which there is nothing more to look for. `stop` is asked
    /// after each; says whether every file was seen. What was not is looked for by the next start, and
    /// [`Contents::take_lines`] says why. `alone` says that no program gives files and folders other names but through
    /// [`Contents::while_moving`]; else the next start looks again. Blocks no caller for longer than one file takes.
    ///
    /// # Errors
    /// [`Error::Engine`]. What is damaged is left as it is.
    pub fn look_through(
        &self,
        alone: bool,
        stop: &dyn Fn() -> bool,
        crypto: &mut impl Crypto,
    ) -> Result<bool, Error> {
        let shared = &self.shared;
        let done = !self.may_be_torn() || shared.look_through(alone, stop, crypto)?;
        if done && self.may_be_torn() {
            // Counts with the next checkpoint.
            write(&shared.unclean).clear();
            lock(&shared.sound).clear();
            shared.forgot.store(true, Ordering::SeqCst);
        }
        Ok(done)
    }

    /// Does something that gives inodes other names; `None` for a folder. [`Contents::look_through`] hears of it, unless
    /// all of them are files that were opened since the start: those are mended.
    pub fn while_moving<T>(&self, inodes: &[Option<(u64, u64)>], work: impl FnOnce() -> T) -> T {
        let shared = &self.shared;
        let mended = |inode: &Option<(u64, u64)>| {
            inode.is_some_and(|inode| lock(&shared.sound).contains(&inode) || shared.known(inode).is_some())
        };
        if !self.may_be_torn() || inodes.iter().all(mended) {
            return work();
        }
        shared.moving.fetch_add(1, Ordering::SeqCst);
        let done = work();
        shared.moved.fetch_add(1, Ordering::SeqCst);
        shared.moving.fetch_sub(1, Ordering::SeqCst);
        done
    }

    /// Does something that sets times of an inode: a checkpoint, which puts times back, comes before or after it.
    pub fn with_times<T>(&self, inode: (u64, u64), work: impl FnOnce() -> T) -> T {
        let shared = &self.shared;
        let _mending = self.may_be_torn().then(|| lock(&shared.mending));
        let open = read(&shared.open);
        match open.get(&inode).and_then(Weak::upgrade) {
            Some(content) => {
                drop(open);
                let _state = content.state_mut();
                work()
            }
            // Whoever opens it now waits until this is done.
            None => work(),
        }
    }

    /// Whether the journal should be brought into place now: it is large, or nothing was written for a while.
    pub fn wants_checkpoint(&self, idle: bool) -> bool {
        let (used, pinned) = (self.shared.journal.used(), lock(&self.shared.pinned).len());
        let files = lock(&self.shared.files).known.len();
        let some = used > 0 || pinned > 0 || self.shared.forgot.load(Ordering::SeqCst);
        used > JOURNAL_WANTED || pinned > PINNED_WANTED || files > FILES_WANTED || idle && some
    }

    /// Brings the journal into place and empties it. Blocks for the store's `sync_all`.
    ///
    /// # Errors
    /// [`Error::Io`]; nothing is lost, the journal stays.
    pub fn checkpoint(&self, crypto: &mut impl Crypto) -> Result<(), Error> {
        self.shared.checkpoint(crypto)
    }

    /// Lines for the log that came up since the last call: files that were cut when they were opened.
    pub fn take_lines(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.shared.lines))
    }

    /// Empties the journal and seals both of its heads under the volume's newest key, after which no older key opens
    /// anything of it.
    ///
    /// # Errors
    /// As [`Contents::checkpoint`].
    pub fn rekey_journal(&self, crypto: &mut impl Crypto) -> Result<(), Error> {
        let shared = &self.shared;
        // Most of it before anybody has to wait.
        shared.checkpoint(crypto)?;
        let _creating = write(&shared.creating);
        let _epoch = write(&shared.epoch);
        shared.bring_into_place(crypto)?;
        let unclean = read(&shared.unclean);
        shared.journal.reset(&unclean, crypto)
    }
}

impl<S: Store> Drop for Contents<S> {
    fn drop(&mut self) {
        // Contents that the journal replaces slots of hold what is shared, and it them.
        let pinned = std::mem::take(&mut *lock(&self.shared.pinned));
        let lost = std::mem::take(&mut *lock(&self.shared.lost));
        drop((pinned, lost));
    }
}

/// Why there is no journal to write, with what helps.
fn journal_refused(error: std::io::Error) -> Error {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    let why = match error.kind() {
        ReadOnlyFilesystem => {
            "the volume's folder is on a read-only file system, and its journal is written even to read: remount that \
             file system writable, or copy the volume"
        }
        PermissionDenied => {
            "this user may not write the volume's wattlock.journal: only its owner opens the volume"
        }
        _ => return Error::io("opening the journal", error),
    };
    Error::io("opening the journal", std::io::Error::new(error.kind(), format!("{error}: {why}")))
}

impl<S: Store> Shared<S> {
    fn content(self: &Arc<Self>, place: Place, key: FileKey, state: State<S::File>) -> Arc<Content<S>> {
        Arc::new_cyclic(|this| Content {
            this: this.clone(),
            shared: self.clone(),
            place,
            key,
            state: RwLock::new(state),
            syncing: Mutex::default(),
        })
    }

    /// Slots that `committed` bytes have which must not be overwritten. An empty content's slot says nothing.
    fn slots(&self, committed: u64) -> u64 {
        if committed == 0 { 0 } else { self.geometry.tail(committed) + 1 }
    }

    /// The content of an inode, if it is open.
    fn known(&self, inode: (u64, u64)) -> Option<Arc<Content<S>>> {
        read(&self.open).get(&inode)?.upgrade()
    }

    /// Enters a content into the table; returns the one that is there already if another thread was faster.
    fn remember(
        &self,
        inode: (u64, u64),
        content: impl FnOnce() -> Result<Arc<Content<S>>, Error>,
    ) -> Result<Arc<Content<S>>, Error> {
        let mut open = write(&self.open);
        if let Some(there) = open.get(&inode).and_then(Weak::upgrade) {
            return Ok(there);
        }
        let content = content()?;
        open.insert(inode, Arc::downgrade(&content));
        Ok(content)
    }

    /// See [`Contents::open`]. The caller holds the epoch.
    fn open(
        self: &Arc<Self>,
        file: S::File,
        place: Place,
        crypto: &mut impl Crypto,
    ) -> Result<Arc<Content<S>>, Error> {
        let shared = self;
        let unclean = !read(&shared.unclean).is_empty();
        let _mending = unclean.then(|| lock(&shared.mending));
        if let Some(content) = shared.known(place.inode) {
            if file.writable() && !content.state().file.writable() {
                content.state_mut().file = Arc::new(file);
            }
            return Ok(content);
        }
        if unclean && lock(&shared.half_mended).contains(&place.inode) {
            shared.mend_again(&file)?;
            lock(&shared.half_mended).remove(&place.inode);
        }
        let refused = |error| {
            lock(&shared.half_mended).insert(place.inode);
            error
        };
        let mut bytes = [0; HEADER_LEN];
        let got = file.read_at(&mut bytes, 0).map_err(|error| Error::io("reading a header", error))?;
        let nothing = bytes.iter().all(|byte| *byte == 0) || got < HEADER_LEN;
        if nothing && unclean {
            // Its header was never durable, so nothing of it was.
            shared.make_empty(&file, &place, crypto).map_err(refused)?;
            file.read_at(&mut bytes, 0).map_err(|error| Error::io("reading a header", error))?;
        } else if got < HEADER_LEN {
            return Err(Error::Damaged("the header is cut".into()));
        }
        let mut header = Header::parse(&bytes)?;
        let key = FileKey::new(&*shared.open_header(&header, crypto)?, crypto)?;
        if shared.is_unclean(header.id) {
            header = shared.mend_lazily(&file, &place, header, &key, crypto).map_err(refused)?;
        }
        if unclean {
            let mut sound = lock(&shared.sound);
            if sound.len() >= SOUND_MAX {
                sound.clear();
            }
            sound.insert(place.inode);
        }
        shared.remember(place.inode, || {
            // In here no other thread opens or closes it: what an earlier opener wrote counts.
            let stored = file.len().map_err(|error| Error::io("reading a file's length", error))?;
            let len = shared
                .geometry
                .content_len(stored)
                .ok_or_else(|| Error::Damaged("the end of the file is missing".into()))?;
            let mut state = State {
                len,
                committed: len,
                physical: stored,
                sparse: header.flags & SPARSE != 0,
                ..State::new(file, header.id)
            };
            let files = lock(&shared.files);
            state.reserved = files.ranges.iter().any(|start| header.id.wrapping_sub(*start) < RANGE);
            if let Some((number, committed)) = files.known.get(&header.id) {
                state.number = Some(*number);
                state.committed = *committed;
                // Whether its record is durable is not known any longer; syncing all of them is.
                state.known = u64::MAX;
            } else if state.reserved {
                state.committed = 0;
            }
            drop(files);
            // An earlier opener may have written without syncing.
            state.wrote = state.reserved || state.number.is_some();
            state.floor = shared.slots(state.committed);
            Ok(shared.content(place, key, state))
        })
    }

    /// An id for a new file. `None` where there is no range for it.
    fn reserved_id(&self, crypto: &mut impl Crypto) -> Result<Option<u64>, Error> {
        let mut files = lock(&self.files);
        let Some(start) = self.range(&mut files, crypto)? else { return Ok(None) };
        files.given += 1;
        Ok(Some(start + files.given - 1))
    }

    /// The range that has the next id for a new file. The first of an epoch is made durable in the journal here. `None`
    /// where the head of the journal would have no room for one more range: ranges of files that could not be looked at
    /// since they may have been torn are not forgotten.
    fn range(&self, files: &mut Files, crypto: &mut impl Crypto) -> Result<Option<u64>, Error> {
        // A range that only a head's epoch knows of which may be over is none.
        self.journal.usable()?;
        if let Some(start) = files.ranges.last().copied()
            && files.given < RANGE
        {
            return Ok(Some(start));
        }
        if read(&self.unclean).len() + files.ranges.len() >= RANGES {
            return Ok(None);
        }
        let start = self.outside_ranges()? / RANGE * RANGE;
        let mut ops = Ops::default();
        ops.push(&Op::Range(start));
        let (number, _) = self.journal.append(&mut vec![0; RECORD_HEAD], &ops, crypto)?;
        self.journal.sync(number, crypto)?;
        files.ranges.push(start);
        files.given = 0;
        Ok(Some(start))
    }

    /// A random file id that lies in no range that did not end well.
    fn outside_ranges(&self) -> Result<u64, Error> {
        loop {
            let mut id = [0; 8];
            slots::random(&mut id)?;
            let id = u64::from_be_bytes(id);
            // Far from the end, so that a range never wraps around.
            if id < u64::MAX - 2 * RANGE && !self.is_unclean(id / RANGE * RANGE) {
                return Ok(id);
            }
        }
    }

    fn is_unclean(&self, id: u64) -> bool {
        read(&self.unclean).iter().any(|start| id.wrapping_sub(*start) < RANGE)
    }

    /// A new file's key, and the bytes of an empty file.
    fn empty_file(
        &self,
        id: u64,
        crypto: &mut impl Crypto,
    ) -> Result<(FileKey, [u8; HEADER_LEN + OVERHEAD]), Error> {
        let mut secret = Zeroizing::new([0; 32]);
        slots::random(&mut secret[..])?;
        let header = self.seal_header(id, 0, &secret, crypto)?;
        let key = FileKey::new(&secret, crypto)?;
        let mut bytes = [0; HEADER_LEN + OVERHEAD];
        bytes[..HEADER_LEN].copy_from_slice(&header.encode());
        let to = &mut bytes[HEADER_LEN..];
        slots::seal_one(&key, &mut Writer::default(), (0, SlotKind::Data), &[], to, crypto)?;
        Ok((key, bytes))
    }

    /// Seals a file's key under the latest volume key.
    fn seal_header(
        &self,
        id: u64,
        flags: u16,
        secret: &[u8; 32],
        crypto: &mut impl Crypto,
    ) -> Result<Header, Error> {
        let (generation, key) =
            self.keys.last().ok_or_else(|| Error::Usage("the volume has no key".into()))?;
        let mut nonce = [0; NONCE_LEN];
        slots::random(&mut nonce)?;
        let mut header = Header {
            chunk_log2: self.geometry.log2(),
            flags,
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
        let wrong = || Error::Damaged("the header does not authenticate".into());
        if header.chunk_log2 != self.geometry.log2() || header.flags & !SPARSE != 0 {
            return Err(wrong());
        }
        let Some((_, key)) = self.keys.iter().find(|(generation, _)| *generation == header.generation) else {
            let missing = header.generation;
            return Err(Error::Damaged(format!("the header names key {missing}, which the volume lacks")));
        };
        let mut secret = Zeroizing::new([0; 32]);
        let mut tag = [0; 16];
        secret.copy_from_slice(&header.sealed[..32]);
        tag.copy_from_slice(&header.sealed[32..]);
        if key.open(&header.nonce, &header.clear(), &mut secret[..], tag, crypto)? {
            Ok(secret)
        } else {
            Err(wrong())
        }
    }

    /// Writes the journal's slots of one file into place.
    fn settle(&self, file: &S::File, overlay: &Overlay, header: Option<u64>, len: u64) -> Result<(), Error> {
        let failed = |error| Error::io("bringing the journal into place", error);
        let geometry = self.geometry;
        let times = file.times().map_err(failed)?;
        let mut buffer = Vec::new();
        let mut entries = overlay.iter().peekable();
        while let Some((index, piece)) = entries.next() {
            let at = geometry.slot_at(index);
            if let Some(level) = piece.level {
                let slots = 1_u64 << level;
                file.punch(at, slots.saturating_mul(geometry.stride())).map_err(failed)?;
            }
            let mut bytes = u64::from(piece.len);
            // Slots that are neighbours in both places go together.
            let mut next = index + 1;
            while piece.level.is_none() && bytes < BATCH && bytes == (next - index) * geometry.stride() {
                match entries.peek() {
                    Some((there, more))
                        if *there == next && more.level.is_none() && more.at == piece.at + bytes =>
                    {
                        bytes += u64::from(more.len);
                        next += 1;
                        entries.next();
                    }
                    _ => break,
                }
            }
            buffer.resize(bytes as usize, 0);
            self.journal.read(&mut buffer, piece.at)?;
            file.write_at(&buffer, at).map_err(failed)?;
        }
        if let Some(at) = header {
            buffer.resize(HEADER_LEN, 0);
            self.journal.read(&mut buffer, at)?;
            file.write_at(&buffer, 0).map_err(failed)?;
        }
        let stored = geometry.stored_len(len);
        if file.len().map_err(failed)? != stored {
            file.set_len(stored).map_err(failed)?;
        }
        if let Some(times) = times {
            // Another user's file: its content counts more than its time.
            _ = file.set_times(&times);
        }
        Ok(())
    }

    fn checkpoint(&self, crypto: &mut impl Crypto) -> Result<(), Error> {
        let pinned = !lock(&self.pinned).is_empty();
        if self.journal.used() == 0 && !pinned && !self.forgot.load(Ordering::SeqCst) {
            return Ok(());
        }
        // Most of what is to be synced is synced before anybody has to wait.
        if let Err(error) = self.store.sync_all() {
            return Err(self.doubt(error));
        }
        let _creating = write(&self.creating);
        let _epoch = write(&self.epoch);
        self.bring_into_place(crypto)
    }

    /// Brings the journal into place and empties it. The caller holds what files being made share, and the epoch, alone.
    fn bring_into_place(&self, crypto: &mut impl Crypto) -> Result<(), Error> {
        self.journal.sync_all(crypto)?;
        let open: Vec<Arc<Content<S>>> = read(&self.open).values().filter_map(Weak::upgrade).collect();
        let mut lost = Vec::new();
        for content in &open {
            let mut state = content.state_mut();
            if state.doubt && !state.file.is_removed() {
                // What is lost was never acknowledged, and it must not keep what was from its place.
                let chunks = with_scratch(|scratch| content.write_again(&state, scratch, crypto))?;
                lost.extend(chunks.map(|chunks| (content.clone(), chunks)));
            }
            if state.overlay.is_empty() && state.header.is_none() {
                continue;
            }
            let stored = self.geometry.stored_len(state.len);
            // If it fails half-way the backing file may be as long as that.
            state.physical = state.physical.max(stored);
            self.settle(&state.file, &state.overlay, state.header, state.len)?;
            state.physical = stored;
        }
        if let Err(error) = self.store.sync_all() {
            return Err(self.doubt(error));
        }
        self.forgot.store(false, Ordering::SeqCst);
        if let Err(error) = self.journal.reset(&read(&self.unclean), crypto) {
            self.forgot.store(true, Ordering::SeqCst);
            return Err(error);
        }
        for content in &open {
            let mut state = content.state_mut();
            state.overlay.clear();
            state.header = None;
            state.committed = state.len;
            state.floor = self.slots(state.len);
            (state.number, state.known, state.touched) = (None, 0, 0);
            // `wrote` stays: a write that failed in the background is told to the next sync of that file.
            (state.reserved, state.grown, state.doubt) = (false, 0, false);
            state.cut = Cut::Durable;
        }
        self.journal.shrink();
        {
            let mut files = lock(&self.files);
            *files = Files::default();
        }
        let pinned = std::mem::take(&mut *lock(&self.pinned));
        drop(pinned);
        self.give_up(lost);
        Ok(())
    }

    /// Remembers chunks that are lost, and says so: no sync of such a file acknowledges them.
    fn give_up(&self, contents: Vec<Lost<S>>) {
        for (content, chunks) in &contents {
            let mut state = content.state_mut();
            let earlier = state.lost.unwrap_or(*chunks);
            state.lost = Some((earlier.0.min(chunks.0), earlier.1.max(chunks.1)));
            drop(state);
            let path = String::from_utf8_lossy(&content.place.path);
            let (first, last) = chunks;
            let why = "the disk refused them, and memory has them no longer";
            lock(&self.lines).push(format!("{path}: lost of chunks {first} to {last}: {why}"));
        }
        let mut kept = std::mem::take(&mut *lock(&self.lost));
        kept.extend(contents.into_iter().map(|(content, _)| content));
        let (kept, dropped): (Vec<_>, Vec<_>) = kept.into_iter().partition(|content| {
            let state = content.state();
            state.lost.is_some() && !state.file.is_removed()
        });
        *lock(&self.lost) = kept;
        drop(dropped);
    }

    /// A sync of everything failed: of no file is it known whether what was written is durable, and a next sync would not
    /// say.
    fn doubt(&self, error: std::io::Error) -> Error {
        self.journal.doubt();
        let open: Vec<Arc<Content<S>>> = read(&self.open).values().filter_map(Weak::upgrade).collect();
        for content in &open {
            let mut state = content.state_mut();
            if state.wrote {
                content.in_doubt(&mut state);
            }
        }
        Error::io("syncing the volume", error)
    }

    /// If no caller asks for checkpoints, writers do, long after they are wanted.
    fn relieve(&self, crypto: &mut impl Crypto) -> Result<(), Error> {
        let pinned = lock(&self.pinned).len();
        if self.journal.used() > JOURNAL_MOST || pinned > PINNED_MOST || self.journal.needs_reset() {
            self.checkpoint(crypto)
        } else {
            Ok(())
        }
    }

    /// Does what takes room. Where there is none it is done again, once, behind a checkpoint: on a small disk the journal
    /// may hold what is missing.
    fn in_room<T, C: Crypto>(
        &self,
        crypto: &mut C,
        mut work: impl FnMut(&mut C) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.relieve(crypto)?;
        match work(crypto) {
            Err(error) if is_full(&error) && self.journal.used() > 0 && self.checkpoint(crypto).is_ok() => {
                work(crypto)
            }
            done => done,
        }
    }
}

/// Whether there was no room.
fn is_full(error: &Error) -> bool {
    [rustix::io::Errno::NOSPC, rustix::io::Errno::DQUOT]
        .map(|full| full.raw_os_error())
        .contains(&error.errno())
}

/// The key of one purpose: HKDF-SHA-256, expand only, of a volume key.
fn purpose(key: &[u8; 32], name: &[u8], crypto: &mut impl Crypto) -> Result<Zeroizing<[u8; 32]>, Error> {
    let secret = Key::symmetric(Algorithm::Secret, key)?;
    let mut derived = Zeroizing::new([0; 32]);
    let info = [b"wattlock fs 1 ", name].concat();
    let data = Data::Apart { from: &[], to: &mut derived[..] };
    let mut request = Request { aad: &info, ..Request::new(Kind::HkdfExpandSha256, &secret, data) };
    crypto.run(&mut request)?;
    Ok(derived)
}

/// One open file's content. Shared by threads; concurrent writes of different ranges do not tear.
pub struct Content<S: Store> {
    this: Weak<Content<S>>,
    shared: Arc<Shared<S>>,
    place: Place,
    key: FileKey,
    state: RwLock<State<S::File>>,
    /// Held by a sync: another one must not return before what it waits for is durable.
    syncing: Mutex<()>,
}

/// What changes of an open file.
struct State<F> {
    file: Arc<F>,
    id: u64,
    /// Length of the content.
    len: u64,
    /// Length of the backing file.
    physical: u64,
    writer: Writer,
    /// Slots below this are committed, or about to be: they are replaced through the journal.
    floor: u64,
    /// So many bytes are durable, as the journal says or will say.
    committed: u64,
    /// The journal's record that says so must be durable before anything is written in place.
    known: u64,
    /// The file's number in the journal.
    number: Option<u32>,
    /// Its id says that it is new in this epoch.
    reserved: bool,
    overlay: Overlay,
    /// Where in the journal a new header is.
    header: Option<u64>,
    /// The journal's latest record about this file.
    touched: u64,
    /// Something was written in place since the last sync.
    wrote: bool,
    /// A sync failed: what was written in place may be in memory only, and no later sync would write it or say so.
    doubt: bool,
    /// The first and the last of chunks that are lost: a sync failed, and memory has them no longer.
    lost: Option<(u64, u64)>,
    /// Bytes of growth in the journal since the last sync.
    grown: u64,
    /// How often the content was cut: a sync that began before commits nothing.
    cuts: u64,
    cut: Cut,
    /// The header has the flag: there may be hole records.
    sparse: bool,
}

impl<F> State<F> {
    fn new(file: F, id: u64) -> State<F> {
        State {
            file: Arc::new(file),
            id,
            len: 0,
            physical: 0,
            writer: Writer::default(),
            floor: 0,
            committed: 0,
            known: 0,
            number: None,
            reserved: false,
            overlay: Overlay::default(),
            header: None,
            touched: 0,
            wrote: false,
            doubt: false,
            lost: None,
            grown: 0,
            cuts: 0,
            cut: Cut::Durable,
            sparse: false,
        }
    }
}

/// What became of slots that were cut away and are committed, in the backing file. They open, so that recovery would take
/// them for the file's growth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// They are gone.
    Durable,
    /// The disk may have them still.
    Fresh,
    /// It may, and a sync has acknowledged something else in their place, or that they are gone: they go before anything is
    /// written in place.
    Outdated,
}

/// Buffers of a thread, reused from call to call.
#[derive(Default)]
struct Scratch {
    /// Slots, as they are stored.
    slots: Vec<u8>,
    /// A record for the journal.
    record: Vec<u8>,
    /// Stored bytes that are overwritten in place, until that has succeeded.
    old: Vec<u8>,
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

    /// Room for so many bytes of slots.
    fn room(&mut self, bytes: usize) {
        if self.slots.len() < bytes {
            self.slots.resize(bytes, 0);
        }
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Does something with the thread's buffers and wipes plaintext from them.
fn with_scratch<T>(work: impl FnOnce(&mut Scratch) -> T) -> T {
    SCRATCH.with_borrow_mut(|scratch| {
        let result = work(scratch);
        scratch.wipe();
        result
    })
}

/// What a sync found when it began.
struct Mark {
    len: u64,
    touched: u64,
    cuts: u64,
}

/// A record that is being put together for the journal.
struct Draft {
    ops: Ops,
    number: u32,
}

impl<S: Store> Drop for Content<S> {
    fn drop(&mut self) {
        let mut open = write(&self.shared.open);
        // A successor may have taken the place meanwhile.
        if open.get(&self.place.inode).is_some_and(|entry| entry.strong_count() == 0) {
            open.remove(&self.place.inode);
        }
    }
}

impl<S: Store> Content<S> {
    fn state(&self) -> RwLockReadGuard<'_, State<S::File>> {
        read(&self.state)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State<S::File>> {
        write(&self.state)
    }

    fn geometry(&self) -> Geometry {
        self.shared.geometry
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
    pub fn file(&self) -> Arc<S::File> {
        self.state().file.clone()
    }

    /// Reads up to `to.len()` bytes at `at`; fewer only at the end. Only verified bytes are in `to` afterwards. A read
    /// that reaches the end has verified that it is the end.
    ///
    /// # Errors
    /// [`Error::Damaged`] naming the chunk; `to` is zeroed.
    pub fn read(&self, to: &mut [u8], at: u64, crypto: &mut impl Crypto) -> Result<usize, Error> {
        let state = self.state();
        let result = with_scratch(|scratch| self.read_at(&state, to, at, scratch, crypto));
        if result.is_err() {
            to.zeroize();
        }
        result
    }

    fn read_at(
        &self,
        state: &State<S::File>,
        to: &mut [u8],
        at: u64,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<usize, Error> {
        let wanted = state.len.saturating_sub(at).min(to.len() as u64) as usize;
        if wanted == 0 {
            if at == state.len && !to.is_empty() && at.is_multiple_of(self.geometry().chunk()) {
                self.read_chunk(state, self.geometry().tail(at), &mut Vec::new(), scratch, crypto)?;
            }
            return Ok(0);
        }
        let (chunk, mut done) = (self.geometry().chunk(), 0);
        while done < wanted {
            let from = at + done as u64;
            let end = (from / chunk * chunk + BATCH + chunk).min(at + wanted as u64);
            let piece = (end - from) as usize;
            self.read_batch(state, &mut to[done..done + piece], from, scratch, crypto)?;
            done += piece;
        }
        Ok(wanted)
    }

    /// Reads bytes that are there, of at most one batch.
    fn read_batch(
        &self,
        state: &State<S::File>,
        to: &mut [u8],
        at: u64,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let geometry = self.geometry();
        let (chunk, stride) = (geometry.chunk(), geometry.stride() as usize);
        let end = at + to.len() as u64;
        // Behind a last chunk that is full there is an empty slot, which says that this is the end.
        let last = if end == state.len { geometry.tail(end) } else { (end - 1) / chunk };
        let first = at / chunk;
        let stored = self.fetch(state, first, last, scratch)?;
        if !state.sparse {
            return self.open_slots(state, (first, last), (to, at), (0, stored), scratch, crypto);
        }
        let mut index = first;
        while index <= last {
            let slot = |index: u64| (index - first) as usize * stride;
            let hole = |index: u64, scratch: &Scratch| {
                index < geometry.tail(state.len) && slots::may_be_hole(&scratch.slots[slot(index)..])
            };
            let from = (index * chunk).max(at);
            if hole(index, scratch) {
                let run = self.run_at(state, index, crypto)?;
                let (start, next) = run.ok_or_else(|| Error::Damaged(format!("chunk {index}")))?;
                // Behind the record the run is a hole of the backing file, too.
                for index in index.max(start + 1)..next.min(last + 1) {
                    let bytes = &scratch.slots[slot(index).min(stored)..slot(index + 1).min(stored)];
                    if bytes.iter().any(|byte| *byte != 0) {
                        return Err(Error::Damaged(format!("chunk {index}")));
                    }
                }
                let until = next.saturating_mul(chunk).min(end);
                to[(from - at) as usize..(until - at) as usize].fill(0);
                index = next;
                continue;
            }
            let mut next = index + 1;
            while next <= last && !hole(next, scratch) {
                next += 1;
            }
            let until = (next * chunk).min(end);
            let range = if from < until { (from - at) as usize..(until - at) as usize } else { 0..0 };
            let bytes = (slot(index), slot(next).min(stored));
            self.open_slots(state, (index, next - 1), (&mut to[range], from), bytes, scratch, crypto)?;
            index = next;
        }
        Ok(())
    }

    /// Opens data slots `first` to `last`, which were fetched, of which `to` wants the content from `at` on.
    fn open_slots(
        &self,
        state: &State<S::File>,
        (first, last): (u64, u64),
        (to, at): (&mut [u8], u64),
        (from, until): (usize, usize),
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let (geometry, end) = (self.geometry(), at + to.len() as u64);
        let chunk = geometry.chunk();
        let Scratch { slots, head, tail, .. } = scratch;
        // Chunks of which all is wanted are opened where they are wanted; a first or last one in part goes through a
        // buffer.
        let (skip, last_data) = ((at - first * chunk) as usize, end.saturating_sub(1).max(at) / chunk);
        let (first_len, last_len) =
            (geometry.within(first, state.len), geometry.within(last_data, state.len));
        let ends = (end - last_data * chunk) as usize;
        let head_partial = skip > 0 || (first == last_data && ends < last_len);
        let tail_partial = last_data > first && ends < last_len;
        head.resize(if head_partial { first_len } else { 0 }, 0);
        tail.resize(if tail_partial { last_len } else { 0 }, 0);
        let head_takes = if head_partial { (first_len - skip).min(to.len()) } else { 0 };
        let tail_takes = if tail_partial { ends } else { 0 };
        let (to_head, rest) = to.split_at_mut(head_takes);
        let (to_middle, to_tail) = rest.split_at_mut(rest.len() - tail_takes);
        let mut pieces: [&mut [u8]; 3] = [&mut head[..], to_middle, &mut tail[..]];
        debug_assert!(last == last_data || last == last_data + 1);
        slots::open(&self.key, geometry, first, &mut slots[from..until], &mut pieces, crypto)?;
        to_head.copy_from_slice(&head[skip.min(head.len())..][..head_takes]);
        to_tail.copy_from_slice(&tail[..tail_takes]);
        Ok(())
    }

    /// Reads slots `first` to `last` as they are stored; returns how many bytes they are. What a hole record stands
    /// for is zeros.
    fn fetch(
        &self,
        state: &State<S::File>,
        first: u64,
        last: u64,
        scratch: &mut Scratch,
    ) -> Result<usize, Error> {
        let (geometry, stride) = (self.geometry(), self.geometry().stride() as usize);
        let from = geometry.slot_at(first);
        let len = (geometry.slot_at(last) - from) as usize + geometry.within(last, state.len) + OVERHEAD;
        scratch.room(len);
        let all = &mut scratch.slots[..len];
        let replaced =
            if state.overlay.is_empty() { 0 } else { state.overlay.range(first, last).count() as u64 };
        if replaced <= last - first {
            let got = state.file.read_at(all, from).map_err(|error| Error::io("reading a file", error))?;
            all[got..].fill(0);
        }
        if state.overlay.is_empty() {
            return Ok(len);
        }
        if let Some((start, Piece { level: Some(level), .. })) = state.overlay.covering(first) {
            let until = (start + (1 << level)).min(last + 1) - first;
            all[..(until as usize * stride).min(len)].fill(0);
        }
        for (index, piece) in state.overlay.range(first, last) {
            let at = (index - first) as usize * stride;
            let room = stride.min(len - at);
            match piece.level {
                Some(level) => {
                    let until = (index + (1 << level)).min(last + 1) - first;
                    all[at..(until as usize * stride).min(len)].fill(0);
                }
                None if piece.len as usize == room => {
                    self.shared.journal.read(&mut all[at..at + room], piece.at)?
                }
                None => return Err(Error::Damaged(format!("chunk {index}"))),
            }
        }
        Ok(len)
    }

    /// The run of holes that covers a slot, if its stored bytes are none of data: where it begins and ends.
    ///
    /// # Errors
    /// [`Error::Damaged`] for zeros that no record covers.
    fn run_at(
        &self,
        state: &State<S::File>,
        index: u64,
        crypto: &mut impl Crypto,
    ) -> Result<Option<(u64, u64)>, Error> {
        if let Some((start, piece)) = state.overlay.covering(index) {
            return Ok(piece.level.map(|level| (start, start + (1 << level))));
        }
        for ancestor in ancestors(index) {
            let mut slot = [0; 64];
            match state.overlay.get(ancestor) {
                // A record here would cover it, or it is data.
                Some(_) => continue,
                None => {
                    let at = self.geometry().slot_at(ancestor);
                    state.file.read_at(&mut slot, at).map_err(|error| Error::io("reading a file", error))?;
                }
            }
            if !slots::may_be_hole(&slot) {
                if ancestor == index {
                    return Ok(None);
                }
                continue;
            }
            if slot[..NONCE_LEN].iter().all(|byte| *byte == 0) {
                continue;
            }
            if let Some(level) = slots::open_hole(&self.key, ancestor, &slot, crypto)?
                && index - ancestor < 1 << level
            {
                return Ok(Some((ancestor, ancestor + (1 << level))));
            }
            if ancestor == index {
                break;
            }
        }
        Err(Error::Damaged(format!("chunk {index}")))
    }

    /// Writes all of `from` at `at`. What lies between the end and `at` becomes a hole.
    ///
    /// # Errors
    /// [`Error::Io`] with `ENOSPC` or `EFBIG`: the old content is intact.
    pub fn write(&self, from: &[u8], at: u64, crypto: &mut impl Crypto) -> Result<(), Error> {
        self.shared.in_room(crypto, |crypto| {
            let _epoch = read(&self.shared.epoch);
            self.write_at(&mut self.state_mut(), from, at, crypto)
        })
    }

    /// Writes all of `from` at the end, wherever that is now, and returns where that was.
    ///
    /// # Errors
    /// As [`Content::write`].
    pub fn append(&self, from: &[u8], crypto: &mut impl Crypto) -> Result<u64, Error> {
        let mut tried = None;
        self.shared.in_room(crypto, |crypto| {
            let _epoch = read(&self.shared.epoch);
            let mut state = self.state_mut();
            let at = state.len;
            // A part of it is there, or another file's: behind that it would be another content.
            if tried.replace(at).is_some_and(|before| before != at) {
                return Err(Error::io("writing a file", rustix::io::Errno::NOSPC));
            }
            self.write_at(&mut state, from, at, crypto)?;
            Ok(at)
        })
    }

    fn write_at(
        &self,
        state: &mut State<S::File>,
        from: &[u8],
        at: u64,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        if from.is_empty() {
            return Ok(());
        }
        let end = at.checked_add(from.len() as u64);
        if end.is_none_or(|end| end > self.geometry().max_len()) {
            return Err(Error::io("writing a file", rustix::io::Errno::FBIG));
        }
        with_scratch(|scratch| {
            if at > state.len {
                self.extend(state, at, scratch, crypto)?;
            }
            let (chunk, mut done) = (self.geometry().chunk(), 0);
            while done < from.len() {
                let start = at + done as u64;
                let end = (start / chunk * chunk + BATCH + chunk).min(at + from.len() as u64);
                let piece = (end - start) as usize;
                self.write_batch(state, &from[done..done + piece], start, scratch, crypto)?;
                done += piece;
            }
            Ok(())
        })
    }

    /// Writes at most one batch that begins at or before the end.
    fn write_batch(
        &self,
        state: &mut State<S::File>,
        from: &[u8],
        at: u64,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let geometry = self.geometry();
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
        // What is left of runs of holes that this cuts in two.
        let mut rest = Vec::new();
        if state.sparse {
            let tail = geometry.tail(state.len);
            if first < tail
                && let Some((start, end)) = self.run_at(state, first, crypto)?
            {
                rest.extend(runs(start, first));
                rest.extend(runs(until + 1, end));
            }
            if last > first
                && last < tail
                && let Some((start, end)) = self.run_at(state, last, crypto)?
                && start > first
            {
                rest.extend(runs(until + 1, end));
            }
        }
        scratch.room(bytes);
        {
            let Scratch { slots, head, tail, .. } = scratch;
            let pieces = [&head[..], &from[taken..kept], &tail[..]];
            let to = &mut slots[..bytes];
            slots::seal_pieces(&self.key, &mut state.writer, geometry, first, &pieces, to, crypto)?;
        }
        self.store(state, (first, until), bytes, &rest, len, scratch, crypto)
    }

    /// Stores sealed slots `first` to `until`, in place or in the journal, with hole records for what is left of runs.
    /// The content has `len` bytes then. On an error nothing has changed.
    #[allow(clippy::too_many_arguments)]
    fn store(
        &self,
        state: &mut State<S::File>,
        (first, until): (u64, u64),
        bytes: usize,
        rest: &[(u64, u8)],
        len: u64,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let (geometry, stride) = (self.geometry(), self.geometry().stride());
        let fresh = state.reserved && state.committed == 0;
        let small = len > state.len && !fresh && !state.wrote && state.grown + bytes as u64 <= SMALL_GROWTH;
        let border = if small || !rest.is_empty() {
            until + 1
        } else {
            // A slot within a run of holes counts, too: what it replaced may have been acknowledged.
            state.floor.clamp(first, until + 1).max(state.overlay.replaced_until(until))
        };
        let journaled = ((border - first) as usize * stride as usize).min(bytes);
        let mut undo = None;
        if border <= until {
            self.make_known(state, scratch, crypto)?;
            let at = geometry.slot_at(border);
            let old = state.physical;
            let overwritten = old.saturating_sub(at).min((bytes - journaled) as u64) as usize;
            scratch.old.resize(overwritten, 0);
            let failed = |error| Error::io("writing a file", error);
            let got = state.file.read_at(&mut scratch.old, at).map_err(failed)?;
            scratch.old.truncate(got);
            undo = Some((at, old));
            if let Err(error) = state.file.write_at(&scratch.slots[journaled..bytes], at) {
                self.take_back(state, undo, scratch);
                return Err(failed(error));
            }
        }
        if journaled > 0 {
            let mut record = std::mem::take(&mut scratch.record);
            let result = self.store_in_journal(
                state,
                (first, border),
                &scratch.slots[..journaled],
                rest,
                &mut record,
                crypto,
            );
            scratch.record = record;
            if let Err(error) = result {
                self.take_back(state, undo, scratch);
                return Err(error);
            }
            if len > state.len {
                state.grown += bytes as u64;
            }
        }
        if undo.is_some() {
            state.wrote = true;
            state.physical = state.physical.max(geometry.slot_at(first) + bytes as u64);
        }
        state.len = len;
        Ok(())
    }

    /// Puts back what was overwritten in place.
    fn take_back(&self, state: &State<S::File>, undo: Option<(u64, u64)>, scratch: &Scratch) {
        if let Some((at, physical)) = undo {
            // These bytes had room a moment ago. If even that fails the file is not what it was, and its tags say so.
            _ = state.file.set_len(physical);
            _ = state.file.write_at(&scratch.old, at);
        }
    }

    fn store_in_journal(
        &self,
        state: &mut State<S::File>,
        (first, border): (u64, u64),
        slots: &[u8],
        rest: &[(u64, u8)],
        record: &mut Vec<u8>,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let stride = self.geometry().stride();
        let mut draft = self.draft(state, record);
        let count = (border - first) as u32;
        let last_len = (slots.len() as u64 - u64::from(count - 1) * stride) as u32;
        draft.ops.push(&Op::Put { number: draft.number, first, count, last_len });
        record.extend_from_slice(slots);
        self.draft_holes(state, &mut draft, rest, record, crypto)?;
        let blob = self.log(state, &draft, record, crypto)?;
        for index in first..border {
            let off = (index - first) * stride;
            let len = if index + 1 == border { last_len } else { stride as u32 };
            state.overlay.insert(index, Piece { at: blob + off, len, level: None });
        }
        self.enter_holes(state, rest, blob + slots.len() as u64);
        Ok(())
    }

    /// Begins a record about this file.
    fn draft(&self, state: &State<S::File>, record: &mut Vec<u8>) -> Draft {
        record.clear();
        record.resize(RECORD_HEAD, 0);
        let mut ops = Ops::default();
        let number = state.number.unwrap_or_else(|| {
            let mut files = lock(&self.shared.files);
            files.numbers += 1;
            let (number, place) = (files.numbers, self.place.clone());
            ops.push(&Op::File { number, id: state.id, place, committed: state.committed });
            number
        });
        Draft { ops, number }
    }

    /// Seals hole records into a record for the journal.
    fn draft_holes(
        &self,
        state: &mut State<S::File>,
        draft: &mut Draft,
        runs: &[(u64, u8)],
        record: &mut Vec<u8>,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        for (first, level) in runs.iter().copied() {
            draft.ops.push(&Op::Hole { number: draft.number, first, level });
            record.extend(slots::seal_hole(&self.key, &mut state.writer, (first, level), crypto)?);
        }
        Ok(())
    }

    /// The same records are in the journal now, from `at` on.
    fn enter_holes(&self, state: &mut State<S::File>, runs: &[(u64, u8)], at: u64) {
        for ((first, level), at) in runs.iter().zip((at..).step_by(HOLE_LEN)) {
            state.overlay.insert(*first, Piece { at, len: HOLE_LEN as u32, level: Some(*level) });
        }
    }

    /// Appends a record about this file; returns where its blob is.
    fn log(
        &self,
        state: &mut State<S::File>,
        draft: &Draft,
        record: &mut Vec<u8>,
        crypto: &mut impl Crypto,
    ) -> Result<u64, Error> {
        let bytes = record.len() - RECORD_HEAD;
        let (number, blob) = self.shared.journal.append(record, &draft.ops, crypto)?;
        state.touched = number;
        if state.number.is_none() {
            state.number = Some(draft.number);
            state.known = number;
            lock(&self.shared.files).known.insert(state.id, (draft.number, state.committed));
        }
        if bytes > 0
            && state.overlay.is_empty()
            && state.header.is_none()
            && let Some(this) = self.this.upgrade()
        {
            lock(&self.shared.pinned).push(this);
        }
        Ok(blob)
    }

    /// Makes sure that the journal durably knows how much is committed, and that nothing is behind which was cut and is older
    /// than the last sync. After that, what is behind may be written in place.
    fn make_known(
        &self,
        state: &mut State<S::File>,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        self.shared.journal.usable()?;
        self.make_end_known(state, scratch, crypto)?;
        if state.cut == Cut::Durable {
            return Ok(());
        }
        let failed = |error| Error::io("cutting a file", error);
        let end = self.geometry().stored_len(state.len);
        if state.physical > end {
            // The cut failed when it was half done.
            self.shared.journal.sync(state.touched, crypto)?;
            state.file.set_len(end).map_err(failed)?;
            state.physical = end;
        }
        if state.cut == Cut::Outdated {
            if let Err(error) = state.file.sync() {
                self.in_doubt(state);
                return Err(failed(error));
            }
            state.cut = Cut::Durable;
        }
        Ok(())
    }

    fn make_end_known(
        &self,
        state: &mut State<S::File>,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        if state.reserved && state.committed == 0 {
            return Ok(());
        }
        if state.number.is_none() {
            let draft = self.draft(state, &mut scratch.record);
            self.log(state, &draft, &mut scratch.record, crypto)?;
        }
        if state.known == u64::MAX {
            self.shared.journal.sync_all(crypto)?;
            state.known = 0;
        }
        self.shared.journal.sync(state.known, crypto)
    }

    /// Reads all of a chunk that is there.
    fn read_chunk(
        &self,
        state: &State<S::File>,
        index: u64,
        to: &mut Vec<u8>,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let geometry = self.geometry();
        let stored = self.fetch(state, index, index, scratch)?;
        to.clear();
        to.resize(geometry.within(index, state.len), 0);
        if state.sparse && index < geometry.tail(state.len) && slots::may_be_hole(&scratch.slots[..stored]) {
            let run = self.run_at(state, index, crypto)?;
            return run.map(|_| ()).ok_or_else(|| Error::Damaged(format!("chunk {index}")));
        }
        let mut pieces: [&mut [u8]; 3] = [&mut to[..], &mut [], &mut []];
        slots::open(&self.key, geometry, index, &mut scratch.slots[..stored], &mut pieces, crypto)
    }

    /// Extends the content: with zeros if they are few, else with a hole.
    fn extend(
        &self,
        state: &mut State<S::File>,
        len: u64,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let geometry = self.geometry();
        if len - state.len >= LEAST_HOLE && geometry.tail(len) > geometry.tail(state.len) + 1 {
            return self.extend_with_hole(state, len, scratch, crypto);
        }
        // On the heap: as a constant they would be in the file of every program.
        let zeros = vec![0; (len - state.len).min(1 << 18) as usize];
        while state.len < len {
            let piece = (len - state.len).min(zeros.len() as u64) as usize;
            self.write_batch(state, &zeros[..piece], state.len, scratch, crypto)?;
        }
        Ok(())
    }

    fn extend_with_hole(
        &self,
        state: &mut State<S::File>,
        len: u64,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let geometry = self.geometry();
        let (chunk, old, new) = (geometry.chunk() as usize, geometry.tail(state.len), geometry.tail(len));
        // The old last chunk becomes a full one, unless it is empty and so part of the hole.
        let mut head = std::mem::take(&mut scratch.head);
        let result = match geometry.within(old, state.len) {
            0 => Ok(()),
            _ => self.read_chunk(state, old, &mut head, scratch, crypto),
        };
        scratch.head = head;
        result?;
        let filled = u64::from(!scratch.head.is_empty());
        // The backing file's length is tried before anything is promised.
        self.make_known(state, scratch, crypto)?;
        let stored = geometry.stored_len(len).max(state.physical);
        state.file.set_len(stored).map_err(|error| Error::io("extending a file", error))?;
        let mut record = std::mem::take(&mut scratch.record);
        let result = (|| {
            let mut draft = self.draft(state, &mut record);
            let header = self.draft_sparse(state, &mut draft, &mut record, crypto)?;
            let number = draft.number;
            let mut put = |index: u64, plain: &[u8], state: &mut State<S::File>, record: &mut Vec<u8>| {
                let at = record.len();
                record.resize(at + plain.len() + OVERHEAD, 0);
                let last_len = (plain.len() + OVERHEAD) as u32;
                draft.ops.push(&Op::Put { number, first: index, count: 1, last_len });
                let to = &mut record[at..];
                slots::seal_one(&self.key, &mut state.writer, (index, SlotKind::Data), plain, to, crypto)?;
                Ok::<_, Error>((index, Piece { at: (at - RECORD_HEAD) as u64, len: last_len, level: None }))
            };
            let mut entries = Vec::new();
            if filled > 0 {
                scratch.head.resize(chunk, 0);
                entries.push(put(old, &scratch.head, state, &mut record)?);
            }
            let tail = vec![0; geometry.within(new, len)];
            entries.push(put(new, &tail, state, &mut record)?);
            let holes = runs(old + filled, new);
            let at = (record.len() - RECORD_HEAD) as u64;
            self.draft_holes(state, &mut draft, &holes, &mut record, crypto)?;
            let blob = self.log(state, &draft, &mut record, crypto)?;
            for (index, piece) in entries {
                state.overlay.insert(index, Piece { at: blob + piece.at, ..piece });
            }
            self.enter_holes(state, &holes, blob + at);
            if header {
                state.header = Some(blob);
                state.sparse = true;
            }
            Ok(())
        })();
        scratch.record = record;
        match result {
            Ok(()) => {
                state.physical = stored;
                state.len = len;
                state.wrote = true;
                Ok(())
            }
            Err(error) => {
                _ = state.file.set_len(state.physical);
                Err(error)
            }
        }
    }

    /// Puts a header with the flag for holes at the beginning of a record, if the file has none yet.
    fn draft_sparse(
        &self,
        state: &State<S::File>,
        draft: &mut Draft,
        record: &mut Vec<u8>,
        crypto: &mut impl Crypto,
    ) -> Result<bool, Error> {
        if state.sparse {
            return Ok(false);
        }
        let header = self.shared.seal_header(state.id, SPARSE, &self.key.secret(), crypto)?;
        draft.ops.push(&Op::Header { number: draft.number });
        record.extend(header.encode());
        Ok(true)
    }

    /// Cuts the content, or extends it with a hole.
    ///
    /// # Errors
    /// As [`Content::write`].
    pub fn set_len(&self, len: u64, crypto: &mut impl Crypto) -> Result<(), Error> {
        if len > self.geometry().max_len() {
            return Err(Error::io("extending a file", rustix::io::Errno::FBIG));
        }
        self.resize(len, true, crypto)
    }

    /// Extends the content with a hole to `len` bytes. One that is longer, by now, stays as it is.
    ///
    /// # Errors
    /// As [`Content::write`].
    pub fn grow(&self, len: u64, crypto: &mut impl Crypto) -> Result<(), Error> {
        if len > self.geometry().max_len() {
            return Err(Error::io("extending a file", rustix::io::Errno::FBIG));
        }
        self.resize(len, false, crypto)
    }

    fn resize(&self, len: u64, may_cut: bool, crypto: &mut impl Crypto) -> Result<(), Error> {
        self.shared.in_room(crypto, |crypto| {
            let _epoch = read(&self.shared.epoch);
            let mut state = self.state_mut();
            with_scratch(|scratch| {
                if len > state.len {
                    self.extend(&mut state, len, scratch, crypto)
                } else if may_cut && len < state.len {
                    self.cut(&mut state, len, scratch, crypto)
                } else {
                    Ok(())
                }
            })
        })
    }

    fn cut(
        &self,
        state: &mut State<S::File>,
        len: u64,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let geometry = self.geometry();
        let index = geometry.tail(len);
        // The new last chunk.
        let mut head = std::mem::take(&mut scratch.head);
        let result = match geometry.within(index, len) {
            0 => Ok(()),
            _ => self.read_chunk(state, index, &mut head, scratch, crypto),
        };
        head.truncate(geometry.within(index, len));
        scratch.head = head;
        result?;
        // A run of holes that begins before and goes on behind the cut.
        let mut rest = Vec::new();
        if state.sparse
            && index < geometry.tail(state.len)
            && let Some((start, _)) = self.run_at(state, index, crypto)?
        {
            rest = runs(start, index);
        }
        let bytes = scratch.head.len() + OVERHEAD;
        scratch.room(bytes);
        {
            let Scratch { slots, head, .. } = scratch;
            let to = &mut slots[..bytes];
            slots::seal_one(&self.key, &mut state.writer, (index, SlotKind::Data), head, to, crypto)?;
        }
        let failed = |error| Error::io("cutting a file", error);
        let committed = state.floor > index || state.overlay.last().is_some_and(|last| last >= index);
        if !committed && rest.is_empty() {
            self.make_known(state, scratch, crypto)?;
            // Bytes that are there already: this finds room.
            state.file.write_at(&scratch.slots[..bytes], geometry.slot_at(index)).map_err(failed)?;
            state.file.set_len(geometry.stored_len(len)).map_err(failed)?;
            state.wrote = true;
        } else {
            let mut record = std::mem::take(&mut scratch.record);
            let replaced = state.overlay.replaced_until(geometry.tail(state.len)) > index;
            let result = (|| {
                let mut draft = self.draft(state, &mut record);
                let number = draft.number;
                draft.ops.push(&Op::Cut { number, len });
                draft.ops.push(&Op::Put { number, first: index, count: 1, last_len: bytes as u32 });
                record.extend_from_slice(&scratch.slots[..bytes]);
                self.draft_holes(state, &mut draft, &rest, &mut record, crypto)?;
                let blob = self.log(state, &draft, &mut record, crypto)?;
                state.overlay.cut(index);
                state.overlay.insert(index, Piece { at: blob, len: bytes as u32, level: None });
                self.enter_holes(state, &rest, blob + bytes as u64);
                Ok::<_, Error>(())
            })();
            scratch.record = record;
            result?;
            state.committed = state.committed.min(len);
            state.floor = state.floor.min(index + 1);
            state.known = state.touched;
            if let Some((_, committed)) = lock(&self.shared.files).known.get_mut(&state.id) {
                *committed = state.committed;
            }
            // Committed bytes go only after the journal knows that they may.
            state.len = len;
            state.cuts += 1;
            if replaced {
                state.cut = Cut::Outdated;
            } else if state.cut == Cut::Durable {
                state.cut = Cut::Fresh;
            }
            self.shared.journal.sync(state.touched, crypto)?;
            let keep = geometry.slot_at(index).min(state.physical);
            state.file.set_len(keep).map_err(failed)?;
            state.physical = keep;
            return Ok(());
        }
        state.physical = geometry.stored_len(len);
        state.len = len;
        state.cuts += 1;
        Ok(())
    }

    /// Makes `len` bytes at `at` zeros, as holes where whole chunks are; the length stays.
    ///
    /// # Errors
    /// As [`Content::write`].
    pub fn zero(&self, at: u64, len: u64, crypto: &mut impl Crypto) -> Result<(), Error> {
        self.shared.relieve(crypto)?;
        let _epoch = read(&self.shared.epoch);
        let mut state = self.state_mut();
        let state = &mut *state;
        let chunk = self.geometry().chunk();
        let end = at.saturating_add(len).min(state.len);
        if at >= end {
            return Ok(());
        }
        let (first, behind) = (at.div_ceil(chunk), end / chunk);
        if first >= behind {
            // No whole chunk.
            return self.write_at(state, &vec![0; (end - at) as usize], at, crypto);
        }
        self.write_at(state, &vec![0; (first * chunk - at) as usize], at, crypto)?;
        self.write_at(state, &vec![0; (end - behind * chunk) as usize], behind * chunk, crypto)?;
        with_scratch(|scratch| self.punch(state, first, behind, scratch, crypto))
    }

    /// Makes slots from `first` to before `behind`, all of them full, a hole.
    fn punch(
        &self,
        state: &mut State<S::File>,
        first: u64,
        behind: u64,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let (mut start, mut end) = (first, behind);
        if state.sparse {
            // Runs that begin before or end behind become part of it.
            if let Some((from, _)) = self.run_at(state, first, crypto)? {
                start = start.min(from);
            }
            if let Some((_, to)) = self.run_at(state, behind - 1, crypto)? {
                end = end.max(to);
            }
        }
        let holes = runs(start, end);
        let mut record = std::mem::take(&mut scratch.record);
        let result = (|| {
            let mut draft = self.draft(state, &mut record);
            let header = self.draft_sparse(state, &mut draft, &mut record, crypto)?;
            let at = (record.len() - RECORD_HEAD) as u64;
            self.draft_holes(state, &mut draft, &holes, &mut record, crypto)?;
            let blob = self.log(state, &draft, &mut record, crypto)?;
            self.enter_holes(state, &holes, blob + at);
            if header {
                state.header = Some(blob);
                state.sparse = true;
            }
            Ok(())
        })();
        scratch.record = record;
        result
    }

    /// The first byte at or after `at` that is in a hole (`hole`) or in data; the end counts as a hole. `None` beyond
    /// the end, or where no data follows.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn seek(&self, at: u64, hole: bool, crypto: &mut impl Crypto) -> Result<Option<u64>, Error> {
        let (chunk, stride) = (self.geometry().chunk(), self.geometry().stride() as usize);
        let mut index = at / chunk;
        with_scratch(|scratch| {
            loop {
                // A batch at a time: writers get their turn between them.
                let state = self.state();
                if at >= state.len {
                    return Ok(None);
                }
                let tail = self.geometry().tail(state.len);
                if !state.sparse || index >= tail {
                    let found = at.max(index.min(tail) * chunk);
                    return Ok(if hole { Some(state.len) } else { (found < state.len).then_some(found) });
                }
                let (first, last) = (index, (tail - 1).min(index + BATCH / chunk));
                // In a hole one slot says where it ends.
                let last = if hole { last } else { first };
                let stored = self.fetch(&state, first, last, scratch)?;
                for slot in scratch.slots[..stored].chunks(stride) {
                    let run = match slots::may_be_hole(slot) {
                        true => self.run_at(&state, index, crypto)?,
                        false => None,
                    };
                    match run {
                        Some((_, end)) if !hole => index = end,
                        None if hole => index += 1,
                        _ => return Ok(Some(at.max(index * chunk))),
                    }
                }
            }
        })
    }

    /// What was written in place since the last good sync may be in memory only.
    fn in_doubt(&self, state: &mut State<S::File>) {
        state.wrote = true;
        if !std::mem::replace(&mut state.doubt, true)
            && let Some(this) = self.this.upgrade()
        {
            // It is not forgotten before it is written again.
            lock(&self.shared.pinned).push(this);
        }
    }

    /// Writes what is behind the committed end once more, as far as memory has it as it was written. Returns the first
    /// and the last chunk that it has not.
    fn write_again(
        &self,
        state: &State<S::File>,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<Option<(u64, u64)>, Error> {
        let geometry = self.geometry();
        if state.committed == 0 && state.header.is_none() {
            let flags = if state.sparse { SPARSE } else { 0 };
            let header = self.shared.seal_header(state.id, flags, &self.key.secret(), crypto)?;
            let failed = |error| Error::io("writing a file again", error);
            state.file.write_at(&header.encode(), 0).map_err(failed)?;
        }
        let (mut index, tail) = (self.shared.slots(state.committed), geometry.tail(state.len));
        // Slots below `single` go one by one.
        let (mut lost, mut single) = (None, 0);
        while index <= tail {
            if let Some((start, piece)) = state.overlay.covering(index) {
                index = start + piece.level.map_or(1, |level| 1 << level);
                continue;
            }
            let next = state.overlay.range(index, tail).next().map_or(tail + 1, |(next, _)| next);
            let most = if index < single { index } else { index + BATCH / geometry.chunk() };
            let last = (next - 1).min(most);
            match self.write_slots_again(state, index, last, scratch, crypto) {
                Ok(()) => index = last + 1,
                // Neither memory nor the disk has it.
                Err(Error::Damaged(_)) if last > index => single = last + 1,
                Err(Error::Damaged(_)) => {
                    lost = Some((lost.map_or(index, |(first, _)| first), index));
                    index += 1;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(lost)
    }

    /// Writes slots that open once more.
    ///
    /// # Errors
    /// [`Error::Damaged`] where they do not open, or the disk does not give or take them.
    fn write_slots_again(
        &self,
        state: &State<S::File>,
        first: u64,
        last: u64,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let (geometry, stride) = (self.geometry(), self.geometry().stride() as usize);
        let lost = |error: Error| match error.errno() {
            EIO if matches!(error, Error::Io { .. }) => Error::Damaged(format!("chunk {first}")),
            _ => error,
        };
        let stored = self.fetch(state, first, last, scratch).map_err(lost)?;
        scratch.old.clear();
        scratch.old.extend_from_slice(&scratch.slots[..stored]);
        let mut plain = std::mem::take(&mut scratch.head);
        plain.resize(stored - (stored.div_ceil(stride)) * OVERHEAD, 0);
        let mut pieces: [&mut [u8]; 3] = [&mut plain[..], &mut [], &mut []];
        let opened =
            slots::open(&self.key, geometry, first, &mut scratch.slots[..stored], &mut pieces, crypto);
        scratch.head = plain;
        opened?;
        let written = state.file.write_at(&scratch.old, geometry.slot_at(first));
        written.map_err(|error| lost(Error::io("writing a file again", error)))
    }

    /// Fails as long as the content has chunks that a checkpoint could not bring back. Other ones may have taken their
    /// place, or the content may have been cut in front of them.
    fn refuse_lost(&self, state: &mut State<S::File>, crypto: &mut impl Crypto) -> Result<(), Error> {
        let Some((first, last)) = state.lost else { return Ok(()) };
        let (mut plain, tail) = (Vec::new(), self.geometry().tail(state.len));
        let whole = with_scratch(|scratch| {
            (first..=last.min(tail))
                .try_for_each(|index| self.read_chunk(state, index, &mut plain, scratch, crypto))
        });
        plain.zeroize();
        whole?;
        state.lost = None;
        Ok(())
    }

    /// Makes everything written so far survive a power cut.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sync(&self, crypto: &mut impl Crypto) -> Result<(), Error> {
        let _epoch = read(&self.shared.epoch);
        let _syncing = lock(&self.syncing);
        let (file, wrote, mark) = {
            let mut state = self.state_mut();
            if state.doubt
                && let Some((first, _)) = with_scratch(|scratch| self.write_again(&state, scratch, crypto))?
            {
                return Err(Error::Damaged(format!("chunk {first}")));
            }
            self.refuse_lost(&mut state, crypto)?;
            let wrote = std::mem::take(&mut state.wrote);
            if wrote {
                // What is about to be committed is not overwritten from here on.
                state.floor = state.floor.max(self.shared.slots(state.len));
            }
            state.grown = 0;
            if state.cut == Cut::Fresh {
                state.cut = Cut::Outdated;
            }
            let mark = Mark { len: state.len, touched: state.touched, cuts: state.cuts };
            (state.file.clone(), wrote, mark)
        };
        if wrote && let Err(error) = file.sync() {
            self.in_doubt(&mut self.state_mut());
            return Err(Error::io("syncing a file", error));
        }
        let committed = self.commit(wrote, &mark, crypto);
        if wrote && committed.is_err() {
            // It is not forgotten that the end is still to be committed.
            self.state_mut().wrote = true;
        }
        committed
    }

    /// Makes the journal durable, and lets it say up to where the file is, if that was synced.
    fn commit(&self, wrote: bool, mark: &Mark, crypto: &mut impl Crypto) -> Result<(), Error> {
        self.shared.journal.sync(mark.touched, crypto)?;
        if !wrote {
            return Ok(());
        }
        let mut state = self.state_mut();
        state.doubt = false;
        if state.cuts != mark.cuts {
            // What was cut and grew again meanwhile may rest on records that are not durable yet.
            let touched = state.touched;
            drop(state);
            return self.shared.journal.sync(touched, crypto);
        }
        if state.physical <= self.geometry().stored_len(state.len) {
            state.cut = Cut::Durable;
        }
        if mark.len <= state.committed {
            return Ok(());
        }
        with_scratch(|scratch| {
            let mut draft = self.draft(&state, &mut scratch.record);
            draft.ops.push(&Op::Commit { number: draft.number, len: mark.len });
            self.log(&mut state, &draft, &mut scratch.record, crypto)
        })?;
        state.committed = mark.len;
        state.known = state.touched;
        if let Some((_, committed)) = lock(&self.shared.files).known.get_mut(&state.id) {
            *committed = mark.len;
        }
        // The file is durable, and its tags say up to where: the record need not be, before the file grows. If it has
        // grown meanwhile, its length says nothing any longer of where a last short slot ended.
        match state.wrote {
            true => self.shared.journal.sync(state.known, crypto),
            false => Ok(()),
        }
    }
}
