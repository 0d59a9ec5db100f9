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
mod opening;
pub(crate) mod overlay;
mod reading;
pub(crate) mod recovery;
pub(crate) mod slots;
mod state;
mod syncing;
mod writing;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use wattlock_core::sync::{lock, read, write};
use wattlock_core::{Algorithm, Key};
use wattlock_door::Crypto;

use crate::Error;
use crate::format::Geometry;
use crate::journal::Journal;
use crate::store::{JOURNAL, Place, Store};
use crate::volume::{NameMode, Volume};
use crate::xaes::XaesKey;
use ledger::Over;
use opening::purpose;
use state::{Body, State};

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
    keys: Vec<(u32, XaesKey)>,
    journal: Journal<S::File>,
    /// Shared by the maker of a file, from before its backing file is there; exclusive for a checkpoint.
    creating: RwLock<()>,
    /// Shared by everything that writes; exclusive for a checkpoint.
    epoch: RwLock<()>,
    open: RwLock<Open<S>>,
    kept: RwLock<Kept<S::File>>,
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
        let file = store.journal().map_err(journal_refused)?;
        let mut keys = Keys::new(volume, crypto)?;
        let (journal, found) = Journal::open(file, std::mem::take(&mut keys.journal), stop, crypto)?;
        let shared = Shared::new(store, keys, journal, false);
        let lines = shared.recover(found, stop, crypto)?;
        Ok((Contents { shared }, Recovered { lines }))
    }

    /// Opens a volume for reading. Nothing is written, so that its storage may be read-only, or another user's: what an
    /// earlier run did not bring into place is read over the files. As long as it is open no process opens it for
    /// writing, and it cannot be opened while one has it so; any number read it side by side. Whatever would write fails
    /// with `EROFS`; syncs and checkpoints do nothing.
    ///
    /// # Errors
    /// As [`Contents::start_until`].
    pub fn start_to_read(
        store: S,
        volume: &Volume,
        stop: &dyn Fn() -> bool,
        crypto: &mut impl Crypto,
    ) -> Result<(Contents<S>, Recovered), Error> {
        let file = store.journal_to_read().map_err(journal_refused)?;
        let mut keys = Keys::new(volume, crypto)?;
        let (journal, found) = match file {
            Some(file) => Journal::open(file, std::mem::take(&mut keys.journal), stop, crypto)?,
            None => Journal::none()?,
        };
        let shared = Shared::new(store, keys, journal, true);
        let lines = shared.read_over(found, stop, crypto)?;
        Ok((Contents { shared }, Recovered { lines }))
    }

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
        shared.relieve(crypto)?;
        // Most of it before anybody has to wait.
        shared.checkpoint(crypto)?;
        let _creating = write(&shared.creating);
        let _epoch = write(&shared.epoch);
        shared.bring_into_place(crypto)?;
        let unclean = read(&shared.unclean);
        shared.journal.reset(&unclean, crypto)
    }
}

/// Why the journal does not open, with what helps.
fn journal_refused(error: std::io::Error) -> Error {
    use std::io::ErrorKind::{InvalidData, PermissionDenied, ReadOnlyFilesystem, WouldBlock};
    let why = match error.kind() {
        WouldBlock => return Error::InUse,
        InvalidData => return Error::Damaged(format!("{JOURNAL} is {error}")),
        ReadOnlyFilesystem => {
            "the volume's folder is on a read-only file system: open the volume for reading"
        }
        PermissionDenied => {
            "this user may not open the volume's wattlock.journal so: without the right to write, open the volume for \
             reading"
        }
        _ => return Error::io("opening the journal", error),
    };
    Error::io("opening the journal", std::io::Error::new(error.kind(), format!("{error}: {why}")))
}

/// What a volume's keys are derived to, and its other settings.
struct Keys {
    plain_names: bool,
    geometry: Geometry,
    /// Of files' headers, by generation.
    files: Vec<(u32, XaesKey)>,
    /// Of the journal.
    journal: Vec<(u32, Key)>,
}

impl Keys {
    fn new(volume: &Volume, crypto: &mut impl Crypto) -> Result<Keys, Error> {
        let geometry = Geometry::new(volume.chunk)?;
        let (mut files, mut journal) = (Vec::new(), Vec::new());
        for (generation, key) in &volume.keys {
            files.push((*generation, XaesKey::new(&*purpose(key, b"files", crypto)?, crypto)?));
            let secret = purpose(key, b"journal", crypto)?;
            journal.push((*generation, Key::symmetric(Algorithm::Secret, &secret[..])?));
        }
        let plain_names = volume.names == NameMode::Plain;
        Ok(Keys { plain_names, geometry, files, journal })
    }
}

impl<S: Store> Shared<S> {
    fn new(store: S, keys: Keys, journal: Journal<S::File>, read_only: bool) -> Arc<Shared<S>> {
        Arc::new(Shared {
            store,
            geometry: keys.geometry,
            keys: keys.files,
            plain_names: keys.plain_names,
            started: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            journal,
            creating: RwLock::default(),
            epoch: RwLock::default(),
            open: RwLock::default(),
            kept: RwLock::new(Kept { pinned: HashMap::new(), lost: HashMap::new() }),
            files: Mutex::default(),
            unclean: RwLock::default(),
            mending: Mutex::default(),
            sound: Mutex::default(),
            half_mended: Mutex::default(),
            forgot: AtomicBool::new(false),
            moving: AtomicU64::new(0),
            moved: AtomicU64::new(0),
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
