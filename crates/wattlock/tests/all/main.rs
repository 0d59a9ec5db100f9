//! Everything that needs no process of its own.

mod adaptive_emulated;
#[path = "../common/mod.rs"]
mod common;
mod emulated;
mod energy;
mod lanes;
mod pool;
mod profile_text;
mod queued;
mod split;
mod streams;
