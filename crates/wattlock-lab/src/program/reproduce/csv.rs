//! The kept file of a reproduction: CSV, one line for each quantity of a measured point, on disk before the next point
//! begins. A run that is killed at any moment leaves a file that opens, and `--resume` goes on in it.
//!
//! It knows no paper and measures nothing. Invariants: all lines of a point are written by one call and say how many they
//! are (`lines`); no cell holds a line feed; what cannot be written whole is taken back; a line that is not exactly as it
//! would be written is not taken.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use wattlock_door::one_line;

/// The form of the file.
pub const SCHEMA: u32 = 2;

/// One cell of a line.
trait Cell: Sized {
    fn put(&self) -> String;
    fn get(text: &str) -> Option<Self>;
}

impl Cell for String {
    fn put(&self) -> String {
        self.replace(char::is_control, " ")
    }

    fn get(text: &str) -> Option<String> {
        Some(text.to_owned())
    }
}

impl Cell for u32 {
    fn put(&self) -> String {
        self.to_string()
    }

    fn get(text: &str) -> Option<u32> {
        text.parse().ok()
    }
}

impl Cell for Option<f64> {
    fn put(&self) -> String {
        self.map_or_else(String::new, |value| value.to_string())
    }

    fn get(text: &str) -> Option<Option<f64>> {
        match text {
            "" => Some(None),
            text => text.parse().ok().filter(|value: &f64| value.is_finite()).map(Some),
        }
    }
}

macro_rules! columns {
    ($($(#[$about:meta])* $name:ident: $kind:ty,)*) => {
        /// One quantity of one point, as measured, or why it was not.
        #[derive(Debug, Clone, Default, PartialEq, Serialize)]
        pub struct Line { $($(#[$about])* pub $name: $kind,)* }

        impl Line {
            /// The first line of the file.
            pub const COLUMNS: &'static [&'static str] = &[$(stringify!($name)),*];

            fn cells(&self) -> Vec<String> {
                vec![$(self.$name.put()),*]
            }

            fn read(cells: &[String]) -> Option<Line> {
                let mut cells = cells.iter();
                let line = Line { $($name: Cell::get(cells.next()?)?,)* };
                cells.next().is_none().then_some(line)
            }
        }
    };
}

columns! {
    /// [`SCHEMA`].
    schema: u32,
    /// What the program was built from.
    commit: String,
    /// Processor and cores.
    machine: String,
    /// Which grid: papers, figure, its extent, the emulated device.
    grid: String,
    /// `eeca`.
    paper: String,
    /// `table1`.
    figure: String,
    /// The bench's door.
    door: String,
    /// What was asked of it, `bytes=16384 processes=2`.
    point: String,
    /// The method.
    method: String,
    /// `rate`, `latency_us`.
    quantity: String,
    /// Its unit.
    unit: String,
    /// Published beside it.
    published: Option<f64>,
    /// Simulated beside it, by `wattlock lab`.
    simulated: Option<f64>,
    /// Measured.
    value: Option<f64>,
    /// The lowest of the rounds.
    low: Option<f64>,
    /// The highest of the rounds.
    high: Option<f64>,
    /// How many there were.
    rounds: Option<f64>,
    /// What the point may have used: `none`, `emulated dh8970`.
    device: String,
    /// The share of the machine's processor time that other processes used.
    busy: Option<f64>,
    /// Joules for each of `per`: the median of the rounds.
    joules: Option<f64>,
    /// The lowest round.
    joules_low: Option<f64>,
    /// The highest.
    joules_high: Option<f64>,
    /// `byte` or `operation`.
    per: String,
    /// `measured` or `modelled`.
    word: String,
    /// From where.
    domain: String,
    /// Every key with the value that was used.
    given: String,
    /// Which engine did what.
    engines: String,
    /// Why the point cannot run here.
    cannot: String,
    /// Why it failed.
    failed: String,
    /// How many lines the point has.
    lines: u32,
}

/// What tells one run's lines from another's: a file goes on only if they are the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// As in [`Line`].
    pub commit: String,
    /// As in [`Line`].
    pub machine: String,
    /// As in [`Line`].
    pub grid: String,
}

impl Identity {
    /// How many hardware threads the machine had, as [`Identity::machine`] ends.
    pub fn threads(&self) -> Option<usize> {
        let threads = self.machine.rsplit(", ").next()?.strip_suffix(" hardware threads")?;
        threads.parse().ok().filter(|threads| (1..=4096).contains(threads))
    }

    /// What differs from a line's, in words.
    fn differs(&self, line: &Line) -> Option<String> {
        if line.schema != SCHEMA {
            return Some(format!("its form is {}, this program's is {SCHEMA}", line.schema));
        }
        let pairs = [
            ("commit", &line.commit, &self.commit),
            ("machine", &line.machine, &self.machine),
            ("grid", &line.grid, &self.grid),
        ];
        let (what, there, here) = pairs.into_iter().find(|(_, there, here)| there != here)?;
        Some(format!("it is of another {what}: \"{there}\", not \"{here}\""))
    }
}

impl Line {
    /// Which point it belongs to.
    pub fn key(&self) -> [&str; 5] {
        [&self.paper, &self.figure, &self.door, &self.point, &self.method]
    }
}

/// A line of a file, its line feed included.
fn text(cells: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let quoted = |cell: &str| match cell.contains(['"', ',']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    };
    cells.into_iter().map(|cell| quoted(cell.as_ref())).collect::<Vec<_>>().join(",") + "\n"
}

/// The cells of a line; `None` if its quotes do not close.
fn cells(line: &str) -> Option<Vec<String>> {
    let mut cells = vec![String::new()];
    let (mut quoted, mut characters) = (false, line.chars().peekable());
    while let Some(character) = characters.next() {
        let last = cells.last_mut()?;
        match character {
            '"' if quoted && characters.peek() == Some(&'"') => {
                characters.next();
                last.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(String::new()),
            other => last.push(other),
        }
    }
    (!quoted).then_some(cells)
}

/// The file of a run under way.
#[derive(Debug)]
pub struct Kept {
    file: File,
    path: PathBuf,
    /// How much of it is whole points, with the first line.
    whole: u64,
    cut: Option<usize>,
}

impl Kept {
    /// Begins a file, or goes on in one that is there: then with its lines. It stays as it is until a point is added.
    ///
    /// # Errors
    /// It is there and was not to be gone on in; it is not a reproduction's, or another grid's, commit's or machine's;
    /// another run writes it; it cannot be written; a line before the last is damaged.
    pub fn open(path: &Path, resume: bool, identity: &Identity) -> Result<(Kept, Vec<Line>)> {
        let shown = || one_line(path);
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        match resume {
            true => options.create(true).truncate(false),
            false => options.create_new(true),
        };
        let mut file = match options.open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let text = format!("{} exists: --resume goes on in it, --csv names another", shown());
                return Err(wattlock_door::Error::Usage(text).into());
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(wattlock_door::Error::NotFound(path.to_owned()).into());
            }
            other => other.with_context(shown)?,
        };
        ensure!(file.metadata()?.is_file(), wattlock_door::Error::NotRegular(path.to_owned()));
        ensure!(file.try_lock().is_ok(), "{}: another run writes it", shown());
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).with_context(shown)?;
        let Before { lines, whole, cut } = read(&bytes, identity)
            .map_err(|why| wattlock_door::Error::Usage(format!("{}: {why}", shown())))?;
        let mut kept = Kept { file, path: path.to_owned(), whole: whole as u64, cut };
        if bytes.is_empty() {
            kept.write(&text(Line::COLUMNS))?;
        }
        Ok((kept, lines))
    }

    /// The number of the line at which something begins that a kill or a power loss cut, and that is not taken.
    pub fn cut(&self) -> Option<usize> {
        self.cut
    }

    /// Adds the lines of a point, and returns when they are on disk. What was cut goes.
    ///
    /// # Errors
    /// They are not; then none of them is in the file.
    pub fn add(&mut self, lines: &[Line]) -> Result<()> {
        self.take_back().with_context(|| one_line(&self.path))?;
        let first = if self.whole == 0 { text(Line::COLUMNS) } else { String::new() };
        self.write(&lines.iter().fold(first, |all, line| all + &text(line.cells())))
    }

    fn write(&mut self, text: &str) -> Result<()> {
        let written = self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            let _ = self.take_back();
            return Err(wattlock_door::Error::writing(error)).with_context(|| one_line(&self.path));
        }
        self.whole += text.len() as u64;
        Ok(())
    }

    /// Leaves whole points only.
    fn take_back(&mut self) -> std::io::Result<()> {
        self.file.set_len(self.whole)?;
        self.file.seek(SeekFrom::Start(self.whole)).map(drop)
    }
}

/// A run's lines and whose they are, of whatever commit and machine; the file is only read.
///
/// # Errors
/// It is not there, or not a whole reproduction's of one run.
pub fn kept(path: &Path) -> Result<(Identity, Vec<Line>)> {
    let shown = || one_line(path);
    let content = match std::fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(wattlock_door::Error::NotFound(path.to_owned()).into());
        }
        other => other.with_context(shown)?,
    };
    let first = content.split_inclusive(|byte| *byte == b'\n').nth(1).and_then(line_of);
    let refused = |why: &str| wattlock_door::Error::Usage(format!("{}: {why}", shown()));
    let Some(Line { commit, machine, grid, .. }) = first else {
        return Err(refused("not the CSV of a reproduction, or nothing is in it").into());
    };
    let identity = Identity { commit, machine, grid };
    let Before { lines, cut, .. } = read(&content, &identity).map_err(|why| refused(&why))?;
    ensure!(cut.is_none(), refused("its end was cut; --resume goes on in it"));
    Ok((identity, lines))
}

/// What a file is: whole points, and perhaps an end that a kill or a power loss cut.
#[derive(Debug, Default)]
struct Before {
    lines: Vec<Line>,
    /// The bytes of those and of the first line.
    whole: usize,
    /// The number of the line at which what was cut begins.
    cut: Option<usize>,
}

/// A line as this program writes it, its line feed included, and nothing that only looks like one.
fn line_of(row: &[u8]) -> Option<Line> {
    let row = std::str::from_utf8(row).ok()?;
    let line = Line::read(&cells(row.strip_suffix('\n')?)?)?;
    (line.lines > 0 && text(line.cells()) == row).then_some(line)
}

/// Reads a file. A damaged line is refused, except the last one: a power loss leaves half a line there, or zeros.
fn read(content: &[u8], identity: &Identity) -> Result<Before, String> {
    let header = text(Line::COLUMNS);
    let Some(rest) = content.strip_prefix(header.as_bytes()) else {
        return match header.as_bytes().starts_with(content) {
            true => Ok(Before { cut: (!content.is_empty()).then_some(1), ..Before::default() }),
            false => Err("not the CSV of a reproduction".to_owned()),
        };
    };
    let mut before = Before { whole: header.len(), ..Before::default() };
    let (mut point, mut begins): (Vec<Line>, usize) = (Vec::new(), 2);
    let mut known = BTreeSet::new();
    let mut at = before.whole;
    let rows: Vec<&[u8]> = rest.split_inclusive(|byte| *byte == b'\n').collect();
    for (row, number) in rows.iter().zip(2..) {
        at += row.len();
        let damaged = || format!("line {number} is damaged");
        let line = match line_of(row) {
            Some(line) => line,
            None if number == rows.len() + 1 => break,
            None => return Err(damaged()),
        };
        if let Some(what) = identity.differs(&line) {
            return Err(format!("{what}; --csv names another file"));
        }
        if point.first().is_some_and(|first| first.key() != line.key() || first.lines != line.lines) {
            return Err(damaged());
        }
        point.push(line);
        if point.len() == point[0].lines as usize {
            if !known.insert(point[0].key().map(str::to_owned)) {
                return Err(format!("line {begins} begins a point that is there already"));
            }
            (before.whole, begins) = (at, number + 1);
            before.lines.append(&mut point);
        }
    }
    before.cut = (before.whole < content.len()).then_some(begins);
    Ok(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        let word = |text: &str| text.to_owned();
        Identity { commit: word("abc"), machine: word("a \"fast\" one, 2 cores"), grid: word("eeca default") }
    }

    fn line(point: &str, quantity: &str, lines: u32) -> Line {
        let Identity { commit, machine, grid } = identity();
        Line {
            schema: SCHEMA,
            commit,
            machine,
            grid,
            paper: "eeca".into(),
            figure: "table1".into(),
            door: "cipher".into(),
            point: point.into(),
            method: "adaptive".into(),
            quantity: quantity.into(),
            unit: "kB/s".into(),
            published: Some(0.1 + 0.2),
            value: Some(1e-9),
            given: "bytes=1, \"two\"\nlines".into(),
            lines,
            ..Line::default()
        }
    }

    /// As a file has it: one line.
    fn kept(line: &Line) -> Line {
        Line { given: line.given.replace('\n', " "), ..line.clone() }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept.csv");
        let (mut file, before) = Kept::open(&path, false, &identity()).unwrap();
        assert!(before.is_empty());
        let points = [
            vec![line("bytes=1", "throughput", 2), line("bytes=1", "per_joule", 2)],
            vec![line("bytes=2", "throughput", 1)],
        ];
        points.iter().for_each(|point| file.add(point).unwrap());
        assert!(Kept::open(&path, true, &identity()).unwrap_err().to_string().contains("another run"));
        drop(file);
        let (_, lines) = Kept::open(&path, true, &identity()).unwrap();
        assert_eq!(lines, points.iter().flatten().map(kept).collect::<Vec<_>>());
        let again = Kept::open(&path, false, &identity()).unwrap_err().to_string();
        assert!(again.contains("--resume"), "{again}");
    }

    #[test]
    fn a_kept_file_says_whose_it_is_and_is_only_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept.csv");
        let refused = |content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            super::kept(&path).unwrap_err().to_string()
        };
        assert!(refused(b"").contains("nothing is in it") && refused(b"a,b\nc,d\n").contains("not the CSV"));
        let one = text(Line::COLUMNS) + &text(line("bytes=1", "throughput", 1).cells());
        assert!(refused((one.clone() + "half").as_bytes()).contains("was cut"));
        std::fs::write(&path, &one).unwrap();
        let (whose, lines) = super::kept(&path).unwrap();
        assert_eq!((whose, lines.len()), (identity(), 1));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), one);
        let threads = |machine: &str| Identity { machine: machine.into(), ..identity() }.threads();
        assert_eq!(threads("x, microcode 0x1, 2 hardware threads"), Some(2));
        assert_eq!((threads("x, 99999999999 hardware threads"), threads("2")), (None, None));
    }

    /// Cut at any byte, the file opens with the points that are whole in it, and what is added stands after them.
    #[test]
    fn a_torn_end_is_taken_away() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept.csv");
        let points = [
            vec![line("bytes=1", "throughput", 2), line("bytes=1", "per_joule", 2)],
            vec![line("bytes=2", "throughput", 1)],
        ];
        let (mut file, _) = Kept::open(&path, false, &identity()).unwrap();
        points.iter().for_each(|point| file.add(point).unwrap());
        drop(file);
        let whole = std::fs::read(&path).unwrap();
        let ends: Vec<usize> =
            whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1).collect();
        for cut in 0..=whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let (mut file, lines) = Kept::open(&path, true, &identity()).unwrap();
            let expected = if cut >= ends[3] {
                3
            } else if cut >= ends[2] {
                2
            } else {
                0
            };
            assert_eq!(lines.len(), expected, "cut at {cut}");
            if expected < 2 {
                file.add(&points[0]).unwrap();
            }
            if expected < 3 {
                file.add(&points[1]).unwrap();
            }
            drop(file);
            assert_eq!(std::fs::read(&path).unwrap(), whole, "cut at {cut}");
        }
    }

    #[test]
    fn another_file_grid_commit_or_machine_is_refused_and_left_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept.csv");
        let refused = |content: &str, by: &Identity| {
            std::fs::write(&path, content).unwrap();
            let said = Kept::open(&path, true, by).unwrap_err().to_string();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
            said
        };
        let header = text(Line::COLUMNS);
        let good = header.clone() + &text(line("bytes=1", "throughput", 1).cells());
        let other = |change: fn(&mut Identity)| {
            let mut other = identity();
            change(&mut other);
            other
        };
        assert!(refused("name,age\nJohn,3\n", &identity()).contains("not the CSV of a reproduction"));
        assert!(refused(&good, &other(|one| one.commit = "abd".into())).contains("another commit"));
        assert!(refused(&good, &other(|one| one.machine = "slow".into())).contains("another machine"));
        assert!(refused(&good, &other(|one| one.grid = "eeca full".into())).contains("another grid"));
        let form = good.replacen("\n2,", "\n3,", 1);
        assert!(refused(&form, &identity()).contains("its form is 3"));
        for damage in ["\"", ",", "nan"] {
            let damaged = good.replacen("kB/s,", &format!("kB/s,{damage}"), 1) + &good[header.len()..];
            assert!(refused(&damaged, &identity()).contains("line 2 is damaged"), "{damage}");
        }
        let mixed = header
            + &text(line("bytes=1", "throughput", 2).cells())
            + &text(line("bytes=2", "throughput", 2).cells());
        assert!(refused(&mixed, &identity()).contains("line 3 is damaged"));
    }

    fn sample() -> (Vec<Line>, Vec<u8>) {
        let lines: Vec<Line> = [("bytes=1", 2), ("bytes=2", 1), ("bytes=3", 3), ("bytes=4", 1)]
            .into_iter()
            .flat_map(|(point, count)| {
                (0..count).map(move |number| kept(&line(point, &format!("q{number}"), count)))
            })
            .collect();
        let content = lines.iter().fold(text(Line::COLUMNS), |all, line| all + &text(line.cells()));
        (lines, content.into_bytes())
    }

    /// What is taken of a file is whole points from its beginning, byte for byte as they stand there.
    fn taken(content: &[u8]) -> Result<Before, String> {
        let before = read(content, &identity())?;
        let again = before.lines.iter().fold(text(Line::COLUMNS), |all, line| all + &text(line.cells()));
        assert!(before.whole == 0 && before.lines.is_empty() || content[..before.whole] == *again.as_bytes());
        assert_eq!(before.cut.is_some(), before.whole < content.len());
        let mut rest = &before.lines[..];
        while let Some(first) = rest.first() {
            let (point, next) = rest.split_at(first.lines as usize);
            assert!(point.iter().all(|line| line.key() == first.key()), "a part of a point");
            rest = next;
        }
        Ok(before)
    }

    #[test]
    fn a_file_cut_anywhere_is_gone_on_in_with_its_whole_points() {
        let (lines, whole) = sample();
        for cut in 0..=whole.len() {
            for tail in [&b""[..], &[0; 600], b"\xff\xfe", b"\n"] {
                let before = taken(&[&whole[..cut], tail].concat());
                // Half a first line and something else is any file.
                let Ok(before) = before else {
                    assert!(cut < text(Line::COLUMNS).len() && !tail.is_empty(), "cut at {cut}");
                    continue;
                };
                assert!(lines.starts_with(&before.lines), "cut at {cut}");
                let left = whole[..cut].iter().filter(|byte| **byte == b'\n').count().saturating_sub(1);
                assert!(before.lines.len() + 3 > left, "cut at {cut}: {} of {left}", before.lines.len());
            }
        }
    }

    /// A figure that changed into another one looks like one; whatever does not is refused, or was the last.
    #[test]
    fn a_file_with_any_byte_changed_is_refused_or_gone_on_in_before_it() {
        let (lines, whole) = sample();
        let mut refused = 0;
        for at in 0..whole.len() {
            let number = whole[..at].iter().filter(|byte| **byte == b'\n').count();
            for byte in [whole[at] ^ 1, whole[at] ^ 0x80, 0, b'\n', b'"', b',', b'x'] {
                if byte == whole[at] {
                    continue;
                }
                let mut changed = whole.clone();
                changed[at] = byte;
                let Ok(before) = taken(&changed) else {
                    refused += 1;
                    continue;
                };
                let untouched = number.saturating_sub(1).min(before.lines.len());
                assert_eq!(before.lines[..untouched], lines[..untouched], "{byte:#x} at {at}");
                let odd = !byte.is_ascii() || byte == 0 || byte == b'\n';
                assert!(!odd || before.lines.len() < number.max(1), "{byte:#x} at {at} is kept");
                assert!(before.lines.len() + 3 > untouched, "{byte:#x} at {at}");
            }
        }
        assert!(refused > whole.len(), "{refused}");
    }

    #[test]
    fn a_damaged_line_is_named_and_the_file_stays_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept.csv");
        let (lines, whole) = sample();
        let ends: Vec<usize> =
            whole.iter().zip(1..).filter(|(byte, _)| **byte == b'\n').map(|(_, at)| at).collect();
        for byte in [0, 0xff] {
            let mut changed = whole.clone();
            changed[ends[2] + 20] = byte;
            std::fs::write(&path, &changed).unwrap();
            let said = Kept::open(&path, true, &identity()).unwrap_err().to_string();
            assert!(said.contains("line 4 is damaged"), "{said}");
            assert_eq!(std::fs::read(&path).unwrap(), changed);
            let mut changed = whole.clone();
            changed[ends[6] + 20] = byte;
            std::fs::write(&path, &changed).unwrap();
            let (mut file, before) = Kept::open(&path, true, &identity()).unwrap();
            assert_eq!((before.len(), file.cut()), (6, Some(8)));
            assert_eq!(std::fs::read(&path).unwrap(), changed, "until a point is added");
            file.add(&lines[6..]).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), whole);
        }
        let twice = [&whole[..], &whole[ends[6]..]].concat();
        assert!(read(&twice, &identity()).unwrap_err().contains("there already"));
    }
}
