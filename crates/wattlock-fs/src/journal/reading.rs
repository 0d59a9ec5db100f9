//! Reading a journal that an earlier run left: its heads and its records.

use wattlock_core::Key;
use wattlock_door::Crypto;

use super::ops::{Op, parse_ops};
use super::{
    BLOB_MAX, HEAD_CLEAR, HEAD_MAGIC, HEAD_NONCE, HEADS, OPS_MAX, OVERLAPS, RANGES, RECORD_HEAD,
    RECORD_MAGIC, RECORDS, TAG, VERSION, open, record_key, record_nonce,
};
use crate::Error;
use crate::format::be64;
use crate::store::File;

/// One record that was read.
pub(crate) struct Record {
    pub(crate) ops: Vec<Op>,
    /// Where its blob is in the journal's file.
    pub(crate) blob_at: u64,
    pub(crate) blob_len: u64,
}

pub(super) fn read_at(file: &impl File, to: &mut [u8], at: u64) -> Result<usize, Error> {
    file.read_at(to, at).map_err(|error| Error::io("reading the journal", error))
}

/// Whether a file has only zeros: a journal whose first head was never synced.
pub(super) fn is_zero(file: &impl File, len: u64, stop: &dyn Fn() -> bool) -> Result<bool, Error> {
    let (mut buffer, mut at) = (vec![0; 1 << 16], 0);
    while let Some(data) = data_from(file, at, len, stop)? {
        let got = read_at(file, &mut buffer, data)?;
        if buffer[..got].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at = data + buffer.len() as u64;
    }
    Ok(true)
}

/// Where a hole ends that a place is in, as what follows a torn record may be as long as its storage likes; `None` at the
/// end.
pub(super) fn data_from(
    file: &impl File,
    at: u64,
    len: u64,
    stop: &dyn Fn() -> bool,
) -> Result<Option<u64>, Error> {
    if stop() {
        return Err(wattlock_door::Error::Interrupted.into());
    }
    if at >= len {
        return Ok(None);
    }
    let data = file.next_data(at).map_err(|error| Error::io("reading the journal", error))?;
    // Records begin at multiples of eight.
    Ok(data.map(|data| at.max(data / 8 * 8)).filter(|data| *data < len))
}

/// A head that was read.
pub(super) struct Head {
    pub(super) epoch: u64,
    /// Of the epoch's records.
    pub(super) key: Key,
    pub(super) ranges: Vec<u64>,
    pub(super) since: u64,
    pub(super) origin: [u8; 8],
}

/// Fails for a journal of which a head says another version. Reads nothing else, and needs no key.
///
/// # Errors
/// [`Error::Newer`]; [`Error::Io`].
pub(crate) fn refuse_newer(file: &impl File) -> Result<(), Error> {
    for at in HEADS {
        let mut start = [0; 9];
        if read_at(file, &mut start, at)? == start.len() {
            of_this_version(&start)?;
        }
    }
    Ok(())
}

/// Fails for what begins as a head of another version.
fn of_this_version(bytes: &[u8]) -> Result<(), Error> {
    match bytes[..8] == *HEAD_MAGIC && bytes[8] != VERSION {
        true => Err(Error::Newer(format!("version {} of wattlock.journal", bytes[8]))),
        false => Ok(()),
    }
}

/// Reads a head; `None` for what is none. Nothing vouches for a version that is unknown.
pub(super) fn read_head(
    bytes: &[u8],
    secrets: &[(u32, Key)],
    crypto: &mut impl Crypto,
) -> Result<Option<Head>, Error> {
    if bytes.len() < HEAD_CLEAR || bytes[..8] != *HEAD_MAGIC {
        return Ok(None);
    }
    of_this_version(bytes)?;
    let generation = be64(&bytes[12..16]) as u32;
    let Some((_, secret)) = secrets.iter().find(|(there, _)| *there == generation) else { return Ok(None) };
    let mut salt = [0; 32];
    salt.copy_from_slice(&bytes[24..56]);
    let count = be64(&bytes[56..60]) as usize;
    let end = HEAD_CLEAR + count.min(RANGES) * 8;
    if count > RANGES || bytes.len() < end + TAG {
        return Ok(None);
    }
    let key = record_key(secret, &salt, crypto)?;
    let mut text = bytes[HEAD_CLEAR..end].to_vec();
    if !open(&key, HEAD_NONCE, &bytes[..HEAD_CLEAR], &mut text, &bytes[end..end + TAG], crypto)? {
        return Ok(None);
    }
    if bytes[9..12] != [0; 3] {
        return Err(Error::Newer("flags of wattlock.journal".into()));
    }
    let (epoch, since) = (be64(&bytes[16..24]), be64(&bytes[60..68]));
    let mut origin = [0; 8];
    origin.copy_from_slice(&bytes[68..76]);
    Ok(Some(Head { epoch, key, ranges: text.chunks_exact(8).map(be64).collect(), since, origin }))
}

/// What stands before a record's blob, if it can be one: its number, and the lengths of its blob and operations.
pub(super) fn record_head(file: &impl File, len: u64, at: u64) -> Result<Option<(u64, usize, usize)>, Error> {
    let mut head = [0; RECORD_HEAD];
    if read_at(file, &mut head, at)? < RECORD_HEAD || head[..8] != *RECORD_MAGIC {
        return Ok(None);
    }
    let (number, blob) = (be64(&head[8..16]), be64(&head[16..20]) as usize);
    let ops = be64(&head[20..24]) as usize;
    let possible = blob <= BLOB_MAX && (8..=OPS_MAX).contains(&ops) && total(blob, ops) <= len - at;
    Ok(possible.then_some((number, blob, ops)))
}

/// Bytes of a record without what fills it up.
pub(super) fn total(blob: usize, ops: usize) -> u64 {
    (RECORD_HEAD + blob + ops + TAG) as u64
}

/// A record at a place: its number, up to where the journal was durable when it was written, and the record.
pub(super) fn read_record(
    file: &impl File,
    len: u64,
    at: u64,
    key: &Key,
    crypto: &mut impl Crypto,
) -> Result<Option<(u64, u64, Record, u64)>, Error> {
    let Some((number, blob, ops)) = record_head(file, len, at)? else { return Ok(None) };
    let total = total(blob, ops) as usize;
    let mut bytes = vec![0; total];
    if read_at(file, &mut bytes, at)? < total {
        return Ok(None);
    }
    let (aad, rest) = bytes.split_at_mut(RECORD_HEAD + blob);
    let (text, tag) = rest.split_at_mut(ops);
    if !open(key, record_nonce(aad), aad, text, tag, crypto)? {
        return Ok(None);
    }
    let durable = be64(&text[..8]);
    let Some(ops) = parse_ops(&text[8..]) else {
        // It authenticates, so a key holder wrote what is unknown here.
        return Err(Error::Newer(format!("operations in the journal's record at {at}")));
    };
    let record = Record { ops, blob_at: at + RECORD_HEAD as u64, blob_len: blob as u64 };
    Ok(Some((number, durable, record, at + total.next_multiple_of(8) as u64)))
}

pub(super) fn read_records(
    file: &impl File,
    len: u64,
    key: &Key,
    stop: &dyn Fn() -> bool,
    crypto: &mut impl Crypto,
) -> Result<Vec<Record>, Error> {
    let (mut records, mut at, mut latest) = (Vec::new(), RECORDS, 0);
    while at < len && !stop() {
        match read_record(file, len, at, key, crypto)? {
            Some((number, _, record, next)) if number > latest => {
                records.push(record);
                (at, latest) = (next, number);
            }
            _ => break,
        }
    }
    // A record that was torn is the last that matters. If one behind it says that the journal was durable beyond,
    // this one was durable once.
    let bad = at;
    let mut left = (len - at.min(len)).saturating_mul(OVERLAPS);
    let mut window = vec![0; 1 << 20];
    while let Some(data) = data_from(file, at, len, stop)? {
        at = data;
        let got = read_at(file, &mut window, at)?;
        if got < 8 {
            break;
        }
        for off in (0..got - 7).step_by(8) {
            let here = at + off as u64;
            if window[off..off + 8] != *RECORD_MAGIC {
                continue;
            }
            let Some((number, blob, ops)) = record_head(file, len, here)? else { continue };
            if number <= latest {
                continue;
            }
            let Some(rest) = left.checked_sub(total(blob, ops)) else {
                let why = "are more records, one in the other, than crashes leave";
                return Err(Error::Damaged(format!("the journal's record at {bad}: behind it {why}")));
            };
            left = rest;
            if let Some((_, durable, ..)) = read_record(file, len, here, key, crypto)?
                && durable > bad
            {
                return Err(Error::Damaged(format!("the journal's record at {bad}")));
            }
        }
        at += got as u64 / 8 * 8;
    }
    Ok(records)
}
