//! Virtual time: the policies that run in production, run here against models of machines, and what comes out stands
//! beside what was published.
//!
//! It refuses to be a measurement: everything it prints is simulated and says so. It refuses to pass an input
//! off as a prediction: each row has a [`Role`], a summary counts predicted rows only, and a naive predictor stands
//! beside each of them. A model's free parameters are named ([`Parameter`]) and few; one that nothing published
//! determines says so and how much the prediction moves with it. It refuses chance: same seed, same output.
//!
//! `sim` holds virtual time and the machines' parts and knows no paper; `papers` holds one module for each published
//! system and knows nothing of the others; `production` is the runtime on a simulator's clock, for tests of doors.
#![forbid(unsafe_code)]

#[macro_use]
mod options;

pub mod ablate;
mod error;
pub mod machines;
pub mod papers;
#[cfg(feature = "production")]
pub mod production;
mod row;
pub mod sim;
mod summary;
mod table;

pub use error::Error;
pub use row::{Better, Origin, Parameter, Role, Row, Study};
pub use summary::{Miss, Summary, distance, percent, summary};
pub use table::{Table, figure, interval, table};
