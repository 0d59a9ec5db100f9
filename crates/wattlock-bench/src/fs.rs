//! A mounted volume, with gocryptfs and the same FUSE layer without cryptography beside it: one workload after the
//! other, in turn, timed by the clock on the wall and by the processor time of the process that serves the mount.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rustix::fs::Advice;

use super::files::new_key;
use super::machine_line;
use super::pair::{self, Better, Gain};
use super::record::{By, Record, Row, version_of};
use wattlock_shell::joules::peak_memory;
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

/// One file system.
struct Contestant {
    name: String,
    command: Vec<String>,
    mount: PathBuf,
    served: Option<Child>,
    /// Seconds and processor seconds of the current workload.
    seconds: Vec<f64>,
    cpu: Vec<f64>,
    peak: u64,
}

impl Contestant {
    fn start(&mut self) -> Result<()> {
        let outside = device(self.mount.parent().unwrap_or(&self.mount))?;
        let child = Command::new(&self.command[0])
            .args(&self.command[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| self.command[0].clone())?;
        let child = self.served.insert(child);
        let begun = Instant::now();
        while device(&self.mount).ok().is_none_or(|now| now == outside) {
            if let Some(status) = child.try_wait()? {
                bail!("{}: {status}", self.name);
            }
            ensure!(begun.elapsed() < APPEAR, "{} does not mount", self.name);
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn stop(&mut self) {
        let peak = self.served.as_ref().and_then(|child| peak_memory(&child.id().to_string()));
        self.peak = self.peak.max(peak.unwrap_or(0));
        let begun = Instant::now();
        while wattlock_mount::unmount(&self.mount, begun.elapsed() > APPEAR / 2).is_err() {
            if begun.elapsed() > APPEAR {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        if let Some(mut child) = self.served.take() {
            let _ = child.wait();
        }
    }

    fn time(&mut self, workload: &Workload, tar: &Path, size: usize, counts: bool) -> Result<()> {
        if workload.fresh {
            self.stop();
            self.start()?;
        }
        let mount = self.mount.clone();
        let place = Place { mount: &mount, tar, size };
        (workload.before)(&place).with_context(|| format!("{} before {}", self.name, workload.name))?;
        let process = self.served.as_ref().map_or(0, Child::id);
        let (begun, before) = (Instant::now(), cpu_s(process)?);
        (workload.work)(&place).with_context(|| format!("{}: {}", self.name, workload.name))?;
        let (seconds, cpu) = (begun.elapsed().as_secs_f64(), cpu_s(process)? - before);
        if counts {
            self.seconds.push(seconds);
            self.cpu.push(cpu);
        }
        Ok(())
    }
}

impl Drop for Contestant {
    fn drop(&mut self) {
        self.stop();
    }
}

fn device(path: &Path) -> std::io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).map(|metadata| metadata.dev())
}

/// Processor time of a process's threads, to the nanosecond.
fn cpu_s(process: u32) -> Result<f64> {
    let mut nanos = 0_u64;
    for task in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        nanos += text.split(' ').next().and_then(|first| first.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(nanos as f64 / 1e9)
}

/// Runs the benchmark.
pub fn run(settings: &Settings, mut record: Record) -> Result<()> {
    let folder = tempfile::tempdir_in(&settings.dir).with_context(|| settings.dir.display().to_string())?;
    let mut all = contestants(settings, folder.path(), &mut record)?;
    let tar = folder.path().join("tree.tar");
    make_tar(folder.path(), &tar)?;
    for contestant in &mut all {
        contestant.start()?;
    }
    let peer = all.iter().position(|one| one.name == "gocryptfs");
    let plain = all.iter().position(|one| one.name == "plain layer");
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
                    let mount = contestant.mount.clone();
                    untar(&Place { mount: &mount, tar: &tar, size: settings.size })?;
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
        contestant.stop();
    }
    if record.shows() {
        let (size, dir) = (text::bytes(settings.size as u64), settings.dir.display());
        say!("{size} and {FILES} files in {dir}; {} rounds in turn; {}", settings.rounds, machine_line());
        let header =
            ["workload", "file system", "time", "CPU", "gocryptfs", "by CPU", "plain layer", "by CPU"];
        put!("{}", text::table(&header, &cells));
        for contestant in &all {
            say!("peak memory of {}: {}", contestant.name, text::bytes(contestant.peak));
        }
        say!(
            "CPU is that of the process that serves the mount; the others' columns say how many times as fast"
        );
        say!("{}", pair::LEGEND);
    }
    record.finish()
}

fn row(contestant: &Contestant, workload: &str, size: usize, gains: [Option<Gain>; 4]) -> Row {
    let name = format!("{workload} {}", contestant.name);
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
        contestant.name.clone(),
        format!("{:.3} s", pair::median(contestant.seconds.clone())),
        format!("{:.3} s", pair::median(contestant.cpu.clone())),
    ];
    cells.extend(gains.map(pair::cell));
    cells
}

/// Every file system, made and not mounted.
fn contestants(settings: &Settings, folder: &Path, record: &mut Record) -> Result<Vec<Contestant>> {
    let own = wattlock_shell::program::wattlock()?;
    let mut all = Vec::new();
    let mut add = |name: String, number: usize, command: &dyn Fn(&str, &str) -> Vec<String>| -> Result<()> {
        let at = |what: &str| folder.join(format!("{what}{number}"));
        let (back, mount) = (at("back"), at("mount"));
        for made in [&back, &mount] {
            std::fs::create_dir_all(made)?;
        }
        let command = command(&back.display().to_string(), &mount.display().to_string());
        let (seconds, cpu) = (Vec::new(), Vec::new());
        all.push(Contestant { name, command, mount, served: None, seconds, cpu, peak: 0 });
        Ok(())
    };
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let beside = own.parent().map(|folder| folder.join("examples/plain"));
    // An installed program is run from the repository.
    let built = beside.into_iter().chain([PathBuf::from(PLAIN)]).find(|path| path.is_file());
    match settings.plain.clone().or(built) {
        Some(plain) => {
            let plain = std::path::absolute(plain)?;
            add("plain layer".into(), 0, &|back, mount| words(&[&plain.display().to_string(), back, mount]))?;
        }
        None => {
            eprintln!("wattlock: no plain layer: build it in the repository ({BUILD}), or name it (--plain)")
        }
    }
    if let Some(version) = version_of("gocryptfs", "-version") {
        record.peer("gocryptfs", &version);
        let pass = folder.join("pass.txt").display().to_string();
        std::fs::write(&pass, "a passphrase\n")?;
        add("gocryptfs".into(), 1, &|back, mount| {
            words(&["gocryptfs", "-q", "-fg", "-nosyslog", "-passfile", &pass, back, mount])
        })?;
        let back = folder.join("back1").display().to_string();
        quiet(&words(&["gocryptfs", "-q", "-init", "-scryptn", "10", "-passfile", &pass, &back]))?;
    }
    let key = folder.join("key.txt").display().to_string();
    let recipient = new_key(Path::new(&key))?;
    let own = own.display().to_string();
    for (number, chunk) in settings.chunk.iter().enumerate() {
        let name = format!("wattlock {}", text::bytes(*chunk as u64));
        add(name, number + 2, &|back, mount| {
            words(&[&own, "mount", "--foreground", "-i", &key, back, mount])
        })?;
        let back = folder.join(format!("back{}", number + 2)).display().to_string();
        let chunk = format!("{}K", chunk >> 10);
        quiet(&words(&[&own, "fs", "init", "-r", &recipient, "--chunk", &chunk, &back]))?;
    }
    Ok(all)
}

fn quiet(command: &[String]) -> Result<()> {
    let output = Command::new(&command[0]).args(&command[1..]).stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "{}: {}", command.join(" "), String::from_utf8_lossy(&output.stderr));
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
