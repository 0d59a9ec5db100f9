//! `wattlock clocks`: what clocks this machine has, what can be set, and what stands in the way. And `--clocks` of other
//! commands, as far as they share it.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};
use wattlock_clock::{
    Board, Error, Governor, Locked, Places, Recovered, Survey, TREE, boards, recover, survey,
};
use wattlock_shell::setup::{self, Choice};

use crate::wrong::usage;

/// Show which clocks can be set, and what stands in the way
#[derive(Debug, Args)]
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
    Restore,
}

/// Where the record is unless an option says otherwise. Only root can set clocks, and only root can write there.
const RECORD: &str = "/run/wattlock/clocks";

/// What belongs to `--clocks` of a command.
#[derive(Debug, Args)]
pub struct Where {
    /// The kernel's cpufreq files
    #[arg(long, value_name = "DIR", default_value = TREE, requires = "clocks")]
    clocks_tree: PathBuf,
    /// Where to note what to put back
    #[arg(long, value_name = "FILE", default_value = RECORD, requires = "clocks")]
    clocks_record: PathBuf,
}

impl Where {
    /// Where clocks are.
    pub fn places(&self) -> Places {
        Places { tree: self.clocks_tree.clone(), nvml: setup::nvml(), record: self.clocks_record.clone() }
    }
}

/// The clock of the GPU that the engine uses, for work that goes on if it cannot be set: one line says so.
pub struct OfGpu {
    clock: Locked,
    refused: bool,
}

impl OfGpu {
    /// `None`: there is a GPU, and its clocks cannot be set, which has been said.
    ///
    /// # Errors
    /// What must be put right first: another process sets the clocks, or what one left cannot be put back.
    pub fn open(places: &Places, bus: &str) -> Result<Option<OfGpu>, Error> {
        match Locked::open(places, bus) {
            Ok(clock) => Ok(Some(OfGpu { clock, refused: false })),
            Err(error @ (Error::Held(_) | Error::BadRecord { .. } | Error::Io { .. })) => Err(error),
            Err(error) => {
                without(&error);
                Ok(None)
            }
        }
    }
}

fn without(why: &Error) {
    eprintln!("wattlock: {why}; going on without");
}

impl Governor for OfGpu {
    fn clocks_khz(&self) -> &[u64] {
        self.clock.clocks_khz()
    }

    fn set(&mut self, step: usize) -> Result<(), Error> {
        if self.refused {
            return Ok(());
        }
        if let Err(error) = self.clock.set(step) {
            self.refused = true;
            without(&error);
        }
        Ok(())
    }

    fn restore(&mut self) -> Result<(), Error> {
        self.clock.restore()
    }

    fn changes(&self) -> u64 {
        self.clock.changes()
    }
}

/// The GPU's clock for files: set once, until the governor is dropped or restored. `eep` names the step: the highest for
/// GPU and hybrid work. For work of the CPU alone it publishes the lowest. Files keep the window full, which is the highest
/// step of `lecpaes`. `None` without a GPU whose clocks can be set, which has been said.
pub fn for_files(choice: &Choice, places: &Places) -> Result<Option<OfGpu>> {
    let settings = setup::settings(choice)?;
    let step = match &choice.policy[..] {
        "eep" => settings.eep_clock.map_or(usize::MAX, usize::from),
        "lecpaes" => usize::MAX,
        "instruction" | "software" => 0,
        _ => return Err(usage("--clocks needs --policy eep, lecpaes, instruction or software")),
    };
    let gpu = match setup::gpu_for(choice) {
        Ok(gpu) => gpu,
        Err(why) => {
            without(&Error::Gpu(why));
            return Ok(None);
        }
    };
    let mut clock = OfGpu::open(places, gpu.bus())?;
    if let Some(clock) = &mut clock {
        clock.set(step.min(clock.steps() - 1))?;
    }
    Ok(clock)
}

/// Runs the command.
pub fn run(command: &Command) -> Result<()> {
    let places = Places { tree: command.tree.clone(), nvml: setup::nvml(), record: command.record.clone() };
    match command.what {
        None => {
            put!("{}{}", shown(&survey(&places.tree)), shown_gpus(boards(places.nvml.as_deref())));
            Ok(())
        }
        Some(What::Restore) => restore(&places),
    }
}

fn restore(places: &Places) -> Result<()> {
    match recover(places)? {
        Recovered::Nothing => say!("nothing to put back"),
        Recovered::PutBack { limits, gpus } => {
            if limits > 0 {
                say!("{limits} limit{} put back", if limits == 1 { " was" } else { "s were" });
            }
            if gpus > 0 {
                say!("the clocks of {gpus} GPU{} reset", if gpus == 1 { " were" } else { "s were" });
            }
        }
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
        Some(why) => text + &format!("no clock of a CPU can be set: {why}\n"),
    }
}

/// What no NVML can tell, and what follows.
const BLIND: &str = "NVML does not tell whether somebody has locked these clocks: --clocks replaces such a lock, and \
                     ends it when the work does";

fn shown_gpus(found: Result<Vec<Board>, Error>) -> String {
    let boards = match found {
        Ok(boards) if boards.is_empty() => return String::new(),
        Ok(boards) => boards,
        Err(why) => return format!("{why}\n"),
    };
    let line = |board: &Board| {
        let range = match &board.pairs.iter().map(|pair| pair.core).collect::<Vec<_>>()[..] {
            [] => "NVML names no clocks that it supports".to_owned(),
            [only] => format!("{only} MHz"),
            [lowest, .., highest] => {
                format!("{lowest} to {highest} MHz, {} clocks", board.pairs.len())
            }
        };
        format!("GPU {} {}: {range}\n", board.bus, board.name)
    };
    boards.iter().map(line).collect::<String>() + BLIND + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_clocks_says_why() {
        let nowhere = tempfile::tempdir().unwrap();
        let text = shown(&survey(nowhere.path()));
        assert!(
            text.starts_with("no clock of a CPU can be set: ") && text.contains("virtual machine"),
            "{text}"
        );
    }
}
