//! `wattlock fs rm`: removes from a volume without a mount, and without room on its disk.
//!
//! Whatever it removes is reached from a descriptor of the folder that it is in: no link is followed, and nothing that is
//! mounted inside the volume's folder is entered. The journal is locked, not started: what it still has of a removed
//! file, the next start finds to be gone.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use wattlock_door::one_line;
use wattlock_fs::Error;
use wattlock_fs::store::Store as _;
use wattlock_fs::tree::{Entry, RECORD, is_record};

use super::access::Keys;
use super::report::Report;
use super::world::{Inner, World, about, go_on, parts, status};
use crate::ask;
use crate::lines::Line;
use wattlock_shell::setup::{self, Choice};

/// Remove files from a volume, also on a full disk
#[derive(Debug, Args)]
pub struct Rm {
    /// The volume's folder
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Paths in the volume, as `fs ls` shows them
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    keys: Keys,
    /// Remove folders with all that is in them
    #[arg(short, long)]
    recursive: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

/// Runs `wattlock fs rm`.
pub fn rm(command: &Rm, json: bool, choice: &Choice) -> Result<()> {
    let runtime = setup::runtime(choice, None, true)?;
    super::raise_descriptors();
    let mut world = World::open(&command.keys, &command.folder, true, &runtime)?;
    let _lock = lock(&command.folder)?;
    let mut report = Report::new(json);
    let mut found = Vec::new();
    for path in &command.paths {
        match find(&mut world, path, command.recursive) {
            Ok((inside, entry)) => found.push((path, inside, entry)),
            Err(error) => report.refuse(path, error),
        }
    }
    let names: Vec<String> = found.iter().map(|(path, ..)| one_line(path)).collect();
    let question = format!("Remove {} from the volume, for good?", names.join(", "));
    if found.is_empty() || !ask::confirmed(&question, command.yes, "nothing removed")? {
        return report.end();
    }
    for (path, inside, entry) in found {
        match remove(&world, &inside, &entry) {
            Err(error) if super::ends(&error) => return Err(error),
            Err(error) => report.refuse(path, about(path, error)),
            Ok(()) => report.put(Line::of(path).with("removed", true)),
        }
    }
    report.end()
}

/// Keeps mounts and other commands away.
fn lock(folder: &Path) -> Result<std::fs::File, Error> {
    super::store(folder)?.journal().map_err(|error| match error.kind() {
        std::io::ErrorKind::WouldBlock => Error::InUse,
        _ => Error::io("locking the volume", error),
    })
}

/// What a path names: an entry by its name, or by its stored name if `fs ls` shows that.
fn find(world: &mut World, path: &Path, recursive: bool) -> Result<(Inner, Entry)> {
    let failed = |error: Error| about(path, error);
    let missing = || wattlock_door::Error::NotFound(path.to_owned());
    let spot = world.spot(path).map_err(failed)?;
    let whole = || Error::Usage("the volume's own folder is not removed: give a path in it".into());
    let mut entry = spot.entry.ok_or_else(whole)?;
    let mut there = status(&spot.inside.folder, &entry).map_err(failed)?;
    if there.is_none() {
        let (_, foreign) = world.list(&spot.inside).map_err(failed)?;
        let name = parts(path).next_back().unwrap_or_default();
        let stored = foreign.into_iter().find(|stored| stored.as_bytes() == name).ok_or_else(missing)?;
        entry = Entry { stored, sidecar: None };
        there = status(&spot.inside.folder, &entry).map_err(failed)?;
    }
    let kind = FileType::from_raw_mode(there.ok_or_else(missing)?.st_mode);
    match kind == FileType::Directory && !recursive {
        true => Err(Error::Usage(format!("{} is a folder: give -r", one_line(path))).into()),
        false => Ok((spot.inside, entry)),
    }
}

fn remove(world: &World, inside: &Inner, entry: &Entry) -> Result<()> {
    let folder = &inside.folder;
    let status = status(folder, entry)?.ok_or_else(|| Error::io("a file", Errno::NOENT))?;
    if FileType::from_raw_mode(status.st_mode) != FileType::Directory {
        return Ok(world.tree.remove(folder, entry, false)?);
    }
    let inner = enter(folder.fd(), &entry.stored)?;
    empty(&inner, true)?;
    match world.tree.remove(folder, entry, true) {
        // Nothing is left that the record could open, be it damaged or a newer program's, or its folder on a disk
        // without room to rename it.
        Err(Error::Damaged(_) | Error::Newer(_)) => {}
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::StorageFull => {}
        done => return Ok(done?),
    }
    unlink(&inner, RECORD.as_ref())?;
    Ok(world.tree.remove(folder, entry, true)?)
}

/// Removes everything in a folder but its record. Copies of that go last: with them the rest of an interrupted removal
/// still has names.
fn empty(folder: &OwnedFd, keep_record: bool) -> Result<()> {
    let failed = |error: Errno| Error::io("listing a folder", error);
    let (mut names, mut records) = (Vec::new(), Vec::new());
    for entry in Dir::read_from(folder).map_err(failed)? {
        let name = OsString::from_vec(entry.map_err(failed)?.file_name().to_bytes().to_vec());
        if name == RECORD || name == "." || name == ".." {
            continue;
        }
        if is_record(&name) { &mut records } else { &mut names }.push(name);
    }
    // The entry of a long name goes before the file that has the name.
    names.sort();
    for name in names.into_iter().chain(records) {
        go_on()?;
        match rustix::fs::unlinkat(folder, &*name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR) => {
                let inner = enter(folder, &name)?;
                empty(&inner, false)?;
                rustix::fs::unlinkat(folder, &*name, AtFlags::REMOVEDIR)
                    .map_err(|error| Error::io("removing a folder", error))?;
            }
            Err(error) => return Err(Error::io("removing a file", error).into()),
        }
    }
    if keep_record { Ok(()) } else { unlink(folder, RECORD.as_ref()) }
}

fn unlink(folder: &OwnedFd, name: &OsStr) -> Result<()> {
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(Error::io("removing a file", error).into()),
    }
}

/// Opens a folder in a folder, never a link or what is mounted there.
fn enter(parent: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Error> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match rustix::fs::openat2(parent, name, flags, Mode::empty(), how) {
        // Kernels before 5.6: a name that is not followed stays below the folder all the same.
        Err(Errno::NOSYS) => rustix::fs::openat(parent, name, flags, Mode::empty()),
        opened => opened,
    }
    .map_err(|error| Error::io("opening a folder", error))
}
