//! What changes of an open file, and a thread's buffers.

use std::cell::RefCell;
use std::sync::Arc;

use zeroize::Zeroize;

use super::overlay::Overlay;
use super::slots::Writer;
use crate::journal::Ops;

/// What changes of an open file.
pub(super) struct State<F> {
    pub(super) file: Arc<F>,
    pub(super) id: u64,
    /// Length of the content.
    pub(super) len: u64,
    /// Length of the backing file.
    pub(super) physical: u64,
    pub(super) writer: Writer,
    /// Slots below this are committed, or about to be: they are replaced through the journal.
    pub(super) floor: u64,
    /// So many bytes are durable, as the journal says or will say.
    pub(super) committed: u64,
    /// The journal's record that says so must be durable before anything is written in place.
    pub(super) known: u64,
    /// The file's number in the journal.
    pub(super) number: Option<u32>,
    /// Its id says that it is new in this epoch.
    pub(super) reserved: bool,
    pub(super) overlay: Overlay,
    /// Where in the journal a new header is.
    pub(super) header: Option<u64>,
    /// The journal's latest record about this file.
    pub(super) touched: u64,
    /// Something was written in place since the last sync.
    pub(super) wrote: bool,
    /// A sync failed: what was written in place may be in memory only, and no later sync would write it or say so.
    pub(super) doubt: bool,
    /// The first and the last of chunks that are lost: a sync failed, and memory has them no longer.
    pub(super) lost: Option<(u64, u64)>,
    /// Bytes of growth in the journal since the last sync.
    pub(super) grown: u64,
    /// How often the content was cut: a sync that began before commits nothing.
    pub(super) cuts: u64,
    pub(super) cut: Cut,
    /// The header has the flag: there may be hole records.
    pub(super) sparse: bool,
}

impl<F> State<F> {
    pub(super) fn new(file: F, id: u64) -> State<F> {
        State {
            file: Arc::new(file),
            id,
            len: 0,
            physical: 0,
            writer: Writer::default(),
            floor: 0,
            committed: 0,
            known: 0,
            number: None,
            reserved: false,
            overlay: Overlay::default(),
            header: None,
            touched: 0,
            wrote: false,
            doubt: false,
            lost: None,
            grown: 0,
            cuts: 0,
            cut: Cut::Durable,
            sparse: false,
        }
    }
}

/// What became of slots that were cut away and are committed, in the backing file. They open, so that recovery would take
/// them for the file's growth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// They are gone.
    Durable,
    /// The disk may have them still.
    Fresh,
    /// It may, and a sync has acknowledged something else in their place, or that they are gone: they go before anything is
    /// written in place.
    Outdated,
}

/// Buffers of a thread, reused from call to call.
#[derive(Default)]
pub(super) struct Scratch {
    /// Slots, as they are stored.
    pub(super) slots: Vec<u8>,
    /// A record for the journal.
    pub(super) record: Vec<u8>,
    /// Stored bytes that are overwritten in place, until that has succeeded.
    pub(super) old: Vec<u8>,
    /// Plaintext of chunks that a call has only a part of; wiped after each use.
    pub(super) head: Vec<u8>,
    pub(super) tail: Vec<u8>,
}

impl Scratch {
    pub(super) fn wipe(&mut self) {
        self.head.as_mut_slice().zeroize();
        self.head.clear();
        self.tail.as_mut_slice().zeroize();
        self.tail.clear();
    }

    /// Room for so many bytes of slots.
    pub(super) fn room(&mut self, bytes: usize) {
        if self.slots.len() < bytes {
            self.slots.resize(bytes, 0);
        }
    }
}

thread_local! {
    pub(super) static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Does something with the thread's buffers and wipes plaintext from them.
pub(super) fn with_scratch<T>(work: impl FnOnce(&mut Scratch) -> T) -> T {
    SCRATCH.with_borrow_mut(|scratch| {
        let result = work(scratch);
        scratch.wipe();
        result
    })
}

/// What a sync found when it began.
pub(super) struct Mark {
    pub(super) len: u64,
    pub(super) touched: u64,
    pub(super) cuts: u64,
}

/// A record that is being put together for the journal.
pub(super) struct Draft {
    pub(super) ops: Ops,
    pub(super) number: u32,
}
