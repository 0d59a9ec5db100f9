//! Sealing and opening runs of slots, as one batch each.

use std::sync::Mutex;

use rustix::rand::GetRandomFlags;
use wattlock_core::sync::lock;
use wattlock_core::{Data, Error as CoreError, Item, Key, Kind, LatencyClass, Request};
use wattlock_door::Crypto;
use zeroize::Zeroizing;

use crate::Error;
use crate::format::{
    Geometry, HOLE_LEN, HOLE_LEVEL_MAX, NONCE_LEN, OVERHEAD, SlotKind, TAG_LEN, be64, slot_aad,
};
use crate::xaes::{PREFIX_LEN, XaesKey};

/// Chunks that one nonce prefix serves; a fresh one is drawn then.
const CHUNKS_PER_PREFIX: u32 = 1 << 20;
/// Derived keys that a file keeps for reading: one for each of its latest writers.
const CACHED: usize = 4;

/// Fills `to` from the kernel's generator.
pub(crate) fn random(to: &mut [u8]) -> Result<(), Error> {
    let mut filled = 0;
    while filled < to.len() {
        match rustix::rand::getrandom(&mut to[filled..], GetRandomFlags::empty()) {
            Ok(len) => filled += len,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::io("reading random bytes", error)),
        }
    }
    Ok(())
}

/// A file's key, with keys derived from it for reading.
pub(crate) struct FileKey {
    xaes: XaesKey,
    cache: Mutex<Vec<([u8; PREFIX_LEN], Key)>>,
}

impl FileKey {
    pub(crate) fn new(secret: &[u8; 32], crypto: &mut impl Crypto) -> Result<FileKey, Error> {
        Ok(FileKey { xaes: XaesKey::new(secret, crypto)?, cache: Mutex::default() })
    }

    /// The key derived for a nonce's first half. The latest used is found first.
    fn derived(&self, prefix: &[u8; PREFIX_LEN], crypto: &mut impl Crypto) -> Result<Key, Error> {
        {
            let mut cache = lock(&self.cache);
            if let Some(at) = cache.iter().position(|(there, _)| there == prefix) {
                cache[..=at].rotate_right(1);
                return Ok(cache[0].1.clone());
            }
        }
        let key = self.xaes.derive(prefix, crypto)?;
        self.keep(*prefix, key.clone());
        Ok(key)
    }

    /// The key from which all of them are derived.
    pub(crate) fn secret(&self) -> Zeroizing<[u8; 32]> {
        self.xaes.secret()
    }

    fn keep(&self, prefix: [u8; PREFIX_LEN], key: Key) {
        let mut cache = lock(&self.cache);
        cache.truncate(CACHED - 1);
        cache.insert(0, (prefix, key));
    }
}

/// What a writer's nonces share, and the key derived from it.
#[derive(Default)]
pub(crate) struct Writer {
    current: Option<([u8; PREFIX_LEN], Key)>,
    left: u32,
}

impl Writer {
    /// Prefix and key for so many chunks.
    fn take(
        &mut self,
        key: &FileKey,
        chunks: u32,
        crypto: &mut impl Crypto,
    ) -> Result<([u8; PREFIX_LEN], Key), Error> {
        if let (Some((prefix, derived)), Some(left)) = (&self.current, self.left.checked_sub(chunks)) {
            self.left = left;
            return Ok((*prefix, derived.clone()));
        }
        let mut prefix = [0; PREFIX_LEN];
        random(&mut prefix)?;
        let derived = key.xaes.derive(&prefix, crypto)?;
        key.keep(prefix, derived.clone());
        self.current = Some((prefix, derived.clone()));
        self.left = CHUNKS_PER_PREFIX.saturating_sub(chunks);
        Ok((prefix, derived))
    }
}

/// Seals one slot of any kind into all of `to`.
pub(crate) fn seal_one(
    key: &FileKey,
    writer: &mut Writer,
    (index, kind): (u64, SlotKind),
    plain: &[u8],
    to: &mut [u8],
    crypto: &mut impl Crypto,
) -> Result<(), Error> {
    let (prefix, derived) = writer.take(key, 1, crypto)?;
    to[..PREFIX_LEN].copy_from_slice(&prefix);
    random(&mut to[PREFIX_LEN..NONCE_LEN])?;
    let aad = slot_aad(index, kind);
    let (nonce, rest) = to.split_at_mut(NONCE_LEN);
    let (text, tag) = rest.split_at_mut(plain.len());
    let data = Data::Apart { from: plain, to: text };
    let mut request = Request {
        nonce: &nonce[PREFIX_LEN..],
        aad: &aad,
        tag,
        ..Request::new(Kind::Aes256GcmSeal, &derived, data)
    };
    crypto.run(&mut request)?;
    Ok(())
}

/// Seals consecutive chunks into all of `to`, one after the other as they are stored. Each piece but the last that
/// is not empty has whole chunks; if the last chunk is full and `to` has room for one more slot, an empty one follows.
pub(crate) fn seal_pieces(
    key: &FileKey,
    writer: &mut Writer,
    geometry: Geometry,
    first: u64,
    pieces: &[&[u8]; 3],
    to: &mut [u8],
    crypto: &mut impl Crypto,
) -> Result<(), Error> {
    let (chunk, stride) = (geometry.chunk() as usize, geometry.stride() as usize);
    let count = to.len().div_ceil(stride);
    let plains = || pieces.iter().flat_map(|piece| piece.chunks(chunk)).chain(std::iter::once(&[][..]));
    // A larger chunk is enough for one operation that may go to an engine which answers later.
    if count == 1 && chunk <= 4096 {
        let plain = plains().next().unwrap_or_default();
        return seal_one(key, writer, (first, SlotKind::Data), plain, to, crypto);
    }
    let (prefix, derived) = writer.take(key, count as u32, crypto)?;
    let mut base = [0; NONCE_LEN - PREFIX_LEN];
    random(&mut base)?;
    let mut counter = u32::from_be_bytes([base[8], base[9], base[10], base[11]]);
    for slot in to.chunks_mut(stride) {
        slot[..PREFIX_LEN].copy_from_slice(&prefix);
        slot[PREFIX_LEN..NONCE_LEN].copy_from_slice(&base);
        slot[NONCE_LEN - 4..NONCE_LEN].copy_from_slice(&counter.to_be_bytes());
        counter = counter.wrapping_add(1);
    }
    let aads: Vec<[u8; 9]> = (first..).take(count).map(|index| slot_aad(index, SlotKind::Data)).collect();
    let mut items = Vec::with_capacity(count);
    for ((slot, aad), plain) in to.chunks_mut(stride).zip(&aads).zip(plains()) {
        let (nonce, rest) = slot.split_at_mut(NONCE_LEN);
        let (text, tag) = rest.split_at_mut(rest.len() - TAG_LEN);
        debug_assert_eq!(text.len(), plain.len());
        let request = Request {
            nonce: &nonce[PREFIX_LEN..],
            aad,
            tag,
            class: LatencyClass::Stream,
            ..Request::new(Kind::Aes256GcmSeal, &derived, Data::Apart { from: plain, to: text })
        };
        items.push(Item::new(request));
    }
    crypto.run_all(&mut items);
    for item in items {
        item.result?;
    }
    Ok(())
}

/// A hole record: a slot that says how long the run is that begins with it.
pub(crate) fn seal_hole(
    key: &FileKey,
    writer: &mut Writer,
    (index, level): (u64, u8),
    crypto: &mut impl Crypto,
) -> Result<[u8; HOLE_LEN], Error> {
    let mut record = [0; HOLE_LEN];
    let level = u64::from(level).to_be_bytes();
    seal_one(key, writer, (index, SlotKind::Hole), &level, &mut record, crypto)?;
    Ok(record)
}

/// Whether stored bytes may be a hole record, or part of a run that one covers. `slot` is a slot's beginning, of 64
/// bytes or more: behind a hole record there are zeros, and a nonce is never zero.
pub(crate) fn may_be_hole(slot: &[u8]) -> bool {
    slot.get(HOLE_LEN..HOLE_LEN + 16).is_some_and(|rest| rest.iter().all(|byte| *byte == 0))
}

/// The level of a hole record; `None` if it is none that authenticates.
pub(crate) fn open_hole(
    key: &FileKey,
    index: u64,
    slot: &[u8],
    crypto: &mut impl Crypto,
) -> Result<Option<u8>, Error> {
    let Some(record) = slot.first_chunk::<HOLE_LEN>() else { return Ok(None) };
    let Some(prefix) = record.first_chunk::<PREFIX_LEN>() else { return Ok(None) };
    let derived = key.derived(prefix, crypto)?;
    let (mut text, mut tag) = ([0; 8], [0; TAG_LEN]);
    tag.copy_from_slice(&record[HOLE_LEN - TAG_LEN..]);
    let data = Data::Apart { from: &record[NONCE_LEN..NONCE_LEN + 8], to: &mut text };
    let aad = slot_aad(index, SlotKind::Hole);
    let mut request = Request {
        nonce: &record[PREFIX_LEN..NONCE_LEN],
        aad: &aad,
        tag: &mut tag,
        ..Request::new(Kind::Aes256GcmOpen, &derived, data)
    };
    match crypto.run(&mut request) {
        Ok(_) => {}
        Err(CoreError::Authentication) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let level = be64(&text);
    let aligned = level <= u64::from(HOLE_LEVEL_MAX) && index.trailing_zeros() as u64 >= level.min(64);
    Ok(aligned.then_some(level as u8))
}

/// Opens consecutive data slots, stored one after the other, into pieces of whole chunks.
///
/// # Errors
/// [`Error::Damaged`] with the first chunk that does not authenticate; nothing in the pieces may be used then.
pub(crate) fn open(
    key: &FileKey,
    geometry: Geometry,
    first: u64,
    slots: &mut [u8],
    pieces: &mut [&mut [u8]; 3],
    crypto: &mut impl Crypto,
) -> Result<(), Error> {
    let (chunk, stride) = (geometry.chunk() as usize, geometry.stride() as usize);
    let count = slots.len().div_ceil(stride);
    let mut keys: Vec<([u8; PREFIX_LEN], Key)> = Vec::with_capacity(1);
    let mut which = Vec::with_capacity(count);
    for slot in slots.chunks(stride) {
        let prefix = slot.first_chunk::<PREFIX_LEN>().copied().unwrap_or_default();
        let at = match keys.iter().rposition(|(there, _)| *there == prefix) {
            Some(at) => at,
            None => {
                keys.push((prefix, key.derived(&prefix, crypto)?));
                keys.len() - 1
            }
        };
        which.push(at);
    }
    let aads: Vec<[u8; 9]> = (first..).take(count).map(|index| slot_aad(index, SlotKind::Data)).collect();
    let mut items = Vec::with_capacity(count);
    let mut plains = pieces.iter_mut().flat_map(|piece| piece.chunks_mut(chunk));
    for ((slot, aad), at) in slots.chunks_mut(stride).zip(&aads).zip(which) {
        let plain = plains.next().unwrap_or_default();
        debug_assert_eq!(slot.len(), plain.len() + OVERHEAD);
        let (nonce, rest) = slot.split_at_mut(NONCE_LEN);
        let (text, tag) = rest.split_at_mut(rest.len() - TAG_LEN);
        let request = Request {
            nonce: &nonce[PREFIX_LEN..],
            aad,
            tag,
            class: if count > 1 { LatencyClass::Stream } else { LatencyClass::Interactive },
            ..Request::new(Kind::Aes256GcmOpen, &keys[at].1, Data::Apart { from: text, to: plain })
        };
        items.push(Item::new(request));
    }
    crypto.run_all(&mut items);
    for (index, item) in (first..).zip(items) {
        match item.result {
            Ok(_) => {}
            Err(CoreError::Authentication) => return Err(Error::Damaged(format!("chunk {index}"))),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
