//! What comes back from the instances, and what does not come back in time.

use std::mem;
use std::sync::Arc;

use wattlock_core::{Completion, Cost, Error, Fault, Key, Nanos, OwnedRequest, Token};
use wattlock_policy::EngineId;

use super::Dispatcher;
use crate::device::Handle;
use crate::health::Reason;
use crate::inflight::Entry;
use crate::telemetry::Counter;

impl Dispatcher {
    /// Hands every finished request to `done` and returns how many there were. Also rings for what is
    /// held, and gives up on what took too long. Never blocks.
    pub fn poll(&mut self, done: &mut dyn FnMut(Completion)) -> usize {
        self.keep_up();
        if self.in_flight.len() > 0 || self.stations.iter().any(|station| station.instance.is_some()) {
            let now = self.look();
            self.ring_all();
            self.collect(now);
            self.expire(now);
            if mem::take(&mut self.stopped_one) {
                self.write_off(now);
            }
        }
        let count = self.ready.len();
        while let Some(completion) = self.ready.pop_front() {
            done(completion);
        }
        count
    }

    /// Takes what the instances have finished. What another thread is taking in just now comes the next time.
    pub(super) fn collect(&mut self, now: Nanos) {
        self.gather_in(now, Handle::poll);
    }

    /// The thread has slept, and could not have seen earlier what it finds now.
    pub(super) fn awake(&mut self) {
        self.looked_at = self.look();
        self.policy.looked(0);
    }

    fn gather_in(&mut self, now: Nanos, poll: fn(&mut Handle, Nanos, &mut dyn FnMut(Completion))) {
        // Looks at one time are one look.
        if now > self.looked_at {
            self.policy.looked(now - self.looked_at);
            self.looked_at = now;
        }
        for index in 0..self.stations.len() {
            let id = EngineId(index as u8);
            let Some(instance) = self.stations[index].instance.as_mut() else { continue };
            let mut arrived = mem::take(&mut self.arrived);
            poll(instance, now, &mut |completion| arrived.push(completion));
            // Answers to what was withdrawn free the window, too, and come without a completion.
            self.count_in_flight(id);
            if !arrived.is_empty() {
                arrived.drain(..).for_each(|completion| self.settle(id, completion, now));
                self.count_in_flight(id);
            }
            self.arrived = arrived;
        }
    }

    /// Gives up on requests whose time is up: their inputs come back untouched and the CPU does them. The engine's
    /// own copies stay with it.
    fn expire(&mut self, now: Nanos) {
        if now < self.next_expiry {
            return;
        }
        // What is answered is not late, whichever thread takes it in.
        self.gather_in(now, Handle::poll_patiently);
        let late: Vec<(Token, EngineId)> = self
            .in_flight
            .iter()
            .filter(|(_, entry)| entry.give_up_ns <= now)
            .map(|(token, entry)| (token, entry.engine))
            .collect();
        for (token, id) in late {
            if self.in_flight.get(token).is_none() {
                continue; // It came back when its engine was stopped on account of another.
            }
            let instance = self.stations[id.index()].instance.as_mut();
            match instance.and_then(|instance| instance.withdraw(token, now)) {
                Some(request) => {
                    let result = Err(Error::Device(Fault::Silent));
                    self.settle(id, Completion { token, request, result, cost: Cost::default() }, now);
                }
                // It neither answers nor gives back what it took.
                None => self.failed(id, Reason::Lost, now),
            }
            let window =
                self.stations[id.index()].instance.as_ref().map(|instance| instance.window().requests);
            if window.is_some_and(|window| self.hostages(id) > window / 2) {
                // Answers that never come would fill the window for good. Stopping frees them.
                self.failed(id, Reason::Lost, now);
            }
            self.count_in_flight(id);
        }
        self.next_expiry =
            self.in_flight.iter().map(|(_, entry)| entry.give_up_ns).min().unwrap_or(Nanos::MAX);
    }

    /// Ends requests that a stopped instance did not give back, as it had promised to. Their buffers went with it, so
    /// they cannot be repeated here; but their callers must not wait for ever.
    fn write_off(&mut self, now: Nanos) {
        let gone = |id: EngineId| self.stations[id.index()].instance.is_none();
        let lost: Vec<(Token, EngineId)> = self
            .in_flight
            .iter()
            .filter(|(_, entry)| gone(entry.engine))
            .map(|(token, entry)| (token, entry.engine))
            .collect();
        for (token, id) in lost {
            let Some(entry) = self.leave(token).filter(Entry::is_door) else { continue };
            tracing::error!(engine = self.name(id), "a stopped instance kept a request");
            self.row.add(id, entry.shape.kind, Counter::Errors, 1);
            let mut request = OwnedRequest::new(entry.shape.kind, Arc::new(Key::none_owned()), Vec::new(), 0);
            request.mark = entry.mark;
            let result = Err(Error::Device(Fault::Lost));
            self.finish(token, &entry, request, result, Cost::default(), now);
        }
    }

    /// Takes a request out of flight: `Some` exactly once.
    pub(super) fn leave(&mut self, token: Token) -> Option<Entry> {
        self.in_flight.take(token)
    }

    pub(super) fn finish(
        &mut self,
        token: Token,
        entry: &Entry,
        request: OwnedRequest,
        result: Result<usize, Error>,
        cost: Cost,
        now: Nanos,
    ) {
        let cost =
            Cost { latency_ns: now.saturating_sub(entry.submitted_ns), batch: cost.batch.max(1), ..cost };
        self.ready.push_back(Completion { token, request, result, cost });
    }
}
