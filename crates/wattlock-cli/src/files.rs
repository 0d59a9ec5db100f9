//! `wattlock seal` and `wattlock open`: files in, files out, many at a time.

use std::ffi::OsString;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use age::Callbacks;
use age::cli_common::{UiCallbacks, read_secret};
use age::secrecy::SecretString;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use wattlock::Runtime;
use wattlock_core::{Kind, KindSet};
use wattlock_files::keys::{self, AskPassphrase, BoxedIdentity, FILE_MAX, Recipients, WORK_FACTOR};
use wattlock_files::{Error, Format, Input, Opener, Output, Progress, Sealer};
use zeroize::Zeroizing;

use crate::setup::{self, Choice};
use crate::text;

/// Raised by an interrupt; the work in progress then stops and leaves nothing behind.
pub static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Kinds that sealing and opening files use, for a first calibration.
fn kinds() -> KindSet {
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
    /// Where the result goes; `-` for standard output. Without it each FILE gets a name of its own beside it
    #[arg(short, long, value_name = "FILE", conflicts_with = "dir")]
    output: Option<PathBuf>,
    /// Put the results into this folder
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Replace outputs that exist
    #[arg(short, long)]
    force: bool,
    /// Read the passphrase from the first line of a file instead of the terminal
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
    /// Say at the end what was done, how fast, on which engine, in how much memory (on standard error)
    #[arg(long)]
    stats: bool,
    /// No progress bar
    #[arg(short, long)]
    quiet: bool,
}

/// Encrypt files to recipients
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  wattlock seal -r age1... backup.tar                  writes backup.tar.sealed\n  tar c docs | wattlock seal -R team.txt -o docs.tar.sealed\n  wattlock seal -p --format age notes.txt              writes notes.txt.age, which `age -d` opens\n\nExit codes are listed by `wattlock exit-codes`."
)]
pub struct Seal {
    #[command(flatten)]
    common: Common,
    /// Seal to this recipient: age1..., an SSH public key, a plugin's recipient
    #[arg(short, long = "recipient", value_name = "RECIPIENT")]
    recipients: Vec<String>,
    /// Seal to every recipient in this file
    #[arg(short = 'R', long = "recipients-file", value_name = "FILE")]
    recipient_files: Vec<PathBuf>,
    /// Seal to the recipients of the identities in this file
    #[arg(short, long = "identity", value_name = "FILE")]
    identities: Vec<PathBuf>,
    /// Seal with a passphrase
    #[arg(short, long, conflicts_with_all = ["recipients", "recipient_files", "identities"])]
    passphrase: bool,
    /// Write text that survives mail and terminals
    #[arg(short, long)]
    armor: bool,
    /// Format of the result
    #[arg(long, value_enum, default_value_t)]
    format: FormatName,
}

/// Decrypt files
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  wattlock open -i key.txt backup.tar.sealed           writes backup.tar\n  wattlock open -i ~/.ssh/id_ed25519 -o - docs.tar.sealed | tar x\n  wattlock open secrets.age                            asks for the passphrase\n\nThe format (sealed or age, armored or not) is recognised. Nothing is written that was not verified."
)]
pub struct Open {
    #[command(flatten)]
    common: Common,
    /// Open with the identities in this file: age's, or an SSH private key
    #[arg(short, long = "identity", value_name = "FILE")]
    identities: Vec<PathBuf>,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum FormatName {
    /// A small age file with the key, then AES-256-GCM chunks (docs/file-format.md)
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
    let mut recipients = Recipients::new();
    for recipient in &command.recipients {
        recipients.add(recipient)?;
    }
    for path in &command.recipient_files {
        recipients.add_file(&read_key_file(path)?).map_err(|error| within(path, error))?;
    }
    for path in &command.identities {
        recipients
            .add_identity_file(&read_key_file(path)?, UiCallbacks)
            .map_err(|error| within(path, error))?;
    }
    let mut recipients = recipients.finish(UiCallbacks)?;
    if command.passphrase || command.common.passphrase_file.is_some() {
        if !recipients.is_empty() {
            return Err(Error::Usage("a passphrase must be alone: no recipients beside it".into()).into());
        }
        recipients.push(keys::passphrase_recipient(new_passphrase(&command.common)?, WORK_FACTOR)?);
    }
    if recipients.is_empty() {
        return Err(Error::Usage("to whom? give -r, -R, -i or -p".into()).into());
    }
    let format = if matches!(command.format, FormatName::Age) { Format::Age } else { Format::Sealed };
    let sealer = Sealer::new(recipients)?.format(format).armor(command.armor);
    let suffix = command.format.suffix();
    let name = |input: &Path| {
        let mut name = input.file_name().unwrap_or_default().to_owned();
        name.push(suffix);
        Ok(name)
    };
    let binary_to_terminal = !command.armor;
    each(&command.common, choice, "sealed", &name, binary_to_terminal, |input, output, runtime, progress| {
        sealer.seal(input, output, runtime, progress)
    })
}

/// Runs `wattlock open`.
pub fn open(command: &Open, choice: &Choice) -> anyhow::Result<()> {
    let mut identities: Vec<BoxedIdentity> = Vec::new();
    for path in &command.identities {
        identities.extend(
            keys::identities(&read_key_file(path)?, UiCallbacks).map_err(|error| within(path, error))?,
        );
    }
    let opener = Opener::new(identities).passphrase(ask_passphrase(&command.common)?);
    each(&command.common, choice, "opened", &without_suffix, false, |input, output, runtime, progress| {
        opener.open(input, output, runtime, progress).map(|_| ())
    })
}

/// What a sealed file is called when it is opened.
fn without_suffix(input: &Path) -> Result<OsString, Error> {
    let name = input.file_name().unwrap_or_default();
    let known = Path::new(name).extension().is_some_and(|suffix| suffix == "sealed" || suffix == "age");
    match Path::new(name).file_stem() {
        Some(stem) if known => Ok(stem.to_owned()),
        _ => Err(Error::Usage(format!(
            "{}: no .sealed or .age at the end, so the result needs a name: -o FILE",
            input.display()
        ))),
    }
}

type Work<'a> = dyn Fn(Input, Output, &Runtime, Progress<'_>) -> Result<(), Error> + 'a;

/// Does the work for each input. Goes on after a file that fails; the first failure decides the exit code.
fn each(
    common: &Common,
    choice: &Choice,
    done: &str,
    name: &dyn Fn(&Path) -> Result<OsString, Error>,
    binary_to_terminal: bool,
    work: impl Fn(Input, Output, &Runtime, Progress<'_>) -> Result<(), Error>,
) -> anyhow::Result<()> {
    let inputs = if common.inputs.is_empty() { vec![PathBuf::from("-")] } else { common.inputs.clone() };
    let pairs = outputs(common, &inputs, name, binary_to_terminal)?;
    let runtime = setup::runtime(choice, Some(kinds()), common.quiet)?;
    let start = Instant::now();
    let mut failure = None;
    for (input, output) in pairs {
        let result = one(common, &input, output, &runtime, &work);
        if let Err(error) = result {
            let stop = matches!(error, Error::Interrupted | Error::ClosedPipe | Error::DiskFull);
            eprintln!("wattlock: {}: {error}", shown(&input));
            failure = failure.or(Some(error));
            if stop {
                break;
            }
        }
    }
    if common.stats {
        print_stats(done, &runtime, start.elapsed().as_secs_f64());
    }
    match failure {
        None => Ok(()),
        Some(error) => Err(anyhow::Error::new(error).context(Told)),
    }
}

/// Marks an error whose line has already been printed.
#[derive(Debug, Clone, Copy)]
pub struct Told;

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("told already")
    }
}

fn shown(path: &Path) -> String {
    if is_dash(path) { "standard input".into() } else { path.display().to_string() }
}

fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn outputs(
    common: &Common,
    inputs: &[PathBuf],
    name: &dyn Fn(&Path) -> Result<OsString, Error>,
    binary_to_terminal: bool,
) -> Result<Vec<(PathBuf, Option<PathBuf>)>, Error> {
    if let Some(output) = &common.output {
        if inputs.len() > 1 {
            return Err(Error::Usage("-o names one result, and there are several files; use --dir".into()));
        }
        let to = (!is_dash(output)).then(|| output.clone());
        if to.is_none() {
            refuse_terminal(binary_to_terminal)?;
        }
        return Ok(vec![(inputs[0].clone(), to)]);
    }
    let beside = |input: &PathBuf| match (is_dash(input), &common.dir) {
        (true, None) => refuse_terminal(binary_to_terminal).map(|()| (input.clone(), None)),
        (true, Some(_)) => Err(Error::Usage("standard input has no name; use -o".into())),
        (false, Some(dir)) => Ok((input.clone(), Some(dir.join(name(input)?)))),
        (false, None) => Ok((input.clone(), Some(input.with_file_name(name(input)?)))),
    };
    inputs.iter().map(beside).collect()
}

fn refuse_terminal(binary: bool) -> Result<(), Error> {
    if binary && std::io::stdout().is_terminal() {
        return Err(Error::Usage("not writing binary data to a terminal; use -o, or --armor".into()));
    }
    Ok(())
}

fn one(
    common: &Common,
    input: &Path,
    output: Option<PathBuf>,
    runtime: &Runtime,
    work: &Work<'_>,
) -> Result<(), Error> {
    let bar = bar(common, input, output.as_deref());
    let on_bytes = |bytes: u64| bar.inc(bytes);
    let progress = Progress::new(&INTERRUPTED).on_bytes(&on_bytes);
    let from = if is_dash(input) { Input::Stdin } else { Input::Path(input.to_owned()) };
    let to = match output {
        Some(path) => Output::Path { path, force: common.force },
        None => Output::Stdout,
    };
    let result = work(from, to, runtime, progress);
    bar.finish_and_clear();
    result
}

/// A progress bar on a terminal, for files that take long enough to wonder; nothing elsewhere.
fn bar(common: &Common, input: &Path, output: Option<&Path>) -> ProgressBar {
    let len = std::fs::metadata(input).ok().filter(std::fs::Metadata::is_file).map(|meta| meta.len());
    let to_terminal = output.is_none() && std::io::stdout().is_terminal();
    if common.quiet || to_terminal || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match len {
        Some(len) => {
            (ProgressBar::new(len), "{msg:20!} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
        }
        None => (ProgressBar::new_spinner(), "{msg:20!} {spinner} {bytes} {bytes_per_sec}"),
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(shown(input));
    bar
}

fn print_stats(done: &str, runtime: &Runtime, seconds: f64) {
    let snapshot = runtime.snapshot();
    for cell in snapshot
        .cells
        .iter()
        .filter(|cell| cell.bytes >= 1 << 10 || cell.kind.contains("poly") || cell.kind.contains("gcm"))
    {
        eprintln!(
            "{} on {}: {} requests, {}",
            cell.kind,
            cell.engine,
            cell.requests,
            text::bytes(cell.bytes)
        );
    }
    let bytes: u64 = snapshot
        .cells
        .iter()
        .filter(|c| c.kind.contains("gcm") || c.kind.contains("poly"))
        .map(|c| c.bytes)
        .sum();
    eprintln!(
        "{done} {} in {seconds:.3} s, {}; costs from {}",
        text::bytes(bytes),
        text::rate(bytes as f64 / seconds.max(1e-9)),
        runtime.profile_origin()
    );
    if let Some(peak) = peak_memory() {
        eprintln!("peak resident memory {}", text::bytes(peak));
    }
}

/// This process's peak resident memory in bytes (`VmHWM` in proc(5)).
pub fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok().map(|kib| kib << 10)
}

fn within(path: &Path, error: Error) -> anyhow::Error {
    anyhow::Error::new(error).context(path.display().to_string())
}

/// Reads a file of keys, up to the length that is accepted. `-` is standard input.
fn read_key_file(path: &Path) -> anyhow::Result<Zeroizing<Vec<u8>>> {
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
            Err(Error::NotFound(path.to_owned()).into())
        }
        Err(source) => Err(within(path, Error::Io { what: "reading a key file", source })),
    }
}

fn first_line(path: &Path) -> anyhow::Result<SecretString> {
    let content = read_key_file(path)?;
    let line = content.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let text =
        std::str::from_utf8(line).map_err(|_| Error::Usage("the passphrase file is not text".into()))?;
    if text.is_empty() {
        return Err(Error::Usage("the passphrase file's first line is empty".into()).into());
    }
    Ok(SecretString::from(text.to_owned()))
}

fn new_passphrase(common: &Common) -> anyhow::Result<SecretString> {
    if let Some(path) = &common.passphrase_file {
        return first_line(path);
    }
    read_secret("Type a passphrase", "Passphrase", Some("Confirm passphrase"))
        .map_err(|error| Error::Usage(format!("no passphrase: {error}")).into())
}

fn ask_passphrase(common: &Common) -> anyhow::Result<AskPassphrase> {
    if let Some(path) = &common.passphrase_file {
        let passphrase = first_line(path)?;
        return Ok(Box::new(move || Some(passphrase.clone())));
    }
    Ok(Box::new(|| UiCallbacks.request_passphrase("Type the passphrase")))
}
