//! Holes.

use wattlock_core::sync::read;
use wattlock_door::Crypto;

use super::overlay::{Piece, ancestors, runs};
use super::slots;
use super::state::{Draft, Scratch, State, with_scratch};
use super::{BATCH, Content, LEAST_HOLE};
use crate::Error;
use crate::format::{NONCE_LEN, OVERHEAD, SPARSE, SlotKind};
use crate::journal::{Op, RECORD_HEAD};
use crate::store::{File, Store};

impl<S: Store> Content<S> {
    /// The run of holes that covers a slot, if its stored bytes are none of data: where it begins and ends.
    ///
    /// # Errors
    /// [`Error::Damaged`] for zeros that no record covers.
    pub(super) fn run_at(
        &self,
        state: &State<S::File>,
        index: u64,
        crypto: &mut impl Crypto,
    ) -> Result<Option<(u64, u64)>, Error> {
        if let Some((start, piece)) = state.overlay.covering(index) {
            return Ok(piece.level.map(|level| (start, start + (1 << level))));
        }
        for ancestor in ancestors(index) {
            let mut slot = [0; 64];
            match state.overlay.get(ancestor) {
                // A record here would cover it, or it is data.
                Some(_) => continue,
                None => {
                    let at = self.geometry().slot_at(ancestor);
                    state.file.read_at(&mut slot, at).map_err(|error| Error::io("reading a file", error))?;
                }
            }
            if !slots::may_be_hole(&slot) {
                if ancestor == index {
                    return Ok(None);
                }
                continue;
            }
            if slot[..NONCE_LEN].iter().all(|byte| *byte == 0) {
                continue;
            }
            if let Some(level) = slots::open_hole(&self.key, ancestor, &slot, crypto)?
                && index - ancestor < 1 << level
            {
                return Ok(Some((ancestor, ancestor + (1 << level))));
            }
            if ancestor == index {
                break;
            }
        }
        Err(Error::Damaged(format!("chunk {index}")))
    }

    /// Extends the content: with zeros if they are few, else with a hole.
    pub(super) fn extend(
        &self,
        state: &mut State<S::File>,
        len: u64,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let geometry = self.geometry();
        if len - state.len >= LEAST_HOLE && geometry.tail(len) > geometry.tail(state.len) + 1 {
            return self.extend_with_hole(state, len, scratch, crypto);
        }
        // On the heap: as a constant they would be in the file of every program.
        let zeros = vec![0; (len - state.len).min(1 << 18) as usize];
        while state.len < len {
            let piece = (len - state.len).min(zeros.len() as u64) as usize;
            self.write_batch(state, &zeros[..piece], state.len, scratch, crypto)?;
        }
        Ok(())
    }

    pub(super) fn extend_with_hole(
        &self,
        state: &mut State<S::File>,
        len: u64,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let geometry = self.geometry();
        let (chunk, old, new) = (geometry.chunk() as usize, geometry.tail(state.len), geometry.tail(len));
        // The old last chunk becomes a full one, unless it is empty and so part of the hole.
        let mut head = std::mem::take(&mut scratch.head);
        let result = match geometry.within(old, state.len) {
            0 => Ok(()),
            _ => self.read_chunk(state, old, &mut head, scratch, crypto),
        };
        scratch.head = head;
        result?;
        let filled = u64::from(!scratch.head.is_empty());
        // The backing file's length is tried before anything is promised.
        self.make_known(state, scratch, crypto)?;
        let stored = geometry.stored_len(len).max(state.physical);
        state.file.set_len(stored).map_err(|error| Error::io("extending a file", error))?;
        let mut record = std::mem::take(&mut scratch.record);
        let result = (|| {
            let mut draft = self.draft(state, &mut record);
            let header = self.draft_sparse(state, &mut draft, &mut record, crypto)?;
            let number = draft.number;
            let mut put = |index: u64, plain: &[u8], state: &mut State<S::File>, record: &mut Vec<u8>| {
                let at = record.len();
                record.resize(at + plain.len() + OVERHEAD, 0);
                let last_len = (plain.len() + OVERHEAD) as u32;
                draft.ops.push(&Op::Put { number, first: index, count: 1, last_len });
                let to = &mut record[at..];
                slots::seal_one(&self.key, &mut state.writer, (index, SlotKind::Data), plain, to, crypto)?;
                Ok::<_, Error>((index, Piece { at: (at - RECORD_HEAD) as u64, len: last_len, level: None }))
            };
            let mut entries = Vec::new();
            if filled > 0 {
                scratch.head.resize(chunk, 0);
                entries.push(put(old, &scratch.head, state, &mut record)?);
            }
            let tail = vec![0; geometry.within(new, len)];
            entries.push(put(new, &tail, state, &mut record)?);
            let holes = runs(old + filled, new);
            let at = (record.len() - RECORD_HEAD) as u64;
            self.draft_holes(state, &mut draft, &holes, &mut record, crypto)?;
            let blob = self.log(state, &draft, &mut record, crypto)?;
            for (index, piece) in entries {
                state.overlay.insert(index, Piece { at: blob + piece.at, ..piece });
            }
            self.enter_holes(state, &holes, blob + at);
            if header {
                state.header = Some(blob);
                state.sparse = true;
            }
            Ok(())
        })();
        scratch.record = record;
        match result {
            Ok(()) => {
                state.physical = stored;
                state.len = len;
                state.wrote = true;
                Ok(())
            }
            Err(error) => {
                _ = state.file.set_len(state.physical);
                Err(error)
            }
        }
    }

    /// Puts a header with the flag for holes at the beginning of a record, if the file has none yet.
    pub(super) fn draft_sparse(
        &self,
        state: &State<S::File>,
        draft: &mut Draft,
        record: &mut Vec<u8>,
        crypto: &mut impl Crypto,
    ) -> Result<bool, Error> {
        if state.sparse {
            return Ok(false);
        }
        let header = self.shared.seal_header(state.id, SPARSE, &self.key.secret(), crypto)?;
        draft.ops.push(&Op::Header { number: draft.number });
        record.extend(header.encode());
        Ok(true)
    }

    /// Makes `len` bytes at `at` zeros, as holes where whole chunks are; the length stays.
    ///
    /// # Errors
    /// As [`Content::write`].
    pub fn zero(&self, at: u64, len: u64, crypto: &mut impl Crypto) -> Result<(), Error> {
        self.shared.relieve(crypto)?;
        let _epoch = read(&self.shared.epoch);
        let mut state = self.state_mut();
        let state = &mut *state;
        let chunk = self.geometry().chunk();
        let end = at.saturating_add(len).min(state.len);
        if at >= end {
            return Ok(());
        }
        let (first, behind) = (at.div_ceil(chunk), end / chunk);
        if first >= behind {
            // No whole chunk.
            return self.write_at(state, &vec![0; (end - at) as usize], at, crypto);
        }
        self.write_at(state, &vec![0; (first * chunk - at) as usize], at, crypto)?;
        self.write_at(state, &vec![0; (end - behind * chunk) as usize], behind * chunk, crypto)?;
        with_scratch(|scratch| self.punch(state, first, behind, scratch, crypto))
    }

    /// Makes slots from `first` to before `behind`, all of them full, a hole.
    pub(super) fn punch(
        &self,
        state: &mut State<S::File>,
        first: u64,
        behind: u64,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let (mut start, mut end) = (first, behind);
        if state.sparse {
            // Runs that begin before or end behind become part of it.
            if let Some((from, _)) = self.run_at(state, first, crypto)? {
                start = start.min(from);
            }
            if let Some((_, to)) = self.run_at(state, behind - 1, crypto)? {
                end = end.max(to);
            }
        }
        let holes = runs(start, end);
        let mut record = std::mem::take(&mut scratch.record);
        let result = (|| {
            let mut draft = self.draft(state, &mut record);
            let header = self.draft_sparse(state, &mut draft, &mut record, crypto)?;
            let at = (record.len() - RECORD_HEAD) as u64;
            self.draft_holes(state, &mut draft, &holes, &mut record, crypto)?;
            let blob = self.log(state, &draft, &mut record, crypto)?;
            self.enter_holes(state, &holes, blob + at);
            if header {
                state.header = Some(blob);
                state.sparse = true;
            }
            Ok(())
        })();
        scratch.record = record;
        result
    }

    /// The first byte at or after `at` that is in a hole (`hole`) or in data; the end counts as a hole. `None` beyond
    /// the end, or where no data follows.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn seek(&self, at: u64, hole: bool, crypto: &mut impl Crypto) -> Result<Option<u64>, Error> {
        let (chunk, stride) = (self.geometry().chunk(), self.geometry().stride() as usize);
        let mut index = at / chunk;
        with_scratch(|scratch| {
            loop {
                // A batch at a time: writers get their turn between them.
                let state = self.state();
                if at >= state.len {
                    return Ok(None);
                }
                let tail = self.geometry().tail(state.len);
                if !state.sparse || index >= tail {
                    let found = at.max(index.min(tail) * chunk);
                    return Ok(if hole { Some(state.len) } else { (found < state.len).then_some(found) });
                }
                let (first, last) = (index, (tail - 1).min(index + BATCH / chunk));
                // In a hole one slot says where it ends.
                let last = if hole { last } else { first };
                let stored = self.fetch(&state, first, last, scratch)?;
                for slot in scratch.slots[..stored].chunks(stride) {
                    let run = match slots::may_be_hole(slot) {
                        true => self.run_at(&state, index, crypto)?,
                        false => None,
                    };
                    match run {
                        Some((_, end)) if !hole => index = end,
                        None if hole => index += 1,
                        _ => return Ok(Some(at.max(index * chunk))),
                    }
                }
            }
        })
    }
}
