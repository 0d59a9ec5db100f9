//! What a bench leaves for programs: one JSON object (schema 1) with the command, the commit, the machine, the peers'
//! versions and a row for each figure. `docs/measurements` keeps such files; pages are made from them.
//!
//! It measures nothing and judges nothing: [`pair`](super::pair) says what a ratio is worth.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Map, Value as Json};
use wattlock_cpu::detect::Cpu;
use wattlock_door::Document;
use wattlock_shell::date::civil;
use wattlock_shell::program::Program;

use super::pair::Gain;
use super::tended::{Line, Stream, Tended};

/// The form of the files.
const SCHEMA: u32 = 1;
/// How long a program may take to say its version.
const PATIENCE: Duration = Duration::from_secs(10);

/// By which clock a row was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// Processor time.
    Cpu,
    /// Wall-clock time.
    Time,
}

/// One figure, beside a peer's or alone.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    bench: &'static str,
    row: String,
    params: Map<String, Json>,
    against: String,
    unit: &'static str,
    ours: f64,
    theirs: Option<f64>,
    ratio: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    by: By,
    rounds: usize,
    #[serde(skip_serializing_if = "str::is_empty")]
    note: &'static str,
    #[serde(skip_serializing_if = "Map::is_empty")]
    detail: Map<String, Json>,
}

impl Row {
    /// A row. `unit` is of both figures. A ratio that is less than its spread is left out; the spread stays.
    pub fn compared(bench: &'static str, row: &str, unit: &'static str, by: By, gain: Gain) -> Row {
        let Gain { ours, theirs, low, high, rounds, .. } = gain;
        Row {
            theirs: Some(theirs),
            ratio: gain.known(),
            low: Some(low),
            high: Some(high),
            ..Row::alone(bench, row, unit, by, ours, rounds)
        }
    }

    /// A row that has a peer if there is a gain over it, and else this figure.
    pub fn beside(
        bench: &'static str,
        row: &str,
        unit: &'static str,
        by: By,
        (gain, against): (Option<Gain>, impl Into<String>),
        (alone, rounds): (f64, usize),
    ) -> Row {
        match gain {
            Some(gain) => Row::compared(bench, row, unit, by, gain).against(against),
            None => Row::alone(bench, row, unit, by, alone, rounds),
        }
    }

    /// A row without a peer.
    pub fn alone(
        bench: &'static str,
        row: &str,
        unit: &'static str,
        by: By,
        ours: f64,
        rounds: usize,
    ) -> Row {
        let (against, params, detail) = (String::new(), Map::new(), Map::new());
        let (theirs, ratio, low, high) = (None, None, None, None);
        let (row, note) = (row.to_owned(), "");
        Row { bench, row, params, against, unit, ours, theirs, ratio, low, high, by, rounds, note, detail }
    }

    /// Takes the comparison out of a row whose sides did not do the same: what is left says why.
    pub fn without_comparison(mut self) -> Row {
        (self.theirs, self.ratio, self.low, self.high) = (None, None, None, None);
        self.detail.retain(|name, _| !name.starts_with("by_"));
        self
    }

    /// Names the peer.
    pub fn against(mut self, peer: impl Into<String>) -> Row {
        self.against = peer.into();
        self
    }

    /// What a reader of the figure must know more; empty: nothing.
    pub fn note(self, note: &'static str) -> Row {
        Row { note, ..self }
    }

    /// A further coordinate.
    pub fn param(mut self, name: &str, value: impl Into<Json>) -> Row {
        self.params.insert(name.to_owned(), value.into());
        self
    }

    /// Something that belongs to the row and is not its figure. An absent value is left out.
    pub fn detail(mut self, name: &str, value: impl Serialize) -> Row {
        match serde_json::to_value(value) {
            Ok(Json::Null) | Err(_) => {}
            Ok(value) => drop(self.detail.insert(name.to_owned(), value)),
        }
        self
    }
}

/// The machine's processor, as far as figures depend on it.
#[derive(Debug, Serialize)]
struct Processor {
    model: String,
    name: &'static str,
    class: &'static str,
    cores: usize,
}

#[derive(Debug, Serialize)]
struct Sheet<'a> {
    schema: u32,
    command: String,
    commit: &'static str,
    date: String,
    cpu: &'a Processor,
    kernel: String,
    peers: &'a BTreeMap<&'static str, String>,
    rows: &'a [Row],
}

/// The rows of a run and where they go.
pub struct Record {
    to: To,
    cpu: Processor,
    peers: BTreeMap<&'static str, String>,
    rows: Vec<Row>,
}

enum To {
    Nowhere,
    Stdout,
    File(PathBuf, Document),
}

impl Record {
    /// Begins one: `-` is standard output. A file that cannot be written is found out now and not after minutes; what
    /// it holds stays until [`Record::finish`].
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn begin(to: Option<&Path>) -> Result<Record> {
        let to = match to {
            None => To::Nowhere,
            Some(path) if path.as_os_str() == "-" => To::Stdout,
            Some(path) => {
                let place = Document::begin(path, true);
                To::File(path.to_owned(), place.with_context(|| path.display().to_string())?)
            }
        };
        Ok(Record { to, cpu: processor(), peers: BTreeMap::new(), rows: Vec::new() })
    }

    /// Whether tables for people go to standard output.
    pub fn shows(&self) -> bool {
        !matches!(self.to, To::Stdout)
    }

    /// Says on standard error what is under way, where tables go to standard output.
    pub fn remark(&self, what: &str) {
        if self.shows() {
            eprintln!("wattlock: {what}");
        }
    }

    /// A peer of this run and its version.
    pub fn peer(&mut self, name: &'static str, version: &str) {
        self.peers.insert(name, version.to_owned());
    }

    /// Adds a row.
    pub fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Writes what there is.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(self) -> Result<()> {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let sheet = Sheet {
            schema: SCHEMA,
            command: command(
                crate::Arguments::words().into_iter().map(|word| word.to_string_lossy().into_owned()),
            ),
            commit: env!("WATTLOCK_COMMIT"),
            date: date(),
            cpu: &self.cpu,
            kernel: kernel.trim().to_owned(),
            peers: &self.peers,
            rows: &self.rows,
        };
        let text = serde_json::to_string_pretty(&sheet)? + "\n";
        match self.to {
            To::Nowhere => {}
            To::Stdout => put!("{text}"),
            To::File(path, place) => {
                place.write(text.as_bytes()).with_context(|| path.display().to_string())?;
            }
        }
        Ok(())
    }
}

/// The command line as another user would type it: the program by its name, without where the record goes.
fn command(arguments: impl Iterator<Item = String>) -> String {
    let mut words = vec!["wattlock".to_owned()];
    let mut rest = arguments.skip(1);
    while let Some(word) = rest.next() {
        if word == "--json" {
            rest.next();
        } else if !word.starts_with("--json=") {
            words.push(word);
        }
    }
    words.join(" ")
}

/// Today in UTC: `2026-11-23`.
fn date() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let days = now.map_or(0, |since| since.as_secs() / 86_400);
    let (year, month, day) = civil(days);
    format!("{year:04}-{month:02}-{day:02}")
}

/// This machine's processor.
fn processor() -> Processor {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let mut fields = text.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(key, _)| key.trim() == name).map_or("", |(_, value)| value.trim())
    };
    let number = |name: &str| field(name).parse().unwrap_or(0);
    let vendor = field("vendor_id");
    let cpu = Cpu::detect();
    Processor {
        model: field("model name").to_owned(),
        name: microarchitecture(vendor, number("cpu family"), number("model"), number("stepping")),
        class: class(vendor, cpu.ifma512.is_some(), cpu.fma256.is_some()),
        cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
    }
}

/// Which kernels a processor gets, and whose AVX-512 it is: the two makers' differ by a factor.
fn class(vendor: &str, avx512: bool, avx2: bool) -> &'static str {
    match (avx512, avx2) {
        (true, _) if vendor == "GenuineIntel" => "avx512-intel",
        (true, _) => "avx512-amd",
        (false, true) => "avx2",
        (false, false) => "none",
    }
}

/// The name that the maker gives a family and its models (AMD's revision guides, Intel's list of signatures); empty
/// where it is not in this list.
fn microarchitecture(vendor: &str, family: u32, model: u32, stepping: u32) -> &'static str {
    match (vendor, family, model) {
        ("GenuineIntel", 6, 0x55) if (5..=7).contains(&stepping) => "Cascade Lake",
        ("GenuineIntel", 6, 0x55) if stepping > 7 => "Cooper Lake",
        ("AuthenticAMD", 23, 0x00..=0x2f) => "Zen",
        ("AuthenticAMD", 23, _) => "Zen 2",
        ("AuthenticAMD", 25, 0x10..=0x1f | 0x60..=0x7f | 0xa0..=0xaf) => "Zen 4",
        ("AuthenticAMD", 25, _) => "Zen 3",
        ("AuthenticAMD", 26, _) => "Zen 5",
        ("GenuineIntel", 6, 0x3c | 0x3f | 0x45 | 0x46) => "Haswell",
        ("GenuineIntel", 6, 0x3d | 0x47 | 0x4f | 0x56) => "Broadwell",
        ("GenuineIntel", 6, 0x4e | 0x5e | 0x55 | 0x8e | 0x9e | 0xa5 | 0xa6) => "Skylake",
        ("GenuineIntel", 6, 0x6a | 0x6c | 0x7d | 0x7e) => "Ice Lake",
        ("GenuineIntel", 6, 0x8c | 0x8d) => "Tiger Lake",
        ("GenuineIntel", 6, 0x97 | 0x9a) => "Alder Lake",
        ("GenuineIntel", 6, 0xb7 | 0xba | 0xbf) => "Raptor Lake",
        ("GenuineIntel", 6, 0x8f) => "Sapphire Rapids",
        ("GenuineIntel", 6, 0xcf) => "Emerald Rapids",
        ("GenuineIntel", 6, 0xad | 0xae) => "Granite Rapids",
        _ => "",
    }
}

/// The version that a program tells about itself, the first word of its answer with a digit and a point in it.
pub fn version_of(program: &str, option: &str) -> Option<String> {
    let (mut command, mut text) = (Command::new(program), String::new());
    let take = |line: Line| {
        if line.from == Stream::Output {
            text += &(line.text + "\n");
        }
    };
    Tended::to_end(command.arg(option), PATIENCE, take).ok().filter(ExitStatus::success)?;
    let is_version = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    text.split_whitespace().map(|word| word.trim_start_matches('v')).find(is_version).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pair::Better;

    #[test]
    fn the_command_is_told_without_its_place_and_without_the_records() {
        let said = |words: &[&str]| command(words.iter().map(|word| (*word).to_owned()));
        let words = ["/somewhere/wattlock", "bench", "--json", "x.json", "https", "--rounds", "3"];
        assert_eq!(said(&words), "wattlock bench https --rounds 3");
        assert_eq!(said(&["w", "bench", "--json=-", "files"]), "wattlock bench files");
    }

    #[test]
    fn avx512_counts_only_with_the_multiplications_and_has_a_maker() {
        assert_eq!(class("GenuineIntel", true, true), "avx512-intel");
        assert_eq!(class("AuthenticAMD", true, true), "avx512-amd");
        assert_eq!(class("GenuineIntel", false, true), "avx2");
        assert_eq!(class("", false, false), "none");
        assert_eq!(microarchitecture("AuthenticAMD", 25, 1, 0), "Zen 3");
        assert_eq!(microarchitecture("AuthenticAMD", 25, 17, 0), "Zen 4");
        assert_eq!(microarchitecture("GenuineIntel", 26, 2, 0), "");
        assert_eq!(microarchitecture("GenuineIntel", 6, 85, 4), "Skylake");
        assert_eq!(microarchitecture("GenuineIntel", 6, 85, 7), "Cascade Lake");
    }

    #[test]
    fn a_ratio_whose_interval_contains_1_is_null_and_the_interval_stays() {
        let gain = |ours: &[f64]| Gain::of(ours, &[1.0; 3], Better::More).unwrap();
        let row = |ours| serde_json::to_value(Row::compared("b", "r", "/s", By::Cpu, gain(ours))).unwrap();
        let noise = row(&[0.5, 1.0, 2.0]);
        assert!(noise["ratio"].is_null(), "{noise}");
        assert_eq!((&noise["low"], &noise["high"], &noise["by"]), (&0.5.into(), &2.0.into(), &"cpu".into()));
        let told = row(&[2.0, 2.1, 2.2]);
        assert_eq!((&told["ratio"], &told["ours"], &told["theirs"]), (&2.1.into(), &2.1.into(), &1.0.into()));
        let alone = serde_json::to_value(Row::alone("b", "r", "s", By::Time, 1.0, 5)).unwrap();
        assert!(alone["theirs"].is_null() && alone["ratio"].is_null() && alone["against"] == "");
    }
}
