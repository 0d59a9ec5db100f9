//! The folder tree of a real backing folder: entries by name, made, renamed and removed so that a crash leaves no
//! state without a name or a key. Never follows a link.
//!
//! *Names.* A name of up to 175 bytes is one entry. A longer one is the entry `wattlock.long.HASH`, HASH being SHA-256 of
//! the sealed name, and beside it the file `wattlock.long.HASH.name` with the sealed name. That file is durable before
//! there is an entry and goes after it: there is no moment at which an entry has no name, so a long name is renamed by one
//! system call as a short one is.
//!
//! *Records.* In a volume with a key for each folder, the file `wattlock.dir` has it. A folder is made under a reserved
//! name, gets its record, and then its own name. The record is made durable by [`Tree::sync_records`], which comes before
//! whatever is acknowledged as durable, and before an entry comes into a folder from another one. A record of no bytes is
//! therefore a folder that nothing in it was acknowledged of, cut off by a crash: it gets a new one. If no crash explains
//! it, and files are below the folder, it is damage: a folder that looked empty would be believed. A copy of the record
//! that another program made, and that opens, comes before either.
//!
//! The caller holds what it must so that calls for one folder's entry do not overlap.

mod changes;
mod copies;
mod others;
mod records;
mod rights;
mod second;
mod stored;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, RwLock, RwLockReadGuard};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use wattlock_core::sync::{lock, read, write};
use wattlock_core::{Algorithm, Key};
use wattlock_door::Crypto;
use zeroize::Zeroizing;

use crate::Error;
use crate::beneath;
use crate::names::{self, Extras};
use crate::record::{self, Masters, Record};
use crate::volume::{NameMode, Volume};
use copies::Copies;
use records::{Unsynced, write_record};
pub use second::is_record;
pub use stored::{NAMELESS, OF_OTHERS, Stored, Survey};
pub(crate) use stored::{is_ours, may_be_sealed};

pub use crate::record::NAME as RECORD;

/// Folders in folders that are looked into for files.
const FOLDERS_DEEP: usize = 64;

/// The tree of one volume. Shared by threads.
pub struct Tree {
    root: OwnedFd,
    mode: NameMode,
    masters: RwLock<Masters>,
    /// The key of all names of a deterministic volume.
    names: Option<Key>,
    extras: Extras,
    /// Records that were written and not yet made durable, by their folder's device and inode.
    unsynced: Mutex<HashMap<(u64, u64), Unsynced>>,
    /// Held while files beside long names come and go.
    long: Mutex<()>,
    /// The volume's own folder.
    own_inode: (u64, u64),
    copies: Copies,
    notes: Mutex<Vec<String>>,
    /// A crash may have left records of no bytes.
    crashed: AtomicBool,
    /// Nothing is written.
    read_only: bool,
}

/// An opened backing folder with the key of its names. Shared by threads.
pub struct Folder {
    fd: OwnedFd,
    /// None if names are in clear.
    key: Option<Key>,
    /// The id in the record that has the key; none if no record has it.
    record: Option<[u8; 8]>,
    /// Why its own record does not open, if a copy of that has the key.
    lost: Option<String>,
    /// Device and inode number.
    inode: (u64, u64),
}

/// A backing entry: the stored name of a name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The name in the backing folder.
    pub stored: OsString,
    /// For a name too long to be stored whole: the entry of the file beside it that has the sealed name.
    pub sidecar: Option<(OsString, Vec<u8>)>,
}

/// One listed entry.
#[derive(Debug, Clone)]
pub struct Listed {
    /// The name in clear.
    pub name: Vec<u8>,
    /// The stored name.
    pub stored: OsString,
    /// Backing inode number.
    pub inode: u64,
    /// Type.
    pub kind: FileType,
}

impl Listed {
    /// The entry, for the calls that take one.
    pub fn entry(&self) -> Entry {
        Entry { stored: self.stored.clone(), sidecar: None }
    }
}

impl Tree {
    /// Makes what a new volume's own folder needs: its record, durable.
    ///
    /// # Errors
    /// [`Error::Io`]; `EEXIST` if there is a record.
    pub fn init(path: &Path, volume: &Volume, crypto: &mut impl Crypto) -> Result<(), Error> {
        if volume.names != NameMode::PerFolder {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|error| Error::io("opening the volume's folder", error))?;
        let record = Record::fresh()?.seal(&Masters::new(volume, crypto)?, crypto)?;
        let file = write_record(&root, &record)?;
        file.sync_all().map_err(|error| Error::io("writing a folder record", error))?;
        rustix::fs::fsync(&root).map_err(|error| Error::io("writing a folder record", error))
    }

    /// Opens the volume's folder.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`] for the root's folder record.
    pub fn open(path: &Path, volume: &Volume, crypto: &mut impl Crypto) -> Result<(Tree, Folder), Error> {
        Tree::without_record(path, volume, false, crypto)?.opened(crypto)
    }

    /// As [`Tree::open`], for reading. Nothing is written: a folder whose record a crash left without bytes is shown as
    /// empty, one that its owner closed stays closed, and whatever would write fails with `EROFS`.
    ///
    /// # Errors
    /// As [`Tree::open`].
    pub fn open_to_read(
        path: &Path,
        volume: &Volume,
        crypto: &mut impl Crypto,
    ) -> Result<(Tree, Folder), Error> {
        Tree::without_record(path, volume, true, crypto)?.opened(crypto)
    }

    /// Device and inode number of the volume's own folder.
    pub fn inode(&self) -> (u64, u64) {
        self.own_inode
    }

    /// Its own folder, once more.
    ///
    /// # Errors
    /// As [`Tree::open`].
    pub fn root(&self, crypto: &mut impl Crypto) -> Result<Folder, Error> {
        self.keyed(self.root.try_clone().map_err(failed_io)?, crypto)
    }

    /// The tree, and its own folder with its key.
    fn opened(self, crypto: &mut impl Crypto) -> Result<(Tree, Folder), Error> {
        let root = self.root.try_clone().map_err(failed_io)?;
        let folder = self.keyed(root, crypto).map_err(|error| match error {
            Error::Damaged(what) => Error::Damaged(format!(
                "the volume's own folder: {what}; `wattlock fs check --repair` gives it a new one"
            )),
            Error::Newer(what) => Error::Newer(format!("{what} of the volume's own folder")),
            error => error,
        })?;
        Ok((self, folder))
    }

    /// The tree; its own folder's record was not looked at.
    fn without_record(
        path: &Path,
        volume: &Volume,
        read_only: bool,
        crypto: &mut impl Crypto,
    ) -> Result<Tree, Error> {
        let failed = |error| Error::io("opening the volume's folder", error);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
        let names = match volume.names {
            NameMode::Deterministic => Some(names::lasting(volume, "names", crypto)?),
            _ => None,
        };
        Ok(Tree {
            mode: volume.names,
            masters: RwLock::new(Masters::new(volume, crypto)?),
            names,
            extras: Extras::new(volume, crypto)?,
            unsynced: Mutex::default(),
            long: Mutex::default(),
            own_inode: inode(&root)?,
            copies: Copies::default(),
            notes: Mutex::default(),
            crashed: AtomicBool::new(false),
            read_only,
            root,
        })
    }

    /// Fails in a tree that was opened for reading.
    pub(crate) fn may_write(&self) -> Result<(), Error> {
        match self.read_only {
            true => Err(Error::io("changing a volume that is open for reading", Errno::ROFS)),
            false => Ok(()),
        }
    }

    fn masters(&self) -> RwLockReadGuard<'_, Masters> {
        read(&self.masters)
    }

    /// Takes over the volume keys of `volume`: the same volume after [`Volume::add_generation`], or after old ones were
    /// removed.
    ///
    /// # Errors
    /// [`Error::Engine`]; nothing has changed.
    pub fn rekey(&self, volume: &Volume, crypto: &mut impl Crypto) -> Result<(), Error> {
        let masters = Masters::new(volume, crypto)?;
        *write(&self.masters) = masters;
        Ok(())
    }

    /// Says whether a crash may have left folders whose records have no bytes: as long as contents may be torn
    /// ([`crate::content::Contents::may_be_torn`]), since a file in such a folder is one of those. In a
    /// tree that is open for reading it has no effect.
    pub fn set_crashed(&self, crashed: bool) {
        self.crashed.store(crashed && !self.read_only, Ordering::SeqCst);
    }

    /// Opens every folder once, and so gives those that a crash left without a record a new one, until `stop` says so.
    /// What does not open for another reason stays so. A tree that is open for reading has nothing to look for.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Engine`].
    pub fn look_through(&self, stop: &dyn Fn() -> bool, crypto: &mut impl Crypto) -> Result<bool, Error> {
        if self.read_only {
            return Ok(true);
        }
        // Folders that wait keep open only the folder that they are in.
        let root = Rc::new(self.root.try_clone().map_err(failed_io)?);
        let (mut waiting, mut whole) = (vec![(root, c".".to_owned())], true);
        while let Some((parent, name)) = waiting.pop() {
            if stop() {
                return Ok(false);
            }
            // A folder that is gone, or may not be listed, is not one that this user fills; or its name moved.
            let Ok(fd) = beneath::folder(&*parent, &*name) else {
                whole = false;
                continue;
            };
            let fd = Rc::new(fd);
            let keyed = self.keyed(fd.try_clone().map_err(failed_io)?, crypto);
            if let Err(error @ Error::Engine(_)) = keyed {
                return Err(error);
            }
            let Ok(entries) = Dir::read_from(&*fd) else { continue };
            for entry in entries.flatten() {
                let name = entry.file_name();
                let folder = matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
                if folder && !matches!(name.to_bytes(), b"." | b"..") && !is_ours(name.to_bytes()) {
                    waiting.push((fd.clone(), name.to_owned()));
                }
            }
        }
        Ok(whole)
    }

    /// What seals link targets and extended attributes.
    pub fn extras(&self) -> &Extras {
        &self.extras
    }

    /// Lines for the log since the last call: what was mended.
    pub fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.notes))
    }

    /// Opens a folder in a folder.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`] for its record.
    pub fn folder(&self, parent: &Folder, entry: &Entry, crypto: &mut impl Crypto) -> Result<Folder, Error> {
        let fd = beneath::folder(&parent.fd, &*entry.stored);
        self.keyed(fd.map_err(|error| Error::io("opening a folder", error))?, crypto)
    }

    /// A folder with the key from its record, or from a copy of it if that does not open.
    fn keyed(&self, fd: OwnedFd, crypto: &mut impl Crypto) -> Result<Folder, Error> {
        let inode = inode(&fd)?;
        if self.mode != NameMode::PerFolder {
            return Ok(Folder { fd, key: self.names.clone(), inode, record: None, lost: None });
        }
        let content = self.granted(&fd, || beneath::content(&fd, record::NAME, record::LEN));
        // What a crash leaves of a record whose bytes never reached the disk.
        let empty = matches!(&content, Ok(Some(content)) if content.iter().all(|byte| *byte == 0));
        let opened = content.and_then(|content| match content {
            None => Err(Error::Damaged("folder record: it is missing".into())),
            Some(_) if empty => Err(Error::Damaged("folder record: it has no bytes".into())),
            Some(content) => self.open_record(content, crypto).map(|(record, _)| record),
        });
        let lost = match opened {
            Err(Error::Damaged(lost)) => lost,
            Err(error) if error.errno() == Errno::LOOP.raw_os_error() => {
                "folder record: a link is in its place".into()
            }
            opened => return Folder::with(fd, inode, &opened?, None),
        };
        if let Some((copy, _)) = self.good_copy(&fd, crypto)? {
            return Folder::with(fd, inode, &copy, Some(lost));
        }
        if !empty || !self.crashed.load(Ordering::SeqCst) && has_files(&fd, FOLDERS_DEEP) {
            return Err(Error::Damaged(lost));
        }
        self.mended(fd, inode, crypto)
    }

    /// Opens a record, also one of which the version byte was altered; with its bytes as they were sealed.
    fn open_record(&self, content: Vec<u8>, crypto: &mut impl Crypto) -> Result<(Record, Vec<u8>), Error> {
        let masters = self.masters();
        let content = record::restored(&content, &masters, crypto)?.unwrap_or(content);
        Ok((Record::open(&content, &masters, crypto)?, content))
    }

    /// Gives a folder whose record has no bytes a new one, once, even if other threads find it so at the same time.
    fn mended(&self, fd: OwnedFd, inode: (u64, u64), crypto: &mut impl Crypto) -> Result<Folder, Error> {
        let mut notes = lock(&self.notes);
        let there = beneath::content(&fd, record::NAME, record::LEN)?.unwrap_or_default();
        let record = if there.iter().all(|byte| *byte == 0) {
            let record = Record::fresh()?;
            let masters = self.masters();
            let bytes = record.seal(&masters, crypto)?;
            let had = format!("folder with inode {}: its record had no bytes after a crash", inode.1);
            let replaced = match self.read_only {
                true => self.may_write(),
                false => self.granted(&fd, || beneath::replace(&fd, record::NAME, &bytes, beneath::SHARED)),
            };
            match replaced {
                Ok(()) => notes.push(format!("{had}; it has a new one")),
                // Nothing in it was acknowledged, and nothing will be made in it.
                Err(error) if error.errno() == Errno::ROFS.raw_os_error() => {
                    notes.push(format!("{had}; it is shown as empty"));
                }
                Err(error) => return Err(error),
            }
            record
        } else {
            Record::open(&there, &self.masters(), crypto)?
        };
        Folder::with(fd, inode, &record, None)
    }

    /// The type of a stored name; `None` if it is gone.
    pub(crate) fn kind(&self, folder: &Folder, stored: &OsStr) -> Result<Option<FileType>, Error> {
        match rustix::fs::statat(&folder.fd, stored, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(status) => Ok(Some(FileType::from_raw_mode(status.st_mode))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(Error::io("looking at an entry", error)),
        }
    }

    /// As [`record::reseal`], with the volume's keys.
    pub(crate) fn reseal(
        &self,
        header: &[u8],
        crypto: &mut impl Crypto,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
        record::reseal(header, &self.masters(), crypto)
    }
}

impl Folder {
    /// With the key of a record.
    fn with(fd: OwnedFd, inode: (u64, u64), record: &Record, lost: Option<String>) -> Result<Folder, Error> {
        let key = Some(Key::symmetric(Algorithm::Aes256Siv, &record.key[..])?);
        Ok(Folder { fd, key, inode, record: Some(record.id), lost })
    }

    /// Why its own record does not open, if only a copy of that does.
    pub(crate) fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    /// Its descriptor; without the right to read, one for paths alone (`O_PATH`).
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Device and inode number.
    pub fn inode(&self) -> (u64, u64) {
        self.inode
    }
}

/// Whether a regular file is below a folder that is not one of our own, or may be: what cannot be seen counts.
fn has_files(folder: &OwnedFd, deep: usize) -> bool {
    let Ok(entries) = Dir::read_from(folder) else { return true };
    entries.into_iter().any(|entry| {
        let Ok(entry) = entry else { return true };
        let name = entry.file_name();
        match entry.file_type() {
            _ if matches!(name.to_bytes(), b"." | b"..") || is_ours(name.to_bytes()) => false,
            FileType::Directory => {
                deep == 0 || beneath::folder(folder, name).map_or(true, |inner| has_files(&inner, deep - 1))
            }
            kind => matches!(kind, FileType::RegularFile | FileType::Unknown),
        }
    })
}

fn inode(fd: &OwnedFd) -> Result<(u64, u64), Error> {
    let status = rustix::fs::fstat(fd).map_err(|error| Error::io("looking at a folder", error))?;
    Ok((status.st_dev, status.st_ino))
}

fn failed_io(error: std::io::Error) -> Error {
    Error::io("opening a folder", error)
}
