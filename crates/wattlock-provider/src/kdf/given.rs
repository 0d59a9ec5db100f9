//! What a list of parameters says, if every OpenSSL since 3.0 would understand it in the same way.

use std::ffi::CStr;

use super::Flavour;
use crate::params::{Param, Params};

/// Digests that are done here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hash {
    Sha1,
    Sha256,
    Sha384,
    Sha512,
}

impl Hash {
    pub const ALL: [Hash; 4] = [Hash::Sha1, Hash::Sha256, Hash::Sha384, Hash::Sha512];

    /// The names by which OpenSSL's own provider knows it, the first of which libssl uses.
    pub const fn names(self) -> [&'static str; 3] {
        match self {
            Hash::Sha1 => ["SHA1", "SHA-1", "SSL3-SHA1"],
            Hash::Sha256 => ["SHA256", "SHA2-256", "SHA-256"],
            Hash::Sha384 => ["SHA384", "SHA2-384", "SHA-384"],
            Hash::Sha512 => ["SHA512", "SHA2-512", "SHA-512"],
        }
    }

    /// The first of the names, for OpenSSL.
    pub const fn c_name(self) -> &'static CStr {
        match self {
            Hash::Sha1 => c"SHA1",
            Hash::Sha256 => c"SHA256",
            Hash::Sha384 => c"SHA384",
            Hash::Sha512 => c"SHA512",
        }
    }

    /// Whether that derivation is done here with it. Nobody's TLS 1.3 uses SHA-1.
    pub fn serves(self, flavour: Flavour) -> bool {
        flavour != Flavour::Tls13 || self != Hash::Sha1
    }

    fn named(name: &str) -> Option<Hash> {
        Hash::ALL.into_iter().find(|hash| hash.names().iter().any(|known| known.eq_ignore_ascii_case(name)))
    }
}

/// `EVP_KDF_HKDF_MODE_...`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    ExtractAndExpand = 0,
    Extract = 1,
    Expand = 2,
}

impl Mode {
    const ALL: [(Mode, &'static str); 3] = [
        (Mode::ExtractAndExpand, "EXTRACT_AND_EXPAND"),
        (Mode::Extract, "EXTRACT_ONLY"),
        (Mode::Expand, "EXPAND_ONLY"),
    ];

    fn read(param: Param<'_>) -> Option<Mode> {
        let named = |mode: &&(Mode, &str)| match param.is_text() {
            true => param.text().is_some_and(|text| mode.1.eq_ignore_ascii_case(text)),
            false => param.int() == Some(mode.0 as i64),
        };
        Mode::ALL.iter().find(named).map(|(mode, _)| *mode)
    }
}

/// Byte strings that a list has once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// HKDF's input keying material or pseudorandom key; the PRF's secret.
    Key,
    Salt,
    Prefix,
    Label,
    Data,
}

/// How many [`Part`]s there are.
pub const PARTS: usize = 5;
/// Most bytes of a part. OpenSSL has no limit; whoever needs more gets it from there.
const PART_MOST: usize = 1024;
/// Most byte strings of one list that are joined to one: newer versions refuse more than five infos or six seeds.
const JOINED: usize = 5;

/// What a list sets. Byte strings are the caller's and stay where they are.
#[derive(Default)]
pub struct Given<'a> {
    pub digest: Option<Hash>,
    pub mode: Option<Mode>,
    parts: [Option<&'a [u8]>; PARTS],
    joined: [&'a [u8]; JOINED],
    count: usize,
}

/// What an entry's name means to a derivation.
enum Meaning {
    Digest,
    Mode,
    Once(Part),
    /// HKDF's info, the PRF's seed: an entry may come several times.
    Joined,
    /// A property query, an ENGINE.
    Strange,
    Nothing,
}

fn meaning(flavour: Flavour, name: &[u8]) -> Meaning {
    use Flavour::{Hkdf, Prf, Tls13};
    match (flavour, name) {
        (_, b"digest") => Meaning::Digest,
        (_, b"properties" | b"engine") => Meaning::Strange,
        (Hkdf | Tls13, b"mode") => Meaning::Mode,
        (Hkdf | Tls13, b"key") | (Prf, b"secret") => Meaning::Once(Part::Key),
        (Hkdf | Tls13, b"salt") => Meaning::Once(Part::Salt),
        (Hkdf, b"info") | (Prf, b"seed") => Meaning::Joined,
        (Tls13, b"prefix") => Meaning::Once(Part::Prefix),
        (Tls13, b"label") => Meaning::Once(Part::Label),
        (Tls13, b"data") => Meaning::Once(Part::Data),
        _ => Meaning::Nothing,
    }
}

/// The first value; versions differ about a second.
fn once<T>(place: &mut Option<T>, value: T) -> Option<()> {
    place.is_none().then(|| *place = Some(value))
}

impl<'a> Given<'a> {
    /// `None` if OpenSSL's own has to look at it.
    pub fn read(flavour: Flavour, params: Params<'a>) -> Option<Given<'a>> {
        let mut given = Given::default();
        for param in params.iter() {
            match meaning(flavour, param.key().to_bytes()) {
                Meaning::Digest => {
                    let name = param.text().filter(|_| param.is_text())?;
                    let hash = Hash::named(name).filter(|hash| hash.serves(flavour))?;
                    once(&mut given.digest, hash)?;
                }
                Meaning::Mode => once(&mut given.mode, Mode::read(param)?)?,
                Meaning::Once(part) => {
                    let bytes = octets(param).filter(|bytes| bytes.len() <= PART_MOST)?;
                    // HKDF without a salt and with an empty salt is the same. Elsewhere, or where it points nowhere,
                    // an empty string is an absent one or an error, depending on the version.
                    let as_if_absent = flavour == Flavour::Hkdf && part == Part::Salt && !param.is_null();
                    if bytes.is_empty() && !as_if_absent {
                        return None;
                    }
                    once(&mut given.parts[part as usize], bytes)?;
                }
                Meaning::Joined => {
                    *given.joined.get_mut(given.count)? = octets(param)?;
                    given.count += 1;
                }
                Meaning::Strange => return None,
                Meaning::Nothing => {}
            }
        }
        Some(given)
    }

    /// One of the parts, if it is given.
    pub fn part(&self, part: Part) -> Option<&'a [u8]> {
        self.parts[part as usize]
    }

    /// The pieces of info or seed, if there is any entry of that name.
    pub fn joined(&self) -> Option<&[&'a [u8]]> {
        (self.count > 0).then(|| &self.joined[..self.count])
    }
}

fn octets<'a>(param: Param<'a>) -> Option<&'a [u8]> {
    param.octets().filter(|_| param.is_octets())
}
