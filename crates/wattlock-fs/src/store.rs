//! The store beneath file contents: files that are read, written and synced at positions. Real folders implement it,
//! and so does a simulated store whose writes can be cut by a crash at any moment.

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{
    AtFlags, Dir, DirEntry, FallocateFlags, FileType, FlockOperation, Mode, OFlags, ResolveFlags, Timespec,
    Timestamps,
};
use rustix::io::Errno;
use wattlock_core::sync::lock;

use crate::grant::Grant;
use crate::tree::is_ours;
use crate::volume;

/// One backing file. Shared by threads.
#[allow(clippy::len_without_is_empty, reason = "an empty backing file is none of ours")]
pub trait File: Send + Sync + 'static {
    /// Reads up to `to.len()` bytes at `at`; fewer only at the end of the file.
    fn read_at(&self, to: &mut [u8], at: u64) -> io::Result<usize>;
    /// Writes all of `from` at `at`; grows the file.
    fn write_at(&self, from: &[u8], at: u64) -> io::Result<()>;
    /// The stored length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Cuts or extends (with a hole) the file.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Makes content and length durable (`fdatasync`).
    fn sync(&self) -> io::Result<()>;
    /// Makes a hole without changing the length.
    fn punch(&self, at: u64, len: u64) -> io::Result<()>;
    /// Takes room for `len` bytes at `at`, so that writing them finds it. Neither the length nor any byte changes. Where
    /// the storage cannot do that this does nothing.
    fn take_room(&self, at: u64, len: u64) -> io::Result<()>;
    /// The first place from `at` on that is in no hole; `None` if only a hole follows. `at` where holes are not known.
    fn next_data(&self, at: u64) -> io::Result<Option<u64>> {
        Ok(Some(at))
    }
    /// Whether it was opened for writing.
    fn writable(&self) -> bool {
        true
    }
    /// The same file, opened for writing wherever it is by now.
    fn for_writing(&self) -> io::Result<Self>
    where
        Self: Sized;
    /// Whether it has no name any longer.
    fn is_removed(&self) -> bool;
    /// When it was made, since 1970, where the storage says that.
    fn born(&self) -> Option<Duration> {
        None
    }
    /// The time by which files of its storage are made, since 1970.
    fn now(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }
    /// Waits until so much time is over by that clock.
    fn wait(&self, time: Duration) {
        std::thread::sleep(time);
    }
    /// Its times of access and modification, where it has any.
    fn times(&self) -> io::Result<Option<Timestamps>> {
        Ok(None)
    }
    /// Puts its times back: what the journal brings into place was written before.
    fn set_times(&self, times: &Timestamps) -> io::Result<()> {
        let _ = times;
        Ok(())
    }
}

/// Where a file was when it was opened. Recovery finds it again by this.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    /// Device and inode number of the backing file.
    pub inode: (u64, u64),
    /// Path of the backing file below the volume's folder when it was opened; a hint only.
    pub path: Vec<u8>,
}

impl Place {
    /// The path in one line, for people: whoever writes the storage chooses it.
    pub fn shown(&self) -> String {
        wattlock_door::one_line(Path::new(OsStr::from_bytes(&self.path)))
    }
}

/// A folder of backing files.
pub trait Store: Send + Sync + 'static {
    /// Its files.
    type File: File;
    /// Opens the journal, making an empty one where there is none.
    fn journal(&self) -> io::Result<Self::File>;
    /// Opens the journal for reading, if there is one, and writes nothing. [`io::ErrorKind::WouldBlock`] if another
    /// process has it for writing; none has as long as it is open.
    fn journal_to_read(&self) -> io::Result<Option<Self::File>>;
    /// Opens the file that is at a path now, for writing where `write` says so, and says which inode that is: another one
    /// than in `place` if the file is not there any more, or if the volume was copied. `None` if there is no file, one
    /// that is another inode and may not be opened, or where nothing is known of it: only [`Store::walk`] says that a
    /// file is gone.
    fn find(&self, place: &Place, write: bool) -> io::Result<Option<(Place, Self::File)>>;
    /// Looks through all folders, once, and opens each regular file whose inode number is `wanted`, for writing where
    /// `write` says so. `found` says whether to go on. It also gets what could not be looked at, files and folders, with
    /// the reason: [`io::ErrorKind::NotFound`] is something that was renamed or removed during the walk, and
    /// [`io::ErrorKind::Interrupted`] all the rest, since `stop` said so.
    fn walk(
        &self,
        write: bool,
        stop: &dyn Fn() -> bool,
        wanted: &mut dyn FnMut(u64) -> bool,
        found: &mut dyn FnMut(Place, io::Result<Self::File>) -> bool,
    );
    /// Makes an empty file `wattlock.bad.*` in the volume's folder, which no entry is. Returns its name.
    fn make_aside(&self) -> io::Result<(String, Self::File)>;
    /// Makes everything written so far durable, names included (`syncfs`).
    fn sync_all(&self) -> io::Result<()>;
}

impl File for std::fs::File {
    fn read_at(&self, to: &mut [u8], at: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < to.len() {
            match FileExt::read_at(self, &mut to[done..], at + done as u64) {
                Ok(0) => break,
                Ok(len) => done += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, from: &[u8], at: u64) -> io::Result<()> {
        self.write_all_at(from, at)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        std::fs::File::set_len(self, len)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn punch(&self, at: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(self, how, at, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(self, at, len),
            result => Ok(result?),
        }
    }

    fn take_room(&self, at: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        loop {
            match rustix::fs::fallocate(self, FallocateFlags::KEEP_SIZE, at, len) {
                Err(Errno::INTR) => {}
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::NODEV) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn next_data(&self, at: u64) -> io::Result<Option<u64>> {
        match rustix::fs::seek(self, rustix::fs::SeekFrom::Data(at)) {
            Ok(data) => Ok(Some(data)),
            Err(Errno::NXIO) => Ok(None),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(at)),
            Err(error) => Err(error.into()),
        }
    }

    fn writable(&self) -> bool {
        rustix::fs::fcntl_getfl(self).is_ok_and(|flags| flags & OFlags::RWMODE != OFlags::RDONLY)
    }

    fn for_writing(&self) -> io::Result<std::fs::File> {
        Ok(open_named(&self.try_clone()?.into(), true, true)?.into())
    }

    fn is_removed(&self) -> bool {
        rustix::fs::fstat(self).is_ok_and(|stat| stat.st_nlink == 0)
    }

    fn born(&self) -> Option<Duration> {
        let born = self.metadata().and_then(|status| status.created()).ok()?;
        born.duration_since(std::time::UNIX_EPOCH).ok()
    }

    fn times(&self) -> io::Result<Option<Timestamps>> {
        let stat = rustix::fs::fstat(self)?;
        let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
        Ok(Some(Timestamps {
            last_access: time(stat.st_atime, stat.st_atime_nsec as _),
            last_modification: time(stat.st_mtime, stat.st_mtime_nsec as _),
        }))
    }

    fn set_times(&self, times: &Timestamps) -> io::Result<()> {
        Ok(rustix::fs::futimens(self, times)?)
    }
}

/// What a hole is on a file system that has none. Bytes behind the file's end are zero as they are.
fn write_zeros(file: &std::fs::File, at: u64, len: u64) -> io::Result<()> {
    let end = at.saturating_add(len).min(file.metadata()?.len());
    let zeros = [0; 65536];
    let mut at = at;
    while at < end {
        let piece = (end - at).min(zeros.len() as u64);
        file.write_all_at(&zeros[..piece as usize], at)?;
        at += piece;
    }
    Ok(())
}

/// The name of the journal in the volume's folder.
pub const JOURNAL: &str = "wattlock.journal";

/// A real folder. Its journal is locked as long as it is open, and so is the volume's sealed file, for readers that find no
/// journal: a volume is mounted once for writing, or any number of times for reading.
pub struct FolderStore {
    root: OwnedFd,
    /// The sealed file, locked. The folder itself is locked by what changes keys, which a mount must not hinder.
    sealed: Mutex<Option<OwnedFd>>,
    /// Whether rights may be given for a moment: not once it is read only.
    grants: AtomicBool,
}

impl FolderStore {
    /// The store of the volume in this folder.
    ///
    /// # Errors
    /// The system's, for a path that is no folder.
    pub fn open(path: &Path) -> io::Result<FolderStore> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(FolderStore { root, sealed: Mutex::default(), grants: AtomicBool::new(true) })
    }

    /// What has the journal's name and is no file (a pipe, a device) is neither waited for nor written.
    fn refuse_other_journal(&self) -> io::Result<()> {
        match rustix::fs::statat(&self.root, JOURNAL, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file"))
            }
            _ => Ok(()),
        }
    }

    /// Locks the volume's sealed file: shared by readers of a volume without a journal, alone by a writer, who would make
    /// one.
    fn lock_sealed(&self, how: FlockOperation) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let Ok(file) = rustix::fs::openat(&self.root, volume::FILE, flags, Mode::empty()) else {
            return Ok(());
        };
        match rustix::fs::flock(&file, how) {
            Err(Errno::WOULDBLOCK) => Err(Errno::WOULDBLOCK.into()),
            // Some storage locks nothing that is open for reading; a writer still locks its journal.
            _ => {
                *lock(&self.sealed) = Some(file);
                Ok(())
            }
        }
    }

    /// Opens a path below the folder without following a link.
    fn beneath(&self, path: &OsStr, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        Ok(rustix::fs::openat2(&self.root, path, flags, Mode::empty(), how)?)
    }
}

/// Does something that a file's or folder's owner may be refused: the owner may have taken a right from what is not
/// whole yet (git's objects are read-only, a folder may have any mode). The right is given for that moment.
fn granted<T>(
    (named, grants): (&OwnedFd, bool),
    right: Mode,
    work: impl Fn() -> rustix::io::Result<T>,
) -> rustix::io::Result<T> {
    match work() {
        Err(Errno::ACCESS) if grants => {
            // Nobody but the owner may.
            let grant = Grant::give(named, right).ok_or(Errno::ACCESS)?;
            let done = work();
            grant.end()?;
            done
        }
        done => done,
    }
}

/// Opens a file that a descriptor names.
fn open_named(named: &OwnedFd, write: bool, grants: bool) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", named.as_raw_fd());
    let (flags, right) = match write {
        true => (OFlags::RDWR, Mode::RUSR | Mode::WUSR),
        false => (OFlags::RDONLY, Mode::RUSR),
    };
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Ok(granted((named, grants), right, || rustix::fs::open(&*path, flags, Mode::empty()))?)
}

/// Whether a descriptor is a file's with this device and inode number. Device numbers may change when a file system
/// is mounted anew, so they decide nothing here: a volume lies on one file system.
fn is_inode(file: &OwnedFd, inode: (u64, u64)) -> io::Result<bool> {
    let stat = rustix::fs::fstat(file)?;
    Ok(stat.st_ino == inode.1 && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}

/// The path of an entry.
fn joined(folder: &[u8], name: &CStr) -> Vec<u8> {
    match folder.is_empty() {
        true => name.to_bytes().to_vec(),
        false => [folder, b"/", name.to_bytes()].concat(),
    }
}

/// Opens a folder in a folder, for its entries.
fn open_entries(
    parent: &OwnedFd,
    name: &CStr,
    device: u64,
    grants: bool,
) -> rustix::io::Result<(Rc<OwnedFd>, Dir)> {
    let path_only = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let open = || rustix::fs::openat(parent, name, path_only, Mode::empty());
    let folder = granted((parent, grants), Mode::XUSR, open)?;
    // What is mounted here hides what the volume has.
    if rustix::fs::fstat(&folder)?.st_dev != device {
        return Err(Errno::XDEV);
    }
    let entries = granted((&folder, grants), Mode::RUSR | Mode::XUSR, || {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        Dir::new(rustix::fs::openat(&folder, c".", flags, Mode::empty())?)
    })?;
    Ok((Rc::new(folder), entries))
}

/// Opens an entry as what it is called, and no more.
fn name_only(folder: &OwnedFd, name: &CStr, grants: bool) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    granted((folder, grants), Mode::XUSR, || rustix::fs::openat(folder, name, flags, Mode::empty()))
}

/// What an entry is.
fn kind_of(folder: &OwnedFd, entry: &DirEntry, grants: bool) -> rustix::io::Result<FileType> {
    match entry.file_type() {
        FileType::Unknown => {
            let stat = rustix::fs::fstat(name_only(folder, entry.file_name(), grants)?)?;
            Ok(FileType::from_raw_mode(stat.st_mode))
        }
        kind => Ok(kind),
    }
}

/// Opens an entry that is a file with this inode.
fn open_entry(
    folder: &OwnedFd,
    name: &CStr,
    inode: (u64, u64),
    (write, grants): (bool, bool),
) -> io::Result<std::fs::File> {
    let named = name_only(folder, name, grants)?;
    match is_inode(&named, inode)? {
        true => Ok(open_named(&named, write, grants)?.into()),
        // Another file has the name by now.
        false => Err(Errno::NOENT.into()),
    }
}

impl Store for FolderStore {
    type File = std::fs::File;

    fn make_aside(&self) -> io::Result<(String, std::fs::File)> {
        let name = crate::beneath::temporary("bad").map_err(io::Error::other)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(&self.root, &*name, flags, Mode::from_raw_mode(0o600))?;
        Ok((name, file.into()))
    }

    fn journal(&self) -> io::Result<std::fs::File> {
        self.refuse_other_journal()?;
        self.lock_sealed(FlockOperation::NonBlockingLockExclusive)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = rustix::fs::openat(&self.root, JOURNAL, flags, Mode::from_raw_mode(0o600))?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        // Its name, too: POSIX does not promise it for what is synced of the file.
        rustix::fs::fsync(&self.root)?;
        Ok(file.into())
    }

    fn journal_to_read(&self) -> io::Result<Option<std::fs::File>> {
        self.grants.store(false, Ordering::SeqCst);
        self.refuse_other_journal()?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let open = || match rustix::fs::openat(&self.root, JOURNAL, flags, Mode::empty()) {
            Ok(file) => Ok(Some(file)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        };
        let mut file = open()?;
        if file.is_none() {
            self.lock_sealed(FlockOperation::NonBlockingLockShared)?;
            // A writer may have made it, and be gone, before that.
            file = open()?;
        }
        let Some(file) = file else { return Ok(None) };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            // Storage that cannot be locked has no writer that locked it.
            Ok(()) | Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Some(file.into()))
    }

    fn find(&self, place: &Place, write: bool) -> io::Result<Option<(Place, std::fs::File)>> {
        let Ok(found) = self.beneath(OsStr::from_bytes(&place.path), OFlags::PATH) else { return Ok(None) };
        let stat = rustix::fs::fstat(&found)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(None);
        }
        let there = Place { inode: (stat.st_dev, stat.st_ino), path: place.path.clone() };
        match open_named(&found, write, self.grants.load(Ordering::SeqCst)) {
            Ok(file) => Ok(Some((there, file.into()))),
            Err(error) if there.inode.1 == place.inode.1 => Err(error),
            Err(_) => Ok(None),
        }
    }

    fn walk(
        &self,
        write: bool,
        stop: &dyn Fn() -> bool,
        wanted: &mut dyn FnMut(u64) -> bool,
        found: &mut dyn FnMut(Place, io::Result<std::fs::File>) -> bool,
    ) {
        let grants = self.grants.load(Ordering::SeqCst);
        let root = self.root.try_clone();
        let root = root.and_then(|root| Ok((rustix::fs::fstat(&root)?.st_dev, Rc::new(root))));
        let (device, root) = match root {
            Ok(root) => root,
            Err(error) => {
                found(Place { inode: (0, 0), path: b".".to_vec() }, Err(error));
                return;
            }
        };
        // Folders that wait keep open only the folder that they are in: as many descriptors as the tree is deep.
        let mut waiting = vec![(root, c".".to_owned(), Vec::new())];
        while let Some((parent, name, path)) = waiting.pop() {
            let (folder, entries) = match open_entries(&parent, &name, device, grants) {
                Ok(opened) => opened,
                Err(error) if found(Place { inode: (device, 0), path }, Err(error.into())) => continue,
                Err(_) => return,
            };
            for entry in entries {
                let entry = match entry {
                    Ok(entry) => entry,
                    Err(error) if found(Place { inode: (device, 0), path }, Err(error.into())) => break,
                    Err(_) => return,
                };
                let name = entry.file_name();
                if matches!(name.to_bytes(), b"." | b"..") {
                    continue;
                }
                if stop() {
                    found(Place { inode: (device, 0), path }, Err(Errno::INTR.into()));
                    return;
                }
                let path = joined(&path, name);
                let inode = (device, entry.ino());
                let file = match kind_of(&folder, &entry, grants) {
                    Ok(FileType::Directory) => {
                        waiting.push((folder.clone(), name.to_owned(), path));
                        continue;
                    }
                    Ok(FileType::RegularFile) if !is_ours(name.to_bytes()) && wanted(inode.1) => {
                        open_entry(&folder, name, inode, (write, grants))
                    }
                    Ok(_) => continue,
                    Err(error) => Err(error.into()),
                };
                if !found(Place { inode, path }, file) {
                    return;
                }
            }
        }
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.root)?)
    }
}
