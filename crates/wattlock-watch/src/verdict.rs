//! One line a program: how much of its work which engine did, in batches of what size, and what fell back. Since the programs
//! began, or since the last look.

use std::collections::BTreeMap;

use wattlock::telemetry::text;
use wattlock_core::Kind;

use crate::look::Look;
use crate::since::{By, Done, Program, since};

/// The lines, by program. With `before` they are rates of what was done since.
pub fn lines(now: &Look, before: Option<&Look>) -> Vec<String> {
    let seconds = before.map(|before| now.seconds_since(before));
    since(now, before, By::Program).iter().map(|program| line(program, seconds)).collect()
}

fn line(program: &Program, seconds: Option<f64>) -> String {
    let processes = match program.pids.len() {
        1 => String::new(),
        many => format!(" ({many} processes)"),
    };
    let mut parts = Vec::new();
    parts.extend(of_keys(program, seconds));
    parts.extend(of_bytes(program, seconds));
    if parts.is_empty() {
        parts.push("idle".to_owned());
    }
    let fallbacks: Vec<String> =
        program.fallbacks.iter().map(|(why, count)| format!("{why} {count}")).collect();
    parts.push(if fallbacks.is_empty() {
        "no fallbacks".into()
    } else {
        format!("fallbacks: {}", fallbacks.join(", "))
    });
    format!("{}{processes}: {}", program.name, parts.join("; "))
}

/// Whether it is an operation of public keys.
fn is_of_keys(done: &Done) -> bool {
    Kind::from_name(&done.cell.kind).is_some_and(Kind::is_asymmetric)
}

/// Operations of public keys: whose engine did most of them, in batches of what size.
fn of_keys(program: &Program, seconds: Option<f64>) -> Option<String> {
    let mut keys: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
    for Done { cell, .. } in program.done.iter().filter(|done| is_of_keys(done)) {
        let sums = keys.entry(&cell.engine).or_default();
        *sums = (sums.0 + cell.requests, sums.1 + cell.batch_sum, sums.2 + cell.queued());
    }
    let all: u64 = keys.values().map(|(count, ..)| count).sum();
    let (engine, (count, batches, of)) = keys.iter().max_by_key(|(_, (count, ..))| *count)?;
    let batch = (*of > 0).then(|| format!(" in batches of {:.1}", *batches as f64 / *of as f64));
    let how_many = match seconds {
        Some(seconds) => format!("{}/s", text::grouped((all as f64 / seconds).round() as u64)),
        None => text::grouped(all),
    };
    (all > 0).then(|| {
        format!(
            "{} % of {how_many} public-key operations by {engine}{}",
            (100 * count + all / 2) / all,
            batch.unwrap_or_default()
        )
    })
}

/// Bytes of everything else.
fn of_bytes(program: &Program, seconds: Option<f64>) -> Option<String> {
    let mut by_engine: BTreeMap<&str, u64> = BTreeMap::new();
    for Done { cell, .. } in program.done.iter().filter(|done| !is_of_keys(done)) {
        *by_engine.entry(&cell.engine).or_default() += cell.bytes;
    }
    let all: u64 = by_engine.values().sum();
    let (engine, bytes) = by_engine.iter().max_by_key(|(_, bytes)| **bytes)?;
    let how_many = match seconds {
        Some(seconds) => text::rate(all as f64 / seconds),
        None => text::bytes(all),
    };
    (all > 0).then(|| {
        format!(
            "{} % of {how_many} by {engine}",
            (100 * u128::from(*bytes) + u128::from(all) / 2) / u128::from(all)
        )
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wattlock::telemetry::{Cell, EngineCounts, Snapshot};

    use super::*;

    fn look(seconds: f64, found: &[Snapshot]) -> Look {
        Look::new(Duration::from_secs_f64(seconds), 0, found.to_vec())
    }

    fn snapshot(program: &str, pid: u32, cells: &[(&str, &str, u64, u64)]) -> Snapshot {
        let runtime = wattlock::Runtime::builder().telemetry(false).build().unwrap();
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
        let told = lines(&look(0.0, &[first.clone(), second.clone(), snapshot("sealer", 3, &[])]), None);
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
        let told = lines(&look(0.5, &[first, before[1].clone()]), Some(&look(0.0, &before)));
        assert_eq!(
            told,
            ["nginx (2 processes): 100 % of 600/s public-key operations by lanes; fallbacks: busy 3"]
        );
        let told = lines(&look(1.0, &before), Some(&look(0.0, &before)));
        assert_eq!(told, ["nginx (2 processes): idle; no fallbacks"]);
    }

    #[test]
    fn a_process_number_that_serves_again_begins_at_nothing() {
        let sign = "ecdsa-p256-sign";
        let old = snapshot("a", 1, &[("lanes", sign, 500, 0)]);
        let mut new = snapshot("a", 1, &[("lanes", sign, 20, 0)]);
        new.header.born = old.header.born + 1;
        let told = lines(&look(2.0, &[new]), Some(&look(0.0, &[old])));
        assert_eq!(told, ["a: 100 % of 10/s public-key operations by lanes in batches of 7.0; no fallbacks"]);
    }
}
