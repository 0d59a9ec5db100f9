//! nginx as a program: where it is, and one of our own.

pub mod conf;
pub mod page;
pub mod place;
pub mod server;
pub mod site;
