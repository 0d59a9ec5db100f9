//! The ledger as JSON, for the page and for scripts: programs, with a verdict first.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::ledger::Ledger;

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

/// All of it.
pub(crate) fn json(ledger: &Ledger) -> String {
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
    let verdict = verdict(&programs, ledger);
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
fn verdict(programs: &BTreeMap<(u32, String), Program>, ledger: &Ledger) -> Value {
    let running: Vec<&Program> = programs.values().filter(|program| program.running > 0).collect();
    let processes: u64 = running.iter().map(|program| program.running).sum();
    let idle = running.iter().filter(|program| program.requests() == 0).count();
    let fallbacks: u64 = programs
        .values()
        .flat_map(|program| program.fallbacks.values())
        .fold(0_u64, |a, b| a.saturating_add(*b));
    let refused: u64 = ledger.samples("refused").fold(0_u64, |sum, one| sum.saturating_add(one.value));
    let mut parts = vec![match processes {
        0 => "No program runs with Wattlock, or none whose counters the exporter may read".to_owned(),
        1 => "1 process runs with Wattlock".to_owned(),
        many => format!("{many} processes run with Wattlock"),
    }];
    if idle > 0 {
        parts.push(format!("{idle} of {} programs did nothing with it yet", running.len()));
    }
    if fallbacks > 0 {
        parts.push(format!("fallbacks: {fallbacks}"));
    }
    if refused > 0 {
        parts.push(format!("did not authenticate: {refused}"));
    }
    let good = idle == 0 && fallbacks == 0 && refused == 0 && processes > 0;
    json!({"good": good, "line": format!("{}.", parts.join("; "))})
}

#[cfg(test)]
mod tests {
    use wattlock::telemetry::{Cell, EngineCounts, Scan, Totals, User};

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
        };
        let report = |living| -> Value {
            let mut ledger = Ledger::default();
            ledger.update(&Scan { users: vec![user(living)], ..Scan::default() });
            serde_json::from_str(&json(&ledger)).unwrap()
        };
        let said = report(vec![snapshot.clone()]);
        assert_eq!(said["programs"][0]["program"], "<b>nginx");
        assert_eq!(said["programs"][0]["cells"][0]["requests"], 7);
        assert_eq!(said["verdict"]["good"], true, "{said}");
        assert_eq!(report(Vec::new())["verdict"]["good"], false);
        let mut idle = snapshot.clone();
        idle.cells.clear();
        idle.header.program = "idle".to_owned();
        let said = report(vec![snapshot.clone(), idle]);
        assert_eq!(
            said["verdict"]["line"],
            "2 processes run with Wattlock; 1 of 2 programs did nothing with it yet."
        );
        snapshot.engines = vec![EngineCounts {
            engine: "cuda".to_owned(),
            fallbacks: vec![("silent".to_owned(), 3)],
            ..EngineCounts::default()
        }];
        let said = report(vec![snapshot]);
        assert_eq!(said["programs"][0]["fallbacks"][0]["reason"], "silent");
        assert_eq!(said["verdict"]["line"], "1 process runs with Wattlock; fallbacks: 3.");
    }
}
