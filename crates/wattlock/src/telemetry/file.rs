//! Making a process's telemetry file, and what becomes of it at the end.
//!
//! A process that ends leaves its counts in its user's totals (`fold.rs`). A library's host may be confined when it ends:
//! its file is then marked as ended, by a store to memory, and the next process or reader takes it in; so it is with what
//! a killed process left. A file is touched only if it is exactly ours: its name, sort, mode, owner and first bytes.

use std::ffi::{CStr, CString};
use std::fs::{self, DirBuilder, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use super::folder::{Folder, own_path};
use super::{Header, fold};
use crate::sys::counters::Counters;
use crate::sys::fork;
use crate::sys::process::{effective_uid, elevated};

/// Bytes before the counters: the header as JSON, padded with zeroes. A multiple of every page size in use.
pub(super) const HEADER_BYTES: u64 = 65_536;

/// What every header begins with, and what it begins with once its process has ended it.
pub(super) const BEGIN: &[u8] = b"{\"format\":";
pub(super) const ENDED: &[u8] = b"-\"format\":";

static SERIAL: AtomicU32 = AtomicU32::new(0);

/// A file that ends with its owner, if that still is the process that made it.
pub(crate) struct Owned {
    path: PathBuf,
    generation: u32,
    /// Whether there is nothing in it that anybody would miss.
    pub(super) empty: bool,
}

impl Owned {
    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether this process made it.
    pub(super) fn is_ours(&self) -> bool {
        self.generation == fork::generation()
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        match (self.is_ours(), self.empty) {
            (true, true) => drop(fs::remove_file(&self.path)),
            (true, false) => fold::own(&self.path),
            (false, _) => {}
        }
    }
}

/// A new file for this process and its counters. `None` wherever anything stands in the way, and in a program with more
/// rights than its caller.
pub(super) fn create(header: &Header, words: usize) -> Option<(Counters, Owned)> {
    if elevated() {
        return None;
    }
    let path = own_path();
    if fs::symlink_metadata(&path).is_err() {
        make_folder(&path);
    }
    let folder = Folder::open(&path).filter(Folder::is_ours)?;
    let gone = left(&folder);
    if !gone.is_empty() {
        fold::take_in(&path, &gone, Duration::ZERO);
    }
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let name = CString::new(format!("{}-{serial}", std::process::id())).ok()?;
    let file = File::from(new_file(&folder, &path, &name)?);
    let path = path.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
    // What is not finished is removed.
    let mut owned = Owned { path, generation: fork::generation(), empty: true };
    let text = text(header)?;
    // The header comes last: a program that reads the file before that finds none, and passes it over.
    let counters = Counters::shared(&file, HEADER_BYTES, words).ok()?;
    (&file).write_all(&text).ok()?;
    owned.empty = false;
    Some((counters, owned))
}

/// For its owner alone, whatever the umask says.
fn make_folder(path: &Path) {
    if DirBuilder::new().mode(0o700).create(path).is_err() {
        return;
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(made) = rustix::fs::open(path, flags, Mode::empty()) else { return };
    let stat = rustix::fs::fstat(&made);
    if stat.is_ok_and(|stat| stat.st_uid == effective_uid() && stat.st_mode & 0o777 != 0o700) {
        let made = format!("/proc/self/fd/{}", made.as_raw_fd());
        let _ = fs::set_permissions(made, fs::Permissions::from_mode(0o700));
    }
}

fn text(header: &Header) -> Option<Vec<u8>> {
    serde_json::to_vec(header)
        .ok()
        .filter(|text| text.len() < HEADER_BYTES as usize && text.starts_with(BEGIN))
}

/// What processes left that are gone: killed ones cannot take their files in, and this is memory. A program's processes may
/// be the only ones of their user, so it cannot be left to the reader of the counters.
fn left(folder: &Folder) -> Vec<CString> {
    let listed = folder.list();
    let gone = |(name, pid): &(CString, u32)| match whose(folder, name) {
        Some(State::Ended) => true,
        Some(State::Living) => is_gone(*pid),
        None => false,
    };
    let files = listed.files.into_iter().filter(gone).map(|(name, _)| name);
    let folding = listed.folding.into_iter().filter(|name| whose(folder, name).is_some());
    files.chain(folding).take(MOST_LEFT).collect()
}

/// Most files that one process takes in when it starts.
const MOST_LEFT: usize = 64;

/// What a file of ours says of its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It did not say that it ended.
    Living,
    /// It did.
    Ended,
}

/// `None` if a file is not exactly ours: regular, of one name, for the calling user alone, and begun as all of them are.
pub(super) fn whose(folder: &Folder, name: &CStr) -> Option<State> {
    let (file, stat) = folder.open_to_read(name).ok()??;
    if stat.st_uid != effective_uid() || stat.st_mode & 0o7777 != 0o600 {
        return None;
    }
    let mut first = [0; BEGIN.len()];
    File::from(file).read_exact(&mut first).ok()?;
    match &first[..] {
        BEGIN => Some(State::Living),
        ENDED => Some(State::Ended),
        _ => None,
    }
}

/// Whether there is no such process. Where not all can be seen (no `/proc`, or one that hides others' processes) no
/// process is gone: the first process always is there.
pub(super) fn is_gone(pid: u32) -> bool {
    Path::new("/proc/1").exists() && !Path::new(&format!("/proc/{pid}")).exists()
}

/// When a process began: [`Header::born`]. `None` if that cannot be read.
pub(super) fn born(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program, in brackets, may contain anything.
    let after = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let fields = std::str::from_utf8(&stat[after..]).ok()?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

fn new_file(folder: &Folder, path: &Path, name: &CStr) -> Option<std::os::fd::OwnedFd> {
    if let Ok(file) = folder.create(name) {
        return Some(file);
    }
    // A dead process of the same number left one behind.
    whose(folder, name)?;
    fold::take_in(path, &[name.to_owned()], Duration::from_millis(1));
    folder.create(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_exactly_ours_is_swept() {
        let place = tempfile::tempdir().unwrap();
        let make = |name: &str, content: &[u8], mode: u32| {
            let path = place.path().join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let ours = [&b"{\"format\":1,\"version\""[..], &[0; 100]].concat();
        let gone = [
            make("4194303-0", &ours, 0o600),
            make("4194303-12", &ours, 0o600),
            make("folding-1-4194303-13", &ours, 0o600),
        ];
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
        kept.push(make("folding-1-4194303-5", b"precious", 0o600));
        fs::hard_link(place.path().join("4194303-7"), place.path().join("another-name")).unwrap();
        let pipe = place.path().join("4194303-8");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let link = place.path().join("4194303-9");
        std::os::unix::fs::symlink(&kept[0], &link).unwrap();
        fs::create_dir(place.path().join("4194303-10")).unwrap();
        kept.extend([pipe, link, place.path().join("4194303-10")]);
        let folder = Folder::open(place.path()).unwrap();
        fold::take_in(place.path(), &left(&folder), Duration::from_secs(60));
        assert!(gone.iter().chain([&ended]).all(|path| !path.exists()));
        for path in kept {
            assert!(fs::symlink_metadata(&path).is_ok(), "{} is gone", path.display());
        }
    }

    #[test]
    fn a_folder_in_which_others_make_files_is_not_ours() {
        let place = tempfile::tempdir().unwrap();
        let is_ours = || Folder::open(place.path()).unwrap().is_ours();
        assert!(is_ours());
        for mode in [0o770, 0o777, 0o1777] {
            fs::set_permissions(place.path(), fs::Permissions::from_mode(mode)).unwrap();
            assert!(!is_ours(), "{mode:o}");
        }
    }
}
