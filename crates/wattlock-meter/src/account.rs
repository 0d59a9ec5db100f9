//! The sum of one sensor's readings over a window, and how a misbehaving counter affects it. Pure: time is an argument.
//!
//! | the counter | the figure |
//! |---|---|
//! | rises | measured |
//! | falls, and would be plausible as a wrap-around | measured; counted as one |
//! | falls otherwise, or shows more power than is possible | lower bound: that step is left out |
//! | was read so seldom that it could have wrapped twice | lower bound |
//! | cannot be read for a while, or any more | lower bound, and the window ends with the last reading |
//! | stands still at the end | lower bound |
//! | never moves | none: a running machine draws power, so this is not 0 J |
//!
//! Two wraps between two readings look like one. The longest time between readings is therefore bounded
//! ([`Account::longest_gap_ns`]), from the counter's range and the largest possible power.

use crate::Nanos;
use crate::figure::{Metered, Value, Window};
use crate::sensor::{About, Gone, Measures};

/// A counter that rose before and has not risen for this long has stopped. The slowest known step once a second.
const STOPPED_NS: Nanos = 3_000_000_000;
/// Counters step in time too (RAPL each millisecond), so a short gap may hold more than its share.
const SLACK_SECONDS: f64 = 1.0;

/// One sensor's sum over one window.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// First and last good reading: when, and its number.
    first: Option<Nanos>,
    last: Option<(Nanos, u64)>,
    joules: f64,
    moved_at: Option<Nanos>,
    readings: u64,
    longest_gap_ns: Nanos,
    at_least: Option<String>,
    missing: Option<String>,
}

impl Account {
    /// Takes one reading.
    pub(crate) fn note(&mut self, about: &About, now: Nanos, reading: Result<u64, Gone>) {
        let count = match reading {
            Ok(count) => count,
            Err(Gone(why)) => {
                self.missing = Some(why);
                return;
            }
        };
        self.readings += 1;
        let away = self.missing.take();
        let Some((then, before)) = self.last.replace((now, count)) else {
            self.first = Some(now);
            if let Some(why) = away {
                self.or_more(&format!("it could not be read at first ({why})"));
            }
            return;
        };
        if let Some(why) = away {
            // What it did meanwhile is unknown; it may have been reset.
            return self.or_more(&format!("it could not be read for a while ({why})"));
        }
        let gap = now.saturating_sub(then);
        self.longest_gap_ns = self.longest_gap_ns.max(gap);
        match about.measures {
            Measures::Power { watts } => {
                let most = about.boundary.most_watts();
                if before.max(count) as f64 * watts > most {
                    self.or_more("it showed more than anything can draw");
                }
                let believed = |count: u64| Some(count as f64 * watts).filter(|watts| *watts <= most);
                let ends = [before, count].map(|count| believed(count).unwrap_or(0.0));
                self.joules += (ends[0] + ends[1]) / 2.0 * gap as f64 / 1e9;
                // 0 W is a sensor that does not work, until it has shown that it does.
                if ends != [0.0; 2] || self.moved_at.is_some() {
                    self.moved_at = Some(now);
                }
            }
            Measures::Energy { joules, wraps_after } => {
                let most = about.boundary.most_watts() * (gap as f64 / 1e9 + SLACK_SECONDS);
                match step(before, count, wraps_after, joules, most) {
                    Ok(0) => {}
                    Ok(counts) => {
                        self.joules += counts as f64 * joules;
                        self.moved_at = Some(now);
                    }
                    Err(why) => {
                        self.or_more(why);
                        self.moved_at = Some(now);
                    }
                }
                if longest_gap_ns(about).is_some_and(|longest| gap > longest) {
                    self.or_more("it was read so seldom that it may have wrapped around unseen");
                }
            }
        }
    }

    fn or_more(&mut self, why: &str) {
        self.at_least.get_or_insert_with(|| why.to_owned());
    }

    /// The window's figure so far.
    pub(crate) fn value(&self, about: &About) -> (Window, Value, Option<String>) {
        let (Some(from_ns), Some((to_ns, _))) = (self.first, self.last) else {
            let why = self.missing.clone().unwrap_or_else(|| "it was not read".to_owned());
            return (Window::default(), Value::Unknown(why), None);
        };
        let window = Window { from_ns, to_ns };
        if let Some(why) = &self.missing
            && self.readings < 2
        {
            return (window, Value::Unknown(format!("it could not be read a second time ({why})")), None);
        }
        let Some(moved_at) = self.moved_at else {
            let why = format!("it did not move in {:.3} s", window.seconds());
            return (window, Value::Unknown(why), None);
        };
        let derived = matches!(about.measures, Measures::Power { .. });
        let mut value = Metered::new(self.joules, derived, self.at_least.clone());
        if let Some(why) = &self.missing {
            value = value.or_more(&format!("it could not be read any more ({why})"));
        }
        let still = to_ns.saturating_sub(moved_at);
        if still > STOPPED_NS {
            value = value.or_more(&format!("it stood still for the last {:.1} s", still as f64 / 1e9));
        }
        let note = derived.then(|| {
            let gap = self.longest_gap_ns as f64 / 1e9;
            format!("integrated from {} samples of power, at most {gap:.2} s apart", self.readings)
        });
        (window, Value::Metered(value), note)
    }
}

/// Counts between two readings, or why they are unknown.
fn step(
    before: u64,
    now: u64,
    wraps_after: Option<u64>,
    joules: f64,
    most: f64,
) -> Result<u64, &'static str> {
    let plausible = |counts: u64| counts as f64 * joules <= most;
    if now >= before {
        return if plausible(now - before) {
            Ok(now - before)
        } else {
            Err("it jumped further than anything can draw")
        };
    }
    let wrapped = wraps_after.filter(|top| before <= *top).map(|top| top - before + now);
    wrapped.filter(|counts| plausible(*counts)).ok_or("it went backwards")
}

/// Longest time between two readings in which a counter cannot wrap around; `None` if it never wraps.
pub(crate) fn longest_gap_ns(about: &About) -> Option<Nanos> {
    match about.measures {
        Measures::Energy { joules, wraps_after: Some(top) } => {
            Some((top as f64 * joules / about.boundary.most_watts() * 1e9) as Nanos)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::figure::{Boundary, Quality};

    const SECOND: Nanos = 1_000_000_000;
    /// The range of a package on many machines: 65.5 kJ in units of 61 uJ, shown in microjoules.
    const TOP: u64 = 65_532_610_987;

    fn package(wraps_after: Option<u64>) -> About {
        About {
            source: "powercap",
            boundary: Boundary::Package,
            part: "package-0".into(),
            detail: String::new(),
            measures: Measures::Energy { joules: 1e-6, wraps_after },
        }
    }

    fn after(about: &About, readings: &[Result<u64, &str>]) -> (Window, Value) {
        let mut account = Account::default();
        for (at, reading) in readings.iter().enumerate() {
            let reading = reading.map_err(|why| Gone(why.to_owned()));
            account.note(about, at as Nanos * SECOND, reading);
        }
        let (window, value, _) = account.value(about);
        (window, value)
    }

    fn metered(value: &Value) -> &Metered {
        let Value::Metered(metered) = value else { panic!("{value:?}") };
        metered
    }

    #[test]
    fn a_rising_counter_is_measured_from_end_to_end() {
        let (window, value) = after(&package(Some(TOP)), &[Ok(1_000_000), Ok(11_000_000), Ok(31_000_000)]);
        assert_eq!(window, Window { from_ns: 0, to_ns: 2 * SECOND });
        assert_eq!(metered(&value), &Metered::new(30.0, false, None));
    }

    #[test]
    fn a_wrap_around_in_the_middle_of_a_run_is_counted_as_one() {
        let (_, value) =
            after(&package(Some(TOP)), &[Ok(TOP - 40_000_000), Ok(TOP - 10_000_000), Ok(20_000_000)]);
        assert!((metered(&value).joules() - 60.0).abs() < 1e-3, "{value:?}");
        assert_eq!((metered(&value).quality(), metered(&value).at_least()), (Quality::Measured, None));
    }

    #[test]
    fn a_counter_that_goes_backwards_gives_a_lower_bound_without_that_step() {
        // As a wrap this would be 65 kJ in a second.
        let (_, value) =
            after(&package(Some(TOP)), &[Ok(50_000_000), Ok(60_000_000), Ok(1_000_000), Ok(6_000_000)]);
        assert_eq!(metered(&value).joules(), 15.0);
        assert_eq!(metered(&value).at_least(), Some("it went backwards"));
        let (_, value) = after(&package(None), &[Ok(50_000_000), Ok(0), Ok(1_000_000)]);
        assert_eq!((metered(&value).joules(), metered(&value).at_least()), (1.0, Some("it went backwards")));
    }

    #[test]
    fn a_counter_beyond_its_own_range_is_not_taken_for_a_wrap() {
        let (_, value) = after(&package(Some(1000)), &[Ok(5000), Ok(100), Ok(200)]);
        assert_eq!(metered(&value).at_least(), Some("it went backwards"));
    }

    #[test]
    fn an_absurd_jump_is_left_out() {
        let (_, value) = after(&package(None), &[Ok(0), Ok(u64::MAX / 2), Ok(u64::MAX / 2 + 7_000_000)]);
        assert_eq!(metered(&value).joules(), 7.0);
        assert!(metered(&value).at_least().unwrap().contains("jumped"));
    }

    #[test]
    fn a_counter_that_never_moves_has_no_figure() {
        let (_, value) = after(&package(Some(TOP)), &[Ok(0), Ok(0), Ok(0)]);
        assert_eq!(value, Value::Unknown("it did not move in 2.000 s".into()));
    }

    #[test]
    fn a_counter_that_stops_gives_a_lower_bound() {
        let stops = [Ok(0), Ok(9_000_000), Ok(9_000_000), Ok(9_000_000), Ok(9_000_000), Ok(9_000_000)];
        let (_, value) = after(&package(Some(TOP)), &stops);
        assert_eq!(metered(&value).joules(), 9.0);
        assert!(metered(&value).at_least().unwrap().contains("stood still for the last 4.0 s"));
        let (_, value) = after(&package(Some(TOP)), &stops[..3]);
        assert_eq!(metered(&value).at_least(), None, "a second is not long enough to tell");
    }

    #[test]
    fn a_socket_that_disappears_ends_its_window_there() {
        let (window, value) =
            after(&package(Some(TOP)), &[Ok(0), Ok(5_000_000), Err("no such file"), Err("no such file")]);
        assert_eq!((window.to_ns, metered(&value).joules()), (SECOND, 5.0));
        assert!(metered(&value).at_least().unwrap().contains("no such file"));
    }

    #[test]
    fn a_socket_that_comes_back_is_not_credited_for_the_gap() {
        let (_, value) =
            after(&package(Some(TOP)), &[Ok(0), Ok(5_000_000), Err("busy"), Ok(50_000_000), Ok(51_000_000)]);
        assert_eq!(metered(&value).joules(), 6.0);
        assert!(metered(&value).at_least().unwrap().contains("busy"));
    }

    #[test]
    fn a_sensor_that_is_never_read_says_why() {
        let (_, value) = after(&package(None), &[Err("denied"), Err("denied")]);
        assert_eq!(value, Value::Unknown("denied".into()));
        let (_, value) = after(&package(None), &[Ok(1), Err("denied")]);
        assert!(matches!(value, Value::Unknown(why) if why.contains("denied")));
    }

    #[test]
    fn a_counter_that_can_wrap_between_readings_gives_a_lower_bound() {
        // 1 J a turn: at 2 kW it wraps around in half a millisecond, and readings are a second apart.
        let (_, value) = after(&package(Some(1_000_000)), &[Ok(0), Ok(500_000)]);
        assert!(metered(&value).at_least().unwrap().contains("unseen"));
        assert_eq!(longest_gap_ns(&package(Some(1_000_000))), Some(500_000));
        assert_eq!(longest_gap_ns(&package(None)), None);
    }

    #[test]
    fn power_is_integrated_and_called_derived() {
        let about =
            About { measures: Measures::Power { watts: 1e-3 }, boundary: Boundary::Board, ..package(None) };
        let (_, value) = after(&about, &[Ok(100_000), Ok(300_000), Ok(300_000)]);
        assert_eq!((metered(&value).joules(), metered(&value).quality()), (500.0, Quality::Derived));
        let resting = [Ok(2000), Ok(0), Ok(0), Ok(0), Ok(0), Ok(0), Ok(0)];
        assert_eq!(metered(&after(&about, &resting).1), &Metered::new(1.0, true, None), "a rail may be off");
        let (_, value) = after(&about, &[Ok(0), Ok(0)]);
        assert!(matches!(value, Value::Unknown(_)), "0 W is a sensor that does not work");
    }

    #[test]
    fn power_that_nothing_can_draw_is_left_out() {
        let about =
            About { measures: Measures::Power { watts: 1e-6 }, boundary: Boundary::Board, ..package(None) };
        let (_, value) = after(
            &about,
            &[Ok(100_000_000), Ok(100_000_000), Ok(u64::MAX), Ok(100_000_000), Ok(100_000_000)],
        );
        assert_eq!(metered(&value).joules(), 300.0, "two whole seconds, and two halves beside the nonsense");
        assert!(metered(&value).at_least().unwrap().contains("more than anything"));
        let (_, value) = after(&about, &[Ok(u64::MAX), Ok(u64::MAX)]);
        assert!(matches!(value, Value::Unknown(_)));
    }

    #[test]
    fn a_wrap_exactly_at_the_end_of_the_range_loses_nothing() {
        let (_, value) = after(&package(Some(TOP)), &[Ok(TOP - 5_000_000), Ok(TOP), Ok(0), Ok(7_000_000)]);
        assert_eq!(metered(&value), &Metered::new(12.0, false, None));
    }

    proptest! {
        /// However the truth is cut by readings, and wherever the counter wraps, the sum is the truth.
        #[test]
        fn any_true_course_is_summed_exactly(start in 0..TOP, steps in prop::collection::vec(0_u64..500_000_000, 1..40)) {
            let about = package(Some(TOP));
            let mut account = Account::default();
            let (mut at, mut truth) = (start, 0_u64);
            account.note(&about, 0, Ok(at));
            for (n, step) in steps.iter().enumerate() {
                truth += step;
                at = if at + step >= TOP { at + step - TOP } else { at + step };
                account.note(&about, (n as Nanos + 1) * SECOND, Ok(at));
            }
            if truth > 0 && steps.iter().rev().take(3).any(|step| *step > 0) {
                let (_, value, _) = account.value(&about);
                prop_assert!((metered(&value).joules() - truth as f64 / 1e6).abs() < 1e-6 * truth as f64 / 1e6 + 1e-9);
                prop_assert_eq!(metered(&value).at_least(), None);
            }
        }

        /// Whatever a broken counter says, the figure stays below what can be drawn, and is never negative.
        #[test]
        fn no_course_yields_more_than_can_be_drawn(readings in prop::collection::vec(any::<Option<u64>>(), 2..20)) {
            let about = package(Some(TOP));
            let mut account = Account::default();
            for (n, reading) in readings.iter().enumerate() {
                account.note(&about, n as Nanos * SECOND, reading.ok_or(Gone("gone".into())));
            }
            if let (_, Value::Metered(metered), _) = account.value(&about) {
                let seconds = readings.len() as f64;
                prop_assert!((0.0..=2.0 * 2000.0 * seconds).contains(&metered.joules()));
            }
        }
    }
}
