//! Measuring what each engine costs: every kind, over sizes, concurrency and batches, on this machine.
//!
//! Each point is the median of several short runs, so that a neighbour's burst of work on a shared machine costs a run
//! and not the figure. The work is real: the requests are the known answers', with inputs of the size in question.
//!
//! Where a meter is handed in and its counters measure the processors, each point of one request at a time also gets
//! joules above idle power. Modelled joules and integrated power never get in: the one follows from time, which is
//! there already, the other is too slow for windows this short.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use wattlock_core::{
    Engine, EngineClass, Error, Family, Group, Instance, Item, Kind, KindSet, LatencyClass, OwnedRequest,
    Token, known_answers,
};

use wattlock_meter::{Meter, Quality, Reading};

use crate::profile::{EnergyNote, Fit, Point, Profile};
use crate::up::{COMES_UP_WITHIN, bring_up};

/// What to measure, and for how long.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Kinds.
    pub kinds: KindSet,
    /// Input sizes of kinds whose input has any length.
    pub sizes: Vec<usize>,
    /// Requests at once.
    pub concurrency: Vec<u16>,
    /// Time for one point.
    pub per_point: Duration,
    /// When to stop, whatever is left; points not reached are missing from the profile.
    pub within: Option<Duration>,
}

impl Plan {
    /// Everything: 64 B to 16 MiB, one request at a time up to all cores and beyond.
    pub fn full(cores: u16) -> Plan {
        let mut concurrency = vec![1, 2, cores, 2 * cores, 16];
        concurrency.sort_unstable();
        concurrency.dedup();
        Plan {
            kinds: KindSet::ALL,
            sizes: (0..10).map(|step| 64 << (2 * step)).collect(),
            concurrency,
            per_point: Duration::from_millis(15),
            within: None,
        }
    }

    /// A few sizes one at a time, in about a second.
    pub fn quick(kinds: KindSet) -> Plan {
        Plan {
            kinds,
            sizes: vec![64, 1024, 16 << 10, 256 << 10],
            concurrency: vec![1],
            per_point: Duration::from_millis(5),
            within: Some(Duration::from_millis(900)),
        }
    }
}

/// How far a calibration is.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// Engine being measured.
    pub engine: &'a str,
    /// Kind being measured.
    pub kind: Kind,
    /// Engine-kind pairs done.
    pub done: usize,
    /// Engine-kind pairs in all.
    pub of: usize,
}

/// Measures the engines by the plan, as soon as their devices are up. Blocks for as long as that takes, and keeps up to
/// all cores busy.
/// An engine that cannot do a kind it claims is left out for that kind (its known answers say so).
pub fn calibrate(
    engines: &[Arc<dyn Engine>],
    plan: &Plan,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Profile {
    measure(engines, plan, None, progress)
}

/// As [`calibrate`], with joules where the meter's counters measure some. Reads idle power for half a second first.
pub fn calibrate_metered(
    engines: &[Arc<dyn Engine>],
    plan: &Plan,
    meter: &mut Meter,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Profile {
    measure(engines, plan, Joules::new(meter), progress)
}

fn measure(
    engines: &[Arc<dyn Engine>],
    plan: &Plan,
    mut joules: Option<Joules<'_>>,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Profile {
    // A device that is on its way has no figure, and a profile without it would stay.
    bring_up(engines, plan.kinds, COMES_UP_WITHIN, &|| false);
    let start = Instant::now();
    let mut profile = Profile::empty(engines);
    profile.quick = plan.within.is_some();
    let pairs: Vec<(&Arc<dyn Engine>, Kind)> = plan
        .kinds
        .iter()
        .flat_map(|kind| engines.iter().map(move |engine| (engine, kind)))
        .filter(|(engine, kind)| engine.description().kinds().contains(*kind))
        .collect();
    for (done, (engine, kind)) in pairs.iter().enumerate() {
        if plan.within.is_some_and(|within| start.elapsed() >= within) {
            break;
        }
        let name = engine.description().name;
        progress(Progress { engine: name, kind: *kind, done, of: pairs.len() });
        let before = profile.points.len();
        measure_kind(engine, *kind, plan, &mut joules, &mut profile.points);
        let alone: Vec<(f64, f64)> = profile.points[before..]
            .iter()
            .filter(|point| point.concurrency == 1 && point.batch == 1)
            .map(|point| (point.bytes as f64, point.ns))
            .collect();
        if let Some((setup_ns, slope, error)) = fit(&alone) {
            profile.fits.push(Fit {
                engine: name.to_owned(),
                kind: kind.name().to_owned(),
                setup_ns,
                bytes_per_second: (slope > 0.0).then(|| 1e9 / slope),
                error,
            });
        }
    }
    if profile.points.iter().any(|point| point.energy_nj.is_some()) {
        profile.energy = joules.map(|joules| joules.note);
    }
    profile
}

/// A meter whose counters measure the processors, and what they say of the idle machine.
struct Joules<'a> {
    meter: &'a mut Meter,
    start: Instant,
    idle: Reading,
    note: EnergyNote,
}

/// How long idle power is watched.
const IDLE: Duration = Duration::from_millis(500);
/// Counters step in time (RAPL each millisecond): a shorter window would be mostly rounding.
const LEAST_WINDOW: Duration = Duration::from_millis(20);

impl<'a> Joules<'a> {
    /// `None` if the meter measures no processor, or only in part.
    fn new(meter: &'a mut Meter) -> Option<Joules<'a>> {
        let start = Instant::now();
        meter.start(0);
        thread::sleep(IDLE);
        let idle = meter.finish(start.elapsed().as_nanos() as u64);
        let total = idle.total().filter(|_| idle.has_processor())?;
        if total.value.quality() != Quality::Measured || total.value.at_least().is_some() {
            return None;
        }
        let note = EnergyNote {
            sources: total.sources.iter().map(|source| (*source).to_owned()).collect(),
            boundaries: total.boundaries,
            parts: total.parts,
            quality: Quality::Derived,
            idle_w: total.value.joules() / idle.window.seconds(),
        };
        Some(Joules { meter, start, idle, note })
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Nanojoules above idle of one request, one after the other for a while. `None` if the counters gave nothing
    /// whole or the machine was no busier than when idle.
    fn of(&mut self, engine: &dyn Engine, request: &OwnedRequest, per_point: Duration) -> Option<f64> {
        let class = engine.description().class;
        if !class.is_cpu() && class != EngineClass::Gpu {
            return None; // Neither these counters nor we see an accelerator's joules; its completions may say.
        }
        let window = LEAST_WINDOW.max(6 * per_point);
        let now = self.now();
        self.meter.start(now);
        let done = repeat(engine, request, window).ok()?;
        let reading = self.meter.finish(self.now());
        let above = reading.total_above(&self.idle)?.value;
        let nanojoules = above.joules() * 1e9 / done as f64;
        (above.at_least().is_none() && nanojoules > 0.0).then_some(nanojoules)
    }
}

/// Does a request again and again for a while: how often.
fn repeat(engine: &dyn Engine, request: &OwnedRequest, window: Duration) -> Result<u64, Error> {
    let start = Instant::now();
    let mut done = 0;
    if !engine.description().inline.contains(request.kind) {
        let ns = time_queued(engine, request, 1, window)?;
        return Ok((start.elapsed().as_nanos() as f64 / ns).max(1.0) as u64);
    }
    let mut mine = copy_of(request);
    while done == 0 || start.elapsed() < window {
        for _ in 0..8 {
            engine.execute(&mut mine.view())?;
        }
        done += 8;
    }
    Ok(done)
}

fn measure_kind(
    engine: &Arc<dyn Engine>,
    kind: Kind,
    plan: &Plan,
    joules: &mut Option<Joules<'_>>,
    points: &mut Vec<Point>,
) {
    let sizes: Vec<Option<usize>> =
        if has_sizes(kind) { plan.sizes.iter().copied().map(Some).collect() } else { vec![None] };
    for concurrency in &plan.concurrency {
        for size in &sizes {
            let Some(request) = sample(engine.as_ref(), kind, *size) else { continue };
            let bytes = request.input.len();
            let measured = if engine.description().inline.contains(kind) {
                time_inline(engine, &request, *concurrency, plan.per_point)
            } else {
                time_queued(engine.as_ref(), &request, *concurrency, plan.per_point)
            };
            if let Ok(ns) = measured {
                let energy_nj = joules
                    .as_mut()
                    .filter(|_| *concurrency == 1)
                    .and_then(|joules| joules.of(engine.as_ref(), &request, plan.per_point));
                let (engine, kind) = (engine.description().name.to_owned(), kind.name().to_owned());
                points.push(Point {
                    engine,
                    kind,
                    concurrency: *concurrency,
                    batch: 1,
                    bytes,
                    ns,
                    energy_nj,
                });
            }
        }
    }
    let middle = sizes.get(sizes.len() / 2).copied().flatten();
    measure_batches(engine.as_ref(), kind, middle, plan.per_point, points);
}

/// Batches that are measured of an engine that does so many together: two, half a pass, one more, and a whole one.
/// Between them the table is a line; a pass has no step but at its half.
fn batches(width: u16) -> Vec<u16> {
    let mut counts: Vec<u16> =
        [2, width / 2, width / 2 + 1, width].map(|count| count.min(BATCH_MOST)).to_vec();
    counts.retain(|count| (2..=width).contains(count));
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// Largest batch that is measured.
const BATCH_MOST: u16 = 16;

/// What several requests take together, at one size, where the engine has a width for the kind.
fn measure_batches(
    engine: &dyn Engine,
    kind: Kind,
    size: Option<usize>,
    budget: Duration,
    points: &mut Vec<Point>,
) {
    let counts = batches(engine.width(kind));
    if counts.is_empty() || !engine.description().inline.contains(kind) {
        return;
    }
    let Some(request) = sample(engine, kind, size) else { return };
    let (name, bytes) = (engine.description().name, request.input.len());
    for batch in counts {
        let Ok(ns) = time_batch(engine, &request, batch, budget) else { continue };
        let (engine, kind) = (name.to_owned(), kind.name().to_owned());
        points.push(Point { engine, kind, concurrency: 1, batch, bytes, ns, energy_nj: None });
    }
}

/// Whether a kind's cost depends on an input length that callers choose.
fn has_sizes(kind: Kind) -> bool {
    use Family::{Cipher, Compress, Digest, Mac, Open, Seal};
    // An extendable output is made of an input of any length, as a hash is.
    matches!(kind.info().family, Cipher | Seal | Open | Digest | Mac | Compress)
        || kind.info().group == Group::Sha3
}

/// A request of a kind and size that an engine can really do: the first known answer with its input replaced.
/// For kinds that open, the input is sealed first. `None` if that does not work on this engine.
pub fn sample(engine: &dyn Engine, kind: Kind, size: Option<usize>) -> Option<OwnedRequest> {
    let mut request = known_answers(kind).into_iter().next()?.request;
    request.class = LatencyClass::Bulk;
    let Some(size) = size else { return Some(request) };
    request.input = match kind.info().family {
        Family::Compress => text(size),
        _ => (0..size).map(|at| (at.wrapping_mul(167) >> 3) as u8).collect(),
    };
    let room = match kind.info().family {
        Family::Compress => size + size / 8 + 64,
        Family::Derive => request.output.len(),
        _ => kind.info().output.unwrap_or(size),
    };
    request.output = vec![0; room];
    if let (Family::Open, Some(seal)) = (kind.info().family, kind.info().undoes) {
        let mut sealed =
            OwnedRequest::new(seal, request.key.clone(), std::mem::take(&mut request.input), size);
        sealed.nonce = request.nonce.clone();
        sealed.aad = request.aad.clone();
        once(engine, &mut sealed).ok()?;
        request.input = std::mem::take(&mut sealed.output);
        request.tag = sealed.tag;
    }
    Some(request)
}

/// Something like prose, so that deflate has its usual work to do.
fn text(size: usize) -> Vec<u8> {
    const WORDS: [&str; 16] = [
        "energy ",
        "the ",
        "record ",
        "of ",
        "server ",
        "and ",
        "stream, ",
        "to ",
        "a ",
        "cipher ",
        "window. ",
        "in ",
        "block ",
        "measured ",
        "is ",
        "latency ",
    ];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut out = Vec::with_capacity(size + 16);
    while out.len() < size {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        out.extend_from_slice(WORDS[(state >> 60) as usize].as_bytes());
    }
    out.truncate(size);
    out
}

/// Does one request whichever way the engine does it.
fn once(engine: &dyn Engine, request: &mut OwnedRequest) -> Result<usize, Error> {
    if engine.description().inline.contains(request.kind) {
        return engine.execute(&mut request.view());
    }
    let start = Instant::now();
    let now = || start.elapsed().as_nanos() as u64;
    let mut instance = engine.open(now())?;
    let copy = copy_of(request);
    instance.submit(Token(0), copy, now()).map_err(|refused| refused.error)?;
    instance.flush(now());
    let mut result = None;
    while result.is_none() && start.elapsed() < LONGEST_WAIT {
        instance.poll(now(), &mut |mut completion| {
            request.output = std::mem::take(&mut completion.request.output);
            request.tag = completion.request.tag;
            result = Some(completion.result);
        });
        std::hint::spin_loop();
    }
    result.unwrap_or(Err(Error::Device(wattlock_core::Fault::Silent)))
}

/// Longest wait for one answer while measuring; an engine slower than this has no figure.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

fn copy_of(request: &OwnedRequest) -> OwnedRequest {
    let mut copy =
        OwnedRequest::new(request.kind, request.key.clone(), request.input.clone(), request.output.len());
    copy.nonce = request.nonce.clone();
    copy.aad = request.aad.clone();
    copy.tag = request.tag;
    copy.options = request.options;
    copy.class = request.class;
    copy
}

/// Nanoseconds of a request.
fn time_alone(engine: &dyn Engine, request: &OwnedRequest, budget: Duration) -> Result<f64, Error> {
    let mut mine = copy_of(request);
    median(budget, || engine.execute(&mut mine.view()).map(drop))
}

/// Nanoseconds of so many requests together.
fn time_batch(
    engine: &dyn Engine,
    request: &OwnedRequest,
    count: u16,
    budget: Duration,
) -> Result<f64, Error> {
    let mut mine: Vec<OwnedRequest> = (0..count).map(|_| copy_of(request)).collect();
    let mut items: Vec<Item<'_>> = mine.iter_mut().map(|request| Item::new(request.view())).collect();
    median(budget, || {
        engine.execute_all(&mut items);
        items.iter().try_for_each(|item| item.result.as_ref().map(drop).map_err(Clone::clone))
    })
}

/// Does something in five parts and takes the median part: nanoseconds of one time.
fn median(budget: Duration, mut execute: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    execute()?;
    let first = Instant::now();
    execute()?;
    let one = first.elapsed().max(Duration::from_nanos(20));
    if one >= budget {
        return Ok(one.as_nanos() as f64);
    }
    let rounds = (budget.as_nanos() / 5 / one.as_nanos()).max(1) as u32;
    let mut parts = [0.0; 5];
    for part in &mut parts {
        let start = Instant::now();
        for _ in 0..rounds {
            execute()?;
        }
        *part = start.elapsed().as_nanos() as f64 / f64::from(rounds);
    }
    parts.sort_by(f64::total_cmp);
    Ok(parts[2])
}

fn time_inline(
    engine: &Arc<dyn Engine>,
    request: &OwnedRequest,
    concurrency: u16,
    budget: Duration,
) -> Result<f64, Error> {
    if concurrency <= 1 {
        return time_alone(engine.as_ref(), request, budget);
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let others: Vec<_> = (1..concurrency)
            .map(|_| {
                let mut mine = copy_of(request);
                let stop = &stop;
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) && engine.execute(&mut mine.view()).is_ok() {}
                })
            })
            .collect();
        let measured = time_alone(engine.as_ref(), request, budget);
        stop.store(true, Ordering::Relaxed);
        drop(others);
        measured
    })
}

/// Keeps `concurrency` requests in flight on one instance; mean time from submission to completion.
fn time_queued(
    engine: &dyn Engine,
    request: &OwnedRequest,
    concurrency: u16,
    budget: Duration,
) -> Result<f64, Error> {
    let start = Instant::now();
    let now = || start.elapsed().as_nanos() as u64;
    let mut instance: Box<dyn Instance> = engine.open(now())?;
    if u32::from(concurrency) > instance.window().requests {
        return Err(Error::Full);
    }
    let mut spare: Vec<OwnedRequest> = (0..concurrency).map(|_| copy_of(request)).collect();
    let (mut serial, mut done, mut total_ns, mut failed) = (0_u64, 0_u64, 0_u64, None);
    let mut began = std::collections::HashMap::new();
    let mut in_flight = 0_u32;
    while (start.elapsed() < budget || done < u64::from(concurrency)) && failed.is_none() {
        if start.elapsed() > LONGEST_WAIT + budget {
            return Err(Error::Device(wattlock_core::Fault::Silent));
        }
        while let Some(request) = spare.pop() {
            serial += 1;
            let at = now();
            match instance.submit(Token(serial), request, at) {
                Ok(()) => {
                    began.insert(serial, at);
                    in_flight += 1;
                }
                Err(refused) if in_flight > 0 && refused.error == Error::Full => {
                    spare.push(refused.request);
                    break;
                }
                Err(refused) => return Err(refused.error),
            }
        }
        instance.flush(now());
        let at = now();
        instance.poll(at, &mut |completion| {
            in_flight -= 1;
            done += 1;
            total_ns += at.saturating_sub(began.remove(&completion.token.0).unwrap_or(at));
            failed = failed.or(completion.result.err());
            spare.push(completion.request);
        });
        std::hint::spin_loop();
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(total_ns as f64 / done as f64),
    }
}

/// Least squares of `ns = setup + slope * bytes` on relative deviations: weights `1 / ns^2`. Returns setup, slope and
/// the root mean square relative deviation; a slope or set-up below zero is taken as zero and the other refitted.
fn fit(points: &[(f64, f64)]) -> Option<(f64, f64, f64)> {
    if points.is_empty() {
        return None;
    }
    let sums = points.iter().fold([0.0_f64; 5], |s, (x, y)| {
        let w = 1.0 / (y * y).max(1e-9);
        [s[0] + w, s[1] + w * x, s[2] + w * y, s[3] + w * x * x, s[4] + w * x * y]
    });
    let [w, x, y, xx, xy] = sums;
    let determinant = w * xx - x * x;
    let several = points.iter().any(|point| point.0 != points[0].0);
    let (mut setup, mut slope) = if several && determinant > 0.0 {
        ((xx * y - x * xy) / determinant, (w * xy - x * y) / determinant)
    } else {
        (y / w, 0.0)
    };
    if slope < 0.0 {
        (setup, slope) = (y / w, 0.0);
    } else if setup < 0.0 {
        (setup, slope) = (0.0, xy / xx);
    }
    let squares: f64 = points.iter().map(|(x, y)| ((setup + slope * x - y) / y).powi(2)).sum();
    Some((setup, slope, (squares / points.len() as f64).sqrt()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fit_recovers_an_exact_line_and_says_so() {
        let points: Vec<(f64, f64)> = [64.0, 4096.0, 1e6].iter().map(|x| (*x, 150.0 + 0.25 * x)).collect();
        let (setup, slope, error) = fit(&points).unwrap();
        assert!((setup - 150.0).abs() < 1e-6 && (slope - 0.25).abs() < 1e-9 && error < 1e-9);
    }

    #[test]
    fn fit_of_one_size_is_a_constant_and_never_negative() {
        assert_eq!(fit(&[(256.0, 900.0)]).unwrap().1, 0.0);
        let (setup, slope, _) = fit(&[(64.0, 10.0), (1024.0, 400.0), (4096.0, 1700.0)]).unwrap();
        assert!(setup >= 0.0 && slope > 0.0);
        assert!(fit(&[]).is_none());
    }

    /// Plain code that says it does so many requests together, and notes how many it was given.
    struct Wide {
        inner: wattlock_cpu::software::Software,
        width: u16,
        given: std::sync::Mutex<std::collections::BTreeSet<usize>>,
    }

    impl Engine for Wide {
        fn description(&self) -> &wattlock_core::Description {
            self.inner.description()
        }

        fn execute(&self, request: &mut wattlock_core::Request<'_>) -> Result<usize, Error> {
            self.inner.execute(request)
        }

        fn width(&self, _: Kind) -> u16 {
            self.width
        }

        fn execute_all(&self, items: &mut [Item<'_>]) {
            self.given.lock().unwrap().insert(items.len());
            self.inner.execute_all(items);
        }
    }

    #[test]
    fn batches_are_measured_together_where_an_engine_has_a_width_and_nowhere_else() {
        for (width, batches) in [(1, vec![]), (2, vec![2]), (8, vec![2, 4, 5, 8]), (64, vec![2, 16])] {
            let inner = wattlock_cpu::software::Software::new();
            let wide = Arc::new(Wide { inner, width, given: Default::default() });
            let engines: [Arc<dyn Engine>; 1] = [wide.clone()];
            let (kind, name) = (Kind::Sha256, engines[0].description().name);
            let plan = Plan {
                kinds: KindSet::of(&[kind]),
                sizes: vec![64, 1024],
                concurrency: vec![1],
                per_point: Duration::from_micros(100),
                within: None,
            };
            let profile = calibrate(&engines, &plan, &mut |_| {});
            let given: Vec<usize> = wide.given.lock().unwrap().iter().copied().collect();
            assert_eq!(given, batches, "width {width}");
            let measured = profile.batches(name, kind);
            let counts: Vec<usize> = measured.iter().map(|(count, _)| usize::from(*count)).collect();
            assert_eq!(counts.get(1..).unwrap_or_default(), batches, "one alone comes first");
            assert!(measured.iter().all(|(_, ns)| *ns > 0.0));
            assert_eq!(profile.curve(name, kind).len(), 2, "batches are no points of the curve");
        }
    }

    #[test]
    fn sample_text_compresses_like_text() {
        let text = text(65_536);
        assert_eq!(text.len(), 65_536);
        assert!(text.iter().all(|byte| byte.is_ascii()));
    }
}
