//! Keys by option and by file: recipients, identities, passphrases, for files, streams and volumes.

use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use age::Callbacks;
use age::secrecy::SecretString;
use clap::Args;
use wattlock::Runtime;
use wattlock_door::one_line;
use wattlock_files::keys::{self, AskPassphrase, BoxedIdentity, BoxedRecipient, FILE_MAX, Recipients};
use wattlock_files::{Error, Opener};
use zeroize::Zeroizing;

use crate::ask::Terminal;
use crate::defaults;
use crate::files::{is_dash, shown};
use crate::wrong::{system, usage};

/// Arguments that name whom something is sealed to.
#[derive(Debug, Args)]
pub struct Whom {
    /// Seal to this recipient: age1..., an SSH public key, or the recipient of an age plugin; may be repeated
    #[arg(short, long = "recipient", value_name = "RECIPIENT")]
    pub recipients: Vec<String>,
    /// Seal to every recipient in this file. Without any recipient: to the default ones
    #[arg(short = 'R', long = "recipients-file", value_name = "FILE")]
    pub recipient_files: Vec<PathBuf>,
    /// Seal to the recipients of the identities in this file
    #[arg(short, long = "identity", value_name = "FILE")]
    pub identities: Vec<PathBuf>,
}

impl Whom {
    /// Whether none is named.
    pub fn is_empty(&self) -> bool {
        self.recipients.is_empty() && self.recipient_files.is_empty() && self.identities.is_empty()
    }

    /// All of them, each once; the user's default ones if none is named.
    pub fn recipients(&self, terminal: &Terminal) -> anyhow::Result<Vec<BoxedRecipient>> {
        if self.is_empty() {
            return defaults::recipients(terminal);
        }
        let Whom { recipients: named, recipient_files, identities } = self;
        recipients(named, recipient_files, identities, &tell_left_out, terminal)
    }
}

/// What to do where there are no recipients: a stranger has no key yet, or put it among the files.
pub fn nobody(inputs: &[PathBuf], options: &str) -> String {
    match forgotten(inputs) {
        Some(key) => format!("{} is a recipient: it needs -r before it", one_line(key)),
        None => format!(
            "to whom? give {options}; `wattlock keygen -o key.txt` makes a key pair, and `wattlock keygen --default` \
             one that needs no option"
        ),
    }
}

/// A recipient that stands among the files.
pub fn forgotten(inputs: &[PathBuf]) -> Option<&PathBuf> {
    let looks =
        |input: &&PathBuf| input.to_str().is_some_and(|text| text.starts_with("age1") && !input.exists());
    inputs.iter().find(looks)
}

/// What is done about a line of a recipients file that names what is not supported.
pub type LeftOut<'a> = &'a dyn Fn(&Path, String) -> anyhow::Result<()>;

/// Says so, as age does: of a file, which may be sealed again.
pub fn tell_left_out(path: &Path, line: String) -> anyhow::Result<()> {
    tell!("wattlock: {}: {line}, left out", shown(path));
    Ok(())
}

/// Refuses it, where whoever was left out would be locked out of all that comes.
pub fn refuse_left_out(path: &Path, line: String) -> anyhow::Result<()> {
    Err(within(path, Error::BadRecipient(line)))
}

/// The recipients that arguments, recipients files and identity files name.
pub fn recipients(
    named: &[String],
    files: &[PathBuf],
    identities: &[PathBuf],
    left_out: LeftOut<'_>,
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
        for line in recipients.add_file(&once).map_err(|error| within(path, error))? {
            left_out(path, line)?;
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

/// An error about a file.
pub fn within(path: &Path, error: Error) -> anyhow::Error {
    anyhow::Error::new(error).context(shown(path))
}

/// Reads a file of keys, up to the length that is accepted. `-` is standard input.
pub fn read_key_file(path: &Path) -> anyhow::Result<Zeroizing<Vec<u8>>> {
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
pub fn read_identity_file(path: &Path, terminal: &Terminal) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    unlocked(path, read_key_file(path)?, terminal)
}

/// What an identity file has in it, if `wattlock seal -p` locked it.
pub fn unlocked(
    path: &Path,
    content: Zeroizing<Vec<u8>>,
    terminal: &Terminal,
) -> anyhow::Result<Zeroizing<Vec<u8>>> {
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
pub fn first_line(path: &Path) -> anyhow::Result<SecretString> {
    let content = read_key_file(path)?;
    let line = content.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let text = std::str::from_utf8(line).map_err(|_| usage::<Error>("the passphrase file is not text"))?;
    if text.is_empty() {
        return Err(usage("the passphrase file's first line is empty"));
    }
    Ok(SecretString::from(text.to_owned()))
}
