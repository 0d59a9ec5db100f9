//! `qweb`: Li et al., "QWEB: High-Performance Event-Driven Web Architecture With QAT Acceleration", 2020.
//!
//! Published: offload by kind, public-key operations, ciphers and the TLS key derivation alike; small requests stay
//! in software (256 bytes for compression, configurable). Published, *heuristic polling*: poll when the requests in
//! flight reach 48 (while any public-key operation is among them) or 24 (otherwise); at once when every active
//! connection is waiting (`in flight == alive - idle`); and, as a fail-safe, when a timer (example: 5 us) has seen no
//! poll during its interval.
//!
//! Ours: the size switch does not apply to public keys and key derivation, whose inputs are always short; one size
//! for all other kinds; "software" is the CPU's instructions where it has them, as in the authors' OpenSSL. The timer
//! runs from the last poll, and starts with the first request after an idle time, so that it never fires for the past.

use wattlock_core::{Family, Kind, KindSet, Nanos};

use crate::machine::Machine;
use crate::ranking::{DEVICES, Ranking, Sides};
use crate::settings::Settings;
use crate::weather::{Ask, Choice, Policy, Weather};

/// Offload by kind, and polling by what is in flight.
pub struct Qweb {
    software_bytes: usize,
    poll_asymmetric: u32,
    poll_symmetric: u32,
    timer_ns: Nanos,
    switched: KindSet,
    device: Ranking,
    cpu: Sides,
    last_poll: Nanos,
}

impl Qweb {
    /// The rule on this machine.
    pub fn new(machine: &Machine, settings: &Settings) -> Qweb {
        let long = |kind: &Kind| !kind.is_asymmetric() && kind.info().family != Family::Derive;
        Qweb {
            software_bytes: settings.qweb_software_bytes,
            poll_asymmetric: settings.qweb_poll_asymmetric,
            poll_symmetric: settings.qweb_poll_symmetric,
            timer_ns: settings.qweb_timer_ns,
            switched: Kind::ALL.iter().copied().filter(long).collect(),
            device: Ranking::any(machine, &DEVICES),
            cpu: Sides::new(machine, &[]),
            last_poll: 0,
        }
    }

    fn rules_fire(&self, weather: &Weather, in_flight: u32, now: Nanos) -> bool {
        let enough = if weather.asymmetric() > 0 { self.poll_asymmetric } else { self.poll_symmetric };
        let everyone_waits = weather.active > 0 && in_flight >= weather.active;
        in_flight >= enough || everyone_waits || now.saturating_sub(self.last_poll) >= self.timer_ns
    }
}

impl Policy for Qweb {
    fn name(&self) -> &'static str {
        "qweb"
    }

    fn choose(&mut self, ask: &Ask, weather: &Weather, now: Nanos) -> Choice {
        if !ask.may_wait {
            return self.cpu.answer(ask, weather);
        }
        let shape = &ask.shape;
        if shape.bytes < self.software_bytes && self.switched.contains(shape.kind) {
            return Choice::now(self.cpu.pick(shape.kind, weather));
        }
        if weather.in_flight() == 0 {
            self.last_poll = now;
        }
        Choice::now(self.device.pick(shape.kind, weather))
    }

    fn poll_due(&mut self, weather: &Weather, now: Nanos) -> bool {
        let in_flight = weather.in_flight();
        if in_flight == 0 || !self.rules_fire(weather, in_flight, now) {
            return false;
        }
        self.last_poll = now;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::EngineId;
    use crate::ranking::tests::{server, weather};
    use wattlock_core::Shape;

    fn qweb() -> Qweb {
        Qweb::new(&server(), &Settings::default())
    }

    fn flying(in_flight: u32, asymmetric: u32, active: u32) -> Weather {
        let mut weather = weather();
        (weather.engines[2].in_flight, weather.engines[2].asymmetric) = (in_flight, asymmetric);
        weather.active = active;
        weather
    }

    #[test]
    fn small_ciphers_stay_and_small_signatures_go() {
        let mut qweb = qweb();
        let mut ask = |kind, bytes| {
            qweb.choose(&Ask::one(Shape { kind, bytes, class: Default::default() }), &weather(), 0).engine
        };
        assert_eq!(ask(Kind::Aes128GcmSeal, 255), EngineId(1));
        assert_eq!(ask(Kind::Deflate, 256), EngineId(2));
        assert_eq!(ask(Kind::EcdsaP256Sign, 32), EngineId(2));
        assert_eq!(ask(Kind::Tls12PrfSha256, 77), EngineId(2));
    }

    #[test]
    fn polls_at_48_with_public_keys_and_at_24_without() {
        let at = |in_flight, asymmetric| qweb().poll_due(&flying(in_flight, asymmetric, 100), 0);
        assert!(!at(47, 1) && at(48, 1));
        assert!(!at(23, 0) && at(24, 0));
    }

    #[test]
    fn polls_when_every_active_connection_waits() {
        assert!(!qweb().poll_due(&flying(4, 0, 5), 0));
        assert!(qweb().poll_due(&flying(5, 0, 5), 0));
    }

    #[test]
    fn timer_runs_from_the_last_poll_and_not_while_idle() {
        let mut qweb = qweb();
        let shape = Shape { kind: Kind::Rsa2048Private, bytes: 256, class: Default::default() };
        assert!(!qweb.poll_due(&flying(0, 0, 5), 1_000_000), "nothing to poll for");
        qweb.choose(&Ask::one(shape), &flying(0, 0, 5), 1_000_000);
        assert!(!qweb.poll_due(&flying(1, 1, 5), 1_004_999));
        assert!(qweb.poll_due(&flying(1, 1, 5), 1_005_000));
        assert!(!qweb.poll_due(&flying(1, 1, 5), 1_009_999), "the poll restarted the timer");
        assert!(qweb.poll_due(&flying(1, 1, 1), 1_009_999), "everyone waits");
        assert!(!qweb.poll_due(&flying(1, 1, 5), 1_014_998), "and that poll restarted it too");
    }
}
