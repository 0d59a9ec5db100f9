//! The state behind the requests: finding an inode's backing entry, whatever was renamed meanwhile.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use fuser::FileAttr;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Timestamps, Uid};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities};
use wattlock_fs::Error;
use wattlock_fs::store::Place;
use wattlock_fs::tree::{Entry, Listed};

use crate::attr::attributes;
use crate::backing::{Backing, Result};
use crate::caller::{Caller, Groups, as_caller};
use crate::counters::Counters;
use crate::folders::{Dir, Folders};
use crate::handles::Handles;
use crate::table::{ROOT, Table, Whereabouts};
use wattlock_core::sync::lock;

/// How often something that a rename moved away is looked for again.
const TRIES: usize = 10_000;

/// How a door behaves.
#[derive(Clone)]
pub struct Behaviour {
    /// Others change the backing folder meanwhile: nothing is cached for long, and nothing is written late.
    pub shared: bool,
    /// Requests of other users are answered: what they make belongs to them.
    pub others: bool,
    /// Only processes of root are let in, and permissions do not bind root: the kernel is spared from asking for them,
    /// which it else does before each entry that is made or removed.
    pub unbound: bool,
    /// Gets one line for each thing that is wrong with the volume.
    pub log: Arc<dyn Fn(&str) + Send + Sync>,
}

/// Whether permissions bind this process.
pub(crate) fn is_bound() -> bool {
    let free = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH | CapabilitySet::FOWNER;
    !rustix::process::geteuid().is_root()
        || !capabilities(None).is_ok_and(|sets| sets.effective.contains(free))
}

/// Answers the kernel's requests from a backing.
pub struct Door<B: Backing> {
    pub(crate) inner: Arc<Inner<B>>,
}

/// An opened file's content, and whether its descriptor can write.
pub(crate) struct Opened<C> {
    pub content: C,
    pub writable: bool,
}

/// A new file: its content, and what the kernel is told of it.
type Made<B> = (Arc<Opened<<B as Backing>::Content>>, FileAttr, fuser::Generation);

/// A file handle.
pub(crate) struct FileHandle<C> {
    pub number: u64,
    pub opened: Arc<Opened<C>>,
    /// Opened for writing.
    pub writes: bool,
}

/// A folder handle: the listing is made at the first request, and again from the start.
#[derive(Default)]
pub(crate) struct FolderHandle {
    pub listing: Mutex<Option<Arc<Vec<Listed>>>>,
}

/// What the requests share.
pub(crate) struct Inner<B: Backing> {
    id: u64,
    pub backing: B,
    pub root: Arc<Dir<B::Folder>>,
    pub table: Table<Opened<B::Content>>,
    pub folders: Folders<B::Folder>,
    pub files: Handles<FileHandle<B::Content>>,
    pub dirs: Handles<FolderHandle>,
    pub behaviour: Behaviour,
    pub counters: Counters,
    /// Whether this process may do everything.
    pub privileged: bool,
    /// The backing file system has ACLs.
    acls: AtomicBool,
    threads: AtomicUsize,
    /// Renames and removals going on, and how many there were.
    moving: AtomicUsize,
    moved: AtomicU64,
    said: Mutex<String>,
    /// Takes what must wait for the kernel: a thread that answers requests must not.
    pub later: Mutex<Option<Sender<Job>>>,
    pub notifier: OnceLock<fuser::Notifier>,
}

/// Work for later.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Where an inode is.
pub(crate) enum Spot<F> {
    /// The volume's own folder.
    Root(Arc<Dir<F>>),
    /// An entry in a folder.
    Named(Arc<Dir<F>>, Entry),
    /// Only a descriptor.
    Held(Arc<OwnedFd>),
}

/// What a thread keeps.
struct Own<T> {
    thread: T,
    buffer: Vec<u8>,
}

thread_local! {
    static OWN: RefCell<Option<(u64, Box<dyn Any>)>> = const { RefCell::new(None) };
}

/// While one lives, an entry may be on its way from one name to another.
pub(crate) struct Moving<'a>(&'a AtomicUsize, &'a AtomicU64);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(crate) fn errno(errno: Errno) -> Error {
    Error::io("backing folder", errno)
}

pub(crate) fn entry(stored: impl Into<OsString>) -> Entry {
    Entry { stored: stored.into(), sidecar: None }
}

impl<B: Backing> Door<B> {
    /// A door to a backing. Reads the volume's own folder.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    pub fn new(backing: B, behaviour: Behaviour, folders: usize) -> Result<Door<B>> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let root = backing.root(&mut backing.thread(0))?;
        let stat = rustix::fs::statat(backing.fd(&root), "", AtFlags::EMPTY_PATH).map_err(errno)?;
        let inner = Inner {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            root: Arc::new(Dir::new(root)),
            backing,
            table: Table::new(inode(&stat)),
            folders: Folders::new(folders),
            files: Handles::default(),
            dirs: Handles::default(),
            behaviour,
            counters: Counters::default(),
            privileged: rustix::process::geteuid().is_root(),
            acls: AtomicBool::new(true),
            threads: AtomicUsize::new(0),
            moving: AtomicUsize::new(0),
            moved: AtomicU64::new(0),
            said: Mutex::default(),
            later: Mutex::default(),
            notifier: OnceLock::new(),
        };
        Ok(Door { inner: Arc::new(inner) })
    }
}

/// Device and inode number.
pub(crate) fn inode(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

pub(crate) fn type_of(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

impl<B: Backing> Inner<B> {
    /// Does something with what this thread keeps for itself.
    pub fn on_thread<R>(&self, work: impl FnOnce(&mut B::Thread, &mut Vec<u8>) -> R) -> R {
        OWN.with_borrow_mut(|own| {
            if own.as_ref().is_none_or(|(id, _)| *id != self.id) {
                let thread = self.backing.thread(self.threads.fetch_add(1, Ordering::Relaxed));
                *own = Some((self.id, Box::new(Own::<B::Thread> { thread, buffer: Vec::new() })));
            }
            let own = own.as_mut().and_then(|(_, own)| own.downcast_mut::<Own<B::Thread>>());
            match own {
                Some(own) => work(&mut own.thread, &mut own.buffer),
                None => unreachable!("the thread's own state is of another type"),
            }
        })
    }

    /// How long the kernel may rely on what it is told.
    pub fn lifetime(&self) -> Duration {
        Duration::from_secs(if self.behaviour.shared { 1 } else { 24 * 3600 })
    }

    /// The errno for the kernel, after a line for the log where the volume itself is at fault.
    pub fn refuse(&self, error: &Error, what: impl FnOnce() -> String) -> fuser::Errno {
        self.counters.error(error.errno());
        if !matches!(error, Error::Io { .. }) {
            let line = format!("{}: {error}", what());
            let mut said = lock(&self.said);
            if *said != line {
                (self.behaviour.log)(&line);
                *said = line;
            }
        }
        fuser::Errno::from_i32(error.errno())
    }

    /// An inode for the log: its stored path.
    pub fn described(&self, number: u64) -> String {
        match self.table.find(number) {
            Some(Whereabouts::Named(name)) => {
                let path = self.table.path(name.parent, &name.stored);
                wattlock_door::one_line(path.as_ref()).to_string()
            }
            Some(Whereabouts::Root) => ".".to_owned(),
            _ => format!("inode {number}"),
        }
    }

    /// Says that names move, until what it gives back is dropped.
    pub fn moving(&self) -> Moving<'_> {
        self.moving.fetch_add(1, Ordering::SeqCst);
        Moving(&self.moving, &self.moved)
    }

    /// Repeats what failed because a name had moved by then.
    fn settled<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        let mut tries = 0;
        loop {
            let (before, busy) = (self.moved.load(Ordering::SeqCst), self.moving.load(Ordering::SeqCst) > 0);
            match work() {
                Err(error) if is_lost(&error) && tries < TRIES => {
                    let settled = !busy && before == self.moved.load(Ordering::SeqCst);
                    if settled && self.moving.load(Ordering::SeqCst) == 0 {
                        return Err(error);
                    }
                    tries += 1;
                    std::thread::yield_now();
                }
                done => return done,
            }
        }
    }

    /// A folder, opened.
    pub fn dir(&self, number: u64, thread: &mut B::Thread) -> Result<Arc<Dir<B::Folder>>> {
        if number == ROOT {
            return Ok(self.root.clone());
        }
        if let Some(dir) = self.folders.get(number) {
            return Ok(dir);
        }
        let dir = self.settled(|| match self.table.find(number) {
            Some(Whereabouts::Named(name)) => {
                let parent = self.dir(name.parent, thread)?;
                let folder = self.backing.folder(&parent.folder, &entry(name.stored), thread)?;
                let stat = rustix::fs::statat(self.backing.fd(&folder), "", AtFlags::EMPTY_PATH);
                if self.table.number(inode(&stat.map_err(errno)?)) != number {
                    return Err(errno(Errno::STALE));
                }
                Ok(folder)
            }
            Some(Whereabouts::Root) => Err(errno(Errno::INVAL)),
            Some(Whereabouts::Held(_)) | None => Err(errno(Errno::NOENT)),
        })?;
        Ok(self.folders.put(number, Arc::new(Dir::new(dir))))
    }

    /// Where an inode is, and its backing attributes.
    pub fn spot(&self, number: u64, thread: &mut B::Thread) -> Result<(Spot<B::Folder>, Stat)> {
        self.settled(|| {
            let (spot, stat) = match self.table.find(number) {
                Some(Whereabouts::Root) => {
                    let stat =
                        rustix::fs::statat(self.backing.fd(&self.root.folder), "", AtFlags::EMPTY_PATH);
                    (Spot::Root(self.root.clone()), stat)
                }
                Some(Whereabouts::Named(name)) => {
                    let dir = self.dir(name.parent, thread)?;
                    let stat = self.stat_in(&dir, &name.stored);
                    (Spot::Named(dir, entry(name.stored)), stat)
                }
                Some(Whereabouts::Held(held)) => {
                    let stat = rustix::fs::statat(held.as_fd(), "", AtFlags::EMPTY_PATH);
                    (Spot::Held(held), stat)
                }
                None => return Err(errno(Errno::NOENT)),
            };
            let stat = stat.map_err(errno)?;
            if self.table.number(inode(&stat)) != number {
                return Err(errno(Errno::STALE));
            }
            Ok((spot, stat))
        })
    }

    /// Attributes of a stored entry, not following a link.
    pub fn stat_in(&self, dir: &Dir<B::Folder>, stored: &OsStr) -> rustix::io::Result<Stat> {
        rustix::fs::statat(self.backing.fd(&dir.folder), stored, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// What the kernel is told of an inode.
    pub fn attr(
        &self,
        number: u64,
        stat: &Stat,
        named: Option<(&Dir<B::Folder>, &Entry)>,
        thread: &mut B::Thread,
    ) -> Result<FileAttr> {
        let stored = stat.st_size as u64;
        let size = match (type_of(stat), named) {
            (FileType::RegularFile, _) => match self.table.content(number) {
                Some(opened) => self.backing.len(&opened.content),
                None => self.backing.len_of(stat),
            },
            (FileType::Symlink, Some((dir, entry))) => match self.backing.link_len(stored) {
                Some(len) => len,
                None => self.backing.read_link(&dir.folder, entry, thread)?.len() as u64,
            },
            _ => stored,
        };
        Ok(attributes(number, size, stat))
    }

    /// As [`Inner::attr`], of an inode wherever it is.
    pub fn attr_of(&self, number: u64, thread: &mut B::Thread) -> Result<FileAttr> {
        let (spot, stat) = self.spot(number, thread)?;
        let stat = match (&spot, self.table.parent(number)) {
            (Spot::Named(dir, entry), Some(parent)) => self.mended((parent, dir), entry, stat, thread),
            _ => stat,
        };
        self.attr(number, &stat, spot.named(), thread)
    }

    /// The attributes of an entry whose content a crash may have left torn, after that was put right.
    fn mended(
        &self,
        (parent, dir): (u64, &Dir<B::Folder>),
        entry: &Entry,
        stat: Stat,
        thread: &mut B::Thread,
    ) -> Stat {
        if type_of(&stat) != FileType::RegularFile || !self.backing.is_torn(&stat) {
            return stat;
        }
        let file =
            self.backing.open_file(&dir.folder, entry, OFlags::RDWR).or_else(|error| {
                match is_refusal(&error) {
                    true => self.backing.open_file(&dir.folder, entry, OFlags::RDONLY),
                    false => Err(error),
                }
            });
        // What does not open tells so when it is opened.
        let Ok(file) = file else { return stat };
        let is_it = rustix::fs::fstat(&file).is_ok_and(|found| inode(&found) == inode(&stat));
        if is_it {
            let place = place(&stat, self.table.path(parent, &entry.stored));
            drop(self.backing.open_content(file, place, thread));
        }
        self.stat_in(dir, &entry.stored).unwrap_or(stat)
    }

    /// Tells the kernel of an entry: attributes and generation, counted as looked up.
    pub fn found(
        &self,
        parent: u64,
        dir: &Dir<B::Folder>,
        entry: &Entry,
        stat: &Stat,
        thread: &mut B::Thread,
    ) -> Result<(FileAttr, fuser::Generation)> {
        let number = self.table.number(inode(stat));
        let stat = &self.mended((parent, dir), entry, *stat, thread);
        let attr = self.attr(number, stat, Some((dir, entry)), thread)?;
        let generation = self.table.looked_up(number, parent, &entry.stored);
        Ok((attr, fuser::Generation(generation)))
    }

    /// The mode for something new in a folder: the umask counts only without a default ACL.
    pub fn masked(&self, dir: &Dir<B::Folder>, mode: u32, umask: u32) -> Mode {
        let look = || self.acls.load(Ordering::Relaxed) && self.has_default_acl(dir);
        if self.behaviour.shared {
            dir.acl_changed();
        }
        let mode = if dir.default_acl(look) { mode } else { mode & !umask };
        Mode::from_raw_mode(mode & 0o7777)
    }

    fn has_default_acl(&self, dir: &Dir<B::Folder>) -> bool {
        let path = proc_path(self.backing.fd(&dir.folder).as_raw_fd(), Some(OsStr::new(".")));
        match rustix::fs::lgetxattr_query(&path, "system.posix_acl_default") {
            Ok(len) => len > 0,
            Err(Errno::OPNOTSUPP) => {
                self.acls.store(false, Ordering::Relaxed);
                false
            }
            Err(_) => false,
        }
    }

    /// Does something as the caller, if others are let in.
    pub fn as_caller<T>(&self, caller: Caller, groups: Groups, work: impl FnMut() -> Result<T>) -> Result<T> {
        as_caller(self.privileged && self.behaviour.others, caller, groups, work)
    }

    /// A descriptor that names an entry and opens nothing.
    pub fn name_only(&self, dir: &Dir<B::Folder>, stored: &OsStr) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(self.backing.fd(&dir.folder), stored, flags, Mode::empty()).map_err(errno)
    }

    /// Does something with a path that leads to an inode and never through a link that another user planted.
    pub fn with_path<T>(&self, spot: &Spot<B::Folder>, work: impl FnOnce(&OsStr) -> Result<T>) -> Result<T> {
        match spot {
            Spot::Root(dir) => work(&proc_path(self.backing.fd(&dir.folder).as_raw_fd(), Some(".".as_ref()))),
            Spot::Named(dir, entry) => {
                work(&proc_path(self.backing.fd(&dir.folder).as_raw_fd(), Some(&entry.stored)))
            }
            Spot::Held(held) => work(&proc_path(held.as_raw_fd(), None)),
        }
    }

    /// Changes permissions. Never of what a link points to: the descriptor is the entry's own.
    pub fn chmod(&self, number: u64, spot: &Spot<B::Folder>, mode: u32) -> Result<()> {
        let held = match spot {
            Spot::Root(dir) => {
                let path = proc_path(self.backing.fd(&dir.folder).as_raw_fd(), Some(".".as_ref()));
                return rustix::fs::chmod(path, Mode::from_raw_mode(mode & 0o7777)).map_err(errno);
            }
            Spot::Named(dir, entry) => Arc::new(self.name_only(dir, &entry.stored)?),
            Spot::Held(held) => held.clone(),
        };
        let stat = rustix::fs::statat(held.as_fd(), "", AtFlags::EMPTY_PATH).map_err(errno)?;
        if self.table.number(inode(&stat)) != number {
            return Err(errno(Errno::STALE));
        }
        if type_of(&stat) == FileType::Symlink {
            return Err(errno(Errno::OPNOTSUPP));
        }
        let path = proc_path(held.as_raw_fd(), None);
        rustix::fs::chmod(path, Mode::from_raw_mode(mode & 0o7777)).map_err(errno)
    }

    /// Changes owner and group.
    pub fn chown(&self, spot: &Spot<B::Folder>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        let done = match spot {
            Spot::Root(dir) => {
                rustix::fs::chownat(self.backing.fd(&dir.folder), "", uid, gid, AtFlags::EMPTY_PATH)
            }
            Spot::Named(dir, entry) => rustix::fs::chownat(
                self.backing.fd(&dir.folder),
                &*entry.stored,
                uid,
                gid,
                AtFlags::SYMLINK_NOFOLLOW,
            ),
            Spot::Held(held) => rustix::fs::chownat(held.as_fd(), "", uid, gid, AtFlags::EMPTY_PATH),
        };
        done.map_err(errno)
    }

    /// Changes times of what was found with these attributes.
    pub fn set_times(&self, spot: &Spot<B::Folder>, stat: &Stat, times: &Timestamps) -> Result<()> {
        self.backing.with_times(inode(stat), &mut || self.set_times_now(spot, times).map_err(errno))
    }

    fn set_times_now(&self, spot: &Spot<B::Folder>, times: &Timestamps) -> rustix::io::Result<()> {
        match spot {
            Spot::Root(dir) => {
                rustix::fs::utimensat(self.backing.fd(&dir.folder), "", times, AtFlags::EMPTY_PATH)
            }
            Spot::Named(dir, entry) => rustix::fs::utimensat(
                self.backing.fd(&dir.folder),
                &*entry.stored,
                times,
                AtFlags::SYMLINK_NOFOLLOW,
            ),
            Spot::Held(held) => rustix::fs::utimensat(held.as_fd(), "", times, AtFlags::EMPTY_PATH),
        }
    }

    /// A file's content, with one more opener.
    pub fn open(&self, number: u64, write: bool, thread: &mut B::Thread) -> Result<Arc<Opened<B::Content>>> {
        if let Some(opened) = self.table.reopen(number) {
            if opened.writable || !write {
                return Ok(opened);
            }
            self.table.closed(number);
        }
        let (spot, stat) = self.spot(number, thread)?;
        if type_of(&stat) != FileType::RegularFile {
            return Err(errno(Errno::INVAL));
        }
        let (file, writable, path) = match &spot {
            Spot::Named(dir, entry) => {
                let (file, writable) = self.open_backing(dir, entry, &stat, number, &spot, write)?;
                let parent = self.table.parent(number).unwrap_or(ROOT);
                (file, writable, self.table.path(parent, &entry.stored))
            }
            Spot::Held(held) => {
                let flags = if write { OFlags::RDWR } else { OFlags::RDONLY };
                let path = proc_path(held.as_raw_fd(), None);
                let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK;
                let file = rustix::fs::open(path, flags, Mode::empty()).map_err(errno)?;
                (file.into(), write, OsString::new())
            }
            Spot::Root(_) => return Err(errno(Errno::ISDIR)),
        };
        let stat = rustix::fs::fstat(&file).map_err(errno)?;
        if self.table.number(inode(&stat)) != number {
            return Err(errno(Errno::STALE));
        }
        let place = place(&stat, path);
        let content = self.backing.open_content(file, place, thread)?;
        let opened = Arc::new(Opened { content, writable });
        Ok(self.table.opened(number, opened, false))
    }

    fn open_backing(
        &self,
        dir: &Dir<B::Folder>,
        entry: &Entry,
        stat: &Stat,
        number: u64,
        spot: &Spot<B::Folder>,
        write: bool,
    ) -> Result<(std::fs::File, bool)> {
        let open = |flags| self.backing.open_file(&dir.folder, entry, flags);
        if !write && !self.privileged {
            return Ok((open(OFlags::RDONLY)?, false));
        }
        match open(OFlags::RDWR) {
            Ok(file) => Ok((file, true)),
            Err(error) if !write && is_refusal(&error) => Ok((open(OFlags::RDONLY)?, false)),
            // Writing part of a chunk reads it first. A file that its owner may write and not read is opened with the
            // right to read it for that moment.
            Err(error) if error.errno() == Errno::ACCESS.raw_os_error() && stat.st_mode & 0o400 == 0 => {
                self.chmod(number, spot, stat.st_mode | 0o600)?;
                let file = open(OFlags::RDWR);
                self.chmod(number, spot, stat.st_mode)?;
                Ok((file?, true))
            }
            Err(error) => Err(error),
        }
    }

    /// Makes a file, and its content.
    pub fn create(
        &self,
        parent: u64,
        dir: &Dir<B::Folder>,
        entry: &Entry,
        (mode, caller): (Mode, Caller),
        thread: &mut B::Thread,
    ) -> Result<Made<B>> {
        let _creating = self.backing.before_create(thread)?;
        let make = || self.backing.create_file(&dir.folder, entry, mode);
        let file = self.as_caller(caller, groups_for(mode), make)?;
        let undo = |error| {
            let _ = self.backing.remove(&dir.folder, entry, false);
            error
        };
        let stat = rustix::fs::fstat(&file).map_err(errno).map_err(undo)?;
        let place = place(&stat, self.table.path(parent, &entry.stored));
        let content = self.backing.create_content(file, place, thread).map_err(undo)?;
        let number = self.table.number(inode(&stat));
        let generation = self.table.looked_up(number, parent, &entry.stored);
        let opened = self.table.opened(number, Arc::new(Opened { content, writable: true }), true);
        let attr = attributes(number, self.backing.len(&opened.content), &stat);
        Ok((opened, attr, fuser::Generation(generation)))
    }
}

fn place(stat: &Stat, path: OsString) -> Place {
    use std::os::unix::ffi::OsStringExt;
    Place { inode: inode(stat), path: path.into_vec() }
}

/// Supplementary groups decide whether a new file may have the set-group bit.
pub(crate) fn groups_for(mode: Mode) -> Groups {
    if mode.contains(Mode::SGID) { Groups::Needed } else { Groups::Perhaps }
}

impl<F> Spot<F> {
    /// Folder and entry, if it has a name.
    pub fn named(&self) -> Option<(&Dir<F>, &Entry)> {
        match self {
            Spot::Named(dir, entry) => Some((dir, entry)),
            _ => None,
        }
    }
}

/// A path through a descriptor.
fn proc_path(fd: i32, stored: Option<&OsStr>) -> OsString {
    let mut path = OsString::from(format!("/proc/self/fd/{fd}"));
    if let Some(stored) = stored {
        path.push("/");
        path.push(stored);
    }
    path
}

/// Failures that a rename in between explains.
fn is_lost(error: &Error) -> bool {
    [Errno::NOENT, Errno::NOTDIR, Errno::STALE, Errno::LOOP]
        .iter()
        .any(|errno| errno.raw_os_error() == error.errno())
}

/// Failures to open for writing after which reading may still do.
fn is_refusal(error: &Error) -> bool {
    [Errno::ACCESS, Errno::PERM, Errno::ROFS, Errno::TXTBSY]
        .iter()
        .any(|errno| errno.raw_os_error() == error.errno())
}
