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
//! Ours: what "fully used" means. The paper asks its driver. Here a device is fully used that has as many requests as it
//! works on at once ([`Costs::at_once`]): more of them would only wait in it. If it does not say, or does a piece in less
//! than [`QUICK`] times a thread's time, it is fully used when `busy_permille` of its window has been handed over, by
//! default all of it: while a slow thread works nobody looks at the device, which then needs requests in store. Where
//! `busy_permille` is set, the window counts for every device.
//!
//! Ours, too: at the end of an operation, whose caller waits for all of it, what a thread does before the device would
//! answer is the thread's. (Published, requests come without an end.) Both go by the times seen, and by the calibrated time
//! of a CPU that was not seen yet. Without them a segment of a sealed file, 64 pieces, goes to the card of QWEB as a whole,
//! whose 20 servers then take up to 2.5 times as long as a CPU alone (simulated, `wattlock-files/tests/all/rules.rs`).

use wattlock_core::{Nanos, Shape};

use crate::fullness::Fullness;
use crate::machine::{Costs, Machine};
use crate::ranking::{DEVICES, Ranking, Sides};
use crate::settings::Settings;
use crate::split::Side;
use crate::times::Times;
use crate::weather::{Ask, Choice, Outcome, Policy, Rest, Weather};

/// A size threshold, and migration by utilisation.
pub struct Eeca {
    threshold_bytes: usize,
    device: Ranking,
    cpu: Sides,
    fullness: Fullness,
    costs: Costs,
    times: Times,
}

impl Eeca {
    /// The rule on this machine.
    pub fn new(machine: &Machine, settings: &Settings) -> Eeca {
        Eeca {
            threshold_bytes: settings.eeca_threshold_bytes,
            device: Ranking::any(machine, &DEVICES),
            cpu: Sides::new(machine, &[]),
            fullness: Fullness::new(machine, settings.busy_permille),
            // Who sets the share of the window means the window.
            costs: if settings.busy_permille.is_some() { Costs::new() } else { machine.costs.clone() },
            times: Times::default(),
        }
    }

    /// What a piece takes a thread and the device, where the thread is quick enough to take part without harm: nobody looks
    /// at the device meanwhile.
    fn shared(&self, rest: &Rest, weather: &Weather) -> Option<(f64, f64)> {
        let (cpu, device) = self.times.of(rest.kind, rest.bytes);
        let by_calibration =
            || self.costs.latency_ns(self.cpu.pick(rest.kind, weather), rest.kind, rest.bytes);
        let (cpu, device) = (cpu.or_else(by_calibration)?, device?);
        (cpu * QUICK < device).then_some((cpu, device))
    }

    /// How many more pieces make the device fully used.
    fn room(&self, rest: &Rest, weather: &Weather) -> u32 {
        let room = self.fullness.room(rest, weather);
        match self.costs.at_once(rest.device, rest.kind) {
            Some(at_once) if self.shared(rest, weather).is_some() => {
                room.min(self.fullness.room_of(at_once, rest, weather))
            }
            _ => room,
        }
    }

    /// Whether a thread does all that is left of an operation before the device answers.
    fn end_is_the_cpus(&self, rest: &Rest, weather: &Weather) -> bool {
        let known = self.costs.at_once(rest.device, rest.kind).is_some() && rest.free < rest.pieces;
        let sooner = |(cpu, device)| f64::from(rest.free) * cpu < device;
        known && self.shared(rest, weather).is_some_and(sooner)
    }
}

/// The device's time for a piece over a thread's from which on the thread takes part.
const QUICK: f64 = 4.0;

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
        let room = if self.end_is_the_cpus(rest, weather) { 0 } else { self.room(rest, weather) };
        match side {
            Side::Device => rest.free.min(room),
            Side::Cpu => u32::from(room == 0),
        }
    }

    fn observe(&mut self, shape: &Shape, outcome: &Outcome, _now: Nanos) {
        if !outcome.failed {
            let device = self.fullness.is_device(outcome.engine);
            self.times.add(device, shape, outcome.latency_ns as f64);
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
        let eeca = Eeca::new(&server(), &Settings { busy_permille: Some(750), ..Settings::default() });
        let kind = Kind::Aes256CbcEncrypt;
        let rest = Rest { device: EngineId(2), kind, pieces: 256, free: 100, out: 48, bytes: 4096 };
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

    #[test]
    fn a_device_that_says_what_it_works_on_at_once_gets_no_more_beside_a_quick_thread_and_not_the_end() {
        let kind = Kind::Aes256CbcEncrypt;
        let mut machine = server();
        machine.costs.set(EngineId(1), kind, vec![(4096, 1000.0, None)]);
        machine.costs.set_at_once(EngineId(2), kind, 20);
        let mut eeca = Eeca::new(&machine, &Settings::default());
        let claims = |eeca: &Eeca, free, in_flight| {
            let mut weather = weather();
            weather.engines[2].in_flight = in_flight;
            let rest = Rest { device: EngineId(2), kind, pieces: 60, free, out: 0, bytes: 4096 };
            [Side::Device, Side::Cpu].map(|side| eeca.claim(side, &rest, &weather))
        };
        assert_eq!(claims(&eeca, 60, 0), [60, 0], "nobody knows yet what the device takes");
        let took = |eeca: &mut Eeca, engine, latency_ns| {
            let outcome = Outcome {
                engine: EngineId(engine),
                latency_ns,
                held_ns: 0,
                batch: 1,
                depth: 1,
                energy_nj: None,
                failed: false,
            };
            eeca.observe(&shape(4096), &outcome, 0);
        };
        took(&mut eeca, 2, 27_000);
        assert_eq!(claims(&eeca, 60, 0), [20, 0]);
        assert_eq!(claims(&eeca, 40, 20), [0, 1]);
        assert_eq!(claims(&eeca, 40, 19), [1, 0]);
        assert_eq!(claims(&eeca, 27, 0), [20, 0], "both end at the same time");
        assert_eq!(claims(&eeca, 26, 0), [0, 1], "the thread is done before the device answers");
        let by_window = Settings { busy_permille: Some(1000), ..Settings::default() };
        let mut window = Eeca::new(&machine, &by_window);
        took(&mut window, 2, 27_000);
        assert_eq!(claims(&window, 26, 0), [26, 0]);
        (0..100).for_each(|_| took(&mut eeca, 1, 7_000));
        assert_eq!(claims(&eeca, 26, 0), [26, 0], "a thread that is not quick leaves the device alone");
    }
}
