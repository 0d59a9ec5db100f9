//! Streams sealed and opened between files and pipes, through the runtime.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;

use wattlock::Runtime;
use wattlock_files::age::secrecy::ExposeSecret;
use wattlock_files::{Opener, Sealer, age, keys};
use wattlock_stream::format::{COMMITMENT_LEN, FIXED_LEN, HEAD_LEN, Head, SALT_LEN};
use wattlock_stream::pipe::{self, Ends, Passed, Sealing};
use wattlock_stream::{Error, Framing};

pub fn runtime() -> Runtime {
    Runtime::builder().telemetry(false).build().unwrap()
}

/// A key pair.
pub struct Pair(pub age::x25519::Identity);

impl Pair {
    pub fn new() -> Pair {
        Pair(age::x25519::Identity::generate())
    }

    pub fn sealer(&self) -> Sealer {
        Sealer::new(vec![Box::new(self.0.to_public())]).unwrap()
    }

    pub fn secret(&self) -> String {
        self.0.to_string().expose_secret().to_owned()
    }

    pub fn opener(&self) -> Opener {
        Opener::new(keys::identities(self.secret().as_bytes(), age::NoCallbacks).unwrap())
    }
}

pub fn content(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i ^ (i >> 7) ^ (i >> 13).wrapping_mul(31)) as u8).collect()
}

/// Lines of many lengths, `len` bytes in all.
pub fn lines(len: usize) -> Vec<u8> {
    let mut text: Vec<u8> = (0..)
        .flat_map(|n: usize| format!("{n} {}\n", "x".repeat(n * 7 % 90)).into_bytes())
        .take(len)
        .collect();
    if let Some(last) = text.last_mut() {
        *last = b'\n';
    }
    text
}

pub fn one_worker() -> Sealing {
    Sealing { workers: 1, ..Sealing::default() }
}

pub fn in_frames(framing: Framing, frame_len: usize) -> Sealing {
    Sealing { framing, frame_len, ..one_worker() }
}

/// A file without a name, with that content, at its start.
pub fn file(content: &[u8]) -> OwnedFd {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    file.rewind().unwrap();
    file.into()
}

/// Runs a passage from these bytes into a file: its outcome, and what came out even if it failed.
pub fn through(
    input: &[u8],
    passage: impl FnOnce(Ends<'_>) -> Result<Passed, Error>,
) -> (Result<Passed, Error>, Vec<u8>) {
    let mut output = tempfile::tempfile().unwrap();
    let ends = Ends { input: file(input), output: output.try_clone().unwrap().into(), stop: None };
    let outcome = passage(ends);
    let mut all = Vec::new();
    output.rewind().unwrap();
    output.read_to_end(&mut all).unwrap();
    (outcome, all)
}

pub fn try_seal(pair: &Pair, plain: &[u8], settings: &Sealing) -> (Result<Passed, Error>, Vec<u8>) {
    through(plain, |ends| pipe::seal(ends, &pair.sealer(), settings, &runtime()))
}

pub fn seal(pair: &Pair, plain: &[u8], settings: &Sealing) -> Vec<u8> {
    let (outcome, sealed) = try_seal(pair, plain, settings);
    assert_eq!(outcome.unwrap().content, plain.len() as u64);
    sealed
}

pub fn open(opener: &Opener, runtime: &Runtime, sealed: &[u8]) -> (Result<Passed, Error>, Vec<u8>) {
    through(sealed, |ends| pipe::open(ends, opener, 1, runtime))
}

/// Where the frames begin, and where each of them is.
pub fn frames(sealed: &[u8]) -> Vec<Range<usize>> {
    let key_len = u32::from_be_bytes(sealed[12..16].try_into().unwrap()) as usize;
    let mut at = FIXED_LEN + key_len + SALT_LEN + COMMITMENT_LEN;
    let mut all = Vec::new();
    while at < sealed.len() {
        let head = Head::parse(sealed[at..at + HEAD_LEN].try_into().unwrap()).unwrap();
        let end = at + head.len + 20;
        all.push(at..end);
        at = end;
    }
    all
}

/// A pipe: its reading end and its writing end.
pub fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe().unwrap()
}

pub fn read_all(fd: OwnedFd) -> Vec<u8> {
    let mut all = Vec::new();
    File::from(fd).read_to_end(&mut all).unwrap();
    all
}
