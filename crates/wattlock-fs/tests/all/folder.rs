//! Contents in a real folder.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::support;

use std::fs::OpenOptions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::{Duration, SystemTime};

use wattlock_fs::Error;
use wattlock_fs::content::Contents;
use wattlock_fs::store::{FolderStore, JOURNAL, Place};

use support::{crypto, pattern, volume};

fn file(folder: &Path, name: &str) -> (std::fs::File, Place) {
    let path = folder.join(name);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    let meta = file.metadata().unwrap();
    (file, Place { inode: (meta.dev(), meta.ino()), path: name.into() })
}

fn start(folder: &Path) -> Result<Contents<FolderStore>, Error> {
    let (contents, _) = Contents::start(FolderStore::open(folder).unwrap(), &volume(), &mut crypto())?;
    Ok(contents)
}

#[test]
fn what_was_not_checkpointed_is_there_after_a_restart_and_a_rename() {
    let folder = tempfile::tempdir().unwrap();
    let mut crypto = crypto();
    let contents = start(folder.path()).unwrap();
    let (backing, place) = file(folder.path(), "a");
    let content = contents.create(backing, place, &mut crypto).unwrap();
    let mut bytes = pattern(100_000, 1);
    content.write(&bytes, 0, &mut crypto).unwrap();
    content.sync(&mut crypto).unwrap();
    content.write(b"other", 5000, &mut crypto).unwrap();
    bytes[5000..5005].copy_from_slice(b"other");
    content.zero(8192, 65_536, &mut crypto).unwrap();
    bytes[8192..8192 + 65_536].fill(0);
    drop((content, contents));
    std::fs::create_dir(folder.path().join("below")).unwrap();
    std::fs::rename(folder.path().join("a"), folder.path().join("below/b")).unwrap();
    let before = SystemTime::UNIX_EPOCH + Duration::new(1_000_000, 123);
    let renamed = OpenOptions::new().write(true).open(folder.path().join("below/b")).unwrap();
    renamed.set_modified(before).unwrap();

    let contents = start(folder.path()).unwrap();
    assert!(std::fs::metadata(folder.path().join(JOURNAL)).unwrap().len() <= 1 << 20);
    let (backing, place) = file(folder.path(), "below/b");
    // What the journal had of it is in place: the time is the one that was shown.
    assert_eq!(backing.metadata().unwrap().modified().unwrap(), before + Duration::from_secs(2));
    let content = contents.open(backing, place, &mut crypto).unwrap();
    let mut got = vec![0; 100_001];
    assert_eq!(content.read(&mut got, 0, &mut crypto).unwrap(), 100_000);
    assert!(got[..100_000] == bytes);
}

/// Does something in a new folder as a user that permissions count for.
fn as_user(work: impl FnOnce(&Path) + Send) {
    let folder = tempfile::tempdir().unwrap();
    if !rustix::process::geteuid().is_root() {
        return work(folder.path());
    }
    chown(folder.path(), Some(65534), Some(65534)).unwrap();
    // The calls of a thread are its own user's.
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let (user, group) = (rustix::fs::Uid::from_raw(65534), rustix::fs::Gid::from_raw(65534));
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_gid(group, group, group).unwrap();
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            work(folder.path());
        });
        worker.join().unwrap();
    });
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn whole(contents: &Contents<FolderStore>, folder: &Path, name: &str) -> Vec<u8> {
    let (mut crypto, (backing, place)) = (crypto(), file(folder, name));
    let content = contents.open(backing, place, &mut crypto).unwrap();
    let mut bytes = vec![0; content.len() as usize];
    content.read(&mut bytes, 0, &mut crypto).unwrap();
    bytes
}

#[test]
fn what_was_synced_is_there_after_its_owner_closed_the_folder() {
    as_user(|folder| {
        let mut crypto = crypto();
        let (outer, inner) = (folder.join("d"), folder.join("d/e"));
        std::fs::create_dir_all(&inner).unwrap();
        let contents = start(folder).unwrap();
        let mut bytes = pattern(100_000, 1);
        for name in ["d/f", "d/e/f"] {
            let (backing, place) = file(folder, name);
            let content = contents.create(backing, place, &mut crypto).unwrap();
            content.write(&bytes, 0, &mut crypto).unwrap();
            content.sync(&mut crypto).unwrap();
            content.write(b"NEW!", 8192, &mut crypto).unwrap();
            content.sync(&mut crypto).unwrap();
        }
        bytes[8192..8196].copy_from_slice(b"NEW!");
        drop(contents);
        set_mode(&inner.join("f"), 0o400);
        set_mode(&inner, 0);
        set_mode(&outer, 0);
        let contents = start(folder).unwrap();
        assert_eq!(mode(&outer), 0);
        set_mode(&outer, 0o700);
        assert_eq!(mode(&inner), 0);
        set_mode(&inner, 0o700);
        assert_eq!(mode(&inner.join("f")), 0o400);
        set_mode(&inner.join("f"), 0o600);
        for name in ["d/f", "d/e/f"] {
            assert!(whole(&contents, folder, name) == bytes, "{name}");
        }
    });
}

/// A copy of a volume has other inodes. What was acknowledged is in the journal, which knows files by theirs.
#[test]
fn a_copy_of_a_volume_that_ended_in_a_crash_has_what_was_acknowledged() {
    let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut crypto = crypto();
    let contents = start(folder.path()).unwrap();
    let names = ["overwritten", "cut", "renamed", "removed"];
    let mut expected = Vec::new();
    for (seed, name) in names.into_iter().enumerate() {
        let (backing, place) = file(folder.path(), name);
        let content = contents.create(backing, place, &mut crypto).unwrap();
        expected.push(pattern(50_000, seed as u64 + 1));
        content.write(&expected[seed], 0, &mut crypto).unwrap();
        content.sync(&mut crypto).unwrap();
    }
    contents.checkpoint(&mut crypto).unwrap();
    for (at, name) in names.into_iter().enumerate() {
        let (backing, place) = file(folder.path(), name);
        let content = contents.open(backing, place, &mut crypto).unwrap();
        content.write(b"other", 5000, &mut crypto).unwrap();
        expected[at][5000..5005].copy_from_slice(b"other");
        if name == "cut" {
            content.set_len(9_999, &mut crypto).unwrap();
            expected[at].truncate(9_999);
        }
        content.sync(&mut crypto).unwrap();
    }
    drop(contents);
    std::fs::create_dir(folder.path().join("below")).unwrap();
    std::fs::rename(folder.path().join("renamed"), folder.path().join("below/b")).unwrap();
    std::fs::remove_file(folder.path().join("removed")).unwrap();

    std::fs::create_dir(copy.path().join("below")).unwrap();
    let there = ["below/b", JOURNAL, "cut", "overwritten"];
    for name in there {
        let (from, to) = (folder.path().join(name), copy.path().join(name));
        std::fs::copy(&from, &to).unwrap();
        let changed = from.metadata().unwrap().modified().unwrap();
        OpenOptions::new().write(true).open(to).unwrap().set_modified(changed).unwrap();
    }
    // A journal of an earlier moment than the files is not brought in without being asked.
    let journal = OpenOptions::new().write(true).open(copy.path().join(JOURNAL)).unwrap();
    let written = journal.metadata().unwrap().modified().unwrap();
    journal.set_modified(written - Duration::from_secs(60)).unwrap();
    assert!(matches!(start(copy.path()), Err(Error::Damaged(what)) if what.contains("older than")));
    journal.set_modified(written).unwrap();
    for folder in [copy.path(), folder.path()] {
        let contents = start(folder).unwrap();
        for (name, wanted) in [("overwritten", 0), ("cut", 1), ("below/b", 2)] {
            let (backing, place) = file(folder, name);
            let content = contents.open(backing, place, &mut crypto).unwrap();
            let mut got = vec![0; 60_000];
            let len = content.read(&mut got, 0, &mut crypto).unwrap();
            assert!(got[..len] == expected[wanted], "{name}");
        }
    }
}

/// Makes files as a power cut leaves them: the length, and not all of the bytes.
fn tear(folder: &Path, names: &[String]) {
    let mut crypto = crypto();
    let contents = start(folder).unwrap();
    for name in names {
        std::fs::create_dir_all(folder.join(name).parent().unwrap()).unwrap();
        let (backing, place) = file(folder, name);
        let content = contents.create(backing, place, &mut crypto).unwrap();
        content.write(&pattern(20_000, 1), 0, &mut crypto).unwrap();
        let backing = OpenOptions::new().write(true).open(folder.join(name)).unwrap();
        let len = backing.metadata().unwrap().len();
        backing.set_len(96 + 2 * 4136).unwrap();
        backing.set_len(len).unwrap();
    }
}

/// Whether a torn file was mended without being opened.
fn is_mended(folder: &Path, name: &str) -> bool {
    folder.join(name).metadata().unwrap().len() == 96 + 2 * 4136 + 40
}

#[test]
fn folders_that_are_renamed_while_torn_files_are_looked_for_are_not_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let names: Vec<String> = (0..20).map(|number| format!("d{number}/f")).collect();
    tear(folder, &names);
    let contents = start(folder).unwrap();
    let renamed = std::cell::Cell::new(false);
    // After the first file.
    let rename = || {
        for number in (0..20).filter(|_| !renamed.get()) {
            let (from, to) = (folder.join(format!("d{number}")), folder.join(format!("e{number}")));
            contents.while_moving(&[None], || std::fs::rename(from, to).unwrap());
        }
        renamed.set(true);
        false
    };
    assert!(contents.look_through(true, &rename, &mut crypto()).unwrap());
    for number in 0..20 {
        assert!(is_mended(folder, &format!("e{number}/f")), "{number}");
    }
    assert!(!contents.may_be_torn());
}

#[test]
fn a_folder_that_is_moved_to_where_torn_files_were_looked_for_already_is_not_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    tear(folder, &["p", "q"].map(|parent| [format!("{parent}/f"), format!("{parent}/x/f")]).concat());
    let contents = start(folder).unwrap();
    let seen = std::cell::Cell::new(0);
    let moving = || {
        seen.set(seen.get() + 1);
        // One of the two was looked through, and nothing in the other.
        if seen.get() == 2 {
            let first = if is_mended(folder, "p/f") { ("p", "q") } else { ("q", "p") };
            let (from, to) = (folder.join(first.1).join("x"), folder.join(first.0).join("y"));
            contents.while_moving(&[None], || std::fs::rename(from, to).unwrap());
        }
        false
    };
    assert!(contents.look_through(true, &moving, &mut crypto()).unwrap());
    assert!(seen.get() > 4, "once more");
    for name in ["p/f", "p/x/f", "p/y/f", "q/f", "q/x/f", "q/y/f"] {
        assert!(!folder.join(name).exists() || is_mended(folder, name), "{name}");
    }
}

#[test]
fn a_torn_file_is_found_after_its_owner_closed_the_folder() {
    as_user(|folder| {
        tear(folder, &["d/e/f".to_owned()]);
        let contents = start(folder).unwrap();
        set_mode(&folder.join("d/e/f"), 0);
        set_mode(&folder.join("d/e"), 0o100);
        set_mode(&folder.join("d"), 0);
        assert!(contents.look_through(true, &|| false, &mut crypto()).unwrap());
        assert_eq!(mode(&folder.join("d")), 0);
        set_mode(&folder.join("d"), 0o700);
        assert_eq!(mode(&folder.join("d/e")), 0o100);
        assert_eq!(mode(&folder.join("d/e/f")), 0);
        assert!(is_mended(folder, "d/e/f"));
    });
}

#[test]
fn a_volume_is_started_once() {
    let folder = tempfile::tempdir().unwrap();
    let first = start(folder.path()).unwrap();
    assert!(start(folder.path()).is_err());
    drop(first);
    start(folder.path()).unwrap();
}

#[test]
fn a_later_writable_opener_makes_a_file_writable() {
    let folder = tempfile::tempdir().unwrap();
    let mut crypto = crypto();
    let contents = start(folder.path()).unwrap();
    let (backing, place) = file(folder.path(), "a");
    contents.create(backing, place.clone(), &mut crypto).unwrap();
    let readable = std::fs::File::open(folder.path().join("a")).unwrap();
    let content = contents.open(readable, place, &mut crypto).unwrap();
    assert!(content.write(b"text", 0, &mut crypto).is_err());
    let (backing, place) = file(folder.path(), "a");
    contents.open(backing, place, &mut crypto).unwrap().write(b"text", 0, &mut crypto).unwrap();
    let mut got = [0; 9];
    assert_eq!(content.read(&mut got, 0, &mut crypto).unwrap(), 4);
}

#[test]
fn a_planted_link_is_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let outside = tempfile::NamedTempFile::new().unwrap();
    std::os::unix::fs::symlink(outside.path(), folder.path().join(JOURNAL)).unwrap();
    assert!(start(folder.path()).is_err());
    assert_eq!(outside.as_file().metadata().unwrap().len(), 0);
}
