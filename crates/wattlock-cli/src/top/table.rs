//! The columns of programs and mounts, and what stands in them. Columns that find no room are left out, the least
//! important first.

use wattlock::telemetry::own_uid;
use wattlock_watch::{By, Figures, Power, Rates, verdict};

use super::mounts;
use super::plain::{padded, shown};

/// How a cell is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tone {
    #[default]
    Plain,
    /// Worth a look.
    Warning,
    /// Something failed.
    Failure,
    /// Nothing to tell.
    Faint,
}

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    pub title: &'static str,
    /// The least columns of the terminal that it takes.
    pub wide: u16,
    /// The least important has the highest.
    rank: u8,
}

const fn column(title: &'static str, wide: u16, rank: u8) -> Column {
    Column { title, wide, rank }
}

/// Of the table.
pub const COLUMNS: [Column; 10] = [
    column("NAME", 14, 0),
    column("OPS/S", 8, 1),
    column("BYTES/S", 11, 2),
    column("LANES", 6, 4),
    column("BATCH", 6, 5),
    column("FALLBACK/S", 10, 3),
    column("SAVED CPU", 9, 6),
    column("FAILED/S", 8, 7),
    column("POWER", 16, 8),
    column("PIDS", 10, 9),
];

/// Of the details of a program.
pub const DETAILS: [Column; 8] = [
    column("ENGINE KIND", 24, 0),
    column("OPS/S", 8, 1),
    column("BYTES/S", 11, 3),
    column("MEAN", 9, 2),
    column("HELD", 9, 6),
    column("BATCH", 6, 4),
    column("SAVED CPU", 9, 5),
    column("POWER", 16, 7),
];

/// Between two columns.
const GAP: u16 = 1;

/// A cell's text and tone.
pub type Cell = (String, Tone);

/// The columns that fit, with their width; the first has what the others leave.
pub fn fitting(columns: &[Column], wide: u16) -> Vec<(usize, usize)> {
    let mut by_rank: Vec<usize> = (0..columns.len()).collect();
    by_rank.sort_by_key(|at| columns[*at].rank);
    let (mut taken, mut fits) = (0, Vec::new());
    for at in by_rank {
        let with = taken + columns[at].wide + if at == 0 { 0 } else { GAP };
        if at > 0 && with > wide {
            break;
        }
        taken = with;
        fits.push(at);
    }
    fits.sort_unstable();
    let left = usize::from(wide.saturating_sub(taken));
    let width = |at: usize| usize::from(columns[at].wide) + if at == 0 { left } else { 0 };
    fits.into_iter().map(|at| (at, width(at).min(usize::from(wide)))).collect()
}

/// A row's text, with each cell's place: names stand left, figures right.
pub fn laid_out<'a>(
    fits: &'a [(usize, usize)],
    cells: &'a [Cell],
) -> impl Iterator<Item = (usize, String, Tone)> + 'a {
    let mut at = 0;
    fits.iter().filter_map(move |(column, wide)| {
        let place = at;
        at += wide + usize::from(GAP);
        let (text, tone) = cells.get(*column)?;
        Some((place, padded(text, *wide, *column == 0), *tone))
    })
}

/// A program or a mount.
#[derive(Debug, Clone, Copy)]
pub enum Row<'a> {
    Program(&'a Rates),
    Mount(&'a mounts::Rates),
}

/// Tells a row from the others, at each look the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowKey {
    /// The name, whose it is, and the process where each is a row.
    Program(String, u32, Option<u32>),
    Mount(String),
}

impl Row<'_> {
    /// The name, with nothing in it that drives a terminal.
    pub fn name(&self) -> String {
        match self {
            Row::Program(program) => named(program),
            Row::Mount(mount) => shown(&mount.mountpoint),
        }
    }

    /// What tells it from the others. A program's processes come and go: they are none of it.
    pub fn key(&self, by: By) -> RowKey {
        match self {
            Row::Program(one) => {
                let pid = one.pids.first().copied().filter(|_| by == By::Process);
                RowKey::Program(one.program.clone(), one.uid, pid)
            }
            Row::Mount(mount) => RowKey::Mount(mount.mountpoint.clone()),
        }
    }

    /// What a column is sorted by; the name's is none.
    pub fn figure(&self, column: usize) -> f64 {
        let known = match (self, column) {
            (Row::Program(one), 9) => one.pids.first().map(|pid| f64::from(*pid)),
            (Row::Mount(one), 9) => one.pid.map(f64::from),
            (Row::Program(one), column) => {
                one.figures.as_ref().and_then(|figures| of_figures(figures, column))
            }
            (Row::Mount(one), column) => one.figures.as_ref().and_then(|figures| match column {
                1 => Some(figures.operations_per_s),
                2 => Some(figures.read_bytes_per_s + figures.written_bytes_per_s),
                7 => Some(figures.failed_per_s),
                _ => None,
            }),
        };
        known.unwrap_or(f64::NEG_INFINITY)
    }

    /// What stands in the columns.
    pub fn cells(&self) -> Vec<Cell> {
        match self {
            Row::Program(program) => of_program(program),
            Row::Mount(mount) => of_mount(mount),
        }
    }
}

fn of_figures(one: &Figures, column: usize) -> Option<f64> {
    match column {
        1 => Some(one.operations_per_s),
        2 => Some(one.bytes_per_s),
        3 => one.lanes_share,
        4 => one.mean_batch,
        5 => Some(one.fallbacks_per_s.values().sum()),
        6 => one.saved_cpu_s_per_s,
        7 => Some(one.failed_per_s),
        8 => one.power.as_ref().map(|power| power.watts),
        _ => None,
    }
}

fn of_program(one: &Rates) -> Vec<Cell> {
    let pids = match &one.pids[..] {
        [pid] => pid.to_string(),
        [first, others @ ..] => format!("{first}+{}", others.len()),
        [] => "-".to_owned(),
    };
    let mut cells = unknown(named(one), plain(pids));
    if let Some(known) = &one.figures {
        let fallbacks: f64 = known.fallbacks_per_s.values().sum();
        cells[1] = rate(known.operations_per_s);
        cells[2] = bytes(known.bytes_per_s);
        cells[3] = known.lanes_share.map_or_else(dash, |share| plain(format!("{:.0} %", 100.0 * share)));
        cells[4] = batch(known.mean_batch);
        cells[5] = toned(rate(fallbacks), fallbacks, Tone::Warning);
        cells[6] = saved(known.saved_cpu_s_per_s);
        cells[7] = toned(rate(known.failed_per_s), known.failed_per_s, Tone::Failure);
        cells[8] = power(known.power.as_ref());
    }
    cells
}

fn of_mount(one: &mounts::Rates) -> Vec<Cell> {
    let mut cells = unknown(shown(&one.mountpoint), one.pid.map_or_else(dash, |pid| plain(pid.to_string())));
    if let Some(known) = &one.figures {
        cells[1] = rate(known.operations_per_s);
        cells[2] = bytes(known.read_bytes_per_s + known.written_bytes_per_s);
        cells[7] = toned(rate(known.failed_per_s), known.failed_per_s, Tone::Failure);
    }
    cells
}

/// A program's name, behind whose it is if it is another user's.
fn named(program: &Rates) -> String {
    shown(&verdict::named(&program.program, program.uid, own_uid()))
}

/// A row of which nothing is known but who it is.
fn unknown(name: String, pids: Cell) -> Vec<Cell> {
    let mut cells = vec![dash(); COLUMNS.len()];
    (cells[0], cells[COLUMNS.len() - 1]) = (plain(name), pids);
    cells
}

/// The rows of a program's details.
pub fn details(program: &Figures) -> Vec<Vec<Cell>> {
    let nanos = |ns: Option<f64>| ns.map_or_else(dash, |ns| plain(wattlock_shell::text::nanos(ns)));
    let rows = program.work.iter().map(|work| {
        vec![
            plain(shown(&format!("{} {}", work.engine, work.kind))),
            rate(work.operations_per_s),
            bytes(work.bytes_per_s),
            nanos(work.mean_ns),
            nanos(work.mean_held_ns),
            batch(work.mean_batch),
            saved(work.saved_cpu_s_per_s),
            power(work.power.as_ref()),
        ]
    });
    rows.collect()
}

fn plain(text: String) -> Cell {
    (text, Tone::Plain)
}

fn dash() -> Cell {
    ("-".to_owned(), Tone::Faint)
}

fn toned(cell: Cell, count: f64, tone: Tone) -> Cell {
    if count > 0.0 { (cell.0, tone) } else { cell }
}

fn batch(batch: Option<f64>) -> Cell {
    batch.map_or_else(dash, |batch| plain(format!("{batch:.1}")))
}

/// Seconds of one processor a second, in per cent of one.
fn saved(saved: Option<f64>) -> Cell {
    saved.map_or_else(dash, |saved| plain(format!("{:.1} %", 100.0 * saved + 0.0)))
}

fn power(power: Option<&Power>) -> Cell {
    let Some(power) = power else { return dash() };
    let word = shown(power.worth.split(':').next().unwrap_or_default());
    plain(format!("{} {word}", figure(power.watts, "W")))
}

/// A count a second, in seven columns.
pub fn rate(count: f64) -> Cell {
    match count {
        0.0 => ("0".to_owned(), Tone::Faint),
        count => plain(figure(count, "")),
    }
}

/// Bytes a second, in eleven columns.
pub fn bytes(count: f64) -> Cell {
    match count {
        0.0 => ("0".to_owned(), Tone::Faint),
        count if count >= 1e12 => plain(format!("{count:.1e} B/s")),
        count => plain(wattlock_shell::text::rate(count)),
    }
}

/// A figure with a decimal prefix.
fn figure(count: f64, unit: &str) -> String {
    let space = if unit.is_empty() { "" } else { " " };
    match count.abs() {
        c if c >= 1e15 => format!("{count:.1e}{space}{unit}"),
        c if c >= 1e12 => format!("{:.1} T{unit}", count / 1e12),
        c if c >= 1e9 => format!("{:.1} G{unit}", count / 1e9),
        c if c >= 1e6 => format!("{:.1} M{unit}", count / 1e6),
        c if c >= 1e5 => format!("{:.0} k{unit}", count / 1e3),
        c if c >= 1e3 => format!("{count:.0}{space}{unit}"),
        c if c >= 1e1 => format!("{count:.1}{space}{unit}"),
        _ => format!("{count:.2}{space}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_table_keeps_what_matters_most() {
        let titles = |wide| {
            let fits = fitting(&COLUMNS, wide);
            let total: usize = fits.iter().map(|(_, wide)| wide + 1).sum::<usize>() - 1;
            assert!(total <= usize::from(wide), "{wide}: {fits:?}");
            fits.into_iter().map(|(at, _)| COLUMNS[at].title).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(titles(200).split(' ').count(), COLUMNS.len() + 1, "SAVED CPU is two words");
        assert_eq!(titles(80), "NAME OPS/S BYTES/S LANES BATCH FALLBACK/S SAVED CPU FAILED/S");
        assert_eq!(titles(40), "NAME OPS/S BYTES/S");
        assert_eq!(titles(24), "NAME OPS/S");
        assert_eq!(titles(5), "NAME");
    }

    #[test]
    fn figures_fit_their_columns_however_large() {
        for count in
            [0.0, 0.004, 1.0, 99.99, 999.9, 99_999.4, 1e5, 123_456_789.0, 9.99e11, 1e14, 1.8e19, 1.8e22]
        {
            assert!(rate(count).0.len() <= 8, "{count}: {}", rate(count).0);
            assert!(bytes(count).0.len() <= 11, "{count}: {}", bytes(count).0);
        }
        assert_eq!(saved(Some(-0.0)).0, "0.0 %");
    }
}
