//! Studies for people and for programs, on standard output.

use anyhow::Result;
use serde::Serialize;
use wattlock_lab::{Parameter, Role, Row, Study, Summary, distance, percent, summary};

use wattlock_shell::text;

/// A row as one object, with what follows from it.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    row: &'a Row,
    deviation: Option<f64>,
    naive_deviation: Option<f64>,
    gain: Option<f64>,
}

/// One object a line, for the rows of those roles.
pub fn json(study: &Study, roles: &[Role]) -> Result<()> {
    for row in study.of_roles(roles) {
        let (deviation, naive_deviation) = (row.deviation(), row.naive_deviation());
        let line = Line { row, deviation, naive_deviation, gain: row.gain() };
        say!("{}", serde_json::to_string(&line)?);
    }
    Ok(())
}

/// A table of the rows of those roles, the summary of all predicted ones, the parameters and the remarks.
pub fn study(title: &str, study: &Study, roles: &[Role]) -> Result<()> {
    say!("{title} (simulated)\n");
    put!(
        "{}",
        text::table(&HEADER, &study.of_roles(roles).map(|row| cells(row).to_vec()).collect::<Vec<_>>())
    );
    say!("");
    put!("{}", text::table(&Summary::COLUMNS, &lines(&study.rows)));
    say!("");
    parameters(&study.parameters, false)?;
    for remark in &study.remarks {
        say!("\n{}", wrapped(remark));
    }
    say!("");
    Ok(())
}

/// The summary's lines: predicted rows only.
pub fn lines(rows: &[Row]) -> Vec<Vec<String>> {
    summary(rows).iter().map(|line| line.cells().to_vec()).collect()
}

/// Columns of a study.
pub const HEADER: [&str; 12] = [
    "row",
    "experiment",
    "quantity",
    "unit",
    "role",
    "published",
    "simulated",
    "deviation",
    "naive",
    "its deviation",
    "adaptive, simulated",
    "gain",
];

/// A row's cells under [`HEADER`].
pub fn cells(row: &Row) -> [String; 12] {
    [
        row.row.clone(),
        row.experiment.to_owned(),
        row.quantity.to_owned(),
        row.unit.to_owned(),
        text::typed(&row.role),
        published(row),
        figure(row.simulated),
        distance(row.deviation(), row.unit),
        row.naive.map_or_else(|| "-".into(), figure),
        distance(row.naive_deviation(), row.unit),
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
        let origin = parameter.origin.name();
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
    fn long_lines_are_broken_between_words() {
        let text = wrapped(&"word ".repeat(60));
        assert!(text.lines().all(|line| line.chars().count() <= 100) && text.lines().count() > 2);
        assert_eq!(text.split_whitespace().count(), 60);
    }
}
