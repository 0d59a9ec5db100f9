//! Reading a telemetry file, one's own or another process's, which may contain anything and change meanwhile. Only what has
//! room is read; no other process's file is mapped, because it may shrink.

use std::borrow::Cow;
use std::ffi::CStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use serde::Serialize;
use wattlock_meter::Record;

use super::file::{BEGIN, ENDED, HEADER_BYTES};
use super::folder::Folder;
use super::{FORMAT, Header};

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
    /// Whether anything was asked of the runtime yet. A host that has used nothing has nothing to tell.
    pub fn is_used(&self) -> bool {
        !self.cells.is_empty() || self.engines.iter().any(|engine| engine.tests > 0)
    }

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
        theirs.into_iter().for_each(|(sum, more)| *sum = sum.saturating_add(more));
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
        theirs.into_iter().for_each(|(sum, more)| *sum = sum.saturating_add(more));
        for (reason, count) in &other.fallbacks {
            match fallbacks.iter_mut().find(|(known, _)| known == reason) {
                Some((_, sum)) => *sum = sum.saturating_add(*count),
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

/// Words of a row; `None` if a header names more than any Wattlock would.
fn row_words(header: &Header) -> Option<usize> {
    let named = header.kinds.len().max(header.cell.len()).max(header.engine.len());
    if header.engines.len().max(header.inactive.len()) > MOST_ENGINES || named > MOST_NAMES {
        return None;
    }
    let words = header.engines.len() * (header.kinds.len() * header.cell.len() + header.engine.len());
    (words <= MOST_ROW_WORDS).then(|| words.next_multiple_of(8))
}

/// Rows that are added up.
struct Rows {
    sums: Vec<u64>,
    rows: usize,
}

impl Rows {
    fn new(header: &Header) -> Option<Rows> {
        Some(Rows { sums: vec![0; row_words(header)?], rows: header.rows })
    }

    /// Adds words, the first of which is the file's with that number. Sums do not wrap.
    fn add(&mut self, first: usize, words: impl Iterator<Item = u64>) {
        let row = self.sums.len();
        if row == 0 {
            return;
        }
        let most = self.rows.saturating_mul(row).saturating_sub(first);
        for (at, word) in words.take(most).enumerate().filter(|(_, word)| *word > 0) {
            let sum = &mut self.sums[(first + at) % row];
            *sum = sum.saturating_add(word);
        }
    }

    /// What a snapshot of them would have: cells and fallbacks, and the bytes of their names.
    fn cost(&self, header: &Header) -> (u64, u64) {
        let (kinds, cell, engine_words) = (header.kinds.len(), header.cell.len(), header.engine.len());
        let shows = ["requests", "errors", "refused"].map(|name| place(&header.cell, name));
        let counts = |start: usize| shows.iter().flatten().any(|place| self.sums[start + place] > 0);
        let first_reason = engine_words.saturating_sub(header.reasons);
        let (mut items, mut text) = (0, 0);
        let mut add = |bytes: usize| {
            items += 1;
            text += bytes as u64;
        };
        for (e, engine) in header.engines.iter().enumerate() {
            add(engine.len() + header.details.get(e).map_or(0, String::len));
            let counted = header.kinds.iter().enumerate().filter(|(k, _)| counts((e * kinds + k) * cell));
            counted.for_each(|(_, kind)| add(engine.len() + kind.len()));
            let start = header.engines.len() * kinds * cell + e * engine_words;
            let counted = (first_reason..engine_words).filter(|place| self.sums[start + place] > 0);
            counted.for_each(|place| add(header.engine[place].len()));
        }
        (items, text)
    }

    fn snapshot(&self, header: Header) -> Snapshot {
        let (kinds, cell, engine_words) = (header.kinds.len(), header.cell.len(), header.engine.len());
        let at = |place: Option<usize>, start: usize| place.map_or(0, |place| self.sums[start + place]);
        let in_cell = super::CELL_NAMES.map(|name| place(&header.cell, name));
        let in_engine = super::ENGINE_NAMES.map(|name| place(&header.engine, name));
        let reasons = engine_words.saturating_sub(header.reasons)..engine_words;
        let (mut cells, mut engines) = (Vec::new(), Vec::new());
        for (e, engine) in header.engines.iter().enumerate() {
            let start = header.engines.len() * kinds * cell + e * engine_words;
            let [in_flight, quarantines, verified, tests, returned, chained] =
                in_engine.map(|place| at(place, start));
            let fallbacks =
                reasons.clone().map(|place| (header.engine[place].clone(), self.sums[start + place]));
            engines.push(EngineCounts {
                engine: engine.clone(),
                detail: header.details.get(e).cloned().unwrap_or_default(),
                in_flight,
                quarantines,
                verified,
                tests,
                returned,
                chained,
                fallbacks: fallbacks.filter(|(_, count)| *count > 0).collect(),
            });
            for (k, kind) in header.kinds.iter().enumerate() {
                let start = (e * kinds + k) * cell;
                let [
                    requests,
                    bytes,
                    errors,
                    timed,
                    timed_ns,
                    held_ns,
                    batch_sum,
                    energy_nj,
                    refused,
                    submit_ns,
                ] = in_cell.map(|place| at(place, start));
                if requests | errors | refused > 0 {
                    let (engine, kind) = (engine.clone(), kind.clone());
                    cells.push(Cell {
                        engine,
                        kind,
                        requests,
                        bytes,
                        errors,
                        refused,
                        timed,
                        timed_ns,
                        held_ns,
                        batch_sum,
                        energy_nj,
                        submit_ns,
                    });
                }
            }
        }
        Snapshot { header, engines, cells, energy: Vec::new() }
    }
}

/// Adds up the rows that follow a header of ours, those that count: others are not touched.
pub(super) fn sum(header: &Header, words: &[AtomicU64], counts: impl Fn(usize) -> bool) -> Snapshot {
    let nothing = Rows { sums: Vec::new(), rows: 0 };
    let Some(mut rows) = Rows::new(header).filter(|rows| !rows.sums.is_empty()) else {
        return nothing.snapshot(Header { engines: Vec::new(), ..header.clone() });
    };
    let row = rows.sums.len();
    // No more rows than there are.
    for (at, words) in words.chunks_exact(row).enumerate().take(header.rows).filter(|(at, _)| counts(*at)) {
        rows.add(at * row, words.iter().map(|word| word.load(Relaxed)));
    }
    rows.snapshot(header.clone())
}

fn place(names: &[String], name: &str) -> Option<usize> {
    names.iter().position(|known| known == name)
}

/// Largest file that is read: several times ours.
const MOST_BYTES: u64 = 8 << 20;
/// Most engines, kinds, and counters of either that a header may name, and words of a row: several times ours.
const MOST_ENGINES: usize = 32;
const MOST_NAMES: usize = 256;
const MOST_ROW_WORDS: usize = 1 << 16;
/// Bytes that are read at once.
const PIECE: usize = 64 << 10;

/// How much of one user's files is read and held: however many there are, the others' get their turn.
#[derive(Debug, Clone)]
pub(super) struct Budget {
    files: usize,
    bytes: u64,
    /// Cells, engines and fallbacks.
    cells: u64,
    /// Bytes of headers and names.
    text: u64,
}

impl Budget {
    /// For all files of one user: many times what a thousand processes count.
    pub(super) fn of_a_user() -> Budget {
        Budget { files: 1024, bytes: 32 << 20, cells: 1 << 16, text: 16 << 20 }
    }

    /// For one file, whatever is in it.
    pub(super) fn one_file() -> Budget {
        Budget { files: 1, bytes: MOST_BYTES, cells: u64::MAX, text: u64::MAX }
    }

    /// For what is held of all users at once.
    pub(super) fn of_all() -> Budget {
        Budget { files: usize::MAX, bytes: u64::MAX, cells: 1 << 18, text: 64 << 20 }
    }

    fn spend(&mut self, bytes: u64) -> Option<()> {
        self.bytes = self.bytes.checked_sub(bytes)?;
        Some(())
    }

    /// `None`, and nothing spent, if one of them is more than there is.
    fn hold(&mut self, (cells, text): (u64, u64)) -> Option<()> {
        let rest = (self.cells.checked_sub(cells)?, self.text.checked_sub(text)?);
        (self.cells, self.text) = rest;
        Some(())
    }

    /// Whether there is room for what was read, which then is spent.
    pub(super) fn holds(&mut self, snapshot: &Snapshot) -> bool {
        let cells = snapshot.cells.iter().map(|cell| cell.engine.len() + cell.kind.len());
        let reasons = snapshot.engines.iter().flat_map(|engine| &engine.fallbacks);
        let engines = snapshot.engines.iter().map(|engine| engine.engine.len() + engine.detail.len());
        let all = cells.chain(engines).chain(reasons.map(|(reason, _)| reason.len()));
        let cost = all.fold((0, 0), |(items, text), bytes| (items + 1, text + bytes as u64));
        self.hold((cost.0, cost.1 + size_of_header(&snapshot.header))).is_some()
    }
}

/// Bytes of a header's texts, and of their places in memory.
fn size_of_header(header: &Header) -> u64 {
    let Header { version, program, policy, objective, profile, .. } = header;
    let Header { engines, details, energy, inactive, kinds, cell, engine, .. } = header;
    let lists = [engines, details, energy, kinds, cell, engine].into_iter().flatten();
    let pairs = inactive.iter().flat_map(|(name, why)| [name, why]);
    let all = [version, program, policy, objective, profile].into_iter().chain(lists).chain(pairs);
    all.map(|text| (size_of::<String>() + text.len()) as u64).sum()
}

/// Why a file is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unread {
    /// It is not there.
    Gone,
    /// It is not what its place and name say.
    Wrong,
    /// It cannot be read, or the budget is spent.
    NotNow,
}

/// Whether an error says nothing of the file: it may be read another time.
pub(super) fn passes(error: Errno) -> bool {
    matches!(error, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR | Errno::IO | Errno::AGAIN)
}

/// A file of a folder, and whether its process said that it has ended.
pub(super) fn read_file(
    folder: &Folder,
    name: &CStr,
    budget: &mut Budget,
) -> Result<(Snapshot, bool), Unread> {
    budget.files = budget.files.checked_sub(1).ok_or(Unread::NotNow)?;
    let (fd, stat) = match folder.open_to_read(name) {
        Ok(opened) => opened.ok_or(Unread::Wrong)?,
        Err(Errno::NOENT) => return Err(Unread::Gone),
        Err(error) if passes(error) => return Err(Unread::NotNow),
        Err(_) => return Err(Unread::Wrong),
    };
    if !(HEADER_BYTES as i64..=MOST_BYTES as i64).contains(&stat.st_size) {
        return Err(Unread::Wrong);
    }
    let file = File::from(fd);
    let (text, ended) = read_header(&file, budget)?;
    let header = header_of(&text).ok_or(Unread::Wrong)?;
    let mut rows = Rows::new(&header).ok_or(Unread::Wrong)?;
    budget.hold((0, size_of_header(&header))).ok_or(Unread::NotNow)?;
    let mut piece = vec![0; PIECE];
    let mut at = HEADER_BYTES;
    'file: while let Some(data) = next_data(&file, at, stat.st_size as u64) {
        at = data.start;
        while at < data.end {
            let wanted = piece.len().min((data.end - at) as usize);
            budget.spend(wanted as u64).ok_or(Unread::NotNow)?;
            // Fewer if it shrank.
            let read = file.read_at(&mut piece[..wanted], at).map_err(|_| Unread::NotNow)?;
            let words = piece[..read].as_chunks::<8>().0;
            rows.add(((at - HEADER_BYTES) / 8) as usize, words.iter().map(|word| u64::from_ne_bytes(*word)));
            if words.is_empty() {
                break 'file;
            }
            at += words.len() as u64 * 8;
        }
    }
    // Before it is made: it may be much larger than the file.
    budget.hold(rows.cost(&header)).ok_or(Unread::NotNow)?;
    Ok((rows.snapshot(header), ended))
}

/// The next part of a file that is no hole, from a multiple of 8 on; `None` behind the last.
fn next_data(file: &File, from: u64, end: u64) -> Option<std::ops::Range<u64>> {
    if from >= end {
        return None;
    }
    match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Ok(start) => {
            let hole = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(end);
            (start < end).then(|| start.max(from) / 8 * 8..hole.min(end))
        }
        Err(Errno::NXIO) => None,
        // A file system that does not tell.
        Err(_) => Some(from..end),
    }
}

/// A header's text, begun as a living process's, and whether the process has ended.
pub(super) fn read_header(file: &File, budget: &mut Budget) -> Result<(Vec<u8>, bool), Unread> {
    let mut text = Vec::new();
    while !text.contains(&0) {
        let (before, more) = (text.len(), if text.is_empty() { 8192 } else { PIECE });
        let more = more.min(HEADER_BYTES as usize - before);
        budget.spend(more as u64).ok_or(Unread::NotNow)?;
        text.resize(before + more, 0);
        let read = file.read_at(&mut text[before..], before as u64).map_err(|_| Unread::NotNow)?;
        text.truncate(before + read);
        if read == 0 {
            break;
        }
    }
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    text.truncate(end);
    let ended = text.starts_with(ENDED);
    if ended {
        text[0] = BEGIN[0];
    }
    Ok((text, ended))
}

/// The header with this text, which may be anybody's. One of another layout is none of ours.
pub(super) fn header_of(text: &[u8]) -> Option<Header> {
    let mut header: Header =
        serde_json::from_slice(text).ok().filter(|header: &Header| header.format == FORMAT)?;
    row_words(&header)?;
    texts(&mut header).for_each(|text| {
        if let Cow::Owned(clean) = shown(text) {
            *text = clean;
        }
    });
    Some(header)
}

/// The counts in a telemetry file's content, which may be anybody's: `None` if it is none, or names more than any Wattlock
/// would. What is not to be shown in its texts is replaced.
pub fn parse(bytes: &[u8]) -> Option<Snapshot> {
    let (head, counters) = bytes.split_at_checked(HEADER_BYTES as usize)?;
    let header = header_of(head.split(|byte| *byte == 0).next()?)?;
    let mut rows = Rows::new(&header)?;
    rows.add(0, counters.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)));
    Some(rows.snapshot(header))
}

/// Another user's text as it may be shown: without control characters, and without those that hide others or turn the
/// direction of writing.
pub(super) fn shown(text: &str) -> Cow<'_, str> {
    let unfit = |c: char| {
        c.is_control()
            || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
            || matches!(c, '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
    };
    match text.contains(unfit) {
        true => text.replace(unfit, "\u{fffd}").into(),
        false => text.into(),
    }
}

/// Every text of a header.
fn texts(header: &mut Header) -> impl Iterator<Item = &mut String> {
    let Header { version, program, policy, objective, profile, .. } = header;
    let Header { engines, details, energy, inactive, kinds, cell, engine, .. } = header;
    let lists = [engines, details, energy, kinds, cell, engine].into_iter().flatten();
    let pairs = inactive.iter_mut().flat_map(|(name, why)| [name, why]);
    [version, program, policy, objective, profile].into_iter().chain(lists).chain(pairs)
}

/// A file with a header and so many rows: their words by row, engine, kind (of an engine's own: none) and counter.
#[cfg(test)]
pub(super) fn encode(
    header: &Header,
    rows: usize,
    word: impl Fn(usize, usize, Option<usize>, usize) -> u64,
) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(header).unwrap();
    bytes.resize(HEADER_BYTES as usize, 0);
    for row in 0..rows {
        let start = bytes.len();
        let mut push = |engine, kind, count: usize| {
            let words = (0..count).map(|counter| word(row, engine, kind, counter));
            bytes.extend(words.flat_map(u64::to_ne_bytes));
        };
        for engine in 0..header.engines.len() {
            (0..header.kinds.len()).for_each(|kind| push(engine, Some(kind), header.cell.len()));
        }
        (0..header.engines.len()).for_each(|engine| push(engine, None, header.engine.len()));
        bytes.resize(start + row_words(header).unwrap() * 8, 0);
    }
    bytes
}

#[cfg(test)]
mod tests {
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
}
