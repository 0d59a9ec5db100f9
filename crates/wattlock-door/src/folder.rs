//! A folder that stays the same one whatever becomes of its name: files in it are opened, made, named and removed by
//! their own name only, so that another process that moves folders or plants links cannot lead them astray.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fcntl_setfl, fstat, fsync, openat, statat};
use rustix::io::Errno;

use crate::error::Error;

/// An open folder.
#[derive(Debug, Clone)]
pub struct Folder {
    fd: Arc<OwnedFd>,
    path: PathBuf,
}

/// What a name in a folder stands for. A link is not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// File, folder, link or anything else.
    pub kind: FileType,
    /// Mode bits.
    pub mode: u32,
    /// Names that the file has.
    pub names: u64,
    /// Device and inode.
    pub identity: (u64, u64),
    /// Length, and time of the last change of the content: seconds and nanoseconds.
    pub content: (u64, i64, i64),
    pub(crate) owner: u32,
}

impl From<Stat> for Seen {
    #[allow(clippy::unnecessary_cast, reason = "the fields' types differ between architectures")]
    fn from(stat: Stat) -> Seen {
        Seen {
            kind: FileType::from_raw_mode(stat.st_mode),
            mode: stat.st_mode & 0o7777,
            names: stat.st_nlink as u64,
            identity: (stat.st_dev as u64, stat.st_ino as u64),
            content: (stat.st_size as u64, stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            owner: stat.st_uid,
        }
    }
}

impl Folder {
    /// Opens the folder of this path, links to folders followed, and says which name the path has in it.
    ///
    /// # Errors
    /// [`Error::NotFound`] with the folder's path, [`Error::IsFolder`] for a path without a name, [`Error::Io`].
    pub fn of(path: &Path) -> Result<(Folder, OsString), Error> {
        let name = path.file_name().ok_or_else(|| Error::IsFolder(path.to_owned()))?.to_owned();
        Ok((Folder::open(Folder::path_of(path))?, name))
    }

    /// The path of the folder of this path.
    pub fn path_of(path: &Path) -> &Path {
        match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        }
    }

    /// Opens a folder, a link to one followed.
    ///
    /// # Errors
    /// As [`Folder::of`].
    pub fn open(path: &Path) -> Result<Folder, Error> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        // A folder that may be entered and not listed has files, too.
        let opened = openat(CWD, path, flags | OFlags::RDONLY, Mode::empty())
            .or_else(|_| openat(CWD, path, flags | OFlags::PATH, Mode::empty()));
        match opened {
            Ok(fd) => Ok(Folder { fd: Arc::new(fd), path: path.to_owned() }),
            Err(Errno::NOENT) => Err(Error::NotFound(path.to_owned())),
            Err(error) => {
                Err(Error::io(format!("opening the folder {}", crate::one_line(path)), error.into()))
            }
        }
    }

    /// A folder that is open already, and how messages call it.
    pub fn opened(fd: OwnedFd, path: &Path) -> Folder {
        Folder { fd: Arc::new(fd), path: path.to_owned() }
    }

    /// Its path when it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a name in it, for messages.
    pub fn at(&self, name: &OsStr) -> PathBuf {
        if self.path == Path::new(".") { name.into() } else { self.path.join(name) }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// What a name stands for; `None` if there is nothing.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn look(&self, name: &OsStr) -> Result<Option<Seen>, Error> {
        match statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.failed("looking at", name, error)),
        }
    }

    /// Opens a regular file to be read, without waiting for anything; a link to one only if `follow`. Nothing else is
    /// opened: opening a device can have effects.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsFolder`], [`Error::NotRegular`], [`Error::Io`].
    pub fn open_file(&self, name: &OsStr, follow: bool) -> Result<(File, Seen), Error> {
        let path = || self.at(name);
        let refuse = |seen: Seen| match seen.kind {
            FileType::RegularFile => Ok(seen),
            FileType::Directory => Err(Error::IsFolder(path())),
            _ => Err(Error::NotRegular(path())),
        };
        let failed = |error: Errno| match error {
            Errno::NOENT => Error::NotFound(path()),
            // A link that took the place of the file that was there.
            Errno::LOOP => Error::NotRegular(path()),
            error => self.failed("opening", name, error),
        };
        let (at, open) = match follow {
            true => (AtFlags::empty(), OFlags::empty()),
            false => (AtFlags::SYMLINK_NOFOLLOW, OFlags::NOFOLLOW),
        };
        refuse(statat(&self.fd, name, at).map_err(failed)?.into())?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | open;
        let fd = openat(&self.fd, name, flags, Mode::empty()).map_err(failed)?;
        let seen = refuse(fstat(&fd).map_err(failed)?.into())?;
        fcntl_setfl(&fd, OFlags::empty()).map_err(failed)?;
        Ok((fd.into(), seen))
    }

    /// Removes a name.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn remove(&self, name: &OsStr) -> Result<(), Error> {
        rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())
            .map_err(|error| self.failed("removing", name, error))
    }

    /// Brings its names to the disk. Where a folder cannot be synchronised, they get there with the file system's.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        match fsync(&self.fd) {
            Ok(()) | Err(Errno::INVAL | Errno::NOTSUP | Errno::BADF | Errno::ROFS | Errno::ACCESS) => Ok(()),
            Err(error) => Err(Error::writing(error.into())),
        }
    }

    fn failed(&self, what: &str, name: &OsStr, error: Errno) -> Error {
        Error::io(format!("{what} {}", crate::one_line(&self.at(name))), error.into())
    }
}
