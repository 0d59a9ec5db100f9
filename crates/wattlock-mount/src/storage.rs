//! From where on a device is worth a write into an encrypted volume, measured through the door: files of a volume, each
//! written by a thread of a mount's, by the CPU alone and by the device alone.
//!
//! Both sides of a point are measured in turn, and the best of the turns counts: a neighbour's burst of work on a shared
//! machine only ever takes time.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Barrier;
use std::time::Duration;

use wattlock::policy::{EngineClass, Settings};
use wattlock::profile::{Storage, Written};
use wattlock::{Dispatcher, Runtime};
use wattlock_core::{Kind, Nanos};
use wattlock_fs::Error;
use wattlock_fs::content::Age;
use wattlock_fs::store::Place;
use wattlock_fs::volume::{NameMode, Volume};

use crate::backing::Backing;
use crate::mount::threads;
use crate::sealed::{Engines, Sealed, SealedContent};

/// The policies that leave everything to one side.
const CPU: &str = "instruction";
const DEVICE: &str = "offload";
/// What a write consists of, for the engines.
const KIND: Kind = Kind::Aes256GcmSeal;
/// Bytes of a chunk: what `fs init` makes.
const CHUNK: usize = 4096;
/// A file is written from its beginning again where it has so many bytes.
const LONGEST: usize = 4 << 20;
/// The write by which feeding threads are counted, as published.
const FEEDING: usize = 32 << 10;
/// How often both sides of a point are measured.
const TURNS: u32 = 3;
/// How long a device may take until it does a write; a GPU's context is up in a second or two.
const PROOF: Duration = Duration::from_secs(10);
/// Share of a point's chunks that the device must have done itself.
const LEAST_SHARE: f64 = 0.9;
/// Feeding threads with which each brings this share of the best are as good as the best.
const AS_GOOD: f64 = 0.95;

/// What to measure, and for how long.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Bytes of a write, ascending.
    pub blocks: Vec<usize>,
    /// Files that are written at once, ascending; more than a mount has threads are never.
    pub files: Vec<u16>,
    /// Most feeding threads.
    pub feeders: u16,
    /// Time for both sides of a point.
    pub per_point: Duration,
    /// When to stop, whatever is left.
    pub within: Duration,
}

impl Plan {
    /// Every size by powers of two, in less than a minute.
    pub fn full() -> Plan {
        let threads = threads(None) as u16;
        let files = [1, 2, 3, 4, 6, 8, 12, 16].into_iter().filter(|files| *files <= threads).collect();
        Plan {
            blocks: (0..9).map(|step| CHUNK << step).collect(),
            files,
            feeders: threads,
            per_point: Duration::from_millis(400),
            within: Duration::from_secs(50),
        }
    }

    /// A few sizes, in some seconds.
    pub fn quick() -> Plan {
        let full = Plan::full();
        let (first, last) = (full.files.first(), full.files.last());
        let mut files: Vec<u16> = first.into_iter().chain(last).copied().collect();
        files.dedup();
        Plan {
            blocks: full.blocks.into_iter().step_by(2).collect(),
            files,
            per_point: Duration::from_millis(100),
            within: Duration::from_secs(10),
            ..full
        }
    }
}

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unmeasured {
    /// Nothing to measure.
    #[error("no device here seals what volumes are written with ({})", KIND.name())]
    NoDevice,
    /// It did not do one write in the time that it had.
    #[error("{0} does nothing: it gives no answers, or wrong ones")]
    Silent(&'static str),
    /// Not all was measured in the time that there is, and a part of it says nothing.
    #[error("this takes longer than {0:?} here; ask for less time a point")]
    TooSlow(Duration),
    /// The caller's `stop` said so.
    #[error("interrupted")]
    Interrupted,
    /// The volume.
    #[error(transparent)]
    Volume(#[from] Error),
}

/// The name of the device that a runtime's volumes would be written with.
///
/// # Errors
/// [`Unmeasured::NoDevice`].
pub fn device(runtime: &Runtime) -> Result<&'static str, Unmeasured> {
    let all = || runtime.engines().iter().map(|engine| engine.description());
    let class = |class| all().find(move |one| one.class == class && one.queued.contains(KIND));
    let found = class(EngineClass::Accelerator).or_else(|| class(EngineClass::Gpu));
    found.map(|one| one.name).ok_or(Unmeasured::NoDevice)
}

/// Measures the runtime's device. The runtime's policy is another one afterwards. `folder` is empty, and is not when this
/// is done: a volume whose key nobody has. `progress` hears how many of how many points are done.
///
/// # Errors
/// [`Unmeasured`].
pub fn calibrate(
    runtime: &Runtime,
    folder: &Path,
    plan: &Plan,
    stop: &dyn Fn() -> bool,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Storage, Unmeasured> {
    let name = device(runtime)?;
    let mut bench =
        Bench::new(runtime, folder, name, plan.files.last().copied().max(Some(plan.feeders)), stop)?;
    let (start, points) = (runtime.clock().now(), plan.blocks.len() * plan.files.len());
    let (mut done, of) = (0, points + usize::from(plan.feeders));
    let mut go_on = || {
        if stop() {
            return Err(Unmeasured::Interrupted);
        }
        progress(done, of);
        done += 1;
        match runtime.clock().now().saturating_sub(start) < plan.within.as_nanos() as Nanos {
            true => Ok(()),
            false => Err(Unmeasured::TooSlow(plan.within)),
        }
    };
    // First: it is short.
    let mut fed = Vec::new();
    for files in 1..=plan.feeders {
        go_on()?;
        fed.push(bench.point(files, FEEDING, plan.per_point)?.device.unwrap_or(0.0));
    }
    let mut written = Vec::new();
    for bytes in &plan.blocks {
        for files in &plan.files {
            go_on()?;
            written.push(bench.point(*files, *bytes, plan.per_point)?);
        }
    }
    Ok(Storage { device: name.to_owned(), from: turning(&written), feeders: feeders(&fed), written, fed })
}

/// The size and the number of files from which the device is to have writes, so that the measured ones lose least; `None`:
/// it is to have none. Where several lose as little, the one that sends least.
pub fn turning(written: &[Written]) -> Option<(usize, u16)> {
    let loss = |from: Option<(usize, u16)>| -> f64 {
        // What the device did not do itself says nothing of it.
        let of = |one: &Written| {
            let Some(device) = one.device else { return 0.0 };
            let sent = from.is_some_and(|(bytes, files)| one.bytes >= bytes && one.files >= files);
            let used = if sent { device } else { one.cpu };
            (one.cpu.max(device).max(1.0) / used.max(1.0)).ln()
        };
        written.iter().map(of).sum()
    };
    let mut candidates: Vec<_> =
        written.iter().flat_map(|size| written.iter().map(|count| Some((size.bytes, count.files)))).collect();
    candidates.push(None);
    // None is the least; then the largest size and the most files.
    candidates.sort_unstable_by_key(|from| from.map(|(bytes, files)| std::cmp::Reverse((bytes, files))));
    candidates.dedup();
    let losses = candidates.into_iter().map(|from| (loss(from), from));
    losses.reduce(|best, next| if next.0 < best.0 - 1e-9 { next } else { best })?.1
}

/// Of feeding threads, the most with which each brings about as much as at best.
pub fn feeders(fed: &[f64]) -> u16 {
    let each = || fed.iter().zip(1_u16..).map(|(all, count)| (all / f64::from(count), count));
    let best = each().map(|one| one.0).fold(0.0, f64::max);
    let good = each().skip_while(|one| one.0 < AS_GOOD * best).take_while(|one| one.0 >= AS_GOOD * best);
    good.map(|one| one.1).last().unwrap_or(1)
}

/// Nobody asks the volume that is measured.
struct Nobody;

impl Engines for Nobody {
    fn set(&self, _: &Runtime, _: &[String]) -> Result<(), String> {
        Ok(())
    }

    fn describe(&self, _: &Runtime) -> Vec<String> {
        Vec::new()
    }
}

/// A file and the thread that writes it.
struct Writer {
    file: SealedContent,
    thread: Dispatcher,
}

struct Bench<'a> {
    sealed: Sealed,
    runtime: &'a Runtime,
    /// Where the device is among the engines.
    device: usize,
    writers: Vec<Writer>,
}

impl<'a> Bench<'a> {
    fn new(
        runtime: &'a Runtime,
        folder: &Path,
        device: &'static str,
        writers: Option<u16>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Bench<'a>, Unmeasured> {
        let at = runtime.engines().iter().position(|engine| engine.description().name == device);
        let volume = Volume::generate(CHUNK, NameMode::Plain)?;
        let (sealed, _) = Sealed::open(
            folder,
            &volume,
            (runtime.clone(), Box::new(Nobody)),
            false,
            (stop, &mut Age::go_on),
        )?;
        let mut bench = Bench { sealed, runtime, device: at.unwrap_or_default(), writers: Vec::new() };
        bench.take(DEVICE);
        for number in 0..usize::from(writers.unwrap_or(1)) {
            let mut writer = bench.writer(folder, number)?;
            bench.prove(&mut writer, device, stop)?;
            bench.writers.push(writer);
        }
        Ok(bench)
    }

    fn writer(&self, folder: &Path, number: usize) -> Result<Writer, Error> {
        let mut thread = self.sealed.thread(number);
        let name = format!("{number}");
        let failed = |error| Error::io("making a file", error);
        let file = File::options().read(true).write(true).create_new(true).open(folder.join(&name));
        let file = file.map_err(failed)?;
        let stat = file.metadata().map_err(failed)?;
        let place = Place { inode: (stat.dev(), stat.ino()), path: name.into() };
        let file = {
            let _creating = self.sealed.before_create(&mut thread)?;
            self.sealed.create_content(file, place, &mut thread)?
        };
        Ok(Writer { file, thread })
    }

    /// Until a device has given a thread its known answers, the CPU does what it is to do.
    fn prove(
        &self,
        writer: &mut Writer,
        device: &'static str,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), Unmeasured> {
        let (start, before) = (self.runtime.clock().now(), writer.thread.done_by(self.device, KIND));
        while writer.thread.done_by(self.device, KIND) == before {
            if stop() {
                return Err(Unmeasured::Interrupted);
            }
            if self.runtime.clock().now().saturating_sub(start) > PROOF.as_nanos() as Nanos {
                return Err(Unmeasured::Silent(device));
            }
            self.sealed.write(&writer.file, &[1; 16 * CHUNK], 0, &mut writer.thread)?;
        }
        Ok(())
    }

    fn take(&self, policy: &str) {
        let set = self.runtime.set_policy(policy, Settings::default());
        debug_assert!(set.is_ok(), "both are in the catalogue");
    }

    fn point(&mut self, files: u16, bytes: usize, time: Duration) -> Result<Written, Error> {
        let (mut cpu, mut device) = (0.0_f64, None);
        for _ in 0..TURNS {
            self.take(CPU);
            cpu = cpu.max(self.bandwidth(files, bytes, time / (2 * TURNS))?.0);
            self.take(DEVICE);
            let (rate, share) = self.bandwidth(files, bytes, time / (2 * TURNS))?;
            if share >= LEAST_SHARE {
                device = Some(device.map_or(rate, |best: f64| best.max(rate)));
            }
        }
        Ok(Written { files, bytes, cpu, device })
    }

    /// Bytes a second of so many writers together, and the share of the chunks that the device did.
    fn bandwidth(&mut self, files: u16, bytes: usize, time: Duration) -> Result<(f64, f64), Error> {
        let writers = &mut self.writers[..usize::from(files)];
        let (sealed, clock, barrier) = (&self.sealed, self.runtime.clock(), Barrier::new(writers.len()));
        let (device, time) = (self.device, time.as_nanos() as Nanos);
        let run = |writer: &mut Writer| {
            let content = vec![1; bytes];
            let (mut done, mut at) = (0_u64, 0);
            let before = writer.thread.done_by(device, KIND);
            barrier.wait();
            let start = clock.now();
            loop {
                sealed.write(&writer.file, &content, at as u64, &mut writer.thread)?;
                done += bytes as u64;
                at = if at + 2 * bytes <= LONGEST { at + bytes } else { 0 };
                let ns = clock.now().saturating_sub(start);
                if ns >= time {
                    let by_device = writer.thread.done_by(device, KIND).wrapping_sub(before);
                    return Ok((done, done as f64 * 1e9 / ns.max(1) as f64, by_device));
                }
            }
        };
        let (run, mut sum) = (&run, (0, 0.0, 0));
        let ended: Vec<Result<(u64, f64, u64), Error>> = std::thread::scope(|scope| {
            let threads: Vec<_> = writers.iter_mut().map(|writer| scope.spawn(move || run(writer))).collect();
            let ended = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
            ended.map(|ended| ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        for one in ended {
            let (done, rate, by_device) = one?;
            sum = (sum.0 + done, sum.1 + rate, sum.2 + by_device);
        }
        Ok((sum.1, sum.2 as f64 * CHUNK as f64 / sum.0.max(1) as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use wattlock::{Builder, Clock, Profile};
    use wattlock_core::{Description, Engine, Request};
    use wattlock_cpu::instruction::Instruction;
    use wattlock_emul::{Effect, Emulated, Fault, Model, Pace, Trigger};

    /// Instructions that take 10 us of virtual time a chunk.
    struct Slow(Instruction, Arc<AtomicU64>);

    impl Engine for Slow {
        fn description(&self) -> &Description {
            self.0.description()
        }

        fn execute(&self, request: &mut Request<'_>) -> Result<usize, wattlock_core::Error> {
            self.1.fetch_add(10_000 * request.shape().bytes.div_ceil(CHUNK) as u64, Relaxed);
            self.0.execute(request)
        }
    }

    /// A card that takes 55 us for any chunk and has room for all of a write: against [`Slow`] it wins from six chunks on,
    /// so of powers of two from eight. Each look at the clock takes a microsecond.
    fn builder(faults: Vec<Fault>) -> Builder {
        let time = Arc::new(AtomicU64::new(0));
        let model = "name even\nwindow 512 requests 16777216 bytes\nwidth 1\npool sealing 512 servers\n\
                     table aes-256-gcm-seal 4096:55000\n";
        let card = Emulated::new(Model::parse(model).unwrap(), Arc::new(Instruction::new()), Pace::Stepped);
        let slow = Arc::new(Slow(Instruction::new(), time.clone()));
        Builder::of(vec![slow, Arc::new(card.unwrap().with_faults(faults))])
            .profile(Profile::built_in())
            .verify_one_in(0)
            .telemetry(false)
            .clock(Clock::given(move || time.fetch_add(1000, Relaxed)))
    }

    fn plan() -> Plan {
        Plan {
            blocks: (0..7).map(|step| CHUNK << step).collect(),
            files: vec![1],
            feeders: 1,
            per_point: Duration::from_millis(12),
            within: Duration::from_secs(1000),
        }
    }

    #[test]
    fn a_turning_point_known_by_construction_is_found_and_aca_sds_goes_by_it() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = builder(Vec::new()).build().unwrap();
        let mut points = 0;
        let found = calibrate(&runtime, folder.path(), &plan(), &|| false, &mut |_, of| {
            points += 1;
            assert_eq!(of, 8);
        });
        let found = found.unwrap();
        assert_eq!((found.from, found.feeders, points), (Some((8 * CHUNK, 1)), 1, 8), "{found:?}");
        let by_card: Vec<bool> = found.written.iter().map(|one| one.device.is_some()).collect();
        assert_eq!(
            by_card,
            [false, true, true, true, true, true, true],
            "a door does one chunk in the call: {found:?}"
        );

        // From a file, as every command has it.
        let path = folder.path().join("profile.json");
        let profile = Profile { storage: Some(found), ..Profile::empty(runtime.engines()) };
        profile.save(&path).unwrap();
        let idle = Settings::from_pairs(["aca-sds.idle_permille=1000"]).unwrap();
        let profile = Profile::load(&path).unwrap();
        let runtime = builder(Vec::new()).profile(profile).policy("aca-sds", idle.clone()).build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut bench = Bench::new(&runtime, folder.path(), "emulated", Some(1), &|| false).unwrap();
        let mut by_card = |settings: &Settings, bytes: usize| {
            runtime.set_policy("aca-sds", settings.clone()).unwrap();
            let Writer { file, thread } = &mut bench.writers[0];
            let before = thread.done_by(bench.device, KIND);
            bench.sealed.write(file, &vec![3; bytes], 0, thread).unwrap();
            // The end of the file may be one chunk more.
            (thread.done_by(bench.device, KIND) - before).min((bytes / CHUNK) as u64)
        };
        assert_eq!([1, 4, 7, 8, 64].map(|chunks| by_card(&idle, chunks * CHUNK)), [0, 0, 0, 8, 64]);
        let set = Settings { aca_sds_beta_bytes: Some(CHUNK), ..idle.clone() };
        assert_eq!(by_card(&set, 2 * CHUNK), 2, "settings say otherwise");
        let set = Settings { aca_sds_alpha: Some(1), ..idle };
        assert_eq!(by_card(&set, 64 * CHUNK), 0, "one file is written");
    }

    #[test]
    fn without_a_device_or_with_one_that_errs_nothing_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let none = Builder::of(vec![Arc::new(Instruction::new())]).telemetry(false).build().unwrap();
        let measured = calibrate(&none, folder.path(), &plan(), &|| false, &mut |_, _| {});
        assert!(matches!(measured, Err(Unmeasured::NoDevice)), "{measured:?}");
        let wrong = builder(vec![Fault::new(Effect::WrongResult, Trigger::Every(1))]).build().unwrap();
        let measured = calibrate(&wrong, folder.path(), &plan(), &|| false, &mut |_, _| {});
        assert!(matches!(measured, Err(Unmeasured::Silent("emulated"))), "{measured:?}");
        let short = Plan { within: Duration::ZERO, ..plan() };
        let (runtime, folder) = (builder(Vec::new()).build().unwrap(), tempfile::tempdir().unwrap());
        let measured = calibrate(&runtime, folder.path(), &short, &|| false, &mut |_, _| {});
        assert!(matches!(measured, Err(Unmeasured::TooSlow(_))), "a part says nothing: {measured:?}");
        let measured = calibrate(
            &builder(Vec::new()).build().unwrap(),
            tempfile::tempdir().unwrap().path(),
            &plan(),
            &|| true,
            &mut |_, _| {},
        );
        assert!(measured.is_err(), "{measured:?}");
    }

    /// Bandwidths of a card whose 12 engines take so long, and of cores that take so long, for each chunk.
    fn table(device: fn(usize, u16) -> Option<f64>) -> Vec<Written> {
        let sizes = (0..9).map(|step| CHUNK << step);
        let at = |bytes| [1, 2, 4, 8, 16].map(|files| (bytes, files));
        let cpu = |files: u16| f64::from(files.min(8)) * 400e6;
        sizes
            .flat_map(at)
            .map(|(bytes, files)| Written { files, bytes, cpu: cpu(files), device: device(bytes, files) })
            .collect()
    }

    #[test]
    fn the_turning_point_is_where_the_rule_loses_least() {
        // Many files are needed, whatever the size.
        assert_eq!(turning(&table(|_, files| Some(if files >= 4 { 4e9 } else { 1e8 }))), Some((CHUNK, 4)));
        assert_eq!(
            turning(&table(|bytes, files| { Some(if files >= 2 && bytes >= 65_536 { 4e9 } else { 1e8 }) })),
            Some((65_536, 2))
        );
        assert_eq!(turning(&table(|_, _| Some(1e8))), None);
        assert_eq!(turning(&table(|_, _| None)), None);
        assert_eq!(turning(&table(|_, _| Some(1e10))), Some((CHUNK, 1)));
        assert_eq!(turning(&[]), None);
        // One that is no better at a single point is not sent it for nothing; but an outlier does not move the rule.
        let mut table = table(|bytes, _| Some(if bytes >= 16_384 { 9e9 } else { 1e8 }));
        table.iter_mut().find(|one| one.bytes == 65_536).unwrap().device = Some(3e8);
        assert_eq!(turning(&table), Some((16_384, 1)));
    }

    #[test]
    fn feeding_threads_are_the_most_with_which_each_brings_as_much_as_at_best() {
        // As published: 464.5 MB/s for each of four cores, 416.4 for each of five.
        let published = [460e6, 925e6, 1.39e9, 4.0 * 464.5e6, 5.0 * 416.4e6, 2.1e9];
        assert_eq!(feeders(&published), 4);
        assert_eq!(feeders(&[1e9]), 1);
        assert_eq!(feeders(&[]), 1);
        assert_eq!(feeders(&[1e9, 1.1e9, 1.2e9]), 1);
    }
}
