//! Files under every rule, beside a card that does what cards must not: the result is right, and each chunk was done once.
//!
//! On one thread everything happens in virtual time and in the same order each time; on several, what meets whom varies.
#![cfg(feature = "runtime")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::common;

use std::sync::{Arc, Mutex};

use common::card::{Alone, Harm, Machine, chained, done, on_card};
use common::{Double, Kept, Pair, progress, stream};
use wattlock::Runtime;
use wattlock::policy::{NAMES, OFFLOADING};
use wattlock_core::{Kind, samples};
use wattlock_door::{CryptoSource, Output};
use wattlock_emul::{Effect, Fault, Trigger};
use wattlock_files::{Gzip, Input, Opener, Sealer, gunzip, sum};

const CHUNK: usize = 16 << 10;
/// 20 chunks, the last one short; three pieces to compress.
const LEN: usize = 19 * CHUNK + 77;
/// When the card begins to misbehave: what came before has long ended.
const BEGINS: u64 = 10_000_000_000;

/// What goes wrong, and when.
fn faults() -> Vec<(&'static str, Option<Fault>)> {
    let from = |effect, to_ns| Some(Fault::new(effect, Trigger::Time { from_ns: BEGINS, to_ns }));
    let lost = |back_after_ns| Effect::Lost { back_after_ns };
    vec![
        ("none", None),
        ("errs", from(Effect::Error, u64::MAX)),
        ("errs now and then", Some(Fault::new(Effect::Error, Trigger::Every(13)))),
        ("hangs", from(Effect::Silence, u64::MAX)),
        ("hangs at first", from(Effect::Silence, BEGINS + 30_000)),
        ("lies", from(Effect::WrongResult, u64::MAX)),
        ("lies now and then", Some(Fault::new(Effect::WrongResult, Trigger::Every(13)))),
        ("is slow", from(Effect::Slow { permille: 50_000 }, u64::MAX)),
        ("vanishes", from(lost(None), u64::MAX)),
        (
            "vanishes in the midst",
            Some(Fault::new(lost(Some(2_000_000)), Trigger::Requests { from: 40, to: 40 })),
        ),
        ("vanishes for a while", from(lost(Some(1_000_000)), BEGINS + 1_000_000)),
    ]
}

/// A machine whose card has work under every published rule.
fn runtime(machine: &Machine, policy: &str) -> Runtime {
    let settings = ["aca-sds.alpha=0", "aca-sds.thread=0"].map(str::to_owned);
    let settings = wattlock::policy::Settings::from_pairs(settings.iter().map(String::as_str)).unwrap();
    machine.builder().verify_one_in(1).policy(policy, settings).build().unwrap()
}

fn kept(run: impl FnOnce(Output)) -> Vec<u8> {
    let kept = Kept::default();
    run(Output::Stream(Box::new(kept.clone())));
    let bytes = kept.0.lock().unwrap();
    bytes.clone()
}

fn unpacked(packed: &[u8]) -> Vec<u8> {
    kept(|to| {
        gunzip(stream(packed), to, progress()).unwrap();
    })
}

fn opened(opener: &Opener, sealed: &[u8], source: &impl CryptoSource) -> Vec<u8> {
    kept(|to| {
        opener.open(stream(sealed), to, source, progress()).unwrap();
    })
}

/// Every command on files once, from a file as commands have it, and each result compared.
struct Commands {
    pair: Pair,
    content: Vec<u8>,
    _folder: tempfile::TempDir,
    path: std::path::PathBuf,
    sealed: Vec<u8>,
    digest: Vec<u8>,
}

impl Commands {
    fn new() -> Commands {
        let (pair, content) = (Pair::new(), samples::html(3, LEN));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plain");
        std::fs::write(&path, &content).unwrap();
        let sealed = common::seal(&pair.sealer(), &content);
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &content).as_ref().to_vec();
        Commands { pair, content, _folder: folder, path, sealed, digest }
    }

    fn input(&self) -> Input {
        Input::Path(self.path.clone())
    }

    fn sealed(&self, sealer: &Sealer, source: &impl CryptoSource) -> Vec<u8> {
        kept(|to| sealer.seal(self.input(), to, source, progress()).unwrap())
    }

    /// Bytes of each kind that were done, by all engines together.
    fn all(&self, runtime: &Runtime, source: &impl CryptoSource, what: &str) {
        let opener = self.pair.opener();
        let counted = |kind: Kind, wanted: u64, run: &mut dyn FnMut()| {
            let before = done(runtime, kind);
            run();
            assert_eq!(done(runtime, kind) - before, wanted, "{what}: {}, each once", kind.name());
        };
        counted(Kind::Aes256GcmSeal, 20, &mut || {
            let sealed = self.sealed(&self.pair.sealer(), source);
            assert!(opened(&opener, &sealed, &Double) == self.content, "{what}: seal");
        });
        counted(Kind::Aes256GcmOpen, 20, &mut || {
            assert!(opened(&opener, &self.sealed, source) == self.content, "{what}: open");
        });
        counted(Kind::Deflate, 3, &mut || {
            let gzip = Gzip::new(1).unwrap();
            let packed = kept(|to| {
                gzip.compress(self.input(), to, source, progress()).unwrap();
            });
            assert!(unpacked(&packed) == self.content, "{what}: gzip");
        });
        counted(Kind::Deflate, 3, &mut || {
            let sealer = self.pair.sealer().gzip(Some(Gzip::new(1).unwrap()));
            let packed = opened(&opener, &self.sealed(&sealer, source), &Double);
            assert!(unpacked(&packed) == self.content, "{what}: seal --gzip");
        });
        let digest = Mutex::new(Vec::new());
        let files = std::iter::once(((), Ok(self.input())));
        sum(Kind::Sha256, files, source, progress(), |answers| {
            answers.for_each(|(_, answer)| *digest.lock().unwrap() = answer.unwrap().as_bytes().to_vec());
            Ok(())
        })
        .unwrap();
        assert_eq!(*digest.lock().unwrap(), self.digest, "{what}: sum");
    }
}

#[test]
fn every_command_on_files_is_right_under_every_rule_whatever_the_card_does() {
    let commands = Commands::new();
    for policy in NAMES {
        for (name, fault) in faults() {
            let machine =
                Machine { faults: fault.into_iter().collect(), ..Machine::new(|_, bytes| bytes as f64) };
            let runtime = runtime(&machine, policy);
            let what = format!("{policy}, a card that {name}");
            // The card gives its known answers, and then works.
            (0..3).for_each(|_| commands.all(&runtime, &Alone(&runtime), &what));
            if OFFLOADING.contains(&policy) && name == "none" {
                let [seal, deflate] =
                    [Kind::Aes256GcmSeal, Kind::Deflate].map(|kind| on_card(&runtime, kind));
                assert!(seal > 0 && deflate > 0, "{what}: {seal} chunks, {deflate} pieces on the card");
            }
            machine.time.reach(BEGINS);
            (0..2).for_each(|_| commands.all(&runtime, &Alone(&runtime), &what));
            commands.all(&runtime, &runtime, &format!("{what}, several threads"));
        }
    }
}

#[test]
fn what_a_card_compressed_it_seals_and_what_it_fails_then_is_done_once() {
    let commands = Commands::new();
    for harm in [None, Some(Harm::Errs), Some(Harm::Lies), Some(Harm::Hangs), Some(Harm::Vanishes)] {
        for pairs in [1, 3] {
            let machine = Machine::new(|_, bytes| bytes as f64);
            let builder = machine.builder().verify_one_in(1).queue_pairs(pairs);
            let runtime = builder.policy("offload", Default::default()).build().unwrap();
            let what = format!("{harm:?}, {pairs} queue pairs");
            (0..3).for_each(|_| commands.all(&runtime, &Alone(&runtime), &what));
            assert!(on_card(&runtime, Kind::Deflate) > 0, "{what}");
            *machine.harm.lock().unwrap() = harm.map(|harm| (Kind::Aes256GcmSeal, harm));
            let sealer = commands.pair.sealer().gzip(Some(Gzip::new(1).unwrap()));
            let counts = || {
                [
                    on_card(&runtime, Kind::Aes256GcmSeal),
                    done(&runtime, Kind::Aes256GcmSeal),
                    chained(&runtime, "emulated"),
                ]
            };
            let before = counts();
            let sealed = commands.sealed(&sealer, &Alone(&runtime));
            let after = counts();
            let packed = opened(&commands.pair.opener(), &sealed, &Double);
            assert!(unpacked(&packed) == commands.content, "{what}");
            let [card, all, chained] = std::array::from_fn(|at| after[at] - before[at]);
            // The last one is sealed when nothing more is compressed, so nobody's step comes before it.
            let chunks = (packed.len() / CHUNK + 1) as u64;
            assert_eq!(all, chunks, "{what}");
            let wanted = if harm.is_none() { [chunks, chunks - 1] } else { [0, 0] };
            assert_eq!([card, chained], wanted, "{what}: {chunks} chunks");
        }
    }
}

#[test]
fn what_a_core_compressed_it_seals_where_the_card_was_a_choice() {
    let commands = Commands::new();
    let machine = Machine::new(|_, bytes| bytes as f64);
    let runtime = runtime(&machine, "instruction");
    let sealer = commands.pair.sealer().gzip(Some(Gzip::new(1).unwrap()));
    let sealed = commands.sealed(&sealer, &Alone(&runtime));
    let packed = opened(&commands.pair.opener(), &sealed, &Double);
    assert!(unpacked(&packed) == commands.content);
    assert_eq!(chained(&runtime, "instruction"), (packed.len() / CHUNK) as u64);
}

/// Notes the whole of the operation that each question is about.
struct Noted(Arc<Mutex<Vec<usize>>>);

impl wattlock::policy::Policy for Noted {
    fn name(&self) -> &'static str {
        "noted"
    }

    fn choose(
        &mut self,
        ask: &wattlock::policy::Ask,
        _: &wattlock::policy::Weather,
        _: u64,
    ) -> wattlock::policy::Choice {
        if ask.shape.bytes > 1000 {
            self.0.lock().unwrap().push(ask.bytes);
        }
        wattlock::policy::Choice::all(wattlock::policy::EngineId(0), ask)
    }
}

#[test]
fn a_policy_is_asked_with_the_whole_of_a_file_and_of_a_stream_with_what_is_in_hand() {
    let commands = Commands::new();
    let asked = Arc::<Mutex<Vec<usize>>>::default();
    let notes = asked.clone();
    let machine = Machine::new(|_, _| 0.0);
    let runtime =
        machine.builder().own_policy("noted", move |_| Box::new(Noted(notes.clone()))).build().unwrap();
    let (pair, source) = (&commands.pair, Alone(&runtime));
    let big = samples::html(9, 2 << 20);
    std::fs::write(&commands.path, &big).unwrap();
    let wholes = |run: &mut dyn FnMut(Output)| {
        run(Output::Stream(Box::new(std::io::sink())));
        let mut wholes = std::mem::take(&mut *asked.lock().unwrap());
        wholes.sort_unstable();
        wholes.dedup();
        wholes
    };
    let whole = vec![2 << 20];
    assert_eq!(
        wholes(&mut |to| pair.sealer().seal(commands.input(), to, &source, progress()).unwrap()),
        whole
    );
    let gzip = Gzip::new(1).unwrap();
    assert_eq!(
        wholes(&mut |to| {
            gzip.compress(commands.input(), to, &source, progress()).unwrap();
        }),
        whole
    );
    let sealer = pair.sealer().gzip(Some(gzip));
    assert_eq!(wholes(&mut |to| sealer.seal(commands.input(), to, &source, progress()).unwrap()), whole);
    assert_eq!(
        wholes(&mut |to| pair.sealer().seal(stream(&big), to, &source, progress()).unwrap()),
        [1 << 20]
    );
}
