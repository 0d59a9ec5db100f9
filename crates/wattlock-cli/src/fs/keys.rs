//! `wattlock fs key` and `wattlock fs passwd`.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, Subcommand};
use wattlock::{Dispatcher, Runtime};
use wattlock_door::one_line;
use wattlock_fs::Error;
use wattlock_fs::content::{Age, Contents};
use wattlock_fs::rotate::rotate;
use wattlock_fs::store::FolderStore;
use wattlock_fs::tree::Tree;
use wattlock_fs::volume::{Folder, Opener, Volume};

use super::access::{Keys, Opened, Plugins, add_recipient, new_passphrase};
use super::known::{Known, Use};
use super::world::{in_clear, stop};
use super::{Work, store};
use crate::ask::Terminal;
use crate::lines::Line;
use wattlock_mount::Rotation;
use wattlock_shell::setup::{self, Choice};
use wattlock_shell::text;

#[derive(Debug, Subcommand)]
pub enum Command {
    Add(Add),
    List(List),
    Remove(Remove),
    Rotate(Rotate),
}

/// Add a key or a passphrase that opens the volume
#[derive(Debug, Args)]
pub struct Add {
    /// The volume's folder
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    #[command(flatten)]
    keys: Keys,
    /// What the new key is called
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The new key: age1..., an SSH public key, or the recipient of an age plugin
    #[arg(short, long, value_name = "RECIPIENT", required_unless_present_any = ["passphrase", "new_passphrase_file"])]
    recipient: Option<String>,
    /// The new key is a passphrase
    #[arg(short, long, conflicts_with = "recipient")]
    passphrase: bool,
    /// Read the new passphrase from the first line of a file instead of the terminal
    #[arg(long, value_name = "FILE", conflicts_with = "recipient")]
    new_passphrase_file: Option<PathBuf>,
    #[command(flatten)]
    plugins: Plugins,
    #[command(flatten)]
    work: Work,
}

/// List the keys that open the volume
#[derive(Debug, Args)]
pub struct List {
    /// The volume's folder
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    #[command(flatten)]
    keys: Keys,
}

/// Remove a key or a passphrase
#[derive(Debug, Args)]
pub struct Remove {
    /// The volume's folder
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// The name of the key to remove
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    keys: Keys,
    #[command(flatten)]
    plugins: Plugins,
}

/// Seal the keys of all files and folders under a new volume key
#[derive(Debug, Args)]
pub struct Rotate {
    /// The volume's folder
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    #[command(flatten)]
    keys: Keys,
    /// Remove this key in the same step, so that it never opens what is sealed anew; may be repeated
    #[arg(long, value_name = "NAME")]
    remove: Vec<String>,
    #[command(flatten)]
    plugins: Plugins,
}

/// Change a passphrase of the volume
#[derive(Debug, Args)]
pub struct Passwd {
    /// The volume's folder
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    #[command(flatten)]
    keys: Keys,
    /// Which passphrase; not needed if there is only one
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Read the new passphrase from the first line of a file instead of the terminal
    #[arg(long, value_name = "FILE")]
    new_passphrase_file: Option<PathBuf>,
    #[command(flatten)]
    plugins: Plugins,
    #[command(flatten)]
    work: Work,
}

impl Command {
    /// The volume's folder.
    pub fn folder(&self) -> &Path {
        match self {
            Command::Add(command) => &command.folder,
            Command::List(command) => &command.folder,
            Command::Remove(command) => &command.folder,
            Command::Rotate(command) => &command.folder,
        }
    }
}

/// Runs the command.
pub fn run(command: &Command, json: bool, choice: &Choice) -> Result<()> {
    match command {
        Command::Add(command) => add(command, json, choice),
        Command::List(command) => list(command, json, choice),
        Command::Remove(command) => remove(command, json, choice),
        Command::Rotate(command) => rotate_all(command, json, choice),
    }
}

/// What became of a key, if lines of JSON are wanted.
fn put(json: bool, done: &str, name: &str) -> Result<()> {
    if json {
        Line::default().with(done, name).put()?;
    }
    Ok(())
}

/// A volume whose settings are to change: read while no other command may write them.
struct Change<'a> {
    folder: Folder,
    volume: Volume,
    known: Known,
    runtime: &'a Runtime,
    _lock: File,
}

impl<'a> Change<'a> {
    /// Opens the volume anew: what was read before the lock may be older.
    fn begin(keys: &Keys, path: &Path, folder: Folder, runtime: &'a Runtime) -> Result<Change<'a>> {
        let lock = folder.lock()?;
        let (volume, known) = keys.read(path, &folder, Use::Write, runtime)?;
        Ok(Change { folder, volume, known, runtime, _lock: lock })
    }

    /// Writes the settings, and remembers that it was here.
    fn write(&mut self, plugins: &[String]) -> Result<()> {
        self.folder.write(&mut self.volume, plugins, Terminal::default(), self.runtime)?;
        self.known.record(&self.volume, &mut self.runtime.dispatcher())
    }

    /// Where a rotation was interrupted, whoever is shut out now knows its new key: the rotation goes on to another one.
    fn shut_out(&mut self) -> Result<(), Error> {
        if self.volume.keys.len() > 1 {
            self.volume.succeed(&mut self.runtime.dispatcher())?;
        }
        Ok(())
    }
}

fn add(command: &Add, json: bool, choice: &Choice) -> Result<()> {
    let runtime = setup::runtime(choice, None, true)?;
    let (keys, path, name) = (&command.keys, &command.folder, command.name.as_deref());
    if name.is_some_and(is_before_name) {
        return Err(Error::Usage(format!(
            "a name that ends in {BEFORE} and a number is `wattlock fs passwd`'s"
        ))
        .into());
    }
    let Opened { folder, mut volume, .. } = keys.open(path, Use::Write, &runtime)?;
    let passphrase = command.passphrase || command.new_passphrase_file.is_some();
    if !passphrase {
        let recipient = command.recipient.as_deref().unwrap_or_default();
        add_recipient(&mut volume, name, recipient)?;
        let mut change = Change::begin(keys, path, folder, &runtime)?;
        add_recipient(&mut change.volume, name, recipient)?;
        change.write(&command.plugins.with(keys, Some(recipient)))?;
        let added = change.volume.openers.last().map_or("", |opener| opener.name.as_str());
        return put(json, "added", added);
    }
    let (name, words) =
        (name.unwrap_or("passphrase"), new_passphrase(command.new_passphrase_file.as_deref())?);
    let mut change = Change::begin(keys, path, folder, &runtime)?;
    let locked = change.volume.add_passphrase(name, words, command.work.work_factor, &runtime)?;
    change.folder.keep_locked(name, &locked)?;
    let written = change.write(&command.plugins.with(keys, None));
    if written.is_err() {
        change.folder.forget_locked(name)?;
    }
    written.and_then(|()| put(json, "added", name))
}

fn list(command: &List, json: bool, choice: &Choice) -> Result<()> {
    let runtime = setup::runtime(choice, None, true)?;
    let Opened { volume, known, .. } = command.keys.open(&command.folder, Use::Read, &runtime)?;
    if json {
        for opener in &volume.openers {
            let kind = if opener.passphrase { "passphrase" } else { "key" };
            let line = Line::default().with("name", opener.name.as_str()).with("kind", kind);
            line.with("recipient", opener.recipient.as_str()).put()?;
        }
        return Ok(Line::default().with("fingerprint", known.fingerprint()).put()?);
    }
    put!("{}", table(&volume));
    say!("");
    say!("fingerprint {}", known.fingerprint());
    Ok(())
}

fn table(volume: &Volume) -> String {
    let row = |opener: &Opener| {
        let kind = if opener.passphrase { "passphrase" } else { "key" };
        vec![opener.name.clone(), kind.to_owned(), opener.recipient.clone()]
    };
    let rows: Vec<_> = volume.openers.iter().map(row).collect();
    text::table(&["name", "kind", "recipient"], &rows)
}

fn remove(command: &Remove, json: bool, choice: &Choice) -> Result<()> {
    let runtime = setup::runtime(choice, None, true)?;
    let Opened { folder, .. } = command.keys.open(&command.folder, Use::Write, &runtime)?;
    let mut change = Change::begin(&command.keys, &command.folder, folder, &runtime)?;
    let removed = change.volume.remove_opener(&command.name)?;
    change.shut_out()?;
    change.write(&command.plugins.with(&command.keys, None))?;
    if removed.passphrase {
        change.folder.forget_locked(&command.name)?;
    }
    tell!(
        "wattlock: {} may have kept the volume's key: `wattlock fs key rotate` takes it away",
        command.name
    );
    put(json, "removed", &command.name)
}

/// Changes a passphrase. The identity is new with it, so that the volume's own file is, too: the locked identity is
/// replaced last, and until then the old passphrase opens the volume.
pub fn passwd(command: &Passwd, json: bool, choice: &Choice) -> Result<()> {
    let runtime = setup::runtime(choice, None, true)?;
    let Opened { folder, volume, .. } = command.keys.open(&command.folder, Use::Write, &runtime)?;
    let name = which(command.name.as_deref(), &volume)?;
    let passphrase = new_passphrase(command.new_passphrase_file.as_deref())?;
    let mut change = Change::begin(&command.keys, &command.folder, folder, &runtime)?;
    let old = change.volume.openers.iter().find(|opener| opener.name == name).cloned();
    let locked = change.volume.change_passphrase(&name, passphrase, command.work.work_factor, &runtime)?;
    let plugins = command.plugins.with(&command.keys, None);
    // Both open the volume while the locked identity is replaced, each under a name of its own: a crash in between costs
    // nothing.
    let begins = before(&name);
    if let Some(mut old) = old {
        let free = |name: &String| !change.volume.openers.iter().any(|opener| opener.name == *name);
        old.name = (1..).map(|number| format!("{begins}{number}")).find(free).unwrap_or_default();
        change.folder.copy_locked(&name, &old.name)?;
        change.volume.openers.push(old);
    }
    change.write(&plugins)?;
    change.folder.keep_locked(&name, &locked)?;
    // Those of changes that were interrupted, too: the new passphrase opens the volume by now.
    let is_its = |opener: &mut Opener| is_before(opener) && opener.name.starts_with(&begins);
    let gone: Vec<Opener> = change.volume.openers.extract_if(.., is_its).collect();
    change.shut_out()?;
    change.write(&plugins)?;
    gone.iter().try_for_each(|opener| change.folder.forget_locked(&opener.name))?;
    put(json, "changed", &name)
}

/// Behind a passphrase's name: what it was before a change that has not ended.
const BEFORE: &str = ".before-";

/// How names begin under which a passphrase is kept while it is changed.
fn before(name: &str) -> String {
    /// So that a number has room: a name has at most 64 letters.
    const MOST: usize = 48;
    format!("{}{BEFORE}", name.get(..MOST).unwrap_or(name))
}

/// Whether an opener is a passphrase that is being changed.
fn is_before(opener: &Opener) -> bool {
    opener.passphrase && is_before_name(&opener.name)
}

/// Whether a name is one that only [`passwd`] gives.
fn is_before_name(name: &str) -> bool {
    let number = name.rsplit_once(BEFORE).map_or("", |(_, number)| number);
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// The passphrase that is meant.
fn which(name: Option<&str>, volume: &Volume) -> Result<String, Error> {
    let passphrases = volume.openers.iter().filter(|opener| opener.passphrase && !is_before(opener));
    let mut passphrases = passphrases.map(|opener| &opener.name);
    match (name, passphrases.next(), passphrases.next()) {
        (Some(name), Some(_), _) => Ok(name.to_owned()),
        (None, Some(only), None) => Ok(only.clone()),
        (None, Some(_), Some(_)) => Err(Error::Usage("there are several passphrases: give --name".into())),
        (_, None, _) => Err(Error::Usage("the volume has no passphrase: `wattlock fs key add -p`".into())),
    }
}

fn rotate_all(command: &Rotate, json: bool, choice: &Choice) -> Result<()> {
    let runtime = setup::runtime(choice, None, true)?;
    let Opened { folder, .. } = command.keys.open(&command.folder, Use::Write, &runtime)?;
    let mut change = Change::begin(&command.keys, &command.folder, folder, &runtime)?;
    let crypto = &mut runtime.dispatcher();
    let plugins = command.plugins.with(&command.keys, None);
    let mut removed = Vec::new();
    for name in &command.remove {
        removed.push(change.volume.remove_opener(name)?);
    }
    // The journal's lock keeps mounts away; what is in it goes into place first.
    let judge = &mut |age: &Age| change.known.judge(age);
    let started =
        Contents::start_judged(store(&command.folder)?, &change.volume, false, (&stop, judge), crypto);
    let contents = match started {
        Ok((contents, recovered)) => {
            contents.look_through(true, &stop, crypto)?;
            let lines = recovered.lines.into_iter().chain(contents.take_lines()).collect();
            for line in in_clear(lines, &command.folder, &change.volume, crypto) {
                tell!("wattlock: {}", one_line(Path::new(&line)));
            }
            contents.checkpoint(crypto)?;
            change.known.note(&contents.age());
            Some(contents)
        }
        // The mount's process seals everything anew, if there is one.
        Err(Error::InUse) => None,
        Err(error) => return Err(change.known.refused(error)),
    };
    let mount = match &contents {
        None => Some(crate::mount::that_rotates(&command.folder, &change.volume)?),
        Some(_) => None,
    };
    tell!("wattlock: from now on these open the volume:\n{}", table(&change.volume).trim_end());
    for opener in change.volume.openers.iter().filter(|opener| is_before(opener)) {
        tell!(
            "wattlock: {} is a passphrase whose change was interrupted, and it opens the volume: `wattlock fs passwd` ends that",
            opener.name
        );
    }
    tell!(
        "wattlock: what another machine has written with the old key, and has not synchronised to here yet, will not open"
    );
    // A rotation that was interrupted goes on; the new key is there already. Who is removed now knows that key.
    if change.volume.keys.len() == 1 || !removed.is_empty() {
        change.volume.succeed(crypto)?;
        change.write(&plugins)?;
    }
    for opener in removed.iter().filter(|opener| opener.passphrase) {
        change.folder.forget_locked(&opener.name)?;
    }
    let (Rotation { sealed, lost, failed }, gravest) = match (contents, mount) {
        (Some(contents), _) => {
            contents.rekey(&change.volume, crypto)?;
            let (done, gravest) = seal_anew(&command.folder, &change.volume, &contents, crypto)?;
            if done.failed.is_empty() {
                // Nothing needs the old keys any more but the journal, which is empty: it begins anew under the new one.
                contents.rekey_journal(crypto)?;
                change.known.note(&contents.age());
            }
            (done, gravest)
        }
        // Its lines alone come from there.
        (None, Some(mount)) => (mount.rotate(&change.volume, &stop)?, None),
        (None, None) => return Err(Error::InUse.into()),
    };
    for line in failed.iter().chain(&lost) {
        tell!("wattlock: {}", one_line(Path::new(line)));
    }
    if !failed.is_empty() {
        let what = format!("{} headers or records keep the old key, and so does the volume", failed.len());
        return Err(match gravest {
            Some(Error::Newer(_)) => Error::Newer(format!("versions: {what}")),
            Some(Error::Io { .. }) => Error::io("sealing anew", std::io::Error::other(what)),
            _ => Error::Damaged(what),
        }
        .into());
    }
    change.volume.keys.drain(..change.volume.keys.len() - 1);
    change.write(&plugins)?;
    tell!("wattlock: {sealed} headers and records sealed anew");
    if json {
        let line = Line::default().with("sealed", sealed).with("lost", lost.len());
        line.with("removed", command.remove.clone()).put()?;
    }
    if lost.is_empty() {
        return Ok(());
    }
    let what =
        format!("{} files that no key of the volume opens; the rotation is done all the same", lost.len());
    Err(Error::Damaged(what).into())
}

/// Seals every header and record under the newest key. With the gravest reason for which one was not.
fn seal_anew(
    path: &Path,
    volume: &Volume,
    contents: &Contents<FolderStore>,
    crypto: &mut Dispatcher,
) -> Result<(Rotation, Option<Error>)> {
    let (tree, root) = Tree::open(path, volume, crypto)?;
    tree.set_crashed(contents.may_be_torn());
    let rotated = rotate(&tree, root, (contents, true), &stop, crypto)?;
    if stop() {
        return Err(wattlock_door::Error::Interrupted.into());
    }
    for note in tree.take_notes() {
        tell!("wattlock: {}", one_line(Path::new(&note)));
    }
    let sealed = rotated.sealed + rotated.skipped;
    Ok((Rotation { sealed, lost: rotated.lost, failed: rotated.failed }, rotated.gravest))
}
