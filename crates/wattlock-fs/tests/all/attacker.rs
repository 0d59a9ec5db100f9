//! A storage that changes backing files and the journal between runs: what is read is made of chunks that one file had under
//! one key, at their places and up to an end that it had, or it is an error.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use proptest::prelude::*;
use wattlock::Dispatcher;
use wattlock_fs::Error;
use wattlock_fs::content::Contents;
use wattlock_fs::store::{FolderStore, JOURNAL, Place};
use wattlock_fs::volume::Volume;

use crate::support::{CHUNK, crypto, place, volume};

const FILES: usize = 3;
const HEADER: usize = 96;
const STRIDE: usize = 4136;

type Choose<'a> = &'a mut dyn FnMut(usize) -> usize;

/// What a file had under one key.
#[derive(Default)]
struct Era {
    /// Every content since.
    states: Vec<Vec<u8>>,
    /// It began in a run that was killed: its end may be anywhere.
    torn: bool,
}

impl Era {
    fn chunks(state: &[u8], index: usize) -> Option<&[u8]> {
        let rest = state.get(index * CHUNK as usize..)?;
        Some(&rest[..rest.len().min(CHUNK as usize)])
    }

    /// Whether a content is made of chunks of this era.
    fn explains(&self, got: &[u8]) -> bool {
        let last = got.len() / CHUNK as usize;
        (0..=last).all(|index| {
            let Some(chunk) = Era::chunks(got, index) else { return false };
            self.states.iter().any(|state| {
                let there = Era::chunks(state, index);
                let ends = index < last || self.torn || state.len() / CHUNK as usize == last;
                there == Some(chunk) && ends || self.torn && index == last && chunk.is_empty()
            })
        })
    }
}

struct World {
    folder: tempfile::TempDir,
    volume: Volume,
    crypto: Dispatcher,
    /// Each file's eras; the last one's last state is its content.
    files: Vec<Vec<Era>>,
    /// What the storage kept: backing files, and journals.
    kept: Vec<Vec<u8>>,
    journals: Vec<Vec<u8>>,
    counter: u8,
}

impl World {
    fn path(&self, file: usize) -> PathBuf {
        self.folder.path().join(format!("file{file}"))
    }

    fn start(&mut self) -> Result<Contents<FolderStore>, Error> {
        let store = FolderStore::open(self.folder.path()).unwrap();
        Contents::start(store, &self.volume, &mut self.crypto).map(|(contents, _)| contents)
    }

    fn keep(&mut self) {
        for file in 0..FILES {
            self.kept.push(fs::read(self.path(file)).unwrap());
        }
        // None after a damaged one was removed.
        self.journals.extend(fs::read(self.folder.path().join(JOURNAL)));
    }

    fn place(&self, file: usize) -> (fs::File, Place) {
        let opened = fs::File::options().read(true).write(true).open(self.path(file)).unwrap();
        (opened, place(self.folder.path(), &format!("file{file}")))
    }

    /// Some writes of one file in a run.
    fn write(&mut self, contents: &Contents<FolderStore>, file: usize, killed: bool, choose: Choose<'_>) {
        let (backing, place) = self.place(file);
        let content = match contents.open(backing, place, &mut self.crypto) {
            Ok(content) => content,
            Err(_) => {
                // As `open(O_TRUNC)` does.
                let (backing, place) = self.place(file);
                let _creating = contents.before_create(&mut self.crypto).unwrap();
                self.files[file].push(Era { states: vec![Vec::new()], torn: killed });
                contents.begin_anew(backing, place, &mut self.crypto).unwrap()
            }
        };
        let latest = |world: &World| world.files[file].last().unwrap().states.last().unwrap().clone();
        // One byte more: where the end is is content, too.
        let mut now = vec![0; content.len() as usize + 1];
        let whole = content.read(&mut now, 0, &mut self.crypto);
        now.pop();
        if whole.is_err() || now != latest(self) || choose(3) == 0 {
            content.set_len(0, &mut self.crypto).unwrap();
            let torn = killed && self.files[file].last().unwrap().torn;
            self.files[file].push(Era { states: vec![Vec::new()], torn });
        }
        for _ in 0..choose(4) {
            let mut state = latest(self);
            let at = choose(state.len() + 1);
            let len = [1, 100, CHUNK as usize, 2 * CHUNK as usize][choose(4)];
            self.counter = self.counter.wrapping_add(1);
            content.write(&vec![self.counter; len], at as u64, &mut self.crypto).unwrap();
            state.resize(state.len().max(at + len), 0);
            state[at..at + len].fill(self.counter);
            self.files[file].last_mut().unwrap().states.push(state);
        }
        if choose(2) == 0 {
            content.sync(&mut self.crypto).unwrap();
        }
    }

    fn run(&mut self, choose: Choose<'_>) {
        let Ok(contents) = self.start() else {
            // The journal is damaged: its owner removes it.
            fs::remove_file(self.folder.path().join(JOURNAL)).unwrap();
            return;
        };
        let killed = choose(3) == 0;
        for _ in 0..1 + choose(5) {
            self.write(&contents, choose(FILES), killed, choose);
            if choose(4) == 0 {
                self.journals.push(fs::read(self.folder.path().join(JOURNAL)).unwrap());
            }
        }
        if !killed {
            contents.end(&mut self.crypto).unwrap();
        }
    }

    /// Something that storage can do. Bytes are taken from what it has kept.
    fn attack(&mut self, choose: Choose<'_>) {
        let path = self.path(choose(FILES));
        let mut bytes = fs::read(&path).unwrap();
        let other = self.kept[choose(self.kept.len())].clone();
        let slots = bytes.len().saturating_sub(HEADER) / STRIDE + 1;
        let slot = HEADER + choose(slots) * STRIDE;
        match choose(9) {
            0 => bytes = other,
            1 => {
                let from = HEADER + choose(other.len().saturating_sub(HEADER) / STRIDE + 1) * STRIDE;
                let piece = &other[from.min(other.len())..(from + STRIDE).min(other.len())];
                bytes.resize(bytes.len().max(slot + piece.len()), 0);
                bytes[slot..slot + piece.len()].copy_from_slice(piece);
            }
            2 => {
                let from = slot.min(other.len());
                let until = (slot + STRIDE).min(other.len());
                bytes.truncate(slot);
                bytes.extend(&other[from..until]);
            }
            3 => bytes.truncate(slot),
            4 => bytes.truncate(choose(bytes.len() + 1)),
            5 if bytes.len() >= HEADER && other.len() >= HEADER => {
                bytes[..HEADER].copy_from_slice(&other[..HEADER]);
            }
            6 => bytes.iter_mut().take(HEADER).for_each(|byte| *byte = 0),
            5 | 7 => bytes.resize(bytes.len() + STRIDE * choose(300), 0),
            _ => {
                let journal = self.journals[choose(self.journals.len())].clone();
                fs::write(self.folder.path().join(JOURNAL), journal).unwrap();
                return;
            }
        }
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_len(0).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
    }

    /// Reads every file; says what is not explained.
    fn look(&mut self) {
        let Ok(contents) = self.start() else { return };
        for file in 0..FILES {
            let (backing, place) = self.place(file);
            let Ok(content) = contents.open(backing, place, &mut self.crypto) else { continue };
            let mut bytes = vec![0; (content.len() as usize).min(1 << 22) + 1];
            if content.read(&mut bytes, 0, &mut self.crypto).is_err() {
                continue;
            }
            bytes.pop();
            let explained = self.files.iter().flatten().any(|era| era.explains(&bytes));
            let values: BTreeSet<u8> = bytes.iter().copied().collect();
            assert!(explained, "file{file}: {} bytes of {values:?} that it never had", bytes.len());
        }
    }
}

fn attacked(seed: u64) {
    let mut random = seed | 1;
    let choose = &mut |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) as usize % below.max(1)
    };
    let mut world = World {
        folder: tempfile::tempdir().unwrap(),
        volume: volume(),
        crypto: crypto(),
        files: (0..FILES).map(|_| vec![Era { states: vec![Vec::new()], torn: false }]).collect(),
        kept: Vec::new(),
        journals: Vec::new(),
        counter: 0,
    };
    let contents = world.start().unwrap();
    for file in 0..FILES {
        let path = world.path(file);
        let backing = fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let (_, place) = world.place(file);
        let _creating = contents.before_create(&mut world.crypto).unwrap();
        drop(contents.create(backing, place, &mut world.crypto).unwrap());
    }
    contents.end(&mut world.crypto).unwrap();
    drop(contents);
    for _ in 0..8 {
        world.keep();
        world.run(choose);
        if choose(2) == 0 {
            world.keep();
            for _ in 0..1 + choose(3) {
                world.attack(choose);
            }
            world.look();
        }
        if !world.folder.path().join(JOURNAL).exists() {
            drop(world.start().unwrap());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn storage_that_changes_anything_between_runs_makes_no_content_that_never_was(seed: u64) {
        attacked(seed);
    }
}
