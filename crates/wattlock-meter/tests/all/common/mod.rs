//! Recorded trees: written from a text of `path = content` lines into a folder that a test may alter.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(dead_code, reason = "each test file uses a part")]

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use wattlock_meter::{Folder, Meter, Places, Reading, Tree};

/// A second on the tests' clock.
pub const SECOND: u64 = 1_000_000_000;

/// A fixture on disk.
pub struct Recorded {
    folder: tempfile::TempDir,
}

impl Recorded {
    /// Writes the files of a recording.
    pub fn new(text: &str) -> Recorded {
        let recorded = Recorded { folder: tempfile::tempdir().unwrap() };
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (path, content) = line.split_once(" = ").unwrap();
            recorded.set(path, &(content.replace("\\n", "\n").replace("\\t", "\t") + "\n"));
        }
        recorded
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// Writes one file.
    pub fn set(&self, path: &str, content: &str) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), content).unwrap();
    }

    /// Adds to a counter.
    pub fn add(&self, path: &str, amount: u64) {
        let before: u64 = fs::read_to_string(self.at(path)).unwrap().trim().parse().unwrap();
        self.set(path, &format!("{}\n", before + amount));
    }

    /// Takes a folder away.
    pub fn remove(&self, path: &str) {
        fs::remove_dir_all(self.at(path)).unwrap();
    }

    /// Where to look for its sources.
    pub fn places(&self) -> Places {
        Places::recorded(self.folder.path())
    }

    /// Its meter.
    pub fn meter(&self) -> Meter {
        Meter::discover(&self.places())
    }

    /// The same tree, with some files that this user may not read. Not by file modes: root reads whatever it likes.
    pub fn denying(&self, ending: &'static str) -> Arc<dyn Tree> {
        Arc::new(Denying(Folder(self.folder.path().into()), ending))
    }
}

struct Denying(Folder, &'static str);

impl Tree for Denying {
    fn text(&self, path: &str) -> io::Result<String> {
        if path.ends_with(self.1) { Err(io::ErrorKind::PermissionDenied.into()) } else { self.0.text(path) }
    }

    fn names(&self, path: &str) -> io::Result<Vec<String>> {
        self.0.names(path)
    }
}

/// The joules of a part; panics if it has none.
pub fn joules(reading: &Reading, part: &str) -> f64 {
    let figure = reading.figures.iter().find(|figure| figure.part == part).unwrap();
    figure.metered().unwrap_or_else(|| panic!("{figure:?}")).joules()
}
