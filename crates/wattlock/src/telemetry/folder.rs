//! A folder of telemetry files, held open: whose it is, what lies in it, and the lock under which its files move into the
//! totals.
//!
//! Everything is reached from the folder's descriptor, so that a folder which is exchanged meanwhile is another one. No
//! file is followed through a link, and none is on another file system than its folder, nor is a folder on another one than
//! the shared memory it lies in: any user may mount one of its own there (FUSE), which never answers. What is opened asks
//! such a file system nothing, and nothing here looks at a path by other means. Nothing that is opened for writing gets the number of a standard stream that the
//! program closed: what others print there would be written into it.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags, ResolveFlags, Stat,
};
use rustix::io::Errno;

use super::budget::Budget;
use super::place::SHARED_MEMORY;
use crate::sys::process::effective_uid;

/// What the name of a file on its way into the totals begins with.
const FOLDING: &str = "folding-";

/// Opens a folder; one in shared memory only if nothing is mounted on it.
pub(super) fn open_folder(path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) if parent == Path::new(SHARED_MEMORY) => {
            let parent = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let parent = rustix::fs::open(SHARED_MEMORY, parent, Mode::empty())?;
            within(parent.as_fd(), &CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)?, flags)
        }
        _ => rustix::fs::open(path, flags, Mode::empty()),
    }
}

/// Opens what lies in a folder, on the same file system, through no link.
fn within(folder: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(folder, name, flags, Mode::empty(), resolve) {
        // Before Linux 5.6, and in a sandbox that does not know the call.
        Err(Errno::NOSYS | Errno::PERM) => within_by_mount(folder, name, flags),
        outcome => outcome,
    }
}

/// The same without that call: a descriptor that is only a place asks the file system nothing.
fn within_by_mount(folder: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let place = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = rustix::fs::openat(folder, name, place, Mode::empty())?;
    let mounts = [folder, place.as_fd()].map(mount_of);
    if mounts[0].is_none() || mounts[0] != mounts[1] {
        return Err(Errno::XDEV);
    }
    let path = format!("/proc/self/fd/{}", place.as_raw_fd());
    rustix::fs::open(path, flags - OFlags::NOFOLLOW, Mode::empty())
}

/// The number of the mount that a descriptor is on.
fn mount_of(fd: BorrowedFd<'_>) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
}

/// Digits as `{}` writes a number.
pub(super) fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
        && !text.is_empty()
        && (text == "0" || !text.starts_with('0'))
}

/// An open folder.
pub(super) struct Folder {
    fd: OwnedFd,
    /// Keep the numbers of standard streams that are closed.
    _plugs: Vec<OwnedFd>,
    owner: u32,
    closed: bool,
}

/// The files in a folder that are, or were, processes' counters.
#[derive(Default)]
pub(super) struct Listed {
    /// With the process that the name speaks of.
    pub(super) files: Vec<(CString, u32)>,
    /// On their way into the totals.
    pub(super) folding: Vec<CString>,
    /// Whether there was more than is looked at, or could be seen now.
    pub(super) more: bool,
}

impl Folder {
    /// `None` if it is none, a link, or not to be read.
    pub(super) fn open(path: &Path) -> Option<Folder> {
        Folder::open_or_why(path).ok()
    }

    /// The same with the reason.
    pub(super) fn open_or_why(path: &Path) -> rustix::io::Result<Folder> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let mut plugs = Vec::new();
        loop {
            let fd = open_folder(path, flags)?;
            if fd.as_raw_fd() <= 2 {
                plugs.push(fd);
                continue;
            }
            let stat = rustix::fs::fstat(&fd)?;
            let closed = stat.st_mode & 0o022 == 0;
            return Ok(Folder { fd, _plugs: plugs, owner: stat.st_uid, closed });
        }
    }

    /// The same as if it were another user's.
    #[cfg(test)]
    pub(super) fn of_another(folder: &Folder, owner: u32) -> Folder {
        Folder { fd: folder.fd.try_clone().unwrap(), _plugs: Vec::new(), owner, closed: folder.closed }
    }

    /// The user whose folder it is.
    pub(super) fn owner(&self) -> u32 {
        self.owner
    }

    /// Whether no other user makes files in it.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether it is the calling user's, and no other user makes files in it. In a world-writable place another user may
    /// have been first.
    pub(super) fn is_ours(&self) -> bool {
        self.closed && self.owner == effective_uid()
    }

    /// What lies in it.
    pub(super) fn list(&self, budget: &mut Budget) -> Listed {
        let mut listed = Listed::default();
        let Ok(entries) = Dir::read_from(&self.fd) else { return Listed { more: true, ..listed } };
        for entry in entries {
            let Some(entry) = entry.ok().filter(|_| budget.list().is_some()) else {
                listed.more = true;
                break;
            };
            let name = entry.file_name();
            if let Some(pid) = number(name) {
                listed.files.push((name.to_owned(), pid));
            } else if is_folding(name) {
                listed.folding.push(name.to_owned());
            }
        }
        listed
    }

    /// A file of the folder's owner alone, opened to be read: regular, of one name, not writable by others.
    pub(super) fn open_to_read(&self, name: &CStr) -> rustix::io::Result<Option<(OwnedFd, Stat)>> {
        // Not through a link, and not a pipe that would keep the reader waiting.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = within(self.fd.as_fd(), name, flags)?;
        let stat = rustix::fs::fstat(&fd)?;
        let plain = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_nlink == 1;
        let theirs = stat.st_uid == self.owner && stat.st_mode & 0o022 == 0;
        Ok((plain && theirs).then_some((fd, stat)))
    }

    /// A file to be written, for its owner alone whatever the umask says.
    fn open_to_write(&self, name: &CStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
        Ok(fd)
    }

    /// A new file that only its owner reads; an error if there is one of that name.
    pub(super) fn create(&self, name: &CStr) -> rustix::io::Result<OwnedFd> {
        self.open_to_write(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
    }

    /// A new file that only its owner reads and that has no name yet: of a process that is killed nothing stays.
    pub(super) fn create_nameless(&self) -> rustix::io::Result<OwnedFd> {
        self.open_to_write(c".", OFlags::RDWR | OFlags::TMPFILE)
    }

    /// Gives such a file its name; an error if there is one of that name.
    pub(super) fn name(&self, file: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<()> {
        let file = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::linkat(CWD, file, &self.fd, name, AtFlags::SYMLINK_FOLLOW)
    }

    /// An empty file that only its owner reads, new or emptied.
    pub(super) fn create_over(&self, name: &CStr) -> rustix::io::Result<OwnedFd> {
        self.open_to_write(name, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)
    }

    /// Gives a file another name; an error if there is one of that name.
    pub(super) fn rename(&self, from: &CStr, to: &CStr) -> rustix::io::Result<()> {
        rustix::fs::renameat_with(&self.fd, from, &self.fd, to, RenameFlags::NOREPLACE)
    }

    /// Gives a file another name, which another file may have had.
    pub(super) fn replace(&self, from: &CStr, to: &CStr) -> rustix::io::Result<()> {
        rustix::fs::renameat(&self.fd, from, &self.fd, to)
    }

    /// Removes a file.
    pub(super) fn remove(&self, name: &CStr) {
        let _ = rustix::fs::unlinkat(&self.fd, name, AtFlags::empty());
    }
}

/// The right to change the totals of a folder: of one thread, whichever copies of this library the processes have. The
/// kernel takes it back when its holder is killed; if another thread had forked meanwhile, when that child ends, too.
pub(super) struct Lock {
    file: OwnedFd,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Not by closing alone: a child may have the descriptor.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// The next try for a lock that is held: a fold takes about as long.
const PAUSE: Duration = Duration::from_micros(100);

impl Lock {
    /// `None` if others hold it for longer than that, or it cannot be had at all.
    pub(super) fn take(folder: &Folder, patience: Duration) -> Option<Lock> {
        let since = Instant::now();
        let flags = OFlags::RDWR | OFlags::CREATE;
        loop {
            let file = folder.open_to_write(c"totals.lock", flags).ok()?;
            let lock = || rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok();
            until(since, patience, lock)?;
            // If the file was removed meanwhile (`rm`, logind's RemoveIPC), another process locks a new one.
            if rustix::fs::fstat(&file).ok()?.st_nlink > 0 {
                return Some(Lock { file });
            }
        }
    }
}

fn until<T>(since: Instant, patience: Duration, attempt: impl Fn() -> Option<T>) -> Option<T> {
    loop {
        if let Some(done) = attempt() {
            return Some(done);
        }
        if since.elapsed() >= patience {
            return None;
        }
        std::thread::sleep(PAUSE);
    }
}

/// The process that a file's name speaks of: `PID-N`, and nothing else.
pub(super) fn number(name: &CStr) -> Option<u32> {
    let (pid, serial) = name.to_str().ok()?.split_once('-')?;
    (is_number(pid) && is_number(serial)).then(|| pid.parse().ok())?
}

pub(super) fn is_folding(name: &CStr) -> bool {
    let rest = || name.to_str().ok()?.strip_prefix(FOLDING)?.split_once('-');
    rest().is_some_and(|(turn, name)| {
        is_number(turn) && CString::new(name).is_ok_and(|name| number(&name).is_some())
    })
}

/// The name under which a file goes into the totals for the so manieth time.
pub(super) fn folding(turn: u64, name: &CStr) -> Option<CString> {
    if is_folding(name) {
        return Some(name.to_owned());
    }
    CString::new(format!("{FOLDING}{turn}-{}", name.to_str().ok()?)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_ours_or_not() {
        for name in [c"1-0", c"4194303-12"] {
            assert!(number(name).is_some(), "{name:?}");
            assert!(is_folding(&folding(7, name).unwrap()), "{name:?}");
        }
        let others = [
            c"99999-hardening.conf",
            c"4194303-",
            c"-1",
            c"4194303",
            c"4194303-1-2",
            c" 4194303-1",
            c"+4194303-1",
            c"4194303- 1",
            c"x-1",
            c"4194303-x",
            c"007-1",
            c"totals",
            c"folding-1-1-1",
        ];
        for name in others {
            assert!(number(name).is_none(), "{name:?}");
        }
        for name in [c"folding-1", c"folding--1-1", c"folding-x-1-1", c"folding-1-1", c"folding-1-1-1-1"] {
            assert!(!is_folding(name), "{name:?}");
        }
    }

    #[test]
    fn nothing_on_another_file_system_or_behind_a_link_is_opened() {
        let place = tempfile::tempdir_in(SHARED_MEMORY).unwrap();
        std::fs::write(place.path().join("file"), b"x").unwrap();
        std::os::unix::fs::symlink("file", place.path().join("link")).unwrap();
        let folder = Folder::open(place.path()).unwrap();
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        for open in [within, within_by_mount] {
            assert!(open(folder.fd.as_fd(), c"file", flags).is_ok());
            assert_eq!(open(folder.fd.as_fd(), c"link", flags).unwrap_err(), Errno::LOOP);
            assert_eq!(open(folder.fd.as_fd(), c"none", flags).unwrap_err(), Errno::NOENT);
            assert_eq!(open(root.as_fd(), c"proc", flags).unwrap_err(), Errno::XDEV);
        }
    }

    #[test]
    fn one_thread_at_a_time_has_the_lock_of_a_folder() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        assert!(folder.is_ours());
        let lock = Lock::take(&folder, Duration::ZERO).unwrap();
        // Another copy of this library in the process has nothing of this one but the file.
        let copy = std::fs::File::open(place.path().join("totals.lock")).unwrap();
        let take = || rustix::fs::flock(&copy, FlockOperation::NonBlockingLockExclusive);
        assert!(Lock::take(&folder, Duration::from_micros(300)).is_none() && take().is_err());
        // That another descriptor of the file is closed takes nothing from its holder.
        drop(std::fs::File::open(place.path().join("totals.lock")).unwrap());
        assert!(take().is_err());
        // A child that has the descriptor keeps nobody out.
        let childs = lock.file.try_clone().unwrap();
        drop(lock);
        assert!(take().is_ok() && Lock::take(&folder, Duration::ZERO).is_none());
        drop((copy, childs));
        // A child that another test makes has the descriptors until it executes its program.
        assert!(Lock::take(&folder, Duration::from_secs(60)).is_some());
    }

    #[test]
    fn the_lock_of_a_file_that_was_removed_meanwhile_is_none() {
        let place = tempfile::tempdir().unwrap();
        let (folder, path) = (Folder::open(place.path()).unwrap(), place.path().join("totals.lock"));
        let held = Lock::take(&folder, Duration::from_secs(60)).unwrap();
        let opened = || {
            let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            links.filter(|link| std::fs::read_link(link.path()).is_ok_and(|to| to == path)).count()
        };
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| Lock::take(&folder, Duration::from_secs(60)).unwrap());
            while opened() < 2 {
                std::thread::sleep(PAUSE);
            }
            std::fs::remove_file(&path).unwrap();
            drop(held);
            let taken = rustix::fs::fstat(&waits.join().unwrap().file).unwrap();
            let there = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&path).unwrap());
            assert_eq!((taken.st_nlink, taken.st_ino), (1, there));
        });
    }
}
