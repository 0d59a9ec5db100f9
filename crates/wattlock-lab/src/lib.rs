//! Virtual time: the policies that run in production, run here against models of machines, and what comes out stands
//! beside what was published.
//!
//! It refuses to be a measurement: everything it prints is simulated and says so. It refuses to fit what it predicts: a
//! model's free parameters are named ([`Parameter`]), few, and fitted on published *baselines* (the columns of the
//! machine without the published system), never on the system's own column; where no baseline determines one, its
//! parameter says so and how much the prediction moves with it. It refuses chance: same seed, same output.
//!
//! `sim` holds virtual time and the machines' parts and knows no paper; `papers` holds one module for each published
//! system and knows nothing of the others.
#![forbid(unsafe_code)]

mod error;
pub mod papers;
mod row;
pub mod sim;
mod table;

pub use error::Error;
pub use row::{Better, Parameter, Row, Study};
pub use table::{Table, table};
