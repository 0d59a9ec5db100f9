//! Two machines that write to one volume while apart, and a program that synchronises its folder: as several do it, by their
//! names of conflicting copies. What either machine was told is written is there afterwards, under some name.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, SystemTime};

use crate::desk::{Desk, good};

/// How programs name the older of two versions: by a stem and an extension with its dot.
type Naming = fn(&str, &str) -> String;

const NAMINGS: [(&str, Naming); 6] = [
    ("Syncthing", |stem, extension| format!("{stem}.sync-conflict-20261127-101112-ABCDEFG{extension}")),
    ("Dropbox", |stem, extension| format!("{stem} (Anna's conflicted copy 2026-11-27){extension}")),
    ("Nextcloud", |stem, extension| format!("{stem} (conflicted copy 2026-11-27 101112){extension}")),
    ("rclone", |stem, extension| format!("{stem}{extension}.conflict1")),
    ("OneDrive", |stem, extension| format!("{stem}-LAPTOP{extension}")),
    ("rsync", |stem, extension| format!("{stem}{extension}~")),
];

/// Backing files by path, with their bytes and times.
type Tree = BTreeMap<PathBuf, (Vec<u8>, SystemTime)>;

fn tree(root: &Path) -> Tree {
    let (mut files, mut left) = (Tree::new(), vec![root.to_owned()]);
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                left.push(path);
            } else {
                let time = entry.metadata().unwrap().modified().unwrap();
                files.insert(path.strip_prefix(root).unwrap().to_owned(), (fs::read(&path).unwrap(), time));
            }
        }
    }
    files
}

fn deliver(root: &Path, path: &Path, (bytes, time): &(Vec<u8>, SystemTime)) {
    let to = root.join(path);
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    // Another inode, as such programs do it.
    let part = to.with_file_name(".part");
    fs::write(&part, bytes).unwrap();
    fs::File::options().write(true).open(&part).unwrap().set_modified(*time).unwrap();
    fs::rename(part, to).unwrap();
}

fn renamed(path: &Path, naming: Naming) -> PathBuf {
    let name = path.file_name().unwrap().to_str().unwrap();
    let (stem, extension) = name.rfind('.').filter(|at| *at > 0).map_or((name, ""), |at| name.split_at(at));
    path.with_file_name(naming(stem, extension))
}

/// Brings two folders to one state. What changed in both is kept in both: the newer one under its name. What is `late` is not
/// looked at.
fn synchronise(roots: [&Path; 2], base: &mut Tree, naming: Naming, late: &dyn Fn(&Path) -> bool) {
    let [a, b] = roots.map(tree);
    let paths: BTreeSet<_> = a.keys().chain(b.keys()).chain(base.keys()).cloned().collect();
    for path in paths.into_iter().filter(|path| !late(path)) {
        let bytes = |tree: &Tree| tree.get(&path).map(|(bytes, _)| bytes.clone());
        let (in_a, in_b, before) = (bytes(&a), bytes(&b), bytes(base));
        let mut take = |from: &Tree, to: &Path| match from.get(&path) {
            Some(file) => {
                deliver(to, &path, file);
                base.insert(path.clone(), file.clone());
            }
            None => {
                _ = fs::remove_file(to.join(&path));
                base.remove(&path);
            }
        };
        match (in_a == before, in_b == before) {
            _ if in_a == in_b => match a.get(&path) {
                Some(file) => _ = base.insert(path, file.clone()),
                None => _ = base.remove(&path),
            },
            (true, _) => take(&b, roots[0]),
            (_, true) => take(&a, roots[1]),
            _ => {
                let (Some(one), Some(other)) = (a.get(&path), b.get(&path)) else {
                    // Removed here and changed there: what changed stays.
                    let (from, to) = if in_a.is_some() { (&a, roots[1]) } else { (&b, roots[0]) };
                    take(from, to);
                    continue;
                };
                let (newer, older) = if one.1 >= other.1 { (one, other) } else { (other, one) };
                let copy = renamed(&path, naming);
                for root in roots {
                    deliver(root, &path, newer);
                    deliver(root, &copy, older);
                }
                base.insert(path, newer.clone());
                base.insert(copy, older.clone());
            }
        }
    }
}

struct Machines {
    desk: Desk,
}

impl Machines {
    fn run(&self, machine: usize, words: &[&str]) -> Output {
        let state = self.desk.at(&format!("state {machine}"));
        self.desk.command(words).env("WATTLOCK_STATE_DIR", state).output().unwrap()
    }

    fn write(&self, machine: usize, name: &str, text: &str) {
        fs::write(self.desk.at("in"), text).unwrap();
        let words = ["fs", "cp", "--into", "--force", "-i", "key.txt", &format!("vol{machine}"), "in", name];
        good(&self.run(machine, &words));
    }

    fn make_folder(&self, machine: usize, name: &str) {
        fs::create_dir_all(self.desk.at("empty").join(name)).unwrap();
        let from = format!("empty/{name}");
        let words =
            ["fs", "cp", "-r", "--into", "--force", "-i", "key.txt", &format!("vol{machine}"), &from, "/"];
        good(&self.run(machine, &words));
    }

    /// Every file's content, by the name that is shown.
    fn contents(&self, machine: usize) -> BTreeMap<PathBuf, String> {
        let out = self.desk.at("out");
        _ = fs::remove_dir_all(&out);
        let volume = format!("vol{machine}");
        good(&self.run(machine, &["fs", "cp", "-r", "-T", "-i", "key.txt", &volume, "/", "out"]));
        let text = |(path, (bytes, _)): (PathBuf, (Vec<u8>, _))| (path, String::from_utf8(bytes).unwrap());
        tree(&out).into_iter().map(text).collect()
    }
}

fn two_machines(naming: Naming, names: &str) {
    let desk = Desk::new(&["--names", names]);
    let copy = |to: &str| {
        let done = std::process::Command::new("cp").arg("-a").args([desk.at("vol"), desk.at(to)]).output();
        good(&done.unwrap());
    };
    copy("vol0");
    copy("vol1");
    let roots = [desk.at("vol0"), desk.at("vol1")];
    let roots = [&*roots[0], &*roots[1]];
    let machines = Machines { desk };
    let mut base = tree(roots[0]);
    for round in 0..3 {
        let mut written = Vec::new();
        for machine in 0..2 {
            machines.make_folder(machine, "folder");
            let long = format!("/{}", "long".repeat(45));
            for name in ["/doc.txt", "/folder/common", &format!("/folder/of {machine}"), &long] {
                let text = format!("{name} {machine} {round}");
                machines.write(machine, name, &text);
                written.push(text);
            }
            // So that one is the newer.
            std::thread::sleep(Duration::from_millis(20));
        }
        // Some files come later than others, and in any order.
        let late = |path: &Path| (path.to_string_lossy().len() + round).is_multiple_of(3);
        synchronise(roots, &mut base, naming, &late);
        for machine in 0..2 {
            good(&machines.run(machine, &["fs", "ls", "-i", "key.txt", &format!("vol{machine}")]));
        }
        synchronise(roots, &mut base, naming, &|_| false);
        synchronise(roots, &mut base, naming, &|_| false);
        for machine in 0..2 {
            let there: BTreeSet<String> = machines.contents(machine).into_values().collect();
            for text in &written {
                assert!(there.contains(text), "{text} is lost on machine {machine}: {there:?}");
            }
            let volume = format!("vol{machine}");
            let checked = machines.run(machine, &["fs", "check", "-i", "key.txt", &volume]);
            assert!(good(&checked).contains(" 0 damaged"), "{round}");
        }
    }
}

#[test]
fn what_two_machines_wrote_is_there_after_any_program_has_synchronised_them() {
    for (program, naming) in NAMINGS {
        eprintln!("{program}");
        two_machines(naming, "folder");
    }
}

#[test]
fn the_same_with_other_names() {
    for names in ["deterministic", "plain"] {
        eprintln!("{names}");
        two_machines(NAMINGS[0].1, names);
    }
}
