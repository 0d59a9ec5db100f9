//! What an instrument outside the machine says, line by line: a wall meter, a management controller, a shunt. Pure: time
//! is an argument.
//!
//! A line is `J TOTAL`, joules since some moment, or `W NOW`, watts, which are integrated along straight lines between
//! two readings. One instrument says one of the two. What lies between two readings is shared out evenly, so a window
//! needs a reading at or before its start and one at or after its end; without them it has no joules.

use crate::Nanos;
use crate::figure::Boundary;

/// Counters step, so that a short gap may hold more than its share.
const SLACK_SECONDS: f64 = 1.0;

/// What the lines said so far.
#[derive(Debug, Default)]
pub struct Outside {
    says: Option<Says>,
    /// The last watts.
    watts: f64,
    /// When, and the joules up to then since the first reading.
    course: Vec<(Nanos, f64)>,
    /// The first total.
    from: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Says {
    Totals,
    Watts,
}

/// Why a line is none of an instrument's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Nonsense {
    /// It has another form.
    #[error("`{0}` is neither `J TOTAL` nor `W NOW`")]
    Form(String),
    /// `J` after `W`, or the reverse.
    #[error("it says both joules and watts")]
    Both,
    /// A total that is less than the one before.
    #[error("its total went backwards")]
    Backwards,
    /// Below zero, or more than a machine can draw.
    #[error("`{0}` is no power that a machine can draw")]
    Power(String),
}

impl Outside {
    /// Takes a line in that came at `now`.
    ///
    /// # Errors
    /// [`Nonsense`]; the line then counts for nothing.
    pub fn line(&mut self, line: &str, now: Nanos) -> Result<(), Nonsense> {
        let form = || Nonsense::Form(shown(line));
        let (says, number) = match line.trim().split_once(char::is_whitespace).ok_or_else(form)? {
            ("J", number) => (Says::Totals, number),
            ("W", number) => (Says::Watts, number),
            _ => return Err(form()),
        };
        let number: f64 = number.trim().parse().map_err(|_| form())?;
        if self.says.is_some_and(|before| before != says) {
            return Err(Nonsense::Both);
        }
        let most = Boundary::Node.most_watts();
        let last = self.course.last().copied();
        let passed = |last: Nanos| now.saturating_sub(last) as f64 / 1e9;
        let joules = match (says, last) {
            _ if !number.is_finite() => return Err(Nonsense::Power(shown(line))),
            (Says::Watts, _) if !(0.0..=most).contains(&number) => {
                return Err(Nonsense::Power(shown(line)));
            }
            (_, None) => 0.0,
            (Says::Watts, Some((then, sum))) => sum + (self.watts + number) / 2.0 * passed(then),
            (Says::Totals, Some((then, sum))) => {
                let joules = number - self.from;
                if joules < sum {
                    return Err(Nonsense::Backwards);
                }
                if joules - sum > most * (passed(then) + SLACK_SECONDS) {
                    return Err(Nonsense::Power(shown(line)));
                }
                joules
            }
        };
        match says {
            Says::Watts => self.watts = number,
            Says::Totals if last.is_none() => self.from = number,
            Says::Totals => {}
        }
        self.says = Some(says);
        self.course.push((now, joules));
        Ok(())
    }

    /// When the last line came.
    pub fn last_ns(&self) -> Option<Nanos> {
        self.course.last().map(|(at, _)| *at)
    }

    /// What its figures are: totals, or watts that were integrated.
    pub fn words(&self) -> &'static str {
        if self.says == Some(Says::Watts) { "outside meter, watts integrated" } else { "outside meter" }
    }

    /// Joules of a window; `None` if no reading came at or before its start, or at or after its end.
    pub fn between(&self, from: Nanos, to: Nanos) -> Option<f64> {
        Some((self.at(to)? - self.at(from)?).max(0.0))
    }

    /// Forgets what no window needs that starts at `now` or later.
    pub fn forget_before(&mut self, now: Nanos) {
        let needed = self.course.partition_point(|(at, _)| *at <= now).saturating_sub(1);
        self.course.drain(..needed);
    }

    /// Joules up to a moment, along a straight line between the readings around it.
    fn at(&self, now: Nanos) -> Option<f64> {
        let next = self.course.partition_point(|(at, _)| *at < now);
        let &(after, more) = self.course.get(next)?;
        if after == now {
            return Some(more);
        }
        let &(before, less) = self.course.get(next.checked_sub(1)?)?;
        let share = (now - before) as f64 / (after - before) as f64;
        Some(less + (more - less) * share)
    }
}

/// A line for an error: not too long, and nothing in it that a terminal obeys.
fn shown(line: &str) -> String {
    line.trim().chars().take(40).map(|one| if one.is_control() { '\u{fffd}' } else { one }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    fn of(lines: &[&str]) -> Outside {
        let mut outside = Outside::default();
        for (at, line) in lines.iter().enumerate() {
            outside.line(line, at as Nanos * SECOND).unwrap();
        }
        outside
    }

    #[test]
    fn totals_are_subtracted_and_shared_out_between_two_readings() {
        let outside = of(&["J 1000.5", "J 1010.5\n", "  J   1030.5 "]);
        assert_eq!(outside.between(0, 2 * SECOND), Some(30.0));
        assert_eq!(outside.between(SECOND / 2, 3 * SECOND / 2), Some(15.0));
        assert_eq!(outside.between(SECOND, SECOND), Some(0.0));
        assert_eq!(outside.words(), "outside meter");
    }

    #[test]
    fn watts_are_integrated() {
        let outside = of(&["W 100", "W 300", "W 300"]);
        assert_eq!(outside.between(0, 2 * SECOND), Some(500.0));
        assert_eq!(outside.between(SECOND, 3 * SECOND / 2), Some(150.0));
        assert_eq!(outside.words(), "outside meter, watts integrated");
    }

    #[test]
    fn a_window_that_readings_do_not_enclose_has_no_joules() {
        let mut outside = Outside::default();
        assert_eq!((outside.between(0, 0), outside.last_ns()), (None, None));
        outside.line("W 5", SECOND).unwrap();
        outside.line("W 5", 2 * SECOND).unwrap();
        assert_eq!(outside.between(0, 2 * SECOND), None, "it began late");
        assert_eq!(outside.between(SECOND, 2 * SECOND + 1), None, "it ended in the middle");
        assert_eq!(outside.between(SECOND, 2 * SECOND), Some(5.0));
        outside.forget_before(3 * SECOND / 2);
        assert_eq!(outside.between(3 * SECOND / 2, 2 * SECOND), Some(2.5), "what is needed stays");
        outside.forget_before(9 * SECOND);
        assert_eq!(outside.between(SECOND, 2 * SECOND), None);
        assert_eq!(outside.last_ns(), Some(2 * SECOND));
    }

    #[test]
    fn nonsense_is_refused_and_counts_for_nothing() {
        let mut outside = of(&["J 10", "J 20"]);
        let now = 2 * SECOND;
        for (line, why) in [
            ("", Nonsense::Form(String::new())),
            ("J", Nonsense::Form("J".into())),
            ("20", Nonsense::Form("20".into())),
            ("K 20", Nonsense::Form("K 20".into())),
            ("J 20 21", Nonsense::Form("J 20 21".into())),
            ("J x\u{1b}[2J", Nonsense::Form("J x\u{fffd}[2J".into())),
            ("W 20", Nonsense::Both),
            ("J 19", Nonsense::Backwards),
            ("J 1e9", Nonsense::Power("J 1e9".into())),
            ("J nan", Nonsense::Power("J nan".into())),
            ("J inf", Nonsense::Power("J inf".into())),
        ] {
            assert_eq!(outside.line(line, now), Err(why), "{line:?}");
        }
        for line in ["W -1", "W nan", "W 1e7"] {
            assert!(matches!(Outside::default().line(line, 0), Err(Nonsense::Power(_))), "{line}");
        }
        outside.line("J 25", now).unwrap();
        assert_eq!(outside.between(0, now), Some(15.0));
    }

    proptest! {
        /// Wherever a window is cut, its parts have what the whole has.
        #[test]
        fn parts_of_a_window_add_up(watts in prop::collection::vec(0.0..500.0_f64, 2..20), cut in 0.0..1.0_f64) {
            let lines: Vec<String> = watts.iter().map(|watts| format!("W {watts}")).collect();
            let outside = of(&lines.iter().map(String::as_str).collect::<Vec<_>>());
            let end = (watts.len() as Nanos - 1) * SECOND;
            let cut = (end as f64 * cut) as Nanos;
            let sum = outside.between(0, cut).unwrap() + outside.between(cut, end).unwrap();
            prop_assert!((sum - outside.between(0, end).unwrap()).abs() < 1e-6);
        }
    }
}
