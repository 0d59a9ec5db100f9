//! One error type for volumes.

use std::io;

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

impl Error {
    /// An I/O error with what was tried.
    pub fn io(what: &'static str, source: impl Into<io::Error>) -> Error {
        Error::Io { what, source: source.into() }
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
