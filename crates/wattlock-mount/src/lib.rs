//! The door: a volume as a file system, through FUSE.
//!
//! [`Door`] answers the kernel's requests. It keeps inodes by number and asks a [`Backing`] for everything that has to
//! do with names and contents; [`Sealed`] is the encrypted one. [`mount`] puts a door at a mount point and keeps it
//! there; [`control`] is how a running mount is asked and told.
//!
//! This crate does no cryptography and knows no format. Backing files are reached from descriptors of their folders,
//! never through links.
#![forbid(unsafe_code)]

mod attr;
pub mod attributes;
mod backing;
mod caller;
pub mod control;
mod counters;
mod door;
mod folders;
mod handles;
mod mount;
mod node;
mod requests;
mod sealed;
pub mod storage;
mod table;
mod unsynced;

pub use backing::{Backing, Next, OTHER_VOLUME, Result, Rotation, Which};
pub use counters::{Counters, Counts, Op};
pub use door::{Behaviour, Descriptors, Door};
pub use mount::{Error, Options, check, is_busy, is_option, mount, unmount, unmount_patiently};
pub use sealed::{Engines, Note, Sealed, SealedContent};
