//! `aca-sds`: Xiao et al., "ACA-SDS: Adaptive Crypto Acceleration for Secure Data Storage in Big Data", 2018.
//!
//! Published: reads are decrypted on the CPU; a write goes to the accelerator if `processes > alpha` and
//! `block > beta`, else to the CPU; while requests go to the accelerator and the idle CPU share is above M, waiting
//! requests are encrypted on the CPU as well; of n cores as many feed the accelerator as it takes to keep it busy
//! (there 4, where `max(bw/n)` peaks) and the others encrypt. The turning point is 4 KiB; alpha, beta and M have no
//! published values.
//!
//! A *block* is what one operation of a file writes ([`Ask::bytes`]), however it is cut for the engines, and *processes*
//! are the files that had an operation lately ([`Weather::files`]): the paper's are fio's processes that write, each its
//! own file, so that a door counts the files that are written. Waiting requests are the pieces of a write that nobody
//! has begun ([`Policy::claim`]). While the idle share is above M, a thread that would wait takes them one by one, whatever
//! the device's fill; else the device does all.
//!
//! Alpha, beta and the feeders are what calibration found of this device ([`Machine::turning`]). Without it alpha is 1
//! (another file must be in operation) and beta the published turning point.
//!
//! Ours: M = 3 % (the least idle share the paper reports of the accelerator alone); counter mode, whose kind does not
//! say the direction, counts as a write. While the CPU takes part, the device has at most half of a write at a time:
//! the CPU cannot take what the device has. A deciding thread that knows its number (`aca-sds.thread`) feeds if the
//! number is below `feeders` and encrypts otherwise; threads that do not know theirs each send `feeders / submitters`
//! of their eligible bytes, which is the same division in the long run.

use wattlock_core::{Family, Kind, KindSet, Nanos};

use crate::fullness::Fullness;
use crate::machine::{EngineId, Machine, Turning};
use crate::ranking::{DEVICES, Ranking, Sides};
use crate::settings::Settings;
use crate::split::Side;
use crate::weather::{Ask, Choice, Policy, Rest, Weather};

/// By operation, size, concurrency, spare CPU and number of cores.
pub struct AcaSds {
    alpha: Option<u16>,
    beta_bytes: Option<usize>,
    turning: Option<Turning>,
    idle_permille: u16,
    feeders: Option<u16>,
    thread: Option<u16>,
    cores: u16,
    reads: KindSet,
    device: Ranking,
    cpu: Sides,
    fullness: Fullness,
    /// Bytes the accelerator is owed, times the submitters that share it.
    owed: i64,
}

impl AcaSds {
    /// The rule on this machine.
    pub fn new(machine: &Machine, settings: &Settings) -> AcaSds {
        AcaSds {
            alpha: settings.aca_sds_alpha,
            beta_bytes: settings.aca_sds_beta_bytes,
            turning: machine.turning,
            idle_permille: settings.aca_sds_idle_permille,
            feeders: settings.aca_sds_feeders,
            thread: settings.aca_sds_thread,
            cores: machine.cores.max(1),
            reads: Kind::ALL.iter().copied().filter(|kind| is_read(*kind)).collect(),
            device: Ranking::any(machine, &DEVICES),
            cpu: Sides::new(machine, &[]),
            fullness: Fullness::new(machine, settings.busy_permille),
            owed: 0,
        }
    }

    /// What calibration found for this kind on this device. It measured writes into a volume, and nothing else.
    fn found(&self, kind: Kind, device: EngineId) -> Option<Turning> {
        self.turning.filter(|turning| turning.device == device && kind == Kind::Aes256GcmSeal)
    }

    /// Beta and alpha. A device that was never worth it has no work, unless settings say something of it.
    fn limits(&self, found: Option<&Turning>) -> (usize, u16) {
        let unset = self.alpha.is_none() && self.beta_bytes.is_none();
        let (beta, alpha) = match found {
            Some(Turning { from: Some((bytes, files)), .. }) => {
                (bytes.saturating_sub(1), files.saturating_sub(1))
            }
            Some(_) if unset => (usize::MAX, u16::MAX),
            _ => (4096, 1),
        };
        (self.beta_bytes.unwrap_or(beta), self.alpha.unwrap_or(alpha))
    }

    /// Whether this thread's next eligible request is for the accelerator, which so many feed.
    fn feeds(&mut self, feeders: u16, bytes: usize, weather: &Weather) -> bool {
        if let Some(thread) = self.thread {
            return thread < feeders;
        }
        let threads = i64::from(weather.submitters.clamp(1, self.cores));
        let feeders = i64::from(feeders).min(threads);
        let bytes = bytes.min(1 << 40) as i64;
        // The debt stays within half a request of zero, so the long-run share is exact; clamped because the number of
        // submitters, its unit, may change between calls.
        let bound = bytes * threads;
        self.owed = self.owed.clamp(-bound, bound) + bytes * feeders;
        let feeds = 2 * self.owed >= bytes * threads;
        if feeds {
            self.owed -= bytes * threads;
        }
        feeds
    }
}

/// Whether the kind decrypts what was stored.
fn is_read(kind: Kind) -> bool {
    kind.info().family == Family::Open || kind.name().ends_with("-decrypt")
}

impl Policy for AcaSds {
    fn name(&self) -> &'static str {
        "aca-sds"
    }

    fn choose(&mut self, ask: &Ask, weather: &Weather, _now: Nanos) -> Choice {
        if !ask.may_wait {
            return self.cpu.answer(ask, weather);
        }
        let kind = ask.shape.kind;
        let write = !self.reads.contains(kind);
        let device = self.device.pick(kind, weather);
        let found = self.found(kind, device);
        let (beta_bytes, alpha) = self.limits(found.as_ref());
        let feeders = self.feeders.unwrap_or(found.map_or(4, |found| found.feeders.max(1)));
        let worth_it = weather.files > alpha && ask.bytes > beta_bytes;
        let bytes = ask.shape.bytes.saturating_mul(ask.count as usize);
        let offloads = write && worth_it && self.feeds(feeders, bytes, weather);
        let engine = if offloads { device } else { self.cpu.pick(kind, weather) };
        Choice::all(engine, ask)
    }

    /// Algorithm 1's second half.
    fn claim(&self, side: Side, rest: &Rest, weather: &Weather) -> u32 {
        let both = weather.idle_permille > self.idle_permille;
        match side {
            Side::Device if both => {
                let half = rest.pieces.div_ceil(2).saturating_sub(rest.out);
                rest.free.min(half).min(self.fullness.room(rest, weather))
            }
            Side::Device => rest.free,
            Side::Cpu => u32::from(both),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranking::tests::{server, weather};
    use wattlock_core::Shape;

    const CPU: EngineId = EngineId(1);
    const DEVICE: EngineId = EngineId(2);

    fn shape(kind: Kind, bytes: usize) -> Shape {
        Shape { kind, bytes, class: Default::default(), messages: 1 }
    }

    fn busy(submitters: u16) -> Weather {
        Weather { submitters, files: submitters, ..weather() }
    }

    #[test]
    fn only_large_concurrent_writes_are_offloaded() {
        let mut rule = AcaSds::new(&server(), &Settings::default());
        let mut ask =
            |kind, bytes, submitters| rule.choose(&Ask::one(shape(kind, bytes)), &busy(submitters), 0).engine;
        assert_eq!(ask(Kind::Aes128CbcEncrypt, 4097, 2), DEVICE);
        assert_eq!(ask(Kind::Aes128CbcEncrypt, 4096, 2), CPU, "beta");
        assert_eq!(ask(Kind::Aes128CbcEncrypt, 4097, 1), CPU, "alpha");
        assert_eq!(ask(Kind::Aes128CbcDecrypt, 1 << 20, 2), CPU, "a read");
        assert_eq!(ask(Kind::Aes128GcmOpen, 1 << 20, 2), CPU, "a read");
        assert_eq!(ask(Kind::Aes256XtsDecrypt, 1 << 20, 2), CPU, "a read");
    }

    #[test]
    fn a_write_counts_with_all_its_chunks_and_files_in_operation_count_and_not_threads() {
        let mut rule = AcaSds::new(&server(), &Settings::default());
        let chunk = shape(Kind::Aes128CbcEncrypt, 4096);
        let mut ask = |count, bytes, (submitters, files)| {
            let ask = Ask { count, bytes, ..Ask::one(chunk) };
            rule.choose(&ask, &Weather { submitters, files, ..weather() }, 0).engine
        };
        assert_eq!(ask(2, 8192, (1, 2)), DEVICE, "two chunks of one write, on one thread");
        assert_eq!(ask(1, 8192, (1, 2)), DEVICE, "the last chunk of that write");
        assert_eq!(ask(1, 4096, (1, 2)), CPU, "a write of one chunk");
        assert_eq!(ask(2, 8192, (8, 1)), CPU, "one file, however many threads");
    }

    #[test]
    fn what_calibration_found_holds_for_that_device_and_kind_unless_settings_say_otherwise() {
        let on = |device, kind, from, settings: &Settings, (bytes, files): (usize, u16)| {
            let machine = Machine { turning: Some(Turning { device, from, feeders: 8 }), ..server() };
            let weather = Weather { submitters: 8, files, ..weather() };
            let write = Ask::one(shape(kind, bytes));
            let mut rule = AcaSds::new(&machine, settings);
            (0..8).filter(|_| rule.choose(&write, &weather, 0).engine == DEVICE).count()
        };
        let ask = |from, settings: &Settings, write| on(DEVICE, Kind::Aes256GcmSeal, from, settings, write);
        let (found, none) = (Some((32_768, 3)), Settings::default());
        assert_eq!(ask(found, &none, (32_768, 3)), 8, "every thread feeds");
        assert_eq!([(32_767, 3), (32_768, 2)].map(|one| ask(found, &none, one)), [0, 0]);
        assert_eq!(ask(None, &none, (1 << 30, u16::MAX)), 0, "it was never worth it");
        let set = |pairs: &[&str]| Settings::from_pairs(pairs.iter().copied()).unwrap();
        assert_eq!(ask(found, &set(&["aca-sds.alpha=1"]), (32_768, 2)), 8);
        assert_eq!(ask(found, &set(&["aca-sds.beta_bytes=4096"]), (4097, 3)), 8);
        assert_eq!(ask(found, &set(&["aca-sds.feeders=4"]), (32_768, 3)), 4);
        // Whoever sets one of them wants the device used.
        assert_eq!(ask(None, &set(&["aca-sds.alpha=1"]), (4097, 2)), 8);
        assert_eq!(ask(None, &set(&["aca-sds.beta_bytes=100"]), (101, 2)), 8);
        // Neither of another kind nor of another device was anything found.
        for other in [
            on(DEVICE, Kind::Aes128CbcEncrypt, None, &none, (4097, 2)),
            on(CPU, Kind::Aes256GcmSeal, None, &none, (4097, 2)),
        ] {
            assert_eq!(other, 4);
        }
    }

    #[test]
    fn the_cpu_takes_part_while_it_has_time_whatever_the_devices_fill() {
        let rule = AcaSds::new(&server(), &Settings::default());
        let claims = |idle_permille, (pieces, free, out): (u32, u32, u32), in_flight| {
            let mut weather = Weather { idle_permille, ..busy(4) };
            weather.engines[2].in_flight = in_flight;
            let kind = Kind::Aes256CbcEncrypt;
            let rest = Rest { device: DEVICE, kind, pieces, free, out, bytes: 4096 };
            [Side::Device, Side::Cpu].map(|side| rule.claim(side, &rest, &weather))
        };
        assert_eq!(claims(31, (16, 16, 0), 0), [8, 1], "half of a small write");
        assert_eq!(claims(31, (16, 7, 8), 8), [0, 1], "nothing more until it answers");
        assert_eq!(claims(31, (16, 7, 6), 6), [2, 1]);
        assert_eq!(claims(31, (256, 256, 0), 0), [64, 1], "no more than makes it fully used");
        assert_eq!(claims(31, (256, 100, 60), 64), [0, 1]);
        assert_eq!(claims(30, (16, 16, 0), 0), [16, 0], "no idle CPU: the device alone");
        assert_eq!(claims(30, (256, 100, 60), 64), [100, 0], "as its window has room");
    }

    #[test]
    fn of_eight_threads_four_feed() {
        let mut rule = AcaSds::new(&server(), &Settings::default());
        let count = |rule: &mut AcaSds, submitters| {
            let mut ask = |_: &u32| {
                rule.choose(&Ask::one(shape(Kind::Aes128CbcEncrypt, 65536)), &busy(submitters), 0).engine
            };
            (0..800).filter(|i| ask(i) == DEVICE).count()
        };
        assert_eq!(count(&mut rule, 8), 400);
        assert_eq!(count(&mut rule, 4), 800);
        assert_eq!(count(&mut rule, 32), 400, "more threads than cores share the cores");
        for thread in 0..8 {
            let settings = Settings { aca_sds_thread: Some(thread), ..Settings::default() };
            let mut rule = AcaSds::new(&server(), &settings);
            assert_eq!(count(&mut rule, 8), if thread < 4 { 800 } else { 0 });
        }
    }
}
