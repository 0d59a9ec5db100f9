//! Streams whose velocity changes while they run, which the stream paper leaves open: its rule against the controller
//! of `adaptive`, on the machine of its tables. Nothing here was published; every figure is simulated.

use wattlock_policy::Tuning;

use crate::Error;
use crate::options::{TO, within};
use crate::papers::k20m::{self, StreamPlatform};
use crate::row::{Better, Parameter, Row, Study};
use crate::sim::Random;
use crate::sim::stream::{Message, Passage, Sample, pass};

/// How a stream's velocity changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "program", derive(clap::ValueEnum))]
pub enum Pattern {
    /// The velocity stays the same.
    Steady,
    /// A trickle, and now and then most of what the GPU can do, for a fraction of a second.
    Bursts,
    /// From a trickle to three times the mean and back.
    Day,
    /// Either nothing or two and a half times the mean.
    OnOff,
    /// Gaps between messages with infinite variance (Pareto, exponent 1.5).
    HeavyTail,
}

impl Pattern {
    /// All of them.
    pub const ALL: [Pattern; 5] =
        [Pattern::Steady, Pattern::Bursts, Pattern::Day, Pattern::OnOff, Pattern::HeavyTail];

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Steady => "steady",
            Pattern::Bursts => "bursts",
            Pattern::Day => "day",
            Pattern::OnOff => "on-off",
            Pattern::HeavyTail => "heavy-tail",
        }
    }
}

options! {
    /// Platform and workload.
    #[derive(Debug, Clone, PartialEq)]
    pub struct Options {
        /// How the velocity changes, comma-separated [default: every pattern]
        pattern: Vec<Pattern> [arg(long, value_delimiter = ',')],
        /// Length of the stream.
        seconds: f64 = 30.0; 0.01..=1e5,
        /// Mean velocity, MB/s.
        mean_mb_s: f64 = 70.0; 0.001..=1e5,
        /// Shortest message, in KB.
        shortest_kb: f64 = 35.0; 0.001..=1e6,
        /// Longest message, in KB.
        longest_kb: f64 = 150.0,
        /// Streams with consecutive seeds over which figures are summed up.
        runs: u32 = 4; 1..=100,
        /// Points of the picture.
        points: u32 = 300; 2..=100_000,
        /// The machine.
        platform: StreamPlatform [command(flatten)],
        /// Seed of the random numbers.
        seed: u64 = 1,
        /// Rules and constants of `adaptive`
        tuning: &'static Tuning [arg(skip)] = &Tuning::DEFAULT,
    }
}

/// One stream under one rule, for a picture.
#[derive(Debug, Clone)]
pub struct Series {
    /// How the velocity changed.
    pub pattern: Pattern,
    /// `lecpaes` or `adaptive`.
    pub policy: &'static str,
    /// Velocity, fill, clock and watts over time.
    pub samples: Vec<Sample>,
}

const MOST_MESSAGES: f64 = 1e6;

impl Options {
    fn check(&self) -> Result<(), Error> {
        self.check_bounds(TO)?;
        within("longest_kb", &self.longest_kb, self.shortest_kb..=1e6, TO)?;
        let messages = self.seconds * self.mean_mb_s * 1e3 / ((self.shortest_kb + self.longest_kb) / 2.0);
        if messages > MOST_MESSAGES {
            return Err(Error::option("--seconds", format!("short enough for {MOST_MESSAGES} messages")));
        }
        self.platform.check(self.longest_kb * 1000.0)?;
        let mean = (self.shortest_kb + self.longest_kb) * 500.0;
        // The shortest waits are those of bursts.
        let wait_us = 2.0 * mean / (3.2 * self.mean_mb_s);
        self.platform.check_tries(messages * f64::from(self.runs), mean, wait_us)
    }

    fn patterns(&self) -> Vec<Pattern> {
        if self.pattern.is_empty() { Pattern::ALL.to_vec() } else { self.pattern.clone() }
    }

    /// The stream, the same for every rule.
    pub fn messages(&self, pattern: Pattern, seed: u64) -> Vec<Message> {
        let mut random = Random::new(seed);
        let mut source = Source::new(pattern, self.seconds, self.mean_mb_s);
        let (mut messages, mut at) = (Vec::new(), 0.0);
        while at < self.seconds && messages.len() < 2 * MOST_MESSAGES as usize {
            let bytes = random.between(self.shortest_kb, self.longest_kb) * 1e3;
            let (gap, usual) = source.gap(at, bytes, &mut random);
            at += gap;
            messages.push(Message { bytes: bytes as u64, gap_ns: gap * 1e9, wait_ns: 2e9 * usual });
        }
        messages
    }
}

/// Draws gaps.
struct Source {
    pattern: Pattern,
    seconds: f64,
    mean: f64,
    fast: bool,
    until: f64,
}

impl Source {
    fn new(pattern: Pattern, seconds: f64, mean_mb_s: f64) -> Source {
        Source { pattern, seconds, mean: mean_mb_s * 1e6, fast: true, until: 0.0 }
    }

    /// The gap after a message at that time, and what gap is usual at that moment, in seconds.
    fn gap(&mut self, at: f64, bytes: f64, random: &mut Random) -> (f64, f64) {
        let even = |velocity: f64| (bytes / velocity, bytes / velocity);
        match self.pattern {
            Pattern::Steady => even(self.mean),
            Pattern::Day => {
                let turn = (1.0 - (2.0 * std::f64::consts::TAU * at / self.seconds).cos()) / 2.0;
                even(self.mean * (0.1 + 2.6 * turn * turn))
            }
            Pattern::Bursts => {
                self.turn(at, random, 0.4, 1.2);
                even(self.mean * if self.fast { 3.2 } else { 0.2667 })
            }
            Pattern::OnOff => {
                let rest = self.turn(at, random, 0.6, 0.9);
                let gap = bytes / (2.5 * self.mean);
                (if self.fast { gap } else { rest.max(gap) }, gap)
            }
            Pattern::HeavyTail => {
                // Pareto with exponent 1.5 has three times its least value as mean.
                let usual = bytes / self.mean;
                (usual / 3.0 * (1.0 - random.unit()).powf(-1.0 / 1.5), usual)
            }
        }
    }

    /// Changes between fast and slow with exponential lengths; how long the present state has left.
    fn turn(&mut self, at: f64, random: &mut Random, fast: f64, slow: f64) -> f64 {
        if at >= self.until {
            self.fast = !self.fast;
            self.until = at + random.exponential(if self.fast { fast } else { slow });
        }
        self.until - at
    }
}

/// The streams of all runs, one after the other; samples are the first one's.
fn run(options: &Options, pattern: Pattern, name: &str) -> Result<Passage, Error> {
    let mut all = one(options, pattern, name, options.seed, None)?;
    for nth in 1..u64::from(options.runs) {
        let next = one(options, pattern, name, options.seed.wrapping_add(nth), None)?;
        let messages = (all.messages + next.messages) as f64;
        all.latency_ns += (next.latency_ns - all.latency_ns) * next.messages as f64 / messages;
        all.seconds += next.seconds;
        all.bytes += next.bytes;
        all.messages += next.messages;
        all.retransmissions += next.retransmissions;
        all.joules += next.joules;
        all.clock_changes += next.clock_changes;
    }
    Ok(all)
}

fn one(
    options: &Options,
    pattern: Pattern,
    name: &str,
    seed: u64,
    every: Option<u64>,
) -> Result<Passage, Error> {
    let station = options.platform.station();
    let mut policy = k20m::policy(name, &station, options.longest_kb * 1e3, options.tuning)?;
    Ok(pass(&station, &options.messages(pattern, seed), policy.as_mut(), seed, every))
}

/// LECPAES's rule and ours on every pattern. Nothing is published; `simulated` is LECPAES.
///
/// # Errors
/// [`Error::Option`] for an option out of its bounds.
pub fn study(options: &Options) -> Result<Study, Error> {
    options.check()?;
    let mut rows = Vec::new();
    for pattern in options.patterns() {
        let rule = run(options, pattern, "lecpaes")?;
        let ours = run(options, pattern, "adaptive")?;
        let row = |quantity, unit, simulated, adaptive, better, own| Row {
            simulated,
            adaptive: Some(adaptive),
            better,
            own,
            ..Row::new("lecpaes", "velocity", format!("pattern={}", pattern.name()), (quantity, unit))
        };
        rows.push(row("energy_j", "J", rule.joules, ours.joules, Better::Less, true));
        let (before, after) = (rule.retransmission_rate(), ours.retransmission_rate());
        rows.push(row("retransmission_rate", "1/submission", before, after, Better::Less, false));
        rows.push(row("throughput", "MB/s", rule.throughput(), ours.throughput(), Better::More, false));
        let (before, after) = (rule.latency_ns / 1e3, ours.latency_ns / 1e3);
        rows.push(row("latency_us", "us", before, after, Better::Less, false));
        let (before, after) = (rule.clock_changes as f64, ours.clock_changes as f64);
        rows.push(row("clock_changes", "", before, after, Better::Neither, false));
    }
    let remark =
        "Nothing of this is published: the patterns and their parameters are ours, the machine is LECPAES's.";
    Ok(Study { rows, parameters: fit(options), remarks: vec![remark.to_owned()] })
}

/// Velocity, fill, clock and watts over time, for every pattern under both rules.
///
/// # Errors
/// [`Error::Option`] for an option out of its bounds.
pub fn series(options: &Options) -> Result<Vec<Series>, Error> {
    options.check()?;
    let mut all = Vec::new();
    for pattern in options.patterns() {
        for policy in ["lecpaes", "adaptive"] {
            let every = Some((options.seconds * 1e9 / f64::from(options.points)) as u64);
            let passage = one(options, pattern, policy, options.seed, every)?;
            all.push(Series { pattern, policy, samples: passage.samples });
        }
    }
    Ok(all)
}

/// The machine's parameters are LECPAES's; the streams' are chosen, not fitted.
pub fn fit(options: &Options) -> Vec<Parameter> {
    let chosen = |name, value| Parameter::of("velocity", name, value);
    vec![chosen("mean_mb_s", options.mean_mb_s), chosen("seconds", options.seconds)]
}
