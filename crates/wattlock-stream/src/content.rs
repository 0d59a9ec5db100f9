//! What is inside a sealed record: a byte of flags, the headers that are not clear, and the value, plain or packed.
//!
//! Pure except for packing and unpacking; a value is unpacked when it is asked for, not when content is parsed.
//! Everything parsed here was authenticated before; lengths are bounded all the same, since a sealer's key is not a
//! reader's judgement.
//!
//! ```text
//! flags    1: headers follow   2: the value is a Zstandard frame   4: a tombstone, no value follows
//! headers  count, then for each a number n. n = 0: the next of the clear headers stands here.
//!          Otherwise n - 1 bytes of name, then m. m = 0: no value; otherwise m - 1 bytes of value
//! ```
//!
//! Numbers have seven bits a byte, the lowest first.

use std::ops::Range;

use wattlock_core::{Data, Item, Key, Kind, LatencyClass, Options, Part, Place, Request};
use wattlock_door::Crypto;
use zeroize::Zeroizing;

use crate::error::Error;
use crate::record::{HEADERS_MAX, Record};

const HEADERS: u8 = 1;
const PACKED: u8 = 2;
const TOMBSTONE: u8 = 4;

/// Values below this are not worth a frame of their own.
const PACK_MIN: usize = 64;
/// The compressor's level; what Kafka's clients take by default.
const LEVEL: u8 = 3;

/// A record's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    /// Its name; several may have the same.
    pub name: &'a str,
    /// Its value, if it has one.
    pub value: Option<&'a [u8]>,
}

/// A value on its way into a record.
pub(crate) enum Body<'a> {
    Tombstone,
    Plain(&'a [u8]),
    Packed(&'a [u8]),
}

fn put_number(number: usize, to: &mut Vec<u8>) {
    let mut left = number;
    while left >= 0x80 {
        to.push(left as u8 | 0x80);
        left >>= 7;
    }
    to.push(left as u8);
}

fn take_number(bytes: &mut &[u8]) -> Option<usize> {
    let mut number = 0;
    for at in 0..5 {
        let byte = *bytes.get(at)?;
        number |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            *bytes = &bytes[at + 1..];
            return Some(number);
        }
    }
    None
}

/// What headers take in a record, at most.
pub(crate) fn room(headers: &[Header<'_>]) -> usize {
    let one = |header: &Header<'_>| 10 + header.name.len() + header.value.map_or(0, <[u8]>::len);
    if headers.is_empty() { 0 } else { 5 + headers.iter().map(one).sum::<usize>() }
}

/// Appends headers; nothing stands for one that is clear.
pub(crate) fn put_headers<'a>(headers: impl Iterator<Item = Option<Header<'a>>> + Clone, to: &mut Vec<u8>) {
    put_number(headers.clone().count(), to);
    for header in headers {
        let Some(header) = header else {
            to.push(0);
            continue;
        };
        put_number(header.name.len() + 1, to);
        to.extend_from_slice(header.name.as_bytes());
        put_number(header.value.map_or(0, |value| value.len() + 1), to);
        to.extend_from_slice(header.value.unwrap_or_default());
    }
}

/// Appends a record's content.
pub(crate) fn put(
    body: Body<'_>,
    headers: &[Header<'_>],
    clear: impl Fn(&Header<'_>) -> bool,
    to: &mut Vec<u8>,
) {
    let hidden = !headers.iter().all(&clear);
    let (flag, value) = match body {
        Body::Tombstone => (TOMBSTONE, &[][..]),
        Body::Plain(value) => (0, value),
        Body::Packed(value) => (PACKED, value),
    };
    to.push(flag | if hidden { HEADERS } else { 0 });
    if hidden {
        put_headers(headers.iter().map(|header| (!clear(header)).then_some(*header)), to);
    }
    to.extend_from_slice(value);
}

/// Of each record the value that got shorter by packing it.
pub(crate) type Packed = Vec<Option<Zeroizing<Vec<u8>>>>;

/// Values that got shorter by packing them, in one call of the engines, and where that was done.
pub(crate) fn pack(
    records: &[Record<'_>],
    part: Part,
    crypto: &mut dyn Crypto,
) -> Result<(Packed, Option<Place>), Error> {
    fn long<'a>(record: &Record<'a>) -> Option<&'a [u8]> {
        record.value.filter(|value| value.len() >= PACK_MIN)
    }
    // What does not get shorter stays as it is.
    let mut packed: Packed = records
        .iter()
        .map(|record| {
            long(record).map(|value| Zeroizing::new(vec![0; zstd_safe::compress_bound(value.len())]))
        })
        .collect();
    let pairs = records.iter().filter_map(long).zip(packed.iter_mut().flatten());
    let mut items: Vec<Item<'_>> = pairs
        .map(|(from, to)| {
            let request = Request::new(Kind::Zstd, Key::none(), Data::Apart { from, to });
            let (options, class) = (Options::compress(LEVEL, true), LatencyClass::Bulk);
            Item::new(Request { options, class, ..request })
        })
        .collect();
    let place = crypto.run_all_of(&mut items, part);
    let results: Vec<_> = items.iter().map(|item| item.result).collect();
    drop(items);
    let mut results = results.into_iter();
    for (packed, record) in packed.iter_mut().zip(records) {
        let Some(bytes) = packed else { continue };
        let len = results.next().unwrap_or(Ok(usize::MAX))?;
        if record.value.is_some_and(|value| len < value.len()) {
            bytes.truncate(len);
        } else {
            *packed = None;
        }
    }
    Ok((packed, place))
}

/// Where content's parts are.
pub(crate) struct Parsed {
    headers: Option<Range<usize>>,
    value: Value,
}

enum Value {
    None,
    Plain(Range<usize>),
    /// A frame, and the length of what is in it.
    Packed(Range<usize>, usize),
}

impl Parsed {
    /// Unpacks a packed value to the start of `room`, which it makes as long as that needs. A longer one takes the
    /// place of a shorter one, which is wiped.
    pub(crate) fn unpack(&self, plain: &[u8], room: &mut Zeroizing<Vec<u8>>) -> Result<(), Error> {
        let Value::Packed(range, len) = &self.value else { return Ok(()) };
        if room.len() < *len {
            *room = Zeroizing::new(Vec::new());
            *room = Zeroizing::new(vec![0; *len]);
        }
        match zstd_safe::decompress(&mut room[..*len], &plain[range.clone()]) {
            Ok(unpacked) if unpacked == *len => Ok(()),
            _ => Err(NO_FRAME),
        }
    }

    /// The value, given what [`Parsed::unpack`] filled.
    pub(crate) fn value<'a>(&self, plain: &'a [u8], unpacked: &'a [u8]) -> Option<&'a [u8]> {
        match &self.value {
            Value::None => None,
            Value::Plain(range) => Some(&plain[range.clone()]),
            Value::Packed(_, len) => Some(&unpacked[..*len]),
        }
    }

    pub(crate) fn headers<'a>(&self, plain: &'a [u8]) -> Option<&'a [u8]> {
        self.headers.clone().map(|range| &plain[range])
    }
}

/// Takes content apart: the bytes of `plain` at `content`.
pub(crate) fn parse(
    plain: &[u8],
    content: Range<usize>,
    tombstone: bool,
    value_max: usize,
) -> Result<Parsed, Error> {
    let (&flags, mut rest) =
        plain[content.clone()].split_first().ok_or(Error::RecordContent("it has no flags"))?;
    if flags & !(HEADERS | PACKED | TOMBSTONE) != 0 {
        return Err(Error::RecordContent("unknown flags"));
    }
    if (flags & TOMBSTONE != 0) != tombstone {
        return Err(Error::RecordAltered);
    }
    let mut headers = None;
    if flags & HEADERS != 0 {
        let start = content.end - rest.len();
        skip_headers(&mut rest).ok_or(Error::RecordContent("its headers"))?;
        headers = Some(start..content.end - rest.len());
    }
    let value_at = content.end - rest.len()..content.end;
    let value = match flags & (PACKED | TOMBSTONE) {
        0 => Value::Plain(value_at),
        PACKED => Value::Packed(value_at, unpacked_len(rest, value_max)?),
        _ if rest.is_empty() && flags & PACKED == 0 => Value::None,
        _ => return Err(Error::RecordContent("a tombstone with a value")),
    };
    Ok(Parsed { headers, value })
}

const NO_FRAME: Error = Error::RecordContent("its compression");

/// What a frame says of its content's length.
fn unpacked_len(packed: &[u8], value_max: usize) -> Result<usize, Error> {
    let len = zstd_safe::get_frame_content_size(packed).ok().flatten().ok_or(NO_FRAME)?;
    usize::try_from(len).ok().filter(|len| *len <= value_max).ok_or(Error::RecordTooLarge)
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

/// The next header; `Some(None)` for a clear one.
fn take_header<'a>(bytes: &mut &'a [u8]) -> Option<Option<Header<'a>>> {
    let Some(len) = take_number(bytes)?.checked_sub(1) else { return Some(None) };
    let name = std::str::from_utf8(take(bytes, len)?).ok()?;
    let value = match take_number(bytes)?.checked_sub(1) {
        Some(len) => Some(take(bytes, len)?),
        None => None,
    };
    Some(Some(Header { name, value }))
}

fn skip_headers(bytes: &mut &[u8]) -> Option<()> {
    let count = take_number(bytes).filter(|count| *count <= HEADERS_MAX)?;
    (0..count).try_for_each(|_| take_header(bytes).map(|_| ()))
}

/// Sealed headers and clear ones in the producer's order. Clear ones that nothing points to come last.
pub(crate) fn headers<'a>(
    sealed: Option<&'a [u8]>,
    mut clear: impl Iterator<Item = Header<'a>>,
) -> Vec<Header<'a>> {
    let mut all = Vec::new();
    if let Some(mut bytes) = sealed {
        let count = take_number(&mut bytes).unwrap_or(0);
        for _ in 0..count {
            match take_header(&mut bytes) {
                Some(Some(header)) => all.push(header),
                Some(None) => all.extend(clear.next()),
                None => break,
            }
        }
    }
    all.extend(clear);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_in_their_order() {
        let header = |name, value| Header { name, value };
        let all = [
            header("a", Some(&b"1"[..])),
            header("trace", Some(b"t1")),
            header("", None),
            header("trace", Some(b"")),
            header("a", Some(b"2")),
        ];
        let clear = |header: &Header<'_>| header.name == "trace";
        let mut bytes = Vec::new();
        put(Body::Plain(b"value"), &all, clear, &mut bytes);
        assert!(bytes.len() <= 1 + 5 + room(&all));
        let parsed = parse(&bytes, 0..bytes.len(), false, 100).ok();
        let parsed = parsed.expect("what was put parses");
        assert_eq!(parsed.value(&bytes, &[]), Some(&b"value"[..]));
        let on_topic = all.iter().copied().filter(clear);
        assert_eq!(headers(parsed.headers(&bytes), on_topic), all);
    }

    #[test]
    fn content_that_no_sealer_makes_is_refused() {
        let refused = |bytes: &[u8], tombstone| parse(bytes, 0..bytes.len(), tombstone, 100).is_err();
        assert!(!refused(&[0], false) && !refused(&[TOMBSTONE], true));
        assert!(refused(&[], false), "no flags");
        assert!(refused(&[8], false), "unknown flags");
        assert!(refused(&[TOMBSTONE], false) && refused(&[0], true), "one for the other");
        assert!(refused(&[TOMBSTONE, 1], true) && refused(&[TOMBSTONE | PACKED], true), "a value of nothing");
        assert!(refused(&[HEADERS, 2, 0], false), "fewer headers than said");
        assert!(refused(&[HEADERS, 1, 9, b'x'], false), "a longer name than there is");
        assert!(refused(&[HEADERS, 0xff, 0xff, 0xff, 0xff, 0xff, 0], false), "a number without an end");
        assert!(refused(&[HEADERS, 1, 2, 0xff, 0], false), "a name that is no text");
        assert!(refused(&[PACKED, 1, 2, 3], false), "no frame");
    }

    #[test]
    fn a_frame_that_grows_beyond_the_bound_is_refused_before_memory_is_taken() {
        let mut frame = vec![0; 1 << 10];
        let len = zstd_safe::compress(&mut frame[..], &[0; 101], 3).expect("a frame");
        let bytes = [&[PACKED][..], &frame[..len]].concat();
        assert!(matches!(parse(&bytes, 0..bytes.len(), false, 100), Err(Error::RecordTooLarge)));
        assert!(parse(&bytes, 0..bytes.len(), false, 101).is_ok());
    }
}
