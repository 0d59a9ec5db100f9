//! `wattlock bench point`: one point of an experiment through a real door, by any method, with an emulated device if one
//! is asked for. It knows no paper, no grid and no page: those are of `wattlock lab`, which starts one such process a point and
//! reads its line.
//!
//! A machine that lacks what a point needs is an answer ([`answer::Cannot`]). A caller that asks for nonsense gets a usage
//! error, a door that dies an error.

mod answer;
mod cipher;
mod file;
mod given;
mod https;
mod perf;
mod s_time;
mod stream;
mod volume;
mod watch;

use std::path::Path;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tempfile::TempDir;
use wattlock::policy::OFFLOADING;
use wattlock_core::Engine;
use wattlock_shell::INTERRUPTED;
use wattlock_shell::nginx::place::Places;
use wattlock_shell::setup::{self, Choice};
use wattlock_shell::text;

use self::answer::{Answer, Cannot, Head, Measured, cannot};
use self::given::{Given, usage};
use self::watch::Watch;
use crate::tally::Done;

/// What to measure.
#[derive(Debug, Args)]
pub struct Settings {
    /// The program that does the work
    #[arg(value_enum)]
    door: Door,
    /// Its keys; without one its default
    #[arg(value_name = "KEY=VALUE")]
    keys: Vec<String>,
    /// Seconds of a round
    #[arg(long, default_value_t = 1.0, value_parser = text::parse_seconds)]
    seconds: f64,
    /// Rounds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// An outside meter: started by `sh -c`, each of its lines is `J TOTAL` (joules so far) or `W NOW` (watts)
    #[arg(long, value_name = "CMD")]
    meter_command: Option<String>,
    #[command(flatten)]
    places: Places,
}

/// Where work comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Door {
    /// `openssl speed`, which calls libcrypto and waits, with Wattlock's provider
    Cipher,
    /// nginx with Wattlock's module, or without
    Https,
    /// A mounted volume in memory
    Volume,
    /// `wattlock seal` of a file in memory
    File,
    /// A stream through a sliding window, as in `bench stream`
    Stream,
}

impl Door {
    /// Its keys and their defaults.
    fn keys(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Door::Cipher => cipher::KEYS,
            Door::Https => https::KEYS,
            Door::Volume => volume::KEYS,
            Door::File => file::KEYS,
            Door::Stream => stream::KEYS,
        }
    }

    /// Whether this machine's GPU can do its work.
    fn reaches_gpus(self) -> bool {
        match self {
            Door::Cipher | Door::Https | Door::Stream => false,
            Door::Volume | Door::File => true,
        }
    }
}

/// What all doors are told.
struct Point<'a> {
    door: Door,
    choice: &'a Choice,
    places: &'a Places,
    seconds: f64,
    rounds: u32,
    meter: Option<&'a str>,
}

impl Point<'_> {
    fn watch(&self) -> Result<Watch> {
        Watch::new(self.meter)
    }

    /// What the point may use beside the CPU.
    ///
    /// # Errors
    /// A card that there is not; a rule that gives work to a device where there is none.
    fn device(&self) -> Result<String> {
        let choice = self.choice;
        if choice.emulate.is_some() {
            // Also what is wrong with a model's file is said before anything starts.
            setup::engines(choice).map_err(|error| usage(format!("--emulate: {error}")))?;
        }
        let none = Ok("none".to_owned());
        let policy = &*choice.policy;
        match &choice.emulate {
            _ if ["software", "instruction"].contains(&policy) => none,
            Some(model) => Ok(format!("emulated {model}")),
            None => match setup::gpu().ok().filter(|_| self.door.reaches_gpus()) {
                Some(gpu) => Ok(gpu.description().detail.clone()),
                None if OFFLOADING.contains(&policy) => Err(cannot(format!(
                    "{policy} gives work to a device, and this door has none here: --emulate has modelled ones"
                ))),
                None => none,
            },
        }
    }
}

/// Measures it, and says so in one line on standard output.
pub fn run(settings: &Settings, choice: &Choice) -> Result<()> {
    let name = text::typed(&settings.door);
    let mut given = Given::read(&name, settings.door.keys(), &settings.keys)?;
    let mut point = Point {
        door: settings.door,
        choice,
        places: &settings.places,
        seconds: settings.seconds,
        rounds: settings.rounds,
        meter: settings.meter_command.as_deref(),
    };
    let measured = match settings.door {
        Door::Cipher => cipher::run(&mut given, &mut point),
        Door::Https => https::run(&mut given, &mut point),
        Door::Volume => volume::run(&mut given, &point),
        Door::File => file::run(&mut given, &point),
        Door::Stream => stream::run(&mut given, &point),
    };
    // What was interrupted says nothing of this machine, as a program that the same interrupt ended would.
    ensure!(!INTERRUPTED.load(Ordering::SeqCst), wattlock_door::Error::Interrupted);
    let measured = measured.map(|measured| told_idle(measured, settings.door));
    let head = Head::new(&name, &given, &choice.policy, point.seconds, point.rounds);
    let line = match &measured {
        Ok(measured) => serde_json::to_string(&answered(head, measured))?,
        Err(error) => match error.downcast_ref::<Cannot>() {
            Some(Cannot(why)) => serde_json::to_string(&Answer::Cannot { head, cannot: why })?,
            None => return measured.map(drop),
        },
    };
    say!("{line}");
    Ok(())
}

fn answered<'a>(head: Head<'a>, measured: &'a Measured) -> Answer<'a> {
    Answer::Measured {
        head,
        figures: &measured.figures,
        joules: measured.joules.clone(),
        device: &measured.device,
        engines: &measured.engines,
        busy: measured.busy,
    }
}

/// A folder for what a point makes, by the number of this process; in memory, or where temporary files are.
fn folder(place: Option<&Path>) -> Result<TempDir> {
    let prefix = format!("wattlock-point-{}-", std::process::id());
    let place = place.map_or_else(std::env::temp_dir, Path::to_owned);
    let made = tempfile::Builder::new().prefix(&prefix).tempdir_in(&place);
    made.with_context(|| place.display().to_string())
}

/// This thread, with what it starts, on fewer CPUs until this value ends.
struct Confined(CpuSet);

/// Confines this thread to as many CPUs as `cpus=` says: the first of those that it may use.
fn confined(given: &Given) -> Result<Option<Confined>> {
    if given.text("cpus").is_empty() {
        return Ok(None);
    }
    let cpus = given.number("cpus", 1..=CpuSet::MAX_CPU)?;
    let all = sched_getaffinity(None)?;
    if cpus > all.count() as usize {
        return Err(cannot(format!("cpus={cpus}: this process may use {}", all.count())));
    }
    let mut some = CpuSet::new();
    (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).take(cpus).for_each(|cpu| some.set(cpu));
    sched_setaffinity(None, &some).context("cpus=")?;
    Ok(Some(Confined(all)))
}

impl Drop for Confined {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.0);
    }
}

/// That the accelerator-only baseline gave the device nothing: then its figure would be the CPU's. A device that never did
/// anything is none for this work here; one that stopped was lost.
fn refuse_idle_device(choice: &Choice, rounds: &[Done], what: &str) -> Result<()> {
    let idle = |done: &Done| !done.keys().any(|(engine, _)| is_device(engine));
    match rounds.iter().position(idle) {
        Some(_) if choice.policy != "offload" => Ok(()),
        Some(_) if rounds.iter().all(idle) => Err(cannot(format!("the device got nothing to do: {what}"))),
        Some(round) => bail!("the device did nothing in round {}: it was lost", round + 1),
        None => Ok(()),
    }
}

/// Says of a device that did nothing that it was idle: then the figure is the CPU's. A stream counts no engines.
fn told_idle(mut measured: Measured, door: Door) -> Measured {
    let did = |line: &String| line.split(' ').next().is_some_and(is_device);
    if door != Door::Stream && measured.device != "none" && !measured.engines.iter().any(did) {
        measured.device += ", idle";
    }
    measured
}

/// Whether a board of this machine had a part in the work.
fn by_board(rounds: &[Done]) -> bool {
    rounds.iter().flat_map(Done::keys).any(|(engine, _)| engine == "cuda")
}

/// Whether an engine of that name is beside the CPU.
fn is_device(engine: &str) -> bool {
    ["emulated", "cuda"].contains(&engine)
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    pub(super) fn choice(policy: &str) -> Choice {
        let (objective, settings) = (setup::Goal::default(), Vec::new());
        Choice { policy: policy.to_owned(), objective, settings, emulate: None }
    }

    pub(super) fn point(choice: &Choice) -> Point<'_> {
        static PLACES: LazyLock<Places> =
            LazyLock::new(|| Places { nginx: None, module: None, provider: None, openssl_lib: None });
        Point { door: Door::Cipher, choice, places: &PLACES, seconds: 0.1, rounds: 1, meter: None }
    }

    #[test]
    fn a_rule_that_gives_work_to_a_device_needs_one() {
        assert_eq!(point(&choice("adaptive")).device().unwrap(), "none");
        assert_eq!(point(&choice("software")).device().unwrap(), "none");
        let error = point(&choice("qweb")).device().unwrap_err();
        assert!(
            error.downcast_ref::<Cannot>().is_some_and(|Cannot(why)| why.starts_with("qweb ")),
            "{error}"
        );
        let unknown = Choice { emulate: Some("no-such-card".into()), ..choice("qweb") };
        let error = point(&unknown).device().unwrap_err();
        assert!(error.downcast_ref::<wattlock_door::Error>().is_some(), "{error}");
    }

    #[test]
    fn a_thread_has_as_many_cpus_as_are_asked_for_until_the_end() {
        let of = |word: &str| confined(&Given::read("door", &[("cpus", "")], &[word.to_owned()]).unwrap());
        let count = || sched_getaffinity(None).unwrap().count();
        let all = count();
        let one = of("cpus=1").unwrap();
        let started = std::thread::spawn(count).join().unwrap();
        assert_eq!((one.is_some(), count(), started), (true, 1, 1));
        drop(one);
        assert_eq!(count(), all);
        assert!(of("cpus=").unwrap().is_none());
        let error = of(&format!("cpus={}", all + 1)).err().unwrap();
        assert!(
            error
                .downcast_ref::<Cannot>()
                .is_some_and(|Cannot(why)| why.ends_with(&format!("may use {all}")))
        );
        assert!(of("cpus=0").err().unwrap().downcast_ref::<wattlock_door::Error>().is_some());
    }

    #[test]
    fn a_device_that_did_nothing_is_told_idle() {
        let with = |device: &str, engine: &str, door| {
            let engines = vec![format!("{engine} aes-128-xts-encrypt 14")];
            told_idle(Measured { device: device.to_owned(), engines, ..Measured::default() }, door).device
        };
        assert_eq!(with("emulated eeca-soc", "instruction", Door::Cipher), "emulated eeca-soc, idle");
        assert_eq!(with("emulated eeca-soc", "emulated", Door::Cipher), "emulated eeca-soc");
        assert_eq!(with("none", "instruction", Door::Https), "none");
        assert_eq!(with("emulated k20m", "instruction", Door::Stream), "emulated k20m");
    }

    #[test]
    fn an_accelerator_only_figure_that_is_the_cpus_is_none() {
        let did = crate::tally::Did { requests: 1, ..Default::default() };
        let on = |engine: &str| Done::from([((engine.to_owned(), "aes-128-xts-encrypt".to_owned()), did)]);
        let refused = |policy: &str, rounds: &[&str]| {
            let rounds: Vec<Done> = rounds.iter().map(|engine| on(engine)).collect();
            refuse_idle_device(&choice(policy), &rounds, "x").err()
        };
        let idle = refused("offload", &["instruction", "instruction"]).unwrap();
        assert!(idle.downcast_ref::<Cannot>().is_some(), "{idle}");
        assert!(refused("offload", &["emulated", "emulated"]).is_none());
        assert!(refused("eeca", &["instruction"]).is_none());
        let lost = refused("offload", &["emulated", "instruction"]).unwrap();
        assert!(lost.downcast_ref::<Cannot>().is_none(), "{lost}");
        assert_eq!(lost.to_string(), "the device did nothing in round 2: it was lost");
    }
}
