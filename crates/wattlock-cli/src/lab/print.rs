//! Studies for people and for programs, on standard output.

use anyhow::Result;
use serde::Serialize;
use wattlock_lab::{Parameter, Row, Study};

use crate::text;

/// A row as one object, with what follows from it.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    row: &'a Row,
    deviation: Option<f64>,
    gain: Option<f64>,
}

/// One object a line.
pub fn json(study: &Study) -> Result<()> {
    for row in &study.rows {
        let line = Line { row, deviation: row.deviation(), gain: row.gain() };
        say!("{}", serde_json::to_string(&line)?);
    }
    Ok(())
}

/// A table, the parameters and the remarks.
pub fn study(title: &str, study: &Study) -> Result<()> {
    say!("{title} (simulated)\n");
    put!("{}", text::table(&HEADER, &study.rows.iter().map(|row| cells(row).to_vec()).collect::<Vec<_>>()));
    say!("");
    put!("{}", text::table(&SUMMARY, &summary(&study.rows)));
    say!("");
    parameters(&study.parameters, false)?;
    for remark in &study.remarks {
        say!("\n{}", wrapped(remark));
    }
    say!("");
    Ok(())
}

/// Columns of a study's summary.
pub const SUMMARY: [&str; 7] = [
    "experiment",
    "quantity",
    "published",
    "median deviation",
    "worst",
    "adaptive's least gain",
    "mean gain",
];

/// For each experiment and quantity: how many rows have a published figure, how far the simulation is from it, and
/// what `adaptive` makes of it.
pub fn summary(rows: &[Row]) -> Vec<Vec<String>> {
    let mut keys: Vec<(&str, &str)> = Vec::new();
    for row in rows.iter().map(|row| (row.experiment, row.quantity)) {
        if !keys.contains(&row) {
            keys.push(row);
        }
    }
    let line = |(experiment, quantity): (&str, &str)| {
        let mine = || rows.iter().filter(|row| (row.experiment, row.quantity) == (experiment, quantity));
        let mut off: Vec<f64> = mine().filter_map(apart).collect();
        let unit = mine().next().map_or("", |row| row.unit);
        off.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
        let gains: Vec<f64> = mine().filter_map(Row::gain).collect();
        let mean = (!gains.is_empty()).then(|| gains.iter().sum::<f64>() / gains.len() as f64);
        vec![
            experiment.to_owned(),
            quantity.to_owned(),
            off.len().to_string(),
            distance(median(&off), unit).trim_start_matches('+').to_owned(),
            distance(off.last().copied(), unit),
            percent(gains.iter().copied().min_by(f64::total_cmp)),
            percent(mean),
        ]
    };
    keys.into_iter().map(line).collect()
}

/// The middle one of values ascending in size, or the mean size of the two in the middle.
fn median(off: &[f64]) -> Option<f64> {
    let upper = off.get(off.len() / 2)?.abs();
    let lower = off.get((off.len() - 1) / 2)?.abs();
    Some((upper + lower) / 2.0)
}

/// Columns of a study.
pub const HEADER: [&str; 9] = [
    "row",
    "experiment",
    "quantity",
    "unit",
    "published",
    "simulated",
    "deviation",
    "adaptive, simulated",
    "gain",
];

/// A row's cells under [`HEADER`].
pub fn cells(row: &Row) -> [String; 9] {
    [
        row.row.clone(),
        row.experiment.to_owned(),
        row.quantity.to_owned(),
        row.unit.to_owned(),
        published(row),
        figure(row.simulated),
        distance(apart(row), row.unit),
        row.adaptive.map_or_else(|| "-".into(), figure),
        percent(row.gain()),
    ]
}

fn published(row: &Row) -> String {
    match (row.published, row.published_interval) {
        (Some(value), _) => figure(value),
        (None, Some((low, high))) if high.is_infinite() => format!("> {}", figure(low)),
        (None, Some((low, high))) => format!("{} to {}", figure(low), figure(high)),
        (None, None) => "-".into(),
    }
}

/// How far the simulation is from what was published, or from the nearer end of an interval: a share, or points
/// where the quantity is a percentage itself.
fn apart(row: &Row) -> Option<f64> {
    let published = match (row.published, row.published_interval) {
        (Some(value), _) => value,
        (None, Some((low, high))) => row.simulated.clamp(low, high),
        (None, None) => return None,
    };
    if row.unit == "%" {
        return Some(row.simulated - published);
    }
    (published != 0.0).then(|| row.simulated / published - 1.0)
}

/// What [`apart`] gave, in words.
fn distance(apart: Option<f64>, unit: &str) -> String {
    match apart {
        Some(points) if unit == "%" => format!("{points:+.1} points"),
        share => percent(share),
    }
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".into(), |share| format!("{:+.1} %", share * 100.0))
}

/// Four significant digits, or all before the point.
pub fn figure(value: f64) -> String {
    let digits = match value.abs() {
        x if x >= 1000.0 || x == 0.0 => 0,
        x => (3 - x.log10().floor() as i32).clamp(0, 8) as usize,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A model's free parameters.
pub fn parameters(parameters: &[Parameter], json: bool) -> Result<()> {
    for parameter in parameters {
        if json {
            say!("{}", serde_json::to_string(parameter)?);
            continue;
        }
        let Parameter { name, value, unit, source, .. } = parameter;
        let origin = if parameter.determined { "fitted" } else { "not determined" };
        say!(
            "{}",
            wrapped(&format!("{name} = {} {unit} ({origin}): {source}.{}", figure(*value), moved(parameter)))
        );
    }
    Ok(())
}

/// What varying a parameter does, as a sentence.
pub fn moved(parameter: &Parameter) -> String {
    let Some((low, high, share)) = parameter.sensitivity else { return String::new() };
    format!(
        " Between {} and {} the prediction moves by up to {} %.",
        figure(low),
        figure(high),
        figure(share * 100.0)
    )
}

/// Lines of at most 100 columns, later ones indented.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        if !lines[last].is_empty() && lines[last].chars().count() + word.chars().count() >= 100 {
            lines.push(format!("  {word}"));
        } else if lines[last].is_empty() {
            lines[last] += word;
        } else {
            lines[last] += " ";
            lines[last] += word;
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_four_digits() {
        for (value, text) in [
            (43_934.086, "43934"),
            (9.98512, "9.985"),
            (0.00233, "0.00233"),
            (2.0, "2"),
            (0.0, "0"),
            (-1.5, "-1.5"),
        ] {
            assert_eq!(figure(value), text);
        }
    }

    #[test]
    fn a_summary_has_the_median_and_the_worst_of_what_was_published() {
        let row = |simulated, published, adaptive| Row {
            paper: "eeca",
            experiment: "cipher",
            row: String::new(),
            quantity: "ppw",
            unit: "",
            published,
            published_interval: None,
            simulated,
            adaptive: Some(adaptive),
            better: wattlock_lab::Better::More,
            own: true,
        };
        let rows = [
            row(110.0, Some(100.0), 110.0),
            row(98.0, Some(100.0), 98.0),
            row(101.0, Some(100.0), 111.1),
            row(104.0, Some(100.0), 52.0),
            row(7.0, None, 7.0),
        ];
        let lines = summary(&rows);
        assert_eq!(lines, [["cipher", "ppw", "4", "3.0 %", "+10.0 %", "-50.0 %", "-8.0 %"]]);
    }

    #[test]
    fn percentages_differ_by_points() {
        assert_eq!(distance(Some(4.58), "%"), "+4.6 points");
        assert_eq!(distance(Some(-0.05), "x"), "-5.0 %");
        assert_eq!(distance(None, "%"), "-");
    }

    #[test]
    fn long_lines_are_broken_between_words() {
        let text = wrapped(&"word ".repeat(60));
        assert!(text.lines().all(|line| line.chars().count() <= 100) && text.lines().count() > 2);
        assert_eq!(text.split_whitespace().count(), 60);
    }
}
