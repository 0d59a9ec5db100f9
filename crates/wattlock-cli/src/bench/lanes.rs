//! What eight handshakes side by side are worth: full batches of every public-key operation in lanes, with the system's
//! OpenSSL beside them in the same run, against the figures that the project asks of itself.
//!
//! A row's columns are one function each: [`bare`] for the kernel, [`Peers::rate`] for OpenSSL. Both count processor time on
//! one core, in short turns; the best turn of each counts, because a shared machine only ever takes away.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;
use wattlock_core::{Engine, Error, Kind, OwnedRequest, known_answers};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::lanes::{Isa, Item, Lanes, WIDTH, multiplications_per_second};

use super::machine_line;
use super::through::{Through, through};
use crate::text;

/// What to measure.
#[derive(Debug, Args)]
pub struct Settings {
    /// Only operations whose name contains this
    #[arg(long = "operation")]
    operations: Vec<String>,
    /// Turns of each side, of which the best counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    turns: u32,
    /// Leave out what the runtime makes of it
    #[arg(long)]
    no_runtime: bool,
    /// Leave OpenSSL out
    #[arg(long)]
    no_openssl: bool,
}

impl Settings {
    /// Whether to measure it: who asked for operations means these, and narrower lanes do fewer.
    fn wants(&self, operation: &Operation, lanes: &Lanes) -> bool {
        operation.kinds.iter().all(|kind| lanes.description().queued.contains(*kind))
            && (self.operations.is_empty()
                || self.operations.iter().any(|word| operation.name.contains(word.as_str())))
    }
}

/// One operation: a pass of each of its kinds.
struct Operation {
    name: &'static str,
    kinds: &'static [Kind],
    peer: Peer,
    /// Times OpenSSL, at least; `None` where nothing was asked.
    floor: Option<f64>,
    /// Times OpenSSL, as hoped for.
    goal: Option<f64>,
}

/// Whose figure stands beside it.
enum Peer {
    /// `openssl speed` of this name.
    Speed(&'static str),
    /// A loop over libcrypto's own calls, since `openssl speed` does not do it or adds much around it (`lanes_peer.c`).
    Calls(&'static str, &'static str),
}

#[rustfmt::skip]
const OPERATIONS: &[Operation] = &[
    Operation { name: "rsa-2048-private", kinds: &[Kind::Rsa2048Private], peer: Peer::Speed("rsa2048"), floor: Some(3.3), goal: Some(3.8) },
    Operation { name: "rsa-3072-private", kinds: &[Kind::Rsa3072Private], peer: Peer::Speed("rsa3072"), floor: Some(5.0), goal: Some(5.6) },
    Operation { name: "rsa-4096-private", kinds: &[Kind::Rsa4096Private], peer: Peer::Speed("rsa4096"), floor: Some(5.7), goal: Some(6.3) },
    Operation { name: "ecdsa-p256-sign", kinds: &[Kind::EcdsaP256Sign], peer: Peer::Speed("ecdsap256"), floor: Some(3.2), goal: Some(3.8) },
    Operation { name: "p256-derive", kinds: &[Kind::P256Derive], peer: Peer::Calls("p256", "derive"), floor: Some(3.5), goal: Some(4.0) },
    Operation { name: "p256-generate-derive", kinds: &[Kind::P256Generate, Kind::P256Derive], peer: Peer::Calls("p256", "both"), floor: Some(3.1), goal: Some(3.5) },
    Operation { name: "x25519-derive", kinds: &[Kind::X25519Derive], peer: Peer::Speed("ecdhx25519"), floor: Some(7.0), goal: Some(7.8) },
    Operation { name: "x25519-generate-derive", kinds: &[Kind::X25519Generate, Kind::X25519Derive], peer: Peer::Calls("x25519", "both"), floor: Some(9.0), goal: Some(10.0) },
    Operation { name: "ecdsa-p384-sign", kinds: &[Kind::EcdsaP384Sign], peer: Peer::Speed("ecdsap384"), floor: Some(25.0), goal: Some(35.0) },
    Operation { name: "p384-derive", kinds: &[Kind::P384Derive], peer: Peer::Speed("ecdhp384"), floor: Some(12.0), goal: Some(17.0) },
    Operation { name: "p384-generate-derive", kinds: &[Kind::P384Generate, Kind::P384Derive], peer: Peer::Calls("p384", "both"), floor: None, goal: None },
];

/// Runs the benchmark.
pub fn run(settings: &Settings, json: bool) -> Result<()> {
    let isa = Isa::best(&Cpu::detect())
        .context("no lanes here: this CPU has neither AVX-512 IFMA nor AVX2 with FMA")?;
    let lanes = Lanes::new(isa);
    let peers = if settings.no_openssl { None } else { Some(Peers::new()?) };
    if !json {
        say!("{}", machine_line());
        say!(
            "One core, operations a second of processor time, full batches of {WIDTH}, best of {} turns.",
            settings.turns
        );
    }
    let (registers, loads) = multiplications_per_second(isa, Duration::from_millis(200));
    if json {
        say!(
            "{}",
            json!({"bench": "lanes-limit", "from_registers": registers, "with_loads": loads,
                "lanes": isa.name(), "machine": machine_line()})
        );
    } else {
        let million = |rate: f64| rate / 1e6;
        say!(
            "{}; {}, million a second: {:.0} from registers, {:.0} with a load each.",
            isa.name(),
            isa.multiplications(),
            million(registers),
            million(loads)
        );
    }
    // What the project asks of itself is asked of the wider lanes.
    let asked = |times: Option<f64>| times.filter(|_| matches!(isa, Isa::Ifma512(_)));
    let times = |times: Option<f64>| times.map_or_else(|| "-".into(), |times| format!("{times:.1}"));
    let mut rows = Vec::new();
    for operation in OPERATIONS.iter().filter(|operation| settings.wants(operation, &lanes)) {
        let (ours, theirs) = in_turn(&lanes, peers.as_ref(), operation, settings.turns)?;
        let ratio = ours.zip(theirs).map(|(ours, theirs)| ours / theirs);
        if json {
            let row = json!({"bench": "lanes", "operation": operation.name, "width": WIDTH, "lanes_per_second": ours,
                "openssl_per_second": theirs, "peer": operation.peer.name(), "ratio": ratio, "floor": asked(operation.floor),
                "goal": asked(operation.goal), "machine": machine_line()});
            say!("{row}");
        }
        let figure = |figure: Option<f64>| figure.map_or_else(|| "-".into(), |figure| format!("{figure:.0}"));
        rows.push(vec![
            operation.name.to_owned(),
            figure(ours),
            figure(theirs),
            ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}")),
            times(asked(operation.floor)),
            times(asked(operation.goal)),
            operation.peer.name(),
        ]);
    }
    if !json {
        let header = ["operation", "lanes/s", "openssl/s", "ratio", "floor", "goal", "peer"];
        put!("{}", text::table(&header, &rows));
    }
    if settings.no_runtime { Ok(()) } else { runtime(settings, &lanes, json) }
}

/// What submit, hold and poll leave of the kernel, and what they cost a request without company.
fn runtime(settings: &Settings, lanes: &Lanes, json: bool) -> Result<()> {
    let mut rows = Vec::new();
    let wanted = OPERATIONS.iter().filter(|operation| settings.wants(operation, lanes));
    let mut kinds: Vec<Kind> = wanted.flat_map(|operation| operation.kinds.iter().copied()).collect();
    kinds.sort_unstable_by_key(|kind| kind.index());
    kinds.dedup();
    for kind in kinds {
        let Through { of_kernel, together, alone, few } = through(kind)?;
        if json {
            let row = json!({"bench": "lanes-runtime", "kind": kind.name(), "of_kernel": of_kernel, "together_of_kernel": together,
                "floor": 0.97, "alone_over_instruction": alone, "few_over_instruction": few, "most": 1.02,
                "machine": machine_line()});
            say!("{row}");
        }
        rows.push(vec![
            kind.name().to_owned(),
            format!("{:.1} %", 100.0 * of_kernel),
            format!("{:.1} %", 100.0 * together),
            "97 %".to_owned(),
            format!("{alone:.3}"),
            "1.020".to_owned(),
            few.map(|(count, ratio)| format!("{count}: {ratio:.2}")).join(", "),
        ]);
    }
    if !json {
        say!("");
        say!(
            "Through the runtime under `adaptive`: the rate of full batches over the bare kernel's, submitted one by one and"
        );
        say!(
            "together; and the time of one request alone, and of a few together, over that of `instruction` called directly."
        );
        say!("Medians of rounds in turn.");
        let header = ["kind", "of the kernel", "together", "floor", "alone", "at most", "a few"];
        put!("{}", text::table(&header, &rows));
    }
    Ok(())
}

/// Both sides by turns, and the best of each.
fn in_turn(
    lanes: &Lanes,
    peers: Option<&Peers>,
    operation: &Operation,
    turns: u32,
) -> Result<(Option<f64>, Option<f64>)> {
    let best = |a: Option<f64>, b: Option<f64>| a.into_iter().chain(b).reduce(f64::max);
    let (mut ours, mut theirs) = (None, None);
    for _ in 0..turns {
        ours = best(ours, bare(lanes, operation.kinds)?);
        theirs = best(theirs, peers.and_then(|peers| peers.rate(&operation.peer)));
    }
    Ok((ours, theirs))
}

/// Operations a second of full batches handed to the kernel; `None` if these lanes do not do it.
fn bare(lanes: &Lanes, kinds: &[Kind]) -> Result<Option<f64>> {
    if !kinds.iter().all(|kind| wattlock_core::Engine::description(lanes).queued.contains(*kind)) {
        return Ok(None);
    }
    let mut batches: Vec<Vec<OwnedRequest>> = kinds.iter().map(|kind| batch(*kind)).collect();
    let mut passes = || batches.iter_mut().try_for_each(|batch| pass(lanes, batch));
    passes()?;
    let (start, mut count) = (processor_seconds(), 0u32);
    loop {
        passes()?;
        count += 1;
        let passed = processor_seconds() - start;
        if passed > 0.3 {
            return Ok(Some(f64::from(count) * WIDTH as f64 / passed));
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
    let mut items: Vec<Item<'_>> = batch
        .iter_mut()
        .map(|request| Item { request: request.view(), result: Err(Error::Unsupported) })
        .collect();
    lanes.pass(kind, &mut items)?;
    items.into_iter().try_for_each(|item| item.result.map(|_| ())).with_context(|| kind.name())
}

fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

impl Peer {
    fn name(&self) -> String {
        match self {
            Peer::Speed(name) => format!("openssl speed {name}"),
            Peer::Calls(curve, what) => format!("libcrypto calls, {curve} {what}"),
        }
    }
}

/// The system's OpenSSL: its `speed`, and a loop over its calls if it can be built here.
struct Peers {
    calls: Option<PathBuf>,
    _dir: tempfile::TempDir,
}

impl Peers {
    /// Builds the loop, which takes a compiler and OpenSSL's headers. Without them its rows have no peer.
    fn new() -> Result<Peers> {
        let dir = tempfile::tempdir()?;
        let program = dir.path().join("peer");
        Ok(Peers { calls: build(&program).then_some(program), _dir: dir })
    }

    /// Operations a second in one turn.
    fn rate(&self, peer: &Peer) -> Option<f64> {
        match peer {
            Peer::Speed(name) => {
                let text = output(Command::new("openssl").args(["speed", "-mr", "-seconds", "1", name]))?;
                // +F2:2:2048:4213.0:142857.1   bits, private operations a second, public ones
                text.lines().rev().find(|line| line.starts_with("+F"))?.split(':').nth(3)?.parse().ok()
            }
            Peer::Calls(curve, what) => {
                output(Command::new(self.calls.as_ref()?).args([curve, what]))?.trim().parse().ok()
            }
        }
    }
}

fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether the loop could be built.
fn build(program: &PathBuf) -> bool {
    let compiler = Command::new("cc")
        .args(["-O2", "-w", "-x", "c", "-", "-lcrypto", "-o"])
        .arg(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut compiler) = compiler else { return false };
    let written = compiler
        .stdin
        .take()
        .is_some_and(|mut input| input.write_all(include_bytes!("lanes_peer.c")).is_ok());
    written & compiler.wait().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table through the runtime has the kinds of the operations, so this says it of that, too.
    #[test]
    fn every_kind_of_lanes_is_in_an_operation() {
        for isa in Isa::all(&Cpu::detect()) {
            let named: Vec<Kind> = OPERATIONS.iter().flat_map(|operation| operation.kinds).copied().collect();
            for kind in Lanes::new(isa).description().queued.iter() {
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
