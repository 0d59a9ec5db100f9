//! A volume's key and settings: the sealed file `wattlock.fs`.
//!
//! The file is sealed to every opener's recipient, so whatever `wattlock open` can use opens a volume: keys of age, SSH
//! keys, plugins. A passphrase is an opener whose identity lies beside it in `wattlock.keys/NAME`, locked with the
//! passphrase as `age -p` locks one. Each change replaces whole files, never a part of one.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use wattlock_core::{Algorithm, Data, Key, Kind, Request};
use wattlock_door::{Crypto, CryptoSource};
use wattlock_files::age::Callbacks;
use wattlock_files::age::secrecy::{ExposeSecret, SecretString};
use wattlock_files::keys::{self, LOCKED_MAX, LOCKED_WORK_FACTOR_LIMIT, LockedIdentity, Recipients};
use wattlock_files::{Format, Opener as Unlock, Sealer};
use zeroize::Zeroizing;

use crate::Error;
use crate::beneath;

/// The sealed file.
pub const FILE: &str = "wattlock.fs";
/// The folder of locked identities.
pub const KEYS: &str = "wattlock.keys";
/// What the names of our own files begin with.
pub const RESERVED: &str = "wattlock.";
/// What an unfinished file of [`beneath::replace`] begins with.
const UNFINISHED: &str = "wattlock.new.";
/// The content's first line.
const FIRST: &str = "wattlock volume ";
/// The version of the format that this crate reads and writes.
pub const VERSION: &str = "1";
/// Longest content accepted, in bytes: some thousands of openers and of keys.
const CONTENT_MAX: usize = 1 << 20;
/// Most locked identities that are tried with a passphrase: with the largest work factor they take two minutes. One less
/// can be added, so that a passphrase can be changed.
const LOCKED_COUNT: usize = 64;
/// Most entries that the folder of locked identities may have, whatever they are.
const ENTRIES_MAX: usize = 4096;
/// The name of a volume's first passphrase, which is tried first.
pub const FIRST_PASSPHRASE: &str = "passphrase";

/// How names are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NameMode {
    /// Sealed under a key of each folder.
    #[default]
    PerFolder,
    /// Sealed under one key of the volume: equal names look equal.
    Deterministic,
    /// In clear.
    Plain,
}

impl NameMode {
    const ALL: [(NameMode, &str); 3] = [
        (NameMode::PerFolder, "folder"),
        (NameMode::Deterministic, "deterministic"),
        (NameMode::Plain, "plain"),
    ];

    /// The word for it.
    pub fn word(self) -> &'static str {
        NameMode::ALL.iter().find(|(mode, _)| *mode == self).map_or("", |(_, word)| word)
    }

    /// The mode of a word.
    pub fn from_word(word: &str) -> Option<NameMode> {
        NameMode::ALL.iter().find(|(_, known)| *known == word).map(|(mode, _)| *mode)
    }
}

/// Somebody or something that can open a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opener {
    /// 1 to 64 of letters, digits, `_`, `.` and `-`.
    pub name: String,
    /// Whether its identity is in [`KEYS`], locked with a passphrase.
    pub passphrase: bool,
    /// The recipient, as text.
    pub recipient: String,
}

/// What `wattlock.fs` contains.
#[derive(Clone)]
pub struct Volume {
    /// Random, for life.
    pub id: [u8; 16],
    /// Bytes of content in a chunk: 4096, 16384, 65536 or 262144.
    pub chunk: usize,
    /// How names are stored.
    pub names: NameMode,
    /// What can open it, in the order of addition.
    pub openers: Vec<Opener>,
    /// Volume keys by generation, ascending; the last seals new files.
    pub keys: Vec<(u32, Zeroizing<[u8; 32]>)>,
    /// What the keys of names, links and attributes derive from; rotation keeps it.
    pub secret: Zeroizing<[u8; 32]>,
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Volume")
            .field("chunk", &self.chunk)
            .field("names", &self.names)
            .field("openers", &self.openers)
            .field("generation", &self.generation())
            .finish_non_exhaustive()
    }
}

/// Chunk sizes that a volume can have.
pub const CHUNKS: [usize; 4] = [4096, 16_384, 65_536, 262_144];

impl Volume {
    /// A new volume with fresh keys and no opener.
    ///
    /// # Errors
    /// [`Error::Usage`] for a chunk size that is none of [`CHUNKS`]; [`Error::Io`] if the kernel has no randomness.
    pub fn generate(chunk: usize, names: NameMode) -> Result<Volume, Error> {
        if !CHUNKS.contains(&chunk) {
            return Err(Error::Usage(format!("a chunk has {CHUNKS:?} bytes")));
        }
        let (mut key, mut secret, mut id) = (Zeroizing::new([0; 32]), Zeroizing::new([0; 32]), [0; 16]);
        crate::random(&mut key[..])?;
        crate::random(&mut secret[..])?;
        crate::random(&mut id)?;
        Ok(Volume { id, chunk, names, openers: Vec::new(), keys: vec![(1, key)], secret })
    }

    /// The generation of the key that seals new files; 0 if there is none.
    pub fn generation(&self) -> u32 {
        self.keys.last().map_or(0, |(generation, _)| *generation)
    }

    /// The key of a purpose under a generation's volume key: HKDF-SHA-256's expansion (RFC 5869) with the information
    /// `wattlock fs 1 ` and the purpose. Purposes are `files` and `journal`.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a generation that the volume does not have; [`Error::Engine`].
    pub fn derive(
        &self,
        generation: u32,
        purpose: &str,
        to: &mut [u8],
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        let key = self.keys.iter().find(|(known, _)| *known == generation);
        let (_, key) =
            key.ok_or_else(|| Error::Damaged(format!("key generation {generation} is unknown")))?;
        expand(&key[..], purpose, to, crypto)
    }

    /// The key of a purpose under the secret that rotation keeps. Purposes are `names`, `links` and `attributes`.
    ///
    /// # Errors
    /// [`Error::Engine`].
    pub fn derive_lasting(
        &self,
        purpose: &str,
        to: &mut [u8],
        crypto: &mut impl Crypto,
    ) -> Result<(), Error> {
        expand(&self.secret[..], purpose, to, crypto)
    }

    /// Adds a volume key, which seals new files from now on. Existing files and folders keep theirs until they are
    /// sealed anew.
    ///
    /// # Errors
    /// [`Error::Io`] if the kernel has no randomness; [`Error::Usage`] behind the last generation that there is.
    pub fn add_generation(&mut self) -> Result<u32, Error> {
        let mut key = Zeroizing::new([0; 32]);
        crate::random(&mut key[..])?;
        let full = || Error::Usage("the volume has no generation of keys after 4294967295".into());
        let generation = self.generation().checked_add(1).ok_or_else(full)?;
        self.keys.push((generation, key));
        Ok(generation)
    }

    /// The content of the file.
    pub fn to_text(&self) -> Zeroizing<String> {
        // One allocation: a string that grows leaves copies of keys behind.
        let mut text =
            Zeroizing::new(String::with_capacity(512 + 512 * (self.openers.len() + self.keys.len())));
        let line = |text: &mut String, parts: &[&str]| {
            for part in parts {
                text.push_str(part);
            }
            text.push('\n');
        };
        line(&mut text, &[FIRST, VERSION]);
        line(&mut text, &["id ", &hex(&self.id)]);
        line(&mut text, &["chunk ", &self.chunk.to_string()]);
        line(&mut text, &["names ", self.names.word()]);
        for opener in &self.openers {
            let locked = if opener.passphrase { "passphrase " } else { "" };
            line(&mut text, &["opener ", &opener.name, " ", locked, &opener.recipient]);
        }
        line(&mut text, &["secret ", &hex(&self.secret[..])]);
        for (generation, key) in &self.keys {
            line(&mut text, &["key ", &generation.to_string(), " ", &hex(&key[..])]);
        }
        text
    }

    /// Reads the content of the file.
    ///
    /// # Errors
    /// [`Error::Version`] for another version; [`Error::BadVolume`] naming the line. Lines are never quoted.
    pub fn parse(content: &[u8]) -> Result<Volume, Error> {
        let text = std::str::from_utf8(content).map_err(|_| Error::BadVolume("it is not text".into()))?;
        let mut lines = text.split_terminator('\n').enumerate();
        let version = lines.next().and_then(|(_, line)| line.strip_prefix(FIRST));
        match version {
            Some(VERSION) => {}
            Some(other) if other.len() <= 16 && other.bytes().all(|byte| byte.is_ascii_graphic()) => {
                return Err(Error::Version(other.to_owned()));
            }
            _ => return Err(Error::BadVolume("line 1".into())),
        }
        let (mut id, mut chunk, mut names, mut secret) = (None, None, None, None);
        let (mut openers, mut keys) = (Vec::<Opener>::new(), Vec::<(u32, Zeroizing<[u8; 32]>)>::new());
        let mut known = HashSet::new();
        for (number, line) in lines {
            let bad = || Error::BadVolume(format!("line {}", number + 1));
            let (word, rest) = line.split_once(' ').ok_or_else(bad)?;
            match word {
                "id" if id.is_none() => id = Some(unhex::<16>(rest).ok_or_else(bad)?),
                "chunk" if chunk.is_none() => {
                    let size = CHUNKS.into_iter().find(|size| size.to_string() == rest);
                    chunk = Some(size.ok_or_else(bad)?);
                }
                "names" if names.is_none() => names = Some(NameMode::from_word(rest).ok_or_else(bad)?),
                "secret" if secret.is_none() => secret = Some(unhex::<32>(rest).ok_or_else(bad)?),
                "opener" => {
                    let (name, rest) = rest.split_once(' ').ok_or_else(bad)?;
                    let locked = rest.strip_prefix("passphrase ");
                    let (passphrase, recipient) = (locked.is_some(), locked.unwrap_or(rest));
                    if !known.insert(name) || !is_name(name) || recipient.is_empty() {
                        return Err(bad());
                    }
                    openers.push(Opener {
                        name: name.to_owned(),
                        passphrase,
                        recipient: recipient.to_owned(),
                    });
                }
                "key" => {
                    let (generation, key) = rest.split_once(' ').ok_or_else(bad)?;
                    let generation: u32 = generation.parse().map_err(|_| bad())?;
                    if generation == 0 || keys.last().is_some_and(|(before, _)| *before >= generation) {
                        return Err(bad());
                    }
                    keys.push((generation, unhex::<32>(key).ok_or_else(bad)?));
                }
                _ => return Err(bad()),
            }
        }
        let missing = |what: &str| Error::BadVolume(format!("no {what}"));
        if keys.is_empty() {
            return Err(missing("key"));
        }
        Ok(Volume {
            id: *id.ok_or_else(|| missing("id"))?,
            chunk: chunk.ok_or_else(|| missing("chunk size"))?,
            names: names.ok_or_else(|| missing("names"))?,
            openers,
            keys,
            secret: secret.ok_or_else(|| missing("secret"))?,
        })
    }

    /// Adds an opener that has a recipient.
    ///
    /// # Errors
    /// [`Error::Usage`] for a name that is taken or malformed; [`Error::Files`] for what is no recipient.
    pub fn add_recipient(&mut self, name: &str, recipient: &str) -> Result<(), Error> {
        let recipient = recipient.trim();
        Recipients::new().add(recipient)?;
        self.free(name)?;
        let (name, recipient) = (name.to_owned(), recipient.to_owned());
        self.openers.push(Opener { name, passphrase: false, recipient });
        Ok(())
    }

    /// Adds an opener with a passphrase: makes an identity and returns it locked, to be kept as
    /// [`Folder::keep_locked`] does before the volume is written. `work_factor` is the base-two logarithm of scrypt's
    /// cost.
    ///
    /// # Errors
    /// As [`Volume::add_recipient`].
    pub fn add_passphrase(
        &mut self,
        name: &str,
        passphrase: SecretString,
        work_factor: u8,
        source: &impl CryptoSource,
    ) -> Result<Vec<u8>, Error> {
        self.free(name)?;
        if self.openers.iter().filter(|opener| opener.passphrase).count() + 1 >= LOCKED_COUNT {
            return Err(Error::Usage(format!("a volume has at most {} passphrases", LOCKED_COUNT - 1)));
        }
        let (recipient, locked) = locked_identity(passphrase, work_factor, source)?;
        self.openers.push(Opener { name: name.to_owned(), passphrase: true, recipient });
        Ok(locked)
    }

    /// Gives an opener a new identity under a new passphrase; returned as [`Volume::add_passphrase`] does. Old copies
    /// of the locked identity open nothing that is written from then on.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is no passphrase of that name.
    pub fn change_passphrase(
        &mut self,
        name: &str,
        passphrase: SecretString,
        work_factor: u8,
        source: &impl CryptoSource,
    ) -> Result<Vec<u8>, Error> {
        let opener = self.openers.iter_mut().find(|opener| opener.name == name && opener.passphrase);
        let opener = opener.ok_or_else(|| Error::Usage(format!("no passphrase is called {name}")))?;
        let (recipient, locked) = locked_identity(passphrase, work_factor, source)?;
        opener.recipient = recipient;
        Ok(locked)
    }

    /// Removes an opener. Whoever could open the volume before may have kept its keys: [`Volume::add_generation`] and
    /// sealing all files anew take those away.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is none of that name, or no other.
    pub fn remove_opener(&mut self, name: &str) -> Result<Opener, Error> {
        let at = self.openers.iter().position(|opener| opener.name == name);
        let at = at.ok_or_else(|| {
            let names: Vec<&str> = self.openers.iter().map(|opener| opener.name.as_str()).collect();
            Error::Usage(format!("no key is called {name}; there are {}", names.join(", ")))
        })?;
        if self.openers.len() == 1 {
            return Err(Error::Usage(format!("{name} is the only key: without it nothing opens the volume")));
        }
        Ok(self.openers.remove(at))
    }

    fn free(&self, name: &str) -> Result<(), Error> {
        if !is_name(name) || name.starts_with(UNFINISHED) {
            return Err(Error::Usage("a key's name has 1 to 64 letters, digits, '_', '.' and '-'".into()));
        }
        if self.openers.iter().any(|opener| opener.name == name) {
            return Err(Error::Usage(format!("a key is already called {name}")));
        }
        Ok(())
    }
}

fn is_name(name: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    (1..=64).contains(&name.len()) && name.bytes().all(known) && !name.starts_with('.')
}

/// A fresh identity: its recipient, and the identity locked with a passphrase, as an age file.
fn locked_identity(
    passphrase: SecretString,
    work_factor: u8,
    source: &impl CryptoSource,
) -> Result<(String, Vec<u8>), Error> {
    let identity = wattlock_files::age::x25519::Identity::generate();
    let recipient = identity.to_public().to_string();
    let text = Zeroizing::new(format!("{}\n", identity.to_string().expose_secret()));
    let lock = keys::passphrase_recipient(passphrase, work_factor)?;
    let sealer = Sealer::new(vec![lock])?.format(Format::Age);
    Ok((recipient, sealer.seal_bytes(text.as_bytes(), source)?))
}

/// HKDF-SHA-256, expansion alone: the keys it starts from are uniform.
fn expand(key: &[u8], purpose: &str, to: &mut [u8], crypto: &mut impl Crypto) -> Result<(), Error> {
    let info = format!("wattlock fs 1 {purpose}");
    let key = Key::symmetric(Algorithm::Secret, key)?;
    let data = Data::Apart { from: &[], to };
    let mut request = Request { aad: info.as_bytes(), ..Request::new(Kind::HkdfExpandSha256, &key, data) };
    crypto.run(&mut request)?;
    Ok(())
}

/// Opens and reads the volume's sealed file.
fn unseal(
    sealed: &[u8],
    identities: Vec<keys::BoxedIdentity>,
    source: &impl CryptoSource,
) -> Result<Volume, Error> {
    let opened = Unlock::new(identities).open_bytes(sealed, source);
    let content = opened.map_err(|error| match error {
        wattlock_files::Error::NoMatchingKey => Error::NoMatchingKey,
        error => error.into(),
    })?;
    Volume::parse(&content)
}

/// How a user proves that a volume may be opened: identities, a passphrase, or both.
pub struct Access {
    identities: Vec<keys::BoxedIdentity>,
    passphrase: Option<Passphrase>,
}

/// A passphrase that is tried on the locked identities of a volume. Each takes half a second and a quarter of a GiB as it
/// is made, and at most what the limit allows; they are tried one after the other.
pub struct Passphrase {
    /// Gives the passphrase when it is needed, and is asked once; `None` if there is no user to ask.
    pub ask: keys::AskPassphrase,
    /// Tried on the identity of this opener only.
    pub only: Option<String>,
    /// The largest work factor that is computed, as a power of two.
    pub work_factor_limit: u8,
    /// Asked before each identity: whether to give up.
    pub stop: fn() -> bool,
}

impl Passphrase {
    /// One that is tried on every identity.
    pub fn new(ask: keys::AskPassphrase) -> Passphrase {
        Passphrase { ask, only: None, work_factor_limit: LOCKED_WORK_FACTOR_LIMIT, stop: || false }
    }
}

impl Access {
    /// With these identities; see [`keys::identities`].
    pub fn identities(identities: Vec<keys::BoxedIdentity>) -> Access {
        Access { identities, passphrase: None }
    }

    /// Also with a passphrase.
    #[must_use]
    pub fn passphrase(mut self, passphrase: Passphrase) -> Access {
        self.passphrase = Some(passphrase);
        self
    }
}

/// The folder of a volume, for what is in its own files. Never follows a link below it.
pub struct Folder {
    fd: OwnedFd,
}

impl Folder {
    /// Opens the folder.
    ///
    /// # Errors
    /// [`Error::NoVolume`] if there is none.
    pub fn open(path: &Path) -> Result<Folder, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => Ok(Folder { fd }),
            Err(Errno::NOENT | Errno::NOTDIR) => Err(Error::NoVolume(path.to_owned())),
            Err(error) => Err(Error::io("opening the volume's folder", error)),
        }
    }

    /// Its descriptor.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Whether there is a volume in it.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn has_volume(&self) -> Result<bool, Error> {
        match rustix::fs::statat(&self.fd, FILE, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(Error::io("looking for the volume", error)),
        }
    }

    /// Whether it holds nothing at all.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn is_empty(&self) -> Result<bool, Error> {
        Ok(beneath::names(&self.fd)?.is_empty())
    }

    /// Waits until no other process changes the volume's own files, and keeps others from it while the result lives.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn lock(&self) -> Result<File, Error> {
        let fd = beneath::open(&self.fd, ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        let fd = fd.map_err(|error| Error::io("locking the volume's folder", error))?;
        rustix::fs::flock(&fd, FlockOperation::LockExclusive)
            .map_err(|error| Error::io("locking the volume's folder", error))?;
        Ok(File::from(fd))
    }

    /// Opens and reads the volume.
    ///
    /// # Errors
    /// [`Error::NoVolume`]; [`Error::NoMatchingKey`], [`Error::Files`] for a wrong key or a damaged file;
    /// [`Error::Damaged`] for a locked identity that is not an opener's; those of [`Volume::parse`].
    pub fn read(&self, access: Access, source: &impl CryptoSource) -> Result<Volume, Error> {
        let sealed = self.content(FILE)?.ok_or_else(|| Error::NoVolume(FILE.into()))?;
        let Some(passphrase) = access.passphrase else { return unseal(&sealed, access.identities, source) };
        if !access.identities.is_empty() {
            match unseal(&sealed, access.identities, source) {
                Err(Error::NoMatchingKey | Error::Files(wattlock_files::Error::WrongKey)) => {}
                done => return done,
            }
        }
        self.read_by_passphrase(&sealed, &passphrase, source)
    }

    /// The only way by which what is in [`KEYS`] opens a volume. Whoever may write the storage chooses those files. So one
    /// counts only if the passphrase opens it, and the volume that its identity then opens names that identity.
    fn read_by_passphrase(
        &self,
        sealed: &[u8],
        passphrase: &Passphrase,
        source: &impl CryptoSource,
    ) -> Result<Volume, Error> {
        use wattlock_files::Error::{BadPassphrase, ExcessiveWork};
        let names = match &passphrase.only {
            Some(name) => vec![name.clone()],
            None => self.locked()?,
        };
        let (mut typed, mut failed) = (None, None);
        for name in names {
            if (passphrase.stop)() {
                return Err(wattlock_door::Error::Interrupted.into());
            }
            match self.read_by(&name, sealed, passphrase, &mut typed, source) {
                // One that is damaged does not keep the others from opening. If none opens, damage is what is told.
                Err(error @ Error::Damaged(_)) => failed = Some(error),
                Err(error @ Error::Files(ExcessiveWork { .. })) => match failed {
                    Some(Error::Damaged(_)) => {}
                    _ => failed = Some(error),
                },
                Err(error @ Error::Files(BadPassphrase)) => _ = failed.get_or_insert(error),
                done => return done,
            }
        }
        Err(failed
            .unwrap_or_else(|| Error::Usage("the volume has no passphrase: give an identity with -i".into())))
    }

    /// Opens the volume by the locked identity of one name.
    fn read_by(
        &self,
        name: &str,
        sealed: &[u8],
        passphrase: &Passphrase,
        typed: &mut Option<SecretString>,
        source: &impl CryptoSource,
    ) -> Result<Volume, Error> {
        use wattlock_files::Error as FilesError;
        let damaged = |what: &dyn fmt::Display| Error::Damaged(format!("{KEYS}/{name}: {what}"));
        let not_one = |error| match error {
            FilesError::BadIdentity(what) => damaged(&what),
            error => error.into(),
        };
        let file = self.read_locked(name)?;
        let locked = LockedIdentity::parse(&file).map_err(not_one)?;
        let (required, limit) = (locked.work_factor(), passphrase.work_factor_limit);
        if required > limit {
            return Err(FilesError::ExcessiveWork { required, limit }.into());
        }
        if typed.is_none() {
            *typed = (passphrase.ask)();
        }
        let words = typed.as_ref().ok_or(FilesError::PassphraseNeeded)?;
        let identity = source.here(|crypto| locked.unlock(words, limit, crypto)).map_err(not_one)?;
        let recipient = identity.to_public().to_string();
        let volume = unseal(sealed, vec![Box::new(identity)], source).map_err(|error| match error {
            Error::NoMatchingKey => damaged(&"what is locked in it is no key of this volume"),
            error => error,
        })?;
        let is_it =
            |opener: &&Opener| opener.passphrase && opener.name == name && opener.recipient == recipient;
        match volume.openers.iter().find(is_it) {
            Some(_) => Ok(volume),
            None => Err(damaged(&"the volume has no passphrase of that name with this key")),
        }
    }

    /// A line for each locked identity that does not open the volume, as far as that shows without a passphrase.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn check_locked(&self, volume: &Volume) -> Result<Vec<String>, Error> {
        let named = volume.openers.iter().filter(|opener| opener.passphrase);
        let mut names: BTreeSet<String> = named.map(|opener| opener.name.clone()).collect();
        let listed = names.clone();
        match self.locked() {
            Ok(there) => names.extend(there),
            Err(Error::Damaged(what)) => return Ok(vec![what]),
            Err(error) => return Err(error),
        }
        let mut lines = Vec::new();
        for name in names {
            let line = |what: &dyn fmt::Display| format!("{KEYS}/{name}: {what}");
            match self.read_locked(&name) {
                Ok(_) if !listed.contains(&name) => {
                    lines.push(line(&"the volume has no passphrase of that name"));
                }
                Ok(file) => match LockedIdentity::parse(&file) {
                    Ok(_) => {}
                    Err(wattlock_files::Error::BadIdentity(what)) => lines.push(line(&what)),
                    Err(error) => lines.push(line(&error)),
                },
                Err(Error::Damaged(what)) => lines.push(what),
                Err(error) => return Err(error),
            }
        }
        Ok(lines)
    }

    /// Seals the volume to its openers and puts it in place of what is there, durably. Of the age plugins that openers
    /// name only those are started that are in `plugins`: what the volume names, its storage chose.
    ///
    /// # Errors
    /// [`Error::Usage`] without an opener, or for another plugin; [`Error::Files`]; [`Error::Io`], and what was there is
    /// there still.
    pub fn write(
        &self,
        volume: &Volume,
        plugins: &[String],
        callbacks: impl Callbacks,
        source: &impl CryptoSource,
    ) -> Result<(), Error> {
        if volume.openers.is_empty() {
            return Err(Error::Usage("a volume needs a key that opens it".into()));
        }
        let mut recipients = Recipients::new();
        for opener in &volume.openers {
            recipients.add(&opener.recipient)?;
        }
        if let Some(name) = recipients.plugins().find(|name| !plugins.iter().any(|plugin| plugin == name)) {
            let what = format!(
                "a key of the volume needs age-plugin-{name} to be started: --plugin {name} allows it"
            );
            return Err(Error::Usage(what));
        }
        let text = volume.to_text();
        if text.len() > CONTENT_MAX {
            return Err(Error::Usage("too many keys".into()));
        }
        let sealed = Sealer::new(recipients.finish(callbacks)?)?.seal_bytes(text.as_bytes(), source)?;
        beneath::replace(&self.fd, FILE, &sealed, beneath::PRIVATE)
    }

    /// Keeps a locked identity under an opener's name, durably, in place of one that is there.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn keep_locked(&self, name: &str, locked: &[u8]) -> Result<(), Error> {
        match rustix::fs::mkdirat(&self.fd, KEYS, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(Error::io("making the folder of keys", error)),
        }
        let keys = self.keys()?.ok_or_else(|| Error::NoVolume(KEYS.into()))?;
        beneath::replace(&keys, name, locked, beneath::PRIVATE)?;
        rustix::fs::fsync(&self.fd).map_err(|error| Error::io("writing the folder of keys", error))
    }

    /// Keeps the locked identity of one name under another, too, if there is one.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn copy_locked(&self, name: &str, to: &str) -> Result<(), Error> {
        match self.read_locked(name) {
            Ok(locked) => self.keep_locked(to, &locked),
            Err(Error::Damaged(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes a locked identity.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn forget_locked(&self, name: &str) -> Result<(), Error> {
        let Some(keys) = self.keys()? else { return Ok(()) };
        match rustix::fs::unlinkat(&keys, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(Error::io("removing a locked key", error)),
        }
        rustix::fs::fsync(&keys).map_err(|error| Error::io("removing a locked key", error))
    }

    /// The names of locked identities in the order in which a passphrase is tried on them.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Damaged`] for what is no such folder, or more than a volume has.
    pub fn locked(&self) -> Result<Vec<String>, Error> {
        let Some(keys) = self.keys()? else { return Ok(Vec::new()) };
        let failed = |error: Errno| Error::io("listing the folder of keys", error);
        let (mut names, mut entries) = (Vec::new(), 0);
        for entry in Dir::read_from(&keys).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            entries += 1;
            let name = entry.file_name().to_str().ok().filter(|name| is_name(name));
            names.extend(name.filter(|name| !name.starts_with(UNFINISHED)).map(str::to_owned));
            if entries > ENTRIES_MAX || names.len() > LOCKED_COUNT {
                let what = "more entries than a volume has; --key NAME tries a single one";
                return Err(Error::Damaged(format!("{KEYS}: {what}")));
            }
        }
        names.sort_by(|one, other| {
            (one != FIRST_PASSPHRASE).cmp(&(other != FIRST_PASSPHRASE)).then_with(|| one.cmp(other))
        });
        Ok(names)
    }

    /// Whether there is an entry for a locked identity of this name, whatever it is.
    ///
    /// # Errors
    /// As [`Folder::locked`].
    pub fn has_locked(&self, name: &str) -> Result<bool, Error> {
        let Some(keys) = self.keys()?.filter(|_| is_name(name)) else { return Ok(false) };
        match rustix::fs::statat(&keys, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(Error::io("looking for a locked key", error)),
        }
    }

    fn read_locked(&self, name: &str) -> Result<Vec<u8>, Error> {
        let damaged = |what: &str| Error::Damaged(format!("{KEYS}/{name}: {what}"));
        let keys = self.keys()?.ok_or_else(|| damaged("missing"))?;
        // Before it is opened: opening a device may do something.
        match rustix::fs::statat(&keys, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {}
            Ok(_) => return Err(damaged("not a regular file")),
            Err(Errno::NOENT) => return Err(damaged("missing")),
            Err(error) => return Err(Error::io("looking at a locked key", error)),
        }
        match beneath::content(&keys, name, LOCKED_MAX) {
            Ok(content) => content.ok_or_else(|| damaged("missing")),
            Err(Error::Damaged(what)) => Err(Error::Damaged(format!("{KEYS}/{what}"))),
            Err(error) => Err(error),
        }
    }

    fn keys(&self) -> Result<Option<OwnedFd>, Error> {
        match beneath::open(&self.fd, KEYS, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::LOOP | Errno::NOTDIR | Errno::XDEV) => {
                Err(Error::Damaged(format!("{KEYS} is not a folder of the volume")))
            }
            Err(error) => Err(Error::io("opening the folder of keys", error)),
        }
    }

    fn content(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        // What is sealed is longer than its content: the header, and a stanza for each opener.
        beneath::content(&self.fd, name, 4 * CONTENT_MAX)
    }
}

/// Lower-case hexadecimal digits.
fn hex(bytes: &[u8]) -> Zeroizing<String> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = Zeroizing::new(String::with_capacity(2 * bytes.len()));
    for byte in bytes {
        text.push(DIGITS[usize::from(byte >> 4)] as char);
        text.push(DIGITS[usize::from(byte & 15)] as char);
    }
    text
}

/// Exactly `LEN` bytes of lower-case digits.
fn unhex<const LEN: usize>(digits: &str) -> Option<Zeroizing<[u8; LEN]>> {
    let digits = digits.as_bytes();
    let mut bytes = Zeroizing::new([0; LEN]);
    if digits.len() != 2 * LEN {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let value = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        *byte = value(pair[0])? << 4 | value(pair[1])?;
    }
    Some(bytes)
}
