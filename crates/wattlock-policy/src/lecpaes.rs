//! `lecpaes`: Fei et al., "Velocity-Aware Parallel Encryption Algorithm with Low Energy Consumption for Streams",
//! 2017.
//!
//! Published: everything is encrypted on the GPU, and the fill level of the sliding window stands for the stream's
//! velocity. With thresholds `t_1 < ... < t_(n-1)` the clock is `f_1` below `t_1`, `f_(i+1)` from `t_i` to `t_(i+1)`,
//! `f_n` above the last (equation 7). The thresholds are the device's own: `t_i / size = f_i / f_n` (equations 8 and 9;
//! Algorithm 1, lines 3 and 4), for the authors' six clock pairs 0.43, 0.81, 0.84, 0.88, 0.93.
//!
//! Ours: a fill level exactly at a threshold counts as above it; a device that does not list its clocks has the authors'
//! five thresholds; thresholds that an operator sets name shares of the highest clock, too, and each step is then the
//! lowest clock that has the share; the window is the engine's unless
//! `lecpaes.window_bytes` says otherwise (the paper does not publish its size); kinds the GPU cannot do go to an
//! accelerator, then to the CPU, and have no opinion on clocks, nor has an engine that names no window.

use wattlock_core::{EngineClass, Nanos};

use crate::machine::{MAX_ENGINES, Machine};
use crate::ranking::Sides;
use crate::settings::Settings;
use crate::split::{Job, Side, Split};
use crate::weather::{Ask, Choice, ClockStep, EngineWeather, Policy, Rest, Weather, alone};

/// Core clock over highest core clock of a Tesla K20M, in thousandths: the authors' thresholds.
const PUBLISHED: [u16; 5] = [430, 810, 840, 880, 930];

/// Fill levels as parts of `whole`, ascending, and the step below, between and above them: one more.
struct Ladder {
    thresholds: Vec<u64>,
    whole: u64,
    steps: Vec<u8>,
}

impl Ladder {
    /// Of a device with these clocks, lowest first; none if it does not list them. `set` replaces the thresholds.
    fn new(clocks: &[u64], set: Option<&[u16]>) -> Ladder {
        match (clocks, set) {
            ([below @ .., highest], None) => {
                let steps = (0..clocks.len()).map(|step| step.min(255) as u8).collect();
                Ladder { thresholds: below.to_vec(), whole: *highest, steps }
            }
            ([.., highest], Some(set)) => {
                let lowest = |share: u64| {
                    let has = |khz: &u64| u128::from(*khz) * 1000 >= u128::from(*highest) * u128::from(share);
                    clocks.iter().position(has).unwrap_or(clocks.len() - 1).min(255) as u8
                };
                let thresholds: Vec<u64> = set.iter().copied().map(u64::from).collect();
                let steps = thresholds.iter().copied().chain([1000]).map(lowest).collect();
                Ladder { thresholds, whole: 1000, steps }
            }
            ([], set) => {
                let thresholds = set.unwrap_or(&PUBLISHED).iter().copied().map(u64::from).collect::<Vec<_>>();
                let steps = (0..=thresholds.len() as u8).collect();
                Ladder { thresholds, whole: 1000, steps }
            }
        }
    }

    /// Equation 7.
    fn step(&self, filled: u64, window: u64) -> ClockStep {
        let filled = u128::from(filled) * u128::from(self.whole);
        let reached = |threshold: &&u64| filled >= u128::from(window) * u128::from(**threshold);
        ClockStep(self.steps[self.thresholds.iter().take_while(reached).count()])
    }
}

/// The GPU, at the clock that the stream needs.
pub struct Lecpaes {
    /// Of each GPU.
    ladders: [Option<Ladder>; MAX_ENGINES],
    window_bytes: u64,
    sides: Sides,
}

impl Lecpaes {
    /// The rule on this machine.
    pub fn new(machine: &Machine, settings: &Settings) -> Lecpaes {
        let first = [EngineClass::Gpu, EngineClass::Accelerator];
        let mut ladders = [const { None }; MAX_ENGINES];
        for engine in machine.engines.iter().filter(|engine| engine.class == EngineClass::Gpu) {
            if let Some(ladder) = ladders.get_mut(engine.id.index()) {
                let clocks = machine.hardware.clocks(engine.id);
                *ladder = Some(Ladder::new(&clocks, settings.lecpaes_fill_permille.as_deref()));
            }
        }
        Lecpaes { ladders, window_bytes: settings.lecpaes_window_bytes, sides: Sides::new(machine, &first) }
    }

    /// The step for a fill level.
    fn step(&self, ladder: &Ladder, state: &EngineWeather) -> Option<ClockStep> {
        let window = if self.window_bytes > 0 { self.window_bytes } else { state.window_bytes };
        (window > 0).then(|| ladder.step(state.in_flight_bytes, window))
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
        let Some(ladder) = &self.ladders[engine.index()] else { return Choice::now(engine) };
        Choice { clock: self.step(ladder, &weather.engines[engine.index()]), ..Choice::now(engine) }
    }

    /// The device alone.
    fn claim(&self, side: Side, rest: &Rest, _: &Weather) -> u32 {
        alone(side, rest)
    }

    fn split(&self, job: &Job) -> Option<Split> {
        let gpu = job.devices.iter().find(|id| self.ladders[id.index()].is_some())?;
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

    /// Equations 7 to 9, of the device's own clocks: the lowest clock whose share of the highest is above the fill, and the
    /// highest above all.
    #[test]
    fn the_step_at_each_fill_is_by_the_shares_of_the_device_s_own_clocks() {
        let mut seed = 7u64;
        let mut dice = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        for _ in 0..2000 {
            let mut clocks: Vec<u64> = (0..2 + dice(200)).map(|_| 1 + dice(5_000_000)).collect();
            clocks.sort_unstable();
            clocks.dedup();
            let Some((highest, [_, ..])) = clocks.split_last() else { continue };
            let ladder = Ladder::new(&clocks, None);
            let window = 1 + dice(1 << 30);
            // Fills anywhere, and exactly at a threshold.
            let at = clocks[dice(clocks.len() as u64) as usize];
            for (filled, window) in [(dice(window + window / 8 + 1), window), (at, *highest), (0, window)] {
                let above = |khz: &u64| *khz as f64 / *highest as f64 > filled as f64 / window as f64;
                let expected = clocks.iter().position(above).unwrap_or(clocks.len() - 1);
                assert_eq!(
                    usize::from(ladder.step(filled, window).0),
                    expected,
                    "{filled} of {window}: {clocks:?}"
                );
            }
        }
    }

    #[test]
    fn thresholds_that_are_set_name_the_lowest_clocks_that_have_their_shares() {
        let clocks: Vec<u64> = (345..=1980).step_by(15).map(|mhz| mhz * 1000).collect();
        let ladder = Ladder::new(&clocks, Some(&[430, 810]));
        let mhz = |filled| clocks[usize::from(ladder.step(filled, 1000).0)] / 1000;
        assert_eq!([0, 429, 430, 809, 810, 1000].map(mhz), [855, 855, 1605, 1605, 1980, 1980]);
        // The authors' card by its own clocks: the published shares, before they were rounded.
        let k20m = Ladder::new(&[324, 614, 640, 666, 705, 758], None);
        let steps = [0, 427, 428, 810, 811, 845, 879, 931].map(|filled| k20m.step(filled, 1000).0);
        assert_eq!(steps, [0, 0, 1, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn without_a_gpu_nobody_has_an_opinion_on_clocks() {
        let mut rule = Lecpaes::new(&server(), &Settings::default());
        let shape = Shape { kind: Kind::Aes128Ctr, bytes: 100_000, class: Default::default(), messages: 1 };
        assert_eq!(rule.choose(&Ask::one(shape), &weather(), 0), Choice::now(EngineId(2)));
    }
}
