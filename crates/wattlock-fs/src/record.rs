//! A folder's record: the key of its names, sealed by the volume. 128 bytes, big-endian:
//!
//! magic 8 | version 1 | zero 3 | key generation 4 | folder id 8 | nonce 24 | sealed key 64 | tag 16
//!
//! Sealed with XAES-256-GCM (C2SP) under the volume's `files` key of that generation; the first 24 bytes are
//! associated data.

use wattlock_core::{Algorithm, Data, Error as CoreError, Key, Kind, Request};
use wattlock_files::Crypto;
use zeroize::Zeroizing;

use crate::Error;
use crate::volume::Volume;

/// The record's name in its folder.
pub(crate) const NAME: &str = "wattlock.dir";
/// Its length in bytes.
pub(crate) const LEN: usize = 128;
/// Its first bytes.
const MAGIC: &[u8; 8] = b"wlfolder";
const VERSION: u8 = 1;
const AAD: usize = 24;
const NONCE: usize = 24;
const KEY: usize = 64;

/// The keys that seal folder records, by generation, ascending. Expanded once.
pub(crate) struct Masters(Vec<(u32, Key)>);

impl Masters {
    pub(crate) fn new(volume: &Volume, crypto: &mut impl Crypto) -> Result<Masters, Error> {
        let mut masters = Vec::new();
        for (generation, _) in &volume.keys {
            let mut key = Zeroizing::new([0; 32]);
            volume.derive(*generation, "files", &mut key[..], crypto)?;
            masters.push((*generation, Key::symmetric(Algorithm::Aes256Cbc, &key[..])?));
        }
        Ok(Masters(masters))
    }

    pub(crate) fn newest(&self) -> Result<(u32, &Key), Error> {
        let last = self.0.last().ok_or_else(|| Error::BadVolume("no key".into()))?;
        Ok((last.0, &last.1))
    }

    fn of(&self, generation: u32) -> Option<&Key> {
        self.0.iter().find(|(known, _)| *known == generation).map(|(_, key)| key)
    }
}

/// A folder's key and what goes with it.
pub(crate) struct Record {
    id: [u8; 8],
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
        crate::random(&mut bytes[AAD..AAD + NONCE])?;
        let (aad, rest) = bytes.split_at_mut(AAD);
        let (nonce, rest) = rest.split_at_mut(NONCE);
        let (sealed, tag) = rest.split_at_mut(KEY);
        sealed.copy_from_slice(&self.key[..]);
        let key = derived(master, nonce, crypto)?;
        let request = Request::new(Kind::Aes256GcmSeal, &key, Data::InPlace(sealed));
        crypto.run(&mut Request { nonce: &nonce[12..], aad, tag, ..request })?;
        Ok(bytes)
    }

    /// Opens what [`Record::seal`] made.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub(crate) fn open(bytes: &[u8], masters: &Masters, crypto: &mut impl Crypto) -> Result<Record, Error> {
        let bad = |why: &str| Error::Damaged(format!("folder record: {why}"));
        let bytes: &[u8; LEN] = bytes.try_into().map_err(|_| bad("its length"))?;
        if bytes[..8] != MAGIC[..] {
            return Err(bad("its first bytes"));
        }
        if bytes[8] != VERSION {
            return Err(bad("its version"));
        }
        let number = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let generation = number(12);
        let master = masters.of(generation).ok_or_else(|| bad("its key generation is unknown"))?;
        let (aad, rest) = bytes.split_at(AAD);
        let (nonce, rest) = rest.split_at(NONCE);
        let (sealed, tag) = rest.split_at(KEY);
        let mut record = Record { id: [0; 8], key: Zeroizing::new([0; KEY]) };
        record.id.copy_from_slice(&bytes[16..24]);
        let mut tag: [u8; 16] = tag.try_into().map_err(|_| bad("its length"))?;
        let key = derived(master, nonce, crypto)?;
        let data = Data::Apart { from: sealed, to: &mut record.key[..] };
        let request = Request::new(Kind::Aes256GcmOpen, &key, data);
        match crypto.run(&mut Request { nonce: &nonce[12..], aad, tag: &mut tag, ..request }) {
            Ok(_) => Ok(record),
            Err(CoreError::Authentication) => Err(bad("it does not authenticate")),
            Err(error) => Err(error.into()),
        }
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
    if bytes.len() <= AAD + NONCE + 16 {
        return Err(bad("its length"));
    }
    let generation = u32::from_be_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]);
    let (newest, to) = masters.newest()?;
    if generation == newest {
        return Ok(None);
    }
    let from = masters.of(generation).ok_or_else(|| bad("its key generation is unknown"))?;
    let mut bytes = Zeroizing::new(bytes.to_vec());
    let (aad, rest) = bytes.split_at_mut(AAD);
    let (nonce, rest) = rest.split_at_mut(NONCE);
    let (sealed, tag) = rest.split_at_mut(rest.len() - 16);
    let key = derived(from, nonce, crypto)?;
    let request = Request::new(Kind::Aes256GcmOpen, &key, Data::InPlace(sealed));
    match crypto.run(&mut Request { nonce: &nonce[12..], aad, tag, ..request }) {
        Ok(_) => {}
        Err(CoreError::Authentication) => return Err(bad("it does not authenticate")),
        Err(error) => return Err(error.into()),
    }
    aad[12..16].copy_from_slice(&newest.to_be_bytes());
    crate::random(nonce)?;
    let key = derived(to, nonce, crypto)?;
    let request = Request::new(Kind::Aes256GcmSeal, &key, Data::InPlace(sealed));
    crypto.run(&mut Request { nonce: &nonce[12..], aad, tag, ..request })?;
    Ok(Some(bytes))
}

/// XAES-256-GCM's derived key (C2SP): CMAC of two blocks, each of one counter, a letter and the nonce's first half.
fn derived(master: &Key, nonce: &[u8], crypto: &mut impl Crypto) -> Result<Key, Error> {
    let mut block = |input: &[u8; 16], to: &mut [u8]| -> Result<(), Error> {
        let data = Data::Apart { from: input, to };
        let request = Request::new(Kind::Aes256CbcEncrypt, master, data);
        crypto.run(&mut Request { nonce: &[0; 16], ..request })?;
        Ok(())
    };
    let mut subkey = Zeroizing::new([0; 16]);
    block(&[0; 16], &mut subkey[..])?;
    let number = u128::from_be_bytes(*subkey);
    *subkey = ((number << 1) ^ ((number >> 127) * 0x87)).to_be_bytes();
    let mut key = Zeroizing::new([0; 32]);
    for (half, to) in key.chunks_exact_mut(16).enumerate() {
        let mut input = Zeroizing::new([0, half as u8 + 1, b'X', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        input[4..].copy_from_slice(&nonce[..12]);
        for (byte, mask) in input.iter_mut().zip(subkey.iter()) {
            *byte ^= mask;
        }
        block(&input, to)?;
    }
    Ok(Key::symmetric(Algorithm::Aes256Gcm, &key[..])?)
}
