//! A CPU: k cores. Work comes in bursts, for a certain core or for whichever is free, and is
//! done in the order of its coming without preemption. It knows when bursts end, not what they are for.

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
    /// How long a core takes for it.
    pub ns: Nanos,
    /// What the time counts as, 0 to `USES - 1`.
    pub usage: usize,
    /// The core that must do it; `None` for any.
    pub core: Option<usize>,
}

impl Burst {
    /// Work for any core.
    pub fn new(id: u64, ns: Nanos) -> Burst {
        Burst { id, ns, usage: 0, core: None }
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
    /// When each of them ends, and its core.
    ends: BinaryHeap<Reverse<(Nanos, usize)>>,
    /// Cores at work, by use.
    at_work: [usize; USES],
    waiting: VecDeque<Burst>,
    now: Nanos,
    busy_ns: u128,
    done: Vec<Ended>,
}

#[derive(Debug, Clone, Copy)]
struct Running {
    burst: Burst,
    started: Nanos,
}

impl Cpu {
    /// So many idle cores, at least one.
    pub fn new(cores: usize) -> Cpu {
        Cpu {
            running: vec![None; cores.max(1)],
            ends: BinaryHeap::new(),
            at_work: [0; USES],
            waiting: VecDeque::new(),
            now: 0,
            busy_ns: 0,
            done: Vec::new(),
        }
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

    /// Core time spent so far, on anything.
    pub fn all_busy_ns(&self) -> u128 {
        self.busy_ns
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
        self.busy_ns += u128::from(ns) * self.busy() as u128;
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
            self.ends.push(Reverse((self.now.saturating_add(burst.ns), core)));
            self.running[core] = Some(Running { burst, started: self.now });
        }
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
}
