//! One line a program: how much of its work which engine did, in batches of what size, and what fell back. Since the programs
//! began, or since the last look.

use std::time::Duration;

use wattlock::telemetry::Snapshot;
use wattlock_shell::text;
use wattlock_watch::Work;

/// The lines, by program. With `before` they are rates over `time`, of what was done since.
pub fn lines(now: &[Snapshot], before: Option<(&[Snapshot], Duration)>) -> Vec<String> {
    let (before, time) = before.map_or((None, None), |(before, time)| (Some(before), Some(time)));
    let programs = wattlock_watch::programs(now, before);
    programs.into_iter().map(|(program, work)| line(&work, &program, time)).collect()
}

fn line(work: &Work, program: &str, time: Option<Duration>) -> String {
    let processes =
        if work.processes == 1 { String::new() } else { format!(" ({} processes)", work.processes) };
    let mut parts = Vec::new();
    parts.extend(of_keys(work, time));
    parts.extend(of_bytes(work, time));
    if parts.is_empty() {
        parts.push("idle".to_owned());
    }
    let fallbacks = work.fallbacks.iter().filter(|(_, count)| **count > 0);
    let fallbacks: Vec<String> = fallbacks.map(|(why, count)| format!("{why} {count}")).collect();
    parts.push(if fallbacks.is_empty() {
        "no fallbacks".into()
    } else {
        format!("fallbacks: {}", fallbacks.join(", "))
    });
    format!("{program}{processes}: {}", parts.join("; "))
}

fn of_keys(work: &Work, time: Option<Duration>) -> Option<String> {
    let all: u64 = work.keys.values().map(|(count, ..)| count).sum();
    let (engine, (count, batches, of)) = work.keys.iter().max_by_key(|(_, (count, ..))| *count)?;
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

fn of_bytes(work: &Work, time: Option<Duration>) -> Option<String> {
    let all: u64 = work.bytes.values().sum();
    let (engine, bytes) = work.bytes.iter().max_by_key(|(_, bytes)| **bytes)?;
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

/// Thousands by commas.
fn grouped(count: u64) -> String {
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
    use wattlock::telemetry::{Cell, EngineCounts};

    use super::*;

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
