//! All that telemetry files say, of the calling user and, where they may be read, of all others.
//!
//! Whose counts they are is what the kernel says of a folder and its files; what a header says of that is not asked. A
//! folder in shared memory counts if it belongs to the user whose number is its name, and no other user may make files in
//! it: that is judged before anything else, so that the folders that count are bounded, and others push none of them out.
//! Each user has the same bounded number of files, bytes, counts and names, so that no user's files keep others' from
//! being read, and one user's at a time are held.

use std::ffi::CString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;

use super::file::{Namespaces, born, whose};
use super::folder::{Folder, named, own, shared};
use super::read::{Budget, Snapshot, Unread, passes, read_file};
use super::totals::{Found, Totals};
use super::{Header, fold};
use crate::sys::process::effective_uid;

/// Most users whose folders are read. Those with the lowest numbers are: one user may have many thousands of the high ones
/// for containers.
const MOST_USERS: usize = 256;
/// Most folders of one user: the one that all its processes have, and what is left of times when another user had its name.
const MOST_FOLDERS: usize = 8;

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

/// What was passed over besides.
#[derive(Debug, Clone, Default)]
pub struct Scan {
    /// Folders that are not read: another user's than their names say, open to other users, or with something mounted there.
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
}

/// Reads a folder. A file whose counts move into the totals meanwhile is counted once.
pub(super) fn look(folder: &Folder, budget: &mut Budget, here: Namespaces) -> Seen {
    let mut tries = 0;
    loop {
        let mut spent = budget.clone();
        let (seen, steady) = look_once(folder, &mut spent, here);
        tries += 1;
        if steady || tries == TRIES {
            *budget = spent;
            return seen;
        }
    }
}

fn look_once(folder: &Folder, budget: &mut Budget, here: Namespaces) -> (Seen, bool) {
    let mut seen = Seen { files: Vec::new(), totals: Totals::default(), left_out: 0, wrong: 0 };
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
                let living = !ended && pid.is_some_and(|pid| is_living(folder, pid, &snapshot.header, here));
                snapshot.header.pid = pid.unwrap_or(snapshot.header.pid);
                seen.files.push(Read { name, snapshot, living });
            }
            Err(Unread::Gone) => moved = true,
            Err(Unread::NotNow) => seen.left_out += 1,
            // Its process may be about to write it, or have left it so.
            Err(Unread::Wrong) => seen.wrong += 1,
        }
    }
    let steady = !moved && Totals::generation_in(folder) == seen.totals.generation();
    (seen, steady)
}

/// Whether a file is that of a process which runs, or may run: a number serves again for another process, and is another's
/// in another namespace. A process that gave up its user is still the one that began then.
fn is_living(folder: &Folder, pid: u32, header: &Header, here: Namespaces) -> bool {
    if header.is_gone(pid, here) {
        return false;
    }
    let same = !header.is_of(here) || (header.born != 0 && born(pid) == Some(header.born));
    same || folder.owner() == effective_uid() || is_of(pid, folder.owner())
}

/// Whether one of a process's user ids is this one.
fn is_of(pid: u32, uid: u32) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return false };
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    line.is_some_and(|ids| ids.split_ascii_whitespace().any(|id| id.parse() == Ok(uid)))
}

/// Reads a folder, after what ended in it was taken in if it is the calling user's.
fn read_folder(path: &Path, folder: &Folder, budget: &mut Budget, here: Namespaces) -> Seen {
    let whole = budget.clone();
    let seen = look(folder, budget, here);
    if !folder.is_ours() {
        return seen;
    }
    let ended = seen.files.iter().filter(|file| !file.living).map(|file| &file.name);
    let names: Vec<CString> = ended.filter(|name| whose(folder, name).is_some()).cloned().collect();
    if names.is_empty() {
        return seen;
    }
    drop(seen);
    fold::take_in(path, &names, PATIENCE);
    *budget = whole;
    look(folder, budget, here)
}

/// Every folder that is to be read, the caller's own first, whatever it is called; one folder's content at a time.
fn read_folders(mut each: impl FnMut(Folder, Seen)) -> Scan {
    let (here, mut scan) = (Namespaces::here(), Scan::default());
    let own = named();
    if let Some(path) = &own {
        match Folder::open(path) {
            Some(folder) if folder.is_closed() => {
                let seen = read_folder(path, &folder, &mut Budget::of_a_user(), here);
                each(folder, seen);
            }
            Some(_) => scan.wrong_folders += 1,
            None => scan.unread_folders += u64::from(path.exists()),
        }
    }
    let mut names = shared();
    names.sort_by_key(|name| (name.uid != effective_uid(), *name));
    let (mut users, mut user): (usize, Option<(u32, usize, Budget)>) = (0, None);
    for name in names {
        let path = name.path();
        // The folder that is named stands in the place of the user's own.
        if own.as_ref().is_some_and(|own| *own == path || name.uid == effective_uid()) {
            continue;
        }
        let folder = match Folder::open_or_why(&path) {
            Ok(folder) if folder.owner() == name.uid && folder.is_closed() => folder,
            Err(Errno::NOENT) => continue,
            // Others' folders, if they are not to be seen by all.
            Err(error) if passes(error) || error == Errno::ACCESS => {
                scan.unread_folders += 1;
                continue;
            }
            _ => {
                scan.wrong_folders += 1;
                continue;
            }
        };
        if user.as_ref().is_none_or(|(uid, ..)| *uid != name.uid) {
            users += 1;
            user = Some((name.uid, 0, Budget::of_a_user()));
        }
        let Some((_, folders, budget)) = &mut user else { continue };
        *folders += 1;
        if users > MOST_USERS || *folders > MOST_FOLDERS {
            scan.unread_folders += 1;
            continue;
        }
        let seen = read_folder(&path, &folder, budget, here);
        each(folder, seen);
    }
    scan
}

/// What the files of the calling user and, where the caller may read them, of all others say, one folder at a time: only its
/// content is held. The calling user's files of processes that have ended move into its totals; nothing of other users' is
/// changed. A user may be there several times, with folders of different names. The one that `WATTLOCK_TELEMETRY_DIR` names
/// stands in the place of the caller's own.
pub fn scan(mut each: impl FnMut(User)) -> Scan {
    read_folders(|folder, seen| {
        let (living, ended): (Vec<Read>, Vec<Read>) = seen.files.into_iter().partition(|file| file.living);
        let snapshots = |files: Vec<Read>| files.into_iter().map(|file| file.snapshot).collect();
        each(User {
            uid: folder.owner(),
            living: snapshots(living),
            ended: snapshots(ended),
            totals: seen.totals,
            left_out: seen.left_out,
            wrong: seen.wrong,
        });
    })
}

/// Every living process's counts, of the calling user's or (if the caller may read them) all users' processes. What the
/// calling user's ended processes left moves into its totals; other users' folders are left as they are, because the owner
/// of a folder decides what its names lead to. Unreadable ones are passed over, and those for which there is no room: the
/// calling user's and then those of the users with the lowest numbers come first.
pub fn read_all() -> Vec<Snapshot> {
    let mut found = read_running();
    // A host that has used nothing yet has nothing to tell.
    found.retain(Snapshot::is_used);
    found
}

/// The same, with processes that have used nothing yet: a later look then knows that they began at nothing.
pub fn read_running() -> Vec<Snapshot> {
    let (mut found, mut budget): (Vec<Snapshot>, _) = (Vec::new(), Budget::of_all());
    read_folders(|_, seen| found.extend(living(seen).filter(|one| budget.holds(one))));
    found.sort_by_key(|snapshot| snapshot.header.pid);
    found
}

/// The counts of the calling user's processes with these ids, from its own folders.
pub fn read_own(pids: &[u32]) -> Vec<Snapshot> {
    let (here, mut budget) = (Namespaces::here(), Budget::of_a_user());
    let folders = own().take(MOST_FOLDERS);
    let found = folders.flat_map(|(path, folder)| living(read_folder(&path, &folder, &mut budget, here)));
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
    use crate::telemetry::Identity;

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

    fn read(place: &Path) -> Seen {
        let folder = Folder::open(place).unwrap();
        read_folder(place, &folder, &mut Budget::of_a_user(), Namespaces::here())
    }

    fn found(place: &Path) -> (usize, u64) {
        let seen = read(place);
        (seen.files.len(), seen.wrong)
    }

    #[test]
    fn what_lies_behind_a_link_is_neither_read_nor_removed() {
        let (target, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let precious = target.path().join("4194303-0");
        fs::write(&precious, b"precious").unwrap();
        let linked = place.path().join("wattlock-0");
        std::os::unix::fs::symlink(target.path(), &linked).unwrap();
        assert!(Folder::open(&linked).is_none());
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
        let seen = read(place.path());
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
        let seen = read(place.path());
        assert_eq!((seen.files.len(), seen.left_out), (1024, 476));
        // And of its bytes: 8 MiB without a hole.
        let place = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut bytes = content(&Header { rows: usize::MAX, ..header() });
        bytes.resize(8 << 20, 1);
        for serial in 0..6 {
            write(&place.path().join(format!("{pid}-{serial}")), &bytes, 0o600);
        }
        let seen = read(place.path());
        assert_eq!((seen.files.len(), seen.left_out), (4, 2));
        assert!(
            seen.files[0].snapshot.cells.iter().all(|cell| cell.requests == u64::MAX),
            "sums do not wrap"
        );
    }

    /// A small file may say that there are thousands of counts with long names.
    #[test]
    fn a_user_with_many_counts_or_names_has_a_bounded_part_of_the_readers_memory() {
        let pid = std::process::id();
        let names =
            |count: usize, length: usize| (0..count).map(|at| format!("{at:0length$}")).collect::<Vec<_>>();
        let of = |kinds: usize, length: usize| {
            let (engines, kinds, engine) = (names(32, length), names(kinds, length), Vec::new());
            let cell = vec!["requests".to_owned()];
            let header = Header { engines, kinds, cell, engine, reasons: 0, ..header() };
            encode(&header, 1, |_, _, _, _| 1)
        };
        for (bytes, most) in [(of(256, 3), 1 << 16), (of(32, 900), 1 << 14)] {
            let place = tempfile::tempdir_in("/dev/shm").unwrap();
            for serial in 0..40 {
                write(&place.path().join(format!("{pid}-{serial}")), &bytes, 0o600);
            }
            let seen = read(place.path());
            let cells = seen.files.iter().flat_map(|file| &file.snapshot.cells);
            let (count, text) = cells
                .fold((0, 0), |(count, text), cell| (count + 1, text + cell.engine.len() + cell.kind.len()));
            assert!(count > 0 && count <= most && text <= 16 << 20, "{count} cells, {text} bytes");
            assert_eq!(seen.files.len() as u64 + seen.left_out, 40);
            assert!(seen.left_out > 0);
            // What is held of all users at once is bounded, too.
            let mut all = Budget::of_all();
            let held = (0..1000).flat_map(|_| &seen.files).filter(|file| all.holds(&file.snapshot)).count();
            assert!((1..1000 * seen.files.len()).contains(&held), "{held}");
        }
    }

    #[test]
    fn a_process_that_gave_up_its_user_still_runs() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        let (header, here) = (header(), Namespaces::here());
        let other = Folder::of_another(&folder, effective_uid() + 1);
        let (pid, begun) = (std::process::id(), header.born);
        let living = |folder: &Folder, header: &Header| is_living(folder, pid, header, here);
        assert!(living(&other, &header), "its beginning is enough");
        assert!(!living(&other, &Header { born: 0, ..header.clone() }), "without it the user is asked");
        assert!(living(&folder, &Header { born: 0, ..header.clone() }));
        assert!(!living(&folder, &Header { born: begun - 1, ..header.clone() }));
        for pid_ns in [0, header.pid_ns + 1] {
            let elsewhere = Header { pid_ns, born: begun - 1, ..header.clone() };
            assert!(is_living(&folder, 4_194_303, &elsewhere, here), "it cannot be seen from here");
        }
    }

    #[test]
    fn folders_that_are_not_their_users_push_no_other_out() {
        let name = |uid: u32, more: &str| std::path::PathBuf::from(format!("/dev/shm/wattlock-{uid}{more}"));
        // As if another user had been there first: folders with names of numbers that are not this user's.
        let uid = effective_uid();
        let foreign: Vec<PathBuf> = (0..300).map(|at| name(uid + 100_000 + at, ".1")).collect();
        foreign.iter().for_each(|path| fs::create_dir(path).unwrap());
        let mine = name(uid, ".18446744073709551615");
        let _ = fs::remove_dir_all(&mine);
        fs::create_dir(&mine).unwrap();
        fs::set_permissions(&mine, fs::Permissions::from_mode(0o700)).unwrap();
        let program = "of a second name";
        let header = Header { program: program.into(), ..header() };
        write(&mine.join(format!("{}-0", std::process::id())), &content(&header), 0o600);
        let mut seen = false;
        let scan = scan(|user| seen |= user.living.iter().any(|one| one.header.program == program));
        let own = read_own(&[std::process::id()]).iter().any(|one| one.header.program == program);
        foreign.iter().for_each(|path| fs::remove_dir(path).unwrap());
        fs::remove_dir_all(&mine).unwrap();
        assert!(seen && own && scan.wrong_folders >= 300, "{scan:?}");
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
