//! One line a program: how much of its work which engine did, in batches of what size, and what fell back. Since the programs
//! began, or since the last look.

use std::collections::BTreeMap;

use wattlock::telemetry::text;
use wattlock_core::Kind;

use crate::look::Look;
use crate::since::{All, By, Done, Program, since};

/// The lines, by program, for a user: those of others begin with whose they are. With `before` they are rates of what was
/// done since.
pub fn lines(now: &Look, before: Option<&Look>, own_uid: u32) -> Vec<String> {
    let seconds = before.map(|before| now.seconds_since(before));
    since(now, before, By::Program).iter().map(|program| line(program, seconds, own_uid)).collect()
}

fn line(program: &Program, seconds: Option<f64>, own_uid: u32) -> String {
    let processes = match program.pids.len() {
        1 => String::new(),
        many => format!(" ({many} processes)"),
    };
    let said = program.all.as_ref().map_or_else(
        || "what it did is not known (counters began anew, or were not read before)".to_owned(),
        |all| words(all, seconds),
    );
    format!("{}{processes}: {said}", named(&program.name, program.uid, own_uid))
}

/// A program as a user is shown it: that of another one behind whose it is, which no name can say.
pub fn named(program: &str, uid: u32, own_uid: u32) -> String {
    if uid == own_uid { program.to_owned() } else { format!("uid {uid}: {program}") }
}

/// A line about users of whom not all is there, if there are any.
pub fn left_out(users: u64) -> Option<String> {
    let line = |users| {
        format!("{users} user{} left out: more counters than are read", if users == 1 { "" } else { "s" })
    };
    (users > 0).then(|| line(users))
}

fn words(all: &All, seconds: Option<f64>) -> String {
    let sum =
        |count: fn(&Done) -> u64| all.done.iter().fold(0_u64, |sum, done| sum.saturating_add(count(done)));
    let not_done = [("failed", sum(|done| done.cell.errors)), ("refused", sum(|done| done.cell.refused))];
    let not_done = not_done.into_iter().filter(|(_, count)| *count > 0);
    let mut parts: Vec<String> = Vec::new();
    parts.extend(of_keys(all, seconds));
    parts.extend(of_bytes(all, seconds));
    parts.extend(not_done.map(|(what, count)| format!("{} {what}", how_many(count, seconds))));
    if parts.is_empty() {
        parts.push("idle".to_owned());
    }
    let fallbacks = all.fallbacks.iter().map(|(why, count)| format!("{why} {}", how_many(*count, seconds)));
    let fallbacks: Vec<String> = fallbacks.collect();
    parts.push(if fallbacks.is_empty() {
        "no fallbacks".into()
    } else {
        format!("fallbacks: {}", fallbacks.join(", "))
    });
    parts.join("; ")
}

/// A count, or what it is a second; what is something never reads as nothing.
fn how_many(count: u64, seconds: Option<f64>) -> String {
    let Some(seconds) = seconds else { return text::grouped(count) };
    match count as f64 / seconds {
        rate if rate >= 9.95 => format!("{}/s", text::grouped(rate.round() as u64)),
        rate if rate >= 0.095 => format!("{rate:.1}/s"),
        _ => "under 0.1/s".to_owned(),
    }
}

/// Whole per cent of a whole that is not nothing.
fn per_cent(part: u64, whole: u64) -> u128 {
    let (part, whole) = (u128::from(part), u128::from(whole));
    (100 * part + whole / 2) / whole
}

/// Whether it is an operation of public keys.
fn is_of_keys(done: &Done) -> bool {
    Kind::from_name(&done.cell.kind).is_some_and(Kind::is_asymmetric)
}

/// By engine, summed: the sum of all, and the engine with the most, if there is any.
fn most<'a>(
    done: impl Iterator<Item = &'a Done>,
    count: impl Fn(&Done) -> u64,
) -> Option<(u64, &'a str, u64)> {
    let (mut all, mut by_engine) = (0_u64, BTreeMap::<&str, u64>::new());
    for one in done {
        let sum = by_engine.entry(&one.cell.engine).or_default();
        *sum = sum.saturating_add(count(one));
        all = all.saturating_add(count(one));
    }
    let (engine, most) = by_engine.into_iter().max_by_key(|(_, count)| *count)?;
    (all > 0).then_some((all, engine, most))
}

/// Operations of public keys: whose engine did most of them, in batches of what size.
fn of_keys(all: &All, seconds: Option<f64>) -> Option<String> {
    let keys = || all.done.iter().filter(|done| is_of_keys(done));
    let (all, engine, count) = most(keys(), |done| done.cell.requests)?;
    let own = || keys().filter(move |done| done.cell.engine == engine);
    let batches = own().fold(0.0, |sum, done| sum + done.cell.batch_sum as f64);
    let of = own().fold(0.0, |sum, done| sum + done.cell.queued() as f64);
    let batch = if of > 0.0 { format!(" in batches of {:.1}", batches / of) } else { String::new() };
    let how_many = how_many(all, seconds);
    Some(format!("{} % of {how_many} public-key operations by {engine}{batch}", per_cent(count, all)))
}

/// Bytes of everything else, or how many there were if they had none.
fn of_bytes(all: &All, seconds: Option<f64>) -> Option<String> {
    let others = || all.done.iter().filter(|done| !is_of_keys(done));
    if let Some((all, engine, bytes)) = most(others(), |done| done.cell.bytes) {
        let how_many = match seconds {
            Some(seconds) => text::rate(all as f64 / seconds),
            None => text::bytes(all),
        };
        return Some(format!("{} % of {how_many} by {engine}", per_cent(bytes, all)));
    }
    let (all, engine, count) = most(others(), |done| done.cell.requests)?;
    Some(format!(
        "{} % of {} operations without bytes by {engine}",
        per_cent(count, all),
        how_many(all, seconds)
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wattlock::telemetry::{Cell, EngineCounts, Snapshot, own_uid};

    use super::*;

    /// The caller's programs.
    fn lines(now: &Look, before: Option<&Look>) -> Vec<String> {
        super::lines(now, before, own_uid())
    }

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
            ["nginx (2 processes): 100 % of 600/s public-key operations by lanes; fallbacks: busy 6.0/s"]
        );
        let told = lines(&look(1.0, &before), Some(&look(0.0, &before)));
        assert_eq!(told, ["nginx (2 processes): idle; no fallbacks"]);
    }

    /// Another user's file may say the same of its process as a program's own does.
    #[test]
    fn no_users_program_is_taken_for_anothers() {
        let sign = "ecdsa-p256-sign";
        let mine = snapshot("nginx", 1, &[("lanes", sign, 500, 0)]);
        let mut theirs = snapshot("nginx", 1, &[("lanes", sign, 7, 0)]);
        theirs.uid += 1;
        theirs.header.born = mine.header.born;
        theirs.header.started = mine.header.started;
        let told = lines(&look(1.0, &[theirs.clone(), mine.clone()]), None);
        let done = "public-key operations by lanes in batches of 7.0; no fallbacks";
        let expected =
            [format!("nginx: 100 % of 500 {done}"), format!("uid {}: nginx: 100 % of 7 {done}", theirs.uid)];
        assert_eq!(told, expected);
        // Counters that fall, or a name that says whose it is, change nothing of the other's.
        let mut fell = theirs.clone();
        fell.cells[0].requests = 0;
        fell.header.program = format!("uid {}: nginx", mine.uid);
        let mut more = mine.clone();
        more.cells[0].requests += 10;
        let told = lines(&look(2.0, &[fell, more]), Some(&look(1.0, &[theirs, mine])));
        assert!(told[0].starts_with("nginx: 100 % of 10/s"), "{told:?}");
        assert!(told[1].starts_with(&format!("uid {}: uid ", own_uid() + 1)), "{told:?}");
        for by in [By::Program, By::Process] {
            let seen = since(&look(1.0, &[snapshot("a", 1, &[])]), None, by);
            assert_eq!((seen.len(), seen[0].uid), (1, own_uid()));
        }
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
