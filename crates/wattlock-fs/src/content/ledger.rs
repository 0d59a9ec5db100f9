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

mod placing;
mod steps;

use super::SMALL_GROWTH;
use super::overlay::{Overlay, Piece, runs};
use crate::format::{Geometry, HEADER_LEN, HOLE_LEN, OVERHEAD};
use crate::journal::Durable;
pub(crate) use placing::{Look, Placing, placing, recovering, whole};
pub(crate) use steps::{Draft, InPlace, Logged, NewHeader, Put, Request, Resize, Room, Step, Until};
use steps::{SPARSE, Why};

/// Room is taken in multiples of so many bytes, so that lines that are appended need not take it each.
const BLOCK: u64 = 4096;

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

/// What a sync found when it began.
#[derive(Debug, Clone, Copy, Default)]
struct Mark {
    len: u64,
    cuts: u64,
    doubts: u64,
    begins: u64,
    wrote: bool,
}

/// What the journal has of a file that is only read, and what is whole of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Over {
    pub(crate) len: u64,
    pub(crate) open_end: bool,
    /// What followed had not been synced.
    pub(crate) cut: bool,
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
    /// A record has another key of the file.
    turned: bool,
    /// The header in place may be older than the key, and the journal has none: the next record has one.
    begun: bool,
    begins: u64,
    /// The journal's latest record about this file.
    touched: u64,
    /// Something was written in place since the last sync.
    wrote: bool,
    /// A sync failed: what was written in place may be in memory only, and no later sync would write it or say so.
    doubt: bool,
    /// How often a sync failed: another one that went on meanwhile says nothing.
    doubts: u64,
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
    /// The backing file has room up to here, unless it is sparse.
    roomy: u64,
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
            turned: false,
            begun: false,
            begins: 0,
            touched: 0,
            wrote: reserved,
            doubt: false,
            doubts: 0,
            lost: None,
            grown: 0,
            cuts: 0,
            cut: Cut::Durable,
            sparse: false,
            mark: Mark::default(),
            open_end: false,
            roomy: physical,
        }
    }

    /// A file that is only read: what a recovery would bring into place, and cut, is in the ledger instead.
    pub(crate) fn read_over(geometry: Geometry, physical: u64, sparse: bool, over: Over) -> Ledger {
        let created = Ledger::created(geometry, false, physical);
        let Over { len, open_end, overlay, header, .. } = over;
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
        ledger.begun = reserved;
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

    /// Whether the journal has a header of it.
    pub(crate) fn has_header(&self) -> bool {
        self.header.is_some()
    }

    /// Whether the header in place may never have been durable, and the journal has no other.
    pub(crate) fn needs_header(&self) -> bool {
        self.committed == 0 && self.header.is_none()
    }

    /// Whether a sync failed, and what was written in place is to be written again.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.doubt
    }

    /// Whether a sync of this file has something to sync in place, or would have.
    pub(crate) fn wrote(&self) -> bool {
        self.wrote || self.mark.wrote
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
        let mut steps = self.planned(request);
        if self.begun {
            let sparse = self.sparse;
            let logged = steps.iter_mut().find_map(|step| match step {
                Step::Log(draft) => Some(draft),
                _ => None,
            });
            logged.map(|draft| draft.header.get_or_insert(NewHeader { sparse, turn: false }));
        }
        steps
    }

    fn planned(&mut self, request: &Request) -> Vec<Step> {
        match request {
            Request::Write { first, until, len, left } => self.write(*first, *until, *len, left),
            Request::Extend { len, fill } => self.extend(*len, *fill),
            Request::Cut { len, run, turn } => self.cut(*len, *run, *turn),
            Request::Turn { puts, holes, sparse, renamed } => self.turn(puts, holes, (*sparse, *renamed)),
            Request::Rename => {
                let header = Some(NewHeader { sparse: self.sparse, turn: false });
                vec![Step::Log(Draft { header, ..Draft::default() })]
            }
            Request::Punch { first, behind } => {
                let holes = runs(*first, *behind);
                vec![Step::Log(Draft { header: self.allows_holes(), holes, ..Draft::default() })]
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
            self.log(Draft { puts, holes, len: Some(len), ..Draft::default() }, &mut steps);
        }
        steps
    }

    /// Plans a record, behind the room in place that its slots have not yet.
    fn log(&self, draft: Draft, steps: &mut Vec<Step>) {
        let geometry = self.geometry;
        for put in draft.puts() {
            let at = geometry.slot_at(put.first);
            let end = at + put.bytes as u64;
            let (from, until) = match self.sparse || draft.header.is_some() {
                true => (at, end),
                false => (self.roomy, end.next_multiple_of(BLOCK)),
            };
            if from < until {
                steps.push(Step::Room(Room { at: from, len: until - from, needed: true }));
            }
        }
        let hole = |(first, _): &(u64, u8)| {
            let at = geometry.slot_at(*first);
            Step::Room(Room { at, len: HOLE_LEN as u64, needed: true })
        };
        steps.extend(draft.holes.iter().map(hole));
        steps.push(Step::Log(draft));
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
        if !self.is_new() || self.turned {
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
        let gone = steps.iter().any(|step| matches!(step, Step::Resize(_)));
        let stored = geometry.stored_len(len).max(if gone { 0 } else { self.physical });
        steps.push(Step::Resize(Resize { stored, why: Why::Grows }));
        let put = |first, from, bytes: usize| Put { first, count: 1, last_len: bytes as u32, from, bytes };
        let filled = fill.then(|| put(old, 0, geometry.stride() as usize));
        let from = filled.map_or(0, |put| put.bytes);
        let tail = put(new, from, geometry.within(new, len) + OVERHEAD);
        let holes = runs(old + u64::from(fill), new);
        let puts = [filled, Some(tail)];
        let header = self.allows_holes();
        let draft = Draft { header, puts, holes, len: Some(len), ..Draft::default() };
        self.log(draft, &mut steps);
        steps
    }

    /// The header that a record needs whose hole records are the file's first.
    fn allows_holes(&self) -> Option<NewHeader> {
        (!self.sparse).then_some(SPARSE)
    }

    /// Whether nothing of it is committed or in the journal: another key may be written in place.
    fn is_blank(&self) -> bool {
        self.is_new() && self.floor == 0 && self.overlay.is_empty() && self.header.is_none()
    }

    fn turn(&self, puts: &[Put], holes: &[(u64, u8)], (sparse, renamed): (bool, bool)) -> Vec<Step> {
        if self.len == 0 && self.is_blank() && !renamed {
            return vec![Step::Begin];
        }
        let header = Some(NewHeader { sparse, turn: true });
        let draft = Draft { header, turned: puts.to_vec(), holes: holes.to_vec(), ..Draft::default() };
        let mut steps = Vec::new();
        self.log(draft, &mut steps);
        steps
    }

    fn cut(&self, len: u64, run: Option<u64>, turn: bool) -> Vec<Step> {
        debug_assert!(!turn || len == 0);
        let geometry = self.geometry;
        let index = geometry.tail(len);
        let bytes = geometry.within(index, len) + OVERHEAD;
        let mut steps = Vec::with_capacity(4);
        let loose = self.floor <= index && self.overlay.last().is_none_or(|last| last < index);
        if turn && self.is_blank() {
            let resize = Resize { stored: geometry.stored_len(0), why: Why::Cut(0) };
            return vec![Step::Begin, Step::Resize(resize)];
        }
        if !turn && loose && run.is_none_or(|start| start == index) {
            // Bytes that are there already: this finds room.
            self.in_place(index, 0, bytes, None, &mut steps);
            steps.push(Step::Resize(Resize { stored: geometry.stored_len(len), why: Why::Cut(len) }));
            return steps;
        }
        let holes = run.map_or_else(Vec::new, |start| runs(start, index));
        let put = Put { first: index, count: 1, last_len: bytes as u32, from: 0, bytes };
        let hole = |(first, _): &(u64, u8)| {
            Step::Room(Room { at: geometry.slot_at(*first), len: HOLE_LEN as u64, needed: true })
        };
        steps.extend(holes.iter().map(hole));
        let header = turn.then_some(NewHeader { sparse: false, turn });
        let puts = [Some(put), None];
        steps.push(Step::Log(Draft { cut: Some(len), header, puts, holes, ..Draft::default() }));
        // Committed bytes go only after the journal knows that they may.
        steps.push(Step::SyncJournal(Until::Touched));
        let at = geometry.slot_at(index);
        steps.push(Step::Resize(Resize { stored: at.min(self.physical), why: Why::Gone }));
        // What the new last slot needs was just given back.
        steps.push(Step::Room(Room { at, len: bytes as u64, needed: false }));
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
        let Ledger { len, cuts, doubts, begins, .. } = *self;
        self.mark = Mark { len, cuts, doubts, begins, wrote };
        let mut steps = Vec::with_capacity(2);
        steps.extend(wrote.then_some(Step::SyncFile));
        steps.push(Step::SyncJournal(Until::Record(self.touched)));
        steps
    }

    /// Whether another sync failed since this one began. The system tells of what it lost once, and told the other.
    pub(crate) fn was_doubted(&self) -> bool {
        self.doubts != self.mark.doubts
    }

    fn commit(&mut self) -> Vec<Step> {
        let mark = self.mark;
        if !mark.wrote || self.was_doubted() {
            return Vec::new();
        }
        self.doubt = false;
        self.begun &= self.begins != mark.begins;
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
        // grown meanwhile, or is longer for another reason, its length says nothing of where a last short slot ended.
        let longer = self.wrote || self.physical > self.geometry.stored_len(self.len);
        steps.extend(longer.then_some(Step::SyncJournal(Until::Known)));
        steps
    }

    /// The latest sync is over. If it failed it is not forgotten that the end is still to be committed.
    pub(crate) fn sync_ended(&mut self, good: bool) {
        self.wrote |= std::mem::take(&mut self.mark.wrote) && !good;
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
                self.roomy = self.roomy.max(self.physical);
                self.len = slots.len.unwrap_or(self.len);
            }
            Step::Begin => {
                self.wrote = true;
                self.physical = self.physical.max(self.geometry.stored_len(0));
                self.roomy = self.roomy.max(self.physical);
                (self.sparse, self.begun) = (false, true);
                self.begins += 1;
            }
            Step::Room(room) => self.roomy = self.roomy.max(room.at + room.len),
            Step::Resize(resize) => {
                if resize.stored < self.physical {
                    self.roomy = resize.stored;
                }
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
        self.roomy = self.end_in_place().max(physical);
    }

    /// How long the backing file will be: up to there it has room.
    pub(crate) fn end_in_place(&self) -> u64 {
        self.geometry.stored_len(self.len)
    }

    fn logged(&mut self, draft: &Draft, Logged { file, record, blob }: Logged) {
        self.touched = record;
        if self.number.is_none() {
            (self.number, self.known) = (Some(file), Known::By(record));
        }
        let mut at = blob;
        if let Some(len) = draft.cut {
            self.logged_cut(len);
        }
        if let Some(NewHeader { sparse, turn }) = draft.header {
            (self.header, self.sparse, self.begun) = (Some(at), sparse, false);
            at += HEADER_LEN as u64;
            if turn {
                // What the old key has sealed does not open.
                (self.turned, self.known, self.cut) = (true, Known::By(record), Cut::Durable);
                self.overlay.clear();
            }
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
        self.doubts += 1;
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
        (self.reserved, self.turned, self.begun) = (false, false, false);
        (self.grown, self.doubt) = (0, false);
        self.cut = Cut::Durable;
    }
}
