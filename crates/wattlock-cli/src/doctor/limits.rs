//! What the system lets a process have: its cgroup, locked memory, mappings, FUSE.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

use super::Fact;
use wattlock_shell::text;

pub(super) fn facts() -> Vec<Fact> {
    let folders =
        cgroups(&fs::read_to_string("/proc/self/cgroup").unwrap_or_default(), Path::new("/sys/fs/cgroup"));
    vec![cgroup(&folders), memory_locks(), job_stacks(), fuse()]
}

/// The folders of a process's cgroup (version 2) and of those above it, the lowest first.
fn cgroups(text: &str, root: &Path) -> Vec<PathBuf> {
    let Some(path) = text.lines().find_map(|line| line.strip_prefix("0::")) else { return Vec::new() };
    let lowest = root.join(path.trim_start_matches('/'));
    lowest.ancestors().take_while(|folder| folder.starts_with(root)).map(Path::to_owned).collect()
}

/// The least of a limit in any of these folders; none where all say `max`.
fn least<T: PartialOrd>(folders: &[PathBuf], file: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
    let values =
        folders.iter().filter_map(|folder| parse(fs::read_to_string(folder.join(file)).ok()?.trim()));
    values.reduce(|least, value| if value < least { value } else { least })
}

/// How many processors' time a line of `cpu.max` allows: microseconds of each period.
fn processors(text: &str) -> Option<f64> {
    let (quota, period) = text.split_once(' ')?;
    let period = period.parse::<f64>().ok().filter(|period| *period > 0.0)?;
    Some(quota.parse::<f64>().ok()? / period)
}

fn cgroup(folders: &[PathBuf]) -> Fact {
    const WHAT: &str = "cgroup";
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut words = Vec::new();
    let time = least(folders, "cpu.max", processors);
    if let Some(time) = time.filter(|time| *time < cores as f64) {
        words.push(format!("processor time of {time:.2} of {cores} processors"));
    }
    if let Some(bytes) = least(folders, "memory.max", |text| text.parse::<u64>().ok()) {
        words.push(format!("memory of {}", text::bytes(bytes)));
    }
    if let Some(tasks) = least(folders, "pids.max", |text| text.parse::<u64>().ok()) {
        words.push(format!("{tasks} tasks"));
    }
    match words.is_empty() {
        true => Fact::good(WHAT, "no limit below the machine's"),
        false => Fact::note(
            WHAT,
            format!("limited to {}", words.join(", ")),
            "`wattlock calibrate` under the same limits that the programs have",
        ),
    }
}

/// A mount locks its memory, so that no key reaches a swap device.
fn memory_locks() -> Fact {
    const WHAT: &str = "locked memory";
    let limit = getrlimit(Resource::Memlock).current;
    let swap = fs::read_to_string("/proc/swaps").map_or(0, |text| text.lines().count().saturating_sub(1));
    match limit {
        _ if rustix::process::geteuid().is_root() => Fact::good(WHAT, "root has no limit"),
        None => Fact::good(WHAT, "unlimited"),
        Some(bytes) if swap == 0 => Fact::good(
            WHAT,
            format!("at most {}; there is no swap device that keys could reach", text::bytes(bytes)),
        ),
        Some(bytes) => Fact::note(
            WHAT,
            format!("at most {}: a mount cannot keep its keys from the swap device", text::bytes(bytes)),
            "`ulimit -l unlimited`, LimitMEMLOCK=infinity in a unit, or `swapoff -a`",
        ),
    }
}

/// Handshakes that pause have a stack of their own each, which is two entries in the kernel's list of a process's mappings.
fn job_stacks() -> Fact {
    const WHAT: &str = "job stacks";
    /// As many as a thread has in use at once, twice, and what a program has besides.
    const ENOUGH: u64 = 16 << 10;
    let text = fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    match text.trim().parse::<u64>() {
        Ok(most) if most < ENOUGH => Fact::note(
            WHAT,
            format!("a process may have {most} mappings: handshakes above some {} do not pause", most / 2),
            format!("sysctl vm.max_map_count={}", 65_530),
        ),
        Ok(most) => Fact::good(
            WHAT,
            format!("a process may have {most} mappings, two for each handshake that pauses"),
        ),
        Err(_) => Fact::good(WHAT, "the system does not say how many mappings a process may have"),
    }
}

fn fuse() -> Fact {
    const WHAT: &str = "mount";
    let open = fs::File::options().read(true).write(true).open("/dev/fuse");
    let root = rustix::process::geteuid().is_root();
    let helper = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join("fusermount3").is_file()));
    match open {
        Err(error) => {
            let words =
                format!("/dev/fuse: {error}; volumes are read and written by `wattlock fs` all the same");
            Fact::note(WHAT, words, "modprobe fuse; in a container: --device /dev/fuse --cap-add SYS_ADMIN")
        }
        Ok(_) if root || helper => Fact::good(WHAT, "/dev/fuse opens"),
        Ok(_) => Fact::note(WHAT, "no program fusermount3: only root can mount", "apt install fuse3"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_a_cgroup_and_those_above_it_counts() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("a/b");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("cpu.max"), "max 100000\n").unwrap();
        fs::write(inner.join("memory.max"), "max\n").unwrap();
        fs::write(root.path().join("a/cpu.max"), "1000 100000\n").unwrap();
        fs::write(root.path().join("cpu.max"), "5000 100000\n").unwrap();
        let folders = cgroups("1:name=systemd:/x\n0::/a/b\n", root.path());
        assert_eq!(folders, [inner, root.path().join("a"), root.path().to_owned()]);
        assert_eq!(least(&folders, "cpu.max", processors), Some(0.01));
        assert_eq!(least(&folders, "memory.max", |text| text.parse::<u64>().ok()), None);
        let fact = cgroup(&folders);
        assert!(fact.words.contains("0.01 of "), "{}", fact.words);
        assert_eq!(cgroup(&[]).words, "no limit below the machine's");
        assert!(cgroups("1:name=systemd:/x\n", root.path()).is_empty());
    }

    #[test]
    fn nonsense_of_a_cgroup_is_no_limit() {
        for text in ["", "max", "max 100000", "x y", "1000 0", "1000"] {
            assert_eq!(processors(text), None, "{text:?}");
        }
    }
}
