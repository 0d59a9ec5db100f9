//! What engines did between two looks at a door's counters: those of nginx's status page, or of a process's telemetry.

use std::collections::BTreeMap;

use wattlock::telemetry::Cell;

/// What one engine did of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Did {
    /// Requests.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The sum of their batches' sizes.
    pub batches: u64,
    /// Those whose time was taken, and the sum of those times.
    pub timed: u64,
    pub timed_ns: u64,
    /// What handing them to a queued engine took.
    pub submit_ns: u64,
}

/// By engine and kind.
pub type Done = BTreeMap<(String, String), Did>;

/// Adds a process's counters.
pub fn add(done: &mut Done, cells: &[Cell]) {
    for cell in cells {
        let Cell { requests, bytes, timed, timed_ns, submit_ns, .. } = *cell;
        let did = Did { requests, bytes, batches: cell.batch_sum, timed, timed_ns, submit_ns };
        done.entry((cell.engine.clone(), cell.kind.clone())).or_default().add(&did);
    }
}

/// What was done between two looks.
pub fn between(before: &Done, after: &Done) -> Done {
    let since = |(place, now): (&(String, String), &Did)| {
        let then = before.get(place).copied().unwrap_or_default();
        let did = Did {
            requests: now.requests.saturating_sub(then.requests),
            bytes: now.bytes.saturating_sub(then.bytes),
            batches: now.batches.saturating_sub(then.batches),
            timed: now.timed.saturating_sub(then.timed),
            timed_ns: now.timed_ns.saturating_sub(then.timed_ns),
            submit_ns: now.submit_ns.saturating_sub(then.submit_ns),
        };
        (did.requests > 0).then(|| (place.clone(), did))
    };
    after.iter().filter_map(since).collect()
}

/// What all rounds did, in words.
pub fn engines(rounds: &[Done]) -> Vec<String> {
    let mut all = Done::new();
    for (place, did) in rounds.iter().flatten() {
        all.entry(place.clone()).or_default().add(did);
    }
    all.iter().map(|((engine, kind), did)| did.words(engine, kind)).collect()
}

/// What these processes have done so far, by their own counters.
pub fn of(processes: &[u32]) -> Done {
    let mut done = Done::new();
    for snapshot in wattlock::telemetry::read_own(processes) {
        add(&mut done, &snapshot.cells);
    }
    done
}

impl Did {
    /// Both together.
    pub fn add(&mut self, more: &Did) {
        self.requests += more.requests;
        self.bytes += more.bytes;
        self.batches += more.batches;
        self.timed += more.timed;
        self.timed_ns += more.timed_ns;
        self.submit_ns += more.submit_ns;
    }

    /// `lanes rsa-2048-private 16 in batches of 8.0`.
    pub fn words(&self, engine: &str, kind: &str) -> String {
        let batch = match self.batch() {
            // What is done inline is in no batch.
            None => String::new(),
            Some(mean) => format!(" in batches of {mean:.1}"),
        };
        format!("{engine} {kind} {}{batch}", self.requests)
    }

    fn batch(&self) -> Option<f64> {
        (self.batches > 0).then(|| self.batches as f64 / self.requests.max(1) as f64)
    }

    /// Mean nanoseconds from submission to completion, of those whose time was taken.
    pub fn mean_ns(&self) -> Option<f64> {
        (self.timed > 0).then(|| self.timed_ns as f64 / self.timed as f64)
    }

    /// Seconds that the engine worked if it works inside the call: the requests of a batch share its time.
    pub fn inside_s(&self) -> f64 {
        let each = self.mean_ns().unwrap_or(0.0) / self.batch().unwrap_or(1.0).max(1.0);
        each * self.requests as f64 / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(requests: u64, batches: u64) -> Done {
        let did = Did { requests, batches, ..Did::default() };
        Done::from([(("lanes".to_owned(), "rsa".to_owned()), did)])
    }

    #[test]
    fn only_what_was_done_meanwhile_counts() {
        assert_eq!(between(&done(10, 80), &done(14, 112)), done(4, 32));
        assert_eq!(between(&Done::new(), &done(1, 0)), done(1, 0));
        assert!(between(&done(10, 80), &done(10, 80)).is_empty());
    }

    #[test]
    fn all_rounds_are_told_together() {
        assert_eq!(engines(&[done(4, 32), done(2, 16)]), ["lanes rsa 6 in batches of 8.0"]);
        assert_eq!(engines(&[done(4, 0)]), ["lanes rsa 4"]);
        assert!(engines(&[Done::new()]).is_empty());
    }

    #[test]
    fn counters_of_several_processes_add_up() {
        let cell = Cell { engine: "e".into(), kind: "k".into(), requests: 2, bytes: 9, ..Cell::default() };
        let mut all = Done::new();
        add(&mut all, std::slice::from_ref(&cell));
        add(&mut all, &[cell]);
        let did = all[&("e".to_owned(), "k".to_owned())];
        assert_eq!((did.requests, did.bytes), (4, 18));
    }

    #[test]
    fn requests_of_a_batch_share_its_time() {
        let did = Did { requests: 64, batches: 512, timed: 8, timed_ns: 8_000_000, ..Did::default() };
        assert!((did.inside_s() - 64.0 * 1e-3 / 8.0).abs() < 1e-12);
        let alone = Did { requests: 64, timed: 1, timed_ns: 1000, ..Did::default() };
        assert!((alone.inside_s() - 64e-6).abs() < 1e-12);
        assert_eq!(Did::default().inside_s(), 0.0);
    }
}
