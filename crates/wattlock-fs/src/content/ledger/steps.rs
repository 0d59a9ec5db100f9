//! What may be asked of a ledger, and the steps by which it is done.

use crate::journal::Op;

/// What is to be done with a file.
#[derive(Debug, Clone)]
pub(crate) enum Request {
    /// Slots `first` to `until`, sealed one after the other, take the place of what is there; then the content has `len`
    /// bytes. `left` is what is left of runs of holes that they cut in two.
    Write { first: u64, until: u64, len: u64, left: Vec<(u64, u8)> },
    /// A hole is put behind the end, up to `len` bytes. The old last chunk, if it has bytes, is sealed as a full one
    /// (`fill`) in front of the new last one.
    Extend { len: u64, fill: bool },
    /// The content ends after `len` bytes. Its new last slot is sealed; `run` is where a run of holes begins that covers it.
    /// With `turn`, which only no bytes may have, the slot is sealed with the file's next key.
    Cut { len: u64, run: Option<u64>, turn: bool },
    /// The file gets its next key, with which all of its slots and holes were sealed anew; and perhaps its next id
    /// (`renamed`), which only the journal can give it: until the next epoch it goes by the old one.
    Turn { puts: Vec<Put>, holes: Vec<(u64, u8)>, sparse: bool, renamed: bool },
    /// The file gets its next id, and keeps its key.
    Rename,
    /// Slots `first` to before `behind` become a hole.
    Punch { first: u64, behind: u64 },
    /// What was written so far is to be durable.
    Sync,
    /// The steps of the latest [`Request::Sync`] are done.
    Commit,
}

/// One thing to do.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Append a record about this file to the journal.
    Log(Draft),
    /// Make the journal durable.
    SyncJournal(Until),
    /// Write sealed slots in place.
    Write(InPlace),
    /// Write a header for the file's next key in place, and the empty slot that was sealed: nothing is committed.
    Begin,
    /// Give the backing file this length.
    Resize(Resize),
    /// Take room in the backing file, for what the journal has.
    Room(Room),
    /// Make the backing file durable.
    SyncFile,
}

/// Room that bringing the journal into place will need. What is taken when a record is accepted is not missing when the disk
/// is full.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) at: u64,
    pub(crate) len: u64,
    /// Without it the request fails.
    pub(crate) needed: bool,
}

/// Up to where the journal is to be durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// The record that says where the committed end is.
    Known,
    /// The latest record about the file when the step is done.
    Touched,
    /// This record.
    Record(u64),
}

/// Permission to write slots in place: none of them is committed or replaced, and what must be durable before they are
/// overwritten is so when the steps in front are done.
#[derive(Debug, Clone)]
pub(crate) struct InPlace {
    pub(super) first: u64,
    pub(super) from: usize,
    pub(super) bytes: usize,
    /// The content's length afterwards.
    pub(super) len: Option<u64>,
}

impl InPlace {
    /// The first slot.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// The part of the sealed slots that goes there.
    pub(crate) fn range(&self) -> std::ops::Range<usize> {
        self.from..self.from + self.bytes
    }
}

/// A new length of the backing file.
#[derive(Debug, Clone)]
pub(crate) struct Resize {
    pub(crate) stored: u64,
    pub(super) why: Why,
}

impl Resize {
    /// Whether it is taken back if a later step fails.
    pub(crate) fn is_trial(&self) -> bool {
        self.why == Why::Grows
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// Room for a hole.
    Grows,
    /// Slots that are not committed go, and the content ends after so many bytes.
    Cut(u64),
    /// The journal says that they are gone.
    Gone,
}

/// A record of the journal about one file. Its blob is the header, the slots and the hole records, in this order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Draft {
    /// The content is cut to so many bytes.
    pub(crate) cut: Option<u64>,
    /// A new header.
    pub(crate) header: Option<NewHeader>,
    /// Sealed slots.
    pub(crate) puts: [Option<Put>; 2],
    /// And those of a file that gets another key.
    pub(crate) turned: Vec<Put>,
    /// Hole records.
    pub(crate) holes: Vec<(u64, u8)>,
    /// So many bytes are durable.
    pub(crate) commit: Option<u64>,
    /// The content's length afterwards.
    pub(super) len: Option<u64>,
}

impl Draft {
    /// Slots, by where they are among those that were sealed.
    pub(crate) fn puts(&self) -> impl Iterator<Item = &Put> {
        self.puts.iter().flatten().chain(&self.turned)
    }

    /// What the record says of the file that has this number.
    pub(crate) fn ops(&self, number: u32) -> impl Iterator<Item = Op> {
        let cut = self.cut.map(|len| Op::Cut { number, len });
        let header = self.header.map(|_| Op::Header { number });
        let puts = self.puts().map(move |put| {
            let Put { first, count, last_len, .. } = *put;
            Op::Put { number, first, count, last_len }
        });
        let holes = self.holes.iter().map(move |(first, level)| {
            let (first, level) = (*first, *level);
            Op::Hole { number, first, level }
        });
        let commit = self.commit.map(|len| Op::Commit { number, len });
        cut.into_iter().chain(header).chain(puts).chain(holes).chain(commit)
    }
}

/// A header of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NewHeader {
    /// It allows hole records.
    pub(crate) sparse: bool,
    /// It has the file's next key. What the record has is sealed with that.
    pub(crate) turn: bool,
}

/// It allows hole records, and the key stays.
pub(super) const SPARSE: NewHeader = NewHeader { sparse: true, turn: false };

/// Consecutive slots of a record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Put {
    pub(crate) first: u64,
    pub(crate) count: u32,
    /// Bytes of the last; all others are full.
    pub(crate) last_len: u32,
    /// Where they begin among the sealed slots, and how many bytes they are.
    pub(crate) from: usize,
    pub(crate) bytes: usize,
}

/// Where a record is that was appended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Logged {
    /// The file's number in the journal.
    pub(crate) file: u32,
    /// The record's number.
    pub(crate) record: u64,
    /// Where its blob begins in the journal's file.
    pub(crate) blob: u64,
}
