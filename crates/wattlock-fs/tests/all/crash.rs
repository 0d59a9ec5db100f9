//! Power cuts: after every operation of recorded workloads, with every choice of pages that were written or not, and of
//! sectors.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::support;

use proptest::prelude::*;
use wattlock::Dispatcher;
use wattlock_fs::content::Contents;
use wattlock_fs::dev::SimStore;
use wattlock_fs::store::File;

use support::{CHUNK, crypto, pattern, volume, whole};

/// Crash states looked at after one operation, at most: all if they are no more.
const STATES: usize = 40;
/// Boundaries between what is latest and what is oldest, about.
const HALVES: usize = 64;

#[derive(Debug, Clone)]
enum Step {
    Write(usize, usize),
    Append(usize),
    SetLen(usize),
    Zero(usize, usize),
    Sync,
    Checkpoint,
    /// Every opener closes, and one opens again.
    Reopen,
    /// Another file is made.
    Create,
}
use Step::*;

/// What a workload did to its file, and when.
struct History {
    store: SimStore,
    /// The first operation after which power may be lost.
    from: usize,
    /// Contents after each step, and the operations before it began.
    versions: Vec<(usize, Vec<u8>)>,
    /// The version that a sync has acknowledged, and the operations after it had.
    acknowledged: Vec<(usize, usize)>,
    neighbour: Vec<u8>,
}

fn record(old: Option<usize>, steps: &[Step], crypto: &mut Dispatcher) -> History {
    let store = SimStore::default();
    let contents = Contents::start(store.clone(), &volume(), crypto).unwrap().0;
    let neighbour = pattern(3 * CHUNK as usize + 7, 99);
    let (file, place) = store.create("neighbour");
    let other = contents.create(file, place, crypto).unwrap();
    other.write(&neighbour, 0, crypto).unwrap();
    other.sync(crypto).unwrap();
    let mut model = Vec::new();
    if let Some(len) = old {
        let (file, place) = store.create("file");
        let content = contents.create(file, place, crypto).unwrap();
        model = pattern(len, 1);
        content.write(&model, 0, crypto).unwrap();
        content.sync(crypto).unwrap();
        contents.checkpoint(crypto).unwrap();
    }
    let from = store.operations();
    let mut content = match store.open("file") {
        Some((file, place)) => contents.open(file, place, crypto).unwrap(),
        None => {
            let (file, place) = store.create("file");
            contents.create(file, place, crypto).unwrap()
        }
    };
    let mut versions = vec![(from, model.clone())];
    let mut acknowledged = if old.is_some() { vec![(from, 0)] } else { Vec::new() };
    for (seed, step) in steps.iter().enumerate() {
        let before = store.operations();
        let seed = seed as u64 + 2;
        match step {
            Write(at, len) => {
                let bytes = pattern(*len, seed);
                content.write(&bytes, *at as u64, crypto).unwrap();
                if *len > 0 {
                    model.resize(model.len().max(at + len), 0);
                    model[*at..at + len].copy_from_slice(&bytes);
                }
            }
            Append(len) => {
                let bytes = pattern(*len, seed);
                content.append(&bytes, crypto).unwrap();
                model.extend(bytes);
            }
            SetLen(len) => {
                content.set_len(*len as u64, crypto).unwrap();
                model.resize(*len, 0);
            }
            Zero(at, len) => {
                content.zero(*at as u64, *len as u64, crypto).unwrap();
                let end = model.len().min(at + len);
                if *at < end {
                    model[*at..end].fill(0);
                }
            }
            Sync => content.sync(crypto).unwrap(),
            Checkpoint => contents.checkpoint(crypto).unwrap(),
            Create => {
                let (file, place) = store.create(&format!("made at {seed}"));
                drop(contents.create(file, place, crypto).unwrap());
            }
            Reopen => {
                drop(content);
                let (file, place) = store.open("file").unwrap();
                content = contents.open(file, place, crypto).unwrap();
            }
        }
        if matches!(step, Sync | Checkpoint) {
            acknowledged.push((store.operations(), versions.len() - 1));
        } else {
            versions.push((before, model.clone()));
        }
    }
    assert!(whole(&content, crypto) == model, "before any crash");
    History { store, from, versions, acknowledged, neighbour }
}

/// What a start for reading shows of the neighbour and the file.
fn read_over(store: &SimStore, what: &str, crypto: &mut Dispatcher) -> [Option<Vec<u8>>; 2] {
    let started = Contents::start_to_read(store.clone(), &volume(), crypto);
    let (contents, _) = started.unwrap_or_else(|error| panic!("{what}: starting to read: {error}"));
    ["neighbour", "file"].map(|name| {
        let (file, place) = store.open(name)?;
        let content = contents.open(file.clone(), place.clone(), crypto);
        let content = content.unwrap_or_else(|error| panic!("{what}: {name}, to read: {error}"));
        let got = whole(&content, crypto);
        drop(content);
        assert_eq!(contents.len_of(place.inode, file.len().unwrap()), got.len() as u64, "{what}: {name}");
        Some(got)
    })
}

impl History {
    /// What must hold of a store that lost power after `operations`, once it was started again.
    fn check(&self, store: &SimStore, operations: usize, what: &str, crypto: &mut Dispatcher) {
        let logged = store.operations();
        let over = read_over(store, what, crypto);
        assert_eq!(store.operations(), logged, "{what}: reading wrote");
        let contents = match Contents::start(store.clone(), &volume(), crypto) {
            Ok((contents, _)) => contents,
            Err(error) => panic!("{what}: starting: {error}"),
        };
        let (file, place) = store.open("neighbour").unwrap();
        let other = contents.open(file, place, crypto).unwrap();
        assert!(whole(&other, crypto) == self.neighbour, "{what}: the neighbour");
        assert!(over[0].as_ref() == Some(&self.neighbour), "{what}: the neighbour, read over");
        let least =
            self.acknowledged.iter().rev().find(|(at, _)| *at <= operations).map(|(_, version)| *version);
        let Some((file, place)) = store.open("file") else {
            assert_eq!(least, None, "{what}: the file is gone");
            return;
        };
        let content = match contents.open(file, place, crypto) {
            Ok(content) => content,
            Err(error) => panic!("{what}: opening: {error}"),
        };
        let mut got = vec![0; content.len() as usize + 1];
        match content.read(&mut got, 0, crypto) {
            Ok(len) => got.truncate(len),
            Err(error) => panic!("{what}: reading: {error}"),
        }
        assert!(over[1].as_ref() == Some(&got), "{what}: read over it is another content");
        let possible: Vec<&Vec<u8>> = self
            .versions
            .iter()
            .enumerate()
            .filter(|(index, (before, _))| *index >= least.unwrap_or(0) && (*before <= operations))
            .map(|(_, (_, bytes))| bytes)
            .collect();
        let shortest = possible.iter().map(|bytes| bytes.len()).min().unwrap_or(0);
        assert!(
            got.len() >= if least.is_some() { shortest } else { 0 },
            "{what}: {} bytes are left",
            got.len()
        );
        for (index, chunk) in got.chunks(CHUNK as usize).enumerate() {
            let at = index * CHUNK as usize;
            let of = |bytes: &&Vec<u8>| {
                let end = bytes.len().min(at + CHUNK as usize);
                // A chunk is one version's, of which a part may have been cut.
                at < end && bytes[at..end].len() >= chunk.len() && bytes[at..at + chunk.len()] == *chunk
            };
            let grown = |bytes: &&Vec<u8>| {
                // An old end, extended with zeros.
                let end = bytes.len().min(at + CHUNK as usize).max(at);
                let old = bytes.get(at..end).unwrap_or_default();
                old.len() < chunk.len()
                    && chunk.starts_with(old)
                    && chunk[old.len()..].iter().all(|byte| *byte == 0)
            };
            assert!(possible.iter().any(of) || possible.iter().any(grown), "{what}: chunk {index}");
        }
        // It goes on from there.
        content.append(b"more", crypto).unwrap();
        content.sync(crypto).unwrap();
        got.extend(b"more");
        assert!(whole(&content, crypto) == got, "{what}: afterwards");
    }

    /// All crash states after some operations, or a sample of them.
    fn states(&self, operations: usize, seed: u64, visit: &mut dyn FnMut(&SimStore, &[usize])) {
        let mut picks: Vec<usize> = Vec::new();
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for state in 0.. {
            let (mut asked, mut taken) = (Vec::new(), Vec::new());
            let store = self.store.crash(operations, &mut |below| {
                let pick = match picks.get(asked.len()) {
                    Some(pick) => *pick % below,
                    None if state < STATES / 2 => 0,
                    None => {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        (random >> 33) as usize % below
                    }
                };
                asked.push(below);
                taken.push(pick);
                pick
            });
            visit(&store, &taken);
            if state + 1 >= STATES {
                return;
            }
            if state < STATES / 2 {
                // The next in order.
                picks = taken;
                let next = (0..asked.len()).rev().find(|at| picks[*at] + 1 < asked[*at]);
                let Some(at) = next else { return };
                picks[at] += 1;
                picks.truncate(at + 1);
            }
            if state + 1 == STATES / 2 {
                // Everything reached the disk; from then on, by lot.
                picks = asked.iter().map(|below| below - 1).collect();
            } else if state >= STATES / 2 {
                picks.clear();
            }
        }
    }

    /// Crash states in which one part has its latest versions and the rest its oldest, at each boundary: a file may have
    /// nothing of what the journal has all of, and the other way round.
    fn halves(&self, operations: usize, visit: &mut dyn FnMut(&SimStore, &[usize])) {
        let choices = self.store.choices(operations);
        for boundary in (0..choices).step_by(1 + choices / HALVES) {
            for latest_first in [false, true] {
                let mut taken = Vec::new();
                let store = self.store.crash(operations, &mut |below| {
                    taken.push(if (taken.len() < boundary) == latest_first { below - 1 } else { 0 });
                    taken[taken.len() - 1]
                });
                visit(&store, &taken);
            }
        }
    }

    fn enumerate(&self, name: &str, crypto: &mut Dispatcher) {
        for operations in self.from..=self.store.operations() {
            self.halves(operations, &mut |store, picks| {
                let what = format!("{name}, after {operations} operations, halves {picks:?}");
                self.check(store, operations, &what, crypto);
            });
            self.states(operations, operations as u64, &mut |store, picks| {
                let what = format!("{name}, after {operations} operations, picks {picks:?}");
                let again = store.crash(0, &mut |_| 0);
                self.check(store, operations, &what, crypto);
                // Recovery itself loses power, somewhere.
                if picks.iter().sum::<usize>() % 3 == 0 {
                    let second = again;
                    drop(Contents::start(second.clone(), &volume(), crypto).unwrap());
                    let end = second.operations();
                    for cut in [end / 4, end / 2, end * 3 / 4, end.saturating_sub(1)] {
                        let mut flip = cut;
                        let third = second.crash(cut, &mut |below| {
                            flip = flip.wrapping_mul(31).wrapping_add(7);
                            flip % below
                        });
                        self.check(
                            &third,
                            operations,
                            &format!("{what}, recovery cut after {cut} of {end}"),
                            crypto,
                        );
                    }
                }
            });
        }
    }
}

fn survives(name: &str, old: Option<usize>, steps: &[Step]) {
    let mut crypto = crypto();
    record(old, steps, &mut crypto).enumerate(name, &mut crypto);
}

#[test]
fn overwriting_synced_chunks_survives() {
    survives(
        "overwrite",
        Some(20_000),
        &[Write(4096, 4096), Sync, Write(0, 9000), Write(4000, 300), Sync, Write(4096, 1)],
    );
}

#[test]
fn appended_lines_survive() {
    survives(
        "append",
        Some(4000),
        &[Append(90), Sync, Append(100), Sync, Append(9000), Append(5), Sync, Append(70)],
    );
    survives(
        "append to a new file",
        None,
        &[Append(90), Sync, Append(100), Sync, Append(5000), Sync, Append(1)],
    );
    survives(
        "append, reopened",
        None,
        &[Append(4000), Reopen, Append(90), Reopen, Sync, Reopen, Append(70), Sync],
    );
}

#[test]
fn growth_that_was_not_synced_is_missing_or_whole() {
    survives("grow", Some(5000), &[Append(200_000), Append(100_000)]);
    survives("grow a new file", None, &[Append(20_000), Write(0, 5000), Append(9000)]);
    survives(
        "grow, sync, grow",
        Some(0),
        &[Append(70_000), Sync, Append(80_000), Sync, Write(60_000, 30_000)],
    );
    survives(
        "grow around a checkpoint",
        None,
        &[Append(5000), Checkpoint, Append(90_000), Checkpoint, Append(80_000), Sync],
    );
}

#[test]
fn cutting_survives() {
    survives(
        "cut",
        Some(20_000),
        &[SetLen(9000), Append(90_000), Sync, SetLen(0), Append(5000), Sync, SetLen(100)],
    );
    survives(
        "cut what is new",
        None,
        &[Append(20_000), SetLen(9000), Append(100), Sync, SetLen(8192), SetLen(0), Append(9)],
    );
    survives("cut and extend", Some(20_000), &[SetLen(1), SetLen(20_000), Sync, Write(0, 20_000)]);
}

#[test]
fn what_was_cut_before_a_sync_does_not_come_back() {
    survives("cut, sync, grow", Some(20_000), &[SetLen(9000), Sync, Append(90_000)]);
    survives("cut, sync, cut again, grow", Some(20_000), &[SetLen(9000), Sync, SetLen(5000), Append(90_000)]);
    survives(
        "cut, sync, grow by little, then by much",
        Some(20_000),
        &[SetLen(4096), Sync, Append(100), Append(70_000), Sync],
    );
    // What is in place is older than what was synced.
    survives(
        "overwrite, sync, cut, grow",
        Some(20_000),
        &[Write(100, 40_000), Sync, SetLen(5000), Append(90_000)],
    );
}

#[test]
fn holes_survive() {
    survives(
        "sparse",
        None,
        &[SetLen(400_000), Write(100_000, 5000), Sync, Write(8192, 4096), SetLen(120_000), Sync],
    );
    survives(
        "far append",
        Some(5000),
        &[Write(300_000, 100), Sync, Checkpoint, Write(200_000, 9000), Sync, Append(90_000)],
    );
    survives(
        "punch",
        Some(60_000),
        &[Zero(5000, 40_000), Sync, Checkpoint, Write(16_384, 100), Zero(0, 9000), Sync],
    );
}

/// Found by the fuzz target `fs_model`.
#[test]
fn a_synced_length_survives_holes_behind_it() {
    survives(
        "punch after growth by zeros",
        None,
        &[
            Checkpoint,
            Sync,
            SetLen(59_830),
            Sync,
            Zero(20_480, 20_483),
            Write(16_384, 14_336),
            Write(20_481, 16_599),
            Create,
            Create,
        ],
    );
}

#[test]
fn what_grows_during_a_sync_costs_nothing_that_it_acknowledges() {
    for sparse in [false, true] {
        let mut crypto = support::crypto();
        let store = SimStore::default();
        let contents = Contents::start(store.clone(), &volume(), &mut crypto).unwrap().0;
        let (file, place) = store.create("file");
        let content = contents.create(file, place, &mut crypto).unwrap();
        let bytes = pattern(5000, 1);
        content.write(&bytes, 0, &mut crypto).unwrap();
        let other = content.clone();
        store.during_next_sync(move || {
            let more = pattern(100_000, 2);
            other.write(&more, if sparse { 300_000 } else { 5000 }, &mut support::crypto()).unwrap();
        });
        content.sync(&mut crypto).unwrap();
        let operations = store.operations();
        for seed in 0..200_usize {
            let mut state = seed * 7919;
            let crashed = store.crash(operations, &mut |below| {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                if seed < below { seed } else { (state >> 33) % below }
            });
            let contents = Contents::start(crashed.clone(), &volume(), &mut crypto).unwrap().0;
            let (file, place) = crashed.open("file").unwrap();
            let content = contents.open(file, place, &mut crypto).unwrap();
            let got = whole(&content, &mut crypto);
            assert!(got.len() >= 5000 && got[..5000] == bytes, "seed {seed}: {} bytes", got.len());
        }
    }
}

#[test]
fn the_first_file_of_an_epoch_is_empty_or_not_there_after_a_power_cut() {
    let mut crypto = crypto();
    // The first epoch of a volume, and one after a checkpoint.
    for earlier in [false, true] {
        let store = SimStore::default();
        let contents = Contents::start(store.clone(), &volume(), &mut crypto).unwrap().0;
        if earlier {
            let (file, place) = store.create("earlier");
            contents.create(file, place, &mut crypto).unwrap();
            contents.checkpoint(&mut crypto).unwrap();
        }
        let from = store.operations();
        let creating = contents.before_create(&mut crypto).unwrap();
        let (file, place) = store.create("file");
        contents.create(file, place, &mut crypto).unwrap();
        drop(creating);
        for operations in from..=store.operations() {
            for seed in 0..20 {
                let mut picks = seed;
                let crashed = store.crash(operations, &mut |below| {
                    picks = picks * 31 % 1009;
                    if seed < 2 { seed.min(below - 1) } else { picks % below }
                });
                let contents = Contents::start(crashed.clone(), &volume(), &mut crypto).unwrap().0;
                let Some((file, place)) = crashed.open("file") else { continue };
                let opened = contents.open(file, place, &mut crypto);
                let len = opened.map(|content| whole(&content, &mut crypto).len());
                assert_eq!(len.map_err(|error| error.to_string()), Ok(0), "after {operations}, seed {seed}");
            }
        }
    }
}

#[test]
fn what_is_synced_of_a_file_that_was_mended_survives_the_next_cut() {
    let mut crypto = crypto();
    let store = SimStore::default();
    let contents = Contents::start(store.clone(), &volume(), &mut crypto).unwrap().0;
    let (file, place) = store.create("file");
    contents.create(file, place, &mut crypto).unwrap().sync(&mut crypto).unwrap();
    // Power is lost, the file is opened and looked at, and gets an id outside the ranges that did not end well.
    let store = store.crash(store.operations(), &mut |_| 0);
    let contents = Contents::start(store.clone(), &volume(), &mut crypto).unwrap().0;
    let (file, place) = store.open("file").unwrap();
    let content = contents.open(file, place, &mut crypto).unwrap();
    content.set_len(28_675, &mut crypto).unwrap();
    content.sync(&mut crypto).unwrap();
    // Of the next cut only what was synced is left.
    let store = store.crash(store.operations(), &mut |_| 0);
    let (contents, recovered) = Contents::start(store.clone(), &volume(), &mut crypto).unwrap();
    assert_eq!(recovered.lines, [""; 0]);
    let (file, place) = store.open("file").unwrap();
    let content = contents.open(file, place, &mut crypto).unwrap();
    assert!(whole(&content, &mut crypto) == vec![0; 28_675]);
}

fn step() -> impl Strategy<Value = Step> {
    let place = || {
        prop_oneof![
            (0_usize..6, -2_isize..3).prop_map(|(chunk, off)| (chunk as isize * 4096 + off).max(0) as usize),
            0_usize..100_000
        ]
    };
    prop_oneof![
        4 => (place(), place()).prop_map(|(at, len)| Write(at, len)),
        3 => place().prop_map(Append),
        2 => place().prop_map(SetLen),
        1 => (place(), place()).prop_map(|(at, len)| Zero(at, len)),
        4 => Just(Sync),
        1 => Just(Checkpoint),
        1 => Just(Reopen),
        1 => Just(Create),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, max_shrink_iters: 60, ..ProptestConfig::default() })]

    #[test]
    fn random_histories_survive(old in prop::option::of(0_usize..10_000), steps in prop::collection::vec(step(), 1..8), seed: u64) {
        let mut crypto = crypto();
        let history = record(old, &steps, &mut crypto);
        let mut random = seed | 1;
        for operations in history.from..=history.store.operations() {
            for torn in [false, true] {
                let mut picks = Vec::new();
                let choose = &mut |below| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    picks.push((random >> 33) as usize % below);
                    picks[picks.len() - 1]
                };
                let store = match torn {
                    true => history.store.crash_torn(operations, choose),
                    false => history.store.crash(operations, choose),
                };
                history.check(&store, operations, &format!("after {operations}, picks {picks:?}"), &mut crypto);
            }
        }
    }
}
