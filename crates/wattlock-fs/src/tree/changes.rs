//! Entries made, renamed and removed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use wattlock_core::sync::lock;
use wattlock_door::Crypto;

use super::copies::is_copy_of;
use super::rights::names_in;
use super::second::{goes_without_entries, is_record};
use super::stored::{LONG, SIDECAR, goes_with_folder, may_be_sealed};
use super::{Entry, Folder, Tree, failed_io};
use crate::Error;
use crate::beneath;
use crate::record::{self, Record};
use crate::rotate::shown_stored;
use crate::volume::NameMode;

/// Lines for the log that wait at most: a program may try again and again.
const NOTES: usize = 100;

impl Tree {
    /// Opens an existing file's backing file. A tree that is open for reading opens none for writing. A pipe in its place
    /// makes no caller wait; the caller looks at what it is.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn open_file(&self, folder: &Folder, entry: &Entry, flags: OFlags) -> Result<File, Error> {
        if !(flags & OFlags::RWMODE).is_empty() || flags.contains(OFlags::TRUNC) {
            self.may_write()?;
        }
        let fd = beneath::open(&folder.fd, &*entry.stored, flags | OFlags::NONBLOCK, Mode::empty());
        Ok(File::from(fd.map_err(|error| Error::io("opening a file", error))?))
    }

    /// Makes a backing file that did not exist, empty; its header is [`crate::content::Contents::create`]'s.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn create_file(&self, folder: &Folder, entry: &Entry, mode: Mode) -> Result<File, Error> {
        self.may_write()?;
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
        self.may_write()?;
        self.copies.changing(folder, || self.make_folder_now(folder, entry, mode, crypto))
    }

    fn make_folder_now(
        &self,
        folder: &Folder,
        entry: &Entry,
        mode: Mode,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let failed = |error: Errno| Error::io("making a folder", error);
        if self.mode != NameMode::PerFolder {
            return self.named(folder, entry, || {
                rustix::fs::mkdirat(&folder.fd, &*entry.stored, mode).map_err(failed)?;
                if let Ok(made) = rustix::fs::statat(&folder.fd, &*entry.stored, AtFlags::SYMLINK_NOFOLLOW) {
                    self.copies.made(&made);
                }
                Ok(())
            });
        }
        match rustix::fs::statat(&folder.fd, &*entry.stored, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {}
            Err(error) => return Err(failed(error)),
            Ok(_) => return Err(failed(Errno::EXIST)),
        }
        // Held until the folder has its name: a rotation that begins meanwhile finds it.
        let masters = self.masters();
        let record = Record::fresh()?.seal(&masters, crypto)?;
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
            self.copies.made(&rustix::fs::fstat(&fd).map_err(failed)?);
            self.unsynced(key, fd, file)
        });
        drop(masters);
        if made.is_err() {
            let _ = self.discard(folder, OsStr::new(&temporary));
        }
        made
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
        self.may_write()?;
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
        self.may_write()?;
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
        self.link_at((&from.0.fd, &from.1.stored, AtFlags::empty()), to)
    }

    /// Makes another name of what a path of a descriptor, `/proc/self/fd/N`, leads to.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn link_of(&self, path: &OsStr, to: (&Folder, &Entry)) -> Result<(), Error> {
        self.link_at((&to.0.fd, path, AtFlags::SYMLINK_FOLLOW), to)
    }

    fn link_at(&self, from: (&OwnedFd, &OsStr, AtFlags), to: (&Folder, &Entry)) -> Result<(), Error> {
        self.may_write()?;
        self.sync_before_move()?;
        self.named(to.0, to.1, || {
            rustix::fs::linkat(from.0, from.1, &to.0.fd, &*to.1.stored, from.2)
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
        self.may_write()?;
        self.sync_before_move()?;
        let (from_fd, to_fd) = (&from.0.fd, &to.0.fd);
        if from.1.stored == to.1.stored && from.0.inode == to.0.inode {
            return rename_with(from_fd, &from.1.stored, to_fd, &to.1.stored, flags);
        }
        let copied = self.has_copy(from.0, from.1);
        let exchanged = self.named(to.0, to.1, || {
            let result = self
                .copies
                .changing(from.0, || rename_with(from_fd, &from.1.stored, to_fd, &to.1.stored, flags));
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
            self.drop_sidecar(from.0, from.1, copied);
            self.copies.forget(from.0, &from.1.stored);
        }
        Ok(())
    }

    /// Removes a file, link or node; with `folder_itself` an empty folder, its record included.
    ///
    /// # Errors
    /// [`Error::Io`]; `ENOTEMPTY`.
    pub fn remove(&self, folder: &Folder, entry: &Entry, folder_itself: bool) -> Result<(), Error> {
        self.may_write()?;
        self.copies.changing(folder, || self.remove_now(folder, entry, folder_itself))
    }

    fn remove_now(&self, folder: &Folder, entry: &Entry, folder_itself: bool) -> Result<(), Error> {
        let copied = self.has_copy(folder, entry);
        if !folder_itself {
            rustix::fs::unlinkat(&folder.fd, &*entry.stored, AtFlags::empty())
                .map_err(|error| Error::io("removing a file", error))?;
            self.drop_sidecar(folder, entry, copied);
            self.copies.forget(folder, &entry.stored);
            return Ok(());
        }
        let failed = |error: Errno| Error::io("removing a folder", error);
        match rustix::fs::unlinkat(&folder.fd, &*entry.stored, AtFlags::REMOVEDIR) {
            Ok(()) => {
                self.drop_sidecar(folder, entry, copied);
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
        self.drop_sidecar(folder, entry, copied);
        Ok(())
    }

    /// Gives an entry whose name does not open one, and leaves everything beside it as it is.
    pub(crate) fn rename_lost(&self, folder: &Folder, lost: &Entry, to: &Entry) -> Result<(), Error> {
        self.may_write()?;
        self.named(folder, to, || {
            rename_with(&folder.fd, &lost.stored, &folder.fd, &to.stored, RenameFlags::NOREPLACE)
        })
    }

    /// Makes an entry: for a long name, after its name is durable beside it.
    pub(super) fn named<T>(
        &self,
        folder: &Folder,
        entry: &Entry,
        make: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.copies.changing(folder, || self.named_now(folder, entry, make))
    }

    fn named_now<T>(
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
        if made.is_err() && !self.has_copy(folder, entry) {
            self.drop_unused_sidecar(folder, &entry.stored, beside);
        }
        made
    }

    /// Removes the file beside a long name that is gone, unless a copy of the entry needs it. What cannot be removed is of
    /// no harm: it is found again by the next entry of that name, and by a check.
    pub(super) fn drop_sidecar(&self, folder: &Folder, entry: &Entry, copied: bool) {
        let name = entry.stored.to_str().filter(|name| name.starts_with(LONG) && !copied);
        let Some(name) = name else { return };
        let _held = lock(&self.long);
        self.drop_unused_sidecar(folder, &entry.stored, OsStr::new(&format!("{name}{SIDECAR}")));
    }

    pub(super) fn drop_unused_sidecar(&self, folder: &Folder, stored: &OsStr, beside: &OsStr) {
        let there = rustix::fs::statat(&folder.fd, stored, AtFlags::SYMLINK_NOFOLLOW);
        if matches!(there, Err(Errno::NOENT)) {
            let _ = rustix::fs::unlinkat(&folder.fd, beside, AtFlags::empty());
        }
    }

    /// Whether another program made a copy of an entry of a long name, which has its name from the same file beside it.
    /// What cannot be listed may have one.
    fn has_copy(&self, folder: &Folder, entry: &Entry) -> bool {
        let stored = &entry.stored;
        if !stored.as_bytes().starts_with(LONG.as_bytes()) {
            return false;
        }
        let listed = || names_in(&folder.fd).map(|names| names.iter().any(|name| is_copy_of(name, stored)));
        self.copies.has_copy(folder, stored).unwrap_or_else(|| listed().unwrap_or(true))
    }

    /// Refuses a folder that has more in it than files of our own, and copies of them that nothing needs.
    pub(super) fn refuse_full(&self, parent: &Folder, stored: &OsStr) -> Result<(), Error> {
        let failed = |error: Errno| Error::io("removing a folder", error);
        let fd = beneath::open(&parent.fd, stored, OFlags::PATH | OFlags::DIRECTORY, Mode::empty());
        let fd = fd.map_err(failed)?;
        let names = self.granted(&fd, || names_in(&fd))?;
        let stay: Vec<_> = names.iter().filter(|name| !goes_with_folder(name)).collect();
        let Some(first) = stay.first() else { return Ok(()) };
        if self.mode != NameMode::Plain && self.granted(&fd, || all_go(&fd, &stay))? {
            return Ok(());
        }
        if self.mode != NameMode::Plain && stay.iter().all(|name| !may_be_sealed(name.as_bytes())) {
            // None of them is shown, so that the error alone says nothing.
            let (folder, first, many) = (shown_stored(stored), shown_stored(first), stay.len());
            let what =
                format!("{folder} is not empty: other programs put {many} into it, {first} among them");
            let mut notes = lock(&self.notes);
            if notes.len() < NOTES {
                notes.push(what);
            }
        }
        Err(failed(Errno::NOTEMPTY))
    }

    /// Removes a folder that [`Tree::refuse_full`] lets pass. Its records go last, and come back if the folder stays.
    pub(super) fn discard(&self, parent: &Folder, stored: &OsStr) -> Result<(), Error> {
        let failed = |error: Errno| Error::io("removing a folder", error);
        let fd = beneath::open(&parent.fd, stored, OFlags::PATH | OFlags::DIRECTORY, Mode::empty());
        let fd = fd.map_err(failed)?;
        self.granted(&fd, || self.discard_now(parent, stored, &fd))
    }

    fn discard_now(&self, parent: &Folder, stored: &OsStr, fd: &OwnedFd) -> Result<(), Error> {
        let failed = |error: Errno| Error::io("removing a folder", error);
        let (mut records, mut others) = (Vec::new(), Vec::new());
        for name in names_in(fd)? {
            if goes_with_folder(&name) || goes_without_entries(fd, &name)? {
                if is_record(&name) { &mut records } else { &mut others }.push(name);
            }
        }
        // The own one last.
        records.sort_by_key(|name| name == record::NAME);
        let mut contents = Vec::new();
        for name in &records {
            contents.extend(beneath::content(fd, name, record::LEN)?.map(|content| (name, content)));
        }
        for name in others {
            match rustix::fs::unlinkat(fd, &*name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                // The rest of a folder that a crash cut off while it was made or removed.
                Err(Errno::ISDIR | Errno::PERM) => {
                    let fd = fd.try_clone().map_err(failed_io)?;
                    let inner = Folder { fd, key: None, inode: (0, 0), record: None, lost: None };
                    self.refuse_full(&inner, &name)?;
                    self.discard(&inner, &name)?;
                }
                Err(error) => return Err(failed(error)),
            }
        }
        for name in &records {
            match rustix::fs::unlinkat(fd, &**name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        if let Ok(status) = rustix::fs::fstat(fd) {
            let inode = (status.st_dev, status.st_ino);
            lock(&self.unsynced).remove(&inode);
            self.copies.forget_folder(inode);
        }
        let removed = rustix::fs::unlinkat(&parent.fd, stored, AtFlags::REMOVEDIR);
        if removed.is_err() {
            for (name, content) in contents.iter().rev() {
                beneath::replace(fd, name, content, beneath::SHARED)?;
            }
        }
        removed.map_err(failed)
    }
}

/// Whether all of these are copies of files of our own that nothing needs if nothing else is there.
fn all_go(folder: &OwnedFd, names: &[&OsString]) -> Result<bool, Error> {
    for name in names {
        if !goes_without_entries(folder, name)? {
            return Ok(false);
        }
    }
    Ok(true)
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
