//! `qweb`: Li et al., "QWEB: High-Performance Event-Driven Web Architecture With QAT Acceleration", 2020.
//!
//! Published: offload by kind, public-key operations, ciphers and the TLS key derivation alike; small requests stay
//! in software (256 bytes for compression, configurable). Its *heuristic polling* says when a loop looks for answers:
//! [`GatherRule::heuristic`](crate::GatherRule::heuristic).
//!
//! Ours: the size switch does not apply to public keys and key derivation, whose inputs are always short; one size
//! for all other kinds; "software" is the CPU's instructions where it has them, as in the authors' OpenSSL.

use wattlock_core::{Family, Kind, KindSet, Nanos};

use crate::machine::Machine;
use crate::ranking::{DEVICES, Ranking, Sides};
use crate::settings::Settings;
use crate::split::Side;
use crate::weather::{Ask, Choice, Policy, Rest, Weather, alone};

/// Offload by kind.
pub struct Qweb {
    software_bytes: usize,
    switched: KindSet,
    device: Ranking,
    cpu: Sides,
}

impl Qweb {
    /// The rule on this machine.
    pub fn new(machine: &Machine, settings: &Settings) -> Qweb {
        let long = |kind: &Kind| !kind.is_asymmetric() && kind.info().family != Family::Derive;
        Qweb {
            software_bytes: settings.qweb_software_bytes,
            switched: Kind::ALL.iter().copied().filter(long).collect(),
            device: Ranking::any(machine, &DEVICES),
            cpu: Sides::new(machine, &[]),
        }
    }
}

impl Policy for Qweb {
    fn name(&self) -> &'static str {
        "qweb"
    }

    fn choose(&mut self, ask: &Ask, weather: &Weather, _now: Nanos) -> Choice {
        if !ask.may_wait {
            return self.cpu.answer(ask, weather);
        }
        let kind = ask.shape.kind;
        if ask.bytes < self.software_bytes && self.switched.contains(kind) {
            return Choice::all(self.cpu.pick(kind, weather), ask);
        }
        Choice::all(self.device.pick(kind, weather), ask)
    }

    /// The device alone.
    fn claim(&self, side: Side, rest: &Rest, _: &Weather) -> u32 {
        alone(side, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::EngineId;
    use crate::ranking::tests::{server, weather};
    use wattlock_core::Shape;

    #[test]
    fn small_ciphers_stay_and_small_signatures_go() {
        let mut qweb = Qweb::new(&server(), &Settings::default());
        let mut ask = |kind, bytes| {
            qweb.choose(
                &Ask::one(Shape { kind, bytes, class: Default::default(), messages: 1 }),
                &weather(),
                0,
            )
            .engine
        };
        assert_eq!(ask(Kind::Aes128GcmSeal, 255), EngineId(1));
        assert_eq!(ask(Kind::Deflate, 256), EngineId(2));
        assert_eq!(ask(Kind::EcdsaP256Sign, 32), EngineId(2));
        assert_eq!(ask(Kind::Tls12PrfSha256, 77), EngineId(2));
    }
}
