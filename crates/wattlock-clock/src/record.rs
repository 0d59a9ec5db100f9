//! What is to be put back, on the disk before anything is changed.
//!
//! ```text
//! wattlock clocks 1
//! PID START
//! KHZ FILE          one line for each limit
//! gpu BUS           one line for each GPU whose clocks are locked, by its PCI bus id
//! memory BUS        one line for each GPU whose memory clock is locked, too
//! ```
//!
//! START is the process's start time (field 22 of proc(5)'s `stat`), so that another process with the same number is
//! not taken for it. A record is believed only as far as it names limit files of the tree, clocks of the hardware's
//! range, and GPUs: a user that can write it can do no more than set the former to the latter and end locks.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::survey::{LIMIT, number};
use crate::{Error, Places, nvml};

const FIRST: &str = "wattlock clocks 1";
/// Longest record that is read.
const MOST: u64 = 1 << 20;

/// Begins the line of a GPU.
const GPU: &str = "gpu";
const MEMORY: &str = "memory";
/// Longest bus id: eight digits of a domain, two of a bus, two of a device, one of a function.
const BUS_MOST: usize = 16;

/// Limits as they were, and GPUs to be reset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) pid: u32,
    pub(crate) start: u64,
    pub(crate) limits: Vec<(u64, PathBuf)>,
    pub(crate) gpus: Vec<String>,
    pub(crate) memories: Vec<String>,
}

/// What [`recover`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recovered {
    /// Nothing to do.
    Nothing,
    /// What a process that is gone had changed was put back: so many limits, and so many GPUs' clocks.
    PutBack {
        /// Limits of CPUs' clocks.
        limits: usize,
        /// GPUs whose lock was ended.
        gpus: usize,
    },
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
    pub(crate) fn own(limits: Vec<(u64, PathBuf)>, gpus: Vec<String>, memories: Vec<String>) -> Record {
        let pid = std::process::id();
        Record { pid, start: start_of(pid).unwrap_or(0), limits, gpus, memories }
    }

    /// Writes it so that a power failure leaves all of it or nothing.
    pub(crate) fn save(&self, path: &Path) -> Result<(), Error> {
        let mut text = format!("{FIRST}\n{} {}\n", self.pid, self.start);
        for (khz, file) in &self.limits {
            text += &format!("{khz} {}\n", file.display());
        }
        for (word, gpus) in [(GPU, &self.gpus), (MEMORY, &self.memories)] {
            text.extend(gpus.iter().map(|bus| format!("{word} {bus}\n")));
        }
        let unfinished = path.with_extension(format!("{}", self.pid));
        let write = || {
            if let Some(folder) = path.parent() {
                // Closed to others: root's mounts listen in the same folder.
                DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
            }
            // What has the name is an earlier process's, or a link: neither is written.
            let _ = fs::remove_file(&unfinished);
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&unfinished)?;
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
            // The folder of root's is closed to others, which set no clocks.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) =>
            {
                return Ok(None);
            }
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
        let (mut limits, mut gpus, mut memories) = (Vec::new(), Vec::new(), Vec::new());
        for line in lines {
            match line.split_once(' ') {
                Some((GPU, bus)) if is_bus(bus) => gpus.push(bus.to_owned()),
                Some((MEMORY, bus)) if is_bus(bus) => memories.push(bus.to_owned()),
                Some((GPU | MEMORY, _)) => return Err(bad("a GPU")),
                Some((khz, file)) => limits.push(limit(khz, file, tree).map_err(|what| match what {
                    Unbelieved::What(what) => bad(what),
                    Unbelieved::Io(error) => error,
                })?),
                None => return Err(bad("a line")),
            }
        }
        Ok(Some(Record { pid, start, limits, gpus, memories }))
    }

    /// Puts the limits back and ends the locks: all that can be, then the first error.
    pub(crate) fn put_back(&self, library: Option<&OsStr>) -> Result<(), Error> {
        let mut failed = None;
        for (khz, file) in &self.limits {
            let written = fs::write(file, khz.to_string());
            failed = failed.or(written.err().map(Error::io(file)));
        }
        if !self.gpus.is_empty() || !self.memories.is_empty() {
            failed = failed.or(nvml::reset(library, &self.gpus, &self.memories).err());
        }
        failed.map_or(Ok(()), Err)
    }
}

/// Why a line is not believed.
enum Unbelieved {
    What(&'static str),
    Io(Error),
}

/// A limit, if it names a file of the tree and a clock of the hardware.
fn limit(khz: &str, file: &str, tree: &Path) -> Result<(u64, PathBuf), Unbelieved> {
    let (khz, file) = (khz.parse::<u64>().map_err(|_| Unbelieved::What("a clock"))?, PathBuf::from(file));
    let is_policy = |folder: &&Path| {
        let name = folder.file_name().and_then(|name| name.to_str());
        folder.parent() == Some(tree) && name.is_some_and(|name| name.starts_with("policy"))
    };
    let folder = file.parent().filter(is_policy).ok_or(Unbelieved::What("a file outside the tree"))?;
    let named = file.file_name().is_some_and(|name| name == LIMIT);
    let within = |name: &str| {
        number(&folder.join(name)).map_err(|error| Unbelieved::Io(Error::io(folder.join(name))(error)))
    };
    if !named || !(within("cpuinfo_min_freq")?..=within("cpuinfo_max_freq")?).contains(&khz) {
        return Err(Unbelieved::What("a clock that the hardware does not have"));
    }
    Ok((khz, file))
}

fn is_bus(bus: &str) -> bool {
    let digit = |byte: u8| byte.is_ascii_hexdigit() || byte == b':' || byte == b'.';
    (1..=BUS_MOST).contains(&bus.len()) && bus.bytes().all(digit)
}

/// Puts back what a process that was killed left changed.
///
/// # Errors
/// [`Error::BadRecord`], [`Error::Io`], [`Error::Gpu`].
pub fn recover(places: &Places) -> Result<Recovered, Error> {
    let record = &places.record;
    let Some(found) = Record::load(record, &places.tree)? else { return Ok(Recovered::Nothing) };
    if start_of(found.pid) == Some(found.start) {
        return Ok(Recovered::Held(found.pid));
    }
    found.put_back(places.nvml.as_deref())?;
    fs::remove_file(record).map_err(Error::io(record))?;
    Ok(Recovered::PutBack { limits: found.limits.len(), gpus: found.gpus.len() })
}
