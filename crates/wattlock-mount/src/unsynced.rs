//! Names that files were given since they were last synced. A sync of a file makes them durable, too, as ext4's does.

use std::collections::HashMap;
use std::sync::Mutex;

use wattlock_core::sync::lock;

/// Files that are remembered before all names are made durable together.
const MANY: usize = 1 << 14;

/// Files that are remembered at most.
const MOST: usize = 4 * MANY;

/// Folders of one file's names that are remembered at most.
const FOLDERS: usize = 8;

/// Where a file's names may not be durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct New {
    /// The last name's, which no other one has.
    count: u64,
    /// The folders; `None` says that each may be one.
    pub folders: Option<Vec<u64>>,
}

/// Files with a name that may not be durable, by their own numbers, which they keep.
#[derive(Default)]
pub(crate) struct Renamed(Mutex<Known>);

#[derive(Default)]
struct Known {
    files: HashMap<u64, New>,
    /// Names there were.
    count: u64,
    /// The last name that was too many to be remembered: any file may have one.
    any: Option<u64>,
}

impl Renamed {
    /// A file has a new name in a folder.
    pub fn add(&self, number: u64, folder: u64) {
        let known = &mut *lock(&self.0);
        known.count += 1;
        let count = known.count;
        if known.files.len() >= MOST && !known.files.contains_key(&number) {
            known.any = Some(count);
            return;
        }
        let new = known.files.entry(number).or_insert_with(|| New { count, folders: Some(Vec::new()) });
        new.count = count;
        let Some(folders) = &mut new.folders else { return };
        match folders.len() {
            _ if folders.contains(&folder) => {}
            FOLDERS => new.folders = None,
            _ => folders.push(folder),
        }
    }

    /// The names of a file that is about to be synced.
    pub fn of(&self, number: u64) -> Option<New> {
        let known = lock(&self.0);
        match known.any {
            Some(count) => Some(New { count, folders: None }),
            None => known.files.get(&number).cloned(),
        }
    }

    /// These names of a file are durable. One that came since is not.
    pub fn synced(&self, number: u64, new: &New) {
        let files = &mut lock(&self.0).files;
        if files.get(&number).is_some_and(|now| now.count <= new.count) {
            files.remove(&number);
        }
    }

    /// All names so far, if they are so many that they are to be made durable together.
    pub fn many(&self) -> Option<u64> {
        let known = lock(&self.0);
        (known.files.len() >= MANY || known.any.is_some()).then_some(known.count)
    }

    /// All names so far, those of [`Renamed::many`], are durable.
    pub fn all_synced(&self, so_far: u64) {
        let known = &mut *lock(&self.0);
        known.files.retain(|_, new| new.count > so_far);
        known.any = known.any.filter(|count| *count > so_far);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_until_they_are_synced_and_a_later_one_longer() {
        let renamed = Renamed::default();
        assert_eq!(renamed.of(7), None);
        renamed.add(7, 1);
        renamed.add(7, 2);
        renamed.add(7, 1);
        let new = renamed.of(7).unwrap();
        assert_eq!(new.folders, Some(vec![1, 2]));
        // A sync that fails says nothing: the names stay.
        assert_eq!(renamed.of(7).as_ref(), Some(&new));
        renamed.add(7, 3);
        renamed.synced(7, &new);
        let new = renamed.of(7).unwrap();
        assert_eq!(new.folders, Some(vec![1, 2, 3]));
        renamed.synced(7, &new);
        assert_eq!((renamed.of(7), renamed.many()), (None, None));
        // One that went and came again meanwhile is another.
        renamed.add(7, 1);
        renamed.synced(7, &new);
        assert!(renamed.of(7).is_some());
        (0..=FOLDERS as u64).for_each(|folder| renamed.add(8, folder));
        assert_eq!(renamed.of(8).unwrap().folders, None);
    }

    #[test]
    fn too_many_names_are_synced_together_and_none_is_lost() {
        let renamed = Renamed::default();
        let most = MOST as u64;
        (0..MANY as u64 - 1).for_each(|number| renamed.add(number, 1));
        assert_eq!(renamed.many(), None);
        (0..most).for_each(|number| renamed.add(number, 1));
        assert_eq!(renamed.of(most), None);
        renamed.add(most, 1);
        assert_eq!(renamed.of(most).unwrap().folders, None, "it is not remembered by itself");
        let many = renamed.many().unwrap();
        renamed.add(0, 2);
        renamed.add(most + 1, 1);
        renamed.all_synced(many);
        assert!(renamed.of(1).is_some(), "another one came while all were synced");
        renamed.all_synced(renamed.many().unwrap());
        assert_eq!((renamed.of(0), renamed.of(most), renamed.many()), (None, None, None));
    }
}
