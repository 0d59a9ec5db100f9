//! What goes wrong in any door. Each variant has one line of text for a person and one exit code for a script.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use crate::exit::Exit;

/// Why an input, an output, an engine or the user ended the work. The message is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller asked for the impossible: no recipients, or recipients that exclude each other.
    #[error("{0}")]
    Usage(String),
    /// The output exists and may not be replaced.
    #[error("{} exists (replacing it needs --force)", one_line(.0))]
    OutputExists(PathBuf),
    /// A device, pipe or socket instead of a file.
    #[error("{} is not a regular file", one_line(.0))]
    NotRegular(PathBuf),
    /// A folder instead of a file.
    #[error("{} is a folder", one_line(.0))]
    IsFolder(PathBuf),
    /// The input, or the folder of the output, does not exist.
    #[error("{} does not exist", one_line(.0))]
    NotFound(PathBuf),
    /// No room for the output: disk, quota or file-size limit.
    #[error("no room left for the output")]
    DiskFull,
    /// The reader of the output pipe closed it.
    #[error("the output pipe was closed")]
    ClosedPipe,
    /// The input became shorter while it was read; or, when sealing, longer.
    #[error("the input changed while it was read")]
    InputChanged,
    /// Any other failure of the operating system.
    #[error("{what}: {source}")]
    Io {
        /// The operation that failed.
        what: Cow<'static, str>,
        /// The system's error.
        source: io::Error,
    },
    /// No engine could do the work.
    #[error("no engine could do this: {0}")]
    Engine(#[from] wattlock_core::Error),
    /// The caller's cancel flag was raised.
    #[error("interrupted")]
    Interrupted,
}

impl Exit for Error {
    fn code(&self) -> u8 {
        self.exit_code()
    }

    fn is_silent(&self) -> bool {
        // A reader of a listing that has seen enough has made no mistake.
        matches!(self, Error::ClosedPipe)
    }

    fn is_usage(&self) -> bool {
        matches!(self, Error::Usage(_))
    }
}

impl Error {
    /// The process exit code of this error; see [`crate::exit_codes`].
    pub const fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) => 2,
            Error::OutputExists(_) => 40,
            Error::NotRegular(_) | Error::IsFolder(_) => 41,
            Error::NotFound(_) => 42,
            Error::DiskFull => 43,
            Error::ClosedPipe => 44,
            Error::InputChanged => 45,
            Error::Io { .. } => 46,
            Error::Engine(_) => 50,
            Error::Interrupted => 130,
        }
    }

    /// An I/O error while doing `what`. An [`Error`] that travelled through a `Read` comes out unchanged.
    pub fn io(what: impl Into<Cow<'static, str>>, source: io::Error) -> Error {
        match source.downcast::<Error>() {
            Ok(ours) => ours,
            Err(source) => Error::Io { what: what.into(), source },
        }
    }

    /// An I/O error while writing: a full disk and a closed pipe are not "other".
    pub fn writing(source: io::Error) -> Error {
        use io::ErrorKind::{BrokenPipe, FileTooLarge, QuotaExceeded, StorageFull};
        match source.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => Error::DiskFull,
            BrokenPipe => Error::ClosedPipe,
            _ => Error::io("writing the output", source),
        }
    }
}

/// A path as one line of text: a name with a line feed or a terminal's control sequences in it shows them escaped.
pub fn one_line(path: &Path) -> String {
    let mut line = String::new();
    for character in path.to_string_lossy().chars() {
        if character.is_control() {
            line.extend(character.escape_debug());
        } else {
            line.push(character);
        }
    }
    line
}

/// Lets an [`Error`] pass through a `Read` or `Write`, which know only the system's errors.
impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::other(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_disk_and_closed_pipe_are_told_apart() {
        let system = |errno: rustix::io::Errno| Error::writing(errno.into());
        assert!(matches!(system(rustix::io::Errno::NOSPC), Error::DiskFull));
        assert!(matches!(system(rustix::io::Errno::DQUOT), Error::DiskFull));
        assert!(matches!(system(rustix::io::Errno::FBIG), Error::DiskFull));
        assert!(matches!(system(rustix::io::Errno::PIPE), Error::ClosedPipe));
        assert!(matches!(system(rustix::io::Errno::IO), Error::Io { .. }));
    }

    #[test]
    fn our_error_survives_a_trip_through_io() {
        let through: io::Error = Error::InputChanged.into();
        assert!(matches!(Error::io("reading", through), Error::InputChanged));
    }

    #[test]
    fn every_message_is_one_line_and_every_code_is_listed() {
        let hostile = "a\nb\u{1b}[31m";
        for error in [
            Error::OutputExists(hostile.into()),
            Error::NotRegular(hostile.into()),
            Error::IsFolder(hostile.into()),
            Error::NotFound(hostile.into()),
            Error::DiskFull,
            Error::ClosedPipe,
        ] {
            assert!(!error.to_string().contains(char::is_control), "{error}");
            assert!(crate::exit_codes().iter().any(|(code, _)| *code == error.code()), "{error}");
        }
        assert_eq!(one_line(Path::new("b\u{e4}r\nx")), "b\u{e4}r\\nx");
    }
}
