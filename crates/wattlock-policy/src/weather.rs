//! What changes from request to request, and what a policy answers.

use wattlock_core::{Nanos, Shape};

use crate::machine::{EngineId, MAX_ENGINES};

/// One engine's present state, as the deciding thread sees it.
#[derive(Debug, Clone, Copy, Default)]
pub struct EngineWeather {
    /// Not in quarantine. Whether it is open and has proved a kind is the runtime's to see to: it starts both when a
    /// policy first names the engine, and has the CPU do that request.
    pub available: bool,
    /// Requests in flight, held ones included.
    pub in_flight: u32,
    /// Their input bytes.
    pub in_flight_bytes: u64,
    /// Of the requests in flight, those not yet handed to the machine.
    pub held: u32,
    /// Of those held, the ones that would share a pass with the request in question: for lanes, those of its kind.
    pub held_alike: u32,
    /// Of the requests in flight, public-key operations.
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
    /// Threads or processes that submit at the same time, the asker included.
    pub submitters: u16,
    /// Connections (or files, or streams) a door has open and not idle; 0 where the door does not say.
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
    /// Who does it. Always an engine that can do the kind and is available, if there is one.
    pub engine: EngineId,
    /// How long it may be held for company from now, in nanoseconds; 0 for an engine that finishes inside the call.
    pub hold_ns: Nanos,
    /// Which clock the engine should run at, where a policy has an opinion.
    pub clock: Option<ClockStep>,
    /// So many more requests of this very shape may follow it unasked, into the batch that it waits in and no other;
    /// [`Policy::joined`] says how many did. 0: each is to be asked for.
    pub alike: u16,
}

impl Choice {
    /// This engine, at once, at whatever clock.
    pub const fn now(engine: EngineId) -> Choice {
        Choice { engine, hold_ns: 0, clock: None, alike: 0 }
    }
}

/// A request waiting (held) on one engine should move to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migration {
    /// Where it waits.
    pub from: EngineId,
    /// Who should do it.
    pub to: EngineId,
}

/// What became of a request, for a policy that learns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Who did it.
    pub engine: EngineId,
    /// From submission to completion, in nanoseconds.
    pub latency_ns: Nanos,
    /// Of that, the time it was held.
    pub held_ns: Nanos,
    /// Requests that shared the doorbell.
    pub batch: u16,
    /// Requests in flight on that engine when it was submitted, itself included.
    pub depth: u32,
    /// Nanojoules, where known.
    pub energy_nj: Option<u64>,
    /// Whether the engine failed and somebody else had to do it.
    pub failed: bool,
}

/// Chooses engines. One per deciding thread; holds no lock, reads no clock, touches nothing outside itself.
pub trait Policy: Send {
    /// Its published or given name.
    fn name(&self) -> &'static str;

    /// Who does a request of this shape in this weather. Never an engine that cannot do the kind; never one that is
    /// not available while another is.
    fn choose(&mut self, shape: &Shape, weather: &Weather, now: Nanos) -> Choice;

    /// So many requests of this shape have followed the last choice for one into its batch unasked ([`Choice::alike`]).
    /// Called before the policy is asked for another of its kind.
    fn joined(&mut self, shape: &Shape, count: u16) {
        let _ = (shape, count);
    }

    /// `count` (at least 1) requests of this shape are in the caller's hands and nobody else will join them: who does
    /// the next of them, and how many, 1 to `count`: lanes together, an engine that works inside the call one after the
    /// other. `None`: each is to be asked for by [`Policy::choose`].
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

    /// Who does a request of this shape if it must finish inside the call (nobody can wait for a completion). Never
    /// an engine that does not do the kind inline.
    fn choose_inline(&mut self, shape: &Shape, weather: &Weather, now: Nanos) -> EngineId;

    /// Whether one held request should move, in this weather. Called when the weather changes while requests are
    /// held; repeated until `None`.
    fn migrate(&mut self, weather: &Weather, now: Nanos) -> Option<Migration> {
        let _ = (weather, now);
        None
    }

    /// Whether a held request of this shape may make that move. [`Policy::migrate`] sees only how many are held; a
    /// rule that moves some sizes and not others, or an engine that cannot do the kind, is answered here.
    fn may_move(&self, shape: &Shape, migration: &Migration) -> bool {
        let _ = (shape, migration);
        true
    }

    /// A batch of lanes is about to go, `count` requests of this shape's kind: who should do them one by one, inside
    /// the call, instead? `None` to let them go.
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

    /// The clock an engine should rest at that has had nothing in flight for a few milliseconds. The next
    /// [`Choice::clock`] says what to work at. `None`: leave it.
    fn rest(&self, engine: EngineId) -> Option<ClockStep> {
        let _ = engine;
        None
    }

    /// What became of a request.
    fn observe(&mut self, shape: &Shape, outcome: &Outcome, now: Nanos) {
        let _ = (shape, outcome, now);
    }

    /// What became of `count` requests that went together and ended alike; the outcome's depth is the first one's, and
    /// each of the others was one deeper.
    fn observe_together(&mut self, shape: &Shape, outcome: &Outcome, count: u32, now: Nanos) {
        for nth in 0..count {
            self.observe(shape, &Outcome { depth: outcome.depth + nth, ..*outcome }, now);
        }
    }
}
