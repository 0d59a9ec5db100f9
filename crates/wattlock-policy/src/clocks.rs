//! Which clock a device should run at: the one of fewest joules that keeps up with what arrives and keeps the window
//! from overflowing. Part of `adaptive`; LECPAES's published rule (`lecpaes.rs`) goes by the fill level alone.
//!
//! Pure: what each clock costs is calibrated ([`ClockCost`]), velocity is what was submitted, fill is the weather's,
//! `now` an argument.
//!
//! *The plan.* With velocity v (bytes/s), a clock s does passes of B bytes at `c_s(B) = B / (setup + B / rate)`. Where
//! `v <= c_s`, watts are `idle_s + (busy_s - idle_s) * v / c_s`: a machine whose idle power is high at fast clocks goes
//! slowly and steadily, one whose busy power hardly depends on the clock races and rests. Where a slow clock cannot
//! keep up, it may still be the cheaper one *in turns* with a faster: the share of time `q = (v - c_a) / (c_b - c_a)` at
//! b costs `(1 - q) * busy_a + q * busy_b`. All single clocks and pairs are compared; the plan is the cheapest, and
//! is left only for one that is 3 % cheaper.
//!
//! *The guard.* Whatever the plan, a pass may begin at a clock only if what arrives before it ends leaves room for the
//! largest message seen lately. So a rising fill raises the clock at the very next pass, and it comes down only when
//! the slower clock would end its pass with half of that room: turns are as long as the window allows, and a constant
//! velocity that one clock sustains changes nothing.
//!
//! *Company.* A pass may wait for more messages if that saves 2 % of the watts, never longer than the caller's patience.

use wattlock_core::Nanos;

use crate::weather::ClockStep;

/// What a device costs at one of its clocks, by calibration. Watts are the whole boundary's, so that clocks compare.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClockCost {
    /// Time of a pass before its bytes count, in nanoseconds.
    pub setup_ns: f64,
    /// Bytes a second beyond that.
    pub bytes_per_s: f64,
    /// Watts while it has nothing to do.
    pub idle_w: f64,
    /// Watts while it works.
    pub busy_w: f64,
}

impl ClockCost {
    /// Nanoseconds of a pass.
    fn pass_ns(&self, bytes: f64) -> f64 {
        self.setup_ns + bytes * 1e9 / self.bytes_per_s
    }

    /// Bytes a second in passes of that size.
    fn capacity(&self, bytes: f64) -> f64 {
        bytes * 1e9 / self.pass_ns(bytes)
    }
}

/// Share of the window that a pass may need, what it holds and what comes meanwhile.
const ROOM: f64 = 1.0;
/// The same for a clock between the plan's and the fastest.
const HARD: f64 = 1.5;
/// The same before a raised clock comes down again.
const CALM: f64 = 0.8;
/// The last few messages count where they are this many times as fast as the last few dozen.
const SURGE: f64 = 1.3;
/// Share of the window that passes hold when there is always work.
const PASS: f64 = 0.75;
/// Where no clock keeps up, one this near the fastest will do.
const NEAR: f64 = 0.93;
/// A plan is left for one that costs this much of it.
const BETTER: f64 = 0.97;
/// A clock keeps up if it has this much to spare.
const SPARE: f64 = 0.93;
/// Waiting for company must save this much of the watts.
const WORTH: f64 = 0.98;
/// Longer gaps say nothing more.
const GAP_MOST_NS: f64 = 1e9;

/// The clock for the next pass, and how long to wait for company.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Order {
    pub(crate) clock: ClockStep,
    pub(crate) hold_ns: Nanos,
}

/// A slow clock, and the one it takes turns with (itself where it keeps up).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Plan {
    low: usize,
    high: usize,
}

/// One device's clock.
#[derive(Debug, Clone)]
pub(crate) struct Governor {
    steps: Vec<ClockCost>,
    /// Means over about 32 messages, and over about 4.
    slow: Flow,
    fast: Flow,
    last: Option<Nanos>,
    plan: Plan,
    planned_at: f64,
    /// Whether no clock keeps up.
    overrun: bool,
    raised: bool,
}

/// Mean bytes and mean gap.
#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    bytes: f64,
    gap_ns: f64,
}

impl Flow {
    fn learn(&mut self, bytes: f64, gap_ns: f64, weight: f64) {
        self.bytes += (bytes - self.bytes) * weight;
        self.gap_ns += (gap_ns - self.gap_ns) * weight;
    }

    /// Bytes a second.
    fn velocity(&self) -> f64 {
        self.bytes * 1e9 / self.gap_ns.max(1.0)
    }
}

impl Governor {
    /// For these clocks, lowest first; `None` for fewer than two, or costs that are not numbers above zero.
    pub(crate) fn new(steps: &[ClockCost]) -> Option<Governor> {
        let sound = |step: &ClockCost| {
            let parts = [step.setup_ns, step.bytes_per_s, step.idle_w, step.busy_w];
            parts.iter().all(|part| part.is_finite() && *part >= 0.0) && step.bytes_per_s > 0.0
        };
        if steps.len() < 2 || steps.len() > 256 || !steps.iter().all(sound) {
            return None;
        }
        Some(Governor {
            steps: steps.to_vec(),
            slow: Flow::default(),
            fast: Flow::default(),
            last: None,
            plan: Plan { low: 0, high: 0 },
            planned_at: 0.0,
            overrun: false,
            raised: false,
        })
    }

    /// The fastest clock, for whoever counts time only.
    pub(crate) fn fastest(&self) -> ClockStep {
        let fastest = (0..self.steps.len()).max_by(|a, b| {
            let rate = |index: usize| self.steps[index].bytes_per_s;
            rate(*a).total_cmp(&rate(*b))
        });
        ClockStep(fastest.unwrap_or(0) as u8)
    }

    /// The clock that takes least while there is nothing to do.
    pub(crate) fn resting(&self) -> ClockStep {
        let idle = |step: usize| self.steps[step].idle_w;
        let least = (0..self.steps.len()).min_by(|a, b| idle(*a).total_cmp(&idle(*b)));
        ClockStep(least.unwrap_or(0) as u8)
    }

    /// A message of `bytes` has come; the window holds `fill` of `window` bytes with it.
    pub(crate) fn on_message(
        &mut self,
        bytes: usize,
        fill: u64,
        window: u64,
        patience_ns: f64,
        now: Nanos,
    ) -> Order {
        self.learn(bytes as f64, now);
        if window == 0 {
            return Order { clock: self.fastest(), hold_ns: 0 };
        }
        let (fill, window) = (fill as f64, window as f64);
        self.replan(window);
        let clock = self.guarded(fill, window);
        let hold_ns = if self.raised { 0 } else { self.hold_ns(clock, fill, window, patience_ns) };
        Order { clock: ClockStep(clock as u8), hold_ns }
    }

    fn learn(&mut self, bytes: f64, now: Nanos) {
        let gap = self.last.map(|last| (now.saturating_sub(last) as f64).min(GAP_MOST_NS));
        self.last = Some(now);
        let Some(gap) = gap else {
            // Nothing is known of the velocity: as if the next message came after a second.
            (self.slow, self.fast) =
                (Flow { bytes, gap_ns: GAP_MOST_NS }, Flow { bytes, gap_ns: GAP_MOST_NS });
            return;
        };
        if self.slow.gap_ns >= GAP_MOST_NS {
            self.slow.gap_ns = gap;
        }
        self.slow.learn(bytes, gap, 1.0 / 32.0);
        self.fast.learn(bytes, gap, 1.0 / 4.0);
    }

    /// Bytes of the largest pass worth counting on.
    fn most(&self, window: f64) -> f64 {
        (PASS * window).max(self.slow.bytes).max(1.0)
    }

    /// Watts of a plan, `None` if it does not keep up.
    fn watts(&self, plan: Plan, window: f64, pass: f64) -> Option<f64> {
        let (low, high, velocity) = (&self.steps[plan.low], &self.steps[plan.high], self.slow.velocity());
        let most = self.most(window);
        let (slow, quick) = (SPARE * low.capacity(most), SPARE * high.capacity(most));
        if velocity <= slow {
            let share = (velocity / low.capacity(pass)).min(1.0);
            return (plan.low == plan.high).then_some(low.idle_w + (low.busy_w - low.idle_w) * share);
        }
        if velocity > quick || quick <= slow {
            return None;
        }
        let share = (velocity - slow) / (quick - slow);
        Some((1.0 - share) * low.busy_w + share * high.busy_w)
    }

    /// The clock of fewest joules a byte among those that are about as fast as the fastest.
    fn near(&self, pass: f64) -> usize {
        let fastest = self.steps[usize::from(self.fastest().0)].capacity(pass);
        let fast = (0..self.steps.len()).filter(|step| self.steps[*step].capacity(pass) >= NEAR * fastest);
        let joules = |step: usize| self.steps[step].busy_w / self.steps[step].capacity(pass);
        fast.min_by(|a, b| joules(*a).total_cmp(&joules(*b))).unwrap_or(0)
    }

    fn replan(&mut self, window: f64) {
        let velocity = self.slow.velocity();
        if (velocity / self.planned_at - 1.0).abs() < 0.05 {
            return;
        }
        self.planned_at = velocity;
        let pass = self.slow.bytes.max(1.0);
        let of = |plan: Plan| self.watts(plan, window, pass);
        let count = self.steps.len();
        let plans = (0..count).flat_map(|low| (low..count).map(move |high| Plan { low, high }));
        let cheapest = plans.filter_map(|plan| Some((plan, of(plan)?))).min_by(|a, b| a.1.total_cmp(&b.1));
        let Some((best, watts)) = cheapest else {
            let near = self.near(self.most(window));
            (self.plan, self.overrun) = (Plan { low: near, high: near }, true);
            return;
        };
        if self.overrun || of(self.plan).is_none_or(|present| watts < BETTER * present) {
            self.plan = best;
        }
        self.overrun = false;
    }

    /// Bytes a second; the short mean counts only where it is far above the long one.
    fn velocity(&self) -> f64 {
        let (slow, fast) = (self.slow.velocity(), self.fast.velocity());
        if fast > SURGE * slow { fast } else { slow }
    }

    /// Share of the window that a pass begun now at that clock would need: what it holds, and what comes meanwhile.
    fn needs(&self, step: usize, fill: f64, window: f64) -> f64 {
        let velocity = self.velocity();
        (fill + velocity * self.steps[step].pass_ns(fill) / 1e9) / window
    }

    /// The plan's clock, or the first above it that leaves room.
    fn guarded(&mut self, fill: f64, window: f64) -> usize {
        let Plan { low, high } = self.plan;
        let bound = if self.raised { CALM } else { ROOM };
        self.raised = !self.overrun && self.needs(low, fill, window) > bound;
        if !self.raised {
            return low;
        }
        let from = high.max(low + 1);
        let found = (from..self.steps.len()).find(|step| self.needs(*step, fill, window) <= HARD);
        found.unwrap_or(usize::from(self.fastest().0))
    }

    fn hold_ns(&self, step: usize, fill: f64, window: f64, patience_ns: f64) -> Nanos {
        let velocity = self.slow.velocity();
        let together = (velocity * patience_ns / 1e9).min(window / 4.0);
        let plan = Plan { low: step, high: step };
        if together < fill + self.slow.bytes {
            return 0;
        }
        let (alone, shared) =
            (self.watts(plan, window, self.slow.bytes.max(1.0)), self.watts(plan, window, together));
        match (alone, shared) {
            (Some(alone), Some(shared)) if shared < WORTH * alone => {
                ((together - fill) * 1e9 / velocity).clamp(0.0, patience_ns) as Nanos
            }
            _ => 0,
        }
    }
}
