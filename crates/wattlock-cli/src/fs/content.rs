//! `wattlock fs ls` and `cat`: a volume's files without mounting it.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use rustix::fs::FileType;
use rustix::io::Errno;
use wattlock_door::{Exit, one_line};
use wattlock_files::Error as FileError;
use wattlock_fs::Error;
use wattlock_fs::tree::{Entry, OF_OTHERS};

use super::access::Keys;
use super::world::{Inner, World, about, go_on, status};
use crate::lines::Line;
use wattlock_shell::program::Told;
use wattlock_shell::setup::{self, Choice};

/// List a folder of a volume
#[derive(Debug, Args)]
pub struct Ls {
    /// The volume's folder
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// The path in the volume
    #[arg(value_name = "PATH", default_value = "/")]
    path: PathBuf,
    #[command(flatten)]
    keys: Keys,
    /// With mode, owner, size and link targets
    #[arg(short)]
    long: bool,
}

/// Write files of a volume to standard output
#[derive(Debug, Args)]
pub struct Cat {
    /// The volume's folder
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Paths in the volume
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    keys: Keys,
}

/// Runs `wattlock fs ls`.
pub fn ls(command: &Ls, json: bool, choice: &Choice) -> Result<()> {
    let runtime = setup::runtime(choice, None, true)?;
    let mut world = World::open(&command.keys, &command.folder, false, &runtime)?;
    let path = &command.path;
    let spot = world.spot(path).map_err(|error| about(path, error))?;
    let kind = world.kind(&spot).map_err(|error| about(path, error))?;
    if kind.is_none() {
        return Err(wattlock_door::Error::NotFound(path.clone()).into());
    }
    if let (Some(entry), false) = (&spot.entry, kind == Some(FileType::Directory)) {
        let unread = line(&mut world, &spot.inside, entry, &spot.name, (command.long, json))?;
        return unread.map_or(Ok(()), |error| Err(about(path, error)));
    }
    let inside = world.folder(&spot).map_err(|error| about(path, error))?;
    let (listed, unnamed) = world.list_all(&inside).map_err(|error| about(path, error))?;
    let mut first = None;
    for entry in &listed {
        go_on()?;
        let unread = line(&mut world, &inside, &entry.entry(), &entry.name, (command.long, json))?;
        first = first.or_else(|| Some(about(Path::new(OsStr::from_bytes(&entry.name)), unread?)));
    }
    for (stored, why) in unnamed {
        let what = match &why {
            None => OF_OTHERS.to_owned(),
            Some(Error::Damaged(what)) => what.clone(),
            Some(error) => error.to_string(),
        };
        eprintln!("wattlock: {}: {what}", one_line(Path::new(&stored)));
        if json {
            Line::of(&stored).with("foreign", what).put()?;
        }
        first = first.or_else(|| Some(anyhow::Error::new(why?).context(Told)));
    }
    first.map_or(Ok(()), Err)
}

/// Prints an entry's line. Returns why a link's target is not in it.
fn line(
    world: &mut World,
    inside: &Inner,
    entry: &Entry,
    name: &[u8],
    (long, json): (bool, bool),
) -> Result<Option<Error>> {
    let name = OsStr::from_bytes(name);
    let shown = one_line(Path::new(name));
    if !long && !json {
        say!("{shown}");
        return Ok(None);
    }
    let gone = || Error::io("looking at a file", Errno::NOENT);
    let status = status(&inside.folder, entry)?.ok_or_else(gone)?;
    let (kind, mode) = (FileType::from_raw_mode(status.st_mode), status.st_mode);
    let (letter, word) = match kind {
        FileType::RegularFile => ('-', "file"),
        FileType::Directory => ('d', "folder"),
        FileType::Symlink => ('l', "link"),
        FileType::Fifo => ('p', "pipe"),
        FileType::Socket => ('s', "socket"),
        FileType::BlockDevice => ('b', "block-device"),
        _ => ('c', "character-device"),
    };
    let size = world.size(inside, entry, &status)?;
    let target = (kind == FileType::Symlink)
        .then(|| world.tree.read_link(&inside.folder, entry, &mut world.crypto))
        .transpose();
    if json {
        let line = Line::of(name).with("kind", word).with("mode", format!("{:04o}", mode & 0o7777));
        let line = line.with("uid", status.st_uid).with("gid", status.st_gid).with("bytes", size);
        let line = match &target {
            Ok(Some(target)) => line.name("target", OsStr::from_bytes(target)),
            Ok(None) => line,
            Err(error) => line.failed(&error.to_string(), error.code()),
        };
        line.put()?;
        return Ok(target.err());
    }
    let to = match &target {
        Ok(Some(target)) => format!(" -> {}", one_line(Path::new(OsStr::from_bytes(target)))),
        Ok(None) => String::new(),
        Err(error) => format!(" -> ({error})"),
    };
    let bits: String = (0..9)
        .map(|at| if mode >> (8 - at) & 1 == 1 { [b'r', b'w', b'x'][at % 3] as char } else { '-' })
        .collect();
    say!("{letter}{bits} {:>5} {:>5} {size:>12} {shown}{to}", status.st_uid, status.st_gid);
    Ok(target.err())
}

/// Runs `wattlock fs cat`.
pub fn cat(command: &Cat, choice: &Choice) -> Result<()> {
    let runtime = setup::runtime(choice, None, true)?;
    let mut world = World::open(&command.keys, &command.folder, false, &runtime)?;
    world.contents(false)?;
    let mut out = std::io::stdout().lock();
    for path in &command.paths {
        let opened = world.spot(path).and_then(|spot| match &spot.entry {
            Some(entry) => world.content(&spot.inside, entry),
            None => Err(Error::io("a file", Errno::ISDIR)),
        });
        let content = opened.map_err(|error| about(path, error))?;
        world.write_out(&content, &mut out).map_err(|error| error.context(one_line(path)))?;
    }
    out.flush().map_err(FileError::writing)?;
    Ok(())
}
