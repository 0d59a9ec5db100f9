//! From command-line settings to a runtime.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use wattlock::calibrate::{Plan, calibrate};
use wattlock::policy::{NAMES, OFFLOADING, Objective, PolicyError, Settings};
use wattlock::{Builder, COMES_UP_WITHIN, Profile, Runtime, bring_up, own_engines};
use wattlock_core::{Engine, Kind, KindSet};
use wattlock_cpu::instruction::Instruction;
use wattlock_cuda::direct::Direct;
use wattlock_cuda::{Cuda, Missing, Places};

/// Which engines do the work, and by what rule. Read from any place of the command line, shown and accepted by the
/// commands that heed them.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Engines and policy")]
pub struct Choice {
    /// Rule that chooses an engine for each request
    #[arg(long, global = true, hide = true, default_value = "adaptive", value_parser = clap::builder::PossibleValuesParser::new(NAMES))]
    pub policy: String,
    /// What the policy minimises, if it has a choice
    #[arg(long, global = true, hide = true, value_enum, default_value_t)]
    pub objective: Goal,
    /// A setting of the policy, as key=value; may be repeated (docs/design/policies.md lists them)
    #[arg(long = "set", global = true, hide = true, value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// An emulated accelerator or GPU, in place of this machine's GPU: a model's name or a file (see `wattlock engines
    /// --models`). It computes real results on the CPU with a model's timing: for trying things out, never for speed
    #[arg(long, global = true, hide = true, value_name = "MODEL")]
    pub emulate: Option<String>,
}

/// What to minimise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Goal {
    /// Time
    #[default]
    Performance,
    /// Time and energy, as their product
    Balanced,
    /// Energy
    Energy,
}

impl From<Goal> for Objective {
    fn from(goal: Goal) -> Objective {
        match goal {
            Goal::Performance => Objective::Performance,
            Goal::Balanced => Objective::Balanced,
            Goal::Energy => Objective::Energy,
        }
    }
}

/// A kind by its name, or an error that lists them all.
pub fn parse_kind(name: &str) -> Result<Kind, String> {
    Kind::from_name(name).ok_or_else(|| {
        let like = |part: &str| {
            let names = Kind::ALL.iter().map(|kind| kind.name());
            names.filter(|kind| kind.contains(part)).collect::<Vec<_>>().join(", ")
        };
        let lower = name.to_ascii_lowercase();
        match like(&lower) {
            near if near.is_empty() || lower.is_empty() => {
                "unknown kind; `wattlock engines` lists all kinds".to_owned()
            }
            near => format!("unknown kind; like it are {near}"),
        }
    })
}

/// The GPU of this machine, or why there is none. Looked for once; opens nothing.
pub fn gpu() -> Result<Arc<Cuda>, Missing> {
    static FOUND: OnceLock<Result<Arc<Cuda>, Missing>> = OnceLock::new();
    FOUND.get_or_init(|| Cuda::find(&Places::of_environment()).map(Arc::new)).clone()
}

/// The GPU that this command may touch: none beside an emulated device, which stands in its place.
///
/// # Errors
/// Why there is none.
pub fn gpu_for(choice: &Choice) -> Result<Arc<Cuda>, String> {
    match &choice.emulate {
        Some(model) => Err(format!("--emulate {model} stands in its place")),
        None => gpu().map_err(|missing| missing.to_string()),
    }
}

/// The same GPU for data in its own memory: opens it, which takes some tenths of a second.
pub fn gpu_memory() -> Result<Arc<Direct>, Missing> {
    Direct::open(&Places::of_environment(), 0)
}

/// Every engine this command can use, in order of id.
pub fn engines(choice: &Choice) -> Result<Vec<Arc<dyn Engine>>> {
    with_card(choice, gpu_for(choice).ok().map(|gpu| gpu as Arc<dyn Engine>))
}

fn with_card(choice: &Choice, gpu: Option<Arc<dyn Engine>>) -> Result<Vec<Arc<dyn Engine>>> {
    let mut engines = own_engines();
    engines.extend(gpu);
    if let Some(model) = &choice.emulate {
        let emulation = emulation().context("this program has no emulated cards")?;
        engines.push((emulation.card)(model, Arc::new(Instruction::new())).map_err(anyhow::Error::msg)?);
    }
    Ok(engines)
}

/// Makes an engine after the model of that name, whose results the other engine computes; or says what is wrong.
pub type MakeCard = fn(&str, Arc<dyn Engine>) -> Result<Arc<dyn Engine>, String>;

/// Emulated cards, for programs that have them. `wattlock` has none: it becomes another program where it is asked for
/// one ([`program::EMULATED`](crate::program::EMULATED)).
#[derive(Debug, Clone, Copy)]
pub struct Emulation {
    /// An engine after the model of that name; the engine that is handed over computes its results.
    pub card: MakeCard,
    /// The text of every built-in model.
    pub models: fn() -> Vec<String>,
}

static EMULATION: OnceLock<Emulation> = OnceLock::new();

/// Says that this program has emulated cards, once, before it does anything.
pub fn emulates(emulation: Emulation) {
    let _ = EMULATION.set(emulation);
}

/// This program's emulated cards.
pub fn emulation() -> Option<Emulation> {
    EMULATION.get().copied()
}

/// The NVML library that `WATTLOCK_NVML` names; `None`: the one that the driver installs.
pub fn nvml() -> Option<OsString> {
    std::env::var_os("WATTLOCK_NVML")
}

/// The policy's settings, as asked for.
pub fn settings(choice: &Choice) -> Result<Settings> {
    let mut settings = Settings::default();
    for setting in &choice.settings {
        settings.set(setting).map_err(|error| of_policy(&choice.policy, error))?;
    }
    Ok(settings)
}

/// The settings that the policy has, and not those of all policies.
fn of_policy(policy: &str, error: PolicyError) -> anyhow::Error {
    let PolicyError::UnknownKey { key } = &error else { return error.into() };
    let own = |known: &&&str| known.split(['.', '_']).next() == Some(policy);
    let known: Vec<&str> = Settings::KEYS.iter().filter(own).copied().collect();
    match known.is_empty() {
        true => error.into(),
        false => anyhow::anyhow!("unknown setting {key:?}; those of `{policy}` are {}", known.join(", ")),
    }
}

fn builder(choice: &Choice, engines: &[Arc<dyn Engine>]) -> Result<Builder> {
    Ok(Runtime::builder()
        .engines(engines.to_vec())
        .policy(&choice.policy, settings(choice)?)
        .objective(choice.objective.into())
        .program(&crate::program::name_of_counters()))
}

/// A runtime as asked for, for hashes. No GPU does those, so none is looked for: the driver's absence alone takes a
/// hundred system calls.
pub fn hashing(choice: &Choice) -> Result<Runtime> {
    Ok(builder(choice, &with_card(choice, None)?)?.build()?)
}

/// A runtime as asked for, for what is stored or shipped: whatever an engine that is not the CPU computes, the CPU checks,
/// since a wrong result that is found next year is lost data. If no profile of this machine is on disk and `kinds` are given, those are calibrated
/// quickly first (about a second, told on standard error unless `quiet`) and the profile kept. Where it cannot be kept (no
/// home that this user may write) that second would be spent at every call: then the table that ships with Wattlock serves.
pub fn runtime(choice: &Choice, kinds: Option<KindSet>, quiet: bool) -> Result<Runtime> {
    let engines = engines(choice)?;
    let builder = builder(choice, &engines)?;
    let missing = kinds.filter(|_| !Profile::exists_for(&engines) && can_be_kept());
    if missing.is_none() && OFFLOADING.contains(&&*choice.policy) {
        // Such a rule is of a device that is there: what comes before it is would all be the CPU's.
        let kinds = kinds.unwrap_or_else(|| KindSet::of(Kind::ALL));
        bring_up(&engines, kinds, COMES_UP_WITHIN, &|| crate::INTERRUPTED.load(Ordering::SeqCst));
    }
    let builder = match missing {
        Some(kinds) => {
            let real = choice.emulate.is_none() && std::env::var_os("WATTLOCK_CUDA_DRIVER").is_none();
            builder.profile(first_use(&engines, kinds, real, quiet))
        }
        None => builder,
    };
    Ok(builder.verify_one_in(1).build()?)
}

/// Whether a profile can be put where this user's is: into its folder, or into the first above that is there.
fn can_be_kept() -> bool {
    let Some(path) = Profile::path() else { return false };
    let mut folders = path.ancestors().skip(1).map(|folder| match folder.as_os_str().is_empty() {
        true => std::path::Path::new("."),
        false => folder,
    });
    folders.find(|folder| folder.exists()).is_some_and(|folder| {
        use rustix::fs::{Access, AtFlags, CWD, accessat};
        accessat(CWD, folder, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).is_ok()
    })
}

/// `keep`: whether the profile may take the place of what is on disk. One with an emulated card, or another driver than
/// the machine's, must not: it would push out the real machine's.
fn first_use(engines: &[Arc<dyn Engine>], kinds: KindSet, keep: bool, quiet: bool) -> Profile {
    if !quiet {
        eprintln!("wattlock: no profile of this machine yet: calibrating for about a second");
    }
    let profile = calibrate(engines, &Plan::quick(kinds), &mut |_| {});
    let saved = Profile::path().filter(|_| keep).map(|path: PathBuf| profile.save(&path));
    if let (Some(Err(error)), false) = (saved, quiet) {
        eprintln!("wattlock: the profile could not be kept ({error}); `wattlock calibrate --out FILE` can");
    }
    profile
}
