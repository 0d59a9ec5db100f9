//! The **Meter**: joules, and how far each can be trusted.
//!
//! A [`Meter`] finds a machine's counters (powercap, perf, NVML, hwmon), reads them at the ends of a window and at
//! intervals in between, and answers with a [`Reading`]: one [`Figure`] for each counter, with its source, its
//! boundary, its window and its quality. For a machine without counters there is a [`Model`] of the CPU's power.
//!
//! It refuses:
//! - to add modelled joules to metered ones: they are different types, and [`Reading::total`] knows only the metered;
//! - to count the same joules twice: a package contains its cores, a node its packages, and perf reads the register
//!   that powercap reads; [`Reading::total`] takes figures that do not overlap;
//! - to report zero for a missing figure: a counter that did not move has a reason and no figure, a counter that
//!   stopped gives a lower bound with a reason;
//! - to start a thread, to read a clock (time is an argument), to block.
//!
//! Missing permission is a normal state: one line of [`Meter::notices`] and no error.
//!
//! Unsafe code lives in `sys` (one system call) and nowhere else.
#![deny(unsafe_code)]

mod account;
mod figure;
mod hwmon;
mod meter;
mod model;
#[cfg(feature = "nvml")]
mod nvml;
mod outside;
mod perf;
mod powercap;
mod reading;
mod sensor;
mod sys;
mod tree;

pub use figure::{Boundary, Figure, Metered, Modelled, Quality, Range, Record, Value, Window};
pub use meter::{EVERY_NS, FindBoards, Meter, Places};
pub use model::{Model, ModelError, Rung, Ticks};
#[cfg(feature = "nvml")]
pub use nvml::boards;
pub use outside::{Nonsense, Outside};
pub use perf::{Events, Kernel};
pub use reading::{Above, Reading, Total};
pub use sensor::{About, Gone, Measures, Sensor};
pub use tree::{Folder, Tree};

/// Nanoseconds on the caller's clock, which must not run backwards.
pub type Nanos = u64;
