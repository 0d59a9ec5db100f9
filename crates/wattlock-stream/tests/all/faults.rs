//! Streams and batches of records under every rule, beside a card that does what cards must not: the content is right, and
//! each frame or record was done once.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::card;
use crate::common;

use card::{Alone, Harm, Machine, chained, done, on_card};
use common::*;
use wattlock::Runtime;
use wattlock::policy::{NAMES, OFFLOADING, Settings};
use wattlock_core::{Kind, samples};
use wattlock_door::Crypto;
use wattlock_emul::{Effect, Fault, Trigger};
use wattlock_stream::Error;
use wattlock_stream::Framing;
use wattlock_stream::pipe::{self, Sealing};
use wattlock_stream::record::{Place, Record, RecordOpener, RecordSealer, StreamId, StreamKeys};
use zeroize::Zeroizing;

/// When the card begins to misbehave: what came before has long ended.
const BEGINS: u64 = 10_000_000_000;
const FRAME: usize = 9000;
const KEY: [u8; 32] = [7; 32];

/// The one key there is.
struct One;

impl StreamKeys for One {
    fn find(&mut self, _: StreamId, _: &mut dyn Crypto) -> Result<Option<Zeroizing<[u8; 32]>>, Error> {
        Ok(Some(Zeroizing::new(KEY)))
    }
}

fn faults() -> Vec<(&'static str, Option<Fault>)> {
    let from = |effect| Some(Fault::new(effect, Trigger::Time { from_ns: BEGINS, to_ns: u64::MAX }));
    let every = |effect| Some(Fault::new(effect, Trigger::Every(13)));
    let lost = |back_after_ns| Effect::Lost { back_after_ns };
    vec![
        ("works", None),
        ("errs", from(Effect::Error)),
        ("errs now and then", every(Effect::Error)),
        ("hangs", from(Effect::Silence)),
        ("hangs now and then", every(Effect::Silence)),
        ("lies", from(Effect::WrongResult)),
        ("lies now and then", every(Effect::WrongResult)),
        ("vanishes", from(lost(None))),
        (
            "vanishes for a while",
            Some(Fault::new(lost(Some(2_000_000)), Trigger::Requests { from: 40, to: 40 })),
        ),
    ]
}

fn runtime(machine: &Machine, policy: &str) -> Runtime {
    // The card has work under every published rule.
    let settings = Settings::from_pairs(["aca-sds.alpha=0", "aca-sds.thread=0"]).unwrap();
    machine.builder().verify_one_in(1).policy(policy, settings).build().unwrap()
}

/// A stream through the runtime's engines and back, both ways checked by a runtime that has no card.
fn there_and_back(pair: &Pair, plain: &[u8], runtime: &Runtime, workers: usize, what: &str) {
    let sound = common::runtime();
    let settings = Sealing { workers, ..in_frames(Framing::Raw, FRAME) };
    let counted = |kind, run: &mut dyn FnMut() -> u64| {
        let before = done(runtime, kind);
        let frames = run();
        assert_eq!(done(runtime, kind) - before, frames, "{what}: {}, each once", kind.name());
    };
    counted(Kind::Aes256GcmSeal, &mut || {
        let seal = |ends: pipe::Ends<'_>| match workers {
            1 => pipe::seal(ends, &pair.sealer(), &settings, &Alone(runtime)),
            _ => pipe::seal(ends, &pair.sealer(), &settings, runtime),
        };
        let (passed, sealed) = through(plain, seal);
        let (opening, opened) = open(&pair.opener(), &sound, &sealed);
        opening.unwrap();
        assert!(opened == plain, "{what}: seal");
        passed.unwrap().frames
    });
    let sealed = seal(pair, plain, &in_frames(Framing::Raw, FRAME));
    counted(Kind::Aes256GcmOpen, &mut || {
        let open = |ends: pipe::Ends<'_>| match workers {
            1 => pipe::open(ends, &pair.opener(), 1, &Alone(runtime)),
            _ => pipe::open(ends, &pair.opener(), workers, runtime),
        };
        let (passed, opened) = through(&sealed, open);
        assert!(opened == plain, "{what}: open");
        passed.unwrap().frames
    });
}

#[test]
fn streams_are_right_under_every_rule_whatever_the_card_does() {
    let (pair, plain) = (Pair::new(), content(600_000));
    for policy in NAMES {
        for (name, fault) in faults() {
            let faults = fault.into_iter().collect();
            let machine = Machine { faults, ..Machine::new(|_, bytes| bytes as f64) };
            let runtime = runtime(&machine, policy);
            let what = format!("{policy}, a card that {name}");
            // The card gives its known answers, and then works.
            (0..3).for_each(|_| there_and_back(&pair, &plain, &runtime, 1, &what));
            if OFFLOADING.contains(&policy) && name == "works" {
                let (sealed, opened) =
                    (on_card(&runtime, Kind::Aes256GcmSeal), on_card(&runtime, Kind::Aes256GcmOpen));
                // ACA-SDS has reads on the CPU.
                assert!(sealed > 0 && (opened > 0) == (policy != "aca-sds"), "{what}: {sealed}, {opened}");
            }
            machine.time.reach(BEGINS);
            (0..2).for_each(|_| there_and_back(&pair, &plain, &runtime, 1, &what));
            there_and_back(&pair, &plain, &runtime, 3, &format!("{what}, three workers"));
        }
    }
}

#[test]
fn records_that_a_card_compressed_it_seals_and_what_it_fails_then_is_done_once() {
    const RECORDS: u64 = 20;
    let values: Vec<Vec<u8>> = (0..RECORDS).map(|seed| samples::html(seed, 4000)).collect();
    for harm in [None, Some(Harm::Errs), Some(Harm::Lies), Some(Harm::Hangs), Some(Harm::Vanishes)] {
        let machine = Machine::new(|_, bytes| bytes as f64);
        let runtime = runtime(&machine, "offload");
        let mut crypto = runtime.dispatcher();
        let mut sealer = RecordSealer::new(Zeroizing::new(KEY), &mut crypto).unwrap();
        sealer.shape.compress = true;
        let records: Vec<Record<'_>> = values
            .iter()
            .map(|value| Record { key: Some(b"key"), value: Some(value), ..Record::default() })
            .collect();
        let place = Place { topic: "orders", partition: 3 };
        // The card gives its known answers, and then works.
        (0..3).for_each(|_| drop(sealer.seal_batch(place, &records, &mut crypto).unwrap()));
        assert!(on_card(&runtime, Kind::Zstd) > 0, "{harm:?}");
        *machine.harm.lock().unwrap() = harm.map(|harm| (Kind::Aes256GcmSeal, harm));
        let counts = || {
            let kind = Kind::Aes256GcmSeal;
            [on_card(&runtime, kind), done(&runtime, kind), chained(&runtime, "emulated")]
        };
        let before = counts();
        let sealed = sealer.seal_batch(place, &records, &mut crypto).unwrap();
        let after = counts();
        let [card, all, chained] = std::array::from_fn(|at| after[at] - before[at]);
        let wanted = if harm.is_none() { RECORDS } else { 0 };
        assert_eq!([card, all, chained], [wanted, RECORDS, wanted], "{harm:?}");
        let whole: Vec<Record<'_>> = records
            .iter()
            .enumerate()
            .map(|(number, record)| Record { value: Some(sealed.get(number)), ..*record })
            .collect();
        let mut sound = common::runtime().dispatcher();
        let mut opened = RecordOpener::new(One).open_batch(place, &whole, &mut sound);
        for (number, value) in values.iter().enumerate() {
            assert_eq!(opened.get(number).unwrap().value, Some(&value[..]), "{harm:?}, record {number}");
        }
    }
}
