//! `wattlock calibrate`: measures every engine and keeps the profile.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use indicatif::ProgressBar;
use wattlock::Profile;
use wattlock::calibrate::{Plan, calibrate, calibrate_metered};
use wattlock::meter::Meter;
use wattlock_core::{Kind, KindSet};
use wattlock_door::{Document, one_line};
use wattlock_shell::joules::places;

use crate::files::styled;

use wattlock_shell::setup::{self, Choice, parse_kind};
use wattlock_shell::{calibration, text};

/// Time for one point of a quick calibration.
const QUICK_POINT: Duration = Duration::from_millis(3);

/// Measure every engine by operation, size and concurrency, and keep the profile
#[derive(Debug, Args)]
pub struct Command {
    /// A few sizes in a few seconds, instead of everything in some minutes
    #[arg(long)]
    quick: bool,
    /// Only these kinds; may be repeated
    #[arg(long = "kind", value_parser = parse_kind)]
    kinds: Vec<Kind>,
    /// Where to keep the profile (default: where every command looks for it)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Also write a page with throughput and latency over size; it opens from disk, without a network
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the page from the profile that is already there, measuring nothing
    #[arg(long, requires = "report")]
    report_only: bool,
    /// Leave joules out, even if a counter measures them
    #[arg(long)]
    no_joules: bool,
    /// Milliseconds for each measured point
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    per_point_ms: Option<u64>,
}

/// Runs the command.
pub fn run(command: &Command, choice: &Choice) -> Result<()> {
    let path = match &command.out {
        Some(path) => path.clone(),
        None => Profile::path()
            .context("no place for the profile: neither HOME nor XDG_CACHE_HOME is set; use --out")?,
    };
    // Before minutes of measuring.
    let place = |page: &PathBuf| Document::begin(page, true).with_context(|| one_line(page));
    let report = command.report.as_ref().map(place).transpose()?;
    let profile = if command.report_only {
        Profile::load(&path)?
    } else {
        let profile = measure(command, choice)?;
        profile.save(&path)?;
        summarise(&profile)?;
        say!("Profile: {}", path.display());
        profile
    };
    if let (Some(page), Some(place)) = (&command.report, report) {
        place.write(calibration::page(&profile).as_bytes()).with_context(|| one_line(page))?;
        say!("Report: {}", page.display());
    }
    Ok(())
}

fn measure(command: &Command, choice: &Choice) -> Result<Profile> {
    let engines = setup::engines(choice)?;
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u16);
    let kinds = if command.kinds.is_empty() { KindSet::ALL } else { command.kinds.iter().copied().collect() };
    let mut plan = if command.quick {
        // Shorter points instead of a deadline: a user that asks for a calibration wants every kind in it.
        Plan { per_point: QUICK_POINT, within: None, ..Plan::quick(kinds) }
    } else {
        Plan { kinds, ..Plan::full(cores) }
    };
    if let Some(ms) = command.per_point_ms {
        plan.per_point = Duration::from_millis(ms);
    }
    let bar = styled(ProgressBar::new(0), "{bar:30} {pos}/{len} {msg}  {eta} left");
    let mut show = |progress: wattlock::calibrate::Progress<'_>| {
        bar.set_length(progress.of as u64);
        bar.set_position(progress.done as u64);
        bar.set_message(format!("{} on {}", progress.kind.name(), progress.engine));
    };
    let mut profile = if command.no_joules {
        calibrate(&engines, &plan, &mut show)
    } else {
        let mut meter = Meter::discover(&places());
        calibrate_metered(&engines, &plan, &mut meter, &mut show)
    };
    bar.finish_and_clear();
    profile.quick = command.quick;
    Ok(profile)
}

fn summarise(profile: &Profile) -> Result<()> {
    let rows: Vec<Vec<String>> = profile
        .fits
        .iter()
        .map(|fit| {
            let rate = fit.bytes_per_second.map_or_else(|| text::per_second(fit.setup_ns), text::rate);
            vec![
                fit.kind.clone(),
                fit.engine.clone(),
                text::nanos(fit.setup_ns),
                rate,
                format!("{:.0} %", fit.error * 100.0),
            ]
        })
        .collect();
    say!(
        "latency = setup + bytes / rate, one request at a time; error: root mean square relative deviation of the fit"
    );
    put!("{}", text::table(&["kind", "engine", "setup", "rate", "error"], &rows));
    match &profile.energy {
        Some(note) => say!(
            "Joules: {}, above idle power of {:.2} W; {} ({})",
            note.quality,
            note.idle_w,
            note.parts.join(" + "),
            note.sources.join(", ")
        ),
        None => say!("Joules: none in the profile; only a counter's would be (wattlock energy sources)"),
    }
    Ok(())
}
