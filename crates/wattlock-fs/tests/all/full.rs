//! A backing store that fills up: the call fails with `ENOSPC`, and the old content is intact.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::support;

use std::collections::BTreeMap;
use std::sync::Arc;

use wattlock::Dispatcher;
use wattlock_fs::Error;
use wattlock_fs::content::{Content, Contents};
use wattlock_fs::dev::SimStore;

use support::{crypto, pattern, volume, whole};

#[test]
fn wherever_room_runs_out_the_old_content_is_intact() {
    let mut crypto = crypto();
    for sync_first in [false, true] {
        let mut refused = 0;
        for room in 0..150 {
            let store = SimStore::default();
            let contents = Contents::start(store.clone(), &volume(), &mut crypto).unwrap().0;
            let (file, place) = store.create("file");
            let content = contents.create(file, place, &mut crypto).unwrap();
            let mut model = pattern(30_000, 1);
            content.write(&model, 0, &mut crypto).unwrap();
            if sync_first {
                content.sync(&mut crypto).unwrap();
            }
            store.limit(Some(store.taken() + room));
            for step in 0..10_u64 {
                let mut next = model.clone();
                let bytes = pattern(40_000, step + 2);
                let result = match step {
                    0 => {
                        next[100..5100].copy_from_slice(&bytes[..5000]);
                        content.write(&bytes[..5000], 100, &mut crypto)
                    }
                    1 | 4 => {
                        next.extend(&bytes[..70]);
                        content.append(&bytes[..70], &mut crypto).map(|_| ())
                    }
                    2 => {
                        next.extend(&bytes);
                        content.append(&bytes, &mut crypto).map(|_| ())
                    }
                    3 => {
                        next.truncate(20_000);
                        next.extend(&bytes);
                        content.set_len(20_000, &mut crypto).and_then(|()| {
                            model = next[..20_000].to_vec();
                            content.append(&bytes, &mut crypto).map(|_| ())
                        })
                    }
                    5 => {
                        next.resize(500_000, 0);
                        content.set_len(500_000, &mut crypto)
                    }
                    6 => {
                        next[400_000..440_000].copy_from_slice(&bytes);
                        content.write(&bytes, 400_000, &mut crypto)
                    }
                    7 => {
                        next[1000..30_000].fill(0);
                        content.zero(1000, 29_000, &mut crypto)
                    }
                    8 => contents.checkpoint(&mut crypto),
                    _ => content.sync(&mut crypto),
                };
                match result {
                    Ok(()) => model = next,
                    Err(error) => {
                        assert_eq!(error.errno(), 28, "room {room}, step {step}: {error}");
                        refused += 1;
                        if matches!(step, 5..=7) {
                            // What these change they change in parts; from here on the file is what it is.
                            let now = whole(&content, &mut crypto);
                            assert!(step == 7 || now == model, "room {room}, step {step}");
                            break;
                        }
                    }
                }
                assert!(whole(&content, &mut crypto) == model, "room {room}, step {step}");
            }
            let model = whole(&content, &mut crypto);
            // With room again everything is brought into place, and read after a restart.
            store.limit(None);
            content.sync(&mut crypto).unwrap();
            drop((content, contents));
            let contents = Contents::start(store.clone(), &volume(), &mut crypto).unwrap().0;
            let (file, place) = store.open("file").unwrap();
            let content = contents.open(file, place, &mut crypto).unwrap();
            assert!(whole(&content, &mut crypto) == model, "room {room}, after a restart");
        }
        assert!(refused > 30, "{refused}");
    }
}

/// Each sync of overwritten chunks leaves them in the journal, which is emptied after 256 MiB: a small disk has less.
#[test]
fn what_is_overwritten_again_and_again_takes_room_once() {
    let mut crypto = crypto();
    let store = SimStore::default();
    let contents = Contents::start(store.clone(), &volume(), &mut crypto).unwrap().0;
    let (file, place) = store.create("file");
    let content = contents.create(file, place, &mut crypto).unwrap();
    let mut model = pattern(300_000, 1);
    content.write(&model, 0, &mut crypto).unwrap();
    content.sync(&mut crypto).unwrap();
    contents.checkpoint(&mut crypto).unwrap();
    // Room for the journal of a few rounds.
    store.limit(Some(store.taken() + 500));
    for round in 0..300 {
        let (at, bytes) = (round % 5 * 60_000, pattern(40_000, round as u64));
        model[at..at + 40_000].copy_from_slice(&bytes);
        let written = content.write(&bytes, at as u64, &mut crypto);
        written.unwrap_or_else(|error| panic!("round {round}: {error}"));
        content.sync(&mut crypto).unwrap_or_else(|error| panic!("round {round}, sync: {error}"));
        assert!(whole(&content, &mut crypto) == model, "round {round}");
    }
    drop((content, contents));
    let contents = Contents::start(store.clone(), &volume(), &mut crypto).unwrap().0;
    let (file, place) = store.open("file").unwrap();
    let content = contents.open(file, place, &mut crypto).unwrap();
    assert!(whole(&content, &mut crypto) == model);
}

/// A volume on a disk that others fill: nothing that is given back is to be had again.
struct Full {
    store: SimStore,
    contents: Contents<SimStore>,
    open: BTreeMap<&'static str, Arc<Content<SimStore>>>,
    models: BTreeMap<&'static str, Vec<u8>>,
    refused: usize,
    crypto: Dispatcher,
}

/// What is done, one step after the other, to a file.
#[derive(Debug, Clone, Copy)]
enum Step {
    Create(&'static str),
    Write(&'static str, usize, usize),
    Append(&'static str, usize),
    SetLen(&'static str, usize),
    Zero(&'static str, usize, usize),
    Sync(&'static str),
    Checkpoint,
}
use Step::*;

const STEPS: [Step; 27] = [
    Create("new"),
    Write("new", 0, 20_000),
    Append("old", 70),
    Sync("old"),
    Write("old", 100, 5000),
    Sync("old"),
    Append("old", 70),
    Append("old", 100_000),
    Sync("old"),
    Write("new", 300_000, 5000),
    Append("new", 300),
    Sync("new"),
    Zero("old", 4096, 12_000),
    Write("old", 6000, 500),
    Sync("old"),
    SetLen("old", 9000),
    Append("old", 90_000),
    Sync("old"),
    SetLen("new", 500_000),
    Write("new", 250_000, 9000),
    SetLen("new", 500),
    Checkpoint,
    Append("new", 70_000),
    Sync("new"),
    // Small growth and a hole, in the journal alone.
    Append("old", 50_000),
    Sync("old"),
    SetLen("new", 500_000),
];

impl Full {
    fn new() -> Full {
        let (store, mut crypto) = (SimStore::default(), crypto());
        let contents = Contents::start(store.clone(), &volume(), &mut crypto).unwrap().0;
        let mut full =
            Full { store, contents, open: BTreeMap::new(), models: BTreeMap::new(), refused: 0, crypto };
        assert!(
            [Create("old"), Write("old", 0, 30_000), Checkpoint].map(|step| full.step(step)) == [true; 3]
        );
        full
    }

    /// Whether there was room.
    fn step(&mut self, step: Step) -> bool {
        let bytes = pattern(100_000, self.models.len() as u64 + 3);
        let Full { store, contents, open, models, crypto, .. } = self;
        let (name, before) = match step {
            Create(name) => (name, Vec::new()),
            Write(name, ..) | Append(name, _) | SetLen(name, _) | Zero(name, ..) | Sync(name) => {
                let Some(model) = models.get(name) else { return false };
                (name, model.clone())
            }
            Checkpoint => ("old", models["old"].clone()),
        };
        let (mut next, content) = (before.clone(), open.get(name).cloned());
        let content = || content.clone().unwrap();
        let done: Result<(), Error> = match step {
            Create(name) => contents.before_create(crypto).and_then(|creating| {
                let (file, place) = store.create(name);
                let content = contents.create(file, place, crypto);
                drop(creating);
                content.map(|content| _ = open.insert(name, content)).inspect_err(|_| store.remove(name))
            }),
            Write(_, at, len) => {
                next.resize(next.len().max(at + len), 0);
                next[at..at + len].copy_from_slice(&bytes[..len]);
                content().write(&bytes[..len], at as u64, crypto)
            }
            Append(_, len) => {
                next.extend(&bytes[..len]);
                content().append(&bytes[..len], crypto).map(|_| ())
            }
            SetLen(_, len) => {
                next.resize(len, 0);
                content().set_len(len as u64, crypto)
            }
            Zero(_, at, len) => {
                let end = next.len().min(at + len);
                next[at.min(end)..end].fill(0);
                content().zero(at as u64, len as u64, crypto)
            }
            Sync(_) => content().sync(crypto),
            Checkpoint => contents.checkpoint(crypto),
        };
        if let Err(error) = &done {
            assert_eq!(error.errno(), 28, "{step:?}: {error}");
            self.refused += 1;
        }
        match (step, &done) {
            (Create(_), Err(_)) => return false,
            // It goes on where the disk lets it: a part may be zero, and all the rest is as it was.
            (Zero(..), Err(_)) => next = whole(&self.open[name], &mut self.crypto),
            (_, Err(_)) => next = before,
            _ => {}
        }
        self.models.insert(name, next);
        self.check(&format!("{step:?}, {done:?}"));
        done.is_ok()
    }

    /// Sizes and contents say how far everything came.
    fn check(&mut self, what: &str) {
        for (name, content) in &self.open {
            assert_eq!(content.len(), self.models[name].len() as u64, "{what}: {name}");
            assert!(whole(content, &mut self.crypto) == self.models[name], "{what}: {name}");
        }
    }

    /// Everything closes, and another run begins; the disk is full all the while.
    fn restart(self, what: &str) -> Full {
        let Full { store, contents, open, models, refused, mut crypto } = self;
        drop((open, contents));
        let reading = Contents::start_to_read(store.clone(), &volume(), &mut crypto);
        let (reading, _) = reading.unwrap_or_else(|error| panic!("{what}: reading: {error}"));
        let started = Contents::start(store.clone(), &volume(), &mut crypto);
        let (contents, _) = started.unwrap_or_else(|error| panic!("{what}: starting: {error}"));
        let mut open = BTreeMap::new();
        for name in models.keys().copied() {
            let (file, place) = store.open(name).unwrap();
            let content = reading.open(file.clone(), place.clone(), &mut crypto).map(|_| ());
            content.unwrap_or_else(|error| panic!("{what}: {name}, reading: {error}"));
            let content = contents.open(file, place, &mut crypto);
            open.insert(name, content.unwrap_or_else(|error| panic!("{what}: {name}: {error}")));
        }
        let mut full = Full { store, contents, open, models, refused, crypto };
        full.check(what);
        full
    }
}

/// The disk is full from each page on that the workload takes.
#[test]
fn wherever_a_disk_is_full_for_good_nothing_is_lost_and_overwriting_goes_on() {
    let mut refused = 0;
    for pages in 0.. {
        for clean in [true, false] {
            let what = format!("full after {pages} pages, unmounted: {clean}");
            let mut full = Full::new();
            full.store.fill_after(Some(pages));
            STEPS.iter().for_each(|step| _ = full.step(*step));
            refused = full.refused;
            // What is there is replaced, made durable and brought into place, again and again.
            for round in 0..3 {
                assert!(full.step(Write("old", 100 + round, 5000)), "{what}: overwriting");
                assert!(full.step(Sync("old")), "{what}: syncing");
                assert!(!clean || full.step(Checkpoint), "{what}: a checkpoint");
            }
            let mut full = full.restart(&what);
            assert!(full.step(Write("old", 500, 5000)) && full.step(Sync("old")), "{what}: after a restart");
            assert!(full.step(Checkpoint), "{what}: after a restart");
            let full = full.restart(&what);
            drop(full);
        }
        if refused == 0 {
            assert!(pages > 50, "{pages}");
            return;
        }
    }
}

/// What could not be written keeps no room once it is removed.
#[test]
fn a_file_that_found_no_room_gives_its_room_back_at_once() {
    for closed_first in [false, true] {
        let mut full = Full::new();
        full.store.fill_after(Some(12));
        assert!(full.step(Create("new")));
        assert!(full.step(Write("new", 0, 20_000)));
        assert!(full.step(Write("old", 0, 9000)) && full.step(Sync("old")));
        assert!(!full.step(Append("new", 90_000)));
        // The journal has something of it, and a disk refused it.
        full.step(Append("new", 300));
        full.store.fail_syncs(1);
        assert_eq!(full.open["new"].sync(&mut full.crypto).unwrap_err().errno(), 5);
        let (_, place) = full.store.open("new").unwrap();
        if closed_first {
            full.open.remove("new");
        }
        full.store.remove("new");
        full.contents.removed(place.inode);
        full.open.remove("new");
        assert!(full.store.drop_nameless() >= 5, "closed first: {closed_first}");
    }
}
