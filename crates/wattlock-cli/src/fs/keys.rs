//! `wattlock fs key` and `wattlock fs passwd`.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use anyhow::Result;
use clap::{Args, Subcommand};
use wattlock_fs::Error;
use wattlock_fs::content::Contents;
use wattlock_fs::rotate::rotate;
use wattlock_fs::tree::Tree;
use wattlock_fs::volume::Volume;

use super::access::{Keys, Plugins, add_recipient, new_passphrase};
use super::{Work, store};
use crate::ask::Terminal;
use wattlock_shell::INTERRUPTED;
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
pub fn run(command: &Command, choice: &Choice) -> Result<()> {
    match command {
        Command::Add(command) => add(command, choice),
        Command::List(command) => list(command, choice),
        Command::Remove(command) => remove(command, choice),
        Command::Rotate(command) => rotate_all(command, choice),
    }
}

fn add(command: &Add, choice: &Choice) -> Result<()> {
    let runtime = setup::runtime(choice, None, true)?;
    let (folder, mut volume) = command.keys.open(&command.folder, &runtime)?;
    let passphrase = command.passphrase || command.new_passphrase_file.is_some();
    if !passphrase {
        let recipient = command.recipient.as_deref().unwrap_or_default();
        add_recipient(&mut volume.clone(), command.name.as_deref(), recipient)?;
        let _lock = folder.lock()?;
        volume = command.keys.read(&command.folder, &folder, &runtime)?;
        add_recipient(&mut volume, command.name.as_deref(), recipient)?;
        let plugins = command.plugins.with(&command.keys, Some(recipient));
        return Ok(folder.write(&volume, &plugins, Terminal::default(), &runtime)?);
    }
    let name = command.name.as_deref().unwrap_or("passphrase");
    let passphrase_text = new_passphrase(command.new_passphrase_file.as_deref())?;
    let _lock = folder.lock()?;
    volume = command.keys.read(&command.folder, &folder, &runtime)?;
    let locked = volume.add_passphrase(name, passphrase_text, command.work.work_factor, &runtime)?;
    folder.keep_locked(name, &locked)?;
    let plugins = command.plugins.with(&command.keys, None);
    let written = folder.write(&volume, &plugins, Terminal::default(), &runtime);
    if written.is_err() {
        folder.forget_locked(name)?;
    }
    Ok(written?)
}

fn list(command: &List, choice: &Choice) -> Result<()> {
    let runtime = setup::runtime(choice, None, true)?;
    let (_, volume) = command.keys.open(&command.folder, &runtime)?;
    let row = |opener: &wattlock_fs::volume::Opener| {
        let kind = if opener.passphrase { "passphrase" } else { "key" };
        vec![opener.name.clone(), kind.to_owned(), opener.recipient.clone()]
    };
    let rows: Vec<_> = volume.openers.iter().map(row).collect();
    put!("{}", text::table(&["name", "kind", "recipient"], &rows));
    Ok(())
}

fn remove(command: &Remove, choice: &Choice) -> Result<()> {
    let runtime = setup::runtime(choice, None, true)?;
    let (folder, _) = command.keys.open(&command.folder, &runtime)?;
    let _lock = folder.lock()?;
    let mut volume = command.keys.read(&command.folder, &folder, &runtime)?;
    let removed = volume.remove_opener(&command.name)?;
    let plugins = command.plugins.with(&command.keys, None);
    folder.write(&volume, &plugins, Terminal::default(), &runtime)?;
    if removed.passphrase {
        folder.forget_locked(&command.name)?;
    }
    tell!(
        "wattlock: {} may have kept the volume's key: `wattlock fs key rotate` takes it away",
        command.name
    );
    Ok(())
}

/// Changes a passphrase. The identity is new with it, so that the volume's own file is, too: the locked identity is
/// replaced last, and until then the old passphrase opens the volume.
pub fn passwd(command: &Passwd, choice: &Choice) -> Result<()> {
    let runtime = setup::runtime(choice, None, true)?;
    let (folder, volume) = command.keys.open(&command.folder, &runtime)?;
    let name = which(command.name.as_deref(), &volume)?;
    let passphrase = new_passphrase(command.new_passphrase_file.as_deref())?;
    let _lock = folder.lock()?;
    let mut volume = command.keys.read(&command.folder, &folder, &runtime)?;
    let old = volume.openers.iter().find(|opener| opener.name == name).cloned();
    let locked = volume.change_passphrase(&name, passphrase, command.work.work_factor, &runtime)?;
    let plugins = command.plugins.with(&command.keys, None);
    let write = |volume: &Volume| folder.write(volume, &plugins, Terminal::default(), &runtime);
    // Both open the volume while the locked identity is replaced, each under a name of its own: a crash in between costs
    // nothing.
    let (mut both, mut beside) = (volume.clone(), None);
    if let Some(mut old) = old {
        let free = |name: &String| !volume.openers.iter().any(|opener| opener.name == *name);
        old.name = (1..).map(|number| format!("old-passphrase-{number}")).find(free).unwrap_or_default();
        folder.copy_locked(&name, &old.name)?;
        beside = Some(old.name.clone());
        both.openers.push(old);
    }
    let done = write(&both).and_then(|()| folder.keep_locked(&name, &locked)).and_then(|()| write(&volume));
    if let Some(beside) = beside.filter(|_| done.is_ok()) {
        folder.forget_locked(&beside)?;
    }
    Ok(done?)
}

/// The passphrase that is meant.
fn which(name: Option<&str>, volume: &Volume) -> Result<String, Error> {
    let mut passphrases = volume.openers.iter().filter(|opener| opener.passphrase).map(|opener| &opener.name);
    match (name, passphrases.next(), passphrases.next()) {
        (Some(name), Some(_), _) => Ok(name.to_owned()),
        (None, Some(only), None) => Ok(only.clone()),
        (None, Some(_), Some(_)) => Err(Error::Usage("there are several passphrases: give --name".into())),
        (_, None, _) => Err(Error::Usage("the volume has no passphrase: `wattlock fs key add -p`".into())),
    }
}

fn rotate_all(command: &Rotate, choice: &Choice) -> Result<()> {
    let runtime = setup::runtime(choice, None, true)?;
    let (folder, _) = command.keys.open(&command.folder, &runtime)?;
    let _lock = folder.lock()?;
    let mut volume = command.keys.read(&command.folder, &folder, &runtime)?;
    let crypto = &mut runtime.dispatcher();
    let plugins = command.plugins.with(&command.keys, None);
    let write = |volume: &Volume| folder.write(volume, &plugins, Terminal::default(), &runtime);
    // The journal's lock keeps mounts away; what is in it goes into place first.
    let stop = || INTERRUPTED.load(Ordering::SeqCst);
    let (contents, recovered) = Contents::start_until(store(&command.folder)?, &volume, &stop, crypto)?;
    for line in recovered.lines {
        tell!("wattlock: {line}");
    }
    contents.checkpoint(crypto)?;
    // A rotation that was interrupted goes on; the new key is there already.
    if volume.keys.len() == 1 {
        volume.add_generation()?;
        write(&volume)?;
    }
    let (tree, root) = Tree::open(&command.folder, &volume, crypto)?;
    tree.set_crashed(contents.may_be_torn());
    let rotated = rotate(&tree, root, &stop, crypto)?;
    if stop() {
        return Err(wattlock_door::Error::Interrupted.into());
    }
    if !rotated.failed.is_empty() {
        for line in &rotated.failed {
            tell!("wattlock: {line}");
        }
        let what =
            format!("{} headers or records keep the old key, and so does the volume", rotated.failed.len());
        return Err(Error::Damaged(what).into());
    }
    // Nothing needs the old keys any more but the journal, which is empty: it begins anew under the new one.
    drop(contents);
    let (contents, _) = Contents::start(store(&command.folder)?, &volume, crypto)?;
    contents.rekey_journal(crypto)?;
    volume.keys.drain(..volume.keys.len() - 1);
    write(&volume)?;
    tell!("wattlock: {} headers and records sealed anew", rotated.sealed + rotated.skipped);
    Ok(())
}
