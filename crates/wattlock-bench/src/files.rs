//! Sealing and opening one large file, and the same content as a stream through a pipe, `cp` and `age` beside them:
//! whole processes, in turn, timed from outside by the clock on the wall, since that is what several threads are for,
//! and by processor time, since that is what is paid. A pipe is as fast as its writer, so its rows are by processor
//! time.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Instant;

use age::secrecy::ExposeSecret;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use wattlock_core::{Algorithm, Data, Engine, Key, Kind, Request};
use wattlock_cpu::instruction::Instruction;
use wattlock_shell::INTERRUPTED;
use wattlock_shell::joules::{Gauge, children_cpu_s};
use wattlock_shell::text;

use super::machine_line;
use super::pair::{self, Better, Gain};
use super::record::{By, Record, Row, version_of};

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

/// The recipient of the identity in a file of [`new_key`]'s.
pub fn recipient_of(path: &Path) -> Result<String> {
    let identity = std::fs::read_to_string(path)?.trim().parse::<age::x25519::Identity>();
    Ok(identity.map_err(anyhow::Error::msg)?.to_public().to_string())
}

/// One thing that is timed.
struct Contestant {
    /// For people, and for programs.
    name: &'static str,
    row: &'static str,
    /// Which row it is held against.
    peer: Option<&'static str>,
    command: Vec<String>,
    /// What comes through a pipe on standard input.
    piped: Option<String>,
    seconds: Vec<f64>,
    /// Of processor time.
    cpu: Vec<f64>,
    peak: Option<u64>,
    /// Megabytes by each joule of the last round, where a counter measures.
    per_joule: Option<f64>,
}

/// Runs the benchmark.
pub fn run(settings: &Settings, mut record: Record) -> Result<()> {
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
    let own = wattlock_shell::program::wattlock()?.display().to_string();
    let (sealed, aged, streamed) = (at("sealed"), at("aged"), at("streamed"));
    run_once(&[&own, "seal", "-q", "-r", &recipient, "-o", &sealed, &plain])?;
    run_once(&[&own, "seal", "-q", "--format", "age", "-r", &recipient, "-o", &aged, &plain])?;
    let status = Command::new(&own)
        .args(["stream", "seal", "-r", &recipient])
        .stdin(File::open(&plain)?)
        .stdout(File::create(&streamed)?)
        .status()?;
    anyhow::ensure!(status.success(), "stream seal: {status}");
    let out = at("out");
    let mut all = Vec::new();
    let mut add = |(row, name), peer: Option<&'static str>, piped: Option<&str>, command: &[&str]| {
        let command = command.iter().map(|part| (*part).to_owned()).collect();
        let (seconds, cpu, peak, per_joule) = (Vec::new(), Vec::new(), None, None);
        let piped = piped.map(str::to_owned);
        all.push(Contestant { name, row, peer, command, piped, seconds, cpu, peak, per_joule });
    };
    let (seal, open) =
        ([&*own, "seal", "-q", "--stats", "-r", &recipient], [&*own, "open", "-q", "--stats", "-i", &key]);
    add(("cp", "cp"), None, None, &["cp", &plain, &out]);
    add(
        ("seal-file", "seal to a file"),
        Some("cp"),
        None,
        &[&seal[..], &["-f", "-o", &out, &plain]].concat(),
    );
    add(
        ("open-file", "open to a file"),
        Some("cp"),
        None,
        &[&open[..], &["-f", "-o", &out, &sealed]].concat(),
    );
    let null = "/dev/null";
    add(("seal", "seal to /dev/null"), Some("age"), None, &[&seal[..], &["-o", null, &plain]].concat());
    add(("open", "open to /dev/null"), Some("age-d"), None, &[&open[..], &["-o", null, &sealed]].concat());
    let own_age = &[&seal[..], &["--format", "age", "-o", null, &plain]].concat();
    add(("seal-age", "seal --format age to /dev/null"), Some("age"), None, own_age);
    add(
        ("open-age", "open age to /dev/null"),
        Some("age-d"),
        None,
        &[&open[..], &["-o", null, &aged]].concat(),
    );
    let stream = [&*own, "stream"];
    let (seal, open) = (["seal", "-r", &recipient], ["open", "-i", &key]);
    let name = ("stream-seal", "stream seal, pipe to /dev/null");
    add(name, Some("age-pipe"), Some(&plain), &[&stream[..], &seal].concat());
    let name = ("stream-open", "stream open, pipe to /dev/null");
    add(name, Some("age-d-pipe"), Some(&streamed), &[&stream[..], &open].concat());
    let age = version_of("age", "--version");
    if let Some(version) = &age {
        record.peer("age", version);
        add(("age", "age to /dev/null"), None, None, &["age", "-r", &recipient, "-o", null, &plain]);
        add(("age-d", "age -d to /dev/null"), None, None, &["age", "-d", "-i", &key, "-o", null, &aged]);
        add(("age-pipe", "age, pipe to /dev/null"), None, Some(&plain), &["age", "-r", &recipient]);
        add(("age-d-pipe", "age -d, pipe to /dev/null"), None, Some(&aged), &["age", "-d", "-i", &key]);
    }
    let cp = version_of("cp", "--version");
    record.peer("cp", cp.as_deref().unwrap_or("unknown"));
    let mut gauge = Gauge::counting();
    for round in 0..=settings.rounds {
        let warms_up = if round == 0 { ", to warm up" } else { "" };
        record.remark(&format!("round {round} of {}{warms_up}", settings.rounds));
        for contestant in &mut all {
            let _ = std::fs::remove_file(&out);
            let (timed, spent) = match &mut gauge {
                Some(gauge) => gauge.around(|| contestant.time()),
                None => (contestant.time(), None),
            };
            let Timed { seconds, cpu, peak } = timed?;
            contestant.per_joule = spent.map(|joules| bytes as f64 / 1e6 / joules.joules());
            if round > 0 {
                contestant.seconds.push(seconds); // The first round brings the memory in.
                contestant.cpu.push(cpu);
            }
            contestant.peak = contestant.peak.max(peak);
        }
    }
    let version = |row: &str| match row {
        "cp" => format!("cp {}", cp.as_deref().unwrap_or_default()),
        _ => format!("age {}", age.as_deref().unwrap_or_default()),
    };
    let mut cells = Vec::new();
    for contestant in &all {
        let compared = contestant.against(&all);
        record.add(contestant.row(bytes, compared, &version));
        cells.push(contestant.cells(bytes, compared, gauge.is_some()));
    }
    if record.shows() {
        let (size, dir) = (text::bytes(bytes), settings.dir.display());
        say!("{size} in {dir}; {} rounds in turn; {}", settings.rounds, machine_line());
        if let Some(gauge) = &gauge {
            say!("{} Last round.", gauge.line());
        }
        let header =
            ["whole process", "time", "rate", "peak memory", "peer", "its time", "gain", "by CPU", "a joule"];
        let shown = header.len() - usize::from(gauge.is_none());
        put!("{}", text::table(&header[..shown], &cells));
        say!("time and its time are of the round with the median gain; by CPU: the same of processor time");
        say!("{}", pair::LEGEND);
    }
    record.finish()
}

/// What one run took.
struct Timed {
    seconds: f64,
    /// Of processor time, of all its threads.
    cpu: f64,
    /// The peak memory that ours report.
    peak: Option<u64>,
}

impl Contestant {
    /// Runs it once.
    fn time(&self) -> Result<Timed> {
        let (start, before) = (Instant::now(), children_cpu_s()?);
        let mut child = Command::new(&self.command[0])
            .args(&self.command[1..])
            .stdin(if self.piped.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| self.command[0].clone())?;
        if let (Some(path), Some(mut pipe)) = (&self.piped, child.stdin.take()) {
            // This process's time, so not part of what is measured.
            std::io::copy(&mut File::open(path)?, &mut pipe)?;
        }
        let output = child.wait_with_output()?;
        let (seconds, cpu) = (start.elapsed().as_secs_f64(), children_cpu_s()? - before);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() {
            bail!("{}: {}: {}", self.name, output.status, said.trim());
        }
        Ok(Timed { seconds, cpu, peak: said.lines().find_map(parse_peak) })
    }

    /// Its times and its processor times against its peer's, if that ran.
    fn against(&self, all: &[Contestant]) -> Option<(&'static str, Gain, Option<Gain>)> {
        let peer = all.iter().find(|other| Some(other.row) == self.peer)?;
        let gain = Gain::of(&self.seconds, &peer.seconds, Better::Less)?;
        Some((peer.row, gain, Gain::of(&self.cpu, &peer.cpu, Better::Less)))
    }

    fn row(
        &self,
        bytes: u64,
        compared: Option<(&'static str, Gain, Option<Gain>)>,
        version: &dyn Fn(&str) -> String,
    ) -> Row {
        let row = match compared {
            Some((peer, time, Some(cpu))) if self.piped.is_some() => {
                Row::compared("files", self.row, "s", By::Cpu, cpu)
                    .against(version(peer))
                    .detail("time", Some(time))
            }
            Some((peer, gain, cpu)) => Row::compared("files", self.row, "s", By::Time, gain)
                .against(version(peer))
                .detail("cpu", cpu),
            None => Row::alone(
                "files",
                self.row,
                "s",
                By::Time,
                pair::median(self.seconds.clone()),
                self.seconds.len(),
            ),
        };
        row.param("bytes", bytes)
            .detail("cpu_s", pair::median(self.cpu.clone()))
            .detail("peak_bytes", self.peak)
            .detail("mb_per_joule", self.per_joule)
    }

    fn cells(
        &self,
        bytes: u64,
        compared: Option<(&'static str, Gain, Option<Gain>)>,
        joules: bool,
    ) -> Vec<String> {
        let seconds = compared.map_or_else(|| pair::median(self.seconds.clone()), |(_, gain, _)| gain.ours);
        let mut cells = vec![
            self.name.to_owned(),
            format!("{seconds:.3} s"),
            text::rate(bytes as f64 / seconds),
            self.peak.map_or_else(|| "-".into(), text::bytes),
        ];
        let peer = compared.map(|(peer, gain, _)| {
            (peer.replace("age-d", "age -d").replace("-pipe", ""), format!("{:.3} s", gain.theirs))
        });
        let (peer, theirs) = peer.unwrap_or_else(|| ("-".to_owned(), "-".to_owned()));
        cells.extend([peer, theirs]);
        cells.extend([pair::cell(compared.map(|of| of.1)), pair::cell(compared.and_then(|of| of.2))]);
        if joules {
            cells.push(self.per_joule.map_or_else(|| "-".into(), |work| format!("{work:.1} MB/J")));
        }
        cells
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

fn run_once(command: &[&str]) -> Result<()> {
    let status =
        Command::new(command[0]).args(&command[1..]).status().with_context(|| command[0].to_owned())?;
    anyhow::ensure!(status.success(), "{}: {status}", command.join(" "));
    Ok(())
}

/// Bytes that no storage can shrink: AES-CTR under a random key.
pub fn write_random(path: &Path, size: usize) -> Result<()> {
    let mut seed = [0; 48];
    File::open("/dev/urandom")?.read_exact(&mut seed)?;
    let (key, nonce) = seed.split_at(32);
    let key = Key::symmetric(Algorithm::Aes256Ctr, key)?;
    let engine = Instruction::new();
    let mut file = File::create(path)?;
    let (mut nonce, mut left) = (nonce.to_vec(), size);
    while left > 0 {
        ensure!(!INTERRUPTED.load(Ordering::SeqCst), wattlock_door::Error::Interrupted);
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
