//! The load that changes from request to request, and a policy's answers.

use wattlock_core::{Kind, Nanos, Shape};

use crate::machine::{EngineId, MAX_ENGINES};
use crate::split::{Job, Side, Split};

/// One engine's present state, as the deciding thread sees it.
#[derive(Debug, Clone, Copy, Default)]
pub struct EngineWeather {
    /// Not in quarantine. The engine need not be open or have given its known answers: the runtime starts both when a
    /// policy first names the engine, and the CPU does that request.
    pub available: bool,
    /// Requests in flight, held ones and other threads' included.
    pub in_flight: u32,
    /// Of these, the ones that are not the deciding thread's.
    pub others: u32,
    /// Their input bytes.
    pub in_flight_bytes: u64,
    /// Requests in flight that the machine does not have yet.
    pub held: u32,
    /// Requests that may be in flight at once; 0 while that is unknown, before the engine is opened.
    pub window: u32,
    /// Input bytes that may be in flight at once, likewise; the fill level is `in_flight_bytes / window_bytes`.
    pub window_bytes: u64,
}

impl EngineWeather {
    /// The deciding thread's requests in flight.
    pub fn own(&self) -> u32 {
        self.in_flight.saturating_sub(self.others)
    }

    /// Whether one request more, of so many bytes, may be in flight.
    pub fn has_room(&self, bytes: usize) -> bool {
        let all = self.in_flight_bytes.saturating_add(bytes as u64);
        (self.window == 0 || self.in_flight < self.window)
            && (self.window_bytes == 0 || all <= self.window_bytes)
    }

    /// Whether so many bytes are more than its window ever has room for.
    pub fn never_fits(&self, bytes: usize) -> bool {
        self.window_bytes > 0 && bytes as u64 > self.window_bytes
    }
}

/// The state of things when a choice is made.
#[derive(Debug, Clone, Copy, Default)]
pub struct Weather {
    /// By engine id; entries beyond the machine's engines are not available.
    pub engines: [EngineWeather; MAX_ENGINES],
    /// Share of CPU time that is idle, in thousandths.
    pub idle_permille: u16,
    /// Threads that submit at the same time, this one included.
    pub submitters: u16,
    /// Files, or whatever a door does several operations on at a time, that had an operation lately
    /// ([`wattlock_core::recent`]). The submitters, if no door says.
    pub files: u16,
    /// Connections (or files, or streams) that a door has open and not idle; 0 if the door does not say.
    pub active: u32,
}

impl Weather {
    /// The deciding thread's requests in flight over all engines.
    pub fn in_flight(&self) -> u32 {
        self.engines.iter().map(EngineWeather::own).sum()
    }
}

/// One of the clock pairs an engine supports, 0 the lowest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClockStep(pub u8);

/// One question to a policy: requests of one shape that are in the caller's hands. Nobody else will join them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// What one of them looks like.
    pub shape: Shape,
    /// How many there are, at least 1.
    pub count: u32,
    /// Input bytes of the whole operation that they are part of: of all chunks of a write, and not of one chunk only.
    pub bytes: usize,
    /// Whether the caller can wait for a completion. If not, the engine must finish inside the call.
    pub may_wait: bool,
}

impl Ask {
    /// One request by itself, whose caller can wait for its completion.
    pub const fn one(shape: Shape) -> Ask {
        Ask { shape, count: 1, bytes: shape.bytes, may_wait: true }
    }

    /// One request by itself that must be done when the call returns.
    pub const fn inline(shape: Shape) -> Ask {
        Ask { may_wait: false, ..Ask::one(shape) }
    }
}

/// A policy's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The engine. It can do the kind and is available, if any such engine exists.
    pub engine: EngineId,
    /// How many of them it does, 1 to [`Ask::count`]: together in a pass, or one after the other where it has no width.
    /// The policy is asked again about the rest.
    pub count: u32,
    /// The clock that the engine should run at, if the policy has a preference.
    pub clock: Option<ClockStep>,
}

impl Choice {
    /// One request on this engine, at whatever clock.
    pub const fn now(engine: EngineId) -> Choice {
        Choice { engine, count: 1, clock: None }
    }

    /// All of them.
    pub const fn all(engine: EngineId, ask: &Ask) -> Choice {
        Choice { count: ask.count, ..Choice::now(engine) }
    }
}

/// What became of a request, or of the requests of one pass, for a policy that learns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// The engine that did it.
    pub engine: EngineId,
    /// From submission to completion, in nanoseconds.
    pub latency_ns: Nanos,
    /// Of that, the time it was held.
    pub held_ns: Nanos,
    /// Requests that shared the pass, which are told of once, or the doorbell, which are told of one by one.
    pub batch: u16,
    /// Requests in flight on that engine when it was submitted, itself included.
    pub depth: u32,
    /// Nanojoules, if known.
    pub energy_nj: Option<u64>,
    /// Whether the engine failed and the request fell back to another.
    pub failed: bool,
}

/// What is left of an operation whose pieces a device was given, when a side asks for some of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rest {
    /// The device.
    pub device: EngineId,
    /// What is done with a piece.
    pub kind: Kind,
    /// Pieces of the operation in all.
    pub pieces: u32,
    /// Pieces that nobody has begun, at least 1.
    pub free: u32,
    /// Pieces that the device has.
    pub out: u32,
    /// Input bytes of a piece.
    pub bytes: usize,
}

/// The claims of rules by which a device does alone what it was given.
pub(crate) fn alone(side: Side, rest: &Rest) -> u32 {
    match side {
        Side::Device => rest.free,
        Side::Cpu => 0,
    }
}

/// Chooses engines. Each deciding thread has its own. A policy holds no lock, reads no clock and changes nothing
/// outside itself.
pub trait Policy: Send {
    /// Its published or given name.
    fn name(&self) -> &'static str;

    /// Which engine does these requests in this weather, or the first of them. Never an engine that cannot do the kind,
    /// or not inside the call if the caller cannot wait; never one that is not available while another is. Allocates
    /// nothing after the first question about a kind.
    fn choose(&mut self, ask: &Ask, weather: &Weather, now: Nanos) -> Choice;

    /// How many of an operation's pieces that nobody has begun a side may take now: the device, or a thread that would
    /// otherwise wait for it. Both take from the same pieces, so taking one is a migration, either way. Asked again whenever
    /// the weather may have changed. A device leaves where it is what its window has no room for.
    ///
    /// By default the device takes all, and a thread one at a time while the device has no room.
    fn claim(&self, side: Side, rest: &Rest, weather: &Weather) -> u32 {
        match side {
            Side::Device => rest.free,
            Side::Cpu => u32::from(!weather.engines[rest.device.index()].has_room(rest.bytes)),
        }
    }

    /// This thread looks for devices' answers, so many nanoseconds after it last did, or after it slept in a call that
    /// waits for them. What it finds is observed next.
    fn looked(&mut self, after_ns: Nanos) {
        let _ = after_ns;
    }

    /// The clock at which an engine should rest after a few milliseconds with nothing in flight. The next
    /// [`Choice::clock`] names the clock to work at. `None`: no change.
    fn rest(&self, engine: EngineId) -> Option<ClockStep> {
        let _ = engine;
        None
    }

    /// How one large job is shared between the CPU and a device. `None`: it is not, and its requests are asked about as
    /// they come.
    fn split(&self, job: &Job) -> Option<Split> {
        let _ = job;
        None
    }

    /// What became of a request, or of the requests of one pass.
    fn observe(&mut self, shape: &Shape, outcome: &Outcome, now: Nanos) {
        let _ = (shape, outcome, now);
    }

    /// An engine could not do a request inside the call that it was named for. That says nothing of its speed, nor of
    /// other requests.
    fn left_undone(&mut self, shape: &Shape, engine: EngineId) {
        let _ = (shape, engine);
    }
}
