//! What opens a volume, and what is to open it from now on.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use age::Callbacks;
use age::secrecy::SecretString;
use anyhow::Result;
use clap::Args;
use wattlock::Runtime;
use wattlock_files::keys;
use wattlock_fs::Error;
use wattlock_fs::volume::{Access, Folder, Volume};

use super::Work;
use crate::ask::{self, Terminal};
use crate::files::{first_line, is_dash, read_key_file, within};

/// What opens the volume.
#[derive(Debug, Clone, Args)]
pub struct Keys {
    /// Open with the identities in this file: age's, or an SSH private key; may be repeated. Without it, a passphrase of
    /// the volume is asked for
    #[arg(short, long = "identity", value_name = "FILE")]
    identities: Vec<PathBuf>,
    /// Read the passphrase from the first line of a file instead of the terminal (`/dev/fd/3`: a descriptor; `-`:
    /// standard input). Trying it takes half a second and 264 MiB of memory for each passphrase of the volume
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
    /// Try the passphrase of this name only
    #[arg(long, value_name = "NAME")]
    key: Option<String>,
}

impl Keys {
    /// These, and those that mount options name.
    pub fn with(&self, identities: &[String], passphrase_file: Option<&str>, key: Option<&str>) -> Keys {
        let mut keys = self.clone();
        keys.identities.extend(identities.iter().map(PathBuf::from));
        keys.passphrase_file = passphrase_file.map(PathBuf::from).or(keys.passphrase_file);
        keys.key = key.map(str::to_owned).or(keys.key);
        keys
    }

    /// Opens the volume's folder and the volume.
    pub fn open(&self, path: &Path, runtime: &Runtime) -> Result<(Folder, Volume)> {
        let folder = Folder::open(path)?;
        let volume = self.read(path, &folder, runtime)?;
        Ok((folder, volume))
    }

    /// Opens the volume in a folder that is open.
    pub fn read(&self, path: &Path, folder: &Folder, runtime: &Runtime) -> Result<Volume> {
        if !folder.has_volume()? {
            return Err(Error::NoVolume(path.to_owned()).into());
        }
        let dashes = self.identities.iter().chain(&self.passphrase_file).filter(|path| is_dash(path)).count();
        if dashes > 1 {
            return Err(
                Error::Usage("standard input can be only one thing: keys or a passphrase".into()).into()
            );
        }
        let terminal = Terminal::default();
        let mut identities = Vec::new();
        for path in &self.identities {
            let content = read_key_file(path)?;
            let read = keys::identities(&content, terminal.clone());
            identities.extend(read.map_err(|error| within(path, terminal.explain(error)))?);
        }
        let mut access = Access::identities(identities);
        if self.identities.is_empty() || self.passphrase_file.is_some() || self.key.is_some() {
            self.check_locked(folder)?;
            let answer = match &self.passphrase_file {
                Some(path) => Answer::Given(first_line(path)?),
                None => Answer::Asked(terminal.clone(), Arc::default()),
            };
            access = access.passphrase(folder, self.key.as_deref(), answer)?;
        }
        let read = folder.read(access, runtime);
        Ok(read.map_err(|error| match error {
            Error::Files(error) => Error::Files(terminal.explain(error)),
            error => error,
        })?)
    }

    /// Says that there is nothing to ask a passphrase for before it is asked.
    fn check_locked(&self, folder: &Folder) -> Result<(), Error> {
        let locked = folder.locked()?;
        match &self.key {
            Some(name) if !locked.contains(name) => {
                Err(Error::Usage(format!("no passphrase is called {name}")))
            }
            _ if locked.is_empty() => {
                Err(Error::Usage("the volume has no passphrase: give an identity with -i".into()))
            }
            _ => Ok(()),
        }
    }
}

/// Answers for a passphrase, as often as it is needed.
#[derive(Clone)]
enum Answer {
    Given(SecretString),
    /// Asked for once.
    Asked(Terminal, Arc<Mutex<Option<SecretString>>>),
}

impl Callbacks for Answer {
    fn display_message(&self, _: &str) {}

    fn confirm(&self, _: &str, _: &str, _: Option<&str>) -> Option<bool> {
        None
    }

    fn request_public_string(&self, _: &str) -> Option<String> {
        None
    }

    fn request_passphrase(&self, _: &str) -> Option<SecretString> {
        match self {
            Answer::Given(passphrase) => Some(passphrase.clone()),
            Answer::Asked(terminal, known) => {
                let mut known = known.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                if known.is_none() {
                    *known = Some(terminal.request_passphrase("Passphrase of the volume")?);
                }
                known.clone()
            }
        }
    }
}

/// What a new volume is opened with.
#[derive(Debug, Args)]
pub struct NewKeys {
    /// Open with this recipient's identity: age1..., an SSH public key, or the recipient of an age plugin; NAME= before
    /// it names it; may be repeated
    #[arg(short, long = "recipient", value_name = "[NAME=]RECIPIENT")]
    recipients: Vec<String>,
    /// Open with the identity of each recipient in this file
    #[arg(short = 'R', long = "recipients-file", value_name = "FILE")]
    recipient_files: Vec<PathBuf>,
    /// Open with a passphrase, called `passphrase`
    #[arg(short, long)]
    passphrase: bool,
    /// Read the new passphrase from the first line of a file instead of the terminal
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
    #[command(flatten)]
    work: Work,
}

impl NewKeys {
    /// Whether nothing would open the volume.
    pub fn none(&self) -> bool {
        self.recipients.is_empty()
            && self.recipient_files.is_empty()
            && !self.passphrase
            && self.passphrase_file.is_none()
    }

    /// Adds them to a volume. Returns locked identities by name.
    pub fn add(&self, volume: &mut Volume, runtime: &Runtime) -> Result<Vec<(String, Vec<u8>)>> {
        for text in &self.recipients {
            let (name, recipient) = named(text);
            add_recipient(volume, name, recipient)?;
        }
        for path in &self.recipient_files {
            let content = read_key_file(path)?;
            let text = std::str::from_utf8(&content);
            let text = text.map_err(|_| Error::Usage("the recipients file is not text".into()))?;
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
            for (number, line) in lines.enumerate() {
                // A line that is no recipient may be anything: it is not quoted.
                let added = add_recipient(volume, None, line);
                added.map_err(|error| match error {
                    Error::Files(_) => {
                        within(path, wattlock_files::Error::BadRecipient(format!("recipient {}", number + 1)))
                    }
                    error => error.into(),
                })?;
            }
        }
        if !self.passphrase && self.passphrase_file.is_none() {
            return Ok(Vec::new());
        }
        let passphrase = new_passphrase(self.passphrase_file.as_deref())?;
        let name = "passphrase".to_owned();
        let locked = volume.add_passphrase(&name, passphrase, self.work.work_factor, runtime)?;
        Ok(vec![(name, locked)])
    }
}

/// A new passphrase: a file's first line, or asked for twice.
pub fn new_passphrase(file: Option<&Path>) -> Result<SecretString> {
    match file {
        Some(path) => first_line(path),
        None => Ok(ask::new_passphrase()?),
    }
}

/// Splits `NAME=RECIPIENT`. No recipient has an equals sign after nothing but what a name may have.
fn named(text: &str) -> (Option<&str>, &str) {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    match text.split_once('=') {
        Some((name, recipient)) if !name.is_empty() && name.bytes().all(known) => (Some(name), recipient),
        _ => (None, text),
    }
}

/// Adds a recipient, under the first free name of `key1`, `key2`... if it has none.
pub fn add_recipient(volume: &mut Volume, name: Option<&str>, recipient: &str) -> Result<(), Error> {
    if let Some(name) = name {
        return volume.add_recipient(name, recipient);
    }
    let free = |name: &String| !volume.openers.iter().any(|opener| opener.name == *name);
    let name = (1..).map(|number| format!("key{number}")).find(free).unwrap_or_default();
    volume.add_recipient(&name, recipient)
}
