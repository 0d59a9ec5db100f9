//! Syncing, and what is done about a disk that refused.

use wattlock_core::sync::{lock, read};
use wattlock_door::Crypto;
use zeroize::Zeroize;

use super::slots;
use super::state::{Cut, Mark, Scratch, State, with_scratch};
use super::{BATCH, Content, EIO};
use crate::Error;
use crate::format::{OVERHEAD, SPARSE};
use crate::journal::Op;
use crate::store::{File, Store};

impl<S: Store> Content<S> {
    /// What was written in place since the last good sync may be in memory only.
    pub(super) fn in_doubt(&self, state: &mut State<S::File>) {
        state.wrote = true;
        if !std::mem::replace(&mut state.doubt, true)
            && let Some(this) = self.this.upgrade()
        {
            // It is not forgotten before it is written again.
            lock(&self.shared.pinned).push(this);
        }
    }

    /// Writes what is behind the committed end once more, as far as memory has it as it was written. Returns the first
    /// and the last chunk that it has not.
    pub(super) fn write_again(
        &self,
        state: &State<S::File>,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<Option<(u64, u64)>, Error> {
        let geometry = self.geometry();
        if state.committed == 0 && state.header.is_none() {
            let flags = if state.sparse { SPARSE } else { 0 };
            let header = self.shared.seal_header(state.id, flags, &self.key.secret(), crypto)?;
            let failed = |error| Error::io("writing a file again", error);
            state.file.write_at(&header.encode(), 0).map_err(failed)?;
        }
        let (mut index, tail) = (self.shared.slots(state.committed), geometry.tail(state.len));
        // Slots below `single` go one by one.
        let (mut lost, mut single) = (None, 0);
        while index <= tail {
            if let Some((start, piece)) = state.overlay.covering(index) {
                index = start + piece.level.map_or(1, |level| 1 << level);
                continue;
            }
            let next = state.overlay.range(index, tail).next().map_or(tail + 1, |(next, _)| next);
            let most = if index < single { index } else { index + BATCH / geometry.chunk() };
            let last = (next - 1).min(most);
            match self.write_slots_again(state, index, last, scratch, crypto) {
                Ok(()) => index = last + 1,
                // Neither memory nor the disk has it.
                Err(Error::Damaged(_)) if last > index => single = last + 1,
                Err(Error::Damaged(_)) => {
                    lost = Some((lost.map_or(index, |(first, _)| first), index));
                    index += 1;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(lost)
    }

    /// Writes slots that open once more.
    ///
    /// # Errors
    /// [`Error::Damaged`] where they do not open, or the disk does not give or take them.
    pub(super) fn write_slots_again(
        &self,
        state: &State<S::File>,
        first: u64,
        last: u64,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let (geometry, stride) = (self.geometry(), self.geometry().stride() as usize);
        let lost = |error: Error| match error.errno() {
            EIO if matches!(error, Error::Io { .. }) => Error::Damaged(format!("chunk {first}")),
            _ => error,
        };
        let stored = self.fetch(state, first, last, scratch).map_err(lost)?;
        scratch.old.clear();
        scratch.old.extend_from_slice(&scratch.slots[..stored]);
        let mut plain = std::mem::take(&mut scratch.head);
        plain.resize(stored - (stored.div_ceil(stride)) * OVERHEAD, 0);
        let mut pieces: [&mut [u8]; 3] = [&mut plain[..], &mut [], &mut []];
        let opened =
            slots::open(&self.key, geometry, first, &mut scratch.slots[..stored], &mut pieces, crypto);
        scratch.head = plain;
        opened?;
        let written = state.file.write_at(&scratch.old, geometry.slot_at(first));
        written.map_err(|error| lost(Error::io("writing a file again", error)))
    }

    /// Fails as long as the content has chunks that a checkpoint could not bring back. Other ones may have taken their
    /// place, or the content may have been cut in front of them.
    pub(super) fn refuse_lost(
        &self,
        state: &mut State<S::File>,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let Some((first, last)) = state.lost else { return Ok(()) };
        let (mut plain, tail) = (Vec::new(), self.geometry().tail(state.len));
        let whole = with_scratch(|scratch| {
            (first..=last.min(tail))
                .try_for_each(|index| self.read_chunk(state, index, &mut plain, scratch, crypto))
        });
        plain.zeroize();
        whole?;
        state.lost = None;
        Ok(())
    }

    /// Makes everything written so far survive a power cut.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sync(&self, crypto: &mut impl Crypto) -> Result<(), Error> {
        let _epoch = read(&self.shared.epoch);
        let _syncing = lock(&self.syncing);
        let (file, wrote, mark) = {
            let mut state = self.state_mut();
            if state.doubt
                && let Some((first, _)) = with_scratch(|scratch| self.write_again(&state, scratch, crypto))?
            {
                return Err(Error::Damaged(format!("chunk {first}")));
            }
            self.refuse_lost(&mut state, crypto)?;
            let wrote = std::mem::take(&mut state.wrote);
            if wrote {
                // What is about to be committed is not overwritten from here on.
                state.floor = state.floor.max(self.shared.slots(state.len));
            }
            state.grown = 0;
            if state.cut == Cut::Fresh {
                state.cut = Cut::Outdated;
            }
            let mark = Mark { len: state.len, touched: state.touched, cuts: state.cuts };
            (state.file.clone(), wrote, mark)
        };
        if wrote && let Err(error) = file.sync() {
            self.in_doubt(&mut self.state_mut());
            return Err(Error::io("syncing a file", error));
        }
        let committed = self.commit(wrote, &mark, crypto);
        if wrote && committed.is_err() {
            // It is not forgotten that the end is still to be committed.
            self.state_mut().wrote = true;
        }
        committed
    }

    /// Makes the journal durable, and lets it say up to where the file is, if that was synced.
    pub(super) fn commit(&self, wrote: bool, mark: &Mark, crypto: &mut impl Crypto) -> Result<(), Error> {
        self.shared.journal.sync(mark.touched, crypto)?;
        if !wrote {
            return Ok(());
        }
        let mut state = self.state_mut();
        state.doubt = false;
        if state.cuts != mark.cuts {
            // What was cut and grew again meanwhile may rest on records that are not durable yet.
            let touched = state.touched;
            drop(state);
            return self.shared.journal.sync(touched, crypto);
        }
        if state.physical <= self.geometry().stored_len(state.len) {
            state.cut = Cut::Durable;
        }
        if mark.len <= state.committed {
            return Ok(());
        }
        with_scratch(|scratch| {
            let mut draft = self.draft(&state, &mut scratch.record);
            draft.ops.push(&Op::Commit { number: draft.number, len: mark.len });
            self.log(&mut state, &draft, &mut scratch.record, crypto)
        })?;
        state.committed = mark.len;
        state.known = state.touched;
        if let Some((_, committed)) = lock(&self.shared.files).known.get_mut(&state.id) {
            *committed = mark.len;
        }
        // The file is durable, and its tags say up to where: the record need not be, before the file grows. If it has
        // grown meanwhile, its length says nothing any longer of where a last short slot ended.
        match state.wrote {
            true => self.shared.journal.sync(state.known, crypto),
            false => Ok(()),
        }
    }
}
