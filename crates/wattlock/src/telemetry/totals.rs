//! What a user's ended programs did: sums by program, engine, kind and counter, in one small file beside the others.
//!
//! The file is never changed, only replaced: whoever reads it needs no lock, and finds the sums of one moment. It names
//! the files whose counts it took in last, so that a process which is killed before it has removed them does no harm:
//! the next one removes them, and counts them no more.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `wltotal1` |
//! | 8 | how often it was replaced |
//! | 3 times 4 | numbers of names, of sums, of files taken in last |
//! | 1 and the length of each | names, the first of them for all that there is no room for |
//! | 16 each | sums, ascending: the numbers of four names (program, engine, kind, counter), 2 bytes each, and the sum |
//! | 1 and the length of each | files taken in last |
//!
//! Numbers are little-endian. How many names and sums there are is bounded: beyond, programs share one name.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::io::{Read, Write};

use rustix::io::Errno;

use super::Snapshot;
use super::folder::{Folder, Lock};
use super::read::{cut, passes, shown};
use crate::sys::counters::may_have;

const NAME: &CStr = c"totals";
const NEXT: &CStr = c"totals.next";
const MAGIC: &[u8; 8] = b"wltotal1";

/// What programs, engines and kinds are called that there is no room for.
pub const OTHER: &str = "(other)";

/// Most sums, and those that only [`OTHER`] programs may take.
const MOST_SUMS: usize = 16_384;
const KEPT_FOR_OTHER: usize = 1024;
/// Most names, and those that no program's name may take.
const MOST_NAMES: usize = 1024;
const KEPT_FOR_COUNTERS: usize = 384;
/// Most bytes of a name; all lengths fit into a byte.
pub(super) const MOST_NAME_BYTES: usize = 96;
/// Most files that are taken in at once.
pub(super) const MOST_FILES: usize = 64;
/// Most bytes of the file.
const MOST_BYTES: usize = 28 + (MOST_NAMES + MOST_FILES) * (1 + MOST_NAME_BYTES) + MOST_SUMS * 16;

/// Program, engine, kind and counter, as numbers of names.
type Key = [u16; 4];

/// What the programs of one user did that have ended.
#[derive(Debug, Clone)]
pub struct Totals {
    /// How often the file was replaced.
    generation: u64,
    names: Vec<String>,
    numbers: HashMap<String, u16>,
    sums: Vec<(Key, u64)>,
    taken_in: Vec<CString>,
}

impl Default for Totals {
    fn default() -> Totals {
        let names = vec![OTHER.to_owned()];
        let numbers = names.iter().cloned().zip([0]).collect();
        Totals { generation: 0, names, numbers, sums: Vec::new(), taken_in: Vec::new() }
    }
}

/// One sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sum<'a> {
    /// Program.
    pub program: &'a str,
    /// Engine; empty for what is counted of a program.
    pub engine: &'a str,
    /// Kind; the reason of a `fallback`; empty for what else is counted of an engine.
    pub kind: &'a str,
    /// What was counted: as in a telemetry file; `energy_nj WORD` with what joules are worth, `batch_count` for the requests
    /// that `batch_sum` is over, `ended` for the program's runtimes that have ended.
    pub counter: &'a str,
    /// How much.
    pub value: u64,
}

/// What became of a look for the file.
pub(super) enum Found {
    /// There is none.
    None,
    /// This.
    Totals(Totals),
    /// Something that this version does not read, and leaves alone.
    Foreign,
    /// It cannot be read now.
    NotNow,
}

impl Totals {
    /// All sums.
    pub fn sums(&self) -> impl Iterator<Item = Sum<'_>> {
        let name = |number: u16| self.names.get(usize::from(number)).map_or(OTHER, String::as_str);
        self.sums.iter().map(move |([program, engine, kind, counter], value)| Sum {
            program: name(*program),
            engine: name(*engine),
            kind: name(*kind),
            counter: name(*counter),
            value: *value,
        })
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// The files that were taken in last.
    pub(super) fn taken_in(&self) -> &[CString] {
        &self.taken_in
    }

    /// Adds to a sum, or to one that stands for many where there is no room for it.
    pub(super) fn add(&mut self, sum: &Sum<'_>) {
        if sum.value == 0 {
            return;
        }
        let key = [
            self.number(sum.program, MOST_NAMES - KEPT_FOR_COUNTERS),
            self.number(sum.engine, MOST_NAMES),
            self.number(sum.kind, MOST_NAMES),
            self.number(sum.counter, MOST_NAMES),
        ];
        let stands_for = [(key, MOST_SUMS - KEPT_FOR_OTHER), ([0, key[1], key[2], key[3]], MOST_SUMS)];
        for (key, most) in stands_for {
            match self.sums.binary_search_by_key(&key, |(key, _)| *key) {
                Ok(at) => {
                    self.sums[at].1 = self.sums[at].1.saturating_add(sum.value);
                    return;
                }
                Err(at) if self.sums.len() < most => {
                    self.sums.insert(at, (key, sum.value));
                    return;
                }
                Err(_) => {}
            }
        }
    }

    /// A name's number; that of [`OTHER`] if there are `most` already.
    fn number(&mut self, name: &str, most: usize) -> u16 {
        let name = shortened(name);
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        if self.names.len() >= most {
            return 0;
        }
        let number = self.names.len() as u16;
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }

    /// The file's content.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64 + self.names.len() * 24 + self.sums.len() * 16);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        for count in [self.names.len(), self.sums.len(), self.taken_in.len()] {
            bytes.extend_from_slice(&(count as u32).to_le_bytes());
        }
        let text = |bytes: &mut Vec<u8>, text: &[u8]| {
            bytes.push(text.len() as u8);
            bytes.extend_from_slice(text);
        };
        self.names.iter().for_each(|name| text(&mut bytes, name.as_bytes()));
        for (key, value) in &self.sums {
            key.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        self.taken_in.iter().for_each(|name| text(&mut bytes, name.to_bytes()));
        bytes
    }

    /// From a file's content, which may be anybody's.
    fn parse(bytes: &[u8]) -> Option<Totals> {
        let mut rest = bytes.strip_prefix(MAGIC)?;
        let generation = u64::from_le_bytes(take(&mut rest)?);
        let mut count = |most: usize| {
            let count = u32::from_le_bytes(take(&mut rest)?) as usize;
            (count <= most).then_some(count)
        };
        let (names, sums, files) = (count(MOST_NAMES)?, count(MOST_SUMS)?, count(MOST_FILES)?);
        let mut totals = Totals { generation, ..Totals::default() };
        for at in 0..names {
            let name = shown(std::str::from_utf8(text(&mut rest)?).ok()?).into_owned();
            if at > 0 {
                totals.numbers.insert(name.clone(), at as u16);
                totals.names.push(name);
            }
        }
        let mut before = None;
        for _ in 0..sums {
            let key: Key = [number(&mut rest)?, number(&mut rest)?, number(&mut rest)?, number(&mut rest)?];
            let value = u64::from_le_bytes(take(&mut rest)?);
            if before >= Some(key) || key.iter().any(|number| usize::from(*number) >= names.max(1)) {
                return None;
            }
            before = Some(key);
            totals.sums.push((key, value));
        }
        for _ in 0..files {
            totals.taken_in.push(CString::new(text(&mut rest)?).ok()?);
        }
        rest.is_empty().then_some(totals)
    }

    /// Those of a folder.
    pub(super) fn read(folder: &Folder) -> Found {
        let file = match folder.open_to_read(NAME) {
            Ok(Some((file, stat))) if stat.st_size <= MOST_BYTES as i64 => std::fs::File::from(file),
            Err(Errno::NOENT) => return Found::None,
            Err(error) if passes(error) => return Found::NotNow,
            _ => return Found::Foreign,
        };
        let mut bytes = Vec::new();
        if file.take(MOST_BYTES as u64 + 1).read_to_end(&mut bytes).is_err() {
            return Found::Foreign;
        }
        Totals::parse(&bytes).map_or(Found::Foreign, Found::Totals)
    }

    /// How often a folder's were replaced.
    pub(super) fn generation_in(folder: &Folder) -> u64 {
        let Ok(Some((file, _))) = folder.open_to_read(NAME) else { return 0 };
        let mut first = [0; 16];
        match std::fs::File::from(file).read_exact(&mut first) {
            Ok(()) => u64::from_le_bytes(std::array::from_fn(|at| first[8 + at])),
            Err(_) => 0,
        }
    }

    /// Replaces those of a folder; from then on these files are taken in. `false` if it was not possible, and nothing has
    /// changed.
    pub(super) fn replace(&mut self, folder: &Folder, _: &Lock, taken_in: Vec<CString>) -> bool {
        self.generation += 1;
        self.taken_in = taken_in;
        let bytes = self.to_bytes();
        if !may_have(bytes.len() as u64) {
            return false;
        }
        let write = || -> std::io::Result<()> {
            let mut file = std::fs::File::from(folder.create_over(NEXT)?);
            file.write_all(&bytes)?;
            super::fold::step()?;
            Ok(folder.replace(NEXT, NAME)?)
        };
        write().is_ok()
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(*first)
}

fn number(rest: &mut &[u8]) -> Option<u16> {
    take(rest).map(u16::from_le_bytes)
}

/// A text behind its length.
fn text<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let [length] = take(rest)?;
    let (text, behind) = rest.split_at_checked(usize::from(length).min(MOST_NAME_BYTES + 1))?;
    *rest = behind;
    (text.len() <= MOST_NAME_BYTES).then_some(text)
}

/// A name as totals have it: not longer than a line.
pub fn shortened(name: &str) -> &str {
    cut(name, MOST_NAME_BYTES)
}

/// What a process's counts add to the sums of its user's programs. A gauge adds nothing.
pub fn sums_of(snapshot: &Snapshot) -> Vec<Sum<'_>> {
    let header = &snapshot.header;
    let program = shortened(&header.program);
    let mut sums = Vec::new();
    for cell in &snapshot.cells {
        let (engine, kind) = (shortened(&cell.engine), shortened(&cell.kind));
        let counts = [
            ("requests", cell.requests),
            ("bytes", cell.bytes),
            ("errors", cell.errors),
            ("refused", cell.refused),
            ("timed", cell.timed),
            ("timed_ns", cell.timed_ns),
            ("held_ns", cell.held_ns),
            ("batch_sum", cell.batch_sum),
            ("batch_count", cell.queued()),
            (worth_of(snapshot, &cell.engine), cell.energy_nj),
            ("submit_ns", cell.submit_ns),
        ];
        sums.extend(counts.map(|(counter, value)| Sum { program, engine, kind, counter, value }));
    }
    for counts in &snapshot.engines {
        let engine = shortened(&counts.engine);
        let of = |counter, value| Sum { program, engine, kind: "", counter, value };
        sums.extend([
            of("quarantines", counts.quarantines),
            of("verified", counts.verified),
            of("tests", counts.tests),
            of("returned", counts.returned),
            of("chained", counts.chained),
        ]);
        sums.extend(counts.fallbacks.iter().map(|(reason, value)| Sum {
            program,
            engine,
            kind: shortened(reason),
            counter: "fallback",
            value: *value,
        }));
    }
    sums.retain(|sum| sum.value > 0);
    sums
}

/// The counter of an engine's joules, by what they are worth. An older process does not say: then it is nothing better
/// than a model's.
fn worth_of(snapshot: &Snapshot, engine: &str) -> &'static str {
    let at = snapshot.header.engines.iter().position(|one| one == engine);
    let worth = at.and_then(|at| snapshot.header.energy.get(at)).map_or("", String::as_str);
    match worth.split(':').next() {
        Some("measured") => "energy_nj measured",
        Some("derived") => "energy_nj derived",
        _ => "energy_nj modelled",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum<'a>(program: &'a str, counter: &'a str, value: u64) -> Sum<'a> {
        Sum { program, engine: "lanes", kind: "sha-256", counter, value }
    }

    #[test]
    fn what_is_written_is_read_and_sums_do_not_wrap() {
        let mut totals = Totals::default();
        for (program, value) in [("b", 1), ("a", u64::MAX), ("b", 2), ("a", 7), ("c", 0)] {
            totals.add(&sum(program, "requests", value));
        }
        totals.taken_in = vec![c"folding-1-2-3".to_owned()];
        totals.generation = 9;
        let again = Totals::parse(&totals.to_bytes()).unwrap();
        let mut sums: Vec<_> = again.sums().collect();
        sums.sort();
        assert_eq!(sums, [sum("a", "requests", u64::MAX), sum("b", "requests", 3)]);
        assert_eq!((again.generation(), again.taken_in()), (9, &totals.taken_in[..]));
        let mut more = again;
        more.add(&sum("b", "requests", 4));
        assert!(more.sums().any(|one| one == sum("b", "requests", 7)));
    }

    #[test]
    fn any_number_of_programs_takes_no_more_room_and_no_count_is_lost() {
        let mut totals = Totals::default();
        let long = "x".repeat(5000);
        for number in 0..20_000_u64 {
            let program = format!("{number}{long}");
            for counter in ["requests", "bytes", "timed"] {
                totals.add(&sum(&program, counter, 1));
            }
        }
        let bytes = totals.to_bytes();
        assert!(bytes.len() <= MOST_BYTES, "{}", bytes.len());
        let again = Totals::parse(&bytes).unwrap();
        let requests = again.sums().filter(|sum| sum.counter == "requests");
        assert_eq!(requests.map(|sum| sum.value).sum::<u64>(), 20_000);
        assert!(again.sums().any(|sum| sum.program == OTHER && sum.engine == "lanes" && sum.value > 10_000));
        // Programs left room for the names of counters.
        assert!(again.sums().any(|sum| sum.counter == "timed"));
        // As many sums as there is room for.
        let kinds: Vec<String> = (0..300).map(|number| format!("kind-{number}")).collect();
        for kind in &kinds {
            for number in 0..100 {
                let program = format!("{number}{long}");
                totals.add(&Sum { kind, ..sum(&program, "requests", 1) });
            }
        }
        assert!(totals.to_bytes().len() <= MOST_BYTES);
        let all: u64 = totals.sums().filter(|sum| sum.counter == "requests").map(|sum| sum.value).sum();
        assert_eq!(all, 50_000);
    }

    /// Bytes changed, cut and added at random (a fixed sequence): it is read or refused, and what is read is sound.
    #[test]
    fn a_mangled_file_is_read_or_refused() {
        let mut totals = Totals::default();
        for program in ["a", "b\u{1b}[2J", "c"] {
            totals.add(&sum(program, "requests", 5));
        }
        totals.taken_in = vec![c"folding-1-2-3".to_owned()];
        let whole = totals.to_bytes();
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        let mut read = 0;
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            for _ in 0..=random(2) {
                let at = random(bytes.len());
                match random(4) {
                    0 => bytes[at] = random(256) as u8,
                    1 => bytes.truncate(at.max(1)),
                    2 => bytes.insert(at, random(256) as u8),
                    _ => bytes[at] ^= 1 << random(8),
                }
            }
            let Some(again) = Totals::parse(&bytes) else { continue };
            read += 1;
            assert!(again.sums().all(|sum| !sum.program.contains('\u{1b}')));
        }
        assert!((100..19_900).contains(&read), "{read} of 20000 are still files");
    }
}
