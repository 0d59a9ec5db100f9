//! `wattlock fs ls`, `cat` and `cp`: a volume's files without mounting it.

use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::Result;
use clap::Args;
use rustix::fs::{FileType, Mode, OFlags};
use wattlock::{Dispatcher, Runtime};
use wattlock_door::one_line;
use wattlock_files::Error as FileError;
use wattlock_fs::content::{Content, Contents};
use wattlock_fs::store::{FolderStore, Place};
use wattlock_fs::tree::{Entry, Folder, Tree};
use wattlock_fs::volume::Volume;
use wattlock_fs::{Error, names};
use zeroize::Zeroizing;

use super::access::Keys;
use super::store;
use crate::wrong::system;
use wattlock_shell::INTERRUPTED;
use wattlock_shell::setup::{self, Choice};

/// Bytes read or written together.
const STEP: usize = 1 << 20;

/// List a folder of a volume
#[derive(Debug, Args)]
pub struct Ls {
    /// The volume's folder
    #[arg(value_name = "DIR")]
    folder: PathBuf,
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
    folder: PathBuf,
    /// Paths in the volume
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    keys: Keys,
}

/// Copy files out of a volume, or into it
#[derive(Debug, Args)]
pub struct Cp {
    /// The volume's folder
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// What to copy, then where to
    #[arg(value_name = "PATH", required = true, num_args = 2..)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    keys: Keys,
    /// Copy into the volume: the last path is in the volume, the others are not
    #[arg(long)]
    into: bool,
    /// Copy folders with all that is in them
    #[arg(short, long)]
    recursive: bool,
}

/// An opened volume.
struct World {
    volume: Volume,
    tree: Tree,
    root: Arc<Folder>,
    crypto: Dispatcher,
    path: PathBuf,
    contents: Option<Contents<FolderStore>>,
}

/// Whether this command was interrupted.
fn stop() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

fn go_on() -> Result<(), FileError> {
    if stop() { Err(FileError::Door(wattlock_door::Error::Interrupted)) } else { Ok(()) }
}

/// What a path leads to: the folder that it is in, and its entry; none for the volume's own folder.
struct Spot {
    folder: Arc<Folder>,
    entry: Option<Entry>,
    /// The name, and the stored path below the volume's folder.
    name: Vec<u8>,
    place: Vec<u8>,
}

impl World {
    fn open(keys: &Keys, path: &Path, runtime: &Runtime) -> Result<World> {
        let (_, volume) = keys.open(path, runtime)?;
        let mut crypto = runtime.dispatcher();
        let (tree, root) = Tree::open(path, &volume, &mut crypto)?;
        let root = Arc::new(root);
        Ok(World { volume, tree, root, crypto, path: path.to_owned(), contents: None })
    }

    /// The contents: the journal's lock keeps mounts away, and what it holds is brought into place.
    fn contents(&mut self) -> Result<(), Error> {
        let (contents, recovered) =
            Contents::start_until(store(&self.path)?, &self.volume, &stop, &mut self.crypto)?;
        for line in recovered.lines {
            eprintln!("wattlock: {line}");
        }
        self.tree.set_crashed(contents.may_be_torn());
        self.contents = Some(contents);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.tree.sync_records()?;
        match &self.contents {
            Some(contents) => contents.checkpoint(&mut self.crypto),
            None => Ok(()),
        }
    }

    fn spot(&mut self, path: &Path) -> Result<Spot, Error> {
        let mut spot = Spot { folder: self.root.clone(), entry: None, name: Vec::new(), place: Vec::new() };
        for name in path.as_os_str().as_bytes().split(|byte| *byte == b'/') {
            if name.is_empty() || name == b"." {
                continue;
            }
            spot = self.below(&spot, name)?;
        }
        Ok(spot)
    }

    /// A name in the folder that a spot is.
    fn below(&mut self, spot: &Spot, name: &[u8]) -> Result<Spot, Error> {
        let folder = self.folder(spot)?;
        let entry = self.tree.entry(&folder, name, &mut self.crypto)?;
        let slash = if spot.place.is_empty() { &b""[..] } else { b"/" };
        let place = [&spot.place, slash, entry.stored.as_bytes()].concat();
        Ok(Spot { folder, entry: Some(entry), name: name.to_vec(), place })
    }

    /// The folder that a spot is.
    fn folder(&mut self, spot: &Spot) -> Result<Arc<Folder>, Error> {
        match &spot.entry {
            None => Ok(spot.folder.clone()),
            Some(entry) => Ok(Arc::new(self.tree.folder(&spot.folder, entry, &mut self.crypto)?)),
        }
    }

    /// What is there; `None` if nothing is.
    fn kind(&self, spot: &Spot) -> Result<Option<FileType>, Error> {
        let Some(entry) = &spot.entry else { return Ok(Some(FileType::Directory)) };
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        match rustix::fs::statat(spot.folder.fd(), &*entry.stored, flags) {
            Ok(status) => Ok(Some(FileType::from_raw_mode(status.st_mode))),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(Error::io("looking at a file", error)),
        }
    }

    fn open_content(&mut self, spot: &Spot) -> Result<(Arc<Content<FolderStore>>, Metadata), Error> {
        let entry = spot.entry.as_ref().ok_or_else(|| Error::io("a file", rustix::io::Errno::ISDIR))?;
        // A pipe would wait for its other end.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file = self.tree.open_file(&spot.folder, entry, flags)?;
        let meta = file.metadata().map_err(|error| Error::io("looking at a file", error))?;
        if meta.is_dir() {
            return Err(Error::io("a file", rustix::io::Errno::ISDIR));
        }
        if !meta.is_file() {
            return Err(Error::io("a file", rustix::io::Errno::INVAL));
        }
        let contents = self.contents.as_ref().ok_or(Error::InUse)?;
        let place = Place { inode: (meta.dev(), meta.ino()), path: spot.place.clone() };
        Ok((contents.open(file, place, &mut self.crypto)?, meta))
    }

    /// Writes a file's content.
    fn write_out(&mut self, content: &Content<FolderStore>, to: &mut dyn Write) -> Result<()> {
        let mut buffer = Zeroizing::new(vec![0; STEP]);
        let mut at = 0;
        loop {
            go_on()?;
            // The read at the end says that the end is the end.
            let read = content.read(&mut buffer, at, &mut self.crypto)?;
            if read == 0 {
                return Ok(());
            }
            to.write_all(&buffer[..read]).map_err(FileError::writing)?;
            at += read as u64;
        }
    }
}

/// An error with the path that it is about.
fn about(path: &Path, error: impl Into<anyhow::Error>) -> anyhow::Error {
    let error = error.into();
    match error.downcast_ref() {
        Some(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            wattlock_door::Error::NotFound(path.to_owned()).into()
        }
        _ => error.context(one_line(path)),
    }
}

/// Runs `wattlock fs ls`.
pub fn ls(command: &Ls, choice: &Choice) -> Result<()> {
    let runtime = setup::runtime(choice, None, true)?;
    let mut world = World::open(&command.keys, &command.folder, &runtime)?;
    let path = &command.path;
    let spot = world.spot(path).map_err(|error| about(path, error))?;
    let kind = world.kind(&spot).map_err(|error| about(path, error))?;
    let Some(kind) = kind else {
        return Err(wattlock_door::Error::NotFound(path.clone()).into());
    };
    if kind != FileType::Directory {
        let entry = spot.entry.clone();
        let stored = entry.map(|entry| entry.stored).unwrap_or_default();
        return line(&mut world, &spot.folder, &stored, &spot.name, kind, command.long);
    }
    let folder = world.folder(&spot).map_err(|error| about(path, error))?;
    let (mut listed, foreign) = world.tree.list_until(&folder, &stop, &mut world.crypto)?;
    listed.sort_by(|one, other| one.name.cmp(&other.name));
    for entry in &listed {
        go_on()?;
        line(&mut world, &folder, &entry.stored, &entry.name, entry.kind, command.long)?;
    }
    for stored in &foreign {
        eprintln!("wattlock: {}: its name does not authenticate", one_line(Path::new(stored)));
    }
    Ok(())
}

fn line(
    world: &mut World,
    folder: &Folder,
    stored: &OsStr,
    name: &[u8],
    kind: FileType,
    long: bool,
) -> Result<()> {
    let shown = one_line(Path::new(OsStr::from_bytes(name)));
    if !long {
        say!("{shown}");
        return Ok(());
    }
    let status = rustix::fs::statat(folder.fd(), stored, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
    let status = status.map_err(|error| Error::io("looking at a file", error))?;
    let stored_len = status.st_size as u64;
    let (letter, size) = match kind {
        FileType::RegularFile => {
            let geometry = wattlock_fs::format::Geometry::new(world.volume.chunk)?;
            ('-', geometry.content_len_lenient(stored_len))
        }
        FileType::Directory => ('d', 0),
        FileType::Symlink => ('l', names::target_len(stored_len)),
        FileType::Fifo => ('p', 0),
        FileType::Socket => ('s', 0),
        FileType::BlockDevice => ('b', 0),
        _ => ('c', 0),
    };
    let mut target = String::new();
    if kind == FileType::Symlink {
        let entry = Entry { stored: stored.to_owned(), sidecar: None };
        target = match world.tree.read_link(folder, &entry, &mut world.crypto) {
            Ok(target) => format!(" -> {}", one_line(Path::new(OsStr::from_bytes(&target)))),
            Err(error) => format!(" -> ({error})"),
        };
    }
    let bits: String = (0..9)
        .map(|at| if status.st_mode >> (8 - at) & 1 == 1 { [b'r', b'w', b'x'][at % 3] as char } else { '-' })
        .collect();
    say!("{letter}{bits} {:>5} {:>5} {size:>12} {shown}{target}", status.st_uid, status.st_gid);
    Ok(())
}

/// Runs `wattlock fs cat`.
pub fn cat(command: &Cat, choice: &Choice) -> Result<()> {
    let runtime = setup::runtime(choice, None, true)?;
    let mut world = World::open(&command.keys, &command.folder, &runtime)?;
    world.contents()?;
    let mut out = std::io::stdout().lock();
    for path in &command.paths {
        let opened = world.spot(path).and_then(|spot| world.open_content(&spot));
        let (content, _) = opened.map_err(|error| about(path, error))?;
        world.write_out(&content, &mut out).map_err(|error| error.context(one_line(path)))?;
    }
    out.flush().map_err(FileError::writing)?;
    Ok(())
}

/// Runs `wattlock fs cp`.
pub fn cp(command: &Cp, choice: &Choice) -> Result<()> {
    let runtime = setup::runtime(choice, None, true)?;
    let mut world = World::open(&command.keys, &command.folder, &runtime)?;
    world.contents()?;
    let Some((to, from)) = command.paths.split_last() else { return Ok(()) };
    let result = if command.into {
        from.iter().try_for_each(|path| copy_into(&mut world, path, to, from.len() > 1, command.recursive))
    } else {
        from.iter().try_for_each(|path| copy_out(&mut world, path, to, from.len() > 1, command.recursive))
    };
    world.finish()?;
    result
}

fn copy_out(world: &mut World, path: &Path, to: &Path, several: bool, recursive: bool) -> Result<()> {
    let spot = world.spot(path).map_err(|error| about(path, error))?;
    let to = match std::fs::metadata(to) {
        Ok(meta) if meta.is_dir() && !spot.name.is_empty() => to.join(OsStr::from_bytes(&spot.name)),
        Ok(meta) if !meta.is_dir() && several => {
            return Err(wattlock_door::Error::NotRegular(to.to_owned()).into());
        }
        Err(_) if several => {
            return Err(wattlock_door::Error::NotFound(to.to_owned()).into());
        }
        _ => to.to_owned(),
    };
    out(world, &spot, path, &to, recursive)
}

fn out(world: &mut World, spot: &Spot, path: &Path, to: &Path, recursive: bool) -> Result<()> {
    let failed = |error: Error| about(path, error);
    go_on()?;
    match world.kind(spot).map_err(failed)? {
        None => Err(wattlock_door::Error::NotFound(path.to_owned()).into()),
        Some(FileType::RegularFile) => file_out(world, spot, path, to),
        Some(FileType::Symlink) => {
            let entry = spot.entry.clone().ok_or(Error::InUse)?;
            let target = world.tree.read_link(&spot.folder, &entry, &mut world.crypto).map_err(failed)?;
            let made = std::os::unix::fs::symlink(OsStr::from_bytes(&target), to);
            made.map_err(|error| about(to, creating(error, to)))
        }
        Some(FileType::Directory) if !recursive => {
            let what = format!("{} is a folder: give -r", one_line(path));
            Err(Error::Usage(what).into())
        }
        Some(FileType::Directory) => {
            let folder = world.folder(spot).map_err(failed)?;
            match std::fs::create_dir(to) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && to.is_dir() => {}
                Err(error) => return Err(about(to, creating(error, to))),
            }
            let (listed, foreign) =
                world.tree.list_until(&folder, &stop, &mut world.crypto).map_err(failed)?;
            for stored in &foreign {
                eprintln!("wattlock: {}: its name does not authenticate", one_line(Path::new(stored)));
            }
            for entry in listed {
                let name = OsStr::from_bytes(&entry.name);
                let inner = world.below(spot, &entry.name).map_err(failed)?;
                out(world, &inner, &path.join(name), &to.join(name), recursive)?;
            }
            Ok(())
        }
        Some(_) => {
            eprintln!("wattlock: {}: neither a file nor a folder nor a link: left out", one_line(path));
            Ok(())
        }
    }
}

fn file_out(world: &mut World, spot: &Spot, path: &Path, to: &Path) -> Result<()> {
    let (content, meta) = world.open_content(spot).map_err(|error| about(path, error))?;
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(to).map_err(|error| about(to, creating(error, to)))?;
    let written = world.write_out(&content, &mut file).and_then(|()| {
        let mode = std::fs::Permissions::from_mode(meta.mode() & 0o777);
        Ok(file.set_permissions(mode).map_err(FileError::writing)?)
    });
    written.map_err(|error| {
        // Half a copy looks like a whole one.
        let _ = std::fs::remove_file(to);
        error.context(one_line(path))
    })
}

fn creating(error: std::io::Error, to: &Path) -> FileError {
    match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            FileError::Door(wattlock_door::Error::OutputExists(to.to_owned()))
        }
        std::io::ErrorKind::NotFound => {
            FileError::Door(wattlock_door::Error::NotFound(to.parent().unwrap_or(to).to_owned()))
        }
        _ => FileError::writing(error),
    }
}

fn copy_into(world: &mut World, path: &Path, to: &Path, several: bool, recursive: bool) -> Result<()> {
    let failed = |error: Error| about(to, error);
    let mut spot = world.spot(to).map_err(failed)?;
    match world.kind(&spot).map_err(failed)? {
        Some(FileType::Directory) => {
            let name = path
                .file_name()
                .ok_or_else(|| FileError::Door(wattlock_door::Error::NotRegular(path.to_owned())))?;
            spot = world.below(&spot, name.as_bytes()).map_err(failed)?;
        }
        _ if several => return Err(wattlock_door::Error::NotRegular(to.to_owned()).into()),
        _ => {}
    }
    into(world, path, &spot, recursive)
}

fn into(world: &mut World, path: &Path, spot: &Spot, recursive: bool) -> Result<()> {
    let failed = |error: Error| about(path, error);
    go_on()?;
    let meta = std::fs::symlink_metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => FileError::Door(wattlock_door::Error::NotFound(path.to_owned())),
        _ => system("looking at a file", error),
    })?;
    let entry = spot
        .entry
        .clone()
        .ok_or_else(|| FileError::Door(wattlock_door::Error::OutputExists(path.to_owned())))?;
    let mode = Mode::from_raw_mode(meta.mode() & 0o777);
    if meta.is_symlink() {
        let target = std::fs::read_link(path).map_err(|error| about(path, FileError::writing(error)))?;
        let target = target.as_os_str().as_bytes();
        let made = world.tree.make_link(&spot.folder, &entry, target, &mut world.crypto);
        return made.map_err(failed);
    }
    if meta.is_dir() {
        if !recursive {
            return Err(Error::Usage(format!("{} is a folder: give -r", one_line(path))).into());
        }
        world.tree.make_folder(&spot.folder, &entry, mode, &mut world.crypto).map_err(failed)?;
        let listed = std::fs::read_dir(path).map_err(|error| failed(Error::io("listing a folder", error)))?;
        for inner in listed {
            let inner = inner.map_err(|error| failed(Error::io("listing a folder", error)))?;
            let below = world.below(spot, inner.file_name().as_bytes()).map_err(failed)?;
            into(world, &inner.path(), &below, recursive)?;
        }
        return Ok(());
    }
    if !meta.is_file() {
        eprintln!("wattlock: {}: neither a file nor a folder nor a link: left out", one_line(path));
        return Ok(());
    }
    let mut from = File::open(path).map_err(|error| failed(Error::io("opening a file", error)))?;
    let contents = world.contents.as_ref().ok_or(Error::InUse)?;
    let creating = contents.before_create(&mut world.crypto).map_err(failed)?;
    let file = world.tree.create_file(&spot.folder, &entry, mode).map_err(failed)?;
    let content = content_of(contents, file, spot, &mut world.crypto);
    // Writing may call for a checkpoint.
    drop(creating);
    let written = content.map_err(Into::into).and_then(|content| write_in(world, &mut from, &content));
    if written.is_err() {
        let _ = world.tree.remove(&spot.folder, &entry, false);
    }
    written.map_err(|error| error.context(one_line(path)))
}

/// The content of a new backing file.
fn content_of(
    contents: &Contents<FolderStore>,
    file: File,
    spot: &Spot,
    crypto: &mut Dispatcher,
) -> Result<Arc<Content<FolderStore>>, Error> {
    let meta = file.metadata().map_err(|error| Error::io("making a file", error))?;
    let place = Place { inode: (meta.dev(), meta.ino()), path: spot.place.clone() };
    contents.create(file, place, crypto)
}

fn write_in(world: &mut World, from: &mut File, content: &Content<FolderStore>) -> Result<()> {
    let mut buffer = Zeroizing::new(vec![0; STEP]);
    let mut at = 0;
    loop {
        go_on()?;
        let read = from.read(&mut buffer).map_err(|error| Error::io("reading a file", error))?;
        if read == 0 {
            break;
        }
        content.write(&buffer[..read], at, &mut world.crypto)?;
        at += read as u64;
    }
    world.tree.sync_records()?;
    Ok(content.sync(&mut world.crypto)?)
}
