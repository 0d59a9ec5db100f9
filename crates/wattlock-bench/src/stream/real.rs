//! The stream through this machine: the messages, window and rules of the experiment, and work at its own speed, on its
//! GPU, one CPU thread, or all. `--clocks` sets the clocks that `lecpaes` names, by the GPU's own list; without it no
//! setting of the card is changed, and they are counted. The tests
//! have a stand-in driver and a fake NVML.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Result, ensure};
use wattlock::own_engines;
use wattlock_clock::{Governor, Locked};
use wattlock_core::{Engine, EngineClass, KindSet};
use wattlock_lab::papers::k20m;
use wattlock_lab::sim::stream::{CPU, GPU, Station};
use wattlock_policy::{Hardware, Machine, Policy, by_name, inline_engine, queued_engine};
use wattlock_shell::joules::Gauge;
use wattlock_shell::{INTERRUPTED, setup, text};

use super::passage::{self, Here, Passed, Threads};
use super::{Rule, Settings, Velocity};
use crate::machine_line;
use crate::record::{By, Record, Row};

/// Runs the experiment.
pub fn run(settings: &Settings, rules: &[Rule], mut record: Record) -> Result<()> {
    let gpu = setup::gpu().map_err(|missing| anyhow::anyhow!("no GPU: {missing}"))?;
    let about = gpu.description().detail.clone();
    let mut engines = own_engines();
    let engine = engines.len();
    let bus = gpu.bus().to_owned();
    engines.push(gpu as Arc<dyn Engine>);
    let runtime = wattlock::Runtime::builder();
    let runtime = runtime.engines(engines).policy("offload", Default::default()).telemetry(false).build()?;
    let cpu =
        wattlock::Runtime::builder().policy("instruction", Default::default()).telemetry(false).build()?;
    let (key, most) = (passage::key()?, std::thread::available_parallelism().map_or(1, usize::from));
    let mut clock = match settings.clocks {
        true => Some(Locked::open(&settings.places(), &bus)?),
        false => None,
    };
    let station = k20m::StreamPlatform { stalls_per_s: 0.0, ..Default::default() }.station();
    let mut gauge = Gauge::counting_boards();
    let mut rows = Vec::new();
    for velocity in &settings.velocity {
        let messages = settings.messages(*velocity);
        ensure!(!messages.is_empty(), "no message in so short a run");
        for rule in rules {
            let (_, own) = rule.on(&station);
            // The other programs have the card's own clock.
            let mut clock = clock.as_mut().filter(|_| *rule == Rule::Lecpaes);
            let policy = policy(*rule, &station, clock.as_deref())?;
            let threads = Threads::new(&cpu, &key, if *rule == Rule::Cs { 1 } else { most });
            let work = || {
                let governor = clock.as_deref_mut().map(|clock| clock as &mut dyn Governor);
                let here = Here { engine, threads, clock: governor };
                passage::run_here(&own, &messages, policy, &runtime, here)
            };
            let (ran, joules) = match &mut gauge {
                Some(gauge) => gauge.all_around(work),
                None => (work(), None),
            };
            let ran = ran?;
            if let Some(clock) = clock {
                clock.restore()?;
            }
            if INTERRUPTED.load(Ordering::SeqCst) && ran.messages < messages.len() as u64 {
                return Err(wattlock_door::Error::Interrupted.into());
            }
            let joules = joules.map(|joules| joules.joules() * 1e3 / messages.len() as f64);
            rows.push(line(*velocity, *rule, &ran, joules));
            record.add(
                row(*velocity, *rule, &ran, joules)
                    .detail("device", about.as_str())
                    .detail("clocks_set", settings.clocks),
            );
        }
    }
    if record.shows() {
        say!("{}\n{about}", machine_line());
        if let Some(gauge) = &gauge {
            say!("Joules: measured, idle power and all, {}.", gauge.parts());
        }
        let heads =
            ["velocity", "policy", "MB/s", "tries again", "p99 ms", "by the GPU", "clock changes", "J/1000"];
        put!("{}", text::table(&heads, &rows));
    }
    record.finish()
}

/// The rule's policy; `lecpaes` by the clocks that are set.
fn policy(rule: Rule, station: &Station, clock: Option<&Locked>) -> Result<Box<dyn Policy>> {
    let Some(clock) = clock else {
        let (name, own) = rule.on(station);
        return Ok(k20m::policy(&name, &own, 150e3, Default::default())?);
    };
    let machine = Machine {
        engines: vec![
            inline_engine(CPU, EngineClass::Software, KindSet::ALL),
            queued_engine(GPU, EngineClass::Gpu, KindSet::ALL, 1 << 20),
        ],
        hardware: Hardware { clocks_khz: vec![(GPU, clock.clocks_khz().to_vec())], ..Hardware::default() },
        ..Machine::default()
    };
    Ok(by_name(&text::typed(&rule), machine, &Default::default())?)
}

fn line(velocity: Velocity, rule: Rule, ran: &Passed, joules: Option<f64>) -> Vec<String> {
    vec![
        velocity.to_string(),
        text::typed(&rule),
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
        .param("policy", text::typed(&rule))
        .detail("messages", ran.messages)
        .detail("messages_by_gpu", ran.by_gpu)
        .detail("retransmissions_per_message", ran.retransmissions as f64 / ran.messages as f64)
        .detail("p99_ms", ran.p99_ns as f64 / 1e6)
        .detail("clock_changes_named", ran.clock_changes)
        .detail("joules_per_1000", joules)
}
