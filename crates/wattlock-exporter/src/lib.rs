//! Counters of all programs, running and ended, by HTTP on a local address: Prometheus' text, JSON, and a page.
//!
//! One thread does all of it. What it reads may be hostile (other users' files: `wattlock::telemetry::scan` bounds it), and
//! so may be whoever connects: connections, bytes of a request and times are bounded, and a full house costs the connection
//! that has waited longest.
//!
//! This crate refuses to change anything: it has no request that does. It knows no names of users, asks no other server,
//! and its page loads nothing that is not in the program.
//!
//! | file | contents |
//! |---|---|
//! | `ledger.rs` | counters that never fall, from files that come and go |
//! | `metrics.rs`, `report.rs` | the ledger for Prometheus; as JSON, with a verdict |
//! | `content.rs` | what is answered to which path, read anew when it is old |
//! | `host.rs`, `request.rs`, `connection.rs`, `server.rs` | HTTP by hyper: names, what is asked, one connection, all of them |
//! | `address.rs` | where it listens |
#![forbid(unsafe_code)]

mod address;
mod connection;
mod content;
mod host;
mod ledger;
mod metrics;
mod report;
mod request;
mod server;

pub use address::{Address, Listener, Refused};
pub use content::Content;
pub use host::Hosts;
pub use server::serve;
