//! A user's own key and recipients, for command lines that name none: `identity.txt` and `recipients.txt` in
//! `wattlock/` below `$XDG_CONFIG_HOME` or `~/.config`.
//!
//! Each use is told on standard error. They are never used beside a key that is given, by mount(8)'s helper, by a
//! program with more rights than its caller, or if the folder that the environment names is another user's (sudo that
//! keeps HOME). A file that others could have written, or a key that others can read, is refused, and not passed over
//! in silence.
//!
//! | must be | the identity | the recipients | the folder |
//! |---|---|---|---|
//! | owned by | this user | this user or root | this user or root |
//! | closed to others for | reading, writing | writing | writing |
//!
//! A symbolic link is judged by what it leads to. What is judged is what is read: one descriptor.

use std::fs::{File, Metadata};
use std::io::{Error as IoError, ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::Result;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::process::geteuid;
use wattlock_door::one_line;
use wattlock_files::Error;
use wattlock_files::keys::{self, BoxedIdentity, BoxedRecipient, FILE_MAX, Recipients};
use zeroize::Zeroizing;

use crate::ask::Terminal;
use crate::keys::{unlocked, within};
use crate::wrong::system;

/// The key's name.
const IDENTITY: &str = "identity.txt";
/// The recipients' name.
const RECIPIENTS: &str = "recipients.txt";

/// A file of the user's that was found good, and its content.
#[derive(Clone)]
pub struct Found {
    pub path: PathBuf,
    pub content: Zeroizing<Vec<u8>>,
}

/// Where the environment says that a user's configuration is.
struct Place {
    /// What must be this user's.
    base: PathBuf,
    folder: PathBuf,
}

impl Place {
    fn here() -> Option<Place> {
        if wattlock::elevated() {
            return None;
        }
        let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        if let Some(base) = variable("XDG_CONFIG_HOME") {
            return Some(Place { folder: base.join("wattlock"), base });
        }
        let base = variable("HOME")?;
        Some(Place { folder: base.join(".config/wattlock"), base })
    }

    fn is_ours(&self) -> bool {
        self.base.metadata().is_ok_and(|meta| meta.uid() == geteuid().as_raw())
    }
}

/// Where the default identity would be, in messages.
pub fn identity_place() -> String {
    match Place::here() {
        Some(place) if place.is_ours() => one_line(&place.folder.join(IDENTITY)),
        _ => "~/.config/wattlock/identity.txt".to_owned(),
    }
}

/// Whether a file is the key, and not only whom to seal to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Identity,
    Recipients,
}

/// The default identity's file, if there is one; its use is told.
pub fn identity() -> Result<Option<Found>> {
    let found = find(What::Identity)?;
    if let Some(found) = &found {
        eprintln!("wattlock: default key {}", one_line(&found.path));
    }
    Ok(found)
}

/// The default identities; none if there are none.
pub fn identities(terminal: &Terminal) -> Result<Vec<BoxedIdentity>> {
    let Some(Found { path, content }) = identity()? else { return Ok(Vec::new()) };
    let content = unlocked(&path, content, terminal)?;
    keys::identities(&content, terminal.clone()).map_err(|error| within(&path, terminal.explain(error)))
}

/// The default recipients' file, if there is one; its use is told.
pub fn recipients_file() -> Result<Option<Found>> {
    let found = find(What::Recipients)?;
    if let Some(found) = &found {
        eprintln!("wattlock: default recipients {}", one_line(&found.path));
    }
    Ok(found)
}

/// The default recipients; none if there are none.
pub fn recipients(terminal: &Terminal) -> Result<Vec<BoxedRecipient>> {
    let Some(Found { path, content }) = recipients_file()? else { return Ok(Vec::new()) };
    let mut recipients = Recipients::new();
    for line in recipients.add_file(&content).map_err(|error| within(&path, error))? {
        tell!("wattlock: {}: {line}, left out", one_line(&path));
    }
    recipients.finish(terminal.clone()).map_err(|error| within(&path, terminal.explain(error)))
}

fn find(what: What) -> Result<Option<Found>> {
    let Some(place) = Place::here() else { return Ok(None) };
    let name = if what == What::Identity { IDENTITY } else { RECIPIENTS };
    let path = place.folder.join(name);
    if !place.is_ours() {
        if path.symlink_metadata().is_ok() {
            eprintln!(
                "wattlock: {} is not used: {} is another user's",
                one_line(&path),
                one_line(&place.base)
            );
        }
        return Ok(None);
    }
    let failed =
        |path: &Path, error: Errno| -> anyhow::Error { system::<Error>(one_line(path), error.into()).into() };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = match openat(CWD, &place.folder, flags, Mode::empty()) {
        Ok(folder) => File::from(folder),
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(failed(&place.folder, error)),
    };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match openat(&folder, name, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        // A link that leads nowhere is a mistake to be told, not an absent file.
        Err(Errno::NOENT) if path.symlink_metadata().is_err() => return Ok(None),
        Err(error) => return Err(failed(&path, error)),
    };
    judge(&place.folder, &looked(&place.folder, &folder)?, 0o022, true)?;
    let meta = looked(&path, &file)?;
    if !meta.is_file() {
        return Err(wattlock_door::Error::NotRegular(path).into());
    }
    match what {
        What::Identity => judge(&path, &meta, 0o077, false)?,
        What::Recipients => judge(&path, &meta, 0o022, true)?,
    }
    let mut content = Zeroizing::new(Vec::new());
    let read = file.take(FILE_MAX as u64 + 1).read_to_end(&mut content);
    read.map_err(|source| system::<Error>(one_line(&path), source))?;
    Ok(Some(Found { path, content }))
}

fn looked(path: &Path, file: &File) -> Result<Metadata> {
    Ok(file.metadata().map_err(|source| system::<Error>(one_line(path), source))?)
}

/// Refuses what another user owns, or what others have these permissions of.
fn judge(path: &Path, meta: &Metadata, closed: u32, roots_too: bool) -> Result<()> {
    let (own, shown) = (geteuid().as_raw(), one_line(path));
    let refused = |why: String| -> Result<()> {
        Err(system::<Error>(shown.clone(), IoError::new(ErrorKind::PermissionDenied, why)).into())
    };
    if meta.uid() != own && !(roots_too && meta.uid() == 0) {
        return refused(format!(
            "user {} owns it, not user {own}: not used; name a key of yours with -i or -r",
            meta.uid()
        ));
    }
    let open = meta.mode() & closed;
    if open & 0o044 != 0 {
        return refused(format!("others may read it: `chmod go= {shown}`, and think of who has read it"));
    }
    if open != 0 {
        return refused(format!("others may write it: `chmod go-w {shown}`, once what is in it is yours"));
    }
    Ok(())
}

/// Makes the folder for `keygen --default`; says where the identity and the recipients go.
pub fn make() -> Result<(PathBuf, PathBuf)> {
    let Some(place) = Place::here().filter(Place::is_ours) else {
        let why = "neither XDG_CONFIG_HOME nor HOME names a folder of this user's: give -o FILE";
        return Err(crate::wrong::usage::<Error>(why).into());
    };
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&place.folder);
    made.map_err(|source| system::<Error>(one_line(&place.folder), source))?;
    let meta = place.folder.metadata().map_err(|source| system::<Error>(one_line(&place.folder), source))?;
    judge(&place.folder, &meta, 0o022, true)?;
    Ok((place.folder.join(IDENTITY), place.folder.join(RECIPIENTS)))
}
