//! Numbers and tables for people, and the way they get to standard output and standard error.

use std::fmt::Arguments;
use std::io::Write;

use wattlock_files::Error;

pub use wattlock::telemetry::text::{bytes, rate};

use crate::handed;

/// Like `print!`, but a closed pipe or a full disk is an error of the calling function's and not a panic.
#[macro_export]
macro_rules! put {
    ($($text:tt)*) => { $crate::text::write(format_args!($($text)*))? };
}

/// Like `println!`, in the manner of [`put!`].
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => { $crate::text::write(format_args!("{}\n", format_args!($($text)*)))? };
}

/// A line of a report that goes to standard error, in the manner of [`put!`]: losing it is an error.
#[macro_export]
macro_rules! tell {
    ($($text:tt)*) => { $crate::text::write_aside(format_args!("{}\n", format_args!($($text)*)))? };
}

/// Remarks and errors, in the place of the macro of that name in std, which panics where standard error is closed. A
/// remark that is not read is lost, and the command ends as it would have.
#[macro_export]
macro_rules! eprintln {
    ($($text:tt)*) => { drop($crate::text::write_aside(format_args!("{}\n", format_args!($($text)*)))) };
}

/// Writes to standard output.
///
/// # Errors
/// [`wattlock_door::Error::ClosedPipe`] and its like.
pub fn write(text: Arguments<'_>) -> Result<(), Error> {
    if handed::closed(handed::OUTPUT) {
        return Err(Error::Door(wattlock_door::Error::ClosedPipe));
    }
    std::io::stdout().lock().write_fmt(text).map_err(Error::writing)
}

/// Writes to standard error, all at once.
///
/// # Errors
/// As [`write()`].
pub fn write_aside(text: Arguments<'_>) -> Result<(), Error> {
    std::io::stderr().lock().write_all(text.to_string().as_bytes()).map_err(Error::writing)
}

/// A duration in nanoseconds with a fitting unit.
pub fn nanos(ns: f64) -> String {
    match ns {
        n if n >= 1e9 => format!("{:.2} s", n / 1e9),
        n if n >= 1e6 => format!("{:.2} ms", n / 1e6),
        n if n >= 1e3 => format!("{:.2} us", n / 1e3),
        n => format!("{n:.0} ns"),
    }
}

/// Operations a second.
pub fn per_second(ns: f64) -> String {
    match 1e9 / ns {
        r if r >= 1e6 => format!("{:.2} M/s", r / 1e6),
        r if r >= 1e3 => format!("{:.1} k/s", r / 1e3),
        r => format!("{r:.1} /s"),
    }
}

/// A comparison in words, the same in every bench, report and page: `ratio` is absent where it is less than its
/// spread, `low` and `high` are its interval.
pub fn verdict(ratio: Option<f64>, low: f64, high: f64) -> String {
    match ratio {
        None => format!("no difference ({low:.2} to {high:.2})"),
        Some(ratio) if low == high => format!("{ratio:.2} times"),
        Some(ratio) if low > 1.0 => format!("at least {low:.2} times (median {ratio:.2})"),
        Some(ratio) => format!("at most {high:.2} times (median {ratio:.2})"),
    }
}

/// A value as it is typed on the command line.
pub fn typed(value: &impl clap::ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// A table with a header, columns as wide as their widest cell, words left-aligned and figures right.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([header[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    // Figures stand right, so that their units line up; words stand left.
    let is_words = |cell: &String| cell.starts_with(char::is_alphabetic) || cell.contains(", ");
    let words: Vec<bool> = (0..header.len())
        .map(|at| at == 0 || rows.iter().filter_map(|row| row.get(at)).any(is_words))
        .collect();
    let line = |cells: &[String]| {
        let mut out = String::new();
        for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            let pad = " ".repeat(width - cell.chars().count());
            let gap = if column == 0 { "" } else { "  " };
            out += &if words[column] { format!("{gap}{cell}{pad}") } else { format!("{gap}{pad}{cell}") };
        }
        out.trim_end().to_owned() + "\n"
    };
    let head: Vec<String> = header.iter().map(|cell| (*cell).to_owned()).collect();
    rows.iter().fold(line(&head), |out, row| out + &line(row))
}

/// Parses the size of one request: at least a byte, at most 1 GiB.
pub fn parse_request_bytes(text: &str) -> Result<usize, String> {
    match parse_bytes(text)? {
        bytes @ 1..=0x4000_0000 => Ok(bytes),
        _ => Err(format!("{text}: a request has between 1 byte and 1 GiB")),
    }
}

/// Parses a pause in seconds: a tenth to an hour.
pub fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.ok_or_else(|| format!("{text}: not a number of seconds between 0.1 and 3600"))
}

/// Parses `64`, `16K`, `2M`, `1G`, `1T` (binary prefixes; an ending `iB` or `B` is allowed).
pub fn parse_bytes(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[digits.len()..].to_ascii_lowercase();
    let shift = match unit.trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(format!("{text}: not a size (try 64, 16K, 2M, 1G)")),
    };
    let count: usize = digits.parse().map_err(|_| format!("{text}: not a size (try 64, 16K, 2M, 1G)"))?;
    count
        .checked_shl(shift)
        .filter(|bytes| bytes >> shift == count)
        .ok_or_else(|| format!("{text}: too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        assert_eq!(parse_bytes("16K"), Ok(16_384));
        assert_eq!(parse_bytes("2MiB"), Ok(2 << 20));
        assert_eq!(parse_bytes("64"), Ok(64));
        assert!(
            parse_bytes("64x").is_err()
                && parse_bytes("").is_err()
                && parse_bytes("99999999999999G").is_err()
        );
        assert_eq!(
            (bytes(16_384), bytes(100), bytes(2_621_440)),
            ("16 KiB".into(), "100 B".into(), "2.5 MiB".into())
        );
    }

    #[test]
    fn absurd_sizes_and_pauses_are_refused() {
        assert_eq!(parse_request_bytes("1G"), Ok(1 << 30));
        assert!(parse_request_bytes("0").is_err() && parse_request_bytes("2G").is_err());
        assert_eq!(parse_seconds("0.5"), Ok(0.5));
        for absurd in ["nan", "inf", "-1", "0", "1e9", ""] {
            assert!(parse_seconds(absurd).is_err(), "{absurd}");
        }
    }

    #[test]
    fn columns_line_up() {
        let out = table(&["a", "bb"], &[vec!["long".into(), "1".into()]]);
        assert_eq!(out, "a     bb\nlong   1\n");
        let out = table(&["a", "why", "n"], &[vec!["x".into(), "so".into(), "10".into()]]);
        assert_eq!(out, "a  why   n\nx  so   10\n", "words stand left, figures right");
    }
}
