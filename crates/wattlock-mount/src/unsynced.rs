//! Names that files were given since they were last synced. A sync of a file makes them durable, too, as ext4's does.

use std::collections::HashSet;
use std::sync::Mutex;

use wattlock_core::sync::lock;

/// Files that are remembered.
const MOST: usize = 1 << 14;

/// Files with a name that may not be durable, by their numbers.
#[derive(Default)]
pub(crate) struct Renamed(Mutex<HashSet<u64>>);

impl Renamed {
    /// A file has a new name. Where too many have, `sync_all` makes all names durable first.
    pub fn add(&self, number: u64, sync_all: impl FnOnce() -> bool) {
        let mut known = lock(&self.0);
        // Those that cannot be made durable stay: each then costs the next sync of that file a sync of a folder.
        if known.len() >= MOST && sync_all() {
            known.clear();
        }
        known.insert(number);
    }

    /// Whether a file that is about to be synced has one.
    pub fn take(&self, number: u64) -> bool {
        lock(&self.0).remove(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_synced_once_and_too_many_are_synced_together() {
        let renamed = Renamed::default();
        let alone = || panic!("one is not too many");
        assert!(!renamed.take(7));
        renamed.add(7, alone);
        assert_eq!([renamed.take(7), renamed.take(7)], [true, false]);
        let mut syncs = 0;
        for number in 0..=MOST as u64 {
            renamed.add(number, || {
                syncs += 1;
                true
            });
        }
        assert_eq!((syncs, renamed.take(0), renamed.take(MOST as u64)), (1, false, true));
    }
}
