//! Running another program's command: its signals, its end, its CPU time.

use std::ffi::OsString;
use std::io;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::Cause;
use wattlock_shell::joules::children_cpu_s;

const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// How a command ended.
pub struct Ended {
    /// With what.
    pub status: ExitStatus,
    /// CPU seconds, user and system, of it and what it waited for.
    pub cpu_s: f64,
}

/// Starts a command and waits for its end; `tick` is called every `interval` meanwhile. Signals sent to us are sent on
/// to it; those of the terminal it gets from the terminal.
pub fn run(command: &[OsString], interval: Duration, mut tick: impl FnMut()) -> Result<io::Result<Ended>> {
    let ignored = ignored();
    let heard = FORWARDED.into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let mut signals = SignalsInfo::<WithOrigin>::new(heard).context("no signal handlers")?;
    let before = children_cpu_s()?;
    let (program, arguments) = command.split_first().context("no command")?;
    let child = match Command::new(program).args(arguments).spawn() {
        Ok(child) => child,
        Err(error) => return Ok(Err(error)),
    };
    // By descriptor and not by number: the number may be another process's by the time a signal comes.
    // Kernels before 5.3 have no such descriptors; the number must do there.
    let pid = pid(&child)?;
    let handle = pidfd_open(pid, PidfdFlags::empty());
    thread::spawn(move || {
        for origin in &mut signals {
            if !matches!(origin.cause, Cause::Kernel)
                && let Some(signal) = Signal::from_named_raw(origin.signal)
            {
                let _ = match &handle {
                    Ok(handle) => pidfd_send_signal(handle, signal),
                    Err(_) => kill_process(pid, signal),
                };
            }
        }
    });
    let status = wait(child, interval, &mut tick)?;
    Ok(Ok(Ended { status, cpu_s: children_cpu_s()? - before }))
}

/// Signals that our parent had us ignore (`nohup`), bit n for signal n + 1: a handler of ours would undo that for
/// the command too.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn pid(child: &Child) -> Result<Pid> {
    Pid::from_raw(child.id() as i32).context("a process without a number")
}

/// A thread waits, so that the end is seen at once and not at the next tick.
fn wait(mut child: Child, interval: Duration, tick: &mut impl FnMut()) -> Result<ExitStatus> {
    let (ended, end) = channel();
    thread::spawn(move || ended.send(child.wait()));
    loop {
        match end.recv_timeout(interval) {
            Ok(status) => return status.context("waiting for the command"),
            Err(RecvTimeoutError::Timeout) => tick(),
            Err(RecvTimeoutError::Disconnected) => anyhow::bail!("nobody waits for the command"),
        }
    }
}
