//! The engines that are always there: [`software`] (portable, no special instructions, constant time) and
//! [`instruction`] (one request at a time at the speed of the CPU's instructions).
//!
//! This crate refuses to queue, to hold, to choose between its engines, or to know who asked. Unsafe code lives in
//! `instruction/sys` (foreign functions), in `instruction/aes` and `instruction/chacha` (kernels) and in the `Span` they
//! all take, nowhere else.
#![deny(unsafe_code)]

pub mod detect;
pub mod instruction;
pub mod software;
