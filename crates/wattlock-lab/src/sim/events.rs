//! The queue of things to come. What is due at the same time comes in the order it was scheduled, so a run is a
//! function of its inputs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use wattlock_core::Nanos;

/// Things to come, by time.
pub struct Events<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    now: Nanos,
    scheduled: u64,
}

struct Entry<E> {
    at: Nanos,
    number: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}
impl<E> Eq for Entry<E> {}
impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Events { heap: BinaryHeap::new(), now: 0, scheduled: 0 }
    }
}

impl<E> Events<E> {
    /// Nothing to come, at time 0.
    pub fn new() -> Events<E> {
        Events::default()
    }

    /// The time of the event last taken.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Lets `event` happen at `at`, or now if that is past.
    pub fn at(&mut self, at: Nanos, event: E) {
        self.scheduled += 1;
        self.heap.push(Reverse(Entry { at: at.max(self.now), number: self.scheduled, event }));
    }

    /// Lets `event` happen `ns` from now.
    pub fn after(&mut self, ns: Nanos, event: E) {
        self.at(self.now.saturating_add(ns), event);
    }

    /// When the next event is due.
    pub fn peek(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    /// Takes the next event and moves time to it.
    pub fn take(&mut self) -> Option<E> {
        let Reverse(entry) = self.heap.pop()?;
        self.now = entry.at;
        Some(entry.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_within_a_time_by_order_of_scheduling() {
        let mut events = Events::new();
        for (at, name) in [(5, 'c'), (1, 'a'), (5, 'd'), (2, 'b')] {
            events.at(at, name);
        }
        let mut seen = String::new();
        while let Some(event) = events.take() {
            seen.push(event);
            if event == 'c' {
                events.at(0, 'e');
            }
        }
        assert_eq!((seen.as_str(), events.now()), ("abcde", 5));
    }
}
