//! What every door shares, whatever its format: the way to engines and threads ([`Crypto`], [`CryptoSource`]), random
//! bytes, outputs that appear whole or not at all ([`Output`], [`Document`], [`Batch`]), folders that stay the ones that
//! were opened, waiting that obeys a cancel flag, and errors with one line of text and an exit code ([`Error`], [`Exit`]).
//!
//! This crate refuses to know a format or a key.
#![forbid(unsafe_code)]

mod atomic;
mod attributes;
mod crypto;
mod error;
mod exit;
mod folder;
mod output;
mod wait;

pub use atomic::{AtomicFile, Batch};
pub use attributes::Attributes;
pub use crypto::{Crypto, CryptoSource, Within, random, short};
pub use error::{Error, one_line};
pub use exit::{Code, Exit, Known, Refusal, exit_codes, exit_of, known};
pub use folder::{Folder, Seen};
pub use output::{Document, Output, Target};
pub use wait::{PIPE_BYTES, wait};
