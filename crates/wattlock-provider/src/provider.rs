//! One loaded instance of the provider: what OpenSSL gave it, its runtime, and what it offers.
//!
//! Loading reads settings and the calibration profile, makes the counters and the memory that no child has, builds the
//! runtime and the child context. It opens no engine, starts no thread and tests nothing. Nothing is left for later that
//! asks the kernel for more than libcrypto itself does: the program may have confined itself by then, and be killed for it.
#![allow(unsafe_code)]

use std::ffi::{CString, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use wattlock_core::sync::lock;

use wattlock::core::{Engine, known_answers};
use wattlock::{Builder, Process, Runtime, own_engines};

use crate::abi::FunctionTable;
use crate::advantage::Version;
use crate::child::Child;
use crate::kept::Kept;
use crate::offer::{Algorithm, Offer};
use crate::seat::{Life, waits};
use crate::settings::{Settings, Verify};
use crate::sys::{BioReadEx, BioWriteEx, OSSL_CORE_BIO, OSSL_CORE_HANDLE, OSSL_DISPATCH, ThreadStop};

/// What entries of this provider get as their `provctx`.
pub struct Provider {
    /// Never used twice in a process, so that a thread's seat of an unloaded provider is not taken for ours.
    pub(crate) id: u64,
    handle: *const OSSL_CORE_HANDLE,
    core: Core,
    /// In the child context, and therefore freed before it.
    pub(crate) kept: Kept,
    pub(crate) child: Child,
    current: Mutex<Current>,
    /// Rises when settings change; seats of before are left.
    pub(crate) epoch: AtomicU32,
    /// Whether a call that cannot pause waits for devices with anything ([`waits`]).
    pub(crate) waits: AtomicBool,
    /// What does not survive a fork: this process's seats and helper thread. One reference is ours.
    life: AtomicPtr<Life>,
    pub(crate) offer: Offer,
    /// Words for people.
    pub(crate) build: CString,
    pub(crate) energy: crate::energy::Energy,
    pub(crate) looks: crate::status::Looks,
    pub(crate) table: OnceLock<Box<FunctionTable>>,
}

/// Settings and the runtime made from them.
#[derive(Clone)]
pub(crate) struct Current {
    pub(crate) settings: Settings,
    pub(crate) runtime: Runtime,
}

// SAFETY: `handle` is OpenSSL's and may be used from any thread; everything else is Sync by itself.
unsafe impl Send for Provider {}
// SAFETY: as above.
unsafe impl Sync for Provider {}

/// Functions of libcrypto that it hands to providers only.
#[derive(Clone, Copy, Default)]
pub(crate) struct Core {
    pub(crate) thread_start: Option<ThreadStart>,
    pub(crate) bio_read: Option<BioReadEx>,
    pub(crate) bio_write: Option<BioWriteEx>,
}

pub(crate) type ThreadStart = unsafe extern "C" fn(*const OSSL_CORE_HANDLE, ThreadStop, *mut c_void) -> c_int;
static IDS: AtomicU64 = AtomicU64::new(1);

impl Provider {
    /// The provider that an entry was called for.
    ///
    /// # Safety
    /// `context` is a `provctx` that `OSSL_provider_init` gave out and whose teardown has not been called. OpenSSL
    /// keeps a provider alive while anything fetched from it is.
    pub unsafe fn of<'a>(context: *mut c_void) -> &'a Provider {
        // SAFETY: the caller's.
        unsafe { &*context.cast::<Provider>() }
    }

    /// Has `stop` called with our `provctx` when the calling thread ends.
    pub(crate) fn at_thread_end(&self, stop: ThreadStop) {
        if let Some(thread_start) = self.core.thread_start {
            // SAFETY: OpenSSL's own function with the handle it belongs to.
            unsafe { thread_start(self.handle, stop, std::ptr::from_ref(self).cast_mut().cast()) };
        }
    }

    /// Writes to a BIO of the core's; whether all was written.
    ///
    /// # Safety
    /// `bio` is live.
    pub(crate) unsafe fn write_bio(&self, bio: *mut OSSL_CORE_BIO, bytes: &[u8]) -> bool {
        let (Some(write), mut written) = (self.core.bio_write, 0) else { return false };
        // SAFETY: the caller's; readable bytes, and a place for their number.
        let done = unsafe { write(bio, bytes.as_ptr().cast(), bytes.len(), &raw mut written) };
        done == 1 && written == bytes.len()
    }

    /// Fills a room from a BIO of the core's; whether it is full.
    ///
    /// # Safety
    /// `bio` is live.
    pub(crate) unsafe fn read_bio(&self, bio: *mut OSSL_CORE_BIO, mut room: &mut [u8]) -> bool {
        let Some(read) = self.core.bio_read else { return false };
        while !room.is_empty() {
            let mut count = 0;
            // SAFETY: the caller's; a room of this length, and a place for their number.
            let done = unsafe { read(bio, room.as_mut_ptr().cast(), room.len(), &raw mut count) };
            if done != 1 || count == 0 || count > room.len() {
                return false;
            }
            room = &mut room[count..];
        }
        true
    }

    /// # Safety
    /// `handle` and `table` are what `OSSL_provider_init` was given, and `core` is of that table.
    pub(crate) unsafe fn new(
        handle: *const OSSL_CORE_HANDLE,
        table: *const OSSL_DISPATCH,
        everything: &[&'static [Algorithm]],
        settings: Settings,
        openssl: Version,
        core: Core,
    ) -> Result<Provider, String> {
        // SAFETY: the caller's.
        let child = unsafe { Child::new(handle, table) }.ok_or("no child library context could be made")?;
        let engines = engines(&settings)?;
        let offer = Offer::new(everything, &settings, &engines, openssl);
        let process = Process::here();
        // A filter that is in force already may kill for what a counters' file takes.
        let telemetry = settings.telemetry && !process.confined;
        let builder = builder(&settings, engines, &process).telemetry(telemetry).kept_counters();
        let runtime = builder.build().map_err(|error| error.to_string())?;
        wattlock_cpu::instruction::prepare();
        let build =
            CString::new(format!("wattlock {} ({})", env!("CARGO_PKG_VERSION"), offer.describe(&runtime)));
        Ok(Provider {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            handle,
            core,
            kept: Kept::default(),
            child,
            waits: AtomicBool::new(!waits(&runtime).is_empty()),
            current: Mutex::new(Current { settings, runtime }),
            epoch: AtomicU32::new(0),
            life: AtomicPtr::new(Arc::into_raw(Arc::new(Life::new())).cast_mut()),
            offer,
            build: build.unwrap_or_default(),
            energy: crate::energy::Energy::default(),
            looks: crate::status::Looks::default(),
            table: OnceLock::new(),
        })
    }
}

impl Provider {
    /// This process's part. After a fork the child gets its own, and the parent's is forgotten, not freed: a lock in
    /// it may be held for ever by a thread that did not come along.
    pub(crate) fn life(&self) -> Arc<Life> {
        loop {
            let at = self.life.load(Ordering::Acquire);
            // SAFETY: never null, and not freed before the provider is, except for a loser below that was never seen.
            let life = unsafe {
                Arc::increment_strong_count(at);
                Arc::from_raw(at)
            };
            if life.forks == wattlock::forks() {
                return life;
            }
            let fresh = Arc::into_raw(Arc::new(Life::new())).cast_mut();
            if self.life.compare_exchange(at, fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: it was never seen.
                drop(unsafe { Arc::from_raw(fresh) });
            }
        }
    }

    /// Settings and runtime as they are now.
    pub(crate) fn current(&self) -> Current {
        lock(&self.current).clone()
    }

    /// Whether these settings make sense here together, in whatever order they come.
    pub(crate) fn check(&self, pairs: &[(&str, &str)]) -> Result<(), String> {
        self.with(pairs).map(|_| ())
    }

    /// Changes settings, all or none. Threads go over to them with their next request; what is in flight ends as it
    /// began.
    pub(crate) fn set(&self, pairs: &[(&str, &str)]) -> Result<(), String> {
        self.change_to(self.with(pairs)?);
        Ok(())
    }

    pub(crate) fn change_to(&self, changed: Current) {
        self.waits.store(!waits(&changed.runtime).is_empty(), Ordering::Relaxed);
        *lock(&self.current) = changed;
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// One setting may need another (`engines = emulated` needs `emulate`), so what they come to is tried when all are
    /// in.
    fn with(&self, pairs: &[(&str, &str)]) -> Result<Current, String> {
        // OpenSSL keeps what it was told at load: a change here would pass and do nothing.
        if let Some((key, value)) = pairs.iter().find(|(key, _)| *key == "algorithms") {
            return Err(format!(
                "{key} = {value}: OpenSSL asks once, when it loads the provider: say it in openssl.cnf and restart"
            ));
        }
        let mut settings = self.current().settings;
        for (key, value) in pairs {
            settings.set(key, value).map_err(|error| error.to_string())?;
        }
        let builder = builder(&settings, engines(&settings)?, &Process::here());
        let runtime = builder.build().map_err(|error| error.to_string())?;
        Ok(Current { settings, runtime })
    }

    /// Tries the known answers of everything that is offered.
    pub(crate) fn prove_everything(&self) -> bool {
        let runtime = self.current().runtime;
        let mut dispatcher = runtime.dispatcher();
        self.offer.kinds().iter().flat_map(known_answers).all(|mut answer| {
            let result = dispatcher.run(&mut answer.request.view());
            let mut engines = runtime.engines().iter();
            engines.any(|checker| answer.expected.verdict(&answer.request, &result, &**checker).is_ok())
        })
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        // SAFETY: the reference that `new` left there, or `life` after a fork.
        drop(unsafe { Arc::from_raw(self.life.load(Ordering::Acquire)) });
    }
}

fn builder(settings: &Settings, engines: Vec<Arc<dyn Engine>>, process: &Process) -> Builder {
    let builder = Runtime::builder()
        .engines(engines)
        .policy(&settings.policy, settings.thresholds.clone())
        .objective(settings.objective)
        .give_up_after_ns(settings.give_up.as_nanos() as u64)
        .verify_signatures(settings.verify == Verify::Signatures)
        .telemetry(settings.telemetry)
        .program(&format!("{} (openssl)", process.name));
    // Quotas of cores are in files that a filter may not let us see.
    if process.confined { builder.cores(process.cores) } else { builder }
}

#[cfg(feature = "emulate")]
fn emulated(model: &str) -> Result<Arc<dyn Engine>, String> {
    let computes = Arc::new(wattlock_cpu::instruction::Instruction::new());
    wattlock_emul::card(model, computes).map_err(|error| format!("emulate = {error}"))
}

/// No emulated card is in what every OpenSSL process loads.
#[cfg(not(feature = "emulate"))]
fn emulated(model: &str) -> Result<Arc<dyn Engine>, String> {
    Err(format!("emulate = {model}: this provider has no emulated cards; libwattlock_emulated.so has"))
}

/// The engines that may be used here.
fn engines(settings: &Settings) -> Result<Vec<Arc<dyn Engine>>, String> {
    let mut engines = own_engines();
    if let Some(model) = &settings.emulate {
        engines.push(emulated(model)?);
    }
    if settings.engines.is_empty() {
        return Ok(engines);
    }
    let known: Vec<&str> = engines.iter().map(|engine| engine.description().name).collect();
    if let Some(stranger) = settings.engines.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("engines = {stranger}: this machine has {}", known.join(", ")));
    }
    engines.retain(|engine| settings.engines.iter().any(|name| name == engine.description().name));
    Ok(engines)
}
