//! The two trees between which `fs cp` copies, in the same words: the volume's, and the system's.
//!
//! Folders are descriptors, and what is in them is named by one component: another program that moves folders or plants
//! links meanwhile leads no copy astray.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use rustix::fs::{FileType, Stat, Timespec, Timestamps};
use wattlock_fs::Error;

/// The attributes that are access control lists: a file's, and what a folder gives to what is made in it.
pub const LISTS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// Names and values of extended attributes, in clear.
pub type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// What is known of an entry without opening it.
#[derive(Debug, Clone)]
pub struct Seen {
    pub kind: FileType,
    /// Permissions, set-id and sticky bits.
    pub mode: u32,
    pub owner: (u32, u32),
    pub inode: (u64, u64),
    /// Names that the file has.
    pub links: u64,
    /// A device's number.
    pub device: u64,
    /// Bytes of content in clear.
    pub size: u64,
    pub times: Timestamps,
}

impl Seen {
    #[allow(clippy::unnecessary_cast, reason = "the fields' types differ between architectures")]
    pub fn new(stat: &Stat, size: u64) -> Seen {
        let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
        Seen {
            kind: FileType::from_raw_mode(stat.st_mode),
            mode: stat.st_mode & 0o7777,
            owner: (stat.st_uid, stat.st_gid),
            inode: (stat.st_dev as u64, stat.st_ino as u64),
            links: stat.st_nlink as u64,
            device: stat.st_rdev as u64,
            size,
            times: Timestamps {
                last_access: time(stat.st_atime as i64, stat.st_atime_nsec as _),
                last_modification: time(stat.st_mtime as i64, stat.st_mtime_nsec as _),
            },
        }
    }

    /// Of an open folder, or of what a descriptor names.
    pub fn of(fd: impl AsFd) -> Result<Seen, Error> {
        let stat = rustix::fs::fstat(fd).map_err(|error| Error::io("looking at an entry", error))?;
        Ok(Seen::new(&stat, 0))
    }

    /// When the content changed last, in nanoseconds.
    pub fn modified(&self) -> i128 {
        let time = &self.times.last_modification;
        i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
    }
}

/// The path by which a call that takes only paths reaches what a descriptor names, never what a link there points to.
pub fn by_descriptor(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// Stored names of what could not be read, and why.
pub type Unread = Vec<(OsString, Error)>;

/// A tree of files.
pub trait Side {
    /// An open folder.
    type Dir: Clone;
    /// An open file's content.
    type Body;

    /// The folder of a path; `None` if there is none.
    fn folder_at(&mut self, path: &Path) -> Result<Option<Self::Dir>>;
    /// The folder in which a path's last name is.
    fn parent_at(&mut self, path: &Path) -> Result<Self::Dir>;
    /// A folder in a folder.
    fn enter(&mut self, dir: &Self::Dir, name: &[u8]) -> Result<Self::Dir, Error>;
    /// A folder's descriptor.
    fn fd<'a>(&self, dir: &'a Self::Dir) -> BorrowedFd<'a>;
    /// A descriptor that names an entry, of whatever kind, without opening it.
    fn pin(&mut self, dir: &Self::Dir, name: &[u8]) -> Result<OwnedFd, Error>;
    /// The names in a folder; and what is there and has none, each with why.
    fn list(&mut self, dir: &Self::Dir) -> Result<(Vec<Vec<u8>>, Unread), Error>;
    /// What a name stands for; `None` for nothing.
    fn look(&mut self, dir: &Self::Dir, name: &[u8]) -> Result<Option<Seen>, Error>;
    /// A symbolic link's target: of the link that a descriptor names, which has this name.
    fn target(&mut self, dir: &Self::Dir, name: &[u8], link: &OwnedFd) -> Result<Vec<u8>, Error>;
    /// An attribute's name in clear; `None` for one that is not copied.
    fn clear_name(&mut self, stored: Vec<u8>) -> Result<Option<Vec<u8>>, Error>;
    /// An attribute's value in clear.
    fn clear_value(&mut self, name: &[u8], stored: Vec<u8>) -> Result<Vec<u8>, Error>;
    /// An attribute as it is stored.
    fn stored(&mut self, name: &[u8], value: &[u8]) -> Result<(Vec<u8>, Vec<u8>), Error>;

    /// Opens a regular file to be read.
    fn open(&mut self, dir: &Self::Dir, name: &[u8]) -> Result<Self::Body, Error>;
    /// An open file's descriptor.
    fn file(&self, body: &Self::Body) -> Arc<File>;
    /// Reads; 0 bytes only at a verified end.
    fn read(&mut self, body: &Self::Body, to: &mut [u8], at: u64) -> Result<usize, Error>;
    /// The next byte of a hole or of data.
    fn seek(&mut self, body: &Self::Body, at: u64, hole: bool) -> Result<Option<u64>, Error>;

    /// Removes what an earlier copy left under its hidden name, unless that copy is still running.
    fn take_over(&mut self, dir: &Self::Dir, name: &[u8]) -> Result<(), Error>;
    /// Makes an empty file that only its owner may read.
    fn make_file(&mut self, dir: &Self::Dir, name: &[u8]) -> Result<Self::Body, Error>;
    /// Writes all; what is left out in between is a hole.
    fn write(&mut self, body: &Self::Body, from: &[u8], at: u64) -> Result<(), Error>;
    /// Extends a file by a hole.
    fn extend(&mut self, body: &Self::Body, len: u64) -> Result<(), Error>;
    /// Makes a folder that only its owner may enter.
    fn make_folder(&mut self, dir: &Self::Dir, name: &[u8]) -> Result<(), Error>;
    /// Makes a symbolic link.
    fn make_link(&mut self, dir: &Self::Dir, name: &[u8], target: &[u8]) -> Result<(), Error>;
    /// Makes a device, pipe or socket.
    fn make_node(&mut self, dir: &Self::Dir, name: &[u8], like: &Seen) -> Result<(), Error>;
    /// Gives a file another name.
    fn hard_link(&mut self, from: (&Self::Dir, &[u8]), to: (&Self::Dir, &[u8])) -> Result<(), Error>;
    /// Renames in a folder.
    fn rename(&mut self, dir: &Self::Dir, from: &[u8], to: &[u8], replace: bool) -> Result<(), Error>;
    /// Removes what is no folder.
    fn remove(&mut self, dir: &Self::Dir, name: &[u8]) -> Result<(), Error>;
    /// Sets times of an inode; is told whether these have to be earlier ones ([`wattlock_fs::content::earlier`]).
    fn with_times(
        &self,
        inode: (u64, u64),
        set: &dyn Fn(bool) -> rustix::io::Result<()>,
    ) -> rustix::io::Result<()>;
}
