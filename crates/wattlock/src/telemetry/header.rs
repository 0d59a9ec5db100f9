//! What a telemetry file begins with: everything that a reader of another version must know.

use serde::{Deserialize, Serialize};
use wattlock_core::Kind;

use super::{CELL_NAMES, ENGINE_NAMES, FORMAT, ROWS, file};
use crate::health::Reason;

/// The self-description at the start of every telemetry file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Header {
    /// Layout version.
    pub format: u32,
    /// Wattlock's version.
    pub version: String,
    /// Process.
    pub pid: u32,
    /// What the process says it is.
    pub program: String,
    /// Seconds since 1970 when the file was made.
    pub started: u64,
    /// When the process began, in the kernel's ticks since it booted (field 22 of `/proc/PID/stat`): tells it from a later
    /// one of the same number. 0 where that could not be read.
    #[serde(default)]
    pub born: u64,
    /// The number of the process's PID namespace (`/proc/PID/ns/pid`): elsewhere its number is another's. 0 where unknown.
    #[serde(default)]
    pub pid_ns: u64,
    /// The number of its time namespace: elsewhere it began at another time. 0 where unknown.
    #[serde(default)]
    pub time_ns: u64,
    /// Tells the program that the process executed from one that it executed before or later (execve), which has the same
    /// number and beginning. 0 where unknown.
    #[serde(default)]
    pub image: u64,
    /// Policy in force.
    pub policy: String,
    /// Objective in force.
    pub objective: String,
    /// Where the costs came from: a profile, a quick calibration, the built-in table.
    pub profile: String,
    /// Engine names, by id.
    pub engines: Vec<String>,
    /// What each engine rests on, by id.
    pub details: Vec<String>,
    /// What each engine's joules are worth and where they come from, by id; empty where there are none.
    #[serde(default)]
    pub energy: Vec<String>,
    /// Engines that are off, with the reason.
    pub inactive: Vec<(String, String)>,
    /// Kind names, by index.
    pub kinds: Vec<String>,
    /// Counter names in a cell.
    pub cell: Vec<String>,
    /// Counter names of an engine, the reasons for fallback last.
    pub engine: Vec<String>,
    /// How many of those are reasons.
    pub reasons: usize,
    /// Rows that follow.
    pub rows: usize,
}

/// What the runtime says of itself in the header.
#[derive(Debug, Clone, Default)]
pub(crate) struct Identity {
    pub(crate) program: String,
    pub(crate) policy: String,
    pub(crate) objective: String,
    pub(crate) profile: String,
    pub(crate) engines: Vec<String>,
    pub(crate) details: Vec<String>,
    pub(crate) energy: Vec<String>,
    pub(crate) inactive: Vec<(String, String)>,
}

impl Identity {
    pub(crate) fn header(&self) -> Header {
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let here = file::Namespaces::here();
        let reasons: Vec<&str> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        Header {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            program: self.program.clone(),
            started: seconds_since_epoch(),
            born: file::born(std::process::id()).unwrap_or(0),
            pid_ns: here.pid,
            time_ns: here.time,
            image: file::image(),
            policy: self.policy.clone(),
            objective: self.objective.clone(),
            profile: self.profile.clone(),
            engines: self.engines.clone(),
            details: self.details.clone(),
            energy: self.energy.clone(),
            inactive: self.inactive.clone(),
            kinds: Kind::ALL.iter().map(|kind| kind.name().to_owned()).collect(),
            cell: names(&CELL_NAMES),
            engine: [names(&ENGINE_NAMES), names(&reasons)].concat(),
            reasons: reasons.len(),
            rows: ROWS,
        }
    }
}

fn seconds_since_epoch() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
