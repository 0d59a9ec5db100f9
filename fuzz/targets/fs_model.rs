//! The volume's contents against plain byte vectors, over random operations, refusing disks and power cuts in between,
//! in recovery too: whatever was synced is there afterwards, chunk by chunk, and what was not is missing or some version
//! that was written.
#![no_main]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use libfuzzer_sys::fuzz_target;
use wattlock_fs::Error;
use wattlock_fs::content::{Content, Contents};
use wattlock_fs::dev::SimStore;
use wattlock_fs::volume::{NameMode, Volume};
use wattlock_fuzz::{Bytes, Portable};
use zeroize::Zeroizing;

const CHUNK: usize = 4096;
/// Longest content; growth beyond a journal's share and holes must fit.
const LONGEST: usize = 150_000;
const NAMES: [&str; 3] = ["a", "b", "c"];
/// `EIO` and `ENOSPC`.
const REFUSALS: [i32; 2] = [5, 28];

/// What a power cut may leave of a file: every version since the last sync, which is the first.
#[derive(Clone)]
struct Versions {
    all: Vec<Arc<Vec<u8>>>,
    /// Whether the first version must survive; else the file may be gone or empty.
    synced: bool,
}

impl Versions {
    fn now(&self) -> &Arc<Vec<u8>> {
        self.all.last().expect("there is always one")
    }

    /// Whether these bytes may be what a power cut left.
    fn may_be(&self, got: &[u8]) -> bool {
        let shortest = self.all.iter().map(|bytes| bytes.len()).min().unwrap_or(0);
        let long_enough = !self.synced || got.len() >= shortest;
        long_enough && got.chunks(CHUNK).enumerate().all(|(index, chunk)| self.has(index, chunk))
    }

    /// Whether a chunk is one version's, of which a part may have been cut, or an old end that was extended with zeros.
    fn has(&self, index: usize, chunk: &[u8]) -> bool {
        let at = index * CHUNK;
        self.all.iter().any(|bytes| {
            let there = bytes.get(at..bytes.len().min(at + CHUNK)).unwrap_or_default();
            there.starts_with(chunk)
                || chunk.strip_prefix(there).is_some_and(|rest| rest.iter().all(|byte| *byte == 0))
        })
    }
}

/// A file as plain bytes.
struct Plain {
    versions: Versions,
    /// Not there while no program has it open.
    content: Option<Arc<Content<SimStore>>>,
    /// Power was lost, and it was not opened since: which of its versions it has is not known.
    unseen: bool,
}

impl Plain {
    fn change(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        let mut next = Vec::clone(self.versions.now());
        change(&mut next);
        self.versions.all.push(Arc::new(next));
    }

    /// The versions before this one are gone.
    fn acknowledged(&mut self, version: usize) {
        self.versions.all.drain(..version);
        self.versions.synced = true;
    }
}

/// One change of a file.
#[derive(Clone)]
enum Change {
    Write(usize, Vec<u8>),
    Append(Vec<u8>),
    SetLen(usize),
    Zero(usize, usize),
}

impl Change {
    fn to_content(&self, content: &Content<SimStore>) -> Result<(), Error> {
        let crypto = &mut Portable;
        match self {
            Change::Write(at, bytes) => content.write(bytes, *at as u64, crypto),
            Change::Append(bytes) => content.append(bytes, crypto).map(|_| ()),
            Change::SetLen(len) => content.set_len(*len as u64, crypto),
            Change::Zero(at, len) => content.zero(*at as u64, *len as u64, crypto),
        }
    }

    fn to_bytes(&self, all: &mut Vec<u8>) {
        match self {
            Change::Write(at, bytes) if !bytes.is_empty() => {
                all.resize(all.len().max(at + bytes.len()), 0);
                all[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            Change::Write(..) => {}
            Change::Append(bytes) => all.extend(bytes),
            Change::SetLen(len) => all.resize(*len, 0),
            Change::Zero(at, len) => {
                let end = all.len().min(at + len);
                if *at < end {
                    all[*at..end].fill(0);
                }
            }
        }
    }
}

struct World {
    store: SimStore,
    contents: Contents<SimStore>,
    files: BTreeMap<&'static str, Plain>,
    /// Files without a name that are still open.
    nameless: Vec<Arc<Content<SimStore>>>,
    /// Operations before the last step, and what could be lost then.
    before: (usize, BTreeMap<&'static str, Versions>),
    /// A sync may have failed since the start.
    refused: bool,
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

fn place(bytes: &mut Bytes<'_>) -> usize {
    match bytes.byte() % 3 {
        0 => bytes.below(9) * CHUNK + bytes.below(5),
        1 => (bytes.below(9) * CHUNK).saturating_sub(bytes.below(5)),
        _ => bytes.below(LONGEST / 2),
    }
}

/// Whether it was done; else a disk refused it.
fn done<T>(result: Result<T, Error>) -> bool {
    match result {
        Ok(_) => true,
        Err(error) if REFUSALS.contains(&error.errno()) && matches!(error, Error::Io { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

impl World {
    fn new(store: SimStore) -> World {
        let contents = Contents::start(store.clone(), volume(), &mut Portable).expect("a start").0;
        let before = (store.operations(), BTreeMap::new());
        World { store, contents, files: BTreeMap::new(), nameless: Vec::new(), before, refused: false }
    }

    /// The content of a file that is there, opened if it is not; `None` if a disk refuses to mend it.
    fn content(&mut self, name: &'static str) -> Option<Arc<Content<SimStore>>> {
        let file = self.files.get_mut(name).expect("it is there");
        if let Some(content) = &file.content {
            return Some(content.clone());
        }
        let (backing, place) = self.store.open(name).expect("it is there");
        let content = match self.contents.open(backing, place, &mut Portable) {
            Err(error)
                if self.refused && REFUSALS.contains(&error.errno()) && matches!(error, Error::Io { .. }) =>
            {
                return None;
            }
            opened => opened.unwrap_or_else(|error| panic!("{name}: {error}")),
        };
        file.content = Some(content.clone());
        if file.unseen {
            let got = whole(&content);
            assert!(file.versions.may_be(&got), "{name}: {} bytes of none of its versions", got.len());
            file.versions = Versions { all: vec![Arc::new(got)], synced: true };
            file.unseen = false;
        }
        Some(content)
    }

    fn change(bytes: &mut Bytes<'_>, code: u8, seed: u8) -> Change {
        match code {
            0..=3 => Change::Write(place(bytes), pattern(place(bytes) / 2, seed)),
            4..=5 => Change::Append(pattern(place(bytes) / 2, seed)),
            6..=7 => Change::SetLen(place(bytes)),
            _ => Change::Zero(place(bytes), place(bytes)),
        }
    }

    /// What a change that may have been refused half-way has made of a file: chunks of before and after.
    fn changed(&mut self, name: &'static str, change: &Change, done: bool) {
        let content = self.content(name).expect("it was opened");
        let file = self.files.get_mut(name).expect("it is there");
        let old = file.versions.now().clone();
        file.change(|all| change.to_bytes(all));
        if !done {
            let got = whole(&content);
            let both = Versions { all: vec![old, file.versions.now().clone()], synced: false };
            assert!(both.may_be(&got), "{name}: a change that was refused");
            file.versions.all.push(Arc::new(got));
        }
    }

    fn step(&mut self, bytes: &mut Bytes<'_>, seed: u8) {
        let crypto = &mut Portable;
        let byte = bytes.byte();
        let code = if byte < 160 { byte % 16 } else { 16 + (byte - 160) % 12 };
        let name = bytes.pick(&NAMES);
        if code == 15 {
            return self.crash(bytes);
        }
        let versions = self.files.iter().map(|(name, file)| (*name, file.versions.clone()));
        self.before = (self.store.operations(), versions.collect());
        if !self.files.contains_key(name) {
            if code < 12 {
                let Ok(creating) = self.contents.before_create(crypto) else { return assert!(self.refused) };
                let (file, place) = self.store.create(name);
                let content = self.contents.create(file, place, crypto);
                drop(creating);
                match content {
                    Ok(content) => {
                        let versions = Versions { all: vec![Arc::default()], synced: false };
                        self.files.insert(name, Plain { versions, content: Some(content), unseen: false });
                    }
                    Err(_) => {
                        assert!(self.refused);
                        self.store.remove(name);
                    }
                }
            }
            return;
        }
        match code {
            0..=8 => {
                let Some(content) = self.content(name) else { return };
                let change = World::change(bytes, code, seed);
                if matches!(change, Change::Append(_)) && content.len() as usize > LONGEST {
                    return;
                }
                let done = done(change.to_content(&content));
                assert!(done || self.refused);
                self.changed(name, &change, done);
            }
            9..=11 => {
                let Some(content) = self.content(name) else { return };
                let done = done(content.sync(crypto));
                assert!(done || self.refused);
                let file = self.files.get_mut(name).expect("it is there");
                if done {
                    file.acknowledged(file.versions.all.len() - 1);
                }
            }
            12 => {
                let done = done(self.contents.checkpoint(crypto));
                assert!(done || self.refused);
                for file in self.files.values_mut().filter(|file| done && !file.unseen) {
                    file.acknowledged(file.versions.all.len() - 1);
                }
            }
            13 => {
                // Every opener closes, and one opens again.
                self.files.get_mut(name).expect("it is there").content = None;
                self.content(name);
            }
            14 => {
                let Some(content) = self.content(name) else { return };
                let at = place(bytes);
                let len = place(bytes);
                let mut got = vec![0; len];
                let read = content.read(&mut got, at as u64, crypto).expect("it can be read");
                let now = self.files[name].versions.now();
                let there = now.get(at.min(now.len())..now.len().min(at + len)).unwrap_or_default();
                assert!(got[..read] == *there, "{name} at {at}");
            }
            // A change while a sync runs; it must not need a checkpoint, which waits for the sync.
            16..=18 if !self.refused => {
                let Some(content) = self.content(name) else { return };
                let version = self.files[name].versions.all.len() - 1;
                let code = bytes.byte() % 9;
                let (change, outcome) = (World::change(bytes, code, seed), Arc::new(Mutex::new(None)));
                let (inner, other, told) = (change.clone(), content.clone(), outcome.clone());
                self.store.during_next_sync(move || {
                    let done = done(inner.to_content(&other));
                    *told.lock().expect("no panic") = Some(done);
                });
                let done = done(content.sync(crypto));
                self.store.during_no_sync();
                assert!(done, "a sync");
                if let Some(changed) = *outcome.lock().expect("no panic") {
                    assert!(changed, "a change during a sync");
                    self.changed(name, &change, changed);
                }
                self.files.get_mut(name).expect("it is there").acknowledged(version);
            }
            // A disk refuses syncs, or has no room; or all is well again.
            19..=21 => {
                // What grew and is not open is not known to be in doubt: docs/design/limits.md.
                for name in NAMES {
                    if self.files.get(name).is_some_and(|file| !file.unseen) {
                        self.content(name);
                    }
                }
                let many = usize::from(bytes.byte());
                match code {
                    19 => self.store.fail_sync_after(many % 6),
                    20 => self.store.limit(Some(self.store.used() + many % 40)),
                    _ => {
                        self.store.fail_syncs(0);
                        self.store.limit(None);
                    }
                }
                self.refused |= code < 21;
            }
            22 if !self.refused => self.files.get_mut(name).expect("it is there").content = None,
            23 => {
                // Those that go on after the name is gone are no matter of a power cut.
                let Some(content) = self.content(name) else { return };
                self.store.remove(name);
                self.files.remove(name);
                self.before = (self.store.operations(), BTreeMap::new());
                let _ = content.write(&pattern(9000, seed), 100, crypto);
                let _ = content.sync(crypto);
                self.nameless.push(content);
            }
            24 => {
                let to = bytes.pick(&NAMES);
                if to != name {
                    self.store.rename(name, to);
                    let file = self.files.remove(name).expect("it is there");
                    let gone = self.files.insert(to, file).and_then(|gone| gone.content);
                    self.nameless.extend(gone);
                    self.before = (self.store.operations(), BTreeMap::new());
                }
            }
            25 => {
                let done = done(self.contents.rekey_journal(crypto));
                assert!(done || self.refused);
            }
            26 => _ = self.contents.look_through(true, &|| false, crypto),
            27 => self.nameless.clear(),
            _ => {}
        }
    }

    /// Power is lost after any operation of the last step, and with it any choice of pages and sectors.
    fn crash(&mut self, bytes: &mut Bytes<'_>) {
        let mut picks = bytes.number(2);
        let mode = bytes.byte();
        // All the oldest, or all the latest up to some choice and the oldest behind, or the other way round, or by lot.
        let (boundary, mut asked) = ((picks % 128).saturating_sub(64) as usize, 0);
        let choose = &mut |below: usize| {
            picks = picks.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            asked += 1;
            match mode % 4 {
                0 if asked > boundary => 0,
                1 if asked <= boundary => 0,
                0 | 1 => below - 1,
                _ => (picks >> 33) as usize % below,
            }
        };
        let end = self.store.operations();
        let (from, mut before) = std::mem::take(&mut self.before);
        let (early, twice, torn) = (mode & 4 > 0 && from > 0, mode & 8 > 0, mode & 16 > 0);
        let at = if early { from + choose(end - from + 1) } else { end };
        let mut cut = |store: &SimStore, at: usize| match torn {
            true => store.crash_torn(at, choose),
            false => store.crash(at, choose),
        };
        let store = cut(&self.store, at);
        // The one that was cut goes on no more.
        let files = std::mem::take(&mut self.files);
        *self = World::new(store);
        for (name, mut file) in files {
            if early && let Some(old) = before.remove(name) {
                let new = std::mem::replace(&mut file.versions, old);
                file.versions.all.extend(new.all);
            }
            if self.store.open(name).is_none() {
                assert!(!file.versions.synced, "{name} is gone");
                continue;
            }
            let versions = file.versions.clone();
            self.files.insert(name, Plain { versions, content: None, unseen: true });
        }
        if twice {
            // Recovery loses power, too, and what mends files when they are opened.
            let versions: Vec<_> =
                self.files.iter().map(|(name, file)| (*name, file.versions.clone())).collect();
            if mode & 32 > 0 {
                self.all();
            }
            let operations = self.store.operations();
            let at = bytes.number(1) as usize % (operations + 1);
            let store = cut(&self.store, at);
            *self = World::new(store);
            for (name, versions) in versions {
                assert!(self.store.open(name).is_some(), "{name} is gone after recovery");
                self.files.insert(name, Plain { versions, content: None, unseen: true });
            }
        }
        if mode & 64 == 0 {
            self.all();
        }
        self.before = (self.store.operations(), BTreeMap::new());
    }

    /// Opens all files.
    fn all(&mut self) {
        for name in NAMES {
            if self.files.contains_key(name) {
                self.content(name);
            }
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = Bytes(bytes);
    let mut world = World::new(SimStore::default());
    let mut seed = 0;
    while !bytes.is_empty() && seed < 40 {
        seed += 1;
        world.step(&mut bytes, seed);
    }
    world.store.fail_syncs(0);
    world.store.limit(None);
    world.all();
    for (name, file) in &world.files {
        assert!(
            whole(file.content.as_ref().expect("it is open")) == **file.versions.now(),
            "{name} at the end"
        );
    }
});
