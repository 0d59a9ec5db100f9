//! The stream through this machine: the messages, window and rules of the experiment, and work at its own speed, on its
//! GPU, one CPU thread, or all. `--clocks` sets the clocks that `lecpaes` and `adaptive` name, by the device's own list;
//! without it no setting is changed, and they are counted. What each clock costs `adaptive` is measured first. The tests
//! have a stand-in driver, a fake NVML and a folder of files in cpufreq's place.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use wattlock::{Runtime, own_engines};
use wattlock_clock::{Cpufreq, Governor, Locked};
use wattlock_core::{Engine, EngineClass, Key, Kind, KindSet};
use wattlock_lab::sim::stream::{CPU, GPU, Message, Station};
use wattlock_policy::{
    ClockCost, Costs, Hardware, Machine, Objective, Policy, by_name, inline_engine, queued_engine,
};
use wattlock_shell::joules::Gauge;
use wattlock_shell::{INTERRUPTED, setup, text};

use super::passage::{self, Here, Passed, Threads};
use super::{Rule, Settings, Velocity, k20m_policy, k20m_station, whole};
use crate::machine_line;
use crate::record::{By, Record, Row};

/// Clocks whose cost is measured, at most: the lowest, the highest, and those that stand evenly between.
const MEASURED: usize = 8;
/// How long each is, idle and busy. NVML's counter moves ten times a second.
const SPELL: Duration = Duration::from_millis(300);

/// This machine, ready to encrypt: with its GPU, or with all CPU threads in the GPU's place.
pub struct Device {
    /// What it is.
    pub about: String,
    engine: Option<usize>,
    bus: String,
    runtime: Runtime,
    cpu: Runtime,
    key: Arc<Key>,
    threads: usize,
    station: Station,
}

impl Device {
    /// # Errors
    /// No GPU where one is wanted.
    pub fn open(with_gpu: bool) -> Result<Device> {
        let mut engines = own_engines();
        let (mut engine, mut about, mut bus) = (None, machine_line(), String::new());
        if with_gpu {
            let gpu = setup::gpu().map_err(|missing| anyhow::anyhow!("no GPU: {missing}"))?;
            about = gpu.description().detail.clone();
            gpu.bus().clone_into(&mut bus);
            engine = Some(engines.len());
            engines.push(gpu as Arc<dyn Engine>);
        }
        let runtime = Runtime::builder().engines(engines).policy("offload", Default::default());
        let cpu = Runtime::builder().policy("instruction", Default::default()).telemetry(false).build()?;
        Ok(Device {
            about,
            engine,
            bus,
            runtime: runtime.telemetry(false).build()?,
            cpu,
            key: passage::key()?,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            station: k20m_station(),
        })
    }

    /// Sends the messages through it; a governor sets the clocks that the rule names, and without one they are counted.
    ///
    /// # Errors
    /// A GPU that does not come up, or the user interrupts.
    pub fn pass(
        &self,
        rule: Rule,
        messages: &[Message],
        clock: Option<&mut dyn Governor>,
        costs: &Costs,
    ) -> Result<Passed> {
        let (_, own) = rule.on(&self.station);
        let clocks = clock.as_ref().map(|clock| clock.clocks_khz().to_vec());
        let policy = policy(rule, &self.station, clocks, costs)?;
        let threads = Threads::new(&self.cpu, &self.key, if rule == Rule::Cs { 1 } else { self.threads });
        let here = Here { engine: self.engine, threads, clock };
        whole(passage::run_here(&own, messages, policy, &self.runtime, here)?, messages)
    }
}

/// Runs the experiment, with this machine's GPU or without.
pub fn run(settings: &Settings, rules: &[Rule], with_gpu: bool, mut record: Record) -> Result<()> {
    let device = Device::open(with_gpu)?;
    let mut clock: Option<Box<dyn Governor>> = match (settings.clocks, with_gpu) {
        (false, _) => None,
        (true, true) => Some(Box::new(Locked::open(&settings.places(), &device.bus)?)),
        (true, false) => Some(Box::new(Cpufreq::open(&settings.places())?)),
    };
    let mut gauge = if with_gpu { Gauge::counting_boards() } else { Gauge::counting() };
    let mut costs = Costs::new();
    if rules.contains(&Rule::Adaptive)
        && let Some(clock) = &mut clock
    {
        let gauge = gauge.as_mut().context("adaptive goes by joules, and no counter here measures them")?;
        let threads = Threads::new(&device.cpu, &device.key, device.threads);
        let window = device.station.window_bytes;
        let measured = clock_costs(&mut **clock, gauge, window as usize, {
            passage::passes(&device.runtime, device.engine, &threads)?
        });
        clock.restore()?;
        costs = costs_of(&measured?, window as f64);
    }
    let mut rows = Vec::new();
    for velocity in &settings.velocity {
        let messages = settings.messages(*velocity);
        ensure!(!messages.is_empty(), "no message in so short a run");
        for rule in rules {
            // The other programs have the device's own clock.
            let names = matches!(rule, Rule::Lecpaes | Rule::Adaptive);
            let mut clock = clock.as_mut().filter(|_| names);
            let mut work = || {
                let governor = clock.as_deref_mut().map(|clock| &mut **clock as &mut dyn Governor);
                device.pass(*rule, &messages, governor, &costs)
            };
            let (ran, joules) = match &mut gauge {
                Some(gauge) => gauge.all_around(work),
                None => (work(), None),
            };
            if let Some(clock) = clock {
                clock.restore()?;
            }
            let ran = ran?;
            let joules = joules.map(|joules| joules.joules() * 1e3 / messages.len() as f64);
            rows.push(line(*velocity, *rule, &ran, joules));
            let bench = if with_gpu { "stream-gpu" } else { "stream-cpu" };
            let row = row(bench, *velocity, *rule, &ran, joules).detail("device", device.about.as_str());
            record.add(row.detail("clocks_set", settings.clocks));
        }
    }
    if record.shows() {
        say!("{}\n{}", machine_line(), device.about);
        if let Some(gauge) = &gauge {
            say!("Joules: measured, idle power and all, {}.", gauge.parts());
        }
        let heads =
            ["velocity", "policy", "MB/s", "tries again", "p99 ms", "by the GPU", "clock changes", "J/1000"];
        put!("{}", text::table(&heads, &rows));
    }
    record.finish()
}

/// What passes cost at each clock: measured at some, in between by a straight line. Takes about a second for each. Sets
/// clocks and leaves the last one set.
fn clock_costs(
    clock: &mut dyn Governor,
    gauge: &mut Gauge,
    window: usize,
    mut pass: impl FnMut(usize) -> Result<()>,
) -> Result<Vec<ClockCost>> {
    let last = clock.steps().saturating_sub(1);
    let parts = last.clamp(1, MEASURED - 1);
    let mut known: Vec<(usize, ClockCost)> = Vec::new();
    for step in (0..=parts).map(|part| last * part / parts) {
        clock.set(step)?;
        // The first pass at a clock is not one of those that are measured.
        pass(window)?;
        let ((), idle) = gauge.all_around(|| std::thread::sleep(SPELL));
        let little_ns = each_ns(&mut pass, window / 8)?;
        let start = Instant::now();
        let (much_ns, busy) = gauge.all_around(|| each_ns(&mut pass, window));
        let (much_ns, spent) = (much_ns?, start.elapsed());
        let watts = |joules: Option<wattlock_meter::Metered>, time: Duration| {
            let joules = joules.context("adaptive goes by joules, and the counters did not measure all")?;
            Ok::<_, anyhow::Error>(joules.joules() / time.as_secs_f64())
        };
        let beyond = (much_ns - little_ns).max(much_ns / 100.0);
        let bytes_per_s = (window - window / 8) as f64 * 1e9 / beyond;
        let setup_ns = (much_ns - window as f64 * 1e9 / bytes_per_s).max(0.0);
        let (idle_w, busy_w) = (watts(idle, SPELL)?, watts(busy, spent)?);
        known.push((step, ClockCost { setup_ns, bytes_per_s, idle_w, busy_w: busy_w.max(idle_w) }));
    }
    Ok((0..=last).map(|step| between(&known, step)).collect())
}

/// Nanoseconds of a pass over so many bytes, on average.
fn each_ns(pass: &mut impl FnMut(usize) -> Result<()>, bytes: usize) -> Result<f64> {
    let (start, mut count) = (Instant::now(), 0_u32);
    while start.elapsed() < SPELL {
        ensure!(!INTERRUPTED.load(Ordering::SeqCst), wattlock_door::Error::Interrupted);
        pass(bytes)?;
        count += 1;
    }
    Ok(start.elapsed().as_nanos() as f64 / f64::from(count.max(1)))
}

/// A step's cost from those of the steps around it; `known` is sorted and has the first and the last.
fn between(known: &[(usize, ClockCost)], step: usize) -> ClockCost {
    let at = known.partition_point(|(one, _)| *one < step).min(known.len() - 1);
    let ((low, below), (high, above)) = (known[at.saturating_sub(1)], known[at]);
    let share = if high > low { (step.saturating_sub(low)) as f64 / (high - low) as f64 } else { 1.0 };
    let part = |of: fn(&ClockCost) -> f64| of(&below) + (of(&above) - of(&below)) * share;
    ClockCost {
        setup_ns: part(|one| one.setup_ns),
        bytes_per_s: part(|one| one.bytes_per_s),
        idle_w: part(|one| one.idle_w),
        busy_w: part(|one| one.busy_w),
    }
}

/// What `adaptive` is told of the device. Of the CPU it is told nothing: its joules are not known apart from the device's.
fn costs_of(clocks: &[ClockCost], window: f64) -> Costs {
    let mut costs = Costs::new();
    if let Some(fastest) = clocks.last() {
        let ns = |bytes: f64| fastest.setup_ns + bytes * 1e9 / fastest.bytes_per_s;
        let point =
            |bytes: f64| (bytes as usize, ns(bytes), Some(ns(bytes) * (fastest.busy_w - fastest.idle_w)));
        costs.set(GPU, Kind::Aes128Ctr, vec![point(1024.0), point(window)]);
    }
    costs.set_clocks(GPU, clocks.to_vec());
    costs
}

/// The rule's policy; `lecpaes` and `adaptive` by the clocks that are set.
fn policy(
    rule: Rule,
    station: &Station,
    clocks_khz: Option<Vec<u64>>,
    costs: &Costs,
) -> Result<Box<dyn Policy>> {
    let Some(clocks_khz) = clocks_khz else {
        let (name, own) = rule.on(station);
        return k20m_policy(&name, &own);
    };
    let machine = Machine {
        engines: vec![
            inline_engine(CPU, EngineClass::Software, KindSet::ALL),
            queued_engine(GPU, EngineClass::Gpu, KindSet::ALL, 1 << 20),
        ],
        hardware: Hardware { clocks_khz: vec![(GPU, clocks_khz)], ..Hardware::default() },
        costs: costs.clone(),
        objective: Objective::Energy,
        cores: 1,
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

fn row(bench: &'static str, velocity: Velocity, rule: Rule, ran: &Passed, joules: Option<f64>) -> Row {
    Row::alone(bench, "content", "MB/s", By::Time, ran.throughput(), 1)
        .param("velocity", velocity.to_string())
        .param("policy", text::typed(&rule))
        .detail("messages", ran.messages)
        .detail("messages_by_gpu", ran.by_gpu)
        .detail("retransmissions_per_message", ran.retransmissions as f64 / ran.messages as f64)
        .detail("p99_ms", ran.p99_ns as f64 / 1e6)
        .detail("clock_changes_named", ran.clock_changes)
        .detail("joules_per_1000", joules)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_clock_that_was_not_measured_costs_what_lies_between_its_neighbours() {
        let cost =
            |of: f64| ClockCost { setup_ns: of, bytes_per_s: 2.0 * of, idle_w: 3.0 * of, busy_w: 4.0 * of };
        let known = [(0, cost(10.0)), (4, cost(30.0)), (6, cost(32.0))];
        let all: Vec<f64> = (0..=6).map(|step| between(&known, step).setup_ns).collect();
        assert_eq!(all, [10.0, 15.0, 20.0, 25.0, 30.0, 31.0, 32.0]);
        let one = between(&known, 5);
        assert_eq!((one.bytes_per_s, one.idle_w, one.busy_w), (62.0, 93.0, 124.0));
        assert_eq!(between(&known[..1], 0), cost(10.0));
    }
}
