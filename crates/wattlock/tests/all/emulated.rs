//! The runtime with the emulated accelerator, in real time: threads, rings, and faults declared in advance.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common;

use std::sync::Arc;

use common::{HandClock, assert_right, builder_with, digest, drain, misfit, seal};
use wattlock::policy::Settings;
use wattlock::{Dispatcher, Runtime, Submitted};
use wattlock_core::{
    Algorithm, Data, Description, Engine, Error, Item, Key, Kind, Request, Run, execute, known_answers,
};
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::software::Software;
use wattlock_emul::{Effect, Emulated, Fault, Model, Pace, Trigger};

/// A card without faults is given all the time it may need on a busy machine; one with faults is given up on soon.
fn runtime(policy: &str, faults: Vec<Fault>) -> Runtime {
    let give_up_after_ns = if faults.is_empty() { 60_000_000_000 } else { 3_000_000 };
    let instruction: Arc<dyn Engine> = Arc::new(Instruction::new());
    let card =
        Emulated::new(Model::qat_dh8970(), instruction.clone(), Pace::RealTime).unwrap().with_faults(faults);
    Runtime::builder()
        .engines(vec![instruction, Arc::new(Software::new()), Arc::new(card)])
        .policy(policy, Settings::default())
        .give_up_after_ns(give_up_after_ns)
        .verify_one_in(1)
        .telemetry(false)
        .profile(wattlock::Profile::built_in())
        .build()
        .unwrap()
}

/// Sends `count` requests, a few at a time, and checks every result.
fn work(runtime: &Runtime, count: u64) -> u64 {
    let mut dispatcher = runtime.dispatcher();
    let (mut sent, mut back) = (0, 0);
    // The first requests go to the CPU while the card, if the policy names it, proves itself: give it the time.
    for request in [seal(0), digest(0)] {
        assert!(matches!(dispatcher.submit(request), Submitted::Done(_)) || dispatcher.in_flight() > 0);
        for _ in 0..100 {
            dispatcher.poll(&mut |completion| assert_right(&completion));
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        while dispatcher.in_flight() > 0 {
            dispatcher.poll(&mut |completion| assert_right(&completion));
        }
    }
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while back < count {
        assert!(std::time::Instant::now() < deadline, "{back} of {count} came back");
        while sent < count && dispatcher.in_flight() < 16 {
            sent += 1;
            if let Submitted::Done(done) =
                dispatcher.submit(if sent % 2 == 0 { seal(sent) } else { digest(sent) })
            {
                assert_right(&done);
                back += 1;
            }
        }
        dispatcher.flush();
        let mut arrived = Vec::new();
        dispatcher.poll(&mut |completion| arrived.push(completion));
        arrived.iter().for_each(assert_right);
        back += arrived.len() as u64;
        std::thread::yield_now();
    }
    assert_eq!((back, dispatcher.in_flight()), (count, 0));
    requests_on_card(runtime)
}

fn requests_on_card(runtime: &Runtime) -> u64 {
    let cells = runtime.snapshot().cells;
    cells.iter().filter(|cell| cell.engine == "emulated").map(|cell| cell.requests).sum()
}

#[test]
fn a_good_card_does_the_work_it_is_given() {
    let runtime = runtime("offload", Vec::new());
    assert!(work(&runtime, 2000) > 1000);
}

#[test]
fn every_policy_returns_every_request_whatever_the_card_does() {
    let faults = [
        Fault::new(Effect::Error, Trigger::Every(7)),
        Fault::new(Effect::Silence, Trigger::Every(50)),
        Fault::new(Effect::WrongResult, Trigger::Every(11)),
        Fault::new(Effect::Slow { permille: 20_000 }, Trigger::Every(5)),
        Fault::new(Effect::Lost { back_after_ns: Some(20_000_000) }, Trigger::nth(100)),
        Fault::new(Effect::Lost { back_after_ns: None }, Trigger::nth(40)),
    ];
    for policy in wattlock::policy::NAMES {
        for fault in faults {
            work(&runtime(policy, vec![fault]), 300);
        }
    }
}

/// A plain request, runs and a plain request, all in place, in one call; `None` before the card has done any.
fn runs_among_plain_ones(runtime: &Runtime, dispatcher: &mut Dispatcher) -> Option<[Vec<u8>; 5]> {
    const LENGTHS: [usize; 5] = [400, 3 * 500 - 77, 400, 2 * 500, 400];
    let key = Key::symmetric(Algorithm::Aes256Gcm, &[5; 32]).unwrap();
    let run = Run::Stride(500);
    let nonces: Vec<u8> = (0..60).collect();
    let mut buffers = LENGTHS.map(|len| (0..len).map(|i| i as u8).collect::<Vec<u8>>());
    let mut tags = [[0; 16]; 5];
    let before = requests_on_card(runtime);
    for kind in [Kind::Aes256GcmSeal, Kind::Aes256GcmOpen] {
        let parts = buffers.iter_mut().zip(&mut tags).enumerate();
        let mut items: Vec<Item<'_>> = parts
            .map(|(i, (buffer, tag))| {
                let (is_run, count) = (i % 2 == 1, buffer.len().div_ceil(500));
                let request = Request::new(kind, &key, Data::InPlace(buffer));
                let nonce = &nonces[i..i + 12 * count];
                match is_run {
                    true => Item::new(Request { nonce, run: Some(&run), ..request }),
                    false => Item::new(Request { nonce, tag, ..request }),
                }
            })
            .collect();
        dispatcher.run_all(&mut items);
        let results = items.into_iter().map(|item| item.result.unwrap()).collect::<Vec<_>>();
        assert_eq!(results, LENGTHS, "{kind:?}");
        if kind == Kind::Aes256GcmSeal {
            let mut by_cpu = LENGTHS.map(|len| (0..len).map(|i| i as u8).collect::<Vec<u8>>());
            for (i, buffer) in by_cpu.iter_mut().enumerate() {
                let (count, mut tag) = (buffer.len().div_ceil(500), [0; 16]);
                let request = Request::new(kind, &key, Data::InPlace(buffer));
                let nonce = &nonces[i..i + 12 * count];
                let mut request = match i % 2 == 1 {
                    true => Request { nonce, run: Some(&run), ..request },
                    false => Request { nonce, tag: &mut tag, ..request },
                };
                execute(&Instruction::new(), &mut request).unwrap();
                assert!(i % 2 == 1 || tag == tags[i], "{i}: another tag than the CPU's");
            }
            assert!(buffers == by_cpu, "other bytes than the CPU's");
        }
    }
    // Of each direction: three requests, and five messages of two runs.
    let done = requests_on_card(runtime) - before;
    (done == 16).then_some(buffers)
}

#[test]
fn a_run_behind_a_plain_request_gives_the_cpu_s_bytes_on_a_card() {
    let runtime = runtime("offload", Vec::new());
    let mut dispatcher = runtime.dispatcher();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let opened = loop {
        assert!(std::time::Instant::now() < deadline, "the card is never used");
        if let Some(buffers) = runs_among_plain_ones(&runtime, &mut dispatcher) {
            break buffers;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    };
    for (index, buffer) in opened.iter().enumerate() {
        for (at, byte) in buffer.iter().enumerate() {
            // The tags of a run lie behind its messages.
            let tag = index % 2 == 1 && (at % 500 >= 484 || at >= buffer.len() - 16);
            assert!(tag || *byte == at as u8, "request {index}, byte {at}");
        }
    }
}

#[test]
fn eeca_moves_what_waits_for_a_full_card_to_the_cpu() {
    let clock = HandClock::default();
    let instruction: Arc<dyn Engine> = Arc::new(Instruction::new());
    let card = Emulated::new(Model::qat_dh8970(), instruction.clone(), Pace::Stepped).unwrap();
    let window = u64::from(card.window().requests);
    let runtime = Runtime::builder()
        .engines(vec![instruction, Arc::new(Software::new()), Arc::new(card)])
        .policy("eeca", Settings { eeca_threshold_bytes: 0, ..Settings::default() })
        .clock(clock.clock())
        .telemetry(false)
        .profile(wattlock::Profile::built_in())
        .build()
        .unwrap();
    assert_eq!(u64::from(runtime.machine().engines[2].window), window, "policies know the window");
    let mut dispatcher = runtime.dispatcher();
    assert!(matches!(dispatcher.submit(digest(0)), Submitted::Done(_)));
    clock.advance(10_000_000);
    dispatcher.poll(&mut |_| panic!("only tests are in flight"));
    // Time stands still: the card answers nothing, and three quarters of its window count as all it can do.
    let full = window * 3 / 4;
    for mark in 1..=full + 2 {
        assert!(matches!(dispatcher.submit(digest(mark)), Submitted::Pending(_)), "{mark}");
    }
    let mut back = Vec::new();
    dispatcher.poll(&mut |completion| back.push(completion));
    back.iter().for_each(assert_right);
    let mut marks: Vec<u64> = back.iter().map(|completion| completion.request.mark).collect();
    marks.sort_unstable();
    assert_eq!(marks, [full + 1, full + 2], "the two that waited, and no other");
    clock.advance(1_000_000_000);
    dispatcher.poll(&mut |completion| assert_right(&completion));
    assert_eq!((dispatcher.in_flight(), requests_on_card(&runtime)), (0, full));
}

/// What a card computes with that looks at no result: a key whose parts do not fit together gives some other number.
struct Heedless(Instruction);

impl Engine for Heedless {
    fn description(&self) -> &Description {
        self.0.description()
    }

    fn execute(&self, request: &mut Request<'_>) -> Result<usize, Error> {
        match self.0.execute(request) {
            Err(Error::Invalid(_)) => {
                request.data.output().fill(1);
                Ok(request.data.output().len())
            }
            other => other,
        }
    }
}

#[test]
fn a_wrong_result_is_the_cards_fault_only_where_there_is_a_right_one() {
    let clock = HandClock::default();
    let kind = Kind::Rsa2048Private;
    let answers = known_answers(kind);
    let good = || known_answers(kind).swap_remove(0).request;
    // After its known answers, three of the bad key and one of the good: that key's second result is wrong.
    let wrong = Fault::new(Effect::WrongResult, Trigger::nth(answers.len() as u64 + 5));
    let heedless = Arc::new(Heedless(Instruction::new()));
    let card = Emulated::new(Model::qat_dh8970(), heedless, Pace::Stepped).unwrap().with_faults(vec![wrong]);
    let engines: Vec<Arc<dyn Engine>> =
        vec![Arc::new(Instruction::new()), Arc::new(Software::new()), Arc::new(card)];
    let runtime = builder_with(engines, &clock, 0).build().unwrap();
    let mut dispatcher = runtime.dispatcher();
    assert!(matches!(dispatcher.submit(good()), Submitted::Done(_)), "{} is not proved yet", kind.name());
    clock.advance(2_000_000);
    dispatcher.poll(&mut |_| panic!("only tests are in flight"));
    let seen = || {
        let engines = runtime.snapshot().engines;
        let card = engines.into_iter().find(|engine| engine.engine == "emulated").unwrap();
        let wrong =
            card.fallbacks.iter().find(|(reason, _)| reason == "wrong-result").map_or(0, |found| found.1);
        (wrong, card.quarantines)
    };
    let mut ask = |request| {
        assert!(matches!(dispatcher.submit(request), Submitted::Pending(_)), "not on the card");
        let mut back = drain(&mut dispatcher, &clock);
        assert_eq!(back.len(), 1);
        back.swap_remove(0)
    };
    for nth in 1..=3 {
        assert!(matches!(ask(misfit(nth)).result, Err(Error::Invalid(_))));
        assert_eq!(seen(), (nth, 0));
    }
    for (nth, expected) in [(4, (3, 0)), (5, (4, 1))] {
        let completion = ask(good());
        answers[0].expected.verdict(&completion.request, &completion.result, &Software::new()).unwrap();
        assert_eq!(seen(), expected, "request {nth}");
    }
}

#[test]
fn four_threads_share_an_engine_and_not_a_queue() {
    let runtime = runtime("offload", vec![Fault::new(Effect::Error, Trigger::Every(13))]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| work(&runtime, 500));
        }
    });
    let total: u64 = runtime.snapshot().cells.iter().map(|cell| cell.requests).sum();
    assert_eq!(total, 2000 + 4 * 2, "every request is counted once");
}
