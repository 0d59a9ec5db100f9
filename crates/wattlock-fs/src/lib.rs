//! An encrypted volume: a folder whose files, names, links and extended attributes are encrypted and authenticated.
//!
//! [`volume`] is the volume's key and settings. [`names`] seals names. [`tree`] is the folder tree of a real backing
//! folder. [`content`] is what files contain: chunks, a journal that makes their replacement safe against crashes,
//! and recovery; it works over a [`store::Store`], which a test can make lose power at any moment.
//!
//! This crate knows no FUSE, starts no thread and names no engine: it describes requests and hands them to a
//! [`wattlock_door::Crypto`]. The format is described in `docs/formats/volume.md`.
#![forbid(unsafe_code)]

mod beneath;
pub mod check;
pub mod content;
pub mod dev;
mod error;
pub mod format;
mod grant;
mod journal;
pub mod names;
mod record;
pub mod rotate;
pub mod store;
pub mod tree;
pub mod volume;
pub mod xaes;

pub use error::{Error, exit_codes};

/// Fills `to` from the kernel's generator.
pub(crate) fn random(to: &mut [u8]) -> Result<(), Error> {
    let mut filled = 0;
    while filled < to.len() {
        match rustix::rand::getrandom(&mut to[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(len) => filled += len,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::io("reading random bytes", error)),
        }
    }
    Ok(())
}
