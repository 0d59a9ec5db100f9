//! How long a frame stays open: as long as its bound allows, if that brings more into it.
//!
//! A frame costs a wake-up, a few system calls and a call of an engine, whatever it holds. So the fewest joules within a
//! latency bound come from waiting as long as the bound allows. Two exceptions are learned. If holding brings nothing
//! (less than one hold in twenty), because the next record comes after the bound anyway, frames leave at once: the
//! timer would be one more wake-up. And if what comes until the bound fits the buffers, the producer is not watched
//! meanwhile: one wake-up for all of it instead of one a record.
//!
//! Pure: the time is an argument.

use wattlock_core::Nanos;

/// Frames of a producer for which holding is useless leave at once; one in so many is held, to see whether it still is.
const TRY_EVERY: u32 = 32;
/// Share of holds that must bring something.
const WORTH: f64 = 0.05;
/// What a timer may be late, and a share of the bound that stays for sealing and writing at most.
const SLACK_NS: f64 = 60_000.0;

/// Decides when open frames are closed.
#[derive(Debug, Clone)]
pub struct Pace {
    bound_ns: Option<Nanos>,
    learns: bool,
    /// Share of recent holds that brought something.
    gained: f64,
    untried: u32,
    /// Time to seal and write a batch.
    work_ns: f64,
    /// Bytes a nanosecond, and when the last batch left.
    velocity: f64,
    left: Option<Nanos>,
}

impl Pace {
    /// Frames are held up to `bound_ns`; without a bound until they are full. `learns`: not where it is useless.
    pub fn new(bound_ns: Option<Nanos>, learns: bool) -> Pace {
        Pace { bound_ns, learns, gained: 1.0, untried: 0, work_ns: 0.0, velocity: 0.0, left: None }
    }

    /// When a frame whose oldest content was there at `since` must be closed. `None`: only when it is full.
    pub fn due(&self, since: Nanos) -> Option<Nanos> {
        let bound = self.bound_ns? as f64;
        let work = (2.0 * self.work_ns + SLACK_NS).min(bound / 2.0);
        let hold = if self.holds() { bound - work } else { 0.0 };
        Some(since.saturating_add(hold as Nanos))
    }

    fn holds(&self) -> bool {
        !self.learns || self.gained >= WORTH || self.untried >= TRY_EVERY
    }

    /// Whether the producer need not be watched until `due`: what it writes meanwhile fits into `room` bytes twice.
    pub fn may_sleep(&self, now: Nanos, due: Nanos, room: usize) -> bool {
        let expected = self.velocity * due.saturating_sub(now) as f64;
        due > now && 2.0 * expected < room as f64
    }

    /// A frame was closed because it was due, with `later` bytes that came after its oldest.
    pub fn on_due(&mut self, later: u64) {
        if self.bound_ns.is_none_or(|bound| bound == 0) {
            return;
        }
        if !self.holds() {
            self.untried += 1;
            return;
        }
        self.untried = 0;
        self.gained += (f64::from(u8::from(later > 0)) - self.gained) / 8.0;
    }

    /// A batch of so many bytes left.
    pub fn on_batch(&mut self, bytes: u64, now: Nanos) {
        if let Some(left) = self.left.replace(now) {
            let velocity = bytes as f64 / now.saturating_sub(left).max(1) as f64;
            self.velocity += (velocity - self.velocity) / 4.0;
        }
    }

    /// Sealing and writing a batch took so long.
    pub fn on_work(&mut self, ns: Nanos) {
        self.work_ns += (ns as f64 - self.work_ns) / 8.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    #[test]
    fn the_bound_includes_sealing_and_writing() {
        let mut pace = Pace::new(Some(5 * MS), false);
        assert!(pace.due(100).is_some_and(|due| due > 4 * MS && due < 100 + 5 * MS));
        (0..100).for_each(|_| pace.on_work(MS));
        assert!(pace.due(0).is_some_and(|due| (5 * MS / 2..3 * MS).contains(&due)));
        assert_eq!(Pace::new(Some(0), true).due(7), Some(7));
        assert_eq!(Pace::new(None, true).due(7), None);
    }

    #[test]
    fn a_hold_that_brings_nothing_is_given_up_and_tried_again() {
        let mut pace = Pace::new(Some(5 * MS), true);
        (0..40).for_each(|_| pace.on_due(0));
        let mut held = 0;
        for _ in 0..330 {
            held += u32::from(pace.due(0) != Some(0));
            pace.on_due(0);
        }
        assert_eq!(held, 10, "one in {TRY_EVERY}, and the one itself");
        // Then the producer becomes faster.
        let mut waited = 0;
        while pace.due(0) == Some(0) {
            pace.on_due(0);
            waited += 1;
        }
        pace.on_due(100);
        assert!(waited <= TRY_EVERY && pace.due(0) != Some(0));
        let mut fixed = Pace::new(Some(5 * MS), false);
        (0..40).for_each(|_| fixed.on_due(0));
        assert_ne!(fixed.due(0), Some(0), "a fixed hold learns nothing");
    }

    #[test]
    fn a_producer_is_left_alone_only_if_what_it_writes_fits() {
        let mut pace = Pace::new(Some(10 * MS), true);
        // A megabyte a second: 10 KB in 10 ms.
        (0..50).for_each(|batch| pace.on_batch(10_000, batch * 10 * MS));
        assert!(pace.may_sleep(0, 10 * MS, 65_536));
        assert!(!pace.may_sleep(0, 10 * MS, 10_000));
        assert!(!pace.may_sleep(5, 5, 65_536), "there is nothing to sleep for");
    }
}
