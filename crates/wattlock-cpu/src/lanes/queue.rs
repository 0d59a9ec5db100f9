//! Holding requests until there is a batch. One list for each kind, because a pass does one kind.
//!
//! Nothing here can hang and nothing is copied: between `submit` and `poll` a request lies in one of two lists, held or
//! done, and is not copied from one to the other: whole batches change lists. Work happens in `flush`, and in the `submit` that fills a batch.

use std::collections::VecDeque;
use std::mem;

use wattlock_core::{
    Completion, Cost, Error, Fault, Instance, Kind, Nanos, OwnedRequest, Refused, Token, Window,
};

use super::{Item, KERNELS, Lanes, WIDTH};

/// What one instance takes in. Passes run inside the calls, so this only bounds what a caller lets lie unpolled.
pub(super) const WINDOW: Window = Window { requests: 256, bytes: 16 << 20 };

/// A thread's queue. A request is a [`Completion`] from the start, so that from `submit` to `poll` it is moved once.
pub(super) struct Queue {
    lanes: Lanes,
    /// By row of [`KERNELS`]. What is held has its completion's `held_ns` count from 0: until its pass that is the time
    /// of submission.
    held: Vec<Vec<Completion>>,
    /// Requests in `held`.
    holding: u32,
    /// Batches whose pass has been made.
    done: VecDeque<Vec<Completion>>,
    /// Requests in `done`.
    finished: u32,
    /// Emptied batches, to be filled again: a pass that costs 40 us should not wait for the allocator.
    spare: Vec<Vec<Completion>>,
    bytes: u64,
    stopped: bool,
}

impl Queue {
    pub(super) fn new(lanes: Lanes) -> Queue {
        let held = KERNELS.iter().map(|_| Vec::with_capacity(WIDTH)).collect();
        Queue {
            lanes,
            held,
            holding: 0,
            done: VecDeque::new(),
            finished: 0,
            spare: Vec::new(),
            bytes: 0,
            stopped: false,
        }
    }

    fn pass(&mut self, row: usize, now: Nanos) {
        if self.held[row].is_empty() {
            return;
        }
        let mut results = [Err(Error::Unsupported); WIDTH];
        let mut items: Vec<Item<'_>> = self.held[row]
            .iter_mut()
            .map(|held| Item { request: held.request.view(), result: Err(Error::Unsupported) })
            .collect();
        KERNELS[row].1(self.lanes.isa, &mut items);
        items.iter().zip(&mut results).for_each(|(item, result)| *result = item.result);
        drop(items);
        let count = self.held[row].len() as u16;
        for (held, result) in self.held[row].iter_mut().zip(results) {
            held.result = result;
            held.cost.batch = count;
            held.cost.held_ns = now.saturating_sub(held.cost.held_ns);
        }
        self.finish(row);
    }

    /// A row's requests wait for `poll` from now on.
    fn finish(&mut self, row: usize) {
        let fresh = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(WIDTH));
        let batch = mem::replace(&mut self.held[row], fresh);
        self.holding -= batch.len() as u32;
        self.finished += batch.len() as u32;
        self.done.push_back(batch);
    }
}

/// The row of [`KERNELS`] that does a kind.
#[inline]
fn row_of(kind: Kind) -> Option<usize> {
    const NONE: u8 = u8::MAX;
    const ROWS: [u8; Kind::COUNT] = {
        let mut rows = [NONE; Kind::COUNT];
        let mut row = 0;
        while row < KERNELS.len() {
            rows[KERNELS[row].0 as usize] = row as u8;
            row += 1;
        }
        rows
    };
    let row = ROWS[kind.index()];
    (row != NONE).then_some(usize::from(row))
}

impl Instance for Queue {
    fn window(&self) -> Window {
        WINDOW
    }

    fn in_flight(&self) -> u32 {
        self.holding + self.finished
    }

    fn held(&self) -> u32 {
        self.holding
    }

    fn submit(&mut self, token: Token, request: OwnedRequest, now: Nanos) -> Result<(), Refused> {
        let bytes = request.input.len() as u64;
        let error = match row_of(request.kind) {
            _ if self.stopped => Error::Device(Fault::Lost),
            None => Error::Unsupported,
            _ if self.in_flight() >= WINDOW.requests || self.bytes + bytes > WINDOW.bytes => Error::Full,
            Some(row) => {
                self.bytes += bytes;
                self.holding += 1;
                let cost = Cost { held_ns: now, ..Cost::default() };
                self.held[row].push(Completion { token, request, result: Err(Error::Unsupported), cost });
                if self.held[row].len() == WIDTH {
                    self.pass(row, now);
                }
                return Ok(());
            }
        };
        Err(Refused { error, request })
    }

    fn flush(&mut self, now: Nanos) {
        if self.holding > 0 {
            (0..KERNELS.len()).for_each(|row| self.pass(row, now));
        }
    }

    fn poll(&mut self, _now: Nanos, done: &mut dyn FnMut(Completion)) -> usize {
        let count = self.finished;
        while let Some(mut batch) = self.done.pop_front() {
            for completion in batch.drain(..) {
                self.bytes -= completion.request.input.len() as u64;
                self.finished -= 1;
                done(completion);
            }
            if self.spare.len() < KERNELS.len() {
                self.spare.push(batch);
            }
        }
        count as usize
    }

    fn withdraw(&mut self, token: Token, _now: Nanos) -> Option<OwnedRequest> {
        let take = |batch: &mut Vec<Completion>| {
            let at = batch.iter().position(|one| one.token == token)?;
            Some(batch.remove(at).request)
        };
        let request = match self.held.iter_mut().find_map(take) {
            Some(request) => {
                self.holding -= 1;
                request
            }
            // Done but not polled: the answer is dropped and the request goes back; its input was never touched.
            None => {
                let request = self.done.iter_mut().find_map(take)?;
                self.finished -= 1;
                request
            }
        };
        self.bytes -= request.input.len() as u64;
        Some(request)
    }

    fn stop(&mut self, now: Nanos) {
        self.stopped = true;
        for row in 0..KERNELS.len() {
            for held in &mut self.held[row] {
                let held_ns = now.saturating_sub(held.cost.held_ns);
                held.result = Err(Error::Device(Fault::Lost));
                held.cost = Cost { held_ns, batch: 1, ..Cost::default() };
            }
            self.finish(row);
        }
    }
}
