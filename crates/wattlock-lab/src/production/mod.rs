//! Production code in virtual time: a runtime with its known-answer tests, operations, claims and looks, on a clock that
//! moves where a thread would spend time, over a CPU and a device that take a model's times. Only doors that have keys of
//! their own, and may read what they wrote, get what was asked for; others get an answer of the right length.
//! Tests drive a door on such a [`Scene`] and hold what comes out against the simulator.
//!
//! A scene's policy is the study's own object, told what the study's policies are told. The device's kinds prove
//! themselves by real known answers.
//!
//! - `device`: the device.
//! - `stage`: threads, several of them on each of several cores.
#![allow(clippy::unwrap_used, reason = "a scene that cannot go on has failed")]

mod device;
pub mod stage;

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use wattlock::{Clock, Dispatcher, Profile, Runtime};
use wattlock_core::{
    Description, Engine, EngineClass, Error, Key, Kind, KindSet, LatencyClass, Nanos, OwnedRequest, Request,
    Shape, Window, known_answers,
};
use wattlock_cpu::instruction::Instruction;
use wattlock_policy::{
    Ask, Choice, EngineId, Job, Machine as Known, Outcome, Policy, Rest, Side, Split, Weather,
};

use crate::sim::{Closed, Random};
use device::Answering;
pub use device::{JobGpu, Machine, State, StreamGpu};
use stage::Stage;

/// A clock that is moved by hand, or by a stage.
#[derive(Clone, Default)]
pub struct HandClock(Arc<AtomicU64>);

impl HandClock {
    /// The time.
    pub fn now(&self) -> Nanos {
        self.0.load(Ordering::Relaxed)
    }

    /// What it is kept in.
    pub fn shared(&self) -> Arc<AtomicU64> {
        self.0.clone()
    }

    /// So much later; on a stage, once the calling thread's core has worked for so long.
    pub fn advance(&self, ns: f64) {
        match stage::me() {
            Some(_) => stage::owe(ns),
            None => _ = self.0.fetch_add(ns.round() as Nanos, Ordering::Relaxed),
        }
    }

    /// Later, if it is.
    pub fn reach(&self, at: Nanos) {
        self.0.fetch_max(at, Ordering::Relaxed);
    }
}

/// The requests of a scene, which take a model's time; the runtime's own tests take none.
pub struct Mine {
    /// One a kind, under keys of its own.
    templates: Vec<OwnedRequest>,
    /// Of a door that has its own keys: whether requests of so many bytes are the scene's.
    sized: Option<IsMine>,
}

/// Whether requests of so many bytes of a kind are a scene's.
pub type IsMine = fn(Kind, usize) -> bool;

impl Mine {
    fn new(kinds: &[Kind], class: LatencyClass, sized: Option<IsMine>) -> Arc<Mine> {
        let template = |kind: &Kind| {
            let mut request = known_answers(*kind).swap_remove(0).request;
            request.key = Arc::new((*request.key).clone());
            request.class = class;
            request
        };
        Arc::new(Mine { templates: kinds.iter().map(template).collect(), sized })
    }

    fn has(&self, kind: Kind, key: &Key, bytes: usize) -> bool {
        // Copies of a key share its material.
        match self.sized {
            Some(sized) => !PROVES.get() && sized(kind, bytes),
            None => self.templates.iter().any(|one| std::ptr::eq(one.key.material(), key.material())),
        }
    }

    /// Whether its answers are right.
    fn computes(&self) -> bool {
        self.sized.is_some()
    }

    /// A request of a kind and size.
    pub fn request(&self, kind: Kind, bytes: usize, mark: u64) -> OwnedRequest {
        let template = self.templates.iter().find(|template| template.kind == kind).unwrap();
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

/// Nanoseconds of a request of a kind and of so many bytes.
pub type Times = Box<dyn FnMut(Kind, usize) -> f64 + Send>;

/// A CPU whose time is the simulator's.
struct Costed {
    description: Description,
    compute: Instruction,
    mine: Arc<Mine>,
    clock: HandClock,
    times: Mutex<Times>,
}

impl Engine for Costed {
    fn description(&self) -> &Description {
        &self.description
    }

    fn execute(&self, request: &mut Request<'_>) -> Result<usize, Error> {
        let mine = self.mine.has(request.kind, request.key, request.data.len());
        if mine {
            self.clock.advance(self.times.lock().unwrap()(request.kind, request.data.len()));
        }
        match mine && !self.mine.computes() {
            true => Ok(request.data.output().len()),
            false => self.compute.execute(request),
        }
    }

    fn check(&self, request: &OwnedRequest, len: usize) -> Result<(), Error> {
        match self.mine.has(request.kind, &request.key, request.input.len()) && !self.mine.computes() {
            true => Ok(()),
            false => self.compute.check(request, len),
        }
    }
}

/// What the study's policies are told that one thread of one runtime does not see: the block a page belongs to, the other
/// processes, and the idle share of the simulated CPU instead of this machine's.
struct Told {
    policy: Box<dyn Policy>,
    bytes: Option<usize>,
    submitters: u16,
    told: Arc<Facts>,
    stage: Option<Arc<Stage>>,
    stream: Option<Arc<Mutex<StreamGpu>>>,
}

thread_local! {
    /// What the first piece of the calling thread's operation takes of the link beyond its bytes.
    static MORE_BYTES: Cell<usize> = const { Cell::new(0) };
    /// The calling thread's device has to give its known answers; the policy is not asked, and learns nothing.
    static PROVES: Cell<bool> = const { Cell::new(false) };
}

/// The policy of a dispatcher that is never asked.
struct Unasked;

impl Policy for Unasked {
    fn name(&self) -> &'static str {
        "unasked"
    }

    fn choose(&mut self, _: &Ask, _: &Weather, _: Nanos) -> Choice {
        Choice::now(EngineId(0))
    }
}

/// Has the calling thread's device give its known answers in `work`, of which no policy learns.
pub fn proving<R>(work: impl FnOnce() -> R) -> R {
    PROVES.set(true);
    let done = work();
    PROVES.set(false);
    done
}

/// Facts that change while a scene runs.
#[derive(Default)]
pub struct Facts {
    /// Pieces that devices and threads claimed of operations.
    pub claims: [AtomicU64; 2],
    /// The most connections that a door said are not idle.
    pub active: AtomicU64,
}

impl Told {
    fn weather(&self, weather: &Weather) -> Weather {
        let idle_permille = self.stage.as_ref().map_or(0, |stage| stage.idle_permille());
        let mut told = Weather { submitters: self.submitters, idle_permille, ..*weather };
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
        self.told.active.fetch_max(weather.active.into(), Ordering::Relaxed);
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

    fn looked(&mut self, after_ns: Nanos) {
        self.policy.looked(after_ns);
    }

    fn split(&self, job: &Job) -> Option<Split> {
        self.policy.split(job)
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
pub struct Scene {
    /// Its clock.
    pub clock: HandClock,
    /// Its requests.
    pub mine: Arc<Mine>,
    /// Its device.
    pub state: Arc<Mutex<State>>,
    /// What policies are told, and what they claimed.
    pub told: Arc<Facts>,
    /// The runtime.
    pub runtime: Runtime,
}

/// What a scene is made of.
pub struct Parts {
    /// What the device does.
    pub kinds: Vec<Kind>,
    /// How long its callers may wait.
    pub class: LatencyClass,
    /// Which requests are its own, of a door that has keys of its own.
    pub sized: Option<IsMine>,
    /// For each thread.
    pub policies: Vec<Box<dyn Policy>>,
    /// The size of the whole that policies are told instead of an operation's.
    pub told_bytes: Option<usize>,
    /// The processes that policies are told of.
    pub submitters: u16,
    /// What the CPU takes.
    pub times: Times,
    /// What handing a request over takes the thread.
    pub call: Times,
    /// What the device does with its time.
    pub machine: Box<dyn Machine>,
    /// What the device is.
    pub device: EngineClass,
    /// What may be in flight there.
    pub window: Window,
    /// The clock.
    pub clock: HandClock,
    /// Its threads' cores, if it has several threads.
    pub stage: Option<Arc<Stage>>,
    /// The GPU of a stream.
    pub stream: Option<Arc<Mutex<StreamGpu>>>,
}

impl Scene {
    /// A scene of these parts.
    ///
    /// # Panics
    /// There is no runtime of these parts.
    pub fn new(parts: Parts) -> Scene {
        let Parts { kinds, class, policies, told_bytes: bytes, submitters, times, call, machine, .. } = parts;
        let Parts { device, window, clock, stage, stream, sized, .. } = parts;
        let mine = Mine::new(&kinds, class, sized);
        let compute = Instruction::new();
        let description = compute.description().clone();
        let (times, of_cpu) = (Mutex::new(times), clock.clone());
        let cpu =
            Costed { description: description.clone(), compute, mine: mine.clone(), clock: of_cpu, times };
        let state = Arc::new(Mutex::new(State::new(machine, mine.clone(), clock.clone(), call)));
        if let Some(stage) = &stage {
            stage.behind(Arc::new(device::OnStage(state.clone())));
        }
        let (inline, queued) = (KindSet::EMPTY, KindSet::of(&kinds));
        let description = Description { name: "answering", class: device, inline, queued, ..description };
        let device = Answering::new(description, window, state.clone());
        let engines: Vec<Arc<dyn Engine>> = vec![Arc::new(cpu), Arc::new(device)];
        let told = Arc::new(Facts::default());
        let policies = Mutex::new(policies.into_iter().map(Some).collect::<Vec<_>>());
        let (facts, on_stage) = (told.clone(), stage.clone());
        let policy = move |_: &Known| -> Box<dyn Policy> {
            let mine = || policies.lock().unwrap()[stage::me().unwrap_or(0)].take();
            // One dispatcher a thread asks the study's policy. Others open or prove something, or are a side of a job.
            let asked = if PROVES.get() { None } else { mine() };
            let policy = asked.unwrap_or_else(|| Box::new(Unasked));
            let (told, stage) = (facts.clone(), stage.clone());
            Box::new(Told { policy, bytes, submitters, told, stage, stream: stream.clone() })
        };
        let of_runtime = clock.clone();
        let runtime = Runtime::builder()
            .profile(Profile::empty(&engines))
            .engines(engines)
            .own_policy("scene", policy)
            .clock(Clock::given(move || match &on_stage {
                Some(stage) => {
                    stage.enter_if_named();
                    stage.read()
                }
                None => of_runtime.now(),
            }))
            .give_up_after_ns(1 << 50)
            .telemetry(false)
            .build()
            .unwrap();
        Scene { clock, mine, state, told, runtime }
    }
}

/// The only thread of a scene.
pub struct Thread {
    scene: Scene,
    /// Its way into the runtime.
    pub dispatcher: Dispatcher,
}

impl std::ops::Deref for Thread {
    type Target = Scene;

    fn deref(&self) -> &Scene {
        &self.scene
    }
}

impl Scene {
    /// Lets time pass until the device has something, and so much longer, or until then.
    ///
    /// # Panics
    /// Nothing will ever happen.
    pub fn sleep(&self, until: Option<Nanos>, late_ns: f64) {
        let device = self.state.lock().unwrap().machine.next();
        let device = device.map(|at| at + late_ns as Nanos);
        let now = self.clock.now();
        let next = device.into_iter().chain(until).min();
        self.clock.reach(next.expect("something will happen").max(now + 1));
    }
}

impl Thread {
    /// The thread of a scene of these parts.
    pub fn new(parts: Parts) -> Thread {
        let scene = Scene::new(parts);
        let dispatcher = scene.runtime.dispatcher();
        Thread { scene, dispatcher }
    }

    /// What has come back.
    pub fn poll(&mut self) -> Vec<OwnedRequest> {
        let mut done = Vec::new();
        self.dispatcher.poll(&mut |completion| {
            completion.result.unwrap();
            done.push(completion.request);
        });
        done
    }
}

/// Says what a simulator and production come to, and holds them within 2 %.
pub fn agree(scene: &str, simulated: f64, production: f64) {
    agree_within(0.02, scene, simulated, production);
}

/// The same within another share.
///
/// # Panics
/// They are further apart.
pub fn agree_within(share: f64, scene: &str, simulated: f64, production: f64) {
    let apart = production / simulated - 1.0;
    println!("{scene}: simulator {simulated:.1}, production {production:.1}, {:+.2} %", 100.0 * apart);
    assert!(apart.abs() <= share, "{scene}: simulator {simulated}, production {production}");
}

/// What became of a closed system: rounds a second after the warm-up, and the pieces that devices and threads claimed.
#[derive(Debug, Clone, Copy)]
pub struct Ran {
    /// Rounds a second.
    pub rounds_per_s: f64,
    /// Pieces that the device and threads claimed.
    pub claims: [u64; 2],
}

/// Runs a closed system whose clients are threads in a door. Each does its own work, then all that it has in hand in one
/// operation of the door, until the round is over. `door` makes a thread's way in, on that thread; it takes the pieces'
/// sizes. `sized` is for doors that have keys of their own.
///
/// # Panics
/// A thread panics; then the process ends.
pub fn closed<D: FnMut(&[usize])>(
    system: Closed<'_>,
    sized: Option<IsMine>,
    door: impl Fn(&Scene, usize) -> D + Sync,
) -> Ran {
    let Closed { cores, policies, clients, kind, own_ns, rounds, in_hand, told_bytes, .. } = system;
    let Closed { inline, card: (_, card), jitter, seed, warm, measured, .. } = system;
    let whole = |bytes: usize| bytes / kind.info().multiple * kind.info().multiple;
    let rounds: Vec<Vec<usize>> =
        rounds.into_iter().map(|plan| plan.into_iter().map(whole).collect()).collect();
    let sizes = || rounds.iter().flatten().copied();
    // Pieces of a door's own are alike: what an operation's first one is larger by is its share of the link.
    let least = sizes().min().expect("a round with pieces");
    let times: HashMap<usize, f64> =
        sizes().chain([least]).map(|bytes| (bytes, inline[0].1(bytes))).collect();
    let dice = Arc::new(Mutex::new(Random::new(seed)));
    let vary = move |ns: f64| ns * (1.0 + jitter * (2.0 * dice.lock().unwrap().unit() - 1.0));
    let (of_cpu, of_call, call, window) = (vary.clone(), vary.clone(), card.call_ns(), card.model().window);
    let clock = HandClock::default();
    let stage = Arc::new(Stage::new(cores, clients.clone(), clock.0.clone()));
    let scene = Scene::new(Parts {
        kinds: vec![kind],
        class: LatencyClass::Stream,
        sized,
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
        let mut door = door(&scene, thread);
        // A runtime that has proved its device begins; the study's begins with one that has.
        let first = &rounds.iter().find(|plan| !plan.is_empty()).expect("a round with pieces")[..1];
        proving(|| {
            for _ in 0..3 {
                door(first);
                stage::looked(false);
            }
        });
        let mut round = thread;
        while done.load(Ordering::Relaxed) < warm + measured {
            if own_ns > 0.0 {
                stage.burst(vary(own_ns));
            }
            for pieces in rounds[round % rounds.len()].chunks(in_hand.max(1)) {
                if sized.is_some() {
                    MORE_BYTES.set(pieces[0] - least);
                }
                door(pieces);
                MORE_BYTES.set(0);
                stage::looked(false);
            }
            round += 1;
            match done.fetch_add(1, Ordering::Relaxed) + 1 {
                count if count == warm => start.store(scene.clock.now(), Ordering::Relaxed),
                count if count == warm + measured => end.store(scene.clock.now(), Ordering::Relaxed),
                _ => {}
            }
        }
        drop(door);
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

/// Ends the process where it is dropped by a panic: a thread of a stage would leave the others waiting for ever.
pub struct Together;

impl Drop for Together {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
