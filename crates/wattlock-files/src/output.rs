//! The output: a file that appears under its name only when it is whole, or a stream.
//!
//! A file is written under a temporary name beside its final one, readable only by its owner, and renamed after it
//! has reached the disk. Any failure before that removes it. Without `force` nothing is ever replaced, and
//! there is no moment between looking and renaming in which another process could put something there.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, IoSlice, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, linkat, open, renameat_with};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};

use crate::crypto::random;
use crate::error::Error;
use crate::input::{PIPE_BYTES, wait};

/// Most parts that one system call takes (`IOV_MAX`).
const PARTS_MAX: usize = 1024;

/// How often to look whether somebody has begun to read a pipe.
const NO_READER_POLL: Duration = Duration::from_millis(20);

/// The output of sealing or opening.
pub enum Output {
    /// A file. An existing one is replaced only if `force`. A pipe or character device is written to directly.
    Path {
        /// Its final name.
        path: PathBuf,
        /// Whether to replace a file of that name.
        force: bool,
    },
    /// Standard output. If the work fails midway, the bytes written before stay written; all of them are verified.
    Stdout,
    /// Any other stream.
    Stream(Box<dyn Write + Send>),
}

impl Output {
    /// Refuses an existing output before the user is asked for a passphrase. A file may still appear later:
    /// [`AtomicFile::commit`] decides.
    pub(crate) fn refuse_early(&self) -> Result<(), Error> {
        match self {
            Output::Path { path, force: false } if path.is_file() => Err(Error::OutputExists(path.clone())),
            _ => Ok(()),
        }
    }
}

/// An opened output.
pub(crate) enum Target<'a> {
    Atomic(AtomicFile),
    Stream(Box<dyn Write + Send + 'a>),
}

impl<'a> Target<'a> {
    /// Opens the output; `input` is the input's device and inode, which it must not be.
    pub(crate) fn open(
        output: Output,
        input: Option<(u64, u64)>,
        cancel: &'a AtomicBool,
    ) -> Result<Target<'a>, Error> {
        match output {
            Output::Path { path, force } => Target::open_path(path, force, input, cancel),
            Output::Stdout => {
                let duplicate = io::stdout().as_fd().try_clone_to_owned();
                Ok(Target::from_fd(duplicate.map_err(|error| Error::io("standard output", error))?, cancel))
            }
            Output::Stream(stream) => Ok(Target::Stream(stream)),
        }
    }

    fn open_path(
        path: PathBuf,
        force: bool,
        input: Option<(u64, u64)>,
        cancel: &'a AtomicBool,
    ) -> Result<Target<'a>, Error> {
        let meta = match fs::metadata(&path) {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Target::Atomic(AtomicFile::create(path, force)?));
            }
            Err(error) => return Err(Error::io("looking at the output", error)),
        };
        let kind = meta.file_type();
        if kind.is_fifo() {
            return Ok(Target::from_fd(open_pipe(&path, cancel)?, cancel));
        }
        if kind.is_char_device() {
            let file = OpenOptions::new().write(true).open(&path);
            let file = file.map_err(|error| Error::io("opening the output", error))?;
            return Ok(Target::from_fd(file.into(), cancel));
        }
        if !kind.is_file() {
            return Err(Error::NotRegular(path));
        }
        if input == Some((meta.dev(), meta.ino())) {
            return Err(Error::Usage("input and output are the same file".into()));
        }
        if !force {
            return Err(Error::OutputExists(path));
        }
        // A symbolic link stays one; what it names is replaced.
        let path = fs::canonicalize(path).map_err(|error| Error::io("looking at the output", error))?;
        Ok(Target::Atomic(AtomicFile::create(path, force)?))
    }

    fn from_fd(fd: OwnedFd, cancel: &'a AtomicBool) -> Target<'a> {
        let _ = rustix::pipe::fcntl_setpipe_size(&fd, PIPE_BYTES);
        let file = File::from(fd);
        let pipe = file.metadata().is_ok_and(|meta| meta.file_type().is_fifo());
        Target::Stream(Box::new(FdWriter { file, pipe, cancel }))
    }
}

/// Opens a named pipe as soon as it has a reader, or fails when the cancel flag is raised.
fn open_pipe(path: &Path, cancel: &AtomicBool) -> Result<OwnedFd, Error> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    loop {
        match open(path, flags, Mode::empty()) {
            Ok(fd) => return Ok(fd),
            Err(Errno::NXIO | Errno::INTR) => {}
            Err(error) => return Err(Error::io("opening the output", error.into())),
        }
        if cancel.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        std::thread::sleep(NO_READER_POLL);
    }
}

/// A descriptor that is written without being deaf to the cancel flag.
///
/// A pipe with room for one page counts as ready, and a larger write would then wait for a reader who may never come.
/// So pipes are asked to take what they can and no more, which changes nothing for others who have them open.
struct FdWriter<'a> {
    file: File,
    pipe: bool,
    cancel: &'a AtomicBool,
}

impl Write for FdWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        /// Says that the descriptor's own position counts (pwritev2(2)).
        const NOWHERE: u64 = u64::MAX;
        loop {
            wait(&self.file, PollFlags::OUT, self.cancel)?;
            if !self.pipe {
                return self.file.write_vectored(bytes);
            }
            let bytes = &bytes[..bytes.len().min(PARTS_MAX)];
            match pwritev2(&self.file, bytes, NOWHERE, ReadWriteFlags::NOWAIT) {
                Ok(len) => return Ok(len),
                Err(Errno::AGAIN | Errno::INTR) => {}
                // A kernel whose pipes do not know this: they wait, as they always did.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.pipe = false,
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file under a temporary name. Dropped before [`AtomicFile::commit`], it vanishes.
pub(crate) struct AtomicFile {
    file: File,
    temporary: PathBuf,
    target: PathBuf,
    force: bool,
    committed: bool,
}

impl AtomicFile {
    fn create(target: PathBuf, force: bool) -> Result<AtomicFile, Error> {
        if target.file_name().is_none() {
            return Err(Error::NotRegular(target));
        }
        let mut suffix = [0; 8];
        random(&mut suffix)?;
        let temporary =
            directory(&target).join(format!(".wattlock-{:016x}.partial", u64::from_be_bytes(suffix)));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary);
        match file {
            Ok(file) => Ok(AtomicFile { file, temporary, target, force, committed: false }),
            Err(error) => match Error::writing(error) {
                Error::Io { source, .. } => {
                    Err(Error::io(format!("creating {}", crate::one_line(&target)), source))
                }
                other => Err(other),
            },
        }
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its permissions, brings it to the disk, and gives it its name.
    ///
    /// # Errors
    /// [`Error::OutputExists`] if something appeared under that name meanwhile; [`Error::DiskFull`]; [`Error::Io`].
    pub(crate) fn commit(mut self, input_mode: Option<u32>) -> Result<(), Error> {
        let mode = input_mode.unwrap_or(0o666) & 0o777 & !umask();
        self.file
            .set_permissions(Permissions::from_mode(mode))
            .map_err(|error| Error::io("setting the output's permissions", error))?;
        self.file.sync_all().map_err(Error::writing)?;
        if self.force {
            fs::rename(&self.temporary, &self.target).map_err(Error::writing)?;
        } else {
            self.rename_without_replacing()?;
        }
        self.committed = true;
        // The name is as durable as its directory; where directories cannot be synchronised, nothing is lost by asking.
        if let Ok(directory) = File::open(directory(&self.target)) {
            let _ = directory.sync_all();
        }
        Ok(())
    }

    fn rename_without_replacing(&self) -> Result<(), Error> {
        let exists = || Error::OutputExists(self.target.clone());
        match renameat_with(CWD, &self.temporary, CWD, &self.target, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(()),
            Err(Errno::EXIST) => return Err(exists()),
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
            Err(error) => return Err(Error::writing(error.into())),
        }
        // File systems without that rename (some over networks): a second link also fails if the name is taken.
        match linkat(CWD, &self.temporary, CWD, &self.target, rustix::fs::AtFlags::empty()) {
            Ok(()) => return fs::remove_file(&self.temporary).map_err(Error::writing),
            Err(Errno::EXIST) => return Err(exists()),
            Err(_) => {}
        }
        // And those without links (FAT): take the name with an empty file, then rename over that.
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.target) {
            Ok(_) => fs::rename(&self.temporary, &self.target).map_err(|error| {
                let _ = fs::remove_file(&self.target);
                Error::writing(error)
            }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(exists()),
            Err(error) => Err(Error::writing(error)),
        }
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.committed {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// The process's umask. The system call that reads it also sets it, for all threads; /proc only reads. Where there is
/// no /proc, only the owner gets anything.
fn umask() -> u32 {
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

    static NEVER: AtomicBool = AtomicBool::new(false);

    fn create(path: &Path, force: bool) -> Result<AtomicFile, Error> {
        match Target::open(Output::Path { path: path.into(), force }, None, &NEVER)? {
            Target::Atomic(file) => Ok(file),
            Target::Stream(_) => panic!("a file was expected"),
        }
    }

    fn names(directory: &Path) -> Vec<String> {
        fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn nothing_has_the_final_name_before_commit_and_nothing_else_after() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        let mut file = create(&path, false).unwrap();
        file.file.write_all(b"whole").unwrap();
        assert!(!path.exists());
        file.commit(Some(0o640)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(names(directory.path()), ["out"]);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640 & !umask());
    }

    #[test]
    fn temporary_file_is_nobody_else_s_and_vanishes_with_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let file = create(&directory.path().join("out"), false).unwrap();
        assert_eq!(file.file.metadata().unwrap().mode() & 0o777, 0o600);
        drop(file);
        assert!(names(directory.path()).is_empty());
    }

    #[test]
    fn existing_output_is_replaced_only_with_force() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        fs::write(&path, b"old").unwrap();
        assert!(matches!(create(&path, false), Err(Error::OutputExists(_))));
        let mut file = create(&path, true).unwrap();
        file.file.write_all(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        file.commit(None).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn output_that_appears_meanwhile_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        let file = create(&path, false).unwrap();
        fs::write(&path, b"somebody else's").unwrap();
        assert!(matches!(file.commit(None), Err(Error::OutputExists(_))));
        assert_eq!(fs::read(&path).unwrap(), b"somebody else's");
        assert_eq!(names(directory.path()), ["out"]);
    }

    #[test]
    fn dangling_link_counts_as_existing_and_a_forced_link_stays_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let (link, real) = (directory.path().join("link"), directory.path().join("real"));
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert!(matches!(create(&link, false).unwrap().commit(None), Err(Error::OutputExists(_))));
        fs::write(&real, b"old").unwrap();
        create(&link, true).unwrap().commit(None).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&real).unwrap(), b"");
    }

    #[test]
    fn directory_and_socket_are_refused_and_a_device_is_written() {
        let directory = tempfile::tempdir().unwrap();
        assert!(matches!(create(directory.path(), true), Err(Error::NotRegular(_))));
        let socket = directory.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(matches!(create(&socket, true), Err(Error::NotRegular(_))));
        let null = Output::Path { path: "/dev/null".into(), force: false };
        assert!(matches!(Target::open(null, None, &NEVER), Ok(Target::Stream(_))));
    }
}
