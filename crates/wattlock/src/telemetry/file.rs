//! Making a process's telemetry file, and taking it away again.
//!
//! A library's host may be confined when it ends: its file is then marked as ended, by a store to memory, and the next
//! process removes it. A file is removed only if it is exactly ours: its name, sort, mode, owner and first bytes.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::Header;
use crate::sys::counters::Counters;
use crate::sys::fork;
use crate::sys::process::{effective_uid, elevated, variable};

/// Bytes before the counters: the header as JSON, padded with zeroes. A multiple of every page size in use.
pub(super) const HEADER_BYTES: u64 = 65_536;

/// What every header begins with, and what it begins with once its process has ended it.
const BEGIN: &[u8] = b"{\"format\":";
pub(super) const ENDED: &[u8] = b"-\"format\":";

static SERIAL: AtomicU32 = AtomicU32::new(0);

/// A file that ends with its owner, if that still is the process that made it.
pub(crate) struct Owned {
    path: PathBuf,
    generation: u32,
}

impl Owned {
    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes another header over the one that is there.
    pub(super) fn begin_again(&self, header: &Header) -> Option<()> {
        let text = text(header)?;
        let file = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(&self.path).ok()?;
        let zeroes = vec![0; HEADER_BYTES as usize - text.len()];
        (&file).write_all(&[text, zeroes].concat()).ok()
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if self.generation == fork::generation() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The folder of the calling user's telemetry files: `WATTLOCK_TELEMETRY_DIR` if set, else one in shared memory.
pub(super) fn folder() -> PathBuf {
    variable("WATTLOCK_TELEMETRY_DIR")
        .unwrap_or_else(|| PathBuf::from(format!("/dev/shm/wattlock-{}", effective_uid())))
}

/// Whether it is a real folder of the calling user's, in which no other user makes files. In a world-writable place
/// another user may have been first.
pub(super) fn is_ours(folder: &Path) -> bool {
    fs::symlink_metadata(folder)
        .is_ok_and(|found| found.is_dir() && found.uid() == effective_uid() && found.mode() & 0o022 == 0)
}

/// A new file for this process and its counters. `None` wherever anything stands in the way, and in a program with more
/// rights than its caller.
pub(super) fn create(header: &Header, words: usize) -> Option<(Counters, Owned)> {
    if elevated() {
        return None;
    }
    let folder = folder();
    if fs::symlink_metadata(&folder).is_err() {
        let _ = DirBuilder::new().mode(0o700).create(&folder);
    }
    if !is_ours(&folder) {
        return None;
    }
    sweep(&folder);
    let path = folder.join(format!("{}-{}", std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed)));
    let owned = Owned { path: path.clone(), generation: fork::generation() };
    let file = new_file(&path)?;
    let text = text(header)?;
    // The header comes last: a program that reads the file before that finds none, and passes it over.
    let counters = Counters::shared(&file, HEADER_BYTES, words).ok()?;
    (&file).write_all(&text).ok()?;
    Some((counters, owned))
}

fn text(header: &Header) -> Option<Vec<u8>> {
    serde_json::to_vec(header)
        .ok()
        .filter(|text| text.len() < HEADER_BYTES as usize && text.starts_with(BEGIN))
}

/// Removes what processes left that are gone: killed ones cannot, and this is memory. A program's processes may be the
/// only ones of their user, so it cannot be left to the reader of the counters.
fn sweep(folder: &Path) {
    for path in entries(folder) {
        let Some(pid) = number(&path) else { continue };
        match whose(&path) {
            Some(State::Ended) => remove(&path),
            Some(State::Living) if is_gone(pid) => remove(&path),
            _ => {}
        }
    }
}

/// What a file of ours says of its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It did not say that it ended.
    Living,
    /// It did.
    Ended,
}

/// `None` if a file is not exactly ours: regular, of one name, for the calling user alone, and begun as all of them are.
/// Not through a link, and no pipe keeps anybody waiting.
pub(super) fn whose(path: &Path) -> Option<State> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let found = file.metadata().ok()?;
    let plain = found.is_file() && found.nlink() == 1;
    if !plain || found.uid() != effective_uid() || found.mode() & 0o7777 != 0o600 {
        return None;
    }
    let mut first = [0; BEGIN.len()];
    file.read_exact(&mut first).ok()?;
    match &first[..] {
        BEGIN => Some(State::Living),
        ENDED => Some(State::Ended),
        _ => None,
    }
}

pub(super) fn remove(path: &Path) {
    let _ = fs::remove_file(path);
}

/// Whether there is no such process. Where not all can be seen (no `/proc`, or one that hides others' processes) no
/// process is gone: the first process always is there.
pub(super) fn is_gone(pid: u32) -> bool {
    Path::new("/proc/1").exists() && !Path::new(&format!("/proc/{pid}")).exists()
}

/// What lies in a folder.
pub(super) fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// The process that a file's name speaks of: `PID-N`, and nothing else.
pub(super) fn number(path: &Path) -> Option<u32> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (pid, serial) = path.file_name()?.to_str()?.split_once('-')?;
    (digits(pid) && digits(serial)).then(|| pid.parse().ok())?
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
    whose(path)?;
    remove(path);
    options.open(path).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_what_is_exactly_ours_is_swept() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str, content: &[u8], mode: u32| {
            let path = folder.path().join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let ours = [&b"{\"format\":1,\"version\""[..], &[0; 100]].concat();
        let gone = [make("4194303-0", &ours, 0o600), make("4194303-12", &ours, 0o600)];
        let ended = make("1-0", &[b"-", &ours[1..]].concat(), 0o600);
        let names = [
            "99999-hardening.conf",
            "4194303-",
            "-1",
            "4194303",
            "4194303-1-2",
            "4194303-1.conf",
            " 4194303-1",
            "+4194303-1",
            "4194303- 1",
            "x-1",
            "4194303-x",
        ];
        let mut kept: Vec<PathBuf> = names.iter().map(|name| make(name, &ours, 0o600)).collect();
        kept.push(make("4194303-3", b"precious", 0o600));
        kept.push(make("4194303-4", b"", 0o600));
        kept.push(make("4194303-5", &ours, 0o644));
        kept.push(make("4194303-6", &ours, 0o4600));
        kept.push(make("1-1", &ours, 0o600));
        kept.push(make("4194303-7", &ours, 0o600));
        fs::hard_link(&kept[kept.len() - 1], folder.path().join("another-name")).unwrap();
        let pipe = folder.path().join("4194303-8");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let link = folder.path().join("4194303-9");
        std::os::unix::fs::symlink(&kept[0], &link).unwrap();
        fs::create_dir(folder.path().join("4194303-10")).unwrap();
        kept.extend([pipe, link, folder.path().join("4194303-10")]);
        sweep(folder.path());
        assert!(gone.iter().chain([&ended]).all(|path| !path.exists()));
        for path in kept {
            assert!(fs::symlink_metadata(&path).is_ok(), "{} is gone", path.display());
        }
    }

    #[test]
    fn a_folder_in_which_others_make_files_is_not_ours() {
        let folder = tempfile::tempdir().unwrap();
        assert!(is_ours(folder.path()));
        for mode in [0o770, 0o777, 0o1777] {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
            assert!(!is_ours(folder.path()), "{mode:o}");
        }
    }
}
