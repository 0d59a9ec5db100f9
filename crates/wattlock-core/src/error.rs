//! One error type for every engine. A variant says whose fault it is and whether another engine can help.

/// What went wrong inside an engine, as opposed to inside a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The engine reported an error for this request.
    Reported,
    /// No answer within the time the runtime allowed.
    Silent,
    /// The answer did not survive a check on the CPU.
    WrongResult,
    /// The engine is gone; nothing in flight will be answered.
    Lost,
    /// The engine was opened before this process forked and may not be used after.
    Forked,
}

/// Why a request has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The tag does not match. Deliberately bare: no detail can leak. The output buffer holds no plaintext.
    #[error("authentication failed")]
    Authentication,
    /// The tag of this message of a run does not match, and those before it do. Nothing of the run is left in the output.
    #[error("authentication of message {0} failed")]
    ForgedMessage(u32),
    /// The request itself is wrong and would be wrong on every engine. The text names the field.
    #[error("invalid request: {0}")]
    Invalid(&'static str),
    /// This engine cannot do this kind of request (or not in this form); another may.
    #[error("not supported by this engine")]
    Unsupported,
    /// No room in the engine's window; the request was not accepted.
    #[error("window full")]
    Full,
    /// The engine failed, not the request.
    #[error("engine fault: {0:?}")]
    Device(Fault),
    /// The request was withdrawn before it was done.
    #[error("withdrawn")]
    Withdrawn,
}

impl Error {
    /// Whether it says that a tag is wrong.
    pub const fn is_forgery(&self) -> bool {
        matches!(self, Error::Authentication | Error::ForgedMessage(_))
    }

    /// Whether repeating the identical request on another engine can give a different outcome.
    pub const fn another_engine_may_help(&self) -> bool {
        matches!(self, Error::Unsupported | Error::Full | Error::Device(_))
    }
}
