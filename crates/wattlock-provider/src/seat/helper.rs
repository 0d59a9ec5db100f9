//! The helper thread, and what else a process has of one provider.
//!
//! It is started when something first pauses and nobody has said that it polls. While anything is in flight it looks
//! every millisecond (every 50 us where an engine with queues works), releases what a loop has not come back for, and
//! else sleeps.

use std::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use wattlock::core::Nanos;

use super::{Seat, lock, unlock};
use crate::provider::Provider;

/// How often the helper looks while requests wait for a loop to come round.
const TICK: Duration = Duration::from_millis(1);
/// How often it looks while an engine with queues has something.
const QUEUE_TICK: Duration = Duration::from_micros(50);

/// What a process has of one provider that does not survive a fork.
pub(crate) struct Life {
    pub(crate) forks: u32,
    pub(super) seats: Mutex<Vec<Arc<Seat>>>,
    helper: Mutex<Option<Helper>>,
    bell: Condvar,
    awake: AtomicBool,
    stop: AtomicBool,
}

impl Life {
    pub(crate) fn new() -> Life {
        Life {
            forks: wattlock::forks(),
            seats: Mutex::default(),
            helper: Mutex::default(),
            bell: Condvar::new(),
            awake: AtomicBool::new(false),
            stop: AtomicBool::new(false),
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

    pub(super) fn forget(&self, gone: &Arc<Seat>) {
        lock(&self.seats).retain(|seat| !Arc::ptr_eq(seat, gone));
    }
}

/// The helper thread.
struct Helper(std::thread::JoinHandle<()>);

impl Helper {
    fn start(life: Arc<Life>, hold: Duration) -> Option<Helper> {
        let work = move || Helper::run(&life, hold.max(TICK));
        std::thread::Builder::new().name("wattlock".to_owned()).spawn(work).map(Helper).ok()
    }

    fn run(life: &Life, overdue: Duration) {
        let mut tick = TICK;
        while !life.stop.load(Relaxed) {
            std::thread::sleep(tick);
            let seats: Vec<Arc<Seat>> = lock(&life.seats).clone();
            let (mut busy, mut queued) = (false, false);
            for seat in seats {
                let (one_busy, one_queued) = seat.look_after(overdue.as_nanos() as u64);
                busy |= one_busy;
                queued |= one_queued;
            }
            tick = if queued { QUEUE_TICK } else { TICK };
            if busy || life.awake.swap(false, SeqCst) && Helper::anything(life) {
                life.awake.store(true, SeqCst);
                continue;
            }
            let mut helper = lock(&life.helper);
            while !life.awake.load(SeqCst) && !life.stop.load(Relaxed) {
                helper = life.bell.wait(helper).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Whether somebody paused while the helper made up its mind to sleep.
    fn anything(life: &Life) -> bool {
        let seats: Vec<Arc<Seat>> = lock(&life.seats).clone();
        seats.iter().any(|seat| !seat.claimed.load(Relaxed) && seat.in_flight() > 0)
    }
}

impl Provider {
    /// Sees to it that somebody looks after what is paused.
    pub(super) fn watch(&self) {
        let life = self.life();
        if life.awake.swap(true, SeqCst) {
            return;
        }
        let mut helper = lock(&life.helper);
        match &*helper {
            Some(_) => life.bell.notify_one(),
            None => *helper = Helper::start(life.clone(), self.current().settings.hold),
        }
    }
}

impl Seat {
    /// The helper's look: releases what a loop has not come back for, and takes in what is done. Returns whether
    /// anything is still in flight, and whether an engine with queues has it.
    fn look_after(&self, overdue_ns: Nanos) -> (bool, bool) {
        // Its thread is at work, which may take long and may have nothing to do with who waits.
        let Ok(mut state) = self.state.try_lock() else { return (self.waited_for.load(Relaxed), false) };
        if self.claimed.load(Relaxed) {
            return (false, false);
        }
        let now = state.now();
        if state.gathered.first().is_some_and(|one| now.saturating_sub(one.since) >= overdue_ns) {
            state.release(None, None);
        } else if state.dispatcher.in_flight() > 0 {
            state.collect(None);
        }
        let queued = state.waiting.iter().any(Option::is_some);
        let busy = queued || !state.gathered.is_empty();
        unlock(state);
        (busy, queued)
    }
}
