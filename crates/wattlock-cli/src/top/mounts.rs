//! The mounts of this user: what each was asked for a second.
//!
//! A mount that does not answer is asked again after a while only: one that hangs must not slow the others down.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use wattlock_mount::{Counts, control};

use crate::mount::place::Mounts;

/// How long a mount is waited for: it answers from memory.
const PATIENCE: Duration = Duration::from_millis(200);
/// When it is asked again.
const PAUSE: Duration = Duration::from_secs(10);

/// Each mount's counters and when it told them; `None`: it did not answer, as another user's does not.
pub type Found = BTreeMap<PathBuf, Option<(Duration, Counts)>>;

/// Asks mounts.
#[derive(Debug, Default)]
pub struct Asker {
    silent: BTreeMap<PathBuf, Duration>,
}

impl Asker {
    /// All mounts now, in turn; moments are since `begun`.
    pub fn ask(&mut self, begun: Instant) -> Found {
        let places: Vec<PathBuf> = Mounts::read().ours().collect();
        self.silent.retain(|place, until| *until > begun.elapsed() && places.contains(place));
        let ask = |place: PathBuf| {
            if self.silent.contains_key(&place) {
                return (place, None);
            }
            // One that hangs keeps those behind it waiting: each answer has a moment of its own.
            let counts = counts(&place).map(|counts| (begun.elapsed(), counts));
            if counts.is_none() {
                self.silent.insert(place.clone(), begun.elapsed() + PAUSE);
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

/// A mount, and what it is asked for a second.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Where it is.
    pub mountpoint: String,
    /// Whether it answered now.
    pub answers: bool,
    /// The process that serves it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Absent if the same mount did not answer twice.
    #[serde(flatten)]
    pub figures: Option<Figures>,
}

/// What a mount is asked for a second.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Figures {
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

/// What was asked for between two looks, each mount's answers as far apart as they were.
pub fn rates(now: &Found, before: Option<&Found>) -> Vec<Rates> {
    let rates = now.iter().map(|(place, now)| {
        let before = before.and_then(|before| before.get(place)).and_then(Option::as_ref);
        let figures = now.as_ref().zip(before).and_then(|((at, now), (then, before))| {
            let seconds = at.saturating_sub(*then).as_secs_f64().max(1e-3);
            Some(Figures::of(&now.since(before)?, seconds))
        });
        Rates {
            mountpoint: wattlock_door::one_line(place),
            answers: now.is_some(),
            pid: now.as_ref().and_then(|(_, now)| now.pid),
            figures,
        }
    });
    rates.collect()
}

impl Figures {
    fn of(done: &Counts, seconds: f64) -> Figures {
        let rate = |count: u64| count as f64 / seconds;
        let work: BTreeMap<String, f64> = done
            .operations
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(name, count)| (name.clone(), rate(*count)))
            .collect();
        Figures {
            // Not `sum`, of which nothing is -0.
            operations_per_s: work.values().fold(0.0, |sum, rate| sum + rate),
            read_bytes_per_s: rate(done.read),
            written_bytes_per_s: rate(done.written),
            failed_per_s: rate(done.failed),
            refused_per_s: rate(done.refused),
            work,
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

    fn found(place: &str, second: u64, counts: Option<Counts>) -> Found {
        Found::from([(PathBuf::from(place), counts.map(|counts| (Duration::from_secs(second), counts)))])
    }

    #[test]
    fn a_mount_has_rates_if_the_same_one_answered_twice() {
        let then = found("/m", 10, Some(counts(7, 100, 4096)));
        let seen = &rates(&found("/m", 12, Some(counts(7, 150, 8192))), Some(&then))[0];
        let known = seen.figures.as_ref().unwrap();
        assert_eq!(
            (known.operations_per_s, known.read_bytes_per_s, known.work["read"]),
            (25.0, 2048.0, 25.0)
        );
        // Mounted anew: another process, or counters that fell.
        for other in [Some(counts(8, 1000, 9999)), Some(counts(7, 90, 9999)), None] {
            let seen = &rates(&found("/m", 12, other.clone()), Some(&then))[0];
            assert_eq!((seen.answers, &seen.figures), (other.is_some(), &None), "{other:?}");
        }
        let first = &rates(&then, None)[0];
        assert_eq!((first.answers, &first.figures), (true, &None), "it is being measured");
    }

    #[test]
    fn each_mounts_rates_are_of_the_time_between_its_own_answers() {
        let both = |a: u64, b: u64, reads| {
            let mut both = found("/a", a, Some(counts(7, reads, 0)));
            both.extend(found("/b", b, Some(counts(8, reads, 0))));
            both
        };
        let seen = rates(&both(2, 14, 200), Some(&both(0, 4, 100)));
        let seen: Vec<f64> = seen.into_iter().map(|one| one.figures.unwrap().operations_per_s).collect();
        assert_eq!(seen, [50.0, 10.0]);
        let idle =
            &rates(&found("/a", 2, Some(Counts::default())), Some(&found("/a", 0, Some(Counts::default()))))
                [0];
        let text = serde_json::to_string(idle).unwrap();
        assert!(text.contains("\"operations_per_s\":0.0") && !text.contains("-0.0"), "{text}");
    }
}
