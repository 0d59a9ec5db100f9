//! What came of a server's rounds: a figure, or why there is none, and what stands beside it; for people and for
//! programs.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Value, json};

use super::servers::{Answered, Target};
use crate::https::client::Tally;
use crate::https::rows::Measure;
use crate::https::{Sides, done_of, groups};
use crate::pair::Gain;
use crate::record::Row;
use crate::tally::{Done, between, engines};

/// From which difference of their refusals on two sides did not do the same.
const ALIKE: f64 = 0.01;
/// From which share of connections that failed on either side there is no figure: they took time and have no answer.
const FAILED: f64 = 0.01;
/// Of a figure that is too good, because both sides would do the same work besides (`Found::answered`).
const UPPER_BOUND: &str =
    "an upper bound: what hands requests on answers 204 here, and its own work is left out";
/// Of a figure that is neither bound: Wattlock does some of the missing work another way.
const NO_BOUND: &str = "without the work behind the proxy, which answers 204 here; with it (gzip, TLS to upstreams) it \
                        can be more or less";

/// What the module and its engines did, by the status page.
#[derive(Debug, Default)]
pub struct Counted {
    handshakes: u64,
    paused: u64,
    done: Done,
    fallbacks: BTreeMap<String, u64>,
}

impl Counted {
    /// # Errors
    /// It is no status page.
    pub fn of(status: &Value) -> Result<Counted> {
        let count = |key: &str| status[key].as_u64().unwrap_or(0);
        let mut fallbacks = BTreeMap::new();
        for engine in status["runtime"]["engines"].as_array().into_iter().flatten() {
            for (reason, count) in engine["fallbacks"].as_object().into_iter().flatten() {
                *fallbacks.entry(reason.clone()).or_insert(0) += count.as_u64().unwrap_or(0);
            }
        }
        Ok(Counted {
            handshakes: count("handshakes"),
            paused: count("paused"),
            done: done_of(status)?,
            fallbacks,
        })
    }

    /// What was done since another look.
    pub fn since(self, before: &Counted) -> Counted {
        let fallbacks = self.fallbacks.into_iter().map(|(reason, count)| {
            let then = before.fallbacks.get(&reason).copied().unwrap_or(0);
            (reason, count.saturating_sub(then))
        });
        Counted {
            handshakes: self.handshakes.saturating_sub(before.handshakes),
            paused: self.paused.saturating_sub(before.paused),
            done: between(&before.done, &self.done),
            fallbacks: fallbacks.filter(|(_, count)| *count > 0).collect(),
        }
    }

    /// Mean size of the batches of what was in one.
    fn batch(&self) -> Option<f64> {
        let batched = self.done.values().filter(|did| did.batches > 0);
        let (sizes, requests) = batched.fold((0, 0), |sum, did| (sum.0 + did.batches, sum.1 + did.requests));
        (requests > 0).then(|| sizes as f64 / requests as f64)
    }
}

/// What came of a server's rounds.
pub struct Found {
    /// Both sides.
    pub sides: Sides,
    /// What the module did.
    pub did: Counted,
    /// The machine's joules, if they were counted.
    pub joules: Option<Gain>,
    /// The server's directives that hand requests on and answer with 204: what they would cost both sides is missing,
    /// and a saving is a greater part of what is left, unless Wattlock would save there, too.
    pub answered: Answered,
}

impl Found {
    /// Why there is no figure, if there is none.
    fn obstacle(&self) -> Option<String> {
        let [stock, ours] = [&self.sides.stock, &self.sides.ours].map(|side| failed(side));
        if stock > FAILED || ours > FAILED {
            let first = self.rounds().find_map(|tally| tally.failure.as_deref()).unwrap_or("unknown");
            return Some(format!(
                "{:.1} % of connections failed without Wattlock, {:.1} % with it; the first: {first}",
                stock * 100.0,
                ours * 100.0
            ));
        }
        if self.did.handshakes == 0 {
            return Some(
                "no handshake came to Wattlock: is `wattlock off` in force for its address?".to_owned(),
            );
        }
        if self.did.done.is_empty() {
            return Some("nothing of its handshakes is of a kind that Wattlock computes".to_owned());
        }
        let [stock, ours] = [&self.sides.stock, &self.sides.ours].map(|side| refusals(side));
        ((stock - ours).abs() > ALIKE).then(|| {
            format!(
                "the two did not answer alike: {:.0} % refused without Wattlock, {:.0} % with it; a limit counts \
                 (`limit_req`, `limit_conn`)",
                stock * 100.0,
                ours * 100.0
            )
        })
    }

    fn gain(&self) -> Option<Gain> {
        self.sides.gain(Measure::Cpu).filter(|_| self.obstacle().is_none())
    }

    fn joules(&self) -> Option<Gain> {
        self.joules.filter(|_| self.obstacle().is_none())
    }

    /// Says it.
    ///
    /// # Errors
    /// Standard output is closed.
    pub fn tell(&self, target: &Target) -> Result<()> {
        let words = match (self.obstacle(), self.gain()) {
            (Some(why), _) => format!("no figure: {why}"),
            (None, Some(gain)) => bounded(gain, "nginx's processor time", self.answered),
            (None, None) => "no figure: no round has one".to_owned(),
        };
        say!("{} ({}): {words}", target.label, target.place);
        if let Some(gain) = self.gain() {
            let cpu = Measure::Cpu;
            let visits: u64 = self.rounds().map(|tally| tally.visits).sum();
            let resumed: u64 = self.rounds().map(|tally| tally.resumed).sum();
            say!(
                "  a request, with its part of a handshake: {} without Wattlock, {} with it; {resumed} of {visits} \
                 handshakes resumed",
                cpu.show(gain.theirs),
                cpu.show(gain.ours)
            );
        }
        if let Some(joules) = self.joules() {
            say!(
                "  {} (counters of the whole machine, the client in it)",
                bounded(joules, "the machine's joules", self.answered)
            );
        }
        let shares: Vec<String> =
            groups(&self.sides.ours).into_iter().map(|(name, n)| format!("{name} {n}")).collect();
        say!(
            "  with Wattlock: {}; by {}",
            self.batches(),
            if shares.is_empty() { "no group".to_owned() } else { shares.join(", ") }
        );
        let statuses = self.statuses();
        let all: Vec<String> =
            statuses.iter().map(|(status, count)| format!("{count} of {status}")).collect();
        say!("  answers: {}", all.join(", "));
        for (status, _) in statuses.iter().filter(|(status, _)| **status >= 400) {
            say!("  {status}: {}", reason(*status));
        }
        Ok(())
    }

    fn rounds(&self) -> impl Iterator<Item = &Tally> {
        self.sides.stock.iter().chain(&self.sides.ours)
    }

    fn statuses(&self) -> BTreeMap<u16, u64> {
        let mut all = BTreeMap::new();
        for (status, count) in self.rounds().flat_map(|tally| &tally.statuses) {
            *all.entry(*status).or_insert(0) += count;
        }
        all
    }

    fn batches(&self) -> String {
        let share = 100.0 * self.did.paused as f64 / self.did.handshakes.max(1) as f64;
        let batch = self.did.batch().map_or(String::new(), |batch| format!(", in batches of {batch:.1}"));
        let fallbacks: Vec<String> =
            self.did.fallbacks.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        let fallbacks = if fallbacks.is_empty() { "no fallback".to_owned() } else { fallbacks.join(", ") };
        format!("{share:.0} % of handshakes waited for others{batch}; {fallbacks}")
    }

    /// For programs; none if nothing was answered.
    pub fn row(&self) -> Option<Row> {
        let row = self.sides.row("serve", "site", Measure::Cpu, true)?;
        let row = if self.obstacle().is_some() { row.without_comparison() } else { row };
        let row = if self.gain().is_some() { row.note(note(self.answered)) } else { row };
        let percent = |gain: Gain| {
            let of = |ratio: f64| 100.0 * (1.0 - 1.0 / ratio);
            json!({"low": of(gain.low), "median": gain.known().map(of), "high": of(gain.high)})
        };
        let row = row
            .detail("saving_percent", self.gain().map(percent))
            .detail("joules_saving_percent", self.joules().map(percent))
            .detail("no_figure", self.obstacle())
            .detail("answered_with_204", self.answered.count)
            .detail("statuses", self.statuses())
            .detail("handshakes", self.did.handshakes)
            .detail("waited", self.did.paused)
            .detail("mean_batch", self.did.batch())
            .detail("fallbacks", &self.did.fallbacks)
            .detail("engines", engines(std::slice::from_ref(&self.did.done)));
        Some(row)
    }
}

/// Answers of a side from this status on.
fn answers(side: &[Tally], least: u16) -> u64 {
    let all = side.iter().flat_map(|tally| &tally.statuses);
    all.filter(|(status, _)| **status >= least).map(|(_, count)| *count).sum()
}

/// Connections of a side that failed.
fn failures(side: &[Tally]) -> u64 {
    side.iter().map(|tally| tally.failed).sum()
}

/// Share of what was asked that failed.
fn failed(side: &[Tally]) -> f64 {
    failures(side) as f64 / (answers(side, 0) + failures(side)).max(1) as f64
}

/// Share of what was asked that was refused or failed.
fn refusals(side: &[Tally]) -> f64 {
    let (all, failures) = (answers(side, 0), failures(side));
    (answers(side, 400) + failures) as f64 / (all + failures).max(1) as f64
}

/// What a reader of a figure must know.
fn note(answered: Answered) -> &'static str {
    match answered {
        Answered { count: 0, .. } => "",
        Answered { differs: false, .. } => UPPER_BOUND,
        Answered { differs: true, .. } => NO_BOUND,
    }
}

/// A saving where so many directives answer with 204. With the work behind them it is nearer to none, unless Wattlock
/// does that work another way: then nothing is known of it.
fn bounded(gain: Gain, of: &str, answered: Answered) -> String {
    let saved = |ratio: f64| 100.0 * (1.0 - 1.0 / ratio);
    let cost = |ratio: f64| 100.0 * (1.0 / ratio - 1.0);
    let Gain { low, high, .. } = gain;
    let locations = match answered.count {
        0 => return saving(gain, of),
        1 => "1 location answers 204 here".to_owned(),
        count => format!("{count} locations answer 204 here"),
    };
    let words = match (gain.known(), answered.differs) {
        (None, false) => format!("{}; at most that", saving(gain, of)),
        (None, true) => saving(gain, of),
        (Some(ratio), false) if ratio > 1.0 => {
            format!("saves at most {:.0} % (median {:.0} %) of {of}", saved(high), saved(ratio))
        }
        (Some(ratio), false) => {
            format!("takes at most {:.0} % (median {:.0} %) more of {of}", cost(low), cost(ratio))
        }
        (Some(ratio), true) if ratio > 1.0 => {
            format!("saves {:.0} % ({:.0} % to {:.0} %) of {of}", saved(ratio), saved(low), saved(high))
        }
        (Some(ratio), true) => {
            format!("takes {:.0} % ({:.0} % to {:.0} %) more of {of}", cost(ratio), cost(high), cost(low))
        }
    };
    match answered.differs {
        false => format!("{words}: {locations}"),
        true => format!("{words}, without the work behind the proxy; it can be more or less: {locations}"),
    }
}

/// What a gain is in per cent of what the peer took.
fn saving(gain: Gain, of: &str) -> String {
    let saved = |ratio: f64| 100.0 * (1.0 - 1.0 / ratio);
    let cost = |ratio: f64| 100.0 * (1.0 / ratio - 1.0);
    let Gain { ratio, low, high, rounds, .. } = gain;
    match gain.known() {
        Some(_) if rounds == 1 && ratio >= 1.0 => format!("saves {:.0} % of {of} (one round)", saved(ratio)),
        Some(_) if rounds == 1 => format!("takes {:.0} % more of {of} (one round)", cost(ratio)),
        Some(_) if low > 1.0 => format!(
            "saves at least {:.0} % (median {:.0} %, at most {:.0} %) of {of}",
            saved(low),
            saved(ratio),
            saved(high)
        ),
        Some(_) => format!(
            "takes at least {:.0} % (median {:.0} %, at most {:.0} %) more of {of}",
            cost(high),
            cost(ratio),
            cost(low)
        ),
        None => format!("no difference in {of} ({:.0} % to {:.0} % saved)", saved(low), saved(high)),
    }
}

/// What may have refused a request.
fn reason(status: u16) -> &'static str {
    match status {
        400 => "the request was refused; perhaps it wants a client's certificate (`ssl_verify_client`)",
        401 => "a password is wanted (`auth_basic`, `auth_request`)",
        403 => "access is denied to 127.0.0.1 (`deny`, `auth_request`), or the folder has no index: --path",
        404 => "there is no such page: --path",
        421 => "the server is not for this name",
        429 | 503 => "a limit refuses (`limit_req`, `limit_conn`), or an upstream is down",
        502 | 504 => "an upstream is down",
        _ => "an error's page was measured",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::pair::Better;

    fn tally(statuses: &[(u16, u64)]) -> Tally {
        let done = statuses.iter().map(|(_, count)| count).sum();
        Tally {
            done,
            wall: Duration::from_secs(1),
            cpu: Duration::from_millis(10),
            statuses: statuses.iter().copied().collect(),
            ..Tally::default()
        }
    }

    #[test]
    fn a_gain_is_told_in_per_cent_of_what_the_peer_took() {
        let told =
            |ratios: &[f64]| saving(Gain::of(ratios, &vec![1.0; ratios.len()], Better::More).unwrap(), "it");
        assert_eq!(told(&[2.0, 4.0, 1.25]), "saves at least 20 % (median 50 %, at most 75 %) of it");
        assert_eq!(told(&[0.5, 0.8, 0.4]), "takes at least 25 % (median 100 %, at most 150 %) more of it");
        assert_eq!(told(&[0.5, 1.25, 1.0]), "no difference in it (-100 % to 20 % saved)");
        assert_eq!(told(&[2.0]), "saves 50 % of it (one round)");
        assert_eq!(told(&[0.5]), "takes 100 % more of it (one round)");
    }

    #[test]
    fn sides_that_do_not_answer_alike_have_no_figure() {
        let did = || Counted {
            handshakes: 1,
            done: Done::from([(("lanes".to_owned(), "k".to_owned()), crate::tally::Did::default())]),
            ..Counted::default()
        };
        let found = |stock: &[(u16, u64)], ours: &[(u16, u64)], did: Counted| Found {
            sides: Sides { stock: vec![tally(stock)], ours: vec![tally(ours)] },
            did,
            joules: None,
            answered: Answered::default(),
        };
        let limited = found(&[(200, 50), (503, 50)], &[(200, 20), (503, 80)], did());
        assert!(limited.obstacle().unwrap().contains("50 % refused without Wattlock, 80 % with it"));
        assert!(limited.gain().is_none());
        assert_eq!(found(&[(404, 9)], &[(404, 7)], did()).obstacle(), None);
        let off = found(&[(200, 1)], &[(200, 1)], Counted { handshakes: 0, ..did() });
        assert!(off.obstacle().unwrap().contains("`wattlock off`"));
        let told = |found: &Found| serde_json::to_value(found.row().unwrap()).unwrap();
        let is_bare = |row: &Value| {
            ["ratio", "low", "high", "theirs"].iter().all(|key| row[*key].is_null())
                && ["saving_percent", "joules_saving_percent", "by_rate"]
                    .iter()
                    .all(|key| row["detail"][*key].is_null())
                && row["detail"]["no_figure"].is_string()
        };
        assert!(is_bare(&told(&off)), "{}", told(&off));
        // Of connections that fail some are many, on one side or on both.
        for counts in [[3, 0], [0, 3], [3, 3]] {
            let mut found = found(&[(200, 100)], &[(200, 100)], did());
            found.joules = Gain::of(&[1.0], &[2.0], Better::Less);
            assert!(found.obstacle().is_none() && !is_bare(&told(&found)));
            found.sides.stock[0].failed = counts[0];
            found.sides.ours[0].failed = counts[1];
            assert!(found.obstacle().unwrap().contains("% of connections failed"), "{counts:?}");
            assert!(found.gain().is_none() && found.joules().is_none());
            assert!(is_bare(&told(&found)), "{}", told(&found));
        }
    }

    #[test]
    fn a_figure_without_the_work_of_upstreams_is_an_upper_bound_only_if_both_sides_would_do_the_same() {
        let gain = |ratios: &[f64]| Gain::of(ratios, &vec![1.0; ratios.len()], Better::More).unwrap();
        let (better, worse, even) =
            (gain(&[2.0, 4.0, 1.25]), gain(&[0.5, 0.8, 0.4]), gain(&[0.5, 1.25, 1.0]));
        let of = |count, differs| Answered { count, differs };
        assert_eq!(bounded(better, "it", of(0, false)), saving(better, "it"));
        let both = "2 locations answer 204 here";
        let told = |gain| bounded(gain, "it", of(2, false));
        assert_eq!(told(better), format!("saves at most 75 % (median 50 %) of it: {both}"));
        // A loss, too, is a smaller part of more work.
        assert_eq!(told(worse), format!("takes at most 150 % (median 100 %) more of it: {both}"));
        assert_eq!(told(even), format!("{}; at most that: {both}", saving(even, "it")));
        // What Wattlock compresses may be its largest saving.
        let open = format!(", without the work behind the proxy; it can be more or less: {both}");
        for (gain, wanted) in [
            (better, "saves 50 % (20 % to 75 %) of it"),
            (worse, "takes 100 % (25 % to 150 %) more of it"),
            (even, "no difference in it (-100 % to 20 % saved)"),
        ] {
            let told = bounded(gain, "it", of(2, true));
            assert_eq!(told, format!("{wanted}{open}"));
            assert!(!told.contains("at most") && !told.contains("at least"), "{told}");
        }
        let done = Done::from([(("lanes".to_owned(), "k".to_owned()), crate::tally::Did::default())]);
        let mut found = Found {
            sides: Sides { stock: vec![tally(&[(204, 10)])], ours: vec![tally(&[(204, 10)])] },
            did: Counted { handshakes: 1, done, ..Counted::default() },
            joules: None,
            answered: of(1, false),
        };
        let note = |found: &Found| serde_json::to_value(found.row().unwrap()).unwrap()["note"].clone();
        assert_eq!(note(&found), UPPER_BOUND);
        found.answered = of(1, true);
        assert!(note(&found).as_str().unwrap().contains("more or less"), "{}", note(&found));
        found.answered = of(0, false);
        assert!(note(&found).is_null());
    }

    #[test]
    fn counters_are_those_between_two_looks() {
        let page = |handshakes: u64, silent: u64| {
            json!({"handshakes": handshakes, "paused": 2, "runtime": {"cells": [
                {"engine": "lanes", "kind": "k", "requests": handshakes, "batch_sum": 3 * handshakes}
            ], "engines": [{"fallbacks": {"silent": silent}}]}})
        };
        let (before, after) = (Counted::of(&page(4, 1)).unwrap(), Counted::of(&page(10, 1)).unwrap());
        let since = after.since(&before);
        assert_eq!((since.handshakes, since.paused, since.batch()), (6, 0, Some(3.0)));
        assert!(since.fallbacks.is_empty());
    }
}
