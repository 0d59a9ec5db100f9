//! What can be wrong with a study: its options.

/// Why a study cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option is out of its bounds; the caller's fault.
    #[error("{option} must be {bounds}")]
    Option {
        /// As on the command line.
        option: String,
        /// In words.
        bounds: String,
    },
    /// A policy's settings are not understood.
    #[error("{0}")]
    Policy(String),
}

impl Error {
    /// An option that is out of its bounds.
    pub fn option(option: &str, bounds: impl Into<String>) -> Error {
        Error::Option { option: option.to_owned(), bounds: bounds.into() }
    }
}

impl From<wattlock_policy::PolicyError> for Error {
    fn from(error: wattlock_policy::PolicyError) -> Error {
        Error::Policy(error.to_string())
    }
}

#[cfg(feature = "program")]
impl wattlock_door::Exit for Error {
    fn code(&self) -> u8 {
        wattlock_shell::program::NONSENSE.0
    }
}
