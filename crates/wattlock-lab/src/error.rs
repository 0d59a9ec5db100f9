//! What can be wrong with a study: its options.

use std::fmt::Display;

/// Why a study cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option is out of its bounds; the caller's fault.
    #[error("{option} must be {bounds}")]
    Option {
        /// As on the command line.
        option: &'static str,
        /// In words.
        bounds: String,
    },
    /// A policy's settings are not understood.
    #[error("{0}")]
    Policy(String),
}

#[cfg(feature = "program")]
impl wattlock_door::Exit for Error {
    fn code(&self) -> u8 {
        wattlock_shell::program::NONSENSE.0
    }
}

/// Refuses an option's value outside `least..=most`, and one that has no order (NaN).
pub(crate) fn within<T: PartialOrd + Display>(
    option: &'static str,
    value: T,
    least: T,
    most: T,
) -> Result<(), Error> {
    match value >= least && value <= most {
        true => Ok(()),
        false => Err(Error::Option { option, bounds: format!("{least} to {most}, not {value}") }),
    }
}
