//! All tests of this crate through what it exports, in one program: linking takes longer than they do.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;
#[path = "../fake/mod.rs"]
mod fake;
mod nvml;
mod trees;
