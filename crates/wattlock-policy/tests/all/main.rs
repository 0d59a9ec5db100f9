//! All tests of this crate through what it exports, in one program: linking takes longer than they do.

mod adaptive;
mod every_policy;
