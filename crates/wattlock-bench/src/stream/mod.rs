//! `wattlock bench stream`: LECPAES's experiment with real threads, a real window and a real cipher, on an emulated
//! machine. Published, the lab's and this run's figures stand side by side. Time, bytes and tries are this run's. Joules
//! are modelled, and the table says so.
//!
//! The published programs also run on this machine ([`real`]).

mod passage;
pub mod real;

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::Ordering;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use serde_json::Value as Json;
use wattlock::Runtime;
use wattlock_clock::{Places, TREE};
use wattlock_lab::papers::lecpaes::{self, published_figures};
use wattlock_lab::papers::{k20m, velocity};
use wattlock_lab::sim::stream::{Message, Station, pass};
use wattlock_meter::Quality;
use wattlock_policy::Policy;

pub use self::passage::Passed;
use super::machine_line;
use super::record::{By, Record, Row};
use wattlock_shell::INTERRUPTED;
use wattlock_shell::{setup, text};

/// What is run.
#[derive(Debug, Args)]
pub struct Settings {
    /// Rules: serial CPU, parallel CPU, plain GPU, the published rule, ours
    // The id and the type are those of the option of the whole program, in whose place it stands.
    #[arg(id = "policy", long = "policy", value_name = "RULES", default_value = "cs,cp,gp,lecpaes,adaptive", value_parser = checked_rules)]
    rules: String,
    /// Gaps between messages (100us) or patterns: steady, bursts, day, on-off, heavy-tail
    #[arg(long, value_delimiter = ',', default_value = "500us,1500us,3000us", value_name = "VELOCITY")]
    velocity: Vec<Velocity>,
    /// The machine. Default: this machine's GPU if there is one and the rules are `gp` and `lecpaes` only, else k20m
    #[arg(long, value_enum)]
    machine: Option<Machine>,
    /// With `--machine gpu` or `cpu`: set the clocks that `lecpaes` and `adaptive` name (root). They are reset after each run
    #[arg(long)]
    clocks: bool,
    /// Where to note what to put back
    #[arg(long, value_name = "FILE", default_value = "/run/wattlock/clocks", requires = "clocks")]
    clocks_record: PathBuf,
    /// Where the kernel shows CPU clocks
    #[arg(long, value_name = "FOLDER", default_value = TREE, requires = "clocks", hide = true)]
    clocks_tree: PathBuf,
    /// Messages of a run with fixed gaps; published were 12000
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    messages: u32,
    /// Length of a run with a pattern
    #[arg(long, default_value_t = 3.0, value_parser = text::parse_seconds)]
    seconds: f64,
    /// Seed of sizes and gaps
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn rules(text: &str) -> Result<Vec<Rule>, String> {
    text.split(',').map(|name| Rule::from_str(name, false)).collect()
}

fn checked_rules(text: &str) -> Result<String, String> {
    rules(text)
        .map(|_| text.to_owned())
        .map_err(|_| "some of cs, cp, gp, lecpaes, adaptive, by commas".into())
}

/// A machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Machine {
    /// Sixteen cores and a Tesla K20M with six clock pairs, as published; emulated
    K20m,
    /// This machine with its GPU
    Gpu,
    /// This machine's CPU in the GPU's place: all threads, at its clocks
    Cpu,
}

/// What encrypts, and at which clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Rule {
    /// One CPU thread
    Cs,
    /// All CPU threads
    Cp,
    /// The GPU at its default clock
    Gp,
    /// The published rule: the fill picks the clock
    Lecpaes,
    /// Wattlock's
    Adaptive,
}

impl Rule {
    /// The policy, and the machine as this program has it.
    fn on(self, station: &Station) -> (String, Station) {
        let name = text::typed(&self);
        match lecpaes::program(&name, station) {
            Some((policy, own)) => (policy.to_owned(), own),
            None => (name, station.clone()),
        }
    }
}

/// How fast messages come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Velocity {
    /// Microseconds between two.
    Gap(f64),
    /// A pattern.
    Pattern(velocity::Pattern),
}

impl FromStr for Velocity {
    type Err = String;

    fn from_str(text: &str) -> Result<Velocity, String> {
        if let Some(pattern) = velocity::Pattern::ALL.into_iter().find(|pattern| pattern.name() == text) {
            return Ok(Velocity::Pattern(pattern));
        }
        match text.strip_suffix("us").and_then(|number| number.parse::<f64>().ok()) {
            Some(gap) if (1.0..=1e6).contains(&gap) => Ok(Velocity::Gap(gap)),
            _ => Err("a gap such as 100us, or steady, bursts, day, on-off, heavy-tail".into()),
        }
    }
}

impl std::fmt::Display for Velocity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Velocity::Gap(gap) => write!(f, "{gap}us"),
            Velocity::Pattern(pattern) => f.write_str(pattern.name()),
        }
    }
}

impl Settings {
    fn places(&self) -> Places {
        Places { tree: self.clocks_tree.clone(), nvml: setup::nvml(), record: self.clocks_record.clone() }
    }

    fn messages(&self, velocity: Velocity) -> Vec<Message> {
        velocity.messages(self.messages, self.seconds, self.seed)
    }
}

impl Velocity {
    /// So many messages with a gap, or those of so many seconds with a pattern.
    pub fn messages(self, users: u32, seconds: f64, seed: u64) -> Vec<Message> {
        match self {
            Velocity::Gap(gap) => {
                let options = lecpaes::Options { users, ..Default::default() };
                options.messages(gap, seed)
            }
            Velocity::Pattern(pattern) => {
                let options = velocity::Options { seconds, ..Default::default() };
                options.messages(pattern, seed)
            }
        }
    }
}

/// The published machine, emulated. Stalls were fitted on its retransmissions: a run has its own machine's.
pub fn k20m_station() -> Station {
    k20m::StreamPlatform { stalls_per_s: 0.0, ..Default::default() }.station()
}

/// The rule's policy, for the published machine.
fn k20m_policy(policy: &str, own: &Station) -> Result<Box<dyn Policy>> {
    Ok(k20m::policy(policy, own, 150e3, Default::default())?)
}

/// Sends the messages through the emulated machine.
///
/// # Errors
/// The user interrupts.
pub fn on_k20m(rule: Rule, station: &Station, messages: &[Message], runtime: &Runtime) -> Result<Passed> {
    let (policy, own) = rule.on(station);
    let ran = passage::run(&own, messages, k20m_policy(&policy, &own)?, runtime)?;
    whole(ran, messages)
}

/// A run, unless it was interrupted.
fn whole(ran: Passed, messages: &[Message]) -> Result<Passed> {
    let short = ran.messages < messages.len() as u64;
    ensure!(!short || !INTERRUPTED.load(Ordering::SeqCst), wattlock_door::Error::Interrupted);
    Ok(ran)
}

/// One figure, thrice.
struct Thrice {
    published: Option<f64>,
    lab: f64,
    run: f64,
}

impl Thrice {
    fn cells(&self) -> [String; 3] {
        let three =
            |value: f64| if value.abs() < 10.0 { format!("{value:.3}") } else { format!("{value:.1}") };
        [self.published.map_or_else(|| "-".into(), three), three(self.lab), three(self.run)]
    }
}

/// Runs the experiment.
pub fn run(settings: &Settings, mut record: Record) -> Result<()> {
    let rules = rules(&settings.rules)
        .map_err(|what| wattlock_files::Error::Door(wattlock_door::Error::Usage(what)))?;
    let of_gpu = rules.iter().all(|rule| matches!(rule, Rule::Gp | Rule::Lecpaes));
    let machine = settings.machine.unwrap_or_else(|| match of_gpu && setup::gpu().is_ok() {
        true => Machine::Gpu,
        false => Machine::K20m,
    });
    let usage = |what: &str| Err(wattlock_door::Error::Usage(what.to_owned()).into());
    if machine != Machine::K20m {
        if rules.contains(&Rule::Adaptive) && !settings.clocks {
            return usage("adaptive goes by what each clock costs: it needs --clocks on this machine");
        }
        return real::run(settings, &rules, machine == Machine::Gpu, record);
    }
    if settings.clocks {
        return usage("--clocks needs --machine gpu or cpu");
    }
    let station = k20m_station();
    let runtime = wattlock::Runtime::builder().telemetry(false).build()?;
    let mut rows = Vec::new();
    for velocity in &settings.velocity {
        let messages = settings.messages(*velocity);
        ensure!(!messages.is_empty(), "no message in so short a run");
        for rule in &rules {
            let (policy, own) = rule.on(&station);
            let lab = pass(&own, &messages, k20m_policy(&policy, &own)?.as_mut(), settings.seed, None);
            let ran = on_k20m(*rule, &station, &messages, &runtime)?;
            let gap = match velocity {
                Velocity::Gap(gap) => *gap,
                Velocity::Pattern(_) => f64::NAN,
            };
            let published = published_figures(&text::typed(rule), gap);
            let per_thousand = 1e3 / messages.len() as f64;
            let joules = Thrice {
                published: published.map(|(joules, _)| joules / 12.0),
                lab: lab.joules * per_thousand,
                run: ran.joules * per_thousand,
            };
            let again = Thrice {
                published: published.map(|(_, rate)| rate),
                lab: lab.retransmission_rate(),
                run: ran.retransmissions as f64 / ran.messages as f64,
            };
            rows.push(line(*velocity, *rule, &joules, &again, (lab.throughput(), &ran)));
            record.add(row(*velocity, *rule, &joules, &again, &ran));
        }
    }
    if record.shows() {
        say!("{}", machine_line());
        say!(
            "K20M: emulated; this run's work is real and stretched to its steps. Joules: {}.",
            Quality::Modelled
        );
        say!(
            "{}",
            text::table(
                &[
                    "velocity",
                    "policy",
                    "J/1000 published",
                    "lab",
                    "this run",
                    "tries again published",
                    "lab",
                    "this run",
                    "MB/s lab",
                    "this run",
                    "p99 ms",
                    "clock changes",
                    "late",
                ],
                &rows
            )
        );
    }
    record.finish()
}

fn line(
    velocity: Velocity,
    rule: Rule,
    joules: &Thrice,
    again: &Thrice,
    (lab, ran): (f64, &Passed),
) -> Vec<String> {
    let mut cells = vec![velocity.to_string(), text::typed(&rule)];
    cells.extend(joules.cells());
    cells.extend(again.cells());
    cells.push(format!("{lab:.1}"));
    cells.push(format!("{:.1}", ran.throughput()));
    cells.push(format!("{:.2}", ran.p99_ns as f64 / 1e6));
    cells.push(ran.clock_changes.to_string());
    cells.push(format!("{:.1} %", 100.0 * ran.late_share()));
    cells
}

fn row(velocity: Velocity, rule: Rule, joules: &Thrice, again: &Thrice, ran: &Passed) -> Row {
    Row::alone("stream", "joules per 1000 messages", "J", By::Time, joules.run, 1)
        .param("velocity", velocity.to_string())
        .param("policy", text::typed(&rule))
        .param("machine", "k20m, emulated")
        .detail("quality", Quality::Modelled.name())
        .detail("published", joules.published)
        .detail("lab", joules.lab)
        .detail("retransmissions_per_message", again.run)
        .detail("retransmissions_published", again.published)
        .detail("retransmissions_lab", again.lab)
        .detail("mb_per_s", ran.throughput())
        .detail("p99_ms", ran.p99_ns as f64 / 1e6)
        .detail("clock_changes", Json::from(ran.clock_changes))
        .detail("late_share", ran.late_share())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn velocities_are_gaps_or_patterns() {
        assert_eq!("100us".parse(), Ok(Velocity::Gap(100.0)));
        assert_eq!("on-off".parse(), Ok(Velocity::Pattern(velocity::Pattern::OnOff)));
        for wrong in ["", "us", "0us", "100", "fast", "nanus", "2e6us"] {
            assert!(wrong.parse::<Velocity>().is_err(), "{wrong}");
        }
        assert_eq!(rules("gp,adaptive"), Ok(vec![Rule::Gp, Rule::Adaptive]));
        assert!(rules("").is_err() && rules("gp,").is_err() && rules("eeca").is_err());
        assert_eq!(published_figures("gp", 100.0), Some((381.31, 0.64567)));
        assert_eq!(published_figures("adaptive", 100.0), None);
    }

    /// Everything is encrypted once, whatever the rule, and joules are within what the model can have.
    #[test]
    fn every_rule_passes_every_message() {
        let station = k20m_station();
        let runtime = wattlock::Runtime::builder().telemetry(false).build().unwrap();
        let options = lecpaes::Options { users: 30, ..Default::default() };
        let messages = options.messages(500.0, 3);
        let bytes: u64 = messages.iter().map(|message| message.bytes).sum();
        for rule in [Rule::Cp, Rule::Gp, Rule::Lecpaes, Rule::Adaptive] {
            let (_, own) = rule.on(&station);
            let ran = on_k20m(rule, &station, &messages, &runtime).unwrap();
            assert_eq!((ran.messages, ran.bytes), (30, bytes), "{rule:?}");
            let least = own.gpu.steps[0].static_w * ran.seconds;
            let most = (own.gpu.steps[5].static_w + own.gpu.dynamic_at(5) + own.cpu_w) * ran.seconds;
            assert!(ran.joules >= 0.99 * least && ran.joules <= 1.01 * most, "{rule:?}: {}", ran.joules);
            assert!(rule != Rule::Lecpaes || ran.clock_changes > 0, "the fill picks the clock");
        }
    }
}
