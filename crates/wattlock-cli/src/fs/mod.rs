//! `wattlock fs`: encrypted volumes without mounting them.

pub mod access;
mod check;
mod content;
mod copy;
mod keys;
pub mod known;
mod recovery;
mod report;
mod rm;
pub mod world;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use rustix::process::DumpableBehavior;
use wattlock_door::{Exit, Known, exit_of, known};
use wattlock_files::keys::WORK_FACTOR;
use wattlock_fs::Error;
use wattlock_fs::store::FolderStore;
use wattlock_fs::tree::Tree;
use wattlock_fs::volume::{self, NameMode, Volume};

use crate::ask::Terminal;
use crate::defaults;
use crate::files::refuse_mixture;
use crate::lines::Line;
use crate::mount;
use access::NewKeys;
use recovery::Recovery;
use wattlock_shell::setup::{self, Choice};
use wattlock_shell::text;

/// Exit code of a check after which nothing is damaged any more.
pub const REPAIRED: (u8, &str) = (86, "volume damaged and repaired");

/// Encrypted volumes: make, list, copy, check; keys and passphrases
#[derive(Debug, Args)]
pub struct Command {
    #[command(subcommand)]
    command: Sub,
    /// Print a line of JSON for each thing (docs/use/command-line.md)
    #[arg(long, global = true)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
enum Sub {
    Init(Init),
    /// Add, list, remove or rotate a volume's keys
    #[command(subcommand)]
    Key(keys::Command),
    Passwd(keys::Passwd),
    Ls(content::Ls),
    Cat(content::Cat),
    Cp(copy::Cp),
    Rm(rm::Rm),
    Check(check::Command),
    Status(mount::Status),
    Set(mount::Set),
}

/// Make an encrypted volume in an empty folder
#[derive(Debug, Args)]
struct Init {
    /// The volume's folder
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    #[command(flatten)]
    keys: NewKeys,
    /// Bytes of content that are encrypted together: 4K, 16K, 64K or 256K, for the volume's life. Large ones take less
    /// room (0.98 % more than the content at 4K, 0.24 % at 16K) and more work for each small change
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = chunk)]
    chunk: usize,
    /// How names are stored, for the volume's life
    #[arg(long, value_enum, default_value_t)]
    names: Names,
    /// Make one more key, called `recovery`, to be kept on paper: printed to standard output (`| lpr`), or into a new FILE
    /// that no other user may read
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    recovery: Option<Option<PathBuf>>,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Names {
    /// Encrypted under a key of each folder
    #[default]
    Folder,
    /// Encrypted under one key: equal names look equal
    Deterministic,
    /// In clear
    Plain,
}

impl From<Names> for NameMode {
    fn from(names: Names) -> NameMode {
        match names {
            Names::Folder => NameMode::PerFolder,
            Names::Deterministic => NameMode::Deterministic,
            Names::Plain => NameMode::Plain,
        }
    }
}

fn chunk(text: &str) -> Result<usize, String> {
    let bytes = text::parse_bytes(text)?;
    let known = volume::CHUNKS.contains(&bytes);
    known.then_some(bytes).ok_or_else(|| format!("{text}: a chunk has 4K, 16K, 64K or 256K"))
}

impl Command {
    /// Whether an interrupt must leave time for what has begun.
    pub fn cleans_up(&self) -> bool {
        !matches!(self.command, Sub::Status(_) | Sub::Set(_))
    }

    /// The volume's folder, if the command names it.
    fn folder(&self) -> Option<&Path> {
        Some(match &self.command {
            Sub::Init(command) => &command.folder,
            Sub::Key(command) => command.folder(),
            Sub::Passwd(command) => &command.folder,
            Sub::Ls(command) => &command.folder,
            Sub::Cat(command) => &command.folder,
            Sub::Cp(command) => &command.folder,
            Sub::Rm(command) => &command.folder,
            Sub::Check(command) => &command.folder,
            Sub::Status(_) | Sub::Set(_) => return None,
        })
    }
}

/// Runs the command.
pub fn run(command: &Command, choice: &Choice) -> Result<()> {
    hide_memory();
    let json = command.json;
    let done = match &command.command {
        Sub::Init(command) => init(command, json, choice),
        Sub::Key(command) => keys::run(command, json, choice),
        Sub::Passwd(command) => keys::passwd(command, json, choice),
        Sub::Ls(command) => content::ls(command, json, choice),
        Sub::Cat(_) if json => {
            Err(Error::Usage("--json does nothing for `fs cat`: leave it out".into()).into())
        }
        Sub::Cat(command) => content::cat(command, choice),
        Sub::Cp(command) => copy::cp(command, json, choice),
        Sub::Rm(command) => rm::rm(command, json, choice),
        Sub::Check(command) => check::run(command, json, choice),
        Sub::Status(command) => mount::status(command, json),
        Sub::Set(command) => mount::set(command, json),
    };
    done.map_err(|error| match command.folder() {
        Some(folder) => world::located(folder, error),
        None => error,
    })
}

/// Keys are in memory from here on: no core dump, and no other process of this user reads them.
pub fn hide_memory() {
    if let Err(error) = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::debug!(%error, "core dumps stay possible");
    }
}

/// Asks for as many descriptors as this user may have.
fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Whether nothing more can be done after an error: an interrupt, a full disk, a reader that is gone.
fn ends(error: &anyhow::Error) -> bool {
    matches!(code_of(error), 43 | 44 | 130)
}

/// The exit code of an error of one file.
fn code_of(error: &anyhow::Error) -> u8 {
    let known: [Known; 3] = [known::<wattlock_door::Error>, known::<wattlock_files::Error>, known::<Error>];
    exit_of(error.chain(), &known).map_or(1, Exit::code)
}

/// Device and inode number of what a descriptor names.
#[allow(clippy::unnecessary_cast, reason = "the fields' types differ between architectures")]
pub fn inode_of(fd: impl std::os::fd::AsFd) -> Option<(u64, u64)> {
    let stat = rustix::fs::fstat(fd).ok()?;
    Some((stat.st_dev as u64, stat.st_ino as u64))
}

/// The contents of a volume's folder.
/// Whether this user may write a volume's folder and its journal: not on read-only storage, nor in another user's folder.
pub fn may_be_written(folder: &Path) -> bool {
    use rustix::fs::{Access, AtFlags, CWD, StatVfsMountFlags, accessat, statvfs};
    let only_read = statvfs(folder).is_ok_and(|stat| stat.f_flag.contains(StatVfsMountFlags::RDONLY));
    let may = |path: &Path| accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS);
    let journal = match may(&folder.join(wattlock_fs::store::JOURNAL)) {
        Err(rustix::io::Errno::NOENT) => may(folder),
        known => known,
    };
    !only_read && journal.is_ok()
}

fn store(path: &Path) -> Result<FolderStore, wattlock_fs::Error> {
    FolderStore::open(path).map_err(|error| wattlock_fs::Error::io("opening the volume", error))
}

fn init(command: &Init, json: bool, choice: &Choice) -> Result<()> {
    refuse_mixture(json, matches!(command.recovery, Some(None)))?;
    let path = &command.folder;
    let default = if command.keys.none() { defaults::recipients_file()? } else { None };
    if command.keys.none() && default.is_none() {
        let what = "to whom? give -r, -R or -p; `wattlock keygen -o key.txt` makes a key";
        return Err(wattlock_fs::Error::Usage(what.into()).into());
    }
    let made = make_folder(path)?;
    let result = fill(command, default, json, choice);
    if result.is_err() && made {
        // What was refused leaves nothing behind; what cannot be removed is not ours alone.
        let _ = std::fs::remove_dir(path);
    }
    result
}

fn fill(command: &Init, default: Option<defaults::Found>, json: bool, choice: &Choice) -> Result<()> {
    if let Some(Some(file)) = &command.recovery {
        recovery::refuse_inside(file, &command.folder)?;
    }
    let folder = volume::Folder::open(&command.folder)?;
    let _lock = folder.lock()?;
    if !folder.is_empty()? {
        return Err(wattlock_fs::Error::NotEmpty(command.folder.clone()).into());
    }
    let runtime = setup::runtime(choice, None, true)?;
    let crypto = &mut runtime.dispatcher();
    let mut volume = Volume::generate(command.chunk, command.names.into())?;
    let locked = command.keys.add(&mut volume, default, &runtime)?;
    // Before the volume is one: a key that cannot be printed is none.
    if let Some(to) = &command.recovery {
        let recovery = Recovery::add(&mut volume)?;
        recovery.print(to.as_deref(), &command.folder, &volume.fingerprint(crypto)?)?;
    }
    let written = (|| -> Result<()> {
        for (name, locked) in &locked {
            folder.keep_locked(name, locked)?;
        }
        Tree::init(&command.folder, &volume, crypto)?;
        // Last: a folder without it is no volume.
        let plugins = access::plugins_of(&volume);
        Ok(folder.write(&mut volume, &plugins, Terminal::default(), &runtime)?)
    })();
    if let Err(error) = written {
        let below = |name: &str| command.folder.join(name);
        let _ = std::fs::remove_file(below(wattlock_fs::tree::RECORD));
        let _ = std::fs::remove_dir_all(below(volume::KEYS));
        if let Some(Some(file)) = &command.recovery {
            let _ = std::fs::remove_file(file);
        }
        return Err(error);
    }
    let known = known::Known::made(&command.folder, &volume, crypto)?;
    tell_made(&command.folder, &volume, known.fingerprint());
    if json {
        let names: Vec<&str> = volume.openers.iter().map(|opener| opener.name.as_str()).collect();
        let line = Line::default().name("volume", &command.folder).with("fingerprint", known.fingerprint());
        line.with("keys", names).put()?;
    }
    Ok(())
}

/// Says where the volume is, what to type next, and what is lost with its keys.
fn tell_made(folder: &Path, volume: &Volume, fingerprint: &str) {
    let shown = wattlock_door::one_line(&folder.canonicalize().unwrap_or_else(|_| folder.to_owned()));
    let names: Vec<&str> = volume.openers.iter().map(|opener| opener.name.as_str()).collect();
    let key = if volume.openers.iter().any(|opener| opener.passphrase) { "" } else { "-i KEY.txt " };
    eprintln!("wattlock: made a volume in {shown}, fingerprint {fingerprint}");
    eprintln!("wattlock: next: wattlock mount {key}{shown} EMPTY-FOLDER");
    match names[..] {
        [only] => eprintln!(
            "wattlock: without its key, {only}, what is in it is lost: `wattlock fs key add` adds another one"
        ),
        _ => eprintln!("wattlock: without one of its keys ({}) what is in it is lost", names.join(", ")),
    }
}

/// Makes the folder unless it is there; says whether it did.
fn make_folder(path: &Path) -> Result<bool> {
    use std::os::unix::fs::DirBuilderExt;
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let parent = path.parent().unwrap_or(path).to_owned();
            Err(wattlock_door::Error::NotFound(parent).into())
        }
        Err(error) => Err(wattlock_fs::Error::io("making the volume's folder", error).into()),
    }
}

/// scrypt's cost for new passphrases; tests take less.
#[derive(Debug, Args)]
struct Work {
    /// Work factor of new passphrases, as a power of two
    #[arg(long, value_name = "N", hide = true, default_value_t = WORK_FACTOR)]
    work_factor: u8,
}
