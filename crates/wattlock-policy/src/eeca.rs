//! `eeca`: Xiao et al., "Energy-efficient crypto acceleration with HW/SW co-design for HTTPS", 2019.
//!
//! Published, *RequestAllocation*: a request with `size > T` goes to the accelerator's queue, any other to the
//! instruction set's; T = 8 KiB. Published, *DynamicScheduler*, a loop: while the accelerator is fully used and its
//! queue is not empty, one request moves from there to the instruction set; while it is not fully used, one with
//! `size > T` moves the other way.
//!
//! The second loop has nothing to do here: CPU engines finish inside the call, so nothing ever waits for the instruction
//! set.
//!
//! Ours: what "fully used" means (`busy_permille` of the engine's window has been handed over; the paper asks its
//! driver), and that a request chosen for a fully used accelerator is *held*, because only held requests can still
//! move. With an idle accelerator nothing is held and the threshold alone decides, exactly.

use wattlock_core::{Nanos, Shape};

use crate::machine::Machine;
use crate::ranking::{DEVICES, Devices, Ranking, Sides};
use crate::settings::Settings;
use crate::weather::{Ask, Choice, Migration, Policy, Weather};

/// A size threshold, and migration by utilisation.
pub struct Eeca {
    threshold_bytes: usize,
    hold_ns: Nanos,
    device: Ranking,
    cpu: Sides,
    devices: Devices,
}

impl Eeca {
    /// The rule on this machine.
    pub fn new(machine: &Machine, settings: &Settings) -> Eeca {
        Eeca {
            threshold_bytes: settings.eeca_threshold_bytes,
            hold_ns: settings.hold_ns,
            device: Ranking::any(machine, &DEVICES),
            cpu: Sides::new(machine, &[]),
            devices: Devices::new(machine, settings.busy_permille),
        }
    }
}

impl Policy for Eeca {
    fn name(&self) -> &'static str {
        "eeca"
    }

    fn choose(&mut self, ask: &Ask, weather: &Weather, _now: Nanos) -> Choice {
        if !ask.may_wait {
            return self.cpu.answer(ask, weather);
        }
        let shape = &ask.shape;
        if shape.bytes <= self.threshold_bytes {
            return Choice::now(self.cpu.pick(shape.kind, weather));
        }
        let engine = self.device.pick(shape.kind, weather);
        let hold_ns = if self.devices.must_wait(engine, shape.kind, weather) { self.hold_ns } else { 0 };
        Choice { engine, hold_ns, ..Choice::now(engine) }
    }

    /// DynamicScheduler's first loop, one step at a time.
    fn migrate(&mut self, weather: &Weather, _now: Nanos) -> Option<Migration> {
        let from = self.devices.overflowing(weather)?;
        self.devices.relief(weather).map(|to| Migration { from, to })
    }

    fn may_move(&self, shape: &Shape, migration: &Migration) -> bool {
        self.devices.can(migration.to, shape.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::EngineId;
    use crate::ranking::tests::{server, weather};
    use wattlock_core::Kind;

    fn shape(bytes: usize) -> Shape {
        Shape { kind: Kind::Aes256CbcEncrypt, bytes, class: Default::default(), messages: 1 }
    }

    #[test]
    fn one_byte_above_the_threshold_is_offloaded_at_once() {
        let mut eeca = Eeca::new(&server(), &Settings::default());
        let weather = weather();
        for bytes in [0, 1, 8191, 8192] {
            assert_eq!(
                eeca.choose(&Ask::one(shape(bytes)), &weather, 0),
                Choice::now(EngineId(1)),
                "{bytes}"
            );
        }
        for bytes in [8193, 16384, 1 << 24] {
            assert_eq!(
                eeca.choose(&Ask::one(shape(bytes)), &weather, 0),
                Choice::now(EngineId(2)),
                "{bytes}"
            );
        }
    }

    #[test]
    fn what_waits_for_a_full_accelerator_moves_to_the_cpu() {
        let mut eeca = Eeca::new(&server(), &Settings::default());
        let mut weather = weather();
        weather.engines[2].in_flight = 48;
        assert!(eeca.choose(&Ask::one(shape(9000)), &weather, 0).hold_ns > 0);
        assert_eq!(eeca.migrate(&weather, 0), None);
        (weather.engines[2].in_flight, weather.engines[2].held) = (50, 2);
        let out = Migration { from: EngineId(2), to: EngineId(1) };
        assert_eq!(eeca.migrate(&weather, 0), Some(out));
        assert!(eeca.may_move(&shape(9000), &out) && eeca.may_move(&shape(1), &out));
    }

    #[test]
    fn migration_ends_in_any_weather() {
        let mut eeca = Eeca::new(&server(), &Settings::default());
        for (handed, held) in [(48, 16), (0, 0), (47, 1), (48, 3), (40, 20)] {
            let mut weather = weather();
            (weather.engines[2].in_flight, weather.engines[2].held) = (handed + held, held);
            let mut moves = 0;
            while let Some(Migration { from, to }) = eeca.migrate(&weather, 0) {
                assert_eq!(to, EngineId(1));
                let state = &mut weather.engines[from.index()];
                (state.held, state.in_flight) = (state.held - 1, state.in_flight - 1);
                moves += 1;
                assert!(moves <= 64);
            }
        }
    }
}
