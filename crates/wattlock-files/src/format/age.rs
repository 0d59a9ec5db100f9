//! The header of a plain age v1 file (c2sp.org/age): grammar, serialisation and MAC.
//!
//! The stanzas' content belongs to the `age` crate: its recipients make them, its identities open them. This module
//! does the text around them and the keys derived from the file key.

use std::collections::HashSet;

use age_core::format::{FileKey, Stanza, is_arbitrary_string};
use age_core::secrecy::ExposeSecret;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD_NO_PAD as BASE64;
use subtle::ConstantTimeEq;
use wattlock_core::{Algorithm, Key, Kind};
use zeroize::Zeroizing;

use crate::error::Error;
use wattlock_door::{Crypto, short};

/// How every age file of any version starts.
pub const MAGIC: &[u8] = b"age-encryption.org/";

/// First line of the version this crate writes, and the only one it reads.
const VERSION_LINE: &[u8] = b"age-encryption.org/v1\n";

/// Longest version that is quoted as one. Anything longer is damage.
const VERSION_MAX: usize = 16;

/// Longest header accepted or written, in bytes.
pub const MAX_LEN: usize = 1 << 20;

/// Base64 characters of a full stanza line, and the bytes they stand for.
const COLUMNS: usize = 64;
const COLUMN_BYTES: usize = 48;

/// The stanza type of passphrases; it must be the only stanza.
const SCRYPT: &str = "scrypt";

/// A parsed header.
#[derive(Debug)]
pub struct Header {
    /// The stanzas, in order.
    pub stanzas: Vec<Stanza>,
    /// Bytes of the whole header, its last line feed included.
    pub len: usize,
    /// Bytes that the MAC covers: up to and including the three dashes.
    covered: usize,
    mac: [u8; 32],
}

impl Header {
    /// Whether the file is locked with a passphrase.
    pub fn wants_passphrase(&self) -> bool {
        self.stanzas.iter().any(|stanza| stanza.tag == SCRYPT)
    }

    /// Checks the MAC over `bytes`, the same that [`parse_header`] was given.
    ///
    /// # Errors
    /// [`Error::BadHeader`] if it does not match; [`wattlock_door::Error::Engine`].
    pub fn verify(&self, bytes: &[u8], file_key: &FileKey, crypto: &mut dyn Crypto) -> Result<(), Error> {
        let mac = mac(&bytes[..self.covered], file_key, crypto)?;
        if bool::from(mac.ct_eq(&self.mac)) {
            Ok(())
        } else {
            Err(Error::BadHeader("its MAC does not match"))
        }
    }
}

/// Where the header ends, if its last line is in `bytes`: one past its line feed. The search starts at `from`, so a
/// caller that reads in pieces searches each byte once.
pub fn find_end(bytes: &[u8], from: usize) -> Option<usize> {
    const DASHES: &[u8] = b"\n---";
    let from = from.saturating_sub(DASHES.len() - 1);
    let dashes = from + bytes.get(from..)?.windows(DASHES.len()).position(|window| window == DASHES)?;
    let line = dashes + 1;
    Some(line + bytes[line..].iter().position(|byte| *byte == b'\n')? + 1)
}

/// Parses the header at the start of `bytes`, which must hold all of it.
///
/// # Errors
/// [`Error::Empty`], [`Error::NotSealed`], [`Error::UnknownVersion`], [`Error::HeaderTooLarge`],
/// [`Error::Truncated`] if the last line is missing, [`Error::BadHeader`] naming what breaks the grammar.
pub fn parse_header(bytes: &[u8]) -> Result<Header, Error> {
    check_version(bytes)?;
    let searched = &bytes[..bytes.len().min(MAX_LEN)];
    let Some(len) = find_end(searched, 0) else {
        let claimed = bytes.len() as u64;
        let too_large = bytes.len() > MAX_LEN;
        return Err(if too_large {
            Error::HeaderTooLarge { claimed, limit: MAX_LEN as u64 }
        } else {
            Error::Truncated
        });
    };
    let mut lines = Lines(&bytes[VERSION_LINE.len()..len]);
    let mut stanzas = Vec::new();
    let mac = loop {
        let line = lines.next().ok_or(Error::BadHeader("no last line"))?;
        if let Some(mac) = line.strip_prefix(b"--- ") {
            break mac;
        }
        let arguments = line.strip_prefix(b"-> ").ok_or(Error::BadHeader("a line that is no stanza"))?;
        stanzas.push(stanza(arguments, &mut lines)?);
    };
    if stanzas.is_empty() {
        return Err(Error::BadHeader("no recipients"));
    }
    if stanzas.len() > 1 && stanzas.iter().any(|stanza| stanza.tag == SCRYPT) {
        return Err(Error::BadHeader("a passphrase beside other recipients"));
    }
    let covered = len - 1 - mac.len() - 1;
    let mac = decode(mac)?.try_into().map_err(|_| Error::BadHeader("length of its MAC"))?;
    Ok(Header { stanzas, len, covered, mac })
}

/// Checks the first line, as far as it is there.
fn check_version(bytes: &[u8]) -> Result<(), Error> {
    if bytes.is_empty() {
        return Err(Error::Empty);
    }
    let known = bytes.len().min(MAGIC.len());
    if bytes[..known] != MAGIC[..known] {
        return Err(Error::NotSealed);
    }
    if bytes.starts_with(VERSION_LINE) {
        return Ok(());
    }
    match bytes.iter().take(80).position(|byte| *byte == b'\n') {
        Some(end) => match &bytes[MAGIC.len().min(end)..end] {
            version @ [b'v', ..]
                if version.len() <= VERSION_MAX && version.iter().all(u8::is_ascii_graphic) =>
            {
                Err(Error::UnknownVersion { format: "age", version: String::from_utf8_lossy(version).into() })
            }
            _ => Err(Error::BadHeader("first line")),
        },
        None if bytes.len() < 80 => Err(Error::Truncated),
        None => Err(Error::BadHeader("first line")),
    }
}

/// Lines that end in a line feed, without it.
struct Lines<'a>(&'a [u8]);

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == b'\n')?;
        let (line, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Some(line)
    }
}

fn stanza(arguments: &[u8], lines: &mut Lines<'_>) -> Result<Stanza, Error> {
    let text = std::str::from_utf8(arguments).map_err(|_| Error::BadHeader("a stanza's arguments"))?;
    let mut words = text.split(' ').map(|word| {
        if is_arbitrary_string(&word) {
            Ok(word.to_owned())
        } else {
            Err(Error::BadHeader("a stanza's arguments"))
        }
    });
    let tag = words.next().ok_or(Error::BadHeader("a stanza without a type"))??;
    let args = words.collect::<Result<_, _>>()?;
    let mut encoded = Vec::new();
    loop {
        let line = lines.next().ok_or(Error::BadHeader("a stanza without an end"))?;
        if line.len() > COLUMNS {
            return Err(Error::BadHeader("a stanza's line is too long"));
        }
        encoded.extend_from_slice(line);
        if line.len() < COLUMNS {
            return Ok(Stanza { tag, args, body: decode(&encoded)? });
        }
    }
}

/// Base64 without padding, canonical.
fn decode(text: &[u8]) -> Result<Vec<u8>, Error> {
    BASE64.decode(text).map_err(|_| Error::BadHeader("base64"))
}

/// Wraps `file_key` for every recipient and writes the header.
///
/// # Errors
/// [`wattlock_door::Error::Usage`] for no recipients or recipients that exclude each other, [`Error::HeaderTooLarge`],
/// [`Error::Plugin`], [`wattlock_door::Error::Engine`].
pub fn write_header<'a>(
    recipients: impl IntoIterator<Item = &'a (dyn age::Recipient + Send)>,
    file_key: &FileKey,
    crypto: &mut dyn Crypto,
) -> Result<Vec<u8>, Error> {
    let mut stanzas = Vec::new();
    let mut agreed: Option<HashSet<String>> = None;
    for recipient in recipients {
        let (mut wrapped, labels) = recipient.wrap_file_key(file_key).map_err(crate::keys::wrapping)?;
        stanzas.append(&mut wrapped);
        if agreed.get_or_insert_with(|| labels.clone()) != &labels {
            return Err(Error::Door(wattlock_door::Error::Usage(
                "these recipients cannot be combined in one file".into(),
            )));
        }
    }
    if stanzas.is_empty() {
        return Err(Error::Door(wattlock_door::Error::Usage("no recipients".into())));
    }
    if stanzas.len() > 1 && stanzas.iter().any(|stanza| stanza.tag == SCRYPT) {
        return Err(Error::Door(wattlock_door::Error::Usage(
            "a passphrase cannot be combined with other recipients".into(),
        )));
    }
    let mut header = encode(&stanzas);
    let mac = mac(&header, file_key, crypto)?;
    header.push(b' ');
    header.extend_from_slice(BASE64.encode(mac).as_bytes());
    header.push(b'\n');
    if header.len() > MAX_LEN {
        return Err(Error::HeaderTooLarge { claimed: header.len() as u64, limit: MAX_LEN as u64 });
    }
    Ok(header)
}

/// Everything that the MAC covers.
fn encode(stanzas: &[Stanza]) -> Vec<u8> {
    let mut text = VERSION_LINE.to_vec();
    for stanza in stanzas {
        text.extend_from_slice(b"-> ");
        text.extend_from_slice(stanza.tag.as_bytes());
        for argument in &stanza.args {
            text.push(b' ');
            text.extend_from_slice(argument.as_bytes());
        }
        text.push(b'\n');
        let full = stanza.body.len() / COLUMN_BYTES * COLUMN_BYTES;
        for line in stanza.body[..full].chunks(COLUMN_BYTES).chain([&stanza.body[full..]]) {
            text.extend_from_slice(BASE64.encode(line).as_bytes());
            text.push(b'\n');
        }
    }
    text.extend_from_slice(b"---");
    text
}

/// HMAC-SHA-256 under a key derived from the file key (c2sp.org/age, "Header MAC").
fn mac(covered: &[u8], file_key: &FileKey, crypto: &mut dyn Crypto) -> Result<[u8; 32], Error> {
    let mut derived = Zeroizing::new([0; 32]);
    let file_key = Key::symmetric(Algorithm::Secret, file_key.expose_secret())?;
    short(crypto, Kind::HkdfSha256, &file_key, (b"", b"header"), b"", &mut derived[..])?;
    let key = Key::symmetric(Algorithm::Secret, &derived[..])?;
    let mut mac = [0; 32];
    short(crypto, Kind::HmacSha256, &key, (b"", b""), covered, &mut mac)?;
    Ok(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    fn header(middle: &str) -> Vec<u8> {
        format!("age-encryption.org/v1\n{middle}--- {MAC}\n").into_bytes()
    }

    fn grammar_error(bytes: &[u8]) -> &'static str {
        match parse_header(bytes) {
            Err(Error::BadHeader(what)) => what,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_was_encoded_parses_to_the_same_stanzas() {
        for len in [0, 1, 32, 47, 48, 49, 96, 100] {
            let body: Vec<u8> = (0..len).collect();
            let stanza = Stanza { tag: "t".into(), args: vec!["a".into(), "b".into()], body: body.clone() };
            let mut text = encode(&[stanza]);
            text.extend_from_slice(format!(" {MAC}\n").as_bytes());
            text.extend_from_slice(b"payload");
            let parsed = parse_header(&text).unwrap();
            assert_eq!(parsed.stanzas[0].body, body);
            assert_eq!(parsed.stanzas[0].args, ["a", "b"]);
            assert_eq!(&text[parsed.len..], b"payload");
            assert!(text[..parsed.covered].ends_with(b"\n---"));
        }
    }

    #[test]
    fn grammar_is_enforced() {
        assert_eq!(grammar_error(&header("")), "no recipients");
        assert_eq!(grammar_error(&header("-> a\n\n-> scrypt\n\n")), "a passphrase beside other recipients");
        assert_eq!(grammar_error(&header("-> \n\n")), "a stanza's arguments");
        assert_eq!(grammar_error(&header("-> a  b\n\n")), "a stanza's arguments");
        assert_eq!(grammar_error(&header("-> a\nAB\n")), "base64");
        assert_eq!(grammar_error(&header("-> a\nAA==\n")), "base64");
        assert_eq!(grammar_error(&header("hello\n")), "a line that is no stanza");
        assert_eq!(
            grammar_error(&header(&format!("-> a\n{}\n", "A".repeat(65)))),
            "a stanza's line is too long"
        );
        assert_eq!(grammar_error(b"age-encryption.org/v1\n-> a\n\n---\n"), "a line that is no stanza");
        assert_eq!(grammar_error(b"age-encryption.org/v1\n-> a\n\n--- AAAA\n"), "length of its MAC");
    }

    #[test]
    fn a_full_last_line_needs_an_empty_one_behind_it() {
        let full = "A".repeat(64);
        assert_eq!(parse_header(&header(&format!("-> a\n{full}\n\n"))).unwrap().stanzas[0].body.len(), 48);
        assert!(parse_header(&header(&format!("-> a\n{full}\n"))).is_err());
    }

    #[test]
    fn unknown_version_is_named() {
        let error = parse_header(b"age-encryption.org/v2\n").unwrap_err();
        assert!(matches!(error, Error::UnknownVersion { version, .. } if version == "v2"));
    }

    #[test]
    fn every_cut_is_truncated() {
        let whole = header("-> a b\nAAAA\n");
        for len in 1..whole.len() {
            assert!(matches!(parse_header(&whole[..len]), Err(Error::Truncated)), "{len}");
        }
    }

    #[test]
    fn a_header_without_end_is_too_large_not_endless() {
        let mut text = VERSION_LINE.to_vec();
        text.resize(MAX_LEN + 1, b'A');
        assert!(matches!(parse_header(&text), Err(Error::HeaderTooLarge { .. })));
    }
}
