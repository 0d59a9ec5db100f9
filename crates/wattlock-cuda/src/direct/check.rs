//! Whether the fields of a caller's messages make sense together: lengths, strides, room and overlaps. Pure; whose memory
//! the addresses are is asked of the driver afterwards.

use std::fmt;

use wattlock_core::{Family, Group, Kind, NonceLen};

use crate::plan::{self, TAG};

/// Device memory that a caller names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Area {
    /// Its address on the device.
    pub at: u64,
    /// How many bytes from there on may be used.
    pub bytes: u64,
}

/// Many messages in device memory. Message `i` begins `i` strides behind the area's address. The last message may be
/// shorter than the others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Messages {
    /// How many.
    pub count: u32,
    /// Bytes of each message but the last.
    pub length: u64,
    /// Bytes of the last one; at most `length`.
    pub last_length: u64,
    /// What is read.
    pub input: Area,
    /// From one message to the next.
    pub input_stride: u64,
    /// What is written. It may be the input, with the same stride.
    pub output: Area,
    /// From one message to the next.
    pub output_stride: u64,
    /// Nonces, counters, tweaks or initialisation vectors.
    pub nonces: Area,
    /// From one to the next; 0: they lie side by side.
    pub nonce_stride: u64,
    /// Associated data.
    pub aad: Area,
    /// From one message's to the next's; 0: all messages have the same.
    pub aad_stride: u64,
    /// Bytes of each message's.
    pub aad_length: u64,
    /// Tags of 16 bytes: written by a seal, read by an open.
    pub tags: Area,
    /// From one to the next; 0: they lie side by side.
    pub tag_stride: u64,
    /// The last message's tag, where it lies nearer than a stride; 0: it does not.
    pub last_tag: u64,
    /// An open writes 32 bits for each message: 1 for a verified one, 0 for any other.
    pub results: Area,
}

/// What is wrong with a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The address is null.
    Null,
    /// The address is not a device's.
    Host,
    /// The address is another device's, whose number this is.
    OtherDevice(u32),
    /// The address is no multiple of this.
    Misaligned(u64),
    /// The area, or the memory it lies in, ends too early: bytes needed.
    Short(u64),
    /// There are fewer than messages.
    Few,
    /// It shares bytes with another field.
    Overlaps(&'static str),
    /// A stride is below the message.
    Stride,
    /// A length that the algorithm does not do.
    Length,
    /// More than can be counted.
    Large,
    /// The algorithm takes none.
    Unwanted,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Null => f.write_str("is null"),
            Why::Host => f.write_str("is not in a GPU's memory"),
            Why::OtherDevice(number) => write!(f, "is in the memory of GPU {number}"),
            Why::Misaligned(of) => write!(f, "is not a multiple of {of}"),
            Why::Short(needed) => write!(f, "is too short: {needed} bytes are needed"),
            Why::Few => f.write_str("are too few for these messages"),
            Why::Overlaps(other) => write!(f, "overlaps {other}"),
            Why::Stride => f.write_str("is below the length"),
            Why::Length => f.write_str("is not a length for this algorithm"),
            Why::Large => f.write_str("is too large"),
            Why::Unwanted => f.write_str("must be empty for this algorithm"),
        }
    }
}

/// A field, and what is wrong with it.
pub(super) type Refused = (&'static str, Why);

/// A field as equal pieces at a stride; the last may be shorter and lie nearer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    pub(super) name: &'static str,
    at: u64,
    stride: u64,
    each: u64,
    last: u64,
    last_each: u64,
    count: u64,
    written: bool,
    /// The bytes that it takes, from its address on.
    pub(super) bytes: u64,
}

impl Field {
    fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub(super) fn at(&self) -> u64 {
        self.at
    }

    fn end(&self) -> u64 {
        self.at + self.bytes
    }

    /// Whether the two share no byte. Pieces may interleave if their strides are equal.
    fn is_apart_from(&self, other: &Field) -> bool {
        if self.is_empty() || other.is_empty() || self.end() <= other.at || other.end() <= self.at {
            return true;
        }
        if self.stride != other.stride || self.count != other.count || self.count < 2 {
            return false;
        }
        let (front, behind) = if self.at <= other.at { (self, other) } else { (other, self) };
        let gap = behind.at - front.at;
        // Piece by piece: behind the front one's piece and before its next.
        gap >= front.each
            && gap + behind.each <= front.stride
            && behind.last >= front.last + front.last_each
            && behind.last_each <= behind.each
    }
}

/// The pieces of a field: its area, stride, length, and the last one's length and place.
fn field(
    name: &'static str,
    area: Area,
    (stride, each, last_each): (u64, u64, u64),
    (count, last): (u64, Option<u64>),
    written: bool,
) -> Result<Field, Refused> {
    let before = (count - 1).checked_mul(stride).ok_or((name, Why::Large))?;
    let regular = area.at.checked_add(before).ok_or((name, Why::Large))?;
    let last = last.unwrap_or(regular);
    let end = last.checked_add(last_each).ok_or((name, Why::Large))?;
    let inner = if count > 1 { before - stride + each } else { 0 };
    let bytes = if each == 0 && last_each == 0 { 0 } else { (end.saturating_sub(area.at)).max(inner) };
    if bytes > 0 && area.at == 0 {
        return Err((name, Why::Null));
    }
    if last < area.at || (count > 1 && stride < each && stride > 0) || (count > 1 && last_each > each) {
        return Err((name, Why::Stride));
    }
    if bytes > area.bytes {
        return Err((name, Why::Short(bytes)));
    }
    area.at.checked_add(bytes).ok_or((name, Why::Large))?;
    Ok(Field { name, at: area.at, stride, each, last, last_each, count, written, bytes })
}

/// A field in one piece.
pub(super) fn whole(name: &'static str, at: u64, bytes: u64) -> Result<Field, Refused> {
    field(name, Area { at, bytes }, (bytes, bytes, bytes), (1, None), true)
}

/// Bytes from one piece to the next, where 0 stands for "side by side".
pub(super) fn packed(stride: u64, each: u64) -> u64 {
    if stride == 0 { each } else { stride }
}

/// Bytes of a nonce.
pub(super) fn nonce_bytes(kind: Kind) -> u64 {
    match kind.info().nonce {
        NonceLen::Exactly(bytes) => bytes as u64,
        NonceLen::Any => 0,
    }
}

/// Every field that is read or written, checked.
pub(super) fn fields(kind: Kind, messages: &Messages) -> Result<Vec<Field>, Refused> {
    let info = kind.info();
    let m = messages;
    if m.count == 0 {
        return Ok(Vec::new());
    }
    let count = u64::from(m.count);
    if m.count >= 1 << 31 {
        return Err(("count", Why::Large));
    }
    let most = match info.group {
        Group::Gcm => (1 << 36) - 32,
        Group::ChaChaPoly => (1 << 38) - 64,
        Group::Xts => 1 << 24,
        _ => 1 << 46,
    };
    for (name, length) in [("length", m.length), ("last_length", m.last_length)] {
        let multiple = info.multiple.max(1) as u64;
        // With one message there is no other than the last.
        let counts = count > 1 || name == "last_length";
        if counts && (length < info.least as u64 || !length.is_multiple_of(multiple) || length > most) {
            return Err((name, Why::Length));
        }
    }
    if count > 1 && m.last_length > m.length {
        return Err(("last_length", Why::Length));
    }
    let aead = info.tag > 0;
    if !aead && m.aad_length > 0 {
        return Err(("aad", Why::Unwanted));
    }
    let of = |name, area, stride, each, written| {
        if count > 1 && stride < each {
            return Err((name, Why::Stride));
        }
        Ok((area, stride, written))
    };
    let (input, input_stride, _) = of("input_stride", m.input, m.input_stride, m.length, false)?;
    let (output, output_stride, _) = of("output_stride", m.output, m.output_stride, m.length, true)?;
    let shape = |stride| (stride, m.length, m.last_length);
    let mut fields = vec![
        field("input", input, shape(input_stride), (count, None), false)?,
        field("output", output, shape(output_stride), (count, None), true)?,
    ];
    let each = nonce_bytes(kind);
    let stride = packed(m.nonce_stride, each);
    if stride < each {
        return Err(("nonce_stride", Why::Stride));
    }
    let nonces = field("nonces", m.nonces, (stride, each, each), (count, None), false);
    fields.push(nonces.map_err(|(name, why)| match why {
        Why::Short(_) => (name, Why::Few),
        why => (name, why),
    })?);
    if m.aad_length > 0 {
        if count > 1 && m.aad_stride > 0 && m.aad_stride < m.aad_length {
            return Err(("aad_stride", Why::Stride));
        }
        let shape = (m.aad_stride, m.aad_length, m.aad_length);
        fields.push(field("aad", m.aad, shape, (count, None), false)?);
    }
    if aead {
        let each = TAG as u64;
        let stride = packed(m.tag_stride, each);
        if stride < each {
            return Err(("tag_stride", Why::Stride));
        }
        let last = (m.last_tag != 0).then_some(m.last_tag);
        let before = m.tags.at.saturating_add((count - 1).saturating_mul(stride));
        // Behind the tag before it, and not beyond its regular place.
        let least = if count > 1 { before.saturating_sub(stride).saturating_add(each) } else { m.tags.at };
        if last.is_some_and(|last| last < least || last > before) {
            return Err(("last_tag", Why::Stride));
        }
        let tags = field("tags", m.tags, (stride, each, each), (count, last), info.family == Family::Seal);
        fields.push(tags.map_err(|(name, why)| match why {
            Why::Short(_) => (name, Why::Few),
            why => (name, why),
        })?);
    }
    if info.family == Family::Open {
        let results = field("results", m.results, (4, 4, 4), (count, None), true);
        fields.push(results.map_err(|(name, why)| match why {
            Why::Short(_) => (name, Why::Few),
            why => (name, why),
        })?);
        if !m.results.at.is_multiple_of(4) {
            return Err(("results", Why::Misaligned(4)));
        }
    }
    overlaps(&fields)?;
    Ok(fields)
}

/// Refuses a field that is written and shares bytes with another, except an output that is the input.
fn overlaps(fields: &[Field]) -> Result<(), Refused> {
    for (index, field) in fields.iter().enumerate() {
        for other in fields.iter().take(index) {
            if !(field.written || other.written) || field.is_apart_from(other) {
                continue;
            }
            let in_place = (other.name, field.name) == ("input", "output")
                && field.at == other.at
                && (field.stride == other.stride || field.count == 1);
            if !in_place {
                // The one that is written is at fault.
                let (name, with) =
                    if field.written { (field.name, other.name) } else { (other.name, field.name) };
                return Err((name, Why::Overlaps(with)));
            }
        }
    }
    Ok(())
}

/// Units of all messages.
pub(super) fn units(kind: Kind, messages: &Messages) -> Result<u64, Refused> {
    let unit = plan::unit(kind);
    let others = u64::from(messages.count.saturating_sub(1)).checked_mul(messages.length.div_ceil(unit));
    let units = others.and_then(|units| units.checked_add(messages.last_length.div_ceil(unit)));
    units.filter(|units| *units < 1 << 37).ok_or(("count", Why::Large))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three messages of 100 bytes, the last of 40, sealed.
    fn good() -> Messages {
        Messages {
            count: 3,
            length: 100,
            last_length: 40,
            input: Area { at: 0x1000, bytes: 300 },
            input_stride: 112,
            output: Area { at: 0x2000, bytes: 300 },
            output_stride: 112,
            nonces: Area { at: 0x3000, bytes: 36 },
            tags: Area { at: 0x4000, bytes: 48 },
            results: Area { at: 0x5000, bytes: 12 },
            ..Messages::default()
        }
    }

    fn refused(kind: Kind, change: impl FnOnce(&mut Messages)) -> Option<Refused> {
        let mut messages = good();
        change(&mut messages);
        fields(kind, &messages).err()
    }

    const SEAL: Kind = Kind::Aes256GcmSeal;
    const OPEN: Kind = Kind::Aes256GcmOpen;

    #[test]
    fn every_field_that_is_wrong_is_named() {
        assert_eq!(refused(SEAL, |_| {}), None);
        assert_eq!(refused(OPEN, |_| {}), None);
        assert_eq!(refused(SEAL, |m| m.input.at = 0), Some(("input", Why::Null)));
        assert_eq!(refused(SEAL, |m| m.output.bytes = 263), Some(("output", Why::Short(264))));
        assert_eq!(refused(SEAL, |m| m.input_stride = 99), Some(("input_stride", Why::Stride)));
        assert_eq!(refused(SEAL, |m| m.output_stride = 0), Some(("output_stride", Why::Stride)));
        assert_eq!(refused(SEAL, |m| m.nonces.bytes = 35), Some(("nonces", Why::Few)));
        assert_eq!(refused(SEAL, |m| m.nonce_stride = 11), Some(("nonce_stride", Why::Stride)));
        assert_eq!(refused(SEAL, |m| m.tags.bytes = 47), Some(("tags", Why::Few)));
        assert_eq!(refused(OPEN, |m| m.results.bytes = 11), Some(("results", Why::Few)));
        assert_eq!(refused(OPEN, |m| m.results.at += 2), Some(("results", Why::Misaligned(4))));
        assert_eq!(refused(SEAL, |m| m.last_length = 101), Some(("last_length", Why::Length)));
        assert_eq!(refused(Kind::Aes128CbcDecrypt, |_| {}), Some(("length", Why::Length)));
        assert_eq!(
            refused(Kind::Aes128Ctr, |m| (m.nonces.bytes, m.aad_length) = (48, 1)),
            Some(("aad", Why::Unwanted))
        );
        assert_eq!(refused(SEAL, |m| m.input.at = u64::MAX - 8), Some(("input", Why::Large)));
        assert_eq!(refused(SEAL, |m| m.last_tag = 0x4000 + 15), Some(("last_tag", Why::Stride)));
    }

    #[test]
    fn in_place_is_allowed_and_every_other_overlap_is_not() {
        assert_eq!(refused(SEAL, |m| m.output = m.input), None);
        let shifted = |m: &mut Messages| m.output.at = m.input.at + 8;
        assert_eq!(refused(SEAL, shifted), Some(("output", Why::Overlaps("input"))));
        let strides = |m: &mut Messages| {
            m.output = m.input;
            m.output_stride = 100;
        };
        assert_eq!(refused(SEAL, strides), Some(("output", Why::Overlaps("input"))));
        assert_eq!(refused(SEAL, |m| m.nonces.at = m.output.at), Some(("output", Why::Overlaps("nonces"))));
        assert_eq!(refused(SEAL, |m| m.tags.at = m.input.at), Some(("tags", Why::Overlaps("input"))));
        assert_eq!(refused(OPEN, |m| m.tags.at = m.input.at), None);
        assert_eq!(refused(OPEN, |m| m.results.at = m.tags.at), Some(("results", Why::Overlaps("tags"))));
    }

    #[test]
    fn tags_may_lie_behind_their_messages() {
        let gaps = |m: &mut Messages| {
            (m.input_stride, m.output_stride, m.tag_stride) = (116, 116, 116);
            (m.input.bytes, m.output.bytes) = (300, 300);
            m.tags = Area { at: m.output.at + 100, bytes: 300 };
            m.last_tag = m.output.at + 232 + 40;
        };
        assert_eq!(refused(SEAL, gaps), None);
        let near = |m: &mut Messages| {
            gaps(m);
            m.last_tag -= 1;
        };
        assert_eq!(refused(SEAL, near), Some(("tags", Why::Overlaps("output"))));
        let front = |m: &mut Messages| {
            gaps(m);
            m.tags.at -= 1;
        };
        assert_eq!(refused(SEAL, front), Some(("tags", Why::Overlaps("output"))));
    }

    #[test]
    fn two_fields_are_apart_exactly_if_no_byte_is_in_both() {
        // Every small pair, against sets of bytes: what is called apart never shares one.
        for (stride, each, other_each, gap) in (1..9).flat_map(|s| {
            (1..=s).flat_map(move |e| (1..=s).flat_map(move |o| (0..12).map(move |g| (s, e, o, g))))
        }) {
            for last_each in 1..=each {
                let shape = |at: u64, each: u64, last: u64| {
                    field("x", Area { at, bytes: 1 << 20 }, (stride, each, last), (3, None), true)
                };
                let one = shape(100, each, last_each).unwrap_or_else(|_| unreachable!());
                let Ok(two) = shape(100 + gap, other_each, other_each) else { continue };
                let bytes = |field: &Field| -> std::collections::BTreeSet<u64> {
                    (0..3_u64)
                        .flat_map(|i| {
                            let each = if i == 2 { field.last_each } else { field.each };
                            let at = field.at + i * field.stride;
                            at..at + each
                        })
                        .collect()
                };
                let shares = !bytes(&one).is_disjoint(&bytes(&two));
                assert!(
                    !(one.is_apart_from(&two) && shares),
                    "{stride} {each} {other_each} {gap} {last_each}"
                );
                assert!(
                    !(two.is_apart_from(&one) && shares),
                    "{stride} {each} {other_each} {gap} {last_each}"
                );
                if gap >= each && gap + other_each <= stride {
                    assert!(one.is_apart_from(&two), "{stride} {each} {other_each} {gap}");
                }
            }
        }
    }
}
