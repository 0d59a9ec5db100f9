//! One device as several threads have it: they see what the others have out, share its queue pairs, and lose it together.

use crate::common;

use std::sync::{Arc, Mutex};

use common::{HandClock, assert_right, digest, seal};
use wattlock::policy::{Ask, Choice, EngineId, Policy, Settings, Weather};
use wattlock::telemetry::EngineCounts;
use wattlock::{Builder, Dispatcher, Runtime, Submitted};
use wattlock_core::{Engine, Nanos};
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::software::Software;
use wattlock_emul::{Effect, Emulated, Fault, Model, Pace, Trigger};

use crate::emulated::{requests_on_card, runtime, work};

const WINDOW: u32 = 8;
const GIVE_UP_NS: Nanos = 3_000_000;
/// Long enough for the card to answer everything.
const WHILE_NS: Nanos = 1_000_000;

fn builder(pace: Pace, pairs: usize, faults: Vec<Fault>) -> Builder {
    let instruction: Arc<dyn Engine> = Arc::new(Instruction::new());
    let mut model = Model::qat_dh8970();
    model.window.requests = WINDOW;
    let card = Emulated::new(model, instruction.clone(), pace).unwrap().with_faults(faults);
    Runtime::builder()
        .engines(vec![instruction, Arc::new(Software::new()), Arc::new(card)])
        .queue_pairs(pairs)
        .verify_one_in(1)
        .give_up_after_ns(GIVE_UP_NS)
        .telemetry(false)
        .profile(wattlock::Profile::built_in())
}

/// Gives the card everything, and notes what a policy is told of it: in flight, their bytes, window.
struct Noted(Arc<Mutex<Vec<(u32, u64, u32)>>>);

impl Policy for Noted {
    fn name(&self) -> &'static str {
        "noted"
    }

    fn choose(&mut self, ask: &Ask, weather: &Weather, _: Nanos) -> Choice {
        let card = &weather.engines[2];
        self.0.lock().unwrap().push((card.in_flight, card.in_flight_bytes, card.window));
        Choice::now(EngineId(if ask.may_wait && card.available { 2 } else { 0 }))
    }
}

/// Two threads' ways to a card in virtual time, which has given both its known answers.
struct Two {
    runtime: Runtime,
    clock: HandClock,
    noted: Arc<Mutex<Vec<(u32, u64, u32)>>>,
    ways: [Dispatcher; 2],
}

impl Two {
    fn new(pairs: usize, faults: Vec<Fault>) -> Two {
        let (clock, noted) = (HandClock::default(), Arc::<Mutex<Vec<_>>>::default());
        let notes = noted.clone();
        let builder = builder(Pace::Stepped, pairs, faults).clock(clock.clock());
        let runtime = builder.own_policy("noted", move |_| Box::new(Noted(notes.clone()))).build().unwrap();
        let ways = [runtime.dispatcher(), runtime.dispatcher()];
        let mut two = Two { runtime, clock, noted, ways };
        two.prove();
        two
    }

    fn prove(&mut self) {
        for at in 0..2 {
            assert!(!self.submit(at, 0), "not proved yet");
            self.clock.advance(WHILE_NS);
            self.ways[at].poll(&mut |_| panic!("only tests are in flight"));
        }
    }

    /// Whether the card has it, and not the CPU.
    fn submit(&mut self, way: usize, mark: u64) -> bool {
        match self.ways[way].submit(digest(mark)) {
            Submitted::Done(done) => {
                assert_right(&done);
                false
            }
            Submitted::Pending(_) => true,
        }
    }

    fn back(&mut self, way: usize) -> usize {
        self.ways[way].poll(&mut |completion| assert_right(&completion))
    }

    fn card(&self) -> EngineCounts {
        self.runtime.snapshot().engines.into_iter().find(|engine| engine.engine == "emulated").unwrap()
    }
}

#[test]
fn a_thread_is_told_what_the_others_have_out_and_all_share_one_window() {
    for pairs in [1, 3] {
        let mut two = Two::new(pairs, Vec::new());
        let window = WINDOW * pairs as u32;
        assert_eq!(two.runtime.machine().engines[2].window, window);
        for mark in 0..u64::from(window) {
            assert!(two.submit((mark % 2) as usize, mark), "{pairs}: {mark} of {window}");
            let told = *two.noted.lock().unwrap().last().unwrap();
            // Of bytes, those of the pair with the most room.
            assert_eq!(told, (mark as u32, 8 * (mark / pairs as u64), window), "{pairs}");
        }
        assert!(!two.submit(0, 99) && !two.submit(1, 99));
        assert!(two.card().fallbacks.contains(&("window-full".to_owned(), 2)), "{:?}", two.card());
        two.clock.advance(WHILE_NS);
        // One looks for both, and each gets its own.
        assert_eq!(two.back(1), window as usize / 2);
        assert_eq!(two.noted.lock().unwrap().last().unwrap().0, window);
        assert!(two.submit(1, 100));
        assert_eq!(two.noted.lock().unwrap().last().unwrap().0, 0, "none is in flight any more");
        assert_eq!(two.back(0), window as usize / 2);
    }
}

#[test]
fn answers_that_another_thread_has_taken_in_are_never_more_than_a_window_of_them() {
    let mut two = Two::new(1, Vec::new());
    for mark in 0..u64::from(WINDOW) {
        assert!(two.submit(0, mark));
    }
    two.clock.advance(WHILE_NS);
    assert_eq!(two.back(1), 0);
    // The card is empty; but who submits and never looks has no room for more.
    assert!(!two.submit(0, 50) && two.submit(1, 51));
    // They came in time, however late it is when they are looked for.
    two.clock.advance(10 * GIVE_UP_NS);
    assert_eq!(two.back(0), WINDOW as usize);
    assert!(two.submit(0, 52));
    assert_eq!(two.card().quarantines, 0, "{:?}", two.card());
}

#[test]
fn what_a_thread_takes_back_shows_nothing_that_was_not_verified() {
    let mut two = Two::new(1, Vec::new());
    let Submitted::Pending(token) = two.ways[0].submit(digest(7)) else { panic!("not on the card") };
    two.clock.advance(WHILE_NS);
    assert_eq!(two.back(1), 0);
    let request = two.ways[0].cancel(token).unwrap();
    assert_eq!((request.mark, &request.output[..]), (7, &[0; 32][..]));
    assert_eq!((two.back(0), two.ways[0].in_flight()), (0, 0));
}

#[test]
fn what_a_thread_leaves_behind_fills_the_window_until_it_is_answered_and_is_nobodys_fault() {
    let mut two = Two::new(1, Vec::new());
    for mark in 0..u64::from(WINDOW) {
        assert!(two.submit(0, mark));
    }
    two.ways[0] = two.runtime.dispatcher();
    assert!(!two.submit(1, 50));
    assert_eq!(two.card().quarantines, 0, "{:?}", two.card());
    two.clock.advance(WHILE_NS);
    assert_eq!(two.back(1), 0);
    assert!(two.submit(1, 51));
    two.clock.advance(WHILE_NS);
    assert_eq!((two.back(1), two.card().quarantines), (1, 0));
}

#[test]
fn a_device_that_keeps_what_threads_left_is_left_after_the_time_of_a_request() {
    let silent = Trigger::Time { from_ns: 2 * WHILE_NS, to_ns: 4 * WHILE_NS };
    let mut two = Two::new(1, vec![Fault::new(Effect::Silence, silent)]);
    for mark in 0..u64::from(WINDOW) {
        assert!(two.submit(0, mark));
    }
    two.ways[0] = two.runtime.dispatcher();
    assert!(!two.submit(1, 50));
    assert_eq!(two.card().quarantines, 0, "{:?}", two.card());
    two.clock.advance(GIVE_UP_NS);
    assert!(!two.submit(1, 51));
    assert_eq!(two.card().quarantines, 1, "{:?}", two.card());
    // It is itself again.
    two.clock.advance(1_000_000_000);
    two.prove();
    assert!(two.submit(0, 52) && two.submit(1, 53));
    two.clock.advance(WHILE_NS);
    assert_eq!((two.back(0), two.back(1)), (1, 1));
}

#[test]
fn a_device_that_failed_one_thread_has_failed_all_and_each_request_is_answered_right() {
    // Counted with the known answers.
    let answers = {
        let two = Two::new(1, Vec::new());
        two.card().tests
    };
    let wrong = Fault::new(Effect::WrongResult, Trigger::nth(answers + 1));
    let mut two = Two::new(1, vec![wrong]);
    assert!(two.submit(0, 1) && two.submit(1, 2) && two.submit(1, 3));
    two.clock.advance(WHILE_NS);
    // The other two are answered by then, or given back: right in any case.
    assert_eq!(two.back(0), 1);
    assert_eq!(two.back(1), 2);
    assert!(!two.submit(0, 4), "it is in quarantine");
    two.clock.advance(1_000_000_000);
    let before = requests_on_card(&two.runtime);
    // The second thread learns of it at its next request, at the latest.
    for mark in 5..20 {
        for way in 0..2 {
            two.submit(way, mark);
            two.clock.advance(200_000_000);
            two.back(way);
        }
    }
    assert!(requests_on_card(&two.runtime) > before + 10, "{:?}", two.card());
}

#[test]
fn four_threads_share_an_engine_that_errs() {
    let runtime = runtime("offload", vec![Fault::new(Effect::Error, Trigger::Every(13))]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| work(&runtime, 500));
        }
    });
    let total: u64 = runtime.snapshot().cells.iter().map(|cell| cell.requests).sum();
    assert_eq!(total, 2000 + 4 * 2, "every request is counted once");
}

/// Six threads that come and go, some with requests in flight.
fn from_many_threads(pairs: usize, faults: Vec<Fault>) -> Runtime {
    let builder = builder(Pace::RealTime, pairs, faults);
    let runtime = builder.policy("offload", Settings::default()).build().unwrap();
    let thread = |thread: u64| {
        for round in 0..5 {
            let mut dispatcher = runtime.dispatcher();
            let (mut sent, mut back) = (0, 0);
            let mut poll = |dispatcher: &mut Dispatcher| {
                back += dispatcher.poll(&mut |completion| assert_right(&completion));
                back
            };
            let mut done = 0;
            for mark in 0..60 {
                sent += 1;
                if let Submitted::Done(completion) = dispatcher.submit(seal(mark)) {
                    assert_right(&completion);
                    done += 1;
                }
                if mark == 40 && (thread + round).is_multiple_of(3) {
                    return;
                }
                poll(&mut dispatcher);
            }
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while done + poll(&mut dispatcher) < sent {
                assert!(std::time::Instant::now() < deadline, "of {sent} some did not come back");
            }
        }
    };
    std::thread::scope(|scope| {
        let thread = &thread;
        (0..6).for_each(|at| drop(scope.spawn(move || thread(at))));
    });
    runtime
}

#[test]
fn threads_share_one_device_whatever_it_does_and_whoever_leaves() {
    for pairs in [1, 3] {
        let used = |runtime: &Runtime| requests_on_card(runtime) > 0;
        assert!((0..100).any(|_| used(&from_many_threads(pairs, Vec::new()))), "the card is never used");
        let every = |effect, n| Fault::new(effect, Trigger::Every(n));
        let back = Effect::Lost { back_after_ns: Some(20_000_000) };
        let faults = vec![
            every(Effect::Silence, 37),
            every(Effect::WrongResult, 23),
            every(Effect::Error, 19),
            Fault::new(back, Trigger::nth(100)),
        ];
        for _ in 0..3 {
            from_many_threads(pairs, faults.clone());
        }
    }
}
