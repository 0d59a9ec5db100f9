//! The runtime: everything between a door and the engines.
//!
//! A [`Runtime`] is one process's registry of engines, its policy and profile, and its telemetry; it is shared. A
//! [`Dispatcher`] is one thread's way in: it owns that thread's policy state, its instances and its in-flight table,
//! so that no call on it takes a lock. Work that can finish inside the call goes through [`Dispatcher::run`], or
//! several requests at a time through [`Dispatcher::run_all`], with no queue and no allocation. Work that owns its
//! buffers goes through [`Dispatcher::submit_together`]; what an engine that answers later has of it comes out of
//! [`Dispatcher::poll`]. [`Runtime::local`] keeps a dispatcher for the calling thread; a [`Pool`] is threads for a
//! door that must not wait, each with a dispatcher of its own.
//!
//! This crate refuses to know the caller (no door is named here), to do cryptography itself, and to decide by size or
//! watts (that is policy). Fallback is decided here, in one place (`Dispatcher::fall_back`), and nowhere else. Loading
//! it starts no thread, opens no instance and calibrates nothing; only a pool has threads. It looks for no counter of
//! joules: a program that wants joules hands a [`meter::Meter`] to calibration, or reads one itself.
//!
//! Unsafe code lives in `sys` (the telemetry mapping, what forks, user ids and signals need) and nowhere else.
#![deny(unsafe_code)]

pub mod calibrate;
mod clock;
mod device;
mod dispatcher;
mod hardware;
mod health;
mod inflight;
mod local;
mod own;
mod pool;
pub mod profile;
mod runtime;
mod split;
mod sys;
pub mod telemetry;
mod up;
mod weather;

pub use clock::Clock;
pub use dispatcher::{Dispatcher, Submitted};
pub use health::Reason;
pub use own::{missing_engines, own_engines};
pub use pool::{Bounds, Done, Full, Pool};
pub use profile::Profile;
pub use runtime::{BuildError, Builder, Operating, Runtime, check_share};
pub use split::{Claimed, DeviceSide, SplitJob};
pub use sys::fork::{WIPED_BYTES, Wiped, generation as forks};
pub use sys::process::{Process, elevated};
pub use up::{COMES_UP_WITHIN, bring_up};
pub use wattlock_core as core;
pub use wattlock_meter as meter;
pub use wattlock_policy as policy;
