//! One job on CPU threads and a device at once: whatever the device and the door do, each chunk is done once, and no
//! thread waits for ever.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::common;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Act, Scripted};
use wattlock::policy::{Ask, Choice, EngineId, Job, Policy, Split, Weather};
use wattlock::{Builder, Clock, DeviceSide, Dispatcher, Runtime, SplitJob, Submitted};
use wattlock_core::{
    Algorithm, Data, Engine, Error, Fault, Key, Kind, Nanos, OwnedRequest, Request, Run, execute,
};
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::software::Software;

const STRIDE: usize = (1 << 14) + 16;
const CHUNKS: usize = 800;
const KIND: Kind = Kind::Aes256GcmSeal;

/// Splits a job between the CPU and the device at place 2: at a border, or where they meet.
struct Splits(Option<f64>);

impl Policy for Splits {
    fn name(&self) -> &'static str {
        "splits"
    }

    fn choose(&mut self, ask: &Ask, _: &Weather, _: Nanos) -> Choice {
        Choice::now(EngineId(if ask.may_wait { 2 } else { 0 }))
    }

    fn split(&self, job: &Job) -> Option<Split> {
        Some(match self.0 {
            Some(share) => Split::at_border(job, EngineId(2), share),
            None => Split::meeting(job, EngineId(2), 1.0, 2.0),
        })
    }
}

fn builder(device: &Arc<Scripted>, border: Option<f64>) -> Builder {
    let engines: Vec<Arc<dyn Engine>> =
        vec![Arc::new(Instruction::new()), Arc::new(Software::new()), device.clone()];
    Runtime::builder()
        .engines(engines)
        .own_policy("splits", move |_| Box::new(Splits(border)))
        .clock(Clock::real())
        .give_up_after_ns(1_000_000)
        .verify_one_in(1)
        .telemetry(false)
        .profile(wattlock::Profile::built_in())
}

/// A dispatcher whose device has given its known answers, which would take acts.
fn proved(runtime: &Runtime) -> Dispatcher {
    let mut dispatcher = runtime.dispatcher();
    while let Submitted::Done(_) = dispatcher.submit(common::seal(1)) {
        std::thread::sleep(Duration::from_micros(100));
    }
    while dispatcher.in_flight() > 0 {
        dispatcher.flush();
        dispatcher.poll(&mut |_| {});
    }
    dispatcher
}

/// The file, so to say, and what was made of it.
struct World {
    key: Arc<Key>,
    plain: Vec<u8>,
    sealed: Mutex<Vec<u8>>,
    done: Vec<AtomicU32>,
}

impl World {
    fn new() -> World {
        World {
            key: Arc::new(Key::symmetric(Algorithm::Aes256Gcm, &[9; 32]).unwrap()),
            plain: (0..CHUNKS * STRIDE).map(|i| ((i * 37) >> 4) as u8).collect(),
            sealed: Mutex::new(vec![0; CHUNKS * STRIDE]),
            done: (0..CHUNKS).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    fn bytes(chunks: &Range<u64>) -> Range<usize> {
        chunks.start as usize * STRIDE..chunks.end as usize * STRIDE
    }

    fn nonces(chunks: &Range<u64>) -> Vec<u8> {
        chunks.clone().flat_map(|chunk| [&chunk.to_be_bytes()[..], &[7; 4]].concat()).collect()
    }

    fn by_cpu(&self, chunks: &Range<u64>) -> Vec<u8> {
        let mut buffer = self.plain[World::bytes(chunks)].to_vec();
        let (nonce, run) = (World::nonces(chunks), Run::Stride(STRIDE));
        let request = Request::new(KIND, &self.key, Data::InPlace(&mut buffer));
        let mut request = Request { nonce: &nonce, run: Some(&run), ..request };
        execute(&Instruction::new(), &mut request).unwrap();
        buffer
    }

    fn write(&self, chunks: &Range<u64>, sealed: &[u8]) {
        self.sealed.lock().unwrap()[World::bytes(chunks)].copy_from_slice(sealed);
        chunks.clone().for_each(|chunk| _ = self.done[chunk as usize].fetch_add(1, SeqCst));
    }

    /// A CPU thread, to the end of the job.
    fn work(&self, job: &SplitJob) {
        while !job.is_over() {
            match job.claim() {
                Some(claimed) => {
                    self.write(&claimed.chunks, &self.by_cpu(&claimed.chunks));
                    job.done(&claimed);
                }
                None => std::thread::sleep(Duration::from_micros(200)),
            }
        }
    }

    fn assert_done(&self, why: &str) {
        let twice = self.done.iter().position(|done| done.load(SeqCst) != 1);
        let times = twice.map(|chunk| self.done[chunk].load(SeqCst));
        assert_eq!(times, None, "{why}: chunk {twice:?} was done so often");
        assert!(*self.sealed.lock().unwrap() == self.by_cpu(&(0..CHUNKS as u64)), "{why}: wrong bytes");
    }
}

/// What the door does at its n-th request, and at its n-th result.
#[derive(Clone, Copy, PartialEq)]
enum Door {
    Good,
    WantsNoMore(u32),
    CannotMake(u32),
    CannotTake(u32),
    Panics(u32),
}

struct Side<'a> {
    world: &'a World,
    door: Door,
    made: u32,
    taken: u32,
}

impl<'a> Side<'a> {
    fn new(world: &'a World, door: Door) -> Side<'a> {
        Side { world, door, made: 0, taken: 0 }
    }
}

impl DeviceSide for Side<'_> {
    type Error = &'static str;

    fn make(&mut self, chunks: &Range<u64>) -> Result<Option<OwnedRequest>, &'static str> {
        self.made += 1;
        match self.door {
            Door::WantsNoMore(at) if at == self.made => return Ok(None),
            Door::CannotMake(at) if at == self.made => return Err("make"),
            Door::Panics(at) if at == self.made => panic!("the door"),
            _ => {}
        }
        let input = self.world.plain[World::bytes(chunks)].to_vec();
        let len = input.len();
        let mut request = OwnedRequest::new(KIND, self.world.key.clone(), input, len);
        request.nonce = World::nonces(chunks);
        request.run = Some(Box::new(Run::Stride(STRIDE)));
        Ok(Some(request))
    }

    fn take(
        &mut self,
        chunks: &Range<u64>,
        request: &mut OwnedRequest,
        result: Result<usize, Error>,
        _: &mut Dispatcher,
    ) -> Result<(), &'static str> {
        self.taken += 1;
        if self.door == Door::CannotTake(self.taken) {
            return Err("take");
        }
        assert_eq!(result, Ok(request.input.len()));
        self.world.write(chunks, &request.output);
        Ok(())
    }

    fn forget(&mut self, _: &mut OwnedRequest) {}
}

#[test]
fn every_chunk_is_done_once_and_right_whatever_the_device_does() {
    let late = |tells| Act::Late { after_ns: 3_000_000, tells };
    let fails = Act::Fail(Error::Device(Fault::Reported));
    let acts = [Act::Right, Act::Wrong, fails, Act::Hang, late(false), late(true), Act::Vanish];
    let mut used = 0;
    for seed in 0..21_usize {
        let device = Scripted::new(1);
        let border = [None, Some(0.4), Some(1.0)][seed % 3];
        let runtime = builder(&device, border).build().unwrap();
        let mut dispatcher = proved(&runtime);
        // One odd act among good ones, or odd ones only.
        device.will(&[Act::Right; 3][..seed % 4]);
        device.will(&[acts[seed % acts.len()], acts[seed * 5 % acts.len()], acts[seed * 11 % acts.len()]]);
        let job = runtime.split(KIND, CHUNKS as u64, STRIDE, 2).unwrap();
        let world = World::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(job.serve(&mut dispatcher, &mut Side::new(&world, Door::Good)), Ok(()));
                world.work(&job);
            });
            scope.spawn(|| world.work(&job));
            world.work(&job);
        });
        world.assert_done(&format!("seed {seed}"));
        let (cpu, gpu) = job.shares();
        assert_eq!(cpu + gpu, CHUNKS as u64);
        used += u32::from(gpu > 0);
    }
    assert!(used > 5, "the device is hardly ever used");
}

#[test]
fn what_the_device_had_when_the_door_ended_its_side_is_the_cpu_s() {
    for (door, outcome) in [
        (Door::WantsNoMore(3), Ok(())),
        (Door::CannotMake(1), Err("make")),
        (Door::CannotMake(3), Err("make")),
    ] {
        let device = Scripted::new(1);
        let runtime = builder(&device, Some(1.0)).build().unwrap();
        let mut dispatcher = proved(&runtime);
        device.will(&[Act::Hang; 3]);
        // Pieces of 8 MiB at most: there would be a third and more.
        let chunks = 4 * CHUNKS as u64;
        let job = runtime.split(KIND, chunks, STRIDE, 2).unwrap();
        let world = World { plain: vec![1; 4 * CHUNKS * STRIDE], ..World::new() };
        assert_eq!(job.serve(&mut dispatcher, &mut Side::new(&world, door)), outcome);
        assert!(!job.is_over());
        let mut owed = vec![true; chunks as usize];
        while let Some(claimed) = job.claim() {
            let part = &mut owed[claimed.chunks.start as usize..claimed.chunks.end as usize];
            assert!(part.iter().all(|chunk| *chunk));
            part.fill(false);
            job.done(&claimed);
        }
        assert!(job.is_over() && !owed.contains(&true));
    }
}

#[test]
fn of_results_that_a_door_could_not_take_none_is_lost_and_a_panic_keeps_nobody_waiting() {
    for door in [Door::CannotTake(2), Door::Panics(2)] {
        let device = Scripted::new(1);
        let runtime = builder(&device, None).build().unwrap();
        let mut dispatcher = proved(&runtime);
        let job = runtime.split(KIND, CHUNKS as u64, STRIDE, 2).unwrap();
        let world = World::new();
        let served =
            catch_unwind(AssertUnwindSafe(|| job.serve(&mut dispatcher, &mut Side::new(&world, door))));
        match served {
            Ok(result) => assert_eq!((result, door == Door::CannotTake(2)), (Err("take"), true)),
            Err(_) => assert!(door == Door::Panics(2)),
        }
        // Only what the door did not take is open, and it fails the job.
        world.work(&job);
        let undone = world.done.iter().filter(|done| done.load(SeqCst) == 0).count();
        assert!(world.done.iter().all(|done| done.load(SeqCst) < 2));
        assert_eq!(undone > 0, door == Door::CannotTake(2));
    }
}
