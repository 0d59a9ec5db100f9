//! A GPU: copy-in, kernel and copy-out, each one at a time and in order, with as many pieces under way as there are
//! streams, at one of a few clocks. Knows no paper and takes no decision.
//!
//! Stages are first come, first served and nothing is preempted, so a piece's whole way is known when it is
//! submitted. The clock counts at that moment: a kernel keeps the clock it was submitted under.
//!
//! Watts: `P_static(clock) + dynamic * (f / f_reference)^alpha` while any piece is under way, the static part else.

use wattlock_core::{GpuAttributes, Nanos};

/// One clock pair.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Core clock, in MHz.
    pub core_mhz: f64,
    /// Kernel speed against the reference step.
    pub speed: f64,
    /// Watts with nothing to do (whatever the boundary of the model takes in).
    pub static_w: f64,
}

/// What it says of its parts. No time follows from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Threads of a warp.
    pub warp: u32,
}

/// What a GPU is.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuModel {
    /// Time of a piece before its copy begins: launch, bookkeeping, waiting for the last result.
    pub setup_ns: f64,
    /// Of either direction.
    pub copy_bytes_per_s: f64,
    /// At the reference step.
    pub kernel_bytes_per_s: f64,
    /// Pieces under way at once; 1 for no overlap.
    pub streams: usize,
    /// The clocks, lowest first.
    pub steps: Vec<Step>,
    /// The step in force at first, and the one to which speeds and `dynamic_w` refer.
    pub reference: usize,
    /// Watts on top while working, at the reference step.
    pub dynamic_w: f64,
    /// Exponent of the dynamic part.
    pub alpha: f64,
    /// What setting another clock takes, before the next piece may begin.
    pub set_clock_ns: f64,
    /// What it says of its parts, if it does.
    pub parts: Option<Parts>,
}

impl GpuModel {
    /// Watts on top while working at that step.
    pub fn dynamic_at(&self, step: usize) -> f64 {
        let ratio = self.steps[step].core_mhz / self.steps[self.reference].core_mhz;
        self.dynamic_w * ratio.powf(self.alpha)
    }

    /// What it says of itself: its clocks, and its parts.
    pub fn attributes(&self) -> Option<GpuAttributes> {
        let Parts { multiprocessors, warp } = self.parts?;
        let clocks_mhz = self.steps.iter().map(|step| step.core_mhz.round() as u32).collect();
        Some(GpuAttributes { clocks_mhz, multiprocessors, warp })
    }

    /// Nanoseconds a piece takes alone at that step.
    pub fn alone_ns(&self, bytes: f64, step: usize) -> f64 {
        self.setup_ns + bytes * self.ns_per_byte(step)
    }

    /// Both copies and the kernel, one after the other.
    pub fn ns_per_byte(&self, step: usize) -> f64 {
        2e9 / self.copy_bytes_per_s + 1e9 / (self.kernel_bytes_per_s * self.steps[step].speed)
    }
}

/// When a piece gets where.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Piece {
    /// A stream took it.
    pub began: Nanos,
    /// The host's input buffer is free again.
    pub copied_in: Nanos,
    /// The result is in host memory.
    pub done: Nanos,
    /// What it adds to the dynamic joules, times 1e9: nothing for the time that it shares with an earlier piece.
    pub dynamic_nj: f64,
}

/// One GPU at work, and its meter.
#[derive(Debug, Clone)]
pub struct Gpu {
    model: GpuModel,
    step: usize,
    /// When each stream, and each of the three stages, is next free.
    streams: Vec<f64>,
    stages: [f64; 3],
    /// Up to when work has been counted.
    busy_until: f64,
    busy_ns: f64,
    dynamic_nj: f64,
    static_nj: f64,
    static_until: Nanos,
    changes: u64,
}

impl Gpu {
    /// Idle at time 0, at the reference clock.
    pub fn new(model: GpuModel) -> Gpu {
        Gpu {
            step: model.reference,
            streams: vec![0.0; model.streams.max(1)],
            stages: [0.0; 3],
            busy_until: 0.0,
            busy_ns: 0.0,
            dynamic_nj: 0.0,
            static_nj: 0.0,
            static_until: 0,
            changes: 0,
            model,
        }
    }

    /// What it is.
    pub fn model(&self) -> &GpuModel {
        &self.model
    }

    /// The step in force.
    pub fn step(&self) -> usize {
        self.step
    }

    /// How often the clock was changed.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Nanoseconds with any piece under way, as far as submitted.
    pub fn busy_ns(&self) -> f64 {
        self.busy_ns
    }

    /// Sets the clock for what is submitted from now on; a step beyond the highest is the highest.
    pub fn set_clock(&mut self, now: Nanos, step: usize) {
        let step = step.min(self.model.steps.len() - 1);
        if step == self.step {
            return;
        }
        self.settle(now);
        self.step = step;
        self.changes += 1;
        for stream in &mut self.streams {
            *stream = stream.max(now as f64) + self.model.set_clock_ns;
        }
    }

    /// Gives it a piece of work whose kernel runs at the model's rate.
    pub fn submit(&mut self, now: Nanos, bytes: f64) -> Piece {
        self.submit_kernel(now, bytes, bytes * 1e9 / self.model.kernel_bytes_per_s)
    }

    /// Gives it a piece of work whose kernel takes so long at the reference clock.
    pub fn submit_kernel(&mut self, now: Nanos, bytes: f64, kernel_ns: f64) -> Piece {
        let model = &self.model;
        let copy = bytes * 1e9 / model.copy_bytes_per_s;
        let kernel = kernel_ns / model.steps[self.step].speed;
        let stream = (0..self.streams.len()).min_by(|a, b| self.streams[*a].total_cmp(&self.streams[*b]));
        let stream = stream.unwrap_or(0);
        let began = self.streams[stream].max(now as f64);
        let mut at = began + model.setup_ns;
        let mut copied_in = at;
        for (stage, length) in [copy, kernel, copy].into_iter().enumerate() {
            at = at.max(self.stages[stage]) + length;
            self.stages[stage] = at;
            if stage == 0 {
                copied_in = at;
            }
        }
        self.streams[stream] = at;
        let fresh = (at - began.max(self.busy_until)).max(0.0);
        self.busy_until = self.busy_until.max(at);
        self.busy_ns += fresh;
        let dynamic_nj = fresh * model.dynamic_at(self.step);
        self.dynamic_nj += dynamic_nj;
        Piece {
            began: began as Nanos,
            copied_in: copied_in.ceil() as Nanos,
            done: at.ceil() as Nanos,
            dynamic_nj,
        }
    }

    fn settle(&mut self, now: Nanos) {
        let lasted = now.saturating_sub(self.static_until) as f64;
        self.static_nj += lasted * self.model.steps[self.step].static_w;
        self.static_until = self.static_until.max(now);
    }

    /// Joules from the beginning to now, with all of the work submitted.
    pub fn energy_j(&mut self, now: Nanos) -> f64 {
        self.settle(now);
        (self.static_nj + self.dynamic_nj) / 1e9
    }
}
