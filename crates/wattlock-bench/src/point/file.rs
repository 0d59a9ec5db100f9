//! `wattlock seal` of a random file in memory to nowhere, once a round. Seconds are those that the program states for its
//! work, without its start; processor time and joules are of the whole process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use wattlock::Profile;
use wattlock::calibrate::{Plan, calibrate};
use wattlock_core::{Kind, KindSet};
use wattlock_shell::setup::{self, Choice};

use super::answer::{Figures, Measured, Per};
use super::given::{Given, usage};
use super::volume::{handed_on, in_memory};
use super::{Point, is_device, refuse_idle_device};
use crate::files::{new_key, write_random};
use crate::tally::{Did, Done, engines};
use crate::tended::Tended;

pub const KEYS: &[(&str, &str)] = &[("bytes", "268435456"), ("streams", "4"), ("share", "")];

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
    let folder = in_memory(bytes as u64 + BESIDE)?;
    if let Some(model) = &choice.emulate {
        choice.emulate = with_streams(model, streams, folder.path())?.or(choice.emulate);
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

    let mut watch = point.watch()?;
    watch.per(Per::Byte);
    let (mut figures, mut all) = (Figures::default(), Done::new());
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
        for (place, did) in sealed.done {
            all.entry(place).or_default().add(&did);
        }
    }
    refuse_idle_device(point.choice, &all, "the model does nothing of this")?;
    let (joules, busy) = (watch.joules(), watch.busy());
    Ok(Measured { figures, engines: engines(&Done::new(), &all), device, joules, busy })
}

/// A file with the model of that name and another number of streams; `None` if it has that many, or is no GPU's.
fn with_streams(model: &str, streams: usize, folder: &Path) -> Result<Option<String>> {
    let named = |text: &String| text.lines().any(|line| line.trim() == format!("name {model}"));
    let built_in = setup::emulation().and_then(|emulation| (emulation.models)().into_iter().find(named));
    let text = match built_in {
        Some(text) => text,
        None => std::fs::read_to_string(model).with_context(|| model.to_owned())?,
    };
    let Some(changed) = streams_changed(&text, streams) else { return Ok(None) };
    let path = folder.join("model");
    std::fs::write(&path, changed)?;
    Ok(Some(path.display().to_string()))
}

/// The line of a GPU is `gpu N setup-ns N copy-bytes-per-s N streams N memory-bytes`.
fn streams_changed(text: &str, streams: usize) -> Option<String> {
    let mut changed = false;
    let line = |line: &str| {
        let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let at = words.iter().position(|word| word == "streams").filter(|_| words[0] == "gpu");
        if let Some(before) = at.and_then(|at| at.checked_sub(1)) {
            changed |= words[before] != streams.to_string();
            words[before] = streams.to_string();
        }
        words.join(" ") + "\n"
    };
    let text: String = text.lines().map(line).collect();
    changed.then_some(text)
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
        assert_eq!(engines(&Done::new(), &sealed.done), words);
        assert_eq!(Sealed::default().device_share(), 0.0);
    }

    #[test]
    fn a_gpus_streams_are_changed_and_nothing_else_is() {
        let gpu =
            "name x\ngpu 8000 setup-ns 5 copy-bytes-per-s 4 streams 9 memory-bytes\npool streams 1 servers\n";
        let changed = streams_changed(gpu, 16).unwrap();
        assert_eq!(changed, gpu.replace("4 streams", "16 streams"));
        assert_eq!(streams_changed(gpu, 4), None);
        assert_eq!(streams_changed("name card\npool streams 8 servers\n", 16), None);
        for model in wattlock_emul::models() {
            let changed = streams_changed(&model, 3);
            assert_eq!(changed.is_some(), model.contains("\ngpu "), "{model}");
            if let Some(changed) = changed {
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().join("model");
                std::fs::write(&path, changed).unwrap();
                let computes = std::sync::Arc::new(wattlock_cpu::instruction::Instruction::new());
                let card = wattlock_emul::card(path.to_str().unwrap(), computes).unwrap();
                assert!(card.description().detail.contains("3 streams"), "{}", card.description().detail);
            }
        }
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
        assert!(of("software", &["bytes=1T"]).contains("room"));
    }
}
