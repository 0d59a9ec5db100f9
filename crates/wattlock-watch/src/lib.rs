//! What running programs did between two looks at their counters.
//!
//! This crate reads no file, knows no terminal and serves no page; the time is an argument.
#![forbid(unsafe_code)]

mod work;

pub use work::{Work, programs};
