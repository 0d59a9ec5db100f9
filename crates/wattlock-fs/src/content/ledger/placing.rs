//! How the journal comes into place, for a checkpoint and for a recovery, and what of a file is whole.

use crate::Error;
use crate::content::BATCH;
use crate::content::overlay::Overlay;
use crate::format::{Geometry, HEADER_LEN, HOLE_LEN, OVERHEAD};

/// One thing to do to bring the journal into place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placing {
    /// Make a hole in the backing file.
    Punch { at: u64, len: u64 },
    /// Copy bytes from the journal's file to the backing file.
    Copy { from: u64, to: u64, bytes: usize },
    /// Write an empty last slot.
    End { slot: u64 },
    /// Cut the backing file, if it is longer.
    Cut { stored: u64 },
    /// Give the backing file this length, if it has another.
    Fit { stored: u64 },
}

/// How slots of the journal, and a header, come into a file of which `len` bytes of content are kept.
pub(crate) fn placing(geometry: Geometry, overlay: &Overlay, header: Option<u64>, len: u64) -> Vec<Placing> {
    let mut steps = Vec::new();
    let mut entries = overlay.iter().peekable();
    while let Some((index, piece)) = entries.next() {
        let to = geometry.slot_at(index);
        if let Some(level) = piece.level {
            // Not under the record itself, which has room.
            let (record, len) = (HOLE_LEN as u64, (1_u64 << level).saturating_mul(geometry.stride()));
            steps.push(Placing::Punch { at: to + record, len: len - record });
        }
        let (mut bytes, mut next) = (u64::from(piece.len), index + 1);
        // Slots that are neighbours in both places go together.
        while piece.level.is_none() && bytes < BATCH && bytes == (next - index) * geometry.stride() {
            match entries.peek() {
                Some((there, more))
                    if *there == next && more.level.is_none() && more.at == piece.at + bytes =>
                {
                    bytes += u64::from(more.len);
                    next += 1;
                    entries.next();
                }
                _ => break,
            }
        }
        steps.push(Placing::Copy { from: piece.at, to, bytes: bytes as usize });
    }
    steps.extend(header.map(|from| Placing::Copy { from, to: 0, bytes: HEADER_LEN }));
    steps.push(Placing::Fit { stored: geometry.stored_len(len) });
    steps
}

/// How a file is mended that has `stored` bytes, of whose content `len` bytes are kept: with `open_end` its last slot is
/// to be written. Nothing if it is whole.
pub(crate) fn recovering(
    geometry: Geometry,
    overlay: &Overlay,
    header: Option<u64>,
    stored: u64,
    (len, open_end): (u64, bool),
) -> Vec<Placing> {
    let slot = geometry.tail(len);
    let mut steps = Vec::new();
    if open_end {
        // What is not kept goes first: on a full disk this finds the room.
        steps.push(Placing::Cut { stored: geometry.slot_at(slot) });
        steps.push(Placing::End { slot });
    }
    if !overlay.is_empty() || open_end || header.is_some() || stored != geometry.stored_len(len) {
        steps.extend(placing(geometry, overlay, header, len));
    }
    steps
}

/// What a recovery finds in a slot in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// Data that opens, with all the bytes that were looked at.
    Opens,
    /// A hole record of this level.
    Hole(u8),
    /// Neither.
    Broken,
}

/// How many bytes of a file are whole, from the committed ones on; and whether a last slot must be written behind them.
/// `look` opens a slot in place of so many bytes.
pub(crate) fn whole(
    geometry: Geometry,
    (committed, overlay): (u64, &Overlay),
    stored: u64,
    look: &mut dyn FnMut(u64, usize) -> Result<Look, Error>,
) -> Result<(u64, bool), Error> {
    let chunk = geometry.chunk();
    let mut index = if committed == 0 { 0 } else { geometry.tail(committed) };
    if committed > 0 && overlay.covering(index).is_none() {
        // The committed end was not replaced: nothing behind it was begun, or what was begun had no more than that.
        return Ok((committed, false));
    }
    loop {
        if let Some((start, piece)) = overlay.covering(index) {
            let text = u64::from(piece.len).saturating_sub(OVERHEAD as u64);
            match piece.level {
                Some(level) => index = start + (1 << level),
                None if text < chunk => return Ok((index * chunk + text, false)),
                None => index += 1,
            }
            continue;
        }
        let room = stored.saturating_sub(geometry.slot_at(index)).min(geometry.stride()) as usize;
        if room < OVERHEAD {
            return Ok((index * chunk, true));
        }
        let full = room as u64 == geometry.stride();
        match look(index, room)? {
            Look::Hole(level) if full => index += 1 << level,
            Look::Opens if full => index += 1,
            Look::Opens => return Ok((index * chunk + (room - OVERHEAD) as u64, false)),
            Look::Hole(_) | Look::Broken => return Ok((index * chunk, true)),
        }
    }
}
