//! `wattlock openssl check`: whether programs use Wattlock, and each thing that keeps them from it in one line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use super::conf::Conf;
use super::elf::{self, Linked};
use super::place::{self, Source};
use super::plan::{self, State};
use super::settings::Settings;
use super::{PROBLEMS, trial};
use wattlock_door::Code;

/// Say whether Wattlock is enabled, loads and is used, and if not, why
#[derive(Debug, Args)]
pub struct Command {
    /// The file to look at; without it that of OPENSSL_CONF, else the system's
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Also say whether this program (or /proc/PID/exe) can use it; may be repeated
    #[arg(long = "program", value_name = "PATH")]
    programs: Vec<PathBuf>,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// How things stand.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    pub config: PathBuf,
    /// Whether the file has a section of ours.
    #[serde(skip)]
    pub configured: bool,
    /// Whether the file activates and prefers the provider.
    enabled: bool,
    /// Whether it was `wattlock openssl enable` that did it.
    by_command: bool,
    module: Option<String>,
    module_loads: bool,
    versions: Versions,
    properties: String,
    settings: BTreeMap<String, String>,
    /// What the provider says of policy and engines.
    build: String,
    offered: Vec<String>,
    /// What is not offered, and why.
    not_offered: BTreeMap<String, String>,
    programs: BTreeMap<PathBuf, Linked>,
    pub problems: Vec<String>,
}

#[derive(Debug, Default, Serialize)]
struct Versions {
    openssl: String,
    module: Option<String>,
    program: &'static str,
}

/// Looks at a file; without one at that of OPENSSL_CONF, else the system's.
///
/// # Errors
/// There is no OpenSSL, or no file could be meant.
pub fn look(config: Option<&Path>) -> Result<Report> {
    let path = place::configuration(config)?;
    let mut report = Report { config: path, ..Report::default() };
    report.versions =
        Versions { openssl: trial::version()?, module: None, program: env!("CARGO_PKG_VERSION") };
    let major = report.versions.openssl.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_some_and(|major| major < 3) {
        report.problem(format!(
            "OpenSSL {} has no providers; 3.0 is the first that has",
            report.versions.openssl
        ));
    }
    if let Err(error) = report.look() {
        report.problem(format!("{}: {}", report.config.display(), wattlock_shell::program::line(&error)));
    }
    Ok(report)
}

/// Runs the command.
pub fn run(command: &Command) -> Result<()> {
    let mut report = look(command.config.as_deref())?;
    for program in &command.programs {
        report.look_at(program);
    }
    if command.json {
        say!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        report.print()?;
    }
    for problem in &report.problems {
        eprintln!("wattlock: {problem}");
    }
    if report.problems.is_empty() { Ok(()) } else { Err(Code(PROBLEMS).into()) }
}

impl Report {
    /// In one line, where there is no problem.
    pub fn line(&self) -> String {
        let module = self.versions.module.as_deref().unwrap_or("unknown");
        format!("{}: OpenSSL {}, module {module}, enabled", self.config.display(), self.versions.openssl)
    }

    fn problem(&mut self, words: String) {
        self.problems.push(words);
    }

    fn look(&mut self) -> Result<()> {
        // A link is fine to read through; only a program that changes a file must know which.
        let path = self.config.canonicalize().unwrap_or_else(|_| self.config.clone());
        let text = match Source::read(&path) {
            Ok(source) => source.text,
            Err(error) => {
                self.problem(wattlock_shell::program::line(&error));
                return Ok(());
            }
        };
        self.by_command = plan::split(&text)?.found;
        let state = State::of(&Conf::read(&text)?)?;
        self.enabled = state.enabled();
        self.properties.clone_from(&state.properties);
        let file = self.config.display().to_string();
        self.configured = state.section.is_some();
        if state.section.is_none() {
            self.problem(format!("{file}: not enabled; `wattlock openssl enable` does it"));
            return Ok(());
        }
        if !state.active.iter().any(|name| name == "wattlock") {
            self.problem(format!(
                "{file}: wattlock is listed and not activated: its section has no `activate = 1`"
            ));
        }
        if !state.preferred() {
            let words = format!(
                "{file}: default_properties do not prefer Wattlock (?provider=wattlock): it is used by name only"
            );
            self.problem(words);
        }
        if state.fips() {
            self.problem(format!("{file}: default_properties ask for fips=yes, which Wattlock's algorithms are not: they are not used"));
        }
        if !state.active.iter().any(|name| name == "default" || name == "fips") {
            self.problem(format!(
                "{file}: neither default nor fips is activated: programs lack what Wattlock leaves to OpenSSL"
            ));
        }
        self.check_settings(&state, &file);
        self.load(&state)
    }

    fn check_settings(&mut self, state: &State, file: &str) {
        for entry in &state.settings {
            self.settings.insert(entry.name.clone(), entry.value.clone());
            let known = plan::known_key(&entry.name);
            let taken = known.and_then(|()| Ok(Settings::default().set(&entry.name, &entry.value)?));
            if let Err(error) = taken.and_then(|()| usable(entry.computed)) {
                self.problem(format!("{file}, {}: {}", entry.place, wattlock_shell::program::line(&error)));
            }
        }
    }

    fn load(&mut self, state: &State) -> Result<()> {
        let named = state.module.clone().unwrap_or_else(|| "wattlock.so".to_owned());
        let module = trial::named_folder("-m")?.join(&named);
        self.module = Some(module.display().to_string());
        if !module.is_file() {
            let undo = if self.by_command {
                "`make install`, then enable again; or `wattlock openssl disable`"
            } else {
                "the file names it by hand"
            };
            self.problem(format!("{}: the module is not there; {undo}", module.display()));
            return Ok(());
        }
        if let Some(loaded) = trial::loaded(&self.config)? {
            self.module_loads = true;
            self.describe(&loaded.build);
            if loaded.version != self.versions.program {
                let words = format!(
                    "the module is version {}, this program {}",
                    loaded.version, self.versions.program
                );
                self.problem(words);
            }
            self.versions.module = Some(loaded.version);
            return Ok(());
        }
        let settings: Vec<_> = self.settings.clone().into_iter().collect();
        match trial::refusal(&module.display().to_string(), &settings)? {
            Some(why) if self.problems.iter().any(|problem| problem.ends_with(&why)) => {}
            Some(why) => self.problem(format!("{}: the module does not load: {why}", module.display())),
            None if self.enabled => {
                self.module_loads = true;
                self.problem(format!(
                    "{}: the module loads by itself, but not with this file",
                    module.display()
                ));
            }
            None => self.module_loads = true,
        }
        Ok(())
    }

    /// Takes in the provider's build info: `wattlock 1.2.3 (policy ...; engines ...; offers a, b; not c: why)`.
    fn describe(&mut self, build: &str) {
        self.build = build.to_owned();
        let inner = build.split_once('(').map_or("", |(_, rest)| rest).trim_end_matches(')');
        for part in inner.split("; ") {
            if let Some(groups) = part.strip_prefix("offers ") {
                self.offered = groups.split(", ").map(str::to_owned).collect();
            } else if let Some((group, why)) =
                part.strip_prefix("not ").and_then(|part| part.split_once(": "))
            {
                self.not_offered.insert(group.to_owned(), why.to_owned());
            }
        }
    }

    fn look_at(&mut self, program: &Path) {
        let shown = program.display();
        let problem = match elf::linked(program) {
            Err(error) => Some(wattlock_shell::program::line(&error)),
            Ok(linked) => {
                self.programs.insert(program.to_owned(), linked);
                match linked {
                    Linked::Statically => {
                        Some(format!("{shown}: statically linked: it loads no libcrypto, and so no provider"))
                    }
                    Linked::BeforeProviders => {
                        Some(format!("{shown}: linked with a libcrypto older than 3, which has no providers"))
                    }
                    Linked::Inside => Some(format!(
                        "{shown}: it has an OpenSSL of its own inside, which this file and this module are not made for"
                    )),
                    Linked::OtherSection if elf::is_node(program) => Some(format!(
                        "{shown}: it reads the section {} of openssl.cnf, not openssl_conf, and so loads no provider; with \
                         --openssl-shared-config it reads the usual one",
                        elf::NODE
                    )),
                    Linked::OtherSection => Some(format!(
                        "{shown}: it names a section of its own of openssl.cnf, and may not read openssl_conf"
                    )),
                    Linked::OtherFile => Some(format!(
                        "{shown}: it names a configuration of its own, and may not read this file"
                    )),
                    Linked::Dynamically | Linked::NotSeen => None,
                }
            }
        };
        self.problems.extend(problem);
    }

    fn print(&self) -> Result<()> {
        let by = match (self.enabled, self.by_command) {
            (true, true) => "enabled by `wattlock openssl enable`",
            (true, false) => "enabled by hand",
            (false, _) => "not enabled",
        };
        say!("configuration  {}, {by}", self.config.display());
        if let Some(module) = &self.module {
            let loads = if self.module_loads { "loads" } else { "does not load" };
            say!("module         {module}, {loads}");
        }
        let module = self.versions.module.as_deref().unwrap_or("unknown");
        say!(
            "versions       OpenSSL {}, module {module}, this program {}",
            self.versions.openssl,
            self.versions.program
        );
        if !self.properties.is_empty() {
            say!("properties     {}", self.properties);
        }
        for (key, value) in &self.settings {
            say!("setting        {key} = {value}");
        }
        if !self.build.is_empty() {
            say!(
                "provider       {}",
                self.build.split("; offers").next().unwrap_or_default().replacen(" (", ": ", 1)
            );
            say!(
                "offers         {}",
                if self.offered.is_empty() { "nothing".to_owned() } else { self.offered.join(", ") }
            );
        }
        for (group, why) in &self.not_offered {
            say!("does not offer {group}: {why}");
        }
        for (program, linked) in &self.programs {
            let words = match linked {
                Linked::Dynamically => "loads libcrypto 3: it can use Wattlock",
                Linked::Statically | Linked::BeforeProviders | Linked::Inside => "cannot use Wattlock",
                Linked::OtherSection | Linked::OtherFile => {
                    "loads libcrypto 3, with settings of its own: it does not use Wattlock by itself"
                }
                Linked::NotSeen => "names no libcrypto: it loads one while it runs, if at all",
            };
            say!("program        {}, {words}", program.display());
        }
        Ok(())
    }
}

fn usable(computed: bool) -> Result<()> {
    anyhow::ensure!(!computed, "a variable stands in it, so what it means is not known here");
    Ok(())
}
