//! `wattlock seal` and `wattlock open`: files in, files out, many at a time.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use age::Callbacks;
use age::secrecy::SecretString;
use clap::{Args, ValueEnum};
use wattlock::Runtime;
use wattlock_clock::Governor;
use wattlock_core::{Kind, KindSet};
use wattlock_door::{Batch, Exit, Folder, Output, one_line};
use wattlock_files::keys::{AskPassphrase, WORK_FACTOR, passphrase_recipient};
use wattlock_files::{Error, Format, Gzip, Input, Opener, Progress, Sealer};
use wattlock_shell::INTERRUPTED;
use wattlock_shell::program::Told;

use crate::ask::{self, Terminal};
use crate::clocks;
use crate::defaults;
use crate::fs::inode_of;
use crate::keys::{Whom, first_line, forgotten, identities, nobody};
use crate::lines::Line;
use crate::progress::{self, Bar, Stats};
use crate::wrong::{system, usage};
use wattlock_shell::handed;
use wattlock_shell::setup::{self, Choice};

/// Kinds that sealing and opening files and streams use, for a first calibration.
pub fn kinds() -> KindSet {
    KindSet::of(&[
        Kind::Aes256GcmSeal,
        Kind::Aes256GcmOpen,
        Kind::ChaCha20Poly1305Seal,
        Kind::ChaCha20Poly1305Open,
        Kind::HkdfExpandSha512,
        Kind::HkdfSha256,
        Kind::HmacSha256,
    ])
}

/// Arguments that sealing and opening share.
#[derive(Debug, Args)]
struct Common {
    /// Files; none or `-` for standard input
    #[arg(value_name = "FILE")]
    inputs: Vec<PathBuf>,
    /// Where the result goes; `-` for standard output. Without it a name beside FILE: `.sealed` or `.age` is added or
    /// removed
    #[arg(short, long, value_name = "FILE", conflicts_with = "dir")]
    output: Option<PathBuf>,
    /// Put the results into this folder
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Replace outputs that exist
    #[arg(short, long)]
    force: bool,
    /// Read the passphrase from the first line of a file instead of the terminal. Sealing takes 264 MiB of memory; opening
    /// takes what the file asks for, up to 4 GiB
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
    /// Say at the end what was done, how fast, on which engine by which policy, in how much memory (on standard error)
    #[arg(short = 'v', long, visible_alias = "verbose")]
    stats: bool,
    /// Print a line of JSON for each file (docs/use/command-line.md)
    #[arg(long)]
    json: bool,
    /// No progress bar
    #[arg(short, long)]
    quiet: bool,
    /// Lock the GPU's clocks while files are sealed or opened: at the highest (`--policy eep` or `lecpaes`), or at the
    /// lowest if the CPU works alone (`instruction` or `software`); root. They are reset at the end, and after a kill by the next start or `wattlock
    /// clocks restore`
    #[arg(long)]
    clocks: bool,
    #[command(flatten)]
    clocks_where: clocks::Where,
}

/// Encrypt files to recipients
#[derive(Debug, Args)]
pub struct Seal {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    to: Whom,
    /// Seal with a passphrase instead of a recipient (takes 264 MiB of memory, and so does opening)
    #[arg(short, long, conflicts_with_all = ["recipients", "recipient_files", "identities"])]
    passphrase: bool,
    /// Write text that survives mail and terminals
    #[arg(short, long)]
    armor: bool,
    /// Format of the result
    #[arg(long, value_enum, default_value_t)]
    format: FormatName,
    /// Compress first, in the same pass: what is sealed is a .gz, which `wattlock open` gives back. Level 1 (fast) to 9
    /// (small), 1 without a number. The result's length then tells something of the content
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    gzip: Option<u8>,
}

impl Seal {
    /// Whether lines of JSON are wanted.
    pub fn json(&self) -> bool {
        self.common.json
    }
}

impl Open {
    /// Whether lines of JSON are wanted.
    pub fn json(&self) -> bool {
        self.common.json
    }
}

/// Decrypt files
#[derive(Debug, Args)]
pub struct Open {
    #[command(flatten)]
    common: Common,
    /// Open with the identities in this file: age's, or an SSH private key; without it, the default identity
    #[arg(short, long = "identity", value_name = "FILE")]
    identities: Vec<PathBuf>,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum FormatName {
    /// A small age file with the key, then AES-256-GCM chunks (docs/formats/file.md)
    #[default]
    Sealed,
    /// Plain age v1
    Age,
}

impl FormatName {
    fn suffix(self) -> &'static str {
        match self {
            FormatName::Sealed => ".sealed",
            FormatName::Age => ".age",
        }
    }
}

/// Runs `wattlock seal`.
pub fn seal(command: &Seal, choice: &Choice) -> anyhow::Result<()> {
    let common = &command.common;
    standard_input_once(common, &[&command.to.recipient_files, &command.to.identities])?;
    let gzip = command.gzip.map(Gzip::new).transpose()?;
    let suffix = format!("{}{}", if gzip.is_some() { ".gz" } else { "" }, command.format.suffix());
    let pairs = outputs(common, &|input| with_suffix(input, &suffix), !command.armor)?;
    let terminal = Terminal::default();
    let told = |error| terminal.explain(error);
    let by_passphrase = command.passphrase || common.passphrase_file.is_some();
    let recipients = match (by_passphrase, command.to.is_empty()) {
        (true, false) => return Err(usage("a passphrase must be alone: no recipients beside it")),
        (true, true) => {
            refuse_all_in_the_way(common, &pairs)?;
            vec![passphrase_recipient(new_passphrase(common)?, WORK_FACTOR)?]
        }
        (false, true) if forgotten(&common.inputs).is_some() => Vec::new(),
        (false, _) => command.to.recipients(&terminal)?,
    };
    if recipients.is_empty() {
        return Err(usage(nobody(&command.common.inputs, "-r, -R, -i or -p")));
    }
    let format = if matches!(command.format, FormatName::Age) { Format::Age } else { Format::Sealed };
    let sealer = Sealer::new(recipients)?.format(format).armor(command.armor).gzip(gzip);
    each(common, choice, "sealed", pairs, |input, output, runtime, progress| {
        sealer.seal(input, output, runtime, progress).map_err(|error| match error {
            Error::Door(wattlock_door::Error::IsFolder(path)) if path.is_dir() => Error::SealsNoFolder(path),
            error => told(error),
        })
    })
}

/// What a file is called when it is sealed.
fn with_suffix(input: &Path, suffix: &str) -> Result<OsString, Error> {
    let mut name = input
        .file_name()
        .ok_or_else(|| Error::Door(wattlock_door::Error::NotRegular(input.to_owned())))?
        .to_owned();
    name.push(suffix);
    Ok(name)
}

/// Runs `wattlock open`.
pub fn open(command: &Open, choice: &Choice) -> anyhow::Result<()> {
    let common = &command.common;
    standard_input_once(common, &[&command.identities])?;
    let pairs = outputs(common, &without_suffix, false)?;
    let terminal = Terminal::default();
    let given = !command.identities.is_empty() || common.passphrase_file.is_some();
    let identities = match given {
        true => identities(&command.identities, &terminal)?,
        false => defaults::identities(&terminal)?,
    };
    let keyless = command.identities.is_empty() && identities.is_empty();
    let opener = Opener::new(identities).passphrase(ask_passphrase(common, &terminal)?);
    each(common, choice, "opened", pairs, |input, output, runtime, progress| {
        opener.open(input, output, runtime, progress).map(|_| ()).map_err(|error| match error {
            Error::NoMatchingKey if keyless => Error::NoKeyGiven {
                options: "-i FILE, --passphrase-file FILE",
                place: defaults::identity_place(),
            },
            error => terminal.explain(error),
        })
    })
}

/// What a sealed file is called when it is opened.
fn without_suffix(input: &Path) -> Result<OsString, Error> {
    let name = input.file_name().unwrap_or_default();
    let known = Path::new(name).extension().is_some_and(|suffix| suffix == "sealed" || suffix == "age");
    match Path::new(name).file_stem() {
        Some(stem) if known => Ok(stem.to_owned()),
        _ => Err(usage(format!(
            "{}: no .sealed or .age at the end, so the result needs a name: -o FILE",
            one_line(input)
        ))),
    }
}

/// Where a result goes.
#[derive(Debug, Clone)]
enum To {
    Stdout,
    /// A file that the user named.
    Named(PathBuf),
    /// A name that was made from the input's.
    Made(PathBuf),
}

impl To {
    /// Whether it is standard output, by whatever name.
    fn is_stdout(&self) -> bool {
        match self {
            To::Stdout => true,
            To::Named(path) | To::Made(path) => {
                path.metadata().is_ok_and(|there| is_stdouts((there.dev(), there.ino())))
            }
        }
    }

    /// Its name.
    fn path(&self) -> PathBuf {
        match self {
            To::Stdout => "-".into(),
            To::Named(path) | To::Made(path) => path.clone(),
        }
    }
}

/// An input, and where its result goes.
type Pair = (PathBuf, To);

type Work<'a> = dyn Fn(Input, Output, &Runtime, Progress<'_>) -> Result<(), Error> + 'a;

/// Does the work for each input. Goes on after a file that fails; the first failure decides the exit code.
fn each(
    common: &Common,
    choice: &Choice,
    done: &str,
    pairs: Vec<Pair>,
    work: impl Fn(Input, Output, &Runtime, Progress<'_>) -> Result<(), Error>,
) -> anyhow::Result<()> {
    refuse_mixture(common.json, pairs.iter().any(|(_, to)| to.is_stdout()))?;
    let runtime = setup::runtime(choice, Some(kinds()), common.quiet)?;
    let mut clock = match common.clocks {
        true => clocks::for_files(choice, &common.clocks_where.places())?,
        false => None,
    };
    let stats = Stats { runtime: &runtime, choice, families: progress::CONTENT, began: Instant::now() };
    let bytes = AtomicU64::new(0);
    let (batch, mut waiting) = (Batch::default(), Vec::new());
    let mut outcomes = Outcomes { json: common.json, failure: None };
    for (input, output) in pairs {
        let before = batch.len();
        let before_bytes = bytes.load(Ordering::Relaxed);
        let result = one(common, &input, output.clone(), (&runtime, &batch), &bytes, &work);
        let stop = result.as_ref().is_err_and(ends_the_run);
        let read = bytes.load(Ordering::Relaxed) - before_bytes;
        let done = Done { input, output: output.path(), bytes: read };
        match result {
            Err(error) => outcomes.failed(&done.input, error),
            Ok(()) if batch.len() > before => waiting.push(done),
            Ok(()) => outcomes.done(&done),
        }
        if stop || batch.is_full() {
            finish(&batch, &mut waiting, &mut outcomes);
        }
        if stop {
            break;
        }
    }
    finish(&batch, &mut waiting, &mut outcomes);
    let told = match common.stats {
        true => stats.tell(done, bytes.into_inner()),
        false => Ok(()),
    };
    let restored = clock.as_mut().map_or(Ok(()), Governor::restore);
    let Some(error) = outcomes.failure else {
        told?;
        return Ok(restored?);
    };
    if let Err(error) = restored {
        eprintln!("wattlock: {error}");
    }
    Err(anyhow::Error::new(error).context(Told))
}

/// A file whose result is whole.
struct Done {
    input: PathBuf,
    output: PathBuf,
    bytes: u64,
}

/// What became of the files: told as it comes, and the first failure decides the exit code.
struct Outcomes {
    json: bool,
    failure: Option<Error>,
}

impl Outcomes {
    fn failed(&mut self, input: &Path, error: Error) {
        let said = about(input, &error);
        eprintln!("wattlock: {said}");
        let line = Line::of(input).failed(&said, error.code());
        self.failure.get_or_insert(error);
        self.put(line);
    }

    fn done(&mut self, done: &Done) {
        self.put(Line::of(&done.input).name("output", &done.output).with("bytes", done.bytes));
    }

    fn put(&mut self, line: Line) {
        if self.json
            && let Err(lost) = line.put()
        {
            self.failure.get_or_insert(lost);
        }
    }
}

/// Brings the results that wait to the disk and to their names.
fn finish(batch: &Batch, waiting: &mut Vec<Done>, outcomes: &mut Outcomes) {
    for (done, result) in waiting.drain(..).zip(batch.finish(|_| Ok(()))) {
        match result {
            Ok(()) => outcomes.done(&done),
            Err(error) => outcomes.failed(&done.input, error.into()),
        }
    }
}

/// Whether this device and inode are standard output's, of whatever kind that is: what is printed would be in a result
/// there, or be lost with the file that the result replaces.
pub fn is_stdouts(inode: (u64, u64)) -> bool {
    inode_of(std::io::stdout()) == Some(inode)
}

/// Refuses lines of JSON among the bytes of a result.
pub fn refuse_mixture(json: bool, result_to_stdout: bool) -> Result<(), Error> {
    match json && result_to_stdout {
        true => {
            Err(usage("--json prints to standard output, and the result would go there, too: name a file"))
        }
        false => Ok(()),
    }
}

/// What a file is called in messages.
pub fn shown(path: &Path) -> String {
    if is_dash(path) { "standard input".into() } else { one_line(path) }
}

/// An error about an input. Some name it themselves.
pub fn about(input: &Path, error: &Error) -> String {
    match error {
        Error::Door(wattlock_door::Error::NotFound(path))
        | Error::Door(wattlock_door::Error::NotRegular(path))
        | Error::Door(wattlock_door::Error::IsFolder(path))
        | Error::SealsNoFolder(path)
            if path == input || is_dash(input) =>
        {
            error.to_string()
        }
        _ => format!("{}: {error}", shown(input)),
    }
}

/// Whether an error leaves nothing to be done for further files.
pub fn ends_the_run(error: &Error) -> bool {
    use wattlock_door::Error::{ClosedPipe, DiskFull, Interrupted};
    matches!(error, Error::Door(Interrupted | ClosedPipe | DiskFull))
}

/// Whether a path stands for standard input or output.
pub fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Whether a path stands for standard output, also by the system's own name.
fn is_stdout(path: &Path) -> bool {
    is_dash(path) || path == Path::new("/dev/stdout")
}

/// Two readers of standard input would each get a part of it, or one of them nothing. A closed one has nothing to read,
/// which is not the same as an end that comes at once.
fn standard_input_once(common: &Common, keys: &[&Vec<PathBuf>]) -> Result<(), Error> {
    let as_input = if common.inputs.is_empty() { 1 } else { count_dashes(&common.inputs) };
    let as_keys: usize = keys.iter().map(|paths| count_dashes(paths)).sum();
    let as_passphrase = common.passphrase_file.as_deref().is_some_and(is_dash);
    if as_input + as_keys + usize::from(as_passphrase) > 1 {
        return Err(usage("standard input can be only one thing: a file, keys or a passphrase"));
    }
    if as_input + as_keys + usize::from(as_passphrase) == 1 && handed::closed(handed::INPUT) {
        return Err(closed("standard input", "name a file"));
    }
    Ok(())
}

fn count_dashes(paths: &[PathBuf]) -> usize {
    paths.iter().filter(|path| is_dash(path)).count()
}

/// Saves a person from typing a new passphrase for nothing.
fn refuse_all_in_the_way(common: &Common, pairs: &[Pair]) -> Result<(), Error> {
    let in_the_way = |pair: &Pair| match &pair.1 {
        To::Named(path) | To::Made(path) if !common.force && path.is_file() => Some(path.clone()),
        _ => None,
    };
    let mut all = pairs.iter().map(in_the_way);
    match all.next().flatten() {
        Some(first) if all.all(|path| path.is_some()) => {
            Err(Error::Door(wattlock_door::Error::OutputExists(first)))
        }
        _ => Ok(()),
    }
}

/// Where the result of each input goes.
fn outputs(
    common: &Common,
    name: &dyn Fn(&Path) -> Result<OsString, Error>,
    binary_to_terminal: bool,
) -> Result<Vec<Pair>, Error> {
    let dash = [PathBuf::from("-")];
    let inputs = if common.inputs.is_empty() { &dash[..] } else { &common.inputs[..] };
    if let Some(output) = &common.output {
        if inputs.len() > 1 {
            return Err(usage("-o names one result, and there are several files; use --dir"));
        }
        let to = if is_stdout(output) { To::Stdout } else { To::Named(output.clone()) };
        if is_stdout(output) {
            refuse_output(binary_to_terminal)?;
        }
        return Ok(vec![(inputs[0].clone(), to)]);
    }
    let beside = |input: &PathBuf| match (is_dash(input), &common.dir) {
        (true, None) => refuse_output(binary_to_terminal).map(|()| (input.clone(), To::Stdout)),
        (true, Some(_)) => Err(usage("standard input has no name; use -o")),
        (false, Some(dir)) => Ok((input.clone(), To::Made(dir.join(name(input)?)))),
        (false, None) => Ok((input.clone(), To::Made(input.with_file_name(name(input)?)))),
    };
    let pairs: Vec<Pair> = inputs.iter().map(beside).collect::<Result<_, _>>()?;
    let mut taken = HashSet::new();
    let made = |pair: &'_ Pair| match &pair.1 {
        To::Made(path) => Some(path.clone()),
        _ => None,
    };
    match pairs.iter().filter_map(made).find(|path| !taken.insert(path.clone())) {
        Some(twice) => Err(usage(format!("two results would be called {}", one_line(&twice)))),
        None => Ok(pairs),
    }
}

/// What `<&-` and `>&-` come to.
pub fn closed(stream: &'static str, instead: &str) -> Error {
    let source = std::io::Error::other(format!("closed by the caller; {instead}"));
    system(stream, source)
}

/// Whether the result may go to standard output.
fn refuse_output(binary: bool) -> Result<(), Error> {
    if handed::closed(handed::OUTPUT) {
        return Err(closed("standard output", "name a file with -o"));
    }
    if binary && std::io::stdout().is_terminal() {
        return Err(usage("not writing binary data to a terminal; use -o, or --armor"));
    }
    Ok(())
}

fn one(
    common: &Common,
    input: &Path,
    output: To,
    (runtime, batch): (&Runtime, &Batch),
    done: &AtomicU64,
    work: &Work<'_>,
) -> Result<(), Error> {
    let bar = bar(common, input, matches!(output, To::Stdout));
    let on_bytes = |bytes: u64| {
        done.fetch_add(bytes, Ordering::Relaxed);
        bar.inc(bytes);
    };
    let progress = Progress::new(&INTERRUPTED).on_bytes(&on_bytes);
    let from = if is_dash(input) { Input::Stdin } else { Input::Path(input.to_owned()) };
    let to = match output {
        To::Named(path) => Output::Path { path, force: common.force },
        To::Made(path) => {
            let (folder, name) = Folder::of(&path)?;
            Output::File { folder, name, force: common.force, batch: batch.clone() }
        }
        To::Stdout => Output::Stdout,
    };
    let result = work(from, to, runtime, progress);
    bar.end();
    result
}

/// A progress bar for a file that takes long enough to wonder.
fn bar(common: &Common, input: &Path, to_stdout: bool) -> Bar {
    let silent = common.quiet || (to_stdout && progress::shows_output());
    Bar::new(silent, shown(input), length(input))
}

/// The length of a regular file. Files of the kernel's have none: 0.
pub fn length(input: &Path) -> Option<u64> {
    let meta = std::fs::metadata(input).ok().filter(std::fs::Metadata::is_file)?;
    Some(meta.len()).filter(|len| *len > 0)
}

fn new_passphrase(common: &Common) -> anyhow::Result<SecretString> {
    match &common.passphrase_file {
        Some(path) => first_line(path),
        None => Ok(ask::new_passphrase()?),
    }
}

fn ask_passphrase(common: &Common, terminal: &Terminal) -> anyhow::Result<AskPassphrase> {
    if let Some(path) = &common.passphrase_file {
        let passphrase = first_line(path)?;
        return Ok(Box::new(move || Some(passphrase.clone())));
    }
    let terminal = terminal.clone();
    Ok(Box::new(move || terminal.request_passphrase("Passphrase")))
}
