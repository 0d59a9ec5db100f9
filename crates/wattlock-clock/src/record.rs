//! What is to be put back, on the disk before anything is changed.
//!
//! ```text
//! wattlock clocks 1
//! PID START
//! KHZ FILE          one line for each limit
//! ```
//!
//! START is the process's start time (field 22 of proc(5)'s `stat`), so that another process with the same number is
//! not taken for it. A record is believed only as far as it names limit files of the tree and clocks of the hardware's
//! range: whoever can write it can do no more than that.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::survey::{LIMIT, number};

const FIRST: &str = "wattlock clocks 1";
/// Longest record that is read.
const MOST: u64 = 1 << 20;

/// Limits as they were.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) pid: u32,
    pub(crate) start: u64,
    pub(crate) limits: Vec<(u64, PathBuf)>,
}

/// What [`recover`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recovered {
    /// Nothing to do.
    Nothing,
    /// So many limits of a process that is gone were put back.
    Limits(usize),
    /// That process lives and sets them.
    Held(u32),
}

/// When a process began, in clock ticks since the machine did; `None` if there is no such process.
fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field, the program's name in parentheses, may contain anything.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

impl Record {
    pub(crate) fn own(limits: Vec<(u64, PathBuf)>) -> Record {
        let pid = std::process::id();
        Record { pid, start: start_of(pid).unwrap_or(0), limits }
    }

    /// Writes it so that a power failure leaves all of it or nothing.
    pub(crate) fn save(&self, path: &Path) -> Result<(), Error> {
        let mut text = format!("{FIRST}\n{} {}\n", self.pid, self.start);
        for (khz, file) in &self.limits {
            text += &format!("{khz} {}\n", file.display());
        }
        let unfinished = path.with_extension(format!("{}", self.pid));
        let write = || {
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            let mut file = File::create(&unfinished)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&unfinished, path)
        };
        write().map_err(|error| {
            let _ = fs::remove_file(&unfinished);
            Error::Io { path: path.to_owned(), source: error }
        })
    }

    fn load(path: &Path, tree: &Path) -> Result<Option<Record>, Error> {
        let bad = |what| Error::BadRecord { path: path.to_owned(), what };
        match fs::metadata(path) {
            Ok(meta) if meta.len() > MOST => return Err(bad("too long")),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io(path)(error)),
        }
        let text = fs::read_to_string(path).map_err(Error::io(path))?;
        let mut lines = text.lines();
        if lines.next() != Some(FIRST) {
            return Err(bad("not a record of clocks"));
        }
        let owner = lines.next().and_then(|line| line.split_once(' '));
        let owner = owner.and_then(|(pid, start)| Some((pid.parse().ok()?, start.parse().ok()?)));
        let (pid, start) = owner.ok_or_else(|| bad("no process"))?;
        let limits = lines.map(|line| {
            let (khz, file) = line.split_once(' ').ok_or_else(|| bad("a line"))?;
            let (khz, file) = (khz.parse::<u64>().map_err(|_| bad("a clock"))?, PathBuf::from(file));
            let is_policy = |folder: &&Path| {
                let name = folder.file_name().and_then(|name| name.to_str());
                folder.parent() == Some(tree) && name.is_some_and(|name| name.starts_with("policy"))
            };
            let folder = file.parent().filter(is_policy);
            let folder = folder.ok_or_else(|| bad("a file outside the tree"))?;
            let named = file.file_name().is_some_and(|name| name == LIMIT);
            let within = |name: &str| number(&folder.join(name)).map_err(Error::io(folder.join(name)));
            if !named || !(within("cpuinfo_min_freq")?..=within("cpuinfo_max_freq")?).contains(&khz) {
                return Err(bad("a clock that the hardware does not have"));
            }
            Ok((khz, file))
        });
        Ok(Some(Record { pid, start, limits: limits.collect::<Result<_, Error>>()? }))
    }

    /// Puts the limits back: all that can be, then the first error.
    pub(crate) fn put_back(&self) -> Result<(), Error> {
        let mut failed = None;
        for (khz, file) in &self.limits {
            let written = fs::write(file, khz.to_string());
            failed = failed.or(written.err().map(Error::io(file)));
        }
        failed.map_or(Ok(()), Err)
    }
}

/// Puts back what a process that was killed left changed. `record` is where it noted what to put back.
///
/// # Errors
/// [`Error::BadRecord`], [`Error::Io`].
pub fn recover(tree: &Path, record: &Path) -> Result<Recovered, Error> {
    let Some(found) = Record::load(record, tree)? else { return Ok(Recovered::Nothing) };
    if start_of(found.pid) == Some(found.start) {
        return Ok(Recovered::Held(found.pid));
    }
    found.put_back()?;
    fs::remove_file(record).map_err(Error::io(record))?;
    Ok(Recovered::Limits(found.limits.len()))
}
