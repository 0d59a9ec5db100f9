//! `--clocks`: the input pipe is the sliding window, its fill picks the step, a governor carries it out.
//!
//! The rule is `lecpaes` as published, and the production object. A GPU has a step for each of its thresholds. A CPU has
//! as many as it has, and the one is scaled to the other. `adaptive` compares what each clock costs, which is calibrated
//! for no machine yet; it has no opinion here and is refused.

use wattlock::policy::{Settings, by_name};
use wattlock_clock::{Cpufreq, Governor, Places};
use wattlock_core::{EngineClass, Kind, KindSet, Nanos, Shape};
use wattlock_policy::{Ask, EngineId, Machine, Objective, Policy, Weather, inline_engine, queued_engine};
use wattlock_stream::pipe::Steering;

use wattlock_shell::setup::{self, Choice};

use crate::clocks::OfGpu;

/// GPU or CPU, as the policy sees it: the device whose clock it names.
const DEVICE: EngineId = EngineId(1);

/// A policy and the clock that follows it.
pub struct Steer {
    policy: Box<dyn Policy>,
    /// Steps that the policy can name.
    named: usize,
    clock: Box<dyn Governor>,
    failed: Option<wattlock_clock::Error>,
}

impl Steer {
    /// The policy that was asked for, on the clocks of the GPU, or of the CPU where there is none. `None`: there is a GPU,
    /// and its clocks cannot be set, which has been said.
    pub fn new(choice: &Choice, places: &Places) -> anyhow::Result<Option<Steer>> {
        let settings = setup::settings(choice)?;
        if choice.policy != "lecpaes" {
            return Err(wattlock_door::Error::Usage("--clocks needs --policy lecpaes".into()).into());
        }
        let clock: Box<dyn Governor> = match setup::gpu() {
            Err(_) => Box::new(Cpufreq::open(places)?),
            Ok(gpu) => match OfGpu::open(places, gpu.bus(), &settings)? {
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
            ..Machine::default()
        };
        let named = settings.lecpaes_fill_permille.len() + 1;
        Ok(Steer { policy: by_name("lecpaes", machine, &settings)?, named, clock, failed: None })
    }

    fn set(&mut self, step: usize) {
        let most = self.clock.steps() - 1;
        let step = (step * most).div_ceil((self.named - 1).max(1)).min(most);
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
        fn steps(&self) -> usize {
            self.0.steps()
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

    #[test]
    fn the_fill_picks_the_published_step_and_silence_the_lowest() {
        for (steps, expected) in [(6, [0, 0, 1, 2, 3, 4, 5, 0]), (3, [0, 0, 1, 1, 2, 2, 2, 0])] {
            let seen = Arc::new(Mutex::new(Vec::new()));
            let clock = Box::new(Seen(Named::new(steps, 0), seen.clone()));
            let mut steer = Steer::with(Settings::default(), clock).unwrap();
            for fill in [0, 429, 430, 810, 840, 880, 930] {
                steer.on_batch(fill, 1000, 100, 0);
            }
            steer.on_rest(1);
            assert_eq!(*seen.lock().unwrap(), expected, "{steps} steps");
            assert!(steer.restore().unwrap() > 0);
        }
    }
}
