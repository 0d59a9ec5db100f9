//! What a bench leaves that was killed before it could clean up: programs that it started, mounts and folders.
//!
//! Only this program's own descendants are ended: it is their subreaper (prctl(2)), so that they are its children once the
//! bench has ended, in whatever process group or session they are. Folders are known by the bench's number in their names.
//! Nothing below a mount is removed.

use std::collections::BTreeSet;
use std::fs::DirEntry;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{
    Pid, Signal, WaitOptions, geteuid, getpid, kill_process, set_child_subreaper, waitpid,
};
use wattlock_shell::process::children;

/// The kernel has told most of them to end when the bench did (`ending_with_us`).
const BY_THEMSELVES: Duration = Duration::from_secs(1);
/// Those that were told once more are killed after this.
const PATIENCE: Duration = Duration::from_secs(3);
/// What a kill does not end is in the kernel.
const LONGEST: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Where the bench has folders in memory.
const MEMORY: &str = "/dev/shm";

/// Children that this process had from what it was before it was the lab (exec(2)).
static OTHERS: OnceLock<Vec<u32>> = OnceLock::new();

/// Makes whatever a bench leaves a child of this process.
///
/// # Errors
/// The system's.
pub fn adopt() -> Result<()> {
    OTHERS.get_or_init(|| children(std::process::id()));
    set_child_subreaper(Some(getpid())).context("prctl: what a killed bench leaves could not be ended")
}

/// Takes away what the bench of that number left, once it was waited for. Returns what stays, and why.
pub fn take_away(bench: u32) -> Vec<String> {
    let mut stays: Vec<String> = end_children().into_iter().map(|pid| format!("process {pid}")).collect();
    for folder in folders(bench) {
        if let Err(error) = remove(&folder) {
            stays.push(format!("{}: {error:#}", wattlock_door::one_line(&folder)));
        }
    }
    stays
}

/// Ends every child of this process that it had not before, and returns those that it could not. Their children become this one's in turn.
fn end_children() -> Vec<u32> {
    let (begun, mut told) = (Instant::now(), BTreeSet::new());
    loop {
        let mut left = children(std::process::id());
        left.retain(|pid| !OTHERS.get().is_some_and(|others| others.contains(pid)));
        let of = |pid: u32| i32::try_from(pid).ok().and_then(Pid::from_raw);
        let ended = |pid: &u32| {
            of(*pid).is_some_and(|pid| !matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(None)))
        };
        let before = left.len();
        left.retain(|pid| !ended(pid));
        let time = begun.elapsed();
        if before == 0 || time > LONGEST {
            return left;
        }
        for pid in left.iter().filter_map(|pid| of(*pid)) {
            if time > PATIENCE {
                let _ = kill_process(pid, Signal::KILL);
            } else if time > BY_THEMSELVES && told.insert(pid.as_raw_nonzero()) {
                let _ = kill_process(pid, Signal::TERM);
            }
        }
        if !left.is_empty() {
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// A bench's folders, and its nginx's: in memory, and where temporary files are.
fn folders(bench: u32) -> BTreeSet<PathBuf> {
    let prefixes = ["point", "server"].map(|what| format!("wattlock-{what}-{bench}-"));
    let is_own = |entry: &DirEntry| {
        // Not through a link, and nobody else's.
        let own = entry.metadata().is_ok_and(|data| data.is_dir() && data.uid() == geteuid().as_raw());
        let name = entry.file_name().to_string_lossy().into_owned();
        own && prefixes.iter().any(|prefix| name.starts_with(prefix))
    };
    let places = [std::env::temp_dir(), MEMORY.into()];
    // The table of mounts has real paths.
    let entries = places.iter().filter_map(|place| std::fs::read_dir(place.canonicalize().ok()?).ok());
    entries.flatten().flatten().filter(is_own).map(|entry| entry.path()).collect()
}

/// Unmounts what is mounted in a folder, and removes it.
fn remove(folder: &Path) -> Result<()> {
    let mut mounted = mounts(folder)?;
    // The innermost first.
    mounted.sort_by_key(|place| std::cmp::Reverse(place.components().count()));
    for place in mounted {
        let plain = wattlock_mount::unmount_patiently(&place);
        plain.or_else(|_| wattlock_mount::unmount(&place, true)).context("unmounting it")?;
    }
    anyhow::ensure!(mounts(folder)?.is_empty(), "something is mounted in it");
    std::fs::remove_dir_all(folder).context("removing it")
}

/// What is mounted in a folder, by the system's table (`proc_pid_mountinfo(5)`).
fn mounts(folder: &Path) -> Result<Vec<PathBuf>> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").context("/proc/self/mountinfo")?;
    Ok(table.lines().filter_map(place).filter(|place| place.starts_with(folder)).collect())
}

/// The place of a line of the table, which has blanks and the like as numbers.
fn place(line: &str) -> Option<PathBuf> {
    let mut text = line.split(' ').nth(4)?.to_owned();
    for (number, character) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        text = text.replace(number, character);
    }
    Some(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_known_by_the_number_in_its_name() {
        let number = u32::MAX - 7;
        let make = |name: &str| tempfile::Builder::new().prefix(name).tempdir().unwrap();
        let mine = make(&format!("wattlock-point-{number}-"));
        let others =
            [make(&format!("wattlock-point-{number}")), make(&format!("wattlock-point-{}-", number - 1))];
        std::fs::create_dir_all(mine.path().join("mount0/a")).unwrap();
        let link = std::env::temp_dir().join(format!("wattlock-point-{number}-link"));
        std::os::unix::fs::symlink(others[1].path(), &link).unwrap();
        let found = folders(number);
        std::fs::remove_file(&link).unwrap();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [mine.path().canonicalize().unwrap()]);
        remove(&mine.path().canonicalize().unwrap()).unwrap();
        assert!(!mine.path().exists() && others.iter().all(|other| other.path().exists()));
    }

    #[test]
    fn the_place_of_a_mount_may_have_a_blank_in_it() {
        let line = "36 35 98:0 /mnt1 /tmp/a\\040b/mount0 rw,noatime master:1 - fuse.wattlock /x rw";
        assert_eq!(place(line), Some(PathBuf::from("/tmp/a b/mount0")));
        assert_eq!(place("36 35"), None);
        assert!(mounts(Path::new("/")).unwrap().contains(&PathBuf::from("/proc")));
    }
}
