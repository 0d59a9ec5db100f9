//! All tests of this crate through what it exports, in one program: linking takes longer than they do.

mod common;
mod corruption;
mod engines;
mod gzip;
mod interop;
mod round_trip;
mod world;
