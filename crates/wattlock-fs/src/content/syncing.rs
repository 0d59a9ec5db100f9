//! Syncing, and what is done about a disk that refused.

use wattlock_core::sync::{lock, read};
use wattlock_door::Crypto;
use zeroize::Zeroize;

use super::ledger::{Request, Step, Until};
use super::slots;
use super::state::{Scratch, Sealer, State, with_scratch};
use super::{BATCH, Content, EIO};
use crate::Error;
use crate::format::{OVERHEAD, SPARSE};
use crate::store::{File, Store};

impl<S: Store> Content<S> {
    /// What was written in place since the last good sync may be in memory only.
    pub(super) fn in_doubt(&self, state: &mut State<S::File>) {
        if state.ledger.in_doubt() {
            // It is not forgotten before it is written again.
            self.pin();
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
        if state.ledger.needs_header() {
            let flags = if state.ledger.is_sparse() { SPARSE } else { 0 };
            let Sealer { id, key, .. } = &state.sealer;
            let header = self.shared.seal_header(*id, flags, &key.secret(), crypto)?;
            let failed = |error| Error::io("writing a file again", error);
            state.file.write_at(&header.encode(), 0).map_err(failed)?;
        }
        let (mut index, tail) = (state.ledger.behind_committed(), geometry.tail(state.ledger.len()));
        // Slots below `single` go one by one.
        let (mut lost, mut single) = (None, 0);
        while index <= tail {
            if let Some((start, piece)) = state.ledger.overlay().covering(index) {
                index = start + piece.level.map_or(1, |level| 1 << level);
                continue;
            }
            let next = state.ledger.overlay().range(index, tail).next().map_or(tail + 1, |(next, _)| next);
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
        let opened = slots::open(
            &state.sealer.key,
            geometry,
            first,
            &mut scratch.slots[..stored],
            &mut pieces,
            crypto,
        );
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
        let Some((first, last)) = state.ledger.lost() else { return Ok(()) };
        let (mut plain, tail) = (Vec::new(), self.geometry().tail(state.ledger.len()));
        let whole = with_scratch(|scratch| {
            (first..=last.min(tail))
                .try_for_each(|index| self.read_chunk(state, index, &mut plain, scratch, crypto))
        });
        plain.zeroize();
        whole?;
        state.ledger.found_again();
        Ok(())
    }

    /// Makes everything written so far survive a power cut.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sync(&self, crypto: &mut impl Crypto) -> Result<(), Error> {
        if self.shared.read_only {
            return Ok(());
        }
        // Saying up to where it is durable takes a record.
        self.shared.in_room(crypto, |crypto| self.sync_once(crypto))
    }

    fn sync_once<C: Crypto>(&self, crypto: &mut C) -> Result<(), Error> {
        let _epoch = read(&self.shared.epoch);
        let _syncing = lock(&self.body.syncing);
        let (file, steps) = {
            let mut state = self.state_mut();
            if state.ledger.is_in_doubt()
                && let Some((first, _)) = with_scratch(|scratch| self.write_again(&state, scratch, crypto))?
            {
                return Err(Error::Damaged(format!("chunk {first}")));
            }
            self.refuse_lost(&mut state, crypto)?;
            (state.file.clone(), state.ledger.plan(&Request::Sync))
        };
        let synced = self.sync_beside_writers(&file, &steps, crypto).and_then(|()| {
            let mut state = self.state_mut();
            if state.ledger.was_doubted() {
                return Err(Error::io("syncing a file", rustix::io::Errno::IO));
            }
            with_scratch(|scratch| self.carry_out(&mut state, &Request::Commit, scratch, crypto))
        });
        self.state_mut().ledger.sync_ended(synced.is_ok());
        synced
    }

    /// The steps of a sync, which block: nobody waits for them to read or write.
    fn sync_beside_writers(
        &self,
        file: &S::File,
        steps: &[Step],
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        for step in steps {
            match step {
                Step::SyncJournal(Until::Record(record)) => _ = self.shared.journal.sync(*record, crypto)?,
                Step::SyncFile => {
                    if let Err(error) = file.sync() {
                        self.in_doubt(&mut self.state_mut());
                        return Err(Error::io("syncing a file", error));
                    }
                }
                // Of a file's own state only its lock decides.
                Step::SyncJournal(_)
                | Step::Log(_)
                | Step::Write(_)
                | Step::Begin
                | Step::Resize(_)
                | Step::Room(_) => {
                    return Err(Error::io("syncing a file", rustix::io::Errno::INVAL));
                }
            }
        }
        Ok(())
    }
}
