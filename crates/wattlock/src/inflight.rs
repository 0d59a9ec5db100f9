//! The requests one dispatcher has in flight: who has each, since when, and until when.
//!
//! A token names one request for the dispatcher's life: its low 24 bits are a slot, the others count requests, so tokens
//! ascend with time and a late answer to an earlier use of the slot finds nothing. An entry is taken out exactly once; that is what makes a
//! completion happen exactly once.

use wattlock_core::{Nanos, Shape, Token};
use wattlock_policy::EngineId;

/// Why a request is in flight.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// A door asked.
    Door,
    /// It is a known-answer test of the runtime's own.
    Test(wattlock_core::Expected),
}

/// One request in flight.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) engine: EngineId,
    pub(crate) shape: Shape,
    pub(crate) purpose: Purpose,
    /// The door's own mark.
    pub(crate) mark: u64,
    pub(crate) submitted_ns: Nanos,
    /// When the runtime stops waiting for it.
    pub(crate) give_up_ns: Nanos,
    /// Requests in flight on the engine when it was submitted, itself included.
    pub(crate) depth: u32,
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
    /// The token that last used the slot, and its request while that is in flight.
    slots: Vec<(Token, Option<Entry>)>,
    free: Vec<usize>,
    /// Requests ever entered.
    serial: u64,
    live: usize,
}

impl InFlight {
    /// Enters a request and names it.
    pub(crate) fn enter(&mut self, entry: Entry) -> Token {
        let slot = self.free.pop().unwrap_or(self.slots.len());
        let token = Token(self.serial << SLOT_BITS | slot as u64);
        self.serial += 1;
        self.live += 1;
        match self.slots.get_mut(slot) {
            Some(place) => *place = (token, Some(entry)),
            None => self.slots.push((token, Some(entry))),
        }
        token
    }

    /// Names a request that is done already. The slot in its name is one that nobody uses.
    pub(crate) fn name(&mut self) -> Token {
        let token = Token(self.serial << SLOT_BITS | ((1 << SLOT_BITS) - 1));
        self.serial += 1;
        token
    }

    /// Takes a request out: `Some` exactly once for each token that was entered.
    pub(crate) fn take(&mut self, token: Token) -> Option<Entry> {
        let slot = slot_of(token);
        let (user, place) = self.slots.get_mut(slot)?;
        let entry = if *user == token { place.take()? } else { return None };
        self.free.push(slot);
        self.live -= 1;
        Some(entry)
    }

    /// The entry of a token that is still in flight.
    pub(crate) fn get(&self, token: Token) -> Option<&Entry> {
        let (user, place) = self.slots.get(slot_of(token))?;
        place.as_ref().filter(|_| *user == token)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// Every request in flight.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Token, &Entry)> {
        self.slots.iter().filter_map(|(token, entry)| entry.as_ref().map(|entry| (*token, entry)))
    }
}

/// Windows keep what is in flight far below 2^24. After 2^40 requests numbers begin again, their namesakes long gone.
const SLOT_BITS: u32 = 24;

fn slot_of(token: Token) -> usize {
    (token.0 & ((1 << SLOT_BITS) - 1)) as usize
}

#[cfg(test)]
mod tests {
    use wattlock_core::{Kind, LatencyClass};

    use super::*;

    fn entry() -> Entry {
        Entry {
            engine: EngineId(0),
            shape: Shape { kind: Kind::Sha1, bytes: 1, class: LatencyClass::Bulk },
            purpose: Purpose::Door,
            mark: 0,
            submitted_ns: 0,
            give_up_ns: 0,
            depth: 1,
        }
    }

    #[test]
    fn a_token_is_taken_once_and_a_reused_slot_is_another_token() {
        let mut table = InFlight::default();
        let first = table.enter(entry());
        assert!(table.get(first).is_some());
        assert!(table.take(first).is_some() && table.take(first).is_none());
        let done = table.name();
        assert!(first < done && table.take(done).is_none() && table.get(done).is_none());
        let second = table.enter(entry());
        assert!(done < second);
        assert!(first < second, "tokens ascend, whatever slot they use");
        assert!(table.take(first).is_none() && table.get(first).is_none());
        assert_eq!(table.iter().map(|(token, _)| token).collect::<Vec<_>>(), [second]);
        assert_eq!(table.len(), 1);
    }
}
