//! The difference of two looks, by program or by process.

use std::collections::{BTreeMap, BTreeSet};

use wattlock::telemetry::Cell;

use crate::look::{Look, Pair, add, empty};

/// What is one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum By {
    /// All processes of a program together.
    #[default]
    Program,
    /// Each process.
    Process,
}

/// What a program's processes did.
#[derive(Debug, Clone, Default)]
pub struct Program {
    /// What they say they are.
    pub name: String,
    /// Their numbers.
    pub pids: BTreeSet<u32>,
    /// By engine and kind: where anything was done.
    pub done: Vec<Done>,
    /// Fallbacks by reason: those that occurred.
    pub fallbacks: BTreeMap<String, u64>,
    /// Requests in flight now.
    pub in_flight: u64,
}

/// What one engine did of one kind.
#[derive(Debug, Clone, Default)]
pub struct Done {
    /// What was counted in the time between the looks.
    pub cell: Cell,
    /// What was counted since the processes began. One in 64 requests is timed: of a short time none may be.
    pub ever: Cell,
    /// What its joules are worth; empty: there are none.
    pub worth: String,
}

impl Done {
    /// The counts that means are taken of.
    pub(crate) fn sample(&self) -> &Cell {
        if self.cell.timed > 0 { &self.cell } else { &self.ever }
    }
}

/// A program's name, and the process where each is apart.
type Key = (String, Option<u32>);
/// A program, and what it did, added up.
type Sums = (Program, BTreeMap<Pair, Done>);

/// What was done between two looks; without an earlier one, since the processes began. A process whose counters fell,
/// or that was there before and could not be read, has done nothing that is known.
pub fn since(now: &Look, before: Option<&Look>, by: By) -> Vec<Program> {
    let mut programs: BTreeMap<Key, Sums> = BTreeMap::new();
    for (id, ever) in &now.processes {
        let key = (id.program.clone(), (by == By::Process).then_some(id.pid));
        let (program, parts) = programs.entry(key).or_default();
        program.pids.insert(id.pid);
        program.in_flight = program.in_flight.saturating_add(ever.in_flight);
        let done = match before {
            Some(before) => now.done(id, before),
            None => Some(ever.clone()),
        };
        let done = done.unwrap_or_default();
        for ((_, reason), count) in done.fallbacks.into_iter().filter(|(_, count)| *count > 0) {
            let sum = program.fallbacks.entry(reason).or_default();
            *sum = sum.saturating_add(count);
        }
        for (pair, cell) in done.cells {
            let Some(ever_cell) = ever.cells.get(&pair) else { continue };
            let worth = if ever_cell.energy_nj == 0 { None } else { ever.worth.get(&pair.0) };
            let part = parts.entry(pair).or_insert_with(|| Done {
                cell: empty(&cell),
                ever: empty(&cell),
                worth: String::new(),
            });
            add(&mut part.cell, &cell);
            add(&mut part.ever, ever_cell);
            part.worth = worst(&part.worth, worth.map_or("", String::as_str)).to_owned();
        }
    }
    let named = programs.into_iter().map(|((name, _), (program, parts))| {
        let any = |done: &Done| done.cell.requests > 0 || done.cell.errors > 0 || done.cell.refused > 0;
        Program { name, done: parts.into_values().filter(any).collect(), ..program }
    });
    named.collect()
}

/// Of two words for what joules are worth, the one that promises less; an empty one promises nothing and counts for
/// nothing.
pub(crate) fn worst<'a>(one: &'a str, other: &'a str) -> &'a str {
    let rank = |worth: &str| match worth.split(':').next() {
        Some("") | None => 0,
        Some("measured") => 1,
        Some("derived") => 2,
        Some(_) => 3,
    };
    if rank(other) > rank(one) { other } else { one }
}

/// Whether joules are of a model, as are those of which it is not known.
pub(crate) fn is_modelled(worth: &str) -> bool {
    !matches!(worth.split(':').next(), Some("measured" | "derived"))
}
