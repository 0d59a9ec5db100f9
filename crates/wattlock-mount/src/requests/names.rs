//! What goes by a name in a folder: looked up, made, removed, renamed, linked.

use std::ffi::OsStr;
use std::sync::Arc;

use fuser::{FileAttr, RenameFlags, Request};
use rustix::fs::{AtFlags, FileType, Stat};
use rustix::io::Errno;
use wattlock_fs::Error;
use wattlock_fs::tree::Entry;

use crate::backing::{Backing, Result};
use crate::door::{Inner, errno, inode, is_full, type_of};
use crate::folders::Dir;
use crate::table::Held;

/// What has a name: its number, and its inode.
struct There {
    number: u64,
    inode: (u64, u64),
    is_folder: bool,
}

/// A name that is about to be removed, or replaced.
struct Going<'a> {
    number: u64,
    parent: u64,
    stored: &'a OsStr,
    folder: bool,
    /// The inode has no other name.
    last: bool,
    held: Option<Arc<Held>>,
}

impl<B: Backing> Inner<B> {
    pub(crate) fn lookup(&self, parent: u64, name: &OsStr) -> Result<Option<FileAttr>> {
        self.on_thread(|thread, _| {
            let dir = self.dir(parent, thread)?;
            let entry = self.backing.entry(&dir.folder, name, thread)?;
            if let Some(found) = self.found(parent, &dir, &entry, false, thread)? {
                return Ok(Some(found));
            }
            match self.backing.copy(&dir.folder, name, thread)? {
                Some(copy) => self.found(parent, &dir, &copy, false, thread),
                None => Ok(None),
            }
        })
    }

    /// Makes something in a folder and tells the kernel of it. `new` says that it is an inode of its own.
    pub(super) fn make(
        &self,
        (parent, name): (u64, &OsStr),
        new: bool,
        make: impl FnOnce(&Dir<B::Folder>, &Entry, &mut B::Thread) -> Result<()>,
    ) -> Result<FileAttr> {
        self.on_thread(|thread, _| {
            let dir = self.dir(parent, thread)?;
            let entry = self.backing.entry(&dir.folder, name, thread)?;
            make(&dir, &entry, thread)?;
            self.found(parent, &dir, &entry, new, thread)?.ok_or_else(|| errno(Errno::NOENT))
        })
    }

    /// Takes hold of what has a name that is about to go: requests that the kernel has made of it already, or makes of
    /// an opened file, find it by that.
    fn going<'a>(&self, parent: u64, dir: &Dir<B::Folder>, stored: &'a OsStr) -> Result<(Going<'a>, Stat)> {
        let (stat, held) = match self.name_only(dir, stored) {
            Ok(held) => {
                let stat = rustix::fs::statat(&held, "", AtFlags::EMPTY_PATH).map_err(errno)?;
                let content = self.backing.kept(inode(&stat));
                (stat, Some(Arc::new(Held::new(held, content))))
            }
            // Without a descriptor left, what goes is not held: removing must go on.
            Err(error) if is_full(&error) => (self.stat_in(dir, stored).map_err(errno)?, None),
            Err(error) => return Err(error),
        };
        let number = self.table.number(inode(&stat));
        let folder = type_of(&stat) == FileType::Directory;
        let last = folder || stat.st_nlink <= 1;
        if let Some(held) = &held {
            self.table.hold(number, held);
        }
        Ok((Going { number, parent, stored, folder, last, held }, stat))
    }

    /// Notes what became of it.
    fn gone(&self, going: Going<'_>, done: &Result<()>) {
        if done.is_err() {
            return self.table.let_go(going.number);
        }
        if going.folder {
            self.folders.forget(going.number);
        }
        self.table.name_removed(going.number, going.parent, going.stored, going.last, going.held);
    }

    pub(super) fn remove(&self, parent: u64, name: &OsStr, folder: bool) -> Result<()> {
        self.on_thread(|thread, _| {
            let dir = self.dir(parent, thread)?;
            let entry = self.backing.entry(&dir.folder, name, thread)?;
            let _moving = self.moving();
            let (going, _) = self.going(parent, &dir, &entry.stored)?;
            let done = self.backing.remove(&dir.folder, &entry, folder);
            self.gone(going, &done);
            done
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
            let (old_name, new_name) = ((from.0, &*old_entry.stored), (to.0, &*new_entry.stored));
            let there = self.at(&old, &old_entry)?.ok_or_else(|| errno(Errno::NOENT))?;
            let moved = there.number;
            let rename = || self.backing.rename((&old.folder, &old_entry), (&new.folder, &new_entry), flags);
            if exchange {
                let other = self.at(&new, &new_entry)?.ok_or_else(|| errno(Errno::NOENT))?;
                let done = self.moved(moved, old_name, new_name, || {
                    self.moved(other.number, new_name, old_name, rename)
                });
                if done.is_ok() {
                    // A folder's path may not be the other's at any time: what is below would be mixed.
                    let beside = (to.0, OsStr::new("/"));
                    self.tell_moved(&other, new_name, beside);
                    self.tell_moved(&there, old_name, new_name);
                    self.tell_moved(&other, beside, old_name);
                }
                return done;
            }
            let going = match self.going(to.0, &new, &new_entry.stored) {
                Ok((going, _)) if going.number == moved => {
                    // Two names of one file: nothing happens.
                    self.table.let_go(moved);
                    return rename();
                }
                Ok((going, _)) => Some(going),
                Err(error) if error.errno() == Errno::NOENT.raw_os_error() => None,
                Err(error) => return Err(error),
            };
            let done = self.moved(moved, old_name, new_name, rename);
            if done.is_ok() {
                self.tell_moved(&there, old_name, new_name);
            }
            if let Some(going) = going {
                self.gone(going, &done);
            }
            done
        })
    }

    /// Tells the backing of another name, or of one more, of an inode that may be a folder.
    fn tell_moved(&self, what: &There, from: (u64, &OsStr), to: (u64, &OsStr)) {
        if self.backing.follows_moves() {
            let (from, to) = (self.table.path(from.0, from.1), self.table.path(to.0, to.1));
            self.backing.moved(what.inode, what.is_folder, &from, &to);
        }
    }

    /// What has a name.
    fn at(&self, dir: &Dir<B::Folder>, entry: &Entry) -> Result<Option<There>> {
        match self.stat_in(dir, &entry.stored) {
            Ok(stat) => {
                let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
                let inode = inode(&stat);
                Ok(Some(There { number: self.table.number(inode), inode, is_folder }))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(errno(error)),
        }
    }

    /// Moves an inode from one name to another; meanwhile it is found by both.
    fn moved(
        &self,
        number: u64,
        from: (u64, &OsStr),
        to: (u64, &OsStr),
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let new = self.table.name_added(number, to.0, to.1);
        let done = work();
        if done.is_ok() {
            self.renamed.add(self.table.own_of(number), to.0);
        }
        match (&done, from == to) {
            (_, true) => {}
            (Ok(()), _) => self.table.name_gone(number, from.0, from.1),
            (Err(_), _) if new => self.table.name_gone(number, to.0, to.1),
            _ => {}
        }
        done
    }

    pub(super) fn link(&self, number: u64, parent: u64, name: &OsStr) -> Result<FileAttr> {
        let linked = self.make((parent, name), false, |dir, entry, thread| {
            let (spot, stat) = self.pinned(number, thread)?;
            // As of a file that was removed before the path was walked: it is walked again.
            let lost = |error: Error| match error.errno() == Errno::NOENT.raw_os_error() {
                true => errno(Errno::STALE),
                false => error,
            };
            let linked = self.with_path(&spot, |path| {
                self.backing.hard_link((inode(&stat), path), (&dir.folder, entry)).map_err(lost)
            });
            if linked.is_ok() {
                let name = (parent, &*entry.stored);
                self.tell_moved(&There { number, inode: inode(&stat), is_folder: false }, name, name);
            }
            linked
        });
        // The kernel may fail to be told of a link that was made.
        self.renamed.add(self.table.own_of(number), parent);
        linked
    }

    pub(super) fn create_and_open(
        &self,
        request: &Request,
        (parent, name): (u64, &OsStr),
        (mode, umask): (u32, u32),
        exclusive: bool,
    ) -> Result<(FileAttr, u64)> {
        self.on_thread(|thread, _| {
            let dir = self.dir(parent, thread)?;
            let entry = self.backing.entry(&dir.folder, name, thread)?;
            let mode = self.masked(&dir, mode, umask);
            let caller = Inner::<B>::caller(request);
            let made = match self.create(parent, &dir, &entry, (mode, caller), thread) {
                Err(error) if is_full(&error) => {
                    self.make_room();
                    self.create(parent, &dir, &entry, (mode, caller), thread)
                }
                made => made,
            };
            let (opened, attr) = match made {
                // Another mount or process made it meanwhile. The kernel looks it up anew, and asks whether the caller
                // may open it, which it does not for a file that it believes to be made by this call.
                Err(error) if error.errno() == Errno::EXIST.raw_os_error() && !exclusive => {
                    return Err(errno(Errno::STALE));
                }
                made => made?,
            };
            let handle = self.add_file(attr.ino.0, opened, true);
            Ok((attr, handle))
        })
    }
}
