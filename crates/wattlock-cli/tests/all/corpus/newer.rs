//! Pieces of a version to come: each piece of the corpus with another number where its version stands. This version says
//! so by the code of an unknown version, releases nothing, and changes nothing that a newer program wrote.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::volumes::{Volume, all_in, same};
use super::{Corpus, Piece, What, files_in, versions};

/// Where a piece of this kind has its version, and a version that is to come.
const VERSIONS: [(&[u8], usize, &[u8]); 7] = [
    (b"\x8bwattlk\n", 8, &[0, 0, 0, 2]),
    (b"\x8bwattls\n", 8, &[0, 0, 0, 2]),
    (b"\x8bwattlr\n", 8, &[0, 0, 0, 3]),
    (b"age-encryption.org/v1", 20, b"2"),
    (b"wattlofs", 8, &[2]),
    (b"wlfolder", 8, &[2]),
    (b"wattlojh", 8, &[3]),
];

/// The same piece of a version to come; `None` of what has no version.
fn newer(bytes: &[u8]) -> Option<Vec<u8>> {
    let (_, at, version) = VERSIONS.iter().find(|(magic, ..)| bytes.starts_with(magic))?;
    let mut newer = bytes.to_vec();
    newer[*at..*at + version.len()].copy_from_slice(version);
    // The version is in what is sealed: a newer program's has another tag, or it would be ours with a byte altered.
    for (magic, tag) in [(&b"wattlofs"[..], 95), (b"wlfolder", 127)] {
        newer[if bytes.starts_with(magic) { tag } else { *at }] ^= u8::from(bytes.starts_with(magic));
    }
    Some(newer)
}

#[test]
fn a_file_or_stream_of_a_later_version_is_said_to_be_one() {
    for corpus in versions() {
        let (mut files, mut streams) = (0, 0);
        for (piece, what) in corpus.pieces() {
            let Some(newer) = newer(&fs::read(corpus.at(&piece.file)).unwrap()) else { continue };
            fs::write(corpus.at("newer"), newer).unwrap();
            let code = match what {
                What::File(file) => {
                    files += 1;
                    let [option, value] = corpus.ways(&file.identities, file.passphrase.as_deref())[0];
                    let output = corpus.run(&["open", "-q", option, value, "-o", "out", "newer"]);
                    assert!(!corpus.at("out").exists(), "{}: something was released", piece.file);
                    output.status.code().unwrap()
                }
                What::Stream(stream) => {
                    streams += 1;
                    let (code, released) = stream.open(&corpus, "newer");
                    assert!(released.is_empty(), "{}: something was released", piece.file);
                    code
                }
                _ => continue,
            };
            assert_eq!(code, 22, "{}", piece.file);
        }
        assert!(files > 5 && streams > 3, "{files} files, {streams} streams");
    }
}

/// Neither as damage nor left out where every key is meant.
#[test]
fn a_key_entry_of_a_later_version_is_named_and_the_others_are_rewrapped() {
    for corpus in versions() {
        let entries: Vec<(&Piece, &str)> = corpus
            .pieces()
            .filter_map(|(piece, what)| match what {
                What::Entry(entry) => Some((piece, &entry.identities[0][..])),
                _ => None,
            })
            .collect();
        for (piece, identity) in &entries {
            let (folder, name) = piece.file.rsplit_once('/').unwrap();
            let id = name.strip_suffix(".key").unwrap();
            let good = fs::read(corpus.at(&piece.file)).unwrap();
            let altered = newer(&good).unwrap();
            // The key file in it is age's, with a version of its own.
            let mut inner = good.clone();
            inner[16 + 20] = b'2';
            for altered in [altered, inner] {
                fs::write(corpus.at(&piece.file), &altered).unwrap();
                let listed = corpus.run(&["stream", "keys", "list", "--keys", folder]);
                assert_eq!(listed.status.code(), Some(22), "{}", piece.file);
                assert_eq!(String::from_utf8(listed.stdout).unwrap().lines().count(), entries.len() - 1);
                let words = ["stream", "keys", "rewrap", "--keys", folder, "-i", identity];
                let rewrapped = corpus.run(&[&words[..], &["-R", "keys/recipients.txt"]].concat());
                assert_eq!(rewrapped.status.code(), Some(22), "{}", piece.file);
                let said = String::from_utf8_lossy(&rewrapped.stderr).into_owned();
                assert!(said.contains(id) && said.contains("newer program"), "{said}");
                assert_eq!(fs::read(corpus.at(&piece.file)).unwrap(), altered, "it was changed");
                let asked = corpus.run(&["stream", "keys", "shred", "--keys", folder, id]);
                let said = String::from_utf8(asked.stdout).unwrap();
                assert!(said.contains(id) && said.contains("newer program"), "{said}");
            }
            fs::write(corpus.at(&piece.file), good).unwrap();
        }
        assert!(entries.len() > 2);
    }
}

/// Files, links and pipes of a folder, by what is in them.
fn snapshot(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let content = |path: &PathBuf| match folder.join(path).symlink_metadata().unwrap().is_file() {
        true => fs::read(folder.join(path)).unwrap(),
        false => Vec::new(),
    };
    all_in(folder).into_iter().map(|path| (path.clone(), content(&path))).collect()
}

/// Other bytes in a file, of which times and mode stay.
fn put(path: &Path, bytes: &[u8]) {
    let meta = path.metadata().unwrap();
    // Some may only be read.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(path, bytes).unwrap();
    let file = fs::File::open(path).unwrap();
    file.set_modified(meta.modified().unwrap()).unwrap();
    file.set_permissions(meta.permissions()).unwrap();
}

impl Volume {
    /// Each file below its folder that has a version.
    fn says_what_is_newer(&self, corpus: &Corpus, piece: &Piece) {
        let name = corpus.unpack(&piece.file);
        let way = corpus.ways(&self.identities, self.passphrase.as_deref())[0];
        let mut tried = 0;
        for file in files_in(&corpus.at(name)) {
            corpus.unpack(&piece.file);
            let path = corpus.at(name).join(&file);
            if file.starts_with("wattlock.keys/") || !path.symlink_metadata().unwrap().is_file() {
                continue;
            }
            let good = fs::read(&path).unwrap();
            let Some(altered) = newer(&good) else { continue };
            put(&path, &altered);
            tried += 1;
            let before = snapshot(&corpus.at(name));
            let run = |words: &[&str]| {
                let [what, more @ ..] = words else { panic!("no words") };
                let output = corpus.run(&[&["fs", what, way[0], way[1]], more].concat());
                let said = [&output.stdout[..], &output.stderr].concat();
                let said = String::from_utf8_lossy(&said).into_owned();
                assert_eq!(output.status.code(), Some(81), "{name}/{file}: {words:?}: {said}");
                assert!(said.contains("newer program"), "{name}/{file}: {words:?}: {said}");
            };
            run(&["check", name]);
            assert_eq!(snapshot(&corpus.at(name)), before, "{name}/{file}: a check changed something");
            if file == "wattlock.journal" || file == "wattlock.fs" {
                let first = &self.tree[0].path[..];
                for words in
                    [&["ls", name][..], &["rm", "-y", "-r", name, first], &["cp", "-r", name, "/", "no"]]
                {
                    run(words);
                }
                let listed = corpus.run(&["fs", "key", "list", way[0], way[1], name]);
                assert_eq!(listed.status.code(), Some(81));
                run(&["check", "--repair", name]);
                assert_eq!(snapshot(&corpus.at(name)), before, "{name}/{file}: something was changed");
            }
            run(&["check", "--repair", name]);
            let after = snapshot(&corpus.at(name));
            assert_eq!(after[Path::new(&file)], altered, "{name}/{file}: it was changed");
            assert!(before.keys().eq(after.keys()), "{name}/{file}: something got another name");
            // Whoever can read that version finds all that was acknowledged, also what the journal had.
            put(&path, &good);
            let (code, out) = self.copied(corpus, way, name);
            assert_eq!(code, 0, "{name}/{file}");
            same(corpus, &out, &self.tree, false, &format!("{name}/{file} was newer"));
        }
        assert!(tried > 2, "{name}");
    }
}

#[test]
fn of_a_volume_of_a_later_version_nothing_is_told_as_damage_or_changed() {
    let all = |from: usize| {
        for corpus in versions() {
            let volumes = corpus.pieces().filter_map(|(piece, what)| match what {
                What::Volume(volume) => Some((piece, volume)),
                _ => None,
            });
            volumes
                .skip(from)
                .step_by(4)
                .for_each(|(piece, volume)| volume.says_what_is_newer(&corpus, piece));
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|from| drop(scope.spawn(move || all(from)))));
}
