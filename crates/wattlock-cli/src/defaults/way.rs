//! The way from a folder of the user's down to a file, one name at a time by descriptors: no folder that a name is looked
//! up in, and no link on the way, may be another user's or one that others write.
//!
//! Links are followed as the kernel does, and the folders that they lead through are judged like all others. Outside of
//! the folder that the way begins in, a sticky folder may be written by others: they can take nothing away in it.
//! Between judging and using nothing is looked up by path again, so nothing can be put in the place of what was judged.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{Error as IoError, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use anyhow::Result;
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat, readlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;
use wattlock_door::{Folder, one_line};
use wattlock_files::Error;

use crate::keygen;
use crate::wrong::system;

/// As many links as the kernel follows (path_resolution(7)).
const LINKS_MOST: usize = 40;

/// Permissions of others that a file must not give, and whether it may be root's.
#[derive(Clone, Copy)]
pub struct Closed {
    bits: u32,
    roots_too: bool,
}

/// What only this user may read.
pub const SECRET: Closed = Closed { bits: 0o077, roots_too: false };
/// What only this user and root may write.
pub const UNALTERED: Closed = Closed { bits: 0o022, roots_too: true };
/// Of a link and of a sticky folder the owner decides.
const OWNED: Closed = Closed { bits: 0, roots_too: true };

/// A folder on the way, and what it is called.
struct Step {
    folder: File,
    path: PathBuf,
}

/// What a name stands for.
enum End {
    Nothing,
    Folder,
    /// Not a folder: what it is, and its name in the last folder.
    Other(Metadata, OsString),
}

/// Open folders, each in the one before.
pub struct Way {
    base: PathBuf,
    /// Whether it begins at the root, since a link leads out of the base.
    outside: bool,
    steps: Vec<Step>,
}

impl Way {
    /// Begins at a folder, which is judged.
    ///
    /// # Errors
    /// It cannot be opened, or is not this user's alone.
    pub fn from(base: &Path) -> Result<Way> {
        let mut way = Way { base: base.to_owned(), outside: false, steps: Vec::new() };
        way.begin(base, false)?;
        Ok(way)
    }

    /// Goes down to a folder; with `makes`, missing ones are made. Whether it is there.
    ///
    /// # Errors
    /// Something on the way is not this user's alone, or no folder; a link leads nowhere.
    pub fn enter(&mut self, names: &Path, makes: bool) -> Result<bool> {
        match self.walk(names, makes)? {
            End::Folder => Ok(true),
            End::Nothing => Ok(false),
            End::Other(_, name) => Err(failed(&self.at(&name), Errno::NOTDIR)),
        }
    }

    /// Opens a regular file in the folder, or the one that a link there leads to; its real path with it.
    ///
    /// # Errors
    /// As [`Way::enter`]; it is no regular file, or not closed to others as it must be.
    pub fn open(mut self, name: &str, closed: Closed) -> Result<Option<(File, PathBuf)>> {
        let (looked, name) = match self.walk(Path::new(name), false)? {
            End::Nothing => return Ok(None),
            End::Folder => return Err(wattlock_door::Error::NotRegular(self.path().to_owned()).into()),
            End::Other(looked, name) => (looked, name),
        };
        let path = self.at(&name);
        // Opening a device can have effects.
        let regular = |looked: &Metadata| match looked.is_file() {
            true => Ok(()),
            false => Err(wattlock_door::Error::NotRegular(path.clone())),
        };
        regular(&looked)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        // Another user's file is told of as such, and not as one that this user may not read.
        let file = match openat(self.folder(), &name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(error) => return judge(&path, &looked, closed).and(Err(failed(&path, error))),
        };
        let looked = seen(&path, &file)?;
        regular(&looked)?;
        judge(&path, &looked, closed)?;
        Ok(Some((file, path)))
    }

    /// Writes a new file of the folder, as [`keygen::private`] does. Whatever has the name stays.
    ///
    /// # Errors
    /// [`wattlock_door::Error::OutputExists`], or what the system says.
    pub fn write_new(&self, name: &str, text: &[u8]) -> Result<(), wattlock_door::Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // What may be entered and not listed has files, too.
        let folder = openat(self.folder(), ".", flags, Mode::empty())
            .or_else(|_| self.folder().try_clone().map(OwnedFd::from))
            .map_err(|source| wattlock_door::Error::io(one_line(self.path()), source))?;
        keygen::private(Folder::opened(folder, self.path()), name.into(), text, false)
    }

    /// The path of a name in the folder.
    pub fn at(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.path().join(name.as_ref())
    }

    fn path(&self) -> &Path {
        self.steps.last().map_or(&self.base, |step| &step.path)
    }

    fn folder(&self) -> &File {
        // `begin` leaves one, and `up` takes none away that is the only one.
        &self.steps[self.steps.len() - 1].folder
    }

    fn begin(&mut self, at: &Path, outside: bool) -> Result<()> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(CWD, at, flags, Mode::empty()).map_err(|error| failed(at, error))?;
        self.outside = outside;
        self.steps.clear();
        self.push(folder.into(), at.to_owned())
    }

    fn push(&mut self, folder: File, path: PathBuf) -> Result<()> {
        let looked = seen(&path, &folder)?;
        let sticky = self.outside && looked.mode() & 0o1000 != 0;
        judge(&path, &looked, if sticky { OWNED } else { UNALTERED })?;
        self.steps.push(Step { folder, path });
        Ok(())
    }

    fn walk(&mut self, names: &Path, makes: bool) -> Result<End> {
        let mut left = backwards(names);
        let mut links = 0;
        // The first link that is being followed, and how many names were left behind it.
        let mut link: Option<(PathBuf, usize)> = None;
        while let Some(name) = left.pop() {
            link = link.filter(|(_, behind)| left.len() >= *behind);
            if name == ".." {
                self.up(&mut left)?;
                continue;
            }
            let path = self.at(&name);
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let there = match openat(self.folder(), &name, flags, Mode::empty()) {
                Ok(there) => File::from(there),
                Err(Errno::NOENT) if link.is_none() && makes => {
                    match mkdirat(self.folder(), &name, Mode::RWXU) {
                        Ok(()) | Err(Errno::EXIST) => left.push(name),
                        Err(error) => return Err(failed(&path, error)),
                    }
                    continue;
                }
                Err(Errno::NOENT) if link.is_none() => return Ok(End::Nothing),
                // A link that leads nowhere is a mistake to be told, not an absent file.
                Err(error) => return Err(failed(&link.map_or(path, |(link, _)| link), error)),
            };
            let looked = seen(&path, &there)?;
            if looked.is_symlink() {
                judge(&path, &looked, OWNED)?;
                links += 1;
                if links > LINKS_MOST {
                    return Err(failed(&path, Errno::LOOP));
                }
                link = link.or(Some((path.clone(), left.len())));
                let target = readlinkat(&there, "", Vec::new()).map_err(|error| failed(&path, error))?;
                self.follow(&PathBuf::from(OsString::from_vec(target.into_bytes())), &mut left)?;
            } else if looked.is_dir() {
                self.push(there, path)?;
            } else if left.is_empty() {
                return Ok(End::Other(looked, name));
            } else {
                return Err(failed(&path, Errno::NOTDIR));
            }
        }
        Ok(End::Folder)
    }

    fn follow(&mut self, target: &Path, left: &mut Vec<OsString>) -> Result<()> {
        if target.is_absolute() {
            match target.strip_prefix(&self.base) {
                Ok(rest) => {
                    self.begin(&self.base.clone(), false)?;
                    left.extend(backwards(rest));
                    return Ok(());
                }
                Err(_) => self.begin(Path::new("/"), true)?,
            }
        }
        left.extend(backwards(target));
        Ok(())
    }

    fn up(&mut self, left: &mut Vec<OsString>) -> Result<()> {
        if self.steps.len() > 1 {
            self.steps.pop();
        } else if !self.outside {
            let base =
                self.base.canonicalize().map_err(|error| system::<Error>(one_line(&self.base), error))?;
            self.begin(Path::new("/"), true)?;
            left.extend(backwards(base.parent().unwrap_or(&base)));
        }
        Ok(())
    }
}

/// The names of a path, the first one last.
fn backwards(path: &Path) -> Vec<OsString> {
    let names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    let mut names: Vec<OsString> = names.collect();
    names.reverse();
    names
}

fn failed(path: &Path, error: Errno) -> anyhow::Error {
    system::<Error>(one_line(path), error.into()).into()
}

fn seen(path: &Path, file: &File) -> Result<Metadata> {
    Ok(file.metadata().map_err(|source| system::<Error>(one_line(path), source))?)
}

/// Refuses what another user owns, or what others have these permissions of.
fn judge(path: &Path, looked: &Metadata, closed: Closed) -> Result<()> {
    let (own, shown) = (geteuid().as_raw(), one_line(path));
    let refused = |why: String| -> Result<()> {
        Err(system::<Error>(shown.clone(), IoError::new(ErrorKind::PermissionDenied, why)).into())
    };
    if looked.uid() != own && !(closed.roots_too && looked.uid() == 0) {
        return refused(format!(
            "user {} owns it, not user {own}: not used; name a key of yours with -i or -r",
            looked.uid()
        ));
    }
    let remedy = if closed.bits & 0o055 == 0 { "go-w" } else { "go=" };
    match looked.mode() & closed.bits {
        0 => Ok(()),
        open if open & 0o044 != 0 => {
            refused(format!("others may read it: `chmod {remedy} {shown}`, and think of who has read it"))
        }
        open if open & 0o022 != 0 => {
            refused(format!("others may write it: `chmod {remedy} {shown}`, once what is in it is yours"))
        }
        _ => refused(format!("others may execute it: `chmod {remedy} {shown}`")),
    }
}
