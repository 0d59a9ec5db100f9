//! NVIDIA GPUs behind the [`Engine`](wattlock_core::Engine) trait, through the driver's own C interface
//! (`libcuda.so.1`), which is loaded at run time. Nothing of CUDA is needed to build this crate, or to run a program
//! that has it on a machine without a GPU: there [`Cuda::find`] says why not.
//!
//! The kernels are images (`wattlock.sm_90.cubin` and so on) that `gpu/` builds; the engine finds them in a folder.
//!
//! - `sys`: the driver's functions, the only unsafe code. `device`: what is there, and whether it will do.
//!   `confidential`: whether copies block.
//! - `kernels`: those of the device's images. `plan`: which kernels a kind needs, and how messages lie in device memory. Pure.
//! - [`direct`]: for programs that have their data on the GPU; without owner, slots and copies.
//! - `owner`: the one thread of a process that has the context. `engine`: the engine and its instances.
//!
//! It refuses to be opened in a forked child, to wait in a caller's thread, and to decide which engine does what.
//!
//! The tests run on a stand-in driver (`tests/standin`); on hardware it ran on capability 9.0 (docs/research/gpu.md).
#![deny(unsafe_code)]

mod confidential;
mod device;
pub mod direct;
mod engine;
mod kernels;
mod owner;
mod plan;
mod sys;

pub use device::Missing;
pub use engine::{Cuda, Places, STREAMS, STREAMS_MOST};
pub use sys::Stream;
