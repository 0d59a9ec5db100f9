//! What a loaded provider offers: groups of algorithms, of which only those are on that Wattlock does faster here, or
//! that the operator asked for.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::ptr::null;
use std::sync::Arc;

use wattlock::Runtime;
use wattlock::core::{Engine, Group, Kind, KindSet};
use wattlock_cpu::detect::Cpu;

use crate::advantage::{self, Instructions, Version};
use crate::settings::{GROUPS, Settings};
use crate::sys::{OSSL_ALGORITHM, OSSL_DISPATCH, id};

/// What every algorithm says of itself. Encoders and decoders say more.
pub const PROPERTIES: &CStr = c"provider=wattlock";

/// The group of keys as objects, which is on if any group of ciphers is.
pub const SKEY: &str = "skey";

/// Kinds that several records of a combined cipher are made of.
pub const COMBINED: [Kind; 4] =
    [Kind::HmacSha1, Kind::HmacSha256, Kind::Aes128CbcEncrypt, Kind::Aes256CbcEncrypt];

/// Kinds that keys of ML-KEM-768 and of the hybrid need besides its own: a hash of the public half, and X25519.
const OF_ML_KEM: [Kind; 3] = [Kind::Sha3_256, Kind::X25519Generate, Kind::X25519Derive];

/// One algorithm as OpenSSL sees it.
#[derive(Clone, Copy)]
pub struct Algorithm {
    /// Group that turns it on.
    pub group: &'static str,
    /// `OP_...`
    pub operation: c_int,
    /// Names, joined by colons.
    pub names: &'static CStr,
    /// What a property query finds it by.
    pub properties: &'static CStr,
    /// Functions.
    pub functions: *const OSSL_DISPATCH,
    /// Words for people.
    pub description: &'static CStr,
}

// SAFETY: points to constants of this library.
unsafe impl Sync for Algorithm {}
// SAFETY: as above.
unsafe impl Send for Algorithm {}

/// The tables of one loaded provider.
pub struct Offer {
    on: Vec<&'static str>,
    off: Vec<(&'static str, String)>,
    tables: Vec<(c_int, Vec<OSSL_ALGORITHM>)>,
}

// SAFETY: pointers to constants of this library.
unsafe impl Send for Offer {}
// SAFETY: as above.
unsafe impl Sync for Offer {}

impl Offer {
    /// What these settings and engines make of `everything`, for an OpenSSL of this version.
    pub(crate) fn new(
        everything: &[&'static [Algorithm]],
        settings: &Settings,
        engines: &[Arc<dyn Engine>],
        openssl: Version,
    ) -> Offer {
        let cpu = Instructions::of(&Cpu::detect());
        let (mut on, mut off) = (Vec::new(), Vec::new());
        for group in GROUPS.iter().copied() {
            let verdict = match &settings.algorithms {
                Some(wanted) if wanted.iter().any(|name| name == group) => Ok(()),
                Some(_) => Err("not asked for".to_owned()),
                None => advantage::of(group, engines, openssl, &cpu),
            };
            match verdict {
                Ok(()) => on.push(group),
                Err(why) => off.push((group, why)),
            }
        }
        let mut tables: Vec<(c_int, Vec<OSSL_ALGORITHM>)> = Vec::new();
        let everything = || everything.iter().copied().flatten();
        let mut all_ciphers = everything().filter(|algorithm| algorithm.operation == id::OP_CIPHER);
        let ciphers = all_ciphers.any(|cipher| on.contains(&cipher.group));
        let is_on = |group| if group == SKEY { ciphers } else { on.contains(&group) };
        let is_codec = |operation| matches!(operation, id::OP_ENCODER | id::OP_DECODER);
        let own_codecs = advantage::needs_codecs(openssl);
        let is_on = |one: &&Algorithm| is_on(one.group) && (own_codecs || !is_codec(one.operation));
        for algorithm in everything().filter(is_on) {
            let entry = OSSL_ALGORITHM {
                names: algorithm.names.as_ptr(),
                properties: algorithm.properties.as_ptr(),
                implementation: algorithm.functions,
                description: algorithm.description.as_ptr(),
            };
            match tables.iter_mut().find(|(operation, _)| *operation == algorithm.operation) {
                Some((_, table)) => table.push(entry),
                None => tables.push((algorithm.operation, vec![entry])),
            }
        }
        let end =
            OSSL_ALGORITHM { names: null(), properties: null(), implementation: null(), description: null() };
        tables.iter_mut().for_each(|(_, table)| table.push(end));
        Offer { on, off, tables }
    }

    /// The table of an operation; null if there is nothing of it.
    pub fn algorithms(&self, operation: c_int) -> *const OSSL_ALGORITHM {
        self.tables.iter().find(|(one, _)| *one == operation).map_or(null(), |(_, table)| table.as_ptr())
    }

    /// Whether a group of algorithms is on.
    pub fn has(&self, group: &str) -> bool {
        self.on.contains(&group)
    }

    /// Kinds of request that what is offered can lead to.
    pub fn kinds(&self) -> KindSet {
        Kind::ALL.iter().copied().filter(|kind| self.on.iter().any(|group| belongs(*kind, group))).collect()
    }

    /// What is on, what is not, and why; for people.
    pub fn describe(&self, runtime: &Runtime) -> String {
        let engines: Vec<&str> = runtime.engines().iter().map(|engine| engine.description().name).collect();
        let mut text = format!(
            "policy {}; engines {}; offers {}",
            runtime.policy(),
            engines.join(", "),
            self.on.join(", ")
        );
        for (group, why) in &self.off {
            text.push_str(&format!("; not {group}: {why}"));
        }
        text
    }
}

fn belongs(kind: Kind, group: &str) -> bool {
    let of = kind.info().group;
    match group {
        "gcm" => of == Group::Gcm,
        "cbc" => of == Group::Cbc,
        "cbc-hmac" => COMBINED.contains(&kind),
        "ctr" => of == Group::Ctr,
        "xts" => of == Group::Xts,
        "rsa" => of == Group::Rsa,
        "ec" => matches!(of, Group::P256 | Group::P384),
        "x25519" => of == Group::X25519,
        "ml-kem" => of == Group::MlKem || OF_ML_KEM.contains(&kind),
        "kdf" => advantage::DERIVATIONS.contains(&kind),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_leads_to_kinds() {
        for group in GROUPS {
            assert!(Kind::ALL.iter().any(|kind| belongs(*kind, group)), "{group}");
        }
    }

    /// All that a self-test has to try.
    #[test]
    fn a_hybrid_leads_to_both_halves_and_the_hash() {
        let kinds: KindSet = Kind::ALL.iter().copied().filter(|kind| belongs(*kind, "ml-kem")).collect();
        let own = [Kind::MlKem768Generate, Kind::MlKem768Encapsulate, Kind::MlKem768Decapsulate];
        assert!(own.iter().chain(&OF_ML_KEM).all(|kind| kinds.contains(*kind)));
        assert!(!OF_ML_KEM.iter().any(|kind| wattlock::core::known_answers(*kind).is_empty()));
    }
}
