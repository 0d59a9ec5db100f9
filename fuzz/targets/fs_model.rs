//! The volume's contents against plain byte vectors, over random operations and power cuts in between: whatever was
//! synced is there afterwards, chunk by chunk, and what was not is missing or some version that was written.
#![no_main]

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use wattlock_fs::content::{Content, Contents};
use wattlock_fs::dev::SimStore;
use wattlock_fs::volume::{NameMode, Volume};
use wattlock_fuzz::{Bytes, Portable};
use zeroize::Zeroizing;

const CHUNK: usize = 4096;
/// Longest content; growth beyond a journal's share and holes must fit.
const LONGEST: usize = 150_000;
const NAMES: [&str; 3] = ["a", "b", "c"];

/// A file as plain bytes: every version since the last sync, which is the first.
struct Plain {
    versions: Vec<Vec<u8>>,
    /// Whether the first version must survive; else the file may be gone or empty.
    synced: bool,
    content: Arc<Content<SimStore>>,
}

impl Plain {
    fn now(&self) -> &Vec<u8> {
        self.versions.last().expect("there is always one")
    }

    fn change(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        let mut next = self.now().clone();
        change(&mut next);
        self.versions.push(next);
    }

    fn acknowledged(&mut self) {
        self.versions.drain(..self.versions.len() - 1);
        self.synced = true;
    }

    /// Whether these bytes may be what a power cut left.
    fn may_be(&self, got: &[u8]) -> bool {
        let shortest = self.versions.iter().map(Vec::len).min().unwrap_or(0);
        let long_enough = !self.synced || got.len() >= shortest;
        long_enough
            && got.chunks(CHUNK).enumerate().all(|(index, chunk)| {
                let at = index * CHUNK;
                self.versions.iter().any(|bytes| {
                    let there = bytes.get(at..bytes.len().min(at + CHUNK)).unwrap_or_default();
                    // One version's, of which a part may have been cut, or an old end that was extended with zeros.
                    there.starts_with(chunk)
                        || chunk.strip_prefix(there).is_some_and(|rest| rest.iter().all(|byte| *byte == 0))
                })
            })
    }
}

struct World {
    store: SimStore,
    contents: Contents<SimStore>,
    files: BTreeMap<&'static str, Plain>,
}

fn volume() -> &'static Volume {
    static VOLUME: OnceLock<Volume> = OnceLock::new();
    VOLUME.get_or_init(|| {
        let mut volume = Volume::generate(CHUNK, NameMode::Plain).expect("a volume");
        volume.keys = vec![(1, Zeroizing::new([7; 32]))];
        volume
    })
}

fn whole(content: &Content<SimStore>) -> Vec<u8> {
    let mut bytes = vec![0xee; content.len() as usize + 9];
    let len = content.read(&mut bytes, 0, &mut Portable).expect("it can be read");
    assert_eq!(len as u64, content.len());
    bytes.truncate(len);
    bytes
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i / 61) as u8 ^ seed | 1).collect()
}

impl World {
    fn step(&mut self, bytes: &mut Bytes<'_>, seed: u8) {
        let crypto = &mut Portable;
        let (code, name) = (bytes.byte() % 16, bytes.pick(&NAMES));
        let place = |bytes: &mut Bytes<'_>| match bytes.byte() % 3 {
            0 => bytes.below(9) * CHUNK + bytes.below(5),
            1 => (bytes.below(9) * CHUNK).saturating_sub(bytes.below(5)),
            _ => bytes.below(LONGEST / 2),
        };
        let Some(file) = self.files.get_mut(name) else {
            if code < 12 {
                let creating = self.contents.before_create(crypto).expect("no failure");
                let (file, place) = self.store.create(name);
                let content = self.contents.create(file, place, crypto).expect("no failure");
                drop(creating);
                self.files.insert(name, Plain { versions: vec![Vec::new()], synced: false, content });
            }
            return;
        };
        match code {
            0..=3 => {
                let (at, len) = (place(bytes), place(bytes) / 2);
                let new = pattern(len, seed);
                file.content.write(&new, at as u64, crypto).expect("room");
                if len > 0 {
                    file.change(|all| {
                        all.resize(all.len().max(at + len), 0);
                        all[at..at + len].copy_from_slice(&new);
                    });
                }
            }
            4..=5 if file.now().len() < LONGEST => {
                let new = pattern(place(bytes) / 2, seed);
                file.content.append(&new, crypto).expect("room");
                file.change(|all| all.extend(&new));
            }
            6..=7 => {
                let len = place(bytes);
                file.content.set_len(len as u64, crypto).expect("room");
                file.change(|all| all.resize(len, 0));
            }
            8 => {
                let (at, len) = (place(bytes), place(bytes));
                file.content.zero(at as u64, len as u64, crypto).expect("room");
                file.change(|all| {
                    let end = all.len().min(at + len);
                    if at < end {
                        all[at..end].fill(0);
                    }
                });
            }
            9..=11 => {
                file.content.sync(crypto).expect("no failure");
                file.acknowledged();
            }
            12 => {
                self.contents.checkpoint(crypto).expect("no failure");
                self.files.values_mut().for_each(Plain::acknowledged);
            }
            13 => {
                // Every opener closes, and one opens again.
                let (versions, synced) = (std::mem::take(&mut file.versions), file.synced);
                self.files.remove(name);
                let (file, place) = self.store.open(name).expect("it is there");
                let content = self.contents.open(file, place, crypto).expect("it opens");
                self.files.insert(name, Plain { versions, synced, content });
            }
            14 => {
                let at = place(bytes);
                let len = place(bytes);
                let mut got = vec![0; len];
                let read = file.content.read(&mut got, at as u64, crypto).expect("it can be read");
                let now = file.now();
                let there = now.get(at.min(now.len())..now.len().min(at + len)).unwrap_or_default();
                assert!(got[..read] == *there, "{name} at {at}");
            }
            15 => self.crash(bytes),
            _ => {}
        }
    }

    /// Power is lost after any operation since the last start, and with it any choice of pages.
    fn crash(&mut self, bytes: &mut Bytes<'_>) {
        let crypto = &mut Portable;
        let mut picks = bytes.number(2);
        let mode = bytes.byte() % 4;
        let store = self.store.crash(self.store.operations(), &mut |below| {
            picks = picks.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            match mode {
                0 => 0,
                1 => below - 1,
                _ => (picks >> 33) as usize % below,
            }
        });
        // The one that was cut goes on no more.
        let before = std::mem::take(&mut self.files);
        self.contents = Contents::start(store.clone(), volume(), crypto).expect("a start after a crash").0;
        self.store = store;
        for (name, old) in before {
            let Some((file, place)) = self.store.open(name) else {
                assert!(!old.synced, "{name} is gone");
                continue;
            };
            let content =
                self.contents.open(file, place, crypto).unwrap_or_else(|error| panic!("{name}: {error}"));
            let got = whole(&content);
            assert!(old.may_be(&got), "{name}: {} bytes of none of its versions", got.len());
            self.files.insert(name, Plain { versions: vec![got], synced: true, content });
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = Bytes(bytes);
    let store = SimStore::default();
    let contents = Contents::start(store.clone(), volume(), &mut Portable).expect("an empty one starts").0;
    let mut world = World { store, contents, files: BTreeMap::new() };
    let mut seed = 0;
    while !bytes.is_empty() && seed < 40 {
        seed += 1;
        world.step(&mut bytes, seed);
    }
    for (name, file) in &world.files {
        assert!(whole(&file.content) == *file.now(), "{name} at the end");
    }
});
