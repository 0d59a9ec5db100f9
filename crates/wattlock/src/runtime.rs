//! One process's registry of engines, with its policy, profile and telemetry.
//!
//! Building a runtime starts no thread, opens no instance, calibrates nothing and tests nothing: engines are opened
//! and proved when a dispatcher first needs them.

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use wattlock_core::recent::{Mark, Recent};
use wattlock_core::sync::lock;
use wattlock_core::{Engine, EngineClass, Error, Kind, KindSet, Nanos};
use wattlock_policy::{
    Costs, EngineId, EngineView, MAX_ENGINES, Machine, Objective, Policy, PolicyError, Settings, Turning,
    Widths, by_name,
};

use crate::clock::Clock;
use crate::device::{Device, Handle};
use crate::dispatcher::Dispatcher;
use crate::hardware;
use crate::local::Owners;
use crate::own::{missing_engines, own_engines};
use crate::profile::{Found, Profile};
use crate::sys::fork;
use crate::telemetry::{Header, Identity, Row, Snapshot, Telemetry};

/// Why a runtime could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// More engines than [`MAX_ENGINES`].
    #[error("{0} engines, at most {MAX_ENGINES} are possible")]
    TooManyEngines(usize),
    /// No engine works inside the call, so nothing could be done without waiting.
    #[error("no CPU engine among the engines")]
    NoCpuEngine,
    /// An engine of a CPU's class has queues: those finish inside the call.
    #[error("{0} is a CPU's engine and has queues")]
    QueuedCpu(&'static str),
    /// Two engines of one name.
    #[error("two engines are called {0}")]
    SameName(&'static str),
    /// The policy's name or settings.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

type PolicyMaker = Box<dyn Fn(&Machine) -> Box<dyn Policy> + Send + Sync>;

/// What a runtime is made of. Defaults: the CPU's own engines, `adaptive` for performance, the profile on disk if
/// there is one and it is this machine's, telemetry on.
pub struct Builder {
    engines: Vec<Arc<dyn Engine>>,
    inactive: Vec<(String, String)>,
    policy: String,
    settings: Settings,
    maker: Option<PolicyMaker>,
    objective: Objective,
    profile: Option<Profile>,
    clock: Clock,
    program: String,
    telemetry: bool,
    kept: bool,
    cores: Option<usize>,
    give_up_after_ns: Nanos,
    verify_one_in: u32,
    verify_signatures: bool,
    pairs: usize,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder { inactive: own_missing(), ..Builder::of(own_engines()) }
    }
}

fn own_missing() -> Vec<(String, String)> {
    missing_engines().into_iter().map(|(name, why)| (name.to_owned(), why.to_owned())).collect()
}

impl Builder {
    /// Every default but for the engines, which are these. What a library does not name here is not in its file.
    pub fn of(engines: Vec<Arc<dyn Engine>>) -> Builder {
        Builder {
            engines,
            inactive: Vec::new(),
            policy: "adaptive".to_owned(),
            settings: Settings::default(),
            maker: None,
            objective: Objective::default(),
            profile: None,
            clock: Clock::real(),
            program: String::new(),
            telemetry: true,
            kept: false,
            cores: None,
            give_up_after_ns: 200_000_000,
            verify_one_in: 64,
            verify_signatures: false,
            pairs: 1,
        }
    }

    /// Replaces the engines. Ids are their places in the list.
    #[must_use]
    pub fn engines(mut self, engines: Vec<Arc<dyn Engine>>) -> Builder {
        self.engines = engines;
        self
    }

    /// Adds one engine.
    #[must_use]
    pub fn engine(mut self, engine: Arc<dyn Engine>) -> Builder {
        self.engines.push(engine);
        self
    }

    /// Says that an engine is off, and why; shown by status, nothing else.
    #[must_use]
    pub fn inactive(mut self, name: &str, why: &str) -> Builder {
        self.inactive.push((name.to_owned(), why.to_owned()));
        self
    }

    /// Names the policy and its settings.
    #[must_use]
    pub fn policy(mut self, name: &str, settings: Settings) -> Builder {
        self.policy = name.to_owned();
        self.settings = settings;
        self.maker = None;
        self
    }

    /// Uses a policy that is not in the catalogue, under this name; `make` is called once for each dispatcher.
    #[must_use]
    pub fn own_policy(
        mut self,
        name: &str,
        make: impl Fn(&Machine) -> Box<dyn Policy> + Send + Sync + 'static,
    ) -> Builder {
        self.policy = name.to_owned();
        self.maker = Some(Box::new(make));
        self
    }

    /// What to minimise.
    #[must_use]
    pub fn objective(mut self, objective: Objective) -> Builder {
        self.objective = objective;
        self
    }

    /// Uses this profile instead of the one on disk.
    #[must_use]
    pub fn profile(mut self, profile: Profile) -> Builder {
        self.profile = Some(profile);
        self
    }

    /// Uses another clock.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Builder {
        self.clock = clock;
        self
    }

    /// What the process calls itself in telemetry.
    #[must_use]
    pub fn program(mut self, program: &str) -> Builder {
        self.program = program.to_owned();
        self
    }

    /// Whether counters are published in a file.
    #[must_use]
    pub fn telemetry(mut self, on: bool) -> Builder {
        self.telemetry = on;
        self
    }

    /// For a library in a program that may confine itself later (seccomp): counters are made when the runtime is built, and
    /// never again, unless the program says that it is free ([`Runtime::is_free`]). A child counts with its parent.
    #[must_use]
    pub fn kept_counters(mut self) -> Builder {
        self.kept = true;
        self
    }

    /// How many cores there are, if the caller knows: the system is not asked then.
    #[must_use]
    pub fn cores(mut self, cores: usize) -> Builder {
        self.cores = Some(cores);
        self
    }

    /// How long an engine may take, beyond any hold, before the CPU does the request instead.
    #[must_use]
    pub fn give_up_after_ns(mut self, nanos: Nanos) -> Builder {
        self.give_up_after_ns = nanos;
        self
    }

    /// One in this many results of engines that are not the CPU is checked on the CPU; 0 for none. RSA and ECDSA results
    /// of theirs are all checked, whatever this says.
    #[must_use]
    pub fn verify_one_in(mut self, one_in: u32) -> Builder {
        self.verify_one_in = one_in;
        self
    }

    /// Whether ECDSA signatures that CPU engines make are checked, too, by the public key: for machines whose CPU may be made
    /// to err. A wrong one is made again by another engine and does not leave. CPU engines check RSA's by themselves. It
    /// costs a verification for each signature ([`check_share`]).
    #[must_use]
    pub fn verify_signatures(mut self, yes: bool) -> Builder {
        self.verify_signatures = yes;
        self
    }

    /// Queue pairs of each device, used in turn. Default 1.
    #[must_use]
    pub fn queue_pairs(mut self, pairs: usize) -> Builder {
        self.pairs = pairs;
        self
    }

    /// Builds it. Reads the profile from disk unless one was given; takes well under a millisecond.
    ///
    /// # Errors
    /// [`BuildError`], naming what does not fit.
    pub fn build(self) -> Result<Runtime, BuildError> {
        if self.engines.len() > MAX_ENGINES {
            return Err(BuildError::TooManyEngines(self.engines.len()));
        }
        if !self.engines.iter().any(|engine| does_one_at_a_time(&**engine)) {
            return Err(BuildError::NoCpuEngine);
        }
        let names: Vec<&'static str> = self.engines.iter().map(|engine| engine.description().name).collect();
        if let Some((_, name)) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
            return Err(BuildError::SameName(name));
        }
        let queued = |engine: &&Arc<dyn Engine>| {
            engine.description().class.is_cpu() && !engine.description().queued.is_empty()
        };
        if let Some(engine) = self.engines.iter().find(queued) {
            return Err(BuildError::QueuedCpu(engine.description().name));
        }
        let found = match self.profile {
            Some(profile) => Found { origin: profile.origin(&self.engines), profile },
            None => Profile::find(&self.engines),
        };
        let cores =
            self.cores.or_else(|| std::thread::available_parallelism().ok().map(usize::from)).unwrap_or(1);
        let machine = Machine {
            engines: self
                .engines
                .iter()
                .enumerate()
                .map(|(at, engine)| view(at, &**engine, self.pairs))
                .collect(),
            costs: costs(&found.profile, &self.engines, self.pairs),
            cores: cores as u16,
            objective: self.objective,
            hardware: hardware::of(&self.engines),
            turning: turning(&found.profile, &self.engines),
        };
        if self.maker.is_none() {
            by_name(&self.policy, machine.clone(), &self.settings)?;
        }
        let identity = Identity {
            program: self.program,
            policy: self.policy.clone(),
            objective: format!("{:?}", self.objective).to_lowercase(),
            profile: found.origin,
            engines: names.iter().map(|name| (*name).to_owned()).collect(),
            details: self.engines.iter().map(|engine| engine.description().detail.clone()).collect(),
            energy: self.engines.iter().map(|engine| worth(&**engine, &found.profile)).collect(),
            inactive: self.inactive,
        };
        fork::watch();
        let kept = self.kept.then(|| Arc::new(Telemetry::keep(&identity, self.telemetry, cores)));
        Ok(Runtime {
            inner: Arc::new(Inner {
                queued_kinds: self
                    .engines
                    .iter()
                    .fold(KindSet::EMPTY, |set, e| set.union(e.description().queued)),
                cpu_order: cpu_order(&self.engines),
                devices: self.engines.iter().map(|engine| Device::new(engine.clone(), self.pairs)).collect(),
                engines: self.engines,
                machine,
                plan: Plan::new(self.policy, self.settings, self.objective, self.maker),
                clock: self.clock,
                identity,
                telemetry_wanted: self.telemetry,
                telemetry: Mutex::new(None),
                kept,
                free: AtomicU32::new(0),
                give_up_after_ns: self.give_up_after_ns,
                verify_one_in: self.verify_one_in,
                verified: if self.verify_signatures { ecdsa() } else { KindSet::EMPTY },
                submitters: AtomicU16::new(0),
                files: Recent::default(),
                born: fork::generation(),
            }),
            owners: Arc::new(Owners),
        })
    }
}

/// What an engine's joules in telemetry are worth. The CPU engines' are the calibration's, times the work; another
/// engine's are what its completions say, which no counter of ours has confirmed.
fn worth(engine: &dyn Engine, profile: &Profile) -> String {
    let description = engine.description();
    if !description.class.is_cpu() {
        return "modelled: the engine's own figures, error band unknown".to_owned();
    }
    let known = profile.points.iter().any(|p| p.engine == description.name && p.energy_nj.is_some());
    match profile.energy.as_ref().filter(|_| known) {
        Some(note) => format!("{}: calibrated with {}, above idle", note.quality, note.sources.join(", ")),
        None => String::new(),
    }
}

fn is_cpu_inline(engine: &dyn Engine) -> bool {
    engine.description().class.is_cpu() && !engine.description().inline.is_empty()
}

/// Kinds that sign with a fresh nonce each time.
fn ecdsa() -> KindSet {
    let signs = |kind: &&Kind| kind.wrong_result_tells_key() && !kind.info().deterministic;
    Kind::ALL.iter().filter(signs).fold(KindSet::EMPTY, |set, kind| set.with(*kind))
}

/// Whether it is one that others fall back to: lanes alone do some kinds only.
fn does_one_at_a_time(engine: &dyn Engine) -> bool {
    is_cpu_inline(engine) && engine.description().class != EngineClass::Lanes
}

fn view(at: usize, engine: &dyn Engine, pairs: usize) -> EngineView {
    let description = engine.description();
    EngineView {
        id: EngineId(at as u8),
        class: description.class,
        // What a device does goes through its queue only.
        inline: if description.class.is_cpu() { description.inline } else { KindSet::EMPTY },
        queued: description.queued,
        widths: Widths::by(|kind| engine.width(kind)),
        window: engine.window().requests.saturating_mul(pairs.max(1) as u32),
    }
}

/// What checking a private-key result costs, in times of making it with the quickest code for one request. RSA: 17
/// multiplications of the modulus' length where a signature takes some 600 for 2048 bits and grows by a power more
/// (e = 65537). ECDSA: any point is multiplied, where a signature multiplies the generator only, whose multiples are in a
/// table. `openssl speed` prints both sides of each. 0 for kinds whose results are checked by sample.
pub const fn check_share(kind: Kind) -> f64 {
    if !kind.wrong_result_tells_key() {
        return 0.0;
    }
    match kind.info().algorithm.modulus_len() {
        Some(bytes) => 0.06 * 256.0 / bytes as f64,
        None => 2.5,
    }
}

/// The profile's figures; for kinds that it says nothing of, the built-in table's. Figures of two machines are never
/// mixed within one kind.
fn costs(profile: &Profile, engines: &[Arc<dyn Engine>], pairs: usize) -> Costs {
    // Read only if it is needed: it takes as long as everything else here together.
    let built_in = std::cell::OnceCell::new();
    let mut costs = Costs::new();
    for kind in Kind::ALL {
        let known = profile.points.iter().any(|point| point.kind == kind.name());
        let source = if known { profile } else { built_in.get_or_init(|| Profile::built_in_for(engines)) };
        for (at, engine) in engines.iter().enumerate() {
            if engine.description().kinds().contains(*kind) {
                let name = engine.description().name;
                costs.set(EngineId(at as u8), *kind, source.curve(name, *kind));
                costs.set_batches(EngineId(at as u8), *kind, source.batches(name, *kind));
                if let Some(count) = engine.at_once(*kind) {
                    costs.set_at_once(EngineId(at as u8), *kind, count.saturating_mul(pairs.max(1) as u32));
                }
            }
        }
        set_check(&mut costs, engines, *kind);
    }
    costs
}

/// What the profile says of a device that is among the engines.
fn turning(profile: &Profile, engines: &[Arc<dyn Engine>]) -> Option<Turning> {
    let storage = profile.storage.as_ref()?;
    let is_it = |engine: &Arc<dyn Engine>| engine.description().name == storage.device;
    let device = EngineId(engines.iter().position(is_it)? as u8);
    Some(Turning { device, from: storage.from, feeders: storage.feeders })
}

/// What checking devices' results of a kind will cost this thread: a share of what the quickest CPU engine takes to make
/// one, which is also the one that checks.
fn set_check(costs: &mut Costs, engines: &[Arc<dyn Engine>], kind: Kind) {
    let share = check_share(kind);
    let inside = engines.iter().enumerate().filter(|(_, engine)| does_one_at_a_time(&***engine));
    let known = inside.filter_map(|(at, _)| costs.latency_ns(EngineId(at as u8), kind, 0));
    let Some(quickest) = known.min_by(f64::total_cmp).filter(|_| share > 0.0) else { return };
    for (at, engine) in engines.iter().enumerate() {
        if !engine.description().class.is_cpu() && engine.description().queued.contains(kind) {
            costs.set_check(EngineId(at as u8), kind, share * quickest);
        }
    }
}

/// CPU engines that work inside the call, the fastest class first: where a failed request goes.
fn cpu_order(engines: &[Arc<dyn Engine>]) -> Vec<(EngineId, KindSet)> {
    let rank = |class| match class {
        EngineClass::Instruction => 0,
        EngineClass::Lanes => 1,
        _ => 2,
    };
    let mut order: Vec<(u8, EngineId, KindSet)> = engines
        .iter()
        .enumerate()
        .filter(|(_, engine)| is_cpu_inline(&***engine))
        .map(|(at, e)| (rank(e.description().class), EngineId(at as u8), e.description().inline))
        .collect();
    order.sort_by_key(|(rank, id, _)| (*rank, *id));
    order.into_iter().map(|(_, id, kinds)| (id, kinds)).collect()
}

/// One process's engines, policy, profile and counters. Clones share everything. Safe to use from any thread.
#[derive(Clone)]
pub struct Runtime {
    inner: Arc<Inner>,
    owners: Arc<Owners>,
}

/// A policy that is in force, with its settings, until there is a next one. No lock: a child of a fork may be born while
/// another thread of its parent changes settings.
pub(crate) struct Plan {
    policy: String,
    settings: Settings,
    objective: Objective,
    maker: Option<PolicyMaker>,
    next: OnceLock<Arc<Plan>>,
}

impl Plan {
    fn new(
        policy: String,
        settings: Settings,
        objective: Objective,
        maker: Option<PolicyMaker>,
    ) -> Arc<Plan> {
        Arc::new(Plan { policy, settings, objective, maker, next: OnceLock::new() })
    }

    /// Whether another one is in force.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.next.get().is_some()
    }

    /// The one in force.
    pub(crate) fn last(self: &Arc<Plan>) -> Arc<Plan> {
        let mut plan = self;
        while let Some(next) = plan.next.get() {
            plan = next;
        }
        plan.clone()
    }

    /// A fresh policy of this plan, for a thread that may know its number.
    pub(crate) fn policy(&self, machine: &Machine, thread: Option<u16>) -> Box<dyn Policy> {
        if let Some(make) = &self.maker {
            return make(machine);
        }
        let machine = Machine { objective: self.objective, ..machine.clone() };
        let mut settings = self.settings.clone();
        settings.aca_sds_thread = settings.aca_sds_thread.or(thread);
        match by_name(&self.policy, machine, &settings) {
            Ok(policy) => policy,
            Err(error) => unreachable!("the same name and settings built a policy before: {error}"),
        }
    }
}

impl Drop for Plan {
    /// One after the other, however many there are: a recursion could overflow the stack.
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(mut plan) = next.and_then(Arc::into_inner) {
            next = plan.next.take();
        }
    }
}

/// Which fork the counters belong to, and the counters.
type Place = Option<(u32, Arc<Telemetry>)>;

pub(crate) struct Inner {
    engines: Vec<Arc<dyn Engine>>,
    /// The same as threads share them.
    devices: Vec<Device>,
    queued_kinds: KindSet,
    cpu_order: Vec<(EngineId, KindSet)>,
    machine: Machine,
    /// The first; what is in force is the last after it.
    plan: Arc<Plan>,
    clock: Clock,
    identity: Identity,
    telemetry_wanted: bool,
    /// Made when the first dispatcher is, and again after a fork.
    telemetry: Mutex<Place>,
    /// Made with the runtime, and this process's and its children's.
    kept: Option<Arc<Telemetry>>,
    /// The process that said it is free.
    free: AtomicU32,
    give_up_after_ns: Nanos,
    verify_one_in: u32,
    /// Kinds of which CPU engines' results are checked, too.
    verified: KindSet,
    submitters: AtomicU16,
    /// Files in operation, as doors tell.
    files: Recent,
    /// Which fork of its ancestors this runtime was built in.
    born: u32,
}

impl Runtime {
    /// A runtime with every default.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn new() -> Result<Runtime, BuildError> {
        Runtime::builder().build()
    }

    /// A builder with every default.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A way in, for one thread at a time. Dispatchers outlive the runtime's handles.
    pub fn dispatcher(&self) -> Dispatcher {
        Dispatcher::new(self.inner.clone(), None)
    }

    /// The same for a thread that knows its number among those that do a door's work, from zero: `aca-sds` has the first
    /// of them feed the accelerator.
    pub fn dispatcher_of(&self, thread: u16) -> Dispatcher {
        Dispatcher::new(self.inner.clone(), Some(thread))
    }

    pub(crate) fn owners(&self) -> &Arc<Owners> {
        &self.owners
    }

    #[cfg(test)]
    pub(crate) fn submitters(&self) -> u16 {
        self.inner.submitters()
    }

    /// The engines, by id.
    pub fn engines(&self) -> &[Arc<dyn Engine>] {
        &self.inner.engines
    }

    /// What a policy is told of this machine.
    pub fn machine(&self) -> &Machine {
        &self.inner.machine
    }

    /// Name of the policy in force.
    pub fn policy(&self) -> String {
        self.inner.plan().policy.clone()
    }

    /// Puts another policy or other settings in force, in the running process. The next request of each dispatcher is
    /// decided by them, by a policy that has learned nothing yet; requests in flight end as they began. What counters
    /// publish of the policy's name for other processes is the name at the start.
    ///
    /// # Errors
    /// [`PolicyError`], if there is no such policy; then nothing changes.
    pub fn set_policy(&self, name: &str, settings: Settings) -> Result<(), PolicyError> {
        let objective = self.inner.plan().objective;
        self.set_policy_for(objective, name, settings)
    }

    /// As [`Runtime::set_policy`], with another objective.
    ///
    /// # Errors
    /// As [`Runtime::set_policy`].
    pub fn set_policy_for(
        &self,
        objective: Objective,
        name: &str,
        settings: Settings,
    ) -> Result<(), PolicyError> {
        by_name(name, Machine { objective, ..self.inner.machine.clone() }, &settings)?;
        let mut plan = Plan::new(name.to_owned(), settings, objective, None);
        while let Err(not_set) = self.inner.plan().next.set(plan) {
            plan = not_set;
        }
        Ok(())
    }

    /// A door says that a file (or whatever it does several operations on at a time) has an operation in flight as long
    /// as the answer lives. Policies are told how many had one lately ([`wattlock_core::recent`]): none, and they are told
    /// the number of dispatchers instead. Without devices nothing is counted, as nothing depends on it.
    pub fn operates_on<'a>(&'a self, file: &'a Mark) -> Operating<'a> {
        let told = self.inner.has_queues().then_some((&*self.inner, file));
        if let Some((inner, file)) = told {
            inner.files.begin(file);
        }
        Operating(told)
    }

    /// How many files had an operation lately, as far as doors said.
    pub fn files_in_operation(&self) -> u16 {
        self.inner.files.count(self.inner.clock.now())
    }

    /// A policy of the kind in force, fresh, for asking what it would choose.
    pub fn fresh_policy(&self) -> Box<dyn Policy> {
        self.inner.plan().policy(&self.inner.machine, None)
    }

    /// Where the costs came from.
    pub fn profile_origin(&self) -> &str {
        &self.inner.identity.profile
    }

    /// The runtime's clock.
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// Everything counted so far in this process.
    pub fn snapshot(&self) -> Snapshot {
        self.inner.telemetry().sum(&self.header())
    }

    /// The program says that no filter keeps this process from making files: a child has counters of its own from here on,
    /// though its parent's are kept.
    pub fn is_free(&self) {
        self.inner.free.store(fork::generation(), Relaxed);
    }

    /// The telemetry file, if one could be made.
    pub fn telemetry_path(&self) -> Option<std::path::PathBuf> {
        self.inner.telemetry().path().map(std::path::Path::to_owned)
    }

    fn header(&self) -> Header {
        let plan = self.inner.plan();
        let objective = format!("{:?}", plan.objective).to_lowercase();
        Header { policy: plan.policy.clone(), objective, ..self.inner.identity.header() }
    }
}

/// While one lives, a file has an operation in flight: [`Runtime::operates_on`].
pub struct Operating<'a>(Option<(&'a Inner, &'a Mark)>);

impl Drop for Operating<'_> {
    fn drop(&mut self) {
        if let Some((inner, file)) = self.0 {
            inner.files.end(file, inner.clock.now());
        }
    }
}

impl Inner {
    pub(crate) fn engines(&self) -> &[Arc<dyn Engine>] {
        &self.engines
    }

    /// A way to a device for one thread.
    pub(crate) fn open(&self, id: EngineId, now: Nanos) -> Result<Handle, Error> {
        self.devices.get(id.index()).ok_or(Error::Unsupported)?.open(now)
    }

    /// The plan in force.
    pub(crate) fn plan(&self) -> Arc<Plan> {
        self.plan.last()
    }

    pub(crate) fn machine(&self) -> &Machine {
        &self.machine
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Nanojoules of a request by the profile; 0 where it has none.
    pub(crate) fn energy_nj(&self, engine: EngineId, kind: Kind, bytes: usize) -> u64 {
        self.machine.costs.energy_nj(engine, kind, bytes).map_or(0, |energy_nj| energy_nj as u64)
    }

    pub(crate) fn has_queues(&self) -> bool {
        !self.queued_kinds.is_empty()
    }

    /// CPU engines that do a kind inside the call, in the order a failed request tries them.
    pub(crate) fn cpu_engines(self: &Arc<Inner>, kind: Kind) -> impl Iterator<Item = EngineId> + use<> {
        let inner = self.clone();
        (0..inner.cpu_order.len()).filter_map(move |at| {
            let (id, kinds) = inner.cpu_order[at];
            kinds.contains(kind).then_some(id)
        })
    }

    pub(crate) fn give_up_after_ns(&self) -> Nanos {
        self.give_up_after_ns
    }

    pub(crate) fn verify_one_in(&self) -> u32 {
        self.verify_one_in
    }

    pub(crate) fn verified(&self) -> KindSet {
        self.verified
    }

    pub(crate) fn submitters(&self) -> u16 {
        self.submitters.load(Relaxed)
    }

    /// Files that had an operation lately, as far as a door said.
    pub(crate) fn files(&self, now: Nanos) -> u16 {
        match self.files.count(now) {
            0 => self.submitters(),
            files => files,
        }
    }

    pub(crate) fn submitter_came(&self) {
        self.submitters.fetch_add(1, Relaxed);
    }

    pub(crate) fn submitter_left(&self) {
        self.submitters.fetch_sub(1, Relaxed);
    }

    pub(crate) fn row(&self) -> Row {
        self.telemetry().row()
    }

    /// This process's counters, made on first use unless they are kept.
    fn telemetry(&self) -> Arc<Telemetry> {
        if let Some(kept) = &self.kept
            && (self.born == fork::generation() || self.free.load(Relaxed) != fork::generation())
        {
            return kept.clone();
        }
        let Some(mut place) = self.telemetry_place() else {
            return Arc::new(Telemetry::create(&self.identity, false));
        };
        let now = fork::generation();
        match &*place {
            Some((generation, telemetry)) if *generation == now => telemetry.clone(),
            _ => {
                let telemetry = Arc::new(Telemetry::create(&self.identity, self.telemetry_wanted));
                *place = Some((now, telemetry.clone()));
                telemetry
            }
        }
    }

    /// In the process that built the runtime the lock is simply taken. In a child, a thread that the fork did not
    /// bring along may have held it for ever; so there it is only tried, and a thread that fails gets counters of its
    /// own.
    fn telemetry_place(&self) -> Option<MutexGuard<'_, Place>> {
        if fork::generation() == self.born {
            return Some(lock(&self.telemetry));
        }
        for _ in 0..1000 {
            if let Ok(place) = self.telemetry.try_lock() {
                return Some(place);
            }
            std::thread::yield_now();
        }
        None
    }
}
