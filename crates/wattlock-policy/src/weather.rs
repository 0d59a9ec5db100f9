//! The load that changes from request to request, and a policy's answers.

use wattlock_core::{Nanos, Shape};

use crate::machine::{EngineId, MAX_ENGINES};

/// One engine's present state, as the deciding thread sees it.
#[derive(Debug, Clone, Copy, Default)]
pub struct EngineWeather {
    /// Not in quarantine. The engine need not be open or have given its known answers: the runtime starts both when a
    /// policy first names the engine, and the CPU does that request.
    pub available: bool,
    /// Requests in flight, held ones included.
    pub in_flight: u32,
    /// Their input bytes.
    pub in_flight_bytes: u64,
    /// Requests in flight that the machine does not have yet.
    pub held: u32,
    /// Held requests that would share a pass with the request in question: for lanes, those of its kind.
    pub held_alike: u32,
    /// Public-key operations in flight.
    pub asymmetric: u32,
    /// Input bytes that may be in flight at once; the fill level is `in_flight_bytes / window_bytes`.
    pub window_bytes: u64,
}

/// The state of things when a choice is made.
#[derive(Debug, Clone, Copy, Default)]
pub struct Weather {
    /// By engine id; entries beyond the machine's engines are not available.
    pub engines: [EngineWeather; MAX_ENGINES],
    /// Share of CPU time that is idle, in thousandths.
    pub idle_permille: u16,
    /// Threads or processes that submit at the same time, this one included.
    pub submitters: u16,
    /// Connections (or files, or streams) that a door has open and not idle; 0 if the door does not say.
    pub active: u32,
}

impl Weather {
    /// Requests in flight over all engines.
    pub fn in_flight(&self) -> u32 {
        self.engines.iter().map(|engine| engine.in_flight).sum()
    }

    /// Public-key operations in flight over all engines.
    pub fn asymmetric(&self) -> u32 {
        self.engines.iter().map(|engine| engine.asymmetric).sum()
    }
}

/// One of the clock pairs an engine supports, 0 the lowest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClockStep(pub u8);

/// A policy's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The engine. It can do the kind and is available, if any such engine exists.
    pub engine: EngineId,
    /// Longest hold for batch-mates from now, in nanoseconds; 0 for an engine that finishes inside the call.
    pub hold_ns: Nanos,
    /// The clock that the engine should run at, if the policy has a preference.
    pub clock: Option<ClockStep>,
    /// How many more requests of this shape may join the same batch without a question to the policy.
    /// [`Policy::joined`] reports how many did. 0: the policy is asked for each.
    pub alike: u16,
}

impl Choice {
    /// This engine, at once, at any clock.
    pub const fn now(engine: EngineId) -> Choice {
        Choice { engine, hold_ns: 0, clock: None, alike: 0 }
    }
}

/// A request waiting (held) on one engine should move to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migration {
    /// The engine that holds it.
    pub from: EngineId,
    /// The engine that should do it.
    pub to: EngineId,
}

/// A request's outcome, for a policy that learns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// The engine that did it.
    pub engine: EngineId,
    /// From submission to completion, in nanoseconds.
    pub latency_ns: Nanos,
    /// Of that, the time it was held.
    pub held_ns: Nanos,
    /// Requests that shared the doorbell.
    pub batch: u16,
    /// Requests in flight on that engine when it was submitted, itself included.
    pub depth: u32,
    /// Nanojoules, if known.
    pub energy_nj: Option<u64>,
    /// Whether the engine failed and the request fell back to another.
    pub failed: bool,
}

/// Chooses engines. Each deciding thread has its own. A policy holds no lock, reads no clock and changes nothing
/// outside itself.
pub trait Policy: Send {
    /// Its published or given name.
    fn name(&self) -> &'static str;

    /// The engine for a request of this shape in this weather. Never an engine that cannot do the kind; never an
    /// unavailable engine while an available one can.
    fn choose(&mut self, shape: &Shape, weather: &Weather, now: Nanos) -> Choice;

    /// `count` requests of this shape have joined the batch of the last choice without a question ([`Choice::alike`]).
    /// Called before the policy is asked about another request of the kind.
    fn joined(&mut self, shape: &Shape, count: u16) {
        let _ = (shape, count);
    }

    /// The caller has `count` (at least 1) requests of this shape, and no other request will join them. Returns the
    /// engine for the next of them and how many it takes, 1 to `count`. Lanes take them in one pass; an engine that
    /// works inside the call takes them one after the other. `None`: [`Policy::choose`] is asked for each.
    fn choose_together(
        &mut self,
        shape: &Shape,
        count: u32,
        weather: &Weather,
        now: Nanos,
    ) -> Option<(EngineId, u32)> {
        let _ = (shape, count, weather, now);
        None
    }

    /// The engine for a request of this shape that must finish inside the call. Never an engine that does not do the
    /// kind inline.
    fn choose_inline(&mut self, shape: &Shape, weather: &Weather, now: Nanos) -> EngineId;

    /// Whether one held request should move, in this weather. Called when the weather changes while requests are
    /// held; repeated until `None`.
    fn migrate(&mut self, weather: &Weather, now: Nanos) -> Option<Migration> {
        let _ = (weather, now);
        None
    }

    /// Whether a held request of this shape may make that move. [`Policy::migrate`] sees only how many are held. A rule
    /// that moves only some sizes decides here, and so does one whose target cannot do the kind.
    fn may_move(&self, shape: &Shape, migration: &Migration) -> bool {
        let _ = (shape, migration);
        true
    }

    /// A partial batch of lanes is about to run: `count` requests of this shape's kind. Returns the engine that should
    /// do them one by one, inside the call, instead. `None`: the batch runs.
    fn take_over(
        &mut self,
        shape: &Shape,
        lanes: EngineId,
        count: u32,
        weather: &Weather,
    ) -> Option<EngineId> {
        let _ = (shape, lanes, count, weather);
        None
    }

    /// Whether it is time to poll for completions.
    fn poll_due(&mut self, weather: &Weather, now: Nanos) -> bool {
        let _ = now;
        weather.in_flight() > 0
    }

    /// The clock at which an engine should rest after a few milliseconds with nothing in flight. The next
    /// [`Choice::clock`] names the clock to work at. `None`: no change.
    fn rest(&self, engine: EngineId) -> Option<ClockStep> {
        let _ = engine;
        None
    }

    /// Reports a request's outcome.
    fn observe(&mut self, shape: &Shape, outcome: &Outcome, now: Nanos) {
        let _ = (shape, outcome, now);
    }

    /// Reports `count` requests that went together and ended alike. The outcome's depth is that of the first; each of
    /// the others was one deeper.
    fn observe_together(&mut self, shape: &Shape, outcome: &Outcome, count: u32, now: Nanos) {
        for nth in 0..count {
            self.observe(shape, &Outcome { depth: outcome.depth + nth, ..*outcome }, now);
        }
    }
}
