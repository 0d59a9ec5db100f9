//! Copies that programs which synchronise folders made of a folder's record. Two machines that make one folder give it two
//! keys; such a program keeps both records, one under another name, and the entries of both.
//!
//! Any record that authenticates opens names. The folder's own seals new ones, and its entries have their names before
//! those of others. If it is lost, the first copy that authenticates is taken for it. A folder without a copy of its
//! record costs nothing: copies are known from a listing, and looked for only if the own record does not open.
//!
//! Hostile storage can lay another folder's record beside one, and entries of that folder: their names are shown. It cannot
//! give them other names, nor take a name from an entry of the folder.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use wattlock_core::sync::lock;
use wattlock_core::{Algorithm, Key};
use wattlock_door::Crypto;

use super::rights::names_in;
use super::stored::{added, beside_copy, long_copy};
use super::{Folder, Tree};
use crate::Error;
use crate::beneath;
use crate::names;
use crate::record::{self, Record};

/// Copies of one folder's record that are tried.
const TRIED: usize = 16;

/// A record beside the folder's own, with another key.
pub(super) struct Second {
    /// Its stored name.
    pub(super) stored: OsString,
    /// What another program added to the record's name.
    pub(super) added: Vec<u8>,
    pub(super) key: Key,
}

/// Whether a stored name is that of a folder's record, or of a copy that another program made of it.
pub fn is_record(stored: &OsStr) -> bool {
    stored == record::NAME || added_to_record(stored).is_some()
}

/// What another program added to the name of a folder's record, for a copy of it. A copy of a long entry may end like one.
fn added_to_record(stored: &OsStr) -> Option<&[u8]> {
    let added = added(stored.as_bytes(), record::NAME)?;
    Some(added).filter(|added| !added.is_empty() && long_copy(stored.as_bytes()).is_none())
}

/// The names of copies of the record, as many as are tried, in an order that is the same each time.
fn copies_among<'a>(names: impl Iterator<Item = &'a OsString>) -> Vec<&'a OsString> {
    let mut copies: Vec<_> = names.filter(|name| added_to_record(name).is_some()).collect();
    copies.sort();
    copies.truncate(TRIED);
    copies
}

/// Stored names of what could not be read, and why.
pub(super) type Unread = Vec<(OsString, Error)>;

impl Tree {
    /// The record of that name, if it opens.
    ///
    /// # Errors
    /// [`Error::Newer`] for one of an unknown version; [`Error::Io`] for one that cannot be read; [`Error::Engine`].
    fn try_record(
        &self,
        fd: &OwnedFd,
        stored: &OsStr,
        crypto: &mut impl Crypto,
    ) -> Result<Option<(Record, Vec<u8>)>, Error> {
        let content = match self.granted(fd, || beneath::content(fd, stored, record::LEN)) {
            Ok(Some(content)) => content,
            Ok(None) | Err(Error::Damaged(_)) => return Ok(None),
            Err(error) if beneath::is_no_file(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        match self.open_record(content, crypto) {
            Ok(opened) => Ok(Some(opened)),
            Err(Error::Damaged(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The first copy of a folder's record that opens, to be asked for if the record does not.
    ///
    /// # Errors
    /// If none opens, why one of them could not be looked at: it may be the one.
    pub(super) fn good_copy(
        &self,
        fd: &OwnedFd,
        crypto: &mut impl Crypto,
    ) -> Result<Option<(Record, Vec<u8>)>, Error> {
        let names = self.granted(fd, || names_in(fd))?;
        let mut unread = None;
        for stored in copies_among(names.iter()) {
            match self.try_record(fd, stored, crypto) {
                Ok(Some(good)) => return Ok(Some(good)),
                Ok(None) => {}
                Err(error) => _ = unread.get_or_insert(error),
            }
        }
        unread.map_or(Ok(None), Err)
    }

    /// The other keys of a folder in which these files of our own were seen, and those of them that may have more. Reads
    /// nothing if no copy of a record is among them.
    pub(super) fn seconds<'a>(
        &self,
        folder: &Folder,
        own: impl Iterator<Item = &'a OsString>,
        crypto: &mut impl Crypto,
    ) -> Result<(Vec<Second>, Unread), Error> {
        let (mut ids, mut seconds, mut unread) = (vec![folder.record], Vec::new(), Vec::new());
        let copies = if folder.record.is_some() { copies_among(own) } else { Vec::new() };
        let record = OsString::from(record::NAME);
        // Another program may have put another record in the place of the one that the folder was opened with.
        let all = (!copies.is_empty()).then_some(&record).into_iter().chain(copies);
        for stored in all {
            let record = match self.try_record(&folder.fd, stored, crypto) {
                Ok(Some((record, _))) => record,
                Ok(None) => continue,
                Err(error) if error.is_of_one() => {
                    unread.push((stored.clone(), error));
                    continue;
                }
                Err(error) => return Err(error),
            };
            if !ids.contains(&Some(record.id)) {
                ids.push(Some(record.id));
                let added = added_to_record(stored).unwrap_or(record::NAME.as_bytes()).to_vec();
                let key = Key::symmetric(Algorithm::Aes256Siv, &record.key[..])?;
                seconds.push(Second { stored: stored.clone(), added, key });
            }
        }
        Ok((seconds, unread))
    }

    /// Puts the copy that opened a folder in the place of its lost record, which stays beside it. Until that is done the
    /// copy opens the folder, and it stays.
    pub(crate) fn restore_record(&self, folder: &Folder, crypto: &mut impl Crypto) -> Result<(), Error> {
        self.may_write()?;
        let lost = || Error::Damaged("folder record: its copy is gone".into());
        let (_, copy) = self.good_copy(&folder.fd, crypto)?.ok_or_else(lost)?;
        self.granted(&folder.fd, || {
            keep_bad(&folder.fd)?;
            beneath::replace(&folder.fd, record::NAME, &copy, beneath::SHARED)
        })
    }

    /// The bytes that a record of the folder was sealed as, if its version byte was altered since.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Engine`].
    pub(crate) fn altered_record(
        &self,
        folder: &Folder,
        stored: &OsStr,
        crypto: &mut impl Crypto,
    ) -> Result<Option<Vec<u8>>, Error> {
        if folder.record.is_none() {
            return Ok(None);
        }
        let content = self.granted(&folder.fd, || beneath::content(&folder.fd, stored, record::LEN))?;
        content.map_or(Ok(None), |content| record::restored(&content, &self.masters(), crypto))
    }

    /// Puts such bytes in the record's place.
    pub(crate) fn restore_version(&self, folder: &Folder, stored: &OsStr, whole: &[u8]) -> Result<(), Error> {
        self.may_write()?;
        self.granted(&folder.fd, || beneath::replace(&folder.fd, stored, whole, beneath::SHARED))
    }

    /// Seals a copy of a folder's record under the newest key; says whether it had to. One that does not open keeps no key
    /// in use, nor does one of an unknown version beside a record that opens: whoever has the storage could lay such a
    /// one there against each rotation.
    pub(crate) fn rotate_copy(
        &self,
        folder: &Folder,
        stored: &OsStr,
        crypto: &mut impl Crypto,
    ) -> Result<bool, Error> {
        let content = match self.try_record(&folder.fd, stored, crypto) {
            Ok(Some((_, content))) => content,
            Ok(None) => return Ok(false),
            Err(error @ Error::Newer(_)) if folder.lost.is_none() => {
                let stored = wattlock_door::one_line(std::path::Path::new(stored));
                let line = format!("folder with inode {}: [{stored}] keeps its key: {error}", folder.inode.1);
                lock(&self.notes).push(line);
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        let Some(sealed) = self.reseal(&content, crypto)? else { return Ok(false) };
        self.may_write()?;
        let replace = || beneath::replace(&folder.fd, stored, &sealed, beneath::SHARED);
        self.granted(&folder.fd, replace).map(|()| true)
    }
}

/// Moves what has the name of a folder's record to another one.
pub(super) fn keep_bad(fd: &OwnedFd) -> Result<(), Error> {
    match rustix::fs::renameat(fd, record::NAME, fd, &*beneath::temporary("bad")?) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(Error::io("keeping a damaged record", error)),
    }
}

/// Whether a file is what its name says that it is, a copy of a folder's record or of the sealed name beside a long one: of
/// no use without entries.
///
/// # Errors
/// `EACCES` for a folder that its owner closed.
pub(super) fn goes_without_entries(folder: &OwnedFd, stored: &OsStr) -> Result<bool, Error> {
    let record = added_to_record(stored).is_some();
    if !record && beside_copy(stored.as_bytes()).is_none() {
        return Ok(false);
    }
    let longest = names::VECTOR + names::NAME_MAX;
    match beneath::content(folder, stored, longest) {
        Ok(Some(content)) if record => Ok(record::looks_like(&content)),
        Ok(content) => Ok(content.is_some_and(|sealed| sealed.len() > names::VECTOR + names::WHOLE_MAX)),
        Err(error) if error.errno() == Errno::ACCESS.raw_os_error() => Err(error),
        Err(_) => Ok(false),
    }
}
