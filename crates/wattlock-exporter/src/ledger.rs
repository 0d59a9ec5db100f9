//! Counters that never fall, from files that come and go.
//!
//! A program's counts are in its file, and after its end in its user's totals; their sum rises. Where it falls (totals were
//! deleted, an older version removed a file) the counter here stays, and goes on from the lower sum if that is seen twice:
//! once may be a file that was between two places. What could not be read whole says nothing of that kind.
//!
//! Each user has a bounded number of series, some of which no other user can take, and names that there is no room for
//! are one (`(other)`), so that no user's programs push another's out. One user may have any number of user ids. What
//! may be wrong always has a series: beyond all bounds each user has one for each of these counters, without any name.

use std::collections::{BTreeMap, HashMap};

use wattlock::telemetry::{OTHER, Scan, Snapshot, Sum, User, range_of, sums_of};

/// Most series of a user, of all users, and those that each user has whatever others do. Gauges are among them; those
/// without any name, of [`TROUBLES`], are not.
const MOST_OF_A_USER: usize = 4096;
const MOST: usize = 32_768;
const RESERVED: usize = 64;
/// Most users: as many as are read.
const MOST_USERS: usize = 256;
/// One part in so many of a user's room is for programs that there is no room for, together.
const KEPT_FOR_OTHER: usize = 4;
/// Most bytes of a label, escapes apart: each of the series has three.
const MOST_LABEL: usize = 64;

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
    /// The sum of the last whole reading; below the last sum if it fell then.
    seen: u64,
    /// The sum of the last reading, whole or not.
    read: u64,
}

impl Tally {
    /// What was added, without what only `moved` here from other series. `whole` is whether all was read that the sum
    /// is of.
    fn update(&mut self, now: u64, whole: bool, moved: u64) -> u64 {
        let added = now.saturating_sub(self.last).saturating_sub(moved);
        let fell = self.seen < self.last;
        self.read = now;
        if whole || now >= self.last {
            self.seen = now;
        }
        if now < self.last && (!fell || !whole) {
            return 0;
        }
        self.total = self.total.saturating_add(added);
        self.last = now;
        added
    }
}

/// Counters of what may be wrong.
const TROUBLES: [&str; 3] = ["fallback", "errors", "refused"];

/// Reasons of fallbacks that say nothing is wrong: no alert is about them.
const HARMLESS: [&str; 6] =
    ["forked", "migrated", "second-opinion", "unsupported", "untested", "window-full"];

/// The series without any name of a counter: program, engine and kind are [`OTHER`].
const NAMELESS: [u16; 3] = [0; 3];

/// How often it was. What is added is summed, in more bits than any one counter has: no user's figures hide another's.
pub(crate) type Troubles = [u128; TROUBLES.len()];

/// A sum without the labels that its counter does not have, or one series would be there several times.
fn labelled<'a>(sum: &Sum<'a>) -> Sum<'a> {
    match sum.counter {
        "ended" => Sum { engine: "", kind: "", ..*sum },
        "quarantines" | "verified" | "tests" | "returned" | "chained" => Sum { kind: "", ..*sum },
        _ => *sum,
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
    /// The sums of this reading.
    now: HashMap<Key, u64>,
    /// How many readings ago it was there.
    absent: u64,
    dropped: u64,
    left_out: u64,
    wrong: u64,
    /// Whether its folder of the first name was read now, and whether ever one of another name was.
    first: bool,
    second: bool,
    /// Whether there was no room for a name once. No name gets a series of its own then: its counts may be among the others'
    /// already, and would count twice.
    crowded: bool,
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
    /// Whether sums may be lower because something was not read.
    pub(crate) incomplete: bool,
    /// Of all users, since the first reading began.
    pub(crate) troubles: Troubles,
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
    /// Takes in what is read, a part of a user's at a time.
    pub(crate) fn update(&mut self, read: impl FnOnce(&mut dyn FnMut(User)) -> Scan) {
        self.users.values_mut().for_each(Account::begin);
        let mut crowded = 0;
        let scan = read(&mut |user| crowded += u64::from(!self.take(&user)));
        self.wrong_folders = scan.wrong_folders;
        self.unread_folders = scan.unread_folders + crowded;
        self.incomplete = scan.incomplete || scan.more;
        for account in self.users.values_mut() {
            let complete = !scan.incomplete && (!scan.more || account.first && !account.second);
            account.end(complete, &mut self.troubles);
        }
    }

    /// The users that have counters.
    pub(crate) fn known(&self) -> Vec<u32> {
        self.users.keys().copied().collect()
    }

    /// `false` if there are too many users.
    fn take(&mut self, user: &User) -> bool {
        if !self.users.contains_key(&user.uid) && self.users.len() >= MOST_USERS {
            // One that has not been there for longest makes room. Its counters begin anew if it comes back.
            let longest = self.users.iter().max_by_key(|(_, account)| account.absent);
            let Some(uid) = longest.filter(|(_, account)| account.absent > 1).map(|(uid, _)| *uid) else {
                return false;
            };
            self.users.remove(&uid);
        }
        let beyond = |within: &dyn Fn(u32) -> bool| -> usize {
            let others = self.users.iter().filter(|(uid, _)| **uid != user.uid && within(**uid));
            others.map(|(_, account)| account.series_count().saturating_sub(RESERVED)).sum()
        };
        let of_all = (MOST - MOST_USERS * RESERVED).saturating_sub(beyond(&|_| true));
        let of_range =
            (MOST_OF_A_USER - RESERVED).saturating_sub(beyond(&|uid| range_of(uid) == range_of(user.uid)));
        self.users.entry(user.uid).or_default().take(user, of_all.min(of_range) + RESERVED);
        true
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
            now: HashMap::new(),
            absent: 0,
            dropped: 0,
            left_out: 0,
            wrong: 0,
            first: false,
            second: false,
            crowded: false,
        }
    }
}

impl Account {
    fn name(&self, number: u16) -> &str {
        self.names.get(usize::from(number)).map_or(OTHER, String::as_str)
    }

    fn number(&mut self, name: &str) -> u16 {
        let name = label(name);
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
        let of = |name: &str| self.numbers.get(label(name)).copied();
        Some([of(sum.program)?, of(sum.engine)?, of(sum.kind)?])
    }

    /// Counters and gauges that take room.
    fn series_count(&self) -> usize {
        let nameless = (0..COUNTERS.len() as u8).filter(|counter| self.has_nameless(*counter)).count();
        self.tallies.len() + self.running.len() + self.in_flight.len() - nameless
    }

    /// Whether there is a series without any name of a counter of what may be wrong.
    fn has_nameless(&self, counter: u8) -> bool {
        trouble(counter).is_some() && self.tallies.contains_key(&(counter, NAMELESS))
    }

    /// The series that a sum belongs to, one for many if there is no room for it; `None` if there is none even for
    /// that, and nothing is wrong.
    fn series(&mut self, sum: &Sum<'_>, room: usize) -> Option<Key> {
        let counter = COUNTERS.iter().position(|known| *known == sum.counter)? as u8;
        let other = Sum { program: OTHER, ..*sum };
        let named = if self.crowded { 0 } else { for_named(room) };
        // What is among the nameless stays there, and is not counted again.
        let others = if self.has_nameless(counter) { 0 } else { room.saturating_sub(KEPT_FOR_GAUGES) };
        for (sum, room) in [(sum, named), (&other, others)] {
            let known = self.known(sum).filter(|names| self.tallies.contains_key(&(counter, *names)));
            if let Some(names) = known {
                return Some((counter, names));
            }
            if self.series_count() < room {
                let names = [self.number(sum.program), self.number(sum.engine), self.number(sum.kind)];
                self.tallies.insert((counter, names), Tally::default());
                return Some((counter, names));
            }
            self.crowded = true;
        }
        trouble(counter).filter(|_| !(sum.counter == "fallback" && HARMLESS.contains(&sum.kind)))?;
        self.tallies.entry((counter, NAMELESS)).or_default();
        Some((counter, NAMELESS))
    }

    /// Before a reading.
    fn begin(&mut self) {
        // Whose folder is not there, or could not be read, keeps its counters.
        self.absent = self.absent.saturating_add(1);
        self.first = false;
        self.running.clear();
        self.in_flight.clear();
    }

    /// A part of a reading.
    fn take(&mut self, part: &User, room: usize) {
        if std::mem::take(&mut self.absent) > 0 {
            (self.dropped, self.left_out, self.wrong) = (0, 0, 0);
        }
        self.first |= part.first;
        self.second |= !part.first;
        part.totals.sums().for_each(|sum| self.add(&sum, room));
        for snapshot in part.living.iter().chain(&part.ended) {
            sums_of(snapshot).iter().for_each(|sum| self.add(sum, room));
        }
        part.living.iter().for_each(|snapshot| self.gauges(snapshot, room));
        self.left_out = self.left_out.saturating_add(part.left_out);
        self.wrong = self.wrong.saturating_add(part.wrong);
    }

    fn add(&mut self, sum: &Sum<'_>, room: usize) {
        match self.series(&labelled(sum), room) {
            Some(key) => {
                let value = self.now.entry(key).or_default();
                *value = value.saturating_add(sum.value);
            }
            None => self.dropped += u64::from(COUNTERS.contains(&sum.counter)),
        }
    }

    /// After a reading.
    fn end(&mut self, complete: bool, troubles: &mut Troubles) {
        let now = std::mem::take(&mut self.now);
        if self.absent > 0 {
            return;
        }
        let whole = complete && self.left_out == 0;
        let now = |key: &Key| now.get(key).copied().unwrap_or(0);
        // Where a user's totals are full, what a program did is among the others' once it has ended.
        let mut moved: HashMap<Key, u64> = HashMap::new();
        let fell = self.tallies.iter().map(|(key, tally)| (key, tally.read.saturating_sub(now(key))));
        for ((counter, [program, engine, kind]), less) in fell.filter(|(_, less)| *less > 0) {
            let others = (*counter, [0, *engine, *kind]);
            let to = if self.tallies.contains_key(&others) { others } else { (*counter, NAMELESS) };
            if *program != 0 {
                let sum = moved.entry(to).or_default();
                *sum = sum.saturating_add(less);
            }
        }
        for (key, tally) in &mut self.tallies {
            let added = tally.update(now(key), whole, moved.get(key).copied().unwrap_or(0));
            if let Some(sum) = trouble(key.0).and_then(|which| troubles.get_mut(which)) {
                *sum = sum.saturating_add(u128::from(added));
            }
        }
    }

    fn gauges(&mut self, snapshot: &Snapshot, room: usize) {
        let name = label(&snapshot.header.program);
        let named = for_named(room);
        // Programs that have counted nothing yet have a name here, too, as long as there is room.
        let fits = self.numbers.contains_key(name) || self.names.len() < named;
        let program = if fits { self.number(name) } else { 0 };
        let program =
            if self.running.contains_key(&program) || self.series_count() < named { program } else { 0 };
        *self.running.entry(program).or_default() += 1;
        for engine in snapshot.engines.iter().filter(|engine| engine.in_flight > 0) {
            let known = self.numbers.get(label(&engine.engine)).copied();
            let key = (program, known.unwrap_or(0));
            let fits = self.in_flight.contains_key(&key) || self.series_count() < named;
            let in_flight = self.in_flight.entry(if fits { key } else { (0, 0) }).or_default();
            *in_flight = in_flight.saturating_add(engine.in_flight);
        }
    }
}

/// Which of what may be wrong a counter says.
fn trouble(counter: u8) -> Option<usize> {
    TROUBLES.iter().position(|trouble| COUNTERS.get(usize::from(counter)) == Some(trouble))
}

/// The two gauges of what there is no room for.
const KEPT_FOR_GAUGES: usize = 2;

/// Series of programs that have a name here.
fn for_named(room: usize) -> usize {
    room - room / KEPT_FOR_OTHER
}

/// A name as a label has it.
fn label(name: &str) -> &str {
    let mut end = name.len().min(MOST_LABEL);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

#[cfg(test)]
mod tests {
    use wattlock::telemetry::{Cell, EngineCounts, Totals};

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
        User { uid, living, ended: Vec::new(), totals: Totals::default(), left_out: 0, wrong: 0, first: true }
    }

    fn requests(ledger: &Ledger, uid: u32) -> Vec<(String, u64)> {
        let samples = ledger.samples("requests").filter(|sample| sample.uid == uid);
        samples.map(|sample| (sample.program.to_owned(), sample.value)).collect()
    }

    fn take(ledger: &mut Ledger, users: Vec<User>) {
        ledger.update(|each| {
            users.into_iter().for_each(each);
            Scan::default()
        });
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
    fn what_is_not_read_once_in_a_while_forges_no_trouble() {
        let mut one = snapshot("a", 100);
        one.cells[0].refused = 100;
        let mut ledger = Ledger::default();
        let mut read = |living: &[Snapshot], incomplete: bool| {
            ledger.update(|each| {
                each(user(1, living.to_vec()));
                Scan { incomplete, ..Scan::default() }
            });
            (requests(&ledger, 1)[0].1, ledger.troubles)
        };
        let before = read(&[one.clone()], false);
        // As if another user made so many names that a folder of this one's was not found, and took them away again.
        for _ in 0..3 {
            assert_eq!([read(&[], true), read(&[], true), read(&[one.clone()], false)], [before; 3]);
        }
        // What is lower while all is read is so.
        let after = [read(&[], false), read(&[], false), read(&[one.clone()], false)];
        assert_eq!(after[2], (200, [0, 0, 200]));
    }

    /// As where a user's totals are full: what a program did is among the others' once it has ended.
    #[test]
    fn what_moves_to_the_others_is_counted_once() {
        let mut ledger = Ledger::default();
        let mut all = |a: u64, others: u64| -> (u64, u64) {
            take(&mut ledger, vec![user(1, vec![snapshot("a", a), snapshot(OTHER, others)])]);
            let now = requests(&ledger, 1);
            (now[1].1, now[0].1)
        };
        assert_eq!(all(100, 10), (100, 10));
        // 40 moved, and 5 more of others; then 30 moved.
        assert_eq!(all(60, 55), (100, 15));
        assert_eq!(all(30, 85), (100, 15));
        assert_eq!([all(30, 85), all(33, 86)], [(100, 15), (103, 16)]);
    }

    /// Such a move is seen in a reading in which something else could not be read.
    #[test]
    fn what_moves_while_not_all_is_read_is_counted_once() {
        let mut ledger = Ledger::default();
        let mut all = |a: u64, others: u64, left_out: u64| -> (u64, u64) {
            let living = vec![snapshot("a", a), snapshot(OTHER, others)];
            take(&mut ledger, vec![User { left_out, ..user(1, living) }]);
            let now = requests(&ledger, 1);
            (now[1].1, now[0].1)
        };
        assert_eq!(all(100, 10, 0), (100, 10));
        assert_eq!(all(0, 110, 1), (100, 10));
        assert_eq!([all(0, 115, 1), all(0, 116, 0)], [(100, 15), (100, 16)]);
        assert_eq!([all(0, 116, 0), all(3, 118, 0)], [(100, 16), (103, 18)]);
    }

    /// Any user makes names in shared memory.
    #[test]
    fn names_that_are_too_many_hold_up_only_users_with_a_folder_among_them() {
        let read = |ledger: &mut Ledger, count: u64, first: bool, more: bool| {
            ledger.update(|each| {
                each(User { first, ..user(1, vec![snapshot("a", count)]) });
                Scan { more, ..Scan::default() }
            });
            requests(ledger, 1)[0].1
        };
        for (first, expected) in [(true, 12), (false, 10)] {
            let mut ledger = Ledger::default();
            assert_eq!(read(&mut ledger, 10, first, false), 10);
            // Totals were removed.
            let later = [1, 1, 3].map(|count| read(&mut ledger, count, true, true));
            assert_eq!(later, [10, 10, expected]);
            assert!(ledger.incomplete);
        }
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
        let series = ledger.users[&7].series_count();
        assert!(series <= MOST_OF_A_USER, "{series}");
        assert!(ledger.users[&7].names.len() <= MOST_OF_A_USER * 2);
        let sum: u64 = requests(&ledger, 7).iter().map(|(_, count)| count).sum();
        assert!((1000..=10_000).contains(&sum), "{sum}");
    }

    #[test]
    fn what_is_among_the_others_stays_there_when_there_is_room_again() {
        let mut ledger = Ledger::default();
        // The room of all is taken by users with lower numbers.
        let crowd = |programs: usize| {
            (0..20).map(move |uid| user(uid, flood((0..programs).map(|at| at.to_string()))))
        };
        let late = |count: u64| {
            let programs = (0..200).map(|at| snapshot(&format!("p{at}"), count)).collect();
            user(1000, programs)
        };
        take(&mut ledger, crowd(4000).chain([late(1)]).collect());
        let first = requests(&ledger, 1000);
        assert!(first.iter().any(|(program, _)| program == OTHER) && first.len() < 100, "{first:?}");
        // They are gone, and so are their gauges.
        for count in 2..5 {
            take(&mut ledger, vec![late(count)]);
            let now = requests(&ledger, 1000);
            assert_eq!(now.len(), first.len());
            assert_eq!(
                now.iter().map(|(_, value)| value).sum::<u64>(),
                200 * count,
                "each request counts once"
            );
        }
    }

    #[test]
    fn what_is_wrong_has_a_series_however_full_it_is_and_is_counted_once() {
        let mut ledger = Ledger::default();
        let crowd = || (0..20).map(|uid| user(uid, flood((0..4000).map(|at| at.to_string()))));
        let programs = |count: u64| {
            let mut programs: Vec<Snapshot> = (0..100).map(|at| snapshot(&format!("p{at}"), 1)).collect();
            (programs[99].cells[0].errors, programs[99].cells[0].refused) = (count, 2 * count);
            programs[99].engines = vec![EngineCounts {
                engine: "cuda".to_owned(),
                fallbacks: vec![("silent".to_owned(), 3 * count)],
                ..EngineCounts::default()
            }];
            user(1000, programs)
        };
        // The last series of its own goes for a kind that is new.
        let mut last = programs(0);
        last.living.extend((0..64).map(|at| {
            let mut one = snapshot("p0", 1);
            one.cells[0].kind = format!("kind {at}");
            one
        }));
        take(&mut ledger, crowd().chain([last]).collect());
        take(&mut ledger, crowd().chain([programs(1)]).collect());
        let of = |ledger: &Ledger, counter: &str| -> Vec<(String, u64)> {
            let own = ledger.samples(counter).filter(|sample| sample.uid == 1000);
            own.map(|sample| (format!("{} {}", sample.program, sample.kind), sample.value)).collect()
        };
        let wrong = |ledger: &Ledger| TROUBLES.map(|counter| of(ledger, counter));
        let nameless = |count: u64| [("(other) (other)".to_owned(), count)];
        assert_eq!(wrong(&ledger), [3, 1, 2].map(|count| nameless(count).to_vec()));
        assert_eq!(ledger.troubles, [3, 1, 2]);
        // What is no trouble is none there.
        let mut harmless = programs(1);
        harmless.living[98].engines = vec![EngineCounts {
            engine: "cuda".to_owned(),
            fallbacks: HARMLESS.map(|reason| (reason.to_owned(), 7)).to_vec(),
            ..EngineCounts::default()
        }];
        take(&mut ledger, crowd().chain([harmless]).collect());
        assert_eq!((wrong(&ledger)[0].clone(), ledger.troubles), (nameless(3).to_vec(), [3, 1, 2]));
        // There is room again.
        for count in [1, 1, 1, 5] {
            take(&mut ledger, vec![programs(count)]);
            assert_eq!(wrong(&ledger), [3, 1, 2].map(|times| nameless(times * count).to_vec()));
            assert_eq!(ledger.troubles, [3, 1, 2].map(|times| u128::from(times * count)));
        }
    }

    /// One user may have 65,536 of the high ones for its containers.
    #[test]
    fn the_user_ids_of_one_user_take_one_users_room() {
        let mut ledger = Ledger::default();
        let crowd = (0..20).map(|at| user(100_000 + at, flood((0..4000).map(|at| at.to_string()))));
        take(
            &mut ledger,
            crowd.chain([user(2_000_000, flood((0..1000).map(|at| at.to_string())))]).collect(),
        );
        let series = |uid: u32| ledger.users[&uid].series_count();
        assert!((0..20).map(|at| series(100_000 + at)).sum::<usize>() <= MOST_OF_A_USER + 20 * RESERVED);
        assert_eq!((requests(&ledger, 2_000_000).len(), requests(&ledger, 100_019).len() > 2), (1000, true));
    }

    #[test]
    fn a_user_at_the_highest_number_hides_nobodys_troubles() {
        let failing = |errors: u64| {
            let mut one = snapshot("a", 1);
            one.cells[0].errors = errors;
            one
        };
        let mut ledger = Ledger::default();
        take(&mut ledger, vec![user(1, vec![failing(u64::MAX)]), user(2, vec![failing(3)])]);
        let before = ledger.troubles;
        take(&mut ledger, vec![user(1, vec![failing(u64::MAX)]), user(2, vec![failing(5)])]);
        assert_eq!([0, 1, 2].map(|at| ledger.troubles[at] - before[at]), [0, 2, 0]);
    }

    #[test]
    fn a_counter_has_its_own_labels_only() {
        let mut account = Account::default();
        for counter in COUNTERS {
            for (engine, kind) in [("lanes", "sha-1"), ("cuda", "sha-256")] {
                account.add(&Sum { program: "a", engine, kind, counter, value: 1 }, MOST_OF_A_USER);
            }
        }
        let series = |counter: &str| {
            let at = COUNTERS.iter().position(|known| *known == counter).unwrap() as u8;
            account.tallies.keys().filter(|key| key.0 == at).count()
        };
        assert_eq!(["ended", "quarantines", "requests", "fallback"].map(series), [1, 2, 2, 2]);
    }

    #[test]
    fn many_user_ids_leave_each_user_its_own_series() {
        let mut ledger = Ledger::default();
        let programs = flood((0..4000).map(|number| number.to_string()));
        for _ in 0..2 {
            take(&mut ledger, (0..20).map(|uid| user(uid, programs.clone())).collect());
        }
        let all = |ledger: &Ledger| ledger.users.values().map(Account::series_count).sum::<usize>();
        assert!(all(&ledger) <= MOST, "{}", all(&ledger));
        for uid in 0..20 {
            let sum: u64 = requests(&ledger, uid).iter().map(|(_, count)| count).sum();
            assert_eq!(sum, 4000, "{uid}");
        }
        assert!(requests(&ledger, 0).len() >= 1000);
        assert!((2..100).contains(&requests(&ledger, 19).len()), "the last still have some of their own");
        // One that comes when all are taken.
        take(&mut ledger, vec![user(1000, vec![snapshot("a", 3)])]);
        assert_eq!(requests(&ledger, 1000), [("a".to_owned(), 3)]);
        // Ids that come and go do not take memory for ever.
        for round in 0..5 {
            take(
                &mut ledger,
                (0..200).map(|at| user(5000 + round * 200 + at, vec![snapshot("a", 1)])).collect(),
            );
        }
        assert!(ledger.users.len() <= MOST_USERS && all(&ledger) <= MOST);
        assert_eq!(requests(&ledger, 5999), [("a".to_owned(), 1)]);
    }

    #[test]
    fn gauges_have_no_more_room_than_counters_and_labels_are_short() {
        let mut ledger = Ledger::default();
        let mut one = snapshot("", 1);
        one.cells.clear();
        let engine = |at: usize| EngineCounts {
            engine: format!("{at}{}", "\"x".repeat(1000)),
            in_flight: u64::from(at > 0),
            ..EngineCounts::default()
        };
        one.engines = (0..32).map(engine).collect();
        let programs = (0..1024).map(|at| {
            let mut one = one.clone();
            one.header.program = format!("{at}{}", "\u{e9}".repeat(500));
            one
        });
        take(&mut ledger, vec![user(1, programs.collect())]);
        assert!(ledger.users[&1].series_count() <= MOST_OF_A_USER);
        assert_eq!(ledger.running().map(|sample| sample.value).sum::<u64>(), 1024);
        let in_flight: Vec<Sample<'_>> = ledger.in_flight().collect();
        assert_eq!(in_flight.iter().map(|sample| sample.value).sum::<u64>(), 31 * 1024);
        assert!(in_flight.iter().all(|sample| sample.value > 0 && sample.engine.len() <= MOST_LABEL));
        assert!(ledger.running().all(|sample| sample.program.len() <= MOST_LABEL));
    }
}
