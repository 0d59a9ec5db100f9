//! The engines that are always there: [`software`] (portable, no special instructions, constant time), [`instruction`]
//! (one request at a time at the speed of the CPU's instructions) and `lanes` (many requests side by side in SIMD).
//!
//! This crate refuses to choose between its engines or to know the caller. Unsafe code lives in `instruction/sys`
//! (foreign functions), in `instruction/aes` and `instruction/chacha` (kernels) and in the `Span` they all take, in
//! `lanes/vector` (intrinsics) and the entries of the kernels beside it, nowhere else.
#![deny(unsafe_code)]

mod counter;
pub mod detect;
pub mod instruction;
pub mod kem;
#[cfg(target_arch = "x86_64")]
pub mod lanes;
#[cfg(target_arch = "x86_64")]
mod order;
mod poly1305;
mod siv;
pub mod software;
mod zstd;
