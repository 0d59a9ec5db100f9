//! `wattlock bench`: the project's own claims, measured on the machine at hand, peers in the same run.
//!
//! A program of its own, so that `rustls`, zlib and a TLS client that trusts everybody are never beside a user's keys:
//! `wattlock bench` and `wattlock serve --compare` become it. `wattlock-bench lanes` is `wattlock bench lanes`.

#![forbid(unsafe_code)]

#[macro_use]
extern crate wattlock_shell;

mod batch;
mod compress;
mod dispatch;
mod engines;
mod files;
mod fs;
mod gpu;
mod https;
#[cfg(target_arch = "x86_64")]
mod lanes;
#[cfg(not(target_arch = "x86_64"))]
#[path = "lanes_absent.rs"]
mod lanes;
mod libcrypto;
mod own;
mod pair;
mod point;
mod record;
mod serve;
mod start;
mod stream;
mod tally;
mod tended;
#[cfg(target_arch = "x86_64")]
mod through;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use wattlock_shell::nginx::site;
use wattlock_shell::program::{self, Program};
use wattlock_shell::setup::{self, Choice, Emulation};

use self::record::Record;

/// What its command lines begin with.
const COMMANDS: [&str; 2] = ["bench", "serve"];

/// Measure Wattlock on this machine, with peers beside it
#[derive(Debug, Parser)]
#[command(name = "wattlock", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    program: Which,
    #[command(flatten)]
    choice: Choice,
}

#[derive(Debug, Subcommand)]
enum Which {
    Bench(Command),
    Serve(site::Command),
}

impl Program for Arguments {
    const HELP: &'static str = include_str!("help.txt");

    const COMMIT: &'static str = env!("WATTLOCK_COMMIT");

    fn words() -> Vec<OsString> {
        program::handed_on(std::env::args_os().collect(), &COMMANDS)
    }

    fn cleans_up(&self) -> bool {
        match &self.program {
            Which::Bench(command) => command.cleans_up(),
            Which::Serve(_) => true,
        }
    }

    fn insists_on_cleaning_up(&self) -> bool {
        // `timeout` and the lab each tell it to end: a whole process group, and then its one process.
        matches!(&self.program, Which::Bench(Command { what: Some(What::Point(_)), .. }))
    }

    fn run(&self) -> Result<()> {
        match &self.program {
            Which::Bench(command) => run(command, &self.choice),
            Which::Serve(command) => serve::run(command, &self.choice),
        }
    }
}

fn main() -> ExitCode {
    setup::emulates(Emulation { card: wattlock_emul::card, models: wattlock_emul::models });
    program::main::<Arguments>()
}

/// Measure ciphers, dispatch, files, compression, start-up, public keys and HTTPS, with peers beside them
#[derive(Debug, Args)]
struct Command {
    #[command(subcommand)]
    what: Option<What>,
    /// Also write the figures, with commit, command and machine, to a file as JSON; `-` for standard output instead of
    /// the table
    #[arg(long, global = true, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Throughput of every engine, OpenSSL beside them (the default)
    Engines(engines::Settings),
    /// What the runtime adds to a call of an engine, and `aws-lc-rs` beside it
    Dispatch(dispatch::Settings),
    /// Sealing and opening files, with `cp` and `age` beside them
    Files(files::Settings),
    /// Compression, with zlib at the same level, pigz and the stock nginx beside it
    Compress(compress::Settings),
    /// A mounted volume, with gocryptfs and the same layer without cryptography beside it
    Fs(fs::Settings),
    /// A GPU: copies, kernels in its memory, files into its memory, and files by CPU, GPU and both
    Gpu(gpu::Settings),
    /// First use without a profile, later uses, and loading the runtime and the provider
    Start,
    /// Full batches of public-key operations in lanes, with OpenSSL beside them
    Lanes(lanes::Settings),
    /// Streams through a sliding window: the published experiment with real threads and a real cipher
    Stream(stream::Settings),
    /// HTTPS by the installed nginx, with Wattlock and without
    Https(https::Settings),
    /// One point of an experiment through a real door, by any method: one line of JSON
    Point(point::Settings),
}

/// Runs the command.
fn run(command: &Command, choice: &Choice) -> Result<()> {
    let record = Record::begin(command.json.as_deref())?;
    match &command.what {
        None => engines::run(&engines::Settings::default(), choice, record),
        Some(What::Engines(settings)) => engines::run(settings, choice, record),
        Some(What::Dispatch(settings)) => dispatch::run(settings, choice, record),
        Some(What::Files(settings)) => files::run(settings, record),
        Some(What::Compress(settings)) => compress::run(settings, choice, record),
        Some(What::Fs(settings)) => fs::run(settings, record),
        Some(What::Gpu(settings)) => gpu::run(settings, record),
        Some(What::Start) => start::run(choice, record),
        Some(What::Lanes(settings)) => lanes::run(settings, record),
        Some(What::Stream(settings)) => stream::run(settings, record),
        Some(What::Https(settings)) => https::run(settings, choice, record),
        Some(What::Point(_)) if command.json.is_some() => Err(wattlock_door::Error::Usage(
            "--json does nothing for `wattlock bench point`: leave it out".to_owned(),
        )
        .into()),
        Some(What::Point(settings)) => point::run(settings, choice),
    }
}

impl Command {
    /// Whether it has something to clean up when it is interrupted.
    fn cleans_up(&self) -> bool {
        let what = self.what.as_ref();
        what.is_some_and(|what| {
            matches!(
                what,
                What::Https(_)
                    | What::Compress(_)
                    | What::Fs(_)
                    | What::Gpu(_)
                    | What::Stream(_)
                    | What::Point(_)
            )
        })
    }
}

/// The machine, for beside every number.
fn machine_line() -> String {
    let key = wattlock::profile::MachineKey::here(&[]);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{}, microcode {}, {cores} cores, Linux {}", key.cpu, key.microcode, kernel.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_well_formed_and_every_command_has_an_example() {
        program::check::<Arguments>();
    }
}
