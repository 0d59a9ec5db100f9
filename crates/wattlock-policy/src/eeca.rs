//! `eeca`: Xiao et al., "Energy-efficient crypto acceleration with HW/SW co-design for HTTPS", 2019.
//!
//! Published, *RequestAllocation*: a request with `size > T` goes to the accelerator's queue, any other to the
//! instruction set's; T = 8 KiB. Published, *DynamicScheduler*, a loop: while the accelerator is fully used and its
//! queue is not empty, one request moves from there to the instruction set; while it is not fully used, one with
//! `size > T` moves the other way.
//!
//! A request's size is that of the whole operation ([`Ask::bytes`]): of the file, the write, the response. What waits for
//! either side are its pieces that nobody has begun, so both moves are claims ([`Policy::claim`]): a thread that would wait
//! takes them one by one while the device is fully used, the device whenever it is not.
//!
//! Ours: what "fully used" means (`busy_permille` of the device's window has been handed over, by default all of it; the
//! paper asks its driver).

use wattlock_core::Nanos;

use crate::fullness::Fullness;
use crate::machine::Machine;
use crate::ranking::{DEVICES, Ranking, Sides};
use crate::settings::Settings;
use crate::split::Side;
use crate::weather::{Ask, Choice, Policy, Rest, Weather};

/// A size threshold, and migration by utilisation.
pub struct Eeca {
    threshold_bytes: usize,
    device: Ranking,
    cpu: Sides,
    fullness: Fullness,
}

impl Eeca {
    /// The rule on this machine.
    pub fn new(machine: &Machine, settings: &Settings) -> Eeca {
        Eeca {
            threshold_bytes: settings.eeca_threshold_bytes,
            device: Ranking::any(machine, &DEVICES),
            cpu: Sides::new(machine, &[]),
            fullness: Fullness::new(machine, settings.busy_permille),
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
        if ask.bytes <= self.threshold_bytes {
            return Choice::all(self.cpu.pick(ask.shape.kind, weather), ask);
        }
        Choice::all(self.device.pick(ask.shape.kind, weather), ask)
    }

    /// DynamicScheduler, both loops.
    fn claim(&self, side: Side, rest: &Rest, weather: &Weather) -> u32 {
        let room = self.fullness.room(rest, weather);
        match side {
            Side::Device => rest.free.min(room),
            Side::Cpu => u32::from(room == 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::EngineId;
    use crate::ranking::tests::{server, weather};
    use wattlock_core::{Kind, Shape};

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
    fn the_whole_operation_is_compared_and_not_its_pieces() {
        let mut eeca = Eeca::new(&server(), &Settings::default());
        let ask = |bytes| Ask { count: 4, bytes, ..Ask::one(shape(2048)) };
        let device = eeca.choose(&ask(8193), &weather(), 0);
        assert_eq!((device.engine, device.count), (EngineId(2), 4));
        assert_eq!(eeca.choose(&ask(8192), &weather(), 0).engine, EngineId(1));
    }

    #[test]
    fn a_thread_claims_while_the_device_is_full_and_the_device_while_it_is_not() {
        let eeca = Eeca::new(&server(), &Settings { busy_permille: 750, ..Settings::default() });
        let rest = Rest { device: EngineId(2), pieces: 256, free: 100, out: 48, bytes: 4096 };
        for (in_flight, held, device, cpu) in
            [(0, 0, 48, 0), (40, 0, 8, 0), (47, 0, 1, 0), (48, 0, 0, 1), (64, 0, 0, 1), (60, 20, 8, 0)]
        {
            let mut weather = weather();
            (weather.engines[2].in_flight, weather.engines[2].held) = (in_flight, held);
            let claims = [Side::Device, Side::Cpu].map(|side| eeca.claim(side, &rest, &weather));
            assert_eq!(claims, [device, cpu], "{in_flight}, {held} held");
        }
        let mut weather = weather();
        let device = &mut weather.engines[2];
        (device.in_flight, device.in_flight_bytes, device.window_bytes) = (1, 60_000, 64_000);
        let claims = [Side::Device, Side::Cpu].map(|side| eeca.claim(side, &rest, &weather));
        assert_eq!(claims, [0, 1], "full of bytes");
    }
}
