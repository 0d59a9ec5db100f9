//! Everything that needs no process of its own.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod adaptive_emulated;
#[path = "../common/mod.rs"]
mod common;
mod device;
mod emulated;
mod energy;
mod lanes;
mod pool;
mod profile_text;
mod queued;
mod split;
mod streams;
mod up;
