//! `top --once`: a table without a terminal, or one JSON object.

use anyhow::Result;
use serde::Serialize;
use wattlock_watch::{Rates, verdict};

use super::app::{App, Seen};
use super::mounts;
use super::plain::{padded, width};
use super::table::COLUMNS;

/// The object of `--json`. `schema` is raised when a field changes its meaning or goes.
#[derive(Debug, Serialize)]
struct Object<'a> {
    schema: u32,
    /// Between the two looks.
    seconds: f64,
    /// Users of whom not all programs are there.
    users_left_out: u64,
    programs: &'a [Rates],
    mounts: &'a [mounts::Rates],
}

/// Prints the object.
pub fn json(seen: &Seen, seconds: f64) -> Result<()> {
    let Seen { users_left_out, programs, mounts, .. } = seen;
    let object = Object { schema: 1, seconds, users_left_out: *users_left_out, programs, mounts };
    say!("{}", serde_json::to_string_pretty(&object)?);
    Ok(())
}

/// Prints the table, each column as wide as its widest cell.
pub fn table(seen: Seen) -> Result<()> {
    let (mut app, left_out) = (App::new(), verdict::left_out(seen.users_left_out));
    app.take(seen);
    let head: Vec<String> = COLUMNS.iter().map(|column| column.title.to_owned()).collect();
    let cells = app.rows().into_iter().map(|row| row.cells().into_iter().map(|cell| cell.0).collect());
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(cells).collect();
    if rows.len() == 1 {
        say!("No running program uses Wattlock (or none whose counters you may read).");
    }
    let widths: Vec<usize> =
        (0..COLUMNS.len()).map(|at| rows.iter().map(|row| width(&row[at])).max().unwrap_or(0)).collect();
    for row in rows.iter().filter(|_| rows.len() > 1) {
        let cells = row.iter().zip(&widths).enumerate();
        let cells: Vec<String> = cells.map(|(at, (cell, wide))| padded(cell, *wide, at == 0)).collect();
        say!("{}", cells.join("  ").trim_end());
    }
    if let Some(line) = left_out {
        say!("{line}");
    }
    Ok(())
}
