//! The calibration page: one HTML file with nothing to fetch, throughput and latency over size for each kind, the
//! sizes where the fastest engine changes marked, and tables for what has no size. `wattlock report` puts parts of it
//! beside what benches wrote.

use std::collections::BTreeMap;

use wattlock::Profile;
use wattlock::telemetry::page::document;
use wattlock::telemetry::text::html;
use wattlock_core::Kind;

use crate::svg::{self, Anchor, Axis};
use crate::text;

/// One engine's points of one kind: `(bytes, ns)`, ascending.
pub type Series = BTreeMap<String, Vec<(f64, f64)>>;

/// How many colours the style sheet has for engines.
const COLOURS: usize = 6;

/// The whole page.
pub fn page(profile: &Profile) -> String {
    let sized = sized(profile);
    let mut body = format!("<h1>What each engine costs on this machine</h1>{}", summary(profile));
    body += &overview(&sized, true);
    sized.iter().for_each(|(kind, series)| body += &section(profile, *kind, series));
    body += &(operations(profile) + &joules(profile) + &fits(profile) + &footer(profile));
    document("Wattlock calibration", None, &body)
}

fn footer(profile: &Profile) -> String {
    format!(
        "<footer>Measured by <code>wattlock calibrate</code>, version {}; every figure is the median of short runs on \
         this machine, which may be shared.</footer>",
        html(&profile.machine.version)
    )
}

/// Kinds that have sizes, with their curves.
pub fn sized(profile: &Profile) -> Vec<(Kind, Series)> {
    Kind::ALL.iter().map(|kind| (*kind, series(profile, *kind))).filter(|(_, s)| has_sizes(s)).collect()
}

/// The machine, and what the names of its engines mean.
pub fn summary(profile: &Profile) -> String {
    const MEANING: [(&str, &str); 5] = [
        ("software", "plain code, on any CPU"),
        ("instruction", "the CPU's own instructions for AES and hashes"),
        ("lanes", "several requests side by side in the CPU's vector registers"),
        ("cuda", "a GPU"),
        ("emulated", "a model of a card: its data path is real, its time is not"),
    ];
    let meaning = |name: &str| {
        let known = MEANING.iter().find(|(engine, _)| *engine == name);
        known.map_or_else(String::new, |(_, meaning)| format!(": {meaning}"))
    };
    let engines = profile.machine.engines.iter();
    let (mut names, mut details) = (String::new(), String::new());
    for (name, detail) in engines {
        names += &format!("<li><b>{}</b>{}</li>", html(name), meaning(name));
        details += &format!("<li>{}: {}</li>", html(name), html(detail));
    }
    format!(
        "<p>{}, {} cores; {} calibration.</p><ul>{names}</ul><details><summary>What the engines found</summary><ul>\
         <li>microcode {}</li>{details}</ul></details>",
        html(&profile.machine.cpu),
        profile.cores,
        if profile.quick { "quick" } else { "full" },
        html(&profile.machine.microcode),
    )
}

/// How the names of kinds are read.
const KINDS: &str = "<p class=\"soft\">A kind is an algorithm and what is done with it: <code>-seal</code> encrypts and \
                     <code>-open</code> decrypts and verifies; <code>-private</code>, <code>-sign</code> and \
                     <code>-derive</code> are a server's part of a TLS handshake.</p>";

fn series(profile: &Profile, kind: Kind) -> Series {
    let mut all = Series::new();
    for name in profile.machine.engines.keys() {
        let points: Vec<(f64, f64)> =
            profile.curve(name, kind).into_iter().map(|(bytes, ns, _)| (bytes as f64, ns)).collect();
        if !points.is_empty() {
            all.insert(name.clone(), points);
        }
    }
    all
}

fn has_sizes(series: &Series) -> bool {
    series.values().any(|points| points.len() > 1)
}

/// Every kind in one table: which engine is fastest where, and how fast it gets. `linked`: each has a section on the
/// page.
pub fn overview(sized: &[(Kind, Series)], linked: bool) -> String {
    let row = |(kind, series): &(Kind, Series)| {
        let crossings = crossings(series);
        let first = fastest(series, series.values().flatten().map(|point| point.0).fold(f64::MAX, f64::min));
        let who = crossings.iter().fold(html(&first.unwrap_or_default()), |who, c| {
            format!("{who}, from {} {}", text::bytes(c.bytes.round() as u64), html(&c.above))
        });
        let rate = series.values().flatten().map(|(bytes, ns)| bytes / ns * 1e9).fold(0.0, f64::max);
        let name = kind.name();
        let name = if linked { format!("<a href=\"#{name}\">{name}</a>") } else { name.to_owned() };
        format!("<tr><td>{name}</td><td>{who}</td><td>{}</td></tr>", text::rate(rate))
    };
    let rows: String = sized.iter().map(row).collect();
    format!("{KINDS}<table><tr><th>kind</th><th>fastest engine</th><th>at its best</th></tr>{rows}</table>")
}

/// One engine's cost at a measured size.
fn cost(points: &[(f64, f64)], bytes: f64) -> Option<f64> {
    points.iter().find(|point| point.0 == bytes).map(|point| point.1)
}

/// Which engine costs least at a measured size.
fn fastest(series: &Series, bytes: f64) -> Option<String> {
    let costs = series.iter().filter_map(|(name, points)| Some((name, cost(points, bytes)?)));
    costs.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(name, _)| name.clone())
}

/// A size at which another engine becomes the fastest.
#[derive(Debug, Clone, PartialEq)]
struct Crossing {
    /// Where, in bytes (interpolated between measured sizes on logarithmic scales).
    bytes: f64,
    /// Fastest below.
    below: String,
    /// Fastest above.
    above: String,
}

/// Whether the choice changes with the size: what is fastest for the smallest requests is a tenth slower or more than
/// another engine for the largest, and that one for the smallest. Curves that only touch do not count.
pub fn crosses(series: &Series) -> bool {
    let sizes = || series.values().flatten().map(|point| point.0);
    let (least, most) = (sizes().fold(f64::MAX, f64::min), sizes().fold(0.0, f64::max));
    let (Some(small), Some(large)) = (fastest(series, least), fastest(series, most)) else { return false };
    let slower = |engine: &str, than: &str, at: f64| {
        let both = cost(&series[engine], at).zip(cost(&series[than], at));
        both.is_some_and(|(one, other)| one >= 1.1 * other)
    };
    slower(&small, &large, most) && slower(&large, &small, least)
}

/// Every size at which the fastest engine changes.
fn crossings(series: &BTreeMap<String, Vec<(f64, f64)>>) -> Vec<Crossing> {
    let mut sizes: Vec<f64> = series.values().flatten().map(|point| point.0).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let mut found = Vec::new();
    for pair in sizes.windows(2) {
        let (Some(below), Some(above)) = (fastest(series, pair[0]), fastest(series, pair[1])) else {
            continue;
        };
        if below == above {
            continue;
        }
        let gap = |x: f64| Some((cost(&series[&below], x)? / cost(&series[&above], x)?).ln());
        // Between two sizes both logarithms run straight: the gap is zero at this share of the way.
        let share = match (gap(pair[0]), gap(pair[1])) {
            (Some(first), Some(last)) if last != first => (-first / (last - first)).clamp(0.0, 1.0),
            _ => 0.5,
        };
        let bytes = (pair[0].ln() + share * (pair[1].ln() - pair[0].ln())).exp();
        found.push(Crossing { bytes, below, above });
    }
    found
}

/// One kind: its charts, what is told of its crossings, a table.
pub fn section(profile: &Profile, kind: Kind, series: &Series) -> String {
    let crossings = crossings(series);
    let told: Vec<String> = crossings
        .iter()
        .map(|c| {
            let place = text::bytes(c.bytes.round() as u64);
            format!(
                "from about <b>{place}</b> on <b>{}</b> is faster than {}",
                html(&c.above),
                html(&c.below)
            )
        })
        .collect();
    let told = match told.is_empty() {
        true => "<p>The same engine is fastest at every size.</p>".to_owned(),
        false => format!("<p class=\"cross\">{}</p>", told.join("; ")),
    };
    let key: Vec<String> = series
        .keys()
        .map(|name| {
            format!("<span class=\"key\"><i class=\"{}\"></i>{}</span>", colour(profile, name), html(name))
        })
        .collect();
    let throughput: Series = series
        .iter()
        .map(|(name, points)| (name.clone(), points.iter().map(|(x, ns)| (*x, x / ns * 1e9)).collect()))
        .collect();
    let latency = series;
    let colour = |name: &str| colour(profile, name);
    format!(
        "<h2 id=\"{0}\">{0}</h2><p>{1}</p>{2}<div class=\"pair\">{3}{4}</div>{5}",
        kind.name(),
        key.concat(),
        told,
        chart("throughput, one request at a time", &throughput, &crossings, colour, |y| short(text::rate(y))),
        chart("latency, one request at a time", latency, &crossings, colour, |y| short(text::nanos(y))),
        concurrency(profile, kind)
    )
}

/// The class of an engine's colour: the same for every kind, whichever engines do it.
fn colour(profile: &Profile, engine: &str) -> &'static str {
    let at = profile.machine.engines.keys().position(|name| name == engine).unwrap_or_default();
    ["e0", "e1", "e2", "e3", "e4", "e5"][at % COLOURS]
}

/// A figure without the zeros that say nothing: `10.00 GB/s` is `10 GB/s`.
fn short(figure: String) -> String {
    match figure.split_once(' ') {
        Some((value, unit)) if value.contains('.') => {
            format!("{} {unit}", value.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => figure,
    }
}

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 44.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 46.0;

fn chart(
    title: &str,
    series: &Series,
    crossings: &[Crossing],
    colour: impl Fn(&str) -> &'static str,
    y_label: impl Fn(f64) -> String,
) -> String {
    let points = || series.values().flatten();
    let range = |of: fn(&(f64, f64)) -> f64| {
        let values = points().map(of);
        values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)))
    };
    let ((x0, x1), (y0, y1)) = (range(|p| p.0), range(|p| p.1));
    // Whole decades, so that there are always two lines with a figure to read a height by.
    // Above them a little room for the marks' labels.
    let (bottom, top) = (10_f64.powf(y0.log10().floor()), 10_f64.powf((y1 * 1.05).log10().ceil() + 0.4));
    let x = Axis::logarithmic(x0, x1 * 1.05, LEFT, WIDTH - RIGHT);
    let y = Axis::logarithmic(bottom, top, HEIGHT - BOTTOM, TOP);
    let mut body = svg::words((WIDTH / 2.0, 20.0), Anchor::Middle, "t", title);
    for decade in y.powers(10.0) {
        for part in (1..10).map(|digit| decade * f64::from(digit)).filter(|part| *part <= top) {
            let look = if part == decade { "g" } else { "h" };
            body += &svg::line((LEFT, y.place(part)), (WIDTH - RIGHT, y.place(part)), look);
        }
        body += &svg::words((LEFT - 6.0, y.place(decade) + 4.0), Anchor::End, "", &y_label(decade));
    }
    for size in x.powers(4.0) {
        let at = x.place(size);
        body += &svg::line((at, HEIGHT - BOTTOM), (at, TOP), "g");
        let label = text::bytes(size.round() as u64);
        body += &svg::words((at, HEIGHT - BOTTOM + 16.0), Anchor::Middle, "", &label);
    }
    body += &svg::words(((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 8.0), Anchor::Middle, "", "request size");
    for (at, crossing) in crossings.iter().enumerate() {
        let place = x.place(crossing.bytes);
        body += &svg::line((place, HEIGHT - BOTTOM), (place, TOP), "x");
        // Each label on a line of its own, on the side of its mark that has the room.
        let left = crossing.bytes.ln() > (x0.ln() + x1.ln()) / 2.0;
        let (side, shift) = if left { (Anchor::End, -5.0) } else { (Anchor::Start, 5.0) };
        let line = TOP + 14.0 * (1 + at % 4) as f64;
        let label = text::bytes(crossing.bytes.round() as u64);
        body += &svg::words((place + shift, line), side, "x", &label);
    }
    for (name, points) in series {
        body += &curve(points, &x, &y, colour(name));
    }
    svg::chart(WIDTH, HEIGHT, title, &body)
}

/// A line with a dot at each measured size.
fn curve(points: &[(f64, f64)], x: &Axis, y: &Axis, colour: &str) -> String {
    let places = || points.iter().map(|point| (x.place(point.0), y.place(point.1)));
    let path: Vec<String> = places().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
    let dots: String =
        places().map(|(x, y)| format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>")).collect();
    format!("<g class=\"{colour}\"><path d=\"M{}\"/>{dots}</g>", path.join("L"))
}

/// Throughput by concurrency at one size, where more than one was measured.
fn concurrency(profile: &Profile, kind: Kind) -> String {
    const AT: usize = 16 << 10;
    let mut rows: BTreeMap<&str, Vec<(u16, f64)>> = BTreeMap::new();
    for point in profile
        .points
        .iter()
        .filter(|point| point.kind == kind.name() && point.bytes == AT && point.batch == 1)
    {
        rows.entry(&point.engine).or_default().push((point.concurrency, point.ns));
    }
    if rows.values().all(|row| row.len() < 2) {
        return String::new();
    }
    let Some(columns) = rows.values().map(|row| row.iter().map(|cell| cell.0).collect::<Vec<_>>()).max()
    else {
        return String::new();
    };
    let head: String = columns.iter().map(|count| format!("<th>{count}</th>")).collect();
    let line = |(name, row): (&&str, &Vec<(u16, f64)>)| {
        let cell = |count: &u16| {
            let found = row.iter().find(|cell| cell.0 == *count);
            format!("<td>{}</td>", found.map_or_else(|| "-".into(), |(_, ns)| text::nanos(*ns)))
        };
        format!("<tr><td>{}</td>{}</tr>", html(name), columns.iter().map(cell).collect::<String>())
    };
    let body: String = rows.iter().map(line).collect();
    format!(
        "<details><summary>Time of one 16 KiB request with several under way</summary><table><tr><th>engine</th>{head}</tr>{body}</table></details>"
    )
}

/// Kinds without a size: operations a second.
pub fn operations(profile: &Profile) -> String {
    let mut rows = String::new();
    for kind in Kind::ALL {
        let all = series(profile, *kind);
        if has_sizes(&all) {
            continue;
        }
        let best =
            all.values().filter_map(|points| points.first()).map(|point| point.1).fold(f64::MAX, f64::min);
        for (name, points) in &all {
            let Some((_, ns)) = points.first() else { continue };
            rows += &format!(
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.2}</td></tr>",
                kind.name(),
                html(name),
                text::nanos(*ns),
                text::per_second(*ns),
                ns / best
            );
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    format!(
        "<h2 id=\"operations\">Operations</h2><table><tr><th>kind</th><th>engine</th><th>time</th><th>rate</th><th>of the fastest</th></tr>{rows}</table>"
    )
}

/// What a joule above idle does, by kind, size and engine: only where counters measured, and with their names.
fn joules(profile: &Profile) -> String {
    let Some(note) = &profile.energy else { return String::new() };
    let row = |point: &wattlock::profile::Point| {
        let nanojoules = point.energy_nj?;
        let (size, rate) = if point.bytes > 0 {
            (text::bytes(point.bytes as u64), format!("{:.1} MB/J", point.bytes as f64 * 1e3 / nanojoules))
        } else {
            ("-".to_owned(), "-".to_owned())
        };
        Some(format!(
            "<tr><td>{}</td><td>{}</td><td>{size}</td><td>{:.2} uJ</td><td>{rate}</td></tr>",
            html(&point.kind),
            html(&point.engine),
            nanojoules / 1e3
        ))
    };
    let rows: String = profile.points.iter().filter_map(row).collect();
    format!(
        "<h2 id=\"joules\">Joules of one request at a time</h2><p>{}: {} ({}), above idle power of {:.2} W.</p><table><tr><th>kind</th><th>engine</th><th>size</th><th>a request</th><th>work by each joule</th></tr>{rows}</table>",
        note.quality,
        html(&note.parts.join(" + ")),
        html(&note.sources.join(", ")),
        note.idle_w
    )
}

fn fits(profile: &Profile) -> String {
    let row = |fit: &wattlock::profile::Fit| {
        let rate = fit.bytes_per_second.map_or_else(|| "-".into(), text::rate);
        format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{rate}</td><td>{:.1} %</td></tr>",
            html(&fit.kind),
            html(&fit.engine),
            text::nanos(fit.setup_ns),
            fit.error * 100.0
        )
    };
    let rows: String = profile.fits.iter().map(row).collect();
    format!(
        "<h2 id=\"fits\">latency = setup + bytes / rate</h2><table><tr><th>kind</th><th>engine</th><th>setup</th><th>rate</th><th>fit error</th></tr>{rows}</table>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two(a: &[(f64, f64)], b: &[(f64, f64)]) -> Series {
        Series::from([("a".to_owned(), a.to_vec()), ("b".to_owned(), b.to_vec())])
    }

    #[test]
    fn crossing_lies_where_the_lines_meet() {
        // a costs x, b costs 1000 throughout: they meet at 1000.
        let found =
            crossings(&two(&[(100.0, 100.0), (10_000.0, 10_000.0)], &[(100.0, 1000.0), (10_000.0, 1000.0)]));
        assert_eq!(found.len(), 1);
        assert!((found[0].bytes - 1000.0).abs() < 1e-6, "{found:?}");
        assert_eq!((found[0].below.as_str(), found[0].above.as_str()), ("a", "b"));
    }

    #[test]
    fn no_crossing_where_one_engine_always_leads() {
        assert!(crossings(&two(&[(1.0, 1.0), (2.0, 2.0)], &[(1.0, 3.0), (2.0, 4.0)])).is_empty());
    }

    #[test]
    fn curves_that_touch_are_no_change_of_the_choice() {
        assert!(crosses(&two(&[(64.0, 10.0), (1024.0, 200.0)], &[(64.0, 100.0), (1024.0, 110.0)])));
        assert!(
            !crosses(&two(&[(64.0, 10.0), (1024.0, 200.0)], &[(64.0, 100.0), (1024.0, 199.0)])),
            "by a hair"
        );
        assert!(!crosses(&two(&[(64.0, 10.0), (1024.0, 20.0)], &[(64.0, 100.0), (1024.0, 110.0)])));
        assert!(!crosses(&Series::new()));
    }

    #[test]
    fn figures_on_axes_have_no_idle_zeros() {
        assert_eq!(short("10.00 GB/s".into()), "10 GB/s");
        assert_eq!(short("1.50 us".into()), "1.5 us");
        assert_eq!(short("100 ns".into()), "100 ns");
    }

    #[test]
    fn crossings_are_marked_with_their_size() {
        let series = two(&[(64.0, 10.0), (65536.0, 1e5)], &[(64.0, 1000.0), (65536.0, 2e3)]);
        let drawn = chart("x", &series, &crossings(&series), |_| "e0", |y| format!("{y}"));
        let label = text::bytes(crossings(&series)[0].bytes.round() as u64);
        assert!(drawn.contains(&label), "{label}");
    }

    #[test]
    fn joules_are_on_the_page_with_their_source_or_not_at_all() {
        let mut profile = Profile::built_in();
        assert!(!page(&profile).contains("MB/J"));
        profile.energy = Some(wattlock::profile::EnergyNote {
            sources: vec!["powercap".into()],
            boundaries: vec![wattlock::meter::Boundary::Package],
            parts: vec!["package-0".into()],
            quality: wattlock::meter::Quality::Derived,
            idle_w: 10.0,
        });
        profile.points.truncate(1);
        (profile.points[0].bytes, profile.points[0].energy_nj) = (1000, Some(2000.0));
        let page = page(&profile);
        for wanted in ["derived: package-0 (powercap)", "2.00 uJ", "500.0 MB/J"] {
            assert!(page.contains(wanted), "{wanted}");
        }
    }

    #[test]
    fn page_of_the_built_in_table_holds_every_kind_and_fetches_nothing() {
        let table = Profile::built_in();
        let page = page(&table);
        for kind in Kind::ALL {
            assert!(page.contains(kind.name()), "{}", kind.name());
        }
        for forbidden in ["src=", "href=\"http", "url(", "<script", "@import", "fill=", "stroke="] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        assert!(page.contains("<svg"));
    }
}
