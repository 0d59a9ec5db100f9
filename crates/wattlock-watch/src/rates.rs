//! What a person or another program is shown of a program's work: figures a second.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::cost::Costs;
use crate::since::{Done, Program, is_modelled, worst};

/// A program's work a second. What is not known is absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Rates {
    /// What the program says it is.
    pub program: String,
    /// Its processes.
    pub pids: Vec<u32>,
    /// Requests done a second.
    pub operations_per_s: f64,
    /// Their bytes a second.
    pub bytes_per_s: f64,
    /// Requests that failed, a second.
    pub failed_per_s: f64,
    /// Requests to open what does not authenticate, a second.
    pub refused_per_s: f64,
    /// Requests in flight now.
    pub in_flight: u64,
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
    /// Of what was done in so many seconds ([`Look::seconds_since`](crate::Look::seconds_since)).
    pub fn of(program: &Program, seconds: f64, costs: &Costs) -> Rates {
        let sum = |count: fn(&Done) -> u64| program.done.iter().map(|done| count(done) as f64).sum::<f64>();
        let work: Vec<Work> = program.done.iter().map(|done| Work::of(done, seconds, costs)).collect();
        let (batches, queued) = (sum(|done| done.cell.batch_sum), sum(|done| done.cell.queued()));
        let fallbacks = program.fallbacks.iter();
        Rates {
            program: program.name.clone(),
            pids: program.pids.iter().copied().collect(),
            operations_per_s: sum(|done| done.cell.requests) / seconds,
            bytes_per_s: sum(|done| done.cell.bytes) / seconds,
            failed_per_s: sum(|done| done.cell.errors) / seconds,
            refused_per_s: sum(|done| done.cell.refused) / seconds,
            in_flight: program.in_flight,
            lanes_share: lanes_share(program, costs),
            mean_batch: (queued > 0.0).then(|| batches / queued),
            fallbacks_per_s: fallbacks.map(|(why, count)| (why.clone(), *count as f64 / seconds)).collect(),
            saved_cpu_s_per_s: total(&work, |work| work.saved_cpu_s_per_s),
            power: power(&work),
            work,
        }
    }
}

impl Work {
    fn of(done: &Done, seconds: f64, costs: &Costs) -> Work {
        let cell = &done.cell;
        let rate = |count: u64| count as f64 / seconds;
        Work {
            engine: cell.engine.clone(),
            kind: cell.kind.clone(),
            operations_per_s: rate(cell.requests),
            bytes_per_s: rate(cell.bytes),
            failed_per_s: rate(cell.errors),
            refused_per_s: rate(cell.refused),
            mean_ns: done.sample().mean_ns(),
            mean_held_ns: cell.mean_held_ns(),
            mean_batch: cell.mean_batch(),
            saved_cpu_s_per_s: costs.saved_ns(done).map(|ns| ns / 1e9 / seconds),
            power: power_of(done, seconds),
        }
    }
}

/// Joules of all requests, by the mean of those that have some.
fn power_of(done: &Done, seconds: f64) -> Option<Power> {
    let sample = done.sample();
    if done.worth.is_empty() || sample.timed == 0 || sample.energy_nj == 0 {
        return None;
    }
    let each = sample.energy_nj as f64 / sample.timed as f64;
    Some(Power { watts: each * done.cell.requests as f64 / 1e9 / seconds, worth: done.worth.clone() })
}

fn lanes_share(program: &Program, costs: &Costs) -> Option<f64> {
    let able = program.done.iter().filter(|done| costs.in_lanes(&done.cell.kind));
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
fn total(work: &[Work], of: fn(&Work) -> Option<f64>) -> Option<f64> {
    let mut done = work.iter().filter(|work| work.operations_per_s > 0.0).peekable();
    done.peek()?;
    done.map(of).sum()
}

/// The sum, if what is added is worth about as much: modelled joules are never added to others.
fn power(work: &[Work]) -> Option<Power> {
    let watts = total(work, |work| work.power.as_ref().map(|power| power.watts))?;
    let worths = || work.iter().filter_map(|work| work.power.as_ref()).map(|power| power.worth.as_str());
    let modelled = worths().filter(|worth| is_modelled(worth)).count();
    if modelled > 0 && modelled < worths().count() {
        return None;
    }
    Some(Power { watts, worth: worths().fold("", worst).to_owned() })
}
