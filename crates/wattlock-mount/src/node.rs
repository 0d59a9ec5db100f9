//! Inodes of the backing folder: found by number, opened, changed and told of.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fuser::FileAttr;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Timestamps, Uid};
use rustix::io::Errno;
use wattlock_fs::Error;
use wattlock_fs::store::Place;
use wattlock_fs::tree::Entry;

use crate::attr::attributes;
use crate::backing::{Backing, Result};
use crate::caller::{Caller, Groups, as_caller};
use crate::door::{Inner, Opened, entry, errno, inode, type_of};
use crate::folders::Dir;
use crate::table::{ROOT, Whereabouts};

/// Where an inode is.
pub(crate) enum Spot<F> {
    /// The volume's own folder.
    Root(Arc<Dir<F>>),
    /// An entry in a folder.
    Named(Arc<Dir<F>>, Entry),
    /// Only a descriptor.
    Held(Arc<OwnedFd>),
}

/// A new file: its content, and what the kernel is told of it.
type Made<B> = (Arc<Opened<<B as Backing>::Content>>, FileAttr, fuser::Generation);

impl<B: Backing> Inner<B> {
    /// A folder, opened.
    pub fn dir(&self, number: u64, thread: &mut B::Thread) -> Result<Arc<Dir<B::Folder>>> {
        if number == ROOT {
            return Ok(self.root.clone());
        }
        if let Some(dir) = self.folders.get(number) {
            return Ok(dir);
        }
        let dir = self.settled(|| match self.table.find(number) {
            Some(Whereabouts::Named(name)) => {
                let parent = self.dir(name.parent, thread)?;
                let folder = self.backing.folder(&parent.folder, &entry(name.stored), thread)?;
                let stat = rustix::fs::statat(self.backing.fd(&folder), "", AtFlags::EMPTY_PATH);
                if self.table.number(inode(&stat.map_err(errno)?)) != number {
                    return Err(errno(Errno::STALE));
                }
                Ok(folder)
            }
            Some(Whereabouts::Root) => Err(errno(Errno::INVAL)),
            Some(Whereabouts::Held(_)) | None => Err(errno(Errno::NOENT)),
        })?;
        Ok(self.folders.put(number, Arc::new(Dir::new(dir))))
    }

    /// Where an inode is, and its backing attributes.
    pub fn spot(&self, number: u64, thread: &mut B::Thread) -> Result<(Spot<B::Folder>, Stat)> {
        self.settled(|| {
            let (spot, stat) = match self.table.find(number) {
                Some(Whereabouts::Root) => {
                    let stat =
                        rustix::fs::statat(self.backing.fd(&self.root.folder), "", AtFlags::EMPTY_PATH);
                    (Spot::Root(self.root.clone()), stat)
                }
                Some(Whereabouts::Named(name)) => {
                    let dir = self.dir(name.parent, thread)?;
                    let stat = self.stat_in(&dir, &name.stored);
                    (Spot::Named(dir, entry(name.stored)), stat)
                }
                Some(Whereabouts::Held(held)) => {
                    let stat = rustix::fs::statat(held.as_fd(), "", AtFlags::EMPTY_PATH);
                    (Spot::Held(held), stat)
                }
                None => return Err(errno(Errno::NOENT)),
            };
            let stat = stat.map_err(errno)?;
            if self.table.number(inode(&stat)) != number {
                return Err(errno(Errno::STALE));
            }
            Ok((spot, stat))
        })
    }

    /// Attributes of a stored entry, not following a link.
    pub fn stat_in(&self, dir: &Dir<B::Folder>, stored: &OsStr) -> rustix::io::Result<Stat> {
        rustix::fs::statat(self.backing.fd(&dir.folder), stored, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// What the kernel is told of an inode.
    pub fn attr(
        &self,
        number: u64,
        stat: &Stat,
        named: Option<(&Dir<B::Folder>, &Entry)>,
        thread: &mut B::Thread,
    ) -> Result<FileAttr> {
        let stored = stat.st_size as u64;
        let size = match (type_of(stat), named) {
            (FileType::RegularFile, _) => match self.table.content(number) {
                Some(opened) => self.backing.len(&opened.content),
                None => self.backing.len_of(stat),
            },
            (FileType::Symlink, Some((dir, entry))) => match self.backing.link_len(stored) {
                Some(len) => len,
                None => self.backing.read_link(&dir.folder, entry, thread)?.len() as u64,
            },
            _ => stored,
        };
        Ok(attributes(number, size, stat))
    }

    /// As [`Inner::attr`], of an inode wherever it is.
    pub fn attr_of(&self, number: u64, thread: &mut B::Thread) -> Result<FileAttr> {
        let (spot, stat) = self.spot(number, thread)?;
        let stat = match (&spot, self.table.parent(number)) {
            (Spot::Named(dir, entry), Some(parent)) => self.mended((parent, dir), entry, stat, thread),
            _ => stat,
        };
        self.attr(number, &stat, spot.named(), thread)
    }

    /// The attributes of an entry whose content a crash may have left torn, after that was put right.
    fn mended(
        &self,
        (parent, dir): (u64, &Dir<B::Folder>),
        entry: &Entry,
        stat: Stat,
        thread: &mut B::Thread,
    ) -> Stat {
        if type_of(&stat) != FileType::RegularFile || !self.backing.is_torn(&stat) {
            return stat;
        }
        let file =
            self.backing.open_file(&dir.folder, entry, OFlags::RDWR).or_else(|error| {
                match is_refusal(&error) {
                    true => self.backing.open_file(&dir.folder, entry, OFlags::RDONLY),
                    false => Err(error),
                }
            });
        // What does not open tells so when it is opened.
        let Ok(file) = file else { return stat };
        let is_it = rustix::fs::fstat(&file).is_ok_and(|found| inode(&found) == inode(&stat));
        if is_it {
            let place = place(&stat, self.table.path(parent, &entry.stored));
            drop(self.backing.open_content(file, place, thread));
        }
        self.stat_in(dir, &entry.stored).unwrap_or(stat)
    }

    /// Tells the kernel of an entry: attributes and generation, counted as looked up.
    pub fn found(
        &self,
        parent: u64,
        dir: &Dir<B::Folder>,
        entry: &Entry,
        stat: &Stat,
        thread: &mut B::Thread,
    ) -> Result<(FileAttr, fuser::Generation)> {
        let number = self.table.number(inode(stat));
        let stat = &self.mended((parent, dir), entry, *stat, thread);
        let attr = self.attr(number, stat, Some((dir, entry)), thread)?;
        let generation = self.table.looked_up(number, parent, &entry.stored);
        Ok((attr, fuser::Generation(generation)))
    }

    /// The mode for something new in a folder: the umask counts only without a default ACL.
    pub fn masked(&self, dir: &Dir<B::Folder>, mode: u32, umask: u32) -> Mode {
        let look = || self.acls.load(Ordering::Relaxed) && self.has_default_acl(dir);
        if self.behaviour.shared {
            dir.acl_changed();
        }
        let mode = if dir.default_acl(look) { mode } else { mode & !umask };
        Mode::from_raw_mode(mode & 0o7777)
    }

    fn has_default_acl(&self, dir: &Dir<B::Folder>) -> bool {
        let path = proc_path(self.backing.fd(&dir.folder).as_raw_fd(), Some(OsStr::new(".")));
        match rustix::fs::lgetxattr_query(&path, "system.posix_acl_default") {
            Ok(len) => len > 0,
            Err(Errno::OPNOTSUPP) => {
                self.acls.store(false, Ordering::Relaxed);
                false
            }
            Err(_) => false,
        }
    }

    /// Does something as the caller, if others are let in.
    pub fn as_caller<T>(&self, caller: Caller, groups: Groups, work: impl FnMut() -> Result<T>) -> Result<T> {
        as_caller(self.privileged && self.behaviour.others, caller, groups, work)
    }

    /// A descriptor that names an entry and opens nothing.
    pub fn name_only(&self, dir: &Dir<B::Folder>, stored: &OsStr) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(self.backing.fd(&dir.folder), stored, flags, Mode::empty()).map_err(errno)
    }

    /// Does something with a path that leads to an inode and never through a link that another user planted.
    pub fn with_path<T>(&self, spot: &Spot<B::Folder>, work: impl FnOnce(&OsStr) -> Result<T>) -> Result<T> {
        match spot {
            Spot::Root(dir) => work(&proc_path(self.backing.fd(&dir.folder).as_raw_fd(), Some(".".as_ref()))),
            Spot::Named(dir, entry) => {
                work(&proc_path(self.backing.fd(&dir.folder).as_raw_fd(), Some(&entry.stored)))
            }
            Spot::Held(held) => work(&proc_path(held.as_raw_fd(), None)),
        }
    }

    /// Changes permissions. Never of what a link points to: the descriptor is the entry's own.
    pub fn chmod(&self, number: u64, spot: &Spot<B::Folder>, mode: u32) -> Result<()> {
        let held = match spot {
            Spot::Root(dir) => {
                let path = proc_path(self.backing.fd(&dir.folder).as_raw_fd(), Some(".".as_ref()));
                return rustix::fs::chmod(path, Mode::from_raw_mode(mode & 0o7777)).map_err(errno);
            }
            Spot::Named(dir, entry) => Arc::new(self.name_only(dir, &entry.stored)?),
            Spot::Held(held) => held.clone(),
        };
        let stat = rustix::fs::statat(held.as_fd(), "", AtFlags::EMPTY_PATH).map_err(errno)?;
        if self.table.number(inode(&stat)) != number {
            return Err(errno(Errno::STALE));
        }
        if type_of(&stat) == FileType::Symlink {
            return Err(errno(Errno::OPNOTSUPP));
        }
        let path = proc_path(held.as_raw_fd(), None);
        rustix::fs::chmod(path, Mode::from_raw_mode(mode & 0o7777)).map_err(errno)
    }

    /// Changes owner and group.
    pub fn chown(&self, spot: &Spot<B::Folder>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        let done = match spot {
            Spot::Root(dir) => {
                rustix::fs::chownat(self.backing.fd(&dir.folder), "", uid, gid, AtFlags::EMPTY_PATH)
            }
            Spot::Named(dir, entry) => rustix::fs::chownat(
                self.backing.fd(&dir.folder),
                &*entry.stored,
                uid,
                gid,
                AtFlags::SYMLINK_NOFOLLOW,
            ),
            Spot::Held(held) => rustix::fs::chownat(held.as_fd(), "", uid, gid, AtFlags::EMPTY_PATH),
        };
        done.map_err(errno)
    }

    /// Changes times of what was found with these attributes.
    pub fn set_times(&self, spot: &Spot<B::Folder>, stat: &Stat, times: &Timestamps) -> Result<()> {
        self.backing.with_times(inode(stat), &mut || self.set_times_now(spot, times).map_err(errno))
    }

    fn set_times_now(&self, spot: &Spot<B::Folder>, times: &Timestamps) -> rustix::io::Result<()> {
        match spot {
            Spot::Root(dir) => {
                rustix::fs::utimensat(self.backing.fd(&dir.folder), "", times, AtFlags::EMPTY_PATH)
            }
            Spot::Named(dir, entry) => rustix::fs::utimensat(
                self.backing.fd(&dir.folder),
                &*entry.stored,
                times,
                AtFlags::SYMLINK_NOFOLLOW,
            ),
            Spot::Held(held) => rustix::fs::utimensat(held.as_fd(), "", times, AtFlags::EMPTY_PATH),
        }
    }

    /// A file's content, with one more opener.
    pub fn open(&self, number: u64, write: bool, thread: &mut B::Thread) -> Result<Arc<Opened<B::Content>>> {
        if let Some(opened) = self.table.reopen(number) {
            if opened.writable || !write {
                return Ok(opened);
            }
            self.table.closed(number);
        }
        let (spot, stat) = self.spot(number, thread)?;
        if type_of(&stat) != FileType::RegularFile {
            return Err(errno(Errno::INVAL));
        }
        let (file, writable, path) = match &spot {
            Spot::Named(dir, entry) => {
                let (file, writable) = self.open_backing(dir, entry, &stat, number, &spot, write)?;
                let parent = self.table.parent(number).unwrap_or(ROOT);
                (file, writable, self.table.path(parent, &entry.stored))
            }
            Spot::Held(held) => {
                let flags = if write { OFlags::RDWR } else { OFlags::RDONLY };
                let path = proc_path(held.as_raw_fd(), None);
                let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK;
                let file = rustix::fs::open(path, flags, Mode::empty()).map_err(errno)?;
                (file.into(), write, OsString::new())
            }
            Spot::Root(_) => return Err(errno(Errno::ISDIR)),
        };
        let stat = rustix::fs::fstat(&file).map_err(errno)?;
        if self.table.number(inode(&stat)) != number {
            return Err(errno(Errno::STALE));
        }
        let place = place(&stat, path);
        let content = self.backing.open_content(file, place, thread)?;
        let opened = Arc::new(Opened { content, writable });
        Ok(self.table.opened(number, opened, false))
    }

    fn open_backing(
        &self,
        dir: &Dir<B::Folder>,
        entry: &Entry,
        stat: &Stat,
        number: u64,
        spot: &Spot<B::Folder>,
        write: bool,
    ) -> Result<(std::fs::File, bool)> {
        let open = |flags| self.backing.open_file(&dir.folder, entry, flags);
        if !write && !self.privileged {
            return Ok((open(OFlags::RDONLY)?, false));
        }
        match open(OFlags::RDWR) {
            Ok(file) => Ok((file, true)),
            Err(error) if !write && is_refusal(&error) => Ok((open(OFlags::RDONLY)?, false)),
            // Writing part of a chunk reads it first. A file that its owner may write and not read is opened with the
            // right to read it for that moment.
            Err(error) if error.errno() == Errno::ACCESS.raw_os_error() && stat.st_mode & 0o400 == 0 => {
                self.chmod(number, spot, stat.st_mode | 0o600)?;
                let file = open(OFlags::RDWR);
                self.chmod(number, spot, stat.st_mode)?;
                Ok((file?, true))
            }
            Err(error) => Err(error),
        }
    }

    /// Makes a file, and its content.
    pub fn create(
        &self,
        parent: u64,
        dir: &Dir<B::Folder>,
        entry: &Entry,
        (mode, caller): (Mode, Caller),
        thread: &mut B::Thread,
    ) -> Result<Made<B>> {
        let _creating = self.backing.before_create(thread)?;
        let make = || self.backing.create_file(&dir.folder, entry, mode);
        let file = self.as_caller(caller, groups_for(mode), make)?;
        let undo = |error| {
            let _ = self.backing.remove(&dir.folder, entry, false);
            error
        };
        let stat = rustix::fs::fstat(&file).map_err(errno).map_err(undo)?;
        let place = place(&stat, self.table.path(parent, &entry.stored));
        let content = self.backing.create_content(file, place, thread).map_err(undo)?;
        let number = self.table.number(inode(&stat));
        let generation = self.table.looked_up(number, parent, &entry.stored);
        let opened = self.table.opened(number, Arc::new(Opened { content, writable: true }), true);
        let attr = attributes(number, self.backing.len(&opened.content), &stat);
        Ok((opened, attr, fuser::Generation(generation)))
    }
}

fn place(stat: &Stat, path: OsString) -> Place {
    use std::os::unix::ffi::OsStringExt;
    Place { inode: inode(stat), path: path.into_vec() }
}

/// Supplementary groups decide whether a new file may have the set-group bit.
pub(crate) fn groups_for(mode: Mode) -> Groups {
    if mode.contains(Mode::SGID) { Groups::Needed } else { Groups::Perhaps }
}

impl<F> Spot<F> {
    /// Folder and entry, if it has a name.
    pub fn named(&self) -> Option<(&Dir<F>, &Entry)> {
        match self {
            Spot::Named(dir, entry) => Some((dir, entry)),
            _ => None,
        }
    }
}

/// A path through a descriptor.
fn proc_path(fd: i32, stored: Option<&OsStr>) -> OsString {
    let mut path = OsString::from(format!("/proc/self/fd/{fd}"));
    if let Some(stored) = stored {
        path.push("/");
        path.push(stored);
    }
    path
}

/// Failures to open for writing after which reading may still do.
fn is_refusal(error: &Error) -> bool {
    [Errno::ACCESS, Errno::PERM, Errno::ROFS, Errno::TXTBSY]
        .iter()
        .any(|errno| errno.raw_os_error() == error.errno())
}
