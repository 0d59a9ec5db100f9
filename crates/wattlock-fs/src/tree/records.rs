//! Folder records: written, and made durable before anything that rests on them is acknowledged.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use wattlock_core::sync::lock;
use wattlock_door::Crypto;

use super::second::keep_bad;
use super::stored::{LONG, is_ours};
use super::{Entry, Folder, Tree, failed_io, inode};
use crate::Error;
use crate::beneath;
use crate::format::HEADER_LEN;
use crate::names;
use crate::record::{self, Record};
use crate::volume::Volume;

/// Folder records that may wait for [`Tree::sync_records`]: each holds two descriptors.
const UNSYNCED_MAX: usize = 64;

/// A record that was written and not yet made durable.
pub(super) struct Unsynced {
    pub(super) folder: OwnedFd,
    pub(super) file: File,
    /// A sync failed: memory has it, the system takes it for written, and no later sync would say so.
    pub(super) doubt: bool,
}

impl Unsynced {
    /// Writes what memory has of it once more, if that is needed.
    pub(super) fn write_again(&self) -> Result<(), Error> {
        if !self.doubt {
            return Ok(());
        }
        // What is gone was removed.
        let content = beneath::content(&self.folder, record::NAME, record::LEN)?.unwrap_or_default();
        let written = self.file.write_all_at(&content, 0);
        written.map_err(|error| Error::io("writing a folder record again", error))
    }

    pub(super) fn sync(&self) -> Result<(), Error> {
        self.write_again()?;
        self.file.sync_data().map_err(|error| Error::io("syncing a folder record", error))?;
        rustix::fs::fsync(&self.folder).map_err(|error| Error::io("syncing a folder record", error))
    }
}

impl Tree {
    /// Makes folder records that were written since the last call durable. Called before anything is acknowledged as
    /// durable.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sync_records(&self) -> Result<(), Error> {
        // Held throughout: what one thread is making durable, another must not acknowledge before it is.
        let mut unsynced = lock(&self.unsynced);
        let many = unsynced.len() > UNSYNCED_MAX / 4;
        self.sync_unsynced(&mut unsynced, many, "syncing folder records")
    }

    /// Makes records durable, `all` of the file system at once or each by itself.
    pub(super) fn sync_unsynced(
        &self,
        unsynced: &mut HashMap<(u64, u64), Unsynced>,
        all: bool,
        what: &'static str,
    ) -> Result<(), Error> {
        let synced = if all {
            // One call for the whole file system takes less than many for single files.
            let written = unsynced.values().try_for_each(Unsynced::write_again);
            written.and_then(|()| rustix::fs::syncfs(&self.root).map_err(|error| Error::io(what, error)))
        } else {
            unsynced.values().try_for_each(Unsynced::sync)
        };
        match &synced {
            Ok(()) => unsynced.clear(),
            Err(_) => unsynced.values_mut().for_each(|record| record.doubt = true),
        }
        synced
    }

    /// Makes everything in the volume durable.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sync_all(&self) -> Result<(), Error> {
        if self.read_only {
            return Ok(());
        }
        self.sync_unsynced(&mut lock(&self.unsynced), true, "syncing the volume")
    }

    pub(super) fn unsynced(&self, key: (u64, u64), fd: OwnedFd, file: File) -> Result<(), Error> {
        let many = {
            let mut unsynced = lock(&self.unsynced);
            unsynced.insert(key, Unsynced { folder: fd, file, doubt: false });
            unsynced.len() > UNSYNCED_MAX
        };
        if many { self.sync_records() } else { Ok(()) }
    }

    /// Opens a volume whose own folder has lost its record, and gives it a new one; the damaged one stays beside it.
    /// Names in the folder do not open with it. The keys decide whether it is the right folder.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Damaged`], and nothing has changed, if the volume's keys open nothing in the folder.
    pub fn open_repaired(
        path: &Path,
        volume: &Volume,
        crypto: &mut impl Crypto,
    ) -> Result<(Tree, Folder), Error> {
        let tree = Tree::without_record(path, volume, false, crypto)?;
        let root = tree.root.try_clone().map_err(failed_io)?;
        if !tree.is_of_volume(&root, crypto)? {
            let what =
                "the volume's own folder: the keys open nothing in it: wattlock.fs may be another volume's";
            return Err(Error::Damaged(what.into()));
        }
        let folder = tree.renew_record(root, crypto)?;
        Ok((tree, folder))
    }

    /// Whether something in the folder was sealed with the volume's keys, or nothing is there that could be.
    fn is_of_volume(&self, folder: &OwnedFd, crypto: &mut impl Crypto) -> Result<bool, Error> {
        let mut any = false;
        for name in beneath::names(folder)? {
            if is_ours(name.as_bytes()) {
                continue;
            }
            let Ok(fd) = beneath::open(folder, &*name, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())
            else {
                continue;
            };
            let kind = rustix::fs::fstat(&fd).map(|stat| FileType::from_raw_mode(stat.st_mode));
            let mut header = vec![0; HEADER_LEN];
            let sealed = match kind {
                Ok(FileType::Directory) => beneath::content(&fd, record::NAME, record::LEN).ok().flatten(),
                Ok(FileType::RegularFile) => {
                    File::from(fd).read_exact_at(&mut header, 0).ok().map(|()| header)
                }
                _ => None,
            };
            let Some(sealed) = sealed else { continue };
            let masters = self.masters();
            if record::authenticates(&sealed, &masters, crypto)?
                || record::restored(&sealed, &masters, crypto)?.is_some()
            {
                return Ok(true);
            }
            any |= names::decode(name.as_bytes()).is_some() || name.as_bytes().starts_with(LONG.as_bytes());
        }
        Ok(!any)
    }

    /// Gives a folder whose record does not open a new one, and keeps what was there under another name. Names in the
    /// folder do not open with it.
    pub(crate) fn replace_record(
        &self,
        parent: &Folder,
        entry: &Entry,
        crypto: &mut impl Crypto,
    ) -> Result<Folder, Error> {
        let fd = beneath::folder(&parent.fd, &*entry.stored);
        self.renew_record(fd.map_err(|error| Error::io("opening a folder", error))?, crypto)
    }

    fn renew_record(&self, fd: OwnedFd, crypto: &mut impl Crypto) -> Result<Folder, Error> {
        self.may_write()?;
        let inode = inode(&fd)?;
        keep_bad(&fd)?;
        let record = Record::fresh()?;
        let masters = self.masters();
        let bytes = record.seal(&masters, crypto)?;
        beneath::replace(&fd, record::NAME, &bytes, beneath::SHARED)?;
        Folder::with(fd, inode, &record, None)
    }

    /// An entry that was acknowledged must not come into a folder whose record was not.
    pub(super) fn sync_before_move(&self) -> Result<(), Error> {
        if lock(&self.unsynced).is_empty() { Ok(()) } else { self.sync_records() }
    }

    pub(super) fn with_record(
        &self,
        parent: &Folder,
        name: &str,
        mode: Mode,
        record: &[u8],
    ) -> Result<((u64, u64), OwnedFd, File), Error> {
        let failed = |error: Errno| Error::io("making a folder", error);
        let fd = beneath::open(&parent.fd, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        let fd = fd.map_err(failed)?;
        let file = write_record(&fd, record)?;
        let status = rustix::fs::fstat(&fd).map_err(failed)?;
        if !mode.contains(Mode::RWXU) {
            let all = Mode::from_raw_mode(status.st_mode & 0o7777);
            rustix::fs::fchmod(&fd, (all - Mode::RWXU) | (mode & Mode::RWXU)).map_err(failed)?;
        }
        Ok(((status.st_dev, status.st_ino), fd, file))
    }
}

/// Writes a folder's record, readable by everybody that may read the folder: it is sealed.
pub(super) fn write_record(folder: &OwnedFd, record: &[u8]) -> Result<File, Error> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let fd = beneath::open(folder, record::NAME, flags, beneath::SHARED);
    let mut file = File::from(fd.map_err(|error| Error::io("writing a folder record", error))?);
    file.write_all(record).map_err(|error| Error::io("writing a folder record", error))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::volume::{NameMode, Volume};

    #[test]
    fn a_record_whose_sync_failed_is_written_again_before_it_counts() {
        let place = tempfile::tempdir().unwrap();
        let volume = Volume::generate(4096, NameMode::PerFolder).unwrap();
        let mut crypto = wattlock::Runtime::builder().telemetry(false).build().unwrap().dispatcher();
        Tree::init(place.path(), &volume, &mut crypto).unwrap();
        let (tree, root) = Tree::open(place.path(), &volume, &mut crypto).unwrap();
        for name in [&b"one"[..], b"two"] {
            let entry = tree.entry(&root, name, &mut crypto).unwrap();
            tree.make_folder(&root, &entry, Mode::RWXU, &mut crypto).unwrap();
        }
        let written = || {
            let unsynced = lock(&tree.unsynced);
            let time = |record: &Unsynced| record.file.metadata().unwrap().modified().unwrap();
            unsynced.values().filter(|record| time(record) != SystemTime::UNIX_EPOCH).count()
        };
        // Both were written long ago, and one is refused: a pipe cannot be synced.
        let (_reader, pipe) = std::io::pipe().unwrap();
        let mut files = Vec::new();
        for record in lock(&tree.unsynced).values_mut() {
            record.file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
            files.push(record.file.try_clone().unwrap());
        }
        let first = *lock(&tree.unsynced).keys().next().unwrap();
        let good = std::mem::replace(
            &mut lock(&tree.unsynced).get_mut(&first).unwrap().file,
            File::from(OwnedFd::from(pipe)),
        );
        assert_eq!(tree.sync_records().unwrap_err().errno(), Errno::INVAL.raw_os_error());
        lock(&tree.unsynced).get_mut(&first).unwrap().file = good;
        assert_eq!(written(), 0);
        assert_eq!(lock(&tree.unsynced).len(), 2);
        tree.sync_records().unwrap();
        assert!(lock(&tree.unsynced).is_empty());
        for file in files {
            let meta = file.metadata().unwrap();
            assert!(meta.modified().unwrap() != SystemTime::UNIX_EPOCH, "it was written again");
            assert_eq!(meta.len(), record::LEN as u64);
        }
    }
}
