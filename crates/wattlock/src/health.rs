//! Whether an engine may be chosen, by this thread: which kinds it has proved, and whether it is in quarantine.
//!
//! Pure: time is an argument. A quarantine ends by itself; the engine then has to pass its known-answer tests again
//! before it is chosen. Each quarantine without a success in between doubles the next, up to a minute.

use wattlock_core::{Error, Fault, Kind, KindSet, Nanos};

/// Why a request was not done by the engine the policy named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Reason {
    /// Its known-answer tests for the kind are not done yet.
    Untested,
    /// It failed its known-answer tests for the kind.
    FailedTest,
    /// It is in quarantine.
    Quarantined,
    /// Its window was full.
    Full,
    /// It says it cannot do the request.
    Unsupported,
    /// It reported an error.
    Reported,
    /// It did not answer in time.
    Silent,
    /// Its answer was wrong.
    WrongResult,
    /// It is gone, or could not be opened.
    Lost,
    /// It was opened before a fork.
    Forked,
    /// It rejected the request or its tag; the CPU was asked for a second opinion.
    SecondOpinion,
    /// A thread took it out of what waited for the device, as the policy has it.
    Migrated,
}

impl Reason {
    /// Every reason, in the order of their discriminants.
    pub const ALL: [Reason; 12] = [
        Reason::Untested,
        Reason::FailedTest,
        Reason::Quarantined,
        Reason::Full,
        Reason::Unsupported,
        Reason::Reported,
        Reason::Silent,
        Reason::WrongResult,
        Reason::Lost,
        Reason::Forked,
        Reason::SecondOpinion,
        Reason::Migrated,
    ];

    /// Stable name, for telemetry.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Untested => "untested",
            Reason::FailedTest => "failed-test",
            Reason::Quarantined => "quarantined",
            Reason::Full => "window-full",
            Reason::Unsupported => "unsupported",
            Reason::Reported => "reported-error",
            Reason::Silent => "silent",
            Reason::WrongResult => "wrong-result",
            Reason::Lost => "lost",
            Reason::Forked => "forked",
            Reason::SecondOpinion => "second-opinion",
            Reason::Migrated => "migrated",
        }
    }

    /// The reason behind an engine's error.
    pub(crate) fn of(error: &Error) -> Reason {
        match error {
            Error::Full => Reason::Full,
            Error::Device(Fault::Silent) => Reason::Silent,
            Error::Device(Fault::WrongResult) => Reason::WrongResult,
            Error::Device(Fault::Lost) => Reason::Lost,
            Error::Device(Fault::Forked) => Reason::Forked,
            Error::Device(_) => Reason::Reported,
            Error::Authentication | Error::ForgedMessage(_) | Error::Invalid(_) => Reason::SecondOpinion,
            _ => Reason::Unsupported,
        }
    }
}

/// Reported errors or silences in a row that put an engine into quarantine. A wrong result or a lost device does at
/// once. Ours: low enough that a dead device costs a handful of time-outs, high enough to ride out one bad request.
const PATIENCE: u32 = 3;
const FIRST_QUARANTINE_NS: Nanos = 100_000_000;
const LONGEST_QUARANTINE_NS: Nanos = 60_000_000_000;

/// One engine's standing with one dispatcher.
#[derive(Debug, Default)]
pub(crate) struct Health {
    passed: KindSet,
    failed: KindSet,
    testing: KindSet,
    failures_in_row: u32,
    quarantines_in_row: u32,
    quarantined_until: Option<Nanos>,
}

impl Health {
    /// Whether the kind has passed and the engine is not in quarantine.
    #[inline]
    pub(crate) fn ready(&self, kind: Kind) -> bool {
        self.passed.contains(kind)
    }

    /// Why the kind is not ready.
    pub(crate) fn reason(&self, kind: Kind) -> Reason {
        if self.quarantined_until.is_some() {
            Reason::Quarantined
        } else if self.failed.contains(kind) {
            Reason::FailedTest
        } else {
            Reason::Untested
        }
    }

    /// Whether a known-answer test of the kind should be started now.
    pub(crate) fn wants_test(&self, kind: Kind) -> bool {
        let settled = self.passed.union(self.failed).union(self.testing);
        self.quarantined_until.is_none() && !settled.contains(kind)
    }

    /// A test has been started.
    pub(crate) fn test_started(&mut self, kind: Kind) {
        self.testing = self.testing.with(kind);
    }

    /// All of a kind's tests have ended.
    pub(crate) fn test_ended(&mut self, kind: Kind, passed: bool) {
        self.testing = self.testing.without(kind);
        let set = if passed { &mut self.passed } else { &mut self.failed };
        *set = set.with(kind);
    }

    /// A kind that passed has to be tested again.
    pub(crate) fn doubt(&mut self, kind: Kind) {
        self.passed = self.passed.without(kind);
    }

    /// The engine is opened anew: its kinds give their known answers again.
    pub(crate) fn begins_anew(&mut self) {
        (self.passed, self.failed, self.testing) = (KindSet::EMPTY, KindSet::EMPTY, KindSet::EMPTY);
    }

    /// A test came to nothing because the engine failed meanwhile; the kind may be tested again.
    pub(crate) fn test_aborted(&mut self, kind: Kind) {
        self.testing = self.testing.without(kind);
    }

    /// A request was done well.
    #[inline]
    pub(crate) fn succeeded(&mut self) {
        self.failures_in_row = 0;
        self.quarantines_in_row = 0;
    }

    /// A request failed through the engine's fault. Returns whether the engine goes into quarantine now.
    pub(crate) fn failed(&mut self, reason: Reason, now: Nanos) -> bool {
        if self.quarantined_until.is_some() {
            return false;
        }
        self.failures_in_row += 1;
        let at_once = matches!(reason, Reason::WrongResult | Reason::Lost | Reason::Forked);
        if !at_once && self.failures_in_row < PATIENCE {
            return false;
        }
        let length = FIRST_QUARANTINE_NS << self.quarantines_in_row.min(10);
        self.quarantined_until = Some(now + length.min(LONGEST_QUARANTINE_NS));
        self.quarantines_in_row += 1;
        self.failures_in_row = 0;
        self.begins_anew();
        true
    }

    /// Ends a quarantine whose time has come. Returns whether it ended one.
    pub(crate) fn tick(&mut self, now: Nanos) -> bool {
        let ended = self.quarantined_until.is_some_and(|until| until <= now);
        if ended {
            self.quarantined_until = None;
        }
        ended
    }

    /// Whether the engine is in quarantine.
    pub(crate) fn quarantined(&self) -> bool {
        self.quarantined_until.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed() -> Health {
        let mut health = Health::default();
        health.test_started(Kind::Sha1);
        health.test_ended(Kind::Sha1, true);
        health
    }

    #[test]
    fn an_untested_kind_is_not_ready_and_is_tested_once() {
        let mut health = Health::default();
        assert!(!health.ready(Kind::Sha1) && health.wants_test(Kind::Sha1));
        health.test_started(Kind::Sha1);
        assert!(!health.wants_test(Kind::Sha1));
        health.test_ended(Kind::Sha1, false);
        assert!(!health.ready(Kind::Sha1) && !health.wants_test(Kind::Sha1));
    }

    #[test]
    fn a_few_errors_in_a_row_mean_quarantine_and_a_success_between_does_not() {
        let mut health = passed();
        for _ in 0..10 {
            assert!(!health.failed(Reason::Reported, 0) && !health.failed(Reason::Silent, 0));
            health.succeeded();
        }
        assert!(!health.failed(Reason::Reported, 0) && !health.failed(Reason::Reported, 0));
        assert!(health.failed(Reason::Reported, 0));
        assert!(!health.ready(Kind::Sha1));
    }

    #[test]
    fn quarantine_ends_with_a_new_test_and_doubles_without_success() {
        let mut health = passed();
        assert!(health.failed(Reason::WrongResult, 0));
        assert!(!health.tick(FIRST_QUARANTINE_NS - 1) && health.tick(FIRST_QUARANTINE_NS));
        assert!(!health.ready(Kind::Sha1) && health.wants_test(Kind::Sha1));
        assert!(health.failed(Reason::Lost, 0));
        assert!(!health.tick(2 * FIRST_QUARANTINE_NS - 1) && health.tick(2 * FIRST_QUARANTINE_NS));
        health.succeeded();
        assert!(health.failed(Reason::Lost, 0));
        assert!(health.tick(FIRST_QUARANTINE_NS));
    }
}
