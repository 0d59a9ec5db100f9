//! Streams that are sealed while they flow: frames in a pipe or a socket, and single records under keys of their batch.
//!
//! [`mod@format`] is pure: bytes in, bytes out. [`framing`] and [`framer`] decide where a frame ends, with the time as
//! an argument. [`pace`] decides how long a frame may stay open. [`pipe`] moves bytes between two descriptors in
//! constant memory, on one thread while the stream is slow and on several when it is not. [`record`] seals records one
//! by one, [`names`] makes their keys unreadable and keeps equal ones equal; [`keys`] wraps and keeps stream keys.
//!
//! This crate refuses to name an engine, to do cryptography of its own (it describes requests and hands them to a
//! [`wattlock_door::Crypto`]), and to release a byte whose tag was not verified. Keys are wrapped for age recipients by
//! `wattlock-files`.
//!
//! The formats are described in `docs/formats/stream.md`, in enough detail for another reader; `tests/read_stream.py` is
//! one.
#![deny(unsafe_code)]

mod content;
mod error;
pub mod format;
pub mod framer;
pub mod framing;
pub mod keys;
pub mod names;
pub mod pace;
pub mod pipe;
pub mod record;
#[allow(unsafe_code)]
mod sys;
pub mod trust;

pub use content::Header;
pub use error::{BROKER_LOGIN, BROKER_TLS, Error, exit_codes};
pub use framing::Framing;
