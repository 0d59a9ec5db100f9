//! How a file's counts move into its user's totals: not lost and not counted twice, wherever the process that does it is
//! killed. A file that cannot be read whole by this version is left as it is.
//!
//! | step | what a reader counts |
//! |---|---|
//! | the lock is taken; what the totals took in last is removed | the file |
//! | the file gets another name, which no other file ever has | the file, under that name |
//! | its counts are added to the sums, which are written beside the totals | the file |
//! | they replace the totals, which name the file as taken in | the totals |
//! | the file is removed | the totals |
//!
//! A file under its new name that the totals do not name was not taken in; the next process that holds the lock does it.
//! The name has the number of the replacement in it, so a later file of the same process number is another one.
//!
//! Only the owner of a folder does this. What is to move is judged again under the lock: a name may be another file's by then,
//! of another copy of this library in the process, or of a later process. A process at its end waits for the lock for half a millisecond, and leaves its
//! file otherwise; readers and the next process take it in.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;

use super::budget::Budget;
use super::file::{Namespaces, is_left};
use super::folder::{Folder, Lock, folding, is_folding};
use super::read::{Unread, read_file};
use super::totals::{Found, MOST_FILES, Sum, Totals, sums_of};

/// How long a process that ends waits for the lock.
const AT_THE_END: Duration = Duration::from_micros(500);

/// Takes in a file of this process. If that is not possible now the file stays.
pub(super) fn own(path: &Path) {
    let Some((folder, name)) = path.parent().zip(path.file_name()) else { return };
    let Ok(name) = CString::new(name.as_bytes()) else { return };
    take_in(folder, &[name], AT_THE_END);
}

/// Takes in files of processes that have ended. Those that cannot be taken in now stay.
pub(super) fn take_in(folder: &Path, names: &[CString], patience: Duration) {
    if let Some(folder) = Folder::open(folder).filter(Folder::is_ours)
        && let Some(lock) = Lock::take(&folder, patience)
    {
        let (mut names, others): (Vec<_>, Vec<_>) = names.iter().cloned().partition(|name| is_folding(name));
        names.extend(others);
        for names in names.chunks(MOST_FILES) {
            if together(&folder, &lock, names).is_none() {
                return;
            }
        }
    }
}

/// Several at once. `None` if it could not be done, or the process was killed meanwhile (in tests).
fn together(folder: &Folder, lock: &Lock, names: &[CString]) -> Option<()> {
    let mut totals = match Totals::read(folder) {
        Found::None => Totals::default(),
        Found::Totals(totals) => totals,
        Found::Foreign | Found::NotNow => return None,
    };
    for name in totals.taken_in() {
        step().ok()?;
        folder.remove(name);
    }
    let mut taken_in = Vec::new();
    let here = Namespaces::here();
    // Under the lock alone it stays so.
    for name in names.iter().filter(|name| is_left(folder, name, here)) {
        let Some(aside) = set_aside(folder, totals.generation() + 1, name)? else { continue };
        match count(folder, &aside, &mut totals)? {
            Count::Added => taken_in.push(aside),
            Count::Nothing => folder.remove(&aside),
            // It stays, under its name, for a version that reads it.
            Count::Unread => drop(folder.rename(&aside, name)),
        }
    }
    if taken_in.is_empty() {
        return Some(());
    }
    step().ok()?;
    if !totals.replace(folder, lock, taken_in) {
        return None;
    }
    for name in totals.taken_in() {
        step().ok()?;
        folder.remove(name);
    }
    Some(())
}

/// Gives a file the name that only it ever has. Inside `None` if that is not possible: another process was faster, or a file
/// has the name that was left there before the totals began anew. That one's turn comes first.
fn set_aside(folder: &Folder, turn: u64, name: &CStr) -> Option<Option<CString>> {
    let aside = folding(turn, name)?;
    if *aside == *name {
        return Some(Some(aside));
    }
    step().ok()?;
    match folder.rename(name, &aside) {
        Ok(()) => Some(Some(aside)),
        Err(Errno::NOENT | Errno::EXIST) => Some(None),
        Err(_) => None,
    }
}

/// What became of a file's counts.
enum Count {
    /// They are in the sums.
    Added,
    /// It was read whole, and has none.
    Nothing,
    /// It is gone, or no file of counters that this version reads.
    Unread,
}

/// Adds a file's counts. `None` if it cannot be read now.
fn count(folder: &Folder, name: &CStr, totals: &mut Totals) -> Option<Count> {
    step().ok()?;
    let snapshot = match read_file(folder, name, &mut Budget::one_file()) {
        Ok((snapshot, _)) => snapshot,
        Err(Unread::Gone | Unread::Wrong) => return Some(Count::Unread),
        Err(Unread::NotNow) => return None,
    };
    let sums = sums_of(&snapshot);
    sums.iter().for_each(|sum| totals.add(sum));
    if sums.is_empty() {
        return Some(Count::Nothing);
    }
    let program = &*snapshot.header.program;
    totals.add(&Sum { program, engine: "", kind: "", counter: "ended", value: 1 });
    Some(Count::Added)
}

/// In tests a process is killed here: before each change that others see.
#[cfg(not(test))]
#[inline]
pub(super) fn step() -> std::io::Result<()> {
    Ok(())
}

#[cfg(test)]
pub(super) use tests::step;

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::fs::PermissionsExt;

    use super::super::scan::look;
    use super::*;
    use crate::telemetry::{Counter, EngineCounter, Header, Identity, read::encode};

    /// Other tests of this process take locks, too.
    const PATIENT: Duration = Duration::from_secs(60);

    thread_local! {
        /// Steps until the process is killed.
        static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    }

    pub(in super::super) fn step() -> std::io::Result<()> {
        match LEFT.get() {
            Some(0) => Err(std::io::Error::other("killed")),
            Some(left) => {
                LEFT.set(Some(left - 1));
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Does something as a process that is killed before its step of that number; whether it was.
    fn killed_at(at: usize, work: impl FnOnce()) -> bool {
        LEFT.set(Some(at));
        work();
        let killed = LEFT.get() == Some(0);
        LEFT.set(None);
        killed
    }

    fn identity() -> Identity {
        Identity { program: "a".into(), engines: vec!["x".into(), "y".into()], ..Identity::default() }
    }

    /// A dead process's file: so many requests, and as many quarantines.
    fn leave(folder: &Path, name: &str, requests: u64) -> CString {
        let header = Header { pid: 4_194_303, ..identity().header() };
        let bytes = encode(&header, 3, |row, engine, kind, counter| match (row, engine, kind, counter) {
            (0, 1, Some(0), c) if c == Counter::Requests as usize => requests - requests / 2,
            (2, 1, Some(0), c) if c == Counter::Requests as usize => requests / 2,
            (1, 0, None, c) if c == EngineCounter::Quarantines as usize => requests,
            _ => 0,
        });
        std::fs::write(folder.join(name), &bytes).unwrap();
        std::fs::set_permissions(folder.join(name), std::fs::Permissions::from_mode(0o600)).unwrap();
        CString::new(name).unwrap()
    }

    /// What a reader counts: requests, quarantines, and ended runtimes by the totals.
    fn counted(place: &Path) -> (u64, u64, u64) {
        let folder = Folder::open(place).unwrap();
        let seen = look(&folder, &mut Budget::of_a_user(), Namespaces::here());
        let files = seen.files.iter().flat_map(|file| sums_of(&file.snapshot));
        let sums: Vec<Sum<'_>> = files.chain(seen.totals.sums()).collect();
        let of = |counter| sums.iter().filter(|sum| sum.counter == counter).map(|sum| sum.value).sum();
        (of("requests"), of("quarantines"), of("ended"))
    }

    #[test]
    fn killed_at_any_step_nothing_is_lost_and_nothing_counted_twice() {
        let mut steps = 0;
        // A second process is killed at each of its steps, too, after the first was at each of its own.
        for first in 0.. {
            let mut survived = false;
            for second in 0.. {
                let place = tempfile::tempdir().unwrap();
                let before = [leave(place.path(), "4194303-0", 1)];
                take_in(place.path(), &before, PATIENT);
                let names = [leave(place.path(), "4194303-1", 10), leave(place.path(), "4194303-2", 100)];
                assert_eq!(counted(place.path()), (111, 111, 1));
                survived = !killed_at(first, || take_in(place.path(), &names, PATIENT));
                assert_eq!(counted(place.path()).0, 111, "the first was killed at {first}");
                // The number serves again.
                let again = leave(place.path(), "4194303-3", 1000);
                let left = |place: &Path| -> Vec<CString> {
                    let listed = Folder::open(place).unwrap().list(&mut Budget::of_a_user());
                    listed.files.into_iter().map(|(name, _)| name).chain(listed.folding).collect()
                };
                assert!(left(place.path()).contains(&again));
                let done = !killed_at(second, || {
                    take_in(place.path(), &left(place.path()), PATIENT);
                });
                assert_eq!(counted(place.path()).0, 1111, "killed at {first}, then at {second}");
                take_in(place.path(), &left(place.path()), PATIENT);
                assert_eq!(counted(place.path()), (1111, 1111, 4), "killed at {first}, then at {second}");
                assert!(left(place.path()).is_empty(), "killed at {first}, then at {second}");
                steps += 1;
                if done {
                    break;
                }
            }
            if survived {
                break;
            }
        }
        assert!(steps > 60, "{steps} pairs of steps");
    }

    #[test]
    fn an_end_without_any_count_leaves_nothing() {
        let place = tempfile::tempdir().unwrap();
        let name = leave(place.path(), "4194303-0", 0);
        take_in(place.path(), &[name], PATIENT);
        assert_eq!(counted(place.path()), (0, 0, 0));
        assert!(!place.path().join("totals").exists() && !place.path().join("4194303-0").exists());
    }

    #[test]
    fn a_folding_name_that_is_taken_blocks_nothing() {
        let place = tempfile::tempdir().unwrap();
        // Left before the totals were deleted: the next fold would give a file its name.
        let names = [
            leave(place.path(), "4194303-0", 1),
            leave(place.path(), "4194303-1", 10),
            leave(place.path(), "folding-1-4194303-0", 100),
        ];
        take_in(place.path(), &names, PATIENT);
        assert_eq!(counted(place.path()), (111, 111, 2), "one waits");
        take_in(place.path(), &names, PATIENT);
        assert_eq!(counted(place.path()), (111, 111, 3));
        assert!(names.iter().all(|name| !place.path().join(name.to_str().unwrap()).exists()));
    }

    /// The name had been another file's: of another copy of this library in the process, or of an earlier process.
    #[test]
    fn a_file_whose_process_runs_stays_whoever_asks_for_its_name() {
        let place = tempfile::tempdir().unwrap();
        let header = identity().header();
        let name = format!("{}-7", header.pid);
        let path = place.path().join(&name);
        let mut bytes = encode(&header, 1, |_, _, _, _| 1);
        std::fs::write(&path, &bytes).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let requests = counted(place.path()).0;
        own(&path);
        take_in(place.path(), &[CString::new(name).unwrap()], PATIENT);
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        assert!(requests > 0 && !place.path().join("totals").exists());
        bytes[0] = b'-';
        std::fs::write(&path, &bytes).unwrap();
        own(&path);
        assert_eq!((counted(place.path()).0, path.exists()), (requests, false));
    }

    #[test]
    fn a_file_that_is_not_read_stays_as_it_is() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("4194303-0");
        for content in [&b"{\"format\":1, cut"[..], b"", b"{\"format\":2}"] {
            std::fs::write(&path, content).unwrap();
            let names = [c"4194303-0".to_owned(), leave(place.path(), "4194303-1", 1)];
            take_in(place.path(), &names, PATIENT);
            assert_eq!(std::fs::read(&path).unwrap(), content);
            assert!(!place.path().join("4194303-1").exists());
        }
        assert_eq!(counted(place.path()), (3, 3, 3));
    }

    #[test]
    fn a_file_that_has_no_totals_of_ours_beside_it_stays() {
        for foreign in [&b"wltotal9 of a later version"[..], b"", b"wltotal1"] {
            let place = tempfile::tempdir().unwrap();
            let name = leave(place.path(), "4194303-0", 5);
            std::fs::write(place.path().join("totals"), foreign).unwrap();
            take_in(place.path(), std::slice::from_ref(&name), PATIENT);
            assert_eq!(std::fs::read(place.path().join("totals")).unwrap(), foreign);
            assert_eq!(counted(place.path()), (5, 5, 0));
        }
    }

    #[test]
    fn many_ends_at_once_and_readers_between_them_lose_nothing() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for serial in 0..40 {
                        let name = leave(path, &format!("{}-{serial}", 4_190_000 + thread), 1);
                        take_in(path, &[name], Duration::from_micros(300));
                    }
                });
            }
            scope.spawn(move || {
                for _ in 0..40 {
                    assert!(counted(path).0 <= 160);
                }
            });
        });
        assert_eq!(counted(path).0, 160);
    }
}
