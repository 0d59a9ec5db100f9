//! Reading.

use wattlock_door::Crypto;
use zeroize::Zeroize;

use super::overlay::Piece;
use super::slots;
use super::state::{Scratch, State, with_scratch};
use super::{BATCH, Content};
use crate::Error;
use crate::format::OVERHEAD;
use crate::store::{File, Store};

impl<S: Store> Content<S> {
    /// Reads up to `to.len()` bytes at `at`; fewer only at the end. Only verified bytes are in `to` afterwards. A read
    /// that reaches the end has verified that it is the end.
    ///
    /// # Errors
    /// [`Error::Damaged`] naming the chunk; `to` is zeroed.
    pub fn read(&self, to: &mut [u8], at: u64, crypto: &mut impl Crypto) -> Result<usize, Error> {
        let state = self.state();
        let result = with_scratch(|scratch| self.read_at(&state, to, at, scratch, crypto));
        if result.is_err() {
            to.zeroize();
        }
        result
    }

    pub(super) fn read_at(
        &self,
        state: &State<S::File>,
        to: &mut [u8],
        at: u64,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<usize, Error> {
        let wanted = state.ledger.len().saturating_sub(at).min(to.len() as u64) as usize;
        if wanted == 0 {
            let end = at == state.ledger.len() && !state.ledger.is_end_open();
            if end && !to.is_empty() && at.is_multiple_of(self.geometry().chunk()) {
                self.read_chunk(state, self.geometry().tail(at), &mut Vec::new(), scratch, crypto)?;
            }
            return Ok(0);
        }
        let (chunk, mut done) = (self.geometry().chunk(), 0);
        while done < wanted {
            let from = at + done as u64;
            let end = (from / chunk * chunk + BATCH + chunk).min(at + wanted as u64);
            let piece = (end - from) as usize;
            self.read_batch(state, &mut to[done..done + piece], from, scratch, crypto)?;
            done += piece;
        }
        Ok(wanted)
    }

    /// Reads bytes that are there, of at most one batch.
    pub(super) fn read_batch(
        &self,
        state: &State<S::File>,
        to: &mut [u8],
        at: u64,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let geometry = self.geometry();
        let (chunk, stride) = (geometry.chunk(), geometry.stride() as usize);
        let end = at + to.len() as u64;
        // Behind a last chunk that is full there is an empty slot, which says that this is the end.
        let behind = end == state.ledger.len() && !state.ledger.is_end_open();
        let last = if behind { geometry.tail(end) } else { (end - 1) / chunk };
        let first = at / chunk;
        let stored = self.fetch(state, first, last, scratch)?;
        if !state.ledger.is_sparse() {
            return self.open_slots(state, (first, last), (to, at), (0, stored), scratch, crypto);
        }
        let mut index = first;
        while index <= last {
            let slot = |index: u64| (index - first) as usize * stride;
            let hole = |index: u64, scratch: &Scratch| {
                index < geometry.tail(state.ledger.len()) && slots::may_be_hole(&scratch.slots[slot(index)..])
            };
            let from = (index * chunk).max(at);
            if hole(index, scratch) {
                let run = self.run_at(state, index, crypto)?;
                let (start, next) = run.ok_or_else(|| Error::Damaged(format!("chunk {index}")))?;
                // Behind the record the run is a hole of the backing file, too.
                for index in index.max(start + 1)..next.min(last + 1) {
                    let bytes = &scratch.slots[slot(index).min(stored)..slot(index + 1).min(stored)];
                    if bytes.iter().any(|byte| *byte != 0) {
                        return Err(Error::Damaged(format!("chunk {index}")));
                    }
                }
                let until = next.saturating_mul(chunk).min(end);
                to[(from - at) as usize..(until - at) as usize].fill(0);
                index = next;
                continue;
            }
            let mut next = index + 1;
            while next <= last && !hole(next, scratch) {
                next += 1;
            }
            let until = (next * chunk).min(end);
            let range = if from < until { (from - at) as usize..(until - at) as usize } else { 0..0 };
            let bytes = (slot(index), slot(next).min(stored));
            self.open_slots(state, (index, next - 1), (&mut to[range], from), bytes, scratch, crypto)?;
            index = next;
        }
        Ok(())
    }

    /// Opens data slots `first` to `last`, which were fetched, of which `to` wants the content from `at` on.
    pub(super) fn open_slots(
        &self,
        state: &State<S::File>,
        (first, last): (u64, u64),
        (to, at): (&mut [u8], u64),
        (from, until): (usize, usize),
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let (geometry, end) = (self.geometry(), at + to.len() as u64);
        let chunk = geometry.chunk();
        let Scratch { slots, head, tail, .. } = scratch;
        // Chunks of which all is wanted are opened where they are wanted; a first or last one in part goes through a
        // buffer.
        let (skip, last_data) = ((at - first * chunk) as usize, end.saturating_sub(1).max(at) / chunk);
        let (first_len, last_len) =
            (geometry.within(first, state.ledger.len()), geometry.within(last_data, state.ledger.len()));
        let ends = (end - last_data * chunk) as usize;
        let head_partial = skip > 0 || (first == last_data && ends < last_len);
        let tail_partial = last_data > first && ends < last_len;
        head.resize(if head_partial { first_len } else { 0 }, 0);
        tail.resize(if tail_partial { last_len } else { 0 }, 0);
        let head_takes = if head_partial { (first_len - skip).min(to.len()) } else { 0 };
        let tail_takes = if tail_partial { ends } else { 0 };
        let (to_head, rest) = to.split_at_mut(head_takes);
        let (to_middle, to_tail) = rest.split_at_mut(rest.len() - tail_takes);
        let mut pieces: [&mut [u8]; 3] = [&mut head[..], to_middle, &mut tail[..]];
        debug_assert!(last == last_data || last == last_data + 1);
        slots::open(&state.sealer.key, geometry, first, &mut slots[from..until], &mut pieces, crypto)?;
        to_head.copy_from_slice(&head[skip.min(head.len())..][..head_takes]);
        to_tail.copy_from_slice(&tail[..tail_takes]);
        Ok(())
    }

    /// Reads slots `first` to `last` as they are stored; returns how many bytes they are. What a hole record stands
    /// for is zeros.
    pub(super) fn fetch(
        &self,
        state: &State<S::File>,
        first: u64,
        last: u64,
        scratch: &mut Scratch,
    ) -> Result<usize, Error> {
        let (geometry, stride) = (self.geometry(), self.geometry().stride() as usize);
        let from = geometry.slot_at(first);
        let len =
            (geometry.slot_at(last) - from) as usize + geometry.within(last, state.ledger.len()) + OVERHEAD;
        scratch.room(len);
        let all = &mut scratch.slots[..len];
        let replaced = if state.ledger.overlay().is_empty() {
            0
        } else {
            state.ledger.overlay().range(first, last).count() as u64
        };
        if replaced <= last - first {
            let got = state.file.read_at(all, from).map_err(|error| Error::io("reading a file", error))?;
            all[got..].fill(0);
        }
        if state.ledger.overlay().is_empty() {
            return Ok(len);
        }
        if let Some((start, Piece { level: Some(level), .. })) = state.ledger.overlay().covering(first) {
            let until = (start + (1 << level)).min(last + 1) - first;
            all[..(until as usize * stride).min(len)].fill(0);
        }
        for (index, piece) in state.ledger.overlay().range(first, last) {
            let at = (index - first) as usize * stride;
            let room = stride.min(len - at);
            match piece.level {
                Some(level) => {
                    let until = (index + (1 << level)).min(last + 1) - first;
                    all[at..(until as usize * stride).min(len)].fill(0);
                }
                None if piece.len as usize == room => {
                    self.shared.journal.read(&mut all[at..at + room], piece.at)?
                }
                None => return Err(Error::Damaged(format!("chunk {index}"))),
            }
        }
        Ok(len)
    }

    /// Reads all of a chunk that is there.
    pub(super) fn read_chunk(
        &self,
        state: &State<S::File>,
        index: u64,
        to: &mut Vec<u8>,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let geometry = self.geometry();
        let stored = self.fetch(state, index, index, scratch)?;
        to.clear();
        to.resize(geometry.within(index, state.ledger.len()), 0);
        if state.ledger.is_sparse()
            && index < geometry.tail(state.ledger.len())
            && slots::may_be_hole(&scratch.slots[..stored])
        {
            let run = self.run_at(state, index, crypto)?;
            return run.map(|_| ()).ok_or_else(|| Error::Damaged(format!("chunk {index}")));
        }
        let mut pieces: [&mut [u8]; 3] = [&mut to[..], &mut [], &mut []];
        slots::open(&state.sealer.key, geometry, index, &mut scratch.slots[..stored], &mut pieces, crypto)
    }
}
