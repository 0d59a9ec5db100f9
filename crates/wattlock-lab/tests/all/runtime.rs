//! One scene a paper through the production runtime, beside the paper's simulator: the runtime's dispatchers with their
//! known-answer tests, operations, claims and looks, on a clock that moves where a thread would spend time, over a CPU and
//! a device that take the simulator's times and answer without computing. Both must come to the same rate within 2 %.
//!
//! Clients of a closed system are threads that call `Dispatcher::run_all`, as the threads of `mount` and `seal` do, several
//! of them on each of several cores (`stage`). An event loop does what the provider's seat does: `submit_to_device` at each
//! operation, and a look when `Gather::turn` says so.
//!
//! A scene's policy is the study's own object, told what the study's policies are told. The device's kinds prove
//! themselves by real known answers.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use wattlock::{Clock, Dispatcher, Profile, Runtime, Submitted};
use wattlock_core::recent::Mark;
use wattlock_core::{
    Completion, Cost, Description, Engine, EngineClass, Error, Instance, Item, Key, Kind, KindSet,
    LatencyClass, Nanos, OwnedRequest, Refused, Request, Shape, Token, Window, known_answers,
};
use wattlock_cpu::instruction::Instruction;
use wattlock_lab::papers::{aca_sds, eeca, eep, lecpaes, qweb};
use wattlock_lab::sim::event_loop::{Load, Offload, Server, Step};
use wattlock_lab::sim::stream::{Message, Station, pass};
use wattlock_lab::sim::{Card, Closed, Gpu, Random, event_loop};
use wattlock_policy::{
    Ask, Choice, EngineId, Flight, Gather, Machine as Known, Moment, Next, Outcome, Policy, Rest, Side,
    Weather,
};

use crate::stage::{self, Behind, Stage};

/// A clock that is moved by hand, or by a stage.
#[derive(Clone, Default)]
struct HandClock(Arc<AtomicU64>);

impl HandClock {
    fn now(&self) -> Nanos {
        self.0.load(Ordering::Relaxed)
    }

    fn advance(&self, ns: f64) {
        match stage::me() {
            Some(_) => stage::owe(ns),
            None => _ = self.0.fetch_add(ns.round() as Nanos, Ordering::Relaxed),
        }
    }

    /// Later, if it is.
    fn reach(&self, at: Nanos) {
        self.0.fetch_max(at, Ordering::Relaxed);
    }
}

/// Requests of the door: one template a kind, under keys of its own.
struct Door(Vec<OwnedRequest>);

impl Door {
    fn new(kinds: &[Kind], class: LatencyClass) -> Arc<Door> {
        let template = |kind: &Kind| {
            let mut request = known_answers(*kind).swap_remove(0).request;
            request.key = Arc::new((*request.key).clone());
            request.class = class;
            request
        };
        Arc::new(Door(kinds.iter().map(template).collect()))
    }

    fn is_mine(&self, key: &Key) -> bool {
        // Copies of a key share its material.
        self.0.iter().any(|template| std::ptr::eq(template.key.material(), key.material()))
    }

    fn request(&self, kind: Kind, bytes: usize, mark: u64) -> OwnedRequest {
        let template = self.0.iter().find(|template| template.kind == kind).unwrap();
        let (mut input, mut room) = (template.input.clone(), template.output.len());
        if kind.info().output.is_none() {
            (input, room) = (vec![0; bytes], bytes.max(room));
        }
        let mut request = OwnedRequest::new(kind, template.key.clone(), input, room);
        request.nonce = template.nonce.clone();
        (request.mark, request.class) = (mark, template.class);
        request
    }
}

/// Nanoseconds of a request, by what it is.
type Times = Box<dyn FnMut(Kind, usize) -> f64 + Send>;

/// A CPU whose time is the simulator's, and which computes known answers only.
struct Costed {
    description: Description,
    compute: Instruction,
    door: Arc<Door>,
    clock: HandClock,
    times: Mutex<Times>,
}

impl Engine for Costed {
    fn description(&self) -> &Description {
        &self.description
    }

    fn execute(&self, request: &mut Request<'_>) -> Result<usize, Error> {
        if !self.door.is_mine(request.key) {
            return self.compute.execute(request);
        }
        self.clock.advance(self.times.lock().unwrap()(request.kind, request.data.len()));
        Ok(request.data.output().len())
    }

    fn check(&self, request: &OwnedRequest, len: usize) -> Result<(), Error> {
        if self.door.is_mine(&request.key) { Ok(()) } else { self.compute.check(request, len) }
    }
}

/// What a device does with its time. Requests have numbers.
trait Machine: Send {
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
struct JobGpu {
    gpu: Gpu,
    window: usize,
    pieces: VecDeque<(u64, Nanos)>,
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
struct StreamGpu {
    station: Station,
    gpu: Gpu,
    fill: u64,
    waiting: Vec<(u64, u64)>,
    /// Under way: when each is copied in, while it still fills the ring, and when it is done.
    windows: VecDeque<Passing>,
    stall: (Nanos, Nanos),
    stalls: Random,
    named: Option<usize>,
    resting: Option<usize>,
    idle_since: Option<Nanos>,
    at: Nanos,
    finished: Vec<u64>,
}

/// A window under way.
type Passing = (Option<Nanos>, Nanos, Vec<(u64, u64)>);

const REST_NS: Nanos = 5_000_000;

impl StreamGpu {
    fn new(station: &Station, seed: u64) -> StreamGpu {
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

/// A device that takes a machine's time and answers without computing, except for known answers.
struct Answering {
    description: Description,
    window: Window,
    state: Arc<Mutex<State>>,
}

struct State {
    machine: Box<dyn Machine>,
    door: Arc<Door>,
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
    fn pass(&mut self, now: Nanos) {
        let done = self.machine.done(now);
        self.finished.extend(done);
    }
}

/// The device as a stage has it.
struct OnStage(Arc<Mutex<State>>);

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

impl Engine for Answering {
    fn description(&self) -> &Description {
        &self.description
    }

    fn window(&self) -> Window {
        self.window
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
        match self.state.lock().unwrap().door.is_mine(&request.key) {
            true => self.held.push((token, request)),
            false => self.tests.push((token, request)),
        }
        Ok(())
    }

    fn flush(&mut self, _: Nanos) {
        let state = &mut *self.state.lock().unwrap();
        for (token, request) in self.held.drain(..) {
            let (kind, bytes) = (request.kind, request.input.len());
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
            let (token, request) = state.taken.remove(&number).unwrap();
            let result = Ok(request.output.len());
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

/// What the study's policies are told that one thread of one runtime does not see: the block a page belongs to, the other
/// processes, how many are active, and the idle share of the simulated CPU instead of this machine's.
struct Told {
    policy: Box<dyn Policy>,
    bytes: Option<usize>,
    submitters: u16,
    told: Arc<Facts>,
    stage: Option<Arc<Stage>>,
    stream: Option<Arc<Mutex<StreamGpu>>>,
}

thread_local! {
    /// The calling thread's device has to give its known answers; the policy is not asked, and learns nothing.
    static PROVES: Cell<bool> = const { Cell::new(false) };
}

/// Facts that change while a scene runs.
#[derive(Default)]
struct Facts {
    /// Clients that are not idle; 0 if the door does not say.
    active: AtomicU64,
    /// Pieces that devices and threads claimed of operations.
    claims: [AtomicU64; 2],
}

impl Told {
    fn weather(&self, weather: &Weather) -> Weather {
        let idle_permille = self.stage.as_ref().map_or(0, |stage| stage.idle_permille());
        let active = (self.told.active.load(Ordering::Relaxed) as u32).max(weather.active);
        let mut told = Weather { submitters: self.submitters, active, idle_permille, ..*weather };
        if let Some(stream) = &self.stream {
            // The ring is the door's: room in it is free once the GPU has copied it in, not when the answer is there.
            told.engines[1].in_flight_bytes = stream.lock().unwrap().fill;
        }
        told
    }
}

impl Policy for Told {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn choose(&mut self, ask: &Ask, weather: &Weather, now: Nanos) -> Choice {
        if PROVES.get() {
            return Choice::now(EngineId(u8::from(ask.may_wait)));
        }
        let ask = Ask { bytes: self.bytes.unwrap_or(ask.bytes), ..*ask };
        let choice = self.policy.choose(&ask, &self.weather(weather), now);
        if let Some(stream) = &self.stream {
            let mut stream = stream.lock().unwrap();
            stream.named = choice.clock.map(|step| usize::from(step.0)).or(stream.named);
            stream.resting = self.policy.rest(choice.engine).map(|step| usize::from(step.0));
        }
        choice
    }

    fn claim(&self, side: Side, rest: &Rest, weather: &Weather) -> u32 {
        let claimed = self.policy.claim(side, rest, &self.weather(weather));
        self.told.claims[usize::from(side == Side::Cpu)].fetch_add(claimed.into(), Ordering::Relaxed);
        claimed
    }

    fn observe(&mut self, shape: &Shape, outcome: &Outcome, now: Nanos) {
        if PROVES.get() {
            return;
        }
        self.policy.observe(shape, outcome, now);
    }

    fn left_undone(&mut self, shape: &Shape, engine: EngineId) {
        self.policy.left_undone(shape, engine);
    }
}

/// The production runtime over a CPU (engine 0) and a device (engine 1).
struct Scene {
    clock: HandClock,
    door: Arc<Door>,
    state: Arc<Mutex<State>>,
    told: Arc<Facts>,
    runtime: Runtime,
}

struct Parts {
    kinds: Vec<Kind>,
    class: LatencyClass,
    /// For each thread.
    policies: Vec<Box<dyn Policy>>,
    told_bytes: Option<usize>,
    submitters: u16,
    times: Times,
    call: Times,
    machine: Box<dyn Machine>,
    device: EngineClass,
    window: Window,
    clock: HandClock,
    stage: Option<Arc<Stage>>,
    stream: Option<Arc<Mutex<StreamGpu>>>,
}

impl Scene {
    fn new(parts: Parts) -> Scene {
        let Parts { kinds, class, policies, told_bytes: bytes, submitters, times, call, machine, .. } = parts;
        let Parts { device, window, clock, stage, stream, .. } = parts;
        let door = Door::new(&kinds, class);
        let compute = Instruction::new();
        let description = compute.description().clone();
        let (times, of_cpu) = (Mutex::new(times), clock.clone());
        let cpu =
            Costed { description: description.clone(), compute, door: door.clone(), clock: of_cpu, times };
        let state = Arc::new(Mutex::new(State {
            machine,
            door: door.clone(),
            clock: clock.clone(),
            call,
            taken: BTreeMap::new(),
            numbers: 0,
            coming: Vec::new(),
            finished: Vec::new(),
        }));
        if let Some(stage) = &stage {
            stage.behind(Arc::new(OnStage(state.clone())));
        }
        let (inline, queued) = (KindSet::EMPTY, KindSet::of(&kinds));
        let description = Description { name: "answering", class: device, inline, queued, ..description };
        let device = Answering { description, window, state: state.clone() };
        let engines: Vec<Arc<dyn Engine>> = vec![Arc::new(cpu), Arc::new(device)];
        let told = Arc::new(Facts::default());
        let policies = Mutex::new(policies.into_iter().map(Some).collect::<Vec<_>>());
        let (facts, on_stage) = (told.clone(), stage.clone());
        let policy = move |_: &Known| -> Box<dyn Policy> {
            let policy =
                policies.lock().unwrap()[stage::me().unwrap_or(0)].take().expect("one dispatcher a thread");
            let (told, stage) = (facts.clone(), stage.clone());
            Box::new(Told { policy, bytes, submitters, told, stage, stream: stream.clone() })
        };
        let of_runtime = clock.clone();
        let runtime = Runtime::builder()
            .profile(Profile::empty(&engines))
            .engines(engines)
            .own_policy("scene", policy)
            .clock(Clock::given(move || match &on_stage {
                Some(stage) => stage.read(),
                None => of_runtime.now(),
            }))
            .give_up_after_ns(1 << 50)
            .telemetry(false)
            .build()
            .unwrap();
        Scene { clock, door, state, told, runtime }
    }
}

/// The only thread of a scene.
struct Thread {
    scene: Scene,
    dispatcher: Dispatcher,
}

impl std::ops::Deref for Thread {
    type Target = Scene;

    fn deref(&self) -> &Scene {
        &self.scene
    }
}

impl Thread {
    fn new(parts: Parts) -> Thread {
        let scene = Scene::new(parts);
        let dispatcher = scene.runtime.dispatcher();
        Thread { scene, dispatcher }
    }

    fn poll(&mut self) -> Vec<OwnedRequest> {
        let mut done = Vec::new();
        self.dispatcher.poll(&mut |completion| {
            completion.result.unwrap();
            done.push(completion.request);
        });
        done
    }

    /// Sleeps until the device has something, or until then.
    fn sleep(&mut self, until: Option<Nanos>, late_ns: f64) {
        let device = self.state.lock().unwrap().machine.next();
        let device = device.map(|at| at + late_ns as Nanos);
        let now = self.clock.now();
        let next = device.into_iter().chain(until).min();
        self.clock.reach(next.expect("something will happen").max(now + 1));
    }
}

/// Nobody expects two of a kind to be closer than the simulator's own chance.
fn agree(scene: &str, simulated: f64, production: f64) {
    agree_within(0.02, scene, simulated, production);
}

fn agree_within(share: f64, scene: &str, simulated: f64, production: f64) {
    let apart = production / simulated - 1.0;
    println!("{scene}: simulator {simulated:.1}, production {production:.1}, {:+.2} %", 100.0 * apart);
    assert!(apart.abs() <= share, "{scene}: simulator {simulated}, production {production}");
}

/// What became of a closed system: rounds a second after the warm-up, and the pieces that devices and threads claimed.
struct Ran {
    rounds_per_s: f64,
    claims: [u64; 2],
}

/// A closed system whose clients are threads of the production runtime. Each does its own work, then all that it has in hand
/// in one call, until the round is over.
fn closed_through_the_runtime(system: Closed<'_>) -> Ran {
    let Closed { cores, policies, clients, kind, own_ns, rounds, in_hand, told_bytes, .. } = system;
    let Closed { inline, card: (_, card), jitter, seed, warm, measured, .. } = system;
    let whole = |bytes: usize| bytes / kind.info().multiple * kind.info().multiple;
    let bytes = rounds.iter().flatten().map(|bytes| (whole(*bytes), inline[0].1(*bytes)));
    let times: HashMap<usize, f64> = bytes.collect();
    let dice = Arc::new(Mutex::new(Random::new(seed)));
    let vary = move |ns: f64| ns * (1.0 + jitter * (2.0 * dice.lock().unwrap().unit() - 1.0));
    let (of_cpu, of_call, call, window) = (vary.clone(), vary.clone(), card.call_ns(), card.model().window);
    let clock = HandClock::default();
    let stage = Arc::new(Stage::new(cores, clients.clone(), clock.0.clone()));
    let scene = Scene::new(Parts {
        kinds: vec![kind],
        class: LatencyClass::Stream,
        policies,
        told_bytes,
        submitters: clients.len() as u16,
        times: Box::new(move |_, bytes| of_cpu(times[&bytes])),
        call: Box::new(move |_, _| of_call(call)),
        machine: Box::new(card),
        device: EngineClass::Accelerator,
        window,
        clock,
        stage: Some(stage.clone()),
        stream: None,
    });
    let (done, start, end) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let client = |thread: usize| {
        let _all_or_none = Together;
        stage.enter(thread);
        let (mut dispatcher, file) = (scene.runtime.dispatcher(), Mark::default());
        // A runtime that has proved its device begins; the study's begins with one that has.
        let mut first = scene.door.request(kind, whole(*rounds.iter().flatten().next().unwrap()), 0);
        PROVES.set(true);
        for _ in 0..3 {
            dispatcher.run_all(&mut [Item::new(first.view())]);
            stage::looked(false);
        }
        PROVES.set(false);
        let mut round = thread;
        let mut buffers: HashMap<usize, OwnedRequest> = HashMap::new();
        while done.load(Ordering::Relaxed) < warm + measured {
            let operating = scene.runtime.operates_on(&file);
            if own_ns > 0.0 {
                stage.burst(vary(own_ns));
            }
            let plan = &rounds[round % rounds.len()];
            for first in (0..plan.len()).step_by(in_hand) {
                let pieces = first..plan.len().min(first + in_hand);
                for piece in pieces.clone() {
                    let bytes = whole(plan[piece]);
                    buffers.entry(piece).or_insert_with(|| scene.door.request(kind, bytes, 0));
                }
                let mut requests: Vec<&mut OwnedRequest> = buffers
                    .iter_mut()
                    .filter(|(piece, _)| pieces.contains(piece))
                    .map(|(_, request)| request)
                    .collect();
                requests.sort_by_key(|request| std::cmp::Reverse(request.input.len()));
                let mut items: Vec<Item<'_>> = requests.iter_mut().map(|one| Item::new(one.view())).collect();
                dispatcher.run_all(&mut items);
                assert!(items.iter().all(|item| item.result.is_ok()));
                stage::looked(false);
            }
            drop(operating);
            round += 1;
            match done.fetch_add(1, Ordering::Relaxed) + 1 {
                count if count == warm => start.store(scene.clock.now(), Ordering::Relaxed),
                count if count == warm + measured => end.store(scene.clock.now(), Ordering::Relaxed),
                _ => {}
            }
        }
        drop(dispatcher);
        stage.leave();
    };
    std::thread::scope(|threads| {
        let client = &client;
        (0..clients.len()).for_each(|thread| _ = threads.spawn(move || client(thread)));
    });
    let ns = end.into_inner() - start.into_inner();
    let claims = [0, 1].map(|side: usize| scene.told.claims[side].load(Ordering::Relaxed));
    Ran { rounds_per_s: measured as f64 * 1e9 / ns as f64, claims }
}

/// A thread that panics would leave the others waiting for ever.
struct Together;

impl Drop for Together {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// On several cores only the published rules are held against the simulator. `adaptive` takes what all threads have on a
/// device for answers that its own thread will delay (`maturing` in its `costs.rs`), so that each does what the others do: whichever
/// engine some thread happens to use first is everybody's, in one of the two this and in the other that.
const CORES: [usize; 2] = [1, 3];

#[test]
fn eeca_in_production_is_what_its_simulator_says() {
    for (cores, policy) in [(CORES[0], "eeca"), (CORES[0], "adaptive"), (CORES[1], "eeca")] {
        let options = eeca::Options { cores, ..Default::default() };
        for kib in [4.0, 64.0, 256.0] {
            let simulated = eeca::scene(&options, kib, policy, |system| system.run().rounds_per_s).unwrap();
            let production = eeca::scene(&options, kib, policy, closed_through_the_runtime).unwrap();
            agree(&format!("eeca, {policy}, {cores} cores, {kib} KiB"), simulated, production.rounds_per_s);
            let [device, cpu] = production.claims;
            assert!(policy == "adaptive" || kib < 256.0 || (device > 0 && cpu > 0), "{device} {cpu}");
        }
    }
}

#[test]
fn aca_sds_in_production_is_what_its_simulator_says() {
    let run = |cores, processes, whole_writes, policy| {
        let options = aca_sds::Options { cores, whole_writes, alpha: Some(1), ..Default::default() };
        // Long enough for the idle share to go up and down often.
        fn longer(system: Closed<'_>) -> Closed<'_> {
            Closed { measured: 4 * system.measured, ..system }
        }
        let scene = |run: fn(Closed<'_>) -> Ran| {
            aca_sds::scene(&options, 64.0, processes, policy, |system| run(longer(system))).unwrap()
        };
        let simulator = |system: Closed<'_>| Ran { rounds_per_s: system.run().rounds_per_s, claims: [0; 2] };
        let (simulated, production) = (scene(simulator), scene(closed_through_the_runtime));
        let name = format!("aca-sds, {policy}, {processes} on {cores} cores, whole writes: {whole_writes}");
        // Where the CPU takes part, the idle share goes up and down around M, each time at another moment.
        let share = if whole_writes && processes <= cores { 0.08 } else { 0.02 };
        agree_within(share, &name, simulated.rounds_per_s, production.rounds_per_s);
        production.claims
    };
    run(1, 12, false, "adaptive");
    for (cores, processes) in [(1, 12), (4, 12), (4, 4), (8, 12)] {
        let [device, _] = run(cores, processes, false, "aca-sds");
        assert!(device > 0, "{cores} {processes}");
    }
    for (cores, processes) in [(1, 12), (4, 12), (4, 4), (8, 12)] {
        let [device, cpu] = run(cores, processes, true, "aca-sds");
        assert!(device > 0 && (processes > 4 || cpu > 0), "a thread that waits takes part: {device} {cpu}");
    }
}

#[test]
fn eep_in_production_is_what_its_simulator_says() {
    const MEGABYTES: f64 = 100.0;
    let options = eep::Options::default();
    for name in ["eep", "adaptive"] {
        let (node, step, mut policy) = eep::scene(&options, name).unwrap();
        let simulated = eep::split(&node, MEGABYTES, step, policy.as_mut()).seconds;
        let (node, step, policy) = eep::scene(&options, name).unwrap();
        let mut gpu = Gpu::new(node.gpu.clone());
        gpu.set_clock(0, step);
        let (window, rate) = (2 * node.gpu.streams, node.cpu_bytes_per_s);
        let mut thread = Thread::new(Parts {
            kinds: vec![Kind::Aes128Ctr],
            class: LatencyClass::Bulk,
            policies: vec![policy],
            told_bytes: None,
            submitters: 1,
            times: Box::new(move |_, bytes| bytes as f64 * 1e9 / rate),
            call: Box::new(|_, _| 0.0),
            machine: Box::new(JobGpu { gpu, window, pieces: VecDeque::new() }),
            device: EngineClass::Gpu,
            window: Window { requests: window as u32 + 1, bytes: (window as f64 * node.chunk) as u64 },
            clock: HandClock::default(),
            stage: None,
            stream: None,
        });
        // A runtime that has proved its device begins the job; the study's begins with one that has.
        thread.dispatcher.submit(thread.door.request(Kind::Aes128Ctr, 16, 0));
        thread.poll();
        let (start, mut left) = (thread.clock.now(), (MEGABYTES * 1e6_f64).round() as usize);
        let mut spare = Vec::new();
        while left > 0 {
            let bytes = left.min(node.chunk as usize);
            left -= bytes;
            spare.extend(thread.poll());
            let fits = spare.pop().filter(|one: &OwnedRequest| one.input.len() == bytes);
            let request = fits.unwrap_or_else(|| thread.door.request(Kind::Aes128Ctr, bytes, 0));
            if let Submitted::Done(completion) = thread.dispatcher.submit(request) {
                spare.push(completion.request);
            }
        }
        while thread.dispatcher.in_flight() > 0 {
            thread.sleep(None, 0.0);
            thread.poll();
        }
        let seconds = (thread.clock.now() - start) as f64 / 1e9;
        agree(&format!("eep, {name}"), simulated, seconds);
    }
}

/// One event loop: connections a second by their mean latency, as the simulator counts.
fn loop_through_the_runtime(server: &Server, load: &Load, policy: Box<dyn Policy>) -> f64 {
    let steps = load.scripts[0].steps.clone();
    let requests = steps.iter().filter_map(|step| match *step {
        Step::Request { kind, software_ns, .. } => Some((kind, software_ns)),
        _ => None,
    });
    let software: HashMap<usize, f64> = requests.clone().map(|(kind, ns)| (kind.index(), ns)).collect();
    let mut kinds: Vec<Kind> = requests.map(|(kind, _)| kind).collect();
    kinds.sort_by_key(|kind| kind.index());
    kinds.dedup();
    let costs = server.costs;
    let mut thread = Thread::new(Parts {
        kinds,
        class: LatencyClass::Interactive,
        policies: vec![policy],
        told_bytes: None,
        submitters: 1,
        times: Box::new(move |kind, _| software[&kind.index()]),
        call: Box::new(move |_, _| costs.submit_ns),
        machine: Box::new(Card::new(server.card.clone(), 0.0, None)),
        device: EngineClass::Accelerator,
        window: server.card.window,
        clock: HandClock::default(),
        stage: None,
        stream: None,
    });
    #[derive(Clone, Default)]
    struct Connection {
        at: usize,
        began: Option<Nanos>,
        debt_ns: f64,
    }
    let mut all = vec![Connection::default(); load.connections];
    let (mut timers, mut serial) = (BinaryHeap::new(), 0u64);
    let mut random = Random::new(load.seed);
    for connection in 0..all.len() {
        timers.push(Reverse((random.between(0.0, 1e6) as Nanos, serial, connection)));
        serial += 1;
    }
    let Offload::InLoop(rule) = server.offload else { panic!("a loop that polls") };
    let mut gather = Gather::new(&Known::default(), rule, None, false);
    let (mut ready, mut active) = (VecDeque::new(), 0u32);
    let (mut turn_left, mut goes_on, mut submitted) = (0, false, false);
    let (mut in_flight, mut asymmetric) = (0u32, 0u32);
    let (mut finished, mut latency_ns) = (0, 0.0);
    while finished < load.warm_up + load.measured {
        let now = thread.clock.now();
        while let Some(Reverse((at, _, connection))) = timers.peek().copied().filter(|one| one.0.0 <= now) {
            timers.pop();
            if all[connection].began.is_none() {
                all[connection].began = Some(at);
                active += 1;
            }
            ready.push_back(connection);
        }
        thread.told.active.store(u64::from(active), Ordering::Relaxed);
        // As the seat's `turn`, which nginx calls at each operation and behind a turn's events. Looks of a loop with nothing
        // else to do that would find nothing are left out.
        let has_answers = thread.state.lock().unwrap().machine.next().is_some_and(|at| at <= now);
        let over = !goes_on && turn_left == 0;
        if std::mem::take(&mut submitted) || over {
            let moment = if over { Moment::Quiet } else { Moment::Call };
            if over {
                turn_left = ready.len();
            }
            let flight =
                Flight { in_flight, asymmetric, active, busy: active, asked: true, ..Flight::default() };
            let may_find = !ready.is_empty() || has_answers;
            let next = may_find.then(|| gather.turn(std::iter::empty(), &flight, (moment, 0), now));
            if matches!(next, Some(Next::Poll | Next::Go(_))) {
                thread.clock.advance(costs.poll_ns);
                for request in thread.poll() {
                    let connection = request.mark as usize;
                    in_flight -= 1;
                    asymmetric -= u32::from(request.kind.is_asymmetric());
                    all[connection].at += 1;
                    all[connection].debt_ns += costs.take_ns + costs.notify_ns + costs.resume_ns;
                    ready.push_back(connection);
                }
                turn_left = ready.len();
                if turn_left > 0 {
                    goes_on = false;
                }
                continue;
            }
        }
        turn_left -= usize::from(!std::mem::take(&mut goes_on) && turn_left > 0);
        let Some(at) = ready.pop_front() else {
            let until = timers.peek().map(|Reverse(timer)| timer.0);
            match has_answers {
                true => thread.clock.advance(costs.turn_ns),
                false => thread.sleep(until, costs.turn_ns),
            }
            continue;
        };
        let connection = &mut all[at];
        match steps.get(connection.at).copied() {
            None => {
                let began = connection.began.take().unwrap();
                connection.at = 0;
                (finished, active) = (finished + 1, active - 1);
                if finished > load.warm_up {
                    latency_ns += (now - began) as f64;
                }
                timers.push(Reverse((now, serial, at)));
                serial += 1;
            }
            Some(Step::Compute(ns)) => {
                thread.clock.advance(ns + std::mem::take(&mut connection.debt_ns));
                connection.at += 1;
                (goes_on, _) = (true, ready.push_front(at));
            }
            Some(Step::Client(ns)) => {
                connection.at += 1;
                timers.push(Reverse((now + ns as Nanos, serial, at)));
                serial += 1;
            }
            Some(Step::Request { kind, bytes, .. }) => {
                thread.clock.advance(std::mem::take(&mut connection.debt_ns));
                let mut request = thread.door.request(kind, bytes, at as u64);
                match thread.dispatcher.submit_to_device(&request.view(), at as u64, bytes) {
                    Some(_) => {
                        in_flight += 1;
                        asymmetric += u32::from(kind.is_asymmetric());
                        let flight = Flight {
                            in_flight,
                            asymmetric,
                            active,
                            busy: active,
                            asked: true,
                            ..Flight::default()
                        };
                        gather.submitted(&flight, thread.clock.now());
                        submitted = true;
                    }
                    None => {
                        thread.dispatcher.run(&mut request.view()).unwrap();
                        connection.at += 1;
                        (goes_on, _) = (true, ready.push_front(at));
                    }
                }
            }
        }
    }
    load.connections as f64 / (latency_ns / load.measured as f64) * 1e9
}

#[test]
fn qweb_in_production_is_what_its_simulator_says() {
    for (policy, concurrency) in [("qweb", 16), ("qweb", 64), ("adaptive", 64), ("adaptive", 500)] {
        let options = qweb::Options {
            workers: 1,
            cores: 1,
            curve_workers: 1,
            handshakes: 1000,
            concurrency,
            ..Default::default()
        };
        let simulated = qweb::scene(&options, policy, |server, load, make| {
            event_loop::run(server, load, make).per_second
        });
        let production = qweb::scene(&options, policy, |server, load, make| {
            loop_through_the_runtime(server, load, make())
        });
        let scene = format!("qweb, {policy}, {concurrency} connections");
        agree(&scene, simulated.unwrap(), production.unwrap());
    }
}

/// A stream's producer: seconds, joules and retransmissions.
fn stream_through_the_runtime(
    station: &Station,
    messages: &[Message],
    policy: Box<dyn Policy>,
    seed: u64,
) -> (f64, f64, u64) {
    let gpu = Arc::new(Mutex::new(StreamGpu::new(station, seed)));
    let rate = station.cpu_bytes_per_s;
    let mut thread = Thread::new(Parts {
        kinds: vec![Kind::Aes128Ctr],
        class: LatencyClass::Stream,
        policies: vec![policy],
        told_bytes: None,
        submitters: 1,
        times: Box::new(move |_, bytes| bytes as f64 * 1e9 / rate),
        call: Box::new(|_, _| 0.0),
        machine: Box::new(gpu.clone()),
        device: EngineClass::Gpu,
        window: Window { requests: 1 << 20, bytes: station.window_bytes },
        clock: HandClock::default(),
        stage: None,
        stream: Some(gpu.clone()),
    });
    // A runtime that has proved its device begins the stream; the study's begins with one that has.
    thread.dispatcher.submit(thread.door.request(Kind::Aes128Ctr, 0, 0));
    thread.poll();
    let (start, mut next_try, mut again, mut end) = (thread.clock.now(), 0, 0, 0);
    assert_eq!(start, 0, "nothing of this took time");
    let mut left = messages.iter();
    let mut message = left.next();
    loop {
        let now = thread.clock.now();
        for _ in thread.poll() {
            end = now;
        }
        if let Some(one) = message.filter(|_| next_try <= now) {
            let fill = gpu.lock().unwrap().fill;
            if station.window_bytes - fill < one.bytes {
                again += 1;
                next_try = now + (one.wait_ns + station.slack_ns) as Nanos;
            } else {
                gpu.lock().unwrap().fill += one.bytes;
                let request = thread.door.request(Kind::Aes128Ctr, one.bytes as usize, 0);
                let submitted = thread.dispatcher.submit(request);
                assert!(matches!(submitted, Submitted::Pending(_)), "the rule gives the GPU everything");
                next_try = now + (one.gap_ns + station.slack_ns) as Nanos;
                message = left.next();
            }
            continue;
        }
        if message.is_none() && thread.dispatcher.in_flight() == 0 {
            let joules = gpu.lock().unwrap().gpu.energy_j(end);
            return (end as f64 / 1e9, joules, again);
        }
        thread.sleep(message.map(|_| next_try), 0.0);
    }
}

#[test]
fn lecpaes_in_production_is_what_its_simulator_says() {
    let options = lecpaes::Options { users: 4000, ..Default::default() };
    for latency_us in [100.0, 500.0, 3000.0] {
        let simulated = lecpaes::scene(&options, latency_us, "lecpaes", |station, messages, mut policy| {
            pass(station, messages, policy.as_mut(), options.seed, None)
        });
        let simulated = simulated.unwrap();
        let production = lecpaes::scene(&options, latency_us, "lecpaes", |station, messages, policy| {
            stream_through_the_runtime(station, messages, policy, options.seed)
        });
        let (seconds, joules, again) = production.unwrap();
        agree(&format!("lecpaes, {latency_us} us, ms"), 1e3 * simulated.seconds, 1e3 * seconds);
        agree(&format!("lecpaes, {latency_us} us, J"), simulated.joules, joules);
        let messages = simulated.messages as f64;
        let rates = (simulated.retransmission_rate(), again as f64 / messages);
        println!("lecpaes, {latency_us} us: retransmissions {:.4} and {:.4}", rates.0, rates.1);
        assert!((rates.0 - rates.1).abs() <= 0.02, "{rates:?}");
    }
}
