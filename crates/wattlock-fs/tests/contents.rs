//! Contents against a vector in memory: every length around borders, random histories, reopening.

use std::sync::Arc;

use proptest::prelude::*;
use wattlock::Dispatcher;
use wattlock_fs::content::{Content, Contents};
use wattlock_fs::dev::SimStore;

mod support;

use support::{CHUNK, crypto, pattern, volume, whole};

/// A volume with one file, and what the file should contain.
struct Bench {
    store: SimStore,
    contents: Contents<SimStore>,
    content: Arc<Content<SimStore>>,
    model: Vec<u8>,
    crypto: Dispatcher,
}

impl Bench {
    fn new() -> Bench {
        let (store, mut crypto) = (SimStore::default(), crypto());
        let contents = Contents::start(store.clone(), &volume(), &mut crypto).unwrap().0;
        let (file, place) = store.create("file");
        let content = contents.create(file, place, &mut crypto).unwrap();
        Bench { store, contents, content, model: Vec::new(), crypto }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.content.write(bytes, at as u64, &mut self.crypto).unwrap();
        if !bytes.is_empty() {
            self.model.resize(self.model.len().max(at + bytes.len()), 0);
            self.model[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    fn set_len(&mut self, len: usize) {
        self.content.set_len(len as u64, &mut self.crypto).unwrap();
        self.model.resize(len, 0);
    }

    fn zero(&mut self, at: usize, len: usize) {
        self.content.zero(at as u64, len as u64, &mut self.crypto).unwrap();
        let end = self.model.len().min(at + len);
        if at < end {
            self.model[at..end].fill(0);
        }
    }

    fn append(&mut self, bytes: &[u8]) {
        let at = self.content.append(bytes, &mut self.crypto).unwrap();
        assert_eq!(at, self.model.len() as u64);
        self.model.extend_from_slice(bytes);
    }

    fn check(&mut self) {
        assert_eq!(self.content.len(), self.model.len() as u64);
        assert!(whole(&self.content, &mut self.crypto) == self.model, "content differs");
    }

    fn open(&mut self) {
        let (file, place) = self.store.open("file").unwrap();
        self.content = self.contents.open(file, place, &mut self.crypto).unwrap();
    }

    fn start(&mut self) {
        self.contents = Contents::start(self.store.clone(), &volume(), &mut self.crypto).unwrap().0;
        self.open();
    }
}

#[test]
fn every_length_around_borders_is_read_as_it_was_written() {
    for len in [
        0,
        1,
        15,
        16,
        17,
        4055,
        4056,
        4095,
        4096,
        4097,
        8191,
        8192,
        8193,
        (1 << 20) - 1,
        1 << 20,
        (1 << 20) + 1,
    ] {
        let mut bench = Bench::new();
        let bytes = pattern(len, len as u64);
        bench.write(0, &bytes);
        bench.check();
        for at in [0, 1, 4095, 4096, 4097, len.saturating_sub(1)] {
            for want in [0, 1, 2, 4095, 4096, 4097, 9000] {
                let mut got = vec![0xaa; want];
                let read = bench.content.read(&mut got, at as u64, &mut bench.crypto).unwrap();
                let model = bytes.get(at..).unwrap_or_default();
                assert_eq!(read, want.min(model.len()));
                assert!(got[..read] == model[..read]);
            }
        }
        bench.content.sync(&mut bench.crypto).unwrap();
        bench.contents.checkpoint(&mut bench.crypto).unwrap();
        let stored = bench.store.bytes("file").len() as u64;
        let len = len as u64;
        assert_eq!(stored, 96 + len / CHUNK * 4136 + len % CHUNK + 40);
        assert_eq!(bench.contents.len_of((9, 9), stored), len);
        bench.start();
        bench.check();
    }
}

#[test]
fn one_content_serves_every_opener_of_an_inode() {
    let mut bench = Bench::new();
    bench.write(0, b"one");
    let (file, place) = bench.store.open("file").unwrap();
    let inode = place.inode;
    let other = bench.contents.open(file, place, &mut bench.crypto).unwrap();
    assert!(Arc::ptr_eq(&other, &bench.content));
    other.append(b" two", &mut bench.crypto).unwrap();
    assert_eq!(whole(&bench.content, &mut bench.crypto), b"one two");
    assert_eq!(bench.contents.len_of(inode, 0), 7);
}

#[derive(Debug, Clone)]
enum Step {
    Write(usize, usize),
    Append(usize),
    SetLen(usize),
    Zero(usize, usize),
    Sync,
    Checkpoint,
    Reopen,
    Restart,
}

fn place() -> impl Strategy<Value = usize> {
    // Near borders, mostly.
    prop_oneof![
        (0_usize..8, -2_isize..3).prop_map(|(chunk, off)| (chunk as isize * 4096 + off).max(0) as usize),
        0_usize..40_000,
        (20_usize..80, -2_isize..3).prop_map(|(chunk, off)| (chunk as isize * 4096 + off) as usize),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (place(), place()).prop_map(|(at, len)| Step::Write(at, len)),
        3 => place().prop_map(Step::Append),
        2 => place().prop_map(Step::SetLen),
        2 => (place(), place()).prop_map(|(at, len)| Step::Zero(at, len)),
        2 => Just(Step::Sync),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::Reopen),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_histories_agree_with_a_vector(steps in prop::collection::vec(step(), 1..25)) {
        let mut bench = Bench::new();
        for (seed, step) in steps.into_iter().enumerate() {
            match step {
                Step::Write(at, len) => bench.write(at, &pattern(len, seed as u64)),
                Step::Append(len) => bench.append(&pattern(len, seed as u64)),
                Step::SetLen(len) => bench.set_len(len),
                Step::Zero(at, len) => bench.zero(at, len),
                Step::Sync => bench.content.sync(&mut bench.crypto).unwrap(),
                Step::Checkpoint => bench.contents.checkpoint(&mut bench.crypto).unwrap(),
                Step::Reopen => bench.open(),
                Step::Restart => bench.start(),
            }
            bench.check();
        }
    }
}
