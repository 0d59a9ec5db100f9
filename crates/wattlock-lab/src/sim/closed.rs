//! A closed system: clients bound to cores, each with one operation at a time, which ask a production policy object who does
//! its pieces. A client is a thread with a policy of its own, as in production.
//!
//! A client's round is some work of its own on the core, then requests; then it begins again. It has so many of them in hand
//! at a time ([`Closed::in_hand`]): these are the pieces of an operation. The client asks about them as the production
//! dispatcher does (`Dispatcher::run_all`) and sees them to their end: the card claims pieces from the front and the client from
//! the back, each as many as the policy says ([`Policy::claim`]); a client whose policy has it wait leaves the core until the
//! card has answered. A piece done on the CPU occupies the core. One for the card costs the core the call. After each of the
//! two, and when it comes back from waiting, a client stands behind the others of its core.
//!
//! What is done is observed, by the card and inside the call. A client is a file: it is in operation from its turn on the core to
//! the round's end, and lately as doors have it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

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

/// A CPU engine: its name and nanoseconds for so many bytes.
pub type Inline<'a> = (EngineId, &'a dyn Fn(usize) -> f64);

/// The system.
pub struct Closed<'a> {
    /// How many cores there are.
    pub cores: usize,
    /// For each client its core.
    pub clients: Vec<usize>,
    /// For each client its policy.
    pub policies: Vec<Box<dyn Policy>>,
    /// What is asked.
    pub kind: Kind,
    /// A round's own work on the core, in nanoseconds.
    pub own_ns: f64,
    /// Bytes of each request of a round; round n of a client is `rounds[n % len]`. A round may have none.
    pub rounds: Vec<Vec<usize>>,
    /// Requests of a round that a client has in hand at a time, the pieces of an operation; at least 1.
    pub in_hand: usize,
    /// What the policy is told an operation's bytes are, where that is more than what is in hand: a file system that
    /// encrypts page by page knows the write its page belongs to.
    pub told_bytes: Option<usize>,
    /// The CPU's engines.
    pub inline: Vec<Inline<'a>>,
    /// The card and its id.
    pub card: (EngineId, Card),
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

/// What a card was given of what a client has in hand.
#[derive(Debug, Clone)]
struct Operation {
    whole: Range<usize>,
    /// Nobody has begun these.
    free: Range<usize>,
    out: u32,
}

#[derive(Debug, Clone)]
struct Client {
    core: usize,
    /// Whether it is in a round.
    inside: bool,
    round: u64,
    /// Requests in hand that the policy was not asked about, and where what is in hand ends.
    hand: Range<usize>,
    operations: Vec<Operation>,
    /// Left its core: the card has to answer first.
    waits: bool,
    /// When it last looked, and whether it has waited since.
    looked: Nanos,
    waited: bool,
    /// Answers that it has not looked for yet.
    inbox: Vec<u64>,
    began: Nanos,
}

impl Client {
    fn out(&self) -> u32 {
        self.operations.iter().map(|one| one.out).sum()
    }

    fn has_free(&self) -> bool {
        self.operations.iter().any(|one| !one.free.is_empty())
    }
}

#[derive(Debug, Clone)]
enum Doing {
    OwnWork(usize),
    /// Of so many pieces, so long, by that engine.
    Inline(usize, EngineId, Range<usize>, Nanos),
    /// With the numbers of the pieces.
    Call(usize, Range<u64>),
}

/// A piece that the card has.
#[derive(Debug, Clone, Copy)]
struct Flying {
    client: usize,
    piece: usize,
    submitted: Nanos,
    depth: u32,
}

#[derive(Default)]
struct Core {
    doing: Option<Doing>,
    ready: VecDeque<usize>,
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
    /// Pieces that cards claimed, by the number that the card knows them by.
    flying: BTreeMap<u64, Flying>,
    number: u64,
    /// Of them, those whose call a core is still making.
    calling: u32,
    /// Emptied within each step; kept for their room.
    ended: Vec<Ended>,
    finished: Vec<u64>,
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
        let cores = self.cores;
        let client = |core: &usize| Client {
            core: *core,
            inside: false,
            round: 0,
            hand: 0..0,
            operations: Vec::new(),
            waits: false,
            looked: 0,
            waited: false,
            inbox: Vec::new(),
            began: 0,
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
            flying: BTreeMap::new(),
            number: 0,
            calling: 0,
            ended: Vec::new(),
            finished: Vec::new(),
            system: self,
        };
        for index in 0..run.clients.len() {
            // Clients begin at different places of the cycle, or all of them would do the same round together.
            run.clients[index].round = index as u64;
            run.cores[run.clients[index].core].ready.push_back(index);
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
        self.system.card.1.advance(now, &mut |one| finished.push(one.id));
        let any = !finished.is_empty();
        for number in finished.drain(..) {
            let index = self.flying[&number].client;
            self.clients[index].inbox.push(number);
            self.wake(index);
        }
        if any {
            self.wake_starved();
        }
        for one in ended.drain(..) {
            self.ended(one.core);
        }
        (self.ended, self.finished) = (ended, finished);
        self.meter();
    }

    /// The card has room for what waits for it.
    fn wake_starved(&mut self) {
        for index in 0..self.clients.len() {
            if self.clients[index].has_free() {
                self.wake(index);
            }
        }
    }

    /// Puts a client that waits behind the others of its core.
    fn wake(&mut self, index: usize) {
        let client = &mut self.clients[index];
        let core = client.core;
        if std::mem::take(&mut client.waits) {
            client.waited = true;
            self.cores[core].ready.push_back(index);
            self.turn(core);
        }
    }

    fn meter(&mut self) {
        let cores = self.cores.len() as f64;
        for usage in [OWN_WORK, CRYPTO, CALLS] {
            self.power.used(self.now, usage, self.cpu.busy_with(usage) as f64 / cores);
        }
        self.power.used(self.now, CARD, self.system.card.1.busy_share());
    }

    /// A core without work turns to its next client.
    fn turn(&mut self, core: usize) {
        while self.cores[core].doing.is_none() {
            let Some(client) = self.cores[core].ready.pop_front() else { return };
            self.go_on(client);
        }
    }

    /// A client looks for its answers. An answer that has lain counts from its submission, as in the dispatcher.
    fn collect(&mut self, index: usize) {
        // Who waited could not have looked before it had its core again.
        let client = &mut self.clients[index];
        let since = if std::mem::take(&mut client.waited) { self.now } else { client.looked };
        client.looked = self.now;
        self.system.policies[index].looked(self.now - since);
        for number in std::mem::take(&mut self.clients[index].inbox) {
            let Some(one) = self.flying.remove(&number) else { continue };
            let outcome = answered(self.card_id(), self.now - one.submitted, one.depth);
            let shape = self.shape(index, one.piece);
            self.system.policies[index].observe(&shape, &outcome, self.now);
            let operations = &mut self.clients[index].operations;
            for operation in operations.iter_mut().filter(|all| all.whole.contains(&one.piece)) {
                operation.out -= 1;
            }
        }
    }

    fn go_on(&mut self, index: usize) {
        if self.clients[index].inside {
            return self.operate(index);
        }
        self.clients[index].inside = true;
        self.files.0.begin(&self.files.1[index]);
        match self.system.own_ns > 0.0 {
            true => self.burst(index, self.system.own_ns, OWN_WORK, |_| Doing::OwnWork(index)),
            false => self.after_own_work(index),
        }
    }

    fn ended(&mut self, core: usize) {
        match self.cores[core].doing.take() {
            Some(Doing::OwnWork(client)) => self.after_own_work(client),
            Some(Doing::Inline(client, engine, pieces, ns)) => {
                let outcome = answered(engine, ns / pieces.len() as Nanos, 1);
                let shape = self.shape(client, pieces.start);
                self.system.policies[client].observe(&shape, &outcome, self.now);
                self.after_part(client);
            }
            Some(Doing::Call(client, numbers)) => self.hand_over(client, numbers),
            None => {}
        }
        self.turn(core);
    }

    fn after_own_work(&mut self, index: usize) {
        match self.plan(index).is_empty() {
            true => self.round_done(index),
            false => {
                self.take_in_hand(index, 0);
                self.operate(index);
            }
        }
    }

    /// What follows in the plan is in hand.
    fn take_in_hand(&mut self, index: usize, at: usize) {
        let end = self.plan(index).len().min(at + self.system.in_hand.max(1));
        self.clients[index].hand = at..end;
    }

    /// The core turns to its other clients before this one goes on, if there is something for it to go on with.
    fn after_part(&mut self, index: usize) {
        let client = &mut self.clients[index];
        if client.hand.is_empty() && client.out() > 0 && !client.has_free() && client.inbox.is_empty() {
            client.waits = true;
        } else {
            self.cores[client.core].ready.push_back(index);
        }
    }

    /// As `Dispatcher::run_all`: asks about what is in hand, then has the card and this client claim what is left.
    fn operate(&mut self, index: usize) {
        self.collect(index);
        while !self.clients[index].hand.is_empty() {
            let hand = self.clients[index].hand.clone();
            let weather = self.weather(index);
            let ask = self.question(index, hand.clone(), true);
            let choice = self.system.policies[index].choose(&ask, &weather, self.now);
            let end = hand.start + (choice.count.clamp(1, ask.count)) as usize;
            self.clients[index].hand.start = end;
            if choice.engine != self.card_id() {
                return self.inline(index, choice.engine, hand.start..end);
            }
            let operations = &mut self.clients[index].operations;
            match operations.last_mut().filter(|last| last.free.end == hand.start) {
                Some(last) => (last.whole.end, last.free.end) = (end, end),
                None => operations.push(Operation { whole: hand.start..end, free: hand.start..end, out: 0 }),
            }
            if self.feed(index) {
                return;
            }
        }
        if self.feed(index) || self.take_part(index) {
            return;
        }
        match self.clients[index].operations.iter().all(|one| one.free.is_empty() && one.out == 0) {
            true => self.hand_done(index),
            false => self.clients[index].waits = true,
        }
    }

    fn rest(&self, index: usize, operation: &Operation) -> Rest {
        let (pieces, free) = (operation.whole.len() as u32, operation.free.len() as u32);
        let Shape { kind, bytes, .. } = self.shape(index, operation.free.start);
        Rest { device: self.card_id(), kind, pieces, free, out: operation.out, bytes }
    }

    /// Has the card claim what it may. Whether that was anything.
    fn feed(&mut self, index: usize) -> bool {
        for which in 0..self.clients[index].operations.len() {
            let operation = self.clients[index].operations[which].clone();
            if operation.free.is_empty() {
                continue;
            }
            let (weather, rest) = (self.weather(index), self.rest(index, &operation));
            let card = &weather.engines[self.card_id().index()];
            let room = card.window.saturating_sub(card.in_flight);
            let most =
                self.system.policies[index].claim(Side::Device, &rest, &weather).min(rest.free).min(room);
            if most == 0 || !card.has_room(rest.bytes) {
                continue;
            }
            let pieces = operation.free.start..operation.free.start + most as usize;
            let operation = &mut self.clients[index].operations[which];
            operation.free.start = pieces.end;
            operation.out += most;
            self.calling += most;
            let first = self.number;
            let in_flight = card.in_flight;
            for (piece, depth) in pieces.zip(in_flight + 1..) {
                let one = Flying { client: index, piece, submitted: self.now, depth };
                self.flying.insert(self.number, one);
                self.number += 1;
            }
            let ns = self.system.card.1.call_ns() * f64::from(most);
            let numbers = first..self.number;
            self.burst(index, ns, CALLS, |_| Doing::Call(index, numbers));
            return true;
        }
        false
    }

    /// Has the client do some of what waits for the card, if the policy has it so. Whether there was anything.
    fn take_part(&mut self, index: usize) -> bool {
        for which in (0..self.clients[index].operations.len()).rev() {
            let operation = self.clients[index].operations[which].clone();
            if operation.free.is_empty() {
                continue;
            }
            let (weather, rest) = (self.weather(index), self.rest(index, &operation));
            let most = self.system.policies[index].claim(Side::Cpu, &rest, &weather).min(rest.free) as usize;
            if most == 0 {
                continue;
            }
            let pieces = operation.free.end - most..operation.free.end;
            self.clients[index].operations[which].free.end = pieces.start;
            let ask = self.question(index, pieces.clone(), false);
            let engine = self.system.policies[index].choose(&ask, &weather, self.now).engine;
            self.inline(index, engine, pieces);
            return true;
        }
        false
    }

    fn inline(&mut self, index: usize, engine: EngineId, pieces: Range<usize>) {
        let ns = self.system.inline.iter().find(|(id, _)| *id == engine).map(|(_, ns)| ns);
        let ns = ns.expect("policies name engines of the machine they were made for");
        let ns = pieces.clone().map(|piece| ns(self.shape(index, piece).bytes)).sum();
        self.burst(index, ns, CRYPTO, |ns| Doing::Inline(index, engine, pieces, ns));
    }

    /// The call is made: the card has these pieces.
    fn hand_over(&mut self, index: usize, numbers: Range<u64>) {
        for number in numbers {
            self.calling -= 1;
            let shape = self.shape(index, self.flying[&number].piece);
            let taken = self.system.card.1.submit(self.now, number, shape.kind, shape.bytes as u64);
            taken.expect("room was asked for, and the kind is the card's");
        }
        self.after_part(index);
    }

    /// What was in hand is done.
    fn hand_done(&mut self, index: usize) {
        let client = &mut self.clients[index];
        client.operations.clear();
        let at = client.hand.end;
        if at >= self.plan(index).len() {
            return self.round_done(index);
        }
        self.take_in_hand(index, at);
        self.operate(index);
    }

    fn round_done(&mut self, index: usize) {
        let now = self.now;
        let client = &mut self.clients[index];
        self.tally.rounds += 1;
        self.tally.latency_ns += (now - client.began) as f64;
        (client.began, client.round, client.inside, client.hand) = (now, client.round + 1, false, 0..0);
        self.files.0.end(&self.files.1[index], now);
        self.go_on(index);
    }

    fn burst(&mut self, index: usize, ns: f64, usage: usize, doing: impl FnOnce(Nanos) -> Doing) {
        let core = self.clients[index].core;
        let vary = 1.0 + self.system.jitter * (2.0 * self.random.unit() - 1.0);
        let ns = (ns * vary).round().max(1.0) as Nanos;
        self.cores[core].doing = Some(doing(ns));
        self.cpu.start(self.now, Burst { usage, ..Burst::new(index as u64, ns).on(core) });
    }

    fn plan(&self, index: usize) -> &[usize] {
        let rounds = &self.system.rounds;
        &rounds[(self.clients[index].round % rounds.len() as u64) as usize]
    }

    fn shape(&self, index: usize, piece: usize) -> Shape {
        let bytes = self.plan(index)[piece];
        Shape { kind: self.system.kind, bytes, class: LatencyClass::Stream, messages: 1 }
    }

    /// Neighbours of one size are one question, about the whole operation's bytes.
    fn question(&self, index: usize, pieces: Range<usize>, may_wait: bool) -> Ask {
        let (shape, plan) = (self.shape(index, pieces.start), self.plan(index));
        let alike = |bytes: &&usize| (**bytes | 1).ilog2() == (shape.bytes | 1).ilog2();
        let alike = plan[pieces.clone()].iter().take_while(alike).count();
        let count = if may_wait { alike } else { pieces.len() } as u32;
        let bytes = self.system.told_bytes.unwrap_or_else(|| plan[pieces].iter().sum());
        Ask { shape, count, bytes, may_wait }
    }

    fn card_id(&self) -> EngineId {
        self.system.card.0
    }

    /// As the dispatcher of a client's thread sees it. No door says how many are active.
    fn weather(&mut self, index: usize) -> Weather {
        let mut weather = Weather {
            idle_permille: self.idle_permille(),
            submitters: self.clients.len().min(usize::from(u16::MAX)) as u16,
            files: self.files.0.count(self.now),
            ..Weather::default()
        };
        for (id, _) in &self.system.inline {
            weather.engines[id.index()].available = true;
        }
        let (id, card) = &self.system.card;
        let state = &mut weather.engines[id.index()];
        state.available = true;
        state.in_flight = self.calling + card.in_flight();
        state.others = state.in_flight.saturating_sub(self.clients[index].out());
        state.held = self.calling;
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
