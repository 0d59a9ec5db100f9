//! Holes.

use wattlock_core::sync::read;
use wattlock_door::Crypto;

use super::ledger::Request;
use super::overlay::ancestors;
use super::slots;
use super::state::{Scratch, Sealer, State, with_scratch};
use super::{BATCH, Content, LEAST_HOLE};
use crate::Error;
use crate::format::{NONCE_LEN, OVERHEAD, SlotKind};
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
        if let Some((start, piece)) = state.ledger.overlay().covering(index) {
            return Ok(piece.level.map(|level| (start, start + (1 << level))));
        }
        for ancestor in ancestors(index) {
            let mut slot = [0; 64];
            match state.ledger.overlay().get(ancestor) {
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
            if let Some(level) = slots::open_hole(&state.sealer.key, ancestor, &slot, crypto)?
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
        if len - state.ledger.len() >= LEAST_HOLE
            && geometry.tail(len) > geometry.tail(state.ledger.len()) + 1
        {
            return self.extend_with_hole(state, len, scratch, crypto);
        }
        // On the heap: as a constant they would be in the file of every program.
        let zeros = vec![0; (len - state.ledger.len()).min(1 << 18) as usize];
        while state.ledger.len() < len {
            let piece = (len - state.ledger.len()).min(zeros.len() as u64) as usize;
            self.write_batch(state, &zeros[..piece], state.ledger.len(), scratch, crypto)?;
        }
        Ok(())
    }

    fn extend_with_hole(
        &self,
        state: &mut State<S::File>,
        len: u64,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let geometry = self.geometry();
        let (old, new) = (geometry.tail(state.ledger.len()), geometry.tail(len));
        // The old last chunk becomes a full one, unless it is empty and so part of the hole.
        let fill = geometry.within(old, state.ledger.len()) > 0;
        let mut head = std::mem::take(&mut scratch.head);
        let result = match fill {
            true => self.read_chunk(state, old, &mut head, scratch, crypto),
            false => Ok(()),
        };
        scratch.head = head;
        result?;
        let (full, tail) = (if fill { geometry.stride() as usize } else { 0 }, geometry.within(new, len));
        scratch.room(full + tail + OVERHEAD);
        {
            let Sealer { key, writer, .. } = &mut state.sealer;
            let (to_old, to_new) = scratch.slots[..full + tail + OVERHEAD].split_at_mut(full);
            if fill {
                scratch.head.resize(geometry.chunk() as usize, 0);
                slots::seal_one(key, writer, (old, SlotKind::Data), &scratch.head, to_old, crypto)?;
            }
            slots::seal_one(key, writer, (new, SlotKind::Data), &vec![0; tail], to_new, crypto)?;
        }
        self.carry_out(state, &Request::Extend { len, fill }, scratch, crypto)
    }

    /// Makes `len` bytes at `at` zeros, as holes where whole chunks are; the length stays.
    ///
    /// # Errors
    /// As [`Content::write`].
    pub fn zero(&self, at: u64, len: u64, crypto: &mut impl Crypto) -> Result<(), Error> {
        self.shared.in_room(crypto, |crypto| self.zero_once(at, len, crypto))
    }

    fn zero_once<C: Crypto>(&self, at: u64, len: u64, crypto: &mut C) -> Result<(), Error> {
        let _epoch = read(&self.shared.epoch);
        let mut state = self.state_mut();
        let state = &mut *state;
        let chunk = self.geometry().chunk();
        let end = at.saturating_add(len).min(state.ledger.len());
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
        with_scratch(|scratch| {
            self.be_alone(state, scratch, crypto)?;
            self.punch(state, first, behind, scratch, crypto)
        })
    }

    /// Makes slots from `first` to before `behind`, all of them full, a hole.
    fn punch(
        &self,
        state: &mut State<S::File>,
        first: u64,
        behind: u64,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let (mut start, mut end) = (first, behind);
        if state.ledger.is_sparse() {
            // Runs that begin before or end behind become part of it.
            if let Some((from, _)) = self.run_at(state, first, crypto)? {
                start = start.min(from);
            }
            if let Some((_, to)) = self.run_at(state, behind - 1, crypto)? {
                end = end.max(to);
            }
        }
        self.carry_out(state, &Request::Punch { first: start, behind: end }, scratch, crypto)
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
                if at >= state.ledger.len() {
                    return Ok(None);
                }
                let tail = self.geometry().tail(state.ledger.len());
                if !state.ledger.is_sparse() || index >= tail {
                    let found = at.max(index.min(tail) * chunk);
                    return Ok(if hole {
                        Some(state.ledger.len())
                    } else {
                        (found < state.ledger.len()).then_some(found)
                    });
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
