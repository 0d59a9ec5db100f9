//! `wattlock calibrate`: measures every engine and keeps the profile; `--storage`, from where on a device is worth a write.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use indicatif::ProgressBar;
use wattlock::Profile;
use wattlock::calibrate::{Plan, calibrate, calibrate_metered};
use wattlock::meter::Meter;
use wattlock::profile::{MachineKey, Storage};
use wattlock_core::{Engine, Kind, KindSet};
use wattlock_door::{Document, one_line};
use wattlock_mount::storage;
use wattlock_shell::INTERRUPTED;
use wattlock_shell::joules::places;

use crate::energy::NOTHING_TO_CALIBRATE;
use crate::files::kinds;
use crate::progress::styled;
use crate::wrong::usage;

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
    /// Measure writes into an encrypted volume only (under a minute): the size of a write and the number of files from
    /// which a device pays, and the threads that feed it best. The policy `aca-sds` goes by them
    #[arg(long, conflicts_with_all = ["kinds", "report_only"])]
    pub storage: bool,
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
    Profile::has_place(&path)?;
    let place = |page: &PathBuf| Document::begin(page, true).with_context(|| one_line(page));
    let report = command.report.as_ref().map(place).transpose()?;
    let profile = if command.report_only {
        Profile::load(&path)?
    } else {
        let profile = match command.storage {
            true => measure_storage(command, choice, &path)?,
            false => measure(command, choice, &path)?,
        };
        profile.save(&path)?;
        match (&profile.storage, command.storage) {
            (Some(storage), true) => tell(storage)?,
            _ => summarise(&profile)?,
        }
        say!("Profile: {}", path.display());
        profile
    };
    if let (Some(page), Some(place)) = (&command.report, report) {
        place.write(calibration::page(&profile).as_bytes()).with_context(|| one_line(page))?;
        say!("Report: {}", page.display());
    }
    Ok(())
}

fn measure(command: &Command, choice: &Choice, path: &Path) -> Result<Profile> {
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
    // What was found of a device that is as it was stays.
    let before = Profile::load(path).ok().filter(|before| before.stale(&profile.machine).is_none());
    let there = |storage: &Storage| profile.machine.engines.contains_key(&storage.device);
    profile.storage = before.and_then(|before| before.storage).filter(there);
    Ok(profile)
}

fn measure_storage(command: &Command, choice: &Choice, path: &Path) -> Result<Profile> {
    let runtime = setup::runtime(choice, None, true)?;
    let is_real = choice.emulate.is_none() && std::env::var_os("WATTLOCK_CUDA_DRIVER").is_none();
    if command.out.is_none() && !is_real && storage::device(&runtime).is_ok() {
        return Err(usage("--storage of a device that is not real is kept only where --out says"));
    }
    let mut plan = if command.quick { storage::Plan::quick() } else { storage::Plan::full() };
    if let Some(ms) = command.per_point_ms {
        plan.per_point = Duration::from_millis(ms);
    }
    let measured = storage::device(&runtime).and_then(|device| {
        let folder = tempfile::tempdir().map_err(|error| {
            storage::Unmeasured::Volume(wattlock_fs::Error::io("a folder to measure in", error))
        })?;
        let bar = styled(ProgressBar::new(0), "{bar:30} {pos}/{len} {msg}  {eta} left");
        bar.set_message(format!("writes on {device} and the CPU"));
        let stop = || INTERRUPTED.load(Ordering::SeqCst);
        let found = storage::calibrate(&runtime, folder.path(), &plan, &stop, &mut |done, of| {
            bar.set_length(of as u64);
            bar.set_position(done as u64);
        });
        bar.finish_and_clear();
        found
    });
    let found = match measured {
        Ok(found) => found,
        Err(
            why @ (storage::Unmeasured::NoDevice
            | storage::Unmeasured::Silent(_)
            | storage::Unmeasured::TooSlow(_)),
        ) => {
            eprintln!("wattlock: {why}; aca-sds keeps its own values");
            return Err(wattlock_door::Code(NOTHING_TO_CALIBRATE).into());
        }
        Err(storage::Unmeasured::Interrupted) => return Err(wattlock_door::Error::Interrupted.into()),
        Err(storage::Unmeasured::Volume(error)) => return Err(error.into()),
        Err(error) => return Err(error.into()),
    };
    let mut profile = base(path, runtime.engines());
    if INTERRUPTED.load(Ordering::SeqCst) {
        return Err(wattlock_door::Error::Interrupted.into());
    }
    profile.storage = Some(found);
    Ok(profile)
}

/// The profile that is there, if its CPU engines are this machine's. Devices that it does not know, or knew as others, are
/// measured quickly.
fn base(path: &Path, engines: &[Arc<dyn Engine>]) -> Profile {
    let here = MachineKey::here(engines);
    let is_cpu = |name: &str| {
        let named = |engine: &&Arc<dyn Engine>| engine.description().name == name;
        engines.iter().find(named).is_some_and(|engine| engine.description().class.is_cpu())
    };
    let mut own = here.clone();
    own.engines.retain(|name, _| is_cpu(name));
    let there = Profile::load(path).ok().filter(|profile| profile.stale(&own).is_none());
    let Some(mut profile) = there else {
        return calibrate(engines, &Plan::quick(kinds()), &mut |_| {});
    };
    let is_new = |name: &str| profile.machine.engines.get(name) != here.engines.get(name);
    let new: Vec<_> = engines.iter().filter(|one| is_new(one.description().name)).cloned().collect();
    if !new.is_empty() {
        // Of every kind that the others have: where one has points, the built-in table is not asked.
        let has = |kind: &&Kind| profile.points.iter().any(|point| point.kind == kind.name());
        let of_others = Kind::ALL.iter().filter(has).copied().collect();
        let plan = Plan { within: None, ..Plan::quick(of_others) };
        let measured = calibrate(&new, &plan, &mut |_| {});
        profile.quick = true;
        profile.points.retain(|point| !measured.machine.engines.contains_key(&point.engine));
        profile.fits.retain(|fit| !measured.machine.engines.contains_key(&fit.engine));
        profile.machine.engines.extend(measured.machine.engines);
        profile.points.extend(measured.points);
        profile.fits.extend(measured.fits);
    }
    profile
}

fn tell(storage: &Storage) -> Result<()> {
    let rate = |rate: f64| text::rate(rate);
    let row = |one: &wattlock::profile::Written| {
        let device = one.device.map_or_else(|| "the CPU's".to_owned(), rate);
        let wins = one.device.is_some_and(|device| device > one.cpu);
        let faster = if wins { storage.device.as_str() } else { "CPU" };
        vec![text::bytes(one.bytes as u64), one.files.to_string(), rate(one.cpu), device, faster.to_owned()]
    };
    let rows: Vec<_> = storage.written.iter().map(row).collect();
    put!("{}", text::table(&["write", "files", "CPU", &storage.device, "faster"], &rows));
    let fed = storage.fed.iter().zip(1_u16..);
    let fed: Vec<_> =
        fed.map(|(all, cores)| vec![cores.to_string(), rate(*all), rate(all / f64::from(cores))]).collect();
    put!("{}", text::table(&["feeding", &storage.device, "each"], &fed));
    match storage.from {
        Some((bytes, files)) => say!(
            "{} from writes of {} on (beta), with {files} or more files in operation (alpha); {} feed it best",
            storage.device,
            text::bytes(bytes as u64),
            storage.feeders
        ),
        None => say!("{}: never faster; aca-sds leaves writes to the CPU", storage.device),
    }
    Ok(())
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
