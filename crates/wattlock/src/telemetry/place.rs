//! Where a user's folder of telemetry files is: the names in shared memory, any of which any user may have made first.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::folder::{Folder, is_number, open_folder};
use crate::sys::process::{effective_uid, variable};

/// What the name of a user's folder in shared memory begins with; the user's number follows, and a point and another number
/// if another user had made a folder of the first name.
const PREFIX: &str = "wattlock-";
pub(super) const SHARED_MEMORY: &str = "/dev/shm";

/// Most folders of one user: the one that all its processes have, and what is left of times when another user had its name.
pub(super) const MOST_FOLDERS: usize = 8;

/// Most entries of shared memory that a reader looks at: any user can make any number.
pub(super) const MOST_IN_MEMORY: usize = 1 << 19;
/// Those that a program looks at when it starts, which must not take long.
const MOST_AT_START: usize = 1 << 12;
/// Most of the caller's names, and of all others', that are looked at: opening a folder takes some microseconds.
const MOST_NAMES: usize = 1 << 16;

/// The folder that `WATTLOCK_TELEMETRY_DIR` names.
pub(super) fn named() -> Option<PathBuf> {
    variable("WATTLOCK_TELEMETRY_DIR")
}

/// A name in shared memory: the user's number, and what tells several folders of it apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) uid: u32,
    second: Option<u64>,
}

impl Name {
    fn parse(text: &str) -> Option<Name> {
        let digits = text.strip_prefix(PREFIX)?;
        let (uid, second) = digits.split_once('.').map_or((digits, None), |(uid, more)| (uid, Some(more)));
        let fine = is_number(uid) && second.is_none_or(is_number);
        let second = second.map(str::parse).transpose().ok()?;
        fine.then(|| Some(Name { uid: uid.parse().ok()?, second }))?
    }

    /// Whether it is the one that a user's programs have unless another user made it first.
    pub(super) fn is_first(self) -> bool {
        self.second.is_none()
    }

    pub(super) fn path(self) -> PathBuf {
        let second = self.second.map(|number| format!(".{number}")).unwrap_or_default();
        PathBuf::from(format!("{SHARED_MEMORY}/{PREFIX}{}{second}", self.uid))
    }
}

/// Names in shared memory that are users', lowest numbers first. Whose the folders are is not looked at.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) own: Vec<Name>,
    pub(super) others: Vec<Name>,
    /// Whether there were more of the caller's, or of any, or they could not be seen now.
    own_more: bool,
    pub(super) more: bool,
}

impl Shared {
    /// What is among the first so many entries. tmpfs lists the newest first, and any user makes new ones: where there
    /// are more, the first names of the caller and of the users that are known already are looked for all the same.
    pub(super) fn read(most: usize, known: &[u32]) -> Shared {
        match std::fs::read_dir(SHARED_MEMORY) {
            Ok(entries) => Shared::of(entries.map(|entry| Ok(entry?.file_name())), most, known),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Shared::default(),
            Err(error) => Shared::of(std::iter::once(Err(error)), most, known),
        }
    }

    fn of(entries: impl Iterator<Item = io::Result<OsString>>, most: usize, known: &[u32]) -> Shared {
        let (uid, mut shared) = (effective_uid(), Shared::default());
        for (at, entry) in entries.enumerate() {
            let Some(entry) = entry.ok().filter(|_| at < most) else {
                shared.own_more = true;
                break;
            };
            shared.add(entry.to_str().and_then(Name::parse), uid);
        }
        shared.own_more |= bound(&mut shared.own, MOST_NAMES);
        shared.more = bound(&mut shared.others, MOST_NAMES) || shared.own_more;
        if shared.more {
            known
                .iter()
                .chain([&uid])
                .for_each(|one| shared.add(Some(Name { uid: *one, second: None }), uid));
            for names in [&mut shared.own, &mut shared.others] {
                names.sort();
                names.dedup();
            }
        }
        shared
    }

    fn add(&mut self, name: Option<Name>, own_uid: u32) {
        let names =
            name.map(|name| (if name.uid == own_uid { &mut self.own } else { &mut self.others }, name));
        if let Some((names, name)) = names {
            names.push(name);
        }
    }
}

/// Sorts names, and leaves the first of each number before the second of any: who makes many names of one number, or all
/// that there are of low ones, pushes out no user's folder of the first name with a number below `most`. Whether it left
/// any out.
fn bound(names: &mut Vec<Name>, most: usize) -> bool {
    names.sort();
    if names.len() <= most {
        return false;
    }
    let mut turns: Vec<(usize, Name)> = Vec::with_capacity(names.len());
    for name in names.iter() {
        let turn = turns.last().filter(|(_, before)| before.uid == name.uid).map_or(0, |(turn, _)| turn + 1);
        turns.push((turn, *name));
    }
    turns.sort();
    *names = turns.into_iter().take(most).map(|(_, name)| name).collect();
    names.sort();
    true
}

/// The calling user's folders.
pub(super) fn own() -> impl Iterator<Item = (PathBuf, Folder)> {
    own_among(MOST_IN_MEMORY).0
}

/// Those among the first so many entries, and whether there may be more of them.
fn own_among(most: usize) -> (impl Iterator<Item = (PathBuf, Folder)>, bool) {
    let (paths, more) = match named() {
        Some(path) => (vec![path], false),
        None => {
            let shared = Shared::read(most, &[]);
            (shared.own.into_iter().map(Name::path).collect(), shared.own_more)
        }
    };
    // Whose they are comes before how many: any user makes names.
    (paths.into_iter().filter_map(ours).take(MOST_FOLDERS), more)
}

/// The folder for a new file of the calling user, made if there is none. If another user made one of its name first, it has
/// a second name, which nobody can foresee. None is made where not all names could be looked at: each process would make
/// one.
pub(super) fn own_or_made() -> Option<(PathBuf, Folder)> {
    if let Some(path) = named() {
        return ours_or_made(path);
    }
    let path = |second| Name { uid: effective_uid(), second }.path();
    ours_or_made(path(None)).or_else(|| {
        let (mut mine, more) = own_among(MOST_AT_START);
        let tries = if more { 0 } else { 3 };
        mine.next().or_else(|| (0..tries).find_map(|_| ours_or_made(path(Some(nanoseconds())))))
    })
}

fn nanoseconds() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

fn ours(path: PathBuf) -> Option<(PathBuf, Folder)> {
    Folder::open(&path).filter(Folder::is_ours).map(|folder| (path, folder))
}

fn ours_or_made(path: PathBuf) -> Option<(PathBuf, Folder)> {
    ours(path.clone()).or_else(|| {
        make(&path);
        ours(path)
    })
}

/// For its owner alone, whatever the umask says. What is there stays as it is.
fn make(path: &Path) {
    if DirBuilder::new().mode(0o700).create(path).is_err() {
        return;
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(made) = open_folder(path, flags) else { return };
    let stat = rustix::fs::fstat(&made);
    if stat.is_ok_and(|stat| stat.st_uid == effective_uid() && stat.st_mode & 0o777 != 0o700) {
        let made = format!("/proc/self/fd/{}", made.as_raw_fd());
        let _ = std::fs::set_permissions(made, std::fs::Permissions::from_mode(0o700));
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn folders_in_shared_memory_are_named_after_their_user() {
        for (text, uid, second) in [("wattlock-0", 0, None), ("wattlock-1000.17", 1000, Some(17))] {
            let name = Name::parse(text).unwrap();
            assert_eq!(name, Name { uid, second });
            assert_eq!(name.path(), Path::new("/dev/shm").join(text));
        }
        for text in [
            "wattlock-",
            "wattlock-01",
            "wattlock-1.",
            "wattlock-1.x",
            "wattlock-1.2.3",
            "wattlock-4294967296",
        ] {
            assert_eq!(Name::parse(text), None, "{text}");
        }
    }

    #[test]
    fn many_names_of_one_number_push_no_other_out() {
        let name = |uid, second| Name { uid, second };
        let mut names: Vec<Name> = (0..1000).map(|second| name(0, Some(second))).collect();
        names.extend((5..15).map(|uid| name(uid, None)));
        names.extend([name(7, Some(9)), name(1, Some(u64::MAX))]);
        let mut bounded = names.clone();
        assert!(bound(&mut bounded, 20) && bounded.is_sorted());
        let expected = (5..15).map(|uid| name(uid, None)).chain([name(7, Some(9)), name(1, Some(u64::MAX))]);
        assert!(expected.clone().all(|one| bounded.contains(&one)), "{bounded:?}");
        assert_eq!(bounded.iter().filter(|one| one.uid == 0).count(), 8);
        let all = names.len();
        assert!(!bound(&mut names, all) && names.len() == all && names.is_sorted());
    }

    #[test]
    fn new_names_hide_none_of_a_user_that_is_known_and_what_cannot_be_listed_is_more() {
        let (own, known) = (effective_uid(), 4_000_000_000);
        let first = |uid| Name { uid, second: None };
        // As tmpfs lists them, the newest first; and of low numbers, which come before others.
        let newest = |count: u32| (0..count).map(|at| format!("wattlock-{}", 100_000 + at));
        let older = || [own, known].map(|uid| format!("wattlock-{uid}"));
        let listed = |count| newest(count).chain(older()).map(|name| Ok(name.into()));
        let whole = Shared::of(listed(10), 12, &[known]);
        assert_eq!((whole.own, whole.others.len(), whole.more), (vec![first(own)], 11, false));
        for (count, most) in [(10, 10), (MOST_NAMES as u32, usize::MAX)] {
            let shared = Shared::of(listed(count), most, &[known, 7]);
            assert_eq!((shared.own, shared.more), (vec![first(own)], true));
            assert!(shared.others.is_sorted() && shared.others.len() == count as usize + 2);
            assert!([known, 7].iter().all(|uid| shared.others.contains(&first(*uid))));
        }
        // Without descriptors, or without memory after some entries.
        for before in [0, 2] {
            let error = || Err(io::Error::from_raw_os_error(Errno::MFILE.raw_os_error()));
            let shared = Shared::of(listed(2).take(before).chain([error()]).chain(listed(1)), 100, &[]);
            assert_eq!((shared.own, shared.others.len(), shared.more), (vec![first(own)], before, true));
        }
    }

    /// As another user makes them that would hide a user's folder, or have each of its processes make a new one.
    #[test]
    fn foreign_folders_of_ones_own_number_hide_none_and_no_more_are_made() {
        if effective_uid() != 0 {
            return eprintln!("skipped: only root makes another user's folder");
        }
        let name = |second| Name { uid: 0, second: Some(second) }.path();
        let foreign: Vec<PathBuf> = (0..1100).map(name).collect();
        for path in &foreign {
            std::fs::create_dir(path).unwrap();
            std::os::unix::fs::chown(path, Some(12_345), None).unwrap();
        }
        let mine = name(u64::MAX - 1);
        make(&mine);
        let found = own().any(|(path, _)| path == mine);
        let at_start = own_among(100).1;
        foreign.iter().chain([&mine]).for_each(|path| std::fs::remove_dir(path).unwrap());
        assert!(found && at_start, "a start looks at so many and no further");
    }
}
