//! An encrypted volume behind the door.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use rustix::fs::{FileType, Mode, OFlags, RenameFlags, Stat, XattrFlags};
use rustix::io::Errno;
use wattlock::{Dispatcher, Runtime};
use wattlock_fs::Error;
use wattlock_fs::content::{Content, Contents};
use wattlock_fs::names::target_len;
use wattlock_fs::store::{FolderStore, Place};
use wattlock_fs::tree::{Entry, Folder, Listed, Tree};
use wattlock_fs::volume::Volume;

use crate::attributes;
use crate::backing::{Backing, Result};
use crate::lock;

/// How a mount's engines are chosen, and how that is told.
pub trait Engines: Send + Sync + 'static {
    /// A runtime with these settings, `key=value` each, over those that were given before. The runtime must open with
    /// a CPU engine whatever another engine sealed: a wrong tag found next year is lost data.
    ///
    /// # Errors
    /// What is wrong with them, in one line.
    fn runtime(&self, settings: &[String]) -> std::result::Result<Runtime, String>;

    /// What a runtime did, for people.
    fn describe(&self, runtime: &Runtime) -> Vec<String>;
}

/// What a thread has: its dispatcher, of the settings that were in force when it was made.
pub struct SealedThread {
    settings: u64,
    dispatcher: Dispatcher,
}

/// An encrypted volume, opened.
pub struct Sealed {
    tree: Tree,
    root: Mutex<Option<Folder>>,
    contents: Contents<FolderStore>,
    engines: Box<dyn Engines>,
    runtime: RwLock<(Arc<Runtime>, Instant)>,
    /// Counts changes of settings.
    settings: AtomicU64,
}

impl Sealed {
    /// Opens a volume's folder. The lines are for the log: what an earlier run did not finish, and was mended.
    ///
    /// # Errors
    /// [`Error::InUse`] if it is mounted; [`Error::Damaged`]; [`Error::Io`].
    pub fn open(
        path: &Path,
        volume: &Volume,
        runtime: Runtime,
        engines: Box<dyn Engines>,
    ) -> Result<(Sealed, Vec<String>)> {
        let mut dispatcher = runtime.dispatcher();
        let store =
            FolderStore::open(path).map_err(|error| Error::io("opening the volume's folder", error))?;
        // First: it takes the lock.
        let (contents, recovered) =
            Contents::start(store, volume, &mut dispatcher).map_err(|error| match error.errno() {
                errno if errno == Errno::WOULDBLOCK.raw_os_error() => Error::InUse,
                _ => error,
            })?;
        let (tree, root) = Tree::open(path, volume, &mut dispatcher)?;
        let sealed = Sealed {
            tree,
            root: Mutex::new(Some(root)),
            contents,
            engines,
            runtime: RwLock::new((Arc::new(runtime), Instant::now())),
            settings: AtomicU64::new(0),
        };
        Ok((sealed, recovered.lines))
    }

    fn runtime(&self) -> (Arc<Runtime>, Instant) {
        self.runtime.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn fresh(&self) -> SealedThread {
        // Read first: a change in between is noticed at the next request.
        let settings = self.settings.load(Ordering::Acquire);
        SealedThread { settings, dispatcher: self.runtime().0.dispatcher() }
    }

    /// The thread's dispatcher, of the settings in force.
    fn crypto<'a>(&self, thread: &'a mut SealedThread) -> &'a mut Dispatcher {
        if thread.settings != self.settings.load(Ordering::Acquire) {
            *thread = self.fresh();
        }
        &mut thread.dispatcher
    }
}

fn failed(error: Errno) -> Error {
    Error::io("extended attribute", error)
}

impl Backing for Sealed {
    type Thread = SealedThread;
    type Folder = Folder;
    type Content = Arc<Content<FolderStore>>;

    fn thread(&self, _number: usize) -> SealedThread {
        self.fresh()
    }

    fn root(&self, _thread: &mut SealedThread) -> Result<Folder> {
        lock(&self.root).take().ok_or_else(|| Error::Usage("the volume's folder is in use".to_owned()))
    }

    fn fd<'a>(&self, folder: &'a Folder) -> BorrowedFd<'a> {
        folder.fd().as_fd()
    }

    fn folder(&self, parent: &Folder, entry: &Entry, thread: &mut SealedThread) -> Result<Folder> {
        self.tree.folder(parent, entry, self.crypto(thread))
    }

    fn entry(&self, folder: &Folder, name: &OsStr, thread: &mut SealedThread) -> Result<Entry> {
        self.tree.entry(folder, name.as_bytes(), self.crypto(thread))
    }

    fn list(&self, folder: &Folder, thread: &mut SealedThread) -> Result<(Vec<Listed>, Vec<OsString>)> {
        self.tree.list(folder, self.crypto(thread))
    }

    fn open_file(&self, folder: &Folder, entry: &Entry, flags: OFlags) -> Result<File> {
        self.tree.open_file(folder, entry, flags)
    }

    fn create_file(&self, folder: &Folder, entry: &Entry, mode: Mode) -> Result<File> {
        self.tree.create_file(folder, entry, mode)
    }

    fn make_folder(
        &self,
        folder: &Folder,
        entry: &Entry,
        mode: Mode,
        thread: &mut SealedThread,
    ) -> Result<()> {
        self.tree.make_folder(folder, entry, mode, self.crypto(thread))
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
        thread: &mut SealedThread,
    ) -> Result<()> {
        self.tree.make_link(folder, entry, target.as_bytes(), self.crypto(thread))
    }

    fn read_link(&self, folder: &Folder, entry: &Entry, thread: &mut SealedThread) -> Result<Vec<u8>> {
        self.tree.read_link(folder, entry, self.crypto(thread))
    }

    fn link_len(&self, stored: u64) -> Option<u64> {
        Some(target_len(stored))
    }

    fn hard_link(&self, from: (&Folder, &Entry), to: (&Folder, &Entry)) -> Result<()> {
        self.tree.hard_link(from, to)
    }

    fn rename(&self, from: (&Folder, &Entry), to: (&Folder, &Entry), flags: RenameFlags) -> Result<()> {
        self.tree.rename(from, to, flags)
    }

    fn remove(&self, folder: &Folder, entry: &Entry, folder_itself: bool) -> Result<()> {
        self.tree.remove(folder, entry, folder_itself)
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
        thread: &mut SealedThread,
    ) -> Result<()> {
        let (extras, crypto) = (self.tree.extras(), self.crypto(thread));
        let stored = extras.attribute(name.as_bytes(), crypto)?;
        let value = extras.seal_value(name.as_bytes(), value, crypto)?;
        attributes::set(path, OsStr::from_bytes(&stored), &value, flags).map_err(failed)
    }

    fn attribute(&self, path: &OsStr, name: &OsStr, thread: &mut SealedThread) -> Result<Vec<u8>> {
        let (extras, crypto) = (self.tree.extras(), self.crypto(thread));
        let stored = extras.attribute(name.as_bytes(), crypto)?;
        let value = attributes::get(path, OsStr::from_bytes(&stored)).map_err(failed)?;
        extras.open_value(name.as_bytes(), &value, crypto)
    }

    fn attributes(&self, path: &OsStr, thread: &mut SealedThread) -> Result<Vec<Vec<u8>>> {
        let (extras, crypto) = (self.tree.extras(), self.crypto(thread));
        let mut shown = Vec::new();
        for stored in attributes::list(path).map_err(failed)? {
            shown.extend(extras.attribute_name(&stored, crypto)?);
        }
        Ok(shown)
    }

    fn remove_attribute(&self, path: &OsStr, name: &OsStr, thread: &mut SealedThread) -> Result<()> {
        let stored = self.tree.extras().attribute(name.as_bytes(), self.crypto(thread))?;
        attributes::remove(path, OsStr::from_bytes(&stored)).map_err(failed)
    }

    fn create_content(&self, file: File, place: Place, thread: &mut SealedThread) -> Result<Self::Content> {
        self.contents.create(file, place, self.crypto(thread))
    }

    fn open_content(&self, file: File, place: Place, thread: &mut SealedThread) -> Result<Self::Content> {
        self.contents.open(file, place, self.crypto(thread))
    }

    fn len_of(&self, stat: &Stat) -> u64 {
        self.contents.len_of((stat.st_dev, stat.st_ino), stat.st_size as u64)
    }

    fn len(&self, content: &Self::Content) -> u64 {
        content.len()
    }

    fn read(
        &self,
        content: &Self::Content,
        to: &mut [u8],
        at: u64,
        thread: &mut SealedThread,
    ) -> Result<usize> {
        content.read(to, at, self.crypto(thread))
    }

    fn write(&self, content: &Self::Content, from: &[u8], at: u64, thread: &mut SealedThread) -> Result<()> {
        content.write(from, at, self.crypto(thread))
    }

    fn append(&self, content: &Self::Content, from: &[u8], thread: &mut SealedThread) -> Result<u64> {
        content.append(from, self.crypto(thread))
    }

    fn set_len(&self, content: &Self::Content, len: u64, thread: &mut SealedThread) -> Result<()> {
        content.set_len(len, self.crypto(thread))
    }

    fn grow(&self, content: &Self::Content, len: u64, thread: &mut SealedThread) -> Result<()> {
        content.grow(len, self.crypto(thread))
    }

    fn zero(&self, content: &Self::Content, at: u64, len: u64, thread: &mut SealedThread) -> Result<()> {
        content.zero(at, len, self.crypto(thread))
    }

    fn seek(
        &self,
        content: &Self::Content,
        at: u64,
        hole: bool,
        thread: &mut SealedThread,
    ) -> Result<Option<u64>> {
        content.seek(at, hole, self.crypto(thread))
    }

    fn sync(&self, content: &Self::Content, thread: &mut SealedThread) -> Result<()> {
        content.sync(self.crypto(thread))
    }

    fn wants_checkpoint(&self, idle: bool) -> bool {
        self.contents.wants_checkpoint(idle)
    }

    fn checkpoint(&self, thread: &mut SealedThread) -> Result<()> {
        self.tree.sync_records()?;
        self.contents.checkpoint(self.crypto(thread))
    }

    fn engines(&self) -> Vec<String> {
        let (runtime, since) = self.runtime();
        let mut lines = vec![format!("engines, with these settings for {} s:", since.elapsed().as_secs())];
        lines.extend(self.engines.describe(&runtime));
        lines
    }

    fn set(&self, settings: &[String]) -> std::result::Result<(), String> {
        let runtime = self.engines.runtime(settings)?;
        *self.runtime.write().unwrap_or_else(PoisonError::into_inner) = (Arc::new(runtime), Instant::now());
        self.settings.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

/// What a name costs as a link target is known without a key.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_target_says_how_long_it_is() {
        // 16 bytes of nonce, 16 of vector, then the target, in 4 characters for 3 bytes.
        assert_eq!(target_len(44), 1);
        assert_eq!(target_len(0), 0);
    }
}
