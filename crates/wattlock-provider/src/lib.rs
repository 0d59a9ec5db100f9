//! The OpenSSL 3 door: a provider (`provider=wattlock`) that libcrypto of OpenSSL 3.0 and later loads, so that programs
//! which know nothing of Wattlock use it.
//!
//! This crate is C entries, parameters and asynchronous pauses, and nothing else. It refuses to do cryptography (the
//! runtime's engines do; what they do not, OpenSSL's own providers do through public EVP calls in a child library
//! context), to name an engine, to know OpenSSL's private structures, and to set a global property.
//!
//! How it is put together:
//!
//! - [`load`]: what OpenSSL calls first, and everything that can be offered.
//! - [`provider`]: one loaded instance: settings, runtime, child context; what it offers of that.
//! - [`seat`]: a thread's way into the runtime, and operations inside an `ASYNC_JOB`.
//! - [`child`]: public EVP calls with `provider!=wattlock`, for everything that is not accelerated.
//! - [`entries`]: the C entries of keys and of operations with them, once for [`rsa`], [`ec`], [`x25519`] and
//!   [`mlkem`]; [`cipher`], `skey` and [`kdf`] have their own.
//! - [`arg`]: what C hands to an entry, as types.
//! - [`table`]: what applications call that poll by themselves.
//! - [`params`], [`error`], [`sys`]: OpenSSL's parameter lists, error queue and declarations.
//!
//! Rules: no entry lets a panic out; no entry keeps a pointer of its caller's beyond the call, except those OpenSSL
//! promises to keep; loading starts no thread, calibrates nothing and tests nothing; nothing but private-key,
//! key-agreement and key-generation operations may pause.
//!
//! Unsafe code is unavoidable in a C door; each file that has any says what it relies on.
#![warn(clippy::undocumented_unsafe_blocks)]
#![allow(
    clippy::missing_safety_doc,
    reason = "entries are called by OpenSSL by its provider contract, nobody else"
)]

mod abi;
mod advantage;
pub mod arg;
pub mod child;
pub mod cipher;
mod compress;
pub mod ec;
mod energy;
pub mod entries;
pub mod error;
pub mod kdf;
pub mod kept;
pub mod load;
pub mod mlkem;
pub mod offer;
pub mod params;
pub mod provider;
pub mod rsa;
pub mod seat;
pub mod settings;
mod skey;
mod spread;
mod status;
pub mod sys;
pub mod table;
pub mod x25519;
