//! The journal: what replaces committed bytes, before it is brought into place.
//!
//! A file of two heads and a run of records. A head (512 bytes at 0 or at 4096; the valid one with the higher epoch
//! counts) has a random salt, from which the key of its epoch's records is derived, and the ranges of file ids of
//! epochs that did not end well. A record is `magic 8 | number 8 | blob length 4 | operations' length 4 | random 8 | blob |
//! operations, sealed | tag 16`, filled up to a multiple of 8. It is sealed by AES-256-GCM; the nonce is its random bytes
//! and the end of its number, so that a machine that is resumed twice from one snapshot does not use one twice. What
//! stands before the operations is associated data. The blob has slots as files store them: plaintext never comes here.
//!
//! Invariants: numbers grow and are never used twice in an epoch; a record is durable only after all before it; a head
//! is durable before the first record of its epoch is written.

mod ops;
mod reading;

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::Timespec;
use wattlock_core::sync::lock;
use wattlock_core::{Algorithm, Data, Error as CoreError, Key, Kind, Request};
use wattlock_door::Crypto;
use zeroize::Zeroizing;

use crate::Error;
use crate::content::slots::random;
use crate::store::File;
pub(crate) use ops::{Op, Ops};
use reading::{Head, is_zero, read_at, read_head, read_record, read_records};
pub(crate) use reading::{Record, refuse_newer};

const HEAD_MAGIC: &[u8; 8] = b"wattlojh";
const RECORD_MAGIC: &[u8; 8] = b"wattlojr";
const VERSION: u8 = 2;
/// Where the two heads are.
const HEADS: [u64; 2] = [0, 4096];
/// Bytes of a head's part in clear: magic, version, padding, generation, epoch, salt, count of ranges, since, origin.
const HEAD_CLEAR: usize = 76;
const HEAD_LEN: usize = 512;
/// Where records begin.
const RECORDS: u64 = 8192;
/// Bytes before a record's blob.
pub(crate) const RECORD_HEAD: usize = 32;
const TAG: usize = 16;
/// Longest blob and longest operations that a reader believes.
const BLOB_MAX: usize = 1 << 27;
const OPS_MAX: usize = 1 << 24;
/// How often a byte behind a torn record is authenticated, on average and at most. Records of one epoch do not overlap,
/// and those of earlier ones that are left overlap where a crash tore one. A file that others wrote could have a record
/// begin at every eighth byte and reach to its end, which would take for ever to look through.
const OVERLAPS: u64 = 16;
/// Ranges of file ids that a head can have: it fits a sector then, which no power cut tears.
pub(crate) const RANGES: usize = 52;
/// Bytes that a journal keeps room for when it is empty, so that what is overwritten finds room on a full disk: a record
/// of one batch and some more. Blocks that exist are synced faster than new ones, too.
const KEEP: u64 = 2 << 20;

/// A journal that was made so much later than its own epochs began is a copy.
const COPIED: Duration = Duration::from_secs(1200);

/// Proof that records up to one are durable: what they replace may be overwritten. Only the journal gives it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Durable(u64);

impl Durable {
    /// That no record is needed.
    pub(crate) fn of_nothing() -> Durable {
        Durable(0)
    }

    /// For a model of the journal.
    pub(crate) fn modelled(record: u64) -> Durable {
        Durable(record)
    }

    /// Whether this record is durable.
    pub(crate) fn covers(&self, record: u64) -> bool {
        record <= self.0
    }
}

/// The journal of one volume. Shared by threads.
pub(crate) struct Journal<F: File> {
    /// None if there is no journal, and none may be made.
    file: Option<F>,
    inner: Mutex<Inner>,
    /// Held by the thread that syncs; others wait for it and find their records durable.
    syncing: Mutex<()>,
}

struct Inner {
    secrets: Vec<(u32, Key)>,
    key: Key,
    head: usize,
    epoch: u64,
    /// Random, for the journal's life: epochs of two journals say nothing of each other.
    origin: [u8; 8],
    /// When the first epoch began of those that did not end well, or this one: nanoseconds since 1970.
    since: u64,
    /// The number of the latest record.
    number: u64,
    end: u64,
    /// Up to which number records are durable, and where that is.
    synced: u64,
    synced_end: u64,
    /// How often a sync of everything failed: one of this file that went on meanwhile says nothing.
    doubts: u64,
    trouble: Trouble,
}

/// What a failed sync leaves open. Nothing is promised meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Trouble {
    None,
    /// Records behind `synced_end` may be in memory only, and the system does not try again by itself.
    Records,
    /// Which head a later start would find is open: nothing is written under either before there is a next one.
    Head,
}

/// What a journal had when it was opened.
pub(crate) struct Found {
    pub(crate) records: Vec<Record>,
    /// First ids of ranges of epochs that did not end well.
    pub(crate) ranges: Vec<u64>,
    /// There was none.
    pub(crate) fresh: bool,
}

impl<F: File> Journal<F> {
    /// Opens the journal's file and reads it. Writes nothing; [`Journal::reset`] must follow before records are
    /// appended.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a journal that is neither whole nor torn at its end, [`Error::Newer`].
    pub(crate) fn open(
        file: F,
        secrets: Vec<(u32, Key)>,
        stop: &dyn Fn() -> bool,
        crypto: &mut impl Crypto,
    ) -> Result<(Journal<F>, Found), Error> {
        let len = file.len().map_err(|error| Error::io("reading the journal", error))?;
        let mut heads = Vec::new();
        let (mut torn, mut missing) = (false, false);
        for (slot, at) in HEADS.into_iter().enumerate() {
            let mut bytes = vec![0; HEAD_LEN];
            let got = read_at(&file, &mut bytes, at)?;
            bytes.truncate(got);
            match read_head(&bytes, &secrets, crypto)? {
                Some(head) => heads.push((head, slot)),
                None => {
                    missing = true;
                    torn |= bytes.iter().any(|byte| *byte != 0);
                }
            }
        }
        heads.sort_by_key(|(head, _)| head.epoch);
        let Some((Head { epoch, key, ranges, since, origin }, head)) = heads.pop() else {
            if torn || !is_zero(&file, len, stop)? {
                return Err(Error::Damaged("the journal's head".into()));
            }
            let key = Key::symmetric(Algorithm::Aes256Gcm, &[0; 32])?;
            let mut inner = Inner::new(secrets, key, 1, 0);
            random(&mut inner.origin)?;
            let journal = Journal::new(file, inner);
            return Ok((journal, Found { records: Vec::new(), ranges: Vec::new(), fresh: true }));
        };
        let inner = Inner { since, origin, ..Inner::new(secrets, key, head, epoch) };
        let records = read_records(&file, len, &inner.key, stop, crypto)?;
        if missing && records.is_empty() && len > RECORDS {
            // The other head does not authenticate, and both are written before the first record. If this one is the
            // latest, its records are here; if they are not, the other was.
            return Err(Error::Damaged("the journal's head".into()));
        }
        Ok((Journal::new(file, inner), Found { records, ranges, fresh: false }))
    }

    fn new(file: F, inner: Inner) -> Journal<F> {
        Journal { file: Some(file), inner: Mutex::new(inner), syncing: Mutex::new(()) }
    }

    /// What there is to read if there is no journal: nothing.
    pub(crate) fn none() -> Result<(Journal<F>, Found), Error> {
        let key = Key::symmetric(Algorithm::Aes256Gcm, &[0; 32])?;
        let inner = Mutex::new(Inner::new(Vec::new(), key, 1, 0));
        let journal = Journal { file: None, inner, syncing: Mutex::new(()) };
        Ok((journal, Found { records: Vec::new(), ranges: Vec::new(), fresh: true }))
    }

    fn file(&self) -> Result<&F, Error> {
        self.file.as_ref().ok_or_else(|| Error::io("opening the journal", rustix::io::Errno::ROFS))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Empties the journal: a new epoch under a new salt. What records said must be durable in place.
    pub(crate) fn reset(&self, ranges: &[u64], crypto: &mut impl Crypto) -> Result<(), Error> {
        let mut inner = self.inner();
        let (generation, secret) =
            inner.secrets.last().ok_or_else(|| Error::Usage("the volume has no key".into()))?;
        let mut salt = [0; 32];
        random(&mut salt)?;
        let key = record_key(secret, &salt, crypto)?;
        let ranges = &ranges[ranges.len().saturating_sub(RANGES)..];
        let epoch = next(inner.epoch, "epoch")?;
        let mut head = vec![0; HEAD_CLEAR];
        head[..8].copy_from_slice(HEAD_MAGIC);
        head[8] = VERSION;
        head[12..16].copy_from_slice(&generation.to_be_bytes());
        head[16..24].copy_from_slice(&epoch.to_be_bytes());
        head[24..56].copy_from_slice(&salt);
        head[56..60].copy_from_slice(&(ranges.len() as u32).to_be_bytes());
        let now = self.now().as_nanos() as u64;
        let since = if ranges.is_empty() { now } else { inner.since.min(now) };
        head[60..68].copy_from_slice(&since.to_be_bytes());
        head[68..76].copy_from_slice(&inner.origin);
        let mut text: Vec<u8> = ranges.iter().flat_map(|start| start.to_be_bytes()).collect();
        let tag = seal(&key, HEAD_NONCE, &head, &mut text, crypto)?;
        head.extend(text);
        head.extend(tag);
        let (slot, file) = (1 - inner.head, self.file()?);
        let failed = |error| Error::io("writing the journal's head", error);
        if let Err(error) = file.write_at(&head, HEADS[slot]).and_then(|()| file.sync()) {
            inner.trouble = Trouble::Head;
            return Err(failed(error));
        }
        // From here on the new epoch counts, whatever happens.
        inner.head = slot;
        inner.epoch = epoch;
        inner.since = since;
        inner.key = key;
        inner.end = RECORDS;
        inner.synced = inner.number;
        inner.synced_end = RECORDS;
        inner.trouble = Trouble::None;
        Ok(())
    }

    /// The journal's origin, and its epoch.
    pub(crate) fn age(&self) -> ([u8; 8], u64) {
        let inner = self.inner();
        (inner.origin, inner.epoch)
    }

    /// From now on the journal is this origin's, and no older than this epoch; a new origin's if there is none.
    pub(crate) fn go_on_as(&self, known: Option<([u8; 8], u64)>) -> Result<(), Error> {
        let mut inner = self.inner();
        match known {
            Some((origin, epoch)) => (inner.origin, inner.epoch) = (origin, inner.epoch.max(epoch)),
            None => random(&mut inner.origin)?,
        }
        Ok(())
    }

    /// Takes other keys, of which the last seals the next head.
    pub(crate) fn rekey(&self, secrets: Vec<(u32, Key)>) {
        self.inner().secrets = secrets;
    }

    /// When the first epoch began of those that did not end well, or this one: since 1970.
    pub(crate) fn since(&self) -> Duration {
        Duration::from_nanos(self.inner().since)
    }

    /// The time by which files of the journal's storage are made, since 1970.
    pub(crate) fn now(&self) -> Duration {
        let own = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.file.as_ref().map_or_else(own, File::now)
    }

    /// The time of a start, before it writes. By a clock that is behind what was written already (of a machine that has not
    /// asked for the time yet) no file is younger than it.
    pub(crate) fn starts(&self) -> Duration {
        let now = self.now();
        let written = self.file.as_ref().and_then(|file| file.times().ok().flatten());
        let written = written.and_then(|times| u64::try_from(times.last_modification.tv_sec).ok());
        let behind = now < self.since() || now.as_secs() < written.unwrap_or(0);
        if behind { Duration::MAX } else { now }
    }

    /// Waits until so much time is over by that clock.
    pub(crate) fn wait(&self, time: Duration) {
        if let Some(file) = &self.file {
            file.wait(time);
        }
    }

    /// Whether the journal's file was made after that: it is a copy then.
    pub(crate) fn is_younger_than(&self, since: Duration) -> bool {
        let born = self.file.as_ref().and_then(File::born);
        born.is_some_and(|born| born > since + COPIED)
    }

    /// Gives back the space of an emptied journal but for what it keeps, once nothing points into it any longer. Where that
    /// fails it stays; where there is no room for what it keeps, less is kept.
    pub(crate) fn shrink(&self) {
        let inner = self.inner();
        if let Some(file) = &self.file
            && inner.end <= KEEP
        {
            if file.len().is_ok_and(|len| len > KEEP) {
                _ = file.set_len(KEEP);
            }
            _ = file.take_room(0, KEEP);
        }
    }

    /// Appends a record: `record` has [`RECORD_HEAD`] bytes of room and then the blob; it is worthless afterwards.
    /// Returns the record's number and where its blob is. Not durable before [`Journal::sync`].
    pub(crate) fn append(
        &self,
        record: &mut Vec<u8>,
        ops: &Ops,
        crypto: &mut impl Crypto,
    ) -> Result<(u64, u64), Error> {
        let mut inner = self.inner();
        if inner.trouble == Trouble::Records {
            drop(inner);
            self.sync_all(crypto)?;
            inner = self.inner();
        }
        if inner.trouble != Trouble::None {
            return Err(after_failure());
        }
        // A number is used up by trying: the next record is another text.
        inner.number = next(inner.number, "number")?;
        let blob = record.len() - RECORD_HEAD;
        record[..8].copy_from_slice(RECORD_MAGIC);
        record[8..16].copy_from_slice(&inner.number.to_be_bytes());
        record[16..20].copy_from_slice(&(blob as u32).to_be_bytes());
        record[20..24].copy_from_slice(&(ops.0.len() as u32 + 8).to_be_bytes());
        crate::random(&mut record[24..32])?;
        let mut text = inner.synced_end.to_be_bytes().to_vec();
        text.extend(&ops.0);
        let tag = seal(&inner.key, record_nonce(record), record, &mut text, crypto)?;
        record.extend(text);
        record.extend(tag);
        record.resize(record.len().next_multiple_of(8), 0);
        self.file()?.write_at(record, inner.end).map_err(|error| Error::io("writing the journal", error))?;
        let at = inner.end + RECORD_HEAD as u64;
        inner.end += record.len() as u64;
        Ok((inner.number, at))
    }

    /// Makes all records up to `number` durable. After a sync that failed, those that are not are written again first:
    /// the system takes for written what the disk refused.
    pub(crate) fn sync(&self, number: u64, crypto: &mut impl Crypto) -> Result<Durable, Error> {
        if self.inner().synced >= number {
            return Ok(Durable(number));
        }
        let _turn = lock(&self.syncing);
        loop {
            let (until, from, end, doubts, trouble) = {
                let inner = self.inner();
                if inner.synced >= number {
                    return Ok(Durable(number));
                }
                (inner.number, inner.synced_end, inner.end, inner.doubts, inner.trouble)
            };
            if trouble == Trouble::Records {
                self.write_again(from, end, crypto)?;
            }
            let result = self.file()?.sync();
            let mut inner = self.inner();
            if let Err(error) = result {
                inner.trouble = inner.trouble.max(Trouble::Records);
                return Err(Error::io("syncing the journal", error));
            }
            if inner.doubts != doubts {
                continue;
            }
            inner.synced = inner.synced.max(until);
            inner.synced_end = inner.synced_end.max(end);
            if trouble == Trouble::Records {
                inner.trouble = Trouble::None;
            }
        }
    }

    /// Writes records once more that are in memory, if they are there as they were written. Nobody appends meanwhile.
    fn write_again(&self, from: u64, end: u64, crypto: &mut impl Crypto) -> Result<(), Error> {
        if self.write_while_whole(from, end, crypto)? < end {
            // Only a start finds out what is left.
            return Err(Error::io("records that were not durable are lost", rustix::io::Errno::IO));
        }
        Ok(())
    }

    /// Writes records once more up to the first that does not open. Returns where they end.
    fn write_while_whole(&self, from: u64, end: u64, crypto: &mut impl Crypto) -> Result<u64, Error> {
        let (key, file, mut at) = (self.inner().key.clone(), self.file()?, from);
        while at < end {
            let Some((.., next)) = read_record(file, end, at, &key, crypto)? else { break };
            // The last one's padding may be cut.
            let mut bytes = vec![0; (next.min(end) - at) as usize];
            self.read(&mut bytes, at)?;
            file.write_at(&bytes, at).map_err(|error| Error::io("writing the journal", error))?;
            at = next;
        }
        Ok(at)
    }

    /// Makes all records durable.
    pub(crate) fn sync_all(&self, crypto: &mut impl Crypto) -> Result<Durable, Error> {
        let number = self.inner().number;
        self.sync(number, crypto)
    }

    /// Makes what was found durable: a run that was killed may have left its last records in memory. They are written
    /// again first: if a disk refused them then, the system takes them for written.
    pub(crate) fn sync_found(&self, crypto: &mut impl Crypto) -> Result<Durable, Error> {
        let len = self.file()?.len().map_err(|error| Error::io("reading the journal", error))?;
        self.write_while_whole(RECORDS, len, crypto)?;
        self.file()?.sync().map_err(|error| Error::io("syncing the journal", error))?;
        Ok(Durable(u64::MAX))
    }

    /// When it was written last, where the store knows.
    pub(crate) fn written(&self) -> Result<Option<Timespec>, Error> {
        let times = self.file()?.times().map_err(|error| Error::io("reading the journal", error))?;
        Ok(times.map(|times| times.last_modification))
    }

    /// A sync of everything failed, which says nothing of single files: records that were not durable before it are
    /// written again before anything is acknowledged.
    pub(crate) fn doubt(&self) {
        let mut inner = self.inner();
        inner.doubts += 1;
        if inner.synced < inner.number {
            inner.trouble = inner.trouble.max(Trouble::Records);
        }
    }

    /// Whether only emptying the journal makes it usable again.
    pub(crate) fn needs_reset(&self) -> bool {
        self.inner().trouble == Trouble::Head
    }

    /// Fails as long as [`Journal::needs_reset`] says so: a later start may find none of this epoch's records, and what
    /// rests on their being there must not be begun.
    pub(crate) fn usable(&self) -> Result<(), Error> {
        if self.needs_reset() { Err(after_failure()) } else { Ok(()) }
    }

    /// Reads bytes of a blob.
    pub(crate) fn read(&self, to: &mut [u8], at: u64) -> Result<(), Error> {
        match read_at(self.file()?, to, at)? {
            len if len == to.len() => Ok(()),
            _ => Err(Error::Damaged("the journal is cut".into())),
        }
    }

    /// Bytes of records in this epoch.
    pub(crate) fn used(&self) -> u64 {
        self.inner().end - RECORDS
    }
}

impl Inner {
    fn new(secrets: Vec<(u32, Key)>, key: Key, head: usize, epoch: u64) -> Inner {
        Inner {
            secrets,
            key,
            head,
            epoch,
            origin: [0; 8],
            since: 0,
            number: 0,
            end: RECORDS,
            synced: 0,
            synced_end: RECORDS,
            doubts: 0,
            trouble: Trouble::None,
        }
    }
}

fn after_failure() -> Error {
    Error::io("writing the journal after a failed sync", rustix::io::Errno::IO)
}

/// The next epoch or number. None wraps around: a key's nonces would come again, or an older head would count.
fn next(number: u64, what: &str) -> Result<u64, Error> {
    let next = number.checked_add(1).filter(|next| *next != u64::MAX);
    next.ok_or_else(|| Error::Damaged(format!("the journal has no {what} after {number}")))
}

/// The key of an epoch's records.
fn record_key(secret: &Key, salt: &[u8; 32], crypto: &mut impl Crypto) -> Result<Key, Error> {
    let mut derived = Zeroizing::new([0; 32]);
    let info = [&b"wattlock fs 1 journal "[..], salt].concat();
    let data = Data::Apart { from: &[], to: &mut derived[..] };
    let mut request = Request { aad: &info, ..Request::new(Kind::HkdfExpandSha256, secret, data) };
    crypto.run(&mut request)?;
    Ok(Key::symmetric(Algorithm::Aes256Gcm, &derived[..])?)
}

/// The nonce of a head, whose key is new. No record has it: its number would have to be the last of all.
const HEAD_NONCE: [u8; 12] = [0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255];

/// The nonce of a record: its random bytes, then the last four of its number.
fn record_nonce(record: &[u8]) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[..8].copy_from_slice(&record[24..32]);
    nonce[8..].copy_from_slice(&record[12..16]);
    nonce
}

fn seal(
    key: &Key,
    nonce: [u8; 12],
    aad: &[u8],
    text: &mut [u8],
    crypto: &mut impl Crypto,
) -> Result<[u8; TAG], Error> {
    let mut tag = [0; TAG];
    let data = Data::InPlace(text);
    let mut request =
        Request { nonce: &nonce, aad, tag: &mut tag, ..Request::new(Kind::Aes256GcmSeal, key, data) };
    crypto.run(&mut request)?;
    Ok(tag)
}

fn open(
    key: &Key,
    nonce: [u8; 12],
    aad: &[u8],
    text: &mut [u8],
    tag: &[u8],
    crypto: &mut impl Crypto,
) -> Result<bool, Error> {
    let mut tag = tag.to_vec();
    let data = Data::InPlace(text);
    let mut request =
        Request { nonce: &nonce, aad, tag: &mut tag, ..Request::new(Kind::Aes256GcmOpen, key, data) };
    match crypto.run(&mut request) {
        Ok(_) => Ok(true),
        Err(CoreError::Authentication) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::ops::parse_ops;
    use super::*;
    use wattlock::{Dispatcher, Runtime};
    use wattlock_core::{Error as Refusal, Item};

    use crate::dev::{SimFile, SimStore};
    use crate::store::{JOURNAL, Place, Store};

    /// Counts what is authenticated.
    struct Counting(Dispatcher, u64);

    impl Crypto for Counting {
        fn run(&mut self, request: &mut Request<'_>) -> Result<usize, Refusal> {
            self.1 += (request.aad.len() + request.data.input().len()) as u64;
            self.0.run(request)
        }

        fn run_all(&mut self, items: &mut [Item<'_>]) {
            items.iter_mut().for_each(|item| item.result = self.run(&mut item.request));
        }
    }

    fn crypto() -> Counting {
        Counting(Runtime::builder().telemetry(false).build().unwrap().dispatcher(), 0)
    }

    fn opened(store: &SimStore, crypto: &mut Counting) -> Result<(Journal<SimFile>, Vec<Record>), Error> {
        let secrets = vec![(1, Key::symmetric(Algorithm::Secret, &[7; 32]).unwrap())];
        let (journal, found) = Journal::open(store.journal().unwrap(), secrets, &|| false, crypto)?;
        Ok((journal, found.records))
    }

    #[test]
    fn the_last_epoch_has_none_after_it() {
        let (store, mut crypto) = (SimStore::default(), crypto());
        let journal = opened(&store, &mut crypto).unwrap().0;
        journal.inner().epoch = u64::MAX - 2;
        journal.reset(&[], &mut crypto).unwrap();
        let refused = |journal: &Journal<SimFile>, crypto: &mut Counting| {
            let error = journal.reset(&[], crypto).unwrap_err().to_string();
            assert!(error.contains("no epoch after 18446744073709551614"), "{error}");
        };
        refused(&journal, &mut crypto);
        refused(&opened(&store, &mut crypto).unwrap().0, &mut crypto);
        journal.inner().number = u64::MAX - 1;
        let record = &mut vec![0; RECORD_HEAD];
        let error = journal.append(record, &Ops::default(), &mut crypto).unwrap_err().to_string();
        assert!(error.contains("no number after"), "{error}");
    }

    #[test]
    fn a_head_of_a_newer_program_is_neither_damage_nor_passed_over_for_the_other() {
        let (store, mut crypto) = (SimStore::default(), crypto());
        let journal = opened(&store, &mut crypto).unwrap().0;
        journal.reset(&[], &mut crypto).unwrap();
        journal.reset(&[], &mut crypto).unwrap();
        let bytes = store.bytes(JOURNAL);
        for at in HEADS {
            let mut newer = bytes.clone();
            assert!(newer[at as usize..].starts_with(HEAD_MAGIC));
            newer[at as usize + 8] = VERSION + 1;
            store.put(JOURNAL, &newer);
            let error = opened(&store, &mut crypto).map(|_| ()).unwrap_err();
            assert!(matches!(error, Error::Newer(_)) && error.exit_code() == 81, "{error}");
            assert!(error.to_string().contains("version 3 of wattlock.journal"), "{error}");
        }
    }

    #[test]
    fn records_within_records_are_not_all_looked_through() {
        let (store, mut crypto) = (SimStore::default(), crypto());
        let journal = opened(&store, &mut crypto).unwrap().0;
        journal.reset(&[], &mut crypto).unwrap();
        journal.reset(&[], &mut crypto).unwrap();
        let mut bytes = store.bytes(JOURNAL);
        bytes.resize(RECORDS as usize, 0);
        let len: usize = 1 << 18;
        while bytes.len() + RECORD_HEAD + 8 + TAG <= len {
            let blob = len - bytes.len() - RECORD_HEAD - 8 - TAG;
            bytes.extend(RECORD_MAGIC);
            bytes.extend((bytes.len() as u64).to_be_bytes());
            bytes.extend((blob as u32).to_be_bytes());
            bytes.extend(8_u32.to_be_bytes());
            bytes.extend([3; 8]);
        }
        bytes.resize(len, 0);
        store.put(JOURNAL, &bytes);
        crypto.1 = 0;
        let error = opened(&store, &mut crypto).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("one in the other"), "{error}");
        assert!(crypto.1 <= (OVERLAPS + 2) * len as u64, "{} bytes", crypto.1);
        // A torn record with whole ones of an earlier epoch behind it is what crashes leave.
        let record = |number: u64, durable: u64, crypto: &mut Counting| {
            let key = Key::symmetric(Algorithm::Aes256Gcm, &[9; 32]).unwrap();
            let mut record = [&RECORD_MAGIC[..], &number.to_be_bytes(), &[0, 0, 16, 0, 0, 0, 0, 8]].concat();
            record.resize(RECORD_HEAD + 4096, 5);
            let mut text = durable.to_be_bytes().to_vec();
            let tag = seal(&key, record_nonce(&record), &record, &mut text, crypto).unwrap();
            [&record[..], &text, &tag].concat()
        };
        bytes.truncate(RECORDS as usize);
        bytes.extend([1; 800]);
        for number in 1..40 {
            bytes.extend(record(number, u64::MAX, &mut crypto));
        }
        store.put(JOURNAL, &bytes);
        assert!(opened(&store, &mut crypto).unwrap().1.is_empty());
    }

    #[test]
    fn operations_are_read_as_they_were_written() {
        let ops = [
            Op::Range(7 << 20),
            Op::File {
                number: 1,
                id: 9,
                place: Place { inode: (1, 2), path: b"a/b".to_vec() },
                committed: 5,
            },
            Op::Put { number: 1, first: 3, count: 4, last_len: 77 },
            Op::Hole { number: 1, first: 64, level: 6 },
            Op::Commit { number: 1, len: 1 << 40 },
            Op::Cut { number: 2, len: 0 },
            Op::Header { number: 2 },
        ];
        let mut bytes = Ops::default();
        ops.iter().for_each(|op| bytes.push(op));
        assert_eq!(parse_ops(&bytes.0).unwrap(), ops);
        for len in 0..bytes.0.len() {
            // A cut in the middle of an operation is no shorter list.
            let parsed = parse_ops(&bytes.0[..len]);
            assert!(parsed.is_none_or(|parsed| parsed.len() < ops.len() && ops.starts_with(&parsed)));
        }
        assert!(parse_ops(&[9, 0, 0, 0, 0]).is_none());
    }
}
