//! Machines for one deciding thread (`sim::thread`): those that stand for what `adaptive` meets, cards that
//! `wattlock-emul` emulates, and random ones. The tests of `wattlock-policy` hold `adaptive` to its bounds on them, and
//! [`crate::ablate`] looks there for what a rule is worth.

use wattlock_core::{Kind, LatencyClass};
use wattlock_emul::Model as Card;

use crate::sim::Random;
use crate::sim::thread::{Load, Model};

/// Sizes of a mixed load.
const MIXED: [usize; 6] = [64, 1024, 8 << 10, 16 << 10, 128 << 10, 1 << 20];

/// Engines, and what is asked of them.
#[derive(Debug, Clone)]
pub struct Case {
    /// What it stands for.
    pub name: String,
    /// Engines, in the order of their ids.
    pub models: Vec<Model>,
    /// Which operation.
    pub kind: Kind,
    /// Input bytes.
    pub sizes: Vec<usize>,
    /// Clients, each with one request at a time; 0 where a case is for any number.
    pub clients: u32,
}

impl Case {
    /// Interactive requests by so many clients, with a door that says how many there are.
    pub fn load(&self, arrivals: Result<u32, f64>, requests: usize) -> Load {
        Load {
            kind: self.kind,
            class: LatencyClass::Interactive,
            sizes: self.sizes.clone(),
            arrivals,
            says_active: true,
            requests,
        }
    }
}

/// What `adaptive` is expected to meet.
pub fn typical() -> Vec<Case> {
    let case = |name: &str, models: &[Model], kind, sizes: &[usize]| Case {
        name: name.to_owned(),
        models: models.to_vec(),
        kind,
        sizes: sizes.to_vec(),
        clients: 0,
    };
    let (aes, rsa) = (Kind::Aes256CbcEncrypt, Kind::Rsa2048Private);
    let (cpu, lanes, device) = (Model::cpu, Model::lanes, Model::device);
    vec![
        case("device wins for large requests", &[cpu(100.0, 0.3), device(20_000.0, 0.05, 4)], aes, &MIXED),
        case("device wins under concurrency", &[cpu(30_000.0, 0.0), device(100_000.0, 0.0, 12)], rsa, &[256]),
        case(
            "device with slow engines, many of them",
            &[cpu(30_000.0, 0.0), device(1_000_000.0, 0.0, 60)],
            rsa,
            &[256],
        ),
        case("device always wins", &[cpu(30_000.0, 0.0), device(8_000.0, 0.0, 8)], rsa, &[256]),
        case("device never wins", &[cpu(100.0, 0.05), device(50_000.0, 0.3, 1)], aes, &[64, 1024, 4096]),
        case("lanes", &[cpu(100_000.0, 0.0), lanes(300_000.0)], rsa, &[256]),
        case("lanes that barely pay", &[cpu(100_000.0, 0.0), lanes(700_000.0)], rsa, &[256]),
        case(
            "lanes and device",
            &[cpu(100_000.0, 0.0), lanes(300_000.0), device(400_000.0, 0.0, 10)],
            rsa,
            &[256],
        ),
    ]
}

/// Both emulated cards beside one core with OpenSSL 3.5 (docs/design/architecture.md), each kind at sizes
/// where the card is of use to some and not to others.
pub fn emulated() -> Vec<Case> {
    let (dh8970, soc) = (Card::qat_dh8970(), Card::eeca_soc());
    let kib = 1 << 10;
    type Plan<'a> = (&'a Card, Kind, (f64, f64), &'a [usize]);
    let plans: [Plan<'_>; 10] = [
        (&dh8970, Kind::Rsa2048Private, (244_000.0, 0.0), &[256]),
        (&dh8970, Kind::Rsa4096Private, (1_470_000.0, 0.0), &[512]),
        (&dh8970, Kind::EcdsaP256Sign, (15_400.0, 0.0), &[32]),
        (&dh8970, Kind::P256Derive, (35_700.0, 0.0), &[65]),
        (&dh8970, Kind::EcdsaP384Sign, (670_000.0, 0.0), &[48]),
        (&dh8970, Kind::Aes128CbcEncrypt, (100.0, 0.7), &[64, 1024, 16 * kib]),
        (&dh8970, Kind::Sha256, (150.0, 0.6), &[64, 1024, 64 * kib]),
        (&dh8970, Kind::Deflate, (1000.0, 4.0), &[64 * kib]),
        (&soc, Kind::Aes256CbcEncrypt, (100.0, 0.95), &[16 * kib]),
        (&soc, Kind::Aes256CbcEncrypt, (100.0, 0.95), &[1024, 4 * kib, 64 * kib]),
    ];
    plans
        .iter()
        .filter_map(|(card, kind, (setup_ns, per_byte_ns), sizes)| {
            let device = card_model(card, *kind)?;
            Some(Case {
                name: format!("{} {} {sizes:?} B", card.name, kind.name()),
                models: vec![Model::cpu(*setup_ns, *per_byte_ns), device],
                kind: *kind,
                sizes: sizes.to_vec(),
                clients: 0,
            })
        })
        .collect()
}

/// A card's times of a kind as a line, and its servers.
fn card_model(card: &Card, kind: Kind) -> Option<Model> {
    let pool = card.pools.iter().find(|pool| pool.tables.iter().any(|table| table.kinds.contains(kind)))?;
    let (low, high) = (card.service_ns(kind, 0)? as f64, card.service_ns(kind, 1 << 16)? as f64);
    Some(Model::device(low, (high - low) / f64::from(1 << 16), pool.servers as usize))
}

/// Seeds of [`random`]: three that were looked at while `adaptive` was made, then others.
pub fn seeds(more: u64) -> Vec<u64> {
    [2024, 4, 7].into_iter().chain((0..7 + more).map(|n| 1000 + n)).collect()
}

/// So many random machines, from one seed: any service times, servers, widths and sizes.
pub fn random(seed: u64, machines: u32) -> Vec<Case> {
    let mut random = Random::new(seed);
    let mut about = |low: f64, high: f64| low * (high / low).powf(random.unit());
    let one = |number: u32| {
        let cpu = Model::cpu(about(200.0, 200_000.0), about(0.01, 1.0));
        let device = Model::device(about(5_000.0, 500_000.0), about(0.01, 1.0), about(1.0, 40.0) as usize);
        let lanes = Model::lanes(cpu.setup_ns * about(1.5, 9.0));
        let clients = about(1.0, 60.0) as u32;
        let size = about(64.0, 1e6) as usize;
        let flat = Model { per_byte_ns: 0.0, ..cpu };
        let (models, sizes) = match number % 4 {
            0 => (vec![cpu, device], vec![size]),
            1 => (vec![cpu, device], MIXED.to_vec()),
            2 => (vec![flat, lanes], vec![256]),
            _ => (vec![flat, lanes, device], vec![256]),
        };
        Case { name: format!("seed {seed} machine {number}"), models, kind: Kind::Aes128Ctr, sizes, clients }
    };
    (0..machines).map(one).collect()
}
