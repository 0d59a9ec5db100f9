//! An accelerator or a GPU that does not exist: servers (of a GPU: copies, kernel and streams), latencies, a window, watts and declared faults, taken from published
//! measurements or a file, with results that are really computed.
//!
//! [`Device`] is the machine in virtual time: pure, its time is an argument. It serves the lab and tests.
//! [`Emulated`] puts the same machine behind the [`Engine`](wattlock_core::Engine) trait, with request and response
//! rings and, in real time, a thread of its own. It computes through an engine handed to it and knows none by name.
//!
//! It refuses to be hardware: its name, its description and everything printed from it say "emulated", and its joules
//! are modelled. It refuses to be fast: it is as fast as its model says, or slower if this CPU cannot keep up.
#![forbid(unsafe_code)]

mod card;
mod device;
mod engine;
mod fault;
pub mod gpu;
mod model;
mod named;
mod preset;
mod ring;

pub use device::{Device, Finished, Work};
pub use engine::{Emulated, Pace};
pub use fault::{Effect, Fault, Trigger};
pub use model::{Model, ModelError, Pool, Power, Table};
pub use named::{card, models};
pub use ring::{Receiver, Sender, ring};
