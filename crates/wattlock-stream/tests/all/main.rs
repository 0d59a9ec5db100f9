//! All tests of this crate through what it exports, in one program: linking takes longer than they do.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../../wattlock-files/tests/all/common/card.rs"]
mod card;
mod common;
mod damage;
mod faults;
mod pipe;
mod records;
