//! A file gets a key of its own, and another id: one that the storage may have made of another file.
//!
//! Files with one key can be mixed by the storage chunk by chunk. Whoever copies a backing file makes such a file, and
//! whoever puts the beginning of one in the place of an empty one.

use wattlock_core::sync::{lock, read};
use wattlock_door::Crypto;
use zeroize::Zeroizing;

use super::ledger::{Put, Request};
use super::overlay::runs;
use super::slots::{self, FileKey};
use super::state::{Scratch, Sealer, State, with_scratch};
use super::{Content, RANGE};
use crate::Error;
use crate::format::{OVERHEAD, SlotKind};
use crate::names;
use crate::store::Store;

/// Stored bytes up to which a file is sealed anew: they are one record of the journal. A longer one gets another id only.
const TURN_MAX: u64 = 1 << 26;

impl<S: Store> Content<S> {
    /// To be called before anything is written to a file that is a copy of another by its stored name: it gets an id that
    /// goes with that name, and a key of its own, unless that was done. One of more than 64 MiB keeps its key.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`] where it does not open as a whole: nothing has changed.
    pub fn own_copy(&self, stored: &[u8], crypto: &mut impl Crypto) -> Result<(), Error> {
        if self.shared.read_only {
            return Ok(());
        }
        let sealed = names::seal_name(&self.shared.copy_ids, stored, crypto)?;
        let mut id = [0; 8];
        id.copy_from_slice(&sealed[..8]);
        // Far from the end, as all ids are.
        let id = u64::from_be_bytes(id) % (u64::MAX - 2 * RANGE);
        self.shared.in_room(crypto, |crypto| {
            let _epoch = read(&self.shared.epoch);
            let mut state = self.state_mut();
            if state.sealer.id == id || self.shared.is_unclean(id) {
                return Ok(());
            }
            with_scratch(|scratch| self.turn(&mut state, id, false, scratch, crypto))
        })
    }

    /// Comes before the first write of an opener: an empty file gets a key that no other file has, and so does one of whose
    /// id the journal knows another.
    pub(super) fn be_alone(
        &self,
        state: &mut State<S::File>,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        if state.own_key || state.ledger.len() > 0 && state.ledger.number().is_some() {
            return Ok(());
        }
        let (inode, id) = (self.body.place.inode, state.sealer.id);
        let is_made = lock(&self.shared.made).has(inode, id);
        let mut files = lock(&self.shared.files);
        let other = if files.is_reserved(id) { !is_made } else { files.is_anothers(id, inode) };
        drop(files);
        let id = if other { self.shared.outside_ranges()? } else { state.sealer.id };
        match state.ledger.len() == 0 || other {
            // What does not open is damage: only who empties it begins anew.
            true => self.turn(state, id, false, scratch, crypto),
            false => Ok(()),
        }
    }

    /// Makes the key that a file gets next.
    pub(super) fn next_key(
        &self,
        state: &mut State<S::File>,
        id: u64,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let mut secret = Zeroizing::new([0; 32]);
        slots::random(&mut secret[..])?;
        state.next = Some(Sealer::new(id, FileKey::new(&secret, crypto)?));
        Ok(())
    }

    /// Empties a file that looks empty already. What it has need not open.
    pub(super) fn empty_again(
        &self,
        state: &mut State<S::File>,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        match state.own_key {
            true => Ok(()),
            false => self.turn(state, state.sealer.id, true, scratch, crypto),
        }
    }

    /// Gives the file an id and a key; one without content (`blank`) whatever it has.
    fn turn(
        &self,
        state: &mut State<S::File>,
        id: u64,
        blank: bool,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        if self.geometry().stored_len(state.ledger.len()) > TURN_MAX {
            let key = FileKey::new(&state.sealer.key.secret(), crypto)?;
            state.next = Some(Sealer::new(id, key));
            return self.carry_out(state, &Request::Rename, scratch, crypto);
        }
        self.next_key(state, id, crypto)?;
        let done = self.seal_anew(state, blank, scratch, crypto);
        let done = done.and_then(|request| self.carry_out(state, &request, scratch, crypto));
        state.next = None;
        // As much as a file has is not kept for the next call.
        (scratch.slots, scratch.record) = (Vec::new(), Vec::new());
        done
    }

    /// Seals every slot with the next key, and says which holes there are.
    fn seal_anew(
        &self,
        state: &mut State<S::File>,
        blank: bool,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<Request, Error> {
        let tail = self.geometry().tail(state.ledger.len());
        let (mut sealed, mut plain) = (Vec::new(), Zeroizing::new(Vec::new()));
        let (mut puts, mut holes, mut index) = (Vec::<Put>::new(), Vec::new(), 0);
        while index <= tail {
            let run = match state.ledger.is_sparse() && index < tail {
                true => self.run_at(state, index, crypto)?,
                false => None,
            };
            if let Some((start, end)) = run {
                holes.extend(runs(start, end));
                index = end;
                continue;
            }
            if !blank {
                self.read_chunk(state, index, &mut plain, scratch, crypto)?;
            }
            let (from, bytes) = (sealed.len(), plain.len() + OVERHEAD);
            sealed.resize(from + bytes, 0);
            if let Some(Sealer { key, writer, .. }) = &mut state.next {
                slots::seal_one(key, writer, (index, SlotKind::Data), &plain, &mut sealed[from..], crypto)?;
            }
            match puts.last_mut().filter(|put| put.first + u64::from(put.count) == index) {
                Some(put) => {
                    (put.count, put.last_len, put.bytes) = (put.count + 1, bytes as u32, put.bytes + bytes);
                }
                None => puts.push(Put { first: index, count: 1, last_len: bytes as u32, from, bytes }),
            }
            index += 1;
        }
        scratch.slots = sealed;
        let sparse = !holes.is_empty();
        let renamed = state.next.as_ref().is_some_and(|next| next.id != state.sealer.id);
        Ok(Request::Turn { puts, holes, sparse, renamed })
    }
}
