//! `wattlock energy`: what a command costs in joules, in the manner of `perf stat`.
//!
//! The report goes to standard error (or `--output`), so that the command's own output stays its own. Metered and
//! modelled joules stand apart, and every modelled figure has the word beside it.

mod child;
mod ladder;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use serde_json::{Value as Json, json};
use wattlock_door::{Document, one_line};
use wattlock_meter::{Above, Figure, Meter, Metered, Range, Reading, Value};
use wattlock_shell::joules::{now_ns, own_cpu_s, places};

use wattlock_shell::text;

/// Measure the joules of a command: each part of the machine, in total and above idle
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Command {
    #[command(subcommand)]
    what: Option<What>,
    /// Bytes the command works on, for MB/J
    #[arg(long, value_parser = parse_work_bytes)]
    bytes: Option<usize>,
    /// Operations the command does, for J/op
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    ops: Option<u64>,
    /// Milliseconds between readings; counters that may wrap sooner are read sooner
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    interval: u64,
    /// Milliseconds before the command in which idle power is measured; 0 for not at all
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    idle_ms: u64,
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// Write the report to a file instead of standard error
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Measure for so many seconds what the meter itself costs, and run nothing
    #[arg(long, value_name = "SECONDS", value_parser = parse_cost_seconds, conflicts_with = "command")]
    self_cost: Option<f64>,
    /// The command and its arguments, after `--`
    #[arg(last = true, value_name = "COMMAND", required_unless_present = "self_cost")]
    command: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
enum What {
    Calibrate(ladder::Settings),
    /// List where joules come from here, and what stands in the way
    Sources {
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
}

pub const NOTHING_TO_CALIBRATE: u8 = 51;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = wattlock_shell::program::NOT_FOUND;

/// Exit codes of this command beside the command's own.
pub fn exit_codes() -> &'static [(u8, &'static str)] {
    &[
        (
            NOTHING_TO_CALIBRATE,
            "energy calibrate: no counter to calibrate against; calibrate --storage: no device, or it does nothing",
        ),
        (NOT_EXECUTABLE, "energy: the command cannot be run"),
        (NOT_FOUND, "energy: the command is not found; bench, lab, report: their program is not installed"),
    ]
}

fn parse_work_bytes(text: &str) -> Result<usize, String> {
    match text::parse_bytes(text)? {
        0 => Err("no work at all has no MB/J".to_owned()),
        bytes => Ok(bytes),
    }
}

fn parse_cost_seconds(text: &str) -> Result<f64, String> {
    text::parse_seconds(text.strip_suffix('s').unwrap_or(text))
}

/// Runs the command.
pub fn run(command: &Command) -> Result<()> {
    match (&command.what, command.self_cost) {
        (Some(What::Calibrate(settings)), _) => ladder::run(settings),
        (Some(What::Sources { json }), _) => sources(*json),
        (None, Some(seconds)) => self_cost(command, seconds),
        (None, None) => measure(command),
    }
}

/// Everything about one run.
struct Run<'a> {
    command: &'a Command,
    status: ExitStatus,
    cpu_s: f64,
    reading: Reading,
    idle: Option<Reading>,
    notices: Vec<String>,
}

fn measure(command: &Command) -> Result<()> {
    // Before the command runs: what took hours must not end with a report that has no place.
    let create = |path: &PathBuf| Document::begin(path, true).with_context(|| one_line(path));
    let output = command.output.as_ref().map(create).transpose()?;
    let mut meter = Meter::discover(&places());
    let start = Instant::now();
    let mut notices = meter.notices().to_vec();
    let interval = interval(command, &meter, &mut notices);
    let idle = (command.idle_ms > 0)
        .then(|| watch(&mut meter, start, Duration::from_millis(command.idle_ms), interval).1);
    meter.start(now_ns(start));
    let ended = match child::run(&command.command, interval, || meter.poll(now_ns(start)))? {
        Ok(ended) => ended,
        Err(error) => {
            let name = command.command[0].to_string_lossy().replace(char::is_control, " ");
            eprintln!("wattlock: {name}: {error}");
            let missing = error.kind() == std::io::ErrorKind::NotFound;
            return Err(wattlock_door::Code(if missing { NOT_FOUND } else { NOT_EXECUTABLE }).into());
        }
    };
    let reading = meter.finish(now_ns(start));
    let run = Run { command, status: ended.status, cpu_s: ended.cpu_s, reading, idle, notices };
    let report = if command.json { format!("{}\n", run.json()) } else { run.text() };
    match output {
        Some(place) => place.write(report.as_bytes()).context("writing the report")?,
        // A reader that has gone away must not change the command's exit code.
        None => drop(std::io::stderr().write_all(report.as_bytes())),
    }
    match code(ended.status) {
        0 => Ok(()),
        code => Err(wattlock_door::Code(code).into()),
    }
}

/// What was asked for, or less if a counter could go round unseen.
fn interval(command: &Command, meter: &Meter, notices: &mut Vec<String>) -> Duration {
    let wanted = Duration::from_millis(command.interval);
    let Some(longest) = meter.longest_gap_ns().map(|ns| Duration::from_nanos(ns / 2)) else { return wanted };
    let least = Duration::from_nanos(wattlock_meter::EVERY_NS);
    if longest < least {
        notices.push("a counter here may go round between two readings; its figures are lower bounds".into());
    }
    wanted.min(longest.max(least))
}

/// A window in which this program only reads: how often it did, and what it saw.
fn watch(meter: &mut Meter, start: Instant, time: Duration, interval: Duration) -> (u32, Reading) {
    let until = Instant::now() + time;
    meter.start(now_ns(start));
    let mut polls = 0;
    while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        thread::sleep(left.min(interval));
        meter.poll(now_ns(start));
        polls += 1;
    }
    (polls, meter.finish(now_ns(start)))
}

/// The command's exit code, or 128 and the signal that ended it, as shells have it.
fn code(status: ExitStatus) -> u8 {
    let signal = || 128 + status.signal().unwrap_or(0);
    status.code().unwrap_or_else(signal) as u8
}

impl Run<'_> {
    fn text(&self) -> String {
        let name: Vec<String> = self
            .command
            .command
            .iter()
            .map(|word| word.to_string_lossy().replace(char::is_control, " "))
            .collect();
        let mut out = format!("\n Energy of '{}' (exit code {})\n\n", name.join(" "), code(self.status));
        out += &figures(&self.reading, self.idle.as_ref());
        out += &self.total();
        out += &self.modelled();
        let seconds = self.reading.window.seconds();
        let _ = write!(out, "\n {seconds:.3} s elapsed, {:.3} s CPU time of the command", self.cpu_s);
        out += &self.idle_line();
        for notice in &self.notices {
            let _ = write!(out, "\n {notice}");
        }
        out + "\n\n"
    }

    fn idle_line(&self) -> String {
        match &self.idle {
            None => "\n idle power was not measured (--idle-ms 0)".to_owned(),
            Some(idle) => {
                let seconds = idle.window.seconds();
                match idle.total() {
                    Some(total) => format!(
                        "\n idle: {:.2} W, {} in the {seconds:.2} s before the command",
                        total.value.joules() / seconds,
                        total.value.quality()
                    ),
                    None => format!("\n idle: nothing was metered in the {seconds:.2} s before the command"),
                }
            }
        }
    }

    fn total(&self) -> String {
        let Some(total) = self.reading.total() else {
            return " Nothing was metered: there is no total.\n".to_owned();
        };
        let seconds = self.reading.window.seconds();
        let mut out = format!(
            "\n {}, {:.2} W: {}\n",
            total.value,
            total.value.joules() / seconds,
            total.parts.join(" + ")
        );
        let above = self.idle.as_ref().and_then(|idle| self.reading.total_above(idle));
        if let Some(above) = &above {
            let _ = writeln!(out, " {} above idle power of {:.2} W", above.value, above.idle_watts);
        }
        if let Some(why) = total.value.at_least() {
            let _ = writeln!(out, " at least, because {why}");
        }
        out += &self.work("total", &total.value);
        if let Some(above) = &above {
            out += &self.work("above idle", &above.value);
        }
        out
    }

    /// The work that was said to be done, by joules.
    fn work(&self, what: &str, joules: &Metered) -> String {
        let mut out = String::new();
        let bound = if joules.at_least().is_some() { "at most " } else { "" };
        let quality = joules.quality();
        if joules.joules() <= 0.0 {
            return out;
        }
        if let Some(bytes) = self.command.bytes {
            let rate = number(bytes as f64 / 1e6 / joules.joules(), 3);
            let _ = writeln!(out, " {bound}{rate} MB/J {what}, {quality}");
        }
        if let Some(ops) = self.command.ops {
            let bound = if joules.at_least().is_some() { "at least " } else { "" };
            let each = number(joules.joules() / ops as f64, 6);
            let _ = writeln!(out, " {bound}{each} J/op {what}, {quality}");
        }
        out
    }

    fn modelled(&self) -> String {
        let Some(modelled) = self.reading.modelled() else { return String::new() };
        let mut out = format!("\n {modelled}, {WHOLE}\n {}\n", above_idle(modelled.above_idle()));
        for (what, joules) in [("total", modelled.range()), ("above idle", modelled.above_idle())] {
            if let Some(bytes) = self.command.bytes {
                let _ =
                    writeln!(out, " {} {what}", band(joules.into_per_joule(bytes as f64 / 1e6), "MB/J", 3));
            }
            if let Some(ops) = self.command.ops {
                let _ = writeln!(out, " {} {what}", band(joules.times(1.0 / ops as f64), "J/op", 6));
            }
        }
        out
    }

    fn json(&self) -> Json {
        let seconds = self.reading.window.seconds();
        let words: Vec<_> = self.command.command.iter().map(|word| word.to_string_lossy()).collect();
        let figures: Vec<Json> = self.reading.figures.iter().map(|figure| self.figure_json(figure)).collect();
        let total = self.reading.total().map(|total| {
            let above = self.idle.as_ref().and_then(|idle| self.reading.total_above(idle));
            json!({"joules": total.value.joules(), "quality": total.value.quality(), "at_least": total.value.at_least(),
                "watts": total.value.joules() / seconds, "parts": total.parts, "boundaries": total.boundaries,
                "sources": total.sources, "above_idle": above_json(above.as_ref()),
                "work": self.work_json(&total.value), "work_above_idle": above.map(|above| self.work_json(&above.value))})
        });
        let modelled = self.reading.modelled().map(|modelled| {
            let per = |joules: Range| {
                json!({"mb_per_joule": self.command.bytes.map(|bytes| range_json(joules.into_per_joule(bytes as f64 / 1e6))),
                    "joules_per_op": self.command.ops.map(|ops| range_json(joules.times(1.0 / ops as f64)))})
            };
            json!({"quality": "modelled", "model": modelled.model(), "modelled_joules": range_json(modelled.range()),
                "modelled_joules_above_idle": range_json(modelled.above_idle()), "modelled_work": per(modelled.range()),
                "modelled_work_above_idle": per(modelled.above_idle())})
        });
        json!({"command": words, "exit_code": code(self.status), "seconds": seconds, "cpu_seconds": self.cpu_s,
            "idle_seconds": self.idle.as_ref().map(|idle| idle.window.seconds()), "bytes": self.command.bytes,
            "ops": self.command.ops, "figures": figures, "total": total, "modelled": modelled, "notices": self.notices})
    }

    fn figure_json(&self, figure: &Figure) -> Json {
        let above = self.idle.as_ref().and_then(|idle| self.reading.above(figure, idle));
        let mut out = serde_json::to_value(figure.record()).unwrap_or_default();
        if let Some(metered) = figure.metered() {
            out["watts"] = json!(metered.joules() / figure.window.seconds());
            out["above_idle"] = above_json(above.as_ref());
        }
        out
    }

    fn work_json(&self, joules: &Metered) -> Json {
        let positive = joules.joules() > 0.0;
        let per = |work: Option<f64>| work.filter(|_| positive).map(|work| work / joules.joules());
        json!({"mb_per_joule": per(self.command.bytes.map(|bytes| bytes as f64 / 1e6)),
            "joules_per_op": self.command.ops.filter(|_| positive).map(|ops| joules.joules() / ops as f64), "quality": joules.quality()})
    }
}

fn above_json(above: Option<&Above>) -> Json {
    above.map_or(Json::Null, |above| {
        json!({"joules": above.value.joules(), "quality": above.value.quality(), "at_least": above.value.at_least(),
            "idle_watts": above.idle_watts})
    })
}

/// Infinity has no JSON.
fn range_json(range: Range) -> Json {
    let number = |value: f64| value.is_finite().then_some(value);
    json!({"low": number(range.low), "expected": number(range.expected), "high": number(range.high)})
}

/// A model knows the machine's utilisation and not whose it is.
const WHOLE: &str = "all processors, whoever kept them busy";

fn above_idle(range: Range) -> String {
    format!("{} above the model's idle power", band(range, "J", 2))
}

/// A modelled figure: never without the word and its ends.
pub fn band(range: Range, unit: &str, digits: usize) -> String {
    let [low, expected, high] = [range.low, range.expected, range.high].map(|value| number(value, digits));
    format!("{expected} {unit} modelled ({low} to {high})")
}

/// So many digits behind the point, or more where fewer than three would tell anything.
fn number(value: f64, digits: usize) -> String {
    if !value.is_finite() {
        return "any number of".to_owned();
    }
    match value.abs() {
        size if size >= 100.0 || size == 0.0 => format!("{value:.digits$}"),
        size if size < 1e-5 => format!("{value:.2e}"),
        size => {
            let wanted = (2.0 - size.log10().floor()) as usize;
            format!("{value:.places$}", places = digits.max(wanted))
        }
    }
}

/// A line for each source.
fn figures(reading: &Reading, idle: Option<&Reading>) -> String {
    let mut rows = Vec::new();
    let mut without = String::new();
    for figure in &reading.figures {
        match &figure.value {
            Value::Metered(metered) => {
                let above = idle.and_then(|idle| reading.above(figure, idle));
                let bound = if metered.at_least().is_some() { ">= " } else { "" };
                rows.push(vec![
                    format!(" {}", figure.part),
                    format!("{bound}{:.3} J", metered.joules()),
                    above.map_or_else(|| "-".into(), |above| format!("{bound}{:.3} J", above.value.joules())),
                    format!("{bound}{:.2} W", metered.joules() / figure.window.seconds()),
                    metered.quality().to_string(),
                    figure.boundary.to_string(),
                    figure.source.to_owned(),
                ]);
                if figure.window.to_ns < reading.window.to_ns
                    || figure.window.from_ns > reading.window.from_ns
                {
                    let (seen, all) = (figure.window.seconds(), reading.window.seconds());
                    let _ = writeln!(without, " {}: seen for {seen:.3} s of {all:.3} s", figure.part);
                }
                for why in metered.at_least().into_iter().chain(figure.note.as_deref()) {
                    let _ = writeln!(without, " {}: {why}", figure.part);
                }
            }
            Value::Unknown(why) => {
                let _ = writeln!(without, " {} ({}): no figure, {why}", figure.part, figure.source);
            }
            Value::Modelled(_) => {}
        }
    }
    let header = [" part", "joules", "above idle", "average", "quality", "boundary", "source"];
    let table = if rows.is_empty() { String::new() } else { text::table(&header, &rows) };
    table + &without
}

fn sources(as_json: bool) -> Result<()> {
    let meter = Meter::discover(&places());
    let row = |about: &wattlock_meter::About, why: Option<&str>| json!({"source": about.source, "boundary": about.boundary, "part": about.part, "detail": about.detail, "unused": why});
    if as_json {
        let used = meter.sources().map(|about| row(about, None));
        let unused = meter.unused().iter().map(|(about, why)| row(about, Some(why)));
        let all: Vec<Json> = used.chain(unused).collect();
        say!("{}", json!({"sources": all, "model": meter.model(), "notices": meter.notices()}));
        return Ok(());
    }
    let cells = |about: &wattlock_meter::About, why: &str| {
        let words = [about.part.as_str(), about.boundary.name(), about.source, why, about.detail.as_str()];
        words.map(str::to_owned).to_vec()
    };
    let mut rows: Vec<Vec<String>> = meter.sources().map(|about| cells(about, "read")).collect();
    rows.extend(meter.unused().iter().map(|(about, why)| cells(about, &format!("not used: {why}"))));
    if rows.is_empty() {
        say!("No energy counter and no power sensor here.");
    } else {
        put!("{}", text::table(&["part", "boundary", "source", "use", "where"], &rows));
    }
    for notice in meter.notices() {
        say!("{notice}");
    }
    if let Some(model) = meter.model() {
        say!(
            "For processors without a counter: model \"{}\", {:.2} W idle, {:.2} W more at full load, error band {:.0} %; {}",
            model.version,
            model.idle_w,
            model.above_idle_w(1.0),
            model.band * 100.0,
            model.origin
        );
    }
    Ok(())
}

/// The meter's own CPU time over a window in which this process does nothing else.
fn self_cost(command: &Command, seconds: f64) -> Result<()> {
    let start = Instant::now();
    let before = own_cpu_s()?;
    let mut meter = Meter::discover(&places());
    let (found_s, found_cpu_s) = (start.elapsed().as_secs_f64(), own_cpu_s()? - before);
    let interval = interval(command, &meter, &mut Vec::new());
    let before = own_cpu_s()?;
    let (polls, reading) = watch(&mut meter, start, Duration::from_secs_f64(seconds), interval);
    let cpu_s = own_cpu_s()? - before;
    let share = cpu_s / reading.window.seconds() * 100.0;
    let count = meter.sources().count();
    if command.json {
        say!(
            "{}",
            json!({"seconds": reading.window.seconds(), "polls": polls, "sources": count, "cpu_seconds": cpu_s,
                "cpu_percent_of_one_core": share, "discovery_seconds": found_s, "discovery_cpu_seconds": found_cpu_s})
        );
        return Ok(());
    }
    say!("{count} sources and the model, read {polls} times in {:.2} s", reading.window.seconds());
    say!("{:.3} ms of CPU time: {share:.4} % of one core", cpu_s * 1e3);
    say!("looking for sources, once: {:.2} ms, {:.2} ms of them CPU time", found_s * 1e3, found_cpu_s * 1e3);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_figures_keep_three_digits() {
        for (value, digits, wanted) in [
            (1.5e-8, 6, "1.50e-8"),
            (0.000_012_34, 6, "0.0000123"),
            (0.001, 3, "0.00100"),
            (5.4, 0, "5.40"),
            (540.4, 0, "540"),
            (12.3456, 3, "12.346"),
            (0.0, 3, "0.000"),
            (-0.25, 2, "-0.250"),
            (f64::INFINITY, 3, "any number of"),
        ] {
            assert_eq!(number(value, digits), wanted);
        }
    }
}
