//! One error type for volumes.

use std::io;
use std::path::PathBuf;
use wattlock_door::Exit;

/// Why an operation on a volume failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The backing store failed; `source` has the errno.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// Stored bytes do not authenticate, or are no possible form. Reported as `EIO`. Says what: a chunk's number, a
    /// name, a folder record.
    #[error("damaged: {0}")]
    Damaged(String),
    /// There is no volume.
    #[error("{} is no volume", wattlock_door::one_line(.0))]
    NoVolume(PathBuf),
    /// The folder of a new volume has something in it.
    #[error("{} is not empty", wattlock_door::one_line(.0))]
    NotEmpty(PathBuf),
    /// The version of the volume's format is unknown.
    #[error("unknown volume version {0}: made by a newer program?")]
    Version(String),
    /// A part of the volume has a version, or a field of it a value, that is unknown: never damage, since what a newer
    /// program wrote must stay. Says what.
    #[error("unknown {0}: written by a newer program?")]
    Newer(String),
    /// The volume's settings are no possible form. Their content is never quoted.
    #[error("the volume's settings are damaged: {0}")]
    BadVolume(String),
    /// No identity matches. A wrong key and an altered file look the same.
    #[error("no identity given opens the volume (wrong key, or wattlock.fs was altered)")]
    NoMatchingKey,
    /// Another process has the volume.
    #[error("the volume is in use: it is mounted, or another command works on it")]
    InUse,
    /// A sealed file or a key failed.
    #[error(transparent)]
    Files(#[from] wattlock_files::Error),
    /// An engine failed.
    #[error("engine: {0}")]
    Engine(#[from] wattlock_core::Error),
    /// The caller asked for the impossible.
    #[error("{0}")]
    Usage(String),
}

/// Exit code and meaning of the variants that have codes of their own; the others have those of sealed files.
pub const fn exit_codes() -> &'static [(u8, &'static str)] {
    &[
        (80, "no volume"),
        (81, "unknown volume version"),
        (82, "volume settings damaged"),
        (83, "volume damaged"),
        (84, "volume in use"),
        (85, "folder not empty"),
    ]
}

impl Exit for Error {
    fn code(&self) -> u8 {
        self.exit_code()
    }

    fn is_silent(&self) -> bool {
        matches!(self, Error::Files(error) if error.is_silent())
    }

    fn is_usage(&self) -> bool {
        matches!(self, Error::Usage(_))
    }
}

impl From<wattlock_door::Error> for Error {
    fn from(error: wattlock_door::Error) -> Error {
        Error::Files(error.into())
    }
}

impl Error {
    /// An I/O error with what was tried.
    pub fn io(what: &'static str, source: impl Into<io::Error>) -> Error {
        Error::Io { what, source: source.into() }
    }

    /// The process exit code; see [`exit_codes`].
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::NoVolume(_) => 80,
            Error::Version(_) | Error::Newer(_) => 81,
            Error::BadVolume(_) => 82,
            Error::Damaged(_) => 83,
            Error::NoMatchingKey => 12,
            Error::InUse => 84,
            Error::NotEmpty(_) => 85,
            Error::Files(error) => error.exit_code(),
            Error::Engine(_) => 50,
            Error::Usage(_) => 2,
            Error::Io { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => 42,
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => 43,
                _ => 46,
            },
        }
    }

    /// Whether it says something about one entry, so that others can be looked at.
    pub(crate) fn is_of_one(&self) -> bool {
        matches!(self, Error::Io { .. } | Error::Newer(_)) && !self.is_exhaustion()
    }

    /// Whether this process has no descriptor or memory left: that says nothing about what was asked for.
    pub fn is_exhaustion(&self) -> bool {
        use rustix::io::Errno;
        let Error::Io { source, .. } = self else { return false };
        matches!(Errno::from_io_error(source), Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM))
    }

    /// The errno that a system call should return: the backing store's own, `EIO` for damage.
    pub fn errno(&self) -> i32 {
        const EIO: i32 = 5;
        match self {
            Error::Io { source, .. } => source.raw_os_error().unwrap_or(EIO),
            _ => EIO,
        }
    }
}
