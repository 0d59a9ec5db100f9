//! Names, links and folders on a real backing folder.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::common;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

use common::{ALL, World, make};
use rustix::fs::{FileType, Mode, OFlags, RenameFlags};
use wattlock::Dispatcher;
use wattlock_fs::content::Contents;
use wattlock_fs::rotate::{Resealed, rotate, rotate_with};
use wattlock_fs::store::{FolderStore, Place};
use wattlock_fs::tree::{Folder, Tree};
use wattlock_fs::volume::NameMode;
use wattlock_fs::{Error, names};

const MODES: [NameMode; 3] = [NameMode::PerFolder, NameMode::Deterministic, NameMode::Plain];

fn list(tree: &Tree, folder: &Folder, crypto: &mut Dispatcher) -> BTreeSet<Vec<u8>> {
    let (listed, foreign) = tree.list(folder, crypto).unwrap();
    assert!(foreign.is_empty(), "{foreign:?}");
    listed.into_iter().map(|entry| entry.name).collect()
}

fn set<const N: usize>(names: [&[u8]; N]) -> BTreeSet<Vec<u8>> {
    names.into_iter().map(<[u8]>::to_vec).collect()
}

fn errno(error: &Error) -> i32 {
    error.errno()
}

#[test]
fn names_of_every_length_and_byte_come_back() {
    for mode in MODES {
        let mut world = World::new(mode);
        let (tree, root) = world.tree();
        let crypto = &mut world.crypto;
        let mut names = BTreeSet::new();
        for len in [1, 2, 15, 16, 17, 100, 174, 175, 176, 177, 200, 254, 255] {
            let name: Vec<u8> = (0..len).map(|at| 200 + (at % 50) as u8).collect();
            make(&tree, &root, &name, crypto);
            names.insert(name);
        }
        for name in [&b"wattlock.fs"[..], b"wattlock.dir", b"a b\n", b".hidden", b"...", b"-", b"\xff\x01"] {
            make(&tree, &root, name, crypto);
            names.insert(name.to_vec());
        }
        assert_eq!(list(&tree, &root, crypto), names, "{mode:?}");
        for name in &names {
            let entry = tree.entry(&root, name, crypto).unwrap();
            assert!(tree.open_file(&root, &entry, OFlags::RDONLY).is_ok());
            tree.remove(&root, &entry, false).unwrap();
        }
        assert!(list(&tree, &root, crypto).is_empty());
        let own = ["wattlock.dir", "wattlock.fs"];
        assert!(world.stored().iter().all(|name| own.contains(&&**name)), "{:?}", world.stored());
    }
}

#[test]
fn a_volume_opened_again_has_the_same_names() {
    for mode in MODES {
        let mut world = World::new(mode);
        let (tree, root) = world.tree();
        let entry = tree.entry(&root, b"folder", &mut world.crypto).unwrap();
        tree.make_folder(&root, &entry, ALL, &mut world.crypto).unwrap();
        let inner = tree.folder(&root, &entry, &mut world.crypto).unwrap();
        make(&tree, &inner, &[b'x'; 255], &mut world.crypto);
        tree.sync_records().unwrap();
        drop((tree, root, inner));
        let (tree, root) = world.tree();
        let entry = tree.entry(&root, b"folder", &mut world.crypto).unwrap();
        let inner = tree.folder(&root, &entry, &mut world.crypto).unwrap();
        assert_eq!(list(&tree, &inner, &mut world.crypto), set([&[b'x'; 255]]), "{mode:?}");
    }
}

#[test]
fn what_is_no_name_is_refused() {
    for mode in MODES {
        let mut world = World::new(mode);
        let (tree, root) = world.tree();
        let no = |name: &[u8], crypto: &mut Dispatcher| errno(&tree.entry(&root, name, crypto).unwrap_err());
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
            assert_eq!(no(name, &mut world.crypto), 22, "{name:?}");
        }
        assert_eq!(no(&[b'x'; 256], &mut world.crypto), 36);
    }
}

#[test]
fn equal_names_look_equal_in_a_deterministic_volume_only() {
    for (mode, equal) in [(NameMode::PerFolder, false), (NameMode::Deterministic, true)] {
        let mut world = World::new(mode);
        let (tree, root) = world.tree();
        let entry = tree.entry(&root, b"folder", &mut world.crypto).unwrap();
        tree.make_folder(&root, &entry, ALL, &mut world.crypto).unwrap();
        let inner = tree.folder(&root, &entry, &mut world.crypto).unwrap();
        let again = tree.entry(&inner, b"folder", &mut world.crypto).unwrap();
        assert_eq!(entry == again, equal, "{mode:?}");
    }
}

#[test]
fn a_long_name_is_renamed_by_one_call_and_leaves_nothing_behind() {
    for mode in [NameMode::PerFolder, NameMode::Deterministic] {
        let mut world = World::new(mode);
        let (tree, root) = world.tree();
        let crypto = &mut world.crypto;
        let names: [&[u8]; 4] = [b"short", &[b'a'; 176], &[b'b'; 255], b"short again"];
        make(&tree, &root, names[0], crypto);
        let inode = |crypto: &mut Dispatcher| tree.list(&root, crypto).unwrap().0[0].inode;
        let first = inode(crypto);
        for pair in names.windows(2) {
            let [from, to] = [pair[0], pair[1]].map(|name| tree.entry(&root, name, crypto).unwrap());
            tree.rename((&root, &from), (&root, &to), RenameFlags::empty()).unwrap();
            assert_eq!(list(&tree, &root, crypto), set([pair[1]]));
            assert_eq!(inode(crypto), first);
        }
        let sidecars = world.stored().into_iter().filter(|name| name.ends_with(".name")).count();
        assert_eq!(sidecars, 0);
    }
}

#[test]
fn names_that_exist_are_replaced_refused_or_exchanged_long_ones_too() {
    let mut world = World::new(NameMode::PerFolder);
    let (tree, root) = world.tree();
    let crypto = &mut world.crypto;
    let (long, other, short) = ([b'l'; 200], [b'm'; 201], b"short");
    for name in [&long[..], &other, short] {
        make(&tree, &root, name, crypto);
    }
    let [long_entry, other_entry, short_entry] =
        [&long[..], &other, short].map(|name| tree.entry(&root, name, crypto).unwrap());
    let refused = tree.rename((&root, &long_entry), (&root, &other_entry), RenameFlags::NOREPLACE);
    assert_eq!(errno(&refused.unwrap_err()), 17);
    tree.rename((&root, &long_entry), (&root, &short_entry), RenameFlags::EXCHANGE).unwrap();
    assert_eq!(list(&tree, &root, crypto), set([&long, &other, short]));
    tree.rename((&root, &long_entry), (&root, &other_entry), RenameFlags::empty()).unwrap();
    assert_eq!(list(&tree, &root, crypto), set([&other, short]));
    // To itself: nothing happens.
    tree.rename((&root, &other_entry), (&root, &other_entry), RenameFlags::empty()).unwrap();
    assert_eq!(list(&tree, &root, crypto), set([&other, short]));
    let absent = tree.entry(&root, &[b'z'; 255], crypto).unwrap();
    assert_eq!(
        errno(&tree.rename((&root, &absent), (&root, &long_entry), RenameFlags::empty()).unwrap_err()),
        2
    );
    assert_eq!(world.stored().iter().filter(|name| name.ends_with(".name")).count(), 1);
}

#[test]
fn folders_are_made_moved_replaced_and_removed() {
    for mode in MODES {
        let mut world = World::new(mode);
        let (tree, root) = world.tree();
        let crypto = &mut world.crypto;
        let [one, two, three] = [b"one", b"two", b"333"].map(|name| tree.entry(&root, name, crypto).unwrap());
        for entry in [&one, &two, &three] {
            tree.make_folder(&root, entry, ALL, crypto).unwrap();
        }
        assert_eq!(errno(&tree.make_folder(&root, &one, ALL, crypto).unwrap_err()), 17);
        let inner = tree.folder(&root, &one, crypto).unwrap();
        make(&tree, &inner, b"file", crypto);
        assert_eq!(errno(&tree.remove(&root, &one, true).unwrap_err()), 39, "{mode:?}");
        assert_eq!(errno(&tree.rename((&root, &two), (&root, &one), RenameFlags::empty()).unwrap_err()), 39);
        // Over an empty one, then into another.
        tree.rename((&root, &one), (&root, &two), RenameFlags::empty()).unwrap();
        assert_eq!(list(&tree, &root, crypto), set([b"two", b"333"]));
        let third = tree.folder(&root, &three, crypto).unwrap();
        let moved = tree.entry(&third, &[b'm'; 255], crypto).unwrap();
        tree.rename((&root, &two), (&third, &moved), RenameFlags::empty()).unwrap();
        let again = tree.folder(&third, &moved, crypto).unwrap();
        assert_eq!(list(&tree, &again, crypto), set([b"file"]));
        let file = tree.entry(&again, b"file", crypto).unwrap();
        tree.remove(&again, &file, false).unwrap();
        tree.remove(&third, &moved, true).unwrap();
        tree.remove(&root, &three, true).unwrap();
        assert!(list(&tree, &root, crypto).is_empty());
        tree.sync_records().unwrap();
        assert!(world.stored().iter().all(|name| ["wattlock.dir", "wattlock.fs"].contains(&&**name)));
    }
}

#[test]
fn a_folder_has_the_mode_that_was_asked_for_and_its_record_all_the_same() {
    let mut world = World::new(NameMode::PerFolder);
    let (tree, root) = world.tree();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap();
    let umask = u32::from_str_radix(umask.trim(), 8).unwrap();
    for bits in [0o000, 0o500, 0o711, 0o777, 0o1777] {
        let entry = tree.entry(&root, format!("{bits:o}").as_bytes(), &mut world.crypto).unwrap();
        tree.make_folder(&root, &entry, Mode::from_raw_mode(bits), &mut world.crypto).unwrap();
        let path = world.folder.path().join(&entry.stored);
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, bits & !umask, "{bits:o}");
        assert_eq!(fs::metadata(path.join("wattlock.dir")).unwrap().len(), 128);
    }
}

#[test]
fn links_and_nodes_come_back() {
    for mode in MODES {
        let mut world = World::new(mode);
        let (tree, root) = world.tree();
        let crypto = &mut world.crypto;
        for (name, target) in [(&b"a"[..], &b"x"[..]), (b"b", b"../some/where \xff"), (b"c", &[b't'; 3039])] {
            let entry = tree.entry(&root, name, crypto).unwrap();
            tree.make_link(&root, &entry, target, crypto).unwrap();
            assert_eq!(tree.read_link(&root, &entry, crypto).unwrap(), target);
            let stored = fs::read_link(world.folder.path().join(&entry.stored)).unwrap();
            assert_eq!(names::target_len(stored.as_os_str().len() as u64), target.len() as u64);
        }
        let entry = tree.entry(&root, b"d", crypto).unwrap();
        assert_eq!(errno(&tree.make_link(&root, &entry, &[b't'; 3040], crypto).unwrap_err()), 36);
        tree.make_node(&root, &entry, FileType::Fifo, ALL, 0).unwrap();
        let (listed, _) = tree.list(&root, crypto).unwrap();
        let kinds: Vec<_> = listed.iter().map(|entry| entry.kind).collect();
        assert_eq!(kinds.iter().filter(|kind| **kind == FileType::Fifo).count(), 1);
        assert_eq!(kinds.iter().filter(|kind| **kind == FileType::Symlink).count(), 3);
        let to = tree.entry(&root, &[b'h'; 255], crypto).unwrap();
        tree.hard_link((&root, &entry), (&root, &to)).unwrap();
        assert_eq!(fs::symlink_metadata(world.folder.path().join(&to.stored)).unwrap().nlink(), 2);
    }
}

#[test]
fn a_damaged_name_is_skipped_and_its_neighbours_are_there() {
    for mode in [NameMode::PerFolder, NameMode::Deterministic] {
        let mut world = World::new(mode);
        let (tree, root) = world.tree();
        let crypto = &mut world.crypto;
        for name in [&b"good"[..], b"bad", &[b'g'; 255], &[b'b'; 254], &[b'c'; 253]] {
            make(&tree, &root, name, crypto);
        }
        let path = |name: &str| world.folder.path().join(name);
        let bad = tree.entry(&root, b"bad", crypto).unwrap().stored.into_string().unwrap();
        let flipped = format!("{}{}", if bad.starts_with('A') { 'B' } else { 'A' }, &bad[1..]);
        fs::rename(path(&bad), path(&flipped)).unwrap();
        let long = tree.entry(&root, &[b'b'; 254], crypto).unwrap().stored.into_string().unwrap();
        let mut file = fs::OpenOptions::new().append(true).open(path(&format!("{long}.name"))).unwrap();
        file.write_all(b"x").unwrap();
        let lost = tree.entry(&root, &[b'c'; 253], crypto).unwrap().stored.into_string().unwrap();
        fs::remove_file(path(&format!("{lost}.name"))).unwrap();
        fs::write(path("foreign.txt"), "x").unwrap();
        let (listed, damaged) = tree.list(&root, crypto).unwrap();
        let names: BTreeSet<_> = listed.into_iter().map(|entry| entry.name).collect();
        assert_eq!(names, set([b"good", &[b'g'; 255]]), "{mode:?}");
        let damaged: BTreeSet<_> = damaged.into_iter().map(|name| name.into_string().unwrap()).collect();
        assert_eq!(damaged, BTreeSet::from([flipped, long, lost, "foreign.txt".to_owned()]));
    }
}

#[test]
fn a_damaged_folder_record_is_an_error_of_that_folder_alone() {
    let mut world = World::new(NameMode::PerFolder);
    let (tree, root) = world.tree();
    let crypto = &mut world.crypto;
    let entries = [b"one", b"two"].map(|name| tree.entry(&root, name, crypto).unwrap());
    for entry in &entries {
        tree.make_folder(&root, entry, ALL, crypto).unwrap();
        let inner = tree.folder(&root, entry, crypto).unwrap();
        make(&tree, &inner, b"file", crypto);
    }
    let record = |at: usize| world.folder.path().join(&entries[at].stored).join("wattlock.dir");
    let (good, other) = (fs::read(record(0)).unwrap(), fs::read(record(1)).unwrap());
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        fs::write(record(0), &bad).unwrap();
        match tree.folder(&root, &entries[0], crypto) {
            // It opens as what it was sealed as.
            Ok(folder) => assert_eq!((at, list(&tree, &folder, crypto)), (8, set([b"file"]))),
            Err(Error::Damaged(_)) => assert_ne!(at, 8),
            Err(error) => panic!("{at}: {error}"),
        }
    }
    for at in 9..good.len() {
        let mut newer = good.clone();
        (newer[8], newer[at]) = (2, newer[at] ^ 0x10);
        fs::write(record(0), &newer).unwrap();
        assert!(matches!(tree.folder(&root, &entries[0], crypto), Err(Error::Newer(_))), "{at}");
    }
    for bad in [&good[..127], &[&good[..], b"x"].concat()] {
        fs::write(record(0), bad).unwrap();
        assert!(matches!(tree.folder(&root, &entries[0], crypto), Err(Error::Damaged(_))));
    }
    // Another folder's record opens, and no name in the folder does.
    fs::write(record(0), other).unwrap();
    let swapped = tree.folder(&root, &entries[0], crypto).unwrap();
    let (listed, foreign) = tree.list(&swapped, crypto).unwrap();
    assert!(listed.is_empty() && foreign.len() == 1);
    let inner = tree.folder(&root, &entries[1], crypto).unwrap();
    assert_eq!(list(&tree, &inner, crypto), set([b"file"]));
    fs::remove_file(record(0)).unwrap();
    assert!(matches!(tree.folder(&root, &entries[0], crypto), Err(Error::Damaged(_))));
    assert_eq!(list(&tree, &root, crypto), set([b"one", b"two"]));
}

/// A folder that looked empty would be believed by whatever mirrors or tidies it.
#[test]
fn a_record_without_bytes_that_no_crash_explains_is_damage_if_files_are_below() {
    let mut world = World::new(NameMode::PerFolder);
    let (tree, root, entry, _) = world.with_folder();
    let crypto = &mut world.crypto;
    let folder = tree.folder(&root, &entry, crypto).unwrap();
    let inner = tree.entry(&folder, b"inner", crypto).unwrap();
    tree.make_folder(&folder, &inner, ALL, crypto).unwrap();
    let inner = tree.folder(&folder, &inner, crypto).unwrap();
    let record = world.folder.path().join(&entry.stored).join("wattlock.dir");
    let good = fs::read(&record).unwrap();
    make(&tree, &inner, b"file", crypto);
    for bad in [vec![], vec![0; good.len()]] {
        fs::write(&record, &bad).unwrap();
        assert!(matches!(tree.folder(&root, &entry, crypto), Err(Error::Damaged(_))));
        tree.look_through(&|| false, crypto).unwrap();
        assert_eq!(fs::read(&record).unwrap(), bad);
    }
    fs::write(&record, good).unwrap();
    let folder = tree.folder(&root, &entry, crypto).unwrap();
    assert_eq!(list(&tree, &folder, crypto), set([b"inner"]));
    assert!(tree.take_notes().is_empty());
    // After a crash nothing in it was acknowledged.
    fs::write(&record, []).unwrap();
    tree.set_crashed(true);
    tree.look_through(&|| false, crypto).unwrap();
    assert_eq!(tree.take_notes().len(), 1);
    let folder = tree.folder(&root, &entry, crypto).unwrap();
    assert_eq!(tree.list(&folder, crypto).unwrap().1.len(), 1);
}

#[test]
fn threads_that_meet_at_a_folder_without_a_record_give_it_one_key() {
    let mut world = World::new(NameMode::PerFolder);
    let (tree, root) = world.tree();
    let entry = tree.entry(&root, b"folder", &mut world.crypto).unwrap();
    tree.make_folder(&root, &entry, ALL, &mut world.crypto).unwrap();
    let record = world.folder.path().join(&entry.stored).join("wattlock.dir");
    let (tree, root, entry, runtime) = (&tree, &root, &entry, &world.runtime);
    for _ in 0..20 {
        fs::write(&record, []).unwrap();
        let barrier = &std::sync::Barrier::new(4);
        let names: BTreeSet<_> = std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| {
                scope.spawn(move || {
                    let crypto = &mut runtime.dispatcher();
                    barrier.wait();
                    let folder = tree.folder(root, entry, crypto).unwrap();
                    tree.entry(&folder, b"name", crypto).unwrap().stored
                })
            });
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(names.len(), 1);
        assert_eq!(tree.take_notes().len(), 1);
    }
}

#[test]
fn a_record_cut_off_by_a_crash_is_made_anew_and_said() {
    let mut world = World::new(NameMode::PerFolder);
    let (tree, root, entry, inside) = world.with_folder();
    let (record, crypto) = (inside.join("wattlock.dir"), &mut world.crypto);
    for cut in [vec![], vec![0; 128]] {
        fs::write(&record, cut).unwrap();
        let inner = tree.folder(&root, &entry, crypto).unwrap();
        make(&tree, &inner, b"file", crypto);
        assert_eq!(tree.take_notes().len(), 1);
        let again = tree.folder(&root, &entry, crypto).unwrap();
        let listed = tree.list(&again, crypto).unwrap().0;
        assert_eq!(listed.len(), 1);
        tree.remove(&again, &listed[0].entry(), false).unwrap();
        assert!(tree.take_notes().is_empty());
    }
}

#[test]
fn a_planted_link_is_never_followed() {
    let mut world = World::new(NameMode::PerFolder);
    let (tree, root) = world.tree();
    let crypto = &mut world.crypto;
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "secret").unwrap();
    for (name, target) in [(&b"file"[..], outside.path().join("secret")), (b"folder", outside.path().into())]
    {
        let entry = tree.entry(&root, name, crypto).unwrap();
        std::os::unix::fs::symlink(target, world.folder.path().join(&entry.stored)).unwrap();
        assert_eq!(errno(&tree.open_file(&root, &entry, OFlags::RDONLY).unwrap_err()), 40);
        assert!(tree.folder(&root, &entry, crypto).is_err());
        assert!(matches!(tree.read_link(&root, &entry, crypto), Err(Error::Damaged(_))));
    }
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[test]
fn attributes_are_sealed_by_name_and_value() {
    let mut world = World::new(NameMode::PerFolder);
    let (tree, _) = world.tree();
    let (extras, crypto) = (tree.extras(), &mut world.crypto);
    for name in [&b"user.comment"[..], b"trusted.overlay.opaque", b"security.capability", b"user.\xff \n"] {
        let stored = extras.attribute(name, crypto).unwrap();
        assert!(stored.len() <= 255 && stored.windows(9).any(|part| part == b"wattlock."));
        assert_eq!(extras.attribute(name, crypto).unwrap(), stored, "found again");
        assert_eq!(extras.attribute_name(&stored, crypto).unwrap().unwrap(), name);
        for value in [&b""[..], b"v", &[7; 5000]] {
            let (one, two) = (
                extras.seal_value(name, value, crypto).unwrap(),
                extras.seal_value(name, value, crypto).unwrap(),
            );
            assert_ne!(one, two, "equal values do not look equal");
            assert_eq!(names::value_len(one.len()), value.len());
            assert_eq!(extras.open_value(name, &one, crypto).unwrap(), value);
            assert!(matches!(extras.open_value(b"user.other", &one, crypto), Err(Error::Damaged(_))));
            for at in [0, 16, one.len() - 1] {
                let mut bad = one.clone();
                bad[at] ^= 1;
                assert!(matches!(extras.open_value(name, &bad, crypto), Err(Error::Damaged(_))));
            }
        }
        let last = stored.len() - 5;
        let mut bad = stored;
        bad[last] = if bad[last] == b'A' { b'B' } else { b'A' };
        assert!(extras.attribute_name(&bad, crypto).is_err());
    }
    for acl in [&b"system.posix_acl_access"[..], b"system.posix_acl_default"] {
        assert_eq!(extras.attribute(acl, crypto).unwrap(), acl);
        assert_eq!(extras.open_value(acl, b"\x02\0\0\0", crypto).unwrap(), b"\x02\0\0\0");
    }
    assert_eq!(extras.attribute_name(b"user.foreign", crypto).unwrap(), None);
    assert_eq!(errno(&extras.attribute(b"system.other", crypto).unwrap_err()), 95);
    let user = |len: usize| [&b"user."[..], &vec![b'n'; len]].concat();
    assert!(extras.attribute(&user(164), crypto).is_ok());
    assert_eq!(errno(&extras.attribute(&user(165), crypto).unwrap_err()), 34);
}

#[test]
fn a_copy_that_another_program_made_is_shown_beside_the_entry_and_opens() {
    let mut world = World::new(NameMode::PerFolder);
    let (tree, root) = world.tree();
    let crypto = &mut world.crypto;
    make(&tree, &root, b"letter.txt", crypto);
    let stored = tree.entry(&root, b"letter.txt", crypto).unwrap().stored.into_string().unwrap();
    let path = |name: &str| world.folder.path().join(name);
    let copies = [".sync-conflict-20261123", " (conflicted copy)", "~", "-HOSTNAME", "_conf(2)", "2"];
    for copy in copies {
        fs::write(path(&format!("{stored}{copy}")), copy).unwrap();
    }
    let listed = list(&tree, &root, crypto);
    assert_eq!(listed.len(), 7);
    for copy in copies {
        let name = format!("letter.txt [conflict {}]", copy.trim());
        assert!(listed.contains(name.as_bytes()), "{name}");
        let entry = tree.entry(&root, name.as_bytes(), crypto).unwrap();
        let file = tree.open_file(&root, &entry, OFlags::RDONLY).unwrap();
        assert_eq!(std::io::read_to_string(file).unwrap(), copy);
        let to = tree.entry(&root, format!("mine{copy}").as_bytes(), crypto).unwrap();
        tree.rename((&root, &entry), (&root, &to), RenameFlags::empty()).unwrap();
        let again = tree.entry(&root, name.as_bytes(), crypto).unwrap();
        assert_ne!(again, entry, "its name is free");
    }
    assert_eq!(list(&tree, &root, crypto).len(), 7);
}

#[test]
fn copies_of_long_names_are_shown_whole_or_as_far_as_a_name_goes() {
    let mut world = World::new(NameMode::PerFolder);
    let (tree, root) = world.tree();
    let crypto = &mut world.crypto;
    for len in [200, 255] {
        let long = "\u{e4}".repeat(len / 2) + &"x".repeat(len % 2);
        make(&tree, &root, long.as_bytes(), crypto);
        let stored = tree.entry(&root, long.as_bytes(), crypto).unwrap().stored.into_string().unwrap();
        let hash = stored.rsplit('.').next().unwrap();
        let copies = [
            (format!("{stored} (copy)"), " (copy)"),
            (format!("wattlock.long.sync-conflict-20261126.{hash}"), ".sync-conflict-20261126"),
        ];
        for (copy, added) in copies {
            fs::write(world.folder.path().join(&copy), added).unwrap();
            let listed = list(&tree, &root, crypto);
            let mark = format!(" [conflict {}]", added.trim());
            let shown = listed.iter().find(|name| name.ends_with(mark.as_bytes())).unwrap();
            assert!(shown.len() <= 255 && std::str::from_utf8(shown).is_ok());
            assert!(len == 255 || **shown == *format!("{long}{mark}").as_bytes());
            let entry = tree.entry(&root, shown, crypto).unwrap();
            assert_eq!(entry.stored.to_str(), Some(&*copy));
            tree.remove(&root, &entry, false).unwrap();
        }
        let entry = tree.entry(&root, long.as_bytes(), crypto).unwrap();
        tree.remove(&root, &entry, false).unwrap();
    }
    assert!(list(&tree, &root, crypto).is_empty());
}

/// By a name that nobody listed, whether or not others change the folder, and each name once.
#[test]
fn a_copy_is_found_by_the_name_that_it_is_shown_by() {
    for shared in [false, true] {
        for mode in [NameMode::PerFolder, NameMode::Deterministic] {
            let mut world = World::new(mode);
            let (tree, root) = world.tree();
            tree.set_shared(shared);
            let crypto = &mut world.crypto;
            let stored = |name: &[u8], crypto: &mut Dispatcher| {
                tree.entry(&root, name, crypto).unwrap().stored.into_string().unwrap()
            };
            // A key holder may write what looks like a mark.
            const SHOWN: &[u8] = b"doc [conflict (copy)]";
            for name in [b"doc", SHOWN] {
                make(&tree, &root, name, crypto);
            }
            let (doc, other) = (stored(b"doc", crypto), stored(SHOWN, crypto));
            let path = |name: &str| world.folder.path().join(name);
            fs::write(path(&format!("{doc} (copy)")), "of the copy").unwrap();
            fs::write(path(&format!("{doc}(copy)")), "of another copy").unwrap();
            fs::write(path(&format!("{doc}.orig")), "of the original").unwrap();
            fs::write(path(&other), "of the entry").unwrap();
            let mut content = |name: &[u8]| {
                let mut entry = tree.entry(&root, name, crypto).unwrap();
                if !path(entry.stored.to_str().unwrap()).exists() {
                    entry = tree.copy(&root, name, crypto).unwrap()?;
                }
                Some(std::io::read_to_string(tree.open_file(&root, &entry, OFlags::RDONLY).unwrap()).unwrap())
            };
            assert_eq!(content(b"doc [conflict .orig]").as_deref(), Some("of the original"));
            assert_eq!(content(SHOWN).as_deref(), Some("of the entry"), "an entry is what it is called");
            // Its blank makes it another name than the copy that has none, which needs a turn.
            assert_eq!(content(b"doc [conflict  (copy)]").as_deref(), Some("of the copy"));
            assert_eq!(content(b"doc [conflict (copy) ~2]").as_deref(), Some("of another copy"));
            assert_eq!(content(b"none"), None);
            assert_eq!(content(b"doc.orig"), None, "nobody wrote this name");
            let all: [&[u8]; 5] = [
                b"doc",
                SHOWN,
                b"doc [conflict  (copy)]",
                b"doc [conflict (copy) ~2]",
                b"doc [conflict .orig]",
            ];
            assert_eq!(list(&tree, &root, crypto), set(all));
            // What a program writes beside it is an ordinary entry.
            make(&tree, &root, b"doc [conflict .orig]~", crypto);
            let beside = tree.entry(&root, b"doc [conflict .orig]~", crypto).unwrap();
            assert!(!beside.stored.to_str().unwrap().contains(['.', '~']));
            tree.remove(&root, &beside, false).unwrap();
            // Another program takes one away, and brings another one, a while later.
            if shared {
                std::thread::sleep(std::time::Duration::from_millis(1100));
                fs::rename(path(&format!("{doc}.orig")), path(&format!("{doc}~"))).unwrap();
                let copy = tree.copy(&root, b"doc [conflict ~]", crypto).unwrap().unwrap();
                assert_eq!(copy.stored.to_str(), Some(&*format!("{doc}~")));
                assert_eq!(tree.copy(&root, b"doc [conflict .orig]", crypto).unwrap(), None);
            }
        }
    }
}

/// Bytes of every kind, put by the storage behind and within stored names.
#[test]
fn audit_10_no_suffix_is_the_storages() {
    const KINDS: [&[u8]; 5] =
        [b"AZaz09-_", b" \t\r\n", b".desktop.py", b"] [conflict ~2.name", "\u{e4}\u{2192}".as_bytes()];
    for mode in [NameMode::PerFolder, NameMode::Deterministic] {
        let mut world = World::new(mode);
        let (tree, root) = world.tree();
        let crypto = &mut world.crypto;
        let [short, long] = [80, 127].map(|len| "\u{e4}".repeat(len));
        let names: [&[u8]; 7] = [
            b"x",
            b"index.html",
            short.as_bytes(),
            &[b'l'; 200],
            long.as_bytes(),
            &[0xff; 255],
            b"x [conflict .py]",
        ];
        let mut number: u64 = 1;
        let mut below = |most: usize| {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (number >> 33) as usize % most
        };
        let path = |stored: &[u8]| world.folder.path().join(std::ffi::OsStr::from_bytes(stored));
        let mut behind = BTreeSet::new();
        for turn in 0..1000 {
            let name = names[below(names.len())];
            let entry = tree.entry(&root, name, crypto).unwrap();
            if turn < 50 && !path(entry.stored.as_bytes()).exists() {
                tree.create_file(&root, &entry, ALL).unwrap();
            }
            let stored = entry.stored.as_bytes();
            let (len, kind) = (1 + below([4, 200][turn % 2]), below(KINDS.len() + 1));
            let one = |at: usize| match KINDS.get(kind) {
                Some(kind) if turn % 3 == 0 => kind[at % kind.len()],
                Some(kind) => kind[below(kind.len())],
                None => 1 + below(255) as u8,
            };
            let mut added: Vec<u8> = (0..len).map(one).collect();
            added.retain(|byte| *byte != b'/');
            let at = if turn % 4 == 0 { below(stored.len()) } else { stored.len() };
            let planted = [&stored[..at], &added, &stored[at..]].concat();
            if added.is_empty() || planted.len() > 255 || path(&planted).exists() {
                continue;
            }
            fs::write(path(&planted), &planted).unwrap();
            if at == stored.len() && path(stored).exists() {
                let is_symbol = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
                let symbols = added.iter().take_while(|byte| is_symbol(byte)).count();
                // As a copy of the sealed name beside it is called.
                let beside = stored.starts_with(b"wattlock.") && added.ends_with(b".name");
                behind.extend((symbols <= 40 && !beside).then_some(planted));
            }
        }
        let survey = tree.survey(&root, &|| false, crypto).unwrap();
        let found: BTreeSet<&[u8]> = survey.listed.iter().map(|one| &*one.name).collect();
        assert_eq!(found.len(), survey.listed.len(), "each name once");
        assert!(names.iter().all(|name| found.contains(name)), "no entry is hidden");
        for one in &survey.listed {
            let entry = tree.entry(&root, &one.name, crypto).unwrap();
            assert_eq!(entry.stored, one.stored, "it opens what it names");
            assert!(names::check(&one.name).is_ok());
            if names.contains(&&*one.name) {
                continue;
            }
            assert!(one.name.ends_with(b"]"), "{:?}", one.name.escape_ascii());
            assert_eq!(fs::read(path(one.stored.as_bytes())).unwrap(), one.stored.as_bytes());
        }
        let shown: BTreeSet<&[u8]> = survey.listed.iter().map(|one| one.stored.as_bytes()).collect();
        assert!(behind.len() > 200 && behind.iter().all(|copy| shown.contains(&**copy)));
    }
}

#[test]
fn audit_10_a_mark_is_not_cut_and_letters_are_not() {
    let mut world = World::new(NameMode::PerFolder);
    let (tree, root) = world.tree();
    let crypto = &mut world.crypto;
    for (name, added) in
        [("\u{e4}".repeat(127), " (copy)".to_owned()), ("x".to_owned(), "\u{e4}".repeat(116))]
    {
        make(&tree, &root, name.as_bytes(), crypto);
        let entry = tree.entry(&root, name.as_bytes(), crypto).unwrap();
        let copies = [added.clone(), format!("  {added}  ")];
        for copy in copies.iter().filter(|copy| entry.stored.len() + copy.len() <= 255) {
            fs::write(world.folder.path().join(format!("{}{copy}", entry.stored.to_str().unwrap())), "")
                .unwrap();
        }
        let listed = list(&tree, &root, crypto);
        let copies: Vec<_> = listed.iter().filter(|shown| **shown != name.as_bytes()).collect();
        assert!(copies.iter().all(|shown| shown.len() <= 255 && shown.ends_with(b"]")));
        assert!(copies.iter().all(|shown| std::str::from_utf8(shown).is_ok()));
        for one in tree.list(&root, crypto).unwrap().0 {
            tree.remove(&root, &one.entry(), false).unwrap();
        }
    }
}

#[test]
fn a_copy_of_a_long_name_outlives_the_entry() {
    for listed in [false, true] {
        let mut world = World::new(NameMode::PerFolder);
        let (tree, root) = world.tree();
        let crypto = &mut world.crypto;
        let long = [b'l'; 200];
        make(&tree, &root, &long, crypto);
        let entry = tree.entry(&root, &long, crypto).unwrap();
        let path = |name: &str| world.folder.path().join(name);
        fs::write(path(&format!("{} (copy)", entry.stored.to_str().unwrap())), "copy").unwrap();
        if listed {
            list(&tree, &root, crypto);
        }
        tree.remove(&root, &entry, false).unwrap();
        let name = [&long[..], b" [conflict (copy)]"].concat();
        assert_eq!(list(&tree, &root, crypto), BTreeSet::from([name.clone()]));
        assert_eq!(tree.survey(&root, &|| false, crypto).unwrap().useless().count(), 0);
        let copy = tree.copy(&root, &name, crypto).unwrap().unwrap();
        let to = tree.entry(&root, b"kept", crypto).unwrap();
        tree.rename((&root, &copy), (&root, &to), RenameFlags::empty()).unwrap();
        assert_eq!(list(&tree, &root, crypto), set([b"kept"]));
    }
}

#[test]
fn a_folder_goes_with_what_is_ours_in_it_and_with_nothing_else() {
    let mut world = World::new(NameMode::PerFolder);
    let (tree, root, entry, inside) = world.with_folder();
    let crypto = &mut world.crypto;
    // Nor with another volume's files.
    let others = [
        "wattlock.notes",
        "wattlock.dir (copy)",
        "wattlock.sync-conflict-1.dir",
        "Thumbs.db",
        "wattlock.fs",
        "wattlock.journal",
        "wattlock.keys",
    ];
    for other in others {
        fs::write(inside.join(other), "theirs").unwrap();
        assert_eq!(errno(&tree.remove(&root, &entry, true).unwrap_err()), 39, "{other}");
        assert_eq!(fs::read(inside.join(other)).unwrap(), b"theirs");
        tree.folder(&root, &entry, crypto).unwrap();
        fs::remove_file(inside.join(other)).unwrap();
    }
    fs::write(inside.join("wattlock.new.0123456789abcdef"), "a crash").unwrap();
    tree.remove(&root, &entry, true).unwrap();
    assert!(!inside.exists());
}

#[test]
fn records_are_sealed_under_a_new_key_while_the_tree_is_open() {
    let mut world = World::new(NameMode::PerFolder);
    let (tree, root) = world.tree();
    let entry = tree.entry(&root, b"folder", &mut world.crypto).unwrap();
    tree.make_folder(&root, &entry, ALL, &mut world.crypto).unwrap();
    let inner = tree.folder(&root, &entry, &mut world.crypto).unwrap();
    make(&tree, &inner, b"file", &mut world.crypto);
    fs::write(world.folder.path().join("stranger"), "no header").unwrap();

    world.volume.add_generation().unwrap();
    tree.rekey(&world.volume, &mut world.crypto).unwrap();
    let mut headers = 0;
    let mut reseal = |_: &fs::File, named: bool, _: &mut Dispatcher| {
        headers += u32::from(named);
        Ok(if named { Resealed::Anew } else { Resealed::AsItWas })
    };
    let never = || false;
    let (_, again) = Tree::open(world.folder.path(), &world.volume, &mut world.crypto).unwrap();
    let done = rotate_with(&tree, again, &mut reseal, &never, &mut world.crypto).unwrap();
    assert_eq!(
        (done.sealed, done.skipped, done.failed.len()),
        (3, 0, 0),
        "two records and a file; a stranger's is not looked at"
    );
    assert_eq!(headers, 1);

    world.volume.keys.remove(0);
    tree.rekey(&world.volume, &mut world.crypto).unwrap();
    let inner = tree.folder(&root, &entry, &mut world.crypto).unwrap();
    assert_eq!(list(&tree, &inner, &mut world.crypto), set([b"file"]));
    let (tree, root) = world.tree();
    assert_eq!(tree.list(&root, &mut world.crypto).unwrap().0.len(), 1);
}

/// The sync of the rotation before may have failed: then only memory has the new header.
#[test]
fn a_rotation_that_begins_again_writes_what_has_the_new_key_already() {
    let mut world = World::new(NameMode::Plain);
    let (tree, root) = world.tree();
    let store = FolderStore::open(world.folder.path()).unwrap();
    let contents = Contents::start(store, &world.volume, &mut world.crypto).unwrap().0;
    let entry = tree.entry(&root, b"file", &mut world.crypto).unwrap();
    let file = tree.create_file(&root, &entry, ALL).unwrap();
    let meta = file.metadata().unwrap();
    let place = Place { inode: (meta.dev(), meta.ino()), path: b"file".to_vec() };
    drop(contents.create(file.try_clone().unwrap(), place, &mut world.crypto).unwrap());
    contents.checkpoint(&mut world.crypto).unwrap();

    world.volume.add_generation().unwrap();
    contents.rekey(&world.volume, &mut world.crypto).unwrap();
    let mut header = Vec::new();
    let long_ago = std::time::SystemTime::UNIX_EPOCH;
    file.set_modified(long_ago).unwrap();
    for sealed in [1, 0] {
        // Times of files stand still for some milliseconds.
        std::thread::sleep(Duration::from_millis(20));
        let changed =
            |file: &fs::File| file.metadata().map(|meta| (meta.ctime(), meta.ctime_nsec())).unwrap();
        let (_, root) = world.tree();
        let before = changed(&file);
        let done = rotate(&tree, root, (&contents, true), &|| false, &mut world.crypto).unwrap();
        assert_eq!((done.sealed, done.skipped, done.failed.len()), (sealed, 2 - sealed, 0));
        assert_ne!(changed(&file), before, "it was written");
        // Programs that compare sizes and times copy what has another header.
        assert_eq!(file.metadata().unwrap().modified().unwrap(), long_ago + Duration::from_secs(2));
        let before = std::mem::replace(&mut header, fs::read(world.folder.path().join("file")).unwrap());
        assert!(sealed == 1 || header == before, "as it was");
    }
}

/// What is damaged may come back as it was, from a backup or by a program that synchronises; no key that stays helps what was
/// sealed with one that the volume has not.
#[test]
fn only_what_names_an_unknown_key_keeps_no_old_key_in_use() {
    let mut world = World::new(NameMode::PerFolder);
    let (tree, root) = world.tree();
    let store = FolderStore::open(world.folder.path()).unwrap();
    let contents = Contents::start(store, &world.volume, &mut world.crypto).unwrap().0;
    let mut stored = Vec::new();
    for name in [&b"whole"[..], b"cut", b"other key", b"altered"] {
        let entry = tree.entry(&root, name, &mut world.crypto).unwrap();
        let file = tree.create_file(&root, &entry, ALL).unwrap();
        let meta = file.metadata().unwrap();
        let place = Place { inode: (meta.dev(), meta.ino()), path: entry.stored.as_bytes().to_vec() };
        drop(contents.create(file, place, &mut world.crypto).unwrap());
        stored.push(world.folder.path().join(&entry.stored));
    }
    contents.checkpoint(&mut world.crypto).unwrap();
    let change = |at: usize, change: fn(&mut Vec<u8>)| {
        let mut bytes = fs::read(&stored[at]).unwrap();
        change(&mut bytes);
        fs::write(&stored[at], bytes).unwrap();
    };
    change(1, |bytes| bytes.truncate(50));
    change(2, |bytes| bytes[15] = 7);
    change(3, |bytes| bytes[60] ^= 1);
    world.volume.add_generation().unwrap();
    contents.rekey(&world.volume, &mut world.crypto).unwrap();
    let (tree, root) = world.tree();
    let done = rotate(&tree, root, (&contents, true), &|| false, &mut world.crypto).unwrap();
    assert_eq!((done.sealed, done.failed.len(), done.lost.len()), (2, 2, 1), "{done:?}");
}

#[test]
fn a_tree_that_is_open_for_reading_changes_nothing() {
    let mut world = World::new(NameMode::PerFolder);
    let (tree, root, entry, inside) = world.with_folder();
    let (record, crypto) = (inside.join("wattlock.dir"), &mut world.crypto);
    make(&tree, &root, b"file", crypto);
    fs::write(&record, []).unwrap();
    let (tree, root) = Tree::open_to_read(world.folder.path(), &world.volume, crypto).unwrap();
    tree.set_crashed(true);
    assert!(tree.look_through(&|| false, crypto).unwrap());
    let folder = tree.folder(&root, &entry, crypto).unwrap();
    assert!(list(&tree, &folder, crypto).is_empty());
    assert_eq!(tree.take_notes().len(), 1);
    assert_eq!(fs::read(&record).unwrap(), b"");
    assert_eq!(list(&tree, &root, crypto), set([b"file", b"folder"]));
    let file = tree.entry(&root, b"file", crypto).unwrap();
    let new = tree.entry(&root, b"new", crypto).unwrap();
    let refused = [
        tree.create_file(&root, &new, ALL).map(drop),
        tree.open_file(&root, &file, OFlags::RDWR).map(drop),
        tree.make_folder(&root, &new, ALL, crypto),
        tree.make_node(&root, &new, FileType::Fifo, ALL, 0),
        tree.make_link(&root, &new, b"target", crypto),
        tree.hard_link((&root, &file), (&root, &new)),
        tree.rename((&root, &file), (&root, &new), RenameFlags::empty()),
        tree.remove(&root, &file, false),
        tree.remove(&root, &entry, true),
    ];
    for refused in refused {
        assert_eq!(errno(&refused.unwrap_err()), rustix::io::Errno::ROFS.raw_os_error());
    }
    tree.open_file(&root, &file, OFlags::RDONLY).unwrap();
    assert_eq!(list(&tree, &root, crypto), set([b"file", b"folder"]));
}

/// What other programs put into a volume's folder is theirs, whatever a crash left beside it.
#[test]
fn a_crash_gives_no_header_to_files_of_other_programs() {
    let others: [(&str, &[u8]); 5] = [
        (".stignore", b"*.tmp"),
        (".nomedia", b""),
        ("Thumbs.db", &[0; 200]),
        ("desktop.ini", &[0; 10]),
        ("wattlock.notes", b""),
    ];
    for mode in [NameMode::PerFolder, NameMode::Deterministic] {
        let mut world = World::new(mode);
        let (tree, root) = world.tree();
        let crypto = &mut world.crypto;
        let store = || FolderStore::open(world.folder.path()).unwrap();
        // An epoch that does not end, and in it a file that has no bytes yet.
        let contents = Contents::start(store(), &world.volume, crypto).unwrap().0;
        drop(contents.before_create(crypto).unwrap());
        make(&tree, &root, b"new", crypto);
        let short = tree.entry(&root, b"short", crypto).unwrap();
        tree.create_file(&root, &short, ALL).unwrap().write_all(b"too short").unwrap();
        std::mem::forget(contents);
        for (name, content) in others {
            fs::write(world.folder.path().join(name), content).unwrap();
        }
        let copied = tempfile::tempdir().unwrap();
        let mut copy = std::process::Command::new("cp");
        assert!(
            copy.arg("-a").arg(world.folder.path().join(".")).arg(copied.path()).status().unwrap().success()
        );
        // What is as young as the start may be somebody's who is making it.
        std::thread::sleep(std::time::Duration::from_millis(100));
        let store = FolderStore::open(copied.path()).unwrap();
        let contents = Contents::start(store, &world.volume, crypto).unwrap().0;
        assert!(contents.may_be_torn());
        contents.look_through(true, &|| false, crypto).unwrap();
        for (name, content) in others {
            assert_eq!(fs::read(copied.path().join(name)).unwrap(), content, "{name}");
        }
        let len =
            |entry: &wattlock_fs::tree::Entry| fs::metadata(copied.path().join(&entry.stored)).unwrap().len();
        assert_eq!(len(&tree.entry(&root, b"new", crypto).unwrap()), 136, "it was begun and is empty");
        assert_eq!(len(&short), 9, "it may be anything");
    }
}
