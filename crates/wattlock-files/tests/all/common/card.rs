//! A machine in virtual time: a CPU with a model's times, and an emulated card. Time passes where a thread would spend it:
//! in the CPU's work, in each submission, and to the card's next answer where a thread that has done nothing since its
//! last look asks again.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use wattlock::policy::Settings;
use wattlock::{Builder, Clock, Profile, Runtime};
use wattlock_core::{
    Completion, Description, Engine, Error, Fault as CoreFault, Instance, Kind, Nanos, OwnedRequest, Refused,
    Request, Token, Window,
};
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::software::Software;
use wattlock_door::{Crypto, CryptoSource};
use wattlock_emul::{Emulated, Fault, Model, Pace};

/// What a request through a queue costs its thread: what policies take it for by default.
const SUBMIT_NS: Nanos = 500;
/// How long a thread waits for an answer that may never come before it looks again.
const SILENCE_NS: Nanos = 500_000;
/// When the runtime gives a request up.
const GIVE_UP_NS: Nanos = 3_000_000;

/// The machine's time.
#[derive(Clone, Default)]
pub struct Time(Arc<AtomicU64>);

impl Time {
    pub fn now(&self) -> Nanos {
        self.0.load(Ordering::Relaxed)
    }

    fn pass(&self, ns: Nanos) {
        self.0.fetch_add(ns, Ordering::Relaxed);
    }

    pub fn reach(&self, at: Nanos) {
        self.0.fetch_max(at, Ordering::Relaxed);
    }
}

/// A CPU whose work takes so many nanoseconds.
pub struct Cpu {
    compute: Instruction,
    time: Time,
    ns: fn(Kind, usize) -> f64,
    /// Whether long messages are only said to be sealed: where time is all that is looked at.
    pretends: bool,
}

impl Engine for Cpu {
    fn description(&self) -> &Description {
        self.compute.description()
    }

    fn execute(&self, request: &mut Request<'_>) -> Result<usize, Error> {
        let (kind, bytes) = (request.kind, request.data.len());
        self.time.pass((self.ns)(kind, bytes) as Nanos);
        let sealed = kind == Kind::Aes256GcmSeal && bytes >= 4096;
        if sealed && self.pretends { Ok(bytes) } else { self.compute.execute(request) }
    }

    fn check(&self, request: &OwnedRequest, len: usize) -> Result<(), Error> {
        if self.pretends { Ok(()) } else { self.compute.check(request, len) }
    }
}

/// What a card does to every request of one kind, and to no other: to the second of two steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Harm {
    Errs,
    Lies,
    Hangs,
    Vanishes,
}

/// The card, as a thread that has nothing else to do sees it.
struct Card {
    emulated: Arc<Emulated>,
    time: Time,
    harm: Arc<Mutex<Option<(Kind, Harm)>>>,
}

impl Engine for Card {
    fn description(&self) -> &Description {
        self.emulated.description()
    }

    fn width(&self, kind: Kind) -> u16 {
        self.emulated.width(kind)
    }

    fn at_once(&self, kind: Kind) -> Option<u32> {
        self.emulated.at_once(kind)
    }

    fn window(&self) -> Window {
        self.emulated.window()
    }

    fn open(&self, now: Nanos) -> Result<Box<dyn Instance>, Error> {
        let (emulated, time, harm) = (self.emulated.clone(), self.time.clone(), self.harm.clone());
        let queue = emulated.open(now)?;
        Ok(Box::new(Queue { queue, emulated, time, looked: 0, harm, silent: HashMap::new(), over: false }))
    }
}

struct Queue {
    queue: Box<dyn Instance>,
    emulated: Arc<Emulated>,
    time: Time,
    /// The time after the last look.
    looked: Nanos,
    harm: Arc<Mutex<Option<(Kind, Harm)>>>,
    /// What it never answers.
    silent: HashMap<Token, OwnedRequest>,
    over: bool,
}

impl Queue {
    fn harm(&self, kind: Kind) -> Option<Harm> {
        let harm = *self.harm.lock().unwrap();
        harm.filter(|(harmed, _)| *harmed == kind).map(|(_, harm)| harm)
    }
}

impl Instance for Queue {
    fn window(&self) -> Window {
        self.queue.window()
    }

    fn in_flight(&self) -> u32 {
        self.queue.in_flight() + self.silent.len() as u32
    }

    fn held(&self) -> u32 {
        self.queue.held()
    }

    fn submit(&mut self, token: Token, request: OwnedRequest, now: Nanos) -> Result<(), Refused> {
        self.time.pass(SUBMIT_NS);
        match self.harm(request.kind) {
            Some(Harm::Vanishes) => Err(Refused { error: Error::Device(CoreFault::Lost), request }),
            Some(Harm::Hangs) if !self.over => {
                self.silent.insert(token, request);
                Ok(())
            }
            _ => self.queue.submit(token, request, now),
        }
    }

    fn flush(&mut self, now: Nanos) {
        self.queue.flush(now);
    }

    fn poll(&mut self, now: Nanos, done: &mut dyn FnMut(Completion)) -> usize {
        let harm = *self.harm.lock().unwrap();
        let mut count = self.queue.poll(now, &mut |mut completion| {
            match harm.filter(|(kind, _)| *kind == completion.request.kind) {
                Some((_, Harm::Errs)) => completion.result = Err(Error::Device(CoreFault::Reported)),
                Some((_, Harm::Lies)) => completion.request.output[0] ^= 1,
                _ => {}
            }
            done(completion);
        });
        if self.over {
            for (token, request) in self.silent.drain() {
                let result = Err(Error::Device(CoreFault::Lost));
                done(Completion { token, request, result, cost: Default::default() });
                count += 1;
            }
        }
        let idle = count == 0 && self.in_flight() > 0 && self.time.now() == self.looked;
        if idle {
            self.time.reach(self.emulated.next_due().unwrap_or(self.looked + SILENCE_NS));
        }
        self.looked = self.time.now();
        count
    }

    fn withdraw(&mut self, token: Token, now: Nanos) -> Option<OwnedRequest> {
        self.silent.remove(&token).or_else(|| self.queue.withdraw(token, now))
    }

    fn stop(&mut self, now: Nanos) {
        self.over = true;
        self.queue.stop(now);
    }
}

/// A machine with the published card, whose window has so many requests.
pub struct Machine {
    pub time: Time,
    pub window: u32,
    pub faults: Vec<Fault>,
    pub harm: Arc<Mutex<Option<(Kind, Harm)>>>,
    /// Nanoseconds that the CPU takes for so many bytes of a kind.
    pub cpu_ns: fn(Kind, usize) -> f64,
    pub pretends: bool,
}

impl Machine {
    pub fn new(cpu_ns: fn(Kind, usize) -> f64) -> Machine {
        Machine {
            time: Time::default(),
            window: 256,
            faults: Vec::new(),
            harm: Arc::default(),
            cpu_ns,
            pretends: false,
        }
    }

    fn cpu(&self, ns: fn(Kind, usize) -> f64) -> Arc<Cpu> {
        let time = self.time.clone();
        Arc::new(Cpu { compute: Instruction::new(), time, ns, pretends: self.pretends })
    }

    pub fn builder(&self) -> Builder {
        let mut model = Model::qat_dh8970();
        model.window.requests = self.window;
        // What the card computes takes the card's time, and the CPU none.
        let emulated = Emulated::new(model, self.cpu(|_, _| 0.0), Pace::Stepped).unwrap();
        let emulated = Arc::new(emulated.with_faults(self.faults.clone()));
        let card = Card { emulated, time: self.time.clone(), harm: self.harm.clone() };
        let now = self.time.clone();
        Runtime::builder()
            .engines(vec![self.cpu(self.cpu_ns), Arc::new(Software::new()), Arc::new(card)])
            .profile(Profile::built_in())
            .give_up_after_ns(GIVE_UP_NS)
            .telemetry(false)
            .clock(Clock::given(move || now.now()))
    }

    pub fn runtime(&self, policy: &str, settings: &[&str]) -> Runtime {
        let settings = Settings::from_pairs(settings.iter().copied()).unwrap();
        self.builder().policy(policy, settings).build().unwrap()
    }
}

/// One thread, whatever was asked for.
pub struct Alone<'a>(pub &'a Runtime);

impl CryptoSource for Alone<'_> {
    fn here<T>(&self, work: impl FnOnce(&mut dyn Crypto) -> T) -> T {
        self.0.here(work)
    }
}

/// Requests of a kind that were done, by whomever.
pub fn done(runtime: &Runtime, kind: Kind) -> u64 {
    runtime.snapshot().cells.iter().filter(|cell| cell.kind == kind.name()).map(|cell| cell.requests).sum()
}

/// Requests that were done where the step before them was done.
pub fn chained(runtime: &Runtime, engine: &str) -> u64 {
    let engines = runtime.snapshot().engines;
    engines.iter().filter(|one| one.engine == engine).map(|one| one.chained).sum()
}

/// Requests of a kind that the card did.
pub fn on_card(runtime: &Runtime, kind: Kind) -> u64 {
    let snapshot = runtime.snapshot();
    let mine = snapshot.cells.iter().filter(|cell| cell.engine == "emulated" && cell.kind == kind.name());
    mine.map(|cell| cell.requests).sum()
}
