//! Stream keys, wrapped for age recipients: entries on a [`Shelf`], which is a folder or a topic.
//!
//! An entry is durable before its key is used for the first time. Making one needs recipients and no identity.
//! Rewrapping admits and removes readers of everything that the key sealed, without touching a record; shredding
//! removes the entry, and with it the only way to those records.
//!
//! ```text
//! 0   8  magic      8b 77 61 74 74 6c 72 0a
//! 8   4  version    big-endian, 1; 2 for a signed entry
//! 12  4  n          bytes of the key file
//! 16  n  key file   a binary age v1 file whose content is the 32-byte stream key
//!     8  created    seconds since 1970
//!     2  t          bytes of the label
//!     t  label      what the key is for, UTF-8
//!     32 check      over all of the above but the key file, under the stream key
//!     96 signature  version 2: the signer's public key, and its signature
//! ```

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use subtle::ConstantTimeEq;
use wattlock_core::{Key, Kind};
use wattlock_door::{Crypto, short};
use wattlock_files::{Opener, Sealer};
use zeroize::Zeroizing;

use crate::error::{Error, io};
use crate::format::{FIXED_LEN, HEADER_MAX, expand};
use crate::record::{RecordSealer, StreamId, StreamKeys};
use crate::trust::{self, SIGNED_LEN, Signer, SignerName};

const MAGIC: [u8; 8] = [0x8b, b'w', b'a', b't', b't', b'l', b'r', 0x0a];
const VERSION: u32 = 1;
const SIGNED: u32 = 2;
const CHECK_LEN: usize = 32;
const CHECK_LABEL: &[u8] = b"wattlock record v1 entry\0";
/// Longest label.
const LABEL_MAX: usize = 1 << 10;
/// Longest entry.
pub const ENTRY_MAX: usize = HEADER_MAX + 8 + 2 + LABEL_MAX + CHECK_LEN + SIGNED_LEN;
const SUFFIX: &str = "key";

/// What an entry says without being opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key's name.
    pub id: StreamId,
    /// When it was made.
    pub created: SystemTime,
    /// What it is for.
    pub label: String,
    /// For how many recipients it is wrapped.
    pub recipients: usize,
    /// Whose signature it has.
    pub signer: Option<SignerName>,
}

/// Where entries are kept.
pub trait Shelf {
    /// The names of all entries, in any order.
    ///
    /// # Errors
    /// [`Error::Files`].
    fn names(&mut self) -> Result<Vec<StreamId>, Error>;

    /// The entry of a name, at most [`ENTRY_MAX`] bytes; nothing if there is none.
    ///
    /// # Errors
    /// [`Error::Files`], [`Error::BadEntry`].
    fn get(&mut self, id: StreamId) -> Result<Option<Vec<u8>>, Error>;

    /// Puts an entry in its place. It is durable when this returns.
    ///
    /// # Errors
    /// [`Error::Files`]. The former entry then still stands.
    fn put(&mut self, id: StreamId, bytes: &[u8]) -> Result<(), Error>;

    /// Removes an entry, and returns whether there was one.
    ///
    /// # Errors
    /// [`Error::Files`].
    fn remove(&mut self, id: StreamId) -> Result<bool, Error>;
}

/// An entry's parts.
struct Parts<'a> {
    key_file: &'a [u8],
    described: &'a [u8],
    check: &'a [u8],
    signed: &'a [u8],
}

/// Entries that are damaged or a newer program's.
pub type Unread = Vec<(StreamId, Error)>;

/// A number in an entry, if it is that long.
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).map(|word| word.try_into().map_or(0, u32::from_be_bytes))
}

impl Parts<'_> {
    fn parse(id: StreamId, bytes: &[u8]) -> Result<Parts<'_>, Error> {
        match word(bytes, 8).filter(|_| bytes.starts_with(&MAGIC)) {
            None | Some(VERSION | SIGNED) => Parts::of_known(bytes).map_err(|what| bad(id, what)),
            Some(version) => Err(Error::Newer(format!("version {version} of key entry {id}"))),
        }
    }

    /// Of a version that is known.
    fn of_known(bytes: &[u8]) -> Result<Parts<'_>, &'static str> {
        const SHORT: &str = "cut short";
        if bytes.get(..8) != Some(&MAGIC) {
            return Err("not a key entry");
        }
        let signed_len = if word(bytes, 8).ok_or(SHORT)? == SIGNED { SIGNED_LEN } else { 0 };
        let len = word(bytes, 12).ok_or(SHORT)? as usize;
        if len > HEADER_MAX - FIXED_LEN {
            return Err("key file above the limit");
        }
        let (key_file, rest) = bytes[FIXED_LEN..].split_at_checked(len).ok_or(SHORT)?;
        let label_len = rest.get(8..10).ok_or(SHORT)?;
        let described = 10 + usize::from(u16::from_be_bytes([label_len[0], label_len[1]]));
        let (described, rest) = rest.split_at_checked(described).ok_or(SHORT)?;
        let (check, signed) = rest.split_at_checked(CHECK_LEN).ok_or(SHORT)?;
        if signed.len() != signed_len {
            return Err(if signed.len() < signed_len { SHORT } else { "something follows its end" });
        }
        Ok(Parts { key_file, described, check, signed })
    }

    fn entry(&self, id: StreamId) -> Result<Entry, Error> {
        let seconds = self.described[..8].try_into().map_or(0, u64::from_be_bytes);
        let created = UNIX_EPOCH.checked_add(std::time::Duration::from_secs(seconds));
        let created = created.ok_or_else(|| bad(id, "its time"))?;
        let label = std::str::from_utf8(&self.described[10..]).map_err(|_| bad(id, "its label"))?.to_owned();
        let header = wattlock_files::format::age::parse_header(self.key_file);
        let header = header.map_err(|error| in_key_file(id, error))?;
        Ok(Entry { id, created, label, recipients: header.stanzas.len(), signer: self.signer(id)? })
    }

    /// Whose entry it is, its signature verified.
    fn signer(&self, id: StreamId) -> Result<Option<SignerName>, Error> {
        if self.signed.is_empty() {
            return Ok(None);
        }
        trust::verify(self.signed, id, self.described)
            .map(Some)
            .ok_or_else(|| bad(id, "its signature is wrong"))
    }
}

/// The check of an entry's description.
fn check(key: &[u8; 32], described: &[u8], crypto: &mut dyn Crypto) -> Result<[u8; CHECK_LEN], Error> {
    let mut digest = [0; 64];
    short(crypto, Kind::Sha512, Key::none(), (b"", b""), described, &mut digest)?;
    let mut check = [0; CHECK_LEN];
    expand(key, &[CHECK_LABEL, &digest].concat(), &mut check, crypto)?;
    Ok(check)
}

fn encode(
    key: &[u8; 32],
    described: &[u8],
    signed: &[u8],
    sealer: &Sealer,
    crypto: &mut dyn Crypto,
) -> Result<Vec<u8>, Error> {
    let key_file = sealer.wrap_key(key, crypto)?;
    let claimed = (FIXED_LEN + key_file.len()) as u64;
    if claimed > HEADER_MAX as u64 {
        let limit = HEADER_MAX as u64;
        return Err(wattlock_files::Error::HeaderTooLarge { claimed, limit }.into());
    }
    let len = (key_file.len() as u32).to_be_bytes();
    let check = check(key, described, crypto)?;
    let version = if signed.is_empty() { VERSION } else { SIGNED };
    Ok([&MAGIC[..], &version.to_be_bytes(), &len, &key_file, described, &check, signed].concat())
}

/// Entries, and whose are taken.
pub struct Keys<S> {
    shelf: S,
    trusted: Option<Vec<SignerName>>,
}

impl<S: Shelf> Keys<S> {
    /// Those on this shelf, of any maker.
    pub fn new(shelf: S) -> Keys<S> {
        Keys { shelf, trusted: None }
    }

    /// Opens no entry but those that one of these signed.
    #[must_use]
    pub fn trusting(self, signers: Vec<SignerName>) -> Keys<S> {
        Keys { trusted: Some(signers), ..self }
    }

    /// Where they are.
    pub fn shelf(&mut self) -> &mut S {
        &mut self.shelf
    }

    /// Makes a key for these recipients. When this returns, its entry is durable.
    ///
    /// # Errors
    /// [`Error::Files`]; a label above 1,024 bytes is one of usage.
    pub fn new_key(
        &mut self,
        label: &str,
        sealer: &Sealer,
        signer: Option<&Signer>,
        crypto: &mut dyn Crypto,
    ) -> Result<RecordSealer, Error> {
        if label.len() > LABEL_MAX {
            return Err(wattlock_door::Error::Usage("a label has at most 1024 bytes".into()).into());
        }
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut described = seconds.to_be_bytes().to_vec();
        described.extend_from_slice(&(label.len() as u16).to_be_bytes());
        described.extend_from_slice(label.as_bytes());
        let mut key = Zeroizing::new([0; 32]);
        wattlock_door::random(&mut key[..])?;
        let id = StreamId::of(&key, crypto)?;
        let signed = signer.map_or(Vec::new(), |signer| signer.sign(id, &described));
        let entry = encode(&key, &described, &signed, sealer, crypto)?;
        self.shelf.put(id, &entry)?;
        RecordSealer::new(key, crypto)
    }

    /// All entries, the oldest first, and beside them those that are damaged or a newer program's. No identity is
    /// needed; labels and times are verified only when a key is opened, or by a signature.
    ///
    /// # Errors
    /// [`Error::Files`].
    pub fn list(&mut self) -> Result<(Vec<Entry>, Unread), Error> {
        let (mut entries, mut damaged) = (Vec::new(), Vec::new());
        for id in self.shelf.names()? {
            let entry = self.shelf.get(id).and_then(|bytes| {
                let bytes = bytes.ok_or(Error::NoKey(id))?;
                Parts::parse(id, &bytes)?.entry(id)
            });
            match entry {
                Ok(entry) => entries.push(entry),
                Err(error @ (Error::BadEntry { .. } | Error::NoKey(_) | Error::Newer(_))) => {
                    damaged.push((id, error));
                }
                Err(error) => return Err(error),
            }
        }
        entries.sort_by_key(|entry| (entry.created, entry.id));
        Ok((entries, damaged))
    }

    /// The key of a name; nothing if there is no entry.
    ///
    /// # Errors
    /// [`Error::BadEntry`]; [`Error::Newer`]; [`Error::Untrusted`]; [`Error::Files`] if no identity opens it.
    pub fn find(
        &mut self,
        id: StreamId,
        opener: &Opener,
        crypto: &mut dyn Crypto,
    ) -> Result<Option<Zeroizing<[u8; 32]>>, Error> {
        let Some(bytes) = self.shelf.get(id)? else { return Ok(None) };
        let parts = Parts::parse(id, &bytes)?;
        let signer = parts.signer(id)?;
        if let Some(trusted) = &self.trusted
            && !signer.is_some_and(|signer| trusted.contains(&signer))
        {
            return Err(Error::Untrusted(id));
        }
        Ok(Some(verified(id, &parts, opener, crypto)?))
    }

    /// Wraps a key anew: from now on these recipients read what it sealed, and no others. A signature stays.
    ///
    /// # Errors
    /// [`Error::NoKey`], [`Error::BadEntry`], [`Error::Newer`], [`Error::Files`]. The entry is then unchanged.
    pub fn rewrap(
        &mut self,
        id: StreamId,
        opener: &Opener,
        sealer: &Sealer,
        crypto: &mut dyn Crypto,
    ) -> Result<(), Error> {
        let bytes = self.shelf.get(id)?.ok_or(Error::NoKey(id))?;
        let parts = Parts::parse(id, &bytes)?;
        let key = verified(id, &parts, opener, crypto)?;
        let entry = encode(&key, parts.described, parts.signed, sealer, crypto)?;
        self.shelf.put(id, &entry)
    }

    /// Removes an entry. Copies in backups, and what the medium keeps of a removed file or record, are beyond it.
    ///
    /// # Errors
    /// [`Error::NoKey`], [`Error::Files`].
    pub fn shred(&mut self, id: StreamId) -> Result<(), Error> {
        if self.shelf.remove(id)? { Ok(()) } else { Err(Error::NoKey(id)) }
    }
}

/// The key of an entry, which is the one of its name and was described as it says.
fn verified(
    id: StreamId,
    parts: &Parts<'_>,
    opener: &Opener,
    crypto: &mut dyn Crypto,
) -> Result<Zeroizing<[u8; 32]>, Error> {
    let key = opener.input_key(parts.key_file, crypto).map_err(|error| in_key_file(id, error))?;
    if StreamId::of(&key, crypto)? != id {
        return Err(bad(id, "holds another key"));
    }
    if !bool::from(check(&key, parts.described, crypto)?.ct_eq(parts.check)) {
        return Err(bad(id, "its label or time was altered"));
    }
    Ok(key)
}

/// What is wrong with an entry whose key file does not open. Check and signature do not cover the key file, so its
/// damage shows here first; only what is no fault of the entry stays what it is.
fn in_key_file(id: StreamId, error: wattlock_files::Error) -> Error {
    use wattlock_files::Error as Of;
    match error {
        Of::BadHeader(_)
        | Of::HeaderTooLarge { .. }
        | Of::Empty
        | Of::NotSealed
        | Of::Truncated
        | Of::WrongKey
        | Of::ExcessiveWork { .. } => bad(id, "its key file is damaged"),
        Of::UnknownVersion { version, .. } => {
            Error::Newer(format!("version {version} of the key file in key entry {id}"))
        }
        error => error.into(),
    }
}

fn bad(id: StreamId, what: &'static str) -> Error {
    Error::BadEntry { name: id.to_string(), what }
}

/// A folder of entries: one file for each.
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// This folder, which is made if it is not there.
    ///
    /// # Errors
    /// [`Error::Files`].
    pub fn create(path: &Path) -> Result<Folder, Error> {
        fs::create_dir_all(path).map_err(|error| io("making the folder of keys", error))?;
        Folder::open(path)
    }

    /// This folder.
    ///
    /// # Errors
    /// [`Error::Files`] if it is not there.
    pub fn open(path: &Path) -> Result<Folder, Error> {
        match fs::metadata(path) {
            Ok(meta) if meta.is_dir() => Ok(Folder { path: path.to_owned() }),
            Ok(_) => Err(io("opening the folder of keys", io::Error::from(io::ErrorKind::NotADirectory))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(wattlock_door::Error::NotFound(path.to_owned()).into())
            }
            Err(error) => Err(io("opening the folder of keys", error)),
        }
    }

    fn file(&self, id: StreamId) -> PathBuf {
        self.path.join(format!("{id}.{SUFFIX}"))
    }

    fn sync(&self) -> Result<(), Error> {
        let synced = File::open(&self.path).and_then(|folder| folder.sync_all());
        synced.map_err(|error| io("writing the folder of keys", error))
    }
}

impl Shelf for Folder {
    fn names(&mut self) -> Result<Vec<StreamId>, Error> {
        let mut names = Vec::new();
        for file in fs::read_dir(&self.path).map_err(|error| io("reading the folder of keys", error))? {
            let path = file.map_err(|error| io("reading the folder of keys", error))?.path();
            let named = path.extension().is_some_and(|suffix| suffix == SUFFIX);
            names.extend(
                path.file_stem().and_then(|stem| stem.to_str()?.parse::<StreamId>().ok()).filter(|_| named),
            );
        }
        Ok(names)
    }

    fn get(&mut self, id: StreamId) -> Result<Option<Vec<u8>>, Error> {
        let file = match File::open(self.file(id)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io("opening a key entry", error)),
        };
        let mut bytes = Vec::new();
        let read = file.take(ENTRY_MAX as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|error| io("reading a key entry", error))?;
        if bytes.len() > ENTRY_MAX {
            return Err(bad(id, "too long"));
        }
        Ok(Some(bytes))
    }

    /// Whole and on the disk, or not at all.
    fn put(&mut self, id: StreamId, bytes: &[u8]) -> Result<(), Error> {
        let unfinished = self.path.join(format!(".{id}.{}", std::process::id()));
        let write = || {
            let mut file = File::options().write(true).create_new(true).mode(0o644).open(&unfinished)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&unfinished, self.file(id))
        };
        if let Err(error) = write() {
            let _ = fs::remove_file(&unfinished);
            return Err(wattlock_files::Error::writing(error).into());
        }
        self.sync()
    }

    fn remove(&mut self, id: StreamId) -> Result<bool, Error> {
        match fs::remove_file(self.file(id)) {
            Ok(()) => self.sync().map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(io("removing a key", error)),
        }
    }
}

/// Entries and the identities that open them.
pub struct Unlocked<S> {
    /// The entries.
    pub keys: Keys<S>,
    /// What opens them.
    pub opener: Opener,
}

impl<S: Shelf> StreamKeys for Unlocked<S> {
    fn find(&mut self, id: StreamId, crypto: &mut dyn Crypto) -> Result<Option<Zeroizing<[u8; 32]>>, Error> {
        self.keys.find(id, &self.opener, crypto)
    }
}
