//! Randomness, from the operating system and from nowhere else: there is no state to protect or to fork.

use wattlock_core::{Error, Fault};

/// Fills `out`.
///
/// # Errors
/// [`Error::Device`] if the system gives none.
pub fn fill(out: &mut [u8]) -> Result<(), Error> {
    getrandom::fill(out).map_err(|_| Error::Device(Fault::Reported))
}
