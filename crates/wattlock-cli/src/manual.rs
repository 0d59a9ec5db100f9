//! `wattlock completions` and `wattlock man`: made from the definitions that `--help` shows, those of the programs of
//! benches and simulations among them.
//!
//! The bridge to Kafka lies outside the workspace: its page has its help as it stands, and shells complete no option of
//! it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use wattlock_shell::definition::Definition;
use wattlock_shell::environment::{FILES, Named, VARIABLES};
use wattlock_shell::program::{self, BENCH, LAB};

use crate::stream;

/// Print a script that completes commands and options in a shell
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Known,
}

/// Print the manual page, or write those of all commands
#[derive(Debug, Args)]
pub struct Pages {
    /// The folder for the pages, one for each command: MANPATH's `man1`. Without it, wattlock(1) is printed
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Known {
    Bash,
    Zsh,
    Fish,
}

/// Runs `wattlock completions`.
pub fn completions(command: &Completions) -> Result<()> {
    let shell = match command.shell {
        Known::Bash => Shell::Bash,
        Known::Zsh => Shell::Zsh,
        Known::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut everything()?, program::WATTLOCK, &mut script);
    put!("{}", String::from_utf8_lossy(&script));
    Ok(())
}

/// Runs `wattlock man`.
pub fn pages(command: &Pages) -> Result<()> {
    let mut all = everything()?;
    all.build();
    let Some(folder) = &command.folder else {
        put!("{}", String::from_utf8_lossy(&page(&all, true)?));
        return Ok(());
    };
    write_all(&all, folder, true)
}

fn write_all(command: &clap::Command, folder: &Path, whole: bool) -> Result<()> {
    let path = folder.join(format!("{}.1", command.get_display_name().unwrap_or(command.get_name())));
    let text = page(command, whole)?;
    fs::write(&path, text).with_context(|| path.display().to_string())?;
    command.get_subcommands().try_for_each(|inner| write_all(inner, folder, false))
}

/// All commands, those of the programs beside this one among them as far as these are there.
fn everything() -> Result<clap::Command> {
    let mut own = Definition::of(&program::command::<super::Arguments>());
    for (name, commands) in [(BENCH, &["bench"][..]), (LAB, &["lab", "report"])] {
        let Some(other) = program::definition_of(name)? else {
            eprintln!(
                "wattlock: {name} is not there: nothing is known of the options of {}",
                commands.join(" and ")
            );
            continue;
        };
        for theirs in other.commands.into_iter().filter(|one| commands.contains(&one.name())) {
            if let Some(ours) = own.commands.iter_mut().find(|ours| ours.name() == theirs.name()) {
                *ours = theirs;
            }
        }
    }
    // A definition has none of what clap adds itself. With a version there is `--version`.
    Ok(own.command().version(env!("CARGO_PKG_VERSION")))
}

/// A command's page. The `whole` page has all exit codes.
fn page(command: &clap::Command, whole: bool) -> Result<Vec<u8>> {
    let man =
        Man::new(command.clone()).source(concat!("Wattlock ", env!("CARGO_PKG_VERSION"))).manual("Wattlock");
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    if command.get_arguments().next().is_some() {
        man.render_options_section(&mut out)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(&mut out)?;
    }
    let mut roff = Roff::new();
    if command.get_display_name() == Some("wattlock-stream-bridge") {
        verbatim(&mut roff, "HELP", stream::BRIDGE_HELP);
    }
    let below = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    if !below.is_empty() {
        verbatim(&mut roff, "EXAMPLES", &below);
    }
    listed(&mut roff, "ENVIRONMENT", VARIABLES);
    listed(&mut roff, "FILES", FILES);
    roff.control("SH", ["EXIT STATUS"]);
    if whole {
        verbatim_lines(&mut roff, &super::exit_codes());
    } else {
        roff.text([roman(
            "0 if all was done, 2 if the command line makes no sense. wattlock(1) lists the others, and so does \
             `wattlock exit-codes`.",
        )]);
        roff.control("SH", ["SEE ALSO"]);
        roff.text([bold("wattlock"), roman("(1)")]);
    }
    out.write_all(roff.to_roff().as_bytes())?;
    Ok(out)
}

fn listed(roff: &mut Roff, heading: &str, entries: &[Named]) {
    roff.control("SH", [heading]);
    for (name, meaning) in entries {
        roff.control("TP", []);
        roff.text([bold(*name)]);
        roff.text([roman(*meaning)]);
    }
}

fn verbatim(roff: &mut Roff, heading: &str, text: &str) {
    roff.control("SH", [heading]);
    verbatim_lines(
        roff,
        text.strip_prefix("Examples:\n").or(text.strip_prefix("Example:\n")).unwrap_or(text),
    );
}

/// Text as it stands: examples and tables are not filled.
fn verbatim_lines(roff: &mut Roff, text: &str) {
    let is_table = |line: &str| line.starts_with(' ');
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.is_empty() {
            roff.control("PP", []);
        } else if is_table(line) {
            roff.control("nf", []);
            roff.text([roman(line)]);
            while let Some(next) = lines.next_if(|next| is_table(next)) {
                roff.text([roman(next)]);
            }
            roff.control("fi", []);
        } else {
            roff.text([roman(line)]);
        }
    }
}
