//! What the processes of each program did, since they began or since the last look.

use std::collections::BTreeMap;

use wattlock::telemetry::Snapshot;
use wattlock_core::Kind;

/// What a program's processes did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Work {
    /// How many there are.
    pub processes: usize,
    /// Operations of public keys by engine, each with the sum of their batches' sizes and over how many that is.
    pub keys: BTreeMap<String, (u64, u64, u64)>,
    /// Bytes of everything else by engine.
    pub bytes: BTreeMap<String, u64>,
    /// Fallbacks by reason.
    pub fallbacks: BTreeMap<String, u64>,
}

/// The work of each program. With `before` what was done since.
pub fn programs(now: &[Snapshot], before: Option<&[Snapshot]>) -> BTreeMap<String, Work> {
    let mut programs: BTreeMap<String, Work> = BTreeMap::new();
    for one in now {
        let header = &one.header;
        let same = |other: &&Snapshot| (other.header.pid, other.header.born) == (header.pid, header.born);
        let then = before.and_then(|before| before.iter().find(same));
        programs.entry(header.program.clone()).or_default().add(one, then);
    }
    programs
}

impl Work {
    fn add(&mut self, now: &Snapshot, then: Option<&Snapshot>) {
        self.processes += 1;
        for cell in &now.cells {
            let same = |other: &&wattlock::telemetry::Cell| {
                (&other.engine, &other.kind) == (&cell.engine, &cell.kind)
            };
            let then = then.and_then(|then| then.cells.iter().find(same)).cloned().unwrap_or_default();
            match Kind::from_name(&cell.kind).is_some_and(Kind::is_asymmetric) {
                true => {
                    let sums = self.keys.entry(cell.engine.clone()).or_default();
                    sums.0 += cell.requests.saturating_sub(then.requests);
                    sums.1 += cell.batch_sum.saturating_sub(then.batch_sum);
                    sums.2 += cell.queued().saturating_sub(then.queued());
                }
                false => {
                    let bytes = cell.bytes.saturating_sub(then.bytes);
                    *self.bytes.entry(cell.engine.clone()).or_default() += bytes;
                }
            }
        }
        for engine in &now.engines {
            let then = then.and_then(|then| then.engines.iter().find(|one| one.engine == engine.engine));
            for (why, count) in &engine.fallbacks {
                let had = then.and_then(|then| then.fallbacks.iter().find(|(known, _)| known == why));
                *self.fallbacks.entry(why.clone()).or_default() +=
                    count.saturating_sub(had.map_or(0, |(_, had)| *had));
            }
        }
    }
}
