//! Folders of hostile users, of ended processes, and of many.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::*;
use crate::telemetry::Identity;
use crate::telemetry::file::HEADER_BYTES;
use crate::telemetry::read::encode;

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
    std::os::unix::fs::symlink(&precious, place.path().join(format!("{}-7", std::process::id()))).unwrap();
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
    let summed: u64 = seen.totals.sums().filter(|sum| sum.counter == "requests").map(|sum| sum.value).sum();
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
    assert!(seen.files[0].snapshot.cells.iter().all(|cell| cell.requests == u64::MAX), "sums do not wrap");
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
        let (count, text) =
            cells.fold((0, 0), |(count, text), cell| (count + 1, text + cell.engine.len() + cell.kind.len()));
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
fn only_the_folders_owners_processes_run_and_those_that_gave_up_root() {
    let place = tempfile::tempdir().unwrap();
    let folder = Folder::open(place.path()).unwrap();
    let (header, here) = (header(), Namespaces::here());
    let of = |owner| Folder::of_another(&folder, owner);
    let (pid, begun, uid) = (std::process::id(), header.born, effective_uid());
    let living = |folder: &Folder, header: &Header| is_living(folder, pid, header, here);
    assert!(
        !living(&of(uid + 1), &header),
        "that it began then is no secret: another user's file may say so"
    );
    assert!(living(&of(0), &header), "root's process, which may have given that up since");
    assert_eq!(living(&of(0), &Header { born: 0, ..header.clone() }), uid == 0, "the user is asked");
    assert!(living(&folder, &Header { born: 0, ..header.clone() }));
    assert!(may_be_of(pid, uid) && !may_be_of(pid, uid + 1));
    assert!(may_be_of(4_194_303, uid), "it may be hidden");
    assert!(!living(&folder, &Header { born: begun - 1, ..header.clone() }));
    for pid_ns in [0, header.pid_ns + 1] {
        let elsewhere = Header { pid_ns, born: begun - 1, ..header.clone() };
        assert!(is_living(&folder, 4_194_303, &elsewhere, here), "it cannot be seen from here");
    }
}

/// As a user makes it who replaces its totals all the time.
#[test]
fn a_reading_that_begins_anew_has_no_more_time_and_holds_nothing_twice() {
    let (mut budget, mut tries, mut files) = (Budget::of_a_user(), 0, 0);
    let held = |budget: &mut Budget| budget.hold((10_000, 1)).is_some();
    let seen = until_steady(&mut budget, |budget| {
        assert!(held(budget) && !held(budget), "as much as at the first try");
        tries += 1;
        files += (0..200).filter(|_| budget.open().is_some()).count();
        (Seen::default(), false)
    });
    assert_eq!((seen.left_out, tries, files), (1, TRIES, 1024), "what it says is of no one moment");
    // Totals of a later version are no reason to begin anew.
    let place = tempfile::tempdir().unwrap();
    write(&place.path().join("totals"), b"wltotal9and more than that", 0o600);
    let pid = std::process::id();
    (0..200).for_each(|at| write(&place.path().join(format!("{pid}-{at}")), &content(&header()), 0o600));
    let seen = read(place.path());
    assert_eq!((seen.files.len(), seen.left_out, seen.wrong), (200, 0, 1));
    assert!(seen.files.iter().all(|file| file.snapshot.uid == effective_uid()));
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
    let scan = scan(&[], |user| seen |= user.living.iter().any(|one| one.header.program == program));
    let own = read_own(&[std::process::id()]).iter().any(|one| one.header.program == program);
    foreign.iter().for_each(|path| fs::remove_dir(path).unwrap());
    fs::remove_dir_all(&mine).unwrap();
    assert!(seen && own && scan.wrong_folders >= 300, "{scan:?}");
}

/// As a user has them for its containers.
#[test]
fn the_user_ids_of_one_user_push_no_other_user_out() {
    if effective_uid() != 0 {
        return eprintln!("skipped: only root makes another user's folder");
    }
    let uids: Vec<u32> = (0..300).map(|at| 2_000_000_000 + at).chain([3_000_000_000]).collect();
    let path = |uid: &u32| PathBuf::from(format!("/dev/shm/wattlock-{uid}"));
    for uid in &uids {
        fs::create_dir(path(uid)).unwrap();
        fs::set_permissions(path(uid), fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(path(uid), Some(*uid), None).unwrap();
    }
    let mut seen = Vec::new();
    let scan = scan(&[], |user| seen.push(user.uid));
    uids.iter().for_each(|uid| fs::remove_dir(path(uid)).unwrap());
    let of_range = seen.iter().filter(|uid| range_of(**uid) == range_of(uids[0])).count();
    assert_eq!((of_range, seen.contains(&3_000_000_000)), (MOST_OF_A_RANGE, true));
    assert!(scan.unread_folders as usize >= 300 - MOST_OF_A_RANGE && !scan.incomplete, "{scan:?}");
}

/// As a user has them whose name others had so often.
#[test]
fn a_folder_beyond_those_of_a_user_is_left_out_and_that_users_alone() {
    if effective_uid() != 0 {
        return eprintln!("skipped: only root makes another user's folder");
    }
    let uid = 3_100_000_000_u32;
    let path = |second: usize| PathBuf::from(format!("/dev/shm/wattlock-{uid}.{second}"));
    for second in 1..=MOST_FOLDERS + 1 {
        fs::create_dir(path(second)).unwrap();
        fs::set_permissions(path(second), fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(path(second), Some(uid), None).unwrap();
    }
    let mut left_out = Vec::new();
    let scan = scan(&[], |user| left_out.extend((user.uid == uid).then_some(user.left_out)));
    (1..=MOST_FOLDERS + 1).for_each(|second| fs::remove_dir(path(second)).unwrap());
    assert_eq!((left_out.len(), left_out.iter().sum::<u64>()), (MOST_FOLDERS + 1, 1));
    assert!(!scan.incomplete, "{scan:?}");
}

#[test]
fn a_folder_without_room_for_another_program_leaves_something_out() {
    let place = tempfile::tempdir().unwrap();
    let make = |at: u64| write(&place.path().join(format!("1-{at}")), b"", 0o600);
    (1..MOST_FILES).for_each(make);
    assert_eq!(read(place.path()).left_out, 0);
    make(MOST_FILES);
    assert_eq!(read(place.path()).left_out, 1);
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
