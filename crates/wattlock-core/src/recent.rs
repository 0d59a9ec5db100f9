//! How many of a door's files had an operation lately: the concurrency that rules ask for.
//!
//! No lock. Memory is a word for each of the last milliseconds, and two for each file.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::Nanos;

/// How long a file counts after its last operation: to a millisecond, and no operation counts for less.
pub const RECENT_NS: Nanos = 10_000_000;

/// What one slot covers.
const SLOT_NS: Nanos = 1_000_000;
const SLOTS: usize = (RECENT_NS / SLOT_NS) as usize + 1;
/// Bits of a slot that count files; those above are the number of its millisecond, from one.
const COUNT: u32 = 20;

/// Files with an operation in flight, or with one that ended within [`RECENT_NS`].
#[derive(Debug, Default)]
pub struct Recent {
    at_work: AtomicU32,
    /// By the number of their millisecond: files whose last operation ended in it.
    slots: [AtomicU64; SLOTS],
}

/// One file, to one [`Recent`].
#[derive(Debug, Default)]
pub struct Mark {
    at_work: AtomicU32,
    /// The millisecond in which its last operation ended; 0: never, or it is at work.
    ended: AtomicU64,
}

impl Recent {
    /// An operation on a file begins.
    pub fn begin(&self, mark: &Mark) {
        if mark.at_work.fetch_add(1, Relaxed) == 0 {
            self.at_work.fetch_add(1, Relaxed);
            self.forget(mark.ended.swap(0, Relaxed));
        }
    }

    /// One that began has ended.
    pub fn end(&self, mark: &Mark, now: Nanos) {
        if mark.at_work.fetch_sub(1, Relaxed) == 1 {
            self.at_work.fetch_sub(1, Relaxed);
            let number = number(now);
            self.forget(mark.ended.swap(number, Relaxed));
            let _ = self.slot(number).fetch_update(Relaxed, Relaxed, |slot| match slot >> COUNT {
                there if there == number => Some(slot + 1),
                there if there < number => Some(number << COUNT | 1),
                _ => None,
            });
        }
    }

    /// How many there are.
    pub fn count(&self, now: Nanos) -> u16 {
        let last = number(now);
        let lately = |slot: u64| last.saturating_sub(slot >> COUNT) < SLOTS as u64;
        let ended = self.slots.iter().map(|slot| slot.load(Relaxed)).filter(|slot| lately(*slot));
        let ended: u64 = ended.map(|slot| slot & ((1 << COUNT) - 1)).sum();
        u16::try_from(ended + u64::from(self.at_work.load(Relaxed))).unwrap_or(u16::MAX)
    }

    fn forget(&self, number: u64) {
        let counted = |slot: u64| slot >> COUNT == number && slot & ((1 << COUNT) - 1) > 0;
        let _ = self.slot(number).fetch_update(Relaxed, Relaxed, |slot| counted(slot).then(|| slot - 1));
    }

    fn slot(&self, number: u64) -> &AtomicU64 {
        &self.slots[(number % SLOTS as u64) as usize]
    }
}

fn number(now: Nanos) -> u64 {
    now / SLOT_NS + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    #[test]
    fn a_file_counts_while_it_is_at_work_and_ten_milliseconds_after() {
        let (recent, marks) = (Recent::default(), [(); 3].map(|()| Mark::default()));
        assert_eq!(recent.count(0), 0);
        recent.begin(&marks[0]);
        recent.begin(&marks[0]);
        assert_eq!((recent.count(0), recent.count(500 * MS)), (1, 1), "a long operation");
        recent.end(&marks[0], 500 * MS);
        recent.end(&marks[0], 500 * MS);
        assert_eq!([500, 510, 511].map(|ms| recent.count(ms * MS)), [1, 1, 0]);
        for (at, mark) in (501..).zip(&marks) {
            recent.begin(mark);
            recent.end(mark, at * MS);
        }
        assert_eq!([503, 511, 512, 513, 514].map(|ms| recent.count(ms * MS)), [3, 3, 2, 1, 0]);
        recent.begin(&marks[2]);
        assert_eq!(recent.count(505 * MS), 3, "once, however many it had");
        recent.end(&marks[2], 520 * MS);
        assert_eq!([520, 530, 531].map(|ms| recent.count(ms * MS)), [1, 1, 0]);
    }

    #[test]
    fn many_threads_leave_nothing_behind() {
        let (recent, mark) = (Recent::default(), Mark::default());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (recent, shared) = (&recent, &mark);
                scope.spawn(move || {
                    let own = Mark::default();
                    for turn in 0..2000 {
                        for mark in [&own, shared] {
                            recent.begin(mark);
                            recent.end(mark, (turn + thread) * MS / 8);
                        }
                    }
                });
            }
        });
        assert!(recent.count(250 * MS) <= 5 + 4, "{}", recent.count(250 * MS));
        assert_eq!(recent.count(300 * MS), 0);
    }
}
