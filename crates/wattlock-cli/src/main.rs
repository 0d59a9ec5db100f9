//! `wattlock`, the program of users. It has no emulated cards: where one is asked for it becomes `wattlock-emulated`, which
//! comes with benches and the lab only.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    wattlock_cli::main()
}
