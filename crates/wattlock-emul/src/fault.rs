//! Declared faults: what goes wrong, and when. Pure; requests are counted and time is an argument.

use std::fmt;

use wattlock_core::Nanos;

use crate::model::number;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The machine reports an error for the request.
    Error,
    /// The machine never answers the request.
    Silence,
    /// The machine answers, with one bit of the output (or of the tag, if there is no output) flipped.
    WrongResult,
    /// The machine takes this many thousandths of its time: 3000 is three times as slow.
    Slow {
        /// Thousandths.
        permille: u32,
    },
    /// The machine is gone: every open instance fails, and opening fails, until it comes back.
    Lost {
        /// After how long it can be opened again; `None`: never.
        back_after_ns: Option<Nanos>,
    },
}

/// Which requests meet a fault. Requests are counted from 1, over all instances, in the order in which they reach the
/// machine; time counts from the engine's first opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// Requests `from` to `to`, both included.
    Requests {
        /// First.
        from: u64,
        /// Last.
        to: u64,
    },
    /// Every so many-th request: with 3, the third, sixth, ninth. 0 never happens.
    Every(u64),
    /// Requests that reach the machine from `from_ns` until before `to_ns`.
    Time {
        /// Begin.
        from_ns: Nanos,
        /// End.
        to_ns: Nanos,
    },
}

impl Trigger {
    /// The n-th request alone.
    pub const fn nth(n: u64) -> Trigger {
        Trigger::Requests { from: n, to: n }
    }

    /// Every request.
    pub const fn always() -> Trigger {
        Trigger::Every(1)
    }

    fn meets(self, count: u64, age_ns: Nanos) -> bool {
        match self {
            Trigger::Requests { from, to } => (from..=to).contains(&count),
            Trigger::Every(n) => n > 0 && count.is_multiple_of(n),
            Trigger::Time { from_ns, to_ns } => (from_ns..to_ns).contains(&age_ns),
        }
    }
}

/// A fault: what, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// What goes wrong.
    pub effect: Effect,
    /// When.
    pub trigger: Trigger,
}

impl Fault {
    /// A fault.
    pub const fn new(effect: Effect, trigger: Trigger) -> Fault {
        Fault { effect, trigger }
    }
}

impl Fault {
    /// Reads a fault from the words of a model's line: an effect (`error`, `silence`, `wrong-result`, `slow PERMILLE`,
    /// `lost` for good or `lost NANOSECONDS`) and when (`every N`, `requests A B`, `after NS until NS`).
    ///
    /// # Errors
    /// Says what is not understood.
    pub fn parse(words: &[&str]) -> Result<Fault, &'static str> {
        let (effect, when) = match words {
            ["error", when @ ..] => (Effect::Error, when),
            ["silence", when @ ..] => (Effect::Silence, when),
            ["wrong-result", when @ ..] => (Effect::WrongResult, when),
            ["slow", permille, when @ ..] if permille.parse::<u32>().is_ok() => {
                (Effect::Slow { permille: number(permille)? }, when)
            }
            ["lost", back, when @ ..] if back.parse::<Nanos>().is_ok() => {
                (Effect::Lost { back_after_ns: Some(number(back)?) }, when)
            }
            ["lost", when @ ..] => (Effect::Lost { back_after_ns: None }, when),
            _ => return Err("no such fault"),
        };
        let trigger = match when {
            ["every", n] => Trigger::Every(number(n)?),
            ["requests", from, to] => Trigger::Requests { from: number(from)?, to: number(to)? },
            ["after", from, "until", to] => Trigger::Time { from_ns: number(from)?, to_ns: number(to)? },
            _ => return Err("when is missing: every N, requests A B, or after A until B"),
        };
        Ok(Fault { effect, trigger })
    }
}

impl fmt::Display for Fault {
    /// The words that [`Fault::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.effect {
            Effect::Error => write!(f, "error")?,
            Effect::Silence => write!(f, "silence")?,
            Effect::WrongResult => write!(f, "wrong-result")?,
            Effect::Slow { permille } => write!(f, "slow {permille}")?,
            Effect::Lost { back_after_ns: None } => write!(f, "lost")?,
            Effect::Lost { back_after_ns: Some(after) } => write!(f, "lost {after}")?,
        }
        match self.trigger {
            Trigger::Every(n) => write!(f, " every {n}"),
            Trigger::Requests { from, to } => write!(f, " requests {from} {to}"),
            Trigger::Time { from_ns, to_ns } => write!(f, " after {from_ns} until {to_ns}"),
        }
    }
}

/// What the declared faults make of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fate {
    pub error: bool,
    pub silent: bool,
    pub wrong: bool,
    pub stretch_permille: u32,
}

/// What becomes of the `count`-th request, which reaches the machine `age_ns` after its first opening.
pub(crate) fn fate(faults: &[Fault], count: u64, age_ns: Nanos) -> Fate {
    let mut fate = Fate { error: false, silent: false, wrong: false, stretch_permille: 1000 };
    for fault in faults.iter().filter(|fault| fault.trigger.meets(count, age_ns)) {
        match fault.effect {
            Effect::Error => fate.error = true,
            Effect::Silence => fate.silent = true,
            Effect::WrongResult => fate.wrong = true,
            Effect::Slow { permille } => fate.stretch_permille = fate.stretch_permille.max(permille),
            Effect::Lost { .. } => {}
        }
    }
    fate
}

/// The age until which the machine is lost, if the `count`-th request, at `age_ns`, loses it.
pub(crate) fn lost_by(faults: &[Fault], count: u64, age_ns: Nanos) -> Option<Nanos> {
    let until = |fault: &Fault| match (fault.effect, fault.trigger) {
        (Effect::Lost { .. }, Trigger::Time { .. }) => None,
        (Effect::Lost { back_after_ns }, trigger) if trigger.meets(count, age_ns) => {
            Some(back_after_ns.map_or(Nanos::MAX, |after| age_ns.saturating_add(after)))
        }
        _ => None,
    };
    faults.iter().filter_map(until).max()
}

/// Losses by time, as ages from and until. They begin whether a request comes or not.
fn losses(faults: &[Fault]) -> impl Iterator<Item = (Nanos, Nanos)> {
    faults.iter().filter_map(|fault| match (fault.effect, fault.trigger) {
        (Effect::Lost { back_after_ns }, Trigger::Time { from_ns, to_ns }) => {
            let back = back_after_ns.map_or(to_ns, |after| from_ns.saturating_add(after));
            Some((from_ns, back.min(to_ns)))
        }
        _ => None,
    })
}

/// Whether the machine is lost by time at this age.
pub(crate) fn gone_at(faults: &[Fault], age_ns: Nanos) -> bool {
    losses(faults).any(|(from, until)| (from..until).contains(&age_ns))
}

/// Whether the machine was lost by time after the age `since` and at or before the age `until`.
pub(crate) fn lost_between(faults: &[Fault], since: Nanos, until: Nanos) -> bool {
    losses(faults).any(|(from, back)| from < back && since < from && from <= until)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn triggers_meet_exactly_what_they_say() {
        let meets = |trigger: Trigger| (1..=7).filter(|n| trigger.meets(*n, n * 10)).collect::<Vec<_>>();
        assert_eq!(meets(Trigger::nth(4)), [4]);
        assert_eq!(meets(Trigger::Requests { from: 2, to: 3 }), [2, 3]);
        assert_eq!(meets(Trigger::Every(3)), [3, 6]);
        assert_eq!(meets(Trigger::Every(0)), [0; 0]);
        assert_eq!(meets(Trigger::Time { from_ns: 20, to_ns: 40 }), [2, 3]);
        assert_eq!(meets(Trigger::always()).len(), 7);
    }

    #[test]
    fn faults_add_up() {
        let faults = [
            Fault::new(Effect::Error, Trigger::nth(1)),
            Fault::new(Effect::Slow { permille: 2000 }, Trigger::always()),
            Fault::new(Effect::WrongResult, Trigger::nth(2)),
        ];
        assert_eq!(
            fate(&faults, 1, 0),
            Fate { error: true, silent: false, wrong: false, stretch_permille: 2000 }
        );
        assert_eq!(
            fate(&faults, 2, 0),
            Fate { error: false, silent: false, wrong: true, stretch_permille: 2000 }
        );
    }

    #[test]
    fn loss_ends_when_declared() {
        let by_count = [Fault::new(Effect::Lost { back_after_ns: Some(100) }, Trigger::nth(2))];
        assert_eq!(lost_by(&by_count, 1, 50), None);
        assert_eq!(lost_by(&by_count, 2, 50), Some(150));
        let by_time =
            [Fault::new(Effect::Lost { back_after_ns: None }, Trigger::Time { from_ns: 10, to_ns: 30 })];
        let gone = |age| gone_at(&by_time, age);
        assert_eq!([gone(9), gone(10), gone(29), gone(30)], [false, true, true, false]);
    }

    #[test]
    fn who_opened_before_a_loss_has_lost_even_after_it() {
        let by_time =
            [Fault::new(Effect::Lost { back_after_ns: None }, Trigger::Time { from_ns: 10, to_ns: 30 })];
        assert!(!lost_between(&by_time, 0, 9));
        assert!(lost_between(&by_time, 0, 10) && lost_between(&by_time, 0, 99));
        assert!(!lost_between(&by_time, 30, 99));
    }
}
