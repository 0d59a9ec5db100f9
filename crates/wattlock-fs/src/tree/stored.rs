//! Which stored names there are in a folder, and what they mean.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use wattlock_core::sync::lock;
use wattlock_core::{Data, Key, Kind, Request};
use wattlock_door::Crypto;

use super::second::is_record;
use super::{Entry, Folder, Listed, Tree};
use crate::Error;
use crate::beneath::{self, is_reserved};
use crate::store::JOURNAL;
use crate::{format, names, record, volume};

/// What the entry of a long name begins with.
pub(super) const LONG: &str = "wattlock.long.";

/// What follows the hash in the name of the file beside it.
pub(super) const SIDECAR: &str = ".name";

/// Symbols of a SHA-256 hash in base64url.
const HASH: usize = 43;

/// What a plain name that begins with our own prefix is stored with.
const PLAIN: &str = "wattlock.plain.";

/// Files of our own in the volume's own folder only.
const VOLUME: [&str; 3] = [volume::FILE, volume::KEYS, JOURNAL];

impl Tree {
    /// The stored name of `name` in a folder. Reads nothing. A copy that another program made of an entry is known by
    /// the name that it is shown by from the last listing of the folder, or [`Tree::copy`], on.
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
        if let Some(stored) = self.copies.get(folder, name) {
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
        let Survey { listed, foreign, .. } = self.survey(folder, stop, crypto)?;
        Ok((listed, foreign))
    }

    /// Everything in a folder, by what it is.
    ///
    /// # Errors
    /// As [`Tree::list_until`].
    pub fn survey(
        &self,
        folder: &Folder,
        stop: &dyn Fn() -> bool,
        crypto: &mut impl Crypto,
    ) -> Result<Survey, Error> {
        self.granted(&folder.fd, || self.survey_now(folder, stop, crypto))
    }

    fn survey_now(
        &self,
        folder: &Folder,
        stop: &dyn Fn() -> bool,
        crypto: &mut impl Crypto,
    ) -> Result<Survey, Error> {
        let failed = |error: Errno| Error::io("listing a folder", error);
        let (mut survey, mut unknown, mut unread) = (Survey::default(), Vec::new(), HashMap::new());
        let stamp = self.copies.stamp_to_list(&folder.fd);
        // A descriptor of a folder that was closed to reading when it was opened only names it.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = beneath::open(&folder.fd, ".", flags, Mode::empty()).and_then(Dir::new);
        for entry in opened.map_err(failed)? {
            let entry = entry.map_err(failed)?;
            go_on(stop)?;
            let stored = entry.file_name().to_bytes();
            if stored == b"." || stored == b".." {
                continue;
            }
            let stored = OsString::from_vec(stored.to_vec());
            let what = match self.stored(folder, &stored, crypto) {
                Err(error) if error.is_of_one() => {
                    unread.insert(stored.clone(), error);
                    Stored::Foreign
                }
                what => what?,
            };
            match what {
                Stored::Foreign => unknown.push(Seen { stored, inode: entry.ino(), kind: entry.file_type() }),
                Stored::Entry(name) => {
                    let seen = Seen { stored, inode: entry.ino(), kind: entry.file_type() };
                    survey.listed.extend(seen.shown(folder, name));
                }
                own => survey.own.push((stored, own)),
            }
        }
        let shown = self.survey_unknown(folder, (unknown, unread), &mut survey, stop, crypto)?;
        self.copies.found(folder.inode, stamp, shown);
        Ok(survey)
    }

    /// A copy that another program made of an entry, or an entry of another record of the folder, by the name that it is
    /// shown by: for a name under which [`Tree::entry`] has found nothing. Lists the folder if that was not done since
    /// somebody else changed it.
    ///
    /// # Errors
    /// [`Error::Engine`].
    pub fn copy(
        &self,
        folder: &Folder,
        name: &[u8],
        crypto: &mut impl Crypto,
    ) -> Result<Option<Entry>, Error> {
        if folder.key.is_none() {
            return Ok(None);
        }
        let before = self.copies.get(folder, name);
        if !self.copies.is_known(folder) {
            match self.survey(folder, &|| false, crypto) {
                // Of a folder that may not be listed no copy is known.
                Ok(_) | Err(Error::Io { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        match self.copies.get(folder, name) {
            Some(stored) => Ok(Some(Entry { stored, sidecar: None })),
            // What had the name is gone, so that an entry may have it.
            None if before.is_some() => self.entry(folder, name, crypto).map(Some),
            None => Ok(None),
        }
    }

    /// Whether a stored name is not an entry's own, so that the storage may have given it. Plain names tell nothing.
    ///
    /// # Errors
    /// [`Error::Engine`].
    pub fn may_be_copy(
        &self,
        folder: &Folder,
        stored: &OsStr,
        crypto: &mut impl Crypto,
    ) -> Result<bool, Error> {
        Ok(folder.key.is_some() && self.entry_name(folder, stored, crypto)?.is_none())
    }

    /// Says whether other programs change the volume's folders meanwhile.
    pub fn set_shared(&self, shared: bool) {
        self.copies.set_shared(shared);
    }

    /// What a stored name is to the folder's own key. Reads the file beside a long name.
    fn stored(&self, folder: &Folder, stored: &OsStr, crypto: &mut impl Crypto) -> Result<Stored, Error> {
        match own(stored.as_bytes()) {
            // Only its own folder has the volume's files: anywhere else they are another volume's.
            Some(_) if folder.inode != self.own_inode && is_of_volume(stored) => return Ok(Stored::Foreign),
            // What an entry of a long name was copied to may look like a copy of the file beside it.
            Some(Stored::OwnCopy)
                if beside_copy(stored.as_bytes()).is_some() && begins_as_ours(folder, stored) =>
            {
                return Ok(Stored::Foreign);
            }
            Some(own) => return Ok(own),
            // The copy's name need not begin with our prefix. Only if names are plain it may be a file's.
            None if folder.record.is_some() && is_record(stored) => return Ok(Stored::OwnCopy),
            None => {}
        }
        Ok(self.entry_name(folder, stored, crypto)?.map_or(Stored::Foreign, Stored::Entry))
    }

    /// Gives an entry of a long name the file beside it that has its sealed name.
    pub(crate) fn restore_beside(&self, folder: &Folder, entry: &OsStr, sealed: &[u8]) -> Result<(), Error> {
        self.may_write()?;
        let _held = lock(&self.long);
        let beside = OsString::from_vec([entry.as_bytes(), SIDECAR.as_bytes()].concat());
        self.granted(&folder.fd, || beneath::replace(&folder.fd, &beside, sealed, beneath::SHARED))
    }

    /// Whether what is [`Stored::Foreign`] is another program's: neither its name nor its beginning could be ours. What cannot
    /// be looked at is taken for ours. Hidden names are others' whatever is in them: programs that synchronise keep older
    /// files and unfinished ones of this very volume there.
    pub fn is_of_others(&self, folder: &Folder, stored: &OsStr) -> bool {
        if may_be_sealed(stored.as_bytes()) {
            return false;
        }
        stored.as_bytes().starts_with(b".") || !begins_as_ours(folder, stored)
    }

    /// The name that a stored name is shown by; `None` for what is none, and for what is known from a listing only.
    ///
    /// # Errors
    /// [`Error::Engine`].
    pub fn name(
        &self,
        folder: &Folder,
        stored: &OsStr,
        crypto: &mut impl Crypto,
    ) -> Result<Option<Vec<u8>>, Error> {
        if own(stored.as_bytes()).is_some() {
            return Ok(None);
        }
        let name = self.entry_name(folder, stored, crypto)?;
        Ok(name.or_else(|| self.copies.name(folder, stored)))
    }

    fn entry_name(
        &self,
        folder: &Folder,
        stored: &OsStr,
        crypto: &mut impl Crypto,
    ) -> Result<Option<Vec<u8>>, Error> {
        let bytes = stored.as_bytes();
        let Some(key) = &folder.key else {
            let plain = bytes.strip_prefix(PLAIN.as_bytes());
            return Ok(match plain.filter(|name| is_reserved(OsStr::from_bytes(name))) {
                Some(name) => Some(name.to_vec()),
                None => Some(bytes).filter(|_| !is_reserved(stored)).map(<[u8]>::to_vec),
            });
        };
        let sealed = sealed_name(folder, bytes, &[], crypto)?;
        sealed.map_or(Ok(None), |(sealed, _)| open_stored(key, bytes, &sealed, crypto))
    }
}

/// The sealed name of a stored one; of a long one from the file beside it, or the first of these copies of that file that
/// has it, and then it says so. `None` for what has none.
///
/// # Errors
/// [`Error::Io`] if one of those files is there and cannot be read, and no other has it; [`Error::Engine`].
pub(super) fn sealed_name(
    folder: &Folder,
    stored: &[u8],
    copies: &[OsString],
    crypto: &mut impl Crypto,
) -> Result<Option<(Vec<u8>, bool)>, Error> {
    let Some(wanted) = stored.strip_prefix(LONG.as_bytes()) else {
        return Ok(names::decode(stored).map(|sealed| (sealed, false)));
    };
    let own = OsString::from_vec([stored, SIDECAR.as_bytes()].concat());
    let mut unread = None;
    for beside in std::iter::once(&own).chain(copies) {
        match beneath::content(&folder.fd, beside, names::NAME_MAX + names::VECTOR) {
            Ok(Some(sealed)) if names::encode(&hash(&sealed, crypto)?).as_bytes() == wanted => {
                return Ok(Some((sealed, *beside != own)));
            }
            Ok(_) | Err(Error::Damaged(_)) => {}
            Err(error) if beneath::is_no_file(&error) => {}
            Err(error) => _ = unread.get_or_insert(error),
        }
    }
    unread.map_or(Ok(None), Err)
}

/// The name in the sealed form that a stored name has.
pub(super) fn open_stored(
    key: &Key,
    stored: &[u8],
    sealed: &[u8],
    crypto: &mut impl Crypto,
) -> Result<Option<Vec<u8>>, Error> {
    let most = if stored.starts_with(LONG.as_bytes()) { names::NAME_MAX } else { names::WHOLE_MAX };
    Ok(names::open_name(key, sealed, crypto)?.filter(|name| name.len() <= most))
}

/// One that a listing has.
pub(super) struct Seen {
    pub(super) stored: OsString,
    inode: u64,
    kind: FileType,
}

impl Seen {
    /// What it is shown as; `None` if the listing did not say what it is, and it is gone meanwhile. Of one that cannot be
    /// looked at the type stays unknown.
    pub(super) fn shown(self, folder: &Folder, name: Vec<u8>) -> Option<Listed> {
        let Seen { stored, inode, mut kind } = self;
        if kind == FileType::Unknown {
            match rustix::fs::statat(&folder.fd, &*stored, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(status) => kind = FileType::from_raw_mode(status.st_mode),
                Err(Errno::NOENT) => return None,
                Err(_) => {}
            }
        }
        Some(Listed { name, stored, inode, kind })
    }
}

/// Whether a folder, or the beginning of a file, could be ours. What cannot be looked at is taken for ours.
fn begins_as_ours(folder: &Folder, stored: &OsStr) -> bool {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let opened = match beneath::open(&folder.fd, stored, flags, Mode::empty()) {
        Ok(opened) => opened,
        // A link's target would tell nothing, and a socket has none.
        Err(error) => return !matches!(error, Errno::LOOP | Errno::NXIO),
    };
    match rustix::fs::fstat(&opened).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
        Ok(FileType::Directory) => record::is_in(&opened),
        Ok(FileType::RegularFile) => format::begins(&opened),
        Ok(_) => false,
        Err(_) => true,
    }
}

pub(super) fn go_on(stop: &dyn Fn() -> bool) -> Result<(), Error> {
    if stop() { Err(wattlock_door::Error::Interrupted.into()) } else { Ok(()) }
}

/// Said of what another program has put into a volume.
pub const OF_OTHERS: &str = "another program's, and not of this volume";
/// Said of an entry whose stored name does not open.
pub const NAMELESS: &str = "its name does not authenticate";

/// What a stored name is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored {
    /// An entry: its name in clear.
    Entry(Vec<u8>),
    /// A file of our own that is in use: the folder's record, the sealed name beside a long entry, the volume's files.
    Own,
    /// What another program made of such a file.
    OwnCopy,
    /// What a crash left of something that was being made or removed, and records that were replaced.
    Leftover,
    /// Anything else. Nobody with the folder's own key gave it this name.
    Foreign,
}

/// A folder, by what is in it.
#[derive(Debug, Default)]
pub struct Survey {
    /// Entries, those of other records of the folder, and copies of entries.
    pub listed: Vec<Listed>,
    /// What is shown by no name.
    pub foreign: Vec<OsString>,
    /// Files of our own, by stored name.
    pub own: Vec<(OsString, Stored)>,
    /// Other records of the folder that open, and how many names each does.
    pub records: Vec<(OsString, usize)>,
    /// Names and records of the folder that cannot be read, or are a newer program's, with why. What is shown by no name may
    /// have one.
    pub unread: Vec<(OsString, Error)>,
    /// Entries of long names whose sealed name only a copy of the file beside them has, with that name.
    pub beside: Vec<(OsString, Vec<u8>)>,
}

impl Survey {
    /// Files of our own that are of no use, with what they are: sealed names whose entry is gone, too. A record that opens
    /// names is of use.
    pub fn useless(&self) -> impl Iterator<Item = (&OsString, Stored)> {
        let there = self.listed.iter().map(|listed| &listed.stored).chain(&self.foreign);
        let needed: HashSet<Vec<u8>> = there.filter_map(|one| Some(long_copy(one.as_bytes())?.0)).collect();
        let orphan = move |stored: &OsString| {
            let entry = stored.as_bytes().strip_suffix(SIDECAR.as_bytes());
            entry.is_some_and(|entry| entry.starts_with(LONG.as_bytes()) && !needed.contains(entry))
        };
        self.own.iter().filter_map(move |(stored, what)| match what {
            Stored::Own if orphan(stored) => Some((stored, Stored::Leftover)),
            Stored::Own => None,
            Stored::OwnCopy if self.records.iter().any(|(record, opens)| record == stored && *opens > 0) => {
                None
            }
            useless => Some((stored, useless.clone())),
        })
    }
}

/// What a stored name is of a file of our own, which is no entry; `None` for anything else.
fn own(stored: &[u8]) -> Option<Stored> {
    let rest = stored.strip_prefix(volume::RESERVED.as_bytes())?;
    if stored.starts_with(PLAIN.as_bytes()) {
        return None;
    }
    let temporary = [&b"new."[..], b"gone.", b"bad."];
    if let Some(number) = temporary.iter().find_map(|what| rest.strip_prefix(*what)) {
        // As `beneath::temporary` makes them.
        let whole = number.len() == 16 && number.iter().all(u8::is_ascii_hexdigit);
        return Some(if whole { Stored::Leftover } else { Stored::OwnCopy });
    }
    if let Some(long) = stored.strip_prefix(LONG.as_bytes())
        && let Some(behind) = long.get(HASH..)
        && let Some(added) = added(behind, SIDECAR)
    {
        return Some(if added.is_empty() { Stored::Own } else { Stored::OwnCopy });
    }
    if long_copy(stored).is_some() {
        return None;
    }
    let mut own = [record::NAME].into_iter().chain(VOLUME);
    let added = own.find_map(|own| added(stored, own))?;
    Some(if added.is_empty() { Stored::Own } else { Stored::OwnCopy })
}

/// What another program added to a file's name, or in front of the extension of the name, for a copy of the file.
pub(super) fn added<'a>(stored: &'a [u8], name: &str) -> Option<&'a [u8]> {
    if let Some(behind) = stored.strip_prefix(name.as_bytes()) {
        return Some(behind);
    }
    let (stem, extension) = name.split_at(name.rfind('.')?);
    stored.strip_prefix(stem.as_bytes())?.strip_suffix(extension.as_bytes())
}

/// The stored name of a long entry, of whose sealed name beside it a stored name is that of a copy.
pub(super) fn beside_copy(stored: &[u8]) -> Option<Vec<u8>> {
    let hash = stored.strip_prefix(LONG.as_bytes())?.get(..HASH)?;
    let entry = [LONG.as_bytes(), hash].concat();
    let added = added(&stored[entry.len()..], SIDECAR)?;
    (hash.iter().all(is_symbol) && !added.is_empty()).then_some(entry)
}

/// The stored name of a long entry without what another program added to it, and what that is.
pub(super) fn long_copy(stored: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let stem = LONG.trim_end_matches('.').as_bytes();
    let rest = stored.strip_prefix(stem)?;
    let is_hash = |hash: &&[u8]| hash.len() == HASH && hash.iter().all(is_symbol);
    let behind = rest.strip_prefix(b".").and_then(|rest| Some((rest.get(..HASH)?, &rest[HASH..])));
    let within = || {
        let (added, hash) = rest.split_at(rest.len().checked_sub(HASH)?);
        Some((hash, added.strip_suffix(b".")?))
    };
    let (hash, added) = behind.filter(|(hash, _)| is_hash(hash)).or_else(within)?;
    is_hash(&hash).then(|| ([stem, b".", hash].concat(), added))
}

/// Of base64url.
pub(super) fn is_symbol(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

/// Whether a stored name is of a file of our own, which is no entry.
pub(crate) fn is_ours(stored: &[u8]) -> bool {
    matches!(own(stored), Some(Stored::Own | Stored::Leftover))
}

/// Whether a stored name is of a file of our own that goes with a folder below the volume's.
pub(super) fn goes_with_folder(stored: &OsStr) -> bool {
    is_ours(stored.as_bytes()) && !is_of_volume(stored)
}

pub(super) fn is_of_volume(stored: &OsStr) -> bool {
    long_copy(stored.as_bytes()).is_none() && VOLUME.iter().any(|own| added(stored.as_bytes(), own).is_some())
}

/// Whether a stored name may be of an entry whose names are sealed. Other names are other programs'.
pub(crate) fn may_be_sealed(stored: &[u8]) -> bool {
    long_copy(stored).is_some() || names::decode(stored).is_some_and(|sealed| sealed.len() > names::VECTOR)
}

fn hash(sealed: &[u8], crypto: &mut impl Crypto) -> Result<[u8; 32], Error> {
    let mut digest = [0; 32];
    let data = Data::Apart { from: sealed, to: &mut digest };
    crypto.run(&mut Request::new(Kind::Sha256, Key::none(), data))?;
    Ok(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_are_made_here_are_our_own() {
        let hash = "h".repeat(HASH);
        let own_names = ["wattlock.dir", "wattlock.fs", "wattlock.keys", "wattlock.journal"];
        for name in own_names {
            assert_eq!(own(name.as_bytes()), Some(Stored::Own), "{name}");
            for copy in [".sync-conflict-20261126-101112-ABCDEFG", " (Anna's conflicted copy)", "~", "2"] {
                assert_eq!(own(format!("{name}{copy}").as_bytes()), Some(Stored::OwnCopy), "{name}{copy}");
            }
        }
        let beside = format!("wattlock.long.{hash}.name");
        assert_eq!(own(beside.as_bytes()), Some(Stored::Own));
        assert_eq!(own(format!("{beside}~1").as_bytes()), Some(Stored::OwnCopy));
        for what in ["new", "gone", "bad"] {
            let name = beneath::temporary(what).unwrap();
            assert_eq!(own(name.as_bytes()), Some(Stored::Leftover), "{name}");
            assert_eq!(own(format!("{name} copy").as_bytes()), Some(Stored::OwnCopy));
        }
        for name in ["wattlock.sync-conflict-20261126-101112-ABCDEFG.dir", "wattlock. (copy).journal"] {
            assert_eq!(own(name.as_bytes()), Some(Stored::OwnCopy), "{name}");
        }
        let beside = format!("wattlock.long.{hash}.sync-conflict-20261126.name");
        assert_eq!(own(beside.as_bytes()), Some(Stored::OwnCopy));
        // Entries, copies of entries, and what others may have made.
        let long = [format!("wattlock.long.{hash}"), format!("wattlock.long.{hash} (copy)")];
        let others =
            ["wattlock.plain.wattlock.fs", "wattlock.notes", "wattlock.", "wattlock.long.short", "a", ""];
        for name in long.iter().map(String::as_str).chain(others) {
            assert_eq!(own(name.as_bytes()), None, "{name}");
        }
    }

    #[test]
    fn what_is_added_to_a_long_name_is_found_behind_it_and_within() {
        let entry = format!("wattlock.long.{}", "h".repeat(HASH)).into_bytes();
        let hash = "h".repeat(HASH);
        for (stored, added) in [
            (format!("wattlock.long.{hash} (copy)"), &b" (copy)"[..]),
            (format!("wattlock.long.{hash}~"), b"~"),
            (format!("wattlock.long.sync-conflict-2026.{hash}"), b".sync-conflict-2026"),
            (format!("wattlock.long (Anna's conflicted copy).{hash}"), b" (Anna's conflicted copy)"),
        ] {
            assert_eq!(long_copy(stored.as_bytes()), Some((entry.clone(), added)), "{stored}");
        }
        for stored in ["wattlock.long.short", "wattlock.long", "other", "wattlock.long.\u{e4}"] {
            assert_eq!(long_copy(stored.as_bytes()), None, "{stored}");
        }
    }
}
