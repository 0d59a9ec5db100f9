//! Making a process's telemetry file, and what becomes of it at the end.
//!
//! A process that ends leaves its counts in its user's totals (`fold.rs`). A library's host may be confined when it ends:
//! its file is then marked as ended, by a store to memory, and the next process or reader takes it in; so it is with what
//! a killed process left. A file is touched only if it is exactly ours: its name, sort, mode, owner and first bytes.

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use rustix::io::Errno;
use wattlock_core::{Data, Engine, Key, Kind, Request};
use wattlock_cpu::software::Software;

use super::budget::{Budget, MOST_FILES};
use super::folder::{Folder, Listed, is_folding, number};
use super::place::own_or_made;
use super::read::{header_of, read_header};
use super::{Header, fold};
use crate::sys::counters::Counters;
use crate::sys::fork;
use crate::sys::process::{effective_uid, elevated, image_secret, is_no_process};

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
        if self.is_ours() {
            fold::own(&self.path);
        }
    }
}

/// A new file for this process and its counters. `None` wherever anything stands in the way, and in a program with more
/// rights than its caller. Nor is one made that no reader would read, because the user has so many.
pub(super) fn create(header: &Header, words: usize) -> Option<(Counters, Owned)> {
    if elevated() {
        return None;
    }
    let (path, folder) = own_or_made()?;
    create_in(&path, &folder, header, words)
}

fn create_in(path: &Path, folder: &Folder, header: &Header, words: usize) -> Option<(Counters, Owned)> {
    let listed = folder.list(&mut Budget::of_a_user());
    let (files, more) = (listed.files.len() + listed.folding.len(), listed.more);
    let gone = left(folder, listed);
    if !gone.is_empty() {
        fold::take_in(path, &gone, Duration::ZERO);
    }
    if more || files - gone.len() >= MOST_FILES as usize {
        return None;
    }
    let text = text(header)?;
    let owned = |name: &CStr| {
        let path = path.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
        Owned { path, generation: fork::generation() }
    };
    if let Ok(file) = folder.create_nameless() {
        let file = File::from(file);
        let counters = fill(&file, &text, words)?;
        if let Some((_, name)) = free(|name| folder.name(file.as_fd(), name)) {
            return Some((counters, owned(&name)));
        }
    }
    // A file system without nameless files, or no /proc to give them names by.
    let (file, name) = free(|name| folder.create(name))?;
    let counters = fill(&File::from(file), &text, words);
    if counters.is_none() {
        folder.remove(&name);
    }
    Some((counters?, owned(&name)))
}

/// The header comes last: a program that reads the file before that finds none, and passes it over.
fn fill(mut file: &File, text: &[u8], words: usize) -> Option<Counters> {
    let counters = Counters::shared(file, HEADER_BYTES, words).ok()?;
    file.write_all(text).ok()?;
    Some(counters)
}

/// Most names that are tried: another copy of this library in the process, or an earlier process of the number, has others.
const MOST_TRIES: usize = 256;

/// Makes something under the first of this process's names that is free.
fn free<T>(attempt: impl Fn(&CStr) -> rustix::io::Result<T>) -> Option<(T, CString)> {
    for _ in 0..MOST_TRIES {
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = CString::new(format!("{}-{serial}", std::process::id())).ok()?;
        match attempt(&name) {
            Ok(made) => return Some((made, name)),
            Err(Errno::EXIST) => {}
            Err(_) => return None,
        }
    }
    None
}

fn text(header: &Header) -> Option<Vec<u8>> {
    serde_json::to_vec(header)
        .ok()
        .filter(|text| text.len() < HEADER_BYTES as usize && text.starts_with(BEGIN))
}

/// What processes left that are gone: killed ones cannot take their files in, and this is memory. A program's processes may
/// be the only ones of their user, so it cannot be left to the reader of the counters. What is half taken in comes first:
/// its name may be another file's next.
fn left(folder: &Folder, listed: Listed) -> Vec<CString> {
    let here = Namespaces::here();
    for (name, pid) in listed.files.iter().take(MOST_LOOKED_AT) {
        if is_no_process(*pid) && is_blank(folder, name) {
            folder.remove(name);
        }
    }
    let files = listed.files.into_iter().map(|(name, _)| name);
    let names = listed.folding.into_iter().chain(files).take(MOST_LOOKED_AT);
    names.filter(|name| is_left(folder, name, here)).take(MOST_LEFT).collect()
}

/// Whether a file's counts are to move into the totals: it is ours, and on its way there, or its process has ended it or is
/// gone. Another copy of this library in a process may have made a file under the name that one of ours had.
pub(super) fn is_left(folder: &Folder, name: &CStr, here: Namespaces) -> bool {
    whose(folder, name).is_some_and(|said| match number(name) {
        Some(pid) => said.ended || said.header.is_gone(pid, here),
        None => is_folding(name),
    })
}

/// Most files that one process takes in when it starts, and that it opens for that: readers do the rest.
const MOST_LEFT: usize = 64;
const MOST_LOOKED_AT: usize = 256;

/// What a file of ours says of its process.
struct Said {
    header: Header,
    /// Whether the process said that it has ended.
    ended: bool,
}

/// `None` if a file is not exactly ours: regular, of one name, for the calling user alone, and with a header of this layout.
fn whose(folder: &Folder, name: &CStr) -> Option<Said> {
    let (text, ended) = read_header(&exactly_ours(folder, name)?, &mut Budget::one_file()).ok()?;
    Some(Said { header: header_of(&text)?, ended })
}

fn exactly_ours(folder: &Folder, name: &CStr) -> Option<File> {
    let (file, stat) = folder.open_to_read(name).ok()??;
    (stat.st_uid == effective_uid() && stat.st_mode & 0o7777 == 0o600).then(|| File::from(file))
}

/// How long a file may take to be made. It takes milliseconds.
const TO_MAKE: Duration = Duration::from_secs(60);

/// Whether nothing was written into a file of ours: its process was killed while it made it.
fn is_blank(folder: &Folder, name: &CStr) -> bool {
    let Some(mut file) = exactly_ours(folder, name) else { return false };
    let changed = file.metadata().and_then(|metadata| metadata.modified());
    let is_old = changed.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age > TO_MAKE));
    let mut first = [0; BEGIN.len()];
    is_old && file.read(&mut first).is_ok() && first == [0; BEGIN.len()]
}

/// Where a process's number and its beginning mean what they say: the kernel's numbers of its namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Namespaces {
    /// 0 where unknown.
    pub(super) pid: u64,
    /// 0 in a kernel that has none (before Linux 5.6).
    pub(super) time: u64,
}

impl Namespaces {
    /// This process's; unknown without a `/proc` of them.
    pub(super) fn here() -> Namespaces {
        let own = std::process::id().to_string();
        if fs::read_link("/proc/self").is_ok_and(|number| number == Path::new(&own)) {
            let of = |name| fs::metadata(format!("/proc/self/ns/{name}")).map_or(0, |file| file.ino());
            return Namespaces { pid: of("pid"), time: of("time") };
        }
        Namespaces { pid: 0, time: 0 }
    }
}

impl Header {
    /// Whether what it says of its process can be judged from these namespaces.
    pub(super) fn is_of(&self, here: Namespaces) -> bool {
        here.pid != 0 && here == Namespaces { pid: self.pid_ns, time: self.time_ns }
    }

    /// Whether its process, which has this number, is known to be no more. One that cannot be judged from here may run.
    pub(super) fn is_gone(&self, pid: u32, here: Namespaces) -> bool {
        let another = || self.born != 0 && born(pid).is_some_and(|now| now != self.born);
        // This process, before it executed this program.
        let before = || pid == std::process::id() && self.image != 0 && ![0, self.image].contains(&image());
        self.is_of(here) && (is_no_process(pid) || another() || before())
    }
}

/// Tells the program that this process executes from one before or after it: [`Header::image`].
pub(super) fn image() -> u64 {
    let Some(secret) = image_secret() else { return 0 };
    let mut out = [0; 32];
    let request = &mut Request::new(Kind::Sha256, Key::none(), Data::Apart { from: &secret, to: &mut out });
    if Software::new().execute(request).is_err() {
        return 0;
    }
    // As many bits as a number of JSON has everywhere.
    out[..6].iter().fold(0, |image, byte| image << 8 | u64::from(*byte))
}

/// When a process began: [`Header::born`]. `None` if that cannot be read.
pub(super) fn born(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program, in brackets, may contain anything.
    let after = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let fields = std::str::from_utf8(&stat[after..]).ok()?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::read::encode;
    use super::*;
    use crate::telemetry::Identity;

    #[test]
    fn only_what_is_exactly_ours_is_swept() {
        let place = tempfile::tempdir().unwrap();
        let make = |name: &str, content: &[u8], mode: u32| {
            let path = place.path().join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let header =
            Identity { program: "a".into(), engines: vec!["x".into()], ..Identity::default() }.header();
        let of = |header: &Header| encode(header, 1, |_, _, _, _| 1);
        let ours = of(&Header { born: 0, ..header.clone() });
        let gone = [
            make("4194303-0", &ours, 0o600),
            make("4194303-12", &ours, 0o600),
            // Of the program that this process executed before.
            make(
                &format!("{}-2", header.pid),
                &of(&Header { image: header.image ^ 1, ..header.clone() }),
                0o600,
            ),
            make("folding-1-4194303-13", &ours, 0o600),
            // The number serves again for another process.
            make(
                &format!("{}-1", header.pid),
                &of(&Header { born: header.born - 1, ..header.clone() }),
                0o600,
            ),
        ];
        let ended = [
            make("1-0", &[b"-", &ours[1..]].concat(), 0o600),
            make("1-2", &[b"-", &of(&Header { pid_ns: 7, ..header.clone() })[1..]].concat(), 0o600),
        ];
        // Killed while it made its file.
        let blank = [make("4194303-20", b"", 0o600), make("4194303-21", &[0; 70_000], 0o600)];
        let old = SystemTime::now() - 2 * TO_MAKE;
        blank
            .iter()
            .for_each(|path| File::options().write(true).open(path).unwrap().set_modified(old).unwrap());
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
        // Another layout; a process that cannot be seen from here; one that does not say where it is.
        kept.push(make("4194303-14", &of(&Header { format: 2, ..header.clone() }), 0o600));
        kept.push(make("4194303-15", &of(&Header { pid_ns: header.pid_ns + 1, ..header.clone() }), 0o600));
        kept.push(make("4194303-16", &of(&Header { time_ns: header.time_ns + 1, ..header.clone() }), 0o600));
        kept.push(make("4194303-17", &of(&Header { pid_ns: 0, time_ns: 0, ..header.clone() }), 0o600));
        kept.push(make("4194303-18", b"{\"format\":1, cut", 0o600));
        // Another copy of the library in this process.
        kept.push(make(&format!("{}-0", header.pid), &of(&header), 0o600));
        // One that does not say which program it is; another process, of which that is not known.
        kept.push(make(&format!("{}-3", header.pid), &of(&Header { image: 0, ..header.clone() }), 0o600));
        let first = Header { born: 0, image: header.image ^ 1, ..header.clone() };
        kept.push(make("1-3", &of(&first), 0o600));
        fs::hard_link(place.path().join("4194303-7"), place.path().join("another-name")).unwrap();
        let pipe = place.path().join("4194303-8");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let link = place.path().join("4194303-9");
        std::os::unix::fs::symlink(&kept[0], &link).unwrap();
        fs::create_dir(place.path().join("4194303-10")).unwrap();
        kept.extend([pipe, link, place.path().join("4194303-10")]);
        let folder = Folder::open(place.path()).unwrap();
        let listed = folder.list(&mut Budget::of_a_user());
        fold::take_in(place.path(), &left(&folder, listed), Duration::from_secs(60));
        for path in gone.iter().chain(&ended).chain(&blank) {
            assert!(!path.exists(), "{} is there", path.display());
        }
        for path in kept {
            assert!(fs::symlink_metadata(&path).is_ok(), "{} is gone", path.display());
        }
    }

    /// As a program that starts others without end makes them: a start opens a bounded number, and adds none that is
    /// not read.
    #[test]
    fn a_user_has_no_more_files_than_are_read_and_a_start_looks_at_a_part_of_them() {
        let place = tempfile::tempdir_in("/dev/shm").unwrap();
        let folder = Folder::open(place.path()).unwrap();
        let header = Identity::default().header();
        let make = |name: &str| {
            let path = place.path().join(name);
            fs::write(&path, encode(&Header { born: 0, ..header.clone() }, 1, |_, _, _, _| 0)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            path
        };
        let create = || create_in(place.path(), &folder, &header, 10);
        // The first process runs.
        let running: Vec<PathBuf> = (0..MOST_FILES).map(|at| make(&format!("1-{at}"))).collect();
        assert!(create().is_none());
        let dead = c"4194303-0";
        let dead_path = make(dead.to_str().unwrap());
        let files = |before: usize| {
            let running = (0..before).map(|at| (CString::new(format!("1-{at}")).unwrap(), 1));
            Listed { files: running.chain([(dead.to_owned(), 4_194_303)]).collect(), ..Listed::default() }
        };
        assert_eq!(left(&folder, files(MOST_LOOKED_AT - 1)), [dead.to_owned()]);
        assert!(left(&folder, files(MOST_LOOKED_AT)).is_empty() && dead_path.exists());
        running.iter().take(2).for_each(|path| fs::remove_file(path).unwrap());
        assert!(create().is_some());
    }

    #[test]
    fn a_program_that_is_executed_is_told_from_the_one_before_it_and_shows_no_secret() {
        let shown = image().to_le_bytes();
        assert_eq!(image(), image());
        assert!(image() != 0 && image() < 1 << 48, "a number that JSON has everywhere");
        let secret = image_secret().unwrap();
        assert!(secret.windows(4).all(|part| !shown.windows(4).any(|shown| shown == part)));
    }

    #[test]
    fn a_name_that_is_taken_is_passed_over() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        let number = |name: &CStr| name.to_str().unwrap().split_once('-').unwrap().1.parse::<u32>().unwrap();
        let (_, first) = free(|name| folder.create(name)).unwrap();
        let make = |serial: u32| {
            fs::write(place.path().join(format!("{}-{serial}", std::process::id())), b"another copy's")
                .unwrap();
        };
        // Other tests of this process take numbers, too.
        (1..20).for_each(|more| make(number(&first) + more));
        let (_, next) = free(|name| folder.create(name)).unwrap();
        assert!(number(&next) >= number(&first) + 20, "{next:?} after {first:?}");
        assert_eq!(fs::read(place.path().join(next.to_str().unwrap())).unwrap(), b"");
    }

    #[test]
    fn a_file_has_no_name_before_it_is_whole() {
        let place = tempfile::tempdir_in("/dev/shm").unwrap();
        let folder = Folder::open(place.path()).unwrap();
        let names = || fs::read_dir(place.path()).unwrap().count();
        let file = File::from(folder.create_nameless().unwrap());
        let text = text(&Identity::default().header()).unwrap();
        let counters = fill(&file, &text, 10).unwrap();
        assert_eq!(names(), 0);
        folder.name(file.as_fd(), c"1-0").unwrap();
        assert_eq!(folder.name(file.as_fd(), c"1-0"), Err(Errno::EXIST));
        assert!(!whose(&folder, c"1-0").unwrap().ended);
        counters.mark(ENDED[0]);
        assert!(whose(&folder, c"1-0").unwrap().ended);
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
