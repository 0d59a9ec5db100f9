//! Writing, extending and cutting: what a call changes is sealed here, and handed to the ledger as slots.

use wattlock_core::sync::read;
use wattlock_door::Crypto;

use super::executor::try_room;
use super::ledger::Request;
use super::overlay::runs;
use super::slots;
use super::state::{Scratch, Sealer, State, with_scratch};
use super::{BATCH, Content};
use crate::Error;
use crate::format::{OVERHEAD, SlotKind};
use crate::store::Store;

/// Where a piece of a write lies: of at most one batch, beginning at or before the content's end.
struct Piece<'a> {
    from: &'a [u8],
    at: u64,
    first: u64,
    last: u64,
    /// The content's length afterwards.
    len: u64,
}

impl<S: Store> Content<S> {
    /// Writes all of `from` at `at`. What lies between the end and `at` becomes a hole.
    ///
    /// # Errors
    /// [`Error::Io`] with `ENOSPC` or `EFBIG`: the old content is intact, and of what is longer than a MiB a part at the
    /// beginning may be written; the content's length says so.
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
            let at = state.ledger.len();
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
        let old = state.ledger.len();
        with_scratch(|scratch| {
            self.be_alone(state, scratch, crypto)?;
            let done = self.write_all(state, from, at, scratch, crypto);
            // Nothing of it was written: nor is there a hole in front of it, and the length says so at once.
            if done.is_err() && (old + 1..=at).contains(&state.ledger.len()) {
                _ = self.cut(state, old, false, scratch, crypto);
            }
            done
        })
    }

    fn write_all(
        &self,
        state: &mut State<S::File>,
        from: &[u8],
        at: u64,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        if at > state.ledger.len() {
            let first = (from.len() as u64).min(BATCH);
            try_room(state, self.geometry().slot_at(at / self.geometry().chunk()), first)?;
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
        let end = at + from.len() as u64;
        let (first, last) = (at / geometry.chunk(), (end - 1) / geometry.chunk());
        let len = state.ledger.len().max(end);
        let piece = Piece { from, at, first, last, len };
        scratch.wipe();
        let middle = self.fill_borders(state, &piece, scratch, crypto)?;
        // A write that ends with a full chunk at the end of the content is followed by the empty last slot.
        let until = if len == end { geometry.tail(len) } else { last };
        let bytes = (geometry.slot_at(until) - geometry.slot_at(first)) as usize
            + geometry.within(until, len)
            + OVERHEAD;
        let left = self.cut_runs(state, (first, last, until), crypto)?;
        scratch.room(bytes);
        {
            let Scratch { slots, head, tail, .. } = scratch;
            let (pieces, to) = ([&head[..], middle, &tail[..]], &mut slots[..bytes]);
            let Sealer { key, writer, .. } = &mut state.sealer;
            slots::seal_pieces(key, writer, geometry, first, &pieces, to, crypto)?;
        }
        self.carry_out(state, &Request::Write { first, until, len, left }, scratch, crypto)
    }

    /// Puts together the first and the last chunk of a piece where it overwrites only a part of them. Returns the rest of
    /// what is written.
    fn fill_borders<'a>(
        &self,
        state: &State<S::File>,
        piece: &Piece<'a>,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<&'a [u8], Error> {
        let (geometry, Piece { from, first, last, len, .. }) = (self.geometry(), piece);
        let (chunk, end) = (geometry.chunk(), piece.at + from.len() as u64);
        let (skip, ends) = ((piece.at - first * chunk) as usize, (end - last * chunk) as usize);
        let first_len = geometry.within(*first, *len);
        let mut taken = 0;
        if skip > 0 || (first == last && ends < first_len) {
            let mut head = std::mem::take(&mut scratch.head);
            let result = self.read_chunk(state, *first, &mut head, scratch, crypto);
            head.resize(first_len, 0);
            scratch.head = head;
            result?;
            taken = from.len().min(first_len - skip);
            scratch.head[skip..skip + taken].copy_from_slice(&from[..taken]);
        }
        let mut kept = from.len();
        if last > first && ends < geometry.within(*last, *len) {
            let mut tail = std::mem::take(&mut scratch.tail);
            let result = self.read_chunk(state, *last, &mut tail, scratch, crypto);
            scratch.tail = tail;
            result?;
            kept -= ends;
            scratch.tail[..ends].copy_from_slice(&from[kept..]);
        }
        Ok(&from[taken..kept])
    }

    /// What is left of runs of holes that slots `first` to `until` cut in two; `last` is the last that is written.
    fn cut_runs(
        &self,
        state: &State<S::File>,
        (first, last, until): (u64, u64, u64),
        crypto: &mut impl Crypto,
    ) -> Result<Vec<(u64, u8)>, Error> {
        let mut left = Vec::new();
        if !state.ledger.is_sparse() {
            return Ok(left);
        }
        let tail = self.geometry().tail(state.ledger.len());
        if first < tail
            && let Some((start, end)) = self.run_at(state, first, crypto)?
        {
            left.extend(runs(start, first));
            left.extend(runs(until + 1, end));
        }
        if last > first
            && last < tail
            && let Some((start, end)) = self.run_at(state, last, crypto)?
            && start > first
        {
            left.extend(runs(until + 1, end));
        }
        Ok(left)
    }

    /// Cuts the content, or extends it with a hole.
    ///
    /// # Errors
    /// As [`Content::write`].
    pub fn set_len(&self, len: u64, crypto: &mut impl Crypto) -> Result<(), Error> {
        self.resize(len, true, crypto)
    }

    /// Extends the content with a hole to `len` bytes. One that is longer, by now, stays as it is.
    ///
    /// # Errors
    /// As [`Content::write`].
    pub fn grow(&self, len: u64, crypto: &mut impl Crypto) -> Result<(), Error> {
        self.resize(len, false, crypto)
    }

    fn resize(&self, len: u64, may_cut: bool, crypto: &mut impl Crypto) -> Result<(), Error> {
        if len > self.geometry().max_len() {
            return Err(Error::io("extending a file", rustix::io::Errno::FBIG));
        }
        self.shared.in_room(crypto, |crypto| {
            let _epoch = read(&self.shared.epoch);
            let mut state = self.state_mut();
            with_scratch(|scratch| {
                if len > state.ledger.len() {
                    self.be_alone(&mut state, scratch, crypto)?;
                    self.extend(&mut state, len, scratch, crypto)
                } else if may_cut && len < state.ledger.len() {
                    // What an empty file had before can be put back by the storage: it does not open with another key.
                    self.cut(&mut state, len, len == 0, scratch, crypto)
                } else if may_cut && len == 0 {
                    self.empty_again(&mut state, scratch, crypto)
                } else {
                    Ok(())
                }
            })
        })
    }

    fn cut(
        &self,
        state: &mut State<S::File>,
        len: u64,
        turn: bool,
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
        // A run of holes that begins before and goes on behind the cut; with another key none goes on.
        let run = match !turn && state.ledger.is_sparse() && index < geometry.tail(state.ledger.len()) {
            true => self.run_at(state, index, crypto)?.map(|(start, _)| start),
            false => None,
        };
        let bytes = scratch.head.len() + OVERHEAD;
        scratch.room(bytes);
        if turn {
            self.next_key(state, state.sealer.id, crypto)?;
        }
        let sealed = {
            let Scratch { slots, head, .. } = scratch;
            let (what, to) = ((index, SlotKind::Data), &mut slots[..bytes]);
            let Sealer { key, writer, .. } = state.next.as_mut().unwrap_or(&mut state.sealer);
            slots::seal_one(key, writer, what, head, to, crypto)
        };
        let done =
            sealed.and_then(|()| self.carry_out(state, &Request::Cut { len, run, turn }, scratch, crypto));
        state.next = None;
        done
    }
}
