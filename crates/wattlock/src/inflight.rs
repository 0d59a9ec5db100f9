//! The requests one dispatcher has in flight: who has each, since when, and until when.
//!
//! A token names one request for the dispatcher's life: its low half is a slot, its high half counts the slot's uses,
//! so a late answer to an earlier use finds nothing. An entry is taken out exactly once; that is what makes a
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
    slots: Vec<(u32, Option<Entry>)>,
    free: Vec<u32>,
    live: usize,
}

impl InFlight {
    /// Enters a request and names it.
    pub(crate) fn enter(&mut self, entry: Entry) -> Token {
        self.live += 1;
        match self.free.pop() {
            Some(slot) => {
                let (uses, place) = &mut self.slots[slot as usize];
                *uses = uses.wrapping_add(1);
                *place = Some(entry);
                token(slot, *uses)
            }
            None => {
                self.slots.push((0, Some(entry)));
                token(self.slots.len() as u32 - 1, 0)
            }
        }
    }

    /// Takes a request out: `Some` exactly once for each token that was entered.
    pub(crate) fn take(&mut self, token: Token) -> Option<Entry> {
        let slot = token.0 as u32;
        let (uses, place) = self.slots.get_mut(slot as usize)?;
        if *uses != (token.0 >> 32) as u32 {
            return None;
        }
        let entry = place.take()?;
        self.free.push(slot);
        self.live -= 1;
        Some(entry)
    }

    /// The entry of a token that is still in flight.
    pub(crate) fn get(&self, token: Token) -> Option<&Entry> {
        let (uses, place) = self.slots.get(token.0 as u32 as usize)?;
        if *uses != (token.0 >> 32) as u32 { None } else { place.as_ref() }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// Every request in flight.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Token, &Entry)> {
        self.slots.iter().enumerate().filter_map(|(slot, (uses, entry))| {
            entry.as_ref().map(|entry| (token(slot as u32, *uses), entry))
        })
    }
}

fn token(slot: u32, uses: u32) -> Token {
    Token(u64::from(uses) << 32 | u64::from(slot))
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
        let second = table.enter(entry());
        assert_ne!(first, second);
        assert!(table.take(first).is_none() && table.get(first).is_none());
        assert_eq!(table.iter().map(|(token, _)| token).collect::<Vec<_>>(), [second]);
        assert_eq!(table.len(), 1);
    }
}
