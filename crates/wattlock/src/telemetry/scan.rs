//! All that telemetry files say, of the calling user and, where they may be read, of all others.
//!
//! Whose counts they are is what the kernel says of a folder and its files; what a header says of that is not asked. A
//! folder in shared memory counts if it belongs to the user whose number is its name, and no other user may make files in
//! it: that is judged before anything else, so that the folders that count are bounded, and others push none of them out.
//! Each user has the same bounded number of files, bytes, counts and names, so that no user's files keep others' from
//! being read, and one user's at a time are held. All users together have so much as eight of them may have: those with
//! the lowest numbers come first, after the caller.

use std::collections::{BTreeSet, HashMap};
use std::ffi::CString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;

use super::budget::{Budget, MOST_FILES};
use super::file::{Namespaces, born, is_left};
use super::folder::Folder;
use super::place::{MOST_FOLDERS, MOST_IN_MEMORY, Shared, named, own};
use super::read::{Unread, passes, read_file};
use super::totals::{Found, Totals};
use super::{Header, Snapshot, fold};
use crate::sys::process::effective_uid;

/// Most users whose folders are read. Those with the lowest numbers are: one user may have many thousands of the high ones
/// for containers.
const MOST_USERS: usize = 256;
/// And most of them within one range of [`range_of`]. The subuids of one user may lie in two, and leave half of all.
const MOST_OF_A_RANGE: usize = 64;

/// User ids that may be one user's, for its containers (subuids): 65,536 of the high ones, told by the lowest.
pub fn range_of(uid: u32) -> u32 {
    if uid < 1 << 16 { uid } else { uid & !0xffff }
}

/// How long a reader waits for the lock, when something is to be taken in.
const PATIENCE: Duration = Duration::from_millis(5);

/// How often a reader begins anew because files moved into the totals meanwhile.
const TRIES: usize = 8;

/// What one user's files say.
#[derive(Debug, Clone)]
pub struct User {
    /// The owner of the folder and of all files in it.
    pub uid: u32,
    /// Counts of processes that run.
    pub living: Vec<Snapshot>,
    /// Counts of processes that have ended and are not in the totals yet.
    pub ended: Vec<Snapshot>,
    /// What is in the totals.
    pub totals: Totals,
    /// Files that were not read: beyond what one user may have, or not to be read now. A folder beyond those that one
    /// user may have is one, and so is a reading during which files never stayed where they were.
    pub left_out: u64,
    /// Files that are not what their place and name say.
    pub wrong: u64,
    /// Whether this is the folder of the user's first name: its programs make none of another name then.
    pub first: bool,
}

/// What was passed over besides.
#[derive(Debug, Clone, Default)]
pub struct Scan {
    /// Folders that are not read: another user's than their names say, open to other users, or with something mounted there.
    pub wrong_folders: u64,
    /// Folders that the caller may not read, or that are too many.
    pub unread_folders: u64,
    /// Whether a folder that is read at other times could not be opened now. A user may have several folders: sums that
    /// are lower say nothing then.
    pub incomplete: bool,
    /// Whether there are more names than are looked at: any user can make them. The same is true then of users whose
    /// folder of the first name was not read, or who had others.
    pub more: bool,
}

/// Processes that run.
#[derive(Debug, Clone, Default)]
pub struct Running {
    /// Their counts.
    pub found: Vec<Snapshot>,
    /// Users of whom not all is among them: they, or all users together, have more than is read.
    pub users_left_out: u64,
}

/// A file that was read.
pub(super) struct Read {
    name: CString,
    pub(super) snapshot: Snapshot,
    living: bool,
}

/// What lies in a folder at one moment.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) files: Vec<Read>,
    pub(super) totals: Totals,
    left_out: u64,
    wrong: u64,
    first: bool,
}

/// Reads a folder. A file whose counts move into the totals meanwhile is counted once.
pub(super) fn look(folder: &Folder, budget: &mut Budget, here: Namespaces) -> Seen {
    until_steady(budget, |budget| look_once(folder, budget, here))
}

/// A reading that begins anew holds nothing yet, but has no more time: a user could have it begin anew each time.
/// After the last try something is left out: files moved at each.
fn until_steady(budget: &mut Budget, mut read: impl FnMut(&mut Budget) -> (Seen, bool)) -> Seen {
    let whole = budget.clone();
    let mut tries = 0;
    loop {
        let (mut seen, steady) = read(budget);
        tries += 1;
        if steady || tries == TRIES {
            seen.left_out += u64::from(!steady);
            return seen;
        }
        budget.hold_again(&whole);
    }
}

fn look_once(folder: &Folder, budget: &mut Budget, here: Namespaces) -> (Seen, bool) {
    let mut seen = Seen::default();
    let generation = Totals::generation_in(folder);
    match Totals::read(folder) {
        Found::Totals(totals) => seen.totals = totals,
        Found::None => {}
        Found::Foreign => seen.wrong += 1,
        Found::NotNow => seen.left_out += 1,
    }
    let listed = folder.list(budget);
    // Programs that start in a full folder have no file. Of more files than that some are left out themselves.
    let is_full = listed.files.len() + listed.folding.len() == MOST_FILES as usize;
    seen.left_out += u64::from(listed.more || is_full);
    let taken_in = seen.totals.taken_in();
    let folding = listed.folding.into_iter().filter(|name| !taken_in.contains(name));
    let names: Vec<_> = listed
        .files
        .into_iter()
        .map(|(name, pid)| (name, Some(pid)))
        .chain(folding.map(|name| (name, None)))
        .collect();
    let mut moved = false;
    for (name, pid) in names {
        match read_file(folder, &name, budget) {
            Ok((mut snapshot, ended)) => {
                let living = !ended && pid.is_some_and(|pid| is_living(folder, pid, &snapshot.header, here));
                snapshot.header.pid = pid.unwrap_or(snapshot.header.pid);
                seen.files.push(Read { name, snapshot, living });
            }
            Err(Unread::Gone) => moved = true,
            Err(Unread::NotNow) => seen.left_out += 1,
            // Its process may be about to write it, or have left it so.
            Err(Unread::Wrong) => seen.wrong += 1,
        }
    }
    let steady = !moved && Totals::generation_in(folder) == generation;
    (seen, steady)
}

/// Whether a file is that of a process which runs, or may run: a number serves again for another process, and is another's
/// in another namespace. The process must be the folder's owner's: when it began is no secret. A process that was root's, and
/// gave that up, is still the one that began then.
fn is_living(folder: &Folder, pid: u32, header: &Header, here: Namespaces) -> bool {
    if header.is_gone(pid, here) {
        return false;
    }
    let was_roots = || folder.owner() == 0 && header.born != 0 && born(pid) == Some(header.born);
    !header.is_of(here) || folder.owner() == effective_uid() || was_roots() || may_be_of(pid, folder.owner())
}

/// Whether one of a process's user ids is this one, or that cannot be seen.
fn may_be_of(pid: u32, uid: u32) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    line.is_none_or(|ids| ids.split_ascii_whitespace().any(|id| id.parse() == Ok(uid)))
}

/// Reads a folder, after what ended in it was taken in if it is the calling user's.
fn read_folder(path: &Path, folder: &Folder, budget: &mut Budget, here: Namespaces) -> Seen {
    let whole = budget.clone();
    let seen = look(folder, budget, here);
    if !folder.is_ours() {
        return seen;
    }
    let ended = seen.files.iter().filter(|file| !file.living).map(|file| &file.name);
    let names: Vec<CString> = ended.filter(|name| is_left(folder, name, here)).cloned().collect();
    if names.is_empty() {
        return seen;
    }
    drop(seen);
    fold::take_in(path, &names, PATIENCE);
    *budget = whole;
    look(folder, budget, here)
}

/// Every folder that is to be read, the caller's own first, whatever it is called; one folder's content at a time. With
/// users whose folders are too many, or beyond the last that is read.
fn read_folders(known: &[u32], mut each: impl FnMut(u32, Seen)) -> (Scan, BTreeSet<u32>) {
    let (here, mut scan, mut crowded) = (Namespaces::here(), Scan::default(), BTreeSet::new());
    let own = named();
    if let Some(path) = &own {
        match Folder::open_or_why(path) {
            Ok(folder) if folder.is_closed() => {
                let seen = read_folder(path, &folder, &mut Budget::of_a_user(), here);
                each(folder.owner(), Seen { first: true, ..seen });
            }
            Ok(_) => scan.wrong_folders += 1,
            Err(error) => {
                scan.unread_folders += u64::from(path.exists());
                scan.incomplete |= passes(error);
            }
        }
    }
    let shared = Shared::read(MOST_IN_MEMORY, known);
    if shared.more {
        // Of whom is not known: as if it were one user, with the number that none has.
        scan.unread_folders += 1;
        scan.more = true;
        crowded.insert(u32::MAX);
    }
    let mut all = Budget::of_all();
    let mut users: HashMap<u32, (usize, Budget)> = HashMap::new();
    for name in shared.own.into_iter().chain(shared.others) {
        let path = name.path();
        // The folder that is named stands in the place of the user's own.
        if own.as_ref().is_some_and(|own| *own == path || name.uid == effective_uid()) {
            continue;
        }
        let folder = match Folder::open_or_why(&path) {
            Ok(folder) if folder.owner() == name.uid && folder.is_closed() => folder,
            Err(Errno::NOENT) => continue,
            // Others' folders, if they are not to be seen by all.
            Err(error) if passes(error) || error == Errno::ACCESS => {
                scan.unread_folders += 1;
                scan.incomplete |= passes(error);
                continue;
            }
            _ => {
                scan.wrong_folders += 1;
                continue;
            }
        };
        // Of a user beyond the last nothing is read, and so no sum of its is lower.
        let of_range = || users.keys().filter(|uid| range_of(**uid) == range_of(name.uid)).count();
        let is_full =
            !users.contains_key(&name.uid) && (users.len() == MOST_USERS || of_range() == MOST_OF_A_RANGE);
        let fresh = || (0, Budget::of_a_user());
        let user = if is_full { None } else { Some(users.entry(name.uid).or_insert_with(fresh)) };
        match user {
            Some((folders, budget)) if *folders < MOST_FOLDERS => {
                *folders += 1;
                let seen = all.share(budget, |budget| read_folder(&path, &folder, budget, here));
                each(name.uid, Seen { first: name.is_first(), ..seen });
            }
            user => {
                scan.unread_folders += 1;
                crowded.insert(name.uid);
                if user.is_some() {
                    each(name.uid, Seen { left_out: 1, ..Seen::default() });
                }
            }
        }
    }
    (scan, crowded)
}

/// What the files of the calling user and, where the caller may read them, of all others say, one folder at a time:
/// only its content is held. The calling user's files of processes that have ended move into its totals; nothing of
/// other users' is changed. A user may be there several times, with folders of different names. The one that
/// `WATTLOCK_TELEMETRY_DIR` names stands in the place of the caller's own. Folders of the first name of `known` users
/// are looked for even where there are more names than are looked at.
pub fn scan(known: &[u32], mut each: impl FnMut(User)) -> Scan {
    read_folders(known, |uid, seen| {
        let (living, ended): (Vec<Read>, Vec<Read>) = seen.files.into_iter().partition(|file| file.living);
        let snapshots = |files: Vec<Read>| files.into_iter().map(|file| file.snapshot).collect();
        each(User {
            uid,
            living: snapshots(living),
            ended: snapshots(ended),
            totals: seen.totals,
            left_out: seen.left_out,
            wrong: seen.wrong,
            first: seen.first,
        });
    })
    .0
}

/// Every living process's counts, of the calling user's or (if the caller may read them) all users' processes. What the
/// calling user's ended processes left moves into its totals; other users' folders are left as they are, because the owner
/// of a folder decides what its names lead to. Unreadable ones are passed over, and those for which there is no room: the
/// calling user's and then those of the users with the lowest numbers come first.
pub fn read_all() -> Vec<Snapshot> {
    let mut found = read_running().found;
    // A host that has used nothing yet has nothing to tell.
    found.retain(Snapshot::is_used);
    found
}

/// The same, with processes that have used nothing yet: a later look then knows that they began at nothing. And with what
/// there was no room for.
pub fn read_running() -> Running {
    let (mut found, mut budget, mut full): (Vec<Snapshot>, _, _) =
        (Vec::new(), Budget::of_all(), BTreeSet::new());
    let (_, crowded) = read_folders(&[], |uid, seen| {
        let (held, all) = (found.len(), seen.files.iter().filter(|file| file.living).count());
        let left_out = seen.left_out > 0;
        found.extend(living(seen).filter(|one| budget.holds(one)));
        if left_out || found.len() - held < all {
            full.insert(uid);
        }
    });
    full.extend(crowded);
    found.sort_by_key(|snapshot| snapshot.header.pid);
    Running { found, users_left_out: full.len() as u64 }
}

/// The counts of the calling user's processes with these ids, from its own folders.
pub fn read_own(pids: &[u32]) -> Vec<Snapshot> {
    let (here, mut budget) = (Namespaces::here(), Budget::of_a_user());
    let found = own().flat_map(|(path, folder)| living(read_folder(&path, &folder, &mut budget, here)));
    found.filter(|snapshot| pids.contains(&snapshot.header.pid)).collect()
}

fn living(seen: Seen) -> impl Iterator<Item = Snapshot> {
    seen.files.into_iter().filter(|file| file.living).map(|file| file.snapshot)
}

#[cfg(test)]
mod tests;
