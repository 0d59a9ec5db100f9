//! Carries out the clock step that a policy names.
//!
//! [`Governor`] is one device's clock. [`Cpufreq`] limits the CPU's clocks through the kernel's `cpufreq` files;
//! [`Locked`] locks a GPU's through NVML; [`Named`] only remembers the step, for machines that are emulated. [`survey`]
//! and [`boards`] say what a machine allows.
//!
//! This crate refuses to choose: a policy names the step. It refuses to leave a machine changed: what was there before is
//! on the disk before the first change, and comes back with [`Governor::restore`], when the governor is dropped, or at
//! the next start if the process was killed ([`recover`]). It never makes a CPU's clock faster than the machine's owner
//! set it. Of a GPU's clock no program can tell how it was set: NVML locks and resets, and names no lock that is there.
//! A reset therefore ends a lock of another program's, too.
#![forbid(unsafe_code)]

mod cpufreq;
mod nvml;
mod record;
mod survey;

pub use cpufreq::Cpufreq;
pub use nvml::{Board, Locked, Pair, boards};
pub use record::{Recovered, recover};
pub use survey::{Domain, Survey, survey};

use std::ffi::OsString;
use std::path::PathBuf;

/// Where the kernel has the CPUs' clocks.
pub const TREE: &str = "/sys/devices/system/cpu/cpufreq";

/// Most steps of a governor: what a policy can name.
pub const MOST_STEPS: usize = 256;

/// Where clocks are, and where it is noted what is to be put back.
#[derive(Debug, Clone)]
pub struct Places {
    /// The CPUs' clocks: [`TREE`], or a fixture.
    pub tree: PathBuf,
    /// The NVML library; `None`: the one that the driver installs.
    pub nvml: Option<OsString>,
    /// The record: what a process that sets clocks has changed.
    pub record: PathBuf,
}

/// Why a clock cannot be set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The machine has no clocks to set, or fewer than two steps.
    #[error("no clock can be set here: {0}")]
    Nothing(String),
    /// Another process sets them.
    #[error("process {0} sets the clocks already")]
    Held(u32),
    /// A step that there is not.
    #[error("no clock step {0}")]
    NoStep(usize),
    /// NVML refused, or is not there; its words.
    #[error("the GPU's clocks: {0}")]
    Gpu(String),
    /// The file that says what to restore is damaged.
    #[error("{path}: {what}")]
    BadRecord {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
    /// A failure of the system.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

impl Error {
    fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io { path, source }
    }
}

/// One device's clock.
pub trait Governor: Send {
    /// The clock of each step in kHz, lowest first, at most [`MOST_STEPS`]: what a policy's shares are of.
    fn clocks_khz(&self) -> &[u64];

    /// How many steps it has; 0 is the lowest.
    fn steps(&self) -> usize {
        self.clocks_khz().len()
    }

    /// Runs the device at that step from now on. Does nothing if it does already.
    ///
    /// # Errors
    /// [`Error::NoStep`]; [`Error::Io`]; [`Error::Gpu`].
    fn set(&mut self, step: usize) -> Result<(), Error>;

    /// Puts back what was there before the first [`Governor::set`].
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Gpu`]; what can be put back is.
    fn restore(&mut self) -> Result<(), Error>;

    /// How often the step was changed.
    fn changes(&self) -> u64;
}

/// A clock in name only: what an emulated machine needs, whose time is stretched by the program that asks for the step.
#[derive(Debug, Clone)]
pub struct Named {
    clocks_khz: Vec<u64>,
    first: usize,
    present: usize,
    changes: u64,
}

impl Named {
    /// With a step for each of these clocks, at that one.
    pub fn new(clocks_khz: Vec<u64>, first: usize) -> Named {
        Named { clocks_khz, first, present: first, changes: 0 }
    }

    /// The present step.
    pub fn present(&self) -> usize {
        self.present
    }
}

impl Governor for Named {
    fn clocks_khz(&self) -> &[u64] {
        &self.clocks_khz
    }

    fn set(&mut self, step: usize) -> Result<(), Error> {
        if step >= self.steps() {
            return Err(Error::NoStep(step));
        }
        self.changes += u64::from(step != self.present);
        self.present = step;
        Ok(())
    }

    fn restore(&mut self) -> Result<(), Error> {
        self.present = self.first;
        Ok(())
    }

    fn changes(&self) -> u64 {
        self.changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_clock_has_its_steps_and_counts_changes() {
        let mut clock = Named::new(vec![1, 2, 3], 1);
        clock.set(2).unwrap();
        clock.set(2).unwrap();
        assert!(matches!(clock.set(3), Err(Error::NoStep(3))));
        assert_eq!((clock.present(), clock.changes()), (2, 1));
        clock.restore().unwrap();
        assert_eq!(clock.present(), 1);
    }
}
