//! A mounted volume in memory, and threads that write or read their own file each, past the kernel's page cache: what
//! a call takes is what the volume takes.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::fs::OFlags;
use tempfile::TempDir;
use wattlock_core::samples;
use wattlock_shell::INTERRUPTED;
use wattlock_shell::program::line;
use wattlock_shell::setup::Choice;
use wattlock_shell::text;

use super::answer::{Figures, Measured, Per, cannot};
use super::given::{Given, usage};
use super::{Point, by_board, confined, is_device, refuse_idle_device};
use crate::fs::volume;
use crate::tally::{self, Did, Done, between, engines};

pub const KEYS: &[(&str, &str)] =
    &[("operation", "write"), ("block", "4096"), ("processes", "1"), ("size", "16777216"), ("cpus", "")];

/// A volume's default.
const CHUNK: usize = 4 << 10;
/// Where files lie in memory.
const MEMORY: &str = "/dev/shm";
/// Most that is put where temporary files are: that may be a disk, and is slow to fill.
const ON_DISK_MOST: u64 = 8 << 30;
/// What a volume takes beside its files: the journal above all.
const BESIDE: u64 = 300 << 20;
/// Calls whose times are kept, of all threads.
const KEPT: usize = 1 << 22;

/// A folder with room for so many bytes: in memory, or where temporary files are. Where is noted as `place`.
///
/// # Errors
/// Neither has so much room.
pub fn with_room(given: &mut Given, bytes: u64) -> Result<TempDir> {
    let places = [MEMORY.into(), std::env::temp_dir()];
    let (folder, place) = first_with_room(&places, bytes)?;
    given.note("place", place.display());
    Ok(folder)
}

/// In the first place that has the room, and keeps a sixteenth of it.
fn first_with_room(places: &[PathBuf], bytes: u64) -> Result<(TempDir, &Path)> {
    let mut lacks = Vec::new();
    for place in places {
        let room = rustix::fs::statvfs(place).map_err(anyhow::Error::from);
        let free = room.map(|room| room.f_bavail.saturating_mul(room.f_frsize));
        let made = match &free {
            Ok(_) if bytes > ON_DISK_MOST && place != Path::new(MEMORY) => {
                Err(anyhow!("{} is no memory", place.display()))
            }
            Ok(free) if free / 16 * 15 >= bytes => super::folder(Some(place)),
            Ok(free) => Err(anyhow!("{} has {} of room", place.display(), text::bytes(*free))),
            Err(error) => Err(anyhow!("{}: {error}", place.display())),
        };
        match made {
            Ok(folder) => return Ok((folder, place)),
            Err(why) => lacks.push(line(&why)),
        }
    }
    Err(cannot(format!("{} are needed: {}", text::bytes(bytes), lacks.join(", "))))
}

/// The command line's engines and policy, for another program of ours.
pub fn handed_on(choice: &Choice) -> Vec<String> {
    let mut words = vec!["--policy".to_owned(), choice.policy.clone()];
    words.extend(["--objective".to_owned(), text::typed(&choice.objective)]);
    words.extend(choice.settings.iter().flat_map(|setting| ["--set".to_owned(), setting.clone()]));
    words.extend(choice.emulate.iter().flat_map(|model| ["--emulate".to_owned(), model.clone()]));
    words
}

/// What every thread does.
struct Work<'a> {
    mount: &'a Path,
    writes: bool,
    block: usize,
    size: usize,
    processes: usize,
    time: Duration,
}

/// What a thread did.
#[derive(Default)]
struct Calls {
    count: u64,
    ns: u64,
    latencies: Vec<u64>,
}

pub fn run(given: &mut Given, point: &Point<'_>) -> Result<Measured> {
    let writes = given.one_of("operation", &["write", "read"])? == 0;
    let block = given.bytes("block", 512..=16 << 20)?;
    let processes = given.number("processes", 1..=256_usize)?;
    let size = given.bytes("size", 4 << 10..=16 << 30)?;
    if size < block {
        return Err(usage(format!("size={size} is less than a block of {block}")));
    }
    let size = size / block * block;
    given.set("size", size);
    let device = point.device()?;
    // Of several ways to mount this is the kernel's part in all.
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        return Err(cannot(format!("/dev/fuse: {error}")));
    }
    // Before this thread is confined: the meter's threads go anywhere.
    let mut watch = point.watch()?;
    let _confined = confined(given)?;
    let folder = with_room(given, (size as u64).saturating_mul(processes as u64) / 64 * 65 + BESIDE)?;
    let mut mount = volume(folder.path(), 0, CHUNK, &handed_on(point.choice))?;
    mount.start()?;
    let time = Duration::from_secs_f64(point.seconds);
    let at = mount.at.clone();
    let work = Work { mount: &at, writes, block, size, processes, time };
    work.prepare()?;

    watch.per(Per::Byte);
    let (mut figures, mut rounds) = (Figures::default(), Vec::new());
    for _ in 0..point.rounds {
        let before = tally::of(&[mount.program()]);
        let (calls, took) = work.all(|| watch.begin())?;
        let spell = watch.end()?;
        let did = between(&before, &tally::of(&[mount.program()]));
        let bytes = calls.count as f64 * block as f64;
        watch.worked(bytes);
        figures.add("bandwidth", "MB/s", bytes / 1e6 / took.as_secs_f64());
        figures.add("latency_us", "us", calls.ns as f64 / calls.count as f64 / 1e3);
        figures.add("p99_us", "us", p99(calls.latencies) as f64 / 1e3);
        figures.add("cpu_share", "1", spell.cpu_share());
        if let Some([submit_ns, complete_ns]) = on_devices_ns(&did) {
            figures.add("complete_us", "us", complete_ns / 1e3);
            // A program of an earlier version does not count it.
            if submit_ns > 0.0 {
                figures.add("submit_us", "us", submit_ns / 1e3);
            }
        }
        rounds.push(did);
    }
    mount.stop();
    refuse_idle_device(point.choice, &rounds, "it does nothing of this")?;
    let (joules, busy) = (watch.joules(by_board(&rounds)), watch.busy());
    Ok(Measured { figures, engines: engines(&rounds), device, joules, busy })
}

/// Mean times of devices' requests: what handing one over takes, and from then to its answer.
fn on_devices_ns(did: &Done) -> Option<[f64; 2]> {
    let mut all = Did::default();
    did.iter().filter(|((engine, _), _)| is_device(engine)).for_each(|(_, did)| all.add(did));
    (all.timed > 0).then(|| [all.submit_ns, all.timed_ns].map(|ns| ns as f64 / all.timed as f64))
}

fn p99(mut latencies: Vec<u64>) -> u64 {
    latencies.sort_unstable();
    let at = latencies.len() * 99 / 100;
    latencies.get(at).copied().unwrap_or(0)
}

impl Work<'_> {
    fn path(&self, number: usize) -> PathBuf {
        self.mount.join(format!("file{number}"))
    }

    /// Every file, whole: what is read is there, and what is written is written over.
    fn prepare(&self) -> Result<()> {
        let content = samples::noise(1, self.block);
        for number in 0..self.processes {
            let path = self.path(number);
            let file = File::create(&path).with_context(|| path.display().to_string())?;
            for at in (0..self.size).step_by(self.block) {
                go_on()?;
                file.write_all_at(&content, at as u64)?;
            }
            file.sync_all()?;
        }
        Ok(())
    }

    /// All threads at once, and the time from their start to the end of the last.
    fn all(&self, begins: impl FnOnce()) -> Result<(Calls, Duration)> {
        let start = Barrier::new(self.processes + 1);
        let results = thread::scope(|scope| {
            let spawn = |number| {
                let start = &start;
                scope.spawn(move || {
                    let ready = self.ready(number);
                    start.wait();
                    self.one(ready?)
                })
            };
            let threads: Vec<_> = (0..self.processes).map(spawn).collect();
            begins();
            start.wait();
            let begun = Instant::now();
            let results: Vec<Result<Calls>> = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect();
            (results, begun.elapsed())
        });
        let mut all = Calls::default();
        for calls in results.0 {
            let calls = calls?;
            (all.count, all.ns) = (all.count + calls.count, all.ns + calls.ns);
            all.latencies.extend(calls.latencies);
        }
        ensure!(all.count > 0, "no call came back in {:?}", self.time);
        Ok((all, results.1))
    }

    fn ready(&self, number: usize) -> Result<(File, Vec<u8>)> {
        let path = self.path(number);
        let mut options = File::options();
        options.read(!self.writes).write(self.writes).custom_flags(OFlags::DIRECT.bits() as i32);
        let file = options.open(&path).with_context(|| path.display().to_string())?;
        Ok((file, samples::noise(number as u64, self.block)))
    }

    fn one(&self, (file, mut buffer): (File, Vec<u8>)) -> Result<Calls> {
        let (begun, mut at, mut calls) = (Instant::now(), 0, Calls::default());
        let kept = KEPT / self.processes;
        while begun.elapsed() < self.time {
            go_on()?;
            let call = Instant::now();
            match self.writes {
                true => file.write_all_at(&buffer, at as u64)?,
                false => file.read_exact_at(&mut buffer, at as u64)?,
            }
            let ns = call.elapsed().as_nanos() as u64;
            (calls.count, calls.ns) = (calls.count + 1, calls.ns + ns);
            if calls.latencies.len() < kept {
                calls.latencies.push(ns);
            }
            at = (at + self.block) % self.size;
        }
        Ok(calls)
    }
}

fn go_on() -> Result<()> {
    ensure!(!INTERRUPTED.load(Ordering::SeqCst), wattlock_door::Error::Interrupted);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::answer::Cannot;
    use crate::point::tests::{choice, point};

    #[test]
    fn threads_write_and_read_their_own_files_until_the_time_is_over() {
        let folder = tempfile::tempdir().unwrap();
        let work = |writes| Work {
            mount: folder.path(),
            writes,
            block: 4096,
            size: 5 * 4096,
            processes: 3,
            time: Duration::from_millis(30),
        };
        work(true).prepare().unwrap();
        let untouched = std::fs::read(folder.path().join("file0")).unwrap();
        for writes in [true, false] {
            let mut begun = 0;
            let all = work(writes).all(|| begun += 1);
            // A file system in memory may know no direct access.
            let Ok((calls, time)) = all else {
                println!("skipped: {:?}", all.err());
                continue;
            };
            assert_eq!(begun, 1);
            assert!(calls.count >= 3 && calls.latencies.len() as u64 == calls.count);
            assert!(time >= Duration::from_millis(30) && calls.ns >= *calls.latencies.iter().max().unwrap());
        }
        assert_eq!(std::fs::read(folder.path().join("file0")).unwrap().len(), untouched.len());
    }

    #[test]
    fn nonsense_is_refused_and_more_than_there_is_is_an_answer() {
        let choice = choice("software");
        let of = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let mut given = Given::read("volume", KEYS, &words).unwrap();
            run(&mut given, &point(&choice)).unwrap_err()
        };
        for words in [&["operation=append"][..], &["block=1"], &["processes=0"], &["size=8K", "block=1M"]] {
            assert!(of(words).downcast_ref::<wattlock_door::Error>().is_some(), "{words:?}");
        }
        let error = of(&["size=16G", "processes=256"]);
        assert!(error.downcast_ref::<Cannot>().is_some(), "{error}");
    }

    #[test]
    fn what_has_no_room_in_one_place_goes_to_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let places = ["/no/such/memory".into(), folder.path().to_owned()];
        let (made, place) = first_with_room(&places, 1).unwrap();
        assert_eq!((made.path().parent(), place), (Some(folder.path()), folder.path()));
        let error = first_with_room(&places, ON_DISK_MOST + 1).unwrap_err();
        let Some(Cannot(why)) = error.downcast_ref() else { panic!("{error}") };
        assert!(why.contains("are needed: /no/such/memory: ") && why.ends_with(" is no memory"), "{why}");
    }

    #[test]
    fn only_devices_answer_what_was_handed_to_them() {
        let did = |timed, timed_ns| Did { requests: 9, timed, timed_ns, submit_ns: 3, ..Did::default() };
        let place = |engine: &str, kind: &str| (engine.to_owned(), kind.to_owned());
        let mut all = Done::from([(place("instruction", "a"), did(1, 1000))]);
        assert_eq!(on_devices_ns(&all), None);
        all.insert(place("emulated", "a"), did(2, 300));
        all.insert(place("emulated", "b"), did(1, 300));
        assert_eq!(on_devices_ns(&all), Some([2.0, 200.0]));
        assert_eq!((p99((1..=100).collect()), p99(Vec::new())), (100, 0));
    }

    #[test]
    fn another_program_gets_the_whole_choice() {
        let choice =
            Choice { settings: vec!["eep.ratio=3".into()], emulate: Some("h200".into()), ..choice("eep") };
        let words = "--policy eep --objective performance --set eep.ratio=3 --emulate h200";
        assert_eq!(handed_on(&choice).join(" "), words);
    }
}
