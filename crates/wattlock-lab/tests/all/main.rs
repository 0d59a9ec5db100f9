//! All tests of this crate through what it exports, in one program: linking takes longer than they do.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod aca_sds;
mod adaptive;
mod closed_forms;
mod eeca;
mod eep;
mod every_policy;
mod gpu;
mod lecpaes;
mod page;
#[cfg(feature = "program")]
mod program;
mod qweb;
#[cfg(feature = "program")]
mod reproduce;
mod rule;
mod runtime;
mod split;
mod sweep;
mod velocity;
