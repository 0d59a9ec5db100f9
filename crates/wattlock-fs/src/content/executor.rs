//! Carrying out the steps that a [`Ledger`](super::ledger::Ledger) plans: the journal, the backing file and the crypto.
//! Nothing is decided here.

use wattlock_core::sync::lock;
use wattlock_door::Crypto;

use super::ledger::{Draft, InPlace, Logged, Placing, Request, Step};
use super::slots::{self, FileKey, Writer};
use super::state::{Scratch, Sealer, State};
use super::{Content, Shared};
use crate::Error;
use crate::format::{OVERHEAD, SPARSE, SlotKind};
use crate::journal::{Durable, Op, Ops, RECORD_HEAD};
use crate::store::{File, Store};

/// What was tried in place: where bytes were overwritten, and how long the backing file was.
struct Tried {
    at: u64,
    physical: u64,
}

impl<S: Store> Content<S> {
    /// Carries out a request; the thread's buffer has the sealed slots that it speaks of. On an error nothing has changed,
    /// except that a cut may be half done: the next step in place makes up for it.
    pub(super) fn carry_out(
        &self,
        state: &mut State<S::File>,
        request: &Request,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let mut tried = None;
        for step in state.ledger.plan(request) {
            if let Err(error) = self.step(state, &step, &mut tried, scratch, crypto) {
                take_back(state, tried, scratch);
                state.next = None;
                return Err(error);
            }
        }
        state.take_next();
        Ok(())
    }

    fn step(
        &self,
        state: &mut State<S::File>,
        step: &Step,
        tried: &mut Option<Tried>,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let journal = &self.shared.journal;
        match step {
            Step::Log(draft) => return self.log(state, step, draft, scratch, crypto),
            Step::SyncJournal(until) => match state.ledger.record(*until) {
                Some(record) => _ = journal.sync(record, crypto)?,
                None => _ = journal.sync_all(crypto)?,
            },
            Step::Write(slots) => {
                journal.usable()?;
                write_in_place(self.geometry().slot_at(slots.first()), state, slots, tried, scratch)?;
            }
            Step::Begin => {
                journal.usable()?;
                self.begin_in_place(state, tried, scratch, crypto)?;
            }
            Step::Resize(resize) => {
                journal.usable()?;
                let what = if resize.is_trial() { "extending a file" } else { "cutting a file" };
                if resize.is_trial() {
                    scratch.old.clear();
                    *tried = Some(Tried { at: 0, physical: state.ledger.physical() });
                }
                state.file.set_len(resize.stored).map_err(|error| Error::io(what, error))?;
            }
            Step::Room(room) => match state.file.take_room(room.at, room.len) {
                Ok(()) => {}
                Err(error) if room.needed => return Err(Error::io("writing a file", error)),
                Err(_) => return Ok(()),
            },
            Step::SyncFile => {
                if let Err(error) = state.file.sync() {
                    self.in_doubt(state);
                    return Err(Error::io("cutting a file", error));
                }
            }
        }
        state.ledger.did(step, None);
        Ok(())
    }

    /// Appends a record about this file.
    fn log(
        &self,
        state: &mut State<S::File>,
        step: &Step,
        draft: &Draft,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let mut record = std::mem::take(&mut scratch.record);
        let logged = self.append_record(state, draft, &scratch.slots, &mut record, crypto);
        scratch.record = record;
        let (introduced, replaced) = (state.ledger.number().is_none(), state.ledger.is_replaced());
        let logged = logged?;
        state.ledger.did(step, Some(logged));
        if draft.header.is_some() {
            state.take_next();
        }
        if introduced || draft.cut.is_some() || draft.commit.is_some() {
            let known = (logged.file, state.ledger.committed());
            lock(&self.shared.files).known.insert((state.known_id, self.body.place.inode), known);
        }
        if !replaced && state.ledger.is_replaced() {
            self.pin();
        }
        Ok(())
    }

    fn append_record(
        &self,
        state: &mut State<S::File>,
        draft: &Draft,
        sealed: &[u8],
        record: &mut Vec<u8>,
        crypto: &mut impl Crypto,
    ) -> Result<Logged, Error> {
        let (shared, body) = (&self.shared, &self.body);
        record.clear();
        record.resize(RECORD_HEAD, 0);
        let mut ops = Ops::default();
        let number = state.ledger.number().unwrap_or_else(|| {
            let mut files = lock(&shared.files);
            files.numbers += 1;
            let (number, place) = (files.numbers, body.place.clone());
            ops.push(&Op::File { number, id: state.known_id, place, committed: state.ledger.committed() });
            number
        });
        draft.ops(number).for_each(|op| ops.push(&op));
        if let Some(new) = draft.header {
            let Sealer { id, key, .. } = state.next.as_ref().unwrap_or(&state.sealer);
            let flags = if new.sparse { SPARSE } else { 0 };
            record.extend(shared.seal_header(*id, flags, &key.secret(), crypto)?.encode());
        }
        for put in draft.puts() {
            record.extend_from_slice(&sealed[put.from..][..put.bytes]);
        }
        for hole in draft.holes.iter().copied() {
            let Sealer { key, writer, .. } = state.next.as_mut().unwrap_or(&mut state.sealer);
            record.extend(slots::seal_hole(key, writer, hole, crypto)?);
        }
        let (record, blob) = shared.journal.append(record, &ops, crypto)?;
        Ok(Logged { file: number, record, blob })
    }
}

impl<S: Store> Content<S> {
    /// Writes a header for the file's next key, and its sealed empty slot, over what is there, which is kept.
    fn begin_in_place(
        &self,
        state: &State<S::File>,
        tried: &mut Option<Tried>,
        scratch: &mut Scratch,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let failed = |error| Error::io("writing a file", error);
        let Sealer { id, key, .. } = state.next.as_ref().unwrap_or(&state.sealer);
        let header = self.shared.seal_header(*id, 0, &key.secret(), crypto)?;
        let begin = [&header.encode()[..], &scratch.slots[..OVERHEAD]].concat();
        scratch.old.resize(begin.len(), 0);
        let got = state.file.read_at(&mut scratch.old, 0).map_err(failed)?;
        scratch.old.truncate(got);
        *tried = Some(Tried { at: 0, physical: state.ledger.physical() });
        state.file.write_at(&begin, 0).map_err(failed)
    }
}

/// Writes sealed slots in place, and keeps what was there.
fn write_in_place<F: File>(
    at: u64,
    state: &State<F>,
    slots: &InPlace,
    tried: &mut Option<Tried>,
    scratch: &mut Scratch,
) -> Result<(), Error> {
    let failed = |error| Error::io("writing a file", error);
    let (range, physical) = (slots.range(), state.ledger.physical());
    let overwritten = physical.saturating_sub(at).min(range.len() as u64) as usize;
    scratch.old.resize(overwritten, 0);
    let got = state.file.read_at(&mut scratch.old, at).map_err(failed)?;
    scratch.old.truncate(got);
    *tried = Some(Tried { at, physical });
    state.file.write_at(&scratch.slots[range], at).map_err(failed)
}

/// Puts back what was overwritten in place.
fn take_back<F: File>(state: &mut State<F>, tried: Option<Tried>, scratch: &Scratch) {
    let Some(Tried { at, physical }) = tried else { return };
    if cut_back(state, physical) {
        state.ledger.took_back(physical);
    }
    // These bytes had room a moment ago. If even that fails the file is not what it was, and its tags say so.
    _ = state.file.write_at(&scratch.old, at);
}

/// Cuts the backing file, and gives back room that was taken behind its end. What the journal has keeps its room.
fn cut_back<F: File>(state: &State<F>, physical: u64) -> bool {
    if state.file.set_len(physical).is_err() {
        return false;
    }
    let end = state.ledger.end_in_place();
    _ = state.file.take_room(physical, end.saturating_sub(physical));
    true
}

/// Takes room behind the end for what is about to be written there, so that a disk without room changes nothing.
pub(super) fn try_room<F: File>(state: &State<F>, at: u64, len: u64) -> Result<(), Error> {
    let taken = state.file.take_room(at, len);
    taken.map_err(|error| {
        _ = cut_back(state, state.ledger.physical());
        Error::io("writing a file", error)
    })
}

impl<S: Store> Shared<S> {
    /// Brings the journal's part of a file into place, as planned: what is copied is durable in the journal.
    pub(super) fn place(
        &self,
        file: &S::File,
        key: &FileKey,
        steps: &[Placing],
        _durable: &Durable,
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let failed = |error| Error::io("bringing the journal into place", error);
        let times = file.times().map_err(failed)?;
        let mut buffer = Vec::new();
        for step in steps.iter().copied() {
            match step {
                Placing::Punch { at, len } => file.punch(at, len).map_err(failed)?,
                Placing::Copy { from, to, bytes } => {
                    buffer.resize(bytes, 0);
                    self.journal.read(&mut buffer, from)?;
                    file.write_at(&buffer, to).map_err(failed)?;
                }
                Placing::End { slot } => {
                    let mut end = [0; OVERHEAD];
                    let what = (slot, SlotKind::Data);
                    slots::seal_one(key, &mut Writer::default(), what, &[], &mut end, crypto)?;
                    file.write_at(&end, self.geometry.slot_at(slot)).map_err(failed)?;
                }
                Placing::Cut { stored } if file.len().map_err(failed)? <= stored => {}
                Placing::Fit { stored } if file.len().map_err(failed)? == stored => {}
                Placing::Cut { stored } | Placing::Fit { stored } => file.set_len(stored).map_err(failed)?,
            }
        }
        if let Some(times) = times {
            // Another user's file: its content counts more than its time.
            _ = file.set_times(&times);
        }
        Ok(())
    }
}
