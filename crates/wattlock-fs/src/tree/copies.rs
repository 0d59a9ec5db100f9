//! Copies that other programs made of entries: known from the last survey of a folder, and good as long as nobody else
//! changes the folder.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::Stat;
use wattlock_core::sync::lock;

use super::Folder;
use super::stored::long_copy;
use crate::names;

/// Folders that are remembered; with more all are looked at again.
const FOLDERS: usize = 50_000;
/// Copies of one folder that are remembered. Others are listed, and found by no name.
const COPIES: usize = 10_000;

/// Longer than a file system's clock stands still.
const FRESH: Duration = Duration::from_millis(50);

/// So long a listing counts although the folder changes: the kernel does not ask more often either.
const LATELY: Duration = Duration::from_secs(1);

/// When entries of a folder were changed last, seconds and nanoseconds. With an access right only the time of change moves,
/// which is not looked at.
pub(super) type Stamp = [i64; 2];

/// Where nobody else changes folders.
const ALONE: Stamp = [0; 2];
/// No folder's.
const NEVER: Stamp = [i64::MIN; 2];

/// What was found in a folder, and when.
struct Known {
    stamp: Stamp,
    at: Instant,
    /// Stored names by shown name.
    copies: HashMap<Vec<u8>, OsString>,
}

/// Copies by folder.
#[derive(Default)]
pub(super) struct Copies {
    known: Mutex<HashMap<(u64, u64), Known>>,
    /// Other programs change folders.
    shared: AtomicBool,
}

impl Copies {
    /// Says whether other programs change folders meanwhile: then what is known counts until a folder has another time.
    pub(super) fn set_shared(&self, shared: bool) {
        self.shared.store(shared, Ordering::SeqCst);
    }

    /// The folder's time, to be asked for before it is listed. Zeros where nobody else changes it.
    pub(super) fn stamp(&self, folder: &OwnedFd) -> Stamp {
        match self.shared.load(Ordering::SeqCst) {
            true => rustix::fs::fstat(folder).map_or(NEVER, |stat| self.stamp_of(&stat)),
            false => ALONE,
        }
    }

    fn stamp_of(&self, stat: &Stat) -> Stamp {
        match self.shared.load(Ordering::SeqCst) {
            true => [stat.st_mtime, stat.st_mtime_nsec as i64],
            false => ALONE,
        }
    }

    /// As [`Copies::stamp`], before a listing. A change that comes in the same moment may leave the folder its time: of one
    /// that was changed just now it is not known that all copies will be known.
    pub(super) fn stamp_to_list(&self, folder: &OwnedFd) -> Stamp {
        let stamp = self.stamp(folder);
        if stamp != ALONE && is_fresh(stamp) { NEVER } else { stamp }
    }

    /// A folder was made, with no copy in it.
    pub(super) fn made(&self, stat: &Stat) {
        let known = Known { stamp: self.stamp_of(stat), at: Instant::now(), copies: HashMap::new() };
        self.insert((stat.st_dev, stat.st_ino), known);
    }

    /// A folder was listed that had this time before.
    pub(super) fn found(&self, inode: (u64, u64), stamp: Stamp, copies: HashMap<Vec<u8>, OsString>) {
        self.insert(inode, Known { stamp, at: Instant::now(), copies });
    }

    fn insert(&self, inode: (u64, u64), one: Known) {
        let mut known = lock(&self.known);
        if known.len() >= FOLDERS {
            known.clear();
        }
        known.insert(inode, one);
    }

    /// Whether all copies of a folder are known.
    pub(super) fn is_known(&self, folder: &Folder) -> bool {
        let stamp = self.stamp(&folder.fd);
        let counts = |known: &Known| known.stamp == stamp || known.at.elapsed() < LATELY;
        lock(&self.known).get(&folder.inode).is_some_and(counts)
    }

    /// The stored name of a copy that is shown by this name.
    pub(super) fn get(&self, folder: &Folder, name: &[u8]) -> Option<OsString> {
        lock(&self.known).get(&folder.inode)?.copies.get(name).cloned()
    }

    /// Whether an entry of a long name has a copy; `None` if that is not known.
    pub(super) fn has_copy(&self, folder: &Folder, entry: &OsStr) -> Option<bool> {
        if !self.is_known(folder) {
            return None;
        }
        let known = lock(&self.known);
        let of_entry = |stored: &OsString| is_copy_of(stored, entry);
        known.get(&folder.inode).map(|known| known.copies.values().any(of_entry))
    }

    /// A stored name is gone: the name may be given to something else.
    pub(super) fn forget(&self, folder: &Folder, stored: &OsStr) {
        if let Some(known) = lock(&self.known).get_mut(&folder.inode)
            && !known.copies.is_empty()
        {
            known.copies.retain(|_, one| one != stored);
        }
    }

    /// A folder is gone: its number may be another's.
    pub(super) fn forget_folder(&self, inode: (u64, u64)) {
        lock(&self.known).remove(&inode);
    }

    /// Makes a change that adds no copy: what is known of the folder stays known.
    pub(super) fn changing<T>(&self, folder: &Folder, change: impl FnOnce() -> T) -> T {
        if !self.shared.load(Ordering::SeqCst) {
            return change();
        }
        let before = self.stamp(&folder.fd);
        let done = change();
        let after = self.stamp(&folder.fd);
        if let Some(known) = lock(&self.known).get_mut(&folder.inode)
            && known.stamp == before
        {
            known.stamp = after;
        }
        done
    }
}

/// Whether a folder was changed so lately that the next change may have the same time.
fn is_fresh(stamp: Stamp) -> bool {
    let at = Duration::new(stamp[0].max(0) as u64, stamp[1].clamp(0, 999_999_999) as u32);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.checked_sub(at).is_none_or(|age| age < FRESH)
}

/// Whether a stored name is that of an entry of a long name, with something added.
pub(super) fn is_copy_of(stored: &OsStr, entry: &OsStr) -> bool {
    long_copy(stored.as_bytes()).is_some_and(|(of, added)| of == entry.as_bytes() && !added.is_empty())
}

/// The names that copies are shown by: each once, and none that an entry has.
pub(super) fn shown(
    entries: &HashSet<&[u8]>,
    copies: &mut [(OsString, Vec<u8>)],
) -> HashMap<Vec<u8>, OsString> {
    let mut taken: HashMap<Vec<u8>, OsString> = HashMap::new();
    // The order of a listing says nothing; this one is the same each time.
    copies.sort();
    for (stored, name) in copies.iter_mut() {
        let is_taken = |name: &[u8]| entries.contains(name) || taken.contains_key(name);
        let mut turn = 2;
        let first = name.clone();
        while is_taken(name) {
            *name = names::with_added(&first, format!("~{turn}").as_bytes());
            turn += 1;
        }
        if taken.len() < COPIES {
            taken.insert(name.clone(), stored.clone());
        }
    }
    taken
}
