//! `wattlock-lab`: the published systems on modelled machines, what adaptive's rules are worth, and pages of what benches
//! and simulations wrote. `wattlock lab` and `wattlock report` become it; `wattlock-lab qweb` is `wattlock lab qweb`.
//!
//! It measures nothing itself (`reproduce` starts the bench that lies beside it) and has no user's keys.
#![forbid(unsafe_code)]

#[macro_use]
extern crate wattlock_shell;

mod lab;
mod report;
mod reproduce;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use wattlock_door::{Known, known};
use wattlock_shell::program::{self, NotInstalled, Program};
use wattlock_shell::setup::{self, Choice, Emulation};

/// What its command lines begin with.
const COMMANDS: [&str; 2] = ["lab", "report"];

/// Simulate published systems, and draw pages of what benches and simulations wrote
#[derive(Debug, Parser)]
#[command(name = "wattlock", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    program: Which,
    #[command(flatten)]
    choice: Choice,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one, parsed once")]
enum Which {
    Lab(lab::Command),
    Report(report::Command),
}

impl Program for Arguments {
    const HELP: &'static str = include_str!("help.txt");

    const COMMIT: &'static str = env!("WATTLOCK_COMMIT");

    fn words() -> Vec<OsString> {
        program::handed_on(std::env::args_os().collect(), &COMMANDS)
    }

    fn refusal(error: &clap::Error) -> Option<ExitCode> {
        lab::refusal(error)
    }

    fn ignored(&self, text: String) -> anyhow::Error {
        match self.program {
            Which::Lab(_) => wattlock_lab::Error::Policy(text).into(),
            Which::Report(_) => wattlock_door::Error::Usage(text).into(),
        }
    }

    fn cleans_up(&self) -> bool {
        matches!(&self.program, Which::Lab(command) if command.cleans_up())
    }

    fn run(&self) -> Result<()> {
        match &self.program {
            Which::Lab(command) => lab::run(command, &self.choice),
            Which::Report(command) => report::run(command),
        }
    }

    const ENDS: &[Known] = &[
        known::<wattlock_lab::Error>,
        known::<NotInstalled>,
        known::<wattlock_door::Error>,
        known::<wattlock_files::Error>,
    ];
}

fn main() -> ExitCode {
    // For `reproduce`, which hands the name on: nothing here becomes another program for it.
    setup::emulates(Emulation { card: wattlock_emul::card, models: wattlock_emul::models });
    program::main::<Arguments>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_well_formed_and_every_command_has_an_example() {
        program::check::<Arguments>();
    }
}
