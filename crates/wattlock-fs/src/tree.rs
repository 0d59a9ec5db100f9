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
//! it, and files are below the folder, it is damage: a folder that looked empty would be believed.
//!
//! The caller holds what it must so that calls for one folder's entry do not overlap.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, RwLock, RwLockReadGuard};
use wattlock_core::sync::{lock, read, write};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use wattlock_core::{Algorithm, Data, Key, Kind, Request};
use wattlock_door::Crypto;
use zeroize::Zeroizing;

use crate::Error;
use crate::beneath::{self, is_reserved};
use crate::format::HEADER_LEN;
use crate::names::{self, Extras};
use crate::record::{self, Masters, Record};
use crate::volume::{NameMode, Volume};

/// What the entry of a long name begins with.
const LONG: &str = "wattlock.long.";
/// What follows the hash in the name of the file beside it.
const SIDECAR: &str = ".name";
/// Symbols of a SHA-256 hash in base64url.
const HASH: usize = 43;
/// What a plain name that begins with our own prefix is stored with.
const PLAIN: &str = "wattlock.plain.";
/// Folder records that may wait for [`Tree::sync_records`]: each holds two descriptors.
const UNSYNCED_MAX: usize = 64;
/// Folders in folders that are looked into for files.
const FOLDERS_DEEP: usize = 64;
/// Copies by other programs that are remembered.
const COPIES_MAX: usize = 10_000;

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
    /// Stored names of copies that another program made of an entry by adding to its stored name, by folder and by the
    /// name that they are shown with.
    copies: Mutex<Copies>,
    notes: Mutex<Vec<String>>,
    /// A crash may have left records of no bytes.
    crashed: AtomicBool,
}

/// A record that was written and not yet made durable.
struct Unsynced {
    folder: OwnedFd,
    file: File,
    /// A sync failed: memory has it, the system takes it for written, and no later sync would say so.
    doubt: bool,
}

impl Unsynced {
    /// Writes what memory has of it once more, if that is needed.
    fn write_again(&self) -> Result<(), Error> {
        if !self.doubt {
            return Ok(());
        }
        // What is gone was removed.
        let content = beneath::content(&self.folder, record::NAME, record::LEN)?.unwrap_or_default();
        let written = self.file.write_all_at(&content, 0);
        written.map_err(|error| Error::io("writing a folder record again", error))
    }

    fn sync(&self) -> Result<(), Error> {
        self.write_again()?;
        self.file.sync_data().map_err(|error| Error::io("syncing a folder record", error))?;
        rustix::fs::fsync(&self.folder).map_err(|error| Error::io("syncing a folder record", error))
    }
}

/// Stored names by folder and shown name.
type Copies = HashMap<((u64, u64), Vec<u8>), OsString>;

/// An opened backing folder with the key of its names. Shared by threads.
pub struct Folder {
    fd: OwnedFd,
    /// None if names are in clear.
    key: Option<Key>,
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
        let (tree, root) = Tree::without_record(path, volume, crypto)?;
        let folder = tree.keyed(root, crypto).map_err(|error| match error {
            Error::Damaged(what) => Error::Damaged(format!(
                "the volume's own folder: {what}; `wattlock fs check --repair` gives it a new one"
            )),
            error => error,
        })?;
        Ok((tree, folder))
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
        let (tree, root) = Tree::without_record(path, volume, crypto)?;
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
            if record::authenticates(&sealed, &self.masters(), crypto)? {
                return Ok(true);
            }
            any |= names::decode(name.as_bytes()).is_some() || name.as_bytes().starts_with(LONG.as_bytes());
        }
        Ok(!any)
    }

    /// The tree, and the volume's folder, whose record was not looked at.
    fn without_record(
        path: &Path,
        volume: &Volume,
        crypto: &mut impl Crypto,
    ) -> Result<(Tree, OwnedFd), Error> {
        let failed = |error| Error::io("opening the volume's folder", error);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
        let names = match volume.names {
            NameMode::Deterministic => Some(names::lasting(volume, "names", crypto)?),
            _ => None,
        };
        let tree = Tree {
            mode: volume.names,
            masters: RwLock::new(Masters::new(volume, crypto)?),
            names,
            extras: Extras::new(volume, crypto)?,
            unsynced: Mutex::default(),
            long: Mutex::default(),
            copies: Mutex::default(),
            notes: Mutex::default(),
            crashed: AtomicBool::new(false),
            root: root.try_clone().map_err(failed_io)?,
        };
        Ok((tree, root))
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
    /// ([`crate::content::Contents::may_be_torn`]), since a file in such a folder is one of those.
    pub fn set_crashed(&self, crashed: bool) {
        self.crashed.store(crashed, Ordering::SeqCst);
    }

    /// Opens every folder once, and so gives those that a crash left without a record a new one, until `stop` says so.
    /// What does not open for another reason stays so.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Engine`].
    pub fn look_through(&self, stop: &dyn Fn() -> bool, crypto: &mut impl Crypto) -> Result<bool, Error> {
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

    /// A folder with the key from its record.
    fn keyed(&self, fd: OwnedFd, crypto: &mut impl Crypto) -> Result<Folder, Error> {
        let inode = inode(&fd)?;
        if self.mode != NameMode::PerFolder {
            return Ok(Folder { fd, key: self.names.clone(), inode });
        }
        let content = beneath::content(&fd, record::NAME, record::LEN)?;
        let content = content.ok_or_else(|| Error::Damaged("folder record: it is missing".into()))?;
        // What a crash leaves of a record whose bytes never reached the disk.
        if content.iter().all(|byte| *byte == 0) {
            if !self.crashed.load(Ordering::SeqCst) && has_files(&fd, FOLDERS_DEEP) {
                return Err(Error::Damaged("folder record: it has no bytes".into()));
            }
            return self.mended(fd, inode, crypto);
        }
        let record = Record::open(&content, &self.masters(), crypto)?;
        let key = Some(Key::symmetric(Algorithm::Aes256Siv, &record.key[..])?);
        Ok(Folder { fd, key, inode })
    }

    /// Gives a folder whose record has no bytes a new one, once, even if other threads find it so at the same time.
    fn mended(&self, fd: OwnedFd, inode: (u64, u64), crypto: &mut impl Crypto) -> Result<Folder, Error> {
        let mut notes = lock(&self.notes);
        let there = beneath::content(&fd, record::NAME, record::LEN)?.unwrap_or_default();
        let record = if there.iter().all(|byte| *byte == 0) {
            let record = Record::fresh()?;
            let bytes = record.seal(&self.masters(), crypto)?;
            beneath::replace(&fd, record::NAME, &bytes, beneath::SHARED)?;
            notes.push(format!(
                "folder with inode {}: its record had no bytes after a crash; it has a new one",
                inode.1
            ));
            record
        } else {
            Record::open(&there, &self.masters(), crypto)?
        };
        let key = Some(Key::symmetric(Algorithm::Aes256Siv, &record.key[..])?);
        Ok(Folder { fd, key, inode })
    }

    /// The stored name of `name` in a folder. Reads nothing. A copy that another program made of an entry is known by
    /// its name from the last [`Tree::list`] on.
    ///
    /// # Errors
    /// [`Error::Io`] with `ENAMETOOLONG` above 255 bytes; `EINVAL` for what is no name.
    pub fn entry(&self, folder: &Folder, name: &[u8], crypto: &mut impl Crypto) -> Result<Entry, Error> {
        names::check(name)?;
        let Some(key) = &folder.key else {
            let mut stored = OsString::new();
            if is_reserved(OsStr::from_bytes(name)) {
                stored.push(PLAIN);
            }
            stored.push(OsStr::from_bytes(name));
            if stored.len() > names::NAME_MAX {
                return Err(Error::io("a name", Errno::NAMETOOLONG));
            }
            return Ok(Entry { stored, sidecar: None });
        };
        if let Some(stored) = self.copy(folder, name) {
            return Ok(Entry { stored, sidecar: None });
        }
        let sealed = names::seal_name(key, name, crypto)?;
        if name.len() <= names::WHOLE_MAX {
            return Ok(Entry { stored: names::encode(&sealed).into(), sidecar: None });
        }
        let stored = format!("{LONG}{}", names::encode(&hash(&sealed, crypto)?));
        let sidecar = Some((format!("{stored}{SIDECAR}").into(), sealed));
        Ok(Entry { stored: stored.into(), sidecar })
    }

    /// Lists a folder. Entries that do not open as names are in the second list.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn list(
        &self,
        folder: &Folder,
        crypto: &mut impl Crypto,
    ) -> Result<(Vec<Listed>, Vec<OsString>), Error> {
        self.list_until(folder, &|| false, crypto)
    }

    /// As [`Tree::list`], until `stop` says so.
    ///
    /// # Errors
    /// As [`Tree::list`]; [`wattlock_door::Error::Interrupted`].
    pub fn list_until(
        &self,
        folder: &Folder,
        stop: &dyn Fn() -> bool,
        crypto: &mut impl Crypto,
    ) -> Result<(Vec<Listed>, Vec<OsString>), Error> {
        let failed = |error: Errno| Error::io("listing a folder", error);
        let (mut listed, mut foreign) = (Vec::new(), Vec::new());
        for entry in Dir::read_from(&folder.fd).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if stop() {
                return Err(wattlock_door::Error::Interrupted.into());
            }
            let stored = entry.file_name().to_bytes();
            if stored == b"." || stored == b".." || is_ours(stored) {
                continue;
            }
            let stored = OsString::from_vec(stored.to_vec());
            let name = match self.name(folder, &stored, crypto)? {
                Some(name) => Some(name),
                None => self.copied_name(folder, &stored, crypto)?,
            };
            let Some(name) = name else {
                foreign.push(stored);
                continue;
            };
            let mut kind = entry.file_type();
            if kind == FileType::Unknown {
                // Gone meanwhile is as good as never listed.
                let Ok(status) = rustix::fs::statat(&folder.fd, &*stored, AtFlags::SYMLINK_NOFOLLOW) else {
                    continue;
                };
                kind = FileType::from_raw_mode(status.st_mode);
            }
            listed.push(Listed { name, stored, inode: entry.ino(), kind });
        }
        Ok((listed, foreign))
    }

    /// The name of a stored name; `None` for what is none.
    ///
    /// # Errors
    /// [`Error::Engine`].
    pub fn name(
        &self,
        folder: &Folder,
        stored: &OsStr,
        crypto: &mut impl Crypto,
    ) -> Result<Option<Vec<u8>>, Error> {
        let bytes = stored.as_bytes();
        let Some(key) = &folder.key else {
            let plain =
                bytes.strip_prefix(PLAIN.as_bytes()).filter(|name| is_reserved(OsStr::from_bytes(name)));
            return Ok(match plain {
                Some(name) => Some(name.to_vec()),
                None => {
                    Some(bytes).filter(|bytes| !is_reserved(OsStr::from_bytes(bytes))).map(<[u8]>::to_vec)
                }
            });
        };
        let Some(wanted) = bytes.strip_prefix(LONG.as_bytes()) else {
            return match names::decode(bytes) {
                Some(sealed) => {
                    Ok(names::open_name(key, &sealed, crypto)?.filter(|name| name.len() <= names::WHOLE_MAX))
                }
                None => Ok(None),
            };
        };
        let beside = format!("{}{SIDECAR}", stored.to_string_lossy());
        let Ok(Some(sealed)) = beneath::content(&folder.fd, &beside, names::NAME_MAX + 16) else {
            return Ok(None);
        };
        if names::encode(&hash(&sealed, crypto)?).as_bytes() != wanted {
            return Ok(None);
        }
        names::open_name(key, &sealed, crypto)
    }

    /// What a copy is shown as whose stored name is that of an entry and something behind it, as programs that
    /// synchronise folders name conflicting copies: the entry's name with the same behind it. Contents do not depend on
    /// names, so a copy opens.
    fn copied_name(
        &self,
        folder: &Folder,
        stored: &OsStr,
        crypto: &mut impl Crypto,
    ) -> Result<Option<Vec<u8>>, Error> {
        let bytes = stored.as_bytes();
        let symbol = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let end = bytes.iter().position(|byte| !symbol(byte)).unwrap_or(0);
        let (Some(key), Some(sealed)) = (&folder.key, names::decode(&bytes[..end])) else { return Ok(None) };
        let Some(mut name) = names::open_name(key, &sealed, crypto)? else { return Ok(None) };
        name.extend_from_slice(&bytes[end..]);
        if names::check(&name).is_err() {
            return Ok(None);
        }
        let mut copies = lock(&self.copies);
        if copies.len() < COPIES_MAX {
            copies.insert((folder.inode, name.clone()), stored.to_owned());
        }
        Ok(Some(name))
    }

    fn copy(&self, folder: &Folder, name: &[u8]) -> Option<OsString> {
        let copies = lock(&self.copies);
        if copies.is_empty() { None } else { copies.get(&(folder.inode, name.to_vec())).cloned() }
    }

    /// A stored name is gone: the name may be given to something else.
    fn forget_copy(&self, folder: &Folder, entry: &Entry) {
        lock(&self.copies).retain(|(inode, _), stored| *inode != folder.inode || *stored != entry.stored);
    }

    /// Opens an existing file's backing file. A pipe in its place makes no caller wait; the caller looks at what it is.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn open_file(&self, folder: &Folder, entry: &Entry, flags: OFlags) -> Result<File, Error> {
        let fd = beneath::open(&folder.fd, &*entry.stored, flags | OFlags::NONBLOCK, Mode::empty());
        Ok(File::from(fd.map_err(|error| Error::io("opening a file", error))?))
    }

    /// Makes a backing file that did not exist, empty; its header is [`crate::content::Contents::create`]'s.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn create_file(&self, folder: &Folder, entry: &Entry, mode: Mode) -> Result<File, Error> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        self.named(folder, entry, || {
            let fd = beneath::open(&folder.fd, &*entry.stored, flags, mode);
            Ok(File::from(fd.map_err(|error| Error::io("making a file", error))?))
        })
    }

    /// Makes a folder with its record.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn make_folder(
        &self,
        folder: &Folder,
        entry: &Entry,
        mode: Mode,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let failed = |error: Errno| Error::io("making a folder", error);
        if self.mode != NameMode::PerFolder {
            return self.named(folder, entry, || {
                rustix::fs::mkdirat(&folder.fd, &*entry.stored, mode).map_err(failed)
            });
        }
        match rustix::fs::statat(&folder.fd, &*entry.stored, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {}
            Err(error) => return Err(failed(error)),
            Ok(_) => return Err(failed(Errno::EXIST)),
        }
        let record = Record::fresh()?.seal(&self.masters(), crypto)?;
        let temporary = beneath::temporary("new")?;
        // Whoever makes a folder that its owner may not write still writes its record. Only the owner's bits are given
        // first and taken after: an inherited ACL decides about the others when the folder is made.
        rustix::fs::mkdirat(&folder.fd, &*temporary, mode | Mode::RWXU).map_err(failed)?;
        let made = self.with_record(folder, &temporary, mode, &record);
        let made = made.and_then(|(key, fd, file)| {
            self.named(folder, entry, || {
                let flags = RenameFlags::NOREPLACE;
                rename_with(&folder.fd, OsStr::new(&temporary), &folder.fd, &entry.stored, flags)
            })?;
            self.unsynced(key, fd, file)
        });
        if made.is_err() {
            let _ = self.discard(folder, OsStr::new(&temporary));
        }
        made
    }

    fn with_record(
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

    fn unsynced(&self, key: (u64, u64), fd: OwnedFd, file: File) -> Result<(), Error> {
        let many = {
            let mut unsynced = lock(&self.unsynced);
            unsynced.insert(key, Unsynced { folder: fd, file, doubt: false });
            unsynced.len() > UNSYNCED_MAX
        };
        if many { self.sync_records() } else { Ok(()) }
    }

    /// Makes a device, pipe or socket.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn make_node(
        &self,
        folder: &Folder,
        entry: &Entry,
        kind: FileType,
        mode: Mode,
        device: u64,
    ) -> Result<(), Error> {
        self.named(folder, entry, || {
            rustix::fs::mknodat(&folder.fd, &*entry.stored, kind, mode, device)
                .map_err(|error| Error::io("making a node", error))
        })
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// [`Error::Io`]; `ENAMETOOLONG` where the sealed target is too long: above 3,039 bytes.
    pub fn make_link(
        &self,
        folder: &Folder,
        entry: &Entry,
        target: &[u8],
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let stored = self.extras.seal_target(target, crypto)?;
        self.named(folder, entry, || {
            rustix::fs::symlinkat(&*stored, &folder.fd, &*entry.stored)
                .map_err(|error| Error::io("making a link", error))
        })
    }

    /// A symbolic link's target.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    pub fn read_link(
        &self,
        folder: &Folder,
        entry: &Entry,
        crypto: &mut impl Crypto,
    ) -> Result<Vec<u8>, Error> {
        let stored = rustix::fs::readlinkat(&folder.fd, &*entry.stored, Vec::new())
            .map_err(|error| Error::io("reading a link", error))?;
        self.extras.open_target(stored.to_bytes(), crypto)
    }

    /// Makes another name of a file.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn hard_link(&self, from: (&Folder, &Entry), to: (&Folder, &Entry)) -> Result<(), Error> {
        self.sync_before_move()?;
        self.named(to.0, to.1, || {
            rustix::fs::linkat(&from.0.fd, &*from.1.stored, &to.0.fd, &*to.1.stored, AtFlags::empty())
                .map_err(|error| Error::io("making a name", error))
        })
    }

    /// Renames, replacing, refusing to replace, or exchanging.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn rename(
        &self,
        from: (&Folder, &Entry),
        to: (&Folder, &Entry),
        flags: RenameFlags,
    ) -> Result<(), Error> {
        self.sync_before_move()?;
        let (from_fd, to_fd) = (&from.0.fd, &to.0.fd);
        if from.1.stored == to.1.stored && from.0.inode == to.0.inode {
            return rename_with(from_fd, &from.1.stored, to_fd, &to.1.stored, flags);
        }
        let exchanged = self.named(to.0, to.1, || {
            let result = rename_with(from_fd, &from.1.stored, to_fd, &to.1.stored, flags);
            match result {
                // A folder that is empty except for its record may be replaced.
                Err(Error::Io { ref source, .. })
                    if flags.is_empty()
                        && matches!(Errno::from_io_error(source), Some(Errno::NOTEMPTY | Errno::EXIST)) =>
                {
                    self.refuse_full(to.0, &to.1.stored)?;
                    let flags = RenameFlags::EXCHANGE;
                    rename_with(from_fd, &from.1.stored, to_fd, &to.1.stored, flags)?;
                    Ok(true)
                }
                result => result.map(|()| false),
            }
        })?;
        if exchanged {
            // The empty folder has the old name now.
            return self.remove(from.0, from.1, true);
        }
        if !flags.contains(RenameFlags::EXCHANGE) {
            self.drop_sidecar(from.0, from.1);
            self.forget_copy(from.0, from.1);
        }
        Ok(())
    }

    /// Removes a file, link or node; with `folder_itself` an empty folder, its record included.
    ///
    /// # Errors
    /// [`Error::Io`]; `ENOTEMPTY`.
    pub fn remove(&self, folder: &Folder, entry: &Entry, folder_itself: bool) -> Result<(), Error> {
        if !folder_itself {
            rustix::fs::unlinkat(&folder.fd, &*entry.stored, AtFlags::empty())
                .map_err(|error| Error::io("removing a file", error))?;
            self.drop_sidecar(folder, entry);
            self.forget_copy(folder, entry);
            return Ok(());
        }
        let failed = |error: Errno| Error::io("removing a folder", error);
        match rustix::fs::unlinkat(&folder.fd, &*entry.stored, AtFlags::REMOVEDIR) {
            Ok(()) => {
                self.drop_sidecar(folder, entry);
                return Ok(());
            }
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(error) => return Err(failed(error)),
        }
        self.refuse_full(folder, &entry.stored)?;
        // Out of sight first: a crash then leaves a reserved name and not a folder without a record.
        let temporary = beneath::temporary("gone")?;
        let aside = OsStr::new(&temporary);
        rename_with(&folder.fd, &entry.stored, &folder.fd, aside, RenameFlags::NOREPLACE)?;
        let removed = self.refuse_full(folder, aside).and_then(|()| self.discard(folder, aside));
        if let Err(error) = removed {
            rename_with(&folder.fd, aside, &folder.fd, &entry.stored, RenameFlags::NOREPLACE)?;
            return Err(error);
        }
        self.drop_sidecar(folder, entry);
        Ok(())
    }

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
    fn sync_unsynced(
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
        self.sync_unsynced(&mut lock(&self.unsynced), true, "syncing the volume")
    }

    /// The type of a stored name; `None` if it is gone.
    pub(crate) fn kind(&self, folder: &Folder, stored: &OsStr) -> Option<FileType> {
        let status = rustix::fs::statat(&folder.fd, stored, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(FileType::from_raw_mode(status.st_mode))
    }

    /// Gives an entry whose name does not open one, and leaves everything beside it as it is.
    pub(crate) fn rename_lost(&self, folder: &Folder, lost: &Entry, to: &Entry) -> Result<(), Error> {
        self.named(folder, to, || {
            rename_with(&folder.fd, &lost.stored, &folder.fd, &to.stored, RenameFlags::NOREPLACE)
        })
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
        let (inode, kept) = (inode(&fd)?, beneath::temporary("bad")?);
        match rustix::fs::renameat(&fd, record::NAME, &fd, &*kept) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(Error::io("keeping a damaged record", error)),
        }
        let record = Record::fresh()?;
        let bytes = record.seal(&self.masters(), crypto)?;
        beneath::replace(&fd, record::NAME, &bytes, beneath::SHARED)?;
        Ok(Folder { fd, key: Some(Key::symmetric(Algorithm::Aes256Siv, &record.key[..])?), inode })
    }

    /// Names in a folder that are ours and mean nothing: what a crash left of a folder or a name that was being made or
    /// removed, and records that were replaced.
    pub(crate) fn leftovers(&self, folder: &Folder) -> Result<Vec<OsString>, Error> {
        let names = beneath::names(&folder.fd)?;
        let there = |name: &OsStr| names.iter().any(|one| one == name);
        let left = |name: &&OsString| {
            let bytes = name.as_bytes();
            let temporary = [&b"wattlock.new."[..], b"wattlock.gone.", b"wattlock.bad."];
            let beside =
                bytes.strip_suffix(SIDECAR.as_bytes()).filter(|entry| entry.starts_with(LONG.as_bytes()));
            temporary.iter().any(|what| bytes.starts_with(what))
                || beside.is_some_and(|entry| !there(OsStr::from_bytes(entry)))
        };
        Ok(names.iter().filter(left).cloned().collect())
    }

    /// As [`record::reseal`], with the volume's keys.
    pub(crate) fn reseal(
        &self,
        header: &[u8],
        crypto: &mut impl Crypto,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
        record::reseal(header, &self.masters(), crypto)
    }

    /// An entry that was acknowledged must not come into a folder whose record was not.
    fn sync_before_move(&self) -> Result<(), Error> {
        if lock(&self.unsynced).is_empty() { Ok(()) } else { self.sync_records() }
    }

    /// Makes an entry: for a long name, after its name is durable beside it.
    fn named<T>(
        &self,
        folder: &Folder,
        entry: &Entry,
        make: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let Some((beside, sealed)) = &entry.sidecar else { return make() };
        let _held = lock(&self.long);
        let there = beside.to_str().map(|name| beneath::content(&folder.fd, name, sealed.len()));
        if !there.is_some_and(|there| matches!(there, Ok(Some(content)) if content == *sealed)) {
            let name = beside.to_str().ok_or_else(|| Error::io("a name", Errno::INVAL))?;
            beneath::replace(&folder.fd, name, sealed, beneath::SHARED)?;
        }
        let made = make();
        if made.is_err() {
            self.drop_unused_sidecar(folder, &entry.stored, beside);
        }
        made
    }

    /// Removes the file beside a long name that is gone. What cannot be removed is of no harm: it is found again by the
    /// next entry of that name, and by a check.
    fn drop_sidecar(&self, folder: &Folder, entry: &Entry) {
        let Some(name) = entry.stored.to_str().filter(|name| name.starts_with(LONG)) else { return };
        let _held = lock(&self.long);
        self.drop_unused_sidecar(folder, &entry.stored, OsStr::new(&format!("{name}{SIDECAR}")));
    }

    fn drop_unused_sidecar(&self, folder: &Folder, stored: &OsStr, beside: &OsStr) {
        let there = rustix::fs::statat(&folder.fd, stored, AtFlags::SYMLINK_NOFOLLOW);
        if matches!(there, Err(Errno::NOENT)) {
            let _ = rustix::fs::unlinkat(&folder.fd, beside, AtFlags::empty());
        }
    }

    /// Refuses a folder that has more in it than files of our own.
    fn refuse_full(&self, parent: &Folder, stored: &OsStr) -> Result<(), Error> {
        let failed = |error: Errno| Error::io("removing a folder", error);
        let fd = beneath::open(&parent.fd, stored, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        let names = beneath::names(fd.map_err(failed)?)?;
        match names.iter().all(|name| is_ours(name.as_bytes())) {
            true => Ok(()),
            false => Err(failed(Errno::NOTEMPTY)),
        }
    }

    /// Removes a folder that [`Tree::refuse_full`] lets pass. Its record goes last, and comes back if the folder stays.
    fn discard(&self, parent: &Folder, stored: &OsStr) -> Result<(), Error> {
        let failed = |error: Errno| Error::io("removing a folder", error);
        let fd = beneath::open(&parent.fd, stored, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        let fd = fd.map_err(failed)?;
        let record = beneath::content(&fd, record::NAME, record::LEN)?;
        for name in beneath::names(&fd)? {
            if name == record::NAME || !is_ours(name.as_bytes()) {
                continue;
            }
            match rustix::fs::unlinkat(&fd, &*name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                // The rest of a folder that a crash cut off while it was made or removed.
                Err(Errno::ISDIR | Errno::PERM) => {
                    let inner = Folder { fd: fd.try_clone().map_err(failed_io)?, key: None, inode: (0, 0) };
                    self.refuse_full(&inner, &name)?;
                    self.discard(&inner, &name)?;
                }
                Err(error) => return Err(failed(error)),
            }
        }
        match rustix::fs::unlinkat(&fd, record::NAME, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(failed(error)),
        }
        if let Ok(status) = rustix::fs::fstat(&fd) {
            lock(&self.unsynced).remove(&(status.st_dev, status.st_ino));
        }
        let removed = rustix::fs::unlinkat(&parent.fd, stored, AtFlags::REMOVEDIR);
        if let (Err(_), Some(record)) = (removed, record) {
            beneath::replace(&fd, record::NAME, &record, beneath::SHARED)?;
        }
        removed.map_err(failed)
    }
}

impl Folder {
    /// Its descriptor; without the right to read, one for paths alone (`O_PATH`).
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Device and inode number.
    pub fn inode(&self) -> (u64, u64) {
        self.inode
    }
}

/// Whether a stored name is of a file of our own, which is no entry: anything reserved but entries of long names and
/// plain names that were moved out of our way.
pub(crate) fn is_ours(stored: &[u8]) -> bool {
    if !is_reserved(OsStr::from_bytes(stored)) {
        return false;
    }
    let long = stored.strip_prefix(LONG.as_bytes()).is_some_and(|rest| rest.len() == HASH);
    !long && !stored.starts_with(PLAIN.as_bytes())
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

fn hash(sealed: &[u8], crypto: &mut impl Crypto) -> Result<[u8; 32], Error> {
    let mut digest = [0; 32];
    let data = Data::Apart { from: sealed, to: &mut digest };
    crypto.run(&mut Request::new(Kind::Sha256, Key::none(), data))?;
    Ok(digest)
}

/// Writes a folder's record, readable by everybody that may read the folder: it is sealed.
fn write_record(folder: &OwnedFd, record: &[u8]) -> Result<File, Error> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let fd = beneath::open(folder, record::NAME, flags, beneath::SHARED);
    let mut file = File::from(fd.map_err(|error| Error::io("writing a folder record", error))?);
    file.write_all(record).map_err(|error| Error::io("writing a folder record", error))?;
    Ok(file)
}

fn rename_with(
    from: &OwnedFd,
    old: &OsStr,
    to: &OwnedFd,
    new: &OsStr,
    flags: RenameFlags,
) -> Result<(), Error> {
    let failed = |error: Errno| Error::io("renaming", error);
    if flags.is_empty() {
        return rustix::fs::renameat(from, old, to, new).map_err(failed);
    }
    rustix::fs::renameat_with(from, old, to, new, flags).map_err(failed)
}

fn inode(fd: &OwnedFd) -> Result<(u64, u64), Error> {
    let status = rustix::fs::fstat(fd).map_err(|error| Error::io("looking at a folder", error))?;
    Ok((status.st_dev, status.st_ino))
}

fn failed_io(error: std::io::Error) -> Error {
    Error::io("opening a folder", error)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

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
