//! What starting costs: the first use of the command line on a machine without a profile, later uses, and loading the
//! runtime as a library.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::json;
use wattlock::Runtime;

use super::{machine_line, pair};
use crate::setup::{self, Choice};
use crate::text;

/// Runs the benchmark.
pub fn run(choice: &Choice, json: bool) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let profile = folder.path().join("profile.json");
    let key = folder.path().join("key.txt");
    let recipient = super::files::new_key(&key)?;
    let binary = std::env::current_exe()?;
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
    for _ in 0..5 {
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
    if json {
        let row = json!({"bench": "start", "first_use_s": first, "later_use_s": later, "load_s": load,
            "load_median_s": pair::median(loads), "first_dispatcher_s": dispatcher, "threads_started": new_threads,
            "machine": machine_line()});
        say!("{row}");
        return Ok(());
    }
    let show = |seconds: f64| text::nanos(seconds * 1e9);
    say!("{}", machine_line());
    say!("seal of nothing, no profile (calibrates)   {}", show(first));
    say!("the same with a profile                    {}", show(later));
    say!("first use adds                             {}", show(first - later));
    say!("loading the runtime, first in the process  {}", show(load));
    say!("                     median of {}          {}", loads.len(), show(pair::median(loads)));
    say!("a thread's first dispatcher                {}", show(dispatcher));
    say!("threads started by loading                 {new_threads}");
    Ok(())
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}
