//! What `adaptive` believes an engine's work costs: calibration corrected by observation, per size bucket, and what
//! it believes of the engine itself: how many requests it really works on at once, and how far it is to be trusted after a
//! fault.
//!
//! Every belief starts at the calibrated value, moves by an exponentially weighted mean, and is bounded: an outlier
//! (a preempted thread) counts as little more than what was expected.

use wattlock_core::{Kind, Nanos};

use crate::machine::{Costs, EngineId, EngineView};
use crate::tuning::Tuning;

/// Size buckets: one for each power of two up to 32 MiB, and what is larger.
pub(crate) const BUCKETS: usize = 26;

/// Most times the belief that one observation counts as: of a device, and of work on this thread, which is seldom slower
/// than before but for a preemption, which any engine may meet.
const OUTLIER: (f32, f32) = (4.0, 1.5);

/// Largest batch whose time is calibrated.
const BATCH_MOST: usize = 16;

/// The bucket of a size: the logarithm to base 2, rounded down (0 for 0).
#[inline]
pub(crate) const fn bucket(bytes: usize) -> usize {
    let log = (bytes | 1).ilog2() as usize;
    if log < BUCKETS { log } else { BUCKETS - 1 }
}

/// A straight line between the calibrated values at a bucket's two ends; the last bucket's goes on beyond it.
#[derive(Clone, Copy)]
struct Line {
    at: f32,
    slope: f32,
}

impl Line {
    fn new(bucket: usize, value: impl Fn(usize) -> Option<f64>) -> Option<Line> {
        let (low, high) = (if bucket == 0 { 0 } else { 1usize << bucket }, 2usize << bucket);
        let (at_low, at_high) = (value(low)?, value(high)?);
        let slope = (at_high - at_low) / (high - low) as f64;
        let at = at_low - slope * low as f64;
        (at.is_finite() && slope.is_finite()).then_some(Line { at: at as f32, slope: slope as f32 })
    }

    #[inline]
    fn value(&self, bytes: usize) -> f32 {
        self.at + self.slope * bytes as f32
    }
}

/// A calibrated line and how much dearer or cheaper the work has proved.
#[derive(Clone, Copy)]
struct Belief {
    line: Option<Line>,
    /// Observed over calibrated; 1 until something is observed.
    ratio: f32,
    /// Observations, as far as they still matter.
    seen: u8,
    /// Observations in all, as far as it matters.
    all: u8,
    /// Whether the line is a calibration; else it is the first observation.
    calibrated: bool,
}

impl Belief {
    fn new(line: Option<Line>, tuning: &Tuning) -> Belief {
        Belief { line, ratio: 1.0, seen: tuning.calibrated, all: 0, calibrated: line.is_some() }
    }

    #[inline]
    fn value(&self, bytes: usize) -> Option<f32> {
        self.line.map(|line| line.value(bytes) * self.ratio)
    }

    fn calibrated(&self, bytes: usize) -> Option<f32> {
        self.line.filter(|_| self.calibrated).map(|line| line.value(bytes))
    }

    /// A new belief follows its first observations fast. `on_thread`: a neighbour on the machine makes such work slower, and
    /// nothing makes it quicker than it is; so what took less than half of what is believed is believed at once.
    fn learn(&mut self, bytes: usize, observed: f32, on_thread: bool, tuning: &Tuning) {
        let Some(line) = self.line else {
            // Nobody calibrated: the first observation stands for the bucket, in proportion to nothing but itself.
            self.line = Some(Line { at: observed, slope: 0.0 });
            (self.seen, self.all) = (1, 1);
            return;
        };
        let expected = line.value(bytes).max(1.0);
        self.all = self.all.saturating_add(1);
        let outlier = if on_thread { OUTLIER.1 } else { OUTLIER.0 };
        let sample = (observed / expected).clamp(1e-3, 1e3).min(self.ratio * outlier);
        if on_thread && 2.0 * sample < self.ratio {
            (self.ratio, self.seen) = (sample, 1);
            return;
        }
        let sample = sample.max(self.ratio / outlier);
        self.seen = self.seen.saturating_add(1).min(64);
        let weight = (1.0 / (1.0 + f32::from(self.seen))).max(tuning.settled);
        self.ratio += weight * (sample - self.ratio);
    }

    /// Makes the next observations count as if they were the first.
    fn refresh(&mut self) {
        self.seen = 0;
    }
}

/// Time and energy of one bucket.
#[derive(Clone, Copy)]
struct Cell {
    ns: Belief,
    nj: Belief,
    /// Requests that others did, of those that a question named an engine for, and of those done by the table.
    asked: Turns,
    tabled: Turns,
}

/// When an engine that is not chosen is tried again.
#[derive(Clone, Copy, Default)]
pub(crate) struct Turns {
    /// Requests that others did since it did the last one.
    passed: u32,
    /// When this many have passed, it is asked whether it is due.
    ask_at: u32,
    /// Trials since it was last chosen.
    trials: u8,
}

impl Turns {
    /// Requests after which it is asked again: what is believed changes meanwhile, and distrust fades.
    const ASKED_EVERY: f32 = 1024.0;

    /// Takes note of requests that another engine does. Whether to ask if it is due: not before `every` of them, and then
    /// not with each.
    #[inline]
    pub(crate) fn pass(&mut self, requests: u32, every: u32) -> bool {
        self.passed = self.passed.saturating_add(requests);
        self.passed >= self.ask_at.max(every)
    }

    /// Whether it is due if it is to do one request in so many; if not, it is asked again later.
    pub(crate) fn is_due(&mut self, one_in: f32) -> bool {
        if self.passed as f32 >= one_in {
            return true;
        }
        let left = (one_in - self.passed as f32).min(Turns::ASKED_EVERY);
        self.ask_at = self.passed.saturating_add(left as u32).saturating_add(1);
        false
    }

    /// What the requests between two trials are multiplied with: twice as many after each trial in vain, up to so many.
    pub(crate) fn backoff(&self, most: f32) -> f32 {
        f32::from(self.trials).exp2().min(most)
    }

    /// It is tried.
    pub(crate) fn begin(&mut self) {
        *self = Turns { trials: self.trials.saturating_add(1), ..Turns::default() };
    }

    /// Its trial was quicker than believed: the next one follows at once.
    fn go_on(&mut self) {
        if self.trials > 0 {
            self.passed = u32::MAX;
        }
    }

    /// It is chosen.
    pub(crate) fn end(&mut self) {
        *self = Turns::default();
    }
}

/// What a request through a queue costs the thread that submits it.
#[derive(Clone, Copy)]
pub(crate) struct Submit {
    pub(crate) ns: f32,
    /// The part of it that an engine's own time does not contain.
    pub(crate) beyond: f32,
}

impl Submit {
    /// The part that an engine's own time contains.
    #[inline]
    pub(crate) fn within(self) -> f32 {
        self.ns - self.beyond
    }
}

/// One engine's work of one kind.
pub(crate) struct Candidate {
    tuning: &'static Tuning,
    pub(crate) id: EngineId,
    pub(crate) inline: bool,
    pub(crate) width: u16,
    pub(crate) window: u32,
    is_cpu: bool,
    /// Calibrated cost of its queue to the submitting thread.
    submit_ns: Option<f32>,
    /// Cost of checking a result to the submitting thread, which is no part of the engine's time.
    check_ns: f32,
    cells: [Cell; BUCKETS],
    /// Requests it works on at once, as far as anyone has seen.
    servers: f32,
    /// Servers hoped for until the first request has to wait, then 0: half the window, the rest being for queueing.
    hoped: f32,
    /// Whether the last request that found all of them busy had to wait.
    waited: bool,
    /// Mean nanoseconds of the requests submitted lately, alone.
    mean_ns: f32,
    /// What a pass of so many takes by calibration, in passes of one; 1 where nobody measured.
    passes: [f32; 1 + BATCH_MOST],
    /// What a pass more than half full takes beyond that: CPU lanes may do a thin batch in half the time.
    full: f32,
    /// Passes that were less than whole, since the last whole one.
    thin: u32,
    /// A device that refused is sent one request in `2^restraint` of those it would be best for.
    restraint: f32,
    /// Grows by that share with each request, and is spent.
    turn: f32,
}

impl Candidate {
    pub(crate) fn new(engine: &EngineView, kind: Kind, costs: &Costs, tuning: &'static Tuning) -> Candidate {
        let cell = |bucket| Cell {
            ns: Belief::new(Line::new(bucket, |bytes| costs.latency_ns(engine.id, kind, bytes)), tuning),
            nj: Belief::new(Line::new(bucket, |bytes| costs.energy_nj(engine.id, kind, bytes)), tuning),
            asked: Turns::default(),
            tabled: Turns::default(),
        };
        let cells: [Cell; BUCKETS] = std::array::from_fn(cell);
        Candidate {
            tuning,
            id: engine.id,
            inline: engine.inline.contains(kind),
            width: engine.widths.of(kind),
            window: engine.window,
            is_cpu: engine.class.is_cpu(),
            submit_ns: costs.submit_ns(engine.id).map(|ns| ns as f32),
            check_ns: costs.check_ns(engine.id, kind) as f32,
            cells,
            servers: f32::from(engine.widths.of(kind)),
            hoped: if tuning.hoped { engine.window as f32 * tuning.hoped_share } else { 0.0 },
            waited: false,
            mean_ns: 0.0,
            // No pass is quicker than that of a request alone; where calibration says so, a neighbour slowed the one alone.
            passes: std::array::from_fn(|count| {
                costs.batch_times(engine.id, kind, count as u16).unwrap_or(1.0).max(1.0) as f32
            }),
            full: 1.0,
            thin: 0,
            restraint: 0.0,
            turn: 0.0,
        }
    }

    /// Whether the work occupies the deciding thread: in the call, or in lanes.
    #[inline]
    pub(crate) fn on_thread(&self) -> bool {
        self.is_cpu || self.inline
    }

    /// What its queue costs the submitting thread: calibrated, and then part of its time, or `otherwise` beyond it. The
    /// check of its result is beyond it, too.
    #[inline]
    pub(crate) fn submit(&self, otherwise: f32) -> Submit {
        let check = self.check_ns;
        match self.submit_ns {
            Some(ns) => Submit { ns: ns + check, beyond: check },
            None => Submit { ns: otherwise + check, beyond: otherwise + check },
        }
    }

    /// Nanoseconds of one request alone, if anyone knows: for lanes, of the pass that it has for itself.
    #[inline]
    pub(crate) fn ns(&self, bytes: usize) -> Option<f32> {
        self.cells[bucket(bytes)].ns.value(bytes)
    }

    /// What is multiplied with the time of a request alone where so many share its pass.
    #[inline]
    pub(crate) fn fullness(&self, batch: f32) -> f32 {
        let learned =
            if self.tuning.fullness && 2.0 * batch > f32::from(self.width) { self.full } else { 1.0 };
        learned * self.calibrated_passes(batch)
    }

    /// Whether a pass that would be of `count` is to be a whole one all the same: what is believed of whole passes must not
    /// keep itself alive. The dearer they are believed, the longer until one is tried, so that trials cost 1 % at most: one
    /// that takes `times` as long as two halves wastes `times - 1` of those, and 75 pairs of halves pay for it. In truth no
    /// pass takes longer than two times its halves, so nothing waits longer than that.
    pub(crate) fn tries_whole(&mut self, count: u32, whole: u32) -> bool {
        if count >= whole {
            // The rest behind half a pass is no whole one.
            if 2 * whole > u32::from(self.width) {
                self.thin = 0;
            }
            return false;
        }
        let (whole, half) = (self.fullness(whole as f32), self.fullness(count as f32));
        let times = whole / (2.0 * half).max(f32::MIN_POSITIVE);
        self.thin += 1;
        let due = self.thin as f32 > (150.0 * (times - 1.0)).clamp(32.0, 150.0);
        if due {
            self.thin = 0;
        }
        due
    }

    fn calibrated_passes(&self, batch: f32) -> f32 {
        if self.width > 1 { self.passes[(batch as usize).min(BATCH_MOST)] } else { 1.0 }
    }

    /// The same by calibration only.
    pub(crate) fn calibrated_ns(&self, bytes: usize) -> Option<f32> {
        self.cells[bucket(bytes)].ns.calibrated(bytes)
    }

    /// What is believed where that rests on more than a few observations; else what was calibrated.
    pub(crate) fn settled_ns(&self, bytes: usize) -> Option<f32> {
        let belief = &self.cells[bucket(bytes)].ns;
        let settled = f32::from(belief.all) * self.tuning.settled >= 1.0;
        belief.calibrated(bytes).filter(|_| !settled).or_else(|| belief.value(bytes))
    }

    /// Whether even requests that met little of our own take longer than calibrated.
    pub(crate) fn is_slow(&self, bytes: usize) -> bool {
        self.ns(bytes)
            .zip(self.calibrated_ns(bytes))
            .is_some_and(|(live, alone)| live > (1.0 + self.tuning.slow) * alone)
    }

    /// Nanojoules of one request alone, if anyone knows.
    #[inline]
    pub(crate) fn nj(&self, bytes: usize) -> Option<f32> {
        self.cells[bucket(bytes)].nj.value(bytes)
    }

    /// Requests it is believed to work on at once. Until somebody had to wait it is one more than seen, and at least
    /// what is hoped: a depth must be tried before it can be doubted, and calibration does not say how many there are.
    #[inline]
    pub(crate) fn servers(&self) -> f32 {
        if self.waited { self.servers } else { (self.servers + f32::from(self.width)).max(self.hoped) }
    }

    /// Nanoseconds until a request would be done that joins `ahead` others: its own time, and its place in the queue
    /// times the mean service time over the servers (an M/G/k queue seen from its end).
    #[inline]
    pub(crate) fn queue_ns(&self, alone: f32, ahead: f32) -> f32 {
        let servers = self.servers();
        let mean = if self.tuning.mean && self.mean_ns > 0.0 { self.mean_ns } else { alone };
        alone + (ahead + 1.0 - servers).max(0.0) * mean / servers
    }

    /// Mean nanoseconds of what was submitted lately, each alone.
    pub(crate) fn mean_ns(&self) -> f32 {
        self.mean_ns.max(1.0)
    }

    /// Takes note that a request was sent here.
    pub(crate) fn on_submit(&mut self, alone: f32) {
        if self.mean_ns == 0.0 {
            self.mean_ns = alone;
        }
        self.mean_ns += (alone - self.mean_ns) / self.tuning.mean_over;
    }

    /// What made another engine's work so many times as long makes this one's, too.
    pub(crate) fn scale(&mut self, bytes: usize, factor: f32) {
        let ratio = &mut self.cells[bucket(bytes)].ns.ratio;
        *ratio = (*ratio * factor).clamp(1e-3, 1e3);
    }

    /// Learns from one outcome: `service` is its time without holding, `depth` the requests in flight with it.
    pub(crate) fn on_outcome(&mut self, bytes: usize, service: f32, batch: u16, depth: u32, nj: Option<u64>) {
        let (believed, on_thread) = (self.ns(bytes), self.on_thread());
        self.learn_from(bytes, service, batch, depth, nj);
        let cell = &mut self.cells[bucket(bytes)];
        let now = cell.ns.value(bytes).filter(|_| on_thread);
        if believed.zip(now).is_some_and(|(believed, now)| now < (1.0 - self.tuning.improved) * believed) {
            cell.asked.go_on();
            cell.tabled.go_on();
        }
    }

    fn learn_from(&mut self, bytes: usize, service: f32, batch: u16, depth: u32, nj: Option<u64>) {
        let (on_thread, tuning) = (self.on_thread(), self.tuning);
        let cell = &mut self.cells[bucket(bytes)];
        if let Some(nj) = nj {
            // Joules are kept for a request alone; one that shared a pass paid its share.
            let alone = nj as f32 * f32::from(batch.clamp(1, self.width));
            cell.nj.learn(bytes, alone, on_thread, tuning);
        }
        self.restraint = (self.restraint - tuning.taken).max(0.0);
        let depth = depth.max(1) as f32;
        let Some(alone) = cell.ns.value(bytes) else {
            if depth <= f32::from(self.width) {
                cell.ns.learn(bytes, service, on_thread, tuning);
            }
            return;
        };
        if on_thread {
            let calibrated = self.calibrated_passes(f32::from(batch));
            let cell = &mut self.cells[bucket(bytes)];
            let mut alone = alone;
            if self.width > 1 && service < 0.95 * alone {
                // No pass is quicker than that of a request alone.
                cell.ns.learn(bytes, service, true, tuning);
                alone = service;
            }
            if tuning.fullness && self.width > 1 && 2 * batch > self.width {
                let passes =
                    (service / (alone * calibrated).max(1.0)).clamp(self.full / 4.0, self.full * 4.0);
                let passes = passes.clamp(1.0 / calibrated, 8.0);
                // A neighbour on the machine makes a pass slower and never faster: the quicker one is believed at once.
                self.full = if passes < self.full {
                    passes
                } else {
                    self.full + (passes - self.full) / tuning.full_over
                };
            } else {
                cell.ns.learn(bytes, service / calibrated, on_thread, tuning);
            }
        } else if !tuning.shallow || depth <= (self.servers * tuning.shallow_share).max(f32::from(self.width))
        {
            cell.ns.learn(bytes, service, on_thread, tuning);
        } else {
            // More waiting than even a single server explains is the work's own length.
            let single = depth / f32::from(self.width);
            if service > alone * single {
                cell.ns.learn(bytes, service / single, on_thread, tuning);
            }
            if tuning.servers {
                self.learn_servers(alone, service, depth);
            }
        }
    }

    /// Inverts [`Candidate::queue_ns`]: `wait = (depth - k) * mean / k`, so `k = depth * mean / (wait + mean)`.
    /// Without a wait this gives `depth`, which is only a lower bound and may therefore only raise the belief.
    fn learn_servers(&mut self, alone: f32, service: f32, depth: f32) {
        let mean = self.mean_ns.max(1.0);
        let wait = (service - alone).max(0.0);
        let sample = depth * mean / (wait + mean);
        let waited = wait > mean * self.tuning.waited;
        if depth >= self.servers {
            self.waited = waited;
            self.hoped *= f32::from(u8::from(!waited));
        }
        if waited || sample > self.servers {
            self.servers += (sample - self.servers) / self.tuning.servers_over;
        }
        let least = f32::from(self.width);
        self.servers = self.servers.clamp(least, least.max(self.window as f32));
    }

    /// Whether restraint lets the request now asked for go there.
    pub(crate) fn has_turn(&self) -> bool {
        self.turn >= 1.0
    }

    /// Takes note that a request is asked for.
    pub(crate) fn on_ask(&mut self) {
        let share = if self.restraint == 0.0 { 1.0 } else { (-self.restraint).exp2() };
        self.turn = (self.turn + share).min(2.0);
    }

    /// Takes note that the request was sent here.
    pub(crate) fn take_turn(&mut self) {
        self.turn = (self.turn - 1.0).max(0.0);
    }

    /// A device had no room. That was a call for nothing, whose `cost` is given as a share of what a request gains there.
    pub(crate) fn on_refusal(&mut self, cost: f32) {
        self.restraint =
            (self.restraint + self.tuning.refused * cost.min(1.0)).min(self.tuning.restraint_most);
    }

    /// Gives a belief another chance: the next observations count fully.
    pub(crate) fn refresh(&mut self, bytes: usize) {
        self.cells[bucket(bytes)].ns.refresh();
    }

    /// Its turns among the questions about that size.
    pub(crate) fn asked(&mut self, bytes: usize) -> &mut Turns {
        &mut self.cells[bucket(bytes)].asked
    }

    /// The same among requests that are done by the table.
    pub(crate) fn tabled(&mut self, bytes: usize) -> &mut Turns {
        &mut self.cells[bucket(bytes)].tabled
    }
}

/// Distrust of an engine that failed: doubled by each failure, halved by time.
#[derive(Clone, Copy, Default)]
pub(crate) struct Distrust {
    level: f32,
    since: Nanos,
}

impl Distrust {
    const FIRST: f32 = 8.0;
    const MOST: f32 = 4096.0;

    /// What a cost is multiplied by: 1 for an engine that never failed.
    #[inline]
    pub(crate) fn factor(&self, now: Nanos, half_life: Nanos) -> f32 {
        if self.level == 0.0 { 1.0 } else { 1.0 + self.left(now, half_life) }
    }

    fn left(&self, now: Nanos, half_life: Nanos) -> f32 {
        let age = now.saturating_sub(self.since) as f32 / half_life as f32;
        self.level * (-age).exp2()
    }

    pub(crate) fn on_failure(&mut self, now: Nanos, half_life: Nanos) {
        self.level = (2.0 * self.left(now, half_life)).clamp(Distrust::FIRST, Distrust::MOST);
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattlock_core::{EngineClass, KindSet};

    fn device(points: Vec<(usize, f64, Option<f64>)>) -> Candidate {
        let mut costs = Costs::new();
        costs.set(EngineId(0), Kind::Aes128Ctr, points);
        with(&costs)
    }

    fn with(costs: &Costs) -> Candidate {
        let view = EngineView {
            id: EngineId(0),
            class: EngineClass::Accelerator,
            inline: KindSet::EMPTY,
            queued: KindSet::ALL,
            widths: crate::machine::Widths::all(1),
            window: 64,
        };
        Candidate::new(&view, Kind::Aes128Ctr, costs, &Tuning::DEFAULT)
    }

    #[test]
    fn a_submission_costs_what_was_calibrated_and_the_check_of_its_result() {
        let mut costs = Costs::new();
        costs.set_check(EngineId(0), Kind::Aes128Ctr, 30.0);
        let parts = |costs: &Costs| {
            let submit = with(costs).submit(500.0);
            (submit.ns, submit.beyond)
        };
        assert_eq!(parts(&costs), (530.0, 530.0), "nothing known: all of it is beyond the engine's time");
        costs.set_submit(EngineId(0), 700.0);
        assert_eq!(parts(&costs), (730.0, 30.0));
    }

    #[test]
    fn what_an_engines_time_contains_of_a_submission_is_all_but_what_is_beyond_it() {
        assert_eq!(Submit { ns: 7.0, beyond: 2.0 }.within(), 5.0);
    }

    #[test]
    fn calibration_is_reproduced_between_its_points() {
        let device = device(vec![(0, 1000.0, None), (1 << 20, 1000.0 + (1 << 20) as f64, None)]);
        for bytes in [0, 1, 100, 5000, 1 << 19, (1 << 20) + 12_345] {
            let (is, ought) = (device.ns(bytes).unwrap(), 1000.0 + bytes as f32);
            assert!((is / ought - 1.0).abs() < 1e-3, "{bytes}: {is}");
        }
        assert_eq!(device.nj(100), None);
    }

    #[test]
    fn a_lasting_change_is_believed_and_an_outlier_is_not() {
        let mut device = device(vec![(0, 1000.0, None)]);
        assert!(!device.is_slow(64));
        device.on_outcome(64, 1e9, 1, 1, None);
        assert!(device.ns(64).unwrap() < 2000.0);
        for _ in 0..200 {
            device.on_outcome(64, 3000.0, 1, 1, None);
        }
        assert!((device.ns(64).unwrap() / 3000.0 - 1.0).abs() < 0.02);
        assert_eq!((device.calibrated_ns(64), device.is_slow(64)), (Some(1000.0), true));
    }

    #[test]
    fn a_device_that_refuses_is_sent_fewer_until_it_takes_them_again() {
        let mut device = device(vec![(0, 1000.0, None)]);
        let sent = |device: &mut Candidate| {
            let mut count = 0;
            for _ in 0..64 {
                device.on_ask();
                if device.has_turn() {
                    device.take_turn();
                    count += 1;
                }
            }
            count
        };
        assert_eq!(sent(&mut device), 64);
        (0..2).for_each(|_| device.on_refusal(3.0));
        assert_eq!(sent(&mut device), 4, "a call in vain costs more than one that succeeds gains");
        (0..16).for_each(|_| device.on_outcome(64, 1000.0, 1, 1, None));
        assert_eq!(sent(&mut device), 64);
        device.on_refusal(0.01);
        assert!(sent(&mut device) >= 62, "a cheap call in vain matters little");
    }

    #[test]
    fn servers_are_found_from_waiting_times() {
        let mut device = device(vec![(0, 1000.0, None)]);
        device.on_submit(1000.0);
        for round in 0..400u32 {
            let depth = 1 + round % 32;
            let wait = f64::from(depth.saturating_sub(12)) * 1000.0 / 12.0;
            device.on_outcome(64, (1000.0 + wait) as f32, 1, depth, None);
        }
        assert!((9.0..=15.0).contains(&device.servers), "{}", device.servers);
        assert!((device.ns(64).unwrap() / 1000.0 - 1.0).abs() < 0.1);
    }

    #[test]
    fn distrust_doubles_with_failures_and_fades_with_time() {
        let mut distrust = Distrust::default();
        assert_eq!(distrust.factor(5, 100), 1.0);
        distrust.on_failure(0, 100);
        assert_eq!(distrust.factor(0, 100), 9.0);
        distrust.on_failure(0, 100);
        assert_eq!(distrust.factor(0, 100), 17.0);
        assert!(distrust.factor(1000, 100) < 1.02);
        for _ in 0..1000 {
            distrust.on_failure(1000, 100);
        }
        assert!(distrust.factor(1000, 100) <= 1.0 + Distrust::MOST);
    }
}
