//! A folder of telemetry files, held open: whose it is, what lies in it, and the lock under which its files move into the
//! totals.
//!
//! Everything is reached from the folder's descriptor, so that a folder which is exchanged meanwhile is another one. No
//! file is followed through a link. Nothing that is opened for writing gets the number of a standard stream that the
//! program closed: what others print there would be written into it.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat};

use crate::sys::fork;
use crate::sys::process::{effective_uid, variable};

/// Most entries of one folder that are looked at: a user can make any number.
const MOST_ENTRIES: usize = 20_000;

/// What the name of a file on its way into the totals begins with.
const FOLDING: &str = "folding-";

/// What the name of a user's folder in shared memory begins with; the user's number follows.
const PREFIX: &str = "wattlock-";
const SHARED_MEMORY: &str = "/dev/shm";

/// The folder of the calling user's telemetry files: `WATTLOCK_TELEMETRY_DIR` if set, else one in shared memory.
pub(super) fn own_path() -> PathBuf {
    let default = || PathBuf::from(format!("{SHARED_MEMORY}/{PREFIX}{}", effective_uid()));
    variable("WATTLOCK_TELEMETRY_DIR").unwrap_or_else(default)
}

/// Folders in shared memory that are named after the user with this number, lowest numbers first.
pub(super) fn shared() -> Vec<(u32, PathBuf)> {
    let entries = std::fs::read_dir(SHARED_MEMORY).into_iter().flatten().flatten();
    let uid = |name: &str| name.strip_prefix(PREFIX).filter(|digits| is_number(digits))?.parse().ok();
    let mut all: Vec<(u32, PathBuf)> =
        entries.filter_map(|entry| Some((uid(entry.file_name().to_str()?)?, entry.path()))).collect();
    all.sort();
    all
}

/// Digits as `{}` writes a number.
fn is_number(text: &str) -> bool {
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
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let mut plugs = Vec::new();
        loop {
            let fd = rustix::fs::open(path, flags, Mode::empty()).ok()?;
            if fd.as_raw_fd() <= 2 {
                plugs.push(fd);
                continue;
            }
            let stat = rustix::fs::fstat(&fd).ok()?;
            let closed = stat.st_mode & 0o022 == 0;
            return Some(Folder { fd, _plugs: plugs, owner: stat.st_uid, closed });
        }
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
    pub(super) fn list(&self) -> Listed {
        let mut listed = Listed::default();
        let Ok(entries) = Dir::read_from(&self.fd) else { return Listed { more: true, ..listed } };
        for (at, entry) in entries.flatten().enumerate() {
            if at == MOST_ENTRIES {
                listed.more = true;
                break;
            }
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
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::empty())?;
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

/// The right to change the totals of a folder. The kernel takes it back when its holder is killed, and no child has it.
pub(super) struct Lock {
    _file: OwnedFd,
    _turn: Turn,
}

/// The process in which a thread holds a lock: the kernel's excludes processes only, and is lost with the first of several
/// descriptors that one process closes.
static HOLDER: AtomicU32 = AtomicU32::new(0);

struct Turn;

impl Turn {
    fn take() -> Option<Turn> {
        let now = fork::generation();
        // Another number is that of an ancestor's thread, which is not here.
        let free = |holder: u32| (holder != now).then_some(now);
        HOLDER.fetch_update(Ordering::Acquire, Ordering::Relaxed, free).ok().map(|_| Turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        HOLDER.store(0, Ordering::Release);
    }
}

/// The next try for a lock that is held: a fold takes about as long.
const PAUSE: Duration = Duration::from_micros(100);

impl Lock {
    /// `None` if others hold it for longer than that, or it cannot be had at all.
    pub(super) fn take(folder: &Folder, patience: Duration) -> Option<Lock> {
        let since = Instant::now();
        let turn = until(since, patience, Turn::take)?;
        let flags = OFlags::RDWR | OFlags::CREATE;
        let file = folder.open_to_write(c"totals.lock", flags).ok()?;
        let lock = || rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).ok();
        until(since, patience, lock)?;
        Some(Lock { _file: file, _turn: turn })
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

fn is_folding(name: &CStr) -> bool {
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
    fn one_thread_at_a_time_has_the_lock_of_a_folder() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        assert!(folder.is_ours());
        // Other tests of this process take locks, too.
        let patient = Duration::from_secs(60);
        let lock = Lock::take(&folder, patient).unwrap();
        assert!(Lock::take(&folder, Duration::from_micros(300)).is_none());
        drop(lock);
        assert!(Lock::take(&folder, patient).is_some());
    }
}
