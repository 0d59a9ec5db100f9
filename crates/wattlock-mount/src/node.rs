//! Inodes of the backing folder: found by number, opened, changed and told of.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fuser::FileAttr;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Timestamps, Uid};
use rustix::io::Errno;
use wattlock_fs::Error;
use wattlock_fs::store::Place;
use wattlock_fs::tree::Entry;

use crate::attr::{attributes, unchanged};
use crate::backing::{Backing, Result};
use crate::caller::{Caller, Groups, as_caller};
use crate::door::{Inner, Opened, TRIES, entry, errno, inode, is_lost, type_of};
use crate::folders::Dir;
use crate::table::{Held, Name, ROOT, StillOpen};

/// How often, and after which time each, a look is taken at a file that is about to be closed.
const RELEASE_LOOKS: u32 = 20;
const RELEASE_LOOK: Duration = Duration::from_millis(1);

/// Where an inode is.
pub(crate) enum Spot<F> {
    /// An entry in a folder: what its name means may change at any moment.
    Named(Arc<Dir<F>>, Entry),
    /// Its descriptor, which opens nothing.
    Held(Arc<Held>),
    /// It is open.
    Opened(Arc<File>),
    /// The volume's own folder.
    Root(Arc<Dir<F>>),
}

/// A new file: its content, and what the kernel is told of it.
type Made<B> = (Arc<Opened<<B as Backing>::Content>>, FileAttr);

impl<B: Backing> Inner<B> {
    /// A folder, opened.
    pub fn dir(&self, number: u64, thread: &mut B::Thread) -> Result<Arc<Dir<B::Folder>>> {
        self.settled(|| self.dir_now(number, thread))
    }

    fn dir_now(&self, number: u64, thread: &mut B::Thread) -> Result<Arc<Dir<B::Folder>>> {
        if number == ROOT {
            return Ok(self.root.clone());
        }
        if let Some(dir) = self.folders.get(number) {
            return Ok(dir);
        }
        let name = self.table.name(number, 0).ok_or_else(|| errno(Errno::STALE))?;
        let parent = self.dir_now(name.parent, thread)?;
        let folder = self.backing.folder(&parent.folder, &entry(name.stored), thread)?;
        let stat = rustix::fs::statat(self.backing.fd(&folder), "", AtFlags::EMPTY_PATH).map_err(errno)?;
        self.is(number, &stat)?;
        Ok(self.folders.put(number, Arc::new(Dir::new(folder))))
    }

    /// Refuses what is another inode than the kernel means.
    fn is(&self, number: u64, stat: &Stat) -> Result<()> {
        match self.table.number(inode(stat)) == number {
            true => Ok(()),
            false => Err(errno(Errno::STALE)),
        }
    }

    /// Where an inode is, and its backing attributes.
    pub fn spot(&self, number: u64, thread: &mut B::Thread) -> Result<(Spot<B::Folder>, Stat)> {
        self.settled(|| self.spot_now(number, thread))
    }

    fn spot_now(&self, number: u64, thread: &mut B::Thread) -> Result<(Spot<B::Folder>, Stat)> {
        if number == ROOT {
            let stat = rustix::fs::statat(self.backing.fd(&self.root.folder), "", AtFlags::EMPTY_PATH);
            return Ok((Spot::Root(self.root.clone()), stat.map_err(errno)?));
        }
        if let Some(held) = self.table.held(number) {
            let stat = rustix::fs::statat(held.as_fd(), "", AtFlags::EMPTY_PATH).map_err(errno)?;
            return Ok((Spot::Held(held), stat));
        }
        let mut lost = errno(Errno::STALE);
        for before in 0.. {
            let Some(name) = self.table.name(number, before) else { break };
            match self.named_now(number, &name, thread) {
                Err(error) if is_lost(&error) => lost = error,
                found => return found,
            }
        }
        // Another program removed it, and it is open.
        match self.table.content(number) {
            Some(opened) => self.opened_now(&opened),
            None => Err(lost),
        }
    }

    fn opened_now(&self, opened: &Opened<B::Content>) -> Result<(Spot<B::Folder>, Stat)> {
        let file = self.backing.file(&opened.content);
        let stat = rustix::fs::fstat(&file).map_err(errno)?;
        Ok((Spot::Opened(file), stat))
    }

    fn named_now(&self, number: u64, name: &Name, thread: &mut B::Thread) -> Result<(Spot<B::Folder>, Stat)> {
        let dir = self.dir_now(name.parent, thread)?;
        let stat = self.stat_in(&dir, &name.stored).map_err(errno)?;
        self.is(number, &stat)?;
        Ok((Spot::Named(dir, entry(&*name.stored)), stat))
    }

    /// As [`Inner::spot`], by a descriptor: what is done through it is done to this inode, whatever its name means by
    /// then.
    pub fn pinned(&self, number: u64, thread: &mut B::Thread) -> Result<(Spot<B::Folder>, Stat)> {
        // What is open needs no descriptor more.
        if let Some(opened) = self.table.content(number) {
            return self.opened_now(&opened);
        }
        self.settled(|| match self.spot_now(number, thread)? {
            (Spot::Named(dir, entry), _) => {
                let held = self.name_only(&dir, &entry.stored)?;
                let stat = rustix::fs::statat(&held, "", AtFlags::EMPTY_PATH).map_err(errno)?;
                self.is(number, &stat)?;
                Ok((Spot::Held(Arc::new(Held::new(held, None::<()>))), stat))
            }
            found => Ok(found),
        })
    }

    /// Attributes of a stored entry, not following a link.
    pub fn stat_in(&self, dir: &Dir<B::Folder>, stored: &OsStr) -> rustix::io::Result<Stat> {
        rustix::fs::statat(self.backing.fd(&dir.folder), stored, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// What the kernel is told of an inode.
    pub fn attr(&self, number: u64, stat: &Stat) -> FileAttr {
        let stored = stat.st_size as u64;
        let size = match type_of(stat) {
            FileType::RegularFile => match self.table.content(number) {
                Some(opened) => self.backing.len(&opened.content),
                None => self.backing.len_of(stat),
            },
            FileType::Symlink => self.backing.link_len(stored),
            _ => stored,
        };
        attributes(number, size, stat)
    }

    /// As [`Inner::attr`], of an inode wherever it is.
    pub fn attr_of(&self, number: u64, thread: &mut B::Thread) -> Result<FileAttr> {
        let (spot, stat) = self.spot(number, thread)?;
        let stat = match (&spot, self.table.parent(number)) {
            (Spot::Named(dir, entry), Some(parent)) => self.mended((parent, dir), entry, stat, thread),
            _ => stat,
        };
        Ok(self.attr(number, &stat))
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
        // Another file may have the name by now.
        self.stat_in(dir, &entry.stored).ok().filter(|found| inode(found) == inode(&stat)).unwrap_or(stat)
    }

    /// Tells the kernel of an entry, counted as looked up; `None` if there is none. `new` says that this process has
    /// made it.
    pub fn found(
        &self,
        parent: u64,
        dir: &Dir<B::Folder>,
        entry: &Entry,
        new: bool,
        thread: &mut B::Thread,
    ) -> Result<Option<FileAttr>> {
        for tried in 0..TRIES {
            let moves = self.moves();
            let stat = match self.stat_in(dir, &entry.stored) {
                Err(Errno::NOENT) => return Ok(None),
                stat => stat.map_err(errno)?,
            };
            let stat = self.mended((parent, dir), entry, stat, thread);
            let number = self.table.number_for(inode(&stat), type_of(&stat), new && tried == 0);
            self.table.looked_up(number, type_of(&stat), parent, &entry.stored);
            if self.table.number(inode(&stat)) != number {
                // Another number was given to the inode in between.
                self.table.mistaken(number, parent, &entry.stored);
                continue;
            }
            let still = match moves.1 == 0 && moves == self.moves() {
                true => Some(stat),
                // A removal that began before may have held nothing: the kernel is told only of what has the name still.
                false => self.stat_in(dir, &entry.stored).ok().filter(|now| is_same(now, &stat)),
            };
            match still {
                Some(stat) if !self.outlived(inode(&stat), number) => {
                    return Ok(Some(self.attr(number, &stat)));
                }
                _ => self.table.mistaken(number, parent, &entry.stored),
            }
        }
        Err(errno(Errno::STALE))
    }

    /// The number of a new inode, counted as looked up. Where another thread gives the inode one in between, it is that.
    fn told_of(&self, (inode, kind): ((u64, u64), FileType), parent: u64, stored: &OsStr) -> u64 {
        let mut new = true;
        loop {
            let number = self.table.number_for(inode, kind, new);
            self.table.looked_up(number, kind, parent, stored);
            if self.table.number(inode) == number {
                return number;
            }
            self.table.mistaken(number, parent, stored);
            new = false;
        }
    }

    /// Whether the kernel keeps a size of a file of which a write was refused, although the file is closed: it has another
    /// number now. A program that looks at a file which it has just closed waits until that was answered.
    fn outlived(&self, inode: (u64, u64), number: u64) -> bool {
        for _ in 0..RELEASE_LOOKS {
            match self.table.outlived(inode, number, Instant::now()) {
                Ok(other) => return other.is_some(),
                Err(StillOpen) => std::thread::sleep(RELEASE_LOOK),
            }
        }
        false
    }

    /// How long the kernel may rely on what it is told of an inode: not while it has a size that is not stored.
    pub fn lifetime_of(&self, attr: &FileAttr) -> Duration {
        if self.table.is_refused(attr.ino.0) { Duration::ZERO } else { self.lifetime() }
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

    /// Does something with a path that leads to a pinned inode and never through a link that another user planted.
    pub fn with_path<T>(&self, spot: &Spot<B::Folder>, work: impl FnOnce(&OsStr) -> Result<T>) -> Result<T> {
        work(&match spot {
            Spot::Root(dir) => proc_path(self.backing.fd(&dir.folder).as_raw_fd(), Some(".".as_ref())),
            Spot::Named(dir, entry) => {
                proc_path(self.backing.fd(&dir.folder).as_raw_fd(), Some(&entry.stored))
            }
            Spot::Held(held) => proc_path(held.as_fd().as_raw_fd(), None),
            Spot::Opened(file) => proc_path(file.as_raw_fd(), None),
        })
    }

    /// A pinned inode's descriptor.
    fn fd_of<'a>(&self, spot: &'a Spot<B::Folder>) -> Result<BorrowedFd<'a>> {
        match spot {
            Spot::Root(dir) => Ok(self.backing.fd(&dir.folder)),
            Spot::Held(held) => Ok(held.as_fd()),
            Spot::Opened(file) => Ok(file.as_fd()),
            Spot::Named(..) => Err(errno(Errno::STALE)),
        }
    }

    /// Refuses what changes an inode of a backing that was opened to be read.
    pub fn is_writable(&self) -> Result<()> {
        if self.backing.is_read_only() { Err(errno(Errno::ROFS)) } else { Ok(()) }
    }

    /// Changes permissions of a pinned inode with these attributes.
    pub fn chmod(&self, spot: &Spot<B::Folder>, stat: &Stat, mode: u32) -> Result<()> {
        if type_of(stat) == FileType::Symlink {
            return Err(errno(Errno::OPNOTSUPP));
        }
        self.is_writable()?;
        self.with_path(spot, |path| {
            rustix::fs::chmod(path, Mode::from_raw_mode(mode & 0o7777)).map_err(errno)
        })
    }

    /// Changes owner and group of a pinned inode.
    pub fn chown(&self, spot: &Spot<B::Folder>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.is_writable()?;
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        rustix::fs::chownat(self.fd_of(spot)?, "", uid, gid, AtFlags::EMPTY_PATH).map_err(errno)
    }

    /// Changes times of a pinned inode with these attributes. `done` is called before anything else sets them.
    pub fn set_times(
        &self,
        spot: &Spot<B::Folder>,
        stat: &Stat,
        times: &Timestamps,
        done: impl Fn(),
    ) -> Result<()> {
        self.is_writable()?;
        let fd = self.fd_of(spot)?;
        let mut set = || {
            rustix::fs::utimensat(fd, "", times, AtFlags::EMPTY_PATH).map_err(errno)?;
            done();
            Ok(())
        };
        self.backing.with_times(inode(stat), &mut set)
    }

    /// Gives a file the modification time again that the kernel has set, if what it had kept was written afterwards. Done
    /// when it is closed, not at each sync: a file whose status is asked for has a finer time at its next write, and the
    /// kernel, which takes no time from before that, then sets one for each write.
    pub fn set_time_again(&self, number: u64, file: BorrowedFd<'_>) {
        let Some(time) = self.table.time_of(number) else { return };
        let Ok(stat) = rustix::fs::fstat(file) else { return };
        let times = Timestamps { last_modification: time, ..unchanged() };
        let mut set = || match self.table.is_time_of(number, time) {
            true => rustix::fs::futimens(file, &times).map_err(errno),
            false => Ok(()),
        };
        // A time that is a moment late is better than an error of what is done.
        drop(self.backing.with_times(inode(&stat), &mut set));
    }

    /// A file's content, with one more opener.
    pub fn open(&self, number: u64, write: bool, thread: &mut B::Thread) -> Result<Arc<Opened<B::Content>>> {
        let how = if write { How::ToWrite } else { How::ToRead };
        self.open_as(number, how, thread)
    }

    fn open_as(&self, number: u64, how: How, thread: &mut B::Thread) -> Result<Arc<Opened<B::Content>>> {
        self.settled(|| {
            if let Some(opened) = self.table.reopen(number) {
                let own = how != How::ToWrite || self.backing.is_own(&opened.content);
                if how == How::ToRead || opened.writable && own {
                    return Ok(opened);
                }
                self.table.closed(number);
            }
            self.open_now(number, how, thread)
        })
    }

    /// As [`Inner::open`], to be written, and empties the file. One whose header does not open, of which nothing can be
    /// kept, begins anew.
    pub fn open_empty(&self, number: u64, thread: &mut B::Thread) -> Result<Arc<Opened<B::Content>>> {
        let opened = match self.open_as(number, How::ToEmpty, thread) {
            Err(Error::Damaged(_)) => self.settled(|| self.open_now(number, How::Anew, thread)),
            opened => opened,
        }?;
        let emptied = self.backing.set_len(&opened.content, 0, thread).and_then(|()| {
            // An empty one has little to be sealed anew.
            match self.backing.is_own(&opened.content) {
                true => Ok(()),
                false => self.open_as(number, How::ToWrite, thread).map(|_| self.table.closed(number)),
            }
        });
        if let Err(error) = emptied {
            self.table.closed(number);
            return Err(error);
        }
        self.table.set_len(number, 0);
        Ok(opened)
    }

    fn open_now(&self, number: u64, how: How, thread: &mut B::Thread) -> Result<Arc<Opened<B::Content>>> {
        let write = how != How::ToRead;
        let (spot, stat) = self.spot_now(number, thread)?;
        if type_of(&stat) != FileType::RegularFile {
            return Err(errno(Errno::INVAL));
        }
        let (opened, path) = match &spot {
            Spot::Named(dir, entry) => {
                let open = |flags| self.backing.open_file(&dir.folder, entry, flags);
                let parent = self.table.parent(number).unwrap_or(ROOT);
                (
                    self.open_backing(number, &stat, write, thread, open),
                    self.table.path(parent, &entry.stored),
                )
            }
            Spot::Held(_) | Spot::Opened(_) => {
                let path = self.with_path(&spot, |path| Ok(path.to_owned()))?;
                let open = |flags: OFlags| {
                    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK;
                    let file = rustix::fs::open(&path, flags, Mode::empty());
                    file.map(File::from).map_err(errno)
                };
                (self.open_backing(number, &stat, write, thread, open), OsString::new())
            }
            Spot::Root(_) => return Err(errno(Errno::ISDIR)),
        };
        let (file, writable) = opened?;
        self.is_spare(&file)?;
        let stat = rustix::fs::fstat(&file).map_err(errno)?;
        self.is(number, &stat)?;
        let place = place(&stat, path);
        let content = match how {
            How::Anew => {
                let _creating = self.backing.before_create(thread)?;
                self.backing.begin_content(file, place, thread)?
            }
            _ => self.backing.open_content(file, place, thread)?,
        };
        if let (How::ToWrite, Spot::Named(dir, entry)) = (how, &spot) {
            self.backing.own(&content, &dir.folder, entry, thread)?;
        }
        let opened = Arc::new(Opened { content, writable });
        Ok(self.table.opened(number, opened, false))
    }

    /// Refuses a file with one of the last descriptors: what is done to files needs some for a moment, closing them too.
    fn is_spare(&self, file: &File) -> Result<()> {
        match (file.as_raw_fd() as u64) < self.descriptors.files {
            true => Ok(()),
            false => Err(errno(Errno::MFILE)),
        }
    }

    fn open_backing(
        &self,
        number: u64,
        stat: &Stat,
        write: bool,
        thread: &mut B::Thread,
        open: impl Fn(OFlags) -> Result<File>,
    ) -> Result<(File, bool)> {
        if write {
            self.is_writable()?;
        }
        if !write && (!self.privileged || self.backing.is_read_only()) {
            return Ok((open(OFlags::RDONLY)?, false));
        }
        match open(OFlags::RDWR) {
            Ok(file) => Ok((file, true)),
            Err(error) if !write && is_refusal(&error) => Ok((open(OFlags::RDONLY)?, false)),
            // Writing part of a chunk reads it first. A file that its owner may write and not read is opened with the
            // right to read it for that moment.
            Err(error) if error.errno() == Errno::ACCESS.raw_os_error() && stat.st_mode & 0o400 == 0 => {
                let (spot, stat) = self.pinned(number, thread)?;
                self.chmod(&spot, &stat, stat.st_mode | 0o600)?;
                let file = open(OFlags::RDWR);
                self.chmod(&spot, &stat, stat.st_mode)?;
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
        self.is_spare(&file).map_err(undo)?;
        let stat = rustix::fs::fstat(&file).map_err(errno).map_err(undo)?;
        let place = place(&stat, self.table.path(parent, &entry.stored));
        let content = self.backing.create_content(file, place, thread).map_err(undo)?;
        let number = self.told_of((inode(&stat), FileType::RegularFile), parent, &entry.stored);
        let opened = self.table.opened(number, Arc::new(Opened { content, writable: true }), true);
        let attr = attributes(number, self.backing.len(&opened.content), &stat);
        Ok((opened, attr))
    }
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    inode(one) == inode(other) && type_of(one) == type_of(other)
}

fn place(stat: &Stat, path: OsString) -> Place {
    use std::os::unix::ffi::OsStringExt;
    Place { inode: inode(stat), path: path.into_vec() }
}

/// Supplementary groups decide whether a new file may have the set-group bit.
pub(crate) fn groups_for(mode: Mode) -> Groups {
    if mode.contains(Mode::SGID) { Groups::Needed } else { Groups::Perhaps }
}

/// What a file is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    ToRead,
    ToWrite,
    /// To be emptied first.
    ToEmpty,
    /// Nothing of it opens, and nothing is kept.
    Anew,
}

/// A path through a descriptor.
pub(crate) fn proc_path(fd: i32, stored: Option<&OsStr>) -> OsString {
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
