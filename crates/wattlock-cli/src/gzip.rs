//! `wattlock gzip`: compress and decompress files as gzip does, on all cores.
//!
//! As gzip does: the result takes the file's place (`-k` keeps both), with its permissions and time; without a file,
//! standard input goes to standard output. Otherwise than gzip does: the result appears whole or not at all, and what
//! follows the last member and is not padding is an error.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Args;
use wattlock_files::{Error, Gzip, Input, Output, Progress, gunzip};
use wattlock_shell::INTERRUPTED;

use crate::files::{Told, about, is_dash};
use wattlock_shell::handed;
use wattlock_shell::setup::{self, Choice};

/// Compress files into gzip's format on all cores, or decompress them
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tar c docs | wattlock gzip > docs.tar.gz\n  wattlock gzip -k access.log                          writes access.log.gz\n  wattlock gzip -d access.log.gz                       writes access.log, removes access.log.gz\n\nEach result is one member, which any gunzip reads. Exit codes are listed by `wattlock exit-codes`."
)]
pub struct Command {
    /// Files, each of which its result replaces; none or `-` for standard input and output
    #[arg(value_name = "FILE")]
    inputs: Vec<PathBuf>,
    /// Decompress
    #[arg(short, long)]
    decompress: bool,
    /// Keep the files
    #[arg(short, long)]
    keep: bool,
    /// Write to standard output, and keep the files
    #[arg(short = 'c', long)]
    stdout: bool,
    /// Replace outputs that exist, follow links, write to a terminal
    #[arg(short, long)]
    force: bool,
    /// Neither name nor time of the file in the result
    #[arg(short, long)]
    no_name: bool,
    #[command(flatten)]
    level: Level,
}

/// `-1` to `-9`.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct Level {
    /// Fastest
    #[arg(short = '1', long = "fast")]
    one: bool,
    #[arg(short = '2', hide = true)]
    two: bool,
    #[arg(short = '3', hide = true)]
    three: bool,
    #[arg(short = '4', hide = true)]
    four: bool,
    #[arg(short = '5', hide = true)]
    five: bool,
    /// ... -6 is the default ...
    #[arg(short = '6')]
    six: bool,
    #[arg(short = '7', hide = true)]
    seven: bool,
    #[arg(short = '8', hide = true)]
    eight: bool,
    /// Smallest
    #[arg(short = '9', long = "best")]
    nine: bool,
}

impl Level {
    fn number(&self) -> u8 {
        let flags = [
            self.one, self.two, self.three, self.four, self.five, self.six, self.seven, self.eight, self.nine,
        ];
        (1..).zip(flags).find_map(|(level, given)| given.then_some(level)).unwrap_or(6)
    }
}

/// Runs the command. Goes on after a file that fails; the first failure decides the exit code.
pub fn run(command: &Command, choice: &Choice) -> anyhow::Result<()> {
    let dash = [PathBuf::from("-")];
    let inputs = if command.inputs.is_empty() { &dash[..] } else { &command.inputs[..] };
    if inputs.iter().filter(|input| is_dash(input)).count() > 1 {
        return Err(Error::Usage("standard input can be read once".into()).into());
    }
    // The files go once their results are there: what an accelerator compresses, the CPU checks.
    let runtime = if command.decompress { None } else { Some(setup::runtime(choice, None, true)?) };
    let gzip = Gzip::new(command.level.number())?.named(!command.no_name);
    let progress = Progress::new(&INTERRUPTED);
    let mut failure = None;
    for input in inputs {
        let result = command.plan(input).and_then(|(from, to, original)| {
            match &runtime {
                Some(runtime) => gzip.compress(from, to, runtime, progress)?,
                None => gunzip(from, to, progress)?,
            }
            original.map_or(Ok(()), |original| original.remove())
        });
        if let Err(error) = result {
            let stop = matches!(error, Error::Interrupted | Error::ClosedPipe | Error::DiskFull);
            eprintln!("wattlock: {}", about(input, &error));
            failure = failure.or(Some(error));
            if stop {
                break;
            }
        }
    }
    match failure {
        None => Ok(()),
        Some(error) => Err(anyhow::Error::new(error).context(Told)),
    }
}

impl Command {
    /// Where an input's content comes from and goes to, and the file that is then removed.
    fn plan(&self, input: &Path) -> Result<(Input, Output, Option<Original>), Error> {
        let dash = is_dash(input);
        if dash && handed::closed(handed::INPUT) {
            return Err(closed("standard input"));
        }
        if dash || self.stdout {
            if handed::closed(handed::OUTPUT) {
                return Err(closed("standard output"));
            }
            if !self.decompress && !self.force && std::io::stdout().is_terminal() {
                return Err(Error::Usage("not writing compressed data to a terminal; use -f".into()));
            }
            let from = if dash { Input::Stdin } else { Input::Path(input.to_owned()) };
            return Ok((from, Output::Stdout, None));
        }
        let to = input.with_file_name(self.result_name(input)?);
        let original = if self.keep { None } else { Some(Original::of(input, self.force)?) };
        Ok((Input::Path(input.to_owned()), Output::Path { path: to, force: self.force }, original))
    }

    fn result_name(&self, input: &Path) -> Result<OsString, Error> {
        let name = input.file_name().ok_or_else(|| Error::NotRegular(input.to_owned()))?;
        let suffix = Path::new(name).extension().unwrap_or_default();
        if !self.decompress {
            if suffix == "gz" && !self.force {
                return Err(Error::Usage("ends in .gz already".to_owned()));
            }
            let mut name = name.to_owned();
            name.push(".gz");
            return Ok(name);
        }
        let mut stem = Path::new(name).file_stem().unwrap_or_default().to_owned();
        match suffix.to_str() {
            Some("gz") => Ok(stem),
            Some("tgz") => {
                stem.push(".tar");
                Ok(stem)
            }
            _ => Err(Error::Usage("no .gz at the end, so the result needs a place: -c > FILE".to_owned())),
        }
    }
}

/// A file that is removed once its result is there.
struct Original {
    path: PathBuf,
    identity: (u64, u64),
}

impl Original {
    fn of(path: &Path, force: bool) -> Result<Original, Error> {
        let looked = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::NotFound(path.to_owned()),
            _ => Error::Io { what: "looking at the input".into(), source: error },
        };
        let meta = std::fs::symlink_metadata(path).map_err(looked)?;
        if meta.is_symlink() && !force {
            return Err(Error::Usage("is a link: -k keeps it, -f removes it".to_owned()));
        }
        if meta.is_file() && meta.nlink() > 1 && !force {
            let why = "has other names (hard links): -k keeps it, -f removes this one";
            return Err(Error::Usage(why.to_owned()));
        }
        Ok(Original { path: path.to_owned(), identity: (meta.dev(), meta.ino()) })
    }

    /// Removes it, if the name still is that file's.
    fn remove(self) -> Result<(), Error> {
        let now = std::fs::symlink_metadata(&self.path).map(|meta| (meta.dev(), meta.ino()));
        if now.is_ok_and(|now| now != self.identity) {
            return Err(Error::InputChanged);
        }
        let failed = |source| Error::Io { what: "removing it after its result was written".into(), source };
        std::fs::remove_file(&self.path).map_err(failed)
    }
}

fn closed(stream: &'static str) -> Error {
    let source = std::io::Error::other("closed by the caller; name a file");
    Error::Io { what: stream.into(), source }
}
