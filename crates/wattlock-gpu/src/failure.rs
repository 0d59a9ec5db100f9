//! What went wrong: a code for a program, a line for people, and for files the exit code of `wattlock open`.

use wattlock_cuda::Missing;
use wattlock_cuda::direct::{Trouble, Why};

/// Why a call failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// There is no device to work with.
    Absent(Missing),
    /// An argument, named.
    Refused(String),
    /// This message is not authentic.
    Forged(u32),
    /// A file does not open.
    File(wattlock_files::Error),
    /// The device has not enough memory.
    Memory,
    /// The device failed.
    Lost(Trouble),
    /// A fault of this library.
    Bug,
}

impl Failure {
    /// `WATTLOCK_GPU_...`.
    pub fn code(&self) -> i32 {
        match self {
            Failure::Absent(_) => 1,
            Failure::Refused(_) => 2,
            Failure::Forged(_) => 3,
            Failure::File(_) => 4,
            Failure::Memory => 5,
            Failure::Lost(_) => 6,
            Failure::Bug => 7,
        }
    }

    /// Of a file: what `wattlock open` ends with.
    pub fn exit_code(&self) -> u8 {
        if let Failure::File(error) = self { error.exit_code() } else { 0 }
    }

    /// One line.
    pub fn text(&self) -> String {
        match self {
            Failure::Absent(missing) => missing.to_string(),
            Failure::Refused(why) => why.clone(),
            Failure::Forged(message) => format!("message {message} is not authentic"),
            Failure::File(error) => error.to_string(),
            Failure::Memory => Trouble::Memory.to_string(),
            Failure::Lost(trouble) => trouble.to_string(),
            Failure::Bug => "a fault in the library".to_owned(),
        }
    }

    /// A refused argument.
    pub(crate) fn field(name: &str, why: Why) -> Failure {
        Failure::Refused(format!("{name} {why}"))
    }
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Failure {
        match trouble {
            Trouble::Field(name, why) => Failure::field(name, why),
            Trouble::Forked => Failure::Refused(format!("gpu: {trouble}")),
            Trouble::Unsupported => Failure::Refused(format!("algorithm: {trouble}")),
            Trouble::Memory => Failure::Memory,
            trouble => Failure::Lost(trouble),
        }
    }
}

impl From<Missing> for Failure {
    fn from(missing: Missing) -> Failure {
        Failure::Absent(missing)
    }
}

impl From<wattlock_files::Error> for Failure {
    fn from(error: wattlock_files::Error) -> Failure {
        Failure::File(error)
    }
}
