//! What became of many files: told one by one where something went wrong, and counted in the end.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use wattlock_door::one_line;
use wattlock_shell::program::{self, Told};

use crate::lines::Line;

/// What a command did to many files.
#[derive(Default)]
pub struct Report {
    /// Whether a line of JSON is printed for each file.
    pub json: bool,
    pub done: u64,
    pub skipped: u64,
    refused: u64,
    /// Decides the exit code.
    first: Option<anyhow::Error>,
    /// What could not be kept, and of what first.
    left_out: BTreeMap<&'static str, (u64, String)>,
}

impl Report {
    /// An empty one; `json` says whether a line of JSON is printed for each file.
    pub fn new(json: bool) -> Report {
        Report { json, ..Report::default() }
    }

    /// A file that was refused.
    pub fn refuse(&mut self, path: &Path, error: anyhow::Error) {
        self.refused += 1;
        self.fail(path, error);
    }

    /// Something that is to be known of a file, and to decide the exit code.
    pub fn fail(&mut self, path: &Path, error: anyhow::Error) {
        let said = program::line(&error);
        eprintln!("wattlock: {said}");
        let line = Line::of(path).failed(&said, super::code_of(&error));
        self.first.get_or_insert(error);
        self.put(line);
    }

    /// Prints what became of a file, if lines of JSON are wanted.
    pub fn put(&mut self, line: Line) {
        if self.json
            && let Err(lost) = line.put()
        {
            self.first.get_or_insert(lost.into());
        }
    }

    /// Something that the system does not let this user keep.
    pub fn left_out(&mut self, what: &'static str, path: &Path) {
        self.left_out.entry(what).or_insert_with(|| (0, one_line(path))).0 += 1;
    }

    /// Says how many there were of each.
    ///
    /// # Errors
    /// Standard output does not take it.
    pub fn say(&self, done: &str) -> Result<()> {
        if self.json {
            let line = Line::default().with(done, self.done).with("skipped", self.skipped);
            return Ok(line.with("refused", self.refused).put()?);
        }
        say!("{} {done}, {} skipped, {} refused", self.done, self.skipped, self.refused);
        Ok(())
    }

    /// The first failure, whose line is out already.
    ///
    /// # Errors
    /// That one.
    pub fn end(self) -> Result<()> {
        for (what, (count, first)) in &self.left_out {
            let why = "this user may not set that, or the file system has none";
            tell!("wattlock: {first}: {what} not kept ({count} in all): {why}");
        }
        self.first.map_or(Ok(()), |error| Err(error.context(Told)))
    }
}
