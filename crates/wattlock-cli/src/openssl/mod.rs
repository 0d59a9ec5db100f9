//! `wattlock openssl`: has programs that use OpenSSL use Wattlock, undoes it, and says how things stand.
//!
//! It edits one file, `openssl.cnf`, and shows what it changes. A changed file is tried before it takes the old one's
//! place. It loads no module into this process and links no libcrypto.

pub mod check;
mod conf;
mod diff;
mod elf;
pub mod own;
pub mod place;
pub(crate) mod plan;
mod sandboxed;
#[allow(dead_code, unreachable_pub, reason = "the provider's file; this program needs only names and checks")]
// Compiled in rather than linked: the provider's crate links libcrypto, which this program does not need.
#[path = "../../../wattlock-provider/src/settings.rs"]
mod settings;
mod trial;

use std::path::PathBuf;

pub(crate) use diff::unified;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};

use crate::ask;
use place::Source;
use plan::{State, Wish};
use sandboxed::Outcome;
use wattlock_door::Code;
use wattlock_shell::parts;
use wattlock_shell::setup::{Choice, Goal};
use wattlock_shell::text::typed;

pub const PROBLEMS: u8 = 70;
const TRIAL_FAILED: u8 = 71;
const PROGRAM_DIES: u8 = 72;

/// Exit codes of these commands, with what they mean.
pub fn exit_codes() -> &'static [(u8, &'static str)] {
    &[
        (PROBLEMS, "openssl check, doctor: something keeps Wattlock from being used as configured"),
        (TRIAL_FAILED, "openssl enable: the trial failed, and the file is as it was"),
        (
            PROGRAM_DIES,
            "openssl enable: a program that confines itself dies with Wattlock; the file is as it was",
        ),
    ]
}

/// Have programs that use OpenSSL 3 use Wattlock, undo it, or see whether it works
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct Command {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Enable(Enable),
    Disable(Disable),
    Check(check::Command),
}

/// Which file, and how to go about it.
#[derive(Debug, Args)]
struct Common {
    /// The file to change; without it that of OPENSSL_CONF, else the system's
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Show what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

/// Add Wattlock to openssl.cnf
#[derive(Debug, Args)]
struct Enable {
    #[command(flatten)]
    common: Common,
    /// The module, libwattlock_provider.so; without it the one that `make install` or a package installed, else the one
    /// beside this program
    #[arg(long, value_name = "PATH")]
    module: Option<PathBuf>,
    /// A setting of the provider (docs/use/openssl.md lists them); may be repeated
    // Takes the place of the option of that name that every command has.
    #[arg(id = "settings", long = "set", value_name = "KEY=VALUE", value_parser = pair)]
    sets: Vec<String>,
}

/// Take out of openssl.cnf what `enable` added
#[derive(Debug, Args)]
struct Disable {
    #[command(flatten)]
    common: Common,
}

fn pair(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((key, _)) if !key.trim().is_empty() => Ok(text.to_owned()),
        _ => Err("not KEY=VALUE".to_owned()),
    }
}

/// Runs the command.
pub fn run(command: &Command, choice: &Choice) -> Result<()> {
    match &command.what {
        What::Enable(command) => enable(command, choice),
        What::Disable(command) => disable(command),
        What::Check(command) => check::run(command),
    }
}

fn enable(command: &Enable, choice: &Choice) -> Result<()> {
    let source = Source::read(&place::configuration(command.common.config.as_deref())?)?;
    let shown = source.path.display().to_string();
    let named = |error: anyhow::Error| error.context(shown.clone());
    let split = plan::split(&source.text).map_err(named)?;
    let awake = plan::awake(&source.text);
    let before = State::of(&conf::Conf::read(&awake).map_err(named)?).map_err(named)?;
    // What stands in our block is kept unless something else is asked for.
    let mut settings: Vec<(String, String)> = Vec::new();
    if split.found {
        settings.extend(before.settings.iter().map(|entry| (entry.name.clone(), entry.value.clone())));
    }
    for (key, value) in asked(command, choice) {
        settings.retain(|(known, _)| *known != key);
        settings.push((key, value));
    }
    plan::check_settings(&settings)?;
    let kept = before.module.as_deref().map(PathBuf::from).filter(|path| split.found && path.is_file());
    let module = match (&command.module, kept) {
        // One in a build folder gives way to one that is installed.
        (None, Some(kept)) if parts::in_build_folder(&kept) => place::module_to_stay(None).unwrap_or(kept),
        (None, Some(kept)) => kept,
        (given, _) => place::module_to_stay(given.as_deref())?,
    };
    for warning in parts::warnings(&module, "programs do without Wattlock") {
        eprintln!("wattlock: {warning}");
    }
    // Of a program's own file.
    let alone = split.found && plan::has_alone(&source.text);
    let wish = Wish { module: &module, settings: &settings, alone };
    let text = plan::with_block(&split.rest, &wish).map_err(named)?;
    if text == source.text {
        say!("{shown}: enabled already, nothing to change; `wattlock openssl check` says whether it works");
        return Ok(());
    }
    put!("{}", diff::unified(&source.path, &source.text, &text));
    if before.fips() {
        eprintln!(
            "wattlock: {shown} asks for fips=yes, which Wattlock's algorithms are not: they will not be used"
        );
    }
    if command.common.dry_run || !ask::agreed(command.common.yes)? {
        return Ok(());
    }
    let candidate = source.candidate(&text)?;
    let former = source.candidate(&split.rest)?;
    match tried(candidate.path(), former.path(), &wish) {
        Ok(left_out) if left_out.is_empty() => say!("Tried: AES-256-GCM, RSA, X25519."),
        Ok(left_out) => {
            say!("Tried; the file does not give {} without Wattlock either: left out.", left_out.join(", "));
        }
        Err(error) => return Err(failed(&error)),
    }
    match sandboxed::sshd(candidate.path(), former.path())? {
        Outcome::Good => say!("Tried: sshd, which confines itself, as far as it asks for a key."),
        Outcome::Untried(why) => say!("Not tried: sshd ({why})."),
        Outcome::Dies(why) => {
            eprintln!("wattlock: not enabled, the file is as it was: sshd with Wattlock: {why}");
            return Err(anyhow::Error::new(Code(PROGRAM_DIES)));
        }
    }
    // A program's own file has nothing of a person's to come back to.
    let backup = if alone { None } else { Some(source.back_up(&split.rest)?) };
    source.replace(candidate)?;
    if let Err(error) = tried(&source.path, former.path(), &wish) {
        // It worked beside the file and not in its place: the guard of that place should not be left with it.
        let now = Source::read(&source.path)?;
        now.replace(now.candidate(&source.text)?)?;
        return Err(failed(&error));
    }
    match backup {
        Some(backup) => {
            say!("Enabled in {shown}, tried and found good. What was there is in {}.", backup.display());
        }
        None => say!("Enabled in {shown}, tried and found good."),
    }
    say!("Programs that are started from now on use it.");
    Ok(())
}

/// Settings asked for on the command line; the options every command has count too, where they say something else
/// than usual.
fn asked(command: &Enable, choice: &Choice) -> Vec<(String, String)> {
    let mut asked: Vec<(String, String)> = Vec::new();
    if choice.policy != "adaptive" {
        asked.push(("policy".to_owned(), choice.policy.clone()));
    }
    if choice.objective != Goal::Performance {
        asked.push(("objective".to_owned(), typed(&choice.objective)));
    }
    if let Some(model) = &choice.emulate {
        asked.push(("emulate".to_owned(), model.clone()));
    }
    let sets = command.sets.iter().filter_map(|set| set.split_once('='));
    asked.extend(sets.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned())));
    asked
}

/// Whether the module loads under a configuration and does what it should.
fn tried(
    configuration: &std::path::Path,
    former: &std::path::Path,
    wish: &Wish<'_>,
) -> Result<Vec<&'static str>> {
    if trial::loaded(configuration)?.is_none() {
        let module = wish.module.display().to_string();
        match trial::refusal(&module, wish.settings)? {
            Some(why) => bail!("the module does not load: {why}"),
            None => bail!("the module loads by itself, but not with this file"),
        }
    }
    trial::rehearse(configuration, former)
}

/// Tells that a trial failed.
fn failed(error: &anyhow::Error) -> anyhow::Error {
    eprintln!("wattlock: not enabled, the file is as it was: {}", wattlock_shell::program::line(error));
    anyhow::Error::new(Code(TRIAL_FAILED))
}

fn disable(command: &Disable) -> Result<()> {
    let source = Source::read(&place::configuration(command.common.config.as_deref())?)?;
    let shown = source.path.display().to_string();
    let split = plan::split(&source.text).map_err(|error| error.context(shown.clone()))?;
    if !split.found {
        let conf = conf::Conf::read(&source.text).and_then(|conf| State::of(&conf));
        if let Ok(State { section: Some(section), place, .. }) = conf {
            bail!(
                "{shown}: {place} lists wattlock by hand, in [{section}]; what a person wrote is theirs to remove"
            );
        }
        say!("{shown}: not enabled, nothing to change");
        return Ok(());
    }
    put!("{}", diff::unified(&source.path, &source.text, &split.rest));
    crate::nginx::warn_before_the_provider_goes();
    if command.common.dry_run || !ask::agreed(command.common.yes)? {
        return Ok(());
    }
    source.replace(source.candidate(&split.rest)?)?;
    match source.backup_of(&split.rest) {
        Some(backup) if std::fs::remove_file(&backup).is_ok() => {
            say!("Disabled; {shown} is byte for byte what it was, and the backup is gone.");
        }
        _ => say!("Disabled in {shown}; other lines have changed since it was enabled and stay as they are."),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_setting_and_every_group_is_documented() {
        let page = include_str!("../../../../docs/use/openssl.md");
        let table = page.split("## Settings").nth(1).unwrap();
        for (key, _) in super::settings::KEYS {
            assert!(table.contains(&format!("\n| `{}` | ", key.to_str().unwrap())), "{key:?}");
        }
        for group in super::settings::GROUPS {
            assert!(page.contains(&format!("`{group}`")), "{group}");
        }
    }
}
