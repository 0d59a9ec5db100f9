//! Sealing and opening one large file, `cp` and `age` beside them: whole processes, in turn, timed from outside.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use age::secrecy::ExposeSecret;
use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::json;
use wattlock_core::{Algorithm, Data, Engine, Key, Kind, Request};
use wattlock_cpu::instruction::Instruction;

use super::{machine_line, pair};
use crate::energy::{Gauge, Spent};
use crate::text;

/// What to seal.
#[derive(Debug, Args)]
pub struct Settings {
    /// Folder for the files; a tmpfs shows the cost of the work and not of a disk. Needs about three times the size
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Size of the file, if no --input is given
    #[arg(long, default_value = "2G", value_parser = text::parse_bytes)]
    size: usize,
    /// Use this file instead of one of random content
    #[arg(long)]
    input: Option<PathBuf>,
    /// Rounds of everything, in turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=50))]
    rounds: u32,
}

/// Writes a fresh identity to `path` and returns its recipient.
pub fn new_key(path: &Path) -> Result<String> {
    let identity = age::x25519::Identity::generate();
    std::fs::write(path, format!("{}\n", identity.to_string().expose_secret()))?;
    Ok(identity.to_public().to_string())
}

/// One thing that is timed: a name, and the command line.
struct Contestant {
    name: &'static str,
    command: Vec<String>,
    seconds: Vec<f64>,
    peak: Option<u64>,
    /// Joules of the last round.
    spent: Spent,
}

/// Runs the benchmark.
pub fn run(settings: &Settings, json: bool) -> Result<()> {
    let folder = tempfile::tempdir_in(&settings.dir).with_context(|| settings.dir.display().to_string())?;
    let at = |name: &str| folder.path().join(name).display().to_string();
    let key = at("key.txt");
    let recipient = new_key(Path::new(&key))?;
    let plain = match &settings.input {
        Some(path) => path.display().to_string(),
        None => {
            write_random(Path::new(&at("plain")), settings.size)?;
            at("plain")
        }
    };
    let bytes = std::fs::metadata(&plain)?.len();
    let own = std::env::current_exe()?.display().to_string();
    let (sealed, aged) = (at("sealed"), at("aged"));
    run_once(&[&own, "seal", "-q", "-r", &recipient, "-o", &sealed, &plain])?;
    run_once(&[&own, "seal", "-q", "--format", "age", "-r", &recipient, "-o", &aged, &plain])?;
    let out = at("out");
    let mut all = Vec::new();
    let mut add = |name, command: &[&str]| {
        let command = command.iter().map(|part| (*part).to_owned()).collect();
        all.push(Contestant { name, command, seconds: Vec::new(), peak: None, spent: Spent::Unknown });
    };
    add("cp", &["cp", &plain, &out]);
    add("seal to a file", &[&own, "seal", "-q", "-f", "--stats", "-r", &recipient, "-o", &out, &plain]);
    add("open to a file", &[&own, "open", "-q", "-f", "--stats", "-i", &key, "-o", &out, &sealed]);
    add("seal to /dev/null", &[&own, "seal", "-q", "--stats", "-r", &recipient, "-o", "/dev/null", &plain]);
    add("open to /dev/null", &[&own, "open", "-q", "--stats", "-i", &key, "-o", "/dev/null", &sealed]);
    let format = ["--format", "age"];
    add(
        "seal --format age to /dev/null",
        &[&own, "seal", "-q", "--stats", format[0], format[1], "-r", &recipient, "-o", "/dev/null", &plain],
    );
    add("open age to /dev/null", &[&own, "open", "-q", "--stats", "-i", &key, "-o", "/dev/null", &aged]);
    if Command::new("age").arg("--version").output().is_ok() {
        add("age to /dev/null", &["age", "-r", &recipient, "-o", "/dev/null", &plain]);
        add("age -d to /dev/null", &["age", "-d", "-i", &key, "-o", "/dev/null", &aged]);
    }
    let mut gauge = Gauge::new();
    for round in 0..=settings.rounds {
        for contestant in &mut all {
            let _ = std::fs::remove_file(&out);
            let (timed, spent) = gauge.around(|| contestant.time());
            let (seconds, peak) = timed?;
            contestant.spent = spent;
            if round > 0 {
                contestant.seconds.push(seconds); // The first round brings the memory in.
            }
            contestant.peak = contestant.peak.max(peak);
        }
    }
    report(&all, bytes, settings, &gauge.line(), json)
}

impl Contestant {
    /// Runs it once: seconds, and the peak memory that ours report.
    fn time(&self) -> Result<(f64, Option<u64>)> {
        let start = Instant::now();
        let output = Command::new(&self.command[0])
            .args(&self.command[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .output()
            .with_context(|| self.command[0].clone())?;
        let seconds = start.elapsed().as_secs_f64();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() {
            bail!("{}: {}: {}", self.name, output.status, said.trim());
        }
        Ok((seconds, said.lines().find_map(parse_peak)))
    }
}

fn parse_peak(line: &str) -> Option<u64> {
    let mut words = line.strip_prefix("peak resident memory ")?.split(' ');
    let (value, unit): (f64, &str) = (words.next()?.parse().ok()?, words.next()?);
    let shift = match unit {
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => 0,
    };
    Some((value * f64::from(1_u32 << shift)) as u64)
}

fn report(all: &[Contestant], bytes: u64, settings: &Settings, joules: &str, json: bool) -> Result<()> {
    let find = |name: &str| all.iter().find(|contestant| contestant.name == name);
    let peer = |name: &str| match name {
        n if n.ends_with("to a file") => find("cp"),
        n if n.starts_with("seal") => find("age to /dev/null"),
        n if n.starts_with("open") => find("age -d to /dev/null"),
        _ => None,
    };
    let mut rows = Vec::new();
    for contestant in all {
        let seconds = pair::median(contestant.seconds.clone());
        let against = peer(contestant.name).map(|peer| {
            let faster = pair::ratio(&peer.seconds, &contestant.seconds);
            if peer.name == "cp" {
                (format!("{:.2} x its time", 1.0 / faster), peer.name, 1.0 / faster)
            } else {
                (format!("{faster:.2} x faster"), peer.name, faster)
            }
        });
        if json {
            let row = json!({"bench": "files", "what": contestant.name, "bytes": bytes, "seconds": seconds,
                "runs": contestant.seconds, "peak_bytes": contestant.peak, "peer": against.as_ref().map(|a| a.1),
                "ratio": against.as_ref().map(|a| a.2), "energy": contestant.spent.json(bytes as f64 / 1e6), "energy_unit": "MB/J",
                "machine": machine_line()});
            say!("{row}");
        }
        rows.push(vec![
            contestant.name.to_owned(),
            format!("{seconds:.3} s"),
            text::rate(bytes as f64 / seconds),
            contestant.peak.map_or_else(|| "-".into(), text::bytes),
            against.map_or_else(|| "-".into(), |(ratio, peer, _)| format!("{ratio} ({peer})")),
            contestant.spent.per_joule(bytes as f64 / 1e6, "MB/J"),
        ]);
    }
    if !json {
        say!(
            "{} in {}; {} rounds in turn, medians; {}",
            text::bytes(bytes),
            settings.dir.display(),
            settings.rounds,
            machine_line()
        );
        say!("{joules} Last round.");
        let header = ["whole process", "time", "rate", "peak memory", "ratio (peer)", "a joule"];
        put!("{}", text::table(&header, &rows));
    }
    Ok(())
}

fn run_once(command: &[&str]) -> Result<()> {
    let status =
        Command::new(command[0]).args(&command[1..]).status().with_context(|| command[0].to_owned())?;
    anyhow::ensure!(status.success(), "{}: {status}", command.join(" "));
    Ok(())
}

/// Bytes that no storage can shrink: AES-CTR under a random key.
fn write_random(path: &Path, size: usize) -> Result<()> {
    let mut seed = [0; 48];
    File::open("/dev/urandom")?.read_exact(&mut seed)?;
    let (key, nonce) = seed.split_at(32);
    let key = Key::symmetric(Algorithm::Aes256Ctr, key)?;
    let engine = Instruction::new();
    let mut file = File::create(path)?;
    let (mut nonce, mut left) = (nonce.to_vec(), size);
    while left > 0 {
        let mut block = vec![0; left.min(4 << 20)];
        engine.execute(&mut Request {
            nonce: &nonce,
            ..Request::new(Kind::Aes256Ctr, &key, Data::InPlace(&mut block))
        })?;
        nonce[0] = nonce[0].wrapping_add(1);
        file.write_all(&block)?;
        left -= block.len();
    }
    Ok(())
}
