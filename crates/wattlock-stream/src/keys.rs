//! Stream keys in a folder: one file for each, wrapped for age recipients.
//!
//! An entry is on the disk before its key is used for the first time. Making one needs recipients and no identity.
//! Rewrapping admits and removes readers of everything that the key sealed, without touching a record; shredding
//! removes the entry, and with it the only way to those records.
//!
//! ```text
//! 0   8  magic      8b 77 61 74 74 6c 72 0a
//! 8   4  version    big-endian, 1
//! 12  4  n          bytes of the key file
//! 16  n  key file   a binary age v1 file whose content is the 32-byte stream key
//!     8  created    seconds since 1970
//!     2  t          bytes of the label
//!     t  label      what the key is for, UTF-8
//!     32 check      over all of the above but the key file, under the stream key
//! ```

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use subtle::ConstantTimeEq;
use wattlock_core::{Key, Kind};
use wattlock_files::{Crypto, Opener, Sealer, short};
use zeroize::Zeroizing;

use crate::error::{Error, io};
use crate::format::{FIXED_LEN, HEADER_MAX, expand};
use crate::record::{RecordSealer, StreamId, StreamKeys};

const MAGIC: [u8; 8] = [0x8b, b'w', b'a', b't', b't', b'l', b'r', 0x0a];
const VERSION: u32 = 1;
const CHECK_LEN: usize = 32;
const CHECK_LABEL: &[u8] = b"wattlock record v1 entry\0";
/// Longest label.
const LABEL_MAX: usize = 1 << 10;
const ENTRY_MAX: usize = HEADER_MAX + 8 + 2 + LABEL_MAX + CHECK_LEN;
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
}

/// A folder of entries.
pub struct Folder {
    path: PathBuf,
}

/// An entry's parts.
struct Parts<'a> {
    key_file: &'a [u8],
    described: &'a [u8],
    check: &'a [u8],
}

impl Parts<'_> {
    fn parse(bytes: &[u8]) -> Result<Parts<'_>, &'static str> {
        const SHORT: &str = "cut short";
        let word =
            |at: usize| bytes.get(at..at + 4).map(|word| word.try_into().map_or(0, u32::from_be_bytes));
        if bytes.get(..8) != Some(&MAGIC) {
            return Err("not a key entry");
        }
        if word(8).ok_or(SHORT)? != VERSION {
            return Err("unknown version");
        }
        let len = word(12).ok_or(SHORT)? as usize;
        if len > HEADER_MAX - FIXED_LEN {
            return Err("key file above the limit");
        }
        let (key_file, rest) = bytes[FIXED_LEN..].split_at_checked(len).ok_or(SHORT)?;
        let label_len = rest.get(8..10).ok_or(SHORT)?;
        let described = 10 + usize::from(u16::from_be_bytes([label_len[0], label_len[1]]));
        let (described, check) = rest.split_at_checked(described).ok_or(SHORT)?;
        if check.len() != CHECK_LEN {
            return Err(if check.len() < CHECK_LEN { SHORT } else { "something follows its end" });
        }
        Ok(Parts { key_file, described, check })
    }

    fn entry(&self, id: StreamId) -> Result<Entry, &'static str> {
        let seconds = self.described[..8].try_into().map_or(0, u64::from_be_bytes);
        let created = UNIX_EPOCH.checked_add(std::time::Duration::from_secs(seconds)).ok_or("its time")?;
        let label = std::str::from_utf8(&self.described[10..]).map_err(|_| "its label")?.to_owned();
        let header = wattlock_files::format::age::parse_header(self.key_file).map_err(|_| "its key file")?;
        Ok(Entry { id, created, label, recipients: header.stanzas.len() })
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
    Ok([&MAGIC[..], &VERSION.to_be_bytes(), &len, &key_file, described, &check].concat())
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
                Err(wattlock_files::Error::NotFound(path.to_owned()).into())
            }
            Err(error) => Err(io("opening the folder of keys", error)),
        }
    }

    /// Makes a key for these recipients. When this returns, its entry has reached the disk.
    ///
    /// # Errors
    /// [`Error::Files`]; a label above 1,024 bytes is one of usage.
    pub fn new_key(
        &self,
        label: &str,
        sealer: &Sealer,
        crypto: &mut dyn Crypto,
    ) -> Result<RecordSealer, Error> {
        if label.len() > LABEL_MAX {
            return Err(wattlock_files::Error::Usage("a label has at most 1024 bytes".into()).into());
        }
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut described = seconds.to_be_bytes().to_vec();
        described.extend_from_slice(&(label.len() as u16).to_be_bytes());
        described.extend_from_slice(label.as_bytes());
        let mut key = Zeroizing::new([0; 32]);
        wattlock_files::random(&mut key[..])?;
        let entry = encode(&key, &described, sealer, crypto)?;
        let made = RecordSealer::new(key, crypto)?;
        self.put(made.id(), &entry)?;
        Ok(made)
    }

    /// All entries, the oldest first, and beside them what is damaged. No identity is needed; labels and times are
    /// verified only when a key is opened.
    ///
    /// # Errors
    /// [`Error::Files`].
    pub fn list(&self) -> Result<(Vec<Entry>, Vec<Error>), Error> {
        let (mut entries, mut damaged) = (Vec::new(), Vec::new());
        for file in fs::read_dir(&self.path).map_err(|error| io("reading the folder of keys", error))? {
            let path = file.map_err(|error| io("reading the folder of keys", error))?.path();
            let named = path.extension().is_some_and(|suffix| suffix == SUFFIX);
            let id = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok()).filter(|_| named);
            let Some(id) = id else { continue };
            let entry = self.read(id)?.ok_or(Error::NoKey(id)).and_then(|bytes| {
                let entry = Parts::parse(&bytes).and_then(|parts| parts.entry(id));
                entry.map_err(|what| bad(id, what))
            });
            match entry {
                Ok(entry) => entries.push(entry),
                Err(error) => damaged.push(error),
            }
        }
        entries.sort_by_key(|entry| (entry.created, entry.id));
        Ok((entries, damaged))
    }

    /// The key of a name; nothing if there is no entry.
    ///
    /// # Errors
    /// [`Error::BadEntry`]; [`Error::Files`] if no identity opens it.
    pub fn find(
        &self,
        id: StreamId,
        opener: &Opener,
        crypto: &mut dyn Crypto,
    ) -> Result<Option<Zeroizing<[u8; 32]>>, Error> {
        let Some(bytes) = self.read(id)? else { return Ok(None) };
        Ok(Some(self.verified(id, &bytes, opener, crypto)?.0))
    }

    /// The key of an entry, and its description, both verified.
    fn verified(
        &self,
        id: StreamId,
        bytes: &[u8],
        opener: &Opener,
        crypto: &mut dyn Crypto,
    ) -> Result<(Zeroizing<[u8; 32]>, Vec<u8>), Error> {
        let parts = Parts::parse(bytes).map_err(|what| bad(id, what))?;
        let key = opener.input_key(parts.key_file, crypto)?;
        if StreamId::of(&key, crypto)? != id {
            return Err(bad(id, "holds another key"));
        }
        if !bool::from(check(&key, parts.described, crypto)?.ct_eq(parts.check)) {
            return Err(bad(id, "its label or time was altered"));
        }
        Ok((key, parts.described.to_vec()))
    }

    /// Wraps a key anew: from now on these recipients read what it sealed, and no others.
    ///
    /// # Errors
    /// [`Error::NoKey`], [`Error::BadEntry`], [`Error::Files`]. The entry is then unchanged.
    pub fn rewrap(
        &self,
        id: StreamId,
        opener: &Opener,
        sealer: &Sealer,
        crypto: &mut dyn Crypto,
    ) -> Result<(), Error> {
        let bytes = self.read(id)?.ok_or(Error::NoKey(id))?;
        let (key, described) = self.verified(id, &bytes, opener, crypto)?;
        let entry = encode(&key, &described, sealer, crypto)?;
        self.put(id, &entry)
    }

    /// Removes an entry. Copies in backups, and what the medium keeps of a removed file, are beyond it.
    ///
    /// # Errors
    /// [`Error::NoKey`], [`Error::Files`].
    pub fn shred(&self, id: StreamId) -> Result<(), Error> {
        match fs::remove_file(self.file(id)) {
            Ok(()) => self.sync(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::NoKey(id)),
            Err(error) => Err(io("removing a key", error)),
        }
    }

    fn file(&self, id: StreamId) -> PathBuf {
        self.path.join(format!("{id}.{SUFFIX}"))
    }

    fn read(&self, id: StreamId) -> Result<Option<Vec<u8>>, Error> {
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

    /// Puts an entry in its place, whole and on the disk, or not at all.
    fn put(&self, id: StreamId, bytes: &[u8]) -> Result<(), Error> {
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

    fn sync(&self) -> Result<(), Error> {
        let synced = File::open(&self.path).and_then(|folder| folder.sync_all());
        synced.map_err(|error| io("writing the folder of keys", error))
    }
}

fn bad(id: StreamId, what: &'static str) -> Error {
    Error::BadEntry { name: id.to_string(), what }
}

/// A folder and the identities that open its keys.
pub struct Unlocked {
    /// The folder.
    pub folder: Folder,
    /// What opens its entries.
    pub opener: Opener,
}

impl StreamKeys for Unlocked {
    fn find(&mut self, id: StreamId, crypto: &mut dyn Crypto) -> Result<Option<Zeroizing<[u8; 32]>>, Error> {
        self.folder.find(id, &self.opener, crypto)
    }
}
