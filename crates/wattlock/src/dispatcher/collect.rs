//! What comes back from the instances, and what does not come back in time.

use std::mem;
use std::sync::Arc;

use wattlock_core::{Completion, Cost, Error, Fault, Key, Nanos, OwnedRequest, Token};
use wattlock_policy::EngineId;

use super::Dispatcher;
use crate::health::Reason;
use crate::inflight::Left;
use crate::sys::fork;
use crate::telemetry::Counter;

impl Dispatcher {
    /// Hands every finished request to `done` and returns how many there were. Also flushes what was held long
    /// enough, moves what the policy wants moved, and gives up on what took too long. Never blocks.
    pub fn poll(&mut self, done: &mut dyn FnMut(Completion)) -> usize {
        if self.generation != fork::generation() {
            self.after_fork();
        }
        if self.in_flight.len() > 0 || self.stations.iter().any(|station| station.instance.is_some()) {
            let now = self.look();
            self.flush_due(now);
            self.migrate(now);
            // Lanes, and whatever was moved here, worked meanwhile.
            let now = self.now;
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

    /// Takes what the instances have finished.
    pub(super) fn collect(&mut self, now: Nanos) {
        for index in 0..self.stations.len() {
            let id = EngineId(index as u8);
            let Some(instance) = self.stations[index].instance.as_mut() else { continue };
            if instance.poll_all(now, &mut self.arrived) == 0 {
                continue;
            }
            self.count_in_flight(id);
            let (mut arrived, mut odd) = (mem::take(&mut self.arrived), mem::take(&mut self.odd));
            self.settle_plain(id, arrived.make_contiguous(), &mut odd, now);
            if !odd.is_empty() {
                let mut odd = odd.drain(..).peekable();
                for (at, completion) in arrived.drain(..).enumerate() {
                    if odd.next_if_eq(&at).is_none() {
                        self.ready.push_back(completion);
                    } else {
                        self.settle(id, completion, now);
                        self.count_in_flight(id);
                    }
                }
            } else if self.ready.is_empty() {
                mem::swap(&mut self.ready, &mut arrived);
            } else {
                self.ready.append(&mut arrived);
            }
            (self.arrived, self.odd) = (arrived, odd);
        }
    }

    /// Settles what needs no second thought, where it lies: doors' requests that a CPU engine has done, those that went
    /// together in one go. Notes the places of the others.
    fn settle_plain(&mut self, id: EngineId, arrived: &mut [Completion], odd: &mut Vec<usize>, now: Nanos) {
        let is_cpu = self.stations[id.index()].is_cpu;
        let mut at = 0;
        while let Some(Completion { token, cost, .. }) = arrived.get(at) {
            let (token, cost) = (*token, *cost);
            let alike =
                arrived[at..].iter().take_while(|one| is_cpu && one.result.is_ok() && one.cost == cost);
            let Some((left, count)) = self.in_flight.take_run(alike.map(|one| one.token)) else {
                odd.push(at);
                at += 1;
                continue;
            };
            self.left(token, &left, count);
            self.stations[id.index()].health.succeeded();
            self.count_done(id, &left, count, &cost, now);
            let latency_ns = now.saturating_sub(left.submitted_ns);
            let until = at + count as usize;
            for one in &mut arrived[at..until] {
                (one.cost.latency_ns, one.cost.batch) = (latency_ns, cost.batch.max(1));
            }
            at = until;
        }
    }

    /// Gives up on requests whose time is up: their inputs come back untouched and the CPU does them. The engine's
    /// own copies stay with it.
    fn expire(&mut self, now: Nanos) {
        if now < self.next_expiry {
            return;
        }
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
    /// nobody here can repeat them; but whoever waits must not wait for ever.
    fn write_off(&mut self, now: Nanos) {
        let gone = |id: EngineId| self.stations[id.index()].instance.is_none();
        let lost: Vec<(Token, EngineId)> = self
            .in_flight
            .iter()
            .filter(|(_, entry)| gone(entry.engine))
            .map(|(token, entry)| (token, entry.engine))
            .collect();
        for (token, id) in lost {
            let Some(entry) = self.leave(token).filter(Left::is_door) else { continue };
            tracing::error!(engine = self.name(id), "a stopped instance kept a request");
            self.row.add(id, entry.shape.kind, Counter::Errors, 1);
            let mut request = OwnedRequest::new(entry.shape.kind, Arc::new(Key::none_owned()), Vec::new(), 0);
            request.mark = entry.mark;
            let result = Err(Error::Device(Fault::Lost));
            self.finish(token, &entry, request, result, Cost::default(), now);
        }
    }

    /// Takes a request out of flight: `Some` exactly once.
    pub(super) fn leave(&mut self, token: Token) -> Option<Left> {
        let left = self.in_flight.take(token)?;
        self.left(token, &left, 1);
        Some(left)
    }

    /// The first of so many that left, and what they were.
    fn left(&mut self, first: Token, left: &Left, count: u32) {
        let weather = &mut self.weather.engines[left.engine.index()];
        let (bytes, asymmetric) = (left.shape.bytes as u64, u32::from(left.shape.kind.is_asymmetric()));
        weather.in_flight_bytes = weather.in_flight_bytes.saturating_sub(u64::from(count) * bytes);
        weather.asymmetric = weather.asymmetric.saturating_sub(count * asymmetric);
        // However they left, they keep nobody company any more.
        self.stations[left.engine.index()].forget(first, left.shape.kind, count);
    }

    pub(super) fn finish(
        &mut self,
        token: Token,
        entry: &Left,
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
