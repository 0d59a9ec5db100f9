//! The state behind the requests.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::OsString;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, Stat};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use wattlock_fs::Error;
use wattlock_fs::tree::{Entry, Listed};

use crate::backing::{Backing, Result};
use crate::counters::Counters;
use crate::folders::{Dir, Folders};
use crate::handles::Handles;
use crate::table::{ROOT, Table};
use crate::unsynced::Renamed;
use wattlock_core::sync::lock;

/// How often something that a rename moved away is looked for again.
pub(crate) const TRIES: usize = 1000;

/// How often, at most, it is said that no descriptor is left.
const TELL_FULL: Duration = Duration::from_secs(60);

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

/// How many descriptors there are for what.
#[derive(Debug, Clone, Copy)]
pub struct Descriptors {
    /// Folders that stay open.
    pub folders: usize,
    /// Inodes without a name that are held and not open.
    pub held: usize,
    /// Of which number on no descriptor is an opened file's.
    pub files: u64,
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
    pub acls: AtomicBool,
    threads: AtomicUsize,
    /// Renames and removals going on, and how many there were.
    moving: AtomicUsize,
    moved: AtomicU64,
    pub descriptors: Descriptors,
    /// Files whose names may not be durable.
    pub renamed: Renamed,
    said: Mutex<String>,
    /// When it was said that no descriptor is left.
    full: Mutex<Option<Instant>>,
    /// Takes what must wait for the kernel: a thread that answers requests must not.
    pub later: Queue,
    /// Takes what waits until the kernel has written pages. The answers to those writes may be in `later`, so nothing there
    /// waits for this.
    pub pages: Queue,
    pub notifier: OnceLock<fuser::Notifier>,
    /// The mount has ended.
    pub ended: AtomicBool,
}

/// Work for later.
type Job = Box<dyn FnOnce() + Send>;

/// Work for a thread of its own, in the order in which it comes.
#[derive(Default)]
pub(crate) struct Queue(Mutex<Option<Sender<Job>>>);

impl Queue {
    /// Starts the thread. It ends after [`Queue::end`], when all is done.
    pub fn start(&self, name: &str) -> io::Result<()> {
        let (sender, jobs) = std::sync::mpsc::channel::<Job>();
        let work = move || jobs.into_iter().for_each(|job| job());
        std::thread::Builder::new().name(name.to_owned()).spawn(work)?;
        *lock(&self.0) = Some(sender);
        Ok(())
    }

    /// Has the thread do something. Requests that are answered by a thread that is gone fail.
    pub fn add(&self, job: impl FnOnce() + Send + 'static) {
        let sender = lock(&self.0).clone();
        match sender {
            Some(sender) => drop(sender.send(Box::new(job))),
            None => job(),
        }
    }

    /// Nothing comes any more.
    pub fn end(&self) {
        lock(&self.0).take();
    }
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
    pub fn new(backing: B, behaviour: Behaviour, descriptors: Descriptors) -> Result<Door<B>> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let root = backing.root(&mut backing.thread(0))?;
        let stat = rustix::fs::statat(backing.fd(&root), "", AtFlags::EMPTY_PATH).map_err(errno)?;
        backing.set_shared(behaviour.shared);
        let inner = Inner {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            root: Arc::new(Dir::new(root)),
            backing,
            table: Table::new(inode(&stat), descriptors.held),
            folders: Folders::new(descriptors.folders),
            files: Handles::default(),
            dirs: Handles::default(),
            behaviour,
            counters: Counters::default(),
            privileged: rustix::process::geteuid().is_root(),
            acls: AtomicBool::new(true),
            threads: AtomicUsize::new(0),
            moving: AtomicUsize::new(0),
            moved: AtomicU64::new(0),
            descriptors,
            renamed: Renamed::default(),
            said: Mutex::default(),
            full: Mutex::default(),
            later: Queue::default(),
            pages: Queue::default(),
            notifier: OnceLock::new(),
            ended: AtomicBool::new(false),
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
        if is_full(error) {
            self.tell_full();
        }
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
        match self.table.name(number, 0) {
            Some(name) => {
                let path = self.table.path(name.parent, &name.stored);
                wattlock_door::one_line(path.as_ref()).to_string()
            }
            None if number == ROOT => ".".to_owned(),
            None => format!("inode {number}"),
        }
    }

    /// Says that names move, until what it gives back is dropped.
    pub fn moving(&self) -> Moving<'_> {
        self.moving.fetch_add(1, Ordering::SeqCst);
        Moving(&self.moving, &self.moved)
    }

    /// Renames and removals that go on, and how many there were: unchanged while no name moves.
    pub fn moves(&self) -> (u64, usize) {
        let moved = self.moved.load(Ordering::SeqCst);
        (moved, self.moving.load(Ordering::SeqCst))
    }

    /// Repeats what goes by number and failed because a name had moved by then. What still fails is what another
    /// program moved: told that it is stale, the kernel walks the path once more.
    pub fn settled<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        let mut room = false;
        for _ in 0..TRIES {
            let moves = self.moves();
            match work() {
                Err(error) if is_lost(&error) => {
                    if moves.1 == 0 && moves == self.moves() {
                        break;
                    }
                    std::thread::yield_now();
                }
                Err(error) if is_full(&error) && !room => {
                    self.make_room();
                    room = true;
                }
                done => return done,
            }
        }
        Err(errno(Errno::STALE))
    }

    /// Closes what is open for the sake of speed, of inodes without a name, or of records that wait to be synced.
    pub fn make_room(&self) {
        self.table.let_all_go();
        self.folders.forget_all();
        // What fails here fails again, and is told then.
        drop(self.backing.sync_records());
    }

    /// Says, at times, that no descriptor is left, and what helps.
    fn tell_full(&self) {
        let mut told = lock(&self.full);
        if told.is_some_and(|at| at.elapsed() < TELL_FULL) {
            return;
        }
        *told = Some(Instant::now());
        let limit =
            getrlimit(Resource::Nofile).current.map_or("any number of".to_owned(), |limit| limit.to_string());
        let open = self.table.counts().1;
        (self.behaviour.log)(&format!(
            "{open} files are open and this process may have {limit} descriptors: no more can be opened (too many open \
             files). A higher hard limit helps: `ulimit -n` before mounting, LimitNOFILE= in a service, or \
             /etc/security/limits.conf"
        ));
    }
}

/// Whether a failure is that there is no descriptor left.
pub(crate) fn is_full(error: &Error) -> bool {
    [Errno::MFILE, Errno::NFILE].iter().any(|errno| errno.raw_os_error() == error.errno())
}

/// Failures that a rename in between explains.
pub(crate) fn is_lost(error: &Error) -> bool {
    [Errno::NOENT, Errno::NOTDIR, Errno::STALE, Errno::LOOP]
        .iter()
        .any(|errno| errno.raw_os_error() == error.errno())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_in_one_queue_is_answered_by_another() {
        let (later, pages) = (Queue::default(), Queue::default());
        later.start("later").unwrap();
        pages.start("pages").unwrap();
        let (answer, answered) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel();
        pages.add(move || end.send(answered.recv()).unwrap());
        later.add(move || answer.send(7).unwrap());
        assert_eq!(ended.recv(), Ok(Ok(7)));
    }
}
