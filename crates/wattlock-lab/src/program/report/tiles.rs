//! The three figures that the page begins with. Each follows from one bench's rows; where those are missing, so is the
//! tile.

use serde_json::Value as Json;
use wattlock::telemetry::text::grouped;
use wattlock::telemetry::text::html;
use wattlock_shell::text;

use super::gain::{Gain, note};
use super::{handshakes, served};

/// A figure, what it is of, and what stands behind it.
#[derive(Debug, PartialEq)]
struct Tile {
    figure: String,
    of: String,
    beside: String,
    /// Its class: a gain, a loss, or even.
    look: &'static str,
}

/// All tiles that the rows of the benches of files and of servers have figures for.
pub fn tiles(files: &[&Json], served: &[&Json]) -> String {
    let tiles = [handshakes_tile(served), sealing(files), visitor(served)];
    let tile = |tile: Tile| {
        format!(
            "<section class=\"{}\"><b>{}</b><span>{}</span><small>{}</small></section>",
            tile.look,
            html(&tile.figure),
            html(&tile.of),
            html(&tile.beside)
        )
    };
    let tiles: String = tiles.into_iter().flatten().map(tile).collect();
    if tiles.is_empty() { String::new() } else { format!("<div class=\"tiles\">{tiles}</div>") }
}

fn positive(json: &Json, key: &str) -> Option<f64> {
    json[key].as_f64().filter(|figure| *figure > 0.0)
}

fn both(row: &Json) -> Option<(f64, f64)> {
    positive(row, "ours").zip(positive(row, "theirs"))
}

/// `2.2×`.
fn times(gain: &Gain) -> (String, &'static str) {
    match gain.ratio {
        None => ("no difference".to_owned(), "even"),
        Some(ratio) => {
            let digits = if ratio < 10.0 { 1 } else { 0 };
            // What one digit would make a 1 has two.
            let digits = if (0.95..1.05).contains(&ratio) { 2 } else { digits };
            (format!("{ratio:.digits$}\u{d7}"), if ratio > 1.0 { "gain" } else { "loss" })
        }
    }
}

/// What stands behind a figure, with the notes of its rows.
fn noted(mut text: String, rows: &[&Json]) -> String {
    for note in rows.iter().filter_map(|row| note(row)) {
        text += &format!("; {note}");
    }
    text
}

fn handshakes_tile(rows: &[&Json]) -> Option<Tile> {
    let row = handshakes(rows)?;
    let (gain, (ours, theirs)) = (Gain::of(row)?, both(row)?);
    let (figure, look) = times(&gain);
    Some(Tile {
        figure,
        of: format!("full {} for each second of nginx's processor time", served(row)),
        beside: noted(
            format!(
                "{} with Wattlock, {} without: {}",
                grouped(ours.round() as u64),
                grouped(theirs.round() as u64),
                gain.words_of(row)
            ),
            &[row],
        ),
        look,
    })
}

fn sealing(rows: &[&Json]) -> Option<Tile> {
    let row = rows.iter().find(|row| row["row"] == "seal")?;
    let (gain, (ours, theirs), bytes) = (Gain::of(row)?, both(row)?, positive(&row["params"], "bytes")?);
    let (figure, look) = times(&gain);
    Some(Tile {
        figure,
        of: "age's speed in sealing a file".to_owned(),
        beside: noted(
            format!(
                "{}, age {}: {}",
                text::rate(bytes / ours),
                text::rate(bytes / theirs),
                gain.words_of(row)
            ),
            &[*row],
        ),
        look,
    })
}

/// What a new visitor of the site takes: a full handshake and a file. The interval is that of the two rows at their worst
/// and at their best together, which is wider than either alone would make it.
fn visitor(rows: &[&Json]) -> Option<Tile> {
    let parts = [handshakes(rows)?, rows.iter().find(|row| row["row"] == "tls13-responses")?];
    let (mut stock, mut ours, mut least, mut most) = (0.0, 0.0, 0.0, 0.0);
    for row in parts {
        let (gain, (rate, base)) = (Gain::of(row)?, both(row)?);
        stock += 1.0 / base;
        ours += 1.0 / rate;
        least += 1.0 / (base * gain.high);
        most += 1.0 / (base * gain.low);
    }
    let percent = |time: f64| format!("{:+.0} %", 100.0 * (time / stock - 1.0)).replace('-', "\u{2212}");
    let (figure, look) = match (most < stock, least > stock) {
        (true, _) => (percent(ours), "gain"),
        (_, true) => (percent(ours), "loss"),
        _ => ("no difference".to_owned(), "even"),
    };
    Some(Tile {
        figure,
        of: "processor time of nginx for a new visitor of the site".to_owned(),
        beside: noted(
            format!(
                "a full handshake and a file: {:.0} us with Wattlock, {:.0} us without; {} to {}",
                1e6 * ours,
                1e6 * stock,
                percent(least),
                percent(most)
            ),
            &parts,
        ),
        look,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(name: &str, ours: f64, theirs: f64, ratio: f64, spread: (f64, f64)) -> Json {
        json!({"row": name, "ours": ours, "theirs": theirs, "ratio": ratio, "low": spread.0, "high": spread.1,
            "params": {"bytes": 1 << 20}})
    }

    #[test]
    fn a_changed_record_changes_its_tile_and_a_missing_one_has_none() {
        let handshakes = row("tls13-handshakes", 2200.0, 1000.0, 2.2, (1.9, 2.4));
        let responses = row("tls13-responses", 10_000.0, 10_000.0, 1.0, (0.9, 1.1));
        let seal = row("seal", 0.5, 1.35, 2.7, (2.3, 5.2));
        let told = tiles(&[&seal], &[&handshakes, &responses]);
        assert_eq!(told.matches("<section").count(), 3);
        for wanted in [
            "<b>2.2\u{d7}</b>",
            "2,200 with Wattlock, 1,000 without: at least 1.90 times (median 2.20)",
            "<b>2.7\u{d7}</b>",
            "2.1 MB/s, age 776.7 kB/s: at least 2.30 times (median 2.70)",
            // 1000 and 100 us become 455 and 100.
            "<b>\u{2212}50 %</b>",
            "555 us with Wattlock, 1100 us without",
        ] {
            assert!(told.contains(wanted), "{wanted}: {told}");
        }
        let mut bound = row("tls13-handshakes", 2200.0, 1000.0, 2.2, (1.9, 2.4));
        bound["note"] = "an <upper> bound".into();
        let told = tiles(&[], &[&bound, &responses]);
        assert_eq!(told.matches("; an &lt;upper&gt; bound").count(), 2, "{told}");
        assert!(!told.contains("at least"), "{told}");
        let other = row("tls13-handshakes", 3100.0, 1000.0, 3.1, (3.0, 3.2));
        let told = tiles(&[&seal], &[&other, &responses]);
        assert!(told.contains("<b>3.1\u{d7}</b>") && told.contains("<b>\u{2212}62 %</b>"), "{told}");
        assert_eq!(tiles(&[], &[&handshakes]).matches("<section").count(), 1);
        assert_eq!(tiles(&[], &[]), "");
    }

    #[test]
    fn an_interval_with_1_in_it_is_no_difference_on_a_tile_too() {
        let even = row("tls13-handshakes", 2200.0, 1000.0, 2.2, (0.9, 2.4));
        let responses = row("tls13-responses", 10_000.0, 10_000.0, 1.0, (0.9, 1.1));
        let told = tiles(&[], &[&even, &responses]);
        assert_eq!(told.matches("<b>no difference</b>").count(), 2, "{told}");
        assert!(told.contains("no difference (0.90 to 2.40)"), "{told}");
        let worse = row("tls13-handshakes", 800.0, 1000.0, 0.8, (0.7, 0.85));
        let told = tiles(&[], &[&worse, &responses]);
        assert!(told.contains("class=\"loss\"><b>0.8\u{d7}") && told.contains("<b>+23 %</b>"), "{told}");
    }
}
