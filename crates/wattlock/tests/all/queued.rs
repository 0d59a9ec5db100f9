//! Queued work: every request comes back exactly once and right, whatever the device does.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use common::*;
use wattlock::core::recent::Mark;
use wattlock::policy::{Ask, Choice, EngineId, Outcome, Policy, Rest, Side, Weather};
use wattlock::telemetry::Snapshot;
use wattlock::{Clock, Dispatcher, Runtime, Submitted};
use wattlock_core::{
    Data, Description, Engine, EngineClass, Error, Fault, Item, Key, Kind, KindSet, Nanos, OwnedRequest,
    Request, Run, Shape, execute, known_answers,
};
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::software::Software;

/// Seeds for random histories: a few by default, as many as `scripts/soak/soak.sh` asks for.
fn soak_seeds(few: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("WATTLOCK_SOAK_SEED").unwrap_or(1);
    first..first + number("WATTLOCK_SOAK_ROUNDS").unwrap_or(few)
}

fn pending(submitted: Submitted) -> wattlock_core::Token {
    match submitted {
        Submitted::Pending(token) => token,
        Submitted::Done(completion) => panic!("done at once: {completion:?}"),
    }
}

#[test]
fn an_unproved_kind_is_done_by_the_cpu_and_proved_meanwhile() {
    let (device, clock) = (Scripted::new(1), HandClock::default());
    let runtime = runtime(&device, &clock, 0);
    let mut dispatcher = runtime.dispatcher();
    let Submitted::Done(first) = dispatcher.submit(digest(1)) else { panic!("must not wait for a test") };
    assert_right(&first);
    assert_eq!(fallbacks(&runtime), [("untested".to_owned(), 1)]);
    drain(&mut dispatcher, &clock);
    dispatcher.poll(&mut |_| {});
    pending(dispatcher.submit(digest(2)));
    let back = drain(&mut dispatcher, &clock);
    assert_eq!(back.len(), 1);
    assert_right(&back[0]);
    assert_eq!(requests_on(&runtime, "scripted"), 1);
}

#[test]
fn a_device_that_fails_its_known_answers_is_never_used() {
    let (device, clock) = (Scripted::new(1), HandClock::default());
    let runtime = runtime(&device, &clock, 0);
    let mut dispatcher = runtime.dispatcher();
    device.will(&[Act::Wrong; 20]);
    for mark in 0..10 {
        let Submitted::Done(completion) = dispatcher.submit(digest(mark)) else {
            panic!("reached the device")
        };
        assert_right(&completion);
        dispatcher.poll(&mut |_| {});
        clock.advance(1000);
    }
    assert_eq!(requests_on(&runtime, "scripted"), 0);
    assert_eq!(requests_on(&runtime, "instruction"), 10);
}

#[test]
fn each_fault_is_invisible_but_for_its_reason() {
    let cases = [
        (Act::Fail(Error::Device(Fault::Reported)), "reported-error"),
        (Act::Fail(Error::Device(Fault::Lost)), "lost"),
        (Act::Fail(Error::Unsupported), "unsupported"),
        (Act::Fail(Error::Authentication), "second-opinion"),
        (Act::Fail(Error::Invalid("a lie")), "second-opinion"),
        (Act::Wrong, "wrong-result"),
        (Act::Hang, "silent"),
    ];
    for (act, reason) in cases {
        let (device, clock) = (Scripted::new(1), HandClock::default());
        let runtime = runtime(&device, &clock, 1);
        let mut dispatcher = runtime.dispatcher();
        prove(&mut dispatcher, &clock, seal(0));
        device.will(&[act]);
        let token = pending(dispatcher.submit(seal(7)));
        let back = drain(&mut dispatcher, &clock);
        assert_eq!(back.len(), 1, "{act:?}");
        assert_eq!(back[0].token, token);
        assert_right(&back[0]);
        assert!(fallbacks(&runtime).contains(&(reason.to_owned(), 1)), "{act:?}: {:?}", fallbacks(&runtime));
    }
}

#[test]
fn a_result_shorter_than_its_input_is_wrong_whether_it_is_checked_or_not() {
    let (device, clock) = (Scripted::new(1), HandClock::default());
    let runtime = runtime(&device, &clock, 0);
    let mut dispatcher = runtime.dispatcher();
    prove(&mut dispatcher, &clock, seal(0));
    device.will(&[Act::Short]);
    pending(dispatcher.submit(seal(7)));
    let back = drain(&mut dispatcher, &clock);
    assert_right(&back[0]);
    assert!(fallbacks(&runtime).contains(&("wrong-result".to_owned(), 1)), "{:?}", fallbacks(&runtime));
}

/// A run of three messages, in either direction, and what the CPU makes of it.
fn run_of_three(kind: Kind) -> (OwnedRequest, OwnedRequest) {
    let make = |kind, input: &[u8]| {
        let mut request = OwnedRequest::new(kind, seal_key(), input.to_vec(), input.len());
        request.nonce = (0..36).collect();
        request.run = Some(Box::new(Run::Stride(116)));
        request
    };
    let by_cpu = |mut request: OwnedRequest| {
        execute(&Instruction::new(), &mut request.view()).unwrap();
        request
    };
    let plain: Vec<u8> = (0..3 * 116 - 40).map(|i| i as u8).collect();
    let sealed = by_cpu(make(Kind::Aes256GcmSeal, &plain));
    let request = match kind {
        Kind::Aes256GcmSeal => make(kind, &plain),
        _ => make(kind, &sealed.output),
    };
    let done = by_cpu(copied(&request));
    (request, done)
}

#[test]
fn a_device_that_takes_no_runs_is_given_none() {
    let (device, clock) = (Scripted::new(1), HandClock::default());
    device.script.lock().unwrap().runs = false;
    let runtime = runtime(&device, &clock, 0);
    let mut dispatcher = runtime.dispatcher();
    prove(&mut dispatcher, &clock, seal(0));
    let submitted = device.script.lock().unwrap().submitted;
    let (request, by_cpu) = run_of_three(Kind::Aes256GcmSeal);
    let Submitted::Done(done) = dispatcher.submit(request) else { panic!("it was given the run") };
    assert_eq!((done.result, device.script.lock().unwrap().submitted), (Ok(by_cpu.input.len()), submitted));
    assert!(done.request.output == by_cpu.output);
}

/// As the policy of the others, and counts the failures it is told of.
struct Watchful(QueueEverything, Arc<AtomicU32>);

impl Policy for Watchful {
    fn name(&self) -> &'static str {
        "watchful"
    }

    fn choose(&mut self, ask: &Ask, weather: &Weather, now: Nanos) -> Choice {
        self.0.choose(ask, weather, now)
    }

    fn observe(&mut self, _: &Shape, outcome: &Outcome, _: Nanos) {
        self.1.fetch_add(u32::from(outcome.failed), Relaxed);
    }
}

/// What a policy is told of an operation: bytes of a request, of the operation, and files.
type Told = Arc<std::sync::Mutex<Vec<(usize, usize, u16)>>>;

/// As the policy of the others, and notes what it is told.
struct Listening(QueueEverything, Told);

impl Policy for Listening {
    fn name(&self) -> &'static str {
        "listening"
    }

    fn choose(&mut self, ask: &Ask, weather: &Weather, now: Nanos) -> Choice {
        self.1.lock().unwrap().push((ask.shape.bytes, ask.bytes, weather.files));
        self.0.choose(ask, weather, now)
    }
}

/// The CPU takes what waits for the device.
struct Migrating(QueueEverything);

impl Policy for Migrating {
    fn name(&self) -> &'static str {
        "migrating"
    }

    fn choose(&mut self, ask: &Ask, weather: &Weather, now: Nanos) -> Choice {
        self.0.choose(ask, weather, now)
    }

    fn claim(&self, side: Side, _: &Rest, _: &Weather) -> u32 {
        u32::from(side == Side::Cpu)
    }
}

#[test]
fn what_a_device_cannot_have_now_is_not_copied_and_is_the_cpus_from_then_on() {
    let (device, clock) = (Scripted::new(1), HandClock::default());
    device.script.lock().unwrap().window = 14;
    let runtime = runtime(&device, &clock, 0);
    let mut dispatcher = runtime.dispatcher();
    let submitted = || device.script.lock().unwrap().submitted;
    let give =
        |dispatcher: &mut Dispatcher, mark| dispatcher.submit_to_device(&seal(mark).view(), mark, 0, 0);
    assert_eq!(give(&mut dispatcher, 0), None);
    assert_eq!(fallbacks(&runtime), [("untested".to_owned(), 1)]);
    drain(&mut dispatcher, &clock);
    (0..3).for_each(|_| assert_eq!(dispatcher.poll(&mut |_| {}), 0));
    let before = submitted();
    assert!((1..=14).all(|mark| give(&mut dispatcher, mark).is_some()));
    assert!(dispatcher.waits_for_room(Kind::Aes256GcmSeal, 100));
    assert_eq!((give(&mut dispatcher, 15), submitted()), (None, before + 14));
    let reasons = fallbacks(&runtime);
    assert_eq!(reasons, [("untested".to_owned(), 1), ("window-full".to_owned(), 1)]);
    let mut done = Vec::new();
    dispatcher.do_inside(&mut vec![seal(15), seal(16)], 0, &mut |mark, one| match one {
        Submitted::Done(one) => done.push((mark, one)),
        Submitted::Pending(_) => panic!("it was given to the device"),
    });
    assert_eq!(done.iter().map(|(mark, _)| *mark).collect::<Vec<_>>(), [15, 16]);
    done.iter().for_each(|(_, one)| assert_right(one));
    assert_eq!(submitted(), before + 14);
    let back = drain(&mut dispatcher, &clock);
    let marks: HashSet<u64> = back.iter().map(|one| one.request.mark).collect();
    assert_eq!((back.len(), marks), (14, (1..=14).collect()));
    back.iter().for_each(assert_right);
    assert!(!dispatcher.waits_for_room(Kind::Aes256GcmSeal, 100));
    let (mut run, _) = run_of_three(Kind::Aes256GcmSeal);
    assert_eq!(dispatcher.submit_to_device(&run.view(), 0, 0, 0), None, "its copy would be another request");

    let device = Scripted::new(1);
    let migrating = |_: &_| -> Box<dyn Policy> { Box::new(Migrating(QueueEverything(queued_kinds()))) };
    let runtime = builder(&device, &clock, 0).own_policy("migrating", migrating).build().unwrap();
    let mut dispatcher = runtime.dispatcher();
    assert_eq!(give(&mut dispatcher, 0), None);
    assert_eq!(fallbacks(&runtime), [("migrated".to_owned(), 1)]);
}

#[test]
fn a_policy_is_told_the_bytes_of_the_whole_operation_and_the_files_a_door_counts() {
    let (device, clock) = (Scripted::new(1), HandClock::default());
    let told = Told::default();
    let notes = told.clone();
    let listening = move |_: &_| -> Box<dyn Policy> {
        Box::new(Listening(QueueEverything(KindSet::EMPTY), notes.clone()))
    };
    let runtime = builder(&device, &clock, 1).own_policy("listening", listening).build().unwrap();
    let (mut dispatcher, _other) = (runtime.dispatcher(), runtime.dispatcher());
    let asked = || std::mem::take(&mut *told.lock().unwrap());
    let mut out = [[0; 32]; 3];
    let inputs: [&[u8]; 3] = [&[1; 100], &[2; 100], &[3; 5]];
    let mut chunks: Vec<Item<'_>> = out
        .iter_mut()
        .zip(inputs)
        .map(|(to, from)| Item::new(Request::new(Kind::Sha256, Key::none(), Data::Apart { from, to })))
        .collect();
    dispatcher.run_all(&mut chunks);
    let (whole, dispatchers) = (205, 2);
    let first = asked();
    assert!(first.iter().all(|(_, bytes, files)| (*bytes, *files) == (whole, dispatchers)), "{first:?}");
    assert_eq!(first.iter().map(|one| one.0).collect::<Vec<_>>(), [100, 100, 5]);
    let files = [(); 7].map(|()| Mark::default());
    files.iter().for_each(|file| drop(runtime.operates_on(file)));
    clock.advance(10_000_000);
    let mut owned = vec![digest(1), digest(2)];
    let len = owned[0].input.len();
    dispatcher.submit_together(&mut owned, 0, &mut |_, _| {});
    assert!(asked().iter().all(|one| *one == (len, len, 7)), "each of these is an operation");
    let again = runtime.operates_on(&files[0]);
    clock.advance(2_000_000);
    dispatcher.submit(digest(3));
    assert_eq!(asked(), [(len, len, 1)], "the others' are over, and its own lasts");
    drop(again);
    clock.advance(12_000_000);
    assert_eq!(runtime.files_in_operation(), 0);
    dispatcher.submit(digest(3));
    assert_eq!(asked(), [(len, len, dispatchers)]);
}

/// Whoever sends forgeries must not make a healthy device look as if it failed.
#[test]
fn a_forgery_is_reported_as_one_after_the_cpu_agrees() {
    let (device, clock) = (Scripted::new(1), HandClock::default());
    let failures = Arc::new(AtomicU32::new(0));
    let told = failures.clone();
    let watchful =
        move |_: &_| -> Box<dyn Policy> { Box::new(Watchful(QueueEverything(queued_kinds()), told.clone())) };
    let runtime = builder(&device, &clock, 1).own_policy("watchful", watchful).build().unwrap();
    let mut dispatcher = runtime.dispatcher();
    let sealed = seal(3);
    let (output, tag) = expected(&sealed);
    let make = |tag: [u8; 16]| {
        let mut request =
            wattlock_core::OwnedRequest::new(Kind::Aes256GcmOpen, seal_key(), output.clone(), output.len());
        request.nonce = sealed.nonce.clone();
        request.tag = tag;
        request
    };
    prove(&mut dispatcher, &clock, make(tag));
    let mut forged = tag;
    forged[15] ^= 1;
    pending(dispatcher.submit(make(forged)));
    let back = drain(&mut dispatcher, &clock);
    assert_eq!(back[0].result, Err(Error::Authentication));
    assert!(back[0].request.output.iter().all(|byte| *byte == 0), "no plaintext is released");
    assert_eq!(failures.load(Relaxed), 0);
    device.will(&[Act::Fail(Error::Authentication)]);
    pending(dispatcher.submit(make(tag)));
    assert_eq!(drain(&mut dispatcher, &clock)[0].result, Ok(output.len()));
    assert_eq!(failures.load(Relaxed), 1, "a good one called a forgery is the device's fault");
}

#[test]
fn a_wrong_signature_never_leaves() {
    let (device, clock) = (Scripted::new(1), HandClock::default());
    let runtime = runtime(&device, &clock, 1);
    let mut dispatcher = runtime.dispatcher();
    let sample = || wattlock_core::known_answers(Kind::EcdsaP256Sign).remove(0).request;
    prove(&mut dispatcher, &clock, sample());
    device.will(&[Act::Wrong]);
    pending(dispatcher.submit(sample()));
    let back = drain(&mut dispatcher, &clock);
    let checker = wattlock_cpu::software::Software::new();
    let len = back[0].result.unwrap();
    wattlock_core::Engine::check(&checker, &back[0].request, len).unwrap();
    assert!(fallbacks(&runtime).contains(&("wrong-result".to_owned(), 1)));
}

#[test]
fn a_device_that_keeps_failing_is_quarantined_and_comes_back() {
    let (device, clock) = (Scripted::new(1), HandClock::default());
    let runtime = runtime(&device, &clock, 0);
    let mut dispatcher = runtime.dispatcher();
    prove(&mut dispatcher, &clock, digest(0));
    device.will(&[Act::Fail(Error::Device(Fault::Reported)); 3]);
    for mark in 1..=3 {
        pending(dispatcher.submit(digest(mark)));
        drain(&mut dispatcher, &clock).iter().for_each(assert_right);
    }
    assert_eq!(device.script.lock().unwrap().stopped, 1, "its queue is stopped");
    let Submitted::Done(done) = dispatcher.submit(digest(4)) else { panic!("used in quarantine") };
    assert_right(&done);
    clock.advance(200_000_000);
    prove(&mut dispatcher, &clock, digest(5));
    pending(dispatcher.submit(digest(6)));
    drain(&mut dispatcher, &clock).iter().for_each(assert_right);
    assert_eq!(device.script.lock().unwrap().opens, 2, "a new queue was opened");
}

#[test]
fn a_lost_device_gives_back_everything_it_had() {
    let (device, clock) = (Scripted::new(1), HandClock::default());
    let runtime = runtime(&device, &clock, 0);
    let mut dispatcher = runtime.dispatcher();
    prove(&mut dispatcher, &clock, seal(0));
    device.will(&[Act::Fail(Error::Device(Fault::Lost)), Act::Hang, Act::Hang, Act::Hang]);
    for mark in 1..=4 {
        pending(dispatcher.submit(seal(mark)));
    }
    let back = drain(&mut dispatcher, &clock);
    let marks: HashSet<u64> = back.iter().map(|completion| completion.request.mark).collect();
    assert_eq!((back.len(), marks.len()), (4, 4));
    back.iter().for_each(assert_right);
}

#[test]
fn a_device_that_cannot_be_opened_is_quarantined_and_nobody_waits() {
    let (device, clock) = (Scripted::new(1), HandClock::default());
    device.script.lock().unwrap().open_fails = true;
    let runtime = runtime(&device, &clock, 0);
    let mut dispatcher = runtime.dispatcher();
    for mark in 0..5 {
        let Submitted::Done(done) = dispatcher.submit(digest(mark)) else { panic!("queued on nothing") };
        assert_right(&done);
    }
    assert_eq!(device.script.lock().unwrap().opens, 1, "it is not tried again before its quarantine ends");
}

/// Digests of so many contents, done together.
fn together(dispatcher: &mut Dispatcher, count: u64) {
    let mut requests: Vec<OwnedRequest> = (0..count).map(digest).collect();
    let mut items: Vec<Item<'_>> = requests.iter_mut().map(|one| Item::new(one.view())).collect();
    dispatcher.run_all(&mut items);
    let results: Vec<_> = items.into_iter().map(|item| item.result).collect();
    for (mut request, result) in requests.into_iter().zip(results) {
        let claimed = request.output.clone();
        assert_eq!(result, execute(&Instruction::new(), &mut request.view()));
        assert!(claimed == request.output, "{}", request.mark);
    }
}

#[test]
fn a_window_that_hostages_had_filled_is_used_again_once_the_device_has_answered_them() {
    let (device, clock) = (Scripted::new(1), HandClock::default());
    let runtime = runtime(&device, &clock, 0);
    let mut dispatcher = runtime.dispatcher();
    prove(&mut dispatcher, &clock, digest(0));
    device.script.lock().unwrap().window = 2;
    let late = || Act::Late { after_ns: 1000, tells: false };
    device.will(&[late(), late()]);
    let tokens = [1, 2].map(|mark| pending(dispatcher.submit(digest(mark))));
    assert_eq!(dispatcher.poll(&mut |_| {}), 0);
    for token in tokens {
        assert!(dispatcher.cancel(token).is_some());
    }
    clock.advance(2000);
    dispatcher.poll(&mut |_| panic!("nobody waits for them"));
    let before = requests_on(&runtime, "scripted");
    // Time stands still: whoever waits here waits for ever.
    together(&mut dispatcher, 2);
    assert_eq!(requests_on(&runtime, "scripted") - before, 2, "{:?}", fallbacks(&runtime));
}

/// As the policy of the others, of all that are in hand at once.
struct AllAtOnce(QueueEverything);

impl Policy for AllAtOnce {
    fn name(&self) -> &'static str {
        "all at once"
    }

    fn choose(&mut self, ask: &Ask, weather: &Weather, now: Nanos) -> Choice {
        Choice { count: ask.count, ..self.0.choose(ask, weather, now) }
    }
}

/// What a device with room for two does of six pieces, and what the CPU did instead: asked about all, or about each.
fn six_pieces_in_a_window_of_two(at_once: bool) -> [u64; 2] {
    let (device, clock) = (Scripted::new(1), HandClock::default());
    let mut builder = builder(&device, &clock, 0);
    if at_once {
        let all = |_: &_| -> Box<dyn Policy> { Box::new(AllAtOnce(QueueEverything(queued_kinds()))) };
        builder = builder.own_policy("all at once", all);
    }
    let runtime = builder.build().unwrap();
    let mut dispatcher = runtime.dispatcher();
    prove(&mut dispatcher, &clock, digest(0));
    // Known only after the device was opened.
    device.script.lock().unwrap().window = 2;
    let (before, submitted) = (requests_on(&runtime, "scripted"), device.script.lock().unwrap().submitted);
    together(&mut dispatcher, 6);
    let card = requests_on(&runtime, "scripted") - before;
    let moved = fallbacks(&runtime).iter().find(|(why, _)| why == "migrated").map_or(0, |(_, n)| *n);
    assert_eq!(
        device.script.lock().unwrap().submitted - submitted,
        card,
        "nothing is submitted to be refused"
    );
    [card, moved]
}

/// As the policy of the others, and notes how long after the last look each look is.
struct Gaps(QueueEverything, Arc<std::sync::Mutex<Vec<Nanos>>>);

impl Policy for Gaps {
    fn name(&self) -> &'static str {
        "gaps"
    }

    fn choose(&mut self, ask: &Ask, weather: &Weather, now: Nanos) -> Choice {
        self.0.choose(ask, weather, now)
    }

    fn looked(&mut self, after_ns: Nanos) {
        self.1.lock().unwrap().push(after_ns);
    }
}

#[test]
fn a_policy_hears_of_each_look_and_of_looks_at_one_time_once() {
    let (device, clock) = (Scripted::new(1), HandClock::default());
    let noted: Arc<std::sync::Mutex<Vec<Nanos>>> = Arc::default();
    let told = noted.clone();
    let gaps =
        move |_: &_| -> Box<dyn Policy> { Box::new(Gaps(QueueEverything(queued_kinds()), told.clone())) };
    let runtime = builder(&device, &clock, 0).own_policy("gaps", gaps).build().unwrap();
    let mut dispatcher = runtime.dispatcher();
    prove(&mut dispatcher, &clock, digest(0));
    let mut poll_after = |ns: Nanos| -> Vec<Nanos> {
        noted.lock().unwrap().clear();
        clock.advance(ns);
        dispatcher.poll(&mut |_| {});
        dispatcher.poll(&mut |_| {});
        noted.lock().unwrap().clone()
    };
    poll_after(1);
    assert_eq!(poll_after(70), [70]);
    assert_eq!(poll_after(3000), [3000]);
    assert!(poll_after(0).is_empty());
}

#[test]
fn pieces_that_a_window_has_no_room_for_are_the_cpus_one_by_one() {
    let [card, moved] = six_pieces_in_a_window_of_two(true);
    assert!(card >= 2 && moved >= 1 && card + moved == 6, "{card} and {moved}");
}

#[test]
fn answers_that_have_come_make_room_before_the_next_piece_is_asked_about() {
    // This device answers at once.
    assert_eq!(six_pieces_in_a_window_of_two(false), [6, 0]);
}

#[test]
fn a_full_window_sends_the_rest_to_the_cpu() {
    let (device, clock) = (Scripted::new(8), HandClock::default());
    let runtime = runtime(&device, &clock, 0);
    let mut dispatcher = runtime.dispatcher();
    prove(&mut dispatcher, &clock, digest(0));
    device.script.lock().unwrap().window = 2;
    let mut done = 0;
    for mark in 1..=5 {
        if let Submitted::Done(completion) = dispatcher.submit(digest(mark)) {
            assert_right(&completion);
            done += 1;
        }
    }
    assert_eq!(done, 3);
    assert_eq!(drain(&mut dispatcher, &clock).len(), 2);
    assert!(fallbacks(&runtime).contains(&("window-full".to_owned(), 3)));
}

/// The clock goes on by five at each look: a submission lies between two of them.
#[test]
fn what_handing_over_takes_is_counted_of_devices_alone() {
    let (device, by_hand) = (Scripted::new(8), HandClock::default());
    let looks = AtomicU64::new(0);
    let clock = Clock::given(move || looks.fetch_add(5, Relaxed));
    let runtime = builder(&device, &by_hand, 0).clock(clock).build().unwrap();
    let mut dispatcher = runtime.dispatcher();
    prove(&mut dispatcher, &by_hand, digest(0));
    for mark in 1..=5 {
        dispatcher.submit(digest(mark));
    }
    drain(&mut dispatcher, &by_hand);
    let cells = runtime.snapshot().cells;
    let (queued, inside): (Vec<_>, Vec<_>) = cells.iter().partition(|cell| cell.queued() > 0);
    assert!(queued.iter().any(|cell| cell.timed >= 5), "{cells:?}");
    assert!(queued.iter().all(|cell| cell.submit_ns == 5 * cell.timed), "{cells:?}");
    assert!(inside.iter().all(|cell| cell.submit_ns == 0), "{cells:?}");
}

/// Time held, by engine; only engines that have any.
fn held(runtime: &Runtime) -> Vec<(String, u64)> {
    let cells = runtime.snapshot().cells;
    let held = cells.iter().filter(|cell| cell.held_ns > 0);
    held.map(|cell| (cell.engine.clone(), cell.held_ns)).collect()
}

#[test]
fn time_held_is_counted_once_and_for_the_engine_that_did_the_request() {
    let broken = Error::Device(Fault::Reported);
    let cases = [
        (None, Act::Right, "scripted"),
        (None, Act::Fail(broken), "instruction"),
        (Some(Error::Full), Act::Right, "instruction"),
        (Some(broken), Act::Right, "instruction"),
    ];
    for (refuses, act, who) in cases {
        let (device, clock) = (Scripted::new(1), HandClock::default());
        let runtime = runtime(&device, &clock, 0);
        let mut dispatcher = runtime.dispatcher();
        prove(&mut dispatcher, &clock, digest(0));
        device.script.lock().unwrap().refuses = refuses;
        device.will(&[act]);
        dispatcher.submit_together(&mut vec![digest(1)], 700, &mut |_, _| {});
        // Not held by the door that hands it over.
        let _ = dispatcher.submit(digest(2));
        drain(&mut dispatcher, &clock);
        assert_eq!(held(&runtime), [(who.to_owned(), 700)], "{refuses:?}, {act:?}");
    }
}

#[test]
fn a_request_by_itself_goes_at_once_and_those_together_share_a_doorbell() {
    let (device, clock) = (Scripted::new(8), HandClock::default());
    let runtime = runtime(&device, &clock, 0);
    let mut dispatcher = runtime.dispatcher();
    prove(&mut dispatcher, &clock, digest(0));
    device.script.lock().unwrap().doorbells.clear();
    pending(dispatcher.submit(digest(1)));
    pending(dispatcher.submit(digest(2)));
    dispatcher.submit_together(&mut (3..8).map(digest).collect(), 0, &mut |_, submitted| {
        pending(submitted);
    });
    assert_eq!(device.script.lock().unwrap().doorbells, [1, 1, 5]);
    drain(&mut dispatcher, &clock);
}

#[test]
fn a_full_batch_goes_at_once() {
    let (device, clock) = (Scripted::new(3), HandClock::default());
    let runtime = runtime(&device, &clock, 0);
    let mut dispatcher = runtime.dispatcher();
    prove(&mut dispatcher, &clock, digest(0));
    device.script.lock().unwrap().doorbells.clear();
    dispatcher.submit_together(&mut (1..8).map(digest).collect(), 0, &mut |_, submitted| {
        pending(submitted);
    });
    assert_eq!(device.script.lock().unwrap().doorbells, [3, 3, 1], "the batch is full");
    drain(&mut dispatcher, &clock);
}

#[test]
fn a_cancelled_request_comes_back_from_cancel_alone() {
    let (device, clock) = (Scripted::new(8), HandClock::default());
    let runtime = runtime(&device, &clock, 0);
    let mut dispatcher = runtime.dispatcher();
    prove(&mut dispatcher, &clock, digest(0));
    let (held, kept) = (pending(dispatcher.submit(digest(1))), pending(dispatcher.submit(digest(2))));
    assert_eq!(dispatcher.cancel(held).unwrap().mark, 1);
    assert!(dispatcher.cancel(held).is_none());
    let back = drain(&mut dispatcher, &clock);
    assert_eq!(back.iter().map(|completion| completion.token).collect::<Vec<_>>(), [kept]);
    assert!(dispatcher.cancel(kept).is_none());
}

#[test]
fn a_late_answer_changes_nothing() {
    for (tells, cancelled) in [(false, false), (false, true), (true, false), (true, true)] {
        let case = format!("the device tells: {tells}, the door cancelled: {cancelled}");
        let (device, clock) = (Scripted::new(1), HandClock::default());
        let runtime = runtime(&device, &clock, 0);
        let mut dispatcher = runtime.dispatcher();
        prove(&mut dispatcher, &clock, digest(0));
        device.will(&[
            Act::Late { after_ns: 2 * GIVE_UP_NS, tells },
            Act::Late { after_ns: GIVE_UP_NS - 1000, tells },
        ]);
        let first = pending(dispatcher.submit(digest(1)));
        dispatcher.flush();
        assert_eq!(dispatcher.poll(&mut |_| {}), 0, "{case}");
        if cancelled {
            assert_eq!(dispatcher.cancel(first).map(|request| request.mark), Some(1), "{case}");
            clock.advance(GIVE_UP_NS + 10_000);
        } else {
            let back = drain(&mut dispatcher, &clock);
            assert_eq!(back.len(), 1, "{case}");
            assert_right(&back[0]);
        }
        let of = |device: &Scripted| {
            let script = device.script.lock().unwrap();
            (script.withdrawn, script.late)
        };
        assert_eq!(of(&device), (1, 0), "{case}: nobody waits for it any more, and it has not been answered");
        // Another request has its slot when the answer comes.
        let second = pending(dispatcher.submit(digest(2)));
        dispatcher.flush();
        let before = runtime.snapshot();
        clock.advance(GIVE_UP_NS - 2000);
        assert_eq!(dispatcher.poll(&mut |_| {}), 0, "{case}: completed twice, or the wrong one");
        assert_eq!(of(&device), (1, 1), "{case}: the late answer has come");
        assert_eq!(dispatcher.in_flight(), 1, "{case}");
        let after = runtime.snapshot();
        assert_eq!(after.cells, before.cells, "{case}: nothing is counted");
        let standing = |snapshot: Snapshot| {
            let engines = snapshot.engines.into_iter();
            engines.map(|one| (one.quarantines, one.verified, one.fallbacks)).collect::<Vec<_>>()
        };
        assert_eq!(standing(after), standing(before), "{case}: nor held against the device");
        clock.advance(1000);
        let mut back = Vec::new();
        dispatcher.poll(&mut |completion| back.push(completion));
        assert_eq!(back.len(), 1, "{case}");
        assert_eq!((back[0].token, back[0].request.mark), (second, 2), "{case}");
        assert_right(&back[0]);
        assert_eq!(of(&device), (1, 1), "{case}: the second was answered in time");
        for _ in 0..10 {
            clock.advance(GIVE_UP_NS);
            dispatcher.poll(&mut |_| panic!("{case}: completed twice"));
        }
    }
}

#[test]
fn a_request_that_a_device_denies_having_had_still_completes() {
    let (device, clock) = (Scripted::new(1), HandClock::default());
    let runtime = runtime(&device, &clock, 0);
    let mut dispatcher = runtime.dispatcher();
    prove(&mut dispatcher, &clock, digest(0));
    device.will(&[Act::Vanish, Act::Right]);
    let (lost, kept) = (pending(dispatcher.submit(digest(1))), pending(dispatcher.submit(digest(2))));
    let back = drain(&mut dispatcher, &clock);
    let of = |token| back.iter().find(|completion| completion.token == token).unwrap();
    assert_eq!(back.len(), 2);
    assert_right(of(kept));
    assert_eq!(
        of(lost).result,
        Err(Error::Device(Fault::Lost)),
        "its buffers are gone, so nobody can repeat it"
    );
    assert_eq!(of(lost).request.mark, 1);
    assert_eq!(device.script.lock().unwrap().stopped, 1, "such a queue is not used again");
    assert_eq!(dispatcher.in_flight(), 0);
}

#[test]
fn hostages_do_not_close_a_device_for_ever() {
    let (device, clock) = (Scripted::new(1), HandClock::default());
    device.script.lock().unwrap().window = 4;
    let runtime = runtime(&device, &clock, 0);
    let mut dispatcher = runtime.dispatcher();
    prove(&mut dispatcher, &clock, digest(0));
    for mark in 1..=40 {
        // Never often enough in a row for the patience with a silent device to end.
        device.will(&[if mark % 2 == 0 { Act::Hang } else { Act::Right }]);
        if let Submitted::Pending(_) = dispatcher.submit(digest(mark)) {
            drain(&mut dispatcher, &clock).iter().for_each(assert_right);
        }
        clock.advance(20_000_000);
    }
    device.script.lock().unwrap().acts.clear();
    clock.advance(60_000_000_000);
    let before = requests_on(&runtime, "scripted");
    for mark in 100..110 {
        if let Submitted::Pending(_) = dispatcher.submit(digest(mark)) {
            drain(&mut dispatcher, &clock).iter().for_each(assert_right);
        }
        dispatcher.poll(&mut |_| panic!("nothing is in flight"));
    }
    assert!(requests_on(&runtime, "scripted") > before + 5, "it is used again: {:?}", fallbacks(&runtime));
}

#[test]
fn a_kind_is_proved_by_all_of_its_known_answers_however_small_the_window() {
    let (device, clock) = (Scripted::new(1), HandClock::default());
    device.script.lock().unwrap().window = 1;
    let runtime = runtime(&device, &clock, 0);
    let mut dispatcher = runtime.dispatcher();
    let sample = || wattlock_core::known_answers(Kind::Aes256GcmOpen).remove(0).request;
    assert!(matches!(dispatcher.submit(sample()), Submitted::Done(_)));
    for _ in 0..20 {
        dispatcher.poll(&mut |_| panic!("nothing of a door's is in flight"));
        clock.advance(1000);
    }
    let answers = wattlock_core::known_answers(Kind::Aes256GcmOpen).len() as u64;
    assert_eq!(device.script.lock().unwrap().submitted, answers);
    pending(dispatcher.submit(sample()));
    assert_eq!(drain(&mut dispatcher, &clock)[0].result.map(|_| ()), Ok(()));
}

#[test]
fn a_fallback_is_the_other_engines_work_and_time() {
    let (device, clock) = (Scripted::new(1), HandClock::default());
    let runtime = runtime(&device, &clock, 0);
    let mut dispatcher = runtime.dispatcher();
    prove(&mut dispatcher, &clock, digest(0));
    device.will(&[Act::Right, Act::Hang]);
    for mark in 1..=2 {
        pending(dispatcher.submit(digest(mark)));
        drain(&mut dispatcher, &clock).iter().for_each(assert_right);
    }
    let cells = runtime.snapshot().cells;
    let cell = cells.iter().find(|cell| cell.engine == "scripted").unwrap();
    assert_eq!((cell.requests, cell.timed, cell.batch_sum), (1, 1, 1), "it did one of the two");
    assert!(cell.timed_ns < GIVE_UP_NS, "and has not to answer for the other's time-out");
}

#[test]
fn what_came_back_while_submitting_comes_with_the_next_look() {
    let (device, clock) = (Scripted::new(8), HandClock::default());
    let runtime = runtime(&device, &clock, 0);
    let mut dispatcher = runtime.dispatcher();
    prove(&mut dispatcher, &clock, digest(0));
    pending(dispatcher.submit(digest(1)));
    device.script.lock().unwrap().refuses = Some(Error::Device(Fault::Lost));
    assert!(matches!(dispatcher.submit(digest(2)), Submitted::Done(_)));
    // The queue was stopped, and the CPU has done what it held.
    assert_eq!(dispatcher.in_flight(), 1);
    let mut back = Vec::new();
    dispatcher.poll(&mut |completion| back.push(completion));
    assert_eq!(back.len(), 1);
    assert_right(&back[0]);
}

#[test]
fn every_kind_has_its_share_of_checks_whatever_the_pattern() {
    let (device, clock) = (Scripted::new(1), HandClock::default());
    let runtime = runtime(&device, &clock, 2);
    let mut dispatcher = runtime.dispatcher();
    prove(&mut dispatcher, &clock, digest(0));
    prove(&mut dispatcher, &clock, seal(0));
    let mut verified = [0; 2];
    for mark in 0..200 {
        let before = verified_on(&runtime);
        pending(dispatcher.submit(if mark % 2 == 0 { digest(mark) } else { seal(mark) }));
        drain(&mut dispatcher, &clock).iter().for_each(assert_right);
        verified[mark as usize % 2] += verified_on(&runtime) - before;
    }
    assert!(verified.iter().all(|share| (25..=75).contains(share)), "of 100 each: {verified:?}");
}

/// A runtime that was told nothing of checking, whose device does these kinds.
fn as_usual(device: &Arc<Scripted>, clock: &HandClock) -> Runtime {
    let engines: Vec<Arc<dyn Engine>> =
        vec![Arc::new(Instruction::new()), Arc::new(Software::new()), device.clone()];
    checking_as_usual(engines, clock).build().unwrap()
}

/// Gives a device that spoils every answer from now on so many requests, and each time it is in quarantine waits until it
/// is out and has proved itself again. Says how many wrong results came out, and how many answers the device gave.
fn spoiled(kind: Kind, requests: u32) -> (u32, u32) {
    let (device, clock) = (Scripted::with_kinds(1, KindSet::of(&[kind])), HandClock::default());
    let runtime = as_usual(&device, &clock);
    let mut dispatcher = runtime.dispatcher();
    let sample = || known_answers(kind).remove(0).request;
    let (judge, mut wrong, mut answered) = (Software::new(), 0, 0);
    while answered < requests {
        match dispatcher.submit(sample()) {
            Submitted::Pending(_) => {
                device.will(&[Act::Wrong]);
                answered += 1;
                let back = drain(&mut dispatcher, &clock);
                let len = back[0].result.unwrap();
                wrong += u32::from(judge.check(&back[0].request, len).is_err());
                device.script.lock().unwrap().acts.clear();
            }
            Submitted::Done(done) => {
                judge.check(&done.request, done.result.unwrap()).unwrap();
                // Out of quarantine, and its known answers done.
                clock.advance(60_000_000_000);
                dispatcher.poll(&mut |_| {});
            }
        }
    }
    (wrong, answered)
}

#[test]
fn by_default_no_wrong_private_key_result_of_a_device_leaves() {
    let private = Kind::ALL.iter().copied().filter(|kind| kind.wrong_result_tells_key());
    let mut kinds = 0;
    for kind in private {
        // The others take long, and are the same to the runtime.
        let requests = if matches!(kind, Kind::Rsa2048Private | Kind::EcdsaP256Sign) { 200 } else { 20 };
        assert_eq!(spoiled(kind, requests), (0, requests), "{}", kind.name());
        kinds += 1;
    }
    assert_eq!(kinds, 5, "RSA of three lengths, ECDSA over two curves");
}

/// What the default does not promise: of another kind's wrong results one in 64 is found, and the others leave.
#[test]
fn by_default_one_in_64_of_other_wrong_results_is_found() {
    for kind in [Kind::Sha256, Kind::P256Derive] {
        let (wrong, answered) = spoiled(kind, 64 * 30);
        let found = answered - wrong;
        assert!((15..=60).contains(&found), "{}: {found} of {answered}, expected 30", kind.name());
    }
}

#[test]
fn a_device_does_nothing_inside_the_call_where_nobody_would_check_it() {
    let kind = Kind::EcdsaP256Sign;
    let device = Arc::new(Inside::new(kind));
    let clock = HandClock::default();
    let engines: Vec<Arc<dyn Engine>> =
        vec![Arc::new(Instruction::new()), Arc::new(Software::new()), device.clone()];
    let stubborn = |_: &_| -> Box<dyn Policy> { Box::new(AlwaysDevice) };
    let runtime = checking_as_usual(engines, &clock).own_policy("stubborn", stubborn).build().unwrap();
    let mut dispatcher = runtime.dispatcher();
    for _ in 0..200 {
        let mut request = known_answers(kind).remove(0).request;
        let len = dispatcher.run(&mut request.view()).unwrap();
        Software::new().check(&request, len).unwrap();
        let Submitted::Done(done) = dispatcher.submit(known_answers(kind).remove(0).request) else {
            panic!("a device without a queue")
        };
        Software::new().check(&done.request, done.result.unwrap()).unwrap();
    }
    assert_eq!(device.worked.load(Relaxed), 0);
}

/// A device that says it works inside the call.
struct Inside {
    description: Description,
    inner: Instruction,
    worked: AtomicU32,
}

impl Inside {
    fn new(kind: Kind) -> Inside {
        let inner = Instruction::new();
        let (class, inline) = (EngineClass::Accelerator, KindSet::of(&[kind]));
        let description = Description { name: "inside", class, inline, ..inner.description().clone() };
        Inside { description, inner, worked: AtomicU32::new(0) }
    }
}

impl Engine for Inside {
    fn description(&self) -> &Description {
        &self.description
    }

    fn execute(&self, request: &mut Request<'_>) -> Result<usize, Error> {
        self.worked.fetch_add(1, Relaxed);
        let len = self.inner.execute(request);
        request.data.output()[0] ^= 1;
        len
    }
}

/// Names the device, whatever is asked.
struct AlwaysDevice;

impl Policy for AlwaysDevice {
    fn name(&self) -> &'static str {
        "stubborn"
    }

    fn choose(&mut self, _: &Ask, _: &Weather, _: Nanos) -> Choice {
        Choice::now(EngineId(2))
    }
}

#[test]
fn an_rsa_result_that_nobody_can_check_does_not_leave() {
    let device = Scripted::with_kinds(1, KindSet::of(&[Kind::Rsa2048Private]));
    let clock = HandClock::default();
    let no_rsa = KindSet::ALL.without(Kind::Rsa2048Private);
    let (first, second) = (Arc::new(Cpu::new("first", no_rsa)), Arc::new(Cpu::new("second", no_rsa)));
    let runtime = builder_with(vec![first, second, device.clone()], &clock, 0).build().unwrap();
    let mut dispatcher = runtime.dispatcher();
    let sample = || wattlock_core::known_answers(Kind::Rsa2048Private).remove(0).request;
    dispatcher.submit(sample());
    for _ in 0..3 {
        dispatcher.poll(&mut |_| panic!("nothing of ours is in flight"));
        clock.advance(1000);
    }
    device.will(&[Act::Wrong]);
    pending(dispatcher.submit(sample()));
    let back = drain(&mut dispatcher, &clock);
    assert_eq!(back[0].result, Err(Error::Unsupported));
}

#[test]
fn a_time_out_of_for_ever_is_not_a_time_out_of_nothing() {
    let (device, clock) = (Scripted::new(1), HandClock::default());
    let runtime = builder(&device, &clock, 0).give_up_after_ns(u64::MAX).build().unwrap();
    let mut dispatcher = runtime.dispatcher();
    prove(&mut dispatcher, &clock, digest(0));
    clock.advance(1000);
    device.will(&[Act::Hang]);
    pending(dispatcher.submit(digest(1)));
    clock.advance(1 << 50);
    assert_eq!(dispatcher.poll(&mut |_| {}), 0);
    assert_eq!(dispatcher.in_flight(), 1);
}

#[test]
fn random_work_on_a_faulty_device_comes_back_once_and_right() {
    for seed in soak_seeds(40) {
        let (device, clock) = (Scripted::new(1 + (seed % 8) as u16), HandClock::default());
        device.script.lock().unwrap().window = 4 + (seed % 13) as u32;
        let runtime = runtime(&device, &clock, 1);
        let mut dispatcher = runtime.dispatcher();
        let mut state = seed;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let (mut open, mut closed) = (HashSet::new(), HashSet::new());
        let mut tokens = Vec::new();
        for mark in 0..400 {
            let act = match random() % 20 {
                0 => Act::Hang,
                1 => Act::Wrong,
                2 => Act::Fail(Error::Device(Fault::Reported)),
                3 if random() % 10 == 0 => Act::Fail(Error::Device(Fault::Lost)),
                4 => Act::Fail(Error::Authentication),
                5 | 6 => Act::Late { after_ns: random() % (3 * GIVE_UP_NS), tells: random() % 2 == 0 },
                _ => Act::Right,
            };
            device.will(&[act]);
            let request = if random() % 2 == 0 { digest(mark) } else { seal(mark) };
            match dispatcher.submit(request) {
                Submitted::Done(completion) => {
                    assert_right(&completion);
                    assert!(closed.insert(mark), "seed {seed}: {mark} twice");
                }
                Submitted::Pending(token) => {
                    assert!(open.insert(mark));
                    tokens.push((token, mark));
                }
            }
            let mut settle = |mark: u64| {
                assert!(open.remove(&mark) && closed.insert(mark), "seed {seed}: {mark} twice");
            };
            match random() % 8 {
                0 => dispatcher.flush(),
                1 if !tokens.is_empty() => {
                    let (token, mark) = tokens[random() as usize % tokens.len()];
                    if let Some(request) = dispatcher.cancel(token) {
                        assert_eq!(request.mark, mark);
                        settle(mark);
                    }
                }
                2 | 3 => {
                    let mut back = Vec::new();
                    dispatcher.poll(&mut |completion| back.push(completion));
                    for completion in back {
                        assert_right(&completion);
                        settle(completion.request.mark);
                    }
                }
                _ => clock.advance(random() % 300_000),
            }
        }
        for completion in drain(&mut dispatcher, &clock) {
            assert_right(&completion);
            let mark = completion.request.mark;
            assert!(open.remove(&mark) && closed.insert(mark), "seed {seed}: {mark} twice");
        }
        assert!(open.is_empty(), "seed {seed}: {open:?} never came back");
        assert_eq!(closed.len(), 400);
    }
}
