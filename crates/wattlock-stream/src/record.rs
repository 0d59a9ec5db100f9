//! Records sealed one by one, as a broker's topics need them: each can be read, moved and compacted away alone.
//!
//! A batch shares a fresh salt, from which its key comes; so nothing is counted across batches, and nothing needs to be
//! remembered or persisted. Topic and partition are in the derivation; the record's key, its time and its place in the
//! batch are associated data. A value that is put under another key, partition or place does not open.
//!
//! A tombstone (no value) stays a tombstone. Keys are not touched.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use wattlock_core::{Algorithm, Data, Error as CoreError, Item, Key, Kind, LatencyClass, Request};
use wattlock_files::{Crypto, random, short};
use zeroize::Zeroizing;

use crate::error::Error;
use crate::format::expand;

/// First byte of a sealed value.
pub const VERSION: u8 = 1;
/// Bytes of a batch's salt.
pub const SALT_LEN: usize = 24;
/// Records of one batch, at most: their numbers take at most three bytes.
pub const BATCH_MAX: usize = 1 << 21;
/// What sealing adds to a value, at most.
pub const EXTRA_MAX: usize = ID_AT + 16 + SALT_LEN + 3 + TAG_LEN;

const ID_AT: usize = 1;
const SALT_AT: usize = ID_AT + 16;
const INDEX_AT: usize = SALT_AT + SALT_LEN;
const TAG_LEN: usize = 16;

const ID_LABEL: &[u8] = b"wattlock record v1 id\0";
const BATCH_LABEL: &[u8] = b"wattlock record v1 batch\0";

/// Batches whose keys an opener remembers.
const REMEMBERED: usize = 1024;

/// Names a stream key. It is derived from the key, so that no other key can stand under its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub [u8; 16]);

impl StreamId {
    /// The name of a key.
    ///
    /// # Errors
    /// [`Error::Files`] for an engine that failed.
    pub fn of(key: &[u8; 32], crypto: &mut dyn Crypto) -> Result<StreamId, Error> {
        let mut id = [0; 16];
        expand(key, ID_LABEL, &mut id, crypto)?;
        Ok(StreamId(id))
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for StreamId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<StreamId, &'static str> {
        const WRONG: &str = "a key's name has 32 hexadecimal digits";
        let lower = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 32 || !text.as_bytes().iter().all(lower) {
            return Err(WRONG);
        }
        let mut id = [0; 16];
        for (byte, digits) in id.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| WRONG)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| WRONG)?;
        }
        Ok(StreamId(id))
    }
}

/// Where a batch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place<'a> {
    /// The topic's name.
    pub topic: &'a str,
    /// The partition's number.
    pub partition: u32,
}

/// A record. For sealing the value is plain, for opening it is sealed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Record<'a> {
    /// Its key, if it has one. Stays in the clear.
    pub key: Option<&'a [u8]>,
    /// Its value; a tombstone has none.
    pub value: Option<&'a [u8]>,
    /// Its time in milliseconds, where the topic keeps the producer's. It is then bound as well.
    pub timestamp: Option<i64>,
}

/// A batch's key and base nonce.
struct BatchKey {
    key: Key,
    base: [u8; 12],
}

impl BatchKey {
    fn new(
        stream_key: &[u8; 32],
        salt: &[u8; SALT_LEN],
        place: Place<'_>,
        crypto: &mut dyn Crypto,
    ) -> Result<BatchKey, Error> {
        let topic = place.topic.as_bytes();
        let context =
            [&(topic.len() as u32).to_be_bytes()[..], topic, &place.partition.to_be_bytes()].concat();
        let mut digest = [0; 64];
        short(crypto, Kind::Sha512, Key::none(), (b"", b""), &context, &mut digest)?;
        let info = [BATCH_LABEL, salt, &digest].concat();
        let mut derived = Zeroizing::new([0; 44]);
        expand(stream_key, &info, &mut derived[..], crypto)?;
        let mut base = [0; 12];
        base.copy_from_slice(&derived[32..]);
        Ok(BatchKey { key: Key::symmetric(Algorithm::Aes256Gcm, &derived[..32])?, base })
    }

    fn nonce(&self, index: u32) -> [u8; 12] {
        let mut nonce = self.base;
        nonce[8..].iter_mut().zip(index.to_be_bytes()).for_each(|(byte, count)| *byte ^= count);
        nonce
    }
}

/// Seven bits a byte, the lowest first, the highest bit set in all but the last.
fn put_index(index: u32, to: &mut Vec<u8>) {
    let mut left = index;
    while left >= 0x80 {
        to.push(left as u8 | 0x80);
        left >>= 7;
    }
    to.push(left as u8);
}

/// The number at the start, and its length. Only the shortest form counts.
fn take_index(bytes: &[u8]) -> Option<(u32, usize)> {
    let mut index = 0;
    for (at, byte) in bytes.iter().take(3).enumerate() {
        index |= u32::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return (*byte != 0 || at == 0).then_some((index, at + 1));
        }
    }
    None
}

/// What is bound to a value beside its batch: everything in front of the ciphertext, the record's key and its time.
fn bound(prefix: &[u8], record: &Record<'_>) -> Vec<u8> {
    let key = record.key.unwrap_or_default();
    let time = record.timestamp.map(i64::to_be_bytes);
    let mut aad = Vec::with_capacity(prefix.len() + key.len() + 14);
    aad.extend_from_slice(prefix);
    aad.push(u8::from(record.key.is_some()));
    aad.extend_from_slice(&(key.len() as u32).to_be_bytes());
    aad.extend_from_slice(key);
    aad.push(u8::from(time.is_some()));
    aad.extend_from_slice(time.as_ref().map_or(&[], |time| &time[..]));
    aad
}

/// Seals records under one stream key.
pub struct RecordSealer {
    id: StreamId,
    key: Zeroizing<[u8; 32]>,
}

impl RecordSealer {
    /// With this key. It must be durable for its readers by now; see [`crate::keys`].
    ///
    /// # Errors
    /// [`Error::Files`] for an engine that failed.
    pub fn new(key: Zeroizing<[u8; 32]>, crypto: &mut dyn Crypto) -> Result<RecordSealer, Error> {
        Ok(RecordSealer { id: StreamId::of(&key, crypto)?, key })
    }

    /// The key's name.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Seals the records of one batch, in one call of the engines. Tombstones come back as such.
    ///
    /// # Errors
    /// [`Error::Files`] for an engine that failed, or more than [`BATCH_MAX`] records.
    pub fn seal_batch(
        &self,
        place: Place<'_>,
        records: &[Record<'_>],
        crypto: &mut dyn Crypto,
    ) -> Result<Vec<Option<Vec<u8>>>, Error> {
        if records.len() > BATCH_MAX {
            return Err(CoreError::Invalid("records of a batch").into());
        }
        let mut salt = [0; SALT_LEN];
        random(&mut salt)?;
        let batch = BatchKey::new(&self.key, &salt, place, crypto)?;
        let mut start = vec![VERSION];
        start.extend_from_slice(&self.id.0);
        start.extend_from_slice(&salt);
        let mut sealed: Vec<Option<Vec<u8>>> = Vec::with_capacity(records.len());
        let (mut aads, mut nonces, mut plains) = (Vec::new(), Vec::new(), Vec::new());
        for (record, index) in records.iter().zip(0..) {
            let Some(value) = record.value else {
                sealed.push(None);
                continue;
            };
            let mut whole = Vec::with_capacity(EXTRA_MAX + value.len());
            whole.extend_from_slice(&start);
            put_index(index, &mut whole);
            aads.push(bound(&whole, record));
            nonces.push(batch.nonce(index));
            plains.push((value, whole.len()));
            whole.resize(whole.len() + value.len() + TAG_LEN, 0);
            sealed.push(Some(whole));
        }
        let parts = sealed.iter_mut().flatten().zip(&plains).zip(aads.iter().zip(&nonces));
        let mut items: Vec<Item<'_>> = parts
            .map(|((whole, (from, at)), (aad, nonce))| {
                let (to, tag) = whole[*at..].split_at_mut(from.len());
                let request = Request::new(Kind::Aes256GcmSeal, &batch.key, Data::Apart { from, to });
                Item::new(Request { nonce, aad, tag, class: LatencyClass::Bulk, ..request })
            })
            .collect();
        crypto.run_all(&mut items);
        if let Some(error) = items.iter().find_map(|item| item.result.err()) {
            return Err(error.into());
        }
        drop(items);
        Ok(sealed)
    }
}

/// Finds the key of a name.
pub trait StreamKeys {
    /// The key, or nothing if there is none of that name.
    ///
    /// # Errors
    /// A key that is there and does not open.
    fn find(&mut self, id: StreamId, crypto: &mut dyn Crypto) -> Result<Option<Zeroizing<[u8; 32]>>, Error>;
}

/// Opens records.
pub struct RecordOpener<K> {
    keys: K,
    known: HashMap<StreamId, Zeroizing<[u8; 32]>>,
    batches: HashMap<([u8; 16 + SALT_LEN], String, u32), Arc<BatchKey>>,
}

/// A record's value; a tombstone has none.
pub type Opened = Result<Option<Zeroizing<Vec<u8>>>, Error>;

/// A sealed value, taken apart.
struct Parts<'a> {
    batch: Arc<BatchKey>,
    nonce: [u8; 12],
    aad: Vec<u8>,
    text: &'a [u8],
    tag: Vec<u8>,
    plain: Zeroizing<Vec<u8>>,
}

impl<K: StreamKeys> RecordOpener<K> {
    /// With these keys.
    pub fn new(keys: K) -> RecordOpener<K> {
        RecordOpener { keys, known: HashMap::new(), batches: HashMap::new() }
    }

    /// Opens records of one partition, of any batches, in one call of the engines: each has a result of its own.
    pub fn open_batch(
        &mut self,
        place: Place<'_>,
        records: &[Record<'_>],
        crypto: &mut dyn Crypto,
    ) -> Vec<Opened> {
        let mut all: Vec<Result<Option<Parts<'_>>, Error>> = records
            .iter()
            .map(|record| record.value.map(|value| self.parts(place, record, value, crypto)).transpose())
            .collect();
        let open = all.iter_mut().filter_map(|parts| parts.as_mut().ok()?.as_mut());
        let mut items: Vec<Item<'_>> = open
            .map(|parts| {
                let data = Data::Apart { from: parts.text, to: &mut parts.plain };
                let request = Request::new(Kind::Aes256GcmOpen, &parts.batch.key, data);
                let class = LatencyClass::Bulk;
                Item::new(Request {
                    nonce: &parts.nonce,
                    aad: &parts.aad,
                    tag: &mut parts.tag,
                    class,
                    ..request
                })
            })
            .collect();
        crypto.run_all(&mut items);
        let results: Vec<_> = items.iter().map(|item| item.result).collect();
        drop(items);
        let mut results = results.into_iter();
        let verified = |parts: Parts<'_>, result: Option<Result<usize, CoreError>>| match result {
            Some(Ok(_)) => Ok(Some(parts.plain)),
            Some(Err(CoreError::Authentication)) | None => Err(Error::RecordAltered),
            Some(Err(error)) => Err(error.into()),
        };
        let opened = all.into_iter().map(|parts| match parts? {
            None => Ok(None),
            Some(parts) => verified(parts, results.next()),
        });
        opened.collect()
    }

    fn parts<'v>(
        &mut self,
        place: Place<'_>,
        record: &Record<'_>,
        value: &'v [u8],
        crypto: &mut dyn Crypto,
    ) -> Result<Parts<'v>, Error> {
        if value.first() != Some(&VERSION) {
            return Err(Error::NotARecord("unknown version"));
        }
        let short = Error::NotARecord("too short");
        let Some(source) = value.get(ID_AT..INDEX_AT).and_then(|source| source.try_into().ok()) else {
            return Err(short);
        };
        let (index, len) = take_index(&value[INDEX_AT..]).ok_or(Error::NotARecord("its number"))?;
        let (prefix, sealed) = value.split_at(INDEX_AT + len);
        let Some(text_len) = sealed.len().checked_sub(TAG_LEN) else { return Err(short) };
        let batch = self.batch(source, place, crypto)?;
        let (text, tag) = sealed.split_at(text_len);
        Ok(Parts {
            nonce: batch.nonce(index),
            aad: bound(prefix, record),
            text,
            tag: tag.to_vec(),
            plain: Zeroizing::new(vec![0; text_len]),
            batch,
        })
    }

    fn batch(
        &mut self,
        source: [u8; 16 + SALT_LEN],
        place: Place<'_>,
        crypto: &mut dyn Crypto,
    ) -> Result<Arc<BatchKey>, Error> {
        let name = (source, place.topic.to_owned(), place.partition);
        if let Some(batch) = self.batches.get(&name) {
            return Ok(batch.clone());
        }
        let (mut id, mut salt) = ([0; 16], [0; SALT_LEN]);
        id.copy_from_slice(&source[..16]);
        salt.copy_from_slice(&source[16..]);
        let key = self.key(StreamId(id), crypto)?;
        let batch = Arc::new(BatchKey::new(&key, &salt, place, crypto)?);
        if self.batches.len() >= REMEMBERED {
            self.batches.clear();
        }
        self.batches.insert(name, batch.clone());
        Ok(batch)
    }

    fn key(&mut self, id: StreamId, crypto: &mut dyn Crypto) -> Result<Zeroizing<[u8; 32]>, Error> {
        if let Some(key) = self.known.get(&id) {
            return Ok(key.clone());
        }
        let key = self.keys.find(id, crypto)?.ok_or(Error::NoKey(id))?;
        if StreamId::of(&key, crypto)? != id {
            return Err(Error::BadEntry { name: id.to_string(), what: "holds another key" });
        }
        if self.known.len() >= REMEMBERED {
            self.known.clear();
        }
        self.known.insert(id, key.clone());
        Ok(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_one_form() {
        for index in [0, 1, 0x7f, 0x80, 0x3fff, 0x4000, BATCH_MAX as u32 - 1] {
            let mut bytes = Vec::new();
            put_index(index, &mut bytes);
            assert!(bytes.len() <= 3);
            assert_eq!(take_index(&bytes), Some((index, bytes.len())));
        }
        assert_eq!(take_index(&[0x80, 0]), None, "a longer form of zero");
        assert_eq!(take_index(&[0xff, 0xff, 0xff]), None, "no end");
        assert_eq!(take_index(&[0x80]), None);
    }

    #[test]
    fn names_read_back() {
        let id = StreamId([0xa0; 16]);
        assert_eq!(id.to_string().parse(), Ok(id));
        for wrong in ["", "a0", &"A0".repeat(16), &"+0".repeat(16), &"g0".repeat(16), "../a"] {
            assert!(wrong.parse::<StreamId>().is_err(), "{wrong}");
        }
    }
}
