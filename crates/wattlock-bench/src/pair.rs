//! Timing things against each other: in turn, in short rounds, so that a ratio holds although the machine's speed
//! drifts and a neighbour comes and goes. A [`Gain`] is what a comparison may say, and when it may say nothing.

use std::fmt;

use serde::ser::{Serialize, SerializeStruct, Serializer};
use wattlock_shell::text::verdict;

/// Median of some figures: of an even number the mean of the two in the middle, so that of two rounds not the better one
/// counts. 0 of none.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    let (low, high) = (figures.len().saturating_sub(1) / 2, figures.len() / 2);
    match (figures.get(low), figures.get(high)) {
        (Some(low), Some(high)) => (low + high) / 2.0,
        _ => 0.0,
    }
}

/// Which figures are the better ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// Rates.
    More,
    /// Times.
    Less,
}

/// Rounds from which on the spread is that of the middle half: of many, one that was disturbed decides nothing.
const MANY: usize = 9;

/// Ours against a peer's, round by round. The figures are those of one round, the one with the median ratio (of an even
/// number the worse of the two in the middle), so that `ours`, `theirs` and `ratio` never contradict each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gain {
    /// Our figure.
    pub ours: f64,
    /// The peer's in the same round.
    pub theirs: f64,
    /// How many times better ours is: above 1 a gain, below a loss.
    pub ratio: f64,
    /// The least ratio of a round; of nine rounds and more, the lower quartile.
    pub low: f64,
    /// The greatest ratio of a round; of nine rounds and more, the upper quartile.
    pub high: f64,
    /// How many rounds.
    pub rounds: usize,
}

impl Gain {
    /// Compares figures of the same rounds. `None` without a round in which both are positive.
    pub fn of(ours: &[f64], theirs: &[f64], better: Better) -> Option<Gain> {
        let ratio = |(ours, theirs): (f64, f64)| match better {
            Better::More => (ours / theirs, ours, theirs),
            Better::Less => (theirs / ours, ours, theirs),
        };
        let rounds = ours.iter().copied().zip(theirs.iter().copied());
        let positive = |(ours, theirs): &(f64, f64)| *ours > 0.0 && *theirs > 0.0;
        let mut rounds: Vec<(f64, f64, f64)> = rounds.filter(positive).map(ratio).collect();
        rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (count, last) = (rounds.len(), rounds.len().checked_sub(1)?);
        let (ratio, ours, theirs) = rounds[last / 2];
        let skipped = if count < MANY { 0 } else { count / 4 };
        let (low, high) = (rounds[skipped].0, rounds[last - skipped].0);
        Some(Gain { ours, theirs, ratio, low, high, rounds: count })
    }

    /// The ratio, unless the interval from the least to the greatest contains 1: then no difference was seen. A comparison
    /// and its inverse are judged alike.
    pub fn known(&self) -> Option<f64> {
        let differs = self.low > 1.0 || self.high < 1.0;
        (self.rounds == 1 || differs).then_some(self.ratio)
    }
}

/// For programs, too, a ratio whose interval contains 1 is none.
impl Serialize for Gain {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Gain", 6)?;
        fields.serialize_field("ours", &self.ours)?;
        fields.serialize_field("theirs", &self.theirs)?;
        fields.serialize_field("ratio", &self.known())?;
        fields.serialize_field("low", &self.low)?;
        fields.serialize_field("high", &self.high)?;
        fields.serialize_field("rounds", &self.rounds)?;
        fields.end()
    }
}

impl fmt::Display for Gain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&verdict(self.known(), self.low, self.high))?;
        if self.rounds == 1 { f.write_str(" (one round)") } else { Ok(()) }
    }
}

/// What [`Gain`]'s words mean, for below a table.
pub const LEGEND: &str = "gain: how many times better in rounds measured in turn: at least (a loss: at most) in each round, \
                          of nine rounds or more in the middle half of them; no difference: that interval contains 1";

/// A gain for a cell.
pub fn cell(gain: Option<Gain>) -> String {
    gain.map_or_else(|| "-".to_owned(), |gain| gain.to_string())
}

/// Processor time of this thread so far, in seconds: what others do on the core meanwhile is not in it.
pub fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Nanoseconds of processor time a call, of so many.
pub fn time(calls: u32, contestant: &mut dyn FnMut()) -> f64 {
    let start = processor_seconds();
    (0..calls).for_each(|_| contestant());
    (processor_seconds() - start) * 1e9 / f64::from(calls)
}

/// Runs each contestant `inner` times per round, in turn, for `rounds` rounds; returns nanoseconds of processor time a
/// call, `[round]` for each contestant.
pub fn in_turn(contestants: &mut [&mut dyn FnMut()], inner: u32, rounds: u32) -> Vec<Vec<f64>> {
    let mut times = vec![Vec::new(); contestants.len()];
    for round in 0..=rounds {
        for (contestant, times) in contestants.iter_mut().zip(&mut times) {
            let ns = time(inner, contestant);
            if round > 0 {
                times.push(ns); // The first round warms up.
            }
        }
    }
    times
}

/// Calls per round so that one takes about `ns` nanoseconds.
pub fn calls_for(ns: f64, contestant: &mut dyn FnMut()) -> u32 {
    contestant();
    let once = time(1, contestant).max(20.0);
    (ns / once).clamp(1.0, 1e6) as u32
}

/// Median over rounds of `a / b`.
pub fn ratio(a: &[f64], b: &[f64]) -> f64 {
    median(a.iter().zip(b).map(|(a, b)| a / b).collect())
}

/// Median over rounds of `a - b`.
pub fn difference(a: &[f64], b: &[f64]) -> f64 {
    median(a.iter().zip(b).map(|(a, b)| a - b).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(ours: &[f64], theirs: &[f64]) -> Gain {
        Gain::of(ours, theirs, Better::More).unwrap()
    }

    #[test]
    fn the_median_favours_nobody() {
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(median(vec![3.0]), 3.0);
        assert_eq!(median(vec![9.0, 1.0]), 5.0);
        assert_eq!(median(vec![7.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![8.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(ratio(&[2.0, 3.0], &[1.0, 1.0]), 2.5);
    }

    /// Three medians, each over its own column, once stood in one line as 841, 763 and 1.13.
    #[test]
    fn both_figures_and_the_ratio_are_of_one_round() {
        let gain = rates(&[900.0, 763.0, 700.0], &[700.0, 675.0, 841.0]);
        assert_eq!((gain.ours, gain.theirs), (763.0, 675.0));
        assert!((gain.ours / gain.theirs - gain.ratio).abs() < 1e-12);
        assert_eq!((gain.low, gain.high), (700.0 / 841.0, 900.0 / 700.0));
    }

    #[test]
    fn of_two_rounds_in_the_middle_the_worse_counts() {
        assert_eq!(rates(&[2.0, 3.0], &[1.0, 1.0]).ratio, 2.0);
        let times = Gain::of(&[2.0, 4.0], &[4.0, 4.0], Better::Less).unwrap();
        assert_eq!((times.ratio, times.ours, times.theirs, times.high), (1.0, 4.0, 4.0, 2.0));
    }

    #[test]
    fn no_difference_is_what_an_interval_says_that_contains_1() {
        assert_eq!(rates(&[2.0, 2.2, 2.1], &[1.0; 3]).to_string(), "at least 2.00 times (median 2.10)");
        assert_eq!(rates(&[0.9, 1.1, 1.05], &[1.0; 3]).to_string(), "no difference (0.90 to 1.10)");
        // However wide: each round was a gain.
        assert_eq!(rates(&[1.31, 3.27, 2.2], &[1.0; 3]).to_string(), "at least 1.31 times (median 2.20)");
        assert_eq!(rates(&[0.5, 0.9, 0.8], &[1.0; 3]).to_string(), "at most 0.90 times (median 0.80)");
        // As with a neighbour at work in one round of three: nothing is said, rather than 0.33 or 3.
        assert_eq!(rates(&[0.33, 1.0, 2.0], &[1.0; 3]).known(), None);
        let noise = serde_json::to_value(rates(&[0.9, 1.1, 1.05], &[1.0; 3])).unwrap();
        assert!(noise["ratio"].is_null() && noise["low"] == 0.9 && noise["rounds"] == 3, "{noise}");
        // A loss is told as a gain is.
        assert_eq!(rates(&[0.5, 0.52, 0.48], &[1.0; 3]).known(), Some(0.5));
        let (gain, inverse) = (rates(&[1.1, 1.3, 1.2], &[1.0; 3]), rates(&[1.0; 3], &[1.1, 1.3, 1.2]));
        assert_eq!(gain.known().is_some(), inverse.known().is_some());
        assert_eq!(rates(&[3.0], &[2.0]).to_string(), "1.50 times (one round)");
    }

    #[test]
    fn every_interval_has_the_verdict_that_its_ends_say() {
        let figures = [0.2, 0.5, 0.9, 0.999, 1.0, 1.001, 1.1, 2.0, 5.0];
        for (one, two, three) in figures.into_iter().flat_map(|one| {
            figures.into_iter().flat_map(move |two| figures.into_iter().map(move |three| (one, two, three)))
        }) {
            let gain = rates(&[one, two, three], &[1.0; 3]);
            let least = one.min(two).min(three);
            let greatest = one.max(two).max(three);
            let said = gain.to_string();
            let wanted = match (least > 1.0, greatest < 1.0) {
                _ if least == greatest && least != 1.0 => " times",
                (true, _) => "at least",
                (_, true) => "at most",
                _ => "no difference",
            };
            assert!(said.contains(wanted), "{one} {two} {three}: {said}");
            let inverse = rates(&[1.0; 3], &[one, two, three]);
            assert_eq!(gain.known().is_some(), inverse.known().is_some(), "{one} {two} {three}");
        }
    }

    #[test]
    fn of_many_rounds_the_middle_half_is_the_spread() {
        let mut ours = [2.0, 2.01, 2.02, 2.03, 2.04, 2.05, 2.06, 2.07, 2.08];
        ours[0] = 0.1;
        ours[8] = 40.0;
        let gain = rates(&ours, &[1.0; 9]);
        assert_eq!((gain.low, gain.ratio, gain.high, gain.rounds), (2.02, 2.04, 2.06, 9));
        assert!(gain.known().is_some());
        assert!(rates(&ours[..8], &[1.0; 8]).known().is_none(), "of few rounds every one counts");
    }

    #[test]
    fn a_round_without_a_figure_is_no_round() {
        assert_eq!(rates(&[0.0, 2.0], &[1.0, 1.0]).rounds, 1);
        assert_eq!(Gain::of(&[0.0], &[1.0], Better::More), None);
        assert_eq!(Gain::of(&[], &[], Better::Less), None);
    }
}
