//! What calibration found, on disk: each engine's cost of each kind by size and concurrency on this machine.
//!
//! A profile belongs to one CPU model, microcode, set of engines and version of Wattlock; for any other it is stale
//! and not used. Doors read it or take the built-in table (measured on the machine that the table names); they never
//! calibrate.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use wattlock_core::{Engine, Kind};
use wattlock_meter::{Boundary, Quality};

use crate::sys::process::variable;

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Engine name.
    pub engine: String,
    /// Kind name.
    pub kind: String,
    /// Requests under way at once: threads for an engine that works inside the call, requests in flight for one with
    /// queues.
    pub concurrency: u16,
    /// Requests that each of those did together, by [`Engine::execute_all`]; 1 for one at a time.
    #[serde(default = "alone")]
    pub batch: u16,
    /// Input bytes.
    pub bytes: usize,
    /// Nanoseconds from submission to completion of one request, or of the whole batch.
    pub ns: f64,
    /// Nanojoules a request above idle power, where a counter measured them; never modelled ones.
    pub energy_nj: Option<f64>,
}

/// The batch of a point that names none.
fn alone() -> u16 {
    1
}

/// `latency = setup + bytes / rate`, fitted to the points of concurrency and batch 1 by least squares on relative error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// Engine name.
    pub engine: String,
    /// Kind name.
    pub kind: String,
    /// Nanoseconds.
    pub setup_ns: f64,
    /// Bytes per second; `None` where the points do not determine it (one size only).
    pub bytes_per_second: Option<f64>,
    /// Root mean square of the relative deviations.
    pub error: f64,
}

/// Which machine a profile belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct MachineKey {
    /// Model name of the CPU.
    pub cpu: String,
    /// Its microcode revision, as the kernel reports it.
    pub microcode: String,
    /// What each engine rests on, by name.
    pub engines: BTreeMap<String, String>,
    /// Wattlock's version.
    pub version: String,
}

/// Where a profile's joules come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnergyNote {
    /// The counters: `powercap`, `perf`, `nvml`.
    pub sources: Vec<String>,
    /// What is inside.
    pub boundaries: Vec<Boundary>,
    /// Which of them.
    pub parts: Vec<String>,
    /// What the points' joules are worth: counters' differences less idle power, so `derived`.
    pub quality: Quality,
    /// Idle power that was subtracted, in watts; measured just before.
    pub idle_w: f64,
}

/// Bandwidth of writes into an encrypted volume, in bytes a second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Written {
    /// Files that were written at once, each by a thread.
    pub files: u16,
    /// Bytes of a write.
    pub bytes: usize,
    /// By the CPU alone.
    pub cpu: f64,
    /// By the device alone; `None`: it did not do them.
    pub device: Option<f64>,
}

/// From where on a device is worth a write: what `aca-sds` goes by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Storage {
    /// The device's name among the engines.
    pub device: String,
    /// The least bytes of a write, and the least files in operation, with which it is; `None`: it never was.
    pub from: Option<(usize, u16)>,
    /// Threads that feed it with the most bandwidth for each.
    pub feeders: u16,
    /// The measurements.
    pub written: Vec<Written>,
    /// Bandwidth of the device by one feeding thread, two, and so on.
    pub fed: Vec<f64>,
}

/// What calibration found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Layout version of this file.
    pub format: u32,
    /// Which machine it belongs to.
    pub machine: MachineKey,
    /// Seconds since 1970.
    pub measured: u64,
    /// Cores the process could use.
    pub cores: u16,
    /// Whether it was made in about a second (few sizes) or in full.
    pub quick: bool,
    /// Where the points' joules come from; `None` if they have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy: Option<EnergyNote>,
    /// From where on a device is worth a write; `None`: nobody measured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
    /// The measurements.
    pub points: Vec<Point>,
    /// What was fitted to them.
    pub fits: Vec<Fit>,
}

/// Why a profile could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The file.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// What is in it.
    #[error("{path}: not a profile: {source}")]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// Where it is wrong.
        source: serde_json::Error,
    },
    /// It is for another machine, engine or version.
    #[error("{path}: stale: {why}")]
    Stale {
        /// Which file.
        path: PathBuf,
        /// What differs.
        why: String,
    },
}

const FORMAT: u32 = 2;
/// Most bytes of a file that are read: a hundred times a full calibration's.
const MOST_BYTES: u64 = 64 << 20;
/// Where a profile for every user of the machine is looked for, after the user's own.
const SYSTEM_PATH: &str = "/var/lib/wattlock/profile.json";
/// Measured, as the next one, by `scripts/measure/builtin-table.sh`: the least of several runs. Each names the CPU and the commit.
const BUILT_IN: &str = include_str!("builtin.txt");
/// The kinds of lanes that rest on AVX2 and FMA, and what the other engines make of them on the same machine.
const BUILT_IN_FMA: &str = include_str!("builtin-fma.txt");

/// A profile and where it came from.
pub(crate) struct Found {
    pub(crate) origin: String,
    pub(crate) profile: Profile,
}

impl Profile {
    /// An empty profile for these engines on this machine.
    pub fn empty(engines: &[Arc<dyn Engine>]) -> Profile {
        Profile {
            format: FORMAT,
            machine: MachineKey::here(engines),
            measured: std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u16),
            quick: false,
            energy: None,
            storage: None,
            points: Vec::new(),
            fits: Vec::new(),
        }
    }

    /// Where the calling user's profile is kept: `WATTLOCK_PROFILE` if set, else under the XDG cache folder. None for a
    /// program with more rights than its caller.
    pub fn path() -> Option<PathBuf> {
        if let Some(path) = variable("WATTLOCK_PROFILE") {
            return Some(path);
        }
        let absolute = |name| variable(name).filter(|path| path.is_absolute());
        let cache =
            absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
        Some(cache.join("wattlock").join("profile.json"))
    }

    /// The table that ships with Wattlock, from a machine with the widest instructions.
    pub fn built_in() -> Profile {
        shipped(BUILT_IN)
    }

    /// The table that ships with Wattlock, for these engines: where their lanes rest on narrower instructions, the kinds
    /// that such lanes do are from a machine with those. SHA-3 and ML-KEM multiply nothing in lanes: AVX-512 without IFMA does
    /// them as the widest does. Figures of two machines are never mixed within one kind.
    pub fn built_in_for(engines: &[Arc<dyn Engine>]) -> Profile {
        let (mut table, narrow) = (Profile::built_in(), shipped(BUILT_IN_FMA));
        let lanes = engines.iter().map(|engine| engine.description()).find(|one| one.name == "lanes");
        // What their public keys rest on comes first; which instructions hash and encrypt differs from CPU to CPU.
        let rest = |detail: &str| detail.split(';').next().map(str::to_owned);
        let theirs = narrow.machine.engines.get("lanes").and_then(|detail| rest(detail));
        if lanes.is_some_and(|lanes| rest(&lanes.detail) == theirs) {
            let wide = lanes.is_some_and(|lanes| lanes.detail.ends_with("ML-KEM by AVX-512"));
            let narrower = |kind: &str| !(wide && is_keccak(kind));
            let points = narrow.points.into_iter().filter(|point| narrower(&point.kind));
            let fits = narrow.fits.into_iter().filter(|fit| narrower(&fit.kind));
            let (points, fits): (Vec<_>, Vec<_>) = (points.collect(), fits.collect());
            let replaced = |kind: &str| points.iter().any(|point| point.kind == kind);
            table.points.retain(|point| !replaced(&point.kind));
            table.fits.retain(|fit| !replaced(&fit.kind));
            table.points.extend(points);
            table.fits.extend(fits);
            table.machine.cpu += &format!(" and {}", narrow.machine.cpu);
        }
        table
    }

    /// The profile for these engines: the user's, else the system's, else the built-in table. Never fails: a stale or
    /// broken file is passed over, and the origin says why.
    pub(crate) fn find(engines: &[Arc<dyn Engine>]) -> Found {
        let here = MachineKey::here(engines);
        let mut why_not = None;
        for path in Profile::path().into_iter().chain([PathBuf::from(SYSTEM_PATH)]) {
            match Profile::load_for(&path, &here) {
                Ok(profile) => {
                    return Found { origin: format!("{} ({})", path.display(), profile.extent()), profile };
                }
                Err(ProfileError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                Err(error) => why_not = why_not.or(Some(error.to_string())),
            }
        }
        let profile = Profile::built_in_for(engines);
        let mut origin = format!("built-in table, measured on {}, not here", profile.machine.cpu);
        if let Some(why) = why_not {
            origin += &format!(" ({why})");
        }
        Found { origin, profile }
    }

    /// Whether a usable profile for these engines is on disk.
    pub fn exists_for(engines: &[Arc<dyn Engine>]) -> bool {
        let here = MachineKey::here(engines);
        Profile::path()
            .into_iter()
            .chain([PathBuf::from(SYSTEM_PATH)])
            .any(|path| Profile::load_for(&path, &here).is_ok())
    }

    /// Reads a profile, whatever machine it is for.
    ///
    /// # Errors
    /// [`ProfileError`] naming the file.
    pub fn load(path: &Path) -> Result<Profile, ProfileError> {
        let failed = |source| ProfileError::Io { path: path.to_owned(), source };
        let mut text = Vec::new();
        // No pipe keeps the reader waiting, and no file takes all memory.
        let options = fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        options.and_then(|file| file.take(MOST_BYTES).read_to_end(&mut text)).map_err(failed)?;
        serde_json::from_slice(&text)
            .map_err(|source| ProfileError::Malformed { path: path.to_owned(), source })
    }

    fn load_for(path: &Path, here: &MachineKey) -> Result<Profile, ProfileError> {
        let profile = Profile::load(path)?;
        match profile.stale(here) {
            None => Ok(profile),
            Some(why) => Err(ProfileError::Stale { path: path.to_owned(), why }),
        }
    }

    /// What differs between the machine the profile is for and this one; `None` if nothing does.
    pub fn stale(&self, here: &MachineKey) -> Option<String> {
        let differs = |what: &str, then: &str, now: &str| {
            (then != now).then(|| format!("{what} was \"{then}\", is \"{now}\""))
        };
        if self.format != FORMAT {
            return Some(format!("layout {} instead of {FORMAT}", self.format));
        }
        let there = &self.machine;
        differs("version", &there.version, &here.version)
            .or_else(|| differs("CPU", &there.cpu, &here.cpu))
            .or_else(|| differs("microcode", &there.microcode, &here.microcode))
            .or_else(|| {
                here.engines.iter().find_map(|(name, now)| match there.engines.get(name) {
                    Some(then) => differs(&format!("engine {name}"), then, now),
                    None => Some(format!("engine {name} is new")),
                })
            })
    }

    /// Whether a profile could be saved there: nothing is in the place, or a file, which a saved one replaces.
    ///
    /// # Errors
    /// [`ProfileError::Io`] for a folder, a device, a pipe.
    pub fn has_place(path: &Path) -> Result<(), ProfileError> {
        if fs::symlink_metadata(path).is_ok_and(|is| !is.is_file() && !is.is_symlink()) {
            let source = std::io::Error::other("not a regular file");
            return Err(ProfileError::Io { path: path.to_owned(), source });
        }
        Ok(())
    }

    /// Writes the profile so that a reader sees the old file or the new one, never a part.
    ///
    /// # Errors
    /// [`ProfileError::Io`].
    pub fn save(&self, path: &Path) -> Result<(), ProfileError> {
        let failed = |source| ProfileError::Io { path: path.to_owned(), source };
        Profile::has_place(path)?;
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}", std::process::id()));
        let partial = PathBuf::from(name);
        let text = serde_json::to_vec_pretty(self).map_err(|error| failed(error.into()))?;
        // What is there is a former process's of the same number, or a link that another user planted.
        let _ = fs::remove_file(&partial);
        let written = fs::File::create_new(&partial).and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&partial, path)
        });
        written.map_err(|source| {
            let _ = fs::remove_file(&partial);
            failed(source)
        })
    }

    /// `(bytes, ns, nJ)` of one request alone, ascending: what a policy's cost table takes.
    pub fn curve(&self, engine: &str, kind: Kind) -> Vec<(usize, f64, Option<f64>)> {
        let mine = self.one_thread(engine, kind).filter(|point| point.batch == 1);
        let mut curve: Vec<_> = mine.map(|point| (point.bytes, point.ns, point.energy_nj)).collect();
        curve.sort_by_key(|point| point.0);
        curve
    }

    /// `(requests, ns)` of batches of one size, ascending, one request alone among them; empty where none was measured.
    pub fn batches(&self, engine: &str, kind: Kind) -> Vec<(u16, f64)> {
        let batch = self.one_thread(engine, kind).find(|point| point.batch > 1);
        let Some(bytes) = batch.map(|point| point.bytes) else { return Vec::new() };
        let alike = self.one_thread(engine, kind).filter(|point| point.bytes == bytes);
        let mut batches: Vec<_> = alike.map(|point| (point.batch, point.ns)).collect();
        batches.sort_by_key(|point| point.0);
        batches
    }

    fn one_thread(&self, engine: &str, kind: Kind) -> impl Iterator<Item = &Point> {
        let mine = move |point: &&Point| point.engine == engine && point.kind == kind.name();
        self.points.iter().filter(|point| point.concurrency == 1).filter(mine)
    }

    /// Where one came from that the program gave, and whether it is of this machine.
    pub(crate) fn origin(&self, engines: &[Arc<dyn Engine>]) -> String {
        match self.stale(&MachineKey::here(engines)) {
            None => format!("measured on this machine ({}), given by the program", self.extent()),
            Some(why) => format!("measured on {}, not here ({why}), given by the program", self.machine.cpu),
        }
    }

    fn extent(&self) -> &'static str {
        if self.quick { "quick calibration" } else { "full calibration" }
    }
}

/// A table that ships with Wattlock.
/// A table that ships: a profile without its points, then a line for each engine and kind.
fn shipped(text: &str) -> Profile {
    let (head, lines) = text.split_once('\n').unwrap_or((text, ""));
    match serde_json::from_str::<Profile>(head) {
        Ok(mut profile) => {
            profile.points.extend(rows(lines).flat_map(shipped_points).flatten());
            profile
        }
        Err(error) => unreachable!("the built-in tables are read by a test: {error}"),
    }
}

/// Whether an operation is made of Keccak's permutation.
fn is_keccak(kind: &str) -> bool {
    ["sha3-", "shake", "ml-kem-"].iter().any(|family| kind.starts_with(family))
}

/// The lines of a shipped table below its head, without those that say where others were measured.
fn rows(lines: &str) -> impl Iterator<Item = &str> {
    lines.lines().filter(|line| !line.starts_with('#'))
}

/// The points of a line: engine, kind, and `[requests*]bytes:nanoseconds` of each. `None` for what is none.
fn shipped_points(line: &str) -> impl Iterator<Item = Option<Point>> {
    let mut words = line.split(' ');
    let (engine, kind) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    words.map(move |word| {
        let (size, ns) = word.split_once(':')?;
        let (batch, bytes) = size.split_once('*').unwrap_or(("1", size));
        Some(Point {
            engine: engine.to_owned(),
            kind: kind.to_owned(),
            concurrency: 1,
            batch: batch.parse().ok()?,
            bytes: bytes.parse().ok()?,
            ns: ns.parse().ok()?,
            energy_nj: None,
        })
    })
}

impl MachineKey {
    /// This machine with these engines.
    pub fn here(engines: &[Arc<dyn Engine>]) -> MachineKey {
        // The first processor is enough; on a machine with hundreds of them the whole takes tens of milliseconds.
        let mut info = String::new();
        let _ = fs::File::open("/proc/cpuinfo").and_then(|file| file.take(1024).read_to_string(&mut info));
        let field = |name: &str| -> String {
            info.lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(key, _)| key.trim() == name)
                .map_or_else(|| "unknown".to_owned(), |(_, value)| value.trim().to_owned())
        };
        MachineKey {
            cpu: field("model name"),
            microcode: field("microcode"),
            engines: engines
                .iter()
                .map(|engine| engine.description())
                .map(|description| (description.name.to_owned(), description.detail.clone()))
                .collect(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_table_is_read_and_covers_every_kind_on_both_cpu_engines() {
        let table = Profile::built_in();
        for kind in Kind::ALL {
            for engine in ["software", "instruction"] {
                assert!(!table.curve(engine, *kind).is_empty(), "{engine} {}", kind.name());
            }
        }
    }

    #[test]
    fn every_word_of_the_built_in_tables_is_a_point() {
        for table in [BUILT_IN, BUILT_IN_FMA] {
            let lines = || rows(table).skip(1);
            assert!(lines().count() > 10);
            assert!(lines().flat_map(shipped_points).all(|point| point.is_some_and(|point| point.ns > 0.0)));
            let words: usize = lines().map(|line| line.split(' ').count() - 2).sum();
            assert_eq!(shipped(table).points.len(), words);
        }
    }

    /// Whatever its lanes rest on, a machine that was never calibrated knows what they are worth, and from one machine.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn built_in_tables_cover_the_lanes_of_every_instruction_set() {
        use wattlock_cpu::detect::Cpu;
        use wattlock_cpu::lanes::{Isa, Lanes};

        for isa in Isa::all(&Cpu::detect()) {
            let lanes: Arc<dyn Engine> = Arc::new(Lanes::new(isa));
            let table = Profile::built_in_for(std::slice::from_ref(&lanes));
            for kind in lanes.description().inline.iter() {
                for engine in ["lanes", "instruction", "software"] {
                    let sizes = table.curve(engine, kind).len();
                    let fits = if kind.is_asymmetric() { sizes == 1 } else { sizes > 1 };
                    assert!(fits, "{}: {engine} {}", isa.name(), kind.name());
                }
            }
            let widest = Profile::built_in().curve("lanes", Kind::Rsa2048Private);
            let same = table.curve("lanes", Kind::Rsa2048Private) == widest;
            assert_eq!(same, matches!(isa, Isa::Ifma512(_)));
            let widest = Profile::built_in().curve("lanes", Kind::MlKem768Encapsulate);
            let same = table.curve("lanes", Kind::MlKem768Encapsulate) == widest;
            assert_eq!(same, Cpu::detect().avx512.is_some());
        }
    }

    /// An engine that has changed hands (a mode that went to the library, a newer library) makes a table's figures another
    /// engine's. Which kernels of ours do their part depends on the CPU and does not count.
    #[test]
    fn built_in_tables_were_measured_with_the_engines_that_ship() {
        let parts = |detail: &str| -> Vec<String> {
            let part = |part: &str| part.split(" by ").next().unwrap_or_default().trim().to_owned();
            detail.split(';').map(part).collect()
        };
        for table in [BUILT_IN, BUILT_IN_FMA].map(shipped) {
            for engine in crate::own_engines().iter().map(|engine| engine.description()) {
                let Some(then) = table.machine.engines.get(engine.name) else { panic!("{}", engine.name) };
                if engine.name != "lanes" {
                    assert_eq!(parts(then), parts(&engine.detail), "measured on {}", table.machine.cpu);
                }
            }
        }
    }

    #[test]
    fn saved_profile_comes_back_and_another_machine_makes_it_stale() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep").join("profile.json");
        let mut profile = Profile::empty(&[]);
        profile.points.push(Point {
            engine: "x".into(),
            kind: "sha-1".into(),
            concurrency: 1,
            batch: 1,
            bytes: 64,
            ns: 100.0,
            energy_nj: None,
        });
        profile.save(&path).unwrap();
        assert_eq!(Profile::load(&path).unwrap(), profile);
        assert_eq!(profile.curve("x", Kind::Sha1), [(64, 100.0, None)]);
        assert_eq!(profile.stale(&MachineKey::here(&[])), None);
        let other = MachineKey { microcode: "another".into(), ..MachineKey::here(&[]) };
        assert!(profile.stale(&other).unwrap().contains("microcode"));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no partial file is left");
    }

    #[test]
    fn a_profile_from_before_batches_is_stale_and_says_so() {
        let old = Profile { format: 1, ..Profile::empty(&[]) };
        assert!(old.stale(&MachineKey::here(&[])).unwrap().contains("layout 1 instead of 2"));
        let point = r#"{"engine":"x","kind":"sha-1","concurrency":1,"bytes":64,"ns":1.0,"energy_nj":null}"#;
        assert_eq!(serde_json::from_str::<Point>(point).unwrap().batch, 1, "the tables that ship name none");
    }

    #[test]
    fn a_profile_from_before_storage_was_measured_is_used_and_what_was_measured_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.json");
        let mut profile = Profile::empty(&[]);
        profile.save(&path).unwrap();
        assert!(!fs::read_to_string(&path).unwrap().contains("storage"), "this is what an older one wrote");
        let here = MachineKey::here(&[]);
        assert_eq!(Profile::load_for(&path, &here).unwrap().storage, None);
        profile.storage = Some(Storage {
            device: "card".into(),
            from: Some((32_768, 2)),
            feeders: 3,
            written: vec![Written { files: 2, bytes: 32_768, cpu: 1e9, device: None }],
            fed: vec![1e9],
        });
        profile.save(&path).unwrap();
        assert_eq!(Profile::load_for(&path, &here).unwrap(), profile);
    }

    #[test]
    fn malformed_profile_is_an_error_that_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.json");
        fs::write(&path, "{").unwrap();
        assert!(Profile::load(&path).unwrap_err().to_string().contains("p.json"));
    }
}
