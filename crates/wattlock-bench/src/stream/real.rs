//! The stream through a GPU of this machine: the messages, window and rules of the experiment, and work at its own speed.
//! No setting of the card is changed: the clocks that `lecpaes` names are counted only.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Result, ensure};
use wattlock::own_engines;
use wattlock_core::Engine;
use wattlock_lab::papers::k20m;
use wattlock_shell::joules::Gauge;
use wattlock_shell::{INTERRUPTED, setup, text};

use super::passage::{self, Passed};
use super::{Rule, Settings, Velocity};
use crate::machine_line;
use crate::record::{By, Record, Row};

/// Runs the experiment.
pub fn run(settings: &Settings, rules: &[Rule], mut record: Record) -> Result<()> {
    let gpu = setup::gpu().map_err(|missing| anyhow::anyhow!("no GPU: {missing}"))?;
    let about = gpu.description().detail.clone();
    let mut engines = own_engines();
    let engine = engines.len();
    engines.push(gpu as Arc<dyn Engine>);
    let runtime = wattlock::Runtime::builder();
    let runtime = runtime.engines(engines).policy("offload", Default::default()).telemetry(false).build()?;
    let station = k20m::StreamPlatform { stalls_per_s: 0.0, ..Default::default() }.station();
    let mut gauge = Gauge::counting();
    let mut rows = Vec::new();
    for velocity in &settings.velocity {
        let messages = settings.messages(*velocity);
        ensure!(!messages.is_empty(), "no message in so short a run");
        for rule in rules {
            let (policy, own) = rule.on(&station);
            let policy = k20m::policy(policy, &own, 150e3, Default::default())?;
            let work = || passage::run_on_gpu(&own, &messages, policy, &runtime, engine);
            let (ran, joules) = match &mut gauge {
                Some(gauge) => gauge.around(work),
                None => (work(), None),
            };
            let ran = ran?;
            if INTERRUPTED.load(Ordering::SeqCst) && ran.messages < messages.len() as u64 {
                return Err(wattlock_door::Error::Interrupted.into());
            }
            let joules = joules.map(|joules| joules.joules() * 1e3 / messages.len() as f64);
            rows.push(line(*velocity, *rule, &ran, joules));
            record.add(row(*velocity, *rule, &ran, joules).detail("device", about.as_str()));
        }
    }
    if record.shows() {
        say!("{}\n{about}", machine_line());
        if let Some(gauge) = &gauge {
            say!("{}", gauge.line());
        }
        let heads =
            ["velocity", "policy", "MB/s", "tries again", "p99 ms", "by the GPU", "clocks named", "J/1000"];
        put!("{}", text::table(&heads, &rows));
    }
    record.finish()
}

fn line(velocity: Velocity, rule: Rule, ran: &Passed, joules: Option<f64>) -> Vec<String> {
    vec![
        velocity.to_string(),
        rule.name().to_owned(),
        format!("{:.1}", ran.throughput()),
        format!("{:.3}", ran.retransmissions as f64 / ran.messages as f64),
        format!("{:.2}", ran.p99_ns as f64 / 1e6),
        format!("{} of {}", ran.by_gpu, ran.messages),
        ran.clock_changes.to_string(),
        joules.map_or_else(|| "-".into(), |joules| format!("{joules:.1}")),
    ]
}

fn row(velocity: Velocity, rule: Rule, ran: &Passed, joules: Option<f64>) -> Row {
    Row::alone("stream-gpu", "content", "MB/s", By::Time, ran.throughput(), 1)
        .param("velocity", velocity.to_string())
        .param("policy", rule.name())
        .detail("messages", ran.messages)
        .detail("messages_by_gpu", ran.by_gpu)
        .detail("retransmissions_per_message", ran.retransmissions as f64 / ran.messages as f64)
        .detail("p99_ms", ran.p99_ns as f64 / 1e6)
        .detail("clock_changes_named", ran.clock_changes)
        .detail("joules_above_idle_per_1000", joules)
}
