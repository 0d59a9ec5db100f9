//! All tests of this crate through what it exports, in one program: linking takes longer than they do.

mod common;
mod damage;
mod pipe;
mod records;
