//! Threads of a scene in virtual time: real threads, of which one runs at a time, each bound to a core of the scene.
//!
//! The code of a thread takes no time. What does is a *burst* on its core, and *sleep* until the device has done something.
//! After sleep, and before it looks again after a burst, a thread stands behind the others of its core.
//!
//! An engine's calls come with locks held that other threads want, so they do not wait: they leave a debt, or a note that
//! they found nothing, and the thread's next reading of the clock ([`Stage::read`]), which holds no lock, is where it waits.

#![allow(clippy::unwrap_used, reason = "a scene that cannot go on has failed")]

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
    /// How often the thread has read the clock since time last passed.
    static READS: Cell<(Nanos, u32)> = const { Cell::new((0, 0)) };
    static LEAVES: Cell<Option<Leaves>> = const { Cell::new(None) };
}

/// A thread that reads the clock so often while no time passes waits for others.
const READS_IN_VAIN: u32 = 64;

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

/// Threads and their cores.
pub struct Stage {
    clock: Arc<AtomicU64>,
    behind: OnceLock<Arc<dyn Behind>>,
    inner: Mutex<Inner>,
    wake: Vec<Condvar>,
    named: Option<&'static str>,
}

/// Leaves a stage at its thread's end.
struct Leaves(Arc<Stage>);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.leave();
    }
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
    /// How often in a row they were woken while nothing was to come.
    in_vain: u32,
    left: usize,
    busy_ns: u128,
    idle: (Nanos, u128, u16),
}

#[derive(Default, Clone)]
struct Core {
    thread: Option<usize>,
    ready: VecDeque<usize>,
}

impl Inner {
    fn wake_all(&mut self) {
        for thread in std::mem::take(&mut self.asleep) {
            let core = self.of[thread];
            self.cores[core].ready.push_back(thread);
        }
    }
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
            named: None,
            wake: of.iter().map(|_| Condvar::new()).collect(),
            inner: Mutex::new(Inner {
                now: 0,
                granted: None,
                cores: all,
                in_vain: 0,
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

    /// The device behind them; there is one.
    pub fn behind(&self, device: Arc<dyn Behind>) {
        assert!(self.behind.set(device).is_ok(), "one device");
    }

    /// A thread of the product's own that has this name is the stage's last one, from its first look at the clock to its
    /// end.
    pub fn named(self, name: &'static str) -> Stage {
        Stage { named: Some(name), ..self }
    }

    /// The calling thread begins if it is that one.
    pub fn enter_if_named(self: &Arc<Stage>) {
        if self.named.is_some() && me().is_none() && std::thread::current().name() == self.named {
            let last = self.wake.len() - 1;
            self.enter(last);
            LEAVES.set(Some(Leaves(self.clone())));
        }
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
        let (at, reads) = (self.clock.load(Relaxed), READS.get());
        READS.set((at, if at == reads.0 { reads.1 + 1 } else { 0 }));
        if debt > 0.0 {
            self.burst(debt);
            HAD_ITS_BURST.set(true);
        } else if in_vain > 1 || READS.get().1 > READS_IN_VAIN {
            READS.set((at, 0));
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
            let Some(at) = device.or(burst) else {
                // What they wait for was another thread's doing, which has slept or ended since.
                inner.in_vain += 1;
                assert!(inner.in_vain < 1000 && !inner.asleep.is_empty(), "nothing will happen");
                inner.wake_all();
                continue;
            };
            inner.in_vain = 0;
            inner.busy_ns += u128::from(at.saturating_sub(inner.now)) * inner.bursts.len() as u128;
            inner.now = inner.now.max(at);
            self.clock.store(inner.now, Relaxed);
            if device.is_some() {
                self.device().pass(inner.now);
                inner.wake_all();
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
