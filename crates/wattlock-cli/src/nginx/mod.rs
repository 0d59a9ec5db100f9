//! `wattlock nginx`: an installed nginx is made to use Wattlock, or not to; and what stands in the way is said.
//!
//! A configuration is never left in a state that nginx itself refuses: after each change `nginx -t` reads it, and what
//! it does not accept is put back.

mod change;
mod check;
mod edit;
mod file;
mod groups;
mod guard;
mod libcrypto;
mod lock;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use wattlock_shell::nginx::place::{Nginx, Places};
use wattlock_shell::setup::Choice;

use crate::service::{self, Guards, Service};
pub use check::{CONFIGURATION, Finding, LOAD_MODULE, look};
use check::{Check, check};
use file::read;

/// Make an installed nginx use Wattlock, or check what stands in the way
#[derive(Debug, Args)]
pub struct Command {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Give nginx the module and the provider, and turn them on for all its servers
    Enable(Enable),
    /// Take out what `enable` added
    Disable(Change),
    /// Say whether this nginx can use Wattlock, and whether it does
    Check(Check),
    /// Before a start: take out what `enable` added if nginx would not start with it
    Guard(About),
}

#[derive(Debug, Args)]
struct Enable {
    #[command(flatten)]
    change: Change,
    /// Offer X25519MLKEM768 before other groups, too, unless a server has groups of its own
    #[arg(long)]
    hybrid: bool,
    /// Change nginx.conf alone, and leave the provider to the system's openssl.cnf, where `wattlock openssl enable` turns
    /// it on for every program; so it is with --prefix, --openssl-lib, and the --config of another nginx
    #[arg(long)]
    all_programs: bool,
    /// Restart nginx's service, too
    #[arg(long)]
    restart: bool,
}

#[derive(Debug, Args)]
struct Change {
    #[command(flatten)]
    about: About,
    /// Show what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

#[derive(Debug, Clone, Args)]
struct About {
    /// The configuration; without it, the one that nginx was built for
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// nginx's prefix, as its own option -p
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
    #[command(flatten)]
    places: Places,
}

/// What nginx's service is called, and Wattlock's command.
const NAME: &str = "nginx";

/// nginx's configuration, if the program does not say.
const USUAL: &str = "/etc/nginx/nginx.conf";

/// Runs the command.
pub fn run(command: &Command, choice: &Choice) -> Result<()> {
    match &command.what {
        What::Enable(command) => change::enable(command, choice),
        What::Disable(change) => change::disable(change),
        What::Check(wanted) => check(wanted, choice),
        What::Guard(about) => {
            guard::run(about);
            Ok(())
        }
    }
}

/// Says which lines keep nginx from starting once its OpenSSL has no provider.
fn warn_of_groups(nginx: &Nginx, file: &Path) {
    for line in groups::that_need_the_provider(nginx, file) {
        eprintln!(
            "wattlock: {line}: {}; nginx does not start without it: change the line before `wattlock openssl disable`",
            groups::remedy()
        );
    }
}

/// The same before the provider goes, of the nginx that is installed, if there is one.
pub fn warn_before_the_provider_goes() {
    let about = About { config: None, prefix: None, places: Places::default() };
    if let Ok(nginx) = about.places.nginx()
        && let Ok(file) = about.named(&nginx)
    {
        warn_of_groups(&nginx, &file);
    }
}

impl About {
    /// A command that does not name the provider.
    fn refuse_provider(&self) -> Result<()> {
        let none = self.places.provider.is_none();
        ensure!(
            none,
            "--provider does nothing here: `wattlock openssl enable` names the provider, in openssl.cnf"
        );
        Ok(())
    }

    /// Whether the configuration is the one that nginx was built for.
    fn is_usual(&self, nginx: &Nginx, file: &Path) -> bool {
        self.is_at(nginx.built_with("--conf-path=").unwrap_or(USUAL), file)
    }

    /// Whether the configuration is the one of this machine's nginx, which its service starts with, and not that of a
    /// second nginx beside one which is guarded.
    fn is_of_the_service(&self, nginx: &Nginx, file: &Path) -> bool {
        match Service::of(NAME, &nginx.program).option("-c") {
            Some(starts) => self.is_at(&starts, file),
            None => self.is_usual(nginx, file) && self.guards(nginx, file) != Guards::Another,
        }
    }

    /// Whether what [`change::enable`] wrote beside the lines is this configuration's: whatever starts nginx by now.
    fn has_the_guard(&self, nginx: &Nginx, file: &Path) -> bool {
        match self.guards(nginx, file) {
            Guards::This => true,
            Guards::Nothing => self.is_usual(nginx, file) || self.is_of_the_service(nginx, file),
            Guards::Another => false,
        }
    }

    fn guards(&self, nginx: &Nginx, file: &Path) -> Guards {
        match self.prefix.is_none() && self.places.openssl_lib.is_none() {
            true => service::guards(NAME, &nginx.program, file),
            false => Guards::Another,
        }
    }

    fn is_at(&self, place: &str, file: &Path) -> bool {
        let place = Path::new(place).canonicalize();
        self.prefix.is_none() && self.places.openssl_lib.is_none() && place.is_ok_and(|place| place == file)
    }

    /// The `openssl.cnf` of nginx's own that its configuration names.
    fn own_conf(&self, nginx: &Nginx) -> Option<PathBuf> {
        edit::conf(&read(&self.file(nginx).ok()?).ok()?)
    }

    /// The module that a file loads which the configuration includes outside of all blocks, and that file: Debian's packages
    /// of modules have such files. nginx refuses a module that is loaded twice.
    fn loaded(&self, nginx: &Nginx, file: &Path, text: &str) -> Option<(PathBuf, PathBuf)> {
        let folder = file.parent()?;
        let prefix = self.prefix.clone().or_else(|| nginx.built_with("--prefix=").map(PathBuf::from));
        let files = edit::included(text).into_iter().flat_map(|pattern| groups::included(folder, &pattern));
        let mut loads = files.flat_map(|by| {
            let modules = read(&by).map(|text| edit::modules(&text)).unwrap_or_default();
            modules.into_iter().map(move |module| (by.clone(), module))
        });
        // As nginx does: what is relative is so to its prefix.
        let (by, module) = loads.next()?;
        let module = prefix.unwrap_or_default().join(module);
        Some((by, module.canonicalize().unwrap_or(module)))
    }

    /// The configuration, by the name that nginx starts with: what it includes is relative to that name's folder.
    fn named(&self, nginx: &Nginx) -> Result<PathBuf> {
        let built = nginx.built_with("--conf-path=").unwrap_or(USUAL);
        let named = self.config.as_deref().unwrap_or(Path::new(built));
        std::path::absolute(named).with_context(|| named.display().to_string())
    }

    /// The configuration, links resolved: what is replaced must be the file and not a link to it.
    fn file(&self, nginx: &Nginx) -> Result<PathBuf> {
        let named = self.named(nginx)?;
        named.canonicalize().with_context(|| named.display().to_string())
    }
}
