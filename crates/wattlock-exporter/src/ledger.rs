//! Counters that never fall, from files that come and go.
//!
//! A program's counts are in its file, and after its end in its user's totals; their sum rises. Where it falls (totals were
//! deleted, an older version removed a file) the counter here stays, and goes on from the lower sum if that is seen twice:
//! once may be a file that was between two places. What could not be read whole says nothing of that kind.
//!
//! Each user has the same bounded number of series, and names that there is no room for are one (`(other)`), so that no
//! user's programs push another's out.

use std::collections::{BTreeMap, HashMap};

use wattlock::telemetry::{OTHER, Scan, Snapshot, Sum, User, sums_of};

/// Most series of a user, of them those that only programs beyond the bound may take; and of all users.
const MOST_OF_A_USER: usize = 4096;
const KEPT_FOR_OTHER: usize = 512;
const MOST: usize = 65_536;

/// What is counted: the counter's name in a telemetry file or in totals.
pub(crate) const COUNTERS: [&str; 20] = [
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
    "energy_nj measured",
    "energy_nj derived",
    "energy_nj modelled",
    "fallback",
    "quarantines",
    "verified",
    "tests",
    "returned",
    "chained",
    "ended",
];

/// A series: which counter, then numbers of names: program, engine, kind or reason.
type Key = (u8, [u16; 3]);

/// One counter.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    /// What is published.
    total: u64,
    /// The last sum.
    last: u64,
    /// Whether the sum was below it the last time.
    fell: bool,
}

impl Tally {
    /// `whole` is whether all was read that the sum is of.
    fn update(&mut self, now: u64, whole: bool) {
        if now >= self.last {
            self.total = self.total.saturating_add(now - self.last);
        } else if !self.fell || !whole {
            self.fell |= whole;
            return;
        }
        (self.last, self.fell) = (now, false);
    }
}

/// One user's counters.
#[derive(Debug)]
struct Account {
    names: Vec<String>,
    numbers: HashMap<String, u16>,
    tallies: BTreeMap<Key, Tally>,
    /// Processes that run, by program.
    running: BTreeMap<u16, u64>,
    /// Requests in flight, by program and engine.
    in_flight: BTreeMap<(u16, u16), u64>,
    dropped: u64,
    left_out: u64,
    wrong: u64,
}

/// A sample of a family, in the family's own unit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample<'a> {
    pub(crate) uid: u32,
    pub(crate) program: &'a str,
    pub(crate) engine: &'a str,
    /// Or the reason of a fallback.
    pub(crate) kind: &'a str,
    pub(crate) value: u64,
}

/// All users' counters.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    users: BTreeMap<u32, Account>,
    pub(crate) wrong_folders: u64,
    pub(crate) unread_folders: u64,
}

/// What was passed over of one user.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PassedOver {
    pub(crate) uid: u32,
    pub(crate) series: u64,
    pub(crate) files: u64,
    pub(crate) wrong: u64,
}

impl Ledger {
    /// Takes in what was read.
    pub(crate) fn update(&mut self, scan: &Scan) {
        self.wrong_folders = scan.wrong_folders;
        self.unread_folders = scan.unread_folders;
        let mut by_user: BTreeMap<u32, Vec<&User>> = BTreeMap::new();
        scan.users.iter().for_each(|user| by_user.entry(user.uid).or_default().push(user));
        // Whose folder is not there, or could not be read, keeps its counters.
        for (_, account) in self.users.iter_mut().filter(|(uid, _)| !by_user.contains_key(uid)) {
            account.running.clear();
            account.in_flight.clear();
        }
        let mut all: usize = self.users.values().map(|account| account.tallies.len()).sum();
        for (uid, parts) in by_user {
            let account = self.users.entry(uid).or_default();
            let before = account.tallies.len();
            let room = MOST.saturating_sub(all).saturating_add(before).min(MOST_OF_A_USER);
            account.update(&parts, room);
            all += account.tallies.len() - before;
        }
    }

    /// The samples of a counter.
    pub(crate) fn samples(&self, counter: &str) -> impl Iterator<Item = Sample<'_>> {
        let at = COUNTERS.iter().position(|known| *known == counter).map_or(u8::MAX, |at| at as u8);
        self.users.iter().flat_map(move |(uid, account)| {
            let range = (at, [0; 3])..=(at, [u16::MAX; 3]);
            account.tallies.range(range).map(move |((_, [program, engine, kind]), tally)| Sample {
                uid: *uid,
                program: account.name(*program),
                engine: account.name(*engine),
                kind: account.name(*kind),
                value: tally.total,
            })
        })
    }

    /// How many processes run.
    pub(crate) fn running(&self) -> impl Iterator<Item = Sample<'_>> {
        self.users.iter().flat_map(|(uid, account)| {
            account.running.iter().map(move |(program, value)| Sample {
                uid: *uid,
                program: account.name(*program),
                engine: "",
                kind: "",
                value: *value,
            })
        })
    }

    /// How many requests are in flight.
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = Sample<'_>> {
        self.users.iter().flat_map(|(uid, account)| {
            account.in_flight.iter().map(move |((program, engine), value)| Sample {
                uid: *uid,
                program: account.name(*program),
                engine: account.name(*engine),
                kind: "",
                value: *value,
            })
        })
    }

    /// What was passed over, by user.
    pub(crate) fn passed_over(&self) -> impl Iterator<Item = PassedOver> {
        self.users.iter().map(|(uid, account)| PassedOver {
            uid: *uid,
            series: account.dropped,
            files: account.left_out,
            wrong: account.wrong,
        })
    }
}

impl Default for Account {
    fn default() -> Account {
        // The first, for names that there is no room for.
        let names = vec![OTHER.to_owned()];
        Account {
            numbers: names.iter().cloned().zip([0]).collect(),
            names,
            tallies: BTreeMap::new(),
            running: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            dropped: 0,
            left_out: 0,
            wrong: 0,
        }
    }
}

impl Account {
    fn name(&self, number: u16) -> &str {
        self.names.get(usize::from(number)).map_or(OTHER, String::as_str)
    }

    fn number(&mut self, name: &str) -> u16 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        // Never more than the series have room for, and so than numbers there are.
        let number = self.names.len().min(usize::from(u16::MAX)) as u16;
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }

    fn known(&self, sum: &Sum<'_>) -> Option<[u16; 3]> {
        let of = |name: &str| self.numbers.get(name).copied();
        Some([of(sum.program)?, of(sum.engine)?, of(sum.kind)?])
    }

    /// The series that a sum belongs to, one for many if there is no room for it; `None` if there is none even for that.
    fn series(&mut self, sum: &Sum<'_>, room: usize) -> Option<Key> {
        let counter = COUNTERS.iter().position(|known| *known == sum.counter)? as u8;
        let other = Sum { program: OTHER, ..*sum };
        for (sum, room) in [(sum, room.saturating_sub(KEPT_FOR_OTHER)), (&other, room)] {
            let known = self.known(sum).filter(|names| self.tallies.contains_key(&(counter, *names)));
            if let Some(names) = known {
                return Some((counter, names));
            }
            if self.tallies.len() < room {
                let names = [self.number(sum.program), self.number(sum.engine), self.number(sum.kind)];
                self.tallies.insert((counter, names), Tally::default());
                return Some((counter, names));
            }
        }
        None
    }

    fn update(&mut self, parts: &[&User], room: usize) {
        let mut now: HashMap<Key, u64> = HashMap::new();
        self.dropped = 0;
        let mut add = |account: &mut Account, sum: &Sum<'_>| match account.series(sum, room) {
            Some(key) => {
                let value = now.entry(key).or_default();
                *value = value.saturating_add(sum.value);
            }
            None => account.dropped += u64::from(COUNTERS.contains(&sum.counter)),
        };
        for part in parts {
            part.totals.sums().for_each(|sum| add(self, &sum));
            for snapshot in part.living.iter().chain(&part.ended) {
                sums_of(snapshot).iter().for_each(|sum| add(self, sum));
            }
        }
        self.left_out = parts.iter().map(|part| part.left_out).sum();
        for (key, tally) in &mut self.tallies {
            tally.update(now.get(key).copied().unwrap_or(0), self.left_out == 0);
        }
        self.wrong = parts.iter().map(|part| part.wrong).sum();
        self.running.clear();
        self.in_flight.clear();
        for snapshot in parts.iter().flat_map(|part| &part.living) {
            self.gauges(snapshot, room);
        }
    }

    fn gauges(&mut self, snapshot: &Snapshot, room: usize) {
        let name = wattlock::telemetry::shortened(&snapshot.header.program);
        // Programs that have counted nothing yet have a name here, too, as long as there is room.
        let fits = self.numbers.contains_key(name) || self.names.len() < room.saturating_sub(KEPT_FOR_OTHER);
        let program = if fits { self.number(name) } else { 0 };
        *self.running.entry(program).or_default() += 1;
        for engine in &snapshot.engines {
            let known = self.numbers.get(wattlock::telemetry::shortened(&engine.engine)).copied();
            let in_flight = self.in_flight.entry((program, known.unwrap_or(0))).or_default();
            *in_flight = in_flight.saturating_add(engine.in_flight);
        }
    }
}

#[cfg(test)]
mod tests {
    use wattlock::telemetry::{Cell, Totals};

    use super::*;

    fn snapshot(program: &str, requests: u64) -> Snapshot {
        let mut snapshot = wattlock::Runtime::builder().telemetry(false).build().unwrap().snapshot();
        snapshot.header.program = program.to_owned();
        let (engine, kind) = ("lanes".to_owned(), "sha-256".to_owned());
        snapshot.cells = vec![Cell { engine, kind, requests, ..Cell::default() }];
        snapshot
    }

    /// A snapshot of each program, with one request.
    fn flood(programs: impl Iterator<Item = String>) -> Vec<Snapshot> {
        let one = snapshot("", 1);
        let of = |program| {
            let mut snapshot = one.clone();
            snapshot.header.program = program;
            snapshot
        };
        programs.map(of).collect()
    }

    fn user(uid: u32, living: Vec<Snapshot>) -> User {
        User { uid, living, ended: Vec::new(), totals: Totals::default(), left_out: 0, wrong: 0 }
    }

    fn requests(ledger: &Ledger, uid: u32) -> Vec<(String, u64)> {
        let samples = ledger.samples("requests").filter(|sample| sample.uid == uid);
        samples.map(|sample| (sample.program.to_owned(), sample.value)).collect()
    }

    fn take(ledger: &mut Ledger, users: Vec<User>) {
        ledger.update(&Scan { users, ..Scan::default() });
    }

    #[test]
    fn no_counter_falls_whatever_the_files_say() {
        let mut ledger = Ledger::default();
        let mut before = 0;
        for (now, expected) in [
            (10, 10),
            (25, 25),
            // Once less: a file between two places.
            (5, 25),
            (30, 30),
            // Twice less: it is so.
            (7, 30),
            (8, 30),
            (10, 32),
            (u64::MAX, u64::MAX),
            (3, u64::MAX),
            (3, u64::MAX),
            (9, u64::MAX),
        ] {
            take(&mut ledger, vec![user(1, vec![snapshot("a", now)])]);
            assert_eq!(requests(&ledger, 1), [("a".to_owned(), expected)], "{now}");
            assert!(expected >= before);
            before = expected;
        }
        // Nor does it go with its user.
        for _ in 0..3 {
            take(&mut ledger, Vec::new());
            assert_eq!(requests(&ledger, 1), [("a".to_owned(), u64::MAX)]);
        }
    }

    #[test]
    fn what_could_not_be_read_for_a_while_is_not_counted_twice() {
        let mut ledger = Ledger::default();
        take(&mut ledger, vec![user(1, vec![snapshot("a", 100)])]);
        for _ in 0..3 {
            // Without descriptors nothing of the folder can be read, or a part of it.
            take(&mut ledger, Vec::new());
            take(&mut ledger, vec![User { left_out: 1, ..user(1, Vec::new()) }]);
        }
        take(&mut ledger, vec![user(1, vec![snapshot("a", 105)])]);
        assert_eq!(requests(&ledger, 1), [("a".to_owned(), 105)]);
        assert_eq!(ledger.running().count(), 1);
    }

    #[test]
    fn processes_are_summed_and_users_are_not() {
        let mut ledger = Ledger::default();
        let three = vec![snapshot("a", 1), snapshot("a", 2), snapshot("b", 4)];
        take(&mut ledger, vec![user(1, three), user(2, vec![snapshot("a", 8)])]);
        assert_eq!(requests(&ledger, 1), [("a".to_owned(), 3), ("b".to_owned(), 4)]);
        assert_eq!(requests(&ledger, 2), [("a".to_owned(), 8)]);
        let running: Vec<u64> = ledger.running().map(|sample| sample.value).collect();
        assert_eq!(running, [2, 1, 1]);
    }

    #[test]
    fn one_users_programs_do_not_push_anothers_out_and_none_of_their_counts_is_lost() {
        let mut ledger = Ledger::default();
        for round in 0..10 {
            let flood = flood((0..1000).map(|number| format!("{round}-{number}")));
            take(&mut ledger, vec![user(7, flood), user(1000, vec![snapshot("a", round + 1)])]);
        }
        assert_eq!(requests(&ledger, 1000), [("a".to_owned(), 10)]);
        let series = ledger.users[&7].tallies.len();
        assert!(series <= MOST_OF_A_USER, "{series}");
        assert!(ledger.users[&7].names.len() <= MOST_OF_A_USER * 2);
        let sum: u64 = requests(&ledger, 7).iter().map(|(_, count)| count).sum();
        assert!((1000..=10_000).contains(&sum), "{sum}");
        // Many users: the first, by number, have their series.
        let mut ledger = Ledger::default();
        let programs = flood((0..4000).map(|number| number.to_string()));
        take(&mut ledger, (0..20).map(|uid| user(uid, programs.clone())).collect());
        assert!(ledger.users.values().map(|account| account.tallies.len()).sum::<usize>() <= MOST);
        // The last have one for all their programs.
        for (uid, least) in [(0, 3000), (19, 1)] {
            let sum: u64 = requests(&ledger, uid).iter().map(|(_, count)| count).sum();
            assert_eq!(sum, 4000, "{uid}");
            assert!(requests(&ledger, uid).len() >= least, "{uid}");
        }
        assert!(requests(&ledger, 19).len() < 100);
    }
}
