//! One deciding thread in virtual time: CPU engines that occupy it, CPU lanes that occupy it once for a whole batch, and
//! devices with servers behind a window. It gathers what is in hand and asks a production policy object about all of it, as
//! the production threads do. What the policy gives to a device are the pieces of an operation: the device and this thread
//! claim them as the policy says ([`Policy::claim`]). Everything is simulated and repeatable; no number that comes out of here says
//! anything about real hardware.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use wattlock_core::{Kind, KindSet, LatencyClass, Nanos, Shape};
use wattlock_policy::{
    Ask, Choice, EngineClass, EngineId, EngineView, Machine, Objective, Outcome, Policy, Rest, Side, Weather,
    Widths,
};

use super::{Random, answered};

/// One engine's true behaviour: `setup + bytes * per_byte`, times a random factor within `1 +- noise`.
#[derive(Debug, Clone, Copy)]
pub struct Model {
    /// What sort of machine it is.
    pub class: EngineClass,
    /// Nanoseconds of a request without a byte.
    pub setup_ns: f64,
    /// Nanoseconds of a byte.
    pub per_byte_ns: f64,
    /// How far single times are from their mean at most, as a share.
    pub noise: f64,
    /// Requests a pass serves.
    pub width: u16,
    /// What a pass at most half full takes of a whole one's time: lanes do RSA in half the time for four.
    pub thin: f64,
    /// Whether calibration measured batches, too.
    pub batches: bool,
    /// Requests a device works on at once.
    pub servers: usize,
    /// What calibration says, as a multiple of the truth; 0 for no calibration.
    pub believed: f64,
    /// Watts while it works, for joules; 0 for no meter.
    pub watts: f64,
}

impl Model {
    /// One request at a time, on the thread.
    pub fn cpu(setup_ns: f64, per_byte_ns: f64) -> Model {
        Model {
            class: EngineClass::Instruction,
            setup_ns,
            per_byte_ns,
            noise: 0.15,
            width: 1,
            thin: 1.0,
            batches: true,
            servers: 1,
            believed: 1.0,
            watts: 0.0,
        }
    }

    /// Eight requests at a time, on the thread.
    pub fn lanes(pass_ns: f64) -> Model {
        Model { class: EngineClass::Lanes, width: 8, ..Model::cpu(pass_ns, 0.0) }
    }

    /// Requests on other threads, so many at a time.
    pub fn device(setup_ns: f64, per_byte_ns: f64, servers: usize) -> Model {
        Model { class: EngineClass::Accelerator, servers, ..Model::cpu(setup_ns, per_byte_ns) }
    }

    fn ns(&self, bytes: usize) -> f64 {
        self.setup_ns + self.per_byte_ns * bytes as f64
    }

    /// What so many together take of a whole pass's time.
    fn share(&self, batch: usize) -> f64 {
        if 2 * batch <= usize::from(self.width) { self.thin } else { 1.0 }
    }

    fn is_lanes(&self) -> bool {
        self.class.is_cpu() && self.width > 1
    }
}

/// What calibration tells a policy about these engines.
pub fn machine(models: &[Model], kind: Kind, objective: Objective) -> Machine {
    let mut machine = Machine { cores: 1, objective, ..Machine::default() };
    for (index, model) in models.iter().enumerate() {
        let id = EngineId(index as u8);
        let queued = !model.class.is_cpu();
        machine.engines.push(EngineView {
            id,
            class: model.class,
            inline: if queued { KindSet::EMPTY } else { KindSet::ALL },
            queued: if queued { KindSet::ALL } else { KindSet::EMPTY },
            widths: Widths::all(model.width),
            window: if queued { WINDOW } else { 0 },
        });
        if model.believed > 0.0 {
            let point = |bytes: usize| {
                let ns = model.ns(bytes) * model.share(1) * model.believed;
                (bytes, ns, (model.watts > 0.0).then_some(ns * model.watts))
            };
            machine.costs.set(id, kind, vec![point(0), point(1 << 16), point(1 << 24)]);
            if model.batches && model.is_lanes() {
                let batch = |count: u16| (count, model.ns(0) * model.share(usize::from(count)));
                machine.costs.set_batches(id, kind, (1..=model.width).map(batch).collect());
            }
        }
    }
    machine
}

/// The asking thread, and what it asks for.
#[derive(Debug, Clone)]
pub struct Load {
    /// Which operation.
    pub kind: Kind,
    /// How long its callers may wait.
    pub class: LatencyClass,
    /// Input bytes; each is as likely as any other.
    pub sizes: Vec<usize>,
    /// `Ok(c)`: c clients, each with one request at a time. `Err(rate)`: Poisson arrivals, requests per nanosecond.
    pub arrivals: Result<u32, f64>,
    /// Whether the door says how many are active.
    pub says_active: bool,
    /// Requests of the whole run.
    pub requests: usize,
}

/// What came of it, after the first quarter.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Requests per nanosecond.
    pub throughput: f64,
    /// From arrival to completion.
    pub mean_latency_ns: f64,
    /// Nanojoules per request.
    pub energy_nj: f64,
    /// Requests given to each engine.
    pub by_engine: Vec<usize>,
    /// Times the choice differed from the one before.
    pub switches: usize,
    /// Every answer of the policy.
    pub choices: Vec<Choice>,
}

/// Something that happens to an engine at a time.
#[derive(Debug, Clone, Copy)]
pub enum Event {
    /// Its service time is multiplied from then on.
    Slow(usize, f64),
    /// Whether it fails from then on.
    Failing(usize, bool),
}

#[derive(Clone, Copy)]
struct Asked {
    bytes: usize,
    arrived: Nanos,
}

/// A request on a device; ordered by when it is done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Flying {
    done: Nanos,
    number: u64,
    engine: usize,
    bytes: usize,
    arrived: Nanos,
    submitted: Nanos,
    depth: u32,
    failed: bool,
}

struct State<'a> {
    models: &'a [Model],
    load: &'a Load,
    policy: &'a mut dyn Policy,
    now: Nanos,
    runnable: VecDeque<Asked>,
    flying: BinaryHeap<Reverse<Flying>>,
    free: Vec<Vec<Nanos>>,
    in_flight: Vec<u32>,
    next_arrival: Nanos,
    sizes: Random,
    noise: Random,
    gaps: Random,
    slow: Vec<f64>,
    failing: Vec<bool>,
    done: usize,
    started: Option<Nanos>,
    latency: f64,
    energy: f64,
    report: Report,
}

/// Requests that a device takes at a time.
const WINDOW: u32 = 64;

/// The deciding thread's own time to put a request through a queue; the policies' default is the same.
const SUBMIT_NS: Nanos = 500;

/// Runs the load on the machine under the policy.
///
/// # Panics
/// If a model has no server, or the policy names what the machine does not have.
pub fn run(models: &[Model], load: &Load, policy: &mut dyn Policy, events: &[(Nanos, Event)]) -> Report {
    let mut state = State {
        models,
        load,
        policy,
        now: 0,
        runnable: VecDeque::new(),
        flying: BinaryHeap::new(),
        free: models.iter().map(|model| vec![0; model.servers]).collect(),
        in_flight: vec![0; models.len()],
        next_arrival: Nanos::MAX,
        sizes: Random::new(1),
        noise: Random::new(2),
        gaps: Random::new(3),
        slow: vec![1.0; models.len()],
        failing: vec![false; models.len()],
        done: 0,
        started: None,
        latency: 0.0,
        energy: 0.0,
        report: Report { by_engine: vec![0; models.len()], ..Report::default() },
    };
    match load.arrivals {
        Ok(clients) => (0..clients).for_each(|_| state.ask(0)),
        Err(_) => state.next_arrival = 0,
    }
    let mut events = events.iter().peekable();
    while state.done < load.requests {
        while let Some((_, event)) = events.next_if(|(at, _)| *at <= state.now) {
            match *event {
                Event::Slow(engine, factor) => state.slow[engine] = factor,
                Event::Failing(engine, failing) => state.failing[engine] = failing,
            }
        }
        state.turn();
    }
    state.finish()
}

/// Runs one engine for everything.
pub fn run_fixed(engine: usize, models: &[Model], load: &Load) -> Report {
    run(models, load, &mut Fixed(engine), &[])
}

/// Always the same engine, for as many as are in hand.
struct Fixed(usize);

impl Policy for Fixed {
    fn name(&self) -> &'static str {
        "fixed"
    }

    fn choose(&mut self, ask: &Ask, _: &Weather, _: Nanos) -> Choice {
        Choice { count: ask.count.min(8), ..Choice::now(EngineId(self.0 as u8)) }
    }
}

impl State<'_> {
    /// One turn of the thread's loop: completions, arrivals, what was gathered, or sleep.
    fn turn(&mut self) {
        self.collect();
        self.arrive();
        match self.runnable.is_empty() {
            false => self.decide(),
            true => self.sleep(),
        }
    }

    fn sleep(&mut self) {
        let completion = self.flying.peek().map(|Reverse(flying)| flying.done);
        let next = [completion, Some(self.next_arrival)].into_iter().flatten().min();
        self.now = self.now.max(next.expect("something will happen"));
    }

    fn collect(&mut self) {
        while self.flying.peek().is_some_and(|Reverse(flying)| flying.done <= self.now) {
            let Some(Reverse(flying)) = self.flying.pop() else { return };
            self.in_flight[flying.engine] -= 1;
            let shape = self.shape(flying.bytes);
            let outcome = Outcome {
                energy_nj: self.joules(flying.engine, flying.bytes, 1),
                failed: flying.failed,
                ..answered(EngineId(flying.engine as u8), flying.done - flying.submitted, flying.depth)
            };
            self.policy.observe(&shape, &outcome, self.now);
            let asked = Asked { bytes: flying.bytes, arrived: flying.arrived };
            if flying.failed {
                // The runtime repeats it on the CPU.
                self.now += self.service(0, flying.bytes);
            }
            self.complete(asked);
        }
    }

    fn arrive(&mut self) {
        let Err(rate) = self.load.arrivals else { return };
        while self.next_arrival <= self.now {
            let at = self.next_arrival;
            self.ask(at);
            let gap = -(1.0 - self.gaps.unit()).ln() / rate;
            self.next_arrival = at + gap.max(1.0) as Nanos;
        }
    }

    fn ask(&mut self, arrived: Nanos) {
        let size = self.sizes.below(self.load.sizes.len() as u64) as usize;
        self.runnable.push_back(Asked { bytes: self.load.sizes[size], arrived });
    }

    fn shape(&self, bytes: usize) -> Shape {
        Shape { kind: self.load.kind, bytes, class: self.load.class, messages: 1 }
    }

    fn service(&mut self, engine: usize, bytes: usize) -> Nanos {
        let model = &self.models[engine];
        let noise = 1.0 + model.noise * (2.0 * self.noise.unit() - 1.0);
        (model.ns(bytes) * noise * self.slow[engine]).max(1.0) as Nanos
    }

    fn joules(&self, engine: usize, bytes: usize, batch: usize) -> Option<u64> {
        let model = &self.models[engine];
        (model.watts > 0.0).then(|| (model.ns(bytes) * model.watts / batch as f64) as u64)
    }

    fn weather(&self) -> Weather {
        let mut weather = Weather { submitters: 1, ..Weather::default() };
        for (index, state) in weather.engines[..self.models.len()].iter_mut().enumerate() {
            state.available = true;
            state.in_flight = self.in_flight[index];
            state.window = if self.models[index].class.is_cpu() { 0 } else { WINDOW };
        }
        if self.load.says_active {
            weather.active = self.runnable.len() as u32 + weather.in_flight();
        }
        weather
    }

    /// Asks about everything gathered that is of the first one's size.
    fn decide(&mut self) {
        let bytes = self.runnable[0].bytes;
        let count = self.runnable.iter().take_while(|asked| asked.bytes == bytes).count() as u32;
        let ask = Ask { count, ..Ask::one(self.shape(bytes)) };
        let choice = self.policy.choose(&ask, &self.weather(), self.now);
        assert!((1..=count).contains(&choice.count), "{choice:?} of {count}");
        let engine = choice.engine.index();
        if self.models[engine].class.is_cpu() {
            self.note(&choice, choice.count);
            return self.together(engine, choice.count);
        }
        let pieces = choice.count;
        let rest = Rest { device: choice.engine, kind: ask.shape.kind, pieces, free: pieces, out: 0, bytes };
        let claims = |side| self.policy.claim(side, &rest, &self.weather());
        let of_device = claims(Side::Device).min(pieces).min(WINDOW.saturating_sub(self.in_flight[engine]));
        let of_cpu = claims(Side::Cpu).min(pieces);
        if of_device > 0 {
            self.note(&choice, of_device);
            for _ in 0..of_device {
                let asked = self.runnable.pop_front().expect("so many are in hand");
                self.submit(engine, asked);
            }
        } else if of_cpu > 0 {
            let ask = Ask { count: of_cpu, may_wait: false, ..Ask::one(self.shape(bytes)) };
            let inside = self.policy.choose(&ask, &self.weather(), self.now);
            self.note(&inside, of_cpu);
            self.together(inside.engine.index(), of_cpu);
        } else {
            self.sleep_until_room(engine);
        }
    }

    /// Counts what was decided about so many.
    fn note(&mut self, choice: &Choice, count: u32) {
        if self.report.choices.last().is_some_and(|last| last.engine != choice.engine) {
            self.report.switches += 1;
        }
        self.report.choices.push(*choice);
        self.report.by_engine[choice.engine.index()] += count as usize;
    }

    /// Has a CPU engine do the first so many, in passes.
    fn together(&mut self, engine: usize, count: u32) {
        let model = &self.models[engine];
        let size = if model.is_lanes() { usize::from(model.width) } else { 1 };
        let mut batch: Vec<Asked> = self.runnable.drain(..count as usize).collect();
        while !batch.is_empty() {
            let part: Vec<Asked> = batch.drain(..batch.len().min(size)).collect();
            self.execute(engine, &part);
        }
    }

    fn sleep_until_room(&mut self, engine: usize) {
        let mine = self.flying.iter().filter(|Reverse(flying)| flying.engine == engine);
        let first = mine.map(|Reverse(flying)| flying.done).min();
        self.now = self.now.max(first.expect("a full window empties"));
    }

    /// A pass, or one request.
    fn execute(&mut self, engine: usize, batch: &[Asked]) {
        let bytes = batch.iter().map(|asked| asked.bytes).max().unwrap_or(0);
        let share = self.models[engine].share(batch.len());
        let service = (self.service(engine, bytes) as f64 * share).max(1.0) as Nanos;
        self.now += service;
        let outcome = Outcome {
            batch: batch.len() as u16,
            energy_nj: self.joules(engine, bytes, batch.len()),
            ..answered(EngineId(engine as u8), service, 1)
        };
        if self.started.is_some() {
            self.energy += outcome.energy_nj.unwrap_or(0) as f64 * batch.len() as f64;
        }
        self.policy.observe(&self.shape(bytes), &outcome, self.now);
        batch.iter().for_each(|asked| self.complete(*asked));
    }

    fn submit(&mut self, engine: usize, asked: Asked) {
        self.now += SUBMIT_NS;
        self.in_flight[engine] += 1;
        let service = self.service(engine, asked.bytes);
        let server = self.free[engine].iter_mut().min().expect("a server");
        let done = (*server).max(self.now) + service;
        *server = done;
        let flying = Flying {
            done,
            number: self.report.choices.len() as u64,
            engine,
            bytes: asked.bytes,
            arrived: asked.arrived,
            submitted: self.now,
            depth: self.in_flight[engine],
            failed: self.failing[engine],
        };
        if self.started.is_some() {
            self.energy += self.joules(engine, asked.bytes, 1).unwrap_or(0) as f64;
        }
        self.flying.push(Reverse(flying));
    }

    fn complete(&mut self, asked: Asked) {
        self.done += 1;
        if self.started.is_some() {
            self.latency += (self.now - asked.arrived) as f64;
        } else if self.done >= self.load.requests / 4 {
            self.started = Some(self.now);
        }
        if self.load.arrivals.is_ok() {
            self.ask(self.now);
        }
    }

    fn finish(mut self) -> Report {
        let counted = (self.done - self.load.requests / 4) as f64;
        let elapsed = self.now - self.started.expect("warmed up");
        self.report.throughput = counted / elapsed as f64;
        self.report.mean_latency_ns = self.latency / counted;
        self.report.energy_nj = self.energy / counted;
        self.report
    }
}
