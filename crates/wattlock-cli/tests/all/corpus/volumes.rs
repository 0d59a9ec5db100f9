//! Encrypted volumes: unpacked as a backup is, listed, copied out, checked and, where there is FUSE, mounted.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use super::{Corpus, Piece, What, altered, files_in, versions};
use crate::desk::{fuse, skipped};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Volume {
    /// Each opens it alone, as the passphrase does.
    pub(super) identities: Vec<String>,
    pub(super) passphrase: Option<String>,
    pub(super) tree: Vec<Entry>,
    /// The trees before each replacement that the journal has and that is not in place.
    #[serde(default)]
    before: Vec<Vec<Entry>>,
}

/// What a volume has at a path. What is not named is not the volume's promise.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    pub(super) path: String,
    kind: String,
    mode: Option<u32>,
    mtime_ns: Option<i64>,
    bytes: Option<u64>,
    clear: Option<String>,
    target: Option<String>,
    /// The path of the same file.
    same_as: Option<String>,
    #[serde(default)]
    attributes: BTreeMap<String, String>,
}

/// What this machine can do.
#[derive(Clone, Copy)]
struct Machine {
    attributed: bool,
    mounts: bool,
}

/// Whether the tests' folder has attributes of users.
fn has_attributes(folder: &Path) -> bool {
    let set = rustix::fs::setxattr(folder, "user.wattlock-test", b"x", rustix::fs::XattrFlags::empty());
    if let Err(error) = &set {
        skipped(&format!("attributes of the corpus: {error}"));
    }
    set.is_ok()
}

fn attributes(path: &Path) -> BTreeMap<String, String> {
    let mut names = [0; 4096];
    let len = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    let users = names[..len].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user."));
    users
        .map(|name| {
            let mut value = [0; 4096];
            let len = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
            let hex = value[..len].iter().map(|byte| format!("{byte:02x}")).collect();
            (String::from_utf8(name.to_vec()).unwrap(), hex)
        })
        .collect()
}

/// The paths of all entries in a folder, relative to it.
pub(super) fn all_in(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut left) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(next).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                left.push(entry.path());
            }
            found.push(entry.path().strip_prefix(folder).unwrap().to_owned());
        }
    }
    found.sort();
    found
}

/// Digests of the regular files of a folder, by their paths.
fn contents(corpus: &Corpus, folder: &Path) -> BTreeMap<String, String> {
    let files =
        all_in(folder).into_iter().filter(|path| folder.join(path).symlink_metadata().unwrap().is_file());
    let files: Vec<String> = files.map(|path| path.to_str().unwrap().to_owned()).collect();
    let paths: Vec<String> =
        files.iter().map(|path| folder.join(path).to_str().unwrap().to_owned()).collect();
    files.into_iter().zip(corpus.digests(&paths)).collect()
}

/// Compares a folder with what must be in it.
pub(super) fn same(corpus: &Corpus, folder: &Path, tree: &[Entry], attributed: bool, what: &str) {
    let there: Vec<PathBuf> = all_in(folder);
    let mut expected: Vec<PathBuf> = tree.iter().map(|entry| PathBuf::from(&entry.path)).collect();
    expected.sort();
    assert_eq!(there, expected, "{what}");
    let digests = contents(corpus, folder);
    for entry in tree {
        let what = format!("{what}: {}", entry.path);
        let path = folder.join(&entry.path);
        let meta = path.symlink_metadata().unwrap();
        let kind = match meta.file_type() {
            kind if kind.is_dir() => "folder",
            kind if kind.is_file() => "file",
            kind if kind.is_symlink() => "link",
            kind if kind.is_fifo() => "pipe",
            _ => "other",
        };
        assert_eq!(kind, entry.kind, "{what}");
        if let Some(mode) = entry.mode {
            assert_eq!(meta.mode() & 0o7777, mode, "{what}: mode");
        }
        if let Some(time) = entry.mtime_ns {
            assert_eq!(meta.mtime() * 1_000_000_000 + meta.mtime_nsec(), time, "{what}: time");
        }
        if kind == "file" {
            let found = (Some(meta.len()), digests.get(&entry.path));
            assert_eq!(found, (entry.bytes, entry.clear.as_ref()), "{what}: content");
        }
        if kind == "link" {
            let target = fs::read_link(&path).unwrap();
            assert_eq!(target.as_os_str().as_bytes(), entry.target.as_ref().unwrap().as_bytes(), "{what}");
        }
        if let Some(other) = &entry.same_as {
            assert_eq!(folder.join(other).metadata().unwrap().ino(), meta.ino(), "{what}: hard link");
        }
        if attributed && kind != "link" {
            assert_eq!(attributes(&path), entry.attributes, "{what}: attributes");
        }
    }
}

impl Corpus {
    /// Unpacks a volume; returns the name of its folder.
    pub(super) fn unpack<'a>(&self, file: &'a str) -> &'a str {
        let name = file.rsplit('/').next().unwrap().strip_suffix(".tar.gz").unwrap();
        let _ = fs::remove_dir_all(self.at(name));
        let mut tar = Command::new("tar");
        // GNU tar goes on with a warning where attributes cannot be set.
        tar.args(["--extract", "--gzip", "--preserve-permissions", "--no-same-owner", "--xattrs", "--file"]);
        let output = tar.arg(self.at(file)).current_dir(&self.folder).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        name
    }
}

impl Volume {
    pub(super) fn copied(&self, corpus: &Corpus, way: [&str; 2], name: &str) -> (i32, PathBuf) {
        let out = corpus.at("copied");
        let _ = fs::remove_dir_all(&out);
        let output = corpus.run(&["fs", "cp", "-q", "-r", way[0], way[1], name, "/", "copied"]);
        (output.status.code().unwrap(), out)
    }

    fn opens(&self, corpus: &Corpus, piece: &Piece, machine: Machine) {
        let name = corpus.unpack(&piece.file);
        let ways = corpus.ways(&self.identities, self.passphrase.as_deref());
        let compare = |folder: &Path, attributed: bool, what: &str| {
            same(corpus, folder, &self.tree, attributed, &format!("{name}, {what}"));
        };
        for way in &ways {
            let (code, out) = self.copied(corpus, *way, name);
            assert_eq!(code, 0, "{name}, {way:?}");
            compare(&out, machine.attributed, way[1]);
        }
        let way = ways[0];
        let files = self.tree.iter().filter(|entry| entry.kind == "file").map(|entry| &entry.path[..]);
        let files: Vec<&str> = files.collect();
        let copied: Vec<u8> =
            files.iter().flat_map(|file| fs::read(corpus.at("copied").join(file)).unwrap()).collect();
        let printed = corpus.good(&[&["fs", "cat", way[0], way[1], name], &files[..]].concat());
        assert!(printed == copied, "{name}: what is printed is not what was copied");
        corpus.good(&["fs", "check", way[0], way[1], name]);
        if machine.mounts {
            self.mounts(corpus, way, name, &compare);
        }
        match self.before.is_empty() {
            true => self.refuses_altered_bytes(corpus, &ways, name),
            false => self.refuses_an_altered_journal(corpus, way, piece),
        }
        self.refuses_altered_names(corpus, way, name);
    }

    /// Stored names and targets of links. The names of a plain volume are the storage's choice.
    fn refuses_altered_names(&self, corpus: &Corpus, way: [&str; 2], name: &str) {
        let refused = |what: &Path| {
            let output = corpus.run(&["fs", "check", way[0], way[1], name]);
            assert_eq!(output.status.code(), Some(83), "{}", what.display());
        };
        let plain = self.tree.iter().any(|entry| corpus.at(name).join(&entry.path).exists());
        for path in all_in(&corpus.at(name)).iter().map(|path| corpus.at(name).join(path)) {
            let stored = path.file_name().unwrap().to_str().unwrap();
            let meta = path.symlink_metadata().unwrap();
            if meta.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                let relink = |target: &Path| {
                    fs::remove_file(&path).unwrap();
                    std::os::unix::fs::symlink(target, &path).unwrap();
                };
                relink(&other_symbol(target.to_str().unwrap()));
                refused(&path);
                relink(&target);
            }
            if meta.is_file() && !plain && !stored.contains("wattlock.") {
                let other = path.with_file_name(other_symbol(stored));
                fs::rename(&path, &other).unwrap();
                refused(&path);
                fs::rename(&other, &path).unwrap();
            }
        }
        corpus.good(&["fs", "check", way[0], way[1], name]);
    }

    /// Read-only; and then so that a journal's replacements are put in place, if it has any.
    fn mounts(&self, corpus: &Corpus, way: [&str; 2], name: &str, compare: &dyn Fn(&Path, bool, &str)) {
        fs::create_dir_all(corpus.at("mnt")).unwrap();
        for options in [&["-o", "ro"][..], &[]].into_iter().take(1 + usize::from(!self.before.is_empty())) {
            let _mounted =
                Mounted::new(corpus, &[&["mount", way[0], way[1]], options, &[name, "mnt"]].concat());
            compare(&corpus.at("mnt"), false, "mounted");
        }
        corpus.good(&["fs", "check", way[0], way[1], name]);
    }

    /// Each file of the backing folder that is authenticated, a few bytes of it.
    fn refuses_altered_bytes(&self, corpus: &Corpus, ways: &[[&str; 2]], name: &str) {
        let (by_key, last) = (ways[0], ways[ways.len() - 1]);
        for file in files_in(&corpus.at(name)) {
            let path = corpus.at(name).join(&file);
            // An empty journal may be any bytes: what it said is in place. Pipes have no bytes.
            if file == "wattlock.journal" || !path.symlink_metadata().unwrap().is_file() {
                continue;
            }
            let locked = file.starts_with("wattlock.keys/");
            let [option, value] = if locked { last } else { by_key };
            let good = fs::read(&path).unwrap();
            // Some may only be read.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            for (at, bytes) in places(&good) {
                fs::write(&path, bytes).unwrap();
                let words = if locked { "ls" } else { "check" };
                let output = corpus.run(&["fs", words, option, value, name]);
                assert!(!output.status.success(), "{name}/{file}: byte {at} was altered");
            }
            fs::write(&path, good).unwrap();
        }
        corpus.good(&["fs", "check", by_key[0], by_key[1], name]);
    }

    /// An altered journal is refused, or is one whose end was never written: every file is then as it was once.
    fn refuses_an_altered_journal(&self, corpus: &Corpus, way: [&str; 2], piece: &Piece) {
        let name = corpus.unpack(&piece.file);
        let path = corpus.at(name).join("wattlock.journal");
        let good = fs::read(&path).unwrap();
        let mut refused = 0;
        for (at, bytes) in altered(&good, 40) {
            fs::write(&path, bytes).unwrap();
            let (code, out) = self.copied(corpus, way, name);
            if code != 0 {
                refused += 1;
                continue;
            }
            for (file, digest) in contents(corpus, &out) {
                let known = self.before.iter().flatten().chain(&self.tree).filter(|entry| entry.path == file);
                let known: Vec<&String> = known.filter_map(|entry| entry.clear.as_ref()).collect();
                assert!(known.contains(&&digest), "{name}/{file}: byte {at} of the journal was altered");
            }
        }
        assert!(refused > 0, "{name}: no altered journal was refused");
        // Without it nothing is replaced.
        fs::remove_file(&path).unwrap();
        let (code, out) = self.copied(corpus, way, name);
        assert_eq!(code, 0);
        same(corpus, &out, &self.before[0], false, name);
    }
}

/// A few places of a backing file: its header, its end, and where its slots are not zeros of a hole.
fn places(good: &[u8]) -> Vec<(usize, Vec<u8>)> {
    let written: Vec<usize> = (0..good.len()).filter(|at| good[*at] != 0).collect();
    let among = |part: usize| written[(written.len() - 1) * part / 4];
    let alter = |at: usize| {
        let mut bytes = good.to_vec();
        bytes[at] ^= 1 << (at % 5);
        (at, bytes)
    };
    [0, 2, 4].into_iter().map(among).map(alter).collect()
}

/// With another first symbol of base64url.
fn other_symbol(text: &str) -> PathBuf {
    let (first, rest) = text.split_at(1);
    PathBuf::from(format!("{}{rest}", if first == "A" { "B" } else { "A" }))
}

struct Mounted<'a>(&'a Corpus);

impl<'a> Mounted<'a> {
    fn new(corpus: &'a Corpus, words: &[&str]) -> Mounted<'a> {
        corpus.good(words);
        Mounted(corpus)
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let begun = std::time::Instant::now();
        // A program that another test starts holds open files for a moment.
        while !self.0.run(&["umount", "mnt"]).status.success() && begun.elapsed().as_secs() < 20 {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// Every so-many-th volume, from one on.
fn open_some(from: usize, of: usize, machine: Machine) {
    for corpus in versions() {
        let volumes = corpus.pieces().filter_map(|(piece, what)| match what {
            What::Volume(volume) => Some((piece, volume)),
            _ => None,
        });
        for (piece, volume) in volumes.skip(from).step_by(of) {
            volume.opens(&corpus, piece, machine);
        }
    }
}

#[test]
fn every_kept_volume_opens_and_no_altered_byte_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine { attributed: has_attributes(folder.path()), mounts: fuse() };
    // Each command waits for the disk.
    std::thread::scope(|scope| {
        (0..4).for_each(|from| drop(scope.spawn(move || open_some(from, 4, machine))));
    });
}
