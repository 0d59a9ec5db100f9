//! All tests of this crate through what it exports, in one program: linking takes longer than they do.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;
mod corruption;
mod engines;
mod faults;
mod gzip;
mod interop;
mod round_trip;
mod rules;
mod world;
