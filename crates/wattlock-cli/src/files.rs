//! `wattlock seal` and `wattlock open`: files in, files out, many at a time.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use age::Callbacks;
use age::secrecy::SecretString;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use wattlock::Runtime;
use wattlock_clock::Governor;
use wattlock_core::{Family, Kind, KindSet};
use wattlock_door::{Batch, Folder, Output, one_line};
use wattlock_files::keys::{
    self, AskPassphrase, BoxedIdentity, BoxedRecipient, FILE_MAX, Recipients, WORK_FACTOR,
};
use wattlock_files::{Error, Format, Gzip, Input, Opener, Progress, Sealer};
use wattlock_shell::INTERRUPTED;
use wattlock_shell::program::Told;
use zeroize::Zeroizing;

use crate::ask::{self, Terminal};
use crate::clocks;
use crate::wrong::{system, usage};
use wattlock_shell::handed;
use wattlock_shell::joules::peak_memory;
use wattlock_shell::setup::{self, Choice};
use wattlock_shell::text;

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
    /// Say at the end what was done, how fast, on which engine, in how much memory (on standard error)
    #[arg(long)]
    stats: bool,
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

/// Arguments that name whom something is sealed to.
#[derive(Debug, Args)]
pub struct Whom {
    /// Seal to this recipient: age1..., an SSH public key, or the recipient of an age plugin; may be repeated
    #[arg(short, long = "recipient", value_name = "RECIPIENT")]
    recipients: Vec<String>,
    /// Seal to every recipient in this file
    #[arg(short = 'R', long = "recipients-file", value_name = "FILE")]
    recipient_files: Vec<PathBuf>,
    /// Seal to the recipients of the identities in this file
    #[arg(short, long = "identity", value_name = "FILE")]
    identities: Vec<PathBuf>,
}

impl Whom {
    /// All of them, each once.
    pub fn recipients(&self, terminal: &Terminal) -> anyhow::Result<Vec<BoxedRecipient>> {
        recipients(&self.recipients, &self.recipient_files, &self.identities, terminal)
    }
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

/// Decrypt files
#[derive(Debug, Args)]
pub struct Open {
    #[command(flatten)]
    common: Common,
    /// Open with the identities in this file: age's, or an SSH private key
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
    let mut recipients = command.to.recipients(&terminal)?;
    if command.passphrase || common.passphrase_file.is_some() {
        if !recipients.is_empty() {
            return Err(usage("a passphrase must be alone: no recipients beside it"));
        }
        refuse_all_in_the_way(common, &pairs)?;
        recipients.push(keys::passphrase_recipient(new_passphrase(common)?, WORK_FACTOR)?);
    }
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

/// What to do where there are no recipients: a stranger has no key yet, or put it among the files.
pub fn nobody(inputs: &[PathBuf], options: &str) -> String {
    let looks =
        |input: &&PathBuf| input.to_str().is_some_and(|text| text.starts_with("age1") && !input.exists());
    match inputs.iter().find(looks) {
        Some(key) => format!("{} is a recipient: it needs -r before it", one_line(key)),
        None => format!("to whom? give {options}; `wattlock keygen -o key.txt` makes a key pair"),
    }
}

/// The recipients that arguments, recipients files and identity files name.
pub fn recipients(
    named: &[String],
    files: &[PathBuf],
    identities: &[PathBuf],
    terminal: &Terminal,
) -> anyhow::Result<Vec<BoxedRecipient>> {
    let told = |error| terminal.explain(error);
    let mut recipients = Recipients::new();
    // One that is named twice is wrapped for once: each costs bytes and time in every file.
    let mut seen = HashSet::new();
    for recipient in named.iter().filter(|one| seen.insert(one.trim().as_bytes().to_vec())) {
        recipients.add(recipient).map_err(|error| match Path::new(recipient).is_file() {
            true => Error::BadRecipient(format!(
                "{} is a file: -R for one of recipients, -i for one of identities",
                one_line(Path::new(recipient))
            )),
            false => error,
        })?;
    }
    for path in files {
        let content = read_key_file(path)?;
        // Lines keep their numbers, by which they are told of.
        let mut once = Vec::with_capacity(content.len());
        for line in content.split(|byte| *byte == b'\n') {
            let first = line.trim_ascii().is_empty() || seen.insert(line.trim_ascii().to_vec());
            once.extend_from_slice(if first { line } else { b"" });
            once.push(b'\n');
        }
        once.pop();
        let names_one = |text: &[u8]| {
            let mut lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
            lines.any(|line| !line.is_empty() && !line.starts_with(b"#"))
        };
        if names_one(&content) && !names_one(&once) {
            continue; // All of it was named before.
        }
        let left_out = recipients.add_file(&once).map_err(|error| within(path, error))?;
        for line in left_out {
            tell!("wattlock: {}: {line}, left out", shown(path));
        }
    }
    for path in identities {
        recipients
            .add_identity_file(&read_identity_file(path, terminal)?, terminal.clone())
            .map_err(|error| within(path, told(error)))?;
    }
    Ok(recipients.finish(terminal.clone()).map_err(told)?)
}

/// The identities in these files.
pub fn identities(files: &[PathBuf], terminal: &Terminal) -> anyhow::Result<Vec<BoxedIdentity>> {
    let mut identities: Vec<BoxedIdentity> = Vec::new();
    for path in files {
        identities.extend(
            keys::identities(&read_identity_file(path, terminal)?, terminal.clone())
                .map_err(|error| within(path, terminal.explain(error)))?,
        );
    }
    Ok(identities)
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
    let keyless = command.identities.is_empty();
    let opener = Opener::new(identities(&command.identities, &terminal)?)
        .passphrase(ask_passphrase(common, &terminal)?);
    each(common, choice, "opened", pairs, |input, output, runtime, progress| {
        opener.open(input, output, runtime, progress).map(|_| ()).map_err(|error| match error {
            Error::NoMatchingKey if keyless => Error::NoKeyGiven,
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
    let runtime = setup::runtime(choice, Some(kinds()), common.quiet)?;
    let mut clock = match common.clocks {
        true => clocks::for_files(choice, &common.clocks_where.places())?,
        false => None,
    };
    let start = Instant::now();
    let bytes = AtomicU64::new(0);
    let mut failure = None;
    let (batch, mut waiting) = (Batch::default(), Vec::new());
    let mut failed = |input: &Path, error: Error| {
        eprintln!("wattlock: {}", about(input, &error));
        failure = failure.take().or(Some(error));
    };
    for (input, output) in pairs {
        let before = batch.len();
        let result = one(common, &input, output, (&runtime, &batch), &bytes, &work);
        let stop = result.as_ref().is_err_and(ends_the_run);
        match result {
            Err(error) => failed(&input, error),
            Ok(()) if batch.len() > before => waiting.push(input),
            Ok(()) => {}
        }
        if stop || batch.is_full() {
            finish(&batch, &mut waiting, &mut failed);
        }
        if stop {
            break;
        }
    }
    finish(&batch, &mut waiting, &mut failed);
    let stats = match common.stats {
        true => print_stats(done, bytes.into_inner(), &runtime, start.elapsed().as_secs_f64()),
        false => Ok(()),
    };
    let restored = clock.as_mut().map_or(Ok(()), Governor::restore);
    let Some(error) = failure else {
        stats?;
        return Ok(restored?);
    };
    if let Err(error) = restored {
        eprintln!("wattlock: {error}");
    }
    Err(anyhow::Error::new(error).context(Told))
}

/// Brings the results that wait to the disk and to their names.
fn finish(batch: &Batch, waiting: &mut Vec<PathBuf>, failed: &mut impl FnMut(&Path, Error)) {
    for (input, result) in waiting.drain(..).zip(batch.finish(|_| Ok(()))) {
        if let Err(error) = result {
            failed(&input, error.into());
        }
    }
}

fn shown(path: &Path) -> String {
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
    bar.finish_and_clear();
    result
}

/// A progress bar on a terminal, for files that take long enough to wonder; nothing without a terminal.
fn bar(common: &Common, input: &Path, to_stdout: bool) -> ProgressBar {
    let len = std::fs::metadata(input).ok().filter(std::fs::Metadata::is_file).map(|meta| meta.len());
    let to_terminal = to_stdout && std::io::stdout().is_terminal();
    if common.quiet || to_terminal || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match len {
        Some(len) => {
            (ProgressBar::new(len), "{msg:20!} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
        }
        None => (ProgressBar::new_spinner(), "{msg:20!} {spinner} {bytes} {bytes_per_sec}"),
    };
    styled(bar, template).with_message(shown(input))
}

/// A bar that looks so.
pub fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// What was done, how fast, where, and in how much memory.
fn print_stats(done: &str, bytes: u64, runtime: &Runtime, seconds: f64) -> Result<(), Error> {
    tell!(
        "{done} {} in {seconds:.3} s, {}",
        text::bytes(bytes),
        text::rate(bytes as f64 / seconds.max(1e-9))
    );
    // The chunks, the one that carries the key among them.
    let cells = runtime.snapshot().cells;
    for cell in cells.iter().filter(|cell| Kind::from_name(&cell.kind).is_some_and(is_content)) {
        let requests = if cell.requests == 1 { "request" } else { "requests" };
        let size = text::bytes(cell.bytes);
        tell!("{} on {}: {} {requests}, {size}", cell.kind, cell.engine, cell.requests);
    }
    tell!("costs from: {}", runtime.profile_origin());
    if let Some(peak) = peak_memory("self") {
        tell!("peak resident memory {}", text::bytes(peak));
    }
    Ok(())
}

fn is_content(kind: Kind) -> bool {
    matches!(kind.info().family, Family::Seal | Family::Open | Family::Compress)
}

/// An error about a file.
pub(crate) fn within(path: &Path, error: Error) -> anyhow::Error {
    anyhow::Error::new(error).context(shown(path))
}

/// Reads a file of keys, up to the length that is accepted. `-` is standard input.
pub(crate) fn read_key_file(path: &Path) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let mut content = Zeroizing::new(Vec::new());
    let limit = FILE_MAX as u64 + 1;
    let read = if is_dash(path) {
        std::io::stdin().lock().take(limit).read_to_end(&mut content)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(limit).read_to_end(&mut content))
    };
    match read {
        Ok(_) => Ok(content),
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => {
            Err(wattlock_door::Error::NotFound(path.to_owned()).into())
        }
        Err(source) => Err(within(path, system("reading a key file", source))),
    }
}

/// Reads an identity file. One that `wattlock seal -p` locked is opened: its passphrase is asked for.
pub(crate) fn read_identity_file(path: &Path, terminal: &Terminal) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let content = read_key_file(path)?;
    if !keys::is_sealed(&content) {
        return Ok(content);
    }
    let asks = terminal.clone();
    let question = format!("Passphrase of {}", shown(path));
    let ask: AskPassphrase = Box::new(move || asks.request_passphrase(&question));
    let runtime = Runtime::builder().telemetry(false).build()?;
    let opened = Opener::new(Vec::new()).passphrase(ask).open_bytes(&content, &runtime);
    opened.map_err(|error| within(path, terminal.explain(error)))
}

/// The passphrase that a file begins with.
pub(crate) fn first_line(path: &Path) -> anyhow::Result<SecretString> {
    let content = read_key_file(path)?;
    let line = content.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let text = std::str::from_utf8(line).map_err(|_| usage::<Error>("the passphrase file is not text"))?;
    if text.is_empty() {
        return Err(usage("the passphrase file's first line is empty"));
    }
    Ok(SecretString::from(text.to_owned()))
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
