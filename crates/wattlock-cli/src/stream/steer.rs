//! `--clocks`: the input pipe is the sliding window, its fill picks the step, a governor carries it out.
//!
//! The rule is `lecpaes` as published, and the production object, with the governor's own clocks: a GPU's, or a CPU's by
//! frequency. `adaptive` compares what each clock costs, which is calibrated
//! for no machine yet; it has no opinion here and is refused.

use wattlock::policy::{Settings, by_name};
use wattlock_clock::{Cpufreq, Governor, Places};
use wattlock_core::{EngineClass, Kind, KindSet, Nanos, Shape};
use wattlock_policy::{
    Ask, EngineId, Hardware, Machine, Objective, Policy, Weather, inline_engine, queued_engine,
};
use wattlock_stream::pipe::Steering;

use wattlock_shell::setup::{self, Choice};

use crate::clocks::OfGpu;
use crate::wrong::usage;

/// GPU or CPU, as the policy sees it: the device whose clock it names.
const DEVICE: EngineId = EngineId(1);

/// A policy and the clock that follows it.
pub struct Steer {
    policy: Box<dyn Policy>,
    clock: Box<dyn Governor>,
    failed: Option<wattlock_clock::Error>,
}

impl Steer {
    /// The policy that was asked for, on the clocks of the GPU, or of the CPU where there is none. `None`: there is a GPU,
    /// and its clocks cannot be set, which has been said.
    pub fn new(choice: &Choice, places: &Places) -> anyhow::Result<Option<Steer>> {
        let settings = setup::settings(choice)?;
        if choice.policy != "lecpaes" {
            return Err(usage("--clocks needs --policy lecpaes"));
        }
        let clock: Box<dyn Governor> = match setup::gpu_for(choice) {
            Err(_) => Box::new(Cpufreq::open(places)?),
            Ok(gpu) => match OfGpu::open(places, gpu.bus())? {
                Some(clock) => Box::new(clock),
                None => return Ok(None),
            },
        };
        Steer::with(settings, clock).map(Some)
    }

    fn with(settings: Settings, clock: Box<dyn Governor>) -> anyhow::Result<Steer> {
        let kinds = KindSet::of(&[Kind::Aes256GcmSeal]);
        let machine = Machine {
            engines: vec![
                inline_engine(EngineId(0), EngineClass::Software, kinds),
                queued_engine(DEVICE, EngineClass::Gpu, kinds, 1 << 20),
            ],
            cores: 1,
            objective: Objective::Energy,
            hardware: Hardware {
                clocks_khz: vec![(DEVICE, clock.clocks_khz().to_vec())],
                ..Hardware::default()
            },
            ..Machine::default()
        };
        Ok(Steer { policy: by_name("lecpaes", machine, &settings)?, clock, failed: None })
    }

    fn set(&mut self, step: usize) {
        let step = step.min(self.clock.steps() - 1);
        if self.failed.is_none() {
            self.failed = self.clock.set(step).err();
        }
    }

    /// Puts the clocks back; how often they were changed.
    ///
    /// # Errors
    /// What went wrong while they were set or put back.
    pub fn restore(&mut self) -> Result<u64, wattlock_clock::Error> {
        let restored = self.clock.restore();
        match self.failed.take() {
            Some(error) => Err(error),
            None => restored.map(|()| self.clock.changes()),
        }
    }
}

impl Steering for Steer {
    fn on_batch(&mut self, fill: u64, window: u64, bytes: u64, now: Nanos) {
        let mut weather = Weather { submitters: 1, ..Weather::default() };
        let device = &mut weather.engines[DEVICE.index()];
        (device.available, device.in_flight_bytes, device.window_bytes) = (true, fill, window);
        weather.engines[0].available = true;
        let shape = Shape {
            kind: Kind::Aes256GcmSeal,
            bytes: bytes as usize,
            class: Default::default(),
            messages: 1,
        };
        if let Some(step) = self.policy.choose(&Ask::one(shape), &weather, now).clock {
            self.set(usize::from(step.0));
        }
    }

    fn on_rest(&mut self, _now: Nanos) {
        // An empty window is below the first threshold.
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use wattlock_clock::Named;

    /// A clock that shows its step.
    struct Seen(Named, Arc<Mutex<Vec<usize>>>);

    impl Governor for Seen {
        fn clocks_khz(&self) -> &[u64] {
            self.0.clocks_khz()
        }

        fn set(&mut self, step: usize) -> Result<(), wattlock_clock::Error> {
            self.0.set(step)?;
            self.1.lock().unwrap().push(step);
            Ok(())
        }

        fn restore(&mut self) -> Result<(), wattlock_clock::Error> {
            self.0.restore()
        }

        fn changes(&self) -> u64 {
            self.0.changes()
        }
    }

    const FILLS: [u64; 8] = [0, 427, 428, 810, 811, 845, 879, 931];

    #[test]
    fn the_fill_picks_the_step_by_the_share_of_the_highest_clock_and_silence_the_lowest() {
        let k20m = vec![324_000, 614_000, 640_000, 666_000, 705_000, 758_000];
        let even = vec![400_000, 1_200_000, 2_000_000, 2_800_000, 3_600_000];
        for (clocks, expected) in [(k20m, [0, 0, 1, 1, 2, 3, 4, 5, 0]), (even, [0, 2, 2, 4, 4, 4, 4, 4, 0])] {
            let seen = Arc::new(Mutex::new(Vec::new()));
            let clock = Box::new(Seen(Named::new(clocks, 0), seen.clone()));
            let mut steer = Steer::with(Settings::default(), clock).unwrap();
            for fill in FILLS {
                steer.on_batch(fill, 1000, 100, 0);
            }
            steer.on_rest(1);
            assert_eq!(*seen.lock().unwrap(), expected);
            assert!(steer.restore().unwrap() > 0);
        }
    }

    /// A CPU of a fixture, whose clocks are those of the audit's example: 800 to 3500 MHz in hundreds.
    #[test]
    fn a_cpu_is_limited_to_the_lowest_frequency_whose_share_is_above_the_fill() {
        let folder = tempfile::tempdir().unwrap();
        let policy = folder.path().join("cpufreq/policy0");
        std::fs::create_dir_all(&policy).unwrap();
        let list: Vec<u64> = (8..=35).map(|step| step * 100_000).collect();
        let text = list.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
        for (name, text) in [
            ("scaling_available_frequencies", &text[..]),
            ("cpuinfo_min_freq", "800000"),
            ("cpuinfo_max_freq", "3500000"),
            ("scaling_min_freq", "800000"),
            ("scaling_max_freq", "3500000"),
        ] {
            std::fs::write(policy.join(name), text).unwrap();
        }
        let places =
            Places { tree: folder.path().join("cpufreq"), nvml: None, record: folder.path().join("record") };
        let mut steer = Steer::with(Settings::default(), Box::new(Cpufreq::open(&places).unwrap())).unwrap();
        let limit = || std::fs::read_to_string(policy.join("scaling_max_freq")).unwrap();
        for fill in (0..=1100).chain([428, 0]) {
            steer.on_batch(fill, 1000, 100, 0);
            let above = list.iter().find(|khz| **khz * 1000 > fill * 3_500_000).copied();
            assert_eq!(limit(), above.unwrap_or(3_500_000).to_string(), "{fill}");
        }
        steer.restore().unwrap();
        assert_eq!(limit(), "3500000");
    }
}
