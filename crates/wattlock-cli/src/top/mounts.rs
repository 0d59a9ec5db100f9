//! The mounts of this user: what each was asked for a second.
//!
//! A mount that does not answer is asked again after a while only: one that hangs must not slow the others down.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use wattlock_mount::{Counts, control};

use crate::mount::place::Mounts;

/// How long a mount is waited for: it answers from memory.
const PATIENCE: Duration = Duration::from_millis(200);
/// When it is asked again.
const PAUSE: Duration = Duration::from_secs(10);

/// One mount's counters at a moment; `None`: it did not answer, as another user's does not.
pub type Found = BTreeMap<PathBuf, Option<Counts>>;

/// Asks mounts.
#[derive(Debug, Default)]
pub struct Asker {
    silent: BTreeMap<PathBuf, Duration>,
}

impl Asker {
    /// All mounts `at` a moment.
    pub fn ask(&mut self, at: Duration) -> Found {
        let places: Vec<PathBuf> = Mounts::read().ours().collect();
        self.silent.retain(|place, until| *until > at && places.contains(place));
        let ask = |place: PathBuf| {
            if self.silent.contains_key(&place) {
                return (place, None);
            }
            let counts = counts(&place);
            if counts.is_none() {
                self.silent.insert(place.clone(), at + PAUSE);
            }
            (place, counts)
        };
        places.into_iter().map(ask).collect()
    }
}

fn counts(place: &Path) -> Option<Counts> {
    let answer = control::ask_until(place, "status", PATIENCE, &|| true).ok()?;
    answer.ok().map(|lines| Counts::told(&lines))
}

/// What a mount is asked for a second.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Where it is.
    pub mountpoint: String,
    /// Whether it answered twice.
    pub answers: bool,
    /// The process that serves it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Requests a second.
    pub operations_per_s: f64,
    /// Bytes read a second.
    pub read_bytes_per_s: f64,
    /// Bytes written a second.
    pub written_bytes_per_s: f64,
    /// Requests that failed, a second.
    pub failed_per_s: f64,
    /// Requests that were answered with an expected refusal (no such name, ...), a second.
    pub refused_per_s: f64,
    /// Requests a second by operation.
    pub work: BTreeMap<String, f64>,
}

/// What was asked for between two moments, so many seconds apart.
pub fn rates(now: &Found, before: &Found, seconds: f64) -> Vec<Rates> {
    let rates = now.iter().map(|(place, now)| {
        let mountpoint = wattlock_door::one_line(place);
        let before = before.get(place).and_then(Option::as_ref);
        let pid = now.as_ref().and_then(|now| now.pid);
        match now.as_ref().zip(before).and_then(|(now, before)| now.since(before)) {
            Some(done) => Rates { mountpoint, pid, ..Rates::of(&done, seconds) },
            None => Rates { mountpoint, pid, ..Rates::default() },
        }
    });
    rates.collect()
}

impl Rates {
    fn of(done: &Counts, seconds: f64) -> Rates {
        let rate = |count: u64| count as f64 / seconds;
        let work: BTreeMap<String, f64> = done
            .operations
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(name, count)| (name.clone(), rate(*count)))
            .collect();
        Rates {
            answers: true,
            operations_per_s: work.values().sum(),
            read_bytes_per_s: rate(done.read),
            written_bytes_per_s: rate(done.written),
            failed_per_s: rate(done.failed),
            refused_per_s: rate(done.refused),
            work,
            ..Rates::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(pid: u32, reads: u64, read: u64) -> Counts {
        let operations = [("read".to_owned(), reads)].into();
        Counts { pid: Some(pid), operations, read, ..Counts::default() }
    }

    #[test]
    fn a_mount_has_rates_if_the_same_one_answered_twice() {
        let found = |counts| Found::from([(PathBuf::from("/m"), counts)]);
        let then = found(Some(counts(7, 100, 4096)));
        let seen = &rates(&found(Some(counts(7, 150, 8192))), &then, 2.0)[0];
        assert_eq!((seen.operations_per_s, seen.read_bytes_per_s, seen.work["read"]), (25.0, 2048.0, 25.0));
        // Mounted anew: another process, or counters that fell.
        for other in [Some(counts(8, 1000, 9999)), Some(counts(7, 90, 9999)), None] {
            let seen = &rates(&found(other.clone()), &then, 2.0)[0];
            assert!(!seen.answers && seen.operations_per_s == 0.0, "{other:?}");
        }
    }
}
