//! What can be wrong with a study: its options.

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
