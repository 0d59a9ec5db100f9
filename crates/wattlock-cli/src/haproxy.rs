//! `wattlock haproxy`: HAProxy's service, and no other program, gets an `openssl.cnf` with the provider. HAProxy's own
//! configuration is not touched, and handshakes do not pause (docs/use/haproxy.md).

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use wattlock_door::one_line;
use wattlock_shell::parts;

use crate::ask;
use crate::changes::{Change, make_all, undo_all};
use crate::openssl::{own, place};
use crate::service::{self, Service, Wish};
use crate::trusted;
use crate::within::within;

const NAME: &str = "haproxy";

const PROGRAM: &str = "/usr/sbin/haproxy";

/// What Debian's unit starts with.
const CONFIGURATION: &str = "/etc/haproxy/haproxy.cfg";

/// How long `haproxy -c` may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// Have HAProxy's service use Wattlock's provider, or not
#[derive(Debug, Args)]
pub struct Command {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Give the service an openssl.cnf of its own, with the provider
    Enable(Enable),
    /// Take out what `enable` added
    Disable(Common),
}

#[derive(Debug, Args)]
struct Common {
    /// Show what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Restart the service, too
    #[arg(long)]
    restart: bool,
}

#[derive(Debug, Args)]
struct Enable {
    #[command(flatten)]
    common: Common,
    /// The provider; without it, the installed one, else the one built with this program
    #[arg(long, value_name = "PATH")]
    provider: Option<PathBuf>,
}

/// Runs the command.
pub fn run(command: &Command) -> Result<()> {
    match &command.what {
        What::Enable(command) => enable(command),
        What::Disable(common) => disable(common),
    }
}

fn enable(command: &Enable) -> Result<()> {
    let program = Path::new(PROGRAM).canonicalize().context("no haproxy is installed")?;
    let service = Service::of(NAME, &program);
    if !service.has_unit() {
        bail!("no haproxy.service of systemd starts {}: give it OPENSSL_CONF by hand", program.display());
    }
    if own::is_for_all()? {
        say!("the system's openssl.cnf has Wattlock for every program, haproxy too: nothing to change");
        return Ok(());
    }
    if let Some(place) = service.sets()? {
        bail!("{} gives haproxy another OPENSSL_CONF: take that line out first", one_line(&place));
    }
    let provider = place::module_to_stay(command.provider.as_deref())?;
    trusted::only_by_root(&provider)?;
    for warning in parts::warnings(&provider, "haproxy does without Wattlock") {
        eprintln!("wattlock: {warning}");
    }
    let conf = own::path(NAME);
    let with = |before: Option<&[u8]>| own::with(before, NAME, &provider).map(Some);
    let first = [Change::of(&conf, with)?];
    let last = service.changes(&Wish { conf: Some(&conf), guard: None })?;
    let all = first.iter().chain(&last);
    if all.clone().all(Change::is_none) {
        say!("haproxy has it already: nothing to change");
        return Ok(());
    }
    for change in all {
        put!("{}", change.shown());
    }
    if command.common.dry_run || !ask::agreed(command.common.yes)? {
        return Ok(());
    }
    make_all(&first)?;
    let tried = own::tried(&conf, &provider).and_then(|()| accepted(&program, Some(&conf)));
    if let Err(error) = tried.and_then(|()| make_all(&last)) {
        undo_all(&first)?;
        return Err(error.context("everything is as it was"));
    }
    if !Path::new("/run/systemd/system").is_dir() {
        say!(
            "systemd does not run here, and the drop-in is for it: set OPENSSL_CONF={} where haproxy is started",
            conf.display()
        );
    }
    let undo = || undo_all(&last).and(undo_all(&first));
    settled(&service, &command.common, undo)
}

/// Asks haproxy whether it takes its configuration with this `openssl.cnf`, else with the system's.
fn accepted(program: &Path, conf: Option<&Path>) -> Result<()> {
    if !Path::new(CONFIGURATION).exists() {
        return Ok(());
    }
    let mut command = std::process::Command::new(program);
    command.args(["-c", "-q", "-f", CONFIGURATION]).env_remove("OPENSSL_CONF");
    command.envs(conf.map(|conf| ("OPENSSL_CONF", conf)));
    let (ended, said) = within(command, PATIENCE)?;
    if ended.is_some_and(|status| status.success()) {
        return Ok(());
    }
    let wrong = said.lines().find(|line| line.contains("[ALERT]")).or(said.lines().next());
    let how = ended.map_or_else(|| "no answer".to_owned(), |status| status.to_string());
    bail!("haproxy -c refuses {CONFIGURATION}: {}", wrong.map_or(how, str::to_owned))
}

fn disable(common: &Common) -> Result<()> {
    let changes = service::removals(NAME)?;
    if changes.is_empty() {
        say!("haproxy has nothing of Wattlock's: nothing to change");
        return Ok(());
    }
    for change in &changes {
        put!("{}", change.shown());
    }
    needs_the_provider().map_or(Ok(()), |why| match common.yes {
        // Of a package that goes, too, and its provider with it.
        true => {
            eprintln!("wattlock: warning: {why}");
            Ok(())
        }
        false if common.dry_run => {
            say!("{why}");
            Ok(())
        }
        false => bail!("{why}; or say --yes"),
    })?;
    if common.dry_run || !ask::agreed(common.yes)? {
        return Ok(());
    }
    make_all(&changes)?;
    settled(&Service::of(NAME, Path::new(PROGRAM)), common, || undo_all(&changes))?;
    service::name_what_stays(&changes, NAME)
}

/// Why haproxy does not start without the provider, if it does with it.
fn needs_the_provider() -> Option<String> {
    let (program, conf) = (Path::new(PROGRAM), own::path(NAME));
    if !program.exists() || accepted(program, Some(&conf)).is_err() {
        return None;
    }
    let error = accepted(program, None).err()?;
    Some(format!("haproxy does not start without the provider: {error:#}: change that first"))
}

/// Has the service take it; undoes all if it does not restart.
fn settled(service: &Service, common: &Common, undo: impl FnOnce() -> Result<()>) -> Result<()> {
    service.settle_or(common.restart, undo)?;
    if !common.restart {
        say!("to take effect: {}", service.restart());
    }
    Ok(())
}
