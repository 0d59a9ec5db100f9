//! `wattlock`: files, folders, streams, gzip, sums, OpenSSL, nginx, engines and joules. Benches and the lab are programs
//! beside it (`workshop`).
//!
//! The command line parses, asks, shows and reports; it does no cryptography and chooses no engine.
#![forbid(unsafe_code)]

#[macro_use]
extern crate wattlock_shell;

mod ask;
mod calibrate;
mod changes;
mod clocks;
mod cpu;
mod defaults;
mod doctor;
mod energy;
mod engines;
mod exporter;
mod files;
mod fs;
mod gzip;
mod haproxy;
mod keygen;
mod keys;
mod lines;
mod manual;
mod mount;
mod nginx;
mod openssl;
mod progress;
mod serve;
mod service;
mod status;
mod stream;
mod sum;
mod top;
mod trusted;
mod within;
mod workshop;
mod wrong;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use wattlock_door::{Code, Known, Refusal, known};
use wattlock_shell::nginx::site;
use wattlock_shell::program::{self, NotInstalled, Program};
use wattlock_shell::{setup, text};

/// Do bulk cryptography on whichever engine takes the least time or the fewest joules
#[derive(Debug, Parser)]
#[command(name = "wattlock", version, max_term_width = 100, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    choice: setup::Choice,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(alias = "encrypt")]
    Seal(files::Seal),
    #[command(alias = "decrypt")]
    Open(files::Open),
    Keygen(keygen::Command),
    Fs(fs::Command),
    Mount(mount::Command),
    Umount(mount::Umount),
    Stream(stream::Command),
    Gzip(gzip::Command),
    Sum(sum::Command),
    Serve(site::Command),
    Nginx(nginx::Command),
    Haproxy(haproxy::Command),
    Openssl(openssl::Command),
    Status(status::Command),
    Top(top::Command),
    Exporter(exporter::Command),
    Doctor(doctor::Command),
    Engines(engines::Command),
    Calibrate(calibrate::Command),
    Energy(energy::Command),
    Clocks(clocks::Command),
    /// Measure ciphers, dispatch, files, compression, start-up, public keys and HTTPS, with peers beside them
    Bench(workshop::Command),
    /// Reproduce published systems on modelled machines in virtual time: published, simulated and improved side by side
    Lab(workshop::Command),
    /// Draw one page with pictures from the JSON of other commands: benches, comparisons, joules, a calibration
    Report(workshop::Command),
    Completions(manual::Completions),
    #[command(name = "man")]
    Pages(manual::Pages),
    /// List what each exit code means
    ExitCodes,
}

/// The program, from its words to its exit code.
pub fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    match program::elsewhere(&words) {
        Some(other) => program::fail(&program::become_another(other), Arguments::ENDS),
        None => program::main::<Arguments>(),
    }
}

impl Program for Arguments {
    const HELP: &'static str = include_str!("help.txt");

    const COMMIT: &'static str = env!("WATTLOCK_COMMIT");

    fn words() -> Vec<OsString> {
        mount::as_asked(std::env::args_os().collect())
    }

    fn refusal(_: &clap::Error) -> Option<ExitCode> {
        ages_option()
    }

    /// `energy` hands signals on to the command it measures, and `top` puts the terminal back.
    fn hands_signals_on(&self) -> bool {
        match &self.command {
            Command::Energy(_) => true,
            Command::Top(command) => command.heeds_signals(),
            _ => false,
        }
    }

    fn cleans_up(&self) -> bool {
        match &self.command {
            Command::Seal(_)
            | Command::Open(_)
            | Command::Gzip(_)
            | Command::Serve(_)
            | Command::Nginx(_)
            | Command::Haproxy(_)
            | Command::Doctor(_) => true,
            Command::Mount(_) => true,
            Command::Calibrate(command) => command.storage,
            Command::Stream(command) => command.cleans_up(),
            Command::Fs(command) => command.cleans_up(),
            _ => false,
        }
    }

    fn failed(&self, line: &str, code: u8) {
        let json = match &self.command {
            Command::Seal(command) => command.json(),
            Command::Open(command) => command.json(),
            Command::Gzip(command) => command.json,
            Command::Sum(command) => command.json,
            Command::Fs(command) => command.json,
            _ => false,
        };
        if json {
            // If it is lost, the line on standard error and the exit code say the same.
            let _ = lines::Line::default().failed(line, code).put();
        }
    }

    fn on_interrupt() {
        stream::ring();
    }

    fn run(&self) -> anyhow::Result<()> {
        run(self)
    }

    const ENDS: &[Known] = &[
        known::<Code>,
        known::<Refusal>,
        known::<NotInstalled>,
        known::<wattlock_door::Error>,
        known::<wattlock_files::Error>,
        known::<wattlock_fs::Error>,
        known::<fs::known::Refused>,
        known::<wattlock_stream::Error>,
    ];
}

/// Users of age type its options first.
fn ages_option() -> Option<ExitCode> {
    let first = std::env::args_os().nth(1)?;
    let (own, age) = match first.to_str()? {
        option @ ("-d" | "--decrypt") => ("open -i key.txt FILE", option),
        option @ ("-e" | "--encrypt" | "-r" | "-R" | "-p" | "--recipient" | "--passphrase") => {
            ("seal -r age1... FILE", option)
        }
        _ => return None,
    };
    eprintln!("wattlock: age's {age} is `wattlock {own}`");
    Some(ExitCode::from(2))
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let choice = &arguments.choice;
    match &arguments.command {
        Command::Seal(command) => files::seal(command, choice),
        Command::Open(command) => files::open(command, choice),
        Command::Gzip(command) => gzip::run(command, choice),
        Command::Sum(command) => sum::run(command, choice),
        Command::Keygen(command) => keygen::run(command),
        Command::Calibrate(command) => calibrate::run(command, choice),
        Command::Energy(command) => energy::run(command),
        Command::Bench(_) => Err(program::become_another(program::BENCH)),
        Command::Lab(_) | Command::Report(_) => Err(program::become_another(program::LAB)),
        Command::Fs(command) => fs::run(command, choice),
        Command::Mount(command) => mount::run(command, choice),
        Command::Umount(command) => mount::umount(command),
        Command::Serve(command) => serve::run(command, choice),
        Command::Nginx(command) => nginx::run(command, choice),
        Command::Haproxy(command) => haproxy::run(command),
        Command::Engines(command) => engines::run(command, choice),
        Command::Clocks(command) => clocks::run(command),
        Command::Doctor(command) => doctor::run(command, choice),
        Command::Status(command) => status::run(command),
        Command::Top(command) => top::run(command),
        Command::Exporter(command) => exporter::run(command),
        Command::Stream(command) => stream::run(command, choice),
        Command::Openssl(command) => openssl::run(command, choice),
        Command::Completions(command) => manual::completions(command),
        Command::Pages(command) => manual::pages(command),
        Command::ExitCodes => {
            put!("{}", exit_codes());
            Ok(())
        }
    }
}

fn exit_codes() -> String {
    let own = [(0_u8, "done"), (1, "any other failure")];
    let commands = energy::exit_codes().iter().chain([&program::NONSENSE]).chain(openssl::exit_codes());
    let commands =
        commands.chain(wattlock_fs::exit_codes()).chain([&fs::REPAIRED]).chain(mount::exit_codes());
    let commands = commands.chain(fs::known::exit_codes());
    let streams = wattlock_stream::exit_codes();
    let mut all: Vec<_> = own
        .iter()
        .chain(wattlock_door::exit_codes())
        .chain(wattlock_files::exit_codes())
        .chain(streams)
        .chain(commands)
        .collect();
    all.sort_by_key(|(code, _)| *code);
    all.iter().map(|(code, meaning)| format!("{code:>3}  {meaning}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_well_formed_and_every_command_has_an_example() {
        program::check::<Arguments>();
    }
}
