//! `wattlock seal` of a random file in memory to nowhere, once a round. Seconds are those that the program states for its
//! work, without its start; processor time and joules are of the whole process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use wattlock::Profile;
use wattlock::calibrate::{Plan, calibrate};
use wattlock_core::{Kind, KindSet};
use wattlock_emul::Model;
use wattlock_shell::setup::{self, Choice};

use super::answer::{Figures, Measured, Per, cannot};
use super::given::{Given, usage};
use super::volume::{handed_on, with_room};
use super::{Point, by_board, confined, is_device, refuse_idle_device};
use crate::files::{new_key, write_random};
use crate::tally::{Did, Done, engines};
use crate::tended::Tended;

pub const KEYS: &[(&str, &str)] =
    &[("bytes", "268435456"), ("streams", "4"), ("share", ""), ("clock", ""), ("cpus", "")];

/// How long sealing may take: the plain engine of a development build does ten times as much a second.
const PATIENCE: Duration = Duration::from_secs(120);
const BYTES_PER_S: u64 = 1_000_000;
/// What the output takes in memory: nothing. What else does: keys, a profile.
const BESIDE: u64 = 1 << 20;

pub fn run(given: &mut Given, point: &Point<'_>) -> Result<Measured> {
    let bytes = given.bytes("bytes", 1..=1 << 40)?;
    let streams = given.number("streams", 1..=wattlock_cuda::STREAMS_MOST)?;
    let mut choice = point.choice.clone();
    if !given.text("share").is_empty() {
        let share = given.number("share", 1..=999_u32)?;
        if choice.policy != "eep" {
            return Err(usage("share= is the device's part by the rule eep: it needs --policy eep"));
        }
        choice.settings.push(format!("eep.ratio={}", f64::from(share) / f64::from(1000 - share)));
    }
    let device = point.device()?;
    let model = choice.emulate.as_deref().map(|name| changed(name, streams, given)).transpose()?.flatten();
    if choice.emulate.is_none() && !given.text("clock").is_empty() {
        return Err(cannot(
            "setting this GPU's clocks is not done by this door: --emulate has modelled ones",
        ));
    }
    // Before this thread is confined: the meter's threads go anywhere.
    let mut watch = point.watch()?;
    let _confined = confined(given)?;
    let folder = with_room(given, bytes as u64 + BESIDE)?;
    if let Some(model) = model {
        let path = folder.path().join("model");
        std::fs::write(&path, model.to_string())?;
        choice.emulate = Some(path.display().to_string());
    }
    let recipient = new_key(&folder.path().join("key.txt"))?;
    let plain = folder.path().join("plain");
    write_random(&plain, bytes)?;
    let mut command = Command::new(wattlock_shell::program::wattlock()?);
    command.args(["seal", "-q", "--stats", "-r", &recipient, "-o", "/dev/null"]);
    command.args(handed_on(&choice)).arg(&plain);
    command.env("WATTLOCK_CUDA_STREAMS", streams.to_string());
    if let Some(profile) = profile(&choice, folder.path())? {
        command.env("WATTLOCK_PROFILE", profile);
    }

    watch.per(Per::Byte);
    let (mut figures, mut rounds) = (Figures::default(), Vec::new());
    // The first brings the program and the file into memory.
    for round in 0..=point.rounds {
        if round == 0 {
            seal(&command, bytes)?;
            continue;
        }
        watch.begin();
        let sealed = seal(&command, bytes)?;
        let spell = watch.end()?;
        watch.worked(bytes as f64);
        figures.add("seconds", "s", sealed.seconds);
        figures.add("throughput", "MB/s", bytes as f64 / 1e6 / sealed.seconds);
        figures.add("cpu_share", "1", spell.cpu_share());
        figures.add("device_share", "1", sealed.device_share());
        rounds.push(sealed.done);
    }
    refuse_idle_device(point.choice, &rounds, "it does nothing of this")?;
    let (joules, busy) = (watch.joules(by_board(&rounds)), watch.busy());
    Ok(Measured { figures, engines: engines(&rounds), device, joules, busy })
}

/// The model of that name with so many streams, and with one clock if `clock=` says which; `None` if it is no GPU's.
fn changed(name: &str, streams: usize, given: &Given) -> Result<Option<Model>> {
    let mut model = Model::named(name).map_err(|error| usage(format!("--emulate: {error}")))?;
    let clock = given.text("clock").to_owned();
    let Some(gpu) = &mut model.gpu else {
        return match clock.is_empty() {
            true => Ok(None),
            false => Err(usage(format!("clock={clock}: {name} has no clocks"))),
        };
    };
    gpu.streams = streams;
    if !clock.is_empty() {
        let clocks: Vec<String> = gpu.steps.iter().map(|step| step.core_mhz.to_string()).collect();
        let step = given.one_of("clock", &clocks.iter().map(String::as_str).collect::<Vec<_>>())?;
        // Tables stay those of the reference, by which a clock's speed is told; watts above idle are told at the reference.
        gpu.dynamic_w = gpu.dynamic_at(step);
        (gpu.steps, gpu.reference) = (vec![gpu.steps[step]], 0);
    }
    Ok(Some(model))
}

/// A profile for these engines, if this user has none: else each run would measure one first.
fn profile(choice: &Choice, folder: &Path) -> Result<Option<PathBuf>> {
    let engines = setup::engines(choice)?;
    if Profile::exists_for(&engines) {
        return Ok(None);
    }
    let kinds =
        KindSet::of(&[Kind::Aes256GcmSeal, Kind::HkdfExpandSha512, Kind::HkdfSha256, Kind::HmacSha256]);
    let path = folder.join("profile.json");
    calibrate(&engines, &Plan::quick(kinds), &mut |_| {}).save(&path)?;
    Ok(Some(path))
}

/// What `--stats` says of one run.
#[derive(Debug, Default)]
struct Sealed {
    seconds: f64,
    done: Done,
}

impl Sealed {
    /// The device's part of the chunks.
    fn device_share(&self) -> f64 {
        let chunks = |of: &dyn Fn(&str) -> bool| -> u64 {
            let counted = self.done.iter().filter(|((engine, _), _)| of(engine));
            counted.map(|(_, did)| did.requests).sum()
        };
        chunks(&is_device) as f64 / chunks(&|_| true).max(1) as f64
    }

    /// `sealed 2 MiB in 0.004 s, 512 MB/s`, `aes-256-gcm-seal on emulated: 32 requests, 2 MiB`.
    fn take(&mut self, line: &str) {
        let seconds = |rest: &str| rest.split_once(" in ")?.1.split_once(" s,")?.0.parse().ok();
        if let Some(seconds) = line.strip_prefix("sealed ").and_then(seconds) {
            self.seconds = seconds;
        }
        let cell = |line: &str| {
            let (kind, rest) = line.split_once(" on ")?;
            let (engine, rest) = rest.split_once(": ")?;
            let requests = rest.split_once(" request")?.0.parse().ok()?;
            Some(((engine.to_owned(), kind.to_owned()), Did { requests, ..Did::default() }))
        };
        self.done.extend(cell(line));
    }
}

fn seal(command: &Command, bytes: usize) -> Result<Sealed> {
    let (mut sealed, mut said) = (Sealed::default(), String::new());
    let within = PATIENCE + Duration::from_secs(bytes as u64 / BYTES_PER_S);
    let status = Tended::to_end(command, within, |line| {
        sealed.take(&line.text);
        said = line.text;
    })?;
    if !status.success() || sealed.done.is_empty() {
        bail!("wattlock seal: {status}: {said}");
    }
    // It states milliseconds.
    sealed.seconds = sealed.seconds.max(0.0005);
    Ok(sealed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattlock_emul::gpu::GpuModel;

    use crate::point::tests::{choice, point};

    #[test]
    fn what_seal_says_of_itself_is_read() {
        let mut sealed = Sealed::default();
        for line in [
            "sealed 256 MiB in 0.125 s, 2.15 GB/s",
            "aes-256-gcm-seal on instruction: 1 request, 64 KiB",
            "aes-256-gcm-seal on emulated: 3 requests, 192 KiB",
            "costs from: a table",
            "peak resident memory 12 MiB",
        ] {
            sealed.take(line);
        }
        assert_eq!((sealed.seconds, sealed.device_share()), (0.125, 0.75));
        let words = ["emulated aes-256-gcm-seal 3", "instruction aes-256-gcm-seal 1"];
        assert_eq!(engines(&[sealed.done]), words);
        assert_eq!(Sealed::default().device_share(), 0.0);
    }

    #[test]
    fn a_gpus_streams_and_clock_are_changed_and_nothing_else_is() {
        let of = |name: &str, word: &str| {
            changed(name, 3, &Given::read("file", KEYS, &[word.to_owned()]).unwrap())
        };
        let published = Model::preset("k20m").unwrap();
        let before = published.gpu.clone().unwrap();
        let own = of("k20m", "clock=").unwrap().unwrap();
        let with_streams = GpuModel { streams: 3, ..before.clone() };
        assert_eq!(own, Model { gpu: Some(with_streams), ..published.clone() });
        for step in [0, before.steps.len() - 1] {
            let clock = before.steps[step];
            let one = of("k20m", &format!("clock={}", clock.core_mhz)).unwrap().unwrap();
            let gpu = one.gpu.clone().unwrap();
            assert_eq!((&*gpu.steps, gpu.reference, gpu.streams), (&[clock][..], 0, 3));
            assert_eq!(gpu.dynamic_at(0), before.dynamic_at(step));
            // It is as a program reads it.
            let path = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(&path, one.to_string()).unwrap();
            let computes = std::sync::Arc::new(wattlock_cpu::instruction::Instruction::new());
            let card = wattlock_emul::card(path.path().to_str().unwrap(), computes).unwrap();
            assert!(card.description().detail.contains("3 streams"), "{}", card.description().detail);
        }
        let error = of("k20m", "clock=100").unwrap_err().to_string();
        let known: Vec<String> = before.steps.iter().map(|step| step.core_mhz.to_string()).collect();
        assert_eq!(error, format!("clock=100: expected {}", known.join(", ")));
        assert_eq!(of("dh8970", "clock=").unwrap(), None);
        assert_eq!(of("dh8970", "clock=705").unwrap_err().to_string(), "clock=705: dh8970 has no clocks");
    }

    #[test]
    fn a_real_gpu_keeps_its_clocks() {
        let choice = choice("adaptive");
        let mut given = Given::read("file", KEYS, &["clock=705".to_owned()]).unwrap();
        let error = run(&mut given, &point(&choice)).unwrap_err();
        assert!(error.downcast_ref::<crate::point::answer::Cannot>().is_some(), "{error}");
    }

    #[test]
    fn a_share_is_eeps() {
        let of = |policy: &str, words: &[&str]| {
            let choice = choice(policy);
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let mut given = Given::read("file", KEYS, &words).unwrap();
            run(&mut given, &point(&choice)).unwrap_err().to_string()
        };
        assert!(of("adaptive", &["share=500"]).contains("--policy eep"));
        assert!(of("eep", &["share=1000"]).contains("expected a number from 1 to 999"));
        assert!(of("eep", &["streams=0"]).contains("streams=0: expected"));
        assert!(of("software", &["bytes=1T"]).contains("are needed"));
    }
}
