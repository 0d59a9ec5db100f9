//! An open file's body: what all its openers share. And a thread's buffers.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use wattlock_core::sync::{read, write};
use zeroize::Zeroize;

use super::ledger::Ledger;
use super::slots::{FileKey, Writer};
use crate::store::{File, Place};

/// One file: kept by its openers, and by the journal as long as it has something of it that only memory knows.
pub(super) struct Body<F> {
    pub(super) place: Place,
    state: RwLock<State<F>>,
    /// Held by a sync: another one must not return before what it waits for is durable.
    pub(super) syncing: Mutex<()>,
}

/// What seals a file.
pub(super) struct Sealer {
    /// Tells files of one volume apart.
    pub(super) id: u64,
    pub(super) key: FileKey,
    pub(super) writer: Writer,
}

impl Sealer {
    pub(super) fn new(id: u64, key: FileKey) -> Sealer {
        Sealer { id, key, writer: Writer::default() }
    }
}

/// What changes of an open file.
pub(super) struct State<F> {
    pub(super) file: Arc<F>,
    pub(super) sealer: Sealer,
    /// By which id the journal knows the file: it has another one from the next epoch on, if it gets another key.
    pub(super) known_id: u64,
    /// The file's next id and key, while a request is carried out that changes them.
    pub(super) next: Option<Sealer>,
    /// No other file can have its key: this run made it.
    pub(super) own_key: bool,
    pub(super) ledger: Ledger,
}

impl<F> State<F> {
    /// What is to seal the file next does so from now on.
    pub(super) fn take_next(&mut self) {
        if let Some(next) = self.next.take() {
            (self.sealer, self.own_key) = (next, true);
        }
    }
}

impl<F: File> Body<F> {
    pub(super) fn new(place: Place, sealer: Sealer, file: F, ledger: Ledger) -> Arc<Body<F>> {
        let (known_id, file) = (sealer.id, Arc::new(file));
        let state = State { file, sealer, known_id, next: None, own_key: false, ledger };
        Arc::new(Body { place, state: RwLock::new(state), syncing: Mutex::default() })
    }

    pub(super) fn state(&self) -> RwLockReadGuard<'_, State<F>> {
        read(&self.state)
    }

    pub(super) fn state_mut(&self) -> RwLockWriteGuard<'_, State<F>> {
        write(&self.state)
    }

    /// Whether it has no name any longer.
    pub(super) fn is_removed(&self) -> bool {
        self.state().file.is_removed()
    }
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
