//! All tests of this crate through what it exports, in one program: linking takes longer than they do.

mod conformance;
mod faults;
mod queue;
mod suite_can_fail;
