//! Plots as inline SVG. Colours come from the page's style sheet, so that they follow light and dark.

use std::fmt::Write;

use wattlock::telemetry::text::html;
use wattlock_shell::svg::{self, Axis};

use super::print::figure;

/// What a series looks like; also its class in the style sheet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Open circles, no line: measured by others.
    Published,
    /// A line with dots.
    Simulated,
    /// A broken line with squares.
    Adaptive,
    /// A line with dots, in one of [`COLOURS`] colours: a method.
    Method(usize),
    /// Open circles in that colour: what was published of the method.
    PublishedOf(usize),
}

/// How many colours the style sheet has for methods.
pub const COLOURS: usize = 6;

impl Look {
    const fn class(self) -> &'static str {
        match self {
            Look::Published => "p",
            Look::Simulated => "s",
            Look::Adaptive => "a",
            Look::Method(colour) => ["m0", "m1", "m2", "m3", "m4", "m5"][colour % COLOURS],
            Look::PublishedOf(colour) => ["p m0", "p m1", "p m2", "p m3", "p m4", "p m5"][colour % COLOURS],
        }
    }

    const fn is_published(self) -> bool {
        matches!(self, Look::Published | Look::PublishedOf(_))
    }
}

/// What a chart's x are.
#[derive(Debug, Clone, Copy)]
pub enum Across<'a> {
    /// Numbers of this quantity.
    Numbers(&'a str),
    /// Places 0, 1, 2 with these names.
    Names(&'a [String]),
}

/// One series of a chart.
#[derive(Debug, Clone)]
pub struct Series {
    /// For the key and for tool tips.
    pub name: String,
    /// How it looks.
    pub look: Look,
    /// Ascending in x.
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 46.0;

/// Series over x. `word` says what the figures are: simulated, emulated, measured; `below` is the line below the title,
/// which has the unit.
pub fn chart(title: &str, word: &str, across: Across<'_>, below: &str, series: &[Series]) -> String {
    let points = || series.iter().flat_map(|one| one.points.iter().copied()).filter(|p| p.1.is_finite());
    if points().next().is_none() {
        return String::new();
    }
    let places: Vec<f64> = match across {
        Across::Numbers(_) => points().map(|p| p.0).collect(),
        // Room at both ends.
        Across::Names(names) => vec![-0.5, names.len() as f64 - 0.5],
    };
    let far = if matches!(across, Across::Numbers(_)) { 12.0 } else { f64::INFINITY };
    let x = Axis::new(places.into_iter(), LEFT, WIDTH - RIGHT, far, false);
    let y = Axis::new(points().map(|p| p.1), HEIGHT - BOTTOM, TOP, 30.0, true);
    let mut body = String::new();
    for tick in y.ticks() {
        let at = y.place(tick);
        let _ = write!(body, "<path class=\"g\" d=\"M{LEFT} {at:.1}H{}\"/>", WIDTH - RIGHT);
        let _ = write!(
            body,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            at + 4.0,
            short(tick)
        );
    }
    let marks: Vec<(f64, String)> = match across {
        Across::Numbers(_) => x.ticks().into_iter().map(|tick| (tick, short(tick))).collect(),
        Across::Names(names) => (0..).map(f64::from).zip(names.iter().cloned()).collect(),
    };
    for (tick, name) in marks {
        let at = x.place(tick);
        let _ = write!(body, "<path class=\"g\" d=\"M{at:.1} {}v5\"/>", HEIGHT - BOTTOM);
        let _ = write!(
            body,
            "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - BOTTOM + 18.0,
            html(&name)
        );
    }
    for one in series {
        body += &line(one, &x, &y);
    }
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    if let Across::Numbers(label) = across {
        let _ = write!(
            body,
            "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - 6.0,
            html(label)
        );
    }
    frame(title, word, below, HEIGHT, &body)
}

fn line(series: &Series, x: &Axis, y: &Axis) -> String {
    let there = || series.points.iter().filter(|p| p.1.is_finite());
    if there().next().is_none() {
        return String::new();
    }
    let mut out = format!("<g class=\"{}\">", series.look.class());
    let at = |p: &(f64, f64)| (x.place(p.0), y.place(p.1));
    if !series.look.is_published() {
        let path: Vec<String> = there().map(at).map(|(px, py)| format!("{px:.1} {py:.1}")).collect();
        let _ = write!(out, "<path d=\"M{}\"/>", path.join("L"));
    }
    // A dense line needs no marks.
    if there().count() <= 40 {
        for point in there() {
            let (px, py) = at(point);
            let mark = match series.look {
                Look::Adaptive => {
                    format!("<rect x=\"{:.1}\" y=\"{:.1}\" width=\"6\" height=\"6\">", px - 3.0, py - 3.0)
                }
                _ => format!(
                    "<circle cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"{}\">",
                    if series.look.is_published() { 5 } else { 3 }
                ),
            };
            let end = if series.look == Look::Adaptive { "</rect>" } else { "</circle>" };
            let _ = write!(
                out,
                "{mark}<title>{}: {} at {}</title>{end}",
                html(&series.name),
                figure(point.1),
                figure(point.0)
            );
        }
    }
    out + "</g>"
}

/// One row of a bar chart.
#[derive(Debug, Clone)]
pub struct Bars {
    /// Its name.
    pub name: String,
    /// Published: a value or an interval.
    pub published: Option<(f64, f64)>,
    /// The published rule, simulated.
    pub simulated: f64,
    /// Ours, simulated.
    pub adaptive: Option<f64>,
}

/// Rows whose names are no numbers, each on a scale of its own.
pub fn bars(title: &str, unit: &str, rows: &[Bars]) -> String {
    const ROW: f64 = 70.0;
    const SPAN: f64 = 370.0;
    let mut body = String::new();
    for (at, row) in rows.iter().enumerate() {
        let top = TOP + at as f64 * ROW;
        let most = [
            row.published.map(|p| if p.1.is_finite() { p.1 } else { p.0 }),
            Some(row.simulated),
            row.adaptive,
        ];
        let most = most.into_iter().flatten().fold(f64::MIN_POSITIVE, f64::max);
        let width = |value: f64| (value / most).clamp(0.0, 1.0) * SPAN;
        let _ = write!(body, "<text x=\"8\" y=\"{}\" class=\"n\">{}</text>", top + 10.0, html(&row.name));
        let mut bar = |place: f64, class: &str, from: f64, value: f64, label: &str| {
            let _ = write!(
                body,
                "<g class=\"{class}\"><rect class=\"b\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"9\"/></g>\
                 <text x=\"{:.1}\" y=\"{:.1}\">{label}</text>",
                8.0 + width(from),
                top + place,
                (width(value) - width(from)).max(2.0),
                14.0 + width(value),
                top + place + 9.0
            );
        };
        match row.published {
            Some((low, high)) if low == high => {
                bar(14.0, "p", 0.0, low, &format!("{} published", figure(low)))
            }
            Some((low, high)) if high.is_infinite() => {
                bar(14.0, "p", 0.0, low, &format!("more than {} published", figure(low)))
            }
            Some((low, high)) => {
                bar(14.0, "p", low, high, &format!("{} to {} published", figure(low), figure(high)))
            }
            None => {}
        }
        bar(29.0, "s", 0.0, row.simulated, &format!("{} simulated", figure(row.simulated)));
        if let Some(adaptive) = row.adaptive {
            bar(44.0, "a", 0.0, adaptive, &format!("{} adaptive, simulated", figure(adaptive)));
        }
    }
    frame(title, "simulated", unit, TOP + rows.len() as f64 * ROW + 4.0, &body)
}

fn frame(title: &str, word: &str, below: &str, height: f64, body: &str) -> String {
    let title = format!("{title}, {word}");
    let body = format!(
        "<text x=\"8\" y=\"16\" class=\"t\">{}</text><text x=\"8\" y=\"34\">{}</text>{body}",
        html(&title),
        html(below)
    );
    svg::chart(WIDTH, height, &title, &body)
}

/// A tick's label.
fn short(value: f64) -> String {
    match value.abs() {
        x if x >= 1e6 => format!("{}M", figure(value / 1e6)),
        x if x >= 1e4 => format!("{}k", figure(value / 1e3)),
        _ => figure(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_says_simulated_and_marks_what_was_published() {
        let series = |look| Series { name: "x".into(), look, points: vec![(1.0, 2.0), (2.0, 3.0)] };
        let drawn = chart(
            "t",
            "simulated",
            Across::Numbers("x"),
            "y",
            &[series(Look::Published), series(Look::Simulated)],
        );
        let nothing = Series { name: "x".into(), look: Look::Adaptive, points: vec![(1.0, f64::NAN)] };
        let alone = chart("t", "simulated", Across::Numbers("x"), "y", &[series(Look::Published), nothing]);
        assert!(!alone.contains("class=\"a\"") && !alone.contains("d=\"M\""), "{alone}");
        assert!(drawn.contains("t, simulated") && drawn.contains("class=\"p\"") && drawn.contains("<circle"));
        let row = Bars { name: "<r>".into(), published: Some((1.0, 2.0)), simulated: 1.5, adaptive: None };
        let drawn = bars("b", "x", &[row]);
        assert!(
            drawn.contains("b, simulated")
                && drawn.contains("1 to 2 published")
                && drawn.contains("&lt;r&gt;")
        );
    }
}
