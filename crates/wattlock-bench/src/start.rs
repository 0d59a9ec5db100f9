//! What starting costs: the first use of the command line on a machine without a profile, later uses, loading the
//! runtime as a library, and loading the provider into a program that uses OpenSSL.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};
use wattlock::Runtime;
use wattlock_shell::parts::{self, First, PROVIDER};
use wattlock_shell::setup::{self, Choice};
use wattlock_shell::text;

use super::record::{By, Record, Row, version_of};
use super::{machine_line, pair};

/// Runs with and without a profile.
const USES: usize = 5;
/// Runs of `openssl` with the provider and without.
const PROVIDER_LOADS: usize = 41;

/// Runs the benchmark.
pub fn run(choice: &Choice, mut record: Record) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let profile = folder.path().join("profile.json");
    let key = folder.path().join("key.txt");
    let recipient = super::files::new_key(&key)?;
    let binary = wattlock_shell::program::wattlock()?;
    let seal = |label: &str| -> Result<f64> {
        let start = Instant::now();
        let status = Command::new(&binary)
            .args(["seal", "-q", "-r", &recipient, "-o", "-"])
            .env("WATTLOCK_PROFILE", &profile)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()
            .with_context(|| label.to_owned())?;
        anyhow::ensure!(status.success(), "{label}: {status}");
        Ok(start.elapsed().as_secs_f64())
    };
    let (mut first, mut later) = (Vec::new(), Vec::new());
    for _ in 0..USES {
        let _ = std::fs::remove_file(&profile);
        first.push(seal("first use")?);
        later.push(seal("later use")?);
    }
    let (first, later) = (pair::median(first), pair::median(later));
    let threads_before = threads();
    let (mut loads, mut dispatchers) = (Vec::new(), Vec::new());
    for _ in 0..21 {
        let engines = setup::engines(choice)?;
        let start = Instant::now();
        let runtime = Runtime::builder().engines(engines).build()?;
        loads.push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        let dispatcher = runtime.dispatcher();
        dispatchers.push(start.elapsed().as_secs_f64());
        drop(dispatcher);
    }
    let new_threads = threads().saturating_sub(threads_before);
    // The first load in a process also detects the CPU and reads its files cold: it is the one that counts.
    let (load, dispatcher) = (loads[0], dispatchers[0]);
    let provider = provider_load()?;
    let loaded = pair::median(loads.clone());
    let mut row = |name, seconds, rounds| {
        record.add(Row::alone("start", name, "s", By::Time, seconds, rounds));
    };
    row("first-use", first, USES);
    row("later-use", later, USES);
    row("runtime-first-load", load, 1);
    row("runtime-load", loaded, loads.len());
    row("first-dispatcher", dispatcher, 1);
    if let Some(added) = provider {
        row("provider-load", added, PROVIDER_LOADS);
        if let Some(version) = version_of("openssl", "version") {
            record.peer("openssl", &version);
        }
    }
    record.add(Row::alone("start", "threads", "threads", By::Time, new_threads as f64, 1));
    if !record.shows() {
        return record.finish();
    }
    let show = |seconds: f64| text::nanos(seconds * 1e9);
    say!("{}", machine_line());
    say!("seal of nothing, no profile (calibrates)   {}", show(first));
    say!("the same with a profile                    {}", show(later));
    say!("first use adds                             {}", show(first - later));
    say!("loading the runtime, first in the process  {}", show(load));
    say!("                     median of {}          {}", loads.len(), show(loaded));
    say!("a thread's first dispatcher                {}", show(dispatcher));
    say!("threads started by loading                 {new_threads}");
    match provider {
        Some(added) => say!("loading the provider adds to `openssl`      {}", show(added)),
        None => say!("the provider is not built, or there is no `openssl`: not measured"),
    }
    record.finish()
}

/// Seconds by which loading the provider lengthens the shortest run of `openssl` that loads providers; median of runs in
/// turn. `None` if the provider or `openssl` is not there.
fn provider_load() -> Result<Option<f64>> {
    let Ok(module) = parts::find(PROVIDER, &[PathBuf::new()], First::Built, "") else { return Ok(None) };
    let folder = tempfile::tempdir()?;
    let text = |lines: &str| {
        format!("openssl_conf = i\n[i]\nproviders = p\n[p]\ndefault = d\n{lines}[d]\nactivate = 1\n")
    };
    let ours = format!("wattlock = w\n[w]\nmodule = {}\nactivate = 1\n", module.display());
    let mut configurations = Vec::new();
    for (name, lines) in [("without", ""), ("with", ours.as_str())] {
        let path = folder.path().join(name);
        std::fs::write(&path, text(lines))?;
        configurations.push(path);
    }
    let run = |configuration: &std::path::Path| {
        let start = Instant::now();
        let output =
            Command::new("openssl").args(["list", "-providers"]).env("OPENSSL_CONF", configuration).output();
        let text = output.ok().filter(|output| output.status.success())?.stdout;
        Some((start.elapsed().as_secs_f64(), String::from_utf8_lossy(&text).contains("Wattlock")))
    };
    let mut added = Vec::new();
    for _ in 0..PROVIDER_LOADS {
        let [Some((without, false)), Some((with, true))] = [run(&configurations[0]), run(&configurations[1])]
        else {
            return Ok(None);
        };
        added.push(with - without);
    }
    Ok(Some(pair::median(added)))
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}
