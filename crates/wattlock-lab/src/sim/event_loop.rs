//! An event-driven server in virtual time: workers with one loop each, connections that follow scripts, and one card
//! that all of them share. The policy it runs is the production one; what a step costs comes from outside.
//!
//! Two ways to offload. *Straight*: the loop waits for each answer and serves no client meanwhile. *Asynchronous*: the
//! connection pauses, the loop serves others, and answers are found by polling, in the loop when [`Gather::turn`] says so,
//! which also decides in production, or by a thread on a timer. A step may also *block*: all its requests are submitted,
//! then the loop waits for the last.
//!
//! A step's requests are one operation: the policy is asked about all of them, and what it gives to the card is claimed as
//! in the dispatcher ([`Policy::claim`]).
//!
//! Hyper-threads: worker `w` is a thread of core `w % cores`. Costs are those of a thread alone on its core; while
//! another worker of that core runs or spins, a step takes `1 / shared_speed` times as long. The state when a step
//! begins decides for all of it, which steps of some microseconds allow. A worker that waits straight does not run.
//!
//! Refuses to model: the network's rate, memory, and the clients' machine; a client answers after a fixed time.
//! Invariants: one policy, one queue pair and one step under way per worker; every request completes once; events at
//! a time come in the order of scheduling, so a run is a function of its inputs.

use std::collections::{BTreeMap, VecDeque};

use wattlock_core::{Kind, LatencyClass, Nanos, Shape};
use wattlock_emul::{Device, Model, Work};
use wattlock_policy::{
    Ask, EngineId, EngineWeather, Expected, Flight, Gather, GatherRule, Machine, Moment, Next, Policy, Rest,
    Side, Weather,
};

use super::{Events, Random, answered};

/// The CPU's place in the machine that policies see.
pub const CPU: EngineId = EngineId(0);
/// The card's.
pub const CARD: EngineId = EngineId(1);
/// Steps of one run; a server that serves no client ends here instead of never.
const STEPS_MOST: u64 = 20_000_000;

/// One thing a connection needs. Nanoseconds are those of a thread alone on its core.
#[derive(Debug, Clone, Copy)]
pub enum Step {
    /// CPU time that nothing can take away: protocol, kernel, copies.
    Compute(f64),
    /// `count` like requests that may be in flight together.
    Request {
        /// Which operation.
        kind: Kind,
        /// Input bytes of each (output bytes for key derivation).
        bytes: usize,
        /// How many.
        count: u32,
        /// What one takes on the CPU.
        software_ns: f64,
        /// Whether the loop serves no client until all of them are answered, even where it offloads asynchronously.
        blocks: bool,
    },
    /// The other side's turn, for so long.
    Client(f64),
}

/// What a connection does from beginning to end, and how often this is what connections do.
#[derive(Debug, Clone)]
pub struct Script {
    /// Relative frequency.
    pub weight: f64,
    /// One after the other.
    pub steps: Vec<Step>,
}

/// What the loop's own mechanisms cost, in nanoseconds of a thread alone on its core.
#[derive(Debug, Clone, Copy)]
pub struct LoopCosts {
    /// To build a request and put it into a ring.
    pub submit_ns: f64,
    /// To leave a paused connection and come back to it.
    pub resume_ns: f64,
    /// To tell the loop of one answer: 0 where that is an entry in a queue of its own, a system call or two where it
    /// is a file descriptor.
    pub notify_ns: f64,
    /// To look whether there are answers.
    pub poll_ns: f64,
    /// To take one answer.
    pub take_ns: f64,
    /// One turn of a loop that finds nothing to do.
    pub turn_ns: f64,
}

/// How answers are found.
#[derive(Debug, Clone, Copy)]
pub enum Offload {
    /// Waiting for each.
    Straight,
    /// Asynchronous, polled by the loop when this rule says that it is time.
    InLoop(GatherRule),
    /// Asynchronous, polled by a thread that wakes on the worker's own CPU.
    Thread {
        /// From one wake-up to the next.
        every_ns: f64,
        /// What one takes from the worker.
        tick_ns: f64,
    },
}

/// The machine.
#[derive(Debug, Clone)]
pub struct Server {
    /// Event loops.
    pub workers: usize,
    /// Cores they share.
    pub cores: usize,
    /// Speed of a thread while another runs on its core, against one alone.
    pub shared_speed: f64,
    /// The loop's costs.
    pub costs: LoopCosts,
    /// How it offloads.
    pub offload: Offload,
    /// The card.
    pub card: Model,
}

/// What is asked of it.
#[derive(Debug, Clone)]
pub struct Load {
    /// Connections open at any time; each begins anew when it has ended (a closed loop).
    pub connections: usize,
    /// What they do.
    pub scripts: Vec<Script>,
    /// Connections served before the measurement begins.
    pub warm_up: u64,
    /// Connections measured.
    pub measured: u64,
    /// Of the streams of chance.
    pub seed: u64,
}

/// What came out.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Measured {
    /// Connections a second.
    pub per_second: f64,
    /// Mean from beginning to end of a connection, in nanoseconds.
    pub latency_ns: f64,
    /// Share of their time that workers run; turning in an empty loop is not running.
    pub busy: f64,
}

/// Runs it. `policy` is called once for each worker.
pub fn run(server: &Server, load: &Load, policy: &mut dyn FnMut() -> Box<dyn Policy>) -> Measured {
    let mut run = Run::new(server, load, policy);
    for conn in 0..load.connections {
        // Not all at once: a server under load is in no particular phase.
        let at = run.random.between(0.0, 1e6);
        run.events.at(at as Nanos, Event::Ready(conn));
    }
    let mut steps = 0;
    while let Some(event) = run.events.take() {
        steps += 1;
        if run.finished >= load.warm_up + load.measured || steps >= STEPS_MOST {
            break;
        }
        run.handle(event);
    }
    run.measured()
}

#[derive(Debug, Clone, Copy)]
enum Event {
    /// It is a connection's turn again.
    Ready(usize),
    /// A worker's step ends.
    Done(usize, After),
    /// A worker that waits looks again; void if it did something else since.
    Look(usize, u64),
    /// The card has finished something.
    Card,
}

/// What a worker does when its step ends.
#[derive(Debug, Clone, Copy)]
enum After {
    /// This connection's next step.
    Next(usize),
    /// Hands this connection's requests to the card.
    Submit(usize),
    /// Has done this connection's requests, or those that the card was not given.
    Inline(usize),
    /// Takes what answers there are; whether what they wake joins the turn.
    Collect(bool),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Running,
    /// Turning without anything to do, since requests are in flight.
    Spinning,
    /// Asleep in the kernel, or waiting straight.
    Asleep,
}

struct Connection {
    worker: usize,
    script: usize,
    at: usize,
    began: Option<Nanos>,
    /// Requests in flight.
    outstanding: u32,
    /// Requests of this step that nobody has begun.
    left: u32,
    /// Requests that are being submitted, and CPU time of others of this step that follows.
    to_submit: u32,
    inline_ns: f64,
    /// CPU time owed for being resumed.
    debt_ns: f64,
}

struct Answer {
    number: u64,
    conn: usize,
    shape: Shape,
    submitted: Nanos,
    depth: u32,
    /// When the card had it.
    at: Nanos,
}

struct Worker {
    policy: Box<dyn Policy>,
    gather: Gather,
    state: State,
    ready: VecDeque<usize>,
    ring: VecDeque<Answer>,
    in_flight: u32,
    in_flight_bytes: u64,
    asymmetric: u32,
    active: u32,
    /// Connections of this turn of the loop that are left: a turn has those that were ready when it began.
    turn_left: usize,
    /// Whether the first that is ready goes on with what it is at.
    goes_on: bool,
    /// When it last looked for answers, and when before that.
    looked: Nanos,
    before: Nanos,
    /// How long its answers take, and what it has not taken: kind and when it was submitted.
    expected: Expected,
    sent: BTreeMap<u64, (Kind, Nanos)>,
    /// Which [`Event::Look`] counts.
    look: u64,
    /// Whether one is under way.
    told: bool,
    /// Waiting straight for this connection's answer.
    waits_for: Option<usize>,
    inline_seen: u32,
}

impl Worker {
    fn flight(&self) -> Flight {
        Flight {
            in_flight: self.in_flight,
            asymmetric: self.asymmetric,
            active: self.active,
            busy: self.active,
            asked: true,
            // When an answer is due stays unknown: what a loop without work saves by sleeping is no part of the study.
            due: None,
        }
    }

    /// When the first answer is due to be looked for, if that is known of all.
    fn due(&self) -> Option<Nanos> {
        let due = |(kind, since): &(Kind, Nanos)| self.expected.due(*kind, *since, self.looked);
        let mut all = self.sent.values().map(due);
        let first = all.next()??;
        all.try_fold(first, |first, due| Some(first.min(due?)))
    }
}

struct Run<'a> {
    server: &'a Server,
    load: &'a Load,
    events: Events<Event>,
    random: Random,
    device: Device,
    workers: Vec<Worker>,
    connections: Vec<Connection>,
    pending: BTreeMap<u64, (usize, Answer)>,
    number: u64,
    finished: u64,
    latency_ns: f64,
    busy_ns: f64,
    /// When the card is to be looked at for waiting connections; void if it has something sooner.
    card_at: Option<Nanos>,
}

impl<'a> Run<'a> {
    fn new(server: &'a Server, load: &'a Load, policy: &mut dyn FnMut() -> Box<dyn Policy>) -> Run<'a> {
        let rule = match server.offload {
            Offload::InLoop(rule) => rule,
            _ => GatherRule::default(),
        };
        let worker = |_| Worker {
            policy: policy(),
            // Requests go to the card at once: what is left to decide is when to look for answers.
            gather: Gather::new(&Machine::default(), rule, None, false),
            state: State::Asleep,
            ready: VecDeque::new(),
            ring: VecDeque::new(),
            in_flight: 0,
            in_flight_bytes: 0,
            asymmetric: 0,
            active: 0,
            turn_left: 0,
            goes_on: false,
            looked: 0,
            before: 0,
            expected: Expected::default(),
            sent: BTreeMap::new(),
            look: 0,
            told: false,
            waits_for: None,
            inline_seen: 0,
        };
        let workers: Vec<Worker> = (0..server.workers.max(1)).map(worker).collect();
        let connection = |conn| Connection {
            worker: conn % workers.len(),
            script: 0,
            at: 0,
            began: None,
            outstanding: 0,
            left: 0,
            to_submit: 0,
            inline_ns: 0.0,
            debt_ns: 0.0,
        };
        Run {
            server,
            load,
            events: Events::new(),
            random: Random::new(load.seed),
            device: Device::new(server.card.clone(), 0),
            connections: (0..load.connections).map(connection).collect(),
            workers,
            pending: BTreeMap::new(),
            number: 0,
            finished: 0,
            latency_ns: 0.0,
            busy_ns: 0.0,
            card_at: None,
        }
    }

    /// The rate is Little's law, connections over latency: connections that began together end together, so counting
    /// those that ended within a time depends on where the time ends, and the mean latency does not.
    fn measured(&self) -> Measured {
        let count = self.finished.saturating_sub(self.load.warm_up) as f64;
        if count == 0.0 || self.latency_ns == 0.0 {
            return Measured::default();
        }
        let latency_ns = self.latency_ns / count;
        Measured {
            per_second: self.load.connections as f64 / latency_ns * 1e9,
            latency_ns,
            busy: self.busy_ns / (self.events.now().max(1) as f64 * self.workers.len() as f64),
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Ready(conn) => self.on_ready(conn),
            Event::Done(worker, after) => self.on_done(worker, after),
            Event::Look(worker, look) if look == self.workers[worker].look => self.on_look(worker),
            Event::Look(..) => {}
            Event::Card => self.on_card(),
        }
    }

    /// The card has finished something: workers that do nothing but wait for that are told. What a spinning loop does
    /// meanwhile, polling in vain, changes nothing but heat, and is left out.
    fn on_card(&mut self) {
        if self.card_at != Some(self.events.now()) {
            return;
        }
        self.card_at = None;
        self.advance();
        for worker in 0..self.workers.len() {
            let state = &self.workers[worker];
            let Some(first) = state.ring.front().filter(|_| state.state != State::Running && !state.told)
            else {
                continue;
            };
            let at = match self.server.offload {
                Offload::Straight => self.events.now(),
                Offload::InLoop(_) => self.next_turn(),
                Offload::Thread { every_ns, .. } => tick_after(first.at, every_ns),
            };
            self.look_at(worker, at);
        }
        self.watch_card();
    }

    fn next_turn(&self) -> Nanos {
        self.events.now() + self.server.costs.turn_ns.max(1.0) as Nanos
    }

    /// Sees to it that there is an event when the card finishes something.
    fn watch_card(&mut self) {
        let Some(next) = self.device.next_event() else { return };
        if self.card_at.is_none_or(|at| next < at) {
            self.card_at = Some(next);
            self.events.at(next, Event::Card);
        }
    }

    fn on_ready(&mut self, conn: usize) {
        let worker = self.connections[conn].worker;
        if self.connections[conn].began.is_none() {
            self.begin(conn);
            self.workers[worker].active += 1;
        }
        self.workers[worker].ready.push_back(conn);
        if self.workers[worker].state != State::Running && self.workers[worker].waits_for.is_none() {
            self.turn(worker, false);
        }
    }

    fn begin(&mut self, conn: usize) {
        let total: f64 = self.load.scripts.iter().map(|script| script.weight).sum();
        let mut point = self.random.unit() * total;
        let heavier = |script: &Script| {
            point -= script.weight;
            point < 0.0
        };
        let last = self.load.scripts.len().saturating_sub(1);
        let script = self.load.scripts.iter().position(heavier).unwrap_or(last);
        let connection = &mut self.connections[conn];
        (connection.script, connection.at, connection.began) = (script, 0, Some(self.events.now()));
    }

    fn on_done(&mut self, worker: usize, after: After) {
        match after {
            After::Next(conn) => {
                self.connections[conn].at += 1;
                self.go_on(worker, conn);
            }
            After::Submit(conn) => {
                self.submit(worker, conn);
                if self.connections[conn].inline_ns > 0.0 {
                    return self.start_inline(worker, conn, 0.0);
                }
                return self.submitted(worker, conn);
            }
            After::Inline(conn) if self.connections[conn].outstanding > 0 => {
                return self.submitted(worker, conn);
            }
            After::Inline(conn) => {
                let connection = &mut self.connections[conn];
                connection.at += usize::from(connection.left == 0);
                self.go_on(worker, conn);
                return self.turn(worker, true);
            }
            After::Collect(joins) => {
                self.collect(worker);
                if joins {
                    self.workers[worker].turn_left = self.workers[worker].ready.len();
                }
            }
        }
        self.turn(worker, false);
    }

    /// The card has requests of this connection, which pauses, or blocks its loop.
    fn submitted(&mut self, worker: usize, conn: usize) {
        if matches!(self.server.offload, Offload::Straight) || self.blocks(conn) {
            self.workers[worker].waits_for = Some(conn);
            return self.on_look(worker);
        }
        self.turn(worker, true);
    }

    /// A worker that waits looks.
    fn on_look(&mut self, worker: usize) {
        let Some(conn) = self.workers[worker].waits_for else { return self.turn(worker, false) };
        // Of several answers the first may come alone: it is to be told of the others, too.
        self.workers[worker].told = false;
        self.advance();
        if self.workers[worker].ring.is_empty() {
            self.workers[worker].state = State::Asleep;
            return;
        }
        self.collect(worker);
        if self.connections[conn].outstanding > 0 {
            self.workers[worker].state = State::Asleep;
            return;
        }
        self.workers[worker].waits_for = None;
        // The last answer was this connection's: it goes on at once.
        self.workers[worker].ready.retain(|ready| *ready != conn);
        self.go_on(worker, conn);
        self.turn(worker, false);
    }

    /// Whether the step that this connection is at blocks its loop.
    fn blocks(&self, conn: usize) -> bool {
        let Connection { script, at, .. } = self.connections[conn];
        matches!(self.load.scripts[script].steps.get(at), Some(Step::Request { blocks: true, .. }))
    }

    fn look_at(&mut self, worker: usize, at: Nanos) {
        self.workers[worker].told = true;
        self.workers[worker].look += 1;
        self.events.at(at, Event::Look(worker, self.workers[worker].look));
    }

    /// A free worker chooses what to do: look if it is time, else the next connection, else wait. As nginx does it asks
    /// whether it is time where an operation was just submitted or done, and behind a turn's events.
    fn turn(&mut self, worker: usize, submitted: bool) {
        self.workers[worker].look += 1;
        self.workers[worker].told = false;
        if let Offload::Thread { every_ns, .. } = self.server.offload {
            self.advance();
            self.collect_until(worker, ticks_before(self.events.now(), every_ns));
        }
        if matches!(self.server.offload, Offload::InLoop(_))
            && let Some(joins) = self.looks_now(worker, submitted)
        {
            return self.start(worker, self.server.costs.poll_ns, After::Collect(joins));
        }
        let state = &mut self.workers[worker];
        let goes_on = std::mem::take(&mut state.goes_on);
        state.turn_left -= usize::from(!goes_on && state.turn_left > 0);
        match state.ready.pop_front() {
            Some(conn) => self.advance_connection(worker, conn),
            None => self.wait(worker),
        }
    }

    /// Whether it is time to look, and if so, whether what that wakes joins the turn: one in the middle of a turn has it
    /// wait for the next, which begins where nothing else is ready.
    fn looks_now(&mut self, worker: usize, submitted: bool) -> Option<bool> {
        if submitted && self.looks(worker, Moment::Call) {
            return Some(self.workers[worker].ready.is_empty());
        }
        let state = &mut self.workers[worker];
        if state.goes_on || state.turn_left > 0 {
            return None;
        }
        state.turn_left = state.ready.len();
        self.looks(worker, Moment::Quiet).then_some(true)
    }

    /// Whether the loop looks for answers now. A loop with nothing else to do asks in each turn: those that would find
    /// nothing are left out.
    fn looks(&mut self, worker: usize, moment: Moment) -> bool {
        let idle = self.workers[worker].ready.is_empty();
        if idle {
            self.advance();
            if self.workers[worker].ring.is_empty() {
                return false;
            }
        }
        let (now, turn_ns) = (self.events.now(), self.server.costs.turn_ns as Nanos);
        let state = &mut self.workers[worker];
        let due = if moment == Moment::Call { state.due() } else { None };
        let flight = Flight { due, ..state.flight() };
        let next = state.gather.turn(std::iter::empty(), &flight, (moment, 0), now);
        let looks = !matches!(next, Next::Wait(_));
        if looks {
            // A loop that has nothing else to do has looked in the turn before, and found nothing.
            let after = now.saturating_sub(state.looked);
            let after = if idle { after.min(turn_ns) } else { after };
            state.policy.looked(after);
            (state.before, state.looked) = (now - after, now);
        }
        looks
    }

    /// This connection's turn goes on.
    fn go_on(&mut self, worker: usize, conn: usize) {
        self.workers[worker].goes_on = true;
        self.workers[worker].ready.push_front(conn);
    }

    /// Nothing to do: asleep, or spinning while requests are in flight, until the card or a client has something.
    fn wait(&mut self, worker: usize) {
        let state = &mut self.workers[worker];
        let spins = matches!(self.server.offload, Offload::InLoop(_)) && state.in_flight > 0;
        state.state = if spins { State::Spinning } else { State::Asleep };
        let Some(first) = state.ring.front().map(|answer| answer.at) else { return };
        match self.server.offload {
            Offload::Thread { every_ns, .. } => self.look_at(worker, tick_after(first, every_ns)),
            _ => self.look_at(worker, self.next_turn()),
        }
    }

    /// Lets the card's time pass and puts what it finished into the workers' rings.
    fn advance(&mut self) {
        let Run { device, pending, workers, events, .. } = self;
        device.advance(events.now(), &mut |done| {
            if let Some((worker, answer)) = pending.remove(&done.id) {
                workers[worker].ring.push_back(Answer { at: done.at, ..answer });
            }
        });
    }

    /// Takes every answer that is there.
    fn collect(&mut self, worker: usize) {
        self.advance();
        self.collect_until(worker, self.events.now());
    }

    /// Takes the answers that the card had by then.
    fn collect_until(&mut self, worker: usize, by: Nanos) {
        let costs = self.server.costs;
        while self.workers[worker].ring.front().is_some_and(|answer| answer.at <= by) {
            let Some(answer) = self.workers[worker].ring.pop_front() else { return };
            let state = &mut self.workers[worker];
            state.in_flight -= 1;
            state.sent.remove(&answer.number);
            state.expected.found(answer.shape.kind, answer.submitted, state.before, self.events.now());
            state.in_flight_bytes -= answer.shape.bytes as u64;
            state.asymmetric -= u32::from(answer.shape.kind.is_asymmetric());
            let outcome = answered(CARD, answer.at.max(by) - answer.submitted, answer.depth);
            state.policy.observe(&answer.shape, &outcome, self.events.now());
            let connection = &mut self.connections[answer.conn];
            connection.outstanding -= 1;
            connection.debt_ns += costs.take_ns;
            let straight = matches!(self.server.offload, Offload::Straight)
                || self.workers[worker].waits_for == Some(answer.conn);
            if !straight {
                connection.debt_ns += costs.notify_ns;
            }
            if connection.outstanding > 0 {
                continue;
            }
            if connection.left == 0 {
                connection.at += 1;
            }
            if !straight {
                connection.debt_ns += costs.resume_ns;
            }
            self.workers[worker].ready.push_back(answer.conn);
        }
    }

    fn advance_connection(&mut self, worker: usize, conn: usize) {
        let debt = std::mem::take(&mut self.connections[conn].debt_ns);
        let Connection { script, at, left, .. } = self.connections[conn];
        match self.load.scripts[script].steps.get(at).copied() {
            None => self.finish(worker, conn, debt),
            Some(Step::Compute(ns)) => self.start(worker, ns + debt, After::Next(conn)),
            Some(Step::Client(ns)) => {
                self.connections[conn].at += 1;
                // Being resumed comes before the answer to the client leaves.
                self.connections[conn].debt_ns = debt;
                self.events.after(ns as Nanos, Event::Ready(conn));
                self.turn(worker, false);
            }
            Some(Step::Request { kind, bytes, count, software_ns, .. }) => {
                let shape = Shape { kind, bytes, class: LatencyClass::Interactive, messages: 1 };
                let count = if left > 0 { left } else { count.max(1) };
                self.request(worker, conn, &shape, (count, software_ns), debt);
            }
        }
    }

    /// Asks about a step's requests, which are alike and come at the same time, until each has its engine, as the dispatcher
    /// does. A loop that offloads straight has one in hand.
    fn request(
        &mut self,
        worker: usize,
        conn: usize,
        shape: &Shape,
        (count, software_ns): (u32, f64),
        debt: f64,
    ) {
        let now = self.events.now();
        let in_hand = if matches!(self.server.offload, Offload::Straight) { 1 } else { count };
        let (mut of_card, mut of_cpu) = (0, 0);
        while of_card + of_cpu < in_hand {
            let weather = self.weather(worker, of_card, shape.bytes);
            let policy = &mut self.workers[worker].policy;
            let rest = in_hand - of_card - of_cpu;
            let ask = Ask { count: rest, bytes: shape.bytes * count as usize, ..Ask::one(*shape) };
            let choice = policy.choose(&ask, &weather, now);
            let chosen = choice.count.clamp(1, rest);
            if choice.engine != CARD {
                policy.left_undone(shape, choice.engine);
                of_cpu += chosen;
                continue;
            }
            let operation = Rest {
                device: CARD,
                kind: shape.kind,
                pieces: chosen,
                free: chosen,
                out: 0,
                bytes: shape.bytes,
            };
            let room =
                self.server.card.window.requests.saturating_sub(weather.engines[CARD.index()].in_flight);
            let claimed = policy.claim(Side::Device, &operation, &weather).min(chosen).min(room);
            of_card += claimed;
            if claimed < chosen {
                break;
            }
        }
        if of_card + of_cpu == 0 {
            // No room.
            of_cpu = in_hand;
        }
        if of_cpu > 0 {
            // As in the runtime: one inline outcome in 64 is told.
            let state = &mut self.workers[worker];
            state.inline_seen += 1;
            if state.inline_seen.is_multiple_of(64) {
                let outcome = answered(CPU, (software_ns * self.stretch(worker)) as Nanos, 1);
                self.workers[worker].policy.observe(shape, &outcome, now);
            }
        }
        let connection = &mut self.connections[conn];
        (connection.to_submit, connection.left) = (of_card, count - of_card - of_cpu);
        connection.inline_ns = software_ns * f64::from(of_cpu);
        let ns = self.server.costs.submit_ns * f64::from(of_card);
        match of_card {
            0 => self.start_inline(worker, conn, debt),
            _ => self.start(worker, ns + debt, After::Submit(conn)),
        }
    }

    fn start_inline(&mut self, worker: usize, conn: usize, debt: f64) {
        let ns = std::mem::take(&mut self.connections[conn].inline_ns);
        self.start(worker, ns + debt, After::Inline(conn));
    }

    fn submit(&mut self, worker: usize, conn: usize) {
        let now = self.events.now();
        let Connection { script, at, to_submit, .. } = self.connections[conn];
        let Some(Step::Request { kind, bytes, .. }) = self.load.scripts[script].steps.get(at).copied() else {
            return;
        };
        self.advance();
        for _ in 0..to_submit {
            let state = &mut self.workers[worker];
            state.in_flight += 1;
            state.in_flight_bytes += bytes as u64;
            state.asymmetric += u32::from(kind.is_asymmetric());
            let flight = state.flight();
            state.gather.submitted(&flight, now);
            let shape = Shape { kind, bytes, class: LatencyClass::Interactive, messages: 1 };
            state.sent.insert(self.number, (kind, now));
            let (number, depth) = (self.number, state.in_flight);
            let answer = Answer { number, conn, shape, submitted: now, depth, at: now };
            self.connections[conn].outstanding += 1;
            self.pending.insert(self.number, (worker, answer));
            let taken = self.device.accept(now, &[Work::new(self.number, kind, bytes as u64)]);
            debug_assert!(taken.is_ok(), "policies name only engines that do the kind");
            self.number += 1;
        }
        self.watch_card();
    }

    fn finish(&mut self, worker: usize, conn: usize, debt: f64) {
        let now = self.events.now();
        let began = self.connections[conn].began.take().unwrap_or(now);
        self.connections[conn].debt_ns = debt;
        self.finished += 1;
        if self.finished > self.load.warm_up {
            self.latency_ns += (now - began) as f64;
        }
        self.workers[worker].active -= 1;
        self.events.after(0, Event::Ready(conn));
        self.turn(worker, false);
    }

    /// The worker is busy for so long, more where the core is shared and where a thread takes its share.
    fn start(&mut self, worker: usize, ns: f64, after: After) {
        let ns = ns * self.stretch(worker);
        self.busy_ns += ns;
        self.workers[worker].state = State::Running;
        self.events.after(ns.round() as Nanos, Event::Done(worker, after));
    }

    fn stretch(&self, worker: usize) -> f64 {
        let cores = self.server.cores.max(1);
        let on_core = (worker % cores..self.workers.len()).step_by(cores);
        let shared =
            on_core.filter(|other| *other != worker).any(|other| self.workers[other].state != State::Asleep);
        let core = if shared { 1.0 / self.server.shared_speed } else { 1.0 };
        match self.server.offload {
            Offload::Thread { every_ns, tick_ns } => core * (1.0 + tick_ns / every_ns),
            _ => core,
        }
    }

    /// With so many requests of so many bytes about to be submitted.
    fn weather(&self, worker: usize, claimed: u32, bytes: usize) -> Weather {
        let state = &self.workers[worker];
        let mut weather = Weather {
            submitters: self.workers.len() as u16,
            files: self.workers.len() as u16,
            active: state.active,
            idle_permille: 0,
            ..Weather::default()
        };
        weather.engines[CPU.index()].available = true;
        weather.engines[CARD.index()] = EngineWeather {
            available: true,
            in_flight: state.in_flight + claimed,
            in_flight_bytes: state.in_flight_bytes + u64::from(claimed) * bytes as u64,
            window: self.server.card.window.requests,
            window_bytes: self.server.card.window.bytes,
            ..EngineWeather::default()
        };
        weather
    }
}

/// The last tick at or before `now`.
fn ticks_before(now: Nanos, every_ns: f64) -> Nanos {
    let every = every_ns.max(1.0) as Nanos;
    now / every * every
}

/// The first tick after `now`.
fn tick_after(now: Nanos, every_ns: f64) -> Nanos {
    ticks_before(now, every_ns) + every_ns.max(1.0) as Nanos
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattlock_core::{EngineClass, KindSet};
    use wattlock_policy::{Machine, Settings, by_name};
    use wattlock_policy::{inline_engine, queued_engine};

    const IN_LOOP: Offload = Offload::InLoop(GatherRule::Turns);

    const FREE: LoopCosts = LoopCosts {
        submit_ns: 0.0,
        resume_ns: 0.0,
        notify_ns: 0.0,
        poll_ns: 0.0,
        take_ns: 0.0,
        turn_ns: 1.0,
    };

    fn measure(policy: &str, server: &Server, steps: Vec<Step>, connections: usize) -> Measured {
        let machine = Machine {
            engines: vec![
                inline_engine(CPU, EngineClass::Instruction, KindSet::ALL),
                queued_engine(CARD, EngineClass::Accelerator, KindSet::ALL, 256),
            ],
            cores: 8,
            ..Machine::default()
        };
        let load = Load {
            connections,
            scripts: vec![Script { weight: 1.0, steps }],
            warm_up: 500,
            measured: 2000,
            seed: 7,
        };
        run(server, &load, &mut || by_name(policy, machine.clone(), &Settings::default()).unwrap())
    }

    fn server(workers: usize, cores: usize, offload: Offload) -> Server {
        let card =
            "name test\nwindow 256 requests 1000000 bytes\npool all 3 servers\ntable sha-256 0:30000\n";
        let card = Model::parse(card).unwrap();
        Server { workers, cores, shared_speed: 0.7, costs: FREE, offload, card }
    }

    fn hash(count: u32) -> Step {
        Step::Request { kind: Kind::Sha256, bytes: 64, count, software_ns: 50_000.0, blocks: false }
    }

    /// A loop that blocks has the requests of a step in flight together and serves no client meanwhile.
    #[test]
    fn a_blocking_step_takes_the_longest_of_its_requests_and_the_whole_loop() {
        let steps = |blocks| {
            let Step::Request { kind, bytes, count, software_ns, .. } = hash(3) else { unreachable!() };
            vec![Step::Compute(20_000.0), Step::Request { kind, bytes, count, software_ns, blocks }]
        };
        let measured = measure("offload", &server(1, 1, IN_LOOP), steps(true), 32);
        near(measured.per_second, 1e9 / 50_000.0);
        near(measured.busy, 0.4);
        let pausing = measure("offload", &server(1, 1, IN_LOOP), steps(false), 32);
        near(pausing.per_second, 1e9 / 30_000.0);
    }

    fn near(measured: f64, theory: f64) {
        assert!((measured / theory - 1.0).abs() < 0.01, "{measured} against {theory}");
    }

    #[test]
    fn software_is_threads_over_time_and_a_shared_core_is_slower() {
        let steps = || vec![Step::Compute(50_000.0), hash(1)];
        let rate =
            |workers, cores| measure("instruction", &server(workers, cores, IN_LOOP), steps(), 32).per_second;
        near(rate(1, 1), 1e4);
        near(rate(4, 4), 4e4);
        near(rate(4, 2), 4e4 * 0.7);
    }

    #[test]
    fn straight_takes_the_sum_and_asynchronous_the_longer() {
        let steps = || vec![Step::Compute(20_000.0), hash(1)];
        let rate = |offload| measure("offload", &server(1, 1, offload), steps(), 32).per_second;
        near(rate(Offload::Straight), 1e9 / 50_000.0);
        near(rate(IN_LOOP), 1e9 / 20_000.0);
    }

    #[test]
    fn a_full_card_gives_servers_over_service_time() {
        let measured = measure("offload", &server(4, 4, IN_LOOP), vec![Step::Compute(1000.0), hash(1)], 64);
        near(measured.per_second, 3.0 * 1e9 / 30_000.0);
        near(measured.latency_ns, 64.0 * 10_000.0);
    }

    #[test]
    fn requests_of_one_step_are_in_flight_together() {
        let steps = || vec![Step::Client(10_000.0), hash(3)];
        let latency = |offload| measure("offload", &server(1, 1, offload), steps(), 1).latency_ns;
        assert!((latency(IN_LOOP) - 40_000.0).abs() < 10.0);
        assert!((latency(Offload::Straight) - 100_000.0).abs() < 10.0);
    }

    #[test]
    fn a_polling_thread_delays_answers_to_its_next_tick() {
        let thread = Offload::Thread { every_ns: 100_000.0, tick_ns: 0.0 };
        let measured = measure("offload", &server(1, 1, thread), vec![hash(1)], 1);
        near(measured.latency_ns, 100_000.0);
    }

    #[test]
    fn frequencies_of_scripts_are_their_weights() {
        let engine = server(1, 1, IN_LOOP);
        let script = |weight, ns| Script { weight, steps: vec![Step::Compute(ns)] };
        let load = Load {
            connections: 4,
            scripts: vec![script(3.0, 10_000.0), script(1.0, 50_000.0)],
            warm_up: 100,
            measured: 20_000,
            seed: 3,
        };
        let cpu = inline_engine(CPU, EngineClass::Instruction, KindSet::ALL);
        let machine = Machine { engines: vec![cpu], cores: 1, ..Machine::default() };
        let mut policy = || by_name("instruction", machine.clone(), &Settings::default()).unwrap();
        let rate = run(&engine, &load, &mut policy).per_second;
        assert!((rate / 50_000.0 - 1.0).abs() < 0.02, "{rate}");
    }
}
