//! The clock that a device should run at: the one of fewest joules that keeps up with the arrivals and keeps the window
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
//! *The guard.* It overrides the plan. A pass begins at the slow clock only on two conditions: its own bytes and the
//! bytes that arrive before it ends fit into the window together, and the fastest clock could still process those
//! arrivals in time. Otherwise it begins at the plan's faster clock, or at the fastest if even with the plan's faster
//! clock half a window too much would arrive. So a rising fill raises the clock at the next pass. The clock falls again
//! when a slow pass would need at most four fifths of the window. A velocity that one clock sustains changes nothing.
//! If no clock keeps up, the cheapest of those within 7 % of the fastest runs; if the window is full, the fastest.
//!
//! *Velocity* is the mean of about 32 messages, or that of the last few if it is a third higher. A gap counts as at
//! most four usual ones: a stream that was fast before a pause is expected to be fast after it.

use wattlock_core::Nanos;

use crate::tuning::Tuning;
use crate::weather::ClockStep;

/// A device's cost at one of its clocks, by calibration. Watts are the whole boundary's, so that clocks compare.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClockCost {
    /// Time of a pass before its bytes count, in nanoseconds.
    pub setup_ns: f64,
    /// Bytes a second beyond that.
    pub bytes_per_s: f64,
    /// Watts when idle.
    pub idle_w: f64,
    /// Watts when busy.
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

/// Longer gaps carry no further information.
const GAP_MOST_NS: f64 = 1e9;

/// A slow clock, and the one it takes turns with (itself if it keeps up).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Plan {
    low: usize,
    high: usize,
}

/// One device's clock.
#[derive(Debug, Clone)]
pub(crate) struct Governor {
    tuning: &'static Tuning,
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
    fn learn(&mut self, bytes: f64, gap_ns: f64, weight: f64, tuning: &Tuning) {
        let gap_ns = gap_ns.min(tuning.pause * self.gap_ns.max(1.0));
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
    pub(crate) fn new(steps: &[ClockCost], tuning: &'static Tuning) -> Option<Governor> {
        let sound = |step: &ClockCost| {
            let parts = [step.setup_ns, step.bytes_per_s, step.idle_w, step.busy_w];
            parts.iter().all(|part| part.is_finite() && *part >= 0.0) && step.bytes_per_s > 0.0
        };
        if steps.len() < 2 || steps.len() > 256 || !steps.iter().all(sound) {
            return None;
        }
        Some(Governor {
            tuning,
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

    /// The fastest clock, for objectives that count time only.
    pub(crate) fn fastest(&self) -> ClockStep {
        let fastest = (0..self.steps.len()).max_by(|a, b| {
            let rate = |index: usize| self.steps[index].bytes_per_s;
            rate(*a).total_cmp(&rate(*b))
        });
        ClockStep(fastest.unwrap_or(0) as u8)
    }

    /// The clock of least idle power.
    pub(crate) fn resting(&self) -> ClockStep {
        let idle = |step: usize| self.steps[step].idle_w;
        let least = (0..self.steps.len()).min_by(|a, b| idle(*a).total_cmp(&idle(*b)));
        ClockStep(least.unwrap_or(0) as u8)
    }

    /// A message of `bytes` has arrived; the window holds `fill` of `window` bytes with it.
    pub(crate) fn on_message(&mut self, bytes: usize, fill: u64, window: u64, now: Nanos) -> ClockStep {
        self.learn(bytes as f64, now);
        if window == 0 {
            return self.fastest();
        }
        let (fill, window) = (fill as f64, window as f64);
        self.replan(window);
        ClockStep(self.guarded(fill, window) as u8)
    }

    fn learn(&mut self, bytes: f64, now: Nanos) {
        let gap = self.last.map(|last| (now.saturating_sub(last) as f64).min(GAP_MOST_NS));
        self.last = Some(now);
        let Some(gap) = gap else {
            self.slow = Flow { bytes, gap_ns: GAP_MOST_NS };
            self.fast = self.slow;
            return;
        };
        if self.slow.gap_ns >= GAP_MOST_NS {
            (self.slow.gap_ns, self.fast.gap_ns) = (gap, gap);
        }
        let tuning = self.tuning;
        self.slow.learn(bytes, gap, 1.0 / tuning.long_over, tuning);
        self.fast.learn(bytes, gap, 1.0 / tuning.short_over, tuning);
    }

    /// Bytes of the largest pass worth counting on.
    fn most(&self, window: f64) -> f64 {
        (self.tuning.pass * window).max(self.slow.bytes).max(1.0)
    }

    /// Watts of a plan, `None` if it does not keep up.
    fn watts(&self, plan: Plan, window: f64, pass: f64) -> Option<f64> {
        let (low, high, velocity) = (&self.steps[plan.low], &self.steps[plan.high], self.slow.velocity());
        let (most, spare) = (self.most(window), 1.0 - self.tuning.spare);
        let (slow, quick) = (spare * low.capacity(most), spare * high.capacity(most));
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
        let near = if self.tuning.near_enough { 1.0 - self.tuning.near } else { 1.0 };
        let fastest = self.steps[usize::from(self.fastest().0)].capacity(pass);
        let fast = (0..self.steps.len()).filter(|step| self.steps[*step].capacity(pass) >= near * fastest);
        let joules = |step: usize| self.steps[step].busy_w / self.steps[step].capacity(pass);
        fast.min_by(|a, b| joules(*a).total_cmp(&joules(*b))).unwrap_or(0)
    }

    fn replan(&mut self, window: f64) {
        let velocity = self.slow.velocity();
        if (velocity / self.planned_at - 1.0).abs() < self.tuning.replan {
            return;
        }
        self.planned_at = velocity;
        let pass = self.slow.bytes.max(1.0);
        let of = |plan: Plan| self.watts(plan, window, pass);
        let (count, turns) = (self.steps.len(), self.tuning.turns);
        let plans = (0..count)
            .flat_map(|low| (low..if turns { count } else { low + 1 }).map(move |high| Plan { low, high }));
        let cheapest = plans.filter_map(|plan| Some((plan, of(plan)?))).min_by(|a, b| a.1.total_cmp(&b.1));
        let Some((best, watts)) = cheapest else {
            let near = self.near(self.most(window));
            (self.plan, self.overrun) = (Plan { low: near, high: near }, true);
            return;
        };
        if self.overrun || of(self.plan).is_none_or(|present| watts < (1.0 - self.tuning.better) * present) {
            self.plan = best;
        }
        self.overrun = false;
    }

    /// Bytes a second; the short mean counts only where it is far above the long one.
    fn velocity(&self) -> f64 {
        let (slow, fast) = (self.slow.velocity(), self.fast.velocity());
        if self.tuning.surges && fast > (1.0 + self.tuning.surge) * slow { fast } else { slow }
    }

    /// Share of the window that a pass begun now at that clock would need: its own bytes and those that arrive then.
    fn needs(&self, step: usize, fill: f64, window: f64) -> f64 {
        let velocity = self.velocity();
        (fill + velocity * self.steps[step].pass_ns(fill) / 1e9) / window
    }

    /// Whether, after a pass begun now at that clock, the fastest clock could do what came meanwhile with room for what
    /// comes then.
    fn leaves_a_way_out(&self, step: usize, fill: f64, window: f64) -> bool {
        let velocity = self.slow.velocity().max(self.fast.velocity());
        let comes = velocity * self.steps[step].pass_ns(fill) / 1e9;
        self.needs(usize::from(self.fastest().0), comes, window) <= 1.0
    }

    /// The plan's clock, or the first above it that leaves room.
    fn guarded(&mut self, fill: f64, window: f64) -> usize {
        let (Plan { low, high }, tuning) = (self.plan, self.tuning);
        if self.overrun && fill > (1.0 - tuning.brim) * window {
            return usize::from(self.fastest().0);
        }
        let bound = 1.0 - if self.raised { tuning.calm } else { tuning.room };
        let fits = self.needs(low, fill, window) <= bound
            && (!tuning.way_out || self.leaves_a_way_out(low, fill, window));
        self.raised = !self.overrun && !fits;
        if !self.raised {
            return low;
        }
        let from = high.max(low + 1);
        let found =
            (from..self.steps.len()).find(|step| self.needs(*step, fill, window) <= 1.0 + tuning.hard);
        found.unwrap_or(usize::from(self.fastest().0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Costs, EngineId};

    fn cost(setup_ns: f64, mb_s: f64, idle_w: f64, busy_w: f64) -> ClockCost {
        ClockCost { setup_ns, bytes_per_s: mb_s * 1e6, idle_w, busy_w }
    }

    /// A slow clock that rests cheaply, and a fast one.
    fn two() -> Vec<ClockCost> {
        vec![cost(100_000.0, 200.0, 50.0, 55.0), cost(100_000.0, 600.0, 75.0, 105.0)]
    }

    #[derive(Debug, Default)]
    struct Drive {
        overflows: u32,
        changes: u32,
        passes: [u32; 2],
        joules: f64,
    }

    /// Messages of 50 to 150 KB in a window of bytes, whose passes keep their room to their end.
    fn drive(steps: &[ClockCost], window: u64, gap_ns: impl Fn(u64) -> u64, fixed: Option<u8>) -> Drive {
        let mut governor = Governor::new(steps, &Tuning::DEFAULT).unwrap();
        let (mut now, mut fill, mut waiting, mut busy_until, mut taken) = (0u64, 0u64, 0u64, 0u64, 0u64);
        let (mut clock, mut applied, mut drive, mut seed) =
            (ClockStep(0), ClockStep(0), Drive::default(), 1u64);
        for nth in 0..20_000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let bytes = 50_000 + (seed >> 33) % 100_001;
            if fill + bytes > window {
                drive.overflows += 1;
            } else {
                fill += bytes;
                waiting += bytes;
                let order = governor.on_message(bytes as usize, fill, window, now);
                let next = fixed.map_or(order, ClockStep);
                clock = next;
            }
            let until = now + gap_ns(nth);
            let mut at = now.max(busy_until);
            while at < until && (waiting > 0 || taken > 0) {
                fill -= std::mem::take(&mut taken);
                if waiting == 0 {
                    break;
                }
                taken = std::mem::take(&mut waiting);
                drive.changes += u32::from(applied != clock && nth > 64);
                applied = clock;
                let step = &steps[usize::from(clock.0)];
                let length = step.pass_ns(taken as f64);
                drive.joules += (step.busy_w - step.idle_w) * length / 1e9;
                drive.passes[usize::from(clock.0)] += 1;
                busy_until = at + length as u64;
                at = busy_until;
            }
            drive.joules += steps[usize::from(applied.0)].idle_w * (until - now) as f64 / 1e9;
            now = until;
        }
        drive
    }

    #[test]
    fn costs_that_make_no_sense_make_no_governor() {
        assert!(
            Governor::new(&[], &Tuning::DEFAULT).is_none()
                && Governor::new(&two()[..1], &Tuning::DEFAULT).is_none()
        );
        for bad in [cost(-1.0, 1.0, 1.0, 1.0), cost(1.0, 0.0, 1.0, 1.0), cost(1.0, 1.0, f64::NAN, 1.0)] {
            assert!(Governor::new(&[two()[0], bad], &Tuning::DEFAULT).is_none());
        }
    }

    #[test]
    fn costs_of_clocks_are_kept_until_none_are_known() {
        let (device, other) = (EngineId(1), EngineId(2));
        let mut costs = Costs::new();
        costs.set_clocks(device, two());
        costs.set_clocks(other, two()[..1].to_vec());
        costs.set_clocks(device, two()[1..].to_vec());
        assert_eq!((costs.clocks(device), costs.clocks(other)), (&two()[1..], &two()[..1]));
        costs.set_clocks(device, Vec::new());
        assert!(costs.clocks(device).is_empty() && !costs.clocks(other).is_empty());
    }

    #[test]
    fn a_long_pause_counts_as_a_few_gaps() {
        let tuning = &Tuning::DEFAULT;
        let mut flow = Flow { bytes: 100.0, gap_ns: 1000.0 };
        flow.learn(300.0, 1e12, 0.25, tuning);
        assert_eq!((flow.bytes, flow.gap_ns), (150.0, 1000.0 + 0.25 * (tuning.pause - 1.0) * 1000.0));
    }

    #[test]
    fn velocity_is_known_from_the_second_message_on() {
        let mut governor = Governor::new(&two(), &Tuning::DEFAULT).unwrap();
        governor.learn(1000.0, 5);
        governor.learn(1000.0, 2005);
        assert_eq!((governor.slow.velocity(), governor.fast.velocity()), (5e8, 5e8), "1000 bytes in 2 us");
    }

    #[test]
    fn a_slow_clock_that_keeps_up_runs_all_the_time_and_costs_less() {
        let slow = drive(&two(), 4_000_000, |_| 1_000_000, None);
        assert_eq!((slow.overflows, slow.changes, slow.passes[1]), (0, 0, 0));
        assert!(slow.joules < 0.8 * drive(&two(), 4_000_000, |_| 1_000_000, Some(1)).joules);
    }

    #[test]
    fn where_resting_costs_the_same_at_any_clock_it_races() {
        let steps = [cost(100_000.0, 200.0, 50.0, 90.0), cost(100_000.0, 600.0, 50.0, 100.0)];
        let race = drive(&steps, 4_000_000, |_| 1_000_000, None);
        assert!(race.passes[0] < 64 && race.changes == 0, "{race:?}");
    }

    #[test]
    fn two_clocks_take_turns_where_the_slow_one_cannot_keep_up() {
        // 250 MB/s: the slow clock does at most 200.
        let turns = drive(&two(), 4_000_000, |_| 400_000, None);
        assert_eq!(turns.overflows, 0);
        assert!(turns.passes[0] > 500 && turns.passes[1] > 200, "{turns:?}");
        assert!(turns.joules < 0.95 * drive(&two(), 4_000_000, |_| 400_000, Some(1)).joules, "{turns:?}");
    }

    #[test]
    fn no_window_overflows_at_a_velocity_that_the_fastest_clock_sustains() {
        for gap in (200_000..2_000_000).step_by(40_000) {
            for window in [2_500_000, 4_000_000, 16_000_000] {
                let fastest = drive(&two(), window, |_| gap, Some(1));
                let ours = drive(&two(), window, |_| gap, None);
                assert!(fastest.overflows > 0 || ours.overflows == 0, "{gap} {window} {ours:?}");
            }
        }
    }

    #[test]
    fn a_burst_after_silence_overflows_nothing() {
        let bursts = |nth: u64| if nth % 500 == 499 { 800_000_000 } else { 250_000 };
        let ours = drive(&two(), 4_000_000, bursts, None);
        assert!(ours.overflows == 0 && ours.passes[1] > 0, "{ours:?}");
    }

    #[test]
    fn clocks_do_not_flap_at_a_constant_velocity() {
        for gap in (200_000..3_000_000).step_by(70_000) {
            let ours = drive(&two(), 8_000_000, |_| gap, None);
            let passes = ours.passes[0] + ours.passes[1];
            assert!(ours.changes <= if gap > 700_000 { 0 } else { passes / 2 }, "{gap}: {ours:?}");
        }
    }

    #[test]
    fn without_a_window_it_is_the_fastest_clock() {
        let mut governor = Governor::new(&two(), &Tuning::DEFAULT).unwrap();
        assert_eq!(governor.on_message(1000, 1000, 0, 5), ClockStep(1));
        assert_eq!((governor.fastest(), governor.resting()), (ClockStep(1), ClockStep(0)));
    }
}
