//! What earlier versions wrote: every piece of `corpus/` opens, through the door that a user takes, and an altered byte is
//! refused. `docs/design/compatibility.md` says what is promised; `scripts/release/corpus.py` makes the folder of a version.
//!
//! A manifest names the kind of each piece. A kind that is not one of [`What`], a file that no manifest names, and a
//! version without a piece of a kind that it had ([`KINDS`]) fail the tests, so nothing in the corpus goes untested.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod files;
mod newer;
mod settings;
mod topics;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde::Deserialize;

/// The versions whose corpus is kept, with the kinds of its pieces.
const KINDS: [(&str, &[&str]); 1] = [(
    "0.1",
    &[
        "default",
        "entry",
        "exit-codes",
        "file",
        "identity",
        "known",
        "lines",
        "recipients",
        "signer",
        "stream",
        "sums",
        "topic",
        "volume",
    ],
)];

/// Bytes of one version's corpus, at most.
const SIZE_MAX: u64 = 300 << 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    version: String,
    commit: String,
    #[serde(rename = "keys")]
    _keys: String,
    pieces: Vec<Piece>,
}

#[derive(Deserialize)]
struct Piece {
    file: String,
    sha256: String,
    made: Vec<String>,
    #[serde(flatten)]
    what: What,
}

/// What a piece is, and what must come out.
#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
enum What {
    Identity,
    Recipients(settings::Recipients),
    Default,
    Signer(settings::Signer),
    Known(settings::Known),
    Sums(settings::Sums),
    Lines(settings::Lines),
    ExitCodes,
    File(files::File),
    Stream(files::Stream),
    Entry(topics::Entry),
    Topic(topics::Topic),
    Volume(volumes::Volume),
}

/// One version's corpus, copied to where programs may write and keys are their user's own.
struct Corpus {
    manifest: Manifest,
    folder: tempfile::TempDir,
}

fn kept() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("corpus")
}

/// Paths of all files in a folder, relative to it.
fn files_in(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut left = vec![folder.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(next).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => left.push(entry.path()),
                false => {
                    found.insert(entry.path().strip_prefix(folder).unwrap().to_str().unwrap().to_owned());
                }
            }
        }
    }
    found
}

/// The corpus of each version.
fn versions() -> Vec<Corpus> {
    KINDS.iter().map(|(version, _)| Corpus::of(version)).collect()
}

impl Corpus {
    fn of(version: &str) -> Corpus {
        let (folder, from) = (tempfile::tempdir().unwrap(), kept().join(version));
        let manifest = fs::read_to_string(from.join("MANIFEST.json")).unwrap();
        for file in files_in(&from) {
            let to = folder.path().join(&file);
            let private =
                |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            private(to.parent().unwrap(), 0o700);
            fs::copy(from.join(&file), &to).unwrap();
            private(&to, 0o600);
        }
        Corpus { manifest: serde_json::from_str(&manifest).unwrap(), folder }
    }

    fn pieces(&self) -> impl Iterator<Item = (&Piece, &What)> {
        self.manifest.pieces.iter().map(|piece| (piece, &piece.what))
    }

    /// The options that open a piece, for each key and for the passphrase.
    fn ways<'a>(&self, identities: &'a [String], passphrase: Option<&str>) -> Vec<[&'a str; 2]> {
        let by_key = identities.iter().map(|identity| ["-i", identity]);
        let by_words = passphrase.map(|passphrase| {
            fs::write(self.at("words"), format!("{passphrase}\n")).unwrap();
            ["--passphrase-file", "words"]
        });
        let ways: Vec<[&str; 2]> = by_key.chain(by_words).collect();
        assert!(!ways.is_empty(), "a piece that nothing opens");
        ways
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The program in the corpus's folder, which remembers nothing of what other pieces did.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wattlock"));
        command
            .args(words)
            .current_dir(self.folder.path())
            .env("WATTLOCK_PROFILE", self.at("profile.json"))
            .env("WATTLOCK_TELEMETRY_DIR", self.at("telemetry"))
            .env("WATTLOCK_STATE_DIR", self.at("no state"))
            .env("HOME", self.at("no home"))
            .env_remove("XDG_CONFIG_HOME")
            .stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// What a command prints that must succeed.
    fn good(&self, words: &[&str]) -> Vec<u8> {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// SHA-256 of files of the corpus's folder, by another program than ours.
    fn digests(&self, names: &[String]) -> Vec<String> {
        let summed =
            Command::new("sha256sum").arg("--").args(names).current_dir(&self.folder).output().unwrap();
        assert!(summed.status.success(), "{}", String::from_utf8_lossy(&summed.stderr));
        // A line of a name with a backslash begins with one.
        let lines = String::from_utf8_lossy(&summed.stdout).into_owned();
        lines.lines().map(|line| line.trim_start_matches('\\')[..64].to_owned()).collect()
    }

    fn digest(&self, bytes: &[u8]) -> String {
        fs::write(self.at("bytes"), bytes).unwrap();
        self.digests(&["bytes".to_owned()]).remove(0)
    }
}

/// The bytes with one bit changed, for about `count` places, the first and the last among them. Never the bit that tells
/// capitals from small letters: a digest means the same in both.
fn altered(bytes: &[u8], count: usize) -> impl Iterator<Item = (usize, Vec<u8>)> {
    let step = (bytes.len() / count).max(1);
    let places: BTreeSet<usize> = (0..bytes.len()).step_by(step).chain(bytes.len().checked_sub(1)).collect();
    places.into_iter().map(|at| {
        let mut altered = bytes.to_vec();
        altered[at] ^= 1 << (at % 5);
        (at, altered)
    })
}

#[test]
fn every_piece_is_kept_unchanged_and_tested() {
    let there: BTreeSet<String> = fs::read_dir(kept())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let known = KINDS.iter().map(|(version, _)| (*version).to_owned()).chain(["README.md".to_owned()]);
    assert_eq!(there, known.collect(), "versions");
    for (version, kinds) in KINDS {
        let (corpus, folder) = (Corpus::of(version), kept().join(version));
        let Manifest { version: full, commit, pieces, .. } = &corpus.manifest;
        assert!(full.starts_with(&format!("{version}.")) && !commit.is_empty(), "{full}");
        let named: Vec<String> = pieces.iter().map(|piece| piece.file.clone()).collect();
        let mut files = files_in(&folder);
        assert!(files.remove("MANIFEST.json"));
        assert_eq!(files, named.iter().cloned().collect(), "{version}: files and the manifest");
        assert_eq!(files.len(), named.len(), "{version}: a piece is named twice");
        let digests: Vec<&str> = pieces.iter().map(|piece| &piece.sha256[..]).collect();
        assert_eq!(corpus.digests(&named), digests, "{version}: in the order of the manifest");
        let text: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(folder.join("MANIFEST.json")).unwrap()).unwrap();
        let of_piece = |piece: &serde_json::Value| piece["kind"].as_str().unwrap().to_owned();
        let found: BTreeSet<String> = text["pieces"].as_array().unwrap().iter().map(of_piece).collect();
        assert_eq!(found, kinds.iter().map(|kind| (*kind).to_owned()).collect(), "{version}: kinds");
        let size: u64 = files.iter().map(|file| folder.join(file).metadata().unwrap().len()).sum();
        assert!(size < SIZE_MAX, "{version}: {size} bytes");
        assert!(pieces.iter().all(|piece| !piece.made.is_empty()), "{version}: a piece that nothing made");
    }
}

#[test]
fn an_altered_byte_is_one_altered_bit_and_every_end_is_among_them() {
    let bytes = [0_u8; 100];
    let all: BTreeMap<usize, Vec<u8>> = altered(&bytes, 7).collect();
    assert!(all.contains_key(&0) && all.contains_key(&99) && all.len() >= 7);
    assert!(all.values().all(|one| one.iter().map(|byte| byte.count_ones()).sum::<u32>() == 1));
    assert_eq!((altered(&[], 7).count(), altered(&[1], 7).count()), (0, 1));
}
