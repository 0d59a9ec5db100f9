//! The ledger as JSON, for the page and for scripts: programs, with a verdict first.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use wattlock::telemetry::OTHER;

use crate::ledger::{Ledger, Troubles};

/// Counters of an engine and kind that stand in the report under the same name, and those of joules together.
const CELL: [&str; 10] = [
    "requests",
    "bytes",
    "errors",
    "refused",
    "timed",
    "timed_ns",
    "held_ns",
    "batch_sum",
    "batch_count",
    "submit_ns",
];
const JOULES: [(&str, &str); 3] = [
    ("energy_nj measured", "measured"),
    ("energy_nj derived", "derived"),
    ("energy_nj modelled", "modelled"),
];
const ENGINE: [&str; 5] = ["quarantines", "verified", "tests", "returned", "chained"];

#[derive(Default)]
struct Program {
    running: u64,
    ended: u64,
    cells: BTreeMap<(String, String), Map<String, Value>>,
    engines: BTreeMap<String, Map<String, Value>>,
    fallbacks: BTreeMap<(String, String), u64>,
}

/// What the verdict is of: a fallback of last month is no reason to look today.
const LATELY: Duration = Duration::from_secs(10 * 60);
/// Readings that are kept of that time, at most one in so long.
const APART: Duration = Duration::from_secs(5);

/// How often it was, at some times in the last minutes.
#[derive(Debug, Default)]
pub(crate) struct Lately(VecDeque<(Instant, Troubles)>);

impl Lately {
    /// What was added in the last minutes, or since the first reading.
    pub(crate) fn update(&mut self, ledger: &Ledger, now: Instant) -> Troubles {
        let all = ledger.troubles;
        // The oldest that stays is the last before that time.
        while self.0.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= LATELY) {
            self.0.pop_front();
        }
        if self.0.back().is_none_or(|(at, _)| now.saturating_duration_since(*at) >= APART) {
            self.0.push_back((now, all));
        }
        let before = self.0.front().map_or(all, |(_, before)| *before);
        std::array::from_fn(|at| all[at].saturating_sub(before[at]))
    }
}

/// All of it, with what was wrong lately.
pub(crate) fn json(ledger: &Ledger, lately: Troubles) -> String {
    let mut programs: BTreeMap<(u32, String), Program> = BTreeMap::new();
    let mut at = |uid: u32, program: &str, with: &mut dyn FnMut(&mut Program)| {
        with(programs.entry((uid, program.to_owned())).or_default());
    };
    for one in ledger.running() {
        at(one.uid, one.program, &mut |program| program.running = one.value);
    }
    for one in ledger.samples("ended") {
        at(one.uid, one.program, &mut |program| program.ended = one.value);
    }
    let cells = CELL.into_iter().map(|counter| (counter, counter)).chain(JOULES);
    for (counter, name) in cells {
        let in_joules = counter != name;
        for one in ledger.samples(counter) {
            let value = if in_joules { json!(one.value as f64 / 1e9) } else { json!(one.value) };
            let name = if in_joules { format!("joules_{name}") } else { name.to_owned() };
            at(one.uid, one.program, &mut |program| {
                let cell = program.cells.entry((one.engine.to_owned(), one.kind.to_owned())).or_default();
                cell.insert(name.clone(), value.clone());
            });
        }
    }
    for counter in ENGINE {
        for one in ledger.samples(counter) {
            at(one.uid, one.program, &mut |program| {
                program
                    .engines
                    .entry(one.engine.to_owned())
                    .or_default()
                    .insert(counter.to_owned(), one.value.into());
            });
        }
    }
    for one in ledger.in_flight() {
        at(one.uid, one.program, &mut |program| {
            program
                .engines
                .entry(one.engine.to_owned())
                .or_default()
                .insert("in_flight".to_owned(), one.value.into());
        });
    }
    for one in ledger.samples("fallback") {
        at(one.uid, one.program, &mut |program| {
            program.fallbacks.insert((one.engine.to_owned(), one.kind.to_owned()), one.value);
        });
    }
    let passed_over: Vec<Value> = ledger
        .passed_over()
        .filter(|over| over.series + over.files + over.wrong > 0)
        .map(|over| json!({"uid": over.uid, "series": over.series, "files": over.files, "wrong": over.wrong}))
        .collect();
    let verdict = verdict(&programs, ledger, lately);
    let programs: Vec<Value> =
        programs.into_iter().map(|((uid, name), program)| program.json(uid, &name)).collect();
    let report = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "verdict": verdict,
        "programs": programs,
        "passed_over": passed_over,
        "folders_wrong": ledger.wrong_folders,
        "folders_unread": ledger.unread_folders,
    });
    report.to_string()
}

impl Program {
    fn requests(&self) -> u64 {
        let of = |cell: &Map<String, Value>| cell.get("requests").and_then(Value::as_u64).unwrap_or(0);
        self.cells.values().map(of).fold(0, u64::saturating_add)
    }

    fn json(self, uid: u32, name: &str) -> Value {
        let requests = self.requests();
        let named = |names: Vec<(&str, String)>, mut row: Map<String, Value>| {
            row.extend(names.into_iter().map(|(name, value)| (name.to_owned(), value.into())));
            Value::Object(row)
        };
        let cells: Vec<Value> = self
            .cells
            .into_iter()
            .map(|((engine, kind), row)| named(vec![("engine", engine), ("kind", kind)], row))
            .collect();
        let engines: Vec<Value> =
            self.engines.into_iter().map(|(engine, row)| named(vec![("engine", engine)], row)).collect();
        let fallbacks: Vec<Value> = self
            .fallbacks
            .into_iter()
            .map(|((engine, reason), count)| json!({"engine": engine, "reason": reason, "count": count}))
            .collect();
        json!({
            "uid": uid,
            "program": name,
            "running": self.running,
            "ended": self.ended,
            "requests": requests,
            "cells": cells,
            "engines": engines,
            "fallbacks": fallbacks,
        })
    }
}

/// A line, and whether somebody should look.
fn verdict(
    programs: &BTreeMap<(u32, String), Program>,
    ledger: &Ledger,
    [fallbacks, errors, refused]: Troubles,
) -> Value {
    let running: Vec<&Program> = programs.values().filter(|program| program.running > 0).collect();
    let processes: u64 = running.iter().map(|program| program.running).sum();
    // What a program did may be among the others' of its user.
    let is_idle = |program: &Program| program.requests() == 0;
    let of_others = |uid: u32| programs.get(&(uid, OTHER.to_owned())).is_some_and(|others| !is_idle(others));
    let idle = programs
        .iter()
        .filter(|((uid, _), program)| program.running > 0 && is_idle(program) && !of_others(*uid));
    let idle = idle.count();
    // Folders that the exporter may not read are others', where it runs as an ordinary user.
    let of_users = ledger.passed_over().map(|over| over.series + over.files + over.wrong);
    let of_none = ledger.wrong_folders.saturating_add(u64::from(ledger.incomplete));
    let passed_over = of_users.fold(of_none, u64::saturating_add);
    let mut parts = vec![match processes {
        0 => "No program runs with Wattlock, or none whose counters the exporter may read".to_owned(),
        1 => "1 process runs with Wattlock".to_owned(),
        many => format!("{many} processes run with Wattlock"),
    }];
    if idle > 0 {
        parts.push(format!("{idle} of {} programs did nothing with it yet", running.len()));
    }
    let lately = [
        (fallbacks, "fallbacks in the last 10 minutes"),
        (errors, "failed requests in the last 10 minutes"),
        (refused, "did not authenticate in the last 10 minutes"),
        (u128::from(passed_over), "counters passed over"),
    ];
    let wrong = lately.iter().filter(|(count, _)| *count > 0);
    parts.extend(wrong.map(|(count, what)| format!("{what}: {count}")));
    let good = idle == 0 && processes > 0 && lately.iter().all(|(count, _)| *count == 0);
    json!({"good": good, "line": format!("{}.", parts.join("; "))})
}

#[cfg(test)]
mod tests {
    use wattlock::telemetry::{Cell, EngineCounts, Scan, Snapshot, Totals, User};

    use super::*;

    #[test]
    fn programs_are_reported_with_a_verdict() {
        let runtime = wattlock::Runtime::builder().telemetry(false).build().unwrap();
        let mut snapshot = runtime.snapshot();
        snapshot.header.program = "<b>nginx".to_owned();
        snapshot.cells = vec![Cell {
            engine: "lanes".to_owned(),
            kind: "sha-256".to_owned(),
            requests: 7,
            ..Cell::default()
        }];
        let user = |living| User {
            uid: 7,
            living,
            ended: Vec::new(),
            totals: Totals::default(),
            left_out: 0,
            wrong: 0,
            first: true,
        };
        let mut ledger = Ledger::default();
        let (mut lately, mut now) = (Lately::default(), Instant::now());
        let mut report = |living: Vec<Snapshot>| -> Value {
            // Twice: a sum that is lower once may be a file between two places.
            for _ in 0..2 {
                ledger.update(|each| {
                    each(user(living.clone()));
                    Scan::default()
                });
            }
            now += APART;
            serde_json::from_str(&json(&ledger, lately.update(&ledger, now))).unwrap()
        };
        let said = report(vec![snapshot.clone()]);
        assert_eq!(said["programs"][0]["program"], "<b>nginx");
        assert_eq!(said["programs"][0]["cells"][0]["requests"], 7);
        assert_eq!(said["verdict"]["good"], true, "{said}");
        assert_eq!(report(Vec::new())["verdict"]["good"], false);
        let mut idle = snapshot.clone();
        idle.cells.clear();
        idle.header.program = "idle".to_owned();
        let said = report(vec![snapshot.clone(), idle.clone()]);
        assert_eq!(
            said["verdict"]["line"],
            "2 processes run with Wattlock; 1 of 2 programs did nothing with it yet."
        );
        snapshot.engines = vec![EngineCounts {
            engine: "cuda".to_owned(),
            fallbacks: vec![("silent".to_owned(), 3)],
            ..EngineCounts::default()
        }];
        snapshot.cells[0].errors = 2;
        let said = report(vec![snapshot.clone()]);
        assert_eq!(said["programs"][0]["fallbacks"][0]["reason"], "silent", "{said}");
        assert_eq!(
            said["verdict"]["line"],
            "1 process runs with Wattlock; fallbacks in the last 10 minutes: 3; failed requests in the last 10 minutes: 2."
        );
        assert_eq!(said["verdict"]["good"], false);
        // What is long past does not alarm for ever.
        let readings = LATELY.as_secs() / APART.as_secs();
        let said = (0..=readings).map(|_| report(vec![snapshot.clone()])).last().unwrap();
        assert_eq!(said["verdict"]["good"], true, "{said}");
        assert_eq!(said["programs"][0]["fallbacks"][0]["count"], 3);
        // What an idle one did may be among the others'.
        let mut others = idle.clone();
        others.header.program = OTHER.to_owned();
        others.cells = vec![Cell { requests: 7, ..Cell::default() }];
        let said = report(vec![snapshot, idle, others]);
        assert_eq!(said["verdict"]["line"], "3 processes run with Wattlock.");
    }

    #[test]
    fn what_is_passed_over_is_in_the_verdict_and_old_counts_are_not() {
        let mut snapshot = wattlock::Runtime::builder().telemetry(false).build().unwrap().snapshot();
        snapshot.cells = vec![Cell { requests: 7, errors: 5, refused: 5, ..Cell::default() }];
        for (wrong, wrong_folders, incomplete) in [(0, 0, false), (1, 0, false), (0, 1, false), (0, 0, true)]
        {
            let mut ledger = Ledger::default();
            let user = User {
                uid: 7,
                living: vec![snapshot.clone()],
                ended: Vec::new(),
                totals: Totals::default(),
                left_out: 0,
                wrong,
                first: true,
            };
            ledger.update(|each| {
                each(user);
                Scan { wrong_folders, unread_folders: 3, incomplete, more: false }
            });
            let lately = Lately::default().update(&ledger, Instant::now());
            let said: Value = serde_json::from_str(&json(&ledger, lately)).unwrap();
            let is_good = wrong + wrong_folders == 0 && !incomplete;
            assert_eq!(said["verdict"]["good"], is_good, "{said}");
        }
    }
}
