//! Who does a request, and how long it may be held for company: pure functions from a request's shape, the weather
//! and the time to a [`Choice`].
//!
//! This crate holds the published rules under their names and `adaptive`, ours. It refuses to read a clock, an
//! atomic or a file, to name an engine (it sees [`EngineClass`]es and ids), and to do anything about its choices.
#![forbid(unsafe_code)]

mod machine;
mod weather;

pub use machine::{Costs, EngineId, EngineView, MAX_ENGINES, Machine, Objective};
pub use wattlock_core::EngineClass;
pub use weather::{Choice, ClockStep, EngineWeather, Migration, Outcome, Policy, Weather};
