//! Reading a telemetry file, one's own or another process's, which may contain anything and change meanwhile. Only what has
//! room is read; no other process's file is mapped, because it may shrink.

use std::borrow::Cow;
use std::ffi::CStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::budget::{Budget, size_of_header};
use super::file::{BEGIN, ENDED, HEADER_BYTES};
use super::folder::Folder;
use super::totals::MOST_NAME_BYTES;
use super::{Cell, EngineCounts, FORMAT, Header, Snapshot};
use crate::sys::process::effective_uid;

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
        Snapshot { uid: effective_uid(), header, engines, cells, energy: Vec::new() }
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
pub(super) const MOST_BYTES: u64 = 8 << 20;
/// Most engines, kinds, and counters of either that a header may name, and words of a row: several times ours.
const MOST_ENGINES: usize = 32;
const MOST_NAMES: usize = 256;
const MOST_ROW_WORDS: usize = 1 << 16;
/// Bytes that are read at once.
const PIECE: usize = 64 << 10;

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
    budget.open().ok_or(Unread::NotNow)?;
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
    Ok((Snapshot { uid: folder.owner(), ..rows.snapshot(header) }, ended))
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
    // Those of engines that there are.
    header.details.truncate(header.engines.len());
    header.energy.truncate(header.engines.len());
    texts(&mut header).for_each(|(text, most)| {
        if let Cow::Owned(clean) = shown(text) {
            *text = clean;
        }
        text.truncate(cut(text, most).len());
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

/// Most bytes of a text that is no name: several times ours.
const MOST_TEXT: usize = 1024;

/// Every text of a header, and how many bytes it may have.
fn texts(header: &mut Header) -> impl Iterator<Item = (&mut String, usize)> {
    let Header { version, program, policy, objective, profile, .. } = header;
    let Header { engines, details, energy, inactive, kinds, cell, engine, .. } = header;
    let lists = [engines, energy, kinds, cell, engine].into_iter().flatten();
    let names = [version, program, policy, objective].into_iter().chain(lists);
    let texts = details.iter_mut().map(|text| (text, MOST_TEXT)).chain([(profile, MOST_TEXT)]);
    let pairs = inactive.iter_mut().flat_map(|(name, why)| [(name, MOST_NAME_BYTES), (why, MOST_TEXT)]);
    names.map(|name| (name, MOST_NAME_BYTES)).chain(texts).chain(pairs)
}

/// So many bytes of a text, or a few fewer.
pub(super) fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
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
        // Each text is bounded, however many there are, in whole characters.
        let long = "\u{1b}\u{e9}".repeat(400);
        let texts = || vec![long.clone(); 2];
        let (energy, details) = (texts(), texts());
        let seen = file(&Header { program: long.clone(), energy, details, kinds: texts(), ..header.clone() });
        let seen = seen.unwrap().header;
        assert_eq!((seen.energy.len(), seen.details.len(), seen.kinds.len()), (1, 1, 2), "one engine");
        for text in [&seen.program, &seen.energy[0], &seen.kinds[1]] {
            assert!((MOST_NAME_BYTES - 4..=MOST_NAME_BYTES).contains(&text.len()), "{text}");
        }
        assert!((MOST_TEXT - 4..=MOST_TEXT).contains(&seen.details[0].len()));
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
