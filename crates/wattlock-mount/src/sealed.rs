//! An encrypted volume behind the door.

mod rotating;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat, XattrFlags};
use rustix::io::Errno;
use wattlock::policy::MAX_ENGINES;
use wattlock::{Dispatcher, Runtime};
use wattlock_core::Kind;
use wattlock_core::recent::Mark;
use wattlock_fs::Error;
use wattlock_fs::content::{Age, Content, Contents, Creating, Judge};
use wattlock_fs::names::target_len;
use wattlock_fs::store::{FolderStore, Place};
use wattlock_fs::tree::{Entry, Folder, Listed, Tree};
use wattlock_fs::volume::Volume;

use crate::attributes;
use crate::backing::{Backing, Next, Result, Which};
use crate::counters::by_size;
use wattlock_core::sync::lock;

/// How a mount's engines are chosen, and how that is told.
pub trait Engines: Send + Sync + 'static {
    /// Puts settings in force, `key=value` each, over those that were given before.
    ///
    /// # Errors
    /// What is wrong with them, in one line; nothing has changed then.
    fn set(&self, runtime: &Runtime, settings: &[String]) -> std::result::Result<(), String>;

    /// What a runtime did, for people.
    fn describe(&self, runtime: &Runtime) -> Vec<String>;
}

/// Is told how old a journal is.
pub type Note = Box<dyn Fn(&Age) + Send + Sync>;

/// An encrypted volume, opened.
pub struct Sealed {
    tree: Tree,
    root: Mutex<Option<Folder>>,
    contents: Contents<FolderStore>,
    engines: Box<dyn Engines>,
    runtime: Runtime,
    done: Done,
    longest: u64,
    /// The volume's id.
    id: [u8; 16],
    /// The volume, with the keys that are in force; held while it is rotated.
    volume: Mutex<Volume>,
    shared: AtomicBool,
    note: OnceLock<Note>,
}

/// The inode of a regular file that a name means now, and how many names it has.
fn file_at((folder, entry): (&Folder, &Entry)) -> Option<((u64, u64), u64)> {
    let stat = rustix::fs::statat(folder.fd(), &*entry.stored, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    file.then_some(((stat.st_dev, stat.st_ino), stat.st_nlink))
}

/// A file's content, and when it was written to.
pub struct SealedContent {
    content: Arc<Content<FolderStore>>,
    writes: Mark,
    /// No storage has made it of another file.
    own: AtomicBool,
}

impl SealedContent {
    fn new(content: Arc<Content<FolderStore>>) -> SealedContent {
        SealedContent { content, writes: Mark::default(), own: AtomicBool::new(false) }
    }
}

impl Sealed {
    /// Opens a volume's folder. The lines are for the log: what an earlier run did not finish, and was mended. With
    /// `read_only` nothing is written and nothing mended ([`Contents::start_to_read`]).
    ///
    /// # Errors
    /// [`Error::InUse`] if it is mounted; [`Error::Damaged`]; [`Error::Io`]; [`wattlock_door::Error::Interrupted`] if
    /// `stop` says so before it is done.
    pub fn open(
        path: &Path,
        volume: &Volume,
        (runtime, engines): (Runtime, Box<dyn Engines>),
        read_only: bool,
        (stop, judge): (&dyn Fn() -> bool, Judge<'_>),
    ) -> Result<(Sealed, Vec<String>)> {
        let mut dispatcher = runtime.dispatcher();
        let store =
            FolderStore::open(path).map_err(|error| Error::io("opening the volume's folder", error))?;
        // First: it takes the lock.
        let started = Contents::start_judged(store, volume, read_only, (stop, judge), &mut dispatcher);
        let (contents, recovered) = started.map_err(|error| match error.errno() {
            errno if errno == Errno::WOULDBLOCK.raw_os_error() => Error::InUse,
            _ => error,
        })?;
        let (tree, root) = match read_only {
            true => Tree::open_to_read(path, volume, &mut dispatcher)?,
            false => Tree::open(path, volume, &mut dispatcher)?,
        };
        tree.set_crashed(contents.may_be_torn() && !read_only);
        let (root, done) = (Mutex::new(Some(root)), Done::default());
        // What a file may grow to is found by growing one; nothing grows where nothing is written.
        let longest = if read_only { i64::MAX as u64 } else { longest_file(path) };
        let longest = contents.len_of((0, 0), longest);
        let (id, volume, note) = (volume.id, Mutex::new(volume.clone()), OnceLock::new());
        let shared = AtomicBool::new(false);
        let sealed =
            Sealed { tree, root, contents, engines, runtime, done, longest, id, volume, shared, note };
        Ok((sealed, recovered.lines))
    }

    /// Does something with a content, for a request of so many bytes: the policy hears of the files that are written, and
    /// what came of it is counted.
    fn operate<T>(
        &self,
        file: &SealedContent,
        (kind, bytes): (Kind, usize),
        thread: &mut Dispatcher,
        work: impl FnOnce(&Content<FolderStore>, &mut Dispatcher) -> T,
    ) -> T {
        let _writes = (kind == Kind::Aes256GcmSeal).then(|| self.runtime.operates_on(&file.writes));
        let engines = self.runtime.engines().len().min(MAX_ENGINES);
        let mut before = [0; MAX_ENGINES];
        (0..engines).for_each(|engine| before[engine] = thread.done_by(engine, kind));
        let done = work(&file.content, thread);
        for (engine, had) in before[..engines].iter().enumerate() {
            let more = thread.done_by(engine, kind).wrapping_sub(*had);
            if more > 0 {
                self.done.add(engine, kind, bytes, more);
            }
        }
        done
    }

    /// Refuses what changes something in a volume that was opened to be read.
    fn is_writable(&self) -> Result<()> {
        match self.contents.is_read_only() {
            true => Err(Error::io("read-only volume", Errno::ROFS)),
            false => Ok(()),
        }
    }

    /// How old the journal is now.
    pub fn age(&self) -> Age {
        self.contents.age()
    }

    /// Has somebody told how old the journal is whenever it was brought into place, before its lock is given back.
    pub fn tell(&self, note: Note) {
        _ = self.note.set(note);
    }

    fn told(&self) {
        if let Some(note) = self.note.get() {
            note(&self.contents.age());
        }
    }

    /// A file had so many names, and has one less.
    fn name_gone(&self, file: Option<((u64, u64), u64)>) {
        match file {
            Some((inode, 1)) => self.contents.removed_wholly(inode),
            Some((inode, _)) => self.contents.removed(inode),
            None => {}
        }
    }

    /// Does something that gives entries other names: a thread that looks for what a crash left torn hears of it.
    fn while_moving<T>(&self, entries: &[(&Folder, &Entry)], work: impl FnOnce() -> T) -> T {
        if !self.contents.counts_moves() {
            return work();
        }
        let inode = |entry| file_at(entry).map(|(inode, _)| inode);
        let inodes: Vec<_> = entries.iter().copied().map(inode).collect();
        self.contents.while_moving(&inodes, work)
    }
}

/// Reading and writing, as kinds.
const KINDS: [(Kind, &str); 2] = [(Kind::Aes256GcmOpen, "read"), (Kind::Aes256GcmSeal, "write")];

/// Sizes of requests are told apart by powers of two up to this many bytes.
const CLASSES: usize = 21;

/// Chunks that engines opened and sealed, by the size of the request that they were part of. Only ever added to.
#[derive(Default)]
struct Done([[[AtomicU64; CLASSES]; KINDS.len()]; MAX_ENGINES]);

impl Done {
    fn add(&self, engine: usize, kind: Kind, bytes: usize, chunks: u64) {
        let class = (bytes.max(1).next_power_of_two().trailing_zeros() as usize).min(CLASSES - 1);
        let at = usize::from(kind == Kind::Aes256GcmSeal);
        self.0[engine][at][class].fetch_add(chunks, Ordering::Relaxed);
    }

    /// A line for each engine and operation that there was.
    fn lines(&self, names: impl Iterator<Item = &'static str>) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, kinds) in names.zip(&self.0) {
            for ((_, operation), sizes) in KINDS.iter().zip(kinds) {
                let sizes = sizes.iter().map(|chunks| chunks.load(Ordering::Relaxed)).enumerate();
                let sizes = by_size(sizes);
                if !sizes.is_empty() {
                    lines.push(format!("{operation} {name}, chunks in requests up to {sizes}"));
                }
            }
        }
        lines
    }
}

fn failed(error: Errno) -> Error {
    Error::io("extended attribute", error)
}

/// Bytes that a file of the file system of a folder has at most, tried with a file without a name. Where there is none,
/// the most that the system counts.
fn longest_file(folder: &Path) -> u64 {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let most = i64::MAX as u64;
    let Ok(file) = rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR) else { return most };
    if rustix::fs::ftruncate(&file, most).is_ok() {
        return most;
    }
    // One bit after the other.
    (0..i64::BITS - 1).rev().fold(0, |len, bit| {
        let longer = len | 1 << bit;
        if rustix::fs::ftruncate(&file, longer).is_ok() { longer } else { len }
    })
}

impl Backing for Sealed {
    type Thread = Dispatcher;
    type Folder = Folder;
    type Content = SealedContent;

    fn thread(&self, number: usize) -> Dispatcher {
        self.runtime.dispatcher_of(u16::try_from(number).unwrap_or(u16::MAX))
    }

    fn root(&self, _thread: &mut Dispatcher) -> Result<Folder> {
        lock(&self.root).take().ok_or_else(|| Error::Usage("the volume's folder is in use".to_owned()))
    }

    fn fd<'a>(&self, folder: &'a Folder) -> BorrowedFd<'a> {
        folder.fd().as_fd()
    }

    fn folder(&self, parent: &Folder, entry: &Entry, thread: &mut Dispatcher) -> Result<Folder> {
        self.tree.folder(parent, entry, thread)
    }

    fn entry(&self, folder: &Folder, name: &OsStr, thread: &mut Dispatcher) -> Result<Entry> {
        self.tree.entry(folder, name.as_bytes(), thread)
    }

    fn name(&self, folder: &Folder, stored: &OsStr, thread: &mut Dispatcher) -> Result<Option<Vec<u8>>> {
        self.tree.name(folder, stored, thread)
    }

    fn list(&self, folder: &Folder, thread: &mut Dispatcher) -> Result<(Vec<Listed>, Vec<OsString>)> {
        let (listed, mut foreign) = self.tree.list(folder, thread)?;
        // Files of other programs are no damage.
        foreign.retain(|stored| !self.tree.is_of_others(folder, stored));
        Ok((listed, foreign))
    }

    fn entered(&self, folder: &Folder, work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.tree.entered(folder, work)
    }

    fn open_file(&self, folder: &Folder, entry: &Entry, flags: OFlags) -> Result<File> {
        self.tree.open_file(folder, entry, flags)
    }

    fn create_file(&self, folder: &Folder, entry: &Entry, mode: Mode) -> Result<File> {
        self.tree.create_file(folder, entry, mode)
    }

    fn make_folder(&self, folder: &Folder, entry: &Entry, mode: Mode, thread: &mut Dispatcher) -> Result<()> {
        self.tree.make_folder(folder, entry, mode, thread)
    }

    fn make_node(
        &self,
        folder: &Folder,
        entry: &Entry,
        kind: FileType,
        mode: Mode,
        device: u64,
    ) -> Result<()> {
        self.tree.make_node(folder, entry, kind, mode, device)
    }

    fn make_link(
        &self,
        folder: &Folder,
        entry: &Entry,
        target: &OsStr,
        thread: &mut Dispatcher,
    ) -> Result<()> {
        self.tree.make_link(folder, entry, target.as_bytes(), thread)
    }

    fn open_target(&self, stored: &[u8], thread: &mut Dispatcher) -> Result<Vec<u8>> {
        self.tree.extras().open_target(stored, thread)
    }

    fn link_len(&self, stored: u64) -> u64 {
        target_len(stored)
    }

    fn hard_link(&self, (inode, path): ((u64, u64), &OsStr), to: (&Folder, &Entry)) -> Result<()> {
        self.is_writable()?;
        self.contents.while_moving(&[Some(inode)], || self.tree.link_of(path, to))
    }

    fn rename(&self, from: (&Folder, &Entry), to: (&Folder, &Entry), flags: RenameFlags) -> Result<()> {
        self.is_writable()?;
        // In an exchange both move.
        let both = [from, to];
        let moved = if flags.contains(RenameFlags::EXCHANGE) { &both[..] } else { &both[..1] };
        // Known by its name only until then.
        let replaced = if flags.contains(RenameFlags::EXCHANGE) { None } else { file_at(to) };
        self.while_moving(moved, || self.tree.rename(from, to, flags))?;
        self.name_gone(replaced);
        Ok(())
    }

    fn own(
        &self,
        file: &SealedContent,
        folder: &Folder,
        entry: &Entry,
        thread: &mut Dispatcher,
    ) -> Result<()> {
        if entry.sidecar.is_none() && self.tree.may_be_copy(folder, &entry.stored, thread)? {
            file.content.own_copy(entry.stored.as_bytes(), thread)?;
        }
        file.own.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn is_own(&self, file: &SealedContent) -> bool {
        file.own.load(Ordering::Relaxed)
    }

    fn may_rotate(&self, which: &Which) -> std::result::Result<(), String> {
        self.may_be_rotated(which)
    }

    fn rotate(
        &self,
        which: &Which,
        next: &Next,
        stop: &dyn Fn() -> bool,
        thread: &mut Dispatcher,
    ) -> std::result::Result<u64, String> {
        self.rotate_to(which, next, stop, thread)
    }

    fn follows_moves(&self) -> bool {
        self.contents.follows_moves()
    }

    fn moved(&self, inode: (u64, u64), is_folder: bool, from: &OsStr, to: &OsStr) {
        self.contents.moved(inode, is_folder, from.as_bytes(), to.as_bytes());
    }

    fn kept(&self, inode: (u64, u64)) -> Option<SealedContent> {
        self.contents.known(inode).map(SealedContent::new)
    }

    fn remove(&self, folder: &Folder, entry: &Entry, folder_itself: bool) -> Result<()> {
        self.is_writable()?;
        let removed = if folder_itself { None } else { file_at((folder, entry)) };
        self.tree.remove(folder, entry, folder_itself)?;
        self.name_gone(removed);
        Ok(())
    }

    fn sync_records(&self) -> Result<()> {
        self.tree.sync_records()
    }

    fn notes(&self) -> Vec<String> {
        let mut lines = self.tree.take_notes();
        lines.extend(self.contents.take_lines());
        lines
    }

    fn set_attribute(
        &self,
        path: &OsStr,
        name: &OsStr,
        value: &[u8],
        flags: XattrFlags,
        thread: &mut Dispatcher,
    ) -> Result<()> {
        self.is_writable()?;
        let (extras, crypto) = (self.tree.extras(), thread);
        let stored = extras.attribute(name.as_bytes(), crypto)?;
        let value = extras.seal_value(name.as_bytes(), value, crypto)?;
        let set = attributes::set(path, OsStr::from_bytes(&stored), &value, flags);
        set.map_err(|error| match error {
            // The value is no longer than any may be; what is added to it is.
            Errno::TOOBIG => failed(Errno::NOSPC),
            error => failed(error),
        })
    }

    fn attribute(&self, path: &OsStr, name: &OsStr, thread: &mut Dispatcher) -> Result<Vec<u8>> {
        let (extras, crypto) = (self.tree.extras(), thread);
        let stored = extras.attribute(name.as_bytes(), crypto)?;
        let value = attributes::get(path, OsStr::from_bytes(&stored)).map_err(failed)?;
        extras.open_value(name.as_bytes(), &value, crypto)
    }

    fn attributes(&self, path: &OsStr, thread: &mut Dispatcher) -> Result<Vec<Vec<u8>>> {
        let (extras, crypto) = (self.tree.extras(), thread);
        let mut shown = Vec::new();
        for stored in attributes::list(path).map_err(failed)? {
            shown.extend(extras.attribute_name(&stored, crypto)?);
        }
        Ok(shown)
    }

    fn remove_attribute(&self, path: &OsStr, name: &OsStr, thread: &mut Dispatcher) -> Result<()> {
        self.is_writable()?;
        let stored = self.tree.extras().attribute(name.as_bytes(), thread)?;
        attributes::remove(path, OsStr::from_bytes(&stored)).map_err(failed)
    }

    fn before_create<'a>(&'a self, thread: &mut Dispatcher) -> Result<Option<Creating<'a>>> {
        Ok(Some(self.contents.before_create(thread)?))
    }

    fn create_content(&self, file: File, place: Place, thread: &mut Dispatcher) -> Result<SealedContent> {
        // Its key was made just now.
        let content = SealedContent::new(self.contents.create(file, place, thread)?);
        content.own.store(true, Ordering::Relaxed);
        Ok(content)
    }

    fn begin_content(&self, file: File, place: Place, thread: &mut Dispatcher) -> Result<SealedContent> {
        let content = self.contents.begin_anew(file, place, thread)?;
        Ok(SealedContent::new(content))
    }

    fn set_shared(&self, shared: bool) {
        self.tree.set_shared(shared);
        self.shared.store(shared, Ordering::SeqCst);
    }

    fn copy(&self, folder: &Folder, name: &OsStr, thread: &mut Dispatcher) -> Result<Option<Entry>> {
        self.tree.copy(folder, name.as_bytes(), thread)
    }

    fn open_content(&self, file: File, place: Place, thread: &mut Dispatcher) -> Result<SealedContent> {
        let content = self.contents.open(file, place, thread)?;
        Ok(SealedContent::new(content))
    }

    fn file(&self, file: &SealedContent) -> Arc<File> {
        file.content.file()
    }

    fn len_of(&self, stat: &Stat) -> u64 {
        self.contents.len_of((stat.st_dev, stat.st_ino), stat.st_size as u64)
    }

    fn is_torn(&self, stat: &Stat) -> bool {
        !self.contents.is_sound((stat.st_dev, stat.st_ino))
    }

    fn is_read_only(&self) -> bool {
        self.contents.is_read_only()
    }

    fn may_be_torn(&self) -> bool {
        self.contents.may_be_torn()
    }

    fn look_through(&self, alone: bool, stop: &dyn Fn() -> bool, thread: &mut Dispatcher) -> Result<()> {
        // Folders first: that contents may be torn is what says that a folder's record may be.
        let whole = self.tree.look_through(stop, thread)?;
        self.contents.look_through(alone, stop, thread)?;
        self.tree.set_crashed(!whole || self.contents.may_be_torn());
        Ok(())
    }

    fn with_times(&self, inode: (u64, u64), work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.contents.with_times(inode, work)
    }

    fn longest(&self) -> u64 {
        self.longest
    }

    fn len(&self, file: &SealedContent) -> u64 {
        file.content.len()
    }

    fn read(&self, file: &SealedContent, to: &mut [u8], at: u64, thread: &mut Dispatcher) -> Result<usize> {
        let what = (Kind::Aes256GcmOpen, to.len());
        self.operate(file, what, thread, |content, crypto| content.read(to, at, crypto))
    }

    fn write(&self, file: &SealedContent, from: &[u8], at: u64, thread: &mut Dispatcher) -> Result<()> {
        let what = (Kind::Aes256GcmSeal, from.len());
        self.operate(file, what, thread, |content, crypto| content.write(from, at, crypto))
    }

    fn append(&self, file: &SealedContent, from: &[u8], thread: &mut Dispatcher) -> Result<u64> {
        let what = (Kind::Aes256GcmSeal, from.len());
        self.operate(file, what, thread, |content, crypto| content.append(from, crypto))
    }

    fn set_len(&self, file: &SealedContent, len: u64, thread: &mut Dispatcher) -> Result<()> {
        file.content.set_len(len, thread)
    }

    fn grow(&self, file: &SealedContent, len: u64, thread: &mut Dispatcher) -> Result<()> {
        file.content.grow(len, thread)
    }

    fn zero(&self, file: &SealedContent, at: u64, len: u64, thread: &mut Dispatcher) -> Result<()> {
        file.content.zero(at, len, thread)
    }

    fn seek(
        &self,
        file: &SealedContent,
        at: u64,
        hole: bool,
        thread: &mut Dispatcher,
    ) -> Result<Option<u64>> {
        file.content.seek(at, hole, thread)
    }

    fn sync(&self, file: &SealedContent, thread: &mut Dispatcher) -> Result<()> {
        file.content.sync(thread)
    }

    fn wants_checkpoint(&self, idle: bool) -> bool {
        self.contents.wants_checkpoint(idle)
    }

    fn checkpoint(&self, thread: &mut Dispatcher) -> Result<()> {
        if self.contents.is_read_only() {
            return Ok(());
        }
        self.tree.sync_records()?;
        self.contents.checkpoint(thread)?;
        self.told();
        Ok(())
    }

    fn end(&self, thread: &mut Dispatcher) -> Result<()> {
        if self.contents.is_read_only() {
            return Ok(());
        }
        self.tree.sync_records()?;
        self.contents.end(thread)?;
        self.told();
        Ok(())
    }

    fn engines(&self) -> Vec<String> {
        let names = self.runtime.engines().iter().map(|engine| engine.description().name);
        let mut lines = vec![format!("files in operation {}", self.runtime.files_in_operation())];
        lines.extend(self.done.lines(names));
        lines.extend(self.engines.describe(&self.runtime));
        lines
    }

    fn set(&self, settings: &[String]) -> std::result::Result<(), String> {
        self.engines.set(&self.runtime, settings)
    }
}

#[cfg(test)]
mod tests;
