//! The door: a volume as a file system, through FUSE.
#![forbid(unsafe_code)]
