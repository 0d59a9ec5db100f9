//! Lines on standard error, which is the bridge's log, and the text that a command prints.
//!
//! A log that is full, closed or stands still costs lines and nothing else: a thread of its own writes them, and lines
//! that find no room in its queue are dropped. librdkafka's threads log through here, and a panic must not reach them.

use std::collections::HashMap;
use std::io::Write;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Lines that wait for standard error.
const WAITING: usize = 1024;
/// How long a line that says the same as one before it is left out.
const AGAIN: Duration = Duration::from_secs(30);
/// Different lines that are remembered.
const REMEMBERED: usize = 256;

enum Job {
    Line(String),
    Done(SyncSender<()>),
}

fn queue() -> Option<&'static SyncSender<Job>> {
    static QUEUE: OnceLock<Option<SyncSender<Job>>> = OnceLock::new();
    let start = || {
        let (sender, jobs) = sync_channel(WAITING);
        let write = move || {
            for job in jobs {
                match job {
                    Job::Line(line) => drop(std::io::stderr().write_all(line.as_bytes())),
                    Job::Done(done) => drop(done.try_send(())),
                }
            }
        };
        std::thread::Builder::new().name("log".into()).spawn(write).ok().map(|_| sender)
    };
    QUEUE.get_or_init(start).as_ref()
}

/// A line.
pub fn line(what: &str) {
    let line = format!("wattlock-bridge: {}\n", what.replace(char::is_control, " "));
    match queue() {
        Some(queue) => drop(queue.try_send(Job::Line(line))),
        None => drop(std::io::stderr().write_all(line.as_bytes())),
    }
}

/// A line, unless the same one was said in the last half minute.
pub fn again(what: &str) {
    static SAID: Mutex<Option<HashMap<String, Instant>>> = Mutex::new(None);
    let mut said = SAID.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let said = said.get_or_insert_default();
    if said.get(what).is_some_and(|at| at.elapsed() < AGAIN) {
        return;
    }
    if said.len() >= REMEMBERED {
        said.clear();
    }
    said.insert(what.to_owned(), Instant::now());
    line(what);
}

/// Waits until standard error has everything, for a second at most.
pub fn finish() {
    let (done, heard) = sync_channel(1);
    if queue().is_some_and(|queue| queue.try_send(Job::Done(done)).is_ok()) {
        let _ = heard.recv_timeout(Duration::from_secs(1));
    }
}

/// A line on standard output. It is what the command was run for, so losing it is an error.
///
/// # Errors
/// [`wattlock_door::Error::DiskFull`], [`wattlock_door::Error::ClosedPipe`] and their like.
pub fn put(text: &str) -> Result<(), wattlock_files::Error> {
    std::io::stdout().write_all(format!("{text}\n").as_bytes()).map_err(wattlock_files::Error::writing)
}
