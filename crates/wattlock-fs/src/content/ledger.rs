//! The state of one file without its bytes: what each slot is, where the ends are, and what is to be done to change
//! them. No I/O, no lock and no key.
//!
//! [`Ledger::plan`] says by which steps a request is carried out. The caller does them in order, and tells of each by
//! [`Ledger::did`]; after one that failed it does no more. Between any two steps power may be lost.
//!
//! Where the rules of [`super`] are kept:
//! - J1, J2: [`InPlace`] is the only permission to write slots in place. Only [`Ledger::in_place`] makes one, which
//!   looks at the standing of each slot and puts in front of it what must be durable by then.
//! - J3: [`Request::Sync`], then [`Request::Commit`].
//! - J4: [`Ledger::placing`] demands [`Durable`], which only a sync of the journal gives.
//! - J5: [`placing`] and [`recovering`] are the same for a checkpoint and for a recovery.

use super::overlay::{Overlay, Piece, runs};
use super::{BATCH, SMALL_GROWTH};
use crate::Error;
use crate::format::{Geometry, HEADER_LEN, HOLE_LEN, OVERHEAD};
use crate::journal::{Durable, Op};

/// What a slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Durable in place, or about to be: only the journal may replace it.
    Committed,
    /// The journal has what replaces it.
    Replaced(Piece),
    /// The journal has a hole record that covers it, which begins at `start`.
    Hole { start: u64, level: u8 },
    /// In place behind the committed end.
    Fresh,
    /// Behind the end of the content.
    Beyond,
}

impl Standing {
    /// Whether nothing is lost if a power cut leaves it half written.
    fn is_loose(self) -> bool {
        matches!(self, Standing::Fresh | Standing::Beyond)
    }
}

/// What became of slots that were cut away and are committed, in the backing file. They open, so that recovery would take
/// them for the file's growth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// They are gone.
    Durable,
    /// The disk may have them still.
    Fresh,
    /// It may, and a sync has acknowledged something else in their place, or that they are gone: they go before anything is
    /// written in place.
    Outdated,
}

/// Which record of the journal says where the committed end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// This one, or one before.
    By(u64),
    /// One that an earlier opener wrote. Syncing all of them makes it durable.
    Earlier,
}

/// What is to be done with a file.
#[derive(Debug, Clone)]
pub(crate) enum Request {
    /// Slots `first` to `until`, sealed one after the other, take the place of what is there; then the content has `len`
    /// bytes. `left` is what is left of runs of holes that they cut in two.
    Write { first: u64, until: u64, len: u64, left: Vec<(u64, u8)> },
    /// A hole is put behind the end, up to `len` bytes. The old last chunk, if it has bytes, is sealed as a full one
    /// (`fill`) in front of the new last one.
    Extend { len: u64, fill: bool },
    /// The content ends after `len` bytes. Its new last slot is sealed; `run` is where a run of holes begins that covers it.
    Cut { len: u64, run: Option<u64> },
    /// Slots `first` to before `behind` become a hole.
    Punch { first: u64, behind: u64 },
    /// What was written so far is to be durable.
    Sync,
    /// The steps of the latest [`Request::Sync`] are done.
    Commit,
}

/// One thing to do.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Append a record about this file to the journal.
    Log(Draft),
    /// Make the journal durable.
    SyncJournal(Until),
    /// Write sealed slots in place.
    Write(InPlace),
    /// Give the backing file this length.
    Resize(Resize),
    /// Make the backing file durable.
    SyncFile,
}

/// Up to where the journal is to be durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// The record that says where the committed end is.
    Known,
    /// The latest record about the file when the step is done.
    Touched,
    /// This record.
    Record(u64),
}

/// Permission to write slots in place: none of them is committed or replaced, and what must be durable before they are
/// overwritten is so when the steps in front are done.
#[derive(Debug, Clone)]
pub(crate) struct InPlace {
    first: u64,
    from: usize,
    bytes: usize,
    len: Option<u64>,
}

impl InPlace {
    /// The first slot.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// The part of the sealed slots that goes there.
    pub(crate) fn range(&self) -> std::ops::Range<usize> {
        self.from..self.from + self.bytes
    }
}

/// A new length of the backing file.
#[derive(Debug, Clone)]
pub(crate) struct Resize {
    pub(crate) stored: u64,
    why: Why,
}

impl Resize {
    /// Whether it is taken back if a later step fails.
    pub(crate) fn is_trial(&self) -> bool {
        self.why == Why::Grows
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// Room for a hole.
    Grows,
    /// Slots that are not committed go, and the content ends after so many bytes.
    Cut(u64),
    /// The journal says that they are gone.
    Gone,
}

/// A record of the journal about one file. Its blob is the header, the slots and the hole records, in this order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Draft {
    /// The content is cut to so many bytes.
    pub(crate) cut: Option<u64>,
    /// A header that allows hole records.
    pub(crate) header: bool,
    /// Sealed slots.
    pub(crate) puts: [Option<Put>; 2],
    /// Hole records.
    pub(crate) holes: Vec<(u64, u8)>,
    /// So many bytes are durable.
    pub(crate) commit: Option<u64>,
    /// The content's length afterwards.
    len: Option<u64>,
}

impl Draft {
    /// Slots, by where they are among those that were sealed.
    pub(crate) fn puts(&self) -> impl Iterator<Item = &Put> {
        self.puts.iter().flatten()
    }

    /// What the record says of the file that has this number.
    pub(crate) fn ops(&self, number: u32) -> impl Iterator<Item = Op> {
        let cut = self.cut.map(|len| Op::Cut { number, len });
        let header = self.header.then_some(Op::Header { number });
        let puts = self.puts().map(move |put| {
            let Put { first, count, last_len, .. } = *put;
            Op::Put { number, first, count, last_len }
        });
        let holes = self.holes.iter().map(move |(first, level)| {
            let (first, level) = (*first, *level);
            Op::Hole { number, first, level }
        });
        let commit = self.commit.map(|len| Op::Commit { number, len });
        cut.into_iter().chain(header).chain(puts).chain(holes).chain(commit)
    }
}

/// Consecutive slots of a record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Put {
    pub(crate) first: u64,
    pub(crate) count: u32,
    /// Bytes of the last; all others are full.
    pub(crate) last_len: u32,
    /// Where they begin among the sealed slots, and how many bytes they are.
    pub(crate) from: usize,
    pub(crate) bytes: usize,
}

/// Where a record is that was appended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Logged {
    /// The file's number in the journal.
    pub(crate) file: u32,
    /// The record's number.
    pub(crate) record: u64,
    /// Where its blob begins in the journal's file.
    pub(crate) blob: u64,
}

/// What a sync found when it began.
#[derive(Debug, Clone, Copy, Default)]
struct Mark {
    len: u64,
    cuts: u64,
    wrote: bool,
}

/// One thing to do to bring the journal into place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placing {
    /// Make a hole in the backing file.
    Punch { at: u64, len: u64 },
    /// Copy bytes from the journal's file to the backing file.
    Copy { from: u64, to: u64, bytes: usize },
    /// Write an empty last slot.
    End { slot: u64 },
    /// Cut the backing file, if it is longer.
    Cut { stored: u64 },
    /// Give the backing file this length, if it has another.
    Fit { stored: u64 },
}

/// What the journal has of a file that is only read, and what is whole of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Over {
    pub(crate) len: u64,
    pub(crate) open_end: bool,
    pub(crate) overlay: Overlay,
    /// Where in the journal a new header is.
    pub(crate) header: Option<u64>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Ledger {
    geometry: Geometry,
    /// Length of the content.
    len: u64,
    /// Length of the backing file.
    physical: u64,
    /// Slots below this are committed, or about to be.
    floor: u64,
    /// So many bytes are durable, as the journal says or will say.
    committed: u64,
    /// The journal's record that says so must be durable before anything is written in place.
    known: Known,
    /// The file's number in the journal.
    number: Option<u32>,
    /// Its id says that it is new in this epoch.
    reserved: bool,
    overlay: Overlay,
    /// Where in the journal a new header is.
    header: Option<u64>,
    /// The journal's latest record about this file.
    touched: u64,
    /// Something was written in place since the last sync.
    wrote: bool,
    /// A sync failed: what was written in place may be in memory only, and no later sync would write it or say so.
    doubt: bool,
    /// The first and the last of chunks that are lost: a sync failed, and memory has them no longer.
    lost: Option<(u64, u64)>,
    /// Bytes of growth in the journal since the last sync.
    grown: u64,
    /// How often the content was cut: a sync that began before commits nothing.
    cuts: u64,
    cut: Cut,
    /// The header has the flag: there may be hole records.
    sparse: bool,
    /// The sync that goes on.
    mark: Mark,
    /// A crash left no last slot, and none may be written.
    open_end: bool,
}

impl Ledger {
    /// A new, empty file whose backing file has `physical` bytes.
    pub(crate) fn created(geometry: Geometry, reserved: bool, physical: u64) -> Ledger {
        Ledger {
            geometry,
            len: 0,
            physical,
            floor: 0,
            committed: 0,
            known: Known::By(0),
            number: None,
            reserved,
            overlay: Overlay::default(),
            header: None,
            touched: 0,
            wrote: reserved,
            doubt: false,
            lost: None,
            grown: 0,
            cuts: 0,
            cut: Cut::Durable,
            sparse: false,
            mark: Mark::default(),
            open_end: false,
        }
    }

    /// A file that is only read: what a recovery would bring into place, and cut, is in the ledger instead.
    pub(crate) fn read_over(geometry: Geometry, physical: u64, sparse: bool, over: Over) -> Ledger {
        let created = Ledger::created(geometry, false, physical);
        let Over { len, open_end, overlay, header } = over;
        Ledger { len, open_end, overlay, header, sparse, committed: len, floor: u64::MAX, ..created }
    }

    /// Whether there is no last slot: the end is where it is since nothing behind it is whole.
    pub(crate) fn is_end_open(&self) -> bool {
        self.open_end
    }

    /// A file that was there: `len` bytes of content in `physical` bytes. `known` is its number and its committed length,
    /// if the journal knows it in this epoch.
    pub(crate) fn opened(
        geometry: Geometry,
        (len, physical, sparse): (u64, u64, bool),
        known: Option<(u32, u64)>,
        reserved: bool,
    ) -> Ledger {
        let mut ledger = Ledger { len, sparse, ..Ledger::created(geometry, reserved, physical) };
        ledger.committed = match known {
            Some((_, committed)) => committed,
            None if reserved => 0,
            None => len,
        };
        if let Some((number, _)) = known {
            // Whether its record is durable is not known any longer.
            (ledger.number, ledger.known) = (Some(number), Known::Earlier);
        }
        // An earlier opener may have written without syncing.
        ledger.wrote = reserved || ledger.number.is_some();
        ledger.floor = ledger.slots(ledger.committed);
        ledger
    }

    /// Length of the content.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Length of the backing file.
    pub(crate) fn physical(&self) -> u64 {
        self.physical
    }

    /// Bytes that are durable, as the journal says or will say.
    pub(crate) fn committed(&self) -> u64 {
        self.committed
    }

    /// The file's number in the journal.
    pub(crate) fn number(&self) -> Option<u32> {
        self.number
    }

    /// Whether there may be hole records.
    pub(crate) fn is_sparse(&self) -> bool {
        self.sparse
    }

    /// What the journal has of it.
    pub(crate) fn overlay(&self) -> &Overlay {
        &self.overlay
    }

    /// Whether the journal has slots or a header of it.
    pub(crate) fn is_replaced(&self) -> bool {
        !self.overlay.is_empty() || self.header.is_some()
    }

    /// Whether the header in place may never have been durable, and the journal has no other.
    pub(crate) fn needs_header(&self) -> bool {
        self.committed == 0 && self.header.is_none()
    }

    /// Whether a sync failed, and what was written in place is to be written again.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.doubt
    }

    /// Whether a sync of this file would have something to sync in place.
    pub(crate) fn wrote(&self) -> bool {
        self.wrote
    }

    /// The first and the last of chunks that are lost.
    pub(crate) fn lost(&self) -> Option<(u64, u64)> {
        self.lost
    }

    /// The first slot behind what is committed.
    pub(crate) fn behind_committed(&self) -> u64 {
        self.slots(self.committed)
    }

    /// What a slot is.
    pub(crate) fn standing(&self, index: u64) -> Standing {
        match self.overlay.covering(index) {
            Some((start, Piece { level: Some(level), .. })) => Standing::Hole { start, level },
            Some((_, piece)) => Standing::Replaced(piece),
            None if index < self.floor => Standing::Committed,
            None if index <= self.geometry.tail(self.len) => Standing::Fresh,
            None => Standing::Beyond,
        }
    }

    /// Up to which record the journal is to be durable; all of them if `None`.
    pub(crate) fn record(&self, until: Until) -> Option<u64> {
        match (until, self.known) {
            (Until::Known, Known::By(record)) => Some(record),
            (Until::Known, Known::Earlier) => None,
            (Until::Touched, _) => Some(self.touched),
            (Until::Record(record), _) => Some(record),
        }
    }

    /// The steps by which a request is carried out.
    pub(crate) fn plan(&mut self, request: &Request) -> Vec<Step> {
        match request {
            Request::Write { first, until, len, left } => self.write(*first, *until, *len, left),
            Request::Extend { len, fill } => self.extend(*len, *fill),
            Request::Cut { len, run } => self.cut(*len, *run),
            Request::Punch { first, behind } => {
                let holes = runs(*first, *behind);
                vec![Step::Log(Draft { header: !self.sparse, holes, ..Draft::default() })]
            }
            Request::Sync => self.sync(),
            Request::Commit => self.commit(),
        }
    }

    /// Slots that `committed` bytes have which must not be overwritten. An empty content's slot says nothing.
    fn slots(&self, committed: u64) -> u64 {
        if committed == 0 { 0 } else { self.geometry.tail(committed) + 1 }
    }

    /// Bytes of slots `first` to `until` of a content of `len` bytes.
    fn bytes(&self, first: u64, until: u64, len: u64) -> usize {
        let full = self.geometry.slot_at(until) - self.geometry.slot_at(first);
        full as usize + self.geometry.within(until, len) + OVERHEAD
    }

    /// Whether it is new and nothing of it is committed, as its id says.
    fn is_new(&self) -> bool {
        self.reserved && self.committed == 0
    }

    fn write(&self, first: u64, until: u64, len: u64, left: &[(u64, u8)]) -> Vec<Step> {
        let (stride, bytes) = (self.geometry.stride() as usize, self.bytes(first, until, len));
        let small = len > self.len
            && !self.is_new()
            && !self.wrote
            && self.grown.saturating_add(bytes as u64) <= SMALL_GROWTH;
        // Behind the last slot that must not be overwritten. One within a run of holes counts, too: what it replaced may
        // have been acknowledged.
        let border = match small || !left.is_empty() {
            true => until + 1,
            false => (first..=until)
                .rev()
                .find(|index| !self.standing(*index).is_loose())
                .map_or(first, |at| at + 1),
        };
        let journaled = ((border - first) as usize * stride).min(bytes);
        let mut steps = Vec::with_capacity(4);
        if border <= until {
            let len = (journaled == 0).then_some(len);
            self.in_place(border, journaled, bytes - journaled, len, &mut steps);
        }
        if journaled > 0 {
            let count = (border - first) as u32;
            let last_len = (journaled - (count - 1) as usize * stride) as u32;
            let put = Put { first, count, last_len, from: 0, bytes: journaled };
            let (puts, holes) = ([Some(put), None], left.to_vec());
            steps.push(Step::Log(Draft { puts, holes, len: Some(len), ..Draft::default() }));
        }
        steps
    }

    /// The only maker of [`InPlace`]: for slots that are loose, behind what must be durable before.
    fn in_place(&self, first: u64, from: usize, bytes: usize, len: Option<u64>, steps: &mut Vec<Step>) {
        let slots = bytes.div_ceil(self.geometry.stride() as usize) as u64;
        debug_assert!((first..first + slots).all(|index| self.standing(index).is_loose()));
        self.make_end_known(steps);
        steps.push(Step::Write(InPlace { first, from, bytes, len }));
    }

    /// What must be durable before anything is written behind the committed end: where that end is, and that nothing is
    /// behind it which was cut and is older than the last sync.
    fn make_end_known(&self, steps: &mut Vec<Step>) {
        if !self.is_new() {
            if self.number.is_none() {
                steps.push(Step::Log(Draft::default()));
            }
            steps.push(Step::SyncJournal(Until::Known));
        }
        if self.cut == Cut::Durable {
            return;
        }
        let stored = self.geometry.stored_len(self.len);
        if self.physical > stored {
            // The cut failed when it was half done.
            steps.push(Step::SyncJournal(Until::Touched));
            steps.push(Step::Resize(Resize { stored, why: Why::Gone }));
        }
        if self.cut == Cut::Outdated {
            steps.push(Step::SyncFile);
        }
    }

    fn extend(&self, len: u64, fill: bool) -> Vec<Step> {
        let geometry = self.geometry;
        let (old, new) = (geometry.tail(self.len), geometry.tail(len));
        let mut steps = Vec::new();
        // The backing file's length is tried before anything is promised.
        self.make_end_known(&mut steps);
        let stored = geometry.stored_len(len).max(self.physical);
        steps.push(Step::Resize(Resize { stored, why: Why::Grows }));
        let put = |first, from, bytes: usize| Put { first, count: 1, last_len: bytes as u32, from, bytes };
        let filled = fill.then(|| put(old, 0, geometry.stride() as usize));
        let from = filled.map_or(0, |put| put.bytes);
        let tail = put(new, from, geometry.within(new, len) + OVERHEAD);
        let holes = runs(old + u64::from(fill), new);
        let puts = [filled, Some(tail)];
        let draft = Draft { header: !self.sparse, puts, holes, len: Some(len), ..Draft::default() };
        steps.push(Step::Log(draft));
        steps
    }

    fn cut(&self, len: u64, run: Option<u64>) -> Vec<Step> {
        let geometry = self.geometry;
        let index = geometry.tail(len);
        let bytes = geometry.within(index, len) + OVERHEAD;
        let mut steps = Vec::with_capacity(4);
        let loose = self.floor <= index && self.overlay.last().is_none_or(|last| last < index);
        if loose && run.is_none_or(|start| start == index) {
            // Bytes that are there already: this finds room.
            self.in_place(index, 0, bytes, None, &mut steps);
            steps.push(Step::Resize(Resize { stored: geometry.stored_len(len), why: Why::Cut(len) }));
            return steps;
        }
        let holes = run.map_or_else(Vec::new, |start| runs(start, index));
        let put = Put { first: index, count: 1, last_len: bytes as u32, from: 0, bytes };
        steps.push(Step::Log(Draft { cut: Some(len), puts: [Some(put), None], holes, ..Draft::default() }));
        // Committed bytes go only after the journal knows that they may.
        steps.push(Step::SyncJournal(Until::Touched));
        let stored = geometry.slot_at(index).min(self.physical);
        steps.push(Step::Resize(Resize { stored, why: Why::Gone }));
        steps
    }

    fn sync(&mut self) -> Vec<Step> {
        let wrote = std::mem::take(&mut self.wrote);
        if wrote {
            // What is about to be committed is not overwritten from here on.
            self.floor = self.floor.max(self.slots(self.len));
        }
        self.grown = 0;
        if self.cut == Cut::Fresh {
            self.cut = Cut::Outdated;
        }
        self.mark = Mark { len: self.len, cuts: self.cuts, wrote };
        let mut steps = Vec::with_capacity(2);
        steps.extend(wrote.then_some(Step::SyncFile));
        steps.push(Step::SyncJournal(Until::Record(self.touched)));
        steps
    }

    fn commit(&mut self) -> Vec<Step> {
        let mark = self.mark;
        if !mark.wrote {
            return Vec::new();
        }
        self.doubt = false;
        if self.cuts != mark.cuts {
            // What was cut and grew again meanwhile may rest on records that are not durable yet.
            return vec![Step::SyncJournal(Until::Touched)];
        }
        if self.physical <= self.geometry.stored_len(self.len) {
            self.cut = Cut::Durable;
        }
        if mark.len <= self.committed {
            return Vec::new();
        }
        let mut steps = vec![Step::Log(Draft { commit: Some(mark.len), ..Draft::default() })];
        // The file is durable, and its tags say up to where: the record need not be, before the file grows. If it has
        // grown meanwhile, its length says nothing any longer of where a last short slot ended.
        steps.extend(self.wrote.then_some(Step::SyncJournal(Until::Known)));
        steps
    }

    /// The latest sync failed: it is not forgotten that the end is still to be committed.
    pub(crate) fn sync_failed(&mut self) {
        self.wrote |= self.mark.wrote;
    }

    /// A step was done; `logged` is where a record is.
    pub(crate) fn did(&mut self, step: &Step, logged: Option<Logged>) {
        match step {
            Step::Log(draft) => {
                if let Some(logged) = logged {
                    self.logged(draft, logged);
                }
            }
            Step::SyncJournal(Until::Known) if self.known == Known::Earlier => self.known = Known::By(0),
            Step::SyncJournal(_) => {}
            Step::Write(slots) => {
                self.wrote = true;
                self.physical = self.physical.max(self.geometry.slot_at(slots.first) + slots.bytes as u64);
                self.len = slots.len.unwrap_or(self.len);
            }
            Step::Resize(resize) => {
                self.physical = resize.stored;
                match resize.why {
                    Why::Grows => self.wrote = true,
                    Why::Cut(len) => {
                        (self.len, self.wrote) = (len, true);
                        self.cuts += 1;
                    }
                    Why::Gone => {}
                }
            }
            // Of a sync that goes on beside writers only [`Request::Commit`] says so.
            Step::SyncFile => self.cut = if self.cut == Cut::Outdated { Cut::Durable } else { self.cut },
        }
    }

    /// What was tried in place was taken back, and the backing file is as long as before. The disk may have what was tried
    /// all the same until the next sync.
    pub(crate) fn took_back(&mut self, physical: u64) {
        (self.physical, self.wrote) = (physical, true);
    }

    fn logged(&mut self, draft: &Draft, Logged { file, record, blob }: Logged) {
        self.touched = record;
        if self.number.is_none() {
            (self.number, self.known) = (Some(file), Known::By(record));
        }
        let mut at = blob;
        if draft.header {
            (self.header, self.sparse) = (Some(at), true);
            at += HEADER_LEN as u64;
        }
        if let Some(len) = draft.cut {
            self.logged_cut(len);
        }
        let mut bytes = 0;
        for put in draft.puts() {
            self.overlay.put(put.first, put.count, self.geometry.stride() as u32, put.last_len, at);
            at += put.bytes as u64;
            bytes += put.bytes as u64;
        }
        for (first, level) in draft.holes.iter().copied() {
            self.overlay.insert(first, Piece { at, len: HOLE_LEN as u32, level: Some(level) });
            at += HOLE_LEN as u64;
        }
        if let Some(len) = draft.commit {
            (self.committed, self.known) = (len, Known::By(record));
        }
        if let Some(len) = draft.len {
            if len > self.len {
                self.grown = self.grown.saturating_add(bytes);
            }
            self.len = len;
        }
    }

    /// The journal says, or will, that the content was cut.
    fn logged_cut(&mut self, len: u64) {
        let index = self.geometry.tail(len);
        let replaced = self.overlay.replaced_until(self.geometry.tail(self.len)) > index;
        self.overlay.cut(index);
        self.committed = self.committed.min(len);
        self.floor = self.floor.min(index + 1);
        self.known = Known::By(self.touched);
        self.len = len;
        self.cuts += 1;
        if replaced || self.sparse {
            // A hole record that came back would cover what is written in its run from now on.
            self.cut = Cut::Outdated;
        } else if self.cut == Cut::Durable {
            self.cut = Cut::Fresh;
        }
    }

    /// A sync failed: what was written in place since the last good one may be in memory only. Whether that is news.
    pub(crate) fn in_doubt(&mut self) -> bool {
        self.wrote = true;
        !std::mem::replace(&mut self.doubt, true)
    }

    /// These chunks are lost.
    pub(crate) fn lose(&mut self, (first, last): (u64, u64)) {
        let earlier = self.lost.unwrap_or((first, last));
        self.lost = Some((earlier.0.min(first), earlier.1.max(last)));
    }

    /// All chunks that were lost are whole again, or cut away.
    pub(crate) fn found_again(&mut self) {
        self.lost = None;
    }

    /// What brings the journal's part of this file into place (J4).
    pub(crate) fn placing(&mut self, durable: &Durable) -> Vec<Placing> {
        debug_assert!(durable.covers(self.touched));
        // If it fails half-way the backing file may be as long as that.
        self.physical = self.physical.max(self.geometry.stored_len(self.len));
        placing(self.geometry, &self.overlay, self.header, self.len)
    }

    /// That is done.
    pub(crate) fn placed(&mut self) {
        self.physical = self.geometry.stored_len(self.len);
    }

    /// The epoch is over: everything is in place and durable, and the journal is empty.
    pub(crate) fn begin_epoch(&mut self) {
        self.overlay.clear();
        self.header = None;
        self.committed = self.len;
        self.floor = self.slots(self.len);
        (self.number, self.known, self.touched) = (None, Known::By(0), 0);
        // `wrote` stays: a write that failed in the background is told to the next sync of that file.
        (self.reserved, self.grown, self.doubt) = (false, 0, false);
        self.cut = Cut::Durable;
    }
}

/// How slots of the journal, and a header, come into a file of which `len` bytes of content are kept.
pub(crate) fn placing(geometry: Geometry, overlay: &Overlay, header: Option<u64>, len: u64) -> Vec<Placing> {
    let mut steps = Vec::new();
    let mut entries = overlay.iter().peekable();
    while let Some((index, piece)) = entries.next() {
        let to = geometry.slot_at(index);
        if let Some(level) = piece.level {
            let len = (1_u64 << level).saturating_mul(geometry.stride());
            steps.push(Placing::Punch { at: to, len });
        }
        let (mut bytes, mut next) = (u64::from(piece.len), index + 1);
        // Slots that are neighbours in both places go together.
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
        steps.push(Placing::Copy { from: piece.at, to, bytes: bytes as usize });
    }
    steps.extend(header.map(|from| Placing::Copy { from, to: 0, bytes: HEADER_LEN }));
    steps.push(Placing::Fit { stored: geometry.stored_len(len) });
    steps
}

/// How a file is mended that has `stored` bytes, of whose content `len` bytes are kept: with `open_end` its last slot is
/// to be written. Nothing if it is whole.
pub(crate) fn recovering(
    geometry: Geometry,
    overlay: &Overlay,
    header: Option<u64>,
    stored: u64,
    (len, open_end): (u64, bool),
) -> Vec<Placing> {
    let slot = geometry.tail(len);
    let mut steps = Vec::new();
    if open_end {
        // What is not kept goes first: on a full disk this finds the room.
        steps.push(Placing::Cut { stored: geometry.slot_at(slot) });
        steps.push(Placing::End { slot });
    }
    if !overlay.is_empty() || open_end || header.is_some() || stored != geometry.stored_len(len) {
        steps.extend(placing(geometry, overlay, header, len));
    }
    steps
}

/// What a recovery finds in a slot in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// Data that opens, with all the bytes that were looked at.
    Opens,
    /// A hole record of this level.
    Hole(u8),
    /// Neither.
    Broken,
}

/// How many bytes of a file are whole, from the committed ones on; and whether a last slot must be written behind them.
/// `look` opens a slot in place of so many bytes.
pub(crate) fn whole(
    geometry: Geometry,
    (committed, overlay): (u64, &Overlay),
    stored: u64,
    look: &mut dyn FnMut(u64, usize) -> Result<Look, Error>,
) -> Result<(u64, bool), Error> {
    let chunk = geometry.chunk();
    let mut index = if committed == 0 { 0 } else { geometry.tail(committed) };
    if committed > 0 && overlay.covering(index).is_none() {
        // The committed end was not replaced: nothing behind it was begun, or what was begun had no more than that.
        return Ok((committed, false));
    }
    loop {
        if let Some((start, piece)) = overlay.covering(index) {
            let text = u64::from(piece.len).saturating_sub(OVERHEAD as u64);
            match piece.level {
                Some(level) => index = start + (1 << level),
                None if text < chunk => return Ok((index * chunk + text, false)),
                None => index += 1,
            }
            continue;
        }
        let room = stored.saturating_sub(geometry.slot_at(index)).min(geometry.stride()) as usize;
        if room < OVERHEAD {
            return Ok((index * chunk, true));
        }
        let full = room as u64 == geometry.stride();
        match look(index, room)? {
            Look::Hole(level) if full => index += 1 << level,
            Look::Opens if full => index += 1,
            Look::Opens => return Ok((index * chunk + (room - OVERHEAD) as u64, false)),
            Look::Hole(_) | Look::Broken => return Ok((index * chunk, true)),
        }
    }
}
