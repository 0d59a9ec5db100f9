//! Reading telemetry files, one's own or another process's.

use std::fs;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;
use wattlock_meter::Record;

use super::Header;
use super::file::{HEADER_BYTES, born, entries, folder, is_gone, is_ours, number, remove, whose};

/// One engine's counts of one kind; only those with anything in them are listed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// Engine.
    pub engine: String,
    /// Kind.
    pub kind: String,
    /// Requests done.
    pub requests: u64,
    /// Their input bytes.
    pub bytes: u64,
    /// Requests that failed, and the caller was told.
    pub errors: u64,
    /// Requests to open what does not authenticate.
    pub refused: u64,
    /// Requests whose time was taken.
    pub timed: u64,
    /// Their times, summed, in nanoseconds.
    pub timed_ns: u64,
    /// Time held, summed, in nanoseconds.
    pub held_ns: u64,
    /// Batch sizes, summed over queued requests.
    pub batch_sum: u64,
    /// Nanojoules of the requests counted in `timed`; the header's `energy` says what they are worth.
    pub energy_nj: u64,
    /// What handing queued requests to their engine took, summed, in nanoseconds.
    pub submit_ns: u64,
}

/// What a request had on average; `None` where there is none to say it of. Whoever shows it shows the same.
impl Cell {
    /// Nanoseconds from submission to completion, over those whose time was taken.
    pub fn mean_ns(&self) -> Option<f64> {
        mean(self.timed_ns, self.timed)
    }

    /// Nanoseconds held, over all requests done: one that was held counts whether or not its time was taken.
    pub fn mean_held_ns(&self) -> Option<f64> {
        mean(self.held_ns, self.requests)
    }

    /// Requests in a batch, over queued requests.
    pub fn mean_batch(&self) -> Option<f64> {
        mean(self.batch_sum, self.queued())
    }

    /// Requests that `batch_sum` is over: the time of each queued request is taken.
    pub fn queued(&self) -> u64 {
        if self.batch_sum > 0 { self.timed } else { 0 }
    }
}

impl Snapshot {
    /// Adds another process's counts of the same program. Its header and its joules, which are the machine's, stay out.
    pub fn add(&mut self, other: &Snapshot) {
        for theirs in &other.cells {
            let same = |ours: &&mut Cell| (&ours.engine, &ours.kind) == (&theirs.engine, &theirs.kind);
            match self.cells.iter_mut().find(same) {
                Some(ours) => ours.add(theirs),
                None => self.cells.push(theirs.clone()),
            }
        }
        for theirs in &other.engines {
            match self.engines.iter_mut().find(|ours| ours.engine == theirs.engine) {
                Some(ours) => ours.add(theirs),
                None => self.engines.push(theirs.clone()),
            }
        }
    }
}

impl Cell {
    fn add(&mut self, other: &Cell) {
        let Cell { requests, bytes, errors, refused, timed, timed_ns, held_ns, .. } = self;
        let Cell { batch_sum, energy_nj, submit_ns, .. } = self;
        let theirs = [
            (requests, other.requests),
            (bytes, other.bytes),
            (errors, other.errors),
            (timed, other.timed),
            (timed_ns, other.timed_ns),
            (held_ns, other.held_ns),
            (batch_sum, other.batch_sum),
            (energy_nj, other.energy_nj),
            (refused, other.refused),
            (submit_ns, other.submit_ns),
        ];
        theirs.into_iter().for_each(|(sum, more)| *sum = sum.wrapping_add(more));
    }
}

impl EngineCounts {
    fn add(&mut self, other: &EngineCounts) {
        let EngineCounts { in_flight, quarantines, verified, tests, returned, chained, fallbacks, .. } = self;
        let theirs = [
            (in_flight, other.in_flight),
            (quarantines, other.quarantines),
            (verified, other.verified),
            (tests, other.tests),
            (returned, other.returned),
            (chained, other.chained),
        ];
        theirs.into_iter().for_each(|(sum, more)| *sum = sum.wrapping_add(more));
        for (reason, count) in &other.fallbacks {
            match fallbacks.iter_mut().find(|(known, _)| known == reason) {
                Some((_, sum)) => *sum = sum.wrapping_add(*count),
                None => fallbacks.push((reason.clone(), *count)),
            }
        }
    }
}

fn mean(sum: u64, count: u64) -> Option<f64> {
    (count > 0).then(|| sum as f64 / count as f64)
}

/// One engine's counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct EngineCounts {
    /// Engine.
    pub engine: String,
    /// What it rests on.
    pub detail: String,
    /// Requests in flight now.
    pub in_flight: u64,
    /// Times it was put into quarantine.
    pub quarantines: u64,
    /// Results checked on the CPU.
    pub verified: u64,
    /// Known-answer tests run.
    pub tests: u64,
    /// Pieces of operations that it took after the CPU had begun to take them.
    pub returned: u64,
    /// Requests that followed a step of the same engine, or of the same core: what compressed a chunk sealed it.
    pub chained: u64,
    /// Fallbacks away from it, by reason; only reasons that occurred.
    pub fallbacks: Vec<(String, u64)>,
}

/// All of one process's counts at one moment.
#[derive(Debug, Clone, Serialize)]
pub struct Snapshot {
    /// What the process says of itself.
    pub header: Header,
    /// By engine.
    pub engines: Vec<EngineCounts>,
    /// By engine and kind.
    pub cells: Vec<Cell>,
    /// What the machine used, by a meter of the program that asks for its own counts: the runtime has none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub energy: Vec<Record>,
}

/// Adds up the rows that follow a header, those that count: others are not touched.
pub(super) fn sum(header: &Header, words: &[AtomicU64], counts: impl Fn(usize) -> bool) -> Snapshot {
    let (engines, kinds) = (header.engines.len(), header.kinds.len());
    let (cell, engine_words) = (header.cell.len(), header.engine.len());
    let row = (engines * (kinds * cell + engine_words)).next_multiple_of(8);
    // The header may be anybody's: no more rows than there are.
    let rows = header.rows.min(words.len().checked_div(row).unwrap_or(0));
    let total = |at: usize| -> u64 {
        (0..rows)
            .filter(|r| counts(*r))
            .filter_map(|r| words.get(r * row + at))
            .fold(0, |sum, w| sum.wrapping_add(w.load(Relaxed)))
    };
    let in_cell = |engine: usize, kind: usize, name: &str| {
        let place = header.cell.iter().position(|known| known == name)?;
        Some(total((engine * kinds + kind) * cell + place))
    };
    let in_engine = |engine: usize, name: &str| {
        let place = header.engine.iter().position(|known| known == name)?;
        Some(total(engines * kinds * cell + engine * engine_words + place))
    };
    let mut cells = Vec::new();
    let mut by_engine = Vec::new();
    for (e, engine) in header.engines.iter().enumerate() {
        let count = |name| in_engine(e, name).unwrap_or(0);
        let reasons = &header.engine[engine_words.saturating_sub(header.reasons)..];
        by_engine.push(EngineCounts {
            engine: engine.clone(),
            detail: header.details.get(e).cloned().unwrap_or_default(),
            in_flight: count("in_flight"),
            quarantines: count("quarantines"),
            verified: count("verified"),
            returned: count("returned"),
            chained: count("chained"),
            tests: count("tests"),
            fallbacks: reasons
                .iter()
                .map(|name| (name.clone(), count(name)))
                .filter(|(_, n)| *n > 0)
                .collect(),
        });
        for (k, kind) in header.kinds.iter().enumerate() {
            let count = |name| in_cell(e, k, name).unwrap_or(0);
            let found = Cell {
                engine: engine.clone(),
                kind: kind.clone(),
                requests: count("requests"),
                bytes: count("bytes"),
                errors: count("errors"),
                refused: count("refused"),
                timed: count("timed"),
                timed_ns: count("timed_ns"),
                held_ns: count("held_ns"),
                batch_sum: count("batch_sum"),
                energy_nj: count("energy_nj"),
                submit_ns: count("submit_ns"),
            };
            if found.requests + found.errors + found.refused > 0 {
                cells.push(found);
            }
        }
    }
    Snapshot { header: header.clone(), engines: by_engine, cells, energy: Vec::new() }
}

/// Largest file that is read: several times ours, low enough that a stray file cannot fill memory.
const MOST_BYTES: u64 = 8 << 20;
/// Most engines, kinds, and counters of either that a header may name: several times what we know.
const MOST_ENGINES: usize = 32;
const MOST_NAMES: usize = 256;

fn read(path: &Path) -> Option<Snapshot> {
    // Not through a link, and not a pipe that would keep the reader waiting.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
    parse(&bytes)
}

/// The counts in a telemetry file's content, which may be anybody's: `None` if it is none, or names more than any Wattlock
/// would. Control characters in its texts are replaced, so that they can be shown.
pub fn parse(bytes: &[u8]) -> Option<Snapshot> {
    let (head, counters) = bytes.split_at_checked(HEADER_BYTES as usize)?;
    let text = head.split(|byte| *byte == 0).next()?;
    let mut header: Header = serde_json::from_slice(text).ok()?;
    if header.engines.len().max(header.inactive.len()) > MOST_ENGINES
        || header.kinds.len().max(header.cell.len()).max(header.engine.len()) > MOST_NAMES
    {
        return None;
    }
    texts(&mut header).for_each(|text| {
        if text.contains(char::is_control) {
            *text = text.replace(char::is_control, "\u{fffd}");
        }
    });
    let words: Vec<AtomicU64> =
        counters.as_chunks::<8>().0.iter().map(|word| AtomicU64::new(u64::from_ne_bytes(*word))).collect();
    Some(sum(&header, &words, |_| true))
}

/// Every text of a header.
fn texts(header: &mut Header) -> impl Iterator<Item = &mut String> {
    let Header { version, program, policy, objective, profile, .. } = header;
    let Header { engines, details, energy, inactive, kinds, cell, engine, .. } = header;
    let lists = [engines, details, energy, kinds, cell, engine].into_iter().flatten();
    let pairs = inactive.iter_mut().flat_map(|(name, why)| [name, why]);
    [version, program, policy, objective, profile].into_iter().chain(lists).chain(pairs)
}

/// Every living process's counts, of the calling user's or (if the caller may read them) all users' processes.
/// The calling user's files of processes that are gone are removed; no other user's are, because the owner of a folder
/// decides what its names lead to. Unreadable ones are passed over.
pub fn read_all() -> Vec<Snapshot> {
    let mut found: Vec<Snapshot> = folders().iter().flat_map(|folder| read_folder(folder)).collect();
    // A host that has used nothing yet has nothing to tell.
    found.retain(|one| !one.cells.is_empty() || one.engines.iter().any(|engine| engine.tests > 0));
    found.sort_by_key(|snapshot| snapshot.header.pid);
    found
}

/// The counts of the calling user's processes with these ids, from its own folder.
pub fn read_own(pids: &[u32]) -> Vec<Snapshot> {
    let folder = folder();
    let found = if is_ours(&folder) { read_folder(&folder) } else { Vec::new() };
    found.into_iter().filter(|snapshot| pids.contains(&snapshot.header.pid)).collect()
}

fn folders() -> Vec<PathBuf> {
    let own = folder();
    let others = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> = others
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("wattlock-"))
        .map(|entry| entry.path())
        .collect();
    if !all.contains(&own) {
        all.push(own);
    }
    all
}

fn read_folder(folder: &Path) -> Vec<Snapshot> {
    let ours = is_ours(folder);
    let mut found = Vec::new();
    for path in entries(folder) {
        let Some(pid) = number(&path) else { continue };
        let gone = is_gone(pid);
        let snapshot = if gone { None } else { read(&path) };
        // A number serves again for another process; the file is not that one's.
        let other = |snapshot: &Snapshot| {
            let born = born(pid).filter(|_| snapshot.header.born != 0);
            born.is_some_and(|born| born != snapshot.header.born)
        };
        if gone || snapshot.as_ref().is_some_and(other) {
            if ours && whose(&path).is_some() {
                remove(&path);
            }
            continue;
        }
        found.extend(snapshot);
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::telemetry::Identity;

    #[test]
    fn a_header_that_claims_endless_rows_costs_no_more_than_the_file() {
        let identity = Identity { engines: vec!["a".into()], ..Identity::default() };
        let header = Header { rows: usize::MAX, ..identity.header() };
        let words: Vec<AtomicU64> = (0..5000).map(|_| AtomicU64::new(1)).collect();
        assert!(sum(&header, &words, |_| true).cells[0].requests > 0);
        let nobody = Header { engines: Vec::new(), ..header };
        assert!(sum(&nobody, &words, |_| true).cells.is_empty());
    }

    #[test]
    fn what_lies_behind_a_link_is_neither_read_nor_removed() {
        let (target, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let precious = target.path().join("4194303-0");
        fs::write(&precious, b"precious").unwrap();
        let linked = place.path().join("wattlock-0");
        std::os::unix::fs::symlink(target.path(), &linked).unwrap();
        assert!(read_folder(&linked).is_empty());
        assert!(precious.exists());
        let link = target.path().join(format!("{}-7", std::process::id()));
        std::os::unix::fs::symlink(&precious, &link).unwrap();
        assert!(read(&link).is_none());
    }

    #[test]
    fn a_number_that_serves_again_does_not_bring_the_dead_back() {
        let folder = tempfile::tempdir().unwrap();
        let header = Identity::default().header();
        assert!(header.born > 0);
        let write = |name: &str, born: u64| {
            let path = folder.path().join(format!("{}-{name}", header.pid));
            let mut bytes = serde_json::to_vec(&Header { born, ..header.clone() }).unwrap();
            bytes.resize(HEADER_BYTES as usize, 0);
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            path
        };
        let (mine, unknown, other) = (write("1", header.born), write("2", 0), write("3", header.born - 1));
        let found = read_folder(folder.path());
        assert_eq!(found.len(), 2);
        assert!(mine.exists() && unknown.exists() && !other.exists());
    }

    #[test]
    fn anybodys_header_is_bounded_and_fit_to_be_shown() {
        let file = |header: &Header| {
            let mut bytes = serde_json::to_vec(header).unwrap();
            bytes.resize(HEADER_BYTES as usize + 4096, 0);
            parse(&bytes)
        };
        let mut header = Identity { engines: vec!["a\n".into()], ..Identity::default() }.header();
        header.program = "evil\u{1b}]0;x\u{7}\nfake (pid 1)".into();
        header.inactive = vec![("card".into(), "\u{9b}2J".into())];
        let seen = file(&header).unwrap();
        assert_eq!(seen.header.program, "evil\u{fffd}]0;x\u{fffd}\u{fffd}fake (pid 1)");
        assert_eq!(
            (seen.engines[0].engine.as_str(), seen.header.inactive[0].1.as_str()),
            ("a\u{fffd}", "\u{fffd}2J")
        );
        assert!(file(&Header { kinds: vec![String::new(); 257], ..header.clone() }).is_none());
        assert!(file(&Header { engines: vec![String::new(); 33], ..header.clone() }).is_none());
        assert!(parse(&[]).is_none());
    }

    /// Bytes and numbers changed at random (a fixed sequence): none of it may overflow, index beyond the file or grow.
    #[test]
    fn a_mangled_file_is_read_or_passed_over() {
        let header = Identity { engines: vec!["a".into(), "b".into()], ..Identity::default() }.header();
        let whole = serde_json::to_vec(&header).unwrap();
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        let mut read = 0;
        for _ in 0..4000 {
            let mut bytes = whole.clone();
            for _ in 0..=random(3) {
                let at = random(bytes.len());
                match random(3) {
                    0 => bytes[at] = b"0123456789\"[]{},:"[random(17)],
                    1 => drop(bytes.splice(at..at, b"99999999999".iter().copied())),
                    _ => drop(bytes.drain(at..(at + random(40)).min(bytes.len()))),
                }
            }
            bytes.resize(HEADER_BYTES as usize, 0);
            bytes.resize(HEADER_BYTES as usize + random(9000), 7);
            read += usize::from(parse(&bytes).is_some());
        }
        assert!((100..3900).contains(&read), "{read} of 4000 still are files");
    }

    #[test]
    fn a_pipe_keeps_no_reader_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1-0");
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success() && read(&path).is_none());
    }
}
