//! One error type for sealing and opening. Each variant has one line of text for a person and one exit code for a
//! script; what every door may meet is [`wattlock_door::Error`].

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;

use wattlock_door::{Exit, one_line};

/// Why sealing or opening failed. The message is one line; [`Error::exit_code`] is stable between versions.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A recipient or a recipients file does not parse. Files' contents are never quoted.
    #[error("not a recipient: {0}")]
    BadRecipient(String),
    /// An identity file does not parse. Its contents are never quoted.
    #[error("not an identity: {0}")]
    BadIdentity(String),
    /// No identity matches. For X25519 a wrong key and a damaged stanza look the same, so the text says both.
    #[error("no identity given opens this file (wrong key, or its header was altered)")]
    NoMatchingKey,
    /// The file is locked to keys, and none was given, nor is one where a default key would be.
    #[error("no key given: {options}, or a default key in {place}")]
    NoKeyGiven {
        /// How this command is given one.
        options: &'static str,
        /// Where a default key would be.
        place: String,
    },
    /// An identity matched a stanza by name and yet could not open it.
    #[error("an identity matches this file but does not open it (wrong key, or its header was altered)")]
    WrongKey,
    /// The passphrase does not open the file, or the key file it protects.
    #[error("wrong passphrase (or the header was altered)")]
    BadPassphrase,
    /// The file is locked with a passphrase, and none was given.
    #[error("a passphrase is needed, and there is nobody to ask")]
    PassphraseNeeded,
    /// The file asks for more scrypt work than allowed.
    #[error("passphrase work factor 2^{required} is above the limit of 2^{limit}")]
    ExcessiveWork {
        /// Base-two logarithm of the work factor the file asks for.
        required: u8,
        /// Base-two logarithm of the largest work factor accepted.
        limit: u8,
    },
    /// A plugin failed or is missing.
    #[error("key plugin: {0}")]
    Plugin(String),
    /// The file has no bytes at all.
    #[error("the file is empty; a sealed file never is")]
    Empty,
    /// The first bytes belong to no known format.
    #[error("not a sealed file and not an age file")]
    NotSealed,
    /// The first bytes are those of a sealed stream.
    #[error("not a sealed file but a sealed stream: `wattlock stream open` opens it")]
    AStream,
    /// The first bytes are not those of a gzip file.
    #[error("not a gzip file")]
    NotGzip,
    /// The version of the format is unknown.
    #[error("unknown {format} version {version}: made by a newer program?")]
    UnknownVersion {
        /// Which format.
        format: &'static str,
        /// The version found, as written.
        version: String,
    },
    /// The header is longer than the format allows, or claims to be.
    #[error("header of {claimed} bytes is above the limit of {limit}")]
    HeaderTooLarge {
        /// Bytes found or claimed.
        claimed: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The header breaks the format's grammar or its own authentication.
    #[error("the header is damaged: {0}")]
    BadHeader(&'static str),
    /// The ASCII armor breaks its grammar.
    #[error("the ASCII armor is damaged: {0}")]
    BadArmor(&'static str),
    /// The length alone shows that the end is missing.
    #[error("the file is truncated")]
    Truncated,
    /// The last chunk does not authenticate. A cut inside it and a change of it look the same.
    #[error("the end of the file is cut off or altered (last chunk, number {chunk}, does not authenticate)")]
    DamagedEnd {
        /// Number of the chunk, from zero.
        chunk: u64,
    },
    /// A chunk before the last does not authenticate: it was altered or moved.
    #[error("the file is altered (chunk {chunk} does not authenticate)")]
    Corrupted {
        /// Number of the chunk, from zero.
        chunk: u64,
    },
    /// A gzip file's header, deflate stream, checksum or length is not what it must be.
    #[error("the gzip file is altered: {0}")]
    BadGzip(&'static str),
    /// Header, salt and commitment do not belong together.
    #[error("the file is altered (header, salt or commitment do not belong together)")]
    Commitment,
    /// The content is complete, and further bytes follow it.
    #[error("the file is extended: something follows its end")]
    Extended,
    /// The content is longer than one file of the format can hold.
    #[error("the content is longer than the format allows")]
    TooLong,
    /// A folder to be sealed as if it were a file.
    #[error("{} is a folder: `tar c FOLDER | wattlock seal ...` seals all of it, `wattlock fs init` makes an encrypted one", one_line(.0))]
    SealsNoFolder(PathBuf),
    /// What every door may meet: an output, an input, an engine, the user.
    #[error(transparent)]
    Door(#[from] wattlock_door::Error),
}

/// Exit code and meaning of every variant, for manuals, beyond [`wattlock_door::exit_codes`]. Codes of one decade belong
/// together: keys, format, damage.
pub const fn exit_codes() -> &'static [(u8, &'static str)] {
    &[
        (10, "not a recipient"),
        (11, "not an identity"),
        (12, "no identity opens the file"),
        (13, "an identity matches and does not open the file"),
        (14, "wrong passphrase"),
        (15, "a passphrase is needed"),
        (16, "passphrase work factor above the limit"),
        (17, "key plugin failed"),
        (20, "empty file"),
        (21, "not a sealed file, or not a gzip file"),
        (22, "unknown version"),
        (23, "header too large"),
        (24, "header damaged"),
        (25, "armor damaged"),
        (30, "truncated"),
        (31, "end cut off or altered"),
        (32, "altered"),
        (33, "header, salt or commitment altered"),
        (34, "extended"),
        (35, "content too long for the format"),
    ]
}

impl Error {
    /// The process exit code of this error; see [`exit_codes`].
    pub const fn exit_code(&self) -> u8 {
        match self {
            Error::BadRecipient(_) => 10,
            Error::BadIdentity(_) => 11,
            Error::NoMatchingKey | Error::NoKeyGiven { .. } => 12,
            Error::WrongKey => 13,
            Error::BadPassphrase => 14,
            Error::PassphraseNeeded => 15,
            Error::ExcessiveWork { .. } => 16,
            Error::Plugin(_) => 17,
            Error::Empty => 20,
            Error::NotSealed | Error::AStream | Error::NotGzip => 21,
            Error::UnknownVersion { .. } => 22,
            Error::HeaderTooLarge { .. } => 23,
            Error::BadHeader(_) => 24,
            Error::BadArmor(_) => 25,
            Error::Truncated => 30,
            Error::DamagedEnd { .. } => 31,
            Error::Corrupted { .. } | Error::BadGzip(_) => 32,
            Error::Commitment => 33,
            Error::Extended => 34,
            Error::TooLong => 35,
            Error::SealsNoFolder(_) => 41,
            Error::Door(error) => error.exit_code(),
        }
    }

    /// An I/O error while doing `what`. An error of ours that travelled through a `Read` comes out unchanged.
    pub(crate) fn io(what: impl Into<Cow<'static, str>>, source: io::Error) -> Error {
        match source.downcast::<Error>() {
            Ok(ours) => ours,
            Err(source) => wattlock_door::Error::io(what, source).into(),
        }
    }

    /// An I/O error while writing: a full disk and a closed pipe are not "other".
    pub fn writing(source: io::Error) -> Error {
        match source.downcast::<Error>() {
            Ok(ours) => ours,
            Err(source) => wattlock_door::Error::writing(source).into(),
        }
    }
}

impl Exit for Error {
    fn code(&self) -> u8 {
        self.exit_code()
    }

    fn is_silent(&self) -> bool {
        matches!(self, Error::Door(error) if error.is_silent())
    }

    fn is_usage(&self) -> bool {
        matches!(self, Error::Door(error) if error.is_usage())
    }
}

impl From<wattlock_core::Error> for Error {
    fn from(error: wattlock_core::Error) -> Error {
        Error::Door(error.into())
    }
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
    fn every_listed_code_is_listed_once() {
        let mut codes: Vec<u8> = exit_codes().iter().map(|(code, _)| *code).collect();
        let listed = codes.len();
        codes.dedup();
        assert_eq!(codes.len(), listed);
        assert!(exit_codes().iter().any(|(code, _)| *code == Error::Truncated.exit_code()));
        assert!(
            !exit_codes()
                .iter()
                .any(|own| wattlock_door::exit_codes().iter().any(|(code, _)| *code == own.0))
        );
    }

    #[test]
    fn our_error_survives_a_trip_through_io() {
        let through: io::Error = Error::BadArmor("line too long").into();
        assert!(matches!(Error::io("reading", through), Error::BadArmor("line too long")));
    }
}
