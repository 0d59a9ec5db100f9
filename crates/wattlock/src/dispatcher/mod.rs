//! One thread's way into the runtime: which engine does a request, and what happens when it does not.
//!
//! A dispatcher owns everything it touches on a request's way (policy state, instances, in-flight table, a row of
//! counters), so no call takes a lock but for devices, which threads share. Rules:
//!
//! 1. CPU engines are calls: work for them is done when the call returns, on the caller's thread and buffers, without a
//!    copy or a token. Tokens, holding, expiry and sampling exist for engines that answer later.
//! 2. Every submitted request is handed back exactly once: by [`Dispatcher::submit`] at once, by a later
//!    [`Dispatcher::poll`], or by [`Dispatcher::cancel`].
//! 3. An engine does a kind only after passing that kind's known-answer tests here.
//! 4. Whatever goes wrong in an engine, the request is repeated, identical, by a CPU engine in `fall_back`; nothing
//!    else falls back. A door sees such a fault as latency only, with two exceptions where repeating would need an input that
//!    no longer exists: an inline engine that failed midway in place, and an instance that kept what it took.
//! 5. What an engine that is not the CPU says about a request (rejected, forged) is not believed unless the CPU says
//!    so too, and a share of its good results is checked. Of the CPU's own results signatures are checked if the runtime
//!    was told so ([`crate::Builder::verify_signatures`]).
//! 6. After a fork nothing opened before is used. Requests in flight then belong to the parent, which completes them;
//!    the child forgets them.
//!
//! A request's way through the files:
//!
//! - `inline`: one request inside the call, and `fall_back`.
//! - `batch`: borrowed requests that are in the caller's hands, several in one call.
//! - `submit`: requests that can wait, and the way into an engine's instance.
//! - `operation`: the pieces of operations that a device was given, claimed by it and by the thread that waits.
//! - `part`: what a call knows of the larger operation, and where the step before was done.
//! - `doorbell`: when what instances hold goes.
//! - `collect`: what comes back, and what does not.
//! - `settle`: whether an answer is believed, and what of it is counted and learned.
//! - `prove`: instances opened, and their known-answer tests.
//! - `stream`: messages in pieces. `station`: one engine as one dispatcher has it.

mod batch;
mod collect;
mod doorbell;
mod inline;
mod operation;
mod part;
mod prove;
mod settle;
mod station;
mod stream;
mod submit;

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use wattlock_core::{Completion, Kind, KindSet, Nanos, OwnedRequest, Part, Token};
use wattlock_policy::{EngineId, EngineWeather, Policy, Weather};

use crate::device::Handle;
use crate::health::Health;
use crate::inflight::InFlight;
use crate::runtime::{Inner, Plan};
use crate::sys::fork;
use crate::telemetry::Row;
use crate::weather::IdleShare;
use part::Did;
use prove::Testing;
use station::Station;
use stream::Streams;

/// What became of a submission.
#[derive(Debug)]
pub enum Submitted {
    /// It is done already; [`Dispatcher::poll`] will not mention it again.
    Done(Completion),
    /// It will come out of [`Dispatcher::poll`] under this token.
    Pending(Token),
}

/// One thread's way in. `Send`, but used by one thread at a time; make one per thread, they are cheap (a few
/// kilobytes) and open nothing until a policy first names an engine with queues.
pub struct Dispatcher {
    runtime: Arc<Inner>,
    policy: Box<dyn Policy>,
    /// The same rule for questions of what may not come, from which it learns nothing; made by the first one.
    hypothetical: Option<Box<dyn Policy>>,
    weather: Weather,
    stations: Vec<Station>,
    in_flight: InFlight,
    testing: Vec<Testing>,
    /// Done, not yet handed out.
    ready: VecDeque<Completion>,
    /// Scratch for one poll.
    arrived: Vec<Completion>,
    /// How long the request that is being submitted, or done inside the call, was held before.
    held_before_ns: Nanos,
    /// What the requests of this call are a part of, and where those that are done by now were done.
    part: Part,
    did: Did,
    /// The queue pair that took the last submission.
    last_pair: u8,
    idle: IdleShare,
    row: Row,
    streams: Streams,
    generation: u32,
    /// What the policy was made of.
    plan: Arc<Plan>,
    /// This thread's number, if it has one.
    thread: Option<u16>,
    /// Requests inside the call until one is timed.
    until_timed: u32,
    /// State of the generator that picks which results are checked, and which requests are timed.
    checks: u64,
    /// Kinds of which the CPU's own results are checked, too.
    verified: KindSet,
    now: Nanos,
    /// When this thread last looked for devices' answers, or could have.
    looked_at: Nanos,
    /// No entry's time is up before this.
    next_expiry: Nanos,
    /// An instance was stopped and may have kept something; looked into at the end of the next poll.
    stopped_one: bool,
}

impl Dispatcher {
    pub(crate) fn new(runtime: Arc<Inner>, thread: Option<u16>) -> Dispatcher {
        let plan = runtime.plan();
        let policy = plan.policy(runtime.machine(), thread);
        let stations: Vec<Station> = runtime.engines().iter().map(Station::new).collect();
        let mut weather = Weather { submitters: 1, files: 1, ..Weather::default() };
        for (engine, _) in weather.engines.iter_mut().zip(&stations) {
            engine.available = true;
        }
        let row = runtime.row();
        runtime.submitter_came();
        Dispatcher {
            policy,
            hypothetical: None,
            weather,
            stations,
            in_flight: InFlight::default(),
            testing: Vec::new(),
            ready: VecDeque::new(),
            arrived: Vec::new(),
            held_before_ns: 0,
            part: Part::default(),
            did: Did::default(),
            last_pair: 0,
            idle: IdleShare::default(),
            row,
            streams: Streams::default(),
            generation: fork::generation(),
            plan,
            thread,
            until_timed: 0,
            checks: 0,
            verified: runtime.verified(),
            now: runtime.clock().now(),
            looked_at: runtime.clock().now(),
            next_expiry: Nanos::MAX,
            stopped_one: false,
            runtime,
        }
    }

    /// Requests of a kind that an engine has done for this dispatcher, and for those that had its row of counters before:
    /// what a call adds is what it did. Many dispatchers share the last row.
    pub fn done_by(&self, engine: usize, kind: Kind) -> u64 {
        self.row.requests(EngineId(engine as u8), kind)
    }

    /// Requests of doors in flight; tests of the runtime's own are not counted.
    pub fn in_flight(&self) -> usize {
        self.doors_in_flight() + self.ready.len()
    }

    /// Takes a request back. `None` if it is not in flight (it completed, or never was). What the engine already has
    /// of it stays with the engine until it answers.
    pub fn cancel(&mut self, token: Token) -> Option<OwnedRequest> {
        self.keep_up();
        if let Some(at) = self.ready.iter().position(|completion| completion.token == token) {
            return self.ready.remove(at).map(|completion| completion.request);
        }
        let id = self.in_flight.get(token)?.engine;
        let request = self.stations[id.index()].instance.as_mut()?.withdraw(token, self.now)?;
        self.leave(token);
        self.count_in_flight(id);
        Some(request)
    }

    /// Reads the clock and the weather.
    fn look(&mut self) -> Nanos {
        self.now = self.runtime.clock().now();
        let away = |station: &Station| station.health.quarantined();
        if self.runtime.has_queues() || self.stations.iter().any(away) {
            // Only what devices do depends on it, and looking opens files.
            if self.runtime.has_queues() {
                self.weather.idle_permille = self.idle.permille(self.now);
            }
            self.weather.submitters = self.runtime.submitters();
            self.weather.files = self.runtime.files(self.now);
            for (station, weather) in self.stations.iter_mut().zip(&mut self.weather.engines) {
                station.health.tick(self.now);
                weather.available = !station.health.quarantined();
                // Other threads use it, too.
                see(weather, station.instance.as_ref());
            }
        }
        self.now
    }

    /// Cores that this process could use beside the caller's, by the time since the last look, at most ten times a
    /// second: those that are idle and those that it uses itself. None at the first look. Doors that could use other
    /// cores ask this.
    pub fn idle_cores(&mut self) -> usize {
        self.idle.cores(self.runtime.clock().now(), self.runtime.machine().cores.into())
    }

    /// Notices a fork, and other settings.
    #[inline]
    fn keep_up(&mut self) {
        if self.generation != fork::generation() {
            self.after_fork();
        }
        if self.plan.is_over() {
            self.after_change();
        }
    }

    /// Other settings are in force: a new policy decides from here on.
    #[cold]
    fn after_change(&mut self) {
        self.plan = self.plan.last();
        self.policy = self.plan.policy(self.runtime.machine(), self.thread);
        self.hypothetical = None;
        self.streams = Streams::default();
    }

    /// Keeps the weather's view of an engine's queue, and the gauge that others can read.
    fn count_in_flight(&mut self, id: EngineId) {
        let instance = self.stations[id.index()].instance.as_ref();
        see(&mut self.weather.engines[id.index()], instance);
        self.row.in_flight(id, instance.map_or(0, Handle::own));
    }

    /// Requests of doors that instances have: everything in flight but the runtime's own tests.
    fn doors_in_flight(&self) -> usize {
        let tests: u32 = self.testing.iter().map(|test| test.in_flight).sum();
        self.in_flight.len().saturating_sub(tests as usize)
    }

    fn in_flight_on(&self, id: EngineId) -> u32 {
        self.in_flight.iter().filter(|(_, entry)| entry.engine == id).count() as u32
    }

    /// Requests that were withdrawn from an engine, and that it has not let go for as long as it may take for one.
    fn hostages(&self, id: EngineId) -> u32 {
        let before = self.now.saturating_sub(self.runtime.give_up_after_ns());
        self.stations[id.index()].instance.as_ref().map_or(0, |instance| instance.hostages(before))
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
            station.health = Health::default();
        }
        mem::forget(mem::take(&mut self.in_flight));
        self.testing.clear();
        self.ready.clear();
        self.next_expiry = Nanos::MAX;
        for (weather, _) in self.weather.engines.iter_mut().zip(&self.stations) {
            *weather = EngineWeather { available: true, ..EngineWeather::default() };
        }
        self.row = self.runtime.row();
        self.streams = Streams::default();
    }
}

/// What a thread sees of a device that all share.
fn see(weather: &mut EngineWeather, instance: Option<&Handle>) {
    weather.in_flight = instance.map_or(0, Handle::in_flight);
    weather.others = weather.in_flight.saturating_sub(instance.map_or(0, Handle::own));
    weather.in_flight_bytes = instance.map_or(0, Handle::in_flight_bytes);
    weather.held = instance.map_or(0, Handle::held);
    if let Some(window) = instance.map(Handle::window) {
        // A GPU's is known once its context is up.
        (weather.window, weather.window_bytes) = (window.requests, window.bytes);
    }
}

impl Drop for Dispatcher {
    /// Withdraws what instances have. In a child of the process that opened them they are left alone.
    fn drop(&mut self) {
        self.runtime.submitter_left();
        if self.generation != fork::generation() {
            self.stations.iter_mut().for_each(|station| mem::forget(station.instance.take()));
        }
    }
}
