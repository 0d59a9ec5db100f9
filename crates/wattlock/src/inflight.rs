//! The requests one dispatcher has in flight on engines that answer later: which engine has each, since when, and until
//! when.
//!
//! A token names one request for the dispatcher's life: its low 24 bits are a slot, the others count requests, so tokens
//! ascend with time and a late answer to an earlier use of the slot finds nothing. A request is taken out exactly once; that
//! is what makes a completion happen exactly once.

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

/// A request in flight.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) engine: EngineId,
    pub(crate) shape: Shape,
    pub(crate) purpose: Purpose,
    /// The door's own mark.
    pub(crate) mark: u64,
    /// How long it was held before it was submitted.
    pub(crate) held_before_ns: Nanos,
    pub(crate) submitted_ns: Nanos,
    /// When the runtime stops waiting for it.
    pub(crate) give_up_ns: Nanos,
    /// Requests in flight on the engine when it was submitted, itself included.
    pub(crate) depth: u32,
    serial: u64,
}

impl Entry {
    /// Whether a door waits for it.
    pub(crate) fn is_door(&self) -> bool {
        matches!(self.purpose, Purpose::Door)
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    slots: Vec<Option<Entry>>,
    free: Vec<usize>,
    /// Requests ever named.
    serial: u64,
}

impl InFlight {
    /// Enters a door's request and names it. `depth` counts the requests that are in flight on the engine now, this one
    /// included.
    pub(crate) fn enter(
        &mut self,
        engine: EngineId,
        shape: &Shape,
        mark: u64,
        depth: u32,
        held_before_ns: Nanos,
        (submitted_ns, give_up_ns): (Nanos, Nanos),
    ) -> Token {
        self.place(Entry {
            engine,
            shape: *shape,
            purpose: Purpose::Door,
            mark,
            held_before_ns,
            submitted_ns,
            give_up_ns,
            depth,
            serial: self.serial,
        })
    }

    /// Enters a test of the runtime's own.
    pub(crate) fn enter_test(
        &mut self,
        engine: EngineId,
        shape: &Shape,
        expected: Expected,
        (submitted_ns, give_up_ns): (Nanos, Nanos),
    ) -> Token {
        self.place(Entry {
            engine,
            shape: *shape,
            purpose: Purpose::Test(Box::new(expected)),
            mark: 0,
            held_before_ns: 0,
            submitted_ns,
            give_up_ns,
            depth: 1,
            serial: self.serial,
        })
    }

    fn place(&mut self, entry: Entry) -> Token {
        let slot = self.free.pop().unwrap_or(self.slots.len());
        if slot == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[slot] = Some(entry);
        self.next(slot)
    }

    fn next(&mut self, slot: usize) -> Token {
        let token = Token(self.serial << SLOT_BITS | slot as u64);
        self.serial = (self.serial + 1) & SERIALS;
        token
    }

    /// Names a request that is done already. The slot in its name is one that is not in use.
    pub(crate) fn name(&mut self) -> Token {
        self.next((1 << SLOT_BITS) - 1)
    }

    /// Takes a request out: `Some` exactly once for each token that was entered.
    pub(crate) fn take(&mut self, token: Token) -> Option<Entry> {
        self.get(token)?;
        let slot = slot_of(token);
        let entry = self.slots[slot].take()?;
        self.free.push(slot);
        Some(entry)
    }

    /// The entry of a token that is still in flight.
    pub(crate) fn get(&self, token: Token) -> Option<&Entry> {
        let entry = self.slots.get(slot_of(token))?.as_ref()?;
        (entry.serial == token.0 >> SLOT_BITS).then_some(entry)
    }

    /// How many requests there are.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Every request in flight, and its entry.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Token, &Entry)> {
        let entries = self.slots.iter().enumerate().filter_map(|(slot, entry)| Some((slot, entry.as_ref()?)));
        entries.map(|(slot, entry)| (Token(entry.serial << SLOT_BITS | slot as u64), entry))
    }
}

/// Windows keep what is in flight far below 2^24. After 2^40 requests numbers begin again, their namesakes long gone.
const SLOT_BITS: u32 = 24;
const SERIALS: u64 = u64::MAX >> SLOT_BITS;

fn slot_of(token: Token) -> usize {
    (token.0 & ((1 << SLOT_BITS) - 1)) as usize
}

#[cfg(test)]
mod tests {
    use wattlock_core::{Kind, LatencyClass};

    use super::*;

    const SHAPE: Shape = Shape { kind: Kind::Sha1, bytes: 1, class: LatencyClass::Bulk, messages: 1 };

    fn enter(table: &mut InFlight) -> Token {
        table.enter(EngineId(0), &SHAPE, 0, 1, 0, (0, 9))
    }

    #[test]
    fn a_token_is_taken_once_and_a_reused_slot_is_another_token() {
        let mut table = InFlight::default();
        let first = enter(&mut table);
        assert!(table.get(first).is_some());
        assert!(table.take(first).is_some() && table.take(first).is_none());
        let done = table.name();
        assert!(first < done && table.take(done).is_none() && table.get(done).is_none());
        let second = enter(&mut table);
        assert!(done < second);
        assert!(first < second, "tokens ascend, whatever slot they use");
        assert!(table.take(first).is_none() && table.get(first).is_none());
        assert_eq!(table.iter().map(|(token, _)| token).collect::<Vec<_>>(), [second]);
        assert_eq!(table.len(), 1);
    }
}
