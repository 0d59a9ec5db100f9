//! `adaptive`, ours and the default: estimates what each engine would take for this request, given what is already
//! queued, and names the cheapest under the machine's [`Objective`]. It refuses to guess from names or classes where
//! a time was measured, and to experiment at the caller's expense beyond the bounds below.
//!
//! *Time.* Three ways of doing work are compared in one currency, the request's own nanoseconds plus the delay it
//! causes to requests that wait for this thread. With `w` others waiting (`active - in flight - 1`), `u` that usually
//! wait (the mean of w over about 32 requests) and `W(w) = D * (w + (w+1) * u)`:
//!
//! - inside the call: `T * (1 + W(w))`;
//! - in CPU lanes, a pass of `P` shared by `b` requests (`b` at most the width): `P/b * (1 + W(w))`, which against the
//!   first is the question whether a pass is worth its while; against a device it is `P + P/b * W(w+1-b)`, because those
//!   that share the pass are not delayed by it;
//! - on a device with `q` in flight and `k` servers: `P + D * max(0, q+1-k) * mean/k + submit * (1 + W(w))`.
//!
//! W is more than the `D*w` of the requests that wait now: a thread for which some usually wait is near its limit, and
//! what it does longer delays requests that come while it catches up (in M/M/1 work costs others as `(1 + w) / (1 -
//! utilisation)`). (Found in the lab: event loops with 6 to 12 connections each did elliptic curves themselves whenever
//! no request happened to wait, and served 12 % fewer handshakes.) Where a device is crowded, u counts as 0.
//!
//! `submit` is what a request through the engine's queue costs this thread: by calibration
//! ([`Costs::submit_ns`](crate::Costs::submit_ns)), and then part of P, which counts from submission; else
//! `adaptive.submit_ns`, beyond P. Where all results of a kind are checked, it contains the check
//! ([`Costs::check_ns`](crate::Costs::check_ns)), which is beyond P as well.
//!
//! On the thread, completions that mature on devices meanwhile (`min(q, k) * T/mean`, each delayed by half of T or
//! more) count as waiting too. With D = 1 this would be join-the-shortest-queue; D = 2 because a delayed request
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
//! Looking is told from waiting: an answer may have lain since this thread could last have seen it, so a device has
//! only waited for what its time exceeds that gap by. (Otherwise a thread that works long inline makes its device slow,
//! and then works inline more.)
//!
//! A request named for a device and not in flight there at the next question was *refused*: others fill its window. Then
//! fewer are sent, one in `2^r` of those it would be best for. A refusal raises r by `2 * submit / (T - P)`, at most 2;
//! a request it does lowers r by 1/4. So calls in vain cost about an eighth of what the others gain.
//!
//! Lanes beside a device are a case of their own: batch-mates are worth more together than one at a time, so the steady
//! rates of either are compared first and the loser left out, unless there are requests enough for both
//! (`keep_one_regime`; found on random machines, where greedy choices lost up to a third). That comparison is itself
//! an estimate.
//!
//! *Jobs.* Of a bulk job's pieces (class bulk, and a door that does not say how many are active) only the sum counts,
//! and no caller waits for one of them: D is 1, and of a device's own time P only what the job will have to wait for at
//! its end is charged, `P * P / (P + 2 * lasted)`, for a job goes on about as long as it has lasted. So a piece that a
//! device takes several times as long for is handed over once the job has gone on for a few P, and the device is filled
//! until its backlog covers the thread's next piece: `P * P / (P + 2 * lasted) + max(0, q-k) * mean/k < T`. A full
//! window is waited for where that earns more than working inline meanwhile: `(q+1) * mean/k < T`. (Row: eep,
//! `setup_us=4000`: a GPU whose pieces take 5 ms beside a CPU that takes 1 ms for one was never used.)
//!
//! The lab (`tests/all/adaptive.rs`) holds it within 5 % of the best single engine on 1,200 random machines, most of
//! which were not looked at while this was made: the worst 98.2 %, the mean 1.18 times. (`WATTLOCK_MORE_MACHINES=180`
//! tries more.)
//!
//! *Energy.* Joules of a request alone, divided by `b`. `Balanced` weighs time times joules; `Energy` takes the
//! fewest joules among engines within 4 times (interactive), 16 times (stream) or any multiple (bulk) of the shortest
//! time. Unless all of the engines in question are metered, time decides.
//!
//! *Together.* A door gathers requests of a kind and asks about all that are in its hands ([`Ask::count`]): `b` is the
//! least of those and the width, and no other request is expected. P is a pass for one, times what a pass of so many,
//! if more than half full, has been seen to cost beyond that (lanes do RSA in half the time for four). A request alone
//! goes to lanes only where a pass is quicker than any engine that does one at a time, by more than a few observations
//! or by calibration.
//!
//! *Stability.* The engine last chosen for a size bucket is left only for one that looks `margin` (2 %) better, so
//! noise below the margin changes nothing and staying costs no more than the margin.
//!
//! *Trials.* No belief keeps itself alive: an engine that is not chosen for a size, with one, few or many in hand, is
//! tried after `explore_every` (128) such requests at the earliest, and after so many that a trial costs half a per
//! cent: one that is believed to take `t` times as long as the best wastes `t - 1`, and 200 requests pay for one. An
//! engine on this thread that calibration favours is tried after 160 at the latest, whatever its trials show: what
//! makes it slow is a neighbour on the machine, and a neighbour leaves. (One that is k times slower than calibrated for
//! good costs `(k - 1) / 160`, and wants a new calibration.) A device that calibration favours may cost 2 %, and its
//! first trials come as soon. Trials in vain of the others become rarer, up to eight times (between a device and this
//! thread two times from the start, because all threads try at the same time); a device that calibration does not
//! favour, and this thread beside a device if it does not favour that, is tried once in 65,536. A trial that shows less
//! than was believed is followed by the next one at once. Two observations in a row of work on the thread that took
//! less than half of what was believed are believed at once, because nothing makes it quicker than it is (one alone may
//! be the clock's mistake), and what took longer counts as at most one and a half times. What was not calibrated is
//! believed after eight observations. Requests that are done by the table are tried in the same way, counted by those
//! that are timed; a trial makes no engine the incumbent. (`tests.rs`, `tests/trials.rs`: bursts of any length and
//! strength, sizes and counts in turns, joules, devices, noise, wrong calibrations.)
//!
//! *Faults.* A failure multiplies an engine's cost by 9, the next ones by 17, 33 and so on, and half of that is
//! forgiven every 100 ms.
//!
//! *Clocks.* A device with calibrated clocks ([`crate::ClockCost`]) is told the cheapest one that keeps up, unless time
//! is all that counts: then the fastest (`clocks.rs`).
//!
//! A table per kind is built when the kind is first seen (one allocation, as a key's first expansion is one).
//! A request that must be done inside the call is then a look-up by kind and quarter-octave of size.
//!
//! *Files.* `question`: what one decision looks at, and how ways of doing the work compare. `table`: all that is known of
//! one kind, and the choice. `inline`: which engine does a request inside the call. `costs`: the formulas above.
//! `beside`: lanes and this thread beside devices. `explore`: trials.

mod beside;
mod costs;
mod explore;
mod inline;
mod question;
mod table;
#[cfg(test)]
mod tests;

use wattlock_core::{Kind, Nanos, Shape};

use crate::clocks::Governor;
use crate::estimate::Distrust;
use crate::machine::{EngineId, MAX_ENGINES, Machine, Objective};
use crate::ranking::Ranking;
use crate::settings::Settings;
use crate::split::{self, Job, Split};
use crate::weather::{Ask, Choice, ClockStep, Outcome, Policy, Weather};
use question::{Question, Rules};
use table::Table;

/// Cheapest by measurement.
pub struct Adaptive {
    machine: Machine,
    rules: Rules,
    any: Ranking,
    inline: Ranking,
    distrust: [Distrust; MAX_ENGINES],
    tables: Vec<Option<Box<Table>>>,
    /// How long an answer that is taken now may have lain there.
    lain_ns: Nanos,
    /// Requests that wait for this thread when it is asked for another, on average.
    usual: f32,
    /// The last answer that named a device, until it shows whether the device took the request.
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

impl Adaptive {
    /// The rule on this machine.
    pub fn new(machine: Machine, settings: &Settings) -> Adaptive {
        let clocks = |id| Some((id, Governor::new(machine.costs.clocks(id), settings.adaptive_tuning)?));
        let governors = machine.engines.iter().filter_map(|engine| clocks(engine.id)).collect();
        Adaptive {
            rules: Rules::new(&machine, settings),
            governors,
            any: Ranking::any(&machine, &[]),
            inline: Ranking::inline(&machine, &[]),
            machine,
            distrust: Default::default(),
            tables: Kind::ALL.iter().map(|_| None).collect(),
            lain_ns: 0,
            usual: 0.0,
            named: None,
        }
    }

    fn table(&mut self, kind: Kind) -> &mut Table {
        let Adaptive { machine, rules, any, tables, .. } = self;
        tables[kind.index()].get_or_insert_with(|| Box::new(Table::new(machine, any.of(kind), kind, rules)))
    }

    /// The engine for these inside the call, if no request can wait.
    #[cold]
    fn choose_inline_slowly(&mut self, shape: &Shape, weather: &Weather) -> EngineId {
        let rules = self.rules;
        let found = self
            .table(shape.kind)
            .inline_winner(shape.bytes, &rules, None, |id| weather.engines[id.index()].available);
        found.unwrap_or_else(|| self.inline.pick(shape.kind, weather))
    }

    /// A request named for a device that is not in flight there by the next question was refused: its window is full
    /// of others' requests. (Where no time has passed since, nothing was submitted: the policy is only asked.)
    fn notice_refusal(&mut self, weather: &Weather, now: Nanos) {
        let Some(named) = self.named.take().filter(|named| named.now < now) else { return };
        let present = weather.engines[named.engine.index()].own() + named.back;
        if present > named.before {
            return;
        }
        let submit_ns = self.rules.submit_ns;
        if let Some(table) = self.tables[named.kind.index()].as_mut() {
            table.on_refusal(named.engine, named.bytes, submit_ns);
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
        let fill = state.in_flight_bytes.max(shape.bytes as u64);
        let clock = governor.on_message(shape.bytes, fill, state.window_bytes, now);
        Choice { clock: Some(clock), ..choice }
    }

    #[inline(never)]
    fn choose_among_all(&mut self, ask: &Ask, weather: &Weather, now: Nanos) -> Choice {
        let (rules, distrust, shape) = (self.rules, self.distrust, &ask.shape);
        let mut question = Question::new(&rules, &distrust, ask, weather, now);
        self.usual += (question.waiting() - self.usual) / rules.tuning.usual_over;
        let table = self.table(shape.kind);
        let crowded = table.has_devices && table.candidates.iter().any(|one| question.is_crowded(one));
        question.usual = if crowded || !rules.tuning.usual { 0.0 } else { self.usual };
        if self.named.is_some() && rules.tuning.restraint {
            self.notice_refusal(weather, now);
        }
        let choice = match self.table(shape.kind).choose(&question) {
            Some(choice) => choice,
            None if ask.may_wait => Choice::now(self.any.pick(shape.kind, weather)),
            None => Choice::now(self.inline.pick(shape.kind, weather)),
        };
        if self.is_device(choice.engine) {
            let before = weather.engines[choice.engine.index()].own();
            let (engine, kind, bytes) = (choice.engine, shape.kind, shape.bytes);
            self.named = Some(Named { engine, kind, bytes, before, back: 0, now });
        }
        self.clocked(choice, shape, weather, now)
    }

    fn is_device(&self, id: EngineId) -> bool {
        self.machine.engines.get(id.index()).is_some_and(|engine| !engine.class.is_cpu())
    }
}

impl Policy for Adaptive {
    fn name(&self) -> &'static str {
        "adaptive"
    }

    #[inline]
    fn choose(&mut self, ask: &Ask, weather: &Weather, now: Nanos) -> Choice {
        if ask.may_wait || ask.count > 1 {
            return self.choose_among_all(ask, weather, now);
        }
        if let Some(table) = &self.tables[ask.shape.kind.index()] {
            let id = table.inline_best(ask.shape.bytes);
            if weather.engines.get(id.index()).is_some_and(|state| state.available) {
                return Choice::now(id);
            }
        }
        Choice::now(self.choose_inline_slowly(&ask.shape, weather))
    }

    fn looked(&mut self, after_ns: Nanos) {
        self.lain_ns = after_ns;
    }

    fn rest(&self, engine: EngineId) -> Option<ClockStep> {
        if self.rules.objective == Objective::Performance {
            return None;
        }
        self.governors.iter().find(|(id, _)| *id == engine).map(|(_, governor)| governor.resting())
    }

    fn split(&self, job: &Job) -> Option<Split> {
        split::by_rates(&self.machine, job)
    }

    fn observe(&mut self, shape: &Shape, outcome: &Outcome, now: Nanos) {
        let rules = self.rules;
        if let Some(named) = self.named.as_mut().filter(|named| named.engine == outcome.engine) {
            named.back += 1;
        }
        if outcome.failed {
            if let Some(distrust) = self.distrust.get_mut(outcome.engine.index()) {
                distrust.on_failure(now, rules.half_life_ns);
            }
            return;
        }
        let lain_ns = if rules.tuning.lain { self.lain_ns as f32 } else { 0.0 };
        self.table(shape.kind).observe(shape.bytes, outcome, lain_ns, &rules);
    }

    /// If it was a trial, it is over: nothing will be observed that ends it.
    fn left_undone(&mut self, shape: &Shape, engine: EngineId) {
        let rules = self.rules;
        let table = self.tables[shape.kind.index()].as_mut();
        if let Some(table) = table.filter(|table| table.inline_best(shape.bytes) == engine) {
            table.settle_bucket(shape.bytes, &rules);
        }
    }
}
