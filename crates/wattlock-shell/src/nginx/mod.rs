//! nginx as a program: where it is, and one of our own.

pub mod place;
pub mod server;
