//! Inline work: right results, no allocation, counted; and what loading does not do.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use common::*;
use wattlock::{BuildError, Runtime};
use wattlock_core::{Algorithm, Data, Engine, EngineClass, Error, Item, Key, Kind, Request};
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::software::Software;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is handed to the system's allocator unchanged; counting touches a thread-local cell only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn plain_runtime() -> Runtime {
    Runtime::builder().telemetry(false).profile(wattlock::Profile::built_in()).build().unwrap()
}

fn seal_in_place(
    dispatcher: &mut wattlock::Dispatcher,
    key: &Key,
    nonce: &[u8],
    buffer: &mut [u8],
) -> Result<[u8; 16], Error> {
    let mut tag = [0; 16];
    let mut request = Request::new(Kind::Aes256GcmSeal, key, Data::InPlace(buffer));
    request.nonce = nonce;
    request.tag = &mut tag;
    dispatcher.run(&mut request)?;
    Ok(tag)
}

#[test]
fn inline_requests_allocate_nothing_after_the_first() {
    for policy in wattlock::policy::NAMES {
        let runtime = Runtime::builder()
            .policy(policy, wattlock::policy::Settings::default())
            .profile(wattlock::Profile::built_in())
            .build()
            .unwrap();
        let mut dispatcher = runtime.dispatcher();
        let key = Key::symmetric(Algorithm::Aes256Gcm, &[1; 32]).unwrap();
        let mut buffers: Vec<Vec<u8>> = [16, 1024, 16_384].iter().map(|len| vec![0; *len]).collect();
        for buffer in &mut buffers {
            seal_in_place(&mut dispatcher, &key, &[0; 12], buffer).unwrap();
        }
        let before = ALLOCATIONS.with(Cell::get);
        for round in 0..1000_u32 {
            for buffer in &mut buffers {
                seal_in_place(&mut dispatcher, &key, &[round as u8; 12], buffer).unwrap();
            }
        }
        assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0, "policy {policy}");
    }
}

#[test]
fn a_batch_in_hand_allocates_nothing_after_the_first() {
    let runtime = plain_runtime();
    let mut dispatcher = runtime.dispatcher();
    let key = Key::symmetric(Algorithm::Aes256Gcm, &[1; 32]).unwrap();
    let (mut buffers, mut tags) = ([[0; 1024]; 8], [[0; 16]; 8]);
    let mut round = |number: u8| {
        let nonces: [[u8; 12]; 8] = std::array::from_fn(|at| [at as u8 + 8 * number; 12]);
        let (mut buffers, mut tags) = (buffers.iter_mut(), tags.iter_mut());
        let mut items: [Item<'_>; 8] = std::array::from_fn(|at| {
            let (buffer, tag) = (buffers.next().unwrap(), tags.next().unwrap());
            let request = Request::new(Kind::Aes256GcmSeal, &key, Data::InPlace(buffer));
            Item::new(Request { nonce: &nonces[at], tag, ..request })
        });
        dispatcher.run_all(&mut items);
        assert!(items.iter().all(|item| item.result == Ok(1024)));
    };
    round(0);
    let before = ALLOCATIONS.with(Cell::get);
    (1..30).for_each(&mut round);
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0);
    let cells = runtime.snapshot().cells;
    assert_eq!((cells[0].requests, cells[0].bytes), (8 * 30, 8 * 30 * 1024));
}

#[test]
fn result_is_the_engines_and_is_counted() {
    let runtime = plain_runtime();
    let mut dispatcher = runtime.dispatcher();
    let key = Key::symmetric(Algorithm::Aes256Gcm, &[1; 32]).unwrap();
    let (mut ours, mut plain) = (vec![7; 1000], vec![7; 1000]);
    let tag = seal_in_place(&mut dispatcher, &key, &[3; 12], &mut ours).unwrap();
    let mut plain_tag = [0; 16];
    let mut request = Request::new(Kind::Aes256GcmSeal, &key, Data::InPlace(&mut plain));
    request.nonce = &[3; 12];
    request.tag = &mut plain_tag;
    Software::new().execute(&mut request).unwrap();
    assert_eq!((ours, tag), (plain, plain_tag));
    let snapshot = runtime.snapshot();
    let cell = snapshot.cells.iter().find(|cell| cell.kind == "aes-256-gcm-seal").unwrap();
    assert_eq!((cell.requests, cell.bytes), (1, 1000));
}

#[test]
fn a_bad_request_is_refused_before_any_engine_sees_it() {
    let runtime = plain_runtime();
    let mut dispatcher = runtime.dispatcher();
    let key = Key::symmetric(Algorithm::Aes256Gcm, &[1; 32]).unwrap();
    let refused = seal_in_place(&mut dispatcher, &key, &[3; 11], &mut [0; 4]);
    assert_eq!(refused, Err(Error::Invalid("nonce length")));
    assert!(runtime.snapshot().cells.is_empty());
}

#[test]
fn every_policy_runs_every_kind_inline() {
    for policy in wattlock::policy::NAMES {
        let settings = wattlock::policy::Settings::default();
        let runtime = Runtime::builder().policy(policy, settings).telemetry(false).build().unwrap();
        let mut dispatcher = runtime.dispatcher();
        for kind in Kind::ALL {
            let mut sample = wattlock_core::known_answers(*kind).remove(0).request;
            dispatcher
                .run(&mut sample.view())
                .unwrap_or_else(|error| panic!("{policy} {}: {error}", kind.name()));
        }
    }
}

#[test]
fn run_all_mixes_queued_and_inline_work_and_returns_all_of_it() {
    let (device, clock) = (Scripted::new(4), HandClock::default());
    let runtime = runtime(&device, &clock, 1);
    let mut dispatcher = runtime.dispatcher();
    prove(&mut dispatcher, &clock, seal(0));
    let key = seal_key();
    let mut buffers: Vec<Vec<u8>> = (0..50).map(|n| vec![n; 500]).collect();
    let mut tags = vec![[0_u8; 16]; 50];
    let nonces: Vec<[u8; 12]> = (0..50).map(|n| [n; 12]).collect();
    device.will(&[
        Act::Right,
        Act::Wrong,
        Act::Fail(Error::Device(wattlock_core::Fault::Reported)),
        Act::Right,
    ]);
    let mut items: Vec<Item<'_>> = buffers
        .iter_mut()
        .zip(&mut tags)
        .zip(&nonces)
        .map(|((buffer, tag), nonce)| {
            let mut request = Request::new(Kind::Aes256GcmSeal, &key, Data::InPlace(buffer));
            request.nonce = nonce;
            request.tag = tag;
            Item::new(request)
        })
        .collect();
    // One that is wrong, among the others: it alone fails.
    items[20].request.nonce = &[];
    dispatcher.run_all(&mut items);
    let results: Vec<_> = items.into_iter().map(|item| item.result).collect();
    for (n, result) in results.iter().enumerate() {
        if n == 20 {
            assert_eq!(*result, Err(Error::Invalid("nonce length")));
            continue;
        }
        let (mut plain, mut tag) = (vec![n as u8; 500], [0; 16]);
        let mut request = Request::new(Kind::Aes256GcmSeal, &key, Data::InPlace(&mut plain));
        request.nonce = &nonces[n];
        request.tag = &mut tag;
        Software::new().execute(&mut request).unwrap();
        assert_eq!((result, &buffers[n], &tags[n]), (&Ok(500), &plain, &tag), "request {n}");
    }
    assert!(requests_on(&runtime, "scripted") > 0, "the device took part");
}

#[test]
fn run_all_repeats_what_a_device_lost_for_good() {
    let (device, clock) = (Scripted::new(4), HandClock::default());
    let real = wattlock::Clock::real();
    let runtime = builder(&device, &clock, 0).clock(real).give_up_after_ns(0).build().unwrap();
    let mut dispatcher = runtime.dispatcher();
    prove(&mut dispatcher, &clock, digest(0));
    device.will(&[Act::Vanish; 2]);
    let (mut one, mut two) = ([0; 32], [0; 32]);
    let digest = |to| Item::new(Request::new(Kind::Sha256, Key::none(), Data::Apart { from: b"abc", to }));
    let mut items = [digest(&mut one), digest(&mut two)];
    dispatcher.run_all(&mut items);
    assert_eq!(items.map(|item| item.result), [Ok(32); 2]);
    assert!(one == two && one[..4] == [0xba, 0x78, 0x16, 0xbf]);
}

#[test]
fn a_request_in_place_that_an_engine_began_to_overwrite_is_not_repeated() {
    let key = Key::symmetric(Algorithm::Aes256Gcm, &[1; 32]).unwrap();
    for (error, outcome) in [
        (Error::Device(wattlock_core::Fault::Reported), Err(Error::Device(wattlock_core::Fault::Reported))),
        (Error::Authentication, Err(Error::Authentication)),
    ] {
        let mut broken = Cpu::new("broken", wattlock_core::KindSet::ALL);
        broken.fails = Some((20, error));
        let engines: Vec<Arc<dyn Engine>> = vec![Arc::new(broken), Arc::new(Software::new())];
        let settings = wattlock::policy::Settings::default();
        let runtime = Runtime::builder()
            .engines(engines)
            .policy("instruction", settings)
            .telemetry(false)
            .profile(wattlock::Profile::built_in())
            .build()
            .unwrap();
        let mut dispatcher = runtime.dispatcher();
        let mut ended = None;
        for _ in 0..100 {
            let mut buffer = [7; 64];
            let result = seal_in_place(&mut dispatcher, &key, &[0; 12], &mut buffer);
            if result.is_err() {
                ended = Some(result.map(|_| ()));
                break;
            }
        }
        // Whoever repeated it would have sealed what is left of the plaintext, and called it a success.
        assert_eq!(ended, Some(outcome));
    }
}

/// Signs with a bit wrong, once it has worked this often.
struct Misled(Cpu, u64);

impl Engine for Misled {
    fn description(&self) -> &wattlock_core::Description {
        self.0.description()
    }

    fn execute(&self, request: &mut Request<'_>) -> Result<usize, Error> {
        let result = self.0.execute(request);
        if self.0.worked.load(std::sync::atomic::Ordering::SeqCst) == self.1 {
            request.data.output()[3] ^= 4;
        }
        result
    }

    fn check(&self, request: &wattlock_core::OwnedRequest, len: usize) -> Result<(), Error> {
        Instruction::new().check(request, len)
    }
}

#[test]
fn a_wrong_signature_made_inside_the_call_never_leaves_where_all_are_verified() {
    let kind = Kind::EcdsaP256Sign;
    let known = wattlock_core::known_answers(kind).len() as u64;
    // The 70th signature after the known answers: a time is taken of the 64th.
    for wrong in [1, 64, 70] {
        let misled = || Misled(Cpu::new("misled", wattlock_core::KindSet::ALL), known + wrong);
        let build = |engines: Vec<Arc<dyn Engine>>| {
            Runtime::builder()
                .engines(engines)
                .policy("instruction", wattlock::policy::Settings::default())
                .telemetry(false)
                .profile(wattlock::Profile::built_in())
                .verify_signatures(true)
                .build()
                .unwrap()
        };
        let runtime = build(vec![Arc::new(misled()), Arc::new(Software::new())]);
        let mut dispatcher = runtime.dispatcher();
        let mut sample = wattlock_core::known_answers(kind).remove(0).request;
        for _ in 0..100 {
            let len = dispatcher.run(&mut sample.view()).unwrap();
            Software::new().check(&sample, len).unwrap();
        }
        let engines = runtime.snapshot().engines;
        let of = |name| engines.iter().find(|one| one.engine == name).unwrap();
        assert_eq!((of("misled").verified, of("software").verified), (100, 1));
        assert!(of("misled").fallbacks.contains(&("wrong-result".to_owned(), 1)));
        assert_eq!(requests_on(&runtime, "software"), 1);
        assert_eq!((of("misled").tests, of("misled").quarantines), (2 * known, 0), "tested again, and kept");

        // Nobody else is there to make it again: an error for which a door fails instead of asking elsewhere, and nothing of
        // what was wrong.
        let runtime = build(vec![Arc::new(misled())]);
        let mut dispatcher = runtime.dispatcher();
        let ended = (0..wrong).map(|_| dispatcher.run(&mut sample.view())).last().unwrap();
        assert_eq!(ended, Err(Error::Device(wattlock_core::Fault::WrongResult)));
        assert!(sample.output.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_key_whose_halves_do_not_belong_together_is_refused_and_no_engines_fault() {
    let kind = Kind::EcdsaP256Sign;
    let sample = || wattlock_core::known_answers(kind).remove(0).request;
    let builder = Runtime::builder().telemetry(false).profile(wattlock::Profile::built_in());
    let runtime = builder.verify_signatures(true).build().unwrap();
    let mut dispatcher = runtime.dispatcher();
    let mut other = wattlock_core::known_answers(Kind::P256Generate).remove(0).request;
    dispatcher.run(&mut other.view()).unwrap();
    let mut request = sample();
    let wattlock_core::Material::Ec(pair) = request.key.material() else { unreachable!() };
    let pair = wattlock_core::EcKey { scalar: pair.scalar.clone(), public: other.output[32..97].to_vec() };
    request.key = Arc::new(Key::ec(wattlock_core::Curve::P256, pair).unwrap());
    assert!(matches!(dispatcher.run(&mut request.view()), Err(Error::Invalid(_))));
    assert!(runtime.snapshot().engines.iter().all(|one| one.quarantines == 0));
    dispatcher.run(&mut sample().view()).unwrap();
}

#[test]
fn a_device_proves_itself_to_a_caller_that_uses_run_all_alone() {
    let (device, clock) = (Scripted::new(4), HandClock::default());
    let runtime = runtime(&device, &clock, 1);
    let mut dispatcher = runtime.dispatcher();
    for round in 0..3_u8 {
        let (mut buffer, mut tag, key) = (vec![round; 100], [0; 16], seal_key());
        let mut request = Request::new(Kind::Aes256GcmSeal, &key, Data::InPlace(&mut buffer));
        let nonce = [round; 12];
        request.nonce = &nonce;
        request.tag = &mut tag;
        let mut items = [Item::new(request)];
        dispatcher.run_all(&mut items);
        assert_eq!(items.map(|item| item.result), [Ok(100)]);
    }
    assert!(requests_on(&runtime, "scripted") > 0, "the device was never heard");
}

#[test]
fn building_a_runtime_and_a_dispatcher_opens_no_device() {
    let device = Scripted::new(1);
    let built = runtime(&device, &HandClock::default(), 0);
    let dispatcher = built.dispatcher();
    assert_eq!(device.script.lock().unwrap().opens, 0);
    drop(dispatcher);
}

#[test]
fn settings_that_change_decide_the_next_request_of_every_dispatcher() {
    let runtime = Runtime::builder()
        .policy("software", wattlock::policy::Settings::default())
        .telemetry(false)
        .profile(wattlock::Profile::built_in())
        .build()
        .unwrap();
    let key = Key::symmetric(Algorithm::Aes256Gcm, &[1; 32]).unwrap();
    let on = |engine| requests_on(&runtime, engine);
    let one = |dispatcher: &mut wattlock::Dispatcher| {
        seal_in_place(dispatcher, &key, &[0; 12], &mut [0; 50]).unwrap();
    };
    let (mut first, mut second) = (runtime.dispatcher(), runtime.dispatcher());
    one(&mut first);
    first.streamed(Kind::Aes256GcmSeal, 1, 50);
    assert_eq!((on("software"), on("instruction")), (2, 0));
    runtime.set_policy("fastest", wattlock::policy::Settings::default()).unwrap_err();
    one(&mut first);
    assert_eq!((on("software"), on("instruction")), (3, 0), "a wrong name changes nothing");
    runtime.set_policy("instruction", wattlock::policy::Settings::default()).unwrap();
    assert_eq!(
        (runtime.policy(), runtime.snapshot().header.policy),
        ("instruction".into(), "instruction".into())
    );
    one(&mut first);
    second.submit(seal(1));
    first.streamed(Kind::Aes256GcmSeal, 1, 50);
    one(&mut runtime.dispatcher());
    assert_eq!((on("software"), on("instruction")), (3, 4));
    for name in ["offload", "software"] {
        runtime.set_policy(name, wattlock::policy::Settings::default()).unwrap();
    }
    let mut items = [Kind::Sha256; 2].map(|kind| {
        let request =
            Request::new(kind, Key::none(), Data::Apart { from: b"abc", to: Box::leak(Box::new([0; 32])) });
        Item::new(request)
    });
    second.run_all(&mut items);
    assert_eq!((on("software"), on("instruction")), (5, 4), "two changes between two requests");
}

#[test]
fn what_cannot_be_a_runtime_is_refused() {
    let device = Scripted::new(1);
    let alone = Runtime::builder().engines(vec![device]).build();
    assert!(matches!(alone, Err(BuildError::NoCpuEngine)));
    let twice = Runtime::builder().engine(Arc::new(Software::new())).build();
    assert!(matches!(twice, Err(BuildError::SameName("software"))));
    let unknown = Runtime::builder().policy("fastest", wattlock::policy::Settings::default()).build();
    assert!(matches!(unknown, Err(BuildError::Policy(_))));
    let mut queued = Scripted::new(1);
    Arc::get_mut(&mut queued).unwrap().description.class = EngineClass::Lanes;
    let engines: Vec<Arc<dyn Engine>> = vec![Arc::new(Software::new()), queued];
    let of_a_cpu = Runtime::builder().engines(engines).build();
    assert!(matches!(of_a_cpu, Err(BuildError::QueuedCpu("scripted"))));
    let nine = (0..9).map(|_| Arc::new(Instruction::new()) as Arc<dyn Engine>).collect();
    assert!(matches!(Runtime::builder().engines(nine).build(), Err(BuildError::TooManyEngines(9))));
}
