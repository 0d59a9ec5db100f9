//! Holding requests until there is a batch. One list for each kind, because a pass does one kind.
//!
//! Nothing here can hang and nothing is copied: between `submit` and `poll` a request lies in one of two lists, held or
//! done. Work happens in `flush`, and in the `submit` that fills a batch.

use std::collections::VecDeque;
use std::mem;

use wattlock_core::{Completion, Cost, Error, Fault, Instance, Nanos, OwnedRequest, Refused, Token, Window};

use super::{Item, KERNELS, Lanes, WIDTH};

/// What one instance takes in. Passes run inside the calls, so this only bounds what a caller lets lie unpolled.
pub(super) const WINDOW: Window = Window { requests: 256, bytes: 16 << 20 };

struct Held {
    token: Token,
    request: OwnedRequest,
    since: Nanos,
}

/// A thread's queue.
pub(super) struct Queue {
    lanes: Lanes,
    /// By row of [`KERNELS`].
    held: Vec<Vec<Held>>,
    done: VecDeque<Completion>,
    bytes: u64,
    stopped: bool,
}

impl Queue {
    pub(super) fn new(lanes: Lanes) -> Queue {
        let held = KERNELS.iter().map(|_| Vec::with_capacity(WIDTH)).collect();
        Queue { lanes, held, done: VecDeque::new(), bytes: 0, stopped: false }
    }

    fn pass(&mut self, row: usize, now: Nanos) {
        let mut batch = mem::replace(&mut self.held[row], Vec::with_capacity(WIDTH));
        if batch.is_empty() {
            return;
        }
        let mut items: Vec<Item<'_>> = batch
            .iter_mut()
            .map(|held| Item { request: held.request.view(), result: Err(Error::Unsupported) })
            .collect();
        KERNELS[row].1(self.lanes.isa, &mut items);
        let results: Vec<_> = items.into_iter().map(|item| item.result).collect();
        let count = batch.len() as u16;
        for (held, result) in batch.into_iter().zip(results) {
            let held_ns = now.saturating_sub(held.since);
            let cost = Cost { latency_ns: 0, held_ns, batch: count, energy_nj: None };
            self.done.push_back(Completion { token: held.token, request: held.request, result, cost });
        }
    }
}

impl Instance for Queue {
    fn window(&self) -> Window {
        WINDOW
    }

    fn in_flight(&self) -> u32 {
        self.held() + self.done.len() as u32
    }

    fn held(&self) -> u32 {
        self.held.iter().map(Vec::len).sum::<usize>() as u32
    }

    fn submit(&mut self, token: Token, request: OwnedRequest, now: Nanos) -> Result<(), Refused> {
        let row = KERNELS.iter().position(|row| row.0 == request.kind);
        let bytes = request.input.len() as u64;
        let error = match row {
            _ if self.stopped => Error::Device(Fault::Lost),
            None => Error::Unsupported,
            _ if self.in_flight() >= WINDOW.requests || self.bytes + bytes > WINDOW.bytes => Error::Full,
            Some(row) => {
                self.bytes += bytes;
                self.held[row].push(Held { token, request, since: now });
                if self.held[row].len() == WIDTH {
                    self.pass(row, now);
                }
                return Ok(());
            }
        };
        Err(Refused { error, request })
    }

    fn flush(&mut self, now: Nanos) {
        (0..KERNELS.len()).for_each(|row| self.pass(row, now));
    }

    fn poll(&mut self, _now: Nanos, done: &mut dyn FnMut(Completion)) -> usize {
        let count = self.done.len();
        for completion in self.done.drain(..) {
            self.bytes -= completion.request.input.len() as u64;
            done(completion);
        }
        count
    }

    fn withdraw(&mut self, token: Token, _now: Nanos) -> Option<OwnedRequest> {
        for held in &mut self.held {
            if let Some(at) = held.iter().position(|held| held.token == token) {
                let request = held.remove(at).request;
                self.bytes -= request.input.len() as u64;
                return Some(request);
            }
        }
        // Done but not polled: the answer is dropped and the request goes back; its input was never touched.
        let at = self.done.iter().position(|completion| completion.token == token)?;
        let request = self.done.remove(at)?.request;
        self.bytes -= request.input.len() as u64;
        Some(request)
    }

    fn stop(&mut self, now: Nanos) {
        self.stopped = true;
        for held in self.held.iter_mut().flat_map(mem::take) {
            let held_ns = now.saturating_sub(held.since);
            let cost = Cost { latency_ns: 0, held_ns, batch: 1, energy_nj: None };
            let result = Err(Error::Device(Fault::Lost));
            self.done.push_back(Completion { token: held.token, request: held.request, result, cost });
        }
    }
}
