//! All that telemetry files say, of the calling user and, where they may be read, of all others.
//!
//! Whose counts they are is what the kernel says of a folder and its files; what a header says of that is not asked. A
//! folder in shared memory counts if it belongs to the user whose number is its name, and no other user may make files in
//! it. Each user has the same bounded number of files and bytes, so that no user's files keep others' from being read.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use super::file::{born, is_gone, whose};
use super::fold;
use super::folder::{Folder, own_path, shared};
use super::read::{Budget, Snapshot, Unread, read_file};
use super::totals::{Found, Totals};
use crate::sys::process::effective_uid;

/// Most users whose folders are read. Those with the lowest numbers are: one user may have many thousands of the high ones
/// for containers.
const MOST_USERS: usize = 256;

/// How long a reader waits for the lock, when something is to be taken in.
const PATIENCE: Duration = Duration::from_millis(5);

/// How often a reader begins anew because files moved into the totals meanwhile.
const TRIES: usize = 8;

/// What one user's files say.
#[derive(Debug, Clone)]
pub struct User {
    /// The owner of the folder and of all files in it.
    pub uid: u32,
    /// Counts of processes that run.
    pub living: Vec<Snapshot>,
    /// Counts of processes that have ended and are not in the totals yet.
    pub ended: Vec<Snapshot>,
    /// What is in the totals.
    pub totals: Totals,
    /// Files that were not read: beyond what one user may have, or not to be read now.
    pub left_out: u64,
    /// Files that are not what their place and name say.
    pub wrong: u64,
}

/// What all files say.
#[derive(Debug, Clone, Default)]
pub struct Scan {
    /// By number.
    pub users: Vec<User>,
    /// Folders that are not read: another user's than their names say, or open to other users.
    pub wrong_folders: u64,
    /// Folders that the caller may not read, or that are too many.
    pub unread_folders: u64,
}

/// A file that was read.
pub(super) struct Read {
    name: CString,
    pub(super) snapshot: Snapshot,
    living: bool,
}

/// What lies in a folder at one moment.
pub(super) struct Seen {
    pub(super) files: Vec<Read>,
    pub(super) totals: Totals,
    left_out: u64,
    wrong: u64,
    /// Whether there was anything on its way that a process left there.
    stranded: Vec<CString>,
}

/// Reads a folder. A file whose counts move into the totals meanwhile is counted once.
pub(super) fn look(folder: &Folder, budget: &mut Budget) -> Seen {
    let mut tries = 0;
    loop {
        let mut spent = budget.clone();
        let (seen, steady) = look_once(folder, &mut spent);
        tries += 1;
        if steady || tries == TRIES {
            *budget = spent;
            return seen;
        }
    }
}

fn look_once(folder: &Folder, budget: &mut Budget) -> (Seen, bool) {
    let mut seen =
        Seen { files: Vec::new(), totals: Totals::default(), left_out: 0, wrong: 0, stranded: Vec::new() };
    match Totals::read(folder) {
        Found::Totals(totals) => seen.totals = totals,
        Found::None => {}
        Found::Foreign => seen.wrong += 1,
        Found::NotNow => seen.left_out += 1,
    }
    let listed = folder.list();
    seen.left_out += u64::from(listed.more);
    let taken_in = seen.totals.taken_in();
    let folding = listed.folding.into_iter().filter(|name| !taken_in.contains(name));
    let names: Vec<_> = listed
        .files
        .into_iter()
        .map(|(name, pid)| (name, Some(pid)))
        .chain(folding.map(|name| (name, None)))
        .collect();
    let mut moved = false;
    for (name, pid) in names {
        match read_file(folder, &name, budget) {
            Ok((mut snapshot, ended)) => {
                let living = !ended && pid.is_some_and(|pid| is_living(folder, pid, &snapshot));
                snapshot.header.pid = pid.unwrap_or(snapshot.header.pid);
                if pid.is_none() {
                    seen.stranded.push(name.clone());
                }
                seen.files.push(Read { name, snapshot, living });
            }
            Err(Unread::Gone) => moved = true,
            Err(Unread::NotNow) => seen.left_out += 1,
            // Its process may be about to write it, or have left it so.
            Err(Unread::Wrong) => match pid {
                Some(pid) if folder.is_ours() && is_gone(pid) => seen.stranded.push(name),
                _ => seen.wrong += 1,
            },
        }
    }
    let steady = !moved && Totals::generation_in(folder) == seen.totals.generation();
    (seen, steady)
}

/// Whether a file is that of a process which runs: a number serves again for another process.
fn is_living(folder: &Folder, pid: u32, snapshot: &Snapshot) -> bool {
    if is_gone(pid) {
        return false;
    }
    let same = snapshot.header.born == 0 || born(pid).is_none_or(|born| born == snapshot.header.born);
    same && (folder.owner() == effective_uid() || is_of(pid, folder.owner()))
}

/// Whether one of a process's user ids is this one.
fn is_of(pid: u32, uid: u32) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return false };
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    line.is_some_and(|ids| ids.split_ascii_whitespace().any(|id| id.parse() == Ok(uid)))
}

/// Reads a folder, after what ended in it was taken in if it is the calling user's.
fn read_folder(path: &Path) -> Option<(Folder, Seen)> {
    let folder = Folder::open(path)?;
    let mut seen = look(&folder, &mut Budget::of_a_user());
    if folder.is_ours() {
        let ended = seen.files.iter().filter(|file| !file.living).map(|file| &file.name);
        let exact = |name: &&CString| whose(&folder, name).is_some();
        let mut names: Vec<CString> = ended.chain(&seen.stranded).filter(exact).cloned().collect();
        names.sort();
        names.dedup();
        if !names.is_empty() {
            fold::take_in(path, &names, PATIENCE);
            seen = look(&folder, &mut Budget::of_a_user());
        }
    }
    Some((folder, seen))
}

/// Every folder that is to be read, the caller's own first, whatever it is called.
fn read_folders(mut each: impl FnMut(Folder, Seen)) -> (u64, u64) {
    let own = own_path();
    let others = shared().into_iter().map(|(uid, path)| (Some(uid), path)).filter(|(_, path)| *path != own);
    let folders: Vec<_> = std::iter::once((None, own.clone())).chain(others).collect();
    let (mut wrong, mut unread) = (0, folders.len().saturating_sub(MOST_USERS) as u64);
    for (uid, path) in folders.into_iter().take(MOST_USERS) {
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        let named = uid.is_none_or(|uid| uid == metadata.uid());
        if !metadata.is_dir() || !named || metadata.mode() & 0o022 != 0 {
            wrong += 1;
            continue;
        }
        match read_folder(&path) {
            // What was exchanged meanwhile is looked at the next time.
            Some((folder, seen)) if folder.owner() == metadata.uid() && folder.is_closed() => {
                each(folder, seen)
            }
            Some(_) => wrong += 1,
            None => unread += 1,
        }
    }
    (wrong, unread)
}

/// What the files of the calling user and, where the caller may read them, of all others say. The calling user's files of
/// processes that have ended move into its totals; nothing of other users' is changed. A user may be there twice: with a
/// folder in shared memory, and with the one that `WATTLOCK_TELEMETRY_DIR` names.
pub fn scan() -> Scan {
    let mut users = Vec::new();
    let (wrong_folders, unread_folders) = read_folders(|folder, seen| {
        let (living, ended): (Vec<Read>, Vec<Read>) = seen.files.into_iter().partition(|file| file.living);
        let snapshots = |files: Vec<Read>| files.into_iter().map(|file| file.snapshot).collect();
        users.push(User {
            uid: folder.owner(),
            living: snapshots(living),
            ended: snapshots(ended),
            totals: seen.totals,
            left_out: seen.left_out,
            wrong: seen.wrong,
        });
    });
    users.sort_by_key(|user| user.uid);
    Scan { users, wrong_folders, unread_folders }
}

/// Every living process's counts, of the calling user's or (if the caller may read them) all users' processes. What the
/// calling user's ended processes left moves into its totals; other users' folders are left as they are, because the owner
/// of a folder decides what its names lead to. Unreadable ones are passed over.
pub fn read_all() -> Vec<Snapshot> {
    let mut found = read_running();
    found.retain(Snapshot::is_used);
    found
}

/// The same, with processes that have used nothing yet: a later look then knows that they began at nothing.
pub fn read_running() -> Vec<Snapshot> {
    let mut found: Vec<Snapshot> = Vec::new();
    read_folders(|_, seen| found.extend(living(seen)));
    found.sort_by_key(|snapshot| snapshot.header.pid);
    found
}

/// The counts of the calling user's processes with these ids, from its own folder.
pub fn read_own(pids: &[u32]) -> Vec<Snapshot> {
    let seen = read_folder(&own_path()).filter(|(folder, _)| folder.is_ours());
    let found = seen.into_iter().flat_map(|(_, seen)| living(seen));
    found.filter(|snapshot| pids.contains(&snapshot.header.pid)).collect()
}

fn living(seen: Seen) -> impl Iterator<Item = Snapshot> {
    seen.files.into_iter().filter(|file| file.living).map(|file| file.snapshot)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use super::super::file::HEADER_BYTES;
    use super::super::read::encode;
    use super::*;
    use crate::telemetry::{Header, Identity};

    fn header() -> Header {
        Identity { program: "a".into(), engines: vec!["x".into()], ..Identity::default() }.header()
    }

    fn write(path: &Path, bytes: &[u8], mode: u32) {
        fs::write(path, bytes).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Three requests.
    fn content(header: &Header) -> Vec<u8> {
        encode(header, 2, |row, _, kind, counter| if (row, kind, counter) == (1, Some(0), 0) { 3 } else { 0 })
    }

    fn found(place: &Path) -> (usize, u64) {
        let (_, seen) = read_folder(place).unwrap();
        (seen.files.len(), seen.wrong)
    }

    #[test]
    fn what_lies_behind_a_link_is_neither_read_nor_removed() {
        let (target, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let precious = target.path().join("4194303-0");
        fs::write(&precious, b"precious").unwrap();
        let linked = place.path().join("wattlock-0");
        std::os::unix::fs::symlink(target.path(), &linked).unwrap();
        assert!(read_folder(&linked).is_none());
        std::os::unix::fs::symlink(&precious, place.path().join(format!("{}-7", std::process::id())))
            .unwrap();
        assert_eq!(found(place.path()), (0, 1));
        assert!(precious.exists());
    }

    #[test]
    fn a_number_that_serves_again_does_not_bring_the_dead_back() {
        let place = tempfile::tempdir().unwrap();
        let header = header();
        assert!(header.born > 0);
        let write = |name: &str, born: u64| -> PathBuf {
            let path = place.path().join(format!("{}-{name}", header.pid));
            write(&path, &content(&Header { born, ..header.clone() }), 0o600);
            path
        };
        let (mine, unknown, other) = (write("1", header.born), write("2", 0), write("3", header.born - 1));
        let (_, seen) = read_folder(place.path()).unwrap();
        assert!(mine.exists() && unknown.exists());
        // Unless another thread of this test held the lock, its counts are in the totals now; they are there once anyhow.
        let waiting = seen.files.iter().filter(|file| !file.living).count();
        assert_eq!(seen.files.len() - waiting, 2);
        assert_eq!(other.exists(), waiting == 1);
        let summed: u64 =
            seen.totals.sums().filter(|sum| sum.counter == "requests").map(|sum| sum.value).sum();
        assert_eq!(summed, if waiting == 1 { 0 } else { 3 });
    }

    #[test]
    fn a_pipe_keeps_no_reader_waiting() {
        let place = tempfile::tempdir().unwrap();
        let made = std::process::Command::new("mkfifo").arg(place.path().join("1-0")).status().unwrap();
        let totals = std::process::Command::new("mkfifo").arg(place.path().join("totals")).status().unwrap();
        assert!(made.success() && totals.success());
        assert_eq!(found(place.path()), (0, 2));
    }

    #[test]
    fn only_files_of_the_folders_owner_that_nobody_else_writes_count() {
        let place = tempfile::tempdir().unwrap();
        let pid = std::process::id();
        let at = |serial: u32| place.path().join(format!("{pid}-{serial}"));
        write(&at(0), &content(&header()), 0o600);
        assert_eq!(found(place.path()), (1, 0));
        write(&at(1), &content(&header()), 0o622);
        write(&at(2), &content(&header()), 0o600);
        fs::hard_link(at(2), place.path().join("another")).unwrap();
        fs::create_dir(at(3)).unwrap();
        write(&at(4), b"", 0o600);
        write(&at(5), &vec![b'7'; HEADER_BYTES as usize + 4096], 0o600);
        write(&at(6), &content(&header()), 0o600);
        fs::File::options().write(true).open(at(6)).unwrap().set_len(9 << 20).unwrap();
        assert_eq!(found(place.path()), (1, 6));
        if effective_uid() == 0 {
            write(&at(7), &content(&header()), 0o600);
            std::os::unix::fs::chown(at(7), Some(12_345), None).unwrap();
            assert_eq!(found(place.path()), (1, 7));
        }
    }

    #[test]
    fn a_user_with_many_files_has_a_bounded_part_of_the_readers_time() {
        let place = tempfile::tempdir_in("/dev/shm").unwrap();
        let pid = std::process::id();
        for serial in 0..1500 {
            write(&place.path().join(format!("{pid}-{serial}")), &content(&header()), 0o600);
        }
        let (_, seen) = read_folder(place.path()).unwrap();
        assert_eq!((seen.files.len(), seen.left_out), (1024, 476));
        // And of its bytes: 8 MiB without a hole.
        let place = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut bytes = content(&Header { rows: usize::MAX, ..header() });
        bytes.resize(8 << 20, 1);
        for serial in 0..6 {
            write(&place.path().join(format!("{pid}-{serial}")), &bytes, 0o600);
        }
        let (_, seen) = read_folder(place.path()).unwrap();
        assert_eq!((seen.files.len(), seen.left_out), (4, 2));
        assert!(
            seen.files[0].snapshot.cells.iter().all(|cell| cell.requests == u64::MAX),
            "sums do not wrap"
        );
    }

    #[test]
    fn a_file_that_shrinks_while_it_is_read_ends_nothing() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join(format!("{}-0", std::process::id()));
        let bytes = content(&header());
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (ended, file) = (&done, path.clone());
            write(&path, &bytes, 0o600);
            scope.spawn(move || {
                let file = fs::File::options().write(true).open(file).unwrap();
                while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                    for length in [0, 70_000, HEADER_BYTES + 8, 100, 8 << 20] {
                        file.set_len(length).unwrap();
                    }
                    std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
                }
            });
            for _ in 0..300 {
                assert!(found(place.path()).0 <= 1);
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}
