//! Jobs of one thread, and what tests of seats share: lanes that any CPU has, and a provider that libcrypto loads from
//! this very program and whose runtime has them.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::{Read, Write};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use wattlock::core::{Data, Item, Kind, KindSet, KnownAnswer, Nanos, known_answers};
use wattlock::policy::{Ask, Choice, EngineId, Policy, Rest, Side, Weather};
use wattlock::profile::Point;
use wattlock::{Clock, Profile, Runtime};
use wattlock_cpu::lanes::dev::{Passes, one_by_one};
use wattlock_emul::{Emulated, Model, Pace};

use super::*;
use crate::load::OSSL_provider_init;
use crate::provider::Current;
use crate::sys::{
    ASYNC_JOB, ASYNC_WAIT_CTX, ASYNC_callback, OSSL_CORE_HANDLE, OSSL_DISPATCH, OSSL_LIB_CTX, OSSL_PROVIDER,
};
use crate::table::{self, FunctionTable};

/// How many shared each pass that lanes have made.
pub(super) type Made = Arc<Mutex<Vec<usize>>>;

/// A runtime with lanes for these kinds, to which goes whatever comes together, or nothing.
pub(super) fn runtime(kinds: KindSet, to_lanes: bool, clock: Clock, made: &Made) -> Runtime {
    let inline = wattlock::own_engines().swap_remove(0);
    let (compute, made) = (one_by_one(inline.clone()), made.clone());
    let lanes = Passes::new(kinds, move |kind, items| {
        lock(&made).push(items.len());
        compute(kind, items);
    });
    // Of kinds that are newer than the built-in table nothing would wait.
    let mut profile = Profile::built_in();
    for kind in kinds.iter().filter(|kind| Profile::built_in().curve("instruction", *kind).is_empty()) {
        let (engine, kind) = ("instruction".to_owned(), kind.name().to_owned());
        let point = Point { engine, kind, concurrency: 1, batch: 1, bytes: 0, ns: 1e4, energy_nj: None };
        profile.points.push(point);
    }
    Runtime::builder()
        .engines(vec![inline, Arc::new(lanes)])
        .own_policy("together", move |_| Box::new(Together(to_lanes)))
        .profile(profile)
        .clock(clock)
        .telemetry(false)
        .build()
        .unwrap()
}

/// Whatever comes together goes to lanes, or does not; the rest is done inside the call.
struct Together(bool);

impl Policy for Together {
    fn name(&self) -> &'static str {
        "together"
    }

    fn choose(&mut self, ask: &Ask, _: &Weather, _: Nanos) -> Choice {
        let to_lanes = self.0 && ask.may_wait;
        Choice { count: ask.count, ..Choice::now(EngineId(u8::from(to_lanes))) }
    }
}

/// These kinds go to the card if they may wait; to lanes whatever else may, and whatever comes together.
struct Divided(KindSet);

impl Policy for Divided {
    fn name(&self) -> &'static str {
        "divided"
    }

    fn choose(&mut self, ask: &Ask, _: &Weather, _: Nanos) -> Choice {
        let device = ask.may_wait && self.0.contains(ask.shape.kind);
        let engine = if device { 2 } else { u8::from(ask.may_wait || ask.count > 1) };
        Choice { count: ask.count, ..Choice::now(EngineId(engine)) }
    }

    /// The card's are the card's: who waits does none of them meanwhile, nor what has no room there.
    fn claim(&self, side: Side, rest: &Rest, _: &Weather) -> u32 {
        if side == Side::Device { rest.free } else { 0 }
    }
}

const EXPAND: Kind = Kind::HkdfExpandSha256;
const PRF: Kind = Kind::Tls12PrfSha384;

/// What a card takes, by a clock that a test moves.
const CARD_NS: Nanos = 150_000_000;

/// A polled provider with lanes and a card, of which the policy gives some kinds to the card.
pub(crate) struct WithCard {
    pub(crate) loaded: Loaded,
    table: FunctionTable,
    runtime: Runtime,
    time: Arc<AtomicU64>,
}

impl WithCard {
    /// `settings` of the provider; `lanes` do these kinds.
    pub(crate) fn new(lanes: &[Kind], settings: &[(&str, &str)]) -> WithCard {
        WithCard::of("width 1\nwindow 64", lanes, settings)
    }

    fn of(card: &str, lanes: &[Kind], settings: &[(&str, &str)]) -> WithCard {
        let table = "requests 1048576 bytes\npool all 64 servers\n\
                    table x25519-derive,p384-derive 0:150000000\n\
                    table hkdf-expand-sha-256,tls12-prf-sha-384,aes-128-gcm-seal 0:150000000\n";
        let inline = wattlock::own_engines().swap_remove(0);
        let compute = Arc::new(wattlock_cpu::instruction::Instruction::new());
        let model = Model::parse(&format!("name card\n{card} {table}")).unwrap();
        let card = Emulated::new(model, compute, Pace::Stepped).unwrap();
        let time = Arc::new(AtomicU64::new(1));
        let hands = time.clone();
        let lanes = Passes::new(KindSet::of(lanes), one_by_one(inline.clone()));
        let runtime = Runtime::builder()
            .engines(vec![inline, Arc::new(lanes), Arc::new(card)])
            .own_policy("divided", |_| {
                Box::new(Divided(KindSet::of(&[DEAR, EXPAND, PRF, Kind::Aes128GcmSeal])))
            })
            .profile(Profile::built_in())
            .clock(Clock::given(move || hands.load(Relaxed)))
            .verify_one_in(0)
            .telemetry(false)
            .build()
            .unwrap();
        let loaded = Loaded::with(runtime.clone());
        let mut current = loaded.provider().current();
        settings.iter().for_each(|(key, value)| current.settings.set(key, value).unwrap());
        loaded.provider().change_to(current);
        let table = table::make(loaded.provider());
        // SAFETY: the table's own provider.
        unsafe {
            (table.claim)(table.provider, 1);
            (table.set_active)(table.provider, 100);
        }
        let with = WithCard { loaded, table, runtime, time };
        // The CPU does the first ones, until the card has given its known answers.
        while with.on_card() == 0 {
            let job = with.start(DEAR);
            with.turn();
            with.pass(CARD_NS);
            // SAFETY: as above.
            unsafe { (with.table.poll)(with.table.provider) };
            job.ends();
        }
        with
    }

    fn start(&self, kind: Kind) -> Job {
        Job::start(self.loaded.provider(), kind)
    }

    fn pass(&self, nanos: Nanos) {
        self.time.fetch_add(nanos, Relaxed);
    }

    fn turn(&self) -> table::Turn {
        self.turn_at(2)
    }

    fn turn_at(&self, moment: c_int) -> table::Turn {
        let mut told = table::Turn::default();
        // SAFETY: the table's own provider, and room for the answer.
        unsafe { (self.table.turn)(self.table.provider, moment, 1, &raw mut told) };
        told
    }

    /// Has a handshake of its own do this, to its end.
    pub(crate) fn in_handshake(&self, mut work: impl FnMut()) {
        unsafe extern "C" fn begin(argument: *mut c_void) -> c_int {
            // SAFETY: a copy of a pointer to what outlives the job.
            let (provider, work) = unsafe { &mut **argument.cast::<*mut (&Provider, &mut dyn FnMut())>() };
            provider.seat().on_large_stack(work).is_some().into()
        }
        let mut pair: (&Provider, &mut dyn FnMut()) = (self.loaded.provider(), &mut work);
        let (mut job, mut good, mut argument) = (null_mut(), 0, &raw mut pair);
        let size = size_of_val(&argument);
        // SAFETY: public calls; the wait context, the counter and the work outlive the job.
        unsafe {
            let (wait, told) = (ASYNC_WAIT_CTX_new(), AtomicU32::new(0));
            ASYNC_WAIT_CTX_set_callback(wait, Some(go_on), (&raw const told).cast_mut().cast());
            let place = (&raw mut argument).cast();
            while ASYNC_start_job(&raw mut job, wait, &raw mut good, begin, place, size) == ASYNC_PAUSE {
                self.pass(CARD_NS);
                (self.table.poll)(self.table.provider);
            }
            ASYNC_WAIT_CTX_free(wait);
        }
        assert_eq!(good, 1, "it panicked");
        // For the card's known answers.
        self.pass(CARD_NS);
    }

    fn set_busy(&self, busy: u32) {
        // SAFETY: the table's own provider.
        unsafe { (self.table.set_busy)(self.table.provider, busy) };
    }

    /// What the card has, and what waits for others.
    fn sent_and_gathered(&self) -> (usize, usize) {
        let seat = self.loaded.provider().seat();
        let state = seat.lock();
        (state.dispatcher.in_flight(), state.gathered.len())
    }

    pub(crate) fn on_card_of(&self, kind: Kind) -> u64 {
        let cells = self.runtime.snapshot().cells;
        let cells = cells.iter().filter(|cell| cell.engine == "emulated" && cell.kind == kind.name());
        cells.map(|cell| cell.requests).sum()
    }

    /// Requests that the card has done. None was ever held.
    fn on_card(&self) -> u64 {
        let cells = self.runtime.snapshot().cells;
        let card = cells.iter().filter(|cell| cell.engine == "emulated");
        card.inspect(|cell| assert_eq!(cell.held_ns, 0)).map(|cell| cell.requests).sum()
    }
}

/// The provider, loaded by a library context of its own, with another runtime.
pub(crate) struct Loaded {
    context: *mut OSSL_LIB_CTX,
    handle: *mut OSSL_PROVIDER,
}

impl Loaded {
    pub(super) fn with(runtime: Runtime) -> Loaded {
        const NAME: &CStr = c"built-in";
        // SAFETY: public calls with what they ask for; what they return is looked at.
        let loaded = unsafe {
            let context = OSSL_LIB_CTX_new();
            assert!(!context.is_null());
            assert_eq!(OSSL_PROVIDER_add_builtin(context, NAME.as_ptr(), OSSL_provider_init), 1);
            let handle = OSSL_PROVIDER_load(context, NAME.as_ptr());
            assert!(!handle.is_null());
            Loaded { context, handle }
        };
        let provider = loaded.provider();
        provider.change_to(Current { runtime, ..provider.current() });
        loaded
    }

    pub(crate) fn provider(&self) -> &Provider {
        // SAFETY: a loaded provider's context is ours.
        unsafe { Provider::of(OSSL_PROVIDER_get0_provider_ctx(self.handle)) }
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: loaded once, unloaded once; nothing fetched from it is left.
        unsafe {
            ASYNC_cleanup_thread();
            OSSL_PROVIDER_unload(self.handle);
            OSSL_LIB_CTX_free(self.context);
        }
    }
}

/// What a child process returns. It has one thread, which should take no lock that another thread may hold here.
pub(crate) fn in_child(work: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
    let (mut ours, mut theirs) = std::io::pipe().unwrap();
    // SAFETY: the child leaves by `_exit` and never comes back.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: so that a child that hangs ends, and its parent's test fails.
        unsafe { libc::alarm(60) };
        let bytes = work();
        let failed = theirs.write_all(&bytes).is_err();
        // SAFETY: ends the child.
        unsafe { libc::_exit(failed.into()) }
    }
    assert!(child > 0);
    drop(theirs);
    let mut bytes = Vec::new();
    ours.read_to_end(&mut bytes).unwrap();
    let mut status = 0;
    // SAFETY: our child, and room for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child's wait status");
    bytes
}

/// A job that does the first known answer of a kind. Behind a pointer, because its own stack keeps references into it
/// while it is paused.
pub(super) struct Job(*mut Work);

struct Work {
    job: *mut ASYNC_JOB,
    wait: *mut ASYNC_WAIT_CTX,
    /// How often it was told to go on.
    told: AtomicU32,
    provider: *const Provider,
    answer: KnownAnswer,
    /// More of it, if it does several together.
    others: Vec<KnownAnswer>,
    within: Within,
    result: Option<Result<usize, Error>>,
}

/// What a job is in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Within {
    Handshake,
    /// A call on another connection, inside a handshake.
    Nested,
    /// Whatever else has jobs.
    Other,
}

/// On the job's own small stack.
unsafe extern "C" fn operate(argument: *mut c_void) -> c_int {
    // SAFETY: a copy of the pointer to work that outlives the job; no other code touches the answer before the result
    // is there.
    unsafe {
        let work = *argument.cast::<*mut Work>();
        let provider = &*(*work).provider;
        let request: &mut wattlock::core::OwnedRequest = &mut (*work).answer.request;
        let request = request.view();
        let (seat, within) = (provider.seat(), (*work).within);
        if !(*work).others.is_empty() {
            let together = || {
                let others = (*work).others.iter_mut().map(|one| one.request.view());
                let mut items: Vec<Item<'_>> = others.chain([request]).map(Item::new).collect();
                let of_keys = items[0].request.kind.is_asymmetric();
                let good = if of_keys {
                    provider.perform_all(&mut items);
                    items.iter().all(|item| item.result.is_ok())
                } else {
                    provider.run_all_or_pause(&mut items)
                };
                let failed = Err(Error::Device(wattlock::core::Fault::Lost));
                (*work).result = items.pop().map(|last| if good { last.result } else { failed });
            };
            assert_eq!(seat.on_large_stack(together), Some(()));
            return 1;
        }
        let derives = request.kind.info().family == wattlock::core::Family::Derive;
        let perform = || match request.data {
            _ if derives => provider.run_or_pause(request),
            Data::Apart { from, to } => provider.perform(request.kind, request.key, from, to),
            Data::InPlace(_) => unreachable!(),
        };
        if within == Within::Other {
            (*work).result = Some(perform());
            return 1;
        }
        let handshake = || {
            if within == Within::Nested {
                seat.nested(true);
                (*work).result = Some(perform());
                seat.nested(false);
            } else {
                (*work).result = Some(perform());
            }
        };
        assert_eq!(seat.on_large_stack(handshake), Some(()));
    }
    1
}

unsafe extern "C" fn go_on(argument: *mut c_void) -> c_int {
    // SAFETY: the counter of a job whose wait context is alive.
    unsafe { &*argument.cast::<AtomicU32>() }.fetch_add(1, Relaxed);
    1
}

impl Job {
    /// Up to its pause or its end.
    fn start(provider: &Provider, kind: Kind) -> Job {
        let within = match kind.info().family {
            wattlock::core::Family::Derive => Within::Handshake,
            _ => Within::Other,
        };
        Job::start_in(provider, kind, within)
    }

    pub(super) fn start_in(provider: &Provider, kind: Kind, within: Within) -> Job {
        Job::start_several(provider, kind, within, 1)
    }

    /// So many of the same, together.
    fn start_several(provider: &Provider, kind: Kind, within: Within, count: usize) -> Job {
        let others = (1..count).map(|_| known_answers(kind).swap_remove(0)).collect();
        Job::start_with(provider, kind, within, others)
    }

    /// One of each kind, which are one operation.
    fn start_both(provider: &Provider, [one, other]: [Kind; 2]) -> Job {
        Job::start_with(provider, other, Within::Handshake, vec![known_answers(one).swap_remove(0)])
    }

    fn start_with(provider: &Provider, kind: Kind, within: Within, others: Vec<KnownAnswer>) -> Job {
        let answer = known_answers(kind).swap_remove(0);
        let (job, told, result) = (null_mut(), AtomicU32::new(0), None);
        // SAFETY: the counter lives as long as the wait context.
        let job = unsafe {
            let wait = ASYNC_WAIT_CTX_new();
            let work =
                Box::into_raw(Box::new(Work { job, wait, told, provider, answer, others, within, result }));
            assert_eq!(ASYNC_WAIT_CTX_set_callback(wait, Some(go_on), (&raw mut (*work).told).cast()), 1);
            Job(work)
        };
        job.resume();
        job
    }

    fn resume(&self) {
        let (mut ignored, mut work) = (0, self.0);
        let (argument, size) = ((&raw mut work).cast(), size_of_val(&work));
        // SAFETY: `operate` gets a copy of the pointer.
        let state = unsafe {
            ASYNC_start_job(&raw mut (*work).job, (*work).wait, &raw mut ignored, operate, argument, size)
        };
        assert_eq!(state, if self.waits() { ASYNC_PAUSE } else { ASYNC_FINISH });
    }

    pub(super) fn waits(&self) -> bool {
        // SAFETY: ours; written only while the job runs.
        unsafe { (*self.0).result.is_none() }
    }

    pub(super) fn told(&self) -> u32 {
        // SAFETY: ours.
        unsafe { (*self.0).told.load(Relaxed) }
    }

    /// Resumes it; it must end, with the right answer.
    pub(super) fn ends(self) {
        if self.waits() {
            self.resume();
        }
        // SAFETY: ours; the job is over.
        let Work { answer, others, result, .. } = unsafe { &*self.0 };
        let checker = wattlock::own_engines().swap_remove(0);
        let last = result.unwrap();
        for one in others.iter().chain([answer]) {
            // All went well, so an output is as long as its kind's.
            let own = last.map(|len| one.request.kind.info().output.unwrap_or(len));
            one.expected.verdict(&one.request, &own, &*checker).unwrap();
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // SAFETY: ours, freed once. A job that still waits is withdrawn, and never resumed.
        unsafe {
            ASYNC_WAIT_CTX_free((*self.0).wait);
            drop(Box::from_raw(self.0));
        }
    }
}

type Init = unsafe extern "C" fn(
    *const OSSL_CORE_HANDLE,
    *const OSSL_DISPATCH,
    *mut *const OSSL_DISPATCH,
    *mut *mut c_void,
) -> c_int;

pub(super) const ASYNC_PAUSE: c_int = 2;
pub(super) const ASYNC_FINISH: c_int = 3;

unsafe extern "C" {
    fn OSSL_LIB_CTX_new() -> *mut OSSL_LIB_CTX;
    fn OSSL_LIB_CTX_free(context: *mut OSSL_LIB_CTX);
    fn OSSL_PROVIDER_add_builtin(context: *mut OSSL_LIB_CTX, name: *const c_char, init: Init) -> c_int;
    fn OSSL_PROVIDER_load(context: *mut OSSL_LIB_CTX, name: *const c_char) -> *mut OSSL_PROVIDER;
    fn OSSL_PROVIDER_unload(provider: *mut OSSL_PROVIDER) -> c_int;
    fn OSSL_PROVIDER_get0_provider_ctx(provider: *const OSSL_PROVIDER) -> *mut c_void;
    pub(super) fn ASYNC_WAIT_CTX_new() -> *mut ASYNC_WAIT_CTX;
    pub(super) fn ASYNC_WAIT_CTX_free(context: *mut ASYNC_WAIT_CTX);
    pub(super) fn ASYNC_WAIT_CTX_set_callback(
        context: *mut ASYNC_WAIT_CTX,
        callback: ASYNC_callback,
        argument: *mut c_void,
    ) -> c_int;
    pub(super) fn ASYNC_start_job(
        job: *mut *mut ASYNC_JOB,
        context: *mut ASYNC_WAIT_CTX,
        result: *mut c_int,
        work: unsafe extern "C" fn(*mut c_void) -> c_int,
        argument: *mut c_void,
        size: usize,
    ) -> c_int;
    fn ASYNC_cleanup_thread();
}

const CHEAP: Kind = Kind::X25519Derive;
const DEAR: Kind = Kind::P384Derive;

/// A provider with lanes for both kinds, whose thread polls by itself and has many connections; and its functions.
fn polled() -> (Loaded, FunctionTable) {
    let clock = Clock::given(|| 1);
    let loaded = Loaded::with(runtime(KindSet::of(&[CHEAP, DEAR]), true, clock, &Made::default()));
    let table = table::make(loaded.provider());
    // SAFETY: the table's own provider.
    unsafe {
        (table.claim)(table.provider, 1);
        (table.set_active)(table.provider, 100);
    }
    (loaded, table)
}

/// Secrets that TLS will come back with outlive no handshake.
#[test]
fn a_secret_is_kept_while_handshakes_are_under_way_and_no_longer() {
    let (loaded, table) = polled();
    let is_new = |secret: u8| {
        let (key, mut new) = (loaded.provider().secret(&[secret; 48]).unwrap(), false);
        key.expanded(|_| {
            new = true;
            Ok(0_u8)
        })
        .unwrap();
        new
    };
    let set_active = |active: u32| {
        // SAFETY: the table's own provider.
        unsafe { (table.set_active)(table.provider, active) };
    };
    assert_eq!([1, 1].map(is_new), [true, false]);
    set_active(1);
    assert!(!is_new(1));
    set_active(0);
    assert_eq!([1, 1].map(is_new), [true, true], "nobody says that a handshake is under way");
    set_active(1);
    assert!(is_new(1), "nothing was left of it");
}

/// Turns of a loop that finds nothing to do, until a batch goes; what is then in flight.
fn idle_until_one_goes(table: &FunctionTable) -> u32 {
    let mut told = table::Turn::default();
    for _ in 0..100 {
        // SAFETY: the table's own provider, and room for the answer.
        unsafe { (table.turn)(table.provider, 2, 1, &raw mut told) };
        if told.went > 0 {
            assert_eq!(told.again, if told.in_flight > 0 { table::NEXT } else { table::NEVER });
            return told.in_flight;
        }
        assert_eq!(told.again, table::NEXT, "the loop does not sleep");
    }
    panic!("nothing goes");
}

#[test]
fn an_idle_loop_releases_the_cheapest_kind_and_leaves_the_others() {
    let (loaded, table) = polled();
    let start = |kind| Job::start(loaded.provider(), kind);
    let (dear, cheap) = ([start(DEAR), start(DEAR)], [start(CHEAP), start(CHEAP)]);
    assert!(dear.iter().chain(&cheap).all(|job| job.waits() && job.told() == 0));
    assert_eq!(idle_until_one_goes(&table), 2, "in flight");
    assert!(cheap.iter().all(|job| job.told() == 1));
    assert!(dear.iter().all(|job| job.told() == 0));
    // Their connections join the others.
    cheap.into_iter().for_each(Job::ends);
    let joining = start(DEAR);
    assert_eq!(idle_until_one_goes(&table), 0, "in flight");
    assert!(dear.iter().chain([&joining]).all(|job| job.told() == 1));
    dear.into_iter().chain([joining]).for_each(Job::ends);
}

/// The hybrid of TLS: its two halves are of two kinds, and each goes with its own batch.
const HALVES: [Kind; 2] = [Kind::MlKem768Encapsulate, CHEAP];

fn polled_halves(poll: &str, active: u32, made: &Made) -> (Loaded, FunctionTable) {
    let loaded = Loaded::with(runtime(KindSet::of(&HALVES), true, Clock::given(|| 1), made));
    let mut current = loaded.provider().current();
    current.settings.set("poll", poll).unwrap();
    loaded.provider().change_to(current);
    let table = table::make(loaded.provider());
    // SAFETY: the table's own provider.
    unsafe {
        (table.claim)(table.provider, 1);
        (table.set_active)(table.provider, active);
    }
    (loaded, table)
}

#[test]
fn an_operation_of_two_kinds_pauses_its_job_once_and_is_told_when_both_are_done() {
    let (loaded, table) = polled_halves("adaptive", 100, &Made::default());
    let start = || Job::start_both(loaded.provider(), HALVES);
    let (first, second) = (start(), start());
    assert!([&first, &second].iter().all(|job| job.waits() && job.told() == 0));
    assert_eq!(idle_until_one_goes(&table), 2, "the other half of each is in flight");
    assert_eq!([&first, &second].map(Job::told), [0, 0]);
    // One more joins what is left.
    let third = start();
    while idle_until_one_goes(&table) > 0 {}
    assert_eq!([&first, &second, &third].map(Job::told), [1, 1, 1]);
    [first, second, third].into_iter().for_each(Job::ends);
}

#[test]
fn of_an_operation_of_two_kinds_what_nothing_batches_is_done_at_once() {
    let (loaded, table) = polled();
    let jobs = [HALVES, [HALVES[1], HALVES[0]]].map(|kinds| Job::start_both(loaded.provider(), kinds));
    assert!(jobs.iter().all(Job::waits));
    assert_eq!(loaded.provider().seat().in_flight(), 2, "one half of each");
    assert_eq!(idle_until_one_goes(&table), 0);
    jobs.into_iter().for_each(Job::ends);
    let neither = Job::start_both(loaded.provider(), [HALVES[0], Kind::P256Derive]);
    assert!(!neither.waits(), "lanes do neither");
    neither.ends();
}

#[test]
fn the_job_that_fills_the_batches_of_both_kinds_runs_them_and_does_not_pause() {
    let made = Made::default();
    let (loaded, _table) = polled_halves("adaptive", 100, &made);
    let mut jobs: Vec<Job> = (0..8).map(|_| Job::start_both(loaded.provider(), HALVES)).collect();
    assert!(!jobs[7].waits() && jobs[7].told() == 0);
    assert!(jobs[..7].iter().all(|job| job.waits() && job.told() == 1));
    jobs.drain(..).for_each(Job::ends);
    let made = lock(&made);
    // The known answers of each kind fill a pass, too.
    assert!(made.len() >= 2 && made.iter().all(|shared| *shared == 8), "{made:?}");
}

#[test]
fn a_connection_that_waits_with_two_requests_counts_once() {
    let (loaded, table) = polled_halves("heuristic", 3, &Made::default());
    let turn = || {
        let mut told = table::Turn::default();
        // SAFETY: the table's own provider, and room for the answer.
        unsafe { (table.turn)(table.provider, 0, 1, &raw mut told) };
        told.went
    };
    let mut jobs = vec![];
    for expected in [0, 0, 1] {
        jobs.push(Job::start_both(loaded.provider(), HALVES));
        assert_eq!(turn(), expected, "all of three wait");
    }
    jobs.into_iter().for_each(Job::ends);
}

#[test]
fn a_wait_context_that_goes_takes_both_halves_along() {
    let (loaded, table) = polled_halves("adaptive", 100, &Made::default());
    let start = || Job::start_both(loaded.provider(), HALVES);
    let (gone, hurried) = (start(), start());
    drop(gone);
    assert_eq!(loaded.provider().seat().in_flight(), 2);
    // SAFETY: the table's own provider; the argument is a live job's.
    let done = unsafe { (table.hurry_for)(table.provider, (&raw const (*hurried.0).told).cast::<c_void>()) };
    assert_eq!((done, hurried.told(), loaded.provider().seat().in_flight()), (1, 0, 0));
    hurried.ends();
}

#[test]
fn a_loop_with_other_events_asks_again_behind_them_and_an_empty_one_not_at_all() {
    let (loaded, table) = polled();
    let turn = |moment| {
        let mut told = table::Turn::default();
        // SAFETY: the table's own provider, and room for the answer.
        unsafe { (table.turn)(table.provider, moment, 1, &raw mut told) };
        told
    };
    assert_eq!(turn(2).again, table::NEVER);
    let job = Job::start(loaded.provider(), CHEAP);
    for moment in [0, 1] {
        let told = turn(moment);
        assert_eq!((told.again, told.in_flight, told.went), (table::BEHIND, 1, 0));
    }
    assert_eq!(job.told(), 0);
    idle_until_one_goes(&table);
    job.ends();
}

#[test]
fn the_published_rule_releases_when_all_wait_and_after_five_microseconds() {
    let time = Arc::new(AtomicU64::new(1));
    let hands = time.clone();
    let clock = Clock::given(move || hands.load(Relaxed));
    let loaded = Loaded::with(runtime(KindSet::of(&[CHEAP]), true, clock, &Made::default()));
    let provider = loaded.provider();
    let mut current = provider.current();
    current.settings.set("poll", "heuristic").unwrap();
    provider.change_to(current);
    let table = table::make(provider);
    let turn = || {
        let mut told = table::Turn::default();
        // SAFETY: the table's own provider, and room for the answer.
        unsafe { (table.turn)(table.provider, 0, 1, &raw mut told) };
        told
    };
    // SAFETY: the table's own provider.
    unsafe {
        (table.claim)(table.provider, 1);
        (table.set_active)(table.provider, 2);
    }
    let first = Job::start(provider, CHEAP);
    assert_eq!((turn().went, turn().again), (0, table::NEXT), "the loop does not sleep");
    let second = Job::start(provider, CHEAP);
    let told = turn();
    assert_eq!((told.went, told.again), (1, table::NEVER), "both of two wait");
    let third = Job::start(provider, CHEAP);
    time.fetch_add(4_999, Relaxed);
    assert_eq!(turn().went, 0);
    time.fetch_add(1, Relaxed);
    assert_eq!(turn().went, 1, "the fail-safe");
    assert_eq!([&first, &second, &third].map(Job::told), [1, 1, 1]);
    [first, second, third].into_iter().for_each(Job::ends);
}

#[test]
fn what_the_policy_gives_to_a_device_is_submitted_when_it_arrives_and_never_gathered() {
    for lanes in [&[CHEAP, DEAR][..], &[CHEAP]] {
        for rule in ["adaptive", "heuristic", "threshold timer=1s"] {
            let with = WithCard::new(lanes, &[("poll", rule)]);
            let done = with.on_card();
            let (first, second, other) = (with.start(DEAR), with.start(DEAR), with.start(CHEAP));
            assert_eq!(with.sent_and_gathered(), (2, 1), "{rule}");
            with.pass(5_000_000_000);
            // SAFETY: the table's own provider.
            unsafe { (with.table.poll)(with.table.provider) };
            assert_eq!([&first, &second].map(Job::told), [1, 1]);
            assert_eq!(with.on_card(), done + 2);
            [first, second, other].into_iter().for_each(Job::ends);
        }
    }
}

#[test]
fn an_answer_that_is_due_is_taken_in_the_middle_of_a_turn() {
    let with = WithCard::new(&[], &[]);
    let first = with.start(DEAR);
    with.pass(CARD_NS);
    assert_eq!((with.turn().looked, first.told()), (1, 1));
    first.ends();
    let second = with.start(DEAR);
    assert_eq!((with.turn_at(0).looked, second.told()), (0, 0), "it is not due");
    with.pass(2 * CARD_NS);
    assert_eq!((with.turn_at(0).looked, second.told()), (1, 1));
    second.ends();
}

#[test]
fn derivations_pause_for_a_device_and_wait_for_nothing_else() {
    let with = WithCard::new(&[CHEAP], &[("pause", "always")]);
    for kind in [EXPAND, PRF] {
        // Until the card has given its known answers.
        for _ in 0..100 {
            let job = with.start(kind);
            if job.waits() {
                assert_eq!(with.sent_and_gathered(), (1, 0));
                assert_eq!((with.turn().looked, job.told()), (1, 0));
            }
            with.pass(CARD_NS);
            let waited = job.waits();
            if waited {
                assert_eq!((with.turn().looked, job.told()), (1, 1));
            }
            job.ends();
            if waited {
                break;
            }
        }
    }
    assert!(with.on_card_of(EXPAND) == 1 && with.on_card_of(PRF) == 1);
    // No device does it: never, even where all operations of keys wait.
    let job = with.start(Kind::HkdfSha256);
    assert!(!job.waits());
    job.ends();
}

#[test]
fn only_a_handshake_pauses_and_no_call_on_another_connection_inside_it() {
    let with = WithCard::new(&[CHEAP], &[]);
    let wait = |kind, within| {
        let before = with.sent_and_gathered();
        let job = Job::start_in(with.loaded.provider(), kind, within);
        let (waits, after) = (job.waits(), with.sent_and_gathered());
        assert_eq!(waits, before != after, "what does not pause is nowhere submitted");
        with.pass(CARD_NS);
        // SAFETY: the table's own provider.
        unsafe { (with.table.flush)(with.table.provider) };
        job.ends();
        waits
    };
    // Until the card has given its known answers.
    while !wait(EXPAND, Within::Handshake) {}
    for (kind, in_any_job) in [(EXPAND, false), (DEAR, true), (CHEAP, true)] {
        assert!(wait(kind, Within::Handshake));
        assert!(!wait(kind, Within::Nested));
        assert_eq!(wait(kind, Within::Other), in_any_job);
    }
    assert!(lock(&with.loaded.provider().seat().announced).is_empty());
}

/// A kind that a device could do, but does not: no job pauses, and its wait context has nothing of it.
#[test]
fn what_the_policy_does_not_give_to_a_device_is_done_in_the_call_where_lanes_gain_nothing() {
    let with = WithCard::new(&[], &[]);
    let job = with.start(CHEAP);
    assert!(!job.waits());
    assert_eq!(with.sent_and_gathered(), (0, 0));
    job.ends();
}

#[test]
fn the_published_rule_says_when_answers_are_looked_for() {
    let limits = "qweb.timer_ns=500000000,qweb.poll_asymmetric=3";
    let with = WithCard::new(&[CHEAP], &[("poll", "heuristic"), ("thresholds", limits)]);
    with.set_busy(20);
    let first = with.start(DEAR);
    assert_eq!((with.turn().looked, with.turn().again), (0, table::NEXT), "the loop does not sleep");
    with.pass(CARD_NS);
    assert_eq!(with.turn().looked, 0, "its answer is there");
    with.pass(349_999_999);
    assert_eq!((with.turn().looked, first.told()), (0, 0));
    with.pass(1);
    let told = with.turn();
    assert_eq!((told.looked, told.went, told.again, first.told()), (1, 0, table::NEVER, 1), "the fail-safe");

    let [second, third] = [with.start(DEAR), with.start(DEAR)];
    with.pass(CARD_NS);
    assert_eq!(with.turn().looked, 0, "two of three");
    let fourth = with.start(DEAR);
    assert_eq!((with.turn().looked, second.told(), third.told()), (1, 1, 1), "so many are in flight");
    with.pass(CARD_NS);
    assert_eq!((with.turn().looked, fourth.told()), (0, 0));
    with.set_busy(1);
    assert_eq!((with.turn().looked, fourth.told()), (1, 1), "all that are not idle wait");
    [first, second, third, fourth].into_iter().for_each(Job::ends);
}

#[test]
fn a_full_batch_of_lanes_is_no_look_at_a_device() {
    let limits = "qweb.timer_ns=500000000,qweb.poll_asymmetric=100";
    let with = WithCard::new(&[CHEAP], &[("poll", "heuristic"), ("thresholds", limits)]);
    with.set_busy(50);
    let on_card = with.start(DEAR);
    with.pass(CARD_NS);
    let batch: Vec<_> = (0..8).map(|_| with.start(CHEAP)).collect();
    assert_eq!(with.sent_and_gathered(), (1, 0));
    assert_eq!((on_card.told(), batch[0].told(), batch[7].waits()), (0, 1, false));
    with.pass(500_000_000 - CARD_NS);
    assert_eq!((with.turn().looked, on_card.told()), (1, 1));
    batch.into_iter().chain([on_card]).for_each(Job::ends);
}

#[test]
fn the_threshold_rule_sleeps_until_its_look() {
    let with = WithCard::new(&[CHEAP], &[("poll", "threshold asymmetric=9 timer=400ms")]);
    with.set_busy(50);
    let job = with.start(DEAR);
    with.pass(CARD_NS);
    let told = with.turn();
    assert_eq!((told.looked, told.again, told.wait_ns), (0, table::LATER, 250_000_000));
    with.pass(250_000_000);
    assert_eq!((with.turn().looked, job.told()), (1, 1));
    job.ends();
}

#[test]
fn a_connection_that_is_gone_is_not_told_of_its_devices_answer() {
    let with = WithCard::new(&[CHEAP], &[]);
    let (gone, stays) = (with.start(DEAR), with.start(DEAR));
    drop(gone);
    with.pass(CARD_NS);
    assert_eq!(with.turn().in_flight, 0);
    assert_eq!(stays.told(), 1);
    stays.ends();
    assert_eq!(with.sent_and_gathered(), (0, 0));
}

#[test]
fn a_device_that_makes_batches_gets_one_when_it_is_full_or_at_the_end_of_a_turn() {
    let with = WithCard::of("width 3\nwindow 64", &[CHEAP], &[("poll", "threshold timer=1s")]);
    let holds = || lock(&with.loaded.provider().seat().state).dispatcher.holds();
    let mut jobs = vec![with.start(DEAR), with.start(DEAR)];
    assert!(holds(), "others may come");
    assert_eq!((with.turn_at(1).again, holds()), (table::BEHIND, true), "the turn has other events");
    assert_eq!((with.turn().again, holds()), (table::LATER, false));
    for held in [true, true, false] {
        jobs.push(with.start(DEAR));
        assert_eq!(holds(), held);
    }
    with.pass(1_000_000_000);
    assert_eq!((with.turn().in_flight, jobs[0].told(), jobs[4].told()), (0, 1, 1));
    jobs.into_iter().for_each(Job::ends);
}

/// A request that finds no room is not even copied: the CPU does it, with others if lanes do the kind.
#[test]
fn what_a_full_device_has_no_room_for_is_gathered_or_done_in_the_call_and_asked_about_once() {
    let with = WithCard::of("width 1\nwindow 2", &[DEAR], &[]);
    let on_card = [with.start(DEAR), with.start(DEAR)];
    let gathered: Vec<_> = (0..7).map(|_| with.start(DEAR)).collect();
    assert_eq!(with.sent_and_gathered(), (2, 7));
    let last = with.start(DEAR);
    assert!(!last.waits(), "who fills a batch of lanes does it");
    with.pass(CARD_NS);
    assert_eq!((with.turn().in_flight, on_card[1].told(), gathered[0].told()), (0, 1, 1));
    let full = with.runtime.snapshot().engines.into_iter().find(|one| one.engine == "emulated").unwrap();
    assert_eq!(full.fallbacks.iter().filter(|(_, count)| *count > 0).count(), 2, "{full:?}");
    on_card.into_iter().chain(gathered).chain([last]).for_each(Job::ends);
    let [first, second] = [with.start(DEAR), with.start(DEAR)];
    let job = Job::start_in(with.loaded.provider(), EXPAND, Within::Handshake);
    assert!(!job.waits(), "no lanes do it");
    with.pass(CARD_NS);
    with.turn();
    [first, second, job].into_iter().for_each(Job::ends);
}

/// As after a panic that left a request behind: its place has gone to another.
#[test]
fn an_answer_never_goes_to_another_request_in_the_same_place() {
    let with = WithCard::new(&[CHEAP], &[]);
    let first = with.start(DEAR);
    lock(&with.loaded.provider().seat().state).waiting[0] = None;
    with.pass(1);
    let second = with.start(DEAR);
    assert!(lock(&with.loaded.provider().seat().state).waiting[0].is_some());
    with.pass(CARD_NS - 1);
    assert_eq!((with.turn().in_flight, second.told()), (1, 0), "that was the first's");
    with.pass(1);
    assert_eq!((with.turn().in_flight, second.told()), (0, 1));
    second.ends();
    drop(first);
}

#[test]
fn whoever_was_held_as_long_as_the_settings_say_goes_and_the_time_is_counted() {
    let time = Arc::new(AtomicU64::new(1));
    let hands = time.clone();
    let clock = Clock::given(move || hands.load(Relaxed));
    let runtime = runtime(KindSet::of(&[CHEAP]), true, clock, &Made::default());
    let loaded = Loaded::with(runtime.clone());
    let provider = loaded.provider();
    let mut current = provider.current();
    current.settings.set("hold-us", "300").unwrap();
    provider.change_to(current);
    let table = table::make(provider);
    // SAFETY: the table's own provider.
    let poll = || unsafe { (table.poll)(table.provider) };
    // SAFETY: as above.
    unsafe {
        (table.claim)(table.provider, 1);
        (table.set_active)(table.provider, 100);
    }
    for _ in 0..2 {
        let first = Job::start(provider, CHEAP);
        time.fetch_add(100_000, Relaxed);
        let second = Job::start(provider, CHEAP);
        time.fetch_add(199_999, Relaxed);
        assert_eq!(poll(), 2, "in flight");
        time.fetch_add(1, Relaxed);
        assert_eq!(poll(), 0, "in flight");
        assert_eq!([first.told(), second.told()], [1, 1]);
        first.ends();
        second.ends();
    }
    let cells = runtime.snapshot().cells;
    let held: Vec<_> = cells.iter().map(|cell| (&*cell.engine, cell.requests, cell.held_ns)).collect();
    assert_eq!(held, [("lanes", 4, 1_000_000)]);
}

/// A program that drops connections without ending their jobs (HAProxy) would lose each that has paused.
#[test]
fn a_job_of_a_thread_that_does_not_poll_ends_inside_the_call_unless_jobs_may_pause() {
    let clock = Clock::given(|| 1);
    let loaded = Loaded::with(runtime(KindSet::of(&[CHEAP]), true, clock, &Made::default()));
    let provider = loaded.provider();
    for _ in 0..3 {
        let job = Job::start(provider, CHEAP);
        assert!(!job.waits());
        job.ends();
    }
    for pause in ["jobs", "always"] {
        let mut current = provider.current();
        current.settings.set("pause", pause).unwrap();
        provider.change_to(current);
        let job = Job::start(provider, CHEAP);
        assert!(job.waits(), "{pause}");
        job.ends();
    }
    let mut current = provider.current();
    current.settings.set("pause", "auto").unwrap();
    provider.change_to(current);
    let table = table::make(provider);
    // SAFETY: the table's own provider.
    unsafe { (table.claim)(table.provider, 1) };
    let job = Job::start(provider, CHEAP);
    assert!(job.waits(), "it polls");
    // SAFETY: as above.
    unsafe { (table.flush)(table.provider) };
    job.ends();
}

/// A job's own 32 KiB are left at once, and it pauses and continues on another stack.
#[test]
fn a_job_pauses_on_a_large_stack_and_goes_on_there() {
    let (loaded, table) = polled();
    struct Deep {
        table: *const FunctionTable,
        provider: *const Provider,
        job: *mut ASYNC_JOB,
        done: u32,
    }
    unsafe extern "C" fn work(argument: *mut c_void) {
        // SAFETY: what `start` passes, which outlives the job.
        let deep = unsafe { &mut *argument.cast::<Deep>() };
        let frame = std::hint::black_box([7_u8; 1 << 20]);
        let mut answer = known_answers(CHEAP).swap_remove(0);
        let request: &mut wattlock_core::Work = &mut answer.request;
        let (key, input, output) = (&request.key, &request.input, &mut request.output);
        // SAFETY: a loaded provider.
        unsafe { &*deep.provider }.perform(request.kind, key, input, output).unwrap();
        deep.done = std::hint::black_box(&frame).iter().map(|byte| u32::from(*byte)).sum();
    }
    unsafe extern "C" fn start(argument: *mut c_void) -> c_int {
        // SAFETY: a copy of the pointer; the table's own provider.
        unsafe {
            let deep = *argument.cast::<*mut Deep>();
            let table = &*(*deep).table;
            (table.on_stack)(table.provider, work, deep.cast())
        }
    }
    let mut deep: Vec<Deep> = (0..3)
        .map(|_| Deep { table: &raw const table, provider: loaded.provider(), job: null_mut(), done: 0 })
        .collect();
    // SAFETY: public calls; each job has a wait context of its own, freed after its end.
    unsafe {
        let contexts: Vec<_> = deep.iter().map(|_| ASYNC_WAIT_CTX_new()).collect();
        let go = |at: usize, deep: &mut Vec<Deep>| {
            let (mut result, mut one) = (0, &raw mut deep[at]);
            let (argument, size) = ((&raw mut one).cast(), size_of_val(&one));
            ASYNC_start_job(&raw mut (*one).job, contexts[at], &raw mut result, start, argument, size)
        };
        assert!((0..3).all(|at| go(at, &mut deep) == ASYNC_PAUSE));
        (table.flush)(table.provider);
        // Not in the order in which they paused.
        assert!([1, 0, 2].into_iter().all(|at| go(at, &mut deep) == ASYNC_FINISH));
        contexts.into_iter().for_each(|context| ASYNC_WAIT_CTX_free(context));
    }
    assert!(deep.iter().all(|one| one.done == 7 << 20));
}

#[test]
fn the_helper_looks_once_sleeps_as_long_as_the_settings_say_and_releases() {
    assert!((0..1000).any(|_| helper_releases()), "no job ever paused");
}

/// Whether the job paused: on a busy machine its thread may stand still until the helper has released it before.
fn helper_releases() -> bool {
    const HOLD_NS: Nanos = 10_000_000;
    let (start, looks) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
    let seen = looks.clone();
    let now = move || start.elapsed().as_nanos() as Nanos;
    // The helper reads the clock once when it looks.
    let clock = Clock::given(move || {
        let now = now();
        if thread::current().name() == Some("wattlock") {
            lock(&seen).push(now);
        }
        now
    });
    let loaded = Loaded::with(runtime(KindSet::of(&[CHEAP]), true, clock, &Made::default()));
    let provider = loaded.provider();
    let mut current = provider.current();
    current.settings.set("hold-us", "10000").unwrap();
    current.settings.set("pause", "jobs").unwrap();
    provider.change_to(current);
    let before = now();
    let job = Job::start(provider, CHEAP);
    if !job.waits() {
        job.ends();
        return false;
    }
    // The first gatherer is told at once, for a loop that may come round. None does; the helper tells it again.
    while job.told() < 2 {
        assert!(start.elapsed() < Duration::from_secs(60), "nobody released it");
        thread::sleep(Duration::from_millis(1));
    }
    let (early, late): (Vec<Nanos>, Vec<Nanos>) = lock(&looks).iter().partition(|at| **at < before + HOLD_NS);
    // A sleep never ends early, however busy the machine is.
    assert!(early.len() <= 1 && !late.is_empty(), "began at {before}; too early: {early:?}, then: {late:?}");
    job.ends();
    true
}

#[test]
fn a_full_batch_of_one_kind_is_done_and_leaves_the_others_gathered() {
    let (loaded, table) = polled();
    let start = |kind| Job::start(loaded.provider(), kind);
    // SAFETY: the table's own provider.
    let in_flight = || unsafe { (table.in_flight)(table.provider) };
    let others: Vec<_> = (0..3).map(|_| start(DEAR)).collect();
    let waiting: Vec<_> = (1..8).map(|_| start(CHEAP)).collect();
    assert!(others.iter().chain(&waiting).all(|job| job.waits() && job.told() == 0));
    assert_eq!(in_flight(), 10);
    let last = start(CHEAP);
    assert!(!last.waits(), "who fills a batch does it");
    assert!(waiting.iter().all(|job| job.told() == 1));
    assert!(others.iter().all(|job| job.told() == 0));
    assert_eq!(in_flight(), 3);
    waiting.into_iter().chain([last]).for_each(Job::ends);
    // SAFETY: the table's own provider.
    assert_eq!(unsafe { (table.flush)(table.provider) }, 0);
    others.into_iter().for_each(Job::ends);
}

const SEAL: Kind = Kind::Aes128GcmSeal;

impl WithCard {
    /// So many together, in a handshake.
    fn start_several(&self, count: usize) -> Job {
        Job::start_several(self.loaded.provider(), SEAL, Within::Handshake, count)
    }

    /// The CPU does them until the card has given the kind's known answers.
    fn until_it_seals(&self) {
        while self.on_card_of(SEAL) == 0 {
            let job = self.start_several(2);
            self.pass(CARD_NS);
            self.poll();
            job.ends();
        }
    }

    fn poll(&self) {
        // SAFETY: the table's own provider.
        unsafe { (self.table.poll)(self.table.provider) };
    }
}

#[test]
fn requests_that_are_one_operation_are_submitted_together_and_pause_their_job_once() {
    // A card of single requests, and one that makes batches.
    for card in ["width 1\nwindow 64", "width 16\nwindow 64"] {
        let with = WithCard::of(card, &[], &[]);
        with.until_it_seals();
        let before = with.on_card_of(SEAL);
        let job = with.start_several(8);
        assert_eq!((with.sent_and_gathered(), job.waits()), ((8, 0), true));
        assert!(!lock(&with.loaded.provider().seat().state).dispatcher.holds(), "one doorbell for all");
        // Told when all are there, and not before; resumed too early it pauses again.
        assert_eq!(job.told(), 0);
        job.resume();
        assert!(job.waits());
        with.pass(CARD_NS);
        with.turn();
        assert_eq!((with.sent_and_gathered(), job.told()), ((0, 0), 1));
        job.ends();
        assert_eq!(with.on_card_of(SEAL), before + 8);
    }
}

#[test]
fn a_job_of_several_is_told_when_the_last_is_there() {
    let with = WithCard::of("width 1\nwindow 64", &[], &[]);
    with.until_it_seals();
    let job = with.start_several(3);
    with.pass(1);
    let late = with.start_several(2);
    with.pass(CARD_NS - 1);
    with.poll();
    assert_eq!((job.told(), late.told(), with.sent_and_gathered().0), (1, 0, 2));
    with.pass(1);
    with.poll();
    assert_eq!((late.told(), with.sent_and_gathered().0), (1, 0));
    [job, late].into_iter().for_each(Job::ends);
}

#[test]
fn what_of_an_operation_has_no_room_on_the_device_is_the_cpus_meanwhile() {
    let with = WithCard::of("width 1\nwindow 3", &[], &[]);
    with.until_it_seals();
    let before = with.on_card_of(SEAL);
    let job = with.start_several(8);
    assert_eq!(with.sent_and_gathered(), (3, 0));
    // Nothing has room: all are the CPU's, and nothing pauses, nor waits for the card, whose clock stands.
    let full = with.start_several(4);
    assert!(!full.waits());
    full.ends();
    with.pass(CARD_NS);
    with.turn();
    job.ends();
    assert_eq!(with.on_card_of(SEAL), before + 3);
}

#[test]
fn an_operation_whose_connection_is_gone_is_taken_back_whole() {
    let with = WithCard::of("width 1\nwindow 8", &[], &[]);
    with.until_it_seals();
    for withdraws in [true, false] {
        let (gone, stays) = (with.start_several(5), with.start_several(3));
        if withdraws {
            // SAFETY: ours; the table's own provider; the argument is compared only.
            let found = unsafe {
                let argument = (&raw const (*gone.0).told).cast();
                (with.table.cancel_for)(with.table.provider, argument)
            };
            assert_eq!(found, 1);
            gone.resume();
            // SAFETY: ours; the job is over.
            assert!(unsafe { &*gone.0 }.result.as_ref().is_some_and(Result::is_err));
        } else {
            drop(gone);
        }
        with.pass(CARD_NS);
        with.turn();
        assert_eq!((with.sent_and_gathered(), stays.told()), ((0, 0), 1));
        stays.ends();
    }
}

#[test]
fn an_operation_whose_connection_is_to_end_is_done_by_the_cpu_at_once() {
    let with = WithCard::of("width 1\nwindow 8", &[], &[]);
    with.until_it_seals();
    let before = with.on_card_of(SEAL);
    let (hurried, stays) = (with.start_several(5), with.start_several(3));
    let hurry = || {
        // SAFETY: ours; the table's own provider; the argument is compared only.
        let argument = unsafe { (&raw const (*hurried.0).told).cast() };
        // SAFETY: as above.
        unsafe { (with.table.hurry_for)(with.table.provider, argument) }
    };
    assert_eq!((hurry(), hurried.told()), (1, 0), "nobody is told");
    assert_eq!(hurry(), 0);
    hurried.resume();
    // SAFETY: ours; the job is over, and the card's clock stood.
    assert!(unsafe { &*hurried.0 }.result.as_ref().is_some_and(Result::is_ok));
    hurried.ends();
    with.pass(CARD_NS);
    with.turn();
    assert_eq!((with.sent_and_gathered(), stays.told()), ((0, 0), 1));
    stays.ends();
    assert_eq!(with.on_card_of(SEAL), before + 3);
}

#[test]
fn an_answer_that_is_late_does_not_keep_the_loop_from_others() {
    let with = WithCard::of("width 1\nwindow 64", &[], &[]);
    with.until_it_seals();
    with.pass(20 * CARD_NS);
    let late = with.start(DEAR);
    {
        // As if it had been sent long ago, and just been looked for in vain.
        let seat = with.loaded.provider().seat();
        let mut state = seat.lock();
        state.looked = state.now();
        state.waiting.iter_mut().flatten().for_each(|one| one.since -= 10 * CARD_NS);
    }
    let told = with.turn();
    assert!(told.again == table::LATER && told.wait_ns > CARD_NS, "{}", told.wait_ns);
    let other = with.start_several(2);
    let told = with.turn();
    assert!(told.again == table::LATER && told.wait_ns < CARD_NS, "{}", told.wait_ns);
    with.pass(CARD_NS);
    with.turn();
    assert_eq!((late.told(), other.told()), (1, 1));
    [late, other].into_iter().for_each(Job::ends);
}

#[test]
fn what_is_the_cpus_in_any_case_asks_no_device() {
    let with = WithCard::of("width 1\nwindow 64", &[], &[]);
    with.until_it_seals();
    let before = with.on_card_of(SEAL);
    let mut answers: Vec<KnownAnswer> = (0..4).map(|_| known_answers(SEAL).swap_remove(0)).collect();
    let mut items: Vec<Item<'_>> = answers.iter_mut().map(|one| Item::new(one.request.view())).collect();
    // The clock stands: a call that waited for the card would never end.
    let done = with.loaded.provider().do_all(&mut items);
    assert!(done && with.on_card_of(SEAL) == before);
}

/// A loop that waits for nothing but a card sleeps until its answer is nearly due.
#[test]
fn once_it_is_known_how_long_a_card_takes_the_loop_sleeps() {
    let with = WithCard::of("width 1\nwindow 64", &[], &[]);
    for _ in 0..3 {
        let job = with.start(DEAR);
        assert!(job.waits());
        let told = with.turn();
        assert_eq!((told.looked, told.again), (0, table::LATER));
        assert!((CARD_NS / 2..CARD_NS).contains(&told.wait_ns), "{}", told.wait_ns);
        with.pass(told.wait_ns);
        assert_eq!((with.turn().looked, job.told()), (1, 0), "it looks again, and in each turn now");
        with.pass(CARD_NS - told.wait_ns);
        assert_eq!((with.turn().looked, job.told()), (1, 1));
        job.ends();
    }
}
