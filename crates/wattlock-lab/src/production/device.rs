//! The device of a scene: what it does with its time ([`Machine`]), and an engine that takes that time.
#![allow(clippy::unwrap_used, reason = "a scene that cannot go on has failed")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use wattlock_core::{
    Completion, Cost, Description, Engine, EngineClass, Error, Instance, Kind, Nanos, OwnedRequest, Refused,
    Request, Token, Window,
};
use wattlock_cpu::instruction::Instruction;

use super::stage::{self, Behind};
use super::{HandClock, MORE_BYTES, Mine, Times};
use crate::sim::stream::Station;
use crate::sim::{Card, Gpu, Random};

/// What a device does with its time. Requests have numbers.
pub trait Machine: Send {
    /// Takes a request; may let the submitter wait for room, by its clock.
    fn take(&mut self, clock: &HandClock, number: u64, kind: Kind, bytes: u64);
    /// What is done by then, in order.
    fn done(&mut self, now: Nanos) -> Vec<u64>;
    /// When something happens next.
    fn next(&self) -> Option<Nanos>;
}

impl Machine for Card {
    fn take(&mut self, clock: &HandClock, number: u64, kind: Kind, bytes: u64) {
        self.submit(clock.now(), number, kind, bytes).unwrap();
    }

    fn done(&mut self, now: Nanos) -> Vec<u64> {
        let mut all = Vec::new();
        self.advance(now, &mut |one| all.push(one.id));
        all
    }

    fn next(&self) -> Option<Nanos> {
        self.next_event()
    }
}

/// A GPU that a job is dealt out to: the dealer waits for room.
pub struct JobGpu {
    gpu: Gpu,
    window: usize,
    pieces: VecDeque<(u64, Nanos)>,
}

impl JobGpu {
    /// A GPU that has so many pieces at most.
    pub fn new(gpu: Gpu, window: usize) -> JobGpu {
        JobGpu { gpu, window, pieces: VecDeque::new() }
    }
}

impl Machine for JobGpu {
    fn take(&mut self, clock: &HandClock, number: u64, _: Kind, bytes: u64) {
        let busy: Vec<Nanos> =
            self.pieces.iter().map(|piece| piece.1).filter(|done| *done > clock.now()).collect();
        if busy.len() >= self.window {
            clock.reach(busy[busy.len() - self.window]);
        }
        let piece = self.gpu.submit(clock.now(), bytes as f64);
        self.pieces.push_back((number, piece.done));
    }

    fn done(&mut self, now: Nanos) -> Vec<u64> {
        let count = self.pieces.iter().take_while(|piece| piece.1 <= now).count();
        self.pieces.drain(..count).map(|piece| piece.0).collect()
    }

    fn next(&self) -> Option<Nanos> {
        self.pieces.front().map(|piece| piece.1)
    }
}

/// A GPU that takes all messages that wait as one window, at the clock last named, whenever a stream is free; and the
/// ring before it.
pub struct StreamGpu {
    station: Station,
    /// The GPU.
    pub gpu: Gpu,
    /// Bytes in the ring.
    pub fill: u64,
    waiting: Vec<(u64, u64)>,
    /// Under way: when each is copied in, while it still fills the ring, and when it is done.
    windows: VecDeque<Passing>,
    stall: (Nanos, Nanos),
    stalls: Random,
    /// The clock that the policy named last, and the one to rest at.
    pub(super) named: Option<usize>,
    pub(super) resting: Option<usize>,
    idle_since: Option<Nanos>,
    at: Nanos,
    finished: Vec<u64>,
}

/// A window under way.
type Passing = (Option<Nanos>, Nanos, Vec<(u64, u64)>);

const REST_NS: Nanos = 5_000_000;

impl StreamGpu {
    /// The GPU of a station.
    pub fn new(station: &Station, seed: u64) -> StreamGpu {
        let mut new = StreamGpu {
            station: station.clone(),
            gpu: Gpu::new(station.gpu.clone()),
            fill: 0,
            waiting: Vec::new(),
            windows: VecDeque::new(),
            stall: (0, 0),
            stalls: Random::new(seed ^ 0x57a1_1000),
            named: None,
            resting: None,
            idle_since: Some(0),
            at: 0,
            finished: Vec::new(),
        };
        new.next_stall(0);
        new
    }

    fn next_stall(&mut self, after: Nanos) {
        let gap = self.stalls.exponential(1e9 / self.station.stalls_per_s);
        let from = after + gap as Nanos + 1;
        self.stall = (from, from + self.station.stall_ns as Nanos);
    }

    /// Begins a window if there is something to begin, a stream for it, and nothing stalls.
    fn begin(&mut self) {
        if self.waiting.is_empty() || self.windows.len() >= self.station.gpu.streams.max(1) {
            return;
        }
        while self.at >= self.stall.1 {
            self.next_stall(self.stall.1);
        }
        if self.at >= self.stall.0 {
            return;
        }
        if let Some(step) = self.named {
            self.gpu.set_clock(self.at, step);
        }
        let window = std::mem::take(&mut self.waiting);
        let bytes: u64 = window.iter().map(|one| one.1).sum();
        let piece = self.gpu.submit(self.at, bytes as f64);
        self.windows.push_back((Some(piece.copied_in), piece.done, window));
        self.idle_since = None;
    }

    fn next_at(&self) -> Option<Nanos> {
        let copied = self.windows.iter().filter_map(|window| window.0).min();
        let done = self.windows.front().map(|window| window.1);
        let may_begin = self.windows.len() < self.station.gpu.streams.max(1) && !self.waiting.is_empty();
        let stalled = may_begin.then_some(self.stall.1).filter(|_| self.at >= self.stall.0);
        let rest = self.idle_since.filter(|_| self.resting.is_some()).map(|since| since + REST_NS);
        copied.into_iter().chain(done).chain(stalled).chain(rest).min()
    }

    fn pass_time(&mut self, now: Nanos) {
        while let Some(at) = self.next_at().filter(|at| *at <= now) {
            self.at = self.at.max(at);
            for (copied, _, window) in &mut self.windows {
                if copied.is_some_and(|copied| copied <= at) {
                    *copied = None;
                    self.fill -= window.iter().map(|one| one.1).sum::<u64>();
                }
            }
            if self.windows.front().is_some_and(|window| window.1 <= at) {
                let (_, _, window) = self.windows.pop_front().unwrap();
                self.finished.extend(window.into_iter().map(|one| one.0));
            }
            self.begin();
            let is_idle = self.windows.is_empty() && self.waiting.is_empty();
            match self.idle_since {
                Some(since) if since + REST_NS <= at => {
                    self.gpu.set_clock(at, self.resting.unwrap());
                    (self.resting, self.idle_since) = (None, None);
                }
                None if is_idle => self.idle_since = Some(at),
                _ => {}
            }
        }
        self.at = self.at.max(now);
    }
}

impl Machine for Arc<Mutex<StreamGpu>> {
    fn take(&mut self, clock: &HandClock, number: u64, _: Kind, bytes: u64) {
        let mut gpu = self.lock().unwrap();
        gpu.pass_time(clock.now());
        gpu.waiting.push((number, bytes));
        gpu.begin();
    }

    fn done(&mut self, now: Nanos) -> Vec<u64> {
        let mut gpu = self.lock().unwrap();
        gpu.pass_time(now);
        std::mem::take(&mut gpu.finished)
    }

    fn next(&self) -> Option<Nanos> {
        self.lock().unwrap().next_at()
    }
}

/// A device that takes a machine's time.
pub(super) struct Answering {
    description: Description,
    window: Window,
    state: Arc<Mutex<State>>,
}

/// What its instances share.
pub struct State {
    /// What it does with its time.
    pub machine: Box<dyn Machine>,
    mine: Arc<Mine>,
    clock: HandClock,
    /// What handing one over costs the thread.
    call: Times,
    taken: BTreeMap<u64, (Token, OwnedRequest)>,
    numbers: u64,
    /// Of threads on a stage: handed over, not paid for yet.
    coming: Vec<(usize, u64, Kind, u64)>,
    finished: Vec<u64>,
}

impl State {
    pub(super) fn new(machine: Box<dyn Machine>, mine: Arc<Mine>, clock: HandClock, call: Times) -> State {
        let (taken, coming, finished) = (BTreeMap::new(), Vec::new(), Vec::new());
        State { machine, mine, clock, call, taken, numbers: 0, coming, finished }
    }

    fn pass(&mut self, now: Nanos) {
        let done = self.machine.done(now);
        self.finished.extend(done);
    }
}

/// Does a request, which may be a run.
fn computed(compute: &Instruction, request: &mut Request<'_>) -> Result<usize, Error> {
    if request.run.is_none() {
        return compute.execute(request);
    }
    let mut items = request.items();
    items.iter_mut().for_each(|item| item.result = compute.execute(&mut item.request));
    let results: Vec<_> = items.into_iter().map(|item| item.result).collect();
    request.conclude(&results)
}

/// The device as a stage has it.
pub(super) struct OnStage(pub(super) Arc<Mutex<State>>);

impl Behind for OnStage {
    fn next(&self) -> Option<Nanos> {
        self.0.lock().unwrap().machine.next()
    }

    fn pass(&self, now: Nanos) {
        self.0.lock().unwrap().pass(now);
    }

    fn arrive(&self, thread: usize, now: Nanos) {
        let state = &mut *self.0.lock().unwrap();
        assert_eq!(state.clock.now(), now);
        for (_, number, kind, bytes) in state.coming.extract_if(.., |one| one.0 == thread) {
            state.machine.take(&state.clock, number, kind, bytes);
        }
    }
}

impl Answering {
    pub(super) fn new(description: Description, window: Window, state: Arc<Mutex<State>>) -> Answering {
        Answering { description, window, state }
    }
}

impl Engine for Answering {
    fn description(&self) -> &Description {
        &self.description
    }

    fn window(&self) -> Window {
        self.window
    }

    fn takes_runs(&self, kind: Kind, _: usize) -> bool {
        self.description.class == EngineClass::Gpu && self.description.queued.contains(kind)
    }

    fn open(&self, _: Nanos) -> Result<Box<dyn Instance>, Error> {
        let (state, window) = (self.state.clone(), self.window);
        Ok(Box::new(Queue {
            state,
            window,
            compute: Instruction::new(),
            held: Vec::new(),
            tests: Vec::new(),
        }))
    }
}

struct Queue {
    state: Arc<Mutex<State>>,
    window: Window,
    compute: Instruction,
    held: Vec<(Token, OwnedRequest)>,
    tests: Vec<(Token, OwnedRequest)>,
}

impl Instance for Queue {
    fn window(&self) -> Window {
        self.window
    }

    fn in_flight(&self) -> u32 {
        (self.held.len() + self.tests.len() + self.state.lock().unwrap().taken.len()) as u32
    }

    fn held(&self) -> u32 {
        (self.held.len() + self.state.lock().unwrap().coming.len()) as u32
    }

    fn submit(&mut self, token: Token, request: OwnedRequest, _: Nanos) -> Result<(), Refused> {
        if self.in_flight() >= self.window.requests {
            return Err(Refused { error: Error::Full, request });
        }
        match self.state.lock().unwrap().mine.has(request.kind, &request.key, request.input.len()) {
            true => self.held.push((token, request)),
            false => self.tests.push((token, request)),
        }
        Ok(())
    }

    fn flush(&mut self, _: Nanos) {
        let state = &mut *self.state.lock().unwrap();
        for (token, request) in self.held.drain(..) {
            let (kind, bytes) = (request.kind, request.input.len() + MORE_BYTES.replace(0));
            state.clock.advance((state.call)(kind, bytes));
            match stage::me() {
                Some(thread) => state.coming.push((thread, state.numbers, kind, bytes as u64)),
                None => state.machine.take(&state.clock, state.numbers, kind, bytes as u64),
            }
            state.taken.insert(state.numbers, (token, request));
            state.numbers += 1;
        }
    }

    fn poll(&mut self, now: Nanos, done: &mut dyn FnMut(Completion)) -> usize {
        let mut count = self.tests.len();
        for (token, mut request) in self.tests.drain(..) {
            let result = self.compute.execute(&mut request.view());
            done(Completion { token, request, result, cost: Cost::default() });
        }
        let state = &mut *self.state.lock().unwrap();
        state.pass(now);
        for number in state.finished.drain(..) {
            let (token, mut request) = state.taken.remove(&number).unwrap();
            let result = match state.mine.computes() {
                true => computed(&self.compute, &mut request.view()),
                false => Ok(request.output.len()),
            };
            done(Completion { token, request, result, cost: Cost { batch: 1, ..Cost::default() } });
            count += 1;
        }
        stage::looked(count == 0);
        count
    }

    fn withdraw(&mut self, token: Token, _: Nanos) -> Option<OwnedRequest> {
        let at = self.held.iter().position(|held| held.0 == token)?;
        Some(self.held.remove(at).1)
    }

    fn stop(&mut self, _: Nanos) {}
}
