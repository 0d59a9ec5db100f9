//! What running programs did between two looks at their counters: rates, batches, fallbacks, joules and the processor
//! time that was saved.
//!
//! A [`Look`] is what was found at one moment; [`since`] is the difference of two, by program or by process; [`Rates`]
//! are what a person or another program is shown of it. This crate reads no file, knows no terminal and serves no page;
//! the time is an argument. Counters and headers may be anybody's: a rate is never negative, and a figure that is not
//! known is absent.
#![forbid(unsafe_code)]

mod cost;
mod look;
mod rates;
mod since;
pub mod verdict;

pub use cost::Costs;
pub use look::{Look, worth};
pub use rates::{Figures, Power, Rates, Work};
pub use since::{All, By, Done, Program, since};
