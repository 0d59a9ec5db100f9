//! Entries that are not found by sealing their name with the folder's own key: copies that other programs made, and
//! entries whose names another record of the folder opens. Known from the last survey of a folder, and good as long as
//! nobody else changes the folder.

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
/// Copies in one folder that are remembered. Others are listed, and found by no name.
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
    shown: Shown,
}

/// Shown names and stored names of the entries of one folder that this is about.
#[derive(Default)]
pub(super) struct Shown {
    stored: HashMap<Vec<u8>, OsString>,
    names: HashMap<OsString, Vec<u8>>,
    /// There were more than are remembered.
    partial: bool,
}

impl Shown {
    fn insert(&mut self, name: Vec<u8>, stored: OsString) {
        self.names.insert(stored.clone(), name.clone());
        self.stored.insert(name, stored);
    }
}

/// An entry of which the folder's own key does not say what it is called.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Other {
    /// A copy: no key holder gave it its stored name.
    pub(super) copied: bool,
    /// Its stored name.
    pub(super) stored: OsString,
    /// The name that a key holder wrote.
    pub(super) name: Vec<u8>,
    /// What another program added to the stored name, or to the name of the record that opens it.
    pub(super) added: Vec<u8>,
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
        let known = Known { stamp: self.stamp_of(stat), at: Instant::now(), shown: Shown::default() };
        self.insert((stat.st_dev, stat.st_ino), known);
    }

    /// A folder was listed that had this time before.
    pub(super) fn found(&self, inode: (u64, u64), stamp: Stamp, shown: Shown) {
        self.insert(inode, Known { stamp, at: Instant::now(), shown });
    }

    fn insert(&self, inode: (u64, u64), one: Known) {
        let mut known = lock(&self.known);
        if known.len() >= FOLDERS {
            // The kernel knows entries of the others by names that no key says.
            known.retain(|_, known| !known.shown.names.is_empty());
        }
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

    /// The stored name of what is shown by this name.
    pub(super) fn get(&self, folder: &Folder, name: &[u8]) -> Option<OsString> {
        lock(&self.known).get(&folder.inode)?.shown.stored.get(name).cloned()
    }

    /// The names that stored ones were shown by.
    pub(super) fn names(&self, folder: &Folder) -> HashMap<OsString, Vec<u8>> {
        lock(&self.known).get(&folder.inode).map_or_else(HashMap::new, |known| known.shown.names.clone())
    }

    /// The name that a stored one is shown by.
    pub(super) fn name(&self, folder: &Folder, stored: &OsStr) -> Option<Vec<u8>> {
        lock(&self.known).get(&folder.inode)?.shown.names.get(stored).cloned()
    }

    /// Whether an entry of a long name has a copy; `None` if that is not known.
    pub(super) fn has_copy(&self, folder: &Folder, entry: &OsStr) -> Option<bool> {
        if !self.is_known(folder) {
            return None;
        }
        let known = lock(&self.known);
        let of_entry = |stored: &OsString| is_copy_of(stored, entry);
        let known = known.get(&folder.inode).filter(|known| !known.shown.partial)?;
        Some(known.shown.names.keys().any(of_entry))
    }

    /// A stored name is gone: the name may be given to something else.
    pub(super) fn forget(&self, folder: &Folder, stored: &OsStr) {
        if let Some(Known { shown, .. }) = lock(&self.known).get_mut(&folder.inode)
            && let Some(name) = shown.names.remove(stored)
        {
            shown.stored.remove(&name);
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

/// The names that these are shown by, each once, and none that an entry has, in the order that `others` then has. The
/// first that is free counts: what it was shown by before; for what a key holder named, that name; the mark without blanks
/// at its ends; the mark as it is; the mark with a turn.
pub(super) fn show(
    entries: &HashSet<&[u8]>,
    others: &mut [Other],
    before: &HashMap<OsString, Vec<u8>>,
) -> (Vec<Vec<u8>>, Shown) {
    // The order of a listing says nothing; this one is the same each time.
    others.sort_by(|one, other| {
        let new = |other: &Other| !before.contains_key(&other.stored);
        let blanks = |other: &Other| other.added.trim_ascii() != other.added;
        (new(one), one.copied, blanks(one), one).cmp(&(new(other), other.copied, blanks(other), other))
    });
    let (mut taken, mut turns, mut remembered) = (HashSet::new(), HashMap::new(), Shown::default());
    let mut shown = Vec::new();
    for other in others {
        let trimmed = names::marked(&other.name, other.added.trim_ascii(), None);
        let own = (!other.copied).then(|| other.name.clone());
        let first = before.get(&other.stored).cloned().into_iter().chain(own);
        let first = first.chain([trimmed.clone(), names::marked(&other.name, &other.added, None)]);
        let turns = turns.entry(trimmed).or_insert(1);
        let more = std::iter::repeat_with(|| {
            *turns += 1;
            names::marked(&other.name, other.added.trim_ascii(), Some(*turns))
        });
        let free = |name: &Vec<u8>| !entries.contains(&**name) && !taken.contains(name);
        let Some(name) = first.chain(more).find(free) else { continue };
        taken.insert(name.clone());
        if !other.copied || remembered.names.len() < COPIES {
            remembered.insert(name.clone(), other.stored.clone());
        } else {
            remembered.partial = true;
        }
        shown.push(name);
    }
    (shown, remembered)
}
