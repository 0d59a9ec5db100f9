//! Files that this run made: their ids are of ranges, which a clean end takes them out of.

use std::collections::HashMap;

use wattlock_core::sync::{lock, write};
use wattlock_door::Crypto;

use super::Shared;
use crate::Error;
use crate::format::SPARSE;
use crate::store::{File, Place, Store};

/// Files that are remembered between two checkpoints. Others keep their ids.
const MADE_MAX: usize = 1 << 17;
/// Files above which a checkpoint does not leave their ids to the end of the run.
const MADE_MANY: usize = 1 << 16;
/// Files that one checkpoint gives other ids at most: everybody waits for it.
const MADE_BATCH: usize = 1 << 12;

/// Files that this run made, by device and inode number: their ids, and where they are.
#[derive(Default)]
pub(super) struct Made(HashMap<(u64, u64), (u64, Vec<u8>)>);

impl Made {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn insert(&mut self, place: &Place, id: u64) {
        if self.0.len() < MADE_MAX || self.0.contains_key(&place.inode) {
            self.0.insert(place.inode, (id, place.path.clone()));
        }
    }

    /// So many of them, which are forgotten.
    fn take(&mut self, most: usize) -> Vec<(Place, u64)> {
        let inodes: Vec<_> = self.0.keys().take(most).copied().collect();
        let taken = inodes.into_iter().filter_map(|inode| {
            let (id, path) = self.0.remove(&inode)?;
            Some((Place { inode, path }, id))
        });
        taken.collect()
    }

    pub(super) fn remove(&mut self, inode: (u64, u64)) {
        self.0.remove(&inode);
    }

    /// Whether this run gave a file this id; true of files that are too many to remember.
    pub(super) fn has(&self, inode: (u64, u64), id: u64) -> bool {
        self.0.get(&inode).map_or(self.0.len() >= MADE_MAX, |(there, _)| *there == id)
    }

    pub(super) fn moved(&mut self, inode: (u64, u64), to: &[u8]) {
        if let Some((_, path)) = self.0.get_mut(&inode) {
            *path = to.to_vec();
        }
    }

    pub(super) fn folder_moved(&mut self, from: &[u8], to: &[u8]) {
        for (_, path) in self.0.values_mut() {
            if let Some(rest) = path.strip_prefix(from).filter(|rest| rest.first() == Some(&b'/')) {
                *path = [to, rest].concat();
            }
        }
    }
}

impl<S: Store> Shared<S> {
    /// Gives files that this run made ids outside all ranges. Their epochs are over and everything is in place. What cannot
    /// be found or written keeps its id.
    pub(super) fn leave_ranges(&self, crypto: &mut impl Crypto) -> Result<(), Error> {
        let left = {
            let _creating = write(&self.creating);
            let _epoch = write(&self.epoch);
            // Whoever wrote since the checkpoint may have made files.
            self.journal.used() == 0 && self.leave(usize::MAX, crypto)?
        };
        match left {
            true => self.store.sync_all().map_err(|error| Error::io("syncing the volume", error)),
            false => Ok(()),
        }
    }

    /// Leaves the rest to the end of the run unless there are many. The caller holds what files being made share, and the
    /// epoch, alone; the journal is empty.
    pub(super) fn leave_many(&self, crypto: &mut impl Crypto) -> Result<(), Error> {
        let many = lock(&self.made).0.len() >= MADE_MANY;
        if many { self.leave(MADE_BATCH, crypto).map(drop) } else { Ok(()) }
    }

    /// Whether any file got another id, of so many. The caller holds the same.
    fn leave(&self, most: usize, crypto: &mut impl Crypto) -> Result<bool, Error> {
        if self.read_only {
            return Ok(false);
        }
        let batch = lock(&self.made).take(most);
        let mut left = false;
        for (place, id) in batch {
            left |= self.leave_range(place, id, crypto)?;
        }
        Ok(left)
    }

    /// Whether the file got another id.
    fn leave_range(&self, place: Place, id: u64, crypto: &mut impl Crypto) -> Result<bool, Error> {
        let open = self.known_body(place.inode);
        let mut state = open.as_ref().map(|body| body.state_mut());
        if let Some(state) = &mut state {
            let writable = state.file.writable() && !state.file.is_removed();
            if state.sealer.id != id || !writable {
                return Ok(false);
            }
            let (flags, secret) =
                (if state.ledger.is_sparse() { SPARSE } else { 0 }, state.sealer.key.secret());
            let new = self.outside_ranges()?;
            let header = self.seal_header(new, flags, &secret, crypto)?;
            let written = self.write_header(&*state.file, &header).is_ok();
            if written {
                (state.sealer.id, state.known_id) = (new, new);
            }
            return Ok(written);
        }
        let Ok(Some((there, file))) = self.store.find(&place, true) else { return Ok(false) };
        if there.inode != place.inode {
            return Ok(false);
        }
        let (header, key) = match self.header_of(&file, id, crypto) {
            Ok(Some(there)) => there,
            // Another program's by now.
            Ok(None) | Err(Error::Newer(_)) => return Ok(false),
            Err(error) => return Err(error),
        };
        Ok(self.rename_id(&file, &header, &[], &key, crypto).is_ok())
    }
}
