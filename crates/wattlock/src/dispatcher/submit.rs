//! A request that can wait: who is asked, and the way into an engine's instance, one by one or a batch at once.
//!
//! This costs a share of every request, a twentieth of the quickest: what a batch has in common is asked, read and written once.

use std::mem;

use wattlock_core::{Completion, Cost, Error, Fault, Kind, Nanos, OwnedRequest, Refused, Shape, Token};
use wattlock_policy::{Choice, EngineId};

use super::station::Station;
use super::{Dispatcher, Submitted};
use crate::health::Reason;
use crate::sys::fork;
use crate::telemetry::Counter;

/// A lone request gets the answer that the policy gave to the last one like it; one in this many is asked about, and
/// timed. A full reckoning, a second clock reading and what the policy learns cost half a microsecond, 3 % of a signature.
const LONE_ASKED_ONE_IN: u8 = 64;

/// A policy's answer for requests without company: see [`Dispatcher::lone_answer`].
#[derive(Clone, Copy)]
pub(super) struct Lone {
    pub(super) shape: Shape,
    pub(super) engine: EngineId,
    pub(super) left: u8,
}

impl Dispatcher {
    /// Submits a request that owns its buffers, and does it at once if the policy's engine works inside the call.
    /// It may be held for company until [`Dispatcher::flush`], its hold deadline, or a full batch. Never blocks.
    pub fn submit(&mut self, request: OwnedRequest) -> Submitted {
        if self.generation != fork::generation() {
            self.after_fork();
        }
        let shape = request.shape();
        if let Some((lanes, hold_ns)) = self.company(&shape) {
            return self.join(lanes, hold_ns, &shape, request);
        }
        let joins =
            self.lanes.is_some_and(|lanes| self.stations[lanes.index()].gathering(shape.kind).is_some());
        let now = if joins { self.now } else { self.look() };
        if !self.testing.is_empty() {
            // A caller whose requests are all done at once has no reason to poll, and would never hear of the tests
            // that its first one started.
            self.collect(now);
        }
        if let Err(error) = request.validate() {
            return self.done_now(request, Err(error), now, now);
        }
        if let Some(engine) = self.lone_answer(&shape) {
            return self.submit_alone(engine, &shape, request, now);
        }
        let choice = self.choose(&shape, now);
        if choice.engine.index() >= self.stations.len() {
            return self.done_now(request, Err(Error::Unsupported), now, now);
        }
        if !self.stations[choice.engine.index()].queued.contains(shape.kind) {
            return self.submit_inline(choice.engine, &shape, request, now);
        }
        match self.enqueue(&choice, &shape, request, now) {
            Ok(token) => Submitted::Pending(token),
            Err((reason, request)) => self.submit_elsewhere(choice.engine, reason, request, now),
        }
    }

    /// Lanes that hold requests of this shape, and may be given one more without asking the policy: how long it may be
    /// held. Their instance is open then, and has proved the kind. Nobody while tests are to be looked after.
    #[inline]
    fn company(&self, shape: &Shape) -> Option<(EngineId, Nanos)> {
        let lanes = self.lanes.filter(|_| self.testing.is_empty())?;
        let gathering = self.stations[lanes.index()].gathering(shape.kind)?;
        (gathering.alike > 0 && gathering.shape == *shape).then_some((lanes, gathering.hold_ns))
    }

    /// Submits a request that joins its like. It came with them, as far as clocks go: a reading for each of eight costs
    /// 1 % of a quick pass.
    #[inline]
    fn join(&mut self, lanes: EngineId, hold_ns: Nanos, shape: &Shape, request: OwnedRequest) -> Submitted {
        let now = self.now;
        if let Err(error) = request.validate() {
            return self.done_now(request, Err(error), now, now);
        }
        match self.give(lanes, hold_ns, shape, request, now) {
            Ok(token) => {
                self.note_joined(lanes, shape.kind);
                Submitted::Pending(token)
            }
            Err((reason, request)) => self.submit_elsewhere(lanes, reason, request, now),
        }
    }

    /// Submits requests of one kind that are all there are: nobody else will join them. Says of each, by its mark, what
    /// became of it. `held_ns` is how long, on average, whoever submits them held them for each other: it counts as time
    /// held. Nothing is held when this returns. Never blocks.
    pub fn submit_together(
        &mut self,
        requests: &mut Vec<OwnedRequest>,
        held_ns: Nanos,
        each: &mut dyn FnMut(u64, Submitted),
    ) {
        if self.generation != fork::generation() {
            self.after_fork();
        }
        self.held_before_ns = held_ns;
        let active = self.weather.active;
        while let Some(first) = requests.first() {
            let (shape, count) = (first.shape(), requests.len() as u32);
            let now = self.look();
            if !self.testing.is_empty() {
                self.collect(now);
            }
            match self.policy.choose_together(&shape, count, &self.weather, now) {
                Some((lanes, size)) if self.has_lanes(lanes, shape.kind) => {
                    // The policy has been asked about all of them: no batch goes early, and none is reconsidered.
                    let size = (size.max(1) as usize).min(requests.len());
                    self.submit_pass(lanes, requests, size, each, now);
                }
                Some((engine, size)) if engine.index() < self.stations.len() => {
                    let size = (size.max(1) as usize).min(requests.len());
                    self.submit_row(engine, requests.drain(..size), each, now);
                }
                _ => {
                    self.weather.active = self.doors_in_flight() as u32 + count;
                    requests.drain(..).for_each(|request| each(request.mark, self.submit(request)));
                    self.flush();
                }
            }
        }
        self.weather.active = active;
        self.held_before_ns = 0;
    }

    /// Counts the time that a request was held before it came here, for the engine that did it.
    #[inline]
    pub(super) fn count_held_before(&mut self, id: EngineId, kind: Kind) {
        if self.held_before_ns > 0 {
            self.row.add(id, kind, Counter::HeldNs, self.held_before_ns);
        }
    }

    /// Has an engine do requests inside the call, one after the other; the first is timed.
    fn submit_row(
        &mut self,
        engine: EngineId,
        requests: impl Iterator<Item = OwnedRequest>,
        each: &mut dyn FnMut(u64, Submitted),
        now: Nanos,
    ) {
        for (nth, request) in requests.enumerate() {
            let (mark, shape) = (request.mark, request.shape());
            let known = nth > 0 && self.stations[engine.index()].works_inside(shape.kind);
            let submitted = match request.validate() {
                Ok(()) if known => self.submit_alone(engine, &shape, request, self.now),
                Ok(()) => self.submit_inline(engine, &shape, request, now),
                Err(error) => self.done_now(request, Err(error), now, now),
            };
            each(mark, submitted);
        }
    }

    /// Has work done for a request that was held so long, whoever submits now.
    pub(super) fn after_holding<T>(&mut self, held_ns: Nanos, work: impl FnOnce(&mut Dispatcher) -> T) -> T {
        let of_others = mem::replace(&mut self.held_before_ns, held_ns);
        let result = work(self);
        self.held_before_ns = of_others;
        result
    }

    /// Whether an engine is lanes of this CPU that do a kind.
    fn has_lanes(&self, id: EngineId, kind: Kind) -> bool {
        self.stations.get(id.index()).is_some_and(|one| one.is_lanes && one.queued.contains(kind))
    }

    /// Has lanes do the first `size` of these requests now. The policy has been asked about all of them: none is
    /// reconsidered.
    fn submit_pass(
        &mut self,
        lanes: EngineId,
        requests: &mut Vec<OwnedRequest>,
        size: usize,
        each: &mut dyn FnMut(u64, Submitted),
        now: Nanos,
    ) {
        let kind = requests[0].kind;
        if !self.prove_queued(lanes, kind, now) {
            let reason = self.stations[lanes.index()].health.reason(kind);
            for request in requests.drain(..size) {
                let (mark, valid) = (request.mark, request.validate());
                let submitted = match valid {
                    Ok(()) => self.submit_elsewhere(lanes, reason, request, now),
                    Err(error) => self.done_now(request, Err(error), now, now),
                };
                each(mark, submitted);
            }
            return;
        }
        let mut tokens = mem::take(&mut self.tokens);
        tokens.clear();
        let mut left = size;
        while tokens.len() < left {
            let request = &requests[tokens.len()];
            match request.validate() {
                Ok(()) if request.kind == kind => {
                    let (shape, mark, ahead) = (request.shape(), request.mark, tokens.len() as u32);
                    tokens.push(self.enter(lanes, &shape, mark, 0, ahead, now));
                }
                Ok(()) => break,
                Err(error) => {
                    let request = requests.remove(tokens.len());
                    each(request.mark, self.done_now(request, Err(error), now, now));
                    left -= 1;
                }
            }
        }
        let (before, lost) = (requests.len(), Err(Error::Device(Fault::Lost)));
        let instance = self.stations[lanes.index()].instance.as_mut();
        let outcome = instance.map_or(lost, |instance| instance.submit_all(&tokens, requests, now));
        self.stations[lanes.index()].flush(now);
        self.count_in_flight(lanes);
        for (nth, token) in tokens.iter().enumerate() {
            if nth < before - requests.len() {
                each(self.in_flight.mark(*token).unwrap_or_default(), Submitted::Pending(*token));
            } else {
                self.leave(*token);
            }
        }
        self.tokens = tokens;
        if let Err(error) = outcome {
            // This one goes elsewhere; about those after it the policy will be asked again.
            let request = requests.remove(0);
            let (mark, reason) = (request.mark, self.refused(lanes, &error, now));
            each(mark, self.submit_elsewhere(lanes, reason, request, now));
        }
    }

    /// Asks the policy, once the weather says who would keep this request company.
    pub(super) fn choose(&mut self, shape: &Shape, now: Nanos) -> Choice {
        self.tell_of_unasked(shape.kind);
        for (station, weather) in self.stations.iter().zip(&mut self.weather.engines) {
            weather.held_alike = if weather.held > 0 { station.held_alike(shape.kind) } else { 0 };
        }
        self.policy.choose(shape, &self.weather, now)
    }

    /// Does a request inside the call, and takes the time.
    fn submit_inline(
        &mut self,
        engine: EngineId,
        shape: &Shape,
        mut request: OwnedRequest,
        now: Nanos,
    ) -> Submitted {
        if self.stations[engine.index()].works_inside(shape.kind) {
            self.note_lone(engine, shape);
            let result = self.run_timed(engine, shape, now, &mut request.view());
            return self.done_now(request, result, now, self.now);
        }
        let result = self.run_with_care(engine, shape, &mut request.view());
        let until = self.runtime.clock().now();
        self.done_now(request, result, now, until)
    }

    fn submit_elsewhere(
        &mut self,
        from: EngineId,
        reason: Reason,
        mut request: OwnedRequest,
        now: Nanos,
    ) -> Submitted {
        let result = self.elsewhere(from, reason, &mut request.view());
        let until = self.runtime.clock().now();
        self.done_now(request, result, now, until)
    }

    /// Who does a request that nobody can join, while only this CPU's engines do its kind: whom the policy last named
    /// for one of the same shape. `None` if it has to be asked.
    fn lone_answer(&mut self, shape: &Shape) -> Option<EngineId> {
        if self.weather.active != 1 || self.in_flight.len() > 0 {
            return None;
        }
        let lone =
            self.lone[shape.kind.index()].as_mut().filter(|lone| lone.shape == *shape && lone.left > 0)?;
        lone.left -= 1;
        Some(lone.engine)
    }

    /// The policy has named this engine, which works inside the call and has proved the kind.
    fn note_lone(&mut self, engine: EngineId, shape: &Shape) {
        if self.weather.active != 1 || self.in_flight.len() > 0 {
            return;
        }
        let with_queue = |station: &Station| !station.is_cpu && station.queued.contains(shape.kind);
        let left = if self.stations.iter().any(with_queue) { 0 } else { LONE_ASKED_ONE_IN - 1 };
        self.lone[shape.kind.index()] = Some(Lone { shape: *shape, engine, left });
    }

    /// Does a request inside the call, untimed, on an engine that has proved its kind.
    fn submit_alone(
        &mut self,
        engine: EngineId,
        shape: &Shape,
        mut request: OwnedRequest,
        now: Nanos,
    ) -> Submitted {
        let mut view = request.view();
        let result = match self.stations[engine.index()].engine.execute(&mut view) {
            Ok(len) => {
                self.row.done(engine, shape.kind, shape.bytes);
                self.count_held_before(engine, shape.kind);
                Ok(len)
            }
            Err(error) => self.run_failed(engine, shape, error, &mut view),
        };
        self.done_now(request, result, now, now)
    }

    /// A completion for a request that never entered an instance.
    fn done_now(
        &mut self,
        request: OwnedRequest,
        result: Result<usize, Error>,
        since: Nanos,
        until: Nanos,
    ) -> Submitted {
        let latency_ns = until.saturating_sub(since);
        let cost = Cost { latency_ns, held_ns: 0, batch: 1, energy_nj: None };
        Submitted::Done(Completion { token: self.in_flight.name(), request, result, cost })
    }

    /// Puts a request into the instance of the engine the policy named, if that engine is open, proved and has room.
    #[inline]
    pub(super) fn enqueue(
        &mut self,
        choice: &Choice,
        shape: &Shape,
        request: OwnedRequest,
        now: Nanos,
    ) -> Result<Token, (Reason, OwnedRequest)> {
        let id = choice.engine;
        if !self.prove_queued(id, shape.kind, now) {
            return Err((self.stations[id.index()].health.reason(shape.kind), request));
        }
        let token = self.give(id, choice.hold_ns, shape, request, now)?;
        self.stations[id.index()].note_held(token, shape, choice);
        self.note_held(id, now.saturating_add(choice.hold_ns), now);
        Ok(token)
    }

    /// Gives a request to an engine's instance, which is open.
    #[inline(always)]
    fn give(
        &mut self,
        id: EngineId,
        hold_ns: Nanos,
        shape: &Shape,
        request: OwnedRequest,
        now: Nanos,
    ) -> Result<Token, (Reason, OwnedRequest)> {
        let token = self.enter(id, shape, request.mark, hold_ns, 0, now);
        let Some(instance) = self.stations[id.index()].instance.as_mut() else {
            self.leave(token);
            return Err((Reason::Lost, request));
        };
        match instance.submit(token, request, now) {
            Ok(()) => Ok(token),
            Err(Refused { error, request }) => {
                self.leave(token);
                Err((self.refused(id, &error, now), request))
            }
        }
    }

    /// An instance did not take a request. Says why the request goes elsewhere.
    #[cold]
    fn refused(&mut self, id: EngineId, error: &Error, now: Nanos) -> Reason {
        let reason = Reason::of(error);
        if matches!(error, Error::Device(_)) {
            self.failed(id, reason, now);
        } else if *error == Error::Full && self.in_flight_on(id) == 0 && self.hostages(id) > 0 {
            // Nothing but hostages fills the window, and they may never leave by themselves.
            self.failed(id, Reason::Lost, now);
        }
        reason
    }

    /// Takes note of a door's request that an engine is about to be given, with `ahead` others before it that it has not
    /// been given yet.
    #[inline]
    fn enter(
        &mut self,
        id: EngineId,
        shape: &Shape,
        mark: u64,
        hold_ns: Nanos,
        ahead: u32,
        now: Nanos,
    ) -> Token {
        let give_up_ns = self.expect(id, shape, hold_ns, now);
        let depth = self.weather.engines[id.index()].in_flight + ahead + 1;
        self.in_flight.enter(id, shape, mark, depth, self.held_before_ns, (now, give_up_ns))
    }

    /// Counts a request that an engine is about to be given, and says until when it has time.
    #[inline]
    pub(super) fn expect(&mut self, id: EngineId, shape: &Shape, hold_ns: Nanos, now: Nanos) -> Nanos {
        let give_up_ns = now.saturating_add(hold_ns).saturating_add(self.runtime.give_up_after_ns());
        self.next_expiry = self.next_expiry.min(give_up_ns);
        let weather = &mut self.weather.engines[id.index()];
        weather.in_flight_bytes += shape.bytes as u64;
        weather.asymmetric += u32::from(shape.kind.is_asymmetric());
        give_up_ns
    }
}
