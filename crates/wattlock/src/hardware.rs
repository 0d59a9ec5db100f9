//! What the machine's GPUs and its CPU say of their parts, for policies that compute from them.
//!
//! The CPU is asked only beside a GPU that tells. Clock: the highest of `cpufreq`, which a virtual machine lacks; else the
//! firmware's nominal one, else the present one of `/proc/cpuinfo`. Containers show the host's files: the cores that this
//! process may use are counted by the runtime.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use wattlock_core::Engine;
use wattlock_policy::{CpuAttributes, EngineId, Hardware};

/// What the engines' machines say.
pub(crate) fn of(engines: &[Arc<dyn Engine>]) -> Hardware {
    let gpu = |(at, engine): (usize, &Arc<dyn Engine>)| Some((EngineId(at as u8), engine.gpu()?));
    let gpus: Vec<_> = engines.iter().enumerate().filter_map(gpu).collect();
    let cpu = if gpus.is_empty() { None } else { cpu(Path::new("/")) };
    Hardware { cpu, gpus, ..Hardware::default() }
}

fn number(path: &Path) -> Option<f64> {
    fs::read_to_string(path).ok()?.trim().parse().ok().filter(|value: &f64| value.is_finite() && *value > 0.0)
}

fn cpu(root: &Path) -> Option<CpuAttributes> {
    let cpus = root.join("sys/devices/system/cpu");
    let policies = fs::read_dir(cpus.join("cpufreq")).into_iter().flatten().flatten();
    let highest =
        policies.filter_map(|policy| number(&policy.path().join("cpuinfo_max_freq"))).reduce(f64::max);
    let nominal = || number(&cpus.join("cpu0/acpi_cppc/nominal_freq"));
    let mhz = highest.map(|khz| khz / 1000.0).or_else(nominal).or_else(|| present_mhz(root))?;
    let siblings = fs::read_to_string(cpus.join("cpu0/topology/thread_siblings_list")).unwrap_or_default();
    Some(CpuAttributes { mhz, threads_per_core: count(siblings.trim()).max(1) })
}

/// The first processor's line: each further one costs the kernel a question to its CPU.
fn present_mhz(root: &Path) -> Option<f64> {
    let mut text = String::new();
    File::open(root.join("proc/cpuinfo")).ok()?.take(1024).read_to_string(&mut text).ok()?;
    let line = text.lines().find(|line| line.starts_with("cpu MHz"))?;
    line.split(':').nth(1)?.trim().parse().ok().filter(|mhz: &f64| *mhz > 0.0)
}

/// CPUs of a list as the kernel writes it: `0,64`, `0-1`.
fn count(list: &str) -> u16 {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        Some(last.checked_sub(first)?.saturating_add(1))
    };
    list.split(',').filter_map(range).fold(0, u16::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> Option<CpuAttributes> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
        cpu(folder.path())
    }

    #[test]
    fn a_cpu_s_clock_is_the_highest_that_it_can_have_and_its_siblings_share_a_core() {
        const TREE: &str = "sys/devices/system/cpu";
        let (little, big) = (format!("{TREE}/cpufreq/policy0"), format!("{TREE}/cpufreq/policy4"));
        let (little, big) = (format!("{little}/cpuinfo_max_freq"), format!("{big}/cpuinfo_max_freq"));
        let (nominal, siblings) = (
            format!("{TREE}/cpu0/acpi_cppc/nominal_freq"),
            format!("{TREE}/cpu0/topology/thread_siblings_list"),
        );
        let info = ("proc/cpuinfo", "processor\t: 0\ncpu MHz\t\t: 2596.098");
        let is = |mhz, threads_per_core| Some(CpuAttributes { mhz, threads_per_core });
        let two = (&siblings[..], "0,64");
        assert_eq!(
            machine(&[(&little, "1800000"), (&big, "2400000"), (&nominal, "1"), info, two]),
            is(2400.0, 2)
        );
        assert_eq!(machine(&[(&nominal, "2250"), info, (&siblings, "0-3")]), is(2250.0, 4));
        assert_eq!(machine(&[(&little, "0"), info]), is(2596.098, 1));
        assert_eq!(machine(&[two, ("proc/cpuinfo", "processor : 0")]), None);
    }
}
