//! Holding requests until there is a batch. One list for each kind, because a pass does one kind.
//!
//! Nothing here can hang and nothing is copied: between `submit` and `poll` a request lies in one of two lists, held or
//! done, and is not copied from one to the other: whole batches change lists. Work happens in `flush`, and in the `submit` that fills a batch.

use std::collections::VecDeque;
use std::mem;

use wattlock_core::{
    Completion, Cost, Error, Fault, Instance, Kind, KindSet, Nanos, OwnedRequest, Refused, Token, Window,
};

use super::{Item, WIDTH};

/// Who makes the passes of a queue. One value serves one queue.
pub(super) trait Kernels: Send + 'static {
    /// Kinds there is a pass for.
    fn kinds(&self) -> KindSet;

    /// Does 1 to [`WIDTH`] validated requests of one of those kinds, side by side or not, and writes every
    /// [`Item::result`].
    fn pass(&mut self, kind: Kind, items: &mut [Item<'_>]);
}

/// Opens a queue that holds requests for these kernels.
pub(super) fn open(kernels: impl Kernels) -> Box<dyn Instance> {
    Box::new(Queue::new(kernels))
}

/// What one instance takes in. Passes run inside the calls, so this only bounds what a caller lets lie unpolled.
pub(super) const WINDOW: Window = Window { requests: 256, bytes: 16 << 20 };

/// A thread's queue. A request is a [`Completion`] from the start, so that from `submit` to `poll` it is moved once.
struct Queue<K> {
    kernels: K,
    /// The kind of each row, and the row of each kind.
    kinds: Vec<Kind>,
    rows: [u8; Kind::COUNT],
    /// By row. What is held has its completion's `held_ns` count from 0: until its pass that is the time
    /// of submission.
    held: Vec<VecDeque<Completion>>,
    /// Requests in `held`.
    holding: u32,
    /// Batches whose pass has been made.
    done: VecDeque<VecDeque<Completion>>,
    /// Requests in `done`.
    finished: u32,
    /// Emptied batches, to be filled again: a pass that costs 40 us should not wait for the allocator.
    spare: Vec<VecDeque<Completion>>,
    bytes: u64,
    stopped: bool,
}

/// The row of kinds that there is no pass for.
const NONE: u8 = u8::MAX;

impl<K: Kernels> Queue<K> {
    fn new(kernels: K) -> Queue<K> {
        let kinds: Vec<Kind> = kernels.kinds().iter().collect();
        let mut rows = [NONE; Kind::COUNT];
        kinds.iter().zip(0..).for_each(|(kind, row)| rows[kind.index()] = row);
        Queue {
            kernels,
            rows,
            held: kinds.iter().map(|_| VecDeque::with_capacity(WIDTH)).collect(),
            kinds,
            holding: 0,
            done: VecDeque::new(),
            finished: 0,
            spare: Vec::new(),
            bytes: 0,
            stopped: false,
        }
    }

    /// Why a request cannot be taken in while so many requests and bytes are here.
    #[inline]
    fn refusal(&self, request: &OwnedRequest, in_flight: u32, bytes: u64) -> Option<Error> {
        match self.rows[request.kind.index()] {
            _ if self.stopped => Some(Error::Device(Fault::Lost)),
            NONE => Some(Error::Unsupported),
            _ if in_flight >= WINDOW.requests => Some(Error::Full),
            _ if bytes + request.input.len() as u64 > WINDOW.bytes => Some(Error::Full),
            _ => None,
        }
    }

    /// Takes a request in, and does the batch that it fills. Inlined, or the request would be moved once more.
    #[inline(always)]
    fn hold(&mut self, token: Token, request: OwnedRequest, now: Nanos) {
        let row = usize::from(self.rows[request.kind.index()]);
        self.bytes += request.input.len() as u64;
        self.holding += 1;
        let cost = Cost { held_ns: now, ..Cost::default() };
        self.held[row].push_back(Completion { token, request, result: Err(Error::Unsupported), cost });
        if self.held[row].len() == WIDTH {
            self.pass(row, now);
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
        self.kernels.pass(self.kinds[row], &mut items);
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
        let fresh = self.spare.pop().unwrap_or_else(|| VecDeque::with_capacity(WIDTH));
        let batch = mem::replace(&mut self.held[row], fresh);
        self.holding -= batch.len() as u32;
        self.finished += batch.len() as u32;
        self.done.push_back(batch);
    }
}

impl<K: Kernels> Instance for Queue<K> {
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
        if let Some(error) = self.refusal(&request, self.in_flight(), self.bytes) {
            return Err(Refused { error, request });
        }
        self.hold(token, request, now);
        Ok(())
    }

    fn submit_all(
        &mut self,
        tokens: &[Token],
        requests: &mut Vec<OwnedRequest>,
        now: Nanos,
    ) -> Result<(), Error> {
        let (mut count, mut bytes, mut outcome) = (0, self.bytes, Ok(()));
        for request in requests.iter().take(tokens.len()) {
            if let Some(error) = self.refusal(request, self.in_flight() + count as u32, bytes) {
                outcome = Err(error);
                break;
            }
            bytes += request.input.len() as u64;
            count += 1;
        }
        tokens.iter().zip(requests.drain(..count)).for_each(|(token, one)| self.hold(*token, one, now));
        outcome
    }

    fn flush(&mut self, now: Nanos) {
        if self.holding > 0 {
            (0..self.kinds.len()).for_each(|row| self.pass(row, now));
        }
    }

    fn poll(&mut self, now: Nanos, done: &mut dyn FnMut(Completion)) -> usize {
        let mut all = VecDeque::new();
        let count = self.poll_all(now, &mut all);
        all.into_iter().for_each(done);
        count
    }

    fn poll_all(&mut self, _now: Nanos, done: &mut VecDeque<Completion>) -> usize {
        let count = self.finished;
        while let Some(mut batch) = self.done.pop_front() {
            self.bytes -= batch.iter().map(|one| one.request.input.len() as u64).sum::<u64>();
            if done.is_empty() {
                mem::swap(done, &mut batch);
            } else {
                done.append(&mut batch);
            }
            if self.spare.len() < self.kinds.len() {
                self.spare.push(batch);
            }
        }
        self.finished = 0;
        count as usize
    }

    fn withdraw(&mut self, token: Token, _now: Nanos) -> Option<OwnedRequest> {
        let take = |batch: &mut VecDeque<Completion>| {
            let at = batch.iter().position(|one| one.token == token)?;
            batch.remove(at).map(|one| one.request)
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
        for row in 0..self.kinds.len() {
            for held in &mut self.held[row] {
                let held_ns = now.saturating_sub(held.cost.held_ns);
                held.result = Err(Error::Device(Fault::Lost));
                held.cost = Cost { held_ns, batch: 1, ..Cost::default() };
            }
            self.finish(row);
        }
    }
}
