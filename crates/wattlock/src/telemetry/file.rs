//! Making a process's telemetry file, and taking it away again.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::Header;
use crate::sys::counters::Counters;

/// Bytes before the counters: the header as JSON, padded with zeroes. A multiple of every page size in use.
pub(super) const HEADER_BYTES: u64 = 65_536;

static SERIAL: AtomicU32 = AtomicU32::new(0);

/// A file that goes away with its owner, if that still is the process that made it.
pub(crate) struct Owned {
    path: PathBuf,
    pid: u32,
}

impl Owned {
    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The folder of the calling user's telemetry files: `WATTLOCK_TELEMETRY_DIR` if set, else one in shared memory.
pub(super) fn folder() -> PathBuf {
    match std::env::var_os("WATTLOCK_TELEMETRY_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(format!("/dev/shm/wattlock-{}", effective_uid())),
    }
}

/// The effective user id, without unsafe code: the owner of our own `/proc` entry.
fn effective_uid() -> u32 {
    fs::metadata("/proc/self").map_or(0, |entry| entry.uid())
}

/// Whether it is a real folder of the calling user's. In a world-writable place somebody else may have been first.
pub(super) fn is_ours(folder: &Path) -> bool {
    fs::symlink_metadata(folder).is_ok_and(|found| found.is_dir() && found.uid() == effective_uid())
}

/// A new file for this process and its counters. `None` wherever anything stands in the way.
pub(super) fn create(header: &Header, words: usize) -> Option<(Counters, Owned)> {
    let folder = folder();
    let _ = DirBuilder::new().mode(0o700).create(&folder);
    if !is_ours(&folder) {
        return None;
    }
    sweep(&folder);
    let pid = std::process::id();
    let path = folder.join(format!("{pid}-{}", SERIAL.fetch_add(1, Ordering::Relaxed)));
    let owned = Owned { path: path.clone(), pid };
    let file = new_file(&path)?;
    let text = serde_json::to_vec(header).ok().filter(|text| text.len() < HEADER_BYTES as usize)?;
    // The header comes last: whoever reads the file before that finds none, and passes it over.
    let counters = Counters::shared(&file, HEADER_BYTES, words).ok()?;
    (&file).write_all(&text).ok()?;
    Some((counters, owned))
}

/// Removes what processes left that are gone: killed ones cannot, and this is memory. A program's processes may be the
/// only ones of their user, so it cannot be left to whoever looks at the counters.
fn sweep(folder: &Path) {
    for path in entries(folder) {
        if number(&path).is_some_and(is_gone) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Whether there is no such process. Where not all can be seen (no `/proc`, or one that hides others' processes) nobody is
/// gone: the first process always is there.
pub(super) fn is_gone(pid: u32) -> bool {
    Path::new("/proc/1").exists() && !Path::new(&format!("/proc/{pid}")).exists()
}

/// What lies in a folder.
pub(super) fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// The process that a file's name speaks of.
pub(super) fn number(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.split('-').next()?.parse().ok()
}

/// When a process began: [`Header::born`]. `None` if that cannot be read.
pub(super) fn born(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program, in brackets, may contain anything.
    let after = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let fields = std::str::from_utf8(&stat[after..]).ok()?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

fn new_file(path: &Path) -> Option<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    if let Ok(file) = options.open(path) {
        return Some(file);
    }
    // A dead process of the same number left one behind.
    fs::remove_file(path).ok()?;
    options.open(path).ok()
}
