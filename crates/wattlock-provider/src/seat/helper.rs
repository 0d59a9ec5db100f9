//! The helper thread, and what else a process has of one provider.
//!
//! It is started when something first pauses and the program has not said that it polls. It sleeps until what has
//! waited longest has waited long enough, releases what a loop has not come back for, looks every 50 us where an engine
//! with queues works, and every millisecond while the thread that it looks after is busy. With nothing in flight it
//! sleeps.

use std::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::{Seat, lock, unlock};
use crate::provider::Provider;
use crate::spread::Crew;

/// How soon the helper looks again where it could not: the thread with the requests is at work.
const TICK: Duration = Duration::from_millis(1);
/// How often it looks while an engine with queues has something, and the least it sleeps.
const QUEUE_TICK: Duration = Duration::from_micros(50);

/// The seats of all threads.
pub(super) type Seats = Mutex<Vec<Arc<Seat>>>;

/// What a process has of one provider that does not survive a fork.
pub(crate) struct Life {
    pub(crate) forks: u32,
    pub(super) seats: Arc<Seats>,
    helper: Mutex<Option<Helper>>,
    bell: Condvar,
    awake: AtomicBool,
    stop: AtomicBool,
    /// Threads that compress, if this process has asked for them.
    pub(crate) crew: OnceLock<Option<Arc<Crew>>>,
}

impl Life {
    pub(crate) fn new() -> Life {
        Life {
            forks: wattlock::forks(),
            seats: Arc::default(),
            helper: Mutex::default(),
            bell: Condvar::new(),
            awake: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            crew: OnceLock::new(),
        }
    }

    /// Ends the helper thread.
    pub(super) fn end_helper(&self) {
        self.stop.store(true, Relaxed);
        let helper = lock(&self.helper).take();
        self.bell.notify_all();
        if let Some(helper) = helper {
            let _ = helper.0.join();
        }
    }
}

/// The helper thread.
struct Helper(std::thread::JoinHandle<()>);

impl Helper {
    fn start(life: Arc<Life>) -> Option<Helper> {
        let work = move || Helper::run(&life);
        std::thread::Builder::new().name("wattlock".to_owned()).spawn(work).map(Helper).ok()
    }

    fn run(life: &Life) {
        while !life.stop.load(Relaxed) {
            let seats: Vec<Arc<Seat>> = lock(&life.seats).clone();
            let due = seats.iter().filter_map(|seat| seat.look_after()).min();
            if due.is_some() || life.awake.swap(false, SeqCst) && Helper::anything(life) {
                life.awake.store(true, SeqCst);
                std::thread::sleep(due.unwrap_or(TICK).max(QUEUE_TICK));
                continue;
            }
            let mut helper = lock(&life.helper);
            while !life.awake.load(SeqCst) && !life.stop.load(Relaxed) {
                helper = life.bell.wait(helper).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Whether a job paused while the helper made up its mind to sleep.
    fn anything(life: &Life) -> bool {
        let seats: Vec<Arc<Seat>> = lock(&life.seats).clone();
        seats.iter().any(|seat| !seat.claimed.load(Relaxed) && seat.is_waited_for())
    }
}

impl Provider {
    /// Starts or wakes the helper for paused jobs.
    pub(super) fn watch(&self) {
        let life = self.life();
        if life.awake.swap(true, SeqCst) {
            return;
        }
        let mut helper = lock(&life.helper);
        match &*helper {
            Some(_) => life.bell.notify_one(),
            None => *helper = Helper::start(life.clone()),
        }
    }
}

impl Seat {
    /// Whether a job waits here; of a thread at work, as it was when it began. A call that waits for a device is not waited
    /// for: it would keep other threads' jobs.
    fn is_waited_for(&self) -> bool {
        match self.state.try_lock() {
            Ok(state) => state.in_flight() > 0,
            Err(_) => self.waited_for.load(Relaxed),
        }
    }

    /// The helper's look: releases what a loop has not come back for, and takes in what is done. Returns in what time to
    /// look again, if anything is still in flight.
    fn look_after(&self) -> Option<Duration> {
        // Its thread is at work, which may take long and may have nothing to do with the waiting job.
        let Ok(mut state) = self.state.try_lock() else {
            return self.waited_for.load(Relaxed).then_some(TICK);
        };
        if self.claimed.load(Relaxed) {
            return None;
        }
        let now = state.now();
        let mut left_ns = state.left_ns(self.said(), now);
        if left_ns == Some(0) {
            state.release(None, None);
            left_ns = None;
        }
        if state.dispatcher.in_flight() > 0 {
            state.collect(None);
        }
        let queued = state.has_sent();
        unlock(state);
        if queued { Some(QUEUE_TICK) } else { left_ns.map(Duration::from_nanos) }
    }
}
