//! The runtime with the emulated accelerator, in real time: threads, rings, and faults declared in advance.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common;

use std::sync::Arc;

use common::{HandClock, assert_right, builder_with, digest, drain, misfit, seal};
use wattlock::policy::{Ask, Choice, Machine, Policy, Rest, Settings, Side, Weather, by_name};
use wattlock::{Dispatcher, Runtime, Submitted};
use wattlock_core::{
    Algorithm, Data, Description, Engine, Error, Item, Key, Kind, Nanos, Request, Run, execute, known_answers,
};
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::software::Software;
use wattlock_emul::{Effect, Emulated, Fault, Model, Pace, Trigger};

/// A card without faults is given all the time it may need on a busy machine; one with faults is given up on soon.
pub(crate) fn runtime(policy: &str, faults: Vec<Fault>) -> Runtime {
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
pub(crate) fn work(runtime: &Runtime, count: u64) -> u64 {
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

pub(crate) fn requests_on_card(runtime: &Runtime) -> u64 {
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

/// A runtime with the published card, whose window has so many requests.
fn with_window(pace: Pace, window: u32, policy: &str, settings: &[&str], clock: wattlock::Clock) -> Runtime {
    let settings = Settings::from_pairs(settings.iter().copied()).unwrap();
    let runtime = on_card(pace, window, clock).policy(policy, settings).build().unwrap();
    assert_eq!(runtime.machine().engines[2].window, window, "policies know the window");
    runtime
}

fn on_card(pace: Pace, window: u32, clock: wattlock::Clock) -> wattlock::Builder {
    let instruction: Arc<dyn Engine> = Arc::new(Instruction::new());
    let mut model = Model::qat_dh8970();
    model.window.requests = window;
    let card = Emulated::new(model, instruction.clone(), pace).unwrap();
    // All the time it may need on a busy machine.
    Runtime::builder()
        .engines(vec![instruction, Arc::new(Software::new()), Arc::new(card)])
        .clock(clock)
        .give_up_after_ns(60_000_000_000)
        .telemetry(false)
        .profile(wattlock::Profile::built_in())
}

/// A rule that is told of another idle share than this machine's.
struct WhileIdle(Box<dyn Policy>, u16);

impl WhileIdle {
    fn told(&self, weather: &Weather) -> Weather {
        Weather { idle_permille: self.1, ..*weather }
    }
}

impl Policy for WhileIdle {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn choose(&mut self, ask: &Ask, weather: &Weather, now: Nanos) -> Choice {
        self.0.choose(ask, &self.told(weather), now)
    }

    fn claim(&self, side: Side, rest: &Rest, weather: &Weather) -> u32 {
        self.0.claim(side, rest, &self.told(weather))
    }
}

fn shared_while_idle(idle_permille: u16, settings: &[&str]) -> [u64; 3] {
    let settings = Settings::from_pairs(settings.iter().copied()).unwrap();
    let rule = move |machine: &Machine| -> Box<dyn Policy> {
        Box::new(WhileIdle(by_name("aca-sds", machine.clone(), &settings).unwrap(), idle_permille))
    };
    shared_by(
        &on_card(Pace::RealTime, 256, wattlock::Clock::real()).own_policy("aca-sds", rule).build().unwrap(),
    )
}

#[test]
fn eeca_gives_the_cpu_what_comes_while_the_card_is_full() {
    let (clock, window) = (HandClock::default(), 64);
    let runtime = with_window(Pace::Stepped, window, "eeca", &["eeca.threshold_bytes=0"], clock.clock());
    let mut dispatcher = runtime.dispatcher();
    assert!(matches!(dispatcher.submit(digest(0)), Submitted::Done(_)));
    clock.advance(10_000_000);
    dispatcher.poll(&mut |_| panic!("only tests are in flight"));
    // Time stands still: the card answers nothing.
    let full = u64::from(window);
    for mark in 1..=full {
        assert!(matches!(dispatcher.submit(digest(mark)), Submitted::Pending(_)), "{mark}");
    }
    for mark in full + 1..=full + 2 {
        let Submitted::Done(done) = dispatcher.submit(digest(mark)) else { panic!("{mark} waits") };
        assert_right(&done);
    }
    let snapshot = runtime.snapshot();
    let card = snapshot.engines.iter().find(|engine| engine.engine == "emulated").unwrap();
    assert_eq!(card.fallbacks, [("untested".to_owned(), 1), ("migrated".to_owned(), 2)]);
    clock.advance(1_000_000_000);
    dispatcher.poll(&mut |completion| assert_right(&completion));
    assert_eq!((dispatcher.in_flight(), requests_on_card(&runtime)), (0, full));
}

/// What became of 20 operations of 256 chunks under a policy: of all pieces those that the card did, those that the CPU took
/// and those that the card took after that.
fn shared(window: u32, policy: &str, settings: &[&str]) -> [u64; 3] {
    shared_by(&with_window(Pace::RealTime, window, policy, settings, wattlock::Clock::real()))
}

fn shared_by(runtime: &Runtime) -> [u64; 3] {
    let mut dispatcher = runtime.dispatcher();
    let key = Key::symmetric(Algorithm::Aes256Gcm, &[9; 32]).unwrap();
    let aad = [0; 9];
    let mut operation = |pieces: usize| {
        let mut buffers = vec![vec![7_u8; 4096]; pieces];
        let mut tags = vec![[0; 16]; pieces];
        let nonces: Vec<[u8; 12]> = (0..pieces).map(|at| [at as u8; 12]).collect();
        let mut items: Vec<Item<'_>> = buffers
            .iter_mut()
            .zip(&mut tags)
            .zip(&nonces)
            .map(|((buffer, tag), nonce)| {
                let request = Request::new(Kind::Aes256GcmSeal, &key, Data::InPlace(buffer));
                Item::new(Request { nonce, aad: &aad, tag, ..request })
            })
            .collect();
        dispatcher.run_all(&mut items);
        assert!(items.iter().all(|item| item.result == Ok(4096)));
        let mut by_cpu = vec![7_u8; 4096];
        for (buffer, (tag, nonce)) in buffers.iter().zip(tags.iter().zip(&nonces)) {
            by_cpu.fill(7);
            let mut right = [0; 16];
            let request = Request::new(Kind::Aes256GcmSeal, &key, Data::InPlace(&mut by_cpu));
            let mut request = Request { nonce, aad: &aad, tag: &mut right, ..request };
            execute(&Instruction::new(), &mut request).unwrap();
            assert!(*buffer == by_cpu && *tag == right, "other bytes than the CPU's");
        }
    };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while requests_on_card(runtime) == 0 {
        assert!(std::time::Instant::now() < deadline, "the card is never used");
        operation(256);
    }
    let counts = |runtime: &Runtime| {
        let snapshot = runtime.snapshot();
        let card = snapshot.engines.iter().find(|engine| engine.engine == "emulated").unwrap();
        let of = |name: &str| card.fallbacks.iter().find(|(reason, _)| reason == name).map_or(0, |(_, n)| *n);
        assert_eq!(of("window-full"), 0, "{:?}", card.fallbacks);
        [requests_on_card(runtime), of("migrated"), card.returned]
    };
    let before = counts(runtime);
    (0..20).for_each(|_| operation(256));
    let after = counts(runtime);
    let did = std::array::from_fn(|at| after[at] - before[at]);
    assert_eq!(did[0] + did[1], 20 * 256, "each piece once: {did:?}");
    did
}

#[test]
fn a_piece_that_an_empty_window_has_no_room_for_is_the_cpus_at_once() {
    let instruction: Arc<dyn Engine> = Arc::new(Instruction::new());
    let mut model = Model::qat_dh8970();
    model.window.bytes = 1 << 20;
    let card = Emulated::new(model, instruction.clone(), Pace::Stepped).unwrap();
    let clock = HandClock::default();
    let runtime = Runtime::builder()
        .engines(vec![instruction, Arc::new(Software::new()), Arc::new(card)])
        .policy("offload", Settings::default())
        .clock(clock.clock())
        .telemetry(false)
        .profile(wattlock::Profile::built_in())
        .build()
        .unwrap();
    let mut dispatcher = runtime.dispatcher();
    let key = Key::symmetric(Algorithm::Aes256Gcm, &[9; 32]).unwrap();
    for opened in [false, true] {
        let (mut buffers, mut tags) = ([vec![1_u8; 2 << 20], vec![2; 2 << 20]], [[0; 16]; 2]);
        let mut items: Vec<Item<'_>> = buffers
            .iter_mut()
            .zip(&mut tags)
            .map(|(buffer, tag)| {
                let request = Request::new(Kind::Aes256GcmSeal, &key, Data::InPlace(buffer));
                Item::new(Request { nonce: &[3; 12], tag, ..request })
            })
            .collect();
        // Time stands still: whoever waits for the card here waits for ever.
        dispatcher.run_all(&mut items);
        assert!(items.iter().all(|item| item.result == Ok(2 << 20)), "{opened}");
        clock.advance(10_000_000);
        dispatcher.poll(&mut |_| panic!("only tests are in flight"));
    }
    let snapshot = runtime.snapshot();
    let card = snapshot.engines.iter().find(|engine| engine.engine == "emulated").unwrap();
    assert_eq!(card.fallbacks, [("untested".to_owned(), 1), ("window-full".to_owned(), 3)]);
}

#[test]
fn eeca_compares_the_whole_operation_and_pieces_go_both_ways_while_the_card_is_full() {
    let by_window = ["busy_permille=1000"];
    assert_eq!(shared(256, "eeca", &by_window), [20 * 256, 0, 0], "the window holds an operation");
    for window in [32, 8] {
        let [card, migrated, returned] = shared(window, "eeca", &by_window);
        assert!(card > 0 && migrated > 0 && returned > 0, "{window}: {card}, {migrated}, {returned}");
    }
}

#[test]
fn aca_sds_has_the_cpu_take_part_while_it_is_idle_whatever_the_window_holds() {
    let settings = ["aca-sds.alpha=0", "aca-sds.thread=0", "aca-sds.idle_permille=500"];
    assert_eq!(shared_while_idle(500, &settings), [20 * 256, 0, 0]);
    let [card, migrated, _] = shared_while_idle(501, &settings);
    assert!(card >= 20 && migrated >= 20, "{card}, {migrated}");
}

#[test]
fn a_device_that_does_its_work_alone_does_all_of_it_whatever_its_window() {
    for policy in ["offload", "qweb"] {
        assert_eq!(shared(8, policy, &[]), [20 * 256, 0, 0], "{policy}");
    }
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
