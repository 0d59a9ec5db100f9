//! Sealed files, age's files, and streams.

use std::fs;

use serde::Deserialize;

use super::{Corpus, Piece, What, altered, versions};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    /// Each opens it alone.
    #[serde(default)]
    pub(super) identities: Vec<String>,
    pub(super) passphrase: Option<String>,
    bytes: usize,
    clear: String,
    /// What comes out is a .gz of the content.
    #[serde(default)]
    gzip: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stream {
    pub(super) identities: Vec<String>,
    #[serde(default)]
    joined: bool,
    /// The exit code: a cut stream is opened as far as it goes.
    #[serde(default)]
    code: i32,
    bytes: usize,
    clear: String,
}

impl File {
    fn opens(&self, corpus: &Corpus, piece: &Piece) {
        let ways = corpus.ways(&self.identities, self.passphrase.as_deref());
        for [option, value] in &ways {
            let mut opened = corpus.good(&["open", "-q", option, value, "-o", "-", &piece.file]);
            if self.gzip {
                fs::write(corpus.at("opened.gz"), opened).unwrap();
                opened = corpus.good(&["gzip", "-d", "-c", "opened.gz"]);
            }
            assert_eq!(
                (opened.len(), corpus.digest(&opened)),
                (self.bytes, self.clear.clone()),
                "{}",
                piece.file
            );
        }
        let [option, value] = ways[0];
        let sealed = fs::read(corpus.at(&piece.file)).unwrap();
        // scrypt takes most of a second: the first and the last byte.
        let count = if self.passphrase.is_some() { 1 } else { 8 };
        for (at, altered) in altered(&sealed, count) {
            fs::write(corpus.at("altered"), altered).unwrap();
            let output = corpus.run(&["open", "-q", option, value, "-o", "out", "altered"]);
            let code = output.status.code().unwrap();
            assert!((10..=36).contains(&code), "{}: byte {at}: exit code {code}", piece.file);
            assert!(!corpus.at("out").exists(), "{}: byte {at}: something was released", piece.file);
        }
    }
}

impl Stream {
    pub(super) fn open(&self, corpus: &Corpus, from: &str) -> (i32, Vec<u8>) {
        let joined = if self.joined { &["--joined"][..] } else { &[] };
        let mut command = corpus.command(&[&["stream", "open", "-i", &self.identities[0]], joined].concat());
        let output = command.stdin(fs::File::open(corpus.at(from)).unwrap()).output().unwrap();
        (output.status.code().unwrap(), output.stdout)
    }

    fn opens(&self, corpus: &Corpus, piece: &Piece) {
        let (code, opened) = self.open(corpus, &piece.file);
        let found = (code, opened.len(), corpus.digest(&opened));
        assert_eq!(found, (self.code, self.bytes, self.clear.clone()), "{}", piece.file);
        let sealed = fs::read(corpus.at(&piece.file)).unwrap();
        for (at, altered) in altered(&sealed, 12) {
            fs::write(corpus.at("altered"), altered).unwrap();
            let (code, released) = self.open(corpus, "altered");
            // Frames in front of the altered one are true; of joined streams those behind it, too.
            let part = self.joined || opened.starts_with(&released);
            assert!((10..=36).contains(&code) && part, "{}: byte {at}: exit code {code}", piece.file);
        }
    }
}

fn every_file_opens(by_passphrase: bool) {
    for corpus in versions() {
        let mut opened = 0;
        for (piece, what) in corpus.pieces() {
            if let What::File(file) = what
                && file.passphrase.is_some() == by_passphrase
            {
                file.opens(&corpus, piece);
                opened += 1;
            }
        }
        assert!(opened > 0, "{}: no such file", corpus.manifest.version);
    }
}

#[test]
fn every_kept_file_opens_by_its_keys_and_no_altered_one() {
    every_file_opens(false);
}

#[test]
fn every_kept_file_opens_by_its_passphrase_and_no_altered_one() {
    every_file_opens(true);
}

#[test]
fn every_kept_stream_opens_and_no_altered_one() {
    for corpus in versions() {
        for (piece, what) in corpus.pieces() {
            if let What::Stream(stream) = what {
                stream.opens(&corpus, piece);
            }
        }
    }
}
