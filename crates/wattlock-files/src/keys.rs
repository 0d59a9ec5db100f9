//! Parses recipients and identities from arguments and files, and wraps and unwraps file keys with them.
//!
//! All of age's kinds are supported: `age1…`, `ssh-ed25519` and `ssh-rsa`, the tagged kinds for hardware, plugins;
//! identity files, SSH private keys, and either locked with a passphrase. Messages never quote a file's content.

use std::collections::BTreeMap;
use std::io::{BufReader, Cursor};

use age::secrecy::SecretString;
use age::{
    Callbacks, DecryptError, EncryptError, Identity, Recipient, plugin, scrypt, ssh, tag, tagpq, x25519,
};
use age_core::format::FileKey;

use zeroize::Zeroizing;

use crate::error::Error;
use crate::format::age::{Header, parse_header};
use crate::format::payload::{AGE_NONCE_LEN, PayloadKey, TAG_LEN, open_slice};
use crate::format::{Guess, guess};
use wattlock_door::Crypto;

/// Longest recipients or identity file read, in bytes.
pub const FILE_MAX: usize = 1 << 20;

/// Base-two logarithm of the scrypt work factor for new files: what age writes, a quarter of a GiB and half a second.
pub const WORK_FACTOR: u8 = 18;

/// The largest work factor a file may ask for unless the caller says otherwise: sixteen times that.
pub const WORK_FACTOR_LIMIT: u8 = 22;

/// Longest file of a [`LockedIdentity`], in bytes: such a file has some 300, and room for comments.
pub const LOCKED_MAX: usize = 16 << 10;

/// The largest work factor of a [`LockedIdentity`] unless the caller says otherwise: four times [`WORK_FACTOR`], one GiB
/// and some two seconds.
pub const LOCKED_WORK_FACTOR_LIMIT: u8 = 20;

/// A recipient that can be used from any thread.
pub type BoxedRecipient = Box<dyn Recipient + Send>;

/// An identity.
pub type BoxedIdentity = Box<dyn Identity>;

/// Recipients collected from arguments and files. A plugin gets all of its recipients together.
#[derive(Default)]
pub struct Recipients {
    native: Vec<BoxedRecipient>,
    plugins: BTreeMap<String, Vec<plugin::Recipient>>,
}

impl Recipients {
    /// None yet.
    pub fn new() -> Recipients {
        Recipients::default()
    }

    /// Adds the recipient that `text` names.
    ///
    /// # Errors
    /// [`Error::BadRecipient`], which quotes `text` if that is short enough for a public key.
    pub fn add(&mut self, text: &str) -> Result<(), Error> {
        let text = text.trim();
        self.try_add(text).map_err(|why| {
            let quoted =
                || if text.len() <= 100 { text.escape_debug().to_string() } else { "unknown kind".into() };
            Error::BadRecipient(why.reason().unwrap_or_else(quoted))
        })
    }

    /// Adds the recipient that `text` names, or reports the mistake in a recipient of a known kind.
    fn try_add(&mut self, text: &str) -> Result<(), Refused> {
        if let Ok(recipient) = text.parse::<x25519::Recipient>() {
            self.native.push(Box::new(recipient));
        } else if let Ok(recipient) = text.parse::<tag::Recipient>() {
            self.native.push(Box::new(recipient));
        } else if let Ok(recipient) = text.parse::<tagpq::Recipient>() {
            self.native.push(Box::new(recipient));
        } else if let Ok(recipient) = text.parse::<plugin::Recipient>() {
            self.plugins.entry(recipient.plugin().to_owned()).or_default().push(recipient);
        } else {
            self.native.push(Box::new(ssh_recipient(text)?));
        }
        Ok(())
    }

    /// Adds every recipient of a recipients file. Returns a line for each SSH key that is well-formed and of no use
    /// here, as such files list a person's keys for logging in.
    ///
    /// # Errors
    /// As [`recipients_in`].
    pub fn add_file(&mut self, content: &[u8]) -> Result<Vec<String>, Error> {
        let listed = recipients_in(content)?;
        for recipient in listed.recipients {
            self.add(recipient)?;
        }
        Ok(listed.left_out)
    }

    /// The names of the plugins that [`Recipients::finish`] looks for and sealing starts.
    pub fn plugins(&self) -> impl Iterator<Item = &str> {
        self.plugins.keys().map(String::as_str)
    }

    /// Adds the recipients that belong to the identities of an identity file.
    ///
    /// # Errors
    /// [`Error::BadIdentity`]; [`Error::BadPassphrase`] and others for a locked file.
    pub fn add_identity_file(&mut self, content: &[u8], callbacks: impl Callbacks) -> Result<(), Error> {
        match IdentityFile::parse(content, callbacks)? {
            IdentityFile::Ssh(identity) => {
                let recipient = ssh::Recipient::try_from(identity);
                self.native.push(Box::new(recipient.map_err(|_| bad_identity("no public key in it"))?));
            }
            IdentityFile::Plain(file) => self.native.extend(file.to_recipients().map_err(wrapping)?),
            IdentityFile::Locked(identity) => self.native.extend(identity.recipients().map_err(wrapping)?),
        }
        Ok(())
    }

    /// All recipients, for a [`crate::Sealer`]. Plugins ask the user through `callbacks`.
    ///
    /// # Errors
    /// [`Error::Plugin`] for a plugin that is not installed.
    pub fn finish(mut self, callbacks: impl Callbacks) -> Result<Vec<BoxedRecipient>, Error> {
        for (name, recipients) in self.plugins {
            let plugin = plugin::RecipientPluginV1::new(&name, &recipients, &[], callbacks.clone());
            self.native.push(Box::new(plugin.map_err(|error| Error::Plugin(one_line(&error)))?));
        }
        Ok(self.native)
    }
}

/// Why a line is no recipient that can be used.
enum Refused {
    /// It is no recipient of any known kind.
    Unknown,
    /// It is one that is wrong.
    Wrong(String),
    /// It is a well-formed SSH key of a kind or size that nothing can be sealed to.
    Unsupported(String),
}

impl Refused {
    fn reason(self) -> Option<String> {
        match self {
            Refused::Unknown => None,
            Refused::Wrong(why) | Refused::Unsupported(why) => Some(why),
        }
    }
}

/// What a recipients file has.
pub struct Listed<'a> {
    /// Its recipients.
    pub recipients: Vec<&'a str>,
    /// A line of text for each SSH key that nothing can be sealed to.
    pub left_out: Vec<String>,
}

/// The recipients of a recipients file: one a line. Empty lines and lines that start with `#` are skipped, and so are
/// well-formed SSH keys that nothing can be sealed to.
///
/// # Errors
/// [`Error::BadRecipient`] with the number of the line, or for a file without a recipient.
pub fn recipients_in(content: &[u8]) -> Result<Listed<'_>, Error> {
    let bad = |what: &str| Error::BadRecipient(what.into());
    if content.len() > FILE_MAX {
        return Err(bad("the file is too long"));
    }
    let text = std::str::from_utf8(content).map_err(|_| bad("the file is not text"))?;
    let mut listed = Listed { recipients: Vec::new(), left_out: Vec::new() };
    let mut tried = Recipients::new();
    for (number, line) in text.lines().enumerate() {
        let (number, line) = (number + 1, line.trim());
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        // A line that is no recipient may be anything: it is not quoted. A known kind says what is wrong with it.
        match tried.try_add(line) {
            Ok(()) => listed.recipients.push(line),
            Err(Refused::Unsupported(why)) => listed.left_out.push(format!("line {number}: {why}")),
            Err(why) => {
                let reason = why.reason().map(|why| format!(": {why}")).unwrap_or_default();
                return Err(Error::BadRecipient(format!("line {number}{reason}")));
            }
        }
    }
    match (listed.recipients.is_empty(), listed.left_out.first()) {
        (false, _) => Ok(listed),
        (true, None) => Err(bad("the file names no recipient")),
        (true, Some(why)) => {
            Err(Error::BadRecipient(format!("none that the file names can be used ({why})")))
        }
    }
}

/// The names of the age plugins that the recipients or identities in a text belong to, one a line.
pub fn plugins_in(content: &[u8]) -> Vec<String> {
    let lines = content.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
    let named = lines.map(str::trim).filter_map(|line| {
        let recipient = line.parse::<plugin::Recipient>().map(|recipient| recipient.plugin().to_owned());
        recipient
            .or_else(|_| line.parse::<plugin::Identity>().map(|identity| identity.plugin().to_owned()))
            .ok()
    });
    named.collect()
}

fn ssh_recipient(text: &str) -> Result<ssh::Recipient, Refused> {
    if text.to_ascii_uppercase().contains("SECRET") {
        return Err(Refused::Wrong("this is an identity; it must stay secret".into()));
    }
    let (kind, rest) = text.split_once(' ').unwrap_or((text, ""));
    let blob = decode_what_is_base64(rest.trim_start().as_bytes());
    if has_zero_string(&blob) {
        return Err(Refused::Wrong("an SSH key with a malformed number".into()));
    }
    use ssh::ParseRecipientKeyError::{RsaModulusTooLarge, RsaModulusTooSmall};
    match text.parse() {
        Ok(recipient) => Ok(recipient),
        Err(RsaModulusTooLarge) => Err(Refused::Unsupported("RSA key of more than 4096 bits".into())),
        Err(RsaModulusTooSmall) => Err(Refused::Unsupported("RSA key of less than 2048 bits".into())),
        // OpenSSH's public keys say their kind twice: what says it once is none.
        Err(_)
            if !kind.is_empty() && split_string(&blob).is_some_and(|(named, _)| named == kind.as_bytes()) =>
        {
            match kind {
                "ssh-rsa" | "ssh-ed25519" => Err(Refused::Wrong(format!("a malformed {kind} key"))),
                _ => Err(Refused::Unsupported(format!("unsupported SSH key type {}", kind.escape_debug()))),
            }
        }
        Err(_) => Err(Refused::Unknown),
    }
}

/// Whether data in SSH's wire format (RFC 4251 section 5: strings behind 32-bit lengths) contains a string of zeroes
/// alone. The age crate (0.12.1) reads integers from such strings and runs off the end of one that is all zero, so it
/// must never be shown one; a canonical integer never is.
fn has_zero_string(mut wire: &[u8]) -> bool {
    while let Some((string, rest)) = split_string(wire) {
        if !string.is_empty() && string.iter().all(|byte| *byte == 0) {
            return true;
        }
        wire = rest;
    }
    false
}

/// The string that SSH's wire format begins with, and the rest.
fn split_string(wire: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = wire.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_be_bytes(*len) as usize)
}

/// The same question of an OpenSSH private key: its public part, and its private part unless that is encrypted.
fn private_key_has_zero_string(pem: &[u8]) -> bool {
    let lines = pem.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().starts_with(b"-----"));
    let body: Vec<u8> = lines.flatten().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let binary = Zeroizing::new(decode_what_is_base64(&body));
    let parts = || {
        let wire = binary.strip_prefix(b"openssh-key-v1\0")?;
        let (cipher, wire) = split_string(wire)?;
        let (_kdf, wire) = split_string(wire)?;
        let (_options, wire) = split_string(wire)?;
        let (public, wire) = split_string(wire.get(4..)?)?;
        // Two check words precede the private part's strings.
        let private = split_string(wire).and_then(|(private, _)| private.get(8..));
        Some((public, private.filter(|_| cipher == b"none").unwrap_or_default()))
    };
    parts().is_some_and(|(public, private)| has_zero_string(public) || has_zero_string(private))
}

/// Decodes as much as is base64: at least what any parser would see of it.
fn decode_what_is_base64(text: &[u8]) -> Vec<u8> {
    use base64::Engine;
    use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
    let lenient = GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(base64::engine::DecodePaddingMode::Indifferent);
    let known = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    let mut len = text.iter().take_while(|byte| known(byte)).count();
    // One symbol alone at the end stands for no byte.
    len -= usize::from(len % 4 == 1);
    GeneralPurpose::new(&base64::alphabet::STANDARD, lenient).decode(&text[..len]).unwrap_or_default()
}

/// A passphrase as the only recipient. `work_factor` is the base-two logarithm of scrypt's cost.
///
/// # Errors
/// [`wattlock_door::Error::Usage`] for a work factor that opening refuses by default.
pub fn passphrase_recipient(passphrase: SecretString, work_factor: u8) -> Result<BoxedRecipient, Error> {
    if !(1..=WORK_FACTOR_LIMIT).contains(&work_factor) {
        return Err(Error::Door(wattlock_door::Error::Usage(format!(
            "work factor must be between 1 and {WORK_FACTOR_LIMIT}"
        ))));
    }
    let mut recipient = scrypt::Recipient::new(passphrase);
    recipient.set_work_factor(work_factor);
    Ok(Box::new(recipient))
}

enum IdentityFile<C: Callbacks> {
    Ssh(ssh::Identity),
    Plain(age::IdentityFile<C>),
    Locked(age::encrypted::Identity<Cursor<Vec<u8>>, C>),
}

impl<C: Callbacks> IdentityFile<C> {
    fn parse(content: &[u8], callbacks: C) -> Result<IdentityFile<C>, Error> {
        use crate::format::armor;
        if content.len() > FILE_MAX {
            return Err(bad_identity("the file is too long"));
        }
        match guess(content) {
            Guess::Age => return IdentityFile::locked(content.to_vec(), callbacks),
            Guess::Armored if content.trim_ascii_start().starts_with(b"-----BEGIN AGE ") => {
                let mut binary = Vec::new();
                let mut reader = armor::Reader::new(content)?;
                std::io::Read::read_to_end(&mut reader, &mut binary)
                    .map_err(|error| Error::io("reading an identity file", error))?;
                return IdentityFile::locked(binary, callbacks);
            }
            Guess::Armored if private_key_has_zero_string(content) => {
                return Err(bad_identity("an SSH key with a malformed number"));
            }
            Guess::Armored => {
                let identity = ssh::Identity::from_buffer(BufReader::new(content), None);
                return match identity.map_err(|_| bad_identity("not an SSH private key"))? {
                    ssh::Identity::Unsupported(_) => Err(bad_identity("unsupported kind of SSH key")),
                    identity => Ok(IdentityFile::Ssh(identity)),
                };
            }
            Guess::Sealed => return Err(bad_identity("a sealed file: `wattlock open` opens it")),
            Guess::Unknown => {}
        }
        // The error names a line and quotes nothing.
        let file = age::IdentityFile::from_buffer(content);
        let file = file.map_err(|error| Error::BadIdentity(one_line(&error)))?;
        Ok(IdentityFile::Plain(file.with_callbacks(callbacks)))
    }

    fn locked(binary: Vec<u8>, callbacks: C) -> Result<IdentityFile<C>, Error> {
        let limit = Some(WORK_FACTOR_LIMIT);
        age::encrypted::Identity::from_buffer(Cursor::new(binary), None, callbacks, limit)
            .map_err(|_| bad_identity("a locked identity file that is damaged"))?
            .map(IdentityFile::Locked)
            .ok_or_else(|| bad_identity("a locked identity file must be locked with a passphrase"))
    }
}

/// Whether an identity file is a sealed file: [`crate::Opener::open_bytes`] makes of it what [`identities`] takes.
pub fn is_sealed(content: &[u8]) -> bool {
    let armored = crate::format::armor::SEALED_BEGIN.as_bytes();
    guess(content) == Guess::Sealed || content.trim_ascii_start().starts_with(armored)
}

/// The identities in an identity file: age's own kind, an SSH private key, or either locked.
///
/// # Errors
/// [`Error::BadIdentity`]; [`Error::Plugin`] for a plugin that is not installed.
pub fn identities(content: &[u8], callbacks: impl Callbacks) -> Result<Vec<BoxedIdentity>, Error> {
    match IdentityFile::parse(content, callbacks.clone())? {
        IdentityFile::Ssh(identity) => Ok(vec![Box::new(identity.with_callbacks(callbacks))]),
        IdentityFile::Locked(identity) => Ok(vec![Box::new(identity)]),
        IdentityFile::Plain(file) => {
            let identities = file.into_identities().map_err(unwrapping)?;
            if identities.is_empty() {
                return Err(bad_identity("no identity in the file"));
            }
            Ok(identities.into_iter().map(|identity| identity as BoxedIdentity).collect())
        }
    }
}

fn bad_identity(what: &str) -> Error {
    Error::BadIdentity(what.into())
}

/// An age file with one native identity behind one passphrase, and nothing else: what a volume keeps for a passphrase.
///
/// A user that may write the storage chooses every byte of it. So it is none of the other things that [`identities`]
/// reads: no clear identity, which would open what another made; no plugin, which would be started; no armor.
pub struct LockedIdentity<'a> {
    file: &'a [u8],
    header: Header,
    work_factor: u8,
}

impl<'a> LockedIdentity<'a> {
    /// Looks at a file, at no cost that the file could choose.
    ///
    /// # Errors
    /// [`Error::BadIdentity`], saying what the file is not.
    pub fn parse(file: &'a [u8]) -> Result<LockedIdentity<'a>, Error> {
        if file.len() > LOCKED_MAX {
            return Err(bad_identity("the file is too long"));
        }
        if guess(file) != Guess::Age {
            return Err(bad_identity("not locked with a passphrase as an age file"));
        }
        let header = parse_header(file).map_err(|error| Error::BadIdentity(error.to_string()))?;
        let [stanza] = &header.stanzas[..] else {
            return Err(bad_identity("not locked with one passphrase"));
        };
        let factor = match &stanza.args[..] {
            [_, factor] if stanza.tag == "scrypt" => factor.parse().ok(),
            _ => None,
        };
        let work_factor = factor.ok_or_else(|| bad_identity("not locked with one passphrase"))?;
        Ok(LockedIdentity { file, header, work_factor })
    }

    /// Base-two logarithm of the scrypt work factor that the file asks for.
    pub fn work_factor(&self) -> u8 {
        self.work_factor
    }

    /// The identity in it. Takes 2^(work factor + 10) bytes of memory for as long as this runs.
    ///
    /// # Errors
    /// [`Error::BadPassphrase`]; [`Error::ExcessiveWork`]; [`Error::BadIdentity`] if what the passphrase opens is
    /// anything but one native identity and comments; [`wattlock_door::Error::Engine`].
    pub fn unlock(
        &self,
        passphrase: &SecretString,
        work_factor_limit: u8,
        crypto: &mut dyn Crypto,
    ) -> Result<x25519::Identity, Error> {
        let passphrase = passphrase.clone();
        let ask: AskPassphrase = Box::new(move || Some(passphrase.clone()));
        let unlock = Unlock { identities: Vec::new(), passphrase: Some(ask), work_factor_limit };
        let damaged = |error| match error {
            Error::BadPassphrase
            | Error::ExcessiveWork { .. }
            | Error::Door(wattlock_door::Error::Engine(_)) => error,
            other => Error::BadIdentity(other.to_string()),
        };
        let file_key = unlock.file_key(&self.header, self.file, crypto).map_err(damaged)?;
        let (nonce, sealed) = self.file[self.header.len..]
            .split_first_chunk::<AGE_NONCE_LEN>()
            .filter(|(_, sealed)| sealed.len() > TAG_LEN)
            .ok_or_else(|| bad_identity("the file is truncated"))?;
        let key = PayloadKey::age(age_core::secrecy::ExposeSecret::expose_secret(&file_key), nonce, crypto)?;
        native_identity(&open_slice(&key, sealed, crypto).map_err(damaged)?)
    }
}

/// The one native identity in a text that has nothing else but comments.
fn native_identity(text: &[u8]) -> Result<x25519::Identity, Error> {
    let bad = || bad_identity("what is locked is not one age identity");
    let text = std::str::from_utf8(text).map_err(|_| bad())?;
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    match (lines.next().map(str::parse), lines.next()) {
        (Some(Ok(identity)), None) => Ok(identity),
        _ => Err(bad()),
    }
}

/// Asks for a passphrase; `None` if there is no user to ask.
pub type AskPassphrase = Box<dyn Fn() -> Option<SecretString>>;

/// The keys that open files.
pub(crate) struct Unlock {
    pub(crate) identities: Vec<BoxedIdentity>,
    pub(crate) passphrase: Option<AskPassphrase>,
    pub(crate) work_factor_limit: u8,
}

impl Unlock {
    /// The file key of a parsed header, whose MAC over `bytes` is then verified.
    ///
    /// Identities are tried in turn. A failing identity does not stop the next, unless the header itself is at fault.
    pub(crate) fn file_key(
        &self,
        header: &Header,
        bytes: &[u8],
        crypto: &mut dyn Crypto,
    ) -> Result<FileKey, Error> {
        let mut failed = None;
        for identity in &self.identities {
            match identity.unwrap_stanzas(&header.stanzas).map(|key| key.map_err(unwrapping)) {
                None => {}
                Some(Ok(key)) => return header.verify(bytes, &key, crypto).map(|()| key),
                Some(Err(error @ Error::BadHeader(_))) => return Err(error),
                Some(Err(error)) => failed = failed.or(Some(error)),
            }
        }
        if header.wants_passphrase() && failed.is_none() {
            let key = self.by_passphrase(header)?;
            return header.verify(bytes, &key, crypto).map(|()| key);
        }
        Err(failed.unwrap_or(Error::NoMatchingKey))
    }

    fn by_passphrase(&self, header: &Header) -> Result<FileKey, Error> {
        let ask = self.passphrase.as_ref().ok_or(Error::PassphraseNeeded)?;
        let mut identity = scrypt::Identity::new(ask().ok_or(Error::PassphraseNeeded)?);
        identity.set_max_work_factor(self.work_factor_limit);
        match identity.unwrap_stanzas(&header.stanzas) {
            Some(Ok(key)) => Ok(key),
            None | Some(Err(DecryptError::DecryptionFailed)) => Err(Error::BadPassphrase),
            Some(Err(DecryptError::ExcessiveWork { required, .. })) => {
                Err(Error::ExcessiveWork { required, limit: self.work_factor_limit })
            }
            Some(Err(error)) => Err(unwrapping(error)),
        }
    }
}

/// The [`Error`] for an age error while wrapping.
pub(crate) fn wrapping(error: EncryptError) -> Error {
    match error {
        EncryptError::Plugin(_) | EncryptError::PluginResolve(_) => Error::Plugin(one_line(&error)),
        EncryptError::EncryptedIdentities(error) => unwrapping(error),
        EncryptError::Io(error) => Error::io("wrapping the key", error),
        error => Error::Door(wattlock_door::Error::Usage(one_line(&error))),
    }
}

/// The [`Error`] for an age error while unwrapping.
pub(crate) fn unwrapping(error: DecryptError) -> Error {
    match error {
        DecryptError::DecryptionFailed => Error::WrongKey,
        DecryptError::KeyDecryptionFailed => Error::BadPassphrase,
        DecryptError::NoMatchingKeys => Error::NoMatchingKey,
        DecryptError::ExcessiveWork { required, .. } => {
            Error::ExcessiveWork { required, limit: WORK_FACTOR_LIMIT }
        }
        DecryptError::InvalidHeader => Error::BadHeader("a stanza"),
        DecryptError::InvalidMac => Error::BadHeader("its MAC does not match"),
        DecryptError::UnknownFormat => Error::UnknownVersion { format: "age", version: "unknown".into() },
        DecryptError::Io(error) => Error::io("unwrapping the key", error),
        error => Error::Plugin(one_line(&error)),
    }
}

/// age writes some messages over several lines, and its translations put invisible isolates around names.
fn one_line(error: &dyn std::fmt::Display) -> String {
    let visible = error.to_string().replace(['\u{2068}', '\u{2069}'], "");
    visible.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A string in SSH's wire format.
    fn wire(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u32).to_be_bytes()[..], bytes].concat()
    }

    fn base64(bytes: &[u8]) -> String {
        base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes)
    }

    #[test]
    fn an_ssh_key_whose_number_is_all_zero_is_refused() {
        let public = [wire(b"ssh-rsa"), wire(&[0]), wire(&[0, 0xff])].concat();
        let line = format!("ssh-rsa {}", base64(&public));
        let added = Recipients::new().add(&line);
        assert!(matches!(added, Err(Error::BadRecipient(why)) if why.contains("malformed number")));
        // What a fuzzer found: the rest need not even be base64.
        let found = b"ssh-rsa AAAAB3NzaC1yc2EAAAABACLI7Qc/8n8Rd8+tAsgtQ1jZ3sshRkI-";
        assert!(matches!(Recipients::new().add_file(found), Err(Error::BadRecipient(_))));

        let good = [wire(b"ssh-rsa"), wire(&[1, 0, 1]), wire(&[0, 0xff])].concat();
        let secret = [vec![7; 8], wire(b"ssh-rsa"), wire(&[0, 0xff]), wire(&[0, 0])].concat();
        for (public, secret) in [(&public, &good), (&good, &secret)] {
            let none = [wire(b"none"), wire(b"none"), wire(b""), vec![0, 0, 0, 1]].concat();
            let key = [&b"openssh-key-v1\0"[..], &none, &wire(public), &wire(secret)].concat();
            let pem = format!(
                "-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----\n",
                base64(&key)
            );
            let read = identities(pem.as_bytes(), age::NoCallbacks);
            assert!(matches!(read, Err(Error::BadIdentity(why)) if why.contains("malformed number")));
        }
    }
    use age::NoCallbacks;

    const RECIPIENT: &str = "age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj";
    const IDENTITY: &str = "AGE-SECRET-KEY-1GFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPQ4EGAEX";

    fn count(file: &str) -> Result<usize, Error> {
        let mut recipients = Recipients::new();
        recipients.add_file(file.as_bytes())?;
        Ok(recipients.finish(NoCallbacks)?.len())
    }

    #[test]
    fn recipients_file_skips_comments_and_empty_lines() {
        assert_eq!(count(&format!("# mine\n\n{RECIPIENT}\r\n  {RECIPIENT}\n")).unwrap(), 2);
    }

    #[test]
    fn bad_line_is_named_and_not_quoted() {
        let error = count(&format!("{RECIPIENT}\nhunter2\n")).unwrap_err().to_string();
        assert!(error.contains("line 2") && !error.contains("hunter2"), "{error}");
        let mut recipients = Recipients::new();
        let error = recipients.add(IDENTITY).unwrap_err().to_string();
        assert!(!error.contains("GFPYYS"), "{error}");
        assert!(matches!(recipients.add("hello"), Err(Error::BadRecipient(_))));
        assert!(matches!(recipients.add_file(&[0xff; 4]), Err(Error::BadRecipient(_))));
        assert!(matches!(recipients.add_file(&vec![b'\n'; FILE_MAX + 1]), Err(Error::BadRecipient(_))));
    }

    #[test]
    fn bad_line_of_a_known_kind_says_what_is_wrong_with_it() {
        let key = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBFIe3quXjN5vTF4\
                   xIBLWQE6XX6UwbK3BO7xJo8O2wYVMXNI7lVEaWAgzCqtgWTDmKVD2wVUKnFDZ3ESBaS0YdHo= x@y";
        let error = count(&format!("{key}\n")).unwrap_err().to_string();
        assert!(error.contains("line 1: unsupported SSH key type ecdsa-sha2-nistp256"), "{error}");
    }

    #[test]
    fn missing_plugin_is_named_in_plain_text() {
        const PLUGIN: &str = "age1foo1qqqqqqqq7h0uur";
        let Error::Plugin(text) = count(PLUGIN).unwrap_err() else { panic!("not a plugin") };
        assert!(text.contains("'age-plugin-foo'"), "{text:?}");
    }

    #[test]
    fn identity_file_gives_identities_and_their_recipients() {
        let file = format!("# created\n{IDENTITY}\n");
        assert_eq!(identities(file.as_bytes(), NoCallbacks).unwrap().len(), 1);
        let mut recipients = Recipients::new();
        recipients.add_identity_file(file.as_bytes(), NoCallbacks).unwrap();
        assert_eq!(recipients.finish(NoCallbacks).unwrap().len(), 1);
    }

    #[test]
    fn bad_identity_file_is_refused_without_being_quoted() {
        for content in ["hunter2\n", "", "# nothing\n", "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2\n"] {
            let Err(error) = identities(content.as_bytes(), NoCallbacks) else { panic!("{content}") };
            assert!(matches!(error, Error::BadIdentity(_)), "{content}: {error}");
            assert!(!error.to_string().contains("hunter2"));
        }
    }

    #[test]
    fn work_factor_that_we_would_not_read_is_not_written() {
        assert!(passphrase_recipient("x".to_owned().into(), WORK_FACTOR_LIMIT + 1).is_err());
        assert!(passphrase_recipient("x".to_owned().into(), 0).is_err());
    }
}
