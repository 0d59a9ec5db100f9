//! The lab's page: one HTML file with nothing to fetch. Published figures stand beside simulated ones, and each plot
//! says that it is simulated.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use wattlock::telemetry::page::document;
use wattlock::telemetry::text::html;
use wattlock_lab::papers::velocity;
use wattlock_lab::sim::stream::Sample;
use wattlock_lab::{Role, Row, Study, Summary};
use wattlock_shell::text;

use super::plot::{Across, Bars, Look, Series, bars, chart};
use super::print::{HEADER, cells, figure, lines, moved};
use super::{Name, named};

/// The whole page, with the rows of those roles: contents and what came out before any plot.
pub fn page(studies: &[(Name, Study)], streams: &[velocity::Series], roles: &[Role]) -> String {
    let sections: String = studies
        .iter()
        .map(|(name, study)| {
            let pictures = if *name == Name::Velocity { pictures(streams) } else { String::new() };
            section(*name, study, roles, &pictures)
        })
        .collect();
    let body = format!(
        "<h1>Published systems on modelled machines</h1><p>Every figure here is <b>simulated</b> in virtual time, except \
         the published ones beside them. The policies are those of production.</p>{}{}<h2 id=\"summary\">What came \
         out</h2>{}<p class=\"key\"><b class=\"kp\">&#9675; published</b><b class=\"ks\">&#9679; the published rule, \
         simulated</b><b class=\"ka\">&#9632; adaptive, simulated</b></p>{sections}\
         <footer>Made by <code>wattlock lab</code>, version {}. Models, formulas and what the data do not determine: \
         docs/research/lab.md.</footer>",
        "<h2 id=\"contents\">Contents</h2>",
        contents(studies, roles),
        overview(studies),
        env!("CARGO_PKG_VERSION")
    );
    document("Wattlock lab, simulated", None, &body)
}

/// A study's experiments, in the order of its rows.
fn experiments<'a>(rows: &[&'a Row]) -> Vec<&'a str> {
    let mut all = Vec::new();
    for row in rows {
        if !all.contains(&row.experiment) {
            all.push(row.experiment);
        }
    }
    all
}

fn link(id: &str, words: &str) -> String {
    format!("<a href=\"#{id}\">{}</a>", html(words))
}

fn contents(studies: &[(Name, Study)], roles: &[Role]) -> String {
    let study = |(name, study): &(Name, Study)| {
        let rows: Vec<&Row> = study.of_roles(roles).collect();
        let parts = experiments(&rows);
        let parts = parts.iter().map(|part| link(&named::anchor(&[&text::typed(name), part]), part));
        let parts = parts.collect::<Vec<_>>().join(", ");
        let dash = if parts.is_empty() { "" } else { ": " };
        format!("<li>{}{dash}{parts}</li>", link(&named::anchor(&[&text::typed(name)]), name.title()))
    };
    let studies: String = studies.iter().map(study).collect();
    format!("<ul><li>{}</li>{studies}</ul>", link("summary", "What came out"))
}

/// How near is near: a tenth of the published figure, or ten points of a percentage.
fn is_near(row: &Row, apart: f64) -> bool {
    apart.abs() <= if row.unit == "%" { 10.0 } else { 0.1 }
}

/// How often the models' predictions agree with what was published, study by study.
fn overview(studies: &[(Name, Study)]) -> String {
    const HEADER: [&str; 5] = [
        "paper",
        "predicted figures with a published one",
        "within a tenth of it",
        "a naive predictor within a tenth",
        "nearer than the naive predictor",
    ];
    let line = |(name, study): &(Name, Study)| {
        let rows: Vec<&Row> = study.rows.iter().filter(|row| row.is_prediction()).collect();
        let count = |of: &dyn Fn(&Row) -> bool| rows.iter().filter(|row| of(row)).count();
        let naive = |row: &Row| row.naive_deviation();
        vec![
            text::typed(name),
            count(&|row| row.deviation().is_some()).to_string(),
            count(&|row| row.deviation().is_some_and(|apart| is_near(row, apart))).to_string(),
            count(&|row| naive(row).is_some_and(|apart| is_near(row, apart))).to_string(),
            count(&|row| {
                let both = row.deviation().zip(naive(row));
                both.is_some_and(|(model, naive)| model.abs() < naive.abs())
            })
            .to_string(),
        ]
    };
    let compared = studies.iter().filter(|(_, study)| study.rows.iter().any(Row::is_prediction));
    let rows: Vec<Vec<String>> = compared.map(line).collect();
    format!(
        "<p>Predicted rows, simulated; of percentages ten points are a tenth.</p>{}",
        table(&HEADER, &rows)
    )
}

fn section(name: Name, study: &Study, roles: &[Role], pictures: &str) -> String {
    let rows: Vec<&Row> = study.of_roles(roles).collect();
    let paper = text::typed(&name);
    let mut out = format!("<h2 id=\"{}\">{}</h2>", named::anchor(&[&paper]), html(name.title()));
    out += "<p>Predicted rows: how far the model and the naive predictor are from what was published, and what adaptive \
            makes of it; simulated.</p>";
    out += &table(&Summary::COLUMNS, &lines(&study.rows));
    for experiment in experiments(&rows) {
        let mine: Vec<&Row> = rows.iter().filter(|row| row.experiment == experiment).copied().collect();
        let figures: Vec<Figures> = groups(&mine).iter().map(|group| figures_of(group)).collect();
        let id = named::anchor(&[&paper, experiment]);
        let _ = write!(out, "<h3 id=\"{id}\">{}: {}</h3>", html(&paper), html(experiment));
        let flat: String =
            figures.iter().flat_map(|figures| &figures.flat).map(|line| format!("<li>{line}</li>")).collect();
        if !flat.is_empty() {
            let _ = write!(out, "<ul>{flat}</ul>");
        }
        let drawn: String = figures.iter().map(|figures| figures.drawn.as_str()).collect();
        let _ = write!(out, "<div class=\"all\">{drawn}</div>");
    }
    if !pictures.is_empty() {
        let _ = write!(out, "<h3>Streams over time, simulated</h3><div class=\"all\">{pictures}</div>");
    }
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

/// What is shown of rows of one quantity.
struct Figures {
    drawn: String,
    /// Lines of HTML for what is the same throughout and needs no plot.
    flat: Vec<String>,
}

/// The figures of rows of one quantity: plots over the number that varies most, one for each combination of the rest;
/// bars for rows that belong to none.
fn figures_of(group: &[&Row]) -> Figures {
    let mut figures = Figures { drawn: String::new(), flat: Vec::new() };
    let Some(first) = group.first() else { return figures };
    let title = format!("{}: {}", first.experiment, named::quantity(first.quantity));
    let unit = named::unit(first.unit);
    let (plots, rest) = plots(group);
    for Plot { key, others, points } in plots {
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
        let below = [unit.as_str(), &named::row(&others)];
        let below = below.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
        match flat(&all) {
            Some(value) => figures.flat.push(html(&format!(
                "{title}, simulated: {} {below} at every {}",
                figure(value),
                named::key(&key).split(',').next().unwrap_or_default()
            ))),
            None => {
                figures.drawn += &chart(&title, "simulated", Across::Numbers(&named::key(&key)), &below, &all)
            }
        }
    }
    if rest.is_empty() {
        return figures;
    }
    let rows: Vec<Bars> = rest
        .iter()
        .map(|row| Bars {
            name: named::row(&row.row),
            published: row.published.map(|value| (value, value)).or(row.published_interval),
            simulated: row.simulated,
            adaptive: row.adaptive,
        })
        .collect();
    figures.drawn += &bars(&title, &unit, &rows);
    figures
}

/// The value that all series have everywhere, to a hundredth of it.
fn flat(series: &[Series]) -> Option<f64> {
    let values = || series.iter().flat_map(|one| &one.points).map(|point| point.1);
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
    (low <= high && high - low <= 0.01 * high.abs()).then_some(high)
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
        let drawn = figures_of(&rows).drawn;
        assert_eq!(drawn.matches("<svg").count(), 1);
        assert!(drawn.contains("cipher: throughput, simulated"));
    }

    #[test]
    fn what_is_the_same_throughout_is_a_line_and_no_plot() {
        let flat = |adaptive| {
            let rows = ["kib=1", "kib=2", "kib=4"].map(|name| Row {
                published: None,
                simulated: 140.0,
                adaptive: Some(adaptive),
                ..row(name)
            });
            figures_of(&rows.iter().collect::<Vec<_>>())
        };
        let same = flat(140.5);
        assert!(
            same.drawn.is_empty() && same.flat[0].contains("simulated: 140.5 kB/s at every kib"),
            "{:?}",
            same.flat
        );
        let other = flat(150.0);
        assert!(other.flat.is_empty() && other.drawn.contains("<svg"));
    }

    #[test]
    fn contents_and_the_summary_come_before_any_plot_and_every_link_has_its_place() {
        let study = Study { rows: vec![row("kib=1"), row("kib=2"), row("kib=4 <b>")], ..Study::default() };
        let page = page(&[(Name::Eeca, study)], &[], &[Role::Predicted]);
        let at = |what: &str| page.find(what).unwrap_or_else(|| panic!("{what}: {page}"));
        assert!(at("id=\"contents\"") < at("id=\"summary\"") && at("id=\"summary\"") < at("<svg"));
        // Published 1, simulated 2: none of three is near.
        assert!(page.contains("<td>eeca</td><td>3</td><td>0</td><td>0</td><td>0</td>"), "{page}");
        let links = page.split("href=\"#").skip(1).filter_map(|rest| rest.split('"').next());
        let links: Vec<&str> = links.collect();
        assert!(links.contains(&"eeca-cipher"), "{links:?}");
        for link in links {
            assert_eq!(page.matches(&format!("id=\"{link}\"")).count(), 1, "{link}");
        }
    }
}
