//! Numbers and tables for people.

/// Bytes with a binary prefix: `64 B`, `16 KiB`, `2.5 MiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 || unit == 0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// A rate in bytes a second with a decimal prefix: `8.46 GB/s`.
pub fn rate(bytes_per_second: f64) -> String {
    match bytes_per_second {
        r if r >= 1e9 => format!("{:.2} GB/s", r / 1e9),
        r if r >= 1e6 => format!("{:.1} MB/s", r / 1e6),
        r => format!("{:.1} kB/s", r / 1e3),
    }
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

/// A table with a header, columns as wide as their widest cell, the first left-aligned and the others right.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([header[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: &[String]| {
        let mut out = String::new();
        for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            let pad = " ".repeat(width - cell.chars().count());
            out += &if column == 0 { format!("{cell}{pad}") } else { format!("  {pad}{cell}") };
        }
        out.trim_end().to_owned() + "\n"
    };
    let head: Vec<String> = header.iter().map(|cell| (*cell).to_owned()).collect();
    rows.iter().fold(line(&head), |out, row| out + &line(row))
}

/// Parses `64`, `16K`, `2M`, `1G` (binary prefixes; an ending `iB` or `B` is allowed).
pub fn parse_bytes(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[digits.len()..].to_ascii_lowercase();
    let shift = match unit.trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
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
    fn columns_line_up() {
        let out = table(&["a", "bb"], &[vec!["long".into(), "1".into()]]);
        assert_eq!(out, "a     bb\nlong   1\n");
    }
}
