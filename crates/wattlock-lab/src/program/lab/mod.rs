//! `wattlock lab`: the published systems on modelled machines in virtual time. Parses, runs and prints; every figure it
//! prints is simulated and says so, except the published ones beside them, and those of `reproduce`, which has them measured.

mod ablate;
pub mod named;
pub mod page;
pub mod plot;
pub mod print;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::error::ErrorKind;
use clap::{Args, Subcommand, ValueEnum};
use wattlock_lab::papers::{aca_sds, eeca, eep, lecpaes, qweb, velocity};
use wattlock_lab::{Error, Parameter, Role, Study};

use wattlock_shell::program::{NONSENSE, Program};
use wattlock_shell::setup::{Choice, Goal};

use crate::{Arguments, reproduce};

/// Reproduce published systems on modelled machines in virtual time: published, simulated and improved side by side
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct Command {
    #[command(subcommand)]
    what: What,
}

impl Command {
    /// Whether it has something to clean up when it is interrupted.
    pub fn cleans_up(&self) -> bool {
        matches!(self.what, What::Reproduce(_))
    }
}

#[derive(Debug, Subcommand)]
enum What {
    /// HTTPS with instruction sets and an accelerator together (Xiao et al. 2019)
    #[command(allow_negative_numbers = true)]
    Eeca(One<eeca::Options>),
    /// An event-driven web server with asynchronous offload (Li et al. 2020)
    #[command(allow_negative_numbers = true)]
    Qweb(Qweb),
    /// Stream encryption that follows the stream's velocity (Fei et al. 2017)
    #[command(allow_negative_numbers = true)]
    Lecpaes(One<lecpaes::Options>),
    /// Encrypted storage (Xiao et al. 2018)
    #[command(allow_negative_numbers = true)]
    AcaSds(One<aca_sds::Options>),
    /// One bulk job split over CPU and GPU (Fei et al. 2020)
    #[command(allow_negative_numbers = true)]
    Eep(One<eep::Options>),
    /// Streams whose velocity changes while they run (no paper has them)
    #[command(allow_negative_numbers = true)]
    Velocity(One<velocity::Options>),
    /// All of the papers, with the published settings
    All(Output),
    /// What each rule and each constant of `adaptive` is worth: one taken out, halved or doubled at a time, and what the
    /// rows of every paper, of emulated cards, random machines, files and nginx lose
    Ablate(ablate::Command),
    /// A paper's grid, measured here through the doors: published, simulated and measured beside each other
    Reproduce(reproduce::Command),
    /// A model's parameters: inputs, what was fitted on what, and guesses that no published figure determines
    Fit(Fit),
}

/// One paper's options and where its outcome goes.
#[derive(Debug, Args)]
struct One<T: Args> {
    #[command(flatten)]
    options: T,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
struct Qweb {
    #[command(flatten)]
    one: One<qweb::Options>,
    /// What `adaptive` minimises in its column
    #[arg(long, value_enum, default_value_t)]
    adaptive_objective: Goal,
}

#[derive(Debug, Args)]
struct Output {
    /// One JSON object a line, one for each row and quantity
    #[arg(long)]
    json: bool,
    /// Also write a page with plots; it opens from disk, without a network
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Show only rows of these roles, comma-separated; may be repeated. The summary is always of predicted rows
    #[arg(long, value_enum, value_delimiter = ',', value_name = "ROLE")]
    role: Vec<Role>,
}

#[derive(Debug, Args)]
struct Fit {
    /// Whose model
    #[arg(value_enum)]
    paper: Name,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// The papers by name, in the order of the documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Name {
    Eeca,
    Qweb,
    Lecpaes,
    AcaSds,
    Eep,
    Velocity,
}

impl Name {
    const fn title(self) -> &'static str {
        match self {
            Name::Eeca => "EECA, Xiao et al. 2019: HTTPS with instruction sets and an accelerator together",
            Name::Qweb => "QWEB, Li et al. 2020: an event-driven web server with asynchronous offload",
            Name::Lecpaes => "LECPAES, Fei et al. 2017: stream encryption that follows the stream's velocity",
            Name::AcaSds => "ACA-SDS, Xiao et al. 2018: encrypted storage",
            Name::Eep => "EEP, Fei et al. 2020: one bulk job split over CPU and GPU",
            Name::Velocity => "Streams whose velocity changes: LECPAES's rule and ours",
        }
    }

    fn as_published(self) -> Result<Study, Error> {
        match self {
            Name::Eeca => eeca::study(&Default::default()),
            Name::Qweb => qweb::study(&Default::default()),
            Name::Lecpaes => lecpaes::study(&Default::default()),
            Name::AcaSds => aca_sds::study(&Default::default()),
            Name::Eep => eep::study(&Default::default()),
            Name::Velocity => velocity::study(&Default::default()),
        }
    }

    fn fit(self) -> Vec<Parameter> {
        match self {
            Name::Eeca => eeca::fit(&Default::default()),
            Name::Qweb => qweb::fit(&Default::default()),
            Name::Lecpaes => lecpaes::fit(&Default::default()),
            Name::AcaSds => aca_sds::fit(&Default::default()),
            Name::Eep => eep::fit(&Default::default()),
            Name::Velocity => velocity::fit(&Default::default()),
        }
    }
}

/// A value for `lab` that is no number at all is refused like one out of its bounds; `None` for every other mistake.
pub fn refusal(error: &clap::Error) -> Option<ExitCode> {
    let value = matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue);
    if !value || !Arguments::words().iter().any(|word| word == "lab") {
        return None;
    }
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    eprintln!("wattlock: {}", line.strip_prefix("error: ").unwrap_or(line));
    Some(ExitCode::from(NONSENSE.0))
}

/// Settings of the whole program that mean nothing here.
const UNUSED: [(&str, &str); 3] = [
    ("--policy", "a study runs the published rule and adaptive beside each other"),
    ("--objective", "`lab qweb` has --adaptive-objective"),
    ("--emulate", "a study has its paper's own devices"),
];

/// Refuses a setting that would be ignored, and says what there is instead.
fn unused(arguments: impl Iterator<Item = std::ffi::OsString>) -> Result<(), Error> {
    let arguments: Vec<_> = arguments.collect();
    for (option, instead) in UNUSED {
        let given = |word: &std::ffi::OsString| {
            let word = word.to_string_lossy();
            word.split_once('=').map_or(&*word, |(name, _)| name) == option
        };
        if arguments.iter().any(given) {
            return Err(Error::Policy(format!("{option} is not for `lab`: {instead}")));
        }
    }
    Ok(())
}

/// Runs the command.
pub fn run(command: &Command, choice: &Choice) -> Result<()> {
    if !command.cleans_up() {
        unused(std::env::args_os().skip(1))?;
    }
    if !choice.settings.is_empty() && !matches!(command.what, What::Qweb(_)) {
        let text = "--set is for `lab qweb`; the others have an option for everything".to_owned();
        return Err(Error::Policy(text).into());
    }
    let (studies, output) = match &command.what {
        What::Eeca(one) => (vec![(Name::Eeca, eeca::study(&one.options)?)], &one.output),
        What::Qweb(qweb) => (vec![(Name::Qweb, study_of_qweb(qweb, choice)?)], &qweb.one.output),
        What::Lecpaes(one) => (vec![(Name::Lecpaes, lecpaes::study(&one.options)?)], &one.output),
        What::AcaSds(one) => (vec![(Name::AcaSds, aca_sds::study(&one.options)?)], &one.output),
        What::Eep(one) => (vec![(Name::Eep, eep::study(&one.options)?)], &one.output),
        What::Velocity(one) => (vec![(Name::Velocity, velocity::study(&one.options)?)], &one.output),
        What::All(output) => (everything()?, output),
        What::Ablate(command) => return ablate::run(command),
        What::Fit(fit) => return print::parameters(&fit.paper.fit(), fit.json),
        What::Reproduce(command) => return reproduce::run(command, choice),
    };
    if let Some(path) = &output.report {
        let streams = match &command.what {
            What::Velocity(one) => velocity::series(&one.options)?,
            What::All(_) => velocity::series(&Default::default())?,
            _ => Vec::new(),
        };
        write_whole(path, &page::page(&studies, &streams, &output.role))
            .with_context(|| path.display().to_string())?;
    }
    for (name, study) in &studies {
        match output.json {
            true => print::json(study, &output.role)?,
            false => print::study(name.title(), study, &output.role)?,
        }
    }
    if let (Some(path), false) = (&output.report, output.json) {
        say!("Report: {}", path.display());
    }
    Ok(())
}

fn study_of_qweb(command: &Qweb, choice: &Choice) -> Result<Study, Error> {
    let mut options = command.one.options.clone();
    options.settings.clone_from(&choice.settings);
    options.objective = command.adaptive_objective.into();
    qweb::study(&options)
}

/// Every study as published, side by side on the cores there are; each is a function of its options alone.
fn everything() -> Result<Vec<(Name, Study)>> {
    std::thread::scope(|scope| {
        let running: Vec<_> =
            Name::value_variants().iter().map(|name| (*name, scope.spawn(|| name.as_published()))).collect();
        let finished = running.into_iter().map(|(name, thread)| match thread.join() {
            Ok(study) => Ok((name, study?)),
            Err(_) => anyhow::bail!("the simulation of {name:?} failed"),
        });
        finished.collect()
    })
}

/// All of the page or none.
fn write_whole(path: &Path, text: &str) -> Result<()> {
    Ok(wattlock_door::Document::begin(path, true)?.write(text.as_bytes())?)
}
