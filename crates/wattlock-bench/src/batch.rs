//! Batches of hashes, MACs and AES-CBC encryption in lanes, by processor time: beside OpenSSL one message after the
//! other; messages of unlike length beside equal ones; chains beside counter mode. And a few messages in one call of the
//! runtime, beside a call for each.

use std::sync::Arc;

use anyhow::{Context, Result};
use wattlock::calibrate::{Plan, calibrate, sample};
use wattlock::{Dispatcher, Runtime, own_engines};
use wattlock_core::{Engine, EngineClass, Family, Item, Kind, KindSet, OwnedRequest};
use wattlock_shell::text;

use super::libcrypto::{self, Libcrypto};
use super::machine_line;
use super::pair::{self, Better, Gain};
use super::record::{self, Record, Row};

/// Kinds of messages that are chains.
const KINDS: [Kind; 7] = [
    Kind::Sha1,
    Kind::Sha256,
    Kind::Sha384,
    Kind::Sha512,
    Kind::HmacSha256,
    Kind::Aes128CbcEncrypt,
    Kind::Aes256CbcEncrypt,
];
/// Messages of a full batch, and bytes of each.
const FULL: (usize, usize) = (16, 16 << 10);
/// Messages of unlike length, as many of each: 64 bytes and its doubles up to the full length.
const UNLIKE: usize = 63;
/// Batches that must cost no more than one message after the other.
const FEW: [(usize, usize); 6] = [(1, 64), (2, 64), (3, 64), (1, 16 << 10), (2, 16 << 10), (3, 16 << 10)];
/// What a share of a round should take.
const TURN_NS: f64 = 5e6;

/// Which engine does messages.
enum By<'e> {
    Engine(&'e dyn Engine),
    Runtime(Box<Dispatcher>),
}

/// Some messages, and how one side does them: in one call, or one after the other.
struct Side<'e> {
    by: By<'e>,
    together: bool,
    requests: Vec<OwnedRequest>,
}

impl Side<'_> {
    fn run(&mut self) {
        if self.together {
            let mut items: Vec<Item<'_>> =
                self.requests.iter_mut().map(|one| Item::new(one.view())).collect();
            match &mut self.by {
                By::Engine(engine) => engine.execute_all(&mut items),
                By::Runtime(dispatcher) => dispatcher.run_all(&mut items),
            }
            std::hint::black_box(items.iter().all(|item| item.result.is_ok()));
        } else {
            for one in &mut self.requests {
                _ = std::hint::black_box(match &mut self.by {
                    By::Engine(engine) => engine.execute(&mut one.view()),
                    By::Runtime(dispatcher) => dispatcher.run(&mut one.view()),
                });
            }
        }
    }

    fn bytes(&self) -> usize {
        self.requests.iter().map(|one| one.input.len()).sum()
    }
}

fn messages(
    engine: &dyn Engine,
    kind: Kind,
    lengths: impl Iterator<Item = usize>,
) -> Option<Vec<OwnedRequest>> {
    lengths.map(|len| sample(engine, kind, Some(len))).collect()
}

/// Lengths from 64 bytes on, short and long by turns.
fn unlike() -> impl Iterator<Item = usize> {
    (0..UNLIKE).map(|at| 64 << (at * 5 % 9))
}

/// Megabytes a second of both sides, in turn.
fn compare(rounds: u32, ours: &mut Side<'_>, theirs: &mut Side<'_>) -> Option<Gain> {
    let calls = pair::calls_for(TURN_NS, &mut || ours.run());
    let [mine, other] = [ours.bytes(), theirs.bytes()].map(|bytes| bytes as f64 * 1e3);
    let times = pair::in_turn(&mut [&mut || ours.run(), &mut || theirs.run()], calls, rounds);
    let rates = |times: &[f64], bytes: f64| times.iter().map(|ns| bytes / ns).collect::<Vec<_>>();
    Gain::of(&rates(&times[0], mine), &rates(&times[1], other), Better::More)
}

/// Runs the benchmark: all kinds, or some.
pub fn run(kinds: &[Kind], rounds: u32, no_openssl: bool, mut record: Record) -> Result<()> {
    let engines = own_engines();
    let of_class =
        |class| engines.iter().find(|engine: &&Arc<dyn Engine>| engine.description().class == class);
    let lanes = of_class(EngineClass::Lanes).context("no lanes here: wattlock engines says why")?.as_ref();
    let single = of_class(EngineClass::Instruction).context("no engine does one at a time")?.as_ref();
    let wanted = if kinds.is_empty() { &KINDS[..] } else { kinds };
    let profile = calibrate(&engines, &Plan::quick(KindSet::of(wanted)), &mut |_| {});
    let runtime = Runtime::builder().engines(engines.clone()).profile(profile).telemetry(false).build()?;
    let mut peer = Libcrypto::beside(no_openssl, &mut record);
    if record.shows() {
        say!("{}", machine_line());
        say!("One core, processor time; {rounds} rounds of each in turn. {}", lanes.description().detail);
    }
    let mut rows = Vec::new();
    let mut add = |record: &mut Record,
                   name: &str,
                   (count, bytes): (usize, usize),
                   against: &str,
                   gain: Option<Gain>| {
        let Some(gain) = gain else { return };
        let row = Row::compared("engines", name, "MB/s", record::By::Cpu, gain);
        record.add(row.param("batch", count).param("bytes", bytes).against(against));
        rows.push(vec![
            name.to_owned(),
            count.to_string(),
            text::bytes(bytes as u64),
            text::rate(gain.ours * 1e6),
            text::rate(gain.theirs * 1e6),
            against.to_owned(),
            gain.to_string(),
        ]);
    };
    for &kind in wanted.iter().filter(|kind| lanes.width(**kind) > 1 && !kind.is_asymmetric()) {
        let side = |engine, kind, together, lengths: &mut dyn Iterator<Item = usize>| {
            Some(Side { by: By::Engine(engine), together, requests: messages(single, kind, lengths)? })
        };
        let (count, bytes) = FULL;
        let full = || side(lanes, kind, true, &mut std::iter::repeat_n(bytes, count));
        let (Some(mut ours), Some(mut unlike)) = (full(), side(lanes, kind, true, &mut unlike())) else {
            continue;
        };
        if let (Some(peer), Some(operation)) = (&mut peer, libcrypto::operation(kind))
            && peer.open(operation, bytes)
        {
            let name = format!("{} one by one", peer.name());
            let calls = pair::calls_for(TURN_NS, &mut || ours.run());
            let (mut mine, mut theirs) = (Vec::new(), Vec::new());
            for round in 0..=rounds {
                let ns = pair::time(calls, &mut || ours.run());
                let rate = peer.rate(TURN_NS / 1e9) * bytes as f64 / 1e6;
                if round > 0 {
                    mine.push(ours.bytes() as f64 * 1e3 / ns);
                    theirs.push(rate);
                }
            }
            let gain = Gain::of(&mine, &theirs, Better::More);
            add(&mut record, kind.name(), FULL, &name, gain);
        }
        let gain = compare(rounds, &mut unlike, &mut ours);
        let name = format!("{}, unlike", kind.name());
        add(&mut record, &name, (UNLIKE, bytes), "equal messages", gain);
        for (count, bytes) in FEW {
            let side = |together| {
                let lengths = std::iter::repeat_n(bytes, count);
                let requests = messages(single, kind, lengths)?;
                Some(Side { by: By::Runtime(Box::new(runtime.dispatcher())), together, requests })
            };
            let (Some(mut ours), Some(mut theirs)) = (side(true), side(false)) else { continue };
            let gain = compare(rounds, &mut ours, &mut theirs);
            let name = format!("{} by the runtime", kind.name());
            add(&mut record, &name, (count, bytes), "a call for each", gain);
        }
        if kind.info().family == Family::Cipher
            && let Some(counter) = counter_of(kind)
            && let Some(mut theirs) = side(single, counter, false, &mut std::iter::repeat_n(bytes, count))
        {
            let gain = compare(rounds, &mut ours, &mut theirs);
            let name = format!("{} of {}", kind.name(), counter.name());
            add(&mut record, &name, FULL, counter.name(), gain);
        }
    }
    if record.shows() {
        let header = ["kind", "messages", "of", "lanes", "theirs", "against", "gain"];
        put!("{}", text::table(&header, &rows));
        say!("unlike: messages of 64 bytes to {}", text::bytes(FULL.1 as u64));
        say!("{}", pair::LEGEND);
    }
    record.finish()
}

/// Counter mode with as long a key.
fn counter_of(kind: Kind) -> Option<Kind> {
    match kind {
        Kind::Aes128CbcEncrypt => Some(Kind::Aes128Ctr),
        Kind::Aes192CbcEncrypt => Some(Kind::Aes192Ctr),
        Kind::Aes256CbcEncrypt => Some(Kind::Aes256Ctr),
        _ => None,
    }
}
