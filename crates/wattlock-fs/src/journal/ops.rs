//! Operations of records, as bytes.

use crate::format::be64;
use crate::store::Place;

/// One operation of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Op {
    /// File ids from here on may be given to new files.
    Range(u64),
    /// From now on `number` is this file, of which `committed` bytes are durable in place.
    File { number: u32, id: u64, place: Place, committed: u64 },
    /// The blob goes on with data slots `first` and so on; all are full but perhaps the last.
    Put { number: u32, first: u64, count: u32, last_len: u32 },
    /// The blob goes on with a hole record for a run of two to the `level` slots.
    Hole { number: u32, first: u64, level: u8 },
    /// So many bytes are durable: in place, or in this journal before.
    Commit { number: u32, len: u64 },
    /// The content was cut to so many bytes.
    Cut { number: u32, len: u64 },
    /// The blob goes on with a new header.
    Header { number: u32 },
}

/// Operations of one record, being written.
#[derive(Default)]
pub(crate) struct Ops(pub(super) Vec<u8>);

impl Ops {
    pub(crate) fn push(&mut self, op: &Op) {
        let to = &mut self.0;
        match op {
            Op::Range(start) => {
                to.push(1);
                to.extend(start.to_be_bytes());
            }
            Op::File { number, id, place, committed } => {
                to.push(2);
                to.extend(number.to_be_bytes());
                for value in [*id, place.inode.0, place.inode.1, *committed] {
                    to.extend(value.to_be_bytes());
                }
                // A path is a hint: one that is too long is left out, and the file is found by its inode.
                let path = if place.path.len() <= 65535 { &place.path[..] } else { &[] };
                to.extend((path.len() as u16).to_be_bytes());
                to.extend(path);
            }
            Op::Put { number, first, count, last_len } => {
                to.push(3);
                to.extend(number.to_be_bytes());
                to.extend(first.to_be_bytes());
                to.extend(count.to_be_bytes());
                to.extend(last_len.to_be_bytes());
            }
            Op::Hole { number, first, level } => {
                to.push(4);
                to.extend(number.to_be_bytes());
                to.extend(first.to_be_bytes());
                to.push(*level);
            }
            Op::Commit { number, len } => {
                to.push(5);
                to.extend(number.to_be_bytes());
                to.extend(len.to_be_bytes());
            }
            Op::Cut { number, len } => {
                to.push(6);
                to.extend(number.to_be_bytes());
                to.extend(len.to_be_bytes());
            }
            Op::Header { number } => {
                to.push(7);
                to.extend(number.to_be_bytes());
            }
        }
    }
}

/// Reads operations; `None` for what is none.
pub(super) fn parse_ops(mut from: &[u8]) -> Option<Vec<Op>> {
    fn take<'a>(from: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = from.split_at_checked(len)?;
        *from = rest;
        Some(taken)
    }
    fn long(from: &mut &[u8]) -> Option<u64> {
        take(from, 8).map(be64)
    }
    fn word(from: &mut &[u8]) -> Option<u32> {
        take(from, 4).map(|bytes| be64(bytes) as u32)
    }
    let from = &mut from;
    let mut ops = Vec::new();
    while !from.is_empty() {
        let tag = take(from, 1)?[0];
        if tag == 1 {
            ops.push(Op::Range(long(from)?));
            continue;
        }
        let number = word(from)?;
        ops.push(match tag {
            2 => {
                let (id, device, inode, committed) = (long(from)?, long(from)?, long(from)?, long(from)?);
                let len = be64(take(from, 2)?) as usize;
                let path = take(from, len)?.to_vec();
                Op::File { number, id, place: Place { inode: (device, inode), path }, committed }
            }
            3 => Op::Put { number, first: long(from)?, count: word(from)?, last_len: word(from)? },
            4 => Op::Hole { number, first: long(from)?, level: take(from, 1)?[0] },
            5 => Op::Commit { number, len: long(from)? },
            6 => Op::Cut { number, len: long(from)? },
            7 => Op::Header { number },
            _ => return None,
        });
    }
    Some(ops)
}
