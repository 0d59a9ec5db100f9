//! An epoch of the journal: ranges of ids for new files, the checkpoint that ends it, and what a disk refused meanwhile.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use wattlock_core::sync::{lock, read, write};
use wattlock_door::Crypto;

use super::overlay::Overlay;
use super::slots;
use super::state::{Cut, with_scratch};
use super::{BATCH, Content, Files, JOURNAL_MOST, Lost, PINNED_MOST, RANGE, Shared};
use crate::Error;
use crate::format::HEADER_LEN;
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

    /// Writes the journal's slots of one file into place.
    pub(super) fn settle(
        &self,
        file: &S::File,
        overlay: &Overlay,
        header: Option<u64>,
        len: u64,
    ) -> Result<(), Error> {
        let failed = |error| Error::io("bringing the journal into place", error);
        let geometry = self.geometry;
        let times = file.times().map_err(failed)?;
        let mut buffer = Vec::new();
        let mut entries = overlay.iter().peekable();
        while let Some((index, piece)) = entries.next() {
            let at = geometry.slot_at(index);
            if let Some(level) = piece.level {
                let slots = 1_u64 << level;
                file.punch(at, slots.saturating_mul(geometry.stride())).map_err(failed)?;
            }
            let mut bytes = u64::from(piece.len);
            // Slots that are neighbours in both places go together.
            let mut next = index + 1;
            while piece.level.is_none() && bytes < BATCH && bytes == (next - index) * geometry.stride() {
                match entries.peek() {
                    Some((there, more))
                        if *there == next && more.level.is_none() && more.at == piece.at + bytes =>
                    {
                        bytes += u64::from(more.len);
                        next += 1;
                        entries.next();
                    }
                    _ => break,
                }
            }
            buffer.resize(bytes as usize, 0);
            self.journal.read(&mut buffer, piece.at)?;
            file.write_at(&buffer, at).map_err(failed)?;
        }
        if let Some(at) = header {
            buffer.resize(HEADER_LEN, 0);
            self.journal.read(&mut buffer, at)?;
            file.write_at(&buffer, 0).map_err(failed)?;
        }
        let stored = geometry.stored_len(len);
        if file.len().map_err(failed)? != stored {
            file.set_len(stored).map_err(failed)?;
        }
        if let Some(times) = times {
            // Another user's file: its content counts more than its time.
            _ = file.set_times(&times);
        }
        Ok(())
    }

    pub(super) fn checkpoint(&self, crypto: &mut impl Crypto) -> Result<(), Error> {
        let pinned = !lock(&self.pinned).is_empty();
        if self.journal.used() == 0 && !pinned && !self.forgot.load(Ordering::SeqCst) {
            return Ok(());
        }
        // Most of what is to be synced is synced before anybody has to wait.
        if let Err(error) = self.store.sync_all() {
            return Err(self.doubt(error));
        }
        let _creating = write(&self.creating);
        let _epoch = write(&self.epoch);
        self.bring_into_place(crypto)
    }

    /// Brings the journal into place and empties it. The caller holds what files being made share, and the epoch, alone.
    pub(super) fn bring_into_place(&self, crypto: &mut impl Crypto) -> Result<(), Error> {
        self.journal.sync_all(crypto)?;
        let open: Vec<Arc<Content<S>>> = read(&self.open).values().filter_map(Weak::upgrade).collect();
        let mut lost = Vec::new();
        for content in &open {
            let mut state = content.state_mut();
            if state.doubt && !state.file.is_removed() {
                // What is lost was never acknowledged, and it must not keep what was from its place.
                let chunks = with_scratch(|scratch| content.write_again(&state, scratch, crypto))?;
                lost.extend(chunks.map(|chunks| (content.clone(), chunks)));
            }
            if state.overlay.is_empty() && state.header.is_none() {
                continue;
            }
            let stored = self.geometry.stored_len(state.len);
            // If it fails half-way the backing file may be as long as that.
            state.physical = state.physical.max(stored);
            self.settle(&state.file, &state.overlay, state.header, state.len)?;
            state.physical = stored;
        }
        if let Err(error) = self.store.sync_all() {
            return Err(self.doubt(error));
        }
        self.forgot.store(false, Ordering::SeqCst);
        if let Err(error) = self.journal.reset(&read(&self.unclean), crypto) {
            self.forgot.store(true, Ordering::SeqCst);
            return Err(error);
        }
        for content in &open {
            let mut state = content.state_mut();
            state.overlay.clear();
            state.header = None;
            state.committed = state.len;
            state.floor = self.slots(state.len);
            (state.number, state.known, state.touched) = (None, 0, 0);
            // `wrote` stays: a write that failed in the background is told to the next sync of that file.
            (state.reserved, state.grown, state.doubt) = (false, 0, false);
            state.cut = Cut::Durable;
        }
        self.journal.shrink();
        {
            let mut files = lock(&self.files);
            *files = Files::default();
        }
        let pinned = std::mem::take(&mut *lock(&self.pinned));
        drop(pinned);
        self.give_up(lost);
        Ok(())
    }

    /// Remembers chunks that are lost, and says so: no sync of such a file acknowledges them.
    pub(super) fn give_up(&self, contents: Vec<Lost<S>>) {
        for (content, chunks) in &contents {
            let mut state = content.state_mut();
            let earlier = state.lost.unwrap_or(*chunks);
            state.lost = Some((earlier.0.min(chunks.0), earlier.1.max(chunks.1)));
            drop(state);
            let path = String::from_utf8_lossy(&content.place.path);
            let (first, last) = chunks;
            let why = "the disk refused them, and memory has them no longer";
            lock(&self.lines).push(format!("{path}: lost of chunks {first} to {last}: {why}"));
        }
        let mut kept = std::mem::take(&mut *lock(&self.lost));
        kept.extend(contents.into_iter().map(|(content, _)| content));
        let (kept, dropped): (Vec<_>, Vec<_>) = kept.into_iter().partition(|content| {
            let state = content.state();
            state.lost.is_some() && !state.file.is_removed()
        });
        *lock(&self.lost) = kept;
        drop(dropped);
    }

    /// A sync of everything failed: of no file is it known whether what was written is durable, and a next sync would not
    /// say.
    pub(super) fn doubt(&self, error: std::io::Error) -> Error {
        self.journal.doubt();
        let open: Vec<Arc<Content<S>>> = read(&self.open).values().filter_map(Weak::upgrade).collect();
        for content in &open {
            let mut state = content.state_mut();
            if state.wrote {
                content.in_doubt(&mut state);
            }
        }
        Error::io("syncing the volume", error)
    }

    /// If no caller asks for checkpoints, writers do, long after they are wanted.
    pub(super) fn relieve(&self, crypto: &mut impl Crypto) -> Result<(), Error> {
        let pinned = lock(&self.pinned).len();
        if self.journal.used() > JOURNAL_MOST || pinned > PINNED_MOST || self.journal.needs_reset() {
            self.checkpoint(crypto)
        } else {
            Ok(())
        }
    }

    /// Does what takes room. Where there is none it is done again, once, behind a checkpoint: on a small disk the journal
    /// may hold what is missing.
    pub(super) fn in_room<T, C: Crypto>(
        &self,
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
