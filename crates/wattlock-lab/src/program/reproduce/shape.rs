//! Whether measured curves have the published shape: which method wins at each point, the sign of each gain, and where
//! two methods' lines cross. Absolute figures are not compared: the machines differ.
//!
//! It counts and smooths nothing. A measured difference that is less than the rounds' spread decides nothing and is counted
//! as that; a point that was not measured is missing.

use std::cmp::Ordering;

/// A measured figure and the spread of its rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The median.
    pub value: f64,
    /// The lowest round.
    pub low: f64,
    /// The highest.
    pub high: f64,
}

/// One method at one point.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// `bytes=16384 processes=2`.
    pub point: String,
    /// Its name.
    pub method: String,
    /// If the paper has it.
    pub published: Option<f64>,
    /// If it was measured.
    pub measured: Option<Spread>,
}

/// What was published about a ratio without the two figures: one method over the best of others is within an interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Claim {
    /// Whose ratio it is.
    pub quantity: &'static str,
    /// Words that a point must have.
    pub at: &'static [&'static str],
    /// The method that is compared.
    pub of: &'static str,
    /// Those with the best of which it is.
    pub over: &'static [&'static str],
    /// The least that the ratio may be.
    pub low: f64,
    /// The most.
    pub high: f64,
}

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The best method at a point.
    Winner,
    /// Whether a method gains over another.
    Sign,
    /// Between which places two lines cross.
    Crossing,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Winner, Kind::Sign, Kind::Crossing];

    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Winner => "who wins",
            Kind::Sign => "sign of a gain",
            Kind::Crossing => "lines that cross",
        }
    }
}

/// What a comparison says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// As published.
    Agrees,
    /// Otherwise.
    Disagrees,
    /// The measured difference is less than its spread.
    Undecided,
    /// Not measured.
    Missing,
}

/// One comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// What is compared.
    pub kind: Kind,
    /// What comes out.
    pub verdict: Verdict,
    /// What was compared, and what both say.
    pub text: String,
}

/// How many of each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// [`Verdict::Agrees`].
    pub agree: usize,
    /// [`Verdict::Disagrees`].
    pub disagree: usize,
    /// [`Verdict::Undecided`].
    pub undecided: usize,
    /// [`Verdict::Missing`].
    pub missing: usize,
}

impl Counts {
    /// Counts them.
    pub fn of<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> Counts {
        let mut counts = Counts::default();
        for finding in findings {
            *match finding.verdict {
                Verdict::Agrees => &mut counts.agree,
                Verdict::Disagrees => &mut counts.disagree,
                Verdict::Undecided => &mut counts.undecided,
                Verdict::Missing => &mut counts.missing,
            } += 1;
        }
        counts
    }
}

/// The value of a word of a point as a number, and the point without it.
pub fn coordinate(point: &str, axis: &str) -> (Option<f64>, String) {
    let own = |word: &&str| word.split_once('=').is_some_and(|(key, _)| key == axis);
    let value = point.split(' ').find(own).and_then(|word| word.split_once('=')?.1.parse().ok());
    (value, point.split(' ').filter(|word| !own(word)).collect::<Vec<_>>().join(" "))
}

/// A figure's readings of one quantity.
pub struct Shape<'a> {
    /// Every method at every point.
    pub readings: &'a [Reading],
    /// The published system's method.
    pub own: &'a str,
    /// The key along which lines run.
    pub axis: &'a str,
    /// Whether more is better.
    pub more: bool,
}

impl Shape<'_> {
    /// All comparisons that the published figures allow.
    pub fn findings(&self, claims: &[Claim]) -> Vec<Finding> {
        let mut points: Vec<&str> = Vec::new();
        for reading in self.readings {
            if !points.contains(&reading.point.as_str()) {
                points.push(&reading.point);
            }
        }
        let mut all: Vec<Finding> = points.iter().filter_map(|point| self.winner(point)).collect();
        all.extend(points.iter().flat_map(|point| self.signs(point)));
        all.extend(
            points.iter().flat_map(|point| claims.iter().filter_map(|claim| self.claimed(point, claim))),
        );
        all.extend(self.crossings(&points));
        all
    }

    fn at<'a>(&'a self, point: &'a str) -> impl Iterator<Item = &'a Reading> {
        self.readings.iter().filter(move |reading| reading.point == point)
    }

    fn reading(&self, point: &str, method: &str) -> Option<&Reading> {
        self.readings.iter().find(|reading| reading.point == point && reading.method == method)
    }

    /// Greater: the first is better.
    fn better(&self, one: f64, other: f64) -> Ordering {
        if self.more { one.total_cmp(&other) } else { other.total_cmp(&one) }
    }

    /// The same of what was measured; equal if the spreads overlap.
    fn measured(&self, one: Spread, other: Spread) -> Ordering {
        match one.low <= other.high && other.low <= one.high {
            true => Ordering::Equal,
            false => self.better(one.value, other.value),
        }
    }

    fn winner(&self, point: &str) -> Option<Finding> {
        let known: Vec<(&Reading, f64)> =
            self.at(point).filter_map(|reading| Some((reading, reading.published?))).collect();
        if known.len() < 2 {
            return None;
        }
        let best = known.iter().map(|one| one.1).max_by(|one, other| self.better(*one, *other))?;
        let published: Vec<&str> =
            known.iter().filter(|one| one.1 == best).map(|one| one.0.method.as_str()).collect();
        let measured: Option<Vec<(&str, Spread)>> =
            known.iter().map(|(reading, _)| Some((reading.method.as_str(), reading.measured?))).collect();
        let (verdict, won) = match &measured {
            None => (Verdict::Missing, "not all were measured".to_owned()),
            Some(all) => {
                let first = all.iter().max_by(|one, other| self.better(one.1.value, other.1.value))?;
                let even = all.iter().filter(|one| self.measured(one.1, first.1) == Ordering::Equal);
                let even: Vec<&str> = even.map(|one| one.0).collect();
                let verdict = match (
                    even.iter().all(|one| published.contains(one)),
                    even.iter().any(|one| published.contains(one)),
                ) {
                    (true, _) => Verdict::Agrees,
                    (false, true) => Verdict::Undecided,
                    (false, false) => Verdict::Disagrees,
                };
                (verdict, format!("measured {}", even.join(" = ")))
            }
        };
        let text = format!("{point}: published {}, {won}", published.join(" = "));
        Some(Finding { kind: Kind::Winner, verdict, text })
    }

    fn signs(&self, point: &str) -> Vec<Finding> {
        let Some((own, ours)) = self.reading(point, self.own).and_then(|own| Some((own, own.published?)))
        else {
            return Vec::new();
        };
        let against = self.at(point).filter(|other| other.method != self.own);
        let against = against.filter_map(|other| Some((other, other.published?)));
        let finding = |(other, theirs): (&Reading, f64)| {
            let published = self.better(ours, theirs);
            let measured = own.measured.zip(other.measured).map(|(one, two)| self.measured(one, two));
            let verdict = match measured {
                None => Verdict::Missing,
                Some(measured) if measured == published => Verdict::Agrees,
                Some(Ordering::Equal) => Verdict::Undecided,
                Some(_) => Verdict::Disagrees,
            };
            let ratio =
                |one: f64, two: f64| if two == 0.0 { "-".to_owned() } else { format!("{:.2}", one / two) };
            let ran = own.measured.zip(other.measured);
            let ran = ran.map_or_else(
                || "not measured".to_owned(),
                |(one, two)| format!("measured {}", ratio(one.value, two.value)),
            );
            let text = format!(
                "{point}: {} over {}, published {}, {ran}",
                self.own,
                other.method,
                ratio(ours, theirs)
            );
            Finding { kind: Kind::Sign, verdict, text }
        };
        against.map(finding).collect()
    }

    fn claimed(&self, point: &str, claim: &Claim) -> Option<Finding> {
        if !claim.at.iter().all(|word| point.split(' ').any(|own| own == *word)) {
            return None;
        }
        let of = self.reading(point, claim.of)?;
        let over: Vec<&Reading> =
            claim.over.iter().filter_map(|method| self.reading(point, method)).collect();
        if over.len() < claim.over.len() {
            return None;
        }
        let over: Option<Vec<Spread>> = over.iter().map(|reading| reading.measured).collect();
        let best =
            over.and_then(|all| all.into_iter().max_by(|one, other| self.better(one.value, other.value)));
        let measured = of.measured.zip(best);
        // A ratio above 1 is a gain if more is better, and a published ratio is one of figures as they stand.
        let (verdict, ran) = match measured {
            None => (Verdict::Missing, "not measured".to_owned()),
            Some((one, other)) => {
                let ratio = one.value / other.value;
                let apart = !(one.low <= other.high && other.low <= one.high);
                let verdict = match (claim.low >= 1.0, claim.high <= 1.0) {
                    (true, _) if apart => {
                        if ratio > 1.0 {
                            Verdict::Agrees
                        } else {
                            Verdict::Disagrees
                        }
                    }
                    (true, _) => Verdict::Undecided,
                    (false, true) => {
                        if ratio <= 1.0 || !apart {
                            Verdict::Agrees
                        } else {
                            Verdict::Disagrees
                        }
                    }
                    (false, false) if !apart || (claim.low..=claim.high).contains(&ratio) => Verdict::Agrees,
                    (false, false) => Verdict::Disagrees,
                };
                (verdict, format!("measured {ratio:.2}"))
            }
        };
        let published = match (claim.low, claim.high) {
            (low, high) if low == high => format!("{low:.2}"),
            (low, f64::INFINITY) => format!("more than {low:.2}"),
            (low, high) => format!("{low:.2} to {high:.2}"),
        };
        let text =
            format!("{point}: {} over {}, published {published}, {ran}", claim.of, claim.over.join(" and "));
        Some(Finding { kind: Kind::Sign, verdict, text })
    }

    /// Of each two methods with published lines over the same places.
    fn crossings(&self, points: &[&str]) -> Vec<Finding> {
        let mut series: Vec<(String, Vec<(f64, &str)>)> = Vec::new();
        for point in points {
            let (Some(x), rest) = coordinate(point, self.axis) else { continue };
            match series.iter_mut().find(|one| one.0 == rest) {
                Some(one) => one.1.push((x, point)),
                None => series.push((rest, vec![(x, point)])),
            }
        }
        let mut found = Vec::new();
        for (rest, mut line) in series {
            line.sort_by(|one, other| one.0.total_cmp(&other.0));
            let mut methods: Vec<&str> = Vec::new();
            for reading in line.iter().flat_map(|(_, point)| self.at(point)) {
                if reading.published.is_some() && !methods.contains(&reading.method.as_str()) {
                    methods.push(&reading.method);
                }
            }
            for (at, one) in methods.iter().enumerate() {
                for other in &methods[at + 1..] {
                    found.extend(self.crossings_of(&rest, &line, one, other));
                }
            }
        }
        found
    }

    fn crossings_of(&self, rest: &str, line: &[(f64, &str)], one: &str, other: &str) -> Vec<Finding> {
        let sign = |point: &str| {
            let (first, second) = (self.reading(point, one)?, self.reading(point, other)?);
            let published = self.better(first.published?, second.published?);
            Some((published, first.measured.zip(second.measured).map(|(one, two)| self.measured(one, two))))
        };
        let known: Vec<(f64, Ordering, Option<Ordering>)> = line
            .iter()
            .filter_map(|(x, point)| sign(point).map(|(published, measured)| (*x, published, measured)))
            .collect();
        let crosses =
            |from: Ordering, to: Ordering| from != Ordering::Equal && to != Ordering::Equal && from != to;
        let finding = |pair: &[(f64, Ordering, Option<Ordering>)]| {
            let [(from, before, ran_before), (to, after, ran_after)] = *pair else { return None };
            let published = crosses(before, after);
            let ran = ran_before.zip(ran_after);
            let (verdict, said) = match (published, ran) {
                (true, None) => (Verdict::Missing, "not measured"),
                (true, Some((start, end))) if (start, end) == (before, after) => {
                    (Verdict::Agrees, "measured so")
                }
                (true, Some((start, end))) if start == Ordering::Equal || end == Ordering::Equal => {
                    (Verdict::Undecided, "measured even at an end")
                }
                (true, Some(_)) => (Verdict::Disagrees, "measured not"),
                (false, Some((start, end))) if crosses(start, end) => (Verdict::Disagrees, "measured only"),
                (false, _) => return None,
            };
            let place = if rest.is_empty() { String::new() } else { format!("{rest}: ") };
            let text =
                format!("{place}{one} and {other} cross between {} {from} and {to}: {said}", self.axis);
            Some(Finding { kind: Kind::Crossing, verdict, text })
        };
        known.windows(2).filter_map(finding).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(
        point: &str,
        method: &str,
        published: impl Into<Option<f64>>,
        measured: impl Into<Option<f64>>,
    ) -> Reading {
        let spread = |value: f64| Spread { value, low: value * 0.95, high: value * 1.05 };
        let (published, measured) = (published.into(), measured.into().map(spread));
        Reading { point: point.into(), method: method.into(), published, measured }
    }

    fn verdicts(readings: &[Reading], more: bool, claims: &[Claim], kind: Kind) -> Vec<Verdict> {
        let shape = Shape { readings, own: "rule", axis: "bytes", more };
        shape.findings(claims).into_iter().filter(|one| one.kind == kind).map(|one| one.verdict).collect()
    }

    #[test]
    fn the_winner_is_compared_and_ties_and_gaps_are_said() {
        let winner = |published: [f64; 3], measured: [Option<f64>; 3], more| {
            let methods = ["rule", "card", "cpu"];
            let all: Vec<Reading> =
                (0..3).map(|at| reading("bytes=1", methods[at], published[at], measured[at])).collect();
            verdicts(&all, more, &[], Kind::Winner)
        };
        let some = |values: [f64; 3]| values.map(Some);
        assert_eq!(winner([3.0, 2.0, 1.0], some([30.0, 20.0, 10.0]), true), [Verdict::Agrees]);
        assert_eq!(winner([3.0, 2.0, 1.0], some([30.0, 20.0, 10.0]), false), [Verdict::Agrees]);
        assert_eq!(winner([3.0, 2.0, 1.0], some([10.0, 20.0, 30.0]), false), [Verdict::Disagrees]);
        assert_eq!(
            winner([3.0, 2.0, 1.0], some([30.0, 29.0, 10.0]), true),
            [Verdict::Undecided],
            "a measured tie"
        );
        assert_eq!(
            winner([3.0, 3.0, 1.0], some([30.0, 29.0, 10.0]), true),
            [Verdict::Agrees],
            "both are ties"
        );
        assert_eq!(
            winner([3.0, 3.0, 1.0], some([30.0, 10.0, 10.0]), true),
            [Verdict::Agrees],
            "one of those that won"
        );
        assert_eq!(winner([3.0, 2.0, 1.0], some([10.0, 30.0, 29.0]), true), [Verdict::Disagrees]);
        assert_eq!(winner([3.0, 2.0, 1.0], [Some(30.0), None, Some(1.0)], true), [Verdict::Missing]);
        let alone = [reading("bytes=1", "rule", 1.0, 1.0), reading("bytes=1", "adaptive", None, 2.0)];
        assert!(verdicts(&alone, true, &[], Kind::Winner).is_empty(), "nothing was published beside it");
    }

    #[test]
    fn the_sign_of_each_gain_is_counted_by_itself() {
        let all = [
            reading("bytes=1", "rule", 3.0, 30.0),
            reading("bytes=1", "card", 2.0, 40.0),
            reading("bytes=1", "cpu", 1.0, 29.0),
            reading("bytes=1", "plain", 0.5, None),
            reading("bytes=1", "level", 3.0, 30.5),
            reading("bytes=1", "adaptive", None, 90.0),
        ];
        assert_eq!(
            verdicts(&all, true, &[], Kind::Sign),
            [Verdict::Disagrees, Verdict::Undecided, Verdict::Missing, Verdict::Agrees]
        );
        let counts =
            Counts::of(&Shape { readings: &all, own: "rule", axis: "bytes", more: true }.findings(&[]));
        assert_eq!(
            counts,
            Counts { agree: 1, disagree: 1, undecided: 1, missing: 2 },
            "with the winner, which is missing"
        );
    }

    #[test]
    fn a_claim_is_a_gain_none_or_no_difference() {
        let claim = |low, high| Claim {
            quantity: "rate",
            at: &["bytes=2"],
            of: "rule",
            over: &["card", "cpu"],
            low,
            high,
        };
        let all = |card: Option<f64>, cpu: f64| {
            [
                reading("bytes=2", "rule", None, 10.0),
                reading("bytes=2", "card", None, card),
                reading("bytes=2", "cpu", None, cpu),
            ]
        };
        let verdict = |card, cpu, claim| verdicts(&all(card, cpu), true, &[claim], Kind::Sign);
        assert_eq!(verdict(Some(5.0), 2.0, claim(1.7, 1.7)), [Verdict::Agrees]);
        assert_eq!(
            verdict(Some(5.0), 20.0, claim(1.7, 1.7)),
            [Verdict::Disagrees],
            "the better of the two is ahead"
        );
        assert_eq!(verdict(Some(9.9), 2.0, claim(2.0, f64::INFINITY)), [Verdict::Undecided]);
        assert_eq!(verdict(Some(9.9), 2.0, claim(0.0, 1.0)), [Verdict::Agrees]);
        assert_eq!(verdict(Some(5.0), 2.0, claim(0.0, 1.0)), [Verdict::Disagrees]);
        assert_eq!(verdict(Some(9.9), 2.0, claim(0.9, 1.1)), [Verdict::Agrees]);
        assert_eq!(verdict(Some(5.0), 2.0, claim(0.9, 1.1)), [Verdict::Disagrees]);
        assert_eq!(verdict(None, 2.0, claim(1.7, 1.7)), [Verdict::Missing]);
        let elsewhere = Claim { at: &["bytes=3"], ..claim(1.7, 1.7) };
        assert!(verdict(Some(5.0), 2.0, elsewhere).is_empty());
    }

    #[test]
    fn lines_cross_where_the_papers_do() {
        let lines = |measured: [(f64, Option<f64>); 3]| {
            let published = [(1.0, 2.0), (2.0, 3.0), (5.0, 4.0)];
            let all: Vec<Reading> = (0..3)
                .flat_map(|at| {
                    let point = format!("bytes={} processes=2", 1 << at);
                    [
                        reading(&point, "rule", published[at].0, measured[at].0),
                        reading(&point, "cpu", published[at].1, measured[at].1),
                    ]
                })
                .collect();
            verdicts(&all, true, &[], Kind::Crossing)
        };
        assert_eq!(lines([(10.0, Some(20.0)), (10.0, Some(20.0)), (20.0, Some(10.0))]), [Verdict::Agrees]);
        assert_eq!(
            lines([(10.0, Some(20.0)), (20.0, Some(10.0)), (20.0, Some(10.0))]),
            [Verdict::Disagrees, Verdict::Disagrees]
        );
        assert_eq!(lines([(20.0, Some(10.0)); 3]), [Verdict::Disagrees]);
        assert_eq!(lines([(10.0, Some(20.0)), (10.0, Some(20.0)), (20.0, Some(20.0))]), [Verdict::Undecided]);
        assert_eq!(lines([(10.0, Some(20.0)), (10.0, Some(20.0)), (20.0, None)]), [Verdict::Missing]);
    }

    #[test]
    fn a_point_has_a_place_on_an_axis_and_a_rest() {
        assert_eq!(coordinate("bytes=16 processes=2", "bytes"), (Some(16.0), "processes=2".into()));
        assert_eq!(coordinate("pattern=day", "gap_us"), (None, "pattern=day".into()));
    }
}
