//! What a reproduction says: the papers' plots redrawn from measured lines, with what was published and is simulated beside
//! them, and how often the shape agrees. Of what was not measured there is a row with the reason, and nothing in a plot.

use std::collections::BTreeSet;
use std::fmt::Write;

use wattlock::telemetry::page::{document, picture_style};
use wattlock::telemetry::text::html;

use super::csv::Line;
use super::grid::{Figure, PER_JOULE, PROFILED, Point, Quantity};
use super::shape::{Counts, Finding, Kind, Reading, Shape, Spread, Verdict, coordinate};
use crate::lab::named;
use crate::lab::page::table;
use crate::lab::plot::{Across, COLOURS, Look, Series, chart};
use crate::lab::print::figure;

/// A run: its grid, and what was measured of it so far.
pub struct Outcome<'a> {
    /// What was to be measured.
    pub figures: &'a [Figure],
    /// What was.
    pub lines: &'a [Line],
    /// Of which program.
    pub commit: &'a str,
    /// Where.
    pub machine: &'a str,
}

/// Busier than this is said.
const BUSY: f64 = 0.1;

impl Outcome<'_> {
    /// The lines of a figure's point.
    fn of(&self, of: &Figure, point: &Point) -> impl Iterator<Item = &Line> {
        let key = key(of, point);
        self.lines.iter().filter(move |line| key == line.key())
    }

    fn line(&self, of: &Figure, point: &Point, quantity: &str) -> Option<&Line> {
        self.of(of, point).find(|line| line.quantity == quantity)
    }

    fn readings(&self, of: &Figure, quantity: &Quantity) -> Vec<Reading> {
        let reading = |point: &Point| {
            let line = self.line(of, point, quantity.name).filter(|line| line.unit == quantity.unit);
            let spread = line.and_then(|line| {
                let value = line.value?;
                Some(Spread { value, low: line.low.unwrap_or(value), high: line.high.unwrap_or(value) })
            });
            let published = point.cell(quantity.name).and_then(|cell| cell.published);
            Reading { point: point.name(), method: point.method.to_owned(), published, measured: spread }
        };
        of.points.iter().map(reading).collect()
    }

    /// All comparisons of a figure.
    pub fn findings(&self, of: &Figure) -> Vec<Finding> {
        let mut all = Vec::new();
        for quantity in &of.quantities {
            let Some(more) = quantity.more else { continue };
            // A card that is emulated uses no joules, and the CPU that emulates it does.
            let streams = of.points.iter().all(|point| point.door == "stream");
            let emulated = !streams && self.word(of).contains("emulated");
            if quantity.name == PER_JOULE && emulated || self.of_unlike_parts(of, quantity) {
                continue;
            }
            let readings = self.readings(of, quantity);
            let claims: Vec<_> =
                of.claims.iter().copied().filter(|claim| claim.quantity == quantity.name).collect();
            let shape = Shape { readings: &readings, own: of.paper.name(), axis: of.axis, more };
            all.extend(shape.findings(&claims).into_iter().map(|finding| Finding {
                text: format!("{}, {}: {}", of.id(), quantity.name, finding.text),
                ..finding
            }));
        }
        all
    }

    /// Whether some methods' joules are of other parts of the machine than others', or measured where those are modelled:
    /// their quotients say nothing.
    fn of_unlike_parts(&self, of: &Figure, quantity: &Quantity) -> bool {
        if !quantity.unit.ends_with('J') {
            return false;
        }
        let joules = |line: &&Line| line.quantity == quantity.name && line.value.is_some();
        let lines = of.points.iter().flat_map(|point| self.of(of, point)).filter(joules);
        lines.map(|line| (&line.word, &line.domain)).collect::<BTreeSet<_>>().len() > 1
    }

    /// What a figure's lines are: measured, emulated, or neither.
    pub fn word(&self, of: &Figure) -> String {
        let mine = self.lines.iter().filter(|line| line.paper == of.paper.name() && line.figure == of.id());
        let measured: Vec<&Line> = mine.filter(|line| line.value.is_some()).collect();
        let devices: BTreeSet<&str> = measured
            .iter()
            .map(|line| line.device.as_str())
            .filter(|device| !matches!(*device, "" | "none"))
            .collect();
        // A device that was idle in some points is named once.
        let once = |device: &&&str| {
            let idle = |other: &&str| device.strip_prefix(*other).is_some_and(|rest| rest.starts_with(", "));
            !devices.iter().any(idle)
        };
        let devices = devices.iter().filter(once).copied().collect::<Vec<_>>().join(", ");
        match (measured.is_empty(), devices.contains("emulated"), devices.is_empty()) {
            (true, ..) => "not measured".to_owned(),
            (_, true, _) => devices,
            (_, _, true) => "measured, no device".to_owned(),
            (..) => format!("measured, {devices}"),
        }
    }

    /// Points that were measured, that cannot run here, that failed, and that are not there.
    pub fn tally(&self, of: &Figure) -> [usize; 4] {
        let mut tally = [0; 4];
        for point in &of.points {
            let mut lines = self.of(of, point).peekable();
            let at = match lines.peek() {
                None => 3,
                Some(line) if !line.failed.is_empty() => 2,
                // A point that was measured may lack a quantity.
                Some(_) => usize::from(lines.all(|line| line.value.is_none())),
            };
            tally[at] += 1;
        }
        tally
    }

    /// How busy the machine was, and how far rounds lay apart, if anything was measured.
    pub fn calm(&self) -> Option<String> {
        let busy: Vec<f64> =
            self.lines.iter().filter_map(|line| line.busy.filter(|_| line.value.is_some())).collect();
        let most = busy.iter().copied().max_by(f64::total_cmp)?;
        let many = busy.iter().filter(|busy| **busy > BUSY).count();
        let spread = |line: &Line| {
            let (value, low, high) = (line.value?, line.low?, line.high?);
            (value > 0.0).then(|| (high - low) / value)
        };
        let mut spreads: Vec<f64> = self.lines.iter().filter_map(spread).collect();
        spreads.sort_by(f64::total_cmp);
        let at = |share: f64| {
            spreads.get(((spreads.len().max(1) - 1) as f64 * share) as usize).copied().unwrap_or(0.0)
        };
        Some(format!(
            "Other processes used more than {:.0} % of the machine beside {many} of {} figures, {:.0} % at most; rounds lie \
             {:.0} % apart in the median, {:.0} % at most.",
            100.0 * BUSY,
            busy.len(),
            100.0 * most,
            100.0 * at(0.5),
            100.0 * at(1.0)
        ))
    }

    /// The columns of [`Outcome::rows`].
    pub const HEADER: [&'static str; 9] = [
        "point",
        "method",
        "quantity",
        "published",
        "simulated",
        "measured",
        "rounds from to",
        "device",
        "why not",
    ];

    /// A row for each line of a figure that is about something published or about what the figure is of.
    pub fn rows(&self, of: &Figure, all: bool) -> Vec<Vec<String>> {
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), figure);
        let row = |line: &Line| {
            let spread =
                line.low.zip(line.high).map(|(low, high)| format!("{} {}", figure(low), figure(high)));
            let mut unit = vec![line.quantity.as_str(), &line.unit];
            // Of joules also whether a meter or a model says them, and of what.
            if line.unit.ends_with('J') {
                unit.extend([line.word.as_str(), &line.domain]);
            }
            unit.retain(|word| !word.is_empty());
            vec![
                line.point.clone(),
                line.method.clone(),
                unit.join(", "),
                number(line.published),
                number(line.simulated),
                number(line.value),
                spread.unwrap_or_else(|| "-".to_owned()),
                line.device.clone(),
                [line.cannot.as_str(), line.failed.as_str()].concat(),
            ]
        };
        let mut rows = Vec::new();
        for point in &of.points {
            let mut there = false;
            for line in self.of(of, point) {
                there = true;
                let told = line.quantity == of.quantities[0].name
                    || [PER_JOULE, PROFILED].contains(&&*line.quantity)
                    || line.published.is_some();
                if all || told {
                    rows.push(row(line));
                }
            }
            if !there {
                let cell = point.cell(of.quantities[0].name);
                rows.push(vec![
                    point.name(),
                    point.method.to_owned(),
                    format!("{}, {}", of.quantities[0].name, of.quantities[0].unit),
                    number(cell.and_then(|cell| cell.published)),
                    number(cell.and_then(|cell| cell.simulated)),
                    "-".to_owned(),
                    "-".to_owned(),
                    String::new(),
                    "not run".to_owned(),
                ]);
            }
        }
        rows
    }
}

/// What a point's lines are found by.
pub fn key(of: &Figure, point: &Point) -> [String; 5] {
    [of.paper.name().into(), of.id().into(), point.door.into(), point.name(), point.method.into()]
}

/// The whole page: how often the shape agrees before any plot. `remark`: why the run ended before its grid, if it did.
pub fn page(outcome: &Outcome<'_>, remark: Option<&str>) -> String {
    let mut body = format!(
        "<h1>Published figures, reproduced</h1><p>{}. Commit <code>{}</code>. Each figure says what its lines are: \
         <b>measured</b>, or <b>emulated</b>, where the data path is real and the device's time is a model's; then only the \
         shape of curves says anything. Circles are published.</p>",
        html(outcome.machine),
        html(outcome.commit)
    );
    for said in [outcome.calm().as_deref(), remark].into_iter().flatten() {
        let _ = write!(body, "<p>{}</p>", html(said));
    }
    let mut papers: Vec<_> = outcome.figures.iter().map(|figure| figure.paper).collect();
    papers.dedup();
    let (mut contents, mut counts, mut sections) = (String::new(), Vec::new(), String::new());
    for paper in papers {
        let figures: Vec<&Figure> = outcome.figures.iter().filter(|figure| figure.paper == paper).collect();
        let (id, title) = (named::anchor(&[paper.name()]), paper.name().to_uppercase());
        let _ = write!(sections, "<h2 id=\"{id}\">{title}</h2>");
        let findings: Vec<Finding> = figures.iter().flat_map(|figure| outcome.findings(figure)).collect();
        sections += &agreement(&findings);
        counts.push(overall(outcome, &title, &figures, &findings));
        let link = |figure: &&Figure| format!("<a href=\"#{}\">{}</a>", place(figure), html(figure.title));
        let links: Vec<String> = figures.iter().map(link).collect();
        let _ = write!(contents, "<li><a href=\"#{id}\">{title}</a>: {}</li>", links.join(", "));
        for figure in figures {
            sections += &section(outcome, figure);
        }
    }
    let _ = write!(
        body,
        "<h2 id=\"contents\">Contents</h2><ul>{contents}</ul><h2 id=\"summary\">How often the shape agrees</h2>\
         {}{sections}<footer>Made by <code>wattlock lab reproduce</code>, version {}: docs/research/reproduce.md.</footer>",
        table(&OVERALL, &counts),
        env!("CARGO_PKG_VERSION")
    );
    document("Published figures, reproduced", None, &body)
}

/// A figure's place on the page.
fn place(of: &Figure) -> String {
    named::anchor(&[of.paper.name(), of.id()])
}

/// Columns of [`overall`].
const OVERALL: [&str; 7] =
    ["paper", "points measured", "cannot run here", "agrees", "disagrees", "no difference", "not measured"];

/// A paper in a line.
fn overall(outcome: &Outcome<'_>, title: &str, figures: &[&Figure], findings: &[Finding]) -> Vec<String> {
    let mut points = [0; 2];
    for figure in figures {
        let [measured, cannot, ..] = outcome.tally(figure);
        points[0] += measured;
        points[1] += cannot;
    }
    let Counts { agree, disagree, undecided, missing } = Counts::of(findings);
    let counts = [points[0], points[1], agree, disagree, undecided, missing];
    std::iter::once(title.to_owned()).chain(counts.map(|count| count.to_string())).collect()
}

/// Columns of [`counted`].
pub const COUNTED: [&str; 5] = ["shape", "agrees", "disagrees", "no difference measured", "not measured"];

/// How often the shape agrees, kind by kind.
pub fn counted(findings: &[Finding]) -> Vec<Vec<String>> {
    let row = |kind: Kind| {
        let counts = Counts::of(findings.iter().filter(|finding| finding.kind == kind));
        let Counts { agree, disagree, undecided, missing } = counts;
        let mut cells = vec![kind.name().to_owned()];
        cells.extend([agree, disagree, undecided, missing].map(|count| count.to_string()));
        cells
    };
    Kind::ALL.into_iter().map(row).collect()
}

fn agreement(findings: &[Finding]) -> String {
    let mut out = table(&COUNTED, &counted(findings));
    for (verdict, name) in
        [(Verdict::Disagrees, "Disagreements"), (Verdict::Undecided, "No difference measured")]
    {
        let lines: String = findings
            .iter()
            .filter(|finding| finding.verdict == verdict)
            .map(|finding| format!("<li>{}</li>", html(&finding.text)))
            .collect();
        if !lines.is_empty() {
            let _ = write!(out, "<details><summary>{name}</summary><ul>{lines}</ul></details>");
        }
    }
    out
}

fn section(outcome: &Outcome<'_>, of: &Figure) -> String {
    let [measured, cannot, failed, left] = outcome.tally(of);
    let mut out = format!(
        "<h3 id=\"{}\">{}: {}</h3><p>{} {measured} points measured, {cannot} cannot run here, {failed} failed, {left} not \
         run.</p>",
        place(of),
        of.names.join(", "),
        html(of.title),
        html(of.note)
    );
    let methods = methods(of);
    let keys = methods
        .iter()
        .enumerate()
        .map(|(at, name)| format!("<b class=\"k{}\">&#9679; {}</b>", at % COLOURS, html(name)));
    let _ = write!(out, "<p class=\"key\">{}</p><div class=\"all\">", keys.collect::<String>());
    for quantity in &of.quantities {
        out += &plots(outcome, of, quantity).concat();
    }
    out += "</div><details><summary>All lines</summary>";
    out += &table(&Outcome::HEADER, &outcome.rows(of, true));
    out + "</details>"
}

fn methods(of: &Figure) -> Vec<&'static str> {
    let mut methods: Vec<&str> = Vec::new();
    for point in &of.points {
        if !methods.contains(&point.method) {
            methods.push(point.method);
        }
    }
    methods
}

/// Plots of a quantity over the figure's axis, one for each combination of the other keys; over names where that is no
/// number or has one value only.
fn plots(outcome: &Outcome<'_>, of: &Figure, quantity: &Quantity) -> Vec<String> {
    let readings: Vec<Reading> = outcome
        .readings(of, quantity)
        .into_iter()
        .filter(|reading| reading.measured.is_some() || reading.published.is_some())
        .collect();
    let (title, unit) =
        (format!("{}: {}", of.id(), named::quantity(quantity.name)), named::unit(quantity.unit));
    let word = outcome.word(of);
    // What all points share says nothing in a title.
    let words = |point: &str| point.split(' ').map(str::to_owned).collect::<BTreeSet<_>>();
    let shared = of
        .points
        .iter()
        .map(|point| words(&point.name()))
        .reduce(|one, other| &one & &other)
        .unwrap_or_default();
    let own =
        |point: &str| point.split(' ').filter(|word| !shared.contains(*word)).collect::<Vec<_>>().join(" ");
    let mut groups: Vec<(String, Vec<(f64, &Reading)>)> = Vec::new();
    let mut several = false;
    for reading in &readings {
        let (Some(x), rest) = coordinate(&reading.point, of.axis) else { continue };
        match groups.iter_mut().find(|group| group.0 == own(&rest)) {
            Some(group) => {
                several |= group.1.iter().any(|one| one.0 != x);
                group.1.push((x, reading));
            }
            None => groups.push((own(&rest), vec![(x, reading)])),
        }
    }
    if several {
        let drawn = |(rest, points): (String, Vec<(f64, &Reading)>)| {
            let below = [unit.as_str(), &named::row(&rest)];
            let below = below.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
            chart(&title, &word, Across::Numbers(&named::key(of.axis)), &below, &series(of, &points))
        };
        return groups.into_iter().map(drawn).collect();
    }
    let mut names: Vec<String> = Vec::new();
    let mut points = Vec::new();
    for reading in &readings {
        // Values only: there is little room below.
        let value = |word: &str| word.split_once('=').map_or(word, |(_, value)| value).to_owned();
        let name = own(&reading.point).split(' ').map(value).collect::<Vec<_>>().join("/");
        let place = names.iter().position(|known| *known == name).unwrap_or_else(|| {
            names.push(name);
            names.len() - 1
        });
        points.push((place as f64, reading));
    }
    vec![chart(&title, &word, Across::Names(&names), &unit, &series(of, &points))]
}

/// Two series a method: measured and published.
fn series(of: &Figure, points: &[(f64, &Reading)]) -> Vec<Series> {
    let mut all = Vec::new();
    for (colour, method) in methods(of).into_iter().enumerate() {
        let mine = || points.iter().filter(|(_, reading)| reading.method == method);
        let mut line = |name: &str, look, of: fn(&Reading) -> Option<f64>| {
            let mut points: Vec<(f64, f64)> =
                mine().filter_map(|(x, reading)| Some((*x, of(reading)?))).collect();
            points.sort_by(|one, other| one.0.total_cmp(&other.0));
            if !points.is_empty() {
                all.push(Series { name: format!("{method}{name}"), look, points });
            }
        };
        line("", Look::Method(colour), |reading| reading.measured.map(|measured| measured.value));
        line(", published", Look::PublishedOf(colour), |reading| reading.published);
    }
    all
}

/// A figure's first quantity as a picture of its own, if something of the figure was measured.
pub fn picture(outcome: &Outcome<'_>, of: &Figure) -> Option<String> {
    if outcome.tally(of)[0] == 0 {
        return None;
    }
    let drawn = plots(outcome, of, &of.quantities[0]).into_iter().find(|plot| !plot.is_empty())?;
    let methods = methods(of);
    let mut key = String::new();
    for (at, method) in methods.iter().enumerate() {
        let _ =
            write!(key, "<text class=\"k{}\" x=\"{}\" y=\"48\">{method}</text>", at % COLOURS, 70 + at * 96);
    }
    let style = format!("<style>{}svg text[class^=k]{{fill:currentColor}}</style>", picture_style());
    // Without the box that a page scrolls it in.
    let drawn = &drawn[drawn.find("<svg")?..drawn.rfind("</div>")?];
    let open = drawn.find('>')? + 1;
    let head = drawn[..open].replacen("<svg ", "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 1);
    Some(format!("{head}{style}{}{key}</svg>\n", drawn[open..].trim_end_matches("</svg>")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::grid::{Extent, Paper, grid};

    fn line(of: &Figure, point: &Point, value: Option<f64>) -> Line {
        let [paper, figure, door, name, method] = key(of, point);
        let quantity = of.quantities[0];
        let cell = point.cell(quantity.name);
        Line {
            paper,
            figure,
            door,
            point: name,
            method,
            quantity: quantity.name.into(),
            unit: quantity.unit.into(),
            published: cell.and_then(|cell| cell.published),
            value,
            low: value.map(|value| value * 0.9),
            high: value.map(|value| value * 1.1),
            busy: Some(0.2),
            device: if point.uses_device { "emulated eeca-soc".into() } else { "none".into() },
            cannot: if value.is_none() { "no <card>".into() } else { String::new() },
            lines: 1,
            ..Line::default()
        }
    }

    fn figures() -> Vec<Figure> {
        grid(Paper::Eeca, Extent { full: true, threads: 2, machine: "k20m" }).unwrap()
    }

    /// As published, only the machine is another.
    #[test]
    fn a_page_counts_agreements_and_says_what_was_not_measured() {
        let figures = figures();
        let mut lines = Vec::new();
        for point in &figures[0].points {
            let published = point.cell("throughput").and_then(|cell| cell.published);
            lines.push(line(&figures[0], point, published.map(|value| value / 7.0)));
        }
        let outcome = Outcome { figures: &figures, lines: &lines, commit: "abc", machine: "<one>" };
        let findings = outcome.findings(&figures[0]);
        let counts = Counts::of(&findings);
        assert!(counts.agree > 10 && counts.disagree == 0, "{counts:?}");
        let joules = findings.iter().any(|finding| finding.text.contains(PER_JOULE));
        assert!(!joules, "beside an emulated card they say nothing");
        let page = page(&outcome, Some("interrupted"));
        for wanted in [
            "emulated eeca-soc",
            "no &lt;card&gt;",
            "&lt;one&gt;",
            "interrupted",
            "not run",
            "table1, figure4",
            "20 % at most",
        ] {
            assert!(page.contains(wanted), "{wanted}");
        }
        for forbidden in ["src=", "href=\"http", "url(", "<script", "NaN", "<one>"] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        let at = |what: &str| page.find(what).unwrap_or_else(|| panic!("{what}"));
        assert!(at("id=\"contents\"") < at("id=\"summary\"") && at("id=\"summary\"") < at("<svg"));
        assert!(
            page.contains(&format!("<td>EECA</td><td>24</td><td>21</td><td>{}</td>", counts.agree)),
            "{page}"
        );
        for link in page.split("href=\"#").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert_eq!(page.matches(&format!("id=\"{link}\"")).count(), 1, "{link}");
        }
        assert_eq!(outcome.tally(&figures[0]), [24, 21, 0, 0]);
        assert_eq!(outcome.word(&figures[0]), "emulated eeca-soc");
        assert_eq!(outcome.word(&figures[1]), "not measured");
        let mut some_idle = lines.clone();
        some_idle[0].device = "emulated eeca-soc, idle".into();
        let outcome = Outcome { lines: &some_idle, ..outcome };
        assert_eq!(outcome.word(&figures[0]), "emulated eeca-soc");
    }

    #[test]
    fn joules_of_unlike_parts_are_not_compared() {
        let figures = grid(Paper::Eep, Extent { full: true, threads: 2, machine: "gpu" }).unwrap();
        let (of, points) = (&figures[0], &figures[0].points);
        let joules = |device: &str| {
            let line = |point: &Point| {
                let board = point.uses_device;
                Line {
                    quantity: PER_JOULE.into(),
                    unit: "byte/J".into(),
                    device: device.into(),
                    word: if board { "measured" } else { "modelled" }.into(),
                    domain: if board { "gpu-0" } else { device }.into(),
                    ..line(of, point, Some(if board { 2.0 } else { 1.0 }))
                }
            };
            points.iter().map(line).collect::<Vec<_>>()
        };
        let compared = |lines: &[Line]| {
            let outcome = Outcome { figures: &figures, lines, commit: "abc", machine: "m" };
            outcome.findings(of).iter().filter(|finding| finding.text.contains(PER_JOULE)).count()
        };
        let mut lines = joules("processors");
        assert_eq!(compared(&lines), 0);
        for line in &mut lines {
            (line.word, line.domain) = ("measured".into(), "package-0 + gpu-0".into());
        }
        assert!(compared(&lines) > 0);
    }

    #[test]
    fn points_that_are_missing_are_missing_in_a_plot_too() {
        let figures = figures();
        let mine: Vec<&Point> = figures[0].points.iter().filter(|point| point.method == "adaptive").collect();
        let lines = [
            line(&figures[0], mine[0], Some(1.0)),
            line(&figures[0], mine[2], Some(3.0)),
            line(&figures[0], mine[3], None),
        ];
        let outcome = Outcome { figures: &figures[..1], lines: &lines, commit: "abc", machine: "m" };
        let drawn = plots(&outcome, &figures[0], &figures[0].quantities[0]).concat();
        let ours = drawn.split("<g class=\"m4\">").nth(1).unwrap().split("</g>").next().unwrap();
        assert_eq!(ours.matches("<circle").count(), 2, "{ours}");
        let none = Outcome { figures: &figures[..1], lines: &[], commit: "abc", machine: "m" };
        assert!(page(&none, None).contains("not measured"));
        assert!(plots(&none, &figures[0], &figures[0].quantities[2]).concat().is_empty(), "nothing to draw");
        assert_eq!(none.calm(), None);
    }

    #[test]
    fn a_picture_stands_alone() {
        let figures = figures();
        let lines = [line(&figures[0], &figures[0].points[0], Some(1.0))];
        let outcome = Outcome { figures: &figures, lines: &lines, commit: "abc", machine: "m" };
        let drawn = picture(&outcome, &figures[0]).unwrap();
        assert!(drawn.starts_with("<svg xmlns=") && drawn.ends_with("</svg>\n") && drawn.contains("<style>"));
        assert_eq!(drawn.matches("</svg>").count(), 1);
    }
}
