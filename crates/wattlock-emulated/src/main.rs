//! The command line with emulated cards. `wattlock` becomes it for `--emulate`; it is for tests, benches and trying out, and
//! never installed.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use wattlock_shell::setup::{Emulation, emulates};

fn main() -> ExitCode {
    emulates(Emulation { card: wattlock_emul::card, models: wattlock_emul::models });
    wattlock_cli::main()
}
