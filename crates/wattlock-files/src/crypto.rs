//! How this crate reaches an engine, and nothing about any engine.
//!
//! Two small traits stand between this crate and the runtime: [`CryptoSource`] is shared by all threads and makes a
//! [`Crypto`] for each of them. Programs use [`wattlock::Runtime`]. Tests bring their own source, so that a
//! defect here and a defect in an engine cannot hide each other.

use wattlock_core::{Data, Error as CoreError, Item, Key, Kind, LatencyClass, Request};

use crate::error::Error;

/// One thread's access to the engines.
pub trait Crypto {
    /// Does one request inside the call, and returns the output's length.
    ///
    /// # Errors
    /// The engine's; see [`wattlock_core::Error`].
    fn run(&mut self, request: &mut Request<'_>) -> Result<usize, CoreError>;

    /// Does all of them, in whatever order and wherever, and returns when all are done, each with its result.
    fn run_all(&mut self, items: &mut [Item<'_>]);
}

/// Makes a [`Crypto`] for each thread.
pub trait CryptoSource: Sync {
    /// One thread's access.
    type Crypto: Crypto;

    /// Access for the calling thread.
    fn crypto(&self) -> Self::Crypto;
}

#[cfg(feature = "runtime")]
impl Crypto for wattlock::Dispatcher {
    fn run(&mut self, request: &mut Request<'_>) -> Result<usize, CoreError> {
        wattlock::Dispatcher::run(self, request)
    }

    fn run_all(&mut self, items: &mut [Item<'_>]) {
        wattlock::Dispatcher::run_all(self, items);
    }
}

#[cfg(feature = "runtime")]
impl CryptoSource for wattlock::Runtime {
    type Crypto = wattlock::Dispatcher;

    fn crypto(&self) -> wattlock::Dispatcher {
        self.dispatcher()
    }
}

/// Derives, digests or authenticates `input` into all of `to`; `aad` is HKDF's info.
///
/// # Errors
/// [`Error::Engine`], also for an output of another length than `to`.
pub fn short(
    crypto: &mut impl Crypto,
    kind: Kind,
    key: &Key,
    (nonce, aad): (&[u8], &[u8]),
    input: &[u8],
    to: &mut [u8],
) -> Result<(), Error> {
    let wanted = to.len();
    let data = Data::Apart { from: input, to };
    let mut request =
        Request { nonce, aad, class: LatencyClass::Interactive, ..Request::new(kind, key, data) };
    let len = crypto.run(&mut request)?;
    if len == wanted { Ok(()) } else { Err(Error::Engine(CoreError::Invalid("output length"))) }
}

/// Fills `to` from the kernel's generator.
///
/// # Errors
/// [`Error::Io`].
pub fn random(to: &mut [u8]) -> Result<(), Error> {
    let mut filled = 0;
    while filled < to.len() {
        match rustix::rand::getrandom(&mut to[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(len) => filled += len,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::io("reading random bytes", error.into())),
        }
    }
    Ok(())
}
