//! `wattlock`: seal, open, gzip, sum, calibrate, energy, bench, engines, status, openssl.
//!
//! The command line parses, asks, shows and reports; it does no cryptography and chooses no engine.
#![forbid(unsafe_code)]

#[macro_use]
extern crate wattlock_shell;

mod ask;
mod calibrate;
mod clocks;
mod cpu;
mod energy;
mod engines;
mod files;
mod fs;
mod gzip;
mod keygen;
mod lab;
mod mount;
mod nginx;
mod openssl;
mod report;
mod serve;
mod status;
mod stream;
mod sum;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use wattlock_shell::{INTERRUPTED, heeded, setup, text};

/// Do bulk cryptography on whichever engine takes the least time or the fewest joules
#[derive(Debug, Parser)]
#[command(
    name = "wattlock",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = "Examples:\n  wattlock keygen -o key.txt                                       prints the recipient, age1...\n  wattlock seal -r age1... backup.tar                              writes backup.tar.sealed\n  wattlock open -i key.txt -o restored.tar backup.tar.sealed\n\nThe options that choose engines and policies: wattlock seal --help"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    choice: setup::Choice,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(alias = "encrypt")]
    Seal(files::Seal),
    #[command(alias = "decrypt")]
    Open(files::Open),
    Gzip(gzip::Command),
    Sum(sum::Command),
    Keygen(keygen::Command),
    Calibrate(calibrate::Command),
    Energy(energy::Command),
    Bench(wattlock_bench::Command),
    Report(report::Command),
    Fs(fs::Command),
    Mount(mount::Command),
    Umount(mount::Umount),
    Lab(lab::Command),
    Serve(serve::Command),
    Nginx(nginx::Command),
    Engines(engines::Command),
    Clocks(clocks::Command),
    Status(status::Command),
    Stream(stream::Command),
    Openssl(openssl::Command),
    /// List what each exit code means
    #[command(after_help = "Example:\n  wattlock exit-codes")]
    ExitCodes,
}

fn main() -> ExitCode {
    let (matches, arguments) = match parse() {
        Ok(parsed) => parsed,
        Err(error) => {
            let asked = lab::refusal(&error).or_else(ages_option);
            return asked.unwrap_or_else(|| answer(&error));
        }
    };
    log_to_stderr();
    let _ = ASKED.set(heeded::path(&matches));
    if let Some((option, path)) = heeded::ignored(&matches) {
        return fail(&does_nothing(option, &path, &arguments));
    }
    // A second interrupt kills: the first asked the work to stop and clean up, which takes a moment at most.
    // `energy` hands signals on to the command it measures.
    let own_signals = matches!(arguments.command, Command::Energy(_));
    let handled = if own_signals { Ok(()) } else { handle_interrupts() };
    if let Err(error) = handled {
        tracing::debug!(%error, "no interrupt handler");
    }
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn parse() -> Result<(ArgMatches, Arguments), clap::Error> {
    let mut command = heeded::shown(Arguments::command());
    let matches = command.try_get_matches_from_mut(mount::as_asked(std::env::args_os().collect()))?;
    let arguments = Arguments::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    Ok((matches, arguments))
}

/// What was asked for (help, the version) or what is wrong, in clap's words and with its exit code.
fn answer(error: &clap::Error) -> ExitCode {
    match error.print().map_err(wattlock_files::Error::writing) {
        Err(lost) if error.exit_code() == 0 => fail(&lost.into()),
        _ => u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from),
    }
}

/// The command that was asked for: `seal`, or `fs key add`.
static ASKED: OnceLock<String> = OnceLock::new();

/// Where the help is for what was asked.
fn try_help() -> String {
    let asked = ASKED.get().map_or("", String::as_str);
    format!("Try '{} {asked} --help'.", Arguments::command().get_name())
}

/// Users of age type its options first.
fn ages_option() -> Option<ExitCode> {
    let first = std::env::args_os().nth(1)?;
    let (own, age) = match first.to_str()? {
        option @ ("-d" | "--decrypt") => ("open -i key.txt FILE", option),
        option @ ("-e" | "--encrypt" | "-r" | "-R" | "-p" | "--recipient" | "--passphrase") => {
            ("seal -r age1... FILE", option)
        }
        _ => return None,
    };
    eprintln!("wattlock: age's {age} is `wattlock {own}`");
    Some(ExitCode::from(2))
}

fn does_nothing(option: &str, path: &str, arguments: &Arguments) -> anyhow::Error {
    let text = format!("--{option} does nothing for `wattlock {path}`: leave it out");
    match arguments.command {
        Command::Lab(_) => wattlock_lab::Error::Policy(text).into(),
        _ => wattlock_files::Error::Usage(text).into(),
    }
}

/// Whether already the first interrupt ends the program. It is not [`INTERRUPTED`]: nobody has interrupted anything yet,
/// and a question at the terminal may be answered.
static AT_ONCE: AtomicBool = AtomicBool::new(false);

fn handle_interrupts() -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(|| {
        stream::ring();
        if INTERRUPTED.swap(true, Ordering::SeqCst) || AT_ONCE.load(Ordering::SeqCst) {
            std::process::exit(130);
        }
    })
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let choice = &arguments.choice;
    let interruptible = match &arguments.command {
        Command::Seal(_) | Command::Open(_) | Command::Gzip(_) | Command::Serve(_) | Command::Nginx(_) => {
            true
        }
        Command::Mount(_) => true,
        Command::Stream(command) => command.cleans_up(),
        Command::Bench(command) => command.cleans_up(),
        Command::Fs(command) => command.cleans_up(),
        _ => false,
    };
    // Nothing to clean up: stop at once.
    AT_ONCE.store(!interruptible, Ordering::SeqCst);
    match &arguments.command {
        Command::Seal(command) => files::seal(command, choice),
        Command::Open(command) => files::open(command, choice),
        Command::Gzip(command) => gzip::run(command, choice),
        Command::Sum(command) => sum::run(command, choice),
        Command::Keygen(command) => keygen::run(command),
        Command::Calibrate(command) => calibrate::run(command, choice),
        Command::Energy(command) => energy::run(command),
        Command::Bench(command) => wattlock_bench::run(command, choice),
        Command::Report(command) => report::run(command),
        Command::Fs(command) => fs::run(command, choice),
        Command::Mount(command) => mount::run(command, choice),
        Command::Umount(command) => mount::umount(command),
        Command::Lab(command) => lab::run(command, choice),
        Command::Serve(command) => serve::run(command, choice),
        Command::Nginx(command) => nginx::run(command, choice),
        Command::Engines(command) => engines::run(command, choice),
        Command::Clocks(command) => clocks::run(command),
        Command::Status(command) => status::run(command),
        Command::Stream(command) => stream::run(command, choice),
        Command::Openssl(command) => openssl::run(command, choice),
        Command::ExitCodes => {
            put!("{}", exit_codes());
            Ok(())
        }
    }
}

fn exit_codes() -> String {
    let own = [(0_u8, "done"), (1, "any other failure")];
    let commands = energy::exit_codes().iter().chain([&lab::NONSENSE]).chain(openssl::exit_codes());
    let commands =
        commands.chain(wattlock_fs::exit_codes()).chain([&fs::REPAIRED]).chain(mount::exit_codes());
    let streams = wattlock_stream::exit_codes();
    let mut all: Vec<_> =
        own.iter().chain(wattlock_files::exit_codes()).chain(streams).chain(commands).collect();
    all.sort_by_key(|(code, _)| *code);
    all.iter().map(|(code, meaning)| format!("{code:>3}  {meaning}\n")).collect()
}

/// One line on standard error, and the exit code that belongs to it.
fn fail(error: &anyhow::Error) -> ExitCode {
    if let Some(energy::Exit(code)) = error.downcast_ref() {
        return ExitCode::from(*code);
    }
    if error.downcast_ref::<wattlock_lab::Error>().is_some() {
        eprintln!("wattlock: {}", line(error));
        return ExitCode::from(lab::NONSENSE.0);
    }
    if let Some(fs::Exit(code)) = error.downcast_ref() {
        return ExitCode::from(*code);
    }
    if let Some(known) = error.downcast_ref::<wattlock_fs::Error>() {
        return fail_volume(known, &line(error));
    }
    if let Some(wattlock_stream::Error::Files(inner)) = error.downcast_ref() {
        if !matches!(inner, wattlock_files::Error::ClosedPipe) {
            eprintln!("wattlock: {}", line(error));
        }
        return ExitCode::from(inner.exit_code());
    }
    if let Some(known) = error.downcast_ref::<wattlock_stream::Error>() {
        eprintln!("wattlock: {}", line(error));
        return ExitCode::from(known.exit_code());
    }
    let known = error.downcast_ref::<wattlock_files::Error>();
    let told = error.downcast_ref::<files::Told>().is_some();
    // A reader of a listing who has seen enough has made no mistake.
    let left = matches!(known, Some(wattlock_files::Error::ClosedPipe));
    if !told && !left {
        eprintln!("wattlock: {}", line(error));
    }
    if let Some(wattlock_files::Error::Usage(_)) = known {
        eprintln!("{}", try_help());
    }
    known.map_or(ExitCode::FAILURE, |error| ExitCode::from(error.exit_code()))
}

/// The same for an error of a volume.
fn fail_volume(error: &wattlock_fs::Error, line: &str) -> ExitCode {
    if !matches!(error, wattlock_fs::Error::Files(wattlock_files::Error::ClosedPipe)) {
        eprintln!("wattlock: {line}");
    }
    if let wattlock_fs::Error::Usage(_) = error {
        eprintln!("{}", try_help());
    }
    ExitCode::from(error.exit_code())
}

/// Everything an error says, once: our own errors already quote what caused them.
fn line(error: &anyhow::Error) -> String {
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
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("WATTLOCK_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let colours =
        std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Its own complaint, that a line could not be written, would panic where standard error is closed.
    lines.with_ansi(colours).without_time().log_internal_errors(false).init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_each_thing_once() {
        let cause = std::io::Error::from_raw_os_error(21);
        let error = wattlock_files::Error::Io { what: "reading a key file".into(), source: cause };
        let error = anyhow::Error::new(error).context("/tmp");
        assert_eq!(line(&error), "/tmp: reading a key file: Is a directory (os error 21)");
    }

    #[test]
    fn arguments_are_well_formed_and_every_command_has_an_example() {
        heeded::shown(Arguments::command()).debug_assert();
        let mut left: Vec<clap::Command> = Arguments::command().get_subcommands().cloned().collect();
        while let Some(command) = left.pop() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example"), "{} has no example", command.get_name());
            left.extend(command.get_subcommands().cloned());
        }
    }
}
