//! Scenes of EECA and QWEB through a seat, beside the papers' simulators: calls that wait for a device, and an event loop
//! whose jobs pause, as nginx's do, on a clock that moves where a thread would spend time
//! ([`wattlock_lab::production`]).
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::Ordering::Relaxed;

use wattlock::core::{Data, EngineClass, Item, Kind, LatencyClass, OwnedRequest, Request};
use wattlock::policy::{GatherRule, Policy};
use wattlock_lab::papers::{eeca, qweb};
use wattlock_lab::production::{HandClock, Parts, Ran, Scene, agree_within, closed};
use wattlock_lab::sim::event_loop::{self, Load, Offload, Server, Step};
use wattlock_lab::sim::{Card, Closed, Random};

use super::tests::{
    ASYNC_FINISH, ASYNC_PAUSE, ASYNC_WAIT_CTX_free, ASYNC_WAIT_CTX_new, ASYNC_WAIT_CTX_set_callback,
    ASYNC_start_job, Loaded,
};
use crate::provider::{Current, Provider};
use crate::sys::{ASYNC_JOB, ASYNC_WAIT_CTX};
use crate::table::{self, LATER, NEVER};

/// A closed system whose clients are threads that call a provider: each call is one operation, for which it waits.
fn closed_through_calls(system: Closed<'_>) -> Ran {
    let kind = system.kind;
    let loaded = std::sync::OnceLock::new();
    closed(system, None, |scene: &Scene, _| {
        let loaded: &Shared = loaded.get_or_init(|| Shared(Loaded::with(scene.runtime.clone())));
        let (provider, mine) = (loaded.0.provider(), scene.mine.clone());
        // The seat's dispatcher asks the study's policy.
        drop(provider.seat());
        let mut kept: HashMap<usize, Vec<OwnedRequest>> = HashMap::new();
        move |pieces: &[usize]| {
            let mut requests: Vec<OwnedRequest> = Vec::new();
            for bytes in pieces {
                let kept = kept.entry(*bytes).or_default().pop();
                requests.push(kept.unwrap_or_else(|| mine.request(kind, *bytes, 0)));
            }
            let mut items: Vec<Item<'_>> = requests.iter_mut().map(|one| Item::new(one.view())).collect();
            assert!(provider.run_all_or_pause(&mut items));
            drop(items);
            requests.into_iter().for_each(|one| kept.entry(one.input.len()).or_default().push(one));
        }
    })
}

/// A loaded provider for several threads.
struct Shared(Loaded);

// SAFETY: a provider is used by any thread; it is unloaded when all have ended.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

#[test]
fn eeca_in_calls_that_wait_is_what_its_simulator_says() {
    for (cores, policy) in [(1, "eeca"), (1, "adaptive"), (3, "eeca")] {
        let options = eeca::Options { cores, ..Default::default() };
        for kib in [4.0, 64.0, 256.0] {
            let simulated = eeca::scene(&options, kib, policy, |system| system.run().rounds_per_s).unwrap();
            let calls = eeca::scene(&options, kib, policy, closed_through_calls).unwrap();
            let name = format!("eeca, {policy}, {cores} cores, {kib} KiB");
            agree_within(0.02, &name, simulated, calls.rounds_per_s);
            let [device, cpu] = calls.claims;
            assert!(policy == "adaptive" || kib < 256.0 || (device > 0 && cpu > 0), "{device} {cpu}");
        }
    }
}

thread_local! {
    /// Connections whose jobs were told to go on.
    static TOLD: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// What a wait context calls.
unsafe extern "C" fn tell(connection: *mut c_void) -> c_int {
    TOLD.with_borrow_mut(|told| told.push(connection.addr()));
    1
}

/// A connection: where it is in its script, and the job that it is in.
struct Connection {
    at: usize,
    began: Option<u64>,
    debt_ns: f64,
    job: *mut ASYNC_JOB,
    wait: *mut ASYNC_WAIT_CTX,
    work: Box<Work>,
}

/// What a job does.
struct Work {
    provider: *const Provider,
    request: Option<OwnedRequest>,
}

/// A job: a handshake's next operation.
unsafe extern "C" fn operate(argument: *mut c_void) -> c_int {
    // SAFETY: a copy of a pointer to work that outlives the job, which nothing else uses before its end.
    let work = unsafe { &mut **argument.cast::<*mut Work>() };
    // SAFETY: a loaded provider.
    let provider = unsafe { &*work.provider };
    let request = work.request.as_mut().unwrap();
    let mut good = false;
    let done = provider.seat().on_large_stack(|| {
        let request = request.view();
        good = match (request.kind.is_asymmetric(), request) {
            (true, Request { kind, key, data: Data::Apart { from, to }, .. }) => {
                provider.perform(kind, key, from, to).is_ok()
            }
            (_, request) => provider.run_or_pause(request).is_ok(),
        };
    });
    c_int::from(good && done.is_some())
}

impl Connection {
    fn new(number: usize, provider: &Provider) -> Connection {
        // SAFETY: public calls; the argument is a number.
        let wait = unsafe {
            let wait = ASYNC_WAIT_CTX_new();
            ASYNC_WAIT_CTX_set_callback(wait, Some(tell), std::ptr::without_provenance_mut(number));
            wait
        };
        let work = Box::new(Work { provider, request: None });
        Connection { at: 0, began: None, debt_ns: 0.0, job: null_mut(), wait, work }
    }

    /// Begins the job, or goes on with it. Whether it has ended.
    fn runs(&mut self) -> bool {
        let mut argument = &raw mut *self.work;
        let (mut good, size) = (0, size_of_val(&argument));
        let place = (&raw mut argument).cast();
        // SAFETY: a public call; the work outlives the job.
        let how =
            unsafe { ASYNC_start_job(&raw mut self.job, self.wait, &raw mut good, operate, place, size) };
        match how {
            ASYNC_PAUSE => false,
            ASYNC_FINISH => {
                assert_eq!(good, 1, "the operation failed");
                self.job = null_mut();
                true
            }
            other => panic!("a job ended with {other}"),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: made by `new`; what its job has in flight is withdrawn.
        unsafe { ASYNC_WAIT_CTX_free(self.wait) };
    }
}

/// One event loop: connections a second by their mean latency, as the simulator counts.
fn loop_through_a_seat(server: &Server, load: &Load, policy: Box<dyn Policy>) -> f64 {
    let steps = load.scripts[0].steps.clone();
    let requests = steps.iter().filter_map(|step| match *step {
        Step::Request { kind, software_ns, .. } => Some((kind, software_ns)),
        _ => None,
    });
    let software: HashMap<usize, f64> = requests.clone().map(|(kind, ns)| (kind.index(), ns)).collect();
    let mut kinds: Vec<Kind> = requests.map(|(kind, _)| kind).collect();
    kinds.sort_by_key(|kind| kind.index());
    kinds.dedup();
    let costs = server.costs;
    let scene = Scene::new(Parts {
        kinds,
        class: LatencyClass::Interactive,
        sized: None,
        policies: vec![policy],
        told_bytes: None,
        submitters: 1,
        times: Box::new(move |kind, _| software[&kind.index()]),
        call: Box::new(move |_, _| costs.submit_ns),
        machine: Box::new(Card::new(server.card.clone(), 0.0, None)),
        device: EngineClass::Accelerator,
        window: server.card.window,
        clock: HandClock::default(),
        stage: None,
        stream: None,
    });
    let loaded = Loaded::with(scene.runtime.clone());
    let provider = loaded.provider();
    let Offload::InLoop(rule) = server.offload else { panic!("a loop that polls") };
    let poll = if rule == GatherRule::Turns { "adaptive" } else { "heuristic" };
    let Current { mut settings, runtime } = provider.current();
    settings.set("poll", poll).unwrap();
    provider.change_to(Current { settings, runtime });
    let table = table::make(provider);
    // SAFETY: the table's own provider.
    unsafe { (table.claim)(table.provider, 1) };
    let mut all: Vec<Connection> =
        (0..load.connections).map(|number| Connection::new(number, provider)).collect();
    let (mut timers, mut serial) = (BinaryHeap::new(), 0u64);
    let mut random = Random::new(load.seed);
    for connection in 0..all.len() {
        timers.push(Reverse((random.between(0.0, 1e6) as u64, serial, connection)));
        serial += 1;
    }
    let (mut ready, mut active) = (VecDeque::new(), 0u32);
    let (mut turn_left, mut goes_on, mut asks) = (0, false, false);
    let (mut finished, mut latency_ns) = (0, 0.0);
    let mut again = (NEVER, 0);
    let turn = |moment, active, progress: u64| {
        let mut told = table::Turn::default();
        // SAFETY: the table's own provider, and room for the answer.
        unsafe {
            (table.set_active)(table.provider, active);
            (table.set_busy)(table.provider, active);
            (table.turn)(table.provider, moment, progress as u32, &raw mut told);
        }
        told
    };
    while finished < load.warm_up + load.measured {
        let now = scene.clock.now();
        while let Some(Reverse((at, _, connection))) = timers.peek().copied().filter(|one| one.0.0 <= now) {
            timers.pop();
            if all[connection].began.is_none() {
                all[connection].began = Some(at);
                active += 1;
            }
            ready.push_back(connection);
        }
        let over = !goes_on && turn_left == 0;
        if std::mem::take(&mut asks) || over {
            if over {
                turn_left = ready.len();
            }
            let told = turn(if over { 2 } else { 0 }, active, finished);
            again = (told.again, told.wait_ns);
            if told.looked > 0 {
                scene.clock.advance(costs.poll_ns);
            }
            let woken = TOLD.take();
            let woken_now = woken.len();
            if woken_now > 0 {
                for connection in woken {
                    all[connection].debt_ns += costs.take_ns + costs.notify_ns + costs.resume_ns;
                    ready.push_back(connection);
                }
                // What is found in the middle of a turn belongs to the next.
                if over || ready.len() == woken_now {
                    turn_left = ready.len();
                    goes_on = false;
                }
                continue;
            }
        }
        turn_left -= usize::from(!std::mem::take(&mut goes_on) && turn_left > 0);
        let Some(at) = ready.pop_front() else {
            let timer = timers.peek().map(|Reverse(timer)| timer.0);
            match again {
                (LATER, wait_ns) => {
                    let until = now + wait_ns.max(1);
                    scene.clock.reach(timer.map_or(until, |timer| timer.min(until)));
                }
                // Turns that would find nothing are left out.
                (again, _) => {
                    let spins = again != NEVER;
                    let device = scene.state.lock().unwrap().machine.next().filter(|_| spins);
                    let (next, turn_ns) =
                        (device.into_iter().chain(timer).min().unwrap(), costs.turn_ns.max(1.0) as u64);
                    // But for the last one, after which nothing has lain for longer than a turn.
                    if spins && next > now + 2 * turn_ns {
                        scene.clock.reach(next - turn_ns);
                        turn(2, active, finished);
                    }
                    scene.clock.reach(next.max(now + turn_ns));
                }
            }
            continue;
        };
        let connection = &mut all[at];
        if !connection.job.is_null() {
            scene.clock.advance(std::mem::take(&mut connection.debt_ns));
            assert!(connection.runs(), "it was told to go on");
            connection.at += 1;
            (goes_on, _) = (true, ready.push_front(at));
            continue;
        }
        match steps.get(connection.at).copied() {
            None => {
                let began = connection.began.take().unwrap();
                connection.at = 0;
                (finished, active) = (finished + 1, active - 1);
                if finished > load.warm_up {
                    latency_ns += (now - began) as f64;
                }
                timers.push(Reverse((now, serial, at)));
                serial += 1;
            }
            Some(Step::Compute(ns)) => {
                scene.clock.advance(ns + std::mem::take(&mut connection.debt_ns));
                connection.at += 1;
                (goes_on, _) = (true, ready.push_front(at));
            }
            Some(Step::Client(ns)) => {
                connection.at += 1;
                timers.push(Reverse((now + ns as u64, serial, at)));
                serial += 1;
            }
            Some(Step::Request { kind, bytes, .. }) => {
                scene.clock.advance(std::mem::take(&mut connection.debt_ns));
                connection.work.request = Some(scene.mine.request(kind, bytes, 0));
                if connection.runs() {
                    connection.at += 1;
                    (goes_on, _) = (true, ready.push_front(at));
                }
                asks = true;
            }
        }
    }
    let active = scene.told.active.load(Relaxed);
    assert!(active > 1 && active <= load.connections as u64, "the door says how many are not idle: {active}");
    // Jobs end: OpenSSL keeps one that has paused for good.
    let mut told: Vec<usize> = ready.into_iter().filter(|one| !all[*one].job.is_null()).collect();
    while all.iter().any(|one| !one.job.is_null()) {
        // SAFETY: the table's own provider.
        unsafe { (table.poll)(table.provider) };
        told.extend(TOLD.take());
        if told.is_empty() {
            scene.sleep(None, 0.0);
        }
        told.drain(..).for_each(|connection| assert!(all[connection].runs()));
    }
    load.connections as f64 / (latency_ns / load.measured as f64) * 1e9
}

#[test]
fn qweb_in_a_loop_of_jobs_is_what_its_simulator_says() {
    let settings = wattlock::policy::Settings::default();
    let heuristic = GatherRule::heuristic(&settings);
    for (policy, concurrency, rule) in [
        ("qweb", 16, GatherRule::Turns),
        ("qweb", 64, GatherRule::Turns),
        ("qweb", 64, heuristic),
        ("adaptive", 64, GatherRule::Turns),
        ("adaptive", 500, GatherRule::Turns),
    ] {
        let options = qweb::Options {
            workers: 1,
            cores: 1,
            curve_workers: 1,
            handshakes: 1000,
            concurrency,
            ..Default::default()
        };
        let with = |server: &Server| Server { offload: Offload::InLoop(rule), ..server.clone() };
        let simulated = qweb::scene(&options, policy, |server, load, make| {
            event_loop::run(&with(server), load, make).per_second
        });
        let seat = qweb::scene(&options, policy, |server, load, make| {
            loop_through_a_seat(&with(server), load, make())
        });
        let name = format!("qweb, {policy}, {concurrency} connections, {rule:?}");
        agree_within(0.02, &name, simulated.unwrap(), seat.unwrap());
    }
}
