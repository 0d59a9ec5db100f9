//! What one decision looks at, and how ways of doing the work compare under the objective. Values only: nothing here
//! learns.

use wattlock_core::{LatencyClass, Nanos, Shape};

use crate::estimate::{Candidate, Distrust, Submit};
use crate::machine::{MAX_ENGINES, Machine, Objective};
use crate::settings::Settings;
use crate::tuning::Tuning;
use crate::weather::{Ask, Weather};

/// What does not change after construction.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    pub(super) objective: Objective,
    pub(super) submit_ns: f32,
    /// The incumbent's score counts this much of itself.
    pub(super) stay: f32,
    pub(super) explore_every: u32,
    pub(super) half_life_ns: Nanos,
    pub(super) tuning: &'static Tuning,
}

impl Rules {
    pub(super) fn new(machine: &Machine, settings: &Settings) -> Rules {
        let tuning = settings.adaptive_tuning;
        Rules {
            objective: machine.objective,
            submit_ns: settings.adaptive_submit_ns as f32,
            stay: 1.0 - f32::from(if tuning.stay { settings.adaptive_margin_permille } else { 0 }) / 1000.0,
            explore_every: if tuning.explore { settings.adaptive_explore_every } else { 0 },
            half_life_ns: settings.adaptive_fault_half_life_ns.max(1),
            tuning,
        }
    }
}

/// Everything one decision looks at.
pub(super) struct Question<'a> {
    pub(super) rules: &'a Rules,
    pub(super) distrust: &'a [Distrust; MAX_ENGINES],
    pub(super) shape: &'a Shape,
    /// Requests in hand.
    pub(super) count: u32,
    /// Whether engines that answer later are out of the question.
    pub(super) inline: bool,
    pub(super) weather: &'a Weather,
    pub(super) now: Nanos,
    /// Requests that usually wait for this thread.
    pub(super) usual: f32,
}

impl<'a> Question<'a> {
    pub(super) fn new(
        rules: &'a Rules,
        distrust: &'a [Distrust; MAX_ENGINES],
        ask: &'a Ask,
        weather: &'a Weather,
        now: Nanos,
    ) -> Question<'a> {
        let Ask { shape, count, may_wait, .. } = ask;
        Question {
            rules,
            distrust,
            shape,
            count: (*count).max(1),
            inline: !may_wait,
            weather,
            now,
            usual: 0.0,
        }
    }

    /// Requests that wait for this thread, the asker not included: those in hand, and as many as the door says.
    pub(super) fn waiting(&self) -> f32 {
        let said = self.weather.active.saturating_sub(self.weather.in_flight()).saturating_sub(1);
        said.max(self.count - 1) as f32
    }

    /// Whether other threads' requests wait on this device: there are more other threads than we have requests there, and
    /// even those that met little of our own take longer than calibrated.
    pub(super) fn is_crowded(&self, device: &Candidate) -> bool {
        let ours = self.weather.engines[device.id.index()].own();
        let others = u32::from(self.weather.submitters.saturating_sub(1));
        self.rules.tuning.crowded && !device.on_thread() && ours < others && device.is_slow(self.shape.bytes)
    }

    /// Whether requests are pieces of a job whose sum counts: bulk, and no door that says what else waits.
    pub(super) fn is_job(&self) -> bool {
        self.rules.tuning.jobs && self.shape.class == LatencyClass::Bulk && self.weather.active == 0
    }

    /// Whether an engine can be named: there, with room for one more, and done when the call returns if it must be.
    pub(super) fn is_usable(&self, candidate: &Candidate) -> bool {
        let state = &self.weather.engines[candidate.id.index()];
        let room = candidate.inline || candidate.window == 0 || state.in_flight < candidate.window;
        state.available && room && (candidate.inline || !self.inline)
    }

    /// What a nanosecond of this thread costs others: the `w` that wait, and those that come while they are served, by
    /// how many usually wait (in M/M/1 the cost of more work is as `(1 + w) / (1 - utilisation)`).
    pub(super) fn delay(&self, w: f32, usual: f32) -> f32 {
        self.rules.tuning.delay_weight * (w + (w + 1.0) * usual)
    }
}

/// What doing the request in some way would cost.
#[derive(Clone, Copy)]
pub(super) struct Way {
    /// Against other ways that occupy this thread.
    pub(super) ns: f32,
    /// Against devices. Differs for lanes: requests that share the pass are not delayed by it.
    pub(super) across_ns: f32,
    pub(super) nj: Option<f32>,
}

/// Whether to believe what was observed, or only calibration.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Evidence {
    Live,
    Calibrated,
}

impl Evidence {
    /// Nanoseconds of one request alone.
    pub(super) fn ns(self, one: &Candidate, bytes: usize) -> Option<f32> {
        match self {
            Evidence::Live => one.ns(bytes),
            Evidence::Calibrated => one.calibrated_ns(bytes),
        }
    }

    /// Nanojoules of one request alone.
    pub(super) fn nj(self, one: &Candidate, bytes: usize) -> Option<f32> {
        match self {
            Evidence::Live => one.nj(bytes),
            Evidence::Calibrated => one.calibrated_nj(bytes),
        }
    }

    /// What is multiplied with the time of a request alone where so many share its pass.
    pub(super) fn passes(self, one: &Candidate, batch: f32) -> f32 {
        match self {
            Evidence::Live => one.fullness(batch),
            Evidence::Calibrated => one.calibrated_passes(batch),
        }
    }
}

/// Requests a nanosecond that n clients with one request each get from a device of `k` servers and time `P`: alone,
/// `min(n / (P + submit), k/P, 1/submit)`; and with a thread beside it that works inline while fewer than
/// `w = (P/(T - submit) - 1) / D` wait, as the formulas of the header have it. That settles at
/// `x = (n - 1 - w) / (P + submit + T/2)` on the device, for completions are collected half a T late, and
/// `(1 - submit*x) / T` inline.
pub(super) fn device_rates(
    rules: &Rules,
    n: f32,
    (ns, servers): (f32, f32),
    submit: Submit,
    inline: Option<f32>,
) -> (f32, f32) {
    let most = (servers / ns).min(1.0 / submit.ns.max(1.0));
    let alone = most.min(n / (ns + submit.beyond));
    let Some(inline) = inline else { return (alone, alone) };
    let away = ns - submit.within();
    let waiting = ((away / (inline - submit.ns).max(1.0) - 1.0) / rules.tuning.delay_weight).max(0.0);
    let beside = most.min((n - 1.0 - waiting).max(0.0) / (ns + submit.beyond + inline / 2.0));
    (alone, beside + (1.0 - submit.ns * beside).max(0.0) / inline)
}

/// How ways compare under the objective.
pub(super) struct Scoring {
    objective: Objective,
    metered: bool,
    longest_ns: f32,
}

impl Scoring {
    pub(super) fn new(ways: &[Option<Way>], question: &Question<'_>) -> Scoring {
        let known = || ways.iter().flatten();
        let patience = match question.shape.class {
            LatencyClass::Interactive => 4.0,
            LatencyClass::Stream => 16.0,
            LatencyClass::Bulk => f32::INFINITY,
        };
        let shortest = known().map(|way| way.across_ns).min_by(f32::total_cmp);
        Scoring {
            objective: question.rules.objective,
            // Joules that are known of some only compare nothing: a card that reports its own would always win.
            metered: known().all(|way| way.nj.is_some()),
            longest_ns: shortest.unwrap_or(0.0) * patience,
        }
    }

    /// Lower is better; `None` for a way that is out of the question. `across`: a way on this thread is compared with
    /// a device.
    pub(super) fn of(&self, way: &Way, across: bool) -> Option<f32> {
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
