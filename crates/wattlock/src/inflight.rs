//! The requests one dispatcher has in flight: who has each, since when, and until when.
//!
//! A token names one request for the dispatcher's life: its low 24 bits are a slot, the others count requests, so tokens
//! ascend with time and a late answer to an earlier use of the slot finds nothing. A request is taken out exactly once; that is what makes a
//! completion happen exactly once.
//!
//! Requests that come one after the other, alike in everything but their marks, share an entry: what a batch has in
//! common is written, read and counted once.

use std::mem;

use wattlock_core::{Expected, Nanos, Shape, Token};
use wattlock_policy::EngineId;

/// Why a request is in flight.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// A door asked.
    Door,
    /// It is a known-answer test of the runtime's own.
    Test(Box<Expected>),
}

/// Requests that one entry has room for: a batch of lanes.
const MOST: usize = 8;

/// Requests in flight that came together, or one.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) engine: EngineId,
    pub(crate) shape: Shape,
    pub(crate) purpose: Purpose,
    /// How long each was held before that, on average.
    held_before_ns: Nanos,
    pub(crate) submitted_ns: Nanos,
    /// When the runtime stops waiting for them.
    pub(crate) give_up_ns: Nanos,
    /// Requests in flight on the engine when the first was submitted, itself included.
    depth: u32,
    /// The first one's number; the others' follow.
    first: u64,
    /// How many there were, and a bit for each that is still in flight.
    count: u8,
    live: u8,
    /// The door's own marks.
    marks: [u64; MOST],
}

/// One request that has left.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) engine: EngineId,
    pub(crate) shape: Shape,
    pub(crate) purpose: Purpose,
    pub(crate) mark: u64,
    /// How long it was held before it was submitted.
    pub(crate) held_before_ns: Nanos,
    pub(crate) submitted_ns: Nanos,
    /// Requests in flight on the engine when it was submitted, itself included.
    pub(crate) depth: u32,
}

impl Left {
    /// Whether a door waits for it.
    pub(crate) fn is_door(&self) -> bool {
        matches!(self.purpose, Purpose::Door)
    }
}

impl Entry {
    /// One request of a door's.
    fn new(engine: EngineId, shape: &Shape, submitted_ns: Nanos, give_up_ns: Nanos) -> Entry {
        Entry {
            engine,
            shape: *shape,
            purpose: Purpose::Door,
            held_before_ns: 0,
            submitted_ns,
            give_up_ns,
            depth: 1,
            first: 0,
            count: 1,
            live: 1,
            marks: [0; MOST],
        }
    }

    /// Whether a door waits for them.
    pub(crate) fn is_door(&self) -> bool {
        matches!(self.purpose, Purpose::Door)
    }

    /// Which of them a number names that is still in flight.
    #[inline]
    fn at(&self, serial: u64) -> Option<usize> {
        let at = (serial.wrapping_sub(self.first) & SERIALS) as usize;
        (at < MOST && self.live >> at & 1 == 1).then_some(at)
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    slots: Vec<Option<Entry>>,
    free: Vec<usize>,
    /// The slot of the last entry, while it may be joined.
    open: Option<usize>,
    /// Requests ever entered.
    serial: u64,
    live: usize,
}

impl InFlight {
    /// Enters a door's request and names it. `depth` counts the requests that are in flight on the engine now, this one
    /// included.
    #[inline]
    pub(crate) fn enter(
        &mut self,
        engine: EngineId,
        shape: &Shape,
        mark: u64,
        depth: u32,
        held_before_ns: Nanos,
        (submitted_ns, give_up_ns): (Nanos, Nanos),
    ) -> Token {
        if let Some(slot) = self.open
            && let Some(entry) = &mut self.slots[slot]
            && (entry.submitted_ns, entry.give_up_ns) == (submitted_ns, give_up_ns)
            && entry.held_before_ns == held_before_ns
            && (entry.engine, entry.shape) == (engine, *shape)
            && (entry.first + u64::from(entry.count), entry.depth + u32::from(entry.count))
                == (self.serial, depth)
            && usize::from(entry.count) < MOST
        {
            entry.live |= 1 << entry.count;
            entry.marks[usize::from(entry.count)] = mark;
            entry.count += 1;
            self.live += 1;
            return self.next(slot);
        }
        let mut entry =
            Entry { depth, held_before_ns, ..Entry::new(engine, shape, submitted_ns, give_up_ns) };
        entry.marks[0] = mark;
        let (token, slot) = self.place(entry);
        self.open = Some(slot);
        token
    }

    /// Enters a test of the runtime's own.
    pub(crate) fn enter_test(
        &mut self,
        engine: EngineId,
        shape: &Shape,
        expected: Expected,
        (submitted_ns, give_up_ns): (Nanos, Nanos),
    ) -> Token {
        let purpose = Purpose::Test(Box::new(expected));
        self.place(Entry { purpose, ..Entry::new(engine, shape, submitted_ns, give_up_ns) }).0
    }

    fn place(&mut self, entry: Entry) -> (Token, usize) {
        let slot = self.free.pop().unwrap_or(self.slots.len());
        if slot == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[slot] = Some(Entry { first: self.serial, ..entry });
        self.live += 1;
        (self.next(slot), slot)
    }

    fn next(&mut self, slot: usize) -> Token {
        let token = Token(self.serial << SLOT_BITS | slot as u64);
        self.serial = (self.serial + 1) & SERIALS;
        token
    }

    /// Names a request that is done already. The slot in its name is one that nobody uses.
    pub(crate) fn name(&mut self) -> Token {
        self.next((1 << SLOT_BITS) - 1)
    }

    /// Takes a request out: `Some` exactly once for each token that was entered.
    pub(crate) fn take(&mut self, token: Token) -> Option<Left> {
        let slot = slot_of(token);
        let entry = self.slots.get_mut(slot)?.as_mut()?;
        let at = entry.at(serial_of(token))?;
        let left = Left {
            engine: entry.engine,
            shape: entry.shape,
            purpose: mem::replace(&mut entry.purpose, Purpose::Door),
            mark: entry.marks[at],
            held_before_ns: entry.held_before_ns,
            submitted_ns: entry.submitted_ns,
            depth: entry.depth + at as u32,
        };
        self.strike(slot, 1 << at);
        Some(left)
    }

    /// Takes out a door's request and those of the tokens after it, in turn, that share its entry. Returns what is common to
    /// them, the first one's mark and depth, and how many there are; `None` if the first is not a door's in flight.
    #[inline]
    pub(crate) fn take_run(&mut self, mut tokens: impl Iterator<Item = Token>) -> Option<(Left, u32)> {
        let first = tokens.next()?;
        let slot = slot_of(first);
        let entry = self.slots.get(slot)?.as_ref().filter(|entry| entry.is_door())?;
        let start = entry.at(serial_of(first))?;
        let (mut bits, mut count) = (0, 0);
        let run = std::iter::once(first).chain(tokens).enumerate();
        for (nth, token) in run {
            let at = entry.at(serial_of(token)).filter(|at| *at == start + nth);
            let Some(at) = at.filter(|_| slot_of(token) == slot) else { break };
            bits |= 1 << at;
            count += 1;
        }
        let left = Left {
            engine: entry.engine,
            shape: entry.shape,
            purpose: Purpose::Door,
            mark: entry.marks[start],
            held_before_ns: entry.held_before_ns,
            submitted_ns: entry.submitted_ns,
            depth: entry.depth + start as u32,
        };
        self.strike(slot, bits);
        Some((left, count))
    }

    /// These requests of an entry are no longer in flight.
    #[inline]
    fn strike(&mut self, slot: usize, bits: u8) {
        let Some(entry) = &mut self.slots[slot] else { return };
        entry.live &= !bits;
        self.live -= bits.count_ones() as usize;
        if entry.live == 0 {
            self.slots[slot] = None;
            self.free.push(slot);
            self.open = self.open.filter(|open| *open != slot);
        }
    }

    /// The entry of a token that is still in flight.
    pub(crate) fn get(&self, token: Token) -> Option<&Entry> {
        let entry = self.slots.get(slot_of(token))?.as_ref()?;
        entry.at(serial_of(token)).map(|_| entry)
    }

    /// The mark of a request that is still in flight.
    pub(crate) fn mark(&self, token: Token) -> Option<u64> {
        let entry = self.get(token)?;
        entry.at(serial_of(token)).map(|at| entry.marks[at])
    }

    /// How many requests there are.
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// Every request in flight, and its entry.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Token, &Entry)> {
        let entries = self.slots.iter().enumerate().filter_map(|(slot, entry)| Some((slot, entry.as_ref()?)));
        entries.flat_map(|(slot, entry)| {
            let live = (0..MOST as u64).filter(|at| entry.live >> at & 1 == 1);
            live.map(move |at| (Token((entry.first + at) << SLOT_BITS | slot as u64), entry))
        })
    }
}

/// Windows keep what is in flight far below 2^24. After 2^40 requests numbers begin again, their namesakes long gone.
const SLOT_BITS: u32 = 24;
const SERIALS: u64 = u64::MAX >> SLOT_BITS;

fn slot_of(token: Token) -> usize {
    (token.0 & ((1 << SLOT_BITS) - 1)) as usize
}

fn serial_of(token: Token) -> u64 {
    token.0 >> SLOT_BITS
}

#[cfg(test)]
mod tests {
    use wattlock_core::{Kind, LatencyClass};

    use super::*;

    const SHAPE: Shape = Shape { kind: Kind::Sha1, bytes: 1, class: LatencyClass::Bulk };

    fn enter(table: &mut InFlight, at: Nanos, depth: u32) -> Token {
        table.enter(EngineId(0), &SHAPE, 0, depth, 0, (at, at + 9))
    }

    #[test]
    fn a_token_is_taken_once_and_a_reused_slot_is_another_token() {
        let mut table = InFlight::default();
        let first = enter(&mut table, 0, 1);
        assert!(table.get(first).is_some());
        assert!(table.take(first).is_some() && table.take(first).is_none());
        let done = table.name();
        assert!(first < done && table.take(done).is_none() && table.get(done).is_none());
        let second = enter(&mut table, 0, 1);
        assert!(done < second);
        assert!(first < second, "tokens ascend, whatever slot they use");
        assert!(table.take(first).is_none() && table.get(first).is_none());
        assert_eq!(table.iter().map(|(token, _)| token).collect::<Vec<_>>(), [second]);
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn those_of_one_entry_are_taken_once_each_in_whatever_order() {
        let mut table = InFlight::default();
        let tokens: Vec<Token> = (1..=12).map(|depth| enter(&mut table, 0, depth)).collect();
        assert_eq!(table.slots.len(), 2, "eight share one, four another");
        assert_eq!(table.iter().map(|(token, _)| token).collect::<Vec<_>>(), tokens);
        assert_eq!(table.take(tokens[2]).map(|left| left.depth), Some(3));
        let run = |table: &mut InFlight, from: usize| {
            table.take_run(tokens[from..].iter().copied()).map(|(left, count)| (left.depth, count))
        };
        assert_eq!(run(&mut table, 0), Some((1, 2)), "the third has left");
        assert_eq!(run(&mut table, 0), None);
        assert_eq!(run(&mut table, 3), Some((4, 5)), "the ninth is another entry's");
        assert_eq!(run(&mut table, 8), Some((9, 4)));
        assert_eq!((table.len(), table.free.len()), (0, 2));
        assert!(tokens.iter().all(|token| table.take(*token).is_none()));
    }

    #[test]
    fn a_request_joins_only_those_it_is_like_and_came_after() {
        let mut table = InFlight::default();
        enter(&mut table, 0, 1);
        enter(&mut table, 1, 2);
        assert_eq!(table.slots.len(), 2, "another time");
        table.name();
        enter(&mut table, 1, 3);
        assert_eq!(table.slots.len(), 3, "another came between");
        enter(&mut table, 1, 4);
        assert_eq!(table.slots.len(), 3);
        enter(&mut table, 1, 4);
        assert_eq!(table.slots.len(), 4, "one of them has left meanwhile");
        table.enter(EngineId(1), &SHAPE, 0, 5, 0, (1, 10));
        assert_eq!(table.slots.len(), 5, "another engine");
        table.enter(EngineId(1), &SHAPE, 0, 6, 7, (1, 10));
        assert_eq!(table.slots.len(), 6, "held before");
    }
}
