//! Writing and cutting.

use wattlock_core::sync::{lock, read};
use wattlock_door::Crypto;

use super::overlay::{Piece, runs};
use super::slots;
use super::state::{Cut, Draft, Scratch, State, with_scratch};
use super::{BATCH, Content, SMALL_GROWTH};
use crate::Error;
use crate::format::{HOLE_LEN, OVERHEAD, SlotKind};
use crate::journal::{Op, Ops, RECORD_HEAD};
use crate::store::{File, Store};

impl<S: Store> Content<S> {
    /// Writes all of `from` at `at`. What lies between the end and `at` becomes a hole.
    ///
    /// # Errors
    /// [`Error::Io`] with `ENOSPC` or `EFBIG`: the old content is intact.
    pub fn write(&self, from: &[u8], at: u64, crypto: &mut impl Crypto) -> Result<(), Error> {
        self.shared.in_room(crypto, |crypto| {
            let _epoch = read(&self.shared.epoch);
            self.write_at(&mut self.state_mut(), from, at, crypto)
        })
    }

    /// Writes all of `from` at the end, wherever that is now, and returns where that was.
    ///
    /// # Errors
    /// As [`Content::write`].
    pub fn append(&self, from: &[u8], crypto: &mut impl Crypto) -> Result<u64, Error> {
        let mut tried = None;
        self.shared.in_room(crypto, |crypto| {
            let _epoch = read(&self.shared.epoch);
            let mut state = self.state_mut();
            let at = state.len;
            // A part of it is there, or another file's: behind that it would be another content.
            if tried.replace(at).is_some_and(|before| before != at) {
                return Err(Error::io("writing a file", rustix::io::Errno::NOSPC));
            }
            self.write_at(&mut state, from, at, crypto)?;
            Ok(at)
        })
    }

    pub(super) fn write_at(
        &self,
        state: &mut State<S::File>,
        from: &[u8],
        at: u64,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        if from.is_empty() {
            return Ok(());
        }
        let end = at.checked_add(from.len() as u64);
        if end.is_none_or(|end| end > self.geometry().max_len()) {
            return Err(Error::io("writing a file", rustix::io::Errno::FBIG));
        }
        with_scratch(|scratch| {
            if at > state.len {
                self.extend(state, at, scratch, crypto)?;
            }
            let (chunk, mut done) = (self.geometry().chunk(), 0);
            while done < from.len() {
                let start = at + done as u64;
                let end = (start / chunk * chunk + BATCH + chunk).min(at + from.len() as u64);
                let piece = (end - start) as usize;
                self.write_batch(state, &from[done..done + piece], start, scratch, crypto)?;
                done += piece;
            }
            Ok(())
        })
    }

    /// Writes at most one batch that begins at or before the end.
    pub(super) fn write_batch(
        &self,
        state: &mut State<S::File>,
        from: &[u8],
        at: u64,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let geometry = self.geometry();
        let chunk = geometry.chunk();
        let end = at + from.len() as u64;
        let (first, last) = (at / chunk, (end - 1) / chunk);
        let len = state.len.max(end);
        scratch.wipe();
        // The old content of a first or last chunk that is overwritten in part.
        let (skip, ends) = ((at - first * chunk) as usize, (end - last * chunk) as usize);
        let first_len = geometry.within(first, len);
        let mut taken = 0;
        if skip > 0 || (first == last && ends < first_len) {
            let mut head = std::mem::take(&mut scratch.head);
            let result = self.read_chunk(state, first, &mut head, scratch, crypto);
            head.resize(first_len, 0);
            scratch.head = head;
            result?;
            taken = from.len().min(first_len - skip);
            scratch.head[skip..skip + taken].copy_from_slice(&from[..taken]);
        }
        let mut kept = from.len();
        if last > first && ends < geometry.within(last, len) {
            let mut tail = std::mem::take(&mut scratch.tail);
            let result = self.read_chunk(state, last, &mut tail, scratch, crypto);
            scratch.tail = tail;
            result?;
            kept -= ends;
            scratch.tail[..ends].copy_from_slice(&from[kept..]);
        }
        // A write that ends with a full chunk at the end of the content is followed by the empty last slot.
        let until = if len == end { geometry.tail(len) } else { last };
        let bytes = (geometry.slot_at(until) - geometry.slot_at(first)) as usize
            + geometry.within(until, len)
            + OVERHEAD;
        // What is left of runs of holes that this cuts in two.
        let mut rest = Vec::new();
        if state.sparse {
            let tail = geometry.tail(state.len);
            if first < tail
                && let Some((start, end)) = self.run_at(state, first, crypto)?
            {
                rest.extend(runs(start, first));
                rest.extend(runs(until + 1, end));
            }
            if last > first
                && last < tail
                && let Some((start, end)) = self.run_at(state, last, crypto)?
                && start > first
            {
                rest.extend(runs(until + 1, end));
            }
        }
        scratch.room(bytes);
        {
            let Scratch { slots, head, tail, .. } = scratch;
            let pieces = [&head[..], &from[taken..kept], &tail[..]];
            let to = &mut slots[..bytes];
            slots::seal_pieces(&self.key, &mut state.writer, geometry, first, &pieces, to, crypto)?;
        }
        self.store(state, (first, until), bytes, &rest, len, scratch, crypto)
    }

    /// Stores sealed slots `first` to `until`, in place or in the journal, with hole records for what is left of runs.
    /// The content has `len` bytes then. On an error nothing has changed.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn store(
        &self,
        state: &mut State<S::File>,
        (first, until): (u64, u64),
        bytes: usize,
        rest: &[(u64, u8)],
        len: u64,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let (geometry, stride) = (self.geometry(), self.geometry().stride());
        let fresh = state.reserved && state.committed == 0;
        let small = len > state.len && !fresh && !state.wrote && state.grown + bytes as u64 <= SMALL_GROWTH;
        let border = if small || !rest.is_empty() {
            until + 1
        } else {
            // A slot within a run of holes counts, too: what it replaced may have been acknowledged.
            state.floor.clamp(first, until + 1).max(state.overlay.replaced_until(until))
        };
        let journaled = ((border - first) as usize * stride as usize).min(bytes);
        let mut undo = None;
        if border <= until {
            self.make_known(state, scratch, crypto)?;
            let at = geometry.slot_at(border);
            let old = state.physical;
            let overwritten = old.saturating_sub(at).min((bytes - journaled) as u64) as usize;
            scratch.old.resize(overwritten, 0);
            let failed = |error| Error::io("writing a file", error);
            let got = state.file.read_at(&mut scratch.old, at).map_err(failed)?;
            scratch.old.truncate(got);
            undo = Some((at, old));
            if let Err(error) = state.file.write_at(&scratch.slots[journaled..bytes], at) {
                self.take_back(state, undo, scratch);
                return Err(failed(error));
            }
        }
        if journaled > 0 {
            let mut record = std::mem::take(&mut scratch.record);
            let result = self.store_in_journal(
                state,
                (first, border),
                &scratch.slots[..journaled],
                rest,
                &mut record,
                crypto,
            );
            scratch.record = record;
            if let Err(error) = result {
                self.take_back(state, undo, scratch);
                return Err(error);
            }
            if len > state.len {
                state.grown += bytes as u64;
            }
        }
        if undo.is_some() {
            state.wrote = true;
            state.physical = state.physical.max(geometry.slot_at(first) + bytes as u64);
        }
        state.len = len;
        Ok(())
    }

    /// Puts back what was overwritten in place.
    pub(super) fn take_back(&self, state: &State<S::File>, undo: Option<(u64, u64)>, scratch: &Scratch) {
        if let Some((at, physical)) = undo {
            // These bytes had room a moment ago. If even that fails the file is not what it was, and its tags say so.
            _ = state.file.set_len(physical);
            _ = state.file.write_at(&scratch.old, at);
        }
    }

    pub(super) fn store_in_journal(
        &self,
        state: &mut State<S::File>,
        (first, border): (u64, u64),
        slots: &[u8],
        rest: &[(u64, u8)],
        record: &mut Vec<u8>,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let stride = self.geometry().stride();
        let mut draft = self.draft(state, record);
        let count = (border - first) as u32;
        let last_len = (slots.len() as u64 - u64::from(count - 1) * stride) as u32;
        draft.ops.push(&Op::Put { number: draft.number, first, count, last_len });
        record.extend_from_slice(slots);
        self.draft_holes(state, &mut draft, rest, record, crypto)?;
        let blob = self.log(state, &draft, record, crypto)?;
        for index in first..border {
            let off = (index - first) * stride;
            let len = if index + 1 == border { last_len } else { stride as u32 };
            state.overlay.insert(index, Piece { at: blob + off, len, level: None });
        }
        self.enter_holes(state, rest, blob + slots.len() as u64);
        Ok(())
    }

    /// Begins a record about this file.
    pub(super) fn draft(&self, state: &State<S::File>, record: &mut Vec<u8>) -> Draft {
        record.clear();
        record.resize(RECORD_HEAD, 0);
        let mut ops = Ops::default();
        let number = state.number.unwrap_or_else(|| {
            let mut files = lock(&self.shared.files);
            files.numbers += 1;
            let (number, place) = (files.numbers, self.place.clone());
            ops.push(&Op::File { number, id: state.id, place, committed: state.committed });
            number
        });
        Draft { ops, number }
    }

    /// Seals hole records into a record for the journal.
    pub(super) fn draft_holes(
        &self,
        state: &mut State<S::File>,
        draft: &mut Draft,
        runs: &[(u64, u8)],
        record: &mut Vec<u8>,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        for (first, level) in runs.iter().copied() {
            draft.ops.push(&Op::Hole { number: draft.number, first, level });
            record.extend(slots::seal_hole(&self.key, &mut state.writer, (first, level), crypto)?);
        }
        Ok(())
    }

    /// The same records are in the journal now, from `at` on.
    pub(super) fn enter_holes(&self, state: &mut State<S::File>, runs: &[(u64, u8)], at: u64) {
        for ((first, level), at) in runs.iter().zip((at..).step_by(HOLE_LEN)) {
            state.overlay.insert(*first, Piece { at, len: HOLE_LEN as u32, level: Some(*level) });
        }
    }

    /// Appends a record about this file; returns where its blob is.
    pub(super) fn log(
        &self,
        state: &mut State<S::File>,
        draft: &Draft,
        record: &mut Vec<u8>,
        crypto: &mut impl Crypto,
    ) -> Result<u64, Error> {
        let bytes = record.len() - RECORD_HEAD;
        let (number, blob) = self.shared.journal.append(record, &draft.ops, crypto)?;
        state.touched = number;
        if state.number.is_none() {
            state.number = Some(draft.number);
            state.known = number;
            lock(&self.shared.files).known.insert(state.id, (draft.number, state.committed));
        }
        if bytes > 0
            && state.overlay.is_empty()
            && state.header.is_none()
            && let Some(this) = self.this.upgrade()
        {
            lock(&self.shared.pinned).push(this);
        }
        Ok(blob)
    }

    /// Makes sure that the journal durably knows how much is committed, and that nothing is behind which was cut and is older
    /// than the last sync. After that, what is behind may be written in place.
    pub(super) fn make_known(
        &self,
        state: &mut State<S::File>,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        self.shared.journal.usable()?;
        self.make_end_known(state, scratch, crypto)?;
        if state.cut == Cut::Durable {
            return Ok(());
        }
        let failed = |error| Error::io("cutting a file", error);
        let end = self.geometry().stored_len(state.len);
        if state.physical > end {
            // The cut failed when it was half done.
            self.shared.journal.sync(state.touched, crypto)?;
            state.file.set_len(end).map_err(failed)?;
            state.physical = end;
        }
        if state.cut == Cut::Outdated {
            if let Err(error) = state.file.sync() {
                self.in_doubt(state);
                return Err(failed(error));
            }
            state.cut = Cut::Durable;
        }
        Ok(())
    }

    pub(super) fn make_end_known(
        &self,
        state: &mut State<S::File>,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        if state.reserved && state.committed == 0 {
            return Ok(());
        }
        if state.number.is_none() {
            let draft = self.draft(state, &mut scratch.record);
            self.log(state, &draft, &mut scratch.record, crypto)?;
        }
        if state.known == u64::MAX {
            self.shared.journal.sync_all(crypto)?;
            state.known = 0;
        }
        self.shared.journal.sync(state.known, crypto)
    }

    /// Cuts the content, or extends it with a hole.
    ///
    /// # Errors
    /// As [`Content::write`].
    pub fn set_len(&self, len: u64, crypto: &mut impl Crypto) -> Result<(), Error> {
        if len > self.geometry().max_len() {
            return Err(Error::io("extending a file", rustix::io::Errno::FBIG));
        }
        self.resize(len, true, crypto)
    }

    /// Extends the content with a hole to `len` bytes. One that is longer, by now, stays as it is.
    ///
    /// # Errors
    /// As [`Content::write`].
    pub fn grow(&self, len: u64, crypto: &mut impl Crypto) -> Result<(), Error> {
        if len > self.geometry().max_len() {
            return Err(Error::io("extending a file", rustix::io::Errno::FBIG));
        }
        self.resize(len, false, crypto)
    }

    pub(super) fn resize(&self, len: u64, may_cut: bool, crypto: &mut impl Crypto) -> Result<(), Error> {
        self.shared.in_room(crypto, |crypto| {
            let _epoch = read(&self.shared.epoch);
            let mut state = self.state_mut();
            with_scratch(|scratch| {
                if len > state.len {
                    self.extend(&mut state, len, scratch, crypto)
                } else if may_cut && len < state.len {
                    self.cut(&mut state, len, scratch, crypto)
                } else {
                    Ok(())
                }
            })
        })
    }

    pub(super) fn cut(
        &self,
        state: &mut State<S::File>,
        len: u64,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let geometry = self.geometry();
        let index = geometry.tail(len);
        // The new last chunk.
        let mut head = std::mem::take(&mut scratch.head);
        let result = match geometry.within(index, len) {
            0 => Ok(()),
            _ => self.read_chunk(state, index, &mut head, scratch, crypto),
        };
        head.truncate(geometry.within(index, len));
        scratch.head = head;
        result?;
        // A run of holes that begins before and goes on behind the cut.
        let mut rest = Vec::new();
        if state.sparse
            && index < geometry.tail(state.len)
            && let Some((start, _)) = self.run_at(state, index, crypto)?
        {
            rest = runs(start, index);
        }
        let bytes = scratch.head.len() + OVERHEAD;
        scratch.room(bytes);
        {
            let Scratch { slots, head, .. } = scratch;
            let to = &mut slots[..bytes];
            slots::seal_one(&self.key, &mut state.writer, (index, SlotKind::Data), head, to, crypto)?;
        }
        let failed = |error| Error::io("cutting a file", error);
        let committed = state.floor > index || state.overlay.last().is_some_and(|last| last >= index);
        if !committed && rest.is_empty() {
            self.make_known(state, scratch, crypto)?;
            // Bytes that are there already: this finds room.
            state.file.write_at(&scratch.slots[..bytes], geometry.slot_at(index)).map_err(failed)?;
            state.file.set_len(geometry.stored_len(len)).map_err(failed)?;
            state.wrote = true;
        } else {
            let mut record = std::mem::take(&mut scratch.record);
            let replaced = state.overlay.replaced_until(geometry.tail(state.len)) > index;
            let result = (|| {
                let mut draft = self.draft(state, &mut record);
                let number = draft.number;
                draft.ops.push(&Op::Cut { number, len });
                draft.ops.push(&Op::Put { number, first: index, count: 1, last_len: bytes as u32 });
                record.extend_from_slice(&scratch.slots[..bytes]);
                self.draft_holes(state, &mut draft, &rest, &mut record, crypto)?;
                let blob = self.log(state, &draft, &mut record, crypto)?;
                state.overlay.cut(index);
                state.overlay.insert(index, Piece { at: blob, len: bytes as u32, level: None });
                self.enter_holes(state, &rest, blob + bytes as u64);
                Ok::<_, Error>(())
            })();
            scratch.record = record;
            result?;
            state.committed = state.committed.min(len);
            state.floor = state.floor.min(index + 1);
            state.known = state.touched;
            if let Some((_, committed)) = lock(&self.shared.files).known.get_mut(&state.id) {
                *committed = state.committed;
            }
            // Committed bytes go only after the journal knows that they may.
            state.len = len;
            state.cuts += 1;
            if replaced {
                state.cut = Cut::Outdated;
            } else if state.cut == Cut::Durable {
                state.cut = Cut::Fresh;
            }
            self.shared.journal.sync(state.touched, crypto)?;
            let keep = geometry.slot_at(index).min(state.physical);
            state.file.set_len(keep).map_err(failed)?;
            state.physical = keep;
            return Ok(());
        }
        state.physical = geometry.stored_len(len);
        state.len = len;
        state.cuts += 1;
        Ok(())
    }
}
