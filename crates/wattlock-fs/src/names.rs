//! Sealed names, link targets and extended attributes: AES-256-SIV (RFC 5297), then base64url without padding where the
//! result is a name.
//!
//! Names and the names of attributes have no nonce: the same name gives the same stored name, or nothing could be found
//! again. Link targets and the values of attributes have a random one, so that equal ones do not look equal.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustix::io::Errno;
use wattlock_core::{Algorithm, Data, Error as CoreError, Key, Kind, Request};
use wattlock_door::Crypto;
use zeroize::Zeroizing;

use crate::Error;
use crate::volume::Volume;

/// Longest name in bytes (`NAME_MAX`), clear or stored.
pub const NAME_MAX: usize = 255;
/// Longest name that is stored whole: 16 bytes more are 191, and 255 in base64.
pub const WHOLE_MAX: usize = 175;
/// Longest link target that is stored (`PATH_MAX` less the terminator).
pub const TARGET_MAX: usize = 4095;
/// Bytes of a synthetic vector.
pub(crate) const VECTOR: usize = 16;
/// Bytes of a random nonce.
const NONCE: usize = 16;

/// What a kernel interprets itself and an encrypted file system therefore leaves as it is.
const CLEAR: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
/// The namespaces whose attributes are sealed.
const SPACES: [&str; 3] = ["user.", "trusted.", "security."];
/// What follows the namespace in the stored name of a sealed attribute.
const MARK: &str = "wattlock.";

/// Whether bytes can be a name.
///
/// # Errors
/// [`Error::Io`] with `ENAMETOOLONG` above 255 bytes; `EINVAL` for an empty one, `.`, `..`, and one with a slash or a zero
/// byte.
pub fn check(name: &[u8]) -> Result<(), Error> {
    if name.len() > NAME_MAX {
        return Err(Error::io("a name", Errno::NAMETOOLONG));
    }
    if name.is_empty() || name == b"." || name == b".." || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
        return Err(Error::io("a name", Errno::INVAL));
    }
    Ok(())
}

/// Bytes of what another program added to a stored name that are shown at most: enough of the name stays beside them.
const ADDED_SHOWN: usize = 220;

/// What an entry is shown as that another program named: no key holder wrote `added`, so it stands between brackets, which
/// a name always ends with. The end of a name that is too long for that gives way.
pub(crate) fn marked(name: &[u8], added: &[u8], turn: Option<u32>) -> Vec<u8> {
    let turn = turn.map_or(String::new(), |turn| format!(" ~{turn}"));
    let mark = [b" [conflict ", cut(added, ADDED_SHOWN), turn.as_bytes(), b"]"].concat();
    [cut(name, NAME_MAX - mark.len()), &mark].concat()
}

/// As many bytes as have room. A letter of UTF-8 is not cut.
fn cut(text: &[u8], most: usize) -> &[u8] {
    let most = most.min(text.len());
    let whole = std::str::from_utf8(text).ok();
    let end = whole.and_then(|text| (0..=most).rev().find(|end| text.is_char_boundary(*end)));
    &text[..end.unwrap_or(most)]
}

/// Seals bytes: vector, then ciphertext.
pub(crate) fn seal(
    key: &Key,
    (aad, nonce): (&[u8], &[u8]),
    clear: &[u8],
    crypto: &mut impl Crypto,
) -> Result<Vec<u8>, Error> {
    let mut sealed = vec![0; VECTOR + clear.len()];
    let (tag, to) = sealed.split_at_mut(VECTOR);
    let request = Request::new(Kind::Aes256SivSeal, key, Data::Apart { from: clear, to });
    crypto.run(&mut Request { nonce, aad, tag, ..request })?;
    Ok(sealed)
}

/// Opens what [`seal`] made; `None` if it does not authenticate.
pub(crate) fn open(
    key: &Key,
    (aad, nonce): (&[u8], &[u8]),
    sealed: &[u8],
    crypto: &mut impl Crypto,
) -> Result<Option<Vec<u8>>, Error> {
    let Some((tag, from)) = sealed.split_first_chunk::<VECTOR>() else { return Ok(None) };
    let (mut tag, mut clear) = (*tag, vec![0; from.len()]);
    let request = Request::new(Kind::Aes256SivOpen, key, Data::Apart { from, to: &mut clear });
    match crypto.run(&mut Request { nonce, aad, tag: &mut tag, ..request }) {
        Ok(_) => Ok(Some(clear)),
        Err(CoreError::Authentication) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// As base64url.
pub(crate) fn encode(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// From base64url. There is one form of each.
pub(crate) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// The sealed form of a name under a key.
pub(crate) fn seal_name(key: &Key, name: &[u8], crypto: &mut impl Crypto) -> Result<Vec<u8>, Error> {
    seal(key, (b"name", b""), name, crypto)
}

/// The name in a sealed form; `None` for what is none.
pub(crate) fn open_name(
    key: &Key,
    sealed: &[u8],
    crypto: &mut impl Crypto,
) -> Result<Option<Vec<u8>>, Error> {
    Ok(open(key, (b"name", b""), sealed, crypto)?.filter(|name| check(name).is_ok()))
}

/// Seals link targets and extended attributes of one volume. Shared by threads.
pub struct Extras {
    links: Key,
    attributes: Key,
}

impl Extras {
    /// With a volume's keys.
    ///
    /// # Errors
    /// [`Error::Engine`].
    pub fn new(volume: &Volume, crypto: &mut impl Crypto) -> Result<Extras, Error> {
        let mut key = |purpose: &str| lasting(volume, purpose, crypto);
        Ok(Extras { links: key("links")?, attributes: key("attributes")? })
    }

    /// The stored form of a link's target.
    ///
    /// # Errors
    /// [`Error::Io`] with `ENAMETOOLONG` where the stored form would be longer than a target can be.
    pub fn seal_target(&self, target: &[u8], crypto: &mut impl Crypto) -> Result<String, Error> {
        let sealed = with_nonce(&self.links, b"link", target, crypto)?;
        let stored = encode(&sealed);
        if stored.len() > TARGET_MAX {
            return Err(Error::io("a link's target", Errno::NAMETOOLONG));
        }
        Ok(stored)
    }

    /// A link's target from its stored form.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn open_target(&self, stored: &[u8], crypto: &mut impl Crypto) -> Result<Vec<u8>, Error> {
        let damaged = || Error::Damaged("link target".into());
        let sealed = decode(stored).ok_or_else(damaged)?;
        without_nonce(&self.links, b"link", &sealed, crypto)?.ok_or_else(damaged)
    }

    /// The stored name of an extended attribute. POSIX ACLs keep theirs, since the kernel reads them.
    ///
    /// # Errors
    /// [`Error::Io`]: `EOPNOTSUPP` for another namespace, `ERANGE` for a name that does not fit when it is sealed: in
    /// `user.` above 164 bytes.
    pub fn attribute(&self, name: &[u8], crypto: &mut impl Crypto) -> Result<Vec<u8>, Error> {
        if CLEAR.contains(&name) {
            return Ok(name.to_vec());
        }
        let space =
            SPACES.iter().find(|space| name.len() > space.len() && name.starts_with(space.as_bytes()));
        let space = space.ok_or_else(|| Error::io("an attribute's name", Errno::OPNOTSUPP))?;
        let sealed = seal(&self.attributes, (space.as_bytes(), b""), &name[space.len()..], crypto)?;
        let stored = format!("{space}{MARK}{}", encode(&sealed)).into_bytes();
        if stored.len() > NAME_MAX {
            return Err(Error::io("an attribute's name", Errno::RANGE));
        }
        Ok(stored)
    }

    /// The name of a stored attribute; `None` for one that is not ours.
    ///
    /// # Errors
    /// [`Error::Damaged`] for one that is and does not authenticate.
    pub fn attribute_name(&self, stored: &[u8], crypto: &mut impl Crypto) -> Result<Option<Vec<u8>>, Error> {
        if CLEAR.contains(&stored) {
            return Ok(Some(stored.to_vec()));
        }
        for space in SPACES {
            let sealed =
                stored.strip_prefix(space.as_bytes()).and_then(|rest| rest.strip_prefix(MARK.as_bytes()));
            let Some(sealed) = sealed else { continue };
            let opened = match decode(sealed) {
                Some(sealed) => open(&self.attributes, (space.as_bytes(), b""), &sealed, crypto)?,
                None => None,
            };
            let name = opened.ok_or_else(|| Error::Damaged("an attribute's name".into()))?;
            return Ok(Some([space.as_bytes(), &name].concat()));
        }
        Ok(None)
    }

    /// The stored form of an attribute's value: 32 bytes longer, bound to the attribute's name.
    ///
    /// # Errors
    /// [`Error::Engine`].
    pub fn seal_value(&self, name: &[u8], value: &[u8], crypto: &mut impl Crypto) -> Result<Vec<u8>, Error> {
        if CLEAR.contains(&name) {
            return Ok(value.to_vec());
        }
        with_nonce(&self.attributes, name, value, crypto)
    }

    /// An attribute's value from its stored form.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn open_value(&self, name: &[u8], stored: &[u8], crypto: &mut impl Crypto) -> Result<Vec<u8>, Error> {
        if CLEAR.contains(&name) {
            return Ok(stored.to_vec());
        }
        let opened = without_nonce(&self.attributes, name, stored, crypto)?;
        opened.ok_or_else(|| Error::Damaged("an attribute's value".into()))
    }
}

/// The length of a link's target by the length of its stored form: no key is needed.
pub fn target_len(stored: u64) -> u64 {
    (stored / 4 * 3 + (stored % 4).saturating_sub(1)).saturating_sub((NONCE + VECTOR) as u64)
}

/// The length of an attribute's value by that of its stored form.
pub fn value_len(stored: usize) -> usize {
    stored.saturating_sub(NONCE + VECTOR)
}

/// A SIV key of a volume that rotation keeps.
pub(crate) fn lasting(volume: &Volume, purpose: &str, crypto: &mut impl Crypto) -> Result<Key, Error> {
    let mut key = Zeroizing::new([0; 64]);
    volume.derive_lasting(purpose, &mut key[..], crypto)?;
    Ok(Key::symmetric(Algorithm::Aes256Siv, &key[..])?)
}

fn with_nonce(key: &Key, aad: &[u8], clear: &[u8], crypto: &mut impl Crypto) -> Result<Vec<u8>, Error> {
    let mut nonce = [0; NONCE];
    crate::random(&mut nonce)?;
    let sealed = seal(key, (aad, &nonce), clear, crypto)?;
    Ok([&nonce[..], &sealed].concat())
}

fn without_nonce(
    key: &Key,
    aad: &[u8],
    stored: &[u8],
    crypto: &mut impl Crypto,
) -> Result<Option<Vec<u8>>, Error> {
    let Some((nonce, sealed)) = stored.split_first_chunk::<NONCE>() else { return Ok(None) };
    open(key, (aad, nonce), sealed, crypto)
}
