//! CPU lanes through the runtime: batches by kind, thin batches, and nobody waiting for company that cannot come. Where the
//! CPU has none, their queue with passes made one request after the other.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::{Arc, Mutex};

use common::{HOLD_NS, HandClock, misfit};
use wattlock::policy::{Choice, EngineId, Policy, Weather};
use wattlock::{Builder, Dispatcher, Profile, Runtime, Submitted, own_engines};
use wattlock_core::{
    Completion, Error, Fault, Kind, KindSet, LatencyClass, Nanos, OwnedRequest, Shape, known_answers,
};
use wattlock_cpu::lanes::Item;
use wattlock_cpu::lanes::dev::{Passes, one_by_one};

const INSTRUCTION: EngineId = EngineId(0);
const LANES: EngineId = EngineId(2);

/// Everything to lanes, held for `HOLD_NS`, and three like it unasked; one or two are done one by one.
#[derive(Default)]
struct ToLanes {
    /// Questions, and how many are said to have come without one.
    said: Arc<Mutex<Vec<Said>>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Said {
    Asked(Shape),
    Joined(Shape, u16),
}

impl Policy for ToLanes {
    fn name(&self) -> &'static str {
        "to lanes"
    }

    fn choose(&mut self, shape: &Shape, weather: &Weather, _: Nanos) -> Choice {
        assert!(weather.engines[2].held_alike <= weather.engines[2].held);
        self.said.lock().unwrap().push(Said::Asked(*shape));
        Choice { engine: LANES, hold_ns: HOLD_NS, clock: None, alike: 3 }
    }

    fn joined(&mut self, shape: &Shape, count: u16) {
        self.said.lock().unwrap().push(Said::Joined(*shape, count));
    }

    fn choose_inline(&mut self, _: &Shape, _: &Weather, _: Nanos) -> EngineId {
        INSTRUCTION
    }

    fn take_over(&mut self, _: &Shape, from: EngineId, count: u32, _: &Weather) -> Option<EngineId> {
        assert_eq!(from, LANES);
        (count < 3).then_some(INSTRUCTION)
    }
}

fn with_lanes() -> Builder {
    let mut engines = own_engines();
    // What these tests ask for is what lanes of AVX-512 do; those of AVX2 do less.
    engines.retain(|engine| {
        let description = engine.description();
        description.name != "lanes" || description.queued.contains(Kind::P256Derive)
    });
    if engines.len() < 3 {
        let curves = [Kind::X25519Derive, Kind::P256Derive, Kind::P384Derive, Kind::EcdsaP256Sign];
        let kinds = KindSet::of(&curves).with(Kind::Rsa2048Private);
        engines.push(Arc::new(Passes::new(kinds, one_by_one(engines[INSTRUCTION.index()].clone()))));
    }
    Runtime::builder().engines(engines)
}

fn builder(clock: &HandClock) -> Builder {
    with_lanes()
        .own_policy("to lanes", |_| Box::<ToLanes>::default())
        .clock(clock.clock())
        .telemetry(false)
        .profile(Profile::built_in())
}

/// A dispatcher whose lanes have proved these kinds.
fn dispatcher(clock: &HandClock, kinds: &[Kind]) -> Dispatcher {
    proved(&builder(clock).build().unwrap(), kinds)
}

fn proved(runtime: &Runtime, kinds: &[Kind]) -> Dispatcher {
    let mut dispatcher = runtime.dispatcher();
    for kind in kinds {
        assert!(
            matches!(dispatcher.submit(question(*kind, 0)), Submitted::Done(_)),
            "the first request starts the test and is done elsewhere"
        );
        dispatcher.poll(&mut |_| {});
    }
    dispatcher
}

fn question(kind: Kind, mark: u64) -> OwnedRequest {
    let mut request = known_answers(kind).swap_remove(0).request;
    request.mark = mark;
    request
}

fn pending(submitted: Submitted) {
    assert!(matches!(submitted, Submitted::Pending(_)), "{submitted:?}");
}

/// What has come back: its batch, and whether it is the known answer.
fn back(dispatcher: &mut Dispatcher) -> Vec<(u64, u16)> {
    let mut all: Vec<Completion> = Vec::new();
    dispatcher.poll(&mut |completion| all.push(completion));
    let check = |completion: &Completion| {
        let answer = known_answers(completion.request.kind).swap_remove(0);
        let checker = wattlock_cpu::software::Software::new();
        answer.expected.verdict(&completion.request, &completion.result, &checker).unwrap();
        (completion.request.mark, completion.cost.batch)
    };
    let mut back: Vec<_> = all.iter().map(check).collect();
    back.sort_unstable();
    back
}

#[test]
fn a_full_batch_of_one_kind_is_one_pass() {
    let clock = HandClock::default();
    let mut dispatcher = dispatcher(&clock, &[Kind::X25519Derive]);
    dispatcher.set_active(100);
    (1..8).for_each(|mark| pending(dispatcher.submit(question(Kind::X25519Derive, mark))));
    assert_eq!(back(&mut dispatcher), [], "company may still come");
    pending(dispatcher.submit(question(Kind::X25519Derive, 8)));
    assert_eq!(back(&mut dispatcher), (1..=8).map(|mark| (mark, 8)).collect::<Vec<_>>());
    assert_eq!(dispatcher.in_flight(), 0);
}

/// Who follows unasked is as much a part of the batch as the others, and the policy hears of each exactly once.
#[test]
fn as_many_alike_join_unasked_as_the_policy_said() {
    let clock = HandClock::default();
    let said: Arc<Mutex<Vec<Said>>> = Arc::default();
    let logged = said.clone();
    let builder = builder(&clock).own_policy("to lanes", move |_| Box::new(ToLanes { said: logged.clone() }));
    let mut dispatcher = proved(&builder.build().unwrap(), &[Kind::X25519Derive, Kind::P256Derive]);
    dispatcher.set_active(100);
    let (x25519, p256) = (Kind::X25519Derive, Kind::P256Derive);
    let shape = |kind| question(kind, 0).shape();
    let heard = |expected: &[Said]| assert_eq!(std::mem::take(&mut *said.lock().unwrap()), expected);
    heard(&[Said::Asked(shape(x25519)), Said::Asked(shape(p256))]);
    (0..8).for_each(|mark| pending(dispatcher.submit(question(x25519, mark))));
    assert_eq!(back(&mut dispatcher), (0..8).map(|mark| (mark, 8)).collect::<Vec<_>>());
    let four = [Said::Asked(shape(x25519)), Said::Joined(shape(x25519), 3)];
    heard(&[four, four].concat());
    // Another kind, and another urgency, are asked for; those after them need not be.
    let bulk = |mark| {
        let mut request = question(x25519, mark);
        request.class = LatencyClass::Bulk;
        request
    };
    for request in [question(x25519, 0), question(p256, 1), question(x25519, 2), bulk(3), question(x25519, 4)]
    {
        pending(dispatcher.submit(request));
    }
    heard(&[
        Said::Asked(shape(x25519)),
        Said::Asked(shape(p256)),
        Said::Joined(shape(x25519), 1),
        Said::Asked(bulk(0).shape()),
    ]);
    // What was said holds for the batch and no longer.
    dispatcher.flush();
    assert_eq!(back(&mut dispatcher), [(0, 4), (1, 1), (2, 4), (3, 4), (4, 4)]);
    heard(&[Said::Joined(shape(x25519), 1)]);
    pending(dispatcher.submit(question(x25519, 5)));
    heard(&[Said::Asked(shape(x25519))]);
    pending(dispatcher.submit(question(x25519, 6)));
    clock.advance(HOLD_NS);
    assert_eq!(back(&mut dispatcher), [(5, 1), (6, 1)], "the first one's deadline is everybody's");
    heard(&[Said::Joined(shape(x25519), 1)]);
}

/// What has come back: marks of answers, and marks and errors of failures.
fn outcomes(dispatcher: &mut Dispatcher) -> (Vec<u64>, Vec<(u64, Error)>) {
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    dispatcher.poll(&mut |completion| match completion.result {
        Ok(_) => done.push(completion.request.mark),
        Err(error) => failed.push((completion.request.mark, error)),
    });
    done.sort_unstable();
    (done, failed)
}

#[test]
fn a_key_that_does_not_fit_together_keeps_no_other_from_the_lanes() {
    let clock = HandClock::default();
    // As lanes do: whatever is wrong with the key, they see that the result is wrong.
    let mut engines: Vec<_> = own_engines().into_iter().take(LANES.index()).collect();
    let instruction = engines[INSTRUCTION.index()].clone();
    let pass = move |_: Kind, items: &mut [Item<'_>]| {
        let wrong = |_| Error::Device(Fault::WrongResult);
        items.iter_mut().for_each(|item| item.result = instruction.execute(&mut item.request).map_err(wrong));
    };
    engines.push(Arc::new(Passes::new(KindSet::of(&[Kind::Rsa2048Private]), pass)));
    let mut dispatcher = proved(&builder(&clock).engines(engines).build().unwrap(), &[Kind::Rsa2048Private]);
    dispatcher.set_active(100);
    for round in 0..3 {
        (1..8).for_each(|mark| pending(dispatcher.submit(question(Kind::Rsa2048Private, mark))));
        pending(dispatcher.submit(misfit(8)));
        let (done, failed) = outcomes(&mut dispatcher);
        assert_eq!(done, [1, 2, 3, 4, 5, 6, 7], "round {round}");
        assert!(matches!(failed[..], [(8, Error::Invalid(_))]), "round {round}: {failed:?}");
    }
    assert_eq!(dispatcher.in_flight(), 0);
}

#[test]
fn two_kinds_do_not_fill_each_others_batch() {
    let (clock, kinds) = (HandClock::default(), [Kind::X25519Derive, Kind::P256Derive]);
    let mut dispatcher = dispatcher(&clock, &kinds);
    dispatcher.set_active(100);
    for mark in 1..=4 {
        kinds.iter().for_each(|kind| pending(dispatcher.submit(question(*kind, mark))));
    }
    assert_eq!(back(&mut dispatcher), [], "four of each are not a batch");
    clock.advance(HOLD_NS);
    let expected: Vec<_> = (1..=4).flat_map(|mark| [(mark, 4), (mark, 4)]).collect();
    assert_eq!(back(&mut dispatcher), expected);
}

#[test]
fn a_batch_that_stayed_thin_is_done_one_by_one() {
    let clock = HandClock::default();
    let runtime = builder(&clock).build().unwrap();
    let mut dispatcher = proved(&runtime, &[Kind::X25519Derive]);
    dispatcher.set_active(100);
    (1..=2).for_each(|mark| pending(dispatcher.submit(question(Kind::X25519Derive, mark))));
    clock.advance(HOLD_NS - 1);
    assert_eq!(back(&mut dispatcher), []);
    clock.advance(1);
    assert_eq!(back(&mut dispatcher), [(1, 1), (2, 1)]);
    let cells = runtime.snapshot().cells;
    let counted: Vec<_> = cells.iter().map(|cell| (&*cell.engine, cell.requests, cell.held_ns)).collect();
    assert_eq!(counted, [("instruction", 3, 2 * HOLD_NS)], "whoever does them counts the time held");
}

#[test]
fn when_everyone_waits_nobody_waits_for_more() {
    let clock = HandClock::default();
    let mut dispatcher = dispatcher(&clock, &[Kind::X25519Derive]);
    dispatcher.set_active(5);
    (1..=4).for_each(|mark| pending(dispatcher.submit(question(Kind::X25519Derive, mark))));
    assert_eq!(back(&mut dispatcher), []);
    dispatcher.set_active(4);
    assert_eq!(back(&mut dispatcher), (1..=4).map(|mark| (mark, 4)).collect::<Vec<_>>());
}

#[test]
fn requests_together_share_passes_as_the_policy_says_and_none_is_held() {
    struct Eight;
    impl Policy for Eight {
        fn name(&self) -> &'static str {
            "eight"
        }
        fn choose(&mut self, _: &Shape, _: &Weather, _: Nanos) -> Choice {
            panic!("it has been asked about all of them")
        }
        fn choose_together(
            &mut self,
            _: &Shape,
            count: u32,
            _: &Weather,
            _: Nanos,
        ) -> Option<(EngineId, u32)> {
            Some(if count > 1 { (LANES, count.min(8)) } else { (INSTRUCTION, 1) })
        }
        fn choose_inline(&mut self, _: &Shape, _: &Weather, _: Nanos) -> EngineId {
            INSTRUCTION
        }
        fn take_over(&mut self, _: &Shape, _: EngineId, _: u32, _: &Weather) -> Option<EngineId> {
            panic!("nothing is reconsidered")
        }
    }
    let runtime = with_lanes()
        .own_policy("eight", |_| Box::new(Eight))
        .telemetry(false)
        .profile(Profile::built_in())
        .build()
        .unwrap();
    let mut dispatcher = runtime.dispatcher();
    let mut together = |count: u64| {
        let mut requests: Vec<_> = (0..count).map(|mark| question(Kind::X25519Derive, mark)).collect();
        let (mut at_once, mut promised) = (Vec::new(), Vec::new());
        dispatcher.submit_together(&mut requests, 0, &mut |mark, submitted| match submitted {
            Submitted::Done(completion) => at_once.push((mark, completion.result.is_ok())),
            Submitted::Pending(_) => promised.push(mark),
        });
        assert_eq!(requests.len(), 0);
        let back = back(&mut dispatcher);
        assert_eq!(dispatcher.in_flight(), 0);
        assert_eq!(back.iter().map(|one| one.0).collect::<Vec<_>>(), promised);
        (back, at_once)
    };
    let (back, at_once) = together(3);
    assert_eq!(
        (back.len(), at_once.len()),
        (0, 3),
        "the first start the test of lanes and are done elsewhere"
    );
    let (back, at_once) = together(11);
    let expected: Vec<_> = (0..8).map(|mark| (mark, 8)).chain((8..11).map(|mark| (mark, 3))).collect();
    assert_eq!((back, at_once), (expected, vec![]));
    let (back, at_once) = together(9);
    assert_eq!(back.len(), 8);
    assert_eq!(at_once, [(8, true)]);
}

/// What is done one after the other is asked about once, and a bad one among them harms nobody.
#[test]
fn requests_together_that_lanes_would_not_speed_up_are_asked_about_once() {
    struct Row(Arc<Mutex<Vec<u32>>>);
    impl Policy for Row {
        fn name(&self) -> &'static str {
            "row"
        }
        fn choose(&mut self, _: &Shape, _: &Weather, _: Nanos) -> Choice {
            panic!("it has been asked about all of them")
        }
        fn choose_together(
            &mut self,
            _: &Shape,
            count: u32,
            _: &Weather,
            _: Nanos,
        ) -> Option<(EngineId, u32)> {
            self.0.lock().unwrap().push(count);
            Some((INSTRUCTION, count.min(4)))
        }
        fn choose_inline(&mut self, _: &Shape, _: &Weather, _: Nanos) -> EngineId {
            INSTRUCTION
        }
    }
    let asked: Arc<Mutex<Vec<u32>>> = Arc::default();
    let of_policy = asked.clone();
    let builder = with_lanes().own_policy("row", move |_| Box::new(Row(of_policy.clone())));
    let runtime = builder.telemetry(false).profile(Profile::built_in()).build().unwrap();
    let mut dispatcher = runtime.dispatcher();
    let mut requests: Vec<_> = (0..6).map(|mark| question(Kind::X25519Derive, mark)).collect();
    requests[2].input.pop();
    let mut done = Vec::new();
    dispatcher.submit_together(&mut requests, 7, &mut |mark, submitted| {
        let Submitted::Done(completion) = submitted else { panic!("{mark} is to come") };
        let answer = known_answers(Kind::X25519Derive).swap_remove(0);
        let checker = wattlock_cpu::software::Software::new();
        let right = answer.expected.verdict(&completion.request, &completion.result, &checker).is_ok();
        done.push((mark, right));
    });
    assert_eq!(done, [(0, true), (1, true), (2, false), (3, true), (4, true), (5, true)]);
    assert_eq!(*asked.lock().unwrap(), [6, 2]);
    let cells = runtime.snapshot().cells;
    let counted: Vec<_> =
        cells.iter().map(|cell| (cell.engine.as_str(), cell.requests, cell.held_ns)).collect();
    assert_eq!(counted, [("instruction", 5, 5 * 7)]);
}

#[test]
fn a_cancelled_request_leaves_its_batch() {
    let clock = HandClock::default();
    let mut dispatcher = dispatcher(&clock, &[Kind::X25519Derive]);
    dispatcher.set_active(100);
    let Submitted::Pending(first) = dispatcher.submit(question(Kind::X25519Derive, 1)) else {
        panic!("done at once")
    };
    (2..=4).for_each(|mark| pending(dispatcher.submit(question(Kind::X25519Derive, mark))));
    assert_eq!(dispatcher.cancel(first).unwrap().mark, 1);
    clock.advance(HOLD_NS);
    assert_eq!(back(&mut dispatcher), [(2, 3), (3, 3), (4, 3)]);
}

/// With the calibrated costs of lanes and one client, `adaptive` never queues: there is nobody to wait for.
#[test]
fn one_request_alone_is_done_inside_the_call() {
    let runtime = with_lanes().telemetry(false).profile(Profile::built_in()).build().unwrap();
    let lanes = Arc::clone(&runtime.engines()[LANES.index()]);
    for kind in lanes.description().queued.iter() {
        let mut dispatcher = runtime.dispatcher();
        dispatcher.set_active(1);
        for mark in 0..300 {
            assert!(matches!(dispatcher.submit(question(kind, mark)), Submitted::Done(_)), "{}", kind.name());
        }
    }
}

/// The library never calibrates: what most users get is the built-in table, and it must know what lanes are worth.
#[test]
fn eight_that_wait_share_a_pass_by_the_built_in_table() {
    let clock = HandClock::default();
    let built_in = Profile::built_in();
    let runtime = with_lanes().telemetry(false).clock(clock.clock()).profile(built_in).build().unwrap();
    let lanes = Arc::clone(&runtime.engines()[LANES.index()]);

    for kind in lanes.description().queued.iter() {
        let mut dispatcher = runtime.dispatcher();
        dispatcher.set_active(8);
        let first = dispatcher.submit(question(kind, 0));
        assert!(matches!(first, Submitted::Done(_)), "the first request starts the test");
        dispatcher.poll(&mut |_| {});
        (1..=8).for_each(|mark| pending(dispatcher.submit(question(kind, mark))));
        let expected: Vec<_> = (1..=8).map(|mark| (mark, 8)).collect();
        assert_eq!(back(&mut dispatcher), expected, "{}", kind.name());
    }
}

/// A door whose requests are all done inside the call has nothing to poll for; the engine's tests end all the same.
#[test]
fn lanes_are_proved_without_anybody_polling() {
    let clock = HandClock::default();
    let mut dispatcher = builder(&clock).build().unwrap().dispatcher();
    dispatcher.set_active(100);
    assert!(matches!(dispatcher.submit(question(Kind::X25519Derive, 0)), Submitted::Done(_)));
    pending(dispatcher.submit(question(Kind::X25519Derive, 1)));
    clock.advance(HOLD_NS);
    assert_eq!(back(&mut dispatcher), [(1, 1)]);
}
