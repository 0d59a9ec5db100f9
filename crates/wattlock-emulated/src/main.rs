//! The command line with emulated cards. `wattlock` becomes it for `--emulate`; it is for tests, benches, the lab and trying
//! out.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use wattlock_shell::setup::{Emulation, emulates};

fn main() -> ExitCode {
    emulates(Emulation { card: wattlock_emul::card, models: wattlock_emul::models });
    wattlock_cli::main()
}
