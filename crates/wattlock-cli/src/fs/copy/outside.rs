//! The system's side of a copy.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, RenameFlags, SeekFrom};
use rustix::io::Errno;
use wattlock_fs::Error;

use super::side::{Seen, Side, Unread};
use crate::fs::world::{about, stop};

/// Files outside of the volume.
pub struct Outside {
    /// The volume's own folder, which is never copied into itself.
    pub volume: (u64, u64),
}

const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::CLOEXEC);
const PRIVATE: Mode = Mode::from_raw_mode(0o600);

fn os(name: &[u8]) -> &OsStr {
    OsStr::from_bytes(name)
}

impl Outside {
    /// A folder that is not the volume's own.
    fn allowed(&self, folder: OwnedFd) -> Result<Arc<OwnedFd>, Error> {
        match Seen::of(&folder)?.inode == self.volume {
            true => Err(Error::Usage("this is the volume's own folder".into())),
            false => Ok(Arc::new(folder)),
        }
    }
}

impl Side for Outside {
    type Dir = Arc<OwnedFd>;
    type Body = Arc<File>;

    fn folder_at(&mut self, path: &Path) -> Result<Option<Self::Dir>> {
        match rustix::fs::open(path, FOLDER, Mode::empty()) {
            Ok(folder) => Ok(Some(self.allowed(folder).map_err(|error| about(path, error))?)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(about(path, Error::io("opening a folder", error))),
        }
    }

    fn parent_at(&mut self, path: &Path) -> Result<Self::Dir> {
        let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        self.folder_at(above)?.ok_or_else(|| wattlock_door::Error::NotFound(above.to_owned()).into())
    }

    fn enter(&mut self, dir: &Self::Dir, name: &[u8]) -> Result<Self::Dir, Error> {
        let folder = rustix::fs::openat(&**dir, os(name), FOLDER | OFlags::NOFOLLOW, Mode::empty());
        self.allowed(folder.map_err(|error| Error::io("opening a folder", error))?)
    }

    fn fd<'a>(&self, dir: &'a Self::Dir) -> BorrowedFd<'a> {
        dir.as_fd()
    }

    fn pin(&mut self, dir: &Self::Dir, name: &[u8]) -> Result<OwnedFd, Error> {
        super::pin(dir.as_fd(), os(name))
    }

    fn list(&mut self, dir: &Self::Dir) -> Result<(Vec<Vec<u8>>, Unread), Error> {
        let failed = |error: Errno| Error::io("listing a folder", error);
        let mut names = Vec::new();
        for entry in Dir::read_from(&**dir).map_err(failed)? {
            if stop() {
                return Err(wattlock_door::Error::Interrupted.into());
            }
            let name = entry.map_err(failed)?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(name);
            }
        }
        names.sort();
        Ok((names, Vec::new()))
    }

    #[allow(clippy::unnecessary_cast, reason = "the field's type differs between architectures")]
    fn look(&mut self, dir: &Self::Dir, name: &[u8]) -> Result<Option<Seen>, Error> {
        match rustix::fs::statat(&**dir, os(name), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Seen::new(&stat, stat.st_size as u64))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(Error::io("looking at an entry", error)),
        }
    }

    fn target(&mut self, _dir: &Self::Dir, _name: &[u8], link: &OwnedFd) -> Result<Vec<u8>, Error> {
        let target = rustix::fs::readlinkat(link, "", Vec::new());
        Ok(target.map_err(|error| Error::io("reading a link", error))?.into_bytes())
    }

    fn clear_name(&mut self, stored: Vec<u8>) -> Result<Option<Vec<u8>>, Error> {
        Ok(Some(stored))
    }

    fn clear_value(&mut self, _name: &[u8], stored: Vec<u8>) -> Result<Vec<u8>, Error> {
        Ok(stored)
    }

    fn stored(&mut self, name: &[u8], value: &[u8]) -> Result<(Vec<u8>, Vec<u8>), Error> {
        Ok((name.to_vec(), value.to_vec()))
    }

    fn open(&mut self, dir: &Self::Dir, name: &[u8]) -> Result<Arc<File>, Error> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(&**dir, os(name), flags, Mode::empty());
        Ok(Arc::new(file.map_err(|error| Error::io("opening a file", error))?.into()))
    }

    fn file(&self, body: &Arc<File>) -> Arc<File> {
        body.clone()
    }

    fn read(&mut self, body: &Arc<File>, to: &mut [u8], at: u64) -> Result<usize, Error> {
        wattlock_fs::store::File::read_at(&**body, to, at).map_err(|error| Error::io("reading a file", error))
    }

    fn seek(&mut self, body: &Arc<File>, at: u64, hole: bool) -> Result<Option<u64>, Error> {
        let to = if hole { SeekFrom::Hole(at) } else { SeekFrom::Data(at) };
        match rustix::fs::seek(&**body, to) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NXIO) => Ok(None),
            // Where holes are not known all is data.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok((!hole).then_some(at)),
            Err(error) => Err(Error::io("looking for holes", error)),
        }
    }

    fn take_over(&mut self, dir: &Self::Dir, name: &[u8]) -> Result<(), Error> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        if let Ok(left) = rustix::fs::openat(&**dir, os(name), flags, Mode::empty()) {
            rustix::fs::flock(&left, FlockOperation::NonBlockingLockExclusive).map_err(
                |error| match error {
                    Errno::WOULDBLOCK => {
                        let why = "another copy is writing it";
                        Error::io(
                            "an unfinished copy",
                            std::io::Error::new(std::io::ErrorKind::ResourceBusy, why),
                        )
                    }
                    error => Error::io("locking an unfinished copy", error),
                },
            )?;
        }
        self.remove(dir, name)
    }

    fn make_file(&mut self, dir: &Self::Dir, name: &[u8]) -> Result<Arc<File>, Error> {
        let failed = |error: Errno| Error::io("making a file", error);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&**dir, os(name), flags, PRIVATE).map_err(failed)?;
        // Another copy to the same name leaves it alone from here on. Not every file system has locks.
        let _ = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
        match rustix::fs::fstat(&file).map_err(failed)?.st_nlink {
            0 => Err(failed(Errno::EXIST)),
            _ => Ok(Arc::new(file.into())),
        }
    }

    fn write(&mut self, body: &Arc<File>, from: &[u8], at: u64) -> Result<(), Error> {
        body.write_all_at(from, at).map_err(|error| Error::io("writing a file", error))
    }

    fn extend(&mut self, body: &Arc<File>, len: u64) -> Result<(), Error> {
        body.set_len(len).map_err(|error| Error::io("extending a file", error))
    }

    fn make_folder(&mut self, dir: &Self::Dir, name: &[u8]) -> Result<(), Error> {
        let made = rustix::fs::mkdirat(&**dir, os(name), Mode::RWXU);
        made.map_err(|error| Error::io("making a folder", error))
    }

    fn make_link(&mut self, dir: &Self::Dir, name: &[u8], target: &[u8]) -> Result<(), Error> {
        let made = rustix::fs::symlinkat(os(target), &**dir, os(name));
        made.map_err(|error| Error::io("making a link", error))
    }

    fn make_node(&mut self, dir: &Self::Dir, name: &[u8], like: &Seen) -> Result<(), Error> {
        let made = rustix::fs::mknodat(&**dir, os(name), like.kind, PRIVATE, like.device);
        made.map_err(|error| Error::io("making a device, pipe or socket", error))
    }

    fn hard_link(&mut self, from: (&Self::Dir, &[u8]), to: (&Self::Dir, &[u8])) -> Result<(), Error> {
        let made = rustix::fs::linkat(&**from.0, os(from.1), &**to.0, os(to.1), AtFlags::empty());
        made.map_err(|error| Error::io("making a name", error))
    }

    fn rename(&mut self, dir: &Self::Dir, from: &[u8], to: &[u8], replace: bool) -> Result<(), Error> {
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        let plain = || rustix::fs::renameat(&**dir, os(from), &**dir, os(to));
        let renamed = match rustix::fs::renameat_with(&**dir, os(from), &**dir, os(to), flags) {
            // A file system without that rename; nothing was there a moment ago.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => plain(),
            renamed => renamed,
        };
        renamed.map_err(|error| Error::io("renaming", error))
    }

    fn remove(&mut self, dir: &Self::Dir, name: &[u8]) -> Result<(), Error> {
        match rustix::fs::unlinkat(&**dir, os(name), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(Error::io("removing an unfinished copy", error)),
        }
    }

    fn with_times(
        &self,
        _inode: (u64, u64),
        set: &dyn Fn(bool) -> rustix::io::Result<()>,
    ) -> rustix::io::Result<()> {
        set(false)
    }
}
