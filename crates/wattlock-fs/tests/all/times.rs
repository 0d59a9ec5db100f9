//! Programs that copy what has another size or another time, in whole seconds, as rsync does: whenever they look, what they
//! have at the end is the volume.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rustix::fs::{Timespec, Timestamps, UTIME_OMIT};
use wattlock::Dispatcher;
use wattlock_fs::content::{Contents, earlier};
use wattlock_fs::store::{FolderStore, Place};
use wattlock_fs::volume::Volume;

use crate::support::{crypto, place, volume};

const FILES: usize = 2;

/// A volume's folder, its copy, and the times that are shown.
struct World {
    folder: tempfile::TempDir,
    copy: tempfile::TempDir,
    volume: Volume,
    crypto: Dispatcher,
    shown: [i64; FILES],
    clock: i64,
    /// Size and time of what was copied.
    copied: BTreeMap<PathBuf, (u64, i64)>,
}

impl World {
    fn new() -> World {
        let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (volume, crypto) = (volume(), crypto());
        World { folder, copy, volume, crypto, shown: [0; FILES], clock: 1_000_000, copied: BTreeMap::new() }
    }

    fn path(&self, file: usize) -> PathBuf {
        self.folder.path().join(format!("file{file}"))
    }

    fn place(&self, file: usize) -> Place {
        place(self.folder.path(), &format!("file{file}"))
    }

    fn start(&mut self, folder: &Path) -> Contents<FolderStore> {
        let store = FolderStore::open(folder).unwrap();
        Contents::start(store, &self.volume, &mut self.crypto).unwrap().0
    }

    /// As a kernel does that has written.
    fn set_time(&mut self, contents: &Contents<FolderStore>, file: usize) {
        self.clock += 10;
        self.shown[file] = self.clock;
        let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times =
            Timestamps { last_access: omit, last_modification: Timespec { tv_sec: self.clock, tv_nsec: 5 } };
        let backing = fs::File::open(self.path(file)).unwrap();
        contents.with_times(self.place(file).inode, |early| {
            let times = if early { &earlier(&times) } else { &times };
            rustix::fs::futimens(&backing, times).unwrap();
        });
    }

    fn is_shown(&self, contents: &Contents<FolderStore>) {
        for (file, shown) in self.shown.into_iter().enumerate() {
            let meta = fs::metadata(self.path(file)).unwrap();
            let stored = Timespec { tv_sec: meta.mtime(), tv_nsec: meta.mtime_nsec() };
            assert_eq!(contents.modified(self.place(file).inode, stored).tv_sec, shown, "file{file}");
        }
    }

    fn synchronise(&mut self) {
        for entry in fs::read_dir(self.folder.path()).unwrap().flatten() {
            let (path, meta) = (entry.path(), entry.metadata().unwrap());
            let now = (meta.len(), meta.mtime());
            // The journal is a file as any other, and has the time of its writes.
            let journal = path.file_name().unwrap() == "wattlock.journal";
            if journal || self.copied.get(&path) != Some(&now) {
                let to = self.copy.path().join(path.file_name().unwrap());
                fs::copy(&path, &to).unwrap();
                self.copied.insert(path, now);
            }
        }
    }

    fn contents_of(&mut self, folder: &Path) -> Vec<Vec<u8>> {
        let contents = self.start(folder);
        let read = (0..FILES).map(|file| {
            let name = format!("file{file}");
            let backing = fs::File::options().read(true).write(true).open(folder.join(&name)).unwrap();
            let content = contents.open(backing, place(folder, &name), &mut self.crypto).unwrap();
            let mut bytes = vec![0; content.len() as usize];
            content.read(&mut bytes, 0, &mut self.crypto).unwrap();
            bytes
        });
        read.collect()
    }
}

fn copied(seed: u64) {
    let mut random = seed | 1;
    let mut choose = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % below
    };
    let mut world = World::new();
    let folder = world.folder.path().to_owned();
    let mut contents = world.start(&folder);
    for file in 0..FILES {
        let (path, name) = (world.path(file), format!("file{file}"));
        let backing = fs::File::options().read(true).write(true).create_new(true).open(path).unwrap();
        let creating = contents.before_create(&mut world.crypto).unwrap();
        let content = contents.create(backing, place(&folder, &name), &mut world.crypto).unwrap();
        drop(creating);
        content.write(&[1; 20_000], 0, &mut world.crypto).unwrap();
        content.sync(&mut world.crypto).unwrap();
        world.set_time(&contents, file);
    }
    for step in 2..40 {
        let file = choose(FILES as u64) as usize;
        let backing = fs::File::options().read(true).write(true).open(world.path(file)).unwrap();
        let content = contents.open(backing, world.place(file), &mut world.crypto).unwrap();
        match choose(8) {
            0..4 => {
                content.write(&vec![step; 3000], choose(18_000), &mut world.crypto).unwrap();
                world.set_time(&contents, file);
                if choose(2) == 0 {
                    content.sync(&mut world.crypto).unwrap();
                }
            }
            4 => world.set_time(&contents, file),
            5 => {
                drop(content);
                contents.checkpoint(&mut world.crypto).unwrap();
            }
            6 => {
                content.sync(&mut world.crypto).unwrap();
                drop(content);
                // Killed: what is durable is found again.
                drop(contents);
                contents = world.start(&folder);
            }
            _ => {
                drop(content);
                contents.end(&mut world.crypto).unwrap();
                drop(contents);
                contents = world.start(&folder);
            }
        }
        world.is_shown(&contents);
        if choose(3) == 0 {
            world.synchronise();
        }
    }
    contents.end(&mut world.crypto).unwrap();
    drop(contents);
    world.synchronise();
    let copy = world.copy.path().to_owned();
    let there = world.contents_of(&copy);
    assert!(world.contents_of(&folder) == there);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_copy_by_sizes_and_times_is_the_volume_whenever_it_was_made(seed: u64) {
        copied(seed);
    }
}
