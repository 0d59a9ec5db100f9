//! Compression: the engines against zlib at the same level, whole `wattlock gzip` processes against `pigz`, and an nginx's
//! compressed responses, by processor time, on generated content and on files given.

mod nginx;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use libz_sys as _;
use wattlock_core::{Data, Engine, Key, Kind, Options, Request, samples};
use wattlock_cpu::instruction::Instruction;
use wattlock_shell::joules::children_cpu_s;
use wattlock_shell::nginx::place::Places;
use wattlock_shell::setup::Choice;
use wattlock_shell::text;

use crate::machine_line;
use crate::pair::{self, Better, Gain};
use crate::record::{By, Record, Row, version_of};

/// What to compress.
#[derive(Debug, Args)]
pub struct Settings {
    /// Also compress these files, whole
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Sizes of generated content
    #[arg(long, value_delimiter = ',', default_value = "1M,150K,16K,5K,1K", value_parser = text::parse_bytes)]
    size: Vec<usize>,
    /// Levels, each against zlib's of the same number
    #[arg(long, value_delimiter = ',', default_value = "1,4,6,9", value_parser = clap::value_parser!(u8).range(1..=9))]
    level: Vec<u8>,
    /// Rounds of everything, in turn
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// What to measure
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Part::Engines, Part::Files, Part::Nginx])]
    only: Vec<Part>,
    /// Size of the file for `wattlock gzip` and `pigz`
    #[arg(long, default_value = "64M", value_parser = text::parse_bytes)]
    file_size: usize,
    /// Folder for that file
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Seconds of an nginx's round
    #[arg(long, default_value_t = 1.0, value_parser = text::parse_seconds)]
    seconds: f64,
    #[command(flatten)]
    places: Places,
}

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The engines, against zlib
    Engines,
    /// `wattlock gzip`, against pigz
    Files,
    /// Compressed responses of the installed nginx, against its own gzip
    Nginx,
}

/// Processor time of a round, at least.
const ROUND_NS: f64 = 4e6;

/// Runs the benchmark.
pub fn run(settings: &Settings, choice: &Choice, mut record: Record) -> Result<()> {
    if settings.only.contains(&Part::Engines) {
        engines(settings, &mut record)?;
    }
    if settings.only.contains(&Part::Files) {
        files(settings, &mut record)?;
    }
    if settings.only.contains(&Part::Nginx) {
        nginx::run(settings, choice, &mut record)?;
    }
    record.finish()
}

/// The engines against zlib.
fn engines(settings: &Settings, record: &mut Record) -> Result<()> {
    record.peer("zlib", zlib_version());
    let mut contents = Vec::new();
    for size in &settings.size {
        contents.push(("html".to_owned(), samples::html(1, *size)));
        contents.push(("json".to_owned(), samples::json(1, *size)));
        contents.push(("text".to_owned(), samples::text(1, *size)));
        contents.push(("noise".to_owned(), samples::noise(1, *size)));
    }
    for path in &settings.files {
        let content = std::fs::read(path).with_context(|| path.display().to_string())?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        contents.push((name, content));
    }
    let engine = Instruction::new();
    let mut cells = Vec::new();
    for (name, content) in &contents {
        for level in &settings.level {
            bare(&engine, (name, content), (Kind::Deflate, *level, *level), settings, record, &mut cells)?;
        }
        bare(&engine, (name, content), (Kind::Zstd, 3, 6), settings, record, &mut cells)?;
    }
    if record.shows() {
        say!("{}; {} rounds in turn, by processor time", machine_line(), settings.rounds);
        say!("instruction: {}", engine.description().detail);
        let header = ["content", "size", "kind", "ratio", "rate", "zlib's ratio", "its rate", "gain"];
        put!("{}", text::table(&header, &cells));
        say!("zstd 3 is held against zlib 6: about the same length");
        say!("{}", pair::LEGEND);
    }
    Ok(())
}

/// One content at one level, ours and zlib's.
fn bare(
    engine: &Instruction,
    (name, content): (&str, &[u8]),
    (kind, level, theirs): (Kind, u8, u8),
    settings: &Settings,
    record: &mut Record,
    cells: &mut Vec<Vec<String>>,
) -> Result<()> {
    let room = kind.output_bound(content.len()).context("no bound")?;
    let (mut ours_to, mut zlib_to) = (vec![0; room], vec![0; room + content.len() / 8]);
    let (mut ours_len, mut zlib_len) = (Ok(0), 0);
    let mut ours = || {
        let data = Data::Apart { from: content, to: &mut ours_to };
        let options = Options::compress(level, true);
        ours_len = engine.execute(&mut Request { options, ..Request::new(kind, Key::none(), data) });
    };
    // As nginx does: a state for each response.
    let mut zlib = || {
        let mut state = flate2::Compress::new(flate2::Compression::new(theirs.into()), false);
        let _ = state.compress(content, &mut zlib_to, flate2::FlushCompress::Finish);
        zlib_len = state.total_out() as usize;
    };
    let calls = pair::calls_for(ROUND_NS, &mut zlib);
    let times = pair::in_turn(&mut [&mut ours, &mut zlib], calls, settings.rounds);
    let (ours_len, gain) = (ours_len?, Gain::of(&times[0], &times[1], Better::Less));
    let gain = gain.context("no time was measured")?;
    let what = format!("{} {level}", kind.name());
    let size = content.len() as f64;
    record.add(
        Row::compared("compress", &what, "ns", By::Cpu, gain)
            .against(format!("zlib {} level {theirs}", zlib_version()))
            .param("content", name)
            .param("bytes", content.len())
            .detail("length", ours_len)
            .detail("their_length", zlib_len),
    );
    cells.push(vec![
        name.to_owned(),
        text::bytes(content.len() as u64),
        what,
        format!("{:.3}", size / ours_len as f64),
        text::rate(size * 1e9 / gain.ours),
        format!("{:.3}", size / zlib_len as f64),
        text::rate(size * 1e9 / gain.theirs),
        gain.to_string(),
    ]);
    Ok(())
}

fn zlib_version() -> &'static str {
    "1.3.2, built in"
}

/// Whole processes.
fn files(settings: &Settings, record: &mut Record) -> Result<()> {
    let Some(version) = version_of("pigz", "--version") else {
        if record.shows() {
            say!("pigz is not installed: `wattlock gzip` has no peer here");
        }
        return Ok(());
    };
    record.peer("pigz", &version);
    let folder = tempfile::tempdir_in(&settings.dir).with_context(|| settings.dir.display().to_string())?;
    let plain = folder.path().join("plain");
    let mut content = Vec::with_capacity(settings.file_size + (4 << 20));
    let mut seed = 0;
    while content.len() < settings.file_size {
        seed += 1;
        let make = [samples::html, samples::json, samples::text][seed as usize % 3];
        content.extend_from_slice(&make(seed, 1 << 20));
    }
    content.truncate(settings.file_size);
    std::fs::write(&plain, &content)?;
    let own = wattlock_shell::program::wattlock()?;
    let mut cells = Vec::new();
    for level in &settings.level {
        let option = format!("-{level}");
        let ours = |command: &mut Command| timed(command.arg("gzip").arg(&option).arg("-c").arg(&plain));
        let theirs = |command: &mut Command| timed(command.arg(&option).arg("-c").arg(&plain));
        let (mut own_cpu, mut peer_cpu, mut lengths) = (Vec::new(), Vec::new(), (0, 0));
        for round in 0..=settings.rounds.min(9) {
            let (mine, length) = ours(&mut Command::new(&own))?;
            let (peer, its) = theirs(&mut Command::new("pigz"))?;
            lengths = (length, its);
            if round > 0 {
                own_cpu.push(mine);
                peer_cpu.push(peer);
            }
        }
        let gain = Gain::of(&own_cpu, &peer_cpu, Better::Less).context("no time was measured")?;
        record.add(
            Row::compared("compress", &format!("gzip {option}"), "s", By::Cpu, gain)
                .against(format!("pigz {version} {option}"))
                .param("bytes", content.len())
                .detail("length", lengths.0)
                .detail("their_length", lengths.1),
        );
        cells.push(vec![
            format!("wattlock gzip {option}"),
            format!("{:.3} s", gain.ours),
            format!("{:.3}", content.len() as f64 / lengths.0 as f64),
            format!("{:.3} s", gain.theirs),
            format!("{:.3}", content.len() as f64 / lengths.1 as f64),
            gain.to_string(),
        ]);
    }
    if record.shows() {
        let size = text::bytes(content.len() as u64);
        say!("{size} of HTML, JSON and text in turn; whole processes, by the processor time of all threads");
        let header = ["command", "time", "ratio", "pigz", "its ratio", "gain"];
        put!("{}", text::table(&header, &cells));
    }
    Ok(())
}

/// Processor seconds of a command, and the length of what it wrote.
fn timed(command: &mut Command) -> Result<(f64, usize)> {
    let before = children_cpu_s()?;
    let output = command.stdin(Stdio::null()).stderr(Stdio::piped()).output()?;
    let cpu = children_cpu_s()? - before;
    if !output.status.success() {
        bail!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok((cpu, output.stdout.len()))
}
