//! Requests that own their buffers, and can wait: which engine is asked, and the way into an engine's instance.

use std::mem;

use wattlock_core::{
    Completion, Cost, Error, Item, Kind, Nanos, OwnedRequest, Refused, Request, Shape, Token,
};
use wattlock_policy::{Ask, Choice, EngineId, Rest, Side, Weather};

use super::batch::is_alike;
use super::{Dispatcher, Submitted};
use crate::health::Reason;
use crate::telemetry::Counter;

/// What a device may take for each byte before it counts as silent, in nanoseconds: 100 MB/s.
const NS_A_BYTE: u64 = 10;

impl Dispatcher {
    /// Submits a request that owns its buffers, and does it at once if the policy's engine works inside the call. Never
    /// blocks.
    pub fn submit(&mut self, request: OwnedRequest) -> Submitted {
        self.keep_up();
        let now = self.look();
        if !self.testing.is_empty() {
            // A caller whose requests are all done at once has no reason to poll, and would never hear of the tests
            // that its first one started.
            self.collect(now);
        }
        if let Err(error) = request.validate() {
            return self.done(request, Err(error), 1, now);
        }
        let shape = request.shape();
        let choice = self.ask(&shape, 1, shape.bytes, true);
        let submitted = self.give(&choice, &shape, request, now);
        self.ring(choice.engine);
        submitted
    }

    /// Gives a device a copy of a request of an operation of `whole` bytes, with a mark, if the policy names a device for it
    /// that has proved the kind and has room. If not, nothing was copied, and the request is the CPU's ([`Dispatcher::run`],
    /// [`Dispatcher::do_inside`]): what lanes could do, its caller gathers first. A device that makes batches waits for
    /// more until it has a full one or [`Dispatcher::flush`]. Never takes a run. Never blocks.
    ///
    /// `active` is how many connections the door has open that are not idle, this one included; 0 if it does not say.
    pub fn submit_to_device(
        &mut self,
        request: &Request<'_>,
        mark: u64,
        whole: usize,
        active: u32,
    ) -> Option<Token> {
        self.keep_up();
        let now = self.look();
        if !self.testing.is_empty() {
            self.collect(now);
        }
        request.validate().ok().filter(|()| request.run.is_none())?;
        let shape = request.shape();
        self.weather.active = self.at_least_in_flight(active);
        let choice = self.ask(&shape, 1, whole, true);
        self.weather.active = 0;
        let device = choice.engine;
        if !self.stations.get(device.index())?.queued.contains(shape.kind) {
            // The CPU will do it, but perhaps another engine of the CPU, with others.
            self.policy.left_undone(&shape, device);
            return None;
        }
        match self.offer(&choice, &shape, request, mark) {
            Ok(token) => {
                if self.stations[device.index()].engine.width(shape.kind) <= 1 {
                    self.ring(device);
                }
                Some(token)
            }
            Err(reason) => {
                self.row.fell_back(device, reason);
                None
            }
        }
    }

    /// What a door says of its connections may be a turn old; those that wait for a device are among them.
    fn at_least_in_flight(&self, active: u32) -> u32 {
        if active == 0 { 0 } else { active.max(self.doors_in_flight() as u32 + 1) }
    }

    /// Gives the device that was named a copy of a request, or says why not.
    fn offer(
        &mut self,
        choice: &Choice,
        shape: &Shape,
        request: &Request<'_>,
        mark: u64,
    ) -> Result<Token, Reason> {
        let (device, now) = (choice.engine, self.now);
        if self.is_the_cpus(device, shape.kind, shape.bytes) {
            return Err(Reason::Migrated);
        }
        if !self.prove_queued(device, shape.kind, now) {
            return Err(self.stations[device.index()].health.reason(shape.kind));
        }
        if !self.has_room(device, shape.bytes) {
            self.free_from_hostages(device, now);
            return Err(Reason::Full);
        }
        let mut copy = OwnedRequest::copy_of(request);
        copy.mark = mark;
        self.enqueue(choice, shape, copy, now).map_err(|(reason, _)| reason)
    }

    /// Whether the policy would give so many requests like this one, which are one operation, to a device now. Another
    /// instance of it is asked, which learns nothing, for no request need follow. `active` as in
    /// [`Dispatcher::submit_to_device`].
    pub fn goes_to_device(&mut self, shape: &Shape, count: usize, active: u32) -> bool {
        if !self.stations.iter().any(|station| station.queued.contains(shape.kind)) {
            return false;
        }
        self.keep_up();
        self.look();
        let (plan, machine, thread) = (&self.plan, self.runtime.machine(), self.thread);
        let policy = self.hypothetical.get_or_insert_with(|| plan.policy(machine, thread));
        let bytes = shape.bytes.saturating_mul(count);
        let ask = Ask { count: count as u32, bytes, ..Ask::one(*shape) };
        let engine = policy.choose(&ask, &Weather { active, ..self.weather }, 0).engine;
        self.stations.get(engine.index()).is_some_and(|station| station.queued.contains(shape.kind))
    }

    /// Whether so many bytes would find the devices that do a kind full, and are not for the CPU for that: answers, which
    /// are to come, make room.
    pub fn waits_for_room(&self, kind: Kind, bytes: usize) -> bool {
        let devices = (0..self.stations.len()).map(|index| EngineId(index as u8));
        let mut full = devices.filter(|id| {
            let weather = &self.weather.engines[id.index()];
            self.stations[id.index()].queued.contains(kind) && weather.available && !weather.never_fits(bytes)
        });
        let waits =
            |id| !self.has_room(id, bytes) && !self.is_the_cpus(id, kind, bytes) && self.in_flight_on(id) > 0;
        full.next().is_some_and(waits) && full.all(waits)
    }

    /// Whether a device is open and has given a kind's known answers here; starts both if not. Never blocks.
    pub(crate) fn is_ready(&mut self, engine: EngineId, kind: Kind) -> bool {
        self.keep_up();
        let now = self.look();
        if !self.testing.is_empty() {
            self.collect(now);
        }
        self.prove_queued(engine, kind, now)
    }

    /// Whether an engine is in quarantine, and its requests go to the CPU.
    pub(crate) fn is_away(&self, engine: EngineId) -> bool {
        !self.weather.engines[engine.index()].available
    }

    /// Submits a request to the device that a split named, or has the CPU do it. Never blocks.
    pub(crate) fn submit_to(&mut self, engine: EngineId, request: OwnedRequest) -> Submitted {
        self.keep_up();
        let now = self.look();
        let submitted = match request.validate() {
            Ok(()) => self.give(&Choice::now(engine), &request.shape(), request, now),
            Err(error) => self.done(request, Err(error), 1, now),
        };
        self.flush();
        submitted
    }

    /// Submits requests of one kind that are all there are: no other request will join them. Says of each, by its mark,
    /// what became of it. `held_ns` is how long, on average, their submitter held them for each other: it counts as
    /// time held. Nothing is held when this returns. Never blocks.
    pub fn submit_together(
        &mut self,
        requests: &mut Vec<OwnedRequest>,
        held_ns: Nanos,
        each: &mut dyn FnMut(u64, Submitted),
    ) {
        self.hand_over(requests, held_ns, true, each);
    }

    /// The same for requests that no device was given when they came: engines of the CPU do all of them now.
    pub fn do_inside(
        &mut self,
        requests: &mut Vec<OwnedRequest>,
        held_ns: Nanos,
        each: &mut dyn FnMut(u64, Submitted),
    ) {
        self.hand_over(requests, held_ns, false, each);
    }

    fn hand_over(
        &mut self,
        requests: &mut Vec<OwnedRequest>,
        held_ns: Nanos,
        may_wait: bool,
        each: &mut dyn FnMut(u64, Submitted),
    ) {
        self.keep_up();
        self.held_before_ns = held_ns;
        let (active, mut queued) = (self.weather.active, false);
        while let Some(first) = requests.first() {
            let (shape, now) = (first.shape(), self.look());
            if !self.testing.is_empty() {
                self.collect(now);
            }
            let count = requests.iter().take_while(|request| is_alike(&shape, &request.shape())).count();
            // Those in hand wait for this thread, and so do those that devices have.
            self.weather.active = active.max(self.doors_in_flight() as u32 + count as u32);
            let ask = Ask { count: count as u32, may_wait, ..Ask::one(shape) };
            let choice = self.policy.choose(&ask, &self.weather, now);
            let mut size = (choice.count as usize).clamp(1, count);
            let station = self.stations.get(choice.engine.index());
            if let Some(station) = station.filter(|station| !may_wait || !station.queued.contains(shape.kind))
            {
                let width = usize::from(station.engine.width(shape.kind));
                size = if width > 1 { size.min(width) } else { size };
                self.do_owned(choice.engine, requests, size, now, each);
                continue;
            }
            for request in requests.drain(..size) {
                let (mark, shape) = (request.mark, request.shape());
                let submitted = match request.validate() {
                    Ok(()) => self.give(&choice, &shape, request, now),
                    Err(error) => self.done(request, Err(error), 1, now),
                };
                queued |= matches!(submitted, Submitted::Pending(_));
                each(mark, submitted);
            }
        }
        if queued {
            self.flush();
        }
        self.weather.active = active;
        self.held_before_ns = 0;
    }

    /// Has a CPU engine do the first so many of these, in their own buffers.
    fn do_owned(
        &mut self,
        engine: EngineId,
        requests: &mut Vec<OwnedRequest>,
        size: usize,
        now: Nanos,
        each: &mut dyn FnMut(u64, Submitted),
    ) {
        let mut items: Vec<Item<'_>> = requests[..size].iter_mut().map(|one| Item::new(one.view())).collect();
        let batch = self.do_together(engine, &mut items);
        let results: Vec<_> = items.into_iter().map(|item| item.result).collect();
        for (request, result) in requests.drain(..size).zip(results) {
            each(request.mark, self.done(request, result, batch, now));
        }
    }

    /// Gives a valid request to the engine that was named for it: inside the call, or into its instance.
    fn give(&mut self, choice: &Choice, shape: &Shape, mut request: OwnedRequest, now: Nanos) -> Submitted {
        let Some(station) = self.stations.get(choice.engine.index()) else {
            return self.done(request, Err(Error::Unsupported), 1, now);
        };
        if !station.queued.contains(shape.kind) {
            let mut items = [Item::new(request.view())];
            self.do_together(choice.engine, &mut items);
            let result = items[0].result;
            return self.done(request, result, 1, now);
        }
        if self.is_the_cpus(choice.engine, shape.kind, shape.bytes) {
            let result = self.fall_back(choice.engine, Reason::Migrated, &mut request.view());
            self.now = self.runtime.clock().now();
            return self.done(request, result, 1, now);
        }
        match self.enqueue(choice, shape, request, now) {
            Ok(token) => Submitted::Pending(token),
            Err((reason, mut request)) => {
                let result = self.fall_back(choice.engine, reason, &mut request.view());
                self.now = self.runtime.clock().now();
                self.done(request, result, 1, now)
            }
        }
    }

    /// Whether an operation of one piece that a device was given is for the CPU now.
    fn is_the_cpus(&self, device: EngineId, kind: Kind, bytes: usize) -> bool {
        let rest = Rest { device, kind, pieces: 1, free: 1, out: 0, bytes };
        let claims = |side| self.policy.claim(side, &rest, &self.weather) > 0;
        !claims(Side::Device) && claims(Side::Cpu)
    }

    /// A completion for a request that never entered an instance; `self.now` is when it was done.
    fn done(
        &mut self,
        request: OwnedRequest,
        result: Result<usize, Error>,
        batch: u16,
        since: Nanos,
    ) -> Submitted {
        let latency_ns = self.now.saturating_sub(since);
        let cost = Cost { latency_ns, held_ns: 0, batch, energy_nj: None };
        Submitted::Done(Completion { token: self.in_flight.name(), request, result, cost })
    }

    /// Counts the time that a request was held before it came here, for the engine that did it.
    #[inline]
    pub(super) fn count_held_before(&mut self, id: EngineId, kind: Kind) {
        if self.held_before_ns > 0 {
            self.row.add(id, kind, Counter::HeldNs, self.held_before_ns);
        }
    }

    /// Has work done for a request that was held so long, at any thread's submission.
    pub(super) fn after_holding<T>(&mut self, held_ns: Nanos, work: impl FnOnce(&mut Dispatcher) -> T) -> T {
        let of_others = mem::replace(&mut self.held_before_ns, held_ns);
        let result = work(self);
        self.held_before_ns = of_others;
        result
    }

    /// Puts a request into the instance of the engine the policy named, if that engine is open, proved and has room.
    pub(super) fn enqueue(
        &mut self,
        choice: &Choice,
        shape: &Shape,
        request: OwnedRequest,
        now: Nanos,
    ) -> Result<Token, (Reason, OwnedRequest)> {
        let id = choice.engine;
        let station = &self.stations[id.index()];
        if request.run.is_some() && !station.engine.takes_runs(shape.kind, request.longest()) {
            return Err((Reason::Unsupported, request));
        }
        if !self.prove_queued(id, shape.kind, now) {
            return Err((self.stations[id.index()].health.reason(shape.kind), request));
        }
        let give_up_ns = self.expect(id, shape, now);
        let depth = self.weather.engines[id.index()].in_flight + 1;
        let token =
            self.in_flight.enter(id, shape, request.mark, depth, self.held_before_ns, (now, give_up_ns));
        let pair = self.pair_before(id);
        let Some(instance) = self.stations[id.index()].instance.as_mut() else {
            self.leave(token);
            return Err((Reason::Lost, request));
        };
        // Only what goes to a device pays for the two looks at the clock.
        let clock = self.runtime.clock();
        let begun = clock.now();
        match instance.submit(token, request, pair, now) {
            Ok(pair) => {
                self.row.add(id, shape.kind, Counter::SubmitNs, clock.now().saturating_sub(begun));
                self.last_pair = pair;
            }
            Err(Refused { error, request }) => {
                self.leave(token);
                return Err((self.refused(id, &error, now), request));
            }
        }
        self.note_held(id, shape.kind);
        Ok(token)
    }

    /// An instance did not take a request. Says why another engine does it.
    #[cold]
    fn refused(&mut self, id: EngineId, error: &Error, now: Nanos) -> Reason {
        let reason = Reason::of(error);
        if matches!(error, Error::Device(_)) {
            self.failed(id, reason, now);
        } else if *error == Error::Full {
            self.free_from_hostages(id, now);
        }
        reason
    }

    /// Leaves a device whose window nothing but hostages fills: they may never go by themselves.
    pub(super) fn free_from_hostages(&mut self, id: EngineId, now: Nanos) {
        let (hostages, in_flight) = (self.hostages(id), self.weather.engines[id.index()].in_flight);
        if self.in_flight_on(id) == 0 && hostages > 0 && hostages >= in_flight {
            self.failed(id, Reason::Lost, now);
        }
    }

    /// Counts a request that an engine is about to be given, and says until when it has time.
    pub(super) fn expect(&mut self, id: EngineId, shape: &Shape, now: Nanos) -> Nanos {
        // Of what is in flight, some bytes must come back first.
        let before = self.weather.engines[id.index()].in_flight_bytes;
        let for_bytes = before.saturating_add(shape.bytes as u64).saturating_mul(NS_A_BYTE);
        let patience = self.runtime.give_up_after_ns().saturating_add(for_bytes);
        let give_up_ns = now.saturating_add(patience);
        self.next_expiry = self.next_expiry.min(give_up_ns);
        give_up_ns
    }
}
