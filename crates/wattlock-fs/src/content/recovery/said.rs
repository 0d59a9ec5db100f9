//! What a journal says of files.

use std::collections::HashMap;

use crate::Error;
use crate::content::overlay::{Overlay, Piece};
use crate::format::{Geometry, HEADER_LEN, HOLE_LEN};
use crate::journal::{Op, Record};
use crate::store::Place;

/// What the journal says of one file.
pub(crate) struct Lost {
    pub(crate) id: u64,
    pub(crate) place: Place,
    pub(crate) committed: u64,
    pub(crate) overlay: Overlay,
    pub(crate) header: Option<u64>,
    /// Another file has its inode number.
    pub(crate) stranger: bool,
    /// Another inode that has its id is where it was.
    pub(crate) elsewhere: bool,
}

impl Lost {
    /// A file of which nothing is known: what opens of it is kept.
    pub(crate) fn unknown(id: u64, place: Place) -> Lost {
        Lost {
            id,
            place,
            committed: 0,
            overlay: Overlay::default(),
            header: None,
            stranger: false,
            elsewhere: false,
        }
    }
}

/// Files that a journal names, and ranges of ids that it reserved.
#[derive(Default)]
pub(crate) struct Said {
    pub(crate) files: Vec<Lost>,
    by_id: HashMap<(u64, (u64, u64)), usize>,
    by_number: HashMap<u32, usize>,
    pub(crate) ranges: Vec<u64>,
}

impl Said {
    pub(crate) fn file(&mut self, number: u32) -> Result<&mut Lost, Error> {
        let index = self.by_number.get(&number).copied();
        index
            .and_then(|index| self.files.get_mut(index))
            .ok_or_else(|| Error::Damaged("the journal names a file that it has not introduced".into()))
    }

    /// Repeats one record. Whoever has the key can write any number into one: places that no file has are refused here,
    /// so that nothing later has to count beyond them.
    pub(crate) fn hear(&mut self, record: Record, geometry: Geometry) -> Result<(), Error> {
        let end = record.blob_at + record.blob_len;
        let mut at = record.blob_at;
        for op in record.ops {
            match op {
                Op::Range(start) => self.ranges.push(start),
                Op::File { number, id, place, committed } => {
                    let committed = content_len(committed, geometry)?;
                    let index = *self.by_id.entry((id, place.inode)).or_insert(self.files.len());
                    self.by_number.insert(number, index);
                    match self.files.get_mut(index) {
                        Some(file) => (file.place, file.committed) = (place, committed),
                        None => self.files.push(Lost { committed, ..Lost::unknown(id, place) }),
                    }
                }
                Op::Put { number, first, count, last_len } => {
                    let until = slots_end(first, u64::from(count), geometry)?;
                    let file = self.file(number)?;
                    for index in first..until {
                        let len = if index + 1 == until { last_len } else { geometry.stride() as u32 };
                        file.overlay.insert(index, Piece { at, len, level: None });
                        at += u64::from(len);
                        if at > end {
                            break;
                        }
                    }
                }
                Op::Hole { number, first, level } => {
                    let slots = 1_u64.checked_shl(u32::from(level)).unwrap_or(u64::MAX);
                    slots_end(first, slots, geometry)?;
                    let piece = Piece { at, len: HOLE_LEN as u32, level: Some(level) };
                    self.file(number)?.overlay.insert(first, piece);
                    at += HOLE_LEN as u64;
                }
                Op::Commit { number, len } => {
                    self.file(number)?.committed = content_len(len, geometry)?;
                }
                Op::Cut { number, len } => {
                    let len = content_len(len, geometry)?;
                    let file = self.file(number)?;
                    file.overlay.cut(geometry.tail(len));
                    file.committed = file.committed.min(len);
                }
                Op::Header { number } => {
                    self.file(number)?.header = Some(at);
                    at += HEADER_LEN as u64;
                }
            }
            if at > end {
                return Err(Error::Damaged("a record of the journal is shorter than it says".into()));
            }
        }
        Ok(())
    }
}

pub(crate) fn nowhere() -> Error {
    Error::Damaged("the journal names a place that no file has".into())
}

/// A content's length, if a file may be so long.
pub(crate) fn content_len(len: u64, geometry: Geometry) -> Result<u64, Error> {
    if len <= geometry.max_len() { Ok(len) } else { Err(nowhere()) }
}

/// The slot behind `count` slots from `first` on, if a file may have them.
pub(crate) fn slots_end(first: u64, count: u64, geometry: Geometry) -> Result<u64, Error> {
    let end = first.checked_add(count).filter(|end| *end <= geometry.tail(geometry.max_len()) + 1);
    end.ok_or_else(nowhere)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_no_file_has_are_damage() {
        let geometry = Geometry::new(4096).unwrap();
        let (most, slots) = (geometry.max_len(), geometry.tail(geometry.max_len()) + 1);
        let file = |committed| {
            let place = Place { inode: (1, 1), path: Vec::new() };
            Op::File { number: 1, id: 5, place, committed }
        };
        let hear = |op: Op| {
            let mut said = Said::default();
            let record = |op, blob_len| Record { ops: vec![op], blob_at: 9000, blob_len };
            said.hear(record(file(0), 0), geometry).unwrap();
            said.hear(record(op, 1 << 27), geometry)
        };
        let put = |first, count| Op::Put { number: 1, first, count, last_len: 4136 };
        let hole = |first, level| Op::Hole { number: 1, first, level };
        let commit = |len| Op::Commit { number: 1, len };
        let cut = |len| Op::Cut { number: 1, len };
        for good in [file(most), put(slots - 9, 9), hole(0, 50), hole(slots - 1, 0), commit(most), cut(most)]
        {
            assert!(hear(good.clone()).is_ok(), "{good:?}");
        }
        let bad = [file(most + 1), commit(most + 1), cut(u64::MAX), put(slots - 9, 10), put(u64::MAX - 3, 7)];
        let bad_holes = [hole(slots, 0), hole(0, 51), hole(0, 64), hole(u64::MAX, 0), hole(1 << 63, 63)];
        for bad in bad.into_iter().chain(bad_holes) {
            let error = hear(bad.clone()).unwrap_err().to_string();
            assert!(error.contains("no file has"), "{bad:?}: {error}");
        }
    }
}
