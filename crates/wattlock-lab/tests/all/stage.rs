//! Threads of a scene in virtual time: real threads, of which one runs at a time, each bound to a core of the scene.
//!
//! The code of a thread takes no time. What does is a *burst* on its core, and *sleep* until the device has done something.
//! After sleep, and before it looks again after a burst, a thread stands behind the others of its core.
//!
//! An engine's calls come with locks held that other threads want, so they do not wait: they leave a debt, or a note that
//! they found nothing, and the thread's next reading of the clock ([`Stage::read`]), which holds no lock, is where it waits.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};

use wattlock_core::Nanos;

thread_local! {
    static ME: Cell<Option<usize>> = const { Cell::new(None) };
    static DEBT_NS: Cell<f64> = const { Cell::new(0.0) };
    static IN_VAIN: Cell<u32> = const { Cell::new(0) };
    static HAD_ITS_BURST: Cell<bool> = const { Cell::new(false) };
}

/// The device behind the threads.
pub trait Behind: Send + Sync {
    /// When something happens next.
    fn next(&self) -> Option<Nanos>;
    /// Time has passed up to then.
    fn pass(&self, now: Nanos);
    /// A thread has paid for its call: what it handed over arrives.
    fn arrive(&self, thread: usize, now: Nanos);
}

/// Whether the calling thread is on a stage, and which it is.
pub fn me() -> Option<usize> {
    ME.get()
}

/// The calling thread's core is busy for so long more before its clock is read again.
pub fn owe(ns: f64) {
    DEBT_NS.set(DEBT_NS.get() + ns);
}

/// The calling thread has looked and found nothing, or something after all. Once in vain may be by the way; a thread that
/// does nothing else between two looks waits.
pub fn looked(in_vain: bool) {
    IN_VAIN.set(if in_vain { IN_VAIN.get() + 1 } else { 0 });
}

pub struct Stage {
    clock: Arc<AtomicU64>,
    behind: OnceLock<Arc<dyn Behind>>,
    inner: Mutex<Inner>,
    wake: Vec<Condvar>,
}

struct Inner {
    now: Nanos,
    granted: Option<usize>,
    cores: Vec<Core>,
    /// For each thread its core.
    of: Vec<usize>,
    /// When a thread's burst ends.
    bursts: BinaryHeap<Reverse<(Nanos, u64, usize)>>,
    number: u64,
    asleep: Vec<usize>,
    left: usize,
    busy_ns: u128,
    idle: (Nanos, u128, u16),
}

#[derive(Default, Clone)]
struct Core {
    thread: Option<usize>,
    ready: VecDeque<usize>,
}

/// As the simulator looks at the idle share.
const IDLE_EVERY_NS: Nanos = 2_000_000;

impl Stage {
    /// For each thread its core.
    pub fn new(cores: usize, of: Vec<usize>, clock: Arc<AtomicU64>) -> Stage {
        let mut all = vec![Core::default(); cores];
        of.iter().enumerate().for_each(|(thread, core)| all[*core].ready.push_back(thread));
        Stage {
            clock,
            behind: OnceLock::new(),
            wake: of.iter().map(|_| Condvar::new()).collect(),
            inner: Mutex::new(Inner {
                now: 0,
                granted: None,
                cores: all,
                left: of.len(),
                of,
                bursts: BinaryHeap::new(),
                number: 0,
                asleep: Vec::new(),
                busy_ns: 0,
                idle: (0, 0, 0),
            }),
        }
    }

    pub fn behind(&self, device: Arc<dyn Behind>) {
        assert!(self.behind.set(device).is_ok(), "one device");
    }

    /// The calling thread begins: it returns when it has its core.
    pub fn enter(&self, thread: usize) {
        ME.set(Some(thread));
        let mut inner = self.lock();
        if inner.granted.is_none() {
            self.go_on(&mut inner);
        }
        self.wait(inner, thread);
    }

    /// The calling thread ends.
    pub fn leave(&self) {
        let (mut inner, thread) = self.mine();
        ME.set(None);
        inner.left -= 1;
        let core = inner.of[thread];
        inner.cores[core].thread = None;
        self.go_on(&mut inner);
    }

    /// The clock, once the calling thread has paid what it owes, or slept if it found nothing.
    pub fn read(&self) -> Nanos {
        if me().is_none() {
            return self.clock.load(Relaxed);
        }
        let (debt, in_vain) = (DEBT_NS.replace(0.0), IN_VAIN.get());
        if debt > 0.0 {
            self.burst(debt);
            HAD_ITS_BURST.set(true);
        } else if in_vain > 1 {
            self.leave_core(|inner, thread| inner.asleep.push(thread));
        } else {
            self.stand_behind();
        }
        self.clock.load(Relaxed)
    }

    /// The calling thread's core is busy for so long.
    pub fn burst(&self, ns: f64) {
        self.stand_behind();
        IN_VAIN.set(0);
        let (mut inner, thread) = self.mine();
        let at = inner.now + (ns.round() as Nanos).max(1);
        inner.number += 1;
        let number = inner.number;
        inner.bursts.push(Reverse((at, number, thread)));
        self.go_on(&mut inner);
        self.wait(inner, thread);
    }

    /// A thread that had a burst stands behind the others of its core.
    fn stand_behind(&self) {
        if HAD_ITS_BURST.replace(false) {
            self.leave_core(|inner, thread| {
                let core = inner.of[thread];
                inner.cores[core].ready.push_back(thread);
            });
        }
    }

    fn leave_core(&self, to: impl FnOnce(&mut Inner, usize)) {
        HAD_ITS_BURST.set(false);
        IN_VAIN.set(0);
        let (mut inner, thread) = self.mine();
        let core = inner.of[thread];
        inner.cores[core].thread = None;
        to(&mut inner, thread);
        self.go_on(&mut inner);
        self.wait(inner, thread);
    }

    /// The idle share of the cores, as the simulator sees it.
    pub fn idle_permille(&self) -> u16 {
        let mut inner = self.lock();
        let (since, busy, permille) = inner.idle;
        let ns = inner.now - since;
        if ns < IDLE_EVERY_NS {
            return permille;
        }
        let share = 1.0 - (inner.busy_ns - busy) as f64 / (ns as f64 * inner.cores.len() as f64);
        inner.idle = (inner.now, inner.busy_ns, (1000.0 * share.clamp(0.0, 1.0)) as u16);
        inner.idle.2
    }

    fn device(&self) -> &dyn Behind {
        &**self.behind.get().unwrap()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    fn mine(&self) -> (MutexGuard<'_, Inner>, usize) {
        let (inner, thread) = (self.lock(), me().unwrap());
        assert_eq!(inner.granted, Some(thread), "one runs at a time");
        (inner, thread)
    }

    fn wait(&self, mut inner: MutexGuard<'_, Inner>, thread: usize) {
        while inner.granted != Some(thread) {
            inner = self.wake[thread].wait(inner).unwrap();
        }
    }

    /// Time goes on until a thread can run.
    fn go_on(&self, inner: &mut Inner) {
        inner.granted = None;
        while inner.left > 0 {
            for core in &mut inner.cores {
                if core.thread.is_none()
                    && let Some(thread) = core.ready.pop_front()
                {
                    core.thread = Some(thread);
                    return self.grant(inner, thread);
                }
            }
            let burst = inner.bursts.peek().map(|Reverse(burst)| burst.0);
            let device = self.device().next().filter(|at| burst.is_none_or(|burst| *at <= burst));
            let at = device.or(burst).expect("something will happen");
            inner.busy_ns += u128::from(at.saturating_sub(inner.now)) * inner.bursts.len() as u128;
            inner.now = inner.now.max(at);
            self.clock.store(inner.now, Relaxed);
            if device.is_some() {
                self.device().pass(inner.now);
                for thread in std::mem::take(&mut inner.asleep) {
                    let core = inner.of[thread];
                    inner.cores[core].ready.push_back(thread);
                }
                continue;
            }
            let Some(Reverse((_, _, thread))) = inner.bursts.pop() else { continue };
            self.device().arrive(thread, inner.now);
            return self.grant(inner, thread);
        }
    }

    fn grant(&self, inner: &mut Inner, thread: usize) {
        inner.granted = Some(thread);
        self.wake[thread].notify_one();
    }
}
