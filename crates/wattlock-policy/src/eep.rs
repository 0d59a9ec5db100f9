//! `eep`: Fei et al., "Analysis of energy efficiency of a parallel AES algorithm for CPU-GPU heterogeneous
//! platforms", 2020.
//!
//! Published: of a bulk job the CPU takes `1/(R+1)` of the bytes and the GPU `R/(R+1)`, with [`Platform::ratio`]'s R
//! (equation 4) of the machine at hand (Algorithm 1, line 2); the clock is the highest for hybrid work.
//!
//! Ours: the split is made request by request. What the GPU is owed is accounted in bytes, and a request goes there
//! if that brings the account nearer to zero, so the shares are the published ones to within one request at any time.
//! An accelerator takes the GPU's part where there is no GPU. It has no multiprocessors: for a device that does not say
//! what it is made of, R is the authors'. Requests that only one side can do, or that come while
//! the other side is away, are not accounted: the debt is for work that could have been split.

use wattlock_core::{EngineClass, GpuAttributes, Kind, Nanos};

use crate::machine::{EngineId, MAX_ENGINES, Machine};
use crate::ranking::{Ranking, Sides};
use crate::settings::Settings;
use crate::split::{Job, Split};
use crate::weather::{Ask, Choice, ClockStep, Policy, Weather};

/// What EEP's formula asks of a machine. The default is the authors': a Tesla K20M and two Xeon E5-2640 v2.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Platform {
    /// GPU clock in MHz.
    pub gpu_mhz: f64,
    /// Multiprocessors of the GPU.
    pub multiprocessors: f64,
    /// Threads of a warp.
    pub warp: f64,
    /// CPU clock in MHz.
    pub cpu_mhz: f64,
    /// CPU cores.
    pub cores: f64,
    /// Hardware threads of a core: 2 on hyper-threaded CPUs, else 1.
    pub alpha: f64,
    /// What a hardware thread is worth against a core of its own: 0.7 on hyper-threaded CPUs, else 1.
    pub beta: f64,
    /// CPU threads that encrypt; `None` for the formula's `alpha * cores - 1` (one thread serves the GPU). The
    /// authors' hybrid runs used 29 instead of 31.
    pub threads: Option<f64>,
}

impl Default for Platform {
    fn default() -> Platform {
        Platform {
            gpu_mhz: 758.0,
            multiprocessors: 13.0,
            warp: 32.0,
            cpu_mhz: 2000.0,
            cores: 16.0,
            alpha: 2.0,
            beta: 0.7,
            threads: Some(29.0),
        }
    }
}

/// Inputs of the formula that an operator sets; the others are the machine's own.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct EepInputs {
    /// [`Platform::gpu_mhz`].
    pub gpu_mhz: Option<f64>,
    /// [`Platform::multiprocessors`].
    pub multiprocessors: Option<f64>,
    /// [`Platform::warp`].
    pub warp: Option<f64>,
    /// [`Platform::cpu_mhz`].
    pub cpu_mhz: Option<f64>,
    /// [`Platform::cores`].
    pub cores: Option<f64>,
    /// [`Platform::alpha`].
    pub alpha: Option<f64>,
    /// [`Platform::beta`].
    pub beta: Option<f64>,
    /// [`Platform::threads`].
    pub threads: Option<f64>,
}

impl Platform {
    /// This machine with this GPU at its highest clock, and the cores that the process may use. The authors' CPU clock
    /// stands for one that is not known.
    fn of(machine: &Machine, gpu: &GpuAttributes) -> Platform {
        let cpu = machine.hardware.cpu;
        let threads_of_core = cpu.map_or(1, |cpu| cpu.threads_per_core.max(1));
        let (alpha, beta) = if threads_of_core > 1 { (f64::from(threads_of_core), 0.7) } else { (1.0, 1.0) };
        Platform {
            gpu_mhz: gpu.clocks_mhz.last().copied().unwrap_or(0).into(),
            multiprocessors: gpu.multiprocessors.into(),
            warp: gpu.warp.into(),
            cpu_mhz: cpu.map_or(Platform::default().cpu_mhz, |cpu| cpu.mhz),
            cores: f64::from(machine.cores) / alpha,
            alpha,
            beta,
            threads: None,
        }
    }

    /// The same where these are set.
    fn with(self, set: &EepInputs) -> Platform {
        Platform {
            gpu_mhz: set.gpu_mhz.unwrap_or(self.gpu_mhz),
            multiprocessors: set.multiprocessors.unwrap_or(self.multiprocessors),
            warp: set.warp.unwrap_or(self.warp),
            cpu_mhz: set.cpu_mhz.unwrap_or(self.cpu_mhz),
            cores: set.cores.unwrap_or(self.cores),
            alpha: set.alpha.unwrap_or(self.alpha),
            beta: set.beta.unwrap_or(self.beta),
            threads: set.threads.or(self.threads),
        }
    }

    /// Bytes for the GPU per byte for the CPU, equation 4:
    /// `R = (f_gpu * multiprocessors * warp) / (f_cpu * (alpha * cores - 1) * beta)`. At least one CPU thread counts.
    pub fn ratio(&self) -> f64 {
        let threads = self.threads.unwrap_or(self.alpha * self.cores - 1.0).max(1.0);
        (self.gpu_mhz * self.multiprocessors * self.warp) / (self.cpu_mhz * threads * self.beta)
    }
}

/// The GPU's share is kept in units of 2^-20: with requests below 2^36 bytes (core's bound) the account fits 64 bits.
const ONE: i64 = 1 << 20;

/// The highest of the authors' six, for a device that does not list its clocks.
const PUBLISHED_CLOCK: ClockStep = ClockStep(5);

/// A static ratio of bytes between CPU and GPU.
pub struct Eep {
    /// `R/(R+1)` of each device.
    parts: [f64; MAX_ENGINES],
    clocks: [Option<ClockStep>; MAX_ENGINES],
    is_device: [bool; MAX_ENGINES],
    device: Ranking,
    cpu: Sides,
    /// Bytes the GPU is owed, times [`ONE`]; within half a request of zero.
    owed: i64,
}

impl Eep {
    /// The rule on this machine.
    pub fn new(machine: &Machine, settings: &Settings) -> Eep {
        let (mut is_device, mut parts) = ([false; MAX_ENGINES], [0.0; MAX_ENGINES]);
        let mut clocks = [None; MAX_ENGINES];
        for engine in machine.engines.iter().filter(|engine| !engine.class.is_cpu()) {
            let at = engine.id.index();
            if let (Some(flag), Some(part)) = (is_device.get_mut(at), parts.get_mut(at)) {
                let own = machine.hardware.gpu(engine.id).map(|gpu| Platform::of(machine, gpu));
                let by_formula = || own.unwrap_or_default().with(&settings.eep_inputs).ratio();
                let ratio = settings.eep_ratio.unwrap_or_else(by_formula);
                (*flag, *part) = (true, ratio / (ratio + 1.0));
                let highest = || machine.hardware.clocks(engine.id).len().checked_sub(1);
                let step = settings.eep_clock.or_else(|| highest().map(|step| step.min(255) as u8));
                clocks[at] = Some(step.map_or(PUBLISHED_CLOCK, ClockStep));
            }
        }
        Eep {
            parts,
            clocks,
            is_device,
            device: Ranking::any(machine, &[EngineClass::Gpu, EngineClass::Accelerator]),
            cpu: Sides::new(machine, &[]),
            owed: 0,
        }
    }

    fn gpu_turn(&mut self, device: EngineId, bytes: usize) -> bool {
        let share = (self.parts[device.index()] * ONE as f64).round() as i64;
        let bytes = bytes.min(1 << 36) as i64;
        self.owed += bytes * share;
        let turn = 2 * self.owed >= bytes * ONE;
        if turn {
            self.owed -= bytes * ONE;
        }
        turn
    }

    fn sides(&self, kind: Kind, weather: &Weather) -> (EngineId, EngineId) {
        (self.device.pick(kind, weather), self.cpu.pick(kind, weather))
    }
}

impl Policy for Eep {
    fn name(&self) -> &'static str {
        "eep"
    }

    fn choose(&mut self, ask: &Ask, weather: &Weather, _now: Nanos) -> Choice {
        if !ask.may_wait {
            return self.cpu.answer(ask, weather);
        }
        let shape = &ask.shape;
        let (device, cpu) = self.sides(shape.kind, weather);
        let splittable = self.is_device[device.index()] && !self.is_device[cpu.index()];
        if splittable && !self.gpu_turn(device, shape.bytes) {
            return Choice::now(cpu);
        }
        Choice { clock: self.clocks[device.index()], ..Choice::now(device) }
    }

    /// The published border, exact to one chunk.
    fn split(&self, job: &Job) -> Option<Split> {
        let first = self.device.of(job.kind).iter().find(|id| job.devices.contains(id))?;
        Some(Split::at_border(job, *first, self.parts[first.index()]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{CpuAttributes, Hardware};
    use crate::ranking::tests::{server, weather};
    use crate::split::Side;
    use wattlock_core::Shape;

    #[test]
    fn formula_gives_the_published_ratio() {
        assert!((Platform::default().ratio() - 7.77).abs() < 0.005);
        let by_formula = Platform { threads: None, ..Platform::default() };
        assert!((by_formula.ratio() - 758.0 * 416.0 / (2000.0 * 31.0 * 0.7)).abs() < 1e-9);
        let plain = Platform { alpha: 1.0, beta: 1.0, cores: 1.0, threads: None, ..Platform::default() };
        assert!(plain.ratio().is_finite(), "one core still counts as one thread");
    }

    /// [`server`] with a GPU in place of its accelerator, whose clocks and parts are these.
    fn with_gpu(clocks_mhz: &[u32], multiprocessors: u32, cpu: Option<CpuAttributes>) -> Machine {
        let mut machine = server();
        machine.engines[2].class = EngineClass::Gpu;
        let gpu = GpuAttributes { clocks_mhz: clocks_mhz.to_vec(), multiprocessors, warp: 32 };
        machine.hardware = Hardware { cpu, gpus: vec![(EngineId(2), gpu)], ..Hardware::default() };
        machine
    }

    #[test]
    fn ratio_is_of_the_machine_s_own_attributes_and_a_setting_replaces_one() {
        let part = |machine: &Machine, settings: &[&str]| {
            let settings = Settings::from_pairs(settings.iter().copied()).unwrap();
            let part = Eep::new(machine, &settings).parts[2];
            part / (1.0 - part)
        };
        let close = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-6, "{found}");
        let cpu = Some(CpuAttributes { mhz: 3000.0, threads_per_core: 2 });
        let h200 = with_gpu(&[345, 1980], 132, cpu);
        assert_eq!(Eep::new(&h200, &Settings::default()).clocks[2], Some(ClockStep(1)), "its highest");
        close(part(&h200, &[]), 1980.0 * 132.0 * 32.0 / (3000.0 * 7.0 * 0.7));
        close(part(&h200, &["eep.threads=3"]), 1980.0 * 132.0 * 32.0 / (3000.0 * 3.0 * 0.7));
        close(part(&h200, &["eep.gpu_mhz=345", "eep.beta=1"]), 345.0 * 132.0 * 32.0 / (3000.0 * 7.0));
        close(part(&h200, &["eep.ratio=3"]), 3.0);
        // One thread a core: each is worth a whole one. A CPU that does not tell has the authors' clock.
        let k20m = with_gpu(&[324, 758], 13, Some(CpuAttributes { mhz: 3000.0, threads_per_core: 1 }));
        close(part(&k20m, &[]), 758.0 * 13.0 * 32.0 / (3000.0 * 7.0));
        close(part(&with_gpu(&[758], 13, None), &[]), 758.0 * 13.0 * 32.0 / (2000.0 * 7.0));
        let theirs = ["eep.cpu_mhz=2000", "eep.cores=16", "eep.alpha=2", "eep.beta=0.7", "eep.threads=29"];
        close(part(&k20m, &theirs), Platform::default().ratio());
        // An accelerator has no such parts.
        close(part(&server(), &[]), Platform::default().ratio());
    }

    #[test]
    fn shares_are_exact_to_within_one_request_at_any_time() {
        let mut rule = Eep::new(&server(), &Settings { eep_ratio: Some(3.0), ..Settings::default() });
        let (mut gpu, mut all, mut seed) = (0i64, 0i64, 7u64);
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let bytes = 1 + (seed >> 44) as usize;
            let shape = Shape { kind: Kind::Aes128Ctr, bytes, class: Default::default(), messages: 1 };
            all += bytes as i64;
            if rule.choose(&Ask::one(shape), &weather(), 0).engine == EngineId(2) {
                gpu += bytes as i64;
            }
            assert!((gpu - all * 3 / 4).abs() <= 1 << 20, "{gpu} of {all}");
        }
    }

    #[test]
    fn the_border_of_a_large_job_is_the_published_one_to_one_chunk() {
        let rule = Eep::new(&server(), &Settings::default());
        let ratio = Platform::default().ratio();
        for chunks in [1, 2, 9, 64, 65_536, 1 << 30] {
            let devices = vec![EngineId(2)];
            let job = Job { kind: Kind::Aes128Ctr, chunks, chunk_bytes: 1 << 14, devices, threads: 29 };
            let mut split = rule.split(&job).unwrap();
            let (mut cpu, mut gpu) = (0, 0);
            // Pieces are taken in turns; the CPU's end at the border, and the device's begin there.
            loop {
                let (one, other) = (split.claim(Side::Cpu, 0), split.claim(Side::Device, 0));
                if one.is_none() && other.is_none() {
                    break;
                }
                cpu += one.map_or(0, |range| range.end - range.start);
                if let Some(range) = other {
                    gpu += range.end - range.start;
                    split.done(Side::Device, &range, 0, 1);
                }
            }
            assert_eq!(cpu + gpu, chunks);
            assert!((gpu as f64 - chunks as f64 * ratio / (ratio + 1.0)).abs() <= 1.0, "{gpu} of {chunks}");
        }
        let nobody =
            Job { kind: Kind::Aes128Ctr, chunks: 9, chunk_bytes: 1 << 14, devices: Vec::new(), threads: 1 };
        assert!(rule.split(&nobody).is_none());
    }

    #[test]
    fn without_a_device_the_cpu_does_everything_and_owes_nothing() {
        let mut rule = Eep::new(&server(), &Settings::default());
        let mut weather = weather();
        weather.engines[2].available = false;
        let shape = Shape { kind: Kind::Aes128Ctr, bytes: 1 << 20, class: Default::default(), messages: 1 };
        for _ in 0..1000 {
            assert_eq!(rule.choose(&Ask::one(shape), &weather, 0), Choice::now(EngineId(1)));
        }
        assert_eq!(rule.owed, 0);
    }
}
