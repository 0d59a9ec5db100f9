//! `adaptive`, ours and the default: estimates what each engine would take for this request, given what is already
//! queued, and names the cheapest under the machine's [`Objective`]. It refuses to guess from names or classes where
//! somebody measured, and to experiment at the caller's expense beyond the bounds below.
//!
//! *Time.* Three ways of doing work are compared in one currency, the request's own nanoseconds plus the delay it
//! causes to those who wait for this thread. With `w` others waiting (`active - in flight - 1`), `u` that usually wait
//! (the mean of w over about 32 requests) and `W(w) = D * (w + (w+1) * u)`:
//!
//! - inside the call: `T * (1 + W(w))`;
//! - in CPU lanes, a pass of `P` shared by `b` requests (`b` at most the width): `(P/b + submit) * (1 + W(w))`, which
//!   against the first is the question whether a pass is worth its while; against a device it is
//!   `P + P/b * W(w+1-b) + submit * (1 + W(w))`, because those who share the pass are not delayed by it;
//! - on a device with `q` in flight and `k` servers: `P + D * max(0, q+1-k) * mean/k + submit * (1 + W(w))`.
//!
//! W is more than the `D*w` of those who wait now: a thread for which some usually wait is near its limit, and what it
//! does longer delays those who come while it catches up (in M/M/1 work costs others as `(1 + w) / (1 - utilisation)`).
//! (Found in the lab: event loops with 6 to 12 connections each did elliptic curves themselves whenever nobody happened
//! to wait, and served 12 % fewer handshakes.) Where a device is crowded, u counts as 0.
//!
//! `submit` is what a request through the engine's queue costs this thread: by calibration
//! ([`Costs::submit_ns`](crate::Costs::submit_ns)), and then part of P, which counts from submission; else
//! `adaptive.submit_ns`, beyond P. Where all results of a kind are checked, it contains the check
//! ([`Costs::check_ns`](crate::Costs::check_ns)), which is beyond P as well.
//!
//! On the thread, completions that mature on devices meanwhile (`min(q, k) * T/mean`, each delayed by half of T or
//! more) count as waiting too. With D = 1 this would be join-the-shortest-queue; D = 2 because whoever is delayed
//! delays others again: a device with room is used a little before it is the faster one, as EECA fills its
//! accelerator first and gives the CPU the rest. T, P and k are calibrated values corrected by outcomes
//! (`estimate.rs`). It follows that offload *pays* where a request returns sooner from the device than from behind
//! those already waiting; where by calibration it never does, nothing is ever offloaded, not even to find out.
//!
//! A device slower than calibrated is *crowded* where there are more other threads than this one has requests there:
//! theirs wait there as well. What it takes beyond calibration then is waiting like any other, and weighs D; it has no
//! server for everyone, whatever its latencies suggest; and it does not fall idle while this thread is busy. (Found in
//! the lab: eight threads that each take a shared card's latency for its capacity all wait for it, up to 40 % behind a
//! rule that asks the driver.) Where the calibration was too low instead, this offloads later than it might.
//!
//! Polling is told from waiting: an answer may have lain since the poll before the one that found it, so a device has
//! only waited for what its time exceeds that gap by. (Otherwise a thread that works long inline makes its device slow,
//! and then works inline more.)
//!
//! A request named for a device and not in flight there at the next question was *refused*: others fill its window. Then
//! fewer are sent, one in `2^r` of those it would be best for. A refusal raises r by `2 * submit / (T - P)`, at most 2;
//! a request it does lowers r by 1/4. So calls in vain cost about an eighth of what the others gain.
//!
//! Lanes beside a device are a case of their own: company is worth more together than one at a time, so the steady
//! rates of either are compared first and the loser left out, unless there are requests enough for both
//! (`keep_one_regime`; found on random machines, where greedy choices lost up to a third). That comparison is itself
//! an estimate.
//!
//! Likewise a thread that works inline beside a device with a server for everyone keeps others from being handed
//! over: where the device alone promises clearly more, it does nothing but hand over (`keep_the_thread_free`).
//!
//! *Jobs.* Of a bulk job's pieces (class bulk, and a door that does not say how many are active) only the sum counts,
//! and nobody waits for one of them: D is 1, and of a device's own time P only what the job will have to wait for at its
//! end is charged, `P * P / (P + 2 * lasted)`, for a job goes on about as long as it has lasted. So a piece that a device
//! takes several times as long for is handed over once the job has gone on for a few P, and the device is filled until
//! its backlog covers the thread's next piece: `P * P / (P + 2 * lasted) + max(0, q-k) * mean/k < T`. A full window is
//! waited for where that earns more than working inline meanwhile: `(q+1) * mean/k < T`. (Found in the lab: a GPU whose
//! pieces take 5 ms beside a CPU that takes 1 ms for one was never used.)
//!
//! `tests/adaptive.rs` holds it within 5 % of the best single engine on 1,200 random machines, most of which nobody
//! looked at while this was made. Of 22,800 (`WATTLOCK_MORE_MACHINES=180`) two fell below, to 88.5
//! and 90.3 %: a device with one server, quick, beside lanes that five or seven clients nearly fill.
//!
//! *Energy.* Joules of a request alone, divided by `b`. `Balanced` weighs time times joules; `Energy` takes the
//! fewest joules among engines within 4 times (interactive), 16 times (stream) or any multiple (bulk) of the shortest
//! time. Unless all of the engines in question are metered, time decides.
//!
//! *Company.* `b` counts those already held, the asker, and the `w` who can join at once, times the share of the
//! predicted company that used to come. A door that does not say how many are active leaves only arrivals: those
//! expected within the hold, counted for streams and bulk, and for interactive requests only where they come as fast
//! as one thread could serve them. Below break-even (`P/b + submit >= T`) a request runs inline at once. A hold never exceeds
//! what the batch saves, nor `hold_ns`.
//!
//! *Together.* A door that has `n` requests of a kind in hand, which nobody else will join, needs no prediction: where
//! this CPU's engines are all there is, the least of `T` and `P/min(n, width) + submit` for each is taken, once for the
//! whole pass, and for all `n` if that is `T` ([`Policy::choose_together`]). P is a pass for one, times what a pass more than half full has been seen to
//! cost beyond that (lanes do RSA in half the time for four).
//!
//! *Batches alike.* Where this CPU's engines are all there is, a batch of lanes is reckoned with for its first request; the
//! others join it, unasked where they are like it. The next seven batches begin with the same answer, as long as as many are active, nothing is in flight,
//! none stayed thin and none failed.
//!
//! *Stability.* The engine last chosen for a size bucket is left only for one that looks `margin` (4 %) better, so
//! noise below the margin changes nothing and staying costs no more than the margin.
//!
//! *Exploration.* At most one request in `explore_every` (128) per kind, and only for an engine that calibration says
//! should win here, or that nobody calibrated; never while its estimate is more than 4 times the best. Each loss
//! doubles the number of opportunities passed over, up to 1024. So an engine that keeps losing gets about
//! `log2(n / 128)` of the first n requests and at the very most n / 128 of them. A belief too bad for exploration is
//! softened by half towards calibration every 250 ms until it is not.
//!
//! *Faults.* A failure multiplies an engine's cost by 9, the next ones by 17, 33 and so on, and half of that is
//! forgiven every 100 ms.
//!
//! *Clocks.* A device with calibrated clocks ([`crate::ClockCost`]) is told the cheapest one that keeps up, unless time
//! is all that counts: then the fastest (`clocks.rs`).
//!
//! A table per kind is built when the kind is first seen (one allocation, as a key's first expansion is one).
//! [`Policy::choose_inline`] then is a look-up by kind and quarter-octave of size.

use wattlock_core::{Kind, LatencyClass, Nanos, Shape};

use crate::clocks::Governor;
use crate::estimate::{BUCKETS, Candidate, Distrust, Submit, bucket};
use crate::machine::{EngineId, MAX_ENGINES, Machine, Objective};
use crate::ranking::Ranking;
use crate::settings::Settings;
use crate::weather::{Choice, ClockStep, Outcome, Policy, Weather};

/// D above: what a nanosecond of somebody else's delay weighs against one's own.
const DELAY_WEIGHT: f32 = 2.0;
/// An engine believed to be this many times dearer than the best is not explored.
const HOPELESS: f32 = 4.0;
/// How much more the devices alone must promise before the thread does nothing but hand over.
const PROMISE: f32 = 1.06;
/// Time after which a hopeless belief is softened.
const SOFTEN_NS: Nanos = 250_000_000;
/// Most opportunities passed over between two explorations of one engine.
const BACKOFF_MOST: u32 = 1024;
/// A thread counts as saturated when arrivals leave it less than this multiple of its service time.
const SATURATED: f32 = 1.0 / 0.9;
/// Polls of a thread with other work are at least so far apart (QWEB's published fail-safe).
const POLL_GAP_NS: Nanos = 5_000;
/// Longer gaps between requests say nothing more.
const GAP_MOST_NS: f32 = 1e7;
/// Batches of lanes that follow each other alike begin with one answer: this many more. A reckoning costs a tenth of a
/// microsecond for each of the few who share a quick pass, and what was observed in seven batches changes little.
const ANSWERED_AGAIN: u8 = 7;
/// Slots of the inline table: quarters of a size bucket.
const SLOTS: usize = 4 * BUCKETS;

/// Cheapest by measurement.
pub struct Adaptive {
    machine: Machine,
    rules: Rules,
    any: Ranking,
    inline: Ranking,
    distrust: [Distrust; MAX_ENGINES],
    tables: Vec<Option<Box<Table>>>,
    last_poll: Nanos,
    poll_before: Nanos,
    /// Requests that wait for this thread when it is asked for another, on average.
    usual: f32,
    /// The last answer, until it shows whether the engine took the request.
    named: Option<Named>,
    governors: Vec<(EngineId, Governor)>,
}

/// An answer, and what was in flight on the engine then.
struct Named {
    engine: EngineId,
    kind: Kind,
    bytes: usize,
    before: u32,
    /// Outcomes heard from it since.
    back: u32,
    now: Nanos,
}

/// What does not change after construction.
#[derive(Clone, Copy)]
struct Rules {
    objective: Objective,
    cores: f32,
    hold_ns: f32,
    submit_ns: f32,
    /// The incumbent's score counts this much of itself.
    stay: f32,
    explore_every: u32,
    half_life_ns: Nanos,
}

impl Adaptive {
    /// The rule on this machine.
    pub fn new(machine: Machine, settings: &Settings) -> Adaptive {
        let rules = Rules {
            objective: machine.objective,
            cores: f32::from(machine.cores.max(1)),
            hold_ns: settings.hold_ns as f32,
            submit_ns: settings.adaptive_submit_ns as f32,
            stay: 1.0 - f32::from(settings.adaptive_margin_permille) / 1000.0,
            explore_every: settings.adaptive_explore_every,
            half_life_ns: settings.adaptive_fault_half_life_ns.max(1),
        };
        let clocks = |id| Some((id, Governor::new(machine.costs.clocks(id))?));
        let governors = machine.engines.iter().filter_map(|engine| clocks(engine.id)).collect();
        Adaptive {
            governors,
            any: Ranking::any(&machine, &[]),
            inline: Ranking::inline(&machine, &[]),
            machine,
            rules,
            distrust: Default::default(),
            tables: Kind::ALL.iter().map(|_| None).collect(),
            last_poll: 0,
            poll_before: 0,
            usual: 0.0,
            named: None,
        }
    }

    fn table(&mut self, kind: Kind) -> &mut Table {
        let Adaptive { machine, rules, any, tables, .. } = self;
        tables[kind.index()].get_or_insert_with(|| Box::new(Table::new(machine, any.of(kind), kind, rules)))
    }

    /// A request named for a device that is not in flight there by the next question was refused: its window is full
    /// of others' requests. (Where no time has passed since, nobody submitted anything: somebody only asks.)
    fn notice_refusal(&mut self, weather: &Weather, now: Nanos) {
        let Some(named) = self.named.take().filter(|named| named.now < now) else { return };
        let present = weather.engines[named.engine.index()].in_flight + named.back;
        if present > named.before {
            return;
        }
        let submit_ns = self.rules.submit_ns;
        if let Some(table) = self.tables[named.kind.index()].as_mut() {
            table.on_refusal(&named, submit_ns);
        }
    }

    /// The choice with a clock, if the engine has any to choose from.
    fn clocked(&mut self, choice: Choice, shape: &Shape, weather: &Weather, now: Nanos) -> Choice {
        let governor = self.governors.iter_mut().find(|(id, _)| *id == choice.engine);
        let Some((_, governor)) = governor else { return choice };
        if self.rules.objective == Objective::Performance {
            return Choice { clock: Some(governor.fastest()), ..choice };
        }
        let state = &weather.engines[choice.engine.index()];
        let patience_ns = f64::from(self.rules.hold_ns);
        let fill = state.in_flight_bytes.max(shape.bytes as u64);
        let order = governor.on_message(shape.bytes, fill, state.window_bytes, patience_ns, now);
        Choice { hold_ns: choice.hold_ns.max(order.hold_ns), clock: Some(order.clock), ..choice }
    }

    /// How long an answer taken now has lain there, on average: half the time between the poll that found it and the
    /// one before. That is this thread's doing and not the device's. 0 for a caller that polls without asking.
    fn lain_ns(&self, now: Nanos) -> f32 {
        if now.saturating_sub(self.last_poll) > POLL_GAP_NS {
            return 0.0;
        }
        self.last_poll.saturating_sub(self.poll_before) as f32
    }

    #[cold]
    fn choose_inline_slowly(&mut self, shape: &Shape, weather: &Weather) -> EngineId {
        let rules = self.rules;
        let found = self
            .table(shape.kind)
            .inline_winner(shape.bytes, &rules, None, |id| weather.engines[id.index()].available);
        found.unwrap_or_else(|| self.inline.pick(shape.kind, weather))
    }
}

impl Policy for Adaptive {
    fn name(&self) -> &'static str {
        "adaptive"
    }

    fn choose(&mut self, shape: &Shape, weather: &Weather, now: Nanos) -> Choice {
        let every = self.rules.explore_every;
        let known = self.tables[shape.kind.index()].as_mut();
        if let Some(choice) = known.and_then(|table| table.join(shape, weather, every, now)) {
            return choice;
        }
        let (rules, distrust) = (self.rules, self.distrust);
        let mut sky = Sky { rules: &rules, distrust: &distrust, shape, weather, now, usual: 0.0 };
        self.usual += (sky.waiting() - self.usual) / 32.0;
        let crowded =
            self.table(shape.kind).candidates.iter().any(|one| !one.on_thread() && sky.is_crowded(one));
        sky.usual = if crowded { 0.0 } else { self.usual };
        self.notice_refusal(weather, now);
        let table = self.table(shape.kind);
        table.on_arrival(&sky);
        let choice = match table.choose(&sky) {
            Some(choice) => choice,
            None => Choice::now(self.any.pick(shape.kind, weather)),
        };
        let before = weather.engines[choice.engine.index()].in_flight;
        let (engine, kind, bytes) = (choice.engine, shape.kind, shape.bytes);
        self.named = Some(Named { engine, kind, bytes, before, back: 0, now });
        self.clocked(choice, shape, weather, now)
    }

    #[inline]
    fn choose_inline(&mut self, shape: &Shape, weather: &Weather, _now: Nanos) -> EngineId {
        if let Some(table) = &self.tables[shape.kind.index()] {
            let id = table.inline_best[slot(shape.bytes)];
            if weather.engines.get(id.index()).is_some_and(|state| state.available) {
                return id;
            }
        }
        self.choose_inline_slowly(shape, weather)
    }

    /// A thread with other work looks for answers now and then and not after everything it does: a look in vain costs
    /// what it costs, and an answer that lies for `POLL_GAP_NS` delays one caller only. A door that does not say how
    /// many are active, or held requests whose time may be over, are polled for whenever asked.
    fn poll_due(&mut self, weather: &Weather, now: Nanos) -> bool {
        let in_flight = weather.in_flight();
        if in_flight == 0 {
            return false;
        }
        let nobody_else = in_flight >= weather.active;
        let held = weather.engines.iter().any(|engine| engine.held > 0);
        if !nobody_else && !held && now.saturating_sub(self.last_poll) < POLL_GAP_NS {
            return false;
        }
        self.poll_before = self.last_poll;
        self.last_poll = now;
        true
    }

    fn joined(&mut self, shape: &Shape, count: u16) {
        let table = self.table(shape.kind);
        table.asked = table.asked.wrapping_add(u32::from(count));
    }

    fn choose_together(
        &mut self,
        shape: &Shape,
        count: u32,
        weather: &Weather,
        now: Nanos,
    ) -> Option<(EngineId, u32)> {
        let (rules, distrust) = (self.rules, self.distrust);
        let sky = Sky { rules: &rules, distrust: &distrust, shape, weather, now, usual: 0.0 };
        self.table(shape.kind).choose_together(&sky, count)
    }

    /// Where the company that a pass was held for did not come, those who did are done one by one.
    fn take_over(
        &mut self,
        shape: &Shape,
        lanes: EngineId,
        count: u32,
        weather: &Weather,
    ) -> Option<EngineId> {
        let table = self.tables[shape.kind.index()].as_mut()?;
        table.reckon_anew();
        let to = table.quicker_one_by_one(shape.bytes, lanes, count, weather)?;
        if let Some(left) = table.candidates.iter_mut().find(|one| one.id == lanes) {
            (0..count).for_each(|_| left.learn_company(count as u16));
        }
        Some(to)
    }

    fn rest(&self, engine: EngineId) -> Option<ClockStep> {
        if self.rules.objective == Objective::Performance {
            return None;
        }
        self.governors.iter().find(|(id, _)| *id == engine).map(|(_, governor)| governor.resting())
    }

    /// What a pass of lanes says is learned from once, and is the same for all who shared it.
    fn observe_together(&mut self, shape: &Shape, outcome: &Outcome, count: u32, now: Nanos) {
        let mut nth = 0;
        while nth < count {
            self.observe(shape, &Outcome { depth: outcome.depth + nth, ..*outcome }, now);
            nth += 1;
            let table = self.tables[shape.kind.index()].as_mut();
            let known = table.map_or(0, |table| table.pass_known(outcome, count - nth));
            if let Some(named) = self.named.as_mut().filter(|named| named.engine == outcome.engine) {
                named.back += known;
            }
            nth += known;
        }
    }

    fn observe(&mut self, shape: &Shape, outcome: &Outcome, now: Nanos) {
        let rules = self.rules;
        if let Some(named) = self.named.as_mut().filter(|named| named.engine == outcome.engine) {
            named.back += 1;
        }
        if outcome.failed {
            self.table(shape.kind).reckon_anew();
            if let Some(distrust) = self.distrust.get_mut(outcome.engine.index()) {
                distrust.on_failure(now, rules.half_life_ns);
            }
            return;
        }
        let lain_ns = self.lain_ns(now);
        self.table(shape.kind).observe(shape.bytes, outcome, lain_ns, &rules);
    }
}

/// Quarter-octave of a size, for the inline table.
#[inline]
const fn slot(bytes: usize) -> usize {
    let log = (bytes | 1).ilog2() as usize;
    if log >= BUCKETS {
        return SLOTS - 1;
    }
    let quarter = if log < 2 { 0 } else { (bytes >> (log - 2)) & 3 };
    4 * log + quarter
}

/// A size in the middle of a slot.
const fn slot_middle(slot: usize) -> usize {
    let (log, quarter) = (slot / 4, slot % 4);
    (1 << log) + (((2 * quarter + 1) << log) >> 3)
}

/// Everything one decision looks at.
struct Sky<'a> {
    rules: &'a Rules,
    distrust: &'a [Distrust; MAX_ENGINES],
    shape: &'a Shape,
    weather: &'a Weather,
    now: Nanos,
    /// Requests that usually wait for this thread.
    usual: f32,
}

impl Sky<'_> {
    /// Requests that wait for this thread, the asker not included, where the door says.
    fn waiting(&self) -> f32 {
        self.weather.active.saturating_sub(self.weather.in_flight()).saturating_sub(1) as f32
    }

    /// Whether other threads' requests wait on this device: there are more other threads than we have requests there, and
    /// even those that met little of our own take longer than calibrated.
    fn is_crowded(&self, device: &Candidate) -> bool {
        let ours = self.weather.engines[device.id.index()].in_flight;
        let others = u32::from(self.weather.submitters.saturating_sub(1));
        ours < others && device.is_slow(self.shape.bytes)
    }

    /// Whether requests are pieces of a job whose sum counts: bulk, and no door that says who else waits.
    fn is_job(&self) -> bool {
        self.shape.class == LatencyClass::Bulk && self.weather.active == 0
    }

    /// How much slower a CPU is that more threads want than there are cores.
    fn dilation(&self) -> f32 {
        (f32::from(self.weather.submitters) / self.rules.cores).max(1.0)
    }
}

/// What doing the request in some way would cost.
#[derive(Clone, Copy)]
struct Way {
    /// Against other ways that occupy this thread.
    ns: f32,
    /// Against devices. Differs for lanes: whoever shares the pass is not delayed by it.
    across_ns: f32,
    nj: Option<f32>,
    /// Company expected, before experience corrects it.
    predicted: f32,
    /// Requests that would share the pass, this one included.
    batch: f32,
}

/// Whether to believe what was observed, or only calibration.
#[derive(Clone, Copy, PartialEq)]
enum Belief {
    Live,
    Calibrated,
}

/// An answer that lanes are to hold a request, where only this CPU's engines do its kind.
#[derive(Clone, Copy)]
struct Open {
    candidate: u8,
    bucket: u8,
    hold_ns: Nanos,
    /// How many were active.
    active: u32,
    /// Batches that may still begin with the same answer.
    again: u8,
}

/// All that is known of one kind.
struct Table {
    /// In the order of preference when nothing is known.
    candidates: Vec<Candidate>,
    inline_best: [EngineId; SLOTS],
    /// Candidate last chosen, by size bucket.
    favourite: [u8; BUCKETS],
    asked: u32,
    last: Option<Nanos>,
    gap_ns: f32,
    /// Requests still to be given to the candidate on trial, so that a shared pass is tried with company.
    trial: (u8, u16),
    /// The batch that lanes were last asked to hold.
    open: Option<Open>,
    /// When the present job began.
    job_since: Option<Nanos>,
}

impl Table {
    fn new(machine: &Machine, order: &[EngineId], kind: Kind, rules: &Rules) -> Table {
        let engines = order.iter().filter_map(|id| machine.engines.iter().find(|engine| engine.id == *id));
        let mut table = Table {
            candidates: engines.map(|engine| Candidate::new(engine, kind, &machine.costs)).collect(),
            inline_best: [EngineId(u8::MAX); SLOTS],
            favourite: [u8::MAX; BUCKETS],
            asked: 0,
            last: None,
            gap_ns: GAP_MOST_NS,
            trial: (0, 0),
            open: None,
            job_since: None,
        };
        for slot in 0..SLOTS {
            table.settle_inline(slot, rules);
        }
        table
    }

    fn on_arrival(&mut self, sky: &Sky<'_>) {
        self.asked = self.asked.wrapping_add(1);
        let gap = self.note_gap(sky.now);
        self.on_piece(gap.unwrap_or(Nanos::MAX), sky);
    }

    /// Takes note of the time since the last request.
    fn note_gap(&mut self, now: Nanos) -> Option<Nanos> {
        let gap = self.last.replace(now).map(|last| now.saturating_sub(last));
        if let Some(gap) = gap {
            self.gap_ns += ((gap as f32).min(GAP_MOST_NS) - self.gap_ns) / 8.0;
        }
        gap
    }

    /// Takes note of a job's piece: how long the job has lasted says how long it will last. A new one begins where
    /// nothing is in flight and nothing came for longer than two pieces take.
    fn on_piece(&mut self, gap: Nanos, sky: &Sky<'_>) {
        let pause = self.inline_ns(sky.shape.bytes).is_none_or(|one| gap as f32 > 2.0 * one);
        if !sky.is_job() || pause && sky.weather.in_flight() == 0 {
            self.job_since = None;
        }
        if sky.is_job() {
            self.job_since.get_or_insert(sky.now);
        }
    }

    fn choose(&mut self, sky: &Sky<'_>) -> Option<Choice> {
        self.candidates.iter_mut().for_each(Candidate::on_ask);
        let best = self.cheapest(sky)?;
        let chosen = match self.experiment(best, sky) {
            Some(other) => other,
            None => {
                self.favourite[bucket(sky.shape.bytes)] = best as u8;
                best
            }
        };
        let way = self.way(&self.candidates[chosen], sky, Belief::Live);
        let hold_ns = way.map_or(0, |way| self.hold_ns(&self.candidates[chosen], &way, sky));
        let candidate = &mut self.candidates[chosen];
        if let Some(way) = way {
            candidate.predicted = if hold_ns > 0 { way.predicted } else { 0.0 };
        }
        if let Some(alone) = candidate.ns(sky.shape.bytes) {
            candidate.on_submit(alone);
        }
        candidate.take_turn();
        let mut choice = Choice { engine: candidate.id, hold_ns, clock: None, alike: 0 };
        let width = u32::from(candidate.width);
        let held = hold_ns > 0 && self.candidates.iter().all(Candidate::on_thread);
        if held && self.trial.1 == 0 {
            let there = sky.weather.engines[choice.engine.index()].held_alike;
            choice.alike =
                self.unasked(width.saturating_sub(there + 1), sky.weather, sky.rules.explore_every);
        }
        self.open = held.then_some(Open {
            candidate: chosen as u8,
            bucket: bucket(sky.shape.bytes) as u8,
            hold_ns,
            active: sky.weather.active,
            again: ANSWERED_AGAIN,
        });
        Some(choice)
    }

    /// The header's "Together".
    fn choose_together(&mut self, sky: &Sky<'_>, count: u32) -> Option<(EngineId, u32)> {
        if !self.candidates.iter().all(Candidate::on_thread) {
            return None;
        }
        let (best, size) = self.best_together(sky, count, Belief::Live)?;
        // Who is quicker one by one with so many in hand is quicker with fewer, too.
        let size = if self.candidates[best].inline { count } else { size };
        let before = self.asked;
        self.asked = before.wrapping_add(size);
        let every = sky.rules.explore_every;
        let due = every > 0 && before / every != self.asked / every;
        if due && let Some(other) = self.try_together(best, size, sky, count) {
            return Some(other);
        }
        self.candidates[best].predicted = 0.0;
        Some((self.candidates[best].id, size))
    }

    /// What calibration would have instead, once in a while: unless it is believed hopeless, which is softened.
    fn try_together(&mut self, best: usize, size: u32, sky: &Sky<'_>, count: u32) -> Option<(EngineId, u32)> {
        let bytes = sky.shape.bytes;
        let (hoped, together) = self.best_together(sky, count, Belief::Calibrated)?;
        let each = |index: usize, size: u32| {
            Some(self.candidates[index].pass_ns(bytes, size as f32)? / size.max(1) as f32)
        };
        if hoped == best {
            return None;
        }
        let hopeless = each(hoped, together)? > HOPELESS * each(best, size)?;
        let candidate = &mut self.candidates[hoped];
        if !hopeless {
            candidate.refresh(bytes);
            candidate.predicted = 0.0;
            return Some((candidate.id, together));
        }
        if sky.now.saturating_sub(candidate.softened) >= SOFTEN_NS {
            candidate.softened = sky.now;
            candidate.soften(bytes);
        }
        None
    }

    /// The candidate that does its share of `count` requests at the lowest cost for each, and how many that share is;
    /// `None` if nobody's cost is known.
    fn best_together(&self, sky: &Sky<'_>, count: u32, belief: Belief) -> Option<(usize, u32)> {
        let mut ways = [None; MAX_ENGINES];
        for (way, one) in ways.iter_mut().zip(&self.candidates) {
            if is_usable(one, sky.weather) {
                *way = self.way_together(one, sky, count, belief);
            }
        }
        let scoring = Scoring::new(&ways, sky);
        let scored = ways.iter().enumerate().filter_map(|(index, way)| {
            let way = way.as_ref()?;
            Some((index, way.batch as u32, scoring.of(way, false)?))
        });
        scored.min_by(|a, b| a.2.total_cmp(&b.2)).map(|(index, size, _)| (index, size))
    }

    fn way_together(&self, one: &Candidate, sky: &Sky<'_>, count: u32, belief: Belief) -> Option<Way> {
        let bytes = sky.shape.bytes;
        let alone = match belief {
            Belief::Live => one.ns(bytes)?,
            Belief::Calibrated => one.calibrated_ns(bytes)?,
        };
        let batch = if one.inline { 1.0 } else { count.min(u32::from(one.width)) as f32 };
        let through = if one.inline { 0.0 } else { one.submit(sky.rules.submit_ns).ns };
        let distrust = sky.distrust[one.id.index()].factor(sky.now, sky.rules.half_life_ns);
        let ns = (alone * one.fullness(batch) / batch + through) * distrust;
        let nj = one.nj(bytes).map(|nj| nj / batch * distrust);
        Some(Way { ns, across_ns: ns, nj, predicted: 0.0, batch })
    }

    /// Joins the batch that lanes hold already, or opens one like the last, which went well. Where there are only this
    /// CPU's engines that needs no reckoning: the pass will be made, and one more in it costs next to nothing; and those
    /// who are active were as many when it was reckoned.
    fn join(&mut self, shape: &Shape, weather: &Weather, every: u32, now: Nanos) -> Option<Choice> {
        let open = self.open.as_mut()?;
        let candidate = self.candidates.get(usize::from(open.candidate))?;
        let held = weather.engines[candidate.id.index()].held_alike;
        let alike = usize::from(open.bucket) == bucket(shape.bytes);
        if !alike || held >= u32::from(candidate.width) || !is_usable(candidate, weather) {
            return None;
        }
        if self.trial.1 > 0 || every > 0 && self.asked.wrapping_add(1).is_multiple_of(every) {
            return None;
        }
        if held == 0 {
            let as_before = weather.active > 1 && weather.active == open.active && weather.in_flight() == 0;
            if !as_before || open.again == 0 {
                return None;
            }
            open.again -= 1;
        }
        let (engine, width, hold_ns) = (candidate.id, u32::from(candidate.width), open.hold_ns);
        self.asked = self.asked.wrapping_add(1);
        if weather.active == 0 {
            self.note_gap(now);
        }
        let alike = self.unasked(width.saturating_sub(held + 1), weather, every);
        Some(Choice { engine, hold_ns, clock: None, alike })
    }

    /// How many of those for whom a pass has room need not be asked for: none where it counts when each comes, and
    /// nobody beyond the next request that may be an experiment.
    fn unasked(&self, room: u32, weather: &Weather, every: u32) -> u16 {
        if weather.active == 0 {
            return 0;
        }
        let until = if every > 0 { every - 1 - self.asked % every } else { room };
        room.min(until) as u16
    }

    /// The last batch did not go as it was reckoned: the next is reckoned anew.
    fn reckon_anew(&mut self) {
        if let Some(open) = &mut self.open {
            open.again = 0;
        }
    }

    /// The candidate with the lowest score; `None` if none is available and has room. While the cost of the first in
    /// the order of preference is not known, that one.
    fn cheapest(&self, sky: &Sky<'_>) -> Option<usize> {
        let usable = |index: &usize| is_usable(&self.candidates[*index], sky.weather);
        let first = (0..self.candidates.len()).find(usable)?;
        let mut ways = [None; MAX_ENGINES];
        for index in (first..self.candidates.len()).filter(usable) {
            ways[index] = self.way(&self.candidates[index], sky, Belief::Live);
        }
        if ways[first].is_none() {
            return Some(first);
        }
        for (index, way) in ways.iter_mut().enumerate() {
            *way = way.filter(|way| !self.is_vain(index, way, sky) && !self.must_pass(index));
        }
        self.keep_one_regime(&mut ways, sky);
        self.keep_the_thread_free(&mut ways, sky);
        let scoring = Scoring::new(&ways, sky);
        let incumbent = usize::from(self.favourite[bucket(sky.shape.bytes)]);
        let weigh = |index: usize, across: bool| {
            let score = ways[index].and_then(|way| scoring.of(&way, across))?;
            Some(if index == incumbent { score * sky.rules.stay } else { score })
        };
        let least = |indices: &mut dyn Iterator<Item = usize>, across: bool| {
            let scored = indices.filter_map(|index| Some((index, weigh(index, across)?)));
            scored.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(index, _)| index)
        };
        let (indices, is_cpu) =
            (first..self.candidates.len(), |index: &usize| self.candidates[*index].on_thread());
        let thread = least(&mut indices.clone().filter(is_cpu), false);
        let devices = indices.filter(|index| !is_cpu(index));
        Some(least(&mut thread.into_iter().chain(devices), true).unwrap_or(first))
    }

    /// Lanes live on company and devices take it away: where there are too few requests for both, deciding one at a
    /// time settles on a mixture worse than either. So the steady rates of n clients are compared, each client with
    /// one request at a time: lanes `b / (P + b*submit)`; a device alone, or with the thread working inline beside
    /// it ([`device_rates`]). The loser is left out.
    fn keep_one_regime(&self, ways: &mut [Option<Way>; MAX_ENGINES], sky: &Sky<'_>) {
        if sky.weather.active == 0 || sky.rules.objective != Objective::Performance {
            return;
        }
        let n = sky.weather.active as f32;
        let present = || self.candidates.iter().zip(ways.iter()).filter(|(_, way)| way.is_some());
        let known = present().filter_map(|(one, _)| Some((one, self.trusted_ns(one, sky)?)));
        let (mut inline, mut lanes, mut enough_lanes) = (0.0f32, 0.0f32, (0.0f32, 0.0f32));
        for (one, ns) in known.clone().filter(|(one, _)| one.on_thread()) {
            let batch = n.min(f32::from(one.width));
            let ns = ns * one.fullness(batch);
            if one.inline {
                inline = inline.max(1.0 / ns);
            } else if batch / (ns + batch * one.submit(sky.rules.submit_ns).beyond) > lanes {
                lanes = batch / (ns + batch * one.submit(sky.rules.submit_ns).beyond);
                enough_lanes = (2.0 * f32::from(one.width), ns);
            }
        }
        let (mut devices, mut enough) = (0.0f32, 0.0f32);
        for (one, ns) in known.filter(|(one, _)| !one.on_thread()) {
            let (alone, both) = device_rates(
                n,
                (ns, one.servers()),
                one.submit(sky.rules.submit_ns),
                (inline > 0.0).then_some(1.0 / inline),
            );
            devices = devices.max(alone).max(both);
            enough = enough.max(enough_lanes.0 + one.servers() * (enough_lanes.1 / ns).max(1.0));
        }
        if lanes <= inline || devices == 0.0 || n >= enough {
            return;
        }
        let lanes_win = lanes >= devices;
        for (way, one) in ways.iter_mut().zip(&self.candidates) {
            let is_lanes = one.on_thread() && !one.inline;
            if !one.inline && is_lanes != lanes_win {
                *way = None;
            }
        }
    }

    /// Where handing over is cheap against working inline and the devices have a server for everyone, a thread that
    /// still works inline whenever that looks quicker for one request keeps the others from being handed over. Where
    /// the device alone promises a twelfth more, nothing is done inline.
    fn keep_the_thread_free(&self, ways: &mut [Option<Way>; MAX_ENGINES], sky: &Sky<'_>) {
        if sky.weather.active == 0 || sky.rules.objective != Objective::Performance {
            return;
        }
        // With more other threads than clients the devices' room is not this thread's to judge. (Found in the lab: with
        // three writers on each of eight cores every thread stayed free, and the shared card was the limit.)
        if sky.weather.active < u32::from(sky.weather.submitters) {
            return;
        }
        let n = sky.weather.active as f32;
        let present = || self.candidates.iter().zip(ways.iter()).filter(|(_, way)| way.is_some());
        let times = |keep: fn(&Candidate) -> bool| {
            present()
                .filter(move |(one, _)| keep(one))
                .filter_map(|(one, _)| Some((one, self.trusted_ns(one, sky)?)))
        };
        let shared = |(one, ns): (&Candidate, f32)| match one.inline {
            true => ns,
            false => {
                let batch = n.min(f32::from(one.width));
                ns * one.fullness(batch) / batch + one.submit(sky.rules.submit_ns).beyond
            }
        };
        let Some(own) = times(Candidate::on_thread).map(shared).min_by(f32::total_cmp) else { return };
        let roomy = |one: &Candidate| !sky.is_crowded(one);
        let free = times(|one| !one.on_thread()).filter(|(one, _)| roomy(one)).any(|(one, ns)| {
            let (alone, mixed) =
                device_rates(n, (ns, one.servers()), one.submit(sky.rules.submit_ns), Some(own));
            alone > PROMISE * mixed
        });
        if free {
            for (way, one) in ways.iter_mut().zip(&self.candidates) {
                if one.on_thread() {
                    *way = None;
                }
            }
        }
    }

    /// Nanoseconds of one request alone, at least one, and more after a fault.
    fn trusted_ns(&self, one: &Candidate, sky: &Sky<'_>) -> Option<f32> {
        let distrust = sky.distrust[one.id.index()].factor(sky.now, sky.rules.half_life_ns);
        Some(one.ns(sky.shape.bytes)?.max(1.0) * distrust)
    }

    /// What this candidate would cost; the formulas of the module's header.
    fn way(&self, candidate: &Candidate, sky: &Sky<'_>, belief: Belief) -> Option<Way> {
        let bytes = sky.shape.bytes;
        let state = &sky.weather.engines[candidate.id.index()];
        let (alone, share) = match belief {
            Belief::Live => (candidate.ns(bytes)?, candidate.company),
            Belief::Calibrated => (candidate.calibrated_ns(bytes)?, 1.0),
        };
        let alone = alone.max(1.0);
        let pressure = 1.0 + delay(sky.waiting(), sky.usual);
        let (mut predicted, mut batch) = (0.0, 1.0);
        if candidate.queued && candidate.width > 1 {
            predicted = self.company(sky);
            let held = state.held_alike % u32::from(candidate.width);
            batch = (1.0 + held as f32 + share * predicted).min(f32::from(candidate.width));
        }
        let (ns, across_ns) = if candidate.on_thread() {
            let pass = alone * candidate.fullness(batch) * sky.dilation();
            let maturing = self.maturing(alone, sky);
            let left_out = (sky.waiting() + 1.0 - batch).max(0.0);
            let through = if candidate.inline { 0.0 } else { candidate.submit(sky.rules.submit_ns).ns };
            let mine = pass / batch + through;
            let usual = if candidate.inline { sky.usual } else { sky.usual.min(left_out) };
            let rest = pass / batch * (delay(left_out, usual) + maturing);
            (mine * (pressure + maturing), pass + through * pressure + rest)
        } else {
            let queued = match belief {
                Belief::Live if sky.is_job() => self.job_ns(candidate, alone, sky),
                Belief::Live => {
                    let calibrated = candidate.calibrated_ns(bytes).filter(|_| sky.is_crowded(candidate));
                    let free = calibrated.unwrap_or(alone);
                    free + DELAY_WEIGHT * (candidate.queue_ns(alone, state.in_flight as f32) - free)
                }
                Belief::Calibrated => alone,
            };
            let submit = candidate.submit(sky.rules.submit_ns);
            let ns = (queued - submit.within()).max(0.0) + submit.ns * pressure;
            (ns, ns)
        };
        let distrust = match belief {
            Belief::Live => sky.distrust[candidate.id.index()].factor(sky.now, sky.rules.half_life_ns),
            Belief::Calibrated => 1.0,
        };
        // Distrust weighs on joules too, or an engine that fails would stay the most frugal one.
        let nj = candidate.nj(bytes).map(|nj| nj / batch * distrust);
        Some(Way { ns: ns * distrust, across_ns: across_ns * distrust, nj, predicted, batch })
    }

    /// What a piece of a job costs on a device: "Jobs" in the header. The 2 says that work is handed over a little before
    /// it is even: what a device does not do while nobody dares is lost as well.
    fn job_ns(&self, device: &Candidate, alone: f32, sky: &Sky<'_>) -> f32 {
        let lasted = self.job_since.map_or(0.0, |since| sky.now.saturating_sub(since) as f32);
        let state = &sky.weather.engines[device.id.index()];
        let in_flight = state.in_flight as f32;
        if state.window_bytes > 0 && state.in_flight_bytes + sky.shape.bytes as u64 > state.window_bytes {
            return (in_flight + 1.0) * device.mean_ns() / device.servers();
        }
        let backlog = device.queue_ns(alone, in_flight - 1.0) - alone;
        alone * alone / (alone + 2.0 * lasted) + backlog
    }

    /// Completions that will come from devices while the thread is busy for so long, times the share of that time they
    /// lie there and the weight of delaying somebody.
    fn maturing(&self, busy_ns: f32, sky: &Sky<'_>) -> f32 {
        if sky.is_job() {
            return 0.0;
        }
        let devices = self.candidates.iter().filter(|one| !one.on_thread());
        let each = devices.map(|device| {
            let in_flight = sky.weather.engines[device.id.index()].in_flight as f32;
            let rounds = busy_ns / device.mean_ns();
            let late = if rounds <= 1.0 { 0.5 } else { 1.0 - 0.5 / rounds };
            // A device with requests queued works on while nobody collects, whosever they are.
            let queued = in_flight > device.servers() || sky.is_crowded(device);
            let weight = if queued { 1.0 } else { DELAY_WEIGHT };
            weight * late * (in_flight.min(device.servers()) * rounds).min(in_flight)
        });
        each.sum()
    }

    /// Others who would join a held request.
    fn company(&self, sky: &Sky<'_>) -> f32 {
        if sky.weather.active > 0 {
            return sky.waiting();
        }
        let one_by_one = self.inline_ns(sky.shape.bytes).unwrap_or(0.0);
        let patient = sky.shape.class > LatencyClass::Interactive;
        if patient || self.gap_ns <= one_by_one * SATURATED {
            return sky.rules.hold_ns / self.gap_ns.max(1.0);
        }
        0.0
    }

    fn on_refusal(&mut self, named: &Named, submit_ns: f32) {
        let inline_ns = self.inline_ns(named.bytes).unwrap_or(0.0);
        let device = self.candidates.iter_mut().find(|one| one.id == named.engine && !one.on_thread());
        if let Some(device) = device {
            let gain = inline_ns - device.calibrated_ns(named.bytes).unwrap_or(inline_ns);
            device.on_refusal(device.submit(submit_ns).ns / gain.max(1.0));
        }
    }

    /// Whether this request is one of those that a device which used to have no room is spared.
    fn must_pass(&self, index: usize) -> bool {
        self.candidates.get(index).is_some_and(|one| !one.has_turn())
    }

    /// Whether a pass would be made for one request alone that by calibration is quicker inside the call. What was
    /// observed has no say here: one slow moment of the thread must not cost the next request several times its time.
    fn is_vain(&self, index: usize, way: &Way, sky: &Sky<'_>) -> bool {
        let Some(lanes) = self.candidates.get(index).filter(|one| one.on_thread() && !one.inline) else {
            return false;
        };
        let bytes = sky.shape.bytes;
        let inline = self.candidates.iter().filter(|one| one.inline && is_usable(one, sky.weather));
        let quickest = inline.filter_map(|one| one.calibrated_ns(bytes)).min_by(f32::total_cmp);
        way.batch < 1.5 && lanes.calibrated_ns(bytes).zip(quickest).is_some_and(|(pass, one)| one <= pass)
    }

    /// Who does `count` requests inside the call in less time than a pass of those lanes takes, if anyone does.
    fn quicker_one_by_one(
        &self,
        bytes: usize,
        lanes: EngineId,
        count: u32,
        weather: &Weather,
    ) -> Option<EngineId> {
        let pass = self.candidates.iter().find(|one| one.id == lanes)?.pass_ns(bytes, count as f32)?;
        let inline = self.candidates.iter().filter(|one| one.inline && is_usable(one, weather));
        let timed = inline.filter_map(|one| Some((one.id, one.ns(bytes)?)));
        let (id, one) = timed.min_by(|a, b| a.1.total_cmp(&b.1))?;
        (one * count as f32 <= pass).then_some(id)
    }

    /// What one request takes inside the call, at best.
    fn inline_ns(&self, bytes: usize) -> Option<f32> {
        let inline = self.candidates.iter().filter(|candidate| candidate.inline);
        inline.filter_map(|candidate| candidate.ns(bytes)).min_by(f32::total_cmp)
    }

    /// How long to hold: not at all without company or where the batch is complete, else as long as the batch saves
    /// against one-by-one work, but at least an eighth of a pass, so that those who are coming can come.
    fn hold_ns(&self, candidate: &Candidate, way: &Way, sky: &Sky<'_>) -> Nanos {
        let state = &sky.weather.engines[candidate.id.index()];
        let missing = u32::from(candidate.width) - 1 > state.held_alike % u32::from(candidate.width);
        if !candidate.queued || way.batch < 1.5 || !missing {
            return 0;
        }
        let pass = candidate.pass_ns(sky.shape.bytes, way.batch).unwrap_or(0.0);
        let saved = self.inline_ns(sky.shape.bytes).map_or(0.0, |one| one * way.batch - pass);
        let worth = match sky.rules.objective {
            Objective::Performance => saved.max(pass / 8.0),
            Objective::Balanced | Objective::Energy => sky.rules.hold_ns,
        };
        worth.min(sky.rules.hold_ns) as Nanos
    }

    /// Another candidate to try this request on, if it is time to and one deserves it.
    fn experiment(&mut self, best: usize, sky: &Sky<'_>) -> Option<usize> {
        let every = sky.rules.explore_every;
        if every == 0 {
            return None;
        }
        let (on_trial, left) = (usize::from(self.trial.0), self.trial.1);
        if left > 0 && self.candidates.get(on_trial).is_some_and(|one| is_usable(one, sky.weather)) {
            self.trial.1 -= 1;
            return Some(on_trial);
        }
        if !self.asked.is_multiple_of(every) {
            return None;
        }
        self.judge(best, sky.shape.bytes);
        let index =
            (0..self.candidates.len()).find(|index| *index != best && self.deserves(*index, best, sky))?;
        let candidate = &mut self.candidates[index];
        candidate.explored = Some(candidate.ns(sky.shape.bytes).unwrap_or(f32::INFINITY));
        candidate.refresh(sky.shape.bytes);
        if candidate.queued && candidate.width > 1 {
            // A pass is tried with company, and its turns are saved up beforehand. Where the door says how many there
            // are, not with more than those: one who comes alone after the rest would speak ill of the company.
            let there = if sky.weather.active > 0 { sky.waiting() as u16 + 1 } else { u16::MAX };
            let width = candidate.width.min(16).min(there);
            self.trial = (index as u8, width - 1);
            candidate.skip = u32::from(width);
        }
        Some(index)
    }

    /// Whether what was explored since has won, is at least becoming better, or lost.
    fn judge(&mut self, best: usize, bytes: usize) {
        for (index, candidate) in self.candidates.iter_mut().enumerate() {
            let Some(believed) = candidate.explored.take() else { continue };
            if index == best {
                candidate.backoff = 1;
            } else if candidate.ns(bytes).is_none_or(|now| now > 0.9 * believed) || believed.is_infinite() {
                candidate.skip += candidate.backoff;
                candidate.backoff = (2 * candidate.backoff).min(BACKOFF_MOST);
            }
        }
    }

    fn deserves(&mut self, index: usize, best: usize, sky: &Sky<'_>) -> bool {
        if !is_usable(&self.candidates[index], sky.weather) {
            return false;
        }
        if self.candidates[index].skip > 0 {
            self.candidates[index].skip -= 1;
            return false;
        }
        let live = self.way(&self.candidates[index], sky, Belief::Live);
        let Some(live) = live else { return true };
        if self.is_vain(index, &live, sky) {
            return false;
        }
        let hoped = self.way(&self.candidates[index], sky, Belief::Calibrated);
        let across = self.candidates[index].on_thread() != self.candidates[best].on_thread();
        let Some(best) = self.way(&self.candidates[best], sky, Belief::Live) else { return false };
        let scoring = Scoring::new(&[Some(live), Some(best)], sky);
        let (Some(live), Some(best)) = (scoring.of(&live, across), scoring.of(&best, across)) else {
            return false;
        };
        if hoped.is_some_and(|hoped| scoring.of(&hoped, across).is_none_or(|hoped| hoped >= best)) {
            return false;
        }
        if live <= HOPELESS * best {
            return true;
        }
        let candidate = &mut self.candidates[index];
        if sky.now.saturating_sub(candidate.softened) >= SOFTEN_NS {
            candidate.softened = sky.now;
            candidate.soften(sky.shape.bytes);
        }
        false
    }

    /// Of `most` more outcomes of an engine, those that are of a pass which was learned from already.
    fn pass_known(&mut self, outcome: &Outcome, most: u32) -> u32 {
        let candidate = self.candidates.iter_mut().find(|one| one.id == outcome.engine && !outcome.failed);
        candidate.map_or(0, |candidate| candidate.pass_known(most))
    }

    fn observe(&mut self, bytes: usize, outcome: &Outcome, lain_ns: f32, rules: &Rules) {
        let Some(candidate) = self.candidates.iter_mut().find(|one| one.id == outcome.engine) else { return };
        if candidate.pass_known(1) == 1 {
            return;
        }
        let seen = outcome.latency_ns.saturating_sub(outcome.held_ns) as f32;
        let service = match candidate.calibrated_ns(bytes) {
            Some(alone) if !candidate.on_thread() => (seen - lain_ns).max(alone.min(seen)),
            _ => seen,
        };
        candidate.on_outcome(bytes, service, outcome.batch, outcome.depth, outcome.energy_nj);
        if candidate.inline {
            let first = 4 * bucket(bytes);
            (first..first + 4).for_each(|slot| self.settle_inline(slot, rules));
        }
    }

    /// Writes who does requests of this slot's size inside the call.
    fn settle_inline(&mut self, slot: usize, rules: &Rules) {
        let incumbent = Some(self.inline_best[slot]);
        if let Some(id) = self.inline_winner(slot_middle(slot), rules, incumbent, |_| true) {
            self.inline_best[slot] = id;
        }
    }

    /// The cheapest of the engines that do the kind inside the call and pass `usable`. Where costs are not known, the
    /// first in the order of preference.
    fn inline_winner(
        &self,
        bytes: usize,
        rules: &Rules,
        incumbent: Option<EngineId>,
        usable: impl Fn(EngineId) -> bool,
    ) -> Option<EngineId> {
        let inline = || self.candidates.iter().filter(|one| one.inline && usable(one.id));
        let first = inline().next()?;
        let metered =
            rules.objective != Objective::Performance && inline().all(|one| one.nj(bytes).is_some());
        let score = |one: &Candidate| {
            let ns = one.ns(bytes)?;
            let score = match (rules.objective, one.nj(bytes).filter(|_| metered)) {
                (Objective::Energy, Some(nj)) => nj,
                (Objective::Balanced, Some(nj)) => nj * ns,
                _ => ns,
            };
            Some(if Some(one.id) == incumbent { score * rules.stay } else { score })
        };
        if first.ns(bytes).is_none() {
            return Some(first.id);
        }
        let scored = inline().filter_map(|one| Some((one.id, score(one)?)));
        scored.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(id, _)| id)
    }
}

/// What a nanosecond of this thread costs others: the `w` who wait, and those who come while they are served, by how
/// many usually wait (in M/M/1 the cost of more work is as `(1 + w) / (1 - utilisation)`).
fn delay(w: f32, usual: f32) -> f32 {
    DELAY_WEIGHT * (w + (w + 1.0) * usual)
}

/// Available, and with room for one more.
fn is_usable(candidate: &Candidate, weather: &Weather) -> bool {
    let state = &weather.engines[candidate.id.index()];
    state.available && (candidate.inline || candidate.window == 0 || state.in_flight < candidate.window)
}

/// Requests a nanosecond that n clients with one request each get from a device of `k` servers and time `P`: alone,
/// `min(n / (P + submit), k/P, 1/submit)`; and with a thread beside it that works inline while fewer than
/// `w = (P/(T - submit) - 1) / D` wait, as the formulas of the header have it. That settles at
/// `x = (n - 1 - w) / (P + submit + T/2)` on the device, for completions are collected half a T late, and
/// `(1 - submit*x) / T` inline.
fn device_rates(n: f32, (ns, servers): (f32, f32), submit: Submit, inline: Option<f32>) -> (f32, f32) {
    let most = (servers / ns).min(1.0 / submit.ns.max(1.0));
    let alone = most.min(n / (ns + submit.beyond));
    let Some(inline) = inline else { return (alone, alone) };
    let away = ns - submit.within();
    let waiting = ((away / (inline - submit.ns).max(1.0) - 1.0) / DELAY_WEIGHT).max(0.0);
    let beside = most.min((n - 1.0 - waiting).max(0.0) / (ns + submit.beyond + inline / 2.0));
    (alone, beside + (1.0 - submit.ns * beside).max(0.0) / inline)
}

/// How ways compare under the objective.
struct Scoring {
    objective: Objective,
    metered: bool,
    longest_ns: f32,
}

impl Scoring {
    fn new(ways: &[Option<Way>], sky: &Sky<'_>) -> Scoring {
        let known = || ways.iter().flatten();
        let patience = match sky.shape.class {
            LatencyClass::Interactive => 4.0,
            LatencyClass::Stream => 16.0,
            LatencyClass::Bulk => f32::INFINITY,
        };
        let shortest = known().map(|way| way.across_ns).min_by(f32::total_cmp);
        Scoring {
            objective: sky.rules.objective,
            // Joules that are known of some only compare nothing: a card that reports its own would always win.
            metered: known().all(|way| way.nj.is_some()),
            longest_ns: shortest.unwrap_or(0.0) * patience,
        }
    }

    /// Lower is better; `None` for a way that is out of the question. `across`: a way on this thread is compared with
    /// a device.
    fn of(&self, way: &Way, across: bool) -> Option<f32> {
        let ns = if across { way.across_ns } else { way.ns };
        if self.objective == Objective::Performance || !self.metered {
            return Some(ns);
        }
        let nj = way.nj?;
        match self.objective {
            Objective::Balanced => Some(ns * nj),
            _ if way.across_ns > self.longest_ns => None,
            _ => Some(nj),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranking::tests::{server, weather};
    use wattlock_core::EngineClass;

    #[test]
    fn slots_hold_their_middles() {
        for at in 0..SLOTS {
            let log = at / 4;
            if log >= 2 {
                assert_eq!(slot(slot_middle(at)), at);
            }
        }
        assert_eq!(slot(0), slot(1));
        assert_eq!(slot(usize::MAX), SLOTS - 1);
    }

    fn calibrated(points: &[(u8, f64, f64)], objective: Objective) -> Machine {
        let mut machine = Machine { objective, ..server() };
        for (id, ns, nj) in points {
            machine.costs.set(EngineId(*id), Kind::Sha256, vec![(0, *ns, Some(*nj))]);
        }
        machine
    }

    fn ask(machine: Machine, class: LatencyClass) -> EngineId {
        let shape = Shape { kind: Kind::Sha256, bytes: 100, class };
        Adaptive::new(machine, &Settings::default()).choose(&shape, &weather(), 0).engine
    }

    #[test]
    fn joules_known_of_some_engines_only_decide_nothing() {
        let points = [(0, 90_000.0, 50.0), (1, 10_000.0, 400.0), (2, 12_000.0, 200.0)];
        for objective in [Objective::Balanced, Objective::Energy] {
            let mut machine = calibrated(&points, objective);
            machine.costs.set(EngineId(1), Kind::Sha256, vec![(0, 10_000.0, None)]);
            assert_eq!(ask(machine, LatencyClass::Bulk), EngineId(1), "{objective:?}");
        }
    }

    #[test]
    fn each_objective_takes_its_own_cheapest() {
        let points = [(0, 90_000.0, 50.0), (1, 10_000.0, 400.0), (2, 12_000.0, 200.0)];
        let with = |objective, class| ask(calibrated(&points, objective), class);
        assert_eq!(with(Objective::Performance, LatencyClass::Bulk), EngineId(1));
        assert_eq!(with(Objective::Balanced, LatencyClass::Bulk), EngineId(2));
        assert_eq!(with(Objective::Energy, LatencyClass::Bulk), EngineId(0));
        assert_eq!(with(Objective::Energy, LatencyClass::Interactive), EngineId(2), "nine times is too slow");
    }

    #[test]
    fn a_thread_with_other_work_polls_now_and_then() {
        let mut adaptive = Adaptive::new(server(), &Settings::default());
        let mut at = |in_flight, held, active, now| {
            let mut weather = Weather { active, ..weather() };
            (weather.engines[2].in_flight, weather.engines[2].held) = (in_flight, held);
            adaptive.poll_due(&weather, now)
        };
        assert!(!at(0, 0, 9, 100_000), "nothing to poll for");
        assert!(at(3, 0, 9, 100_000));
        assert!(!at(3, 0, 9, 104_999) && at(3, 0, 9, 105_000));
        assert!(at(9, 0, 9, 105_001), "everyone waits");
        assert!(at(3, 1, 9, 105_002), "a hold may be over");
        assert!(at(3, 0, 0, 105_003), "the door does not say who is active");
    }

    #[test]
    fn an_answer_that_lay_until_the_next_poll_does_not_make_its_device_slow() {
        let machine = || calibrated(&[(1, 90_000.0, 1.0), (2, 10_000.0, 1.0)], Objective::Performance);
        let shape = Shape { kind: Kind::Sha256, bytes: 100, class: LatencyClass::Interactive };
        let believed = |asks: bool| {
            let mut adaptive = Adaptive::new(machine(), &Settings::default());
            let mut weather = Weather { active: 9, ..weather() };
            weather.engines[2].in_flight = 1;
            for round in 1..200u64 {
                // Polls are 80 us apart, and what was found came at any moment between them: 50 us on average.
                let now = round * 80_000;
                assert!(!asks || adaptive.poll_due(&weather, now));
                let latency_ns = 10_000 + round % 9 * 10_000;
                let outcome = Outcome {
                    engine: EngineId(2),
                    latency_ns,
                    held_ns: 0,
                    batch: 1,
                    depth: 1,
                    energy_nj: None,
                    failed: false,
                };
                adaptive.observe(&shape, &outcome, now + 200);
            }
            let table = adaptive.table(Kind::Sha256);
            let device = table.candidates.iter().find(|one| one.id == EngineId(2)).unwrap();
            device.ns(100).unwrap()
        };
        assert!(believed(true) < 25_000.0, "{}", believed(true));
        assert!(believed(false) > 40_000.0, "a caller that does not ask is believed: {}", believed(false));
    }

    #[test]
    fn a_long_job_hands_over_pieces_that_take_the_device_longer_and_a_single_one_does_not() {
        let machine = calibrated(&[(1, 10_000.0, 1.0), (2, 50_000.0, 1.0)], Objective::Performance);
        let mut adaptive = Adaptive::new(machine, &Settings::default());
        let shape = Shape { kind: Kind::Sha256, bytes: 100, class: LatencyClass::Bulk };
        let mut device_at = |now| adaptive.choose(&shape, &weather(), now).engine == EngineId(2);
        assert!(!device_at(0));
        let first = (1..100).find(|piece| device_at(piece * 10_000));
        assert!(first.is_some_and(|piece| (5..30).contains(&piece)), "{first:?}");
        assert!(!device_at(10_000_000), "another job");
    }

    /// Instructions (1) and lanes of eight (2): 600 us for one, 640 us for a pass of one.
    fn lanes() -> Machine {
        let mut machine = calibrated(&[(1, 600_000.0, 1.0), (2, 640_000.0, 1.0)], Objective::Performance);
        let lanes = &mut machine.engines[2];
        (lanes.class, lanes.width) = (EngineClass::Lanes, 8);
        machine.engines.remove(0);
        machine
    }

    fn together(adaptive: &mut Adaptive, count: u32) -> (u8, u32) {
        let shape = Shape { kind: Kind::Sha256, bytes: 100, class: LatencyClass::Interactive };
        let (engine, size) = adaptive.choose_together(&shape, count, &weather(), 0).unwrap();
        (engine.0, size)
    }

    fn pass(adaptive: &mut Adaptive, batch: u16, latency_ns: Nanos) {
        let shape = Shape { kind: Kind::Sha256, bytes: 100, class: LatencyClass::Interactive };
        let outcome = Outcome {
            engine: EngineId(2),
            latency_ns,
            held_ns: 0,
            batch,
            depth: 1,
            energy_nj: None,
            failed: false,
        };
        (0..batch).for_each(|_| adaptive.observe(&shape, &outcome, 0));
    }

    #[test]
    fn outcomes_told_together_teach_what_they_teach_one_by_one() {
        let shape = Shape { kind: Kind::Sha256, bytes: 100, class: LatencyClass::Interactive };
        let mut both = [0, 1].map(|_| Adaptive::new(lanes(), &Settings::default()));
        let mut turn = |count: u32, batch: u16, latency_ns: Nanos, failed: bool| {
            let outcome = Outcome {
                engine: EngineId(2),
                latency_ns,
                held_ns: 500,
                batch,
                depth: 7,
                energy_nj: Some(9),
                failed,
            };
            let [one, other] = &mut both;
            assert_eq!(one.choose(&shape, &weather(), 0), other.choose(&shape, &weather(), 0));
            one.observe_together(&shape, &outcome, count, 0);
            for nth in 0..count {
                other.observe(&shape, &Outcome { depth: 7 + nth, ..outcome }, 0);
            }
            let seen = both.each_mut().map(|one| {
                let back = one.named.as_ref().map(|named| named.back);
                let distrust = one.distrust[2].factor(0, 1);
                let table = one.table(Kind::Sha256);
                let lanes = table.candidates.iter().find(|one| one.id == EngineId(2)).unwrap();
                (lanes.ns(100), lanes.pass_ns(100, 8.0), lanes.nj(100), back, distrust)
            });
            assert_eq!(seen[0], seen[1], "{count} of {batch}");
            seen[0].0
        };
        let before = turn(1, 1, 900_000, false);
        assert_ne!(turn(1, 1, 900_000, false), before, "something is learned");
        for (count, batch) in [(8, 8), (3, 8), (5, 8), (2, 3), (4, 1), (1, 4), (7, 2)] {
            turn(count, batch, 1_200_000, false);
        }
        turn(3, 8, 1_000_000, true);
        turn(8, 8, 700_000, false);
    }

    /// Those who do not come, and a pass that failed, are noticed by the batch after.
    #[test]
    fn a_batch_begins_with_the_last_answer_only_while_nothing_has_changed() {
        let shape = Shape { kind: Kind::Sha256, bytes: 100, class: LatencyClass::Interactive };
        let mut adaptive = Adaptive::new(lanes(), &Settings::default());
        let again = |adaptive: &mut Adaptive| adaptive.table(Kind::Sha256).open.map(|open| open.again);
        let ask = |adaptive: &mut Adaptive, active: u32| {
            let weather = Weather { active, ..weather() };
            let choice = adaptive.choose(&shape, &weather, 0);
            (choice.engine, again(adaptive))
        };
        assert_eq!(ask(&mut adaptive, 8), (EngineId(2), Some(ANSWERED_AGAIN)));
        assert_eq!(ask(&mut adaptive, 8), (EngineId(2), Some(ANSWERED_AGAIN - 1)));
        assert_eq!(ask(&mut adaptive, 6), (EngineId(2), Some(ANSWERED_AGAIN)), "others are active");
        assert_eq!(ask(&mut adaptive, 6), (EngineId(2), Some(ANSWERED_AGAIN - 1)));
        adaptive.take_over(&shape, EngineId(2), 2, &weather());
        assert_eq!(ask(&mut adaptive, 6), (EngineId(2), Some(ANSWERED_AGAIN)), "few came");
        assert_eq!(ask(&mut adaptive, 1), (EngineId(1), None), "nobody can come");
        assert_eq!(ask(&mut adaptive, 8), (EngineId(2), Some(ANSWERED_AGAIN)));
        for left in (0..ANSWERED_AGAIN).rev() {
            assert_eq!(ask(&mut adaptive, 8), (EngineId(2), Some(left)));
        }
        assert_eq!(ask(&mut adaptive, 8), (EngineId(2), Some(ANSWERED_AGAIN)), "enough");
    }

    /// Nobody needs to be asked for whom a pass has room; but where it counts when each comes, and for the one that may
    /// be an experiment.
    #[test]
    fn those_who_share_a_pass_follow_unasked_up_to_the_next_experiment() {
        let shape = Shape { kind: Kind::Sha256, bytes: 100, class: LatencyClass::Interactive };
        let settings = Settings { adaptive_explore_every: 12, ..Settings::default() };
        let mut adaptive = Adaptive::new(lanes(), &settings);
        let ask = |adaptive: &mut Adaptive, active: u32, held: u32| {
            let mut weather = Weather { active, ..weather() };
            (weather.engines[2].held, weather.engines[2].held_alike) = (held, held);
            weather.engines[2].in_flight = held;
            let choice = adaptive.choose(&shape, &weather, 0);
            (choice.engine, choice.alike)
        };
        assert_eq!(ask(&mut adaptive, 8, 0), (EngineId(2), 7));
        adaptive.joined(&shape, 7);
        assert_eq!(ask(&mut adaptive, 8, 0), (EngineId(2), 2), "the ninth; the twelfth is asked for");
        adaptive.joined(&shape, 2);
        assert_eq!(ask(&mut adaptive, 8, 3), (EngineId(2), 4), "the twelfth, and the rest of the batch");
        adaptive.joined(&shape, 4);
        assert_eq!(ask(&mut adaptive, 1, 0), (EngineId(1), 0), "inside the call");
        let mut adaptive = Adaptive::new(lanes(), &settings);
        assert_eq!(ask(&mut adaptive, 0, 3).1, 0, "who does not say how many are active is timed");
    }

    #[test]
    fn requests_in_hand_share_a_pass_where_that_takes_less() {
        let mut adaptive = Adaptive::new(lanes(), &Settings::default());
        assert_eq!(together(&mut adaptive, 1), (1, 1));
        for count in 2..=8 {
            assert_eq!(together(&mut adaptive, count), (2, count));
        }
        assert_eq!(together(&mut adaptive, 20), (2, 8));
    }

    #[test]
    fn a_fuller_pass_that_costs_twice_a_thin_one_is_known_as_such() {
        let mut adaptive = Adaptive::new(lanes(), &Settings::default());
        (0..40).for_each(|_| pass(&mut adaptive, 8, 1_900_000));
        assert_eq!(together(&mut adaptive, 2), (2, 2), "a thin pass costs what it did");
        (0..40).for_each(|_| pass(&mut adaptive, 4, 1_900_000));
        assert_eq!(together(&mut adaptive, 2), (1, 2), "a thin pass costs as much as a full one");
        assert_eq!(together(&mut adaptive, 4), (2, 4));
        (0..40).for_each(|_| pass(&mut adaptive, 8, 8_000_000));
        assert_eq!(together(&mut adaptive, 8), (1, 8), "a full pass is too slow");
    }

    #[test]
    fn a_bad_belief_about_passes_is_tried_again() {
        let mut adaptive = Adaptive::new(lanes(), &Settings::default());
        (0..40).for_each(|_| pass(&mut adaptive, 4, 2_400_000));
        assert_eq!(together(&mut adaptive, 2), (1, 2));
        let every = Settings::default().adaptive_explore_every;
        let tried = (0..every / 2).filter(|_| together(&mut adaptive, 2).0 == 2).count();
        assert_eq!(tried, 1, "one request in so many may be an experiment");
    }

    #[test]
    fn with_a_device_each_request_is_asked_for() {
        let machine = calibrated(&[(1, 600_000.0, 1.0), (2, 640_000.0, 1.0)], Objective::Performance);
        let mut adaptive = Adaptive::new(machine, &Settings::default());
        let shape = Shape { kind: Kind::Sha256, bytes: 100, class: LatencyClass::Interactive };
        assert_eq!(adaptive.choose_together(&shape, 8, &weather(), 0), None);
    }

    #[test]
    fn only_a_question_that_time_followed_can_have_been_refused() {
        let machine = calibrated(&[(1, 90_000.0, 1.0), (2, 80_000.0, 1.0)], Objective::Performance);
        let shape = Shape { kind: Kind::Sha256, bytes: 100, class: LatencyClass::Interactive };
        let sent = |step: u64| {
            let mut adaptive = Adaptive::new(machine.clone(), &Settings::default());
            // Nothing is ever in flight: nobody took what was named for the device.
            let asked =
                (0..100).filter(|n| adaptive.choose(&shape, &weather(), n * step).engine == EngineId(2));
            asked.count()
        };
        assert_eq!(sent(0), 100, "somebody only asks");
        assert!(sent(100_000) < 100, "refused");
    }

    #[test]
    fn without_calibration_instructions_are_the_choice() {
        assert_eq!(ask(server(), LatencyClass::Interactive), EngineId(1));
    }

    #[test]
    fn inline_choice_follows_calibration_and_availability() {
        let machine = calibrated(&[(0, 1000.0, 1.0), (1, 2000.0, 1.0)], Objective::Performance);
        let mut adaptive = Adaptive::new(machine, &Settings::default());
        let shape = Shape { kind: Kind::Sha256, bytes: 100, class: LatencyClass::Bulk };
        let mut weather = weather();
        assert_eq!(adaptive.choose_inline(&shape, &weather, 0), EngineId(0));
        weather.engines[0].available = false;
        assert_eq!(adaptive.choose_inline(&shape, &weather, 0), EngineId(1));
    }
}
