//! The difference of two looks, by program or by process.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wattlock::telemetry::Cell;

use crate::look::{Look, Part, add, empty};

/// What is one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum By {
    /// All processes of a program together.
    #[default]
    Program,
    /// Each process.
    Process,
}

/// A program's processes, and what they did.
#[derive(Debug, Clone, Default)]
pub struct Program {
    /// What they say they are.
    pub name: String,
    /// Whose they are.
    pub uid: u32,
    /// Their numbers.
    pub pids: BTreeSet<u32>,
    /// Requests in flight now.
    pub in_flight: u64,
    /// What all of them did. `None`: of one it is not known, since its counters fell, or could not be read before.
    pub all: Option<All>,
}

/// All that was done.
#[derive(Debug, Clone, Default)]
pub struct All {
    /// By engine, kind, and what the joules are worth: where anything was done.
    pub done: Vec<Done>,
    /// Fallbacks by reason: those that occurred.
    pub fallbacks: BTreeMap<String, u64>,
}

/// What one engine did of one kind, in processes whose joules are worth the same.
#[derive(Debug, Clone, Default)]
pub struct Done {
    /// What was counted in the time between the looks.
    pub cell: Cell,
    /// What was counted since the processes began. One in 64 requests is timed: of a short time none may be.
    pub ever: Cell,
    /// What its joules are worth; empty: there are none.
    pub worth: Arc<str>,
}

impl Done {
    /// The counts that means are taken of.
    pub(crate) fn sample(&self) -> &Cell {
        if self.cell.timed > 0 { &self.cell } else { &self.ever }
    }

    /// Adds work whose joules may be worth something else; what they are worth stays.
    pub(crate) fn add(&mut self, more: &Done) {
        add(&mut self.cell, &more.cell);
        add(&mut self.ever, &more.ever);
    }
}

/// A program's name, its user, and the process where each is apart.
type Key = (String, u32, Option<u32>);

/// A program, and what it did, added up. `None`: it is not known.
#[derive(Default)]
struct Sums {
    program: Program,
    parts: Option<BTreeMap<Part, Done>>,
    fallbacks: BTreeMap<String, u64>,
}

/// What was done between two looks; without an earlier one, since the processes began.
pub fn since(now: &Look, before: Option<&Look>, by: By) -> Vec<Program> {
    let mut programs: BTreeMap<Key, Sums> = BTreeMap::new();
    for (id, ever) in &now.processes {
        let key = (id.program.clone(), id.uid, (by == By::Process).then_some(id.pid));
        let nothing = || Sums { parts: Some(BTreeMap::new()), ..Sums::default() };
        let sums = programs.entry(key).or_insert_with(nothing);
        sums.program.pids.insert(id.pid);
        sums.program.in_flight = sums.program.in_flight.saturating_add(ever.in_flight);
        let done = match before {
            Some(before) => now.done(id, before),
            None => Some(ever.clone()),
        };
        // A sum of which one part is not known is not known.
        let (Some(done), Some(parts)) = (done, &mut sums.parts) else {
            sums.parts = None;
            continue;
        };
        for ((_, reason), count) in done.fallbacks.into_iter().filter(|(_, count)| *count > 0) {
            let sum = sums.fallbacks.entry(reason).or_default();
            *sum = sum.saturating_add(count);
        }
        for (part, cell) in done.cells {
            let Some(ever) = ever.cells.get(&part) else { continue };
            let (engine, kind, worth) = part;
            let worth = if ever.energy_nj == 0 { Arc::default() } else { worth };
            let blank = || Done { cell: empty(&cell), ever: empty(&cell), worth: worth.clone() };
            let sum = parts.entry((engine, kind, worth.clone())).or_insert_with(blank);
            add(&mut sum.cell, &cell);
            add(&mut sum.ever, ever);
        }
    }
    let named = programs.into_iter().map(|((name, uid, _), Sums { program, parts, fallbacks })| {
        let any = |done: &Done| done.cell.requests > 0 || done.cell.errors > 0 || done.cell.refused > 0;
        let all = parts.map(|parts| All { done: parts.into_values().filter(any).collect(), fallbacks });
        Program { name, uid, all, ..program }
    });
    named.collect()
}

/// The word for joules of two worths: the one that promises less. Of two that promise as much, what they promise.
pub(crate) fn worst(one: String, other: &str) -> String {
    let word = |worth: &str| worth.split(':').next().unwrap_or_default().to_owned();
    let rank = |worth: &str| match &*word(worth) {
        "measured" => 1,
        "derived" => 2,
        _ => 3,
    };
    match rank(other).cmp(&rank(&one)) {
        Ordering::Greater => other.to_owned(),
        Ordering::Less => one,
        Ordering::Equal if one == other => one,
        Ordering::Equal => word(&one),
    }
}

/// Whether joules are of a model, as are those of which it is not known.
pub(crate) fn is_modelled(worth: &str) -> bool {
    !matches!(worth.split(':').next(), Some("measured" | "derived"))
}
