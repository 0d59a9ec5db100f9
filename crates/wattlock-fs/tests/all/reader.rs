//! A reader in Python, written from `docs/formats/volume.md` alone, reads what we write and refuses what we refuse.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::World;
use rustix::fs::{FileType, Mode, XattrFlags};
use wattlock_fs::content::Contents;
use wattlock_fs::store::{FolderStore, Place};
use wattlock_fs::tree::{Folder, Tree};
use wattlock_fs::volume::NameMode;

/// The repository's own environment if there is one, else whatever the machine calls Python.
fn interpreter() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python3");
    if own.exists() { own } else { "python3".into() }
}

fn python() -> bool {
    let has = Command::new(interpreter())
        .args(["-c", "from cryptography.hazmat.primitives.ciphers.aead import AESSIV"])
        .stderr(Stdio::null())
        .status();
    let found = has.is_ok_and(|status| status.success());
    if !found {
        println!("skipped: python3 with its package cryptography is not installed");
    }
    found
}

fn run(world: &World) -> std::process::Output {
    let key = world.folder.path().with_extension("key");
    fs::write(&key, &world.identity).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/read_volume.py");
    let output = Command::new(interpreter()).arg(script).args([&key, world.folder.path()]).output().unwrap();
    fs::remove_file(&key).unwrap();
    output
}

/// What the reader says of each path: the rest of its line.
fn read(world: &World) -> BTreeMap<Vec<u8>, String> {
    let output = run(world);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    let entry = |line: &str| {
        let (path, rest) = line.strip_prefix("{\"path\": \"").unwrap().split_once('"').unwrap();
        (unhex(path), rest.to_owned())
    };
    said.lines().map(entry).collect()
}

fn unhex(digits: &str) -> Vec<u8> {
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn sha256(world: &mut World, content: &[u8]) -> String {
    use wattlock_core::{Data, Key, Kind, Request};
    let mut digest = [0; 32];
    let data = Data::Apart { from: content, to: &mut digest };
    world.crypto.run(&mut Request::new(Kind::Sha256, Key::none(), data)).unwrap();
    hex(&digest)
}

/// Makes a file of pieces at places, and a length.
fn file(
    world: &mut World,
    (tree, folder): (&Tree, &Folder),
    name: &[u8],
    pieces: &[(u64, &[u8])],
    len: u64,
) -> PathBuf {
    let (contents, stored) = unfinished(world, (tree, folder), name, pieces, len);
    contents.checkpoint(&mut world.crypto).unwrap();
    stored
}

/// The same, with the journal as it is before it is brought into place.
fn unfinished(
    world: &mut World,
    (tree, folder): (&Tree, &Folder),
    name: &[u8],
    pieces: &[(u64, &[u8])],
    len: u64,
) -> (Contents<FolderStore>, PathBuf) {
    let crypto = &mut world.crypto;
    // A child of another test that has not begun its program yet has this one's descriptors, the lock among them.
    let mut start =
        || Contents::start(FolderStore::open(world.folder.path()).unwrap(), &world.volume, crypto);
    let mut started = start();
    for _ in 0..1000 {
        if !matches!(started, Err(wattlock_fs::Error::InUse)) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
        started = start();
    }
    let (contents, _) = started.unwrap();
    let crypto = &mut world.crypto;
    let entry = tree.entry(folder, name, crypto).unwrap();
    let file = tree.create_file(folder, &entry, Mode::from_raw_mode(0o644)).unwrap();
    let meta = file.metadata().unwrap();
    let place = Place { inode: (meta.dev(), meta.ino()), path: Vec::new() };
    let content = contents.create(file, place, crypto).unwrap();
    for (at, piece) in pieces {
        content.write(piece, *at, crypto).unwrap();
    }
    content.set_len(len, crypto).unwrap();
    content.sync(crypto).unwrap();
    (contents, entry.stored.into())
}

#[test]
fn an_independent_reader_reads_names_links_attributes_and_contents() {
    if !python() {
        return;
    }
    for names in [NameMode::PerFolder, NameMode::Deterministic, NameMode::Plain] {
        let mut world = World::new(names);
        let (tree, root) = world.tree();
        let mode = Mode::from_raw_mode(0o755);
        let entry = tree.entry(&root, &[b'f'; 200], &mut world.crypto).unwrap();
        tree.make_folder(&root, &entry, mode, &mut world.crypto).unwrap();
        let inner = tree.folder(&root, &entry, &mut world.crypto).unwrap();
        let mut expected = BTreeMap::new();
        for len in [0, 1, 4095, 4096, 4097, 100_000] {
            let content: Vec<u8> = (0..len).map(|at: u32| ((at * 7) >> 3) as u8).collect();
            let name = format!("{len} \u{e4}").into_bytes();
            file(&mut world, (&tree, &root), &name, &[(0, &content)], len.into());
            expected.insert(name, content);
        }
        let mut sparse = vec![0; 900_000];
        sparse[300_000..300_010].copy_from_slice(b"0123456789");
        let pieces = [(300_000, &b"0123456789"[..])];
        let name = [b'n'; 255];
        file(&mut world, (&tree, &inner), &name, &pieces, sparse.len() as u64);
        expected.insert([&[b'f'; 200][..], b"/", &name].concat(), sparse);
        let link = tree.entry(&root, b"wattlock.link", &mut world.crypto).unwrap();
        tree.make_link(&root, &link, b"../else where", &mut world.crypto).unwrap();
        let pipe = tree.entry(&root, b"pipe", &mut world.crypto).unwrap();
        tree.make_node(&root, &pipe, FileType::Fifo, mode, 0).unwrap();
        let attribute = tree.extras().attribute(b"user.comment", &mut world.crypto).unwrap();
        let value = tree.extras().seal_value(b"user.comment", b"hello", &mut world.crypto).unwrap();
        let path = world.folder.path().join(&entry.stored);
        let attributes = rustix::fs::setxattr(&path, &*attribute, &value, XattrFlags::empty()).is_ok();

        let found = read(&world);
        assert_eq!(found.len(), expected.len() + 3, "{names:?}: {found:?}");
        for (path, content) in &expected {
            let said = &found[path];
            let wanted =
                format!("\"length\": {}, \"sha256\": \"{}\"", content.len(), sha256(&mut world, content));
            assert!(said.contains(&wanted), "{names:?} {}: {said}", String::from_utf8_lossy(path));
        }
        assert!(found[&b"wattlock.link"[..]].contains(&hex(b"../else where")));
        assert!(found[&b"pipe"[..]].contains("special"));
        if attributes {
            let wanted = format!("\"{}\": \"{}\"", hex(b"user.comment"), hex(b"hello"));
            assert!(found[&[b'f'; 200][..]].contains(&wanted));
        }
    }
}

/// Of files and long names, and of two machines that made one folder.
#[test]
fn an_independent_reader_shows_conflicting_copies_by_the_same_names() {
    if !python() {
        return;
    }
    let mut world = World::new(NameMode::PerFolder);
    let (tree, root) = world.tree();
    let apart = tempfile::tempdir().unwrap();
    Tree::init(apart.path(), &world.volume, &mut world.crypto).unwrap();
    let (_, other) = Tree::open(apart.path(), &world.volume, &mut world.crypto).unwrap();
    let (long, full) = ("l".repeat(200), "\u{e4}".repeat(127));
    let mode = Mode::from_raw_mode(0o644);
    for (folder, own) in [(&root, "ours"), (&other, "theirs")] {
        for name in [own, "common", &long, &full] {
            let entry = tree.entry(folder, name.as_bytes(), &mut world.crypto).unwrap();
            tree.create_file(folder, &entry, mode).unwrap();
        }
    }
    fs::rename(apart.path().join("wattlock.dir"), apart.path().join("wattlock (Anna's).dir")).unwrap();
    for entry in fs::read_dir(apart.path()).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), world.folder.path().join(entry.file_name())).unwrap();
    }
    for name in ["ours", &full] {
        let stored =
            tree.entry(&root, name.as_bytes(), &mut world.crypto).unwrap().stored.into_string().unwrap();
        fs::write(world.folder.path().join(format!("{stored} (copy)")), "").unwrap();
    }
    let beside = tree.entry(&root, long.as_bytes(), &mut world.crypto).unwrap().sidecar.unwrap().0;
    let beside = world.folder.path().join(beside);
    fs::rename(&beside, format!("{}~", beside.to_str().unwrap())).unwrap();
    for lost in [false, true] {
        if lost {
            fs::remove_file(world.folder.path().join("wattlock.dir")).unwrap();
            fs::copy(
                world.folder.path().join("wattlock (Anna's).dir"),
                world.folder.path().join("wattlock.dir"),
            )
            .unwrap();
        }
        let (tree, root) = world.tree();
        let listed = tree.list(&root, &mut world.crypto).unwrap().0;
        let names: BTreeSet<_> = listed.into_iter().map(|one| one.name).collect();
        let found = read(&world).into_iter().filter(|(name, _)| !name.starts_with(b"["));
        assert!(found.map(|(name, _)| name).eq(names.iter().cloned()));
        assert_eq!(names.len(), if lost { 4 } else { 10 });
    }
}

#[test]
fn an_independent_reader_refuses_what_is_damaged_and_nothing_else() {
    if !python() {
        return;
    }
    let mut world = World::new(NameMode::PerFolder);
    let (tree, root) = world.tree();
    let content = vec![7; 3 * 4096 + 5];
    let path = file(&mut world, (&tree, &root), b"bad", &[(0, &content)], content.len() as u64);
    file(&mut world, (&tree, &root), b"good", &[(0, b"good")], 4);
    let path = world.folder.path().join(path);
    let whole = fs::read(&path).unwrap();
    for at in [0, 8, 13, 20, 30, 60, 90, 96, 130, 96 + 4136, 96 + 3 * 4136 + 30, whole.len() - 1] {
        let backing = fs::OpenOptions::new().write(true).open(&path).unwrap();
        backing.write_all_at(&[whole[at] ^ 0x20], at as u64).unwrap();
        let found = read(&world);
        assert!(found[&b"bad"[..]].contains("\"error\""), "byte {at}");
        assert!(found[&b"good"[..]].contains("\"length\": 4"), "byte {at}");
        backing.write_all_at(&whole[at..=at], at as u64).unwrap();
    }
    let zeroed = [&whole[..96 + 4136], &vec![0; 4136], &whole[96 + 2 * 4136..]].concat();
    let swapped =
        [&whole[..96], &whole[96 + 4136..96 + 2 * 4136], &whole[96..96 + 4136], &whole[96 + 2 * 4136..]];
    for bad in
        [zeroed, swapped.concat(), whole[..96 + 3 * 4136].to_vec(), whole[..96 + 2 * 4136 + 45].to_vec()]
    {
        fs::write(&path, &bad).unwrap();
        assert!(read(&world)[&b"bad"[..]].contains("\"error\""));
    }
    fs::write(&path, &whole).unwrap();
    assert!(!read(&world)[&b"bad"[..]].contains("\"error\""));
}

#[test]
fn an_independent_reader_sees_that_the_journal_is_not_empty_and_when_it_is() {
    if !python() {
        return;
    }
    let mut world = World::new(NameMode::Plain);
    let (tree, root) = world.tree();
    let (contents, _) = unfinished(&mut world, (&tree, &root), b"file", &[(0, b"new")], 3);
    let output = run(&world);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("the journal is not empty"), "{said}");
    contents.checkpoint(&mut world.crypto).unwrap();
    assert!(read(&world)[&b"file"[..]].contains("\"length\": 3"));
    drop(contents);
    let journal = world.folder.path().join("wattlock.journal");
    let mut heads = fs::read(&journal).unwrap();
    for at in [16, 4096 + 16] {
        heads[at] ^= 1;
    }
    fs::write(&journal, heads).unwrap();
    assert!(String::from_utf8_lossy(&run(&world).stderr).contains("the journal's head"));
}
