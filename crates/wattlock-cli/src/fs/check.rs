//! `wattlock fs check`.

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use anyhow::Result;
use clap::Args;
use wattlock::Dispatcher;
use wattlock_fs::Error;
use wattlock_fs::check::{Check, Found};
use wattlock_fs::content::{Age, Contents};
use wattlock_fs::tree::{Folder, Tree};
use wattlock_fs::volume::Volume;

use super::access::{Keys, Opened};
use super::known::Use;
use super::store;
use wattlock_shell::INTERRUPTED;
use wattlock_shell::setup::{self, Choice};
use wattlock_shell::text;

/// Check every name, header and chunk of a volume
#[derive(Debug, Args)]
pub struct Command {
    /// The volume's folder
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    #[command(flatten)]
    keys: Keys,
    /// Give new names to what has lost its name, and new records to folders that have lost theirs
    #[arg(long)]
    repair: bool,
}

/// Runs the command, on all cores.
pub fn run(command: &Command, choice: &Choice) -> Result<()> {
    let runtime = setup::runtime(choice, None, true)?;
    let usage = if command.repair { Use::Write } else { Use::Read };
    let Opened { folder, volume, mut known } = command.keys.open(&command.folder, usage, &runtime)?;
    let stop = || INTERRUPTED.load(Ordering::SeqCst);
    let crypto = &mut runtime.dispatcher();
    let store = store(&command.folder)?;
    let judge = &mut |age: &Age| known.judge(age);
    let started = Contents::start_judged(store, &volume, !command.repair, (&stop, judge), crypto);
    let (contents, journal) = match started {
        Ok((contents, recovered)) => {
            for line in recovered.lines {
                say!("recovered: {line}");
            }
            (Some(contents), None)
        }
        Err(Error::Damaged(what)) => (None, Some(what)),
        Err(error) => return Err(known.refused(error)),
    };
    if let Some(contents) = &contents {
        known.note(&contents.age());
    }
    let locked = folder.check_locked(&volume)?;
    for line in &locked {
        say!("damaged: {line}");
    }
    if let Some(what) = &journal {
        say!("damaged: wattlock.journal: {what}; contents are not checked");
    }
    let (tree, root, renewed) = open(command, &volume, crypto)?;
    tree.set_crashed(command.repair && contents.as_ref().is_some_and(Contents::may_be_torn));
    let check = Check::new(&tree, root, contents.as_ref(), volume.chunk, command.repair);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|| check.work(&stop, &mut runtime.dispatcher()));
        }
        check.work(&stop, crypto);
    });
    let found = check.found();
    say_lines(&found)?;
    if stop() {
        return Err(wattlock_door::Error::Interrupted.into());
    }
    if let Some(contents) = contents.as_ref().filter(|_| command.repair) {
        contents.look_through(true, &stop, crypto)?;
        contents.end(crypto)?;
        known.note(&contents.age());
    }
    for line in contents.iter().flat_map(Contents::take_lines) {
        say!("note: {line}");
    }
    if command.repair {
        tree.sync_all()?;
    }
    let damaged = found.damaged.len() + locked.len() + usize::from(journal.is_some());
    let (folders, files, bytes) = (found.folders, found.files, text::bytes(found.bytes));
    let repaired = found.repaired.len() + renewed;
    say!("{folders} folders, {files} files, {bytes}: {damaged} damaged, {repaired} repaired");
    verdict(damaged, found.closed.len(), repaired)
}

/// The tree; with --repair also one whose own folder has lost its record, and how many records are new.
fn open(command: &Command, volume: &Volume, crypto: &mut Dispatcher) -> Result<(Tree, Folder, usize)> {
    let opened = match command.repair {
        true => Tree::open(&command.folder, volume, crypto),
        false => Tree::open_to_read(&command.folder, volume, crypto),
    };
    match opened {
        Err(Error::Damaged(_)) if command.repair => {
            let (tree, root) = Tree::open_repaired(&command.folder, volume, crypto)?;
            say!("repaired: the volume's own folder: its record was lost; it has a new one");
            Ok((tree, root, 1))
        }
        opened => Ok(opened.map(|(tree, root)| (tree, root, 0))?),
    }
}

fn say_lines(found: &Found) -> Result<()> {
    let said = [
        ("note", &found.notes),
        ("repaired", &found.repaired),
        ("not looked at", &found.closed),
        ("damaged", &found.damaged),
    ];
    for (what, lines) in said {
        for line in lines {
            say!("{what}: {line}");
        }
    }
    Ok(())
}

fn verdict(damaged: usize, closed: usize, repaired: usize) -> Result<()> {
    let things = |many: usize| if many == 1 { "1 thing".into() } else { format!("{many} things") };
    match (damaged, repaired) {
        (0, _) if closed > 0 => {
            let what = format!("{} that this user may not look at, listed above", things(closed));
            Err(Error::io("checking", std::io::Error::new(std::io::ErrorKind::PermissionDenied, what)).into())
        }
        (0, 0) => Ok(()),
        (0, _) => Err(wattlock_door::Code(super::REPAIRED.0).into()),
        (damaged, _) => Err(Error::Damaged(format!("{}, listed above", things(damaged))).into()),
    }
}
