//! The lab's page: one HTML file with nothing to fetch. Published figures stand beside simulated ones, and each plot
//! says that it is simulated.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use wattlock::telemetry::text::html;
use wattlock_lab::papers::velocity;
use wattlock_lab::sim::stream::Sample;
use wattlock_lab::{Role, Row, Study, Summary};

use super::Name;
use super::plot::{Across, Bars, Look, Series, bars, chart};
use super::print::{HEADER, cells, figure, lines, moved};

/// The style sheet, which the page has as one line.
const STYLE: &str = include_str!("page.css");

/// The whole page, with the rows of those roles.
pub fn page(studies: &[(Name, Study)], streams: &[velocity::Series], roles: &[Role]) -> String {
    let sections: String = studies
        .iter()
        .map(|(name, study)| {
            let pictures = if *name == Name::Velocity { pictures(streams) } else { String::new() };
            section(*name, study, roles, &pictures)
        })
        .collect();
    let body = format!(
        "<h1>Published systems on modelled machines</h1><p>Every figure here is <b>simulated</b> in virtual time, but \
         for the published ones beside them. The policies are those of production.</p>\
         <p class=\"key\"><b class=\"kp\">&#9675; published</b><b class=\"ks\">&#9679; the published rule, simulated</b>\
         <b class=\"ka\">&#9632; adaptive, simulated</b></p>{sections}\
         <footer>Made by <code>wattlock lab</code>, version {}. Models, formulas and what the data do not determine: \
         docs/research/lab.md.</footer>",
        env!("CARGO_PKG_VERSION")
    );
    document("Wattlock lab, simulated", &body)
}

/// The style sheet as one line.
pub fn style() -> String {
    STYLE.lines().collect()
}

/// A page of the lab's.
pub fn document(title: &str, body: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>{}</title><style>{}</style></head><body>{body}</body></html>\n",
        html(title),
        style()
    )
}

fn section(name: Name, study: &Study, roles: &[Role], pictures: &str) -> String {
    let rows: Vec<&Row> = study.of_roles(roles).collect();
    let mut out = format!("<h2>{}</h2><div class=\"all\">", html(name.title()));
    for group in groups(&rows) {
        out += &figures_of(&group);
    }
    out += pictures;
    out += "</div><h3>Predicted rows: how far the model and the naive predictor are from what was published, and what \
            adaptive makes of it; simulated</h3>";
    out += &table(&Summary::COLUMNS, &lines(&study.rows));
    out += "<details><summary>All figures, simulated</summary>";
    out += &table(&HEADER, &rows.iter().map(|row| cells(row).to_vec()).collect::<Vec<_>>());
    out += "</details><details><summary>Parameters</summary><ul>";
    for parameter in &study.parameters {
        let origin = parameter.origin.name();
        let text = format!(
            "{} = {} {} ({origin}): {}.{}",
            parameter.name,
            figure(parameter.value),
            parameter.unit,
            parameter.source,
            moved(parameter)
        );
        let _ = write!(out, "<li>{}</li>", html(&text));
    }
    out += "</ul></details><details><summary>Contradictions and what the data do not determine</summary><ul>";
    study.remarks.iter().for_each(|remark| out += &format!("<li>{}</li>", html(remark)));
    out + "</ul></details>"
}

/// A table.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let cells = |tag: &str, row: &[String]| -> String {
        row.iter().map(|cell| format!("<{tag}>{}</{tag}>", html(cell))).collect()
    };
    let head: Vec<String> = header.iter().map(|head| (*head).to_owned()).collect();
    let body: String = rows.iter().map(|row| format!("<tr>{}</tr>", cells("td", row))).collect();
    format!("<table><tr>{}</tr>{body}</table>", cells("th", &head))
}

/// Streams over time: velocity, and what either rule made of it.
fn pictures(streams: &[velocity::Series]) -> String {
    let of = |pattern, policy: &str| {
        let found = streams.iter().find(|one| one.pattern == pattern && one.policy == policy);
        found.map_or(&[][..], |one| &one.samples)
    };
    let mut out = String::new();
    for pattern in velocity::Pattern::ALL {
        let (rule, ours) = (of(pattern, "lecpaes"), of(pattern, "adaptive"));
        let over = |samples: &[Sample], value: fn(&Sample) -> f64| -> Vec<(f64, f64)> {
            samples.iter().map(|sample| (sample.at_s, value(sample))).collect()
        };
        let mut plot = |what: &str, unit: &str, value: fn(&Sample) -> f64, both: bool| {
            let mut lines =
                vec![Series { name: "lecpaes".into(), look: Look::Simulated, points: over(rule, value) }];
            if both {
                lines.push(Series {
                    name: "adaptive".into(),
                    look: Look::Adaptive,
                    points: over(ours, value),
                });
            }
            let title = format!("{}: {what}", pattern.name());
            out += &chart(&title, "simulated", Across::Numbers("seconds"), unit, &lines);
        };
        plot("velocity of the stream", "MB/s", |sample| sample.velocity, false);
        plot("highest fill of the window", "share", |sample| sample.fill, true);
        plot("clock step", "step", |sample| sample.clock, true);
        plot("power", "W", |sample| sample.watts, true);
    }
    out
}

/// Rows that belong into one figure: the same experiment and quantity, in the order of the study.
fn groups<'a>(rows: &[&'a Row]) -> Vec<Vec<&'a Row>> {
    let mut groups: Vec<Vec<&Row>> = Vec::new();
    for row in rows.iter().copied() {
        let mine = |group: &&mut Vec<&Row>| {
            group.first().is_some_and(|one| (one.experiment, one.quantity) == (row.experiment, row.quantity))
        };
        match groups.iter_mut().find(mine) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups
}

/// The figures of rows of one quantity: plots over the number that varies most, one for each combination of the rest;
/// bars for rows that belong to none.
fn figures_of(group: &[&Row]) -> String {
    let Some(first) = group.first() else { return String::new() };
    let title = format!("{}: {}", first.experiment, first.quantity);
    let (plots, rest) = plots(group);
    let mut out = String::new();
    for Plot { key, others, points } in plots {
        let title = if others.is_empty() { title.clone() } else { format!("{title}, {others}") };
        let series = |name: &str, look, of: &dyn Fn(&Row) -> Option<f64>| {
            let mut line: Vec<(f64, f64)> =
                points.iter().filter_map(|(x, row)| Some((*x, of(row)?))).collect();
            line.sort_by(|a, b| a.0.total_cmp(&b.0));
            Series { name: name.to_owned(), look, points: line }
        };
        let all = [
            series("simulated", Look::Simulated, &|row| Some(row.simulated)),
            series("adaptive, simulated", Look::Adaptive, &|row| row.adaptive),
            series("published", Look::Published, &|row| row.published),
        ];
        out += &chart(&title, "simulated", Across::Numbers(&key.replace('_', " ")), first.unit, &all);
    }
    if rest.is_empty() {
        return out;
    }
    let rows: Vec<Bars> = rest
        .iter()
        .map(|row| Bars {
            name: row.row.clone(),
            published: row.published.map(|value| (value, value)).or(row.published_interval),
            simulated: row.simulated,
            adaptive: row.adaptive,
        })
        .collect();
    out + &bars(&title, first.unit, &rows)
}

/// Rows that differ in one number only.
struct Plot<'a> {
    key: String,
    /// What they share, as it stands in the rows.
    others: String,
    points: Vec<(f64, &'a Row)>,
}

/// Splits rows into plots of three or more points, and the rest.
fn plots<'a>(group: &[&'a Row]) -> (Vec<Plot<'a>>, Vec<&'a Row>) {
    let Some(key) = abscissa(group) else { return (Vec::new(), group.to_vec()) };
    let mut plots: Vec<Plot<'a>> = Vec::new();
    let mut rest = Vec::new();
    for row in group {
        let Some((x, others)) = coordinate(row, &key) else {
            rest.push(*row);
            continue;
        };
        match plots.iter_mut().find(|plot| plot.others == others) {
            Some(plot) => plot.points.push((x, row)),
            None => plots.push(Plot { key: key.clone(), others, points: vec![(x, row)] }),
        }
    }
    let (plots, few): (Vec<_>, Vec<_>) = plots.into_iter().partition(|plot| plot.points.len() >= 3);
    rest.extend(few.into_iter().flat_map(|plot| plot.points).map(|point| point.1));
    (plots, rest)
}

/// A row's value of that key, and the row without it.
fn coordinate(row: &Row, key: &str) -> Option<(f64, String)> {
    let own = |word: &&str| word.split_once('=').is_some_and(|pair| pair.0 == key);
    let value = row.row.split_whitespace().find(own)?.split_once('=')?.1.parse().ok()?;
    let others: Vec<&str> = row.row.split_whitespace().filter(|word| !own(word)).collect();
    Some((value, others.join(" ")))
}

/// The key with the most different numbers, at least three.
fn abscissa(group: &[&Row]) -> Option<String> {
    let mut values: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (key, value) in
        group.iter().flat_map(|row| row.row.split_whitespace()).filter_map(|word| word.split_once('='))
    {
        if value.parse::<f64>().is_ok() {
            values.entry(key).or_default().insert(value);
        }
    }
    let most = values.into_iter().max_by_key(|(_, values)| values.len())?;
    (most.1.len() >= 3).then(|| most.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattlock_lab::Better;

    fn row(name: &str) -> Row {
        Row {
            paper: "eeca",
            experiment: "cipher",
            row: name.into(),
            quantity: "throughput",
            unit: "kB/s",
            role: Role::Predicted,
            published: Some(1.0),
            published_interval: None,
            simulated: 2.0,
            naive: None,
            adaptive: Some(3.0),
            better: Better::More,
            own: true,
        }
    }

    #[test]
    fn rows_that_differ_in_one_number_are_plotted_over_it() {
        let rows = ["kib=1 of=a", "kib=2 of=a", "kib=4 of=a", "kib=1 of=b", "kib=2 of=b", "best"].map(row);
        let rows: Vec<&Row> = rows.iter().collect();
        let (plots, rest) = plots(&rows);
        assert_eq!(plots.len(), 1);
        assert_eq!((plots[0].key.as_str(), plots[0].others.as_str()), ("kib", "of=a"));
        assert_eq!(plots[0].points.iter().map(|point| point.0).collect::<Vec<_>>(), [1.0, 2.0, 4.0]);
        let rest: Vec<&str> = rest.iter().map(|row| row.row.as_str()).collect();
        assert_eq!(rest, ["best", "kib=1 of=b", "kib=2 of=b"]);
    }

    #[test]
    fn rows_without_numbers_are_bars_and_every_figure_says_simulated() {
        let rows = ["suite=a", "suite=b"].map(row);
        let rows: Vec<&Row> = rows.iter().collect();
        assert!(plots(&rows).0.is_empty());
        let drawn = figures_of(&rows);
        assert_eq!(drawn.matches("<svg").count(), 1);
        assert!(drawn.contains("cipher: throughput, simulated"));
    }
}
