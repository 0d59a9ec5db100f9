//! Files made and opened: headers, keys, the table of open files.

use std::sync::{Arc, Weak};
use std::time::Duration;

use wattlock_core::sync::{lock, read, write};
use wattlock_core::{Algorithm, Data, Key, Kind, Request};
use wattlock_door::Crypto;
use zeroize::Zeroizing;

use super::ledger::{Ledger, Over};
use super::slots::{self, FileKey, Writer};
use super::state::{Body, Sealer};
use super::{Content, Open, SOUND_MAX, Shared};
use crate::Error;
use crate::format::{HEADER_LEN, Header, NONCE_LEN, OVERHEAD, SPARSE, SlotKind, VERSION};
use crate::rotate::lacks;
use crate::store::{File, Place, Store};

/// By so much a file's time may be behind the clock at which it was made. Where a clock was set back since, what was
/// made looks older than the epoch, and is damage instead of nothing.
pub(super) const BEHIND: Duration = Duration::from_millis(20);

/// Said of a header that opens with our version, and does not have it.
pub(super) const ALTERED: &str =
    "the version byte of its header was altered; `wattlock fs check --repair` writes it back";

/// Pieces of 64 KiB that are looked at in a file without a header.
const EMPTY_READS: usize = 16;

impl<S: Store> Shared<S> {
    /// The content of an inode, if it is open or kept.
    pub(super) fn known(self: &Arc<Self>, inode: (u64, u64)) -> Option<Arc<Content<S>>> {
        if let Some(content) = read(&self.open).get(&inode).and_then(Weak::upgrade) {
            return Some(content);
        }
        read(&self.kept).get(inode)?;
        let mut open = write(&self.open);
        let there = open.get(&inode).and_then(Weak::upgrade);
        there.or_else(|| self.kept_content(inode, &mut open))
    }

    /// What the openers of an inode share, if it is open or kept.
    pub(super) fn known_body(&self, inode: (u64, u64)) -> Option<Arc<Body<S::File>>> {
        let content = read(&self.open).get(&inode).and_then(Weak::upgrade);
        let body = content.as_ref().map(|content| content.body.clone());
        body.or_else(|| read(&self.kept).get(inode))
    }

    /// The length of the content of an inode, if it is open or kept.
    pub(super) fn known_len(&self, inode: (u64, u64)) -> Option<u64> {
        if let Some(body) = self.known_body(inode) {
            return Some(body.state().ledger.len());
        }
        if !self.read_only {
            return None;
        }
        read(&self.over).get(&inode).map(|(_, over)| over.len)
    }

    /// A content for a body that no opener has.
    fn kept_content(self: &Arc<Self>, inode: (u64, u64), open: &mut Open<S>) -> Option<Arc<Content<S>>> {
        let body = read(&self.kept).get(inode)?;
        let content = Arc::new(Content { shared: self.clone(), body });
        open.insert(inode, Arc::downgrade(&content));
        Some(content)
    }

    /// Enters a content into the table; returns the one that is there already if another thread was faster.
    pub(super) fn remember(
        self: &Arc<Self>,
        inode: (u64, u64),
        file: S::File,
        body: impl FnOnce(S::File) -> Result<Arc<Body<S::File>>, Error>,
    ) -> Result<Arc<Content<S>>, Error> {
        let mut open = write(&self.open);
        let there = open.get(&inode).and_then(Weak::upgrade);
        if let Some(there) = there.or_else(|| self.kept_content(inode, &mut open)) {
            drop(open);
            there.use_writable(file);
            return Ok(there);
        }
        let content = Arc::new(Content { shared: self.clone(), body: body(file)? });
        open.insert(inode, Arc::downgrade(&content));
        Ok(content)
    }

    /// Gives a backing file, which is empty or (`anew`) has nothing that opens, a header, and an empty content. The caller
    /// holds the epoch.
    pub(super) fn begin(
        self: &Arc<Self>,
        file: S::File,
        place: Place,
        anew: bool,
        crypto: &mut impl Crypto,
    ) -> Result<Arc<Content<S>>, Error> {
        let (id, reserved) = match self.reserved_id(crypto)? {
            Some(id) => (id, true),
            None => (self.outside_ranges()?, false),
        };
        let (key, first) = self.empty_file(id, crypto)?;
        if reserved {
            lock(&self.made).insert(&place, id);
        }
        let write = |file: &S::File| {
            let failed = |error| Error::io("writing a header", error);
            if anew {
                file.set_len(0).map_err(failed)?;
            }
            file.write_at(&first, 0).map_err(failed)?;
            // Outside the ranges it is like a file of an earlier epoch: whole, and the journal knows it before it grows.
            if reserved { Ok(()) } else { file.sync().map_err(failed) }
        };
        if !anew {
            // Nobody else knows of it.
            write(&file)?;
        }
        self.remember(place.inode, file, |file| {
            if anew {
                write(&file)?;
            }
            let ledger = Ledger::created(self.geometry, reserved, first.len() as u64);
            let body = Body::new(place, Sealer::new(id, key), file, ledger);
            body.state_mut().own_key = true;
            Ok(body)
        })
    }

    /// See [`Contents::open`], of a volume that is only read.
    fn open_to_read(
        self: &Arc<Self>,
        file: S::File,
        place: Place,
        crypto: &mut impl Crypto,
    ) -> Result<Arc<Content<S>>, Error> {
        let mut bytes = [0; HEADER_LEN];
        let got = file.read_at(&mut bytes, 0).map_err(|error| Error::io("reading a header", error))?;
        let physical = file.len().map_err(|error| Error::io("reading a file's length", error))?;
        let unclean = !read(&self.unclean).is_empty();
        if unclean && self.was_never_durable(&file, &bytes, &place)? {
            // Its header was never durable, so nothing of it was.
            let (key, _) = self.empty_file(0, crypto)?;
            let path = place.shown();
            let over = Over { open_end: true, cut: true, ..Over::default() };
            if write(&self.over).insert(place.inode, (0, over.clone())).is_none() {
                lock(&self.lines).push(format!("{path}: 0 bytes are shown; nothing of it had been synced"));
            }
            let ledger = Ledger::read_over(self.geometry, physical, false, over);
            return self
                .remember(place.inode, file, |file| Ok(Body::new(place, Sealer::new(0, key), file, ledger)));
        }
        let mut header = Header::parse(&bytes[..got])?;
        let mut key = FileKey::new(&*self.open_header(&header, crypto)?, crypto)?;
        let known = read(&self.over)
            .get(&place.inode)
            .filter(|(id, _)| *id == header.id)
            .map(|(_, over)| over.clone());
        let over = match known {
            Some(over) => over,
            None if self.is_unclean(header.id) => {
                let over = self.over_unknown(&file, &place, &header, &key, crypto)?;
                if over.cut {
                    // Its backing file does not say how long it is.
                    write(&self.over).insert(place.inode, (header.id, over.clone()));
                }
                over
            }
            None => {
                let len = self.geometry.content_len(physical);
                let len = len.ok_or_else(|| Error::Damaged("the end of the file is missing".into()))?;
                Over { len, ..Over::default() }
            }
        };
        if let Some(at) = over.header {
            (header, key) = self.journaled_header(at, crypto)?;
        }
        let sparse = header.flags & SPARSE != 0;
        let ledger = Ledger::read_over(self.geometry, physical, sparse, over);
        lock(&self.sound).insert(place.inode);
        self.remember(place.inode, file, |file| {
            Ok(Body::new(place, Sealer::new(header.id, key), file, ledger))
        })
    }

    /// See [`Contents::open`]. The caller holds the epoch.
    pub(super) fn open(
        self: &Arc<Self>,
        file: S::File,
        place: Place,
        crypto: &mut impl Crypto,
    ) -> Result<Arc<Content<S>>, Error> {
        let shared = self;
        let unclean = !read(&shared.unclean).is_empty();
        let _mending = unclean.then(|| lock(&shared.mending));
        if let Some(content) = shared.known(place.inode) {
            content.use_writable(file);
            return Ok(content);
        }
        if shared.read_only {
            return shared.open_to_read(file, place, crypto);
        }
        if unclean && lock(&shared.half_mended).contains(&place.inode) {
            shared.mend_again(&file)?;
            lock(&shared.half_mended).remove(&place.inode);
        }
        let (header, key) = shared.whole_header(&file, &place, unclean, crypto)?;
        if unclean {
            let mut sound = lock(&shared.sound);
            if sound.len() >= SOUND_MAX {
                sound.clear();
            }
            sound.insert(place.inode);
        }
        shared.remember(place.inode, file, |file| {
            // In here no other thread opens or closes it: what an earlier opener wrote counts.
            let stored = file.len().map_err(|error| Error::io("reading a file's length", error))?;
            let len = shared
                .geometry
                .content_len(stored)
                .ok_or_else(|| Error::Damaged("the end of the file is missing".into()))?;
            let files = lock(&shared.files);
            let known = files.known.get(&(header.id, place.inode)).copied();
            let reserved = files.is_reserved(header.id);
            let files_forgot = files.forgotten.contains(&(header.id, place.inode));
            drop(files);
            if files_forgot && file.is_removed() {
                // What the journal has of it was forgotten with its last name.
                return Err(Error::io("opening a file that was removed", rustix::io::Errno::STALE));
            }
            let was = (len, stored, header.flags & SPARSE != 0);
            let ledger = Ledger::opened(shared.geometry, was, known, reserved);
            Ok(Body::new(place, Sealer::new(header.id, key), file, ledger))
        })
    }

    /// A file's header and its key, once what a crash left torn of it is mended.
    fn whole_header(
        &self,
        file: &S::File,
        place: &Place,
        unclean: bool,
        crypto: &mut impl Crypto,
    ) -> Result<(Header, FileKey), Error> {
        let refused = |error| {
            lock(&self.half_mended).insert(place.inode);
            error
        };
        let mut bytes = [0; HEADER_LEN];
        let got = file.read_at(&mut bytes, 0).map_err(|error| Error::io("reading a header", error))?;
        if unclean && self.was_never_durable(file, &bytes, place)? {
            // Its header was never durable, so nothing of it was.
            self.make_empty(file, place, crypto).map_err(refused)?;
            file.read_at(&mut bytes, 0).map_err(|error| Error::io("reading a header", error))?;
        } else if got < HEADER_LEN {
            return Err(Error::Damaged("the header is cut".into()));
        }
        let mut header = Header::parse(&bytes)?;
        let key = FileKey::new(&*self.open_header(&header, crypto)?, crypto)?;
        if self.is_unclean(header.id) {
            header = self.mend_lazily(file, place, header, &key, crypto).map_err(refused)?;
        }
        Ok((header, key))
    }

    /// Whether a file was made in an epoch that did not end well and nothing of it was durable: it has no header, its name
    /// may be an entry's, and it is neither older than such an epoch nor younger than this start. Where the storage does
    /// not say how old it is, or the volume is a copy of which all is young, it has no byte but zeros. Anything else may
    /// have been acknowledged, and damaged since, or is being made by somebody.
    fn was_never_durable(&self, file: &S::File, header: &[u8], place: &Place) -> Result<bool, Error> {
        let name = place.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        // Where the name is not known the file was found by it.
        let named = self.plain_names || name.is_empty() || crate::tree::may_be_sealed(name);
        if !named || header.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        let since = self.journal.since().saturating_sub(BEHIND);
        match file.born() {
            Some(born) if born.saturating_add(BEHIND) > self.started => Ok(false),
            Some(born) if !self.journal.is_younger_than(since) => Ok(born >= since),
            _ => is_empty(file),
        }
    }

    /// A new file's key, and the bytes of an empty file.
    pub(super) fn empty_file(
        &self,
        id: u64,
        crypto: &mut impl Crypto,
    ) -> Result<(FileKey, [u8; HEADER_LEN + OVERHEAD]), Error> {
        let mut secret = Zeroizing::new([0; 32]);
        slots::random(&mut secret[..])?;
        let header = self.seal_header(id, 0, &secret, crypto)?;
        let key = FileKey::new(&secret, crypto)?;
        let mut bytes = [0; HEADER_LEN + OVERHEAD];
        bytes[..HEADER_LEN].copy_from_slice(&header.encode());
        let to = &mut bytes[HEADER_LEN..];
        slots::seal_one(&key, &mut Writer::default(), (0, SlotKind::Data), &[], to, crypto)?;
        Ok((key, bytes))
    }

    /// Seals a file's key under the latest volume key.
    pub(super) fn seal_header(
        &self,
        id: u64,
        flags: u16,
        secret: &[u8; 32],
        crypto: &mut impl Crypto,
    ) -> Result<Header, Error> {
        let keys = read(&self.keys);
        let (generation, key) = keys.last().ok_or_else(|| Error::Usage("the volume has no key".into()))?;
        let mut nonce = [0; NONCE_LEN];
        slots::random(&mut nonce)?;
        let mut header = Header {
            version: VERSION,
            chunk_log2: self.geometry.log2(),
            flags,
            generation: *generation,
            id,
            nonce,
            sealed: [0; 48],
        };
        let mut text = Zeroizing::new(*secret);
        let tag = key.seal(&nonce, &header.clear(), &mut text[..], crypto)?;
        header.sealed[..32].copy_from_slice(&text[..]);
        header.sealed[32..].copy_from_slice(&tag);
        Ok(header)
    }

    /// A header as it was sealed. The version is in the associated data: if it opens with ours, that byte alone was
    /// altered.
    ///
    /// # Errors
    /// [`Error::Newer`] for one that does not.
    pub(super) fn restored(&self, header: Header, crypto: &mut impl Crypto) -> Result<Header, Error> {
        if header.version == VERSION {
            return Ok(header);
        }
        let whole = Header { version: VERSION, ..header };
        match self.open_header(&whole, crypto) {
            Ok(_) => Ok(whole),
            Err(Error::Damaged(_)) => Err(Error::Newer(format!("version {} of the header", header.version))),
            Err(error) => Err(error),
        }
    }

    /// A file's key.
    ///
    /// # Errors
    /// [`Error::Damaged`]; [`Error::Newer`] for a header of another version, and for an authentic one whose chunk size
    /// or flags are unknown.
    pub(super) fn open_header(
        &self,
        header: &Header,
        crypto: &mut impl Crypto,
    ) -> Result<Zeroizing<[u8; 32]>, Error> {
        if header.version != VERSION {
            self.restored(header.clone(), crypto)?;
            return Err(Error::Damaged(ALTERED.into()));
        }
        let keys = read(&self.keys);
        let Some((_, key)) = keys.iter().find(|(generation, _)| *generation == header.generation) else {
            return Err(Error::Damaged(lacks(header.generation)));
        };
        let mut secret = Zeroizing::new([0; 32]);
        let mut tag = [0; 16];
        secret.copy_from_slice(&header.sealed[..32]);
        tag.copy_from_slice(&header.sealed[32..]);
        if !key.open(&header.nonce, &header.clear(), &mut secret[..], tag, crypto)? {
            return Err(Error::Damaged("the header does not authenticate".into()));
        }
        // A key holder wrote them.
        if header.chunk_log2 != self.geometry.log2() {
            return Err(Error::Newer(format!("chunk size 2^{} of the header", header.chunk_log2)));
        }
        if header.flags & !SPARSE != 0 {
            return Err(Error::Newer(format!("flags {:#06x} of the header", header.flags)));
        }
        Ok(secret)
    }
}

impl<S: Store> Content<S> {
    /// A backing file that is writable takes the place of one that is not.
    fn use_writable(&self, file: S::File) {
        if file.writable() && !self.state().file.writable() {
            self.state_mut().file = Arc::new(file);
        }
    }
}

/// Whether a file has no byte but zeros. One of which the storage has more is not read to its end.
fn is_empty(file: &impl File) -> Result<bool, Error> {
    let failed = |error| Error::io("reading a file", error);
    let (len, mut at, mut buffer) = (file.len().map_err(failed)?, 0, vec![0; 1 << 16]);
    for _ in 0..EMPTY_READS {
        let data = if at < len { file.next_data(at).map_err(failed)? } else { None };
        let Some(data) = data else { return Ok(true) };
        let got = file.read_at(&mut buffer, data).map_err(failed)?;
        if buffer[..got].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at = data + (got as u64).max(1);
    }
    Ok(false)
}

/// The key of one purpose: HKDF-SHA-256, expand only, of a volume key.
pub(super) fn purpose(
    key: &[u8; 32],
    name: &[u8],
    crypto: &mut impl Crypto,
) -> Result<Zeroizing<[u8; 32]>, Error> {
    let secret = Key::symmetric(Algorithm::Secret, key)?;
    let mut derived = Zeroizing::new([0; 32]);
    let info = [b"wattlock fs 1 ", name].concat();
    let data = Data::Apart { from: &[], to: &mut derived[..] };
    let mut request = Request { aad: &info, ..Request::new(Kind::HkdfExpandSha256, &secret, data) };
    crypto.run(&mut request)?;
    Ok(derived)
}
