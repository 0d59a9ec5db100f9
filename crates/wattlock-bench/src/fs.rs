//! A mounted volume, with gocryptfs and the same FUSE layer without cryptography beside it: one workload after the
//! other, in turn, timed by the clock on the wall and by the processor time of the process that serves the mount.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rustix::fs::Advice;

use super::files::{new_key, recipient_of};
use super::machine_line;
use super::pair::{self, Better, Gain};
use super::record::{By, Record, Row, version_of};
use super::tended::{Next, Stream, Tended};
use wattlock_shell::INTERRUPTED;
use wattlock_shell::joules::peak_memory;
use wattlock_shell::process::cpu_of;
use wattlock_shell::text;

/// How long a file system may take to appear.
const APPEAR: Duration = Duration::from_secs(60);

/// Files of the tree that is unpacked, searched and removed.
const FILES: usize = 5000;

/// The same layer without cryptography, as cargo leaves it in the repository, and how.
const PLAIN: &str = "target/release/examples/plain";
const BUILD: &str = "cargo build --release -p wattlock-mount --example plain";

/// What to measure.
#[derive(Debug, Args)]
pub struct Settings {
    /// Folder for everything; a tmpfs shows the cost of the work and not of a disk. Needs about the size for each file
    /// system
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Size of the file that is written and read
    #[arg(long, default_value = "256M", value_parser = text::parse_bytes)]
    size: usize,
    /// Chunk sizes of volumes to measure side by side
    #[arg(long, default_value = "4K", value_delimiter = ',', value_parser = text::parse_bytes)]
    chunk: Vec<usize>,
    /// Rounds of everything, in turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=50))]
    rounds: u32,
    /// The same layer without cryptography: `cargo build --release -p wattlock-mount --example plain`. Looked for beside
    /// this program if not given
    #[arg(long, value_name = "PROGRAM")]
    plain: Option<PathBuf>,
    /// Only these workloads
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// Where a workload works: a mount, and what it brought along.
struct Place<'a> {
    mount: &'a Path,
    tar: &'a Path,
    size: usize,
}

/// What is timed: the work, and whether it wants a fresh mount, whose caches are empty.
struct Workload {
    name: &'static str,
    fresh: bool,
    /// Not timed.
    before: fn(&Place<'_>) -> Result<()>,
    work: fn(&Place<'_>) -> Result<()>,
}

const WORKLOADS: &[Workload] = &[
    Workload { name: "write-1m", fresh: false, before: remove_file, work: |place| write(place, 1 << 20) },
    Workload { name: "write-128k", fresh: false, before: remove_file, work: |place| write(place, 128 << 10) },
    Workload { name: "read", fresh: false, before: forget_file, work: read },
    Workload { name: "random-write-4k", fresh: false, before: nothing, work: random_write },
    Workload { name: "random-read-4k", fresh: false, before: forget_file, work: random_read },
    Workload { name: "append-fdatasync", fresh: false, before: nothing, work: append },
    Workload { name: "untar", fresh: false, before: remove_tree, work: untar },
    Workload {
        name: "find-size",
        fresh: true,
        before: nothing,
        work: |place| shell(place, "find tree -size +1k"),
    },
    Workload {
        name: "grep-r",
        fresh: true,
        before: nothing,
        work: |place| shell(place, "grep -r nowhere tree || true"),
    },
    Workload { name: "git-status", fresh: false, before: repository, work: |place| shell(place, GIT_STATUS) },
    Workload { name: "rm-rf", fresh: true, before: nothing, work: |place| shell(place, "rm -rf tree") },
];

const GIT_STATUS: &str = "git -C tree -c safe.directory='*' status --porcelain";

fn nothing(_: &Place<'_>) -> Result<()> {
    Ok(())
}

fn remove_file(place: &Place<'_>) -> Result<()> {
    let _ = std::fs::remove_file(place.mount.join("file"));
    Ok(())
}

/// The kernel forgets the file's content.
fn forget_file(place: &Place<'_>) -> Result<()> {
    let file = File::open(place.mount.join("file"))?;
    file.sync_all()?;
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    Ok(())
}

fn write(place: &Place<'_>, step: usize) -> Result<()> {
    let mut file = File::create(place.mount.join("file"))?;
    let block: Vec<u8> = (0..step).map(|at| (at % 251) as u8).collect();
    for _ in 0..place.size / step {
        file.write_all(&block)?;
    }
    file.sync_all()?;
    Ok(())
}

fn read(place: &Place<'_>) -> Result<()> {
    let mut file = File::open(place.mount.join("file"))?;
    let mut block = vec![0; 1 << 20];
    while file.read(&mut block)? > 0 {}
    Ok(())
}

/// Places in the file, all over it, the same in every round.
fn places(size: usize, count: usize) -> impl Iterator<Item = u64> {
    let chunks = (size / 4096).max(1) as u64;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..count).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 20) % chunks * 4096
    })
}

fn random_write(place: &Place<'_>) -> Result<()> {
    let file = File::options().write(true).open(place.mount.join("file"))?;
    for at in places(place.size, 8192) {
        file.write_all_at(&[7; 4096], at)?;
    }
    file.sync_all()?;
    Ok(())
}

fn random_read(place: &Place<'_>) -> Result<()> {
    let file = File::open(place.mount.join("file"))?;
    rustix::fs::fadvise(&file, 0, None, Advice::Random)?;
    for at in places(place.size, 8192) {
        file.read_exact_at(&mut [0; 4096], at)?;
    }
    Ok(())
}

fn append(place: &Place<'_>) -> Result<()> {
    let flags = rustix::fs::OFlags::APPEND.bits() as i32;
    let mut options = File::options();
    let mut file = options.write(true).create(true).custom_flags(flags).open(place.mount.join("log"))?;
    for _ in 0..500 {
        file.write_all(b"a line of a log, as long as such lines are, more or less, most of the time\n")?;
        file.sync_data()?;
    }
    Ok(())
}

fn remove_tree(place: &Place<'_>) -> Result<()> {
    shell(place, "rm -rf tree")
}

fn untar(place: &Place<'_>) -> Result<()> {
    shell(place, &format!("tar -xf {}", place.tar.display()))
}

fn repository(place: &Place<'_>) -> Result<()> {
    let git = "git -C tree -c safe.directory='*' -c user.name=b -c user.email=b@localhost -c gc.auto=0";
    shell(
        place,
        &format!("test -d tree/.git || {{ git init -q tree && {git} add . && {git} commit -qm all; }}"),
    )
}

fn shell(place: &Place<'_>, script: &str) -> Result<()> {
    let output = Command::new("sh").args(["-c", script]).current_dir(place.mount).output()?;
    ensure!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// A file system that a program serves. It is unmounted, and its program ends, when this value does.
pub struct Mount {
    name: String,
    command: Vec<String>,
    /// Where its files are shown.
    pub at: PathBuf,
    served: Option<Tended>,
    peak: u64,
}

impl Mount {
    fn new(name: String, command: Vec<String>, at: PathBuf) -> Mount {
        Mount { name, command, at, served: None, peak: 0 }
    }

    /// Mounts it, and waits until it is there.
    ///
    /// # Errors
    /// It ends or does not appear; its last words are quoted.
    pub fn start(&mut self) -> Result<()> {
        let outside = device(self.at.parent().unwrap_or(&self.at))?;
        let mut command = Command::new(&self.command[0]);
        let program = self.served.insert(Tended::start(command.args(&self.command[1..]))?);
        let (begun, mut said) = (Instant::now(), String::new());
        while device(&self.at).ok().is_none_or(|now| now == outside) {
            match program.next(Duration::from_millis(10))? {
                Next::Line(line) => said = line.text,
                Next::Quiet => {}
                // One may close its outputs and serve.
                Next::End if program.runs()? => std::thread::sleep(Duration::from_millis(10)),
                Next::End => bail!("{}: {}: {said}", self.name, program.wait()?),
            }
            ensure!(begun.elapsed() < APPEAR, "{} does not mount: {said}", self.name);
        }
        Ok(())
    }

    /// Unmounts it, and waits for its program.
    pub fn stop(&mut self) {
        let Some(mut program) = self.served.take() else { return };
        self.peak = self.peak.max(peak_memory(&program.id().to_string()).unwrap_or(0));
        let begun = Instant::now();
        while wattlock_mount::unmount(&self.at, begun.elapsed() > APPEAR / 2).is_err() {
            if begun.elapsed() > APPEAR || !program.runs().unwrap_or(false) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // It writes what is left; one that does not end is told to.
        let _ = program.wait();
    }

    /// The number of the program that serves it; 0 if it is not mounted.
    pub fn program(&self) -> u32 {
        self.served.as_ref().map_or(0, Tended::id)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A volume of ours in a folder, made and not mounted; `more` goes to `wattlock mount`.
///
/// # Errors
/// It cannot be made.
pub fn volume(folder: &Path, number: usize, chunk: usize, more: &[String]) -> Result<Mount> {
    let own = wattlock_shell::program::wattlock()?.display().to_string();
    // This machine is to remember none of them.
    let own = ["env".to_owned(), format!("WATTLOCK_STATE_DIR={}", folder.join("state").display()), own];
    let key = folder.join("key.txt");
    let recipient = match key.exists() {
        true => recipient_of(&key)?,
        false => new_key(&key)?,
    };
    let [back, at] = ["back", "mount"].map(|what| folder.join(format!("{what}{number}")));
    for made in [&back, &at] {
        std::fs::create_dir_all(made)?;
    }
    let [key, back, shown] = [&key, &back, &at].map(|path| path.display().to_string());
    let chunk_of = format!("{}K", chunk >> 10);
    let init = ["fs", "init", "-r", &recipient, "--chunk", &chunk_of, &back].map(str::to_owned);
    quiet(&[&own[..], &init].concat())?;
    let first = ["mount", "--foreground", "-i", &key].map(str::to_owned);
    let command = [&own[..], &first, more, &[back, shown]].concat();
    Ok(Mount::new(format!("wattlock {}", text::bytes(chunk as u64)), command, at))
}

/// One file system and what it took.
struct Contestant {
    mount: Mount,
    /// Seconds and processor seconds of the current workload.
    seconds: Vec<f64>,
    cpu: Vec<f64>,
}

impl Contestant {
    fn time(&mut self, workload: &Workload, tar: &Path, size: usize, counts: bool) -> Result<()> {
        ensure!(!INTERRUPTED.load(Ordering::SeqCst), wattlock_door::Error::Interrupted);
        if workload.fresh {
            self.mount.stop();
            self.mount.start()?;
        }
        let place = Place { mount: &self.mount.at, tar, size };
        let name = &self.mount.name;
        (workload.before)(&place).with_context(|| format!("{name} before {}", workload.name))?;
        let process = self.mount.program();
        let (begun, before) = (Instant::now(), cpu_of(process)?);
        (workload.work)(&place).with_context(|| format!("{name}: {}", workload.name))?;
        let (seconds, cpu) =
            (begun.elapsed().as_secs_f64(), (cpu_of(process)?.saturating_sub(before)).as_secs_f64());
        if counts {
            self.seconds.push(seconds);
            self.cpu.push(cpu);
        }
        Ok(())
    }
}

fn device(path: &Path) -> std::io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).map(|metadata| metadata.dev())
}

/// Runs the benchmark.
pub fn run(settings: &Settings, mut record: Record) -> Result<()> {
    let folder = tempfile::tempdir_in(&settings.dir).with_context(|| settings.dir.display().to_string())?;
    let mut all = contestants(settings, folder.path(), &mut record)?;
    let tar = folder.path().join("tree.tar");
    make_tar(folder.path(), &tar)?;
    for contestant in &mut all {
        contestant.mount.start()?;
    }
    let peer = all.iter().position(|one| one.mount.name == "gocryptfs");
    let plain = all.iter().position(|one| one.mount.name == "plain layer");
    let mut cells = Vec::new();
    let wanted = |name: &str| settings.only.is_empty() || settings.only.iter().any(|only| only == name);
    for workload in WORKLOADS {
        let shown = wanted(workload.name);
        if !shown && !matches!(workload.name, "write-1m" | "untar") {
            continue;
        }
        // What a later workload needs is done once, and not shown.
        let rounds = if shown { settings.rounds } else { 0 };
        let removes = workload.name == "rm-rf";
        for round in 0..=rounds {
            record.remark(&format!("{}, round {round} of {rounds}", workload.name));
            for contestant in &mut all {
                if removes && round > 0 {
                    untar(&Place { mount: &contestant.mount.at, tar: &tar, size: settings.size })?;
                }
                contestant.time(workload, &tar, settings.size, round > 0)?;
            }
        }
        for at in 0..all.len() {
            if shown {
                let against = |other: Option<usize>, of: fn(&Contestant) -> &Vec<f64>| {
                    let other = other.filter(|other| *other != at)?;
                    Gain::of(of(&all[at]), of(&all[other]), Better::Less)
                };
                let gains = [
                    against(peer, |one| &one.seconds),
                    against(peer, |one| &one.cpu),
                    against(plain, |one| &one.seconds),
                    against(plain, |one| &one.cpu),
                ];
                record.add(row(&all[at], workload.name, settings.size, gains));
                cells.push(line(&all[at], workload.name, gains));
            }
        }
        for contestant in &mut all {
            contestant.seconds.clear();
            contestant.cpu.clear();
        }
    }
    for contestant in &mut all {
        contestant.mount.stop();
    }
    if record.shows() {
        let (size, dir) = (text::bytes(settings.size as u64), settings.dir.display());
        say!("{size} and {FILES} files in {dir}; {} rounds in turn; {}", settings.rounds, machine_line());
        let header =
            ["workload", "file system", "time", "CPU", "gocryptfs", "by CPU", "plain layer", "by CPU"];
        put!("{}", text::table(&header, &cells));
        for contestant in &all {
            let Mount { name, peak, .. } = &contestant.mount;
            say!("peak memory of {name}: {}", text::bytes(*peak));
        }
        say!(
            "CPU is that of the process that serves the mount; the others' columns say how many times as fast"
        );
        say!("{}", pair::LEGEND);
    }
    record.finish()
}

fn row(contestant: &Contestant, workload: &str, size: usize, gains: [Option<Gain>; 4]) -> Row {
    let name = format!("{workload} {}", contestant.mount.name);
    let alone = (pair::median(contestant.seconds.clone()), contestant.seconds.len());
    Row::beside("fs", &name, "s", By::Time, (gains[0], "gocryptfs"), alone)
        .param("bytes", size as u64)
        .detail("cpu_s", pair::median(contestant.cpu.clone()))
        .detail("cpu", gains[1])
        .detail("plain", gains[2])
        .detail("plain_cpu", gains[3])
}

fn line(contestant: &Contestant, workload: &str, gains: [Option<Gain>; 4]) -> Vec<String> {
    let mut cells = vec![
        workload.to_owned(),
        contestant.mount.name.clone(),
        format!("{:.3} s", pair::median(contestant.seconds.clone())),
        format!("{:.3} s", pair::median(contestant.cpu.clone())),
    ];
    cells.extend(gains.map(pair::cell));
    cells
}

/// Every file system, made and not mounted.
fn contestants(settings: &Settings, folder: &Path, record: &mut Record) -> Result<Vec<Contestant>> {
    let mut all = Vec::new();
    let mut add = |mount: Mount| all.push(Contestant { mount, seconds: Vec::new(), cpu: Vec::new() });
    let foreign = |name: &str, number: usize, program: &[&str]| -> Result<Mount> {
        let [back, at] = ["back", "mount"].map(|what| folder.join(format!("{what}{number}")));
        for made in [&back, &at] {
            std::fs::create_dir_all(made)?;
        }
        let places = [&back, &at].map(|path| path.display().to_string());
        let command = program.iter().map(|word| (*word).to_owned()).chain(places).collect();
        Ok(Mount::new(name.to_owned(), command, at))
    };
    let own = wattlock_shell::program::wattlock()?;
    let beside = own.parent().map(|folder| folder.join("examples/plain"));
    // An installed program is run from the repository.
    let built = beside.into_iter().chain([PathBuf::from(PLAIN)]).find(|path| path.is_file());
    match settings.plain.clone().or(built) {
        Some(plain) => {
            let plain = std::path::absolute(plain)?.display().to_string();
            add(foreign("plain layer", 0, &[&plain])?);
        }
        None => {
            eprintln!("wattlock: no plain layer: build it in the repository ({BUILD}), or name it (--plain)")
        }
    }
    if let Some(version) = version_of("gocryptfs", "-version") {
        record.peer("gocryptfs", &version);
        let pass = folder.join("pass.txt").display().to_string();
        std::fs::write(&pass, "a passphrase\n")?;
        add(foreign("gocryptfs", 1, &["gocryptfs", "-q", "-fg", "-nosyslog", "-passfile", &pass])?);
        let back = folder.join("back1").display().to_string();
        quiet(&["gocryptfs", "-q", "-init", "-scryptn", "10", "-passfile", &pass, &back].map(str::to_owned))?;
    }
    for (number, chunk) in settings.chunk.iter().enumerate() {
        add(volume(folder, number + 2, *chunk, &[])?);
    }
    Ok(all)
}

fn quiet(command: &[String]) -> Result<()> {
    let (mut program, mut said) = (Command::new(&command[0]), String::new());
    let status = Tended::to_end(program.args(&command[1..]), APPEAR, |line| {
        if line.from == Stream::Error {
            said = line.text;
        }
    })?;
    ensure!(status.success(), "{}: {said}", command.join(" "));
    Ok(())
}

/// A tree as a source release has it: many small files, some large ones, 250 folders.
fn make_tar(folder: &Path, tar: &Path) -> Result<()> {
    let tree = folder.join("made/tree");
    for number in 0..FILES {
        let below = tree.join(format!("d{}/e{}", number % 25, number / 25 % 10));
        if number < 250 {
            std::fs::create_dir_all(&below)?;
        }
        let size = [300, 2_000, 6_000, 15_000, 40_000, 900, 4_000, 60_000][number % 8] + number;
        let line = format!("line of file {number}: words that compress as words do\n");
        let content = line.repeat(size / line.len() + 1);
        std::fs::create_dir_all(&below)?;
        std::fs::write(below.join(format!("f{number}")), content)?;
    }
    let (from, to) = (folder.join("made").display().to_string(), tar.display().to_string());
    quiet(&["tar", "-C", &from, "-cf", &to, "tree"].map(str::to_owned))?;
    Ok(std::fs::remove_dir_all(folder.join("made"))?)
}
