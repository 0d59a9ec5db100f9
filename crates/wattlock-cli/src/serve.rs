//! `wattlock serve`: a folder over HTTPS by the nginx that is installed, with Wattlock in it, on loopback, until
//! interrupted. The comparison with and without Wattlock is the benches' program.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use wattlock_shell::nginx::site::Command;
use wattlock_shell::setup::Choice;
use wattlock_shell::{INTERRUPTED, program};

/// Runs the command.
pub fn run(command: &Command, choice: &Choice) -> Result<()> {
    if command.compare {
        return Err(program::become_another(program::BENCH));
    }
    let mut site = command.open(choice)?;
    say!("until Ctrl-C");
    while !INTERRUPTED.load(Ordering::Relaxed) {
        site.ours.check()?;
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
