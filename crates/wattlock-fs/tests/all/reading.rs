//! A volume that is opened for reading: nothing is written, and what an earlier run left in its journal is read over the
//! files. That this is what a start makes of them, in every crash state, `crash.rs` shows.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use crate::support;
use wattlock::Dispatcher;
use wattlock_fs::Error;
use wattlock_fs::content::{Content, Contents};
use wattlock_fs::store::{FolderStore, JOURNAL, Place};

use support::{crypto, pattern, volume};

fn to_read(path: &Path, crypto: &mut Dispatcher) -> Result<Contents<FolderStore>, Error> {
    let store = FolderStore::open(path).unwrap();
    Contents::start_to_read(store, &volume(), crypto).map(|(contents, _)| contents)
}

fn to_write(path: &Path, crypto: &mut Dispatcher) -> Result<Contents<FolderStore>, Error> {
    let store = FolderStore::open(path).unwrap();
    Contents::start(store, &volume(), crypto).map(|(contents, _)| contents)
}

/// A folder with a file whose journal was not brought into place: its run was killed.
fn killed(crypto: &mut Dispatcher) -> (tempfile::TempDir, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let contents = to_write(folder.path(), crypto).unwrap();
    let path = folder.path().join("file");
    let file = fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let meta = file.metadata().unwrap();
    let place = Place { inode: (meta.dev(), meta.ino()), path: b"file".to_vec() };
    let content = contents.create(file, place, crypto).unwrap();
    let mut model = pattern(30_000, 1);
    content.write(&model, 0, crypto).unwrap();
    content.sync(crypto).unwrap();
    content.write(&pattern(9000, 2), 5000, crypto).unwrap();
    content.append(b"a line", crypto).unwrap();
    content.sync(crypto).unwrap();
    model[5000..14_000].copy_from_slice(&pattern(9000, 2));
    model.extend(b"a line");
    drop((content, contents));
    // A child that another test starts may hold the lock, too, until it is the program that it becomes.
    fs::File::open(folder.path().join(JOURNAL)).unwrap().lock().unwrap();
    (folder, model)
}

fn open(
    contents: &Contents<FolderStore>,
    path: &Path,
    crypto: &mut Dispatcher,
) -> Result<std::sync::Arc<Content<FolderStore>>, Error> {
    let file = fs::File::open(path).unwrap();
    let meta = file.metadata().unwrap();
    contents.open(file, Place { inode: (meta.dev(), meta.ino()), path: b"file".to_vec() }, crypto)
}

fn whole(content: &Content<FolderStore>, crypto: &mut Dispatcher) -> Vec<u8> {
    let mut bytes = vec![0xee; content.len() as usize + 10];
    let len = content.read(&mut bytes, 0, crypto).unwrap();
    bytes.truncate(len);
    bytes
}

/// Everything in a folder.
fn all(path: &Path) -> BTreeMap<String, (Vec<u8>, i64, i64)> {
    let entries = fs::read_dir(path).unwrap().map(Result::unwrap);
    let file = |entry: fs::DirEntry| {
        let meta = entry.metadata().unwrap();
        (fs::read(entry.path()).unwrap(), meta.mtime_nsec(), meta.ctime_nsec())
    };
    entries.map(|entry| (entry.file_name().into_string().unwrap(), file(entry))).collect()
}

#[test]
fn reading_a_volume_writes_nothing_and_shows_what_was_synced() {
    let mut crypto = crypto();
    let (folder, model) = killed(&mut crypto);
    let before = all(folder.path());
    for _ in 0..2 {
        let contents = to_read(folder.path(), &mut crypto).unwrap();
        assert!(contents.is_read_only());
        let meta = fs::metadata(folder.path().join("file")).unwrap();
        assert_eq!(contents.len_of((meta.dev(), meta.ino()), meta.len()), model.len() as u64);
        let content = open(&contents, &folder.path().join("file"), &mut crypto).unwrap();
        assert!(whole(&content, &mut crypto) == model);
        let refused = |done: Result<(), Error>| assert_eq!(done.unwrap_err().errno(), 30);
        refused(content.write(b"x", 0, &mut crypto));
        refused(content.append(b"x", &mut crypto).map(|_| ()));
        refused(content.set_len(5, &mut crypto));
        refused(content.grow(50_000, &mut crypto));
        refused(content.zero(0, 9000, &mut crypto));
        refused(contents.before_create(&mut crypto).map(|_| ()));
        refused(contents.rekey_journal(&mut crypto));
        content.sync(&mut crypto).unwrap();
        assert!(!contents.wants_checkpoint(true));
        contents.checkpoint(&mut crypto).unwrap();
        assert!(whole(&content, &mut crypto) == model);
    }
    assert!(all(folder.path()) == before, "something was written");
    let contents = to_write(folder.path(), &mut crypto).unwrap();
    let content = open(&contents, &folder.path().join("file"), &mut crypto).unwrap();
    assert!(whole(&content, &mut crypto) == model);
}

#[test]
fn readers_share_a_volume_and_a_writer_has_it_alone() {
    let mut crypto = crypto();
    let (folder, _) = killed(&mut crypto);
    let one = to_read(folder.path(), &mut crypto).unwrap();
    let two = to_read(folder.path(), &mut crypto).unwrap();
    assert!(matches!(to_write(folder.path(), &mut crypto), Err(Error::InUse)));
    drop((one, two));
    let writer = to_write(folder.path(), &mut crypto).unwrap();
    assert!(matches!(to_read(folder.path(), &mut crypto), Err(Error::InUse)));
    drop(writer);
    to_read(folder.path(), &mut crypto).unwrap();
}

#[test]
fn a_volume_without_a_journal_is_read() {
    let mut crypto = crypto();
    let (folder, model) = killed(&mut crypto);
    to_write(folder.path(), &mut crypto).unwrap().checkpoint(&mut crypto).unwrap();
    fs::remove_file(folder.path().join(JOURNAL)).unwrap();
    // What volumes have, and what is locked without a journal.
    fs::write(folder.path().join("wattlock.fs"), "sealed").unwrap();
    let contents = to_read(folder.path(), &mut crypto).unwrap();
    let content = open(&contents, &folder.path().join("file"), &mut crypto).unwrap();
    assert!(whole(&content, &mut crypto) == model);
    assert!(
        matches!(to_write(folder.path(), &mut crypto), Err(Error::InUse)),
        "a reader would see it change"
    );
    to_read(folder.path(), &mut crypto).unwrap();
    assert!(!folder.path().join(JOURNAL).exists());
    drop((content, contents));
    to_write(folder.path(), &mut crypto).unwrap();
}

/// Of another user nothing may be written, the journal included.
#[test]
fn reading_asks_for_no_right_to_write() {
    let mut crypto = crypto();
    let (folder, model) = killed(&mut crypto);
    for name in ["file", JOURNAL] {
        fs::set_permissions(folder.path().join(name), fs::Permissions::from_mode(0o444)).unwrap();
    }
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let before = all(folder.path());
    let contents = to_read(folder.path(), &mut crypto).unwrap();
    let content = open(&contents, &folder.path().join("file"), &mut crypto).unwrap();
    assert!(whole(&content, &mut crypto) == model);
    assert!(all(folder.path()) == before, "a mode was changed");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
}
