//! What this CPU is to Wattlock, in words for a person: its class among those that docs/measurements/ compares, what
//! handshakes gain here and what files are sealed with. It says; engines detect for themselves.

use std::fs::File;
use std::io::Read;

use wattlock::Runtime;
use wattlock_core::{EngineClass, Group, KindSet};
use wattlock_cpu::detect::Cpu;

/// Groups of public-key operations as TLS names them.
const GROUPS: [(&str, Group); 5] = [
    ("RSA", Group::Rsa),
    ("X25519", Group::X25519),
    ("ML-KEM-768", Group::MlKem),
    ("P-256", Group::P256),
    ("P-384", Group::P384),
];

/// A CPU, summed up.
#[derive(Debug, serde::Serialize)]
pub struct Summary {
    /// Its class: `AVX-512 of Intel`, `AVX-512 of AMD`, `AVX2` or neither.
    pub class: String,
    /// Whether batches of eight are done in lanes of AVX-512 IFMA.
    pub ifma_lanes: bool,
    /// What is done eight at a time, in whichever lanes.
    pub batched: Vec<&'static str>,
    /// What files are sealed and opened with.
    pub files: String,
}

impl Summary {
    /// This machine's, with these engines.
    pub fn here(runtime: &Runtime) -> Summary {
        let lanes = runtime.engines().iter().map(|engine| engine.description());
        let kinds = lanes.filter(|one| one.class == EngineClass::Lanes).map(|one| one.inline).next();
        Summary::of(&Cpu::detect(), &vendor(), kinds.unwrap_or(KindSet::EMPTY))
    }

    fn of(cpu: &Cpu, vendor: &str, lanes: KindSet) -> Summary {
        let class = match (cpu.ifma512.is_some(), cpu.fma256.is_some()) {
            (true, _) => format!("AVX-512{vendor}"),
            (false, true) => "AVX2".to_owned(),
            (false, false) => "neither AVX-512 nor AVX2".to_owned(),
        };
        let done = |group| lanes.iter().any(|kind| kind.info().group == group);
        let batched = GROUPS.iter().filter(|(_, group)| done(*group)).map(|(name, _)| *name).collect();
        let aes = match cpu {
            Cpu { vaes512: Some(_), .. } => "512-bit VAES",
            Cpu { vaes256: Some(_), .. } => "256-bit VAES",
            _ => "AWS-LC",
        };
        let chacha = if cpu.ifma512.is_some() { "AVX-512" } else { "AWS-LC" };
        Summary {
            class,
            ifma_lanes: cpu.ifma512.is_some() && !lanes.is_empty(),
            batched,
            files: format!("AES-256-GCM by {aes}, age's ChaCha20-Poly1305 by {chacha}"),
        }
    }

    /// What a server's handshakes have of it.
    pub fn handshakes(&self) -> String {
        let batched = self.batched.join(", ");
        match (self.ifma_lanes, self.batched.is_empty()) {
            (true, _) => format!("batches of 8 in AVX-512 IFMA lanes: yes on this CPU: {batched}"),
            (false, false) => {
                format!("batches of 8 in AVX-512 IFMA lanes: no on this CPU; in AVX2 lanes: {batched}")
            }
            (false, true) => {
                "batches of 8 in AVX-512 IFMA lanes: no on this CPU, nor in AVX2 lanes; each operation alone"
                    .to_owned()
            }
        }
    }
}

/// Whose CPU it is, as part of a class; nothing if it is neither Intel's nor AMD's. The widest instructions cost
/// differently on the two, which is all that this is asked for.
fn vendor() -> String {
    let mut info = String::new();
    let _ = File::open("/proc/cpuinfo").and_then(|file| file.take(1024).read_to_string(&mut info));
    let whose = [("GenuineIntel", " of Intel"), ("AuthenticAMD", " of AMD")];
    whose.iter().find(|(id, _)| info.contains(id)).map_or("", |(_, words)| words).to_owned()
}

#[cfg(test)]
mod tests {
    use wattlock_core::Kind;

    use super::*;

    #[test]
    fn every_class_of_cpu_is_told_what_its_handshakes_gain() {
        let best = Cpu::detect();
        let lanes = KindSet::of(&[Kind::Rsa2048Private, Kind::EcdsaP256Sign]);
        if best.ifma512.is_some() {
            let summary = Summary::of(&best, " of AMD", lanes);
            assert_eq!(summary.class, "AVX-512 of AMD");
            assert!(summary.handshakes().ends_with("yes on this CPU: RSA, P-256"), "{summary:?}");
        }
        if best.fma256.is_some() {
            let narrow = Cpu { ifma512: None, vaes512: None, avx512: None, ..best };
            let summary = Summary::of(&narrow, " of Intel", KindSet::of(&[Kind::Rsa2048Private]));
            assert_eq!(summary.class, "AVX2");
            assert!(
                summary.handshakes().ends_with("no on this CPU; in AVX2 lanes: RSA") && !summary.ifma_lanes,
                "{summary:?}"
            );
        }
        let plain = Summary::of(&Cpu::PLAIN, "", KindSet::EMPTY);
        assert_eq!(plain.class, "neither AVX-512 nor AVX2");
        assert!(
            plain.handshakes().ends_with("each operation alone")
                && plain.files.contains("AES-256-GCM by AWS-LC")
        );
    }

    #[test]
    fn every_operation_that_lanes_do_belongs_to_a_group() {
        for kind in Kind::ALL.iter().filter(|kind| kind.is_asymmetric()) {
            let known = GROUPS.iter().any(|(_, group)| kind.info().group == *group);
            assert!(known, "{}", kind.name());
        }
    }
}
