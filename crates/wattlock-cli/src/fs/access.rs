//! What opens a volume, and what is to open it from now on.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use wattlock_core::sync::lock;

use age::Callbacks;
use age::secrecy::SecretString;
use anyhow::Result;
use clap::Args;
use wattlock::Runtime;
use wattlock_door::one_line;
use wattlock_files::Error as FilesError;
use wattlock_files::keys::{self, LOCKED_WORK_FACTOR_LIMIT, WORK_FACTOR_LIMIT};
use wattlock_fs::Error;
use wattlock_fs::volume::{self, Access, FIRST_PASSPHRASE, Folder, Passphrase, Volume};
use wattlock_shell::INTERRUPTED;
use zeroize::Zeroizing;

use super::Work;
use super::known::{Book, Known, Said, Use};
use crate::ask::{self, Terminal};
use crate::defaults;
use crate::files::is_dash;
use crate::keys::{first_line, read_identity_file, read_key_file, refuse_left_out, unlocked, within};

/// What opens the volume.
#[derive(Debug, Clone, Args)]
pub struct Keys {
    /// Open with the identities in this file: age's, or an SSH private key; may be repeated. Without it, with the default
    /// identity, or a passphrase of the volume is asked for
    #[arg(short, long = "identity", value_name = "FILE")]
    identities: Vec<PathBuf>,
    /// Read the passphrase from the first line of a file instead of the terminal (`/dev/fd/3`: a descriptor; `-`:
    /// standard input). Trying it takes half a second and 264 MiB of memory for each passphrase of the volume
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
    /// Try the passphrase of this name only
    #[arg(long, value_name = "NAME")]
    key: Option<String>,
    /// Try passphrases up to this work factor, a power of two. The volume's storage names it: 20 is two seconds and 1 GiB of
    /// memory, and each step doubles both. At most 64 are tried, one after the other
    #[arg(long, value_name = "N", default_value_t = LOCKED_WORK_FACTOR_LIMIT)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=i64::from(WORK_FACTOR_LIMIT)))]
    work_factor_limit: u8,
    /// Open only the volume of this fingerprint, which `fs init` and `fs key list` print
    #[arg(long, value_name = "FINGERPRINT", value_parser = fingerprint)]
    expect: Option<String>,
    /// Open and remember the volume although it is another one, or an older one, than this machine knows: after it was made
    /// anew or restored from a backup
    #[arg(long)]
    accept_changed: bool,
    /// No default identity, as for mount(8)
    #[arg(long, hide = true)]
    no_default: bool,
    #[arg(skip)]
    read: Once,
}

/// A fingerprint as it is printed, or in capitals.
pub fn fingerprint(text: &str) -> Result<String, String> {
    let text = text.to_ascii_lowercase();
    let is_one = volume::is_fingerprint(&text);
    is_one.then_some(text).ok_or_else(|| "not a fingerprint, as `wattlock fs key list` prints it".into())
}

/// What was opened.
pub struct Opened {
    pub folder: Folder,
    pub volume: Volume,
    pub known: Known,
}

/// What was read and typed already: a command that reads the volume twice asks once, and what comes through a pipe comes
/// once.
#[derive(Clone, Default)]
struct Once(Arc<Mutex<Secrets>>);

#[derive(Default)]
struct Secrets {
    identities: HashMap<PathBuf, Zeroizing<Vec<u8>>>,
    passphrase: Option<SecretString>,
    /// The user's default identity, once it was looked for.
    default: Option<Option<PathBuf>>,
}

impl fmt::Debug for Once {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Once")
    }
}

impl Once {
    fn identity(&self, path: &Path, terminal: &Terminal) -> Result<Zeroizing<Vec<u8>>> {
        let mut secrets = lock(&self.0);
        if let Some(content) = secrets.identities.get(path) {
            return Ok(content.clone());
        }
        let content = read_identity_file(path, terminal)?;
        secrets.identities.insert(path.to_owned(), content.clone());
        Ok(content)
    }

    /// Where the default identity is, if there is one; it is looked for once.
    fn users_own(&self, terminal: &Terminal) -> Result<Option<PathBuf>> {
        let mut secrets = lock(&self.0);
        if let Some(known) = &secrets.default {
            return Ok(known.clone());
        }
        let found = defaults::identity()?;
        let path = found.as_ref().map(|found| found.path.clone());
        if let Some(defaults::Found { path, content }) = found {
            let content = unlocked(&path, content, terminal)?;
            secrets.identities.insert(path, content);
        }
        secrets.default = Some(path.clone());
        Ok(path)
    }

    /// The passphrase, which `get` gives the first time.
    fn passphrase<E>(
        &self,
        get: impl FnOnce() -> Result<Option<SecretString>, E>,
    ) -> Result<Option<SecretString>, E> {
        let mut secrets = lock(&self.0);
        if secrets.passphrase.is_none() {
            secrets.passphrase = get()?;
        }
        Ok(secrets.passphrase.clone())
    }
}

impl Keys {
    /// These, and those that mount options name.
    pub fn with(
        &self,
        identities: &[String],
        passphrase_file: Option<&str>,
        key: Option<&str>,
        work_factor_limit: Option<u8>,
        expect: Option<&str>,
    ) -> Keys {
        let mut keys = self.clone();
        keys.expect = expect.map(str::to_owned).or(keys.expect);
        keys.work_factor_limit = work_factor_limit.unwrap_or(keys.work_factor_limit);
        keys.identities.extend(identities.iter().map(PathBuf::from));
        keys.passphrase_file = passphrase_file.map(PathBuf::from).or(keys.passphrase_file);
        keys.key = key.map(str::to_owned).or(keys.key);
        keys
    }

    /// Opens the volume's folder and the volume, for what is to be done with it.
    pub fn open(&self, path: &Path, usage: Use, runtime: &Runtime) -> Result<Opened> {
        let folder = Folder::open(path)?;
        let (volume, known) = self.read(path, &folder, usage, runtime)?;
        Ok(Opened { folder, volume, known })
    }

    /// Opens the volume in a folder that is open, and compares it with what is known of it.
    pub fn read(
        &self,
        path: &Path,
        folder: &Folder,
        usage: Use,
        runtime: &Runtime,
    ) -> Result<(Volume, Known)> {
        let book = Book::load();
        let volume = self.unseal(path, folder, runtime)?;
        folder.refuse_newer_journal()?;
        let said = Said { expect: self.expect.clone(), accept: self.accept_changed };
        let known = book.meet(path, &volume, usage, &said, &mut runtime.dispatcher())?;
        Ok((volume, known))
    }

    fn unseal(&self, path: &Path, folder: &Folder, runtime: &Runtime) -> Result<Volume> {
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
        let given = !self.identities.is_empty() || self.passphrase_file.is_some() || self.key.is_some();
        let default = if given || self.no_default { None } else { self.read.users_own(&terminal)? };
        for path in self.identities.iter().chain(&default) {
            let content = self.read.identity(path, &terminal)?;
            let read = keys::identities(&content, terminal.clone());
            identities.extend(read.map_err(|error| within(path, terminal.explain(error)))?);
        }
        let mut access = Access::identities(identities);
        // The default identity may be none of this volume's, and one of its passphrases may be known.
        let may_be_typed = default.is_none() || !folder.locked()?.is_empty();
        if (self.identities.is_empty() && may_be_typed)
            || self.passphrase_file.is_some()
            || self.key.is_some()
        {
            self.check_locked(folder)?;
            if let Some(path) = &self.passphrase_file {
                self.read.passphrase(|| first_line(path).map(Some))?;
            }
            let (read, terminal) = (self.read.clone(), terminal.clone());
            let typed = move || Ok::<_, ()>(terminal.request_passphrase("Passphrase of the volume"));
            access = access.passphrase(Passphrase {
                ask: Box::new(move || read.passphrase(&typed).ok().flatten()),
                only: self.key.clone(),
                work_factor_limit: self.work_factor_limit,
                stop: || INTERRUPTED.load(Ordering::SeqCst),
            });
        }
        folder.read(access, runtime).map_err(|error| match error {
            Error::Files(error @ FilesError::ExcessiveWork { required, .. }) => {
                let allow = format!("{} (--work-factor-limit {required} allows it)", one_line(path));
                anyhow::Error::new(Error::Files(error)).context(allow)
            }
            Error::Files(error) => Error::Files(terminal.explain(error)).into(),
            // A plugin, or a locked identity, that had no user to ask.
            Error::NoMatchingKey => match terminal.explain(FilesError::NoMatchingKey) {
                FilesError::NoMatchingKey => Error::NoMatchingKey.into(),
                error => Error::Files(error).into(),
            },
            error => error.into(),
        })
    }

    /// Says that there is nothing to ask a passphrase for before it is asked.
    fn check_locked(&self, folder: &Folder) -> Result<(), Error> {
        match &self.key {
            Some(name) if folder.has_locked(name)? => Ok(()),
            Some(name) => {
                let names = folder.locked().unwrap_or_default().join(", ");
                let there = if names.is_empty() { String::new() } else { format!("; there are {names}") };
                Err(Error::Usage(format!("no passphrase is called {name}{there}")))
            }
            None if folder.locked()?.is_empty() => Err(Error::Usage(format!(
                "the volume has no passphrase: give an identity with -i, or have a default one in {}",
                defaults::identity_place()
            ))),
            None => Ok(()),
        }
    }

    /// The age plugins that may be started when the volume is sealed anew: those whose identities were given.
    fn plugins(&self) -> Vec<String> {
        let secrets = lock(&self.read.0);
        secrets.identities.values().flat_map(|content| keys::plugins_in(content)).collect()
    }
}

/// Which age plugins may be started.
#[derive(Debug, Args)]
pub struct Plugins {
    /// Start this age plugin if a key of the volume needs it to seal the volume's settings; may be repeated. Without it
    /// only the plugins of the identities and recipients that are given are started
    #[arg(long, value_name = "NAME")]
    plugin: Vec<String>,
}

impl Plugins {
    /// These, and those that were given with the keys.
    pub fn with(&self, keys: &Keys, recipient: Option<&str>) -> Vec<String> {
        let mut allowed = self.plugin.clone();
        allowed.extend(keys.plugins());
        allowed.extend(recipient.into_iter().flat_map(|text| keys::plugins_in(text.as_bytes())));
        allowed
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

    /// Adds them, or the user's default recipients, to a volume. Returns locked identities by name.
    pub fn add(
        &self,
        volume: &mut Volume,
        default: Option<defaults::Found>,
        runtime: &Runtime,
    ) -> Result<Vec<(String, Vec<u8>)>> {
        for text in &self.recipients {
            let (name, recipient) = named(text);
            add_recipient(volume, name, recipient)?;
        }
        let mut lists = Vec::new();
        for path in &self.recipient_files {
            lists.push((path.clone(), read_key_file(path)?));
        }
        lists.extend(default.map(|default| (default.path, default.content)));
        for (path, content) in &lists {
            let listed = keys::recipients_in(content).map_err(|error| within(path, error))?;
            for line in listed.left_out {
                refuse_left_out(path, line)?;
            }
            for recipient in listed.recipients {
                add_recipient(volume, None, recipient)?;
            }
        }
        if !self.passphrase && self.passphrase_file.is_none() {
            return Ok(Vec::new());
        }
        let passphrase = new_passphrase(self.passphrase_file.as_deref())?;
        let name = FIRST_PASSPHRASE.to_owned();
        let locked = volume.add_passphrase(&name, passphrase, self.work.work_factor, runtime)?;
        Ok(vec![(name, locked)])
    }
}

/// The age plugins of a volume's keys: of one that is new, all were given.
pub fn plugins_of(volume: &Volume) -> Vec<String> {
    volume.openers.iter().flat_map(|opener| keys::plugins_in(opener.recipient.as_bytes())).collect()
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
