//! `lecpaes`: Fei et al., "Velocity-Aware Parallel Encryption Algorithm with Low Energy Consumption for Streams",
//! 2017.
//!
//! Published: everything is encrypted on the GPU, and the fill level of the sliding window stands for the stream's
//! velocity. With thresholds `t_1 < ... < t_(n-1)` the clock is `f_1` below `t_1`, `f_(i+1)` from `t_i` to `t_(i+1)`,
//! `f_n` above the last; `t_i / size = f_i / f_n`, for the authors' six clock pairs 0.43, 0.81, 0.84, 0.88, 0.93.
//!
//! Ours: a fill level exactly at a threshold counts as above it; the window is the engine's unless
//! `lecpaes.window_bytes` says otherwise (the paper does not publish its size); kinds the GPU cannot do go to an
//! accelerator, then to the CPU, and have no opinion on clocks, nor has an engine that names no window.

use wattlock_core::{EngineClass, Nanos};

use crate::machine::{MAX_ENGINES, Machine};
use crate::ranking::Sides;
use crate::settings::Settings;
use crate::split::{Job, Split};
use crate::weather::{Ask, Choice, ClockStep, EngineWeather, Policy, Weather};

/// The GPU, at the clock that the stream needs.
pub struct Lecpaes {
    fill_permille: Vec<u16>,
    window_bytes: u64,
    is_gpu: [bool; MAX_ENGINES],
    sides: Sides,
}

impl Lecpaes {
    /// The rule on this machine.
    pub fn new(machine: &Machine, settings: &Settings) -> Lecpaes {
        let first = [EngineClass::Gpu, EngineClass::Accelerator];
        let mut is_gpu = [false; MAX_ENGINES];
        for engine in machine.engines.iter().filter(|engine| engine.class == EngineClass::Gpu) {
            if let Some(flag) = is_gpu.get_mut(engine.id.index()) {
                *flag = true;
            }
        }
        Lecpaes {
            fill_permille: settings.lecpaes_fill_permille.clone(),
            window_bytes: settings.lecpaes_window_bytes,
            is_gpu,
            sides: Sides::new(machine, &first),
        }
    }

    /// The step for a fill level: as many steps up as there are thresholds at or below it.
    fn step(&self, state: &EngineWeather) -> Option<ClockStep> {
        let window = if self.window_bytes > 0 { self.window_bytes } else { state.window_bytes };
        if window == 0 {
            return None;
        }
        let filled = u128::from(state.in_flight_bytes) * 1000;
        let reached = |threshold: &&u16| filled >= u128::from(window) * u128::from(**threshold);
        Some(ClockStep(self.fill_permille.iter().take_while(reached).count() as u8))
    }
}

impl Policy for Lecpaes {
    fn name(&self) -> &'static str {
        "lecpaes"
    }

    fn choose(&mut self, ask: &Ask, weather: &Weather, _now: Nanos) -> Choice {
        if !ask.may_wait {
            return self.sides.answer(ask, weather);
        }
        let shape = &ask.shape;
        let engine = self.sides.pick(shape.kind, weather);
        if !self.is_gpu[engine.index()] {
            return Choice::now(engine);
        }
        Choice { clock: self.step(&weather.engines[engine.index()]), ..Choice::now(engine) }
    }

    fn split(&self, job: &Job) -> Option<Split> {
        let gpu = job.devices.iter().find(|id| self.is_gpu[id.index()])?;
        Some(Split::at_border(job, *gpu, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::EngineId;
    use crate::ranking::tests::{server, weather};
    use wattlock_core::Kind;
    use wattlock_core::Shape;

    #[test]
    fn fill_level_picks_the_published_step() {
        let mut machine = server();
        machine.engines[2].class = EngineClass::Gpu;
        let mut rule = Lecpaes::new(&machine, &Settings::default());
        let shape = Shape { kind: Kind::Aes128Ctr, bytes: 100_000, class: Default::default(), messages: 1 };
        let mut at = |filled: u64| {
            let mut weather = weather();
            (weather.engines[2].in_flight_bytes, weather.engines[2].window_bytes) = (filled, 100_000);
            rule.choose(&Ask::one(shape), &weather, 0).clock.map(|step| step.0)
        };
        for (filled, step) in [
            (0, 0),
            (42_999, 0),
            (43_000, 1),
            (81_000, 2),
            (84_000, 3),
            (88_000, 4),
            (92_999, 4),
            (93_000, 5),
        ] {
            assert_eq!(at(filled), Some(step), "{filled}");
        }
        assert_eq!(at(200_000), Some(5), "overfull is the highest");
    }

    #[test]
    fn without_a_gpu_nobody_has_an_opinion_on_clocks() {
        let mut rule = Lecpaes::new(&server(), &Settings::default());
        let shape = Shape { kind: Kind::Aes128Ctr, bytes: 100_000, class: Default::default(), messages: 1 };
        assert_eq!(rule.choose(&Ask::one(shape), &weather(), 0), Choice::now(EngineId(2)));
    }
}
