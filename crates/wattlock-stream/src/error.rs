//! One error type for streams. What sealed files know as well is theirs ([`wattlock_files::Error`]), with their exit
//! codes.

use wattlock_door::Exit;

/// Why sealing or opening a stream, or a record, failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Anything that happens to sealed files, too: keys, headers, input and output.
    #[error(transparent)]
    Files(#[from] wattlock_files::Error),
    /// The bytes are not a sealed stream's.
    #[error("not a sealed stream")]
    NotAStream,
    /// The bytes are a sealed file's, or an age file's.
    #[error("not a sealed stream but a sealed file: `wattlock open` opens it")]
    AFile,
    /// The receiver closed or lost its connection before it had the stream's end.
    #[error(
        "the receiver is gone: the connection ended behind {frames} frames, the last of which may be lost"
    )]
    ReceiverGone {
        /// Frames that were written.
        frames: u64,
    },
    /// The input ended before the stream's own end. A length that was altered looks the same.
    #[error(
        "the stream was cut before its end, after {frames} whole frames (or a frame's length was altered)"
    )]
    Cut {
        /// Frames that were verified and released.
        frames: u64,
    },
    /// A frame does not authenticate: altered, moved, repeated, left out, or another stream's.
    #[error("the stream is altered (frame {frame} does not authenticate)")]
    Altered {
        /// Number of the frame, from zero.
        frame: u64,
    },
    /// A frame's first four bytes are none that a writer makes.
    #[error("the stream is altered (frame {frame}: {what})")]
    BadFrame {
        /// Number of the frame, from zero.
        frame: u64,
        /// What is wrong with them.
        what: &'static str,
    },
    /// The stream ended, and further bytes follow.
    #[error("the stream is extended: something follows its end (other streams: --joined)")]
    Extended,
    /// The producer's last record is incomplete. The stream is then not ended either: a cut goes through the pipe.
    #[error("the input ended inside a record; the stream is left without an end")]
    RecordCut,
    /// A record does not authenticate: altered, or under another key, partition, batch or place.
    #[error("a record does not authenticate (altered, or moved)")]
    RecordAltered,
    /// A plain record that cannot be passed on: no reader would take what became of it.
    #[error("an unfit record: {0}")]
    Unfit(&'static str),
    /// The bytes are no sealed record's.
    #[error("not a sealed record: {0}")]
    NotARecord(&'static str),
    /// A record that authenticates has content that no sealer makes.
    #[error("a sealed record's content: {0}")]
    RecordContent(&'static str),
    /// A record's value is larger, once it is unpacked, than the reader allows.
    #[error("a record's value is larger than allowed once it is unpacked")]
    RecordTooLarge,
    /// A key's entry is signed by no trusted signer, or not at all.
    #[error("key {0} is not signed by anybody trusted")]
    Untrusted(crate::record::StreamId),
    /// A frame, a record or a key entry has a version that is unknown, or a kind: a newer program's, which is no damage.
    /// Says what.
    #[error("unknown {0}: made by a newer program?")]
    Newer(String),
    /// The key of a record is not at hand.
    #[error("no key {0} (never there, or shredded)")]
    NoKey(crate::record::StreamId),
    /// An entry of the folder of keys is damaged.
    #[error("key entry {name}: {what}")]
    BadEntry {
        /// The file's name.
        name: String,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// The exit code of a bridge that agrees with no broker on TLS.
pub const BROKER_TLS: u8 = 47;
/// The exit code of a bridge whose credentials brokers refuse.
pub const BROKER_LOGIN: u8 = 48;

/// Exit codes that streams have beyond those of [`wattlock_files::exit_codes`].
pub const fn exit_codes() -> &'static [(u8, &'static str)] {
    &[
        (36, "stream cut before its end"),
        (37, "input ends inside a record"),
        (38, "record altered, or moved"),
        (39, "no key for a record, or its entry is damaged or not trusted"),
        (BROKER_TLS, "bridge: no TLS with a broker (certificate, authority, version)"),
        (BROKER_LOGIN, "bridge: a broker refuses the credentials"),
    ]
}

impl Exit for Error {
    fn code(&self) -> u8 {
        self.exit_code()
    }

    fn is_silent(&self) -> bool {
        matches!(self, Error::Files(error) if error.is_silent())
    }
}

impl From<wattlock_door::Error> for Error {
    fn from(error: wattlock_door::Error) -> Error {
        Error::Files(error.into())
    }
}

impl Error {
    /// The process exit code of this error.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Error::Files(error) => error.exit_code(),
            Error::Unfit(_) => 2,
            Error::NotAStream | Error::AFile | Error::NotARecord(_) => 21,
            Error::Newer(_) => 22,
            Error::ReceiverGone { .. } => 44,
            Error::Altered { .. } | Error::BadFrame { .. } => 32,
            Error::Extended => 34,
            Error::Cut { .. } => 36,
            Error::RecordCut => 37,
            Error::RecordAltered | Error::RecordContent(_) | Error::RecordTooLarge => 38,
            Error::NoKey(_) | Error::BadEntry { .. } | Error::Untrusted(_) => 39,
        }
    }

    /// A word for why a record was not opened or not passed on, by which they are counted.
    pub const fn reason(&self) -> &'static str {
        match self {
            Error::Unfit(_) => "unfit",
            Error::NotARecord(_) => "not-sealed",
            Error::Newer(_) => "unknown-version",
            Error::RecordAltered => "altered",
            Error::RecordContent(_) => "content",
            Error::RecordTooLarge => "too-large",
            Error::NoKey(_) => "no-key",
            Error::Untrusted(_) => "untrusted",
            Error::BadEntry { .. } => "bad-entry",
            Error::Files(wattlock_files::Error::NoMatchingKey | wattlock_files::Error::PassphraseNeeded) => {
                "no-identity"
            }
            _ => "failed",
        }
    }
}

impl From<wattlock_core::Error> for Error {
    fn from(error: wattlock_core::Error) -> Error {
        Error::Files(error.into())
    }
}

/// A failure of the system while doing `what`.
pub(crate) fn io(what: &'static str, source: impl Into<std::io::Error>) -> Error {
    Error::Files(wattlock_files::Error::Door(wattlock_door::Error::Io {
        what: what.into(),
        source: source.into(),
    }))
}
