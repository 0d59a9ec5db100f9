//! For tests of this crate and of programs on it: a store in memory that loses power when a test says so.
//!
//! [`SimStore`] writes down every operation. [`SimStore::crash`] makes the store that a power cut after any of them
//! leaves behind: everything that was synced, and of each 4 KiB page written since any version that it had, as the
//! given choices say. Sizes, and names of files that were never synced, are chosen the same way.
//! [`SimStore::crash_torn`] tears pages, too, between sectors. Room is bounded on request: a write that finds no more
//! pages writes what fits and fails with `ENOSPC`.

pub mod plans;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;
use wattlock_core::sync::lock;

use rustix::fs::Timestamps;

use crate::store::{File, JOURNAL, Place, Store};

/// Bytes of a page, which [`SimStore::crash`] writes wholly or not at all.
pub const PAGE: usize = 4096;
/// Bytes of a sector, which every disk writes wholly or not at all.
const SECTOR: usize = 512;

/// A store in memory. Clones are the same store.
#[derive(Clone, Default)]
pub struct SimStore(Arc<Mutex<World>>);

/// One file of a [`SimStore`].
#[derive(Clone)]
pub struct SimFile {
    store: SimStore,
    inode: u64,
    /// Held as long as it is open.
    _open: Arc<()>,
}

#[derive(Default)]
struct World {
    names: BTreeMap<Vec<u8>, u64>,
    files: BTreeMap<u64, Image>,
    /// Files as they were when the log began.
    start: BTreeMap<u64, Image>,
    log: Vec<Op>,
    next: u64,
    room: Option<usize>,
    /// So many pages more are to be had, whatever is given back.
    left: Option<usize>,
    /// Who has files open.
    open: BTreeMap<u64, Weak<()>>,
    /// Pages that were taken and not written yet.
    taken: BTreeMap<u64, BTreeSet<usize>>,
    syncs: usize,
    writes: usize,
    reads: usize,
    walks: usize,
    /// So many syncs are good, then so many fail.
    good: usize,
    failing: usize,
    /// Files that may not be looked at, and those whose bytes do not come from the disk.
    hidden: BTreeSet<u64>,
    unreadable: BTreeSet<u64>,
    times: BTreeMap<u64, Timestamps>,
    hook: Option<Box<dyn FnOnce() + Send>>,
    /// Files that are older than any epoch.
    old: BTreeSet<u64>,
    born: BTreeMap<u64, Duration>,
    after: BTreeMap<Moment, Box<dyn FnOnce() + Send>>,
}

/// The simulation's clock: a second is over whenever somebody looks at it.
fn clock() -> Duration {
    static SECONDS: AtomicU64 = AtomicU64::new(1 << 30);
    Duration::from_secs(SECONDS.fetch_add(1, Ordering::Relaxed))
}

/// A call of [`File`] behind which a test does something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moment {
    /// [`File::len`]
    Len,
    /// [`File::times`]
    Times,
}

/// A file's pages, and its length. Pages that are missing are holes.
#[derive(Clone, Default, PartialEq, Eq)]
struct Image {
    pages: BTreeMap<usize, Box<[u8; PAGE]>>,
    len: usize,
}

#[derive(Clone)]
enum Op {
    Make(u64),
    Write(u64, usize, Vec<u8>),
    Cut(u64, usize),
    Punch(u64, usize, usize),
    Sync(u64),
    SyncAll,
    /// The disk failed: what was to be written is forgotten, and only memory has it.
    Failed(u64),
    FailedAll,
}

impl Op {
    fn inode(&self) -> Option<u64> {
        match self {
            Op::Make(inode)
            | Op::Write(inode, ..)
            | Op::Cut(inode, _)
            | Op::Punch(inode, ..)
            | Op::Sync(inode)
            | Op::Failed(inode) => Some(*inode),
            Op::SyncAll | Op::FailedAll => None,
        }
    }
}

impl Image {
    /// Bytes of one page of a write, with their place in the page.
    fn spans(at: usize, len: usize) -> impl Iterator<Item = (usize, usize, usize, usize)> {
        let end = at + len;
        (at / PAGE..end.div_ceil(PAGE)).map(move |page| {
            let from = at.max(page * PAGE);
            let to = end.min((page + 1) * PAGE);
            (page, from - page * PAGE, from - at, to - from)
        })
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        for (page, into, from, len) in Image::spans(at, bytes.len()) {
            self.page(page)[into..into + len].copy_from_slice(&bytes[from..from + len]);
        }
        self.len = self.len.max(at + bytes.len());
    }

    fn page(&mut self, page: usize) -> &mut [u8; PAGE] {
        self.pages.entry(page).or_insert_with(|| Box::new([0; PAGE]))
    }

    fn zero(&mut self, at: usize, len: usize) {
        let end = at.saturating_add(len);
        let whole = at.div_ceil(PAGE)..end / PAGE;
        self.pages.retain(|page, _| !whole.contains(page));
        for page in [at / PAGE, end / PAGE] {
            if let Some(bytes) = self.pages.get_mut(&page) {
                let from = at.max(page * PAGE).min((page + 1) * PAGE) - page * PAGE;
                let to = end.min((page + 1) * PAGE).max(page * PAGE) - page * PAGE;
                if from < to {
                    bytes[from..to].fill(0);
                }
            }
        }
    }

    fn cut(&mut self, len: usize) {
        if len < self.len {
            self.zero(len, self.len - len);
        }
        self.len = len;
    }

    fn read(&self, to: &mut [u8], at: usize) -> usize {
        let wanted = self.len.saturating_sub(at).min(to.len());
        for (page, from, into, len) in Image::spans(at, wanted) {
            match self.pages.get(&page) {
                Some(bytes) => to[into..into + len].copy_from_slice(&bytes[from..from + len]),
                None => to[into..into + len].fill(0),
            }
        }
        wanted
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Write(_, at, bytes) => self.write(*at, bytes),
            Op::Cut(_, len) => self.cut(*len),
            Op::Punch(_, at, len) => self.zero(*at, *len),
            Op::Make(_) | Op::Sync(_) | Op::SyncAll | Op::Failed(_) | Op::FailedAll => {}
        }
    }

    /// What is on the disk after operations of which the last is a sync. Pages written before a sync that failed are on
    /// the disk only if they were written again.
    fn synced(mut self, ops: &[&Op]) -> Image {
        if !ops.iter().any(|op| matches!(op, Op::Failed(_) | Op::FailedAll)) {
            ops.iter().for_each(|op| self.apply(op));
            return self;
        }
        let (mut memory, mut dirty) = (self.clone(), BTreeSet::new());
        for op in ops {
            memory.apply(op);
            match op {
                Op::Write(_, at, bytes) => {
                    dirty.extend(Image::spans(*at, bytes.len()).map(|(page, ..)| page));
                }
                Op::Cut(..) | Op::Punch(..) => self.apply(op),
                Op::Failed(_) | Op::FailedAll => dirty.clear(),
                Op::Sync(_) | Op::SyncAll => {
                    for page in std::mem::take(&mut dirty) {
                        match memory.pages.get(&page) {
                            Some(bytes) => _ = self.pages.insert(page, bytes.clone()),
                            None => _ = self.pages.remove(&page),
                        }
                    }
                    self.len = memory.len;
                }
                Op::Make(_) => {}
            }
        }
        self
    }
}

impl SimStore {
    fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.0)
    }

    /// Makes a new, empty file.
    pub fn create(&self, path: &str) -> (SimFile, Place) {
        let mut world = self.world();
        world.next += 1;
        let inode = world.next;
        world.names.insert(path.into(), inode);
        world.born.insert(inode, clock());
        world.files.insert(inode, Image::default());
        world.log.push(Op::Make(inode));
        let file = world.file(self, inode);
        drop(world);
        (file, Place { inode: (1, inode), path: path.into() })
    }

    /// Opens a file, if there is one of this name.
    pub fn open(&self, path: &str) -> Option<(SimFile, Place)> {
        let mut world = self.world();
        let inode = *world.names.get(path.as_bytes())?;
        Some((world.file(self, inode), Place { inode: (1, inode), path: path.into() }))
    }

    /// Gives a file another name.
    pub fn rename(&self, from: &str, to: &str) {
        let mut world = self.world();
        if let Some(inode) = world.names.remove(from.as_bytes()) {
            world.names.insert(to.into(), inode);
        }
    }

    /// Removes a file's name; open files go on.
    pub fn remove(&self, path: &str) {
        self.world().names.remove(path.as_bytes());
    }

    /// Gives back the room of files that have no name and are not open; says how many pages.
    pub fn drop_nameless(&self) -> usize {
        let mut world = self.world();
        let before = world.pages();
        let open: BTreeSet<u64> =
            world.open.iter().filter(|(_, open)| open.strong_count() > 0).map(|(inode, _)| *inode).collect();
        let named: BTreeSet<u64> = world.names.values().copied().collect();
        let World { files, taken, .. } = &mut *world;
        for (inode, image) in
            files.iter_mut().filter(|(inode, _)| !open.contains(inode) && !named.contains(inode))
        {
            *image = Image::default();
            taken.remove(inode);
        }
        before - world.pages()
    }

    /// Whether a file is in a folder that may not be looked into.
    pub fn hide(&self, path: &str, hidden: bool) {
        let mut world = self.world();
        let Some(inode) = world.names.get(path.as_bytes()).copied() else { return };
        match hidden {
            true => world.hidden.insert(inode),
            false => world.hidden.remove(&inode),
        };
    }

    /// Whether reads of a file fail with `EIO`.
    pub fn fail_reads(&self, path: &str, fail: bool) {
        let mut world = self.world();
        let Some(inode) = world.names.get(path.as_bytes()).copied() else { return };
        match fail {
            true => world.unreadable.insert(inode),
            false => world.unreadable.remove(&inode),
        };
    }

    /// All names.
    pub fn names(&self) -> Vec<String> {
        self.world().names.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
    }

    /// A file's bytes as they are stored.
    pub fn bytes(&self, path: &str) -> Vec<u8> {
        let Some((file, _)) = self.open(path) else { return Vec::new() };
        let world = self.world();
        let image = &world.files[&file.inode];
        let mut bytes = vec![0; image.len];
        image.read(&mut bytes, 0);
        bytes
    }

    /// Replaces a file's stored bytes; the file is made if there is none.
    pub fn put(&self, path: &str, bytes: &[u8]) {
        let file = self.open(path).unwrap_or_else(|| self.create(path)).0;
        let mut world = self.world();
        for op in [Op::Cut(file.inode, 0), Op::Write(file.inode, 0, bytes.to_vec())] {
            world.files.entry(file.inode).or_default().apply(&op);
            world.log.push(op);
        }
    }

    /// From now on at most so many pages may be in use.
    pub fn limit(&self, pages: Option<usize>) {
        self.world().room = pages;
    }

    /// Pages in use.
    pub fn used(&self) -> usize {
        self.world().files.values().map(|image| image.pages.len()).sum()
    }

    /// From now on so many pages more are to be had, and then none: others take what is given back.
    pub fn fill_after(&self, pages: Option<usize>) {
        self.world().left = pages;
    }

    /// Pages in use or taken.
    pub fn taken(&self) -> usize {
        self.world().pages()
    }

    /// A file was made long ago.
    pub fn make_old(&self, name: &str) {
        let mut world = self.world();
        let inode = world.names.get(name.as_bytes()).copied();
        world.old.extend(inode);
    }

    /// How many syncs there were, of files and of everything.
    pub fn syncs(&self) -> usize {
        self.world().syncs
    }

    /// Does something while the next sync of a file runs, the journal's excepted: what it writes is not synced.
    pub fn during_next_sync(&self, work: impl FnOnce() + Send + 'static) {
        self.world().hook = Some(Box::new(work));
    }

    /// No longer does what [`SimStore::during_next_sync`] said, if no file was synced since.
    pub fn during_no_sync(&self) {
        self.world().hook = None;
    }

    /// So many syncs fail from now on, each as a disk's do: what was to be written is forgotten, memory keeps it, and
    /// the next sync says nothing of it.
    pub fn fail_syncs(&self, count: usize) {
        let mut world = self.world();
        (world.good, world.failing) = (0, count);
    }

    /// So many syncs are good, and the next fails.
    pub fn fail_sync_after(&self, good: usize) {
        let mut world = self.world();
        (world.good, world.failing) = (good, 1);
    }

    /// Does something when the next call of this kind has its answer and has not returned.
    pub fn after_next(&self, moment: Moment, work: impl FnOnce() + Send + 'static) {
        self.world().after.insert(moment, Box::new(work));
    }

    fn run_after(&self, moment: Moment) {
        let work = self.world().after.remove(&moment);
        if let Some(work) = work {
            work();
        }
    }

    /// How often all folders were looked through.
    pub fn walks(&self) -> usize {
        self.world().walks
    }

    /// How many reads there were.
    pub fn reads(&self) -> usize {
        self.world().reads
    }

    /// How many writes there were.
    pub fn writes(&self) -> usize {
        self.world().writes
    }

    /// Operations since the store was made: a crash may follow each.
    pub fn operations(&self) -> usize {
        self.world().log.len()
    }

    /// How many choices of two versions a crash after so many operations leaves open.
    pub fn choices(&self, operations: usize) -> usize {
        let mut count = 0;
        self.crash(operations, &mut |_| {
            count += 1;
            0
        });
        count
    }

    /// The store after power was lost behind the first `operations`. `choose` is asked for a number below its
    /// argument, once for each thing that is open: which of its versions a page, a length or a name has. The first
    /// version is the synced one, the last the latest.
    pub fn crash(&self, operations: usize, choose: &mut dyn FnMut(usize) -> usize) -> SimStore {
        self.cut_off(operations, false, choose)
    }

    /// As [`SimStore::crash`]; a page may also have the sectors of one version up to some place, and of another from there
    /// on.
    pub fn crash_torn(&self, operations: usize, choose: &mut dyn FnMut(usize) -> usize) -> SimStore {
        self.cut_off(operations, true, choose)
    }

    fn cut_off(&self, operations: usize, tears: bool, choose: &mut dyn FnMut(usize) -> usize) -> SimStore {
        let world = self.world();
        let log = &world.log[..operations];
        let mut files = BTreeMap::new();
        let inodes: Vec<u64> = world.files.keys().copied().collect();
        for inode in inodes {
            let about = |op: &&Op| op.inode().is_none_or(|of| of == inode);
            let ops: Vec<&Op> = log.iter().filter(about).collect();
            let started = world.start.get(&inode);
            let made = ops.iter().any(|op| matches!(op, Op::Make(_)));
            if started.is_none() && !made {
                continue;
            }
            let synced =
                ops.iter().rposition(|op| matches!(op, Op::Sync(_) | Op::SyncAll)).map_or(0, |at| at + 1);
            let named = started.is_some() || ops[..synced].iter().any(|op| matches!(op, Op::Make(_)));
            let durable = started.cloned().unwrap_or_default().synced(&ops[..synced]);
            if !named && choose(2) == 0 {
                continue;
            }
            files.insert(inode, torn(durable, &ops[synced..], tears, choose));
        }
        let names = world
            .names
            .iter()
            .filter(|(_, inode)| files.contains_key(inode))
            .map(|(name, inode)| (name.clone(), *inode))
            .collect();
        let start = files.clone();
        let (next, born) = (world.next, world.born.clone());
        let after = World { names, files, start, next, born, ..World::default() };
        SimStore(Arc::new(Mutex::new(after)))
    }
}

/// A file of which some pages and a length are durable, and others have any version they had since.
fn torn(durable: Image, ops: &[&Op], tears: bool, choose: &mut dyn FnMut(usize) -> usize) -> Image {
    // The versions of the whole file, one after each operation.
    let mut versions = vec![durable];
    for op in ops {
        let mut next = versions[versions.len() - 1].clone();
        next.apply(op);
        versions.push(next);
    }
    // Which of them the metadata has reached: the length, and what was cut or punched.
    let shape = |at: usize| {
        matches!(ops[at - 1], Op::Cut(..) | Op::Punch(..)) || versions[at].len != versions[at - 1].len
    };
    let stages: Vec<usize> = std::iter::once(0).chain((1..versions.len()).filter(|at| shape(*at))).collect();
    let reached = if stages.len() > 1 { stages[choose(stages.len())] } else { 0 };
    let mut pages: Vec<usize> = versions.iter().flat_map(|image| image.pages.keys().copied()).collect();
    pages.sort_unstable();
    pages.dedup();
    let mut image = Image { pages: BTreeMap::new(), len: versions[reached].len };
    for page in pages {
        // What a cut or a punch that is durable has zeroed stays zeroed.
        let least = (1..=reached)
            .filter(|at| matches!(ops[at - 1], Op::Cut(..) | Op::Punch(..)))
            .filter(|at| versions[at - 1].pages.get(&page) != versions[*at].pages.get(&page))
            .max()
            .unwrap_or(0);
        let mut different = vec![least];
        for at in least + 1..versions.len() {
            if versions[at].pages.get(&page) != versions[different[different.len() - 1]].pages.get(&page) {
                different.push(at);
            }
        }
        let at = if different.len() > 1 { different[choose(different.len())] } else { least };
        if let Some(bytes) = versions[at].pages.get(&page) {
            image.pages.insert(page, bytes.clone());
        }
        if tears && different.len() > 1 && choose(2) == 1 {
            let (rest, from) = (different[choose(different.len())], choose(PAGE / SECTOR) * SECTOR);
            let rest = versions[rest].pages.get(&page).map_or([0; PAGE], |bytes| **bytes);
            image.page(page)[from..].copy_from_slice(&rest[from..]);
        }
    }
    // Nothing is behind the end.
    let len = image.len;
    image.len = usize::MAX;
    image.zero(len, usize::MAX - len);
    image.len = len;
    image
}

impl File for SimFile {
    fn read_at(&self, to: &mut [u8], at: u64) -> io::Result<usize> {
        let mut world = self.store.world();
        world.reads += 1;
        if world.unreadable.contains(&self.inode) {
            return Err(rustix::io::Errno::IO.into());
        }
        Ok(world.files[&self.inode].read(to, at as usize))
    }

    fn write_at(&self, from: &[u8], at: u64) -> io::Result<()> {
        let mut world = self.store.world();
        world.writes += 1;
        let mut fits = 0;
        for (page, _, _, len) in Image::spans(at as usize, from.len()) {
            if !world.has(self.inode, page) && !world.take(self.inode, page) {
                break;
            }
            fits += len;
        }
        let op = Op::Write(self.inode, at as usize, from[..fits].to_vec());
        if fits > 0 {
            world.files.entry(self.inode).or_default().apply(&op);
            world.give_back(self.inode, |image, page| image.pages.contains_key(&page));
            world.log.push(op);
        }
        if fits == from.len() { Ok(()) } else { Err(rustix::io::Errno::NOSPC.into()) }
    }

    fn len(&self) -> io::Result<u64> {
        let len = self.store.world().files[&self.inode].len as u64;
        self.store.run_after(Moment::Len);
        Ok(len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut world = self.store.world();
        let op = Op::Cut(self.inode, len as usize);
        let grows = world.files[&self.inode].len < len as usize;
        world.files.entry(self.inode).or_default().apply(&op);
        if !grows {
            world.give_back(self.inode, |_, page| page * PAGE >= len as usize);
        }
        world.log.push(op);
        Ok(())
    }

    fn take_room(&self, at: u64, len: u64) -> io::Result<()> {
        let mut world = self.store.world();
        for (page, ..) in Image::spans(at as usize, len as usize) {
            if !world.has(self.inode, page) && !world.take(self.inode, page) {
                return Err(rustix::io::Errno::NOSPC.into());
            }
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut world = self.store.world();
        world.syncs += 1;
        if world.fails() {
            world.log.push(Op::Failed(self.inode));
            return Err(rustix::io::Errno::IO.into());
        }
        world.log.push(Op::Sync(self.inode));
        let journal = world.names.get(JOURNAL.as_bytes()) == Some(&self.inode);
        let hook = if journal { None } else { world.hook.take() };
        drop(world);
        if let Some(hook) = hook {
            hook();
        }
        Ok(())
    }

    fn punch(&self, at: u64, len: u64) -> io::Result<()> {
        let mut world = self.store.world();
        let image = world.files.entry(self.inode).or_default();
        let len = len.min((image.len as u64).saturating_sub(at));
        let op = Op::Punch(self.inode, at as usize, len as usize);
        image.apply(&op);
        world.give_back(self.inode, |_, page| {
            let (from, to) = (page * PAGE, (page + 1) * PAGE);
            from >= at as usize && to <= (at + len) as usize
        });
        world.log.push(op);
        Ok(())
    }

    fn for_writing(&self) -> io::Result<SimFile> {
        Ok(self.clone())
    }

    fn is_removed(&self) -> bool {
        !self.store.world().names.values().any(|inode| *inode == self.inode)
    }

    fn born(&self) -> Option<Duration> {
        let world = self.store.world();
        let old = world.old.contains(&self.inode) || world.names.get(JOURNAL.as_bytes()) == Some(&self.inode);
        world.born.get(&self.inode).map(|born| if old { Duration::ZERO } else { *born })
    }

    fn now(&self) -> Duration {
        clock()
    }

    fn wait(&self, _time: Duration) {}

    fn times(&self) -> io::Result<Option<Timestamps>> {
        let times = self.store.world().times.get(&self.inode).cloned();
        self.store.run_after(Moment::Times);
        Ok(times)
    }

    fn set_times(&self, times: &Timestamps) -> io::Result<()> {
        self.store.world().times.insert(self.inode, times.clone());
        Ok(())
    }
}

impl World {
    /// Pages in use or taken.
    fn pages(&self) -> usize {
        let used: usize = self.files.values().map(|image| image.pages.len()).sum();
        used + self.taken.values().map(BTreeSet::len).sum::<usize>()
    }

    /// Opens a file.
    fn file(&mut self, store: &SimStore, inode: u64) -> SimFile {
        let there = self.open.get(&inode).and_then(Weak::upgrade);
        let open = there.unwrap_or_else(|| {
            let open = Arc::new(());
            self.open.insert(inode, Arc::downgrade(&open));
            open
        });
        SimFile { store: store.clone(), inode, _open: open }
    }

    /// Whether a page has room.
    fn has(&self, inode: u64, page: usize) -> bool {
        let taken = self.taken.get(&inode).is_some_and(|pages| pages.contains(&page));
        taken || self.files[&inode].pages.contains_key(&page)
    }

    /// Takes room for a page; whether there was any.
    fn take(&mut self, inode: u64, page: usize) -> bool {
        let full = self.room.is_some_and(|room| room <= self.pages()) || self.left == Some(0);
        if !full {
            self.left = self.left.map(|left| left - 1);
            self.taken.entry(inode).or_default().insert(page);
        }
        !full
    }

    /// Of pages that are taken some are not any longer: they are in use, or given back.
    fn give_back(&mut self, inode: u64, gone: impl Fn(&Image, usize) -> bool) {
        let image = &self.files[&inode];
        if let Some(pages) = self.taken.get_mut(&inode) {
            pages.retain(|page| !gone(image, *page));
        }
    }

    /// Whether this sync fails.
    fn fails(&mut self) -> bool {
        if self.good > 0 {
            self.good -= 1;
            return false;
        }
        let fails = self.failing > 0;
        self.failing = self.failing.saturating_sub(1);
        fails
    }
}

impl Store for SimStore {
    type File = SimFile;

    fn make_aside(&self) -> io::Result<(String, SimFile)> {
        let name = crate::beneath::temporary("bad").map_err(io::Error::other)?;
        let file = self.create(&name).0;
        Ok((name, file))
    }

    fn journal(&self) -> io::Result<SimFile> {
        Ok(self.open(JOURNAL).unwrap_or_else(|| self.create(JOURNAL)).0)
    }

    fn journal_to_read(&self) -> io::Result<Option<SimFile>> {
        Ok(self.open(JOURNAL).map(|(file, _)| file))
    }

    fn find(&self, place: &Place, _write: bool) -> io::Result<Option<(Place, SimFile)>> {
        let mut world = self.world();
        let there = world.names.get(&place.path).copied().filter(|inode| !world.hidden.contains(inode));
        Ok(there
            .map(|inode| (Place { inode: (1, inode), path: place.path.clone() }, world.file(self, inode))))
    }

    fn walk(
        &self,
        _write: bool,
        _stop: &dyn Fn() -> bool,
        wanted: &mut dyn FnMut(u64) -> bool,
        found: &mut dyn FnMut(Place, io::Result<SimFile>) -> bool,
    ) {
        let (names, hidden) = {
            let mut world = self.world();
            world.walks += 1;
            (world.names.clone(), world.hidden.clone())
        };
        for (path, inode) in names {
            let there = || match hidden.contains(&inode) {
                true => Err(rustix::io::Errno::ACCESS.into()),
                false => Ok(self.world().file(self, inode)),
            };
            let looked_at = path != JOURNAL.as_bytes() && (hidden.contains(&inode) || wanted(inode));
            if looked_at && !found(Place { inode: (1, inode), path }, there()) {
                break;
            }
        }
    }

    fn sync_all(&self) -> io::Result<()> {
        let mut world = self.world();
        world.syncs += 1;
        if world.fails() {
            world.log.push(Op::FailedAll);
            return Err(rustix::io::Errno::IO.into());
        }
        world.log.push(Op::SyncAll);
        Ok(())
    }
}
