//! Records sealed one by one, as a broker's topics need them: each can be read, moved and compacted away alone.
//!
//! A batch shares a fresh salt, from which its key comes; so nothing is counted across batches, and nothing needs to be
//! remembered or persisted. Topic and partition are in the derivation; the record's key, its time, its clear headers and
//! its place in the batch are associated data. A value that is put under another key, partition or place does not open.
//!
//! A tombstone (no value) stays a tombstone; what was sealed of it, and the proof that a sealer wrote it, is a header.
//! Keys are not touched; [`crate::names`] is for those that must not be read.

use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;

use wattlock_core::{Algorithm, Data, Error as CoreError, Item, Key, Kind, LatencyClass, Part, Request};
use wattlock_door::{Crypto, random, short};
use zeroize::Zeroizing;

use crate::content::{self, Body, Header};
use crate::error::Error;
use crate::format::expand;

/// First byte of a sealed value.
pub const VERSION: u8 = 1;
/// First bytes that are taken for a later version's. No text begins with one, and no Protobuf message.
const LATER: RangeInclusive<u8> = VERSION + 1..=7;
/// Bytes of a batch's salt.
pub const SALT_LEN: usize = 24;
/// Records of one batch, at most: their numbers take at most three bytes.
pub const BATCH_MAX: usize = 1 << 21;
/// Headers of a record, at most.
pub const HEADERS_MAX: usize = 1 << 12;
/// What sealing adds to a value without sealed headers, at most.
pub const EXTRA_MAX: usize = INDEX_AT + 3 + 1 + TAG_LEN;
/// The header that a sealed tombstone has.
pub const PROOF: &str = "wattlock";
/// What a value may take once it is unpacked, unless a reader says otherwise.
pub const VALUE_MAX: usize = 64 << 20;

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

/// A record. For sealing it is plain; for opening it is as it stands on the topic.
#[derive(Debug, Clone, Copy, Default)]
pub struct Record<'a> {
    /// Its key, if it has one, as it stands on the sealed topic.
    pub key: Option<&'a [u8]>,
    /// Its value; a tombstone has none.
    pub value: Option<&'a [u8]>,
    /// Its time in milliseconds, if the sealed topic keeps the producer's. It is then bound as well.
    pub timestamp: Option<i64>,
    /// Its headers, in their order.
    pub headers: &'a [Header<'a>],
}

impl Record<'_> {
    /// Whether readers open what a sealer makes of this record.
    ///
    /// # Errors
    /// [`Error::Unfit`]: it has more than [`HEADERS_MAX`] headers.
    pub fn check(&self) -> Result<(), Error> {
        if self.headers.len() > HEADERS_MAX { Err(Error::Unfit("more than 4096 headers")) } else { Ok(()) }
    }
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

/// Appends what is bound to a value beside its batch: everything in front of the ciphertext, the record's key, its time
/// and its clear headers.
fn bind(prefix: &[u8], record: &Record<'_>, clear: impl Fn(&Header<'_>) -> bool, aad: &mut Vec<u8>) {
    let key = record.key.unwrap_or_default();
    aad.extend_from_slice(prefix);
    aad.push(u8::from(record.key.is_some()));
    aad.extend_from_slice(&(key.len() as u32).to_be_bytes());
    aad.extend_from_slice(key);
    aad.push(u8::from(record.timestamp.is_some()));
    if let Some(time) = record.timestamp {
        aad.extend_from_slice(&time.to_be_bytes());
    }
    content::put_headers(
        record.headers.iter().filter(|header| clear(header)).map(|&header| Some(header)),
        aad,
    );
}

/// How a sealer treats what is in a record.
#[derive(Debug, Clone, Default)]
pub struct Shape {
    /// Names of headers that stay as they are: they can be read and not altered.
    pub clear_headers: Vec<String>,
    /// Whether values are compressed before they are sealed. Lengths then tell something about content.
    pub compress: bool,
}

impl Shape {
    /// Whether headers of this name stay as they are.
    pub fn is_clear(&self, name: &str) -> bool {
        name != PROOF && self.clear_headers.iter().any(|clear| clear == name)
    }
}

/// Seals records under one stream key.
pub struct RecordSealer {
    id: StreamId,
    key: Zeroizing<[u8; 32]>,
    /// How records are treated.
    pub shape: Shape,
}

/// Records as they go to the topic.
pub struct SealedBatch {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl SealedBatch {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// What stands for the record of this number: its value, or a tombstone's header [`PROOF`].
    ///
    /// # Panics
    /// If there is no such record.
    pub fn get(&self, number: usize) -> &[u8] {
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[number]]
    }
}

impl RecordSealer {
    /// With this key. It must be durable for its readers by now; see [`crate::keys`].
    ///
    /// # Errors
    /// [`Error::Files`] for an engine that failed.
    pub fn new(key: Zeroizing<[u8; 32]>, crypto: &mut dyn Crypto) -> Result<RecordSealer, Error> {
        Ok(RecordSealer { id: StreamId::of(&key, crypto)?, key, shape: Shape::default() })
    }

    /// The key's name.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Seals the records of one batch, in one call of the engines, after one that compresses them if that is wanted: what
    /// compressed them seals them, if it can.
    ///
    /// # Errors
    /// [`Error::Files`] for an engine that failed, or more than [`BATCH_MAX`] records; [`Error::Unfit`] if
    /// [`Record::check`] refuses one.
    pub fn seal_batch(
        &self,
        place: Place<'_>,
        records: &[Record<'_>],
        crypto: &mut dyn Crypto,
    ) -> Result<SealedBatch, Error> {
        if records.len() > BATCH_MAX {
            return Err(CoreError::Invalid("records of a batch").into());
        }
        records.iter().try_for_each(Record::check)?;
        let mut salt = [0; SALT_LEN];
        random(&mut salt)?;
        let batch = BatchKey::new(&self.key, &salt, place, crypto)?;
        let mut start = vec![VERSION];
        start.extend_from_slice(&self.id.0);
        start.extend_from_slice(&salt);
        let whole: u64 =
            records.iter().filter_map(|record| record.value).map(|value| value.len() as u64).sum();
        let (packed, after) = match self.shape.compress {
            true => content::pack(records, Part::of(whole), crypto)?,
            false => (Vec::new(), None),
        };
        let room = |record: &Record<'_>| {
            EXTRA_MAX + record.value.map_or(0, <[u8]>::len) + content::room(record.headers)
        };
        let mut bytes = Vec::with_capacity(records.iter().map(room).sum());
        let (mut ends, mut aads, mut aad_ends) = (Vec::with_capacity(records.len()), Vec::new(), Vec::new());
        let (mut plain_at, mut nonces) =
            (Vec::with_capacity(records.len()), Vec::with_capacity(records.len()));
        for (record, index) in records.iter().zip(0..) {
            let from = bytes.len();
            bytes.extend_from_slice(&start);
            put_index(index, &mut bytes);
            let clear = |header: &Header<'_>| self.shape.is_clear(header.name);
            bind(&bytes[from..], record, clear, &mut aads);
            aad_ends.push(aads.len());
            plain_at.push(bytes.len() - from);
            let body = match (record.value, packed.get(index as usize)) {
                (None, _) => Body::Tombstone,
                (_, Some(Some(packed))) => Body::Packed(packed),
                (Some(value), _) => Body::Plain(value),
            };
            content::put(body, record.headers, clear, &mut bytes);
            bytes.resize(bytes.len() + TAG_LEN, 0);
            ends.push(bytes.len());
            nonces.push(batch.nonce(index));
        }
        let (mut items, mut rest, mut done, mut bound) =
            (Vec::with_capacity(ends.len()), &mut bytes[..], 0, 0);
        for number in 0..ends.len() {
            let (whole, after) = rest.split_at_mut(ends[number] - done);
            (rest, done) = (after, ends[number]);
            let (plain, tag) = whole[plain_at[number]..].split_last_chunk_mut::<TAG_LEN>().ok_or(SHORT)?;
            let request = Request::new(Kind::Aes256GcmSeal, &batch.key, Data::InPlace(plain));
            let (nonce, aad, class) = (&nonces[number], &aads[bound..aad_ends[number]], LatencyClass::Bulk);
            items.push(Item::new(Request { nonce, aad, tag, class, ..request }));
            bound = aad_ends[number];
        }
        crypto.run_all_of(&mut items, Part { whole, after });
        if let Some(error) = items.iter().find_map(|item| item.result.err()) {
            return Err(error.into());
        }
        drop(items);
        Ok(SealedBatch { bytes, ends })
    }
}

const SHORT: Error = Error::NotARecord("too short");

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
    /// Values that take more than this many bytes once they are unpacked are refused.
    pub value_max: usize,
    known: HashMap<StreamId, Zeroizing<[u8; 32]>>,
    batches: HashMap<([u8; 16 + SALT_LEN], String, u32), Arc<BatchKey>>,
}

/// A record's value and headers.
#[derive(Debug, Clone, Copy)]
pub struct Opened<'a> {
    /// Its value; a tombstone has none.
    pub value: Option<&'a [u8]>,
    headers: Option<&'a [u8]>,
}

impl<'a> Opened<'a> {
    /// Its headers, given those that stand on the topic, in the order that the producer gave them.
    pub fn headers(&self, on_topic: &[Header<'a>]) -> Vec<Header<'a>> {
        let clear = on_topic.iter().copied().filter(|header| header.name != PROOF);
        content::headers(self.headers, clear)
    }
}

/// Records after opening, each with a result of its own.
///
/// Packed values are unpacked one at a time, as they are asked for: a batch takes the memory of its sealed bytes and of
/// one value, whatever its values become.
pub struct OpenedBatch {
    plain: Zeroizing<Vec<u8>>,
    unpacked: Zeroizing<Vec<u8>>,
    records: Vec<Result<content::Parsed, Error>>,
}

impl OpenedBatch {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The record of this number. It is unpacked anew each time.
    ///
    /// # Errors
    /// Why it does not open.
    ///
    /// # Panics
    /// If there is no such record.
    pub fn get(&mut self, number: usize) -> Result<Opened<'_>, &Error> {
        let OpenedBatch { plain, unpacked, records } = self;
        let record = &mut records[number];
        if let Some(error) = record.as_ref().ok().and_then(|parsed| parsed.unpack(plain, unpacked).err()) {
            *record = Err(error);
        }
        let parsed = record.as_ref()?;
        Ok(Opened { value: parsed.value(plain, unpacked), headers: parsed.headers(plain) })
    }
}

/// A sealed record, taken apart.
struct Parts<'a> {
    batch: Arc<BatchKey>,
    nonce: [u8; 12],
    aad_end: usize,
    text: &'a [u8],
    tag: [u8; TAG_LEN],
}

impl<K: StreamKeys> RecordOpener<K> {
    /// With these keys.
    pub fn new(keys: K) -> RecordOpener<K> {
        RecordOpener { keys, value_max: VALUE_MAX, known: HashMap::new(), batches: HashMap::new() }
    }

    /// Where keys come from.
    pub fn keys(&mut self) -> &mut K {
        &mut self.keys
    }

    /// Opens records of one partition, of any batches, in one call of the engines: each has a result of its own.
    pub fn open_batch(
        &mut self,
        place: Place<'_>,
        records: &[Record<'_>],
        crypto: &mut dyn Crypto,
    ) -> OpenedBatch {
        let (mut aads, mut last) = (Vec::new(), None);
        let mut all: Vec<Result<Parts<'_>, Error>> =
            records.iter().map(|record| self.parts(place, record, &mut last, &mut aads, crypto)).collect();
        let total = all.iter().flatten().map(|parts| parts.text.len()).sum();
        let mut plain = Zeroizing::new(vec![0; total]);
        let (mut items, mut rest, mut bound) = (Vec::with_capacity(all.len()), &mut plain[..], 0);
        for parts in all.iter_mut().flatten() {
            let (to, after) = rest.split_at_mut(parts.text.len());
            rest = after;
            let data = Data::Apart { from: parts.text, to };
            let request = Request::new(Kind::Aes256GcmOpen, &parts.batch.key, data);
            let (nonce, aad, class) = (&parts.nonce, &aads[bound..parts.aad_end], LatencyClass::Bulk);
            items.push(Item::new(Request { nonce, aad, tag: &mut parts.tag, class, ..request }));
            bound = parts.aad_end;
        }
        crypto.run_all(&mut items);
        let results: Vec<_> = items.iter().map(|item| item.result).collect();
        drop(items);
        let (mut results, mut at) = (results.into_iter(), 0);
        let mut verified = |parts: Result<Parts<'_>, Error>, record: &Record<'_>| {
            let content = at..at + parts?.text.len();
            at = content.end;
            match results.next() {
                Some(Ok(_)) => content::parse(&plain, content, record.value.is_none(), self.value_max),
                Some(Err(CoreError::Authentication)) | None => Err(Error::RecordAltered),
                Some(Err(error)) => Err(error.into()),
            }
        };
        let opened = all.into_iter().zip(records).map(|(parts, record)| verified(parts, record)).collect();
        OpenedBatch { plain, unpacked: Zeroizing::default(), records: opened }
    }

    fn parts<'v>(
        &mut self,
        place: Place<'_>,
        record: &Record<'v>,
        last: &mut Option<([u8; 16 + SALT_LEN], Arc<BatchKey>)>,
        aads: &mut Vec<u8>,
        crypto: &mut dyn Crypto,
    ) -> Result<Parts<'v>, Error> {
        let proof = || record.headers.last().filter(|header| header.name == PROOF)?.value;
        let value = record.value.or_else(proof).ok_or(Error::NotARecord("a tombstone without proof"))?;
        match value.first() {
            Some(&VERSION) => {}
            Some(version) if LATER.contains(version) && value.len() > INDEX_AT + TAG_LEN => {
                return Err(Error::Newer(format!("version {version} of a record")));
            }
            _ => return Err(Error::NotARecord("its first byte")),
        }
        let Some(source) = value.get(ID_AT..INDEX_AT).and_then(|source| source.try_into().ok()) else {
            return Err(SHORT);
        };
        let (index, len) = take_index(&value[INDEX_AT..]).ok_or(Error::NotARecord("its number"))?;
        let (prefix, sealed) = value.split_at(INDEX_AT + len);
        let (text, tag) = sealed.split_last_chunk::<TAG_LEN>().ok_or(SHORT)?;
        let batch = match last {
            Some((known, batch)) if *known == source => batch.clone(),
            _ => self.batch(source, place, crypto)?,
        };
        *last = Some((source, batch.clone()));
        let proof_at = record.headers.len().wrapping_sub(usize::from(record.value.is_none()));
        let on_topic = Record { headers: record.headers.get(..proof_at).unwrap_or_default(), ..*record };
        bind(prefix, &on_topic, |_| true, aads);
        Ok(Parts { nonce: batch.nonce(index), aad_end: aads.len(), text, tag: *tag, batch })
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
