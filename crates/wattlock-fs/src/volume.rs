//! A volume's key and settings: the sealed file `wattlock.fs`.
//!
//! The file is sealed to every opener's recipient, so whatever `wattlock open` can use opens a volume: keys of age, SSH
//! keys, plugins. A passphrase is an opener whose identity lies beside it in `wattlock.keys/NAME`, locked with the
//! passphrase as `age -p` locks one. Each change replaces whole files, never a part of one.

use std::fmt;
use std::fs::File;
use std::io::{self, Cursor, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use wattlock_core::{Algorithm, Data, Key, Kind, Request};
use wattlock_files::age::Callbacks;
use wattlock_files::age::secrecy::{ExposeSecret, SecretString};
use wattlock_files::keys::{self, FILE_MAX, Recipients};
use wattlock_files::{Crypto, CryptoSource, Format, Input, Opener as Unlock, Output, Progress, Sealer};
use zeroize::Zeroizing;

use crate::Error;
use crate::beneath;

/// The sealed file.
pub const FILE: &str = "wattlock.fs";
/// The folder of locked identities.
pub const KEYS: &str = "wattlock.keys";
/// What the names of our own files begin with.
pub const RESERVED: &str = "wattlock.";
/// The content's first line.
const FIRST: &str = "wattlock volume ";
/// The version of the format that this crate reads and writes.
pub const VERSION: &str = "1";
/// Longest content accepted, in bytes: some thousands of openers and of keys.
const CONTENT_MAX: usize = 1 << 20;

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
                    let known = openers.iter().any(|opener| opener.name == name);
                    if known || !is_name(name) || recipient.is_empty() {
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
        let at = at.ok_or_else(|| Error::Usage(format!("no key is called {name}")))?;
        if self.openers.len() == 1 {
            return Err(Error::Usage(format!("{name} is the only key: without it nothing opens the volume")));
        }
        Ok(self.openers.remove(at))
    }

    fn free(&self, name: &str) -> Result<(), Error> {
        if !is_name(name) {
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
    Ok((recipient, seal(&sealer, text.as_bytes(), source)?))
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

/// Bytes that a [`Sealer`] or an [`Unlock`] writes.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Zeroizing<Vec<u8>>>>);

impl Memory {
    /// What was written; it is gone from here then.
    fn take(&self) -> Zeroizing<Vec<u8>> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut content = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let fits = content.capacity() - content.len();
        if bytes.len() > fits {
            // Growing would leave a copy behind.
            let mut grown = Vec::with_capacity((content.len() + bytes.len()).next_power_of_two().max(4096));
            grown.extend_from_slice(&content);
            *content = Zeroizing::new(grown);
        }
        content.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

static NEVER: AtomicBool = AtomicBool::new(false);

fn seal(sealer: &Sealer, content: &[u8], source: &impl CryptoSource) -> Result<Vec<u8>, Error> {
    let (memory, content) = (Memory::default(), Zeroizing::new(content.to_vec()));
    let input = Input::Stream(Box::new(Wiped(content, 0)));
    sealer.seal(input, Output::Stream(Box::new(memory.clone())), source, Progress::new(&NEVER))?;
    Ok(memory.take().to_vec())
}

/// Reads bytes that are wiped afterwards.
struct Wiped(Zeroizing<Vec<u8>>, usize);

impl Read for Wiped {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let len = (&self.0[self.1..]).read(to)?;
        self.1 += len;
        Ok(len)
    }
}

/// How a user proves that a volume may be opened: identities, a passphrase, or both.
pub struct Access {
    identities: Vec<keys::BoxedIdentity>,
}

impl Access {
    /// With these identities; see [`keys::identities`].
    pub fn identities(identities: Vec<keys::BoxedIdentity>) -> Access {
        Access { identities }
    }

    /// Also with the passphrases of a volume: every locked identity in it is tried with the passphrase that
    /// `callbacks` gives, or only the one of an opener's name. A passphrase takes half a second and a quarter of a GiB
    /// for each identity that it is tried on.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Files`] for a locked identity that is damaged, if it is the only one asked for.
    pub fn passphrase(
        mut self,
        folder: &Folder,
        only: Option<&str>,
        callbacks: impl Callbacks,
    ) -> Result<Access, Error> {
        for name in folder.locked()? {
            if only.is_some_and(|only| only != name) {
                continue;
            }
            let content = folder.read_locked(&name)?;
            match keys::identities(&content, callbacks.clone()) {
                Ok(identities) => self.identities.extend(identities),
                // One that is damaged does not keep the others from opening.
                Err(error) if only.is_some() => return Err(error.into()),
                Err(_) => {}
            }
        }
        Ok(self)
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
    /// [`Error::NoVolume`]; [`Error::Files`] for a wrong key or a damaged file; those of [`Volume::parse`].
    pub fn read(&self, access: Access, source: &impl CryptoSource) -> Result<Volume, Error> {
        let sealed = self.content(FILE)?.ok_or_else(|| Error::NoVolume(FILE.into()))?;
        let memory = Memory::default();
        let unlock = Unlock::new(access.identities);
        let output = Output::Stream(Box::new(memory.clone()));
        unlock.open(Input::Stream(Box::new(Cursor::new(sealed))), output, source, Progress::new(&NEVER))?;
        Volume::parse(&memory.take())
    }

    /// Seals the volume to its openers and puts it in place of what is there, durably.
    ///
    /// # Errors
    /// [`Error::Usage`] without an opener; [`Error::Files`]; [`Error::Io`], and what was there is there still.
    pub fn write(
        &self,
        volume: &Volume,
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
        let text = volume.to_text();
        if text.len() > CONTENT_MAX {
            return Err(Error::Usage("too many keys".into()));
        }
        let sealed = seal(&Sealer::new(recipients.finish(callbacks)?)?, text.as_bytes(), source)?;
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

    /// The names of locked identities, sorted.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn locked(&self) -> Result<Vec<String>, Error> {
        let Some(keys) = self.keys()? else { return Ok(Vec::new()) };
        let names = beneath::names(&keys)?.into_iter().filter_map(|name| name.into_string().ok());
        let mut names: Vec<String> = names.filter(|name| is_name(name)).collect();
        names.sort();
        Ok(names)
    }

    fn read_locked(&self, name: &str) -> Result<Vec<u8>, Error> {
        let keys = self.keys()?;
        let content = keys.map(|keys| beneath::content(&keys, name, FILE_MAX)).transpose()?.flatten();
        content.ok_or_else(|| Error::NoVolume(KEYS.into()))
    }

    fn keys(&self) -> Result<Option<OwnedFd>, Error> {
        match beneath::open(&self.fd, KEYS, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT) => Ok(None),
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
