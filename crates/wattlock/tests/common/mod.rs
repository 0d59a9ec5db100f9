//! An engine with queues that does exactly what a test tells it to, and the requests the tests send.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use wattlock::policy::{Ask, Choice, EngineId, Policy, Weather};
use wattlock::{Builder, Clock, Dispatcher, Runtime};
use wattlock_core::{
    Algorithm, Completion, Cost, Description, Engine, EngineClass, Error, Fault, Instance, Key, Kind,
    KindSet, Material, Nanos, OwnedRequest, Refused, Request, Token, Window, execute, known_answers,
};
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::software::Software;

/// What the scripted device does with the next requests it is handed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// The right result.
    Right,
    /// The right result with a bit flipped.
    Wrong,
    /// The right result except for the last byte, and it says so.
    Short,
    /// An error instead of a result.
    Fail(Error),
    /// Nothing, ever.
    Hang,
    /// The right result, so long after the doorbell. If the request has been withdrawn by then, there is an answer to
    /// no request: the device drops it, or, if it `tells`, hands over a completion that it must not, with a wrong
    /// result.
    Late { after_ns: Nanos, tells: bool },
    /// Nothing, ever, and it denies having had the request: against every promise of an instance.
    Vanish,
}

#[derive(Debug)]
pub struct Script {
    /// Acts for the next requests, then `Right`.
    pub acts: VecDeque<Act>,
    pub window: u32,
    /// Whether it takes runs.
    pub runs: bool,
    pub opens: u32,
    pub open_fails: bool,
    /// The next submission is refused with this.
    pub refuses: Option<Error>,
    pub doorbells: Vec<usize>,
    pub submitted: u64,
    pub withdrawn: u64,
    pub stopped: u64,
    /// Answers whose requests had been withdrawn.
    pub late: u64,
    /// When the doorbell last rang.
    pub rung_at: Nanos,
}

/// The device: a queue whose answers come at the poll after the doorbell.
pub struct Scripted {
    pub description: Description,
    width: u16,
    pub script: Arc<Mutex<Script>>,
    compute: Arc<dyn Engine>,
}

pub fn queued_kinds() -> KindSet {
    KindSet::of(&[
        Kind::Sha256,
        Kind::Aes256GcmSeal,
        Kind::Aes256GcmOpen,
        Kind::EcdsaP256Sign,
        Kind::P256Derive,
    ])
}

impl Scripted {
    pub fn new(width: u16) -> Arc<Scripted> {
        Scripted::with_kinds(width, queued_kinds())
    }

    pub fn with_kinds(width: u16, queued: KindSet) -> Arc<Scripted> {
        Arc::new(Scripted {
            width,
            description: Description {
                name: "scripted",
                class: EngineClass::Accelerator,
                inline: KindSet::EMPTY,
                queued,
                detail: "a test's device".into(),
            },
            script: Arc::new(Mutex::new(Script {
                acts: VecDeque::new(),
                window: 64,
                runs: true,
                opens: 0,
                open_fails: false,
                refuses: None,
                doorbells: Vec::new(),
                submitted: 0,
                withdrawn: 0,
                stopped: 0,
                late: 0,
                rung_at: 0,
            })),
            compute: Arc::new(Instruction::new()),
        })
    }

    pub fn will(&self, acts: &[Act]) {
        self.script.lock().unwrap().acts.extend(acts);
    }
}

impl Engine for Scripted {
    fn description(&self) -> &Description {
        &self.description
    }

    fn width(&self, kind: Kind) -> u16 {
        if self.description.queued.contains(kind) { self.width } else { 1 }
    }

    fn window(&self) -> Window {
        Window { requests: self.script.lock().unwrap().window, bytes: 1 << 20 }
    }

    fn takes_runs(&self, kind: Kind, _longest: usize) -> bool {
        self.description.queued.contains(kind) && self.script.lock().unwrap().runs
    }

    fn open(&self, _: Nanos) -> Result<Box<dyn Instance>, Error> {
        let mut script = self.script.lock().unwrap();
        script.opens += 1;
        if script.open_fails {
            return Err(Error::Device(Fault::Lost));
        }
        Ok(Box::new(Queue {
            script: self.script.clone(),
            compute: self.compute.clone(),
            held: Vec::new(),
            given: Vec::new(),
            late: Vec::new(),
            hostages: 0,
            stopped: false,
        }))
    }
}

struct Queue {
    script: Arc<Mutex<Script>>,
    compute: Arc<dyn Engine>,
    held: Vec<(Token, OwnedRequest, Nanos)>,
    given: Vec<(Token, OwnedRequest, Nanos, u16)>,
    late: Vec<Late>,
    hostages: u32,
    stopped: bool,
}

/// A request that will be answered late.
struct Late {
    token: Token,
    /// `None` once it was withdrawn.
    request: Option<OwnedRequest>,
    /// What the device works on.
    copy: OwnedRequest,
    at: Nanos,
    due: Nanos,
    tells: bool,
}

impl Late {
    fn answer(self, compute: &dyn Engine, now: Nanos) -> Completion {
        let Late { token, request, mut copy, at, .. } = self;
        let on_time = request.is_some();
        let mut request = request.unwrap_or_else(|| {
            copy.input.iter_mut().for_each(|byte| *byte ^= 0xff);
            copy
        });
        let result = execute(compute, &mut request.view());
        if !on_time {
            request.output.iter_mut().for_each(|byte| *byte ^= 0xff);
        }
        let cost = Cost { latency_ns: now - at, held_ns: 0, batch: 1, energy_nj: None };
        Completion { token, request, result, cost }
    }
}

impl Queue {
    /// Answers what was to be answered late and is due.
    fn answer_late(&mut self, now: Nanos, done: &mut dyn FnMut(Completion)) -> usize {
        let mut count = 0;
        let (due, later) = self.late.drain(..).partition(|late: &Late| late.due <= now);
        self.late = later;
        for late in Vec::from_iter::<Vec<Late>>(due) {
            if late.request.is_none() {
                self.hostages -= 1;
                self.script.lock().unwrap().late += 1;
                if !late.tells {
                    continue;
                }
            }
            count += 1;
            done(late.answer(&*self.compute, now));
        }
        count
    }
}

/// As a request that a device has copied.
pub fn copied(request: &OwnedRequest) -> OwnedRequest {
    let mut copy =
        OwnedRequest::new(request.kind, request.key.clone(), request.input.clone(), request.output.len());
    copy.nonce = request.nonce.clone();
    copy.aad = request.aad.clone();
    copy.tag = request.tag;
    copy.mark = request.mark;
    copy.run = request.run.clone();
    copy
}

impl Instance for Queue {
    fn window(&self) -> Window {
        Window { requests: self.script.lock().unwrap().window, bytes: 1 << 20 }
    }

    fn in_flight(&self) -> u32 {
        let late = self.late.iter().filter(|late| late.request.is_some()).count();
        (self.held.len() + self.given.len() + late) as u32 + self.hostages
    }

    fn held(&self) -> u32 {
        self.held.len() as u32
    }

    fn submit(&mut self, token: Token, request: OwnedRequest, now: Nanos) -> Result<(), Refused> {
        if self.stopped {
            return Err(Refused { error: Error::Device(Fault::Lost), request });
        }
        if let Some(error) = self.script.lock().unwrap().refuses.take() {
            return Err(Refused { error, request });
        }
        if self.in_flight() >= self.window().requests {
            return Err(Refused { error: Error::Full, request });
        }
        self.script.lock().unwrap().submitted += 1;
        self.held.push((token, request, now));
        Ok(())
    }

    fn flush(&mut self, now: Nanos) {
        let batch = self.held.len() as u16;
        self.script.lock().unwrap().rung_at = now;
        self.script.lock().unwrap().doorbells.push(self.held.len());
        self.given.extend(self.held.drain(..).map(|(token, request, at)| (token, request, at, batch)));
    }

    fn poll(&mut self, now: Nanos, done: &mut dyn FnMut(Completion)) -> usize {
        let mut hung = Vec::new();
        let mut count = 0;
        if self.stopped {
            let held = self.held.drain(..).map(|(token, request, _)| (token, request));
            let given = self.given.drain(..).map(|(token, request, ..)| (token, request));
            let late = self.late.drain(..).filter_map(|late| Some((late.token, late.request?)));
            for (token, request) in held.chain(given).chain(late) {
                count += 1;
                let result = Err(Error::Device(Fault::Lost));
                done(Completion { token, request, result, cost: Cost::default() });
            }
            return count;
        }
        count += self.answer_late(now, done);
        for (token, mut request, at, batch) in self.given.drain(..) {
            let act = self.script.lock().unwrap().acts.pop_front().unwrap_or(Act::Right);
            let result = match act {
                Act::Hang => {
                    // Stays hung on later polls as well.
                    hung.push((token, request, at, batch));
                    continue;
                }
                Act::Late { after_ns, tells } => {
                    let (copy, due) = (copied(&request), self.script.lock().unwrap().rung_at + after_ns);
                    self.late.push(Late { token, request: Some(request), copy, at, due, tells });
                    continue;
                }
                Act::Vanish => continue,
                Act::Fail(error) => Err(error),
                Act::Short => {
                    let len = execute(&*self.compute, &mut request.view());
                    request.output.last_mut().into_iter().for_each(|byte| *byte = 0);
                    len.map(|len| len - 1)
                }
                Act::Right => execute(&*self.compute, &mut request.view()),
                Act::Wrong => {
                    let len = execute(&*self.compute, &mut request.view());
                    request.output[0] ^= 1;
                    len
                }
            };
            count += 1;
            let cost = Cost { latency_ns: now - at, held_ns: 0, batch, energy_nj: None };
            done(Completion { token, request, result, cost });
        }
        if !hung.is_empty() {
            let mut script = self.script.lock().unwrap();
            hung.iter().for_each(|_| script.acts.push_front(Act::Hang));
        }
        self.given = hung;
        count
    }

    fn withdraw(&mut self, token: Token, _: Nanos) -> Option<OwnedRequest> {
        if let Some(at) = self.held.iter().position(|held| held.0 == token) {
            self.script.lock().unwrap().withdrawn += 1;
            return Some(self.held.remove(at).1);
        }
        if let Some(request) =
            self.late.iter_mut().find(|late| late.token == token).and_then(|late| late.request.take())
        {
            self.script.lock().unwrap().withdrawn += 1;
            self.hostages += 1;
            return Some(request);
        }
        let at = self.given.iter().position(|given| given.0 == token)?;
        let mut script = self.script.lock().unwrap();
        script.withdrawn += 1;
        if script.acts.front() == Some(&Act::Hang) {
            script.acts.pop_front();
        }
        self.hostages += 1;
        Some(self.given.remove(at).1)
    }

    fn stop(&mut self, _: Nanos) {
        self.script.lock().unwrap().stopped += 1;
        self.hostages = 0;
        self.stopped = true;
    }
}

/// A clock that a test moves by hand.
#[derive(Clone, Default)]
pub struct HandClock(Arc<AtomicU64>);

impl HandClock {
    pub fn advance(&self, nanos: Nanos) {
        self.0.fetch_add(nanos, Ordering::SeqCst);
    }

    pub fn clock(&self) -> Clock {
        let time = self.0.clone();
        Clock::given(move || time.load(Ordering::SeqCst))
    }
}

pub const GIVE_UP_NS: Nanos = 5_000_000;

/// Queues whatever the device can do.
pub struct QueueEverything(pub KindSet);

impl Policy for QueueEverything {
    fn name(&self) -> &'static str {
        "queue everything"
    }

    fn choose(&mut self, ask: &Ask, weather: &Weather, _: Nanos) -> Choice {
        let device = ask.may_wait && self.0.contains(ask.shape.kind) && weather.engines[2].available;
        let engine = EngineId(if device { 2 } else { 0 });
        Choice::now(engine)
    }
}

/// A runtime that offloads everything it can to the scripted device.
pub fn runtime(device: &Arc<Scripted>, clock: &HandClock, verify_one_in: u32) -> Runtime {
    builder(device, clock, verify_one_in).build().unwrap()
}

/// What [`runtime`] builds.
pub fn builder(device: &Arc<Scripted>, clock: &HandClock, verify_one_in: u32) -> Builder {
    let engines: Vec<Arc<dyn Engine>> =
        vec![Arc::new(Instruction::new()), Arc::new(Software::new()), device.clone()];
    builder_with(engines, clock, verify_one_in)
}

/// The same with other engines, the device at place 2.
pub fn builder_with(engines: Vec<Arc<dyn Engine>>, clock: &HandClock, verify_one_in: u32) -> Builder {
    checking_as_usual(engines, clock).verify_one_in(verify_one_in)
}

/// The same, checking as many results as a runtime does that was told nothing.
pub fn checking_as_usual(engines: Vec<Arc<dyn Engine>>, clock: &HandClock) -> Builder {
    let queued = engines[2].description().queued;
    Runtime::builder()
        .engines(engines)
        .own_policy("queue everything", move |_| Box::new(QueueEverything(queued)))
        .clock(clock.clock())
        .give_up_after_ns(GIVE_UP_NS)
        .telemetry(false)
        .profile(wattlock::Profile::built_in())
}

/// A CPU engine of another description.
pub struct Cpu {
    description: Description,
    /// What it answers instead of working, once it has worked this often.
    pub fails: Option<(u64, Error)>,
    pub worked: AtomicU64,
    inner: Instruction,
}

impl Cpu {
    /// Does these kinds.
    pub fn new(name: &'static str, inline: KindSet) -> Cpu {
        let inner = Instruction::new();
        let description = Description { name, inline, ..inner.description().clone() };
        Cpu { description, fails: None, worked: AtomicU64::new(0), inner }
    }
}

impl Engine for Cpu {
    fn description(&self) -> &Description {
        &self.description
    }

    fn execute(&self, request: &mut Request<'_>) -> Result<usize, Error> {
        let worked = self.worked.fetch_add(1, Ordering::SeqCst);
        match self.fails {
            Some((after, error)) if worked >= after => {
                // An engine that fails midway has begun to write.
                request.data.output().iter_mut().take(3).for_each(|byte| *byte = 0);
                Err(error)
            }
            _ => self.inner.execute(request),
        }
    }
}

pub fn digest(mark: u64) -> OwnedRequest {
    let mut request =
        OwnedRequest::new(Kind::Sha256, Arc::new(Key::none().clone()), mark.to_le_bytes().to_vec(), 32);
    request.mark = mark;
    request
}

pub fn seal_key() -> Arc<Key> {
    Arc::new(Key::symmetric(Algorithm::Aes256Gcm, &[9; 32]).unwrap())
}

pub fn seal(mark: u64) -> OwnedRequest {
    let mut request = OwnedRequest::new(Kind::Aes256GcmSeal, seal_key(), vec![mark as u8; 100], 100);
    request.nonce = mark.to_le_bytes().iter().copied().chain([0; 4]).collect();
    request.mark = mark;
    request
}

/// The known question of RSA-2048 under a key one of whose parts does not fit the others.
pub fn misfit(mark: u64) -> OwnedRequest {
    let mut request = known_answers(Kind::Rsa2048Private).swap_remove(0).request;
    let Material::Rsa(key) = request.key.material() else { panic!("an RSA key") };
    let mut key = (**key).clone();
    key.dp[7] ^= 0x20;
    request.key = Arc::new(Key::rsa(key).expect("its shape is right"));
    request.mark = mark;
    request
}

/// What the plain engine makes of the same request: output and tag.
pub fn expected(request: &OwnedRequest) -> (Vec<u8>, [u8; 16]) {
    let mut copy = copied(request);
    let len = Software::new().execute(&mut copy.view()).unwrap();
    (copy.output[..len].to_vec(), copy.tag)
}

pub fn assert_right(completion: &Completion) {
    let len = completion.result.expect("a result");
    let (output, tag) = expected(&completion.request);
    assert_eq!(completion.request.output[..len], output, "mark {}", completion.request.mark);
    assert_eq!(completion.request.tag, tag, "mark {}", completion.request.mark);
}

/// Polls until nothing of a door's is in flight, moving the clock a little each time.
pub fn drain(dispatcher: &mut Dispatcher, clock: &HandClock) -> Vec<Completion> {
    let mut all = Vec::new();
    for _ in 0..10_000 {
        if dispatcher.in_flight() == 0 {
            return all;
        }
        dispatcher.poll(&mut |completion| all.push(completion));
        clock.advance(10_000);
    }
    panic!("{} requests never came back", dispatcher.in_flight());
}

/// Has the device prove a kind, so that the requests that follow reach it.
pub fn prove(dispatcher: &mut Dispatcher, clock: &HandClock, request: OwnedRequest) {
    let first = dispatcher.submit(request);
    assert!(matches!(first, wattlock::Submitted::Done(_)), "an unproved kind is done by the CPU at once");
    for _ in 0..3 {
        dispatcher.poll(&mut |_| panic!("nothing of ours is in flight"));
        clock.advance(1000);
    }
}

/// Fallbacks away from the scripted device, by reason.
pub fn fallbacks(runtime: &Runtime) -> Vec<(String, u64)> {
    runtime.snapshot().engines.iter().find(|engine| engine.engine == "scripted").unwrap().fallbacks.clone()
}

pub fn requests_on(runtime: &Runtime, engine: &str) -> u64 {
    runtime.snapshot().cells.iter().filter(|cell| cell.engine == engine).map(|cell| cell.requests).sum()
}

/// Results of the scripted device that were checked.
pub fn verified_on(runtime: &Runtime) -> u64 {
    runtime.snapshot().engines.iter().find(|engine| engine.engine == "scripted").unwrap().verified
}
