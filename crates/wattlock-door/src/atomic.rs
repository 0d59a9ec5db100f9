//! A file that gets its name when it is whole and on the disk; several of them together, at the price of one.
//!
//! Until then it has no name at all where the file system can do that (`O_TMPFILE`), so that nothing is left whatever ends
//! the program. On other file systems it has a hidden name, and a lock that ends with its program: a later run removes
//! what no program locks. It is readable by its owner only. Without `force` nothing is ever replaced, and there is no
//! moment between looking and naming in which another process could put something there.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard};
use wattlock_core::sync::lock;

use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, RenameFlags, fchmod, flock, fstat, fstatfs, linkat,
    openat, renameat, renameat_with, statat, syncfs, unlinkat,
};
use rustix::io::Errno;
use zlib_rs::crc32::crc32;

use crate::attributes::Attributes;
use crate::crypto::random;
use crate::error::Error;
use crate::folder::{Folder, Seen};

/// Hidden names that one output tries before it takes a random one: as many of its runs leave nothing for ever.
const HIDDEN_MOST: u32 = 4;

/// Results that wait for one another, and their bytes: what a kill makes to be done again.
const WAITING_MOST: usize = 512;
const WAITING_BYTES: u64 = 64 << 20;

/// From so many results on a file system, all of it is synchronised instead of each file.
const TOGETHER: usize = 3;

/// A file that has no name yet. Dropped before [`AtomicFile::commit`], it vanishes.
pub struct AtomicFile {
    file: File,
    folder: Folder,
    name: OsString,
    force: bool,
    batch: Option<Batch>,
    /// The hidden name, if it has one.
    hidden: Option<OsString>,
}

impl AtomicFile {
    /// Begins a file that is to get that name in `folder`.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::Io`].
    pub fn create(
        folder: Folder,
        name: OsString,
        force: bool,
        batch: Option<Batch>,
    ) -> Result<AtomicFile, Error> {
        let made = match nameless(&folder) {
            Some(fd) => Ok((fd, None)),
            None => hide(&folder, &name, |hidden| {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
                let fd = openat(folder.fd(), hidden, flags, Mode::RUSR | Mode::WUSR)?;
                let _ = flock(&fd, FlockOperation::NonBlockingLockExclusive);
                // A run that found it before it was locked has removed it.
                if fstat(&fd)?.st_nlink == 0 { Err(Errno::EXIST) } else { Ok(fd) }
            })
            .map(|(fd, hidden)| (fd, Some(hidden))),
        };
        match made {
            Ok((fd, hidden)) => Ok(AtomicFile { file: fd.into(), folder, name, force, batch, hidden }),
            Err(error) => match Error::writing(error.into()) {
                Error::Io { source, .. } => {
                    Err(Error::io(format!("creating {}", crate::one_line(&folder.at(&name))), source))
                }
                other => Err(other),
            },
        }
    }

    /// The file that is written, which has no name yet.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its input's attributes, or those of any new file; then brings it to the disk and gives it its name,
    /// or leaves both to its batch.
    ///
    /// # Errors
    /// [`Error::OutputExists`] if something appeared under that name meanwhile; [`Error::DiskFull`]; [`Error::Io`].
    pub fn commit(mut self, like: Option<&Attributes>) -> Result<(), Error> {
        match like {
            Some(like) => like.give(&self.file)?,
            None => fchmod(&self.file, Mode::from_raw_mode(0o666 & !umask()))
                .map_err(|error| Error::io("setting the output's permissions", error.into()))?,
        }
        if let Some(batch) = self.batch.take() {
            batch.add(self);
            return Ok(());
        }
        self.file.sync_all().map_err(Error::writing)?;
        self.place()?;
        self.folder.sync()
    }

    /// Gives the file its name.
    fn place(&mut self) -> Result<(), Error> {
        let exists = || Error::OutputExists(self.folder.at(&self.name));
        if self.hidden.is_none() {
            match link(&self.file, &self.folder, &self.name) {
                Ok(()) => return Ok(()),
                Err(Errno::EXIST) if !self.force => return Err(exists()),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(Error::writing(error.into())),
            }
            // A link replaces nothing; a rename does.
            let _ = flock(&self.file, FlockOperation::NonBlockingLockExclusive);
            let linked = hide(&self.folder, &self.name, |hidden| link(&self.file, &self.folder, hidden));
            self.hidden = Some(linked.map_err(|error| Error::writing(error.into()))?.1);
        }
        let Some(hidden) = &self.hidden else { return Ok(()) };
        if self.force {
            renameat(self.folder.fd(), hidden, self.folder.fd(), &self.name)
                .map_err(|error| Error::writing(error.into()))?;
        } else {
            self.rename_without_replacing(hidden)?;
        }
        self.hidden = None;
        Ok(())
    }

    fn rename_without_replacing(&self, hidden: &OsStr) -> Result<(), Error> {
        let exists = || Error::OutputExists(self.folder.at(&self.name));
        let failed = |error: Errno| Error::writing(error.into());
        let (fd, name) = (self.folder.fd(), &self.name);
        match renameat_with(fd, hidden, fd, name, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(()),
            Err(Errno::EXIST) => return Err(exists()),
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
            Err(error) => return Err(failed(error)),
        }
        // File systems without that rename (some over networks): a second link also fails if the name is taken.
        match linkat(fd, hidden, fd, name, AtFlags::empty()) {
            Ok(()) => return unlinkat(fd, hidden, AtFlags::empty()).map_err(failed),
            Err(Errno::EXIST) => return Err(exists()),
            Err(_) => {}
        }
        // And those without links (FAT): take the name with an empty file, then rename over that.
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
        match openat(fd, name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(_) => renameat(fd, hidden, fd, name).map_err(|error| {
                let _ = unlinkat(fd, name, AtFlags::empty());
                failed(error)
            }),
            Err(Errno::EXIST) => Err(exists()),
            Err(error) => Err(failed(error)),
        }
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some(hidden) = &self.hidden {
            let _ = unlinkat(self.folder.fd(), hidden, AtFlags::empty());
        }
    }
}

/// A file without a name, where there is such a thing and it can get one later.
fn nameless(folder: &Folder) -> Option<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let fd = openat(folder.fd(), ".", flags, Mode::RUSR | Mode::WUSR).ok()?;
    // It gets its name through /proc, which some roots lack.
    let through = statat(CWD, of_process(&fd), AtFlags::empty()).ok()?;
    let own = fstat(&fd).ok()?;
    ((through.st_dev, through.st_ino) == (own.st_dev, own.st_ino)).then_some(fd)
}

fn of_process(fd: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

fn link(file: &File, folder: &Folder, name: &OsStr) -> Result<(), Errno> {
    linkat(CWD, of_process(file), folder.fd(), name, AtFlags::SYMLINK_FOLLOW)
}

/// Makes something under a hidden name. Each output has few of them, so that what a killed run left is met again.
fn hide<T>(
    folder: &Folder,
    name: &OsStr,
    make: impl Fn(&OsStr) -> Result<T, Errno>,
) -> Result<(T, OsString), Errno> {
    let sum = crc32(0, name.as_bytes());
    for number in 0..HIDDEN_MOST {
        let hidden = OsString::from(format!(".wattlock-{sum:08x}-{number}.partial"));
        for _ in 0..2 {
            match make(&hidden) {
                Err(Errno::EXIST) if remove_abandoned(folder, &hidden) => {}
                Err(Errno::EXIST) => break,
                made => return made.map(|made| (made, hidden)),
            }
        }
    }
    let mut suffix = [0; 8];
    random(&mut suffix).map_err(|_| Errno::IO)?;
    let hidden = OsString::from(format!(".wattlock-{:016x}.partial", u64::from_be_bytes(suffix)));
    make(&hidden).map(|made| (made, hidden))
}

/// Removes what a run left that is gone, as its lock tells.
fn remove_abandoned(folder: &Folder, hidden: &OsStr) -> bool {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let is_file = |seen: Option<Seen>| seen.filter(|seen| seen.kind == FileType::RegularFile);
    if is_file(folder.look(hidden).ok().flatten()).is_none() {
        return false;
    }
    let Ok(fd) = openat(folder.fd(), hidden, flags, Mode::empty()) else { return false };
    let locked = flock(&fd, FlockOperation::NonBlockingLockExclusive).is_ok();
    let Ok(opened) = fstat(&fd) else { return false };
    let now = is_file(folder.look(hidden).ok().flatten());
    let same = now.is_some_and(|now| now.identity == Seen::from(opened).identity);
    locked && same && unlinkat(folder.fd(), hidden, AtFlags::empty()).is_ok()
}

/// Results that are whole and get to the disk, and their names, together.
///
/// A result on its own costs two waits for the disk, which for small files is all the time that they take.
#[derive(Clone, Default)]
pub struct Batch(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    files: Vec<AtomicFile>,
    bytes: u64,
}

impl Batch {
    fn add(&self, file: AtomicFile) {
        let mut waiting = self.lock();
        waiting.bytes += file.file.metadata().map_or(0, |meta| meta.len());
        waiting.files.push(file);
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.0)
    }

    /// Results that wait.
    pub fn len(&self) -> usize {
        self.lock().files.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether those that wait should wait no longer.
    pub fn is_full(&self) -> bool {
        // Each holds a descriptor, and another for its folder at most.
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let most = descriptors.map_or(WAITING_MOST, |most| (most / 4) as usize).min(WAITING_MOST);
        let waiting = self.lock();
        waiting.files.len() >= most || waiting.bytes >= WAITING_BYTES
    }

    /// Brings all that wait to the disk, and then each to its name unless `may` refuses. What became of each, in their
    /// order.
    pub fn finish(&self, mut may: impl FnMut(usize) -> Result<(), Error>) -> Vec<Result<(), Error>> {
        let mut files = std::mem::take(&mut *self.lock()).files;
        let mut results: Vec<Result<(), Error>> = sync_contents(&files);
        for (index, (file, result)) in files.iter_mut().zip(&mut results).enumerate() {
            if result.is_ok() {
                *result = may(index).and_then(|()| file.place());
            }
        }
        for (result, synced) in results.iter_mut().zip(sync_names(&files)) {
            if result.is_ok() {
                *result = synced;
            }
        }
        results
    }
}

/// Whether one call brings everything on this file system to the disk. FUSE's and network file systems' may not.
#[allow(clippy::unnecessary_cast, reason = "the field's type differs between architectures")]
fn syncs_whole(file: &File) -> bool {
    /// ext2 to ext4, XFS, Btrfs, F2FS, tmpfs (statfs(2)).
    const KNOWN: [u64; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];
    fstatfs(file).is_ok_and(|system| KNOWN.contains(&(system.f_type as u64)))
}

/// Brings files to the disk: of a file system with several, all at once.
fn sync_contents(files: &[AtomicFile]) -> Vec<Result<(), Error>> {
    let devices: Vec<_> = files.iter().map(|one| one.file.metadata().map_or(0, |meta| meta.dev())).collect();
    let mut whole: Vec<(u64, Result<(), Errno>)> = Vec::new();
    let mut results = Vec::with_capacity(files.len());
    for (one, device) in files.iter().zip(&devices) {
        let several = devices.iter().filter(|other| *other == device).count() >= TOGETHER;
        let done = whole.iter().find(|(synced, _)| synced == device).map(|(_, result)| *result);
        let synced = match done {
            Some(result) => result.map_err(std::io::Error::from),
            None if several && syncs_whole(&one.file) => {
                let result = syncfs(&one.file);
                whole.push((*device, result));
                result.map_err(std::io::Error::from)
            }
            None => one.file.sync_all(),
        };
        results.push(synced.map_err(Error::writing));
    }
    results
}

/// Brings their names to the disk, as durable as their folders are.
fn sync_names(files: &[AtomicFile]) -> Vec<Result<(), Error>> {
    let folder = |one: &AtomicFile| fstat(one.folder.fd()).map_or((0, 0), |stat| Seen::from(stat).identity);
    let folders: Vec<_> = files.iter().map(folder).collect();
    if folders.iter().collect::<HashSet<_>>().len() >= TOGETHER {
        return sync_contents(files);
    }
    let mut done = HashSet::new();
    let first = |(one, at): (&AtomicFile, _)| if done.insert(at) { one.folder.sync() } else { Ok(()) };
    files.iter().zip(folders).map(first).collect()
}

/// The process's umask. The system call that reads it also sets it, for all threads; /proc only reads. Where there is
/// no /proc, only the owner gets anything.
pub(crate) fn umask() -> u32 {
    fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
            u32::from_str_radix(line.trim(), 8).ok()
        })
        .unwrap_or(0o077)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::path::Path;

    fn hidden(folder: &Path) -> Vec<OsString> {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.as_bytes().starts_with(b".wattlock-")).collect()
    }

    fn made(folder: &Folder, name: &str) -> Result<(OwnedFd, OsString), Errno> {
        hide(folder, name.as_ref(), |hidden| {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
            let fd = openat(folder.fd(), hidden, flags, Mode::RUSR | Mode::WUSR)?;
            flock(&fd, FlockOperation::NonBlockingLockExclusive)?;
            Ok(fd)
        })
    }

    #[test]
    fn what_a_killed_run_left_is_removed_and_what_a_running_one_writes_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::open(directory.path()).unwrap();
        let (left, first) = made(&folder, "out").unwrap();
        let (_running, second) = made(&folder, "out").unwrap();
        assert_ne!(first, second);
        drop(left);
        let (_again, third) = made(&folder, "out").unwrap();
        assert_eq!((first, hidden(directory.path()).len()), (third, 2));
        // What is no file is another's, and stays.
        std::os::unix::fs::symlink(
            "x",
            directory.path().join(format!(".wattlock-{:08x}-0.partial", crc32(0, b"o"))),
        )
        .unwrap();
        assert!(made(&folder, "o").unwrap().1.as_bytes().ends_with(b"-1.partial"));
    }

    #[test]
    fn a_batch_names_what_it_may_and_leaves_the_rest_without_a_trace() {
        let directory = tempfile::tempdir().unwrap();
        let (folder, batch) = (Folder::open(directory.path()).unwrap(), Batch::default());
        fs::write(directory.path().join("taken"), b"old").unwrap();
        for name in ["a", "refused", "taken", "b"] {
            let file = AtomicFile::create(folder.clone(), name.into(), false, Some(batch.clone())).unwrap();
            file.file().write_all(name.as_bytes()).unwrap();
            file.commit(None).unwrap();
        }
        assert_eq!((batch.len(), directory.path().join("a").exists()), (4, false));
        let results = batch.finish(|index| if index == 1 { Err(Error::InputChanged) } else { Ok(()) });
        assert!(matches!(
            results[..],
            [Ok(()), Err(Error::InputChanged), Err(Error::OutputExists(_)), Ok(())]
        ));
        let read = |name: &str| fs::read(directory.path().join(name)).ok();
        assert_eq!((read("a"), read("b")), (Some(b"a".to_vec()), Some(b"b".to_vec())));
        assert_eq!((read("taken"), read("refused")), (Some(b"old".to_vec()), None));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3);
    }
}
