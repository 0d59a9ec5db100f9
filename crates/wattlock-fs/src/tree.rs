//! The folder tree of a real backing folder: entries by name, made, renamed and removed so that a crash leaves no
//! state without a name or a key. Never follows a link.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, RenameFlags};
use wattlock_files::Crypto;

use crate::Error;
use crate::volume::Volume;

/// The tree of one volume. Shared by threads.
pub struct Tree {
    root: OwnedFd,
}

/// An opened backing folder with the key of its names. Shared by threads.
pub struct Folder {
    fd: OwnedFd,
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

impl Tree {
    /// Opens the volume's folder.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`] for the root's folder record.
    pub fn open(path: &Path, volume: &Volume, crypto: &mut impl Crypto) -> Result<(Tree, Folder), Error> {
        let _ = (path, volume, crypto);
        todo!()
    }

    /// Opens a folder in a folder.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`] for its record.
    pub fn folder(&self, parent: &Folder, entry: &Entry, crypto: &mut impl Crypto) -> Result<Folder, Error> {
        let _ = (parent, entry, crypto, &self.root);
        todo!()
    }

    /// The stored name of `name` in a folder. A pure computation.
    ///
    /// # Errors
    /// [`Error::Io`] with `ENAMETOOLONG` above 255 bytes; `EINVAL` for what is no name.
    pub fn entry(&self, folder: &Folder, name: &[u8], crypto: &mut impl Crypto) -> Result<Entry, Error> {
        let _ = (folder, name, crypto);
        todo!()
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
        let _ = (folder, crypto);
        todo!()
    }

    /// Opens an existing file's backing file.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn open_file(&self, folder: &Folder, entry: &Entry, flags: OFlags) -> Result<File, Error> {
        let _ = (folder, entry, flags);
        todo!()
    }

    /// Makes a backing file that did not exist, empty; its header is [`crate::content::Contents::create`]'s.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn create_file(&self, folder: &Folder, entry: &Entry, mode: Mode) -> Result<File, Error> {
        let _ = (folder, entry, mode);
        todo!()
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
        let _ = (folder, entry, mode, crypto);
        todo!()
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
        let _ = (folder, entry, kind, mode, device);
        todo!()
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// [`Error::Io`]; `ENAMETOOLONG` where the sealed target is too long.
    pub fn make_link(
        &self,
        folder: &Folder,
        entry: &Entry,
        target: &[u8],
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let _ = (folder, entry, target, crypto);
        todo!()
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
        let _ = (folder, entry, crypto);
        todo!()
    }

    /// Makes another name of a file.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn hard_link(&self, from: (&Folder, &Entry), to: (&Folder, &Entry)) -> Result<(), Error> {
        let _ = (from, to);
        todo!()
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
        let _ = (from, to, flags);
        todo!()
    }

    /// Removes a file, link or node; with `folder_itself` an empty folder, its record included.
    ///
    /// # Errors
    /// [`Error::Io`]; `ENOTEMPTY`.
    pub fn remove(&self, folder: &Folder, entry: &Entry, folder_itself: bool) -> Result<(), Error> {
        let _ = (folder, entry, folder_itself);
        todo!()
    }

    /// Makes folder records and sidecars that were written since the last call durable. Called before anything is
    /// acknowledged as durable.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sync_records(&self) -> Result<(), Error> {
        todo!()
    }
}

impl Folder {
    /// Its descriptor.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }
}
