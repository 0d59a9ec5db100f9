//! A model for the plans of a `Ledger`: a disk, a journal and a content whose slots are numbers of versions instead of
//! bytes. Any operations are planned and carried out step by step. A disk may refuse a step, and power may be lost behind
//! each; then what recovery plans is carried out, too, perhaps with a power cut in between.
//!
//! [`run`] panics if a version is lost that a sync has acknowledged, or if a slot is left that is none of those written
//! since.

use std::collections::{BTreeMap, BTreeSet};

use crate::content::ledger::{
    self, Draft, Ledger, Logged, Look, Placing, Put, Request, Standing, Step, Until,
};
use crate::content::overlay::{ancestors, runs};
use crate::content::recovery::said::{Lost, Said};
use crate::format::{Geometry, HEADER_LEN, HOLE_LEN, OVERHEAD};
use crate::journal::{Durable, Op, RECORD_HEAD, Record};
use crate::store::Place;

/// Chunks that the content has at most, about.
const CHUNKS: usize = 24;
/// Crashes that are tried behind each step.
const CRASHES: usize = 4;
/// The file's id and number.
const ID: u64 = 7;
const NUMBER: u32 = 1;

/// Chooses a number below the argument.
pub type Choose<'a> = &'a mut dyn FnMut(usize) -> usize;

/// What a slot has, and the key that opens it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Zero,
    Data { version: u32, bytes: u64, key: u32 },
    Hole { level: u8, key: u32 },
    Torn,
}

impl Slot {
    /// The same content under another key.
    fn sealed(self, key: u32) -> Slot {
        match self {
            Slot::Data { version, bytes, .. } => Slot::Data { version, bytes, key },
            Slot::Hole { level, .. } => Slot::Hole { level, key },
            other => other,
        }
    }
}

/// A backing file, or a content: its length, and slots that are not zero. A backing file has its key in its header; slots of
/// contents have no key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Image {
    slots: BTreeMap<u64, Slot>,
    len: u64,
    key: u32,
}

impl Image {
    fn get(&self, index: u64) -> Slot {
        self.slots.get(&index).copied().unwrap_or(Slot::Zero)
    }

    fn set(&mut self, index: u64, slot: Slot) {
        match slot {
            Slot::Zero => self.slots.remove(&index),
            slot => self.slots.insert(index, slot),
        };
    }

    /// As a backing file: writes a slot.
    fn write(&mut self, index: u64, slot: Slot, geometry: Geometry) {
        let bytes = match slot {
            Slot::Data { bytes, .. } => bytes + OVERHEAD as u64,
            Slot::Hole { .. } => HOLE_LEN as u64,
            Slot::Zero | Slot::Torn => geometry.stride(),
        };
        self.set(index, slot);
        self.len = self.len.max(geometry.slot_at(index) + bytes);
    }

    /// As a backing file: gets another length.
    fn resize(&mut self, stored: u64, geometry: Geometry) {
        self.len = stored;
        self.slots.retain(|index, slot| {
            let at = geometry.slot_at(*index);
            if let Slot::Data { bytes, .. } = slot
                && at + *bytes + OVERHEAD as u64 > stored
            {
                *slot = Slot::Torn;
            }
            at < stored
        });
    }

    /// As a backing file: what recovery finds in a slot.
    fn look(&self, key: u32, index: u64, room: usize) -> Look {
        match self.get(index) {
            Slot::Data { bytes, key: with, .. } if with == key && bytes as usize + OVERHEAD == room => {
                Look::Opens
            }
            Slot::Hole { level, key: with } if with == key && room >= 64 => Look::Hole(level),
            _ => Look::Broken,
        }
    }

    /// As a backing file: the content.
    fn content(&self, geometry: Geometry) -> Image {
        let len = geometry.content_len(self.len).expect("a length that a content makes");
        let mut content = Image { len, ..Image::default() };
        for index in 0..=geometry.tail(len) {
            let slot = self.get(index);
            let covered = || {
                ancestors(index).any(|start| match self.get(start) {
                    Slot::Hole { level, key } => key == self.key && index - start < 1 << level,
                    _ => false,
                })
            };
            match slot {
                Slot::Data { bytes, key, .. }
                    if key == self.key && bytes as usize == geometry.within(index, len) =>
                {
                    content.set(index, slot.sealed(0));
                }
                Slot::Zero | Slot::Hole { .. } if index < geometry.tail(len) && covered() => {}
                slot => panic!("chunk {index} of {len} bytes is {slot:?}"),
            }
        }
        content
    }
}

/// A backing file since it was durable: its versions, and which of them another length or a hole made.
#[derive(Clone)]
struct Disk(Vec<(Image, bool)>);

impl Disk {
    fn now(&self) -> &Image {
        &self.0.last().expect("there is always one").0
    }

    fn change(&mut self, shape: bool, change: impl FnOnce(&mut Image)) {
        let mut next = self.now().clone();
        change(&mut next);
        self.0.push((next, shape));
    }

    fn sync(&mut self) {
        self.0.drain(..self.0.len() - 1);
        self.0[0].1 = false;
    }

    /// What a power cut leaves: a length that there was, and of each slot any version since, or a torn one.
    fn crash(&self, geometry: Geometry, choose: Choose<'_>) -> Image {
        let stages: Vec<usize> = (0..self.0.len())
            .filter(|at| *at == 0 || self.0[*at].1 || self.0[*at].0.len != self.0[at - 1].0.len)
            .collect();
        let reached = stages[choose(stages.len())];
        // A header is in one sector, and as old as any.
        let headers: Vec<u32> = self.0.iter().map(|(image, _)| image.key).collect();
        let mut image = Image { key: headers[choose(headers.len())], ..Image::default() };
        let indices: BTreeSet<u64> =
            self.0.iter().flat_map(|(image, _)| image.slots.keys().copied()).collect();
        for index in indices {
            let at = |version: usize| self.0[version].0.get(index);
            // What a cut or a hole that is durable has removed stays so.
            let removed = |version: &usize| self.0[*version].1 && at(version - 1) != at(*version);
            let least = (1..=reached).filter(removed).max().unwrap_or(0);
            let mut slots = vec![at(least)];
            for version in least + 1..self.0.len() {
                if slots[slots.len() - 1] != at(version) {
                    slots.push(at(version));
                }
            }
            let mut slot = slots[choose(slots.len())];
            if slots.len() > 1 && choose(3) == 0 {
                slot = Slot::Torn;
            }
            image.set(index, slot);
        }
        image.resize(self.0[reached].0.len, geometry);
        image
    }
}

/// One record of the journal, and the slots of its blob by where they are.
#[derive(Clone)]
struct Entry {
    ops: Vec<Op>,
    at: u64,
    blob: BTreeMap<u64, Slot>,
    bytes: u64,
    /// The key in its header, if it has one.
    key: Option<u32>,
}

/// A file with its ledger.
struct Model {
    geometry: Geometry,
    ledger: Ledger,
    disk: Disk,
    journal: Vec<Entry>,
    synced: usize,
    /// Records there were before those in the journal.
    before: u64,
    /// Contents since the one that a sync has acknowledged, which is the first.
    contents: Vec<Image>,
    /// What the journal knows of the file: its number and its committed length.
    known: Option<(u32, u64)>,
    /// Its id says that it is new in this epoch.
    reserved: bool,
    version: u32,
    /// The key, the one that comes next, if any, and how many there were.
    key: u32,
    next: Option<u32>,
    keys: u32,
}

/// Carries out so many operations, each as `choose` says.
///
/// # Panics
/// If something is lost that was acknowledged.
pub fn run(operations: usize, choose: Choose<'_>) {
    let geometry = Geometry::new(4096).expect("a chunk size");
    let mut model = Model::new(geometry);
    for _ in 0..operations {
        model.operation(choose);
        model.check();
    }
}

impl Model {
    fn new(geometry: Geometry) -> Model {
        let mut image = Image { len: geometry.stored_len(0), ..Image::default() };
        image.set(0, Slot::Data { version: 0, bytes: 0, key: 0 });
        let contents = vec![image.content(geometry)];
        Model {
            geometry,
            ledger: Ledger::created(geometry, true, image.len),
            disk: Disk(vec![(image, false)]),
            journal: Vec::new(),
            synced: 0,
            before: 0,
            contents,
            known: None,
            reserved: true,
            version: 0,
            key: 0,
            next: None,
            keys: 0,
        }
    }

    fn content(&self) -> &Image {
        self.contents.last().expect("there is always one")
    }

    /// What a reader finds in a slot.
    fn reads(&self, index: u64) -> Slot {
        let slot = self.finds(index);
        if let Slot::Data { key, .. } = slot {
            assert_eq!(key, self.key, "the key of chunk {index}");
        }
        slot.sealed(0)
    }

    fn finds(&self, index: u64) -> Slot {
        match self.ledger.standing(index) {
            Standing::Replaced(piece) => self.blob(piece.at),
            Standing::Hole { .. } => Slot::Zero,
            Standing::Committed | Standing::Fresh => match self.disk.now().get(index) {
                Slot::Hole { .. } => Slot::Zero,
                slot => slot,
            },
            Standing::Beyond => panic!("slot {index} is behind the end"),
        }
    }

    fn blob(&self, at: u64) -> Slot {
        let slot = self.journal.iter().find_map(|entry| entry.blob.get(&at));
        *slot.unwrap_or_else(|| panic!("the journal has nothing at {at}"))
    }

    /// Whether readers find the content.
    fn check(&self) {
        let content = self.content();
        assert_eq!(self.ledger.len(), content.len);
        for index in 0..=self.geometry.tail(content.len) {
            assert_eq!(self.reads(index), content.get(index), "chunk {index}");
        }
    }

    /// The run of holes that covers a slot.
    fn run_at(&self, index: u64) -> Option<(u64, u64)> {
        match self.ledger.standing(index) {
            Standing::Hole { start, level } => return Some((start, start + (1 << level))),
            Standing::Replaced(_) => return None,
            _ => {}
        }
        ancestors(index).find_map(|start| {
            match (self.ledger.overlay().get(start), self.disk.now().get(start)) {
                (None, Slot::Hole { level, key }) if key == self.key && index - start < 1 << level => {
                    Some((start, start + (1 << level)))
                }
                _ => None,
            }
        })
    }

    fn place(&self, choose: Choose<'_>) -> u64 {
        let chunk = choose(CHUNKS) as u64 * self.geometry.chunk();
        match choose(3) {
            0 => chunk,
            1 => chunk + choose(5) as u64,
            _ => chunk + choose(4096) as u64,
        }
    }

    fn operation(&mut self, choose: Choose<'_>) {
        let len = self.content().len;
        match choose(14) {
            0..=2 => {
                let at = self.place(choose).min(len);
                let size = 1 + self.place(choose) / 2;
                self.write(at, at + size, choose);
            }
            3 => self.write(len, len + 1 + choose(200) as u64, choose),
            4 => {
                let to = self.place(choose);
                if self.geometry.tail(to) > self.geometry.tail(len) + 1 {
                    self.extend(to, choose);
                }
            }
            5 => {
                let to = self.place(choose);
                if to < len {
                    self.cut(to, choose);
                }
            }
            6 => {
                let (first, behind) = (choose(CHUNKS) as u64, choose(CHUNKS) as u64);
                if first < behind.min(self.geometry.tail(len)) {
                    self.punch(first, behind.min(self.geometry.tail(len)), choose);
                }
            }
            7..=9 => self.sync(choose),
            10 => self.checkpoint(choose),
            11 => self.turn(choose),
            12 if len > 0 => self.cut(0, choose),
            _ if !self.ledger.is_replaced() => {
                // Every opener closes, and one opens again.
                let stored = self.disk.now().len;
                let was =
                    (self.geometry.content_len(stored).expect("whole"), stored, self.ledger.is_sparse());
                self.ledger = Ledger::opened(self.geometry, was, self.known, self.reserved);
            }
            _ => {}
        }
    }

    fn data(&self, index: u64, len: u64) -> Slot {
        let key = self.next.unwrap_or(self.key);
        Slot::Data { version: self.version, bytes: self.geometry.within(index, len) as u64, key }
    }

    fn write(&mut self, at: u64, end: u64, choose: Choose<'_>) {
        let geometry = self.geometry;
        let (first, last) = (at / geometry.chunk(), (end - 1) / geometry.chunk());
        let (old, len) = (self.content().len, self.content().len.max(end));
        let until = if len == end { geometry.tail(len) } else { last };
        let mut left = Vec::new();
        if first < geometry.tail(old)
            && let Some((start, end)) = self.run_at(first)
        {
            left.extend(runs(start, first));
            left.extend(runs(until + 1, end));
        }
        if last > first
            && last < geometry.tail(old)
            && let Some((start, end)) = self.run_at(last)
            && start > first
        {
            left.extend(runs(until + 1, end));
        }
        self.version += 1;
        let sealed: Vec<Slot> = (first..=until).map(|index| self.data(index, len)).collect();
        let mut next = self.content().clone();
        next.len = len;
        (first..=until).zip(&sealed).for_each(|(index, slot)| next.set(index, slot.sealed(0)));
        self.carry_out(&Request::Write { first, until, len, left }, next, &sealed, choose);
    }

    fn extend(&mut self, len: u64, choose: Choose<'_>) {
        let geometry = self.geometry;
        let old = geometry.tail(self.content().len);
        let fill = geometry.within(old, self.content().len) > 0;
        self.version += 1;
        let mut next = self.content().clone();
        next.set(old, Slot::Zero);
        let filled = fill.then(|| self.data(old, len));
        next.len = len;
        filled.iter().for_each(|slot| next.set(old, slot.sealed(0)));
        let tail = self.data(geometry.tail(len), len);
        next.set(geometry.tail(len), tail.sealed(0));
        let sealed: Vec<Slot> = filled.into_iter().chain([tail]).collect();
        self.carry_out(&Request::Extend { len, fill }, next, &sealed, choose);
    }

    fn cut(&mut self, len: u64, choose: Choose<'_>) {
        let index = self.geometry.tail(len);
        let inner = index < self.geometry.tail(self.content().len);
        let run = if inner { self.run_at(index).map(|(start, _)| start) } else { None };
        self.version += 1;
        let turn = len == 0 && choose(4) > 0;
        if turn {
            self.next_key();
        }
        let slot = self.data(index, len);
        let mut next = self.content().clone();
        next.slots.split_off(&index);
        next.len = len;
        next.set(index, slot.sealed(0));
        self.carry_out(&Request::Cut { len, run, turn }, next, &[slot], choose);
    }

    fn next_key(&mut self) {
        self.keys += 1;
        self.next = Some(self.keys);
    }

    /// Seals everything with another key.
    fn turn(&mut self, choose: Choose<'_>) {
        let (geometry, content) = (self.geometry, self.content().clone());
        let tail = geometry.tail(content.len);
        self.next_key();
        let (mut puts, mut holes, mut sealed, mut index) = (Vec::<Put>::new(), Vec::new(), Vec::new(), 0);
        while index <= tail {
            if index < tail
                && let Some((start, end)) = self.run_at(index)
            {
                holes.extend(runs(start, end));
                index = end;
                continue;
            }
            let bytes = geometry.within(index, content.len) + OVERHEAD;
            let from = sealed.len() * geometry.stride() as usize;
            sealed.push(self.reads(index).sealed(self.keys));
            match puts.last_mut().filter(|put| put.first + u64::from(put.count) == index) {
                Some(put) => {
                    (put.count, put.last_len, put.bytes) = (put.count + 1, bytes as u32, put.bytes + bytes);
                }
                None => puts.push(Put { first: index, count: 1, last_len: bytes as u32, from, bytes }),
            }
            index += 1;
        }
        let sparse = !holes.is_empty();
        let renamed = choose(2) == 0;
        self.carry_out(&Request::Turn { puts, holes, sparse, renamed }, content, &sealed, choose);
    }

    fn punch(&mut self, first: u64, behind: u64, choose: Choose<'_>) {
        let first = self.run_at(first).map_or(first, |(start, _)| start.min(first));
        let behind = self.run_at(behind - 1).map_or(behind, |(_, end)| end.max(behind));
        let mut next = self.content().clone();
        (first..behind).for_each(|index| next.set(index, Slot::Zero));
        self.carry_out(&Request::Punch { first, behind }, next, &[], choose);
    }

    /// Plans a request that makes the content `next`, and carries it out, until a step is refused.
    fn carry_out(&mut self, request: &Request, next: Image, sealed: &[Slot], choose: Choose<'_>) {
        let old = self.content().clone();
        self.contents.push(next);
        let (mut tried, mut refused) = (None, false);
        for step in self.ledger.plan(request) {
            refused = !matches!(step, Step::SyncFile | Step::SyncJournal(_)) && choose(24) == 0;
            self.step(&step, sealed, refused, &mut tried, choose);
            self.crashes(choose);
            if refused {
                break;
            }
        }
        match self.next.take() {
            Some(next) if !refused => self.key = next,
            _ => {}
        }
        if refused {
            let geometry = self.geometry;
            if let Some((before, physical)) = tried {
                self.disk.change(true, |image| image.resize(physical, geometry));
                self.disk.change(false, |image| *image = before);
                self.ledger.took_back(physical);
            }
            // A cut counts from its record on.
            if self.ledger.len() == old.len {
                self.contents.push(old);
            }
        }
    }

    fn step(
        &mut self,
        step: &Step,
        sealed: &[Slot],
        refused: bool,
        tried: &mut Option<(Image, u64)>,
        choose: Choose<'_>,
    ) {
        let geometry = self.geometry;
        let mut logged = None;
        match step {
            Step::Log(_) if refused => return,
            Step::Log(draft) => logged = Some(self.log(draft, sealed)),
            Step::SyncJournal(until) => {
                let record = self
                    .ledger
                    .record(*until)
                    .map_or(usize::MAX, |record| record.saturating_sub(self.before) as usize);
                self.synced = self.synced.max(record.min(self.journal.len()));
            }
            Step::Write(slots) => {
                *tried = Some((self.disk.now().clone(), self.ledger.physical()));
                let skip = (slots.range().start as u64).div_ceil(geometry.stride()) as usize;
                let count = slots.range().len().div_ceil(geometry.stride() as usize);
                let fits = if refused { choose(count + 1) } else { count };
                for (index, slot) in (slots.first()..).zip(&sealed[skip..skip + fits]) {
                    self.disk.change(false, |image| image.write(index, *slot, geometry));
                }
            }
            Step::Resize(resize) => {
                if resize.is_trial() {
                    *tried = Some((self.disk.now().clone(), self.ledger.physical()));
                }
                if !refused {
                    self.disk.change(true, |image| image.resize(resize.stored, geometry));
                }
            }
            Step::Begin => {
                *tried = Some((self.disk.now().clone(), self.ledger.physical()));
                let key = self.next.expect("a key that comes next");
                if !refused {
                    // A page with both reaches the disk in any part.
                    self.disk.change(false, |image| image.write(0, sealed[0], geometry));
                    self.disk.change(false, |image| image.key = key);
                }
            }
            Step::Room(_) => {}
            Step::SyncFile => self.disk.sync(),
        }
        if refused {
            return;
        }
        self.ledger.did(step, logged);
        if let Step::Log(draft) = step
            && draft.header.is_some()
        {
            self.key = self.next.take().unwrap_or(self.key);
        }
        if let (Step::Log(draft), Some(logged)) = (step, logged)
            && (self.known.is_none() || draft.cut.is_some() || draft.commit.is_some())
        {
            self.known = Some((logged.file, self.ledger.committed()));
        }
    }

    fn log(&mut self, draft: &Draft, sealed: &[Slot]) -> Logged {
        let place = Place { inode: (1, 1), path: Vec::new() };
        let committed = self.ledger.committed();
        let introduced = self.ledger.number().is_none();
        let file = introduced.then_some(Op::File { number: NUMBER, id: ID, place, committed });
        let ops: Vec<Op> = file.into_iter().chain(draft.ops(NUMBER)).collect();
        let end = self.journal.last().map_or(8192, |entry| entry.at + entry.bytes + 64);
        let (at, stride) = (end + RECORD_HEAD as u64, self.geometry.stride());
        let mut entry = Entry { ops, at, blob: BTreeMap::new(), bytes: 0, key: None };
        let key = self.next.unwrap_or(self.key);
        if draft.header.is_some() {
            entry.key = Some(key);
            entry.bytes += HEADER_LEN as u64;
        }
        for put in draft.puts() {
            let skip = (put.from as u64).div_ceil(stride) as usize;
            for (number, slot) in sealed[skip..].iter().take(put.count as usize).enumerate() {
                entry.blob.insert(at + entry.bytes + number as u64 * stride, *slot);
            }
            entry.bytes += put.bytes as u64;
        }
        for (_, level) in draft.holes.iter().copied() {
            entry.blob.insert(at + entry.bytes, Slot::Hole { level, key });
            entry.bytes += HOLE_LEN as u64;
        }
        self.journal.push(entry);
        let record = self.before + self.journal.len() as u64;
        Logged { file: NUMBER, record, blob: at }
    }

    fn sync(&mut self, choose: Choose<'_>) {
        let version = self.contents.len() - 1;
        for step in self.ledger.plan(&Request::Sync) {
            if choose(4) == 0 {
                // Writers go on meanwhile.
                let len = self.content().len;
                let at = self.place(choose).min(len);
                match choose(2) {
                    0 if len > 1 => self.cut(choose(len as usize) as u64, choose),
                    _ => self.write(at, at + 1 + self.place(choose) / 4, choose),
                }
            }
            match step {
                Step::SyncFile => self.disk.sync(),
                Step::SyncJournal(Until::Record(record)) => {
                    let record = record.saturating_sub(self.before) as usize;
                    self.synced = self.synced.max(record);
                }
                step => panic!("{step:?} in a sync"),
            }
            self.crashes(choose);
        }
        for step in self.ledger.plan(&Request::Commit) {
            self.step(&step, &[], false, &mut None, choose);
            self.crashes(choose);
        }
        self.contents.drain(..version);
        self.crashes(choose);
    }

    fn checkpoint(&mut self, choose: Choose<'_>) {
        self.synced = self.journal.len();
        if self.ledger.is_replaced() {
            let durable = Durable::modelled(self.before + self.journal.len() as u64);
            for step in self.ledger.placing(&durable) {
                let mut image = self.disk.now().clone();
                let shape = !matches!(step, Placing::Copy { .. });
                self.put_in_place(&mut image, step, self.key);
                self.disk.change(shape, |now| *now = image);
                self.crashes(choose);
            }
            self.ledger.placed();
        }
        self.disk.sync();
        self.crashes(choose);
        self.before += self.journal.len() as u64;
        (self.journal, self.synced, self.known, self.reserved) = (Vec::new(), 0, None, false);
        self.ledger.begin_epoch();
        self.contents.drain(..self.contents.len() - 1);
        self.crashes(choose);
    }

    fn put_in_place(&self, image: &mut Image, step: Placing, key: u32) {
        let (geometry, stride) = (self.geometry, self.geometry.stride());
        let index = |at: u64| (at - HEADER_LEN as u64) / stride;
        match step {
            Placing::Punch { at, len } => {
                image.set(index(at), Slot::Torn);
                for slot in index(at) + 1..index(at + len) {
                    image.set(slot, Slot::Zero);
                }
            }
            Placing::Copy { from, to: 0, .. } => image.key = self.header(from),
            Placing::Copy { from, to, bytes } => {
                for number in 0..(bytes as u64).div_ceil(stride) {
                    image.write(index(to) + number, self.blob(from + number * stride), geometry);
                }
            }
            Placing::End { slot } => {
                let end = Slot::Data { version: 0, bytes: 0, key };
                image.write(slot, end, geometry);
            }
            Placing::Cut { stored } if image.len <= stored => {}
            Placing::Cut { stored } | Placing::Fit { stored } => {
                if image.len != stored {
                    image.resize(stored, geometry);
                }
            }
        }
    }

    /// Power is lost now, some times: what recovery makes of it is one of the contents since the latest sync.
    fn crashes(&self, choose: Choose<'_>) {
        for _ in 0..CRASHES {
            let kept = self.synced + choose(self.journal.len() - self.synced + 1);
            let mut image = self.disk.crash(self.geometry, choose);
            // Perhaps power is lost while that is repeated.
            let (key, steps) = self.recover(&image, kept);
            for step in &steps[..choose(steps.len() + 1)] {
                self.put_in_place(&mut image, *step, key);
            }
            let (key, steps) = self.recover(&image, kept);
            for step in steps {
                self.put_in_place(&mut image, step, key);
            }
            self.is_one_of(&image.content(self.geometry));
        }
    }

    /// The key with the first records of the journal, and what recovery plans.
    fn recover(&self, image: &Image, kept: usize) -> (u32, Vec<Placing>) {
        let geometry = self.geometry;
        let mut said = Said::default();
        for entry in &self.journal[..kept] {
            let record = Record { ops: entry.ops.clone(), blob_at: entry.at, blob_len: entry.bytes };
            said.hear(record, geometry).expect("records of the journal's own");
        }
        let unknown = || Lost::unknown(ID, Place { inode: (1, 1), path: Vec::new() });
        let Some(mut lost) = said.files.pop().or_else(|| self.reserved.then(unknown)) else {
            return (image.key, Vec::new());
        };
        let key = lost.header.map_or(image.key, |at| self.header(at));
        let look = &mut |index, room| Ok(image.look(key, index, room));
        let (len, open_end) =
            ledger::whole(geometry, (lost.committed, &lost.overlay), image.len, look).expect("no I/O");
        lost.overlay.cut(geometry.tail(len) + 1);
        (key, ledger::recovering(geometry, &lost.overlay, lost.header, image.len, (len, open_end)))
    }

    /// The key in a header of the journal.
    fn header(&self, at: u64) -> u32 {
        let entry = self.journal.iter().find(|entry| entry.at == at);
        entry.and_then(|entry| entry.key).unwrap_or_else(|| panic!("the journal has no header at {at}"))
    }

    fn is_one_of(&self, got: &Image) {
        let shortest = self.contents.iter().map(|content| content.len).min().unwrap_or(0);
        assert!(got.len >= shortest, "{} bytes of at least {shortest}", got.len);
        for index in 0..self.geometry.tail(got.len) + u64::from(!got.len.is_multiple_of(4096)) {
            let slot = got.get(index);
            let is = |content: &Image| index <= self.geometry.tail(content.len) && content.get(index) == slot;
            assert!(self.contents.iter().any(is), "chunk {index} is {slot:?}");
        }
    }
}
