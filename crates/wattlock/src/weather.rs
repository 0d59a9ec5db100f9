//! The part of the weather that the machine knows and we do not: how idle its CPUs are.

use std::fs;

use wattlock_core::Nanos;

/// How often the share is read at most: ten times a second, so that looking costs nothing.
const EVERY_NS: Nanos = 100_000_000;

/// Shares of the CPUs since the last look: idle, and used by this process.
#[derive(Debug, Default)]
pub(crate) struct IdleShare {
    last: Option<(Nanos, Ticks)>,
    permille: u16,
    own_permille: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticks {
    idle: u64,
    all: u64,
    /// Of this process, all threads.
    own: u64,
}

impl IdleShare {
    /// The idle share in thousandths; read anew if the last look is old enough. 0 (nothing to spare) where it cannot be
    /// read, which errs on the side of leaving the CPU to others.
    pub(crate) fn permille(&mut self, now: Nanos) -> u16 {
        if self.last.is_some_and(|(at, _)| now.saturating_sub(at) < EVERY_NS) {
            return self.permille;
        }
        let Some((idle, all)) = fs::read_to_string("/proc/stat").ok().and_then(|text| machine(&text)) else {
            self.last = Some((now, Ticks { idle: 0, all: 0, own: 0 }));
            return self.permille;
        };
        let own = fs::read_to_string("/proc/self/stat").ok().and_then(|text| process(&text)).unwrap_or(0);
        let ticks = Ticks { idle, all, own };
        if let Some((_, before)) = self.last {
            let all = ticks.all.saturating_sub(before.all);
            let share = |part: u64, old: u64| {
                (part.saturating_sub(old) * 1000).checked_div(all).map(|share| share.min(1000) as u16)
            };
            self.permille = share(ticks.idle, before.idle).unwrap_or(self.permille);
            self.own_permille = share(ticks.own, before.own).unwrap_or(self.own_permille);
        }
        self.last = Some((now, ticks));
        self.permille
    }

    /// Of so many cores, those that this process could use beside the caller's: what is idle and what the process
    /// itself uses, to the nearest core, without one.
    pub(crate) fn cores(&mut self, now: Nanos, cores: usize) -> usize {
        let idle = self.permille(now);
        let free = usize::from((idle + self.own_permille).min(1000)) * cores;
        ((free + 500) / 1000).saturating_sub(1)
    }
}

/// Idle and all ticks of the first line of `/proc/stat` (proc(5)): user, nice, system, idle, iowait, irq, softirq, steal.
fn machine(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<u64> = line.split_whitespace().take(8).map_while(|field| field.parse().ok()).collect();
    Some((fields.get(3)? + fields.get(4).unwrap_or(&0), fields.iter().sum()))
}

/// `utime` and `stime` of `/proc/self/stat` (proc(5)), the 12th and 13th field behind the name in parentheses.
fn process(text: &str) -> Option<u64> {
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_iowait_count_as_idle() {
        assert_eq!(machine("cpu  10 0 20 60 10 0 0 0 0 0\ncpu0 1 2 3\n"), Some((70, 100)));
        assert_eq!(machine("nonsense"), None);
    }

    #[test]
    fn a_process_s_ticks_are_found_behind_any_name() {
        assert_eq!(process("7 (a) b) S 1 7 7 0 -1 4194560 99 0 0 0 31 11 0 0 20 0 1"), Some(42));
        assert_eq!(process("7 (a"), None);
        assert!(fs::read_to_string("/proc/self/stat").ok().and_then(|text| process(&text)).is_some());
    }

    #[test]
    fn own_work_leaves_as_many_cores_as_idleness_and_one_is_the_caller_s() {
        let free = |permille, own_permille, cores| {
            IdleShare { last: Some((1, Ticks { idle: 0, all: 0, own: 0 })), permille, own_permille }
                .cores(1, cores)
        };
        assert_eq!(free(1000, 0, 2), 1);
        // A worker and its client on two cores; both threads at work; another process on one of the cores.
        assert_eq!((free(400, 500, 2), free(0, 1000, 2), free(0, 500, 2)), (1, 1, 0));
        assert_eq!((free(1000, 0, 1), free(500, 100, 8), free(0, 0, 8)), (0, 4, 0));
    }
}
