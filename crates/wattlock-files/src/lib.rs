//! Sealed files: the format, the pipeline that moves bytes through it, and the file that appears only when it is whole.
//!
//! Three parts know little of each other. [`mod@format`] is pure: bytes in, bytes or geometry out, no descriptors.
//! `pipeline` reads, seals or opens, and writes in constant memory, on as many threads as there are cores.
//! [`wattlock_door::Output`] makes a file atomically. [`Sealer`] and [`Opener`] put them together.
//!
//! This crate refuses to name an engine, to do cryptography of its own (it describes [`wattlock_core::Request`]s and
//! hands them to a [`wattlock_door::CryptoSource`]), and to write a byte of plaintext whose tag has not been verified.
//! The one exception is wrapping a file's key for its recipients: the `age` crate does it, so that age's keys and
//! recipients work here.
//!
//! [`Gzip`] and [`gunzip`] use the same pipeline for gzip files; a [`Sealer`] can seal what it compresses.
//!
//! [`sum`] hashes many files side by side.
//!
//! The format: `docs/formats/file.md`, in enough detail for another reader; `tests/read_sealed.py` is one.
#![forbid(unsafe_code)]

mod error;
pub mod format;
mod gzip;
mod input;
pub mod keys;
mod memory;
mod open;
mod pipeline;
mod reader;
mod seal;
mod sum;

pub use age;
pub use error::{Error, exit_codes};
pub use gzip::{Gzip, Stored, Tally, gunzip, gunzip_as, stored};
pub use input::Input;
pub use open::{Opened, Opener};
pub use pipeline::Progress;
pub use reader::Reader;
pub use seal::Sealer;
pub use sum::{Digest, Walk, sum};

/// Whether bytes are the beginning of a sealed or an age file: what opens something else can then say so.
pub fn is_sealed_file(start: &[u8]) -> bool {
    use format::{Guess, age};
    if start.len() > 8 && age::MAGIC.starts_with(start) {
        return true;
    }
    matches!(format::guess(start), Guess::Sealed | Guess::Age | Guess::Armored)
}

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Wattlock's own: a small age file with the key, then Cobblestone-256 chunks.
    #[default]
    Sealed,
    /// A plain age v1 file, which any age implementation opens.
    Age,
}
