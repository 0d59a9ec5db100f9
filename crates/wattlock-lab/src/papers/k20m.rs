//! The machine that both papers of Fei et al. measured (a Tesla K20M, two Xeon E5-2640 v2): what their published
//! *baselines* say of it. Used by `lecpaes`, `eep` and `velocity`; fits nothing on a column that any of them predicts,
//! except for the power at the lowest clock, which no baseline ran at.
//!
//! Units of the stream paper: KB and MB are taken as 10^3 and 10^6 bytes; with that all four published throughputs
//! agree with the energy tables and with one timer slack.

use wattlock_core::{EngineClass, Kind, KindSet};
use wattlock_policy::{
    ClockCost, Costs, Machine, Objective, Policy, Settings, Tuning, by_name, inline_engine, queued_engine,
};

use crate::Error;
use crate::options::TO;
use crate::sim::stream::{CPU, GPU, Station};
use crate::sim::{GpuModel, Step};
use crate::table;

/// Published workload: users, and the mean of 35 to 150 KB.
pub const USERS: f64 = 12_000.0;
/// Mean bytes of a message.
pub const MEAN_BYTES: f64 = 92_500.0;
/// The plain GPU's clock: the second highest.
pub const DEFAULT_STEP: usize = 4;

/// A program's published throughput in MB/s, NaN at a gap that none was published for. At 100 us all have always work.
pub(crate) fn published_mb_s(program: &str, latency_us: f64) -> f64 {
    table("lecpaes-throughput").cell(("latency_us", latency_us), program).unwrap_or(f64::NAN)
}

/// What the baselines determine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Baseline {
    /// What a timer adds to a sleep: the plain GPU at 3000 us never retransmits, so its time per user is the gap.
    pub slack_us: f64,
    /// Watts of the idle machine with the GPU at its default clock.
    pub idle_w: f64,
    /// Watts on top while the GPU works at that clock.
    pub gpu_w: f64,
    /// Time of one window with one mean message.
    pub alone_us: f64,
    /// Watts of the machine while all CPU threads encrypt and the GPU rests.
    pub cpu_full_w: f64,
}

/// Fits [`Baseline`] in closed form.
///
/// Energy over time is mean power, and mean power is `idle + gpu_w * alone / T` for a time T per user wherever the GPU
/// is not saturated (500 to 3000 us), so a straight line through `P` over `1/T` gives `idle` and `gpu_w * alone`; the
/// saturated row (100 us) has `idle + gpu_w`. The CPU-parallel program's power is known where its throughput is
/// published and it is saturated (100 us).
pub fn baseline() -> Baseline {
    let energy = table("lecpaes-energy");
    let latency = energy.column("latency_us");
    let joules = energy.column("gpu_fixed_J");
    let rate = table("lecpaes-retransmission").column("gpu_fixed");
    let per_user = |program: &str, latency_us: f64| MEAN_BYTES / published_mb_s(program, latency_us);
    let slack_us = per_user("gpu_fixed", 3000.0) - 3000.0;
    let saturated_us = per_user("gpu_fixed", 100.0);
    let watts = |row: usize, us: f64| joules[row] / (USERS * us * 1e-6);
    let points: Vec<(f64, f64)> = (1..latency.len())
        .map(|row| {
            let us = latency[row] + slack_us + rate[row] * (2.0 * latency[row] + slack_us);
            (1.0 / us, watts(row, us))
        })
        .collect();
    let (slope, idle_w) = line(&points);
    let gpu_w = watts(0, saturated_us) - idle_w;
    let cpu_full_w = energy.column("cpu_parallel_J")[0] / (USERS * per_user("cpu_parallel", 100.0) * 1e-6);
    Baseline { slack_us, idle_w, gpu_w, alone_us: slope / gpu_w, cpu_full_w }
}

/// Least squares: slope and intercept.
fn line(points: &[(f64, f64)]) -> (f64, f64) {
    let n = points.len() as f64;
    let mean_x = points.iter().map(|point| point.0).sum::<f64>() / n;
    let mean_y = points.iter().map(|point| point.1).sum::<f64>() / n;
    let over = points.iter().map(|point| (point.0 - mean_x) * (point.1 - mean_y)).sum::<f64>();
    let under = points.iter().map(|point| (point.0 - mean_x).powi(2)).sum::<f64>();
    (over / under, mean_y - over / under * mean_x)
}

/// Kernel speeds against the default clock: the mean over the four sizes of `eep-clocks.csv`.
pub fn speeds() -> Vec<f64> {
    let clocks = table("eep-clocks");
    let sizes = ["speed_100MB", "speed_200MB", "speed_400MB", "speed_800MB"].map(|name| clocks.column(name));
    (0..clocks.len()).map(|row| sizes.iter().map(|size| size[row]).sum::<f64>() / 4.0).collect()
}

/// Core clocks in MHz.
pub fn clocks_mhz() -> Vec<f64> {
    table("lecpaes-clocks").column("core_MHz")
}

/// Watts of the idle machine at the lowest clock, from LECPAES's energy at 3000 us: nothing is retransmitted there and
/// every message finds an empty window, so it is the row's mean power less the little that is spent at work.
pub fn lowest_idle_w(gpu: &GpuModel, slack_us: f64) -> f64 {
    let energy = table("lecpaes-energy");
    let us = 3000.0 + slack_us;
    let joules = energy.column("lecpaes_J")[energy.len() - 1];
    let busy = gpu.alone_ns(MEAN_BYTES, 0) / 1e3 / us;
    (joules / (USERS * us * 1e-6) - busy * gpu.dynamic_at(0)).max(0.0)
}

/// What of the GPU can be chosen; the rest is the table's.
#[derive(Debug, Clone, Copy)]
pub struct Knobs {
    /// Time of a piece before its copy begins.
    pub setup_us: f64,
    /// Copies, either direction.
    pub copy_mb_s: f64,
    /// Kernel at the default clock.
    pub kernel_mb_s: f64,
    /// Pieces under way at once.
    pub streams: usize,
    /// Watts of the idle machine at the default clock, and at the lowest.
    pub idle_w: f64,
    /// The same at the lowest clock.
    pub lowest_idle_w: f64,
    /// Watts on top while it works at the default clock.
    pub gpu_w: f64,
    /// Exponent of these.
    pub alpha: f64,
    /// Time to set a clock.
    pub set_clock_us: f64,
}

/// The GPU with the tables' clocks and speeds. The static part is one figure for the five steps that share a memory
/// clock and another for the lowest, whose memory runs at an eighth.
pub fn gpu(knobs: &Knobs) -> GpuModel {
    let steps = clocks_mhz().into_iter().zip(speeds()).enumerate();
    GpuModel {
        setup_ns: knobs.setup_us * 1e3,
        copy_bytes_per_s: knobs.copy_mb_s * 1e6,
        kernel_bytes_per_s: knobs.kernel_mb_s * 1e6,
        streams: knobs.streams,
        steps: steps
            .map(|(index, (core_mhz, speed))| Step {
                core_mhz,
                speed,
                static_w: if index == 0 { knobs.lowest_idle_w } else { knobs.idle_w },
            })
            .collect(),
        reference: DEFAULT_STEP,
        dynamic_w: knobs.gpu_w,
        alpha: knobs.alpha,
        set_clock_ns: knobs.set_clock_us * 1e3,
        parts: None,
    }
}

/// The kernel's rate if a message of the mean size takes `alone_us` in all.
pub fn kernel_mb_s(alone_us: f64, setup_us: f64, copy_mb_s: f64) -> f64 {
    MEAN_BYTES / (alone_us - setup_us - 2.0 * MEAN_BYTES / copy_mb_s)
}

/// Fitted by [`crate::papers::lecpaes::fit`] on the plain GPU's retransmissions and its throughput at 100 us.
pub const FITTED: Fitted =
    Fitted { window_kib: 384.0, setup_us: 212.9, stall_ms: 5.951, stalls_per_s: 6.271 };

/// What takes a simulation to fit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fitted {
    /// Size of the sliding window.
    pub window_kib: f64,
    /// Time of a window before its copy begins.
    pub setup_us: f64,
    /// Length of a stall.
    pub stall_ms: f64,
    /// How often the encryptor stalls.
    pub stalls_per_s: f64,
}

options! {
    /// The machine as a stream's: what is `None` follows from the baselines.
    #[derive(Debug, Clone, PartialEq)]
    pub struct StreamPlatform {
        /// Size of the sliding window, in KiB.
        window_kib: f64 = FITTED.window_kib; 1.0..=1e9,
        /// CPU cores; the CPU's rate and power go with them.
        cores: u32 = 16; 1..=4096,
        /// Windows under way in the GPU at once.
        streams: u32 = 1; 1..=256,
        /// Time of a window before its copy begins, in microseconds.
        setup_us: f64 = FITTED.setup_us; 0.0..=1e6,
        /// Copies between host and GPU, either direction, in MB/s.
        copy_mb_s: f64 = 3000.0; 1.0..=1e6,
        /// Kernel at the default clock, in MB/s. Default: what the time of a window with one message leaves.
        kernel_mb_s: Option<f64>; 0.001..=1e6,
        /// Watts of the idle machine with the GPU above its lowest clock. Default: fitted.
        idle_w: Option<f64>; 0.0..=1e6,
        /// Watts of the idle machine at the lowest clock. Default: fitted.
        lowest_idle_w: Option<f64>; 0.0..=1e6,
        /// Watts on top while the GPU works at its default clock. Default: fitted.
        gpu_w: Option<f64>; 0.0..=1e6,
        /// Exponent of the clock in the GPU's dynamic power.
        alpha: f64 = 3.0; 0.0..=10.0,
        /// Time to set another clock, in microseconds.
        set_clock_us: f64 = 0.0; 0.0..=1e6,
        /// Rate at which the CPU encrypts, in MB/s. Default: published for 16 cores.
        cpu_mb_s: Option<f64>; 0.001..=1e6,
        /// Watts on top while the CPU encrypts. Default: fitted.
        cpu_w: Option<f64>; 0.0..=1e6,
        /// Time that a timer adds to a sleep, in microseconds. Default: fitted.
        slack_us: Option<f64>; 0.0..=1e6,
        /// Length of a stall of the encryptor, in milliseconds.
        stall_ms: f64 = FITTED.stall_ms; 0.0..=1e4,
        /// Stalls a second.
        stalls_per_s: f64 = FITTED.stalls_per_s; 0.0..=1e4,
    }
}

impl StreamPlatform {
    /// Refuses nonsense. `longest_bytes` is the largest message to come.
    pub(crate) fn check(&self, longest_bytes: f64) -> Result<(), Error> {
        self.check_bounds(TO)?;
        if self.window_kib * 1024.0 < longest_bytes {
            let bounds = format!("at least {}, for the longest message", (longest_bytes / 1024.0).ceil());
            return Err(Error::option("--window-kib", bounds));
        }
        match self.stalls_per_s * self.stall_ms > 500.0 {
            true => Err(Error::option(
                "--stalls-per-s",
                "so few that less than half of the time is stalled (--stall-ms)",
            )),
            false => Ok(()),
        }
    }

    /// Refuses a machine so slow for its work that simulating every try would take minutes: `messages` of that mean
    /// size, each of which is tried again after `wait_us` as long as there is no room.
    pub(crate) fn check_tries(&self, messages: f64, mean_bytes: f64, wait_us: f64) -> Result<(), Error> {
        const MOST_TRIES: f64 = 1e8;
        let station = self.station();
        let service_us = station.gpu.alone_ns(mean_bytes, 0) / 1e3 + self.set_clock_us;
        let tries = messages * (1.0 + service_us / (wait_us + station.slack_ns / 1e3).max(0.1));
        if tries <= MOST_TRIES {
            return Ok(());
        }
        let bounds = format!(
            "fast enough for the work: this would be about {tries:.0e} tries (most {MOST_TRIES:.0e})"
        );
        Err(Error::option("the machine (--kernel-mb-s, --setup-us, --set-clock-us, --users, --runs)", bounds))
    }

    /// The machine.
    pub fn station(&self) -> Station {
        let baseline = baseline();
        let kernel = kernel_mb_s(baseline.alone_us, FITTED.setup_us, StreamPlatform::default().copy_mb_s);
        let mut knobs = Knobs {
            setup_us: self.setup_us,
            copy_mb_s: self.copy_mb_s,
            kernel_mb_s: self.kernel_mb_s.unwrap_or(kernel),
            streams: self.streams as usize,
            idle_w: self.idle_w.unwrap_or(baseline.idle_w),
            lowest_idle_w: 0.0,
            gpu_w: self.gpu_w.unwrap_or(baseline.gpu_w),
            alpha: self.alpha,
            set_clock_us: self.set_clock_us,
        };
        let fitted = || lowest_idle_w(&gpu(&knobs), baseline.slack_us);
        knobs.lowest_idle_w = self.lowest_idle_w.unwrap_or_else(fitted);
        let cores = f64::from(self.cores) / 16.0;
        let cpu_w = (baseline.cpu_full_w - knobs.lowest_idle_w).max(0.0);
        let cpu_mb_s = published_mb_s("cpu_parallel", 100.0);
        Station {
            gpu: gpu(&knobs),
            cpu_bytes_per_s: self.cpu_mb_s.unwrap_or(cpu_mb_s) * cores * 1e6,
            cpu_w: self.cpu_w.unwrap_or(cpu_w) * cores,
            window_bytes: (self.window_kib * 1024.0) as u64,
            slack_ns: self.slack_us.unwrap_or(baseline.slack_us) * 1e3,
            stall_ns: self.stall_ms * 1e6,
            stalls_per_s: self.stalls_per_s,
        }
    }
}

/// What policies are told of the station.
fn machine(station: &Station, longest_bytes: f64) -> Machine {
    let gpu = &station.gpu;
    let mut costs = Costs::new();
    let sizes = [1024.0, longest_bytes.max(2048.0)];
    let cpu = |bytes: f64| bytes * 1e9 / station.cpu_bytes_per_s;
    let point = |bytes: f64, ns: f64, watts: f64| (bytes as usize, ns, Some(ns * watts));
    costs.set(CPU, Kind::Aes128Ctr, sizes.map(|bytes| point(bytes, cpu(bytes), station.cpu_w)).to_vec());
    let alone = |bytes: f64| gpu.alone_ns(bytes, gpu.reference);
    let watts = gpu.dynamic_at(gpu.reference);
    costs.set(GPU, Kind::Aes128Ctr, sizes.map(|bytes| point(bytes, alone(bytes), watts)).to_vec());
    costs.set_clocks(GPU, clock_costs(gpu));
    Machine {
        engines: vec![
            inline_engine(CPU, EngineClass::Software, KindSet::ALL),
            queued_engine(GPU, EngineClass::Gpu, KindSet::ALL, 1 << 20),
        ],
        costs,
        cores: 1,
        objective: Objective::Energy,
        ..Machine::default()
    }
}

/// The GPU's clocks as calibration would find them.
fn clock_costs(gpu: &GpuModel) -> Vec<ClockCost> {
    let cost = |step: usize| ClockCost {
        setup_ns: gpu.setup_ns,
        bytes_per_s: 1e9 / gpu.ns_per_byte(step),
        idle_w: gpu.steps[step].static_w,
        busy_w: gpu.steps[step].static_w + gpu.dynamic_at(step),
    };
    (0..gpu.steps.len()).map(cost).collect()
}

/// The production policy of that name, told of the station.
///
/// # Errors
/// [`Error::Policy`] for a name that no policy has.
pub fn policy(
    name: &str,
    station: &Station,
    longest_bytes: f64,
    tuning: &'static Tuning,
) -> Result<Box<dyn Policy>, Error> {
    let settings = Settings { adaptive_tuning: tuning, ..Settings::default() };
    Ok(by_name(name, machine(station, longest_bytes), &settings)?)
}
