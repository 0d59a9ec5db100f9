//! One line a program: how much of its work which engine did, in batches of what size, and what fell back. Since the programs
//! began, or since the last look.

use std::collections::BTreeMap;
use std::time::Duration;

use wattlock_core::Kind;

use super::{Cell, Snapshot, text};

/// What a program's processes did.
#[derive(Default)]
struct Work {
    processes: usize,
    /// Operations of public keys by engine, each with the sum of their batches' sizes and over how many that is.
    keys: BTreeMap<String, (u64, u64, u64)>,
    /// Bytes of everything else by engine.
    bytes: BTreeMap<String, u64>,
    fallbacks: BTreeMap<String, u64>,
}

/// The lines, by program. With `before` they are rates over `time`, of what was done since.
pub fn lines(now: &[Snapshot], before: Option<(&[Snapshot], Duration)>) -> Vec<String> {
    let mut programs: BTreeMap<&str, Work> = BTreeMap::new();
    for one in now {
        let header = &one.header;
        let same = |other: &&Snapshot| (other.header.pid, other.header.born) == (header.pid, header.born);
        let then = before.and_then(|(before, _)| before.iter().find(same));
        programs.entry(&header.program).or_default().add(one, then);
    }
    let time = before.map(|(_, time)| time);
    programs.into_iter().map(|(program, work)| work.line(program, time)).collect()
}

impl Work {
    fn add(&mut self, now: &Snapshot, then: Option<&Snapshot>) {
        self.processes += 1;
        for cell in &now.cells {
            let same = |other: &&Cell| (&other.engine, &other.kind) == (&cell.engine, &cell.kind);
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

    fn line(&self, program: &str, time: Option<Duration>) -> String {
        let processes =
            if self.processes == 1 { String::new() } else { format!(" ({} processes)", self.processes) };
        let mut parts = Vec::new();
        parts.extend(self.of_keys(time));
        parts.extend(self.of_bytes(time));
        if parts.is_empty() {
            parts.push("idle".to_owned());
        }
        let fallbacks = self.fallbacks.iter().filter(|(_, count)| **count > 0);
        let fallbacks: Vec<String> = fallbacks.map(|(why, count)| format!("{why} {count}")).collect();
        parts.push(if fallbacks.is_empty() {
            "no fallbacks".into()
        } else {
            format!("fallbacks: {}", fallbacks.join(", "))
        });
        format!("{program}{processes}: {}", parts.join("; "))
    }

    fn of_keys(&self, time: Option<Duration>) -> Option<String> {
        let all: u64 = self.keys.values().map(|(count, ..)| count).sum();
        let (engine, (count, batches, of)) = self.keys.iter().max_by_key(|(_, (count, ..))| *count)?;
        let batch = (*of > 0).then(|| format!(" in batches of {:.1}", *batches as f64 / *of as f64));
        let how_many = match time {
            Some(time) => format!("{}/s", grouped((all as f64 / time.as_secs_f64()).round() as u64)),
            None => grouped(all),
        };
        (all > 0).then(|| {
            format!(
                "{} % of {how_many} public-key operations by {engine}{}",
                (100 * count + all / 2) / all,
                batch.unwrap_or_default()
            )
        })
    }

    fn of_bytes(&self, time: Option<Duration>) -> Option<String> {
        let all: u64 = self.bytes.values().sum();
        let (engine, bytes) = self.bytes.iter().max_by_key(|(_, bytes)| **bytes)?;
        let how_many = match time {
            Some(time) => text::rate(all as f64 / time.as_secs_f64()),
            None => text::bytes(all),
        };
        (all > 0).then(|| {
            format!(
                "{} % of {how_many} by {engine}",
                (100 * u128::from(*bytes) + u128::from(all) / 2) / u128::from(all)
            )
        })
    }
}

/// Thousands by commas.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::telemetry::EngineCounts;

    use super::*;

    fn snapshot(program: &str, pid: u32, cells: &[(&str, &str, u64, u64)]) -> Snapshot {
        let runtime = crate::Runtime::builder().telemetry(false).build().unwrap();
        let mut snapshot = runtime.snapshot();
        (snapshot.header.program, snapshot.header.pid) = (program.into(), pid);
        let cell = |&(engine, kind, requests, bytes): &(&str, &str, u64, u64)| Cell {
            engine: engine.into(),
            kind: kind.into(),
            requests,
            bytes,
            timed: requests,
            batch_sum: if engine == "lanes" { requests * 7 } else { 0 },
            ..Cell::default()
        };
        snapshot.cells = cells.iter().map(cell).collect();
        snapshot.engines.clear();
        snapshot
    }

    #[test]
    fn a_program_has_one_line_for_all_its_processes() {
        let sign = "ecdsa-p256-sign";
        let mut first = snapshot("nginx", 1, &[("lanes", sign, 900, 0), ("instruction", sign, 50, 0)]);
        let second =
            snapshot("nginx", 2, &[("lanes", sign, 1040, 0), ("instruction", "sha-256", 5, 1 << 20)]);
        let told = lines(&[first.clone(), second.clone(), snapshot("sealer", 3, &[])], None);
        assert_eq!(
            told,
            [
                "nginx (2 processes): 97 % of 1,990 public-key operations by lanes in batches of 7.0; 100 % of 1 MiB by \
                 instruction; no fallbacks",
                "sealer: idle; no fallbacks"
            ]
        );
        let counts = |count| EngineCounts {
            engine: "cuda".into(),
            fallbacks: vec![("busy".into(), count)],
            ..EngineCounts::default()
        };
        let before = [first.clone(), second];
        first.cells[0].requests += 300;
        first.engines = vec![counts(3)];
        let told = lines(&[first, before[1].clone()], Some((&before, Duration::from_millis(500))));
        assert_eq!(
            told,
            ["nginx (2 processes): 100 % of 600/s public-key operations by lanes; fallbacks: busy 3"]
        );
        let told = lines(&before, Some((&before, Duration::from_secs(1))));
        assert_eq!(told, ["nginx (2 processes): idle; no fallbacks"]);
    }

    #[test]
    fn a_process_number_that_serves_again_begins_at_nothing() {
        let sign = "ecdsa-p256-sign";
        let old = snapshot("a", 1, &[("lanes", sign, 500, 0)]);
        let mut new = snapshot("a", 1, &[("lanes", sign, 20, 0)]);
        new.header.born = old.header.born + 1;
        let told = lines(&[new], Some((&[old], Duration::from_secs(2))));
        assert_eq!(told, ["a: 100 % of 10/s public-key operations by lanes in batches of 7.0; no fallbacks"]);
    }

    #[test]
    fn thousands_are_told_apart() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
