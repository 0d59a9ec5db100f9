//! The engine on the stand-in driver: the conformance suite, memory, and every way in which a driver fails.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod standin;

use std::sync::Arc;
use std::time::{Duration, Instant};

use standin::StandIn;
use wattlock::{Dispatcher, Runtime, Submitted};
use wattlock_core::dev::{Harness, conform};
use wattlock_core::{Algorithm, Data, Engine, Error, Item, Key, Kind, OwnedRequest, Request, Run};
use wattlock_cpu::instruction::Instruction;
use wattlock_cuda::{Cuda, Missing};

/// Waits until the context is up.
fn up(engine: &Cuda) {
    let instance = engine.open(0).unwrap();
    for _ in 0..20_000 {
        if instance.window().requests > 1 {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the context does not come up");
}

#[test]
fn the_stand_in_conforms_for_every_kind_and_leaves_nothing_behind() {
    let driver = StandIn::new();
    let engine = driver.find().unwrap();
    assert!(
        engine.description().detail.contains("stand-in, not hardware"),
        "{}",
        engine.description().detail
    );
    up(&engine);
    let start = Instant::now();
    let clock = || {
        std::thread::sleep(Duration::from_micros(50));
        start.elapsed().as_nanos() as u64
    };
    let harness = Harness { clock: &clock, longest: 1 << 16, ..Harness::default() };
    let summary = conform(&engine, &Instruction::new(), &harness);
    assert_eq!(summary.kinds, engine.description().queued.iter().count());
    drop(engine);
    driver.assert_clean();
}

#[test]
fn the_gpu_s_parts_are_the_driver_s_attributes_or_unknown() {
    let driver = StandIn::new();
    let found = driver.find().unwrap().gpu().unwrap();
    assert_eq!((&found.clocks_mhz[..], found.multiprocessors, found.warp), (&[1980][..], 4, 32));
    driver.set("clock=0");
    assert_eq!(driver.find().unwrap().gpu(), None);
}

#[test]
fn the_engine_opens_as_many_streams_as_are_set_and_gives_all_back() {
    for streams in [1, 16] {
        let mut driver = StandIn::new();
        driver.places.streams = streams;
        let engine = driver.find().unwrap();
        up(&engine);
        assert_eq!(driver.count("streams"), streams as i64);
        drop(engine);
        driver.assert_clean();
    }
}

#[test]
fn without_a_usable_driver_the_reason_is_named() {
    let (driver, images) = ("/nonexistent/libcuda.so.1".into(), "/".into());
    let nowhere = wattlock_cuda::Places { driver, images, streams: 4 };
    assert_eq!(Cuda::find(&nowhere).err(), Some(Missing::Driver("/nonexistent/libcuda.so.1".into())));
    let missing = StandIn::of(&standin::incomplete()).find().err();
    assert_eq!(missing, Some(Missing::Symbol("cuMemsetD8Async")));
    let why = |text: &str| {
        let driver = StandIn::new();
        driver.set(text);
        driver.find().err()
    };
    assert_eq!(why("init=100"), Some(Missing::Device));
    assert_eq!(why("init=999"), Some(Missing::Failed(999)));
    assert_eq!(why("devices=0"), Some(Missing::Device));
    assert_eq!(why("version=12080"), Some(Missing::Old(12_080)));
    assert_eq!(why("capability=75"), Some(Missing::Capability(7, 5)));
    assert!(matches!(why("capability=121"), Some(Missing::Image(12, 1, _))));
    for missing in
        [Missing::Device, Missing::Old(12_080), Missing::Symbol("cuInit"), Missing::Capability(7, 5)]
    {
        assert!(!missing.to_string().contains('\n') && !missing.to_string().is_empty());
    }
}

const STRIDE: usize = 16_384 + 16;
const CHUNKS: usize = 640;

fn key() -> Arc<Key> {
    Arc::new(Key::symmetric(Algorithm::Aes256Gcm, &[7; 32]).unwrap())
}

/// A run of ten MiB, more than a slot takes, with a short last message.
fn run(kind: Kind, key: &Arc<Key>, input: Vec<u8>) -> OwnedRequest {
    let len = input.len();
    let mut request = OwnedRequest::new(kind, key.clone(), input, len);
    request.nonce =
        (0..len.div_ceil(STRIDE) as u32).flat_map(|i| [&i.to_be_bytes()[..], &[3; 8]].concat()).collect();
    request.run = Some(Box::new(Run::Stride(STRIDE)));
    request
}

fn plain() -> Vec<u8> {
    (0..CHUNKS * STRIDE - 1000).map(|i| ((i * 31) >> 3) as u8).collect()
}

/// What the CPU makes of it, without the gaps' old content.
fn by_cpu(mut request: OwnedRequest) -> Vec<u8> {
    wattlock_core::execute(&Instruction::new(), &mut request.view()).unwrap();
    request.output.clone()
}

fn runtime(engine: Cuda) -> Runtime {
    Runtime::builder()
        .engines(vec![Arc::new(Instruction::new()), Arc::new(engine)])
        .policy("offload", Default::default())
        .telemetry(false)
        .build()
        .unwrap()
}

/// Submits until the engine has proved the kind and takes a request, and waits for it.
fn through(
    dispatcher: &mut Dispatcher,
    make: impl Fn() -> OwnedRequest,
) -> (OwnedRequest, Result<usize, Error>) {
    for _ in 0..2_000 {
        match dispatcher.submit(make()) {
            Submitted::Done(_) => std::thread::sleep(Duration::from_millis(2)),
            Submitted::Pending(token) => {
                dispatcher.flush();
                return wait(dispatcher, token);
            }
        }
    }
    panic!("the engine is never used");
}

fn wait(dispatcher: &mut Dispatcher, token: wattlock_core::Token) -> (OwnedRequest, Result<usize, Error>) {
    let (mut found, start) = (None, Instant::now());
    while found.is_none() {
        assert!(start.elapsed() < Duration::from_secs(60), "it does not come back");
        dispatcher.poll(&mut |completion| {
            if completion.token == token {
                found = Some((completion.request, completion.result));
            }
        });
        std::thread::sleep(Duration::from_micros(100));
    }
    found.unwrap()
}

fn fallbacks(runtime: &Runtime, reason: &str) -> u64 {
    let engines = runtime.snapshot().engines;
    let cuda = engines.into_iter().find(|engine| engine.engine == "cuda").unwrap();
    cuda.fallbacks.iter().filter(|(name, _)| *name == reason).map(|(_, count)| *count).sum()
}

#[test]
fn a_run_larger_than_a_slot_is_the_cpu_s_and_a_forged_message_of_it_is_named() {
    let driver = StandIn::new();
    let runtime = runtime(driver.find().unwrap());
    let (key, plain) = (key(), plain());
    let mut dispatcher = runtime.dispatcher();
    let (sealed, result) = through(&mut dispatcher, || run(Kind::Aes256GcmSeal, &key, plain.clone()));
    assert_eq!(result, Ok(plain.len()));
    let expected = by_cpu(run(Kind::Aes256GcmSeal, &key, plain.clone()));
    assert!(sealed.output == expected);
    let mut sealed = expected;
    let (opened, result) = through(&mut dispatcher, || run(Kind::Aes256GcmOpen, &key, sealed.clone()));
    assert_eq!(result, Ok(plain.len()));
    for (piece, text) in opened.output.chunks(STRIDE).zip(plain.chunks(STRIDE)) {
        assert!(piece[..piece.len() - 16] == text[..text.len() - 16]);
    }
    sealed[STRIDE * 601 + 5] ^= 1;
    sealed[STRIDE * 630 + 5] ^= 1;
    let (opened, result) = through(&mut dispatcher, || run(Kind::Aes256GcmOpen, &key, sealed.clone()));
    assert_eq!(result, Err(Error::ForgedMessage(601)));
    assert!(opened.output.iter().all(|byte| *byte == 0), "plaintext is left");
    drop((dispatcher, runtime));
    driver.assert_clean();
}

#[test]
fn requests_of_one_key_share_launches_and_others_do_not() {
    let driver = StandIn::new();
    let runtime = runtime(driver.find().unwrap());
    let mut dispatcher = runtime.dispatcher();
    let shared = Arc::new(Key::symmetric(Algorithm::ChaCha20Poly1305, &[1; 32]).unwrap());
    let make = |key: &Arc<Key>, i: u8| {
        let mut request =
            OwnedRequest::new(Kind::ChaCha20Poly1305Seal, key.clone(), vec![i; 1000 + usize::from(i)], 2000);
        (request.nonce, request.aad) = (vec![i; 12], vec![i; 5]);
        request
    };
    through(&mut dispatcher, || make(&shared, 0)).1.unwrap();
    let before = driver.count("launches");
    // Clones share the key's expansions, as items of one file's key do.
    let tokens: Vec<_> = (1..=64)
        .map(|i| match dispatcher.submit(make(&Arc::new((*shared).clone()), i)) {
            Submitted::Pending(token) => (i, token),
            Submitted::Done(_) => panic!("it was done by the CPU"),
        })
        .collect();
    let other = Arc::new(Key::symmetric(Algorithm::ChaCha20Poly1305, &[2; 32]).unwrap());
    let Submitted::Pending(last) = dispatcher.submit(make(&other, 99)) else { panic!("done by the CPU") };
    let mut back = std::collections::HashMap::new();
    while back.len() < 65 {
        dispatcher.poll(&mut |completion| _ = back.insert(completion.token, completion));
        std::thread::sleep(Duration::from_micros(100));
    }
    for (key, i, token) in tokens.iter().map(|(i, token)| (&shared, *i, token)).chain([(&other, 99, &last)]) {
        let mut expected = make(key, i);
        Instruction::new().execute(&mut expected.view()).unwrap();
        let got = &back[token];
        assert_eq!(got.result, Ok(1000 + usize::from(i)));
        assert!(got.request.output == expected.output && got.request.tag == expected.tag, "{i}");
    }
    // Three kernels each, alone 195.
    assert!(driver.count("launches") - before < 195, "{}", driver.count("launches") - before);
    drop((dispatcher, runtime, back));
    driver.assert_clean();
}

#[test]
fn with_little_memory_pieces_are_smaller_and_with_none_the_cpu_works() {
    for (memory, used) in [(16 << 20, true), (1 << 20, false)] {
        let driver = StandIn::new();
        driver.set(&format!("memory={memory}"));
        let runtime = runtime(driver.find().unwrap());
        let (key, plain) = (key(), plain());
        let mut dispatcher = runtime.dispatcher();
        let make = || run(Kind::Aes256GcmSeal, &key, plain.clone());
        if used {
            let (sealed, result) = through(&mut dispatcher, make);
            assert_eq!(result, Ok(plain.len()));
            assert!(sealed.output == by_cpu(make()));
        } else {
            // The context takes its time to fail; every request is the CPU's meanwhile.
            let quarantined = || {
                let engines = runtime.snapshot().engines;
                engines.iter().any(|engine| engine.engine == "cuda" && engine.quarantines > 0)
            };
            let mut tries = 0;
            while tries < 20 || (tries < 5_000 && !quarantined()) {
                let Submitted::Done(done) = dispatcher.submit(make()) else {
                    panic!("where is the memory from?")
                };
                assert_eq!(done.result, Ok(plain.len()));
                std::thread::sleep(Duration::from_millis(1));
                tries += 1;
            }
            assert!(quarantined());
        }
        drop((dispatcher, runtime));
        driver.assert_clean();
    }
}

/// A request is done right whatever happens, and the reason is counted.
fn survives(fault: &str, reason: &str) {
    let driver = StandIn::new();
    let runtime = Runtime::builder()
        .engines(vec![Arc::new(Instruction::new()), Arc::new(driver.find().unwrap())])
        .policy("offload", Default::default())
        .verify_one_in(1)
        .telemetry(false)
        .build()
        .unwrap();
    let (key, plain) = (key(), plain());
    let make = || run(Kind::Aes256GcmSeal, &key, plain.clone());
    let expected = by_cpu(make());
    let mut dispatcher = runtime.dispatcher();
    through(&mut dispatcher, make).1.unwrap();
    driver.set(&format!("{fault},after={}", driver.count("launches")));
    for _ in 0..4 {
        let (request, result) = match dispatcher.submit(make()) {
            Submitted::Done(completion) => (completion.request, completion.result),
            Submitted::Pending(token) => wait(&mut dispatcher, token),
        };
        assert_eq!(result, Ok(plain.len()), "{fault}");
        assert!(request.output == expected, "{fault}: wrong bytes");
    }
    assert!(fallbacks(&runtime, reason) > 0, "{fault}: {:?}", runtime.snapshot().engines);
    drop((dispatcher, runtime));
    // The context is still good after these: everything is given back, and wiped.
    if matches!(reason, "reported-error" | "wrong-result") {
        driver.assert_clean();
    }
}

#[test]
fn a_failed_launch_a_lost_device_a_hang_and_a_flipped_bit_cost_time_only() {
    survives("launch_error=701", "reported-error");
    survives("launch_error=700", "lost");
    survives("lost=1", "lost");
    survives("hang=1", "silent");
    survives("flip=1", "wrong-result");
}

/// Whether the engine does the kind in the end: its known answers come first.
fn does(dispatcher: &mut Dispatcher, make: impl Fn() -> OwnedRequest) -> Option<OwnedRequest> {
    for _ in 0..400 {
        if let Submitted::Pending(token) = dispatcher.submit(make()) {
            dispatcher.flush();
            let (request, result) = wait(dispatcher, token);
            assert!(result.is_ok());
            return Some(request);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    None
}

#[test]
fn where_clmad_is_wrong_the_engine_hashes_by_integers_or_leaves_gcm_to_the_cpu() {
    // Whether `clmad` is wrong, whether there is an image without it, and what image is in its place.
    for (wrong, image, done) in [
        (true, Some("stand-in"), true),
        (true, None, false),
        (true, Some("broken"), false),
        (false, Some("stand-in"), true),
    ] {
        let driver = StandIn::new();
        driver.set(&format!("clmad={}", i32::from(wrong)));
        if let Some(image) = image {
            std::fs::write(driver.places.images.join("wattlock_i.sm_90.cubin"), image).unwrap();
        }
        let engine = driver.find().unwrap();
        up(&engine);
        let runtime = runtime(engine);
        let (key, mut plain) = (key(), plain());
        plain.truncate(3 * STRIDE - 1000);
        let mut dispatcher = runtime.dispatcher();
        let ctr = Arc::new(Key::symmetric(Algorithm::Aes128Ctr, &[1; 16]).unwrap());
        let counted = || {
            let mut request = OwnedRequest::new(Kind::Aes128Ctr, ctr.clone(), vec![1; 64], 64);
            request.nonce = vec![0; 16];
            request
        };
        assert!(does(&mut dispatcher, counted).is_some(), "other kinds are the engine's whatever GHASH does");
        let make = || run(Kind::Aes256GcmSeal, &key, plain.clone());
        let sealed = does(&mut dispatcher, make);
        assert_eq!(sealed.is_some(), done, "wrong: {wrong}, image: {image:?}");
        let expected = by_cpu(make());
        assert!(sealed.is_none_or(|sealed| sealed.output == expected));
        let open = || run(Kind::Aes256GcmOpen, &key, expected.clone());
        assert_eq!(does(&mut dispatcher, open).is_some(), done, "wrong: {wrong}, image: {image:?}");
        let without = driver.count("integers") > 0;
        assert_eq!(without, wrong && done, "wrong: {wrong}, image: {image:?}");
        drop((dispatcher, runtime));
        driver.assert_clean();
    }
}

/// A device that is lost while all its slots are full.
fn lose(fault: &str) -> StandIn {
    let driver = StandIn::new();
    let runtime = runtime(driver.find().unwrap());
    let (key, plain) = (key(), plain());
    let make = || run(Kind::Aes256GcmSeal, &key, plain.clone());
    let mut dispatcher = runtime.dispatcher();
    through(&mut dispatcher, make).1.unwrap();
    driver.set(&format!("{fault},after={}", driver.count("launches")));
    let tokens: Vec<_> = (0..4)
        .filter_map(|_| match dispatcher.submit(make()) {
            Submitted::Pending(token) => Some(token),
            Submitted::Done(_) => None,
        })
        .collect();
    dispatcher.flush();
    assert!(!tokens.is_empty());
    // Some may come back in the same call.
    let (mut open, start) = (tokens, Instant::now());
    while !open.is_empty() {
        assert!(start.elapsed() < Duration::from_secs(60), "{} do not come back", open.len());
        dispatcher.poll(&mut |completion| {
            assert_eq!(completion.result, Ok(plain.len()));
            open.retain(|token| *token != completion.token);
        });
        std::thread::sleep(Duration::from_micros(100));
    }
    drop((dispatcher, runtime));
    for _ in 0..20_000 {
        if driver.count("released") > 0 {
            return driver;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the context is kept");
}

#[test]
fn no_message_stays_in_host_memory_that_a_lost_device_does_not_give_back() {
    let driver = lose("lost=1");
    assert!(driver.count("live") > 0, "the driver has taken it back");
    assert_eq!((driver.count("dirty"), driver.count("wrong")), (0, 0));
}

#[test]
fn what_a_lost_device_takes_back_it_gets_back() {
    let driver = lose("launch_error=700");
    // The runtime may have tried the device again meanwhile: that context ends a little later.
    for _ in 0..20_000 {
        if driver.count("live") == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((driver.count("live"), driver.count("dirty"), driver.count("wrong")), (0, 0, 0));
}

#[test]
fn a_context_that_could_not_be_had_is_not_given_back() {
    let driver = StandIn::new();
    driver.set("lost=1,after=-1");
    let engine = driver.find().unwrap();
    let mut instance = engine.open(0).unwrap();
    for _ in 0..20_000 {
        // One request so that a submission says what is wrong.
        if instance.window().requests == 1 {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let request = run(Kind::Aes256GcmSeal, &key(), plain());
    let refused = instance.submit(wattlock_core::Token(1), request, 0).err().map(|refused| refused.error);
    assert_eq!(refused, Some(Error::Device(wattlock_core::Fault::Lost)));
    assert_eq!((driver.count("released"), driver.count("live")), (0, 0));
}

#[test]
fn a_forked_child_never_touches_the_driver() {
    let driver = StandIn::new();
    let engine = driver.find().unwrap();
    up(&engine);
    let mut instance = engine.open(0).unwrap();
    let launches = driver.count("launches");
    // SAFETY: the child calls nothing that needs a lock of another thread, and ends at once.
    #[allow(unsafe_code)]
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = matches!(engine.open(0).err(), Some(Error::Device(wattlock_core::Fault::Forked)));
        let request = OwnedRequest::new(Kind::Aes128Ctr, Arc::new(Key::none_owned()), vec![0; 16], 16);
        let also = instance.submit(wattlock_core::Token(1), request, 0).is_err();
        // SAFETY: ends the child without anybody's destructors.
        #[allow(unsafe_code)]
        unsafe {
            libc::_exit(i32::from(!(refused && also)))
        };
    }
    let mut status = 0;
    // SAFETY: waits for that child.
    #[allow(unsafe_code)]
    unsafe {
        libc::waitpid(child, &mut status, 0)
    };
    assert_eq!((status, driver.count("launches")), (0, launches));
    drop((instance, engine));
    driver.assert_clean();
}

#[test]
fn a_request_taken_back_comes_whole_and_its_answer_is_dropped() {
    let driver = StandIn::new();
    let runtime = runtime(driver.find().unwrap());
    let mut dispatcher = runtime.dispatcher();
    let (key, plain) = (key(), plain());
    let make = || run(Kind::Aes256GcmSeal, &key, plain.clone());
    through(&mut dispatcher, make).1.unwrap();
    let Submitted::Pending(token) = dispatcher.submit(make()) else { panic!("done by the CPU") };
    let taken = dispatcher.cancel(token).unwrap();
    assert!(taken.input == plain);
    let (_, result) = through(&mut dispatcher, make);
    assert_eq!(result, Ok(plain.len()));
    let mut buffer = vec![1; 64];
    let ctr = Key::symmetric(Algorithm::Aes128Ctr, &[1; 16]).unwrap();
    let data = Data::InPlace(&mut buffer);
    let request = Request { nonce: &[0; 16], ..Request::new(Kind::Aes128Ctr, &ctr, data) };
    let mut items = [Item::new(request)];
    dispatcher.run_all(&mut items);
    assert_eq!(items[0].result, Ok(64));
    drop((dispatcher, runtime, taken));
    driver.assert_clean();
}
