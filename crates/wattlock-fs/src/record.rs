//! A folder's record: the key of its names, sealed by the volume. 128 bytes, big-endian:
//!
//! magic 8 | version 1 | zero 3 | key generation 4 | folder id 8 | nonce 24 | sealed key 64 | tag 16
//!
//! Sealed with XAES-256-GCM (C2SP) under the volume's `files` key of that generation; the first 24 bytes are
//! associated data.

use wattlock_door::Crypto;
use zeroize::Zeroizing;

use crate::Error;
use crate::format::{NONCE_LEN as NONCE, TAG_LEN as TAG};
use crate::volume::Volume;
use crate::xaes::XaesKey;

/// The record's name in its folder.
pub const NAME: &str = "wattlock.dir";
/// Its length in bytes.
pub(crate) const LEN: usize = 128;
/// Its first bytes.
const MAGIC: &[u8; 8] = b"wlfolder";
const VERSION: u8 = 1;
const AAD: usize = 24;
const KEY: usize = 64;

/// The keys that seal folder records, by generation, ascending. Expanded once.
pub(crate) struct Masters(Vec<(u32, XaesKey)>);

impl Masters {
    pub(crate) fn new(volume: &Volume, crypto: &mut impl Crypto) -> Result<Masters, Error> {
        let mut masters = Vec::new();
        for (generation, _) in &volume.keys {
            let mut key = Zeroizing::new([0; 32]);
            volume.derive(*generation, "files", &mut key[..], crypto)?;
            masters.push((*generation, XaesKey::new(&key, crypto)?));
        }
        Ok(Masters(masters))
    }

    pub(crate) fn newest(&self) -> Result<(u32, &XaesKey), Error> {
        let last = self.0.last().ok_or_else(|| Error::BadVolume("no key".into()))?;
        Ok((last.0, &last.1))
    }

    fn of(&self, generation: u32) -> Option<&XaesKey> {
        self.0.iter().find(|(known, _)| *known == generation).map(|(_, key)| key)
    }
}

/// A folder's key and what goes with it.
pub(crate) struct Record {
    /// Of the folder: what is sealed anew keeps it.
    pub(crate) id: [u8; 8],
    pub(crate) key: Zeroizing<[u8; KEY]>,
}

impl Record {
    /// For a new folder.
    pub(crate) fn fresh() -> Result<Record, Error> {
        let mut record = Record { id: [0; 8], key: Zeroizing::new([0; KEY]) };
        crate::random(&mut record.id)?;
        crate::random(&mut record.key[..])?;
        Ok(record)
    }

    /// Seals under the newest key.
    pub(crate) fn seal(&self, masters: &Masters, crypto: &mut impl Crypto) -> Result<[u8; LEN], Error> {
        let (generation, master) = masters.newest()?;
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8] = VERSION;
        bytes[12..16].copy_from_slice(&generation.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.id);
        bytes[AAD + NONCE..LEN - TAG].copy_from_slice(&self.key[..]);
        seal_in_place(&mut bytes, master, crypto)?;
        Ok(bytes)
    }

    /// Opens what [`Record::seal`] made. One of which the version byte was altered is to be [`restored`] first.
    ///
    /// # Errors
    /// [`Error::Newer`] for another version; [`Error::Damaged`].
    pub(crate) fn open(bytes: &[u8], masters: &Masters, crypto: &mut impl Crypto) -> Result<Record, Error> {
        let bad = |why: &str| Error::Damaged(format!("folder record: {why}"));
        let bytes: &[u8; LEN] = bytes.try_into().map_err(|_| bad("its length"))?;
        if bytes[..8] != MAGIC[..] {
            return Err(bad("its first bytes"));
        }
        if bytes[8] != VERSION {
            return Err(Error::Newer(format!("version {} of the folder record", bytes[8])));
        }
        let number = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let generation = number(12);
        let master = masters.of(generation).ok_or_else(|| bad("its key generation is unknown"))?;
        let mut opened = Zeroizing::new(*bytes);
        if !open_in_place(&mut opened[..], master, crypto)? {
            return Err(bad("it does not authenticate"));
        }
        if bytes[9..12] != [0; 3] {
            return Err(Error::Newer("flags of the folder record".into()));
        }
        let mut record = Record { id: [0; 8], key: Zeroizing::new([0; KEY]) };
        record.id.copy_from_slice(&bytes[16..24]);
        record.key.copy_from_slice(&opened[AAD + NONCE..LEN - TAG]);
        Ok(record)
    }
}

/// What a file's header and a folder's record have in common: 24 bytes of associated data with the key generation at
/// 12, a nonce, a sealed key of some length, a tag. Sealed anew under the newest key; `None` if it is already.
///
/// # Errors
/// [`Error::Damaged`].
pub(crate) fn reseal(
    bytes: &[u8],
    masters: &Masters,
    crypto: &mut impl Crypto,
) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
    let bad = |why: &str| Error::Damaged(format!("header: {why}"));
    if bytes.len() <= AAD + NONCE + TAG {
        return Err(bad("its length"));
    }
    let whole = restored(bytes, masters, crypto)?;
    let bytes = whole.as_deref().unwrap_or(bytes);
    let generation = u32::from_be_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]);
    let (newest, to) = masters.newest()?;
    if generation == newest {
        return Ok(None);
    }
    let from = masters.of(generation).ok_or_else(|| bad("its key generation is unknown"))?;
    let mut bytes = Zeroizing::new(bytes.to_vec());
    if !open_in_place(&mut bytes, from, crypto)? {
        return Err(bad("it does not authenticate"));
    }
    bytes[12..16].copy_from_slice(&newest.to_be_bytes());
    seal_in_place(&mut bytes, to, crypto)?;
    Ok(Some(bytes))
}

/// The bytes as they were sealed, if they authenticate with another version byte than they have: the version is in the
/// associated data, so that byte was altered, and no newer program wrote it.
///
/// # Errors
/// [`Error::Engine`].
pub(crate) fn restored(
    bytes: &[u8],
    masters: &Masters,
    crypto: &mut impl Crypto,
) -> Result<Option<Vec<u8>>, Error> {
    if bytes.get(8).is_none_or(|version| *version == VERSION) {
        return Ok(None);
    }
    let mut whole = bytes.to_vec();
    whole[8] = VERSION;
    Ok(authenticates(&whole, masters, crypto)?.then_some(whole))
}

/// Whether such bytes were sealed with one of these keys.
///
/// # Errors
/// [`Error::Engine`].
pub(crate) fn authenticates(
    bytes: &[u8],
    masters: &Masters,
    crypto: &mut impl Crypto,
) -> Result<bool, Error> {
    if bytes.len() <= AAD + NONCE + TAG {
        return Ok(false);
    }
    let generation = u32::from_be_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]);
    match masters.of(generation) {
        Some(master) => open_in_place(&mut Zeroizing::new(bytes.to_vec()), master, crypto),
        None => Ok(false),
    }
}

/// Seals what lies between nonce and tag, under a fresh nonce.
fn seal_in_place(bytes: &mut [u8], key: &XaesKey, crypto: &mut impl Crypto) -> Result<(), Error> {
    let (aad, rest) = bytes.split_at_mut(AAD);
    let (nonce, rest) = rest.split_at_mut(NONCE);
    let (secret, tag) = rest.split_at_mut(rest.len() - TAG);
    let mut fresh = [0; NONCE];
    crate::random(&mut fresh)?;
    nonce.copy_from_slice(&fresh);
    tag.copy_from_slice(&key.seal(&fresh, aad, secret, crypto)?);
    Ok(())
}

/// Opens it; says whether it authenticated.
fn open_in_place(bytes: &mut [u8], key: &XaesKey, crypto: &mut impl Crypto) -> Result<bool, Error> {
    let (aad, rest) = bytes.split_at_mut(AAD);
    let (nonce, rest) = rest.split_at_mut(NONCE);
    let (secret, tag) = rest.split_at_mut(rest.len() - TAG);
    let short = |_| Error::Damaged("header: its length".into());
    let (nonce, tag) = ((&*nonce).try_into().map_err(short)?, (&*tag).try_into().map_err(short)?);
    key.open(nonce, aad, secret, tag, crypto)
}

/// Whether bytes have the form of a record. Nothing says that they authenticate.
pub(crate) fn looks_like(bytes: &[u8]) -> bool {
    bytes.len() == LEN && bytes.starts_with(MAGIC) && bytes[8] == VERSION
}

/// Whether a folder has a record, or what has its name.
pub(crate) fn is_in(folder: &std::os::fd::OwnedFd) -> bool {
    let there = rustix::fs::statat(folder, NAME, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
    !matches!(there, Err(rustix::io::Errno::NOENT))
}
