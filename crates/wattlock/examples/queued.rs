//! What the runtime costs a queued request: nanoseconds and allocations, beside a kernel that takes next to none.
//!
//! `cargo run --release -p wattlock --example queued [--rounds N] [--spin N] [one|together]`
//!
//! An engine of eight lanes behind the very queue that the real lanes have, registered as such, under `adaptive` with a
//! calibrated profile. Its passes do the work of the known answers, one after another, until the engine is proved and the
//! policy has settled; from then on a pass only spins `--spin` times and says that all is done, so that what is measured
//! is the way there and back, on any CPU. Full batches of X25519, eight active: submitted one by one, handed over together,
//! and, to compare with, handed to the kernel itself, in turn, a few dozen batches each; a figure is the median of all
//! batches of `--rounds` rounds, and what lies beyond the kernel the difference of two. With a contestant's name only that one runs, in a long loop, for a profiler.
//!
//! A real pass takes 30 us and more and leaves the caches colder than this one: what is said here is the least it costs.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::mem;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use wattlock::calibrate::{Plan, calibrate};
use wattlock::{Dispatcher, Runtime, Submitted};
use wattlock_core::{Engine, Error, Kind, KindSet, OwnedRequest, known_answers};
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::lanes::dev::{Passes, one_by_one};
use wattlock_cpu::lanes::{Item, WIDTH};

const KIND: Kind = Kind::X25519Derive;

/// Turns a round; batches a turn, of which the first few find the caches as the others left them; batches before anything
/// is measured.
const TURNS: u32 = 50;
const BATCHES: u32 = 40;
const COLD: u32 = 10;
const WARM: u32 = 4000;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is handed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // One thread: an addition without a lock, which would cost as much as what is measured.
        ALLOCATIONS.store(ALLOCATIONS.load(Relaxed) + 1, Relaxed);
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

/// Spins of a pass once the engine is proved; until then, and while it is `WORKS`, a pass does the work.
const WORKS: u32 = u32::MAX;

/// Passes that cost nothing once they are hollow.
fn hollow(
    spins: Arc<AtomicU32>,
    instruction: Arc<dyn Engine>,
) -> impl Fn(Kind, &mut [Item<'_>]) + Clone + Send + Sync + 'static {
    let works = one_by_one(instruction);
    move |kind: Kind, items: &mut [Item<'_>]| {
        let spins = spins.load(Relaxed);
        if spins == WORKS {
            return works(kind, items);
        }
        // A chain of multiplications: as many cycles on a busy machine as on a quiet one.
        let chain = (0..spins).fold(black_box(3_u64), |x, _| x.wrapping_mul(x | 1));
        items.iter_mut().for_each(|item| item.result = Ok(32 + usize::from(black_box(chain) == 0)));
    }
}

fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<(), Box<dyn std::error::Error>> {
    let (mut rounds, mut spin, mut only) = (41u32, 0u32, None);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number =
            || words.next().ok_or("a number is missing")?.parse::<u32>().map_err(|_| "not a number");
        match word.as_str() {
            "--rounds" => rounds = number()?,
            "--spin" => spin = number()?,
            _ => only = Some(word),
        }
    }
    let spins = Arc::new(AtomicU32::new(WORKS));
    let instruction: Arc<dyn Engine> = Arc::new(Instruction::new());
    let pass = hollow(spins.clone(), instruction.clone());
    let lanes = Arc::new(Passes::new(KindSet::of(&[KIND]), pass.clone()));
    let runtime = runtime(vec![instruction, lanes], &spins)?;
    let mut one = Door::new(&runtime);
    let mut together = Door::new(&runtime);
    // The first requests prove the engine. What the policy believes follows while passes still cost something.
    (0..4).for_each(|_| one.turn());
    (0..4).for_each(|_| together.turn_together());
    spins.store(spin, Relaxed);
    (0..WARM).for_each(|_| one.turn());
    (0..WARM).for_each(|_| together.turn_together());
    let mut bare: Vec<OwnedRequest> = (0..WIDTH).map(|_| request()).collect();
    let mut kernel = || {
        let mut items: Vec<Item<'_>> = bare
            .iter_mut()
            .map(|request| Item { request: request.view(), result: Err(Error::Unsupported) })
            .collect();
        pass(KIND, &mut items);
        assert!(items.iter().all(|item| item.result.is_ok()));
    };
    if let Some(only) = only {
        let batches = rounds * 40 * TURNS * BATCHES;
        match only.as_str() {
            "one" => (0..batches).for_each(|_| one.turn()),
            "together" => (0..batches).for_each(|_| together.turn_together()),
            _ => return Err("one or together".into()),
        }
        return Ok(());
    }
    let mut contestants: [&mut dyn FnMut(); 3] =
        [&mut kernel, &mut || one.turn(), &mut || together.turn_together()];
    let mut times = [const { Vec::new() }; 3];
    let mut allocations = [0; 3];
    for _ in 0..rounds * TURNS {
        for (at, contestant) in contestants.iter_mut().enumerate() {
            (0..COLD).for_each(|_| contestant());
            times[at].reserve((BATCHES - COLD) as usize);
            let before = ALLOCATIONS.load(Relaxed);
            let mut last = Instant::now();
            for _ in COLD..BATCHES {
                contestant();
                let now = Instant::now();
                times[at].push((now - last).as_nanos() as f64 / WIDTH as f64);
                last = now;
            }
            allocations[at] += ALLOCATIONS.load(Relaxed) - before;
        }
    }
    let batches = times[0].len();
    let each = |count: u64| count as f64 / batches as f64 / WIDTH as f64;
    let [kernel, ..] = times.each_mut().map(|times| median(times));
    println!("{:<14}{:>10}{:>12}{:>14}", "a request", "ns", "beyond it", "allocations");
    for (at, name) in ["kernel", "one by one", "together"].into_iter().enumerate() {
        let (ns, allocated) = (median(&mut times[at]), each(allocations[at]));
        println!("{name:<14}{ns:>10.1}{:>12.1}{allocated:>14.3}", ns - kernel);
    }
    let (one, together) = (one.company, together.company);
    println!("shared a full pass: {:.1} % one by one, {:.1} % together", one.percent(), together.percent());
    Ok(())
}

fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}

fn request() -> OwnedRequest {
    known_answers(KIND).swap_remove(0).request
}

/// A runtime with these lanes, as costly in the profile as eight multiplications are worth while the kernel works.
fn runtime(engines: Vec<Arc<dyn Engine>>, spins: &AtomicU32) -> Result<Runtime, Box<dyn std::error::Error>> {
    let plan =
        Plan { within: None, per_point: Duration::from_millis(20), ..Plan::quick(KindSet::of(&[KIND])) };
    // Calibrated as real lanes would be found: a pass costs as much as a request alone.
    let profile = {
        spins.store(5000, Relaxed);
        let profile = calibrate(&engines, &plan, &mut |_| {});
        spins.store(WORKS, Relaxed);
        profile
    };
    Ok(Runtime::builder().engines(engines).profile(profile).telemetry(false).build()?)
}

/// How many requests shared a full pass.
#[derive(Clone, Copy, Default)]
struct Company {
    full: u64,
    all: u64,
}

impl Company {
    fn percent(self) -> f64 {
        100.0 * self.full as f64 / self.all.max(1) as f64
    }
}

/// A door with eight requests, which it has done again and again.
struct Door {
    dispatcher: Dispatcher,
    waiting: Vec<OwnedRequest>,
    back: Vec<OwnedRequest>,
    company: Company,
}

impl Door {
    fn new(runtime: &Runtime) -> Door {
        let mut dispatcher = runtime.dispatcher();
        dispatcher.set_active(WIDTH as u32);
        let waiting = (0..WIDTH).map(|_| request()).collect();
        Door { dispatcher, waiting, back: Vec::with_capacity(WIDTH), company: Company::default() }
    }

    fn turn(&mut self) {
        for request in self.waiting.drain(..) {
            if let Submitted::Done(completion) = self.dispatcher.submit(request) {
                self.back.push(completion.request);
            }
        }
        self.take_back();
    }

    fn turn_together(&mut self) {
        let Door { dispatcher, waiting, back, .. } = self;
        dispatcher.submit_together(waiting, 0, &mut |_, submitted| {
            if let Submitted::Done(completion) = submitted {
                back.push(completion.request);
            }
        });
        self.take_back();
    }

    fn take_back(&mut self) {
        let Door { dispatcher, waiting, back, company } = self;
        while back.len() < WIDTH {
            dispatcher.poll(&mut |completion| {
                company.full += u64::from(usize::from(completion.cost.batch) == WIDTH);
                back.push(completion.request);
            });
        }
        company.all += WIDTH as u64;
        mem::swap(waiting, back);
    }
}
