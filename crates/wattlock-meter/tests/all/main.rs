//! All tests of this crate through what it exports, in one program: linking takes longer than they do.

mod common;
#[path = "../fake/mod.rs"]
mod fake;
mod nvml;
mod trees;
