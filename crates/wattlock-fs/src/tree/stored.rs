//! Which stored names there are in a folder, and what they mean.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use wattlock_core::sync::lock;
use wattlock_core::{Data, Key, Kind, Request};
use wattlock_door::Crypto;

use super::{Entry, Folder, Listed, Tree};
use crate::Error;
use crate::beneath::{self, is_reserved};
use crate::names;

/// What the entry of a long name begins with.
pub(super) const LONG: &str = "wattlock.long.";

/// What follows the hash in the name of the file beside it.
pub(super) const SIDECAR: &str = ".name";

/// Symbols of a SHA-256 hash in base64url.
const HASH: usize = 43;

/// What a plain name that begins with our own prefix is stored with.
const PLAIN: &str = "wattlock.plain.";

/// Copies by other programs that are remembered.
const COPIES_MAX: usize = 10_000;

impl Tree {
    /// The stored name of `name` in a folder. Reads nothing. A copy that another program made of an entry is known by
    /// its name from the last [`Tree::list`] on.
    ///
    /// # Errors
    /// [`Error::Io`] with `ENAMETOOLONG` above 255 bytes; `EINVAL` for what is no name.
    pub fn entry(&self, folder: &Folder, name: &[u8], crypto: &mut impl Crypto) -> Result<Entry, Error> {
        names::check(name)?;
        let Some(key) = &folder.key else {
            let mut stored = OsString::new();
            if is_reserved(OsStr::from_bytes(name)) {
                stored.push(PLAIN);
            }
            stored.push(OsStr::from_bytes(name));
            if stored.len() > names::NAME_MAX {
                return Err(Error::io("a name", Errno::NAMETOOLONG));
            }
            return Ok(Entry { stored, sidecar: None });
        };
        if let Some(stored) = self.copy(folder, name) {
            return Ok(Entry { stored, sidecar: None });
        }
        let sealed = names::seal_name(key, name, crypto)?;
        if name.len() <= names::WHOLE_MAX {
            return Ok(Entry { stored: names::encode(&sealed).into(), sidecar: None });
        }
        let stored = format!("{LONG}{}", names::encode(&hash(&sealed, crypto)?));
        let sidecar = Some((format!("{stored}{SIDECAR}").into(), sealed));
        Ok(Entry { stored: stored.into(), sidecar })
    }

    /// Lists a folder. Entries that do not open as names are in the second list.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn list(
        &self,
        folder: &Folder,
        crypto: &mut impl Crypto,
    ) -> Result<(Vec<Listed>, Vec<OsString>), Error> {
        self.list_until(folder, &|| false, crypto)
    }

    /// As [`Tree::list`], until `stop` says so.
    ///
    /// # Errors
    /// As [`Tree::list`]; [`wattlock_door::Error::Interrupted`].
    pub fn list_until(
        &self,
        folder: &Folder,
        stop: &dyn Fn() -> bool,
        crypto: &mut impl Crypto,
    ) -> Result<(Vec<Listed>, Vec<OsString>), Error> {
        self.granted(&folder.fd, || self.list_now(folder, stop, crypto))
    }

    fn list_now(
        &self,
        folder: &Folder,
        stop: &dyn Fn() -> bool,
        crypto: &mut impl Crypto,
    ) -> Result<(Vec<Listed>, Vec<OsString>), Error> {
        let failed = |error: Errno| Error::io("listing a folder", error);
        let (mut listed, mut foreign) = (Vec::new(), Vec::new());
        // A descriptor of a folder that was closed to reading when it was opened only names it.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = beneath::open(&folder.fd, ".", flags, Mode::empty()).and_then(Dir::new);
        for entry in opened.map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if stop() {
                return Err(wattlock_door::Error::Interrupted.into());
            }
            let stored = entry.file_name().to_bytes();
            if stored == b"." || stored == b".." || is_ours(stored) {
                continue;
            }
            let stored = OsString::from_vec(stored.to_vec());
            let name = match self.name(folder, &stored, crypto)? {
                Some(name) => Some(name),
                None => self.copied_name(folder, &stored, crypto)?,
            };
            let Some(name) = name else {
                foreign.push(stored);
                continue;
            };
            let mut kind = entry.file_type();
            if kind == FileType::Unknown {
                // Gone meanwhile is as good as never listed.
                let Ok(status) = rustix::fs::statat(&folder.fd, &*stored, AtFlags::SYMLINK_NOFOLLOW) else {
                    continue;
                };
                kind = FileType::from_raw_mode(status.st_mode);
            }
            listed.push(Listed { name, stored, inode: entry.ino(), kind });
        }
        Ok((listed, foreign))
    }

    /// The name of a stored name; `None` for what is none.
    ///
    /// # Errors
    /// [`Error::Engine`].
    pub fn name(
        &self,
        folder: &Folder,
        stored: &OsStr,
        crypto: &mut impl Crypto,
    ) -> Result<Option<Vec<u8>>, Error> {
        let bytes = stored.as_bytes();
        let Some(key) = &folder.key else {
            let plain =
                bytes.strip_prefix(PLAIN.as_bytes()).filter(|name| is_reserved(OsStr::from_bytes(name)));
            return Ok(match plain {
                Some(name) => Some(name.to_vec()),
                None => {
                    Some(bytes).filter(|bytes| !is_reserved(OsStr::from_bytes(bytes))).map(<[u8]>::to_vec)
                }
            });
        };
        let Some(wanted) = bytes.strip_prefix(LONG.as_bytes()) else {
            return match names::decode(bytes) {
                Some(sealed) => {
                    Ok(names::open_name(key, &sealed, crypto)?.filter(|name| name.len() <= names::WHOLE_MAX))
                }
                None => Ok(None),
            };
        };
        let beside = format!("{}{SIDECAR}", stored.to_string_lossy());
        let Ok(Some(sealed)) = beneath::content(&folder.fd, &beside, names::NAME_MAX + 16) else {
            return Ok(None);
        };
        if names::encode(&hash(&sealed, crypto)?).as_bytes() != wanted {
            return Ok(None);
        }
        names::open_name(key, &sealed, crypto)
    }

    /// What a copy is shown as whose stored name is that of an entry and something behind it, as programs that
    /// synchronise folders name conflicting copies: the entry's name with the same behind it. Contents do not depend on
    /// names, so a copy opens.
    pub(super) fn copied_name(
        &self,
        folder: &Folder,
        stored: &OsStr,
        crypto: &mut impl Crypto,
    ) -> Result<Option<Vec<u8>>, Error> {
        let bytes = stored.as_bytes();
        let symbol = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let end = bytes.iter().position(|byte| !symbol(byte)).unwrap_or(0);
        let (Some(key), Some(sealed)) = (&folder.key, names::decode(&bytes[..end])) else { return Ok(None) };
        let Some(mut name) = names::open_name(key, &sealed, crypto)? else { return Ok(None) };
        name.extend_from_slice(&bytes[end..]);
        if names::check(&name).is_err() {
            return Ok(None);
        }
        let mut copies = lock(&self.copies);
        if copies.len() < COPIES_MAX {
            copies.insert((folder.inode, name.clone()), stored.to_owned());
        }
        Ok(Some(name))
    }

    pub(super) fn copy(&self, folder: &Folder, name: &[u8]) -> Option<OsString> {
        let copies = lock(&self.copies);
        if copies.is_empty() { None } else { copies.get(&(folder.inode, name.to_vec())).cloned() }
    }

    /// A stored name is gone: the name may be given to something else.
    pub(super) fn forget_copy(&self, folder: &Folder, entry: &Entry) {
        lock(&self.copies).retain(|(inode, _), stored| *inode != folder.inode || *stored != entry.stored);
    }

    /// Names in a folder that are ours and mean nothing: what a crash left of a folder or a name that was being made or
    /// removed, and records that were replaced.
    pub(crate) fn leftovers(&self, folder: &Folder) -> Result<Vec<OsString>, Error> {
        let names = beneath::names(&folder.fd)?;
        let there = |name: &OsStr| names.iter().any(|one| one == name);
        let left = |name: &&OsString| {
            let bytes = name.as_bytes();
            let temporary = [&b"wattlock.new."[..], b"wattlock.gone.", b"wattlock.bad."];
            let beside =
                bytes.strip_suffix(SIDECAR.as_bytes()).filter(|entry| entry.starts_with(LONG.as_bytes()));
            temporary.iter().any(|what| bytes.starts_with(what))
                || beside.is_some_and(|entry| !there(OsStr::from_bytes(entry)))
        };
        Ok(names.iter().filter(left).cloned().collect())
    }
}

/// Whether a stored name is of a file of our own, which is no entry: anything reserved but entries of long names and
/// plain names that were moved out of our way.
pub(crate) fn is_ours(stored: &[u8]) -> bool {
    if !is_reserved(OsStr::from_bytes(stored)) {
        return false;
    }
    let long = stored.strip_prefix(LONG.as_bytes()).is_some_and(|rest| rest.len() == HASH);
    !long && !stored.starts_with(PLAIN.as_bytes())
}

fn hash(sealed: &[u8], crypto: &mut impl Crypto) -> Result<[u8; 32], Error> {
    let mut digest = [0; 32];
    let data = Data::Apart { from: sealed, to: &mut digest };
    crypto.run(&mut Request::new(Kind::Sha256, Key::none(), data))?;
    Ok(digest)
}
