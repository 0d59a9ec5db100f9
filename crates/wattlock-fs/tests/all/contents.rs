//! Contents against a vector in memory: every length around borders, random histories, reopening.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use proptest::prelude::*;
use wattlock::Dispatcher;
use wattlock_fs::content::{Content, Contents};
use wattlock_fs::dev::SimStore;

use crate::support;

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

/// What the kernel writes behind the end while a program reserves room for less must stay.
#[test]
fn growing_never_cuts() {
    let mut bench = Bench::new();
    bench.write(0, &[7; 5000]);
    bench.content.grow(100, &mut bench.crypto).unwrap();
    assert_eq!(whole(&bench.content, &mut bench.crypto), [7; 5000]);
    bench.content.grow(9000, &mut bench.crypto).unwrap();
    let grown = whole(&bench.content, &mut bench.crypto);
    assert_eq!((&grown[..5000], &grown[5000..]), (&[7; 5000][..], &[0; 4000][..]));
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

#[test]
fn the_longest_content_is_a_few_records() {
    let mut bench = Bench::new();
    let most = wattlock_fs::format::Geometry::new(4096).unwrap().max_len();
    bench.content.write(b"begin", 0, &mut bench.crypto).unwrap();
    bench.content.set_len(most, &mut bench.crypto).unwrap();
    assert!(bench.content.set_len(most + 1, &mut bench.crypto).is_err_and(|error| error.errno() == 27));
    assert!(bench.content.write(b"x", most, &mut bench.crypto).is_err_and(|error| error.errno() == 27));
    assert_eq!(bench.content.len(), most);
    assert!(bench.store.writes() < 20);
    let middle = most / 3;
    bench.content.write(b"middle", middle, &mut bench.crypto).unwrap();
    let check = |content: &Content<SimStore>, crypto: &mut Dispatcher| {
        let mut got = [1; 16];
        assert_eq!(content.read(&mut got, middle - 5, crypto).unwrap(), 16);
        assert_eq!(&got, b"\0\0\0\0\0middle\0\0\0\0\0");
        assert_eq!(content.read(&mut got, most - 3, crypto).unwrap(), 3);
        assert_eq!(content.seek(0, true, crypto).unwrap(), Some(4096));
        assert_eq!(content.seek(4096, false, crypto).unwrap(), Some(middle / 4096 * 4096));
        assert_eq!(content.seek(middle, true, crypto).unwrap(), Some(middle / 4096 * 4096 + 4096));
    };
    check(&bench.content, &mut bench.crypto);
    bench.contents.checkpoint(&mut bench.crypto).unwrap();
    check(&bench.content, &mut bench.crypto);
    bench.start();
    check(&bench.content, &mut bench.crypto);
    assert!(bench.store.used() < 200, "{}", bench.store.used());
    bench.content.set_len(3, &mut bench.crypto).unwrap();
    bench.model = b"beg".to_vec();
    bench.check();
}

#[test]
fn threads_that_write_and_read_one_file_do_not_tear_it() {
    let mut bench = Bench::new();
    bench.write(0, &[0; 40_000]);
    bench.content.sync(&mut bench.crypto).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let (content, contents) = (bench.content.clone(), &bench.contents);
            scope.spawn(move || {
                let mut crypto = crypto();
                let at = u64::from(thread) * 10_000;
                for round in 1..60_u8 {
                    content.write(&[round ^ thread << 6; 10_000], at, &mut crypto).unwrap();
                    let mut got = vec![0; 40_000];
                    assert_eq!(content.read(&mut got, 0, &mut crypto).unwrap(), 40_000);
                    for piece in got.chunks(10_000) {
                        assert!(piece.iter().all(|byte| *byte == piece[0]), "torn");
                    }
                    assert_eq!(got[at as usize], round ^ thread << 6);
                    match round % 8 {
                        3 => content.sync(&mut crypto).unwrap(),
                        5 if thread == 0 => contents.checkpoint(&mut crypto).unwrap(),
                        _ => {}
                    }
                }
            });
        }
    });
    bench.model = (0..4_u8).flat_map(|thread| [59 ^ thread << 6; 10_000]).collect();
    bench.check();
    bench.start();
    bench.check();
}
