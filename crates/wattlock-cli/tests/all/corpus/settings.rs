//! Keys, what a machine knows of volumes, lists of sums, and what scripts read.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde::Deserialize;
use serde_json::Value;

use super::{Corpus, Piece, What, altered, versions};
use crate::desk::refused;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Recipients {
    /// One that opens what is sealed to them.
    identity: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Signer {
    /// Its name.
    signer: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Known {
    /// A volume as it was before a change that is known.
    older: String,
    newer: String,
    identities: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sums {
    /// How many files it has.
    files: usize,
    words: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Lines {
    /// The command.
    words: Vec<String>,
}

impl Corpus {
    /// What is sealed with these options opens with this identity.
    fn seals(&self, sealing: &[&str], opening: &[&str]) {
        fs::write(self.at("content"), "content").unwrap();
        self.good(&[&["seal", "-q", "-f", "-o", "sealed"], sealing, &["content"]].concat());
        assert_eq!(self.good(&[&["open", "-q", "-o", "-"], opening, &["sealed"]].concat()), b"content");
    }

    /// The words of age's own alphabet in a key file have a checksum.
    fn refuses_an_altered_key(
        &self,
        file: &str,
        begins: &str,
        words: &dyn Fn(&str) -> Vec<String>,
        code: i32,
    ) {
        let text = fs::read_to_string(self.at(file)).unwrap();
        for line in text.lines().filter(|line| line.starts_with(begins)) {
            let (_, key) = line.split_at(begins.len());
            for (at, key) in altered(key.as_bytes(), 12) {
                let altered = format!("{begins}{}\n", String::from_utf8(key).unwrap());
                fs::write(self.at("altered"), altered).unwrap();
                let words = words("altered");
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                let output = self.run(&words);
                assert_eq!(output.status.code(), Some(code), "{file}: symbol {at}");
            }
        }
    }

    fn identity(&self, piece: &Piece) {
        self.seals(&["-i", &piece.file], &["-i", &piece.file]);
        // OpenSSH's private keys have no checksum.
        let open = |file: &str| ["open", "-q", "-o", "-", "-i", file, "sealed"].map(str::to_owned).to_vec();
        self.refuses_an_altered_key(&piece.file, "AGE-SECRET-KEY-1", &open, 11);
    }

    /// What commands find if no key is given.
    fn default(&self) {
        let folder = self.at("default");
        for path in [&folder, &folder.join("wattlock")] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
        }
        fs::write(self.at("content"), "content").unwrap();
        let run = |words: &[&str]| {
            let output = self.command(words).env("XDG_CONFIG_HOME", &folder).output().unwrap();
            assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
            output.stdout
        };
        run(&["seal", "-q", "-f", "-o", "sealed", "content"]);
        assert_eq!(run(&["open", "-q", "-o", "-", "sealed"]), b"content");
    }

    fn exit_codes(&self, piece: &Piece) {
        let codes = |text: &str| -> Vec<u8> {
            text.lines().map(|line| line.split_whitespace().next().unwrap().parse().unwrap()).collect()
        };
        let now = codes(std::str::from_utf8(&self.good(&["exit-codes"])).unwrap());
        let before = codes(&fs::read_to_string(self.at(&piece.file)).unwrap());
        assert!(before.len() > 50);
        for code in before {
            assert!(now.contains(&code), "exit code {code} of {} is gone", self.manifest.version);
        }
    }
}

impl Recipients {
    fn open(&self, corpus: &Corpus, piece: &Piece) {
        corpus.seals(&["-R", &piece.file], &["-i", &self.identity]);
        let seal =
            |file: &str| ["seal", "-q", "-f", "-o", "x", "-R", file, "content"].map(str::to_owned).to_vec();
        corpus.refuses_an_altered_key(&piece.file, "age1", &seal, 10);
    }
}

impl Signer {
    fn signs(&self, corpus: &Corpus, piece: &Piece) {
        let new =
            ["stream", "keys", "new", "--keys", "signed", "-R", "keys/recipients.txt", "--sign", &piece.file];
        corpus.good(&new);
        let listed = String::from_utf8(corpus.good(&["stream", "keys", "list", "--keys", "signed"])).unwrap();
        assert!(listed.trim_end().ends_with(&self.signer), "{listed}");
    }
}

impl Known {
    /// What is known still tells an older copy from a newer one.
    fn knows(&self, corpus: &Corpus, piece: &Piece) {
        let (older, newer) = (corpus.unpack(&self.older), corpus.unpack(&self.newer));
        let state = corpus.at(piece.file.rsplit_once('/').unwrap().0);
        fs::write(corpus.at("content"), "content").unwrap();
        let run = |words: &[&str], name: &str, more: &[&str]| {
            let words = [words, &["-i", &self.identities[0], name], more].concat();
            corpus.command(&words).env("WATTLOCK_STATE_DIR", &state).output().unwrap()
        };
        let read = run(&["fs", "ls"], older, &[]);
        assert!(read.status.success());
        assert!(String::from_utf8_lossy(&read.stderr).contains("an older copy of the volume"));
        refused(&run(&["fs", "cp", "--into"], older, &["content", "/"]), 92, "an older copy of the volume");
        let written = run(&["fs", "cp", "--into"], newer, &["content", "/"]);
        assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    }
}

impl Sums {
    fn check(&self, corpus: &Corpus, piece: &Piece) {
        let check = |list: &str| {
            let more: Vec<&str> = self.words.iter().map(String::as_str).collect();
            corpus.run(&[&["sum", "-c", "--strict"], &more[..], &[list]].concat())
        };
        let output = check(&piece.file);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && said.matches(": OK").count() == self.files,
            "{}: {said}",
            piece.file
        );
        let list = fs::read(corpus.at(&piece.file)).unwrap();
        for (at, altered) in altered(&list, 20) {
            fs::write(corpus.at("altered"), altered).unwrap();
            assert_eq!(check("altered").status.code(), Some(1), "{}: byte {at}", piece.file);
        }
    }
}

impl Lines {
    /// Each field that a script read is there and says the same. New fields may be beside it.
    fn same(&self, corpus: &Corpus, piece: &Piece) {
        let volumes = self.words[0] == "fs";
        let words: Vec<&str> = self
            .words
            .iter()
            .map(|word| if volumes && word.ends_with(".tar.gz") { corpus.unpack(word) } else { word })
            .collect();
        let parse = |text: &str| -> Vec<Value> {
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        let now = parse(std::str::from_utf8(&corpus.good(&words)).unwrap());
        let before = parse(&fs::read_to_string(corpus.at(&piece.file)).unwrap());
        assert!(!before.is_empty() && now.len() == before.len(), "{}: {now:?}", piece.file);
        for (now, before) in now.iter().zip(&before) {
            for (field, value) in before.as_object().unwrap() {
                assert_eq!(now.get(field), Some(value), "{}: {field}", piece.file);
            }
        }
    }
}

#[test]
fn kept_keys_lists_and_lines_mean_what_they_meant() {
    for corpus in versions() {
        for (piece, what) in corpus.pieces() {
            match what {
                What::Identity => corpus.identity(piece),
                What::Default => corpus.default(),
                What::ExitCodes => corpus.exit_codes(piece),
                What::Recipients(recipients) => recipients.open(&corpus, piece),
                What::Signer(signer) => signer.signs(&corpus, piece),
                What::Known(known) => known.knows(&corpus, piece),
                What::Sums(sums) => sums.check(&corpus, piece),
                What::Lines(lines) => lines.same(&corpus, piece),
                // The tests beside this one.
                What::File(_) | What::Stream(_) | What::Entry(_) | What::Topic(_) | What::Volume(_) => {}
            }
        }
    }
}
