//! The program as a user runs it, in one test program: linking takes longer than most of them. Mounted folders have their own.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bench_point;
mod built;
mod cli;
mod completions;
mod corpus;
mod counting;
mod defaults;
#[allow(dead_code, reason = "tests of mounts use the rest of it")]
#[path = "../mount/desk.rs"]
mod desk;
mod doctor;
mod energy;
mod exporter;
#[path = "../../../wattlock-meter/tests/fake/mod.rs"]
mod fake;
mod folder_commands;
mod fs;
mod gpu;
mod gzip;
mod hybrid;
mod install;
mod json;
mod known_volumes;
mod mount_commands;
mod nginx;
mod one_program;
mod openssl;
mod progress;
mod report;
mod scripts;
mod serve;
mod site;
#[path = "../../../wattlock-cuda/tests/standin/mod.rs"]
mod standin;
mod stream;
mod sum;
mod synchroniser;
mod top;
mod typed;
mod unread;
