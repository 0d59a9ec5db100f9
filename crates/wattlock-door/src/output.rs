//! The output: a file that appears under its name only when it is whole, or a stream.
//!
//! [`crate::atomic`] makes the file. A link at a file's name is never followed: with `force` the link itself is replaced,
//! without it the name is taken. What is neither a file nor a link is written to if the user named it and it is a pipe or
//! a character device; a name that was made from an input's is a file's or nothing.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, IoSlice, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::fs::{FileType, Mode, OFlags, fcntl_setfl, fstat, open, openat};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};

use crate::atomic::{AtomicFile, Batch};
use crate::error::Error;
use crate::folder::{Folder, Seen};
use crate::wait::{PIPE_BYTES, wait};

/// Most parts that one system call takes (`IOV_MAX`).
const PARTS_MAX: usize = 1024;

/// How often to look whether a pipe has a reader.
const NO_READER_POLL: Duration = Duration::from_millis(20);

/// The output of sealing or opening.
pub enum Output {
    /// A file that the user named. An existing one is replaced only if `force`. A pipe or character device is written to
    /// directly, and so is what `/dev/stdout`, `/dev/stderr` and `/dev/fd` name.
    Path {
        /// Its final name.
        path: PathBuf,
        /// Whether to replace a file of that name.
        force: bool,
    },
    /// A file whose name was made from an input's. It gets to the disk, and its name, with others: [`Batch::finish`].
    File {
        /// Where it is to be.
        folder: Folder,
        /// Its final name there.
        name: OsString,
        /// Whether to replace a file of that name.
        force: bool,
        /// The others.
        batch: Batch,
    },
    /// Standard output. If the work fails midway, the bytes written before stay written; all of them are verified.
    Stdout,
    /// Any other stream.
    Stream(Box<dyn Write + Send>),
}

impl Output {
    /// Refuses an existing output before the user is asked for a passphrase. A file may still appear later:
    /// [`AtomicFile::commit`] decides.
    pub fn refuse_early(&self) -> Result<(), Error> {
        match self {
            Output::Path { path, force: false } if path.is_file() && named_descriptor(path).is_none() => {
                Err(Error::OutputExists(path.clone()))
            }
            Output::File { folder, name, force: false, .. } if folder.look(name)?.is_some() => {
                Err(Error::OutputExists(folder.at(name)))
            }
            _ => Ok(()),
        }
    }
}

/// An opened output.
pub enum Target<'a> {
    /// A file that gets its name when it is whole.
    Atomic(AtomicFile),
    /// What is written to as it comes.
    Stream(Box<dyn Write + Send + 'a>),
}

impl<'a> Target<'a> {
    /// Opens the output; `input` is the input's device and inode, which it must not be.
    pub fn open(
        output: Output,
        input: Option<(u64, u64)>,
        cancel: &'a AtomicBool,
    ) -> Result<Target<'a>, Error> {
        match output {
            Output::Path { path, force } => Target::open_path(&path, force, input, cancel),
            Output::File { folder, name, force, batch } => {
                let seen = folder.look(&name)?;
                refuse_file(&folder, &name, seen, force, input)?;
                Ok(Target::Atomic(AtomicFile::create(folder, name, force, Some(batch))?))
            }
            Output::Stdout => Target::standard(io::stdout().as_fd().try_clone_to_owned(), cancel),
            Output::Stream(stream) => Ok(Target::Stream(stream)),
        }
    }

    fn open_path(
        path: &Path,
        force: bool,
        input: Option<(u64, u64)>,
        cancel: &'a AtomicBool,
    ) -> Result<Target<'a>, Error> {
        match named_descriptor(path) {
            Some(1) => return Target::standard(io::stdout().as_fd().try_clone_to_owned(), cancel),
            Some(2) => return Target::standard(io::stderr().as_fd().try_clone_to_owned(), cancel),
            Some(_) => return Ok(Target::from_fd(open_descriptor(path)?, cancel)),
            None => {}
        }
        let (folder, name) = Folder::of(path)?;
        let seen = folder.look(&name)?;
        if let Some(there) =
            seen.filter(|there| matches!(there.kind, FileType::Fifo | FileType::CharacterDevice))
        {
            return Ok(Target::from_fd(open_special(&folder, &name, there, cancel)?, cancel));
        }
        refuse_file(&folder, &name, seen, force, input)?;
        Ok(Target::Atomic(AtomicFile::create(folder, name, force, None)?))
    }

    fn standard(duplicate: io::Result<OwnedFd>, cancel: &'a AtomicBool) -> Result<Target<'a>, Error> {
        Ok(Target::from_fd(duplicate.map_err(|error| Error::io("standard output", error))?, cancel))
    }

    fn from_fd(fd: OwnedFd, cancel: &'a AtomicBool) -> Target<'a> {
        let _ = rustix::pipe::fcntl_setpipe_size(&fd, PIPE_BYTES);
        let file = File::from(fd);
        let pipe = file.metadata().is_ok_and(|meta| meta.file_type().is_fifo());
        Target::Stream(Box::new(FdWriter { file, pipe, cancel }))
    }
}

/// Refuses a name that no file may get.
fn refuse_file(
    folder: &Folder,
    name: &OsStr,
    seen: Option<Seen>,
    force: bool,
    input: Option<(u64, u64)>,
) -> Result<(), Error> {
    let Some(seen) = seen else { return Ok(()) };
    match seen.kind {
        FileType::RegularFile if input == Some(seen.identity) => {
            Err(Error::Usage("input and output are the same file".into()))
        }
        FileType::RegularFile | FileType::Symlink if !force => Err(Error::OutputExists(folder.at(name))),
        FileType::RegularFile | FileType::Symlink => Ok(()),
        FileType::Directory => Err(Error::IsFolder(folder.at(name))),
        _ => Err(Error::NotRegular(folder.at(name))),
    }
}

/// The number of the descriptor that a path of the system's own names. Its folder decides, however it is spelt: these
/// names are links, and replacing one of /dev takes it from every program of the machine.
fn named_descriptor(path: &Path) -> Option<u32> {
    let folder = fs::canonicalize(Folder::path_of(path)).ok()?;
    match path.file_name()?.to_str()? {
        "stdin" if folder == Path::new("/dev") => Some(0),
        "stdout" if folder == Path::new("/dev") => Some(1),
        "stderr" if folder == Path::new("/dev") => Some(2),
        number => {
            let own = fs::canonicalize("/proc/self/fd").ok()?;
            number.parse().ok().filter(|_| folder == own)
        }
    }
}

/// Opens what a path of the system's own names: the only links that are followed. A file cannot be written so: it would be
/// opened anew, from its beginning.
fn open_descriptor(path: &Path) -> Result<OwnedFd, Error> {
    let failed = |error: Errno| Error::io("opening the output", error.into());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let kind = fs::metadata(path).map_err(|error| Error::io("opening the output", error))?.file_type();
    if !kind.is_fifo() && !kind.is_char_device() {
        return Err(Error::NotRegular(path.to_owned()));
    }
    let fd = open(path, flags, Mode::empty()).map_err(failed)?;
    fcntl_setfl(&fd, OFlags::empty()).map_err(failed)?;
    Ok(fd)
}

/// Opens a pipe, as soon as it has a reader, or a device. What another user put into a folder where others may put things
/// is refused, as `protected_fifos` of proc(5) has it: its maker reads what is written.
fn open_special(folder: &Folder, name: &OsStr, seen: Seen, cancel: &AtomicBool) -> Result<OwnedFd, Error> {
    let failed = |error: Errno| Error::io("opening the output", error.into());
    let around: Seen = fstat(folder.fd()).map_err(failed)?.into();
    let trusted = seen.owner == 0 || seen.owner == rustix::process::geteuid().as_raw();
    if !trusted && around.mode & 0o022 != 0 {
        return Err(Error::NotRegular(folder.at(name)));
    }
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = loop {
        match openat(folder.fd(), name, flags, Mode::empty()) {
            Ok(fd) => break fd,
            Err(Errno::NXIO) if seen.kind == FileType::Fifo => {}
            Err(Errno::INTR) => {}
            Err(error) => return Err(failed(error)),
        }
        if cancel.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        std::thread::sleep(NO_READER_POLL);
    };
    let opened: Seen = fstat(&fd).map_err(failed)?.into();
    if opened.identity != seen.identity {
        return Err(Error::NotRegular(folder.at(name)));
    }
    if seen.kind != FileType::Fifo {
        fcntl_setfl(&fd, OFlags::empty()).map_err(failed)?;
    }
    Ok(fd)
}

/// A descriptor that is written without being deaf to the cancel flag.
///
/// A pipe with room for one page counts as ready, and a larger write would then wait for a reader that may never come.
/// So pipes are asked to take what they can and no more, which changes nothing for others that have them open.
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

/// A report or a page: a small text that is written at the end of the work, whole or not at all, by the rules of
/// [`Output::Path`].
pub struct Document(Target<'static>);

impl Document {
    /// Takes the place. What took hours must not end with a report that has none.
    ///
    /// # Errors
    /// Any of [`Error`] about outputs.
    pub fn begin(path: &Path, force: bool) -> Result<Document, Error> {
        // The programs that write documents end at once when they are interrupted.
        static NEVER: AtomicBool = AtomicBool::new(false);
        let output = match path.as_os_str() == "-" {
            true => Output::Stdout,
            false => Output::Path { path: path.to_owned(), force },
        };
        Target::open(output, None, &NEVER).map(Document)
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// Any of [`Error`] about outputs.
    pub fn write(self, text: &[u8]) -> Result<(), Error> {
        match self.0 {
            Target::Atomic(file) => {
                file.file().write_all(text).map_err(Error::writing)?;
                file.commit(None)
            }
            Target::Stream(mut stream) => {
                stream.write_all(text).and_then(|()| stream.flush()).map_err(Error::writing)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

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
        let file = create(&path, false).unwrap();
        file.file().write_all(b"whole").unwrap();
        assert!(!path.exists());
        file.commit(None).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(names(directory.path()), ["out"]);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o666 & !crate::atomic::umask());
    }

    #[test]
    fn temporary_file_is_nobody_else_s_and_vanishes_with_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let file = create(&directory.path().join("out"), false).unwrap();
        assert_eq!(file.file().metadata().unwrap().mode() & 0o777, 0o600);
        drop(file);
        assert!(names(directory.path()).is_empty());
    }

    #[test]
    fn existing_output_is_replaced_only_with_force() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        fs::write(&path, b"old").unwrap();
        assert!(matches!(create(&path, false), Err(Error::OutputExists(_))));
        let file = create(&path, true).unwrap();
        file.file().write_all(b"new").unwrap();
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
    fn a_link_counts_as_existing_and_force_replaces_the_link_and_never_what_it_names() {
        let directory = tempfile::tempdir().unwrap();
        let (link, real) = (directory.path().join("link"), directory.path().join("real"));
        for dangling in [true, false] {
            std::os::unix::fs::symlink(&real, &link).unwrap();
            if !dangling {
                fs::write(&real, b"old").unwrap();
            }
            assert!(matches!(create(&link, false), Err(Error::OutputExists(_))));
            create(&link, true).unwrap().commit(None).unwrap();
            assert!(fs::symlink_metadata(&link).unwrap().is_file());
            assert_eq!(fs::read(&real).ok(), (!dangling).then(|| b"old".to_vec()));
            fs::remove_file(&link).unwrap();
        }
    }

    #[test]
    fn directory_and_socket_are_refused_and_a_device_is_written() {
        let directory = tempfile::tempdir().unwrap();
        assert!(matches!(create(directory.path(), true), Err(Error::IsFolder(_))));
        let socket = directory.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(matches!(create(&socket, true), Err(Error::NotRegular(_))));
        let null = Output::Path { path: "/dev/null".into(), force: false };
        assert!(matches!(Target::open(null, None, &NEVER), Ok(Target::Stream(_))));
    }
}
