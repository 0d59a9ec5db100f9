//! An epoch of the journal: ranges of ids for new files, the checkpoint that ends it, and what a disk refused meanwhile.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use wattlock_core::sync::{lock, read, write};
use wattlock_door::Crypto;

use super::slots;
use super::state::{Body, with_scratch};
use super::{Content, Files, JOURNAL_MOST, Lost, PINNED_MOST, RANGE, Shared};
use crate::Error;
use crate::journal::{Op, Ops, RANGES, RECORD_HEAD};
use crate::store::{File, Store};

impl<S: Store> Shared<S> {
    /// An id for a new file. `None` where there is no range for it.
    pub(super) fn reserved_id(&self, crypto: &mut impl Crypto) -> Result<Option<u64>, Error> {
        let mut files = lock(&self.files);
        let Some(start) = self.range(&mut files, crypto)? else { return Ok(None) };
        files.given += 1;
        Ok(Some(start + files.given - 1))
    }

    /// The range that has the next id for a new file. The first of an epoch is made durable in the journal here. `None`
    /// where the head of the journal would have no room for one more range: ranges of files that could not be looked at
    /// since they may have been torn are not forgotten.
    pub(super) fn range(&self, files: &mut Files, crypto: &mut impl Crypto) -> Result<Option<u64>, Error> {
        // A range that only a head's epoch knows of which may be over is none.
        self.journal.usable()?;
        if let Some(start) = files.ranges.last().copied()
            && files.given < RANGE
        {
            return Ok(Some(start));
        }
        if read(&self.unclean).len() + files.ranges.len() >= RANGES {
            return Ok(None);
        }
        let start = self.outside_ranges()? / RANGE * RANGE;
        let mut ops = Ops::default();
        ops.push(&Op::Range(start));
        let (number, _) = self.journal.append(&mut vec![0; RECORD_HEAD], &ops, crypto)?;
        self.journal.sync(number, crypto)?;
        files.ranges.push(start);
        files.given = 0;
        Ok(Some(start))
    }

    /// A random file id that lies in no range that did not end well.
    pub(super) fn outside_ranges(&self) -> Result<u64, Error> {
        loop {
            let mut id = [0; 8];
            slots::random(&mut id)?;
            let id = u64::from_be_bytes(id);
            // Far from the end, so that a range never wraps around.
            if id < u64::MAX - 2 * RANGE && !self.is_unclean(id / RANGE * RANGE) {
                return Ok(id);
            }
        }
    }

    pub(super) fn is_unclean(&self, id: u64) -> bool {
        read(&self.unclean).iter().any(|start| id.wrapping_sub(*start) < RANGE)
    }

    pub(super) fn checkpoint(self: &Arc<Self>, crypto: &mut impl Crypto) -> Result<(), Error> {
        if self.read_only {
            return Ok(());
        }
        let pinned = !read(&self.kept).pinned.is_empty();
        if self.journal.used() == 0 && !pinned && !self.forgot.load(Ordering::SeqCst) {
            return Ok(());
        }
        // Most of what is to be synced is synced before anybody has to wait.
        if let Err(error) = self.store.sync_all() {
            return Err(self.doubt(error));
        }
        let _creating = write(&self.creating);
        let _epoch = write(&self.epoch);
        self.bring_into_place(crypto)?;
        self.leave_many(crypto)
    }

    /// Files that are open or kept.
    fn bodies(&self) -> Vec<Arc<Body<S::File>>> {
        let mut bodies: HashMap<_, _> =
            read(&self.kept).pinned.iter().map(|(inode, body)| (*inode, body.clone())).collect();
        let open: Vec<Arc<Content<S>>> = read(&self.open).values().filter_map(Weak::upgrade).collect();
        bodies.extend(open.iter().map(|content| (content.body.place.inode, content.body.clone())));
        bodies.into_values().collect()
    }

    /// Brings the journal into place and empties it. The caller holds what files being made share, and the epoch, alone.
    pub(super) fn bring_into_place(self: &Arc<Self>, crypto: &mut impl Crypto) -> Result<(), Error> {
        let durable = self.journal.sync_all(crypto)?;
        let (bodies, mut lost) = (self.bodies(), Vec::new());
        for body in &bodies {
            let content = Content { shared: self.clone(), body: body.clone() };
            let mut state = body.state_mut();
            if state.ledger.is_in_doubt() && !state.file.is_removed() {
                // What is lost was never acknowledged, and it must not keep what was from its place.
                let chunks = with_scratch(|scratch| content.write_again(&state, scratch, crypto))?;
                lost.extend(chunks.map(|chunks| (body.clone(), chunks)));
            }
            if state.ledger.is_replaced() {
                let steps = state.ledger.placing(&durable);
                self.place(&state.file, &state.sealer.key, &steps, &durable, crypto)?;
                state.ledger.placed();
            }
        }
        if let Err(error) = self.store.sync_all() {
            return Err(self.doubt(error));
        }
        self.forgot.store(false, Ordering::SeqCst);
        if let Err(error) = self.journal.reset(&read(&self.unclean), crypto) {
            self.forgot.store(true, Ordering::SeqCst);
            return Err(error);
        }
        for body in &bodies {
            let mut state = body.state_mut();
            state.ledger.begin_epoch();
            state.known_id = state.sealer.id;
        }
        self.journal.shrink();
        *lock(&self.files) = Files::default();
        let pinned = std::mem::take(&mut write(&self.kept).pinned);
        drop(pinned);
        self.give_up(lost);
        Ok(())
    }

    /// Remembers chunks that are lost, and says so: no sync of such a file acknowledges them.
    fn give_up(&self, bodies: Vec<Lost<S>>) {
        let mut kept = std::mem::take(&mut write(&self.kept).lost);
        for (body, (first, last)) in bodies {
            body.state_mut().ledger.lose((first, last));
            let path = body.place.shown();
            let why = "the disk refused them, and memory has them no longer";
            lock(&self.lines).push(format!("{path}: lost of chunks {first} to {last}: {why}"));
            kept.insert(body.place.inode, body);
        }
        kept.retain(|_, body| body.state().ledger.lost().is_some() && !body.is_removed());
        write(&self.kept).lost = kept;
    }

    /// A sync of everything failed: of no file is it known whether what was written is durable, and a next sync would not
    /// say.
    fn doubt(self: &Arc<Self>, error: std::io::Error) -> Error {
        self.journal.doubt();
        for body in self.bodies() {
            let content = Content { shared: self.clone(), body };
            let mut state = content.state_mut();
            if state.ledger.wrote() {
                content.in_doubt(&mut state);
            }
        }
        Error::io("syncing the volume", error)
    }

    /// Forgets what is kept of a file whose last name is gone and that no opener has: its room is free at once.
    pub(super) fn forget_if_removed(&self, body: &Arc<Body<S::File>>) {
        let inode = body.place.inode;
        if read(&self.kept).get(inode).is_none() || !body.is_removed() {
            return;
        }
        // No opener comes meanwhile.
        let open = write(&self.open);
        if open.get(&inode).is_none_or(|content| content.strong_count() == 0) {
            let state = body.state();
            if state.ledger.is_replaced() {
                lock(&self.files).forgotten.insert((state.known_id, inode));
            }
            drop(state);
            let forgotten = write(&self.kept).forget(inode);
            drop(open);
            drop(forgotten);
        }
    }

    /// Comes before anything is written. If no caller asks for checkpoints, writers do, long after they are wanted.
    pub(super) fn relieve(self: &Arc<Self>, crypto: &mut impl Crypto) -> Result<(), Error> {
        self.may_write()?;
        let pinned = read(&self.kept).pinned.len();
        if self.journal.used() > JOURNAL_MOST || pinned > PINNED_MOST || self.journal.needs_reset() {
            self.checkpoint(crypto)
        } else {
            Ok(())
        }
    }

    /// Does what takes room. Where there is none it is done again, once, behind a checkpoint: on a small disk the journal
    /// may hold what is missing.
    pub(super) fn in_room<T, C: Crypto>(
        self: &Arc<Self>,
        crypto: &mut C,
        mut work: impl FnMut(&mut C) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.relieve(crypto)?;
        match work(crypto) {
            Err(error) if is_full(&error) && self.journal.used() > 0 && self.checkpoint(crypto).is_ok() => {
                work(crypto)
            }
            done => done,
        }
    }
}

/// Whether there was no room.
fn is_full(error: &Error) -> bool {
    [rustix::io::Errno::NOSPC, rustix::io::Errno::DQUOT]
        .map(|full| full.raw_os_error())
        .contains(&error.errno())
}
