//! The part of the weather that the machine knows and we do not: how idle its CPUs are.

use std::fs;

use wattlock_core::Nanos;

/// How often the share is read at most: ten times a second, so that looking costs nothing.
const EVERY_NS: Nanos = 100_000_000;

/// Idle share of the CPUs since the last look.
#[derive(Debug, Default)]
pub(crate) struct IdleShare {
    last: Option<(Nanos, Ticks)>,
    permille: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticks {
    idle: u64,
    all: u64,
}

impl IdleShare {
    /// The share in thousandths; read anew if the last look is old enough. 0 (nothing to spare) where it cannot be
    /// read, which errs on the side of leaving the CPU to others.
    pub(crate) fn permille(&mut self, now: Nanos) -> u16 {
        if self.last.is_some_and(|(at, _)| now.saturating_sub(at) < EVERY_NS) {
            return self.permille;
        }
        let Some(ticks) = fs::read_to_string("/proc/stat").ok().and_then(|text| parse(&text)) else {
            self.last = Some((now, Ticks { idle: 0, all: 0 }));
            return self.permille;
        };
        if let Some((_, before)) = self.last {
            let (idle, all) = (ticks.idle.saturating_sub(before.idle), ticks.all.saturating_sub(before.all));
            self.permille =
                (idle * 1000).checked_div(all).map_or(self.permille, |share| share.min(1000) as u16);
        }
        self.last = Some((now, ticks));
        self.permille
    }
}

/// The first line of `/proc/stat` (proc(5)): user, nice, system, idle, iowait, irq, softirq, steal, in clock ticks.
fn parse(text: &str) -> Option<Ticks> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<u64> = line.split_whitespace().take(8).map_while(|field| field.parse().ok()).collect();
    let idle = fields.get(3)? + fields.get(4).unwrap_or(&0);
    Some(Ticks { idle, all: fields.iter().sum() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_iowait_count_as_idle() {
        let ticks = parse("cpu  10 0 20 60 10 0 0 0 0 0\ncpu0 1 2 3\n").unwrap();
        assert_eq!(ticks, Ticks { idle: 70, all: 100 });
        assert!(parse("nonsense").is_none());
    }
}
