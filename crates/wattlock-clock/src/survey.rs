//! What a machine's `cpufreq` tree allows, and what stands in the way.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::MOST_STEPS;

/// Steps of a driver that names none: this many, evenly from the lowest clock to the limit.
const EVEN_STEPS: u64 = 5;

/// CPUs that share a clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain {
    /// Its folder.
    pub path: PathBuf,
    /// The CPUs, as the kernel lists them.
    pub cpus: String,
    /// The driver.
    pub driver: String,
    /// The kernel's own governor.
    pub governor: String,
    /// The slowest and the fastest clock of the hardware, in kHz.
    pub range_khz: (u64, u64),
    /// The limit in force, in kHz.
    pub limit_khz: u64,
    /// What the limit can be set to, in kHz, lowest first. Never above the limit in force.
    pub steps_khz: Vec<u64>,
    /// Why it cannot be set, if it cannot.
    pub obstacle: Option<String>,
}

/// What there is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Survey {
    /// One for each clock.
    pub domains: Vec<Domain>,
    /// What stands in the way of all of them.
    pub obstacle: Option<String>,
}

impl Survey {
    /// The steps of the clock that has most; none if one has none.
    pub(crate) fn widest(&self) -> &[u64] {
        let all = || self.domains.iter().map(|domain| &domain.steps_khz[..]);
        if all().any(<[u64]>::is_empty) {
            return &[];
        }
        all().rev().max_by_key(|steps| steps.len()).unwrap_or(&[])
    }

    /// How many steps can be set.
    pub fn steps(&self) -> usize {
        self.widest().len()
    }

    /// Why no clock can be set, if none can.
    pub fn why_not(&self) -> Option<String> {
        if let Some(obstacle) = &self.obstacle {
            return Some(obstacle.clone());
        }
        if let Some(obstacle) = self.domains.iter().find_map(|domain| domain.obstacle.clone()) {
            return Some(obstacle);
        }
        (self.steps() < 2).then(|| "fewer than two steps".to_owned())
    }
}

/// The name of the file that limits a clock.
pub(crate) const LIMIT: &str = "scaling_max_freq";

pub(crate) fn text(path: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(path)?.trim().to_owned())
}

pub(crate) fn number(path: &Path) -> io::Result<u64> {
    text(path)?.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
}

/// Looks at the tree: [`crate::TREE`], or a fixture of one.
pub fn survey(tree: &Path) -> Survey {
    let folders = match fs::read_dir(tree) {
        Ok(folders) => folders,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Survey { obstacle: Some(absent(tree)), ..Survey::default() };
        }
        Err(error) => {
            let obstacle = Some(format!("{}: {error}", tree.display()));
            return Survey { obstacle, ..Survey::default() };
        }
    };
    let is_policy = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.strip_prefix("policy").is_some_and(|rest| rest.parse::<u32>().is_ok())
    };
    let mut paths: Vec<PathBuf> =
        folders.filter_map(|entry| Some(entry.ok()?.path())).filter(is_policy).collect();
    paths.sort_by_key(|path| (path.as_os_str().len(), path.clone()));
    let domains: Vec<Domain> = paths.into_iter().map(domain).collect();
    let obstacle = domains.is_empty().then(|| absent(tree));
    Survey { domains, obstacle }
}

fn absent(tree: &Path) -> String {
    format!("{} has no clocks: a virtual machine, or no cpufreq driver", tree.display())
}

fn domain(path: PathBuf) -> Domain {
    let read = |name: &str| text(&path.join(name)).unwrap_or_default();
    let khz = |name: &str| number(&path.join(name)).unwrap_or(0);
    let (range_khz, limit_khz) = ((khz("cpuinfo_min_freq"), khz("cpuinfo_max_freq")), khz(LIMIT));
    let lowest = range_khz.0.max(khz("scaling_min_freq"));
    let mut steps_khz: Vec<u64> = read("scaling_available_frequencies")
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    if steps_khz.is_empty() && limit_khz > lowest {
        // Wide: a number in a tree may be any.
        let even = |step: u64| {
            lowest + (u128::from(limit_khz - lowest) * u128::from(step) / u128::from(EVEN_STEPS - 1)) as u64
        };
        steps_khz = (0..EVEN_STEPS).map(even).collect();
    }
    steps_khz.retain(|step| (lowest..=limit_khz).contains(step));
    steps_khz.sort_unstable();
    steps_khz.dedup();
    let steps_khz = thinned(steps_khz);
    let obstacle = obstacle(&path, limit_khz);
    let (cpus, driver, governor) = (read("affected_cpus"), read("scaling_driver"), read("scaling_governor"));
    Domain { cpus, driver, governor, range_khz, limit_khz, steps_khz, obstacle, path }
}

/// At most [`MOST_STEPS`], the highest among them.
pub(crate) fn thinned<T: Copy>(steps: Vec<T>) -> Vec<T> {
    let every = steps.len().div_ceil(MOST_STEPS).max(1);
    let skipped = steps.len().saturating_sub(1) % every;
    steps.into_iter().skip(skipped).step_by(every).collect()
}

fn obstacle(path: &Path, limit_khz: u64) -> Option<String> {
    let file = path.join(LIMIT);
    if limit_khz == 0 {
        return Some(format!("{}: not there, or no number", file.display()));
    }
    // Opening for writing changes nothing, and is what the kernel checks.
    let opened = fs::File::options().write(true).open(&file);
    let error = opened.err()?;
    Some(match error.kind() {
        io::ErrorKind::PermissionDenied => format!("{}: only root may write it", file.display()),
        _ => format!("{}: {error}", file.display()),
    })
}
