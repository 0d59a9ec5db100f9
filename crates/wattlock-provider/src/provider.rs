//! One loaded instance of the provider: what OpenSSL gave it, its runtime, and what it offers.
//!
//! Loading reads settings and the calibration profile, makes the counters and the memory that no child has, builds the
//! runtime and the child context. It opens no engine, starts no thread and tests nothing. Nothing is left for later that
//! asks the kernel for more than libcrypto itself does: the program may have confined itself by then, and be killed for it.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use wattlock::core::{Engine, known_answers};
use wattlock::{Builder, Process, Runtime, own_engines};

use crate::advantage::Version;
use crate::arg::{Callback, Fill, Name, Owned, Shared};
use crate::child::Child;
use crate::ec::groups;
use crate::error::{Reason, entry, raise_with};
use crate::offer::Offer;
use crate::params::{END, Table, describe};
use crate::seat::Life;
use crate::settings::{KEYS, Settings, Verify};
use crate::sys::{
    OSSL_ALGORITHM, OSSL_CALLBACK, OSSL_CORE_HANDLE, OSSL_DISPATCH, OSSL_PARAM, PARAM_INTEGER,
    PARAM_OCTETS_PTR, PARAM_UTF8_PTR, ThreadStop, UNMODIFIED, id,
};
use crate::table::{self, FunctionTable};

/// What entries of this provider get as their `provctx`.
pub struct Provider {
    /// Never used twice in a process, so that a thread's seat of an unloaded provider is not taken for ours.
    pub(crate) id: u64,
    handle: *const OSSL_CORE_HANDLE,
    thread_start: Option<ThreadStart>,
    /// In the child context, and therefore freed before it.
    pub(crate) groups: crate::ec::Groups,
    /// In the child context too.
    pub(crate) kdfs: crate::kdf::Kdfs,
    pub(crate) child: Child,
    current: Mutex<Current>,
    /// Rises when settings change; seats of before are left.
    pub(crate) epoch: AtomicU32,
    /// What does not survive a fork: this process's seats and helper thread. One reference is ours.
    life: AtomicPtr<Life>,
    offer: Offer,
    build: CString,
    pub(crate) energy: crate::status::Energy,
    table: OnceLock<Box<FunctionTable>>,
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

type ThreadStart = unsafe extern "C" fn(*const OSSL_CORE_HANDLE, ThreadStop, *mut c_void) -> c_int;
type GetParams = unsafe extern "C" fn(*const OSSL_CORE_HANDLE, *mut OSSL_PARAM) -> c_int;

static IDS: AtomicU64 = AtomicU64::new(1);

impl Provider {
    /// The provider that an entry was called for.
    ///
    /// # Safety
    /// `context` is a `provctx` that [`OSSL_provider_init`] gave out and whose teardown has not been called. OpenSSL
    /// keeps a provider alive while anything fetched from it is.
    pub unsafe fn of<'a>(context: *mut c_void) -> &'a Provider {
        // SAFETY: the caller's.
        unsafe { &*context.cast::<Provider>() }
    }

    /// Has `stop` called with our `provctx` when the calling thread ends.
    pub(crate) fn at_thread_end(&self, stop: ThreadStop) {
        if let Some(thread_start) = self.thread_start {
            // SAFETY: OpenSSL's own function with the handle it belongs to.
            unsafe { thread_start(self.handle, stop, std::ptr::from_ref(self).cast_mut().cast()) };
        }
    }

    fn new(
        handle: *const OSSL_CORE_HANDLE,
        table: *const OSSL_DISPATCH,
        settings: Settings,
        openssl: Version,
        thread_start: Option<ThreadStart>,
    ) -> Result<Provider, String> {
        // SAFETY: `OSSL_provider_init` passes on what it got.
        let child = unsafe { Child::new(handle, table) }.ok_or("no child library context could be made")?;
        let engines = engines(&settings)?;
        let offer = Offer::new(&settings, &engines, openssl);
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
            thread_start,
            groups: crate::ec::Groups::default(),
            kdfs: crate::kdf::Kdfs::default(),
            child,
            current: Mutex::new(Current { settings, runtime }),
            epoch: AtomicU32::new(0),
            life: AtomicPtr::new(Arc::into_raw(Arc::new(Life::new())).cast_mut()),
            offer,
            build: build.unwrap_or_default(),
            energy: crate::status::Energy::default(),
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
            // SAFETY: never null, and not freed before the provider is, but for a loser below that nobody ever saw.
            let life = unsafe {
                Arc::increment_strong_count(at);
                Arc::from_raw(at)
            };
            if life.forks == wattlock::forks() {
                return life;
            }
            let fresh = Arc::into_raw(Arc::new(Life::new())).cast_mut();
            if self.life.compare_exchange(at, fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: nobody saw it.
                drop(unsafe { Arc::from_raw(fresh) });
            }
        }
    }

    /// Settings and runtime as they are now.
    pub(crate) fn current(&self) -> Current {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = changed;
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
    fn prove_everything(&self) -> bool {
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

/// The engines that may be used here.
fn engines(settings: &Settings) -> Result<Vec<Arc<dyn Engine>>, String> {
    let mut engines = own_engines();
    if let Some(model) = &settings.emulate {
        engines.push(crate::emulate::accelerator(model)?);
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

/// What OpenSSL calls first.
///
/// # Safety
/// Called by OpenSSL by the contract of provider-base(7).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn OSSL_provider_init(
    handle: *const OSSL_CORE_HANDLE,
    functions: *const OSSL_DISPATCH,
    out: *mut *const OSSL_DISPATCH,
    context: *mut *mut c_void,
) -> c_int {
    entry(|| {
        let (mut get_params, mut thread_start) = (None::<GetParams>, None::<ThreadStart>);
        let mut at = functions;
        // SAFETY: OpenSSL's table ends with number 0; functions have the types of their numbers.
        unsafe {
            while (*at).function_id != 0 {
                match (*at).function_id {
                    id::CORE_GET_PARAMS => {
                        get_params = std::mem::transmute::<*const c_void, Option<GetParams>>((*at).function)
                    }
                    id::CORE_THREAD_START => {
                        thread_start =
                            std::mem::transmute::<*const c_void, Option<ThreadStart>>((*at).function);
                    }
                    _ => {}
                }
                at = at.add(1);
            }
        }
        // SAFETY: the handle belongs to the function.
        let said = get_params.map_or(Ok((Settings::default(), Version::FIRST)), |get| unsafe {
            Ok((read_settings(handle, get)?, version(handle, get)))
        });
        let (settings, openssl) = match said {
            Ok(said) => said,
            Err(words) => {
                let words: String = words;
                raise_with(Reason::FailedToSetParameter, &format!("wattlock: {words}"));
                return 0;
            }
        };
        match Provider::new(handle, functions, settings, openssl, thread_start) {
            Ok(provider) => {
                // SAFETY: both are writable, by contract.
                unsafe {
                    *context = Box::into_raw(Box::new(provider)).cast();
                    *out = FUNCTIONS.as_ptr();
                }
                1
            }
            Err(words) => {
                raise_with(Reason::NotSupported, &format!("wattlock: {words}"));
                0
            }
        }
    })
}

/// # Safety
/// `get` is OpenSSL's function and `handle` its argument.
unsafe fn read_settings(handle: *const OSSL_CORE_HANDLE, get: GetParams) -> Result<Settings, String> {
    let mut settings = Settings::default();
    for (key, _) in KEYS {
        // SAFETY: the caller's. The text is used at once.
        let Some(value) = (unsafe { told(handle, get, key) }) else { continue };
        let value = value.to_str().map_err(|_| "a setting is not UTF-8".to_owned())?;
        let key = key.to_str().unwrap_or_default();
        settings.set(key, value).map_err(|error| error.to_string())?;
    }
    Ok(settings)
}

/// The version of the libcrypto that loads us: the one whose own ciphers would serve otherwise.
///
/// # Safety
/// As [`read_settings`].
unsafe fn version(handle: *const OSSL_CORE_HANDLE, get: GetParams) -> Version {
    // SAFETY: the caller's. The text is used at once.
    let text = unsafe { told(handle, get, c"openssl-version") };
    text.and_then(|text| Version::parse(text.to_str().ok()?)).unwrap_or(Version::FIRST)
}

/// What OpenSSL answers to a parameter's name: one of its own, or a line of our section.
///
/// # Safety
/// As [`read_settings`]; the text lives as long as the configuration.
unsafe fn told<'a>(handle: *const OSSL_CORE_HANDLE, get: GetParams, key: &CStr) -> Option<&'a CStr> {
    let mut value: *const c_char = null();
    let mut list = [
        OSSL_PARAM {
            key: key.as_ptr(),
            data_type: PARAM_UTF8_PTR,
            data: (&raw mut value).cast(),
            data_size: 0,
            return_size: UNMODIFIED,
        },
        END,
    ];
    // SAFETY: a terminated list whose one entry has room for a pointer, which OpenSSL sets to a C string.
    unsafe { (get(handle, list.as_mut_ptr()) == 1 && !value.is_null()).then(|| CStr::from_ptr(value)) }
}

static FUNCTIONS: Table<OSSL_DISPATCH, 7> = Table([
    OSSL_DISPATCH { function_id: id::PROVIDER_TEARDOWN, function: teardown as *const c_void },
    OSSL_DISPATCH { function_id: id::PROVIDER_GETTABLE_PARAMS, function: gettable_params as *const c_void },
    OSSL_DISPATCH { function_id: id::PROVIDER_GET_PARAMS, function: get_params as *const c_void },
    OSSL_DISPATCH { function_id: id::PROVIDER_QUERY_OPERATION, function: query_operation as *const c_void },
    OSSL_DISPATCH { function_id: id::PROVIDER_GET_CAPABILITIES, function: get_capabilities as *const c_void },
    OSSL_DISPATCH { function_id: id::PROVIDER_SELF_TEST, function: self_test as *const c_void },
    OSSL_DISPATCH { function_id: 0, function: null() },
]);

extern "C" fn teardown(provider: Owned<Provider>) {
    // OpenSSL calls this once, when nothing of ours is in use any more.
    entry(|| provider.take().map_or((), |provider| provider.close()));
}

static GETTABLE: Table<OSSL_PARAM, 7> = Table([
    describe(c"name", PARAM_UTF8_PTR),
    describe(c"version", PARAM_UTF8_PTR),
    describe(c"buildinfo", PARAM_UTF8_PTR),
    describe(c"status", PARAM_INTEGER),
    describe(c"wattlock-abi", PARAM_INTEGER),
    describe(c"wattlock-table", PARAM_OCTETS_PTR),
    END,
]);

extern "C" fn gettable_params(_: *mut c_void) -> *const OSSL_PARAM {
    GETTABLE.as_ptr()
}

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"",
};

extern "C" fn get_params(provider: Shared<'static, Provider>, params: Fill<'_>) -> c_int {
    entry(|| {
        let (Some(provider), mut answers) = (provider.get(), params.get()) else { return 0 };
        let table = if answers.wants(c"wattlock-table") {
            std::ptr::from_ref(&**provider.table.get_or_init(|| Box::new(table::make(provider))))
        } else {
            null()
        };
        let good = answers.set_text(c"name", c"Wattlock")
            && answers.set_text(c"version", VERSION)
            && answers.set_text(c"buildinfo", &provider.build)
            && answers.set_size(c"status", 1)
            && answers.set_size(c"wattlock-abi", table::VERSION as usize)
            && answers.set_pointer(c"wattlock-table", table.cast(), size_of::<FunctionTable>());
        c_int::from(good)
    })
}

unsafe extern "C" fn query_operation(
    provider: Shared<'static, Provider>,
    operation: c_int,
    no_cache: *mut c_int,
) -> *const OSSL_ALGORITHM {
    entry(|| {
        if !no_cache.is_null() {
            // SAFETY: OpenSSL's own variable.
            unsafe { *no_cache = 0 };
        }
        provider.get().map_or(null(), |provider| provider.offer.algorithms(operation))
    })
}

unsafe extern "C" fn get_capabilities(
    provider: Shared<'static, Provider>,
    capability: Name<'_>,
    callback: OSSL_CALLBACK,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the caller's callback with its own argument.
    let callback = unsafe { Callback::new(callback, argument) };
    entry(|| {
        let Some(provider) = provider.get().filter(|_| capability.get() == Some(groups::CAPABILITY)) else {
            return 0;
        };
        let types = [("ec", c"EC"), ("x25519", c"X25519")];
        let mut on = types.iter().filter(|(group, _)| provider.offer.has(group));
        c_int::from(on.all(|(_, name)| groups::tls(&provider.child, name, &callback)))
    })
}

/// Known answers are tried per kind when it is first used; asked for a self-test, all that is offered is tried at once.
extern "C" fn self_test(provider: Shared<'static, Provider>) -> c_int {
    entry(|| c_int::from(provider.get().is_some_and(Provider::prove_everything)))
}
