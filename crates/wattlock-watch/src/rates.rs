//! What a person or another program is shown of a program's work: figures a second.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::cost::Costs;
use crate::since::{All, Done, Program, is_modelled, worst};

/// A program, and its work a second.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Rates {
    /// What the program says it is.
    pub program: String,
    /// Whose it is.
    pub uid: u32,
    /// Its processes.
    pub pids: Vec<u32>,
    /// Requests in flight now.
    pub in_flight: u64,
    /// Absent if they are not known of every process.
    #[serde(flatten)]
    pub figures: Option<Figures>,
}

/// What was done a second. What is not known is absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Requests done a second.
    pub operations_per_s: f64,
    /// Their bytes a second.
    pub bytes_per_s: f64,
    /// Requests that failed, a second.
    pub failed_per_s: f64,
    /// Requests to open what does not authenticate, a second.
    pub refused_per_s: f64,
    /// Of requests of kinds that lanes of this machine can do, the share that was done in lanes: 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lanes_share: Option<f64>,
    /// Requests in a batch, over those that could have batch-mates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_batch: Option<f64>,
    /// Fallbacks a second by reason.
    pub fallbacks_per_s: BTreeMap<String, f64>,
    /// Seconds of one processor saved a second ([`Costs::saved_ns`]): estimated; only if known for everything that
    /// was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved_cpu_s_per_s: Option<f64>,
    /// Joules a second, only if known for everything that was done, and not modelled for a part of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power: Option<Power>,
    /// By engine and kind.
    pub work: Vec<Work>,
}

/// What one engine does of one kind a second.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Work {
    /// Engine.
    pub engine: String,
    /// Kind.
    pub kind: String,
    /// Requests done a second.
    pub operations_per_s: f64,
    /// Their bytes a second.
    pub bytes_per_s: f64,
    /// Requests that failed, a second.
    pub failed_per_s: f64,
    /// Requests to open what does not authenticate, a second.
    pub refused_per_s: f64,
    /// Nanoseconds from submission to completion, over those whose time was taken: measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_ns: Option<f64>,
    /// Nanoseconds held for batch-mates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_held_ns: Option<f64>,
    /// Requests in a batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_batch: Option<f64>,
    /// Seconds of one processor saved a second: estimated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved_cpu_s_per_s: Option<f64>,
    /// Joules a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power: Option<Power>,
}

/// Joules a second and what they are worth.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Power {
    /// Joules a second.
    pub watts: f64,
    /// `measured`, `derived` or `modelled`, then where they come from.
    pub worth: String,
}

impl Rates {
    /// Who it is, and nothing of what it did.
    pub fn named(program: &Program) -> Rates {
        Rates {
            program: program.name.clone(),
            uid: program.uid,
            pids: program.pids.iter().copied().collect(),
            in_flight: program.in_flight,
            figures: None,
        }
    }

    /// Of what was done in so many seconds ([`Look::seconds_since`](crate::Look::seconds_since)).
    pub fn of(program: &Program, seconds: f64, costs: &Costs) -> Rates {
        let figures = program.all.as_ref().map(|all| Figures::of(all, seconds, costs));
        Rates { figures, ..Rates::named(program) }
    }
}

impl Figures {
    fn of(all: &All, seconds: f64, costs: &Costs) -> Figures {
        // Not `sum`, of which nothing is -0.
        let sum = |count: fn(&Done) -> u64| all.done.iter().fold(0.0, |sum, done| sum + count(done) as f64);
        let mut parts: BTreeMap<(&str, &str), Vec<&Done>> = BTreeMap::new();
        for done in &all.done {
            parts.entry((done.cell.engine.as_str(), done.cell.kind.as_str())).or_default().push(done);
        }
        let work: Vec<Work> = parts.values().map(|same| Work::of(same, seconds, costs)).collect();
        let (batches, queued) = (sum(|done| done.cell.batch_sum), sum(|done| done.cell.queued()));
        let fallbacks = all.fallbacks.iter();
        Figures {
            operations_per_s: sum(|done| done.cell.requests) / seconds,
            bytes_per_s: sum(|done| done.cell.bytes) / seconds,
            failed_per_s: sum(|done| done.cell.errors) / seconds,
            refused_per_s: sum(|done| done.cell.refused) / seconds,
            lanes_share: lanes_share(all, costs),
            mean_batch: (queued > 0.0).then(|| batches / queued),
            fallbacks_per_s: fallbacks.map(|(why, count)| (why.clone(), *count as f64 / seconds)).collect(),
            saved_cpu_s_per_s: saved(&work),
            power: power(all.done.iter(), seconds),
            work,
        }
    }
}

impl Work {
    /// Of one engine's work of one kind, whatever its joules are worth.
    fn of(same: &[&Done], seconds: f64, costs: &Costs) -> Work {
        let mut done = Done::default();
        if let Some(first) = same.first() {
            (done.cell.engine, done.cell.kind) = (first.cell.engine.clone(), first.cell.kind.clone());
        }
        same.iter().for_each(|more| done.add(more));
        let cell = &done.cell;
        let rate = |count: u64| count as f64 / seconds;
        Work {
            operations_per_s: rate(cell.requests),
            bytes_per_s: rate(cell.bytes),
            failed_per_s: rate(cell.errors),
            refused_per_s: rate(cell.refused),
            mean_ns: done.sample().mean_ns(),
            mean_held_ns: cell.mean_held_ns(),
            mean_batch: cell.mean_batch(),
            saved_cpu_s_per_s: costs.saved_ns(&done).map(|ns| ns / 1e9 / seconds + 0.0),
            power: power(same.iter().copied(), seconds),
            engine: done.cell.engine,
            kind: done.cell.kind,
        }
    }
}

/// Joules of all requests, by the mean of those that have some.
fn watts(done: &Done, seconds: f64) -> Option<f64> {
    let sample = done.sample();
    if done.worth.is_empty() || sample.timed == 0 || sample.energy_nj == 0 {
        return None;
    }
    let each = sample.energy_nj as f64 / sample.timed as f64;
    Some(each * done.cell.requests as f64 / 1e9 / seconds)
}

fn lanes_share(all: &All, costs: &Costs) -> Option<f64> {
    let able = all.done.iter().filter(|done| costs.in_lanes(&done.cell.kind));
    let (mut all, mut lanes) = (0.0, 0.0);
    for done in able {
        all += done.cell.requests as f64;
        if costs.is_lanes(&done.cell.engine) {
            lanes += done.cell.requests as f64;
        }
    }
    (all > 0.0).then(|| lanes / all)
}

/// The sum over what was done, if each is known and there is any.
fn saved(work: &[Work]) -> Option<f64> {
    let mut done = work.iter().filter(|work| work.operations_per_s > 0.0).peekable();
    done.peek()?;
    done.map(|work| work.saved_cpu_s_per_s).sum()
}

/// The sum, if each is known, there is any, and what is added is worth about as much: modelled joules are never added to
/// others.
fn power<'a>(all: impl Iterator<Item = &'a Done>, seconds: f64) -> Option<Power> {
    let mut sum: Option<Power> = None;
    for done in all.filter(|done| done.cell.requests > 0) {
        let watts = watts(done, seconds)?;
        sum = Some(match sum {
            None => Power { watts, worth: done.worth.to_string() },
            Some(sum) if is_modelled(&sum.worth) != is_modelled(&done.worth) => return None,
            Some(sum) => Power { watts: sum.watts + watts, worth: worst(sum.worth, &done.worth) },
        });
    }
    sum
}
