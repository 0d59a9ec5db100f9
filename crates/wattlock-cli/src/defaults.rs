//! A user's own key and recipients, for command lines that name none: `identity.txt` and `recipients.txt` in
//! `wattlock/` below `$XDG_CONFIG_HOME` or `~/.config`.
//!
//! Each use is told on standard error. They are never used beside a key that is given, by mount(8)'s helper, by a
//! program with more rights than its caller, or if the folder that the environment names is another user's (sudo that
//! keeps HOME). A file that others could have written, or a key that others can read, is refused, and not passed over
//! in silence.
//!
//! | must be | the identity | the recipients | each folder, from the one that the environment names on |
//! |---|---|---|---|
//! | owned by | this user | this user or root | this user or root |
//! | closed to others for | reading, writing | writing | writing |
//!
//! A symbolic link is judged by what it leads to, and by each folder on the way there ([`Way`]). What is judged is what
//! is read, and written into: the same descriptors.

mod way;

use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rustix::process::geteuid;
use wattlock_door::one_line;
use wattlock_files::Error;
use wattlock_files::keys::{self, BoxedIdentity, BoxedRecipient, FILE_MAX, Recipients};
use zeroize::Zeroizing;

use crate::ask::Terminal;
use crate::keys::{unlocked, within};
use crate::wrong::system;
use way::{SECRET, UNALTERED, Way};

/// The key's name.
pub const IDENTITY: &str = "identity.txt";
/// The recipients' name.
pub const RECIPIENTS: &str = "recipients.txt";

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
    /// The way from there to the folder.
    below: &'static str,
}

impl Place {
    fn here() -> Option<Place> {
        if wattlock::elevated() {
            return None;
        }
        let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        if let Some(base) = variable("XDG_CONFIG_HOME") {
            return Some(Place { base, below: "wattlock" });
        }
        Some(Place { base: variable("HOME")?, below: ".config/wattlock" })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.base.join(self.below).join(name)
    }

    /// Whether anything has the name of a file, or is a link on the way to it that leads nowhere: a mistake to be told.
    /// Without it, nothing is judged.
    fn may_have(&self, name: &str) -> bool {
        let mut path = self.base.clone();
        for part in Path::new(self.below).join(name).components() {
            path.push(part);
            match path.symlink_metadata() {
                Err(error) => return error.kind() != ErrorKind::NotFound,
                Ok(looked) if looked.is_symlink() && path.metadata().is_err() => return true,
                Ok(_) => {}
            }
        }
        true
    }

    fn is_ours(&self) -> bool {
        self.base.metadata().is_ok_and(|meta| meta.uid() == geteuid().as_raw())
    }
}

/// Where the default identity would be, in messages.
pub fn identity_place() -> String {
    match Place::here() {
        Some(place) if place.is_ours() => one_line(&place.path(IDENTITY)),
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

/// Whom the default identity opens for, as lines of a recipients file. None if its file does not tell: it is of SSH, of a
/// plugin, locked, or no identity.
pub fn recipients_of_identity() -> Result<Option<String>> {
    let Some(Found { content, .. }) = find(What::Identity)? else { return Ok(None) };
    let mut lines = Vec::new();
    let file = age::IdentityFile::from_buffer(&content[..]).ok();
    let written = file.and_then(|file| file.write_recipients_file(&mut lines).ok());
    Ok(written.and_then(|()| String::from_utf8(lines).ok()))
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
    let (name, closed) = match what {
        What::Identity => (IDENTITY, SECRET),
        What::Recipients => (RECIPIENTS, UNALTERED),
    };
    if !place.is_ours() {
        let path = place.path(name);
        if path.symlink_metadata().is_ok() {
            eprintln!(
                "wattlock: {} is not used: {} is another user's",
                one_line(&path),
                one_line(&place.base)
            );
        }
        return Ok(None);
    }
    if !place.may_have(name) {
        return Ok(None);
    }
    let mut way = Way::from(&place.base)?;
    if !way.enter(Path::new(place.below), false)? {
        return Ok(None);
    }
    let Some((file, path)) = way.open(name, closed)? else { return Ok(None) };
    let mut content = Zeroizing::new(Vec::new());
    let read = file.take(FILE_MAX as u64 + 1).read_to_end(&mut content);
    read.map_err(|source| system::<Error>(one_line(&path), source))?;
    Ok(Some(Found { path, content }))
}

/// Makes the folder for `keygen --default`, in which it writes [`IDENTITY`] and [`RECIPIENTS`].
pub fn make() -> Result<Way> {
    let Some(place) = Place::here().filter(Place::is_ours) else {
        let why = "neither XDG_CONFIG_HOME nor HOME names a folder of this user's: give -o FILE";
        return Err(crate::wrong::usage::<Error>(why).into());
    };
    let mut way = Way::from(&place.base)?;
    way.enter(Path::new(place.below), true)?;
    Ok(way)
}
