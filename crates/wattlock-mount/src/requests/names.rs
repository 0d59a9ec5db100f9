//! What goes by a name in a folder: looked up, made, removed, renamed, linked.

use std::ffi::OsStr;
use std::sync::Arc;

use fuser::{FileAttr, Generation, RenameFlags, Request};
use rustix::fs::FileType;
use rustix::io::Errno;
use wattlock_fs::tree::Entry;

use crate::backing::{Backing, Result};
use crate::door::{Inner, errno, inode, type_of};
use crate::folders::Dir;

impl<B: Backing> Inner<B> {
    pub(crate) fn lookup(&self, parent: u64, name: &OsStr) -> Result<Option<(FileAttr, Generation)>> {
        self.on_thread(|thread, _| {
            let dir = self.dir(parent, thread)?;
            let entry = self.backing.entry(&dir.folder, name, thread)?;
            match self.stat_in(&dir, &entry.stored) {
                Ok(stat) => self.found(parent, &dir, &entry, &stat, thread).map(Some),
                Err(Errno::NOENT) => Ok(None),
                Err(error) => Err(errno(error)),
            }
        })
    }

    /// Makes something in a folder and tells the kernel of it.
    pub(super) fn make(
        &self,
        parent: u64,
        name: &OsStr,
        make: impl FnOnce(&Dir<B::Folder>, &Entry, &mut B::Thread) -> Result<()>,
    ) -> Result<(FileAttr, Generation)> {
        self.on_thread(|thread, _| {
            let dir = self.dir(parent, thread)?;
            let entry = self.backing.entry(&dir.folder, name, thread)?;
            make(&dir, &entry, thread)?;
            let stat = self.stat_in(&dir, &entry.stored).map_err(errno)?;
            self.found(parent, &dir, &entry, &stat, thread)
        })
    }

    pub(super) fn remove(&self, parent: u64, name: &OsStr, folder: bool) -> Result<()> {
        self.on_thread(|thread, _| {
            let dir = self.dir(parent, thread)?;
            let entry = self.backing.entry(&dir.folder, name, thread)?;
            let _moving = self.moving();
            let stat = self.stat_in(&dir, &entry.stored).map_err(errno)?;
            let number = self.table.number(inode(&stat));
            let links = stat.st_nlink;
            // A removed folder may still be a program's working folder.
            let held = match folder || self.table.needs_holding(number, links) {
                true => Some(Arc::new(self.name_only(&dir, &entry.stored)?)),
                false => None,
            };
            self.backing.remove(&dir.folder, &entry, folder)?;
            if folder {
                self.folders.forget(number);
            }
            self.table.name_removed(number, parent, &entry.stored, folder || links <= 1, held);
            Ok(())
        })
    }

    pub(super) fn rename(&self, from: (u64, &OsStr), to: (u64, &OsStr), flags: RenameFlags) -> Result<()> {
        if flags.contains(RenameFlags::RENAME_WHITEOUT) {
            return Err(errno(Errno::INVAL));
        }
        let exchange = flags.contains(RenameFlags::RENAME_EXCHANGE);
        let flags = rustix::fs::RenameFlags::from_bits_truncate(flags.bits());
        self.on_thread(|thread, _| {
            let (old, new) = (self.dir(from.0, thread)?, self.dir(to.0, thread)?);
            let old_entry = self.backing.entry(&old.folder, from.1, thread)?;
            let new_entry = self.backing.entry(&new.folder, to.1, thread)?;
            let _moving = self.moving();
            let moved = self.stat_in(&old, &old_entry.stored).map_err(errno)?;
            let moved = self.table.number(inode(&moved));
            let victim = match self.stat_in(&new, &new_entry.stored) {
                Ok(stat) => Some(stat),
                Err(Errno::NOENT) => None,
                Err(error) => return Err(errno(error)),
            };
            let mut gone = None;
            if let (Some(stat), false) = (&victim, exchange) {
                let number = self.table.number(inode(stat));
                let folder = type_of(stat) == FileType::Directory;
                let links = stat.st_nlink;
                let held = match folder || self.table.needs_holding(number, links) {
                    true => Some(Arc::new(self.name_only(&new, &new_entry.stored)?)),
                    false => None,
                };
                gone = Some((number, folder, folder || links <= 1, held));
            }
            self.backing.rename((&old.folder, &old_entry), (&new.folder, &new_entry), flags)?;
            if let Some((number, folder, last, held)) = gone {
                if number == moved {
                    // Two names of one file: nothing happened.
                    return Ok(());
                }
                if folder {
                    self.folders.forget(number);
                }
                self.table.name_removed(number, to.0, &new_entry.stored, last, held);
            }
            self.table.name_added(moved, to.0, &new_entry.stored);
            self.table.name_removed(moved, from.0, &old_entry.stored, false, None);
            if let (Some(stat), true) = (&victim, exchange) {
                let other = self.table.number(inode(stat));
                self.table.name_added(other, from.0, &old_entry.stored);
                self.table.name_removed(other, to.0, &new_entry.stored, false, None);
            }
            Ok(())
        })
    }

    pub(super) fn link(&self, number: u64, parent: u64, name: &OsStr) -> Result<(FileAttr, Generation)> {
        self.make(parent, name, |dir, entry, thread| {
            let (spot, _) = self.spot(number, thread)?;
            match spot.named() {
                Some((from, old)) => self.backing.hard_link((&from.folder, old), (&dir.folder, entry)),
                None => Err(errno(Errno::NOENT)),
            }
        })
    }

    pub(super) fn create_and_open(
        &self,
        request: &Request,
        (parent, name): (u64, &OsStr),
        (mode, umask): (u32, u32),
        exclusive: bool,
    ) -> Result<(FileAttr, Generation, u64)> {
        self.on_thread(|thread, _| {
            let dir = self.dir(parent, thread)?;
            let entry = self.backing.entry(&dir.folder, name, thread)?;
            let mode = self.masked(&dir, mode, umask);
            let made = self.create(parent, &dir, &entry, (mode, Inner::<B>::caller(request)), thread);
            let (opened, attr, generation) = match made {
                // Another mount or process made it meanwhile. The kernel looks it up anew, and asks whether the caller
                // may open it, which it does not for a file that it believes to be made by this call.
                Err(error) if error.errno() == Errno::EXIST.raw_os_error() && !exclusive => {
                    return Err(errno(Errno::STALE));
                }
                made => made?,
            };
            let handle = self.add_file(attr.ino.0, opened, true);
            Ok((attr, generation, handle))
        })
    }
}
