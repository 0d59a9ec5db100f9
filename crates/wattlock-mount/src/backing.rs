//! What the door asks of what lies behind it: folders of stored names, and contents of files. A sealed volume is one
//! ([`crate::Sealed`]); the example `plain` is another, which shows what FUSE itself costs.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::attr::modified;
use rustix::fs::{FileType, Mode, OFlags, RenameFlags, Stat, Timespec, XattrFlags};
use wattlock_fs::Error;
use wattlock_fs::content::Creating;
use wattlock_fs::store::Place;
use wattlock_fs::tree::{Entry, Listed};
use wattlock_fs::volume::SUCCESSOR_LEN;
use zeroize::Zeroizing;

/// A result of the layer behind.
pub type Result<T> = std::result::Result<T, Error>;

/// What a request for another volume is answered with.
pub const OTHER_VOLUME: &str = "another volume is mounted there";

/// What a finished rotation found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// How many headers and records have the newest key.
    pub sealed: u64,
    /// Files that name a key which the volume has not, a line each.
    pub lost: Vec<String>,
    /// What could not be sealed anew, a line each: the old keys stay.
    pub failed: Vec<String>,
}

/// Which volume is meant.
pub struct Which {
    /// The volume's id.
    pub id: [u8; 16],
    /// Device and inode number of its folder.
    pub folder: (u64, u64),
}

/// A volume's next key, and what proves that it is.
pub struct Next {
    /// The key's generation.
    pub generation: u32,
    /// The key.
    pub key: Zeroizing<[u8; 32]>,
    /// As [`wattlock_fs::volume::Volume::successors`].
    pub successors: Vec<(u32, [u8; SUCCESSOR_LEN])>,
}

/// Names and contents in a backing folder. Shared by threads; each thread brings its own [`Backing::Thread`].
pub trait Backing: Send + Sync + 'static {
    /// What a thread needs for itself: its dispatcher.
    type Thread: 'static;
    /// An opened backing folder.
    type Folder: Send + Sync + 'static;
    /// An opened file's content.
    type Content: Send + Sync + 'static;

    /// What a thread needs, for the calling thread; `number` counts threads from zero.
    fn thread(&self, number: usize) -> Self::Thread;

    /// The volume's own folder.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    fn root(&self, thread: &mut Self::Thread) -> Result<Self::Folder>;

    /// A folder's descriptor. It may be one that names a place only (`O_PATH`).
    fn fd<'a>(&self, folder: &'a Self::Folder) -> BorrowedFd<'a>;

    /// Opens a folder in a folder.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    fn folder(&self, parent: &Self::Folder, entry: &Entry, thread: &mut Self::Thread)
    -> Result<Self::Folder>;

    /// The stored name of a name.
    ///
    /// # Errors
    /// [`Error::Io`] with `ENAMETOOLONG` or `EINVAL`.
    fn entry(&self, folder: &Self::Folder, name: &OsStr, thread: &mut Self::Thread) -> Result<Entry>;

    /// The name of a stored name, if it has one.
    ///
    /// # Errors
    /// [`Error::Engine`].
    fn name(
        &self,
        folder: &Self::Folder,
        stored: &OsStr,
        thread: &mut Self::Thread,
    ) -> Result<Option<Vec<u8>>>;

    /// The entries of a folder whose names open, and the stored names of those that do not and are damaged.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn list(
        &self,
        folder: &Self::Folder,
        thread: &mut Self::Thread,
    ) -> Result<(Vec<Listed>, Vec<std::ffi::OsString>)>;

    /// Does something in a folder whose owner may list it and not enter it, as if the owner might.
    ///
    /// # Errors
    /// What `work` says.
    fn entered(&self, folder: &Self::Folder, work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let _ = folder;
        work()
    }

    /// Opens an existing backing file, never through a link.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn open_file(&self, folder: &Self::Folder, entry: &Entry, flags: OFlags) -> Result<File>;

    /// Makes a backing file that did not exist.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn create_file(&self, folder: &Self::Folder, entry: &Entry, mode: Mode) -> Result<File>;

    /// Makes a folder.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn make_folder(
        &self,
        folder: &Self::Folder,
        entry: &Entry,
        mode: Mode,
        thread: &mut Self::Thread,
    ) -> Result<()>;

    /// Makes a device, pipe or socket.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn make_node(
        &self,
        folder: &Self::Folder,
        entry: &Entry,
        kind: FileType,
        mode: Mode,
        device: u64,
    ) -> Result<()>;

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn make_link(
        &self,
        folder: &Self::Folder,
        entry: &Entry,
        target: &OsStr,
        thread: &mut Self::Thread,
    ) -> Result<()>;

    /// A symbolic link's target, by what is stored.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    fn open_target(&self, stored: &[u8], thread: &mut Self::Thread) -> Result<Vec<u8>>;

    /// The length of a symbolic link's target by the length of what is stored.
    fn link_len(&self, stored: u64) -> u64;

    /// Makes another name of the file that is this inode, by device and number, and to which a path of a descriptor
    /// leads.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn hard_link(&self, from: ((u64, u64), &OsStr), to: (&Self::Folder, &Entry)) -> Result<()>;

    /// Renames.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn rename(
        &self,
        from: (&Self::Folder, &Entry),
        to: (&Self::Folder, &Entry),
        flags: RenameFlags,
    ) -> Result<()>;

    /// Whether [`Backing::moved`] is to be called.
    fn follows_moves(&self) -> bool {
        false
    }

    /// A file, or a folder, has another name, or one more: paths below the backing folder.
    fn moved(&self, _inode: (u64, u64), _is_folder: bool, _from: &OsStr, _to: &OsStr) {}

    /// Removes an entry; an empty folder with `folder_itself`.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn remove(&self, folder: &Self::Folder, entry: &Entry, folder_itself: bool) -> Result<()>;

    /// Comes before a content is written that was opened by this name: one that the storage may have made of another file
    /// gets a key of its own.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    fn own(
        &self,
        _content: &Self::Content,
        _folder: &Self::Folder,
        _entry: &Entry,
        _thread: &mut Self::Thread,
    ) -> Result<()> {
        Ok(())
    }

    /// Whether [`Backing::own`] was called.
    fn is_own(&self, _content: &Self::Content) -> bool {
        true
    }

    /// Whether [`Backing::rotate`] can be called.
    ///
    /// # Errors
    /// Why not, in one line.
    fn may_rotate(&self, _which: &Which) -> std::result::Result<(), String> {
        Err("nothing is sealed there".to_owned())
    }

    /// Seals everything under the volume's next key and forgets the older ones. Returns how many headers and records have
    /// it.
    ///
    /// # Errors
    /// Why older keys are still needed, in one line.
    fn rotate(
        &self,
        _which: &Which,
        _next: &Next,
        _stop: &dyn Fn() -> bool,
        _thread: &mut Self::Thread,
    ) -> std::result::Result<Rotation, String> {
        Err("nothing is sealed there".to_owned())
    }

    /// The content of an inode that is open or that is kept without an opener: what the journal has of a file stays as
    /// long as this lives, although its last name goes.
    fn kept(&self, _inode: (u64, u64)) -> Option<Self::Content> {
        None
    }

    /// Makes what belongs to names durable that were made since the last call.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn sync_records(&self) -> Result<()>;

    /// Lines for the log since the last call: what was mended on the way.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Sets an extended attribute of what `path` names, not following a link at its end.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn set_attribute(
        &self,
        path: &OsStr,
        name: &OsStr,
        value: &[u8],
        flags: XattrFlags,
        thread: &mut Self::Thread,
    ) -> Result<()>;

    /// An extended attribute's value.
    ///
    /// # Errors
    /// [`Error::Io`] with `ENODATA`; [`Error::Damaged`].
    fn attribute(&self, path: &OsStr, name: &OsStr, thread: &mut Self::Thread) -> Result<Vec<u8>>;

    /// The names of extended attributes, POSIX ACLs among them.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn attributes(&self, path: &OsStr, thread: &mut Self::Thread) -> Result<Vec<Vec<u8>>>;

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`Error::Io`] with `ENODATA`.
    fn remove_attribute(&self, path: &OsStr, name: &OsStr, thread: &mut Self::Thread) -> Result<()>;

    /// Called before a new file's backing file is made; what it returns is kept until the file has its content.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn before_create<'a>(&'a self, thread: &mut Self::Thread) -> Result<Option<Creating<'a>>> {
        let _ = thread;
        Ok(None)
    }

    /// Makes the content of a new, empty backing file.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn create_content(&self, file: File, place: Place, thread: &mut Self::Thread) -> Result<Self::Content>;

    /// Makes an empty content in place of one that does not open.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn begin_content(&self, file: File, place: Place, thread: &mut Self::Thread) -> Result<Self::Content> {
        rustix::fs::ftruncate(&file, 0).map_err(|error| Error::io("emptying a file", error))?;
        self.create_content(file, place, thread)
    }

    /// Says whether other programs change the folder meanwhile.
    fn set_shared(&self, _shared: bool) {}

    /// A copy that another program made of an entry, by the name that it is shown by, which no entry has.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn copy(
        &self,
        _folder: &Self::Folder,
        _name: &OsStr,
        _thread: &mut Self::Thread,
    ) -> Result<Option<Entry>> {
        Ok(None)
    }

    /// Opens a file's content.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    fn open_content(&self, file: File, place: Place, thread: &mut Self::Thread) -> Result<Self::Content>;

    /// A content's backing file.
    fn file(&self, content: &Self::Content) -> Arc<File>;

    /// The content's length of a regular file.
    fn len_of(&self, stat: &Stat) -> u64;

    /// The modification time to show of a regular file.
    fn modified(&self, stat: &Stat) -> Timespec {
        modified(stat)
    }

    /// Whether that length, and the backing file's, may be wrong until the content has been opened once.
    fn is_torn(&self, stat: &Stat) -> bool {
        let _ = stat;
        false
    }

    /// Whether it was opened to be read: nothing in it is changed, whatever the mount's options say.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Whether [`Backing::look_through`] has anything to do.
    fn may_be_torn(&self) -> bool {
        false
    }

    /// Opens every content that may be torn, until `stop` says so. `alone` says that no other program renames in the
    /// folder.
    ///
    /// # Errors
    /// [`Error::Engine`].
    fn look_through(&self, alone: bool, stop: &dyn Fn() -> bool, thread: &mut Self::Thread) -> Result<()> {
        let _ = (alone, stop, thread);
        Ok(())
    }

    /// Does something that sets times of a backing inode: housekeeping, which puts times back, must not undo it. It is told
    /// whether these have to be earlier ones ([`wattlock_fs::content::earlier`]).
    fn with_times(&self, inode: (u64, u64), work: &mut dyn FnMut(bool) -> Result<()>) -> Result<()> {
        let _ = inode;
        work(false)
    }

    /// Bytes that a content has at most.
    fn longest(&self) -> u64 {
        i64::MAX as u64
    }

    /// The length of an opened content.
    fn len(&self, content: &Self::Content) -> u64;

    /// Reads; fewer bytes only at the end.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    fn read(
        &self,
        content: &Self::Content,
        to: &mut [u8],
        at: u64,
        thread: &mut Self::Thread,
    ) -> Result<usize>;

    /// Writes all.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    fn write(&self, content: &Self::Content, from: &[u8], at: u64, thread: &mut Self::Thread) -> Result<()>;

    /// Writes all at the end.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    fn append(&self, content: &Self::Content, from: &[u8], thread: &mut Self::Thread) -> Result<u64>;

    /// Cuts, or extends with a hole.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    fn set_len(&self, content: &Self::Content, len: u64, thread: &mut Self::Thread) -> Result<()>;

    /// Extends with a hole; what is longer by now stays as it is.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn grow(&self, content: &Self::Content, len: u64, thread: &mut Self::Thread) -> Result<()>;

    /// Makes a range zeros; the length stays.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    fn zero(&self, content: &Self::Content, at: u64, len: u64, thread: &mut Self::Thread) -> Result<()>;

    /// The first byte at or after `at` in a hole, or in data.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    fn seek(
        &self,
        content: &Self::Content,
        at: u64,
        hole: bool,
        thread: &mut Self::Thread,
    ) -> Result<Option<u64>>;

    /// Makes a content durable.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn sync(&self, content: &Self::Content, thread: &mut Self::Thread) -> Result<()>;

    /// Whether housekeeping is due; `idle` if nothing was written for a while.
    fn wants_checkpoint(&self, idle: bool) -> bool;

    /// Housekeeping: what was made durable apart is brought into place.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn checkpoint(&self, thread: &mut Self::Thread) -> Result<()>;

    /// The last checkpoint of a mount that ends well.
    ///
    /// # Errors
    /// As [`Backing::checkpoint`].
    fn end(&self, thread: &mut Self::Thread) -> Result<()> {
        self.checkpoint(thread)
    }

    /// Lines about engines and policy for the reader of the mount's state.
    fn engines(&self) -> Vec<String>;

    /// Takes a setting of the running mount, as `key=value`.
    ///
    /// # Errors
    /// What is wrong with it, in one line.
    fn set(&self, settings: &[String]) -> std::result::Result<(), String>;
}
