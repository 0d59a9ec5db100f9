//! CPU lanes through the runtime: batches in hand, of one kind, in the caller's buffers. Where the CPU has no lanes, an
//! engine as wide whose passes are made one request after the other.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common;

use std::sync::{Arc, Mutex};

use common::{HandClock, misfit};
use wattlock::policy::{Ask, Choice, EngineId, Policy, Weather};
use wattlock::{Builder, Dispatcher, Profile, Runtime, Submitted, own_engines};
use wattlock_core::{Completion, Error, Fault, Item, Kind, KindSet, Nanos, OwnedRequest, known_answers};
use wattlock_cpu::lanes::dev::{Passes, one_by_one};

const INSTRUCTION: EngineId = EngineId(0);
const LANES: EngineId = EngineId(2);

/// Two and more go to lanes, eight at a time; one goes to instructions.
#[derive(Default)]
struct Eight(Arc<Mutex<Vec<u32>>>);

impl Policy for Eight {
    fn name(&self) -> &'static str {
        "eight"
    }

    fn choose(&mut self, ask: &Ask, _: &Weather, _: Nanos) -> Choice {
        self.0.lock().unwrap().push(ask.count);
        match ask.count {
            1 => Choice::now(INSTRUCTION),
            count => Choice { count: count.min(8), ..Choice::now(LANES) },
        }
    }
}

fn with_lanes() -> Builder {
    let mut engines = own_engines();
    // What these tests ask for is what lanes of AVX-512 do; those of AVX2 do less.
    engines.retain(|engine| {
        let description = engine.description();
        description.name != "lanes" || description.inline.contains(Kind::P256Derive)
    });
    if engines.len() < 3 {
        let curves = [Kind::X25519Derive, Kind::P256Derive, Kind::P384Derive, Kind::EcdsaP256Sign];
        let kinds = KindSet::of(&curves).with(Kind::Rsa2048Private);
        engines.push(Arc::new(Passes::new(kinds, one_by_one(engines[INSTRUCTION.index()].clone()))));
    }
    Runtime::builder().engines(engines).telemetry(false).profile(Profile::built_in())
}

fn eight(builder: Builder) -> (Runtime, Arc<Mutex<Vec<u32>>>) {
    let asked: Arc<Mutex<Vec<u32>>> = Arc::default();
    let of_policy = asked.clone();
    let builder = builder.own_policy("eight", move |_| Box::new(Eight(of_policy.clone())));
    (builder.build().unwrap(), asked)
}

fn question(kind: Kind, mark: u64) -> OwnedRequest {
    let mut request = known_answers(kind).swap_remove(0).request;
    request.mark = mark;
    request
}

fn is_right(request: &OwnedRequest, result: &Result<usize, Error>) -> bool {
    let answer = known_answers(request.kind).swap_remove(0);
    let checker = wattlock_cpu::software::Software::new();
    answer.expected.verdict(request, result, &checker).is_ok()
}

/// Everything handed over together, and done when the call returns: in the order in which it was done.
fn together(dispatcher: &mut Dispatcher, requests: Vec<OwnedRequest>, held_ns: Nanos) -> Vec<Completion> {
    let (mut requests, mut done) = (requests, Vec::new());
    dispatcher.submit_together(&mut requests, held_ns, &mut |mark, submitted| {
        let Submitted::Done(completion) = submitted else { panic!("{mark} is to come") };
        assert_eq!(completion.request.mark, mark);
        done.push(completion);
    });
    assert!(requests.is_empty() && dispatcher.in_flight() == 0);
    done
}

/// Requests each engine has done, and the mean batch of lanes.
fn counted(runtime: &Runtime) -> Vec<(String, u64, Option<f64>)> {
    let cells = runtime.snapshot().cells;
    cells.iter().map(|cell| (cell.engine.clone(), cell.requests, cell.mean_batch())).collect()
}

fn on_lanes(runtime: &Runtime) -> u64 {
    counted(runtime).iter().filter(|(engine, ..)| engine == "lanes").map(|(_, requests, _)| requests).sum()
}

/// An engine that leaves a request of a batch out has not done it.
#[test]
fn a_request_that_an_engine_leaves_out_is_done_by_another() {
    let mut engines: Vec<_> = own_engines().into_iter().take(LANES.index()).collect();
    let instruction = engines[INSTRUCTION.index()].clone();
    let passes = Mutex::new(0);
    let pass = move |_: Kind, items: &mut [Item<'_>]| {
        let mut passes = passes.lock().unwrap();
        *passes += 1;
        // The first pass is the known answers'.
        let until = if *passes > 1 { items.len() - 1 } else { items.len() };
        items[..until].iter_mut().for_each(|item| item.result = instruction.execute(&mut item.request));
    };
    engines.push(Arc::new(Passes::new(KindSet::of(&[Kind::X25519Derive]), pass)));
    let (runtime, _) = eight(with_lanes().engines(engines));
    let mut dispatcher = runtime.dispatcher();
    let done = together(&mut dispatcher, (0..8).map(|mark| question(Kind::X25519Derive, mark)).collect(), 0);
    assert!(done.iter().all(|one| is_right(&one.request, &one.result)));
    assert_eq!(on_lanes(&runtime), 7);
    dispatcher.run_all(&mut []);
}

/// A lane that gave a wrong result is not believed for a while, and then tested anew.
#[test]
fn lanes_that_gave_a_wrong_result_are_left_for_a_while() {
    let clock = HandClock::default();
    let mut engines: Vec<_> = own_engines().into_iter().take(LANES.index()).collect();
    let instruction = engines[INSTRUCTION.index()].clone();
    let passes = Mutex::new(0);
    let pass = move |_: Kind, items: &mut [Item<'_>]| {
        let mut passes = passes.lock().unwrap();
        *passes += 1;
        for item in items.iter_mut() {
            item.result = instruction.execute(&mut item.request);
        }
        if *passes == 2 {
            items[3].result = Err(Error::Device(Fault::WrongResult));
        }
    };
    engines.push(Arc::new(Passes::new(KindSet::of(&[Kind::X25519Derive]), pass)));
    let (runtime, _) = eight(with_lanes().engines(engines).clock(clock.clock()));
    let mut dispatcher = runtime.dispatcher();
    let mut eight = || {
        let before = on_lanes(&runtime);
        let requests = (0..8).map(|mark| question(Kind::X25519Derive, mark)).collect();
        let done = together(&mut dispatcher, requests, 0);
        assert!(done.iter().all(|one| is_right(&one.request, &one.result)));
        on_lanes(&runtime) - before
    };
    assert_eq!(eight(), 7);
    assert_eq!(eight(), 0, "in quarantine");
    clock.advance(100_000_000);
    assert_eq!(eight(), 8);
}

#[test]
fn requests_in_hand_share_passes_as_the_policy_says() {
    let (runtime, asked) = eight(with_lanes());
    let mut dispatcher = runtime.dispatcher();
    let questions = |count: u64| (0..count).map(|mark| question(Kind::X25519Derive, mark)).collect();
    let done = together(&mut dispatcher, questions(11), 0);
    assert!(done.iter().all(|one| is_right(&one.request, &one.result)));
    let batches: Vec<u16> = done.iter().map(|one| one.cost.batch).collect();
    assert_eq!(batches, [8, 8, 8, 8, 8, 8, 8, 8, 3, 3, 3]);
    let done = together(&mut dispatcher, questions(9), 0);
    assert_eq!((done[7].cost.batch, done[8].cost.batch), (8, 1));
    assert_eq!(*asked.lock().unwrap(), [11, 3, 9, 1]);
    let mean = (8.0 * 16.0 + 9.0) / 19.0;
    assert_eq!(counted(&runtime), [("instruction".into(), 1, None), ("lanes".into(), 19, Some(mean))]);
}

/// Everything in one call.
struct All;

impl Policy for All {
    fn name(&self) -> &'static str {
        "all"
    }

    fn choose(&mut self, ask: &Ask, _: &Weather, _: Nanos) -> Choice {
        Choice { count: ask.count, ..Choice::now(LANES) }
    }
}

/// What several passes of a call took is known from the time of one and the mean of their sizes.
#[test]
fn a_call_of_several_passes_counts_their_mean_size() {
    for (count, passes) in [(1, 1), (7, 1), (8, 1), (9, 2), (16, 2), (17, 3), (30, 4)] {
        let runtime = with_lanes().own_policy("all", |_| Box::new(All)).build().unwrap();
        let mut dispatcher = runtime.dispatcher();
        let mut requests: Vec<_> = (0..count).map(|mark| question(Kind::X25519Derive, mark)).collect();
        let mut items: Vec<Item<'_>> = requests.iter_mut().map(|one| Item::new(one.view())).collect();
        dispatcher.run_all(&mut items);
        assert!(items.iter().all(|item| item.result.is_ok()));
        let cells = runtime.snapshot().cells;
        let lanes = cells.iter().find(|cell| cell.engine == "lanes").unwrap();
        assert_eq!((lanes.requests, lanes.batch_sum), (count, count * count / passes), "{count}");
    }
}

#[test]
fn borrowed_requests_are_done_where_they_lie_and_kinds_are_asked_about_by_themselves() {
    let (runtime, asked) = eight(with_lanes());
    let mut dispatcher = runtime.dispatcher();
    let kinds =
        [Kind::X25519Derive, Kind::X25519Derive, Kind::P256Derive, Kind::P256Derive, Kind::P256Derive];
    let mut requests: Vec<OwnedRequest> = kinds.iter().map(|kind| question(*kind, 0)).collect();
    let mut items: Vec<Item<'_>> = requests.iter_mut().map(|one| Item::new(one.view())).collect();
    dispatcher.run_all(&mut items);
    let results: Vec<_> = items.into_iter().map(|item| item.result).collect();
    assert!(requests.iter().zip(&results).all(|(request, result)| is_right(request, result)));
    assert_eq!(*asked.lock().unwrap(), [2, 3]);
}

#[test]
fn a_key_that_does_not_fit_together_keeps_no_other_from_the_lanes() {
    // As lanes do: whatever is wrong with the key, they see that the result is wrong.
    let mut engines: Vec<_> = own_engines().into_iter().take(LANES.index()).collect();
    let instruction = engines[INSTRUCTION.index()].clone();
    let pass = move |_: Kind, items: &mut [Item<'_>]| {
        let wrong = |_| Error::Device(Fault::WrongResult);
        items.iter_mut().for_each(|item| item.result = instruction.execute(&mut item.request).map_err(wrong));
    };
    engines.push(Arc::new(Passes::new(KindSet::of(&[Kind::Rsa2048Private]), pass)));
    let (runtime, _) = eight(with_lanes().engines(engines));
    let mut dispatcher = runtime.dispatcher();
    for round in 0..3 {
        let mut requests: Vec<_> = (1..8).map(|mark| question(Kind::Rsa2048Private, mark)).collect();
        requests.push(misfit(8));
        let done = together(&mut dispatcher, requests, 0);
        assert!(done[..7].iter().all(|one| is_right(&one.request, &one.result)), "round {round}");
        assert!(matches!(done[7].result, Err(Error::Invalid(_))), "round {round}: {:?}", done[7].result);
    }
    assert!(counted(&runtime).iter().any(|(engine, requests, _)| engine == "lanes" && *requests == 21));
}

/// What is done one after the other is asked about once, and a bad one among them harms no other.
#[test]
fn an_invalid_request_among_others_fails_alone() {
    let (runtime, _) = eight(with_lanes());
    let mut dispatcher = runtime.dispatcher();
    let mut requests: Vec<_> = (0..6).map(|mark| question(Kind::X25519Derive, mark)).collect();
    requests[2].input.pop();
    let done = together(&mut dispatcher, requests, 7);
    for one in &done {
        let right = one.result.is_ok() && is_right(&one.request, &one.result);
        assert_eq!(right, one.request.mark != 2, "{}: {:?}", one.request.mark, one.result);
    }
    let cells = runtime.snapshot().cells;
    let held: Vec<_> = cells.iter().map(|cell| (cell.engine.as_str(), cell.requests, cell.held_ns)).collect();
    assert_eq!(held, [("lanes", 5, 5 * 7)]);
}

/// A lane that fails its request is found out, and the CPU does that one request again.
#[test]
fn a_request_that_fails_in_a_lane_is_done_again_alone() {
    let mut engines: Vec<_> = own_engines().into_iter().take(LANES.index()).collect();
    let instruction = engines[INSTRUCTION.index()].clone();
    let passes = Mutex::new(0);
    let pass = move |_: Kind, items: &mut [Item<'_>]| {
        let mut passes = passes.lock().unwrap();
        *passes += 1;
        items.iter_mut().for_each(|item| item.result = instruction.execute(&mut item.request));
        // The first pass is the known answers'.
        if *passes > 1 {
            items[5].result = Err(Error::Device(Fault::WrongResult));
        }
    };
    engines.push(Arc::new(Passes::new(KindSet::of(&[Kind::X25519Derive]), pass)));
    let (runtime, _) = eight(with_lanes().engines(engines));
    let mut dispatcher = runtime.dispatcher();
    let done = together(&mut dispatcher, (0..8).map(|mark| question(Kind::X25519Derive, mark)).collect(), 0);
    assert!(done.iter().all(|one| is_right(&one.request, &one.result)));
    let requests: Vec<_> =
        counted(&runtime).into_iter().map(|(engine, requests, _)| (engine, requests)).collect();
    assert_eq!(requests, [("instruction".to_owned(), 1), ("lanes".to_owned(), 7)]);
}

/// Lanes that give a wrong known answer do nothing for anybody.
#[test]
fn lanes_that_fail_their_known_answers_are_never_used() {
    let mut engines: Vec<_> = own_engines().into_iter().take(LANES.index()).collect();
    let instruction = engines[INSTRUCTION.index()].clone();
    let pass = move |_: Kind, items: &mut [Item<'_>]| {
        for item in items {
            item.result = instruction.execute(&mut item.request);
            item.request.data.output()[0] ^= 1;
        }
    };
    engines.push(Arc::new(Passes::new(KindSet::of(&[Kind::X25519Derive]), pass)));
    let (runtime, _) = eight(with_lanes().engines(engines));
    let mut dispatcher = runtime.dispatcher();
    let done = together(&mut dispatcher, (0..8).map(|mark| question(Kind::X25519Derive, mark)).collect(), 0);
    assert!(done.iter().all(|one| is_right(&one.request, &one.result)));
    assert!(counted(&runtime).iter().all(|(engine, ..)| engine != "lanes"));
}

/// One wrong signature of a lane that the lane itself takes for right, as when a window of the nonce's multiplication was
/// skipped: with `verify_signatures` it never leaves, and the lanes are left for a while.
#[test]
fn a_wrong_signature_of_a_lane_leaves_only_where_nobody_verifies() {
    for verify in [false, true] {
        let clock = HandClock::default();
        let mut engines: Vec<_> = own_engines().into_iter().take(LANES.index()).collect();
        let instruction = engines[INSTRUCTION.index()].clone();
        let passes = Mutex::new(0);
        let pass = move |_: Kind, items: &mut [Item<'_>]| {
            let mut passes = passes.lock().unwrap();
            *passes += 1;
            items.iter_mut().for_each(|item| item.result = instruction.execute(&mut item.request));
            // The first pass is the known answers'.
            if *passes == 2 {
                items[3].request.data.output()[40] ^= 1;
            }
        };
        engines.push(Arc::new(Passes::new(KindSet::of(&[Kind::EcdsaP256Sign]), pass)));
        let builder = with_lanes().engines(engines).clock(clock.clock()).verify_signatures(verify);
        let (runtime, _) = eight(builder);
        let mut dispatcher = runtime.dispatcher();
        let mut eight = || -> Vec<bool> {
            let requests = (0..8).map(|mark| question(Kind::EcdsaP256Sign, mark)).collect();
            together(&mut dispatcher, requests, 0)
                .iter()
                .map(|one| is_right(&one.request, &one.result))
                .collect()
        };
        let first = eight();
        let counts = |name: &str| {
            let mut engines = runtime.snapshot().engines.into_iter();
            engines.find(|engine| engine.engine == name).map(|one| (one.verified, one.quarantines))
        };
        if !verify {
            assert_eq!(first, [true, true, true, false, true, true, true, true]);
            assert_eq!(counts("lanes"), Some((0, 0)));
            continue;
        }
        assert_eq!(first, [true; 8]);
        assert_eq!((on_lanes(&runtime), counts("lanes")), (7, Some((8, 1))));
        assert_eq!(counts("instruction"), Some((1, 0)), "the one that was made again, too");
        let reasons = runtime.snapshot().engines.into_iter().flat_map(|engine| engine.fallbacks);
        assert!(reasons.collect::<Vec<_>>().contains(&("wrong-result".to_owned(), 1)));
        assert_eq!(eight(), [true; 8]);
        assert_eq!(on_lanes(&runtime), 7, "lanes are in quarantine");
        clock.advance(100_000_000);
        assert_eq!(eight(), [true; 8]);
        assert_eq!((on_lanes(&runtime), counts("lanes")), (15, Some((16, 1))));
    }
}

/// With the calibrated costs of lanes a request alone takes no pass: there is no batch-mate to share it. (Later what
/// was observed decides: each of these has a key of its own, which lanes of RSA expand faster.) ML-KEM is not among them:
/// its lanes of AVX-512 are faster for one request, too.
#[test]
fn one_request_alone_takes_no_pass() {
    let runtime = with_lanes().build().unwrap();
    let lanes = Arc::clone(&runtime.engines()[LANES.index()]);
    let ml_kem = [Kind::MlKem768Generate, Kind::MlKem768Encapsulate, Kind::MlKem768Decapsulate];
    for kind in lanes.description().inline.iter().filter(|kind| !ml_kem.contains(kind)) {
        let mut dispatcher = runtime.dispatcher();
        for mark in 0..30 {
            assert!(matches!(dispatcher.submit(question(kind, mark)), Submitted::Done(_)), "{}", kind.name());
        }
    }
    assert!(counted(&runtime).iter().all(|(engine, ..)| engine != "lanes"), "{:?}", counted(&runtime));
}

/// The library never calibrates: what most users get is the built-in table, and it must know what lanes are worth.
#[test]
fn eight_in_hand_share_a_pass_by_the_built_in_table() {
    let runtime = with_lanes().build().unwrap();
    let lanes = Arc::clone(&runtime.engines()[LANES.index()]);
    for kind in lanes.description().inline.iter() {
        let mut dispatcher = runtime.dispatcher();
        let before = on_lanes(&runtime);
        let done = together(&mut dispatcher, (0..8).map(|mark| question(kind, mark)).collect(), 0);
        assert!(done.iter().all(|one| one.cost.batch == 8), "{}", kind.name());
        assert_eq!(on_lanes(&runtime) - before, 8, "{}", kind.name());
        assert!(done.iter().all(|one| is_right(&one.request, &one.result)), "{}", kind.name());
    }
}
