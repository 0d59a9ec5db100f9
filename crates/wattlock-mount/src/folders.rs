//! Opened backing folders, as many as were used last.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use wattlock_core::sync::{read, write};

/// An opened folder, and whether it has a default ACL: then the caller's umask does not count.
pub struct Dir<F> {
    /// It.
    pub folder: F,
    default_acl: AtomicU8,
}

impl<F> Dir<F> {
    /// A folder of which nothing is known yet.
    pub fn new(folder: F) -> Dir<F> {
        Dir { folder, default_acl: AtomicU8::new(0) }
    }

    /// Whether it has a default ACL; asks `look` only if that is unknown.
    pub fn default_acl(&self, look: impl FnOnce() -> bool) -> bool {
        match self.default_acl.load(Ordering::Relaxed) {
            0 => {
                let found = look();
                self.default_acl.store(1 + u8::from(found), Ordering::Relaxed);
                found
            }
            known => known == 2,
        }
    }

    /// Its default ACL may have changed.
    pub fn acl_changed(&self) {
        self.default_acl.store(0, Ordering::Relaxed);
    }
}

struct Slot<F> {
    dir: Arc<Dir<F>>,
    used: AtomicU64,
}

/// The folders used last.
pub struct Folders<F> {
    slots: RwLock<HashMap<u64, Slot<F>>>,
    most: usize,
    clock: AtomicU64,
}

impl<F> Folders<F> {
    /// Keeps at most `most`.
    pub fn new(most: usize) -> Folders<F> {
        Folders { slots: RwLock::default(), most: most.max(4), clock: AtomicU64::new(0) }
    }

    /// One that is open.
    pub fn get(&self, number: u64) -> Option<Arc<Dir<F>>> {
        let slots = read(&self.slots);
        let slot = slots.get(&number)?;
        slot.used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        Some(slot.dir.clone())
    }

    /// Adds one. If another thread was faster, its folder is the one.
    pub fn put(&self, number: u64, dir: Arc<Dir<F>>) -> Arc<Dir<F>> {
        let used = self.clock.fetch_add(1, Ordering::Relaxed);
        let mut closed = Vec::new();
        let mut slots = write(&self.slots);
        if slots.len() >= self.most {
            let mut ages: Vec<u64> = slots.values().map(|slot| slot.used.load(Ordering::Relaxed)).collect();
            ages.sort_unstable();
            let limit = ages[ages.len() / 4];
            let old: Vec<u64> = slots
                .iter()
                .filter(|(_, slot)| slot.used.load(Ordering::Relaxed) <= limit)
                .map(|(number, _)| *number)
                .collect();
            closed.extend(old.iter().filter_map(|number| slots.remove(number)));
        }
        let slot = slots.entry(number).or_insert_with(|| Slot { dir, used: AtomicU64::new(used) });
        let dir = slot.dir.clone();
        drop(slots);
        drop(closed);
        dir
    }

    /// Closes one.
    pub fn forget(&self, number: u64) {
        let gone = write(&self.slots).remove(&number);
        drop(gone);
    }

    /// Closes all.
    pub fn forget_all(&self) {
        let gone = std::mem::take(&mut *write(&self.slots));
        drop(gone);
    }

    /// How many are open.
    pub fn len(&self) -> usize {
        read(&self.slots).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_last_stays() {
        let folders: Folders<u64> = Folders::new(8);
        for number in 0..8 {
            folders.put(number, Arc::new(Dir::new(number)));
        }
        assert!(folders.get(0).is_some());
        folders.put(8, Arc::new(Dir::new(8)));
        assert!(folders.get(0).is_some() && folders.get(8).is_some());
        assert!(folders.get(1).is_none());
        assert!(folders.len() <= 8);
    }

    #[test]
    fn a_default_acl_is_asked_for_once() {
        let dir = Dir::new(());
        assert!(dir.default_acl(|| true));
        assert!(dir.default_acl(|| unreachable!()));
        dir.acl_changed();
        assert!(!dir.default_acl(|| false));
    }
}
