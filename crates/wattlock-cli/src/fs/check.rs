//! `wattlock fs check`.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use wattlock::Dispatcher;
use wattlock_door::one_line;
use wattlock_fs::Error;
use wattlock_fs::check::{Check, Found};
use wattlock_fs::content::{Age, Contents};
use wattlock_fs::tree::{Folder, Tree};
use wattlock_fs::volume::Volume;

use super::access::{Keys, Opened};
use super::known::Use;
use super::store;
use super::world::in_clear;
use crate::lines::Line;
use crate::progress::{self, Bar, Stats};
use wattlock_shell::INTERRUPTED;
use wattlock_shell::setup::{self, Choice};
use wattlock_shell::text;

/// How often the bar moves.
const TICK: Duration = Duration::from_millis(100);

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
    /// No progress bar
    #[arg(short, long)]
    quiet: bool,
    /// Say at the end what was read, how fast, on which engine by which policy (on standard error)
    #[arg(short, long)]
    verbose: bool,
}

/// What is found, as lines or as JSON.
#[derive(Clone, Copy)]
struct Says {
    json: bool,
}

impl Says {
    fn say(self, what: &str, line: &str) -> Result<()> {
        match self.json {
            true => Line::default().with("found", what).with("text", line).put()?,
            false => say!("{what}: {line}"),
        }
        Ok(())
    }
}

/// Runs the command, on all cores.
pub fn run(command: &Command, json: bool, choice: &Choice) -> Result<()> {
    let says = Says { json };
    let runtime = setup::runtime(choice, None, true)?;
    super::raise_descriptors();
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
                says.say("recovered", &line)?;
            }
            (Some(contents), None)
        }
        Err(Error::Damaged(what)) => (None, Some(what)),
        Err(error) => return Err(known.refused(error)),
    };
    if let Some(contents) = &contents {
        known.note(&contents.age());
    }
    let (locked, newer) = folder.check_locked(&volume)?;
    for line in &locked {
        says.say("damaged", line)?;
    }
    if let Some(what) = &journal {
        says.say("damaged", &format!("wattlock.journal: {what}; contents are not checked"))?;
    }
    let (tree, root, renewed) = open(command, says, &volume, crypto)?;
    tree.set_crashed(command.repair && contents.as_ref().is_some_and(Contents::may_be_torn));
    let check = Check::new(&tree, root, contents.as_ref(), volume.chunk, command.repair);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let silent = command.quiet || (json && progress::shows_output());
    let bar = Bar::of_all(silent, "checked", || vec![command.folder.clone()]);
    let (stats, checked) = (
        Stats { runtime: &runtime, choice, families: progress::CONTENT, began: Instant::now() },
        AtomicBool::new(false),
    );
    std::thread::scope(|scope| {
        if bar.is_seen() {
            scope.spawn(|| {
                while !checked.load(Ordering::Relaxed) {
                    bar.set(check.bytes());
                    std::thread::sleep(TICK);
                }
            });
        }
        for _ in 1..threads {
            scope.spawn(|| check.work(&stop, &mut runtime.dispatcher()));
        }
        check.work(&stop, crypto);
        checked.store(true, Ordering::Relaxed);
    });
    bar.end();
    let mut found = check.found();
    found.newer.extend(newer);
    say_lines(says, &found)?;
    if stop() {
        return Err(wattlock_door::Error::Interrupted.into());
    }
    if let Some(contents) = contents.as_ref().filter(|_| command.repair) {
        contents.look_through(true, &stop, crypto)?;
        contents.end(crypto)?;
        known.note(&contents.age());
    }
    let lines = contents.iter().flat_map(Contents::take_lines).collect();
    for line in in_clear(lines, &command.folder, &volume, crypto) {
        says.say("note", &one_line(Path::new(&line)))?;
    }
    if command.repair {
        tree.sync_all()?;
    }
    let damaged = found.damaged.len() + locked.len() + usize::from(journal.is_some());
    let (folders, files, bytes) = (found.folders, found.files, text::bytes(found.bytes));
    let repaired = found.repaired.len() + renewed;
    if command.verbose {
        stats.tell("read", found.bytes)?;
    }
    if json {
        let line = Line::default().with("folders", folders).with("files", files).with("bytes", found.bytes);
        line.with("damaged", damaged).with("repaired", repaired).put()?;
        return verdict(damaged, &found, repaired);
    }
    say!("{folders} folders, {files} files, {bytes}: {damaged} damaged, {repaired} repaired");
    verdict(damaged, &found, repaired)
}

/// The tree; with --repair also one whose own folder has lost its record, and how many records are new.
fn open(
    command: &Command,
    says: Says,
    volume: &Volume,
    crypto: &mut Dispatcher,
) -> Result<(Tree, Folder, usize)> {
    let opened = match command.repair {
        true => Tree::open(&command.folder, volume, crypto),
        false => Tree::open_to_read(&command.folder, volume, crypto),
    };
    match opened {
        Err(Error::Damaged(_)) if command.repair => {
            let (tree, root) = Tree::open_repaired(&command.folder, volume, crypto)?;
            says.say("repaired", "the volume's own folder: its record was lost; it has a new one")?;
            Ok((tree, root, 1))
        }
        opened => Ok(opened.map(|(tree, root)| (tree, root, 0))?),
    }
}

fn say_lines(says: Says, found: &Found) -> Result<()> {
    let said = [
        ("note", &found.notes),
        ("repaired", &found.repaired),
        ("not looked at", &found.closed),
        ("newer", &found.newer),
        ("damaged", &found.damaged),
    ];
    for (what, lines) in said {
        for line in lines {
            says.say(what, line)?;
        }
    }
    Ok(())
}

fn verdict(damaged: usize, found: &Found, repaired: usize) -> Result<()> {
    let things = |many: usize| if many == 1 { "1 thing".into() } else { format!("{many} things") };
    match (damaged, repaired) {
        (0, _) if !found.newer.is_empty() => {
            Err(Error::Newer(format!("versions of {}, listed above", things(found.newer.len()))).into())
        }
        (0, _) if !found.closed.is_empty() => {
            let what = format!("{} that could not be looked at, listed above", things(found.closed.len()));
            Err(Error::io("checking", std::io::Error::other(what)).into())
        }
        (0, 0) => Ok(()),
        (0, repaired) => {
            let (code, what) = super::REPAIRED;
            let line = format!("{what}: {}, listed above", things(repaired));
            Err(wattlock_door::Refusal { code, line }.into())
        }
        (damaged, _) => Err(Error::Damaged(format!("{}, listed above", things(damaged))).into()),
    }
}
