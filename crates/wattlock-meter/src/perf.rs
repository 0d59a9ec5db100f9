//! The kernel's `power` events: the same registers as powercap, widened to 64 bits by the kernel, so they do not wrap.
//!
//! `/sys/bus/event_source/devices/power` names the events (`energy-pkg`, `energy-cores`, `energy-ram`, `energy-gpu`,
//! `energy-psys`), what a count is worth (`.scale`, in `.unit`), and in `cpumask` one CPU of each package. Opening one
//! takes `CAP_PERFMON` or `kernel.perf_event_paranoid` below 1.

use std::io::{self, Read};
use std::sync::Arc;

use crate::figure::Boundary;
use crate::sensor::{About, Gone, Measures, Sensor};
use crate::sys;
use crate::tree::{Tree, number, word};

const PLACE: &str = "sys/bus/event_source/devices/power";

/// Reads one opened event.
pub type Count = Box<dyn FnMut() -> io::Result<u64> + Send>;

/// Opens events: the kernel, or a test's stand-in.
pub trait Events {
    /// Opens an event of a type on a CPU; it counts from now on.
    ///
    /// # Errors
    /// The system's; `PermissionDenied` is a normal answer.
    fn open(&self, kind: u32, config: u64, cpu: u32) -> io::Result<Count>;
}

/// The running kernel.
#[derive(Debug, Clone, Copy)]
pub struct Kernel;

impl Events for Kernel {
    fn open(&self, kind: u32, config: u64, cpu: u32) -> io::Result<Count> {
        let mut file = sys::perf_event(kind, config, cpu as i32)?;
        Ok(Box::new(move || {
            let mut count = [0; 8];
            file.read_exact(&mut count)?;
            Ok(u64::from_ne_bytes(count))
        }))
    }
}

struct Event {
    about: About,
    count: io::Result<Count>,
}

impl Sensor for Event {
    fn about(&self) -> &About {
        &self.about
    }

    fn read(&mut self) -> Result<u64, Gone> {
        match &mut self.count {
            Ok(count) => count().map_err(Gone::from),
            Err(error) => Err(Gone(error.to_string())),
        }
    }
}

/// Every energy event of every package. Those that cannot be opened are there too, and say why when they are read.
pub(crate) fn find(tree: &Arc<dyn Tree>, events: &dyn Events) -> Vec<Box<dyn Sensor>> {
    let Ok(kind) = number(&**tree, &format!("{PLACE}/type")) else { return Vec::new() };
    let cpus = cpu_list(&word(&**tree, &format!("{PLACE}/cpumask")));
    let mut found: Vec<Box<dyn Sensor>> = Vec::new();
    for name in tree.names(&format!("{PLACE}/events")).unwrap_or_default() {
        let Some((boundary, suffix, config, joules)) = describe(&**tree, &name) else { continue };
        // The platform is one, whichever package tells.
        let cpus = if boundary == Boundary::Node { &cpus[..cpus.len().min(1)] } else { &cpus[..] };
        for cpu in cpus {
            let part = match suffix {
                "psys" => suffix.to_owned(),
                _ => format!("{}{suffix}", package_of(&**tree, *cpu)),
            };
            let measures = Measures::Energy { joules, wraps_after: None };
            let detail = format!("power/{name}/ on CPU {cpu}");
            let about = About { source: "perf", boundary, part, detail, measures };
            found.push(Box::new(Event { about, count: events.open(kind as u32, config, *cpu) }));
        }
    }
    found
}

/// Boundary, what follows the package in the part's name, event code and joules a count.
fn describe(tree: &dyn Tree, name: &str) -> Option<(Boundary, &'static str, u64, f64)> {
    let (boundary, suffix) = match name {
        "energy-pkg" => (Boundary::Package, ""),
        "energy-cores" => (Boundary::Core, " core"),
        "energy-gpu" => (Boundary::Uncore, " uncore"),
        "energy-ram" => (Boundary::Dram, " dram"),
        "energy-psys" => (Boundary::Node, "psys"),
        _ => return None,
    };
    let event = |ending: &str| word(tree, &format!("{PLACE}/events/{name}{ending}"));
    let code = event("");
    let config = u64::from_str_radix(code.strip_prefix("event=")?.trim_start_matches("0x"), 16).ok()?;
    let scale: f64 = event(".scale").parse().ok().filter(|scale: &f64| scale.is_normal() && *scale > 0.0)?;
    (event(".unit") == "Joules").then_some((boundary, suffix, config, scale))
}

fn package_of(tree: &dyn Tree, cpu: u32) -> String {
    let topology = format!("sys/devices/system/cpu/cpu{cpu}/topology");
    let package = number(tree, &format!("{topology}/physical_package_id")).unwrap_or(0);
    // As powercap names it on processors of several dies.
    match number(tree, &format!("{topology}/die_id")) {
        Ok(die) if die > 0 => format!("package-{package}-die-{die}"),
        _ => format!("package-{package}"),
    }
}

/// `0,32` or `0-1`, as the kernel writes sets of CPUs. At most 1024 are taken.
fn cpu_list(text: &str) -> Vec<u32> {
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>()) else {
            continue;
        };
        cpus.extend((first..=last).take(1024));
    }
    cpus.truncate(1024);
    cpus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_cpus_are_read_as_the_kernel_writes_them() {
        assert_eq!(cpu_list("0,32"), [0, 32]);
        assert_eq!(cpu_list("0-2,8"), [0, 1, 2, 8]);
        assert!(cpu_list("").is_empty());
        assert_eq!(cpu_list("0-4294967295").len(), 1024);
    }

    #[test]
    fn an_event_that_the_kernel_does_not_know_is_refused() {
        assert!(Kernel.open(u32::MAX, 2, 0).is_err());
    }
}
