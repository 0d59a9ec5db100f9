//! `wattlock clocks`: what clocks this machine has, what can be set, and what stands in the way.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, Subcommand};
use wattlock_clock::{Recovered, Survey, TREE, recover, survey};

/// Show which clocks can be set, and what stands in the way
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  wattlock clocks\n  wattlock clocks restore      puts back what a killed process left changed"
)]
pub struct Command {
    #[command(subcommand)]
    what: Option<What>,
    /// The kernel's cpufreq files
    #[arg(long, global = true, value_name = "DIR", default_value = TREE)]
    tree: PathBuf,
    /// Where a process that sets clocks notes what to put back
    #[arg(long, global = true, value_name = "FILE", default_value = RECORD)]
    record: PathBuf,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Put back what a process that was killed left changed
    #[command(after_help = "Example:\n  wattlock clocks restore")]
    Restore,
}

/// Where the record is unless an option says otherwise. Only root can set clocks, and only root can write there.
pub const RECORD: &str = "/run/wattlock/clocks";

/// Runs the command.
pub fn run(command: &Command) -> Result<()> {
    match command.what {
        None => {
            put!("{}", shown(&survey(&command.tree)));
            Ok(())
        }
        Some(What::Restore) => restore(&command.tree, &command.record),
    }
}

fn restore(tree: &Path, record: &Path) -> Result<()> {
    match recover(tree, record)? {
        Recovered::Nothing => say!("nothing to put back"),
        Recovered::Limits(1) => say!("1 limit was put back"),
        Recovered::Limits(count) => say!("{count} limits were put back"),
        Recovered::Held(pid) => say!("process {pid} sets the clocks and puts them back when it ends"),
    }
    Ok(())
}

fn shown(found: &Survey) -> String {
    let mhz = |khz: &u64| format!("{}", khz / 1000);
    let mut text = String::new();
    for domain in &found.domains {
        let steps: Vec<String> = domain.steps_khz.iter().map(mhz).collect();
        text += &format!(
            "CPUs {}: {} to {} MHz, limit {} MHz, driver {}, governor {}\n  steps: {} MHz\n",
            domain.cpus,
            mhz(&domain.range_khz.0),
            mhz(&domain.range_khz.1),
            mhz(&domain.limit_khz),
            domain.driver,
            domain.governor,
            steps.join(", "),
        );
        if let Some(obstacle) = &domain.obstacle {
            text += &format!("  cannot be set: {obstacle}\n");
        }
    }
    match found.why_not() {
        None => text + &format!("{} steps can be set\n", found.steps()),
        Some(why) => text + &format!("no clock can be set: {why}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_clocks_says_why() {
        let nowhere = tempfile::tempdir().unwrap();
        let text = shown(&survey(nowhere.path()));
        assert!(text.starts_with("no clock can be set: ") && text.contains("virtual machine"), "{text}");
    }
}
