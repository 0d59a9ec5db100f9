//! One thread's way into the runtime: who does a request, and what happens when they do not.
//!
//! A dispatcher owns everything it touches on a request's way (policy state, instances, in-flight table, a row of
//! counters), so no call takes a lock. Rules:
//!
//! 1. Every submitted request is handed back exactly once: by [`Dispatcher::submit`] at once, by a later
//!    [`Dispatcher::poll`], or by [`Dispatcher::cancel`].
//! 2. An engine does a kind only after passing that kind's known-answer tests here.
//! 3. Whatever goes wrong in an engine, the request is repeated, identical, by a CPU engine in `elsewhere`; nothing
//!    else falls back. A door sees such a fault as latency only, with two exceptions where repeating would need an input that
//!    no longer exists: an inline engine that failed midway in place, and an instance that kept what it took.
//! 4. What an engine that is not the CPU says about a request (rejected, forged) is not believed unless the CPU says
//!    so too, and a share of its good results is checked.
//! 5. After a fork nothing opened before is used. Requests in flight then belong to the parent, which completes them;
//!    the child forgets them.

mod stream;

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use wattlock_core::{
    Completion, Cost, Data, Engine, Error, Fault, Instance, Key, Kind, KindSet, KnownAnswer, Nanos,
    OwnedRequest, Refused, Request, Shape, Token, known_answers,
};
use wattlock_policy::{Choice, EngineId, EngineWeather, Migration, Outcome, Policy, Weather};

use crate::health::{Health, Reason};
use crate::inflight::{Entry, InFlight, Left, Purpose};
use crate::runtime::Inner;
use crate::sys::fork;
use crate::telemetry::{Counter, EngineCounter, Row};
use crate::weather::IdleShare;
use stream::Streams;

/// One inline request in this many is timed, for telemetry and for the policy. Reading the clock twice costs about as
/// much as everything else on the inline path together.
const TIMED_ONE_IN: u32 = 64;

/// A lone request gets the answer that the policy gave to the last one like it; one in this many is asked about, and
/// timed. A full reckoning, a second clock reading and what the policy learns cost half a microsecond, 3 % of a signature.
const LONE_ASKED_ONE_IN: u8 = 64;

/// What became of a submission.
#[derive(Debug)]
pub enum Submitted {
    /// It is done already; [`Dispatcher::poll`] will not mention it again.
    Done(Completion),
    /// It will come out of [`Dispatcher::poll`] under this token.
    Pending(Token),
}

/// One engine as one dispatcher has it.
struct Station {
    engine: Arc<dyn Engine>,
    health: Health,
    instance: Option<Box<dyn Instance>>,
    /// When what the instance holds must go; `None` while it holds nothing.
    flush_by: Option<Nanos>,
    is_cpu: bool,
    /// The engine's width, and whether requests wait here for company of their own kind, to be done on this thread.
    width: u16,
    is_lanes: bool,
    /// Kinds the engine does through its instance.
    queued: KindSet,
    /// Kinds the profile has no joules for, as far as anyone has asked: looking that up costs as much as counting.
    unmetered: KindSet,
    /// What an instance of CPU lanes holds, by kind: lanes share a pass with their own kind only, and a batch that
    /// stayed thin is better done one by one. Empty for every other engine.
    held: Vec<Gathering>,
}

/// What lanes hold of one kind.
#[derive(Clone, Copy)]
struct Gathering {
    /// The first one's shape.
    shape: Shape,
    /// The first one's token. Whoever came later and is not held any more has left.
    first: Token,
    count: u16,
}

/// A policy's answer for requests without company: see [`Dispatcher::lone_answer`].
#[derive(Clone, Copy)]
struct Lone {
    shape: Shape,
    engine: EngineId,
    left: u8,
}

/// A kind's known-answer tests under way on an instance.
struct Testing {
    engine: EngineId,
    kind: Kind,
    /// Not submitted yet: the window had no room.
    waiting: Vec<KnownAnswer>,
    in_flight: u32,
    good: bool,
    /// The engine failed during a test: that says nothing about the kind, which will be tested again.
    aborted: bool,
}

/// One thread's way in. `Send`, but used by one thread at a time; make one per thread, they are cheap (a few
/// kilobytes) and open nothing until a policy first names an engine with queues.
pub struct Dispatcher {
    runtime: Arc<Inner>,
    policy: Box<dyn Policy>,
    weather: Weather,
    stations: Vec<Station>,
    in_flight: InFlight,
    testing: Vec<Testing>,
    /// Done, not yet handed out.
    ready: VecDeque<Completion>,
    /// Scratch for one poll, and the places in it of those that are not settled at once.
    arrived: VecDeque<Completion>,
    odd: Vec<usize>,
    /// Scratch for one batch.
    tokens: Vec<Token>,
    idle: IdleShare,
    row: Row,
    streams: Streams,
    generation: u32,
    ticks: u32,
    /// Who does a lone request inside the call, by kind: the policy's last answer and how often it may still be used.
    lone: Vec<Option<Lone>>,
    /// State of the generator that picks which results are checked.
    checks: u64,
    now: Nanos,
    /// No entry's time is up before this.
    next_expiry: Nanos,
    /// An instance was stopped and may have kept something; looked into at the end of the next poll.
    stopped_one: bool,
}

impl Dispatcher {
    pub(crate) fn new(runtime: Arc<Inner>) -> Dispatcher {
        let policy = runtime.make_policy();
        let stations: Vec<Station> = runtime.engines().iter().map(Station::new).collect();
        let mut weather = Weather { submitters: 1, ..Weather::default() };
        for (engine, _) in weather.engines.iter_mut().zip(&stations) {
            engine.available = true;
        }
        let row = runtime.row();
        runtime.submitter_came();
        Dispatcher {
            policy,
            weather,
            stations,
            in_flight: InFlight::default(),
            testing: Vec::new(),
            ready: VecDeque::new(),
            arrived: VecDeque::new(),
            odd: Vec::new(),
            tokens: Vec::new(),
            idle: IdleShare::default(),
            row,
            streams: Streams::default(),
            generation: fork::generation(),
            ticks: 0,
            lone: vec![None; Kind::COUNT],
            checks: 0,
            now: runtime.clock().now(),
            next_expiry: Nanos::MAX,
            stopped_one: false,
            runtime,
        }
    }

    /// Does a request inside the call, on the engine the policy names, and returns the output's length. No queue, no
    /// lock, and no allocation but for a key's first expansion (and deflate's own). Does not block.
    ///
    /// # Errors
    /// [`Error::Invalid`] or [`Error::Authentication`]; [`Error::Unsupported`] if no engine here does the kind.
    #[inline]
    pub fn run(&mut self, request: &mut Request<'_>) -> Result<usize, Error> {
        request.validate()?;
        if self.generation != fork::generation() {
            self.after_fork();
        }
        let shape = request.shape();
        let chosen = self.policy.choose_inline(&shape, &self.weather, self.now);
        self.ticks = self.ticks.wrapping_add(1);
        let Some(station) = self.stations.get(chosen.index()) else { return Err(Error::Unsupported) };
        if !station.health.ready(shape.kind) || self.ticks.is_multiple_of(TIMED_ONE_IN) {
            return self.run_with_care(chosen, &shape, request);
        }
        match station.engine.execute(request) {
            Ok(len) => {
                self.row.done(chosen, shape.kind, shape.bytes);
                Ok(len)
            }
            Err(error) => self.run_failed(chosen, &shape, error, request),
        }
    }

    /// The inline path when something besides the work is to be done: a test before the first use, or taking the time.
    #[cold]
    fn run_with_care(
        &mut self,
        chosen: EngineId,
        shape: &Shape,
        request: &mut Request<'_>,
    ) -> Result<usize, Error> {
        if !self.prove_inline(chosen, shape.kind) {
            let reason = self.stations[chosen.index()].health.reason(shape.kind);
            return self.elsewhere(chosen, reason, request);
        }
        let start = self.runtime.clock().now();
        self.run_timed(chosen, shape, start, request)
    }

    /// Does a request inside the call on an engine that has proved the kind, and takes the time: it began at `start`, and
    /// ended at `self.now`.
    fn run_timed(
        &mut self,
        chosen: EngineId,
        shape: &Shape,
        start: Nanos,
        request: &mut Request<'_>,
    ) -> Result<usize, Error> {
        let result = self.stations[chosen.index()].engine.execute(request);
        self.now = self.runtime.clock().now();
        match result {
            Ok(len) => {
                let latency_ns = self.now.saturating_sub(start);
                self.row.done(chosen, shape.kind, shape.bytes);
                self.row.add(chosen, shape.kind, Counter::Timed, 1);
                self.row.add(chosen, shape.kind, Counter::TimedNs, latency_ns);
                self.count_energy(chosen, shape, 1, None);
                let outcome = Outcome {
                    engine: chosen,
                    latency_ns,
                    held_ns: 0,
                    batch: 1,
                    depth: 1,
                    energy_nj: None,
                    failed: false,
                };
                self.policy.observe(shape, &outcome, self.now);
                Ok(len)
            }
            Err(error) => self.run_failed(chosen, shape, error, request),
        }
    }

    #[cold]
    fn run_failed(
        &mut self,
        chosen: EngineId,
        shape: &Shape,
        error: Error,
        request: &mut Request<'_>,
    ) -> Result<usize, Error> {
        if may_repeat(&error, request) {
            return self.elsewhere(chosen, Reason::of(&error), request);
        }
        self.row.add(chosen, shape.kind, Counter::Errors, 1);
        Err(error)
    }

    /// The one place where a request goes to another engine than the one the policy named: the identical request, on
    /// the fastest CPU engine that does it inline and has proved itself.
    fn elsewhere(
        &mut self,
        from: EngineId,
        reason: Reason,
        request: &mut Request<'_>,
    ) -> Result<usize, Error> {
        self.row.fell_back(from, reason);
        tracing::debug!(
            engine = self.name(from),
            kind = request.kind.name(),
            reason = reason.name(),
            "fallback"
        );
        let (kind, bytes) = (request.kind, request.data.len());
        for id in self.runtime.cpu_engines(kind) {
            if id == from && reason != Reason::Migrated || !self.prove_inline(id, kind) {
                continue;
            }
            match self.stations[id.index()].engine.execute(request) {
                Ok(len) => {
                    self.row.done(id, kind, bytes);
                    return Ok(len);
                }
                Err(error) if may_repeat(&error, request) => {}
                Err(error) => {
                    self.row.add(id, kind, Counter::Errors, 1);
                    return Err(error);
                }
            }
        }
        Err(Error::Unsupported)
    }

    /// Whether an engine has proved that it does a kind inline; the proof is made now if it was not before.
    fn prove_inline(&mut self, id: EngineId, kind: Kind) -> bool {
        let station = &mut self.stations[id.index()];
        if station.health.ready(kind) {
            return true;
        }
        if !station.engine.description().inline.contains(kind) || !station.health.wants_test(kind) {
            return false;
        }
        let good = known_answers(kind).into_iter().all(|KnownAnswer { mut request, expected, .. }| {
            self.row.add_engine(id, EngineCounter::Tests, 1);
            let result = station.engine.execute(&mut request.view());
            expected.verdict(&request, &result, &*station.engine).is_ok()
        });
        station.health.test_ended(kind, good);
        if !good {
            tracing::error!(
                engine = station.engine.description().name,
                kind = kind.name(),
                "known-answer test failed"
            );
        }
        good
    }

    /// Submits a request that owns its buffers, and does it at once if the policy's engine works inside the call.
    /// It may be held for company until [`Dispatcher::flush`], its hold deadline, or a full batch. Never blocks.
    pub fn submit(&mut self, request: OwnedRequest) -> Submitted {
        if self.generation != fork::generation() {
            self.after_fork();
        }
        let shape = request.shape();
        // Who joins a batch came with it, as far as clocks go: a reading for each of eight costs 1 % of a quick pass.
        let joins = self.stations.iter().any(|station| station.gathering(shape.kind).is_some());
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

    /// Submits requests of one kind that are all there are: nobody else will join them. Says of each, by its mark, what
    /// became of it. Nothing is held when this returns. Never blocks.
    pub fn submit_together(
        &mut self,
        requests: &mut Vec<OwnedRequest>,
        each: &mut dyn FnMut(u64, Submitted),
    ) {
        if self.generation != fork::generation() {
            self.after_fork();
        }
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
                Some((engine, _)) if engine.index() < self.stations.len() => {
                    let request = requests.remove(0);
                    let mark = request.mark;
                    let submitted = match request.validate() {
                        Ok(()) => self.submit_inline(engine, &shape, request, now),
                        Err(error) => self.done_now(request, Err(error), now, now),
                    };
                    each(mark, submitted);
                }
                _ => {
                    self.weather.active = self.doors_in_flight() as u32 + count;
                    requests.drain(..).for_each(|request| each(request.mark, self.submit(request)));
                    self.flush();
                }
            }
        }
        self.weather.active = active;
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

    /// Does a request inside the call, and takes the time.
    fn submit_inline(
        &mut self,
        engine: EngineId,
        shape: &Shape,
        mut request: OwnedRequest,
        now: Nanos,
    ) -> Submitted {
        if self.stations[engine.index()].health.ready(shape.kind) {
            self.note_lone(engine, shape);
            let result = self.run_timed(engine, shape, now, &mut request.view());
            return self.done_now(request, result, now, self.now);
        }
        let result = self.run_with_care(engine, shape, &mut request.view());
        let until = self.runtime.clock().now();
        self.done_now(request, result, now, until)
    }

    /// Asks the policy, once the weather says who would keep this request company.
    fn choose(&mut self, shape: &Shape, now: Nanos) -> Choice {
        for (station, weather) in self.stations.iter().zip(&mut self.weather.engines) {
            weather.held_alike = if weather.held > 0 { station.held_alike(shape.kind) } else { 0 };
        }
        self.policy.choose(shape, &self.weather, now)
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

    /// Does a lone request inside the call, untimed.
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
    /// Inlined, or the request would be moved once more on its way: 15 ns, since it was written a moment ago.
    #[inline(always)]
    fn enqueue(
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
        let token = self.enter(id, shape, request.mark, choice.hold_ns, 0, now);
        let Some(instance) = self.stations[id.index()].instance.as_mut() else {
            self.leave(token);
            return Err((Reason::Lost, request));
        };
        match instance.submit(token, request, now) {
            Ok(()) => {
                self.stations[id.index()].note_held(token, shape);
                self.note_held(id, now.saturating_add(choice.hold_ns), now);
                Ok(token)
            }
            Err(refused) => {
                self.leave(token);
                Err((self.refused(id, &refused.error, now), refused.request))
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
        self.in_flight.enter(id, shape, mark, depth, (now, give_up_ns))
    }

    /// Counts a request that an engine is about to be given, and says until when it has time.
    #[inline]
    fn expect(&mut self, id: EngineId, shape: &Shape, hold_ns: Nanos, now: Nanos) -> Nanos {
        let give_up_ns = now.saturating_add(hold_ns).saturating_add(self.runtime.give_up_after_ns());
        self.next_expiry = self.next_expiry.min(give_up_ns);
        let weather = &mut self.weather.engines[id.index()];
        weather.in_flight_bytes += shape.bytes as u64;
        weather.asymmetric += u32::from(shape.kind.is_asymmetric());
        give_up_ns
    }

    /// After a submission: the deadline counts from the oldest request held; a batch that is full or may not wait goes.
    /// (Lanes begin a full one by themselves: only they know how many are of a kind.)
    fn note_held(&mut self, id: EngineId, flush_by: Nanos, now: Nanos) {
        self.count_in_flight(id);
        let station = &mut self.stations[id.index()];
        let held = self.weather.engines[id.index()].held;
        if held > 0 {
            station.flush_by = Some(station.flush_by.map_or(flush_by, |by| by.min(flush_by)));
        }
        let full = station.width > 1 && held >= u32::from(station.width) && !station.is_lanes;
        if full || station.flush_by.is_some_and(|by| by <= now) {
            self.ring(id, now);
            self.count_in_flight(id);
        }
        if self.everyone_waits() && self.weather.engines.iter().any(|engine| engine.held > 0) {
            self.flush();
        }
    }

    /// Whether a door says how many are active, and all of them wait for us: nobody is left who could join a batch.
    fn everyone_waits(&self) -> bool {
        self.weather.active > 0 && self.doors_in_flight() as u32 >= self.weather.active
    }

    /// Requests of doors that instances have: everything in flight but the runtime's own tests.
    fn doors_in_flight(&self) -> usize {
        let tests: u32 = self.testing.iter().map(|test| test.in_flight).sum();
        self.in_flight.len().saturating_sub(tests as usize)
    }

    fn in_flight_on(&self, id: EngineId) -> u32 {
        self.in_flight.iter().filter(|(_, entry)| entry.engine == id).count() as u32
    }

    /// What an engine still has of requests that were withdrawn from it.
    fn hostages(&self, id: EngineId) -> u32 {
        let instance = self.stations[id.index()].instance.as_ref();
        instance.map_or(0, |instance| instance.in_flight()).saturating_sub(self.in_flight_on(id))
    }

    /// Whether an engine's instance is open and has proved a kind. If the proof is missing it is started, and this
    /// request goes elsewhere.
    fn prove_queued(&mut self, id: EngineId, kind: Kind, now: Nanos) -> bool {
        let station = &self.stations[id.index()];
        if station.instance.is_some() && station.health.ready(kind) {
            return true;
        }
        if !self.open(id, now) {
            return false;
        }
        if self.stations[id.index()].health.ready(kind) {
            return true;
        }
        if self.stations[id.index()].health.wants_test(kind) {
            self.start_test(id, kind, now);
        }
        self.stations[id.index()].health.ready(kind)
    }

    fn open(&mut self, id: EngineId, now: Nanos) -> bool {
        let station = &mut self.stations[id.index()];
        if station.instance.is_some() {
            return true;
        }
        if station.health.quarantined() {
            return false;
        }
        match station.engine.open(now) {
            Ok(instance) => {
                self.weather.engines[id.index()].window_bytes = instance.window().bytes;
                station.instance = Some(instance);
                true
            }
            Err(error) => {
                tracing::warn!(engine = self.name(id), %error, "instance could not be opened");
                self.failed(id, Reason::Lost, now);
                false
            }
        }
    }

    fn start_test(&mut self, id: EngineId, kind: Kind, now: Nanos) {
        let instance = self.stations[id.index()].instance.as_ref();
        if instance.is_none_or(|instance| instance.in_flight() >= instance.window().requests) {
            return; // No room now; the next request of this kind tries again.
        }
        self.stations[id.index()].health.test_started(kind);
        let waiting = known_answers(kind);
        self.continue_test(
            Testing { engine: id, kind, waiting, in_flight: 0, good: true, aborted: false },
            now,
        );
    }

    /// Submits as many of a test's known answers as there is room for, and ends the test when nothing is left of it.
    fn continue_test(&mut self, mut test: Testing, now: Nanos) {
        let (id, mut fault) = (test.engine, None);
        while test.good && !test.aborted {
            let Some(KnownAnswer { request, expected, source }) = test.waiting.pop() else { break };
            let shape = request.shape();
            let give_up_ns = self.expect(id, &shape, 0, now);
            let token = self.in_flight.enter_test(id, &shape, expected, (now, give_up_ns));
            let instance = self.stations[id.index()].instance.as_mut();
            let lost = Error::Device(Fault::Lost);
            let submitted = match instance {
                Some(instance) => instance.submit(token, request, now),
                None => Err(Refused { error: lost, request }),
            };
            let Err(Refused { error, request }) = submitted else {
                test.in_flight += 1;
                self.row.add_engine(id, EngineCounter::Tests, 1);
                continue;
            };
            let entry = self.leave(token);
            match error {
                Error::Full if test.in_flight > 0 => {
                    if let Some(Left { purpose: Purpose::Test(expected), .. }) = entry {
                        test.waiting.push(KnownAnswer { request, expected: *expected, source });
                    }
                    break;
                }
                Error::Full => test.aborted = true,
                Error::Device(_) => (test.aborted, fault) = (true, Some(error)),
                // It claims the kind and declines a request of it.
                _ => test.good = false,
            }
        }
        self.stations[id.index()].flush(now);
        if test.in_flight > 0 {
            self.testing.push(test);
        } else {
            self.end_test(&test);
        }
        self.count_in_flight(id);
        if let Some(error) = fault {
            self.failed(id, Reason::of(&error), now);
        }
    }

    fn end_test(&mut self, test: &Testing) {
        let Testing { engine, kind, good, aborted, .. } = *test;
        let health = &mut self.stations[engine.index()].health;
        if aborted {
            health.test_aborted(kind);
            return;
        }
        health.test_ended(kind, good);
        if !good {
            tracing::error!(engine = self.name(engine), kind = kind.name(), "known-answer test failed");
        }
    }

    fn test_came_back(&mut self, id: EngineId, kind: Kind, good: bool, aborted: bool, now: Nanos) {
        let Some(at) = self.testing.iter().position(|test| test.engine == id && test.kind == kind) else {
            return;
        };
        let mut test = self.testing.swap_remove(at);
        test.in_flight -= 1;
        test.good &= good;
        test.aborted |= aborted;
        self.continue_test(test, now);
    }

    /// Ends holding: rings every doorbell that has somebody waiting.
    pub fn flush(&mut self) {
        if self.in_flight.len() == 0 {
            return;
        }
        self.now = self.runtime.clock().now();
        (0..self.stations.len()).for_each(|index| self.ring(EngineId(index as u8), self.now));
    }

    /// Rings an engine's doorbell, unless lanes hold batches so thin that the policy would rather have them done one
    /// by one. What lanes do, they do here: time passes.
    fn ring(&mut self, id: EngineId, now: Nanos) {
        while let Some(gathering) = self.stations[id.index()].held.first().copied() {
            let Gathering { shape, count, .. } = gathering;
            self.stations[id.index()].held.remove(0);
            if let Some(to) = self.policy.take_over(&shape, id, u32::from(count), &self.weather) {
                for token in self.gathered(id, &gathering) {
                    self.take_over(token, to, now);
                }
            }
        }
        let station = &mut self.stations[id.index()];
        let works_here = station.is_lanes && station.instance.as_ref().is_some_and(|one| one.held() > 0);
        station.flush(now);
        if works_here {
            self.now = self.runtime.clock().now();
        }
    }

    /// The tokens of what an engine holds of a kind.
    fn gathered(&self, id: EngineId, gathering: &Gathering) -> Vec<Token> {
        let is_of_it = |(token, entry): &(Token, &Entry)| {
            *token >= gathering.first && entry.engine == id && entry.shape.kind == gathering.shape.kind
        };
        let mut tokens: Vec<Token> = self.in_flight.iter().filter(is_of_it).map(|(token, _)| token).collect();
        tokens.sort_unstable();
        tokens
    }

    /// Has a held request done inside the call by somebody else.
    fn take_over(&mut self, token: Token, to: EngineId, now: Nanos) {
        let Some(from) = self.in_flight.get(token).filter(|entry| entry.is_door()).map(|entry| entry.engine)
        else {
            return;
        };
        let instance = self.stations[from.index()].instance.as_mut();
        let Some(mut request) = instance.and_then(|instance| instance.withdraw(token, now)) else { return };
        let Some(entry) = self.leave(token) else { return };
        self.count_in_flight(from);
        let held_ns = now.saturating_sub(entry.submitted_ns);
        let result = match to.index() < self.stations.len() && self.prove_inline(to, entry.shape.kind) {
            true => {
                self.row.fell_back(from, Reason::Migrated);
                self.run_with_care(to, &entry.shape, &mut request.view())
            }
            false => self.elsewhere(from, Reason::Migrated, &mut request.view()),
        };
        self.finish(token, &entry, request, result, Cost { batch: 1, held_ns, ..Cost::default() }, self.now);
    }

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

    /// Whether the policy would poll now. A door that polls between other things asks this first.
    pub fn poll_due(&mut self) -> bool {
        if !self.ready.is_empty() {
            return true;
        }
        let now = self.look();
        self.next_deadline().is_some_and(|at| at <= now) || self.policy.poll_due(&self.weather, now)
    }

    /// When [`Dispatcher::poll`] next has something to do by itself (a hold deadline, a time-out, at once if something
    /// is done already), on the runtime's clock. `None` with nothing in flight. Completions can come earlier.
    pub fn next_deadline(&self) -> Option<Nanos> {
        if !self.ready.is_empty() {
            return Some(self.now);
        }
        if self.in_flight.len() == 0 {
            return None;
        }
        let flush = self.stations.iter().filter_map(|station| station.flush_by).min();
        Some(flush.unwrap_or(Nanos::MAX).min(self.next_expiry))
    }

    /// Requests of doors in flight; tests of the runtime's own are not counted.
    pub fn in_flight(&self) -> usize {
        self.doors_in_flight() + self.ready.len()
    }

    /// A door says how many connections, files or streams it has open and not idle; 0 if it does not know.
    pub fn set_active(&mut self, active: u32) {
        self.weather.active = active;
        if self.everyone_waits() {
            self.flush();
        }
    }

    /// Takes a request back. `None` if it is not in flight (it completed, or never was). What the engine already has
    /// of it stays with the engine until it answers.
    pub fn cancel(&mut self, token: Token) -> Option<OwnedRequest> {
        if let Some(at) = self.ready.iter().position(|completion| completion.token == token) {
            return self.ready.remove(at).map(|completion| completion.request);
        }
        let id = self.in_flight.get(token)?.engine;
        let request = self.stations[id.index()].instance.as_mut()?.withdraw(token, self.now)?;
        self.leave(token);
        self.count_in_flight(id);
        Some(request)
    }

    /// Does all of the requests and returns when all are done; `results[i]` belongs to `requests[i]`. What the policy
    /// sends to an engine with queues works there on copies while this thread does the rest. Blocks the calling
    /// thread (sleeping, not spinning, once waits get long), at most until the runtime's time-out.
    ///
    /// # Panics
    /// If the slices differ in length.
    pub fn run_all(&mut self, requests: &mut [Request<'_>], results: &mut [Result<usize, Error>]) {
        assert_eq!(requests.len(), results.len(), "one result for each request");
        let queued_kinds = self.runtime.queued_kinds();
        let mut strangers = VecDeque::new();
        if self.in_flight.len() > 0 {
            // A caller that uses nothing but this would otherwise never hear of the tests its first call started.
            self.poll(&mut |completion| strangers.push_back(completion));
        }
        let mut pending: Vec<(Token, EngineId, usize)> = Vec::new();
        for (index, request) in requests.iter_mut().enumerate() {
            if !queued_kinds.contains(request.kind) {
                results[index] = self.run(request);
                continue;
            }
            match self.run_or_enqueue(request) {
                Ok(result) => results[index] = result,
                Err((token, engine)) => pending.push((token, engine, index)),
            }
        }
        self.flush();
        let mut patience = Patience::default();
        while !pending.is_empty() {
            let mut arrived = Vec::new();
            if self.poll(&mut |completion| arrived.push(completion)) == 0 {
                patience.wait();
                continue;
            }
            patience = Patience::default();
            for completion in arrived {
                match pending.iter().position(|(token, ..)| *token == completion.token) {
                    Some(at) => {
                        let (_, engine, index) = pending.swap_remove(at);
                        results[index] = match completion.result {
                            // Its copy was lost; the original is here.
                            Err(Error::Device(_)) => {
                                self.elsewhere(engine, Reason::Lost, &mut requests[index])
                            }
                            _ => deliver(&completion, &mut requests[index]),
                        };
                    }
                    None => strangers.push_back(completion),
                }
            }
        }
        // Other callers' completions that came out meanwhile are still theirs.
        strangers.append(&mut self.ready);
        self.ready = strangers;
    }

    /// Does a borrowed request now, or enqueues a copy of it.
    fn run_or_enqueue(
        &mut self,
        request: &mut Request<'_>,
    ) -> Result<Result<usize, Error>, (Token, EngineId)> {
        if let Err(error) = request.validate() {
            return Ok(Err(error));
        }
        if self.generation != fork::generation() {
            self.after_fork();
        }
        let now = self.look();
        let shape = request.shape();
        let choice = self.choose(&shape, now);
        let Some(station) = self.stations.get(choice.engine.index()) else {
            return Ok(Err(Error::Unsupported));
        };
        if !station.queued.contains(shape.kind) {
            return Ok(self.run_with_care(choice.engine, &shape, request));
        }
        let key = Arc::new(request.key.clone());
        let mut copy =
            OwnedRequest::new(shape.kind, key, request.data.input().to_vec(), request.data.output().len());
        copy.nonce = request.nonce.to_vec();
        copy.aad = request.aad.to_vec();
        copy.options = request.options;
        copy.class = request.class;
        if let Some(tag) = copy.tag.get_mut(..request.tag.len()) {
            tag.copy_from_slice(request.tag);
        }
        match self.enqueue(&choice, &shape, copy, now) {
            Ok(token) => Err((token, choice.engine)),
            Err((reason, _)) => Ok(self.elsewhere(choice.engine, reason, request)),
        }
    }

    /// Reads the clock and the weather.
    fn look(&mut self) -> Nanos {
        self.now = self.runtime.clock().now();
        if self.runtime.has_queues() {
            self.weather.idle_permille = self.idle.permille(self.now);
            self.weather.submitters = self.runtime.submitters();
            for (station, weather) in self.stations.iter_mut().zip(&mut self.weather.engines) {
                station.health.tick(self.now);
                weather.available = !station.health.quarantined();
            }
        }
        self.now
    }

    fn flush_due(&mut self, now: Nanos) {
        let all = self.everyone_waits();
        for index in 0..self.stations.len() {
            if all || self.stations[index].flush_by.is_some_and(|by| by <= now) {
                self.ring(EngineId(index as u8), now);
            }
        }
    }

    /// Moves held requests for as long as the policy asks for it.
    fn migrate(&mut self, now: Nanos) {
        let most = self.in_flight.len();
        for _ in 0..most {
            let Some(Migration { from, to }) = self.policy.migrate(&self.weather, now) else { return };
            if !self.migrate_one(&Migration { from, to }, now) {
                return;
            }
        }
    }

    /// Moves one held request that may move, the youngest, to another engine. What an engine has begun cannot be moved.
    fn migrate_one(&mut self, migration: &Migration, now: Nanos) -> bool {
        let Migration { from, to } = *migration;
        if to.index() >= self.stations.len() {
            return false;
        }
        let Some(station) = self.stations.get_mut(from.index()) else { return false };
        let Some(instance) = station.instance.as_mut() else { return false };
        // Held requests are the youngest: an instance hands everything older to the machine with each doorbell.
        let mut waiting: Vec<(Token, Shape)> = self
            .in_flight
            .iter()
            .filter(|(_, entry)| entry.engine == from && entry.is_door())
            .map(|(token, entry)| (token, entry.shape))
            .collect();
        waiting.sort_by_key(|(token, _)| std::cmp::Reverse(*token));
        waiting.truncate(instance.held() as usize);
        let mut movable = waiting.iter().filter(|(_, shape)| self.policy.may_move(shape, migration));
        let Some(token) = movable.next().map(|(token, _)| *token) else { return false };
        let before = self.in_flight.len();
        self.take_over(token, to, now);
        self.in_flight.len() < before
    }

    /// Takes what the instances have finished.
    fn collect(&mut self, now: Nanos) {
        for index in 0..self.stations.len() {
            let id = EngineId(index as u8);
            let Some(instance) = self.stations[index].instance.as_mut() else { continue };
            if instance.poll_all(now, &mut self.arrived) == 0 {
                continue;
            }
            self.count_in_flight(id);
            let (mut arrived, mut odd) = (mem::take(&mut self.arrived), mem::take(&mut self.odd));
            self.settle_plain(id, &mut arrived, &mut odd, now);
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
    fn settle_plain(
        &mut self,
        id: EngineId,
        arrived: &mut VecDeque<Completion>,
        odd: &mut Vec<usize>,
        now: Nanos,
    ) {
        let is_cpu = self.stations[id.index()].is_cpu;
        let mut at = 0;
        while let Some(cost) = arrived.get(at).map(|first| first.cost) {
            let alike =
                arrived.range(at..).take_while(|one| is_cpu && one.result.is_ok() && one.cost == cost);
            let Some((left, count)) = self.leave_run(alike.map(|one| one.token)) else {
                odd.push(at);
                at += 1;
                continue;
            };
            self.stations[id.index()].health.succeeded();
            self.count_done(id, &left, count, &cost, now);
            let latency_ns = now.saturating_sub(left.submitted_ns);
            for one in arrived.range_mut(at..at + count as usize) {
                one.cost = Cost { latency_ns, batch: cost.batch.max(1), ..cost };
            }
            at += count as usize;
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

    /// What to make of an instance's answer: believe it, check it, or have the CPU do the request.
    fn settle(&mut self, id: EngineId, completion: Completion, now: Nanos) {
        let Completion { token, mut request, result, cost } = completion;
        let Some(entry) = self.leave(token) else {
            tracing::error!(
                engine = self.name(id),
                "an instance answered twice; the second answer is dropped"
            );
            return;
        };
        if let Purpose::Test(expected) = &entry.purpose {
            let checker = self.runtime.cpu_engines(entry.shape.kind).next().unwrap_or(id);
            let checker = self.stations[checker.index()].engine.clone();
            let good = expected.verdict(&request, &result, &*checker).is_ok();
            let fault = result.err().filter(|error| matches!(error, Error::Device(_)));
            self.test_came_back(id, entry.shape.kind, good, fault.is_some(), now);
            match fault {
                Some(error) => self.failed(id, Reason::of(&error), now),
                None if !good => self.failed(id, Reason::WrongResult, now),
                None => {}
            }
            return;
        }
        let verdict = match result {
            Ok(len) => self.verify(id, &request, len).map(|()| len),
            Err(error) => Err(error),
        };
        let result = match verdict {
            Ok(len) => {
                if self.stations[id.index()].instance.is_some() {
                    self.stations[id.index()].health.succeeded();
                }
                self.count_done(id, &entry, 1, &cost, now);
                Ok(len)
            }
            Err(error) if self.stations[id.index()].is_cpu && !error.another_engine_may_help() => Err(error),
            Err(error) => {
                let reason = Reason::of(&error);
                if matches!(error, Error::Device(_)) {
                    self.failed(id, reason, now);
                }
                self.policy.observe(&entry.shape, &outcome(&entry, &cost, now, true), now);
                self.elsewhere(id, reason, &mut request.view())
            }
        };
        self.finish(token, &entry, request, result, cost, now);
    }

    /// Checks a share of the results of engines that are not the CPU, and every RSA result.
    fn verify(&mut self, id: EngineId, request: &OwnedRequest, len: usize) -> Result<(), Error> {
        if self.stations[id.index()].is_cpu {
            return Ok(());
        }
        if len > request.output.len() {
            return Err(Error::Device(Fault::WrongResult));
        }
        // An RSA result that is wrong gives the key away (Boneh, DeMillo, Lipton 1997): those are all checked.
        let always = request.kind.info().algorithm.modulus_len().is_some();
        if !always && !self.sampled() {
            return Ok(());
        }
        self.row.add_engine(id, EngineCounter::Verified, 1);
        for checker in self.runtime.cpu_engines(request.kind) {
            match self.stations[checker.index()].engine.check(request, len) {
                Err(Error::Unsupported) => {}
                Err(_) => return Err(Error::Device(Fault::WrongResult)),
                Ok(()) => return Ok(()),
            }
        }
        if always { Err(Error::Unsupported) } else { Ok(()) }
    }

    /// Whether this result is one of those to be checked. Pseudo-random (the multiplier is Knuth's, for MMIX), because
    /// counting would fall into step with whatever comes in turns: a record's cipher always, its MAC never.
    fn sampled(&mut self) -> bool {
        let one_in = self.runtime.verify_one_in();
        self.checks =
            self.checks.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        one_in > 0 && ((self.checks >> 32) * u64::from(one_in)) >> 32 == 0
    }

    /// Counts requests that the engine they were queued on has done, alike and together, and tells the policy.
    fn count_done(&mut self, id: EngineId, left: &Left, count: u32, cost: &Cost, now: Nanos) {
        let (kind, each) = (left.shape.kind, u64::from(count));
        self.row.done_together(id, kind, count, left.shape.bytes);
        self.row.add(id, kind, Counter::Timed, each);
        self.row.add(id, kind, Counter::TimedNs, each * now.saturating_sub(left.submitted_ns));
        self.row.add(id, kind, Counter::HeldNs, each * cost.held_ns);
        self.row.add(id, kind, Counter::BatchSum, each * u64::from(cost.batch.max(1)));
        self.count_energy(id, &left.shape, count, cost.energy_nj);
        self.policy.observe_together(&left.shape, &outcome(left, cost, now, false), count, now);
    }

    /// Counts the joules of requests: as their engine says of each, or else as the profile does.
    fn count_energy(&mut self, id: EngineId, shape: &Shape, count: u32, said: Option<u64>) {
        let station = &mut self.stations[id.index()];
        if said.is_none() && station.unmetered.contains(shape.kind) {
            return;
        }
        let energy_nj = said.unwrap_or_else(|| self.runtime.energy_nj(id, shape.kind, shape.bytes));
        if energy_nj == 0 && self.runtime.energy_nj(id, shape.kind, 1 << 30) == 0 {
            station.unmetered = station.unmetered.with(shape.kind);
        }
        self.row.add(id, shape.kind, Counter::EnergyNj, u64::from(count) * energy_nj);
    }

    fn finish(
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

    /// An engine failed a request. If that puts it into quarantine, its instance is stopped, and what it still had
    /// comes back through the same door as everything else.
    fn failed(&mut self, id: EngineId, reason: Reason, now: Nanos) {
        if !self.stations[id.index()].health.failed(reason, now) {
            return;
        }
        self.weather.engines[id.index()].available = false;
        self.row.add_engine(id, EngineCounter::Quarantines, 1);
        tracing::warn!(engine = self.name(id), reason = reason.name(), "quarantined");
        self.testing.retain(|test| test.engine != id);
        let station = &mut self.stations[id.index()];
        station.flush_by = None;
        station.forget_all();
        let Some(mut old) = station.instance.take() else { return };
        self.stopped_one = true;
        old.stop(now);
        let mut given_back = Vec::new();
        old.poll(now, &mut |completion| given_back.push(completion));
        drop(old);
        for completion in given_back {
            self.settle(id, completion, now);
        }
        self.count_in_flight(id);
    }

    /// Takes a request out of flight: `Some` exactly once.
    fn leave(&mut self, token: Token) -> Option<Left> {
        let left = self.in_flight.take(token)?;
        self.left(token, &left, 1);
        Some(left)
    }

    /// Takes a door's request out of flight, and those after it that came with it.
    fn leave_run(&mut self, mut tokens: impl Iterator<Item = Token> + Clone) -> Option<(Left, u32)> {
        let (left, count) = self.in_flight.take_run(tokens.clone())?;
        self.left(tokens.next()?, &left, count);
        Some((left, count))
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

    /// Keeps the weather's view of an engine's queue, and the gauge that others can read.
    fn count_in_flight(&mut self, id: EngineId) {
        let weather = &mut self.weather.engines[id.index()];
        let station = &mut self.stations[id.index()];
        let instance = station.instance.as_ref();
        weather.in_flight = instance.map_or(0, |instance| instance.in_flight());
        weather.held = instance.map_or(0, |instance| instance.held());
        if weather.held == 0 {
            station.flush_by = None;
        }
        self.row.in_flight(id, weather.in_flight);
    }

    fn name(&self, id: EngineId) -> &'static str {
        self.stations[id.index()].engine.description().name
    }

    /// In a child process: forget everything opened before the fork, without touching it.
    #[cold]
    fn after_fork(&mut self) {
        self.generation = fork::generation();
        for station in &mut self.stations {
            mem::forget(station.instance.take());
            station.flush_by = None;
            station.forget_all();
            station.health = Health::default();
        }
        mem::forget(mem::take(&mut self.in_flight));
        self.testing.clear();
        self.lone.fill(None);
        self.ready.clear();
        self.next_expiry = Nanos::MAX;
        for (weather, _) in self.weather.engines.iter_mut().zip(&self.stations) {
            *weather = EngineWeather { available: true, ..EngineWeather::default() };
        }
        self.row = self.runtime.row();
        self.streams = Streams::default();
    }
}

impl Drop for Dispatcher {
    /// Stops the instances; engines give their buffers back before they are freed. In a child of the process that
    /// opened them they are left alone.
    fn drop(&mut self) {
        self.runtime.submitter_left();
        let forked = self.generation != fork::generation();
        let now = self.runtime.clock().now();
        for instance in self.stations.iter_mut().filter_map(|station| station.instance.take()) {
            if forked {
                mem::forget(instance);
                continue;
            }
            let mut instance = instance;
            instance.stop(now);
            instance.poll(now, &mut |_| {});
        }
    }
}

impl Station {
    fn new(engine: &Arc<dyn Engine>) -> Station {
        let description = engine.description();
        let is_cpu = description.class.is_cpu();
        Station {
            engine: engine.clone(),
            health: Health::default(),
            instance: None,
            flush_by: None,
            is_cpu,
            width: description.width,
            is_lanes: is_cpu && description.width > 1,
            queued: description.queued,
            unmetered: KindSet::EMPTY,
            held: Vec::new(),
        }
    }

    /// What lanes hold of a kind.
    fn gathering(&self, kind: Kind) -> Option<&Gathering> {
        self.held.iter().find(|one| one.shape.kind == kind)
    }

    /// Lanes have taken a request in. They do a batch by themselves once it is full.
    fn note_held(&mut self, token: Token, shape: &Shape) {
        if !self.is_lanes {
            return;
        }
        let at = self.held.iter().position(|one| one.shape.kind == shape.kind).unwrap_or(self.held.len());
        if at == self.held.len() {
            self.held.push(Gathering { shape: *shape, first: token, count: 0 });
        }
        self.held[at].count += 1;
        if self.held[at].count >= self.width {
            self.held.remove(at);
        }
    }

    /// So many requests are no longer held, if they were: those of a kind that are held came after all others of it.
    fn forget(&mut self, first: Token, kind: Kind, count: u32) {
        let held = |one: &Gathering| one.shape.kind == kind && first >= one.first;
        if let Some(at) = self.held.iter().position(held) {
            self.held[at].count = self.held[at].count.saturating_sub(count as u16);
            if self.held[at].count == 0 {
                self.held.remove(at);
            }
        }
    }

    fn forget_all(&mut self) {
        self.held.clear();
    }

    /// Requests held that a request of this kind would share a pass with.
    fn held_alike(&self, kind: Kind) -> u32 {
        if self.is_lanes {
            return self.gathering(kind).map_or(0, |one| u32::from(one.count));
        }
        self.instance.as_ref().map_or(0, |instance| instance.held())
    }

    fn flush(&mut self, now: Nanos) {
        self.flush_by = None;
        self.forget_all();
        if let Some(instance) = self.instance.as_mut().filter(|instance| instance.held() > 0) {
            instance.flush(now);
        }
    }
}

/// Whether another engine can be given the identical request: not if one that failed midway may have overwritten its
/// input. An engine that declines (no such kind, no room) has touched nothing.
fn may_repeat(error: &Error, request: &Request<'_>) -> bool {
    let midway = matches!(error, Error::Device(_)) && matches!(request.data, Data::InPlace(_));
    error.another_engine_may_help() && !midway
}

/// What a policy learns of a request.
fn outcome(left: &Left, cost: &Cost, now: Nanos, failed: bool) -> Outcome {
    Outcome {
        engine: left.engine,
        latency_ns: now.saturating_sub(left.submitted_ns),
        held_ns: cost.held_ns,
        batch: cost.batch.max(1),
        depth: left.depth,
        energy_nj: cost.energy_nj,
        failed,
    }
}

/// Copies a completion's result into the borrowed request it was made from.
fn deliver(completion: &Completion, request: &mut Request<'_>) -> Result<usize, Error> {
    let len = completion.result?;
    let from = completion.request.output.get(..len).ok_or(Error::Device(Fault::WrongResult))?;
    let output = match &mut request.data {
        Data::InPlace(buffer) => &mut **buffer,
        Data::Apart { to, .. } => &mut **to,
    };
    output.get_mut(..len).ok_or(Error::Device(Fault::WrongResult))?.copy_from_slice(from);
    let tag = completion.request.tag.get(..request.tag.len()).ok_or(Error::Device(Fault::WrongResult))?;
    request.tag.copy_from_slice(tag);
    Ok(len)
}

/// How a blocked caller waits: a few spins for what is nearly there, then yields, then short sleeps.
#[derive(Default)]
struct Patience(u32);

impl Patience {
    fn wait(&mut self) {
        self.0 += 1;
        match self.0 {
            0..32 => std::hint::spin_loop(),
            32..64 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(u64::from(self.0.min(264) - 63) / 4 + 5)),
        }
    }
}
