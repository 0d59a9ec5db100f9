//! A volume's key and settings: the sealed file `wattlock.fs`.
//!
//! The file is sealed to every opener's recipient, so whatever `wattlock open` can use opens a volume: keys of age, SSH
//! keys, plugins. A passphrase is an opener whose identity lies beside it in `wattlock.keys/NAME`, locked with the
//! passphrase as `age -p` locks one. Each change replaces whole files, never a part of one.

mod folder;
mod history;

use std::collections::HashSet;
use std::fmt;

use wattlock_core::{Algorithm, Data, Key, Kind, Request};
use wattlock_door::{Crypto, CryptoSource};
use wattlock_files::age::secrecy::{ExposeSecret, SecretString};
use wattlock_files::keys::{self, Recipients};
use wattlock_files::{Format, Sealer};
use zeroize::Zeroizing;

use crate::Error;
pub use folder::{Access, Folder, Passphrase};
pub use history::{SUCCESSOR_LEN, is_fingerprint};

/// The sealed file.
pub const FILE: &str = "wattlock.fs";
/// The folder of locked identities.
pub const KEYS: &str = "wattlock.keys";
/// What the names of our own files begin with.
pub const RESERVED: &str = "wattlock.";
/// What an unfinished file of `beneath::replace` begins with.
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
    /// How often the file was written.
    pub revision: u64,
    /// By generation: what proves that the next one was made by a holder of its key; see [`Volume::succeed`].
    pub successors: Vec<(u32, [u8; SUCCESSOR_LEN])>,
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
        let (openers, successors) = (Vec::new(), Vec::new());
        Ok(Volume { id, chunk, names, openers, keys: vec![(1, key)], secret, revision: 0, successors })
    }

    /// The generation of the key that seals new files; 0 if there is none.
    pub fn generation(&self) -> u32 {
        self.keys.last().map_or(0, |(generation, _)| *generation)
    }

    /// The key of a purpose under a generation's volume key: HKDF-SHA-256's expansion (RFC 5869) with the information
    /// `wattlock fs 1 ` and the purpose. Purposes are `files`, `journal` and `succession`.
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

    /// The key of a purpose under the secret that rotation keeps. Purposes are `names`, `links` and
    /// `attributes`, and those of [`Volume::fingerprint`] and [`Volume::mark`].
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
        let mut text = Zeroizing::new(String::with_capacity(
            512 + 512 * (self.openers.len() + self.keys.len() + self.successors.len()),
        ));
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
        if self.revision > 0 {
            line(&mut text, &["revision ", &self.revision.to_string()]);
        }
        for opener in &self.openers {
            let locked = if opener.passphrase { "passphrase " } else { "" };
            line(&mut text, &["opener ", &opener.name, " ", locked, &opener.recipient]);
        }
        line(&mut text, &["secret ", &hex(&self.secret[..])]);
        for (generation, key) in &self.keys {
            line(&mut text, &["key ", &generation.to_string(), " ", &hex(&key[..])]);
        }
        for (generation, sealed) in &self.successors {
            line(&mut text, &["successor ", &generation.to_string(), " ", &hex(sealed)]);
        }
        text
    }

    /// Reads the content of the file.
    ///
    /// # Errors
    /// [`Error::Version`] for another version; [`Error::Newer`] for a word that is unknown, [`Error::BadVolume`] for a
    /// line that cannot be, naming the line. Lines are never quoted.
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
        let (mut id, mut chunk, mut names, mut secret, mut revision) = (None, None, None, None, None);
        let (mut openers, mut keys) = (Vec::<Opener>::new(), Vec::<(u32, Zeroizing<[u8; 32]>)>::new());
        let mut successors = Vec::<(u32, [u8; SUCCESSOR_LEN])>::new();
        let mut known = HashSet::new();
        for (number, line) in lines {
            let bad = || Error::BadVolume(format!("line {}", number + 1));
            // Whoever sealed them meant them, so an unknown word is a newer program's.
            let newer = || Error::Newer(format!("word in line {} of the volume's settings", number + 1));
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match word {
                "id" if id.is_none() => id = Some(unhex::<16>(rest).ok_or_else(bad)?),
                "chunk" if chunk.is_none() => {
                    let size = CHUNKS.into_iter().find(|size| size.to_string() == rest);
                    let unknown = || if rest.parse::<u64>().is_ok() { newer() } else { bad() };
                    chunk = Some(size.ok_or_else(unknown)?);
                }
                "names" if names.is_none() => {
                    let unknown = || if is_word(rest) { newer() } else { bad() };
                    names = Some(NameMode::from_word(rest).ok_or_else(unknown)?);
                }
                "secret" if secret.is_none() => secret = Some(unhex::<32>(rest).ok_or_else(bad)?),
                "opener" => {
                    let opener = parse_opener(rest).filter(|opener| known.insert(opener.name.clone()));
                    openers.push(opener.ok_or_else(bad)?);
                }
                "revision" if revision.is_none() => {
                    let number = rest.parse().ok().filter(|number: &u64| *number > 0);
                    revision = Some(number.ok_or_else(bad)?);
                }
                "key" => keys.push(of_generation(rest, keys.last().map(|(last, _)| *last)).ok_or_else(bad)?),
                "successor" => {
                    let last = successors.last().map(|(last, _)| *last);
                    let (generation, sealed) = of_generation::<SUCCESSOR_LEN>(rest, last).ok_or_else(bad)?;
                    successors.push((generation, *sealed));
                }
                "id" | "chunk" | "names" | "secret" | "revision" => return Err(bad()),
                word if is_word(word) => return Err(newer()),
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
            revision: revision.unwrap_or(0),
            successors,
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

/// Whether it has the form of the words that lines begin with.
fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
}

/// What follows the word `opener`.
fn parse_opener(text: &str) -> Option<Opener> {
    let (name, rest) = text.split_once(' ').filter(|(name, _)| is_name(name))?;
    let locked = rest.strip_prefix("passphrase ");
    let (passphrase, recipient) = (locked.is_some(), locked.unwrap_or(rest).to_owned());
    (!recipient.is_empty()).then(|| Opener { name: name.to_owned(), passphrase, recipient })
}

/// A generation, which is above the one of the line before, and what belongs to it.
fn of_generation<const LEN: usize>(text: &str, before: Option<u32>) -> Option<(u32, Zeroizing<[u8; LEN]>)> {
    let (generation, digits) = text.split_once(' ')?;
    let generation = generation.parse().ok().filter(|generation| before.unwrap_or(0) < *generation)?;
    Some((generation, unhex(digits)?))
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

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> Zeroizing<String> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = Zeroizing::new(String::with_capacity(2 * bytes.len()));
    for byte in bytes {
        text.push(DIGITS[usize::from(byte >> 4)] as char);
        text.push(DIGITS[usize::from(byte & 15)] as char);
    }
    text
}

/// Exactly `LEN` bytes of lower-case digits.
pub fn unhex<const LEN: usize>(digits: &str) -> Option<Zeroizing<[u8; LEN]>> {
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
