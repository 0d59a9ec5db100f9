//! What files contain.
//!
//! A [`Content`] is one file's: its length, its keys and its lock. Reads of one file run side by side, writes one
//! after the other. A read or write of up to a MiB is one batch for the engines and one access to the backing file.
//!
//! What is done to a file is decided by `ledger`, which does no I/O, and done by `executor`, which decides nothing.
//!
//! Rules that keep what was acknowledged through SIGKILL and power cuts, and what they cannot be passed by:
//! - J1: a slot with committed bytes is never overwritten before its replacement is durable in the journal
//!   (`journal::Durable`).
//! - J2: slots behind the committed end are written in place (`ledger::InPlace`). Before the first of them the journal
//!   durably knows where that end is, unless the file is new: then its id, from a range that the journal knows, says that
//!   nothing is committed. Slots that were cut are durably gone by then, if a sync has acknowledged something else: they
//!   would open.
//! - J3: a sync makes the file durable if anything was written in place, and the journal
//!   (`ledger::Request::Sync`, `ledger::Request::Commit`).
//! - J4: a checkpoint copies replacements into place, syncs everything, and empties the journal
//!   (`ledger::Ledger::placing`).
//! - J5: recovery repeats that, and cuts what was never synced where its slots stop being whole
//!   (`ledger::recovering`). It may crash and be repeated at any point.
//!
//! Locks, in this order: files being made, the epoch (shared by everything that writes, exclusive for a checkpoint), a
//! file's state, the table of files, the journal.

mod epoch;
mod executor;
mod holes;
pub(crate) mod ledger;
mod made;
mod opening;
pub(crate) mod overlay;
mod reading;
pub(crate) mod recovery;
mod rekeying;
pub(crate) mod slots;
mod starting;
mod state;
mod syncing;
mod turning;
mod writing;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::Duration;

use wattlock_core::Key;
use wattlock_core::sync::{lock, read, write};
use wattlock_door::Crypto;

use crate::Error;
use crate::format::Geometry;
use crate::journal::Journal;
use crate::store::{Place, Store};
use crate::xaes::XaesKey;
use ledger::Over;
use made::Made;
use starting::Keys;
use state::{Body, State};

pub use starting::{Age, Judge};

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

/// A file, and its first and last chunk that are lost.
type Lost<S> = (Arc<Body<<S as Store>::File>>, (u64, u64));

/// Files that stay though no opener has them, by device and inode number.
struct Kept<F> {
    /// Files that the journal replaces slots of, or that a disk refused: they stay until the next checkpoint.
    pinned: HashMap<(u64, u64), Arc<Body<F>>>,
    /// Files with chunks that are lost: they stay until they are whole again or removed.
    lost: HashMap<(u64, u64), Arc<Body<F>>>,
}

impl<F> Kept<F> {
    fn get(&self, inode: (u64, u64)) -> Option<Arc<Body<F>>> {
        self.pinned.get(&inode).or_else(|| self.lost.get(&inode)).cloned()
    }

    fn forget(&mut self, inode: (u64, u64)) -> [Option<Arc<Body<F>>>; 2] {
        [self.pinned.remove(&inode), self.lost.remove(&inode)]
    }
}

/// What all files share.
struct Shared<S: Store> {
    store: S,
    geometry: Geometry,
    keys: RwLock<Vec<(u32, XaesKey)>>,
    copy_ids: Key,
    journal: Journal<S::File>,
    /// Shared by the maker of a file, from before its backing file is there; exclusive for a checkpoint.
    creating: RwLock<()>,
    /// Shared by everything that writes; exclusive for a checkpoint.
    epoch: RwLock<()>,
    open: RwLock<Open<S>>,
    kept: RwLock<Kept<S::File>>,
    files: Mutex<Files>,
    made: Mutex<Made>,
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
    /// They are counted although nothing is torn.
    counting: AtomicBool,
    /// Nothing is written: what the journal has is read over the files.
    read_only: bool,
    /// Names are in clear: any name may be an entry's.
    plain_names: bool,
    /// When this start began, since 1970: what is younger no crash has left.
    started: Duration,
    /// Then: files that the journal names, with their ids, by device and inode number.
    over: RwLock<HashMap<(u64, u64), (u64, Over)>>,
    lines: Mutex<Vec<String>>,
}

/// What the journal knows of files in this epoch.
#[derive(Default)]
struct Files {
    /// By file id, and device and inode number, since a file may be copied behind the mount: number in the journal, and
    /// committed length.
    known: HashMap<(u64, (u64, u64)), (u32, u64)>,
    /// Of those, removed ones of which the journal has what is not in place.
    forgotten: HashSet<(u64, (u64, u64))>,
    numbers: u32,
    /// Ranges for new files, and how many ids of the last were given away.
    ranges: Vec<u64>,
    given: u64,
    /// Whose ids others are that were written to.
    ids: HashMap<u64, (u64, u64)>,
}

impl Files {
    fn is_reserved(&self, id: u64) -> bool {
        self.ranges.iter().any(|start| id.wrapping_sub(*start) < RANGE)
    }

    /// Whether an id that this file has is another's: it is a copy then.
    fn is_anothers(&mut self, id: u64, inode: (u64, u64)) -> bool {
        *self.ids.entry(id).or_insert(inode) != inode
    }
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
    /// Whether it was opened for reading ([`Contents::start_to_read`]).
    pub fn is_read_only(&self) -> bool {
        self.shared.read_only
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
        shared.in_room(crypto, |crypto| {
            let creating = Creating { _no_checkpoint: read(&shared.creating) };
            let _epoch = read(&shared.epoch);
            shared.range(&mut lock(&shared.files), crypto)?;
            Ok(creating)
        })
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
        shared.may_write()?;
        let _epoch = read(&shared.epoch);
        shared.begin(file, place, false, crypto)
    }

    /// Begins an existing file anew, as an empty one: for one whose header does not open, so that nobody has it open. If
    /// somebody else did that at the same time it is theirs.
    ///
    /// # Errors
    /// As [`Contents::create`].
    pub fn begin_anew(
        &self,
        file: S::File,
        place: Place,
        crypto: &mut impl Crypto,
    ) -> Result<Arc<Content<S>>, Error> {
        let shared = &self.shared;
        shared.may_write()?;
        let _epoch = read(&shared.epoch);
        let _mending = lock(&shared.mending);
        shared.begin(file, place, true, crypto)
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
        let known = self.shared.known_len(inode);
        known.unwrap_or_else(|| self.shared.geometry.content_len_lenient(stored))
    }

    /// Whether [`Contents::len_of`] tells the content's length of an inode that is not open. After an unclean end it
    /// does so of files that were opened since; opening any other mends it, if it is torn.
    pub fn is_sound(&self, inode: (u64, u64)) -> bool {
        read(&self.shared.unclean).is_empty() || lock(&self.shared.sound).contains(&inode)
    }

    /// Whether files may be torn that were not opened since an unclean end, and are to be mended. A volume that is open
    /// for reading mends none.
    pub fn may_be_torn(&self) -> bool {
        !self.shared.read_only && !read(&self.shared.unclean).is_empty()
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
        if shared.read_only {
            return Ok(true);
        }
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
            inode.is_some_and(|inode| {
                lock(&shared.sound).contains(&inode) || shared.known_len(inode).is_some()
            })
        };
        let counting = shared.counting.load(Ordering::SeqCst);
        if !counting && (!self.may_be_torn() || inodes.iter().all(mended)) {
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
        let content = open.get(&inode).and_then(Weak::upgrade);
        let body = content.as_ref().map(|content| content.body.clone());
        match body.or_else(|| read(&shared.kept).get(inode)) {
            Some(body) => {
                drop(open);
                let _state = body.state_mut();
                work()
            }
            // Whoever opens it now waits until this is done.
            None => work(),
        }
    }

    /// The content of an inode, if it is open or what the journal has of it is kept.
    pub fn known(&self, inode: (u64, u64)) -> Option<Arc<Content<S>>> {
        self.shared.known(inode)
    }

    /// To be called when a name of a file was removed: without another name and an opener nothing of it is kept, and its
    /// room is free at once.
    pub fn removed(&self, inode: (u64, u64)) {
        let body = read(&self.shared.kept).get(inode);
        if let Some(body) = body {
            self.shared.forget_if_removed(&body);
        }
    }

    /// As [`Contents::removed`], of the last name.
    pub fn removed_wholly(&self, inode: (u64, u64)) {
        lock(&self.shared.made).remove(inode);
        self.removed(inode);
    }

    /// Whether the journal should be brought into place now: it is large, or nothing was written for a while. Asked often:
    /// what is kept is counted, and not looked at.
    pub fn wants_checkpoint(&self, idle: bool) -> bool {
        if self.shared.read_only {
            return false;
        }
        let (used, pinned) = (self.shared.journal.used(), read(&self.shared.kept).pinned.len());
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

    /// Whether [`Contents::moved`] is to be told of names that change.
    pub fn follows_moves(&self) -> bool {
        !lock(&self.shared.made).is_empty()
    }

    /// A file, or a folder, has another name: paths below the volume's folder, as they are stored.
    pub fn moved(&self, inode: (u64, u64), is_folder: bool, from: &[u8], to: &[u8]) {
        let mut made = lock(&self.shared.made);
        if is_folder { made.folder_moved(from, to) } else { made.moved(inode, to) }
    }

    /// The last checkpoint of a run that ends well. Files that it made get ids outside the ranges of their epochs, so that
    /// an older journal that somebody puts back has no power over them. It costs each of them its time of change.
    ///
    /// # Errors
    /// As [`Contents::checkpoint`].
    pub fn end(&self, crypto: &mut impl Crypto) -> Result<(), Error> {
        self.shared.checkpoint(crypto)?;
        self.shared.leave_ranges(crypto)
    }

    /// Lines for the log that came up since the last call: files that were cut when they were opened.
    pub fn take_lines(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.shared.lines))
    }
}

impl<S: Store> Shared<S> {
    fn new(store: S, keys: Keys, journal: Journal<S::File>, read_only: bool) -> Arc<Shared<S>> {
        Arc::new(Shared {
            store,
            geometry: keys.geometry,
            keys: RwLock::new(keys.files),
            copy_ids: keys.copy_ids,
            plain_names: keys.plain_names,
            started: journal.now(),
            journal,
            creating: RwLock::default(),
            epoch: RwLock::default(),
            open: RwLock::default(),
            kept: RwLock::new(Kept { pinned: HashMap::new(), lost: HashMap::new() }),
            files: Mutex::default(),
            made: Mutex::default(),
            unclean: RwLock::default(),
            mending: Mutex::default(),
            sound: Mutex::default(),
            half_mended: Mutex::default(),
            forgot: AtomicBool::new(false),
            moving: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            counting: AtomicBool::new(false),
            read_only,
            over: RwLock::default(),
            lines: Mutex::default(),
        })
    }

    /// Fails in a volume that was opened for reading.
    fn may_write(&self) -> Result<(), Error> {
        match self.read_only {
            true => Err(Error::io("writing to a volume that is open for reading", rustix::io::Errno::ROFS)),
            false => Ok(()),
        }
    }
}

/// One open file's content. Shared by threads; concurrent writes of different ranges do not tear.
pub struct Content<S: Store> {
    shared: Arc<Shared<S>>,
    body: Arc<Body<S::File>>,
}

impl<S: Store> Drop for Content<S> {
    fn drop(&mut self) {
        let inode = self.body.place.inode;
        {
            let mut open = write(&self.shared.open);
            // A successor may have taken the place meanwhile.
            if open.get(&inode).is_some_and(|entry| entry.strong_count() == 0) {
                open.remove(&inode);
            }
        }
        self.shared.forget_if_removed(&self.body);
    }
}

impl<S: Store> Content<S> {
    fn state(&self) -> RwLockReadGuard<'_, State<S::File>> {
        self.body.state()
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State<S::File>> {
        self.body.state_mut()
    }

    fn geometry(&self) -> Geometry {
        self.shared.geometry
    }

    /// It stays until the next checkpoint: only memory knows what the journal has of it, or what a disk refused.
    fn pin(&self) {
        write(&self.shared.kept).pinned.insert(self.body.place.inode, self.body.clone());
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.state().ledger.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The backing file.
    pub fn file(&self) -> Arc<S::File> {
        self.state().file.clone()
    }
}
