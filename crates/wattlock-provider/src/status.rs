//! This process's counters as text: JSON, Prometheus' exposition format, or a page; with joules of the machine since the
//! process was first asked.

use std::borrow::Cow;
use std::ffi::c_int;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use wattlock::meter::{Quality, Record};
use wattlock::telemetry::page::document;
use wattlock::telemetry::text::{Metrics, Sort, html};
use wattlock::telemetry::{self, Cell, EngineCounts, Snapshot};
use wattlock_watch::{Look, verdict};

use crate::provider::Provider;

/// The counters in a form: 0 JSON, 1 Prometheus (text format 0.0.4), 2 HTML. Empty for any other. With those of the same
/// user's processes `others`, if they publish any; a page begins with `own`.
pub fn text(provider: &Provider, form: c_int, others: &[u32], own: &str) -> String {
    let runtime = provider.current().runtime;
    let mut snapshot = runtime.snapshot();
    let now = runtime.clock().now();
    snapshot.energy = provider.energy.records(now);
    let me = std::process::id();
    let others: Vec<u32> = others.iter().copied().filter(|pid| *pid != me).collect();
    let found = if others.is_empty() { Vec::new() } else { telemetry::read_own(&others) };
    let others = by_process(found.clone());
    match form {
        0 => json(snapshot, &others),
        1 => prometheus(&snapshot, &others),
        2 => {
            let all: Vec<Snapshot> = std::iter::once(snapshot.clone()).chain(found).collect();
            let verdict = provider.looks.verdict(all, provider.looks.now());
            page(sum(snapshot, &others).0, &verdict, own)
        }
        _ => String::new(),
    }
}

/// How often a browser asks for the page again.
const AGAIN_S: u32 = 5;
/// A rate over less says little; and the page is made twice, first for its length.
const LEAST_NS: u64 = 1_000_000_000;

/// What two earlier looks at the page saw, so that the next one can tell rates. It holds no more than those two.
pub struct Looks {
    /// One clock for all looks: each runtime's begins anew.
    begun: Instant,
    seen: Mutex<Option<Seen>>,
}

impl Default for Looks {
    fn default() -> Looks {
        Looks { begun: Instant::now(), seen: Mutex::default() }
    }
}

#[derive(Default)]
struct Seen {
    /// A child after a fork begins anew: the looks were its parent's.
    forks: u32,
    before: Option<(u64, Look)>,
    last: Option<(u64, Look)>,
}

impl Looks {
    /// Nanoseconds since a fixed moment.
    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The verdict as HTML, in the words of `wattlock status`: of what was done since the look before, and since the
    /// processes began.
    fn verdict(&self, all: Vec<Snapshot>, now: u64) -> String {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let look = Look::new(Duration::from_nanos(now), epoch, all);
        let lines = |before| html(&verdict::lines(&look, before, telemetry::own_uid()).join("; "));
        let since = format!("Since the processes began: {}.", lines(None));
        // Not waited for: a thread that a fork did not bring along may have held it.
        let mut place = match self.seen.try_lock() {
            Ok(place) => place,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(std::sync::TryLockError::WouldBlock) => return format!("<p class=\"verdict\">{since}</p>"),
        };
        let forks = wattlock::forks();
        let known = place.take().filter(|seen| seen.forks == forks);
        let seen = place.insert(known.unwrap_or(Seen { forks, ..Seen::default() }));
        if seen.last.as_ref().is_none_or(|(at, _)| now.saturating_sub(*at) >= LEAST_NS) {
            seen.before = seen.last.replace((now, look.clone()));
        }
        let Some((at, before)) = &seen.before else { return format!("<p class=\"verdict\">{since}</p>") };
        let time = Duration::from_nanos(now.saturating_sub(*at));
        let lately = lines(Some(before));
        format!(
            "<p class=\"verdict\">In the last {:.0} s: {lately}.</p><p>{since}</p>",
            time.as_secs_f64().max(1.0)
        )
    }
}

/// One for each process: it has a file for each of its runtimes.
fn by_process(found: Vec<Snapshot>) -> Vec<Snapshot> {
    let mut all: Vec<Snapshot> = Vec::new();
    for one in found {
        match all.iter_mut().find(|known| known.header.pid == one.header.pid) {
            Some(known) => known.add(&one),
            None => all.push(one),
        }
    }
    all
}

/// All processes' counts, and the processes.
fn sum(mut snapshot: Snapshot, others: &[Snapshot]) -> (Snapshot, Vec<u32>) {
    let mut pids = vec![snapshot.header.pid];
    for other in others {
        snapshot.add(other);
        pids.push(other.header.pid);
    }
    pids.sort_unstable();
    (snapshot, pids)
}

fn json(snapshot: Snapshot, others: &[Snapshot]) -> String {
    let (snapshot, pids) = sum(snapshot, others);
    let mut value = serde_json::to_value(&snapshot).unwrap_or_default();
    if let Some(object) = value.as_object_mut() {
        object.insert("processes".to_owned(), pids.into());
    }
    value.to_string()
}

/// Labels and a value.
type Sample<'a> = (Vec<(&'static str, Cow<'a, str>)>, f64);

/// A family of samples: name, sort, words, and what each process has of it. Each of a program's processes has counters
/// of its own: without its number in every label one series would be several.
fn family<'a>(
    out: &mut Metrics,
    (name, sort, help): (&str, Sort, &str),
    processes: impl IntoIterator<Item = &'a Snapshot>,
    samples: impl Fn(&'a Snapshot) -> Vec<Sample<'a>>,
) {
    out.family(name, sort, help);
    for process in processes {
        let worker = process.header.pid.to_string();
        for (labels, value) in samples(process) {
            let labels = labels.iter().map(|(name, label)| (*name, &**label));
            out.sample(std::iter::once(("worker", &*worker)).chain(labels), value);
        }
    }
}

fn prometheus<'a>(own: &'a Snapshot, others: &'a [Snapshot]) -> String {
    type Value = fn(&Cell) -> f64;
    const BY_KIND: [(&str, &str, Value); 7] = [
        ("requests_total", "Requests done.", |cell| cell.requests as f64),
        ("bytes_total", "Input bytes of requests done.", |cell| cell.bytes as f64),
        ("errors_total", "Requests that ended in an error.", |cell| cell.errors as f64),
        ("held_seconds_total", "Time that requests were held.", |cell| cell.held_ns as f64 / 1e9),
        ("batch_sum_total", "Sizes of batches, over queued requests.", |cell| cell.batch_sum as f64),
        ("batch_count_total", "Queued requests in batch_sum.", |cell| cell.queued() as f64),
        ("joules_total", "Joules of timed requests; the JSON form says what they are worth.", |cell| {
            cell.energy_nj as f64 / 1e9
        }),
    ];
    let all = || std::iter::once(own).chain(others);
    let mut out = Metrics::new("wattlock");
    for (name, help, value) in BY_KIND {
        family(&mut out, (name, Sort::Counter, help), all(), |process| {
            let labels =
                |cell: &'a Cell| vec![("engine", Cow::from(&*cell.engine)), ("kind", Cow::from(&*cell.kind))];
            process.cells.iter().map(|cell| (labels(cell), value(cell))).collect()
        });
    }
    let help = "Requests that went to another engine.";
    family(&mut out, ("fallbacks_total", Sort::Counter, help), all(), |process| {
        let of = |engine: &'a EngineCounts| -> Vec<Sample<'a>> {
            let labels =
                |reason: &'a str| vec![("engine", Cow::from(&*engine.engine)), ("reason", reason.into())];
            engine.fallbacks.iter().map(|(reason, count)| (labels(reason), *count as f64)).collect()
        };
        process.engines.iter().flat_map(of).collect()
    });
    let joules = |value: Joules| {
        move |process: &'a Snapshot| -> Vec<Sample<'a>> {
            let rows = process.energy.iter().filter_map(|record| {
                let labels = vec![
                    ("source", Cow::from(&*record.source)),
                    ("part", Cow::from(&*record.part)),
                    ("worth", Cow::from(worth(record))),
                ];
                Some((labels, value(record)?))
            });
            rows.collect()
        }
    };
    const MACHINE: [(&str, &str, Joules); 4] = [
        ("machine_joules_total", "Joules by counters since this process was first asked.", |record| {
            record.joules
        }),
        ("machine_modelled_joules_total", "Modelled joules since this process was first asked.", |record| {
            record.modelled.as_ref().map(|range| range.expected)
        }),
        ("machine_modelled_joules_low_total", "Lower end of the modelled joules' error band.", |record| {
            record.modelled.as_ref().map(|range| range.low)
        }),
        ("machine_modelled_joules_high_total", "Upper end of the modelled joules' error band.", |record| {
            record.modelled.as_ref().map(|range| range.high)
        }),
    ];
    for (name, help, value) in MACHINE {
        family(&mut out, (name, Sort::Counter, help), [own], joules(value));
    }
    family(&mut out, ("in_flight", Sort::Gauge, "Requests in flight."), all(), |process| {
        let engines = process.engines.iter();
        engines
            .map(|engine| (vec![("engine", Cow::from(&*engine.engine))], engine.in_flight as f64))
            .collect()
    });
    out.into_text()
}

/// One figure of a record, if it has it.
type Joules = fn(&Record) -> Option<f64>;

/// What a figure is worth, for people.
fn worth(record: &Record) -> String {
    let quality = record.quality.map_or("unknown", Quality::name);
    match (&record.at_least, &record.modelled) {
        (Some(why), _) => format!("{quality}, at least: {why}"),
        (None, Some(range)) => format!("{quality}, {:.1} to {:.1}", range.low, range.high),
        (None, None) => quality.to_owned(),
    }
}

/// A time for people: three digits, in the unit in which it is not below 1.
fn time(ns: f64) -> String {
    scaled(ns, &[(1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns")])
}

/// A size for people.
fn size(bytes: u64) -> String {
    scaled(bytes as f64, &[(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1.0, "B")])
}

fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    if value <= 0.0 {
        return "0".to_owned();
    }
    // What rounds to the next unit's 1 has it.
    let unit = units.iter().find(|(unit, _)| value >= 0.9995 * unit).or(units.last());
    let (scale, name) = unit.copied().unwrap_or((1.0, ""));
    let number = value / scale;
    match number {
        _ if scale == 1.0 && number.fract() == 0.0 => format!("{number:.0} {name}"),
        ..0.01 => format!("below 0.01 {name}"),
        ..9.995 => format!("{number:.2} {name}"),
        ..99.95 => format!("{number:.1} {name}"),
        _ => format!("{number:.0} {name}"),
    }
}

/// The page: the verdict, what the caller has to say, and the counters. `verdict` and `own` are HTML.
fn page(snapshot: Snapshot, verdict: &str, own: &str) -> String {
    let header = &snapshot.header;
    let mut out = format!(
        "<h1>Wattlock in {}</h1>{verdict}<p>Policy {}, objective {}; costs from {}.</p>",
        html(&header.program),
        html(&header.policy),
        html(&header.objective),
        html(&header.profile)
    );
    for (name, why) in &header.inactive {
        let _ = write!(out, "<p>{} is off: {}.</p>", html(name), html(why));
    }
    out.push_str(own);
    out.push_str(
        "<h2>Engines</h2><table><tr><th>engine<th>kind<th>requests<th>size<th>mean time<th>mean held<th>mean batch<th>errors",
    );
    for cell in &snapshot.cells {
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let _ = write!(
            out,
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}",
            html(&cell.engine),
            html(&cell.kind),
            cell.requests,
            size(cell.bytes),
            or_none(cell.mean_ns().map(time)),
            or_none(cell.mean_held_ns().map(time)),
            or_none(cell.mean_batch().map(|mean| format!("{mean:.1}"))),
            cell.errors
        );
    }
    out.push_str(
        "</table><table><tr><th>engine<th>what it is<th>in flight<th>quarantines<th>checked<th>fallbacks",
    );
    for engine in &snapshot.engines {
        let reasons: Vec<String> =
            engine.fallbacks.iter().map(|(why, count)| format!("{why}: {count}")).collect();
        let _ = write!(
            out,
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}",
            html(&engine.engine),
            html(&engine.detail),
            engine.in_flight,
            engine.quarantines,
            engine.verified,
            html(&reasons.join(", "))
        );
    }
    out.push_str("</table><table><tr><th>energy from<th>part<th>time<th>energy<th>worth");
    for record in &snapshot.energy {
        let Some(value) = record.joules.or(record.modelled.as_ref().map(|range| range.expected)) else {
            continue;
        };
        let worth = html(&worth(record));
        let _ = write!(
            out,
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{worth}",
            html(&record.source),
            html(&record.part),
            time((record.to_s - record.from_s) * 1e9),
            scaled(value, &[(1e3, "kJ"), (1.0, "J"), (1e-3, "mJ")])
        );
    }
    let _ = write!(
        out,
        "</table><footer>This page asks again every {AGAIN_S} seconds. For programs: <a href=\"?format=json\">JSON</a>, \
         <a href=\"?format=prometheus\">Prometheus</a>.</footer>"
    );
    document("Wattlock", Some(AGAIN_S), &out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(text: &str) -> Record {
        let mut whole = serde_json::json!({"source": "a", "boundary": "package", "part": "0", "from_s": 0.0, "to_s": 1.0,
            "quality": null});
        let more: serde_json::Value = serde_json::from_str(text).unwrap();
        whole.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(whole).unwrap()
    }

    #[test]
    fn joules_say_what_they_are_worth() {
        assert_eq!(worth(&record(r#"{"quality": "measured", "joules": 2.0}"#)), "measured");
        let least = r#"{"quality": "derived", "joules": 2.0, "at_least": "a sample is missing"}"#;
        assert_eq!(worth(&record(least)), "derived, at least: a sample is missing");
        let modelled = r#"{"quality": "modelled", "modelled": {"low": 1.0, "expected": 2.0, "high": 3.0}}"#;
        assert_eq!(worth(&record(modelled)), "modelled, 1.0 to 3.0");
    }

    #[test]
    fn every_sample_says_whose_it_is_and_a_mean_batch_can_be_had() {
        let mut snapshot = wattlock::Runtime::builder().telemetry(false).build().unwrap().snapshot();
        let cell = |engine: &str, batch_sum| Cell {
            engine: engine.into(),
            kind: "x25519-derive".into(),
            timed: 10,
            batch_sum,
            ..Cell::default()
        };
        snapshot.header.pid = 77;
        snapshot.cells = vec![cell("lanes", 75), cell("software", 0)];
        let text = prometheus(&snapshot, &[]);
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(samples.iter().all(|line| line.contains("{worker=\"77\",")), "{text}");
        let counts: Vec<&&str> =
            samples.iter().filter(|line| line.starts_with("wattlock_batch_count_")).collect();
        assert!(counts[0].contains("lanes") && counts[0].ends_with(" 10"), "{text}");
        assert!(counts[1].contains("software") && counts[1].ends_with(" 0"), "nothing was queued: {text}");
    }

    #[test]
    fn the_page_divides_as_the_command_line_does() {
        let runtime = wattlock::Runtime::builder().telemetry(false).build().unwrap();
        let mut snapshot = runtime.snapshot();
        let lanes = Cell {
            engine: "lanes".into(),
            kind: "x25519-derive".into(),
            requests: 640,
            timed: 10,
            timed_ns: 50_000,
            held_ns: 640_000,
            batch_sum: 75,
            ..Cell::default()
        };
        let inline = Cell {
            engine: "software".into(),
            requests: 1,
            bytes: 42,
            timed: 1,
            timed_ns: 40,
            ..Cell::default()
        };
        snapshot.cells = vec![lanes, inline];
        let page = page(snapshot, "<p class=\"verdict\">v</p>", "<p>first");
        assert!(page.contains("<td>640<td>0<td>5.00 us<td>1.00 us<td>7.5<td>0"), "{page}");
        assert!(page.contains("<td>1<td>42 B<td>40 ns<td>0<td>-<td>0"), "nothing was batched: {page}");
        let at = |what: &str| page.find(what).unwrap_or_else(|| panic!("{what}"));
        assert!(at("class=\"verdict\"") < at("<p>first") && at("<p>first") < at("<table>"), "{page}");
        assert!(
            page.contains("http-equiv=\"refresh\" content=\"5\"") && page.matches("<!doctype").count() == 1
        );
    }

    #[test]
    fn figures_of_any_size_have_a_unit_in_which_they_can_be_read() {
        let told = [0.4, 7.0, 999.0, 999.6, 1_234.0, 45_600.0, 999_600.0, 7.0e6, 3.0e9, 4.2e12].map(time);
        let expected = [
            "0.40 ns", "7 ns", "999 ns", "1.00 us", "1.23 us", "45.6 us", "1.00 ms", "7.00 ms", "3.00 s",
            "4200 s",
        ];
        assert_eq!(told, expected);
        assert_eq!([0, 12, 3_000, 12_345_678].map(size), ["0", "12 B", "3.00 KB", "12.3 MB"]);
        // None reads as nothing that is something.
        for exponent in -30..130 {
            let ns = 1.3_f64.powi(exponent);
            assert!(!time(ns).starts_with("0.00 "), "{ns}");
        }
    }

    #[test]
    fn processes_of_a_program_are_summed_and_named() {
        let runtime = wattlock::Runtime::builder().telemetry(false).build().unwrap();
        let cell = |kind: &str, requests| Cell {
            engine: "lanes".into(),
            kind: kind.into(),
            requests,
            ..Cell::default()
        };
        let of = |pid, cells| {
            let mut snapshot = runtime.snapshot();
            snapshot.header.pid = pid;
            snapshot.cells = cells;
            snapshot
        };
        let own = of(7, vec![cell("a", 1)]);
        let others =
            by_process(vec![of(9, vec![cell("a", 2)]), of(9, vec![cell("a", 4)]), of(8, vec![cell("b", 8)])]);
        assert_eq!(others.len(), 2);
        let text = prometheus(&own, &others);
        for line in
            ["worker=\"7\",engine=\"lanes\",kind=\"a\"} 1", "worker=\"9\",engine=\"lanes\",kind=\"a\"} 6"]
        {
            assert_eq!(text.matches(&format!("wattlock_requests_total{{{line}\n")).count(), 1, "{text}");
        }
        assert_eq!(text.matches("# TYPE wattlock_requests_total").count(), 1);
        let value: serde_json::Value = serde_json::from_str(&json(own, &others)).unwrap();
        assert_eq!(value["processes"], serde_json::json!([7, 8, 9]));
        let counts = |at: usize| (&value["cells"][at]["kind"], &value["cells"][at]["requests"]);
        assert_eq!((counts(0), counts(1)), ((&"a".into(), &7.into()), (&"b".into(), &8.into())));
    }

    fn with(pid: u32, requests: u64) -> Snapshot {
        let mut snapshot = wattlock::Runtime::builder().telemetry(false).build().unwrap().snapshot();
        (snapshot.header.program, snapshot.header.pid) = ("nginx".into(), pid);
        snapshot.cells = vec![Cell {
            engine: "lanes".into(),
            kind: "rsa-2048-private".into(),
            requests,
            timed: requests,
            batch_sum: 7 * requests,
            ..Cell::default()
        }];
        snapshot
    }

    #[test]
    fn the_verdict_has_rates_from_the_second_look_on_and_counts_all_workers() {
        let (looks, second) = (Looks::default(), 1_000_000_000);
        let first = looks.verdict(vec![with(1, 1000), with(2, 500)], second);
        let words = "nginx (2 processes): 100 % of 1,500 public-key operations by lanes in batches of 7.0; no fallbacks";
        assert!(
            first.contains(&format!("Since the processes began: {words}.")) && !first.contains("/s"),
            "{first}"
        );
        // The second time within a moment is the same look: its length was asked for.
        assert_eq!(looks.verdict(vec![with(1, 1000), with(2, 500)], second + 1000), first);
        let later = |at| looks.verdict(vec![with(1, 7000), with(2, 500)], at);
        let then = later(6 * second);
        assert!(then.contains("In the last 5 s: nginx (2 processes): 100 % of 1,200/s public-key"), "{then}");
        assert_eq!(later(6 * second + 1000).len(), then.len());
        // Without new work it is idle, and nothing earlier is told as new.
        assert!(later(9 * second).contains("In the last 3 s: nginx (2 processes): idle; no fallbacks"));
        // A runtime that is made anew has a clock of its own, which says nothing here: its counters are new ones.
        let mut new = with(1, 50);
        (new.header.started, new.header.born) = (u64::MAX - 1, 7);
        let told = looks.verdict(vec![new, with(2, 500)], 14 * second);
        assert!(told.contains("In the last 5 s: nginx (2 processes): 100 % of 10/s public-key"), "{told}");
        let moments = [looks.now(), looks.now()];
        assert!(moments[0] <= moments[1] && moments[1] < 600 * second, "since it was made: {moments:?}");
    }

    /// Names of engines and files come from settings, and a program's from its own arguments.
    #[test]
    fn hostile_text_in_counters_stays_text() {
        for text in
            ["</style><script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "]]><svg onload=x>"]
        {
            let mut snapshot = with(1, 8);
            let header = &mut snapshot.header;
            header.program = text.into();
            (header.policy, header.objective, header.profile) = (text.into(), text.into(), text.into());
            header.inactive = vec![(text.into(), text.into())];
            snapshot.cells[0].engine = text.into();
            snapshot.engines = vec![EngineCounts {
                engine: text.into(),
                detail: text.into(),
                fallbacks: vec![(text.into(), 1)],
                ..EngineCounts::default()
            }];
            snapshot.energy =
                vec![record(&serde_json::json!({"source": text, "part": text, "joules": 2.0}).to_string())];
            let verdict = Looks::default().verdict(vec![snapshot.clone()], 0);
            let page = page(snapshot, &verdict, "");
            assert!(!page.contains(text), "{page}");
            for markup in ["<script", "<img", "<svg"] {
                assert!(!page.contains(markup), "{markup}: {page}");
            }
        }
    }
}
