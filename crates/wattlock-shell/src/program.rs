//! What the three programs share between `main` and a command: words, signals, the log, one line for an error and the
//! exit code that belongs to it; and how one of them becomes another.
//!
//! `wattlock-bench` and `wattlock-lab` read the same command lines as `wattlock` hands on, `wattlock bench lanes`, and
//! take the first word as said where it is missing: `wattlock-bench lanes`.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use wattlock_door::{Exit, Known, exit_of, known};

use crate::definition::Definition;
use crate::{INTERRUPTED, environment, handed, heeded, help, setup};

/// The program of users.
pub const WATTLOCK: &str = "wattlock";
/// The program of benches.
pub const BENCH: &str = "wattlock-bench";
/// The program of simulations and reports.
pub const LAB: &str = "wattlock-lab";
/// `wattlock` with emulated cards, for tests, benches and the lab: beside `wattlock` only in a build folder.
pub const EMULATED: &str = "wattlock-emulated";
/// Where the package of benches and the lab has it, from the folder of programs.
const TOOLS: &str = "../lib/wattlock-tools";

/// The program that copies topics of Kafka.
pub const BRIDGE: &str = "wattlock-bridge";

/// Exit code for a program of ours that is not there; the one of `energy` for a command that is not found.
pub const NOT_FOUND: u8 = 127;
/// Exit code for options that make no sense, and what it means.
pub const NONSENSE: (u8, &str) = (60, "lab: an option or a policy's setting makes no sense");

/// A program's command line, parsed, and what differs between programs.
pub trait Program: CommandFactory + FromArgMatches {
    /// What stands below its commands' own help (`help.rs`).
    const HELP: &'static str;

    /// The commit that it is built from, with `+` if it was changed (`build.rs` of `wattlock-bench`).
    const COMMIT: &'static str;

    /// Its command line.
    fn words() -> Vec<OsString>;

    /// An answer of its own to words that it does not take.
    fn refusal(_: &clap::Error) -> Option<ExitCode> {
        None
    }

    /// An error that says that an option of [`Choice`](crate::setup::Choice) does nothing.
    fn ignored(&self, text: String) -> anyhow::Error {
        wattlock_door::Error::Usage(text).into()
    }

    /// Whether it hands signals on instead of ending by them.
    fn hands_signals_on(&self) -> bool {
        false
    }

    /// An error that ends the command, for a command that prints JSON: nothing else tells it apart from its lines.
    fn failed(&self, _line: &str, _code: u8) {}

    /// Whether it has something to clean up when it is interrupted.
    fn cleans_up(&self) -> bool;

    /// Whether it ends when its cleaning up is done, however often it is interrupted in the first minute: what it leaves
    /// behind would outlive it.
    fn insists_on_cleaning_up(&self) -> bool {
        false
    }

    /// What an interrupt does besides.
    fn on_interrupt() {}

    /// Does what was asked for.
    ///
    /// # Errors
    /// The command's.
    fn run(&self) -> Result<()>;

    /// The errors that have an exit code of their own.
    const ENDS: &[Known] =
        &[known::<NotInstalled>, known::<wattlock_door::Error>, known::<wattlock_files::Error>];
}

/// A program from its words to its exit code.
pub fn main<P: Program>() -> ExitCode {
    if std::env::args_os().skip(1).eq([DEFINITIONS]) {
        return match print_definitions::<P>() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error, P::ENDS),
        };
    }
    let (matches, program) = match parse::<P>() {
        Ok(parsed) => parsed,
        Err(error) => return P::refusal(&error).unwrap_or_else(|| answer::<P>(&error)),
    };
    log_to_stderr();
    let _ = ASKED.set(heeded::path(&matches));
    if let Some((option, path)) = heeded::ignored(&matches) {
        let text = format!("--{option} does nothing for `wattlock {path}`: leave it out");
        return fail(&program.ignored(text), P::ENDS);
    }
    if matches.value_source("emulate") == Some(ValueSource::CommandLine) && setup::emulation().is_none() {
        return fail(&become_emulated(), P::ENDS);
    }
    INSISTS.store(program.insists_on_cleaning_up(), Ordering::SeqCst);
    // A second interrupt kills: the first asked the work to stop and clean up, which takes a moment at most.
    let handled = if program.hands_signals_on() { Ok(()) } else { handle_interrupts(P::on_interrupt) };
    if let Err(error) = handled {
        tracing::debug!(%error, "no interrupt handler");
    }
    // A file that grows beyond the limit of its size (`ulimit -f`) is an error that has a line and an exit code. With a
    // handler, and not ignored, since programs that this one starts would have that from it.
    let _ = signal_hook::flag::register(libc::SIGXFSZ, Arc::default());
    // Nothing to clean up: stop at once.
    AT_ONCE.store(!program.cleans_up(), Ordering::SeqCst);
    match program.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if error.downcast_ref::<Told>().is_none() {
                program.failed(&line(&error), code_of(&error, P::ENDS));
            }
            fail(&error, P::ENDS)
        }
    }
}

/// What one of these programs is called with to print its command line as data ([`Definition`]).
const DEFINITIONS: &str = "--definitions";

/// All its commands, as their help has them.
pub fn command<P: Program>() -> clap::Command {
    let command = heeded::shown(P::command()).long_version(&*version(P::COMMIT).leak());
    let command = help::with_examples(command, WATTLOCK, P::HELP);
    let below = command.get_after_help().map(|text| format!("{text}\n\n")).unwrap_or_default();
    command.after_long_help(below + &environment::help())
}

fn print_definitions<P: Program>() -> Result<()> {
    put!("{}", serde_json::to_string(&Definition::of(&command::<P>()))?);
    Ok(())
}

/// The command line of another program of ours, as it prints it itself; none if the program is not there.
///
/// # Errors
/// It does not start, or is of a version that does not know the question.
pub fn definition_of(name: &'static str) -> Result<Option<Definition>> {
    let Some(program) = find(name) else { return Ok(None) };
    let asked = Command::new(&program).arg(DEFINITIONS).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let asked = asked.with_context(|| program.display().to_string())?;
    let known = serde_json::from_slice(&asked.stdout).ok().filter(|_| asked.status.success());
    known.map(Some).with_context(|| format!("{}: of another version", program.display()))
}

/// Version, commit and what the program was built with, a line each. The same sources give the same text.
fn version(commit: &str) -> String {
    let commit = match commit.strip_suffix('+') {
        Some(name) => format!("{name}, changed"),
        None => commit.to_owned(),
    };
    let cards = if setup::emulation().is_some() { "with" } else { "without" };
    format!(
        "{}\ncommit {commit}\nfor {} on {}, {cards} emulated cards",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH,
        std::env::consts::OS
    )
}

fn parse<P: Program>() -> Result<(ArgMatches, P), clap::Error> {
    let mut command = command::<P>();
    let matches = command.try_get_matches_from_mut(P::words())?;
    let program = P::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    Ok((matches, program))
}

/// What was asked for (help, the version) or what is wrong, in clap's words and with its exit code.
fn answer<P: Program>(error: &clap::Error) -> ExitCode {
    match error.print().map_err(wattlock_files::Error::writing) {
        Err(lost) if error.exit_code() == 0 => fail(&lost.into(), P::ENDS),
        _ => u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from),
    }
}

/// The command that was asked for: `seal`, or `fs key add`.
static ASKED: OnceLock<String> = OnceLock::new();

/// What counters, which other users may read, call this program: `wattlock` and the command that was asked for, as it is
/// parsed. No path that it was started by (mount(8) starts `mount.wattlock`), and no argument, which may be a volume's.
pub(crate) fn name_of_counters() -> String {
    named(ASKED.get().map_or("", String::as_str))
}

fn named(asked: &str) -> String {
    match asked.split_ascii_whitespace().next() {
        Some(command) => format!("{WATTLOCK} {command}"),
        None => WATTLOCK.to_owned(),
    }
}

/// Where the help is for what was asked.
fn try_help() -> String {
    let asked = ASKED.get().map_or("", String::as_str);
    format!("Try 'wattlock {asked} --help'.")
}

/// Whether already the first interrupt ends the program. It is not [`INTERRUPTED`]: nothing was interrupted yet,
/// and a question at the terminal may be answered.
static AT_ONCE: AtomicBool = AtomicBool::new(false);

/// Whether no interrupt ends the program before it has cleaned up or had [`PATIENCE`] for it.
static INSISTS: AtomicBool = AtomicBool::new(false);

/// Where a file system or a driver does not answer, cleaning up does not end.
const PATIENCE: Duration = Duration::from_secs(60);

fn handle_interrupts(also: fn()) -> Result<(), ctrlc::Error> {
    let mut first = None;
    ctrlc::set_handler(move || {
        also();
        let since = first.get_or_insert_with(Instant::now).elapsed();
        let patient = INSISTS.load(Ordering::SeqCst) && since < PATIENCE;
        let again = INTERRUPTED.swap(true, Ordering::SeqCst) && !patient;
        if again || AT_ONCE.load(Ordering::SeqCst) {
            std::process::exit(130);
        }
    })
}

/// The exit code that belongs to an error.
fn code_of(error: &anyhow::Error, ends: &[Known]) -> u8 {
    exit_of(error.chain(), ends).map_or(1, Exit::code)
}

/// One line on standard error, unless it was told already, and the exit code that belongs to the error.
pub fn fail(error: &anyhow::Error, ends: &[Known]) -> ExitCode {
    let end = exit_of(error.chain(), ends);
    if error.downcast_ref::<Told>().is_none() && !end.is_some_and(Exit::is_silent) {
        eprintln!("wattlock: {}", line(error));
    }
    if end.is_some_and(Exit::is_usage) {
        eprintln!("{}", try_help());
    }
    end.map_or(ExitCode::FAILURE, |end| ExitCode::from(end.code()))
}

/// Marks an error whose line has already been printed, as its context.
#[derive(Debug, Clone, Copy)]
pub struct Told;

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("told already")
    }
}

/// Everything an error says, once: our own errors already quote what caused them.
pub fn line(error: &anyhow::Error) -> String {
    let mut said: Vec<String> = Vec::new();
    for cause in error.chain().map(ToString::to_string) {
        if !said.last().is_some_and(|last| last.ends_with(&cause)) {
            said.push(cause);
        }
    }
    said.join(": ").replace(char::is_control, " ")
}

/// Warnings to standard error; more with `WATTLOCK_LOG=debug`.
fn log_to_stderr() {
    use tracing_subscriber::filter::{LevelFilter, Targets};
    use tracing_subscriber::prelude::*;
    // Not `EnvFilter`, which brings an engine of regular expressions for spans that are never opened.
    let wanted = std::env::var("WATTLOCK_LOG").ok().and_then(|words| words.parse::<Targets>().ok());
    let filter = wanted.unwrap_or_else(|| Targets::new().with_default(LevelFilter::WARN));
    let colours =
        std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    // Its own complaint, that a line could not be written, would panic where standard error is closed.
    let lines = lines.with_ansi(colours).without_time().log_internal_errors(false);
    tracing_subscriber::registry().with(lines.with_filter(filter)).init();
}

/// Where the first word stands that is no option of the whole program; after `help`, the word that help is wanted for.
fn command_at(words: &[OsString]) -> usize {
    let mut at = 1;
    while let Some(word) = words.get(at).and_then(|word| word.to_str()) {
        let global = heeded::LONG.iter().any(|long| {
            word.strip_prefix("--").is_some_and(|word| {
                word == *long || word.strip_prefix(long).is_some_and(|rest| rest.starts_with('='))
            })
        });
        match (global, word.contains('=')) {
            (true, false) => at += 2,
            (true, true) => at += 1,
            (false, _) => break,
        }
    }
    if words.get(at).is_some_and(|word| word == "help") { at + 1 } else { at }
}

/// The program that does a command which is not `wattlock`'s own.
pub fn elsewhere(words: &[OsString]) -> Option<&'static str> {
    match words.get(command_at(words))?.to_str()? {
        "bench" => Some(BENCH),
        "lab" | "report" => Some(LAB),
        _ => None,
    }
}

/// A command line as `wattlock` would hand it on: begins with one of these commands, the first if none is said.
pub fn handed_on(mut words: Vec<OsString>, commands: &[&str]) -> Vec<OsString> {
    // Help says the command as it is documented.
    if let Some(program) = words.first_mut() {
        *program = WATTLOCK.into();
    }
    let at = command_at(&words).min(words.len());
    let says = |word: &OsString, wanted: &[&str]| wanted.iter().any(|one| word == OsStr::new(one));
    if !words.get(at).is_some_and(|word| says(word, commands) || says(word, &["-V", "--version"])) {
        words.insert(at, commands[0].into());
    }
    words
}

/// A program of ours that is neither beside this one nor on the path.
#[derive(Debug)]
pub struct NotInstalled(pub &'static str);

impl std::fmt::Display for NotInstalled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            EMULATED => f.write_str(
                "no emulated cards in this build: `wattlock-emulated` has them, which `make build` puts beside its \
                 `wattlock`, the package wattlock-tools installs, and `make install` leaves out",
            ),
            BRIDGE => f.write_str("there is no wattlock-bridge here: `make bridge` builds it (librdkafka, some minutes)"),
            name => write!(f, "there is no {name} beside this program or on PATH: `make build` builds it"),
        }
    }
}

impl std::error::Error for NotInstalled {}

impl Exit for NotInstalled {
    fn code(&self) -> u8 {
        NOT_FOUND
    }
}

/// Becomes another program of ours, with the words, the environment and the streams of this one. Returns if it cannot.
pub fn become_another(name: &'static str) -> anyhow::Error {
    let Some(program) = find(name) else { return NotInstalled(name).into() };
    become_program(name, Command::new(program))
}

/// Becomes this program with emulated cards, under the name that this one was called by. Returns if it cannot.
pub fn become_emulated() -> anyhow::Error {
    let Some(program) = find(EMULATED) else { return NotInstalled(EMULATED).into() };
    let mut command = Command::new(program);
    if let Some(name) = std::env::args_os().next() {
        command.arg0(name);
    }
    become_program(EMULATED, command)
}

fn become_program(name: &str, mut program: Command) -> anyhow::Error {
    handed::hand_on();
    let error = program.args(std::env::args_os().skip(1)).exec();
    anyhow::Error::from(error).context(format!("running {name}"))
}

/// Where `wattlock` is, for a program that measures it.
///
/// # Errors
/// [`NotInstalled`].
pub fn wattlock() -> Result<PathBuf> {
    find(WATTLOCK).ok_or_else(|| NotInstalled(WATTLOCK).into())
}

fn find(name: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().and_then(|path| path.canonicalize()).ok();
    let beside = own.as_deref().and_then(Path::parent).map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let tools = beside.as_deref().map(|folder| folder.join(TOOLS));
    let folders = beside.into_iter().chain(tools).chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join(name)).find(|program| program.is_file())
}

/// For programs' tests: arguments are well-formed, and every command has an example.
///
/// # Panics
/// They are not, or a command has none.
pub fn check<P: Program>() {
    command::<P>().debug_assert();
    let mut left: Vec<clap::Command> = command::<P>().get_subcommands().cloned().collect();
    while let Some(command) = left.pop() {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(help.contains("Example"), "{} has no example", command.get_name());
        left.extend(command.get_subcommands().cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn counters_are_called_by_the_command_and_by_no_argument_or_path() {
        assert_eq!(
            [named("mount"), named("fs key add"), named("")],
            ["wattlock mount", "wattlock fs", "wattlock"]
        );
        // `mount.wattlock VOLUME MOUNTPOINT` of mount(8) is parsed to the same command.
        let asked = |words: &[&str]| {
            let command = clap::Command::new("mount").arg(clap::Arg::new("volume").num_args(0..));
            heeded::path(&clap::Command::new("wattlock").subcommand(command).get_matches_from(words))
        };
        assert_eq!(
            named(&asked(&["/sbin/mount.wattlock", "mount", "/home/a/secret", "/mnt"])),
            "wattlock mount"
        );
    }

    #[test]
    fn an_error_says_each_thing_once() {
        let cause = std::io::Error::from_raw_os_error(21);
        let error = wattlock_files::Error::Door(wattlock_door::Error::Io {
            what: "reading a key file".into(),
            source: cause,
        });
        let error = anyhow::Error::new(error).context("/tmp");
        assert_eq!(line(&error), "/tmp: reading a key file: Is a directory (os error 21)");
    }

    #[test]
    fn benches_and_the_lab_are_other_programs_wherever_options_stand() {
        for (line, program) in [
            ("wattlock bench lanes", Some(BENCH)),
            ("wattlock --emulate dh8970 bench engines", Some(BENCH)),
            ("wattlock --policy=qweb --set a=b lab qweb", Some(LAB)),
            ("wattlock help lab fit", Some(LAB)),
            ("wattlock report -o x", Some(LAB)),
            ("wattlock seal bench", None),
            ("wattlock --emulate bench", None),
            ("wattlock --policyx bench", None),
            ("wattlock", None),
        ] {
            assert_eq!(elsewhere(&words(line)), program, "{line}");
        }
    }

    #[test]
    fn the_first_word_may_be_left_out() {
        for (line, whole) in [
            ("w", "wattlock bench"),
            ("w lanes", "wattlock bench lanes"),
            ("w bench lanes", "wattlock bench lanes"),
            ("w serve . --compare", "wattlock serve . --compare"),
            ("w --emulate x engines", "wattlock --emulate x bench engines"),
            ("w --json=x", "wattlock bench --json=x"),
            ("w help lanes", "wattlock help bench lanes"),
            ("w --version", "wattlock --version"),
        ] {
            assert_eq!(handed_on(words(line), &["bench", "serve"]), words(whole), "{line}");
        }
    }
}
