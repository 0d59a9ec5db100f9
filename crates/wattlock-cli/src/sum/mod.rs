//! `wattlock sum`: what `sha256sum` and its sisters print and check, many files at a time.
//!
//! Standard output is theirs byte for byte, and so are exit codes: 0, or 1 if anything was wrong. A file or a list that
//! is bad costs one line on standard error, and the rest goes on. Folders (`-r`) are an addition. Names are bytes.

mod list;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use clap::{ArgAction, Args, ValueEnum};
use wattlock::Runtime;
use wattlock_core::{Family, Kind};
use wattlock_door::one_line;
use wattlock_files::{Digest, Error, Input, Progress, Walk, sum};
use wattlock_shell::handed;
use wattlock_shell::setup::{self, Choice};

use wattlock_shell::program::Told;

use crate::files::is_dash;
use crate::lines;
use crate::progress::{self, Bar, Stats};
use list::{Line, Lines};

/// Print or check hashes of files, as sha256sum and its sisters do, on all cores and several side by side on each
#[derive(Debug, Args)]
pub struct Command {
    /// Files, or lists with -c; none or `-` for standard input
    #[arg(value_name = "FILE")]
    inputs: Vec<OsString>,
    /// The hash
    #[arg(short, long, value_enum, default_value_t)]
    algorithm: Algorithm,
    /// Folders with all files in them, in the order of their names; links in them are left out
    #[arg(short, long, conflicts_with = "check")]
    recursive: bool,
    /// Read hashes and names from the files, and check them
    #[arg(short, long)]
    check: bool,
    /// Mark the files as binary; their content is read alike
    #[arg(short, long, overrides_with = "text")]
    binary: bool,
    /// Do not (the default)
    #[arg(short, long, overrides_with = "binary")]
    text: bool,
    /// Print BSD's form, with the hash's name
    #[arg(long)]
    tag: bool,
    /// End lines with a zero byte, and escape no names
    #[arg(short, long)]
    zero: bool,
    /// Print a line of JSON for each file (docs/use/command-line.md)
    #[arg(long, conflicts_with_all = ["tag", "zero", "status"])]
    pub json: bool,
    /// Say at the end what was read, how fast, on which engine by which policy (on standard error)
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    checking: Checking,
}

/// What sha256sum allows with `-c` only. Of `--quiet`, `--status` and `--warn` the last one counts.
#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "With --check")]
struct Checking {
    /// A file that is not there is no failure
    #[arg(long)]
    ignore_missing: bool,
    /// Do not print OK for each file
    #[arg(long, overrides_with_all = ["status", "warn"])]
    quiet: bool,
    /// Print nothing; the exit code tells
    #[arg(long, overrides_with_all = ["quiet", "warn"])]
    status: bool,
    /// A malformed line is a failure
    #[arg(long)]
    strict: bool,
    /// Name each malformed line
    #[arg(short, long, action = ArgAction::SetTrue, overrides_with_all = ["quiet", "status"])]
    warn: bool,
}

/// Hashes that can be printed and checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Algorithm {
    Sha1,
    #[default]
    Sha256,
    Sha384,
    Sha512,
}

impl Algorithm {
    fn kind(self) -> Kind {
        match self {
            Algorithm::Sha1 => Kind::Sha1,
            Algorithm::Sha256 => Kind::Sha256,
            Algorithm::Sha384 => Kind::Sha384,
            Algorithm::Sha512 => Kind::Sha512,
        }
    }

    /// As BSD's form has it.
    fn tag(self) -> &'static str {
        match self {
            Algorithm::Sha1 => "SHA1",
            Algorithm::Sha256 => "SHA256",
            Algorithm::Sha384 => "SHA384",
            Algorithm::Sha512 => "SHA512",
        }
    }

    /// Bytes of a hash.
    fn len(self) -> usize {
        self.kind().info().output.unwrap_or_default()
    }
}

/// Nothing is cleaned up, so an interrupt ends the process.
static NEVER: AtomicBool = AtomicBool::new(false);

/// Runs the command.
pub fn run(command: &Command, choice: &Choice) -> anyhow::Result<()> {
    command.refuse_nonsense()?;
    if handed::closed(handed::OUTPUT) && !command.checking.status {
        anyhow::bail!("standard output: {}", io::Error::from_raw_os_error(libc::EBADF));
    }
    let runtime = setup::hashing(choice)?;
    // Lists go to standard output: on a terminal they are the progress. What a list names is not known before it is read.
    let silent = progress::shows_output() || command.checking.status || command.checking.quiet;
    let bar = match command.check {
        true => Bar::new(silent, String::new(), None),
        false => Bar::of_all(silent, "", || {
            let read = |path: &PathBuf| command.recursive || !path.is_dir();
            command.inputs.iter().map(PathBuf::from).filter(read).collect()
        }),
    };
    let (stats, read) = (
        Stats { runtime: &runtime, choice, families: &[Family::Digest], began: Instant::now() },
        AtomicU64::new(0),
    );
    let advance = |bytes: u64| {
        read.fetch_add(bytes, Ordering::Relaxed);
        bar.inc(bytes);
    };
    let progress = Progress::new(&NEVER).on_bytes(&advance);
    let good = if command.check {
        let mut reversed = None;
        let mut good = true;
        for list in command.inputs() {
            good &= command.check(list, &mut reversed, &runtime, progress)?;
        }
        good
    } else {
        command.print(&runtime, progress)?
    };
    bar.end();
    if command.verbose {
        stats.tell("read", read.load(Ordering::Relaxed))?;
    }
    if good { Ok(()) } else { Err(anyhow::anyhow!("not all is well").context(Told)) }
}

impl Command {
    /// What sha256sum refuses, in its words.
    fn refuse_nonsense(&self) -> anyhow::Result<()> {
        let only = |given: bool, name: &str| match given && !self.check {
            true => Err(anyhow::anyhow!("the --{name} option is meaningful only when verifying checksums")),
            false => Ok(()),
        };
        let never = |given: bool, words: &str| match given && self.check {
            true => Err(anyhow::anyhow!("the {words} when verifying checksums")),
            false => Ok(()),
        };
        if self.recursive && self.inputs.is_empty() {
            anyhow::bail!("-r needs a folder: `wattlock sum -r .` is this one");
        }
        if self.tag && self.text {
            anyhow::bail!("--tag does not support --text mode");
        }
        never(self.zero, "--zero option is not supported")?;
        never(self.tag, "--tag option is meaningless")?;
        never(self.binary || self.text, "--binary and --text options are meaningless")?;
        only(self.checking.ignore_missing, "ignore-missing")?;
        only(self.checking.status, "status")?;
        only(self.checking.warn, "warn")?;
        only(self.checking.quiet, "quiet")?;
        only(self.checking.strict, "strict")
    }

    fn inputs(&self) -> Vec<&OsStr> {
        match self.inputs.is_empty() {
            true => vec![OsStr::new("-")],
            false => self.inputs.iter().map(OsString::as_os_str).collect(),
        }
    }

    /// Prints a line for each file. Whether all could be read.
    fn print(&self, runtime: &Runtime, progress: Progress<'_>) -> Result<bool, Error> {
        let mut good = true;
        let mut out = io::BufWriter::new(io::stdout());
        let files = self.inputs().into_iter().flat_map(|name| self.named(name));
        sum(self.algorithm.kind(), files, runtime, progress, |ready| {
            for (name, result) in ready {
                match result {
                    Ok(digest) => self.line(&mut out, &name, &digest).map_err(Error::writing)?,
                    Err(error) => {
                        good = false;
                        complain(&name, &error);
                        if self.json {
                            let line = lines::Line::of(&name).failed(&reason(&error), 1);
                            writeln!(out, "{line}").map_err(Error::writing)?;
                        }
                    }
                }
            }
            out.flush().map_err(Error::writing)
        })?;
        Ok(good)
    }

    /// The files that an argument names.
    fn named<'a>(&self, name: &'a OsStr) -> Box<dyn Iterator<Item = (OsString, io::Result<Input>)> + 'a> {
        let path = Path::new(name);
        if self.recursive && !is_dash(path) && path.is_dir() {
            let found = |(path, looked): (PathBuf, io::Result<()>)| {
                (path.clone().into_os_string(), looked.map(|()| Input::Path(path)))
            };
            return Box::new(Walk::new(path).map(found));
        }
        Box::new(std::iter::once((name.to_owned(), input(name))))
    }

    fn line(&self, out: &mut impl Write, name: &OsStr, digest: &Digest) -> io::Result<()> {
        if self.json {
            let algorithm = wattlock_shell::text::typed(&self.algorithm);
            let line = lines::Line::of(name).with("algorithm", algorithm).with("hash", digest.to_string());
            return writeln!(out, "{line}");
        }
        let escapes = !self.zero && name.as_bytes().iter().any(|byte| b"\\\n\r".contains(byte));
        if escapes {
            out.write_all(b"\\")?;
        }
        if self.tag {
            write!(out, "{} (", self.algorithm.tag())?;
            write_name(out, name, escapes)?;
            write!(out, ") = {digest}")?;
        } else {
            write!(out, "{digest} {}", if self.binary { '*' } else { ' ' })?;
            write_name(out, name, escapes)?;
        }
        out.write_all(if self.zero { b"\0" } else { b"\n" })
    }

    /// Checks the files of one list. Whether all is as the list says.
    fn check(
        &self,
        list: &OsStr,
        reversed: &mut Option<bool>,
        runtime: &Runtime,
        progress: Progress<'_>,
    ) -> Result<bool, Error> {
        let Checking { ignore_missing, quiet, status, strict, warn } = self.checking;
        let from_input = list == "-";
        let shown = if from_input { "standard input".to_owned() } else { one_line(Path::new(list)) };
        let opened = match from_input {
            true => standard_input().map(|()| Box::new(io::stdin()) as Box<dyn io::Read>),
            false => std::fs::File::open(list).map(|file| Box::new(file) as Box<dyn io::Read>),
        };
        let lines = match opened {
            Ok(list) => Lines::new(io::BufReader::new(list)),
            Err(error) => {
                complain(list, &error);
                return self.useless(list, &reason(&error));
            }
        };
        let (mut malformed, mut unread, mut broken, mut number, mut any) = (0_u64, None, 0_u64, 0_u64, false);
        let (mut wrong, mut matched) = (0_u64, false);
        let tag = self.algorithm.tag();
        let files = lines.filter_map(|line| {
            number += 1;
            let line = match line {
                Ok(line) => line,
                Err(error) => {
                    unread = Some(error);
                    return None;
                }
            };
            match Line::parse(&line, tag, self.algorithm.len(), reversed) {
                Line::Nothing => None,
                // The list itself is standard input.
                Line::File { name, digest } if !(from_input && name == "-") => {
                    any = true;
                    let input = input(&name);
                    Some(((name, digest), input))
                }
                _ => {
                    malformed += 1;
                    if warn {
                        eprintln!("wattlock: {shown}: {number}: improperly formatted {tag} checksum line");
                    }
                    None
                }
            }
        });
        let mut out = io::BufWriter::new(io::stdout());
        sum(self.algorithm.kind(), files, runtime, progress, |ready| {
            for ((name, expected), result) in ready {
                let mut line = lines::Line::of(&name);
                let verdict = match result {
                    Err(error) if ignore_missing && error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => {
                        broken += 1;
                        complain(&name, &error);
                        line = line.failed(&reason(&error), 1);
                        "FAILED open or read"
                    }
                    Ok(digest) if digest.as_bytes() == expected => {
                        matched = true;
                        if quiet {
                            continue;
                        }
                        "OK"
                    }
                    Ok(_) => {
                        wrong += 1;
                        "FAILED"
                    }
                };
                if self.json {
                    writeln!(out, "{}", line.with("ok", verdict == "OK")).map_err(Error::writing)?;
                } else if !status {
                    said(&mut out, &name, verdict).map_err(Error::writing)?;
                }
            }
            out.flush().map_err(Error::writing)
        })?;
        if let Some(error) = unread {
            let why = format!("read error: {}", reason(&error));
            eprintln!("wattlock: {shown}: {why}");
            return self.useless(list, &why);
        }
        if !any {
            let why = "no properly formatted checksum lines found";
            eprintln!("wattlock: {shown}: {why}");
            return self.useless(list, why);
        }
        if !status {
            warning(malformed, ["line is", "lines are"], "improperly formatted");
            warning(broken, ["listed file", "listed files"], "could not be read");
            warning(wrong, ["computed checksum", "computed checksums"], "did NOT match");
            if ignore_missing && !matched {
                eprintln!("wattlock: {shown}: no file was verified");
            }
        }
        if strict && malformed > 0 {
            let lines = if malformed == 1 { "line is" } else { "lines are" };
            self.useless(list, &format!("{malformed} {lines} improperly formatted"))?;
        }
        if !matched && wrong == 0 && broken == 0 {
            return self.useless(list, "no file was verified");
        }
        Ok(matched && wrong == 0 && broken == 0 && !(strict && malformed > 0))
    }

    /// Says in an object why a list is a failure of its own, beside those of its files. Never well.
    fn useless(&self, list: &OsStr, why: &str) -> Result<bool, Error> {
        if self.json {
            lines::Line::of(list).failed(why, 1).put()?;
        }
        Ok(false)
    }
}

/// A name as the lists have it.
fn write_name(out: &mut impl Write, name: &OsStr, escaped: bool) -> io::Result<()> {
    if !escaped {
        return out.write_all(name.as_bytes());
    }
    name.as_bytes().iter().try_for_each(|byte| match byte {
        b'\n' => out.write_all(b"\\n"),
        b'\r' => out.write_all(b"\\r"),
        b'\\' => out.write_all(b"\\\\"),
        byte => out.write_all(&[*byte]),
    })
}

/// A verdict. Names are escaped only where they would make two lines.
fn said(out: &mut impl Write, name: &OsStr, verdict: &str) -> io::Result<()> {
    let escaped = name.as_bytes().contains(&b'\n');
    if escaped {
        out.write_all(b"\\")?;
    }
    write_name(out, name, escaped)?;
    writeln!(out, ": {verdict}")
}

fn warning(count: u64, [one, several]: [&str; 2], what: &str) {
    if count > 0 {
        eprintln!("wattlock: WARNING: {count} {} {what}", if count == 1 { one } else { several });
    }
}

fn input(name: &OsStr) -> io::Result<Input> {
    match name == "-" {
        true => standard_input().map(|()| Input::Stdin),
        false => Ok(Input::Path(name.into())),
    }
}

fn standard_input() -> io::Result<()> {
    match handed::closed(handed::INPUT) {
        true => Err(io::Error::from_raw_os_error(libc::EBADF)),
        false => Ok(()),
    }
}

fn complain(name: &OsStr, error: &io::Error) {
    eprintln!("wattlock: {}: {}", one_line(Path::new(name)), reason(error));
}

/// What the system says, without the number.
fn reason(error: &io::Error) -> String {
    let words = error.to_string();
    words.split(" (os error").next().unwrap_or_default().to_owned()
}
