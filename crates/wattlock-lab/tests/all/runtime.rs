//! Scenes of papers through the production runtime, beside the paper's simulator: the runtime's dispatchers with their
//! known-answer tests, operations, claims and looks, on a clock that moves where a thread would spend time, over a CPU and
//! a device that take the simulator's times ([`wattlock_lab::production`]). Both must come to the same rate within 2 %, or
//! 8 % where the CPU takes part in writes or `adaptive` has twelve threads on a core.
//!
//! ACA-SDS goes through the volume of a mount, below the kernel. EECA and QWEB go through the provider's seat, in that
//! crate (`seat/published.rs`).
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use wattlock::{Dispatcher, Runtime, Submitted};
use wattlock_core::{EngineClass, Kind, LatencyClass, Nanos, Window};
use wattlock_door::Output;
use wattlock_files::{Input, Progress, Sealer};
use wattlock_fs::store::Place;
use wattlock_fs::volume::{NameMode, Volume};
use wattlock_lab::papers::{aca_sds, eep, lecpaes};
use wattlock_lab::production::stage::Stage;
use wattlock_lab::production::{
    HandClock, JobGpu, Parts, Ran, Scene, StreamGpu, Thread, Together, agree, agree_within, closed, proving,
};
use wattlock_lab::sim::stream::{Message, Station, pass};
use wattlock_lab::sim::{Closed, Gpu};
use wattlock_mount::{Backing, Engines, Sealed};
use wattlock_policy::Policy;

/// A page of the paper, a chunk of a volume.
const CHUNK: usize = 4096;

/// Settings of a mount that nobody changes.
struct Unset;

impl Engines for Unset {
    fn set(&self, _: &Runtime, _: &[String]) -> Result<(), String> {
        Err("not here".into())
    }

    fn describe(&self, _: &Runtime) -> Vec<String> {
        Vec::new()
    }
}

/// A closed system whose clients write files, each in a volume of its own: another's would be waited for with a lock held.
fn closed_through_volumes(system: Closed<'_>) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    let is_a_chunk = |kind, bytes| kind == Kind::Aes256GcmSeal && bytes == CHUNK;
    closed(system, Some(is_a_chunk), |scene: &Scene, thread| {
        let path = folder.path().join(thread.to_string());
        std::fs::create_dir(&path).unwrap();
        let sealed = proving(|| {
            let volume = Volume::generate(CHUNK, NameMode::Plain).unwrap();
            Sealed::open(
                &path,
                &volume,
                (scene.runtime.clone(), Box::new(Unset)),
                false,
                (&|| false, &mut wattlock_fs::content::Age::go_on),
            )
            .unwrap()
            .0
        });
        let mut crypto: Dispatcher = sealed.thread(0);
        let content = proving(|| {
            let path = path.join("file");
            let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
            let stat = file.metadata().unwrap();
            let place = Place { inode: (stat.dev(), stat.ino()), path: "file".into() };
            sealed.create_content(file, place, &mut crypto).unwrap()
        });
        let mut writes = 0;
        move |pieces: &[usize]| {
            let block = vec![7; pieces.len() * CHUNK];
            // A file of sixteen blocks that is written again and again.
            sealed.write(&content, &block, (writes % 16 * block.len()) as u64, &mut crypto).unwrap();
            writes += 1;
        }
    })
}

#[test]
fn aca_sds_in_a_volume_is_what_its_simulator_says() {
    let run = |cores, processes, policy| {
        let options = aca_sds::Options { cores, whole_writes: true, alpha: Some(1), ..Default::default() };
        // Long enough for the idle share to go up and down often.
        fn longer(system: Closed<'_>) -> Closed<'_> {
            Closed { measured: 4 * system.measured, ..system }
        }
        let scene = |run: fn(Closed<'_>) -> Ran| {
            aca_sds::scene(&options, 64.0, processes, policy, |system| run(longer(system))).unwrap()
        };
        let simulator = |system: Closed<'_>| Ran { rounds_per_s: system.run().rounds_per_s, claims: [0; 2] };
        let (simulated, volume) = (scene(simulator), scene(closed_through_volumes));
        let name = format!("aca-sds, {policy}, {processes} on {cores} cores");
        // Where the CPU takes part, the idle share goes up and down around M, each time at another moment.
        let share = if processes <= cores || policy == "adaptive" { 0.08 } else { 0.02 };
        agree_within(share, &name, simulated.rounds_per_s, volume.rounds_per_s);
        volume.claims
    };
    run(1, 12, "adaptive");
    for (cores, processes) in [(1, 12), (4, 12), (4, 4), (8, 12)] {
        let [device, cpu] = run(cores, processes, "aca-sds");
        assert!(device > 0 && (processes > 4 || cpu > 0), "a thread that waits takes part: {device} {cpu}");
    }
}

/// Seconds that a file takes to be sealed by a CPU and a GPU: by one thread, and the one that looks after the GPU.
fn job_through_seal(megabytes: f64, (node, step, policy): (eep::Node, usize, Box<dyn Policy>)) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let (plain, sealed) = (folder.path().join("plain"), folder.path().join("sealed"));
    File::create(&plain).unwrap().set_len((megabytes * 1e6) as u64).unwrap();
    let mut gpu = Gpu::new(node.gpu.clone());
    gpu.set_clock(0, step);
    let (window, rate) = (2 * node.gpu.streams, node.cpu_bytes_per_s);
    let clock = HandClock::default();
    let stage = Arc::new(Stage::new(2, vec![0, 1], clock.shared()).named("wattlock-device"));
    let scene = Scene::new(Parts {
        kinds: vec![Kind::Aes256GcmSeal],
        class: LatencyClass::Bulk,
        sized: Some(|kind, bytes| kind == Kind::Aes256GcmSeal && bytes >= 4096),
        policies: vec![policy],
        told_bytes: None,
        submitters: 1,
        times: Box::new(move |_, bytes| bytes as f64 * 1e9 / rate),
        // A stage hands over what is paid for.
        call: Box::new(|_, _| 1.0),
        machine: Box::new(JobGpu::new(gpu, window)),
        device: EngineClass::Gpu,
        window: Window { requests: window as u32, bytes: u64::MAX },
        clock: clock.clone(),
        stage: Some(stage.clone()),
        stream: None,
    });
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let _all_or_none = Together;
            // Of one core there is one thread for the CPU's side.
            let (mut one, all) = (CpuSet::new(), sched_getaffinity(None).unwrap());
            one.set((0..CpuSet::MAX_CPU).find(|core| all.is_set(*core)).unwrap());
            sched_setaffinity(None, &one).unwrap();
            stage.enter(0);
            // The study's policy is asked how the job is split, and nothing else.
            proving(|| scene.runtime.local(|_| ()));
            let never = AtomicBool::new(false);
            let sealer = Sealer::new(vec![Box::new(age::x25519::Identity::generate().to_public())]).unwrap();
            let to = Output::Path { path: sealed, force: false };
            sealer.seal(Input::Path(plain), to, &scene.runtime, Progress::new(&never)).unwrap();
            stage.leave();
        });
    });
    clock.now() as f64 / 1e9
}

#[test]
fn eep_in_seal_is_what_its_simulator_says() {
    const MEGABYTES: f64 = 100.0;
    let options = eep::Options::default();
    for name in ["eep", "adaptive"] {
        let (node, step, mut policy) = eep::scene(&options, name).unwrap();
        let simulated = eep::split(&node, MEGABYTES, step, policy.as_mut()).seconds;
        let sealed = job_through_seal(MEGABYTES, eep::scene(&options, name).unwrap());
        agree(&format!("eep, {name}, ms"), 1e3 * simulated, 1e3 * sealed);
    }
}

/// A stream's producer: seconds, joules and retransmissions.
fn stream_through_the_runtime(
    station: &Station,
    messages: &[Message],
    policy: Box<dyn Policy>,
    seed: u64,
) -> (f64, f64, u64) {
    let gpu = Arc::new(Mutex::new(StreamGpu::new(station, seed)));
    let rate = station.cpu_bytes_per_s;
    let mut thread = Thread::new(Parts {
        kinds: vec![Kind::Aes128Ctr],
        class: LatencyClass::Stream,
        policies: vec![policy],
        sized: None,
        told_bytes: None,
        submitters: 1,
        times: Box::new(move |_, bytes| bytes as f64 * 1e9 / rate),
        call: Box::new(|_, _| 0.0),
        machine: Box::new(gpu.clone()),
        device: EngineClass::Gpu,
        window: Window { requests: 1 << 20, bytes: station.window_bytes },
        clock: HandClock::default(),
        stage: None,
        stream: Some(gpu.clone()),
    });
    // A runtime that has proved its device begins the stream; the study's begins with one that has.
    thread.dispatcher.submit(thread.mine.request(Kind::Aes128Ctr, 0, 0));
    thread.poll();
    let (start, mut next_try, mut again, mut end) = (thread.clock.now(), 0, 0, 0);
    assert_eq!(start, 0, "nothing of this took time");
    let mut left = messages.iter();
    let mut message = left.next();
    loop {
        let now = thread.clock.now();
        for _ in thread.poll() {
            end = now;
        }
        if let Some(one) = message.filter(|_| next_try <= now) {
            let fill = gpu.lock().unwrap().fill;
            if station.window_bytes - fill < one.bytes {
                again += 1;
                next_try = now + (one.wait_ns + station.slack_ns) as Nanos;
            } else {
                gpu.lock().unwrap().fill += one.bytes;
                let request = thread.mine.request(Kind::Aes128Ctr, one.bytes as usize, 0);
                let submitted = thread.dispatcher.submit(request);
                assert!(matches!(submitted, Submitted::Pending(_)), "the rule gives the GPU everything");
                next_try = now + (one.gap_ns + station.slack_ns) as Nanos;
                message = left.next();
            }
            continue;
        }
        if message.is_none() && thread.dispatcher.in_flight() == 0 {
            let joules = gpu.lock().unwrap().gpu.energy_j(end);
            return (end as f64 / 1e9, joules, again);
        }
        thread.sleep(message.map(|_| next_try), 0.0);
    }
}

#[test]
fn lecpaes_in_production_is_what_its_simulator_says() {
    let options = lecpaes::Options { users: 4000, ..Default::default() };
    for latency_us in [100.0, 500.0, 3000.0] {
        let simulated = lecpaes::scene(&options, latency_us, "lecpaes", |station, messages, mut policy| {
            pass(station, messages, policy.as_mut(), options.seed, None)
        });
        let simulated = simulated.unwrap();
        let production = lecpaes::scene(&options, latency_us, "lecpaes", |station, messages, policy| {
            stream_through_the_runtime(station, messages, policy, options.seed)
        });
        let (seconds, joules, again) = production.unwrap();
        agree(&format!("lecpaes, {latency_us} us, ms"), 1e3 * simulated.seconds, 1e3 * seconds);
        agree(&format!("lecpaes, {latency_us} us, J"), simulated.joules, joules);
        let messages = simulated.messages as f64;
        let rates = (simulated.retransmission_rate(), again as f64 / messages);
        println!("lecpaes, {latency_us} us: retransmissions {:.4} and {:.4}", rates.0, rates.1);
        assert!((rates.0 - rates.1).abs() <= 0.02, "{rates:?}");
    }
}
