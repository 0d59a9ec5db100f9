//! `wattlock stream keys`: the keys of records that are sealed one by one.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use clap::{Args, Subcommand};
use wattlock::Runtime;
use wattlock_files::{Opener, Sealer};
use wattlock_stream::keys::{Entry, Folder, Keys};
use wattlock_stream::record::StreamId;
use wattlock_stream::trust::Signer;
use zeroize::Zeroizing;

use wattlock_shell::date::civil;

use super::bridge::{self, Uses};
use crate::ask::Terminal;
use crate::keys;
use crate::wrong::usage;

/// Manage the keys of records that are sealed one by one
#[derive(Debug, Args)]
pub struct Command {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    New(New),
    List(List),
    Rewrap(Rewrap),
    Shred(Shred),
    Signer(MakeSigner),
}

#[derive(Debug, Args)]
struct Place {
    /// The folder of keys
    #[arg(long, value_name = "DIR", required_unless_present = "config")]
    keys: Option<PathBuf>,
    /// The keys of this bridge, in their topic or folder
    #[arg(long, value_name = "FILE", conflicts_with = "keys")]
    config: Option<PathBuf>,
}

/// A folder to work on: the one that was named, or a copy of what a bridge's topic has.
struct Desk<'a> {
    folder: PathBuf,
    config: Option<&'a PathBuf>,
    uses: Uses,
    _copy: Option<tempfile::TempDir>,
}

impl Place {
    fn desk(&self) -> anyhow::Result<Desk<'_>> {
        let Some(config) = &self.config else {
            let folder = self.keys.clone().unwrap_or_default();
            return Ok(Desk { folder, config: None, uses: Uses::read(""), _copy: None });
        };
        let copy = tempfile::tempdir()?;
        let uses = bridge::entries("get", config, copy.path(), &[])?;
        Ok(Desk { folder: copy.path().to_owned(), config: Some(config), uses, _copy: Some(copy) })
    }
}

impl Desk<'_> {
    fn keys(&self) -> Result<Keys<Folder>, wattlock_stream::Error> {
        Ok(Keys::new(Folder::open(&self.folder)?))
    }

    /// Takes what was changed in a copy to where it came from.
    fn back(&self, what: &str, id: StreamId) -> anyhow::Result<()> {
        self.config.map_or(Ok(()), |config| bridge::entries(what, config, &self.folder, &[id]).map(|_| ()))
    }

    /// Which bridges may use a key now, beside its readers.
    fn use_of(&self, entry: &Entry, now: SystemTime) -> Option<String> {
        if self.uses.names.contains(&entry.id) {
            return Some(
                "in use: the bridge hides record keys under it, and ends without it (record_keys_under)"
                    .into(),
            );
        }
        let until = entry.created.checked_add(Duration::from_secs(self.uses.seconds))?;
        (now < until).then(|| {
            format!(
                "may be in use by a running bridge until {} (new_after_seconds = {}); after the shredding the bridge \
                 makes a new key",
                date(until),
                self.uses.seconds
            )
        })
    }
}

#[derive(Debug, Args)]
struct To {
    /// A reader: age1..., an SSH public key, or the recipient of an age plugin; may be repeated
    #[arg(short, long = "recipient", value_name = "RECIPIENT")]
    recipients: Vec<String>,
    /// Every recipient in this file is a reader
    #[arg(short = 'R', long = "recipients-file", value_name = "FILE")]
    recipient_files: Vec<PathBuf>,
}

/// Make a key and print its name
#[derive(Debug, Args)]
struct New {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    to: To,
    /// What the key is for, such as a topic's name
    #[arg(long, default_value = "")]
    label: String,
    /// Sign it with the signer in this file, for readers that trust no other
    #[arg(long, value_name = "FILE")]
    sign: Option<PathBuf>,
}

/// Make a signer of keys: its secret goes to a new file, its name is printed
#[derive(Debug, Args)]
struct MakeSigner {
    /// The new file
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// List the keys; no identity is needed
#[derive(Debug, Args)]
struct List {
    #[command(flatten)]
    place: Place,
}

/// Change who reads what the keys sealed, without touching a record
#[derive(Debug, Args)]
struct Rewrap {
    #[command(flatten)]
    place: Place,
    /// Open the keys with the identities in this file
    #[arg(short, long = "identity", value_name = "FILE", required = true)]
    identities: Vec<PathBuf>,
    #[command(flatten)]
    to: To,
    /// Names of keys; without one, every key
    ids: Vec<StreamId>,
}

/// Remove keys: what they sealed can never be read again
#[derive(Debug, Args)]
struct Shred {
    #[command(flatten)]
    place: Place,
    /// Do it; without this, only say what would become unreadable
    #[arg(long)]
    yes: bool,
    /// Names of keys
    #[arg(required = true)]
    ids: Vec<StreamId>,
}

/// Runs the command.
pub fn run(command: &Command) -> anyhow::Result<()> {
    match &command.what {
        What::New(command) => new(command),
        What::List(command) => list(command),
        What::Rewrap(command) => rewrap(command),
        What::Shred(command) => shred(command),
        What::Signer(command) => signer(command),
    }
}

fn runtime() -> anyhow::Result<Runtime> {
    Ok(Runtime::builder().telemetry(false).build()?)
}

impl To {
    fn sealer(&self) -> anyhow::Result<Sealer> {
        let terminal = Terminal::default();
        // Whoever is left out would read nothing that the key seals.
        let refused = &keys::refuse_left_out;
        let recipients = keys::recipients(&self.recipients, &self.recipient_files, &[], refused, &terminal)?;
        if recipients.is_empty() {
            return Err(usage("for whom? give -r or -R"));
        }
        Ok(Sealer::new(recipients)?)
    }
}

fn new(command: &New) -> anyhow::Result<()> {
    let sealer = command.to.sealer()?;
    let signer = command.sign.as_deref().map(read_signer).transpose()?;
    if let Some(folder) = &command.place.keys {
        Folder::create(folder)?;
    }
    let desk = command.place.desk()?;
    let crypto = &mut runtime()?.dispatcher();
    let made = desk.keys()?.new_key(&command.label, &sealer, signer.as_ref(), crypto)?;
    desk.back("put", made.id())?;
    say!("{}", made.id());
    Ok(())
}

fn read_signer(path: &Path) -> anyhow::Result<Signer> {
    let file = Zeroizing::new(fs::read_to_string(path).with_context(|| path.display().to_string())?);
    Signer::parse(&file).with_context(|| path.display().to_string())
}

fn signer(command: &MakeSigner) -> anyhow::Result<()> {
    let (signer, secret) = Signer::generate()?;
    let mut options = fs::File::options();
    let file = options.write(true).create_new(true).mode(0o600).open(&command.output);
    let mut file = file.with_context(|| command.output.display().to_string())?;
    file.write_all(secret.as_bytes())?;
    file.sync_all()?;
    say!("{}", signer.name());
    Ok(())
}

fn list(command: &List) -> anyhow::Result<()> {
    let (entries, mut damaged) = command.place.desk()?.keys()?.list()?;
    entries.iter().try_for_each(|entry| -> anyhow::Result<()> {
        say!("{}", line(entry));
        Ok(())
    })?;
    match damaged.pop() {
        None => Ok(()),
        Some((_, last)) => {
            damaged.iter().for_each(|(_, error)| eprintln!("wattlock: {error}"));
            Err(last.into())
        }
    }
}

fn line(entry: &Entry) -> String {
    let label: String = entry.label.chars().flat_map(char::escape_debug).collect();
    let readers = if entry.recipients == 1 { "recipient" } else { "recipients" };
    let signer = entry.signer.map(|signer| format!("  {signer}")).unwrap_or_default();
    format!("{}  {}  {} {readers}  {label}{signer}", entry.id, date(entry.created), entry.recipients)
}

/// A time as `2026-01-31T23:59:59Z`.
fn date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

fn rewrap(command: &Rewrap) -> anyhow::Result<()> {
    let sealer = command.to.sealer()?;
    let desk = command.place.desk()?;
    let mut keys = desk.keys()?;
    let terminal = Terminal::default();
    let opener = Opener::new(keys::identities(&command.identities, &terminal)?);
    let ids: Vec<StreamId> = match &command.ids[..] {
        // What is damaged keeps its readers: trying it says why.
        [] => {
            let (entries, damaged) = keys.list()?;
            entries.iter().map(|entry| entry.id).chain(damaged.iter().map(|(id, _)| *id)).collect()
        }
        ids => ids.to_vec(),
    };
    let crypto = &mut runtime()?.dispatcher();
    let mut failed = None;
    for id in ids {
        let rewrapped = keys.rewrap(id, &opener, &sealer, crypto).with_context(|| format!("key {id}"));
        match rewrapped.and_then(|()| desk.back("put", id)) {
            Ok(()) => say!("{id} rewrapped"),
            Err(error) => {
                if let Some(former) = failed.replace(error) {
                    eprintln!("wattlock: {former:#}");
                }
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

fn shred(command: &Shred) -> anyhow::Result<()> {
    let desk = command.place.desk()?;
    let mut keys = desk.keys()?;
    if !command.yes {
        let (entries, damaged) = keys.list()?;
        for id in &command.ids {
            if let Some((_, why)) = damaged.iter().find(|(damaged, _)| damaged == id) {
                say!("would become unreadable: everything sealed under {id}");
                say!("  {why}");
                continue;
            }
            match entries.iter().find(|entry| entry.id == *id) {
                Some(entry) => {
                    say!("would become unreadable: everything sealed under {}", line(entry));
                    if let Some(used) = desk.use_of(entry, SystemTime::now()) {
                        say!("  {used}");
                    }
                }
                None => return Err(wattlock_stream::Error::NoKey(*id).into()),
            }
        }
        return Err(usage("nothing was shredded; --yes does it"));
    }
    for id in &command.ids {
        keys.shred(*id)?;
        desk.back("remove", *id)?;
        say!("{id} shredded");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_a_bridge_may_seal_under_is_said_to_be_in_use() {
        let id = StreamId([7; 16]);
        let created = UNIX_EPOCH + Duration::from_secs(951_782_400);
        let entry = Entry { id, created, label: String::new(), recipients: 1, signer: None };
        let said = |uses: &str, later| {
            let desk = Desk { folder: PathBuf::new(), config: None, uses: Uses::read(uses), _copy: None };
            desk.use_of(&entry, created + Duration::from_secs(later))
        };
        let used = said("{\"new_after_seconds\":60}", 59).expect("in use");
        assert!(used.contains("in use by a running bridge until 2000-02-29T00:01:00Z"), "{used}");
        assert_eq!(said("{\"new_after_seconds\":60}", 60), None);
        assert!(said("", 3599).is_some() && said("", 3600).is_none(), "an hour is the bridge's default");
        let names = format!("{{\"new_after_seconds\":60,\"record_keys_under\":[\"{id}\"]}}");
        assert!(said(&names, 100_000).is_some_and(|used| used.contains("record_keys_under")));
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |seconds| date(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_798_761_599), "2026-12-31T23:59:59Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }
}
