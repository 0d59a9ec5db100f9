//! All tests of this crate through what it exports, in one program: linking takes longer than they do.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod attacker;
mod attacks;
mod card;
mod common;
mod contents;
mod crash;
mod damage;
mod disk;
mod folder;
mod full;
mod nonces;
mod plans;
mod reader;
mod reading;
mod support;
mod synchronised;
mod tree;
mod trouble;
mod volume;
