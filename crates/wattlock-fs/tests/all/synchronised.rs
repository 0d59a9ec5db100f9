//! A volume's folder that a program synchronises between machines: two of them made one folder, and its record has copies.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use common::{ALL, World, make};
use rustix::fs::{OFlags, RenameFlags};
use wattlock::Dispatcher;
use wattlock_fs::check::{Check, Found};
use wattlock_fs::content::Contents;
use wattlock_fs::rotate::{Resealed, rotate_with};
use wattlock_fs::store::FolderStore;
use wattlock_fs::tree::{Entry, Folder, Tree};
use wattlock_fs::volume::NameMode;

const LONG: [u8; 200] = [b'l'; 200];
/// As Syncthing, Dropbox, rclone and others call a copy of `wattlock.dir`.
const COPIES: [&str; 4] = [
    "wattlock.sync-conflict-20261127-010203-ABCDEFG.dir",
    "wattlock.dir.sync-conflict-20261127-010203-ABCDEFG",
    "wattlock (Anna's conflicted copy 2026-11-27).dir",
    "wattlock.dir~",
];

/// A folder that two machines made, and what each put into it.
struct Merged {
    world: World,
    /// Its backing folder; the volume's own if there is no entry.
    inside: PathBuf,
    entry: Option<Entry>,
    copy: &'static str,
}

/// Moves what is in one folder into another one, as far as that has no such name.
fn merge(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let to = to.join(entry.as_ref().unwrap().file_name());
        if !to.exists() {
            fs::rename(entry.unwrap().path(), to).unwrap();
        }
    }
}

impl Merged {
    fn new(copy: &'static str, of_volume: bool) -> Merged {
        let mut world = World::new(NameMode::PerFolder);
        let (tree, root) = world.tree();
        let crypto = &mut world.crypto;
        let (mut entry, mut inside) = (None, world.folder.path().to_owned());
        let mut folder = root;
        if !of_volume {
            let made = tree.entry(&folder, b"Example", crypto).unwrap();
            tree.make_folder(&folder, &made, ALL, crypto).unwrap();
            inside.push(&made.stored);
            folder = tree.folder(&folder, &made, crypto).unwrap();
            entry = Some(made);
        }
        for name in [&b"ours"[..], b"common", &LONG] {
            make(&tree, &folder, name, crypto);
        }
        // The other machine's, while apart.
        let apart = tempfile::tempdir_in(world.folder.path()).unwrap();
        Tree::init(apart.path(), &world.volume, crypto).unwrap();
        let (tree, other) = Tree::open(apart.path(), &world.volume, crypto).unwrap();
        for name in [&b"theirs"[..], b"common", &[b'm'; 200]] {
            make(&tree, &other, name, crypto);
        }
        let inner = tree.entry(&other, b"folder", crypto).unwrap();
        tree.make_folder(&other, &inner, ALL, crypto).unwrap();
        make(&tree, &tree.folder(&other, &inner, crypto).unwrap(), b"deep", crypto);
        tree.sync_records().unwrap();
        fs::rename(apart.path().join("wattlock.dir"), inside.join(copy)).unwrap();
        merge(apart.path(), &inside);
        Merged { world, inside, entry, copy }
    }

    fn tree(&mut self) -> (Tree, Folder) {
        let (tree, root) = self.world.tree();
        let folder = match &self.entry {
            Some(entry) => tree.folder(&root, entry, &mut self.world.crypto).unwrap(),
            None => root,
        };
        (tree, folder)
    }

    /// What is added to the record's name.
    fn added(&self) -> &'static str {
        let behind = self.copy.strip_prefix("wattlock.dir");
        behind.unwrap_or_else(|| &self.copy["wattlock".len()..self.copy.len() - ".dir".len()]).trim()
    }

    /// The names that are shown.
    fn all(&self) -> BTreeSet<Vec<u8>> {
        let other = format!("common [conflict {}]", self.added());
        let names = [&b"ours"[..], b"theirs", b"common", other.as_bytes(), b"folder", &LONG, &[b'm'; 200]];
        names.into_iter().map(<[u8]>::to_vec).collect()
    }

    fn check(&mut self, repair: bool) -> Found {
        let Merged { world, .. } = self;
        let (tree, root) = world.tree();
        let check = Check::<FolderStore>::new(&tree, root, None, 4096, repair);
        check.work(&|| false, &mut world.crypto);
        check.found()
    }
}

fn listed(tree: &Tree, folder: &Folder, crypto: &mut Dispatcher) -> BTreeMap<Vec<u8>, Entry> {
    let survey = tree.survey(folder, &|| false, crypto).unwrap();
    assert!(survey.foreign.is_empty(), "{:?}", survey.foreign);
    let found: BTreeMap<_, _> = survey.listed.iter().map(|one| (one.name.clone(), one.entry())).collect();
    assert_eq!(found.len(), survey.listed.len(), "each name once");
    found
}

fn shown(tree: &Tree, folder: &Folder, crypto: &mut Dispatcher) -> BTreeSet<Vec<u8>> {
    listed(tree, folder, crypto).into_keys().collect()
}

/// What a path of one name leads to, as a mount looks it up.
fn found(tree: &Tree, folder: &Folder, name: &[u8], inside: &Path, crypto: &mut Dispatcher) -> Option<Entry> {
    let entry = tree.entry(folder, name, crypto).unwrap();
    if fs::symlink_metadata(inside.join(&entry.stored)).is_ok() {
        return Some(entry);
    }
    tree.copy(folder, name, crypto).unwrap()
}

#[test]
fn b7_two_machines_make_one_folder_and_every_name_opens() {
    for of_volume in [false, true] {
        for copy in COPIES {
            let mut merged = Merged::new(copy, of_volume);
            // Nobody lists it before.
            let (tree, folder) = merged.tree();
            let (all, inside) = (merged.all(), merged.inside.clone());
            let crypto = &mut merged.world.crypto;
            let mut stored = BTreeSet::new();
            for name in &all {
                let entry = found(&tree, &folder, name, &inside, crypto);
                let entry = entry.unwrap_or_else(|| panic!("{copy}: {}", name.escape_ascii()));
                assert!(stored.insert(entry.stored.clone()), "each name is another entry");
                assert_eq!(tree.name(&folder, &entry.stored, crypto).unwrap().as_ref(), Some(name));
            }
            assert_eq!(found(&tree, &folder, b"none", &inside, crypto), None);
            assert_eq!(shown(&tree, &folder, crypto), all);
            let inner = found(&tree, &folder, b"folder", &inside, crypto).unwrap();
            let inner = tree.folder(&folder, &inner, crypto).unwrap();
            assert_eq!(shown(&tree, &inner, crypto).len(), 1);
            // New names are the folder's own.
            make(&tree, &folder, b"new", crypto);
            let theirs = found(&tree, &folder, b"theirs", &inside, crypto).unwrap();
            let mine = tree.entry(&folder, b"mine", crypto).unwrap();
            tree.rename((&folder, &theirs), (&folder, &mine), RenameFlags::empty()).unwrap();
            assert_eq!(found(&tree, &folder, b"theirs", &inside, crypto), None);
            fs::rename(inside.join(copy), inside.join("aside")).unwrap();
            let (tree, folder) = merged.tree();
            let survey = tree.survey(&folder, &|| false, &mut merged.world.crypto).unwrap();
            let names: BTreeSet<_> = survey.listed.into_iter().map(|one| one.name).collect();
            let own = [&b"ours"[..], b"common", &LONG, b"new", b"mine"];
            assert_eq!(names, own.into_iter().map(<[u8]>::to_vec).collect());
        }
    }
}

#[test]
fn b7_a_check_says_so_and_repair_moves_nothing_that_it_can_name() {
    for of_volume in [false, true] {
        let mut merged = Merged::new(COPIES[0], of_volume);
        let before = stored(merged.world.folder.path());
        for repair in [false, true] {
            let found = merged.check(repair);
            assert_eq!((found.damaged, found.repaired), (vec![], vec![]));
            let [note] = &found.notes[..] else { panic!("{:?}", found.notes) };
            assert!(note.contains("two machines made this folder; 4 names open"), "{note}");
        }
        assert_eq!(stored(merged.world.folder.path()), before);
    }
}

/// Paths of all files below a folder.
fn stored(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(stored(&path));
        }
        found.insert(path);
    }
    found
}

/// Lost, a placeholder, cut, without bytes: the copy counts, and an empty record gets no fresh one.
#[test]
fn b7_a_lost_record_is_read_by_its_copy_and_repaired_from_it() {
    let lost: [Option<&[u8]>; 5] =
        [None, Some(b"<placeholder>"), Some(&[]), Some(&[0; 128]), Some(&[7; 5000])];
    for of_volume in [false, true] {
        for (at, lost) in lost.into_iter().enumerate() {
            let mut merged = Merged::new(COPIES[at % COPIES.len()], of_volume);
            let record = merged.inside.join("wattlock.dir");
            // Two more copies: the one's bytes are nothing, the other's are the lost record's.
            fs::write(merged.inside.join("wattlock.dir.0"), [0; 128]).unwrap();
            fs::write(merged.inside.join("wattlock.dir.1"), []).unwrap();
            let own = merged.inside.join("wattlock.dir.conflict");
            fs::copy(&record, &own).unwrap();
            match lost {
                Some(bytes) => fs::write(&record, bytes).unwrap(),
                None => fs::remove_file(&record).unwrap(),
            }
            let (tree, folder) = merged.tree();
            tree.set_crashed(true);
            tree.look_through(&|| false, &mut merged.world.crypto).unwrap();
            assert!(tree.take_notes().is_empty());
            assert_eq!(fs::read(&record).ok().as_deref(), lost, "it is not mended by a fresh one");
            assert_eq!(shown(&tree, &folder, &mut merged.world.crypto).len(), 7);
            make(&tree, &folder, b"new", &mut merged.world.crypto);
            let said = merged.check(false);
            assert_eq!(said.damaged.len(), 1, "{:?}", said.damaged);
            assert!(said.damaged[0].contains("; a copy of it opens"), "{:?}", said.damaged);
            assert_eq!(fs::read(&record).ok().as_deref(), lost);
            // As a crash leaves a repair that has begun.
            if at == 1 {
                fs::rename(&record, merged.inside.join("wattlock.bad.0123456789abcdef")).unwrap();
            }
            let said = merged.check(true);
            assert_eq!((said.damaged.len(), said.repaired.len()), (0, 1), "{said:?}");
            let said = merged.check(false);
            assert_eq!((said.damaged.len(), said.repaired.len()), (0, 0), "{said:?}");
            let (tree, folder) = merged.tree();
            let names = shown(&tree, &folder, &mut merged.world.crypto);
            assert!(names.contains(&b"new"[..]) && names.contains(&b"theirs"[..]) && names.len() == 8);
        }
    }
}

#[test]
fn b7_a_link_in_place_of_a_record_is_a_lost_record() {
    let mut merged = Merged::new(COPIES[2], false);
    let record = merged.inside.join("wattlock.dir");
    fs::rename(&record, merged.inside.join("wattlock.dir~")).unwrap();
    std::os::unix::fs::symlink(".annex/objects/dir", &record).unwrap();
    let (tree, folder) = merged.tree();
    assert_eq!(shown(&tree, &folder, &mut merged.world.crypto).len(), 7);
    let said = [false, true, false].map(|repair| merged.check(repair));
    assert_eq!(
        said.each_ref().map(|said| (said.damaged.len(), said.repaired.len())),
        [(1, 0), (0, 1), (0, 0)]
    );
    assert!(fs::symlink_metadata(&record).unwrap().is_file());
}

#[test]
fn b7_no_copy_of_a_record_without_bytes_is_believed() {
    let mut world = World::new(NameMode::PerFolder);
    let (tree, root, entry, inside) = world.with_folder();
    let crypto = &mut world.crypto;
    make(&tree, &tree.folder(&root, &entry, crypto).unwrap(), b"file", crypto);
    fs::remove_file(inside.join("wattlock.dir")).unwrap();
    for copy in [&[][..], &[0; 128], b"rubbish"] {
        fs::write(inside.join("wattlock.dir (copy)"), copy).unwrap();
        assert!(tree.folder(&root, &entry, crypto).is_err());
    }
    // Nor a link, or something that is no file.
    fs::remove_file(inside.join("wattlock.dir (copy)")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", inside.join("wattlock.dir (copy)")).unwrap();
    fs::create_dir(inside.join("wattlock.dir (2)")).unwrap();
    assert!(tree.folder(&root, &entry, crypto).is_err());
}

#[test]
fn b7_hostile_records_cost_little_and_change_no_name() {
    let mut merged = Merged::new(COPIES[1], false);
    let (tree, root) = merged.world.tree();
    let crypto = &mut merged.world.crypto;
    // Another folder's record and an entry of it; another volume's record; and rubbish, more than is tried.
    let other = tree.entry(&root, b"other", crypto).unwrap();
    tree.make_folder(&root, &other, ALL, crypto).unwrap();
    let from = merged.world.folder.path().join(&other.stored);
    let other = tree.folder(&root, &other, crypto).unwrap();
    for name in [&b"ours"[..], b"planted"] {
        make(&tree, &other, name, crypto);
    }
    let strange = World::new(NameMode::PerFolder);
    fs::copy(strange.folder.path().join("wattlock.dir"), merged.inside.join("wattlock.dir (strange)"))
        .unwrap();
    fs::rename(from.join("wattlock.dir"), merged.inside.join("wattlock.dir (other)")).unwrap();
    merge(&from, &merged.inside);
    let (tree, folder) = merged.tree();
    let names = shown(&tree, &folder, &mut merged.world.crypto);
    let mut all = merged.all();
    all.extend([b"planted".to_vec(), b"ours [conflict (other)]".to_vec()]);
    assert_eq!(names, all);
    for number in 0..40 {
        fs::write(merged.inside.join(format!("wattlock.dir{number:03}")), [b'w'; 128]).unwrap();
    }
    let (tree, folder) = merged.tree();
    let survey = tree.survey(&folder, &|| false, &mut merged.world.crypto).unwrap();
    let names: BTreeSet<_> = survey.listed.iter().map(|one| &*one.name).collect();
    assert!([&b"ours"[..], b"common", &LONG].iter().all(|name| names.contains(name)));
}

#[test]
fn b7_a_folder_of_several_records_is_removed_once_it_shows_nothing() {
    for copy in COPIES {
        let mut merged = Merged::new(copy, false);
        let (tree, root) = merged.world.tree();
        let (tree, folder) = {
            drop((tree, root));
            merged.tree()
        };
        let entry = merged.entry.clone().unwrap();
        let (_, root) = merged.world.tree();
        let crypto = &mut merged.world.crypto;
        let record = fs::read(merged.inside.join(copy)).unwrap();
        let refused = |tree: &Tree| assert_eq!(tree.remove(&root, &entry, true).unwrap_err().errno(), 39);
        refused(&tree);
        for (name, one) in listed(&tree, &folder, crypto) {
            if name == b"folder" {
                let inner = tree.folder(&folder, &one, crypto).unwrap();
                let deep = tree.entry(&inner, b"deep", crypto).unwrap();
                tree.remove(&inner, &deep, false).unwrap();
            }
            refused(&tree);
            tree.remove(&folder, &one, name == b"folder").unwrap();
        }
        assert!(shown(&tree, &folder, crypto).is_empty());
        // What is called so and is no record stays, and so do the records beside it.
        let other = merged.inside.join("wattlock.dir.theirs");
        fs::write(&other, "theirs").unwrap();
        refused(&tree);
        assert_eq!(fs::read(merged.inside.join(copy)).unwrap(), record);
        fs::remove_file(other).unwrap();
        let closed = fs::Permissions::from_mode(0o000);
        fs::set_permissions(&merged.inside, closed).unwrap();
        tree.remove(&root, &entry, true).unwrap();
        assert!(!merged.inside.exists());
    }
}

#[test]
fn b7_all_records_of_a_folder_are_sealed_under_the_new_key() {
    for of_volume in [false, true] {
        let mut merged = Merged::new(COPIES[2], of_volume);
        // One that opens with no key keeps none in use.
        fs::write(merged.inside.join("wattlock.dir.rubbish"), [b'w'; 128]).unwrap();
        let all = merged.all();
        let world = &mut merged.world;
        world.volume.add_generation().unwrap();
        let (tree, root) = world.tree();
        // Files here have no headers.
        let reseal = &mut |_: &fs::File, _, _: &mut _| Ok(Resealed::AsItWas);
        let done = rotate_with(&tree, root, reseal, &|| false, &mut world.crypto).unwrap();
        assert!(done.failed.is_empty() && done.lost.is_empty(), "{done:?}");
        assert_eq!(done.sealed, 4 - u64::from(of_volume));
        world.volume.keys.remove(0);
        let (tree, folder) = merged.tree();
        assert_eq!(shown(&tree, &folder, &mut merged.world.crypto), all);
    }
}

/// Other programs change the folder meanwhile: what was the other record's is an entry's now.
#[test]
fn b7_a_name_of_the_other_record_that_is_gone_is_free() {
    let mut merged = Merged::new(COPIES[0], false);
    let (tree, folder) = merged.tree();
    let inside = merged.inside.clone();
    let crypto = &mut merged.world.crypto;
    let own = tree.entry(&folder, b"theirs", crypto).unwrap();
    tree.set_shared(true);
    let theirs = found(&tree, &folder, b"theirs", &inside, crypto).unwrap();
    assert!(theirs != own);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    fs::rename(inside.join(&theirs.stored), inside.join(&own.stored)).unwrap();
    assert_eq!(found(&tree, &folder, b"theirs", &inside, crypto), Some(own));
}

/// The other machine's record and entries arrive, or take the place of this one's, while the folder is open.
#[test]
fn b7_an_open_folder_shows_what_arrives_by_another_record() {
    let mut merged = Merged::new(COPIES[0], false);
    let (record, copy) = (merged.inside.join("wattlock.dir"), merged.inside.join(merged.copy));
    let aside = merged.inside.join("aside");
    fs::rename(&copy, &aside).unwrap();
    let (tree, folder) = merged.tree();
    tree.set_shared(true);
    let (all, crypto) = (merged.all(), &mut merged.world.crypto);
    let survey = tree.survey(&folder, &|| false, crypto).unwrap();
    assert_eq!((survey.listed.len(), survey.foreign.len()), (3, 5), "four of the other's, and its record");
    fs::rename(&aside, &copy).unwrap();
    assert_eq!(shown(&tree, &folder, crypto), all);
    // The records change places: the names that are shown stay.
    fs::rename(&record, &aside).unwrap();
    fs::rename(&copy, &record).unwrap();
    fs::rename(&aside, &copy).unwrap();
    assert_eq!(shown(&tree, &folder, crypto), all);
    make(&tree, &folder, b"new", crypto);
    let (tree, folder) = merged.tree();
    let names = shown(&tree, &folder, &mut merged.world.crypto);
    assert!(names.is_superset(&all) && names.contains(&b"new"[..]) && names.len() == 8);
}

/// What is removed does not come back by the same name while the volume is open.
#[test]
fn b7_a_shown_name_stays_when_the_entry_that_had_it_goes() {
    let mut merged = Merged::new(COPIES[0], false);
    let (tree, folder) = merged.tree();
    let (mut all, crypto) = (merged.all(), &mut merged.world.crypto);
    assert_eq!(shown(&tree, &folder, crypto), all);
    let common = tree.entry(&folder, b"common", crypto).unwrap();
    tree.remove(&folder, &common, false).unwrap();
    all.remove(&b"common"[..]);
    assert_eq!(shown(&tree, &folder, crypto), all);
    let (tree, folder) = merged.tree();
    assert!(shown(&tree, &folder, &mut merged.world.crypto).contains(&b"common"[..]));
}

/// Of the longest name of a record's copy, and of one of blanks.
#[test]
fn audit_10_a_records_suffix_is_marked_whatever_it_is() {
    for added in ["~".repeat(243), "\u{e4}".repeat(121), " ".repeat(9), "]/ [conflict".replace('/', "")] {
        let mut merged = Merged::new("wattlock.dir~", false);
        fs::rename(merged.inside.join("wattlock.dir~"), merged.inside.join(format!("wattlock.dir{added}")))
            .unwrap();
        let (tree, folder) = merged.tree();
        let names = shown(&tree, &folder, &mut merged.world.crypto);
        assert_eq!(names.len(), 7);
        let marked: Vec<_> = names.iter().filter(|name| name.ends_with(b"]")).collect();
        assert!(marked.len() == 1 && marked[0].starts_with(b"common [conflict ") && marked[0].len() <= 255);
        assert!(std::str::from_utf8(marked[0]).is_ok());
    }
}

#[test]
fn b7_copies_of_entries_of_both_records_are_shown() {
    let mut merged = Merged::new(COPIES[3], false);
    let (tree, folder) = merged.tree();
    let crypto = &mut merged.world.crypto;
    for (name, one) in listed(&tree, &folder, crypto) {
        if name != b"folder" {
            let stored = one.stored.to_str().unwrap();
            fs::write(merged.inside.join(format!("{stored}.desktop")), "").unwrap();
        }
    }
    let (tree, folder) = merged.tree();
    let crypto = &mut merged.world.crypto;
    let names = shown(&tree, &folder, crypto);
    assert_eq!(names.len(), 13);
    let mut expected: Vec<&[u8]> =
        vec![b"ours [conflict .desktop]", b"theirs [conflict .desktop]", b"common [conflict .desktop]"];
    expected.push(b"common [conflict .desktop ~2]");
    assert!(expected.iter().all(|name| names.contains(*name)));
    assert!(names.iter().filter(|name| name.ends_with(b"]")).count() == 7);
}

/// The file with the name is lost, and the synchronising program kept its copy.
#[test]
fn b10_a_long_name_is_read_from_a_copy_of_the_file_beside_it_and_repaired() {
    for mode in [NameMode::PerFolder, NameMode::Deterministic] {
        for lost in [None, Some(&b""[..]), Some(b"<placeholder>")] {
            let mut world = World::new(mode);
            let (tree, root) = world.tree();
            make(&tree, &root, &LONG, &mut world.crypto);
            let entry = tree.entry(&root, &LONG, &mut world.crypto).unwrap();
            let path =
                |name: &str| world.folder.path().join(format!("{}{name}", entry.stored.to_str().unwrap()));
            let (beside, copy) = (path(".name"), path(".sync-conflict-20261127.name"));
            let sealed = fs::read(&beside).unwrap();
            fs::rename(&beside, &copy).unwrap();
            fs::write(path(".0.name"), b"rubbish").unwrap();
            if let Some(bytes) = lost {
                fs::write(&beside, bytes).unwrap();
            }
            assert_eq!(shown(&tree, &root, &mut world.crypto), BTreeSet::from([LONG.to_vec()]));
            for repair in [false, true, false] {
                let (tree, root) = world.tree();
                let check = Check::<FolderStore>::new(&tree, root, None, 4096, repair);
                check.work(&|| false, &mut world.crypto);
                let found = check.found();
                let damaged = usize::from(!repair && fs::read(&beside).ok().as_ref() != Some(&sealed));
                assert_eq!(
                    (found.damaged.len(), found.repaired.len()),
                    (damaged, usize::from(repair)),
                    "{found:?}"
                );
            }
            assert_eq!(fs::read(&beside).unwrap(), sealed);
        }
    }
}

/// It opens by its name and is removed.
#[test]
fn a_copy_of_a_long_entry_may_be_called_as_a_copy_of_the_file_beside_it() {
    let mut world = World::new(NameMode::PerFolder);
    let (tree, root) = world.tree();
    let store = FolderStore::open(world.folder.path()).unwrap();
    let contents = Contents::start(store, &world.volume, &mut world.crypto).unwrap().0;
    let crypto = &mut world.crypto;
    let entry = tree.entry(&root, &LONG, crypto).unwrap();
    let file = tree.create_file(&root, &entry, ALL).unwrap();
    let place = crate::support::place(world.folder.path(), entry.stored.to_str().unwrap());
    drop(contents.create(file, place, crypto).unwrap());
    contents.checkpoint(crypto).unwrap();
    let stored = world.folder.path().join(&entry.stored);
    for added in [" copy.name", ".dir", ".fs", ".journal"] {
        let copy = format!("{}{added}", stored.to_str().unwrap());
        fs::copy(&stored, &copy).unwrap();
        let name = [&LONG[..], format!(" [conflict {}]", added.trim()).as_bytes()].concat();
        let names = listed(&tree, &root, crypto);
        let one = names.get(&name).unwrap_or_else(|| panic!("{added}: {:?}", names.keys()));
        tree.open_file(&root, one, OFlags::RDONLY).unwrap();
        tree.remove(&root, one, false).unwrap();
        assert!(!Path::new(&copy).exists());
    }
}
