//! Where Wattlock is faster than the OpenSSL that loads it, group by group: what is offered unless the operator says
//! otherwise.
//!
//! Two things decide: what this CPU has, which is where our own speed comes from, and what the OpenSSL at hand makes of
//! the same instructions. What it makes of them grows with its version ([`THEIRS`]).

use std::fmt;
use std::sync::Arc;

use wattlock::core::{Engine, Kind, KindSet};
use wattlock_cpu::detect::Cpu;

/// A release of OpenSSL. Patch levels bring no faster code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// 3 for all that load providers, so far.
    pub major: u32,
    /// What brings new code.
    pub minor: u32,
}

impl Version {
    /// The first with providers: what one that says nothing of use is taken for.
    pub const FIRST: Version = Version { major: 3, minor: 0 };

    /// Reads `3.5.7` and the like.
    pub fn parse(text: &str) -> Option<Version> {
        let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().ok());
        Some(Version { major: numbers.next()??, minor: numbers.next()?? })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Instructions that decide which of two ciphers is faster.
#[derive(Debug, Clone, Copy, Default)]
pub struct Instructions {
    /// AES and carry-less multiplication of 256 bits or more: with them our AES-GCM, -CTR and -XTS are faster.
    pub paired_aes: bool,
    /// 512-bit AES: with less, decryption with AES-CBC is slower up to 1 KiB.
    pub wide_aes: bool,
    /// 512-bit AES as OpenSSL's AES-XTS needs it.
    pub wide_xts: bool,
    /// Multiply-add on 52-bit integers in 256-bit registers and no wider: OpenSSL's RSA has it, none of our engines.
    pub narrow_ifma: bool,
    /// 256-bit integers: with them our ML-KEM is faster, one alone and several.
    pub vectors: bool,
}

impl Instructions {
    /// What of them this CPU has.
    pub fn of(cpu: &Cpu) -> Instructions {
        Instructions {
            paired_aes: cpu.vaes256.is_some(),
            wide_aes: cpu.vaes512.is_some(),
            wide_xts: cpu.beside.vbmi2,
            narrow_ifma: cpu.beside.ifma256 && cpu.ifma512.is_none(),
            vectors: cpu.avx2.is_some(),
        }
    }
}

/// Kinds that derivations are made of.
pub const DERIVATIONS: &[Kind] = &[
    Kind::Tls12PrfSha256,
    Kind::Tls12PrfSha384,
    Kind::HkdfSha256,
    Kind::HkdfSha384,
    Kind::HkdfSha512,
    Kind::HkdfExpandSha256,
    Kind::HkdfExpandSha384,
    Kind::HkdfExpandSha512,
    Kind::HmacSha1,
    Kind::HmacSha256,
    Kind::HmacSha384,
    Kind::HmacSha512,
];

/// A group that OpenSSL does faster than we do, since a version and with certain instructions.
struct Theirs {
    group: &'static str,
    since: Version,
    here: fn(&Instructions) -> bool,
    with: &'static str,
}

/// What OpenSSL is faster at. The instructions are those that its functions `..._eligible` ask for.
///
/// Not here, because with the same instructions we are not slower: its AES-GCM (`vaes`, `vpclmulqdq` and 512-bit
/// registers) and its RSA-3072 and -4096 (`avx512ifma`), both since 3.1.
const THEIRS: [Theirs; 2] = [
    // Measured on Intel Granite Rapids at 16 KiB: 0.94 of OpenSSL 3.5.7, 2.12 times 3.0 in the same hour.
    Theirs {
        group: "xts",
        since: Version { major: 3, minor: 5 },
        here: |cpu| cpu.wide_xts,
        with: "512-bit AES",
    },
    // Not measured by us: its list of changes says that this made its private operations 1.8 to 2.2 times as fast on
    // Intel Sierra Forest. Without it they are as fast as ours.
    Theirs {
        group: "rsa",
        since: Version { major: 3, minor: 5 },
        here: |cpu| cpu.narrow_ifma,
        with: "256-bit multiplication of 52-bit integers",
    },
];

/// The first OpenSSL that has ML-KEM and X25519MLKEM768. Before it they are there by us or not at all.
const ML_KEM: Version = Version { major: 3, minor: 5 };

/// Whether an OpenSSL does not read and write keys of our types itself.
pub fn needs_codecs(openssl: Version) -> bool {
    openssl < ML_KEM
}

/// Whether a group is worth offering on this machine to this OpenSSL.
///
/// # Errors
/// Why it is not, for people.
pub fn of(
    group: &str,
    engines: &[Arc<dyn Engine>],
    openssl: Version,
    cpu: &Instructions,
) -> Result<(), String> {
    let theirs = THEIRS.iter().find(|one| one.group == group && openssl >= one.since && (one.here)(cpu));
    match group {
        "gcm" | "ctr" | "xts" if !cpu.paired_aes => Err("this CPU has no 256-bit AES".to_owned()),
        "cbc" | "cbc-hmac" if !cpu.wide_aes => Err("this CPU has no 512-bit AES".to_owned()),
        // Measured on Cascade Lake against OpenSSL 3.5.9, single requests: encapsulation with ML-KEM-768 1.7 times, without
        // AVX2 0.84 times; X25519MLKEM768 2.0 and 1.5 times.
        "ml-kem" if !cpu.vectors && openssl >= ML_KEM => Err("this CPU has no 256-bit integers".to_owned()),
        "kdf" if !derives(engines) => Err("no engine here derives keys inside the call".to_owned()),
        _ => theirs.map_or(Ok(()), |one| Err(format!("OpenSSL {openssl} does it faster with {}", one.with))),
    }
}

fn derives(engines: &[Arc<dyn Engine>]) -> bool {
    let inline = engines.iter().map(|engine| engine.description().inline);
    derives_all(inline.fold(KindSet::EMPTY, KindSet::union))
}

/// Whether what is done inside the call is all that derivations need.
fn derives_all(inline: KindSet) -> bool {
    DERIVATIONS.iter().all(|kind| inline.contains(*kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDE: Instructions =
        Instructions { paired_aes: true, wide_aes: true, wide_xts: true, narrow_ifma: false, vectors: true };

    fn version(text: &str) -> Version {
        Version::parse(text).unwrap()
    }

    #[test]
    fn derivations_are_offered_only_where_an_engine_does_them_all() {
        let engines = wattlock::own_engines();
        assert_eq!(of("kdf", &engines, Version::FIRST, &WIDE), Ok(()));
        let queued = |engine: &Arc<dyn Engine>| !derives_all(engine.description().inline);
        let lacking: Vec<_> = engines.into_iter().filter(queued).collect();
        assert!(of("kdf", &lacking, Version::FIRST, &WIDE).is_err());
    }

    #[test]
    fn xts_is_left_to_an_openssl_that_is_faster_at_it() {
        let of = |openssl, cpu| of("xts", &[], version(openssl), cpu);
        assert_eq!(of("3.4.1", &WIDE), Ok(()));
        for later in ["3.5.0", "3.5.7", "3.10.0", "4.0.0"] {
            let why = of(later, &WIDE).unwrap_err();
            assert!(why.starts_with(&format!("OpenSSL {} does it faster", version(later))), "{why}");
        }
        // One that has our instructions and not all of theirs.
        assert_eq!(of("3.5.7", &Instructions { wide_xts: false, ..WIDE }), Ok(()));
        assert!(of("3.0.0", &Instructions::default()).unwrap_err().contains("this CPU"));
    }

    #[test]
    fn cbc_needs_twice_the_width_of_the_others() {
        let of = |group, cpu| of(group, &[], Version::FIRST, cpu);
        let none = Instructions::default();
        let paired = Instructions { paired_aes: true, ..none };
        for group in ["gcm", "ctr", "xts"] {
            assert_eq!(of(group, &paired), Ok(()), "{group}");
            assert!(of(group, &none).is_err(), "{group}");
        }
        for group in ["cbc", "cbc-hmac"] {
            assert_eq!((of(group, &paired).is_err(), of(group, &WIDE)), (true, Ok(())), "{group}");
        }
    }

    #[test]
    fn rsa_is_left_to_an_openssl_that_alone_can_use_the_multiplier() {
        let of = |openssl, narrow_ifma| {
            of("rsa", &[], version(openssl), &Instructions { narrow_ifma, ..Instructions::default() })
        };
        assert_eq!((of("3.4.1", true), of("3.5.0", false)), (Ok(()), Ok(())));
        assert!(of("3.5.0", true).unwrap_err().contains("OpenSSL 3.5 does it faster"));
    }

    /// Without its instructions ML-KEM is offered to an OpenSSL that has none.
    #[test]
    fn ml_kem_is_left_to_an_openssl_that_has_it_if_the_cpu_has_no_vectors() {
        let of = |openssl, vectors| {
            let cpu = Instructions { vectors, ..Instructions::default() };
            of("ml-kem", &[], version(openssl), &cpu).is_ok()
        };
        assert!(of("3.0.0", false) && of("3.4.1", false) && of("3.5.0", true) && !of("3.5.0", false));
        assert!(needs_codecs(version("3.4.1")) && !needs_codecs(version("3.5.0")));
    }

    #[test]
    fn versions_are_read_as_openssl_writes_them() {
        assert_eq!(version("3.0.19"), Version::FIRST);
        assert_eq!(version("3.5.7"), Version { major: 3, minor: 5 });
        assert_eq!(version("3.6.0-dev"), Version { major: 3, minor: 6 });
        assert_eq!(version("3.10.2").to_string(), "3.10");
        assert!(version("3.10.0") > version("3.9.9") && version("4.0.0") > version("3.10.0"));
        for nonsense in ["", "3", "three.five", "3.x"] {
            assert_eq!(Version::parse(nonsense), None, "{nonsense}");
        }
    }
}
