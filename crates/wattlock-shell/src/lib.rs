//! What the command line and its benches share: text for people, the choice of engines and policy, where Wattlock's and
//! nginx's files are, an nginx of our own, and joules of a piece of work.
//!
//! This crate refuses to be a command: it knows how the three programs begin and end ([`program`]), and not what they do.
#![deny(unsafe_code)]

use std::sync::atomic::AtomicBool;

#[macro_use]
pub mod text;

pub mod calibration;
pub mod date;
pub mod definition;
pub mod environment;

#[allow(unsafe_code)]
pub mod handed;
pub mod heeded;
mod help;
pub mod joules;
pub mod nginx;
pub mod parts;
pub mod process;
pub mod program;
pub mod setup;
pub mod svg;
pub mod trust;

/// Raised by an interrupt; work in progress then stops and leaves nothing behind.
pub static INTERRUPTED: AtomicBool = AtomicBool::new(false);
