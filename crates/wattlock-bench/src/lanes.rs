//! What eight handshakes side by side are worth: full batches of every public-key operation in lanes, with the system's
//! OpenSSL beside them in the same run.
//!
//! A row's columns are one function each: [`bare`] for the kernel, [`Libcrypto::rate`] for OpenSSL. Both count
//! processor time on one core, in short turns, and each turn of ours is held against the one of OpenSSL's beside it.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use wattlock_core::{Engine, Kind, OwnedRequest, known_answers};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::lanes::{Isa, Item, Lanes, WIDTH, multiplications_per_second};
use wattlock_shell::text;

use super::libcrypto::Libcrypto;
use super::machine_line;
use super::pair::{self, Better, Gain, processor_seconds};
use super::record::{By, Record, Row};
use super::through::{Through, through};

/// What to measure.
#[derive(Debug, Args)]
pub struct Settings {
    /// Only operations whose name contains this; may be repeated
    #[arg(long = "operation")]
    operations: Vec<String>,
    /// Rounds of each side, in turn, of some hundredths of a second each
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    turns: u32,
    /// Leave out the second table: what the runtime leaves of the kernel's rate
    #[arg(long)]
    no_runtime: bool,
    /// Leave OpenSSL out
    #[arg(long)]
    no_openssl: bool,
}

impl Settings {
    /// Whether to measure it: a user that asked for operations means these, and narrower lanes do fewer.
    fn wants(&self, operation: &Operation, lanes: &Lanes) -> bool {
        operation.kinds.iter().all(|kind| lanes.description().inline.contains(*kind))
            && (self.operations.is_empty()
                || self.operations.iter().any(|word| operation.name.contains(word.as_str())))
    }
}

/// Processor time of one side's turn, in seconds.
const TURN: f64 = 0.05;

/// One operation: a pass of each of its kinds, and OpenSSL's name for it (`libcrypto.c`). The NIST curves' shared
/// secrets are taken by its lowest calls, since the others add much around them.
struct Operation {
    name: &'static str,
    kinds: &'static [Kind],
    peer: &'static str,
}

#[rustfmt::skip]
const OPERATIONS: &[Operation] = &[
    Operation { name: "rsa-2048-private", kinds: &[Kind::Rsa2048Private], peer: "rsa 2048" },
    Operation { name: "rsa-3072-private", kinds: &[Kind::Rsa3072Private], peer: "rsa 3072" },
    Operation { name: "rsa-4096-private", kinds: &[Kind::Rsa4096Private], peer: "rsa 4096" },
    Operation { name: "ecdsa-p256-sign", kinds: &[Kind::EcdsaP256Sign], peer: "ecdsa p256" },
    Operation { name: "p256-derive", kinds: &[Kind::P256Derive], peer: "derive p256" },
    Operation { name: "p256-generate-derive", kinds: &[Kind::P256Generate, Kind::P256Derive], peer: "both p256" },
    Operation { name: "x25519-derive", kinds: &[Kind::X25519Derive], peer: "ecdh x25519" },
    Operation { name: "x25519-generate-derive", kinds: &[Kind::X25519Generate, Kind::X25519Derive], peer: "both x25519" },
    Operation { name: "ecdsa-p384-sign", kinds: &[Kind::EcdsaP384Sign], peer: "ecdsa p384" },
    Operation { name: "p384-derive", kinds: &[Kind::P384Derive], peer: "ecdh p384" },
    Operation { name: "p384-generate-derive", kinds: &[Kind::P384Generate, Kind::P384Derive], peer: "both p384" },
    // OpenSSL has it since 3.5, and the measuring library calls none of it: there is no peer yet.
    Operation { name: "ml-kem-768-generate", kinds: &[Kind::MlKem768Generate], peer: "generate ml-kem-768" },
    Operation { name: "ml-kem-768-encapsulate", kinds: &[Kind::MlKem768Encapsulate], peer: "encapsulate ml-kem-768" },
    Operation { name: "ml-kem-768-decapsulate", kinds: &[Kind::MlKem768Decapsulate], peer: "decapsulate ml-kem-768" },
];

/// Runs the benchmark.
pub fn run(settings: &Settings, mut record: Record) -> Result<()> {
    let isa = Isa::best(&Cpu::detect())
        .context("no lanes here: this CPU has neither AVX-512 IFMA nor AVX2 with FMA")?;
    let lanes = Lanes::new(isa);
    let mut peer = Libcrypto::beside(settings.no_openssl, &mut record);
    let (registers, loads) = multiplications_per_second(isa, Duration::from_millis(200));
    for (row, rate) in [("limit-registers", registers), ("limit-loads", loads)] {
        let row = Row::alone("lanes", row, "multiplications/s", By::Cpu, rate, 1);
        record.add(row.param("lanes", isa.name()));
    }
    if record.shows() {
        say!("{}", machine_line());
        say!(
            "One core, operations a second of processor time, full batches of {WIDTH}; {} turns of each side.",
            settings.turns
        );
        let million = |rate: f64| rate / 1e6;
        say!(
            "{}; {}, million a second: {:.0} from registers, {:.0} with a load each.",
            isa.name(),
            isa.multiplications(),
            million(registers),
            million(loads)
        );
    }
    let mut rows = Vec::new();
    for operation in OPERATIONS.iter().filter(|operation| settings.wants(operation, &lanes)) {
        let (ours, gain) = in_turn(&lanes, peer.as_mut(), operation, settings.turns)?;
        let against = (gain, peer.as_ref().map(Libcrypto::name).unwrap_or_default());
        let alone = (ours, settings.turns as usize);
        let row = Row::beside("lanes", operation.name, "operations/s", By::Cpu, against, alone);
        record.add(row.param("lanes", isa.name()));
        rows.push(vec![
            operation.name.to_owned(),
            format!("{:.0}", gain.map_or(ours, |gain| gain.ours)),
            gain.map_or_else(|| "-".to_owned(), |gain| format!("{:.0}", gain.theirs)),
            pair::cell(gain),
        ]);
    }
    if record.shows() {
        let beside =
            peer.as_ref().map_or_else(|| "openssl/s".to_owned(), |peer| format!("{}, /s", peer.name()));
        put!("{}", text::table(&["operation", "lanes, /s", &beside, "gain"], &rows));
        say!("{}", pair::LEGEND);
    }
    if !settings.no_runtime {
        of_runtime(settings, &lanes, &mut record)?;
    }
    record.finish()
}

/// The second table: what the runtime leaves of it.
fn of_runtime(settings: &Settings, lanes: &Lanes, record: &mut Record) -> Result<()> {
    let mut rows = Vec::new();
    let wanted = OPERATIONS.iter().filter(|operation| settings.wants(operation, lanes));
    let mut kinds: Vec<Kind> = wanted.flat_map(|operation| operation.kinds.iter().copied()).collect();
    kinds.sort_unstable_by_key(|kind| kind.index());
    kinds.dedup();
    for kind in kinds {
        let Through { borrowed, owned, alone, few } = through(kind)?;
        let row = |name, share| {
            let row = Row::alone("lanes", name, "ratio", By::Cpu, share, super::through::ROUNDS as usize);
            row.param("kind", kind.name())
        };
        record.add(row("runtime-of-kernel", borrowed));
        record.add(row("runtime-together-of-kernel", owned));
        record.add(row("runtime-alone-over-instruction", alone));
        for (count, share) in few {
            record.add(row("runtime-few-over-instruction", share).param("requests", count));
        }
        rows.push(vec![
            kind.name().to_owned(),
            format!("{:.1} %", 100.0 * borrowed),
            format!("{:.1} %", 100.0 * owned),
            format!("{alone:.3}"),
            few.map(|(count, ratio)| format!("{count}: {ratio:.2}")).join(", "),
        ]);
    }
    if record.shows() {
        say!("");
        say!(
            "Through the runtime under `adaptive`: the rate of full batches over the bare kernel's, borrowed and owned;"
        );
        say!(
            "and the time of one request alone, and of a few together, over that of `instruction` called directly."
        );
        say!("Medians of rounds in turn, processor time.");
        let header = ["kind", "borrowed", "owned", "alone", "a few"];
        put!("{}", text::table(&header, &rows));
    }
    Ok(())
}

/// Both sides by turns: our median, and the turns against each other.
fn in_turn(
    lanes: &Lanes,
    peer: Option<&mut Libcrypto>,
    operation: &Operation,
    turns: u32,
) -> Result<(f64, Option<Gain>)> {
    let mut peer = peer;
    if peer.as_deref_mut().is_some_and(|peer| !peer.open(operation.peer, 0)) {
        peer = None;
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..turns {
        ours.push(bare(lanes, operation.kinds)?);
        theirs.push(peer.as_deref_mut().map_or(0.0, |peer| peer.rate(TURN)));
    }
    Ok((pair::median(ours.clone()), Gain::of(&ours, &theirs, Better::More)))
}

/// Operations a second of full batches handed to the kernel.
fn bare(lanes: &Lanes, kinds: &[Kind]) -> Result<f64> {
    let mut batches: Vec<Vec<OwnedRequest>> = kinds.iter().map(|kind| batch(*kind)).collect();
    let mut passes = || batches.iter_mut().try_for_each(|batch| pass(lanes, batch));
    passes()?;
    let (start, mut count) = (processor_seconds(), 0u32);
    loop {
        passes()?;
        count += 1;
        let passed = processor_seconds() - start;
        if passed > TURN {
            return Ok(f64::from(count) * WIDTH as f64 / passed);
        }
    }
}

/// A full batch of a kind's known requests.
fn batch(kind: Kind) -> Vec<OwnedRequest> {
    let count = known_answers(kind).len();
    (0..WIDTH).map(|lane| known_answers(kind).swap_remove(lane % count).request).collect()
}

fn pass(lanes: &Lanes, batch: &mut [OwnedRequest]) -> Result<()> {
    let kind = batch[0].kind;
    let mut items: Vec<Item<'_>> = batch.iter_mut().map(|request| Item::new(request.view())).collect();
    lanes.execute_all(&mut items);
    items.into_iter().try_for_each(|item| item.result.map(|_| ())).with_context(|| kind.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table through the runtime has the kinds of the operations, so this says it of that, too.
    #[test]
    fn every_kind_of_lanes_is_in_an_operation() {
        for isa in Isa::all(&Cpu::detect()) {
            let named: Vec<Kind> = OPERATIONS.iter().flat_map(|operation| operation.kinds).copied().collect();
            for kind in Lanes::new(isa).description().inline.iter().filter(|kind| kind.is_asymmetric()) {
                assert!(named.contains(&kind), "{} of {}", kind.name(), isa.name());
            }
        }
    }

    /// Narrower lanes do fewer kinds, and this is for machines that have only those.
    #[test]
    fn every_fresh_key_of_a_curve_is_in_an_operation() {
        for kind in [Kind::P256Generate, Kind::P384Generate, Kind::X25519Generate] {
            assert!(OPERATIONS.iter().any(|operation| operation.kinds.contains(&kind)), "{}", kind.name());
        }
    }
}
