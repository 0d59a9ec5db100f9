//! The C library for programs that have their data on a GPU (`include/wattlock/gpu.h`): many messages by device pointer on
//! the caller's stream, and sealed files opened straight into device memory.
//!
//! - `gpu`: a device that has given known answers, runs on it, and what happens if it declines. `load`: a file's way into
//!   device memory. `dlpack`: tensors over that memory. `failure`: what goes wrong, as a code and a line.
//! - `abi`: the C entries. Each checks its pointers, catches panics, and calls one function of the others.
//!
//! It refuses to show unverified plaintext, to guess at an argument that makes no sense, and to print anything.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
pub mod abi;
#[allow(unsafe_code)]
mod dlpack;
mod failure;
mod gpu;
mod load;

pub use failure::Failure;
pub use gpu::Gpu;
pub use load::load;
