//! A closed system: clients bound to cores, each with one request at a time, which ask a production policy object where
//! each request goes. Each core is one deciding thread with its own policy, as threads are in production.
//!
//! A client's round is some work of its own on the core, then requests one after the other; then it begins again. A
//! request done on the CPU occupies the core. One for the card costs the core the call; then the core turns to its next
//! client, and takes the completion at its next turn after it. A core turns after each request.
//!
//! It keeps to what the production dispatcher does: completions are observed, work inside the call is not; a request is an
//! operation of one piece, which the card or the core claims as the policy says; what the card has no room for is done on
//! the CPU. A client is a file: it is in operation from its turn on the core to the round's end, and lately as doors have it.

use std::collections::VecDeque;

use wattlock_core::recent::{Mark, Recent};
use wattlock_core::{Kind, LatencyClass, Nanos, Shape};
use wattlock_policy::{Ask, EngineId, Policy, Rest, Side, Weather};

use super::{Burst, Card, Cpu, Ended, Power, Random, answered};

/// What core time counts as, for power: [`Burst::usage`].
pub const OWN_WORK: usize = 0;
/// Cryptography on the CPU.
pub const CRYPTO: usize = 1;
/// Calls to the card.
pub const CALLS: usize = 2;
/// The card itself: only a part of [`Power`], no use of a core.
pub const CARD: usize = 3;

/// How much of the card a policy sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// What the driver has of everybody's requests: the published rules ask it.
    Driver,
    /// This core's own, until it has taken their completions, as production threads do.
    Own,
}

/// A CPU engine: its name and nanoseconds for so many bytes.
pub type Inline<'a> = (EngineId, &'a dyn Fn(usize) -> f64);

/// The system.
pub struct Closed<'a> {
    /// Cores, each with its policy.
    pub policies: Vec<Box<dyn Policy>>,
    /// For each client its core.
    pub clients: Vec<usize>,
    /// What is asked.
    pub kind: Kind,
    /// A round's own work on the core, in nanoseconds.
    pub own_ns: f64,
    /// Bytes of each request of a round; round n of a client is `rounds[n % len]`. A round may have none.
    pub rounds: Vec<Vec<usize>>,
    /// What the policy is told a request's size is, where it is told something else than its bytes: a file system that
    /// encrypts page by page knows the write its page belongs to.
    pub told_bytes: Option<usize>,
    /// The CPU's engines; the first does what the card has no room for.
    pub inline: Vec<Inline<'a>>,
    /// The card and its id.
    pub card: (EngineId, Card),
    /// What policies see of it.
    pub view: View,
    /// CPU times vary uniformly by up to this share, so that nothing runs in lockstep.
    pub jitter: f64,
    /// Seed of that.
    pub seed: u64,
    /// Static power, then that of [`OWN_WORK`], [`CRYPTO`], [`CALLS`] (all cores together) and [`CARD`].
    pub watts: (f64, [f64; 4]),
    /// Rounds before measuring, and rounds measured.
    pub warm: u64,
    /// See above.
    pub measured: u64,
}

/// What came of it, over the measured rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Steady {
    /// Rounds a second.
    pub rounds_per_s: f64,
    /// Mean time of a round.
    pub latency_ns: f64,
    /// Mean watts; modelled.
    pub watts: f64,
    /// Utilisation of [`OWN_WORK`], [`CRYPTO`], [`CALLS`] (shares of all cores) and [`CARD`].
    pub used: [f64; 4],
}

impl Steady {
    /// Share of the cores' time in which they did nothing.
    pub fn idle(&self) -> f64 {
        1.0 - self.used[OWN_WORK] - self.used[CRYPTO] - self.used[CALLS]
    }
}

/// What a client is to do when it next has its core.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Next {
    Round,
    Request,
    Complete,
}

#[derive(Debug, Clone, Copy)]
struct Client {
    core: usize,
    next: Next,
    round: u64,
    request: usize,
    began: Nanos,
    submitted: Nanos,
    depth: u32,
}

#[derive(Debug, Clone, Copy)]
enum Doing {
    OwnWork(usize),
    Inline(usize),
    Call(usize),
}

#[derive(Default)]
struct Core {
    doing: Option<Doing>,
    ready: VecDeque<usize>,
    /// Completions not taken yet, and when the card had them: that is what a response says of its latency.
    inbox: VecDeque<(usize, Nanos)>,
    in_flight: u32,
    /// How many are bound to it.
    clients: u32,
}

/// How often the idle share is looked at.
const IDLE_EVERY_NS: Nanos = 2_000_000;

struct Run<'a> {
    system: Closed<'a>,
    now: Nanos,
    cpu: Cpu,
    cores: Vec<Core>,
    clients: Vec<Client>,
    /// The same as files.
    files: (Recent, Vec<Mark>),
    random: Random,
    power: Power,
    idle: (Nanos, u128, u16),
    tally: Tally,
    /// Emptied within each step; kept for their room.
    ended: Vec<Ended>,
    finished: Vec<(usize, Nanos)>,
}

#[derive(Default, Clone, Copy)]
struct Tally {
    rounds: u64,
    latency_ns: f64,
}

impl Closed<'_> {
    /// Lets it run.
    ///
    /// # Panics
    /// If a client's core, a round or a policy's engine does not exist: the studies make these, not their users.
    pub fn run(self) -> Steady {
        let cores = self.policies.len();
        let client = |core: &usize| Client {
            core: *core,
            next: Next::Round,
            round: 0,
            request: 0,
            began: 0,
            submitted: 0,
            depth: 0,
        };
        let mut run = Run {
            now: 0,
            cpu: Cpu::new(cores),
            cores: (0..cores).map(|_| Core::default()).collect(),
            clients: self.clients.iter().map(client).collect(),
            files: (Recent::default(), self.clients.iter().map(|_| Mark::default()).collect()),
            random: Random::new(self.seed),
            power: Power::new(self.watts.0, &self.watts.1),
            idle: (0, 0, 0),
            tally: Tally::default(),
            ended: Vec::new(),
            finished: Vec::new(),
            system: self,
        };
        for index in 0..run.clients.len() {
            // Clients begin at different places of the cycle, or all of them would do the same round together.
            run.clients[index].round = index as u64;
            let core = &mut run.cores[run.clients[index].core];
            core.ready.push_back(index);
            core.clients += 1;
        }
        (0..cores).for_each(|core| run.turn(core));
        run.until(run.system.warm);
        let (start, before, used, joules) = (run.now, run.tally, run.used(), run.power.joules(run.now));
        run.until(run.system.warm + run.system.measured);
        let (ns, after, used_after) = ((run.now - start).max(1) as f64, run.tally, run.used());
        let rounds = (after.rounds - before.rounds).max(1) as f64;
        Steady {
            rounds_per_s: rounds * 1e9 / ns,
            latency_ns: (after.latency_ns - before.latency_ns) / rounds,
            watts: (run.power.joules(run.now) - joules) / (ns / 1e9),
            used: std::array::from_fn(|part| (used_after[part] - used[part]) / ns),
        }
    }
}

impl Run<'_> {
    fn until(&mut self, rounds: u64) {
        while self.tally.rounds < rounds {
            let next = self.cpu.next_event().into_iter().chain(self.system.card.1.next_event()).min();
            let Some(at) = next else { return };
            self.now = at;
            self.step();
        }
    }

    /// Integrals of the utilisations up to now, in nanoseconds.
    fn used(&mut self) -> [f64; 4] {
        std::array::from_fn(|part| self.power.utilisation(self.now, part) * self.now as f64)
    }

    fn step(&mut self) {
        let now = self.now;
        let (mut ended, mut finished) = (std::mem::take(&mut self.ended), std::mem::take(&mut self.finished));
        self.cpu.advance(now, &mut |one| ended.push(one));
        self.system.card.1.advance(now, &mut |one| finished.push((one.id as usize, one.at)));
        for (client, at) in finished.drain(..) {
            let core = self.clients[client].core;
            self.cores[core].inbox.push_back((client, at));
            self.turn(core);
        }
        for one in ended.drain(..) {
            self.ended(one.core);
        }
        (self.ended, self.finished) = (ended, finished);
        self.meter();
    }

    fn meter(&mut self) {
        let cores = self.cores.len() as f64;
        for usage in [OWN_WORK, CRYPTO, CALLS] {
            self.power.used(self.now, usage, self.cpu.busy_with(usage) as f64 / cores);
        }
        self.power.used(self.now, CARD, self.system.card.1.busy_share());
    }

    /// A core without work takes its completions, and turns to its next client.
    fn turn(&mut self, core: usize) {
        while self.cores[core].doing.is_none() {
            self.collect(core);
            let Some(client) = self.cores[core].ready.pop_front() else { return };
            self.go_on(client);
        }
    }

    fn collect(&mut self, core: usize) {
        while let Some((index, finished)) = self.cores[core].inbox.pop_front() {
            self.cores[core].in_flight -= 1;
            let client = self.clients[index];
            let outcome = answered(self.card_id(), finished - client.submitted, client.depth);
            let shape = self.told(index);
            self.system.policies[core].observe(&shape, &outcome, self.now);
            self.clients[index].next = Next::Complete;
            self.cores[core].ready.push_back(index);
        }
    }

    fn go_on(&mut self, index: usize) {
        if self.clients[index].next == Next::Round {
            self.files.0.begin(&self.files.1[index]);
        }
        match self.clients[index].next {
            Next::Round if self.system.own_ns > 0.0 => {
                self.burst(index, self.system.own_ns, OWN_WORK, Doing::OwnWork(index));
            }
            Next::Round => self.after_own_work(index),
            Next::Request => self.ask(index),
            Next::Complete => self.request_done(index),
        }
    }

    fn ended(&mut self, core: usize) {
        match self.cores[core].doing.take() {
            Some(Doing::OwnWork(client)) => self.after_own_work(client),
            Some(Doing::Inline(client)) => self.request_done(client),
            Some(Doing::Call(client)) => self.hand_over(client),
            None => {}
        }
        self.turn(core);
    }

    fn after_own_work(&mut self, index: usize) {
        match self.plan(index).is_empty() {
            true => self.round_done(index),
            false => self.ask(index),
        }
    }

    fn ask(&mut self, index: usize) {
        let (core, shape) = (self.clients[index].core, self.told(index));
        let weather = self.weather(core);
        let choice = self.system.policies[core].choose(&Ask::one(shape), &weather, self.now);
        if choice.engine != self.card_id() {
            return self.inline(index, choice.engine);
        }
        let rest =
            Rest { device: choice.engine, kind: shape.kind, pieces: 1, free: 1, out: 0, bytes: shape.bytes };
        let policy = &mut self.system.policies[core];
        if policy.claim(Side::Device, &rest, &weather) == 0 && policy.claim(Side::Cpu, &rest, &weather) > 0 {
            let engine = policy.choose(&Ask::inline(shape), &weather, self.now).engine;
            return self.inline(index, engine);
        }
        self.cores[core].in_flight += 1;
        (self.clients[index].submitted, self.clients[index].depth) = (self.now, self.cores[core].in_flight);
        self.call(index);
    }

    fn inline(&mut self, index: usize, engine: EngineId) {
        let ns = self.system.inline.iter().find(|(id, _)| *id == engine).map(|(_, ns)| ns);
        let ns = ns.expect("policies name engines of the machine they were made for");
        let ns = ns(self.shape(index).bytes);
        self.burst(index, ns, CRYPTO, Doing::Inline(index));
    }

    fn call(&mut self, index: usize) {
        self.burst(index, self.system.card.1.call_ns(), CALLS, Doing::Call(index));
    }

    fn hand_over(&mut self, index: usize) {
        let (shape, core) = (self.shape(index), self.clients[index].core);
        if self.system.card.1.submit(self.now, index as u64, shape.kind, shape.bytes as u64).is_ok() {
            return;
        }
        self.cores[core].in_flight -= 1;
        let fallback = self.system.inline[0].0;
        self.inline(index, fallback);
    }

    fn request_done(&mut self, index: usize) {
        let requests = self.plan(index).len();
        let client = &mut self.clients[index];
        client.request += 1;
        if client.request >= requests {
            return self.round_done(index);
        }
        client.next = Next::Request;
        self.cores[self.clients[index].core].ready.push_back(index);
    }

    fn round_done(&mut self, index: usize) {
        let now = self.now;
        let client = &mut self.clients[index];
        self.tally.rounds += 1;
        self.tally.latency_ns += (now - client.began) as f64;
        (client.began, client.round, client.request, client.next) = (now, client.round + 1, 0, Next::Round);
        self.cores[client.core].ready.push_back(index);
        self.files.0.end(&self.files.1[index], now);
    }

    fn burst(&mut self, index: usize, ns: f64, usage: usize, doing: Doing) {
        let core = self.clients[index].core;
        let vary = 1.0 + self.system.jitter * (2.0 * self.random.unit() - 1.0);
        let ns = (ns * vary).round().max(1.0) as Nanos;
        self.cores[core].doing = Some(doing);
        self.cpu.start(self.now, Burst { usage, ..Burst::new(index as u64, ns).on(core) });
    }

    fn plan(&self, index: usize) -> &[usize] {
        let rounds = &self.system.rounds;
        &rounds[(self.clients[index].round % rounds.len() as u64) as usize]
    }

    fn shape(&self, index: usize) -> Shape {
        let bytes = self.plan(index)[self.clients[index].request];
        Shape { kind: self.system.kind, bytes, class: LatencyClass::Stream, messages: 1 }
    }

    /// What the policy sees of it.
    fn told(&self, index: usize) -> Shape {
        let shape = self.shape(index);
        Shape { bytes: self.system.told_bytes.unwrap_or(shape.bytes), ..shape }
    }

    fn card_id(&self) -> EngineId {
        self.system.card.0
    }

    fn weather(&mut self, core: usize) -> Weather {
        let (clients, cores) = (self.clients.len(), self.cores.len());
        let (submitters, active) = match self.system.view {
            View::Driver => (clients, clients as u32),
            View::Own => (clients.min(cores), self.cores[core].clients),
        };
        let mut weather = Weather {
            idle_permille: self.idle_permille(),
            submitters: submitters.min(usize::from(u16::MAX)) as u16,
            files: self.files.0.count(self.now),
            active,
            ..Weather::default()
        };
        for (id, _) in &self.system.inline {
            weather.engines[id.index()].available = true;
        }
        let (id, card) = &self.system.card;
        let state = &mut weather.engines[id.index()];
        state.available = true;
        state.in_flight = match self.system.view {
            View::Driver => card.in_flight(),
            View::Own => self.cores[core].in_flight,
        };
        state.window = card.model().window.requests;
        state.in_flight_bytes = card.in_flight_bytes();
        state.window_bytes = card.model().window.bytes;
        weather
    }

    fn idle_permille(&mut self) -> u16 {
        let (since, busy, permille) = self.idle;
        let ns = self.now.saturating_sub(since);
        if ns < IDLE_EVERY_NS {
            return permille;
        }
        let all = self.cpu.all_busy_ns();
        let share = 1.0 - (all - busy) as f64 / (ns as f64 * self.cores.len() as f64);
        self.idle = (self.now, all, (1000.0 * share.clamp(0.0, 1.0)) as u16);
        self.idle.2
    }
}
