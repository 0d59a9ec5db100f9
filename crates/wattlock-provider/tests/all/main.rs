//! Programs that load the provider as users do, in one test program. What loads it into the test itself is `differential`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cbc;
mod children;
mod combined;
mod common;
mod confined;
mod ec;
mod foreign;
mod haproxy;
mod held;
mod host;
mod kdf;
mod mlkem;
mod plain;
mod rsa;
mod skey;
mod tls;
mod verify;
