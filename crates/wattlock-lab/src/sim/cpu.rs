//! A CPU: k cores that share one memory. Work comes in bursts, for a certain core or for whichever is free, and is
//! done in the order of its coming without preemption. It knows when bursts end, not what they are for.
//!
//! Memory is shared by slowing down: while the bursts that run ask for more bytes a second than the memory moves, those
//! that move any are slowed in the same proportion; a burst that moves none is not.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use wattlock_core::Nanos;

/// Kinds of use that are told apart for power: a burst names one of them, 0 to `USES - 1`.
pub const USES: usize = 4;

/// A piece of work for one core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Burst {
    /// The owner's name for it.
    pub id: u64,
    /// How long a core takes for it that has the memory for itself.
    pub ns: Nanos,
    /// What it moves to and from memory meanwhile.
    pub memory_bytes: u64,
    /// What the time counts as, 0 to `USES - 1`.
    pub usage: usize,
    /// The core that must do it; `None` for any.
    pub core: Option<usize>,
}

impl Burst {
    /// Work that moves nothing, for any core.
    pub fn new(id: u64, ns: Nanos) -> Burst {
        Burst { id, ns, memory_bytes: 0, usage: 0, core: None }
    }

    /// The same on that core.
    pub fn on(self, core: usize) -> Burst {
        Burst { core: Some(core), ..self }
    }
}

/// A burst that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// The owner's name for it.
    pub id: u64,
    /// Which core did it.
    pub core: usize,
    /// When it was begun.
    pub started: Nanos,
    /// When it was done.
    pub at: Nanos,
}

/// The cores.
#[derive(Debug)]
pub struct Cpu {
    running: Vec<Option<Running>>,
    /// When each of them ends at the present pace, and its core.
    ends: BinaryHeap<Reverse<(Nanos, usize)>>,
    /// Cores at work, by use.
    at_work: [usize; USES],
    waiting: VecDeque<Burst>,
    memory_bytes_per_ns: f64,
    /// How fast bursts that use memory run: 1 while there is enough.
    pace: f64,
    now: Nanos,
    busy_ns: [u128; USES],
    done: Vec<Ended>,
}

#[derive(Debug, Clone, Copy)]
struct Running {
    burst: Burst,
    started: Nanos,
    /// Nanoseconds left at full pace when the pace last changed, and when that was.
    left: f64,
    since: Nanos,
}

impl Running {
    fn bytes_per_ns(&self) -> f64 {
        self.burst.memory_bytes as f64 / self.burst.ns.max(1) as f64
    }

    /// How fast it runs when users of memory run at `pace`.
    fn pace(&self, pace: f64) -> f64 {
        if self.burst.memory_bytes > 0 { pace } else { 1.0 }
    }

    fn ends(&self, pace: f64) -> Nanos {
        self.since.saturating_add((self.left / self.pace(pace)).ceil().max(0.0) as Nanos)
    }
}

impl Cpu {
    /// So many idle cores, at least one, with memory that never runs short.
    pub fn new(cores: usize) -> Cpu {
        Cpu {
            running: vec![None; cores.max(1)],
            ends: BinaryHeap::new(),
            at_work: [0; USES],
            waiting: VecDeque::new(),
            memory_bytes_per_ns: f64::INFINITY,
            pace: 1.0,
            now: 0,
            busy_ns: [0; USES],
            done: Vec::new(),
        }
    }

    /// The same with a memory that moves so many bytes a second.
    pub fn with_memory(self, bytes_per_s: f64) -> Cpu {
        Cpu { memory_bytes_per_ns: bytes_per_s.max(1.0) / 1e9, ..self }
    }

    /// Number of cores.
    pub fn cores(&self) -> usize {
        self.running.len()
    }

    /// Gives a burst to its core, or to the first free one.
    ///
    /// # Panics
    /// If there is no such core or use.
    pub fn start(&mut self, now: Nanos, burst: Burst) {
        assert!(burst.core.is_none_or(|core| core < self.cores()) && burst.usage < USES, "{burst:?}");
        self.settle(now);
        self.waiting.push_back(burst);
        self.fill();
    }

    /// When the next burst ends, if nothing is started before.
    pub fn next_event(&self) -> Option<Nanos> {
        self.ends.peek().map(|Reverse((at, _))| *at)
    }

    /// Lets time pass up to `now`, and reports what ended, in the order of time.
    pub fn advance(&mut self, now: Nanos, done: &mut dyn FnMut(Ended)) {
        self.settle(now);
        self.done.drain(..).for_each(done);
    }

    /// Cores at work.
    pub fn busy(&self) -> usize {
        self.at_work.iter().sum()
    }

    /// Cores at work of that use.
    pub fn busy_with(&self, usage: usize) -> usize {
        self.at_work[usage]
    }

    /// Bursts that no core has begun.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Core time spent on that use so far.
    pub fn busy_ns(&self, usage: usize) -> u128 {
        self.busy_ns[usage]
    }

    /// Core time spent so far, on anything.
    pub fn all_busy_ns(&self) -> u128 {
        self.busy_ns.iter().sum()
    }

    fn settle(&mut self, now: Nanos) {
        while let Some(at) = self.next_event().filter(|at| *at <= now) {
            self.pass(at);
            while let Some(Reverse((_, core))) = self.ends.peek().copied().filter(|next| next.0.0 <= at) {
                self.ends.pop();
                let Some(one) = self.running[core].take() else { continue };
                self.at_work[one.burst.usage] -= 1;
                self.done.push(Ended { id: one.burst.id, core, started: one.started, at });
            }
            self.fill();
        }
        self.pass(now);
    }

    /// Moves time on over an interval in which nothing starts or ends.
    fn pass(&mut self, now: Nanos) {
        let ns = now.saturating_sub(self.now);
        self.now = self.now.max(now);
        for (busy_ns, at_work) in self.busy_ns.iter_mut().zip(self.at_work) {
            *busy_ns += u128::from(ns) * at_work as u128;
        }
    }

    /// Puts waiting bursts on free cores, the oldest first.
    fn fill(&mut self) {
        let mut index = 0;
        while index < self.waiting.len() && self.busy() < self.cores() {
            let burst = self.waiting[index];
            let free = match burst.core {
                Some(core) => self.running[core].is_none().then_some(core),
                None => self.running.iter().position(Option::is_none),
            };
            let Some(core) = free else {
                index += 1;
                continue;
            };
            self.waiting.remove(index);
            self.at_work[burst.usage] += 1;
            let one = Running { burst, started: self.now, left: burst.ns as f64, since: self.now };
            self.ends.push(Reverse((one.ends(self.pace), core)));
            self.running[core] = Some(one);
        }
        if self.memory_bytes_per_ns.is_finite() {
            self.share_memory();
        }
    }

    /// Sets the pace of the present users of memory.
    fn share_memory(&mut self) {
        let asked: f64 = self.running.iter().flatten().map(Running::bytes_per_ns).sum();
        let pace = if asked > self.memory_bytes_per_ns { self.memory_bytes_per_ns / asked } else { 1.0 };
        if pace == self.pace {
            return;
        }
        for one in self.running.iter_mut().flatten() {
            let passed = self.now.saturating_sub(one.since) as f64;
            one.left -= passed * one.pace(self.pace);
            one.since = self.now;
        }
        self.pace = pace;
        let running = self.running.iter().enumerate();
        self.ends =
            running.filter_map(|(core, one)| Some(Reverse((one.as_ref()?.ends(pace), core)))).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(cpu: &mut Cpu, until: Nanos) -> Vec<(u64, usize, Nanos)> {
        let mut ends = Vec::new();
        cpu.advance(until, &mut |one| ends.push((one.id, one.core, one.at)));
        ends
    }

    #[test]
    fn a_burst_waits_for_its_own_core_and_any_other_for_a_free_one() {
        let mut cpu = Cpu::new(2);
        for burst in [
            Burst::new(1, 100).on(0),
            Burst::new(2, 100).on(0),
            Burst::new(3, 50),
            Burst::new(4, 50),
            Burst::new(5, 10),
        ] {
            cpu.start(0, burst);
        }
        assert_eq!((cpu.busy(), cpu.waiting(), cpu.next_event()), (2, 3, Some(50)));
        assert_eq!(ends(&mut cpu, 1000), [(3, 1, 50), (1, 0, 100), (4, 1, 100), (5, 1, 110), (2, 0, 200)]);
        assert_eq!(cpu.all_busy_ns(), 310);
    }

    #[test]
    fn memory_that_runs_short_slows_those_who_use_it() {
        let mut cpu = Cpu::new(3).with_memory(1e9);
        let copy = |id| Burst { memory_bytes: 100, usage: 1, ..Burst::new(id, 100) };
        for burst in [copy(1), copy(2), Burst::new(3, 150)] {
            cpu.start(0, burst);
        }
        // Two ask for a byte a nanosecond each and there is one: both take twice as long.
        assert_eq!(ends(&mut cpu, 1000), [(3, 2, 150), (1, 0, 200), (2, 1, 200)]);
        assert_eq!((cpu.busy_ns(0), cpu.busy_ns(1)), (150, 400));
    }
}
